"""A task that takes its first step at once, not in the event loop's next turn.

Most of what a run awaits answers without waiting: then nothing has to be scheduled and nobody has to
be woken. It is a task all the same, the same one from its first step to its last: what asks for the
current task, and what cancels it, finds it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import types
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ("others", "plain_result", "started")

_T = TypeVar("_T")


@types.coroutine
def others() -> Generator[None, None, None]:
    """Let everybody else have a turn, as `asyncio.sleep(0)` does in two calls more."""
    yield


def started(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """A task of *work* that has run up to its first wait; a loop with a task factory makes its own.

    Raises:
        KeyboardInterrupt, SystemExit: *work* raised it in its first step.
    """
    if loop.get_task_factory() is not None:
        return loop.create_task(work)
    return _eager(loop, work)


def _is_well(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


if TYPE_CHECKING:

    def _eager(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]
    ) -> asyncio.Task[_T]: ...

    def plain_result(task: asyncio.Task[_T]) -> tuple[_T] | None:
        """The result of the task, by itself in a tuple; None if it is not done, or has none."""
        ...

elif sys.version_info >= (3, 12):

    def _eager(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        return asyncio.Task(work, loop=loop, eager_start=True)

    # As above.
    def plain_result(task: asyncio.Task[_T]) -> tuple[_T] | None:  # noqa: D103
        return (task.result(),) if _is_well(task) else None

else:
    # Python 3.11 has no `eager_start`. Its task in Python is complete, and gets no changes any
    # more; the three functions are those that asyncio documents for tasks of one's own.
    from asyncio.format_helpers import extract_stack
    from asyncio.futures import _FINISHED
    from asyncio.tasks import _current_tasks, _enter_task, _leave_task, _PyTask, _register_task
    from types import SimpleNamespace

    class _Eager(_PyTask):
        _name = "eager"
        _num_cancels_requested = 0
        _must_cancel = False
        _fut_waiter = None
        # The result, by itself in a tuple, of what ended in its first step with nobody to tell.
        given = None

        def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> None:
            """Take the first step; its own of the task is for all that does not end well in it."""
            # The task's own beginning would leave the first step to the loop.
            self._loop, self._coro, self._callbacks = loop, work, []
            context = self._context = contextvars.copy_context()
            outer = _current_tasks.get(loop)
            if outer is not None:
                _leave_task(loop, outer)
            _enter_task(loop, self)
            try:
                given, raised = context.run(work.send, None), None
            except StopIteration as end:
                if not self._must_cancel and not self._callbacks:
                    self._result, self._state, self.given = end.value, _FINISHED, (end.value,)
                    return
                given, raised = None, end
            # Whatever it is, the task makes of it what a task does.
            except BaseException as error:  # noqa: BLE001
                given, raised = None, error
            finally:
                _leave_task(loop, self)
                if outer is not None:
                    _enter_task(loop, outer)
            self._take_step(given, raised)

        def __del__(self) -> None:
            if self.given is None:
                super().__del__()

        def _take_step(self, given: object, raised: BaseException | None) -> None:
            """Let the task take the step that the work has taken, and find what came of it."""
            loop, work, cancels = self._loop, self._coro, self._must_cancel
            if loop.get_debug():
                self._note_origin()

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
            outer = _current_tasks.get(loop)
            if outer is not None:
                _leave_task(loop, outer)
            try:
                self._context.run(self._Task__step)
            finally:
                if outer is not None:
                    _enter_task(loop, outer)
            if not self.done():
                _register_task(self)

        def _note_origin(self) -> None:
            """Where it was made, for what a loop in debug mode says of a task."""
            self._source_traceback = extract_stack(inspect.currentframe())

    _eager = _Eager

    # As above.
    def plain_result(task: asyncio.Task[_T]) -> tuple[_T] | None:  # noqa: D103
        if type(task) is _Eager and task.given is not None:
            return task.given
        return (task.result(),) if _is_well(task) else None
