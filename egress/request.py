"""`request_through_policy`: one request to a configured API, and its whole answer.

For adapters of search and model APIs: any method, headers and a body, one hop. A redirect is an
answer like every other; nothing is followed, nothing is sent twice, nothing is kept between calls.

An API is configured by the operator, so there is no list of a run here: `ApiPolicy` is the address
rule alone, for every host or for the hosts that an adapter declares. It opens no private address:
only `allowed_hosts` and `allow_private_addresses` do, and not even a literal address exempts itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import attrs

from egress.allowlist import entry_for, parse_allowlist
from egress.client import GuardedClient
from egress.decision import Deny, DenyReason, check_address
from egress.errors import EgressDenied, RequestRefused, Stopped
from egress.policy import AddressPolicy, EgressPolicy
from egress.ports import FetchLimits, Headers, Resolver, Transport
from egress.url import Target, parse_target
from egress.violation import violation_of

__all__ = ("ApiPolicy", "Response", "Signal", "Wires", "request_through_policy", "until_signal")

_T = TypeVar("_T")

_METHOD: Final = re.compile(r"[A-Z]{1,16}")
# RFC 9110 section 5.1: a field name is a token.
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
# What the connection itself decides, and what would make an answer that cannot be read.
_OURS: Final = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "cookie", "expect"}
    | {"host", "keep-alive", "proxy-authorization", "proxy-connection", "range", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "via"}
)
_MAX_BODY_BYTES: Final = 1 << 20
_MAX_VALUE_CHARACTERS: Final = 8192
_LIMITS: Final = FetchLimits(max_redirects=0)


class Signal(Protocol):
    """Says when work is no longer wanted; `asyncio.Event` is one."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    async def wait(self) -> object:
        """Return when it is time to stop."""
        ...


@attrs.frozen(kw_only=True)
class ApiPolicy:
    """What the adapter of an API may reach.

    Attributes:
        address: The operator's switches of the address check; nothing else opens an address.
        origins: Scheme, host and port that are reached, such as `https://api.example.com`, and
            nothing else; None for every host.
    """

    address: AddressPolicy = attrs.field(factory=AddressPolicy)
    origins: frozenset[str] | None = None

    def for_target(self, target: Target) -> EgressPolicy:
        """The policy of one request.

        Raises:
            EgressDenied: *target* is none of the origins, or an address that is not open.
        """
        if self.origins is not None and target.origin not in self.origins:
            raise EgressDenied(
                violation_of(Deny(rule="R4", reason=DenyReason.HOST_NOT_LISTED), target)
            )
        if target.address is not None:
            # An entry of the list would exempt the address that it names, so none is asked yet.
            nothing = EgressPolicy(allowlist=parse_allowlist(()), address=self.address)
            verdict = check_address(nothing, target.address, host=target.host)
            if isinstance(verdict, Deny):
                raise EgressDenied(violation_of(verdict, target))
        return EgressPolicy(allowlist=parse_allowlist([entry_for(target)]), address=self.address)


@attrs.frozen(kw_only=True)
class Response:
    """The answer to one request, whatever its status.

    Attributes:
        status: Not necessarily 2xx; a redirect is not followed.
        headers: (name, value), names lower-case.
        body: Decoded bytes, cut at the limits.
        truncated: Whether a limit cut the body.
    """

    status: int
    headers: Headers = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    truncated: bool = False

    def header(self, name: str) -> str | None:
        """The first value of the field *name* (lower-case), or None."""
        return next((value for field, value in self.headers if field == name), None)

    def json(self) -> Any:
        """The body as JSON in UTF-8.

        Raises:
            ValueError: It is none, is cut, holds NaN, or is nested too deeply. No text of the
                body is in the message.
        """
        if self.truncated:
            raise ValueError("the body is larger than the limit")
        try:
            return json.loads(self.body.decode("utf-8-sig"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ValueError("the body is not JSON") from None


def _refuse_constant(_: str) -> object:
    raise ValueError


Policy: TypeAlias = EgressPolicy | ApiPolicy


@attrs.frozen(kw_only=True)
class Wires:
    """Resolver and transport in the place of the system's; a transport is made for each request."""

    transport: Callable[[], Transport] | None = None
    resolver: Resolver | None = None


async def request_through_policy(
    url: str,
    *,
    policy: Policy,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    signal: Signal | None = None,
    limits: FetchLimits | None = None,
    wires: Wires | None = None,
) -> Response:
    """The answer to one request of *url*, which the policy decides on first.

    Args:
        url: Absolute, http or https.
        policy: The one that the caller was handed; never derive another.
        method: GET, POST and the like.
        headers: Fields of the request. What belongs to the connection is refused.
        body: At most 1 MiB.
        signal: Drops the connection when it is set.
        limits: Deadline and sizes. `max_redirects` has no meaning: none is followed.
        wires: For tests and for hosts with a way out of their own.

    Raises:
        UrlRejected: *url* is not a URL we accept.
        RequestRefused: Method, headers or body cannot be sent.
        EgressDenied: The policy refuses it.
        FetchError: It was allowed and failed; the class tells at what.
        Stopped: *signal* was set.
    """
    target = parse_target(url)
    fields = _checked(method, headers or {}, body)
    allowed = policy.for_target(target) if isinstance(policy, ApiPolicy) else policy
    given = wires or Wires()
    client = GuardedClient(
        allowed,
        limits=attrs.evolve(limits or _LIMITS, max_redirects=0),
        resolver=given.resolver,
        transport=None if given.transport is None else given.transport(),
    )
    async with client:
        fetched = await until_signal(
            signal, client.request(target, method=method, headers=fields, body=body)
        )
    return Response(
        status=fetched.status,
        headers=fetched.headers,
        body=fetched.body,
        truncated=fetched.truncated,
    )


def _checked(method: str, headers: Mapping[str, str], body: bytes | None) -> Headers:
    if not isinstance(method, str) or _METHOD.fullmatch(method) is None or method == "CONNECT":
        raise RequestRefused("the method", "is not one that can be sent")
    if body is not None and (not isinstance(body, bytes) or len(body) > _MAX_BODY_BYTES):
        raise RequestRefused("the body", "must be bytes, at most 1 MiB")
    fields = tuple(headers.items())
    for name, value in fields:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise RequestRefused("a header", "has a name that is no token")
        if name.lower() in _OURS:
            raise RequestRefused(f"the header {name}", "belongs to the connection")
        if not _can_be_sent(value):
            raise RequestRefused(f"the header {name}", "is empty or has characters it cannot hold")
    if len({name.lower() for name, _ in fields}) != len(fields):
        raise RequestRefused("a header", "is there twice")
    return fields


def _can_be_sent(value: object) -> bool:
    if not isinstance(value, str) or len(value) > _MAX_VALUE_CHARACTERS:
        return False
    return value.isascii() and value.isprintable() and value.strip() == value != ""


async def until_signal(signal: Signal | None, work: Coroutine[Any, Any, _T]) -> _T:
    """What *work* gives, unless *signal* comes first; then the work is cancelled and awaited.

    Raises:
        Stopped: The signal came first.
    """
    if signal is None:
        return await work
    if signal.is_set():
        work.close()
        raise Stopped("the caller no longer wants an answer")
    doing = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(_waited(signal))
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise Stopped("the caller no longer wants an answer")
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)


async def _waited(signal: Signal) -> None:
    await signal.wait()
