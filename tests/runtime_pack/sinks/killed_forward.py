"""A forwarder is killed at every point where something can be on the disk or not.

One process forks a child for each point; the child forwards until it arrives there and is killed with
SIGKILL; the parent forwards what is left and looks whether every line has arrived. Prints the number
of points.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from runtime_pack.audit import AuditLog
from runtime_pack.audit.files import older_segments
from runtime_pack.events import Event, EventCode
from runtime_pack.sink_config import parse_sink
from runtime_pack.sinks import Forwarder, Keeper, sender_for

CALLS = ("write", "fsync", "rename", "replace", "open", "ftruncate", "close")


class Points:
    """Counts the calls of the system; kills at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def pass_by(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            self.pass_by()
            if name == "write":
                handle, block = given
                self.seen += 1
                if self.seen == self.at:
                    real(handle, block[: len(block) * 2 // 3])
                    os.kill(os.getpid(), signal.SIGKILL)
            done = real(*given, **named)
            self.pass_by()
            return done

        return called

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self.around(name, getattr(os, name)))


def forward(folder: Path, logs: Path) -> None:
    sink = parse_sink("out", {"kind": "file", "path": str(folder / "out.jsonl")}, ())
    with Keeper(folder / "state", "out", logs) as keeper:
        ours = Forwarder(logs, sender_for(sink), keeper, name="out", max_batch=5)
        if not asyncio.run(ours.catch_up(attempts=1)):
            raise SystemExit("not delivered")


def in_child(work: Callable[[], object]) -> bool:
    """Whether the child was killed. Forwarding starts threads, and who has some does not fork."""
    child = os.fork()
    if child == 0:
        try:
            work()
        # Whatever it is, the child must not go on as if it were the parent.
        except BaseException as error:  # noqa: BLE001
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return os.WIFSIGNALED(status)


def one(folder: Path, logs: Path, wanted: list[str], at: int) -> bool:
    """Whether the child came to that point; every line must have arrived, whole and in order."""
    own = folder / f"{at}"
    own.mkdir()

    def until_killed() -> None:
        Points(at).install()
        forward(own, logs)

    killed = in_child(until_killed)
    if in_child(partial(forward, own, logs)):
        raise SystemExit(f"point {at}: killed by nobody")
    got = []
    for line in (own / "out.jsonl").read_bytes().splitlines():
        try:
            got.append(json.loads(line)["id"])
        except ValueError:
            # What a write left that was cut: not an event, and followed by all of its batch.
            continue
    if list(dict.fromkeys(got)) != wanted or len(got) > len(wanted) + 5:
        raise SystemExit(f"point {at}: {len(got)} of {len(wanted)}")
    return killed


def main() -> None:
    folder = Path(sys.argv[1])
    logs = folder / "logs"
    logs.mkdir()
    log = logs / "run.jsonl"
    with AuditLog(log, segment_bytes=1200) as writer:
        for number in range(4):
            writer.append(Event(code=EventCode.STP001A, subject={}, object={"n": number}))
            writer.flush()
    files = (*(path for _, path in older_segments(log)), log)
    wanted = [json.loads(x)["id"] for file in files for x in file.read_bytes().splitlines()]
    at = next(n for n in itertools.count(1) if not one(folder, logs, wanted, n))
    sys.stdout.write(f"{at - 1}\n")


if __name__ == "__main__":
    main()
