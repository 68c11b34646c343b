"""The task guard: every turn and every call of a task is judged, reserved, recorded and settled.

The guard is in the runtime, never only in the loop: a direct caller of the guarded runtime is bound
by the same rules. Judging one call goes in one order, and the first rule that fails refuses it:
unknown tool, bad JSON, schema, the runtime's own preflight (the egress list), policy, budget,
approval. A person is never shown a call that policy or budget would refuse.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import attrs

from runtime_pack.approvals import ApprovalRequest, Decision, Verdict, digest_arguments
from runtime_pack.audit.log import AuditLog
from runtime_pack.audit.verify import LogHead
from runtime_pack.catalog import TURN_TOOL, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import (
    AuditError,
    CallCode,
    ContractError,
    EmitterError,
    ModelError,
    StopCode,
)
from runtime_pack.events import Event, EventCode, EventType
from runtime_pack.labels import CLEAN, Integrity, join
from runtime_pack.ledger import (
    TURNS,
    UNLIMITED,
    WRAP_UP,
    Ledger,
    LedgerView,
    Limit,
    Shortfall,
    step_buckets,
)
from runtime_pack.machine import (
    Admission,
    Admitted,
    IngestedCall,
    Outcome,
    OutcomeKind,
    Pending,
    Refused,
    budget_stop,
    failure,
    ingest,
    refusal,
)
from runtime_pack.messages import FinishReason, Json, ToolCall, Turn
from runtime_pack.policy import ApprovalClass, TaskContract, ToolRule, classify_call
from runtime_pack.ports import (
    Approver,
    Clock,
    Emitter,
    ExecutionContext,
    Frame,
    PreflightRuntime,
    ReleasableRuntime,
    SystemClock,
    ToolRuntime,
    TurnRequest,
)
from runtime_pack.records import (
    StepRecord,
    approval_decided,
    approval_requested,
    digest_text,
    step_finished,
    step_refused,
    step_started,
    turn_finished,
    turn_record,
    turn_started,
)
from runtime_pack.seal import Seal

__all__ = ("AgentTaskRun", "GuardedRuntime", "TurnResult", "create_agent_task_run")

_FAULTS_SHOWN: Final = 8


@attrs.frozen(kw_only=True)
class TurnResult:
    """A model turn as the guard took it: a turn, or why there is none."""

    turn: Turn | None = None
    lost: Outcome | None = None
    soft: bool = False
    cut: bool = False


_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.MALFORMED_CALL, FinishReason.UNKNOWN})


def create_agent_task_run(
    contract: TaskContract,
    *,
    task: str = "",
    run_id: str | None = None,
    approver: Approver | None = None,
    emitter: Emitter | None = None,
    audit: AuditLog | None = None,
    clock: Clock | None = None,
    frame: Frame | None = None,
    seal: Seal | None = None,
) -> AgentTaskRun:
    """A run of one task under *contract*; wrap the tools with its `guard_runtime`.

    Args:
        contract: what the task may spend and what needs a person.
        task: the task's name in events.
        clock: the machine's clocks when absent.
        run_id: letters, digits, `-` and `_`, at most 64; random when absent.
        approver: decides pending requests while the run is alive; without one the run suspends.
        emitter: receives denials of policy; raising stops the action.
        audit: the log that every decision goes to before it takes effect.
        frame: fences outputs from outside that are not fenced yet.
        seal: authenticates saved states; a random one seals for this process only.

    Raises:
        ContractError: the contract or the id is not valid.
    """
    if not isinstance(contract, TaskContract):
        raise ContractError("contract", "must be a TaskContract")
    return AgentTaskRun(
        contract=contract,
        task=task,
        run_id=run_id,
        approver=approver,
        emitter=emitter,
        audit=audit,
        clock=clock or SystemClock(),
        frame=frame,
        seal=seal or Seal.random(),
    )


class AgentTaskRun:
    """The state of one run that all its runtimes share: ledger, records, label, log."""

    def __init__(
        self,
        *,
        contract: TaskContract,
        task: str,
        run_id: str | None,
        approver: Approver | None,
        emitter: Emitter | None,
        audit: AuditLog | None,
        clock: Clock,
        frame: Frame | None,
        seal: Seal,
    ) -> None:
        self.contract = contract
        self.task = task
        self.id = f"run-{secrets.token_hex(8)}" if run_id is None else checked_id(run_id)
        self.approver = approver
        self.emitter = emitter
        self.audit = audit
        self.clock = clock
        self.frame = frame
        self.seal = seal
        self.ledger = Ledger(contract.limits())
        self.steps: list[StepRecord] = []
        self.label = CLEAN
        self.burned: set[str] = set()
        self.turn = 0
        self.interrupt: Outcome | None = None
        self.interrupt_resumable = False
        self.policy_sha256 = contract.tool_policy.sha256
        self._scopes: set[asyncio.Timeout] = set()
        self._boundary = False
        self._direct = 0

    def guard_runtime(self, runtime: ToolRuntime) -> GuardedRuntime:
        """The runtime under this run's guard. Guarding it twice is refused.

        Raises:
            ContractError: the runtime is guarded already, so every step would count twice.
        """
        if isinstance(runtime, GuardedRuntime):
            raise ContractError("runtime", "is guarded already")
        return GuardedRuntime(self, runtime)

    def view(self) -> LedgerView:
        """The ledger at this instant."""
        return self.ledger.view(self.clock.monotonic())

    @property
    def head(self) -> LogHead | None:
        """The log's last line, or None without a log."""
        return None if self.audit is None else self.audit.head

    def cancel(self, reason: str, mode: str = "now") -> None:
        """End the run: now (calls in flight are stopped) or after the step in hand.

        Raises:
            ValueError: the mode is not `now` or `after_step`.
        """
        stop_code = StopCode.CANCELLED
        outcome = attrs.evolve(failure("run", stop_code, reason), kind=OutcomeKind.CANCELLED)
        self._interrupt(outcome, resumable=False, mode=mode)

    def pause(self, reason: str, mode: str = "now") -> None:
        """Suspend the run where it stands; it can be resumed.

        Raises:
            ValueError: the mode is not `now` or `after_step`.
        """
        outcome = attrs.evolve(failure("run", StopCode.PAUSED, reason), kind=OutcomeKind.SUSPENDED)
        self._interrupt(outcome, resumable=True, mode=mode)

    def _interrupt(self, outcome: Outcome, *, resumable: bool, mode: str) -> None:
        if mode not in {"now", "after_step"}:
            raise ValueError(f"{mode!r} is not a mode: now or after_step")
        self.interrupt, self.interrupt_resumable = outcome, resumable
        if mode == "now":
            for scope in self._scopes:
                scope.reschedule(0)

    def subject(self, step: str = "", call_id: str = "") -> dict[str, Json]:
        """Who: for events of this run."""
        body: dict[str, Json] = {"run": self.id}
        if self.task:
            body["task"] = self.task
        if step:
            body["step"] = step
        if call_id:
            body["call"] = call_id
        return body

    def record(self, event: Event) -> None:
        """Write an event to the log; a violation is counted and is in the file at once.

        Raises:
            AuditError: the log could not take it.
        """
        violation = event.type is EventType.SANDBOX_VIOLATION
        if violation:
            self.ledger.violations += 1
        if self.audit is None:
            return
        self.audit.append(event)
        if violation:
            self.audit.flush()

    def flush(self) -> None:
        """Write what was recorded to the file.

        Raises:
            AuditError: the log could not be written.
        """
        if self.audit is not None:
            self.audit.flush()

    async def emit(self, event: Event) -> None:
        """Tell the host's emitter.

        Raises:
            EmitterError: the emitter raised, or there is none for what needs one.
        """
        if self.emitter is None:
            return
        try:
            await self.emitter.emit(event)
        # The host's code: whatever it raises, the action stops.
        except Exception as error:
            raise EmitterError(f"the emitter failed: {type(error).__name__}") from error

    def watch(self, scope: asyncio.Timeout) -> asyncio.Timeout:
        """Let `cancel` and `pause` end this scope; `forget` it when it is left."""
        self._scopes.add(scope)
        return scope

    def forget(self, scope: asyncio.Timeout) -> None:
        """The scope was left."""
        self._scopes.discard(scope)

    def is_interrupted(self) -> bool:
        """Whether `cancel` or `pause` was called."""
        return self.interrupt is not None

    def next_direct_step(self) -> str:
        """A step id for a call that no model asked for."""
        self._direct += 1
        return f"d{self._direct}"


def checked_id(run_id: str) -> str:
    """The id if it may become a file name.

    Raises:
        ContractError: empty, too long, or with a character that is not a letter, digit, - or _.
    """
    allowed = run_id.isascii() and run_id.replace("-", "a").replace("_", "a").isalnum()
    if not allowed or not 1 <= len(run_id) <= 64 or run_id.startswith("-"):
        raise ContractError("run_id", f"{run_id[:80]!r} is not 1 to 64 letters, digits, - or _")
    return run_id


class GuardedRuntime:
    """A runtime under a task guard. Made by `AgentTaskRun.guard_runtime`."""

    def __init__(self, task_run: AgentTaskRun, inner: ToolRuntime) -> None:
        self.task_run = task_run
        self.inner = inner
        self._rules: dict[str, tuple[ToolRule, ...]] = {}

    def rewrap(self, wrap: Callable[[ToolRuntime], ToolRuntime]) -> GuardedRuntime:
        """The same guard around `wrap(inner)`: what is added later is still inside the guard."""
        return GuardedRuntime(self.task_run, wrap(self.inner))

    async def release(self) -> None:
        """Let go of connections and processes that the inner runtime holds between drives."""
        if isinstance(self.inner, ReleasableRuntime):
            await self.inner.release()

    def tool_spec(self, name: str) -> ToolSpec | None:
        """The spec of a tool of the inner runtime, if it knows its tools."""
        inner = self.inner
        return inner.tool_spec(name) if isinstance(inner, PreflightRuntime) else None

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        """Judge, run and record one call, for a caller that is not the loop.

        Raises:
            AuditError: the log could not take a record; nothing ran that it would have covered.
            EmitterError: the host's emitter raised.
        """
        if name == TURN_TOOL:
            return await self._turn_as_tool(context)
        run = self.task_run
        call = ToolCall(id=context.call_id or "direct", name=name, arguments=arguments)
        turn = Turn(status="tool_request", calls=(call,))  # type: ignore[arg-type]  # a StrEnum's word
        (ingested,) = ingest(turn, number=0, taken=set(), cut=False)
        ingested = attrs.evolve(ingested, step=run.next_direct_step())
        spec = self.tool_spec(name)
        offered = {} if spec is None else {name: spec}
        admission = await self.admit(ingested, offered, context)
        if isinstance(admission, Pending):
            admission = await self._ask_now(ingested, admission, offered, context)
        if isinstance(admission, Refused):
            return admission.output
        return await self.run(ingested.step, ingested.call, offered[name], context)

    async def _ask_now(
        self,
        call: IngestedCall,
        pending: Pending,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> Admission:
        """A direct call cannot suspend: it gets its decision here, or it is refused."""
        decision = await self.decide(pending.request)
        if decision is not None:
            return await self.rule(
                call.step, call.call, pending.request, decision, offered, context
            )
        self.withdraw(call.call.name)
        return Refused(
            output=refusal(
                CallCode.APPROVAL_REQUIRED, "This call needs a person, and none is here."
            )
        )

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        """What the approver says; None without one, and when its answer is about another request."""
        approver = self.task_run.approver
        if approver is None:
            return None
        decision = await approver.decide(request)
        if decision is None or decision.request_id != request.request_id:
            return None
        return decision

    # ── judging ───────────────────────────────────────────────────────────────────────────────

    async def admit(
        self, call: IngestedCall, offered: Mapping[str, ToolSpec], context: ExecutionContext
    ) -> Admission:
        """Judge one call; when it is admitted or pending, its step is reserved.

        Raises:
            AuditError: the log could not take the record.
            EmitterError: the host's emitter raised.
        """
        run, name = self.task_run, call.call.name
        refused = await self._judge(call.step, call, offered, context)
        if refused is not None:
            return await self._refuse(call, refused)
        verdict = classify_call(self._rules_for(name), name, call.arguments)
        if verdict.approval_class is ApprovalClass.DENY:
            code = CallCode.POLICY_ERROR if verdict.failed else CallCode.POLICY_DENIED
            text = "The policy of this task does not allow this call."
            return await self._refuse(call, refusal(code, text))
        short = run.ledger.reserve(*step_buckets(name))
        if short is not None:
            return await self._refuse(call, _exhausted(short), short)
        if verdict.approval_class is ApprovalClass.AUTO:
            return _ADMITTED
        request = self._request(call, verdict.reasons)
        run.record(approval_requested(run.subject(call.step), request))
        run.flush()
        return Pending(request=request)

    async def _judge(
        self,
        step: str,
        call: IngestedCall,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> ToolOutput | None:
        """What refuses a call before policy and budget are asked; None when nothing does."""
        if call.cut:
            return call.fault
        spec = offered.get(call.call.name)
        if spec is None:
            names: list[Json] = [str(name) for name in offered]
            text = f"There is no tool {call.call.name[:64]!r}."
            return refusal(CallCode.UNKNOWN_TOOL, text, retryable=True, details={"tools": names})
        if call.fault is not None:
            return call.fault
        faults = spec.check(call.arguments)
        if faults:
            shown: list[Json] = [
                {"path": fault.path or "/", "problem": fault.problem}
                for fault in faults[:_FAULTS_SHOWN]
            ]
            text = "The arguments do not fit the tool's parameters."
            details: dict[str, Json] = {"faults": shown}
            return refusal(spec.invalid_code, text, retryable=True, details=details)
        if not isinstance(self.inner, PreflightRuntime):
            return None
        return await self.inner.preflight(
            spec.name, call.arguments, self._context(context, step, call.call)
        )

    def _context(self, base: ExecutionContext, step: str, call: ToolCall) -> ExecutionContext:
        run = self.task_run
        return ExecutionContext(
            run=run.id,
            task=run.task,
            session=base.session,
            agent=base.agent,
            step=step,
            turn=run.turn,
            call_id=call.id,
            label=run.label,
            burned=run.burned,
            record=run.record,
        )

    def _rules_for(self, name: str) -> tuple[ToolRule, ...]:
        rules = self._rules.get(name)
        if rules is None:
            policy = self.task_run.contract.tool_policy
            rules = tuple(rule for rule in policy.rules if rule.covers(name))
            self._rules[name] = rules
        return rules

    async def _refuse(
        self, call: IngestedCall, output: ToolOutput, short: Shortfall | None = None
    ) -> Refused:
        run = self.task_run
        run.ledger.refused += 1
        digest = None if call.raw is None else digest_text(call.raw)
        record = StepRecord(
            step=call.step,
            tool=call.call.name[:64],
            call_id=call.call.id,
            admitted=False,
            executed=Executed.NO,
            ok=False,
            code=str(output.code),
            args_sha256=digest,
            label=run.label,
        )
        run.steps.append(record)
        event = step_refused(run.subject(call.step, call.call.id), record)
        run.record(event)
        if output.code in {CallCode.POLICY_DENIED, CallCode.POLICY_ERROR}:
            run.flush()
            await run.emit(event)
        return Refused(output=output, shortfall=short)

    def over_refused(self) -> bool:
        """Whether more calls were refused than the contract allows."""
        limit = self.task_run.contract.refused_limit
        return limit != UNLIMITED and self.task_run.ledger.refused > limit

    # ── approvals ─────────────────────────────────────────────────────────────────────────────

    def _request(self, call: IngestedCall, reasons: tuple[str, ...]) -> ApprovalRequest:
        run = self.task_run
        now, lasts = run.clock.now(), run.contract.approval_seconds
        return ApprovalRequest(
            request_id=f"apr-{secrets.token_hex(12)}",
            run=run.id,
            task=run.task,
            step=call.step,
            tool=call.call.name,
            arguments=call.arguments,
            arguments_sha256=digest_arguments(call.arguments),
            policy_sha256=run.policy_sha256,
            label=run.label,
            reasons=reasons,
            created_at=now,
            expires_at=None if lasts == UNLIMITED else now + timedelta(seconds=lasts),
        )

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

        An approval never outranks them: an expired request, a policy that now denies, an address
        that is no longer listed or arguments that no longer fit refuse the call.

        Raises:
            AuditError: the log could not take the decision; nothing runs.
            EmitterError: the host's emitter raised.
        """
        ingested = IngestedCall(
            step=step, call=call, arguments=request.arguments, raw=None, fault=None
        )
        output, code = await self._overrule(ingested, request, decision, offered, context)
        run = self.task_run
        run.record(approval_decided(run.subject(step), request, decision, code))
        run.flush()
        if output is None:
            return _ADMITTED
        self.withdraw(call.name)
        return await self._refuse(ingested, output)

    async def _overrule(
        self,
        call: IngestedCall,
        request: ApprovalRequest,
        decision: Decision,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> tuple[ToolOutput | None, EventCode]:
        if request.expired(self.task_run.clock.now()):
            text = "The request to a person expired before it was answered."
            return refusal(CallCode.APPROVAL_EXPIRED, text, retryable=True), EventCode.APR004D
        if decision.verdict is Verdict.DENY:
            text = f"A person denied this call. Reason: {decision.reason or 'none given'}"
            return refusal(CallCode.DENIED_BY_PERSON, text), EventCode.APR003D
        refused = await self._judge(call.step, call, offered, context)
        if refused is not None:
            return refused, EventCode.APR002A
        verdict = classify_call(self._rules_for(call.call.name), call.call.name, call.arguments)
        if verdict.approval_class is ApprovalClass.DENY:
            text = "The policy of this task does not allow this call any more."
            return refusal(CallCode.POLICY_DENIED, text), EventCode.APR002A
        return None, EventCode.APR002A

    def withdraw(self, tool: str) -> None:
        """Give back the step of a call that was admitted or pending and will never run."""
        self.task_run.ledger.release(*step_buckets(tool))

    # ── running ───────────────────────────────────────────────────────────────────────────────

    async def run(
        self, step: str, call: ToolCall, spec: ToolSpec, context: ExecutionContext
    ) -> ToolOutput:
        """Run an admitted call. Its `started` record is in the file before the tool is called.

        Raises:
            AuditError: the record could not be written; the tool was not called.
            EmitterError: the host's emitter raised.
        """
        run = self.task_run
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        record = self._start(step, call, arguments)
        begun = run.clock.monotonic()
        # The outcome of a call that an exception tears apart is not known.
        output = _UNKNOWN
        try:
            output = await self._call(spec, arguments, self._context(context, step, call), begun)
        finally:
            run.ledger.settle(*step_buckets(call.name))
            self._finish(record, output, begun)
        run.label = join(run.label, output.label)
        return output

    def _start(self, step: str, call: ToolCall, arguments: Mapping[str, Json]) -> StepRecord:
        run = self.task_run
        digest = digest_arguments(arguments)
        record = StepRecord(
            step=step,
            tool=call.name,
            call_id=call.id,
            admitted=True,
            executed=Executed.UNKNOWN,
            args_sha256=digest,
            label=run.label,
        )
        run.steps.append(record)
        if run.audit is not None:
            subject = run.subject(step, call.id)
            run.audit.append(step_started(subject, record, run.policy_sha256))
            run.audit.flush()
        return record

    async def _call(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Json],
        context: ExecutionContext,
        begun: float,
    ) -> ToolOutput:
        run = self.task_run
        seconds = min(spec.timeout_seconds, run.ledger.remaining_seconds(begun))
        scope = run.watch(asyncio.timeout(seconds))
        try:
            async with scope:
                output: object = await self.inner.execute_tool(spec.name, arguments, context)
        except (AuditError, EmitterError):
            raise
        # The host's code: a tool that raises is a tool error, never the end of the run.
        except Exception as error:  # noqa: BLE001
            if scope.expired():
                return self._timed_out(seconds)
            text = f"The tool failed ({type(error).__name__})."
            return refusal(CallCode.TOOL_ERROR, text, executed=Executed.UNKNOWN)
        finally:
            run.forget(scope)
        if not isinstance(output, ToolOutput):
            text = "The tool answered with something that is not a tool output."
            return refusal(CallCode.TOOL_ERROR, text, executed=Executed.YES)
        return self._labelled(output, spec)

    def _timed_out(self, seconds: float) -> ToolOutput:
        run = self.task_run
        if run.interrupt is not None:
            text = "The run was stopped while this call was running."
            return refusal(CallCode.CANCELLED, text, executed=Executed.UNKNOWN)
        text = f"The call did not end within {seconds:g} seconds."
        return refusal(CallCode.TIMEOUT, text, executed=Executed.UNKNOWN, retryable=True)

    def _finish(self, record: StepRecord, output: ToolOutput, begun: float) -> None:
        run = self.task_run
        record.executed, record.ok, record.code = output.executed, output.ok, output.code
        if output.citations:
            record.citations = tuple(citation.to_wire() for citation in output.citations)
        record.elapsed_us = round((run.clock.monotonic() - begun) * 1_000_000)
        if run.audit is not None:
            subject = run.subject(record.step, record.call_id)
            run.record(step_finished(subject, record, output))

    def _labelled(self, output: ToolOutput, spec: ToolSpec) -> ToolOutput:
        """The output with a label no better than its tool's, fenced if it comes from outside."""
        run = self.task_run
        label, text, framed = join(output.label, spec.floor_label), output.text, output.framed
        if not framed and run.frame is not None and label.integrity is Integrity.EXTERNAL:
            text = run.frame(text, source=f"tool:{spec.name}", burned=run.burned)
            framed = True
        if label is output.label and framed is output.framed:
            return output
        return attrs.evolve(output, label=label, text=text, framed=framed)

    # ── turns ─────────────────────────────────────────────────────────────────────────────────

    async def take_turn(
        self, request: TurnRequest, context: ExecutionContext, *, closing: bool = False
    ) -> TurnResult:
        """Reserve, take, settle and record one model turn through the inner runtime.

        `closing` is the wrap-up: one turn on its own line of the ledger.

        Raises:
            AuditError: the log could not take a record; the model was not asked.
        """
        run = self.task_run
        bucket = WRAP_UP if closing else TURNS
        begun = run.clock.monotonic()
        short = run.ledger.time_shortfall(begun)
        hard = short is not None
        short = short or run.ledger.reserve(bucket)
        if short is not None:
            outcome = Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(short))
            return TurnResult(lost=outcome, soft=not hard)
        run.turn += 1
        step = f"t{run.turn}"
        try:
            if run.audit is not None:
                asked = len(request.messages), len(request.tools)
                run.audit.append(turn_started(run.subject(step), step, *asked))
                run.audit.flush()
            return await self._taken(step, request, context, begun)
        finally:
            run.ledger.settle(bucket)

    @property
    def may_wrap_up(self) -> bool:
        """Whether the contract has a wrap-up turn: with a single turn there is none."""
        limit: Limit = self.task_run.ledger.limit(TURNS)
        return self.task_run.contract.wrap_up and (limit == UNLIMITED or limit > 1)

    async def _taken(
        self, step: str, request: TurnRequest, context: ExecutionContext, begun: float
    ) -> TurnResult:
        run = self.task_run
        seconds = run.ledger.remaining_seconds(begun)
        inside = attrs.evolve(
            context,
            run=run.id,
            task=run.task,
            step=step,
            turn=run.turn,
            label=run.label,
            burned=run.burned,
            record=run.record,
            request=request,
        )
        lost: Outcome | None = None
        turn: Turn | None = None
        scope = run.watch(asyncio.timeout(None if seconds == float("inf") else seconds))
        try:
            async with scope:
                turn = await self._ask(inside)
        except (ModelError, TimeoutError) as error:
            lost = failure("model", StopCode.MODEL_ERROR, str(error) or "the model timed out")
            if scope.expired():
                lost = run.interrupt or self._out_of_time()
        finally:
            run.forget(scope)
        self._record_turn(step, turn, lost, begun)
        if turn is None:
            return TurnResult(lost=lost)
        run.ledger.charge(turn.usage)
        return TurnResult(turn=turn, cut=_is_cut(turn, request))

    async def _ask(self, context: ExecutionContext) -> Turn:
        try:
            output = await self.inner.execute_tool(TURN_TOOL, {}, context)
        except (AuditError, EmitterError):
            raise
        # The host's code: an adapter that raises loses the turn, and the run says why.
        except Exception as error:
            raise ModelError(
                f"the model's adapter failed ({type(error).__name__}: {error})"
            ) from error
        turn = output.turn if isinstance(output, ToolOutput) else None
        if not isinstance(turn, Turn):
            raise ModelError("the runtime's agent:execute-turn did not return a turn")
        return turn

    def _out_of_time(self) -> Outcome:
        run = self.task_run
        now = run.clock.monotonic()
        limit = run.contract.max_duration_seconds
        short = Shortfall(
            budget="duration_seconds",
            limit=0 if limit == UNLIMITED else limit,
            used=run.ledger.active_seconds(now),
            reserved=0,
        )
        return Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(short))

    def _record_turn(
        self, step: str, turn: Turn | None, lost: Outcome | None, begun: float
    ) -> None:
        run = self.task_run
        elapsed = round((run.clock.monotonic() - begun) * 1_000_000)
        code = None if lost is None or lost.stop is None else str(lost.stop.code)
        record = turn_record(step, turn, code, run.label, elapsed)
        run.steps.append(record)
        if run.audit is not None:
            run.record(turn_finished(run.subject(step), record, turn))

    async def _turn_as_tool(self, context: ExecutionContext) -> ToolOutput:
        if context.request is None:
            text = "A model turn needs context.request."
            return refusal(CallCode.INVALID_ARGUMENTS, text)
        result = await self.take_turn(context.request, context)
        if result.turn is not None:
            return ToolOutput(ok=True, text=result.turn.text, turn=result.turn, framed=True)
        stop = None if result.lost is None else result.lost.stop
        if stop is None:
            return refusal(CallCode.TOOL_ERROR, "The turn failed.", executed=Executed.UNKNOWN)
        if stop.shortfall is not None:
            return _exhausted(stop.shortfall)
        return refusal(str(stop.code), stop.message, executed=Executed.UNKNOWN)


_ADMITTED: Final = Admitted()
_UNKNOWN: Final = refusal(
    CallCode.OUTCOME_UNKNOWN, "The call did not end.", executed=Executed.UNKNOWN
)


def _exhausted(short: Shortfall) -> ToolOutput:
    text = f"The budget {short.budget} is used up."
    return refusal(CallCode.BUDGET_EXHAUSTED, text, details=short.to_json())


def _is_cut(turn: Turn, request: TurnRequest) -> bool:
    if turn.finish in _CUT:
        return True
    limit = request.max_output_tokens
    return limit is not None and turn.usage is not None and turn.usage.output_tokens >= limit
