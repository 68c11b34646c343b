"""The one way of the adapters to the network: one endpoint, under the operator's policy.

An SDK is given an HTTP client over this transport, and nothing else to reach the network with:

- Only the endpoint's own scheme, host and port are requested; the operator's list must admit the
  URL as well. No redirect is followed, no proxy of the environment used, no cookie sent.
- The name is looked up once for a new connection, every answer must pass the address rule, and
  only what passed is dialled. Loopback and private addresses need a literal entry in the list.
- The key is known to this transport alone. The SDK works with a placeholder, which is replaced on
  the way out, after the checks: no exception, repr or log line of an SDK can hold the key.
- Headers that the SDKs do not need are dropped: some of them come from the environment.
- Without TLS nothing is sent to a public address.

Import it only when an extra is installed: httpx2 comes with the SDKs.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import httpcore2
import httpx2

from egress.address import Address, block_of
from egress.allowlist import entry_for, parse_allowlist
from egress.decision import Deny, DenyReason, check_answers, check_listed
from egress.errors import EgressDenied
from egress.policy import EgressPolicy
from egress.ports import Resolver
from egress.resolver import SystemResolver
from egress.transport import default_ssl_context
from egress.url import Target, parse_target
from egress.violation import violation_of
from runtime_pack.models._wire import MalformedResponse

__all__ = ("PLACEHOLDER", "Endpoint", "GuardedTransport", "TooLarge", "guarded_client")

PLACEHOLDER: Final = "set-by-the-transport"
"""What the SDKs take for the key."""

# A response of a model is text; this is a hundred times the longest of today.
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_MAX_ADDRESSES: Final = 4
_CONNECT_SECONDS: Final = 10.0
_SENT: Final = frozenset(
    {
        b"accept",
        b"anthropic-version",
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"transfer-encoding",
        b"user-agent",
    }
)
_OF_THE_KEY: Final = frozenset({b"authorization", b"x-api-key"})


class NoAnswer(httpx2.DecodingError, MalformedResponse):
    """What came is not what the protocol answers with."""


class TooLarge(httpx2.DecodingError, MalformedResponse):
    """The body is longer than any response, or comes in a coding that was not asked for."""


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where a provider's API is, and what the operator lets us reach there.

    Raises:
        UrlRejected: the URL is not one we accept.
        AllowlistError: never of a URL that was accepted.
    """

    target: Target
    policy: EgressPolicy
    key: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, *, key: str | None, policy: EgressPolicy | None) -> Endpoint:
        """The endpoint of a base URL. Without a policy the list is exactly this endpoint."""
        target = parse_target(url)
        listed = policy or EgressPolicy(allowlist=parse_allowlist([entry_for(target)]))
        return cls(target=target, policy=listed, key=key)

    def check(self, url: str) -> None:
        """Let a URL of this endpoint pass.

        Raises:
            EgressDenied: it leads elsewhere, or the operator's list does not admit it.
            UrlRejected: it is no URL we accept.
        """
        target = parse_target(url)
        verdict = check_listed(self.policy, target)
        if isinstance(verdict, Deny):
            raise EgressDenied(violation_of(verdict, target))
        if target.origin != self.target.origin:
            elsewhere = Deny(rule="R4", reason=DenyReason.HOST_NOT_LISTED)
            raise EgressDenied(violation_of(elsewhere, target))

    def vetted(self, answers: Sequence[str]) -> tuple[Address, ...]:
        """The addresses that may be dialled.

        Raises:
            EgressDenied: one of the answers is refused.
        """
        verdict = check_answers(self.policy, self.target, answers)
        if isinstance(verdict, Deny):
            raise EgressDenied(violation_of(verdict, self.target))
        in_the_clear = self.target.scheme != "https"
        if in_the_clear and any(block_of(address) is None for address in verdict.addresses):
            unsafe = Deny(rule="R12", reason=DenyReason.HTTPS_ONLY)
            raise EgressDenied(violation_of(unsafe, self.target))
        return verdict.addresses


def guarded_client(
    endpoint: Endpoint,
    *,
    resolver: Resolver | None,
    timeout_seconds: float,
    max_body_bytes: int = _MAX_BODY_BYTES,
) -> httpx2.AsyncClient:
    """An HTTP client that reaches *endpoint* and nothing else."""
    return httpx2.AsyncClient(
        transport=GuardedTransport(endpoint, resolver=resolver, max_body_bytes=max_body_bytes),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
    )


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to one endpoint over connections to vetted addresses."""

    def __init__(
        self, endpoint: Endpoint, *, resolver: Resolver | None, max_body_bytes: int
    ) -> None:
        self._endpoint = endpoint
        self._max_body_bytes = max_body_bytes
        secure = endpoint.target.scheme == "https"
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=default_ssl_context() if secure else None,
            network_backend=_VettedBackend(endpoint, resolver or SystemResolver()),
            max_connections=100,
            keepalive_expiry=60.0,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer to a request of this endpoint.

        Raises:
            EgressDenied: the request leads elsewhere, or the address rule refused it.
            httpx2.TransportError: it was let through and failed.
        """
        self._endpoint.check(str(request.url))
        sent = self._translated(request)
        with _as_httpx(request):
            response = await self._pool.handle_async_request(sent)
        # The pool always answers with something to iterate and to close.
        stream: Any = response.stream
        body = _Body(stream, request, self._max_body_bytes)
        if any(name.lower() == b"content-encoding" for name, _ in response.headers):
            await body.aclose()
            raise TooLarge("the response is encoded, which was not asked for", request=request)
        if response.status < 300 and _is_page(response.headers):
            # Streamed, it would pass for an answer that broke off before its first event.
            await body.aclose()
            raise NoAnswer("the response is a page of HTML", request=request)
        return httpx2.Response(response.status, headers=response.headers, stream=body)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._pool.aclose()

    def _translated(self, request: httpx2.Request) -> httpcore2.Request:
        target = self._endpoint.target
        # Not the request's own extensions: one of them changes the name that TLS verifies.
        timeout = request.extensions.get("timeout", {})
        return httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=target.scheme.encode(),
                host=target.host.encode(),
                port=target.port,
                target=request.url.raw_path,
            ),
            headers=list(self._headers(request)),
            content=request.stream,
            extensions={"timeout": timeout},
        )

    def _headers(self, request: httpx2.Request) -> Iterator[tuple[bytes, bytes]]:
        yield b"Host", self._endpoint.target.authority.encode()
        yield b"Accept-Encoding", b"identity"
        for name, value in request.headers.raw:
            lowered = name.lower()
            if lowered in _SENT or lowered.startswith(b"x-stainless-"):
                yield name, value
            elif lowered in _OF_THE_KEY and self._endpoint.key and PLACEHOLDER.encode() in value:
                yield name, value.replace(PLACEHOLDER.encode(), self._endpoint.key.encode())


def _is_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    kinds = [value for name, value in headers if name.lower() == b"content-type"]
    return any(kind.split(b";")[0].strip().lower() == b"text/html" for kind in kinds)


class _VettedBackend(httpcore2.AsyncNetworkBackend):
    """Dials the vetted addresses of one endpoint, and nothing else."""

    def __init__(self, endpoint: Endpoint, resolver: Resolver) -> None:
        self._endpoint = endpoint
        self._resolver = resolver
        self._dialler = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        # Part of the port of httpcore2, in both methods.
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first vetted address that takes one.

        Raises:
            EgressDenied: an answer of the lookup was refused.
            httpcore2.ConnectError: the lookup failed, or no address took a connection.
        """
        target = self._endpoint.target
        if (host, port) != (target.host, target.port):
            raise httpcore2.ConnectError("not the endpoint of this client")
        addresses = self._endpoint.vetted(await self._answers())
        failure: Exception = httpcore2.ConnectError("no address")
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await self._dialler.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        # Part of the port of httpcore2, in both methods.
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Never."""
        del timeout, socket_options
        raise httpcore2.ConnectError(f"no endpoint is a socket of this machine: {path!r}")

    async def sleep(self, seconds: float) -> None:
        """Part of the port; only a pool that tries again sleeps, and this one does not."""
        await self._dialler.sleep(seconds)

    async def _answers(self) -> Sequence[str]:
        target = self._endpoint.target
        if target.is_literal:
            return (target.host,)
        try:
            return await self._resolver.resolve(target.host, target.port)
        except OSError as error:
            raise httpcore2.ConnectError(f"the name {target.host} was not found") from error


class _Body(httpx2.AsyncByteStream):
    """The bytes of one response, counted."""

    def __init__(self, stream: Any, request: httpx2.Request, max_bytes: int) -> None:
        self._stream = stream
        self._request = request
        self._left = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            async for part in self._stream:
                self._left -= len(part)
                if self._left < 0:
                    raise TooLarge("the response is too long", request=self._request)
                yield part

    async def aclose(self) -> None:
        """Gives the connection back, or drops it when the body was not read to its end."""
        await self._stream.aclose()


@contextlib.contextmanager
def _as_httpx(request: httpx2.Request) -> Iterator[None]:
    """Errors of the pool as those that the SDKs know."""
    try:
        yield
    except httpcore2.TimeoutException as error:
        raise httpx2.ReadTimeout(str(error), request=request) from error
    except httpcore2.ConnectError as error:
        raise httpx2.ConnectError(str(error), request=request) from error
    except httpcore2.ProtocolError as error:
        raise httpx2.RemoteProtocolError(str(error), request=request) from error
    except httpcore2.NetworkError as error:
        raise httpx2.ReadError(str(error), request=request) from error
