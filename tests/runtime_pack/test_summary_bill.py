"""What summaries cost: in the ledger when it is reported, reserved for when the model is named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from runtime_pack import (
    AuditLog,
    Completed,
    Grant,
    LoopError,
    MemoryRunStore,
    ModelPrice,
    PriceTable,
    StopCode,
    Summary,
    Suspended,
    TaskContract,
    Usage,
)
from runtime_pack.loop import LoopResult
from runtime_pack.messages import Message
from runtime_pack.testing import Rehearsal, ToolShelf, assert_within_budget, calls, reply

PRICES = PriceTable(
    models={
        "m": ModelPrice(input=Decimal(0), output=Decimal(0)),
        "s": ModelPrice(input=Decimal(100), output=Decimal(1000)),
    }
)
TOOK = Usage(input_tokens=1000, output_tokens=100)
# 1,000 in at 100 and 100 out at 1,000 for a million tokens, in millionths.
COST = 200_000


@attrs.define
class Sums:
    """Sums up, and says what it was told to say of that."""

    gives: Any
    asked: int = 0

    async def summarise(self, messages: Sequence[Message]) -> Any:
        self.asked += 1
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


class Named(Sums):
    model_name = "s"


class Unpriced(Sums):
    model_name = "nobody"


class Code(Sums):
    model_name = None


class Brief(Sums):
    max_output_tokens = 100


def stage_of(summariser: Sums, **contract: Any) -> Rehearsal:
    return Rehearsal(
        shelf=ToolShelf().add("t:a", "y" * 3000),
        store=MemoryRunStore(),
        contract=TaskContract(max_context_bytes=4000, **contract),
        summariser=summariser,
        prices=PRICES,
        model_name="m",
    )


def played(stage: Rehearsal, *more: Any) -> LoopResult:
    turns = [calls((str(n), "t:a", f'{{"x":"{n}"}}')) for n in range(2)]
    return asyncio.run(stage.play(*turns, *more))


@pytest.mark.parametrize("made", [Sums, Named])
def test_what_a_summary_took_is_in_the_ledger(made: type[Sums], tmp_path: Path) -> None:
    """Tokens and money, of the model that it says or is named for; the event has them too."""
    stage = stage_of(made(Summary(text="short", usage=TOOK, model="s")))
    stage.audit = AuditLog(tmp_path / "log")

    result = played(stage, reply())

    assert isinstance(result, Completed)
    assert (result.ledger.input_tokens, result.ledger.output_tokens) == (1000, 100)
    assert (result.ledger.used["cost"], result.ledger.estimated.get("cost", 0)) == (COST, 0)
    assert result.ledger.reserved == {}
    stage.audit.close()
    lines = [orjson.loads(line) for line in stage.audit.path.read_bytes().splitlines()]
    (told,) = (line["object"] for line in lines if line.get("code") == "CTX001O")
    assert (told["input_tokens"], told["output_tokens"], told["cost"]) == (1000, 100, COST)


def test_a_named_summariser_that_reports_nothing_is_charged_in_full() -> None:
    """What was reserved stays charged, as an estimate; also when it fails."""
    for gives in ("short", Summary(text="short"), ValueError("no")):
        result = played(
            stage_of(Named(gives)), *(() if isinstance(gives, Exception) else (reply(),))
        )

        assert result.ledger.used["cost"] == result.ledger.estimated["cost"] > COST
        assert result.ledger.reserved == {}


def test_one_that_says_nothing_costs_nothing() -> None:
    """Nobody knows what it took: that is the host's to count."""
    result = played(stage_of(Sums("short")), reply())

    assert (result.ledger.used.get("cost", 0), result.ledger.input_tokens) == (0, 0)


def test_a_summary_that_does_not_fit_is_not_asked_for() -> None:
    """The run stops for its budget, and a grant lets it go on."""
    summariser = Named(Summary(text="short", usage=TOOK))
    stage = stage_of(summariser, max_cost=Decimal("0.1"))
    first = played(stage)

    assert isinstance(first, Suspended)
    assert first.stop is not None
    assert (first.stop.code, summariser.asked) == (StopCode.BUDGET_EXHAUSTED, 0)

    grant = Grant("cost", Decimal(10), "ann", "go on")
    last = asyncio.run(stage.go_on(first, reply(), grants=[grant]))

    assert isinstance(last, Completed)
    assert (summariser.asked, last.ledger.used["cost"]) == (1, COST)
    assert_within_budget(last.ledger)


@pytest.mark.parametrize(
    ("summariser", "asked"),
    [(Unpriced("short"), 0), (Sums(Summary(text="short", usage=TOOK, model="nobody")), 1)],
)
def test_a_summariser_without_a_price_stops_the_run(summariser: Sums, asked: int) -> None:
    """Before it is asked when its name is known, after it when it is not; its tokens count."""
    result = played(stage_of(summariser))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (result.stop.code, summariser.asked) == (StopCode.PRICE_UNKNOWN, asked)
    assert result.ledger.input_tokens == 1000 * asked


@pytest.mark.parametrize("usage", [Usage(input_tokens=-1, output_tokens=1), "much", 5])
def test_a_report_that_cannot_be_is_none(usage: Any) -> None:
    """As for a model: what was reserved is charged."""
    result = played(stage_of(Named(Summary(text="short", usage=usage))), reply())

    assert result.ledger.used["cost"] == result.ledger.estimated["cost"] > 0


def metered(stage: Rehearsal, *, second: int = 1, answers: bool = True) -> LoopResult:
    """Two calls whose turns say what they took, a summary, and maybe an answer that says it too."""
    took = [Usage(input_tokens=1, output_tokens=0), Usage(input_tokens=second, output_tokens=0)]
    turns = [calls((str(n), "t:a", f'{{"x":"{n}"}}'), usage=took[n]) for n in range(2)]
    last = [attrs.evolve(reply(), usage=took[0])] if answers else []
    return asyncio.run(stage.play(*turns, *last))


@pytest.mark.parametrize("made", [Sums, Named, Brief])
def test_no_summary_takes_a_limit_on_tokens_beyond_itself(made: type[Sums]) -> None:
    """Named or not, the most that it can take is reserved: what does not fit is not asked for."""
    summariser = made(Summary(text="short", usage=TOOK, model="s"))
    result = metered(stage_of(summariser, max_tokens=6_300), second=3_000, answers=False)

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.shortfall is not None
    assert (result.stop.code, summariser.asked) == (StopCode.BUDGET_EXHAUSTED, 0)
    assert (result.stop.shortfall.budget, result.ledger.reserved) == ("tokens", {})
    assert_within_budget(result.ledger)


def test_a_summariser_may_say_that_it_writes_little() -> None:
    """Then less is reserved for it, and what it took is charged in the place of that."""
    asked = {}
    for made in (Sums, Brief):
        summariser = made(Summary(text="short", usage=TOOK, model="s"))
        stage = stage_of(summariser, max_tokens=7_000)
        result = metered(stage, answers=made is Brief)
        asked[made] = summariser.asked
        assert_within_budget(result.ledger)

    assert asked == {Sums: 0, Brief: 1}


def test_a_summariser_that_says_nothing_is_charged_what_was_reserved() -> None:
    """Under a limit on tokens nothing that may ask a model is free."""
    result = metered(stage_of(Brief("short"), max_tokens=30_000))

    assert isinstance(result, Completed)
    assert result.ledger.estimated["tokens"] == result.ledger.used["tokens"] - 3 > 3000
    assert result.ledger.reserved == {}


def test_what_an_unnamed_summariser_reports_is_charged_and_no_more() -> None:
    """The reservation is given back for what it says it took."""
    summariser = Brief(Summary(text="short", usage=TOOK, model="s"))
    result = metered(stage_of(summariser, max_tokens=30_000))

    assert isinstance(result, Completed)
    assert (result.ledger.used["tokens"], result.ledger.used["cost"]) == (1103, COST)
    assert (result.ledger.reserved, dict(result.ledger.estimated)) == ({}, {})


def test_a_limit_on_money_asks_no_summariser_without_a_name() -> None:
    """Nobody can say what it will cost."""
    summariser = Sums(Summary(text="short", usage=TOOK, model="s"))
    result = metered(stage_of(summariser, max_cost=Decimal(10)), answers=False)

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (result.stop.code, summariser.asked) == (StopCode.PRICE_UNKNOWN, 0)


def test_a_summariser_that_asks_no_model_is_free() -> None:
    """With `model_name = None` it says so, and no limit is in its way."""
    summariser = Code("short")
    result = metered(stage_of(summariser, max_tokens=30_000, max_cost=Decimal(10)))

    assert isinstance(result, Completed)
    assert (summariser.asked, result.ledger.used["tokens"]) == (1, 3)


def test_tokens_of_a_summary_count_towards_the_budget_of_tokens() -> None:
    """Reported beyond what is left, they are charged in full, and the run stops."""
    summariser = Sums(Summary(text="short", usage=TOOK, model="s"))
    stage = stage_of(summariser, max_tokens=30_000)
    stage.contract = attrs.evolve(stage.contract, max_tokens=11_000)
    result = played(stage)

    assert isinstance(result, Suspended)
    assert result.ledger.used["tokens"] > 1100
    assert_within_budget(result.ledger)
