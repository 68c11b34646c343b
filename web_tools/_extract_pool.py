"""The worker processes: started when needed, killed when late, never shared by two pages.

Each has one socket pair; the worker's end is its standard input. A worker that ends, is late or
answers nonsense is killed and its slot empty; the next page starts another. When the host ends,
however it ends, its sockets close and the workers read end-of-file.
"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

import attrs

from web_tools import _extract_wire as wire
from web_tools._extract_result import (
    Extracted,
    ExtractionFailed,
    FailureReason,
    UnsupportedContent,
)

_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from web_tools._worker import main; main()"
_START_SECONDS = 10.0
_POLL_SECONDS = 0.002
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
"""What an interpreter may need to start; credentials live in the other variables."""


@attrs.frozen(kw_only=True)
class PoolLimits:
    """How many workers there are, and after how many pages one is replaced."""

    workers: int = 2
    pages_per_worker: int = 300


@attrs.frozen(kw_only=True)
class Job:
    """One page for a worker, and how long it may take; `mode` is `page` or `strip`."""

    mode: Literal["page", "strip"]
    body: bytes
    content_type: str | None
    url: str
    seconds: float

    def head(self) -> bytes:
        """What is sent before the body."""
        head = {"mode": self.mode, "content_type": self.content_type, "url": self.url}
        return wire.pack_head(head, body_bytes=len(self.body))


class Worker:
    """One started process and the host's end of its socket."""

    def __init__(self) -> None:
        self.pages = 0
        self._ready = False
        here, there = socket.socketpair()
        try:
            here.setblocking(False)
            # Our own interpreter with our own module; nothing here comes from a page.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-X", "utf8", "-c", _BOOT, *_import_path()],
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        self._socket = here

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    async def wait_ready(self) -> None:
        """Return when the worker has confined itself."""
        if not self._ready:
            await self._read(1)
            self._ready = True

    async def ask(self, job: Job) -> Extracted:
        """Send one page and wait for what it gives."""
        loop = asyncio.get_running_loop()
        self.pages += 1
        await loop.sock_sendall(self._socket, job.head())
        await loop.sock_sendall(self._socket, job.body)
        head_bytes, body_bytes = wire.unpack_lengths(await self._read(wire.LENGTHS.size))
        head = await self._read(head_bytes)
        return wire.result_of(head, await self._read(body_bytes))

    def kill(self) -> None:
        """End the process now; whoever waits for an answer sees the connection end."""
        self._process.kill()

    def close(self) -> None:
        """Close the host's end, after which nobody may wait on it."""
        self._socket.close()

    async def reap(self) -> None:
        """Wait for the process."""
        # A killed process is gone within milliseconds; a child watcher would bind it to one loop.
        while self._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _read(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        buffer = bytearray(count)
        view, filled = memoryview(buffer), 0
        while filled < count:
            got = await loop.sock_recv_into(self._socket, view[filled:])
            if got == 0:
                raise ConnectionResetError
            filled += got
        return bytes(buffer)


class Pool:
    """A bounded number of workers; `run` gives each page one of them for itself."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.workers)
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def run(self, job: Job) -> Extracted:
        """What a worker makes of *job*.

        Raises:
            UnsupportedContent: The body is no text.
            ExtractionFailed: The worker died, was late, or could not be started.
        """
        async with self._turns:
            worker = self._take()
            healthy = False
            try:
                result = await self._ask(worker, job)
                healthy = True
            except UnsupportedContent:
                healthy = True
                raise
            except ExtractionFailed as failure:
                healthy = failure.reason is FailureReason.PARSER_FAULT
                raise
            finally:
                # Also on cancellation: a half-read answer must not reach the next page.
                self._put_back(worker, healthy=healthy)
        return result

    async def aclose(self) -> None:
        """Kill every worker and wait until they are gone; pages under way fail as closed."""
        self._closed = True
        for worker in self._busy:
            worker.kill()
        for worker in self._idle:
            self._discard(worker)
        self._idle.clear()
        # Pages under way end within milliseconds of the kill; each empties its slot itself.
        while self._busy or self._reaping:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    def _take(self) -> Worker:
        if self._closed:
            raise ExtractionFailed(FailureReason.CLOSED)
        worker = self._living() or _started()
        self._busy.add(worker)
        return worker

    def _living(self) -> Worker | None:
        """An idle worker; those that died since their last page are buried."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            self._discard(worker)
        return None

    async def _ask(self, worker: Worker, job: Job) -> Extracted:
        try:
            async with asyncio.timeout(_START_SECONDS):
                await worker.wait_ready()
        except (OSError, TimeoutError) as error:
            raise self._failed(FailureReason.WORKER_UNAVAILABLE) from error
        try:
            async with asyncio.timeout(job.seconds):
                return await worker.ask(job)
        # TimeoutError is an OSError, so it comes first.
        except TimeoutError as error:
            raise self._failed(FailureReason.TIMEOUT) from error
        except OSError as error:
            raise self._failed(FailureReason.WORKER_DIED) from error

    def _failed(self, reason: FailureReason) -> ExtractionFailed:
        return ExtractionFailed(FailureReason.CLOSED if self._closed else reason)

    def _put_back(self, worker: Worker, *, healthy: bool) -> None:
        self._busy.discard(worker)
        worn = worker.pages >= self._limits.pages_per_worker
        if healthy and not worn and not self._closed:
            self._idle.append(worker)
        else:
            self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        worker.kill()
        # Not in the task: one that is cancelled before its first step, as at the end of a loop, runs
        # nothing.
        worker.close()
        reaping = asyncio.get_running_loop().create_task(worker.reap())
        self._reaping.add(reaping)
        reaping.add_done_callback(self._reaping.discard)


def _started() -> Worker:
    try:
        return Worker()
    except OSError as error:
        raise ExtractionFailed(FailureReason.WORKER_UNAVAILABLE) from error


def _import_path() -> list[str]:
    """The host's import path, absolute, with the folder this package was found in first."""
    here = str(Path(__file__).resolve().parent.parent)
    found = (str(Path(entry or ".").absolute()) for entry in sys.path)
    return list(dict.fromkeys((here, *found)))
