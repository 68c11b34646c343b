"""Running an admitted call: recorded before it starts, bounded, its output checked and labelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Token
from typing import Any, Final

import attrs
import orjson

from runtime_pack.approvals import digest_arguments
from runtime_pack.catalog import Citation, Executed, ToolOutput, ToolSpec, is_code
from runtime_pack.errors import AuditError, CallCode, ContractError, EmitterError
from runtime_pack.events import Event, EventType
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.guard.eager import others
from runtime_pack.guard.lines import call_finished, call_started
from runtime_pack.guard.sub_runs import CallWaits
from runtime_pack.guard.task_run import Held, HostExit, TaskRun
from runtime_pack.guard.watching import watched
from runtime_pack.labels import CLEAN, Integrity, Label, join
from runtime_pack.ledger import Shortfall
from runtime_pack.machine import refusal
from runtime_pack.messages import FrozenObject, ToolCall, clean_text
from runtime_pack.ports import (
    ExecutionContext,
    ToolRuntime,
    is_framing,
)
from runtime_pack.records import (
    StepRecord,
    digest_text,
    label_lowered,
    log_host,
)
from runtime_pack.repeats import Recorded
from runtime_pack.signals import signals_of
from runtime_pack.threads import LEFT, IsOver

__all__ = (
    "CROWDED",
    "CUT",
    "NOT_BEGUN",
    "NO_THREAD",
    "OUTCOME_UNKNOWN",
    "Execution",
    "Recorder",
    "call_context",
    "checked_output",
    "exhausted",
)

_LOOK_SECONDS: Final = 0.02

NOT_BEGUN: Final = refusal(CallCode.CANCELLED, "The run was stopped before this call began.")
"""The output of a call that was not started because the run was interrupted; its step is held."""

CUT: Final = refusal(
    CallCode.CANCELLED,
    "The run was stopped while this call was running.",
    executed=Executed.UNKNOWN,
)
"""The output of a call that `cancel` or `pause` stopped."""

NO_THREAD: Final = refusal(
    CallCode.TIMEOUT, "No thread was free for this call in its time.", retryable=True
)
"""The output of a call that waited for a thread for as long as it may take."""

CROWDED: Final = refusal(
    CallCode.TIMEOUT,
    "A call that did not stop in its time still runs, and this one must not run beside it.",
    retryable=True,
)
"""The output of a call that waited for another one for as long as it may take."""

OUTCOME_UNKNOWN: Final = refusal(
    CallCode.OUTCOME_UNKNOWN, "The call did not end.", executed=Executed.UNKNOWN
)


# There is one empty tuple.
_EMPTY: Final[tuple[Any, ...]] = ()
# What ends more than the call that it comes out of.
_MORE_THAN_A_CALL: Final = (
    AuditError,
    EmitterError,
    KeyboardInterrupt,
    SystemExit,
    asyncio.CancelledError,
)
_NO_OUTPUT: Final = refusal(
    CallCode.TOOL_ERROR,
    "The tool answered with something that is not a tool output.",
    executed=Executed.YES,
)


class Recorder:
    """What a tool may write to the log: that the policy stopped something in its own step."""

    __slots__ = ("_run", "_step", "_thread", "over")

    def __init__(self, run: TaskRun, step: str) -> None:
        self._run = run
        self._step = step
        self._thread = threading.get_ident()
        self.over = False

    def __call__(self, event: Event) -> None:
        """Record the event.

        Raises:
            ContractError: it is no violation, or of another run or step, or comes from a thread
                that is not the run's.
            AuditError: the log could not take it.
        """
        if threading.get_ident() != self._thread:
            raise ContractError("record", "is called from the thread that drives the run")
        if not isinstance(event, Event) or event.type is not EventType.SANDBOX_VIOLATION:
            raise ContractError("record", "takes violations of a tool's own step and nothing else")
        subject = event.subject
        if subject.get("run") != self._run.id or subject.get("step") != self._step:
            raise ContractError("record", "the event is of another run or step")
        if self.over:
            self._run.record_late(event)
        else:
            self._run.record(event)


def call_context(
    run: TaskRun, base: ExecutionContext, step: str, call: ToolCall
) -> ExecutionContext:
    """What the tool of this call is told: who calls, under which label, where to record."""
    return ExecutionContext(
        run=run.id,
        task=run.task,
        session=base.session,
        agent=base.agent,
        step=step,
        turn=run.turn,
        call_id=call.id,
        label=run.label,
        allowlists=run.allowlists,
        burned=run.flow.burned,
        record=Recorder(run, step),
        hop=run.hop,
        aside=run.aside,
    )


_CHANGED: Final = refusal(CallCode.POLICY_ERROR, "The arguments are not those that were judged.")


class Execution:
    """Runs held steps through the inner runtime."""

    __slots__ = ("_framing", "_inner", "_run")

    def __init__(self, run: TaskRun, inner: ToolRuntime) -> None:
        self._run = run
        self._inner = inner
        # Asked once: a structural check of a protocol is slow.
        self._framing = inner if is_framing(inner) else None

    async def run(
        self,
        step: str,
        call: ToolCall,
        spec: ToolSpec,
        context: ExecutionContext,
        *,
        attempt: int = 1,
        resumable: bool = False,
        beside: bool = False,
    ) -> ToolOutput:
        """Run a held step. Its `started` record is in the file before the tool is called.

        What the tool gets are the arguments that were held, in an object of its own. With
        *resumable*, a step that `pause` stopped stays held, for the next drive. With *beside*,
        those that are to run at the same time are started before any of them is called.

        Raises:
            ContractError: the step was not admitted, or for another tool.
            AuditError: the record could not be written; the tool was not called.
            EmitterError: the host's emitter raised.
        """
        run, held = self._run, self._held(step, call, spec)
        begun = run.clock.monotonic()
        why = self._why_not(call, held, begun)
        if why is None and run.left.any and run.left.crowd(exclusive=spec.exclusive):
            why = await self._crowded(spec)
            begun = run.clock.monotonic()
            why = why or self._why_not(call, held, begun)
        if why is not None:
            return why if why is NOT_BEGUN else self._not_run(step, call, held, attempt, why)
        record = self._record(step, call, held, attempt)
        self._announce(record, at_once=not beside)
        # The outcome of a call that an exception tears apart is not known.
        output = OUTCOME_UNKNOWN
        inside = self._inside(held, step, call, context)
        # Calls of others that go on are news only where some call must run alone.
        watch = self._watch_for_left(spec) if run.left.watched else None
        seconds = min(spec.timeout_seconds, run.ledger.remaining_seconds(begun))
        try:
            if beside:
                await self._start_beside()
            try:
                if run.interrupt_now:
                    output = CUT
                else:
                    given = await self._called(spec, held, inside, seconds)
                    checked = checked_output(given)
                    output = self._labelled(checked, spec)
                    if run.watches:
                        seen = await watched(run, spec.name, checked.text, output)
                        run.notice(seen, step, spec.name)
            # The host's code: a tool that raises is a tool error, never the end of the run.
            except BaseException as error:  # noqa: BLE001
                output = self._failed(error, spec, seconds)
        finally:
            if watch is not None:
                LEFT.reset(watch)
            self._close(step, record, inside, output, resumable=resumable)
            self._finish(record, output, begun)
        self._keep(step, spec, output, call.arguments)
        return output

    def _held(self, step: str, call: ToolCall, spec: ToolSpec) -> Held:
        """The step as it was admitted.

        Raises:
            ContractError: it was not, or for another tool.
        """
        held = self._run.held.get(step)
        if held is None or not held.ready or held.tool != call.name or spec.name != call.name:
            raise ContractError("step", f"{step!r} was not admitted for this call")
        return held

    def _close(
        self,
        step: str,
        record: StepRecord,
        inside: ExecutionContext,
        output: ToolOutput,
        *,
        resumable: bool,
    ) -> None:
        """The tool may record nothing of its step any more, and the step is paid for."""
        run = self._run
        recorder = inside.record
        if type(recorder) is Recorder:
            recorder.over = True
        if output is CUT and resumable and run.interrupt_resumable:
            run.steps.remove(record)
        else:
            record.cost = run.settle(step)

    def _keep(self, step: str, spec: ToolSpec, output: ToolOutput, arguments: object) -> None:
        """What an output makes of the run: its label, what a search found, what repeats are told."""
        run = self._run
        if output.label is not run.label:
            run.take_label(output.label, step)
        if run.flow.strings is not None:
            run.heed((output.text,), step)
        if output.fences:
            run.notice(signals_of(output.fences), step, spec.name)
        if (output.found or output.links) and self._frames(spec.name):
            run.flow.offer(output.found, output.links, arguments=arguments)
        if output.bits is not None and output.label.integrity is not Integrity.EXTERNAL:
            run.enter_in_log(label_lowered(run.subject(step), spec.name, output.bits))
        if output is not CUT:
            run.repeats.settle(step, Recorded(output.text, output.ok, output.label))

    def _why_not(self, call: ToolCall, held: Held, now: float) -> ToolOutput | None:
        """Why a held step does not run after all; `NOT_BEGUN` leaves it held."""
        run, given = self._run, call.arguments
        # Mostly the object that was judged, which nobody can change.
        same = given is held.given and type(given) is FrozenObject
        if not same and not _is_as_judged(call, held):
            return _CHANGED
        if (run.interrupt is not None or run.kill_switch is not None) and run.is_interrupted():
            return NOT_BEGUN
        short = run.ledger.hard_shortfall(now)
        return None if short is None else exhausted(short)

    async def _crowded(self, spec: ToolSpec) -> ToolOutput | None:
        """Wait for calls that did not stop, as long as this one may take; why it does not run, or None."""
        run = self._run
        try:
            await bounded(run, spec.timeout_seconds, self._alone(spec), idle=True)
        except TimeUp:
            return NOT_BEGUN if run.is_interrupted() else CROWDED
        return None

    async def _alone(self, spec: ToolSpec) -> None:
        # A thread of the host's has no event to wait for.
        while self._run.left.crowd(exclusive=spec.exclusive):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def _not_run(
        self, step: str, call: ToolCall, held: Held, attempt: int, output: ToolOutput
    ) -> ToolOutput:
        """A held step that does not run after all is settled and on record as any other."""
        run, begun = self._run, self._run.clock.monotonic()
        run.settle(step, ran=False)
        record = self._record(step, call, held, attempt)
        run.steps.append(record)
        self._finish(record, output, begun)
        return output

    def _inside(
        self, held: Held, step: str, call: ToolCall, base: ExecutionContext
    ) -> ExecutionContext:
        """The context that the call was judged with, unless the run's label rose since."""
        judged = held.context
        if judged is not None and judged.label is self._run.label:
            return judged
        return call_context(self._run, base, step, call)

    def _record(self, step: str, call: ToolCall, held: Held, attempt: int) -> StepRecord:
        return StepRecord(
            step=step,
            tool=call.name,
            call_id=call.id,
            admitted=True,
            executed=Executed.UNKNOWN,
            args_sha256=held.args_sha256,
            label=self._run.label,
            attempt=attempt,
        )

    def _announce(self, record: StepRecord, *, at_once: bool) -> None:
        """Say that a call starts; in the file *at_once*, or when all that start with it are."""
        run = self._run
        if run.audit is not None:
            call_started(run, run.audit, record)
            if at_once:
                run.audit.flush()
        run.steps.append(record)
        if run.observer is not None:
            run.observer.call_started(record)

    def _finish(self, record: StepRecord, output: ToolOutput, begun: float) -> None:
        run = self._run
        record.executed, record.ok, record.code = output.executed, output.ok, output.code
        if output.citations:
            record.citations = _wires(output.citations) or ()
        record.elapsed_us = round((run.clock.monotonic() - begun) * 1_000_000)
        if run.audit is not None:
            call_finished(run, run.audit, record, output)
        if run.observer is not None:
            run.observer.call_finished(record, output)

    async def _start_beside(self) -> None:
        """Let those that are to run at the same time be announced; then all are in the file."""
        audit = self._run.audit
        mark = 0 if audit is None else audit.mark()
        await others()
        # One write for all that start together; the first of them makes it.
        if audit is not None:
            audit.flush_to(mark)

    def _called(
        self, spec: ToolSpec, held: Held, context: ExecutionContext, seconds: float
    ) -> Awaitable[object]:
        """What the tool gives, to be awaited; it gets the arguments that were held."""
        arguments = orjson.loads(held.arguments)
        work = self._inner.execute_tool(spec.name, arguments, context)
        return bounded(self._run, seconds, work)

    def _failed(self, error: BaseException, spec: ToolSpec, seconds: float) -> ToolOutput:
        """The output of a call that raised.

        Raises:
            BaseException: the error itself, where it is the end of more than the call.
        """
        run = self._run
        if isinstance(error, _MORE_THAN_A_CALL):
            raise error
        if isinstance(error, CallWaits):
            run.wait_for_people()
            return CUT
        if isinstance(error, TimeUp):
            return self._cut_short(error, seconds)
        log_fault(f"the tool {spec.name}", error, run=run.id)
        kind = "SystemExit" if isinstance(error, HostExit) else type(error).__name__
        return refusal(CallCode.TOOL_ERROR, f"The tool failed ({kind}).", executed=Executed.UNKNOWN)

    def _watch_for_left(self, spec: ToolSpec) -> Token[Callable[[IsOver], None] | None]:
        """Hear of what the call leaves behind; the run that this one is a part of hears it as well."""
        run, outer = self._run, LEFT.get()

        def told(is_over: IsOver) -> None:
            run.left.add(is_over, exclusive=spec.exclusive)
            if outer is not None:
                outer(is_over)

        return LEFT.set(told)

    def _cut_short(self, up: TimeUp, seconds: float) -> ToolOutput:
        run = self._run
        if run.interrupt_now:
            return CUT if up.begun or run.interrupt_resumable else NOT_BEGUN
        return _timed_out(seconds) if up.begun else NO_THREAD

    def _labelled(self, output: ToolOutput, spec: ToolSpec) -> ToolOutput:
        """The output with a label no better than its tool's, fenced if it comes from outside."""
        run = self._run
        label, text = output.label, output.text
        better = output.bits is not None and self._frames(spec.name)
        if label is not spec.floor_label and not better:
            label = join(label, spec.floor_label)
        if output.citations:
            label = join(label, _cited(output.citations))
        # Our own words about an output that is none need no fence.
        framed = output is _NO_OUTPUT or (output.framed and self._frames(spec.name))
        if not framed and label.integrity is Integrity.EXTERNAL:
            text = clean_text(run.frame(text, source=f"tool:{spec.name}", burned=run.flow.burned))
            framed = True
        if label is output.label and text is output.text and framed is output.framed:
            return output
        return output.shown_as(text, label, framed=framed)

    def _frames(self, name: str) -> bool:
        """Whether the runtime, and not the tool, says that a text stands in a fence."""
        return self._framing is not None and self._framing.frames(name) is True


def _is_as_judged(call: ToolCall, held: Held) -> bool:
    given = call.arguments
    if given is held.given and isinstance(given, FrozenObject):
        # The object that was judged, which nobody can change.
        return True
    return isinstance(given, Mapping) and held.args_sha256 == digest_arguments(given)


def checked_output(output: object) -> ToolOutput:
    """The output, if its fields are what they should be; its text can be stored.

    Tools are the host's code, and Python does not hold them to the annotations.
    """
    if not isinstance(output, ToolOutput) or not (_is_plain(output) or _is_well_formed(output)):
        return _NO_OUTPUT
    text, data = clean_text(output.text), output.data
    # A text that can be stored, as most data is, was looked at just now.
    if data is not None and data is not text and not _is_json(data):
        data = None
    if text is output.text and data is output.data:
        return output
    return attrs.evolve(output, text=text, data=data)


def _is_json(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def _is_plain(output: ToolOutput) -> bool:
    """Whether it is a text and nothing else, as most are: then nothing of it takes a closer look."""
    return (
        type(output.text) is str
        and type(output.ok) is bool
        and output.code is None
        and type(output.label) is Label
        and type(output.executed) is Executed
        and type(output.framed) is bool
        and type(output.retryable) is bool
        and output.bits is None
        and output.citations is _EMPTY
        and output.provenance is _EMPTY
        and output.fences is _EMPTY
        and output.found is _EMPTY
        and output.links is _EMPTY
    )


def _is_well_formed(output: ToolOutput) -> bool:
    code = output.code
    return (
        isinstance(output.text, str)
        and isinstance(output.ok, bool)
        and (code is None or is_code(code))
        and isinstance(output.label, Label)
        and isinstance(output.executed, Executed)
        and isinstance(output.framed, bool)
        and isinstance(output.retryable, bool)
        and isinstance(output.citations, tuple)
        and (not output.citations or _wires(output.citations) is not None)
        and isinstance(output.provenance, tuple)
        and isinstance(output.fences, tuple)
        and all(isinstance(fence, Mapping) for fence in output.fences)
        and (not output.provenance or all(isinstance(word, str) for word in output.provenance))
        and isinstance(output.found, tuple)
        and isinstance(output.links, tuple)
        and all(isinstance(url, str) for url in (*output.found, *output.links))
        and (output.bits is None or _is_amount(output.bits))
    )


def _is_amount(bits: object) -> bool:
    return isinstance(bits, float) and bits >= 0


def _cited(citations: Iterable[Citation]) -> Label:
    """A label that raises nothing and names what was cited: where it is, and which document."""
    sources: set[str] = set()
    for wire in _wires(citations) or ():
        place, document = wire.get("sourceId", ""), wire.get("documentId", "")
        sources.add(f"{log_host(place)}#{digest_text(document)[7:19]}")
    return Label(
        integrity=CLEAN.integrity, confidentiality=CLEAN.confidentiality, sources=frozenset(sources)
    )


def _wires(citations: Iterable[Citation]) -> tuple[dict[str, str], ...] | None:
    """The citations in their wire form, as they can be stored; None when one has no such form."""
    wires: list[dict[str, str]] = []
    try:
        for citation in citations:
            wire: Any = citation.to_wire()
            fields = {
                clean_text(key): clean_text(word)
                for key, word in wire.items()
                if isinstance(key, str) and isinstance(word, str)
            }
            if len(fields) != len(wire):
                return None
            wires.append(fields)
    # The tool's object: what cannot be read is no citation.
    except Exception:  # noqa: BLE001
        return None
    return tuple(wires)


def exhausted(short: Shortfall) -> ToolOutput:
    """The output of a call that a budget refused."""
    return refusal(CallCode.BUDGET_EXHAUSTED, short.sentence, details=short.to_json())


def _timed_out(seconds: float) -> ToolOutput:
    text = f"The call did not end within {seconds:g} seconds."
    return refusal(CallCode.TIMEOUT, text, executed=Executed.UNKNOWN, retryable=True)
