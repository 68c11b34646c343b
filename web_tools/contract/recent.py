"""Answers that were just given, for the same question asked again. Pure: time comes in.

Off unless the host sets a window. What is kept are the rows of a back end: they are judged anew for
each call, by its own instant.
"""

from collections import OrderedDict
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

__all__ = ("RecentAnswers",)

_T = TypeVar("_T")
# An answer may have 2 MiB.
_MOST: Final = 16


class RecentAnswers(Generic[_T]):
    """The last answers by key, for *window_seconds*; 0 keeps none."""

    def __init__(self, window_seconds: float) -> None:
        self._window = timedelta(seconds=window_seconds)
        self._kept: OrderedDict[Hashable, tuple[datetime, _T]] = OrderedDict()

    def find(self, key: Hashable, *, now: datetime) -> _T | None:
        """The answer to *key*, when it is inside of the window; a clock that went back has none."""
        at, answer = self._kept.get(key, (None, None))
        if at is None or not timedelta(0) <= now - at < self._window:
            return None
        return answer

    def keep(self, key: Hashable, answer: _T, *, now: datetime) -> None:
        """Take an answer in the place of an older one."""
        if not self._window:
            return
        self._kept[key] = (now, answer)
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
