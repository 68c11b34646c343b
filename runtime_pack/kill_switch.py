"""A switch that stops every run it was given to, and that nothing turns back.

A run asks it before each turn, each call and each question to a person; `watch` also reaches a run
that waits in one of them. What cannot be read is taken as thrown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import weakref
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Final, Protocol

from runtime_pack.errors import ContractError

__all__ = ("KillSwitch", "Stoppable")

_MODES: Final = ("now", "after_step")
_OFTEN_ENOUGH_SECONDS: Final = 1.0


class Stoppable(Protocol):
    """What a switch stops: a run."""

    def cancel(self, reason: str, mode: str = "now") -> None:
        """Stop for good; from any thread."""
        ...


class KillSwitch:
    """Given to runs by `create_agent_task_run(…, kill_switch=…)`; it does not keep them alive.

    Args:
        path: a file that throws the switch when it is there, whatever is in it. A relative one is
            meant from the folder that is current now.
        mode: `after_step` lets turns and calls in flight end, `now` stops them.

    Raises:
        ContractError: the mode is neither, or the folder of *path* is not there: then nobody could
            throw the switch.
    """

    def __init__(self, path: Path | str | None = None, *, mode: str = "after_step") -> None:
        if mode not in _MODES:
            raise ContractError("mode", f"{mode!r} is not a mode: now or after_step")
        self._path = None if path is None else Path(path).absolute()
        if self._path is not None and not self._path.parent.is_dir():
            raise ContractError("path", "its folder is not there")
        self._mode = mode
        self._reason: str | None = None
        self._runs: weakref.WeakSet[Stoppable] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def reason(self) -> str | None:
        """Why the switch was thrown; None as long as it was not."""
        return self._reason

    def register(self, run: Stoppable) -> None:
        """Stop this run too, at once if the switch was thrown already."""
        with self._lock:
            self._runs.add(run)
        self.heed(run)

    def engage(self, reason: str) -> None:
        """Throw the switch, from any thread. The first reason stays."""
        if self._reason is None:
            self._reason = f"kill switch: {reason}"
        self._stop_all()

    def heed(self, run: Stoppable) -> None:
        """Stop this run, before its next step, if the switch is thrown."""
        if self.check():
            self._stop(run)

    def check(self) -> bool:
        """Whether the switch is thrown; the file is looked for, and every run is stopped if it is."""
        if self._reason is not None:
            return True
        seen = None if self._path is None else _seen(self._path)
        if seen is None:
            return False
        self.engage(seen)
        return True

    def _stop_all(self) -> None:
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            self._stop(run)

    def _stop(self, run: Stoppable) -> None:
        # One run that cannot be stopped does not spare the others.
        with contextlib.suppress(Exception):
            run.cancel(self._reason or "kill switch", self._mode)

    @contextlib.asynccontextmanager
    async def watch(
        self, every_seconds: float = _OFTEN_ENOUGH_SECONDS
    ) -> AsyncGenerator[None, None]:
        """Look for the file while the block runs, so that a run that waits is stopped too."""
        task = asyncio.create_task(self._look(every_seconds))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look(self, every_seconds: float) -> None:
        # A file does not say when it comes.
        while not self.check():  # noqa: ASYNC110
            await asyncio.sleep(every_seconds)

    @contextlib.contextmanager
    def on_signal(self, *signals: signal.Signals) -> Generator[None, None, None]:
        """Let these signals throw the switch while the block runs; then they do what they did.

        Raises:
            ContractError: this is not the main thread, which alone is told of signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ContractError("on_signal", "is used in the main thread")
        before = {number: signal.signal(number, self._caught) for number in signals}
        try:
            yield
        finally:
            for number, was in before.items():
                signal.signal(number, was)

    def _caught(self, number: int, _frame: object) -> None:
        reason = f"signal {signal.Signals(number).name}"
        if self._reason is None:
            self._reason = f"kill switch: {reason}"
        # Not from here: a signal comes between any two steps of the loop, and does not wake it.
        threading.Thread(target=self._stop_all, name="kill-switch").start()


def _seen(path: Path) -> str | None:
    """What throws the switch, or None when it was looked for and is not there."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        # Without its folder it could not be put there: that is no "not thrown".
        return None if path.parent.is_dir() else "its folder is gone"
    except (OSError, ValueError) as error:
        return f"its file cannot be looked for ({type(error).__name__})"
    return "its file is there"
