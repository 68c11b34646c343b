"""What one run has fetched so far, against its caps. No I/O.

A client counts into it and may be closed and opened again meanwhile: whoever drives the run keeps
the meter as long as the run lasts, or what it has `used`, which a new one goes on from.
"""

from __future__ import annotations

import math
from typing import Final

from egress.errors import RunCapReached, TooManyAtOnce
from egress.ports import UNLIMITED, Count, RunLimits, RunUsage


class RunMeter:
    """Counts the requests, body bytes and concurrent fetches of one run.

    Args:
        limits: The caps.
        used: What the run had used before, under another meter.

    Attributes:
        limits: The caps.
        requests: Sent so far, redirects included.
        raw_bytes: Body bytes received so far.
    """

    def __init__(self, limits: RunLimits | None = None, *, used: RunUsage | None = None) -> None:
        self.limits = limits or RunLimits()
        before = used or RunUsage()
        self.requests = before.requests
        self.raw_bytes = before.raw_bytes
        self._max_requests: Final = _number(self.limits.max_requests)
        self._max_bytes: Final = _number(self.limits.max_bytes)
        self._max_concurrent: Final = _number(self.limits.max_concurrent)
        self._running: set[object] = set()

    @property
    def used(self) -> RunUsage:
        """What has been used so far, to go on from elsewhere."""
        return RunUsage(requests=self.requests, raw_bytes=self.raw_bytes)

    @property
    def running(self) -> int:
        """Fetches under way."""
        return len(self._running)

    def begin(self, fetch: object, *, host: str, hop: int) -> None:
        """Counts one request that *fetch* is about to send to *host*.

        Raises:
            RunCapReached: The run may send no more; nothing is counted.
            TooManyAtOnce: Others have to end first; nothing is counted.
        """
        if self.requests >= self._max_requests:
            raise RunCapReached(host=host, hop=hop, detail="requests")
        if self.raw_bytes >= self._max_bytes:
            raise RunCapReached(host=host, hop=hop, detail="bytes")
        if fetch not in self._running and len(self._running) >= self._max_concurrent:
            raise TooManyAtOnce(host=host, hop=hop, detail="concurrent fetches")
        self._running.add(fetch)
        self.requests += 1

    def end(self, fetch: object) -> None:
        """*fetch* has ended, if it ever began."""
        self._running.discard(fetch)

    def take(self, count: int) -> int:
        """How many of *count* received bytes may be used; they are counted."""
        granted = int(min(count, max(self._max_bytes - self.raw_bytes, 0)))
        self.raw_bytes += granted
        return granted


def _number(count: Count) -> float:
    return math.inf if count == UNLIMITED else count
