"""Perplexity's Search API (rows, not answers). Days go in as MM/DD/YYYY and come out as dates."""

from datetime import date
from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.providers._ask import Adapter, Outgoing, Question, Rows, items, make_provider
from web_tools.providers._dates import as_is
from web_tools.providers._text import text

__all__ = ("create_perplexity_provider",)

_URL: Final = "https://api.perplexity.ai"
_MAX_COUNT: Final = 20


def create_perplexity_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Perplexity as a back end."""
    return make_provider(
        Adapter(
            name="perplexity",
            base_url=base_url,
            ask=_ask,
            read=_read,
            key_header=("Authorization", "Bearer {}"),
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    options = question.options
    body: dict[str, Any] = {
        "query": question.query,
        "max_results": min(options.count, _MAX_COUNT),
        "search_context_size": "low",
    }
    if options.site is not None:
        body["search_domain_filter"] = [options.site]
    if options.freshness is not None:
        # "After" leaves the day itself out, so the one before it is named; the tool filters.
        since = options.freshness.instant.date().toordinal()
        day = date.fromordinal(max(1, since - 1))
        body["search_after_date_filter"] = f"{day.month:02}/{day.day:02}/{day.year:04}"
    return Outgoing(path="/search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("url") or "",
            snippet=text(row.get("snippet")),
            published_at=as_is(row.get("date")),
        )
        for row in items(document, "results")
    ]
