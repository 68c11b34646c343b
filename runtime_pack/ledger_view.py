"""What is told of a ledger: why a reservation was refused, and the ledger at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.instants import instant_text
from runtime_pack.ledger_limits import (
    COST,
    DURATION,
    EXPIRES,
    MICRO,
    UNLIMITED,
    Limit,
    Limits,
    micro_units,
    money_text,
)
from runtime_pack.messages import Json

__all__ = ("LedgerView", "Shortfall")


@frozen(kw_only=True)
class Shortfall:
    """Why a reservation was refused. Money is in micro-units, a moment in seconds since 1970.

    `needed` is how much was to be reserved at most, where more than one unit was, and `by` whether
    for a turn or a call.
    """

    budget: str
    limit: float
    used: float
    reserved: float
    needed: float = 0
    by: str = ""

    @property
    def left(self) -> float:
        """What could still have been reserved; never below 0."""
        return max(0, self.limit - self.used - self.reserved)

    @property
    def sentence(self) -> str:
        """The refusal as a person reads it: nothing is called used up of which something is left."""
        if self.budget in {DURATION, EXPIRES} or (not self.left and not self.reserved):
            return f"The budget {self.budget} is used up ({self.limit_text} allowed)."
        if not self.left:
            held = f"{self._text(self.used)} used, {self._text(self.reserved)} reserved"
            return f"The budget {self.budget} has nothing left ({held}, {self.limit_text} allowed)."
        needs = f" the next {self.by or 'call'} reserves up to {self._text(self.needed)} and"
        left = f"{self._text(self.left)} are left of {self.limit_text}"
        return f"No room in the budget {self.budget}:{needs if self.needed else ''} {left}."

    def _text(self, amount: float) -> str:
        return money_text(int(amount)) if self.budget == COST else f"{int(amount):,}"

    @property
    def limit_text(self) -> str:
        """The limit as a person reads it."""
        if self.budget == COST:
            return money_text(int(self.limit))
        if self.budget == EXPIRES:
            return instant_text(datetime.fromtimestamp(self.limit, UTC))
        return str(self.limit) if isinstance(self.limit, float) else f"{self.limit:,}"

    def to_json(self) -> dict[str, Json]:
        """The form that stands in results: money as text, seconds rounded to milliseconds."""
        asked: dict[str, Json] = {"by": self.by} if self.by else {}
        if self.budget == COST:
            if self.needed:
                asked["needed"] = money_text(int(self.needed))
            return asked | {
                "budget": self.budget,
                "limit": money_text(int(self.limit)),
                "used": money_text(int(self.used)),
                "reserved": money_text(int(self.reserved)),
            }
        if self.needed:
            asked["needed"] = self.needed
        return asked | {
            "budget": self.budget,
            "limit": self.limit,
            "used": round(self.used, 3),
            "reserved": self.reserved,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Shortfall:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        budget = value["budget"]
        if not isinstance(budget, str):
            raise TypeError("budget is a string")
        read = _money if budget == COST else _number
        return cls(
            budget=budget,
            limit=read(value["limit"]),
            used=read(value["used"]),
            reserved=read(value["reserved"]),
            needed=read(value["needed"]) if "needed" in value else 0,
            by=str(value.get("by", "")),
        )


def _money(value: object) -> int:
    if not isinstance(value, str):
        raise TypeError("money is text")
    try:
        return micro_units("money", Decimal(value))
    except (ArithmeticError, ContractError) as error:
        raise ValueError(f"{value!r} is not an amount") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number is expected")
    return value


@frozen(kw_only=True)
class LedgerView:
    """The ledger at one instant. Of buckets, `cost` is in micro-units of money.

    Attributes:
        estimated: how much of `used` was never reported, and is the reservation kept.
        overdrawn: how much was charged above the limit, because it was reported so.
        attempts: requests to the model, those that failed among them.
        unaffordable: those of `refused` that a budget refused, and that stopped the run by that.
        denials: of the refused calls, those that the policy or a person denied.
        granted: of the ledger of a sub-run, what stands reserved for it in its parent.
        cached_input_tokens: a part of `input_tokens`.
    """

    limits: Limits
    used: Mapping[str, int]
    reserved: Mapping[str, int]
    active_seconds: float
    refused: int
    violations: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    attempts: int = 0
    estimated: Mapping[str, int] = attrs.field(factory=dict)
    overdrawn: Mapping[str, int] = attrs.field(factory=dict)
    granted: Mapping[str, int] = attrs.field(factory=dict)
    unaffordable: int = 0
    denials: int = 0

    @property
    def cost(self) -> Decimal:
        """Money used, in the currency of the price table."""
        return Decimal(self.used.get(COST, 0)).scaleb(-6)

    def left(self, bucket: str) -> Limit:
        """What can still be reserved from a bucket; below 0 when it is overdrawn."""
        limit = self.limits.counts.get(bucket, UNLIMITED)
        if limit == UNLIMITED:
            return UNLIMITED
        return limit - self.used.get(bucket, 0) - self.reserved.get(bucket, 0)

    def to_json(self) -> dict[str, Json]:
        """The form that stands in saved runs; read back by `Ledger.restore`. Money in micro-units."""
        body: dict[str, Json] = {
            "limits": self.limits.to_json(),
            "used": dict(self.used),
            "reserved": dict(self.reserved),
            "active_us": round(self.active_seconds * MICRO),
            "refused": self.refused,
            "denials": self.denials,
            "violations": self.violations,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_input_tokens": self.cached_input_tokens,
            "attempts": self.attempts,
        }
        if self.estimated:
            body["estimated"] = dict(self.estimated)
        if self.overdrawn:
            body["overdrawn"] = dict(self.overdrawn)
        if self.unaffordable:
            body["unaffordable"] = self.unaffordable
        if self.granted:
            body["granted"] = dict(self.granted)
        return body
