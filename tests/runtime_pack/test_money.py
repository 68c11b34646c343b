"""Money and tokens of a run: reserved before a turn, settled by what is reported, never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    Cancelled,
    Completed,
    ContractError,
    Decision,
    DirectoryRunStore,
    Effects,
    LedgerView,
    LoopError,
    LoopResult,
    MemoryRunStore,
    ModelPrice,
    ModelRequestError,
    PriceTable,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    TurnStatus,
    Usage,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
)
from runtime_pack.errors import AuditError, CallCode, PriceUnknown, StoreError
from runtime_pack.guard.meter import CLOSING_ROOM, DEFAULT_OUTPUT, FLOOR, Meter, _Sizes
from runtime_pack.guard.turns import Reserved
from runtime_pack.instants import instant_text
from runtime_pack.ledger import COST, STEPS, TOKENS, TURNS, UNLIMITED, Ledger, Limits
from runtime_pack.ledger_carve import ChildLedger, carve
from runtime_pack.loop.drive import WRAP_UP_NOTICE
from runtime_pack.machine import ingest_call
from runtime_pack.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Transcript,
    turn_fault,
)
from runtime_pack.ports import ExecutionContext, TurnRequest, is_naming
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    ListEmitter,
    MovableClock,
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    assert_within_budget,
    calls,
    reply,
)

# 1 micro-unit for a token read, 10 for a token written.
PLAIN = ModelPrice(input=Decimal(1), output=Decimal(10))
TABLE = PriceTable(models={"m": PLAIN, "free": ModelPrice(input=Decimal(0), output=Decimal(0))})
SECRET = Seal(b"k" * 32)


def said(turn: Turn, sent: int, got: int, **more: Any) -> Turn:
    return attrs.evolve(turn, usage=Usage(input_tokens=sent, output_tokens=got), **more)


def ask(name: str, *ids: str, sent: int = 100, got: int = 10) -> Turn:
    return said(calls(*((i, name, "{}") for i in ids or ("a",))), sent, got)


def other(number: int) -> Turn:
    """A call that is not the one before: that would be no progress."""
    return said(calls((f"c{number}", "t:a", {"x": str(number)})), 100, 10)


def rehearse(
    *,
    cost: str | None = "1.00",
    prices: PriceTable | None = TABLE,
    model_name: str | None = "m",
    shelf: ToolShelf | None = None,
    clock: MovableClock | None = None,
    store: MemoryRunStore | None = None,
    audit: AuditLog | None = None,
    approver: Any = None,
    **contract: Any,
) -> Rehearsal:
    return Rehearsal(
        contract=TaskContract(max_cost=None if cost is None else Decimal(cost), **contract),
        prices=prices,
        model_name=model_name,
        shelf=shelf or ToolShelf().add("t:a"),
        clock=clock,
        store=store,
        audit=audit,
        approver=approver,
        seal=SECRET,
    )


def stop_of(result: LoopResult) -> Mapping[str, Json]:
    assert result.stop is not None
    return result.stop.to_json()


def no_floats(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(no_floats(item) for item in value.values())
    if isinstance(value, list):
        return all(no_floats(item) for item in value)
    return not isinstance(value, float)


# ── usage ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cached", "fine"), [(0, True), (7, True), (8, False), (-1, False), (True, False), (1.0, False)]
)
def test_cached_tokens_are_a_part_of_the_input(cached: int, fine: bool) -> None:
    """More cached tokens than input would make a turn cheaper than nothing."""
    usage = Usage(input_tokens=7, output_tokens=1, cached_input_tokens=cached)

    assert (turn_fault(Turn(status=TurnStatus.REPLY, usage=usage)) is None) is fine


def test_cached_tokens_cost_what_they_cost_and_stand_in_the_record() -> None:
    """The ledger and the record of the turn say how many were read from the cache."""
    table = PriceTable(
        models={"m": ModelPrice(input=Decimal(10), output=Decimal(0), cached_input=Decimal(1))}
    )

    async def main() -> LoopResult:
        usage = Usage(input_tokens=100, output_tokens=1, cached_input_tokens=90)
        return await rehearse(prices=table).play(attrs.evolve(reply(), usage=usage))

    result = asyncio.run(main())

    assert result.ledger.cost == Decimal("0.000190")
    assert result.ledger.cached_input_tokens == 90
    (record,) = result.steps
    assert (record.cost, record.cached_input_tokens, record.estimated) == (190, 90, False)
    assert type(record).from_json(orjson.loads(orjson.dumps(record.to_json()))) == record


# ── the contract ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_cost", value) for value in (1, 0.5, "1", True, Decimal(-1), Decimal("NaN"))]
    + [("max_tokens", value) for value in (1.0, "1", True, -1, Decimal(1))]
    + [("expires_at", value) for value in (5, "2026-01-01", True)],
)
def test_b20_what_is_no_limit_is_refused(name: str, value: Any) -> None:
    """A float is no money, True is not 1, and the error names the field."""
    with pytest.raises(ContractError) as refused:
        TaskContract(**{name: value})

    assert refused.value.path == name


def test_a_contract_without_budgets_of_money_and_tokens_has_no_meter() -> None:
    """None is no such budget; `unlimited` counts money and needs a table as a limit does."""
    assert create_agent_task_run(TaskContract()).meter is None
    assert create_agent_task_run(TaskContract(max_tokens=UNLIMITED)).meter is None
    for cost in (Decimal(0), Decimal(5), UNLIMITED):
        with pytest.raises(ContractError) as refused:
            create_agent_task_run(TaskContract(max_cost=cost))
        assert refused.value.path == "prices"
        counted = create_agent_task_run(TaskContract(max_cost=cost), prices=TABLE)
        assert counted.meter is not None
    with pytest.raises(ContractError):
        # The wrong type is what is tested.
        create_agent_task_run(TaskContract(), prices={"m": 1})  # type: ignore[arg-type]


def test_unlimited_money_is_counted() -> None:
    """So is the money of a run that has a table and no budget."""

    async def main(contract: TaskContract) -> LoopResult:
        stage = Rehearsal(contract=contract, prices=TABLE, model_name="m")
        return await stage.play(said(reply(), 100, 10))

    for contract in (TaskContract(max_cost=UNLIMITED), TaskContract()):
        result = asyncio.run(main(contract))

        assert isinstance(result, Completed)
        assert result.ledger.cost == Decimal("0.0002")


# ── models without a price ────────────────────────────────────────────────────────────────────


def test_b7_a_model_without_a_price_is_refused_before_the_run() -> None:
    """By the name that the model has, and by the name that the run would ask for."""
    stage = rehearse()
    runtime = create_agent_runtime(model=ScriptedModel((), model_name="other"))
    with pytest.raises(PriceUnknown) as refused:
        stage.run.guard_runtime(runtime)
    assert (refused.value.code, refused.value.model) == ("PRICE_UNKNOWN", "other")

    guarded = stage.run.guard_runtime(create_agent_runtime(model=stage.model))
    asked = TurnInput(messages=[UserMessage(text="go")], model="another")

    async def main() -> None:
        with pytest.raises(PriceUnknown):
            await run_governed_agent_loop(runtime=guarded, execute_turn_input=asked)

    asyncio.run(main())
    assert stage.model.requests == []


def test_a_model_without_a_name_stops_before_it_is_asked() -> None:
    """Money cannot be reserved for nobody knows what; nothing is charged."""
    stage = rehearse(model_name=None)
    stage.prepare((reply(),))

    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert stop_of(result)["code"] == "PRICE_UNKNOWN"
    assert stop_of(result)["stage"] == "model"
    assert (stage.model.requests, dict(result.ledger.used), dict(result.ledger.reserved)) == (
        [],
        {},
        {},
    )


@pytest.mark.parametrize("usage", [None, Usage(input_tokens=100, output_tokens=10)])
def test_an_answer_of_a_model_without_a_price_stops_the_run(usage: Usage | None) -> None:
    """What was reserved is charged, and the calls of the answer do not run."""
    stage = rehearse()
    turn = attrs.evolve(ask("t:a"), usage=usage, model="a-dearer-one")

    result = asyncio.run(stage.play(turn))

    assert isinstance(result, LoopError)
    assert stop_of(result)["code"] == StopCode.PRICE_UNKNOWN
    assert stage.shelf.ran == {}
    assert dict(result.ledger.reserved) == {}
    (record,) = result.steps
    assert record.cost == result.ledger.used[COST] == result.ledger.estimated[COST]
    assert record.cost > DEFAULT_OUTPUT * 10
    assert (record.ok, record.code) == (False, "PRICE_UNKNOWN")


def test_the_model_that_answered_sets_the_price() -> None:
    """A row of its own is taken; a date behind the name is the model that was asked for."""
    table = PriceTable(models={"m": PLAIN, "n": ModelPrice(input=Decimal(2), output=Decimal(20))})
    for model, micro in (("m", 200), ("n", 400), ("m-2026-01-31", 200), (None, 200)):
        result = asyncio.run(rehearse(prices=table).play(said(reply(), 100, 10, model=model)))

        assert result.ledger.used[COST] == micro


# ── reserving and settling ────────────────────────────────────────────────────────────────────


def test_b9_a_huge_output_is_lowered_to_what_fits() -> None:
    """Wanted is worth 3.00 where 0.50 is left: the request goes out shorter, the rest comes back."""
    stage = rehearse(cost="0.50")
    stage.prepare((said(reply(), 5_000, 1_500),))

    async def main() -> LoopResult:
        runtime = create_agent_runtime(model=stage.model)
        words = TurnInput(messages=[UserMessage(text="x" * 49_900)], max_output_tokens=300_000)
        return await run_governed_agent_loop(
            runtime=stage.run.guard_runtime(runtime), execute_turn_input=words
        )

    result = asyncio.run(main())

    (limit,) = stage.model.output_limits
    assert limit is not None
    assert FLOOR <= limit < 45_010
    # One more token would not have fitted.
    assert 499_990 <= 49_900 + 64 + 32 + 10 * limit <= 500_000
    assert isinstance(result, Completed)
    assert result.ledger.cost == Decimal("0.02")
    assert result.ledger.left(COST) == 480_000
    assert dict(result.ledger.reserved) == {}


def test_without_a_wish_the_output_has_a_default() -> None:
    """Only where tokens or money are counted; a lower wish of the host stands."""
    for wish, counted, limit in (
        (None, True, DEFAULT_OUTPUT),
        (100, True, 100),
        (9000, True, 9000),
        (None, False, None),
    ):
        stage = rehearse() if counted else rehearse(cost=None, prices=None)
        stage.prepare((reply(),))
        guarded = stage.run.guard_runtime(create_agent_runtime(model=stage.model))
        words = TurnInput(messages=[UserMessage(text="x")], max_output_tokens=wish)

        asyncio.run(run_governed_agent_loop(runtime=guarded, execute_turn_input=words))

        assert stage.model.output_limits == [limit]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "9", 10**9 + 1])
def test_a_limit_of_output_is_a_whole_number(limit: Any) -> None:
    """A limit below 1 would reserve less than nothing."""
    with pytest.raises(ContractError):
        TurnInput(messages=[UserMessage(text="x")], max_output_tokens=limit)


def test_below_the_floor_the_run_stops_hard() -> None:
    """No model call, no wrap-up, numbers beside the code; a resume asks nobody."""
    stage = rehearse(cost="0.002")
    result = asyncio.run(stage.play())

    assert isinstance(result, Suspended)
    assert stop_of(result) == {
        "code": "budget_exhausted",
        "message": "No room in the budget cost: the next turn reserves up to 0.041802 "
        "and 0.002000 are left of 0.002000.",
        "by": "turn",
        "needed": "0.041802",
        "budget": "cost",
        "limit": "0.002000",
        "used": "0.000000",
        "reserved": "0.000000",
    }
    assert dict(result.ledger.used) == {}

    again = asyncio.run(stage.go_on(result))

    assert isinstance(again, Suspended)
    assert stop_of(again) == stop_of(result)


def test_the_floor_itself_is_enough() -> None:
    """What fits exactly is sent; one token less is not."""
    probe = rehearse(cost=None, max_tokens=10**6)
    asyncio.run(probe.play(reply()))
    reads = 10**6 - _left_before(probe)

    for spare, asked in ((0, 1), (-1, 0)):
        stage = rehearse(cost=None, prices=None, max_tokens=reads + FLOOR + spare)
        stage.prepare((reply(),))
        result = asyncio.run(stage.start())

        assert len(stage.model.requests) == asked
        assert isinstance(result, Completed if asked else Suspended)
        if not asked:
            assert stop_of(result)["budget"] == TOKENS


def _left_before(stage: Rehearsal) -> int:
    """What the one turn of the rehearsal left of its tokens: it reported nothing."""
    used = stage.run.view().used[TOKENS]
    return 10**6 - used + DEFAULT_OUTPUT


def test_a_budget_of_tokens_is_for_what_is_read_and_written() -> None:
    """Reported tokens count, and the next turn fits into what is left."""

    async def main() -> tuple[Rehearsal, LoopResult]:
        stage = rehearse(cost=None, prices=None, max_tokens=3_000)
        stage.prepare([ask("t:a", sent=900, got=100), ask("t:a", sent=900, got=100)])
        return stage, await stage.start()

    stage, result = asyncio.run(main())

    assert isinstance(result, Suspended)
    assert (stop_of(result)["budget"], stop_of(result)["used"]) == (TOKENS, 2_000)
    assert stage.shelf.ran["t:a"] == 2
    first, second = stage.model.output_limits
    assert first is not None
    assert second is not None
    assert first > second >= FLOOR


def test_b10_a_cancelled_turn_is_charged_what_was_reserved() -> None:
    """Nobody reported its tokens: the charge is an estimate, and a later check sees it."""
    begun = asyncio.Event()

    class Hanging:
        model_name = "m"

        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            del request, context
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    stage = rehearse(cost="0.05")

    async def main() -> LoopResult:
        guarded = stage.run.guard_runtime(create_agent_runtime(model=Hanging()))
        words = TurnInput(messages=[UserMessage(text="x")])
        task = asyncio.ensure_future(
            run_governed_agent_loop(runtime=guarded, execute_turn_input=words)
        )
        await begun.wait()
        stage.run.cancel("enough")
        return await task

    result = asyncio.run(main())

    assert isinstance(result, Cancelled)
    assert 40_960 < result.ledger.used[COST] < 50_000
    assert result.ledger.estimated == {
        COST: result.ledger.used[COST],
        TOKENS: result.ledger.used[TOKENS],
    }
    (record,) = result.steps
    assert (record.cost, record.estimated) == (result.ledger.used[COST], True)
    assert stage.run.ledger.reserve_amounts({COST: 10_000}) is not None


@pytest.mark.parametrize("usage", [None, Usage(input_tokens=1, output_tokens=1)])
def test_an_answer_without_usage_is_charged_what_was_reserved(usage: Usage | None) -> None:
    """A provider that does not report does not make a turn free."""
    result = asyncio.run(rehearse().play(attrs.evolve(reply(), usage=usage)))

    if usage is None:
        assert result.ledger.used[COST] > 40_960
        assert result.ledger.estimated[COST] == result.ledger.used[COST]
    else:
        assert (result.ledger.used[COST], result.ledger.estimated) == (11, {})


def test_an_adapter_that_fails_is_charged_what_was_reserved() -> None:
    """It may have been billed before it failed."""
    stage = rehearse()
    result = asyncio.run(stage.play(RuntimeError("boom")))

    assert isinstance(result, LoopError)
    assert result.ledger.estimated[COST] > 40_960


def test_a_report_above_the_reservation_is_charged_and_stops_the_run() -> None:
    """The limit is passed once; the calls of that response do not run."""
    stage = rehearse(cost="0.05")
    result = asyncio.run(stage.play(ask("t:a", "a", "b", sent=60_000, got=10)))

    assert isinstance(result, Suspended)
    assert (stop_of(result)["budget"], stop_of(result)["used"]) == (COST, "0.060100")
    assert stage.shelf.ran == {}
    assert result.ledger.overdrawn == {COST: 10_100}
    assert result.ledger.used.get(STEPS, 0) == 0
    assert_within_budget(result.ledger)


def test_an_answer_that_overdraws_is_kept() -> None:
    """It is paid for, and nothing follows it."""
    result = asyncio.run(rehearse(cost="0.05").play(said(reply("paid"), 60_000, 10)))

    assert isinstance(result, Completed)
    assert (result.text, result.ledger.overdrawn) == ("paid", {COST: 10_100})


# ── attempts ──────────────────────────────────────────────────────────────────────────────────


def fault(word: str, **more: Any) -> ModelRequestError:
    return ModelRequestError(fault=word, message="no", **more)


@pytest.mark.parametrize(
    ("error", "micro"),
    [
        (fault("overloaded", status=529), 0),
        (fault("rate_limited", status=429), 0),
        (fault("server", usage=Usage(input_tokens=70, output_tokens=3)), 100),
        (fault("transport"), None),
        (fault("timeout"), None),
    ],
)
def test_a_request_that_failed_is_charged(error: ModelRequestError, micro: int | None) -> None:
    """By what it reports; in full where it may have been read; not where the provider said no."""
    clock = MovableClock()
    stage = rehearse(clock=clock)
    result = asyncio.run(stage.play(error, said(reply(), 100, 10)))

    assert isinstance(result, Completed)
    assert result.ledger.attempts == 2
    charged = result.ledger.used[COST] - 200
    assert charged > 40_960 if micro is None else charged == micro
    assert result.ledger.estimated.get(COST, 0) == (charged if micro is None else 0)
    assert dict(result.ledger.reserved) == {}
    assert result.steps[-1].cost == result.ledger.used[COST]


def test_a_retry_has_only_what_the_failed_request_left() -> None:
    """Its output is lowered again, and below the floor it is not made."""
    for cost, asked in (("0.09", 3), ("0.043", 1)):
        stage = rehearse(cost=cost, max_attempts=3, clock=MovableClock())
        stage.prepare([fault("transport")] * 2 + [said(reply(), 100, 10)])
        result = asyncio.run(stage.start())

        limits = [limit for limit in stage.model.output_limits if limit is not None]
        assert len(limits) == asked
        assert limits == sorted(limits, reverse=True)
        assert (limits[-1] < DEFAULT_OUTPUT) == (asked == 3)
        assert_within_budget(result.ledger)
        if asked == 1:
            assert isinstance(result, Suspended)
            assert stop_of(result)["budget"] == COST
            assert result.ledger.used.get(TURNS, 0) == 0


def test_a_failure_that_was_heard_is_charged_in_full() -> None:
    """A part of the response was shown, so it was made, whatever status came after it."""

    class Talking(ScriptedModel):
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            if context.on_delta is not None:
                context.on_delta("so far")
            return await super().execute_turn(request, context)

    async def main(model: ScriptedModel, listen: bool) -> LoopResult:
        stage = rehearse(clock=MovableClock())
        runtime = stage.run.guard_runtime(create_agent_runtime(model=model))
        return await run_governed_agent_loop(
            runtime=runtime,
            execute_turn_input=TurnInput(messages=[UserMessage(text="x")]),
            create_context=lambda: ExecutionContext(on_delta=(lambda _: None) if listen else None),
        )

    shown = fault("overloaded", status=529, surfaced=True)
    heard = asyncio.run(main(Talking([fault("overloaded")], model_name="m"), listen=True))
    surfaced = asyncio.run(main(ScriptedModel([shown], model_name="m"), listen=False))

    for result in (heard, surfaced):
        assert isinstance(result, LoopError)
        assert result.ledger.estimated[COST] > 40_960


def test_a_retry_is_not_made_when_the_failure_overdrew() -> None:
    """The failed request reported more than was left."""
    stage = rehearse(cost="0.05", clock=MovableClock(), max_attempts=3)
    error = fault("server", usage=Usage(input_tokens=60_000, output_tokens=0))
    result = asyncio.run(stage.play(error))

    assert isinstance(result, Suspended)
    assert (stop_of(result)["budget"], result.ledger.overdrawn) == (COST, {COST: 10_000})


def test_a_run_over_one_budget_does_not_go_on_with_another() -> None:
    """Tokens are used up beyond their limit while money is left: no call runs for its price."""
    stage = rehearse(shelf=priced(), max_tokens=10_000)
    result = asyncio.run(stage.play(ask("t:a", sent=20_000)))

    assert isinstance(result, Suspended)
    assert stop_of(result)["budget"] == TOKENS
    assert stage.shelf.ran == {}


def test_an_answer_as_long_as_the_lowered_limit_is_cut() -> None:
    """The limit that was sent counts, not the one that was wished for: no call of it runs."""
    stage = rehearse(cost="0.01")
    stage.prepare([ask("t:a", sent=100, got=DEFAULT_OUTPUT // 2), said(reply(), 1, 1)])
    limits = stage.model.output_limits

    class Filling(ScriptedModel):
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            turn = await stage.model.execute_turn(request, context)
            if len(limits) == 1 and request.max_output_tokens is not None:
                return said(turn, 0, request.max_output_tokens)
            return turn

    runtime = create_agent_runtime(model=Filling((), model_name="m"), tools=stage.shelf.tools)
    words = TurnInput(messages=[UserMessage(text="x")], tool_catalog=stage.shelf.specs)
    result = asyncio.run(
        run_governed_agent_loop(runtime=stage.run.guard_runtime(runtime), execute_turn_input=words)
    )

    assert stage.shelf.ran == {}
    assert [step.code for step in result.steps if step.tool == "t:a"] == [CallCode.TRUNCATED]


def test_what_is_not_asked_gives_its_money_back(tmp_path: Path) -> None:
    """The run was stopped first, or the log could not take the record: nothing was sent."""
    stage = rehearse()
    stage.prepare(())
    request = TurnRequest(messages=Transcript([UserMessage(text="x")]), tools=())
    guarded = stage.run.guard_runtime(create_agent_runtime(model=stage.model))

    async def stopped() -> None:
        reserved = guarded.turns.reserve(request)
        assert isinstance(reserved, Reserved)
        stage.run.cancel("no")
        await guarded.turns.ask(reserved, request, ExecutionContext())

    asyncio.run(stopped())
    assert dict(stage.run.view().reserved) == {}
    assert stage.run.view().cost == 0

    log = AuditLog(tmp_path / "log.jsonl")
    broken = rehearse(audit=log)
    guarded = broken.run.guard_runtime(create_agent_runtime(model=broken.model))
    log.close()

    async def unlogged() -> None:
        with pytest.raises(AuditError):
            await guarded.take_turn(request, ExecutionContext())

    asyncio.run(unlogged())
    assert broken.model.requests == []
    assert dict(broken.run.view().reserved) == {}
    assert broken.run.view().cost == 0


# ── tools with a price ────────────────────────────────────────────────────────────────────────


def priced(price: str = "0.01", **more: Any) -> ToolShelf:
    return ToolShelf().add("t:a", price=Decimal(price), **more)


def test_a_call_costs_what_its_tool_costs() -> None:
    """The higher of the tool's own price and the table's."""
    for own, table, micro in (("0.01", "0.02", 20_000), ("0.03", "0.02", 30_000)):
        prices = PriceTable(models={"m": PLAIN}, tools={"t:a": Decimal(table)})
        stage = rehearse(prices=prices, shelf=priced(own))
        result = asyncio.run(stage.play(ask("t:a"), said(reply(), 100, 10)))

        assert result.ledger.used[COST] == 400 + micro
        assert [record.cost for record in result.steps] == [200, micro, 200]


def test_a_price_is_reserved_with_the_step_or_neither_is() -> None:
    """Of five calls three fit; the others take no step, and money ends the run at once."""
    stage = rehearse(cost="0.035", shelf=priced(), max_steps=10)
    result = asyncio.run(stage.play(ask("t:a", *"abcde")))

    assert isinstance(result, Suspended)
    assert stop_of(result)["budget"] == COST
    assert stage.shelf.ran["t:a"] == 3
    assert dict(result.ledger.used) == {
        COST: 30_200,
        TOKENS: 110,
        STEPS: 3,
        TURNS: 1,
        "tool:t:a": 3,
    }
    refused = [step for step in result.steps if not step.admitted]
    assert [step.code for step in refused] == [CallCode.BUDGET_EXHAUSTED] * 2


def test_without_a_count_of_money_a_price_is_nothing() -> None:
    """A run that counts no money has no use for a tool's price."""
    result = asyncio.run(
        rehearse(cost=None, prices=None, shelf=priced("5")).play(ask("t:a"), reply())
    )

    assert COST not in result.ledger.used


@pytest.mark.parametrize("price", [0.1, 1, "1", True, Decimal(-1), Decimal("0.0000001")])
def test_the_price_of_a_tool_is_a_decimal(price: Any) -> None:
    """The error names the tool."""
    with pytest.raises(ContractError) as refused:
        ToolShelf().add("t:a", price=price)

    assert refused.value.path == "t:a.price"


def test_a_price_is_a_part_of_the_definition() -> None:
    """Tools without one keep the digest that they had."""
    plain, one, other = (
        ToolShelf().add("t:a", price=p).specs[0] for p in (None, Decimal(1), Decimal(2))
    )

    assert "price" not in plain.to_json()
    assert len({plain.sha256, one.sha256, other.sha256}) == 3
    assert one.sha256 == ToolShelf().add("t:a", price=Decimal("1.00")).specs[0].sha256


def test_a_call_that_is_denied_gives_its_price_back() -> None:
    """It was reserved while a person was asked, and nothing ran."""
    gate = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
    stage = rehearse(shelf=priced(), tool_policy=gate)
    result = asyncio.run(stage.play(ask("t:a")))

    assert isinstance(result, ApprovalRequired)
    assert result.ledger.reserved[COST] == 10_000

    over = asyncio.run(stage.go_on(result, said(reply(), 100, 10), message="no", abandon=True))

    assert isinstance(over, Completed)
    assert (over.ledger.used[COST], over.ledger.reserved.get(COST, 0)) == (400, 0)


def test_an_approved_call_is_charged_once_over_a_restart() -> None:
    """What was reserved when the run was saved is reserved again, and charged when it ran."""
    gate = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
    stage = rehearse(shelf=priced(), tool_policy=gate)
    result = asyncio.run(stage.play(ask("t:a")))
    (request,) = result.requests
    yes = Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="x")
    over = asyncio.run(stage.go_on(result, said(reply(), 100, 10), decisions=[yes]))

    assert isinstance(over, Completed)
    assert (over.ledger.used[COST], dict(over.ledger.estimated)) == (10_400, {})


@pytest.mark.parametrize(
    ("effects", "ran", "cost"), [(Effects.ONCE, 1, 10_400), (Effects.REPEATABLE, 2, 20_400)]
)
def test_a_call_that_a_crash_tore_is_paid_for_as_often_as_it_was_started(
    effects: Effects, ran: int, cost: int
) -> None:
    """In doubt it is charged; when it is run once more it costs the same again."""
    for crash_at in range(3, 8):
        store = CrashingRunStore(crash_at=[crash_at])
        stage = rehearse(shelf=priced(effects=effects), store=store)
        stage.prepare([ask("t:a"), said(reply(), 100, 10)])
        with pytest.raises(Crash):
            asyncio.run(stage.start())
        if stage.shelf.ran["t:a"] and len(stage.model.requests) == 1:
            break
    else:
        raise AssertionError("no crash came right after the call")

    stage.prepare([said(reply(), 100, 10)])
    result = asyncio.run(stage.resume(next(iter(store._heads))))

    assert isinstance(result, Completed)
    assert stage.shelf.ran["t:a"] == ran
    assert result.ledger.used[COST] == cost
    assert dict(result.ledger.reserved) == {}


def test_a_call_that_was_never_made_is_free() -> None:
    """Time ended between its admission and its start: a step, but no price."""
    clock = MovableClock()

    async def slow(_context: ExecutionContext) -> Json:
        clock.move(11)
        return "late"

    shelf = ToolShelf().add("t:slow", does=slow).add("t:a", price=Decimal("0.01"))
    stage = rehearse(shelf=shelf, clock=clock, max_duration_seconds=10, max_parallel=1)
    both = said(calls(("a", "t:slow", "{}"), ("b", "t:a", "{}")), 100, 10)
    result = asyncio.run(stage.play(both))

    assert shelf.ran["t:a"] == 0
    assert (result.ledger.used[STEPS], result.ledger.used[COST]) == (2, 200)
    assert dict(result.ledger.reserved) == {}


def test_a_call_that_is_not_what_was_judged_is_free() -> None:
    """It does not run, so it costs nothing."""
    stage = rehearse(shelf=priced())
    runtime = create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
    guarded = stage.run.guard_runtime(runtime)
    (spec,) = stage.shelf.specs

    async def main() -> None:
        stage.run.begin_activity()
        asked = ingest_call(
            ToolCall(id="a", name="t:a", arguments={"x": "1"}), step="t1c1", taken={}
        )
        await guarded.judge.admit(asked, {"t:a": spec}, ExecutionContext())
        assert stage.run.view().reserved[COST] == 10_000
        swapped = ToolCall(id="a", name="t:a", arguments={"x": "2"})
        output = await guarded.execution.run("t1c1", swapped, spec, ExecutionContext())
        assert output.code == CallCode.POLICY_ERROR

    asyncio.run(main())

    assert stage.run.view().cost == 0
    assert stage.shelf.ran == {}


def test_money_that_was_lowered_refuses_what_was_approved() -> None:
    """The call was held under the saved limit; under today's it does not fit, and does not run."""
    gate = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
    stage = rehearse(shelf=priced(), tool_policy=gate)
    result = asyncio.run(stage.play(ask("t:a")))
    (request,) = result.requests
    assert dict(request.reservation) == {STEPS: 1, "tool:t:a": 1, COST: 10_000}
    yes = Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="x")
    poor = attrs.evolve(stage, contract=attrs.evolve(stage.contract, max_cost=Decimal("0.005")))

    over = asyncio.run(poor.go_on(result, decisions=[yes]))

    assert isinstance(over, Suspended)
    assert stop_of(over)["budget"] == COST
    assert stage.shelf.ran == {}


def test_a_run_over_its_money_runs_no_approved_call() -> None:
    """Somebody else spent too much meanwhile; the call costs nothing, and the run is over all the same."""
    gate = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
    store = MemoryRunStore(SECRET)
    stage = rehearse(cost="0.05", tool_policy=gate, store=store)
    result = asyncio.run(stage.play(ask("t:a")))
    (request,) = result.requests
    stage.run.ledger.settle_amounts({}, {COST: 60_000})
    yes = Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="x")

    over = asyncio.run(stage.resume(result.run_id, yes))

    assert isinstance(over, Suspended)
    assert stop_of(over)["budget"] == COST
    assert stage.shelf.ran == {}


def test_a_call_that_was_held_without_a_price_is_priced_when_it_is_approved() -> None:
    """The run is taken up by a host that counts money: the call is charged as any other."""
    gate = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
    stage = rehearse(cost=None, prices=None, shelf=priced(), tool_policy=gate)
    result = asyncio.run(stage.play(ask("t:a")))
    (request,) = result.requests
    yes = Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="x")
    for cost, ran in (("0.005", 0), ("1.00", 1)):
        counting = attrs.evolve(
            stage,
            contract=attrs.evolve(stage.contract, max_cost=Decimal(cost)),
            prices=TABLE,
            shelf=priced(),
        )
        script = [said(reply(), 100, 10)] if ran else []
        over = asyncio.run(counting.go_on(result, *script, decisions=[yes]))

        assert counting.shelf.ran["t:a"] == ran
        assert over.ledger.used.get(COST, 0) == (10_200 if ran else 0)


def test_money_stops_a_batch_before_steps_would_wrap_it_up() -> None:
    """Of two budgets that refused calls the hard one is the reason, so nothing more is asked."""
    shelf = priced("0.05").add("t:b")
    stage = rehearse(cost="0.04", shelf=shelf, per_tool={"t:b": 0})
    both = said(calls(("a", "t:b", "{}"), ("b", "t:a", "{}")), 100, 10)
    result = asyncio.run(stage.play(both))

    assert isinstance(result, Suspended)
    assert stop_of(result)["budget"] == COST


# ── saving and taking up ──────────────────────────────────────────────────────────────────────


def test_a_crash_in_a_turn_keeps_what_was_reserved() -> None:
    """The process died while the model was asked: the next one finds the estimate."""
    kept = MemoryRunStore(SECRET)
    store = MemoryRunStore(SECRET)

    class Photographed(ScriptedModel):
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            kept.put(await store.load(context.run))
            return await super().execute_turn(request, context)

    stage = rehearse(cost="0.0425")
    model = Photographed([said(reply(), 10, 1)], model_name="m")
    guarded = stage.run.guard_runtime(create_agent_runtime(model=model))
    words = TurnInput(messages=[UserMessage(text="go")])
    lived = asyncio.run(
        run_governed_agent_loop(runtime=guarded, execute_turn_input=words, store=store)
    )
    assert lived.ledger.used[COST] == 20

    stage.prepare(())
    result = asyncio.run(stage.resume(lived.run_id, store=kept))

    # What is left is below the floor.
    assert isinstance(result, Suspended)
    assert stop_of(result)["budget"] == COST
    assert result.ledger.estimated[COST] == result.ledger.used[COST] > 40_960


def test_a_store_that_fails_gives_the_money_of_the_turn_back() -> None:
    """The model was not asked: the turn counts, its money does not."""

    class Failing(MemoryRunStore):
        async def commit(self, run_id: str, **named: Any) -> int:
            if orjson.loads(orjson.loads(named["head"])["body"])["ledger"]["reserved"]:
                raise StoreError("full")
            return await super().commit(run_id, **named)

    stage = rehearse(store=Failing(SECRET))
    stage.prepare((reply(),))
    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert dict(result.ledger.reserved) == {}
    assert result.ledger.used.get(COST, 0) == 0


def test_a_saved_limit_of_money_needs_a_table_again() -> None:
    """Without one nothing can be reserved: PRICE_UNKNOWN, and the model is not asked."""
    stage = rehearse(cost="1.00")
    stage.prepare([said(attrs.evolve(reply(), status=TurnStatus.ESCALATE), 100, 10)])
    first = asyncio.run(stage.start())
    assert isinstance(first, Suspended)
    bare = attrs.evolve(stage, contract=TaskContract(), prices=None)

    result = asyncio.run(bare.go_on(first, message="go on"))

    assert isinstance(result, LoopError)
    assert stop_of(result)["code"] == "PRICE_UNKNOWN"
    assert result.ledger.limits.counts[COST] == 1_000_000


def test_the_lower_limit_and_the_higher_count_hold() -> None:
    """A contract with more money does not raise the limit of a saved run."""
    stage = rehearse(cost="0.05")
    first = asyncio.run(
        stage.play(said(attrs.evolve(reply(), status=TurnStatus.ESCALATE), 9_000, 10))
    )
    rich = attrs.evolve(stage, contract=TaskContract(max_cost=Decimal(9)))

    result = asyncio.run(rich.go_on(first, said(reply(), 100, 10), message="go on"))

    assert result.ledger.limits.counts[COST] == 50_000
    assert result.ledger.used[COST] == 9_300


# ── wrap-up ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("cost", "closes"), [("1.00", True), ("0.005", False)])
def test_a_wrap_up_needs_money(cost: str, closes: bool) -> None:
    """Steps ran out; the last answer is asked for only if it can be paid."""
    stage = rehearse(cost=cost, max_steps=0)
    last = [said(reply("short"), 100, 10)] if closes else []
    result = asyncio.run(stage.play(ask("t:a", sent=1_500, got=50), *last))

    assert isinstance(result, Suspended)
    assert stop_of(result)["budget"] == STEPS
    assert result.text == ("short" if closes else "")
    assert WRAP_UP_NOTICE not in [m.text for m in result.messages] or closes


def test_the_notice_of_the_wrap_up_fits_its_room() -> None:
    """It is said after the turn was reserved, so its bytes are reserved by a bound."""
    assert len(WRAP_UP_NOTICE.encode()) + 32 <= CLOSING_ROOM


# ── what is told ──────────────────────────────────────────────────────────────────────────────


def test_the_log_and_the_state_hold_no_float(tmp_path: Path) -> None:
    """Money is micro-units in both; the digest of the table stands at the start and in the head."""
    store = DirectoryRunStore(tmp_path / "runs", seal=SECRET)
    with AuditLog(tmp_path / "log.jsonl") as audit:
        stage = rehearse(cost="0.05", shelf=priced(), audit=audit)
        stage.store = store
        result = asyncio.run(stage.play(ask("t:a"), ask("t:a", sent=60_000)))

    lines = [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]
    assert all(no_floats(line) for line in lines)
    objects = {line["code"]: line["object"] for line in lines}
    assert objects["RUN001O"]["prices_sha256"] == TABLE.sha256
    assert objects["RUN001O"]["limits"]["counts"][COST] == 50_000
    assert objects["RUN002O"]["used"][COST] == result.ledger.used[COST] == 70_300
    assert objects["TRN002O"]["cost"] == 60_100
    assert objects["STP002O"]["cost"] == 10_000
    saved = orjson.loads(orjson.loads(store.read(result.run_id).head)["body"])
    assert saved["prices_sha256"] == TABLE.sha256
    assert no_floats(saved["state"])
    assert no_floats({**saved["ledger"], "limits": saved["ledger"]["limits"]["counts"]})


def test_the_model_is_told_of_money_as_text() -> None:
    """The refused call says which budget, its limit and what is used."""
    result = asyncio.run(rehearse(cost="0.005", shelf=priced()).play(ask("t:a")))

    (told,) = [m for m in result.messages if isinstance(m, ToolMessage)]
    body = orjson.loads(told.text)
    assert (body["budget"], body["limit"], body["used"]) == (COST, "0.005000", "0.000200")


# ── the last moment ───────────────────────────────────────────────────────────────────────────


def test_a_run_ends_at_its_last_moment() -> None:
    """However much time of activity is left; hard, and a resume asks nobody."""
    clock = MovableClock()
    ends = clock.now() + timedelta(seconds=30)

    async def slow(_context: ExecutionContext) -> Json:
        clock.move(31)
        return "late"

    shelf = ToolShelf().add("t:a", does=slow)
    stage = rehearse(cost=None, prices=None, shelf=shelf, clock=clock, expires_at=ends, max_steps=1)
    result = asyncio.run(stage.play(ask("t:a")))

    assert isinstance(result, Suspended)
    told = stop_of(result)
    assert (told["code"], told["budget"]) == ("budget_exhausted", "expires_at")
    assert told["limit"] == ends.timestamp()
    assert instant_text(ends) in str(told["message"])
    assert isinstance(asyncio.run(stage.go_on(result)), Suspended)


def test_a_suspended_run_ends_at_its_last_moment_too() -> None:
    """Waiting is not activity, and the moment passes all the same; a later contract moves nothing."""
    clock = MovableClock()
    gate = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])
    ends = clock.now() + timedelta(seconds=30)
    stage = rehearse(cost=None, prices=None, clock=clock, tool_policy=gate, expires_at=ends)
    result = asyncio.run(stage.play(ask("t:a")))
    (request,) = result.requests

    assert request.expires_at == ends

    clock.move(31)
    longer = attrs.evolve(
        stage, contract=attrs.evolve(stage.contract, expires_at=ends + timedelta(days=1))
    )
    over = asyncio.run(longer.go_on(result))

    assert isinstance(over, Suspended)
    assert stop_of(over)["budget"] == "expires_at"
    assert stage.shelf.ran == {}


def test_a_call_has_no_longer_than_the_run() -> None:
    """Every call gets the lower of its own time and what is left until the last moment."""
    ends = datetime.now().astimezone() + timedelta(seconds=0.2)

    async def forever(_context: ExecutionContext) -> Json:
        await asyncio.Event().wait()
        return None

    shelf = ToolShelf().add("t:a", does=forever)
    stage = rehearse(cost=None, prices=None, shelf=shelf, expires_at=ends)
    result = asyncio.run(stage.play(ask("t:a")))

    assert isinstance(result, Suspended)
    assert stop_of(result)["budget"] == "expires_at"
    assert [s.code for s in result.steps if s.tool == "t:a"] == [CallCode.TIMEOUT]


# ── sub-runs ──────────────────────────────────────────────────────────────────────────────────


def test_b16_a_run_on_a_carved_ledger_has_the_grant_and_not_its_contract() -> None:
    """In both directions: the default of 20 turns neither adds to the grant nor cuts it."""
    parent = Ledger(Limits(counts={TURNS: 300, STEPS: 300, COST: 100_000}, seconds=600))
    for turns in (3, 30):
        grant = Limits(counts={TURNS: turns, STEPS: 60, COST: 50_000}, seconds=60)
        child = carve(parent, grant, now=0)
        assert isinstance(child, ChildLedger)
        run = create_agent_task_run(TaskContract(wrap_up=False), prices=TABLE, ledger=child)
        model = ScriptedModel([other(number) for number in range(turns)], model_name="m")
        shelf = ToolShelf().add("t:a")
        runtime = run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools))
        words = TurnInput(messages=[UserMessage(text="x")], tool_catalog=shelf.specs)

        result = asyncio.run(run_governed_agent_loop(runtime=runtime, execute_turn_input=words))

        model.assert_used_up()
        assert isinstance(result, Suspended)
        assert (stop_of(result)["budget"], stop_of(result)["limit"]) == (TURNS, turns)
        child.close(0)

    assert dict(parent.view(0).used) == {
        TURNS: 33,
        STEPS: 33,
        "tool:t:a": 33,
        COST: 33 * 200,
        TOKENS: 33 * 110,
    }


@pytest.mark.parametrize("runs", [2, 5])
def test_b8_of_runs_that_start_together_one_gets_the_money(runs: int) -> None:
    """0.10 is shared and each run reserves 0.06: one is admitted, and at no instant is more held."""
    parent = Ledger(Limits(counts={COST: 100_000}, seconds=UNLIMITED))
    together = asyncio.Event()
    asked: list[str] = []

    class Waiting:
        model_name = "m"

        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            asked.append(context.run)
            assert_within_budget(parent.view(0))
            await asyncio.sleep(0.01)
            return said(reply(), 100, 10)

    async def one() -> LoopResult | None:
        await together.wait()
        grant = Limits(counts={COST: 60_000, TURNS: 5}, seconds=60)
        child = carve(parent, grant, now=0)
        if not isinstance(child, ChildLedger):
            return None
        run = create_agent_task_run(TaskContract(), prices=TABLE, ledger=child)
        runtime = run.guard_runtime(create_agent_runtime(model=Waiting()))
        words = TurnInput(messages=[UserMessage(text="x")])
        result = await run_governed_agent_loop(runtime=runtime, execute_turn_input=words)
        child.close(0)
        return result

    async def main() -> list[LoopResult | None]:
        tasks = [asyncio.ensure_future(one()) for _ in range(runs)]
        together.set()
        return await asyncio.gather(*tasks)

    results = asyncio.run(main())

    assert [type(result) for result in results if result is not None] == [Completed]
    assert len(asked) == 1
    assert (parent.view(0).used[COST], parent.left(COST)) == (200, 99_800)


# ── what a turn reads at most ─────────────────────────────────────────────────────────────────

texts = st.text(max_size=12)
messages = st.one_of(
    st.builds(SystemMessage, text=texts),
    st.builds(UserMessage, text=texts),
    st.builds(ToolMessage, call_id=texts, name=texts, text=texts, ok=st.booleans()),
    st.builds(
        AssistantMessage,
        text=texts,
        calls=st.lists(
            st.builds(
                ToolCall,
                id=texts,
                name=texts,
                arguments=st.dictionaries(texts, texts, max_size=2) | texts,
            ),
            max_size=2,
        ).map(tuple),
    ),
)


def sized(history: list[Message], sizes: _Sizes | None = None) -> int:
    request = TurnRequest(messages=Transcript(history), tools=())
    return (sizes or _Sizes()).bound(request)


@given(st.lists(messages, max_size=8), st.lists(st.integers(0, 4), max_size=4))
def test_the_sum_that_is_kept_is_that_of_the_whole_history(
    given_messages: list[Message], cuts: list[int]
) -> None:
    """Grown in any pieces, it is what counting anew gives, and never below the bytes of the texts."""
    history: list[Message] = []
    sizes = _Sizes()
    for cut in [*cuts, 8]:
        history += given_messages[len(history) : len(history) + cut]

        assert sized(history, sizes) == sized(history)
        assert sized(history) >= sum(
            len(message.text.encode("utf-8", "surrogatepass")) for message in history
        )


def test_a_history_that_was_rewritten_is_counted_anew() -> None:
    """Shortened in place, replaced, or another one."""
    sizes = _Sizes()
    history: list[Message] = [UserMessage(text="a" * 100), UserMessage(text="b")]
    sized(history, sizes)
    history[:] = [UserMessage(text="c" * 50)]

    assert sized(history, sizes) == sized(history)

    history[:] = [UserMessage(text="d"), UserMessage(text="e" * 7), UserMessage(text="f")]

    assert sized(history, sizes) == sized(history)
    assert sized([UserMessage(text="g")], sizes) == sized([UserMessage(text="g")])


def test_offered_tools_are_read_too() -> None:
    """Their definitions go to the model with every request."""
    shelf = ToolShelf().add("t:a", parameters={"type": "object", "description": "x" * 5_000})
    with_tools = TurnRequest(messages=Transcript([]), tools=shelf.specs)

    assert _Sizes().bound(with_tools) > 5_000 + sized([])


# ── property 2, with a loop around it ─────────────────────────────────────────────────────────


class Watching(ScriptedModel):
    """Keeps the ledger within its limits under watch at every turn and call."""

    def __init__(self, script: Iterable[Turn | Exception]) -> None:
        super().__init__(script, model_name="m")
        self.view: Any = None

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        seen: LedgerView = self.view()
        assert_within_budget(seen)
        assert seen.overdrawn == {}
        limit = request.max_output_tokens
        assert limit is not None
        turn = await super().execute_turn(request, context)
        assert seen.reserved[COST] <= 60_000
        if turn.usage is None:
            return turn
        reads = seen.reserved[TOKENS] - limit
        sent, got = min(turn.usage.input_tokens, reads), min(turn.usage.output_tokens, limit)
        return attrs.evolve(turn, usage=Usage(input_tokens=sent, output_tokens=got))


usages = st.none() | st.builds(
    Usage, input_tokens=st.integers(0, 9_000), output_tokens=st.integers(0, 4_000)
)
turns = st.builds(
    lambda count, usage: attrs.evolve(
        calls(*((f"c{i}", "t:a", orjson.dumps({"x": str(i)}).decode()) for i in range(count))),
        usage=usage,
    ),
    st.integers(1, 4),
    usages,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(turns | st.sampled_from(["transport", "overloaded"]).map(fault), max_size=6),
    st.integers(0, 60_000),
    st.integers(0, 30_000),
    st.integers(0, 9_000),
)
def test_no_run_spends_more_than_its_limits(
    script: list[Turn | Exception], cost: int, tokens: int, price: int
) -> None:
    """Whatever is asked for, reported or lost: at every turn, at every call and at the end."""
    contract = TaskContract(
        max_cost=Decimal(cost).scaleb(-6), max_tokens=tokens, max_steps=8, max_turns=6
    )
    run = create_agent_task_run(contract, prices=TABLE, clock=MovableClock())

    async def watched(_context: ExecutionContext) -> Json:
        await asyncio.sleep(0)
        assert_within_budget(run.view())
        return "ok"

    shelf = ToolShelf().add("t:a", does=watched, price=Decimal(price).scaleb(-6))
    model = Watching([*script, *(said(reply(), 10, 10) for _ in range(9))])
    model.view = run.view
    runtime = run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools))
    words = TurnInput(messages=[UserMessage(text="x")], tool_catalog=shelf.specs)

    result = asyncio.run(run_governed_agent_loop(runtime=runtime, execute_turn_input=words))

    view = result.ledger
    assert_within_budget(view)
    assert (view.overdrawn, dict(view.reserved)) == ({}, dict.fromkeys(view.reserved, 0))
    assert view.used.get(COST, 0) <= cost
    assert view.used.get(TOKENS, 0) <= tokens
    assert view.used.get(COST, 0) == sum(record.cost for record in result.steps)
    assert isinstance(run.meter, Meter)


def test_a_count_that_no_model_reaches_is_no_usage() -> None:
    """A number that a saved run could not hold is a fault of the adapter, not of the run."""
    huge = attrs.evolve(reply(), usage=Usage(input_tokens=10**30, output_tokens=0))

    result = asyncio.run(rehearse(store=MemoryRunStore(SECRET)).play(huge))

    assert isinstance(result, LoopError)
    assert stop_of(result)["code"] == "MODEL_ERROR"
    assert result.ledger.estimated[COST] == result.ledger.used[COST]


def test_a_wish_for_endless_output_is_a_number_that_can_be_kept() -> None:
    """Money without a limit lowers nothing, and the run can still be saved."""
    stage = rehearse(store=MemoryRunStore(SECRET))
    stage = attrs.evolve(stage, contract=TaskContract(max_cost=UNLIMITED))
    stage.prepare((reply(),))
    guarded = stage.run.guard_runtime(create_agent_runtime(model=stage.model))
    words = TurnInput(messages=[UserMessage(text="x")], max_output_tokens=10**9)

    result = asyncio.run(
        run_governed_agent_loop(runtime=guarded, execute_turn_input=words, store=stage.store)
    )

    assert isinstance(result, Completed)
    assert stage.model.output_limits == [10**9]


def test_a_runtime_around_the_model_hands_its_name_on() -> None:
    """The web tools stand between guard and model; the price is looked up all the same."""
    corpus = create_fixture_web_search_provider([])
    base = create_agent_runtime(model=ScriptedModel((), model_name="m"))
    with_web = create_web_tool_runtime(
        base, provider=corpus, allowlist=["docs.example.org"], emitter=ListEmitter()
    )

    assert is_naming(with_web)
    assert with_web.model_name == "m"


# ── calls that are run once more ──────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["pause admitted", "pause running", "torn running"]), max_size=4),
    st.sampled_from(["cancel admitted", "cancel running", "let it run", "other price"]),
    st.sampled_from([Effects.REPEATABLE, Effects.IDEMPOTENT]),
)
def test_each_run_of_a_priced_call_is_charged_once(
    stops: list[str], end: str, effects: Effects
) -> None:
    """However often it is cut, admitted again, and stopped before it is run again."""
    spent, ran = asyncio.run(_charged(["pause running", *stops, end], effects))

    assert spent == Decimal("0.01") * ran


async def _charged(plan: list[str], effects: Effects) -> tuple[Decimal, int]:
    stopping: list[str] = []

    async def when(arguments: Mapping[str, Json]) -> bool:
        if stopping[0] == "pause admitted":
            stage.run.pause("planned", mode="after_step")
        elif stopping[0] == "cancel admitted":
            stage.run.cancel("planned", mode="after_step")
        return False

    async def works(context: ExecutionContext) -> str:
        what = stopping[0]
        if what == "pause running":
            stage.run.pause("planned")
        elif what == "cancel running":
            stage.run.cancel("planned")
        elif what == "torn running":
            drive.cancel()
        else:
            return "done"
        await asyncio.sleep(3600)
        return "never"

    rules = [ToolRule(tool="t:paid", approval_class="deny", when=when)]
    stage = Rehearsal(
        shelf=ToolShelf().add("t:paid", does=works, effects=effects, price=Decimal("0.01")),
        store=MemoryRunStore(),
        prices=PriceTable(models={"m": ModelPrice(input=Decimal(0), output=Decimal(0))}),
        model_name="m",
        contract=TaskContract(max_cost=Decimal(1), tool_policy=ToolPolicy(rules)),
    )
    stage.prepare([calls(("1", "t:paid", "{}")), reply()])
    model, run_id = stage.model, stage.run.id
    result: LoopResult | BaseException | None = None
    for number, what in enumerate(plan):
        stopping[:] = [what]
        if number:
            stage.prepare(())
            stage.model = model
        drive = asyncio.ensure_future(stage.resume(run_id) if number else stage.start())
        (result,) = await asyncio.gather(drive, return_exceptions=True)
    assert isinstance(result, Cancelled | Completed), result
    assert result.ledger.reserved == {}
    return Decimal(result.ledger.used.get("cost", 0)) / 10**6, stage.shelf.ran["t:paid"]
