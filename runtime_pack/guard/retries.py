"""The requests of one turn: what failed is charged and recorded, waited for, and made again.

Adapters never ask again themselves, so that every request is counted and every wait can be stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import attrs

from runtime_pack.errors import ModelFault, ModelRequestError, StopCode
from runtime_pack.guard.bounded import StrayCancellation, TimeUp, bounded
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.machine import Outcome, OutcomeKind, Stop
from runtime_pack.messages import Turn, TurnStatus, Usage, clean_text, turn_fault
from runtime_pack.ports import (
    is_sleeping,
)
from runtime_pack.records import StepRecord, turn_retried
from runtime_pack.retries import Hold, Wait, asked_wait, next_attempt

__all__ = ("Asking", "NotAnswered", "reported")

# What a fault of the provider makes of the run; every other one is a MODEL_ERROR.
_STOPS: Final[Mapping[ModelFault, StopCode]] = {
    ModelFault.REFUSED: StopCode.MODEL_REFUSED,
    ModelFault.CONTEXT_OVERFLOW: StopCode.CONTEXT_OVERFLOW,
}
_SAID_CHARACTERS: Final = 500


class NotAnswered(Exception):
    """No request of the turn was answered; with `again`, a later one may be."""

    def __init__(self, outcome: Outcome, *, again: bool) -> None:
        super().__init__()
        self.outcome = outcome
        self.again = again


class Asking:
    """The requests of one turn, one after the other."""

    __slots__ = ("_run", "_step", "_tell", "attempt", "failed", "heard", "on_delta")

    def __init__(self, run: TaskRun, step: str, tell: Callable[[str], None] | None) -> None:
        self._run = run
        self._step = step
        self._tell = tell
        self.failed: list[Usage] | None = None
        self.attempt = 0
        self.heard = False
        self.on_delta = None if tell is None else self._hear

    def _hear(self, piece: str) -> None:
        """A piece of the response is shown: whatever the adapter says, it is not asked for again."""
        self.heard = True
        if self._tell is not None:
            self._tell(piece)

    def begin(self) -> None:
        """A request is about to be made."""
        self.attempt += 1
        run = self._run
        run.ledger.attempts += 1
        if run.observer is not None:
            run.observer.turn_started(self._step, self.attempt)

    def fail(self, error: ModelRequestError) -> float:
        """The request failed: how long to wait before the next one.

        Raises:
            NotAnswered: there is no next one.
            AuditError: the log could not take it.
        """
        run, usage = self._run, reported(error)
        if usage is not None:
            run.ledger.charge(usage)
            self.failed = [*(self.failed or ()), usage]
        passing = error.retryable is True and not self.heard
        verdict = next_attempt(
            retryable=passing,
            attempt=self.attempt,
            max_attempts=run.contract.max_attempts,
            left_seconds=run.ledger.remaining_seconds(run.clock.monotonic()),
            asked_seconds=error.retry_after_seconds,
            chance=self._chance(),
        )
        if isinstance(verdict, Wait):
            subject = run.subject(self._step)
            wait = verdict.seconds
            run.record(turn_retried(subject, self._step, self.attempt, error, wait, usage))
            if run.observer is not None:
                lost = self._given_up(error, passing=passing)
                run.observer.turn_ended(self._step, self.attempt, None, lost)
            return wait
        if isinstance(verdict, Hold):
            raise NotAnswered(self._held(error, verdict.seconds), again=True)
        # A history that is too long can be shortened: nothing was answered, and the run can go on.
        again = passing or error.fault is ModelFault.CONTEXT_OVERFLOW
        raise NotAnswered(self._given_up(error, passing=passing), again=again)

    async def wait(self, seconds: float) -> None:
        """Wait, unless the run ends first.

        Raises:
            TimeUp: it did.
            NotAnswered: the run is to stop after the step in hand.
        """
        run, clock = self._run, self._run.clock
        sleep = clock.sleep if is_sleeping(clock) else asyncio.sleep
        try:
            await bounded(run, None, sleep(seconds), idle=True)
        except StrayCancellation as error:
            run.clock_failed(error)
        except TimeUp:
            if run.interrupt is None:
                raise
        if run.interrupt is not None:
            raise NotAnswered(run.interrupt, again=True)
        if run.ledger.time_shortfall(clock.monotonic()) is not None:
            raise TimeUp

    def charge(self, record: StepRecord) -> None:
        """Add what failed requests cost to the record of the turn."""
        for usage in self.failed or ():
            record.input_tokens += usage.input_tokens
            record.output_tokens += usage.output_tokens
            record.cached_input_tokens += usage.cached_input_tokens

    def _chance(self) -> object:
        try:
            return self._run.chance()
        # The host's code: without a number the wait is the longest.
        except Exception:  # noqa: BLE001
            return None

    def _held(self, error: ModelRequestError, seconds: float) -> Outcome:
        stop = Stop(
            code=StopCode.RETRY_LATER,
            message=f"The provider asks to wait longer than this run can ({_said(error)}).",
            stage="model",
            retry_at=self._run.clock.now() + timedelta(seconds=seconds),
        )
        return Outcome(kind=OutcomeKind.SUSPENDED, stop=stop)

    def _given_up(self, error: ModelRequestError, *, passing: bool) -> Outcome:
        code = _STOPS.get(error.fault, StopCode.MODEL_ERROR)
        stop = Stop(code=code, message=_said(error), stage="model")
        seconds = asked_wait(error.retry_after_seconds) if passing else None
        if seconds is not None:
            until = self._run.clock.now() + timedelta(seconds=seconds)
            stop = attrs.evolve(stop, retry_at=until)
        return Outcome(kind=OutcomeKind.ERROR, stop=stop, cause=error)


def _said(error: ModelRequestError) -> str:
    return f"{error.fault}: {clean_text(str(error.message))[:_SAID_CHARACTERS]}"


def reported(error: ModelRequestError) -> Usage | None:
    """The usage that came with a failure, if it is one: the adapter is the host's code."""
    turn = Turn(status=TurnStatus.REPLY, usage=error.usage)
    return error.usage if turn_fault(turn) is None else None
