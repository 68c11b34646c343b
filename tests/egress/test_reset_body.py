"""A body that ends with its connection is whole only when the connection was closed in order."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from egress import EgressPolicy, GuardedClient, parse_allowlist
from egress.errors import FetchError

pytestmark = pytest.mark.loopback

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"


async def _fetched(*, reset: bool) -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_HEAD + b"half of the answer")
        await writer.drain()
        await asyncio.sleep(0.1)
        if reset:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    policy = EgressPolicy(allowlist=parse_allowlist([f"127.0.0.1:{port}"]))
    try:
        async with GuardedClient(policy) as client:
            return (await client.fetch(f"http://127.0.0.1:{port}/")).body
    finally:
        server.close()
        await server.wait_closed()


def test_a_reset_is_not_the_end_of_a_body() -> None:
    """Half an answer never looks like a whole one."""
    with pytest.raises(FetchError):
        asyncio.run(_fetched(reset=True))


def test_a_close_is_the_end_of_a_body_without_a_length() -> None:
    """That is how such a body says that it is whole."""
    assert b"half of the answer" == asyncio.run(_fetched(reset=False))
