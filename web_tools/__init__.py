"""Search and page reading as plain services, with the fence for what they bring in.

No loop is needed to use them. The names below are loaded when they are first used; the fence is
in `web_tools.fence`, the corpus in `web_tools.corpus`, back ends are in `web_tools.providers`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from web_tools.arguments import (
        ReadRequest,
        Recency,
        SearchRequest,
        WebToolCaps,
        parse_read_arguments,
        parse_search_arguments,
    )
    from web_tools.errors import SearchProviderError, WebErrorCode, WebToolError
    from web_tools.extract import Extracted, Extractor
    from web_tools.read import Page, PageReader
    from web_tools.search import (
        SearchHit,
        SearchOutcome,
        SearchResult,
        WebSearchProvider,
        create_fixture_web_search_provider,
        run_search,
    )

__all__ = (
    "Extracted",
    "Extractor",
    "Page",
    "PageReader",
    "ReadRequest",
    "Recency",
    "SearchHit",
    "SearchOutcome",
    "SearchProviderError",
    "SearchRequest",
    "SearchResult",
    "WebErrorCode",
    "WebSearchProvider",
    "WebToolCaps",
    "WebToolError",
    "create_fixture_web_search_provider",
    "parse_read_arguments",
    "parse_search_arguments",
    "run_search",
)

_HOMES: Final[Mapping[str, str]] = {
    "Extracted": "extract",
    "Extractor": "extract",
    "Page": "read",
    "PageReader": "read",
    "ReadRequest": "arguments",
    "Recency": "arguments",
    "SearchHit": "search",
    "SearchOutcome": "search",
    "SearchProviderError": "errors",
    "SearchRequest": "arguments",
    "SearchResult": "search",
    "WebErrorCode": "errors",
    "WebSearchProvider": "search",
    "WebToolCaps": "arguments",
    "WebToolError": "errors",
    "create_fixture_web_search_provider": "search",
    "parse_read_arguments": "arguments",
    "parse_search_arguments": "arguments",
    "run_search": "search",
}


if not TYPE_CHECKING:
    # Hidden from type checkers: to them a name that is not above does not exist.
    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"web_tools.{home}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
