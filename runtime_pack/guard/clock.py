"""The host's clock, read such that it cannot tear a run: one that fails stops the run it is of."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from runtime_pack.errors import ContractError
from runtime_pack.ports import Clock, SystemClock, is_sleeping, require_method

__all__ = ("ClockFault", "WatchedClock", "watched")

# What a clock may raise that is its fault, as all code of the host; Ctrl-C ends the process.
_FAULTS: Final = (Exception, asyncio.CancelledError, GeneratorExit, SystemExit)


class ClockFault(Exception):
    """What a clock said is no time."""


_MACHINE: Final = SystemClock()


def watched(clock: Clock | None) -> Clock:
    """The clock that a run reads: the machine's own as it is, any other one under watch.

    Raises:
        ContractError: it cannot be read, its time has no zone, or its seconds are no finite number.
    """
    if clock is None or type(clock) is SystemClock:
        return clock or _MACHINE
    return WatchedClock(clock.source if isinstance(clock, WatchedClock) else clock)


class WatchedClock:
    """A clock of the host's that was read once. When it fails later, time stands still and it is told.

    Attributes:
        source: the host's clock.
        on_fault: told what was wrong, each time; the run that reads the clock stops.
        sleep: waits on the host's clock, where that can.
    """

    def __init__(self, source: Clock) -> None:
        for method in ("monotonic", "now"):
            require_method("clock", source, method)
        self.source = source
        self.on_fault: Callable[[BaseException], None] | None = None
        try:
            self._now = _moment(source.now())
            self._seconds = _seconds(source.monotonic(), -math.inf)
        except ClockFault as fault:
            raise ContractError("clock", str(fault)) from fault
        except _FAULTS as error:
            raise ContractError("clock", f"cannot be read ({type(error).__name__})") from error
        if is_sleeping(source):
            self.sleep: Callable[[float], Awaitable[None]] = self._sleep

    def now(self) -> datetime:
        """The time of day; the last one that could be read."""
        try:
            self._now = _moment(self.source.now())
        except _FAULTS as error:
            self._tell(error)
        return self._now

    def monotonic(self) -> float:
        """Seconds that never go back; the last ones that could be read."""
        try:
            self._seconds = _seconds(self.source.monotonic(), self._seconds)
        except _FAULTS as error:
            self._tell(error)
        return self._seconds

    async def _sleep(self, seconds: float) -> None:
        source = self.source
        if not is_sleeping(source):
            return
        try:
            await source.sleep(seconds)
        # The host's code: a clock that cannot wait is one that failed.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if self.on_fault is not None:
            self.on_fault(error)


def _moment(given: object) -> datetime:
    if not isinstance(given, datetime) or given.utcoffset() is None:
        _close(given)
        raise ClockFault("now() is not a datetime with a time zone")
    return given


def _seconds(given: object, least: float) -> float:
    # Whole numbers may be larger than any float.
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not isinstance(given, int | float) or not -math.inf < given < math.inf:
        _close(given)
        raise ClockFault("monotonic() is not a finite number of seconds")
    if given < least:
        raise ClockFault("monotonic() went back")
    return given


def _close(given: object) -> None:
    if inspect.iscoroutine(given):
        # Nobody awaits a clock.
        given.close()
