"""How many searches an agent has made in this UTC day. Pure: time comes in.

A call is counted before it is awaited, so that calls at one time cannot pass together. Kept in
the process: its job is to stop a runaway loop, and a loop lives inside one process.
"""

from datetime import UTC, date, datetime
from typing import Final

import attrs

__all__ = ("DailyCap", "Reservation")

_NO_DAY: Final = date.min


@attrs.frozen(kw_only=True)
class Reservation:
    """One call that counts, until it is given back."""

    agent: str
    day: date


class DailyCap:
    """Counts by agent; a clock that goes back to yesterday does not give yesterday's calls again."""

    def __init__(self) -> None:
        self._day = _NO_DAY
        self._used: dict[str, int] = {}

    def reserve(self, agent: str, *, limit: int, now: datetime) -> Reservation | None:
        """A place for one call, or None when *agent* has used up its *limit* of the day."""
        day = now.astimezone(UTC).date()
        if day > self._day:
            self._day, self._used = day, {}
        used = self._used.get(agent, 0)
        if used >= limit:
            return None
        self._used[agent] = used + 1
        return Reservation(agent=agent, day=self._day)

    def give_back(self, reservation: Reservation) -> None:
        """The call was refused after all: it does not count. To be called once at most."""
        if reservation.day == self._day:
            self._used[reservation.agent] = max(0, self._used.get(reservation.agent, 0) - 1)

    def used(self, agent: str) -> int:
        """Calls of *agent* that count today."""
        return self._used.get(agent, 0)
