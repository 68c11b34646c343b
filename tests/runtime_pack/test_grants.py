"""Grants: what a person gives a run beyond its limits, once, on the record, and never silently."""

from __future__ import annotations

import asyncio
import itertools
import math
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    UNLIMITED,
    AuditLog,
    Completed,
    ContractError,
    ExecutionContext,
    Grant,
    LoopResult,
    MemoryRunStore,
    ModelPrice,
    PriceTable,
    Seal,
    Suspended,
    TaskContract,
    Turn,
    Usage,
    UserMessage,
    parse_grant,
)
from runtime_pack.grants import GRANT_NOTICE, totals, without_grants
from runtime_pack.ledger import Ledger, Limit, Limits
from runtime_pack.loop.drive import WRAP_UP_NOTICE
from runtime_pack.messages import Json
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    Rehearsal,
    ToolShelf,
    calls,
    escalate,
    reply,
)

KEY: Final = b"k" * 32


_number = itertools.count()


def call(name: str = "t:echo") -> Any:
    """A call that is no repeat of an earlier one."""
    return calls(("a", name, orjson.dumps({"x": str(next(_number))}).decode()))


def more(budget: str, amount: Any = 1, **options: Any) -> Grant:
    return Grant(budget, amount, "ann", "it is worth it", **options)


def rehearsal(*, prices: PriceTable | None = None, **contract: Any) -> Rehearsal:
    return Rehearsal(
        prices=prices,
        model_name=None if prices is None else "m",
        shelf=ToolShelf().add("t:echo").add("t:other"),
        contract=TaskContract(**contract),
        store=MemoryRunStore(Seal(KEY)),
    )


def stop_code(result: LoopResult) -> str:
    assert result.stop is not None
    return str(result.stop.code)


def many(number: int, name: str = "t:echo") -> Any:
    """A response with so many different calls."""
    return calls(*((f"c{i}", name, f'{{"x":"{next(_number)}"}}') for i in range(number)))


@pytest.mark.parametrize(
    ("contract", "grant"),
    [
        ({"max_steps": 3}, more("steps", 10)),
        ({"max_steps": 3}, more("steps", 1)),
        ({"max_steps": 5, "per_tool": {"t:echo": 1}}, more("tool:t:echo", 3)),
        ({"max_steps": 3, "max_refused": 0}, more("steps", 1)),
        ({"max_steps": 3, "wrap_up": False}, more("steps", 1)),
    ],
    ids=str,
)
def test_a_run_that_a_budget_stopped_is_not_ended_for_what_it_refused(
    contract: dict[str, Any], grant: Grant
) -> None:
    """Twelve calls where three fit: what was refused stopped the run once, and the grant ends that."""

    async def scenario() -> None:
        stage = rehearsal(**contract)
        script = [many(12)] + ([reply("so far")] if contract.get("wrap_up", True) else [])
        first = await stage.play(*script)
        assert isinstance(first, Suspended)
        assert first.ledger.refused >= 9
        result = await stage.go_on(first, call(), reply("done"), grants=[grant])

        assert isinstance(result, Completed)
        assert result.ledger.refused == first.ledger.refused

    asyncio.run(scenario())


def test_the_default_of_refused_calls_follows_the_steps_that_were_granted() -> None:
    """Twice the steps of one; a number that was named stays what it is, over resumes too."""

    async def scenario(named: int | None, *after: Any) -> LoopResult:
        stage = rehearsal(max_steps=1, max_consecutive_refused=99, max_refused=named)
        first = await stage.play(call(), call(), reply("so far"))
        assert isinstance(first, Suspended)
        # Granted in one process, and taken up once more in another.
        handed = await stage.go_on(first, escalate(), grants=[more("steps", 2)])
        stage.contract = TaskContract(max_steps=1, max_consecutive_refused=99)
        return await stage.go_on(handed, *after, message="go on")

    six, seven = many(6, "t:none"), many(7, "t:none")

    assert isinstance(asyncio.run(scenario(None, six, reply("done"))), Completed)
    assert stop_code(asyncio.run(scenario(None, seven))) == "MODEL_MISBEHAVING"
    assert stop_code(asyncio.run(scenario(2, six))) == "MODEL_MISBEHAVING"


def test_a_run_goes_on_from_a_wrap_up() -> None:
    """The final answer stays, the model is told that it may go on, and its next call runs."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1)
        first = await stage.play(call(), call(), reply("what I have"))
        assert isinstance(first, Suspended)
        assert first.text == "what I have"
        result = await stage.go_on(first, call(), reply("done"), grants=[more("steps")])

        assert isinstance(result, Completed)
        assert stage.shelf.ran["t:echo"] == 2
        assert result.ledger.limits.counts["steps"] == 2
        said = [m.text for m in result.messages if isinstance(m, UserMessage)]
        assert said == ["go", WRAP_UP_NOTICE, GRANT_NOTICE]
        assert result.messages[: len(first.messages)] == first.messages

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("contract", "budget"),
    [
        ({"max_turns": 2, "wrap_up": False}, "turns"),
        ({"max_steps": 2, "wrap_up": False}, "steps"),
        ({"per_tool": {"t:echo": 2}, "wrap_up": False}, "tool:t:echo"),
    ],
)
def test_each_count_can_be_raised(contract: dict[str, Any], budget: str) -> None:
    """By what was granted and by no more: the next one stops the run again."""

    async def scenario() -> None:
        stage = rehearsal(**contract)
        extra = [] if budget == "turns" else [call()]
        first = await stage.play(call(), call(), *extra)
        assert first.stop is not None
        assert first.stop.shortfall is not None
        assert first.stop.shortfall.budget == budget
        second = await stage.go_on(first, call(), *extra, grants=[more(budget)])
        assert stop_code(second) == "budget_exhausted"
        assert stage.shelf.ran["t:echo"] == 3
        third = await stage.go_on(second, call(), reply(), grants=[more(budget, 5)])
        assert isinstance(third, Completed)
        assert stage.shelf.ran["t:echo"] == 4

    asyncio.run(scenario())


def test_time_can_be_raised() -> None:
    """A run whose seconds were over has those that it was given."""

    async def scenario() -> None:
        clock = MovableClock()

        async def slow(context: Any) -> str:
            clock.move(10)
            return "ok"

        stage = rehearsal(max_duration_seconds=10)
        stage.shelf, stage.clock = ToolShelf().add("t:echo", does=slow), clock
        first = await stage.play(call())
        assert stop_code(first) == "budget_exhausted"
        again = await stage.go_on(first)
        assert stop_code(again) == "budget_exhausted"
        result = await stage.go_on(first, call(), grants=[more("duration_seconds", 10)])

        assert stage.shelf.ran["t:echo"] == 2
        assert stop_code(result) == "budget_exhausted"
        assert result.ledger.limits.seconds == 20

    asyncio.run(scenario())


def test_without_a_grant_the_model_is_not_asked() -> None:
    """Nor with one of another budget: that one is kept for later."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False, per_tool={"t:other": 1})
        first = await stage.play(call(), call())
        await stage.go_on(first)
        second = await stage.go_on(first, grants=[more("turns", 5)])
        assert stop_code(second) == "budget_exhausted"
        result = await stage.go_on(first, call(), reply(), grants=[more("steps")])

        assert result.ledger.limits.counts["turns"] == 25
        assert result.ledger.limits.counts["steps"] == 2

    asyncio.run(scenario())


def test_a_grant_holds_over_further_resumes_and_lower_contracts() -> None:
    """A later contract lowers what the run was made with; what was granted comes on top of it."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=2)
        first = await stage.play(call(), escalate())
        second = await stage.go_on(first, escalate(), message="on", grants=[more("steps", 3)])
        assert second.ledger.limits.counts["steps"] == 5
        third = await stage.go_on(second, escalate(), message="on")
        assert third.ledger.limits.counts["steps"] == 5
        stage.contract = TaskContract(max_steps=1)
        fourth = await stage.go_on(third, escalate(), message="on")
        assert fourth.ledger.limits.counts["steps"] == 4
        stage.contract = TaskContract(max_steps=50)
        fifth = await stage.go_on(fourth, escalate(), message="on")
        assert fifth.ledger.limits.counts["steps"] == 4

    asyncio.run(scenario())


def test_a_grant_is_in_the_log_with_who_and_why(tmp_path: Path) -> None:
    """One event a grant, with the limits as they are now."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False)
        first = await stage.play(call(), call())
        with AuditLog(tmp_path / "log.jsonl") as audit:
            stage.audit = audit
            await stage.go_on(first, reply(), grants=[more("steps", 2), more("turns", 1)])
        lines = [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]
        events = [line for line in lines if line["code"] == "GRT001O"]

        assert [event["object"]["budget"] for event in events] == ["steps", "turns"]
        assert events[0]["decision"]["granted_by"] == "ann"
        assert events[0]["decision"]["reason"] == "it is worth it"
        assert events[0]["object"]["limits"]["counts"]["steps"] == 3

    asyncio.run(scenario())


def test_a_grant_with_an_id_is_given_once() -> None:
    """Brought again after a crash it changes nothing; another one under its id is refused."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False)
        first = await stage.play(call(), call())
        assert first.state is not None
        crashing = CrashingRunStore(crash_at={2}, seal=Seal(KEY))
        crashing.put(first.state)
        stage.store = crashing
        grant = more("steps", 2, grant_id="g-1")
        with pytest.raises(Crash):
            await stage.go_on(first, grants=[grant])
        with pytest.raises(ContractError):
            await stage.go_on(first, grants=[more("steps", 9, grant_id="g-1")])
        result = await stage.go_on(first, reply(), grants=[grant, grant])

        assert result.ledger.limits.counts["steps"] == 3

    asyncio.run(scenario())


def test_one_grant_brought_twice_at_once_is_given_once() -> None:
    """By its id; two grants without one are two."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False)
        first = await stage.play(call(), call())
        grant = more("steps", 2, grant_id="g-1")
        result = await stage.go_on(
            first, reply(), grants=[grant, grant, more("steps"), more("steps")]
        )

        assert result.ledger.limits.counts["steps"] == 5

    asyncio.run(scenario())


def test_a_grant_is_kept_in_a_state_without_a_store() -> None:
    """The state in a result holds it too."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False)
        stage.store, stage.seal = None, Seal(KEY)
        first = await stage.play(call(), call())
        second = await stage.go_on(first, escalate(), grants=[more("steps", 2)])
        held = MemoryRunStore(Seal(KEY))
        assert second.state is not None
        held.put(second.state)
        stage.store = held
        result = await stage.go_on(second, call(), reply(), message="on")

        assert result.ledger.limits.counts["steps"] == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("budget", ["tool:t:echo", "tool:none", "tokens", "cost", "expires_at"])
def test_what_the_run_does_not_limit_cannot_be_raised(budget: str) -> None:
    """It would change nothing, and somebody thinks that it does."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False, max_turns=UNLIMITED)
        first = await stage.play(call(), call())
        amount = Decimal(1) if budget == "cost" else 1
        with pytest.raises(ContractError):
            await stage.go_on(first, grants=[more(budget, amount)])
        with pytest.raises(ContractError):
            await stage.go_on(first, grants=[more("turns")])

    asyncio.run(scenario())


@pytest.mark.parametrize("script", [[reply()], [RuntimeError("down")]], ids=["completed", "error"])
def test_nothing_is_granted_to_a_run_that_is_over(script: list[Any]) -> None:
    """A grant that no run would use is said to be one."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(*script)
        if isinstance(first, Completed):
            with pytest.raises(ContractError):
                await stage.go_on(first, grants=[more("steps")])
            second = await stage.go_on(first, reply(), message="on", grants=[more("steps")])
            assert second.ledger.limits.counts["steps"] == 51
        else:
            with pytest.raises(ContractError):
                await stage.go_on(first, grants=[more("steps")])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("budget", "amount", "who", "why"),
    [
        ("step", 1, "a", "b"), ("", 1, "a", "b"), (7, 1, "a", "b"), ("tool:", 1, "a", "b"), ("wrap_up", 1, "a", "b"),
        ("steps", 0, "a", "b"), ("steps", -1, "a", "b"), ("steps", True, "a", "b"), ("steps", 1.5, "a", "b"),
        ("steps", math.nan, "a", "b"), ("steps", math.inf, "a", "b"), ("steps", "1", "a", "b"), ("steps", None, "a", "b"),
        ("steps", Decimal(1), "a", "b"), ("steps", 10**13, "a", "b"), ("cost", 0.5, "a", "b"), ("cost", Decimal(0), "a", "b"),
        ("cost", Decimal("NaN"), "a", "b"), ("cost", Decimal("Infinity"), "a", "b"), ("cost", Decimal(-1), "a", "b"),
        ("cost", Decimal("0.0000001"), "a", "b"), ("cost", True, "a", "b"), ("cost", 0, "a", "b"),
        ("steps", 1, "", "b"), ("steps", 1, " ", "b"), ("steps", 1, None, "b"), ("steps", 1, "a", ""), ("steps", 1, "a", None),
        ("duration_seconds", 0.5, "a", "b"), ("duration_seconds", math.nan, "a", "b"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_grant_cannot_be_made(budget: Any, amount: Any, who: Any, why: Any) -> None:
    """An unknown budget, no amount above 0, nobody, or no reason."""
    with pytest.raises(ContractError):
        Grant(budget, amount, who, why)
    with pytest.raises(ContractError):
        parse_grant({"budget": budget, "amount": amount, "granted_by": who, "reason": why})


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"budget": "steps"}, more("steps").to_json() | {"limit": 5}, {1: 2},
     more("cost", Decimal(1)).to_json() | {"amount": "x"}],
    ids=str,
)  # fmt: skip
def test_reading_a_grant_refuses_anything_else(value: object) -> None:
    """Unknown fields are refused, not trimmed."""
    with pytest.raises(ContractError):
        parse_grant(value)


def test_only_grants_are_granted() -> None:
    """Values that look like one are read first."""

    async def scenario() -> None:
        stage = rehearsal(max_steps=1, wrap_up=False)
        first = await stage.play(call(), call())
        with pytest.raises(ContractError):
            # The fault at hand.
            await stage.go_on(first, grants=[more("steps").to_json()])  # type: ignore[list-item]

    asyncio.run(scenario())


grants = st.lists(
    st.one_of(
        st.builds(more, st.sampled_from(["steps", "turns", "tool:t"]), st.integers(1, 99)),
        st.builds(more, st.just("duration_seconds"), st.integers(1, 99)),
        st.builds(more, st.just("cost"), st.decimals("0.000001", "99", allow_nan=False, places=6)),
    ),
    max_size=5,
)


@settings(max_examples=60)
@given(grants)
def test_a_saved_ledger_without_its_grants_is_what_it_was(given_ones: list[Grant]) -> None:
    """Taking away what was added gives the limits of the contract back, and the grants survive."""
    counts: dict[str, Limit] = {"steps": 3, "turns": 20, "tool:t": 1, "cost": 5_000_000}
    ledger = Ledger(Limits(counts=counts, seconds=7.5))
    before = ledger.view(0).to_json()
    for grant in given_ones:
        ledger.raise_limit(grant.budget, grant.units)

    assert without_grants(ledger.view(0).to_json(), given_ones) == before
    read = [parse_grant(orjson.loads(orjson.dumps(grant.to_json()))) for grant in given_ones]
    assert read == given_ones
    assert totals(read) == totals(given_ones)


# ── money, tokens and a last moment ───────────────────────────────────────────────────────────

TABLE: Final = PriceTable(models={"m": ModelPrice(input=Decimal(1), output=Decimal(10))})


def spending(sent: int = 900, got: int = 100) -> Turn:
    usage = Usage(input_tokens=sent, output_tokens=got)
    turn: Turn = call()
    return attrs.evolve(turn, usage=usage)


@pytest.mark.parametrize(
    ("contract", "budget", "enough", "too_little"),
    [
        ({"max_tokens": 3_000}, "tokens", 5_000, 1),
        ({"max_cost": Decimal("0.005")}, "cost", Decimal("1.50"), Decimal("0.000001")),
    ],
)
def test_tokens_and_money_can_be_raised(
    contract: dict[str, Any], budget: str, enough: Any, too_little: Any
) -> None:
    """By what the next turn needs: with less of it the model is not asked."""

    async def scenario() -> None:
        stage = rehearsal(prices=TABLE, **contract)
        stage.prepare([spending(), spending(), spending(), spending()])
        first = await stage.start()
        assert first.stop is not None
        assert first.stop.shortfall is not None
        assert first.stop.shortfall.budget == budget
        stage.prepare([])
        assert stage.store is not None
        saved = await stage.store.load(first.run_id)
        # Something is left, and yet without a grant nothing is even tried.
        await stage.resume(first.run_id)
        assert saved == await stage.store.load(first.run_id)
        second = await stage.resume(first.run_id, grants=[more(budget, too_little)])
        assert stop_code(second) == "budget_exhausted"
        assert stage.model.requests == []
        result = await stage.go_on(second, reply(), grants=[more(budget, enough)])

        assert isinstance(result, Completed)
        total = more(budget, enough).units + more(budget, too_little).units
        limit = result.ledger.limits.counts[budget]
        before = first.ledger.limits.counts[budget]
        assert limit != UNLIMITED
        assert before != UNLIMITED
        assert limit - before == total

    asyncio.run(scenario())


def test_a_last_moment_can_be_moved() -> None:
    """A run that was over by the clock has as long as it was given, counted from its old end."""

    async def scenario() -> None:
        clock = MovableClock()
        stage = rehearsal(
            expires_at=clock.now() + timedelta(hours=1), max_duration_seconds=UNLIMITED
        )
        stage.clock = clock

        async def slow(context: ExecutionContext) -> Json:
            clock.move(3600)
            return "ok"

        stage.shelf = ToolShelf().add("t:echo", does=slow)
        first = await stage.play(call())
        assert stop_code(first) == "budget_exhausted"
        clock.move(60)
        second = await stage.go_on(first, grants=[more("expires_at", 60)])
        assert stop_code(second) == "budget_exhausted"
        result = await stage.go_on(second, reply(), grants=[more("expires_at", 60)])

        assert isinstance(result, Completed)

    asyncio.run(scenario())
