"""A task that takes its first step at once, not in the event loop's next turn.

Most of what a run awaits answers without waiting: then nothing has to be scheduled and nobody has to
be woken. It is a task all the same, the same one from its first step to its last: what asks for the
current task, and what cancels it, finds it.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ("started",)

_T = TypeVar("_T")


def started(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """A task of *work* that has run up to its first wait; a loop with a task factory makes its own.

    Raises:
        KeyboardInterrupt, SystemExit: *work* raised it in its first step.
    """
    if loop.get_task_factory() is not None:
        return loop.create_task(work)
    return _eager(loop, work)


if TYPE_CHECKING:

    def _eager(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]
    ) -> asyncio.Task[_T]: ...

elif sys.version_info >= (3, 12):

    def _eager(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        return asyncio.Task(work, loop=loop, eager_start=True)

else:
    # Python 3.11 has no `eager_start`. Its task in Python is complete, and gets no changes any
    # more; the three functions are those that asyncio documents for tasks of one's own.
    from asyncio.futures import _PyFuture
    from asyncio.tasks import _enter_task, _leave_task, _PyTask, _register_task

    class _Eager(_PyTask):
        def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> None:
            # Not that of the task: it would leave the first step to the loop.
            if loop.get_debug():
                _PyFuture.__init__(self, loop=loop)
            self._loop, self._callbacks = loop, []
            self._name = "eager"
            self._num_cancels_requested = 0
            self._must_cancel = False
            self._fut_waiter = None
            self._coro = work
            self._context = contextvars.copy_context()

        def begin(self) -> None:
            self._context.run(self._Task__step)
            if not self.done():
                _register_task(self)

    def _eager(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task, outer = _Eager(loop, work), asyncio.current_task(loop)
        if outer is not None:
            _leave_task(loop, outer)
        try:
            task.begin()
        finally:
            if outer is not None:
                _enter_task(loop, outer)
        return task
