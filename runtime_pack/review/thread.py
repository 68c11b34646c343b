"""One daemon thread for what belongs to one thread: the index, and verifying. It holds up no exit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ("OneThread",)

_T = TypeVar("_T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class OneThread:
    """Does one thing after the other; what nobody waits for any more is still done."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._go, name=name, daemon=True).start()

    def close(self) -> None:
        """End after what was asked for; nobody waits for that."""
        self._jobs.put(None)

    async def do(self, work: Callable[[], _T]) -> _T:
        """What *work* gives or raises, from the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._jobs.put((work, future, loop))
        return await future

    def _go(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future, loop = job
            result, error = None, None
            try:
                result = work()
            # Whatever it raises belongs to who waits for it.
            except BaseException as raised:  # noqa: BLE001
                error = raised
            try:
                loop.call_soon_threadsafe(_tell, future, result, error)
            except RuntimeError:
                # The loop has closed: nobody is left to be told.
                return


def _tell(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
