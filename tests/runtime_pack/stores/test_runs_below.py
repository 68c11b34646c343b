"""Decisions about what a sub-agent asks, left with the run that people know: its parent."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

from runtime_pack import (
    AgentTaskRun,
    Decision,
    LoopResult,
    MemoryRunStore,
    SubAgent,
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
    runs,
    sub_agent_tool,
)
from runtime_pack.cli._runs_show import show_details
from runtime_pack.errors import RunAmbiguous
from runtime_pack.guard.sub_runs import sub_run_id
from runtime_pack.letters import decision_key, seal_letter
from runtime_pack.testing import MovableClock, ScriptedModel, ToolShelf, calls, reply

ASKS = ToolPolicy([ToolRule(tool="work", approval_class="request_user")])
CHILD = TaskContract(max_steps=8, max_turns=8, tool_policy=ASKS)
HELP = ("h", "helper", '{"task": "dig"}')
WORK = ("w", "work", '{"x": "1"}')


class Family:
    """A parent whose child, or whose child's child, asks before it works."""

    def __init__(self, *, deep: bool = False) -> None:
        self.shelf = ToolShelf().add("work")
        self.store = MemoryRunStore()
        self.clock = MovableClock()
        self.deep = deep
        self.ends: list[str] = []

    def _model(self, depth: int, *, again: bool) -> ScriptedModel:
        asking = WORK if depth == (2 if self.deep else 1) else HELP
        return ScriptedModel([reply("done")] if again else [calls(asking), reply("done")])

    def _guarded(self, run: AgentTaskRun, contract: TaskContract, *, again: bool) -> Any:
        def make(child: AgentTaskRun) -> SubAgent:
            below = TaskContract(max_steps=2, max_turns=3)
            runtime, specs = self._guarded(child, below, again=again)
            return SubAgent(runtime=runtime, tool_catalog=specs)

        helper = sub_agent_tool(
            run,
            name="helper",
            description="Helps.",
            make=make,
            contract=contract,
            allowlist=(),
            store=self.store,
        )
        tools = [*self.shelf.tools, helper]
        base = create_agent_runtime(model=self._model(run.depth, again=again), tools=tools)
        return run.guard_runtime(base), [tool.spec for tool in tools]

    def _parent(self, *, again: bool) -> Any:
        run = create_agent_task_run(
            TaskContract(max_steps=20, max_turns=20), run_id="p", task="dig", clock=self.clock
        )
        return self._guarded(run, CHILD, again=again)

    async def start(self) -> LoopResult:
        runtime, specs = self._parent(again=False)
        return await run_governed_agent_loop(
            runtime=runtime,
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=specs),
            store=self.store,
        )

    async def resume(self, *decisions: Decision) -> LoopResult:
        runtime, _ = self._parent(again=True)
        return await resume_governed_agent_loop(
            runtime=runtime, store=self.store, run_id="p", decisions=decisions
        )


def word(request_id: str, verdict: Verdict = Verdict.APPROVE, by: str = "ann") -> Decision:
    return Decision(request_id=request_id, verdict=verdict, decided_by=by)


@pytest.mark.parametrize(
    ("deep", "path"), [(False, "dig > helper"), (True, "dig > helper > helper")]
)
def test_the_parent_shows_what_its_child_asks_with_its_path(*, deep: bool, path: str) -> None:
    """However deep it stands; in the list it counts as waiting, then as decided."""
    family = Family(deep=deep)

    async def main() -> None:
        first = await family.start()
        shown = await runs.show_run(family.store, "p")
        (saved,) = shown.requests
        assert saved.request == first.requests[0]
        assert (saved.request.task, saved.decision) == (path, None)
        assert (shown.summary.pending, shown.summary.decided) == (1, 0)

        await runs.decide(family.store, "p", word(saved.request.request_id), clock=family.clock)

        shown = await runs.show_run(family.store, "p")
        assert shown.requests[0].decision == word(saved.request.request_id)
        assert (shown.summary.pending, shown.summary.decided) == (0, 1)

    asyncio.run(main())


@pytest.mark.parametrize(("verdict", "ran"), [(Verdict.APPROVE, 1), (Verdict.DENY, 0)])
@pytest.mark.parametrize("deep", [False, True])
def test_a_decision_left_with_the_parent_is_carried_out_below(
    *, deep: bool, verdict: Verdict, ran: int
) -> None:
    """By the resume of the parent, once; the parent shows nothing that waits any more."""
    family = Family(deep=deep)

    async def main() -> LoopResult:
        first = await family.start()
        told = await runs.decide(
            family.store, "p", word(first.requests[0].request_id, verdict), clock=family.clock
        )
        assert (told.code, family.shelf.ran["work"]) == (None, 0)
        done = await family.resume()
        assert (await runs.show_run(family.store, "p")).requests == ()
        return done

    done = asyncio.run(main())

    assert done.kind == "completed"
    assert family.shelf.ran["work"] == ran


def test_the_first_decision_stands_whether_left_above_or_below() -> None:
    """It is one letter, in one place: with the run that asks."""
    family = Family()

    async def main() -> list[str | None]:
        (request,) = (await family.start()).requests
        said = [
            await runs.decide(family.store, run, word(request.request_id, verdict), clock=clock)
            for run, verdict in (
                ("p", Verdict.APPROVE),
                ("p", Verdict.APPROVE),
                (request.run, Verdict.DENY),
                ("p", Verdict.DENY),
            )
        ]
        assert list(await family.store.letters("p")) == []
        return [None if reply.code is None else str(reply.code) for reply in said]

    clock = family.clock

    conflict = "APPROVAL_CONFLICT"
    assert asyncio.run(main()) == [None, "ALREADY_RESOLVED", conflict, conflict]


def test_another_word_brought_to_the_resume_does_not_end_the_child() -> None:
    """The letter stands; the child still waits, and goes on with it at the next resume."""
    family = Family()

    async def main() -> tuple[LoopResult, LoopResult]:
        (request,) = (await family.start()).requests
        await runs.decide(family.store, "p", word(request.request_id), clock=family.clock)
        torn = await family.resume(word(request.request_id, Verdict.DENY, by="bob"))
        return torn, await family.resume()

    torn, done = asyncio.run(main())

    assert torn.kind != "completed"
    assert done.kind == "completed"
    assert family.shelf.ran["work"] == 1


def test_a_letter_to_the_parent_itself_is_handed_down() -> None:
    """As one that a host of its own left there: nothing that has the key's seal is lost."""
    family = Family()

    async def main() -> LoopResult:
        (request,) = (await family.start()).requests
        key = decision_key(request.request_id)
        body = word(request.request_id).to_json()
        await family.store.post("p", key, seal_letter("p", key, body, family.store.seal))
        return await family.resume()

    assert asyncio.run(main()).kind == "completed"
    assert family.shelf.ran["work"] == 1


def test_too_late_is_said_of_a_childs_request_too() -> None:
    """By the clock of who decides."""
    family = Family()

    async def main() -> str | None:
        (request,) = (await family.start()).requests
        family.clock.move(100 * 3600)
        told = await runs.decide(family.store, "p", word(request.request_id), clock=family.clock)
        return told.code

    assert asyncio.run(main()) == "APPROVAL_EXPIRED"


def test_a_child_that_is_saved_elsewhere_is_no_reason_to_show_nothing() -> None:
    """Its requests are decided with the resume."""
    family = Family()

    async def main() -> str | None:
        (request,) = (await family.start()).requests
        await family.store.delete(request.run)
        assert (await runs.show_run(family.store, "p")).requests == ()
        told = await runs.decide(family.store, "p", word(request.request_id), clock=family.clock)
        return told.code

    assert asyncio.run(main()) == "APPROVAL_NOT_FOUND"


def test_the_command_shows_whose_request_it_is() -> None:
    """The path, and the run that asks; not for the run's own."""
    family = Family()

    async def main() -> str:
        (request,) = (await family.start()).requests
        shown = await runs.show_run(family.store, "p", clock=family.clock)
        below = await runs.show_run(family.store, request.run, clock=family.clock)
        show_details(console, shown)
        told = console.export_text()
        show_details(console, below)
        assert "of its sub-agent" not in console.export_text()
        return told

    console = Console(file=io.StringIO(), record=True, width=200)

    assert "of its sub-agent dig > helper (run p-sub-" in asyncio.run(main())


def test_the_beginning_of_an_id_is_the_parents_before_its_childs() -> None:
    """The id of a child begins with that of its parent; of two parents neither is meant."""
    store = MemoryRunStore()

    async def main() -> None:
        for run_id in ("run-a1", "run-b1", sub_run_id("run-a1", "t1c1")):
            run = create_agent_task_run(TaskContract(), run_id=run_id)
            base = create_agent_runtime(model=ScriptedModel([reply()]))
            given = TurnInput(messages=[UserMessage(text="go")])
            await run_governed_agent_loop(
                runtime=run.guard_runtime(base), execute_turn_input=given, store=store
            )
        assert await runs.find_run(store, "run-a") == "run-a1"
        with pytest.raises(RunAmbiguous):
            await runs.find_run(store, "run-")
        child = sub_run_id("run-a1", "t1c1")
        assert await runs.find_run(store, child[:12]) == child

    asyncio.run(main())
