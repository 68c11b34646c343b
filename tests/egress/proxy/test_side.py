"""One socket of the proxy whose other end does what it likes, and a transport that says so."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from egress._proxy_side import Side


class _Owner:
    """Counts nothing and allows everything."""

    def side_opened(self, side: Side) -> None:
        del side

    def side_received(self, side: Side, count: int) -> bool:
        del side
        return count > 0

    def side_ended(self, side: Side) -> None:
        del side

    def side_lost(self, side: Side, error: Exception | None) -> None:
        del side, error


class _DeadSocket:
    """Every call ends as on a socket whose peer has reset it."""

    def setsockopt(self, *arguments: object) -> None:
        del arguments
        raise OSError(errno.EINVAL, "gone")


class _Transport(asyncio.Transport):
    """A transport of a dead socket that its loop has not noticed yet; keeps what it was told."""

    def __init__(self) -> None:
        super().__init__({"socket": _DeadSocket()})
        self.calls: list[str] = []

    def is_closing(self) -> bool:
        return "abort" in self.calls

    def get_write_buffer_size(self) -> int:
        return 0

    def write_eof(self) -> None:
        self.calls.append("write_eof")
        raise OSError(errno.ENOTCONN, "gone")

    def abort(self) -> None:
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")


def _side() -> tuple[Side, _Transport]:
    side, transport = Side(_Owner()), _Transport()
    side.connection_made(transport)
    return side, transport


def test_the_end_of_a_dead_socket_is_no_error() -> None:
    """What cannot be told that no more is sent is dropped."""
    side, transport = _side()
    side.write_eof()
    side.write_eof()

    assert ["write_eof", "abort"] == transport.calls


def test_a_dead_socket_can_be_reset() -> None:
    """The option that makes it a reset may fail; it is closed all the same."""
    side, transport = _side()
    side.reset()

    assert ["abort"] == transport.calls


def test_a_connection_that_is_made_is_not_paused() -> None:
    """Before Python 3.11.4 a transport forgets a pause that is asked for in `connection_made`."""
    side, transport = _side()
    other, _ = _side()
    assert [] == transport.calls
    other.splice(side)
    side.splice(other)
    assert [] == transport.calls


def test_everybody_who_waits_on_a_side_is_woken() -> None:
    """One waits for bytes and another for room, of the same socket: neither takes the other's turn."""

    async def main() -> None:
        side, _ = _side()
        side.pause_writing()
        reading = asyncio.create_task(side.read())
        writing = [asyncio.create_task(side.drained()) for _ in range(2)]
        await asyncio.sleep(0)
        side.data_received(b"bytes")
        async with asyncio.timeout(30):
            assert b"bytes" == await reading
        assert not any(each.done() for each in writing)
        writing[0].cancel()
        await asyncio.sleep(0)
        side.resume_writing()
        async with asyncio.timeout(30):
            await writing[1]

    asyncio.run(main())


@pytest.mark.loopback
@pytest.mark.parametrize("first", ["end", "reset"])
def test_a_reset_is_told_from_an_end(first: str) -> None:
    """`cut` holds only when the other end had not said that it sends no more."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, side = await loop.create_connection(lambda: Side(_Owner()), sock=ours)
        if first == "end":
            theirs.shutdown(socket.SHUT_WR)
            assert not await side.more()
        transport.abort()
        await asyncio.sleep(0)
        assert side.lost
        assert (first == "reset") == side.cut
        theirs.close()

    asyncio.run(main())


@pytest.mark.loopback
def test_a_client_that_resets_leaves_no_traceback(kit: Any) -> None:
    """The end of the upstream meets a client that is gone, in the same turn of the loop."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)

        async with kit.serve(leave) as place, kit.world(port=place.port) as world:
            for _ in range(20):
                _, writer, _ = await world.tunnel("a.test:22", first=b"x")
                found = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0] + [0] * 4))
                writer.transport.abort()
            await world.settled(20)

    kit.run(main())
    assert [] == told
