"""Search and page reading as plain services, with the fence for what they bring in.

No loop is needed to use them. The names below are loaded when they are first used; the fence is
in `web_tools.fence`, the corpus in `web_tools.corpus`, back ends are in `web_tools.providers`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from egress.request import request_through_policy
    from web_tools.arguments import (
        ReadRequest,
        Recency,
        SearchRequest,
        WebToolCaps,
        parse_read_arguments,
        parse_search_arguments,
    )
    from web_tools.contract.agents import AgentProfile, AgentProfiles, parse_agent_profile
    from web_tools.contract.credentials import CredentialDesk
    from web_tools.contract.engine import SearchRecord
    from web_tools.contract.options import SearchOptions
    from web_tools.contract.pack_port import as_search_provider, as_web_search_provider
    from web_tools.contract.provider import (
        SEARCH_CREDENTIAL_NAME,
        SearchContext,
        SearchProvider,
        SearchRow,
        define_search_provider,
    )
    from web_tools.contract.snippets import escape_text
    from web_tools.contract.tool import WebSearchTool, create_web_search_tool
    from web_tools.errors import (
        CredentialMissing,
        CredentialRefused,
        InvalidSetup,
        SearchProviderError,
        SearchRefused,
        WebErrorCode,
        WebToolError,
    )
    from web_tools.extract import Extracted, Extractor
    from web_tools.native.client import NativeEndpoint
    from web_tools.native.registry import PROTOCOLS
    from web_tools.page_cache import CacheLimits, PageCache
    from web_tools.plugin.bounds import PluginBounds
    from web_tools.plugin.capability import ModelCard, ModelCards, NativeLimits, SearchSupport
    from web_tools.plugin.door import CallPorts, SearchPlugin, create_search_plugin
    from web_tools.plugin.pages import GuardedReader
    from web_tools.plugin.settings import PluginSettings, read_plugin_settings
    from web_tools.plugin.summaries import Completed, CompletionFailed, Prompt
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
    "PROTOCOLS",
    "SEARCH_CREDENTIAL_NAME",
    "AgentProfile",
    "AgentProfiles",
    "CacheLimits",
    "CallPorts",
    "Completed",
    "CompletionFailed",
    "CredentialDesk",
    "CredentialMissing",
    "CredentialRefused",
    "Extracted",
    "Extractor",
    "GuardedReader",
    "InvalidSetup",
    "ModelCard",
    "ModelCards",
    "NativeEndpoint",
    "NativeLimits",
    "Page",
    "PageCache",
    "PageReader",
    "PluginBounds",
    "PluginSettings",
    "Prompt",
    "ReadRequest",
    "Recency",
    "SearchContext",
    "SearchHit",
    "SearchOptions",
    "SearchOutcome",
    "SearchPlugin",
    "SearchProvider",
    "SearchProviderError",
    "SearchRecord",
    "SearchRefused",
    "SearchRequest",
    "SearchResult",
    "SearchRow",
    "SearchSupport",
    "WebErrorCode",
    "WebSearchProvider",
    "WebSearchTool",
    "WebToolCaps",
    "WebToolError",
    "as_search_provider",
    "as_web_search_provider",
    "create_fixture_web_search_provider",
    "create_search_plugin",
    "create_web_search_tool",
    "define_search_provider",
    "escape_text",
    "parse_agent_profile",
    "parse_read_arguments",
    "parse_search_arguments",
    "read_plugin_settings",
    "request_through_policy",
    "run_search",
)

_HOMES: Final[Mapping[str, str]] = {
    "PROTOCOLS": "web_tools.native.registry",
    "SEARCH_CREDENTIAL_NAME": "web_tools.contract.provider",
    "AgentProfile": "web_tools.contract.agents",
    "AgentProfiles": "web_tools.contract.agents",
    "CacheLimits": "web_tools.page_cache",
    "CallPorts": "web_tools.plugin.door",
    "Completed": "web_tools.plugin.summaries",
    "CompletionFailed": "web_tools.plugin.summaries",
    "CredentialDesk": "web_tools.contract.credentials",
    "CredentialMissing": "web_tools.errors",
    "CredentialRefused": "web_tools.errors",
    "Extracted": "web_tools.extract",
    "Extractor": "web_tools.extract",
    "GuardedReader": "web_tools.plugin.pages",
    "InvalidSetup": "web_tools.errors",
    "ModelCard": "web_tools.plugin.capability",
    "ModelCards": "web_tools.plugin.capability",
    "NativeEndpoint": "web_tools.native.client",
    "NativeLimits": "web_tools.plugin.capability",
    "Page": "web_tools.read",
    "PageCache": "web_tools.page_cache",
    "PageReader": "web_tools.read",
    "PluginBounds": "web_tools.plugin.bounds",
    "PluginSettings": "web_tools.plugin.settings",
    "Prompt": "web_tools.plugin.summaries",
    "ReadRequest": "web_tools.arguments",
    "Recency": "web_tools.arguments",
    "SearchContext": "web_tools.contract.provider",
    "SearchHit": "web_tools.search",
    "SearchOptions": "web_tools.contract.options",
    "SearchOutcome": "web_tools.search",
    "SearchPlugin": "web_tools.plugin.door",
    "SearchProvider": "web_tools.contract.provider",
    "SearchProviderError": "web_tools.errors",
    "SearchRecord": "web_tools.contract.engine",
    "SearchRefused": "web_tools.errors",
    "SearchRequest": "web_tools.arguments",
    "SearchResult": "web_tools.search",
    "SearchRow": "web_tools.contract.provider",
    "SearchSupport": "web_tools.plugin.capability",
    "WebErrorCode": "web_tools.errors",
    "WebSearchProvider": "web_tools.search",
    "WebSearchTool": "web_tools.contract.tool",
    "WebToolCaps": "web_tools.arguments",
    "WebToolError": "web_tools.errors",
    "as_search_provider": "web_tools.contract.pack_port",
    "as_web_search_provider": "web_tools.contract.pack_port",
    "create_fixture_web_search_provider": "web_tools.search",
    "create_search_plugin": "web_tools.plugin.door",
    "create_web_search_tool": "web_tools.contract.tool",
    "define_search_provider": "web_tools.contract.provider",
    "escape_text": "web_tools.contract.snippets",
    "parse_agent_profile": "web_tools.contract.agents",
    "parse_read_arguments": "web_tools.arguments",
    "parse_search_arguments": "web_tools.arguments",
    "read_plugin_settings": "web_tools.plugin.settings",
    "request_through_policy": "egress.request",
    "run_search": "web_tools.search",
}


if not TYPE_CHECKING:
    # Hidden from type checkers: to them a name that is not above does not exist.
    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
