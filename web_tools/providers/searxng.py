"""SearXNG, self-hosted, with `json` among its `search.formats`.

It reads `!bangs`, `:languages` and `<timeouts` out of the query and answers `!!` with a redirect to
a public engine, so such tokens are quoted, and the echoed query must be what was sent. It has no
parameter for a number of results or a site. What engines gave as dates has lost its zone: they are
used only when the operator says that they are UTC (`naive_dates="utc"`), and then as days.
"""

import re
from typing import Any, Final

from web_tools.contract.freshness import Freshness
from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.errors import InvalidSetup, ProviderFault, SearchProviderError
from web_tools.providers._ask import (
    Adapter,
    Outgoing,
    Question,
    Rows,
    bad_shape,
    items,
    make_provider,
    member,
)
from web_tools.providers._dates import day_of
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_searxng_provider",)

_READ_BY_IT: Final = re.compile(r"\A[!:<]")
_DAY_MS: Final = 86_400_000
# Ranges that cover a freshness whatever an engine takes for a month or a year.
_RANGES: Final = ((1, "day"), (7, "week"), (28, "month"), (365, "year"))


def create_searxng_provider(
    *, base_url: str, naive_dates: str | None = None, **wiring: Any
) -> SearchProvider:
    """SearXNG at *base_url* as a back end. It needs no credential.

    Args:
        base_url: Such as ``http://127.0.0.1:8888``; the host of a private address must be named
            in the operator's `allowedHosts`.
        naive_dates: ``"utc"`` when the engines in use give dates in UTC; else freshness is refused.
        wiring: A limiter and clocks of tests.

    Raises:
        InvalidSetup: A part is not of its form.
    """
    if naive_dates not in {None, "utc"}:
        raise InvalidSetup("naive_dates", 'must be "utc" or absent')
    dated = naive_dates is not None
    return make_provider(
        Adapter(
            name="searxng",
            base_url=base_url,
            ask=_ask,
            read=lambda document, outgoing: _read(document, outgoing, dated=dated),
            unsupported=() if dated else ("freshness",),
            judge=_judge,
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    sent = quote_where(question.query, _READ_BY_IT)
    fields = [
        ("q", sent),
        ("format", "json"),
        ("categories", "general"),
        ("language", "all"),
        ("pageno", "1"),
        ("safesearch", "0"),
    ]
    span = _range(question.options.freshness)
    if span:
        fields.append(("time_range", span))
    return Outgoing(path="/search", fields=fields, sent=sent)


def _range(freshness: Freshness | None) -> str:
    if freshness is None:
        return ""
    return next((word for days, word in _RANGES if freshness.ms <= days * _DAY_MS), "")


def _read(document: Any, outgoing: Outgoing, *, dated: bool) -> Rows:
    if member(document, "query") != outgoing.sent:
        raise bad_shape("a part of the query was read as an operator")
    rows = items(document, "results")
    if not rows and document.get("unresponsive_engines"):
        raise SearchProviderError(ProviderFault.UNAVAILABLE, "none of its engines answered")
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("url") or "",
            snippet=text(row.get("content")),
            published_at=day_of(row.get("publishedDate")) if dated else None,
        )
        for row in rows
    ]


def _judge(status: int, document: Any) -> ProviderFault | None:
    # An instance without `json` among its formats answers 403 with a page, and no key is involved.
    return ProviderFault.UNAVAILABLE if status == 403 and document is None else None
