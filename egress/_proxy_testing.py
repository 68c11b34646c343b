"""Strict fakes for the proxy's ports, ClientHellos by hand, and a runner for case rows.

`egress.testing` exports them. The runner opens sockets on the loopback interface only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from egress._proxy_values import AccessRecord, ProxyDenial, ProxyRun
from egress.address import Address
from egress.allowlist import parse_allowlist
from egress.policy import AddressPolicy, EgressPolicy
from egress.ports import Resolver
from egress.proxy import serve_proxy

# A token of tests, which opens nothing.
_TOKEN: Final = "token-of-the-run"  # noqa: S105
_FIRST_BYTES: Final[Mapping[str, bytes]] = {
    "http": b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "": b"",
}
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
_WAIT_SECONDS: Final = 5.0


class RecordingObserver:
    """Keeps what the proxy tells.

    Args:
        error: Raised for every denial instead of giving an id.
        access_error: Raised for every record.

    Attributes:
        denials: Every denial, in order.
        records: Every connection that has ended, in order.
    """

    def __init__(
        self, *, error: Exception | None = None, access_error: Exception | None = None
    ) -> None:
        self.denials: list[ProxyDenial] = []
        self.records: list[AccessRecord] = []
        self._error = error
        self._access_error = access_error

    async def denied(self, denial: ProxyDenial) -> str:
        """Keeps *denial*; its id is its number, "event-1" for the first."""
        self.denials.append(denial)
        if self._error is not None:
            raise self._error
        return f"event-{len(self.denials)}"

    def access(self, record: AccessRecord) -> None:
        """Keeps *record*."""
        self.records.append(record)
        if self._access_error is not None:
            raise self._access_error


class ScriptedDialer:
    """Connects a vetted address and port to a local server in its place.

    Args:
        places: (address, port) to the (host, port) that really is connected to, or to the error
            that dialling raises. An address that is not in it must not be dialled.
        any_place: Where everything else goes, if anything may.

    Attributes:
        dials: What was dialled, in order.
        unexpected: What was dialled and is not in the script.
    """

    def __init__(
        self,
        places: Mapping[tuple[str, int], tuple[str, int] | OSError] | None = None,
        *,
        any_place: tuple[str, int] | None = None,
    ) -> None:
        self._places = dict(places or {})
        self._any_place = any_place
        self.dials: list[tuple[str, int]] = []
        self.unexpected: list[tuple[str, int]] = []

    async def dial(
        self, address: Address, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> object:
        """The connection to the place of *address*."""
        asked = (str(address), port)
        self.dials.append(asked)
        place = self._places.get(asked, self._any_place)
        if place is None:
            self.unexpected.append(asked)
            raise AssertionError(f"dialled {asked}, which is not in the script")
        if isinstance(place, OSError):
            raise place
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(protocol, *place)
        return transport

    def assert_used(self) -> None:
        """Complains about scripted places that were never dialled, and about others that were."""
        unused = sorted(set(self._places) - set(self.dials))
        if unused or self.unexpected:
            raise AssertionError(f"never dialled: {unused}; unexpected: {self.unexpected}")


def hello_record(content: bytes, *, kind: int = 22, version: bytes = b"\x03\x01") -> bytes:
    """One TLS record around *content*."""
    return bytes([kind]) + version + len(content).to_bytes(2, "big") + content


def hello_message(
    *names: bytes, extensions: Sequence[tuple[int, bytes]] = (), name_kind: int = 0
) -> bytes:
    """A ClientHello, without a record around it, with a server_name extension for *names*."""
    listed = b"".join(bytes([name_kind]) + _vector(2, name) for name in names)
    given = [(0, _vector(2, listed))] if names else []
    extended = b"".join(
        kind.to_bytes(2, "big") + _vector(2, content) for kind, content in (*given, *extensions)
    )
    body = b"".join(
        (
            b"\x03\x03",
            bytes(32),
            _vector(1, bytes(32)),
            _vector(2, bytes.fromhex("1301 1302 1303")),
            _vector(1, b"\x00"),
            _vector(2, extended),
        )
    )
    return b"\x01" + len(body).to_bytes(3, "big") + body


def client_hello(server_name: str | None = None) -> bytes:
    """The first flight of a TLS client that asks for *server_name*."""
    names = () if server_name is None else (server_name.encode("ascii"),)
    return hello_record(hello_message(*names))


def _vector(size: int, content: bytes) -> bytes:
    return len(content).to_bytes(size, "big") + content


@attrs.frozen(kw_only=True)
class ProxyCaseOutcome:
    """What running one row against a proxy came to.

    Attributes:
        verdict: "allow", "deny" or "invalid"; "failed" when it was allowed and nothing came back.
        status: The status of the proxy's answer, 0 without one.
        denials: What the observer was told.
        records: Of all connections.
        lookups: Names that were looked up.
        dials: Addresses and ports that were dialled.
        received: Bytes that reached the upstream.
    """

    verdict: str
    status: int
    denials: tuple[ProxyDenial, ...]
    records: tuple[AccessRecord, ...]
    lookups: tuple[str, ...]
    dials: tuple[tuple[str, int], ...]
    received: bytes


async def run_proxy_case(
    case: Mapping[str, Any], *, resolver: Resolver, pieces: Collection[int] = ()
) -> ProxyCaseOutcome:
    """Runs one row of kind `proxy` against a listening proxy, with every upstream faked.

    Args:
        case: Keys `allowlist`, `url` (the request target), `request` (`method`, `headers`,
            `token`, `sni`, `first_bytes`) and optionally `policy`.
        resolver: Answers names, and keeps them in `lookups` when it is a `ScriptedResolver`.
        pieces: Where to cut what the client sends, to send it in pieces.
    """
    observer, received = RecordingObserver(), bytearray()
    async with _upstream(received) as place:
        dialer = ScriptedDialer(any_place=place)
        run = ProxyRun(run="case", token=_TOKEN, policy=_policy_of(case))
        async with serve_proxy([run], observer=observer, resolver=resolver, dialer=dialer) as proxy:
            status, answered = await _converse(proxy.address, case["request"], case["url"], pieces)
    return ProxyCaseOutcome(
        verdict=_verdict(status, answered=answered, denied=bool(observer.denials)),
        status=status,
        denials=tuple(observer.denials),
        records=tuple(observer.records),
        lookups=tuple(getattr(resolver, "lookups", ())),
        dials=tuple(dialer.dials),
        received=bytes(received),
    )


def _policy_of(case: Mapping[str, Any]) -> EgressPolicy:
    switches = case.get("policy", {})
    return EgressPolicy(
        allowlist=parse_allowlist(case["allowlist"]),
        address=AddressPolicy(
            allowed_hosts=switches.get("allowedHosts", ()),
            allow_private_addresses=switches.get("allowPrivateAddresses", False),
        ),
    )


def _verdict(status: int, *, answered: bool, denied: bool) -> str:
    if denied:
        return "deny"
    if status in {400, 407}:
        return "invalid"
    return "allow" if status == 200 and answered else "failed"


@contextlib.asynccontextmanager
async def _upstream(received: bytearray) -> AsyncIterator[tuple[str, int]]:
    """A server that answers everything, and keeps what it gets."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(65_536))
        with contextlib.suppress(OSError):
            writer.write(_ANSWER)
            writer.write_eof()
            # Closed with something unread, the answer would be lost in a reset.
            received.extend(await reader.read(-1))
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


async def _converse(
    address: tuple[str, int], request: Mapping[str, Any], url: str, pieces: Collection[int]
) -> tuple[int, bool]:
    """The status of the answer, and whether anything came from upstream."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            await _send(writer, _head(request, url), pieces)
            line = await reader.readline()
            status = int(line.split()[1]) if line else 0
            if request["method"] != "CONNECT" or status != 200:
                return status, bool(await _drained(reader))
            while await reader.readline() not in {b"\r\n", b""}:
                pass
            await _send(writer, _first_bytes(request), pieces)
            return status, await _drained(reader) == _ANSWER
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _drained(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(-1)
    except OSError:
        return b""


async def _send(writer: asyncio.StreamWriter, data: bytes, pieces: Collection[int]) -> None:
    cuts = [0, *sorted(cut for cut in pieces if 0 < cut < len(data)), len(data)]
    for start, end in pairwise(cuts):
        writer.write(data[start:end])
        await writer.drain()
        await asyncio.sleep(0)


def _head(request: Mapping[str, Any], url: str) -> bytes:
    fields = [f"{name}: {value}" for name, value in request["headers"]]
    given = {"ok": _TOKEN, "missing": None}.get(request.get("token", "ok"), "not-the-token")
    if given is not None:
        encoded = base64.b64encode(f"case:{given}".encode()).decode()
        fields.append(f"Proxy-Authorization: Basic {encoded}")
    return "\r\n".join((f"{request['method']} {url} HTTP/1.1", *fields, "", "")).encode("latin-1")


def _first_bytes(request: Mapping[str, Any]) -> bytes:
    kind = request.get("first_bytes", "")
    return client_hello(request.get("sni")) if kind == "tls" else _FIRST_BYTES[kind]
