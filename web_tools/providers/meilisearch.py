"""Meilisearch over an index of the operator's, with the fields of `docs/backends.md`.

It reads phrases and `-negation` out of the query and has no switch for it, so tokens with a dash
in front go out as phrases and quotes are left out. What it highlights is not escaped: private
characters stand for its tags, the text is escaped, and the tags are put in after that.
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
from web_tools.providers._dates import as_is
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_meilisearch_provider",)

_INDEX: Final = re.compile(r"[A-Za-z0-9_-]{1,400}")
_OPERATOR: Final = re.compile(r"\A-|\"")
# Of the private use area: a page that has them loses two characters, and gains no tag.
_OPEN: Final = "\ue0a1"
_CLOSE: Final = "\ue0a2"


def create_meilisearch_provider(*, base_url: str, index: str, **wiring: Any) -> SearchProvider:
    """The index as a back end; `search.apiKey` is a search key.

    Raises:
        InvalidSetup: A part is not of its form.
    """
    if _INDEX.fullmatch(index) is None:
        raise InvalidSetup("index", "is no name of an index")
    return make_provider(
        Adapter(
            name="meilisearch",
            base_url=base_url,
            ask=lambda question: _ask(question, index),
            read=_read,
            key_header=("Authorization", "Bearer {}"),
            # A filter on a field that is not filterable is a fault of the set-up, not of the query.
            statuses={400: ProviderFault.BAD_ANSWER},
        ),
        **wiring,
    )


def _ask(question: Question, index: str) -> Outgoing:
    options = question.options
    query = quote_where(question.query, _OPERATOR)
    if not query:
        raise refused_query("nothing but quotes")
    filters = []
    if options.site is not None:
        # A canonical host has no quote and no backslash in it.
        filters.append(f'host_suffixes = "{options.site}"')
    if options.freshness is not None:
        # A date without a time is midnight, so the second is cut and never rounded up.
        filters.append(f"published_ts >= {int(options.freshness.instant.timestamp() // 1)}")
    body = {
        "q": query,
        "limit": options.count,
        "offset": 0,
        "filter": filters,
        "attributesToRetrieve": ["title", "url", "published"],
        "attributesToCrop": ["body"],
        "cropLength": 30,
        "attributesToHighlight": ["body"],
        "highlightPreTag": _OPEN,
        "highlightPostTag": _CLOSE,
        "matchingStrategy": "all",
    }
    return Outgoing(path=f"/indexes/{index}/search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    return [_row(hit) for hit in items(document, "hits")]


def _row(hit: dict[str, Any]) -> SearchRow:
    formatted = hit.get("_formatted")
    body = text(formatted.get("body")) if isinstance(formatted, dict) else None
    marked = (body or "").replace(_OPEN, "<em>").replace(_CLOSE, "</em>")
    return SearchRow(
        title=text(hit.get("title")),
        url=hit.get("url") or "",
        snippet=marked,
        published_at=as_is(hit.get("published")),
    )
