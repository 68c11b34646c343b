"""The one driver: it carries out the machine's commands and awaits.

Every turn and every call goes through the guarded runtime. With a store, the run is saved after
every model response and around every call, before what the save speaks of can happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import orjson

from runtime_pack.approvals import ApprovalRequest, Decision, Verdict
from runtime_pack.catalog import Effects, Executed, ToolOutput, ToolSpec, index_catalog
from runtime_pack.errors import (
    AuditError,
    CallCode,
    ContractError,
    EmitterError,
    RunConflict,
    StateRefused,
    StopCode,
    StoreError,
)
from runtime_pack.events import Event, EventCode
from runtime_pack.guard import AgentTaskRun, GuardedRuntime, create_agent_task_run
from runtime_pack.labels import join, parse_label
from runtime_pack.ledger import TURNS, LedgerView, parse_count, step_buckets
from runtime_pack.machine import (
    Admission,
    AskModel,
    AskPeople,
    Classified,
    Classify,
    Command,
    Commit,
    Ended,
    Execute,
    ExecutedCalls,
    Executing,
    Finish,
    IngestedCall,
    Interrupted,
    Outcome,
    OutcomeKind,
    Ruled,
    Rules,
    Slot,
    SlotStatus,
    State,
    Step,
    Stop,
    Thinking,
    TurnLost,
    TurnTaken,
    Waiting,
    advance,
    begin,
    failure,
    ingest,
    pending_messages,
    refusal,
    resume,
)
from runtime_pack.machine import Event as MachineEvent
from runtime_pack.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolMessage,
    Transcript,
    UserMessage,
    message_from_json,
    message_to_json,
)
from runtime_pack.policy import TaskContract
from runtime_pack.ports import ContextFactory, ExecutionContext, ToolRuntime, TurnRequest
from runtime_pack.records import StepRecord
from runtime_pack.seal import Seal
from runtime_pack.state import (
    EMPTY_CHAIN,
    FORMAT,
    SCHEMA,
    RunStore,
    SavedRun,
    chain_rows,
    open_head,
    outcome_from_json,
    outcome_to_json,
    seal_head,
    spec_from_json,
    spec_to_json,
    state_from_json,
    state_to_json,
)

__all__ = (
    "ApprovalRequired",
    "Cancelled",
    "Completed",
    "LoopError",
    "LoopResult",
    "Suspended",
    "TurnInput",
    "resume_governed_agent_loop",
    "run_governed_agent_loop",
)

WRAP_UP_NOTICE: Final = (
    "The budget for tool calls or turns is used up. Answer now from what you have; "
    "no tools are available."
)


def _message_tuple(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(messages)


def _spec_tuple(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(specs)


@attrs.frozen(kw_only=True)
class TurnInput:
    """What a run starts from: the history so far and the tools that the model is offered.

    Raises:
        ContractError: no message, or two tools of one name.
    """

    messages: tuple[Message, ...] = attrs.field(converter=_message_tuple)
    tool_catalog: tuple[ToolSpec, ...] = attrs.field(default=(), converter=_spec_tuple)
    model: str | None = None
    max_output_tokens: int | None = None

    def __attrs_post_init__(self) -> None:
        if not self.messages:
            raise ContractError("messages", "a run starts from at least one message")
        for message in self.messages:
            if not isinstance(
                message, SystemMessage | UserMessage | AssistantMessage | ToolMessage
            ):
                raise ContractError("messages", f"{type(message).__name__} is not a message")
        index_catalog(self.tool_catalog)


@attrs.frozen(kw_only=True)
class LoopResult:
    """How a drive of the loop ended. Which of the five it is, is its class and its `kind`.

    Attributes:
        text: the final answer; for a budget that ran out, that of the wrap-up turn.
        messages: the whole history; every call in it has exactly one result.
        requests: what waits for a person.
        state: the saved run, whenever it can be taken up again; `MemoryRunStore.put` takes it.
    """

    kind: OutcomeKind
    run_id: str
    text: str
    messages: tuple[Message, ...]
    ledger: LedgerView
    steps: tuple[StepRecord, ...]
    stop: Stop | None
    requests: tuple[ApprovalRequest, ...]
    state: SavedRun | None


@attrs.frozen(kw_only=True)
class Completed(LoopResult):
    """The model answered."""


@attrs.frozen(kw_only=True)
class ApprovalRequired(LoopResult):
    """Calls wait for a person."""


@attrs.frozen(kw_only=True)
class Suspended(LoopResult):
    """A budget ran out, the model handed over, or the host paused the run."""


@attrs.frozen(kw_only=True)
class Cancelled(LoopResult):
    """The host ended the run."""


@attrs.frozen(kw_only=True)
class LoopError(LoopResult):
    """The run could not go on; `stop` has the stage and the code."""


_RESULTS: Final[Mapping[OutcomeKind, type[LoopResult]]] = {
    OutcomeKind.COMPLETED: Completed,
    OutcomeKind.APPROVAL_REQUIRED: ApprovalRequired,
    OutcomeKind.SUSPENDED: Suspended,
    OutcomeKind.CANCELLED: Cancelled,
    OutcomeKind.ERROR: LoopError,
}


async def run_governed_agent_loop(
    *,
    runtime: ToolRuntime,
    execute_turn_input: TurnInput,
    create_context: ContextFactory | None = None,
    max_turns: int | None = None,
    store: RunStore | None = None,
) -> LoopResult:
    """Drive the model until it answers, needs a person, or runs out of what it may spend.

    Args:
        runtime: guarded by `AgentTaskRun.guard_runtime`; an unguarded one is guarded here under
            the default contract.
        execute_turn_input: the history to start from and the tools to offer.
        create_context: fills in session and agent for records.
        max_turns: lowers the contract's; None leaves it.
        store: saves the run at every step, so that it survives a crash.

    Returns:
        One of `Completed`, `ApprovalRequired`, `Suspended`, `Cancelled`, `LoopError`. Failures
        of tools, the model, the log or the store are results, not raises.

    Raises:
        ContractError: `max_turns` is not a whole number from 0.
        asyncio.CancelledError: the caller's task was cancelled; recorded, then re-raised.
    """
    guarded = _guarded(runtime)
    if max_turns is not None:
        guarded.task_run.ledger.lower(TURNS, parse_count("max_turns", max_turns))
    drive = _Drive(guarded, execute_turn_input, create_context, store)
    return await drive.start()


async def resume_governed_agent_loop(
    *,
    runtime: ToolRuntime,
    store: RunStore,
    run_id: str,
    decisions: Sequence[Decision] = (),
    create_context: ContextFactory | None = None,
    message: str | None = None,
    abandon: bool = False,
) -> LoopResult:
    """Take up a saved run: apply decisions, then drive on. The ledger continues, never restarts.

    Args:
        runtime: guarded by a new `AgentTaskRun`; its policy judges every pending call again, and
            of each limit the lower of the saved and the new one holds.
        store: where the run was saved.
        run_id: which run.
        decisions: what people said of pending requests.
        create_context: fills in session and agent for records.
        abandon: withdraw pending calls when a message is given.
        message: a further message of the user; refused while calls are pending unless *abandon*
            withdraws them.

    Returns:
        As `run_governed_agent_loop`; a decision about an unknown request, a second different one
        or a state that fails its seal is a `LoopError` and changes nothing.

    Raises:
        RunNotFound: the store has no such run.
        StoreError: the store could not be read.
        asyncio.CancelledError: the caller's task was cancelled.
    """
    guarded = _guarded(runtime)
    saved = await store.load(run_id)
    guarded.task_run.id = run_id
    try:
        drive = _restore(guarded, saved, create_context, store)
    except (StateRefused, ValueError) as error:
        return _refused_result(guarded, saved, str(error))
    return await drive.take_up(tuple(decisions), message, abandon=abandon)


def _guarded(runtime: ToolRuntime) -> GuardedRuntime:
    if isinstance(runtime, GuardedRuntime):
        return runtime
    return create_agent_task_run(TaskContract()).guard_runtime(runtime)


def _refused_result(guarded: GuardedRuntime, saved: SavedRun, problem: str) -> LoopResult:
    run = guarded.task_run
    return LoopError(
        kind=OutcomeKind.ERROR,
        run_id=saved.run_id,
        text="",
        messages=(),
        ledger=run.view(),
        steps=(),
        stop=Stop(code=StopCode.STATE_INTEGRITY, message=problem, stage="state"),
        requests=(),
        state=None,
    )


class _Drive:
    """One drive of one run. Everything that awaits is here."""

    def __init__(
        self,
        guarded: GuardedRuntime,
        turn_input: TurnInput,
        create_context: ContextFactory | None,
        store: RunStore | None,
    ) -> None:
        self.guarded = guarded
        self.run: AgentTaskRun = guarded.task_run
        self.input = turn_input
        self.offered = index_catalog(turn_input.tool_catalog)
        self.context = ExecutionContext() if create_context is None else create_context()
        self.store = store
        self.messages: list[Message] = []
        self.taken: set[str] = set()
        self.rules = Rules(
            max_consecutive_refused=self.run.contract.max_consecutive_refused,
            wrap_up=guarded.may_wrap_up,
        )
        self.state: State = Thinking()
        self.resolved: dict[str, str] = {}
        self.revision = 0
        self.row_count = 0
        self.chain = EMPTY_CHAIN
        self.rows: list[bytes] = []
        self.steps_saved = 0
        self.burned_saved: set[str] = set()
        self.decisions: dict[str, Decision] = {}
        self.outcome: Outcome | None = None
        self.results: dict[str, ToolMessage] = {}
        self.begun: set[str] = set()
        self.cut: set[str] = set()
        self.saving = asyncio.Lock()

    # ── entering ──────────────────────────────────────────────────────────────────────────────

    async def start(self) -> LoopResult:
        """A new run."""
        if self.store is not None:
            self._row(self._input_row())
        for message in self.input.messages:
            self._append(message)
        step = begin()
        self.state = step.state
        body: dict[str, Json] = {
            "limits": self.run.view().limits.to_json(),
            "policy_sha256": self.run.policy_sha256,
            "tools": list(self.offered),
        }
        return await self._drive(
            step, Event(code=EventCode.RUN001O, subject=self.run.subject(), object=body)
        )

    def _input_row(self) -> dict[str, Json]:
        tools: list[Json] = [spec_to_json(spec) for spec in self.input.tool_catalog]
        limit = self.input.max_output_tokens
        return {"input": {"model": self.input.model, "limit": limit, "tools": tools}}

    async def take_up(
        self, decisions: tuple[Decision, ...], message: str | None, *, abandon: bool
    ) -> LoopResult:
        """A saved run."""
        problem = self._check(decisions, message, abandon=abandon)
        if problem is not None:
            return self._result(problem, None)
        spent = self._spent()
        if spent is not None:
            return self._result(spent, await self._saved())
        self.decisions = {decision.request_id: decision for decision in decisions}
        step = self._entry(message)
        body: dict[str, Json] = {"revision": self.revision, "decisions": len(decisions)}
        event = Event(code=EventCode.RUN003O, subject=self.run.subject(), object=body)
        return await self._drive(step, event)

    def _check(
        self, decisions: tuple[Decision, ...], message: str | None, *, abandon: bool
    ) -> Outcome | None:
        pending = self._pending()
        for decision in decisions:
            earlier = self.resolved.get(decision.request_id)
            if earlier is not None:
                same = earlier == str(decision.verdict)
                code = StopCode.ALREADY_RESOLVED if same else StopCode.APPROVAL_CONFLICT
                return failure("approval", code, f"{decision.request_id} was decided: {earlier}")
            if decision.request_id not in pending:
                text = f"no pending request has the id {decision.request_id[:80]!r}"
                return failure("approval", StopCode.APPROVAL_NOT_FOUND, text)
        if message is not None and pending and not abandon:
            text = "calls wait for a person; decide them, or abandon them"
            return failure("approval", StopCode.PENDING_APPROVAL, text)
        return None

    def _spent(self) -> Outcome | None:
        """The outcome of a run that stopped at a budget: without a grant nobody is asked again."""
        outcome = self.outcome
        stop = None if outcome is None else outcome.stop
        return outcome if stop is not None and stop.code == StopCode.BUDGET_EXHAUSTED else None

    def _pending(self) -> dict[str, Slot]:
        if not isinstance(self.state, Waiting | Executing):
            return {}
        return {
            slot.request.request_id: slot
            for slot in self.state.slots
            if slot.status is SlotStatus.PENDING and slot.request is not None
        }

    def _entry(self, message: str | None) -> Step:
        if message is None:
            return resume(self.state)
        for slot in self._pending().values():
            self.guarded.withdraw(slot.call.name)
        over = Interrupted(outcome=failure("run", StopCode.PAUSED, message), resumable=False)
        for command in advance(self.rules, self.state, over).commands:
            if isinstance(command, Commit):
                self._commit(command)
        self._append(UserMessage(text=message))
        return resume(Thinking())

    def adopt(self, saved: SavedRun, head: Mapping[str, Json], held: _Rows) -> None:
        """Stand where the saved run stood.

        Raises:
            KeyError, TypeError, ValueError: a part of the head is not of its form.
        """
        run = self.run
        run.task, run.turn = str(head["task"]), int(head["turn"])  # type: ignore[arg-type]
        run.label = join(run.label, parse_label(head["label"]))
        run.ledger.restore(head["ledger"])  # type: ignore[arg-type]
        run.steps[:], self.steps_saved = held.steps, len(held.steps)
        run.burned |= held.burned
        self.burned_saved = set(held.burned)
        self.messages, self.results = held.messages, held.results
        self.taken = {
            call.id
            for message in held.messages
            if isinstance(message, AssistantMessage)
            for call in message.calls
        }
        self.revision, self.row_count = saved.revision, len(saved.rows)
        self.chain = str(head["rows_sha256"])
        self.resolved = {str(k): str(v) for k, v in head["resolved"].items()}  # type: ignore[union-attr]
        self.begun = set(head["begun"])  # type: ignore[arg-type]
        self.state = state_from_json(head["state"], held.results)
        outcome = head["outcome"]
        self.outcome = None if outcome is None else outcome_from_json(outcome)
        if isinstance(self.state, Executing | Waiting):
            self.taken.update(slot.call.id for slot in self.state.slots)
        if isinstance(self.state, Executing):
            self.state = attrs.evolve(
                self.state, slots=tuple(map(self._in_doubt, self.state.slots))
            )

    def _in_doubt(self, slot: Slot) -> Slot:
        """A call that was started and has no result: run again if that is harmless, else unknown."""
        if slot.status is not SlotStatus.ADMITTED or slot.step not in self.begun:
            return slot
        if self.offered[slot.call.name].effects is not Effects.ONCE:
            return slot
        self.run.ledger.settle(*step_buckets(slot.call.name))
        output = refusal(
            CallCode.OUTCOME_UNKNOWN,
            "This call was started before the run was interrupted; whether it took effect is unknown.",
            executed=Executed.UNKNOWN,
        )
        result = ToolMessage(
            call_id=slot.call.id,
            name=slot.call.name,
            text=output.text,
            ok=False,
            label=output.label,
        )
        return attrs.evolve(slot, status=SlotStatus.DONE, result=result)

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    async def _drive(self, step: Step, opening: Event) -> LoopResult:
        run = self.run
        run.ledger.begin(run.clock.monotonic())
        try:
            run.record(opening)
            run.flush()
            await self._save()
            outcome = await self._until_finished(step)
        except (AuditError, EmitterError, StoreError) as error:
            outcome = self._broken(error)
        except asyncio.CancelledError:
            self._record_end(failure("run", StopCode.CANCELLED, "the task was cancelled"))
            raise
        finally:
            run.ledger.end(run.clock.monotonic())
            await self.guarded.release()
        return await self._finished(outcome)

    async def _until_finished(self, step: Step) -> Outcome:
        while True:
            self.state = step.state
            event: MachineEvent | None = None
            for command in step.commands:
                if isinstance(command, Finish):
                    return command.outcome
                event = self._held_up(command) or await self._obey(command)
            if event is None:
                raise ContractError("machine", "a step without a command that gives an event")
            step = advance(self.rules, self.state, self._cut_short(event) or event)

    def _held_up(self, command: Command) -> Interrupted | None:
        """An interruption takes effect before the next thing that would cost something."""
        if isinstance(command, AskModel | Execute | AskPeople):
            return self._interruption()
        return None

    def _cut_short(self, event: MachineEvent) -> Interrupted | None:
        """An interruption that stopped the step in hand; what it leaves is taken up later."""
        if isinstance(event, TurnLost) or (isinstance(event, ExecutedCalls) and self.cut):
            return self._interruption()
        return None

    def _interruption(self) -> Interrupted | None:
        run = self.run
        if run.interrupt is None:
            return None
        return Interrupted(outcome=run.interrupt, resumable=run.interrupt_resumable)

    async def _obey(self, command: Command) -> MachineEvent | None:
        match command:
            case AskModel(final=final):
                return await self._ask_model(final=final)
            case Classify(calls=calls):
                return await self._classify(calls)
            case Execute(slots=slots):
                return await self._execute(slots)
            case AskPeople(requests=requests):
                return await self._ask_people(requests)
            case Commit():
                self._commit(command)
                return None
            case Finish(outcome=outcome):
                return Interrupted(outcome=outcome, resumable=True)

    async def _ask_model(self, *, final: bool) -> MachineEvent:
        run = self.run
        if final:
            self._append(UserMessage(text=WRAP_UP_NOTICE))
        request = TurnRequest(
            messages=Transcript(self.messages),
            tools=() if final else self.input.tool_catalog,
            model=self.input.model,
            max_output_tokens=self.input.max_output_tokens,
        )
        taken = await self.guarded.take_turn(request, self.context, closing=final)
        if taken.turn is None:
            lost = taken.lost or failure("model", StopCode.MODEL_ERROR, "no turn")
            return TurnLost(outcome=lost, soft=taken.soft)
        calls = ingest(taken.turn, number=run.turn, taken=self.taken, cut=taken.cut)
        return TurnTaken(turn=taken.turn, calls=() if final else calls, cut=taken.cut)

    async def _classify(self, calls: tuple[IngestedCall, ...]) -> MachineEvent:
        admit, offered, context = self.guarded.admit, self.offered, self.context
        admissions: list[Admission] = [await admit(call, offered, context) for call in calls]
        return Classified(admissions=tuple(admissions), misbehaving=self.guarded.over_refused())

    async def _execute(self, slots: tuple[Slot, ...]) -> MachineEvent:
        self.cut.clear()
        self.begun.update(slot.step for slot in slots[: self.run.contract.max_parallel])
        await self._save()
        if len(slots) == 1:
            (slot,) = slots
            return ExecutedCalls(outputs={slot.step: await self._run_slot(slot)})
        gate = asyncio.Semaphore(self.run.contract.max_parallel)

        async def one(slot: Slot) -> ToolOutput:
            async with gate:
                return await self._run_slot(slot)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {slot.step: group.create_task(one(slot)) for slot in slots}
        except* (AuditError, EmitterError, StoreError) as errors:
            raise errors.exceptions[0] from errors
        return ExecutedCalls(outputs={step: task.result() for step, task in tasks.items()})

    async def _run_slot(self, slot: Slot) -> ToolOutput:
        run = self.run
        if run.is_interrupted():
            return self._not_begun(slot)
        if slot.step not in self.begun:
            self.begun.add(slot.step)
            await self._save()
        output = await self.guarded.run(
            slot.step, slot.call, self.offered[slot.call.name], self.context
        )
        if output.code == CallCode.CANCELLED and run.is_interrupted() and run.interrupt_resumable:
            run.ledger.reopen(*step_buckets(slot.call.name))
            self.cut.add(slot.step)
            return output
        result = ToolMessage(
            call_id=slot.call.id,
            name=slot.call.name,
            text=output.text,
            ok=output.ok,
            label=output.label,
        )
        self.results[slot.call.id] = result
        if self.store is not None:
            self._row({"result": message_to_json(result)})
            await self._save()
        return output

    def _not_begun(self, slot: Slot) -> ToolOutput:
        """A call that the interruption found in the queue: it stays reserved if the run goes on."""
        self.begun.discard(slot.step)
        if self.run.interrupt_resumable:
            self.cut.add(slot.step)
        else:
            self.guarded.withdraw(slot.call.name)
        return refusal(CallCode.CANCELLED, "The run was stopped before this call began.")

    async def _ask_people(self, requests: tuple[ApprovalRequest, ...]) -> MachineEvent:
        await self._save()
        admissions: dict[str, Admission] = {}
        slots = self._pending()
        for request in requests:
            decision = self.decisions.pop(request.request_id, None)
            if decision is None:
                decision = await self.guarded.decide(request)
            if decision is None and request.expired(self.run.clock.now()):
                decision = Decision(
                    request_id=request.request_id, verdict=Verdict.DENY, decided_by="expiry"
                )
            if decision is None:
                continue
            slot = slots[request.request_id]
            admissions[slot.step] = await self.guarded.rule(
                slot.step, slot.call, request, decision, self.offered, self.context
            )
            self.resolved[request.request_id] = str(decision.verdict)
        return Ruled(admissions=admissions)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        if isinstance(message, UserMessage | ToolMessage):
            self.run.label = join(self.run.label, message.label)
        if self.store is None:
            return
        if isinstance(message, ToolMessage) and message.call_id in self.results:
            self._row({"ref": message.call_id})
        else:
            self._row({"message": message_to_json(message)})

    def _commit(self, command: Commit) -> None:
        for message in command.messages:
            self._append(message)
        self.results.clear()
        self.begun.clear()

    def _row(self, body: Mapping[str, Json]) -> None:
        if self.store is not None:
            self.rows.append(orjson.dumps(body))

    async def _save(self) -> None:
        """Commit what is new, if there is a store.

        Raises:
            RunConflict: another process took the run up.
            StoreError: the store could not be written.
        """
        store = self.store
        if store is None:
            return
        async with self.saving:
            head, rows = self._snapshot(store.seal)
            self.revision = await store.commit(
                self.run.id, expected=self.revision, head=head, rows=rows
            )

    def _snapshot(self, seal: Seal) -> tuple[bytes, tuple[bytes, ...]]:
        """The sealed head and the rows since the last snapshot."""
        run = self.run
        # Records of calls in flight still change; they are saved when they have ended.
        while self.steps_saved < len(run.steps) and run.steps[self.steps_saved].ok is not None:
            self.rows.append(orjson.dumps({"step": run.steps[self.steps_saved].to_json()}))
            self.steps_saved += 1
        fresh = sorted(run.burned - self.burned_saved)
        if fresh:
            self.rows.append(orjson.dumps({"burned": fresh}))
            self.burned_saved.update(fresh)
        rows = tuple(self.rows)
        self.rows.clear()
        self.chain = chain_rows(self.chain, rows)
        self.row_count += len(rows)
        return seal_head(self._head(), seal), rows

    def _head(self) -> dict[str, Json]:
        run = self.run
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "run": run.id,
            "task": run.task,
            "turn": run.turn,
            "state": state_to_json(self.state),
            "outcome": None if self.outcome is None else outcome_to_json(self.outcome),
            "ledger": run.view().to_json(),
            "label": run.label.to_json(),
            "policy_sha256": run.policy_sha256,
            "resolved": dict(self.resolved),
            "begun": sorted(self.begun),
            "audit_head": None if run.head is None else str(run.head),
            "audit_log": None if run.audit is None else str(run.audit.path.resolve()),
            "rows": self.row_count,
            "rows_sha256": self.chain,
        }

    # ── leaving ───────────────────────────────────────────────────────────────────────────────

    def _broken(self, error: AuditError | EmitterError | StoreError) -> Outcome:
        """What stopped the drive from outside the machine. The last saved state stands."""
        match error:
            case AuditError():
                return failure("audit", StopCode.AUDIT_FAILED, str(error))
            case EmitterError():
                return failure("emitter", StopCode.EMITTER_FAILED, str(error))
            case RunConflict():
                return failure("store", StopCode.STATE_CONFLICT, str(error))
            case _:
                return failure("store", StopCode.STORE_FAILED, str(error))

    async def _finished(self, outcome: Outcome) -> LoopResult:
        self.outcome = outcome
        if isinstance(self.state, Ended):
            self.run.ledger.release_all()
        stage = None if outcome.stop is None else outcome.stop.stage
        try:
            if stage != "audit":
                self._record_end(outcome)
            if stage not in {"audit", "emitter", "store"}:
                await self._save()
        except (AuditError, StoreError) as error:
            outcome = self._broken(error)
        return self._result(outcome, await self._saved())

    def _record_end(self, outcome: Outcome) -> None:
        run, view = self.run, self.run.view()
        body: dict[str, Json] = {
            "kind": str(outcome.kind),
            "code": None if outcome.stop is None else str(outcome.stop.code),
            "used": dict(view.used),
            "refused": view.refused,
            "violations": view.violations,
            "active_us": round(view.active_seconds * 1_000_000),
        }
        run.record(Event(code=EventCode.RUN002O, subject=run.subject(), object=body))
        run.flush()

    async def _saved(self) -> SavedRun | None:
        """The run as it can be taken up again; None when it is over."""
        if isinstance(self.state, Ended) and self.state.outcome.kind is not OutcomeKind.SUSPENDED:
            return None
        if self.store is not None:
            try:
                return await self.store.load(self.run.id)
            except StoreError:
                return None
        return self._unstored()

    def _unstored(self) -> SavedRun:
        """A saved run made at the end, for a host that gave no store."""
        bodies: list[Mapping[str, Json]] = [
            self._input_row(),
            *({"message": message_to_json(message)} for message in self.messages),
            *({"result": message_to_json(result)} for result in self.results.values()),
        ]
        self.rows = [orjson.dumps(body) for body in bodies]
        self.steps_saved, self.row_count, self.chain = 0, 0, EMPTY_CHAIN
        self.burned_saved = set()
        head, rows = self._snapshot(self.run.seal)
        return SavedRun(run_id=self.run.id, revision=1, head=head, rows=rows)

    def _result(self, outcome: Outcome, state: SavedRun | None) -> LoopResult:
        requests = tuple(
            slot.request for slot in self._pending().values() if slot.request is not None
        )
        return _RESULTS[outcome.kind](
            kind=outcome.kind,
            run_id=self.run.id,
            text=outcome.text,
            messages=(*self.messages, *pending_messages(self.state, self.results)),
            ledger=self.run.view(),
            steps=tuple(self.run.steps),
            stop=outcome.stop,
            requests=requests,
            state=state,
        )


# ── taking up a saved run ─────────────────────────────────────────────────────────────────────


@attrs.define(kw_only=True)
class _Rows:
    """What the rows of a saved run hold."""

    turn_input: dict[str, Json] = attrs.field(factory=dict)
    messages: list[Message] = attrs.field(factory=list)
    results: dict[str, ToolMessage] = attrs.field(factory=dict)
    steps: list[StepRecord] = attrs.field(factory=list)
    burned: set[str] = attrs.field(factory=set)


def _read_rows(rows: Sequence[bytes]) -> _Rows:
    """Raises: ValueError, KeyError, TypeError when a row is not of a known form."""
    held = _Rows()
    for row in rows:
        ((kind, value),) = orjson.loads(row).items()
        match kind:
            case "input":
                held.turn_input = value
            case "message":
                held.messages.append(message_from_json(value))
            case "result":
                result = message_from_json(value)
                if isinstance(result, ToolMessage):
                    held.results[result.call_id] = result
            case "ref":
                held.messages.append(held.results.pop(value))
            case "step":
                held.steps.append(StepRecord.from_json(value))
            case "burned":
                held.burned.update(value)
            case _:
                raise StateRefused(f"unknown row {kind!r}")
    return held


def _restore(
    guarded: GuardedRuntime,
    saved: SavedRun,
    create_context: ContextFactory | None,
    store: RunStore,
) -> _Drive:
    """The drive of a saved run, as it stood at its last save.

    Raises:
        StateRefused: the seal does not match, or a part cannot be read.
    """
    head = open_head(saved, store.seal)
    try:
        held = _read_rows(saved.rows)
        turn_input = TurnInput(
            messages=tuple(held.messages),
            tool_catalog=tuple(spec_from_json(spec) for spec in held.turn_input["tools"]),  # type: ignore[union-attr]
            model=held.turn_input["model"],  # type: ignore[arg-type]
            max_output_tokens=held.turn_input["limit"],  # type: ignore[arg-type]
        )
        drive = _Drive(guarded, turn_input, create_context, store)
        drive.adopt(saved, head, held)
    except (KeyError, TypeError, ValueError) as error:
        raise StateRefused(f"the saved run cannot be read ({error})") from error
    return drive
