"""Model turns: reserved first, asked for second, settled whatever came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import attrs

from runtime_pack.catalog import TURN_TOOL, Executed, ToolOutput
from runtime_pack.errors import (
    AuditError,
    CallCode,
    ContractError,
    EmitterError,
    ModelError,
    ModelRequestError,
    PriceUnknown,
    StopCode,
)
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.bounded import StrayCancellation, TimeUp, bounded
from runtime_pack.guard.eager import others
from runtime_pack.guard.execution import Recorder, exhausted
from runtime_pack.guard.lines import turn_finished, turn_started
from runtime_pack.guard.meter import Bid, Meter, may_be_billed
from runtime_pack.guard.retries import Asking, NotAnswered, reported
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.inner import inner
from runtime_pack.ledger import DURATION, TURNS, UNLIMITED, WRAP_UP, Shortfall
from runtime_pack.machine import Outcome, OutcomeKind, budget_stop, failure, refusal
from runtime_pack.messages import FinishReason, Message, Transcript, Turn, turn_fault
from runtime_pack.ports import ExecutionContext, Model, ToolRuntime, TurnRequest
from runtime_pack.records import turn_record

__all__ = ("Reserved", "TurnResult", "Turns")

_TORN: Final = failure("model", StopCode.CANCELLED, "the turn did not end")
# What an adapter may raise that is not a fault of the adapter.
_ITS_OWN: Final = (
    AuditError,
    EmitterError,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    ModelRequestError,
)
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.MALFORMED_CALL, FinishReason.UNKNOWN})


@inner(kw_only=True)
class TurnResult:
    """A model turn as the guard took it: a turn, or why there is none.

    `again` says that the same request may go well later; the turn was given back.
    """

    turn: Turn | None = None
    lost: Outcome | None = None
    soft: bool = False
    cut: bool = False
    again: bool = False


@inner(kw_only=True)
class Reserved:
    """A turn that may be asked for, once: its step and the line of the ledger that it is on.

    `bid` holds its tokens and money, where those are counted.
    """

    step: str
    bucket: str
    bid: Bid | None = None


class Turns:
    """Takes turns through the inner runtime."""

    __slots__ = ("_asked_model", "_inner", "_model", "_run")

    def __init__(self, run: TaskRun, inner: ToolRuntime, model: str | None) -> None:
        self._run = run
        self._inner = inner
        self._model = model
        # The model that the last turn was asked of by name.
        self._asked_model: str | None = None

    def reserve(self, request: TurnRequest, *, closing: bool = False) -> Reserved | TurnResult:
        """A reserved turn, or why there is none. `closing` is the wrap-up, on its own line.

        Of the request, its size and its model are looked at, where tokens or money are counted.
        """
        run, bucket = self._run, WRAP_UP if closing else TURNS
        hard = run.ledger.hard_shortfall(run.clock.monotonic())
        short = hard or run.ledger.reserve(bucket)
        if short is not None:
            return TurnResult(lost=_spent(short), soft=hard is None)
        bid = None if run.meter is None else self._bid(run.meter, request, closing=closing)
        if isinstance(bid, TurnResult):
            run.ledger.release(bucket)
            return bid
        run.turn += 1
        return Reserved(step=f"t{run.turn}", bucket=bucket, bid=bid)

    def _bid(self, meter: Meter, request: TurnRequest, *, closing: bool) -> Bid | TurnResult:
        try:
            bid = meter.bid(request, request.model or self._model, closing=closing)
        except PriceUnknown as unknown:
            return TurnResult(lost=failure("model", StopCode.PRICE_UNKNOWN, str(unknown)))
        return bid if isinstance(bid, Bid) else TurnResult(lost=_spent(bid))

    async def aside(
        self,
        step: str,
        messages: Sequence[Message],
        *,
        max_output_tokens: int,
        by: Model | None = None,
        model: str | None = None,
    ) -> Turn | ToolOutput:
        """Ask the model something beside the history, without tools; once, and it is no turn.

        With `by` another model is asked, under the same budgets, and paid for by the name `model`.

        Raises:
            TimeUp: the run's time ended, or `cancel` and `pause` did.
            ContractError: another model is named by nothing.
        """
        if by is not None and not model:
            # Without a name it would be paid for as the run's own.
            raise ContractError("model", "another model than the run's is asked by its name")
        run = self._run
        request = TurnRequest(
            messages=Transcript(list(messages)),
            tools=(),
            model=self._asked_model if by is None else model,
            max_output_tokens=max_output_tokens,
        )
        bid = None if run.meter is None else self._bid(run.meter, request, closing=False)
        if isinstance(bid, TurnResult):
            return _unasked(bid.lost)
        inside = ExecutionContext(
            run=run.id,
            task=run.task,
            step=step,
            turn=run.turn,
            label=run.label,
            burned=run.flow.burned,
            record=Recorder(run, step),
            request=_within(request, bid),
        )
        turn: Turn | None = None
        lost: Outcome | None = None
        run.ledger.attempts += 1
        try:
            turn = await bounded(run, None, self._ask(inside) if by is None else _asked(by, inside))
        except ModelRequestError as error:
            usage = reported(error)
            if usage is not None:
                run.ledger.charge(usage)
            if bid is not None:
                self._charge_failed(bid, error, heard=False)
            lost = failure("model", StopCode.MODEL_ERROR, str(error.fault))
        except (ModelError, StrayCancellation):
            lost = failure("model", StopCode.MODEL_ERROR, "the model's adapter failed")
        finally:
            if bid is not None:
                lost = self._settle(bid, turn) or lost
        if turn is None or lost is not None:
            return _unasked(lost)
        run.ledger.charge(turn.usage)
        return turn

    def give_up(self, reserved: Reserved) -> None:
        """The turn will not be asked for; it counts as used, as every turn that was begun does."""
        self._run.ledger.settle(reserved.bucket)
        self._give_back(reserved.bid)

    def _give_back(self, bid: Bid | None) -> None:
        if bid is not None and self._run.meter is not None:
            self._run.meter.give_back(bid)

    async def ask(
        self, reserved: Reserved, request: TurnRequest, context: ExecutionContext
    ) -> TurnResult:
        """Take a reserved turn, settle and record it. An interrupted run gets it back.

        Raises:
            AuditError: the log could not take a record; the model was not asked.
            EmitterError: the host's emitter raised.
        """
        run, step = self._run, reserved.step
        leave = run.ledger.settle
        try:
            # A run that waits for nothing lets others have their turn here: also who stops it.
            await others()
            if (run.interrupt is not None or run.kill_switch is not None) and run.is_interrupted():
                leave = run.ledger.release
                return TurnResult(lost=run.interrupt)
            if run.audit is not None:
                asked = len(request.messages), len(request.tools)
                turn_started(run, run.audit, step, *asked)
                run.audit.flush()
            result = await self._taken(reserved, request, context)
            if result.again:
                # A turn is a response that came; what failed is counted as attempts.
                leave = run.ledger.release
            return result
        finally:
            leave(reserved.bucket)
            if reserved.bid is not None:
                # Open until here only if the model was never asked.
                self._give_back(reserved.bid)

    async def _taken(
        self, reserved: Reserved, request: TurnRequest, context: ExecutionContext
    ) -> TurnResult:
        step, bid = reserved.step, reserved.bid
        run, begun = self._run, self._run.clock.monotonic()
        run.asked_under, self._asked_model = run.label, request.model
        turn: Turn | None = None
        lost: Outcome | None = _TORN
        again = False
        tell = context.on_delta
        if run.observer is not None:
            tell = run.observer.hear(step, tell)
        asking = Asking(run, step, tell)
        asked = request if bid is None else _within(request, bid)
        try:
            inside = self._context(step, asked, context, asking)
            turn, lost = await self._answer(asking, inside, bid), None
        except TimeUp:
            lost = (run.interrupt if run.interrupt_now else None) or self._out_of_time()
        except NotAnswered as failed:
            lost, again = failed.outcome, failed.again
        except StrayCancellation:
            lost = failure("model", StopCode.MODEL_ERROR, "the model's adapter cancelled itself")
        except ModelError as error:
            lost = failure("model", StopCode.MODEL_ERROR, str(error), error.__cause__ or error)
        finally:
            if bid is not None:
                lost = self._settle(bid, turn) or lost
            self._record(step, turn, lost, begun, asking, bid)
        if turn is None:
            return TurnResult(lost=lost, again=again)
        run.ledger.charge(turn.usage)
        if lost is not None:
            return TurnResult(lost=lost)
        # What was reserved may have become less with a request that failed.
        asked = request if bid is None else _within(request, bid)
        return TurnResult(turn=turn, cut=_is_cut(turn, asked))

    def _settle(self, bid: Bid, turn: Turn | None) -> Outcome | None:
        """Charge the turn; the end of the run when the model that answered has no price."""
        meter = self._run.meter
        if meter is None:
            return None
        if turn is None:
            meter.keep(bid)
            return None
        unknown = meter.settle(bid, turn)
        if unknown is None:
            return None
        return failure("model", StopCode.PRICE_UNKNOWN, str(unknown))

    async def _answer(self, asking: Asking, context: ExecutionContext, bid: Bid | None) -> Turn:
        """The turn, in as many requests as it takes; each is charged.

        Raises:
            NotAnswered: none of them was answered.
            TimeUp: the run's time ended, or `cancel` and `pause` did.
        """
        while True:
            asking.begin()
            try:
                # No limit of its own: the run's alarm ends it when the run's time is used up.
                return await bounded(self._run, None, self._ask(context))
            except ModelRequestError as error:
                if bid is not None:
                    self._charge_failed(bid, error, heard=asking.heard)
                seconds = asking.fail(error)
            await asking.wait(seconds)
            if bid is not None:
                context = attrs.evolve(context, request=self._bid_again(bid, context))

    def _charge_failed(self, bid: Bid, error: ModelRequestError, *, heard: bool) -> None:
        if self._run.meter is not None:
            billed = may_be_billed(error, heard=heard)
            self._run.meter.fail(bid, reported(error), billed=billed)

    def _bid_again(self, bid: Bid, context: ExecutionContext) -> TurnRequest | None:
        """The request of the next attempt: its output may be shorter, since the last one was charged.

        Raises:
            NotAnswered: the budget does not allow another one.
        """
        meter, request = self._run.meter, context.request
        if meter is None or request is None:
            return request
        short = meter.again(bid)
        if short is not None:
            raise NotAnswered(_spent(short), again=True)
        return _within(request, bid)

    def _context(
        self, step: str, request: TurnRequest, base: ExecutionContext, asking: Asking
    ) -> ExecutionContext:
        run = self._run
        return ExecutionContext(
            run=run.id,
            task=run.task,
            session=base.session,
            agent=base.agent,
            step=step,
            turn=run.turn,
            label=run.label,
            burned=run.flow.burned,
            record=Recorder(run, step),
            request=request,
            on_delta=asking.on_delta,
        )

    async def _ask(self, context: ExecutionContext) -> Turn:
        try:
            output = await self._inner.execute_tool(TURN_TOOL, {}, context)
        except _ITS_OWN:
            raise
        # The host's code: an adapter that raises loses the turn, and the run says why.
        except BaseException as error:
            raise _failed_adapter(error, self._run.id) from error
        return _whole_turn(output.turn if isinstance(output, ToolOutput) else None)

    def _out_of_time(self) -> Outcome:
        run = self._run
        now = run.clock.monotonic()
        limit = run.ledger.limits.seconds
        short = run.ledger.time_shortfall(now) or Shortfall(
            budget=DURATION,
            limit=0 if limit == UNLIMITED else limit,
            used=run.ledger.active_seconds(now),
            reserved=0,
        )
        return _spent(short)

    def _record(
        self,
        step: str,
        turn: Turn | None,
        lost: Outcome | None,
        begun: float,
        asking: Asking,
        bid: Bid | None,
    ) -> None:
        run = self._run
        elapsed = round((run.clock.monotonic() - begun) * 1_000_000)
        code = None if lost is None or lost.stop is None else str(lost.stop.code)
        record = turn_record(step, turn, code, run.label, elapsed)
        if asking.failed is not None:
            asking.charge(record)
        if bid is not None:
            record.cost, record.estimated = bid.cost, bid.estimated
        came = turn if lost is None else None
        record.ok = came is not None
        run.steps.append(record)
        if run.audit is not None:
            turn_finished(run, run.audit, record, came)
        if run.observer is not None:
            run.observer.turn_ended(step, asking.attempt, came, lost)


async def _asked(model: Model, context: ExecutionContext) -> Turn:
    """The turn of another model than the run's, held to the same."""
    request = context.request
    if request is None:
        raise ModelError("there is nothing to ask")
    try:
        return _whole_turn(await model.execute_turn(request, context))
    except (*_ITS_OWN, ModelError):
        raise
    # The host's code, as above.
    except BaseException as error:
        raise _failed_adapter(error, context.run) from error


def _failed_adapter(error: BaseException, run: str) -> ModelError:
    """Only the type: the text of a foreign error can hold a key, and this one is stored."""
    log_fault("the model's adapter", error, run=run)
    return ModelError(f"the model's adapter failed ({type(error).__name__})")


def _whole_turn(turn: object) -> Turn:
    if not isinstance(turn, Turn):
        raise ModelError("the runtime's agent:execute-turn did not return a turn")
    fault = turn_fault(turn)
    if fault is not None:
        raise ModelError(f"the model's adapter answered badly: {fault}")
    return turn


def _unasked(lost: Outcome | None) -> ToolOutput:
    """What a tool gives back that could not ask: the budget, or that the model did not answer."""
    stop = None if lost is None else lost.stop
    if stop is not None and stop.shortfall is not None:
        return exhausted(stop.shortfall)
    text = "The model could not be asked."
    return refusal(CallCode.TOOL_ERROR, text, executed=Executed.YES, retryable=True)


def _spent(short: Shortfall) -> Outcome:
    return Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(short))


def _within(request: TurnRequest, bid: Bid | None) -> TurnRequest:
    """The request with no more output than was reserved."""
    if bid is None or request.max_output_tokens == bid.most:
        return request
    return attrs.evolve(request, max_output_tokens=bid.most)


def _is_cut(turn: Turn, request: TurnRequest) -> bool:
    if turn.finish in _CUT:
        return True
    limit = request.max_output_tokens
    return limit is not None and turn.usage is not None and turn.usage.output_tokens >= limit
