"""Stopping a run while the host's code is asked or told: nothing is decided, and the stop holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from runtime_pack import (
    AuditLog,
    Cancelled,
    Completed,
    Grant,
    KillSwitch,
    LoopError,
    MemoryRunStore,
    StopCode,
    Suspended,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    TurnInput,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    stream_governed_agent_loop,
    verify_log,
)
from runtime_pack.approvals import ApprovalRequest, Decision, Verdict
from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ModelFault, ModelRequestError
from runtime_pack.events import Event
from runtime_pack.loop import LoopResult
from runtime_pack.messages import Json, Message, ToolMessage, UserMessage
from runtime_pack.ports import ExecutionContext
from runtime_pack.testing import ListEmitter, Rehearsal, ScriptedModel, ToolShelf, calls, reply

ONE = calls(("1", "t:a", "{}"))
TWO = calls(("1", "t:a", "{}"), ("2", "t:b", "{}"))
NOTIFY = TaskContract(tool_policy=ToolPolicy([ToolRule(tool="t:a", approval_class="notify")]))
DENY = TaskContract(tool_policy=ToolPolicy([ToolRule(tool="t:a", approval_class="deny")]))


class Stopping:
    """An emitter in which the run is stopped, and which does not end by itself."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop

    async def emit(self, event: Event) -> None:
        self._stop()
        await asyncio.sleep(3600)


def shelf() -> ToolShelf:
    return ToolShelf().add("t:a").add("t:b")


def texts(result: LoopResult) -> list[str]:
    return [message.text for message in result.messages if isinstance(message, ToolMessage)]


def rule(
    when: Callable[[Mapping[str, Json]], Awaitable[bool]], approval_class: str = "request_user"
) -> TaskContract:
    return TaskContract(
        tool_policy=ToolPolicy([ToolRule(tool="t:a", approval_class=approval_class, when=when)])
    )


# ── the emitter ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("contract", [NOTIFY, DENY], ids=["notified", "denied"])
def test_a_cancel_while_the_emitter_is_told_ends_the_run(contract: TaskContract) -> None:
    """It is cancelled and over: not a failure of the emitter, after which it could be taken up."""

    async def scenario() -> None:
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(), contract=contract)
        stage.emitter = Stopping(lambda: stage.run.cancel("enough"))
        result = await stage.play(TWO)

        assert isinstance(result, Cancelled)
        assert (result.state, result.ledger.reserved, stage.run.held) == (None, {}, {})

        stage.emitter = ListEmitter()
        again = await stage.go_on(result, message="and now?")

        assert isinstance(again, Cancelled)
        assert not stage.shelf.calls

    asyncio.run(scenario())


def test_the_kill_switch_ends_a_run_whose_emitter_is_being_told() -> None:
    """With `mode="now"` the run is cancelled, and nothing of it can be taken up."""

    async def scenario() -> None:
        switch, tools = KillSwitch(mode="now"), shelf()
        run = create_agent_task_run(
            DENY, emitter=Stopping(lambda: switch.engage("enough")), kill_switch=switch
        )
        runtime = create_agent_runtime(model=ScriptedModel([ONE]), tools=tools.tools)
        result = await run_governed_agent_loop(
            runtime=run.guard_runtime(runtime),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=tools.specs
            ),
        )

        assert isinstance(result, Cancelled)
        assert result.state is None

    asyncio.run(scenario())


@pytest.mark.parametrize("contract", [NOTIFY, DENY], ids=["notified", "denied"])
def test_a_pause_while_the_emitter_is_told_decides_nothing(
    contract: TaskContract, tmp_path: Path
) -> None:
    """The run is suspended with no refusal counted and no step held; it goes on when taken up."""

    async def scenario() -> None:
        log = AuditLog(tmp_path / "log.jsonl")
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(), contract=contract, audit=log)
        stage.emitter = Stopping(lambda: stage.run.pause("later"))
        first = await stage.play(TWO)

        assert isinstance(first, Suspended)
        assert (first.ledger.refused, first.ledger.reserved) == (0, {})
        assert [record.step for record in first.steps] == ["t1"]

        stage.emitter, stage.contract = ListEmitter(), NOTIFY
        last = await stage.go_on(first, reply())

        assert isinstance(last, Completed)
        assert stage.shelf.ran == {"t:a": 1, "t:b": 1}
        log.close()
        assert verify_log(log.path).status == "chained"

    asyncio.run(scenario())


def test_a_reader_that_leaves_while_the_emitter_is_told_leaves_a_run_that_goes_on() -> None:
    """The run is parked as after any reader that leaves."""

    async def scenario() -> None:
        tools, store, asked = shelf(), MemoryRunStore(), asyncio.Event()
        model = ScriptedModel([ONE])
        run = create_agent_task_run(NOTIFY, emitter=Stopping(asked.set))
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=tools.specs)
        stream = stream_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=model, tools=tools.tools)),
            execute_turn_input=given,
            store=store,
        )
        async for _ in stream:
            if asked.is_set() or model.requests:
                break
        await asked.wait()
        await stream.aclose()

        stage = Rehearsal(shelf=tools, store=store, contract=NOTIFY, emitter=ListEmitter())
        stage.prepare([reply()])
        taken_up = await stage.resume(run.id)

        assert isinstance(taken_up, Completed)
        assert tools.ran == {"t:a": 1}

    asyncio.run(scenario())


def test_an_emitter_that_fails_by_itself_is_still_a_failure() -> None:
    """Without an interruption the run ends in EMITTER_FAILED, as before."""

    class Broken:
        async def emit(self, event: Event) -> None:
            raise RuntimeError

    async def scenario() -> None:
        stage = Rehearsal(shelf=shelf(), contract=NOTIFY, emitter=Broken())
        result = await stage.play(ONE)

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.EMITTER_FAILED

    asyncio.run(scenario())


# ── predicates and preflights ─────────────────────────────────────────────────────────────────


def test_a_pause_while_a_predicate_is_awaited_does_not_refuse_the_call() -> None:
    """A sibling that was refused before is not counted twice; the call runs when the run goes on."""

    async def scenario() -> None:
        asked: list[object] = []

        async def when(arguments: Mapping[str, Json]) -> bool:
            asked.append(arguments)
            if len(asked) == 1:
                stage.run.pause("later")
                await asyncio.sleep(3600)
            return False

        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(), contract=rule(when, "deny"))
        batch = calls(("1", "t:unknown", "{}"), ("2", "t:a", "{}"))
        first = await stage.play(batch)

        assert isinstance(first, Suspended)
        assert first.stop is not None
        assert (first.stop.code, first.ledger.refused) == (StopCode.PAUSED, 0)

        last = await stage.go_on(first, reply())

        assert isinstance(last, Completed)
        assert (stage.shelf.ran, last.ledger.refused) == ({"t:a": 1}, 1)

    asyncio.run(scenario())


def test_requests_of_a_response_that_was_not_judged_to_its_end_are_withdrawn(
    tmp_path: Path,
) -> None:
    """Nobody is left with a request of a batch that is judged anew; the log says so."""

    async def scenario() -> None:
        async def when(arguments: Mapping[str, Json]) -> bool:
            stage.run.pause("later")
            await asyncio.sleep(3600)
            return False

        log = AuditLog(tmp_path / "log.jsonl")
        policy = ToolPolicy(
            [
                ToolRule(tool="t:b", approval_class="request_user"),
                ToolRule(tool="t:a", approval_class="deny", when=when),
            ]
        )
        stage = Rehearsal(
            shelf=shelf(),
            store=MemoryRunStore(),
            contract=TaskContract(tool_policy=policy),
            audit=log,
        )
        result = await stage.play(calls(("1", "t:b", "{}"), ("2", "t:a", "{}")))

        assert isinstance(result, Suspended)
        assert (result.requests, result.ledger.reserved) == ((), {})
        log.close()
        told = [orjson.loads(line)["code"] for line in log.path.read_bytes().splitlines()]
        assert told.count("APR001O") == told.count("APR004D") == 1

    asyncio.run(scenario())


def test_a_pause_after_a_person_approved_keeps_the_approval() -> None:
    """The call is not refused, and nobody is asked again: it runs once when the run goes on."""

    class Approver:
        asked = 0

        async def decide(self, request: ApprovalRequest) -> Decision:
            self.asked += 1
            return Decision(
                request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="ann"
            )

    async def scenario() -> None:
        asked: list[object] = []

        async def when(arguments: Mapping[str, Json]) -> bool:
            asked.append(arguments)
            if len(asked) == 2:
                stage.run.pause("later")
                await asyncio.sleep(3600)
            return True

        approver = Approver()
        stage = Rehearsal(
            shelf=shelf(), store=MemoryRunStore(), contract=rule(when), approver=approver
        )
        first = await stage.play(ONE)

        assert isinstance(first, Suspended)

        last = await stage.go_on(first, reply())

        assert isinstance(last, Completed)
        assert (stage.shelf.ran, approver.asked) == ({"t:a": 1}, 1)

    asyncio.run(scenario())


def test_a_cancel_while_a_decision_is_judged_runs_nothing() -> None:
    """What a person approved does not run in a run that is over."""

    async def scenario() -> None:
        asked: list[object] = []

        async def when(arguments: Mapping[str, Json]) -> bool:
            asked.append(arguments)
            if len(asked) == 2:
                stage.run.cancel("enough")
                await asyncio.sleep(3600)
            return True

        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(), contract=rule(when))
        first = await stage.play(ONE)
        (request,) = first.requests
        said = Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="ann")
        last = await stage.go_on(first, decisions=[said])

        assert isinstance(last, Cancelled)
        assert (last.ledger.reserved, last.requests) == ({}, ())
        assert not stage.shelf.calls

    asyncio.run(scenario())


def test_a_pause_while_a_call_is_judged_again_leaves_it_admitted() -> None:
    """A call that an earlier drive admitted is judged at the next resume, and runs then."""

    async def scenario() -> None:
        asked: list[object] = []

        async def when(arguments: Mapping[str, Json]) -> bool:
            asked.append(arguments)
            if len(asked) < 3:
                stage.run.pause("later")
            if len(asked) == 2:
                await asyncio.sleep(3600)
            return False

        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(), contract=rule(when, "deny"))
        first = await stage.play(ONE)
        second = await stage.go_on(first)

        assert isinstance(second, Suspended)
        assert second.ledger.reserved["steps"] == 1

        last = await stage.go_on(second, reply())

        assert isinstance(last, Completed)
        assert (stage.shelf.ran, len(asked)) == ({"t:a": 1}, 3)

    asyncio.run(scenario())


def test_time_that_ends_while_a_predicate_is_awaited_refuses_nothing() -> None:
    """The run stops for its time, and a grant lets it go on with the call."""

    async def scenario() -> None:
        asked: list[object] = []

        async def when(arguments: Mapping[str, Json]) -> bool:
            asked.append(arguments)
            if len(asked) == 1:
                await asyncio.sleep(3600)
            return False

        policy = rule(when, "deny").tool_policy
        contract = TaskContract(max_duration_seconds=0.2, tool_policy=policy)
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(), contract=contract)
        first = await stage.play(ONE)

        assert isinstance(first, Suspended)
        assert first.stop is not None
        assert (first.stop.code, first.ledger.refused) == (StopCode.BUDGET_EXHAUSTED, 0)

        grant = Grant("duration_seconds", 100, "ann", "go on")
        last = await stage.go_on(first, reply(), grants=[grant])

        assert isinstance(last, Completed)
        assert stage.shelf.ran == {"t:a": 1}

    asyncio.run(scenario())


class Checking:
    """A runtime whose check of a call does not end."""

    def __init__(self, stage: Rehearsal) -> None:
        self._inner = create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
        self._stage = stage
        self.checks = 0

    def tool_spec(self, name: str) -> ToolSpec | None:
        return next(spec for spec in self._stage.shelf.specs if spec.name == name)

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        self.checks += 1
        self._stage.run.pause("later")
        await asyncio.sleep(3600)
        return None

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        return await self._inner.execute_tool(name, arguments, context)


def test_a_pause_in_a_preflight_does_not_refuse_the_call() -> None:
    """A check that an interruption ended has not failed."""

    async def scenario() -> None:
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore())
        stage.prepare([ONE])
        checking = Checking(stage)
        first = await run_governed_agent_loop(
            runtime=stage.run.guard_runtime(checking),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=stage.shelf.specs
            ),
            store=stage.store,
        )

        assert isinstance(first, Suspended)
        assert (first.ledger.refused, checking.checks) == (0, 1)

        last = await stage.go_on(first, reply())

        assert isinstance(last, Completed)
        assert stage.shelf.ran == {"t:a": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("seconds", "code"), [(100.0, "CANCELLED"), (0.2, "BUDGET_EXHAUSTED")], ids=["paused", "time"]
)
def test_a_direct_call_that_is_stopped_while_it_is_judged_holds_nothing(
    seconds: float, code: str
) -> None:
    """The caller is told that the call did not run, and why."""

    async def scenario() -> None:
        async def when(arguments: Mapping[str, Json]) -> bool:
            if code == "CANCELLED":
                run.pause("later")
            await asyncio.sleep(3600)
            return False

        tools = shelf()
        policy = rule(when, "deny").tool_policy
        run = create_agent_task_run(TaskContract(max_duration_seconds=seconds, tool_policy=policy))
        runtime = run.guard_runtime(
            create_agent_runtime(model=ScriptedModel([]), tools=tools.tools)
        )
        output = await runtime.execute_tool("t:a", {}, ExecutionContext())

        assert (output.code, output.executed) == (code, "no")
        assert (run.held, run.view().reserved, tools.calls) == ({}, {}, [])

    asyncio.run(scenario())


# ── the store ─────────────────────────────────────────────────────────────────────────────────


class SlowStore(MemoryRunStore):
    """A store that stands still when it is told to."""

    slow = False

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        if self.slow:
            await asyncio.sleep(3600)
        return await super().commit(run_id, expected=expected, head=head, rows=rows)


def test_a_cancel_holds_although_the_store_is_too_slow_to_be_told() -> None:
    """The result is `Cancelled`, with what the call gave; a later resume is told and runs nothing."""

    async def scenario() -> None:
        store = SlowStore()
        asked = asyncio.Event()

        async def work(context: ExecutionContext) -> Json:
            store.slow = True
            asked.set()
            return "done"

        stage = Rehearsal(shelf=ToolShelf().add("t:a", does=work), store=store)
        stage.prepare([ONE])
        drive = asyncio.ensure_future(stage.start())
        await asked.wait()
        await asyncio.sleep(0.05)
        stage.run.cancel("enough")
        result = await drive

        assert isinstance(result, Cancelled)
        assert (texts(result), result.ledger.reserved) == (["done"], {})

        store.slow = False
        again = await stage.go_on(result)

        assert isinstance(again, Cancelled)
        assert stage.shelf.ran == {"t:a": 1}

    asyncio.run(scenario())


class CancellingStore(MemoryRunStore):
    """A store in which the run is cancelled while it is saved as one that waits for a person."""

    stage: Rehearsal

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        if b"approval_required" in head:
            self.stage.run.cancel("enough")
        return await super().commit(run_id, expected=expected, head=head, rows=rows)


def test_a_cancel_during_the_last_save_is_not_lost(tmp_path: Path) -> None:
    """The run is over in the result, in the store and in the log; its request is withdrawn."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
        log = AuditLog(tmp_path / "log.jsonl")
        store = CancellingStore()
        stage = store.stage = Rehearsal(
            shelf=shelf(), store=store, contract=TaskContract(tool_policy=policy), audit=log
        )
        result = await stage.play(ONE)

        assert isinstance(result, Cancelled)
        assert (result.requests, result.state, result.ledger.reserved) == ((), None, {})

        again = await stage.go_on(result, message="and now?")

        assert isinstance(again, Cancelled)
        assert not stage.shelf.calls
        log.close()
        assert verify_log(log.path).status == "chained"

    asyncio.run(scenario())


# ── the host's code, whatever it raises ───────────────────────────────────────────────────────


class Odd(BaseException):
    """What nobody expects."""


@pytest.mark.parametrize("error", [Odd, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "awaited"])
def test_a_predicate_that_raises_anything_denies_the_call(
    error: type[BaseException], awaits: bool
) -> None:
    """The run goes on: only a cancellation from outside tears it."""

    async def scenario() -> None:
        def plain(arguments: Mapping[str, Json]) -> bool:
            raise error

        async def awaited(arguments: Mapping[str, Json]) -> bool:
            raise error

        policy = ToolPolicy(
            [ToolRule(tool="t:a", approval_class="request_user", when=awaited if awaits else plain)]
        )
        stage = Rehearsal(shelf=shelf(), contract=TaskContract(tool_policy=policy))
        result = await stage.play(ONE, reply())

        assert isinstance(result, Completed)
        assert [orjson.loads(text)["code"] for text in texts(result)] == ["POLICY_ERROR"]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [Odd, asyncio.CancelledError, GeneratorExit, RuntimeError])
@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "awaited"])
def test_an_approver_that_raises_anything_has_not_decided(
    error: type[BaseException], awaits: bool
) -> None:
    """The run is parked with its request."""

    class Plain:
        def decide(self, request: ApprovalRequest) -> Awaitable[Decision | None]:
            raise error

    class Awaited:
        async def decide(self, request: ApprovalRequest) -> Decision | None:
            raise error

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
        approver: Any = Awaited() if awaits else Plain()
        stage = Rehearsal(
            shelf=shelf(), contract=TaskContract(tool_policy=policy), approver=approver
        )
        result = await stage.play(ONE)

        assert result.kind == "approval_required"
        assert len(result.requests) == 1

    asyncio.run(scenario())


def test_a_frame_that_fails_in_a_summary_ends_the_run_with_a_result() -> None:
    """What could not be fenced is shown to no model: the history is too long, and the run says so."""

    class Short:
        async def summarise(self, messages: Sequence[Message]) -> str:
            return "short"

    def frame(text: str, *, source: str, burned: set[str]) -> str:
        if source == "summary":
            raise Odd
        return text

    async def scenario() -> None:
        stage = Rehearsal(
            shelf=ToolShelf().add("t:a", "y" * 3000),
            summariser=Short(),
            frame=frame,
            contract=TaskContract(max_context_bytes=2000),
        )
        result = await stage.play(ONE)

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.CONTEXT_OVERFLOW
        assert "frame" in result.stop.message

    asyncio.run(scenario())


@pytest.mark.parametrize(("stop", "kind"), [("cancel", "cancelled"), ("pause", "suspended")])
def test_a_stop_after_the_step_does_not_wait_out_a_retry(stop: str, kind: str) -> None:
    """Nothing is in flight while the provider is waited for, so nothing is lost by stopping."""

    async def scenario() -> None:
        busy = ModelRequestError(fault=ModelFault.OVERLOADED, message="", retry_after_seconds=60)
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore())
        stage.prepare([busy])
        drive = asyncio.ensure_future(stage.start())
        # The model is asked as soon as the run is saved; there is no event for it.
        while not stage.run.view().attempts:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        getattr(stage.run, stop)("enough", "after_step")
        result = await asyncio.wait_for(drive, 60)

        assert result.kind == kind

    asyncio.run(scenario())


def test_a_relative_path_of_a_kill_switch_is_that_of_its_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that changes its folder is stopped by the file where it was said to be."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    switch = KillSwitch("stop")
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "there" / "stop").touch()

    assert not switch.check()

    (tmp_path / "here" / "stop").touch()

    assert switch.check()
