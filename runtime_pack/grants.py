"""Grants: what a person gives a saved run beyond its limits. Values and arithmetic, pure.

A grant raises one limit by an amount and is kept with the run: the contract of a later process
lowers what the run was saved with, and what was granted comes on top of it again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.ledger import COST, DURATION, EXPIRES, STEPS, TOKENS, TURNS, VIOLATIONS
from runtime_pack.ledger_limits import MICRO, micro_units
from runtime_pack.messages import Json, clean_text

__all__ = ("GRANT_NOTICE", "Grant", "parse_grant", "totals", "without_grants")

GRANT_NOTICE: Final = (
    "A person raised the budget: tools are available again. Go on with the task from here."
)
"""What the model is told when a run goes on that it was asked to wind up."""

_BUDGETS: Final = frozenset({STEPS, TURNS, TOKENS, COST, DURATION, EXPIRES, VIOLATIONS})
_TOOL: Final = "tool:"
# Far above any run, and sums of it stay what a saved run and a date can hold.
_MOST: Final = 10**12


def _budget(name: object) -> str:
    known = isinstance(name, str) and (
        name in _BUDGETS or (name.startswith(_TOOL) and len(name) > len(_TOOL))
    )
    if not isinstance(name, str) or not known:
        names = ", ".join(sorted(_BUDGETS))
        raise ContractError("grant.budget", f"{name!r} is none of {names}, tool:NAME")
    return clean_text(name)


def _text(path: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ContractError(f"grant.{path}", "says who gave it, or why: it is not empty")
    return clean_text(value)


def _who(value: object) -> str:
    return _text("granted_by", value)


def _why(value: object) -> str:
    return _text("reason", value)


def _id(value: object) -> str:
    if not isinstance(value, str):
        raise ContractError("grant.grant_id", f"{type(value).__name__} is not text")
    return clean_text(value)


@frozen
class Grant:
    """So much more of one budget, by whom and why.

    Attributes:
        budget: as it stands in `stop.budget`: `steps`, `turns`, `tokens`, `cost`,
            `duration_seconds`, `expires_at` (by so many seconds later), `violations`, or `tool:NAME`.
        amount: a whole number above 0; for `cost` a `Decimal` of money, in whole millionths.
        grant_id: a grant that has one is given once, however often it is brought.

    Raises:
        ContractError: an unknown budget, an amount that is 0, negative, not finite, a bool or a
            float, or nobody or no reason named.
    """

    budget: str = attrs.field(converter=_budget)
    amount: int | Decimal
    granted_by: str = attrs.field(converter=_who)
    reason: str = attrs.field(converter=_why)
    grant_id: str = attrs.field(default="", converter=_id)

    def __attrs_post_init__(self) -> None:
        amount: object = self.amount
        whole = isinstance(amount, int) and not isinstance(amount, bool)
        if self.budget != COST and not (whole and 0 < self.amount <= _MOST):
            raise ContractError("grant.amount", f"{amount!r} is not a whole number above 0")
        if self.budget == COST and self.units < 1:
            raise ContractError("grant.amount", f"{amount!r} is not above 0")

    @property
    def units(self) -> int:
        """The amount as the ledger counts it: money in micro-units."""
        if self.budget != COST:
            return int(self.amount)
        amount: object = self.amount
        if isinstance(amount, int) and not isinstance(amount, bool):
            amount = Decimal(amount)
        return micro_units("grant.amount", amount)

    def to_json(self) -> dict[str, Json]:
        """The stored form; read back by `parse_grant`. Money is text: no float ever holds it."""
        return {
            "budget": self.budget,
            "amount": str(self.amount) if self.budget == COST else int(self.amount),
            "granted_by": self.granted_by,
            "reason": self.reason,
            "grant_id": self.grant_id,
        }


_OPTIONAL: Final = frozenset({"grant_id"})


@functools.cache
def _fields() -> frozenset[str]:
    return frozenset(attrs.fields_dict(Grant))


def parse_grant(value: object) -> Grant:
    """Read a grant that came from outside, or out of a saved run, as a JSON object.

    Raises:
        ContractError: not an object, a field is missing, unknown or of the wrong kind.
    """
    if not isinstance(value, Mapping):
        raise ContractError("grant", "is an object")
    known = _fields()
    unknown, missing = sorted(set(value) - known, key=str), known - _OPTIONAL - set(value)
    if unknown or missing:
        raise ContractError("grant", f"unknown fields {unknown}, missing {sorted(missing)}")
    fields = dict(value)
    if fields["budget"] == COST and isinstance(fields["amount"], str):
        try:
            fields["amount"] = Decimal(fields["amount"])
        except InvalidOperation as error:
            raise ContractError("grant.amount", "is not a number") from error
    return Grant(**fields)


def totals(grants: Iterable[Grant]) -> dict[str, int]:
    """What was granted of each budget in all, as the ledger counts it."""
    sums: dict[str, int] = {}
    for grant in grants:
        sums[grant.budget] = sums.get(grant.budget, 0) + grant.units
    return sums


def without_grants(ledger: Mapping[str, Json], grants: Iterable[Grant]) -> dict[str, Json]:
    """A saved ledger as if nothing had been granted: what a later contract is compared with.

    Raises:
        KeyError, TypeError, ValueError: the limits are not of their form, or hold no such grants.
    """
    limits = ledger["limits"]
    if not isinstance(limits, Mapping) or not isinstance(limits["counts"], Mapping):
        raise TypeError("limits is an object with counts")
    plain: dict[str, Json] = dict(limits)
    counts: dict[str, Json] = dict(limits["counts"])
    for budget, units in totals(grants).items():
        if budget == DURATION:
            plain["seconds"] = _less(plain["seconds"], units)
        elif budget == EXPIRES:
            plain["expires_us"] = _less(plain["expires_us"], units * MICRO)
        else:
            counts[budget] = _less(counts[budget], units)
    return {**ledger, "limits": {**plain, "counts": counts}}


def _less(limit: Json, units: int) -> Json:
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < units:
        raise ValueError(f"{limit!r} holds no grant of {units}")
    return limit - units
