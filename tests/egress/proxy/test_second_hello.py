"""A server that asks for a second ClientHello: what a client says then is held to the same rule."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import DenyReason
from egress.client_hello import AnswerReader, leading_record
from egress.proxy import Outcome, ProxyLimits
from egress.testing import client_hello, hello_record

_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_CHANGE = bytes.fromhex("140303000101")
_EARLY = b"\x17\x03\x03\x00\x05early"
_ALERT = bytes.fromhex("15030300020228")
_WARNING = bytes.fromhex("15030300020170")
_ACCESS_DENIED = bytes.fromhex("15030100020231")
_FIRST = client_hello("a.test")


def _server_hello(random: bytes, *, kind: int = 2) -> bytes:
    body = b"\x03\x03" + random + b"\x00\x13\x01\x00\x00\x00"
    return hello_record(bytes([kind]) + len(body).to_bytes(3, "big") + body, version=b"\x03\x03")


_ASKS = _server_hello(_RETRY)
_GOES_ON = _server_hello(bytes(32))


# ── pure ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "asks"),
    [
        (_ASKS, True),
        (_ASKS + _CHANGE, True),
        (_server_hello(_RETRY, kind=6), True),
        (_GOES_ON, False),
        (_ALERT, False),
        (_ALERT + _ASKS, False),
        (_WARNING, None),
        (_WARNING + _ASKS, True),
        (_WARNING * 3 + _CHANGE + _ASKS, True),
        (_WARNING + _GOES_ON, False),
        (_WARNING + _ALERT, False),
        (_CHANGE + _EARLY, False),
        (b"\x15\x03\x03\x00\x00" + _ASKS, False),
        (b"\x14\x03\x03\x00\x00" + _ASKS, False),
        (b"\x18\x03\x03\x00\x01x" + _ASKS, False),
        (hello_record(_ASKS[5:30], version=b"\x03\x03") + _WARNING + _CHANGE, None),
        (
            hello_record(_ASKS[5:30], version=b"\x03\x03")
            + _WARNING
            + hello_record(_ASKS[30:], version=b"\x03\x03"),
            True,
        ),
        (b"HTTP/1.1 400 Bad Request\r\n", False),
        (b"\x16\x03\x03\x00\x00" + _ASKS, False),
        (b"", None),
        (_ASKS[:42], None),
        (_GOES_ON[:42], None),
    ],
)
def test_an_answer_tells_whether_it_asks_again(answer: bytes, *, asks: bool | None) -> None:
    """By the random that RFC 8446 gives to a HelloRetryRequest, and as early as it is there."""
    assert asks is AnswerReader().feed(answer)
    reader, told = AnswerReader(), None
    for byte in answer:
        if told is None:
            told = reader.feed(bytes([byte]))
    assert asks is told


@given(st.data())
def test_an_answer_is_the_same_however_it_is_cut(data: st.DataObject) -> None:
    """Into pieces on the way, and into records by the server, with warnings between them."""
    whole = data.draw(st.sampled_from([_ASKS, _GOES_ON]))
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=60))
    message, records = whole[5:], b""
    between = data.draw(st.sampled_from([b"", _WARNING, _CHANGE, _WARNING + _CHANGE]))
    for size in (*sizes, len(message)):
        if message:
            records += between + hello_record(message[:size], version=b"\x03\x03")
            message = message[size:]
    reader, told = AnswerReader(), None
    for byte in records:
        told = reader.feed(bytes([byte]))
        if told is not None:
            break

    assert (whole == _ASKS) is told


@given(st.binary(max_size=400))
def test_any_bytes_have_a_reading(data: bytes) -> None:
    """Total, and never more than there is."""
    assert AnswerReader().feed(data) in {True, False, None}
    size = leading_record(data)
    assert size is None or 0 <= size <= len(data)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (_CHANGE + _FIRST, 6),
        (_EARLY, 10),
        (_ALERT, 7),
        (_FIRST, 0),
        (b"GET", 0),
        (b"\x17\x04\x03\x00\x01x", 0),
        (b"\x17\x03\x03\x00\x00", 0),
        (b"\x17\x03\x03\xff\xff", 0),
        (b"\x17\x03\x03\x41\x00" + bytes(0x4100), 5 + 0x4100),
        (b"\x17\x03\x03\x41\x01" + bytes(0x4101), 0),
        (_EARLY[:9], None),
        (b"", None),
    ],
)
def test_what_may_come_before_a_second_hello(data: bytes, size: int | None) -> None:
    """Whole records of three kinds; a handshake record, and whatever is no record, is the hello."""
    assert size == leading_record(data)


# ── through the proxy ─────────────────────────────────────────────────────────────────────────


class _Server:
    """Answers the first hello, and keeps what comes."""

    def __init__(self, answer: bytes = _ASKS) -> None:
        self.answer = answer
        self.first = b""
        self.rest = bytearray()
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.first = await reader.readexactly(len(_FIRST))
        await self.answers.wait()
        writer.write(self.answer)
        while part := await reader.read(65_536):
            self.rest += part
            writer.write(part.upper())


async def _until(server: _Server, received: bytes) -> None:
    async with asyncio.timeout(30):
        # The server has no event for each byte.
        while bytes(server.rest) != received:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.loopback
@pytest.mark.parametrize("between", [b"", _CHANGE, _EARLY * 3 + _CHANGE])
@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (client_hello("b.test"), DenyReason.SNI_MISMATCH),
        (client_hello(), DenyReason.SNI_MISSING),
        (b"GET / HTTP/1.1\r\n", DenyReason.NOT_TLS),
    ],
)
def test_a_second_hello_for_another_host_is_one_denial(
    kit: Any, between: bytes, second: bytes, reason: DenyReason
) -> None:
    """What may come before it reaches the server; not a byte of it does, and it is one event."""

    async def main() -> None:
        server = _Server()
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            writer.write(between + second)
            assert _ACCESS_DENIED == (await kit.read_all(reader))[-7:]
            await kit.shut(writer)
            await world.settled()
            [denial] = world.observer.denials
            assert ("R13", reason) == (denial.violation.rule, denial.violation.reason)
            [record] = world.observer.records
            assert (Outcome.DENIED, "event-1") == (record.outcome, record.event_id)
            assert between.startswith(bytes(server.rest))

    kit.run(main())


@pytest.mark.loopback
def test_a_second_hello_that_does_not_wait_is_held(kit: Any) -> None:
    """A client that knows what the server will say gets nothing past the check."""

    async def main() -> None:
        server = _Server()
        server.answers.clear()
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            first = _FIRST + client_hello("b.test")
            reader, writer, _ = await world.tunnel("a.test:443", first=first)
            await asyncio.sleep(0.05)
            server.answers.set()
            assert _ASKS + _ACCESS_DENIED == await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            assert (_FIRST, b"") == (server.first, bytes(server.rest))
            assert 1 == len(world.observer.denials)

    kit.run(main())


@pytest.mark.loopback
@pytest.mark.parametrize("cut", [1, 6, 20, 200])
def test_a_second_hello_for_the_same_host_opens_the_tunnel(kit: Any, cut: int) -> None:
    """In pieces too; then both directions are free."""

    async def main() -> None:
        server = _Server()
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            sent = _CHANGE + _FIRST + b"more"
            writer.write(sent[:cut])
            await asyncio.sleep(0.02)
            writer.write(sent[cut:])
            assert sent.upper() == await reader.readexactly(len(sent))
            assert sent == bytes(server.rest)
            await kit.shut(writer)
            await world.settled()
            assert Outcome.TUNNELLED is world.observer.records[0].outcome

    kit.run(main())


@pytest.mark.loopback
def test_early_data_waits_for_the_servers_first_bytes(kit: Any) -> None:
    """And is passed on as soon as they have come, whatever they say but for a second hello."""

    async def main() -> None:
        server = _Server(_GOES_ON)
        server.answers.clear()
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST + _EARLY)
            await asyncio.sleep(0.05)
            assert b"" == bytes(server.rest)
            server.answers.set()
            assert _GOES_ON == await reader.readexactly(len(_GOES_ON))
            await _until(server, _EARLY)
            await kit.shut(writer)

    kit.run(main())


@pytest.mark.loopback
@pytest.mark.parametrize("sent", [b"", _CHANGE, _ALERT, _CHANGE + _FIRST[:30]])
def test_a_client_may_leave_instead_of_a_second_hello(kit: Any, sent: bytes) -> None:
    """No denial; and what is only a part of a hello is not passed on."""

    async def main() -> None:
        server = _Server()
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            writer.write(sent)
            writer.write_eof()
            await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            assert not world.observer.denials
            assert _FIRST[:30] not in bytes(server.rest)

    kit.run(main())


@pytest.mark.loopback
def test_a_record_that_is_cut_is_not_passed_on(kit: Any) -> None:
    """What may come before a second hello is passed on whole or not at all."""

    async def main() -> None:
        server = _Server()
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            writer.write(_CHANGE + _EARLY[:9])
            writer.write_eof()
            await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            assert _CHANGE == bytes(server.rest)

    kit.run(main())


@pytest.mark.loopback
def test_a_server_that_asks_and_ends_at_once_is_seen(kit: Any) -> None:
    """Its end came before anybody waited for a second hello, and nobody waits for one then."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_ASKS)
        writer.write_eof()
        await reader.read()

    class Slow:
        """Comes back when the server has said everything."""

        def __init__(self, dialer: Any) -> None:
            self._dialer = dialer

        async def dial(self, address: Any, port: int, protocol: Any) -> object:
            side = protocol()
            opened: object = await self._dialer.dial(address, port, lambda: side)
            # A side tells its owner alone.
            while not side.ended:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return opened

    async def main() -> None:
        async with kit.serve(served) as place, kit.world("a.test", port=place.port) as world:
            world.proxy.dialer = Slow(world.dialer)
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            async with asyncio.timeout(30):
                assert _ASKS == await reader.read()
            # The client stays: it has its time to read, and not that of a hello.
            kit.pass_time(5)
            await world.settled()
            assert "" == world.observer.records[0].reason
            await kit.shut(writer)

    kit.run(main())


@pytest.mark.loopback
def test_a_client_that_floods_before_a_second_hello_fills_no_memory(kit: Any) -> None:
    """Early data is passed on no faster than the server reads it."""
    record = b"\x17\x03\x03\x40\x00" + bytes(0x4000)
    flood = record * 1800

    async def main() -> None:
        done = asyncio.Event()

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(_FIRST))
            writer.write(_ASKS)
            await done.wait()

        limits = ProxyLimits(hello_seconds=100)
        async with (
            kit.serve(served) as place,
            kit.world("a.test", port=place.port, limits=limits) as world,
        ):
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            [connection] = world.proxy._open
            writer.write(flood)
            await kit.stalled(lambda: connection.bytes_up)
            kit.pass_time(101)
            await kit.read_all(reader)
            writer.transport.abort()
            done.set()
            await world.settled()
            [told] = world.observer.records
            assert "hello_seconds" == told.reason
            assert told.bytes_up < len(flood) // 2

    kit.run(main())


@pytest.mark.loopback
def test_a_second_hello_that_does_not_come_is_not_waited_for(kit: Any) -> None:
    """It has the time of the first."""

    async def main() -> None:
        limits = ProxyLimits(hello_seconds=100)
        async with (
            kit.serve(_Server()) as place,
            kit.world("a.test", port=place.port, limits=limits) as world,
        ):
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            kit.pass_time(101)
            assert b"" == await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.FAILED, "hello_seconds") == (record.outcome, record.reason)

    kit.run(main())


@pytest.mark.loopback
def test_a_warning_does_not_hide_that_the_server_asks_again(kit: Any) -> None:
    """Clients take no notice of one, so the second hello is checked all the same."""

    async def main() -> None:
        server = _Server(_WARNING + _ASKS)
        async with kit.serve(server) as place, kit.world("a.test", port=place.port) as world:
            first = _FIRST + client_hello("b.test")
            reader, writer, _ = await world.tunnel("a.test:443", first=first)
            assert _WARNING + _ASKS + _ACCESS_DENIED == await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            assert b"" == bytes(server.rest)

    kit.run(main())


@pytest.mark.loopback
@pytest.mark.parametrize("sent", [b"", _CHANGE, _FIRST[:30]])
@pytest.mark.parametrize("how", ["says so and closes", "closes", "resets"])
def test_a_server_that_leaves_before_a_second_hello_is_seen(
    kit: Any, how: str, sent: bytes
) -> None:
    """At once, with what it said; a reset stays a reset, and nothing more is waited for."""

    async def main() -> None:
        left = asyncio.Event()

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(_FIRST))
            writer.write(_ASKS)
            await left.wait()
            if how == "resets":
                found = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            elif how == "says so and closes":
                writer.write(_ALERT)

        async with kit.serve(served) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            assert _ASKS == await reader.readexactly(len(_ASKS))
            writer.write(sent)
            await asyncio.sleep(0.05)
            left.set()
            async with asyncio.timeout(30):
                if how == "resets":
                    with pytest.raises(ConnectionResetError):
                        await reader.read()
                else:
                    told = _ALERT if how == "says so and closes" else b""
                    assert told == await reader.read()
            await kit.shut(writer)
            await world.settled()
            assert not world.observer.denials
            [record] = world.observer.records
            assert Outcome.TUNNELLED is record.outcome
            assert ("reset" if how == "resets" else "") == record.reason

    kit.run(main())


@pytest.mark.loopback
def test_a_server_that_floods_before_a_second_hello_fills_no_memory(kit: Any) -> None:
    """What it says meanwhile is passed on, no faster than the client reads it."""
    flood = 30_000_000

    async def main() -> None:
        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(_FIRST))
            writer.write(_ASKS + bytes(flood))
            await writer.drain()

        limits = ProxyLimits(hello_seconds=100)
        async with (
            kit.serve(served) as place,
            kit.world("a.test", port=place.port, limits=limits) as world,
        ):
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            [connection] = world.proxy._open
            await kit.stalled(lambda: connection.bytes_down)
            kit.pass_time(101)
            # Then what is left of its answer is waited for, for a while.
            await kit.stalled(lambda: connection.bytes_down)
            kit.pass_time(10)
            await world.settled()
            [record] = world.observer.records
            assert "hello_seconds" == record.reason
            assert record.bytes_down < flood // 2
            await kit.shut(writer)
            del reader

    kit.run(main())


@pytest.mark.loopback
def test_a_server_that_floods_before_it_tells_fills_no_memory(kit: Any) -> None:
    """Warnings without end tell nothing yet, and are passed on no faster than the client reads."""
    warning = b"\x15\x03\x03\xff\xff\x01" + bytes(0xFFFE)
    flood = warning * 460

    async def main() -> None:
        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(_FIRST))
            writer.write(flood)
            await writer.drain()

        limits = ProxyLimits(tunnel_seconds=100)
        async with (
            kit.serve(served) as place,
            kit.world("a.test", port=place.port, limits=limits) as world,
        ):
            reader, writer, _ = await world.tunnel("a.test:443", first=_FIRST)
            [connection] = world.proxy._open
            await kit.stalled(lambda: connection.bytes_down)
            kit.pass_time(101)
            await world.settled()
            [record] = world.observer.records
            assert "tunnel_seconds" == record.reason
            assert record.bytes_down < len(flood) // 2
            await kit.shut(writer)
            del reader

    kit.run(main())


@pytest.mark.loopback
@pytest.mark.parametrize("curve", ["secp384r1", "prime256v1"])
def test_openssl_is_asked_again_and_served(kit: Any, authority: Any, curve: str) -> None:
    """A real server without the client's key share answers with a HelloRetryRequest."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(3)).upper())
        await writer.drain()

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.ca_file.parent / "leaf.pem")
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_ecdh_curve(curve)
        async with (
            kit.serve(served, tls=context) as place,
            kit.world("a.test", port=place.port) as world,
        ):
            reader, writer, _ = await world.tunnel("a.test:443")
            await writer.start_tls(authority.client, server_hostname="a.test")
            writer.write(b"abc")
            assert b"ABC" == await reader.readexactly(3)
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            await world.settled()
            assert not world.observer.denials

    kit.run(main())
