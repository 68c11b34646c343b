"""The host's code around the loop: what it hands in, and what it may do to what it is handed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    AssistantMessage,
    AuditLog,
    Cancelled,
    Completed,
    ContractError,
    Decision,
    Event,
    ExecutionContext,
    LoopError,
    LoopResult,
    MemoryRunStore,
    Suspended,
    TaskContract,
    ToolCall,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnInput,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.events import EventCode
from runtime_pack.guard.task_run import GRACE_SECONDS
from runtime_pack.ledger import TURNS
from runtime_pack.machine import Pending, Refused, ingest_call
from runtime_pack.messages import Json, ToolMessage, frozen_arguments
from runtime_pack.ports import ToolRuntime, TurnRequest, is_preflight
from runtime_pack.testing import Rehearsal, ScriptedModel, ToolShelf, calls, reply

ONE = calls(("a", "t:echo", "{}"))
# What the host hands in against its annotations is the fault at hand.
odd: Any = lambda value: value  # noqa: E731


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


# ── what it hands in ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("resumed", [False, True], ids=["start", "resume"])
@pytest.mark.parametrize("create", [lambda: None, lambda: 1 // 0], ids=["none", "raises"])
def test_a_context_that_is_none_starts_nothing(create: Callable[[], Any], resumed: bool) -> None:
    """ContractError, before anything is asked or saved; the run can be driven afterwards."""

    async def scenario() -> None:
        store = MemoryRunStore()
        policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo"),
            contract=TaskContract(tool_policy=policy),
            store=store,
        )
        first = await stage.play(ONE)
        stage.prepare([reply()])
        runtime = stage.run.guard_runtime(
            create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
        )
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=stage.shelf.specs)
        drive = (
            resume_governed_agent_loop(
                runtime=runtime, store=store, run_id=first.run_id, create_context=create
            )
            if resumed
            else run_governed_agent_loop(
                runtime=runtime, execute_turn_input=given, create_context=create
            )
        )
        with pytest.raises(ContractError, match="create_context"):
            await drive
        result = await run_governed_agent_loop(runtime=runtime, execute_turn_input=given)

        assert isinstance(result, Completed)

    asyncio.run(scenario())


def test_a_tool_is_offered_as_the_runtime_defines_it() -> None:
    """A milder form, trust or effect in the offer is refused before the model is asked."""
    shelf = ToolShelf().add("t:echo", parameters={"type": "object", "properties": {}})
    milder = ToolSpec(name="t:echo", description="A fake.", parameters={"type": "object"})
    model = ScriptedModel([])
    run = create_agent_task_run(TaskContract())

    with pytest.raises(ContractError, match="t:echo"):
        asyncio.run(
            run_governed_agent_loop(
                runtime=run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools)),
                execute_turn_input=TurnInput(
                    messages=[UserMessage(text="go")], tool_catalog=[milder]
                ),
            )
        )
    assert run.is_fresh()


def test_a_drive_that_is_refused_lowers_nothing() -> None:
    """A second loop on a busy run leaves the first one's budget as it was."""

    async def scenario() -> None:
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"))
        before = stage.run.ledger.limit(TURNS)
        stage.run.enter()
        with pytest.raises(ContractError, match="driven"):
            await stage.start(max_turns=1)

        assert stage.run.ledger.limit(TURNS) == before

    asyncio.run(scenario())


def test_the_limits_of_refused_calls_hold_over_a_resume() -> None:
    """A later contract with a higher limit does not raise the saved one."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
        lower = TaskContract(max_refused=1, max_consecutive_refused=2, tool_policy=policy)
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"), contract=lower, store=MemoryRunStore())
        first = await stage.play(calls(("a", "t:echo", "{}"), ("b", "nope", "{}")))
        stage.contract = TaskContract(tool_policy=policy, max_refused=90)
        result = await stage.go_on(first, calls(("c", "nope", "{}")), message="go on", abandon=True)

        assert isinstance(first, ApprovalRequired)
        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == "MODEL_MISBEHAVING"
        assert stage.run.refused_in_a_row == 2

    asyncio.run(scenario())


class Unreadable(Mapping[str, Json]):
    """An object of arguments that cannot be read."""

    def __getitem__(self, key: str) -> Json:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


def test_arguments_that_cannot_be_read_are_invalid() -> None:
    """The call is refused like any other that is not JSON; the run goes on."""
    shelf = ToolShelf().add("t:echo")

    result = asyncio.run(Rehearsal(shelf=shelf).play(calls(("a", "t:echo", Unreadable())), reply()))

    assert isinstance(result, Completed)
    assert told(result) == ["INVALID_JSON"]


class Wire:
    """A citation that gives what it was made with, or raises it."""

    def __init__(self, gives: Any) -> None:
        self._gives = gives

    def to_wire(self) -> dict[str, str]:
        if isinstance(self._gives, Exception):
            raise self._gives
        wire: dict[str, str] = self._gives
        return wire


BAD_OUTPUTS = {
    "ok is a number": ToolOutput(ok=odd(1), text="x"),
    "no citation": ToolOutput(ok=True, text="x", citations=(odd("page"),)),
    "a citation that raises": ToolOutput(ok=True, text="x", citations=(Wire(ValueError()),)),
    "a citation of numbers": ToolOutput(ok=True, text="x", citations=(Wire({"a": 1}),)),
    "no provenance": ToolOutput(ok=True, text="x", provenance=(odd(1),)),
}


@pytest.mark.parametrize("gives", BAD_OUTPUTS.values(), ids=BAD_OUTPUTS.keys())
def test_an_output_of_other_kinds_is_a_tool_error_that_can_be_stored(gives: ToolOutput) -> None:
    """The run ends well, and what was saved can be read again."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo", gives).add("t:gate"),
            contract=TaskContract(tool_policy=policy),
            store=MemoryRunStore(),
        )
        first = await stage.play(calls(("a", "t:echo", "{}"), ("b", "t:gate", "{}")))
        second = await stage.go_on(first)

        assert isinstance(second, ApprovalRequired)
        assert told(second)[0] == "TOOL_ERROR"

    asyncio.run(scenario())


def test_data_that_is_not_json_is_dropped_and_a_citation_is_cleaned() -> None:
    """Neither keeps the text from the model, nor the run from being saved."""

    async def scenario() -> None:
        shelf = ToolShelf().add(
            "t:echo",
            ToolOutput(ok=True, text="x", data=odd({1, 2}), citations=(Wire({"a": "\ud800"}),)),
        )
        stage = Rehearsal(shelf=shelf, store=MemoryRunStore())
        result = await stage.play(ONE, reply())

        assert isinstance(result, Completed)
        assert told(result) == [None]
        assert [step.citations for step in result.steps][1] == ({"a": "\ufffd"},)

    asyncio.run(scenario())


# ── predicates ──────────────────────────────────────────────────────────────────────────────────


class Unnamed:
    """A predicate without a name."""

    def __call__(self, arguments: Mapping[str, Json]) -> bool:
        return True

    def method(self, arguments: Mapping[str, Json]) -> bool:
        return True


@pytest.mark.parametrize(
    "when", [partial(bool), Unnamed(), Unnamed().method], ids=["partial", "object", "method"]
)
def test_a_predicate_without_a_name_of_its_own_is_refused(when: Callable[[Any], bool]) -> None:
    """The policy's digest could not tell it from another one."""
    with pytest.raises(ContractError, match="function"):
        ToolRule(tool="t", approval_class="deny", when=when)


def above(limit: int) -> Callable[[Mapping[str, Json]], bool]:
    return lambda arguments: len(arguments) > limit


def test_two_predicates_do_not_share_a_digest() -> None:
    """Lambdas of one line, and closures over other values, are other policies."""
    whens: list[Callable[[Any], bool]] = [
        lambda a: "x" in a,
        lambda a: "x" not in a,
        above(1),
        above(2),
    ]

    digests = {
        ToolPolicy([ToolRule(tool="t", approval_class="deny", when=when)]).sha256 for when in whens
    }

    assert len(digests) == len(whens)
    again = ToolPolicy([ToolRule(tool="t", approval_class="deny", when=above(1))]).sha256
    assert again in digests


# ── code that hangs, or does not stop ───────────────────────────────────────────────────────────


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


async def stubborn() -> None:
    """Goes on for a while, whatever it is told."""
    ends = asyncio.get_running_loop().time() + 3 * GRACE_SECONDS
    while (left := ends - asyncio.get_running_loop().time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)


class HungEmitter:
    """Never comes back, or raises what it is made with."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    async def emit(self, event: Event) -> None:
        if self._error is not None:
            raise self._error
        await hang()


class HungStore(MemoryRunStore):
    """Never comes back from its second commit; or answers it with a word."""

    def __init__(self, word: str | None = None) -> None:
        super().__init__()
        self._word = word
        self._commits = 0

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        self._commits += 1
        if self._commits == 2 and self._word is not None:
            answer: int = odd(self._word)
            return answer
        if self._commits == 2:
            await hang()
        return await super().commit(run_id, expected=expected, head=head, rows=rows)


DENY = ToolPolicy([ToolRule(tool="t:echo", approval_class="deny")])


async def cancelled_later(stage: Rehearsal) -> LoopResult:
    stage.prepare([ONE, reply()])
    drive = asyncio.create_task(stage.start())
    await asyncio.sleep(0.05)
    stage.run.cancel("enough")
    return await asyncio.wait_for(drive, 5 * GRACE_SECONDS)


@pytest.mark.parametrize("how", ["time", "cancel", "raises"])
def test_an_emitter_that_does_not_come_back_has_failed(how: str) -> None:
    """EMITTER_FAILED when the run's time is over or it cancels itself; a cancelled run is cancelled."""
    seconds = 0.1 if how == "time" else 60
    stage = Rehearsal(
        shelf=ToolShelf().add("t:echo"),
        contract=TaskContract(tool_policy=DENY, max_duration_seconds=seconds),
        emitter=HungEmitter(asyncio.CancelledError() if how == "raises" else None),
    )

    result = asyncio.run(cancelled_later(stage) if how == "cancel" else stage.play(ONE))

    assert isinstance(result, Cancelled if how == "cancel" else LoopError)
    assert result.stop is not None
    assert result.stop.code == ("cancelled" if how == "cancel" else "EMITTER_FAILED")


def test_a_store_that_does_not_come_back_is_not_waited_for() -> None:
    """A cancelled run does not wait for it, and is cancelled; nothing of it ran."""
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), store=HungStore())

    result = asyncio.run(cancelled_later(stage))

    assert isinstance(result, Cancelled)
    assert not stage.shelf.calls


def test_a_store_that_answers_with_no_revision_has_failed() -> None:
    """The run cannot count on what was saved."""
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), store=HungStore("two"))
    stage.prepare([ONE, reply()])

    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == "STORE_FAILED"


class HungCheck:
    """A runtime whose check never comes back, or changes what it is given."""

    def __init__(self, inner: ToolRuntime, *, changes: bool = False) -> None:
        self._inner = inner
        self._changes = changes

    def tool_spec(self, name: str) -> ToolSpec | None:
        return self._inner.tool_spec(name) if is_preflight(self._inner) else None

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        if self._changes:
            odd(arguments)["x"] = "changed"
        else:
            await hang()
        return None

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        return await self._inner.execute_tool(name, arguments, context)


async def checked(shelf: ToolShelf, seconds: float, *, changes: bool) -> LoopResult:
    model = ScriptedModel([calls(("a", "t:echo", {"x": "asked"})), reply()])
    run = create_agent_task_run(TaskContract(max_duration_seconds=seconds))
    inner = create_agent_runtime(model=model, tools=shelf.tools)
    return await run_governed_agent_loop(
        runtime=run.guard_runtime(HungCheck(inner, changes=changes)),
        execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs),
    )


def test_a_check_that_does_not_come_back_has_not_passed() -> None:
    """The call does not run and is not judged; the run ends with its time."""
    shelf = ToolShelf().add("t:echo")

    result = asyncio.run(checked(shelf, 0.1, changes=False))

    assert told(result) == ["CANCELLED"]
    assert shelf.calls == []


def test_a_tool_that_does_not_stop_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """TIMEOUT, executed unknown, soon after its limit; and somebody is told."""

    async def scenario() -> LoopResult:
        async def does(context: ExecutionContext) -> Json:
            await stubborn()
            return "late"

        shelf = ToolShelf().add("t:echo", does=does, timeout_seconds=0.05)
        stage = Rehearsal(shelf=shelf)
        return await asyncio.wait_for(stage.play(ONE, reply()), 2 * GRACE_SECONDS)

    result = asyncio.run(scenario())

    assert isinstance(result, Completed)
    assert told(result) == ["TIMEOUT"]
    assert result.steps[1].executed == "unknown"
    assert "did not stop" in caplog.text


@pytest.mark.parametrize("soon", [True, False], ids=["answers soon", "does not stop"])
def test_a_model_that_answers_after_the_end_is_not_heard(soon: bool) -> None:
    """The turn is lost with the run's time, whatever the adapter makes of its cancellation."""

    class Late:
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            if soon:
                with contextlib.suppress(asyncio.CancelledError):
                    await hang()
            else:
                await stubborn()
            return reply("late")

    async def scenario() -> LoopResult:
        run = create_agent_task_run(TaskContract(max_duration_seconds=0.05))
        runtime = run.guard_runtime(create_agent_runtime(model=Late()))
        given = TurnInput(messages=[UserMessage(text="go")])
        drive = run_governed_agent_loop(runtime=runtime, execute_turn_input=given)
        return await asyncio.wait_for(drive, 2 * GRACE_SECONDS)

    result = asyncio.run(scenario())

    assert isinstance(result, Suspended)
    assert result.text == ""


# ── other threads, late pauses ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_a_run_can_be_stopped_from_another_thread(stop: str) -> None:
    """The loop that drives the run does it; the call in flight is stopped."""

    async def scenario() -> LoopResult:
        async def does(context: ExecutionContext) -> Json:
            await asyncio.to_thread(getattr(stage.run, stop), "enough")
            await hang()
            return "never"

        stage = Rehearsal(shelf=ToolShelf().add("t:echo", does=does))
        stage.prepare([ONE])
        return await asyncio.wait_for(stage.start(), 5)

    result = asyncio.run(scenario())

    assert result.kind == ("cancelled" if stop == "cancel" else "suspended")


def test_a_pause_that_came_too_late_does_not_stop_the_next_drive() -> None:
    """It lands in the last turn, and the run is completed."""

    async def scenario() -> None:
        stage = Rehearsal()

        class Pausing:
            async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
                if len(request.messages) == 1:
                    stage.run.pause("late")
                return reply()

        store = MemoryRunStore()
        runtime = stage.run.guard_runtime(create_agent_runtime(model=Pausing()))
        given = TurnInput(messages=[UserMessage(text="go")])
        first = await run_governed_agent_loop(
            runtime=runtime, execute_turn_input=given, store=store
        )
        second = await resume_governed_agent_loop(
            runtime=runtime, store=store, run_id=first.run_id, message="more"
        )

        assert isinstance(first, Completed)
        assert isinstance(second, Completed)

    asyncio.run(scenario())


# ── what it may do to what it is handed ─────────────────────────────────────────────────────────

ASKED: dict[str, Json] = {"x": "asked"}
WITH_X = calls(("a", "t:echo", '{"x":"asked"}'))


def test_a_predicate_that_edits_the_arguments_edits_a_copy() -> None:
    """Neither a later rule nor the tool sees what it did."""
    seen: list[Json] = []

    def editing(arguments: Mapping[str, Json]) -> bool:
        odd(arguments)["x"] = "changed"
        return False

    def watching(arguments: Mapping[str, Json]) -> bool:
        seen.append(dict(arguments))
        return False

    rules = [ToolRule(tool="*", approval_class="deny", when=when) for when in (editing, watching)]
    shelf = ToolShelf().add("t:echo")
    stage = Rehearsal(shelf=shelf, contract=TaskContract(tool_policy=ToolPolicy(rules)))

    asyncio.run(stage.play(WITH_X, reply()))

    assert seen == [ASKED]
    assert shelf.calls == [("t:echo", ASKED)]


def test_a_check_that_edits_the_arguments_edits_a_copy() -> None:
    """What runs is what the model asked for."""
    shelf = ToolShelf().add("t:echo")

    result = asyncio.run(checked(shelf, 5, changes=True))

    assert isinstance(result, Completed)
    assert shelf.calls == [("t:echo", ASKED)]


def test_an_approver_that_edits_the_request_edits_a_copy() -> None:
    """What was asked about runs, and the request in the record is as it was."""

    class Editing:
        async def decide(self, request: ApprovalRequest) -> Decision:
            odd(request.arguments)["x"] = "changed"
            return Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="me")

    policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
    shelf = ToolShelf().add("t:echo")
    stage = Rehearsal(
        shelf=shelf, contract=TaskContract(tool_policy=policy), approver=odd(Editing())
    )

    asyncio.run(stage.play(WITH_X, reply()))

    assert shelf.calls == [("t:echo", ASKED)]


def test_a_request_whose_arguments_are_not_those_of_its_digest_is_refused() -> None:
    """An approval counts for what the digest names."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
        shelf = ToolShelf().add("t:echo")
        run = create_agent_task_run(TaskContract(tool_policy=policy))
        inner = create_agent_runtime(model=ScriptedModel([]), tools=shelf.tools)
        runtime = run.guard_runtime(inner)
        offered = {spec.name: spec for spec in shelf.specs}
        call = ingest_call(WITH_X.calls[0], step="t1c1", taken={})
        pending = await runtime.judge.admit(call, offered, ExecutionContext())
        assert isinstance(pending, Pending)
        other = attrs.evolve(pending.request, arguments={"x": "other"})
        word = Decision(request_id=other.request_id, verdict=Verdict.APPROVE, decided_by="me")

        ruled = await runtime.judge.rule(
            "t1c1", call.call, other, word, offered, ExecutionContext()
        )

        assert isinstance(ruled, Refused)
        assert ruled.output.code == "POLICY_ERROR"
        assert run.held == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("deep", [False, True])
def test_a_model_cannot_rewrite_the_history(deep: bool) -> None:
    """Arguments in the history cannot be changed; an adapter that tries has failed."""

    class Editing(ScriptedModel):
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            for message in request.messages:
                for call in getattr(message, "calls", ()):
                    if deep:
                        call.arguments["list"].append("changed")
                    else:
                        call.arguments.update(x="changed")
            return await super().execute_turn(request, context)

    shelf = ToolShelf().add("t:echo", parameters={"type": "object"})
    asked: dict[str, Json] = {"x": "asked", "list": [{}]}
    run = create_agent_task_run(TaskContract())
    model = Editing([calls(("a", "t:echo", asked))])

    result = asyncio.run(
        run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools)),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
        )
    )

    assert isinstance(result, LoopError)
    message = result.messages[1]
    assert isinstance(message, AssistantMessage)
    assert message.calls[0].arguments == asked


@pytest.mark.parametrize("edit", ["update", "clear", "popitem", "setdefault", "pop"])
def test_no_way_of_changing_frozen_arguments_is_open(edit: str) -> None:
    """Every method that would change them raises; a copy is plain and can be changed."""
    frozen = frozen_arguments({"x": ["y"]})

    with pytest.raises(TypeError, match="history"):
        getattr(frozen, edit)("x")
    with pytest.raises(TypeError, match="history"):
        odd(frozen)["x"] = 1
    with pytest.raises(TypeError, match="history"):
        odd(frozen)["x"] += [1]
    plain = copy.deepcopy(odd(frozen))
    plain["x"].append("z")

    assert (frozen, plain) == ({"x": ["y"]}, {"x": ["y", "z"]})
    assert orjson.loads(orjson.dumps(frozen)) == frozen


def test_a_history_that_a_run_starts_from_can_be_stored() -> None:
    """Surrogates in a call's arguments are replaced; what is no JSON object is refused."""

    def started(arguments: Any) -> TurnInput:
        asked = AssistantMessage(calls=(ToolCall(id="\ud800", name="\ud801", arguments=arguments),))
        given = ToolMessage(call_id="\ud800", name="\ud801", text="ok", ok=True)
        return TurnInput(messages=[asked, given])

    (kept, result) = started({"\ud800": ["\udfff"]}).messages

    assert isinstance(kept, AssistantMessage)
    assert isinstance(result, ToolMessage)
    assert (kept.calls[0].id, kept.calls[0].name) == ("\ufffd", "\ufffd")
    assert (result.call_id, result.name) == ("\ufffd", "\ufffd")
    assert kept.calls[0].arguments == {"\ufffd": ["\ufffd"]}
    odd_ones: tuple[Any, ...] = ({"x": {1}}, [], "[]", "{", Unreadable(), {"x": 2**70})
    for arguments in odd_ones:
        with pytest.raises(ContractError, match="messages"):
            started(arguments)


def violation(run: str, step: str) -> Event:
    return Event(code=EventCode.EGR001D, subject={"run": run, "step": step}, object={})


FORGED: dict[str, Callable[[ExecutionContext], Event]] = {
    "another kind": lambda c: Event(
        code=EventCode.APR002A, subject={"run": c.run, "step": c.step}, object={}
    ),
    "another run": lambda c: violation("run-2", c.step),
    "another step": lambda c: violation(c.run, "t9c9"),
    "no event": lambda c: odd({"run": c.run}),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_tool_records_violations_of_its_own_step_only(
    tmp_path: Path, forge: Callable[[ExecutionContext], Event]
) -> None:
    """Anything else is the tool's error, and not in the log."""

    async def does(context: ExecutionContext) -> Json:
        context.record(forge(context))
        return "recorded"

    with AuditLog(tmp_path / "log.jsonl") as audit:
        stage = Rehearsal(shelf=ToolShelf().add("t:echo", does=does), audit=audit)
        result = asyncio.run(stage.play(ONE, reply()))

    lines = (tmp_path / "log.jsonl").read_bytes().splitlines()
    types = [orjson.loads(line)["type"] for line in lines]
    assert told(result) == ["TOOL_ERROR"]
    assert result.ledger.violations == 0
    assert not {"sandbox:violation", "approval:decided"} & set(types)


def test_a_tool_records_from_the_threads_of_its_run_only() -> None:
    """The log is not for threads."""

    async def does(context: ExecutionContext) -> Json:
        await asyncio.to_thread(context.record, violation(context.run, context.step))
        return "recorded"

    result = asyncio.run(Rehearsal(shelf=ToolShelf().add("t:echo", does=does)).play(ONE, reply()))

    assert told(result) == ["TOOL_ERROR"]
    assert result.ledger.violations == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit], ids=lambda e: e.__name__)
@pytest.mark.parametrize("who", ["model", "tool"])
def test_what_ends_a_task_ends_no_run_that_is_not_asked(
    error: type[BaseException], who: str
) -> None:
    """A model that raises it is a MODEL_ERROR, a tool a TOOL_ERROR."""

    class Ending:
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            raise error

    async def scenario() -> LoopResult:
        if who == "tool":
            return await Rehearsal(shelf=ToolShelf().add("t:echo", error())).play(ONE, reply())
        run = create_agent_task_run(TaskContract())
        return await run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=Ending())),
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")]),
        )

    result = asyncio.run(scenario())

    if who == "tool":
        assert isinstance(result, Completed)
        assert told(result) == ["TOOL_ERROR"]
    else:
        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == "MODEL_ERROR"


def test_a_text_that_misreports_itself_is_stored_all_the_same() -> None:
    """What counts are the characters, not what a subclass of str says of them."""

    class Lying(str):
        __slots__ = ()

        def isascii(self) -> bool:
            return True

    stage = Rehearsal(shelf=ToolShelf().add("t:echo", Lying("\ud800")), store=MemoryRunStore())

    result = asyncio.run(stage.play(ONE, reply(Lying("a\ud800"))))

    assert isinstance(result, Completed)
    assert result.text == "a\ufffd"


def test_the_limit_of_time_holds_on_a_second_event_loop() -> None:
    """A timer left on the first one, which was closed in the middle, does not stand for it."""
    run = create_agent_task_run(TaskContract(max_duration_seconds=0.2))
    waits = ToolShelf().add("t:echo", does=lambda _: hang())
    runtime = run.guard_runtime(create_agent_runtime(model=ScriptedModel([]), tools=waits.tools))
    first = asyncio.new_event_loop()

    async def begun() -> None:
        run.begin_activity()

    first.run_until_complete(begun())
    first.close()
    run.ledger.end(run.clock.monotonic())

    async def second() -> ToolOutput:
        work = runtime.execute_tool("t:echo", {}, ExecutionContext())
        return await asyncio.wait_for(work, 60)

    assert asyncio.run(second()).code == "TIMEOUT"


def test_a_model_is_given_who_listens_to_its_pieces() -> None:
    """`on_delta` of the host's context reaches the model's turn, and no tool is given it."""

    class Streaming:
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            if context.on_delta is not None:
                context.on_delta("so ")
                context.on_delta("far")
            return ONE if len(request.messages) == 1 else reply("so far")

    async def scenario() -> None:
        heard: list[str] = []
        seen: list[object] = []

        async def look(context: ExecutionContext) -> Json:
            seen.append(context.on_delta)
            return "ok"

        shelf = ToolShelf().add("t:echo", does=look)
        run = create_agent_task_run(TaskContract())
        result = await run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=Streaming(), tools=shelf.tools)),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
            create_context=lambda: ExecutionContext(on_delta=heard.append),
        )

        assert isinstance(result, Completed)
        assert heard == ["so ", "far"] * 2
        assert seen == [None]

    asyncio.run(scenario())
