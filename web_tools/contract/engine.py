"""One call of a back end, for every door: cap, policy, credentials, deadline, failure.

What a back end raises leaves here as one error without the query and without a credential.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

import attrs

from egress.policy import EgressPolicy
from egress.request import ApiPolicy, Signal, Wires, until_signal
from egress.url import Target
from web_tools._provider_failure import failure_of, words_of
from web_tools.contract.agents import AgentProfiles
from web_tools.contract.daily_cap import DailyCap
from web_tools.contract.options import SearchCall
from web_tools.contract.provider import SearchContext, SearchProvider
from web_tools.contract.recent import RecentAnswers
from web_tools.contract.results import DropReason, rows_of
from web_tools.contract.settings import Settings, SettingsByAgent
from web_tools.errors import (
    CredentialMissing,
    ProviderFault,
    RefusalReason,
    SearchProviderError,
    SearchRefused,
    WebToolError,
)

__all__ = ("TOOL_NAME", "Answer", "Desk", "SearchEngine", "SearchRecord")

TOOL_NAME: Final = "web.search"
_LOG: Final = logging.getLogger("web_tools")


class Desk(Protocol):
    """Hands credentials to agents; `CredentialDesk` is one."""

    async def get(self, name: str, *, agent: str) -> str:
        """The credential, or `SearchRefused`."""
        ...


@attrs.frozen(kw_only=True)
class SearchRecord:
    """What a log may say of one search: never the query, which is user content.

    Attributes:
        provider: Which back end.
        results: How many results the model is shown.
        agent: Who asked.
        dropped: Rows that did not pass, by the check that dropped them.
        failure: The word for what went wrong, or None.
    """

    provider: str
    results: int
    agent: str = ""
    dropped: Mapping[DropReason, int] = attrs.field(factory=dict)
    failure: str | None = None


@attrs.frozen(kw_only=True)
class Answer:
    """The rows of a back end, and what they are held to.

    Attributes:
        secrets: Credentials that were handed out for them.
    """

    rows: list[object]
    settings: Settings
    secrets: frozenset[str] = attrs.field(repr=False)
    received_at: datetime


class _OfAgent:
    """The credentials of one call: remembers what it gave, so that it can be kept out of texts."""

    def __init__(self, desk: Desk | None, agent: str) -> None:
        self._desk = desk
        self._agent = agent
        self.given: set[str] = set()
        self.refusal: SearchRefused | None = None

    async def get(self, name: str) -> str:
        try:
            if self._desk is None:
                raise CredentialMissing(name)
            value = await self._desk.get(name, agent=self._agent)
        except SearchRefused as refusal:
            self.refusal = refusal
            raise
        self.given.add(value)
        return value

    def __repr__(self) -> str:
        return "Credentials()"


class _BackEndExited(Exception):
    """A back end wanted to end the process; the message is the type of what it raised."""


@attrs.frozen(kw_only=True)
class _CountingPolicy(ApiPolicy):
    """The policy of one call, which knows whether a request was made under it."""

    _requests: list[None] = attrs.field(factory=list, init=False, repr=False, eq=False)

    @property
    def asked(self) -> bool:
        """Whether something was asked of the vendor, or was about to be."""
        return bool(self._requests)

    def for_target(self, target: Target) -> EgressPolicy:
        allowed = ApiPolicy.for_target(self, target)
        self._requests.append(None)
        return allowed


def _now() -> datetime:
    return datetime.now(UTC)


def _question(call: SearchCall) -> tuple[object, ...]:
    """All that makes it another question; of freshness the duration, for its instant moves on."""
    options = call.options
    duration = None if options.freshness is None else options.freshness.duration
    return call.query, options.count, options.site, duration


class SearchEngine:
    """A back end with the operator's settings. It holds no connection between calls."""

    def __init__(
        self,
        provider: SearchProvider,
        *,
        settings: SettingsByAgent,
        credentials: Desk | None = None,
        agents: AgentProfiles | None = None,
        on_search: Callable[[SearchRecord], object] | None = None,
        clock: Callable[[], datetime] = _now,
        timeout_seconds: float = 30.0,
        same_answer_seconds: float = 0.0,
        wires: Wires | None = None,
    ) -> None:
        """See `create_web_search_tool`, which makes one."""
        if provider.origins is None:
            _LOG.info("%s names no origins: it may reach every public host", provider.name)
        self.provider = provider
        self.clock = clock
        self._settings = settings
        self._credentials = credentials
        self._agents = agents
        self._on_search = on_search
        self._timeout_seconds = timeout_seconds
        self._wires = wires
        self._cap = DailyCap()
        self._recent = RecentAnswers[Answer](same_answer_seconds)

    def used(self, agent: str) -> int:
        """Calls of *agent* that count today."""
        return self._cap.used(agent)

    def hold_to(
        self, *, settings: SettingsByAgent, credentials: Desk | None, agents: AgentProfiles | None
    ) -> None:
        """The operator's words from now on, for a host that did not make the tool itself.

        What a package gave to `create_web_search_tool` counts no more.
        """
        self._settings = settings
        self._credentials = credentials
        self._agents = agents

    def require_tool(self, agent: str) -> None:
        """Pass when the agent may search.

        Raises:
            SearchRefused: Its profile does not name the tool.
        """
        if self._agents is not None:
            self._agents.require_tool(agent, TOOL_NAME)

    async def ask(
        self, call: SearchCall, *, agent: str, now: datetime, signal: Signal | None = None
    ) -> Answer:
        """The rows for *call*, as the back end gave them.

        Raises:
            SearchRefused: The cap or a gate says no.
            WebToolError: WEB_SEARCH_PROVIDER_ERROR; the back end failed. The call counts.
        """
        settings = self._settings.of(agent)
        key = (agent, _question(call))
        known = self._recent.find(key, now=now)
        if known is not None:
            return known
        place = self._cap.reserve(agent, limit=settings.max_per_day, now=now)
        if place is None:
            text = (
                f"Agent {agent} has used up its {settings.max_per_day} searches of this day (UTC)"
            )
            raise SearchRefused(RefusalReason.DAILY_CAP, text)
        credentials = _OfAgent(self._credentials, agent)
        policy = _CountingPolicy(address=settings.address, origins=self.provider.origins)
        context = SearchContext(
            policy=policy,
            credentials=credentials,
            signal=signal,
            now=now,
            wires=self._wires,
        )
        try:
            rows = await self._rows(call, context, credentials)
        except SearchRefused as refused:
            # A refused call does not count, unless the vendor was asked before the refusal.
            if policy.asked:
                self.tell(agent, failure=str(refused.reason))
            else:
                self._cap.give_back(place)
            raise
        except WebToolError as error:
            self.tell(agent, failure=str(error.detail))
            raise
        given = frozenset(credentials.given)
        fresh = Answer(rows=rows, settings=settings, secrets=given, received_at=self.clock())
        self._recent.keep(key, fresh, now=now)
        return fresh

    async def _rows(
        self, call: SearchCall, context: SearchContext, credentials: _OfAgent
    ) -> list[object]:
        deadline = asyncio.timeout(self._timeout_seconds)
        try:
            async with deadline:
                asked = self._asked(call, context)
                return await until_signal(context.signal, asked)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody has cancelled this call: the back end let a cancellation of its own escape.
            raised: BaseException = error
        # The boundary to the back end: anything can come out of it.
        except Exception as error:
            if error is credentials.refusal:
                # Ours. One that a back end made up would let it be asked without end.
                raise
            raised = error
        secrets = {*words_of(call.query), *credentials.given}
        failure = failure_of(raised, secrets, expired=deadline.expired())
        # Raised outside of the handler: what repeats the query must not stay as context.
        raise failure.error from failure.cause

    async def _asked(self, call: SearchCall, context: SearchContext) -> list[object]:
        try:
            answer: object = self.provider.search(call.query, call.options, context)
            if not inspect.isawaitable(answer):
                what = "its search gave no coroutine: it must be async"
                raise SearchProviderError(ProviderFault.BAD_ANSWER, what)
            return rows_of(await answer)
        except (SystemExit, GeneratorExit) as error:
            # Out of a task it would end the event loop, and with it the host.
            raise _BackEndExited(type(error).__name__) from None

    def tell(
        self,
        agent: str,
        *,
        results: int = 0,
        dropped: Mapping[DropReason, int] | None = None,
        failure: str | None = None,
    ) -> None:
        """Tell whoever logs that a search ran. What that raises is logged by its type alone."""
        if self._on_search is None:
            return
        record = SearchRecord(
            provider=self.provider.name,
            results=results,
            agent=agent,
            dropped=dict(dropped or {}),
            failure=failure,
        )
        try:
            self._on_search(record)
        # The host's code: a log that fails is no reason to lose an answer that was paid for.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            _LOG.warning("on_search raised %s", type(error).__name__)
