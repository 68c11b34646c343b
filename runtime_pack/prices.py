"""What model turns and tool calls cost: a table of Decimals with a digest. Pure.

Prices of models are in units of the currency per *million* tokens, as providers print them; prices of
tools are per call. A model that is not in the table has no price, and nothing stands in for it: a
run that counts money stops with PRICE_UNKNOWN. A model that costs nothing has a row of zeros.
Charges are whole millionths of the currency (micro-units), rounded up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import attrs
import orjson

from runtime_pack.errors import ContractError, PriceUnknown
from runtime_pack.inner import frozen
from runtime_pack.ledger_limits import MICRO, parse_price
from runtime_pack.messages import Json, Usage

__all__ = ("ModelPrice", "PriceTable")

# The same model as a provider names it in its answer: the name that was asked for and a date.
_DATED: Final = re.compile(r"[-@](\d{4}-?\d{2}-?\d{2})\Z")
_CURRENCY: Final = re.compile(r"[A-Z]{3}\Z")


def _fine(path: str, value: object) -> Decimal:
    """The price itself, once it is known to be one; see `parse_price` for what is refused."""
    parse_price(path, value)
    if not isinstance(value, Decimal):
        raise ContractError(path, f"{value!r} is not a Decimal")
    return value


@frozen(kw_only=True)
class ModelPrice:
    """What a million tokens of one model cost. Without `cached_input` those cost what input costs.

    Raises:
        ContractError: a price is not a finite Decimal from 0 with at most six decimal places.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    # The same as integers: millionths of a micro-unit for one token.
    _input: int = attrs.field(init=False, repr=False, eq=False)
    _output: int = attrs.field(init=False, repr=False, eq=False)
    _cached: int = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        cached = self.input if self.cached_input is None else self.cached_input
        object.__setattr__(self, "_input", parse_price("price.input", self.input))
        object.__setattr__(self, "_output", parse_price("price.output", self.output))
        object.__setattr__(self, "_cached", parse_price("price.cached_input", cached))

    def cost(self, usage: Usage) -> int:
        """What reported tokens cost, in micro-units, rounded up."""
        fresh = usage.input_tokens - usage.cached_input_tokens
        exact = (
            fresh * self._input
            + usage.cached_input_tokens * self._cached
            + usage.output_tokens * self._output
        )
        return -(-exact // MICRO)

    def bound(self, input_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost, in micro-units: none or all of them cached."""
        dearest = max(self._input, self._cached)
        return -(-(input_tokens * dearest + output_tokens * self._output) // MICRO)

    def output_within(self, micro: int, input_tokens: int) -> int | None:
        """How many output tokens fit beside so much input; None for any number, below 0 for none.

        `bound(input_tokens, n) <= micro` holds for what is returned, and not for one more.
        """
        left = micro * MICRO - input_tokens * max(self._input, self._cached)
        if self._output == 0:
            return None if left >= 0 else -1
        return left // self._output

    def to_json(self) -> dict[str, Json]:
        """The row as it enters the table's digest: equal prices have equal text."""
        cached = self.input if self.cached_input is None else self.cached_input
        return {
            "input": _text(self.input),
            "output": _text(self.output),
            "cached_input": _text(cached),
        }


def _text(price: Decimal) -> str:
    return f"{price:.6f}"


def _models(value: object) -> Mapping[str, ModelPrice]:
    if not isinstance(value, Mapping):
        raise ContractError("prices.models", "is a mapping from model name to ModelPrice")
    for name, price in value.items():
        if not isinstance(name, str) or not name or not isinstance(price, ModelPrice):
            raise ContractError("prices.models", f"{name!r} is not a name with a ModelPrice")
    return dict(value)


def _tools(value: object) -> Mapping[str, Decimal]:
    if not isinstance(value, Mapping):
        raise ContractError("prices.tools", "is a mapping from tool name to the price of one call")
    for name in value:
        if not isinstance(name, str) or not name:
            raise ContractError("prices.tools", f"{name!r} is not a tool's name")
    return {name: _fine(f"prices.tools.{name}", price) for name, price in value.items()}


@frozen(kw_only=True)
class PriceTable:
    """Prices of models by name and of tools by name, all in one currency.

    Attributes:
        models: a row for each name that a run asks for. A name that differs from a row's by a date at
            its end (`gpt-x-2025-01-31`) is that row's model, unless it has a row of its own.
        tools: the price of one call. A tool without one, here and in its `ToolSpec`, costs nothing.
        sha256: digest of the whole table; it stands in the log and in saved runs.

    Raises:
        ContractError: a name or a price is not one.
    """

    models: Mapping[str, ModelPrice] = attrs.field(factory=dict, converter=_models)
    tools: Mapping[str, Decimal] = attrs.field(factory=dict, converter=_tools)
    currency: str = "USD"
    sha256: str = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.currency, str) or not _CURRENCY.match(self.currency):
            raise ContractError("prices.currency", "is three capital letters")
        body = orjson.dumps(self.to_json(), option=orjson.OPT_SORT_KEYS)
        object.__setattr__(self, "sha256", f"sha256:{hashlib.sha256(body).hexdigest()}")

    def model(self, name: str | None) -> ModelPrice:
        """The row of a model.

        Raises:
            PriceUnknown: there is none, or there is no name.
        """
        if name is not None:
            price = self.models.get(name) or self.models.get(_DATED.sub("", name))
            if price is not None:
                return price
        raise PriceUnknown(name)

    def tool(self, name: str) -> int:
        """What one call costs, in micro-units; 0 for a tool that is not in the table."""
        price = self.tools.get(name)
        return 0 if price is None else parse_price(f"prices.tools.{name}", price)

    def to_json(self) -> dict[str, Json]:
        """The table as it is digested and shown."""
        return {
            "currency": self.currency,
            "models": {name: price.to_json() for name, price in self.models.items()},
            "tools": {name: _text(price) for name, price in self.tools.items()},
        }
