"""An address that does not answer: fallback to the next one, the deadline, and cancelling."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from egress import (
    AddressPolicy,
    EgressPolicy,
    FetchLimits,
    GuardedClient,
    RunMeter,
    parse_allowlist,
)
from egress.errors import ConnectFailed, DeadlineExceeded
from egress.testing import ScriptedResolver

pytestmark = pytest.mark.loopback

_SILENT, _ANSWERING = "127.0.0.5", "127.0.0.1"
_POLICY = EgressPolicy(
    allowlist=parse_allowlist(["a.test:*"]), address=AddressPolicy(allow_private_addresses=True)
)


@contextlib.contextmanager
def _silent(port: int) -> Iterator[None]:
    """A listener that takes no more connections: its queue is full, and SYNs are dropped."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind((_SILENT, port))
        listener.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        probe = held.enter_context(socket.socket())
        probe.settimeout(0.1)
        try:
            probe.connect(listener.getsockname())
        except TimeoutError:
            yield
        else:
            pytest.skip("this kernel takes more connections than a listener asks for")


@contextlib.asynccontextmanager
async def _answering() -> AsyncIterator[int]:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(page, _ANSWERING, 0) as server:
        yield server.sockets[0].getsockname()[1]


def _client(addresses: Sequence[str], meter: RunMeter | None = None) -> GuardedClient:
    return GuardedClient(_POLICY, resolver=ScriptedResolver({"a.test": addresses}), meter=meter)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Runs *main* and finds the same descriptors open after it as before."""
    before = _descriptors()
    asyncio.run(main)

    assert before == _descriptors()


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("order", [(_SILENT, _ANSWERING), (_ANSWERING, _SILENT)])
def test_a_silent_address_does_not_hold_up_the_next(order: tuple[str, str]) -> None:
    """Long before the deadline the other vetted address is tried, and it answers."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with _answering() as port, _client(order) as client:
            with _silent(port):
                started = loop.time()
                fetched = await client.fetch(f"http://a.test:{port}/")
                assert b"ok" == fetched.body
                assert loop.time() - started < 15

    _run(main())


def test_the_deadline_covers_the_connection() -> None:
    """With no other address to try, time is what ends it: not a failed connection."""

    async def main() -> None:
        async with _answering() as port, _client([_SILENT]) as client:
            with _silent(port):
                with pytest.raises(DeadlineExceeded) as caught:
                    await client.fetch(
                        f"http://a.test:{port}/", limits=FetchLimits(timeout_seconds=0.3)
                    )
                assert caught.value.retryable

    _run(main())


def test_cancelling_while_connecting_leaves_no_socket() -> None:
    """Neither the one that hangs nor the one that would have come after it."""

    async def main() -> None:
        meter = RunMeter()
        async with _answering() as port, _client([_SILENT, "127.0.0.6"], meter) as client:
            with _silent(port):
                closed = _descriptors()
                task = asyncio.create_task(client.fetch(f"http://a.test:{port}/"))
                async with asyncio.timeout(30):
                    # A connection that is being opened tells nobody.
                    while _descriptors() == closed:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                before = _descriptors()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert before == _descriptors() + 1
                assert 0 == meter.running

    _run(main())


def test_all_addresses_refusing_is_a_failed_connection() -> None:
    """Told at once, apart from time and TLS."""

    async def main() -> None:
        with socket.create_server((_ANSWERING, 0)) as free:
            port = free.getsockname()[1]
        async with _client(["127.0.0.6", "127.0.0.7"]) as client:
            with pytest.raises(ConnectFailed) as caught:
                await client.fetch(f"http://a.test:{port}/")
            assert "ECONNREFUSED" in str(caught.value)

    _run(main())
