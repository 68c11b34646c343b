"""Loopback servers, raw clients and a certificate authority for the tests of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from egress import EgressPolicy, EgressProxy, ProxyLimits, ProxyRun, parse_allowlist, serve_proxy
from egress.testing import RecordingObserver, ScriptedDialer, ScriptedResolver

Served: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_TOKEN = "token-of-run-one"
PUBLIC = "93.184.215.14"


@attrs.define
class Place:
    """A server on the loopback interface, and what reached it."""

    port: int = 0
    accepted: int = 0
    received: bytearray = attrs.field(factory=bytearray)


async def _nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Waits for the end."""
    await reader.read()


@attrs.define
class World:
    """A proxy with its fakes, and raw conversations with it."""

    proxy: EgressProxy
    observer: RecordingObserver
    resolver: ScriptedResolver
    dialer: ScriptedDialer

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the proxy."""
        return await asyncio.open_connection(*self.proxy.address)

    async def tunnel(
        self, authority: str, *, first: bytes = b"", token: str = _TOKEN
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """A connection after its CONNECT was answered; the last value is the status."""
        reader, writer = await self.open()
        head = (
            f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
            f"Proxy-Authorization: Bearer {token}\r\n\r\n"
        )
        writer.write(head.encode() + first)
        try:
            line = await reader.readline()
        except OSError:
            line = b""
        status = int(line.split()[1]) if line else 0
        if status == 200:
            await reader.readuntil(b"\r\n")
        return reader, writer, status

    async def ask(self, raw: bytes) -> bytes:
        """Everything that comes back for *raw*."""
        reader, writer = await self.open()
        writer.write(raw)
        try:
            return await read_all(reader)
        finally:
            await shut(writer)

    async def get(self, url: str, *fields: str, method: str = "GET", body: bytes = b"") -> bytes:
        """Everything that comes back for one request in absolute-form."""
        host = url.partition("://")[2].partition("/")[0]
        lines = [
            f"{method} {url} HTTP/1.1",
            f"Host: {host}",
            f"Proxy-Authorization: Bearer {_TOKEN}",
        ]
        return await self.ask("\r\n".join((*lines, *fields, "", "")).encode() + body)

    async def settled(self, count: int = 1) -> None:
        """Waits until *count* connections have their record and none is open."""
        async with asyncio.timeout(30):
            # The port tells of an end, and of nothing else that could be waited for.
            while len(self.observer.records) < count or self.proxy.open_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def settled_to(self, count: int) -> None:
        """Waits until *count* connections are open."""
        async with asyncio.timeout(30):
            # As above.
            while self.proxy.open_connections != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """To the end, or to what came before a reset."""
    parts = []
    # Not OSError: a read that takes for ever is no end.
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            while part := await reader.read(65_536):
                parts.append(part)
    return b"".join(parts)


async def shut(writer: asyncio.StreamWriter) -> None:
    """Closes, whatever the other end has done."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class _MovableLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on."""

    moved: float = 0.0

    def time(self) -> float:
        return super().time() + self.moved


class Kit:
    """What tests build with."""

    token = _TOKEN
    public = PUBLIC
    read_all = staticmethod(read_all)
    shut = staticmethod(shut)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs *main*; as many descriptors are open after it as before."""
        before = _descriptors()
        with asyncio.Runner(loop_factory=_MovableLoop) as runner:
            runner.run(main)

        assert before == _descriptors()

    def pass_time(self, seconds: float) -> None:
        """Ends what waits for a time: limits are long, so that a slow machine meets none of them."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _MovableLoop)
        loop.moved += seconds

    async def stalled(self, count: Callable[[], int]) -> int:
        """Where *count* stands, once it stands still."""
        before, still = -1, 0
        while still < 10:
            await asyncio.sleep(0.01)
            found = count()
            before, still = found, still + 1 if found == before else 0
        return before

    @contextlib.asynccontextmanager
    async def serve(
        self, served: Served = _nothing, *, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Place]:
        """A server that hands each connection to *served* and closes it after."""
        place = Place()
        open_ones: set[asyncio.StreamWriter] = set()
        idle = asyncio.Event()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            place.accepted += 1
            open_ones.add(writer)
            try:
                await served(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                await shut(writer)
                open_ones.discard(writer)
                idle.set()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        place.port = server.sockets[0].getsockname()[1]
        try:
            yield place
        finally:
            server.close()
            async with asyncio.timeout(30):
                while open_ones:
                    idle.clear()
                    for writer in open_ones:
                        writer.transport.abort()
                    await idle.wait()
                await server.wait_closed()

    @contextlib.asynccontextmanager
    async def world(
        self,
        *entries: str,
        port: int | None = None,
        names: Mapping[str, list[str]] | None = None,
        places: Mapping[tuple[str, int], tuple[str, int] | OSError] | None = None,
        limits: ProxyLimits | None = None,
        observer: RecordingObserver | None = None,
        **options: Any,
    ) -> AsyncIterator[World]:
        """A proxy of one run, whose every upstream is the server at *port*."""
        observer = observer or RecordingObserver()
        resolver = ScriptedResolver(names or {"a.test": [PUBLIC]})
        dialer = ScriptedDialer(places, any_place=None if port is None else ("127.0.0.1", port))
        run = self.run_of(*(entries or ("a.test:*",)), limits=limits)
        async with serve_proxy(
            [run], observer=observer, resolver=resolver, dialer=dialer, **options
        ) as proxy:
            yield World(proxy, observer, resolver, dialer)
        assert not proxy.open_connections
        assert not dialer.unexpected

    def run_of(
        self,
        *entries: str,
        limits: ProxyLimits | None = None,
        run: str = "one",
        token: str = _TOKEN,
    ) -> ProxyRun:
        """A run over *entries*."""
        return ProxyRun(
            run=run,
            task="task",
            session="session",
            token=token,
            policy=EgressPolicy(allowlist=parse_allowlist(entries)),
            limits=limits or ProxyLimits(),
        )


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(scope="session")
def kit() -> Kit:
    """Builders."""
    return Kit()


@attrs.frozen
class Authority:
    """A certificate authority of the tests' own, and what it has signed."""

    ca_file: Path
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs for a.test and 127.0.0.1."""
    folder = tmp_path_factory.mktemp("ca")
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    now = dt.datetime.now(dt.UTC)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    ski = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(ski, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [
        x509.DNSName("a.test"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    leaf = (
        builder(x509.Name([]), key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "leaf.pem").write_bytes(
        leaf.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "leaf.pem")
    return Authority(
        folder / "ca.pem", server, ssl.create_default_context(cafile=str(folder / "ca.pem"))
    )
