"""What a summary takes of a run's tokens and money: reserved before it is asked for, as of a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from runtime_pack.errors import PriceUnknown, StopCode
from runtime_pack.guard.meter import DEFAULT_OUTPUT, Bid, reads_at_most
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.ledger import COST, TOKENS, UNLIMITED
from runtime_pack.machine import Outcome, OutcomeKind, budget_stop, failure
from runtime_pack.messages import Message, Transcript, Turn, TurnStatus, Usage, turn_fault
from runtime_pack.ports import Summariser, Summary, TurnRequest, is_naming

__all__ = ("SummaryBill",)

_UNSAID: Final = object()


class SummaryBill:
    """The account of one summary. `reserve`, then `settle`; `keep` when nothing was reported."""

    def __init__(self, run: TaskRun, summariser: Summariser) -> None:
        self._run = run
        name: object = summariser.model_name if is_naming(summariser) else None
        self._model = name if isinstance(name, str) else None
        # Code that asks no model says so; one that says nothing may ask any.
        self._asks = getattr(summariser, "model_name", _UNSAID) is not None
        most: object = getattr(summariser, "max_output_tokens", None)
        self._most = most if type(most) is int and most > 0 else DEFAULT_OUTPUT
        self._bid: Bid | None = None
        self.cost = 0
        # What it reported, if that can be.
        self.usage: Usage | None = None

    def reserve(self, messages: Iterable[Message]) -> Outcome | None:
        """Reserve the most that it can take; why it must not be asked, or None.

        It is not told how much it may write, so that what it says it writes at most has to fit.
        """
        meter = self._run.meter
        if meter is None or not (self._model or self._is_held()):
            return None
        request = TurnRequest(messages=Transcript(list(messages)), tools=(), model=self._model)
        try:
            price = meter.price(self._model) if self._model or self._is_held(COST) else None
        except PriceUnknown as unknown:
            return _unpriced(unknown)
        reads, most = reads_at_most(request), self._most
        amounts = {TOKENS: reads + most}
        if price is not None:
            amounts[COST] = price.bound(reads, most)
        short = self._run.ledger.reserve_amounts(amounts)
        if short is not None:
            return Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(short))
        self._bid = Bid(
            model=self._model,
            price=price,
            reads=reads,
            wanted=most,
            most=most,
            amounts=amounts,
            open=True,
        )
        return None

    def _is_held(self, *buckets: str) -> bool:
        """Whether a limit holds what it may take, and it may take some."""
        ledger = self._run.ledger
        return self._asks and any(
            ledger.limit(bucket) != UNLIMITED for bucket in buckets or (COST, TOKENS)
        )

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
        if self._bid is not None and self._model is not None:
            unknown = meter.settle(self._bid, turn)
            self.cost = self._bid.cost
            return None if unknown is None else _unpriced(unknown)
        held, spent = (
            self._close(),
            {TOKENS: summary.usage.input_tokens + summary.usage.output_tokens},
        )
        try:
            price = meter.price(summary.model)
        except PriceUnknown as unknown:
            run.ledger.settle_amounts(held, spent)
            return _unpriced(unknown)
        if price is not None:
            self.cost = spent[COST] = price.cost(summary.usage)
        run.ledger.settle_amounts(held, spent)
        return None

    def _close(self) -> dict[str, int]:
        """What stands reserved for one whose model nobody named: to be settled now."""
        if self._bid is None or not self._bid.open:
            return {}
        self._bid.open = False
        return self._bid.amounts


def _unpriced(unknown: PriceUnknown) -> Outcome:
    return failure("model", StopCode.PRICE_UNKNOWN, str(unknown))
