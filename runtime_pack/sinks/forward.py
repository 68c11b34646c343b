"""Follows logs and delivers what they hold to one receiver: read, send, note how far, again.

A batch is read only when the one before it is delivered and its place is on the disk. So memory is
bounded by one batch, a receiver that is slow or down stops nothing but this, and a process that is
killed anywhere sends at most the batch in hand once more. Time and chance come in.
"""

from __future__ import annotations

import asyncio
import glob
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

from runtime_pack.audit.facts import Wanted, facts_of, time_text
from runtime_pack.audit.index import logs_in
from runtime_pack.errors import AuditError
from runtime_pack.inner import frozen
from runtime_pack.sinks.items import Item, as_note, gone_of, item_of, notice_of
from runtime_pack.sinks.keeping import Keeper
from runtime_pack.sinks.places import BEGINNING, Place, Progress
from runtime_pack.sinks.reading import Found, read_after
from runtime_pack.sinks.senders import NotDelivered, Refused, Sender

__all__ = ("Forwarder", "Told", "writes_among")

_POLL_SECONDS: Final = 1.0
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 60.0
_MOST_BYTES: Final = 1 << 20
_MOST_LINES: Final = 10_000


@frozen(kw_only=True)
class Told:
    """Something that whoever runs the forwarder is told: that it waits and why, or goes on."""

    sink: str
    problem: str
    attempts: int = 0


@frozen(kw_only=True)
class _Batch:
    """What was read: the items that are wanted, and how far reading got in each log."""

    items: tuple[Item, ...]
    places: Mapping[str, Place]


def writes_among(logs: Path, written: Path) -> bool:
    """Whether a file that is written stands among the logs that are followed, by any of its names.

    What a sink wrote there would be read as a log, and written again.

    Args:
        logs: the log or the folder of logs.
        written: the file; it need not be there.

    Raises:
        AuditError: the folder of the logs cannot be read.
    """
    if logs.is_dir():
        if written.resolve().parent == logs.resolve():
            return True
        read: Iterable[Path] = logs.iterdir()
    else:
        # A log and what belongs to it begin with its name.
        read = logs.parent.glob(f"{glob.escape(logs.stem)}*")
        if written.resolve() == logs.resolve():
            return True
    return written.exists() and any(path.samefile(written) for path in read if path.exists())


class Forwarder:
    """Forwards a log, or the logs of a folder with those that are new there, to one receiver.

    Args:
        target: the log or folder.
        sender: the way to the receiver.
        keeper: where the places are kept.
        name: the sink's, for what is told.
        wanted: which events are sent.
        max_batch: most of them at once.
        tell: is told what waits and why.
        now: the time, for notices.
        sleep: waits so many seconds.
        chance: a number from 0 to below 1, so that many forwarders do not come back at once.

    Raises:
        AuditError: the state cannot be read, or is of other logs.
    """

    def __init__(
        self,
        target: Path,
        sender: Sender,
        keeper: Keeper,
        *,
        name: str,
        wanted: Wanted | None = None,
        max_batch: int = 500,
        tell: Callable[[Told], None] = lambda _: None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._target, self._sender, self._keeper = target, sender, keeper
        self.name, self._wanted, self._max_batch = name, wanted or Wanted(), max_batch
        self._tell, self._now, self._sleep, self._chance = tell, now, sleep, chance
        self.progress = keeper.load()
        self.unreadable: dict[str, str] = {}
        self._still: dict[str, tuple[int, int, int]] = {}
        self._last = ""
        self._problem, self._attempts = "", 0

    async def run(self) -> None:
        """Forward until cancelled.

        Raises:
            AuditError: the folder of the logs cannot be read.
        """
        while True:
            if not await self.step():
                await self._sleep(_POLL_SECONDS)

    async def catch_up(self, *, attempts: int) -> bool:
        """Forward what is there; False if a batch was not delivered in so many attempts.

        It is False as well when a log cannot be read.

        Raises:
            AuditError: as for `run`.
        """
        while await self.step(attempts=attempts):
            if self._problem:
                return False
        return not self.unreadable

    async def step(self, *, attempts: int | None = None) -> bool:
        """Read one batch, deliver it and keep the places; False if there was nothing to read."""
        batch = await asyncio.to_thread(self._read)
        if batch is None:
            return False
        rejected = 0
        if batch.items:
            found = await self._until_done(lambda: self._deliver(batch.items), attempts)
            if found is None:
                return True
            rejected = found
        progress = attrs.evolve(
            self.progress,
            places=dict(batch.places),
            delivered=self.progress.delivered + len(batch.items) - rejected,
            rejected=self.progress.rejected + rejected,
        )
        if await self._until_done(lambda: self._save(progress), attempts) is not None:
            self.progress = progress
            if rejected:
                self._tell(Told(sink=self.name, problem=f"the receiver threw {rejected} away"))
        return True

    # ── sending ───────────────────────────────────────────────────────────────────────────────

    async def _until_done(
        self, work: Callable[[], Awaitable[int]], attempts: int | None
    ) -> int | None:
        """What the work gives, tried again until it does; None after so many attempts."""
        while True:
            try:
                done = await work()
            except NotDelivered as error:
                self._attempts += 1
                self._say(str(error))
                if attempts is not None and self._attempts >= attempts:
                    return None
                await self._sleep(self._wait(error.retry_after))
            else:
                self._say("")
                return done

    def _wait(self, asked: int) -> float:
        """Longer with each attempt, never shorter than the receiver asks for."""
        doubled = _FIRST_WAIT_SECONDS * 2.0 ** min(self._attempts - 1, 10)
        return max(asked, min(doubled, _LONGEST_WAIT_SECONDS)) * (1 + self._chance() / 4)

    def _say(self, problem: str) -> None:
        """Tell what is new: the first failure, another reason, that it goes on."""
        if problem != self._problem:
            told = problem or f"goes on after {self._attempts} attempt(s)"
            self._tell(Told(sink=self.name, problem=told, attempts=self._attempts))
        self._problem = problem
        self._attempts = self._attempts if problem else 0

    async def _deliver(self, items: Sequence[Item]) -> int:
        """Send items; those that are refused are sent in halves, and one alone as a note of itself.

        Raises:
            NotDelivered: not all of them were.
        """
        try:
            return await self._sender.send(items)
        except Refused as error:
            if len(items) > 1:
                half = len(items) // 2
                return await self._deliver(items[:half]) + await self._deliver(items[half:])
            if items[0].is_note:
                raise NotDelivered(f"{error}, whatever it is sent") from error
            return await self._deliver([as_note(items[0], str(error))])

    async def _save(self, progress: Progress) -> int:
        try:
            await asyncio.to_thread(self._keeper.save, progress)
        except OSError as error:
            why = error.strerror or str(error)
            raise NotDelivered(f"how far it has got cannot be kept: {why}") from error
        return 0

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def _read(self) -> _Batch | None:
        """The next lines, the logs taking turns; None where there are none."""
        places = dict(self.progress.places)
        items: list[Item] = []
        left_lines, left_bytes, is_new = _MOST_LINES, _MOST_BYTES, False
        logs = logs_in(self._target)
        for name in sorted(places.keys() - {log.name for log in logs}):
            # One of that name that comes later is another log.
            items.append(gone_of(name, places.pop(name), at=self._at()))
            is_new = True
        for log in self._in_turn(logs):
            if left_lines <= 0 or left_bytes <= 0 or len(items) >= self._max_batch:
                break
            most = min(left_lines, self._max_batch - len(items))
            found = self._read_one(log, places.get(log.name, BEGINNING), most, left_bytes)
            if not found.lines:
                continue
            is_new, self._last = True, log.name
            items += self._items(log.name, found)
            places[log.name] = found.place
            left_lines -= len(found.lines)
            left_bytes -= sum(len(line.line) for line in found.lines)
        return _Batch(items=tuple(items), places=places) if is_new else None

    def _in_turn(self, logs: Sequence[Path]) -> Iterator[Path]:
        """All of them, the one after that which was read last first."""
        later = [log for log in logs if log.name > self._last]
        yield from (*later, *(log for log in logs if log.name <= self._last))

    def _read_one(self, log: Path, place: Place, lines: int, size: int) -> Found:
        """The next lines of one log; none where it cannot be read, which is told and tried again."""
        nothing = Found(lines=(), place=place)
        try:
            now = log.stat()
            mark = (now.st_ino, now.st_size, place.seq)
            if self._still.get(log.name) == mark:
                return nothing
            found = read_after(log, place, most_lines=lines, most_bytes=size)
        except FileNotFoundError:
            return nothing
        except (AuditError, OSError) as error:
            if self.unreadable.get(log.name) != str(error):
                self.unreadable[log.name] = str(error)
                self._tell(Told(sink=self.name, problem=str(error)))
            return nothing
        self.unreadable.pop(log.name, None)
        if not found.lines:
            self._still[log.name] = mark
        return found

    def _items(self, log: str, found: Found) -> Iterator[Item]:
        for line in found.lines:
            if line.before is not None:
                yield notice_of(log, line.before, line.place.sha256, at=self._at())
            item = item_of(log, line.place.seq, line.line)
            if item.is_note or self._wanted.admits(facts_of(item.record)):
                yield item

    def _at(self) -> str:
        return time_text(datetime.fromtimestamp(self._now(), UTC))
