"""The ledger: reserve, settle, release; never over a limit, never reset."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime_pack.errors import ContractError
from runtime_pack.ledger import (
    UNLIMITED,
    Ledger,
    Limit,
    Limits,
    parse_count,
    parse_seconds,
    step_buckets,
    tool_bucket,
)
from runtime_pack.messages import Usage
from runtime_pack.testing import assert_within_budget

limits = st.one_of(st.integers(0, 4), st.just(UNLIMITED))


def ledger(seconds: float = 10, **counts: Limit) -> Ledger:
    return Ledger(Limits(counts=counts, seconds=seconds))


@pytest.mark.parametrize(
    "value", [True, False, -1, 1.0, math.nan, None, "3", "Unlimited", b"1", []]
)
def test_a_count_is_a_whole_number_or_the_word(value: object) -> None:
    """True is not one, None is not unlimited."""
    with pytest.raises(ContractError) as refused:
        parse_count("max_steps", value)

    assert refused.value.path == "max_steps"


@pytest.mark.parametrize("value", [True, -1, -0.5, math.nan, math.inf, None, "3"])
def test_seconds_are_finite_from_zero_or_the_word(value: object) -> None:
    """NaN compares as nothing and infinity is written out."""
    with pytest.raises(ContractError):
        parse_seconds("max_duration_seconds", value)


def test_what_can_be_a_limit_is_kept() -> None:
    """0 means nothing; the word is the only way to have no limit."""
    assert [parse_count("x", 0), parse_count("x", 7), parse_count("x", UNLIMITED)] == [
        0,
        7,
        UNLIMITED,
    ]
    assert [parse_seconds("x", 0), parse_seconds("x", 0.5), parse_seconds("x", UNLIMITED)] == [
        0,
        0.5,
        UNLIMITED,
    ]


def test_used_equal_to_the_limit_is_fine_and_the_next_is_refused() -> None:
    """The shortfall names the bucket and its numbers."""
    counted = ledger(steps=1)

    assert counted.reserve("steps") is None
    counted.settle("steps")
    short = counted.reserve("steps")

    assert short is not None
    assert short.to_json() == {"budget": "steps", "limit": 1, "used": 1, "reserved": 0}


def test_a_reservation_takes_all_of_its_buckets_or_none() -> None:
    """The second bucket does not fit, so the first is not taken either."""
    counted = ledger(steps=5, **{tool_bucket("t"): 0})

    assert counted.reserve(*step_buckets("t")) is not None
    assert counted.view(0).reserved == {}


def test_settling_or_releasing_what_is_not_reserved_is_a_fault() -> None:
    """A caller that settles twice is told so, and nothing changes."""
    counted = ledger(steps=5)
    for change in (counted.settle, counted.release, counted.reopen):
        with pytest.raises(ValueError):
            change("steps")
    counted.reserve("steps")
    with pytest.raises(ValueError):
        counted.settle("steps", "other")

    assert counted.view(0).reserved == {"steps": 1}
    with pytest.raises(ValueError):
        counted.end(0)


def test_time_counts_once_however_many_are_active() -> None:
    """Overlapping activities add up to the time in which any of them ran."""
    counted = ledger(seconds=10)
    counted.begin(0)
    counted.begin(2)
    counted.end(3)
    counted.end(4)
    counted.begin(100)

    assert counted.active_seconds(101) == 5
    assert counted.remaining_seconds(101) == 5
    assert counted.time_shortfall(105.9) is None
    assert counted.time_shortfall(106) is not None


def test_a_clock_that_goes_back_gives_no_time_back() -> None:
    """Time that ran backwards counts as none."""
    counted = ledger(seconds=10)
    counted.begin(100)
    counted.end(50)

    assert counted.active_seconds(0) == 0


def test_the_lower_of_two_limits_holds() -> None:
    """For each bucket and for time; unlimited is above every number."""
    first = Limits(counts={"a": 3, "b": UNLIMITED}, seconds=UNLIMITED)
    second = Limits(counts={"a": 5, "c": 1}, seconds=4)

    both = first.lowered(second)

    assert both == second.lowered(first)
    assert (both.counts, both.seconds) == ({"a": 3, "b": UNLIMITED, "c": 1}, 4)


def test_restoring_never_lowers_a_count_or_raises_a_limit() -> None:
    """What was reserved counts as used; reopening makes it open again."""
    saved = ledger(steps=3)
    saved.reserve("steps")
    saved.settle("steps")
    saved.reserve("steps")
    saved.charge(Usage(input_tokens=5, output_tokens=7))
    saved.refused = 2
    fresh = ledger(steps=9, seconds=99)
    fresh.restore(saved.view(0).to_json())

    assert fresh.view(0).used == {"steps": 2}
    assert (fresh.limit("steps"), fresh.view(0).limits.seconds) == (3, 10)
    assert (fresh.refused, fresh.input_tokens, fresh.output_tokens) == (2, 5, 7)

    fresh.reopen("steps")

    assert (fresh.view(0).used, fresh.view(0).reserved) == ({"steps": 1}, {"steps": 1})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["limits", "used", "reserved", "active_us", "refused", "violations"]),
        json_values,
    )
)
def test_restoring_from_anything_is_total(saved: dict[str, Any]) -> None:
    """A form that is not a ledger's is a ValueError and nothing else."""
    with pytest.raises(ValueError):
        ledger(steps=3).restore(saved)


@given(limits, limits)
def test_lowering_is_monotone(first: Limit, second: Limit) -> None:
    """A second limit never allows more."""
    counted = ledger(steps=first)
    counted.lower("steps", second)

    assert Limits(counts={"steps": counted.limit("steps")}, seconds=0).lowered(
        Limits(counts={"steps": first}, seconds=0)
    ).counts == {"steps": counted.limit("steps")}


class LedgerMachine(RuleBasedStateMachine):
    """Property 2 on the ledger alone, against a model of sets of reservations."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: dict[str, Limit] = {"steps": 4, "turns": 2, "tool:a": 1, "tool:b": UNLIMITED}
        self.ledger = Ledger(Limits(counts=self.bounds, seconds=20))
        self.open: list[tuple[str, ...]] = []
        self.used: list[tuple[str, ...]] = []
        self.now = 0.0
        self.active = 0
        self.seconds = 0.0

    def count(self, bucket: str) -> int:
        return sum(taken.count(bucket) for taken in [*self.open, *self.used])

    def has_room(self, bucket: str) -> bool:
        bound = self.bounds[bucket]
        return isinstance(bound, str) or self.count(bucket) + 1 <= bound

    @rule(buckets=st.sampled_from([("turns",), step_buckets("a"), step_buckets("b")]))
    def reserve(self, buckets: tuple[str, ...]) -> None:
        fits = all(map(self.has_room, buckets))
        short = self.ledger.reserve(*buckets)
        assert (short is None) == fits
        if fits:
            self.open.append(buckets)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def settle(self, which: int) -> None:
        buckets = self.open.pop(which % len(self.open))
        self.ledger.settle(*buckets)
        self.used.append(buckets)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        self.ledger.release(*self.open.pop(which % len(self.open)))

    @precondition(lambda self: self.used)
    @rule(which=st.integers(0, 9))
    def reopen(self, which: int) -> None:
        buckets = self.used.pop(which % len(self.used))
        self.ledger.reopen(*buckets)
        self.open.append(buckets)

    @rule(bucket=st.sampled_from(["steps", "turns", "tool:b"]), limit=st.integers(3, 6))
    def lower(self, bucket: str, limit: int) -> None:
        if self.count(bucket) > limit:
            return
        self.ledger.lower(bucket, limit)
        held = self.bounds[bucket]
        self.bounds[bucket] = limit if isinstance(held, str) else min(held, limit)

    @rule()
    def begin(self) -> None:
        self.ledger.begin(self.now)
        self.active += 1

    @precondition(lambda self: self.active)
    @rule()
    def end(self) -> None:
        self.ledger.end(self.now)
        self.active -= 1

    @rule(seconds=st.integers(0, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.seconds += seconds if self.active else 0

    @rule()
    def save_and_restore(self) -> None:
        if self.active:
            return
        saved = orjson.loads(orjson.dumps(self.ledger.view(self.now).to_json()))
        fresh = Ledger(Limits(counts={}, seconds=UNLIMITED))
        fresh.restore(saved)
        for buckets in self.open:
            fresh.reopen(*buckets)
        self.ledger = fresh

    @invariant()
    def within_limits(self) -> None:
        view = self.ledger.view(self.now)
        assert_within_budget(view)
        for bucket, limit in self.bounds.items():
            assert view.used.get(bucket, 0) + view.reserved.get(bucket, 0) == self.count(bucket)
            assert view.left(bucket) == (
                limit if isinstance(limit, str) else limit - self.count(bucket)
            )
        assert view.active_seconds == self.seconds
        left = self.ledger.remaining_seconds(self.now)
        assert left == max(0, 20 - self.seconds)
        assert (self.ledger.time_shortfall(self.now) is None) == (left > 0)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_violations_without_a_limit_are_restored_as_they_were() -> None:
    """Nothing is overdrawn where nothing is limited."""
    limits = Limits(counts={}, seconds=UNLIMITED)
    ledger = Ledger(limits)
    ledger.count_violations(3)
    again = Ledger(limits)
    again.restore(ledger.view(0.0).to_json())

    assert (again.violations, again.over(), again.view(0.0).overdrawn) == (3, None, {})


@pytest.mark.parametrize("amount", [True, 0, -1, 1.0, "1", None])
def test_what_is_no_amount_raises_no_limit(amount: Any) -> None:
    """A grant is a whole number above 0."""
    ledger = Ledger(Limits(counts={"steps": 1}, seconds=UNLIMITED))

    with pytest.raises(ValueError):
        ledger.raise_limit("steps", amount)

    assert ledger.limit("steps") == 1
