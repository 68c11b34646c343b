"""Whether a site's robots.txt lets a page be read: off, or respected (RFC 9309).

The operator decides. The file is fetched through the same policy as the page, on its own count of the
run, once for an origin; protego reads it. What cannot be learned is refused: a site that answers with
5xx, or not at all, is taken to disallow everything (RFC 9309, 2.3.1.4), and one without the file (4xx)
to allow everything (2.3.1.3).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

import attrs

from egress.client import Fetched
from egress.errors import FetchError
from egress.ports import FetchLimits
from egress.url import Target, parse_target

__all__ = ("USER_AGENT", "RobotsDisallowed", "RobotsGate", "RobotsPolicy", "RobotsUnreachable")

USER_AGENT: Final = "agent-runtime-pack"
"""The product token that the client sends and that rules are looked up by."""

_AGENT: Final = re.compile(r"^\s*user[- ]?agent(?:\s*:|\s|$)(.*)", re.IGNORECASE)
"""Every way in which the parser takes a line to name an agent."""
_MAX_BYTES: Final = 512 * 1024
"""RFC 9309, 2.5: at least 500 KiB are read."""
_MAX_REDIRECTS: Final = 5
_SECONDS: Final = 10.0
_KEEP_SECONDS: Final = 86_400.0
_MAX_ORIGINS: Final = 1_000


class RobotsPolicy(StrEnum):
    """What an operator decides about robots.txt."""

    OFF = "off"
    """It is not asked for: a person sent the agent, which reads single pages and crawls nothing."""
    RESPECT = "respect"
    """It is asked for before every page, at every hop, and what it disallows is not read."""


# A verdict about a page, not a fault: the name says which.
class RobotsDisallowed(Exception):
    """The site does not let this page be read."""


# As above.
class RobotsUnreachable(Exception):
    """Whether the site does could not be learned."""


class _Client(Protocol):
    async def fetch(self, url: str | Target, *, limits: FetchLimits | None = None) -> Fetched: ...


class _Rules(Protocol):
    def can_fetch(self, url: str, user_agent: str) -> bool: ...


@attrs.frozen(kw_only=True)
class _Known:
    """What an origin says; None for everything is allowed."""

    rules: _Rules | None
    until: float


class RobotsGate:
    """Asks the robots.txt of each origin once.

    Args:
        client: Fetches it under the policy of the run; must not ask this gate itself.
        clock: Seconds, monotonic.
    """

    def __init__(self, client: _Client, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def check(self, target: Target) -> None:
        """Return if *target* may be read.

        Raises:
            RobotsDisallowed: The site disallows it for us.
            RobotsUnreachable: Its rules could not be had.
            EgressDenied: The policy refuses the file, or where it is redirected to.
        """
        known = self._fresh(target.origin)
        if known is None:
            async with self._asking.setdefault(target.origin, asyncio.Lock()):
                known = self._fresh(target.origin) or await self._learn(target)
        if known.rules is None:
            return
        # Tens of thousands of rules are matched beside the loop, as they are read.
        if not await asyncio.to_thread(known.rules.can_fetch, target.url, USER_AGENT):
            raise RobotsDisallowed(target.host)

    def _fresh(self, origin: str) -> _Known | None:
        known = self._known.get(origin)
        return known if known is not None and self._clock() < known.until else None

    async def _learn(self, target: Target) -> _Known:
        known = _Known(rules=await self._rules(target), until=self._clock() + _KEEP_SECONDS)
        if len(self._known) >= _MAX_ORIGINS:
            self._known.clear()
            self._asking.clear()
        self._known[target.origin] = known
        return known

    async def _rules(self, target: Target) -> _Rules | None:
        limits = FetchLimits(
            max_redirects=_MAX_REDIRECTS,
            timeout_seconds=_SECONDS,
            max_raw_bytes=_MAX_BYTES,
            max_decoded_bytes=_MAX_BYTES,
        )
        try:
            fetched = await self._client.fetch(
                parse_target(f"{target.origin}/robots.txt"), limits=limits
            )
        except FetchError as error:
            raise RobotsUnreachable(target.host) from error
        if 400 <= fetched.status <= 499:
            return None
        if not 200 <= fetched.status <= 299:
            raise RobotsUnreachable(target.host)
        text = fetched.body.decode("utf-8-sig", "replace")
        # Half a megabyte of rules takes long enough to be read beside the loop.
        return await asyncio.to_thread(_parsed, text)


def _parsed(text: str) -> _Rules:
    from protego import Protego

    rules: _Rules = Protego.parse(_for_us(text))
    return rules


def _for_us(text: str) -> str:
    """*text* with one name for all agents that are neither we nor everybody.

    The parser keeps every rule of a group once for each of its names: a file of a thousand names
    before ten thousand rules would take all memory. What those say is not about us.
    """
    return "\n".join([_AGENT.sub(_named, line, count=1) for line in text.splitlines()])


def _named(agent: re.Match[str]) -> str:
    name = agent[1].partition("#")[0].strip().lower()
    kept = name if name == "*" or name.partition("/")[0].strip() == USER_AGENT else "others"
    return f"User-agent: {kept.partition('/')[0].strip()}"
