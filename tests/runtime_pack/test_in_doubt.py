"""Calls that were started and never finished: nothing that asks for the same runs unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import attrs
import orjson
import pytest

from runtime_pack import (
    ApprovalRequired,
    Completed,
    Decision,
    ExecutionContext,
    LoopResult,
    TaskContract,
    ToolPolicy,
    ToolRule,
)
from runtime_pack.catalog import Effects
from runtime_pack.errors import StopCode
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    ListEmitter,
    Rehearsal,
    ToolShelf,
    calls,
    reply,
)

ASKED = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user", reason="it writes")])
DOUBT = "the same call was started before, and nobody knows what it did"
ANY_LABEL = {"max_label": {"integrity": "external", "confidentiality": "secret"}}
PARAMETERS: Mapping[str, Json] = {
    "type": "object",
    "properties": {"x": {"type": "string"}, "note": {"type": "string"}},
}


def codes(result: LoopResult) -> list[str | None]:
    """The code of every result in the history, None for success."""
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


@attrs.define
class Died:
    """A run whose process dies while the call `{"x": "1"}` of the tool runs for the first time."""

    tool: str = "t:a"
    policy: ToolPolicy = attrs.field(factory=ToolPolicy)
    effects: Effects = Effects.ONCE
    batch: int = 1
    deaths: int = 1
    remember: Mapping[str, Any] | None = None
    more: Mapping[str, Any] = attrs.field(factory=dict)
    stage: Rehearsal = attrs.field(init=False)
    run_id: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        store = CrashingRunStore(crash_at=())

        async def does(context: ExecutionContext) -> str:
            del context
            if self.stage.shelf.ran[self.tool] <= self.deaths:
                store.crash_in(1)
            return "ok"

        shelf = ToolShelf().add(
            self.tool,
            does=does,
            effects=self.effects,
            parameters=PARAMETERS,
            cosmetic=("note",),
            **self.more,
        )
        contract = TaskContract(tool_policy=self.policy, max_parallel=1)
        self.stage = Rehearsal(
            shelf=shelf, contract=contract, store=store, emitter=ListEmitter(), task="T"
        )
        self.stage.prepare([self.ask(*[f"a{n}" for n in range(self.batch)])])
        self.run_id = self.stage.run.id

    def ask(self, *ids: str, x: str = "1", note: str = "") -> Any:
        return calls(*((name, self.tool, {"x": x, "note": note}) for name in ids))

    async def die(self) -> None:
        with pytest.raises((Crash, BaseExceptionGroup)):
            await self.live()
        assert self.stage.shelf.ran[self.tool] == 1

    async def live(self) -> None:
        first = await self.stage.start()
        (request,) = first.requests
        self.stage.prepare([])
        word = Decision(
            request_id=request.request_id,
            verdict="approve",
            decided_by="ann",
            remember=self.remember,
        )
        await self.stage.resume(self.run_id, word)

    async def go_on(
        self, *script: Any, decision: Decision | None = None, **more: Any
    ) -> LoopResult:
        self.stage.prepare(script)
        words = () if decision is None else (decision,)
        return await self.stage.resume(self.run_id, *words, **more)

    async def decide(self, result: LoopResult, verdict: str, *script: Any) -> LoopResult:
        self.stage.prepare(script)
        words = [
            Decision(request_id=r.request_id, verdict=verdict, decided_by="ann")
            for r in result.requests
        ]
        return await self.stage.resume(self.run_id, *words)


@pytest.mark.parametrize(
    ("died", "reasons"),
    [
        (Died(), (DOUBT,)),
        (Died(tool="t:gate", policy=ASKED), ("task rule t:gate: it writes", DOUBT)),
        (
            Died(tool="t:gate", policy=ASKED, remember=ANY_LABEL),
            ("task rule t:gate: it writes", DOUBT),
        ),
        (Died(more={"approval_class": "notify"}), (DOUBT,)),
    ],
    ids=["auto", "request_user", "remembered", "notify"],
)
def test_the_same_call_waits_for_a_person(died: Died, reasons: tuple[str, ...]) -> None:
    """Whatever class it has, and whatever is remembered: it ran once, and only a yes runs it again."""

    async def scenario() -> None:
        await died.die()
        asked = await died.go_on(died.ask("b"))

        assert isinstance(asked, ApprovalRequired)
        assert codes(asked) == ["OUTCOME_UNKNOWN", "APPROVAL_REQUIRED"]
        assert asked.requests[0].reasons == reasons
        assert died.stage.shelf.ran[died.tool] == 1

        approved = await died.decide(asked, "approve", reply())
        assert isinstance(approved, Completed)
        assert died.stage.shelf.ran[died.tool] == 2

    asyncio.run(scenario())


def test_a_doubt_outlives_processes_and_ends_with_a_yes() -> None:
    """It is in the saved run; after the approval the tool is what it was before."""

    async def scenario() -> None:
        died = Died()
        await died.die()
        talked = await died.go_on(reply("hm"))
        assert isinstance(talked, Completed)
        asked = await died.go_on(died.ask("b"), message="again, please")
        assert isinstance(asked, ApprovalRequired)

        done = await died.decide(asked, "approve", died.ask("c"), reply())

        assert isinstance(done, Completed)
        assert codes(done) == ["OUTCOME_UNKNOWN", None, None]

    asyncio.run(scenario())


def test_a_no_holds_as_any_other() -> None:
    """It did not run again, and the denial is remembered."""

    async def scenario() -> None:
        died = Died()
        await died.die()
        asked = await died.go_on(died.ask("b"))
        done = await died.decide(asked, "deny", died.ask("c"), reply())

        assert codes(done) == ["OUTCOME_UNKNOWN", "DENIED_BY_PERSON", "DENIED_BY_PERSON"]
        assert died.stage.shelf.ran[died.tool] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("x", "note", "waits"), [("1", "other", True), ("2", "", False)])
def test_what_makes_another_call(x: str, note: str, waits: bool) -> None:
    """A cosmetic parameter does not, any other argument does."""

    async def scenario() -> None:
        died = Died()
        await died.die()
        result = await died.go_on(died.ask("b", x=x, note=note), reply())

        assert isinstance(result, ApprovalRequired) is waits
        assert died.stage.shelf.ran[died.tool] == 2 - waits

    asyncio.run(scenario())


def test_a_sibling_that_was_not_started_waits_too() -> None:
    """Of three equal calls one at a time is run: the first is in doubt, the others are asked about."""

    async def scenario() -> None:
        died = Died(batch=3)
        await died.die()
        asked = await died.go_on()

        assert codes(asked) == ["OUTCOME_UNKNOWN", "APPROVAL_REQUIRED", "APPROVAL_REQUIRED"]
        assert died.stage.shelf.ran[died.tool] == 1

    asyncio.run(scenario())


def test_a_doubt_is_kept_when_the_batch_is_abandoned() -> None:
    """The user says something instead: what was started may have taken effect all the same."""

    async def scenario() -> None:
        died = Died()
        await died.die()
        asked = await died.go_on(died.ask("b"), message="never mind", abandon=True)

        assert codes(asked) == ["CANCELLED", "APPROVAL_REQUIRED"]
        assert died.stage.shelf.ran[died.tool] == 1

    asyncio.run(scenario())


def test_a_tool_that_may_run_twice_is_never_in_doubt() -> None:
    """It was run again under the same step, and nobody is asked."""

    async def scenario() -> None:
        died = Died(effects=Effects.REPEATABLE)
        await died.die()
        done = await died.go_on(died.ask("b"), reply())

        assert isinstance(done, Completed)
        assert codes(done) == [None, None]
        assert died.stage.shelf.ran[died.tool] == 3

    asyncio.run(scenario())


def test_a_deny_of_the_policy_beats_a_doubt() -> None:
    """Nobody is asked about a call that could not run anyway."""

    async def scenario() -> None:
        died = Died()
        await died.die()
        shut = ToolPolicy([ToolRule(tool="*", approval_class="deny")])
        died.stage.contract = attrs.evolve(died.stage.contract, tool_policy=shut)
        done = await died.go_on(died.ask("b"), reply())

        assert codes(done) == ["OUTCOME_UNKNOWN", "POLICY_DENIED"]

    asyncio.run(scenario())


def test_a_host_that_nobody_can_tell_beats_a_doubt() -> None:
    """A call of class notify does not run without an emitter, asked about or not."""

    async def scenario() -> None:
        died = Died(more={"approval_class": "notify"})
        await died.die()
        died.stage.emitter = None
        done = await died.go_on(died.ask("b"), reply())

        assert codes(done) == ["OUTCOME_UNKNOWN", "POLICY_ERROR"]

    asyncio.run(scenario())


def test_an_approval_in_spite_of_a_doubt_does_not_answer_the_next_doubt() -> None:
    """It was to be remembered, and the call died once more: it may have run twice by now."""

    async def scenario() -> None:
        died = Died(deaths=2)
        await died.die()
        asked = await died.go_on(died.ask("b"))
        word = Decision(
            request_id=asked.requests[0].request_id,
            verdict="approve",
            decided_by="ann",
            remember=ANY_LABEL,
        )
        with pytest.raises(Crash):
            await died.go_on(decision=word)
        again = await died.go_on(died.ask("c"))

        assert isinstance(again, ApprovalRequired)
        assert again.requests[0].reasons == (DOUBT,)
        assert died.stage.shelf.ran[died.tool] == 2

    asyncio.run(scenario())


def test_an_edit_into_a_call_in_doubt_is_asked_about_again() -> None:
    """The person approved other arguments, not knowing that these were in doubt."""

    async def scenario() -> None:
        died = Died(tool="t:gate", policy=ASKED)
        await died.die()
        asked = await died.go_on(died.ask("b", x="2"))
        (request,) = asked.requests
        word = Decision(
            request_id=request.request_id,
            verdict="approve",
            decided_by="ann",
            edited_args={"x": "1"},
        )
        died.stage.prepare([])
        again = await died.stage.resume(died.run_id, word)

        assert isinstance(again, ApprovalRequired)
        assert DOUBT in again.requests[0].reasons
        assert died.stage.shelf.ran[died.tool] == 1

    asyncio.run(scenario())


def test_a_doubt_ends_no_run_by_itself() -> None:
    """The stop is that a person is waited for."""

    async def scenario() -> None:
        died = Died()
        await died.die()
        asked = await died.go_on(died.ask("b"))

        assert asked.stop is not None
        assert asked.stop.code == "APPROVAL_REQUIRED"
        assert asked.stop.code != StopCode.NO_PROGRESS

    asyncio.run(scenario())
