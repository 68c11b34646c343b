"""What the host's own code raised or lacks, for the host's developer: one logger, and nowhere else.

The text of a foreign error can hold a key or a page. It is never stored, never shown to the model and
in no result's text; who turns the logger to DEBUG asks for it.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ("log_fault", "log_untold")

_LOGGER: Final = logging.getLogger("runtime_pack")


def log_fault(what: str, error: BaseException, *, run: str = "") -> None:
    """Log that *what* raised, with the traceback, at DEBUG."""
    where = f" in run {run}" if run else ""
    _LOGGER.debug("%s failed%s", what, where, exc_info=error)


def log_untold(tool: str, *, run: str) -> None:
    """Warn that calls of a tool are refused because the run has nobody to tell of them."""
    advice = "give create_agent_task_run an emitter"
    _LOGGER.warning("run %s refuses %s: its class is notify, and %s", run, tool, advice)
