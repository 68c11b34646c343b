"""Verify a log: every line is canonical, numbered and chained, and every saved head is in it.

What the chain shows by itself: an edited, deleted, inserted or reordered line. What it cannot
show by itself: lines cut off at the end. For that a head saved elsewhere must be found again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import attrs
import orjson

from runtime_pack.errors import AuditError
from runtime_pack.events import EventType
from runtime_pack.messages import Json

__all__ = ("GENESIS", "Fault", "LogHead", "LogStatus", "Verification", "verify_lines", "verify_log")

GENESIS: Final = "0" * 64
"""`prev` of the first line."""


class LogStatus(StrEnum):
    """The outcome of a verification.

    `verified`: every line follows, and a saved head is the last line. `chained`: every line
    follows to a closing line, and no head was given, so an end that was cut off or added cannot be
    excluded. `open`: nothing is wrong, but lines after the last saved head, or the missing closing
    line, are vouched for by nobody: the log is being written, or was cut or added to.
    """

    VERIFIED = "verified"
    CHAINED = "chained"
    OPEN = "open"
    TAMPERED = "tampered"


_HEAD: Final = re.compile(r"(?P<seq>0|[1-9][0-9]{0,17}):(?P<sha>[0-9a-f]{64})\Z")


@attrs.frozen
class LogHead:
    """The last line at one instant: its number from 1 and the SHA-256 of its bytes. 0 is empty."""

    seq: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            AuditError: not of the form NUMBER:64 hex digits.
        """
        match = _HEAD.match(text.strip())
        if match is None:
            raise AuditError(f"{text[:80]!r} is not a log head (NUMBER:64 hex digits)")
        return cls(int(match["seq"]), match["sha"])


@attrs.frozen(kw_only=True)
class Fault:
    """One thing wrong: the line from 1 (0 for the log as a whole) and what it is."""

    line: int
    problem: str


@attrs.frozen(kw_only=True)
class Verification:
    """What a log proves about itself."""

    status: LogStatus
    events: int
    head: LogHead
    faults: tuple[Fault, ...]
    heads_found: int

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        faults: list[Json] = [{"line": f.line, "problem": f.problem} for f in self.faults]
        return {
            "status": str(self.status),
            "events": self.events,
            "head": str(self.head),
            "faults": faults,
            "heads_found": self.heads_found,
        }


def verify_log(path: Path, heads: Iterable[LogHead] = ()) -> Verification:
    """Verify the log at *path* against itself and against heads that were saved elsewhere.

    Raises:
        AuditError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AuditError(f"the log cannot be read: {error}") from error
    torn = bool(content) and not content.endswith(b"\n")
    lines = content.split(b"\n")
    if not torn:
        lines.pop()
    found = verify_lines(lines[:-1] if torn else lines, tuple(heads))
    if not torn:
        return found
    fault = Fault(line=len(lines), problem="the last line is torn: it has no line feed")
    return attrs.evolve(found, status=LogStatus.TAMPERED, faults=(*found.faults, fault))


def verify_lines(lines: Sequence[bytes], heads: Sequence[LogHead] = ()) -> Verification:
    """Verify lines without their line feeds. Never raises."""
    faults: list[Fault] = []
    digests = [GENESIS]
    closed = False
    for number, line in enumerate(lines, start=1):
        record, problem = _check_line(line, number, digests[-1])
        if problem:
            faults.append(Fault(line=number, problem=problem))
        closed = record is not None and record.get("type") == EventType.LOG_CLOSED
        digests.append(hashlib.sha256(line).hexdigest())
    for head in heads:
        if head.seq >= len(digests):
            cut = f"the log was cut: a saved head is line {head.seq}, the log has {len(lines)}"
            faults.append(Fault(line=0, problem=cut))
        elif digests[head.seq] != head.sha256:
            faults.append(Fault(line=head.seq, problem="is not the line of a saved head"))
    return Verification(
        status=LogStatus.TAMPERED if faults else _whole(len(lines), heads, closed=closed),
        events=len(lines),
        head=LogHead(len(lines), digests[-1]),
        faults=tuple(faults),
        heads_found=len(heads) if not faults else 0,
    )


def _whole(lines: int, heads: Sequence[LogHead], *, closed: bool) -> LogStatus:
    """What a log without faults proves. The chain has no key: whoever can write may add to it."""
    if any(head.seq == lines for head in heads):
        return LogStatus.VERIFIED
    return LogStatus.CHAINED if closed and not heads else LogStatus.OPEN


def _check_line(line: bytes, number: int, prev: str) -> tuple[dict[str, Json] | None, str | None]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None, "is not JSON"
    if not isinstance(record, dict):
        return None, "is not an object"
    if not _is_canonical(record, line):
        return record, "is not in canonical form: its bytes were edited"
    if record.get("seq") is True or record.get("seq") != number:
        return record, f"has number {record.get('seq')!r}: a line was deleted, added or moved"
    if record.get("prev") != prev:
        return record, "does not follow from the line before: one of the two was edited or moved"
    return record, None


def _is_canonical(record: dict[str, Json], line: bytes) -> bool:
    try:
        return orjson.dumps(record, option=orjson.OPT_SORT_KEYS) == line
    except TypeError:
        # Nested deeper than any line of ours: readable, but not written by a log.
        return False
