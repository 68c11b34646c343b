"""What a run may be held to: counts, tokens, money, seconds of activity, a last moment.

Limits are whole numbers, or the word `unlimited`. Money is counted in millionths of the currency of
the price table (micro-units): a limit that is finer is refused, a charge is rounded up. No float
ever holds money.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.messages import Json
from runtime_pack.tool_aliases import names_of

__all__ = (
    "COST",
    "DURATION",
    "EXPIRES",
    "HARD",
    "HIGHEST",
    "LAST_US",
    "LONGEST_SECONDS",
    "MICRO",
    "STEPS",
    "TOKENS",
    "TURNS",
    "UNLIMITED",
    "VIOLATIONS",
    "WRAP_UP",
    "Limit",
    "Limits",
    "MoneyLimit",
    "SecondsLimit",
    "epoch_microseconds",
    "micro_units",
    "moment_of",
    "money_text",
    "parse_count",
    "parse_expiry",
    "parse_money",
    "parse_price",
    "parse_seconds",
    "step_buckets",
    "tool_bucket",
)

UNLIMITED: Final = "unlimited"
"""The only way to have no limit: write the word."""
Limit: TypeAlias = int | Literal["unlimited"]
SecondsLimit: TypeAlias = float | Literal["unlimited"]
MoneyLimit: TypeAlias = Decimal | Literal["unlimited"]

COST: Final = "cost"
DURATION: Final = "duration_seconds"
EXPIRES: Final = "expires_at"
STEPS: Final = "steps"
TOKENS: Final = "tokens"
TURNS: Final = "turns"
VIOLATIONS: Final = "violations"
WRAP_UP: Final = "wrap_up"

HARD: Final = frozenset({COST, DURATION, EXPIRES, TOKENS, VIOLATIONS})
"""Budgets that end the run at once: after them there is no wrap-up."""

MICRO: Final = 1_000_000
"""Micro-units in one unit of money, microseconds in a second."""

HIGHEST: Final = 2**60
"""The highest limit: JSON of a saved run carries it, and sums of a run stay far below 2**63."""

LONGEST_SECONDS: Final = 10**12
"""The longest limit on time: as microseconds it is still a 64-bit integer."""

LAST_US: Final = 253_402_300_799_999_999
"""The calendar's last moment, in microseconds since 1970."""

_DEAREST: Final = 10**6 * MICRO
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def tool_bucket(name: str) -> str:
    """The bucket that counts the steps of one tool."""
    return f"tool:{name}"


@lru_cache(maxsize=1024)
def step_buckets(tool: str) -> tuple[str, ...]:
    """What one step of a tool takes: one of all steps, one of each name that the tool has."""
    return STEPS, *map(tool_bucket, names_of(tool))


def parse_count(path: str, value: object) -> Limit:
    """A limit on a count: an integer from 0, or the word `unlimited`.

    Raises:
        ContractError: anything else; `True` is not 1 and None is not unlimited.
    """
    if value == UNLIMITED and isinstance(value, str):
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= HIGHEST:
        raise ContractError(path, f"{value!r} is not a whole number from 0 or 'unlimited'")
    return value


def parse_seconds(path: str, value: object) -> SecondsLimit:
    """A limit on time: seconds from 0 to 10**12, or the word `unlimited`.

    Raises:
        ContractError: anything else, NaN and infinity included.
    """
    if value == UNLIMITED and isinstance(value, str):
        return UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(path, f"{value!r} is not a number of seconds or 'unlimited'")
    if not 0 <= value <= LONGEST_SECONDS:
        raise ContractError(path, f"{value!r} is not a number of seconds from 0 to 10**12")
    return value


def parse_money(path: str, value: object) -> MoneyLimit:
    """A limit on money: a finite Decimal from 0 in whole millionths, or the word `unlimited`.

    Raises:
        ContractError: anything else: a float is not an amount, and None is not unlimited.
    """
    if value == UNLIMITED and isinstance(value, str):
        return UNLIMITED
    if not isinstance(value, Decimal):
        raise ContractError(path, f"{value!r} is not a Decimal or 'unlimited'")
    micro_units(path, value)
    return value


def micro_units(path: str, value: object) -> int:
    """An amount of money in micro-units, exactly.

    Raises:
        ContractError: not a finite Decimal from 0, finer than a millionth, or 10**12 and more.
    """
    if not isinstance(value, Decimal) or not value.is_finite() or value < 0:
        raise ContractError(path, f"{value!r} is not a finite Decimal from 0")
    # A tiny or huge exponent is refused before anything is computed with it; then exactly, since
    # arithmetic on a Decimal rounds what has too many digits and tells nobody.
    if not value:
        return 0
    # Only who counts money pays for what fractions bring in.
    from fractions import Fraction

    exact = Fraction(value) * MICRO if -7 < value.adjusted() < 12 else Fraction(1, 2)
    if exact.denominator != 1:
        raise ContractError(path, f"{value:.30} is not a whole number of millionths below 10**12")
    return exact.numerator


def parse_price(path: str, value: object) -> int:
    """A price in micro-units: see `micro_units`; at most a million units.

    Raises:
        ContractError: no such amount.
    """
    micro = micro_units(path, value)
    if micro > _DEAREST:
        # Sums of a run have to stay below what JSON of a saved run carries.
        raise ContractError(path, f"{value!r} is more than a million")
    return micro


def money_text(micro: int) -> str:
    """An amount of money as text with six places: what machines read back without a float."""
    whole, part = divmod(abs(micro), MICRO)
    return f"{'-' if micro < 0 else ''}{whole}.{part:06d}"


def parse_expiry(path: str, value: object) -> datetime:
    """The last moment of a run: a time of day with its zone.

    Raises:
        ContractError: not a datetime, one without a zone, or one that UTC has no date for.
    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ContractError(path, f"{value!r} is not a datetime with a time zone")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise ContractError(path, f"{value!r} is beyond the calendar in UTC") from None
    return value


def epoch_microseconds(moment: datetime) -> int:
    """The moment as whole microseconds since 1970, exactly; one before that is 0."""
    since = moment.astimezone(UTC) - _EPOCH
    return max(0, (since.days * 86_400 + since.seconds) * MICRO + since.microseconds)


def moment_of(microseconds: int) -> datetime:
    """The moment that `epoch_microseconds` counted; one beyond the calendar is its end."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@frozen(kw_only=True)
class Limits:
    """What a ledger holds a run to. A bucket that is not named here is not limited.

    `counts` holds tokens and micro-units of money as well; `expires_us` is the run's last moment
    in microseconds since 1970.
    """

    counts: Mapping[str, Limit]
    seconds: SecondsLimit
    expires_us: Limit = UNLIMITED

    def to_json(self) -> dict[str, Json]:
        """The form that stands in saved runs and results."""
        body: dict[str, Json] = {"counts": dict(self.counts), "seconds": self.seconds}
        if self.expires_us != UNLIMITED:
            body["expires_us"] = self.expires_us
        return body

    @classmethod
    def from_json(cls, value: object) -> Limits:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not of that form.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("counts"), Mapping):
            raise ValueError("limits is an object with counts and seconds")
        counts = {str(k): parse_count(f"limits.{k}", v) for k, v in value["counts"].items()}
        return cls(
            counts=counts,
            seconds=parse_seconds("limits.seconds", value.get("seconds")),
            expires_us=parse_count("limits.expires_us", value.get("expires_us", UNLIMITED)),
        )

    def lowered(self, other: Limits) -> Limits:
        """The lower of both for every bucket: a limit that either names holds."""
        names = {**self.counts, **other.counts}
        return Limits(
            counts={
                name: _lower(self.counts.get(name, UNLIMITED), other.counts.get(name, UNLIMITED))
                for name in names
            },
            seconds=_lower_seconds(self.seconds, other.seconds),
            expires_us=_lower(self.expires_us, other.expires_us),
        )


def _lower(first: Limit, second: Limit) -> Limit:
    if first == UNLIMITED:
        return second
    return first if second == UNLIMITED else min(first, second)


def _lower_seconds(first: SecondsLimit, second: SecondsLimit) -> SecondsLimit:
    if first == UNLIMITED:
        return second
    return first if second == UNLIMITED else min(first, second)
