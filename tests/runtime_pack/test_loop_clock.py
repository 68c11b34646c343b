"""A clock that fails in mid-run: the run ends with a code and a stage, and can be taken up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequired,
    Completed,
    ContractError,
    ExecutionContext,
    LoopError,
    MemoryRunStore,
    Seal,
    StopCode,
    TaskContract,
    ToolPolicy,
    ToolRule,
    create_agent_runtime,
    create_agent_task_run,
)
from runtime_pack.approvals import Decision
from runtime_pack.errors import ModelFault, ModelRequestError
from runtime_pack.loop import LoopResult
from runtime_pack.messages import Json
from runtime_pack.testing import (
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_within_budget,
    calls,
    reply,
)

SEAL = Seal(b"the key of failing clocks in test")
BUSY = ModelRequestError(fault=ModelFault.OVERLOADED, message="busy")


def fails() -> Any:
    raise OSError("no time")


def cancels() -> Any:
    raise asyncio.CancelledError


def exits() -> Any:
    raise SystemExit(3)


async def later() -> float:
    return 1.0


FAULTS: dict[str, Any] = {
    "raises": (fails, fails),
    "cancels": (cancels, cancels),
    "exits": (exits, exits),
    "nothing": (lambda: None, lambda: None),
    "words": (lambda: "now", lambda: "1"),
    # A time without a zone is the fault at hand.
    "no zone": (lambda: datetime(2026, 1, 1), None),  # noqa: DTZ001
    "not a number": (None, lambda: float("nan")),
    "for ever": (None, lambda: float("inf")),
    "truth": (None, lambda: True),
    "a coroutine": (None, later),
    "back": (None, lambda: 1.0),
}


class FailingClock(MovableClock):
    """Works for *good* readings of each kind, then gives what *fault* does."""

    def __init__(self, good: int, fault: str) -> None:
        super().__init__()
        self.left = good
        self.now_fault: Any = FAULTS[fault][0]
        self.monotonic_fault: Any = FAULTS[fault][1]

    def _is_good(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def now(self) -> datetime:
        if self.now_fault is None or self._is_good():
            return super().now()
        given: datetime = self.now_fault()
        return given

    def monotonic(self) -> float:
        if self.monotonic_fault is None or self._is_good():
            return super().monotonic()
        given: float = self.monotonic_fault()
        return given


GATED = ToolRule(tool="t:gate", approval_class="request_user")


def approvals(result: LoopResult) -> list[Decision]:
    return [
        Decision(request_id=request.request_id, verdict="approve", decided_by="ann")
        for request in result.requests
    ]


async def to_its_end(clock: MovableClock) -> tuple[LoopResult, LoopResult, Rehearsal]:
    """A run with all that reads a clock, as the clock has it, and taken up with one that works."""
    contract = TaskContract(
        tool_policy=ToolPolicy([GATED, ToolRule(tool="t:a", approval_class="deny", when=allows)]),
        expires_at=datetime(2027, 1, 1, tzinfo=UTC),
    )
    shelf = ToolShelf().add("t:a").add("t:gate")
    stage = Rehearsal(shelf=shelf, store=MemoryRunStore(SEAL), contract=contract)
    stage.clock = clock
    stage.prepare(
        [
            BUSY,
            calls(("1", "t:a", "{}"), ("2", "t:gate", "{}")),
            calls(("3", "t:a", '{"x":"2"}'), ("4", "t:a", '{"x":"3"}')),
            reply(),
        ]
    )
    model, run_id = stage.model, stage.run.id
    first = result = await stage.start()
    for _ in range(6):
        if isinstance(result, LoopError) or first is not result:
            stage.clock = MovableClock(datetime(2026, 1, 2, tzinfo=UTC))
        if isinstance(result, Completed):
            break
        try:
            stage.prepare(())
        except ContractError:
            # It fails by now where a run is made: nothing was begun with it.
            stage.clock = MovableClock(datetime(2026, 1, 2, tzinfo=UTC))
            stage.prepare(())
        stage.model = model
        said = approvals(result) if isinstance(result, ApprovalRequired) else []
        result = await stage.resume(run_id, *said)
        first = result if isinstance(result, LoopError) else first
    return first, result, stage


async def allows(arguments: Any) -> bool:
    return False


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 90), st.sampled_from(sorted(FAULTS)))
def test_a_clock_that_fails_stops_the_run_wherever_it_does(good: int, fault: str) -> None:
    """Never a raise: CLOCK_FAILED in stage `clock`, within budget; with a clock that works it goes on."""
    failed, result, stage = asyncio.run(to_its_end(FailingClock(good, fault)))

    assert_within_budget(failed.ledger)
    if isinstance(failed, LoopError):
        assert failed.stop is not None
        assert (failed.stop.code, failed.stop.stage) == (StopCode.CLOCK_FAILED, "clock")
    assert isinstance(result, Completed), result.stop
    # A call that was announced when the clock failed is in doubt, and is not run again.
    assert (stage.shelf.ran["t:a"] <= 3, stage.shelf.ran["t:gate"] <= 1) == (True, True)
    assert (result.ledger.used["steps"], result.ledger.reserved) == (4, {})


@pytest.mark.parametrize("how", ["raises", "cancels"])
def test_a_clock_that_cannot_wait_stops_the_run(how: str) -> None:
    """Nor can the wait before a model is asked again tear it."""

    class Sleepless(MovableClock):
        async def sleep(self, seconds: float) -> None:
            FAULTS[how][0]()

    stage = Rehearsal(clock=Sleepless())
    stage.prepare([BUSY])
    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (result.stop.code, result.stop.stage) == (StopCode.CLOCK_FAILED, "clock")
    assert result.ledger.reserved == {}


def test_a_call_in_flight_is_stopped_when_the_clock_fails() -> None:
    """Without time no limit of it holds: nothing goes on unwatched."""
    clock = FailingClock(10**6, "raises")

    async def waits(context: ExecutionContext) -> Json:
        clock.left = 0
        await asyncio.sleep(3600)
        return "never"

    async def scenario() -> LoopResult:
        stage = Rehearsal(shelf=ToolShelf().add("t:a", does=waits), clock=clock)
        stage.prepare([calls(("1", "t:a", "{}"))])
        drive = asyncio.ensure_future(stage.start())
        # The shelf has no event to wait for.
        while not stage.shelf.calls:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stage.run.view()
        return await drive

    result = asyncio.run(scenario())

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.CLOCK_FAILED


def test_a_direct_call_does_not_run_without_a_clock() -> None:
    """The guard is in the runtime: its caller is told that the call did not begin."""
    clock, shelf = FailingClock(4, "raises"), ToolShelf().add("t:a")
    run = create_agent_task_run(TaskContract(), clock=clock)
    runtime = run.guard_runtime(create_agent_runtime(model=Rehearsal().model, tools=shelf.tools))
    clock.left = 0

    output = asyncio.run(runtime.execute_tool("t:a", {}, ExecutionContext()))

    assert (output.ok, output.code, str(output.executed)) == (False, "CANCELLED", "no")
    assert shelf.ran == {}
