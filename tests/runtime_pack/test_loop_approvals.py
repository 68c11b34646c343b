"""Requests to people: what is bound, what is judged again, and what a second word is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    AuditLog,
    Completed,
    ContractError,
    Decision,
    ExecutionContext,
    Label,
    LoopError,
    LoopResult,
    MemoryRunStore,
    StopCode,
    Suspended,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolRuntime,
    Turn,
    TurnInput,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.catalog import Effects
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.testing import (
    ListEmitter,
    MovableClock,
    Rehearsal,
    ScriptedApprover,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
)
from web_tools.search import create_fixture_web_search_provider

ASK = ToolRule(tool="t:gate*", approval_class="request_user", reason="it writes")
GATE = ToolPolicy([ASK])
ONE = calls(("a", "t:gate", '{"x":"1"}'))
TWO = calls(("a", "t:gate", '{"x":"1"}'), ("b", "t:gate", '{"x":"2"}'))


def decide(request: ApprovalRequest, verdict: str = "approve") -> Decision:
    return Decision(request_id=request.request_id, verdict=verdict, decided_by="a person")


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


def stop_code(result: LoopResult) -> str:
    assert result.stop is not None
    return str(result.stop.code)


def rehearsal(**options: Any) -> Rehearsal:
    shelf = ToolShelf().add("t:gate").add("t:echo")
    return Rehearsal(
        shelf=shelf,
        contract=TaskContract(tool_policy=GATE),
        store=MemoryRunStore(),
        **options,
    )


def test_a_request_is_bound_to_tool_definition_arguments_policy_and_label() -> None:
    """What a person is shown is what will run, under what was known when it was asked."""

    async def scenario() -> None:
        stage = rehearsal()
        result = await stage.play(calls(("e", "t:echo", "{}")), ONE)
        (request,) = result.requests

        assert request.tool == "t:gate"
        assert request.tool_sha256 == stage.shelf.specs[0].sha256
        assert request.arguments == {"x": "1"}
        assert request.arguments_sha256.startswith("sha256:")
        assert request.policy_sha256 == GATE.sha256
        assert request.label == Label(integrity="external", confidentiality="workspace")
        assert request.reasons == ("task rule t:gate*: it writes",)
        assert request.expires_at == request.created_at + timedelta(hours=72)

    asyncio.run(scenario())


def test_a_pending_call_holds_its_step() -> None:
    """While it waits, the step is reserved, so nothing else can take it."""

    async def scenario() -> None:
        stage = rehearsal()
        stage.contract = TaskContract(tool_policy=GATE, max_steps=1)
        first = await stage.play(calls(("a", "t:gate", "{}"), ("b", "t:echo", "{}")))

        assert first.ledger.reserved == {"steps": 1, "tool:t:gate": 1}
        assert told(first) == ["APPROVAL_REQUIRED", "BUDGET_EXHAUSTED"]

        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert stage.shelf.ran == {"t:gate": 1}
        assert isinstance(result, Suspended)
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_decisions_may_come_one_by_one() -> None:
    """The decided call runs and is kept; the other one still waits."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(TWO)
        second = await stage.go_on(first, decisions=[decide(first.requests[1])])

        assert isinstance(second, ApprovalRequired)
        assert [request.arguments["x"] for request in second.requests] == ["1"]
        assert [arguments["x"] for _, arguments in stage.shelf.calls] == ["2"]

        third = await stage.go_on(second, reply(), decisions=[decide(second.requests[0], "deny")])

        assert isinstance(third, Completed)
        assert told(third) == ["DENIED_BY_PERSON", None]
        assert stage.shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("second", "code"), [("approve", "ALREADY_RESOLVED"), ("deny", "APPROVAL_CONFLICT")]
)
def test_a_second_decision_has_no_effect(second: str, code: str) -> None:
    """The same word is ALREADY_RESOLVED, another one APPROVAL_CONFLICT; nothing runs again."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(TWO)
        once = decide(first.requests[0])
        await stage.go_on(first, decisions=[once])
        again = await stage.go_on(first, decisions=[decide(first.requests[0], second)])

        assert isinstance(again, LoopError)
        assert stop_code(again) == code
        assert stage.shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


def test_a_request_cannot_be_approved_and_denied_at_once() -> None:
    """Two words on one request in one resume are a conflict; nothing runs."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        words = [decide(first.requests[0]), decide(first.requests[0], "deny")]
        result = await stage.go_on(first, decisions=words)

        assert stop_code(result) == StopCode.APPROVAL_CONFLICT
        assert stage.shelf.ran["t:gate"] == 0

    asyncio.run(scenario())


def test_an_approval_that_comes_too_late_runs_nothing() -> None:
    """At the moment of expiry the request is closed; later words are APPROVAL_EXPIRED too."""

    async def scenario() -> None:
        clock = MovableClock()
        stage = rehearsal(clock=clock)
        stage.contract = TaskContract(tool_policy=GATE, approval_seconds=60)
        first = await stage.play(TWO)
        clock.move(60)
        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert told(result) == ["APPROVAL_EXPIRED", "APPROVAL_EXPIRED"]
        assert stage.shelf.ran["t:gate"] == 0
        assert isinstance(result, Completed)

        late = await stage.go_on(first, decisions=[decide(first.requests[0])])

        assert stop_code(late) == "APPROVAL_EXPIRED"

    asyncio.run(scenario())


def test_a_policy_made_stricter_beats_an_approval() -> None:
    """What was asked under the old policy is denied under the new one, approval or not."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        stage.contract = TaskContract(
            tool_policy=ToolPolicy([ASK, ToolRule(tool="t:*", approval_class="deny")])
        )
        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert told(result) == ["POLICY_DENIED"]
        assert stage.shelf.ran["t:gate"] == 0
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_a_budget_made_smaller_beats_an_approval() -> None:
    """A step that the new contract does not have is not taken."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        stage.contract = TaskContract(tool_policy=GATE, max_steps=0)
        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert told(result) == ["BUDGET_EXHAUSTED"]
        assert stage.shelf.ran["t:gate"] == 0

    asyncio.run(scenario())


REDEFINED = ToolShelf().add("t:gate", effects=Effects.REPEATABLE)
NARROWED = ToolShelf().add("t:gate", parameters={"type": "object", "properties": {}})
GONE = ToolShelf().add("t:echo")


@pytest.mark.parametrize("shelf", [REDEFINED, NARROWED], ids=["effects", "schema"])
def test_a_tool_that_changed_since_the_request_is_refused(shelf: ToolShelf) -> None:
    """The approval was for the tool as it was; what now has its name does not run."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        stage.shelf = shelf
        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert told(result) == ["UNKNOWN_TOOL"]
        assert shelf.ran["t:gate"] == 0
        assert "t:gate" not in stage.model.requests[0][1]

    asyncio.run(scenario())


@pytest.mark.parametrize("verdict", ["approve", None])
def test_a_runtime_without_the_tool_does_not_use_up_the_approval(verdict: str | None) -> None:
    """It is told which tool it lacks; nothing changes, and the right host carries the decision out."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        decisions = [decide(first.requests[0])] if verdict else []
        right, stage.shelf = stage.shelf, GONE
        lost = await stage.go_on(first, decisions=decisions)

        assert isinstance(lost, LoopError)
        assert lost.stop is not None
        assert stop_code(lost) == StopCode.TOOL_MISSING
        waits = "waits for a call of `t:gate`, which this runtime does not have"
        assert lost.stop.message == f"run {first.run_id} {waits}"
        assert lost.requests == first.requests
        assert lost.state == first.state

        stage.shelf = right
        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert told(result) == [None]
        assert stage.shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_a_call_that_was_refused_for_a_step_that_came_back_stops_nothing(verdict: str) -> None:
    """Denied, the waiting call gives its step back, and the next turn may take it."""

    async def scenario() -> None:
        stage = rehearsal()
        stage.contract = TaskContract(tool_policy=GATE, max_steps=1, wrap_up=False)
        both = calls(("a", "t:gate", '{"x":"1"}'), ("b", "t:echo", '{"x":"2"}'))
        first = await stage.play(both)
        again = [calls(("c", "t:echo", '{"x":"2"}')), reply()] if verdict == "deny" else []
        decisions = [decide(first.requests[0], verdict)]
        result = await stage.go_on(first, *again, decisions=decisions)

        if verdict == "deny":
            assert isinstance(result, Completed)
            assert told(result) == ["DENIED_BY_PERSON", "BUDGET_EXHAUSTED", None]
        else:
            assert isinstance(result, Suspended)
            assert told(result) == [None, "BUDGET_EXHAUSTED"]
        (refused,) = (m for m in result.messages if getattr(m, "call_id", "") == "b")
        assert isinstance(refused, ToolMessage)
        held = "has nothing left (0 used, 1 reserved, 1 allowed)"
        assert orjson.loads(refused.text)["message"] == f"The budget steps {held}."

    asyncio.run(scenario())


def test_a_denial_needs_no_tool() -> None:
    """A host that took the tool away for good can still say no to the call that waits."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        stage.shelf = GONE
        denial = Decision(request_id=first.requests[0].request_id, verdict="deny", decided_by="ann")
        result = await stage.go_on(first, reply(), decisions=[denial])

        assert told(result) == ["DENIED_BY_PERSON"]

    asyncio.run(scenario())


def test_a_call_of_a_tool_that_is_gone_can_be_given_up() -> None:
    """With `abandon` the run goes on without it."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        stage.shelf = GONE
        result = await stage.go_on(first, reply(), message="leave it", abandon=True)

        assert isinstance(result, Completed)

    asyncio.run(scenario())


@pytest.mark.parametrize("knows", [True, False])
def test_a_tool_that_is_offered_and_not_there_keeps_the_run_from_starting(knows: bool) -> None:
    """Where the runtime can say so; one whose base does not say what it runs may have it."""
    base = create_agent_runtime(model=ScriptedModel([reply()]), tools=GONE.tools)
    runtime = base if knows else _Opaque(base)
    corpus, emitter = create_fixture_web_search_provider([]), ListEmitter()
    web = create_web_tool_runtime(runtime, provider=corpus, allowlist=[], emitter=emitter)
    given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=rehearsal().shelf.specs)
    guarded = create_agent_task_run(TaskContract()).guard_runtime(web)
    drive = run_governed_agent_loop(runtime=guarded, execute_turn_input=given)

    if knows:
        with pytest.raises(ContractError, match="the runtime does not have the tool t:gate"):
            asyncio.run(drive)
    else:
        assert isinstance(asyncio.run(drive), Completed)


class _Opaque:
    """A runtime that does not say which tools it has."""

    def __init__(self, inner: ToolRuntime) -> None:
        self._inner = inner

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        return await self._inner.execute_tool(name, arguments, context)


def test_a_message_is_refused_while_a_call_waits() -> None:
    """PENDING_APPROVAL, and nothing changes; with abandon the request is withdrawn for good."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        refused = await stage.go_on(first, message="hello?")

        assert stop_code(refused) == StopCode.PENDING_APPROVAL

        result = await stage.go_on(first, reply("hi"), message="hello?", abandon=True)

        assert isinstance(result, Completed)
        assert told(result) == ["CANCELLED"]
        assert orjson.loads(result.messages[2].text)["executed"] == "no"
        assert result.ledger.reserved == {}

        late = await stage.go_on(first, decisions=[decide(first.requests[0])])

        assert stop_code(late) == StopCode.APPROVAL_CONFLICT
        assert stage.shelf.ran["t:gate"] == 0

    asyncio.run(scenario())


def test_calls_are_either_decided_or_abandoned() -> None:
    """Both at once says two things about one call."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        with pytest.raises(ContractError):
            await stage.go_on(
                first, message="x", abandon=True, decisions=[decide(first.requests[0])]
            )

    asyncio.run(scenario())


def test_an_approver_decides_while_the_run_is_alive() -> None:
    """Approved calls run, denied ones do not, and each request is asked about once."""

    async def scenario() -> None:
        approver = ScriptedApprover([Verdict.APPROVE, Verdict.DENY])
        stage = rehearsal(approver=approver)
        result = await stage.play(TWO, reply())

        assert told(result) == [None, "DENIED_BY_PERSON"]
        approver.assert_used_up()

    asyncio.run(scenario())


def test_a_request_left_open_is_asked_about_once_in_a_drive() -> None:
    """The approver that leaves the first open and denies the second is not asked again."""

    async def scenario() -> None:
        approver = ScriptedApprover([None, Verdict.DENY])
        result = await rehearsal(approver=approver).play(TWO)

        assert isinstance(result, ApprovalRequired)
        approver.assert_used_up()

    asyncio.run(scenario())


class BadApprover:
    """Answers with what it was made with: a value to return or an exception to raise."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        if isinstance(self.answer, BaseException):
            raise self.answer
        # The fault at hand.
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("no"),
        asyncio.CancelledError(),
        TimeoutError(),
        True,
        "approve",
        Decision(request_id="another", verdict="approve", decided_by="x"),
    ],
    ids=repr,
)
def test_an_approver_that_fails_has_not_approved(answer: object) -> None:
    """Whatever it raises or answers, the call waits and does not run."""

    async def scenario() -> None:
        stage = rehearsal(approver=BadApprover(answer))
        result = await stage.play(ONE)

        assert isinstance(result, ApprovalRequired)
        assert stage.shelf.ran["t:gate"] == 0

    asyncio.run(scenario())


class Sleeper:
    """An approver that never answers."""

    def __init__(self) -> None:
        self.woken = False
        self.asked = asyncio.Event()

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        self.asked.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.woken = True
        return None


def test_an_approver_that_hangs_lets_the_request_expire() -> None:
    """The request's own expiry bounds the wait."""

    async def scenario() -> None:
        approver = Sleeper()
        stage = rehearsal(approver=approver)
        stage.contract = TaskContract(tool_policy=GATE, approval_seconds=0.05)
        result = await stage.play(ONE, reply())

        assert told(result) == ["APPROVAL_EXPIRED"]
        assert approver.woken

    asyncio.run(scenario())


@pytest.mark.parametrize(("stop", "kind"), [("pause", "suspended"), ("cancel", "cancelled")])
def test_a_waiting_approver_can_be_interrupted(stop: str, kind: str) -> None:
    """Pause and cancel do not wait for a person; the call does not run."""

    async def scenario() -> None:
        approver = Sleeper()
        stage = rehearsal(approver=approver)
        stage.prepare([ONE])
        drive = asyncio.ensure_future(stage.start())
        await approver.asked.wait()
        getattr(stage.run, stop)("enough")
        result = await drive

        assert result.kind == kind
        assert stage.shelf.ran["t:gate"] == 0
        if kind == "cancelled":
            assert (result.ledger.reserved, result.state) == ({}, None)
        else:
            assert len(result.requests) == 1

    asyncio.run(scenario())


def test_waiting_for_a_person_is_not_activity() -> None:
    """An hour at the approver leaves a run of ten seconds its ten seconds."""

    async def scenario() -> None:
        clock = MovableClock()

        class Slow:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                clock.move(3600)
                return decide(request)

        stage = rehearsal(approver=Slow(), clock=clock)
        stage.contract = TaskContract(tool_policy=GATE, max_duration_seconds=10)
        result = await stage.play(ONE, reply())

        assert isinstance(result, Completed)
        assert result.ledger.active_seconds == 0

    asyncio.run(scenario())


def test_an_approved_call_that_was_not_started_is_not_asked_about_again() -> None:
    """A run paused between approval and start runs the call when it is taken up."""

    async def scenario() -> None:
        stage = rehearsal()

        class Pausing:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                stage.run.pause("hold on")
                return decide(request)

        stage.approver = Pausing()
        first = await stage.play(ONE)

        assert isinstance(first, Suspended)
        assert stage.shelf.ran["t:gate"] == 0

        stage.approver = None
        result = await stage.go_on(first, reply())

        assert isinstance(result, Completed)
        assert stage.shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


def test_a_tool_cannot_change_what_is_said_to_have_run() -> None:
    """Arguments are handed over as a copy: the history keeps what the model asked for."""

    async def scenario() -> None:
        stage = rehearsal()

        class Editing:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                dict.update(request.arguments, x="edited")
                return decide(request)

        stage.approver = Editing()
        result = await stage.play(ONE, reply())

        assert "edited" not in str(result.messages)

    asyncio.run(scenario())


def test_an_unneeded_output_class_is_not_mistaken_for_approval() -> None:
    """A tool's own APPROVAL_REQUIRED code is a failed call, not a request to a person."""

    async def scenario() -> None:
        failed = ToolOutput(ok=False, text="{}", code="APPROVAL_REQUIRED")
        stage = Rehearsal(shelf=ToolShelf().add("t:echo", failed))
        result = await stage.play(calls(("a", "t:echo", "{}")), reply())

        assert isinstance(result, Completed)
        assert result.requests == ()

    asyncio.run(scenario())


# ── calls that were admitted before the run was taken up ────────────────────────────────────────


async def admitted_and_paused(stage: Rehearsal) -> LoopResult:
    """A run that was paused after its only call was admitted, before it began."""
    policy = stage.contract.tool_policy

    def pausing(arguments: Mapping[str, Json]) -> bool:
        stage.run.pause("wait")
        return False

    watch = ToolRule(tool="*", approval_class="deny", when=pausing)
    stage.contract = TaskContract(tool_policy=ToolPolicy([*policy.rules, watch]))
    first = await stage.play(calls(("a", "t:echo", '{"x":"1"}')))
    stage.contract = TaskContract(tool_policy=policy)

    assert isinstance(first, Suspended)
    assert stage.shelf.ran == {}
    assert first.ledger.reserved == {"steps": 1, "tool:t:echo": 1}
    return first


def test_an_admitted_call_runs_when_the_rules_are_the_same() -> None:
    """Under its step, without a second admission in the ledger."""

    async def scenario() -> None:
        stage = rehearsal()
        result = await stage.go_on(await admitted_and_paused(stage), reply())

        assert told(result) == [None]
        assert result.ledger.used["steps"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("contract", "code"),
    [
        (
            TaskContract(tool_policy=ToolPolicy([ToolRule(tool="*", approval_class="deny")])),
            "POLICY_DENIED",
        ),
        (TaskContract(max_steps=0), "BUDGET_EXHAUSTED"),
        (TaskContract(per_tool={"t:echo": 0}), "BUDGET_EXHAUSTED"),
    ],
)
def test_an_admitted_call_is_judged_again(contract: TaskContract, code: str) -> None:
    """A rule that became stricter refuses it, and its step is given back."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await admitted_and_paused(stage)
        stage.contract = contract
        result = await stage.go_on(first, reply())

        assert told(result) == [code]
        assert stage.shelf.ran == {}
        assert result.ledger.reserved == {}
        assert "steps" not in result.ledger.used

    asyncio.run(scenario())


def test_an_admitted_call_may_now_need_a_person() -> None:
    """The step stays held while the person is asked, and the approved call runs."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await admitted_and_paused(stage)
        stage.contract = TaskContract(
            tool_policy=ToolPolicy([ToolRule(tool="*", approval_class="request_user")])
        )
        waiting = await stage.go_on(first)

        assert isinstance(waiting, ApprovalRequired)
        assert waiting.ledger.reserved == {"steps": 1, "tool:t:echo": 1}

        result = await stage.go_on(waiting, reply(), decisions=[decide(waiting.requests[0])])

        assert told(result) == [None]
        assert stage.shelf.ran == {"t:echo": 1}

    asyncio.run(scenario())


def test_an_admitted_call_waits_for_a_runtime_that_has_its_tool() -> None:
    """What was admitted is not lost to a host that was set up without the tool."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await admitted_and_paused(stage)
        right, stage.shelf = stage.shelf, ToolShelf().add("t:gate")
        lost = await stage.go_on(first)

        assert stop_code(lost) == StopCode.TOOL_MISSING

        stage.shelf = right
        result = await stage.go_on(first, reply())

        assert told(result) == [None]
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


async def taken_up(stage: Rehearsal, first: LoopResult, *script: Turn, **given: Any) -> LoopResult:
    """As `Rehearsal.go_on`, with what is given as it is."""
    stage.prepare(script)
    runtime = create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
    assert stage.store is not None
    return await resume_governed_agent_loop(
        runtime=stage.run.guard_runtime(runtime), store=stage.store, run_id=first.run_id, **given
    )


def test_decisions_and_grants_may_come_from_a_generator() -> None:
    """What is read to be checked is what is followed."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        words: Any = (decide(request) for request in first.requests)
        no_grants: Any = iter(())
        result = await taken_up(stage, first, reply(), decisions=words, grants=no_grants)

        assert isinstance(result, Completed)
        assert stage.shelf.ran == {"t:gate": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "given",
    [{"message": 123}, {"decisions": 5}, {"decisions": "yes"}, {"grants": [1]}, {"grants": 5}],
    ids=str,
)
def test_what_is_no_word_of_a_person_is_refused_before_the_run_is_taken_up(
    given: dict[str, Any],
) -> None:
    """The saved run stays as it was, and can be decided."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        (field,) = given
        with pytest.raises(ContractError, match=field):
            await taken_up(stage, first, **given)
        result = await stage.go_on(first, reply(), decisions=[decide(first.requests[0])])

        assert isinstance(result, Completed)

    asyncio.run(scenario())


# ── a context that became worse before a person was asked ─────────────────────────────────────

READ_THEN_SEND = calls(("a", "t:read", "{}"), ("b", "t:gate", '{"x":"1"}'))


class Agreeing:
    """An approver that says yes, and keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[ApprovalRequest] = []

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        self.shown.append(request)
        return decide(request)


def tainted(*rules: ToolRule, **options: Any) -> Rehearsal:
    """A run whose first call makes the context external, which its tool did not announce."""
    outside = ToolOutput(ok=True, text="ok")
    return Rehearsal(
        shelf=ToolShelf().add("t:read", outside, output_trust="internal").add("t:gate"),
        contract=TaskContract(tool_policy=ToolPolicy([ASK, *rules]), **options.pop("limits", {})),
        store=MemoryRunStore(),
        **options,
    )


@pytest.mark.parametrize("approver", [Agreeing(), None], ids=["an approver", "a host"])
def test_nobody_is_shown_a_call_that_the_policy_denies_by_then(approver: Agreeing | None) -> None:
    """A sibling of the same response made the context worse: the call is refused, its step given back."""

    async def scenario() -> None:
        deny = ToolRule(tool="t:gate", approval_class="deny", when_label="external")
        stage = tainted(deny, approver=approver)
        result = await stage.play(READ_THEN_SEND, reply())

        assert isinstance(result, Completed)
        assert told(result) == [None, "POLICY_DENIED"]
        assert approver is None or approver.shown == []
        assert stage.shelf.ran == {"t:read": 1}
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_a_reason_that_there_is_by_then_is_shown_at_once() -> None:
    """One request is answered: the one with all reasons, under the context as it is."""

    async def scenario() -> None:
        people = Agreeing()
        worse = ToolRule(
            tool="t:gate", approval_class="request_user", when_label="external", reason="outside"
        )
        stage = tainted(worse, approver=people)
        result = await stage.play(READ_THEN_SEND, reply())

        assert told(result) == [None, None]
        (shown,) = people.shown
        assert shown.label == stage.run.label
        said = [reason.rpartition(": ")[2] for reason in shown.reasons]
        assert said == ["it writes", "outside, as the context is external"]

    asyncio.run(scenario())


def test_a_request_without_a_new_reason_stays_the_one_it_is() -> None:
    """The same id: a decision that somebody has in hand still counts."""

    async def scenario() -> None:
        stage = tainted()
        first = await stage.play(READ_THEN_SEND)
        (request,) = first.requests
        assert request.label != stage.run.label
        again = await stage.go_on(first)
        assert [asked.request_id for asked in again.requests] == [request.request_id]
        result = await stage.go_on(again, reply(), decisions=[decide(request)])

        assert isinstance(result, Completed)
        assert stage.shelf.ran == {"t:read": 1, "t:gate": 1}

    asyncio.run(scenario())


def test_a_request_that_was_taken_back_is_not_approved_later(tmp_path: Path) -> None:
    """It is withdrawn in the log and in the saved run; the new one takes its place."""

    async def scenario() -> None:
        worse = ToolRule(
            tool="t:gate", approval_class="request_user", when_label="external", reason="outside"
        )
        log = AuditLog(tmp_path / "log")
        stage = tainted(worse, audit=log)
        first = await stage.play(READ_THEN_SEND)
        (request,) = first.requests
        body = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
        ids = [r["object"]["request"] for r in body if r.get("code") == "APR001O"]
        assert ids[1:] == [request.request_id]
        assert [r["object"]["request"] for r in body if r.get("code") == "APR004D"] == ids[:1]
        old = attrs.evolve(decide(request), request_id=ids[0])
        late = await stage.go_on(first, decisions=[old])

        assert stop_code(late) == StopCode.APPROVAL_CONFLICT
        assert stage.shelf.ran == {"t:read": 1}

    asyncio.run(scenario())
