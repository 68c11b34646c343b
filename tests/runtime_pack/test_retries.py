"""A model that fails for a while: what is asked again, when, and what it costs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    AuditLog,
    Cancelled,
    Completed,
    ContractError,
    ExecutionContext,
    LoopError,
    MemoryRunStore,
    ModelFault,
    ModelRequestError,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    Turn,
    TurnInput,
    TurnRequest,
    Usage,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    verify_log,
)
from runtime_pack.ports import Chance
from runtime_pack.retries import GIVE_UP, LONGEST_WAIT_SECONDS, Hold, Wait, next_attempt
from runtime_pack.testing import MovableClock, Rehearsal, ToolShelf, calls, reply


def failing(
    fault: ModelFault = ModelFault.RATE_LIMITED,
    *,
    after: float | None = None,
    surfaced: bool = False,
    usage: Usage | None = None,
) -> ModelRequestError:
    return ModelRequestError(
        fault=fault,
        message="busy",
        status=429,
        retry_after_seconds=after,
        surfaced=surfaced,
        usage=usage,
    )


def setup(clock: MovableClock, **contract: float) -> Rehearsal:
    limits = TaskContract(
        max_duration_seconds=contract.get("seconds", 600),
        max_attempts=int(contract.get("attempts", 3)),
        max_turns=int(contract.get("turns", 20)),
    )
    return Rehearsal(clock=clock, contract=limits, seal=Seal.random())


# ── the decision ──────────────────────────────────────────────────────────────────────────────

ANYTHING = st.none() | st.floats() | st.integers() | st.text() | st.booleans()


@given(
    retryable=st.booleans(),
    attempt=st.integers(1, 2000),
    max_attempts=st.integers(1, 2000),
    left=st.floats(0, math.inf, allow_nan=False),
    asked=ANYTHING,
    chance=ANYTHING,
)
def test_the_decision_is_total_and_bounded(
    retryable: bool, attempt: int, max_attempts: int, left: float, asked: object, chance: object
) -> None:
    """Whatever comes in: no wait is longer than what is left, nor shorter than what was asked."""
    verdict = next_attempt(
        retryable=retryable,
        attempt=attempt,
        max_attempts=max_attempts,
        left_seconds=left,
        asked_seconds=asked,
        chance=chance,
    )

    number = type(asked) in {int, float} and isinstance(asked, int | float) and asked >= 0
    if not retryable or attempt >= max_attempts:
        assert verdict == GIVE_UP
    elif isinstance(verdict, Hold):
        assert number
        assert verdict.seconds >= min(left, LONGEST_WAIT_SECONDS)
    else:
        assert isinstance(verdict, Wait)
        assert 0 <= verdict.seconds <= left
        assert verdict.seconds <= 1.1 * LONGEST_WAIT_SECONDS
        assert not number or verdict.seconds >= float(str(asked))


@given(attempt=st.integers(1, 60), chance=st.floats(0, 1))
def test_waits_grow_and_are_spread(attempt: int, chance: float) -> None:
    """Each wait is between half and all of one that doubles up to a bound."""
    verdict = next_attempt(
        retryable=True,
        attempt=attempt,
        max_attempts=99,
        left_seconds=math.inf,
        asked_seconds=None,
        chance=chance,
    )

    longest = min(0.5 * 2 ** (attempt - 1), 30)
    assert isinstance(verdict, Wait)
    assert longest / 2 <= verdict.seconds <= longest


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5, "unlimited", None])
def test_the_number_of_attempts_is_a_number_from_1(attempts: object) -> None:
    """Neither nothing nor for ever."""
    with pytest.raises(ContractError, match="max_attempts"):
        # What is not a number is the case at hand.
        TaskContract(max_attempts=attempts)  # type: ignore[arg-type]


# ── in a run ──────────────────────────────────────────────────────────────────────────────────


def test_l22_what_the_provider_asks_to_wait_is_waited_once() -> None:
    """429 with 5 seconds, then success: one wait of at least 5 seconds, two attempts, one turn."""
    clock = MovableClock()

    result = asyncio.run(setup(clock).play(failing(after=5), reply()))

    assert isinstance(result, Completed)
    (slept,) = clock.slept
    assert 5 <= slept <= 5.5
    assert (2, 1) == (result.ledger.attempts, result.ledger.used["turns"])
    assert result.ledger.active_seconds >= 5


def test_l22_a_wait_beyond_the_run_suspends_it_until_then() -> None:
    """300 seconds with 60 left: nobody sleeps, and the run can be taken up at that time."""
    clock = MovableClock()
    run = setup(clock, seconds=60, turns=1)
    now = clock.now()

    result = asyncio.run(run.play(failing(after=300)))

    assert isinstance(result, Suspended)
    assert clock.slept == []
    assert result.stop is not None
    assert result.stop.code == StopCode.RETRY_LATER
    assert result.stop.retry_at == now + timedelta(seconds=300)
    assert result.stop.to_json()["retry_at"] == "2026-01-01T00:05:00Z"
    assert result.ledger.used.get("turns", 0) == 0

    early = asyncio.run(run.go_on(result))
    clock.move(300)
    late = asyncio.run(run.go_on(result, reply("at last")))

    assert isinstance(early, Suspended)
    assert early.stop == result.stop
    assert isinstance(late, Completed)
    assert late.ledger.attempts == 2


def test_a_run_that_was_held_is_taken_up_from_a_store() -> None:
    """`retry_at` is in the saved state, and holds for whoever resumes."""
    clock = MovableClock()
    run = setup(clock, seconds=60)
    run.store = MemoryRunStore()

    held = asyncio.run(run.play(failing(after=300)))
    early = asyncio.run(run.go_on(held, message="hurry"))
    clock.move(301)
    done = asyncio.run(run.go_on(held, reply()))

    assert isinstance(early, Suspended)
    assert early.stop == held.stop
    assert isinstance(done, Completed)
    assert [type(message).__name__ for message in done.messages] == [
        "UserMessage",
        "AssistantMessage",
    ]


@pytest.mark.parametrize("fault", [f for f in ModelFault if failing(f).retryable])
def test_each_fault_that_may_pass_is_asked_again(fault: ModelFault) -> None:
    """Transport, time, limits, overload, the server and conflicts."""
    clock = MovableClock()

    result = asyncio.run(setup(clock).play(failing(fault), failing(fault), reply()))

    assert isinstance(result, Completed)
    assert len(clock.slept) == 2
    assert clock.slept[0] <= 0.5 <= clock.slept[1] <= 1


def test_attempts_are_bounded_and_the_run_can_be_taken_up() -> None:
    """Three requests, then an error of the model; nothing was answered, so no turn is used."""
    clock = MovableClock()
    run = setup(clock, turns=1)

    result = asyncio.run(run.play(*[failing(ModelFault.SERVER)] * 3))
    again = asyncio.run(run.go_on(result, reply("back")))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (StopCode.MODEL_ERROR, "model") == (result.stop.code, result.stop.stage)
    assert result.stop.message == "server: busy"
    assert (3, {}) == (result.ledger.attempts, dict(result.ledger.used))
    assert isinstance(again, Completed)
    assert again.ledger.attempts == 4


def test_a_last_attempt_that_is_told_to_wait_holds_the_run() -> None:
    """Resuming inside the window asks nobody."""
    clock = MovableClock()
    run = setup(clock, attempts=1)

    result = asyncio.run(run.play(failing(after=20)))
    early = asyncio.run(run.go_on(result))
    clock.move(20)
    late = asyncio.run(run.go_on(result, reply()))

    assert isinstance(result, LoopError)
    assert isinstance(early, LoopError)
    assert isinstance(late, Completed)


def test_what_was_shown_is_not_asked_for_again() -> None:
    """The adapter says that a part was surfaced: the fault stands, and the turn is used."""
    clock = MovableClock()

    result = asyncio.run(setup(clock).play(failing(surfaced=True)))

    assert isinstance(result, LoopError)
    assert clock.slept == []
    assert result.state is None


class Blurting:
    """Shows a piece, then fails without saying that it did."""

    def __init__(self) -> None:
        self.asked = 0

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        self.asked += 1
        if context.on_delta is not None:
            context.on_delta("a piece")
        raise failing()


def test_the_guard_sees_for_itself_what_was_shown() -> None:
    """An adapter that forgets `surfaced` after a delta is not asked again."""

    async def scenario(heard: list[str]) -> int:
        model, run = Blurting(), create_agent_task_run(TaskContract(), clock=MovableClock())
        await run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=model)),
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")]),
            create_context=lambda: ExecutionContext(on_delta=heard.append),
        )
        return model.asked

    heard: list[str] = []

    assert asyncio.run(scenario(heard)) == 1
    assert heard == ["a piece"]


def test_what_a_failed_request_cost_is_charged_and_recorded(tmp_path: Path) -> None:
    """Tokens of failures are in the ledger, in the record of the turn and in an event each."""
    clock, usage = MovableClock(), Usage(input_tokens=10, output_tokens=1)
    with AuditLog(tmp_path / "log.jsonl") as log:
        run = setup(clock)
        run.audit = log

        result = asyncio.run(run.play(failing(usage=usage), failing(usage=usage), reply()))

    assert (20, 2) == (result.ledger.input_tokens, result.ledger.output_tokens)
    assert [20] == [step.input_tokens for step in result.steps]
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    told = [line for line in lines if '"TRN004O"' in line]
    assert ['"fault":"rate_limited"' in line for line in told] == [True, True]
    assert '"busy"' not in "".join(lines)
    assert verify_log(tmp_path / "log.jsonl").faults == ()


def test_a_wait_is_no_longer_than_the_run() -> None:
    """With a second left the wait is clipped, and the request is still made in time."""
    clock = MovableClock()

    result = asyncio.run(setup(clock, seconds=0.1).play(failing(), reply()))

    assert isinstance(result, Completed)
    assert clock.slept[0] < 0.051


class StoppingClock(MovableClock):
    """A clock on whose sleep something happens."""

    def __init__(self, during: Callable[[], None], *, for_ever: bool) -> None:
        super().__init__()
        self._during = during
        self._for_ever = for_ever

    async def sleep(self, seconds: float) -> None:
        self._during()
        await asyncio.sleep(3600 if self._for_ever else 0)


@pytest.mark.parametrize("mode", ["now", "after_step"])
def test_a_wait_can_be_cancelled(mode: str) -> None:
    """Nobody is asked again after `cancel`, and no task is left."""

    async def scenario() -> None:
        run = Rehearsal()
        run.clock = StoppingClock(lambda: run.run.cancel("enough", mode), for_ever=mode == "now")
        run.prepare([failing()])
        result = await asyncio.wait_for(run.start(), 5)

        assert isinstance(result, Cancelled)
        assert len(run.model.requests) == 1
        assert result.ledger.reserved == {}
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_run_paused_in_a_wait_is_taken_up() -> None:
    """The wait is left, and the next drive asks."""
    run = Rehearsal(seal=Seal.random())
    run.clock = StoppingClock(lambda: run.run.pause("later"), for_ever=True)

    paused = asyncio.run(run.play(failing()))
    done = asyncio.run(run.go_on(paused, reply()))

    assert isinstance(paused, Suspended)
    assert isinstance(done, Completed)


@pytest.mark.parametrize("chance", [lambda: 7.0, lambda: math.nan, lambda: 1 / 0])
def test_a_broken_chance_waits_the_longest(chance: Chance) -> None:
    """The port is the host's code: what it answers badly changes the wait and nothing else."""

    async def scenario() -> None:
        clock = MovableClock()
        rehearsal = Rehearsal(clock=clock)
        rehearsal.prepare([failing(), reply()])
        run = create_agent_task_run(TaskContract(), clock=clock, chance=chance)
        runtime = create_agent_runtime(model=rehearsal.model)
        result = await run_governed_agent_loop(
            runtime=run.guard_runtime(runtime),
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")]),
        )

        assert isinstance(result, Completed)
        assert clock.slept == [0.5]

    asyncio.run(scenario())


def test_a_failure_in_the_wrap_up_leaves_the_stop_of_the_budget() -> None:
    """The wrap-up is retried like any turn; what remains is the budget that ran out."""
    clock = MovableClock()
    run = Rehearsal(
        shelf=ToolShelf().add("t:echo"), clock=clock, contract=TaskContract(max_turns=2)
    )
    asked = [calls((name, "t:echo", "{}")) for name in "ab"]

    result = asyncio.run(run.play(*asked, *[failing()] * 3))

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED
    assert result.ledger.attempts == 5


def test_an_old_ledger_has_no_attempts() -> None:
    """A run that an earlier version saved counts them from 0."""
    ledger = create_agent_task_run(TaskContract()).ledger
    saved = dict(ledger.view(0).to_json())
    del saved["attempts"]

    ledger.restore(saved)

    assert ledger.attempts == 0
