"""Ctrl-C and SIGTERM: what each of them does to a command, by how often they come.

The first one suspends the run that is being driven, so that it can be taken up again. The second one
cancels what still holds it up. A third one leaves at once: what counts is saved before it happens.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, Self, TypeVar

import click

from runtime_pack.guard import AgentTaskRun

__all__ = ("INTERRUPTED", "Interrupts", "run_interruptibly")

INTERRUPTED: Final = 130
"""The exit code. Source: what shells give for a process that SIGINT ended, 128 + 2."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_T = TypeVar("_T")


def run_interruptibly(main: Callable[[Interrupts], Awaitable[_T]]) -> _T:
    """Run *main* on a new event loop under `Interrupts`.

    When a signal has come, further ones end the process for as long as it lives.

    Raises:
        click.Abort: a signal ended it.
    """
    came = False

    async def inside() -> _T:
        nonlocal came
        with Interrupts() as interrupts:
            try:
                return await main(interrupts)
            finally:
                came = interrupts.came

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        return asyncio.run(inside())
    except asyncio.CancelledError:
        raise click.Abort from None
    finally:
        for number, handler in before.items():
            signal.signal(number, _leave if came else handler)


class Interrupts:
    """The signals of one command; a context manager inside its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._run: AgentTaskRun | None = None
        self._count = 0

    @property
    def came(self) -> bool:
        """Whether a signal has come."""
        return self._count > 0

    def __enter__(self) -> Self:
        """Listen."""
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._arrived, number)
        return self

    def __exit__(self, *_: object) -> None:
        """All is done but the closing of the loop, which must not be torn apart."""
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)
            signal.signal(number, _leave)

    @contextmanager
    def pausing(self, run: AgentTaskRun) -> Iterator[None]:
        """While *run* is driven, the first signal suspends it."""
        self._run = run
        try:
            yield
        finally:
            self._run = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a person is asked the loop stands still, and Ctrl-C is a `KeyboardInterrupt`."""
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)
        try:
            yield
        finally:
            self.__enter__()

    def _arrived(self, number: signal.Signals) -> None:
        self._count += 1
        if self._count == 1 and self._run is not None:
            self._run.pause(f"interrupted by {number.name}")
        elif self._count <= 2 and self._task is not None:
            self._task.cancel()
        else:
            os._exit(INTERRUPTED)


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(INTERRUPTED)
