"""Saved runs from outside: list, show, decide, cancel, resume; from any process that has the key.

Nothing here drives a run but `resume`, and `cancel` where nobody else does. What is said about a run
that is not driven here is left in its store as a letter; whoever drives it next, or now, heeds it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeAlias

import attrs

from runtime_pack.approvals import (
    ApprovalRequest,
    Decision,
    Resolution,
    Settled,
    Verdict,
    digest_arguments,
    remember_fault,
)
from runtime_pack.audit import AuditLog
from runtime_pack.errors import (
    CallCode,
    ContractError,
    RunAmbiguous,
    RunBusy,
    RunNotFound,
    StateRefused,
    StopCode,
    StoreError,
)
from runtime_pack.grants import Grant
from runtime_pack.guard.sub_runs import SubRun, is_sub_run_id
from runtime_pack.inner import frozen
from runtime_pack.instants import instant_text
from runtime_pack.labels import Label, parse_label
from runtime_pack.ledger import DURATION, EXPIRES, STEPS, TURNS, UNLIMITED
from runtime_pack.letters import (
    Letters,
    decision_key,
    grant_key,
    open_letters,
    seal_letter,
)
from runtime_pack.loop import LoopResult, cancel_saved_run, resume_governed_agent_loop
from runtime_pack.loop.keeper import Taken, read_rows, restored_state
from runtime_pack.loop.post import leave_wish
from runtime_pack.machine import (
    Ended,
    Executing,
    Outcome,
    OutcomeKind,
    SlotStatus,
    State,
    Stop,
    Waiting,
)
from runtime_pack.messages import AssistantMessage, Json
from runtime_pack.ports import Clock, SystemClock, ToolRuntime
from runtime_pack.records import StepRecord
from runtime_pack.schema import compile_schema
from runtime_pack.state import open_head, spec_from_json
from runtime_pack.state_folder import open_store
from runtime_pack.stores import SharedRunStore

__all__ = (
    "CancelReply",
    "CancelStatus",
    "Reply",
    "RunDetails",
    "RunStatus",
    "RunSummary",
    "SavedRequest",
    "approve",
    "ask_to_end",
    "call_arguments",
    "cancel",
    "cancel_all",
    "decide",
    "delete",
    "deny",
    "edit",
    "find_run",
    "grant",
    "list_runs",
    "open_store",
    "resume",
    "revisions_read",
    "show_run",
)

RuntimeFactory: TypeAlias = Callable[[str], ToolRuntime]
"""Makes the guarded runtime for a run of this id: a new `AgentTaskRun` each time."""


class RunStatus(StrEnum):
    """Where a saved run stands."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    WAITING = "waiting"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERROR = "error"
    DAMAGED = "damaged"


_STATUS: Final[Mapping[OutcomeKind, RunStatus]] = {
    OutcomeKind.APPROVAL_REQUIRED: RunStatus.WAITING,
    OutcomeKind.SUSPENDED: RunStatus.SUSPENDED,
    OutcomeKind.COMPLETED: RunStatus.COMPLETED,
    OutcomeKind.CANCELLED: RunStatus.CANCELLED,
    OutcomeKind.ERROR: RunStatus.ERROR,
}


_OVER: Final = frozenset(
    {RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.ERROR, RunStatus.DAMAGED}
)


@frozen(kw_only=True)
class RunSummary:
    """A run as a list shows it.

    Attributes:
        status: `running` while a process drives it, `interrupted` if one stopped in the middle,
            `damaged` if its seal does not match; then `problem` says what, and nothing else is known.
        pending: how many requests wait for a person and are not decided.
        decided: how many requests were decided, and wait for the run to be taken up.
        saved_at: when it was last saved; None if an earlier version saved it.
        cancel: who asked that it ends, and why, while it has not.
    """

    run_id: str
    status: RunStatus
    task: str = ""
    stop: Stop | None = None
    pending: int = 0
    decided: int = 0
    turns: int = 0
    steps: int = 0
    saved_at: datetime | None = None
    cancel: str | None = None
    problem: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow. Of a damaged run nothing can, either."""
        return self.status in _OVER

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        return {
            "run": self.run_id,
            "status": str(self.status),
            "task": self.task,
            "stop": None if self.stop is None else self.stop.to_json(),
            "pending": self.pending,
            "decided": self.decided,
            "turns": self.turns,
            "steps": self.steps,
            "saved_at": None if self.saved_at is None else instant_text(self.saved_at),
            "cancel": self.cancel,
            "problem": self.problem,
        }


@frozen(kw_only=True)
class SavedRequest:
    """A request that waits, and what was said of it since the run was saved."""

    request: ApprovalRequest
    expired: bool
    decision: Decision | None

    def to_json(self) -> dict[str, Json]:
        """For machines; with the whole request."""
        decision = None if self.decision is None else self.decision.to_json()
        return {**self.request.to_json(), "expired": self.expired, "decision": decision}


@frozen(kw_only=True)
class RunDetails:
    """All that is told of one run.

    `ledger` is as it was saved, `grants` are those that wait for the run to be taken up.
    """

    summary: RunSummary
    requests: tuple[SavedRequest, ...]
    steps: tuple[StepRecord, ...]
    ledger: Mapping[str, Json]
    label: Label
    text: str
    grants: tuple[Grant, ...]
    audit_log: str | None
    audit_head: str | None

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        return {
            **self.summary.to_json(),
            "requests": [request.to_json() for request in self.requests],
            "records": [record.to_json() for record in self.steps],
            "ledger": dict(self.ledger),
            "label": self.label.to_json(),
            "text": self.text,
            "grants": [grant.to_json() for grant in self.grants],
            "audit": {"path": self.audit_log, "head": self.audit_head},
        }


@frozen(kw_only=True)
class Reply:
    """What became of a decision. `code` is None when it was recorded; else it had no effect.

    With ALREADY_RESOLVED, `decision` is the one that stands and says the same.
    """

    request_id: str
    code: StopCode | CallCode | None
    message: str
    decision: Decision | None = None

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        return {
            "request_id": self.request_id,
            "code": None if self.code is None else str(self.code),
            "message": self.message,
            "decision": None if self.decision is None else self.decision.to_json(),
        }


class CancelStatus(StrEnum):
    """What became of a request to cancel."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    OVER = "over"
    FAILED = "failed"


@frozen(kw_only=True)
class CancelReply:
    """What became of a request to cancel a run.

    It was cancelled here; or another process drives it and ends it after its step in hand; or it
    was over before; or it could not be, which the message explains.
    """

    run_id: str
    status: CancelStatus
    message: str

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        return {"run": self.run_id, "status": str(self.status), "message": self.message}


# ── reading ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class _Below:
    """A request of a sub-run that waits, and what was said of it."""

    request: ApprovalRequest
    decision: Decision | None


@frozen(kw_only=True)
class _Known:
    """A saved run that was opened: its seal matched."""

    run_id: str
    head: Mapping[str, Any]
    held: Taken
    state: State
    outcome: Outcome | None
    letters: Letters
    sub_runs: tuple[SubRun, ...]
    below: Mapping[str, _Below] = attrs.field(factory=dict)

    @property
    def asked_below(self) -> tuple[ApprovalRequest, ...]:
        """What its sub-runs asked when it was saved; the task of each request is its path."""
        if not isinstance(self.state, Executing | Waiting):
            return ()
        return tuple(request for sub in self.sub_runs for request in sub.requests)

    @property
    def pending(self) -> dict[str, ApprovalRequest]:
        if not isinstance(self.state, Executing | Waiting):
            return {}
        return {
            slot.request.request_id: slot.request
            for slot in self.state.slots
            if slot.status is SlotStatus.PENDING and slot.request is not None
        }

    @property
    def fresh_grants(self) -> tuple[Grant, ...]:
        """Those that no drive has given yet."""
        given = {grant.grant_id for grant in self.held.grants}
        return tuple(grant for grant in self.letters.grants if grant.grant_id not in given)

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow, whoever takes it up."""
        if not isinstance(self.state, Ended):
            return False
        return self.state.outcome.kind is not OutcomeKind.SUSPENDED


async def _open(store: SharedRunStore, run_id: str) -> _Known:
    known = await _opened(store, run_id)
    return attrs.evolve(known, below=await _below(store, known)) if known.sub_runs else known


async def _below(store: SharedRunStore, known: _Known) -> dict[str, _Below]:
    """What the sub-runs of a run ask, and what was said of it: that is left with who asks."""
    found: dict[str, _Below] = {}
    for request in known.asked_below:
        try:
            asker = await _opened(store, request.run)
        except RunNotFound:
            # It is saved elsewhere: a decision comes with the resume of the run that is named.
            continue
        if request.request_id in asker.pending and request.request_id not in asker.held.resolved:
            decision = asker.letters.decisions.get(request.request_id)
            found[request.request_id] = _Below(request=request, decision=decision)
    return found


async def _opened(store: SharedRunStore, run_id: str) -> _Known:
    saved = await store.load(run_id)
    head: Mapping[str, Any] = open_head(saved, store.seal)
    letters = open_letters(run_id, await store.letters(run_id), store.seal)
    try:
        held = read_rows(saved.rows)
        state, outcome = restored_state(head, held.results)
        sub_runs = tuple(SubRun.from_json(sub) for sub in (head.get("sub_runs") or {}).values())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateRefused(f"the saved run cannot be read ({error})") from error
    return _Known(
        run_id=run_id,
        head=head,
        held=held,
        state=state,
        outcome=outcome,
        letters=letters,
        sub_runs=sub_runs,
    )


async def find_run(store: SharedRunStore, prefix: str) -> str:
    """The id of the run whose id begins with *prefix*.

    Raises:
        RunNotFound: there is none.
        RunAmbiguous: there are several, and none is named so in full.
        StoreError: the store could not be read.
    """
    ids = await store.list_ids()
    if prefix in ids:
        return prefix
    found = [run_id for run_id in ids if prefix and run_id.startswith(prefix)]
    if not found:
        raise RunNotFound(prefix)
    # The id of a sub-run begins with that of its parent: the parent is meant.
    found = [run_id for run_id in found if not any(is_sub_run_id(run_id, of) for of in found)]
    if len(found) > 1:
        raise RunAmbiguous(prefix, found)
    return found[0]


async def list_runs(store: SharedRunStore) -> tuple[RunSummary, ...]:
    """All runs, those that were saved last first. A damaged one is listed as such.

    Raises:
        StoreError: the store could not be read.
    """
    found = [await _summary(store, run_id) for run_id in await store.list_ids()]
    kept = [summary for summary in found if summary is not None]
    return tuple(sorted(kept, key=_newest_first))


def _newest_first(summary: RunSummary) -> tuple[float, str]:
    saved = summary.saved_at
    return (0.0 if saved is None else -saved.timestamp(), summary.run_id)


async def _summary(store: SharedRunStore, run_id: str) -> RunSummary | None:
    try:
        return await _summarise(store, await _open(store, run_id))
    except RunNotFound:
        # It was deleted since the ids were read.
        return None
    except StoreError as error:
        return RunSummary(run_id=run_id, status=RunStatus.DAMAGED, problem=str(error))


async def _summarise(store: SharedRunStore, known: _Known) -> RunSummary:
    pending, letters = known.pending, known.letters
    decided = sum(1 for name in pending if name in letters.decisions)
    decided += sum(1 for asked in known.below.values() if asked.decision is not None)
    used: Mapping[str, Any] = known.head["ledger"]["used"]
    saved_at, asked = known.head.get("saved_at"), letters.cancel
    return RunSummary(
        run_id=known.run_id,
        status=await _status(store, known),
        task=str(known.head["task"]),
        stop=None if known.outcome is None else known.outcome.stop,
        pending=len(pending) + len(known.below) - decided,
        decided=decided,
        turns=int(used.get(TURNS, 0)),
        steps=int(used.get(STEPS, 0)),
        saved_at=None if saved_at is None else datetime.fromisoformat(saved_at),
        cancel=None if asked is None or known.is_over else asked.words,
    )


async def _status(store: SharedRunStore, known: _Known) -> RunStatus:
    if await store.is_claimed(known.run_id):
        return RunStatus.RUNNING
    if known.outcome is None:
        return RunStatus.INTERRUPTED
    return _STATUS[known.outcome.kind]


async def show_run(store: SharedRunStore, run_id: str, *, clock: Clock | None = None) -> RunDetails:
    """One run in full.

    Raises:
        RunNotFound: there is none of this id.
        StateRefused: its seal, or that of a letter to it, does not match.
        StoreError: the store could not be read.
    """
    known = await _open(store, run_id)
    now = (clock or SystemClock()).now()
    log, head = known.head.get("audit_log"), known.head.get("audit_head")
    return RunDetails(
        summary=await _summarise(store, known),
        requests=tuple(
            SavedRequest(request=request, expired=request.expired(now), decision=decision)
            for request, decision in _asked(known)
        ),
        steps=tuple(known.held.steps),
        ledger=known.head["ledger"],
        label=parse_label(known.head["label"]),
        text="" if known.outcome is None else known.outcome.text,
        grants=known.fresh_grants,
        audit_log=None if log is None else str(log),
        audit_head=None if head is None else str(head),
    )


def _asked(known: _Known) -> Iterator[tuple[ApprovalRequest, Decision | None]]:
    """What waits, the run's own first, then what its sub-runs ask."""
    for request in known.pending.values():
        yield request, known.letters.decisions.get(request.request_id)
    for asked in known.below.values():
        yield asked.request, asked.decision


async def call_arguments(store: SharedRunStore, run_id: str) -> dict[str, Mapping[str, Json]]:
    """The arguments of all calls of a run by their digest, as the log names them.

    Raises:
        RunNotFound: there is none of this id.
        StateRefused: its seal, or that of a letter to it, does not match.
        StoreError: the store could not be read.
    """
    known = await _opened(store, run_id)
    turns = (message for message in known.held.messages if isinstance(message, AssistantMessage))
    asked = (call.arguments for turn in turns for call in turn.calls)
    return {digest_arguments(each): each for each in asked if isinstance(each, Mapping)}


async def revisions_read(store: SharedRunStore, run_id: str) -> frozenset[str]:
    """The digests of the texts that a run has read and could cite.

    Raises:
        RunNotFound: there is none of this id.
        StateRefused: its seal, or that of a letter to it, does not match.
        StoreError: the store could not be read.
    """
    known = await _opened(store, run_id)
    cited = (each for record in known.held.steps for each in record.citations)
    return frozenset(each["revisionId"] for each in cited if "revisionId" in each)


# ── deciding ──────────────────────────────────────────────────────────────────────────────────


async def decide(
    store: SharedRunStore, run_id: str, decision: Decision, *, clock: Clock | None = None
) -> Reply:
    """Leave a decision for whoever takes the run up; the request is held against the saved run.

    One about a request of a sub-run is left with the sub-run, which the run takes up when it is
    taken up itself. The first decision stands, whatever way it came. The call does not run here: the driver judges it
    again, records the decision in its log, and runs the call at most once.

    Raises:
        RunNotFound: there is no such run.
        StateRefused: the run's seal, or that of a letter to it, does not match.
        StoreError: the store could not be read or written.
    """
    known = await _open(store, run_id)
    request_id = decision.request_id
    if request_id in known.below:
        return await decide(store, known.below[request_id].request.run, decision, clock=clock)
    refused = _refused(known, decision, (clock or SystemClock()).now())
    if refused is not None:
        return refused
    key = decision_key(request_id)
    letter = seal_letter(run_id, key, decision.to_json(), store.seal)
    standing = await store.post(run_id, key, letter)
    stands = open_letters(run_id, {key: standing}, store.seal).decisions[request_id]
    if standing != letter:
        return _second(decision, stands)
    # Whoever drove the run meanwhile may have had another word.
    resolution = (await _open(store, run_id)).held.resolved.get(request_id)
    if resolution is not None and not resolution.decision.says_the_same(decision):
        return _resolved(decision, resolution)
    text = f"{decision.verdict}: recorded"
    if decision.edited_args is not None:
        text += "; judged again when the run is taken up"
    return Reply(request_id=request_id, code=None, message=text, decision=stands)


def _second(decision: Decision, stands: Decision) -> Reply:
    same = decision.says_the_same(stands)
    return Reply(
        request_id=decision.request_id,
        code=StopCode.ALREADY_RESOLVED if same else StopCode.APPROVAL_CONFLICT,
        message=f"{stands.decided_by} said {stands.verdict} before; that stands",
        decision=stands,
    )


def _refused(known: _Known, decision: Decision, now: datetime) -> Reply | None:
    """Why the decision has no effect, if it has none."""
    request_id = decision.request_id
    resolution = known.held.resolved.get(request_id)
    if resolution is not None:
        return _resolved(decision, resolution)
    request = known.pending.get(request_id)
    if request is None:
        text = f"run {known.run_id} has no pending request {request_id[:80]!r}"
        return Reply(request_id=request_id, code=StopCode.APPROVAL_NOT_FOUND, message=text)
    earlier = known.letters.decisions.get(request_id)
    if earlier is not None:
        return _second(decision, earlier)
    if request.expired(now):
        text = f"it expired at {request.expires_at}; resume the run, and the model can ask again"
        return Reply(request_id=request_id, code=CallCode.APPROVAL_EXPIRED, message=text)
    fault = _remember_fault(known, decision, request)
    if fault is not None:
        return Reply(request_id=request_id, code=StopCode.DECISION_REFUSED, message=fault)
    fault = _edit_fault(known, decision, request.tool)
    if fault is not None:
        return Reply(request_id=request_id, code=StopCode.DECISION_REFUSED, message=fault)
    return None


def _edit_fault(known: _Known, decision: Decision, tool: str) -> str | None:
    """What is wrong with edited arguments, by the tool as it was when the run was started.

    A tool that the run does not name, such as one of a sub-run, is left to whoever takes it up.
    """
    given: Mapping[str, Any] = known.held.turn_input
    specs = [spec for spec in given["tools"] if spec["name"] == tool]
    if decision.edited_args is None or not specs:
        return None
    faults = compile_schema(spec_from_json(specs[0]).parameters)(dict(decision.edited_args))
    if not faults:
        return None
    told = "; ".join(f"{fault.path or '/'} {fault.problem}" for fault in faults)
    return f"the arguments do not fit {tool}: {told}; nothing was recorded"


def _remember_fault(known: _Known, decision: Decision, request: ApprovalRequest) -> str | None:
    """Why the approval cannot be remembered so, by the tools that the run was started with."""
    given: Mapping[str, Any] = known.held.turn_input
    tools = given["tools"]
    forms = [spec["parameters"] for spec in tools if spec["name"] == request.tool]
    if not forms:
        return None
    asked, runs = request.tool, decision.runs(request)
    return remember_fault(decision.remember, asked, forms[0], runs, request.rules)


def _resolved(decision: Decision, resolution: Resolution) -> Reply:
    """What a decision is told about a request that was decided: as the loop tells it."""
    settled, stands = resolution.settled, resolution.decision
    same = stands.says_the_same(decision) and settled is not Settled.WITHDRAWN
    code: StopCode | CallCode = StopCode.ALREADY_RESOLVED if same else StopCode.APPROVAL_CONFLICT
    text = f"it was decided: {stands.verdict} by {stands.decided_by}, {settled}"
    if settled is Settled.EXPIRED:
        code, text = CallCode.APPROVAL_EXPIRED, "it was not decided in time"
    return Reply(request_id=decision.request_id, code=code, message=text, decision=stands)


async def approve(
    store: SharedRunStore, run_id: str, request_id: str, *, decided_by: str, reason: str = ""
) -> Reply:
    """`decide` with a yes."""
    decision = Decision(
        request_id=request_id, verdict=Verdict.APPROVE, decided_by=decided_by, reason=reason
    )
    return await decide(store, run_id, decision)


async def deny(
    store: SharedRunStore, run_id: str, request_id: str, *, decided_by: str, reason: str = ""
) -> Reply:
    """`decide` with a no; the model is told the reason."""
    decision = Decision(
        request_id=request_id, verdict=Verdict.DENY, decided_by=decided_by, reason=reason
    )
    return await decide(store, run_id, decision)


async def edit(
    store: SharedRunStore,
    run_id: str,
    request_id: str,
    arguments: Mapping[str, Json],
    *,
    decided_by: str,
    reason: str = "",
) -> Reply:
    """`decide` with a yes to the call with other arguments; they are judged when the run is taken up.

    Raises:
        DecisionRefused: the arguments are not a JSON object.
    """
    decision = Decision(
        request_id=request_id,
        verdict=Verdict.APPROVE,
        decided_by=decided_by,
        reason=reason,
        edited_args=arguments,
    )
    return await decide(store, run_id, decision)


async def grant(
    store: SharedRunStore,
    run_id: str,
    budget: str,
    amount: int | Decimal,
    *,
    granted_by: str,
    reason: str,
) -> Grant:
    """Leave more of a budget for the next drive of the run, which gives and records it once.

    Raises:
        ContractError: the budget is unknown or not limited in this run, the amount is not above 0,
            the run is over, or nobody or no reason is named.
        RunNotFound: there is no such run.
        StateRefused: the run's seal, or that of a letter to it, does not match.
        StoreError: the store could not be read or written.
    """
    known = await _open(store, run_id)
    if known.is_over:
        raise ContractError("grant", f"run {run_id} is over: nothing follows that it could be for")
    given = Grant(
        budget=budget,
        amount=amount,
        granted_by=granted_by,
        reason=reason,
        grant_id=f"grt-{secrets.token_hex(8)}",
    )
    if not _is_limited(known.head["ledger"]["limits"], given.budget):
        raise ContractError("grant.budget", f"{given.budget} is not limited in run {run_id}")
    key = grant_key(given.grant_id)
    await store.post(run_id, key, seal_letter(run_id, key, given.to_json(), store.seal))
    return given


def _is_limited(limits: Mapping[str, Any], budget: str) -> bool:
    found = {
        DURATION: limits["seconds"],
        EXPIRES: limits.get("expires_us", UNLIMITED),
        **limits["counts"],
    }
    return bool(found.get(budget, UNLIMITED) != UNLIMITED)


# ── driving ───────────────────────────────────────────────────────────────────────────────────


async def resume(
    store: SharedRunStore,
    run_id: str,
    *,
    make_runtime: RuntimeFactory,
    decisions: Sequence[Decision] = (),
    message: str | None = None,
    abandon: bool = False,
) -> LoopResult:
    """Take the run up with what was decided meanwhile, and drive it on.

    Raises:
        ContractError, RunNotFound, StoreError: as `resume_governed_agent_loop`.
    """
    return await resume_governed_agent_loop(
        runtime=make_runtime(run_id),
        store=store,
        run_id=run_id,
        decisions=decisions,
        message=message,
        abandon=abandon,
    )


async def cancel(
    store: SharedRunStore,
    run_id: str,
    *,
    by: str,
    reason: str = "",
    audit: AuditLog | None = None,
) -> CancelReply:
    """End a run for good: here and now, or through the process that drives it.

    What waits for a person is withdrawn, every call of the batch in hand gets its result, and what
    had begun is charged. Nothing runs.

    Args:
        store: where the run is saved.
        run_id: which run.
        by: who wants it.
        reason: why; both stand in the result.
        audit: the log for the end, if the run is ended here.

    Raises:
        RunNotFound: there is no such run.
        StateRefused: the run's seal, or that of a letter to it, does not match.
        StoreError: the store could not be read or written.
    """
    known = await _open(store, run_id)
    over = CancelReply(run_id=run_id, status=CancelStatus.OVER, message="it was over before")
    if known.is_over and not known.head.get("sub_runs"):
        return over
    words = _words(by, reason)
    result = await cancel_saved_run(store=store, run_id=run_id, reason=words, audit=audit)
    told = _cancelled(result)
    return over if known.is_over and told.status is not CancelStatus.FAILED else told


def _cancelled(result: LoopResult) -> CancelReply:
    stop = result.stop
    code, told = ("", "") if stop is None else (stop.code, stop.message)
    if result.kind is OutcomeKind.CANCELLED:
        return CancelReply(run_id=result.run_id, status=CancelStatus.CANCELLED, message=told)
    if code == StopCode.STATE_CONFLICT:
        text = "another process drives it, and ends it after its step in hand"
        return CancelReply(run_id=result.run_id, status=CancelStatus.REQUESTED, message=text)
    status = CancelStatus.OVER if result.kind is OutcomeKind.COMPLETED else CancelStatus.FAILED
    return CancelReply(run_id=result.run_id, status=status, message=told or str(result.kind))


async def delete(
    store: SharedRunStore, run_id: str, *, unfinished: bool = False
) -> tuple[str, ...]:
    """Forget a run with its history and letters, and the runs below it.

    A damaged run is deleted as one that is over.

    Args:
        store: where the run is saved.
        run_id: which run.
        unfinished: delete it also when it waits, or could be taken up.

    Returns:
        The ids of what was deleted: the run's, then those of its sub-runs.

    Raises:
        ContractError: it is not over, and *unfinished* was not given.
        RunBusy: it is being driven.
        RunNotFound: there is no such run.
        StoreError: it could not be deleted.
    """
    summary = await _summary(store, run_id)
    if summary is None:
        raise RunNotFound(run_id)
    if summary.status is RunStatus.RUNNING:
        raise RunBusy(run_id)
    if not summary.is_over and not unfinished:
        raise ContractError("delete", f"run {run_id} is {summary.status}: cancel it first")
    below = [name for name in await store.list_ids() if is_sub_run_id(name, run_id)]
    # First what could be taken up by nobody once its parent is gone.
    for name in (*below, run_id):
        await store.delete(name)
    return (run_id, *below)


async def ask_to_end(
    store: SharedRunStore, run_id: str | None = None, *, by: str, reason: str = ""
) -> tuple[str, ...]:
    """Leave with a run, or with every run, that it is to end; `cancel` then ends it at once.

    Whoever drives a run ends it after its step in hand; whoever takes it up ends it and does nothing
    else. A run that is over or damaged is passed over.

    Returns:
        The runs that are asked.

    Raises:
        StoreError: the runs could not be listed.
    """
    names = await store.list_ids() if run_id is None else (run_id,)
    asked: list[str] = []
    for name in names:
        try:
            if not (await _open(store, name)).is_over:
                await leave_wish(store, name, _words(by, reason))
                asked.append(name)
        except StoreError:
            continue
    return tuple(asked)


def _words(by: str, reason: str) -> str:
    return f"cancelled by {by}" + (f": {reason}" if reason else "")


async def cancel_all(
    store: SharedRunStore, *, by: str, reason: str = "", audit: AuditLog | None = None
) -> tuple[CancelReply, ...]:
    """`cancel` for every run that is not over: the kill switch. One that fails holds up no other.

    Raises:
        StoreError: the runs could not be listed.
    """
    return tuple(
        [
            await _cancel_or_say(store, run_id, by=by, reason=reason, audit=audit)
            for run_id in await store.list_ids()
        ]
    )


async def _cancel_or_say(
    store: SharedRunStore, run_id: str, *, by: str, reason: str, audit: AuditLog | None
) -> CancelReply:
    try:
        return await cancel(store, run_id, by=by, reason=reason, audit=audit)
    except StoreError as error:
        return CancelReply(run_id=run_id, status=CancelStatus.FAILED, message=str(error))
