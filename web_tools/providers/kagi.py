"""Kagi Search API (v1). There is no filter for a site, so the tool's own does it."""

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
from web_tools.providers._dates import as_is
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_kagi_provider",)

_URL: Final = "https://kagi.com"
_OPERATOR: Final = re.compile(r"\A[-+(!]|!\Z|\)\Z|\A\w+:|\A(?:AND|OR|NOT)\Z|[\"*]")


def create_kagi_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Kagi as a back end."""
    return make_provider(
        Adapter(
            name="kagi",
            base_url=base_url,
            ask=_ask,
            read=_read,
            key_header=("Authorization", "Bearer {}"),
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    options = question.options
    query = quote_where(question.query, _OPERATOR)
    if not query:
        raise refused_query("nothing but quotes")
    body: dict[str, Any] = {
        "query": query,
        "workflow": "search",
        "format": "json",
        "limit": options.count,
        "page": 1,
        "safe_search": True,
    }
    if options.freshness is not None:
        body["filters"] = {"after": options.freshness.since[:10]}
    return Outgoing(path="/api/v1/search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    data = member(document, "data")
    if not isinstance(data, dict):
        raise bad_shape("data is no object")
    if "search" not in data:
        # Results are grouped by kind, and a kind without one is not there.
        return ()
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("url") or "",
            snippet=row.get("snippet"),
            published_at=as_is(row.get("time")),
        )
        for row in items(document, "data", "search")
    ]
