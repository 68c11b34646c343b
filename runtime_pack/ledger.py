"""The ledger of one run: reserve, run, settle.

At every instant `used + reserved <= limit` for each bucket, under any interleaving: reserving is
one synchronous call that takes all of its buckets or none. Used equal to the limit is fine; the
next reservation is refused. Resume restores the ledger; nothing here resets it.

Units: buckets count, time is seconds of activity (suspension is not activity).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.messages import Json, Usage

__all__ = (
    "DURATION",
    "STEPS",
    "TURNS",
    "UNLIMITED",
    "WRAP_UP",
    "Ledger",
    "LedgerView",
    "Limit",
    "Limits",
    "Shortfall",
    "parse_count",
    "parse_seconds",
    "step_buckets",
    "tool_bucket",
)

UNLIMITED: Final = "unlimited"
"""The only way to have no limit: write the word."""
Limit: TypeAlias = int | Literal["unlimited"]
SecondsLimit: TypeAlias = float | Literal["unlimited"]

DURATION: Final = "duration_seconds"
STEPS: Final = "steps"
TURNS: Final = "turns"
WRAP_UP: Final = "wrap_up"


def tool_bucket(name: str) -> str:
    """The bucket that counts the steps of one tool."""
    return f"tool:{name}"


def parse_count(path: str, value: object) -> Limit:
    """A limit on a count: an integer from 0, or the word `unlimited`.

    Raises:
        ContractError: anything else; `True` is not 1 and None is not unlimited.
    """
    if value == UNLIMITED and isinstance(value, str):
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ContractError(path, f"{value!r} is not a whole number from 0 or 'unlimited'")
    return value


def parse_seconds(path: str, value: object) -> SecondsLimit:
    """A limit on time: finite seconds from 0, or the word `unlimited`.

    Raises:
        ContractError: anything else, NaN and infinity included.
    """
    if value == UNLIMITED and isinstance(value, str):
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(path, f"{value!r} is not a number of seconds or 'unlimited'")
    if not 0 <= value < float("inf"):
        raise ContractError(path, f"{value!r} is not a finite number of seconds from 0")
    return value


def step_buckets(tool: str) -> tuple[str, str]:
    """What one step of a tool takes: one of all steps, one of the tool's own."""
    return STEPS, tool_bucket(tool)


@attrs.frozen(kw_only=True)
class Limits:
    """What a ledger holds a run to. A bucket that is not named here is not limited."""

    counts: Mapping[str, Limit]
    seconds: SecondsLimit

    def to_json(self) -> dict[str, Json]:
        """The form that stands in saved runs and results."""
        return {"counts": dict(self.counts), "seconds": self.seconds}

    def lowered(self, other: Limits) -> Limits:
        """The lower of both for every bucket: a limit that either names holds."""
        names = {**self.counts, **other.counts}
        return Limits(
            counts={
                name: _lower(self.counts.get(name, UNLIMITED), other.counts.get(name, UNLIMITED))
                for name in names
            },
            seconds=_lower_seconds(self.seconds, other.seconds),
        )


def _lower(first: Limit, second: Limit) -> Limit:
    if first == UNLIMITED:
        return second
    return first if second == UNLIMITED else min(first, second)


def _lower_seconds(first: SecondsLimit, second: SecondsLimit) -> SecondsLimit:
    if first == UNLIMITED:
        return second
    return first if second == UNLIMITED else min(first, second)


@attrs.frozen(kw_only=True)
class Shortfall:
    """Why a reservation was refused."""

    budget: str
    limit: float
    used: float
    reserved: float

    def to_json(self) -> dict[str, Json]:
        """The form that stands in results; seconds are rounded to milliseconds."""
        return {
            "budget": self.budget,
            "limit": self.limit,
            "used": round(self.used, 3),
            "reserved": self.reserved,
        }


@attrs.frozen(kw_only=True)
class LedgerView:
    """The ledger at one instant."""

    limits: Limits
    used: Mapping[str, int]
    reserved: Mapping[str, int]
    active_seconds: float
    refused: int
    violations: int
    input_tokens: int
    output_tokens: int
    attempts: int = 0

    def left(self, bucket: str) -> Limit:
        """What can still be reserved from a bucket."""
        limit = self.limits.counts.get(bucket, UNLIMITED)
        if limit == UNLIMITED:
            return UNLIMITED
        return limit - self.used.get(bucket, 0) - self.reserved.get(bucket, 0)

    def to_json(self) -> dict[str, Json]:
        """The form that stands in saved runs; read back by `Ledger.restore`."""
        return {
            "limits": self.limits.to_json(),
            "used": dict(self.used),
            "reserved": dict(self.reserved),
            "active_us": round(self.active_seconds * 1_000_000),
            "refused": self.refused,
            "violations": self.violations,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "attempts": self.attempts,
        }


class Ledger:
    """Counts of one run. Not for threads: every method is one synchronous step of one loop."""

    __slots__ = (
        "_active",
        "_activities",
        "_begun",
        "_deadline",
        "_limits",
        "_reserved",
        "_used",
        "attempts",
        "input_tokens",
        "output_tokens",
        "refused",
        "violations",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._used: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._active = 0.0
        self._activities = 0
        self._begun = 0.0
        self._deadline = math.inf
        self.refused = 0
        self.violations = 0
        self.input_tokens = 0
        self.output_tokens = 0
        # Requests to the model, those that failed among them.
        self.attempts = 0

    def reserve(self, *buckets: str) -> Shortfall | None:
        """Take one of each bucket, or nothing: then the first that does not fit is returned."""
        for bucket in buckets:
            limit = self._limits.counts.get(bucket, UNLIMITED)
            if limit == UNLIMITED:
                continue
            used = self._used.get(bucket, 0)
            reserved = self._reserved.get(bucket, 0)
            if used + reserved + 1 > limit:
                return Shortfall(budget=bucket, limit=limit, used=used, reserved=reserved)
        for bucket in buckets:
            self._reserved[bucket] = self._reserved.get(bucket, 0) + 1
        return None

    def settle(self, *buckets: str) -> None:
        """Turn reservations into use, whatever came of them.

        Raises:
            ValueError: nothing was reserved; settling twice is a fault of the caller.
        """
        self._give_back(buckets)
        for bucket in buckets:
            self._used[bucket] = self._used.get(bucket, 0) + 1

    def release(self, *buckets: str) -> None:
        """Give reservations back unused.

        Raises:
            ValueError: nothing was reserved.
        """
        self._give_back(buckets)

    def reopen(self, *buckets: str) -> None:
        """Turn use back into reservations: the step is open again.

        Raises:
            ValueError: nothing was used.
        """
        for bucket in buckets:
            if self._used.get(bucket, 0) < 1:
                raise ValueError(f"nothing is used in {bucket}")
        for bucket in buckets:
            self._used[bucket] -= 1
            self._reserved[bucket] = self._reserved.get(bucket, 0) + 1

    def excess(self, *buckets: str) -> Shortfall | None:
        """The first bucket that holds more than its limit: the limit was lowered since."""
        for bucket in buckets:
            limit = self._limits.counts.get(bucket, UNLIMITED)
            used, reserved = self._used.get(bucket, 0), self._reserved.get(bucket, 0)
            if limit != UNLIMITED and used + reserved > limit:
                return Shortfall(budget=bucket, limit=limit, used=used, reserved=reserved)
        return None

    def _give_back(self, buckets: tuple[str, ...]) -> None:
        for bucket in buckets:
            if self._reserved.get(bucket, 0) < 1:
                raise ValueError(f"nothing is reserved in {bucket}")
        for bucket in buckets:
            self._reserved[bucket] -= 1

    def charge(self, usage: Usage | None) -> None:
        """Add reported tokens."""
        if usage is not None:
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens

    def begin(self, now: float) -> None:
        """An activity starts. Activities may overlap; their common time counts once."""
        if self._activities == 0:
            self._begun = now
            self._deadline = now + self._allowed() - self._active
        self._activities += 1

    def end(self, now: float) -> None:
        """An activity stops; when it was the last one, the time since the first is kept.

        Raises:
            ValueError: nothing was begun.
        """
        if self._activities == 0:
            raise ValueError("no activity was begun")
        self._activities -= 1
        if self._activities == 0:
            self._active += max(0.0, now - self._begun)

    @property
    def is_active(self) -> bool:
        """Whether time counts now."""
        return self._activities > 0

    def active_seconds(self, now: float) -> float:
        """Seconds of activity so far."""
        if self._activities == 0:
            return self._active
        return self._active + max(0.0, now - self._begun)

    def remaining_seconds(self, now: float) -> float:
        """Seconds of activity left: infinite when unlimited, never below 0."""
        if self._activities:
            return max(0.0, self._deadline - now)
        return max(0.0, self._allowed() - self._active)

    def _allowed(self) -> float:
        limit = self._limits.seconds
        return math.inf if limit == UNLIMITED else limit

    def time_shortfall(self, now: float) -> Shortfall | None:
        """A shortfall when no time is left."""
        if self._limits.seconds == UNLIMITED or self.remaining_seconds(now) > 0:
            return None
        return Shortfall(
            budget=DURATION,
            limit=self._limits.seconds,
            used=self.active_seconds(now),
            reserved=0,
        )

    def view(self, now: float) -> LedgerView:
        """A copy that does not change any more."""
        return LedgerView(
            limits=self._limits,
            used={bucket: n for bucket, n in self._used.items() if n},
            reserved={bucket: n for bucket, n in self._reserved.items() if n},
            active_seconds=self.active_seconds(now),
            refused=self.refused,
            violations=self.violations,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            attempts=self.attempts,
        )

    def restore(self, saved: Mapping[str, Json]) -> None:
        """Continue from `LedgerView.to_json`: the higher count and the lower limit of both hold.

        What was reserved when the run was saved counts as used; `reopen` what is still open.

        Raises:
            ValueError: the object is not of that form.
        """
        limits, used, reserved = saved.get("limits"), saved.get("used"), saved.get("reserved")
        if not isinstance(limits, Mapping) or not isinstance(limits.get("counts"), Mapping):
            raise ValueError("limits is an object with counts and seconds")
        counts = limits["counts"]
        if not isinstance(counts, Mapping):
            raise ValueError("counts is an object")
        saved_limits = Limits(
            counts={str(k): parse_count(f"limits.{k}", v) for k, v in counts.items()},
            seconds=parse_seconds("limits.seconds", limits.get("seconds")),
        )
        self._limits = self._limits.lowered(saved_limits)
        taken, open_ones = _counts(used), _counts(reserved)
        for bucket in (*taken, *open_ones):
            count = taken.get(bucket, 0) + open_ones.get(bucket, 0)
            self._used[bucket] = max(self._used.get(bucket, 0), count)
        self._reserved = {}
        self._active = max(self._active, _count(saved.get("active_us")) / 1_000_000)
        self.refused = max(self.refused, _count(saved.get("refused")))
        self.violations = max(self.violations, _count(saved.get("violations")))
        self.input_tokens = max(self.input_tokens, _count(saved.get("input_tokens")))
        self.output_tokens = max(self.output_tokens, _count(saved.get("output_tokens")))
        # A run that an earlier version saved does not name them.
        self.attempts = max(self.attempts, _count(saved.get("attempts", 0)))

    def lower(self, bucket: str, limit: Limit) -> None:
        """Lower one limit; a higher one changes nothing."""
        self._limits = self._limits.lowered(Limits(counts={bucket: limit}, seconds=UNLIMITED))

    def limit(self, bucket: str) -> Limit:
        """The limit of a bucket."""
        return self._limits.counts.get(bucket, UNLIMITED)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("counts are an object")
    return {str(bucket): _count(number) for bucket, number in value.items()}
