"""The files of one log: segments, checkpoints, tombstone; names, reading and durable writing.

run.jsonl               the segment that is written
run.jsonl.000001 …      those that are full, the oldest first
run.jsonl.checkpoints   signed checkpoints, one after the other
run.jsonl.tombstone     which segments were deleted on purpose
run.jsonl.torn-1 …      what a crash left of a last line
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime_pack import given_files
from runtime_pack.audit.note import SignedNote, Tombstone, read_notes
from runtime_pack.errors import AuditError
from runtime_pack.inner import frozen

__all__ = (
    "Checkpoints",
    "append_durably",
    "checkpoints_path",
    "next_segment",
    "older_segments",
    "read_checkpoints",
    "read_file",
    "read_lines",
    "read_tombstone",
    "replace_durably",
    "sync_folder",
    "tombstone_path",
)

_NUMBER: Final = re.compile(r"[0-9]{6}\Z")
_MAX_NUMBER: Final = 999_999
_MAX_FILE_BYTES: Final = 1 << 30
_MAX_STONE_BYTES: Final = 1 << 16


@frozen(kw_only=True)
class Checkpoints:
    """The checkpoints beside a log.

    Attributes:
        whole_bytes: how much of the file they take; a crash may have left a part of one behind them.
    """

    notes: tuple[SignedNote, ...] = ()
    whole_bytes: int = 0
    torn: bool = False


def checkpoints_path(log: Path) -> Path:
    """Where the checkpoints of a log stand."""
    return log.with_name(f"{log.name}.checkpoints")


def tombstone_path(log: Path) -> Path:
    """Where it stands which segments were deleted."""
    return log.with_name(f"{log.name}.tombstone")


def older_segments(log: Path) -> tuple[tuple[int, Path], ...]:
    """The full segments of a log with their numbers, the oldest first.

    A writer that was killed while it changed segments may have left a second name of the one that
    is written; that name is left out.

    Raises:
        AuditError: the folder cannot be read.
    """
    found = []
    try:
        for path in log.parent.iterdir():
            number = path.name.removeprefix(f"{log.name}.")
            is_other = path.name != number and not (log.exists() and path.samefile(log))
            if is_other and _NUMBER.match(number):
                found.append((int(number), path))
    except OSError as error:
        raise AuditError(f"the segments of the log cannot be listed: {error}") from error
    return tuple(sorted(found))


def next_segment(log: Path) -> Path:
    """The name that the segment which is full now will have.

    Raises:
        AuditError: the folder cannot be read, or there are no numbers left.
    """
    numbers = [number for number, _ in older_segments(log)]
    number = max(numbers, default=0) + 1
    if number > _MAX_NUMBER:
        raise AuditError("the log has as many segments as it can have")
    return log.with_name(f"{log.name}.{number:06d}")


def read_file(path: Path) -> bytes:
    """The bytes of one file.

    Raises:
        AuditError: it cannot be read, is no file, or is larger than any of ours.
    """
    try:
        return given_files.read_bounded(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise AuditError(f"the log cannot be read: {error}") from error


def read_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The lines of one file as it was when it was opened; of each, whether it had its line feed.

    Raises:
        AuditError: it cannot be read, is no file, or has a line that no log has.
    """
    try:
        yield from given_files.lines(path)
    except OSError as error:
        raise AuditError(f"the log cannot be read: {error}") from error


def read_checkpoints(log: Path) -> Checkpoints:
    """The checkpoints beside a log; none where there is no file.

    Raises:
        AuditError: the file cannot be read, or something else stands in it.
    """
    path = checkpoints_path(log)
    if not path.exists():
        return Checkpoints()
    content = read_file(path).decode("utf-8", "surrogateescape")
    notes, taken = read_notes(content)
    whole = len(content[:taken].encode("utf-8", "surrogateescape"))
    return Checkpoints(notes=notes, whole_bytes=whole, torn=taken != len(content))


def append_durably(path: Path, block: bytes, at: int) -> None:
    """Write a block behind the first *at* bytes of a file, and wait until it is on the disk.

    Raises:
        OSError: it was not written, or only in part.
    """
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(handle).st_size < at:
            raise OSError("what was in it is gone")
        os.ftruncate(handle, at)
        if os.pwrite(handle, block, at) != len(block):
            raise OSError("written only in part (is the disk full?)")
        os.fdatasync(handle)
    finally:
        os.close(handle)


def replace_durably(path: Path, content: bytes) -> None:
    """Put a content in the place of a file; one of the two is there at every instant.

    Raises:
        OSError: it was not replaced.
    """
    draft = path.with_name(f"{path.name}.new")
    handle = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def read_tombstone(log: Path) -> SignedNote | None:
    """The tombstone of a log, checked by nobody yet; None where there is none that can be read."""
    try:
        text = given_files.read_bounded(tombstone_path(log), _MAX_STONE_BYTES).decode("utf-8")
        note = SignedNote.parse(text)
        Tombstone.parse(note.text)
    except (OSError, UnicodeDecodeError, AuditError):
        return None
    return note


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk.

    Raises:
        OSError: it cannot be.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
