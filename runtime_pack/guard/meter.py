"""Tokens and money of a run: bid for before a turn, settled after it, whatever came of it.

Only a run that counts tokens or money has a meter. What a turn will read is bounded by its bytes: a
token stands for at least one byte, so no tokenizer is needed and none can be wrong. The sum is kept
from turn to turn, and only what is new in the history is looked at.
"""

from __future__ import annotations

from typing import Final

import attrs
import orjson

from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ModelFault, ModelRequestError, PriceUnknown
from runtime_pack.inner import changing
from runtime_pack.ledger import COST, TOKENS, UNLIMITED, Ledger, Shortfall
from runtime_pack.ledger_limits import parse_price
from runtime_pack.messages import AssistantMessage, Message, ToolMessage, Transcript, Turn, Usage
from runtime_pack.ports import TurnRequest
from runtime_pack.prices import ModelPrice, PriceTable
from runtime_pack.tool_aliases import names_of

__all__ = (
    "CLOSING_ROOM",
    "DEFAULT_OUTPUT",
    "FLOOR",
    "Bid",
    "Meter",
    "may_be_billed",
    "reads_at_most",
)

DEFAULT_OUTPUT: Final = 4096
"""Output tokens that a turn may take when nobody said how many: most models can give so many."""

FLOOR: Final = 256
"""Fewer output tokens than this are not worth asking for; unless the host itself asks for fewer."""

# Above any model; what is reserved has to be a number that a saved run can hold.
_MOST_OUTPUT: Final = 10**9

CLOSING_ROOM: Final = 512
"""Bytes for the notice of the wrap-up, which is said after the turn was reserved."""

# What providers put around texts: roles and separators, names of fields, the preamble about tools.
_REQUEST_OVERHEAD: Final = 64
_MESSAGE_OVERHEAD: Final = 32
_TOOLS_OVERHEAD: Final = 640
_TOOL_OVERHEAD: Final = 32

# The provider said no before the model read anything.
_UNREAD: Final = frozenset(
    {
        ModelFault.RATE_LIMITED,
        ModelFault.OVERLOADED,
        ModelFault.SERVER,
        ModelFault.CONFLICT,
        ModelFault.CONTEXT_OVERFLOW,
        ModelFault.INVALID_REQUEST,
        ModelFault.AUTH,
    }
)


def may_be_billed(error: ModelRequestError, *, heard: bool) -> bool:
    """Whether a request that failed without a report of its tokens may cost something all the same."""
    # Under a status of success the response had begun: it broke off, and what it took was taken.
    begun = type(error.status) is int and error.status < 300
    return heard or begun or error.surfaced is True or error.fault not in _UNREAD


@changing(kw_only=True)
class Bid:
    """What one turn has reserved, and what it was charged.

    Attributes:
        most: the output tokens that were reserved: the request must not ask for more.
        amounts: what stands reserved while `open`.
        cost: what was charged so far, in micro-units; `estimated` when a part was never reported.
    """

    model: str | None
    price: ModelPrice | None
    reads: int
    wanted: int
    most: int = 0
    amounts: dict[str, int] = attrs.field(factory=dict)
    open: bool = False
    cost: int = 0
    estimated: bool = False


class Meter:
    """Bids and settles for one run.

    `counts_money` holds when there is a price table, or a limit on money that a saved run brought.
    """

    __slots__ = ("_ledger", "_prices", "_sizes", "counts_money")

    def __init__(self, ledger: Ledger, prices: PriceTable | None, *, counts_money: bool) -> None:
        self._ledger = ledger
        self._prices = prices
        self._sizes = _Sizes()
        self.counts_money = counts_money

    def price(self, model: str | None) -> ModelPrice | None:
        """The price of a model; None where money is not counted.

        Raises:
            PriceUnknown: it is counted, and the model has no price.
        """
        if not self.counts_money:
            return None
        if self._prices is None:
            raise PriceUnknown(model)
        return self._prices.model(model)

    def call_cost(self, spec: ToolSpec) -> int:
        """What one call of a tool costs: the higher of the table's price and the tool's own."""
        if not self.counts_money:
            return 0
        own = 0 if spec.price is None else parse_price("price", spec.price)
        table = self._prices
        return own if table is None else max(own, *map(table.tool, names_of(spec.name)))

    def bid(self, request: TurnRequest, model: str | None, *, closing: bool) -> Bid | Shortfall:
        """Reserve for a turn, with as much output as fits; or the budget that does not allow it.

        Raises:
            PriceUnknown: money is counted, and the model has no price or no name.
        """
        wanted = request.max_output_tokens
        bid = Bid(
            model=model,
            price=self.price(model),
            reads=self._sizes.bound(request) + (CLOSING_ROOM if closing else 0),
            wanted=DEFAULT_OUTPUT if wanted is None else min(max(1, wanted), _MOST_OUTPUT),
        )
        return self.again(bid) or bid

    def again(self, bid: Bid) -> Shortfall | None:
        """Reserve for another request of the same turn; or the budget that does not allow it."""
        most, floor = bid.wanted, min(FLOOR, bid.wanted)
        for bucket, fits in ((TOKENS, self._tokens_left(bid)), (COST, self._money_left(bid))):
            if fits is not None:
                most = min(most, fits)
            if most < floor:
                most = bid.reads + bid.wanted
                if bucket == COST and bid.price is not None:
                    most = bid.price.bound(bid.reads, bid.wanted)
                return self._ledger.shortfall(bucket, most, "turn")
        amounts = {TOKENS: bid.reads + most}
        if bid.price is not None:
            amounts[COST] = bid.price.bound(bid.reads, most)
        short = self._ledger.reserve_amounts(amounts)
        if short is None:
            bid.most, bid.amounts, bid.open = most, amounts, True
        return short

    def _tokens_left(self, bid: Bid) -> int | None:
        left = self._ledger.left(TOKENS)
        return None if left == UNLIMITED else left - bid.reads

    def _money_left(self, bid: Bid) -> int | None:
        left = self._ledger.left(COST)
        if left == UNLIMITED or bid.price is None:
            return None
        return bid.price.output_within(left, bid.reads)

    def give_back(self, bid: Bid) -> None:
        """The model was not asked, or the provider said no before it read anything."""
        if bid.open:
            bid.open = False
            self._ledger.release_amounts(bid.amounts)

    def keep(self, bid: Bid) -> None:
        """Nobody reports what became of the request: it is charged in full, as an estimate."""
        if bid.open:
            bid.open, bid.estimated = False, True
            bid.cost += bid.amounts.get(COST, 0)
            self._ledger.settle_amounts(bid.amounts)

    def fail(self, bid: Bid, usage: Usage | None, *, billed: bool) -> None:
        """Settle a request that failed."""
        if usage is not None:
            self._charge(bid, usage, bid.price)
        elif billed:
            self.keep(bid)
        else:
            self.give_back(bid)

    def settle(self, bid: Bid, turn: Turn) -> PriceUnknown | None:
        """Settle a turn that came; says so when the model that answered has no price.

        That turn is charged what the model that was asked for costs, or what was reserved where that
        is more, and the charge is an estimate.
        """
        usage = turn.usage
        try:
            price = self._answering(bid, turn.model)
        except PriceUnknown as unknown:
            self._guess(bid, usage)
            return unknown
        if usage is None:
            self.keep(bid)
        else:
            self._charge(bid, usage, price)
        return None

    def _answering(self, bid: Bid, model: str | None) -> ModelPrice | None:
        return bid.price if model is None or model == bid.model else self.price(model)

    def _charge(self, bid: Bid, usage: Usage, price: ModelPrice | None) -> None:
        if not bid.open:
            return
        spent = {TOKENS: usage.input_tokens + usage.output_tokens}
        if price is not None:
            spent[COST] = price.cost(usage)
            bid.cost += spent[COST]
        bid.open = False
        self._ledger.settle_amounts(bid.amounts, spent)

    def _guess(self, bid: Bid, usage: Usage | None) -> None:
        if usage is None or bid.price is None:
            self.keep(bid)
            return
        spent = {
            TOKENS: usage.input_tokens + usage.output_tokens,
            COST: max(bid.amounts[COST], bid.price.cost(usage)),
        }
        bid.open, bid.estimated = False, True
        bid.cost += spent[COST]
        self._ledger.settle_amounts(bid.amounts, spent)
        self._ledger.guess({COST: spent[COST]})


def reads_at_most(request: TurnRequest) -> int:
    """Tokens that a request which is no part of the run's own history can be at most."""
    return _Sizes().bound(request)


class _Sizes:
    """Upper bounds on what requests of one history make a model read."""

    __slots__ = ("_last", "_seen", "_sum", "_tools", "_tools_bound")

    def __init__(self) -> None:
        self._seen: Transcript | None = None
        self._last: Message | None = None
        self._sum = 0
        self._tools: tuple[ToolSpec, ...] = ()
        self._tools_bound = 0

    def bound(self, request: TurnRequest) -> int:
        """Tokens that the request can be at most."""
        if request.tools is not self._tools:
            self._tools, self._tools_bound = request.tools, _tools_bytes(request.tools)
        return _REQUEST_OVERHEAD + self._history(request.messages) + self._tools_bound

    def _history(self, messages: Transcript) -> int:
        known, start = self._seen, 0
        # A history that was rewritten is counted anew; one that grew, only where it is new.
        if known is not None and messages.goes_on_from(known):
            start = len(known)
        if start and messages[start - 1] is not self._last:
            start = 0
        if not start:
            self._sum = 0
        if start < len(messages):
            self._sum += sum(map(_message_bytes, messages[start:]))
            self._last = messages[-1]
        self._seen = messages
        return self._sum


def _tools_bytes(tools: tuple[ToolSpec, ...]) -> int:
    if not tools:
        return 0
    shown = ([tool.name, tool.description, tool.parameters] for tool in tools)
    return _TOOLS_OVERHEAD + sum(len(orjson.dumps(tool)) + _TOOL_OVERHEAD for tool in shown)


def _message_bytes(message: Message) -> int:
    size = _bytes(message.text) + _MESSAGE_OVERHEAD
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            given = call.arguments
            size += _bytes(given) if isinstance(given, str) else len(orjson.dumps(given))
            size += _bytes(call.id) + _bytes(call.name) + _MESSAGE_OVERHEAD
        for kept in message.kept:
            size += len(orjson.dumps(kept.item)) + _MESSAGE_OVERHEAD
    elif isinstance(message, ToolMessage):
        size += _bytes(message.call_id) + _bytes(message.name)
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
