"""The end of logs: the last lines, and those that come, also where a log goes on in a new file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from runtime_pack.audit.facts import EventFacts, facts_of, read_record
from runtime_pack.audit.files import older_segments
from runtime_pack.audit.index import logs_in
from runtime_pack.errors import AuditError
from runtime_pack.given_files import MAX_LINE_BYTES, chunks, open_file, opened

__all__ = ("Follower",)

_CHUNK: Final = 1 << 18
_Admits = Callable[[EventFacts], bool]


class _Open:
    """The file of a log that is written, read as far as it has whole lines."""

    def __init__(self, log: Path, *, at_end: bool) -> None:
        self.log = log
        self._handle = open_file(log)
        try:
            self._at = self._end_of_lines() if at_end else 0
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._handle)

    def _end_of_lines(self) -> int:
        end = size = os.fstat(self._handle).st_size
        while end:
            _check_length(size - end)
            start = max(0, end - _CHUNK)
            found = os.pread(self._handle, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def backwards(self) -> Iterator[bytes]:
        """The whole lines before where reading began, the last one first, older files included."""
        yield from _backwards(self._handle, self._at)
        for _, path in reversed(older_segments(self.log)):
            with opened(path) as handle:
                yield from _backwards(handle, os.fstat(handle).st_size)

    def new_lines(self) -> Iterator[bytes]:
        """The whole lines that came since; a file that is full by now is read to its end first."""
        yield from self._drain()
        if self._is_current():
            return
        # The writer has gone on, perhaps more than once, since the file was opened.
        yield from self._drain()
        for path in self._later_files():
            handle = open_file(path)
            os.close(self._handle)
            self._handle, self._at = handle, 0
            yield from self._drain()

    def _is_current(self) -> bool:
        try:
            return self.log.stat().st_ino == os.fstat(self._handle).st_ino
        except FileNotFoundError:
            return True

    def _later_files(self) -> tuple[Path, ...]:
        ours = os.fstat(self._handle).st_ino
        files = (*(path for _, path in older_segments(self.log)), self.log)
        at = [index for index, path in enumerate(files) if path.stat().st_ino == ours]
        # A file of ours that was deleted since: what is left is what there is to read.
        return files[at[0] + 1 :] if at else files

    def _drain(self) -> Iterator[bytes]:
        rest = b""
        for chunk in chunks(self._handle, self._at, os.fstat(self._handle).st_size):
            *lines, rest = (rest + chunk).split(b"\n")
            _check_length(len(rest))
            for line in lines:
                self._at += len(line) + 1
                yield line


def _backwards(handle: int, end: int, chunk: int = _CHUNK) -> Iterator[bytes]:
    """The lines before *end*, where a line ends, the last one first."""
    # The line feed before *end* ends the last line, and begins no empty one.
    at, rest = end - 1, b""
    while at > 0:
        start = max(0, at - chunk)
        first, *lines = (os.pread(handle, at - start, start) + rest).split(b"\n")
        yield from reversed(lines)
        at, rest = start, first
        _check_length(len(rest))
    if end:
        yield rest


def _check_length(size: int) -> None:
    if size > MAX_LINE_BYTES:
        raise OSError(errno.EFBIG, f"it has a line of more than {MAX_LINE_BYTES} bytes")


class Follower:
    """Follows a log, or the logs of a folder with those that are new there.

    Raises:
        AuditError: a log cannot be read.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._open: dict[Path, _Open] = {}
        try:
            for log in logs_in(target):
                self._open[log] = _Open(log, at_end=True)
        except OSError as error:
            raise AuditError(f"the log cannot be read: {error}") from error

    def close(self) -> None:
        """Let go of the files."""
        for each in self._open.values():
            each.close()

    def last(self, count: int, admits: _Admits) -> list[bytes]:
        """The last lines that are asked for, in the order of time."""
        found: list[bytes] = []
        try:
            for each in self._open.values():
                wanted = (line for line in each.backwards() if admits(facts_of(read_record(line))))
                found += reversed(list(islice(wanted, count)))
        except OSError as error:
            raise AuditError(f"the log cannot be read: {error}") from error
        return _in_time(found)[-count:] if count else []

    def new(self, admits: _Admits) -> list[bytes]:
        """The lines that came since, in the order of time.

        Raises:
            AuditError: a log cannot be read.
        """
        found: list[bytes] = []
        try:
            for log in logs_in(self._target):
                if log not in self._open:
                    self._open[log] = _Open(log, at_end=False)
            for each in self._open.values():
                found += each.new_lines()
        except OSError as error:
            raise AuditError(f"the log cannot be read: {error}") from error
        return _in_time([line for line in found if admits(facts_of(read_record(line)))])


def _in_time(lines: list[bytes]) -> list[bytes]:
    """Sorted by what the lines say of time; those of one log stay in their order."""
    return sorted(lines, key=lambda line: facts_of(read_record(line)).at or "")
