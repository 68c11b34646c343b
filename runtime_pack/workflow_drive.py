"""Drives a workflow: starts and takes up the runs of its branches, and writes each transition down.

The record of a transition is stored before what it speaks of goes on, so that a workflow is taken up where
it stood: a branch that was started and has no end is the same run again, and a run that has ended
is not run a second time. Branches that wait for a person or for a time are left; their siblings go on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import attrs
import orjson

from runtime_pack.approvals import Decision
from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ContractError, RunNotFound, StateRefused, StoreError
from runtime_pack.grants import Grant
from runtime_pack.guard import GuardedRuntime
from runtime_pack.inner import frozen
from runtime_pack.instants import instant_text
from runtime_pack.labels import Integrity, Label, join
from runtime_pack.loop import (
    ApprovalRequired,
    Cancelled,
    Completed,
    LoopError,
    LoopResult,
    Suspended,
    TurnInput,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.messages import Json, Message, SystemMessage, UserMessage
from runtime_pack.ports import Clock, SystemClock
from runtime_pack.state import EMPTY_CHAIN, RunStore, chain_rows, open_head, seal_head
from runtime_pack.workflow import (
    Branch,
    BranchState,
    BranchStatus,
    Continuation,
    Progress,
    Transition,
    Workflow,
    next_transition,
)

__all__ = (
    "BranchRun",
    "MakeRun",
    "WorkflowResult",
    "WorkflowStatus",
    "resume_workflow",
    "run_workflow",
)

_FORMAT: Final = "agent-runtime-pack/workflow"
_SCHEMA: Final = 1
# What stopped the drive and not the run: it can be taken up again.
_STAGES_OUTSIDE: Final = frozenset({"approval", "audit", "emitter", "store"})


@frozen(kw_only=True)
class BranchRun:
    """What the host makes for a branch: a guarded runtime whose run has the id it was asked for."""

    runtime: GuardedRuntime
    tool_catalog: Sequence[ToolSpec] = ()
    system: str | None = None
    model: str | None = None


MakeRun: TypeAlias = Callable[[Branch, str], BranchRun]
"""From a branch and the id of its run to that run; called anew each time that it is taken up."""


class WorkflowStatus(StrEnum):
    """Whether all branches are completed, some can go on later, or none can and some are not."""

    COMPLETED = "completed"
    WAITING = "waiting"
    FAILED = "failed"


@frozen(kw_only=True)
class WorkflowResult:
    """How a drive of a workflow ended.

    Attributes:
        branches: where each branch stands, in the order of the plan.
        results: of the runs that this drive drove, by branch.
        records: all records so far, numbered from 1.
        wake_at: when the workflow can go on by itself, if it can.
    """

    workflow_id: str
    status: WorkflowStatus
    branches: Mapping[str, BranchState]
    results: Mapping[str, LoopResult]
    records: tuple[Continuation, ...]

    @property
    def wake_at(self) -> str | None:
        """The earliest time at which a branch starts or goes on by itself, in ISO form."""
        wake = Progress(states=self.branches).next_wake()
        return None if wake is None else instant_text(wake)


async def run_workflow(
    workflow: Workflow,
    *,
    make_run: MakeRun,
    records: RunStore,
    runs: RunStore,
    workflow_id: str | None = None,
    clock: Clock | None = None,
    max_parallel: int = 4,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> WorkflowResult:
    """Drive a new workflow until no branch can go on.

    Args:
        workflow: the plan.
        make_run: makes the run of a branch; what it raises fails the branch.
        records: where the workflow's records go, sealed with this store's key; not where *runs*
            are, so that each lists what it holds.
        runs: where the runs of the branches are saved.
        workflow_id: at most 28 letters, digits, `-` and `_`; random when absent.
        clock: the machine's when absent; `wake_at` is read by it.
        max_parallel: branches that are driven at the same time.
        sleep: waits for the next `wake_at` when nothing else is left to do; without it the
            drive ends then, to be resumed.

    Raises:
        ContractError: the id or `max_parallel` is not valid.
        RunConflict: there is a workflow of this id.
        StoreError: a record could not be written; what is stored stands.
        asyncio.CancelledError: the caller was cancelled; what runs was cancelled with it.
    """
    book = _Book(records, workflow, _checked_id(workflow_id))
    drive = _Drive(book, make_run, runs, clock, max_parallel, sleep)
    await book.begin()
    return await drive.go()


async def resume_workflow(
    workflow: Workflow,
    *,
    make_run: MakeRun,
    records: RunStore,
    runs: RunStore,
    workflow_id: str,
    decisions: Mapping[str, Sequence[Decision]] | None = None,
    messages: Mapping[str, str] | None = None,
    grants: Mapping[str, Sequence[Grant]] | None = None,
    clock: Clock | None = None,
    max_parallel: int = 4,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> WorkflowResult:
    """Take a workflow up: after a crash, a decision, or when a time has come.

    Each branch that was running or waits, except for a time that has not come, is taken up once; a
    run whose request nobody has decided, or that handed over and got no message, suspends again
    without asking its model.

    Args:
        workflow: the plan that it began with.
        make_run: as for `run_workflow`.
        records: where its records are.
        runs: where the runs of its branches are.
        workflow_id: which workflow.
        decisions: what people said of requests, by the id of the run.
        messages: what people said to a run that handed over, by its id.
        grants: what a run is given beyond its limits, by its id.
        clock: as for `run_workflow`.
        max_parallel: as for `run_workflow`.
        sleep: as for `run_workflow`.

    Raises:
        ContractError: another plan, or words for a run that waits for none.
        RunNotFound: the store has no such workflow.
        StateRefused: the records are not authentic.
        RunConflict: another process goes on with the workflow.
        StoreError: a record could not be read or written; what is stored stands.
        asyncio.CancelledError: the caller was cancelled; what runs was cancelled with it.
    """
    book = _Book(records, workflow, _checked_id(workflow_id))
    drive = _Drive(book, make_run, runs, clock, max_parallel, sleep)
    await book.load()
    drive.take_up(decisions or {}, messages or {}, grants or {})
    return await drive.go()


def _checked_id(workflow_id: str | None) -> str:
    """The id. `--` stands between it and a branch, so it has none: no two ids make one run's.

    Raises:
        ContractError: it is not valid.
    """
    if workflow_id is None:
        return f"wf-{secrets.token_hex(8)}"
    plain = workflow_id.replace("-", "a").replace("_", "a")
    odd = "--" in workflow_id or workflow_id.startswith("-") or workflow_id.endswith("-")
    if odd or not (plain.isascii() and plain.isalnum()) or len(workflow_id) > 28:
        raise ContractError("workflow_id", f"{workflow_id[:80]!r} is not 1 to 28 letters or digits")
    return workflow_id


# ── the records ───────────────────────────────────────────────────────────────────────────────


class _Book:
    """The records of one workflow in a store: appended, chained, sealed."""

    def __init__(self, store: RunStore, workflow: Workflow, workflow_id: str) -> None:
        self._store = store
        self.workflow = workflow
        self.id = workflow_id
        self.progress = Progress()
        self.records: list[Continuation] = []
        self._revision = 0
        self._rows = 0
        self._chain = EMPTY_CHAIN

    async def begin(self) -> None:
        plan: list[Json] = [branch.to_json() for branch in self.workflow.branches]
        await self._commit({"plan": plan})

    async def load(self) -> None:
        saved = await self._store.load(self.id)
        head = open_head(saved, self._store.seal, form=_FORMAT, reads=(_SCHEMA,))
        if head.get("plan_sha256") != self.workflow.sha256:
            raise ContractError("workflow", "is not the plan that this workflow began with")
        try:
            for row in saved.rows[1:]:
                self._take(Continuation.from_json(orjson.loads(row)["continuation"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StateRefused(f"the records cannot be read ({error})") from error
        self._revision, self._rows = saved.revision, len(saved.rows)
        self._chain = str(head["rows_sha256"])

    async def add(self, record: Continuation) -> None:
        await self._commit({"continuation": record.to_json()})
        self._take(record)

    def _take(self, record: Continuation) -> None:
        self.progress = self.progress.after(record, self.workflow)
        self.records.append(record)

    async def _commit(self, body: Mapping[str, Json]) -> None:
        row = orjson.dumps(body)
        chain = chain_rows(self._chain, (row,))
        head: dict[str, Json] = {
            "format": _FORMAT,
            "schema": _SCHEMA,
            "run": self.id,
            "revision": self._revision + 1,
            "rows": self._rows + 1,
            "rows_sha256": chain,
            "plan_sha256": self.workflow.sha256,
        }
        sealed = seal_head(head, self._store.seal)
        self._revision = await self._store.commit(
            self.id, expected=self._revision, head=sealed, rows=(row,)
        )
        self._rows, self._chain = self._rows + 1, chain


# ── driving ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class _Ended:
    """How a drive of one branch ended."""

    state: BranchState
    result: LoopResult | None = None


class _Drive:
    """One drive of a workflow: the branches in hand, and what is due next."""

    def __init__(
        self,
        book: _Book,
        make_run: MakeRun,
        runs: RunStore,
        clock: Clock | None,
        max_parallel: int,
        sleep: Callable[[float], Awaitable[None]] | None,
    ) -> None:
        if type(max_parallel) is not int or max_parallel < 1:
            raise ContractError("max_parallel", "is a whole number from 1")
        self._book = book
        self._make = make_run
        self._runs = runs
        self._clock = clock or SystemClock()
        self._max_parallel = max_parallel
        self._sleep = sleep
        self._run_ids = {b.name: f"{book.id}--{b.name}" for b in book.workflow.branches}
        self._again: list[str] = []
        self._decisions: Mapping[str, Sequence[Decision]] = {}
        self._messages: Mapping[str, str] = {}
        self._grants: Mapping[str, Sequence[Grant]] = {}
        self._tasks: dict[str, asyncio.Task[_Ended]] = {}
        self._results: dict[str, LoopResult] = {}

    def take_up(
        self,
        decisions: Mapping[str, Sequence[Decision]],
        messages: Mapping[str, str],
        grants: Mapping[str, Sequence[Grant]],
    ) -> None:
        """Begin with the branches that have begun and can go on.

        Raises:
            ContractError: words for a run that is none of them.
        """
        progress, now = self._book.progress, self._clock.now()
        told, open_runs = decisions.keys() | messages.keys() | grants.keys(), set()
        for branch in self._book.workflow.branches:
            state = progress.of(branch.name)
            if state.status not in {BranchStatus.RUNNING, BranchStatus.WAITING}:
                continue
            open_runs.add(state.run_id)
            early = state.wake_at is not None and now < state.wake_at
            if not early or state.run_id in told:
                self._again.append(branch.name)
        for run_id in told - open_runs:
            raise ContractError("decisions", f"no open branch is the run {run_id[:80]!r}")
        self._decisions, self._messages, self._grants = decisions, messages, grants

    async def go(self) -> WorkflowResult:
        try:
            while await self._advance():
                pass
        finally:
            await _cancelled(self._tasks.values())
        book = self._book
        return WorkflowResult(
            workflow_id=book.id,
            status=_status(book.workflow, book.progress),
            branches={b.name: book.progress.of(b.name) for b in book.workflow.branches},
            results=self._results,
            records=tuple(book.records),
        )

    async def _advance(self) -> bool:
        """Do what is due, then wait for something to happen; whether anything can still happen."""
        while (transition := self._due()) is not None:
            if self._book.progress.of(transition.branch).status is not BranchStatus.RUNNING:
                await self._record(transition)
            if transition.state.status is BranchStatus.RUNNING:
                work = self._branch(self._book.workflow.by_name[transition.branch])
                self._tasks[transition.branch] = asyncio.create_task(work)
        wake = self._book.progress.next_wake()
        seconds = None if wake is None else max(0.0, (wake - self._clock.now()).total_seconds())
        if self._tasks:
            # A time that has come finds no room: only an end makes some.
            await self._reap(seconds or None)
        elif seconds is not None and self._sleep is not None:
            await self._sleep(seconds)
        else:
            return False
        return True

    def _due(self) -> Transition | None:
        room = len(self._tasks) < self._max_parallel
        progress = self._book.progress
        if room and self._again:
            name = self._again.pop(0)
            state = attrs.evolve(
                progress.of(name),
                status=BranchStatus.RUNNING,
                reason="",
                requests=(),
                wake_at=None,
            )
            return Transition(branch=name, state=state)
        return next_transition(
            self._book.workflow, progress, self._clock.now(), room=room, run_ids=self._run_ids
        )

    async def _reap(self, seconds: float | None) -> None:
        """Record what has ended, in the order of the plan; wait for it at most until a branch wakes."""
        await asyncio.wait(
            self._tasks.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for name in [b.name for b in self._book.workflow.branches if b.name in self._tasks]:
            if not self._tasks[name].done():
                continue
            ended = self._tasks.pop(name).result()
            if ended.result is not None:
                self._results[name] = ended.result
            await self._record(Transition(branch=name, state=ended.state))

    async def _record(self, transition: Transition) -> None:
        book = self._book
        await book.add(
            Continuation(
                number=book.progress.number + 1,
                at=self._clock.now(),
                branch=transition.branch,
                state=transition.state,
            )
        )

    # ── one branch ────────────────────────────────────────────────────────────────────────────

    async def _branch(self, branch: Branch) -> _Ended:
        state = self._book.progress.of(branch.name)
        run_id = self._run_ids[branch.name]
        try:
            made = _checked_run(self._make(branch, run_id), run_id)
            result = await self._driven(branch, made, run_id)
        except (StoreError, asyncio.CancelledError):
            raise
        # The host's code: a run that cannot be made or begun fails its branch and no other.
        except Exception as error:  # noqa: BLE001
            reason = f"setup: {type(error).__name__}"
            failed = attrs.evolve(state, status=BranchStatus.FAILED, reason=reason)
            return _Ended(state=failed)
        label = join(state.label, made.runtime.task_run.label)
        return _Ended(state=self._state_after(result, run_id, label), result=result)

    async def _driven(self, branch: Branch, made: BranchRun, run_id: str) -> LoopResult:
        """The run, taken up if it has begun: a record without a run is a crash between the two."""
        try:
            await self._runs.load(run_id)
        except RunNotFound:
            return await run_governed_agent_loop(
                runtime=made.runtime,
                execute_turn_input=self._input(branch, made),
                store=self._runs,
            )
        return await resume_governed_agent_loop(
            runtime=made.runtime,
            store=self._runs,
            run_id=run_id,
            decisions=self._decisions.get(run_id, ()),
            message=self._messages.get(run_id),
            grants=self._grants.get(run_id, ()),
        )

    def _input(self, branch: Branch, made: BranchRun) -> TurnInput:
        progress = self._book.progress
        parts = [branch.prompt]
        parts += [_told(name, progress.of(name), made.runtime) for name in branch.depends_on]
        asked = UserMessage(text="\n\n".join(parts), label=progress.label_for(branch))
        messages: list[Message] = [asked]
        if made.system is not None:
            messages.insert(0, SystemMessage(text=made.system))
        return TurnInput(messages=messages, tool_catalog=made.tool_catalog, model=made.model)

    def _state_after(self, result: LoopResult, run_id: str, label: Label) -> BranchState:
        state = BranchState(run_id=run_id, label=label)
        code = "" if result.stop is None else str(result.stop.code)
        match result:
            case Completed():
                return attrs.evolve(state, status=BranchStatus.COMPLETED, text=result.text)
            case ApprovalRequired():
                requests = tuple(request.request_id for request in result.requests)
                waiting = BranchStatus.WAITING
                return attrs.evolve(
                    state, status=waiting, reason=str(result.kind), requests=requests
                )
            case Suspended():
                wake_at = None if result.stop is None else result.stop.retry_at
                if wake_at is not None and wake_at <= self._clock.now():
                    # The run's clock is behind: taken up at once, it would only suspend again.
                    wake_at = None
                return attrs.evolve(
                    state, status=BranchStatus.WAITING, reason=code, wake_at=wake_at
                )
            case Cancelled():
                return attrs.evolve(state, status=BranchStatus.CANCELLED, reason=code)
            case LoopError(stop=stop):
                outside = stop is not None and stop.stage in _STAGES_OUTSIDE
                status = BranchStatus.WAITING if outside else BranchStatus.FAILED
                return attrs.evolve(state, status=status, reason=code)


async def _cancelled(tasks: Collection[asyncio.Task[_Ended]]) -> None:
    """Nothing is left running when a drive ends, however it ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _checked_run(made: object, run_id: str) -> BranchRun:
    if not isinstance(made, BranchRun) or not isinstance(made.runtime, GuardedRuntime):
        raise ContractError("make_run", "makes a BranchRun with a guarded runtime")
    if made.runtime.task_run.id != run_id:
        raise ContractError("make_run", f"makes the run {run_id!r}")
    return made


def _told(name: str, state: BranchState, runtime: GuardedRuntime) -> str:
    """What a branch is told of one that it depends on: fenced, or as a JSON text that cannot end early."""
    run, label = runtime.task_run, state.label
    heading = f"Result of the branch {name} ({label.integrity}, {label.confidentiality}):"
    if label.integrity is Integrity.EXTERNAL:
        return f"{heading}\n{run.frame(state.text, source=f'branch:{name}', burned=run.burned)}"
    return f"{heading}\n{orjson.dumps(state.text).decode()}"


def _status(workflow: Workflow, progress: Progress) -> WorkflowStatus:
    statuses = {progress.of(branch.name).status for branch in workflow.branches}
    if statuses == {BranchStatus.COMPLETED}:
        return WorkflowStatus.COMPLETED
    return WorkflowStatus.FAILED if progress.is_over(workflow) else WorkflowStatus.WAITING
