"""Real receivers on loopback: what they got is what the log holds, and what goes wrong is told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from egress.channel import open_stream
from egress.errors import ConnectionLost
from runtime_pack.errors import ContractError
from runtime_pack.sink_config import SinkConfig, parse_sink
from runtime_pack.sinks import NotDelivered, Refused, Sender, sender_for
from runtime_pack.sinks.items import Item, item_of

pytestmark = pytest.mark.loopback

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
_COUNTED = re.compile(rb"([1-9][0-9]*) ")


def events(count: int, *, size: int = 0) -> list[Item]:
    return [
        item_of(
            "run.jsonl",
            number,
            json.dumps(
                {
                    "v": 1,
                    "id": f"0190-{number}",
                    "seq": number,
                    "ts": "2026-03-01T10:00:00.000001Z",
                    "type": "sandbox:violation",
                    "code": "EGR001D",
                    "severity": "medium",
                    "subject": {"run": "r1", "step": "t1.c1"},
                    "object": {"host": "evil.example", "port": 443, "pad": "x" * size},
                    "decision": {"rule": "R4"},
                }
            ).encode(),
        )
        for number in range(1, count + 1)
    ]


def config(to: str, kind: str = "syslog", **more: Any) -> SinkConfig:
    table = {"kind": kind, "to": to, "private_address": True, "timeout_seconds": 20, **more}
    return parse_sink("siem", table, {"secret"})


def counted(stream: bytes) -> list[bytes]:
    """The messages of RFC 6587 octet counting, read by its grammar."""
    found = []
    while stream:
        match = _COUNTED.match(stream)
        assert match is not None, stream[:60]
        start, size = match.end(), int(match[1])
        assert len(stream) >= start + size
        found.append(stream[start : start + size])
        stream = stream[start + size :]
    return found


Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Served, **given: Any) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, **given)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def failing(sender: Sender, batch: Sequence[Item]) -> str:
    with pytest.raises(NotDelivered) as raised:
        await sender.send(batch)
    return str(raised.value)


@pytest.mark.parametrize("form", ["rfc5424", "cef"])
@pytest.mark.parametrize("secure", [False, True])
def test_syslog_is_counted_and_confirmed(authority: Any, form: str, secure: bool) -> None:
    """RFC 6587 over TCP, RFC 5425 through TLS: whole messages, and no more than was sent."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(-1))
        writer.close()

    async def main() -> None:
        given = {"ssl": authority.server()} if secure else {}
        async with listening(serve, **given) as port:
            tls = {"ca_file": str(authority.ca_file)} if secure else {}
            way = "tls" if secure else "tcp"
            sink = config(f"{way}://127.0.0.1:{port}", format=form, **tls)
            assert 0 == await sender_for(sink).send(events(300))

    asyncio.run(main())
    (messages,) = map(counted, got)
    assert 300 == len(messages)
    assert all(message.startswith(b"<108>1 2026-03-01T10:00:00.000001Z ") for message in messages)
    assert (b"CEF:0|" in messages[-1]) is (form == "cef")
    assert b"0190-300" in messages[-1]


async def _reads_a_part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1000)
    writer.close()


async def _resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1000)
    handle: socket.socket = writer.get_extra_info("socket")
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _closes_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.close()


@pytest.mark.parametrize("serve", [_reads_a_part, _resets, _closes_at_once])
@pytest.mark.parametrize("secure", [False, True])
def test_a_receiver_that_closes_in_the_middle_has_nothing_confirmed(
    authority: Any, serve: Served, secure: bool
) -> None:
    """However it ends: the batch is to be sent again."""

    async def main() -> None:
        given = {"ssl": authority.server()} if secure else {}
        async with listening(serve, **given) as port:
            tls = {"ca_file": str(authority.ca_file)} if secure else {}
            way = "tls" if secure else "tcp"
            sink = config(f"{way}://127.0.0.1:{port}", **tls)
            await failing(sender_for(sink), events(3000))

    asyncio.run(main())


@pytest.mark.parametrize("read", [0, 1, 1000])
def test_what_only_the_system_of_the_receiver_has_is_not_confirmed(read: int) -> None:
    """A small batch is taken by the system at once; a process that ends without reading it has none."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)

            async def serve() -> None:
                connection, _ = await loop.sock_accept(listener)
                with connection:
                    await loop.sock_recv(connection, 1)
                    if read:
                        await loop.sock_recv(connection, read)

            serving = asyncio.create_task(serve())
            to = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            await failing(sender_for(config(to)), events(20))
            await serving

    asyncio.run(main())


def test_a_receiver_that_never_closes_is_told_of(tmp_path: Path) -> None:
    """It is not confirmed, unless the operator says that this receiver does not do that."""
    got: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            got.append(await reader.read(-1))
        await over.wait()
        writer.close()

    async def main() -> str:
        async with listening(serve) as port:
            to = f"tcp://127.0.0.1:{port}"
            told = await failing(sender_for(config(to, timeout_seconds=2)), events(3))
            await sender_for(config(to, confirm=False)).send(events(4))
            over.set()
            return told

    told = asyncio.run(main())
    assert "close in time" in told
    assert [3, 4] == [len(counted(stream)) for stream in got]


def test_a_receiver_that_shows_another_certificate_gets_nothing(authority: Any) -> None:
    """Without its authority there is no connection, and no event goes out."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(-1))
        writer.close()

    async def main() -> str:
        async with listening(serve, ssl=authority.server()) as port:
            return await failing(sender_for(config(f"tls://127.0.0.1:{port}")), events(1))

    assert "certificate" in asyncio.run(main()).lower()
    assert b"" == b"".join(got)


def test_a_receiver_of_the_own_network_is_opened_by_its_word_only() -> None:
    """Without `private_address` a sink reaches no loopback and no private address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.close()

    async def main() -> list[str]:
        async with listening(serve) as port:
            closed: dict[str, Any] = {"private_address": False}
            return [
                await failing(sender_for(config(f"{way}://127.0.0.1:{port}", **closed)), events(1))
                for way in ("tcp", "udp")
            ]

    for told in asyncio.run(main()):
        assert "private_address" in told


class _Names:
    """Answers every name with loopback."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        assert (host, port) != ("", 0)
        return ["127.0.0.1"]


@pytest.mark.parametrize("way", ["tcp", "tls", "udp"])
def test_a_name_that_leads_into_the_own_network_is_not_followed(way: str) -> None:
    """What a name answers is checked before anything is dialled."""
    sink = config(f"{way}://siem.example:6514", private_address=False)
    told = asyncio.run(failing(sender_for(sink, resolver=_Names()), events(1)))

    assert "the policy refuses siem.example" in told


@pytest.mark.parametrize("secure", [False, True])
def test_an_end_that_came_before_ours_confirms_nothing(authority: Any, secure: bool) -> None:
    """A receiver that read all there was, and closed, may have read a part of a message."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        writer.close()

    async def main() -> None:
        given = {"ssl": authority.server()} if secure else {}
        async with listening(serve, **given) as port:
            tls = {"ca_file": str(authority.ca_file)} if secure else {}
            sink = config(f"{'tls' if secure else 'tcp'}://127.0.0.1:{port}", **tls)
            assert sink.target is not None
            context = None if not secure else ssl.create_default_context(cafile=authority.ca_file)
            stream = await open_stream(
                sink.target, policy=sink.policy(), timeout_seconds=60, context=context
            )
            await stream.write(b"12345")
            await stream._wire.end()
            await stream.finish()

    with pytest.raises(ConnectionLost, match="closed by the receiver before"):
        asyncio.run(main())


class _Mailbox(asyncio.DatagramProtocol):
    def __init__(self, wanted: int) -> None:
        self.got: list[bytes] = []
        self._wanted, self.full = wanted, asyncio.Event()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.got.append(data)
        if len(self.got) == self._wanted:
            self.full.set()


def test_a_datagram_is_one_message_and_what_is_too_long_is_noted() -> None:
    """RFC 5426; a message that does not fit goes as a note with its id, number and digest."""

    async def main() -> list[bytes]:
        loop = asyncio.get_running_loop()
        wire, box = await loop.create_datagram_endpoint(
            lambda: _Mailbox(4), local_addr=("127.0.0.1", 0)
        )
        try:
            port = wire.get_extra_info("sockname")[1]
            batch = [*events(3), *events(4, size=3000)[3:]]
            await sender_for(config(f"udp://127.0.0.1:{port}")).send(batch)
            await box.full.wait()
            return box.got
        finally:
            wire.close()

    *whole, note = asyncio.run(main())
    assert 3 == len(whole)
    assert len(note) < 2048
    assert (b'id="0190-4"' in note, b"not_forwarded" in note) == (True, True)
    assert b"line_sha256" in note


def test_a_port_where_nobody_listens_is_no_delivery() -> None:
    """TCP says so; of UDP the system says it where it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            dead = other.getsockname()[1]
    sinks = [config(f"tcp://127.0.0.1:{dead}"), config(f"udp://127.0.0.1:{port}")]

    async def main() -> list[str]:
        return [await failing(sender_for(sink), events(5)) for sink in sinks]

    assert all(asyncio.run(main()))


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────

Answer = Callable[[web.Request, bytes], web.StreamResponse]


@contextlib.asynccontextmanager
async def site(answer: Answer, **given: Any) -> AsyncIterator[int]:
    async def take(request: web.Request) -> web.StreamResponse:
        return answer(request, await request.read())

    app = web.Application(client_max_size=1 << 21)
    app.router.add_post("/{tail:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0, **given)
    await place.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def test_otlp_is_read_by_the_messages_of_the_protocol() -> None:
    """What is posted to a receiver is an export request, in as many parts as its size needs."""
    logs: Any = importlib.import_module("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    json_format: Any = importlib.import_module("google.protobuf.json_format")
    requests: list[Any] = []

    def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        assert ("/v1/logs", "application/json") == (request.path, request.content_type)
        text = re.sub(
            rb'"(traceId|spanId)":"([0-9a-f]+)"',
            lambda m: b'"%s":"%s"' % (m[1], base64.b64encode(bytes.fromhex(m[2].decode()))),
            body,
        )
        requests.append(json_format.Parse(text, logs.ExportLogsServiceRequest()))
        return web.json_response({})

    async def main() -> None:
        async with site(answer) as port:
            sink = config(f"http://127.0.0.1:{port}/v1/logs", "otlp")
            assert 0 == await sender_for(sink).send(events(500, size=1200))

    asyncio.run(main())
    records = [
        record
        for request in requests
        for record in request.resource_logs[0].scope_logs[0].log_records
    ]
    assert len(requests) > 1
    assert 500 == len(records)
    ids = [a.value.string_value for a in records[-1].attributes if a.key == "runtime_pack.id"]
    assert ["0190-500"] == ids


@pytest.mark.parametrize(
    ("status", "headers", "wait", "error"),
    [
        (503, {"Retry-After": "7"}, 7, NotDelivered),
        (429, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0, NotDelivered),
        (429, {"Retry-After": "99999999999999999999999999"}, 3600, NotDelivered),
        (500, {}, 0, NotDelivered),
        (401, {}, 0, NotDelivered),
        (404, {}, 0, NotDelivered),
        (307, {"Location": "http://127.0.0.1:1/"}, 0, NotDelivered),
        (400, {}, 0, Refused),
        (413, {}, 0, Refused),
        (422, {}, 0, Refused),
    ],
)
def test_what_a_status_means(
    status: int, headers: dict[str, str], wait: int, error: type[Exception]
) -> None:
    """Only what says that the batch itself is wrong is a refusal; all else is tried again."""

    async def main() -> None:
        async with site(lambda *_: web.Response(status=status, headers=headers)) as port:
            sink = config(f"http://127.0.0.1:{port}/v1/logs", "otlp")
            await sender_for(sink, secret=None).send(events(2))

    with pytest.raises(error) as raised:
        asyncio.run(main())
    assert wait == getattr(raised.value, "retry_after", 0)


def test_what_otlp_threw_away_is_counted_and_not_sent_again() -> None:
    """A partial success is a delivery: the protocol forbids to repeat it."""
    answers = [
        b'{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"no"}}',
        b'{"partialSuccess":{}}',
        b'{"partialSuccess":{"rejectedLogRecords":-1}}',
        b"not JSON",
        b"[]",
        b"",
    ]
    told = iter(answers)

    async def main() -> list[int]:
        async with site(lambda *_: web.Response(body=next(told))) as port:
            sender = sender_for(config(f"http://127.0.0.1:{port}/v1/logs", "otlp"))
            return [await sender.send(events(4)) for _ in answers]

    assert [3, 0, 0, 0, 0, 0] == asyncio.run(main())


def test_a_webhook_is_signed_as_its_standard_has_it(authority: Any) -> None:
    """The independent library verifies it; the same batch has the same id; another secret does not."""
    hooks: Any = importlib.import_module("standardwebhooks.webhooks")
    got: list[tuple[bytes, dict[str, str]]] = []

    def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        got.append((body, dict(request.headers)))
        return web.Response(status=204)

    async def main() -> None:
        async with site(answer, ssl_context=authority.server()) as port:
            to, ca = f"https://127.0.0.1:{port}/hook", str(authority.ca_file)
            sink = config(to, "webhook", credential="secret", ca_file=ca)
            sender = sender_for(sink, secret=SECRET)
            for _ in range(2):
                await sender.send(events(3))

    asyncio.run(main())
    for body, headers in got:
        read = hooks.Webhook(SECRET).verify(body, headers)
        assert ["0190-1", "0190-2", "0190-3"] == [event["id"] for event in read["events"]]
        with pytest.raises(hooks.WebhookVerificationError):
            hooks.Webhook("whsec_" + base64.b64encode(bytes(32)).decode()).verify(body, headers)
        with pytest.raises(hooks.WebhookVerificationError):
            hooks.Webhook(SECRET).verify(body.replace(b"0190-1", b"0190-9"), headers)
    assert 1 == len({headers["webhook-id"] for _, headers in got})


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_####", "plain", SECRET[:20], SECRET[6:]])
def test_a_secret_that_signs_nothing_is_refused(secret: str) -> None:
    """Its form and length are said, and nothing of it."""
    sink = config("https://hook.example/", "webhook", credential="secret")
    with pytest.raises(ContractError) as raised:
        sender_for(sink, secret=secret)
    assert (
        not secret or secret.removeprefix("whsec_") not in str(raised.value) or secret == "whsec_"
    )


def test_a_token_goes_to_its_receiver(authority: Any) -> None:
    """As a bearer token, through TLS."""
    got: list[str] = []

    def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        del body
        got.append(request.headers["Authorization"])
        return web.json_response({})

    async def main() -> None:
        async with site(answer, ssl_context=authority.server()) as port:
            to, ca = f"https://127.0.0.1:{port}/v1/logs", str(authority.ca_file)
            sink = config(to, "otlp", credential="secret", ca_file=ca)
            await sender_for(sink, secret="tok").send(events(1))

    asyncio.run(main())
    assert ["Bearer tok"] == got
