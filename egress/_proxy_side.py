"""One of the two sockets of a proxied connection: read into a buffer at first, spliced later.

A spliced side writes what it receives to its peer at once. Back-pressure holds the memory: while
the peer's socket takes no more, nothing is read here. No task and no thread belongs to a side.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final, Protocol, cast

_BUFFER_BYTES: Final = 65_536
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class SideOwner(Protocol):
    """The connection that a side belongs to."""

    def side_opened(self, side: Side) -> None:
        """Its socket is open."""

    def side_received(self, side: Side, count: int) -> bool:
        """Counts; False when nothing may be done with these bytes."""
        ...

    def side_ended(self, side: Side) -> None:
        """Its peer will send no more; the other direction may go on."""

    def side_lost(self, side: Side, error: Exception | None) -> None:
        """Its socket is gone."""


class Side(asyncio.Protocol):
    """One socket.

    Attributes:
        ended: Whether nothing more will come: the other end has said so, or the socket is gone.
        lost: Whether the socket is gone.
        cut: Whether the socket is gone and the other end had not said that it sends no more: it
            was reset, or closed by us. What was received is then no whole of anything.
        buffer: What was received and not yet taken.
    """

    __slots__ = (
        "_blocked",
        "_discarding",
        "_feeder",
        "_owner",
        "_paused",
        "_peer",
        "_waiters",
        "buffer",
        "cut",
        "ended",
        "lost",
        "transport",
    )

    def __init__(self, owner: SideOwner) -> None:
        self.transport: asyncio.Transport | None = None
        self.buffer = bytearray()
        self.ended = False
        self.lost = False
        self.cut = False
        self._owner = owner
        self._peer: Side | None = None
        self._feeder: Side | None = None
        self._paused = False
        self._blocked = False
        self._discarding = False
        self._waiters: set[asyncio.Future[None]] = set()

    # ── what asyncio calls ────────────────────────────────────────────────────────────────────

    # Nothing pauses in here: before Python 3.11.4 a transport forgets a pause that was asked for
    # while its connection is made.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._owner.side_opened(self)

    def data_received(self, data: bytes) -> None:
        if not self._owner.side_received(self, len(data)) or self._discarding:
            return
        peer = self._peer
        if peer is not None:
            peer.write(data)
            return
        self.buffer += data
        if len(self.buffer) >= _BUFFER_BYTES:
            self._pause()
        self._wake()

    def eof_received(self) -> bool:
        self.ended = True
        if self._peer is not None:
            self._peer.write_eof()
        self._wake()
        self._owner.side_ended(self)
        # The other direction stays open until its own end.
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut = not self.ended
        self.lost = self.ended = True
        self._blocked = False
        self._wake()
        self._owner.side_lost(self, exc)
        self._peer = self._feeder = None

    def pause_writing(self) -> None:
        self._blocked = True
        if self._feeder is not None:
            # The two sides of one splice are one unit.
            self._feeder._pause()  # noqa: SLF001

    def resume_writing(self) -> None:
        self._blocked = False
        if self._feeder is not None:
            # The two sides of one splice are one unit.
            self._feeder._resume()  # noqa: SLF001
        self._wake()

    # ── reading and writing, before or without a splice ───────────────────────────────────────

    async def more(self) -> bool:
        """Waits until there is more in `buffer` than now; False when nothing will come."""
        before = len(self.buffer)
        if self._paused:
            # Whoever asks for more has a bound of its own.
            self._resume()
        while len(self.buffer) == before and not self.ended:
            await self._wait()
        return len(self.buffer) > before

    async def read(self) -> bytes:
        """What was received, waiting for some; b"" when nothing will come."""
        if not self.buffer:
            self._resume()
            await self.more()
        return self.take()

    def take(self) -> bytes:
        """What was received, without waiting."""
        taken, self.buffer = self.buffer, bytearray()
        return bytes(taken)

    async def drained(self) -> None:
        """Waits until the socket takes more."""
        while self._blocked and not self.lost:
            await self._wait()

    async def flushed(self) -> None:
        """Waits until the socket has taken everything."""
        if self.transport is not None and not self.lost:
            self.transport.set_write_buffer_limits(high=0)
        await self.drained()

    def write(self, data: bytes) -> None:
        """Sends, or drops when the socket is going."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def write_eof(self) -> None:
        """Says that no more is sent, or drops a socket that cannot be told: it was reset."""
        if self.transport is None or self.transport.is_closing():
            return
        try:
            self.transport.write_eof()
        except OSError:
            self.transport.abort()

    def close(self) -> None:
        """Closes when everything is written."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Closes now."""
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """Closes now, and so that the other end sees that something is missing (RST, not FIN)."""
        if self.transport is None:
            return
        found = self.transport.get_extra_info("socket")
        # One that is closing ends clean when everything is sent, and else is cut as well.
        closing = self.transport.is_closing()
        if found is not None and (not closing or self.transport.get_write_buffer_size()):
            # The socket may be dead or gone; it is closed all the same.
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    def discard(self) -> None:
        """Takes no more notice of what is received."""
        self._discarding, self.buffer = True, bytearray()
        self._resume()

    def splice(self, peer: Side) -> None:
        """From now on what is received goes to *peer*, and what *peer* receives goes nowhere yet."""
        self._peer = peer
        peer._feeder = self
        held = self.take()
        if held:
            peer.write(held)
        if self.ended:
            peer.write_eof()
        # A peer that is blocked already has told nobody of it.
        if peer._blocked:
            self._pause()
        else:
            self._resume()

    def _pause(self) -> None:
        if self.transport is not None and not self._paused and not self.ended:
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and self._paused:
            self._paused = False
            self.transport.resume_reading()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
