"""The loop: `run_governed_agent_loop` and `resume_governed_agent_loop`.

`results` holds what goes in and comes out, `drive` the one driver, `keeper` the history and its saves.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime_pack.approvals import Decision
from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ContractError, StateRefused, StopCode
from runtime_pack.guard import GuardedRuntime, create_agent_task_run
from runtime_pack.ledger import TURNS, UNLIMITED, parse_count
from runtime_pack.loop.drive import Drive, checked_context, restore
from runtime_pack.loop.results import (
    ApprovalRequired,
    Cancelled,
    Completed,
    LoopError,
    LoopResult,
    Suspended,
    TurnInput,
)
from runtime_pack.machine import OutcomeKind, Stop
from runtime_pack.policy import TaskContract
from runtime_pack.ports import ContextFactory, ToolRuntime
from runtime_pack.state import RunStore

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
        ContractError: `max_turns` is not a whole number from 0, the run is being driven already, a
            tool is offered with another definition than the runtime has, or `create_context`
            raised or made no context.
        asyncio.CancelledError: the caller's task was cancelled; recorded, then re-raised.
    """
    guarded = _guarded(runtime)
    limit = UNLIMITED if max_turns is None else parse_count("max_turns", max_turns)
    _refuse_other_definitions(guarded, execute_turn_input)
    drive = Drive(guarded, execute_turn_input, checked_context(create_context), store)
    guarded.task_run.enter()
    try:
        # Not before it is known that this drive is the only one.
        guarded.task_run.ledger.lower(TURNS, limit)
        return await drive.start()
    finally:
        guarded.task_run.leave()


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
        runtime: guarded by a new `AgentTaskRun`, or by the one that was suspended; its policy
            judges every call in hand again, and of each limit the lower of the saved and the new
            one holds. A tool that it no longer has, or has under another definition, is refused.
        store: where the run was saved.
        run_id: which run.
        decisions: what people said of pending requests.
        create_context: fills in session and agent for records.
        message: a further message of the user; refused while calls are pending unless *abandon*
            withdraws them, and when the run was cancelled or ended in an error.
        abandon: withdraw pending calls when a message is given.

    Returns:
        As `run_governed_agent_loop`; a decision about an unknown request, a second different one
        or a state that fails its seal is a `LoopError` and changes nothing.

    Raises:
        ContractError: the runtime's run was used for something else, or is being driven already;
            a decision is not a `Decision`; decisions were given for calls that are to be
            abandoned; or `create_context` raised or made no context.
        RunNotFound: the store has no such run.
        StoreError: the store could not be read.
        asyncio.CancelledError: the caller's task was cancelled.
    """
    guarded = _guarded(runtime)
    run = guarded.task_run
    if run.id != run_id and not run.is_fresh():
        raise ContractError("runtime", "its run has been used already; make a new one to resume")
    if not all(isinstance(decision, Decision) for decision in decisions):
        raise ContractError("decisions", "are read with `parse_decision` before they are given")
    if abandon and decisions:
        raise ContractError("abandon", "calls are either decided or abandoned")
    run.enter()
    try:
        context = checked_context(create_context)
        drive = restore(guarded, await store.load(run_id), context, store)
        return await drive.take_up(tuple(decisions), message, abandon=abandon)
    except StateRefused as error:
        return _refused_result(guarded, run_id, str(error))
    finally:
        run.leave()


def _guarded(runtime: ToolRuntime) -> GuardedRuntime:
    if isinstance(runtime, GuardedRuntime):
        return runtime
    return create_agent_task_run(TaskContract()).guard_runtime(runtime)


def _refuse_other_definitions(guarded: GuardedRuntime, given: TurnInput) -> None:
    """What is offered must be what runs: form, trust, effects and time are the runtime's own.

    Raises:
        ContractError: the runtime has the tool under another definition.
    """
    for spec in given.tool_catalog:
        own: object = guarded.tool_spec(spec.name)
        if own is None:
            continue
        if not isinstance(own, ToolSpec) or own.sha256 != spec.sha256:
            raise ContractError(spec.name, "is offered otherwise than the runtime defines it")


def _refused_result(guarded: GuardedRuntime, run_id: str, problem: str) -> LoopResult:
    return LoopError(
        kind=OutcomeKind.ERROR,
        run_id=run_id,
        text="",
        messages=(),
        ledger=guarded.task_run.view(),
        steps=(),
        stop=Stop(code=StopCode.STATE_INTEGRITY, message=problem, stage="state"),
        requests=(),
        state=None,
    )
