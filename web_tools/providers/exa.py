"""Exa.

Text goes in verbatim; above 25 results the price of a call rises, so no more are asked for.
`publishedDate` is an instant already. Titles and highlights are text, so they are escaped.
"""

from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.contract.snippets import escape_text
from web_tools.providers._ask import Adapter, Outgoing, Question, Rows, items, make_provider
from web_tools.providers._dates import as_is
from web_tools.providers._text import joined, text

__all__ = ("create_exa_provider",)

_URL: Final = "https://api.exa.ai"
_MAX_COUNT: Final = 25


def create_exa_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Exa as a back end."""
    return make_provider(
        Adapter(
            name="exa", base_url=base_url, ask=_ask, read=_read, key_header=("x-api-key", "{}")
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    options = question.options
    body: dict[str, Any] = {
        "query": question.query,
        "type": "auto",
        "numResults": min(options.count, _MAX_COUNT),
        "contents": {"highlights": True},
    }
    if options.site is not None:
        body["includeDomains"] = [options.site]
    if options.freshness is not None:
        body["startPublishedDate"] = options.freshness.since
    return Outgoing(path="/search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("url") or "",
            snippet=escape_text(joined(row.get("highlights"))),
            published_at=as_is(row.get("publishedDate")),
        )
        for row in items(document, "results")
    ]
