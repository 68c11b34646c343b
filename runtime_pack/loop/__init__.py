"""The loop: one driver, and four doors to it.

Await it (`run_governed_agent_loop`, `resume_governed_agent_loop`), read it as a stream of events
(`stream_…`), or call either from code without an event loop (`…_sync`). The records are the same.

`results` holds what goes in and comes out, `entry` what every door checks, `drive` the one driver,
`keeper` the history and its saves, `stream` the events, `blocking` the doors without an event loop.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from runtime_pack.approvals import Decision
from runtime_pack.audit.log import AuditLog
from runtime_pack.grants import Grant
from runtime_pack.loop.entry import (
    BUFFER,
    WARN_AT,
    ResumeOptions,
    RunOptions,
    call_off,
    prepare_resume,
    prepare_run,
)
from runtime_pack.loop.results import (
    ApprovalRequired,
    Cancelled,
    Completed,
    LoopError,
    LoopResult,
    Suspended,
    TurnInput,
)
from runtime_pack.ports import ContextFactory, ToolRuntime
from runtime_pack.state import RunStore

if TYPE_CHECKING:
    from runtime_pack.loop.stream import (
        ApprovalRequested,
        BudgetWarning,
        CallAdmitted,
        CallFinished,
        CallRefused,
        CallStarted,
        Finished,
        LoopEvent,
        TextDelta,
        TurnFinished,
        TurnLost,
        TurnStarted,
        ViolationReported,
    )

# Most runs are awaited: what reads one as a stream, or without an event loop, is loaded for those
# that are not.
_STREAMED: Final = frozenset(
    {
        "ApprovalRequested",
        "BudgetWarning",
        "CallAdmitted",
        "CallFinished",
        "CallRefused",
        "CallStarted",
        "Finished",
        "LoopEvent",
        "TextDelta",
        "TurnFinished",
        "TurnLost",
        "TurnStarted",
        "ViolationReported",
    }
)

__all__ = (
    "ApprovalRequested",
    "ApprovalRequired",
    "BudgetWarning",
    "CallAdmitted",
    "CallFinished",
    "CallRefused",
    "CallStarted",
    "Cancelled",
    "Completed",
    "Finished",
    "LoopError",
    "LoopEvent",
    "LoopResult",
    "Suspended",
    "TextDelta",
    "TurnFinished",
    "TurnInput",
    "TurnLost",
    "TurnStarted",
    "ViolationReported",
    "cancel_saved_run",
    "resume_governed_agent_loop",
    "resume_governed_agent_loop_sync",
    "run_governed_agent_loop",
    "run_governed_agent_loop_sync",
    "stream_governed_agent_loop",
    "stream_governed_agent_loop_sync",
    "stream_resumed_agent_loop",
    "stream_resumed_agent_loop_sync",
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
        PriceUnknown: money is counted, and the model of the input is not in the price table.
        asyncio.CancelledError: the caller's task was cancelled; recorded, then re-raised.
    """
    entry = prepare_run(
        runtime=runtime,
        execute_turn_input=execute_turn_input,
        create_context=create_context,
        max_turns=max_turns,
        store=store,
    )
    # As `entry.go`, without a coroutine of its own: runs wait here by the thousand.
    run, begin = entry.run, entry.drive
    del entry
    run.enter()
    try:
        begun = begin()
        del begin
        return await begun
    finally:
        run.leave()


async def resume_governed_agent_loop(
    *,
    runtime: ToolRuntime,
    store: RunStore,
    run_id: str,
    decisions: Sequence[Decision] = (),
    grants: Sequence[Grant] = (),
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
        grants: what people give the run beyond its limits; a run whose budget was used up goes on
            from where it stopped, also from a wrap-up, if there is room now.
        create_context: fills in session and agent for records.
        message: a further message of the user; refused while calls are pending unless *abandon*
            withdraws them, and when the run was cancelled or ended in an error.
        abandon: withdraw pending calls when a message is given.

    Returns:
        As `run_governed_agent_loop`; a decision about an unknown request, a second different one
        or a state that fails its seal is a `LoopError` and changes nothing.

    Raises:
        ContractError: the runtime's run was used for something else, or is being driven already;
            a decision is not a `Decision` or a grant no `Grant`; a grant raises what the run does
            not limit, or the run is over; decisions were given for calls that are to be
            abandoned; or `create_context` raised or made no context.
        RunNotFound: the store has no such run.
        StoreError: the store could not be read.
        asyncio.CancelledError: the caller's task was cancelled.
    """
    entry = prepare_resume(
        runtime=runtime,
        store=store,
        run_id=run_id,
        decisions=decisions,
        grants=grants,
        create_context=create_context,
        message=message,
        abandon=abandon,
    )
    return await entry.go()


async def cancel_saved_run(
    *, store: RunStore, run_id: str, reason: str, audit: AuditLog | None = None
) -> LoopResult:
    """End a saved run for good: its requests are withdrawn, and nothing of it runs or is asked.

    A run that is over is left as it ended. Where the store knows that another process drives the
    run, that process ends it after its step in hand; else it is stopped by its next save, before
    what that save was to cover.

    Returns:
        `Cancelled`, or what the run had ended with; a `LoopError` if another process drives the
        run, and will end it, or moved it on meanwhile (STATE_CONFLICT), or if it is not authentic
        (STATE_INTEGRITY).

    Raises:
        RunNotFound: the store has no such run.
        StoreError: the store could not be read.
    """
    return await call_off(store, run_id, reason, audit)


def stream_governed_agent_loop(
    *, buffer: int = BUFFER, warn_at: float = WARN_AT, **given: Unpack[RunOptions]
) -> AsyncGenerator[LoopEvent, None]:
    """`run_governed_agent_loop` as a stream of events; the last one is `Finished`, with the result.

    It runs while it is read: nothing happens before the first event is asked for. A reader that
    leaves pauses the run, which is recorded, and waits until nothing of it is left; to leave at
    a place of your choice, read inside `async with contextlib.aclosing(stream)`.

    Args:
        buffer: how many events the run may be ahead; then it waits before its next step, and that
            time is not charged to it.
        warn_at: which part of a budget is taken when `BudgetWarning` is given, above 0 up to 1.
        given: as `run_governed_agent_loop` takes it.

    Raises:
        ContractError: as `run_governed_agent_loop`, and for a *buffer* or *warn_at* that bounds
            nothing. That the run is being driven already is raised by the first read.
        asyncio.CancelledError: the reader's task was cancelled; by the read.
    """
    from runtime_pack.loop.stream import check_stream, stream_entry

    check_stream(buffer, warn_at)
    return stream_entry(prepare_run(**given), buffer=buffer, warn_at=warn_at)


def stream_resumed_agent_loop(
    *, buffer: int = BUFFER, warn_at: float = WARN_AT, **given: Unpack[ResumeOptions]
) -> AsyncGenerator[LoopEvent, None]:
    """`resume_governed_agent_loop` as a stream of events, as `stream_governed_agent_loop` is one.

    Raises:
        ContractError: as `resume_governed_agent_loop`, and for a *buffer* or *warn_at* that bounds
            nothing.
        RunNotFound: the store has no such run; by the first read.
        StoreError: the store could not be read; by the first read.
        asyncio.CancelledError: the reader's task was cancelled; by the read.
    """
    from runtime_pack.loop.stream import check_stream, stream_entry

    check_stream(buffer, warn_at)
    return stream_entry(prepare_resume(**given), buffer=buffer, warn_at=warn_at)


def run_governed_agent_loop_sync(**given: Unpack[RunOptions]) -> LoopResult:
    """`run_governed_agent_loop` for code without an event loop.

    Raises:
        ContractError: as there, or an event loop runs in this thread.
        KeyboardInterrupt: Ctrl-C; the run is torn as by a cancelled task, which is recorded.
    """
    from runtime_pack.loop.blocking import drive_here, refuse_running_loop

    refuse_running_loop("run_governed_agent_loop_sync")
    return drive_here(prepare_run(**given))


def resume_governed_agent_loop_sync(**given: Unpack[ResumeOptions]) -> LoopResult:
    """`resume_governed_agent_loop` for code without an event loop.

    Raises:
        ContractError: as there, or an event loop runs in this thread.
        RunNotFound: the store has no such run.
        StoreError: the store could not be read.
        KeyboardInterrupt: Ctrl-C; the run is torn as by a cancelled task, which is recorded.
    """
    from runtime_pack.loop.blocking import drive_here, refuse_running_loop

    refuse_running_loop("resume_governed_agent_loop_sync")
    return drive_here(prepare_resume(**given))


def stream_governed_agent_loop_sync(
    *, buffer: int = BUFFER, warn_at: float = WARN_AT, **given: Unpack[RunOptions]
) -> Generator[LoopEvent, None, None]:
    """`stream_governed_agent_loop` for code without an event loop; tools run in a thread of its own.

    Closing the generator, or Ctrl-C in it, pauses the run as a reader that leaves does.

    Raises:
        ContractError: as there, or an event loop runs in this thread.
    """
    from runtime_pack.loop.blocking import iterate, refuse_running_loop

    name = "stream_governed_agent_loop_sync"
    refuse_running_loop(name)
    return iterate(stream_governed_agent_loop(buffer=buffer, warn_at=warn_at, **given), name)


def stream_resumed_agent_loop_sync(
    *, buffer: int = BUFFER, warn_at: float = WARN_AT, **given: Unpack[ResumeOptions]
) -> Generator[LoopEvent, None, None]:
    """`stream_resumed_agent_loop` for code without an event loop; tools run in a thread of its own.

    Closing the generator, or Ctrl-C in it, pauses the run as a reader that leaves does.

    Raises:
        ContractError: as there, or an event loop runs in this thread.
        RunNotFound: the store has no such run; by the first read.
        StoreError: the store could not be read; by the first read.
    """
    from runtime_pack.loop.blocking import iterate, refuse_running_loop

    name = "stream_resumed_agent_loop_sync"
    refuse_running_loop(name)
    return iterate(stream_resumed_agent_loop(buffer=buffer, warn_at=warn_at, **given), name)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _STREAMED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("runtime_pack.loop.stream"), name)
