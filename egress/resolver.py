"""Names answered by the operating system, in threads of our own. No HTTP client is loaded here.

A look-up of the system cannot be stopped: a deadline ends the wait for it, and its thread goes on
for as long as the system likes. In a shared pool a few names whose servers are silent would keep
everybody else's look-ups waiting. So each resolver, which is one run's, has a share: at most a few
look-ups at one time, and one of its own always, whatever the others do.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ("SystemResolver",)

_PER_OWNER: Final = 8
_IN_ALL: Final = 64

_Found = Sequence[str]
_LookUp = Callable[[str, int], _Found]


def _system_look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [_address_text(sockaddr) for _, _, _, _, sockaddr in found]


def _address_text(sockaddr: tuple[Any, ...]) -> str:
    """The address, with its scope id when it has one, so that R10 can refuse it."""
    scope = sockaddr[3] if len(sockaddr) == 4 else 0
    text = str(sockaddr[0])
    return f"{text}%{scope}" if scope and "%" not in text else text


class _Job:
    """One look-up and the coroutine that waits for it."""

    __slots__ = ("_loop", "future", "host", "look_up", "port")

    def __init__(self, look_up: _LookUp, host: str, port: int) -> None:
        self.look_up = look_up
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_Found] = self._loop.create_future()
        self.host = host
        self.port = port

    def tell(self, found: _Found | BaseException) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._settle, found)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits.
            return

    def _settle(self, found: _Found | BaseException) -> None:
        if self.future.done():
            return
        if isinstance(found, BaseException):
            self.future.set_exception(found)
        else:
            self.future.set_result(found)


class Lookups:
    """Every look-up of this process, shared out between their owners.

    A thread for each that runs, none for those that wait. The threads are daemons: a look-up that
    hangs keeps no process from ending.

    Args:
        per_owner: At one time, of one owner.
        in_all: At one time; above it an owner has one all the same.
    """

    def __init__(self, *, per_owner: int = _PER_OWNER, in_all: int = _IN_ALL) -> None:
        self._per_owner = per_owner
        self._in_all = in_all
        self._lock = threading.Lock()
        # Owners with something waiting, the next in turn first.
        self._waiting: dict[object, deque[_Job]] = {}
        self._running: dict[object, int] = {}
        self._count = 0

    async def run(self, owner: object, look_up: _LookUp, host: str, port: int) -> _Found:
        """What *look_up* finds, once it is *owner*'s turn.

        Raises:
            OSError: It failed, or no thread could be had.
        """
        job = _Job(look_up, host, port)
        with self._lock:
            self._waiting.setdefault(owner, deque()).append(job)
        self._start()
        try:
            return await job.future
        finally:
            self._forget(owner, job)

    def _forget(self, owner: object, job: _Job) -> None:
        """Takes a job whose wait has ended out of the queue, if it is still there."""
        with self._lock:
            queue = self._waiting.get(owner)
            if queue is not None and job in queue:
                queue.remove(job)
                if not queue:
                    del self._waiting[owner]

    def _start(self) -> None:
        """Starts what may run now."""
        while (taken := self._next()) is not None:
            owner, job = taken
            thread = threading.Thread(
                target=self._work, args=(owner, job), name="egress-lookup", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self._done(owner)
                job.tell(OSError(f"no thread for a look-up: {error}"))

    def _next(self) -> tuple[object, _Job] | None:
        with self._lock:
            for owner, queue in self._waiting.items():
                running = self._running.get(owner, 0)
                if running and (running >= self._per_owner or self._count >= self._in_all):
                    continue
                job = queue.popleft()
                # To the end of the line, if there is more of it.
                del self._waiting[owner]
                if queue:
                    self._waiting[owner] = queue
                self._running[owner] = running + 1
                self._count += 1
                return owner, job
        return None

    def _work(self, owner: object, job: _Job) -> None:
        found: _Found | BaseException
        try:
            found = job.look_up(job.host, job.port)
        # Whatever it is belongs to the one who waits.
        except BaseException as error:  # noqa: BLE001
            found = error
        self._done(owner)
        job.tell(found)
        self._start()

    def _done(self, owner: object) -> None:
        with self._lock:
            self._count -= 1
            left = self._running[owner] - 1
            if left:
                self._running[owner] = left
            else:
                del self._running[owner]


# Of the whole process, because its threads are: who wants other shares gives their own.
_LOOKUPS: Final = Lookups()


class SystemResolver:
    """Answers names with the operating system's resolver; one for each run.

    A look-up cannot be cancelled: a deadline ends the wait for it, not its thread. At most eight of
    one resolver run at one time, and the share of one does not wait for another's.

    Args:
        lookups: Who shares the threads out; all of the process by default.
    """

    def __init__(self, lookups: Lookups | None = None) -> None:
        self._lookups = lookups or _LOOKUPS

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of *host*, in the system's order of preference."""
        return await self._lookups.run(self, _system_look_up, host, port)
