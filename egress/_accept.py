"""Takes connections from a listener while there are descriptors for them.

asyncio's own server answers a process without a free descriptor with one traceback for each place
of its backlog, and tries again a second later. Here that is a pause: who wants in waits in the
kernel, and one line tells of it. So that it stays rare, whoever listens takes no more connections
than the descriptor limit has room for.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from typing import Final

__all__ = ("Acceptor", "capacity")

_log: Final = logging.getLogger(__name__)

# For listeners, logs, look-ups, and what else the process has open.
_RESERVED: Final = 128
_LEAST: Final = 4
_BATCH: Final = 16
_BACKLOG: Final = 1024
_RETRY_SECONDS: Final = 0.1
_TELL_SECONDS: Final = 60.0
# Source: accept(2). The connection was gone before it was taken; the next one may be there.
_GONE: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
    }
)


def capacity(wanted: int, *, sockets_each: int) -> int:
    """How many connections of *sockets_each* the descriptor limit has room for, *wanted* at most.

    The limit as it is now, less what the process needs beside them; never less than 4.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(_LEAST, (soft - _RESERVED) // sockets_each))


def _always() -> bool:
    return True


class Acceptor:
    """Hands every connection of one listener to a protocol that *factory* makes.

    Args:
        listener: Bound and not yet listening, or listening; taken over and closed.
        factory: Makes the protocol of one connection.
        has_room: Asked before a connection is taken; when it says no, connections wait in the
            kernel until `resume` is called.
    """

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        *,
        has_room: Callable[[], bool] = _always,
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._adopting = set[asyncio.Task[object]]()
        self._retry: asyncio.TimerHandle | None = None
        self._told: float | None = None
        self._closed = False
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._loop.add_reader(listener, self._take)

    def resume(self) -> None:
        """There is room again."""
        self._retry = None
        if not self._closed:
            self._loop.add_reader(self._listener, self._take)

    def close(self) -> None:
        """Takes no more. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    async def aclose(self) -> None:
        """Closes, and waits until every connection that was taken has its protocol or is closed."""
        self.close()
        for task in tuple(self._adopting):
            task.cancel()
        await asyncio.gather(*self._adopting, return_exceptions=True)

    def _take(self) -> None:
        for _ in range(_BATCH):
            if not self._has_room():
                self._loop.remove_reader(self._listener)
                return
            try:
                taken, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._pause(error)
                return
            self._adopt(taken)

    def _pause(self, error: OSError) -> None:
        """Nothing more can be taken for a while; a listener that stays readable would spin."""
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(_RETRY_SECONDS, self.resume)
        now = self._loop.time()
        if self._told is None or now - self._told >= _TELL_SECONDS:
            self._told = now
            name = errno.errorcode.get(error.errno or 0, "an error")
            _log.warning("connections wait, for accept() ends with %s; raise ulimit -n", name)

    def _adopt(self, taken: socket.socket) -> None:
        adopting: asyncio.Task[object] = self._loop.create_task(
            self._loop.connect_accepted_socket(self._factory, taken)
        )
        self._adopting.add(adopting)

        # Not a `finally` inside: a task that is cancelled before its first step runs nothing.
        def adopted(_: asyncio.Task[object]) -> None:
            self._adopting.discard(adopting)
            if adopting.cancelled() or adopting.exception() is not None:
                taken.close()

        adopting.add_done_callback(adopted)
