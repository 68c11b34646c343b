"""The lines of a log behind a place, over its files as they are now: bounded, and never torn ones.

A log is written, goes on in new files and loses old ones while it is read. What follows is found by
number and digest, so a file that has another name by now, or is gone, is no reason to lose or repeat
a line. What does not follow is told: lines deleted before they were delivered, a log that was cut,
edited or replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from runtime_pack.audit.facts import read_record
from runtime_pack.audit.files import older_segments
from runtime_pack.audit.verify import beginning_of
from runtime_pack.errors import AuditError
from runtime_pack.given_files import MAX_LINE_BYTES, open_file
from runtime_pack.inner import frozen
from runtime_pack.sinks.places import Place

__all__ = ("Found", "Line", "Odd", "Oddity", "read_after")

_CHUNK: Final = 1 << 18
_TRIES: Final = 5


class Odd(StrEnum):
    """What is wrong between two lines."""

    DELETED = "deleted"
    REPLACED = "replaced"
    BROKEN = "broken"


@frozen(kw_only=True)
class Oddity:
    """Something that a log should not have: *first* and *last* are numbers of lines."""

    kind: Odd
    first: int
    last: int


@frozen(kw_only=True)
class Line:
    """One line, and the oddity that stands before it."""

    line: bytes
    place: Place
    before: Oddity | None = None


@frozen(kw_only=True)
class Found:
    """What was read: *lines* in order, *place* behind the last of them."""

    lines: tuple[Line, ...]
    place: Place


def read_after(log: Path, place: Place, *, most_lines: int, most_bytes: int) -> Found:
    """The next lines of a log: as many as are whole and within bounds, at least one if there is one.

    Raises:
        AuditError: a file cannot be read, or has a line that no log has.
    """
    try:
        with contextlib.ExitStack() as stack:
            handles = _opened(log, stack)
            return _Reading(handles, place, most_lines, most_bytes).carry_out()
    except OSError as error:
        raise AuditError(f"the log {log} cannot be read: {error}") from error


def _opened(log: Path, stack: contextlib.ExitStack) -> list[int]:
    """The files of the log, the oldest first, as they were at one instant.

    Raises:
        OSError: one cannot be opened, or the log goes on in new files faster than they are listed.
    """
    for _ in range(_TRIES):
        with contextlib.ExitStack() as attempt:
            current = _open_in(attempt, log)
            named = [path for _, path in older_segments(log)]
            try:
                older = [_open_in(attempt, path) for path in named]
            except FileNotFoundError:
                # Deleted since it was listed.
                continue
            files = [(os.fstat(h).st_ino, os.fstat(h).st_dev) for h in (*older, current)]
            # Twice the same: the one that was current when it was opened has a number by now.
            if len(set(files)) == len(files):
                stack.push(attempt.pop_all())
                return [*older, current]
    raise OSError("its files change faster than they can be listed")


def _open_in(stack: contextlib.ExitStack, path: Path) -> int:
    handle = open_file(path)
    stack.callback(os.close, handle)
    return handle


class _Reading:
    """One reading of a log."""

    def __init__(self, handles: list[int], place: Place, most_lines: int, most_bytes: int) -> None:
        self._handles, self._place = handles, place
        self._most_lines, self._most_bytes = most_lines, most_bytes
        self._lines: list[Line] = []
        self._bytes = 0
        self._odd: Oddity | None = None

    def carry_out(self) -> Found:
        at, start = self._find()
        for handle in self._handles[at:]:
            self._read(handle, start)
            start = 0
            if self._is_full():
                break
        return Found(lines=tuple(self._lines), place=self._place)

    def _is_full(self) -> bool:
        return len(self._lines) >= self._most_lines or self._bytes >= self._most_bytes

    def _find(self) -> tuple[int, int]:
        """The file and the offset behind the place, with what is odd about it."""
        place = self._place
        if place.seq:
            for at in reversed(range(len(self._handles))):
                if _digest_at(self._handles[at], place) == place.sha256:
                    return at, place.end
        return 0, self._begin_anew()

    def _begin_anew(self) -> int:
        """The first line that is there: of a new log, after a deletion, or of another log."""
        place, first = self._place, _first_line(self._handles[0])
        if first is None:
            # Nothing is there. Where something was, the next line will tell.
            return 0
        before = beginning_of(first).head
        if before.seq > place.seq:
            self._odd = Oddity(kind=Odd.DELETED, first=place.seq + 1, last=before.seq)
        elif (before.seq, before.sha256) != (place.seq, place.sha256):
            self._odd = Oddity(kind=Odd.REPLACED, first=before.seq + 1, last=place.seq)
        self._place = Place(seq=before.seq, sha256=before.sha256, start=0, end=0)
        return 0

    def _read(self, handle: int, start: int) -> None:
        for at, line in _whole_lines(handle, start):
            self._take(at, line)
            if self._is_full():
                return

    def _take(self, at: int, line: bytes) -> None:
        seq = self._place.seq + 1
        odd, self._odd = self._odd, None
        record = read_record(line)
        follows = record is not None and (record.get("seq"), record.get("prev")) == (
            seq,
            self._place.sha256,
        )
        if not follows and odd is None:
            odd = Oddity(kind=Odd.BROKEN, first=seq, last=seq)
        digest = hashlib.sha256(line).hexdigest()
        self._place = Place(seq=seq, sha256=digest, start=at, end=at + len(line) + 1)
        self._lines.append(Line(line=line, place=self._place, before=odd))
        self._bytes += len(line)


def _digest_at(handle: int, place: Place) -> str | None:
    """The digest of the line that the offsets name in this file; None where no line is."""
    length = place.end - place.start
    if not 0 < length <= MAX_LINE_BYTES + 1:
        return None
    line = os.pread(handle, length, place.start)
    if len(line) != length or not line.endswith(b"\n"):
        return None
    return hashlib.sha256(line[:-1]).hexdigest()


def _first_line(handle: int) -> bytes | None:
    return next((line for _, line in _whole_lines(handle, 0)), None)


def _whole_lines(handle: int, start: int) -> Iterator[tuple[int, bytes]]:
    """The lines from *start* on that have their line feed, each with its offset.

    Raises:
        OSError: one is longer than a line of a log.
    """
    # A long line comes in many chunks, of which each is looked through once.
    begun: list[bytes] = []
    at, read, held = start, start, 0
    while chunk := os.pread(handle, _CHUNK, read):
        read += len(chunk)
        begun.append(chunk)
        held += len(chunk)
        if b"\n" in chunk:
            *lines, rest = b"".join(begun).split(b"\n")
            for line in lines:
                yield at, line
                at += len(line) + 1
            begun, held = [rest], len(rest)
        if held > MAX_LINE_BYTES:
            raise OSError(f"it has a line of more than {MAX_LINE_BYTES} bytes")
