"""Judging calls: the first rule that fails refuses, and a person is asked last.

Order: cut response, unknown tool, bad JSON, schema, the runtime's own preflight (the egress
list), policy, budget, approval. A person is never shown a call that policy or budget would refuse, and
an approval never outranks a rule: what was approved is judged again before it runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import orjson

from runtime_pack.approvals import (
    ApprovalRequest,
    Decision,
    Verdict,
    digest_arguments,
    remember_fault,
)
from runtime_pack.catalog import Executed, ToolOutput, ToolSpec
from runtime_pack.errors import AuditError, CallCode, EmitterError, StateRefused
from runtime_pack.events import EventCode
from runtime_pack.fault_log import log_fault, log_untold
from runtime_pack.flow import BrokenRule, FlowVerdict
from runtime_pack.guard.bounded import Stopped, TimeUp, bounded, ending, tell
from runtime_pack.guard.execution import call_context, checked_output, exhausted
from runtime_pack.guard.recall import Recall
from runtime_pack.guard.task_run import Held, TaskRun, Told
from runtime_pack.inner import frozen
from runtime_pack.label_table import LabelVerdict
from runtime_pack.labels import CLEAN, Integrity, Label, join
from runtime_pack.ledger import UNLIMITED, Shortfall
from runtime_pack.machine import (
    Admission,
    Admitted,
    IngestedCall,
    Pending,
    Refused,
    begun_before,
    refusal,
)
from runtime_pack.messages import Json, ToolCall, clean_text, frozen_arguments, own_copy
from runtime_pack.policy import (
    PREDICATE_SECONDS,
    ApprovalClass,
    ClassVerdict,
    Predicate,
    ToolRule,
    classify_call,
    tightened,
)
from runtime_pack.ports import (
    Approver,
    ExecutionContext,
    ToolRuntime,
    has_preflight,
    is_preflight,
)
from runtime_pack.records import (
    StepRecord,
    approval_decided,
    approval_requested,
    call_notified,
    digest_text,
    label_decided,
    step_finished,
    step_refused,
)
from runtime_pack.remembered import RememberedRule
from runtime_pack.repeats import Recorded, Stuck, fingerprint, fingerprint_of
from runtime_pack.seal import check_request, seal_request
from runtime_pack.signals import asked_by_signals

__all__ = ("Judge",)

_FAULTS_SHOWN: Final = 8
# What people say, or do not say in time, is not held against the model.
_PEOPLE: Final = frozenset({CallCode.DENIED_BY_PERSON, CallCode.APPROVAL_EXPIRED})
_DENIALS: Final = frozenset(
    {CallCode.DENIED_BY_PERSON, CallCode.POLICY_DENIED, CallCode.POLICY_ERROR}
)
_ADMITTED: Final = Admitted()
_FREE: Final = ClassVerdict(approval_class=ApprovalClass.AUTO)
_UNDECIDED: Final = ClassVerdict(
    approval_class=ApprovalClass.DENY, reasons=("a predicate took too long",), failed=True
)
_OTHER_POLICY: Final = "the policy is another one than when this was asked"
_SAME: Final = refusal(
    CallCode.REPEATED_CALL,
    "The same call gave the same result twice running, so it was not run again. "
    "The result stands below; go on from it, or ask for something else.",
)
_CIRCLE: Final = refusal(
    CallCode.REPEATED_CALL, "The same call was answered from the record twice; the run ends here."
)
_UNTOLD: Final = refusal(
    CallCode.POLICY_ERROR, "The host has to be told of this call, and nobody is there to be told."
)


@frozen(kw_only=True)
class _Book:
    """The rules that cover one tool; `asks` when one has a predicate, `awaited` are its coroutines.

    `fixed` are the verdicts of rules that look at neither arguments nor label, by the class that the
    tool declares; None when there are others.
    """

    rules: tuple[ToolRule, ...]
    asks: bool
    awaited: tuple[int, ...]
    fixed: dict[ApprovalClass, ClassVerdict] | None


@frozen(kw_only=True)
class _Today:
    """What today's rules make of a call that was judged before."""

    refused: ToolOutput | None = None
    short: Shortfall | None = None
    verdict: ClassVerdict = _FREE

    @property
    def person_reasons(self) -> tuple[str, ...]:
        """Those for which a person is to be asked."""
        asks = self.verdict.approval_class is ApprovalClass.REQUEST_USER
        return self.verdict.reasons if asks else ()


class Judge:
    """Says of every call whether it may run, and keeps the reservations that go with it."""

    __slots__ = ("_asked_first", "_beside", "_knowing", "_recall", "_rules", "_run", "asks_host")

    def __init__(self, run: TaskRun, inner: ToolRuntime) -> None:
        self._run = run
        self._recall = Recall(run)
        # Asked once: a structural check of a protocol is slow.
        self._knowing = inner if is_preflight(inner) else None
        knowing = self._knowing
        self._asked_first = knowing if knowing is not None and has_preflight(knowing) else None
        self._rules: dict[str, _Book] = run.contract.tool_policy.books
        # The join of the labels that admitted calls will have at best, while any is held.
        self._beside = CLEAN
        told = run.emitter is not None or self._asked_first is not None
        # Whether code of the host's may be awaited, or called, while a call is judged.
        self.asks_host = told or any(
            rule.when is not None for rule in run.contract.tool_policy.all_rules
        )

    async def admit(
        self, call: IngestedCall, offered: Mapping[str, ToolSpec], context: ExecutionContext
    ) -> Admission:
        """Judge one call; when it is admitted or pending, its step is held.

        Raises:
            AuditError: the log could not take the record.
            EmitterError: the host's emitter raised.
            Stopped: the run ended before the call was judged.
        """
        # What is judged is fixed here: the host's checks below see the same object as the history.
        body = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(body).hexdigest()
        inside = call_context(self._run, context, call.step, call.call)
        refused = self._form_fault(call, offered)
        if refused is not None:
            return await self._refuse(call, refused)
        spec = offered[call.call.name]
        again = self._circle(call, spec, digest)
        if again is not None:
            return await self._repeated(call, again)
        verdict: Refused | ClassVerdict | None = None
        # Of most calls it is known that nobody is asked, and that nothing was said before.
        if self._asked_first is None and not self._run.memory:
            verdict = self._free(spec, call.arguments)
        if verdict is None:
            verdict = await self._judged(call, spec, inside)
        if isinstance(verdict, Refused):
            return verdict
        held = Held(
            tool=call.call.name,
            # A call may run for hours, and its run with a thousand others.
            arguments=own_copy(body),
            args_sha256=f"sha256:{digest}",
            ready=True,
            context=inside,
            given=call.arguments,
        )
        return await self._placed(call, spec, verdict, held)

    def _free(self, spec: ToolSpec, arguments: Mapping[str, Json]) -> ClassVerdict | None:
        """The verdict on a call that runs unasked and untold; None when that takes a closer look."""
        book, declared = self._rules.get(spec.name), spec.approval_class
        fixed = None if book is None or book.fixed is None else book.fixed.get(declared)
        if fixed is None or fixed.approval_class is not ApprovalClass.AUTO:
            return None
        flow = self._flow(spec, arguments, self._label())
        return fixed if flow is None else None

    async def _judged(
        self, call: IngestedCall, spec: ToolSpec, inside: ExecutionContext
    ) -> Refused | ClassVerdict:
        """The class of a call that neither the host, a rule nor what a person said before refuses."""
        if self._asked_first is not None:
            refused = await self._preflight(spec.name, call.arguments, inside)
            if refused is not None:
                return await self._refuse(call, refused)
        verdict = await self._class_of(spec, call.arguments)
        if verdict.approval_class is ApprovalClass.DENY:
            return await self._refuse(call, _denied(verdict), verdict=verdict)
        denied = self._recall.denied(call.step, spec, call.arguments)
        if denied is not None:
            output, stuck = denied
            return attrs.evolve(await self._refuse(call, output), stuck=stuck)
        if verdict.approval_class is ApprovalClass.NOTIFY and self._run.emitter is None:
            log_untold(spec.name, run=self._run.id)
            return await self._refuse(call, _UNTOLD, verdict=verdict)
        if self._run.memory.doubts:
            return self._recall.asking(spec, call.arguments, verdict)
        return verdict

    async def _placed(
        self,
        call: IngestedCall,
        spec: ToolSpec,
        verdict: ClassVerdict,
        held: Held,
    ) -> Admission:
        """Hold the call's step, if the budgets allow it, and admit it or ask a person."""
        run, asks = self._run, verdict.approval_class is ApprovalClass.REQUEST_USER
        known = self._known(spec, call.arguments, verdict) if asks else None
        ready = known is not None or not asks
        if not ready:
            held = _waiting(held)
        short = run.ledger.hard_shortfall(run.clock.monotonic()) or run.hold(call.step, held, spec)
        if short is not None:
            return await self._refuse(call, exhausted(short), short)
        if not ready:
            session = "" if held.context is None else held.context.session
            return self._ask(call, held, spec, verdict, session)
        if verdict.approval_class is ApprovalClass.NOTIFY:
            await self._notify(call, verdict)
        if known is not None:
            self._recall.use(known, call.step, held.args_sha256)
        return self._admitted(call.step, call.call, spec, verdict)

    def _known(
        self, spec: ToolSpec, arguments: Mapping[str, Json], verdict: ClassVerdict
    ) -> RememberedRule | None:
        """The remembered approval that answers what a person would be asked."""
        if verdict.approval_class is not ApprovalClass.REQUEST_USER or verdict.rules:
            # No standing approval answers a label rule: what was read is another text each time.
            return None
        return self._recall.approved(spec, self.definition(spec), arguments, verdict.reasons)

    def _admitted(
        self, step: str, call: ToolCall, spec: ToolSpec, verdict: ClassVerdict
    ) -> Admitted:
        if verdict.flow is not None:
            self._run.flow.charge(step, verdict.flow)
        if self._beside is not spec.floor_label:
            self._beside = join(self._beside, spec.floor_label)
        observer = self._run.observer
        if observer is not None:
            observer.call_admitted(step, call)
        return _ADMITTED

    def hold_again(self, step: str, call: ToolCall, *, ready: bool, begun: int = 0) -> None:
        """Hold a step of a saved run; `Ledger.restore` counts it as used, here it is open again.

        *begun* is how often it was started.
        """
        run, arguments = self._run, _again(step, call).arguments
        run.reopen(step, call.name)
        run.held[step] = _held(call.name, _canonical(arguments), ready, begun)

    async def readmit(
        self,
        step: str,
        call: ToolCall,
        approved: ApprovalRequest | None,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> Admission:
        """Judge a held step that was admitted in an earlier drive, under today's rules.

        Raises:
            AuditError: the log could not take the record.
            EmitterError: the host's emitter raised.
            Stopped: the run ended before the call was judged.
        """
        ingested = _again(step, call)
        today = await self._stricter(ingested, offered, context)
        if today.refused is not None:
            return await self._refuse(ingested, today.refused, today.short, today.verdict)
        verdict, spec = today.verdict, offered[call.name]
        if verdict.approval_class is ApprovalClass.NOTIFY:
            await self._notify(ingested, verdict)
        if approved is not None and not self._unseen(approved, today):
            return self._admitted(step, call, spec, verdict)
        if verdict.approval_class is not ApprovalClass.REQUEST_USER:
            return self._admitted(step, call, spec, verdict)
        known = self._known(spec, ingested.arguments, verdict)
        begun = self._run.held[step].begun
        held = _held(call.name, _canonical(ingested.arguments), known is not None, begun)
        self._run.held[step] = held
        if known is None:
            return self._ask(ingested, held, spec, verdict, context.session)
        self._recall.use(known, step, held.args_sha256)
        return self._admitted(step, call, spec, verdict)

    def _unseen(self, request: ApprovalRequest, today: _Today) -> tuple[str, ...]:
        """The reasons to ask by now that the person was not shown.

        What a person said to a label rule was said under one policy, and holds under no other.
        """
        unseen = request.unseen(today.person_reasons)
        if today.verdict.rules and request.policy_sha256 != self._run.policy_sha256:
            return (*unseen, _OTHER_POLICY)
        return unseen

    async def _fault(
        self, call: IngestedCall, offered: Mapping[str, ToolSpec], inside: ExecutionContext
    ) -> ToolOutput | None:
        """What refuses a call before policy and budget are asked; None when nothing does."""
        refused = self._form_fault(call, offered)
        if refused is not None:
            return refused
        return await self._preflight(call.call.name, call.arguments, inside)

    def _form_fault(self, call: IngestedCall, offered: Mapping[str, ToolSpec]) -> ToolOutput | None:
        """What is wrong with the form of a call; None when nothing is."""
        if call.cut:
            return call.fault
        spec = offered.get(call.call.name)
        if spec is None:
            return _unknown(call.call.name, offered)
        if call.fault is not None:
            return call.fault
        faults = spec.check(call.arguments)
        if faults:
            shown: list[Json] = [
                {"path": fault.path or "/", "problem": fault.problem}
                for fault in faults[:_FAULTS_SHOWN]
            ]
            text = "The arguments do not fit the tool's parameters."
            # A code of the tool's own keeps the word of its own table: it is not retryable.
            ours = spec.invalid_code == CallCode.INVALID_ARGUMENTS
            return refusal(spec.invalid_code, text, retryable=ours, details={"faults": shown})
        return None

    def _circle(self, call: IngestedCall, spec: ToolSpec, digest: str) -> Recorded | Stuck | None:
        """What a call that goes in a circle comes to; None for every other, which is remembered.

        A caller that is no model may ask as often as it likes: it is not told what to do instead.
        """
        if not call.step.startswith("t"):
            return None
        repeats = self._run.repeats
        asked = (
            fingerprint_of(spec.name, call.arguments, spec.cosmetic)
            if spec.cosmetic
            else fingerprint(spec.name, digest)
        )
        again = None if spec.poll else repeats.judge(asked, call.step, self._run.flow.burned)
        if again is None:
            repeats.note(asked, call.step, call.call.id)
        return again

    async def _repeated(self, call: IngestedCall, again: Recorded | Stuck) -> Refused:
        """The call is answered from the record, or it ends the run."""
        if isinstance(again, Stuck):
            return attrs.evolve(await self._refuse(call, _CIRCLE), stuck=True)
        text = f"{_SAME.text}\n{again.text}"
        output = attrs.evolve(_SAME, ok=again.ok, text=text, label=again.label)
        return attrs.evolve(await self._refuse(call, output), excused=True)

    async def _preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        """The runtime's own word on a call before it costs anything; None to go on."""
        runtime = self._asked_first
        if runtime is None:
            return None
        own = orjson.loads(_canonical(arguments))
        try:
            work = runtime.preflight(name, own, context)
            refused: object = await bounded(self._run, None, work)
            return None if refused is None else self._told(name, checked_output(refused))
        except (AuditError, EmitterError, KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except TimeUp as error:
            stop = ending(self._run)
            if stop is not None:
                raise Stopped(stop) from error
            return refusal(CallCode.POLICY_ERROR, "The check of this call did not end in time.")
        # The host's code: a check that fails has not passed.
        except BaseException as error:  # noqa: BLE001
            log_fault(f"the preflight of {name}", error, run=self._run.id)
            text = f"The check of this call failed ({type(error).__name__})."
            return refusal(CallCode.POLICY_ERROR, text)

    def _told(self, name: str, output: ToolOutput) -> ToolOutput:
        """The refusal as the model is told it: fenced, unless its label says that it is the host's own."""
        if output.label.integrity is not Integrity.EXTERNAL:
            return output
        run = self._run
        text = clean_text(run.frame(output.text, source=f"tool:{name}", burned=run.flow.burned))
        return attrs.evolve(output, text=text, framed=True)

    async def _stricter(
        self, call: IngestedCall, offered: Mapping[str, ToolSpec], context: ExecutionContext
    ) -> _Today:
        """What refuses a held call today: its form, the list, policy, or a lowered budget."""
        inside = call_context(self._run, context, call.step, call.call)
        refused = await self._fault(call, offered, inside)
        if refused is not None:
            return _Today(refused=refused)
        spec = offered[call.call.name]
        verdict = await self._class_of(spec, call.arguments)
        if verdict.approval_class is ApprovalClass.DENY:
            return _Today(refused=_denied(verdict), verdict=verdict)
        if verdict.approval_class is ApprovalClass.NOTIFY and self._run.emitter is None:
            log_untold(spec.name, run=self._run.id)
            return _Today(refused=_UNTOLD, verdict=verdict)
        verdict = self._recall.asking(spec, call.arguments, verdict)
        name, run = call.call.name, self._run
        # What was started before was paid for; running it once more costs the same again.
        short = run.ledger.excess(*run.reservation(call.step, name)) or run.hold_cost(
            call.step, offered[name]
        )
        refused = None if short is None else exhausted(short)
        return _Today(refused=refused, short=short, verdict=verdict)

    async def _class_of(self, spec: ToolSpec, arguments: Mapping[str, Json]) -> ClassVerdict:
        """The class of a call under the run's policy and label, as they are now.

        A predicate that took too long has not answered: one that can be awaited is stopped, any
        other denies when it has ended at last.
        """
        declared = spec.approval_class
        book = self._rules.get(spec.name) or self._open_book(spec.name)
        label = self._label()
        if book.fixed is not None and declared in book.fixed:
            verdict = book.fixed[declared]
        else:
            verdict = await self._by_policy(book, spec, arguments, label)
        flow = self._flow(spec, arguments, label)
        return verdict if flow is None else tightened(verdict, flow)

    def _flow(
        self, spec: ToolSpec, arguments: Mapping[str, Json], label: Label
    ) -> FlowVerdict | None:
        """What label rules and signals say of a call; None when nothing is to be said of it."""
        run = self._run
        flow = run.flow.judge(spec, arguments, label)
        if not run.asks_on:
            return flow
        alarms = run.asks_on & run.flow.signals
        return asked_by_signals(flow, spec.side_effects, alarms, label)

    def _label(self) -> Label:
        """What the context holds, and what the calls that were admitted beside this one will bring."""
        run = self._run
        if not run.held:
            self._beside = CLEAN
            return run.label
        return join(run.label, self._beside)

    async def _by_policy(
        self, book: _Book, spec: ToolSpec, arguments: Mapping[str, Json], label: Label
    ) -> ClassVerdict:
        run, declared = self._run, spec.approval_class
        if not book.asks:
            verdict = classify_call(
                book.rules, spec.name, arguments, label=label, declared=declared
            )
            if book.fixed is not None:
                book.fixed[declared] = verdict
            return verdict
        answers = await self._awaited(book, arguments)
        begun = run.clock.monotonic()
        verdict = classify_call(
            book.rules,
            spec.name,
            arguments,
            label=label,
            declared=declared,
            answers=answers,
        )
        if run.clock.monotonic() - begun <= PREDICATE_SECONDS:
            return verdict
        return _UNDECIDED

    async def _awaited(self, book: _Book, arguments: Mapping[str, Json]) -> dict[int, bool | None]:
        """The answers of the predicates that are coroutine functions, by the place of their rule."""
        answers: dict[int, bool | None] = {}
        for place in book.awaited:
            when = book.rules[place].when
            answers[place] = None if when is None else await self._answer(when, arguments)
        return answers

    async def _answer(self, when: Predicate, arguments: Mapping[str, Json]) -> bool | None:
        try:
            # All of it in there: what the predicate raises is told from a cancellation of ours.
            work = _given(when, orjson.loads(_canonical(arguments)))
            given = await bounded(self._run, PREDICATE_SECONDS, work)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except TimeUp as error:
            stop = ending(self._run)
            if stop is not None:
                raise Stopped(stop) from error
            return None
        # The host's code: whatever it raises, or that it did not end, it has not answered.
        except BaseException as error:  # noqa: BLE001
            log_fault("a predicate", error, run=self._run.id)
            return None
        return given if isinstance(given, bool) else None

    def _open_book(self, name: str) -> _Book:
        rules = tuple(
            rule for rule in self._run.contract.tool_policy.all_rules if rule.covers(name)
        )
        awaited = tuple(place for place, rule in enumerate(rules) if rule.awaits)
        asks = any(rule.when is not None for rule in rules)
        labelled = any(rule.when_label is not None for rule in rules)
        fixed: dict[ApprovalClass, ClassVerdict] | None = None if asks or labelled else {}
        self._rules[name] = _Book(rules=rules, asks=asks, awaited=awaited, fixed=fixed)
        return self._rules[name]

    async def _notify(self, call: IngestedCall, verdict: ClassVerdict) -> None:
        """Tell the host of a held call before it runs, unless an earlier drive has: once is enough.

        Raises:
            AuditError: the log could not take it; the call does not run.
            EmitterError: the host was not told; the call does not run.
            Stopped: the run ended before the host was told.
        """
        run, held = self._run, self._run.held[call.step]
        told = run.told.get(call.step)
        said = digest_text(f"{held.begun} {held.args_sha256} {verdict.reasons!r}")
        if told is not None and told.said == said:
            return
        times = 1 if told is None else told.times + 1
        subject = run.subject(call.step, call.call.id)
        event = call_notified(subject, held.tool, held.args_sha256, verdict.reasons, times)
        run.record(event)
        run.flush()
        await tell(run, event)
        run.told = {**run.told, call.step: Told(times=times, said=said)}

    async def refuse(self, call: IngestedCall, output: ToolOutput) -> Refused:
        """Refuse a call for a reason that is not the judge's own. A step that it held is given back.

        Raises:
            AuditError: the log could not take the record.
        """
        return await self._refuse(call, output)

    async def _refuse(
        self,
        call: IngestedCall,
        output: ToolOutput,
        short: Shortfall | None = None,
        verdict: ClassVerdict = _FREE,
    ) -> Refused:
        run = self._run
        denied = verdict.approval_class is ApprovalClass.DENY
        reasons = verdict.reasons if denied or output is _UNTOLD else ()
        rules = verdict.rules if denied else ()
        begun = self._let_go(call.step)
        if begun:
            output = begun_before(output)
        self._count(call, output, short)
        record = self._record(call, output, begun, rules)
        run.steps.append(record)
        if rules:
            self._tell_rules(call, rules, record.key)
        if begun:
            run.enter_in_log(step_finished(run.subject(call.step, call.call.id), record, output))
        event = step_refused(run.subject(call.step, call.call.id), record, reasons)
        run.record(event)
        refused = Refused(output=output, shortfall=short)
        if output.code in {CallCode.POLICY_DENIED, CallCode.POLICY_ERROR}:
            run.flush()
            try:
                await tell(run, event)
            except Stopped as stop:
                stop.refused = refused
                raise
        if run.observer is not None:
            run.observer.call_refused(call.step, call.call, output)
        return refused

    def _count(self, call: IngestedCall, output: ToolOutput, short: Shortfall | None) -> None:
        """One more refused call in the ledger."""
        ledger = self._run.ledger
        ledger.refused += 1
        if short is not None and call.step.startswith("t"):
            # It stops the run by itself: whoever grants more does not grant it to be stopped for this.
            ledger.unaffordable += 1
        if output.code in _DENIALS:
            ledger.denials += 1

    def _record(
        self, call: IngestedCall, output: ToolOutput, begun: int, rules: Sequence[BrokenRule]
    ) -> StepRecord:
        """The record of a refused call; the raw text of one that could not be read is in it."""
        unread = None if call.fault is None else call.raw
        return StepRecord(
            step=call.step,
            tool=call.call.name,
            call_id=call.call.id,
            admitted=begun > 0,
            executed=Executed.UNKNOWN if begun else Executed.NO,
            ok=output.ok,
            code=str(output.code),
            args_sha256=digest_arguments(call.arguments) if unread is None else digest_text(unread),
            label=self._run.label,
            raw=None if unread is None else clean_text(unread),
            # The drive that started it may have recorded an end of its own, under its own name.
            attempt=begun + 1,
            rules=tuple(str(rule.code) for rule in rules),
        )

    def _tell_rules(self, call: IngestedCall, rules: Sequence[BrokenRule], key: str) -> None:
        """The label rules that deny a call, in the log.

        Raises:
            AuditError: the log could not take it.
        """
        run, name = self._run, call.call.name
        subject = run.subject(call.step, call.call.id)
        run.record(label_decided(subject, name, rules, self._label(), key, denied=True))

    def take_back(self, admissions: Iterable[Admission]) -> None:
        """Count refusals no more: the calls are to be judged anew."""
        ledger = self._run.ledger
        for refused in admissions:
            if not isinstance(refused, Refused):
                continue
            ledger.refused -= 1
            ledger.unaffordable -= refused.shortfall is not None
            ledger.denials -= refused.output.code in _DENIALS

    def _let_go(self, step: str) -> int:
        """Give back what the step holds; how often it was started in earlier drives."""
        held = self._run.held.get(step)
        self._run.drop(step)
        return 0 if held is None else held.begun

    # ── approvals ─────────────────────────────────────────────────────────────────────────────

    def definition(self, spec: ToolSpec) -> str:
        """Digest of the tool as the runtime has it now; of what was offered if it does not say."""
        own = spec if self._knowing is None else self._knowing.tool_spec(spec.name)
        return "" if own is None else own.sha256

    def _ask(
        self,
        call: IngestedCall,
        held: Held,
        spec: ToolSpec,
        verdict: ClassVerdict,
        session: str,
    ) -> Pending:
        run = self._run
        arguments = frozen_arguments(orjson.loads(held.arguments))
        places = {name: arguments[name] for name in spec.destination_args if name in arguments}
        now, lasts = run.clock.now(), run.contract.approval_seconds
        request = ApprovalRequest(
            request_id=f"apr-{secrets.token_hex(12)}",
            run=run.id,
            task=run.task,
            step=call.step,
            tool=held.tool,
            tool_sha256=self.definition(spec),
            arguments=arguments,
            arguments_sha256=held.args_sha256,
            policy_sha256=run.policy_sha256,
            label=self._label(),
            reasons=verdict.reasons,
            created_at=now,
            expires_at=_earlier(None if lasts == UNLIMITED else _after(now, lasts), run.ends_at),
            reservation=run.reservation(call.step, held.tool),
            session=session,
            destinations=frozen_arguments(places),
            rules=tuple(dict.fromkeys(str(rule.code) for rule in verdict.rules)),
        )
        request = seal_request(run.seal, request)
        if verdict.rules:
            subject, key = run.subject(call.step), request.request_id
            run.record(
                label_decided(subject, held.tool, verdict.rules, request.label, key, denied=False)
            )
        run.record(approval_requested(run.subject(call.step), request))
        run.flush()
        if run.observer is not None:
            run.observer.approval_requested(request)
        return Pending(request=request)

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        """What the approver says, as long as the request is open; None when that is nothing usable.

        Waiting for a person is not activity: it is not charged to the run's time. An approver
        that raises, answers about another request or with anything but a decision has not decided.
        """
        run, approver = self._run, self._run.approver
        if approver is None or run.is_interrupted():
            return None
        left = None
        if request.expires_at is not None:
            left = (request.expires_at - run.clock.now()).total_seconds()
            if left <= 0:
                return None
        # Of its own: what the approver does to it, the request does not become.
        shown = attrs.evolve(request, arguments=orjson.loads(_canonical(request.arguments)))
        run.end_activity()
        try:
            work = _decided(approver, shown)
            decision: object = await bounded(run, left, work, idle=True)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except TimeUp:
            return None
        # The host's code: nothing that it raises can approve a call.
        except BaseException as error:  # noqa: BLE001
            log_fault("the approver", error, run=run.id)
            return None
        finally:
            run.begin_activity()
        if not isinstance(decision, Decision) or decision.request_id != request.request_id:
            return None
        return decision

    async def rule(
        self,
        step: str,
        call: ToolCall,
        request: ApprovalRequest,
        decision: Decision,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> Admission:
        """What a decision makes of a pending call, judged again under today's rules.

        An approval never outranks them: an expired request, a tool that is gone or was redefined, a
        policy that now denies, an address that is no longer listed, arguments that no longer fit or a
        budget that was lowered refuse the call. Where there is a reason to ask by now that the person
        was not shown, a new request takes the place of this one. What runs is what was asked about,
        from the request, or what the person made of it.

        Raises:
            AuditError: the log could not take the decision; nothing runs.
            EmitterError: the host's emitter raised.
            Stopped: the run ended before the call was judged.
        """
        run, edited = self._run, decision.edited_args
        arguments = request.arguments if edited is None else edited
        asked = ToolCall(id=call.id, name=request.tool, arguments=arguments)
        ingested = _again(step, asked)
        spec = offered.get(request.tool)
        if edited is not None and spec is not None:
            self._run.flow.said_by_person(spec, edited)
        today, code = await self._ruling(ingested, request, decision, offered, context)
        run.record(approval_decided(run.subject(step), request, decision, code))
        run.flush()
        if today.refused is not None:
            if today.refused.code == CallCode.DENIED_BY_PERSON:
                spec, wanted = offered.get(request.tool), _again(step, call).arguments
                self._recall.deny(decision, spec, request.tool, request.arguments, wanted)
            refused = today.refused if edited is None else _of_an_edit(today.refused)
            placed = await self._refuse(ingested, refused, today.short, today.verdict)
            return attrs.evolve(placed, excused=today.refused.code in _PEOPLE)
        unseen = self._unseen(request, today)
        held = _held(request.tool, _canonical(arguments), not unseen, run.held[step].begun)
        run.held[step] = held
        if unseen:
            # All that was ever a reason: so that asking again comes to an end.
            verdict = attrs.evolve(today.verdict, reasons=(*request.reasons, *unseen))
            return self._ask(ingested, held, offered[request.tool], verdict, context.session)
        if today.verdict.approval_class is ApprovalClass.NOTIFY:
            await self._notify(ingested, today.verdict)
        self._recall.trust(offered[request.tool], arguments)
        self._recall.remember(request, decision, arguments)
        admitted = self._admitted(step, asked, offered[request.tool], today.verdict)
        return admitted if arguments == call.arguments else Admitted(call=asked)

    async def reconsider(
        self, call: ToolCall, request: ApprovalRequest, offered: Mapping[str, ToolSpec]
    ) -> Admission | None:
        """What a worse context makes of a call before a person is shown it; None: the request stands.

        Nobody is asked about what the policy denies by now, or without a reason that there is by now.

        Raises:
            AuditError: the log could not take the record.
            EmitterError: the host's emitter raised.
            Stopped: the run ended before the call was judged.
        """
        step, spec = request.step, offered.get(request.tool)
        if spec is None or self._label() == request.label:
            return None
        ingested = _again(step, call)
        verdict = await self._class_of(spec, request.arguments)
        if verdict.approval_class is ApprovalClass.DENY:
            return await self._refuse(ingested, _denied(verdict), verdict=verdict)
        asks = verdict.approval_class is ApprovalClass.REQUEST_USER
        unseen = request.unseen(verdict.reasons) if asks else ()
        if not unseen:
            return None
        verdict = attrs.evolve(verdict, reasons=(*request.reasons, *unseen))
        held = self._run.held[step]
        return self._ask(ingested, held, spec, verdict, request.session)

    async def _ruling(
        self,
        call: IngestedCall,
        request: ApprovalRequest,
        decision: Decision,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> tuple[_Today, EventCode]:
        try:
            check_request(self._run.seal, request)
            genuine = digest_arguments(request.arguments) == request.arguments_sha256
        except StateRefused:
            genuine = False
        if not genuine:
            text = "The request is not the one that a person was asked about."
            return _Today(refused=refusal(CallCode.POLICY_ERROR, text)), EventCode.APR003D
        if request.expired(self._run.clock.now()):
            text = "The request to a person expired before it was answered."
            refused = refusal(CallCode.APPROVAL_EXPIRED, text, retryable=True)
            return _Today(refused=refused), EventCode.APR004D
        if decision.verdict is not Verdict.APPROVE:
            text = f"A person denied this call. Reason: {decision.reason or 'none given'}"
            return _Today(refused=refusal(CallCode.DENIED_BY_PERSON, text)), EventCode.APR003D
        spec = offered.get(request.tool)
        if spec is not None and self.definition(spec) != request.tool_sha256:
            return _Today(refused=_unknown(request.tool, {})), EventCode.APR002A
        remember, rules = decision.remember, request.rules
        if spec and remember_fault(remember, spec.name, spec.parameters, call.arguments, rules):
            # Whoever brings it is told before; this is for what was kept without being read.
            text = "The decision on this call was not one that can be followed."
            return _Today(refused=refusal(CallCode.POLICY_ERROR, text)), EventCode.APR003D
        return await self._stricter(call, offered, context), EventCode.APR002A


async def _given(when: Predicate, arguments: Mapping[str, Json]) -> object:
    given: object = when(arguments)
    return await given if isinstance(given, Awaitable) else given


async def _decided(approver: Approver, request: ApprovalRequest) -> object:
    return await approver.decide(request)


def _after(now: datetime, seconds: float) -> datetime:
    """So many seconds later; the end of the calendar where it does not reach."""
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _earlier(first: datetime | None, second: datetime | None) -> datetime | None:
    """The earlier of two moments; None is never."""
    if first is None or second is None:
        return first or second
    return min(first, second)


def _again(step: str, call: ToolCall) -> IngestedCall:
    """A call that was ingested before, to be judged once more."""
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return IngestedCall(step=step, call=call, arguments=arguments, raw=None)


def _of_an_edit(output: ToolOutput) -> ToolOutput:
    """The refusal of arguments that a person wrote: the model is told that they are not its own."""
    told = dict(output.data) if isinstance(output.data, dict) else {}
    text = f"A person changed the arguments, and then: {told.get('message', 'it was refused')}"
    told |= {"message": text, "edited": True}
    return attrs.evolve(output, data=told, text=orjson.dumps(told).decode())


def _canonical(arguments: Mapping[str, Json]) -> bytes:
    return orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)


def _held(tool: str, arguments: bytes, ready: bool, begun: int = 0) -> Held:
    digest = f"sha256:{hashlib.sha256(arguments).hexdigest()}"
    held = Held(tool=tool, arguments=arguments, args_sha256=digest, ready=True, begun=begun)
    return held if ready else _waiting(held)


def _waiting(held: Held) -> Held:
    """The step of a call that waits for a person, which may be for days."""
    return attrs.evolve(held, arguments=own_copy(held.arguments), ready=False)


def _unknown(name: str, offered: Mapping[str, ToolSpec]) -> ToolOutput:
    names: list[Json] = [str(offer) for offer in offered]
    text = f"There is no tool {name[:64]!r}."
    return refusal(CallCode.UNKNOWN_TOOL, text, retryable=True, details={"tools": names})


def _denied(verdict: ClassVerdict) -> ToolOutput:
    code = CallCode.POLICY_ERROR if verdict.failed else CallCode.POLICY_DENIED
    if not verdict.rules:
        return refusal(code, "The policy of this task does not allow this call.")
    worst = next(rule for rule in verdict.rules if rule.verdict is LabelVerdict.DENY)
    return refusal(
        code,
        f"The label rules of this task deny this call: {worst.told()}.",
        details={"rules": [rule.to_json() for rule in verdict.rules]},
    )
