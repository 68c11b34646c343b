"""`proxied_fetch`: one hop through our egress proxy, for `GuardedClient(fetch=…)`.

The client still checks the list and literal addresses; names are looked up, and addresses vetted,
by the proxy alone. https goes through CONNECT, with TLS to the target, verified against its name,
inside the tunnel: the proxy sees ciphertext. A denial of the proxy comes back as `EgressDenied`
with the id of the event that the proxy has made, so that no second one is.

One connection serves one hop. A `Fetch` has no end of life at which kept ones could be closed.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final, NoReturn

import attrs
import h11
import orjson

from egress._proxy_replies import EVENT_HEADER, EVENT_ID
from egress.allowlist import parse_allowlist
from egress.body import ACCEPT_ENCODING
from egress.decision import Deny, DenyReason, check_listed
from egress.errors import (
    AllowlistError,
    BodyIncomplete,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DnsFailed,
    EgressDenied,
    FetchError,
    HeadTooLarge,
    ProtocolFailed,
    TlsFailed,
    UrlRejected,
)
from egress.policy import EgressPolicy
from egress.ports import Fetch, FetchLimits, Headers, HopResponse
from egress.url import Target, parse_target
from egress.violation import violation_of

__all__ = ("proxied_fetch",)

_READ_BYTES: Final = 65_536
_MAX_DENIAL_BYTES: Final = 65_536
_USER_AGENT: Final = "agent-runtime-pack"
_ACCEPT: Final = (
    "text/html, application/xhtml+xml, application/json, application/xml;q=0.9, "
    "text/*;q=0.9, */*;q=0.1"
)
_HEAD_TOO_LARGE_HINT: Final = 431
# For the denial to tell its reason; the id of its event has come in the head.
_DENIAL_SECONDS: Final = 2.0
_RULE: Final = re.compile(r"R(?:[1-9]|1[0-5])")
_WORD: Final = re.compile(r"[A-Za-z0-9_]{1,64}")
_EVENT: Final = EVENT_HEADER.lower().encode("ascii")

# What went wrong at the proxy, by the reason word of its answer.
_FAILURES: Final[Mapping[str, type[FetchError]]] = {
    "dns_error": DnsFailed,
    "dns_timeout": DnsFailed,
    "connect_failed": ConnectFailed,
    "connect_timeout": ConnectFailed,
    "upstream_closed": ConnectionLost,
    "upstream_protocol": ProtocolFailed,
    "too_many_informational": HeadTooLarge,
    "upstream_head_too_large": HeadTooLarge,
}


def proxied_fetch(
    proxy_url: str,
    token: str,
    *,
    limits: FetchLimits | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Fetch:
    """A `Fetch` that performs each hop through the egress proxy at *proxy_url*.

    Args:
        proxy_url: `http://` and the authority of the proxy, without credentials.
        token: The run's token at that proxy.
        limits: Its caps on headers and informational responses; the deadline and the caps on the
            body are the client's.
        ssl_context: What certificates of targets are verified with; one that does not verify
            chain and name is refused.

    Raises:
        ValueError: *proxy_url*, *token* or *ssl_context* cannot be used.
    """
    try:
        proxy = parse_target(proxy_url)
    except UrlRejected as error:
        raise ValueError(f"not the URL of a proxy: {error}") from error
    if proxy.scheme != "http" or proxy.path_query != "/":
        raise ValueError("the URL of the proxy is http:// and an authority")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token is visible ASCII")
    if ssl_context is not None and not _verifies(ssl_context):
        raise ValueError("a context that verifies neither chain nor name is no TLS")
    fetch = _ProxiedFetch(proxy, token, limits or FetchLimits(), ssl_context)
    return fetch.perform


def _verifies(context: ssl.SSLContext) -> bool:
    return context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED


@attrs.frozen
class _ProxiedFetch:
    """A fetch by way of the proxy, with the token of one run."""

    proxy: Target
    token: str = attrs.field(repr=False)
    limits: FetchLimits
    ssl_context: ssl.SSLContext | None

    async def perform(self, target: Target, /) -> HopResponse:
        """The answer to one GET of *target*."""
        exchange = _Exchange(self, target)
        try:
            return await exchange.perform()
        except BaseException:
            await exchange.close()
            raise


class _Exchange:
    """One hop: one connection to the proxy."""

    def __init__(self, fetch: _ProxiedFetch, target: Target) -> None:
        self._fetch = fetch
        self._target = target
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._http = self._new_connection()
        self._ended = False

    def _new_connection(self) -> h11.Connection:
        return h11.Connection(
            h11.CLIENT, max_incomplete_event_size=self._fetch.limits.max_header_bytes
        )

    async def perform(self) -> HopResponse:
        self._reader, self._writer = await self._connect()
        if self._target.scheme == "https":
            await self._open_tunnel()
            await self._start_tls()
        await self._send(self._request())
        response = await self._head()
        if self._target.scheme == "http":
            # Inside a tunnel nothing is the proxy's word, whatever it says.
            await self._check_proxy(response)
        return HopResponse(
            status=response.status_code,
            headers=_headers(response),
            body=self._body(),
            close=self.close,
        )

    async def close(self) -> None:
        """Drops the connection. May be called twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()
            # The socket is closed in the next round of the loop. `wait_closed` would wait for
            # ever after a handshake that was cancelled: nobody tells the stream of its end.
            await asyncio.sleep(0)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        proxy = self._fetch.proxy
        try:
            return await asyncio.open_connection(proxy.host, proxy.port)
        except OSError as error:
            raise self._error(ConnectFailed, "the egress proxy cannot be reached") from error

    async def _open_tunnel(self) -> None:
        authority = _authority_with_port(self._target)
        await self._send(
            h11.Request(
                method="CONNECT",
                target=authority,
                headers=[("Host", authority), self._credentials()],
            )
        )
        response = await self._head()
        if response.status_code != 200:
            await self._check_proxy(response)
            raise self._error(ProtocolFailed, f"the egress proxy answered {response.status_code}")
        if self._http.trailing_data[0]:
            # The target speaks only after the client in TLS: this is not of its making.
            raise self._error(ProtocolFailed, "bytes before TLS")
        self._http = self._new_connection()

    async def _start_tls(self) -> None:
        context = self._fetch.ssl_context or _default_context()
        try:
            await self._open_writer.start_tls(context, server_hostname=self._target.host)
        except ssl.SSLError as error:
            detail = getattr(error, "verify_message", None) or type(error).__name__
            raise self._error(TlsFailed, detail) from error
        except OSError as error:
            raise self._error(ConnectionLost, _named(error)) from error
        await self._refuse_early_bytes()

    async def _refuse_early_bytes(self) -> None:
        """Nobody has been asked for anything yet: what can be read now came before TLS.

        The stream keeps what a proxy slips in behind its head, and would give it out as if it
        had come through TLS.
        """
        early = asyncio.ensure_future(self._open_reader.read(1))
        try:
            await asyncio.sleep(0)
            if early.done():
                # Whatever it came to, an error too: the target has said nothing yet.
                early.exception()
                raise self._error(ProtocolFailed, "bytes before TLS")
        finally:
            # Also when we are cancelled ourselves: it must not read on behind our back.
            early.cancel()
            await asyncio.wait([early])

    def _request(self) -> h11.Request:
        plain = self._target.scheme == "http"
        headers = [
            ("Host", self._target.authority),
            ("User-Agent", _USER_AGENT),
            ("Accept", _ACCEPT),
            ("Accept-Encoding", ACCEPT_ENCODING),
            ("Connection", "close"),
        ]
        if plain:
            headers.append(self._credentials())
        asked = self._target.url if plain else self._target.path_query
        return h11.Request(method="GET", target=asked, headers=headers)

    async def _check_proxy(self, response: h11.Response) -> None:
        """Raises what the proxy says of its own.

        The proxy strips `Egress-*` and `Proxy-*` from what comes from upstream, so that these
        fields are its own word.
        """
        fields = dict(response.headers)
        event_id = fields.get(_EVENT)
        if response.status_code == 403 and event_id is not None:
            self._deny(await self._denial_body(), _event_id(event_id))
        if b"proxy-status" in fields:
            self._fail(response.status_code, await self._denial_body())

    def _deny(self, body: dict[str, object], event_id: str | None) -> NoReturn:
        deny = Deny(
            rule=_rule(body.get("rule")),
            reason=_reason(body.get("reason")),
            nearest_entry=_nearest(body.get("nearest_entry"), self._target),
        )
        raise EgressDenied(violation_of(deny, self._target), event_id=event_id)

    def _fail(self, status: int, body: dict[str, object]) -> NoReturn:
        reason = _word(body.get("reason"), "")
        kind = _FAILURES.get(reason, DeadlineExceeded if status == 504 else ProtocolFailed)
        raise self._error(kind, f"the egress proxy answered {status} {reason}".rstrip())

    async def _denial_body(self) -> dict[str, object]:
        """What it says beside its head; nothing when that is broken, late or too much.

        The head has said no already, and names the event: a body takes nothing of that back.
        """
        try:
            async with asyncio.timeout(_DENIAL_SECONDS):
                found = orjson.loads(await self._bounded_body())
        except (FetchError, TimeoutError, orjson.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    async def _bounded_body(self) -> bytes:
        content = bytearray()
        async for chunk in self._body():
            content += chunk
            if len(content) > _MAX_DENIAL_BYTES:
                return b""
        return bytes(content)

    # ── bytes ─────────────────────────────────────────────────────────────────────────────────

    async def _send(self, request: h11.Request) -> None:
        data = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        try:
            self._open_writer.write(data)
            await self._open_writer.drain()
        except OSError as error:
            raise self._error(ConnectionLost, _named(error)) from error

    async def _head(self) -> h11.Response:
        """The final head; informational ones are counted, and so are all their fields."""
        limits = self._fetch.limits
        informational, left = limits.max_informational, limits.max_header_bytes
        while True:
            event = await self._event(ConnectionLost)
            if not isinstance(event, h11.InformationalResponse | h11.Response):
                raise self._error(ConnectionLost, "no answer")
            left -= sum(len(name) + len(value) + 4 for name, value in event.headers)
            informational -= isinstance(event, h11.InformationalResponse)
            if left < 0 or informational < 0:
                raise self._error(HeadTooLarge, "")
            if isinstance(event, h11.Response):
                return event

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            event = await self._event(BodyIncomplete)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise self._error(BodyIncomplete, "")

    async def _event(self, cut: type[FetchError]) -> object:
        """The next event; *cut* is what a connection that ends too early comes to."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise self._error(self._kind_of(error, cut)) from error
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._open_reader.read(_READ_BYTES)
            except OSError as error:
                raise self._error(cut, _named(error)) from error
            self._ended = not data
            self._http.receive_data(data)

    def _kind_of(self, error: h11.RemoteProtocolError, cut: type[FetchError]) -> type[FetchError]:
        if error.error_status_hint == _HEAD_TOO_LARGE_HINT:
            return HeadTooLarge
        return cut if self._ended or cut is BodyIncomplete else ProtocolFailed

    def _error(self, kind: type[FetchError], detail: str = "") -> FetchError:
        return kind(host=self._target.host, detail=detail)

    def _credentials(self) -> tuple[str, str]:
        return "Proxy-Authorization", f"Bearer {self._fetch.token}"

    @property
    def _open_reader(self) -> asyncio.StreamReader:
        if self._reader is None or self._writer is None:
            raise self._error(ConnectionLost, "closed")
        return self._reader

    @property
    def _open_writer(self) -> asyncio.StreamWriter:
        if self._writer is None:
            raise self._error(ConnectionLost, "closed")
        return self._writer


def _authority_with_port(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"


def _headers(response: h11.Response) -> Headers:
    return tuple(
        (name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
        for name, value in response.headers
    )


def _word(value: object, default: str) -> str:
    """A word of the proxy's answer; anything else is not repeated."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else default


def _rule(value: object) -> str:
    """A rule that there is; a denial by any other is the proxy's."""
    return value if isinstance(value, str) and _RULE.fullmatch(value) else "R13"


def _event_id(value: bytes) -> str | None:
    """The id that the proxy gives; None when it is none, so that the denial has its event here."""
    text = value.decode("latin-1")
    return text if EVENT_ID.fullmatch(text) else None


def _nearest(value: object, target: Target) -> str | None:
    """The entry that the proxy names, if it is one and would admit *target*.

    A person is told to add it: what a proxy that lies writes there is no advice.
    """
    if not isinstance(value, str):
        return None
    try:
        listed = parse_allowlist([value])
    except AllowlistError:
        return None
    if isinstance(check_listed(EgressPolicy(allowlist=listed), target), Deny):
        return None
    return listed.entries[0]


def _reason(value: object) -> DenyReason:
    try:
        return DenyReason(_word(value, ""))
    except ValueError:
        # A later version of the proxy may have more words: the answer is still no.
        return DenyReason.DENIED_BY_PROXY


def _named(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _default_context() -> ssl.SSLContext:
    # One per process, shared with the direct transport; that module brings aiohttp with it.
    from egress.transport import default_ssl_context

    return default_ssl_context()
