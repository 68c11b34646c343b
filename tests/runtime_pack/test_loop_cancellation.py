"""Cancelling for good: now or after the step, from a thread, through the store, by the kill switch."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    Cancelled,
    Completed,
    ContractError,
    Decision,
    Event,
    EventCode,
    ExecutionContext,
    KillSwitch,
    LoopError,
    LoopResult,
    MemoryRunStore,
    RunStore,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    cancel_saved_run,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    verify_log,
)
from runtime_pack.approvals import ApprovalRequest, Verdict
from runtime_pack.catalog import Effects
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    escalate,
    reply,
)

ONE = calls(("a", "t:tool", "{}"))
GATED = TaskContract(
    tool_policy=ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
)


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


async def forever(context: ExecutionContext) -> Json:
    await asyncio.sleep(3600)
    return "never"


# ── a run that is being driven ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["now", "after_step"])
def test_a_run_can_be_cancelled_from_a_thread(mode: str) -> None:
    """The loop is woken, and the run ends as if it had been cancelled in its own thread."""

    async def scenario() -> None:
        begun = threading.Event()

        async def brief(context: ExecutionContext) -> Json:
            begun.set()
            await asyncio.sleep(0.1)
            return "done"

        stage = Rehearsal(shelf=ToolShelf().add("t:tool", does=brief), store=MemoryRunStore())
        stage.prepare([ONE])

        def other() -> None:
            begun.wait()
            stage.run.cancel("enough", mode)

        thread = threading.Thread(target=other)
        thread.start()
        result = await stage.start()
        thread.join()

        assert isinstance(result, Cancelled)
        assert told(result) == ["CANCELLED" if mode == "now" else None]
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_a_run_of_a_closed_event_loop_can_be_cancelled() -> None:
    """Nothing drives it; the next drive makes no turn."""
    stage = Rehearsal(shelf=ToolShelf().add("t:gate"), contract=GATED, store=MemoryRunStore())
    first = asyncio.run(stage.play(calls(("a", "t:gate", "{}"))))
    thread = threading.Thread(target=stage.run.cancel, args=("enough",))
    thread.start()
    thread.join()
    result = asyncio.run(stage.resume(first.run_id))

    assert isinstance(result, Cancelled)
    assert told(result) == ["CANCELLED"]


@pytest.mark.parametrize("mode", ["now", "after_step"])
@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_who_waits_for_a_person_does_not_keep_a_run(stop: str, mode: str) -> None:
    """An approver that says nothing is no step that has to end first."""

    async def scenario() -> None:
        asking = asyncio.Event()

        class Silent:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                asking.set()
                await asyncio.sleep(3600)
                return None

        stage = Rehearsal(
            shelf=ToolShelf().add("t:gate"),
            contract=GATED,
            store=MemoryRunStore(),
            approver=Silent(),
        )
        stage.prepare([calls(("a", "t:gate", "{}"))])
        drive = asyncio.ensure_future(stage.start())
        await asking.wait()
        getattr(stage.run, stop)("enough", mode)
        result = await asyncio.wait_for(drive, 60)

        assert isinstance(result, Cancelled if stop == "cancel" else Suspended)
        assert len(result.requests) == (0 if stop == "cancel" else 1)
        assert (result.ledger.reserved == {}) is (stop == "cancel")

    asyncio.run(scenario())


def test_a_cancel_overtakes_a_pause_and_counts_what_was_started() -> None:
    """Calls that the pause cut are used and recorded; those that never began are given back."""

    async def scenario() -> None:
        shelf = ToolShelf().add("t:tool", does=forever)
        stage = Rehearsal(shelf=shelf, contract=TaskContract(max_parallel=1))
        stage.prepare([calls(("a", "t:tool", "{}"), ("b", "t:tool", "{}"))])
        drive = asyncio.ensure_future(stage.start())
        # The shelf has no event to wait for.
        while not stage.shelf.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stage.run.pause("wait")
        await asyncio.sleep(0)
        stage.run.cancel("no, stop")
        result = await drive

        assert isinstance(result, Cancelled)
        assert (result.ledger.used["steps"], result.ledger.reserved) == (1, {})
        assert [step.step for step in result.steps if step.admitted] == ["t1", "t1c1"]
        assert shelf.ran["t:tool"] == 1

    asyncio.run(scenario())


def test_a_call_that_outlives_its_run_changes_nothing(tmp_path: Path) -> None:
    """What it returns is not heard; a violation that it reports is in the log and nowhere else."""

    async def scenario() -> None:
        late = asyncio.Event()
        over = asyncio.Event()

        async def stubborn(context: ExecutionContext) -> Json:
            while not late.is_set():
                try:
                    await late.wait()
                except asyncio.CancelledError:
                    continue
            subject: dict[str, Json] = {"run": context.run, "step": context.step}
            context.record(Event(code=EventCode.EGR001D, subject=subject, object={}))
            over.set()
            return "late"

        path = tmp_path / "log.jsonl"
        stage = Rehearsal(
            shelf=ToolShelf().add("t:tool", does=stubborn),
            store=MemoryRunStore(),
            audit=AuditLog(path),
        )
        stage.prepare([ONE])
        drive = asyncio.ensure_future(stage.start())
        # The shelf has no event to wait for.
        while not stage.shelf.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stage.run.cancel("enough")
        result = await drive
        assert stage.store is not None
        before = (
            result,
            stage.run.view(),
            list(stage.run.steps),
            await stage.store.load(result.run_id),
        )
        late.set()
        await over.wait()
        await asyncio.sleep(0.01)

        after = (
            result,
            stage.run.view(),
            list(stage.run.steps),
            await stage.store.load(result.run_id),
        )
        assert after == before
        assert stage.run.view().violations == 0
        assert stage.audit is not None
        stage.audit.close()
        assert b"EGR001D" in path.read_bytes()
        assert verify_log(path).status == "chained"

    asyncio.run(scenario())


def test_a_failing_sibling_neither_loses_nor_orphans_the_others() -> None:
    """One call raises, one is slow: both have results in emission order, and no task is left."""

    async def scenario() -> None:
        async def slow(context: ExecutionContext) -> Json:
            await asyncio.sleep(0.03)
            return "kept"

        shelf = ToolShelf().add("t:bad", ValueError("bad")).add("t:slow", does=slow)
        stage = Rehearsal(shelf=shelf)
        result = await stage.play(calls(("a", "t:bad", "{}"), ("b", "t:slow", "{}")), reply())

        assert isinstance(result, Completed)
        assert told(result) == ["TOOL_ERROR", None]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_failing_sibling_does_not_lose_a_pending_request() -> None:
    """The gated call still waits for a person, the other is an error."""

    async def scenario() -> None:
        shelf = ToolShelf().add("t:bad", ValueError("bad")).add("t:gate")
        stage = Rehearsal(shelf=shelf, contract=GATED)
        result = await stage.play(calls(("a", "t:gate", "{}"), ("b", "t:bad", "{}")))

        assert isinstance(result, ApprovalRequired)
        assert told(result) == ["APPROVAL_REQUIRED", "TOOL_ERROR"]
        assert [request.step for request in result.requests] == ["t1c1"]

    asyncio.run(scenario())


# ── a run that nobody drives ────────────────────────────────────────────────────────────────────


def test_a_parked_run_is_cancelled_through_its_store(tmp_path: Path) -> None:
    """Its request is withdrawn in the log, its step given back, and no decision revives it."""

    async def scenario() -> None:
        store, path = MemoryRunStore(), tmp_path / "log.jsonl"
        stage = Rehearsal(shelf=ToolShelf().add("t:gate"), contract=GATED, store=store)
        first = await stage.play(calls(("a", "t:gate", "{}")))
        with AuditLog(path) as audit:
            result = await cancel_saved_run(
                store=store, run_id=first.run_id, reason="not needed", audit=audit
            )

        assert isinstance(result, Cancelled)
        assert result.stop is not None
        assert result.stop.message == "not needed"
        assert_one_result_per_call(result.messages)
        assert told(result) == ["CANCELLED"]
        assert (result.requests, result.state) == ((), None)
        assert result.ledger.reserved == {}
        assert result.ledger.limits == first.ledger.limits
        lines = [orjson.loads(line)["code"] for line in path.read_bytes().splitlines()]
        assert lines.count("APR004D") == 1
        assert "RUN002O" in lines

        yes = Decision(
            request_id=first.requests[0].request_id, verdict=Verdict.APPROVE, decided_by="p"
        )
        again = await stage.go_on(first, decisions=[yes])
        assert isinstance(again, LoopError)
        assert stage.shelf.ran["t:gate"] == 0
        over = await stage.go_on(first)
        assert isinstance(over, Cancelled)

    asyncio.run(scenario())


def test_a_run_that_is_over_is_not_cancelled() -> None:
    """What completed stays completed, and nothing is written."""

    async def scenario() -> None:
        store = MemoryRunStore()
        first = await Rehearsal(store=store).play(reply())
        before = await store.load(first.run_id)
        result = await cancel_saved_run(store=store, run_id=first.run_id, reason="late")

        assert isinstance(result, Completed)
        assert await store.load(first.run_id) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("why", ["escalated", "budget", "paused"])
def test_whatever_a_run_is_suspended_for_it_can_be_cancelled(why: str) -> None:
    """Handed over, out of budget or paused: afterwards no message takes it up."""

    async def scenario() -> None:
        store = MemoryRunStore()
        contract = TaskContract(max_turns=1, wrap_up=False) if why == "budget" else TaskContract()
        stage = Rehearsal(shelf=ToolShelf().add("t:tool"), store=store, contract=contract)
        if why == "paused":
            stage.prepare([])
            stage.run.pause("wait")
            first = await stage.start()
        else:
            first = await stage.play(escalate() if why == "escalated" else ONE)
        assert isinstance(first, Suspended)

        result = await cancel_saved_run(store=store, run_id=first.run_id, reason="enough")
        assert isinstance(result, Cancelled)
        assert isinstance(await stage.go_on(first, message="go on"), Cancelled)

    asyncio.run(scenario())


def test_a_call_in_doubt_counts_when_its_run_is_cancelled() -> None:
    """A process died in mid-call: the call is used and recorded, and its result says unknown."""

    async def scenario() -> None:
        store = CrashingRunStore(crash_at={4})
        shelf = ToolShelf().add("t:tool", effects=Effects.REPEATABLE)
        stage = Rehearsal(shelf=shelf, store=store)
        stage.prepare([ONE])
        with pytest.raises(Crash):
            await stage.start()
        assert shelf.ran["t:tool"] == 1

        result = await cancel_saved_run(store=store, run_id=stage.run.id, reason="enough")

        assert isinstance(result, Cancelled)
        assert (result.ledger.used["steps"], result.ledger.reserved) == (1, {})
        assert [(s.step, s.code) for s in result.steps][-1] == ("t1c1", "OUTCOME_UNKNOWN")
        assert orjson.loads(result.messages[-1].text)["executed"] == "unknown"

    asyncio.run(scenario())


@pytest.mark.parametrize("plain", [False, True])
def test_a_driver_whose_run_is_cancelled_elsewhere_runs_nothing_more(plain: bool) -> None:
    """It ends the run after its step in hand; with a store that passes nothing on, it is overtaken."""

    class Plain:
        """The two methods of a store."""

        def __init__(self, store: MemoryRunStore) -> None:
            self.commit, self.load, self.seal = store.commit, store.load, store.seal

    async def scenario() -> None:
        memory = MemoryRunStore()
        store: RunStore = Plain(memory) if plain else memory
        others: list[LoopResult] = []

        async def other(context: ExecutionContext) -> Json:
            told = await cancel_saved_run(store=store, run_id=context.run, reason="from outside")
            others.append(told)
            return "done"

        stage = Rehearsal(shelf=ToolShelf().add("t:tool", does=other), store=store)
        result = await stage.play(ONE)

        assert result.stop is not None
        (told,) = others
        if plain:
            assert (isinstance(result, LoopError), result.stop.code) == (True, "STATE_CONFLICT")
            assert isinstance(told, Cancelled)
        else:
            assert (isinstance(result, Cancelled), result.stop.message) == (True, "from outside")
            assert told.stop is not None
            assert told.stop.code == "STATE_CONFLICT"
        assert isinstance(await stage.go_on(result), Cancelled)

    asyncio.run(scenario())


def test_a_forged_run_is_not_cancelled() -> None:
    """A state that fails its seal is refused, and left as it is."""

    async def scenario() -> None:
        store = MemoryRunStore()
        stage = Rehearsal(shelf=ToolShelf().add("t:gate"), contract=GATED, store=store)
        first = await stage.play(calls(("a", "t:gate", "{}")))
        assert first.state is not None
        other = MemoryRunStore()
        other.put(first.state)
        result = await cancel_saved_run(store=other, run_id=first.run_id, reason="x")

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == "STATE_INTEGRITY"

    asyncio.run(scenario())


# ── the kill switch ─────────────────────────────────────────────────────────────────────────────


async def switched(
    switch: KillSwitch, does: Callable[[ExecutionContext], Any], *script: Any, **options: Any
) -> tuple[LoopResult, ToolShelf]:
    shelf = ToolShelf().add("t:tool", does=does)
    run = create_agent_task_run(
        options.pop("contract", TaskContract()), kill_switch=switch, **options
    )
    result = await run_governed_agent_loop(
        runtime=run.guard_runtime(
            create_agent_runtime(model=ScriptedModel(script), tools=shelf.tools)
        ),
        execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs),
    )
    return result, shelf


def test_a_file_stops_every_run_after_its_current_step(tmp_path: Path) -> None:
    """The call in flight ends and is kept; the queued one, and the next turn, do not begin."""

    async def scenario() -> None:
        path = tmp_path / "stop"
        switch = KillSwitch(path)

        async def throws(context: ExecutionContext) -> Json:
            path.touch()
            return "done"

        two = calls(("a", "t:tool", "{}"), ("b", "t:tool", "{}"))
        one_at_a_time = TaskContract(max_parallel=1)
        (first, shelf), (second, other) = await asyncio.gather(
            switched(switch, throws, two, contract=one_at_a_time),
            switched(switch, throws, two, contract=one_at_a_time),
        )

        assert isinstance(first, Cancelled)
        assert isinstance(second, Cancelled)
        assert told(first) == [None, "CANCELLED"]
        assert shelf.ran["t:tool"] == 1
        assert other.ran["t:tool"] <= 1
        assert first.stop is not None
        assert first.stop.message == "kill switch: its file is there"

        path.unlink()
        third, _ = await switched(switch, throws, two)
        assert isinstance(third, Cancelled)
        assert third.steps == ()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["folder gone", "no permission", "not a folder", "dangling link"])
def test_a_switch_that_cannot_be_read_is_thrown(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be looked for is not taken as absent; a link that leads nowhere is there."""
    folder = tmp_path / "switches"
    folder.mkdir()
    switch = KillSwitch(folder / "stop")
    assert not switch.check()
    match fault:
        case "folder gone":
            folder.rmdir()
        case "not a folder":
            folder.rmdir()
            folder.touch()
        case "dangling link":
            (folder / "stop").symlink_to(tmp_path / "nowhere")
        case _:
            # Root may look everywhere, so the system's answer is given in its place.
            monkeypatch.setattr(os, "lstat", _denied)

    assert switch.check()


def _denied(path: object) -> Any:
    raise PermissionError(str(path))


def test_a_switch_that_nobody_could_throw_is_refused(tmp_path: Path) -> None:
    """Neither a folder that is not there nor a mode that does not exist."""
    with pytest.raises(ContractError):
        KillSwitch(tmp_path / "none" / "stop")
    with pytest.raises(ContractError):
        KillSwitch(mode="later")


def test_a_watched_switch_reaches_a_run_that_waits(tmp_path: Path) -> None:
    """With mode `now`, a call that would last an hour is stopped; the watch leaves no task."""

    async def scenario() -> None:
        path = tmp_path / "stop"
        switch = KillSwitch(path, mode="now")
        async with switch.watch(0.01):
            run = asyncio.ensure_future(switched(switch, forever, ONE))
            await asyncio.sleep(0.03)
            path.touch()
            result, _ = await asyncio.wait_for(run, 60)

        assert isinstance(result, Cancelled)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["now", "after_step"])
def test_a_signal_throws_the_switch_and_wakes_the_loop(mode: str) -> None:
    """Runs are stopped though nothing else happens; afterwards the signal does what it did."""

    async def scenario() -> None:
        async def brief(context: ExecutionContext) -> Json:
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(3600 if mode == "now" else 0.05)
            return "done"

        result, _ = await asyncio.wait_for(switched(switch, brief, ONE), 10)

        assert isinstance(result, Cancelled)
        assert told(result) == ["CANCELLED" if mode == "now" else None]

    before = signal.getsignal(signal.SIGUSR1)
    switch = KillSwitch(mode=mode)
    with switch.on_signal(signal.SIGUSR1):
        asyncio.run(scenario())

    assert switch.reason == "kill switch: signal SIGUSR1"
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_switch_keeps_no_run_alive() -> None:
    """Runs are held weakly: a service may make as many as it likes under one switch."""
    switch = KillSwitch()
    run = create_agent_task_run(TaskContract(), kill_switch=switch)
    gone = weakref.ref(run)
    del run
    gc.collect()

    assert gone() is None
    switch.engage("test")


def test_one_run_that_cannot_be_stopped_does_not_spare_the_others() -> None:
    """Every registered run is told, whatever one of them raises."""

    class Broken:
        def cancel(self, reason: str, mode: str = "now") -> None:
            raise RuntimeError(reason)

    class Noting:
        def __init__(self) -> None:
            self.reasons: list[str] = []

        def cancel(self, reason: str, mode: str = "now") -> None:
            self.reasons.append(f"{reason} {mode}")

    switch = KillSwitch()
    broken, noting = [Broken() for _ in range(3)], Noting()
    for run in broken:
        switch.register(run)
    switch.register(noting)
    switch.engage("first")
    switch.engage("second")

    assert noting.reasons == ["kill switch: first after_step"] * 2


def test_a_direct_caller_is_stopped_by_the_switch() -> None:
    """The guard is in the runtime: a call that does not come from the loop does not begin either."""

    async def scenario() -> None:
        switch = KillSwitch()
        shelf = ToolShelf().add("t:tool")
        run = create_agent_task_run(TaskContract(), kill_switch=switch)
        runtime = run.guard_runtime(
            create_agent_runtime(model=ScriptedModel([]), tools=shelf.tools)
        )
        switch.engage("test")
        output = await runtime.execute_tool("t:tool", {}, ExecutionContext())

        assert output.code == "CANCELLED"
        assert shelf.ran["t:tool"] == 0

    asyncio.run(scenario())
