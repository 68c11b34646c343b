"""What a summary takes of a run's tokens and money: reserved before it where its model is known."""

from __future__ import annotations

from collections.abc import Iterable

from runtime_pack.errors import PriceUnknown, StopCode
from runtime_pack.guard.meter import Bid
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.ledger import COST, TOKENS
from runtime_pack.machine import Outcome, OutcomeKind, budget_stop, failure
from runtime_pack.messages import Message, Transcript, Turn, TurnStatus, Usage, turn_fault
from runtime_pack.ports import Summariser, Summary, TurnRequest, is_naming

__all__ = ("SummaryBill",)


class SummaryBill:
    """The account of one summary. `reserve`, then `settle`; `keep` when nothing was reported."""

    def __init__(self, run: TaskRun, summariser: Summariser) -> None:
        self._run = run
        name: object = summariser.model_name if is_naming(summariser) else None
        self._model = name if isinstance(name, str) else None
        self._bid: Bid | None = None
        self.cost = 0
        # What it reported, if that can be.
        self.usage: Usage | None = None

    def reserve(self, messages: Iterable[Message]) -> Outcome | None:
        """Reserve the most that it can take, if its model is named; why it must not be asked, or None."""
        meter = self._run.meter
        if meter is None or self._model is None:
            return None
        request = TurnRequest(messages=Transcript(list(messages)), tools=(), model=self._model)
        try:
            bid = meter.bid(request, self._model, closing=False)
        except PriceUnknown as unknown:
            return _unpriced(unknown)
        if not isinstance(bid, Bid):
            return Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(bid))
        self._bid = bid
        return None

    def keep(self) -> None:
        """Nobody says what it took: what was reserved is charged, as an estimate."""
        if self._bid is not None and self._run.meter is not None:
            self._run.meter.keep(self._bid)
            self.cost = self._bid.cost

    def settle(self, summary: Summary) -> Outcome | None:
        """Charge what it says it took; the end of the run when that has no price."""
        run, meter = self._run, self._run.meter
        turn = Turn(status=TurnStatus.REPLY, usage=summary.usage, model=summary.model)
        if summary.usage is None or turn_fault(turn) is not None:
            self.keep()
            return None
        self.usage = summary.usage
        run.ledger.charge(summary.usage)
        if meter is None:
            return None
        if self._bid is not None:
            unknown = meter.settle(self._bid, turn)
            self.cost = self._bid.cost
            return None if unknown is None else _unpriced(unknown)
        spent = {TOKENS: summary.usage.input_tokens + summary.usage.output_tokens}
        try:
            price = meter.price(summary.model or self._model)
        except PriceUnknown as unknown:
            run.ledger.settle_amounts({}, spent)
            return _unpriced(unknown)
        if price is not None:
            self.cost = spent[COST] = price.cost(summary.usage)
        run.ledger.settle_amounts({}, spent)
        return None


def _unpriced(unknown: PriceUnknown) -> Outcome:
    return failure("model", StopCode.PRICE_UNKNOWN, str(unknown))
