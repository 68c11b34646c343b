"""Hands what arrives at the listener inside a namespace to the proxy outside.

The listener was made inside and came out as a descriptor: it keeps its namespace, so a connection
to it starts inside and ends here. No path and no second process is needed. The bridge knows one
address to dial, the proxy's; what the bytes ask for is the proxy's to judge.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

from egress._accept import Acceptor, capacity

__all__ = ("bridged",)

_LOOPBACK: Final = "127.0.0.1"
_MOST: Final = 4096
# Two here, and two in the proxy, which may be of this process.
_SOCKETS_EACH: Final = 4
_NO_LINGER: Final = struct.pack("ii", 1, 0)


def _reset(transport: asyncio.Transport) -> None:
    """Closes so that the other end sees that something is missing (RST, not FIN)."""
    found = transport.get_extra_info("socket")
    if found is not None:
        # The socket may be dead already; it is closed all the same.
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def _nobody() -> None:
    """Nobody waits for room yet."""


class _End(asyncio.Protocol):
    """One end of a pair: what comes in here goes out at the other, half-closes too.

    Attributes:
        ended: Whether its peer has said that it sends no more.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reads nothing before the other end exists."""
        self.transport = cast("asyncio.Transport", transport)
        # Not at once: before Python 3.11.4 a transport begins to read after this call, whatever was
        # asked in it. The other end needs at least one turn of the loop more than this.
        asyncio.get_running_loop().call_soon(self._pause_unless_paired)

    def _pause_unless_paired(self) -> None:
        if self.other is None and self.transport is not None:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Passes the bytes on."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Passes the end on and stays open for what the other end still has to say."""
        self.ended = True
        if self.other is not None and self.other.ended:
            # Nobody else closes what has ended in both directions.
            self.close()
            self.other.close()
            return True
        if self.other is not None and self.other.transport is not None:
            # The other end may be gone already; then this one is closing too.
            with suppress(OSError, RuntimeError):
                self.other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the other end after what was written to it; what was cut ends as a cut there."""
        if self.other is None or self.other.transport is None:
            return
        if exc is None and self.ended:
            self.other.transport.close()
        else:
            _reset(self.other.transport)

    def close(self) -> None:
        """Closes when everything is written."""
        if self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        """The peer here is slow: the other end stops reading."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer here has caught up."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


class _Bridge:
    """Every pair of one listener.

    Attributes:
        made_room: Called when a connection can be taken again.
    """

    def __init__(self, port: int, most: int) -> None:
        self.made_room: Callable[[], None] = _nobody
        self._port = port
        self._most = most
        self._dialling = set[asyncio.Task[None]]()
        self._inside = set[_End]()

    def accept(self) -> _End:
        end = _Inside(self)
        self._inside.add(end)
        return end

    def dial_for(self, inside: _End) -> None:
        task = asyncio.get_running_loop().create_task(self._dial_for(inside))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial_for(self, inside: _End) -> None:
        outside = _End()
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: outside, _LOOPBACK, self._port)
        except OSError:
            if inside.transport is not None:
                inside.transport.abort()
            return
        if inside.transport is None or inside.transport.is_closing():
            if outside.transport is not None:
                outside.transport.close()
            return
        inside.other, outside.other = outside, inside
        for end in (inside, outside):
            if end.transport is not None:
                end.transport.resume_reading()

    def has_room(self) -> bool:
        """Whether one more pair can be open; who waits, waits in the kernel of the namespace."""
        return len(self._inside) < self._most

    def forget(self, inside: _End) -> None:
        was_full = not self.has_room()
        self._inside.discard(inside)
        if was_full and self.has_room():
            self.made_room()

    async def aclose(self) -> None:
        for task in tuple(self._dialling):
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        for end in tuple(self._inside):
            for each in (end, end.other):
                if each is not None and each.transport is not None:
                    each.transport.abort()
        # The transports tell their protocols in the next turn of the loop.
        await asyncio.sleep(0)


class _Inside(_End):
    """The end that a process of the namespace talks to."""

    def __init__(self, bridge: _Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Dials the proxy for it."""
        super().connection_made(transport)
        self._bridge.dial_for(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Is no longer counted."""
        self._bridge.forget(self)
        super().connection_lost(exc)


@asynccontextmanager
async def bridged(listener: socket.socket, *, port: int) -> AsyncIterator[None]:
    """Every connection to *listener* is handed to 127.0.0.1:*port*, until the end of the block.

    Takes *listener* over and closes it.
    """
    bridge = _Bridge(port, capacity(_MOST, sockets_each=_SOCKETS_EACH))
    try:
        acceptor = Acceptor(listener, bridge.accept, has_room=bridge.has_room)
    except BaseException:
        listener.close()
        raise
    bridge.made_room = acceptor.resume
    try:
        yield
    finally:
        await acceptor.aclose()
        await bridge.aclose()
