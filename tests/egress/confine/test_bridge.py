"""The bridge between a namespace's listener and the proxy: ends, cuts, and what stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from egress._confine_bridge import _End, bridged

pytestmark = pytest.mark.loopback

_Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _reset(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextlib.asynccontextmanager
async def _bridge(served: _Served) -> AsyncIterator[int]:
    """The port of a bridge to a server that hands each connection to *served*."""
    server = await asyncio.start_server(served, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    async with server, bridged(listener, port=server.sockets[0].getsockname()[1]):
        yield port


async def _shut(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("by", ["proxy", "command"])
def test_a_cut_stays_a_cut(by: str) -> None:
    """What one end resets ends with a reset at the other: half an answer must not look whole."""
    cut = asyncio.Event()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        if by == "proxy":
            await cut.wait()
            _reset(writer)
            return
        with contextlib.suppress(ConnectionResetError):
            await reader.read(-1)
            pytest.fail("an end that nobody has sent")
        cut.set()
        await _shut(writer)

    async def main() -> None:
        async with asyncio.timeout(30), _bridge(served) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert b"half" == await reader.readexactly(4)
            if by == "proxy":
                cut.set()
                with pytest.raises(ConnectionResetError):
                    await reader.read(-1)
            else:
                _reset(writer)
                await cut.wait()
            await _shut(writer)

    asyncio.run(main())


@pytest.mark.parametrize(("soft", "pairs"), [(130, 4), (152, 6)])
def test_a_full_bridge_lets_others_wait(soft: int, pairs: int) -> None:
    """As many pairs as the descriptor limit has room for; the next is served when one has ended."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        await reader.read(-1)
        await _shut(writer)

    async def main() -> None:
        async with asyncio.timeout(20), _bridge(served) as port:
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            for _, writer in clients:
                writer.write(b"x")
            answers = [asyncio.ensure_future(reader.readexactly(1)) for reader, _ in clients]
            # Those that are not served have nothing to tell; whoever is served is so by now.
            await asyncio.gather(*answers[:pairs])
            await asyncio.sleep(0.1)
            assert pairs == sum(answer.done() for answer in answers)
            for answer, (_, writer) in zip(answers, clients, strict=True):
                assert b"x" == await answer
                await _shut(writer)

    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_what_has_ended_in_both_directions_is_closed() -> None:
    """Nothing of a connection stays open once both ends have said all they had to say."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(-1)).upper())
        await _shut(writer)

    async def main() -> None:
        async with asyncio.timeout(20), _bridge(served) as port:
            before = _descriptors()
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"abc")
                writer.write_eof()
                assert b"ABC" == await reader.read(-1)
                await _shut(writer)
            # The timeout above bounds the wait; nothing tells that a pair is closed.
            while _descriptors() > before + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    asyncio.run(main())


class _DeadSocket:
    """Every option ends as on a socket whose peer has reset it."""

    def setsockopt(self, *arguments: object) -> None:
        del arguments
        raise OSError(errno.EINVAL, "gone")


class _DeadTransport(asyncio.Transport):
    """A transport of a dead socket that its loop has not noticed yet."""

    def __init__(self) -> None:
        super().__init__({"socket": _DeadSocket()})
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_a_dead_socket_can_be_cut() -> None:
    """The option that makes it a reset may fail; it is closed all the same."""
    one, other = _End(), _End()
    dead = _DeadTransport()
    one.other, other.transport = other, dead
    one.connection_lost(ConnectionResetError())

    assert dead.is_aborted


@pytest.mark.parametrize("turns", range(5))
def test_leaving_a_bridge_leaves_nothing_of_who_just_came(turns: int) -> None:
    """Neither a task nor a socket, however far the connection had got."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(-1)
        await _shut(writer)

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = await asyncio.start_server(served, "127.0.0.1", 0)
        async with server:
            async with bridged(listener, port=server.sockets[0].getsockname()[1]):
                client = socket.create_connection(listener.getsockname())
                for _ in range(turns):
                    await asyncio.sleep(0)
            assert not {each for each in asyncio.all_tasks() if "accepted_socket" in repr(each)}
            client.close()

    asyncio.run(main())
