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
    from asyncio.futures import _FINISHED, _PyFuture
    from asyncio.tasks import _enter_task, _leave_task, _PyTask, _register_task
    from types import SimpleNamespace

    class _Eager(_PyTask):
        _name = "eager"
        _num_cancels_requested = 0
        _must_cancel = False
        _fut_waiter = None

        def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> None:
            # Not that of the task: it would leave the first step to the loop.
            if loop.get_debug():
                _PyFuture.__init__(self, loop=loop)
            self._loop, self._callbacks = loop, []
            self._coro = work
            self._context = contextvars.copy_context()

        def begin(self) -> None:
            """Take the first step; its own of the task is for all that does not end well in it."""
            loop = self._loop
            _enter_task(loop, self)
            try:
                given, raised = self._context.run(self._coro.send, None), None
            except StopIteration as end:
                if not self._must_cancel and not self._callbacks:
                    self._result, self._state = end.value, _FINISHED
                    return
                given, raised = None, end
            # Whatever it is, the task makes of it what a task does.
            except BaseException as error:  # noqa: BLE001
                given, raised = None, error
            finally:
                _leave_task(loop, self)
            self._take_step(given, raised)

        def _take_step(self, given: object, raised: BaseException | None) -> None:
            """Let the task take the step that the work has taken, and find what came of it."""
            work, cancels = self._coro, self._must_cancel

            def send(_nothing: None) -> object:
                # What was asked of the task inside the step is asked of it now.
                self._coro = work
                if cancels:
                    self._must_cancel = True
                if raised is not None:
                    raise raised
                return given

            self._coro = SimpleNamespace(send=send)
            if cancels:
                self._must_cancel = False
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
