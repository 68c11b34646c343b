"""The two ports to a search back end, one as the other.

`web:search` asks for `{query, limit, recency}` and gets plain hits; the contract asks for strict
options. A provider of the pack's port serves the contract without `freshness`, for its hits carry
no date; a provider of the contract serves `web:search` under the same cap, policy and credentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from web_tools._provider_failure import holds_any
from web_tools.arguments import Recency, SearchRequest
from web_tools.contract.engine import Answer, SearchEngine
from web_tools.contract.freshness import Freshness
from web_tools.contract.instants import to_milliseconds
from web_tools.contract.options import MAX_COUNT, SearchCall, SearchOptions
from web_tools.contract.provider import SearchContext, SearchProvider, SearchRow
from web_tools.contract.provider import define_search_provider as _define
from web_tools.contract.results import row_of, with_plain_text
from web_tools.contract.tool import WebSearchTool
from web_tools.errors import (
    ProviderFault,
    SearchProviderError,
    SearchRefused,
    WebToolError,
)
from web_tools.search import Cancel, SearchHit, WebSearchProvider

__all__ = ("as_search_provider", "as_web_search_provider")

# Of which the pack cuts what it is asked for: stripping takes time.
_MAX_ROWS: Final = 200
# Fixed windows; the pack filters nothing by them. Source: the search page, where the doors meet.
_WINDOWS: Final = {Recency.DAY: 1, Recency.WEEK: 7, Recency.MONTH: 31, Recency.YEAR: 366}


def as_search_provider(provider: WebSearchProvider, *, name: str) -> SearchProvider:
    """A provider of the pack's port as one of the contract."""

    async def search(
        query: str, options: SearchOptions, context: SearchContext
    ) -> Sequence[SearchRow]:
        request = SearchRequest(query=query, limit=options.count)
        hits = await provider.search(request, signal=context.signal)
        return [_row(hit) for hit in hits]

    return _define(name=name, search=search, unsupported=("freshness",), plain=True)


def _row(hit: SearchHit) -> SearchRow:
    return SearchRow(title=hit.title, url=hit.url, snippet=hit.snippet)


def as_web_search_provider(tool: WebSearchTool, *, agent: str = "") -> WebSearchProvider:
    """The back end of *tool* for `web:search`, on behalf of *agent*.

    Result addresses are not judged here, as the pack says: only reads are.
    """
    return _PackPort(tool.engine, agent)


class _PackPort:
    def __init__(self, engine: SearchEngine, agent: str) -> None:
        self._engine = engine
        self._agent = agent

    async def search(
        self, request: SearchRequest, *, signal: Cancel | None = None
    ) -> Sequence[SearchHit]:
        """The hits of one search.

        Raises:
            SearchProviderError: The back end failed, or a gate or the cap says no.
        """
        engine = self._engine
        now = engine.clock()
        try:
            engine.require_tool(self._agent)
            call = self._call(request, now)
            answer = await engine.ask(call, agent=self._agent, now=now, signal=signal)
        except SearchRefused as refused:
            raise SearchProviderError(
                ProviderFault.UNAUTHORIZED, str(refused), retryable=False
            ) from refused
        except WebToolError as error:
            raise SearchProviderError(
                ProviderFault(error.detail or ProviderFault.RAISED),
                error.cause,
                retryable=error.retryable,
                retry_after=error.retry_after,
            ) from error.__cause__
        hits = self._hits(answer)
        engine.tell(self._agent, results=len(hits))
        return hits

    def _call(self, request: SearchRequest, now: datetime) -> SearchCall:
        provider = self._engine.provider
        fresh = None
        if request.recency is not None and "freshness" not in provider.unsupported:
            days = timedelta(days=_WINDOWS[request.recency])
            at = to_milliseconds(now)
            fresh = Freshness(
                duration=f"P{days.days}D", ms=days.days * 86_400_000, instant=at - days, now=at
            )
        options = SearchOptions(count=min(request.limit, MAX_COUNT), freshness=fresh)
        return SearchCall(query=request.query, options=options)

    def _hits(self, answer: Answer) -> Sequence[SearchHit]:
        """Plain hits; what is no row stays as it came, so that the pack's own check counts it."""
        plain = self._engine.provider.plain
        hits: list[SearchHit] = []
        for raw in answer.rows[:_MAX_ROWS]:
            found = row_of(raw)
            row = None if found is None else with_plain_text(found, plain=plain)
            if row is None:
                # `run_search` drops it as malformed, and fails when there is nothing else: it is
                # no hit, and must stay none.
                hits.append(raw)  # type: ignore[arg-type]
            elif not holds_any(f"{row.title}{row.url}{row.snippet}", answer.secrets):
                hits.append(
                    SearchHit(title=row.title or "", url=row.url, snippet=row.snippet or "")
                )
        return hits
