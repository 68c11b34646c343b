"""The one door to the network: one hop over aiohttp, to vetted addresses only.

Rules of this module, each with a test:

- A name is looked up by the hop's own `addresses()` and by nothing else. A literal host never
  reaches a resolver in aiohttp, so every socket is made by `_pinned_socket`, which refuses an
  address that the hop running in this task has not vetted.
- A connection is opened for a hop after one lookup whose every answer passed. A live connection
  may serve later hops to the same scheme, host and port of the same client: its peer was vetted
  under the same, unchangeable policy, and a changed DNS answer cannot move it (this is where the
  speed is). A hop that needs a new connection looks the name up again and vets again.
- One transport serves one policy. A second one is refused, for its vetting might differ.
- No cookies, no environment proxies, no netrc, no redirects, no decoding inside aiohttp.
"""

from __future__ import annotations

import errno
import functools
import socket
import ssl
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import LineTooLong
from yarl import URL

from egress.body import ACCEPT_ENCODING
from egress.errors import (
    BodyIncomplete,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    DnsFailed,
    FetchError,
    HeadTooLarge,
    ProtocolFailed,
    TlsFailed,
)
from egress.policy import EgressPolicy
from egress.ports import Headers, HopRequest, HopResponse

__all__ = ("AiohttpTransport", "default_ssl_context")

# For every request; those of an API may say more, which `egress.request` has checked.
_HEADERS: Final = {
    "User-Agent": "agent-runtime-pack",
    "Accept": "text/html, application/xhtml+xml, application/json, application/xml;q=0.9, text/*;q=0.9, */*;q=0.1",
    "Accept-Encoding": ACCEPT_ENCODING,
}
_MAX_CONNECTIONS: Final = 100
_MAX_STATUS_LINE_BYTES: Final = 8190
_SWITCHING_PROTOCOLS: Final = 101
_FIELD_OVERHEAD_BYTES: Final = 4  # ": " and CR LF
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(
    total=None, connect=None, sock_connect=None, sock_read=None
)


@functools.cache
def default_ssl_context() -> ssl.SSLContext:
    """The context every client of this process verifies with; loading the roots takes 20 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Hop:
    """The hop that runs in this task, and what it may dial."""

    __slots__ = ("metered", "pinned", "request")

    def __init__(self, request: HopRequest) -> None:
        self.request = request
        self.metered = False
        address = request.target.address
        self.pinned: tuple[str, ...] = () if address is None else (str(address),)


# Set for the time of one `send`. aiohttp opens a connection inside the task of its request, and
# the tasks of happy eyeballs inherit this; a socket made anywhere else finds nothing and is refused.
_RUNNING: Final[ContextVar[_Hop | None]] = ContextVar("egress_running_hop", default=None)


class _HeadRefusedError(aiohttp.ClientError):
    """Not an `OSError`: aiohttp must not try the request again."""


class _MeteredHandler(ResponseHandler):
    """aiohttp's protocol with a cap on what comes before a body.

    aiohttp takes 1 MB of fields, and any number of 1xx responses, at its defaults.
    """

    _head_left = 0
    _informational_left = 0
    _partial = 0
    _refused = False

    def set_response_params(self, **params: Any) -> None:
        """Starts the meter; aiohttp calls this once per request, in the task of its hop."""
        # Something lies there that answers no request of ours: it must not answer this one.
        stale = bool(self._buffer or self._partial)
        hop = _RUNNING.get()
        if hop is not None:
            hop.metered = True
            self._head_left = hop.request.limits.max_header_bytes
            self._informational_left = hop.request.limits.max_informational
        self._partial = 0
        super().set_response_params(**params)
        if stale:
            # aiohttp sends the request again, over another connection.
            self._buffer.clear()
            self.set_exception(aiohttp.ServerDisconnectedError())

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Counts one complete head on its way to aiohttp."""
        message = data[0]
        self._partial = 0
        for name, value in message.raw_headers:
            self._head_left -= len(name) + len(value) + _FIELD_OVERHEAD_BYTES
        if message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
            self._informational_left -= 1
        if self._head_left < 0 or self._informational_left < 0:
            self._refuse()
        if not self._refused:
            super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of a head that is not complete yet."""
        payload = self._payload
        if payload is None or payload.is_eof():
            self._partial += len(data)
        super().data_received(data)
        if self._partial > self._head_left:
            self._refuse()

    def connection_lost(self, exc: BaseException | None) -> None:
        """A body that ends with its connection is whole only when the connection was closed."""
        payload = self._payload
        if exc is not None and payload is not None and not payload.is_eof():
            # aiohttp takes a reset for the end of such a body.
            payload.set_exception(aiohttp.ClientPayloadError("connection reset"))
        super().connection_lost(exc)

    def _refuse(self) -> None:
        if not self._refused:
            self._refused = True
            self.set_exception(_HeadRefusedError())
            if self.transport is not None:
                self.transport.abort()


class _PinnedResolver(AbstractResolver):
    """Hands aiohttp the vetted addresses of the running hop, and nothing else."""

    async def resolve(
        self,
        host: str,
        port: int = 0,
        # Part of aiohttp's signature. Both families are vetted, and both are offered.
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[ResolveResult]:
        hop = _RUNNING.get()
        if hop is None or host != hop.request.target.host:
            raise OSError(errno.EACCES, "no hop of this client asked for this name")
        addresses = await hop.request.addresses()
        hop.pinned = tuple(str(address) for address in addresses)
        return [_resolved(host, port, text) for text in hop.pinned]

    async def close(self) -> None:
        """Holds nothing."""


def _resolved(host: str, port: int, text: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return ResolveResult(
        hostname=host, host=text, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )


def _pinned_socket(addr_info: tuple[Any, ...]) -> socket.socket:
    """A socket for the address of *addr_info*, if the running hop vetted it.

    Raises:
        OSError: It did not.
    """
    family, kind, proto, _, sockaddr = addr_info
    hop = _RUNNING.get()
    if hop is None or sockaddr[0] not in hop.pinned or sockaddr[1] != hop.request.target.port:
        raise OSError(errno.EACCES, "not an address that this hop vetted")
    return socket.socket(family=family, type=kind, proto=proto)


class _PinnedConnector(aiohttp.TCPConnector):
    """A connector whose every connection is metered and pinned."""

    def __init__(self) -> None:
        super().__init__(
            limit=_MAX_CONNECTIONS,
            resolver=_PinnedResolver(),
            use_dns_cache=False,
            socket_factory=_pinned_socket,
        )
        # aiohttp has no parameter for its protocol; `send` fails when this stops to work.
        self._factory: Any = functools.partial(_MeteredHandler, loop=self._loop)


class AiohttpTransport:
    """Performs hops with aiohttp; owns one session, made when it is first needed.

    Args:
        ssl_context: What certificates are verified with. The default is shared by the process.
            Verification of the name cannot be switched off: a context without it is refused.

    Raises:
        ValueError: *ssl_context* does not verify.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None) -> None:
        if ssl_context is not None and not _verifies(ssl_context):
            raise ValueError("a context that verifies neither chain nor name is no TLS")
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None
        self._policy: EgressPolicy | None = None
        self._closed = False

    async def send(self, request: HopRequest) -> HopResponse:
        """The answer to one request of a vetted target.

        Raises:
            FetchError: The hop failed; the class tells at what.
            EgressDenied: An answer of the lookup was refused.
            ClientClosed: The transport is closed or serves another policy.
        """
        session = self._session_for(request.policy)
        hop = _Hop(request)
        token = _RUNNING.set(hop)
        try:
            response = await session.request(
                request.method,
                URL(request.target.url, encoded=True),
                headers=request.headers or None,
                data=request.body,
                allow_redirects=False,
                ssl=self._verifying(request),
                max_field_size=request.limits.max_header_bytes,
                max_line_size=_MAX_STATUS_LINE_BYTES,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, request) from _quotable(error)
        finally:
            _RUNNING.reset(token)
        if not hop.metered or response.status == _SWITCHING_PROTOCOLS:
            response.close()
            raise ProtocolFailed(host=request.target.host, hop=request.hop, detail="not plain HTTP")
        body = _Body(response, request)
        return HopResponse(
            status=response.status, headers=_headers(response), body=body, close=body.release
        )

    async def aclose(self) -> None:
        """Closes every connection. May be called twice."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _session_for(self, policy: EgressPolicy) -> aiohttp.ClientSession:
        if self._closed:
            raise ClientClosed("the transport is closed")
        if self._session is None:
            self._session, self._policy = _new_session(), policy
        if policy is not self._policy:
            raise ClientClosed(
                "a transport serves one policy: its live connections were vetted under it"
            )
        return self._session

    def _verifying(self, request: HopRequest) -> ssl.SSLContext | bool:
        if request.target.scheme != "https":
            return True
        if self._ssl_context is None:
            self._ssl_context = default_ssl_context()
        return self._ssl_context


def _verifies(context: ssl.SSLContext) -> bool:
    return context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED


def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_PinnedConnector(),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
        auto_decompress=False,
        trust_env=False,
        timeout=_NO_TIMEOUT,
    )


def _headers(response: aiohttp.ClientResponse) -> Headers:
    return tuple(
        [
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape"))
            for name, value in response.raw_headers
        ]
    )


class _Body:
    """The chunks of one body as they arrive."""

    __slots__ = ("_content", "_request", "_response")

    def __init__(self, response: aiohttp.ClientResponse, request: HopRequest) -> None:
        self._response = response
        self._content = response.content
        self._request = request

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise BodyIncomplete(
                host=self._request.target.host,
                hop=self._request.hop,
                detail=type(error).__name__,
            ) from _quotable(error)
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def release(self) -> None:
        """Gives the connection back, or drops it when the body was not read to its end."""
        self._response.release()


# The first class that fits decides; inner classes stand before their bases.
_TRANSLATION: Final[tuple[tuple[type[BaseException], type[FetchError]], ...]] = (
    (_HeadRefusedError, HeadTooLarge),
    (aiohttp.ClientSSLError, TlsFailed),
    (aiohttp.ClientConnectorDNSError, DnsFailed),
    (aiohttp.ClientConnectorError, ConnectFailed),
    (aiohttp.ServerDisconnectedError, ConnectionLost),
    (ssl.SSLError, TlsFailed),
    (aiohttp.ClientOSError, ConnectionLost),
    (aiohttp.ClientResponseError, ProtocolFailed),
    (aiohttp.ClientPayloadError, BodyIncomplete),
    (aiohttp.ClientError, ProtocolFailed),
    (OSError, ConnectFailed),
)


def _translated(error: BaseException, request: HopRequest) -> FetchError:
    kind = next(ours for theirs, ours in _TRANSLATION if isinstance(error, theirs))
    if kind is ConnectionLost and isinstance(error.__cause__, ssl.SSLError):
        kind = TlsFailed
    if kind is ProtocolFailed and _has_cause(error, LineTooLong):
        kind = HeadTooLarge
    return kind(host=request.target.host, hop=request.hop, detail=_detail(error))


def _has_cause(error: BaseException, kind: type[BaseException]) -> bool:
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, kind):
        inner = inner.__cause__
    return inner is not None


def _quotable(error: BaseException) -> BaseException | None:
    """*error* when a traceback may show it: aiohttp's other errors quote the URL with its query."""
    return error if isinstance(error, OSError) else None


def _detail(error: BaseException) -> str:
    """What happened, in words that hold neither the URL nor an address."""
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    verify_message = getattr(inner, "verify_message", None)
    if isinstance(verify_message, str) and verify_message:
        return verify_message
    number = getattr(inner, "errno", None)
    named = None if isinstance(inner, ssl.SSLError) else errno.errorcode.get(number or 0)
    return named or type(inner).__name__
