"""The one driver: it carries out the machine's commands and awaits.

Every turn and every call goes through the guarded runtime. With a store, the run is saved before every
turn, and around every call, before what the save speaks of can happen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final

import attrs

from runtime_pack.approvals import (
    ApprovalRequest,
    Decision,
    Resolution,
    Settled,
    Verdict,
    remember_fault,
)
from runtime_pack.catalog import Effects, Executed, ToolOutput, ToolSpec
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
from runtime_pack.events import Entry, Event, EventCode
from runtime_pack.grants import GRANT_NOTICE, Grant
from runtime_pack.guard import AgentTaskRun, GuardedRuntime
from runtime_pack.guard.answers import check_answer
from runtime_pack.guard.bounded import Stopped, TimeUp, bounded
from runtime_pack.guard.execution import CUT, NOT_BEGUN, OUTCOME_UNKNOWN
from runtime_pack.guard.observer import Observer
from runtime_pack.guard.sub_runs import sub_run_id
from runtime_pack.guard.task_run import Mark
from runtime_pack.guard.turns import TurnResult
from runtime_pack.inner import NOTHING, without
from runtime_pack.ledger_limits import UNLIMITED
from runtime_pack.letters import Letters
from runtime_pack.loop.compacting import Compactor
from runtime_pack.loop.granting import fitting, fresh_grants, give, has_room, is_limited, reopened
from runtime_pack.loop.keeper import Keeper, SaveStopped, Taken, read_rows, restored_state
from runtime_pack.loop.post import PostBox
from runtime_pack.loop.results import RESULTS, LoopResult, TurnInput
from runtime_pack.machine import (
    BATCH_REFUSED,
    DECLINED,
    Admission,
    AskModel,
    AskPeople,
    CheckAnswer,
    Checked,
    Classified,
    Classify,
    Classifying,
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
    Pending,
    Readmit,
    Readmitted,
    Refused,
    Ruled,
    Rules,
    Slot,
    SlotStatus,
    State,
    Step,
    Thinking,
    TurnLost,
    TurnTaken,
    Waiting,
    Withdraw,
    advance,
    failure,
    ingest,
    pending_messages,
    refusal,
    result_message,
    resume,
)
from runtime_pack.machine import Event as MachineEvent
from runtime_pack.messages import (
    Json,
    ToolMessage,
    Transcript,
    Turn,
    TurnStatus,
    UserMessage,
    clean_text,
)
from runtime_pack.ports import ContextFactory, ExecutionContext, TurnRequest
from runtime_pack.records import StepRecord, approval_decided, links_defused, step_finished
from runtime_pack.repeats import fingerprint_of
from runtime_pack.seal import check_request, seal_request
from runtime_pack.state import RunStore, SavedRun, open_head, spec_from_json

__all__ = ("WRAP_UP_NOTICE", "Drive", "checked_context", "restore")

WRAP_UP_NOTICE: Final = (
    "The budget for tool calls or turns is used up. Answer now from what you have; "
    "no tools are available."
)
# After so many calls of a response, whatever else wants to run gets its turn.
_JUDGED_AT_ONCE: Final = 32
_LOAD_SECONDS: Final = 30.0
_JUDGES: Final = (CheckAnswer, Classify, Readmit)
_NONE: Final[frozenset[str]] = frozenset()
# Of a host that names neither session nor agent; a tool is given a context of its own run.
_NOBODY: Final = ExecutionContext()
_EXPIRED: Final = "nobody in time"
_WITHDRAWN: Final = "withdrawn"


def checked_context(create: ContextFactory | None) -> ExecutionContext:
    """The context of a drive as the host makes it.

    Raises:
        ContractError: it raised, or made something else.
    """
    if create is None:
        return _NOBODY
    try:
        made: object = create()
    # The host's code: without a context nothing starts.
    except Exception as error:
        raise ContractError("create_context", f"raised {type(error).__name__}") from error
    if not isinstance(made, ExecutionContext):
        raise ContractError("create_context", f"made {type(made).__name__}, which is no context")
    return made


class Drive:
    """One drive of one run. Everything that awaits is here."""

    def __init__(
        self,
        guarded: GuardedRuntime,
        turn_input: TurnInput,
        context: ExecutionContext,
        store: RunStore | None,
        given: Mapping[str, Json] | None = None,
    ) -> None:
        self.guarded = guarded
        self.run: AgentTaskRun = guarded.task_run
        if store is not None:
            # Requests have to be known again by whoever takes the run up from the store.
            self.run.seal = store.seal
        self.input = turn_input
        self.offered = turn_input.offered
        exclusive = [n for n, spec in self.offered.items() if spec.exclusive]
        self.exclusive = frozenset(exclusive) if exclusive else _NONE
        self.run.left.watched = bool(self.exclusive)
        self.context = context
        self.keeper = Keeper(self.run, store, given or self._as_given())
        self.post = PostBox(self.run, store)
        watched = self.run.contract.max_context_bytes != UNLIMITED
        self.compactor = (
            Compactor(self.run, self.keeper) if watched or self.run.summariser else None
        )
        self.rules = Rules(max_consecutive_refused=1, wrap_up=False)
        self.state: State = Thinking()
        self.outcome: Outcome | None = None
        self.decisions: Mapping[str, Decision] = NOTHING
        # Nearly always empty, in each of a thousand runs that wait.
        self.unanswered: frozenset[str] = _NONE
        self.announced: tuple[str, ...] = ()
        self.cut: frozenset[str] = _NONE
        self.running = 0
        self.entered = False
        # A response or a result has come since the last save: what could not be had again.
        self.fresh = False
        # The last save was stopped by a cancel: whoever takes the run up has to be told.
        self.unsaved = False
        self.abandoned: tuple[str, ...] = ()

    def _as_given(self) -> Callable[[], Mapping[str, Json]]:
        """What the run is started with; how the tools are defined is as of now."""
        definition, catalog = self.guarded.judge.definition, self.input.tool_catalog
        definitions = [definition(spec) for spec in catalog]
        if definitions == [spec.sha256 for spec in catalog]:
            # As they are offered: nothing has to be kept beside what a waiting run has anyway.
            return self._as_offered
        return partial(_given, self.input, tuple(definitions))

    def _as_offered(self) -> Mapping[str, Json]:
        return _given(self.input, tuple([spec.sha256 for spec in self.input.tool_catalog]))

    # ── entering ──────────────────────────────────────────────────────────────────────────────

    def start(self) -> Awaitable[LoopResult]:
        """A new run, to be awaited."""
        self.keeper.open(self.input.messages)
        return self._drive([self._begun()], None)

    def _begun(self) -> Entry:
        run = self.run
        body: dict[str, Json] = {
            "limits": run.limits_json(),
            "policy_sha256": run.policy_sha256,
            "tools": list(self.offered),
        }
        if run.prices_sha256 is not None:
            body["prices_sha256"] = run.prices_sha256
        if run.policy is not None:
            body["policy"] = run.policy
        return Entry(EventCode.RUN001O, run.subject(), body)

    async def take_up(
        self,
        decisions: tuple[Decision, ...],
        message: str | None,
        *,
        abandon: bool,
        grants: tuple[Grant, ...] = (),
    ) -> LoopResult:
        """A saved run.

        Raises:
            ContractError: a grant cannot be given to this run, it is another run's sub-run, or its
                money is in another currency.
        """
        self._refuse_orphan()
        self._refuse_other_money()
        letters = await self.post.read()
        given = (*self._posted(letters, abandon=abandon), *self._handed_down(decisions, letters))
        problem = self._check(given, message, abandon=abandon)
        if problem is not None:
            return self._result(problem, None)
        # Of two that say the same, the one that was left before counts.
        decisions = tuple({word.request_id: word for word in reversed(given)}.values())
        if letters.cancel is not None:
            return await self.call_off(letters.cancel.words)
        problem = self._lacking(decisions, abandon=abandon)
        if problem is not None:
            return self._result(problem, await self._saved())
        granted = self._grant((*self._granted(letters), *grants), message)
        over = self._over(message, granted)
        if over is not None:
            return await self._still_over(over, granted)
        for decision in decisions:
            # With the first save, or not at all: of two who bring one, one has it.
            self.keeper.resolve(Resolution(decision=decision, settled=Settled.CLAIMED))
        self.decisions = self._claimed()
        self.outcome = None
        body: dict[str, Json] = {"revision": self.keeper.revision, "decisions": len(decisions)}
        if self.run.prices_sha256 is not None:
            body["prices_sha256"] = self.run.prices_sha256
        event = Event(code=EventCode.RUN003O, subject=self.run.subject(), object=body)
        result = await self._drive([event, *granted], message)
        if self.entered or not decisions:
            return result
        return await self._overtaken(result, decisions)

    def _refuse_orphan(self) -> None:
        """A sub-run goes on under its parent's account and rules, or not at all.

        Raises:
            ContractError: it is taken up without its parent.
        """
        above = self.keeper.parent
        if above is not None and above != self.run.parent:
            raise ContractError("run_id", f"{self.run.id} is a sub-run: take up {above}")

    def _refuse_other_money(self) -> None:
        """What was spent in one currency is not compared with a limit in another one.

        Another table in the same currency is recorded: prices change.

        Raises:
            ContractError: the table is in another currency than the saved run's.
        """
        prices, held = self.run.prices, self.keeper.currency
        if prices is not None and held is not None and held != prices.currency:
            text = f"are in {prices.currency}, and the saved run counts {held}"
            raise ContractError("prices", text)

    def below(self) -> tuple[str, ...]:
        """The ids that sub-runs of this run have, if it has any: those of the calls in hand too."""
        known = [sub.run_id for sub in self.run.sub_runs.values()]
        begun = [sub_run_id(self.run.id, step) for step in self.keeper.begun]
        return tuple(dict.fromkeys((*known, *begun)))

    def left_behind(self) -> tuple[str, ...]:
        """The sub-runs that were open and that this run will not take up any more."""
        if not self.entered:
            return ()
        state, subs = self.state, self.run.sub_runs
        over = isinstance(state, Ended) and state.outcome.kind is not OutcomeKind.SUSPENDED
        return (*self.abandoned, *(sub.run_id for sub in subs.values() if over))

    def _handed_down(
        self, decisions: tuple[Decision, ...], letters: Letters
    ) -> tuple[Decision, ...]:
        """The decisions about this run's own calls; those about sub-runs wait for the sub-run."""
        below = self._asked_below()
        # Of two about one request, the one that was left before counts.
        said = {d.request_id: d for d in decisions} | dict(letters.decisions)
        self.run.brought = {name: word for name, word in said.items() if name in below}
        return tuple(d for d in decisions if d.request_id not in below)

    def _asked_below(self) -> dict[str, ApprovalRequest]:
        """What sub-runs ask, by the id of the request."""
        subs = self.run.sub_runs.values()
        return {request.request_id: request for sub in subs for request in sub.requests}

    def _claimed(self) -> dict[str, Decision]:
        """The decisions that are in the saved run, or will be, and were not carried out yet."""
        return {
            request_id: resolution.decision
            for request_id, resolution in self.keeper.resolved.items()
            if resolution.settled is Settled.CLAIMED
        }

    async def _overtaken(self, result: LoopResult, decisions: tuple[Decision, ...]) -> LoopResult:
        """Another process took the run up before anything was done here: what it made of them."""
        store, stop = self.keeper.store, result.stop
        if store is None or stop is None or stop.code != StopCode.STATE_CONFLICT:
            return result
        try:
            saved = await bounded(self.run, _LOAD_SECONDS, store.load(self.run.id))
            open_head(saved, store.seal)
            self.keeper.resolved = read_rows(saved.rows).resolved
        # The host's store, or what it holds: the conflict stands without the word of the other one.
        except Exception:  # noqa: BLE001
            return result
        for decision in decisions:
            problem = self._check_resolved(decision)
            if problem is not None:
                return attrs.evolve(result, stop=problem.stop)
        return result

    def told_already(self, decisions: tuple[Decision, ...]) -> LoopResult | None:
        """What decisions that somebody else brought first are told; None if they are news."""
        problem = self._check(decisions, None, abandon=False)
        return None if problem is None else self._result(problem, None)

    async def call_off(self, reason: str) -> LoopResult:
        """End a saved run, if it is not over, without taking it up."""
        ended = self.state.outcome if isinstance(self.state, Ended) else None
        if ended is not None and ended.kind is not OutcomeKind.SUSPENDED:
            return self._result(ended, await self._saved())
        if ended is not None:
            # It waits for the host, and every message of it is committed.
            self.state = Thinking()
        self.run.cancel(reason)
        self.outcome = None
        body: dict[str, Json] = {"revision": self.keeper.revision, "decisions": 0}
        event = Event(code=EventCode.RUN003O, subject=self.run.subject(), object=body)
        return await self._drive([event], None)

    def _posted(self, letters: Letters, *, abandon: bool) -> tuple[Decision, ...]:
        """What was decided elsewhere about calls that still wait."""
        pending = () if abandon else self._pending()
        resolved, left = self.keeper.resolved, letters.decisions
        return tuple(left[name] for name in pending if name in left and name not in resolved)

    def _granted(self, letters: Letters) -> tuple[Grant, ...]:
        """What was granted elsewhere, was not given yet, and can be given to this run."""
        if isinstance(self.state, Ended) and self.state.outcome.kind is not OutcomeKind.SUSPENDED:
            return ()
        given = {grant.grant_id for grant in self.keeper.grants}
        fresh = (grant for grant in letters.grants if grant.grant_id not in given)
        limited = (grant for grant in fresh if is_limited(self.run, grant.budget))
        return tuple(fitting(self.run, limited))

    async def _read_letters(self) -> None:
        """What others said while the run is driven: a wish to end it holds after the step in hand."""
        letters = await self.post.read()
        if letters.cancel is not None:
            self.run.cancel(letters.cancel.words, mode="after_step")
        for decision in self._posted(letters, abandon=False):
            if decision.request_id not in self.decisions:
                self.decisions = {**self.decisions, decision.request_id: decision}
            self.unanswered -= {decision.request_id}

    def _check(
        self, decisions: tuple[Decision, ...], message: str | None, *, abandon: bool
    ) -> Outcome | None:
        pending = self._pending()
        words: dict[str, Decision] = {}
        for decision in decisions:
            problem = self._check_decision(decision, pending, words)
            if problem is not None:
                return problem
        if message is not None and (pending or self.run.sub_runs) and not abandon:
            text = "calls wait for a person; decide them, or abandon them"
            return failure("approval", StopCode.PENDING_APPROVAL, text)
        return None

    def _check_decision(
        self, decision: Decision, pending: Mapping[str, Slot], words: dict[str, Decision]
    ) -> Outcome | None:
        request_id = decision.request_id
        resolved = self._check_resolved(decision)
        if resolved is not None:
            return resolved
        if request_id not in pending:
            text = f"no pending request has the id {request_id[:80]!r}"
            return failure("approval", StopCode.APPROVAL_NOT_FOUND, text)
        if not words.setdefault(request_id, decision).says_the_same(decision):
            text = f"{request_id} is decided in two ways at once"
            return failure("approval", StopCode.APPROVAL_CONFLICT, text)
        fault = self._remember_fault(decision, pending[request_id].request)
        return None if fault is None else failure("approval", StopCode.DECISION_REFUSED, fault)

    def _remember_fault(self, decision: Decision, request: ApprovalRequest | None) -> str | None:
        """Why the approval cannot be remembered as it says; then it is no approval either."""
        spec = None if request is None else self.offered.get(request.tool)
        if spec is None or request is None:
            return None
        arguments = decision.runs(request)
        parameters, rules = spec.parameters, request.rules
        return remember_fault(decision.remember, spec.name, parameters, arguments, rules)

    def _lacking(self, decisions: Sequence[Decision], *, abandon: bool) -> Outcome | None:
        """What is in hand and cannot go on here: a call of a tool that this runtime does not have.

        What a person denies, or did not answer in time, needs no tool. A tool that is here in
        another form is another matter: its call is refused.
        """
        if abandon:
            return None
        closed = {d.request_id for d in decisions if d.verdict is Verdict.DENY}
        now = self.run.clock.now()
        for slot in _open_slots(self.state):
            request, name = slot.request, slot.call.name
            waits = slot.status is SlotStatus.PENDING and request is not None
            if waits and request and (request.request_id in closed or request.expired(now)):
                continue
            if self._is_gone(name):
                return self._gone(name)
        unjudged = self.state.calls if isinstance(self.state, Classifying) else ()
        gone = (call.call.name for call in unjudged if self._is_gone(call.call.name))
        return next(map(self._gone, gone), None)

    def _gone(self, name: str) -> Outcome:
        text = f"waits for a call of `{name}`, which this runtime does not have"
        return failure("tool", StopCode.TOOL_MISSING, f"run {self.run.id} {text}")

    def _is_gone(self, name: str) -> bool:
        """Whether the runtime that the run was started with had the tool, and this one has not."""
        definitions: object = self.keeper.given["definitions"]
        had = isinstance(definitions, Mapping) and definitions.get(name)
        return bool(had) and not self.guarded.has_tool(name)

    def _check_resolved(self, decision: Decision) -> Outcome | None:
        """What a decision on a request that was decided is told: it has no effect."""
        request_id = decision.request_id
        earlier = self.keeper.resolved.get(request_id)
        if earlier is None:
            return None
        if earlier.settled is Settled.EXPIRED:
            text = f"{request_id} was not decided in time"
            return failure("approval", CallCode.APPROVAL_EXPIRED, text)
        same = earlier.decision.says_the_same(decision) and earlier.settled is not Settled.WITHDRAWN
        code = StopCode.ALREADY_RESOLVED if same else StopCode.APPROVAL_CONFLICT
        text = f"{request_id} was decided: {earlier.decision.verdict}, {earlier.settled}"
        outcome = failure("approval", code, text)
        if outcome.stop is None:
            return outcome
        return attrs.evolve(outcome, stop=attrs.evolve(outcome.stop, details=earlier.outcome()))

    def _grant(self, grants: tuple[Grant, ...], message: str | None) -> list[Event]:
        """Give the run what it was granted; the events that say so.

        Raises:
            ContractError: the run is over, or a grant cannot be given to it.
        """
        if not grants:
            return []
        if isinstance(self.state, Ended):
            kind = self.state.outcome.kind
            goes_on = kind is OutcomeKind.COMPLETED and message is not None
            if kind is not OutcomeKind.SUSPENDED and not goes_on:
                raise ContractError("grants", f"the run is over ({kind})")
        return give(self.run, self.keeper, fresh_grants(self.run, self.keeper.grants, grants))

    async def _still_over(self, over: Outcome, granted: Sequence[Event]) -> LoopResult:
        """Nothing follows; what was granted is kept for when something does."""
        if not granted:
            return self._result(over, await self._saved())
        try:
            for event in granted:
                self.run.record(event)
            self.run.flush()
            await self._save()
        except (AuditError, StoreError) as error:
            over = _broken(error)
        return self._result(over, await self._saved())

    def _reopen(self) -> None:
        """Go on from where a run wound up: the model is told that it may."""
        state = reopened(self.state)
        if state is not None:
            self.state = state
            self.keeper.append(UserMessage(text=GRANT_NOTICE))

    def _over(self, message: str | None, granted: Sequence[Event] = ()) -> Outcome | None:
        """The outcome of a run that nothing follows yet.

        Without a grant a spent budget stays spent, and a provider that asked to wait is not asked.
        """
        outcome = self.outcome
        stop = None if outcome is None else outcome.stop
        if stop is not None and stop.code == StopCode.BUDGET_EXHAUSTED:
            if not granted or not has_room(self.run, stop):
                return outcome
            if message is None:
                self._reopen()
        if stop is not None and stop.retry_at is not None and self.run.clock.now() < stop.retry_at:
            return outcome
        if not isinstance(self.state, Ended):
            return None
        ended = self.state.outcome
        final = ended.kind in {OutcomeKind.CANCELLED, OutcomeKind.ERROR}
        return ended if message is None or final else None

    def _pending(self) -> dict[str, Slot]:
        return {
            slot.request.request_id: slot
            for slot in _open_slots(self.state)
            if slot.status is SlotStatus.PENDING and slot.request is not None
        }

    def _requests(self) -> tuple[ApprovalRequest, ...]:
        slots = self._pending().values()
        return tuple(slot.request for slot in slots if slot.request is not None)

    def _entry(self, message: str | None) -> Step:
        """Where the drive starts; a message closes the batch in hand and is said after it.

        Raises:
            AuditError: the log could not take that requests were withdrawn.
        """
        if message is None:
            return resume(self.state)
        self._withdraw_requests()
        self._doubt(_open_slots(self.state))
        self._close_doubtful(frozenset(self.keeper.begun))
        for slot in _open_slots(self.state):
            self.run.drop(slot.step)
        over = Interrupted(
            outcome=failure("run", StopCode.PAUSED, "abandoned"),
            resumable=False,
            begun=frozenset(self.keeper.begun),
        )
        for command in advance(self.rules, self.state, over).commands:
            if isinstance(command, Commit):
                self.keeper.commit(command.messages)
        self.keeper.append(UserMessage(text=clean_text(message)))
        self.run.repeats.clear()
        self.run.memory.forget_repeats()
        self.abandoned = self.below()
        self.run.sub_runs = NOTHING
        self.state = Thinking()
        return resume(self.state)

    def adopt(self, saved: SavedRun, head: Mapping[str, Json], held: Taken) -> None:
        """Stand where the saved run stood.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: a part of the head is not of its form.
        """
        self.keeper.adopt(saved, head, held)
        self.state, self.outcome = restored_state(head, held.results)
        for slot in _slots(self.state):
            self.keeper.taken.setdefault(slot.call.id, 1)
        self._know_requests(head)
        begun = self.keeper.begun
        if isinstance(self.state, Executing | Waiting):
            slots = [attrs.evolve(s, begun=s.step in begun) for s in self.state.slots]
            self.state = attrs.evolve(self.state, slots=tuple(slots))
        for slot in _open_slots(self.state):
            ready = slot.status is SlotStatus.ADMITTED
            self.guarded.judge.hold_again(
                slot.step, slot.call, ready=ready, begun=begun.get(slot.step, 0)
            )

    def _know_requests(self, head: Mapping[str, Json]) -> None:
        """Every request in hand carries the seal of the host's key.

        A run that was saved before requests were sealed is sealed as a whole: its requests are what
        it says, and get their seal now.

        Raises:
            StateRefused: a request was put there by another hand.
        """
        state, seal = self.state, self.run.seal
        if not isinstance(state, Executing | Waiting):
            return
        if head["schema"] != 1:
            for request in (slot.request for slot in state.slots):
                if request is not None:
                    check_request(seal, request)
            return
        slots = tuple(
            slot
            if slot.request is None
            else attrs.evolve(slot, request=seal_request(seal, slot.request))
            for slot in state.slots
        )
        self.state = attrs.evolve(state, slots=slots)

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    async def _drive(self, opening: Sequence[Event | Entry], message: str | None) -> LoopResult:
        run = self.run
        self.rules = Rules(
            max_consecutive_refused=run.refused_in_a_row,
            wrap_up=self.guarded.may_wrap_up,
            atomic=run.contract.batch == "atomic",
            check_again=run.contract.output_check == "again",
        )
        run.begin_activity()
        try:
            self._enter(opening)
            # A run may wait for hours: it need not hold how it began.
            del opening
            step = self._entry(message)
            if run.input_guards:
                step = await self._guarded_entry(step)
            await self._save()
            self.entered = True
            finished = self._until_finished(step)
            del step
            outcome = await finished
        except SaveStopped as error:
            outcome = self._save_stopped(error)
        except (AuditError, EmitterError, StoreError) as error:
            outcome = _broken(error)
        except BaseException as error:
            self._record_torn(error)
            raise
        finally:
            run.end_activity()
            self._let_go()
            await self._release()
        return await self._finished(outcome)

    def _enter(self, opening: Sequence[Event | Entry]) -> None:
        """Write how the drive begins to the log."""
        for event in opening:
            self.run.enter_in_log(event)
        self.run.flush()

    async def _guarded_entry(self, step: Step) -> Step:
        """The entry, unless an input guard refuses what users said: then the run is over."""
        refused = await self.keeper.check_input()
        if refused is None:
            return step
        self._withdraw_requests()
        self._close_doubtful(frozenset(self.keeper.begun))
        over = Interrupted(outcome=refused, resumable=False, begun=frozenset(self.keeper.begun))
        return advance(self.rules, step.state, over)

    async def _until_finished(self, step: Step) -> Outcome:
        run = self.run
        while True:
            self.state = step.state
            event: MachineEvent | None = None
            for command in step.commands:
                if isinstance(command, Finish):
                    return command.outcome
                if isinstance(command, Commit):
                    self.keeper.commit(command.messages)
                    continue
                observer = run.observer
                if observer is not None and observer.is_full():
                    await self._wait_for(observer)
                held_up = None if run.interrupt is None else self._held_up(command)
                event = held_up or await self._obey(command)
            if event is None:
                raise ContractError("machine", "a step without a command that gives an event")
            cut_short = None if run.interrupt is None else self._cut_short(event)
            step = advance(self.rules, self.state, cut_short or event)

    async def _wait_for(self, observer: Observer) -> None:
        """Whoever reads is behind: nothing runs meanwhile, and no time is charged to the run."""
        run = self.run
        if run.interrupt is not None:
            return
        await self._secure()
        run.end_activity()
        try:
            await bounded(run, None, observer.room(), idle=True)
        except TimeUp:
            return
        finally:
            run.begin_activity()

    def _held_up(self, command: Command) -> Interrupted | None:
        """An interruption takes effect before the next thing that would cost something.

        What ends for good is not judged any more either.
        """
        if isinstance(command, AskModel | Execute | AskPeople):
            return self._interruption()
        final = not self.run.interrupt_resumable
        return self._interruption() if final and isinstance(command, _JUDGES) else None

    def _cut_short(self, event: MachineEvent) -> Interrupted | None:
        """An interruption that stopped the step in hand; what it leaves is taken up later."""
        match event:
            case TurnLost():
                return self._interruption()
            case Ruled(admissions=admissions) if not admissions:
                return self._interruption()
            case ExecutedCalls() if self.cut and self.run.interrupt_resumable:
                return self._interruption()
            case _:
                return None

    def _interruption(self) -> Interrupted | None:
        outcome = self.run.interrupt
        return None if outcome is None else self._interrupted(outcome)

    def _interrupted(self, outcome: Outcome) -> Interrupted:
        """The run stops here; what it was in doubt about is on record if it stops for good.

        Raises:
            AuditError: the log could not take it.
        """
        run = self.run
        if not run.interrupt_resumable:
            self._withdraw_requests()
            self._close_doubtful(frozenset(self.keeper.begun))
        return Interrupted(
            outcome=outcome,
            resumable=run.interrupt_resumable,
            begun=frozenset(self.keeper.begun),
        )

    def _obey(self, command: Command) -> Awaitable[MachineEvent | None]:
        """What carries the command out, to be awaited."""
        match command:
            case AskModel(final=final):
                compactor = self.compactor
                if compactor is None:
                    return self._asked(final=final)
                return self._ask_model(compactor, final=final)
            case Classify(calls=calls):
                return self._classify(calls)
            case CheckAnswer(text=text):
                return self._check_answer(text)
            case Execute(slots=slots):
                return self._execute(slots)
            case Readmit(slots=slots):
                return self._readmit(slots)
            case AskPeople(requests=requests):
                return self._ask_people(requests)
            case Withdraw(slots=slots):
                return self._withdraw(slots)
            case Commit() | Finish():
                raise ContractError("machine", "nothing is awaited for this command")

    async def _ask_model(self, compactor: Compactor, *, final: bool) -> MachineEvent:
        """Ask with a history that fits, and once more with a shorter one where it did not."""
        if self.fresh and compactor.is_needed():
            await self._secure()
        lost = await compactor.fit()
        if lost is not None:
            return TurnLost(outcome=lost, again=True)
        event = await self._asked(final=final)
        if not _is_overflow(event) or self.run.summariser is None:
            return event
        lost = await compactor.shrink()
        if lost is not None:
            return TurnLost(outcome=lost, again=True)
        return await self._asked(final=final)

    async def _asked(self, *, final: bool) -> MachineEvent:
        request = self._request(final=final)
        reserved = self.guarded.turns.reserve(request, closing=final)
        if isinstance(reserved, TurnResult):
            return _lost(reserved)
        try:
            if final:
                self._give_notice()
                request = self._request(final=True)
            if self.keeper.store is not None:
                await self._save()
        except BaseException:
            self.guarded.turns.give_up(reserved)
            raise
        taken = await self.guarded.turns.ask(reserved, request, self.context)
        if taken.turn is None:
            return _lost(taken)
        self.fresh = True
        calls: tuple[IngestedCall, ...] = ()
        if not final:
            calls = ingest(taken.turn, number=self.run.turn, taken=self.keeper.taken, cut=taken.cut)
        turn = taken.turn if calls else self._shown(taken.turn)
        fault = None if calls else self.input.output_fault(turn.text)
        checks = self.run.output_check is not None and fault is None and _is_answer(turn)
        return TurnTaken(turn=turn, calls=calls, cut=taken.cut, fault=fault, to_check=checks)

    def _shown(self, turn: Turn) -> Turn:
        """An answer that fetches nothing and tells nothing by being shown.

        Raises:
            AuditError: the log could not take what became text.
        """
        run = self.run
        defused = run.flow.answer(turn.text, run.label)
        if defused is None:
            return turn
        step = f"t{run.turn}"
        run.record(links_defused(run.subject(step), defused.counts(), step))
        return attrs.evolve(turn, text=defused.text)

    async def _check_answer(self, text: str) -> MachineEvent:
        await self._secure()
        try:
            return Checked(unverified=await check_answer(self.run, text, self.keeper.messages))
        except Stopped as stop:
            return self._interrupted(self._stop_for(stop))

    def _request(self, *, final: bool) -> TurnRequest:
        return TurnRequest(
            messages=Transcript(self.keeper.shown),
            tools=() if final else self.input.tool_catalog,
            model=self.input.model,
            max_output_tokens=self.input.max_output_tokens,
        )

    def _give_notice(self) -> None:
        """Say that this is the last turn, once: a run may have been stopped right after it."""
        notice = UserMessage(text=WRAP_UP_NOTICE)
        if self.keeper.messages[-1] != notice:
            self.keeper.append(notice)

    async def _classify(self, calls: tuple[IngestedCall, ...]) -> MachineEvent:
        admit, offered, context = self.guarded.judge.admit, self.offered, self.context
        if self.guarded.judge.asks_host:
            # The response is paid for: whatever becomes of the host's checks, it is not lost.
            await self._secure()
        run = self.run
        before = run.mark() if self.guarded.judge.asks_host else None
        admissions: list[Admission] = []
        most = self.guarded.max_batch
        for number, call in enumerate(calls, start=1):
            try:
                if number > most and not call.cut:
                    admissions.append(await self.guarded.judge.refuse(call, _surplus(most)))
                else:
                    admissions.append(await admit(call, offered, context))
            except Stopped as stop:
                return self._unjudged(calls, admissions, stop, before)
            if not number % _JUDGED_AT_ONCE:
                # Nothing above needs to wait: without this, nobody could stop a large batch.
                await asyncio.sleep(0)
        return Classified(
            admissions=tuple(admissions),
            misbehaving=bool(run.ledger.refused) and run.over_refused(),
        )

    def _unjudged(
        self,
        calls: tuple[IngestedCall, ...],
        admissions: Sequence[Admission],
        stop: Stopped,
        before: Mark | None,
    ) -> Interrupted:
        """The run stopped while it judged a response: what was decided of it so far does not hold.

        If the run can be taken up, the response is in hand as it was, and is judged again then.

        Raises:
            AuditError: the log could not take that requests were withdrawn.
        """
        run, outcome = self.run, self._stop_for(stop)
        for admission in admissions:
            if isinstance(admission, Pending):
                self._withdraw_request(admission.request)
        if run.interrupt_resumable and before is not None:
            run.go_back(before, [call.step for call in calls])
            self.guarded.judge.take_back((*admissions, *([stop.refused] if stop.refused else ())))
        return self._interrupted(outcome)

    def _stop_for(self, stop: Stopped) -> Outcome:
        """The run's interruption; one whose time is spent is interrupted for that."""
        if self.run.interrupt is None:
            self.run.suspend(stop.outcome)
        return self.run.interrupt or stop.outcome

    async def _readmit(self, slots: tuple[Slot, ...]) -> MachineEvent:
        """Judge calls again that an earlier drive admitted, and close those that are in doubt."""
        admissions: dict[str, Admission] = {}
        # Before any is judged: one that stands earlier may ask for the same.
        self._doubt(slots)
        for number, slot in enumerate(slots, start=1):
            if not number % _JUDGED_AT_ONCE:
                await asyncio.sleep(0)
            if self._is_in_doubt(slot):
                admissions[slot.step] = self._unknown(slot)
            else:
                try:
                    admissions[slot.step] = await self.guarded.judge.readmit(
                        slot.step, slot.call, slot.request, self.offered, self.context
                    )
                except Stopped as stop:
                    # What was not judged is held up with what was: before anything runs.
                    self._stop_for(stop)
                    if stop.refused is not None:
                        admissions[slot.step] = stop.refused
                    break
        return Readmitted(admissions=admissions)

    def _is_in_doubt(self, slot: Slot) -> bool:
        """Started and without a result: run again only if the tool says that this is harmless."""
        spec = self.offered.get(slot.call.name)
        harmless = spec is not None and spec.effects is not Effects.ONCE
        return slot.step in self.keeper.begun and not harmless

    def _doubt(self, slots: Sequence[Slot]) -> None:
        """Keep which calls may have taken effect: none that asks for the same runs unasked."""
        for slot in slots:
            if not self._is_in_doubt(slot):
                continue
            name, spec = slot.call.name, self.offered.get(slot.call.name)
            asked = slot.call.arguments if isinstance(slot.call.arguments, Mapping) else {}
            cosmetic = () if spec is None else spec.cosmetic
            self.run.memory.doubt(fingerprint_of(name, asked, cosmetic))

    def _close_doubtful(self, steps: AbstractSet[str]) -> None:
        """Record what was started and will never have a result: it counts as used.

        Raises:
            AuditError: the log could not take it.
        """
        for slot in _open_slots(self.state):
            if slot.step in steps and slot.step in self.run.held:
                self._unknown(slot)

    def _unknown(self, slot: Slot) -> Refused:
        run, attempt = self.run, self.keeper.begun[slot.step]
        record = StepRecord(
            step=slot.step,
            tool=slot.call.name,
            call_id=slot.call.id,
            admitted=True,
            executed=Executed.UNKNOWN,
            ok=False,
            code=str(OUTCOME_UNKNOWN.code),
            args_sha256=run.held[slot.step].args_sha256,
            label=run.label,
            # The drive that started it may have recorded an end of its own, under its own name.
            attempt=attempt + 1,
        )
        # Admitted to run once more and not started again, it costs no more than it has.
        run.settle(slot.step, ran=self.keeper.is_started(slot.step))
        run.steps.append(record)
        subject = run.subject(slot.step, slot.call.id)
        run.enter_in_log(step_finished(subject, record, OUTCOME_UNKNOWN))
        return Refused(output=OUTCOME_UNKNOWN)

    def _execute(self, slots: tuple[Slot, ...]) -> Awaitable[MachineEvent]:
        """What runs the calls, to be awaited; those that begin at once are kept as begun."""
        self.cut, self.announced = _NONE, ()
        self.running = len(slots)
        rounds = (slots,) if not self.exclusive else _rounds(slots, self.exclusive)
        for slot in rounds[0][: self.run.contract.max_parallel]:
            self._announce(slot)
        return self._run_alone(*slots) if len(slots) == 1 else self._run_rounds(rounds)

    async def _run_alone(self, slot: Slot) -> MachineEvent:
        if self.keeper.store is not None:
            await self._save()
        output = await self._running(slot)
        return self._executed({slot.step: self._result_of(slot, output)})

    async def _run_rounds(self, rounds: tuple[tuple[Slot, ...], ...]) -> MachineEvent:
        if self.keeper.store is not None:
            await self._save()
        results: dict[str, ToolMessage] = {}
        for together in rounds:
            results |= await self._run_together(together)
        return self._executed(results)

    async def _run_together(self, slots: tuple[Slot, ...]) -> dict[str, ToolMessage]:
        """Run calls at the same time, as many as the contract lets; none is stopped by another."""
        most = self.run.contract.max_parallel
        gate = asyncio.Semaphore(most)

        async def queued(slot: Slot) -> ToolMessage:
            async with gate:
                return await self._run_slot(slot, beside=True)

        begin = partial(self._run_slot, beside=True) if len(slots) <= most else queued
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {slot.step: group.create_task(begin(slot)) for slot in slots}
        except ExceptionGroup as errors:
            broken, others = errors.split((AuditError, EmitterError, StoreError))
            if broken is None or others is not None:
                raise
            raise broken.exceptions[0] from errors
        return {step: task.result() for step, task in tasks.items()}

    def _executed(self, results: Mapping[str, ToolMessage]) -> ExecutedCalls:
        run = self.run
        if self.cut and not run.interrupt_resumable:
            # A pause that a cancel overtook: what it cut will not be taken up.
            self._close_doubtful(self.cut & self.keeper.begun.keys())
        return ExecutedCalls(
            results=results, misbehaving=bool(run.ledger.refused) and run.over_refused()
        )

    def _announce(self, slot: Slot) -> None:
        self.keeper.begun[slot.step] = self.keeper.begun.get(slot.step, 0) + 1
        self.announced = (*self.announced, slot.step)

    async def _run_slot(self, slot: Slot, *, beside: bool = False) -> ToolMessage:
        stored = self.keeper.store is not None
        if not self.run.is_interrupted() and slot.step not in self.announced:
            self._announce(slot)
            if stored:
                await self._save()
        result = self._result_of(slot, await self._running(slot, beside=beside))
        # The last result is saved with what follows it, before anything else is awaited.
        if stored and self.running and slot.call.id in self.keeper.results:
            await self._save()
        return result

    def _running(self, slot: Slot, *, beside: bool = False) -> Awaitable[ToolOutput]:
        return self.guarded.execution.run(
            slot.step,
            slot.call,
            self.offered[slot.call.name],
            self.context,
            attempt=self.keeper.begun.get(slot.step, 1),
            resumable=True,
            beside=beside,
        )

    def _result_of(self, slot: Slot, output: ToolOutput) -> ToolMessage:
        """What the model is to see of a call, kept unless the call will be run by another drive."""
        self.running -= 1
        result = result_message(slot.call, output)
        if output is NOT_BEGUN:
            self._not_begun(slot)
        elif output is CUT and self.run.interrupt_resumable:
            self.cut |= {slot.step}
        else:
            self.keeper.keep_result(result)
            self.fresh = True
        return result

    def _not_begun(self, slot: Slot) -> None:
        """A call that the interruption found in the queue: it stays held if the run goes on."""
        step = slot.step
        if step in self.announced:
            self.keeper.begun[step] -= 1
            if not self.keeper.begun[step]:
                del self.keeper.begun[step]
        if self.run.interrupt_resumable:
            self.cut |= {step}
        else:
            self.run.drop(step)

    async def _ask_people(self, requests: tuple[ApprovalRequest, ...]) -> MachineEvent:
        admissions = await self._reconsidered(requests)
        if admissions:
            return self._ruled(admissions)
        await self._save()
        slots = self._pending()
        for request in requests:
            decision = await self._decision(request)
            if decision is None:
                continue
            slot = slots[request.request_id]
            try:
                admission: Admission = await self.guarded.judge.rule(
                    slot.step, slot.call, request, decision, self.offered, self.context
                )
            except Stopped as stop:
                self._stop_for(stop)
                if stop.refused is None:
                    # The person has spoken: nobody is asked again, and the next drive carries it out.
                    self.keeper.resolve(Resolution(decision=decision, settled=Settled.CLAIMED))
                    break
                admission = stop.refused
            admissions[slot.step] = admission
            self.keeper.resolve(_resolution(decision, admission))
        return self._ruled(admissions)

    async def _reconsidered(self, requests: tuple[ApprovalRequest, ...]) -> dict[str, Admission]:
        """The new word on calls whose context became worse before a person is shown them.

        What a person has decided is judged with the decision.

        Raises:
            AuditError: the log could not take it.
            EmitterError: the host's emitter raised.
        """
        slots, admissions = self._pending(), dict[str, Admission]()
        for request in requests:
            if request.request_id in self.decisions:
                continue
            call = slots[request.request_id].call
            stopped = False
            if self.guarded.judge.asks_host:
                await self._secure()
            try:
                admission = await self.guarded.judge.reconsider(call, request, self.offered)
            except Stopped as stop:
                self._stop_for(stop)
                admission, stopped = stop.refused, True
            if admission is not None:
                self._withdraw_request(request)
                admissions[request.step] = admission
            if stopped:
                break
        return admissions

    def _ruled(self, admissions: dict[str, Admission]) -> Ruled:
        return Ruled(
            admissions=admissions,
            misbehaving=self.run.over_refused(),
            lapsed=self._lapsed() if admissions else frozenset(),
        )

    def _lapsed(self) -> frozenset[str]:
        """The calls of the batch in hand that would fit by now into the budget that refused them."""
        ledger = self.run.ledger
        lapsed: set[str] = set()
        for slot in _slots(self.state):
            short = slot.shortfall
            if short is None or not short.reserved:
                continue
            left = ledger.left(short.budget)
            if left == UNLIMITED or left >= max(1, short.needed):
                lapsed.add(slot.step)
        return frozenset(lapsed)

    async def _decision(self, request: ApprovalRequest) -> Decision | None:
        """What was brought to the resume, else what the approver says, else that it is too late."""
        given = self.decisions.get(request.request_id)
        self.decisions = without(self.decisions, request.request_id)
        if given is None and request.request_id not in self.unanswered:
            given = await self.guarded.judge.decide(request)
            if given is not None and self._remember_fault(given, request):
                # Half of a decision is none.
                given = None
        if given is None and request.expired(self.run.clock.now()):
            return Decision(
                request_id=request.request_id, verdict=Verdict.DENY, decided_by=_EXPIRED
            )
        if given is None:
            self.unanswered |= {request.request_id}
        return given

    async def _secure(self) -> None:
        """Save what has come since the last save, before somebody is waited for who may never end.

        Raises:
            StoreError: the store could not be written.
        """
        if self.fresh and self.keeper.store is not None:
            await self._save()

    async def _save(self) -> None:
        await self.keeper.save(self.state, self.outcome)
        self.fresh = False
        if self.outcome is None and self.post.has_news():
            await self._read_letters()

    # ── leaving ───────────────────────────────────────────────────────────────────────────────

    def _let_go(self) -> None:
        """Give back what no call that can still run holds. Calls of others are left alone."""
        kept = {slot.step for slot in _open_slots(self.state)}
        for step in [step for step in self.run.held if step.startswith("t")]:
            if step not in kept:
                self.run.drop(step)

    async def _release(self) -> None:
        # The host's code: the run has ended as it has, whatever closing its connections says.
        with contextlib.suppress(Exception):
            await self.guarded.release()

    def _record_torn(self, error: BaseException) -> None:
        """The log gets its end even when the task is torn away; a log that fails is not in the way."""
        with contextlib.suppress(AuditError):
            self._record_end(failure("run", StopCode.CANCELLED, type(error).__name__))

    async def _finished(self, outcome: Outcome) -> LoopResult:
        try:
            outcome = await self._kept(outcome)
        except SaveStopped as error:
            outcome = self._save_stopped(error)
        except (AuditError, StoreError) as error:
            outcome = _broken(error)
        if self.unsaved:
            await self.post.leave_cancel("" if outcome.stop is None else outcome.stop.message)
        return self._result(outcome, await self._saved())

    async def _kept(self, outcome: Outcome) -> Outcome:
        """How the drive ended, when that is in the log and in the store.

        Raises:
            AuditError: the log could not take it.
            StoreError: the store could not.
        """
        self.outcome = outcome
        stage = None if outcome.stop is None else outcome.stop.stage
        if stage != "audit":
            self._record_end(outcome)
        if self.unsaved or stage in {"audit", "emitter", "store"}:
            return outcome
        await self._save()
        if self.run.interrupt is None or self.run.interrupt_resumable or self._is_over():
            return outcome
        # It was cancelled while it was being parked.
        outcome = self.outcome = self._ended(self.run.interrupt)
        self._record_end(outcome)
        await self._save()
        return outcome

    def _save_stopped(self, error: SaveStopped) -> Outcome:
        """A cancelled run is cancelled, even if its store was too slow to hear of it."""
        outcome = self.run.interrupt
        if outcome is None or self.run.interrupt_resumable:
            return _broken(error)
        self.unsaved = True
        try:
            return self._ended(outcome)
        except AuditError as broken:
            return _broken(broken)

    def _ended(self, outcome: Outcome) -> Outcome:
        """End the run where it stands: every call in hand has its result, and no step is held.

        Raises:
            AuditError: the log could not take what is in doubt.
        """
        state = self.state
        if isinstance(state, Ended):
            # Every message of it is committed.
            self.state = Thinking()
        elif isinstance(state, Executing | Waiting):
            self.state = attrs.evolve(state, slots=self._with_results(state.slots))
        step = advance(self.rules, self.state, self._interrupted(outcome))
        for command in step.commands:
            if isinstance(command, Commit):
                self.keeper.commit(command.messages)
        self.state = step.state
        self._let_go()
        return outcome

    def _with_results(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        results = self.keeper.results
        return tuple(
            attrs.evolve(slot, result=results[slot.call.id])
            if slot.result is None and slot.call.id in results
            else slot
            for slot in slots
        )

    def _withdraw_requests(self) -> None:
        """Record that nobody will be asked any more about what is pending.

        Raises:
            AuditError: the log could not take it.
        """
        for request in self._requests():
            self._withdraw_request(request)

    def _withdraw_request(self, request: ApprovalRequest) -> None:
        word = Decision(request_id=request.request_id, verdict=Verdict.DENY, decided_by=_WITHDRAWN)
        subject = self.run.subject(request.step)
        self.run.record(approval_decided(subject, request, word, EventCode.APR004D))
        self.keeper.resolve(Resolution(decision=word, settled=Settled.WITHDRAWN))

    async def _withdraw(self, slots: tuple[Slot, ...]) -> None:
        """Calls of an atomic batch that will not run: their steps are given back.

        Raises:
            AuditError: the log could not take it.
        """
        for slot in slots:
            if slot.status is SlotStatus.PENDING and slot.request is not None:
                self._withdraw_request(slot.request)
            arguments = slot.call.arguments if isinstance(slot.call.arguments, Mapping) else {}
            call = IngestedCall(step=slot.step, call=slot.call, arguments=arguments, raw=None)
            await self.guarded.judge.refuse(call, BATCH_REFUSED)

    def _record_end(self, outcome: Outcome) -> None:
        run, view = self.run, self.run.view()
        body: dict[str, Json] = {
            "kind": str(outcome.kind),
            "code": None if outcome.stop is None else str(outcome.stop.code),
            "used": dict(view.used),
            "refused": view.refused,
            "denials": view.denials,
            "violations": view.violations,
            "attempts": view.attempts,
            "input_tokens": view.input_tokens,
            "output_tokens": view.output_tokens,
            "active_us": round(view.active_seconds * 1_000_000),
        }
        run.enter_in_log(Entry(EventCode.RUN002O, run.subject(), body))
        run.flush()

    def _is_over(self) -> bool:
        """Whether nothing can follow."""
        state = self.state
        return isinstance(state, Ended) and state.outcome.kind is not OutcomeKind.SUSPENDED

    async def _saved(self) -> SavedRun | None:
        """The run as it can be taken up again; None when it is over."""
        if self._is_over():
            return None
        store = self.keeper.store
        if store is None:
            return self.keeper.unstored(self.state, self.outcome)
        try:
            return await bounded(self.run, _LOAD_SECONDS, store.load(self.run.id))
        # The host's store may raise anything; the result stands without the state.
        except Exception:  # noqa: BLE001
            return None

    def _result(self, outcome: Outcome, state: SavedRun | None) -> LoopResult:
        keeper = self.keeper
        batch = pending_messages(self.state, keeper.results, frozenset(keeper.begun))
        failed = outcome.kind is OutcomeKind.ERROR
        more: dict[str, Any] = {"cause": outcome.cause} if failed else {}
        return RESULTS[outcome.kind](
            kind=outcome.kind,
            run_id=self.run.id,
            text=outcome.text,
            messages=(*keeper.messages, *batch),
            ledger=self.run.view(),
            steps=tuple(self.run.steps),
            stop=outcome.stop,
            requests=(*self._requests(), *self._asked_below().values()),
            state=state,
            **more,
        )


def _resolution(decision: Decision, admission: Admission) -> Resolution:
    """What came of a decision."""
    match admission:
        case Pending(request=request):
            return Resolution(
                decision=decision, settled=Settled.ASKED_AGAIN, detail=request.request_id
            )
        case Refused(output=output) if output.code == CallCode.APPROVAL_EXPIRED:
            return Resolution(decision=decision, settled=Settled.EXPIRED)
        case Refused(output=output) if output.code == CallCode.DENIED_BY_PERSON:
            return Resolution(decision=decision, settled=Settled.DENIED)
        case Refused(output=output):
            code = str(output.code)
            return Resolution(decision=decision, settled=Settled.REFUSED, detail=code)
        case _:
            return Resolution(decision=decision, settled=Settled.ADMITTED)


def _lost(result: TurnResult) -> TurnLost:
    lost = result.lost or failure("model", StopCode.MODEL_ERROR, "no turn")
    return TurnLost(outcome=lost, soft=result.soft, again=result.again)


def _rounds(slots: tuple[Slot, ...], exclusive: frozenset[str]) -> tuple[tuple[Slot, ...], ...]:
    """The calls in rounds that run one after the other; a call of an exclusive tool is alone in its."""
    rounds: list[tuple[Slot, ...]] = []
    together: list[Slot] = []
    for slot in slots:
        if slot.call.name not in exclusive:
            together.append(slot)
            continue
        rounds += [tuple(together)] if together else []
        rounds.append((slot,))
        together = []
    return (*rounds, tuple(together)) if together else tuple(rounds)


def _surplus(most: float) -> ToolOutput:
    details: dict[str, Json] = {"budget": "max_batch", "limit": int(most)}
    text = f"A response may ask for {most:g} calls at most; this one is beyond them. Ask again."
    return refusal(CallCode.BUDGET_EXHAUSTED, text, retryable=True, details=details)


def _is_answer(turn: Turn) -> bool:
    """Whether a turn would end the run with its text."""
    return turn.status in {TurnStatus.REPLY, TurnStatus.COMPLETE} and turn.finish not in DECLINED


def _is_overflow(event: MachineEvent) -> bool:
    stop = event.outcome.stop if isinstance(event, TurnLost) else None
    return stop is not None and stop.code == StopCode.CONTEXT_OVERFLOW


def _slots(state: State) -> tuple[Slot, ...]:
    return state.slots if isinstance(state, Executing | Waiting) else ()


def _open_slots(state: State) -> tuple[Slot, ...]:
    """The calls of the batch in hand that hold a step: they may still run."""
    return tuple(slot for slot in _slots(state) if slot.status is not SlotStatus.DONE)


def _broken(error: AuditError | EmitterError | StoreError) -> Outcome:
    """What stopped the drive from outside the machine. The last saved state stands."""
    match error:
        case AuditError():
            return failure("audit", StopCode.AUDIT_FAILED, str(error), error.__cause__ or error)
        case EmitterError():
            return failure("emitter", StopCode.EMITTER_FAILED, str(error), error.__cause__ or error)
        case RunConflict():
            return failure("store", StopCode.STATE_CONFLICT, str(error), error.__cause__ or error)
        case StateRefused():
            return failure("state", StopCode.STATE_INTEGRITY, str(error), error.__cause__ or error)
        case _:
            return failure("store", StopCode.STORE_FAILED, str(error), error.__cause__ or error)


def _given(turn_input: TurnInput, definitions: tuple[str, ...]) -> dict[str, Json]:
    """What the run was started with: kept, so that it can be taken up without the host's catalog.

    `definitions` are the digests of the tools as the runtime had them: what it has in another
    form when the run is taken up is another tool.
    """
    catalog = turn_input.tool_catalog
    tools: list[Json] = [spec.to_json() for spec in catalog]
    schema = turn_input.output_schema
    # Written where there is one only: runs of earlier versions have none.
    asked: dict[str, Json] = {} if schema is None else {"output_schema": schema}
    return asked | {
        "model": turn_input.model,
        "limit": turn_input.max_output_tokens,
        "tools": tools,
        "definitions": dict(zip(turn_input.offered, definitions, strict=True)),
    }


def restore(
    guarded: GuardedRuntime,
    saved: SavedRun,
    context: ExecutionContext,
    store: RunStore,
) -> Drive:
    """The drive of a saved run, as it stood at its last save.

    Raises:
        ContractError: a direct call of the run is in flight.
        StateRefused: the seal does not match, or a part cannot be read.
    """
    guarded.task_run.refuse_direct()
    head = open_head(saved, store.seal)
    try:
        held = read_rows(saved.rows)
        given: Mapping[str, Any] = held.turn_input
        turn_input = TurnInput(
            messages=held.messages,
            tool_catalog=_still_offered(given, guarded),
            model=given["model"],
            max_output_tokens=given["limit"],
            output_schema=given.get("output_schema"),
        )
        drive = Drive(guarded, turn_input, context, store, held.turn_input)
        drive.adopt(saved, head, held)
    except ContractError:
        # What this run lacks, and not what is wrong with the saved one.
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateRefused(f"the saved run cannot be read ({error})") from error
    return drive


def _still_offered(given: Mapping[str, Any], guarded: GuardedRuntime) -> Sequence[ToolSpec]:
    """The tools of a saved run that the runtime still has as they were."""
    specs = [spec_from_json(spec) for spec in given["tools"]]
    definitions: Mapping[str, Json] = given["definitions"]
    return [
        guarded.tool_spec(spec.name) or spec
        for spec in specs
        if guarded.judge.definition(spec) == definitions[spec.name]
    ]
