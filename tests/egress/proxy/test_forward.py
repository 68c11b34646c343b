"""Plain http through the proxy: what is passed on, what is not, and every way to break."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from egress.proxy import Outcome, ProxyLimits

pytestmark = pytest.mark.loopback

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class _Raw:
    """An upstream that keeps what it gets and writes what it is given."""

    def __init__(self, answer: bytes = _OK, *, body: int = 0, ends: bool = True) -> None:
        self.answer = answer
        self.body = body
        self.ends = ends
        self.head = b""
        self.rest = b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = await reader.readuntil(b"\r\n\r\n")
        self.rest = await reader.readexactly(self.body)
        writer.write(self.answer)
        await writer.drain()
        if not self.ends:
            await reader.read()


def _split(raw: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    return line, dict(field.lower().split(b": ", 1) for field in fields), body


def test_a_request_is_rebuilt_and_answered(kit: Any) -> None:
    """Origin-form, the target's `Host`, no credential of the proxy, one connection, closed after."""

    async def main() -> None:
        upstream = _Raw()
        async with kit.serve(upstream) as place, kit.world("a.test", port=place.port) as world:
            raw = await world.get("http://A.test./x/../y?q=1", "Cookie: c", "Connection: cookie")
            line, fields, body = _split(raw)
            assert (b"HTTP/1.1 200 OK", b"ok", b"close") == (line, body, fields[b"connection"])
            lines = upstream.head.lower().split(b"\r\n")
            assert b"get /y?q=1 http/1.1" == lines[0]
            assert [
                b"connection: close",
                b"host: a.test",
                b"via: 1.1 agent-runtime-pack",
            ] == sorted(filter(None, lines[1:]))
            assert [(kit.public, 80)] == world.dialer.dials
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.FORWARDED, 200, "GET") == (record.outcome, record.status, record.method)

    kit.run(main())


@pytest.mark.parametrize(
    ("fields", "body", "sent", "size"),
    [
        (["Content-Length: 5"], b"hello", b"hello", 5),
        (["Content-Length: 0"], b"", b"", 0),
        (
            ["Transfer-Encoding: chunked"],
            b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n",
            b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            20,
        ),
    ],
)
def test_a_body_is_passed_on(
    kit: Any, fields: list[str], body: bytes, sent: bytes, size: int
) -> None:
    """In the framing it came in; extensions and trailers of chunks end at the proxy."""

    async def main() -> None:
        upstream = _Raw(body=size)
        async with kit.serve(upstream) as place, kit.world(port=place.port) as world:
            raw = await world.get("http://a.test/", *fields, method="POST", body=body)
            assert raw.endswith(b"\r\n\r\nok")
            assert sent == upstream.rest

    kit.run(main())


def test_what_follows_a_request_is_not_passed_on(kit: Any) -> None:
    """A second request behind the first one is dropped with the connection."""

    async def main() -> None:
        smuggled = b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
        upstream = _Raw(ends=True)
        async with kit.serve(upstream) as place, kit.world(port=place.port) as world:
            raw = await world.get("http://a.test/", body=smuggled)
            assert 1 == raw.count(b"HTTP/1.1 ")
            await world.settled()
            assert (1, 1) == (place.accepted, len(world.observer.records))
            assert not world.observer.denials

    kit.run(main())


def test_a_body_of_a_length_hides_no_second_request(kit: Any) -> None:
    """What is inside the body is body."""

    async def main() -> None:
        body = b"GET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n"
        upstream = _Raw(body=len(body))
        async with kit.serve(upstream) as place, kit.world(port=place.port) as world:
            field = f"Content-Length: {len(body)}"
            await world.get("http://a.test/", field, method="POST", body=body)
            assert body == upstream.rest

    kit.run(main())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n",
            b"ab",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200\r\n\r\nno reason", b"no reason"),
    ],
)
def test_every_framing_of_an_answer_is_understood(kit: Any, answer: bytes, body: bytes) -> None:
    """And written anew: chunked for a 1.1 client, to the end for a 1.0 client; no trailers."""

    async def main() -> None:
        async with kit.serve(_Raw(answer)) as place, kit.world(port=place.port) as world:
            _, fields, got = _split(await world.get("http://a.test/"))
            assert b"chunked" == fields[b"transfer-encoding"]
            assert b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) == got
            old = (
                "GET http://a.test/ HTTP/1.0\r\nProxy-Authorization: Bearer "
                + kit.token
                + "\r\n\r\n"
            )
            _, fields, got = _split(await world.ask(old.encode()))
            assert body == got
            assert b"transfer-encoding" not in fields

    kit.run(main())


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_a_body_have_none(kit: Any, method: str, answer: bytes) -> None:
    """The head is the whole answer."""

    async def main() -> None:
        async with (
            kit.serve(_Raw(answer, ends=False)) as place,
            kit.world(port=place.port) as world,
        ):
            raw = await world.get("http://a.test/", method=method)
            assert raw.endswith(b"\r\n\r\n")
            assert answer.split(b"\r\n")[0] == raw.split(b"\r\n")[0]

    kit.run(main())


def test_an_expectation_is_passed_on_and_answered(kit: Any) -> None:
    """The upstream's 100 comes through before the body is sent."""

    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert b"hello" == await reader.readexactly(5)
        writer.write(_OK)

    async def main() -> None:
        async with kit.serve(careful) as place, kit.world(port=place.port) as world:
            reader, writer = await world.open()
            writer.write(
                b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n"
                b"Expect: 100-continue\r\nProxy-Authorization: Bearer " + kit.token.encode()
            )
            writer.write(b"\r\n\r\n")
            assert b"HTTP/1.1 100" == (await reader.readuntil(b"\r\n\r\n"))[:12]
            writer.write(b"hello")
            assert (await kit.read_all(reader)).endswith(b"\r\n\r\nok")
            await kit.shut(writer)

    kit.run(main())


def test_an_old_client_gets_no_informational_answer(kit: Any) -> None:
    """HTTP/1.0 has none: its reader would take it for the answer."""

    async def main() -> None:
        answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + _OK
        async with kit.serve(_Raw(answer)) as place, kit.world(port=place.port) as world:
            head = f"GET http://a.test/ HTTP/1.0\r\nProxy-Authorization: Bearer {kit.token}\r\n\r\n"
            assert (await world.ask(head.encode())).startswith(b"HTTP/1.1 200 OK")
            assert (await world.get("http://a.test/")).startswith(b"HTTP/1.1 103 ")

    kit.run(main())


@pytest.mark.parametrize("upload", [True, False])
def test_what_waits_in_the_proxy_is_bounded(kit: Any, upload: bool) -> None:
    """Whichever end does not read, the other one is held."""
    size = 60_000_000

    async def main() -> None:
        asked, done = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            if upload:
                await done.wait()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
            await writer.drain()

        async with kit.serve(serve) as place, kit.world(port=place.port) as world:
            _, writer = await world.open()
            writer.write(
                f"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
                f"Content-Length: {size if upload else 0}\r\n"
                f"Proxy-Authorization: Bearer {kit.token}\r\n\r\n".encode()
            )
            writer.write(bytes(size if upload else 0))
            await asked.wait()
            [connection] = world.proxy._open
            passed = await kit.stalled(lambda: connection.bytes_up + connection.bytes_down)
            held = connection.upstream if upload else connection.client
            assert held.transport.get_write_buffer_size() < 1024 * 1024
            assert passed < size // 2
            writer.transport.abort()
            done.set()
            await kit.shut(writer)

    kit.run(main())


def test_an_early_answer_ends_the_upload(kit: Any) -> None:
    """A client that has more to send still gets the whole answer."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
        await writer.drain()
        await reader.read(10)

    async def main() -> None:
        async with kit.serve(refuse) as place, kit.world(port=place.port) as world:
            raw = await world.get(
                "http://a.test/", "Content-Length: 1000000", method="POST", body=bytes(100_000)
            )
            assert raw.startswith(b"HTTP/1.1 413 ")
            assert raw.endswith(b"no!")

    kit.run(main())


def test_an_answer_of_any_size_reaches_a_slow_reader(kit: Any) -> None:
    """All of it, though the upstream has long gone and the reader takes its time."""
    sizes = range(30_000, 600_000, 30_000)
    content = bytes(max(sizes))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1][1:])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(content[:size])
        await writer.drain()

    async def fetch(world: Any, size: int, go: asyncio.Event) -> None:
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, world.proxy.address)
        reader, writer = await asyncio.open_connection(sock=opened, limit=1024)
        writer.write(
            f"GET http://a.test/{size} HTTP/1.1\r\nHost: a.test\r\n"
            f"Proxy-Authorization: Bearer {kit.token}\r\n\r\n".encode()
        )
        await go.wait()
        raw = await kit.read_all(reader)
        assert size == len(raw.partition(b"\r\n\r\n")[2])
        await kit.shut(writer)

    async def main() -> None:
        # Its connections have this small buffer too: the rest waits in the proxy.
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
        own.bind(("127.0.0.1", 0))
        async with kit.serve(serve) as place, kit.world(port=place.port, sock=own) as world:
            go = asyncio.Event()
            fetching = [asyncio.create_task(fetch(world, size, go)) for size in sizes]
            async with asyncio.timeout(30):
                # The server has no event for each.
                while place.accepted < len(sizes):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await kit.stalled(lambda: sum(each.bytes_down for each in world.proxy._open))
            # Longer than whoever was refused may take to read its answer.
            kit.pass_time(60)
            go.set()
            await asyncio.gather(*fetching)

    kit.run(main())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "upstream_closed"),
        (b"HTTP/1.1 200", "upstream_closed"),
        (b"garbage\r\n\r\n", "upstream_protocol"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "upstream_protocol"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "upstream_protocol",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "upstream_protocol"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n", "upstream_protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "upstream_head_too_large"),
        (
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
            "upstream_head_too_large",
        ),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 17 + _OK, "too_many_informational"),
    ],
)
def test_an_answer_that_is_none_is_502(kit: Any, answer: bytes, reason: str) -> None:
    """The client learns that the upstream is at fault; no event."""

    async def main() -> None:
        async with kit.serve(_Raw(answer)) as place, kit.world(port=place.port) as world:
            raw = await world.get("http://a.test/")
            final = raw[raw.rindex(b"HTTP/1.1 5") :]
            assert final.startswith(b"HTTP/1.1 502 ")
            assert f'"reason":"{reason}"'.encode() in final
            await world.settled()
            assert Outcome.FAILED is world.observer.records[0].outcome
            assert not world.observer.denials

    kit.run(main())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "upstream_closed"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "upstream_closed",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
            "upstream_protocol",
        ),
    ],
)
def test_half_an_answer_does_not_look_whole(kit: Any, answer: bytes, reason: str) -> None:
    """Neither the length nor the last chunk is made up."""

    async def main() -> None:
        async with kit.serve(_Raw(answer)) as place, kit.world(port=place.port) as world:
            raw = await world.get("http://a.test/")
            assert not raw.endswith(b"0\r\n\r\n")
            assert b"Content-Length: 4\r\n" not in raw
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.FAILED, reason) == (record.outcome, record.reason)

    kit.run(main())


def test_an_old_client_sees_that_an_answer_is_cut(kit: Any) -> None:
    """Where only the end of the connection ends a body, a broken one ends with a reset."""

    async def main() -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
        async with kit.serve(_Raw(answer)) as place, kit.world(port=place.port) as world:
            reader, writer = await world.open()
            writer.write(
                b"GET http://a.test/ HTTP/1.0\r\nProxy-Authorization: Bearer "
                + kit.token.encode()
                + b"\r\n\r\n"
            )
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
            await kit.shut(writer)

    kit.run(main())


async def _read_into(received: bytearray, reader: asyncio.StreamReader) -> None:
    while part := await reader.read(65_536):
        received += part


def _reset(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("body", [b"", b"half", bytes(200_000)])
def test_a_body_that_only_a_reset_ends_is_no_whole_one(kit: Any, version: str, body: bytes) -> None:
    """Without a length, the end of the connection is the end of the body: a reset is none."""
    told = asyncio.Event()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await told.wait()
        _reset(writer)

    async def main() -> None:
        async with kit.serve(cut) as place, kit.world("a.test", port=place.port) as world:
            reader, writer = await world.open()
            writer.write(
                f"GET http://a.test/ HTTP/{version}\r\nHost: a.test\r\n"
                f"Proxy-Authorization: Bearer {kit.token}\r\n\r\n".encode()
            )
            await reader.readuntil(b"\r\n\r\n")
            told.set()
            received = bytearray()
            with pytest.raises(ConnectionResetError):
                await _read_into(received, reader)
            assert not received.endswith(b"0\r\n\r\n")
            await kit.shut(writer)
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.FAILED, "upstream_closed") == (record.outcome, record.reason)

    kit.run(main())


def test_a_client_that_sends_no_more_is_not_told_that_a_cut_body_is_whole(kit: Any) -> None:
    """Its end ends the exchange, and the half that it has got ends with a reset."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await reader.read(-1)

    async def main() -> None:
        async with kit.serve(wait) as place, kit.world("a.test", port=place.port) as world:
            reader, writer = await world.open()
            writer.write(
                b"GET http://a.test/ HTTP/1.0\r\nProxy-Authorization: Bearer "
                + kit.token.encode()
                + b"\r\n\r\n"
            )
            await reader.readuntil(b"half")
            writer.write_eof()
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
            await kit.shut(writer)
            await world.settled()
            assert Outcome.LEFT is world.observer.records[0].outcome

    kit.run(main())


@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        (["Content-Length: 101"], bytes(101), 413),
        (["Transfer-Encoding: chunked"], b"65\r\n" + bytes(101) + b"\r\n0\r\n\r\n", 413),
        (["Transfer-Encoding: chunked"], b"zz\r\n", 400),
        (["Transfer-Encoding: chunked"], b"3\r\nabcd\r\n", 400),
    ],
)
def test_a_body_that_is_refused(kit: Any, fields: list[str], body: bytes, status: int) -> None:
    """Above its cap, or not framed as it says: the request is not completed upstream."""

    async def main() -> None:
        upstream, limits = _Raw(body=10_000), ProxyLimits(max_request_body_bytes=100)
        async with kit.serve(upstream) as place, kit.world(port=place.port, limits=limits) as world:
            raw = await world.get("http://a.test/", *fields, method="POST", body=body)
            assert raw.startswith(f"HTTP/1.1 {status} ".encode())
            await world.settled()
            assert ("Content-Length" not in fields[0]) == bool(world.dialer.dials)
            assert b"" == upstream.rest
            assert not world.observer.denials

    kit.run(main())


@pytest.mark.parametrize("stage", ["body", "answer"])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_takes_its_upstream_along(kit: Any, stage: str, reset: bool) -> None:
    """In its body or while it waits; no socket stays behind."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65_536):
                asked.set()
        finally:
            left.set()

    async def main() -> None:
        async with kit.serve(wait) as place, kit.world(port=place.port) as world:
            _, writer = await world.open()
            size = 10 if stage == "body" else 0
            writer.write(
                f"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: {size}\r\n"
                f"Proxy-Authorization: Bearer {kit.token}\r\n\r\n".encode()
            )
            await asked.wait()
            if reset:
                found = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            await kit.shut(writer)
            async with asyncio.timeout(30):
                await left.wait()
            await world.settled()
            assert Outcome.LEFT is world.observer.records[0].outcome

    kit.run(main())


def test_an_upstream_that_resets_is_502(kit: Any) -> None:
    """Before its head; after it the client's connection breaks too."""

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        found = writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def main() -> None:
        async with kit.serve(reset) as place, kit.world(port=place.port) as world:
            assert (await world.get("http://a.test/")).startswith(b"HTTP/1.1 502 ")

    kit.run(main())


def test_an_upstream_that_is_silent_is_not_waited_for(kit: Any) -> None:
    """The idle time of the run ends the exchange."""

    async def main() -> None:
        limits = ProxyLimits(idle_seconds=10)
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()

        async with kit.serve(silent) as place, kit.world(port=place.port, limits=limits) as world:
            getting = asyncio.create_task(world.get("http://a.test/"))
            await asked.wait()
            kit.pass_time(11)
            assert b"" == await getting
            await world.settled()
            assert "idle_seconds" == world.observer.records[0].reason

    kit.run(main())


def test_a_large_body_waits_for_a_server_that_reads_late(kit: Any) -> None:
    """The one that sends the body and the one that waits for the answer watch one socket."""
    size = 5_000_000

    async def main() -> None:
        received = 0

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.3)
            while received < size:
                part = await reader.read(65_536)
                if not part:
                    return
                received += len(part)
            writer.write(_OK)

        async with kit.serve(late) as place, kit.world("a.test", port=place.port) as world:
            raw = await world.get(
                "http://a.test/", f"Content-Length: {size}", method="POST", body=b"x" * size
            )
            assert raw.endswith(b"ok")
            assert size == received

    kit.run(main())


def test_a_body_is_passed_on_while_the_answer_waits_for_its_reader(kit: Any) -> None:
    """The client reads nothing until its body has arrived; both go through its one socket."""
    size = 6_000_000

    async def main() -> None:
        arrived = asyncio.Event()

        async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size)
            assert b"0123456789" == await reader.readexactly(10)
            arrived.set()
            await writer.drain()

        async with kit.serve(both) as place, kit.world("a.test", port=place.port) as world:
            reader, writer = await asyncio.open_connection(*world.proxy.address, limit=1000)
            writer.write(
                b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n"
                b"Proxy-Authorization: Bearer " + kit.token.encode() + b"\r\n\r\n"
            )
            await asyncio.sleep(0.5)
            writer.write(b"0123456789")
            async with asyncio.timeout(30):
                await arrived.wait()
            raw = await kit.read_all(reader)
            assert size == len(raw.partition(b"\r\n\r\n")[2])
            await kit.shut(writer)

    kit.run(main())
