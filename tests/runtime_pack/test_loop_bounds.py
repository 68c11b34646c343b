"""What a host gives is bounded before a run starts, and what became of a run is told as it was."""

from __future__ import annotations

import asyncio
import gc
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
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
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


@pytest.mark.parametrize("name", ["web:*", "t:?", "t:[ab]", "t:{a}", "", 7], ids=str)
def test_a_limit_on_a_pattern_of_tools_is_refused(name: Any) -> None:
    """It would be the name of no tool."""
    with pytest.raises(ContractError, match="per_tool"):
        TaskContract(per_tool={name: 0})


def test_a_limit_on_a_tool_that_the_run_does_not_have_is_refused_when_it_starts() -> None:
    """The model is not asked; a tool that the runtime has and does not offer may be limited."""

    async def scenario() -> None:
        shelf = ToolShelf().add("web:read").add("web:hidden")
        stage = Rehearsal(shelf=shelf, contract=TaskContract(per_tool={"webread": 0}))
        stage.prepare([reply()])
        with pytest.raises(ContractError) as refused:
            await stage.start()

        assert refused.value.path == "per_tool.webread"
        assert stage.model.requests == []
        stage.contract = TaskContract(per_tool={"web:hidden": 0})
        stage.prepare([reply()])
        runtime = create_agent_runtime(model=stage.model, tools=shelf.tools)
        offered = [spec for spec in shelf.specs if spec.name == "web:read"]
        result = await run_governed_agent_loop(
            runtime=stage.run.guard_runtime(runtime),
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=offered),
        )
        assert isinstance(result, Completed)

    asyncio.run(scenario())


def priced(currency: str, price: int) -> PriceTable:
    each = ModelPrice(input=Decimal(price), output=Decimal(price))
    return PriceTable(currency=currency, models={"m": each})


def test_money_of_a_saved_run_is_not_counted_in_another_currency() -> None:
    """It is refused and stays as it was; another table in its currency is taken and recorded."""

    async def scenario() -> None:
        stage = Rehearsal(
            store=MemoryRunStore(Seal.random()),
            contract=TaskContract(max_cost=Decimal(1)),
            prices=priced("USD", 1),
            model_name="m",
        )
        first = await stage.play(escalate())
        for price in (0, 1):
            stage.prices = priced("JPY", price)
            stage.prepare([reply()])
            with pytest.raises(ContractError, match="are in JPY, and the saved run counts USD"):
                await stage.resume(first.run_id, message="on")

        stage.prices = priced("USD", 2)
        second = await stage.go_on(first, escalate(), message="on")
        assert second.ledger.used["cost"] > first.ledger.used["cost"]
        stage.prices = priced("EUR", 2)
        stage.prepare([reply()])
        with pytest.raises(ContractError, match="are in EUR, and the saved run counts USD"):
            await stage.resume(first.run_id, message="on")

    asyncio.run(scenario())


def clock_of(now: Any, seconds: Any) -> Any:
    class Given:
        def now(self) -> Any:
            return now() if callable(now) else now

        def monotonic(self) -> Any:
            return seconds() if callable(seconds) else seconds

    return Given()


def fails() -> Any:
    raise OSError("clock")


async def later() -> float:
    return 1.0


NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        (NOW.replace(tzinfo=None), 1.0),
        ("2026-01-01", 1.0),
        (fails, 1.0),
        (NOW, fails),
        (NOW, "1"),
        (NOW, True),
        (NOW, float("nan")),
        (NOW, float("inf")),
        (NOW, later),
        (later, 1.0),
    ],
)
def test_a_clock_that_cannot_be_used_is_refused_at_construction(now: Any, seconds: Any) -> None:
    """It would tear the run in its middle; one that is asynchronous leaves nothing behind."""
    with pytest.raises(ContractError, match="clock"):
        create_agent_task_run(TaskContract(), clock=clock_of(now, seconds))
    gc.collect()


def test_a_clock_without_the_time_of_day_is_refused() -> None:
    """By the method that is missing."""
    clock: Any = type("Ticks", (), {"monotonic": lambda _: 1.0})()
    with pytest.raises(ContractError, match="has no method `now`"):
        create_agent_task_run(TaskContract(), clock=clock)
