"""Linkup. No row has a date, so freshness is refused; "nothing found" comes as an error of its own."""

from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.errors import ProviderFault
from web_tools.providers._ask import Adapter, Outgoing, Question, Rows, items, make_provider
from web_tools.providers._text import text

__all__ = ("create_linkup_provider",)

_URL: Final = "https://api.linkup.so"


def create_linkup_provider(*, base_url: str = _URL, **wiring: Any) -> SearchProvider:
    """Linkup as a back end."""
    return make_provider(
        Adapter(
            name="linkup",
            base_url=base_url,
            ask=_ask,
            read=_read,
            key_header=("Authorization", "Bearer {}"),
            unsupported=("freshness",),
            judge=_judge,
        ),
        **wiring,
    )


def _ask(question: Question) -> Outgoing:
    options = question.options
    body: dict[str, Any] = {
        "q": question.query,
        "depth": "standard",
        "outputType": "searchResults",
        "maxResults": options.count,
        "includeImages": False,
    }
    if options.site is not None:
        body["includeDomains"] = [options.site]
    return Outgoing(path="/v1/search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    return [
        SearchRow(
            title=text(row.get("name")), url=row.get("url") or "", snippet=text(row.get("content"))
        )
        for row in items(document, "results")
        if row.get("type") == "text"
    ]


def _judge(status: int, document: Any) -> ProviderFault | Rows | None:
    error = document.get("error") if isinstance(document, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if status == 400 and code == "SEARCH_QUERY_NO_RESULT":
        return ()
    if status == 429 and code == "INSUFFICIENT_FUNDS_CREDITS":
        return ProviderFault.QUOTA
    return None
