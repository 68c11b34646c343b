"""What a proxy says before TLS is never read as if it had come through TLS."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from egress import EgressPolicy, GuardedClient, parse_allowlist, proxied_fetch
from egress.errors import FetchError

pytestmark = pytest.mark.loopback

_FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nFORGED"
_TRUE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nTRUE"
_READ_BYTES = 65_536


def _head(size: int) -> bytes:
    start = b"HTTP/1.1 200 Connection established\r\nX: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_READ_BYTES):
            sink.write(data)
            await sink.drain()


@pytest.mark.parametrize("size", [200, _READ_BYTES - 1, _READ_BYTES, _READ_BYTES + 1])
def test_bytes_that_a_proxy_slips_in_before_tls_are_not_the_page(size: int, authority: Any) -> None:
    """However long the proxy's head is, the forged answer behind it is refused or never read."""

    async def main() -> bytes:
        copies: set[asyncio.Task[None]] = set()
        ends: list[asyncio.StreamWriter] = []
        lied = asyncio.Event()

        async def genuine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.append(writer)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_TRUE)
                await writer.drain()

        server = await asyncio.start_server(genuine, "127.0.0.1", 0, ssl=authority.server)
        port = server.sockets[0].getsockname()[1]

        async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.append(writer)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_head(size) + _FORGED)
                await writer.drain()
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
                ends.append(up_writer)
                for pair in ((reader, up_writer), (up_reader, writer)):
                    copies.add(asyncio.create_task(_copy(*pair)))
            lied.set()

        proxy = await asyncio.start_server(liar, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        policy = EgressPolicy(allowlist=parse_allowlist(["a.test"]))
        fetch = proxied_fetch(url, "token", ssl_context=authority.client)
        try:
            async with GuardedClient(policy, fetch=fetch) as client:
                return (await client.fetch("https://a.test/")).body
        except FetchError:
            return b"refused"
        finally:
            async with asyncio.timeout(30):
                await lied.wait()
            server.close()
            proxy.close()
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            for end in ends:
                end.transport.abort()
            await asyncio.sleep(0.05)

    assert asyncio.run(main()) in {b"refused", b"TRUE"}
