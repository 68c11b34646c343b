"""Serper. Dates are relative or in the language of the interface, so freshness is refused.

There is no filter for a site but the operator, which is never written; the tool's own filter does it.
"""

import re
from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.errors import ProviderFault
from web_tools.providers._ask import (
    Adapter,
    Outgoing,
    Question,
    Rows,
    items,
    make_provider,
    member,
    refused_query,
)
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_serper_provider",)

_URL: Final = "https://google.serper.dev"
_OPERATOR: Final = re.compile(r"\A[-+~(@#]|\)\Z|\A\w+:|\A(?:AND|OR|AROUND\(\d+\))\Z|[\"*|]|\.\.")


def create_serper_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Serper as a back end."""
    return make_provider(
        Adapter(
            name="serper",
            base_url=base_url,
            ask=_ask,
            read=_read,
            key_header=("X-API-KEY", "{}"),
            unsupported=("freshness",),
            judge=_judge,
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    query = quote_where(question.query, _OPERATOR)
    if not query:
        raise refused_query("nothing but quotes")
    body = {
        "q": query,
        "num": question.options.count,
        "page": 1,
        "gl": "us",
        "hl": "en",
        "autocorrect": False,
    }
    return Outgoing(path="/search", json=body, sent=query)


def _read(document: Any, _: Outgoing) -> Rows:
    member(document, "searchParameters")
    if "organic" not in document:
        return ()
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("link") or "",
            snippet=text(row.get("snippet")),
        )
        for row in items(document, "organic")
    ]


def _judge(status: int, document: Any) -> ProviderFault | None:
    told = document.get("message") if isinstance(document, dict) else None
    spent = status == 400 and isinstance(told, str) and "credit" in told.lower()
    return ProviderFault.QUOTA if spent else None
