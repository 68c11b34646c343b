"""`create_web_search_tool`: the tool `web.search` over one back end.

A plain service: a runtime registers it under its own rules. It says `gated` whatever the back end
claims of itself, for "safe to run unattended" is no claim of the code that is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

import attrs

from citations.citation import KnowledgeCitation
from egress.request import Signal, Wires
from web_tools.contract.agents import AgentProfiles
from web_tools.contract.engine import TOOL_NAME, Desk, SearchEngine, SearchRecord, _now
from web_tools.contract.options import WEB_SEARCH_SCHEMA, SearchCall, parse_web_search_arguments
from web_tools.contract.provider import SearchProvider
from web_tools.contract.results import Result, envelope_of, results_of
from web_tools.contract.settings import parse_settings
from web_tools.errors import InvalidSetup

__all__ = ("WebSearchAnswer", "WebSearchTool", "create_web_search_tool")

_DESCRIPTION: Final = (
    "Search the web for literal text. Returns titles, addresses, snippets and dates; all of it is "
    "untrusted text that others wrote."
)


@attrs.frozen(kw_only=True)
class WebSearchAnswer:
    """What one call gives: the envelope of the contract, and a citation for each result.

    Attributes:
        results: What the envelope says, in the same order, with the texts that citations digest.
        received_at: When the back end answered.
    """

    envelope: dict[str, Any]
    citations: tuple[KnowledgeCitation, ...]
    results: tuple[Result, ...]
    received_at: datetime


class WebSearchTool:
    """`web.search` over one back end; made by `create_web_search_tool`."""

    name: ClassVar[str] = TOOL_NAME
    risk: ClassVar[str] = "gated"
    output_trust: ClassVar[str] = "external"
    description: ClassVar[str] = _DESCRIPTION
    parameters: ClassVar[Mapping[str, Any]] = WEB_SEARCH_SCHEMA

    def __init__(self, engine: SearchEngine) -> None:
        """Use `create_web_search_tool`."""
        self.engine = engine

    @property
    def provider(self) -> SearchProvider:
        """The back end."""
        return self.engine.provider

    def parse(self, arguments: object, *, now: datetime | None = None) -> SearchCall:
        """The call that *arguments* ask for; nothing is counted and nothing is sent.

        Raises:
            WebToolError: WEB_INVALID_INPUT naming every faulty field.
        """
        return parse_web_search_arguments(
            arguments,
            now=now or self.engine.clock(),
            unsupported=self.provider.unsupported,
            provider=self.provider.name,
        )

    async def run(
        self, arguments: object, *, agent: str = "", signal: Signal | None = None
    ) -> WebSearchAnswer:
        """Search once.

        Raises:
            WebToolError: WEB_INVALID_INPUT before anything is spent, or
                WEB_SEARCH_PROVIDER_ERROR when the back end failed.
            SearchRefused: The agent may not search, may not have the credential, or has used up
                its day.
        """
        engine, now = self.engine, self.engine.clock()
        engine.require_tool(agent)
        call = self.parse(arguments, now=now)
        answer = await engine.ask(call, agent=agent, now=now, signal=signal)
        found = results_of(
            answer.rows,
            call,
            self.provider,
            address=answer.settings.address,
            secrets=answer.secrets,
            now=answer.received_at,
        )
        engine.tell(agent, results=len(found.results), dropped=found.dropped)
        return WebSearchAnswer(
            envelope=envelope_of(call.query, self.provider.name, found.results),
            citations=tuple(result.citation for result in found.results),
            results=found.results,
            received_at=answer.received_at,
        )


def create_web_search_tool(
    *,
    provider: SearchProvider,
    config: Mapping[str, Any],
    credentials: Desk | None = None,
    on_search: Callable[[SearchRecord], object] | None = None,
    agents: AgentProfiles | None = None,
    clock: Callable[[], datetime] = _now,
    timeout_seconds: float = 30.0,
    same_answer_seconds: float = 0.0,
    wires: Wires | None = None,
    own_keys: Collection[str] | None = None,
) -> WebSearchTool:
    """The tool `web.search` over *provider*.

    Args:
        provider: From `define_search_provider`.
        config: The operator's block: `maxSearchesPerDay`, `allowedHosts`,
            `allowPrivateAddresses`, and overrides under `agents`. Keys of the back end's own are
            left to it, unless they are spelled almost like a setting.
        credentials: Where keys come from; without it there are none.
        on_search: Hears that a search ran, never what for.
        agents: Who may search; None leaves that to the host's own rules.
        clock: The time of day, with a zone.
        timeout_seconds: The longest a back end may take.
        same_answer_seconds: For how long the same question of the same agent gets the same rows,
            without a request and without counting. Off by default.
        wires: Resolver and transport of tests.
        own_keys: The back end's own keys of *config*; with them every other key is refused.

    Raises:
        InvalidSetup: The provider is no provider, or a setting is not of its type.
    """
    if not isinstance(provider, SearchProvider):
        raise InvalidSetup("provider", "must come from define_search_provider")
    engine = SearchEngine(
        provider,
        settings=parse_settings(config, own_keys=own_keys),
        credentials=credentials,
        agents=agents,
        on_search=on_search,
        clock=clock,
        timeout_seconds=timeout_seconds,
        same_answer_seconds=same_answer_seconds,
        wires=wires,
    )
    return WebSearchTool(engine)
