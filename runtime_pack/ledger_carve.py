"""The ledger of a sub-run: carved from what its parent has left, given back when it is done.

What the child may spend stands as a reservation in the parent, from the first moment: two children
that start together cannot both take what is there once. The child's limits are the grant, neither the
parent's nor a default. A child may be a parent itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.ledger import (
    COST,
    TOKENS,
    UNLIMITED,
    VIOLATIONS,
    WRAP_UP,
    Ledger,
    LedgerView,
    Limit,
    Limits,
    Shortfall,
    parse_count,
    parse_seconds,
    read_counts,
)
from runtime_pack.messages import Json

__all__ = ("ChildLedger", "adopt_child", "carve", "ungranted")

# Without any of these a sub-run cannot ask its model even once.
_NEEDED: Final = (COST, TOKENS)


def ungranted(held: Limits, grant: Limits) -> str | None:
    """The first budget that is limited above and of which a grant names no part; None if all do.

    `unlimited` is no part of a limit. Money and tokens have to be named: nothing runs without.
    """
    for name, limit in held.counts.items():
        if limit == UNLIMITED or name == WRAP_UP:
            continue
        if grant.counts.get(name, UNLIMITED if name in _NEEDED else 0) == UNLIMITED:
            return name
    return None


# Of these nothing stands reserved in the parent.
_OWN: Final = frozenset({VIOLATIONS, WRAP_UP})


def carve(parent: Ledger, grant: Limits, *, now: float) -> ChildLedger | Shortfall:
    """The ledger of a sub-run with exactly this grant, or the first budget that cannot spare it.

    A bucket that limits the parent and that the grant does not name is 0 for the child: what is
    not granted is not there. Time is shared, not split: the child has the lower of the grant and
    what the parent has left; violations too. `wrap_up` is the child's own, and is 0 when the grant does not name it.

    Raises:
        ContractError: a limit of the grant is none, or `unlimited` where the parent is limited.
        ValueError: the parent's own account is closed.
    """
    counts = _granted(parent.limits.counts, grant.counts)
    held = _held(counts)
    short = parent.hard_shortfall(now) or parent.reserve_amounts(held)
    if short is not None:
        return short
    seconds = parse_seconds("grant.seconds", grant.seconds)
    left = parent.remaining_seconds(now)
    if left != float("inf"):
        seconds = left if seconds == UNLIMITED else min(seconds, left)
    left_over = parent.left(VIOLATIONS)
    shared: dict[str, Limit] = {} if left_over == UNLIMITED else {VIOLATIONS: left_over}
    ends = Limits(counts=shared, seconds=UNLIMITED, expires_us=parent.limits.expires_us)
    own = Limits(counts=counts, seconds=seconds, expires_us=grant.expires_us).lowered(ends)
    return ChildLedger(parent, own, held)


def adopt_child(parent: Ledger, saved: Mapping[str, Json]) -> ChildLedger:
    """The ledger of a sub-run that was saved open, under a parent that was restored.

    `Ledger.restore` counted what the parent had reserved as used; here it is reserved again.

    Raises:
        ValueError: *saved* is no ledger, or the parent does not hold what it was granted.
    """
    granted = read_counts(saved.get("granted", {}))
    child = ChildLedger(parent, Limits.from_json(saved.get("limits")), granted)
    child.restore(saved)
    parent.reopen_amounts(granted)
    return child


def _granted(held: Mapping[str, Limit], asked: Mapping[str, Limit]) -> dict[str, Limit]:
    granted = {name: parse_count(f"grant.{name}", limit) for name, limit in asked.items()}
    for name, limit in held.items():
        if limit == UNLIMITED or name == VIOLATIONS:
            continue
        if granted.setdefault(name, 0) == UNLIMITED and name != WRAP_UP:
            raise ContractError(f"grant.{name}", "is not unlimited where the parent is limited")
    granted.setdefault(WRAP_UP, 0)
    return granted


def _held(counts: Mapping[str, Limit]) -> dict[str, int]:
    """What of a grant stands reserved in the parent."""
    return {
        name: limit for name, limit in counts.items() if limit != UNLIMITED and name not in _OWN
    }


class ChildLedger(Ledger):
    """The ledger of one sub-run; made by `carve`, ended by `close`."""

    __slots__ = ("_closed", "_granted", "_parent")

    def __init__(self, parent: Ledger, limits: Limits, granted: Mapping[str, int]) -> None:
        super().__init__(limits)
        self._parent = parent
        # What stands reserved in the parent; limits that are lowered later do not change it.
        self._granted = dict(granted)
        self._closed = False

    def view(self, now: float) -> LedgerView:
        """See `Ledger.view`; `granted` is what stands reserved in the parent."""
        return attrs.evolve(super().view(now), granted=dict(self._granted))

    def close(self, now: float) -> None:
        """Charge the parent what was used and give the rest back.

        What is still reserved counts as used: nobody will say any more what it came to. Nothing can
        be reserved afterwards.

        Raises:
            ValueError: it is closed already.
        """
        if self._closed:
            raise ValueError("the account of this sub-run is closed already")
        view, parent = self.view(now), self._parent
        self._closed = True
        held = self._granted
        names = (held.keys() | view.used.keys() | view.reserved.keys()) - _OWN
        spent = {name: view.used.get(name, 0) + view.reserved.get(name, 0) for name in names}
        parent.settle_amounts(held, spent)
        parent.guess({name: n for name, n in view.estimated.items() if name in spent})
        parent.guess({n: view.reserved[n] for n in (COST, TOKENS) if n in view.reserved})
        parent.refused += view.refused
        parent.unaffordable += view.unaffordable
        parent.denials += view.denials
        parent.count_violations(view.violations)
        parent.attempts += view.attempts
        parent.input_tokens += view.input_tokens
        parent.output_tokens += view.output_tokens
        parent.cached_input_tokens += view.cached_input_tokens

    def reserve(self, *buckets: str) -> Shortfall | None:
        """See `Ledger.reserve`.

        Raises:
            ValueError: the account is closed.
        """
        self._refuse_closed()
        return super().reserve(*buckets)

    def reserve_amounts(self, amounts: Mapping[str, int]) -> Shortfall | None:
        """See `Ledger.reserve_amounts`.

        Raises:
            ValueError: the account is closed, or an amount is below 0.
        """
        self._refuse_closed()
        return super().reserve_amounts(amounts)

    def raise_limit(self, bucket: str, amount: int) -> Shortfall | None:
        """Raise a limit by what the parent can spare, or say that it cannot.

        Raises:
            ValueError: the amount is not a whole number above 0, or the account is closed.
        """
        self._refuse_closed()
        if isinstance(amount, bool) or not isinstance(amount, int) or amount < 1:
            raise ValueError(f"{amount!r} is not a whole number above 0")
        if bucket in self._granted:
            short = self._parent.reserve_amounts({bucket: amount})
            if short is not None:
                return short
            self._granted[bucket] += amount
        return super().raise_limit(bucket, amount)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValueError("the account of this sub-run is closed")
