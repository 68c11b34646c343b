"""Await the host's code under a time limit, such that it can be stopped and cannot hide that it was.

Three things look alike from inside and are told apart here: the limit ran out (or `cancel` and `pause`
ended it), the task was cancelled from outside, and the host's code raised `CancelledError` of its
own. Code that swallows a cancellation from outside does not undo it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from runtime_pack.errors import AuditError, EmitterError
from runtime_pack.guard.task_run import Scope, TaskRun

__all__ = ("StrayCancellation", "TimeUp", "bounded")

_T = TypeVar("_T")


class TimeUp(Exception):
    """The limit ran out, or the run was interrupted, before the code was done."""


class StrayCancellation(Exception):
    """The code raised `CancelledError` although nobody had cancelled it."""


async def bounded(run: TaskRun, seconds: float | None, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of *work*; None for no limit but the run's own time.

    Raises:
        TimeUp: it was stopped by the limit, by `cancel` or by `pause`.
        StrayCancellation: it raised `CancelledError` of its own.
        asyncio.CancelledError: the task was cancelled from outside, whatever *work* made of it.
        BaseException: whatever else *work* raised.
    """
    task = asyncio.current_task()
    if task is None:
        work.close()
        raise RuntimeError("the guard is used inside a task")
    asked = task.cancelling()
    scope = run.watch(Scope(task), seconds)
    try:
        result = await work
    except (AuditError, EmitterError):
        run.forget(scope)
        raise
    except asyncio.CancelledError as error:
        run.forget(scope)
        if task.cancelling() > asked:
            raise
        raise (TimeUp if scope.stopped else StrayCancellation) from error
    except Exception as error:
        run.forget(scope)
        if scope.stopped:
            raise TimeUp from error
        raise
    except BaseException:
        run.forget(scope)
        raise
    run.forget(scope)
    if task.cancelling() > asked:
        raise asyncio.CancelledError
    return result
