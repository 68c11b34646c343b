"""Driving a run from the command line: interruption, requests to a person, exit codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import click

from runtime_pack.approvals import ApprovalRequest, Decision
from runtime_pack.cli._interrupts import Interrupts
from runtime_pack.cli._progress import Hearing, followed
from runtime_pack.errors import StopCode
from runtime_pack.guard import GuardedRuntime
from runtime_pack.loop import (
    LoopResult,
    TurnInput,
    resume_governed_agent_loop,
    run_governed_agent_loop,
    stream_governed_agent_loop,
    stream_resumed_agent_loop,
)
from runtime_pack.machine import OutcomeKind
from runtime_pack.state import RunStore

__all__ = ("EXIT_CODES", "Deciding", "Driven", "drive")

EXIT_CODES: Final[Mapping[OutcomeKind, int]] = {
    OutcomeKind.COMPLETED: 0,
    OutcomeKind.ERROR: 1,
    OutcomeKind.APPROVAL_REQUIRED: 3,
    OutcomeKind.SUSPENDED: 4,
    OutcomeKind.CANCELLED: 1,
}

Deciding = Callable[[Sequence[ApprovalRequest]], list[Decision]]
"""Answers requests; an empty list leaves them pending. Raises `click.Abort` on Ctrl-C."""


@attrs.frozen(kw_only=True)
class Driven:
    """How a drive ended, and whether a person or the system interrupted it."""

    result: LoopResult
    interrupted: bool


async def drive(
    make: Callable[[], GuardedRuntime],
    *,
    store: RunStore,
    start: TurnInput | None,
    run_id: str,
    decide: Deciding,
    interrupts: Interrupts,
    hear: Hearing | None = None,
) -> Driven:
    """Run or take up a run, and take it up again for as long as its requests are answered.

    Args:
        make: a newly guarded runtime for each drive.
        store: where the run is saved.
        start: the input of a new run; None takes up the run that is saved.
        run_id: the id of the run to take up.
        decide: answers requests, outside the loop: nothing runs meanwhile.
        interrupts: suspends the run when a signal comes.
        hear: is told what happens as it happens; by default nobody listens.
    """
    runtime = make()
    with interrupts.pausing(runtime.task_run):
        result = await _first(runtime, store, start, run_id, hear)
    while result.kind is OutcomeKind.APPROVAL_REQUIRED:
        try:
            with interrupts.asking():
                decisions = decide(result.requests)
        except click.Abort:
            return Driven(result=result, interrupted=True)
        if not decisions:
            break
        runtime = make()
        with interrupts.pausing(runtime.task_run):
            result = await _resumed(runtime, store, result.run_id, decisions, hear)
    paused = result.stop is not None and result.stop.code == StopCode.PAUSED
    return Driven(result=result, interrupted=paused)


async def _first(
    runtime: GuardedRuntime,
    store: RunStore,
    start: TurnInput | None,
    run_id: str,
    hear: Hearing | None,
) -> LoopResult:
    if start is None:
        return await _resumed(runtime, store, run_id, (), hear)
    if hear is None:
        return await run_governed_agent_loop(runtime=runtime, execute_turn_input=start, store=store)
    events = stream_governed_agent_loop(runtime=runtime, execute_turn_input=start, store=store)
    return await followed(events, hear)


async def _resumed(
    runtime: GuardedRuntime,
    store: RunStore,
    run_id: str,
    decisions: Sequence[Decision],
    hear: Hearing | None,
) -> LoopResult:
    if hear is None:
        return await resume_governed_agent_loop(
            runtime=runtime, store=store, run_id=run_id, decisions=decisions
        )
    events = stream_resumed_agent_loop(
        runtime=runtime, store=store, run_id=run_id, decisions=decisions
    )
    return await followed(events, hear)
