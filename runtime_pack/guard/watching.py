"""What is noticed in the output of a call: by its fences, by the canaries, by the host's scanner.

Nothing here changes an output. What is noticed may make a later call be asked about; see `signals`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from runtime_pack.catalog import ToolOutput
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.labels import Integrity
from runtime_pack.ports import Scanner, noticed_by_default
from runtime_pack.signals import RunSignal, signals_of

__all__ = ("SCAN_SECONDS", "watched")

SCAN_SECONDS: Final = 5.0
"""How long a scanner may take for one output; without an answer by then it has failed."""


async def watched(run: TaskRun, tool: str, raw: str, output: ToolOutput) -> frozenset[RunSignal]:
    """The signals of an output that stands in its fence; *raw* is its text as the tool gave it.

    Raises:
        AuditError, EmitterError: out of what the scanner called; they end the run.
    """
    seen = set(signals_of(output.fences))
    if output.label.integrity is not Integrity.EXTERNAL:
        return frozenset(seen)
    if raw is not output.text:
        # The runtime has put the fence around it, and a frame gives a text alone.
        seen |= {RunSignal(word) for word in noticed_by_default(raw, run.burned)}
    if run.flow.holds_canary(output.text):
        seen.add(RunSignal.CANARY)
    if run.scanner is not None:
        seen |= await _scanned(run, run.scanner, output.text, tool)
    return frozenset(seen)


async def _scanned(run: TaskRun, scanner: Scanner, text: str, tool: str) -> set[RunSignal]:
    """Whether the scanner has found something; one that does not say has failed."""
    try:
        found = await bounded(run, SCAN_SECONDS, _asked(scanner, text, tool))
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        raise
    except TimeUp:
        return {RunSignal.SCANNER_FAILED}
    # The host's code: whatever it raises, the text was not looked through.
    except Exception as error:  # noqa: BLE001
        log_fault("the scanner", error, run=run.id)
        return {RunSignal.SCANNER_FAILED}
    if type(found) is not bool:
        return {RunSignal.SCANNER_FAILED}
    return {RunSignal.SCANNER} if found else set()


async def _asked(scanner: Scanner, text: str, tool: str) -> object:
    # All of it in there: what the scanner raises is told from a cancellation of ours.
    return await scanner.scan(text, source=f"tool:{tool}")
