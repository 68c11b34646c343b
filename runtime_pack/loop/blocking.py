"""The doors for code that has no event loop: thin, and the same driver behind them.

A drive runs in an event loop of its own. `run…_sync` and `resume…_sync` run it in the caller's
thread; a stream runs it in a thread of its own, because a run must not stand still, with its calls
timing out, while the caller looks at an event. Ctrl-C reaches the caller: it stops the run as if
its task had been cancelled, or as if the reader of the stream had left, and is raised.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future

from runtime_pack.errors import ContractError
from runtime_pack.loop.entry import Entry
from runtime_pack.loop.results import LoopResult
from runtime_pack.loop.stream import LoopEvent

__all__ = ("drive_here", "iterate", "refuse_running_loop")


def refuse_running_loop(name: str) -> None:
    """Refuse to block an event loop.

    Raises:
        ContractError: one runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    awaited = name.removesuffix("_sync")
    raise ContractError(name, f"an event loop runs here; use {awaited} in it")


def drive_here(entry: Entry) -> LoopResult:
    """Drive the run in this thread, and return when the drive has ended."""
    return asyncio.run(entry.go())


def iterate(stream: AsyncGenerator[LoopEvent, None]) -> Generator[LoopEvent, None, None]:
    """The events of the stream; closing the generator stops the run and waits until it has."""
    worker = _Worker(stream)
    try:
        worker.start()
        while (event := worker.next()) is not None:
            yield event
    finally:
        worker.stop()


class _Worker(threading.Thread):
    """A thread with an event loop in which one stream is read."""

    def __init__(self, stream: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(name="agent-loop")
        self._stream = stream
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._context = contextvars.copy_context()
        self._over: asyncio.Event | None = None
        self._reading: asyncio.Task[LoopEvent | None] | None = None

    def run(self) -> None:
        """Serve until `stop`."""
        self._context.run(asyncio.run, self._serve())

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._loop.set_result(asyncio.get_running_loop())
        await self._over.wait()

    def next(self) -> LoopEvent | None:
        """The next event; None after the last one."""
        return asyncio.run_coroutine_threadsafe(self._next(), self._loop.result()).result()

    async def _next(self) -> LoopEvent | None:
        self._reading = asyncio.ensure_future(_read(self._stream))
        return await self._reading

    def stop(self) -> None:
        """Close the stream, which stops the run, and end the thread."""
        loop = self._loop.result()
        try:
            asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        finally:
            loop.call_soon_threadsafe(self._end)
            self.join()

    async def _close(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._stream.aclose()

    def _end(self) -> None:
        if self._over is not None:
            self._over.set()


async def _read(stream: AsyncGenerator[LoopEvent, None]) -> LoopEvent | None:
    return await anext(stream, None)
