"""What a proxy says before TLS is never read as if it had come through TLS."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from egress import EgressPolicy, GuardedClient, parse_allowlist, proxied_fetch
from egress.errors import FetchError

pytestmark = [
    pytest.mark.loopback,
    # The liar's own ends are torn in the middle; what is tested is the client's.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

_FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nFORGED"
_READ_BYTES = 65_536


def _head(size: int) -> bytes:
    start = b"HTTP/1.1 200 Connection established\r\nX: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_READ_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()


async def _genuine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nTRUE")
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("size", [200, _READ_BYTES - 1, _READ_BYTES, _READ_BYTES + 1])
def test_bytes_that_a_proxy_slips_in_before_tls_are_not_the_page(size: int, authority: Any) -> None:
    """However long the proxy's head is, the forged answer behind it is refused or never read."""

    async def main() -> bytes:
        server = await asyncio.start_server(_genuine, "127.0.0.1", 0, ssl=authority.server)
        port = server.sockets[0].getsockname()[1]
        copies: set[asyncio.Task[None]] = set()

        async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_head(size) + _FORGED)
                await writer.drain()
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
                for ends in ((reader, up_writer), (up_reader, writer)):
                    copies.add(asyncio.create_task(_copy(*ends)))

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
            for each in (server, proxy):
                each.close()
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            await asyncio.sleep(0.05)

    assert asyncio.run(main()) in {b"refused", b"TRUE"}
