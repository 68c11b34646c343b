"""The calls of one response: how many are judged, which run beside which, and all or none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    CatalogTool,
    Completed,
    ContractError,
    Decision,
    ExecutionContext,
    LoopResult,
    MemoryRunStore,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    ToolMessage,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    Verdict,
    catalog_tool,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.messages import Json
from runtime_pack.testing import (
    Rehearsal,
    ScriptedApprover,
    ScriptedModel,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    reply,
)

GATE = ToolPolicy(
    [
        ToolRule(tool="t:gate", approval_class="request_user"),
        ToolRule(tool="t:no", approval_class="deny"),
    ]
)
ATOMIC = TaskContract(batch="atomic", tool_policy=GATE)


def batch(*names: str) -> Turn:
    return calls(*((f"c{number}", name, "{}") for number, name in enumerate(names)))


def shelf_of(*names: str) -> ToolShelf:
    shelf = ToolShelf()
    for name in names:
        shelf.add(name)
    return shelf


def told(result: LoopResult) -> list[str | None]:
    return [
        None if m.ok else orjson.loads(m.text)["code"]
        for m in result.messages
        if isinstance(m, ToolMessage)
    ]


def approvals(result: LoopResult) -> list[Decision]:
    return [
        Decision(request_id=request.request_id, verdict="approve", decided_by="ann")
        for request in result.requests
    ]


def verdict_on(result: LoopResult, verdict: Verdict) -> Decision:
    (request,) = result.requests
    return Decision(request_id=request.request_id, verdict=verdict, decided_by="a person")


# ── how many ──────────────────────────────────────────────────────────────────────────────────


def test_l23_a_large_batch_runs_up_to_its_limit_and_the_rest_is_refused_visibly() -> None:
    """40 calls, 12 a batch: 12 run, 28 are told so, and the model may ask for them again."""
    shelf = shelf_of("t:echo")
    run = Rehearsal(shelf=shelf, contract=TaskContract(max_batch=12))

    result = asyncio.run(run.play(batch(*["t:echo"] * 40), reply()))

    assert isinstance(result, Completed)
    assert shelf.ran["t:echo"] == 12
    assert told(result) == [None] * 12 + ["BUDGET_EXHAUSTED"] * 28
    refused = next(m for m in result.messages if isinstance(m, ToolMessage) and not m.ok)
    body = orjson.loads(refused.text)
    assert (body["budget"], body["limit"], body["retryable"]) == ("max_batch", 12, True)
    assert result.ledger.used["steps"] == 12


class Narrow(ScriptedModel):
    """A model whose provider takes three results a request."""

    max_results: object = 3


@pytest.mark.parametrize(("contract", "ran"), [(2, 2), (128, 3), ("unlimited", 3)])
def test_l24_the_port_declares_how_many_results_it_takes(contract: int, ran: int) -> None:
    """Of 200 calls no more run than the provider takes results, or the contract lets."""

    async def scenario() -> None:
        shelf, model = shelf_of("t:echo"), Narrow([batch(*["t:echo"] * 200), reply()])
        limits = TaskContract(max_batch=contract, max_refused="unlimited")
        result = await run_governed_agent_loop(
            runtime=create_agent_task_run(limits).guard_runtime(
                create_agent_runtime(model=model, tools=shelf.tools)
            ),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
        )

        assert shelf.ran["t:echo"] == ran
        assert len(told(result)) == 200
        assert_one_result_per_call(result.messages)

    asyncio.run(scenario())


@pytest.mark.parametrize("declared", [0, -1, True, "3", 2.0])
def test_a_port_that_declares_nonsense_is_refused(declared: object) -> None:
    """A limit that is no number would be no limit."""
    model = Narrow([])
    model.max_results = declared
    run = create_agent_task_run(TaskContract())

    with pytest.raises(ContractError, match="max_results"):
        run.guard_runtime(create_agent_runtime(model=model))


@pytest.mark.parametrize("wrong", [{"max_batch": -1}, {"max_batch": True}, {"batch": "all"}])
def test_a_batch_is_declared_in_known_words(wrong: Mapping[str, object]) -> None:
    """A misspelt mode does not silently become the milder one."""
    with pytest.raises(ContractError):
        # What is wrong is the case at hand.
        TaskContract(**wrong)  # type: ignore[arg-type]


def test_a_cut_response_is_truncated_whatever_its_size() -> None:
    """The code of each call is that of the cut."""
    cut = attrs.evolve(batch(*["t:echo"] * 3), finish="length")
    run = Rehearsal(shelf=shelf_of("t:echo"), contract=TaskContract(max_batch=1))

    assert told(asyncio.run(run.play(cut, reply()))) == ["TRUNCATED"] * 3


# ── which beside which ────────────────────────────────────────────────────────────────────────


class Floor:
    """Tools that note what runs at the same time."""

    def __init__(self, *exclusive: str) -> None:
        self.now: list[str] = []
        self.seen: list[tuple[str, ...]] = []
        self.shelf = ToolShelf()
        for name in ("t:a", "t:b", "t:x"):
            self.shelf.add(name, does=self._work(name))
        self.shelf.tools[:] = [
            CatalogTool(
                spec=attrs.evolve(tool.spec, exclusive=tool.spec.name in exclusive),
                handler=tool.handler,
            )
            for tool in self.shelf.tools
        ]

    def _work(self, name: str) -> Callable[[ExecutionContext], Awaitable[Json]]:
        async def work(context: ExecutionContext) -> Json:
            self.now.append(name)
            for _ in range(3):
                self.seen.append(tuple(self.now))
                await asyncio.sleep(0)
            self.now.remove(name)
            return name

        return work


@given(
    names=st.lists(st.sampled_from(["t:a", "t:b", "t:x"]), min_size=1, max_size=9),
    parallel=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_an_exclusive_call_is_a_barrier(names: list[str], parallel: int) -> None:
    """It runs alone, after all before it and before all after it; the others run beside each other."""
    floor = Floor("t:x")
    contract = TaskContract(max_parallel=parallel)

    result = asyncio.run(
        Rehearsal(shelf=floor.shelf, contract=contract).play(batch(*names), reply())
    )

    assert all(len(beside) == 1 for beside in floor.seen if "t:x" in beside)
    assert max(map(len, floor.seen)) <= parallel
    assert [name for name, _ in floor.shelf.calls] == names
    assert [m.text for m in result.messages if isinstance(m, ToolMessage)] == names


def test_calls_without_an_exclusive_one_run_together() -> None:
    """Without a declaration nothing waits for anything but the number at a time."""
    floor = Floor()

    asyncio.run(Rehearsal(shelf=floor.shelf).play(batch("t:a", "t:x", "t:b"), reply()))

    assert max(map(len, floor.seen)) == 3


def exclusively(shelf: ToolShelf, name: str, **changes: Any) -> None:
    shelf.tools[:] = [
        CatalogTool(spec=attrs.evolve(tool.spec, exclusive=True, **changes), handler=tool.handler)
        if tool.spec.name == name
        else tool
        for tool in shelf.tools
    ]


class Stubborn:
    """A tool that does not stop when its time is over, until it is let go."""

    def __init__(self) -> None:
        self.goes_on = False
        self.let_go = threading.Event()

    async def awaits(self, context: ExecutionContext) -> Json:
        self.goes_on = True
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)
        self.goes_on = False
        return "late"

    def blocks(self, x: str = "") -> str:
        """A tool."""
        self.goes_on = True
        self.let_go.wait(20)
        self.goes_on = False
        return "late"


@pytest.mark.parametrize("threaded", [False, True], ids=["a task", "a thread"])
@pytest.mark.parametrize("first", ["t:stubborn", "t:x"])
def test_no_call_runs_beside_an_exclusive_one_that_did_not_stop(threaded: bool, first: str) -> None:
    """Nor an exclusive one beside any that did not; it waits in its own time, then it is refused."""
    stubborn, beside = Stubborn(), list[bool]()

    async def looks(context: ExecutionContext) -> Json:
        beside.append(stubborn.goes_on)
        return "alone"

    shelf = ToolShelf()
    second = "t:x" if first == "t:stubborn" else "t:plain"
    if threaded:
        made = catalog_tool(name=first, timeout_seconds=0.5)(stubborn.blocks)
        shelf.tools.append(made)
    else:
        shelf.add(first, does=stubborn.awaits, timeout_seconds=0.05)
    shelf.add(second, does=looks, timeout_seconds=0.4)
    exclusively(shelf, "t:x")

    class Releasing(ScriptedModel):
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            if len(self.requests) == 2:
                stubborn.let_go.set()
                # A thread has no event to wait for.
                while stubborn.goes_on:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            return await super().execute_turn(request, context)

    stage = Rehearsal(shelf=shelf)
    stage.model = Releasing([batch(first), batch(second), batch(second), reply()])
    result = asyncio.run(stage.start())

    texts = [m.text for m in result.messages if isinstance(m, ToolMessage)]
    assert [orjson.loads(text)["code"] for text in texts[:2]] == ["TIMEOUT", "TIMEOUT"]
    assert orjson.loads(texts[1])["executed"] == "no"
    assert (texts[2], beside) == ("alone", [False])
    assert [record.executed for record in result.steps if record.tool == second] == ["no", "yes"]
    assert result.ledger.reserved == {}


def test_calls_that_need_not_be_alone_run_beside_one_that_did_not_stop() -> None:
    """Without an exclusive tool among the two nothing is waited for, whatever ran before them."""
    stubborn = Stubborn()
    shelf = ToolShelf().add("t:stubborn", does=stubborn.awaits, timeout_seconds=0.02)
    shelf.add("t:plain", timeout_seconds=5).add("t:x")
    exclusively(shelf, "t:x")

    async def scenario() -> LoopResult:
        script = (batch("t:x"), batch("t:stubborn"), batch("t:plain"), reply())
        result = await Rehearsal(shelf=shelf).play(*script)
        stubborn.let_go.set()
        return result

    assert told(asyncio.run(scenario())) == [None, "TIMEOUT", None]


def test_a_call_that_a_run_inside_a_call_left_behind_is_in_the_way_outside() -> None:
    """A run that a tool drives ends before what it started has: its caller's calls see that."""
    stubborn = Stubborn()
    below = ToolShelf().add("t:stubborn", does=stubborn.awaits, timeout_seconds=0.02).add("t:x")
    exclusively(below, "t:x")

    async def drives(context: ExecutionContext) -> Json:
        return told(await Rehearsal(shelf=below).play(batch("t:stubborn"), reply()))

    shelf = ToolShelf().add("t:outer", does=drives).add("t:x", timeout_seconds=0.05)
    exclusively(shelf, "t:x")

    async def scenario() -> LoopResult:
        result = await Rehearsal(shelf=shelf).play(batch("t:outer"), batch("t:x"), reply())
        stubborn.let_go.set()
        return result

    assert told(asyncio.run(scenario())) == [None, "TIMEOUT"]
    assert shelf.ran == {"t:outer": 1}


def test_a_pause_while_a_call_waits_to_be_alone_leaves_it_for_later() -> None:
    """It has not begun, and it runs when the run is taken up."""
    stubborn = Stubborn()
    shelf = ToolShelf().add("t:stubborn", does=stubborn.awaits, timeout_seconds=0.02).add("t:x")
    exclusively(shelf, "t:x")

    async def scenario() -> LoopResult:
        stage = Rehearsal(shelf=shelf, seal=Seal.random())
        stage.prepare([batch("t:stubborn"), batch("t:x")])
        drive = asyncio.ensure_future(stage.start())
        # Neither the model nor the call that waits has an event for it.
        while len(stage.model.requests) < 2 or not stage.run.held:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        stage.run.pause("later", mode="after_step")
        first = await drive
        stubborn.let_go.set()

        assert shelf.ran == {"t:stubborn": 1}
        return await stage.go_on(first, reply())

    assert told(asyncio.run(scenario())) == ["TIMEOUT", None]
    assert shelf.ran == {"t:stubborn": 1, "t:x": 1}


@pytest.mark.parametrize("names", [("t:gate", "t:x"), ("t:gate", "t:x", "t:gate", "t:a")])
def test_a_call_that_waits_for_a_person_is_no_part_of_a_barrier(names: tuple[str, ...]) -> None:
    """Ungated siblings run first, exclusive ones among them; what is approved runs after, in order."""
    shelf = shelf_of("t:gate", "t:x", "t:a")
    exclusively(shelf, "t:x")
    stage = Rehearsal(shelf=shelf, contract=TaskContract(tool_policy=GATE), seal=Seal.random())

    first = asyncio.run(stage.play(batch(*names)))
    ungated = [name for name in names if name != "t:gate"]

    assert [name for name, _ in shelf.calls] == ungated

    asyncio.run(stage.go_on(first, reply(), decisions=approvals(first)))

    assert [name for name, _ in shelf.calls] == [*ungated, *("t:gate" for _ in first.requests)]


def test_an_atomic_batch_keeps_the_order_of_a_gated_call_and_an_exclusive_one() -> None:
    """Nothing of it runs before the person has decided, so all of it runs in order."""
    shelf = shelf_of("t:gate", "t:x", "t:a")
    exclusively(shelf, "t:x")
    stage = Rehearsal(shelf=shelf, contract=ATOMIC, seal=Seal.random())

    first = asyncio.run(stage.play(batch("t:gate", "t:x", "t:a")))

    assert shelf.calls == []

    asyncio.run(stage.go_on(first, reply(), decisions=approvals(first)))

    assert [name for name, _ in shelf.calls] == ["t:gate", "t:x", "t:a"]


def test_a_pause_before_a_barrier_leaves_what_follows_it_for_later() -> None:
    """The calls after the one that paused have not begun, and run when the run is taken up."""
    shelf = ToolShelf()
    run = Rehearsal(shelf=shelf, seal=Seal.random())

    async def pausing(context: ExecutionContext) -> Json:
        if shelf.ran["t:x"] == 1:
            run.run.pause("later", mode="after_step")
        return "x"

    shelf.add("t:x", does=pausing).add("t:b")
    exclusive = attrs.evolve(shelf.tools[0].spec, exclusive=True)
    shelf.tools[0] = CatalogTool(spec=exclusive, handler=shelf.tools[0].handler)

    first = asyncio.run(run.play(batch("t:x", "t:b")))
    second = asyncio.run(run.go_on(first, reply()))

    assert isinstance(first, Suspended)
    assert isinstance(second, Completed)
    assert shelf.ran == {"t:x": 1, "t:b": 1}


# ── all or none ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "codes"),
    [
        (("t:a", "t:no", "t:b"), ["BATCH_REFUSED", "POLICY_DENIED", "BATCH_REFUSED"]),
        (("t:a", "nope"), ["BATCH_REFUSED", "UNKNOWN_TOOL"]),
        (("t:gate", "t:no"), ["BATCH_REFUSED", "POLICY_DENIED"]),
    ],
)
def test_an_atomic_batch_runs_nothing_when_a_call_is_refused(
    names: tuple[str, ...], codes: list[str]
) -> None:
    """Nobody is asked, no step is taken, and the model may go on."""
    shelf = shelf_of("t:a", "t:b", "t:no", "t:gate")

    result = asyncio.run(Rehearsal(shelf=shelf, contract=ATOMIC).play(batch(*names), reply()))

    assert isinstance(result, Completed)
    assert told(result) == codes
    assert not shelf.ran
    assert not result.ledger.reserved
    assert result.ledger.used.get("steps", 0) == 0
    assert result.ledger.refused == len(names)


def test_an_atomic_batch_that_does_not_fit_the_budget_runs_nothing() -> None:
    """Three calls and two steps: none runs, and the run stops for its budget."""
    shelf = shelf_of("t:a")
    contract = attrs.evolve(ATOMIC, max_steps=2, wrap_up=False)

    result = asyncio.run(Rehearsal(shelf=shelf, contract=contract).play(batch(*["t:a"] * 3)))

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED
    assert told(result) == ["BATCH_REFUSED", "BATCH_REFUSED", "BUDGET_EXHAUSTED"]
    assert not shelf.ran


def test_an_atomic_batch_runs_whole_when_all_fit() -> None:
    """Then it is a batch like any other."""
    shelf = shelf_of("t:a", "t:b")

    result = asyncio.run(Rehearsal(shelf=shelf, contract=ATOMIC).play(batch("t:a", "t:b"), reply()))

    assert shelf.ran == {"t:a": 1, "t:b": 1}
    assert told(result) == [None, None]


@pytest.mark.parametrize(
    ("verdict", "ran", "codes"),
    [
        (Verdict.APPROVE, {"t:a": 1, "t:gate": 1}, [None, None]),
        (Verdict.DENY, {}, ["BATCH_REFUSED", "DENIED_BY_PERSON"]),
    ],
)
@pytest.mark.parametrize("later", [True, False])
def test_an_atomic_batch_waits_for_the_person(
    verdict: Verdict, ran: dict[str, int], codes: list[str | None], later: bool
) -> None:
    """Nothing runs before the word is there; a denial takes the others with it."""
    shelf = shelf_of("t:a", "t:gate")
    run = Rehearsal(shelf=shelf, contract=ATOMIC, store=MemoryRunStore(), seal=Seal.random())
    if not later:
        run.approver = ScriptedApprover([verdict])
        result = asyncio.run(run.play(batch("t:a", "t:gate"), reply()))
    else:
        first = asyncio.run(run.play(batch("t:a", "t:gate")))
        assert isinstance(first, ApprovalRequired)
        assert not shelf.ran
        decision = verdict_on(first, verdict)
        result = asyncio.run(run.go_on(first, reply(), decisions=[decision]))

    assert isinstance(result, Completed)
    assert dict(shelf.ran) == ran
    assert told(result) == codes
    assert not result.ledger.reserved


def test_an_atomic_batch_that_waited_is_judged_again_whole() -> None:
    """A sibling that today's policy denies takes the approved call with it."""
    shelf = shelf_of("t:a", "t:gate")
    run = Rehearsal(shelf=shelf, contract=ATOMIC, store=MemoryRunStore(), seal=Seal.random())
    first = asyncio.run(run.play(batch("t:a", "t:gate")))
    denies = ToolPolicy([*GATE.rules, ToolRule(tool="t:a", approval_class="deny")])
    run.contract = attrs.evolve(ATOMIC, tool_policy=denies)

    decision = verdict_on(first, Verdict.APPROVE)
    result = asyncio.run(run.go_on(first, reply(), decisions=[decision]))

    assert not shelf.ran
    assert "POLICY_DENIED" in told(result)
    assert not result.ledger.reserved


def test_a_withdrawn_request_is_recorded_as_such(tmp_path: Path) -> None:
    """Who looks for it later finds that nobody was asked any more."""
    shelf = shelf_of("t:gate", "t:no")
    with AuditLog(tmp_path / "log.jsonl") as log:
        run = Rehearsal(shelf=shelf, contract=ATOMIC, audit=log)
        asyncio.run(run.play(batch("t:gate", "t:no"), reply()))

    text = (tmp_path / "log.jsonl").read_text()
    assert text.count('"APR001O"') == text.count('"APR004D"') == 1


def test_an_answer_from_the_record_does_not_refuse_a_batch() -> None:
    """What the record answers well has an answer; the sibling runs."""
    shelf = shelf_of("t:a", "t:b")
    one = calls(("a", "t:a", "{}"))

    result = asyncio.run(
        Rehearsal(shelf=shelf, contract=ATOMIC).play(one, one, batch("t:a", "t:b"), reply())
    )

    assert isinstance(result, Completed)
    assert shelf.ran == {"t:a": 2, "t:b": 1}
