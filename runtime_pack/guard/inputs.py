"""What users said is judged by the host before the model is asked."""

from __future__ import annotations

import asyncio
from typing import Final

from runtime_pack.errors import AuditError, EmitterError, StopCode
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.machine import Outcome, failure
from runtime_pack.messages import Message, clean_text
from runtime_pack.ports import InputGuard

__all__ = ("GUARD_SECONDS", "judge_input")

GUARD_SECONDS: Final = 60.0
"""The longest that one guard may take; the run's remaining time is the other bound."""

_SAID_CHARACTERS: Final = 500


async def judge_input(
    run: TaskRun, guard: InputGuard, messages: tuple[Message, ...]
) -> Outcome | None:
    """The end of the run if the guard refuses or cannot judge; None if it passes.

    None too when the run was interrupted or its time ended meanwhile: it stops for that, before
    the model is asked.
    """
    try:
        said: object = await bounded(run, GUARD_SECONDS, guard(messages))
    except (AuditError, EmitterError, KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        raise
    except TimeUp:
        spent = run.ledger.time_shortfall(run.clock.monotonic()) is not None
        return None if run.interrupt is not None or spent else _refused("did not end in time")
    # The host's code: a guard that fails has not passed anything.
    except BaseException as error:  # noqa: BLE001
        log_fault("an input guard", error, run=run.id)
        return _refused(f"failed ({type(error).__name__})", error)
    if said is None:
        return None
    if not isinstance(said, str):
        return _refused("answered with something that is no reason")
    return _refused(f"refused: {clean_text(said)[:_SAID_CHARACTERS]}")


def _refused(how: str, cause: BaseException | None = None) -> Outcome:
    return failure("input", StopCode.INPUT_REFUSED, f"An input guard {how}.", cause)
