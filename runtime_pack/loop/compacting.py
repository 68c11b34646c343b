"""Keep what a model is shown within its bound: the host's summariser is asked, under the run's time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import attrs

from runtime_pack.compaction import (
    SUMMARY_NOTICE,
    Compacted,
    Compaction,
    cut_to,
    size_of,
    summary_of,
)
from runtime_pack.errors import AuditError, EmitterError, StopCode
from runtime_pack.events import Event, EventCode
from runtime_pack.fault_log import log_fault
from runtime_pack.guard import AgentTaskRun
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.guard.summary_bill import SummaryBill
from runtime_pack.labels import Integrity
from runtime_pack.ledger_limits import UNLIMITED
from runtime_pack.loop.keeper import Keeper
from runtime_pack.machine import Outcome, OutcomeKind, budget_stop, failure
from runtime_pack.messages import Json, Message, clean_text
from runtime_pack.ports import Summariser, Summary

__all__ = ("Compactor",)

SUMMARY_SECONDS: Final = 120.0
"""The longest that a summariser may take; the run's remaining time is the other bound."""

# Of the bound, what may be kept as it is, and what a summary may take of it.
_KEPT: Final = 0.5
_SUMMARY: Final = 0.25
_LEAST_SUMMARY_BYTES: Final = 256


class Compactor:
    """Shortens what is shown of one run's history, twice a turn at most."""

    def __init__(self, run: AgentTaskRun, keeper: Keeper) -> None:
        self._run = run
        self._keeper = keeper
        self._measured: Sequence[Message] = ()
        self._count = 0
        self._bytes = 0
        # Of the last summary, in micro-units.
        self._cost = 0

    def is_needed(self) -> bool:
        """Whether `fit` would have something summed up."""
        limit = self._run.contract.max_context_bytes
        return limit != UNLIMITED and self._size() > limit

    async def fit(self) -> Outcome | None:
        """Shorten what is shown to the contract's bound; why it cannot be, or None.

        Raises:
            AuditError: the log could not take it.
        """
        limit = self._run.contract.max_context_bytes
        if limit == UNLIMITED or not self.is_needed():
            return None
        return await self._shorten(limit)

    async def shrink(self) -> Outcome | None:
        """Shorten what is shown to half of what the provider refused; why it cannot be, or None.

        Raises:
            AuditError: the log could not take it.
        """
        return await self._shorten(self._size() // 2)

    def _size(self) -> int:
        """The bytes of what is shown; only what is new is measured."""
        messages = self._keeper.shown
        if messages is not self._measured:
            self._measured, self._count, self._bytes = messages, 0, 0
        for index in range(self._count, len(messages)):
            self._bytes += size_of(messages[index])
        self._count = len(messages)
        return self._bytes

    async def _shorten(self, limit: int) -> Outcome | None:
        run, keeper = self._run, self._keeper
        summariser = run.summariser
        if summariser is None:
            return _overflow("nobody is there to sum it up")
        since = 0 if keeper.compaction is None else keeper.compaction.cut
        parts = cut_to(keeper.messages, int(limit * _KEPT), since=since)
        if parts is None:
            parts = cut_to(keeper.messages, int(limit * (1 - _SUMMARY)), since=since)
        if parts is None:
            return _overflow("what has to be kept is longer by itself")
        given = await self._summary(summariser, parts)
        if isinstance(given, Outcome):
            return given
        before = self._size()
        try:
            self._replace(parts, given.text, max(int(limit * _SUMMARY), _LEAST_SUMMARY_BYTES))
        except KeyboardInterrupt:
            raise
        # The host's frame: a summary that could not be fenced is shown to no model.
        except BaseException as error:  # noqa: BLE001
            log_fault("the frame", error, run=run.id)
            return _overflow(f"the frame failed ({type(error).__name__})")
        self._tell(parts, before, given)
        return None if self._size() < before else _overflow("the summary is no shorter")

    async def _summary(self, summariser: Summariser, parts: Compacted) -> Summary | Outcome:
        run, earlier = self._run, self._keeper.compaction
        first = () if earlier is None else (summary_of(earlier),)
        asked = (*first, *parts.replaced)
        bill = SummaryBill(run, summariser)
        refused = bill.reserve(asked)
        if refused is not None:
            return refused
        try:
            given: object = await bounded(run, SUMMARY_SECONDS, summariser.summarise(asked))
            summary = (
                given
                if isinstance(given, Summary)
                else Summary(text=given if isinstance(given, str) else "")
            )
            unpaid = bill.settle(summary)
        except (AuditError, EmitterError, KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except TimeUp:
            return self._stopped()
        # The host's code: without a summary the history stays as long as it is.
        except BaseException as error:  # noqa: BLE001
            log_fault("the summariser", error, run=run.id)
            return _overflow(f"the summariser failed ({type(error).__name__})", error)
        finally:
            # Where it has reported nothing, what was reserved stays charged.
            bill.keep()
        if unpaid is not None:
            return unpaid
        text: object = summary.text
        if not isinstance(text, str) or not text.strip():
            return _overflow("the summariser answered with no text")
        self._cost = bill.cost
        return attrs.evolve(summary, text=clean_text(text), usage=bill.usage)

    def _stopped(self) -> Outcome:
        run = self._run
        if run.interrupt is not None and run.interrupt_now:
            return run.interrupt
        short = run.ledger.time_shortfall(run.clock.monotonic())
        if short is not None:
            return Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(short))
        return _overflow("the summariser did not end in time")

    def _replace(self, parts: Compacted, summary: str, limit_bytes: int) -> None:
        """Show the summary; it stands in a fence when a part of what it sums up came from outside."""
        run = self._run
        text = summary.encode()[:limit_bytes].decode(errors="ignore")
        if parts.label.integrity is Integrity.EXTERNAL:
            text = clean_text(run.frame(text, source="summary", burned=run.burned))
        text = f"{SUMMARY_NOTICE}\n{text}"
        self._keeper.compact(Compaction(cut=parts.cut, text=text, label=parts.label))

    def _tell(self, parts: Compacted, before: int, summary: Summary) -> None:
        run, usage = self._run, summary.usage
        took: dict[str, Json] = {}
        if usage is not None:
            took = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        if self._cost:
            took["cost"] = self._cost
        run.record(
            Event(
                code=EventCode.CTX001O,
                subject=run.subject(),
                object={
                    "replaced": len(parts.replaced),
                    "kept": len(parts.tail),
                    "bytes_before": before,
                    "bytes_after": self._size(),
                    "label": parts.label.to_json(),
                    **took,
                },
                key=f"cut{parts.cut}",
            )
        )


def _overflow(why: str, cause: BaseException | None = None) -> Outcome:
    text = f"The history is longer than may be sent, and {why}."
    return failure("model", StopCode.CONTEXT_OVERFLOW, text, cause)
