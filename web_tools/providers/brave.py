"""Brave Search API.

The query goes out verbatim with operators and spelling correction off; 400 characters or 50 words
are the most it takes. A site is a Goggle, never a part of the query. `page_age` has no zone, so
only its day is used; its own freshness filters by when a page was discovered.
"""

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
from web_tools.providers._dates import day_of, tomorrow

__all__ = ("create_brave_provider",)

_URL: Final = "https://api.search.brave.com"
_MAX_CHARACTERS: Final = 400
_MAX_WORDS: Final = 50
_MAX_COUNT: Final = 20


def create_brave_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Brave as a back end; `search.apiKey` is its subscription token."""
    return make_provider(
        Adapter(
            name="brave",
            base_url=base_url,
            ask=_ask,
            read=_read,
            key_header=("X-Subscription-Token", "{}"),
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    query, options = question.query, question.options
    if len(query) > _MAX_CHARACTERS or len(query.split()) > _MAX_WORDS:
        raise refused_query("more than 400 characters or 50 words")
    fields = [
        ("q", query),
        ("count", str(min(options.count, _MAX_COUNT))),
        ("offset", "0"),
        ("operators", "false"),
        ("spellcheck", "false"),
        ("result_filter", "web"),
    ]
    if options.freshness is not None:
        since = options.freshness.since[:10]
        fields.append(("freshness", f"{since}to{tomorrow(options.freshness.now)}"))
    if options.site is not None:
        fields.append(("goggles", f"$discard\n$site={options.site}"))
    return Outgoing(path="/res/v1/web/search", fields=fields)


def _read(document: Any, _: Outgoing) -> Rows:
    if member(document, "type") != "search":
        raise bad_shape("an answer of another type")
    told = document.get("query")
    operators = told.get("search_operators") if isinstance(told, dict) else None
    if isinstance(operators, dict) and operators.get("applied") is True:
        raise bad_shape("operators were read out of the query")
    if document.get("web") is None:
        # Without a single result of the web there is no such part.
        return ()
    return [
        SearchRow(
            title=row.get("title"),
            url=row.get("url") or "",
            snippet=row.get("description"),
            published_at=day_of(row.get("page_age")),
        )
        for row in items(document, "web", "results")
    ]
