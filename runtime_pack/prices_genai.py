"""A price table filled from the package `genai-prices` (extra `prices`), from what it carries: offline.

The package's own updater is never started. Where it knows several prices for the same tokens, the
highest of those that hold is taken: what is reserved must not be less than what is billed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from runtime_pack.errors import ContractError, PriceUnknown
from runtime_pack.ledger_limits import parse_expiry
from runtime_pack.prices import ModelPrice, PriceTable

__all__ = ("price_table_from_genai_prices",)

_PLACES: Final = Decimal("0.000001")


def price_table_from_genai_prices(
    models: Iterable[str],
    *,
    at: datetime,
    provider: str | None = None,
    tools: Mapping[str, Decimal] | None = None,
) -> PriceTable:
    """A table in USD with a row for each of these models, under the names that were given.

    Prices with tiers, or that differ by the time of day, are taken at their highest; what has more
    than six decimal places is rounded up.

    Args:
        models: the names that runs will ask for.
        at: when the prices hold; those that end before and begin after are left out.
        provider: whose prices, as the package spells it (`openai`); found by the name when absent.
        tools: prices of calls, which the package does not know.

    Raises:
        ContractError: the package is not installed, or *at* has no time zone.
        PriceUnknown: the package does not know the model, or not the price of its input and output.
    """
    parse_expiry("at", at)
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as error:
        raise ContractError("prices", "needs the extra `prices` (genai-prices)") from error
    snapshot = get_snapshot()
    rows: dict[str, ModelPrice] = {}
    for name in models:
        try:
            _provider, model = snapshot.find_provider_model(name, None, provider, None)
        except LookupError as error:
            raise PriceUnknown(name) from error
        rows[name] = _row(name, model.prices, at)
    return PriceTable(models=rows, tools=tools or {})


def _row(name: str, prices: Any, at: datetime) -> ModelPrice:
    found = _holding(prices, at)
    fresh, answered = _highest(found, "input_mtok"), _highest(found, "output_mtok")
    if fresh is None or answered is None:
        raise PriceUnknown(name)
    return ModelPrice(input=fresh, output=answered, cached_input=_highest(found, "cache_read_mtok"))


def _holding(prices: Any, at: datetime) -> list[Any]:
    """The price sets that may hold at some hour of that day: the newest that has begun, and hours."""
    if not isinstance(prices, list):
        return [prices]
    found: list[Any] = []
    for row in prices:
        if row.constraint is None:
            found = [row.prices]
        elif not hasattr(row.constraint, "start_date"):
            found.append(row.prices)
        elif row.constraint.active(at):
            found = [row.prices]
    return found


def _highest(prices: Iterable[Any], kind: str) -> Decimal | None:
    found = [price for each in prices for price in _values(getattr(each, kind, None))]
    return max(found).quantize(_PLACES, rounding=ROUND_CEILING) if found else None


def _values(price: Any) -> tuple[Decimal, ...]:
    """A price, or those of its tiers."""
    if price is None:
        return ()
    if isinstance(price, Decimal):
        return (price,)
    return (price.base, *(tier.price for tier in price.tiers))
