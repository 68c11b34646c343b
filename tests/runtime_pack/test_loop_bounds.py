"""What a host gives is bounded before a run starts, and what became of a run is told as it was."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from runtime_pack import (
    AuditLog,
    Completed,
    ContractError,
    ExecutionContext,
    Grant,
    MemoryRunStore,
    ModelPrice,
    PriceTable,
    Seal,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
)
from runtime_pack.catalog import Executed
from runtime_pack.messages import FinishReason
from runtime_pack.runs import grant as leave_grant
from runtime_pack.testing import MovableClock, Rehearsal, ToolShelf, calls, escalate, reply

ASKS: Final = ToolPolicy([ToolRule(tool="*", approval_class="request_user")])
AMERICA: Final = timezone(timedelta(hours=-5))


@pytest.mark.parametrize(
    "field",
    [
        {"max_duration_seconds": 1e14},
        {"max_duration_seconds": 1e308},
        {"max_duration_seconds": 10**400},
        {"approval_seconds": 1e13},
        {"expires_at": datetime.max.replace(tzinfo=AMERICA)},
    ],
    ids=lambda field: next(iter(field)),
)
def test_a_limit_that_no_date_or_saved_run_can_hold_is_refused(field: dict[str, Any]) -> None:
    """By its name, when the contract is made."""
    with pytest.raises(ContractError) as refused:
        TaskContract(**field)

    assert refused.value.path == next(iter(field))


def test_the_longest_limits_hold_for_a_whole_run(tmp_path: Path) -> None:
    """A request that stays open beyond the calendar ends with it; the log and the save take all."""

    async def scenario() -> None:
        contract = TaskContract(
            max_duration_seconds=10**12,
            approval_seconds=10**12,
            expires_at=datetime.max.replace(tzinfo=UTC),
            tool_policy=ASKS,
        )
        with AuditLog(tmp_path / "log.jsonl") as log:
            stage = Rehearsal(
                shelf=ToolShelf().add("t:a"),
                contract=contract,
                store=MemoryRunStore(),
                audit=log,
            )
            result = await stage.play(calls(("1", "t:a", "{}")))

        assert result.requests[0].expires_at == datetime.max.replace(tzinfo=UTC)

    asyncio.run(scenario())


PRICES: Final = PriceTable(models={"m": ModelPrice(input=Decimal(1), output=Decimal(1))})
MANY: Final = [
    ({"max_duration_seconds": 1}, Grant("duration_seconds", 10**12, "ann", "why"), 1),
    (
        {"expires_at": datetime(2027, 1, 1, tzinfo=UTC)},
        Grant("expires_at", 10**12, "ann", "why"),
        1,
    ),
    ({"max_cost": Decimal(1)}, Grant("cost", Decimal(999_999_999_999), "ann", "why"), 2),
]


def stage_of(contract: dict[str, Any]) -> Rehearsal:
    priced = "max_cost" in contract
    return Rehearsal(
        clock=MovableClock(),
        contract=TaskContract(**contract),
        store=MemoryRunStore(Seal.random()),
        prices=PRICES if priced else None,
        model_name="m" if priced else None,
    )


@pytest.mark.parametrize(("contract", "grant", "number"), MANY, ids=str)
def test_grants_that_come_to_more_than_a_run_can_hold_are_refused(
    contract: dict[str, Any], grant: Grant, number: int
) -> None:
    """All of them, before any is given; the saved run is as it was and can be taken up."""

    async def scenario() -> None:
        stage = stage_of(contract)
        first = await stage.play(escalate())
        stage.prepare([])
        with pytest.raises(ContractError, match="more than the limit of a run can be"):
            await stage.resume(first.run_id, grants=[grant] * number, message="on")

        result = await stage.go_on(first, reply("done"), message="on")

        assert isinstance(result, Completed)
        assert result.ledger.limits == first.ledger.limits

    asyncio.run(scenario())


def test_grants_come_to_too_much_over_several_drives_too() -> None:
    """What was given before counts."""

    async def scenario() -> None:
        stage = stage_of({"max_steps": 2**60 - 2, "max_refused": 5})
        one = Grant("steps", 2, "ann", "why")
        first = await stage.play(escalate())
        second = await stage.go_on(first, escalate(), grants=[one], message="on")
        stage.prepare([])
        with pytest.raises(ContractError, match="more than the limit of a run can be"):
            await stage.resume(second.run_id, grants=[one], message="on")

        assert isinstance(await stage.go_on(second, reply(), message="on"), Completed)

    asyncio.run(scenario())


def test_a_grant_left_as_a_letter_that_a_run_cannot_hold_is_passed_over() -> None:
    """It cannot keep the run from being taken up."""

    async def scenario() -> None:
        store = MemoryRunStore(Seal.random())
        stage = Rehearsal(contract=TaskContract(max_duration_seconds=5), store=store)
        first = await stage.play(escalate())
        for amount in (10**12, 7):
            await leave_grant(
                store, first.run_id, "duration_seconds", amount, granted_by="ann", reason="why"
            )

        result = await stage.go_on(first, reply("done"), message="on")

        assert isinstance(result, Completed)
        assert result.ledger.limits.seconds == 12

    asyncio.run(scenario())


def test_a_wrap_up_that_was_cut_off_says_so() -> None:
    """What there is of it is the text, and the stop has a mark that a saved run keeps."""

    async def scenario() -> None:
        stage = Rehearsal(
            shelf=ToolShelf().add("t:a"),
            contract=TaskContract(max_turns=2),
            store=MemoryRunStore(),
        )
        cut = reply("half an ans", finish=FinishReason.LENGTH)
        batches = [calls((name, "t:a", f'{{"x":"{name}"}}')) for name in "ab"]
        result = await stage.play(*batches, cut)

        assert isinstance(result, Suspended)
        assert result.text == "half an ans"
        assert result.stop is not None
        assert result.stop.output_fault == "was cut off by its limit"
        again = await stage.go_on(result)
        assert again.stop == result.stop

    asyncio.run(scenario())


def test_a_call_whose_time_was_over_before_it_began_has_a_record() -> None:
    """As one that did not run."""

    async def scenario() -> None:
        clock = MovableClock()

        async def slow(context: ExecutionContext) -> str:
            del context
            clock.move(100)
            return "x"

        stage = Rehearsal(
            shelf=ToolShelf().add("t:a", does=slow).add("t:b"),
            clock=clock,
            contract=TaskContract(max_parallel=1, max_duration_seconds=50),
        )
        result = await stage.play(calls(("1", "t:a", "{}"), ("2", "t:b", "{}")))

        record = result.steps[-1]
        assert (record.call_id, record.tool) == ("2", "t:b")
        assert (record.executed, record.ok, record.code) == (
            Executed.NO,
            False,
            "BUDGET_EXHAUSTED",
        )
        assert stage.shelf.ran["t:b"] == 0

    asyncio.run(scenario())
