"""You.com Search API: rows of the web and of the news, in this order. Operators are quoted."""

import re
from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.providers._ask import (
    Adapter,
    Outgoing,
    Question,
    Rows,
    bad_shape,
    items,
    make_provider,
    member,
    refused_query,
)
from web_tools.providers._dates import instant_or_day
from web_tools.providers._literal import quote_where
from web_tools.providers._text import joined, text

__all__ = ("create_you_provider",)

_URL: Final = "https://ydc-index.io"
_OPERATOR: Final = re.compile(r"\A[-+(]|\)\Z|\A\w+:|\A(?:AND|OR|NOT)\Z|\"")


def create_you_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """You.com as a back end."""
    return make_provider(
        Adapter(
            name="you", base_url=base_url, ask=_ask, read=_read, key_header=("X-API-Key", "{}")
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    options = question.options
    query = quote_where(question.query, _OPERATOR)
    if not query:
        raise refused_query("nothing but quotes")
    fields = [("query", query), ("count", str(options.count)), ("offset", "0")]
    if options.freshness is not None:
        until = options.freshness.now.date().isoformat()
        fields.append(("freshness", f"{options.freshness.since[:10]}to{until}"))
    if options.site is not None:
        fields.append(("include_domains", options.site))
    return Outgoing(path="/v1/search", fields=fields)


def _read(document: Any, _: Outgoing) -> Rows:
    kinds = member(document, "results")
    if not isinstance(kinds, dict):
        raise bad_shape("results is no object")
    # A kind without a result may be missing.
    present = [kind for kind in ("web", "news") if kinds.get(kind)]
    return [_row(row) for kind in present for row in items(document, "results", kind)]


def _row(row: dict[str, Any]) -> SearchRow:
    return SearchRow(
        title=text(row.get("title")),
        url=row.get("url") or "",
        snippet=text(joined(row.get("snippets")) or row.get("description")),
        published_at=instant_or_day(row.get("page_age")),
    )
