"""The host's check of an answer, before a run counts as completed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from runtime_pack.errors import AuditError, EmitterError
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.bounded import Stopped, TimeUp, bounded, ending
from runtime_pack.guard.inputs import GUARD_SECONDS
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.messages import Message, clean_text
from runtime_pack.ports import Answer

__all__ = ("check_answer",)

_MOST_OF_A_FAULT: Final = 500


async def check_answer(run: TaskRun, text: str, messages: Sequence[Message]) -> str | None:
    """Why the host's check refuses the answer; None when it does not, or there is no check.

    Raises:
        Stopped: the run ended before the check had.
    """
    check = run.output_check
    if check is None:
        return None
    answer = Answer(text=text, steps=tuple(run.steps), messages=tuple(messages))
    try:
        fault: object = await bounded(run, GUARD_SECONDS, check(answer))
    except (AuditError, EmitterError, KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        raise
    except TimeUp as error:
        stop = ending(run)
        if stop is not None:
            raise Stopped(stop) from error
        return "could not be checked in time"
    # The host's code: an answer that could not be checked was not.
    except BaseException as error:  # noqa: BLE001
        log_fault("the output check", error, run=run.id)
        return "could not be checked"
    if fault is None:
        return None
    return (
        clean_text(fault)[:_MOST_OF_A_FAULT] if isinstance(fault, str) else "could not be checked"
    )
