"""The port that the author of a back end implements: one coroutine, and what it is given.

Everything else is the engine's: the tool's name, the options, the filters, the envelope.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs

from web_tools.contract.options import OPTIONS, SearchOptions
from web_tools.errors import InvalidSetup

if TYPE_CHECKING:
    from egress.policy import EgressPolicy
    from egress.request import ApiPolicy, Signal, Wires

__all__ = (
    "SEARCH_CREDENTIAL_NAME",
    "Credentials",
    "SearchContext",
    "SearchFunction",
    "SearchProvider",
    "SearchRow",
    "define_search_provider",
)

SEARCH_CREDENTIAL_NAME: Final = "search.apiKey"
"""The one name of the credential, whatever the vendor."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Credentials(Protocol):
    """The credentials of the agent that calls."""

    async def get(self, name: str) -> str:
        """The credential.

        Raises:
            CredentialRefused: The agent is not allowed to have it.
            CredentialMissing: There is none.
        """
        ...


@attrs.frozen(kw_only=True)
class SearchContext:
    """What a back end works with in one call.

    Attributes:
        policy: What may be reached. Every request goes through it; never derive another.
        credentials: Of the calling agent: ``await context.credentials.get("search.apiKey")``.
        signal: Set when nobody waits any more, or None.
        now: When the call was made, UTC.
        wires: Resolver and transport of tests; None for the system's.
    """

    policy: ApiPolicy | EgressPolicy
    credentials: Credentials
    now: datetime
    signal: Signal | None = None
    wires: Wires | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class SearchRow:
    """One row of a back end. A mapping with the keys title, url, snippet, publishedAt is one, too.

    Attributes:
        snippet: As the vendor decorates it, unless the provider declares plain text.
        published_at: A text by the table of the contract; anything else is no date.
    """

    title: str | None
    url: str
    snippet: str | None = None
    published_at: object = None


SearchFunction: TypeAlias = Callable[
    [str, SearchOptions, SearchContext], Awaitable[Sequence[SearchRow | Mapping[str, Any]]]
]
"""What an author writes: ``async def search(query, options, context)``; the best rows first."""


@attrs.frozen(kw_only=True)
class SearchProvider:
    """A back end; made by `define_search_provider`.

    Attributes:
        name: In the envelope and in logs.
        search: The author's coroutine.
        unsupported: Options that it cannot honour; a call with one is refused before a request.
        plain: Whether titles and snippets are text already, and are not to be stripped.
        origins: What its requests reach; None when it may reach every public host.
    """

    name: str
    search: SearchFunction = attrs.field(repr=False)
    unsupported: tuple[str, ...] = ()
    plain: bool = False
    origins: frozenset[str] | None = None


def define_search_provider(
    *,
    name: str,
    search: SearchFunction,
    unsupported: Iterable[str] = (),
    plain: bool = False,
    origins: Iterable[str] | None = None,
) -> SearchProvider:
    """A back end of *search*.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        search: The coroutine that asks the vendor once.
        unsupported: Of `count`, `site` and `freshness`. Leaving one out means that it is honoured.
        plain: Declares that titles and snippets are plain text, so that `R&D &amp; more` stays.
        origins: Where its requests go, such as ``https://api.example.com``; requests elsewhere
            are denied. None lets it reach every host that the address policy admits.

    Raises:
        InvalidSetup: A part is not of its form.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidSetup("name", "must be letters, digits, dots, dashes and underscores")
    if not _is_async(search):
        raise InvalidSetup("search", "must be a coroutine function: async def")
    if not isinstance(plain, bool):
        raise InvalidSetup("plain", "must be True or False")
    return SearchProvider(
        name=name,
        search=search,
        unsupported=_options(unsupported),
        plain=plain,
        origins=None if origins is None else _origins(origins),
    )


def _is_async(search: object) -> bool:
    """Whether calling it gives a coroutine, as far as that can be known before."""
    if isinstance(search, type):
        return False
    while isinstance(search, functools.partial):
        search = search.func
    # Whether there is one is not the question, but whether it is async.
    called = getattr(search, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(search) or inspect.iscoroutinefunction(called)


def _options(unsupported: Iterable[str]) -> tuple[str, ...]:
    if isinstance(unsupported, str) or not isinstance(unsupported, Iterable):
        raise InvalidSetup("unsupported", "must be a list of options")
    named = tuple(unsupported)
    for option in named:
        if option not in OPTIONS:
            told = f"{option!r:.80} is not an option that can be left out"
            raise InvalidSetup("unsupported", f"{told}; there are: {', '.join(OPTIONS)}")
    return tuple(option for option in OPTIONS if option in named)


def _origins(origins: Iterable[str]) -> frozenset[str]:
    from egress.errors import UrlRejected
    from egress.url import parse_target

    if isinstance(origins, str):
        raise InvalidSetup("origins", "must be a list")
    try:
        return frozenset(parse_target(each).origin for each in origins)
    except UrlRejected as error:
        raise InvalidSetup("origins", f"holds what is no URL: {error.message}") from error
