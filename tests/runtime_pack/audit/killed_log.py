"""A signed log is written and killed at every point where something can be on the disk or not.

One process forks a child for each point; the child writes until it arrives there, is killed with
SIGKILL, and the parent opens what is left, goes on and verifies. Prints the number of points.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from runtime_pack.audit import AuditLog, LogSigner, LogStatus, verify_log
from runtime_pack.audit.retention import delete_older
from runtime_pack.events import Event, EventCode

SIGNER = LogSigner("example.org/log", bytes(range(32)))
START = datetime(2026, 3, 1, tzinfo=UTC)
HALVES = ("write", "pwrite")
CALLS = (*HALVES, "ftruncate", "fdatasync", "fsync", "link", "rename", "replace", "unlink", "open")


class Points:
    """Counts the calls of the system that change something; kills at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def pass_by(self) -> bool:
        self.seen += 1
        return self.seen == self.at

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Before the call, in the middle of a write, and after it."""

        def called(*given: Any, **named: Any) -> Any:
            if self.pass_by():
                self.die()
            if name in HALVES and self.pass_by():
                handle, block, *rest = given
                real(handle, block[: len(block) * 2 // 3], *rest)
                self.die()
            done = real(*given, **named)
            if self.pass_by():
                self.die()
            return done

        return called

    def install(self) -> None:
        """In a process that ends by it, or soon after."""
        for name in CALLS:
            setattr(os, name, self.around(name, getattr(os, name)))


def play(path: Path) -> None:
    """Open, write, change files, sign, close, open again and delete what is old."""
    ticks = itertools.count()

    def now() -> datetime:
        return START + timedelta(hours=next(ticks))

    with AuditLog(path, now=now, signer=SIGNER, segment_bytes=1400) as log:
        for number in range(5):
            log.append(Event(code=EventCode.RUN002O, subject={"run": "r"}, object={"n": number}))
            log.flush()
    with AuditLog(path, now=now, signer=SIGNER):
        pass
    later = START + timedelta(days=9)
    delete_older(path, before=START + timedelta(hours=8), signer=SIGNER, by="ann", now=later)


def one(folder: Path, at: int) -> bool:
    """Whether the child came to that point; what it left must be a log that goes on."""
    path = folder / f"{at}" / "log"
    path.parent.mkdir()
    child = os.fork()
    if child == 0:
        points = Points(at)
        points.install()
        play(path)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    if path.exists():
        left = verify_log(path, keys=[SIGNER.key])
        torn = all("torn" in fault.problem for fault in left.faults)
        if left.status is LogStatus.TAMPERED and not torn:
            raise SystemExit(f"point {at}: {left.faults}")
    with AuditLog(path, signer=SIGNER) as log:
        log.append(Event(code=EventCode.STP001A, subject={"run": "r"}, object={}))
    found = verify_log(path, keys=[SIGNER.key])
    if found.status is not LogStatus.SIGNED:
        raise SystemExit(f"point {at}: {found.status} {found.faults}")
    return killed


def main() -> None:
    folder = Path(sys.argv[1])
    at = next(number for number in itertools.count(1) if not one(folder, number))
    sys.stdout.write(f"{at - 1}\n")


if __name__ == "__main__":
    main()
