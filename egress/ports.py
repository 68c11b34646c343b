"""What the client asks of the outside, as protocols and the values that cross them.

`Resolver` answers names, `Transport` performs one hop over vetted addresses, `Fetch` replaces
both when the host has its own confined way out. No I/O and no aiohttp here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from egress.address import Address
from egress.policy import EgressPolicy
from egress.url import Target
from egress.violation import Violation

__all__ = (
    "UNLIMITED",
    "Count",
    "Fetch",
    "FetchLimits",
    "Headers",
    "HopRequest",
    "HopResponse",
    "Observer",
    "Resolver",
    "RunLimits",
    "RunUsage",
    "Transport",
)

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""(name, value) in the order received, names lower-case, a name as often as it came."""


@attrs.frozen(kw_only=True)
class FetchLimits:
    """The bounds of one fetch. All are finite; none can be switched off.

    Attributes:
        max_redirects: Redirects that are followed.
        timeout_seconds: The one deadline over lookup, connect, TLS, every hop and the body.
        max_raw_bytes: Body bytes as received; more is cut.
        max_decoded_bytes: Body bytes after decoding; more is cut.
        max_header_bytes: All header fields of one hop, informational responses included.
        max_informational: 1xx responses of one hop.

    Raises:
        ValueError: A limit is not positive (`max_redirects` and `max_informational` may be 0), or
            a limit other than `timeout_seconds` is no whole number.
    """

    max_redirects: int = 5
    timeout_seconds: float = 30.0
    max_raw_bytes: int = 8 * 1024 * 1024
    max_decoded_bytes: int = 8 * 1024 * 1024
    max_header_bytes: int = 65_536
    max_informational: int = 16

    def __attrs_post_init__(self) -> None:
        seconds = self.timeout_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ValueError("the seconds of a fetch are a number")
        if not 0 < seconds < float("inf"):
            raise ValueError("the seconds of a fetch are positive and finite")
        for size in (self.max_raw_bytes, self.max_decoded_bytes, self.max_header_bytes):
            if not _is_whole(size) or size <= 0:
                raise ValueError("a size of a fetch is a whole number from 1")
        for count in (self.max_redirects, self.max_informational):
            if not _is_whole(count) or count < 0:
                raise ValueError("a count of a fetch is a whole number from 0")


def _is_whole(value: object) -> bool:
    # True is not 1.
    return isinstance(value, int) and not isinstance(value, bool)


UNLIMITED: Final = "unlimited"
"""The only way to have no cap on a run: write the word."""
Count: TypeAlias = int | Literal["unlimited"]
"""A cap: a whole number, or the word."""


@attrs.frozen(kw_only=True)
class RunLimits:
    """The caps of one run over all its fetches.

    Attributes:
        max_requests: Requests, every redirect counted.
        max_bytes: Body bytes as received; a body is cut where they end.
        max_concurrent: Fetches at one time; one more is refused, not queued.

    Raises:
        ValueError: A cap is neither a whole number from 0 nor the word "unlimited".
    """

    max_requests: Count = 10_000
    max_bytes: Count = 1024 * 1024 * 1024
    max_concurrent: Count = 64

    def __attrs_post_init__(self) -> None:
        for value in (self.max_requests, self.max_bytes, self.max_concurrent):
            if isinstance(value, str) and value == UNLIMITED:
                continue
            # True is not 1, and None is not unlimited.
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError("a cap of a run is a whole number from 0 or 'unlimited'")


@attrs.frozen(kw_only=True)
class RunUsage:
    """What one run has used of its caps.

    Attributes:
        requests: Sent, redirects included.
        raw_bytes: Body bytes as received.

    Raises:
        ValueError: A count is no whole number from 0.
    """

    requests: int = 0
    raw_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        if not all(_is_whole(count) and count >= 0 for count in (self.requests, self.raw_bytes)):
            raise ValueError("what a run has used is a whole number from 0")

    def to_json(self) -> dict[str, int]:
        """Plain values, keys as stored."""
        return {"requests": self.requests, "raw_bytes": self.raw_bytes}

    @classmethod
    def from_json(cls, value: object) -> RunUsage:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        if not isinstance(value, dict) or set(value) != {"requests", "raw_bytes"}:
            raise ValueError("not what a run has used")
        return cls(requests=value["requests"], raw_bytes=value["raw_bytes"])


@attrs.frozen(kw_only=True)
class HopRequest:
    """One request that the policy admits, a GET unless it says otherwise.

    Attributes:
        target: What to request; its parts are the only ones to be sent.
        hop: Index in the chain, for errors.
        policy: The policy that admitted it. A transport keeps connections under one policy only.
        limits: The bounds of the fetch.
        addresses: Looks the host up once and returns the vetted addresses; asked again within
            the hop it returns the same. To be called only when a new connection is needed, and
            no other address may be dialled. Raises what the fetch ends with: let it through.
        method: GET, unless an adapter of an API asks.
        headers: Fields beside the transport's own, checked; they go before those.
        body: What is sent after the head, or None.
    """

    target: Target
    hop: int
    policy: EgressPolicy
    limits: FetchLimits
    addresses: Callable[[], Awaitable[tuple[Address, ...]]]
    method: str = "GET"
    headers: Headers = attrs.field(default=(), repr=False)
    body: bytes | None = attrs.field(default=None, repr=False)


async def _nothing_to_close() -> None:
    """For responses that hold nothing open."""


@attrs.frozen(kw_only=True)
class HopResponse:
    """The answer of one hop, its body not yet read.

    Attributes:
        status: Final status, never 1xx.
        headers: Bytes that are not UTF-8 come as surrogate escapes.
        body: Chunks as received, content coding untouched; raises `FetchError` when it breaks.
        close: Gives the connection back when the body was read to its end, else drops it. May
            be called twice.
    """

    status: int
    headers: Headers
    body: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]] = _nothing_to_close

    def values(self, name: str) -> list[str]:
        """Every value of the field *name* (lower-case), in order."""
        return [value for field, value in self.headers if field == name]


class Resolver(Protocol):
    """Answers names."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of *host* as text, in the order to try; empty when there are none.

        Raises:
            OSError: The lookup failed (`socket.gaierror` among others).
        """
        ...


class Transport(Protocol):
    """Performs hops, and owns the connections of one client."""

    async def send(self, request: HopRequest) -> HopResponse:
        """The answer to one request; follows nothing, adds no cookie and no credential.

        Raises:
            FetchError: The hop failed.
            EgressDenied: `request.addresses` refused.
        """
        ...

    async def aclose(self) -> None:
        """Closes every connection. May be called twice."""
        ...


class Fetch(Protocol):
    """One hop by the host's own means, for example through an egress proxy that vets addresses.

    It follows nothing, and sends no credential of the run. A denial by the proxy is raised as
    `EgressDenied` with the proxy's event id.
    """

    async def __call__(self, target: Target, /) -> HopResponse:
        """The answer to one GET of *target*."""
        ...


class Observer(Protocol):
    """Is told what a policy that only reports would have refused, before it is fetched."""

    async def __call__(self, violation: Violation, /) -> None:
        """Takes one violation, `enforced` False. Raising stops the fetch."""
        ...
