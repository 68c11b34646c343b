"""Tavily.

Only its topic `news` has dates, as HTTP dates, so freshness is refused under every other. Its
domain filter has been seen to leak. Content is text and may hold markdown.
"""

import re
from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.errors import InvalidSetup, ProviderFault
from web_tools.providers._ask import (
    Adapter,
    Outgoing,
    Question,
    Rows,
    items,
    make_provider,
    refused_query,
)
from web_tools.providers._dates import http_instant
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_tavily_provider",)

_URL: Final = "https://api.tavily.com"
_TOPICS: Final = ("general", "news", "finance")
_MAX_CHARACTERS: Final = 400
_MAX_COUNT: Final = 20
_OPERATOR: Final = re.compile(r"\A[-+]|\A\w+:|\A(?:AND|OR|NOT)\Z|\"")


def create_tavily_provider(
    *, base_url: str = _URL, topic: str = "general", **wiring: Any
) -> SearchProvider:
    """Tavily as a back end; with ``topic="news"`` it can be asked for freshness.

    Raises:
        InvalidSetup: There is no such topic.
    """
    if topic not in _TOPICS:
        raise InvalidSetup("topic", f"must be one of {', '.join(_TOPICS)}")
    return make_provider(
        Adapter(
            name="tavily",
            base_url=base_url,
            ask=lambda question: _ask(question, topic),
            read=_read,
            key_header=("Authorization", "Bearer {}"),
            unsupported=() if topic == "news" else ("freshness",),
            statuses={432: ProviderFault.QUOTA, 433: ProviderFault.QUOTA},
        ),
        **wiring,
    )


def _ask(question: Question, topic: str) -> Outgoing:
    options = question.options
    query = quote_where(question.query, _OPERATOR)
    if not query or len(query) > _MAX_CHARACTERS:
        raise refused_query("empty or more than 400 characters")
    body: dict[str, Any] = {
        "query": query,
        "topic": topic,
        "search_depth": "basic",
        "max_results": min(options.count, _MAX_COUNT),
        "auto_parameters": False,
        "include_answer": False,
        "include_raw_content": False,
        "exact_match": False,
    }
    if options.site is not None:
        body |= {"include_domains": [options.site], "include_domains_mode": "restrict"}
    if options.freshness is not None:
        body["start_date"] = options.freshness.since[:10]
    return Outgoing(path="/search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("url") or "",
            snippet=text(row.get("content")),
            published_at=http_instant(row.get("published_date")),
        )
        for row in items(document, "results")
    ]
