"""The real transport against raw servers on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import gzip
import ipaddress
import socket
import ssl
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from egress import (
    AiohttpTransport,
    EgressDenied,
    EgressError,
    EgressPolicy,
    FetchLimits,
    GuardedClient,
    UrlRejected,
    parse_allowlist,
)
from egress import transport as transport_module
from egress.errors import (
    BodyIncomplete,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DecodingFailed,
    DnsFailed,
    EncodingRefused,
    FetchError,
    HeadTooLarge,
    ProtocolFailed,
    TlsFailed,
    TooManyRedirects,
)
from egress.ports import HopRequest
from egress.testing import ScriptedResolver
from egress.url import parse_target

pytestmark = pytest.mark.loopback

_Handler: TypeAlias = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool | None]]
_LOCAL = ("127.0.0.1",)
_NAMES = ("a.test", "b.test", "c.test")


@attrs.define
class _Server:
    """A raw server: hands each request head to the handler, counts connections and their ends."""

    port: int = 0
    accepted: int = 0
    closed: int = 0
    heads: list[bytes] = attrs.field(factory=list)
    changed: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def all_closed(self) -> None:
        """Waits until the client has closed what was accepted."""
        async with asyncio.timeout(30):
            while self.closed < self.accepted:
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def _serve(
    handler: _Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[_Server]:
    server = _Server()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.accepted += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                server.heads.append(head)
                if await handler(head, writer) is False:
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            server.closed += 1
            server.changed.set()
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    listener = await asyncio.start_server(connected, host, 0, ssl=tls)
    async with listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server


def _answers(table: Mapping[str, bytes]) -> _Handler:
    """A handler that writes the raw bytes that *table* holds for the path."""

    async def handler(head: bytes, writer: asyncio.StreamWriter) -> bool | None:
        path = head.split(b" ")[1].decode("ascii")
        raw = table[path]
        writer.write(raw)
        await writer.drain()
        return b"Connection: close" not in raw

    return handler


def _ok(body: bytes = b"hello", *fields: bytes) -> bytes:
    head = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def _to(location: str) -> bytes:
    return (
        b"HTTP/1.1 302 Found\r\nLocation: "
        + location.encode("utf-8", "surrogateescape")
        + b"\r\nContent-Length: 0\r\n\r\n"
    )


def _policy(*entries: str) -> EgressPolicy:
    listed = entries or (*(f"{name}:*" for name in _NAMES), "127.0.0.0/8", "::1/128")
    return EgressPolicy(allowlist=parse_allowlist(listed))


def _resolver(addresses: Sequence[str] = _LOCAL) -> ScriptedResolver:
    return ScriptedResolver({name: list(addresses) for name in _NAMES})


def _client(
    *,
    limits: FetchLimits | None = None,
    addresses: Sequence[str] = _LOCAL,
    transport: AiohttpTransport | None = None,
    policy: EgressPolicy | None = None,
) -> GuardedClient:
    return GuardedClient(
        policy or _policy(),
        limits=limits,
        resolver=_resolver(addresses),
        transport=transport,
    )


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Runs *main* and finds the same descriptors open after it as before."""
    before = _descriptors()
    asyncio.run(main)

    assert before == _descriptors()


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def _error(
    table: Mapping[str, bytes] | _Handler, limits: FetchLimits | None = None
) -> FetchError:
    """What fetching `/` from a server that answers so ends with; the connection is closed after."""
    handler = table if callable(table) else _answers(table)
    async with _serve(handler) as server:
        async with _client(limits=limits) as client:
            with pytest.raises(FetchError) as caught:
                await client.fetch(f"http://a.test:{server.port}/")
        await server.all_closed()
    return caught.value


def test_connections_are_kept_alive_within_one_client() -> None:
    """Ten fetches and their redirects over one connection and one lookup; another client opens its own."""

    async def main() -> None:
        table = {"/r": _to("/x"), "/x": _ok()}
        async with _serve(_answers(table)) as server:
            resolver = _resolver()
            async with GuardedClient(_policy(), resolver=resolver) as client:
                for _ in range(10):
                    fetched = await client.fetch(f"http://a.test:{server.port}/r")
                    assert (fetched.body, len(fetched.hops)) == (b"hello", 1)
            assert (server.accepted, resolver.lookups) == (1, ["a.test"])
            async with _client() as client:
                await client.fetch(f"http://a.test:{server.port}/x")
            assert server.accepted == 2
            await server.all_closed()

    _run(main())


def test_large_bodies_keep_their_connection() -> None:
    """Body bytes never count as a head: a megabyte, plain, chunked or encoded, is one connection."""

    async def main() -> None:
        page = bytes(range(256)) * 4_000
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(page), page) for _ in range(2)) + b"0\r\n\r\n"
        table = {
            "/plain": _ok(page),
            "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
            "/gzip": _ok(gzip.compress(page), b"Content-Encoding: gzip"),
        }
        async with _serve(_answers(table)) as server, _client() as client:
            for _ in range(5):
                for path, body in (("/plain", page), ("/chunked", page * 2), ("/gzip", page)):
                    fetched = await client.fetch(f"http://a.test:{server.port}{path}")
                    assert fetched.body == body
            assert server.accepted == 1

    _run(main())


def test_a_resolver_that_goes_astray_reaches_no_socket() -> None:
    """Should aiohttp ever resolve by itself, the socket factory still refuses what was not vetted."""

    class Astray(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return [transport_module._resolved(host, port, "127.0.0.1")]

        async def close(self) -> None: ...

    async def main() -> None:
        async with _serve(_answers({"/": _ok()})) as server:
            transport = AiohttpTransport()
            async with _client(transport=transport) as client:
                connector = transport._session_for(client._policy).connector
                assert isinstance(connector, transport_module._PinnedConnector)
                connector._resolver = Astray()
                with pytest.raises(ConnectFailed):
                    await client.fetch(f"http://a.test:{server.port}/")
            assert server.accepted == 0

    _run(main())


def test_a_connection_without_our_meter_is_not_used() -> None:
    """Should aiohttp stop to use our protocol class, every hop fails instead of running uncapped."""

    async def main() -> None:
        async with _serve(_answers({"/": _ok()})) as server:
            transport = AiohttpTransport()
            client = _client(transport=transport)
            async with client:
                session = transport._session_for(client._policy)
                connector = session.connector
                assert isinstance(connector, transport_module._PinnedConnector)
                connector._factory = functools.partial(
                    ResponseHandler, loop=asyncio.get_running_loop()
                )
                with pytest.raises(ProtocolFailed):
                    await client.fetch(f"http://a.test:{server.port}/")

    _run(main())


def test_what_is_sent_is_the_canonical_request() -> None:
    """GET, the rebuilt request target, the canonical Host; no cookie, referrer or credential."""

    async def main() -> None:
        table = {
            "/b%41?q=%C3%BC%5B%5D": _ok(b"x", b"Set-Cookie: a=b; Path=/"),
            "/next": _ok(),
        }
        async with _serve(_answers(table)) as server, _client() as client:
            await client.fetch(f"HTTP://A.TEST.:{server.port}/a/../b%41?q=\u00fc[]#frag")
            await client.fetch(f"http://a.test:{server.port}/next")
            fields = server.heads[1].decode("ascii").lower().split("\r\n")
            names = {field.split(":")[0] for field in fields[1:] if field}
            assert {"host", "user-agent", "accept", "accept-encoding"} == names
            assert f"host: a.test:{server.port}" in fields
            assert "accept-encoding: gzip, deflate" in fields

    _run(main())


def test_the_environment_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither proxy variables nor a netrc change where a request goes or what it carries."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login user password hunter2\n", encoding="ascii")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")

    async def main() -> None:
        async with _serve(_answers({"/": _ok()})) as server, _client() as client:
            assert (await client.fetch(f"http://a.test:{server.port}/")).status == 200
            assert b"authorization" not in server.heads[0].lower()

    _run(main())


def test_redirects_across_hosts_are_checked_at_every_hop() -> None:
    """Three hosts are followed; an unlisted or private-by-literal fourth is not requested."""

    async def main() -> None:
        table: dict[str, bytes] = {"/c": _ok(b"end"), "/out": _to("http://evil.test/")}
        async with _serve(_answers(table)) as server, _client() as client:
            table["/a"] = _to(f"http://b.test:{server.port}/b")
            table["/b"] = _to(f"//c.test:{server.port}/c")
            table["/local"] = _to("http://10.0.0.1/")
            fetched = await client.fetch(f"http://a.test:{server.port}/a")
            assert (fetched.body, fetched.final.host, len(fetched.hops)) == (b"end", "c.test", 2)
            for path in ("/out", "/local"):
                with pytest.raises(EgressDenied) as caught:
                    await client.fetch(f"http://a.test:{server.port}{path}")
                assert caught.value.violation.hop == 1

    _run(main())


def test_a_redirect_loop_ends() -> None:
    """A page that redirects to itself is requested `max_redirects` + 1 times."""

    async def main() -> None:
        async with _serve(_answers({"/": _to("")})) as server, _client() as client:
            with pytest.raises(TooManyRedirects):
                await client.fetch(f"http://a.test:{server.port}/")
            assert len(server.heads) == 6

    _run(main())


def test_locations_of_raw_bytes() -> None:
    """UTF-8 and other bytes in `Location` are percent-encoded; userinfo and other forms refused."""

    async def main() -> None:
        table = {
            "/u": _to("/\u00fc"),
            "/%C3%BC": _ok(b"utf8"),
            "/l": _to("/caf\udce9"),
            "/caf%E9": _ok(b"latin"),
            "/cred": _to("http://user:pw@a.test/"),
            "/slash": _to("///evil.test/"),
            "/uri": b"HTTP/1.1 302 F\r\nURI: /u\r\nRefresh: 0; url=/u\r\nContent-Length: 0\r\n\r\n",
        }
        async with _serve(_answers(table)) as server, _client() as client:
            base = f"http://a.test:{server.port}"
            assert (await client.fetch(f"{base}/u")).body == b"utf8"
            assert (await client.fetch(f"{base}/l")).body == b"latin"
            assert (await client.fetch(f"{base}/uri")).status == 302
            for path in ("/cred", "/slash"):
                with pytest.raises(UrlRejected) as caught:
                    await client.fetch(base + path)
                assert caught.value.hop == 1

    _run(main())


async def _drip(writer: asyncio.StreamWriter, first: bytes, drop: bytes) -> None:
    writer.write(first)
    while True:
        writer.write(drop)
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n", b"X-A: b\r\n"),
    ],
    ids=["silence", "fields", "field", "body", "chunks", "extension", "redirect"],
)
def test_a_slow_drip_meets_the_deadline(first: bytes, drop: bytes) -> None:
    """One deadline over head and body, however steadily something arrives; the socket is closed."""

    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        if drop:
            await _drip(writer, first, drop)

    async def main() -> None:
        began = time.monotonic()
        error = await _error(handler, FetchLimits(timeout_seconds=0.3))
        assert isinstance(error, DeadlineExceeded)
        assert time.monotonic() - began < 30

    _run(main())


def test_the_deadline_covers_the_whole_chain() -> None:
    """Hops that are each fast enough are together too slow."""

    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)
        writer.write(_to("/again"))

    async def main() -> None:
        error = await _error(handler, FetchLimits(timeout_seconds=0.4, max_redirects=20))
        assert isinstance(error, DeadlineExceeded)
        assert error.hop >= 1

    _run(main())


_NOT_HTTP = {
    "garbage": b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
    "no version": b"200 OK\r\n\r\n",
    "http/0.9": b"<html>hello</html>",
    "bad status": b"HTTP/1.1 abc OK\r\n\r\n",
    "status 999999": b"HTTP/1.1 999999 OK\r\n\r\n",
    "NUL field": b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
    "no colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nx",
}


@pytest.mark.parametrize("raw", _NOT_HTTP.values(), ids=_NOT_HTTP.keys())
def test_an_answer_that_is_not_http(raw: bytes) -> None:
    """Is a protocol error, not a hang and not a page."""

    async def main() -> None:
        error = await _error({"/": raw}, FetchLimits(timeout_seconds=5))
        assert isinstance(error, ProtocolFailed)
        assert not error.retryable

    _run(main())


def _field_flood(count: int, size: int) -> bytes:
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"a" * size) for number in range(count))
    return b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 17 + _ok(),
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 20_000 + _ok(),
        b"HTTP/1.1 100 Continue\r\nX: %s\r\n\r\n" % (b"a" * 8_000) * 10 + _ok(),
        _field_flood(120, 1_000),
        _field_flood(10, 8_000),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 66_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 5_000_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 500_000,
        b"HTTP/1.1 200 OK\r\n" + (b"X: " + b"a" * 8_000 + b"\r\n") * 100,
    ],
    ids=[
        "17 hints",
        "20000 hints",
        "fat hints",
        "fields",
        "fat fields",
        "one",
        "endless one",
        "endless",
        "fat and endless",
    ],
)
def test_a_head_has_its_cap(raw: bytes) -> None:
    """Fields and informational responses together stay under the cap, or the hop fails at once."""

    async def main() -> None:
        error = await _error({"/": raw}, FetchLimits(timeout_seconds=10))
        assert isinstance(error, ProtocolFailed)

    _run(main())


def test_the_caps_of_the_head_are_the_fetch_s_own() -> None:
    """A smaller cap holds on a kept connection too, and a legitimate large head passes."""

    async def main() -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        table = {
            "/": _ok(b"hello", b"X: " + b"a" * 3_000),
            "/big": _ok(b"hello", b"X: " + b"a" * 60_000),
            "/hints": hints * 16 + _ok(),
        }
        async with _serve(_answers(table)) as server, _client() as client:
            base = f"http://a.test:{server.port}"
            for path in ("/", "/big", "/hints", "/hints"):
                assert (await client.fetch(base + path)).body == b"hello"
            assert server.accepted == 1
            with pytest.raises(HeadTooLarge):
                await client.fetch(base + "/", limits=FetchLimits(max_header_bytes=2_000))
            with pytest.raises(HeadTooLarge):
                await client.fetch(base + "/hints", limits=FetchLimits(max_informational=15))
            assert (await client.fetch(base + "/")).body == b"hello"

    _run(main())


def test_no_traceback_shows_a_query() -> None:
    """Not of our errors, and not of the ones below them that a logger prints as well."""

    async def main() -> None:
        table = {"/?token=hunter2": b"garbage\r\n\r\n", "/x?token=hunter2": _to("ftp://hunter2/")}
        async with _serve(_answers(table)) as server, _client() as client:
            port = server.port
            for url in (
                f"http://a.test:{port}/?token=hunter2",
                f"http://a.test:{port}/x?token=hunter2",
                "http://a.test:1/?token=hunter2",
                "http://evil.test/?token=hunter2",
                "https://a.test:1/?token=hunter2",
            ):
                with pytest.raises(EgressError) as caught:
                    await client.fetch(url)
                assert "hunter2" not in "".join(traceback.format_exception(caught.value))

    _run(main())


def test_a_body_shorter_than_its_length() -> None:
    """A closed connection before the end of the body is an error, not a short page."""

    async def main() -> None:
        for raw in (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhello",
        ):
            assert isinstance(await _error({"/": raw}), BodyIncomplete)

    _run(main())


def test_chunked_garbage() -> None:
    """Broken chunk framing is an error of the body."""

    async def main() -> None:
        for chunk in (
            b"zz\r\nhello\r\n",
            b"5\r\nhelloworld\r\n0\r\n\r\n",
            b"-1\r\n",
            b"ffffffffffffffffff\r\n",
        ):
            raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n" + chunk
            error = await _error({"/": raw}, FetchLimits(timeout_seconds=5))
            assert isinstance(error, BodyIncomplete | ProtocolFailed)

    _run(main())


def test_a_reset_before_and_amid_the_answer() -> None:
    """A reset before the head is a lost connection; amid the body it is an incomplete body."""

    def resetting(raw: bytes) -> _Handler:
        async def handler(_: bytes, writer: asyncio.StreamWriter) -> bool:
            writer.write(raw)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )
            writer.transport.abort()
            return False

        return handler

    async def main() -> None:
        before = await _error(resetting(b""))
        assert isinstance(before, ConnectionLost)
        assert before.retryable
        amid = await _error(resetting(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"))
        assert isinstance(amid, BodyIncomplete)

    _run(main())


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_a_decompression_bomb_is_cut_at_the_cap(coding: bytes) -> None:
    """100 MB in 100 kB: the cap is what is kept, `truncated` says so, the connection is dropped."""
    encode = gzip.compress if coding == b"gzip" else zlib.compress
    bomb = encode(b"\0" * 100_000_000)

    async def main() -> None:
        raw = _ok(bomb, b"Content-Encoding: " + coding)
        limits = FetchLimits(max_decoded_bytes=500_000)
        async with _serve(_answers({"/": raw})) as server:
            async with _client(limits=limits) as client:
                fetched = await client.fetch(f"http://a.test:{server.port}/")
                assert (len(fetched.body), fetched.truncated) == (500_000, True)
                assert fetched.raw_bytes <= len(bomb)
            await server.all_closed()

    _run(main())


def test_a_large_plain_body_is_cut_at_the_raw_cap() -> None:
    """An endless body is read up to the cap and no further."""

    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async def main() -> None:
        limits = FetchLimits(max_raw_bytes=1_000_000)
        async with _serve(handler) as server, _client(limits=limits) as client:
            fetched = await client.fetch(f"http://a.test:{server.port}/")
            assert (len(fetched.body), fetched.truncated) == (1_000_000, True)
            await server.all_closed()

    _run(main())


def test_encodings() -> None:
    """Gzip and deflate are decoded here; stacked, aliased and other codings are refused."""
    page = b"hello " * 1_000
    table = {
        "/gzip": _ok(gzip.compress(page), b"Content-Encoding: GZip"),
        "/zlib": _ok(zlib.compress(page), b"Content-Encoding: deflate"),
        "/raw": _ok(zlib.compress(page)[2:-4], b"Content-Encoding: deflate"),
        "/none": _ok(page, b"Content-Encoding: identity"),
        "/twice": _ok(gzip.compress(gzip.compress(page)), b"Content-Encoding: gzip, gzip"),
        "/two": _ok(page, b"Content-Encoding: gzip", b"Content-Encoding: gzip"),
        "/x": _ok(gzip.compress(page), b"Content-Encoding: x-gzip"),
        "/br": _ok(page, b"Content-Encoding: br"),
        "/zstd": _ok(page, b"Content-Encoding: zstd"),
        "/lie": _ok(page, b"Content-Encoding: gzip"),
        "/short": _ok(gzip.compress(page)[:-9], b"Content-Encoding: gzip"),
    }

    async def main() -> None:
        async with _serve(_answers(table)) as server, _client() as client:
            base = f"http://a.test:{server.port}"
            for path in ("/gzip", "/zlib", "/raw", "/none"):
                fetched = await client.fetch(base + path)
                assert (page, False) == (fetched.body, fetched.truncated)
            for path in ("/twice", "/two", "/x", "/br", "/zstd"):
                with pytest.raises(EncodingRefused):
                    await client.fetch(base + path)
            for path in ("/lie", "/short"):
                with pytest.raises(DecodingFailed):
                    await client.fetch(base + path)

    _run(main())


@pytest.mark.parametrize("extra", [_ok(b"injected"), b"HTTP/1.1 200 OK\r\nX: "])
def test_an_answer_nobody_asked_for_is_not_taken_for_the_next(extra: bytes) -> None:
    """A response, or half of one, on an idle connection is dropped with it."""

    async def main() -> None:
        fetched, sent = asyncio.Event(), asyncio.Event()

        async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(_ok(head.split(b" ")[1]))
            await fetched.wait()
            writer.write(extra)
            sent.set()

        async with _serve(handler) as server, _client() as client:
            for path in (b"/one", b"/two", b"/three"):
                fetched.clear()
                sent.clear()
                answer = await client.fetch(f"http://a.test:{server.port}{path.decode()}")
                assert answer.body == path
                fetched.set()
                await sent.wait()
                # It is in the client's socket, and read in the next rounds of the loop.
                await asyncio.sleep(0.05)
            assert server.accepted == 3

    _run(main())


def test_a_stale_connection_is_replaced() -> None:
    """A server that closed an idle connection costs a new one, not an error; the name is vetted anew."""

    async def main() -> None:
        raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

        async def handler(_: bytes, writer: asyncio.StreamWriter) -> bool:
            writer.write(raw)
            await writer.drain()
            return False

        async with _serve(handler) as server:
            resolver = _resolver()
            async with GuardedClient(_policy(), resolver=resolver) as client:
                for _ in range(3):
                    assert (await client.fetch(f"http://a.test:{server.port}/")).body == b"ok"
                    await server.all_closed()
            assert (server.accepted, len(resolver.lookups)) == (3, 3)

    _run(main())


def test_rebinding_between_connections_is_denied() -> None:
    """A name that moves to a private address after its first connection closed is refused there."""

    async def main() -> None:
        policy = _policy("a.test:*", "127.0.0.1")

        async def handler(_: bytes, writer: asyncio.StreamWriter) -> bool:
            writer.write(
                b"HTTP/1.1 302 F\r\nLocation: /b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            await writer.drain()
            return False

        resolver = ScriptedResolver({"a.test": ["127.0.0.1"]}, later={"a.test": ["127.0.0.2"]})
        async with _serve(handler) as server:
            listed = _policy("a.test:*", f"127.0.0.1:{server.port}")
            assert policy.allowlist != listed.allowlist
            async with GuardedClient(listed, resolver=resolver) as client:
                with pytest.raises(EgressDenied) as caught:
                    await client.fetch(f"http://a.test:{server.port}/")
            assert (caught.value.violation.hop, caught.value.violation.rule) == (1, "R8")
            assert caught.value.violation.addresses == ("127.0.0.2",)
            assert (server.accepted, len(resolver.lookups)) == (1, 2)

    _run(main())


def test_the_next_vetted_address_is_tried() -> None:
    """A refused connection falls back to the next vetted address, across families."""

    async def main() -> None:
        async with _serve(_answers({"/": _ok()})) as server:
            for first in ("127.0.0.2", "::1"):
                async with _client(addresses=[first, "127.0.0.1"]) as client:
                    fetched = await client.fetch(f"http://a.test:{server.port}/")
                    assert fetched.status == 200

    _run(main())


def test_an_ipv6_literal_is_reached() -> None:
    """A literal needs no lookup, and its Host is bracketed."""

    async def main() -> None:
        async with _serve(_answers({"/": _ok()}), host="::1") as server:
            async with _client() as client:
                fetched = await client.fetch(f"http://[0:0::1]:{server.port}/")
                assert fetched.status == 200
            assert f"host: [::1]:{server.port}".encode() in server.heads[0].lower()

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")
    _run(main())


def test_nobody_listens() -> None:
    """A refused connection is `ConnectFailed`, worth another try, and names no address."""

    async def main() -> None:
        async with _client() as client:
            with pytest.raises(ConnectFailed) as caught:
                await client.fetch("http://a.test:1/")
        assert caught.value.retryable
        assert "127.0.0.1" not in str(caught.value)

    _run(main())


def test_no_socket_without_a_vetting_hop() -> None:
    """The socket factory refuses what no running hop vetted, and the resolver foreign names."""
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))
    with pytest.raises(OSError, match="vetted"):
        transport_module._pinned_socket(info)

    async def nothing() -> tuple[ipaddress.IPv4Address, ...]:
        return ()

    async def main() -> None:
        with pytest.raises(OSError, match="no hop"):
            await transport_module._PinnedResolver().resolve("a.test", 80)
        target = parse_target("http://127.0.0.1/")
        request = HopRequest(
            target=target, hop=0, policy=_policy(), limits=FetchLimits(), addresses=nothing
        )
        token = transport_module._RUNNING.set(transport_module._Hop(request))
        try:
            transport_module._pinned_socket(info).close()
            for sockaddr in (("127.0.0.2", 80), ("127.0.0.1", 81), ("0x7f.1", 80), ("::1", 80)):
                with pytest.raises(OSError, match="vetted"):
                    transport_module._pinned_socket((*info[:4], sockaddr))
            with pytest.raises(OSError, match="no hop"):
                await transport_module._PinnedResolver().resolve("a.test", 80)
        finally:
            transport_module._RUNNING.reset(token)

    _run(main())


def test_only_vetted_addresses_are_dialled() -> None:
    """A port that returns addresses the policy did not vet still reaches only what the hop vetted."""

    async def main() -> None:
        async with _serve(_answers({"/": _ok()})) as server:
            transport = AiohttpTransport()
            policy = _policy()
            calls = 0

            async def addresses() -> tuple[ipaddress.IPv4Address, ...]:
                nonlocal calls
                calls += 1
                return (ipaddress.IPv4Address("127.0.0.1"),)

            target = parse_target(f"http://a.test:{server.port}/")
            request = HopRequest(
                target=target, hop=0, policy=policy, limits=FetchLimits(), addresses=addresses
            )
            for _ in range(2):
                response = await transport.send(request)
                assert [chunk async for chunk in response.body] == [b"hello"]
                await response.close()
                await response.close()
            assert (calls, server.accepted) == (1, 1)
            with pytest.raises(ClientClosed):
                await transport.send(attrs.evolve(request, policy=_policy()))
            await transport.aclose()
            await transport.aclose()
            with pytest.raises(ClientClosed):
                await transport.send(request)

    _run(main())


def test_cancelling_leaves_no_socket() -> None:
    """Cancelled while waiting for the head, and in the middle of the body."""

    async def main() -> None:
        asked = asyncio.Event()

        async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
            if head.startswith(b"GET /body"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            asked.set()

        async with _serve(handler) as server, _client() as client:
            for path in ("/head", "/body"):
                asked.clear()
                task = asyncio.create_task(client.fetch(f"http://a.test:{server.port}{path}"))
                await asked.wait()
                # What was sent is read in the next rounds of the loop.
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await server.all_closed()
            assert server.accepted == 2

    _run(main())


def test_concurrent_fetches_do_not_mix() -> None:
    """Fifty at once to three hosts: each gets its own page, each name its own vetting."""

    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.001)
        writer.write(_ok(head.split(b" ")[1] + b" " + head.split(b"Host: ")[1].split(b":")[0]))

    async def main() -> None:
        async with _serve(handler) as server, _client() as client:

            async def one(number: int) -> None:
                name = _NAMES[number % 3]
                fetched = await client.fetch(f"http://{name}:{server.port}/{number}")
                assert f"/{number} {name}".encode() == fetched.body

            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(one(number))

    _run(main())


@attrs.frozen
class _Authority:
    """A self-made certificate authority and what it issued."""

    trusted: ssl.SSLContext
    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def server(self, *names: str, days: int = 1) -> ssl.SSLContext:
        """A server context with a certificate for *names*."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(
            key.public_key(), names, signer=self.key, issuer=self.certificate.subject, days=days
        )
        chain = self.folder / f"{names[0]}.pem".replace(":", "_")
        chain.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context


def _certificate(
    key: ec.EllipticCurvePublicKey,
    names: Sequence[str],
    *,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None = None,
    days: int = 1,
) -> x509.Certificate:
    """A certificate that Python 3.13 takes too: it verifies with VERIFY_X509_STRICT."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=3))
        .not_valid_after(now + dt.timedelta(days=days))
    )
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=issuer is None, path_length=None), True),
        (x509.SubjectAlternativeName([_alternative(name) for name in names]), False),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (signer_id, False),
        (_key_usage(signs=issuer is None), True),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA256())


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.replace(" ", "-"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> _Authority:
    """A certificate authority that the client is told to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(key.public_key(), ["Test CA"], signer=key)
    trusted = ssl.create_default_context(
        cadata=certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
    )
    return _Authority(trusted, tmp_path_factory.mktemp("ca"), key, certificate)


def _tls_client(authority: _Authority) -> GuardedClient:
    return _client(transport=AiohttpTransport(ssl_context=authority.trusted))


def test_tls_is_verified_against_the_name(authority: _Authority) -> None:
    """The right name over the vetted address works and is kept alive; SNI and Host are the name."""

    async def main() -> None:
        async with _serve(_answers({"/": _ok()}), tls=authority.server("a.test")) as server:
            async with _tls_client(authority) as client:
                for _ in range(3):
                    assert (await client.fetch(f"https://a.test:{server.port}/")).status == 200
            assert server.accepted == 1
            await server.all_closed()

    _run(main())


def test_tls_literals_are_verified_against_the_address(authority: _Authority) -> None:
    """An https literal needs a certificate for the address."""

    async def main() -> None:
        tls = authority.server("127.0.0.1")
        async with (
            _serve(_answers({"/": _ok()}), tls=tls) as server,
            _tls_client(authority) as client,
        ):
            assert (await client.fetch(f"https://127.0.0.1:{server.port}/")).status == 200
            with pytest.raises(TlsFailed):
                await client.fetch(f"https://a.test:{server.port}/")

    _run(main())


def test_bad_certificates_are_refused(authority: _Authority) -> None:
    """Wrong name, expired, and a chain the process does not trust: no request is sent."""

    async def main() -> None:
        for tls in (authority.server("b.test"), authority.server("a.test", days=-1)):
            async with _serve(_answers({"/": _ok()}), tls=tls) as server:
                async with _tls_client(authority) as client:
                    with pytest.raises(TlsFailed) as caught:
                        await client.fetch(f"https://a.test:{server.port}/")
                    assert not caught.value.retryable
                assert server.heads == []
        async with _serve(_answers({"/": _ok()}), tls=authority.server("a.test")) as server:
            async with _client() as client:
                with pytest.raises(TlsFailed):
                    await client.fetch(f"https://a.test:{server.port}/")
            assert server.heads == []

    _run(main())


def test_plain_http_on_a_tls_port_is_a_tls_failure(authority: _Authority) -> None:
    """And TLS on a plain port is a protocol failure or a lost connection."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with listener, _tls_client(authority) as client:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(TlsFailed):
                await client.fetch(f"https://a.test:{port}/")
        tls = authority.server("a.test")
        async with (
            _serve(_answers({"/": _ok()}), tls=tls) as server,
            _tls_client(authority) as client,
        ):
            with pytest.raises((ProtocolFailed, ConnectionLost)):
                await client.fetch(f"http://a.test:{server.port}/")

    _run(main())


def test_a_silent_tls_peer_meets_the_deadline(authority: _Authority) -> None:
    """The deadline covers the handshake, and the socket is closed."""
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()
        await writer.wait_closed()
        gone.set()

    async def main() -> None:
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with listener, _tls_client(authority) as client:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(DeadlineExceeded):
                await client.fetch(
                    f"https://a.test:{port}/", limits=FetchLimits(timeout_seconds=0.3)
                )
            async with asyncio.timeout(30):
                await gone.wait()

    _run(main())


def test_cancelling_over_tls_leaves_no_socket(authority: _Authority) -> None:
    """Also when the peer never answers the closing alert."""

    async def main() -> None:
        asked = asyncio.Event()

        async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            asked.set()

        async with _serve(handler, tls=authority.server("a.test")) as server:
            async with _tls_client(authority) as client:
                task = asyncio.create_task(client.fetch(f"https://a.test:{server.port}/"))
                await asked.wait()
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await server.all_closed()

    _run(main())


def test_a_context_that_does_not_verify_is_refused() -> None:
    """There is no way to switch the verification off."""
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ValueError, match="verifies"):
        AiohttpTransport(ssl_context=context)
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ValueError, match="verifies"):
        AiohttpTransport(ssl_context=context)


def test_the_default_context_is_shared_and_verifies() -> None:
    """One context per process: loading the roots is dear."""
    context = transport_module.default_ssl_context()

    assert context is transport_module.default_ssl_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_an_unknown_name_is_a_dns_failure() -> None:
    """The system's resolver says so, and the fetch ends with it."""

    async def main() -> None:
        async with GuardedClient(_policy("no-such-name.invalid")) as client:
            with pytest.raises(DnsFailed):
                await client.fetch("http://no-such-name.invalid/")

    asyncio.run(main())
