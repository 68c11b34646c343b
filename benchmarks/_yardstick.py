"""Processor time in units of one reference machine, so that figures of two days can be compared.

A fixed piece of pure Python runs right before and after the work, because shared hardware swings
processor time by almost a factor of two within seconds. The piece and its time on the reference
machine are those of the comparison harness (`lib/calib.py` there).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

__all__ = ("per_call_us", "reference_ns")

_REFERENCE_NS: Final = 1_150_000


def per_call_us(work: Callable[[], object], *, box_seconds: float = 0.05) -> float:
    """Reference microseconds of one call; the median of three boxes of calls."""
    work()
    count = max(1, round(box_seconds * 1e9 / max(1.0, reference_ns(work))))
    found = sorted(reference_ns(lambda: _repeat(work, count)) / count for _ in range(3))
    return found[1] / 1e3


def reference_ns(work: Callable[[], object]) -> float:
    """Reference nanoseconds of processor time that *work* takes."""
    gc.collect()
    before = _yardstick()
    begun = time.process_time_ns()
    work()
    spent = time.process_time_ns() - begun
    return spent * 2 * _REFERENCE_NS / (before + _yardstick())


def _repeat(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def _yardstick() -> int:
    return min(_once(), _once())


def _once() -> int:
    begun = time.process_time_ns()
    total = 0
    texts: dict[int, str] = {}
    for number in range(12_000):
        total += number & 7
        if not number & 3:
            texts[number] = str(number)
    joined = "".join(texts.values())
    # Looked up on purpose: the piece must be the harness's, step by step.
    for number in texts:  # noqa: PLC0206
        total += len(texts[number])
    return time.process_time_ns() - begun + (len(joined) < 0) + (total < 0)
