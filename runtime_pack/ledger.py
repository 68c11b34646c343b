"""The ledger of one run: reserve, run, settle.

At every instant `used + reserved <= limit` for each bucket, under any interleaving: reserving is
one synchronous call that takes all of its buckets or none. Used equal to the limit is fine; the
next reservation is refused. Resume restores the ledger; nothing here resets it.

What a provider or tool reports beyond what was reserved is charged in full: it was spent. That
alone can pass a limit, once, and the ledger says so (`overdrawn`, `over`). What is reserved and
never reported stays charged in full, as an estimate.

Units: buckets count, tokens and micro-units of money are counts too; time is seconds of
activity (suspension is not activity).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import attrs

from runtime_pack.inner import NOTHING, without
from runtime_pack.ledger_limits import (
    COST,
    DURATION,
    EXPIRES,
    HARD,
    MICRO,
    STEPS,
    TOKENS,
    TURNS,
    UNLIMITED,
    VIOLATIONS,
    WRAP_UP,
    Limit,
    Limits,
    SecondsLimit,
    parse_count,
    parse_seconds,
    step_buckets,
    tool_bucket,
)
from runtime_pack.ledger_view import LedgerView, Shortfall
from runtime_pack.messages import Json, Usage

__all__ = (
    "COST",
    "DURATION",
    "EXPIRES",
    "HARD",
    "STEPS",
    "TOKENS",
    "TURNS",
    "UNLIMITED",
    "VIOLATIONS",
    "WRAP_UP",
    "Ledger",
    "LedgerView",
    "Limit",
    "Limits",
    "SecondsLimit",
    "Shortfall",
    "parse_count",
    "parse_seconds",
    "read_counts",
    "step_buckets",
    "tool_bucket",
)

# Only of these is it not known what a reservation came to: a step was taken or it was not.
_ESTIMABLE: Final = frozenset({COST, TOKENS})


class Ledger:
    """Counts of one run. Not for threads: every method is one synchronous step of one loop."""

    __slots__ = (
        "_active",
        "_activities",
        "_begun",
        "_deadline",
        "_end",
        "_estimated",
        "_limits",
        "_overdrawn",
        "_reserved",
        "_used",
        "attempts",
        "cached_input_tokens",
        "denials",
        "input_tokens",
        "output_tokens",
        "refused",
        "unaffordable",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._used: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._active = 0.0
        self._activities = 0
        self._begun = 0.0
        self._deadline = math.inf
        self._end = math.inf
        self._estimated: Mapping[str, int] = NOTHING
        self._overdrawn: Mapping[str, int] = NOTHING
        self.attempts = 0
        self.cached_input_tokens = 0
        self.denials = 0
        self.refused = 0
        self.unaffordable = 0
        self.input_tokens = 0
        self.output_tokens = 0

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
        reserved, used = self._reserved, self._used
        for bucket in buckets:
            if reserved.get(bucket, 0) < 1:
                raise ValueError(f"nothing is reserved in {bucket}")
        for bucket in buckets:
            reserved[bucket] -= 1
            used[bucket] = used.get(bucket, 0) + 1

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

    def reserve_amounts(self, amounts: Mapping[str, int]) -> Shortfall | None:
        """Take so much of each bucket, or nothing: then the first that does not fit is returned.

        Raises:
            ValueError: an amount is below 0.
        """
        if any(amount < 0 for amount in amounts.values()):
            raise ValueError("a reservation below 0 would raise the limit")
        for bucket, amount in amounts.items():
            short = self._short_of(bucket, amount)
            if short is not None:
                return short
        for bucket, amount in amounts.items():
            self._reserved[bucket] = self._reserved.get(bucket, 0) + amount
        return None

    def settle_amounts(
        self, reserved: Mapping[str, int], spent: Mapping[str, int] | None = None
    ) -> None:
        """Charge what was *spent* and give the rest of what was *reserved* back.

        None, for what nobody reported: the reservation is charged in full and marked estimated.
        More than was reserved is charged in full too; see `over`.

        Raises:
            ValueError: so much is not reserved, or an amount is below 0.
        """
        if spent is not None and any(amount < 0 for amount in spent.values()):
            raise ValueError("a charge below 0 would give money back")
        self.release_amounts(reserved)
        charged = reserved if spent is None else spent
        for bucket, amount in charged.items():
            self._used[bucket] = self._used.get(bucket, 0) + amount
            if spent is None:
                self.guess({bucket: amount})
            elif amount > reserved.get(bucket, 0):
                self._overdraw(bucket, amount - reserved.get(bucket, 0))

    def release_amounts(self, amounts: Mapping[str, int]) -> None:
        """Give so much of each bucket back unused.

        Raises:
            ValueError: so much is not reserved, or an amount is below 0.
        """
        for bucket, amount in amounts.items():
            if not 0 <= amount <= self._reserved.get(bucket, 0):
                raise ValueError(f"{amount} is not reserved in {bucket}")
        for bucket, amount in amounts.items():
            self._reserved[bucket] = self._reserved.get(bucket, 0) - amount

    def reopen_amounts(self, amounts: Mapping[str, int]) -> None:
        """Turn use back into reservations: what `restore` closed is open again.

        Raises:
            ValueError: so much is not used, or an amount is below 0.
        """
        for bucket, amount in amounts.items():
            if not 0 <= amount <= self._used.get(bucket, 0):
                raise ValueError(f"{amount} is not used in {bucket}")
        for bucket, amount in amounts.items():
            self._used[bucket] = self._used.get(bucket, 0) - amount
            self._reserved[bucket] = self._reserved.get(bucket, 0) + amount
            guessed = self._estimated.get(bucket, 0) - amount
            if guessed > 0:
                self._estimated = {**self._estimated, bucket: guessed}
            else:
                self._estimated = without(self._estimated, bucket)

    def guess(self, amounts: Mapping[str, int]) -> None:
        """Mark so much of what was charged as an estimate."""
        known = self._estimated
        more = {bucket: known.get(bucket, 0) + amount for bucket, amount in amounts.items()}
        self._estimated = {**known, **more}

    def over(self) -> Shortfall | None:
        """The first budget that a charge has passed; None when a raised limit covers it again."""
        for bucket in self._overdrawn:
            short = self._short_of(bucket, 0)
            if short is not None:
                return short
        return None

    def left(self, bucket: str) -> Limit:
        """What can still be reserved from a bucket; below 0 when it is overdrawn."""
        limit = self._limits.counts.get(bucket, UNLIMITED)
        if limit == UNLIMITED:
            return UNLIMITED
        return limit - self._used.get(bucket, 0) - self._reserved.get(bucket, 0)

    def shortfall(self, bucket: str, needed: int = 0, by: str = "") -> Shortfall | None:
        """The numbers of a limited bucket, for who finds that what it needs does not fit."""
        limit = self._limits.counts.get(bucket, UNLIMITED)
        if limit == UNLIMITED:
            return None
        used, reserved = self._used.get(bucket, 0), self._reserved.get(bucket, 0)
        return Shortfall(
            budget=bucket,
            limit=limit,
            used=used,
            reserved=reserved,
            # One unit of what is counted one by one goes without saying.
            needed=needed if needed > 1 else 0,
            by=by,
        )

    def _short_of(self, bucket: str, amount: int) -> Shortfall | None:
        left = self.left(bucket)
        return None if left == UNLIMITED or amount <= left else self.shortfall(bucket, amount)

    def _overdraw(self, bucket: str, excess: int) -> None:
        left = self.left(bucket)
        if left != UNLIMITED and left < 0:
            over = self._overdrawn.get(bucket, 0) + min(excess, -left)
            self._overdrawn = {**self._overdrawn, bucket: over}

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
            self.cached_input_tokens += usage.cached_input_tokens

    @property
    def violations(self) -> int:
        """How often the policy stopped something."""
        return self._used.get(VIOLATIONS, 0)

    def count_violations(self, number: int = 1) -> None:
        """The policy stopped something so often: it has happened, whatever the limit is."""
        if number:
            self._used[VIOLATIONS] = self.violations + number
            self._overdraw(VIOLATIONS, number)

    def hard_shortfall(self, now: float) -> Shortfall | None:
        """A shortfall when no time is left, or the policy stopped more than it may have to."""
        used = self._used
        if self._activities and now < self._deadline and now < self._end and VIOLATIONS not in used:
            # Asked three times a turn, and nearly always so.
            return None
        short = self._short_of(VIOLATIONS, 0) if VIOLATIONS in used else None
        return short or self.time_shortfall(now)

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

    def expire_at(self, end: float) -> None:
        """The run's last moment on the clock that `now` is read from; told anew when that moves."""
        self._end = end

    def remaining_seconds(self, now: float) -> float:
        """Seconds left, of activity or until the last moment: infinite when unlimited, from 0."""
        if self._activities:
            # Twice a call: comparisons are cheaper than `min` and `max`.
            ends = min(self._end, self._deadline)
            return ends - now if ends > now else 0.0
        return max(0.0, min(self._allowed() - self._active, self._end - now))

    def _allowed(self) -> float:
        limit = self._limits.seconds
        return math.inf if limit == UNLIMITED else limit

    def time_shortfall(self, now: float) -> Shortfall | None:
        """A shortfall when no time is left."""
        if self.remaining_seconds(now) > 0:
            return None
        expires_us = self._limits.expires_us
        if now >= self._end and expires_us != UNLIMITED:
            end = expires_us / MICRO
            return Shortfall(budget=EXPIRES, limit=end, used=end + now - self._end, reserved=0)
        if self._limits.seconds == UNLIMITED:
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
            unaffordable=self.unaffordable,
            denials=self.denials,
            violations=self.violations,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_input_tokens=self.cached_input_tokens,
            attempts=self.attempts,
            estimated=dict(self._estimated),
            overdrawn={bucket: n for bucket, n in self._overdrawn.items() if n},
        )

    def restore(self, saved: Mapping[str, Json]) -> None:
        """Continue from `LedgerView.to_json`: the higher count and the lower limit of both hold.

        What was reserved when the run was saved counts as used, tokens and money as an estimate;
        `reopen` and `reopen_amounts` what is still open.

        Raises:
            ValueError: the object is not of that form.
        """
        saved_limits = Limits.from_json(saved.get("limits"))
        taken, open_ones = read_counts(saved.get("used")), read_counts(saved.get("reserved"))
        guessed = read_counts(saved.get("estimated", {}))
        for bucket in _ESTIMABLE & open_ones.keys():
            guessed[bucket] = guessed.get(bucket, 0) + open_ones[bucket]
        overdrawn = read_counts(saved.get("overdrawn", {}))
        counters = {name: _count(saved.get(name)) for name in _COUNTERS}
        counters |= {name: _count(saved.get(name, 0)) for name in _NEWER_COUNTERS}
        violations = _count(saved.get("violations"))
        active = _count(saved.get("active_us")) / MICRO
        self._limits = self._limits.lowered(saved_limits)
        for bucket in (*taken, *open_ones):
            count = taken.get(bucket, 0) + open_ones.get(bucket, 0)
            self._used[bucket] = max(self._used.get(bucket, 0), count)
        self._reserved = {}
        self._estimated = _raised(self._estimated, guessed)
        self._overdrawn = _raised(self._overdrawn, overdrawn)
        self._active = max(self._active, active)
        for name, count in counters.items():
            setattr(self, name, max(getattr(self, name), count))
        # Earlier saves have no bucket of them.
        self.count_violations(max(0, violations - self.violations))
        left = self.left(VIOLATIONS)
        if left != UNLIMITED and left < 0:
            # They have happened, whatever is allowed by now.
            self._overdrawn = {**self._overdrawn, VIOLATIONS: -left}
        # Of a run that no token budget was kept for until now.
        reported = self.input_tokens + self.output_tokens
        if self.limit(TOKENS) != UNLIMITED:
            self._used[TOKENS] = max(self._used.get(TOKENS, 0), reported)

    def lower(self, bucket: str, limit: Limit) -> None:
        """Lower one limit; a higher one changes nothing."""
        if limit == UNLIMITED:
            return
        self._limits = self._limits.lowered(Limits(counts={bucket: limit}, seconds=UNLIMITED))

    def raise_limit(self, bucket: str, amount: int) -> Shortfall | None:
        """Raise one limit by *amount*: a grant. Where there is no limit, nothing changes.

        Money is in micro-units, `duration_seconds` and `expires_at` take seconds. Always None; the
        ledger of a sub-run answers with what its parent cannot spare.

        Raises:
            ValueError: the amount is not a whole number above 0.
        """
        if isinstance(amount, bool) or not isinstance(amount, int) or amount < 1:
            raise ValueError(f"{amount!r} is not a whole number above 0")
        self._raise(bucket, amount)
        return None

    def _raise(self, bucket: str, amount: int) -> None:
        limits = self._limits
        if bucket == DURATION:
            if limits.seconds != UNLIMITED:
                self._limits = attrs.evolve(limits, seconds=limits.seconds + amount)
                self._deadline += amount
        elif bucket == EXPIRES:
            if limits.expires_us != UNLIMITED:
                self._limits = attrs.evolve(limits, expires_us=limits.expires_us + amount * MICRO)
                self._end += amount
        elif self.limit(bucket) != UNLIMITED:
            raised = {bucket: _sum(self.limit(bucket), amount)}
            self._limits = attrs.evolve(limits, counts={**limits.counts, **raised})
            left = self.left(bucket)
            if bucket in self._overdrawn and left != UNLIMITED:
                over = min(self._overdrawn[bucket], max(0, -left))
                self._overdrawn = {**self._overdrawn, bucket: over}

    @property
    def limits(self) -> Limits:
        """What this ledger holds the run to."""
        return self._limits

    def limit(self, bucket: str) -> Limit:
        """The limit of a bucket."""
        return self._limits.counts.get(bucket, UNLIMITED)


_COUNTERS: Final = ("refused", "input_tokens", "output_tokens")
# Not kept in earlier saves.
_NEWER_COUNTERS: Final = ("cached_input_tokens", "attempts", "denials", "unaffordable")


def _sum(limit: Limit, amount: int) -> Limit:
    return UNLIMITED if limit == UNLIMITED else limit + amount


def _raised(held: Mapping[str, int], found: Mapping[str, int]) -> Mapping[str, int]:
    """Of each bucket the higher count."""
    if not found:
        return held
    return {**held, **{bucket: max(held.get(bucket, 0), count) for bucket, count in found.items()}}


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def read_counts(value: object) -> dict[str, int]:
    """Counts by bucket, as they stand in saved ledgers.

    Raises:
        ValueError: not an object of whole numbers from 0.
    """
    if not isinstance(value, Mapping):
        raise ValueError("counts are an object")
    return {str(bucket): _count(number) for bucket, number in value.items()}
