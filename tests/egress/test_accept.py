"""Taking connections while there are descriptors, and waiting quietly while there are none."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from typing import Any

import pytest

from egress._accept import Acceptor, capacity

pytestmark = pytest.mark.loopback


class _Listener(socket.socket):
    """A listener whose next calls of accept end with the errors that it is given."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            raise OSError(self.errors.pop(0), "not now")
        return super().accept()


def _listener(*errors: int) -> _Listener:
    listener = _Listener(socket.AF_INET, socket.SOCK_STREAM)
    listener.errors = list(errors)
    listener.bind(("127.0.0.1", 0))
    return listener


class _Greets(asyncio.Protocol):
    """Says hello and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")
        transport.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_a_descriptor_connections_wait_and_one_line_tells(
    caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """No traceback, no spin, and everybody is served once there is room again."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        listener = _listener(*[error] * 3)
        address = listener.getsockname()
        acceptor = Acceptor(listener, _Greets)
        async with asyncio.timeout(5):
            clients = [await asyncio.open_connection(*address) for _ in range(20)]
            for reader, writer in clients:
                assert b"hello" == await reader.read(-1)
                writer.close()
                await writer.wait_closed()
        assert [] == listener.errors
        await acceptor.aclose()

    caplog.set_level(logging.DEBUG)
    asyncio.run(main())
    assert [] == told
    [line] = [each for each in caplog.records if each.name == "egress._accept"]
    assert errno.errorcode[error] in line.message
    assert line.exc_info is None


def test_a_connection_that_has_gone_already_is_passed_over() -> None:
    """The next one is taken in the same turn."""

    async def main() -> None:
        listener = _listener(errno.ECONNABORTED, errno.EPROTO)
        acceptor = Acceptor(listener, _Greets)
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            assert b"hello" == await reader.read(-1)
            writer.close()
            await writer.wait_closed()
        await acceptor.aclose()

    asyncio.run(main())


def test_who_finds_no_room_waits_in_the_kernel() -> None:
    """Nothing is taken until the owner says that there is room again."""
    room = [False]

    async def main() -> None:
        listener = _listener()
        acceptor = Acceptor(listener, _Greets, has_room=lambda: room[0])
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        room[0] = True
        acceptor.resume()
        assert b"hello" == await asyncio.wait_for(reader.read(-1), 5)
        writer.close()
        await writer.wait_closed()
        await acceptor.aclose()
        acceptor.resume()

    asyncio.run(main())


def test_closing_leaves_no_socket_that_was_just_taken() -> None:
    """A connection whose protocol is not made yet is closed; its task never ran."""

    async def main() -> None:
        listener = _listener()
        acceptor = Acceptor(listener, _Greets)
        with socket.create_connection(listener.getsockname()) as client:
            acceptor._take()
            assert 1 == len(acceptor._adopting)
            await acceptor.aclose()
            await asyncio.sleep(0)
            client.settimeout(5)
            assert client.recv(16) in {b"", b"hello"}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("soft", "wanted", "each", "room"),
    [(1024, 8192, 2, 448), (1024, 100, 2, 100), (1024, 8192, 4, 224), (130, 8192, 2, 4)],
)
def test_connections_fit_the_descriptor_limit(soft: int, wanted: int, each: int, room: int) -> None:
    """What the process needs beside them is left, and a few are always taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        assert room == capacity(wanted, sockets_each=each)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
