"""The doors for code that has no event loop: thin, and the same driver behind them.

A drive runs in an event loop of its own. `run…_sync` and `resume…_sync` run it in the caller's
thread; a stream runs it in a thread of its own, because a run must not stand still, with its calls
timing out, while the caller looks at an event. Ctrl-C reaches the caller: it stops the run as if
its task had been cancelled, or as if the reader of the stream had left, and is raised.

A stream that nobody closes does not hold the interpreter: when it exits, the run is paused first.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import importlib
import threading
import weakref
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from runtime_pack.errors import ContractError
from runtime_pack.loop.entry import Entry
from runtime_pack.loop.results import LoopResult
from runtime_pack.loop.stream import LoopEvent

__all__ = ("drive_here", "iterate", "refuse_running_loop")

_EXIT_SECONDS: Final = 10.0


def refuse_running_loop(name: str) -> None:
    """Refuse to block an event loop.

    Raises:
        ContractError: one runs in this thread.
    """
    if not _is_loop_here():
        return
    awaited = name.removesuffix("_sync")
    raise ContractError(name, f"an event loop runs here; use {awaited} in it")


def _is_loop_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def drive_here(entry: Entry) -> LoopResult:
    """Drive the run in this thread, and return when the drive has ended."""
    return asyncio.run(entry.go())


def iterate(stream: AsyncGenerator[LoopEvent, None], name: str) -> Generator[LoopEvent, None, None]:
    """The events of the stream; closing the generator stops the run and waits until it has.

    Raises:
        ContractError: an event loop runs in the thread that asks for the first event.
    """
    refuse_running_loop(name)
    worker = _Worker(stream)
    try:
        worker.begin()
        while (event := worker.next()) is not None:
            yield event
    finally:
        worker.stop()


def _close(runner: asyncio.Runner) -> None:
    """Close the loop. Its tasks and generators are over first; then it waits for its executor.

    That waiting takes a thread, and from 3.12 on none can be had at the interpreter's end: then
    the loop is closed without it, as the runner does by itself.
    """
    with contextlib.suppress(RuntimeError):
        runner.close()


class _Worker(threading.Thread):
    """A thread with an event loop in which one stream is read."""

    def __init__(self, stream: AsyncGenerator[LoopEvent, None]) -> None:
        # The interpreter does not wait for it: `_leave_open` does, as long as that helps.
        super().__init__(name="agent-loop", daemon=True)
        self._stream = stream
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._context = contextvars.copy_context()
        self._over: asyncio.Event | None = None
        self._reading: asyncio.Task[LoopEvent | None] | None = None
        # The threads that end before this one does: it cannot be waited for in them.
        self._inside: set[int] = set()
        self._closing: Future[None] | None = None
        self._reader = threading.current_thread()

    def begin(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: no thread can be had.
        """
        try:
            self.start()
        # Whatever it is, nobody will serve: who waits for the loop is told so.
        except Exception as error:
            self._loop.set_exception(error)
            raise
        _WORKERS.add(self)

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            self._context.run(self._run)
        except BaseException as error:
            if self._loop.done():
                # From 3.12 on an executor cannot be closed at the interpreter's very end, for that
                # takes a thread; what was to be read has been read by then.
                if (
                    isinstance(error, RuntimeError)
                    and self._over is not None
                    and self._over.is_set()
                ):
                    return
                raise
            # Raised where the stream is read.
            self._loop.set_exception(error)

    def _run(self) -> None:
        runner = asyncio.Runner()
        try:
            # First, so that nothing is left that was to be awaited in it.
            runner.get_loop()
            runner.run(self._serve())
        finally:
            _close(runner)

    async def _serve(self) -> None:
        self._over, loop = asyncio.Event(), asyncio.get_running_loop()
        self._note_inside()
        loop.set_default_executor(ThreadPoolExecutor(initializer=self._note_inside))
        self._loop.set_result(loop)
        await self._over.wait()

    def _note_inside(self) -> None:
        self._inside.add(threading.get_ident())

    def next(self) -> LoopEvent | None:
        """The next event; None after the last one."""
        loop, self._reader = self._loop.result(), threading.current_thread()
        return asyncio.run_coroutine_threadsafe(self._next(), loop).result()

    async def _next(self) -> LoopEvent | None:
        self._reading = asyncio.ensure_future(_read(self._stream))
        return await self._reading

    def stop(self) -> None:
        """Close the stream, which stops the run, and end the thread.

        A generator may be collected in any thread. In one of the run's own, or beside an event loop,
        nobody can wait for the run to end: there it is only told to.
        """
        if self._closing is not None or not self.is_alive() or self._loop.exception() is not None:
            return
        closing = self._leave(self._loop.result())
        if threading.get_ident() in self._inside or _is_loop_here():
            return
        closing.result()
        self.join()

    def leave_at_exit(self, *, late: bool) -> None:
        """The interpreter exits: stop the run, unless somebody reads whom the interpreter waits for."""
        reader = self._reader
        awaited = reader.is_alive() and not (reader.daemon or reader is threading.main_thread())
        if not self.is_alive() or (awaited and not late):
            return
        closing = self._closing or self._leave(self._loop.result(0))
        closing.result(_EXIT_SECONDS)
        self.join(_EXIT_SECONDS)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> Future[None]:
        self._closing = asyncio.run_coroutine_threadsafe(self._close(), loop)
        return self._closing

    async def _close(self) -> None:
        try:
            if self._reading is not None and not self._reading.done():
                self._reading.cancel()
                await asyncio.wait({self._reading})
            await self._stream.aclose()
        finally:
            if self._over is not None:
                # In the next turn of the loop: then whoever waits for this has been told.
                asyncio.get_running_loop().call_soon(self._over.set)


async def _read(stream: AsyncGenerator[LoopEvent, None]) -> LoopEvent | None:
    return await anext(stream, None)


_WORKERS: Final[weakref.WeakSet[_Worker]] = weakref.WeakSet()


def _leave_open(*, late: bool) -> None:
    """Pause the runs of streams that are still open; what hangs is left."""
    for worker in list(_WORKERS):
        with contextlib.suppress(Exception):
            worker.leave_at_exit(late=late)


# Before executors end, where Python lets us: a run that is saved may need one. Their own hook has to
# be there first. And once more when all threads that the interpreter waits for have ended.
importlib.import_module("concurrent.futures.thread")
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    with contextlib.suppress(RuntimeError):
        _register(_leave_open, late=False)
atexit.register(_leave_open, late=True)
