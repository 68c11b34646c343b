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
        async with asyncio.timeout(30):
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


async def _turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_without_a_descriptor_the_loop_does_not_spin() -> None:
    """The listener stays readable meanwhile, and is not looked at before the pause is over."""

    async def main() -> None:
        listener = _listener(*[errno.EMFILE] * 1000)
        acceptor = Acceptor(listener, _Greets)
        with socket.create_connection(listener.getsockname()):
            await _turns()
            assert 990 < len(listener.errors) < 1000
            await acceptor.aclose()

    asyncio.run(main())


def test_without_room_the_loop_does_not_spin() -> None:
    """The listener stays readable meanwhile, and nobody is asked again before `resume`."""
    asked: list[bool] = []

    def has_room() -> bool:
        asked.append(False)
        return False

    async def main() -> None:
        listener = _listener()
        acceptor = Acceptor(listener, _Greets, has_room=has_room)
        with socket.create_connection(listener.getsockname()):
            await _turns()
            assert [False] == asked
            await acceptor.aclose()

    asyncio.run(main())


def test_nobody_there_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A listener that turns out to be empty is neither told of nor paused."""

    async def main() -> None:
        acceptor = Acceptor(_listener(), _Greets)
        acceptor._take()
        assert acceptor._retry is None
        await acceptor.aclose()

    asyncio.run(main())
    assert [] == [each for each in caplog.records if each.name == "egress._accept"]


def test_one_turn_takes_a_batch_and_leaves_the_loop_to_others() -> None:
    """A flood of connections does not hold the loop; the rest is taken in later turns."""

    async def main() -> None:
        listener = _listener()
        acceptor = Acceptor(listener, _Greets)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(40)]
        acceptor._take()
        assert 16 == len(acceptor._adopting)
        for client in clients:
            client.setblocking(False)
            async with asyncio.timeout(30):
                assert b"hello" == await asyncio.get_running_loop().sock_recv(client, 16)
            client.close()
        await acceptor.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
    ],
)
def test_a_connection_that_has_gone_already_is_passed_over(
    caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """The next one is taken in the same turn, and nothing is told: it is no fault of ours."""

    async def main() -> None:
        listener = _listener(error)
        acceptor = Acceptor(listener, _Greets)
        with socket.create_connection(listener.getsockname()):
            acceptor._take()
            assert 1 == len(acceptor._adopting)
            await acceptor.aclose()

    asyncio.run(main())
    assert [] == [each for each in caplog.records if each.name == "egress._accept"]


def test_a_connection_without_a_protocol_is_closed() -> None:
    """Where the factory fails, its client is not left waiting for ever."""
    told: list[dict[str, Any]] = []

    def fail() -> asyncio.Protocol:
        raise ValueError("no protocol")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        listener = _listener()
        acceptor = Acceptor(listener, fail)
        with socket.create_connection(listener.getsockname()) as client:
            client.setblocking(False)
            async with asyncio.timeout(30):
                assert b"" == await asyncio.get_running_loop().sock_recv(client, 16)
            await acceptor.aclose()

    asyncio.run(main())
    assert [] == told


class _MovableLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on."""

    moved: float = 0.0

    def time(self) -> float:
        return super().time() + self.moved


def test_a_pause_that_goes_on_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Not ten times a second, and not once for ever."""
    told = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _MovableLoop)
        acceptor = Acceptor(_listener(), _Greets)
        for seconds in (0, 1, 58, 2, 30):
            loop.moved += seconds
            acceptor._pause(OSError(errno.EMFILE, "no room"))
            told.append(len(caplog.records))
            acceptor.resume()
        await acceptor.aclose()

    with asyncio.Runner(loop_factory=_MovableLoop) as runner:
        runner.run(main())
    assert [1, 1, 1, 2, 2] == told


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
