"""`GuardedClient`: fetches what the policy admits, hop by hop, under one deadline.

Per hop: list verdict (no I/O), lookup, address verdict, connect to a vetted address, TLS name.
The client is one run's: it re-uses connections within itself and shares none.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import attrs

from egress._run_meter import RunMeter
from egress.address import Address
from egress.body import PIECE_BYTES, BodyMeter, coding_of
from egress.chain import REDIRECT_STATUSES, Chain, Hop, next_hop
from egress.decision import Allow, Deny, DenyReason, check_answers, check_listed, enforced
from egress.errors import (
    BodyIncomplete,
    ClientClosed,
    ConnectFailed,
    DeadlineExceeded,
    DnsFailed,
    EgressDenied,
    EgressError,
    FetchError,
)
from egress.policy import EgressPolicy, PublicHosts
from egress.ports import (
    Fetch,
    FetchLimits,
    Headers,
    HopRequest,
    HopResponse,
    Observer,
    Resolver,
    Transport,
)
from egress.url import Target, parse_target
from egress.violation import facts_of, violation_of

__all__ = ("Fetched", "GuardedClient", "RunMeter")

_LOG: Final = logging.getLogger("egress")

_CHUNKS_PER_TURN: Final = 64
_TEMPORARY_DNS_ERRORS = frozenset({socket.EAI_AGAIN})


@attrs.frozen(kw_only=True)
class Fetched:
    """The final answer of one fetch, whatever its status.

    Attributes:
        status: Not necessarily 2xx.
        headers: (name, value), names lower-case, text that is always encodable.
        body: Decoded bytes, cut at the caps.
        truncated: Whether a cap cut the body.
        raw_bytes: Body bytes as received.
        final: What was requested last.
        hops: The answered redirects before it, in order.
        downgraded: Whether some redirect went from https to http.
    """

    status: int
    headers: Headers = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    truncated: bool
    raw_bytes: int
    final: Target
    hops: tuple[Hop, ...]
    downgraded: bool

    def header(self, name: str) -> str | None:
        """The first value of the field *name* (lower-case), or None."""
        return next((value for field, value in self.headers if field == name), None)


class GuardedClient:
    """Fetches for one run. Use it as an async context manager, or call `aclose`.

    Args:
        policy: What may be fetched. It never changes for the life of the client.
        limits: Bounds of each fetch, unless `fetch` is given others.
        resolver: Answers names; the operating system's by default.
        transport: Performs the hops; owned and closed by this client from now on.
        fetch: Replaces resolver and transport: the list and literal addresses are checked here,
            names are not looked up, the rest is up to the callable.
        meter: Counts against the caps of the run. The default caps are finite; keep a meter of
            your own when the run outlives the client.
        observer: Is told what a policy that only reports would have refused.
        follow: Is asked before a redirect is followed, with what was requested and what is to be;
            what it raises stops the fetch and reaches the caller as it is.
        attend: Is awaited before each hop of `fetch` that the list admits; gives fields to send
            beside ours, such as conditions (a client over *fetch* sends none). What it raises
            stops the fetch and reaches the caller as it is.

    Raises:
        ValueError: *fetch* is given together with a resolver or a transport, or the policy only
            reports and nobody is told.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        limits: FetchLimits | None = None,
        resolver: Resolver | None = None,
        transport: Transport | None = None,
        fetch: Fetch | None = None,
        meter: RunMeter | None = None,
        observer: Observer | None = None,
        follow: Callable[[Target, Target], None] | None = None,
        attend: Callable[[Target], Awaitable[Headers]] | None = None,
    ) -> None:
        if fetch is not None and (resolver is not None or transport is not None):
            raise ValueError("fetch replaces resolver and transport: give one or the other")
        if policy.unsafe_report_only and observer is None:
            raise ValueError("a policy that only reports needs an observer to report to")
        _log_dangers(policy)
        self._policy = policy
        self._meter = meter or RunMeter()
        self._observer = observer
        self.follow = follow
        self._attend = attend
        self._limits = limits or FetchLimits()
        self._closed = False
        self._resolver = _NoLookups() if fetch is not None else resolver or _system_resolver()
        self._transport = (
            _FetchTransport(fetch) if fetch is not None else transport or _aiohttp_transport()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the client and its transport. May be called twice."""
        self._closed = True
        await self._transport.aclose()

    async def fetch(self, url: str | Target, *, limits: FetchLimits | None = None) -> Fetched:
        """The final answer to a GET of *url*, redirects followed under the same policy.

        Cancelling it drops its connection.

        Raises:
            UrlRejected: *url*, or the target of a redirect, is not a URL we accept.
            EgressDenied: The policy refuses it, at any hop; one violation, to be reported once.
            FetchError: It was allowed and failed; the class tells at what. A cap of the run is
                among them.
            ClientClosed: The client is closed.
        """
        target = url if isinstance(url, Target) else parse_target(url)
        return await self._carry_out(_Run(self, Chain(target=target), limits or self._limits))

    async def request(
        self, target: Target, *, method: str, headers: Headers, body: bytes | None
    ) -> Fetched:
        """The answer to one request of an API, a redirect included: none is followed.

        Use `egress.request.request_through_policy`, which checks what is sent.

        Raises:
            EgressDenied: The policy refuses it.
            FetchError: It was allowed and failed.
            ClientClosed: The client is closed.
        """
        run = _Run(self, Chain(target=target), self._limits)
        run.sent = _Sent(method=method, headers=headers, body=body)
        return await self._carry_out(run)

    async def _carry_out(self, run: _Run) -> Fetched:
        if self._closed:
            raise ClientClosed("the client is closed")
        try:
            async with asyncio.timeout(run.limits.timeout_seconds):
                return await run.follow()
        # Those of the ports are translated where they are called: this one is the deadline's.
        except TimeoutError as error:
            host, hop = run.chain.target.host, len(run.chain.hops)
            raise DeadlineExceeded(host=host, hop=hop) from error
        finally:
            self._meter.end(run)

    async def answer(self, run: _Run) -> HopResponse:
        """The answer to the hop where *run* stands, which this decides on first (R4-R11).

        Raises:
            EgressDenied: Its list, address or policy says no.
            FetchError: It could not be had; `ConnectFailed` for what a port lets through.
        """
        chain = run.chain
        verdict = await self._check(self._policy, chain)
        lookup = _Lookup(self, chain)
        if chain.target.is_literal:
            lookup.vetted = verdict.addresses
        request = HopRequest(
            target=chain.target,
            hop=len(chain.hops),
            policy=self._policy,
            limits=run.limits,
            addresses=lookup.addresses,
        )
        if run.sent is not None:
            request = run.sent.added_to(request)
        elif self._attend is not None:
            request = attrs.evolve(request, headers=await self._attend(chain.target))
        self._meter.begin(run, host=chain.target.host, hop=len(chain.hops))
        try:
            return await self._transport.send(request)
        except EgressDenied as denied:
            raise _denied_at(denied, chain) from denied
        except OSError as error:
            # A port of the host may let one through; `TimeoutError` is one of them.
            raise ConnectFailed(
                host=chain.target.host, hop=len(chain.hops), detail=type(error).__name__
            ) from error

    async def _check(self, policy: EgressPolicy, chain: Chain) -> Allow:
        verdict = check_listed(policy, chain.target)
        if isinstance(verdict, Allow):
            return verdict
        passed = await self._enforce(verdict, chain)
        if verdict.reason is not DenyReason.HTTPS_ONLY:
            return passed
        # Only told: what the list says of it is asked after that switch, and is told as well.
        address = attrs.evolve(policy.address, https_only=False)
        return await self._check(attrs.evolve(policy, address=address), chain)

    async def vet(self, chain: Chain, answers: Sequence[str]) -> tuple[Address, ...]:
        """The addresses that may be dialled for the hop where *chain* stands (R11)."""
        verdict = check_answers(self._policy, chain.target, answers)
        if isinstance(verdict, Deny):
            verdict = await self._enforce(verdict, chain, answers)
        return verdict.addresses

    async def lookup(self, target: Target) -> Sequence[str]:
        """What the resolver answers."""
        return await self._resolver.resolve(target.host, target.port)

    def granted(self, count: int) -> int:
        """How many of *count* received bytes the caps of the run let through."""
        return self._meter.take(count)

    async def _enforce(
        self, deny: Deny, chain: Chain, answers: Iterable[str] | None = None
    ) -> Allow:
        """Raises, or tells the observer what would have been refused."""
        verdict = enforced(self._policy, chain.target, deny, addresses=answers)
        if isinstance(verdict, Deny) or self._observer is None:
            refused = verdict if isinstance(verdict, Deny) else deny
            raise EgressDenied(violation_of(refused, chain.target, before=chain.before))
        told = violation_of(deny, chain.target, before=chain.before)
        await self._observer(attrs.evolve(told, enforced=False))
        return verdict


def _denied_at(denied: EgressDenied, chain: Chain) -> EgressDenied:
    """*denied* with the hops before it: a `Fetch` of the host knows one target only."""
    violation = denied.violation
    if violation.hop == len(chain.before):
        return denied
    before = tuple(facts_of(target) for target in chain.before)
    told = attrs.evolve(violation, hop=len(before), hops=before)
    return EgressDenied(told, event_id=denied.event_id)


def _log_dangers(policy: EgressPolicy) -> None:
    if policy.unsafe_report_only:
        _LOG.warning("unsafe_report_only: denials are told and fetched all the same, except R9")
    if isinstance(policy.allowlist, PublicHosts):
        _LOG.warning("PUBLIC_HOSTS: there is no list, the address policy alone decides")


@attrs.frozen(kw_only=True)
class _Sent:
    """What a request of an API has beside its target."""

    method: str
    headers: Headers = attrs.field(repr=False)
    body: bytes | None = attrs.field(repr=False)

    def added_to(self, request: HopRequest) -> HopRequest:
        return attrs.evolve(request, method=self.method, headers=self.headers, body=self.body)


class _Run:
    """One fetch on its way."""

    __slots__ = ("_client", "chain", "limits", "sent")

    def __init__(self, client: GuardedClient, chain: Chain, limits: FetchLimits) -> None:
        self._client = client
        self.chain = chain
        self.limits = limits
        self.sent: _Sent | None = None

    async def follow(self) -> Fetched:
        while True:
            response = await self._client.answer(self)
            try:
                if self.sent is not None:
                    return await self._read(response)
                following = next_hop(
                    self.chain,
                    status=response.status,
                    locations=_locations(response),
                    max_redirects=self.limits.max_redirects,
                )
                if following is None:
                    return await self._read(response)
            finally:
                await response.close()
            if self._client.follow is not None:
                self._client.follow(self.chain.target, following.target)
            self.chain = following

    async def _read(self, response: HopResponse) -> Fetched:
        chain, limits = self.chain, self.limits
        host, hop = chain.target.host, len(chain.hops)
        meter = BodyMeter(
            coding_of(response.values("content-encoding"), host=host, hop=hop),
            max_raw_bytes=limits.max_raw_bytes,
            max_decoded_bytes=limits.max_decoded_bytes,
            host=host,
            hop=hop,
        )
        try:
            body = await _collect(response, meter, self._client.granted)
        except OSError as error:
            raise BodyIncomplete(host=host, hop=hop, detail=type(error).__name__) from error
        return Fetched(
            status=response.status,
            headers=_encodable(response.headers),
            body=body,
            truncated=meter.truncated,
            raw_bytes=meter.raw_bytes,
            final=chain.target,
            hops=chain.hops,
            downgraded=chain.downgraded,
        )


async def _collect(response: HopResponse, meter: BodyMeter, granted: Callable[[int], int]) -> bytes:
    parts: list[bytes] = []
    chunks = 0
    async for chunk in response.body:
        chunks += 1
        if chunks % _CHUNKS_PER_TURN == 0:
            # A body that never waits, and may be empty for ever, must not outlive the deadline.
            await asyncio.sleep(0)
        usable = granted(len(chunk))
        for piece in meter.feed(chunk[:usable]):
            parts.append(piece)
            if len(piece) == PIECE_BYTES:
                # A bomb inflates for as long as its cap allows: others get their turn meanwhile.
                await asyncio.sleep(0)
        if usable < len(chunk):
            meter.cut()
        if meter.truncated:
            break
    else:
        meter.finish()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _locations(response: HopResponse) -> Sequence[str]:
    return response.values("location") if response.status in REDIRECT_STATUSES else ()


def _encodable(headers: Headers) -> Headers:
    """*headers* without surrogate escapes, which no JSON encoder takes."""
    # A list, for it is the faster of the two and the common case looks at every field.
    if all([value.isascii() for _, value in headers]):  # noqa: C419
        return headers
    return tuple(
        (name, value.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        for name, value in headers
    )


class _Lookup:
    """The one lookup of a hop, made when a new connection is needed, vetted once (R11)."""

    __slots__ = ("_chain", "_client", "vetted")

    def __init__(self, client: GuardedClient, chain: Chain) -> None:
        self._client = client
        self._chain = chain
        self.vetted: tuple[Address, ...] = ()

    async def addresses(self) -> tuple[Address, ...]:
        if not self.vetted:
            self.vetted = await self._client.vet(self._chain, await self._answers())
        return self.vetted

    async def _answers(self) -> Sequence[str]:
        target, hop = self._chain.target, len(self._chain.hops)
        try:
            answers = await self._client.lookup(target)
        except OSError as error:
            temporary = isinstance(error, TimeoutError) or error.errno in _TEMPORARY_DNS_ERRORS
            raise DnsFailed(
                host=target.host, hop=hop, detail=error.strerror or "", temporary=temporary
            ) from error
        if not isinstance(answers, Sequence) or isinstance(answers, str | bytes | bytearray):
            raise DnsFailed(host=target.host, hop=hop, detail=f"a {type(answers).__name__}")
        if not answers:
            raise DnsFailed(host=target.host, hop=hop, detail="no answer")
        return answers


class _NoLookups:
    """With `fetch` the names are looked up elsewhere, or not at all."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        raise OSError(f"a client over fetch looks no name up: {host} {port}")


class _FetchTransport:
    """A `Fetch` as a `Transport`; what the host's code breaks is a failed fetch."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def send(self, request: HopRequest) -> HopResponse:
        try:
            with _as_failures(request):
                response = await self._fetch(request.target)
        except FetchError as error:
            # It knows one target, and not which hop of which read that is.
            error.hop = request.hop
            raise
        if not _is_answer(response):
            raise _port_failed(request, f"a {type(response).__name__} that is no answer")
        return attrs.evolve(response, body=_PortBody(request, response.body))

    async def aclose(self) -> None:
        """What the callable holds is its owner's."""


class _PortBody:
    """The body that a `Fetch` gave, with its faults as failures of the hop."""

    def __init__(self, request: HopRequest, body: AsyncIterator[bytes]) -> None:
        self._request = request
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with _as_failures(self._request):
                chunk = await anext(self._body)
        except FetchError as error:
            error.hop = self._request.hop
            raise
        if not isinstance(chunk, bytes):
            raise _port_failed(self._request, f"a {type(chunk).__name__} in the body")
        return chunk


@contextmanager
def _as_failures(request: HopRequest) -> Iterator[None]:
    """Errors of the host's code as `FetchError`, the type of the error kept for the operator."""
    try:
        yield
    # Those have their meaning; an assertion is a test double's, and nobody's to swallow.
    except (EgressError, OSError, StopAsyncIteration, AssertionError):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody has cancelled this fetch: the host let a cancellation of its own escape.
        raise _port_failed(request, type(error).__name__) from error
    except Exception as error:
        raise _port_failed(request, type(error).__name__) from error


def _port_failed(request: HopRequest, detail: str) -> FetchError:
    return FetchError(host=request.target.host, hop=request.hop, detail=detail)


def _is_answer(response: object) -> bool:
    return (
        isinstance(response, HopResponse)
        and type(response.status) is int
        and isinstance(response.headers, tuple)
        and all(
            isinstance(field, tuple) and [type(part) for part in field] == [str, str]
            for field in response.headers
        )
        and isinstance(response.body, AsyncIterator)
    )


# Loaded when first needed: neither `import egress` nor a client over other ports loads aiohttp.
def _system_resolver() -> Resolver:
    from egress.resolver import SystemResolver

    return SystemResolver()


def _aiohttp_transport() -> Transport:
    from egress.transport import AiohttpTransport

    return AiohttpTransport()
