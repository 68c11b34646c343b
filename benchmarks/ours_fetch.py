"""Our guarded fetch and `web:read` as the comparison harness measures them: `ours_fetch.py`.

The harness resolves `*.bench.test` to 127.0.0.1. Our address check runs in full at every new
connection; its verdict on that address is lifted in the way a user would do it, by listing
127.0.0.0/8 beside the names (R8). Each fetch writes one line to the log, in the file before the
fetch returns.

Large pages are read in worker processes. The harness counts the processor time of its own worker
only, so `CountedClock` adds that of the processes below it: nothing of ours is free.
"""

from __future__ import annotations

import hashlib
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs

from egress import EgressPolicy, RunLimits, RunMeter, parse_allowlist
from egress.chain import Hop
from egress.client import GuardedClient
from runtime_pack import AuditLog, Event, EventCode
from runtime_pack.messages import Json
from web_tools.arguments import ReadRequest
from web_tools.extract import Extractor
from web_tools.fence import FenceKind, FenceMeta, NonceBook, fence
from web_tools.read import PageReader

NAME = "OURS fetch (governed)"
DIST = None
KIND = "guarded"
SYNC = False
READY = True

_ALLOWLIST = (*(f"h{number}.bench.test:*" for number in range(8)), "127.0.0.0/8")
_MAX_BYTES = 8 * 1024 * 1024
# Text of this size comes from a page that was too large to be read in the host itself.
_WORKER_BYTES = 200_000


@attrs.define
class Run:
    """What one run holds open."""

    client: GuardedClient
    reader: PageReader
    log: AuditLog
    processes: CountedClock
    burned: set[str] = attrs.field(factory=set)
    count: int = 0


class CountedClock:
    """Processor time of this process and of those it started."""

    def __init__(self) -> None:
        self._own = time.process_time_ns
        self._clocks: list[int] = []

    def install(self) -> None:
        """Count from now on."""
        # The module attribute is what the harness asks; there is no other way in.
        time.process_time_ns = self.read

    def find_children(self) -> None:
        """Look for the processes below this one; forget those that have ended."""
        # Linux: the clock of a process is the complement of its id, shifted, with 2 for
        # CPUCLOCK_SCHED (include/linux/posix-timers_types.h).
        self._clocks = [(~pid << 3) | 2 for pid in _children_of(os.getpid())]

    def has_children(self) -> bool:
        """Whether any was found."""
        return bool(self._clocks)

    def read(self) -> int:
        """Nanoseconds: of the dead, of the living, of this process."""
        try:
            living = sum(map(time.clock_gettime_ns, self._clocks))
        except OSError:  # one has ended; another may have taken its place
            self.find_children()
            living = sum(map(time.clock_gettime_ns, self._clocks))
        dead = resource.getrusage(resource.RUSAGE_CHILDREN)
        return round((dead.ru_utime + dead.ru_stime) * 1e9) + living + self._own()


def _children_of(parent: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in brackets may hold anything; the fields after it do not.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def _now() -> datetime:
    return datetime.now(UTC)


# The harness's name for it.
async def open() -> Run:  # noqa: A001
    """One run's guard, allowlist, session and log."""
    # The harness repeats one run for as long as it measures: counted, and not ended by its caps.
    meter = RunMeter(RunLimits(max_requests="unlimited", max_bytes="unlimited"))
    client = GuardedClient(EgressPolicy(allowlist=parse_allowlist(_ALLOWLIST)), meter=meter)
    processes = CountedClock()
    processes.install()
    return Run(
        client=client,
        reader=PageReader(client, Extractor(), clock=_now),
        log=AuditLog(Path(tempfile.gettempdir()) / f"ours-fetch-{os.getpid()}.jsonl"),
        processes=processes,
    )


async def fetch(ctx: Run, url: str) -> int:
    """One governed download: the length of its body."""
    fetched = await ctx.client.fetch(url)
    if fetched.status != 200 or fetched.truncated:
        raise SystemExit(f"not the page: status {fetched.status}")
    body = fetched.body
    _record(ctx, fetched.final.url, fetched.hops, len(body), hashlib.sha256(body).hexdigest())
    return len(body)


async def read(ctx: Run, url: str) -> int:
    """One governed `web:read`: the length of the fenced text."""
    page = await ctx.reader.read(ReadRequest(url=url, max_bytes=_MAX_BYTES))
    meta = FenceMeta(kind=FenceKind.PAGE, source=page.final_url, retrieved_at=page.fetched_at)
    block = fence(page.text, meta=meta, nonces=NonceBook(burned=ctx.burned))
    if "endmarkerzebra" not in block.text or page.truncated or block.truncated:
        raise SystemExit("the page's last words are missing")
    if page.total_bytes > _WORKER_BYTES and not ctx.processes.has_children():
        ctx.processes.find_children()
    _record(ctx, page.final_url, page.hops, page.bytes, block.revision)
    return len(block.text)


def _record(ctx: Run, url: str, hops: Sequence[Hop], length: int, digest: str) -> None:
    """One line of the log, in the file: where it went, and the digest of what came."""
    ctx.count += 1
    visited: list[Json] = [hop.target.host for hop in hops]
    ctx.log.append(
        Event(
            code=EventCode.STP002O,
            subject={"run": "bench", "step": f"d{ctx.count}"},
            object={"url": url, "hops": visited, "bytes": length, "sha256": digest},
        )
    )
    ctx.log.flush()
