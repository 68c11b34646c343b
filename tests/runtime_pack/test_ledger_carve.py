"""Amounts, grants and sub-runs: a tree of ledgers never holds more than the root's limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime_pack.errors import ContractError
from runtime_pack.ledger import (
    COST,
    DURATION,
    EXPIRES,
    STEPS,
    TOKENS,
    TURNS,
    UNLIMITED,
    WRAP_UP,
    Ledger,
    Limit,
    Limits,
    Shortfall,
)
from runtime_pack.ledger_carve import ChildLedger, adopt_child, carve
from runtime_pack.ledger_limits import (
    epoch_microseconds,
    micro_units,
    money_text,
    parse_expiry,
    parse_money,
)
from runtime_pack.messages import Usage
from runtime_pack.testing import assert_within_budget

CENT = 10_000


def ledger(seconds: float = 100, **counts: Limit) -> Ledger:
    return Ledger(Limits(counts=counts, seconds=seconds))


def granted(**counts: Limit) -> Limits:
    return Limits(counts=counts, seconds=UNLIMITED)


def carved(parent: Ledger, now: float = 0, **counts: Limit) -> ChildLedger:
    child = carve(parent, granted(**counts), now=now)
    assert isinstance(child, ChildLedger)
    return child


# ── amounts ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        *(True, 0, 1, 0.1, "0.1", None),
        *map(Decimal, ("NaN", "Infinity", "-0.01", "0.0000001", "1E+12")),
        *map(Decimal, ("1E-999999999", "1E+999999999")),
        # More digits than a Decimal's arithmetic keeps: rounding would take it for 0.1.
        Decimal("0.10000000000000000000000000000000000001"),
    ],
)
def test_money_is_a_decimal_in_whole_millionths(value: object) -> None:
    """A float has lost the amount already, and what would be rounded is refused."""
    with pytest.raises(ContractError) as refused:
        parse_money("max_cost", value)

    assert refused.value.path == "max_cost"


@given(st.integers(0, 10**18 - 1))
def test_money_keeps_every_millionth(micro: int) -> None:
    """From micro-units to text and back, exactly."""
    assert micro_units("x", Decimal(money_text(micro))) == micro
    assert money_text(-micro) == ("-" if micro else "") + money_text(micro)
    assert parse_money("x", Decimal("0.50")) == Decimal("0.5")
    assert parse_money("x", UNLIMITED) == UNLIMITED


def test_a_moment_has_a_zone() -> None:
    """A time of day without a zone is another moment on another machine."""
    # Without a zone: that is what is refused.
    for value in (datetime(2026, 1, 1), 5, None, "2026-01-01T00:00:00Z"):  # noqa: DTZ001
        with pytest.raises(ContractError):
            parse_expiry("expires_at", value)

    moment = datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=UTC)

    assert epoch_microseconds(parse_expiry("expires_at", moment)) == 1_767_225_600_000_007


def test_amounts_are_taken_all_or_none() -> None:
    """A call whose price does not fit takes no step either."""
    counted = ledger(steps=5, cost=CENT)

    short = counted.reserve_amounts({STEPS: 1, COST: CENT + 1})

    assert short is not None
    assert short.to_json() == {
        "needed": "0.010001",
        "budget": "cost",
        "limit": "0.010000",
        "used": "0.000000",
        "reserved": "0.000000",
    }
    assert counted.view(0).reserved == {}
    assert Shortfall.from_json(short.to_json()) == short


def test_what_is_not_reported_is_charged_in_full_and_marked() -> None:
    """The reservation is the only bound that is known of it."""
    counted = ledger(cost=10 * CENT)
    counted.reserve_amounts({COST: 6 * CENT})
    counted.settle_amounts({COST: 6 * CENT})

    view = counted.view(0)

    assert (dict(view.used), dict(view.estimated), view.cost) == (
        {COST: 6 * CENT},
        {COST: 6 * CENT},
        Decimal("0.06"),
    )
    assert counted.reserve_amounts({COST: 5 * CENT}) is not None


def test_a_report_beyond_the_reservation_is_charged_and_shown() -> None:
    """The limit is passed once, by what was really spent, and a raised limit covers it."""
    counted = ledger(cost=10 * CENT)
    counted.reserve_amounts({COST: 6 * CENT})
    counted.settle_amounts({COST: 6 * CENT}, {COST: 13 * CENT})

    short = counted.over()

    assert short is not None
    assert (short.used, short.limit) == (13 * CENT, 10 * CENT)
    assert counted.view(0).overdrawn == {COST: 3 * CENT}
    assert counted.view(0).left(COST) == -3 * CENT
    assert counted.reserve_amounts({COST: 0}) is not None
    assert_within_budget(counted.view(0))

    counted.raise_limit(COST, 3 * CENT)

    assert counted.over() is None
    assert counted.view(0).overdrawn == {}
    assert counted.reserve_amounts({COST: 0}) is None


def test_amounts_that_are_not_there_change_nothing() -> None:
    """Neither a charge nor a reservation below 0 is a way to more, and nothing settles twice."""
    counted = ledger(cost=CENT, tokens=5)
    counted.reserve_amounts({COST: 5, TOKENS: 5})
    changes: tuple[Callable[[], object], ...] = (
        lambda: counted.reserve_amounts({COST: -1}),
        lambda: counted.settle_amounts({COST: 5, TOKENS: 5}, {COST: -1}),
        lambda: counted.settle_amounts({COST: 6, TOKENS: 5}),
        lambda: counted.release_amounts({TOKENS: 5, COST: -1}),
        lambda: counted.reopen_amounts({COST: 1}),
        lambda: counted.reopen_amounts({COST: -1}),
    )
    for change in changes:
        with pytest.raises(ValueError):
            change()

    assert dict(counted.view(0).reserved) == {COST: 5, TOKENS: 5}
    assert dict(counted.view(0).used) == {}


@pytest.mark.parametrize("amount", [0, -1, True, 1.0, "1"])
def test_a_grant_raises_by_a_whole_number(amount: Any) -> None:
    """A limit is only ever raised, by `raise_limit`."""
    with pytest.raises(ValueError):
        ledger(cost=CENT).raise_limit(COST, amount)


def test_a_grant_raises_counts_time_and_the_last_moment() -> None:
    """What has no limit keeps none."""
    counted = Ledger(Limits(counts={TURNS: 1}, seconds=10, expires_us=20_000_000))
    counted.expire_at(20)
    counted.begin(0)
    for bucket in (TURNS, DURATION, EXPIRES, "tool:free"):
        assert counted.raise_limit(bucket, 15) is None

    assert counted.limits == Limits(counts={TURNS: 16}, seconds=25, expires_us=35_000_000)
    assert counted.remaining_seconds(24) == 1
    assert counted.remaining_seconds(0) == 25


def test_the_last_moment_is_a_limit_of_its_own() -> None:
    """It counts while nothing is active, and the stop names it."""
    counted = Ledger(Limits(counts={}, seconds=UNLIMITED, expires_us=1_000_000_000))
    counted.expire_at(50)

    assert counted.remaining_seconds(49) == 1
    assert counted.time_shortfall(49) is None
    short = counted.time_shortfall(52)
    assert short is not None
    assert short.to_json() == {
        "budget": "expires_at",
        "limit": 1000.0,
        "used": 1002.0,
        "reserved": 0,
    }
    assert short.limit_text == "1970-01-01T00:16:40Z"


def test_a_crash_keeps_what_was_reserved_as_an_estimate() -> None:
    """Of tokens and money nobody knows what became; a step was taken."""
    saved = ledger(cost=10 * CENT, tokens=100, steps=5)
    saved.reserve_amounts({COST: CENT, TOKENS: 60, STEPS: 1})
    saved.charge(Usage(input_tokens=5, output_tokens=2, cached_input_tokens=3))
    fresh = ledger(cost=50 * CENT)
    fresh.restore(orjson.loads(orjson.dumps(saved.view(0).to_json())))

    view = fresh.view(0)

    assert dict(view.used) == {COST: CENT, TOKENS: 60, STEPS: 1}
    assert dict(view.estimated) == {COST: CENT, TOKENS: 60}
    assert (view.cached_input_tokens, view.limits.counts[COST]) == (3, 10 * CENT)

    fresh.reopen_amounts({COST: CENT, STEPS: 1})

    assert dict(fresh.view(0).estimated) == {TOKENS: 60}
    assert dict(fresh.view(0).reserved) == {COST: CENT, STEPS: 1}


def test_a_token_limit_counts_what_was_reported_before_there_was_one() -> None:
    """A run that is taken up under a token budget has not started anew."""
    saved = ledger(steps=5)
    saved.charge(Usage(input_tokens=50, output_tokens=30))
    fresh = ledger(tokens=100)
    fresh.restore(saved.view(0).to_json())

    assert fresh.left(TOKENS) == 20


# ── sub-runs ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("runs", [2, 5])
def test_b8_of_sub_runs_that_start_together_one_gets_the_money(runs: int) -> None:
    """0.10 is there once, however many ask for 0.06 before any of them has spent."""
    parent = ledger(cost=10 * CENT)

    given_out = [carve(parent, granted(cost=6 * CENT), now=0) for _ in range(runs)]

    children = [child for child in given_out if isinstance(child, ChildLedger)]
    assert len(children) == 1
    short = given_out[1]
    assert isinstance(short, Shortfall)
    assert (short.budget, short.reserved) == (COST, 6 * CENT)
    assert_within_budget(parent.view(0))

    (child,) = children
    child.reserve_amounts({COST: 6 * CENT})
    child.settle_amounts({COST: 6 * CENT}, {COST: 2 * CENT})
    child.close(0)

    assert parent.left(COST) == 8 * CENT


def test_b16_a_child_has_its_grant_and_no_default() -> None:
    """Not more than the grant because the parent has more, and not less because of a default."""
    parent = ledger(turns=300, steps=300, cost=UNLIMITED)
    narrow = carved(parent, turns=3, steps=2)
    wide = carved(parent, turns=200, steps=200)

    assert [narrow.limit(TURNS), narrow.limit(STEPS)] == [3, 2]
    assert [wide.limit(TURNS), wide.limit(STEPS)] == [200, 200]
    assert [narrow.reserve(TURNS) is None for _ in range(4)] == [True, True, True, False]
    assert (parent.left(TURNS), parent.left(STEPS)) == (97, 98)


def test_what_a_grant_does_not_name_is_not_there() -> None:
    """A budget that limits the parent is 0 for a child that was not granted any of it."""
    child = carved(ledger(turns=3, steps=3, tokens=9, wrap_up=1), turns=1)

    assert dict(child.limits.counts) == {TURNS: 1, STEPS: 0, TOKENS: 0, WRAP_UP: 0}


@pytest.mark.parametrize("value", [UNLIMITED, -1, True, 0.5])
def test_a_grant_is_not_unlimited_under_a_limit(value: Any) -> None:
    """Nobody hands on more than they have."""
    parent = ledger(turns=3)

    with pytest.raises(ContractError):
        carve(parent, granted(turns=value), now=0)

    assert parent.left(TURNS) == 3


def test_time_is_shared_and_never_longer_than_the_parents() -> None:
    """The child has the lower of the grant and what the parent has left, and the same last moment."""
    parent = Ledger(Limits(counts={}, seconds=10, expires_us=5))
    parent.begin(0)
    wanted = Limits(counts={}, seconds=100, expires_us=9)

    child = carve(parent, wanted, now=4)

    assert isinstance(child, ChildLedger)
    assert (child.limits.seconds, child.limits.expires_us) == (6, 5)
    assert isinstance(carve(parent, wanted, now=10), Shortfall)


def test_closing_charges_the_parent_once() -> None:
    """Counters join, what is open is an estimate, and the account takes nothing more."""
    parent = ledger(cost=10 * CENT, steps=5)
    child = carved(parent, cost=6 * CENT, steps=2)
    child.reserve("steps", "tool:a")
    child.settle("steps", "tool:a")
    child.reserve_amounts({COST: 2 * CENT})
    child.charge(Usage(input_tokens=3, output_tokens=1, cached_input_tokens=2))
    child.refused, child.denials, child.attempts = 2, 1, 3
    child.count_violations(2)
    child.close(0)

    view = parent.view(0)

    assert dict(view.used) == {COST: 2 * CENT, STEPS: 1, "tool:a": 1, "violations": 2}
    assert (dict(view.reserved), dict(view.estimated)) == ({}, {COST: 2 * CENT})
    assert (view.refused, view.denials, view.violations, view.attempts) == (2, 1, 2, 3)
    assert (view.input_tokens, view.output_tokens, view.cached_input_tokens) == (3, 1, 2)
    lates: tuple[Callable[[], object], ...] = (
        lambda: child.close(0),
        lambda: child.reserve("steps"),
        lambda: child.reserve_amounts({COST: 0}),
        lambda: child.raise_limit(COST, 1),
        lambda: carve(child, granted(), now=0),
    )
    for late in lates:
        with pytest.raises(ValueError):
            late()


def test_an_estimate_of_a_child_is_one_of_its_parent() -> None:
    """What the child was charged without a report stays marked, up the tree."""
    parent = ledger(cost=10 * CENT)
    child = carved(parent, cost=6 * CENT)
    child.reserve_amounts({COST: CENT})
    child.settle_amounts({COST: CENT})
    child.close(0)

    assert dict(parent.view(0).estimated) == {COST: CENT}


def test_a_child_that_reports_too_much_overdraws_the_parent_as_well() -> None:
    """What was spent was spent, wherever in the tree."""
    parent = ledger(cost=10 * CENT)
    child = carved(parent, cost=10 * CENT)
    child.reserve_amounts({COST: 10 * CENT})
    child.settle_amounts({COST: 10 * CENT}, {COST: 12 * CENT})
    child.close(0)

    short = parent.over()

    assert short is not None
    assert short.used == 12 * CENT
    assert_within_budget(parent.view(0))


def test_a_grant_to_a_child_comes_from_the_parent() -> None:
    """What the parent cannot spare the child does not get."""
    parent = ledger(cost=10 * CENT)
    child = carved(parent, cost=6 * CENT)

    assert child.raise_limit(COST, 5 * CENT) is not None
    assert child.raise_limit(COST, 4 * CENT) is None
    assert (child.limit(COST), parent.left(COST)) == (10 * CENT, 0)


def test_a_lower_limit_of_a_child_gives_back_only_at_the_end() -> None:
    """`max_turns` of the loop lowers the child; what it has taken already stays covered."""
    parent = ledger(turns=5)
    child = carved(parent, turns=4)
    child.reserve(TURNS)
    child.reserve(TURNS)
    child.lower(TURNS, 1)
    child.settle(TURNS, TURNS)

    assert parent.left(TURNS) == 1

    child.close(0)

    assert parent.left(TURNS) == 3
    assert parent.over() is None


def test_a_saved_child_is_adopted_by_its_restored_parent_only() -> None:
    """A parent that does not hold the grant refuses, unchanged."""
    parent = ledger(cost=10 * CENT)
    child = carved(parent, cost=6 * CENT)
    child.reserve_amounts({COST: CENT})
    saved = orjson.loads(orjson.dumps([parent.view(0).to_json(), child.view(0).to_json()]))
    again = ledger(cost=10 * CENT)
    with pytest.raises(ValueError):
        adopt_child(again, saved[1])
    again.restore(saved[0])

    adopted = adopt_child(again, saved[1])

    assert (again.left(COST), adopted.limit(COST), adopted.left(COST)) == (
        4 * CENT,
        6 * CENT,
        5 * CENT,
    )
    assert dict(adopted.view(0).estimated) == {COST: CENT}
    with pytest.raises(ValueError):
        adopt_child(again, {**saved[1], "granted": {COST: -1}})


# ── properties 2 and 3 ────────────────────────────────────────────────────────────────────────


@attrs.define
class Account:
    """What the model of the machine knows of one ledger."""

    ledger: Ledger
    parent: Account | None
    granted: Counter[str]
    limit: Counter[str]
    open: list[Counter[str]] = attrs.field(factory=list)
    spent: Counter[str] = attrs.field(factory=Counter)
    children: list[Account] = attrs.field(factory=list)
    strayed: bool = False

    def taken(self) -> Counter[str]:
        """What is used and reserved, with what stands open for children."""
        total = Counter(self.spent)
        for amounts in self.open:
            total.update(amounts)
        for child in self.children:
            total.update(child.granted)
        return total


BUCKETS = (COST, TOKENS, STEPS)
amounts = st.dictionaries(st.sampled_from(BUCKETS), st.integers(0, 9), min_size=1)
picks = st.integers(0, 99)


class LedgerTree(RuleBasedStateMachine):
    """Carve, reserve, settle, release, grant, crash and restore, in any order, at any depth."""

    def __init__(self) -> None:
        super().__init__()
        bounds = {COST: 20, TOKENS: 15, STEPS: 12}
        root = Ledger(Limits(counts={**bounds, TURNS: UNLIMITED}, seconds=100))
        self.root = Account(root, None, Counter(), Counter(bounds))
        self.accounts = [self.root]

    def pick(self, which: int) -> Account:
        return self.accounts[which % len(self.accounts)]

    def fits(self, account: Account, wanted: Counter[str]) -> bool:
        taken = account.taken()
        return all(taken[name] + wanted[name] <= account.limit[name] for name in wanted)

    @rule(which=picks, wanted=amounts)
    def reserve(self, which: int, wanted: dict[str, int]) -> None:
        account = self.pick(which)
        fits = self.fits(account, Counter(wanted))
        assert (account.ledger.reserve_amounts(wanted) is None) == fits
        if fits:
            account.open.append(Counter(wanted))

    @rule(which=picks, share=st.floats(0, 1), spread=st.integers(0, 2))
    def settle(self, which: int, share: float, spread: int) -> None:
        account = self.pick(which)
        if not account.open:
            return
        held = account.open.pop(which % len(account.open))
        # A step was taken or not; of tokens and money another amount may be reported, more as well.
        spent = {
            name: n if name == STEPS else int(n * share) + (spread if share > 0.8 else 0)
            for name, n in held.items()
        }
        account.ledger.settle_amounts(held, spent)
        account.strayed |= any(spent[name] > held[name] for name in held)
        account.spent.update(spent)

    @rule(which=picks)
    def lose(self, which: int) -> None:
        account = self.pick(which)
        if account.open:
            held = account.open.pop(which % len(account.open))
            account.ledger.settle_amounts(held)
            account.spent.update(held)

    @rule(which=picks)
    def release(self, which: int) -> None:
        account = self.pick(which)
        if account.open:
            account.ledger.release_amounts(account.open.pop(which % len(account.open)))

    @precondition(lambda self: len(self.accounts) < 6)
    @rule(which=picks, wanted=amounts)
    def carve(self, which: int, wanted: dict[str, int]) -> None:
        account = self.pick(which)
        given_out = Counter({name: wanted.get(name, 0) for name in BUCKETS})
        fits = self.fits(account, given_out)
        child = carve(account.ledger, granted(**wanted), now=0)
        assert isinstance(child, ChildLedger) == fits
        if isinstance(child, ChildLedger):
            new = Account(child, account, Counter(given_out), Counter(given_out))
            account.children.append(new)
            self.accounts.append(new)

    @rule(which=picks)
    def close(self, which: int) -> None:
        account = self.pick(which)
        parent = account.parent
        if parent is None or account.children or not isinstance(account.ledger, ChildLedger):
            return
        account.ledger.close(0)
        self.accounts.remove(account)
        parent.children.remove(account)
        parent.spent.update(account.taken())
        parent.strayed |= account.strayed

    @rule(which=picks, bucket=st.sampled_from(BUCKETS), amount=st.integers(1, 6))
    def grant(self, which: int, bucket: str, amount: int) -> None:
        account = self.pick(which)
        parent = account.parent
        fits = parent is None or self.fits(parent, Counter({bucket: amount}))
        assert (account.ledger.raise_limit(bucket, amount) is None) == fits
        if fits:
            account.limit[bucket] += amount
            if parent is not None:
                account.granted[bucket] += amount

    @rule()
    def crash(self) -> None:
        saved = {
            id(account): orjson.loads(orjson.dumps(account.ledger.view(0).to_json()))
            for account in self.accounts
        }
        # Parents come before their children.
        for account in self.accounts:
            if account.parent is None:
                account.ledger = Ledger(Limits(counts={}, seconds=UNLIMITED))
                account.ledger.restore(saved[id(account)])
            else:
                account.ledger = adopt_child(account.parent.ledger, saved[id(account)])
            for held in account.open:
                account.ledger.reopen_amounts(held)

    @invariant()
    def tree_agrees(self) -> None:
        for account in self.accounts:
            view = account.ledger.view(0)
            taken = account.taken()
            for name in BUCKETS:
                assert view.used.get(name, 0) + view.reserved.get(name, 0) == taken[name]
                assert view.limits.counts[name] == account.limit[name]
                if not account.strayed:
                    assert taken[name] <= account.limit[name]
            assert_within_budget(view)


TestLedgerTree = LedgerTree.TestCase
TestLedgerTree.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
