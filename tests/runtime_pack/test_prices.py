"""Price tables: exact, digested, without a stand-in for what is not in them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.errors import ContractError, PriceUnknown
from runtime_pack.messages import Usage
from runtime_pack.prices import ModelPrice, PriceTable
from runtime_pack.prices_genai import price_table_from_genai_prices

DAY = datetime(2026, 1, 1, tzinfo=UTC)

prices = st.decimals(min_value=0, max_value=500, places=6)
tokens = st.integers(0, 2_000_000)


def price(
    fresh: str = "2.50", output: str = "10", cached: Decimal | None = Decimal("1.25")
) -> ModelPrice:
    return ModelPrice(input=Decimal(fresh), output=Decimal(output), cached_input=cached)


def test_tokens_cost_what_the_row_says_rounded_up() -> None:
    """One token of 2.50 for a million is 2.5 micro-units: 3 are charged."""
    row = price()

    assert row.cost(Usage(input_tokens=1, output_tokens=0)) == 3
    assert row.cost(Usage(input_tokens=1_000_000, output_tokens=1_000_000)) == 12_500_000
    assert row.cost(Usage(input_tokens=4, output_tokens=0, cached_input_tokens=4)) == 5
    assert (
        price(cached=None).cost(Usage(input_tokens=4, output_tokens=0, cached_input_tokens=4)) == 10
    )


@given(prices, prices, st.none() | prices, tokens, tokens, st.floats(0, 1))
def test_a_charge_is_exact_and_within_its_bound(
    fresh: Decimal, output: Decimal, cached: Decimal | None, sent: int, got: int, share: float
) -> None:
    """Never less than the exact amount, never a whole micro-unit more, never above `bound`."""
    row = ModelPrice(input=fresh, output=output, cached_input=cached)
    old = int(sent * share)
    dear = fresh if cached is None else cached
    exact = (sent - old) * Fraction(fresh) + old * Fraction(dear) + got * Fraction(output)

    charged = row.cost(Usage(input_tokens=sent, output_tokens=got, cached_input_tokens=old))

    assert exact <= charged < exact + 1
    assert charged <= row.bound(sent, got)


@given(prices, prices, st.none() | prices, st.integers(0, 10**9), tokens)
def test_what_fits_is_the_most_that_fits(
    fresh: Decimal, output: Decimal, cached: Decimal | None, micro: int, sent: int
) -> None:
    """`output_within` and `bound` are two sides of one rule."""
    row = ModelPrice(input=fresh, output=output, cached_input=cached)

    most = row.output_within(micro, sent)

    if most is None:
        assert row.bound(sent, 10**12) <= micro
    elif most >= 0:
        assert row.bound(sent, most) <= micro < row.bound(sent, most + 1)
    else:
        assert row.bound(sent, 0) > micro


@pytest.mark.parametrize(
    "wrong", [0.1, 1, True, "1", None, Decimal(-1), Decimal("NaN"), Decimal("0.0000001")]
)
def test_a_price_is_a_decimal(wrong: Any) -> None:
    """Of a model and of a tool: a float is no price."""
    with pytest.raises(ContractError):
        ModelPrice(input=wrong, output=Decimal(1))
    with pytest.raises(ContractError):
        ModelPrice(input=Decimal(1), output=wrong)
    with pytest.raises(ContractError):
        PriceTable(tools={"web:search": wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": {"m": Decimal(1)}},
        {"models": {"": price()}},
        {"models": {1: price()}},
        {"models": [("m", price())]},
        {"tools": {"": Decimal(1)}},
        {"tools": []},
        {"currency": "usd"},
        {"currency": None},
    ],
)
def test_a_table_of_another_form_is_refused(wrong: dict[str, Any]) -> None:
    """At once, not at the first turn."""
    with pytest.raises(ContractError):
        PriceTable(**wrong)


def test_the_digest_is_of_the_prices_and_not_of_how_they_are_written() -> None:
    """Order and trailing zeros do not matter; every price, name and the currency do."""
    one = PriceTable(models={"a": price("2.5"), "b": price()}, tools={"t": Decimal("0.10")})
    same = PriceTable(tools={"t": Decimal("0.1")}, models={"b": price(), "a": price("2.500")})
    others = [
        PriceTable(models={"a": price("2.6"), "b": price()}, tools={"t": Decimal("0.10")}),
        PriceTable(models={"a": price("2.5"), "c": price()}, tools={"t": Decimal("0.10")}),
        PriceTable(models={"a": price("2.5"), "b": price()}, tools={"t": Decimal("0.11")}),
        PriceTable(
            models={"a": price("2.5"), "b": price(cached=None)}, tools={"t": Decimal("0.1")}
        ),
        attrs_of(one, currency="EUR"),
    ]

    assert one.sha256 == same.sha256
    assert one.sha256.startswith("sha256:")
    assert len({one.sha256, *(other.sha256 for other in others)}) == 6


def attrs_of(table: PriceTable, *, currency: str) -> PriceTable:
    return PriceTable(models=table.models, tools=table.tools, currency=currency)


def test_a_table_is_not_changed_by_its_maker() -> None:
    """The digest stays that of the prices that hold."""
    models = {"a": price()}
    table = PriceTable(models=models)
    models["b"] = price()

    with pytest.raises(PriceUnknown):
        table.model("b")


def test_a_model_that_is_not_in_the_table_has_no_price() -> None:
    """A dated name is the same model; a longer or shorter one is another."""
    dear = price("99")
    table = PriceTable(models={"gpt-x": price(), "gpt-x-2025-12-24": dear})

    assert table.model("gpt-x-2025-01-31") == table.model("gpt-x@20250131") == price()
    assert table.model("gpt-x-20250131") == price()
    assert table.model("gpt-x-2025-12-24") == dear
    for name in ("gpt-x-mini", "gpt", "GPT-X", "", "gpt-x-2025-01-31-mini", "x/gpt-x", None):
        with pytest.raises(PriceUnknown) as refused:
            table.model(name)
        assert (refused.value.code, refused.value.model) == ("PRICE_UNKNOWN", name)


def test_a_tool_without_a_price_costs_nothing() -> None:
    """Most tools run on the host's own machine."""
    table = PriceTable(tools={"web:search": Decimal("0.005")})

    assert (table.tool("web:search"), table.tool("web:read")) == (5000, 0)


def test_genai_prices_fills_a_table_offline() -> None:
    """With the names that were given, so that a run finds them."""
    pytest.importorskip("genai_prices")

    table = price_table_from_genai_prices(
        ["gpt-4o", "gpt-4o-2024-08-06"], at=DAY, tools={"web:search": Decimal("0.01")}
    )

    assert table.model("gpt-4o") == price()
    assert set(table.models) == {"gpt-4o", "gpt-4o-2024-08-06"}
    assert table.tool("web:search") == 10_000


def test_genai_prices_with_tiers_are_taken_at_their_highest() -> None:
    """A long prompt is billed at the higher tier, and nobody knows before how long it is."""
    pytest.importorskip("genai_prices")

    row = price_table_from_genai_prices(["gemini-2.5-pro"], at=DAY).model("gemini-2.5-pro")

    assert (row.input, row.output) == (Decimal("2.5"), Decimal(15))


def test_genai_prices_of_an_earlier_day_are_left_out() -> None:
    """A price that was lowered does not stay the highest for ever."""
    pytest.importorskip("genai_prices")

    (before, after) = (
        price_table_from_genai_prices(["o3"], at=day).model("o3")
        for day in (datetime(2025, 6, 1, tzinfo=UTC), DAY)
    )

    assert (before.input, after.input) == (Decimal(10), Decimal(2))


def test_genai_prices_without_a_model_or_a_zone_are_refused() -> None:
    """No table is better than one with a hole."""
    pytest.importorskip("genai_prices")

    with pytest.raises(PriceUnknown):
        price_table_from_genai_prices(["no-such-model-anywhere"], at=DAY)
    with pytest.raises(PriceUnknown):
        # Priced by its input alone.
        price_table_from_genai_prices(["text-embedding-3-small"], at=DAY)
    with pytest.raises(ContractError):
        # Without a zone: that is what is refused.
        price_table_from_genai_prices(["gpt-4o"], at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_missing_package_is_said() -> None:
    """Where the extra is not installed, the error names it."""
    code = (
        "import sys; sys.modules['genai_prices'] = None\n"
        "from datetime import UTC, datetime\n"
        "from runtime_pack.prices_genai import price_table_from_genai_prices as fill\n"
        "try: fill(['gpt-4o'], at=datetime.now(UTC))\n"
        "except ValueError as error: print(error)\n"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "extra `prices`" in said.stdout
