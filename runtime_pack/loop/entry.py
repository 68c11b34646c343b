"""The way into the one driver: what every door checks, and what it then drives.

`run…`, `resume…`, the streams and the synchronous doors differ in what they do with an `Entry`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Final, NotRequired, TypedDict, TypeVar

from runtime_pack.approvals import Decision
from runtime_pack.audit.log import AuditLog
from runtime_pack.catalog import ToolOutput, ToolSpec
from runtime_pack.errors import (
    ContractError,
    RunBusy,
    RunNotFound,
    StateRefused,
    StopCode,
    StoreError,
)
from runtime_pack.grants import Grant
from runtime_pack.guard import AgentTaskRun, GuardedRuntime, create_agent_task_run
from runtime_pack.inner import frozen
from runtime_pack.ledger import TURNS, UNLIMITED, parse_count
from runtime_pack.loop.drive import Drive, checked_context, restore
from runtime_pack.loop.keeper import read_rows
from runtime_pack.loop.post import claimed, leave_wish
from runtime_pack.loop.results import LoopError, LoopResult, TurnInput
from runtime_pack.machine import OutcomeKind, Stop
from runtime_pack.messages import Json
from runtime_pack.policy import TaskContract
from runtime_pack.ports import ContextFactory, ExecutionContext, ToolRuntime
from runtime_pack.state import RunStore, open_head

__all__ = (
    "BUFFER",
    "WARN_AT",
    "Entry",
    "ResumeOptions",
    "RunOptions",
    "call_off",
    "prepare_resume",
    "prepare_run",
)

BUFFER: Final = 64
"""How many events a run may be ahead of its reader, unless said otherwise."""

WARN_AT: Final = 0.8
"""Which part of a budget may be taken before its warning, unless said otherwise."""

_Word = TypeVar("_Word", Decision, Grant)

# How a run stops that could not be ended.
_NOT_ENDED: Final = frozenset(
    {StopCode.STATE_INTEGRITY, StopCode.STORE_FAILED, StopCode.AUDIT_FAILED}
)
# For so long the loser of a race waits for what the winner says.
_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.02


@functools.cache
def _any() -> TaskContract:
    """Of each limit the saved one holds."""
    return TaskContract(
        max_steps=UNLIMITED,
        max_turns=UNLIMITED,
        max_duration_seconds=UNLIMITED,
        max_refused=UNLIMITED,
        max_violations=UNLIMITED,
    )


class RunOptions(TypedDict):
    """What `run_governed_agent_loop` takes."""

    runtime: ToolRuntime
    execute_turn_input: TurnInput
    create_context: NotRequired[ContextFactory | None]
    max_turns: NotRequired[int | None]
    store: NotRequired[RunStore | None]


class ResumeOptions(TypedDict):
    """What `resume_governed_agent_loop` takes."""

    runtime: ToolRuntime
    store: RunStore
    run_id: str
    decisions: NotRequired[Sequence[Decision]]
    grants: NotRequired[Sequence[Grant]]
    create_context: NotRequired[ContextFactory | None]
    message: NotRequired[str | None]
    abandon: NotRequired[bool]


@frozen
class Entry:
    """A drive that was checked and has not begun. `drive` is called between `enter` and `leave`."""

    run: AgentTaskRun
    drive: Callable[[], Awaitable[LoopResult]]

    def go(self) -> Coroutine[None, None, LoopResult]:
        """Drive the run, if it is not being driven already.

        Raises:
            ContractError: it is; by the await.
        """
        return _driven(self.run, self.drive)


async def _driven(run: AgentTaskRun, drive: Callable[[], Awaitable[LoopResult]]) -> LoopResult:
    run.enter()
    try:
        begun = drive()
        # A run may wait for hours: it need not hold what it was begun with.
        del drive
        return await begun
    finally:
        run.leave()


def prepare_run(
    *,
    runtime: ToolRuntime,
    execute_turn_input: TurnInput,
    create_context: ContextFactory | None = None,
    max_turns: int | None = None,
    store: RunStore | None = None,
) -> Entry:
    """The entry of a new run; see `run_governed_agent_loop`.

    Raises:
        ContractError: as there, but for a run that is being driven.
    """
    guarded = _guarded(runtime)
    limit = UNLIMITED if max_turns is None else parse_count("max_turns", max_turns)
    given: object = execute_turn_input
    if not isinstance(given, TurnInput):
        problem = f"is a {type(given).__name__}: give TurnInput(messages=[UserMessage(text=…)])"
        raise ContractError("execute_turn_input", problem)
    _refuse_other_definitions(guarded, execute_turn_input)
    _refuse_unknown_limits(guarded, execute_turn_input)
    guarded.check_price(execute_turn_input.model)
    drive = Drive(guarded, execute_turn_input, checked_context(create_context), store)

    def start() -> Awaitable[LoopResult]:
        # Not before it is known that this drive is the only one.
        guarded.task_run.ledger.lower(TURNS, limit)
        return drive.start() if store is None else _stored(drive, store)

    return Entry(guarded.task_run, start)


async def _stored(drive: Drive, store: RunStore) -> LoopResult:
    """Drive a new run that a store keeps, if the store lets us."""
    guarded = drive.guarded
    try:
        async with claimed(store, guarded.task_run.id):
            result = await drive.start()
    except StoreError as error:
        return _refused_result(guarded, guarded.task_run.id, error)
    await _end_left(drive, store)
    return result


def prepare_resume(
    *,
    runtime: ToolRuntime,
    store: RunStore,
    run_id: str,
    decisions: Sequence[Decision] = (),
    grants: Sequence[Grant] = (),
    create_context: ContextFactory | None = None,
    message: str | None = None,
    abandon: bool = False,
) -> Entry:
    """The entry of a saved run; see `resume_governed_agent_loop`.

    Raises:
        ContractError: as there, but for a run that is being driven.
    """
    guarded = _guarded(runtime)
    run = guarded.task_run
    if run.id != run_id and not run.is_fresh():
        raise ContractError("runtime", "its run has been used already; make a new one to resume")
    # Each is read once: what is checked is what is followed, a generator as well.
    decisions = _each(decisions, "decisions", Decision, "parse_decision")
    grants = _each(grants, "grants", Grant, "parse_grant")
    words: object = message
    if words is not None and not isinstance(words, str):
        raise ContractError("message", f"is a {type(words).__name__}: give the words of the user")
    if abandon and decisions:
        raise ContractError("abandon", "calls are either decided or abandoned")

    async def take_up() -> LoopResult:
        context = checked_context(create_context)
        try:
            # What is loaded before the claim could be of another drive's past.
            async with claimed(store, run_id):
                drive = restore(guarded, await store.load(run_id), context, store)
                result = await drive.take_up(decisions, message, abandon=abandon, grants=grants)
        except RunBusy as error:
            told = await _told_by_other(guarded, store, run_id, decisions)
            return told or _refused_result(guarded, run_id, error)
        except StateRefused as error:
            return _refused_result(guarded, run_id, error)
        await _end_left(drive, store)
        return result

    return Entry(run, take_up)


def _each(given: object, field: str, form: type[_Word], reader: str) -> tuple[_Word, ...]:
    """What was given, read once.

    Raises:
        ContractError: it is no collection of that.
    """
    words = tuple(given) if isinstance(given, Iterable) else None
    read = tuple(word for word in words or () if isinstance(word, form))
    if words is None or len(read) != len(words):
        raise ContractError(field, f"are read with `{reader}` before they are given, in a list")
    return read


async def _told_by_other(
    guarded: GuardedRuntime, store: RunStore, run_id: str, decisions: tuple[Decision, ...]
) -> LoopResult | None:
    """What came of decisions that the drive which has the run brought too; it saves them first of all.

    None if it says nothing about them in time. Nothing is written.
    """
    names = {decision.request_id for decision in decisions}
    for _ in range(_LOOKS if names else 0):
        saved = await store.load(run_id)
        try:
            open_head(saved, store.seal)
            if names & read_rows(saved.rows).resolved.keys():
                drive = restore(guarded, saved, ExecutionContext(), store)
                return drive.told_already(decisions)
        except (AttributeError, KeyError, TypeError, ValueError, StateRefused):
            return None
        await asyncio.sleep(_LOOK_SECONDS)
    return None


async def _end_left(drive: Drive, store: RunStore) -> None:
    """End the sub-runs that the drive left: nobody can take them up, and none is to wait for people.

    One that cannot be ended stays as it is: without its parent it does not go on.
    """
    ids = drive.left_behind()
    await _end_below(store, ids, "its parent has ended, or went on without it", drive.run.audit)


async def _end_below(
    store: RunStore, ids: Sequence[str], reason: str, audit: AuditLog | None
) -> StoreError | None:
    """End sub-runs and theirs, those that there are; what kept the last one that could not be ended."""
    kept: StoreError | None = None
    for run_id in ids:
        try:
            result = await call_off(store, run_id, reason, audit)
        except RunNotFound:
            continue
        except StoreError as error:
            kept = StoreError(f"its sub-run {run_id} could not be ended: {error}")
            continue
        if result.stop is not None and result.stop.code in _NOT_ENDED:
            kept = StoreError(f"its sub-run {run_id} could not be ended: {result.stop.message}")
    return kept


async def call_off(store: RunStore, run_id: str, reason: str, audit: AuditLog | None) -> LoopResult:
    """End a saved run that nobody drives, its sub-runs before it; see `cancel_saved_run`.

    Raises:
        RunNotFound: the store has no such run.
        StoreError: the store could not be read.
    """
    guarded = _aside(store, audit)
    run = guarded.task_run
    run.enter()
    try:
        return await _called_off(guarded, store, run_id, reason)
    except RunBusy as error:
        await leave_wish(store, run_id, reason)
        with contextlib.suppress(RunBusy):
            # Its driver may have ended before it could see the wish.
            return await _called_off(guarded, store, run_id, reason)
        # Its driver ends it after the step in hand, which may be a sub-run: that is told as well.
        saved = await store.load(run_id)
        drive = restore(_aside(store), saved, ExecutionContext(), store)
        await _end_below(store, drive.below(), reason, audit)
        return _refused_result(guarded, run_id, error)
    except StateRefused as error:
        return _refused_result(guarded, run_id, error)
    finally:
        run.leave()


async def _called_off(
    guarded: GuardedRuntime, store: RunStore, run_id: str, reason: str
) -> LoopResult:
    async with claimed(store, run_id):
        drive = restore(guarded, await store.load(run_id), ExecutionContext(), store)
        kept = await _end_below(store, drive.below(), reason, guarded.task_run.audit)
        result = await drive.call_off(reason)
    return result if kept is None else _refused_result(guarded, run_id, kept)


def _aside(store: RunStore, audit: AuditLog | None = None) -> GuardedRuntime:
    """A run in which nothing can run, to stand where a saved one stood."""
    return create_agent_task_run(_any(), audit=audit, seal=store.seal).guard_runtime(_NoTools())


class _NoTools:
    """A runtime in which nothing can run."""

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        del arguments, context
        raise ContractError(name, "cannot run: the run is being called off")


def _guarded(runtime: ToolRuntime) -> GuardedRuntime:
    """The runtime under its guard; under one without limits if it has none.

    Raises:
        ContractError: it is no runtime.
    """
    if isinstance(runtime, AgentTaskRun):
        raise ContractError("runtime", "is the task run: give `run.guard_runtime(runtime)`")
    if isinstance(runtime, GuardedRuntime):
        return runtime
    return create_agent_task_run(TaskContract()).guard_runtime(runtime)


def _refuse_other_definitions(guarded: GuardedRuntime, given: TurnInput) -> None:
    """What is offered must be what runs: form, trust, effects and time are the runtime's own.

    Raises:
        ContractError: the runtime has the tool under another definition, or says that it does not
            have it.
    """
    for spec in given.tool_catalog:
        own: object = guarded.tool_spec(spec.name)
        if own is None and not guarded.has_tool(spec.name):
            raise ContractError("tool_catalog", f"the runtime does not have the tool {spec.name}")
        if own is None:
            continue
        if not isinstance(own, ToolSpec) or own.sha256 != spec.sha256:
            raise ContractError(spec.name, "is offered otherwise than the runtime defines it")


def _refuse_unknown_limits(guarded: GuardedRuntime, given: TurnInput) -> None:
    """A limit on a tool that is not there is a misspelt one: it would limit nothing.

    With sub-agents nobody knows yet which tools theirs are.

    Raises:
        ContractError: the contract limits a tool that is not offered, and that the runtime does not
            know.
    """
    run = guarded.task_run
    limited = run.contract.per_tool
    if not limited or run.sub_lists:
        return
    offered = {spec.name for spec in given.tool_catalog}
    for name in limited:
        if name not in offered and guarded.tool_spec(name) is None:
            raise ContractError(f"per_tool.{name}", "the run does not have this tool")


def _refused_result(guarded: GuardedRuntime, run_id: str, error: StoreError) -> LoopResult:
    """A drive that did not begin."""
    match error:
        case RunBusy():
            stage, code = "store", StopCode.STATE_CONFLICT
        case StateRefused():
            stage, code = "state", StopCode.STATE_INTEGRITY
        case _:
            stage, code = "store", StopCode.STORE_FAILED
    return LoopError(
        kind=OutcomeKind.ERROR,
        run_id=run_id,
        text="",
        messages=(),
        ledger=guarded.task_run.view(),
        steps=(),
        stop=Stop(code=code, message=str(error), stage=stage),
        requests=(),
        state=None,
    )
