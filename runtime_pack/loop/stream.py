"""The loop as a stream of typed events: a view of the one driver, never a second loop.

The driver runs in a task of its own and tells a `Feed` what happens; the reader takes it from there.

- The run gets at most `buffer` events ahead of its reader, and the events of the step in hand. Then
  it waits before its next step. Nothing is in flight while it waits, and no time is charged. Pieces
  of text that come while the reader is behind are joined to one event; none is lost.
- A reader that leaves (`aclose`, `break`, an exception, a cancelled task) pauses the run: what is
  in flight is stopped, the end is recorded as `suspended` with `paused`, and with a store the
  run can be taken up. Nothing is left running.
- A turn may be asked for more than once. Its pieces carry the attempt, and `TurnLost` takes them back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeAlias

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.catalog import Executed, ToolOutput
from runtime_pack.errors import ContractError
from runtime_pack.events import Event
from runtime_pack.guard import AgentTaskRun
from runtime_pack.inner import frozen
from runtime_pack.labels import Label
from runtime_pack.ledger import DURATION, UNLIMITED, WRAP_UP, LedgerView
from runtime_pack.loop.entry import BUFFER, WARN_AT, Entry
from runtime_pack.loop.results import LoopResult
from runtime_pack.machine import Outcome
from runtime_pack.messages import ToolCall, Turn, TurnStatus, Usage, clean_text
from runtime_pack.records import StepRecord

__all__ = (
    "BUFFER",
    "WARN_AT",
    "ApprovalRequested",
    "BudgetWarning",
    "CallAdmitted",
    "CallFinished",
    "CallRefused",
    "CallStarted",
    "Finished",
    "LoopEvent",
    "TextDelta",
    "TurnFinished",
    "TurnLost",
    "TurnStarted",
    "ViolationReported",
    "check_stream",
    "stream_entry",
)

_LEFT: Final = "whoever read the stream has left"


@frozen(kw_only=True)
class TurnStarted:
    """The model is about to be asked. A turn that is asked for again has the next `attempt`."""

    step: str
    attempt: int


@frozen(kw_only=True)
class TextDelta:
    """A piece of the text of a turn that is not finished: `TurnLost` may take it back.

    `label` is that of everything the model had seen: its text is no better.
    """

    step: str
    attempt: int
    text: str
    label: Label


@frozen(kw_only=True)
class TurnFinished:
    """The model answered; `text` is the whole text, whatever pieces came before."""

    step: str
    attempt: int
    status: TurnStatus
    text: str
    calls: int
    usage: Usage | None
    label: Label


@frozen(kw_only=True)
class TurnLost:
    """The attempt gave no turn: what `TextDelta` said of it does not hold."""

    step: str
    attempt: int
    code: str
    message: str


@frozen(kw_only=True)
class CallAdmitted:
    """A call may run. Its arguments were written by the model, under `label`."""

    step: str
    call: ToolCall
    label: Label


@frozen(kw_only=True)
class CallStarted:
    """The tool is about to be called, and the log says so."""

    step: str
    tool: str
    call_id: str
    attempt: int


@frozen(kw_only=True)
class CallFinished:
    """An admitted call ended or was stopped. `text` is what the model will see, under `label`.

    One that never began (its time was over) has no `CallStarted` before it.
    """

    step: str
    tool: str
    call_id: str
    attempt: int
    ok: bool
    code: str | None
    executed: Executed
    text: str
    label: Label
    elapsed_us: int


@frozen(kw_only=True)
class CallRefused:
    """A call does not run. `tool` is what the model wrote, under `label`; `text` is what it is told."""

    step: str
    tool: str
    call_id: str
    code: str
    text: str
    label: Label


@frozen(kw_only=True)
class ApprovalRequested:
    """A call waits for a person."""

    request: ApprovalRequest


@frozen(kw_only=True)
class BudgetWarning:
    """So much of a budget is used or reserved that it is told; once for each budget of a stream.

    The names are those of the ledger: `cost` is in micro-units of money, `duration_seconds` in seconds.
    """

    budget: str
    limit: float
    taken: float


@frozen(kw_only=True)
class ViolationReported:
    """The policy stopped something; the event is the one of the log."""

    event: Event


@frozen(kw_only=True)
class Finished:
    """The last event of every stream: how the drive ended."""

    result: LoopResult


LoopEvent: TypeAlias = (
    TurnStarted
    | TextDelta
    | TurnFinished
    | TurnLost
    | CallAdmitted
    | CallStarted
    | CallFinished
    | CallRefused
    | ApprovalRequested
    | BudgetWarning
    | ViolationReported
    | Finished
)
"""What a stream gives: match on the class."""


class Feed:
    """An observer that keeps what it is told until it is read."""

    def __init__(self, run: AgentTaskRun, buffer: int, warn_at: float) -> None:
        self._run = run
        self._buffer = buffer
        self._warn_at = warn_at
        self._warned: set[str] = set()
        self._waiting: deque[LoopEvent] = deque()
        self._arrived = asyncio.Event()
        self._read = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open: tuple[str, int] | None = None

    # ── the driver's side ─────────────────────────────────────────────────────────────────────

    def is_full(self) -> bool:
        """Whether the run should wait before its next step."""
        return len(self._waiting) >= self._buffer

    async def room(self) -> None:
        """Return when the reader has caught up."""
        while self.is_full():
            self._read.clear()
            await self._read.wait()

    def _put(self, event: LoopEvent) -> None:
        self._waiting.append(event)
        self._arrived.set()

    def turn_started(self, step: str, attempt: int) -> None:
        """See `Observer`."""
        self._open = step, attempt
        self._put(TurnStarted(step=step, attempt=attempt))

    def hear(self, step: str, host: Callable[[str], None] | None) -> Callable[[str], None]:
        """See `Observer`. Pieces may come from any thread; those after the turn are dropped.

        What it gives raises ContractError for a piece that is no text.
        """

        def on_delta(piece: str) -> None:
            if not isinstance(piece, str):
                raise ContractError("on_delta", "takes pieces of text")
            if host is not None:
                host(piece)
            if threading.get_ident() == self._thread:
                self._hear(step, piece)
            else:
                # What a thread sends before it ends is there before its end is.
                self._loop.call_soon_threadsafe(self._hear, step, piece)

        return on_delta

    def _hear(self, step: str, piece: str) -> None:
        if not piece or self._open is None or self._open[0] != step:
            return
        text, attempt = clean_text(piece), self._open[1]
        last = self._waiting[-1] if self.is_full() else None
        # Behind or not, the reader gets every piece; only how they are cut differs.
        if isinstance(last, TextDelta) and (last.step, last.attempt) == self._open:
            self._waiting.pop()
            text = last.text + text
        self._put(TextDelta(step=step, attempt=attempt, text=text, label=self._run.label))

    def turn_ended(self, step: str, attempt: int, turn: Turn | None, lost: Outcome | None) -> None:
        """See `Observer`."""
        if self._open is None:
            return
        self._open = None
        if turn is None:
            stop = None if lost is None else lost.stop
            code, message = ("", "") if stop is None else (str(stop.code), stop.message)
            self._put(TurnLost(step=step, attempt=attempt, code=code, message=message))
            return
        self._put(
            TurnFinished(
                step=step,
                attempt=attempt,
                status=turn.status,
                text=clean_text(turn.text),
                calls=len(turn.calls),
                usage=turn.usage,
                label=self._run.label,
            )
        )
        self._warn()

    def call_admitted(self, step: str, call: ToolCall) -> None:
        """See `Observer`."""
        self._put(CallAdmitted(step=step, call=call, label=self._run.label))
        self._warn()

    def call_refused(self, step: str, call: ToolCall, output: ToolOutput) -> None:
        """See `Observer`."""
        self._put(
            CallRefused(
                step=step,
                tool=call.name,
                call_id=call.id,
                code=str(output.code),
                text=output.text,
                label=self._run.label,
            )
        )

    def call_started(self, record: StepRecord) -> None:
        """See `Observer`."""
        self._put(
            CallStarted(
                step=record.step,
                tool=record.tool,
                call_id=record.call_id,
                attempt=record.attempt,
            )
        )

    def call_finished(self, record: StepRecord, output: ToolOutput) -> None:
        """See `Observer`."""
        self._put(
            CallFinished(
                step=record.step,
                tool=record.tool,
                call_id=record.call_id,
                attempt=record.attempt,
                ok=output.ok,
                code=None if output.code is None else str(output.code),
                executed=output.executed,
                text=output.text,
                label=output.label,
                elapsed_us=record.elapsed_us,
            )
        )
        self._warn()

    def approval_requested(self, request: ApprovalRequest) -> None:
        """See `Observer`."""
        self._put(ApprovalRequested(request=request))

    def violation(self, event: Event) -> None:
        """See `Observer`."""
        self._put(ViolationReported(event=event))

    def _warn(self) -> None:
        """Say once of each budget that little is left. One of nothing has nothing to warn of."""
        for budget, limit, taken in _taken(self._run.view()):
            if limit > 0 and taken >= limit * self._warn_at and budget not in self._warned:
                self._warned.add(budget)
                self._put(BudgetWarning(budget=budget, limit=limit, taken=taken))

    # ── the reader's side ─────────────────────────────────────────────────────────────────────

    def wake(self, _task: object = None) -> None:
        """The driver has ended: nothing more will come."""
        self._arrived.set()

    async def next(self, drive: asyncio.Task[LoopResult]) -> LoopEvent | None:
        """The next event, or None when the driver has ended and all is read."""
        while not self._waiting:
            if drive.done():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._waiting.popleft()
        self._read.set()
        return event


def _taken(view: LedgerView) -> list[tuple[str, float, float]]:
    """Of each limited budget: its name, its limit, and what is used or reserved."""
    counted: list[tuple[str, float, float]] = [
        (budget, limit, view.used.get(budget, 0) + view.reserved.get(budget, 0))
        for budget, limit in view.limits.counts.items()
        # The single turn of the wrap-up is no budget that anybody plans with.
        if limit != UNLIMITED and budget != WRAP_UP
    ]
    if view.limits.seconds != UNLIMITED:
        counted.append((DURATION, view.limits.seconds, view.active_seconds))
    return counted


def check_stream(buffer: object, warn_at: object) -> None:
    """Refuse what cannot bound a stream.

    Raises:
        ContractError: *buffer* is not a whole number from 1, or *warn_at* not a part of 1.
    """
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 1:
        raise ContractError("buffer", "is a whole number from 1")
    if isinstance(warn_at, bool) or not isinstance(warn_at, int | float) or not 0 < warn_at <= 1:
        raise ContractError("warn_at", "is above 0 and at most 1")


async def stream_entry(
    entry: Entry, *, buffer: int = BUFFER, warn_at: float = WARN_AT
) -> AsyncGenerator[LoopEvent, None]:
    """Drive *entry* and give its events; nothing happens before the first one is asked for."""
    run = entry.run
    run.enter()
    try:
        feed = Feed(run, buffer, warn_at)
        run.observer = feed
        drive: asyncio.Task[LoopResult] = asyncio.ensure_future(entry.drive())
        drive.add_done_callback(feed.wake)
        try:
            while (event := await feed.next(drive)) is not None:
                yield event
            yield Finished(result=drive.result())
        finally:
            run.observer = None
            await _end(run, drive)
    finally:
        run.leave()


async def _end(run: AgentTaskRun, drive: asyncio.Task[LoopResult]) -> None:
    """Let the driver come to its recorded end, if the reader left before it did."""
    if not drive.done():
        run.pause(_LEFT)
    try:
        await asyncio.wait({drive})
        if not drive.cancelled():
            # Nobody is left to hear of it.
            drive.exception()
    except asyncio.CancelledError:
        # Cancelled once more while the run was ending: now it is torn, which is recorded too.
        drive.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drive
        raise
