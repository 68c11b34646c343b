"""Mojeek. Its key is a field of the URL, which no error here shows; its errors come with status 200.

Of its three dates only `pdate` says when a page was published.
"""

import re
from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.errors import ProviderFault, SearchProviderError
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
from web_tools.providers._dates import epoch_instant
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_mojeek_provider",)

_URL: Final = "https://api.mojeek.com"
_OPERATOR: Final = re.compile(r"\A[-+]|\A\w+:|\"")


def create_mojeek_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Mojeek as a back end."""
    return make_provider(
        Adapter(name="mojeek", base_url=base_url, ask=_ask, read=_read, key_field="api_key"),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    options = question.options
    query = quote_where(question.query, _OPERATOR)
    if not query:
        raise refused_query("nothing but quotes")
    fields = [("fmt", "json"), ("q", query), ("t", str(options.count)), ("s", "1")]
    if options.site is not None:
        fields.append(("site", options.site))
    if options.freshness is not None:
        fields.append(("since", options.freshness.since[:10].replace("-", "")))
    return Outgoing(path="/search", fields=[*fields, ("safe", "0")])


def _read(document: Any, _: Outgoing) -> Rows:
    status = member(document, "response", "status")
    if status != "OK":
        raise SearchProviderError(_fault(status), "an error with status 200")
    return [
        SearchRow(
            title=text(row.get("title")),
            url=row.get("url") or "",
            snippet=text(row.get("desc")),
            published_at=epoch_instant(row.get("pdate")),
        )
        for row in items(document, "response", "results")
    ]


def _fault(status: Any) -> ProviderFault:
    words = status.lower() if isinstance(status, str) else ""
    if "limit" in words:
        return ProviderFault.QUOTA
    return ProviderFault.UNAUTHORIZED if "key" in words else ProviderFault.UNAVAILABLE
