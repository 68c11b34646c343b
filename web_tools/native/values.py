"""What is asked of a model that searches by itself, and what its answer says, whatever the protocol. Pure.

A codec writes a `NativeAsk` as the body of a request, and reads the body of an answer as a
`NativeTurn` or raises `NativeFailed`. Spans count code points of the text; the addresses of sources
were checked by form and by literal address, and none was looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import attrs

from web_tools.errors import WebToolsError

__all__ = (
    "MAX_ANSWER_CHARS",
    "MAX_CITATIONS",
    "Codec",
    "Covers",
    "HeldLimit",
    "Json",
    "NativeAsk",
    "NativeCitation",
    "NativeFailed",
    "NativeFault",
    "NativeRequest",
    "NativeSource",
    "NativeTurn",
    "NativeUsage",
    "UrlKind",
)

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"
"""What a body of JSON holds."""

MAX_ANSWER_CHARS: Final = 262_144
"""More than any 8,192 tokens are; a longer text is no answer of ours."""
MAX_CITATIONS: Final = 256


class NativeFault(StrEnum):
    """Why a native search has no answer. The stored words are public."""

    INCOMPLETE = "incomplete"
    REFUSED = "refused"
    SEARCH_FAILED = "search_failed"
    LIMIT_REACHED = "limit_reached"
    NOT_SUPPORTED = "not_supported"
    RATE_LIMITED = "rate_limited"
    UNAUTHORIZED = "unauthorized"
    UNAVAILABLE = "unavailable"
    NOT_REACHABLE = "not_reachable"
    DEADLINE = "deadline"
    BAD_ANSWER = "bad_answer"


class NativeFailed(WebToolsError):
    """There is no answer; the message is our own and repeats nothing of what came.

    Attributes:
        usage: What the provider counted all the same.
    """

    def __init__(self, fault: NativeFault, usage: NativeUsage | None = None) -> None:
        self.fault = fault
        self.usage = usage
        super().__init__(str(fault))


class HeldLimit(StrEnum):
    """A limit that a protocol can hold a search to."""

    SEARCHES = "searches"
    SITES = "sites"


class UrlKind(StrEnum):
    """Whether an address is the source's own, or one of the provider that leads there."""

    DIRECT = "direct"
    REDIRECT = "redirect"


class Covers(StrEnum):
    """What the span of a citation covers: the words it speaks for, or the mark that stands for it."""

    CLAIM = "claim"
    MARKER = "marker"


@attrs.frozen(kw_only=True)
class NativeUsage:
    """Tokens as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0


@attrs.frozen(kw_only=True)
class NativeSource:
    """An address that the provider names.

    Attributes:
        url: Canonical.
        host: Of the address; of a redirect it is the provider's own, and says nothing.
        kind: A redirect hides the host until it is followed, which is a request under the policy.
    """

    url: str
    host: str
    title: str = ""
    kind: UrlKind = UrlKind.DIRECT

    def is_under(self, site: str) -> bool:
        """Whether it lies in *site*, on label boundaries; never of a redirect, whose host is unknown."""
        if self.kind is UrlKind.REDIRECT:
            return False
        return self.host == site or self.host.endswith(f".{site}")


@attrs.frozen(kw_only=True)
class NativeCitation:
    """One citation of a text.

    Attributes:
        span: First code point and the one behind the last, or None when the provider gives none
            that fits.
        quote: That part of the text.
        excerpt: What the provider says that stands at the source; not checked.
    """

    source: NativeSource
    span: tuple[int, int] | None = None
    quote: str = ""
    excerpt: str = ""
    covers: Covers = Covers.CLAIM


@attrs.frozen(kw_only=True)
class NativeTurn:
    """One response.

    Attributes:
        searches: Searches that the provider began, counted by what it shows, or reports, whichever
            is more.
        found: Whether one of them gave results.
        failed: What a search failed with.
        dropped: Sources whose address is none that may be shown.
        resume: What goes back unchanged so that a paused answer goes on; None when it is whole.
    """

    text: str
    citations: tuple[NativeCitation, ...] = ()
    sources: tuple[NativeSource, ...] = ()
    searches: int = 0
    found: bool = False
    failed: NativeFault | None = None
    dropped: int = 0
    usage: NativeUsage | None = None
    model: str | None = None
    resume: Json = None


@attrs.frozen(kw_only=True)
class NativeAsk:
    """One question for a model that searches.

    Attributes:
        model: Its name at the provider.
        searches: The most searches of this request; 0 offers no search at all, None sets no limit.
        sites: Hosts that a search is to stay in; empty for all.
        resume: What the responses before gave to go on with, in order.
    """

    model: str
    query: str
    instructions: str
    max_output_tokens: int
    searches: int | None = None
    sites: tuple[str, ...] = ()
    resume: tuple[Json, ...] = ()


@attrs.frozen(kw_only=True)
class NativeRequest:
    """A request: where below the base of the API, and its body."""

    path: str
    body: Mapping[str, Json] = attrs.field(repr=False)


class Codec(Protocol):
    """One protocol. Both directions are pure functions."""

    @property
    def holds(self) -> frozenset[HeldLimit]:
        """The limits that its requests can carry."""
        ...

    def headers(self, key: str) -> Mapping[str, str]:
        """The headers that carry the key."""
        ...

    def encode(self, ask: NativeAsk) -> NativeRequest:
        """The request."""
        ...

    def decode(self, body: object) -> NativeTurn:
        """What a body with a status of success says.

        Raises:
            NativeFailed: It holds no answer.
        """
        ...
