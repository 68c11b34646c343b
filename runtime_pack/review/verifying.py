"""The verify badge: every log of the page verified in the background, again whenever it has changed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from runtime_pack.audit import Verification, verify_log
from runtime_pack.audit.files import checkpoints_path, older_segments
from runtime_pack.audit.index import logs_in
from runtime_pack.errors import AuditError, StoreError
from runtime_pack.inner import frozen
from runtime_pack.messages import Json
from runtime_pack.review.source import Kept
from runtime_pack.review.thread import OneThread

__all__ = ("Verifier",)

# A log that is written changes all the time; a verification reads all of it.
_AGAIN_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 2.0
_WORST: Final = ("unreadable", "tampered", "open", "chained", "signed", "verified")
_FAULTS: Final = 20

_Mark = tuple[tuple[str, int, int], ...]


@frozen(kw_only=True)
class _Found:
    mark: _Mark
    at: float
    status: str
    row: dict[str, Json]


class Verifier:
    """What holds of each log, the newest first; `version` rises with each that was verified."""

    def __init__(self, target: Path, kept: Callable[[Path], Kept] | None) -> None:
        self._target, self._kept = target, kept
        self._found: dict[Path, _Found] = {}
        self._left = 0
        self.version = 0
        self._thread = OneThread("review-verify")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to verify."""
        self._task = asyncio.create_task(self._go())

    async def close(self) -> None:
        """Verify no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.close()

    def to_json(self) -> dict[str, Json]:
        """The worst of all logs, how many are what, and those that are not well."""
        counts: dict[str, Json] = {}
        for word in _WORST:
            times = sum(1 for each in self._found.values() if each.status == word)
            if times:
                counts[word] = times
        worst = next(iter(counts), "none")
        rows = sorted(self._found.values(), key=lambda each: _WORST.index(each.status))
        logs: list[Json] = [each.row for each in rows[:200]]
        return {"worst": worst, "counts": counts, "left": self._left, "logs": logs}

    async def _go(self) -> None:
        while True:
            for log in await self._thread.do(self._due):
                self._found[log] = await self._thread.do(partial(self._verified, log))
                self._left -= 1
                self.version += 1
            await asyncio.sleep(_LOOK_SECONDS)

    def _due(self) -> list[Path]:
        try:
            logs = logs_in(self._target)
        except AuditError:
            return []
        for gone in set(self._found) - set(logs):
            del self._found[gone]
        due = [log for log in reversed(logs) if self._is_due(log)]
        self._left = len(due)
        return due

    def _is_due(self, log: Path) -> bool:
        found = self._found.get(log)
        if found is None:
            return True
        return found.mark != _mark(log) and time.monotonic() - found.at > _AGAIN_SECONDS

    def _verified(self, log: Path) -> _Found:
        mark = _mark(log)
        try:
            kept = Kept() if self._kept is None else self._kept(log)
            told = verify_log(log, tuple(kept.heads), keys=tuple(kept.keys))
            status, row = str(told.status), _row(log, told, kept.unreadable)
        except (AuditError, StoreError, OSError) as error:
            status, row = (
                "unreadable",
                {"log": str(log), "status": "unreadable", "fault": str(error)},
            )
        return _Found(mark=mark, at=time.monotonic(), status=status, row=row)


def _row(log: Path, told: Verification, unreadable: int) -> dict[str, Json]:
    faults: list[Json] = [{"line": f.line, "problem": f.problem} for f in told.faults[:_FAULTS]]
    return {
        "log": str(log),
        "status": str(told.status),
        "events": told.events,
        "signed": told.signed,
        "heads": told.heads_found,
        "removed": told.removed,
        "head": str(told.head),
        "faults": faults,
        "unreadable": unreadable,
    }


def _mark(log: Path) -> _Mark:
    """What changes when a log, or what vouches for it, does."""
    paths = (*(path for _, path in older_segments(log)), log, checkpoints_path(log))
    found = []
    for path in (*paths, log.with_name(f"{log.name}.head")):
        with contextlib.suppress(OSError):
            now = path.stat()
            found.append((path.name, now.st_size, now.st_ctime_ns))
    return tuple(found)
