"""Calls that did not stop when they were told to: what may run beside them, and what may not."""

from __future__ import annotations

from runtime_pack.threads import IsOver

__all__ = ("Leftovers",)


class Leftovers:
    """Those of one run. *watched* when a tool of the run must run alone; else nobody asks."""

    __slots__ = ("_left", "watched")

    def __init__(self) -> None:
        self.watched = False
        self._left: list[tuple[IsOver, bool]] = []

    @property
    def any(self) -> bool:
        """Whether something may still run."""
        return bool(self._left)

    def add(self, is_over: IsOver, *, exclusive: bool) -> None:
        """A call goes on that nobody waits for any more; of an exclusive tool, or of another one."""
        self._left.append((is_over, exclusive))

    def crowd(self, *, exclusive: bool) -> bool:
        """Whether something still runs beside which a call must not: an exclusive one runs alone."""
        if not self._left:
            return False
        self._left = [(over, alone) for over, alone in self._left if not over()]
        return any(exclusive or alone for _, alone in self._left)
