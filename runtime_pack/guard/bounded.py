"""Await the host's code under a time limit, such that it can be stopped and cannot hide that it was.

The code runs in a task of its own, whose first step is taken at once: code that need not wait costs no
turn of the event loop. Three things look alike from inside and are told apart here:
the limit ran out (or `cancel` and `pause` ended it), the caller was cancelled from outside, and the
host's code raised `CancelledError` of its own. Code that swallows a cancellation does not undo it: what
it answers afterwards is not heard, and after a grace it is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from types import CoroutineType
from typing import Any, Final, TypeVar

from runtime_pack.errors import AuditError, EmitterError
from runtime_pack.events import Event
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.eager import plain_result, started
from runtime_pack.guard.task_run import GRACE_SECONDS, Scope, TaskRun, awaited
from runtime_pack.machine import Outcome, OutcomeKind, Refused, budget_stop
from runtime_pack.threads import LEFT, CancelledBefore

__all__ = ("Stopped", "StrayCancellation", "TimeUp", "bounded", "ending", "tell")

_T = TypeVar("_T")
# How long an emitter may still take when the run was cancelled.
_LAST_WORD_SECONDS: Final = 5.0


class TimeUp(Exception):
    """The limit ran out, or the run was interrupted, before the code was done.

    `begun` is False when it is known that the code had not begun either.
    """

    def __init__(self, *, begun: bool = True) -> None:
        super().__init__()
        self.begun = begun


class Stopped(Exception):
    """The run stops here, for *outcome*: the host's code was ended before it had said anything.

    `refused` is the refusal that was recorded before the code was asked, if there is one.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome
        self.refused: Refused | None = None


class StrayCancellation(Exception):
    """The code raised `CancelledError` or `GeneratorExit` although nobody had ended it."""


async def bounded(
    run: TaskRun,
    seconds: float | None,
    work: Awaitable[_T],
    *,
    patient: bool = False,
    idle: bool = False,
) -> _T:
    """The result of *work*; None for no limit but the run's own time.

    With *patient*, work that an interruption finds on its way has a grace to end well. *idle* work
    only waits for somebody: every interruption ends it, one `after_step` too.

    Raises:
        TimeUp: it was stopped by the limit, by `cancel` or by `pause`.
        StrayCancellation: it raised `CancelledError`, or `GeneratorExit`, of its own.
        asyncio.CancelledError: the caller was cancelled from outside, whatever *work* made of it.
        BaseException: whatever else *work* raised.
    """
    loop, stops = asyncio.get_running_loop(), run.stops
    ends = None if seconds is None else loop.time() + seconds
    scope = Scope(loop, patient=patient, idle=idle)
    # Their own type first: asking an abstract class is slow.
    own = work if type(work) is CoroutineType or isinstance(work, Coroutine) else awaited(work)
    task = started(loop, scope.to_its_end(own))
    ended = plain_result(task)
    if ended is not None:
        return ended[0]
    scope.take(task, own)
    if scope.over is not None:
        run.watch(scope, stops)
        try:
            if ends is not None:
                run.stop_at(scope, ends)
            await scope.over
        except asyncio.CancelledError:
            await _end(run, task)
            raise
        finally:
            run.forget(scope)
    ended = None if scope.stopped else plain_result(task)
    if ended is not None:
        return ended[0]
    if not task.done():
        run.abandon(task)
        told = LEFT.get()
        if told is not None:
            told(task.done)
        raise TimeUp
    # The end of a generator, raised where there is none, would close those who wait for it.
    if task.cancelled() or isinstance(task.exception(), GeneratorExit):
        raise TimeUp(begun=_had_begun(task)) if scope.stopped else StrayCancellation
    if scope.stopped and not _is_final(task.exception()):
        raise TimeUp
    return task.result()


def _had_begun(task: asyncio.Task[Any]) -> bool:
    """Whether what the task did may have begun: not if it was cancelled while it waited for a thread."""
    try:
        task.exception()
    except asyncio.CancelledError as error:
        return not isinstance(error, CancelledBefore)
    return True


def _is_final(error: BaseException | None) -> bool:
    """What ends the run is not lost in a limit that ran out meanwhile."""
    if error is None:
        return False
    return isinstance(error, AuditError | EmitterError) or not isinstance(error, Exception)


def ending(run: TaskRun) -> Outcome | None:
    """Why the run stops at once, if it does: it was interrupted, or its time is spent."""
    if run.interrupt is not None and run.interrupt_now:
        return run.interrupt
    short = run.ledger.time_shortfall(run.clock.monotonic())
    return None if short is None else Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(short))


async def _end(run: TaskRun, task: asyncio.Task[Any]) -> None:
    """Cancel the task and give it a grace; then go on without it."""
    task.cancel()
    try:
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
    finally:
        run.abandon(task)


async def tell(run: TaskRun, event: Event) -> None:
    """Tell the host's emitter, if there is one, under the run's time.

    Raises:
        EmitterError: the emitter raised, or did not end in time.
        Stopped: an interruption of the run ended it; what it was told of does not happen.
        asyncio.CancelledError: the caller was cancelled from outside.
    """
    if run.emitter is None:
        return
    try:
        seconds = _LAST_WORD_SECONDS if run.interrupt_now else None
        await bounded(run, seconds, run.emitter.emit(event))
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        raise
    except TimeUp as error:
        if run.interrupt is not None and run.interrupt_now:
            raise Stopped(run.interrupt) from error
        raise EmitterError("the emitter did not end in time") from error
    # The host's code: whatever it raises, the action stops.
    except BaseException as error:
        log_fault("the emitter", error, run=run.id)
        raise EmitterError(f"the emitter failed: {type(error).__name__}") from error
