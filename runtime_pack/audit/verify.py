"""Verify a log: lines are canonical, numbered and chained, and what was kept of it is in it.

What each part shows: the chain, an edited, deleted, inserted or moved line, to anyone; signed
checkpoints, that who wrote it had the key; a head or checkpoint kept elsewhere, that the end was
not cut off, which neither can show by itself. Trusted keys come from outside, never from the log.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Final, Self

import orjson

from runtime_pack.audit.files import (
    Checkpoints,
    older_segments,
    read_checkpoints,
    read_lines,
    read_tombstone,
)
from runtime_pack.audit.note import (
    SignedNote,
    Tombstone,
    VerifyKey,
    is_of_key,
    key_change_text,
)
from runtime_pack.audit.tree import Frontier, leaf_hash
from runtime_pack.errors import AuditError
from runtime_pack.events import EventType
from runtime_pack.inner import frozen, inner
from runtime_pack.messages import Json

__all__ = (
    "GENESIS",
    "Beginning",
    "Fault",
    "LogHead",
    "LogStatus",
    "Verification",
    "Walk",
    "beginning_of",
    "begun",
    "verify_lines",
    "verify_log",
)

GENESIS: Final = "0" * 64
"""`prev` of the first line."""

_MAX_FAULTS: Final = 1000
_MAX_KEY_CHANGES: Final = 1000
_TRIES: Final = 5
_SAYS_KEY: Final = (EventType.LOG_OPENED, EventType.LOG_CONTINUED)
# What the writer adds when it is done: that the file is full, and that it closes.
_BOOKKEEPING: Final = (EventType.LOG_CONTINUED, EventType.LOG_CLOSED)
_MAX_BOOKKEEPING: Final = 2
_IN_OPENING: Final = (EventType.LOG_OPENED, EventType.LOG_RECOVERED)


class LogStatus(StrEnum):
    """The outcome of a verification.

    `verified`: every line follows, and a head or checkpoint kept elsewhere is the last line, or the
    one before the closing line (and before the first line of a new file, where it closes in one).
    `signed`: every line to a closing line is under a checkpoint of a trusted key; nothing was kept
    elsewhere, so that it was put back to an earlier closing line cannot be excluded. `chained`:
    every line follows to a closing line, and neither key nor head was given, so an end that was
    cut off or added cannot be excluded. `open`: nothing is wrong, but lines after the last saved
    head or checkpoint, or the missing closing line, are vouched for by nobody: the log is being
    written, or was cut or added to.
    """

    VERIFIED = "verified"
    SIGNED = "signed"
    CHAINED = "chained"
    OPEN = "open"
    TAMPERED = "tampered"


_HEAD: Final = re.compile(r"(?P<seq>0|[1-9][0-9]{0,17}):(?P<sha>[0-9a-f]{64})\Z")


@frozen
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


@frozen(kw_only=True)
class Fault:
    """One thing wrong: the line from 1 (0 for the log as a whole) and what it is."""

    line: int
    problem: str


@frozen(kw_only=True)
class Verification:
    """What a log proves about itself.

    Attributes:
        events: lines that are there; with *removed* those that there were.
        signed: how many lines are under a checkpoint by a trusted key.
        root: the Merkle root over all lines, in base64; None where no checkpoint asks for it.
    """

    status: LogStatus
    events: int
    head: LogHead
    faults: tuple[Fault, ...]
    heads_found: int
    checkpoints: int = 0
    signed: int = 0
    segments: int = 1
    removed: int = 0
    root: str | None = None

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        faults: list[Json] = [{"line": f.line, "problem": f.problem} for f in self.faults]
        return {
            "status": str(self.status),
            "events": self.events,
            "head": str(self.head),
            "faults": faults,
            "heads_found": self.heads_found,
            "checkpoints": self.checkpoints,
            "signed": self.signed,
            "segments": self.segments,
            "removed": self.removed,
            "root": self.root,
        }


@frozen(kw_only=True)
class Beginning:
    """What stands before the first line of a file: the last line before it, and the tree to there.

    `peaks` is None where the tree is not known.
    """

    head: LogHead = LogHead(0, GENESIS)
    peaks: tuple[bytes, ...] | None = ()

    def frontier(self) -> Frontier | None:
        """The tree to go on with."""
        if self.peaks is None or len(self.peaks) != self.head.seq.bit_count():
            return None
        return Frontier(self.head.seq, self.peaks)


def beginning_of(first_line: bytes) -> Beginning:
    """What the first line of a file says it continues; the beginning of all where it says nothing."""
    record, _ = _read(first_line)
    if record is None or record.get("type") != EventType.LOG_CONTINUED:
        return Beginning()
    seq, prev, body = record.get("seq"), record.get("prev"), record.get("object")
    if (
        type(seq) is not int
        or seq < 1
        or not isinstance(prev, str)
        or not isinstance(body, Mapping)
    ):
        return Beginning()
    return Beginning(head=LogHead(seq - 1, prev), peaks=_peaks(body.get("frontier")))


def _peaks(value: Json) -> tuple[bytes, ...] | None:
    if not isinstance(value, list):
        return None
    try:
        peaks = tuple(bytes.fromhex(str(item)) for item in value)
    except ValueError:
        return None
    return peaks if all(len(peak) == 32 for peak in peaks) else None


@inner
class _KeyChange:
    """A change of keys as a line tells it; whether it is signed has to be looked at."""

    seq: int
    prev: str
    body: Mapping[str, Json]


class Walk:
    """Goes through the lines of a log, one file after the other, and remembers what is asked for.

    `digests` and `roots` hold the line's digest and the root at the numbers that are wanted; roots
    are made only if some are.
    """

    def __init__(
        self,
        beginning: Beginning,
        *,
        heads: Collection[int] = (),
        sizes: Collection[int] = (),
        grow: bool = False,
    ) -> None:
        self.seq, self.prev = beginning.head.seq, beginning.head.sha256
        self.frontier = beginning.frontier() if sizes or grow else None
        self.faults: list[Fault] = []
        self.closed = self.opened_with_key = self.past_opening = False
        self.key_changes: list[_KeyChange] = []
        self.last_id = ""
        self.origins: set[str] = set()
        self._settled = beginning.head.seq
        self._heads, self._sizes = frozenset(heads), frozenset(sizes)
        self.digests: dict[int, str] = {}
        self.roots: dict[int, bytes] = {}
        self._keep()

    def take(self, line: bytes) -> None:
        """The next line, without its line feed."""
        number = self.seq + 1
        record, problem = _check_line(line, number, self.prev)
        if problem and len(self.faults) < _MAX_FAULTS:
            self.faults.append(Fault(line=number, problem=problem))
        if record is not None:
            self._note(record, number)
        self.seq, self.prev = number, hashlib.sha256(line).hexdigest()
        if self.frontier is not None:
            self.frontier.add(leaf_hash(line))
        self._keep()

    def _note(self, record: Mapping[str, Json], number: int) -> None:
        kind, body = record.get("type"), record.get("object")
        self.closed = kind == EventType.LOG_CLOSED
        self.last_id = str(record.get("id"))
        if kind not in _BOOKKEEPING:
            self._settled = number
        if kind in _SAYS_KEY and isinstance(body, Mapping):
            self.opened_with_key |= "key" in body
            # Two are enough to say that there is more than one.
            if "origin" in body and len(self.origins) < 2:
                self.origins.add(str(body["origin"]))
        if kind not in _IN_OPENING:
            self.past_opening = True
        if kind == EventType.LOG_KEY_CHANGED and isinstance(body, Mapping):
            self._note_key(_KeyChange(number, self.prev, body))

    def is_end(self, seq: int) -> bool:
        """Whether line *seq* is the last one, but for what the writer adds when it closes."""
        if seq == self.seq:
            return True
        return self.closed and max(self._settled, self.seq - _MAX_BOOKKEEPING) <= seq < self.seq

    def _note_key(self, change: _KeyChange) -> None:
        if len(self.key_changes) < _MAX_KEY_CHANGES:
            self.key_changes.append(change)
        elif len(self.faults) < _MAX_FAULTS:
            self.faults.append(Fault(line=change.seq, problem="is one change of keys too many"))

    def _keep(self) -> None:
        if self.seq in self._heads:
            self.digests[self.seq] = self.prev
        if self.seq in self._sizes and self.frontier is not None:
            self.roots[self.seq] = self.frontier.root()


def verify_log(
    path: Path | str,
    heads: Iterable[LogHead] = (),
    *,
    keys: Iterable[VerifyKey] = (),
    kept: Iterable[SignedNote] = (),
    origin: str | None = None,
) -> Verification:
    """Verify the log at *path*, with its older segments and its checkpoints.

    Args:
        path: the file that is written; its neighbours are found by its name.
        heads: that were saved elsewhere.
        keys: whose checkpoints are believed.
        kept: checkpoints that were saved elsewhere. Under *keys* they must be signed by them.
        origin: what the log is to be called, if it says what it is called.

    Raises:
        AuditError: a file cannot be read.
    """
    log = Path(path)
    given = (log, tuple(heads), tuple(keys), tuple(kept), origin)
    return _until_still(lambda: _files_of(log), lambda: _Verifier(*given).verify())


def _files_of(path: Path) -> tuple[tuple[str, int], ...]:
    """The names of a log's files, and which file each is."""
    names = (*(older for _, older in older_segments(path)), path)
    return tuple((name.name, name.stat().st_ino) for name in names if name.exists())


def _until_still(files: Callable[[], object], verify: Callable[[], Verification]) -> Verification:
    """Verify again while the writer goes on in new files meanwhile: lines would seem to be missing."""
    for _ in range(_TRIES):
        before, found = files(), verify()
        if found.status is not LogStatus.TAMPERED or files() == before:
            return found
    return verify()


class _Verifier:
    """One verification of one log."""

    def __init__(
        self,
        path: Path,
        heads: tuple[LogHead, ...],
        keys: tuple[VerifyKey, ...],
        kept: tuple[SignedNote, ...],
        origin: str | None,
    ) -> None:
        self._path, self._heads, self._keys, self._kept = path, heads, keys, kept
        self._origin = origin
        self._origins: frozenset[str] = frozenset()
        self._reigns: Sequence[tuple[int, tuple[VerifyKey, ...]]] = ((0, keys),)
        self._faults: list[Fault] = []
        self._beside = self._checkpoints()
        self._stone = read_tombstone(path)
        self._signed = 0

    def _checkpoints(self) -> Checkpoints:
        try:
            return read_checkpoints(self._path)
        except AuditError as error:
            self._fault(f"what stands beside it are no checkpoints: {error}")
            return Checkpoints()

    def _fault(self, problem: str, line: int = 0) -> None:
        self._faults.append(Fault(line=line, problem=problem))

    def verify(self) -> Verification:
        """Go through all files, then hold what was kept against them."""
        files = (*(path for _, path in older_segments(self._path)), self._path)
        notes = (*self._beside.notes, *self._kept)
        start, rows = begun(files[0])
        opening = tuple(islice(rows, 1))
        rows = chain(opening, rows)
        gone = set() if self._stone is None else {Tombstone.parse(self._stone.text).size}
        walk = Walk(
            start,
            heads=gone | {head.seq for head in self._heads},
            sizes=gone | {note.checkpoint.size for note in notes},
        )
        self._walk_file(walk, rows)
        for file in files[1:]:
            here, rows = begun(file)
            if here.head.seq == 0:
                self._fault(f"{file.name} does not say which file it continues", walk.seq + 1)
            self._walk_file(walk, rows)
        self._faults = [*walk.faults, *self._faults]
        self._reigns = self._reigns_of(walk)
        self._origins = self._origins_of(walk)
        self._hold_beginning(opening[0][0] if opening else b"", start)
        self._hold_stone(walk, start)
        self._hold_heads(walk)
        self._hold_notes(walk, start)
        return Verification(
            status=self._status(walk),
            events=walk.seq - start.head.seq,
            head=LogHead(walk.seq, walk.prev),
            faults=tuple(self._faults),
            heads_found=0 if self._faults else len(self._heads) + len(self._kept),
            checkpoints=len(self._beside.notes),
            signed=0 if self._faults else self._signed,
            segments=len(files),
            removed=start.head.seq,
            root=None if walk.frontier is None else base64.b64encode(walk.frontier.root()).decode(),
        )

    def _walk_file(self, walk: Walk, rows: Iterable[tuple[bytes, bool]]) -> None:
        for line, is_whole in rows:
            if is_whole:
                walk.take(line)
            else:
                self._fault("the last line is torn: it has no line feed", walk.seq + 1)

    def _hold_stone(self, walk: Walk, start: Beginning) -> None:
        """What is missing at the beginning is accounted for by a tombstone, and by nothing else.

        Its root is that of the lines that are left as well, so that the tree that the first of them
        goes on with is the right one. A crash may have left files that it says were deleted.
        """
        if start.head.seq == 0:
            return
        missing, note = f"lines 1 to {start.head.seq} are missing", self._stone
        if note is None:
            self._fault(f"{missing}, and no tombstone says that they were deleted on purpose")
            return
        stone = Tombstone.parse(note.text)
        found = walk.digests.get(stone.size), walk.roots.get(stone.size)
        if stone.origin not in self._origins:
            self._fault(f"{missing}, and the tombstone is of another log, {stone.origin}")
        elif stone.size < start.head.seq or found != (stone.head, stone.root):
            self._fault(f"{missing}, and the tombstone is about others")
        elif self._keys and not _is_by(note, self._holders()):
            self._fault(f"{missing}, and the tombstone is by no key that is trusted at the end")

    def _holders(self) -> tuple[VerifyKey, ...]:
        """Who decides what is kept of the log: the trusted key that signs it now, no former one."""
        holds, last = self._reigns[-1][1], self._beside.notes[-1:]
        return tuple(key for key in holds if not last or _is_by(last[0], [key]))

    def _hold_beginning(self, first: bytes, start: Beginning) -> None:
        """A first line that continues something says what, and with which tree.

        Without this one could leave out the tree, and no checkpoint would be held against the lines.
        """
        record, _ = _read(first)
        if record is None or record.get("type") != EventType.LOG_CONTINUED:
            return
        if start.head.seq == 0 or start.frontier() is None:
            self._fault("continues no file, or does not hold the tree of it", start.head.seq + 1)

    def _hold_heads(self, walk: Walk) -> None:
        for head in self._heads:
            if head.seq > walk.seq:
                self._fault(
                    f"the log was cut: a saved head is line {head.seq}, the log has {walk.seq}"
                )
            elif head.seq in walk.digests and walk.digests[head.seq] != head.sha256:
                self._fault("is not the line of a saved head", head.seq)

    def _hold_notes(self, walk: Walk, start: Beginning) -> None:
        """Every checkpoint is a root of this log; under keys, by the key that held at its size."""
        last = 0
        for note in self._beside.notes:
            size = note.checkpoint.size
            if size < last:
                self._fault(f"a checkpoint of {size} lines stands after one of {last}")
            last = max(last, size)
        for note in (*self._beside.notes, *self._kept):
            self._hold_note(note, walk, start)
        if self._keys and self._lacks_checkpoints(walk):
            self._fault("it was signed when it was written, and its checkpoints are gone")

    def _lacks_checkpoints(self, walk: Walk) -> bool:
        """Whether it says that it was signed, and nothing signed stands beside it."""
        return walk.opened_with_key and walk.past_opening and not self._beside.notes

    def _hold_note(self, note: SignedNote, walk: Walk, start: Beginning) -> None:
        said = note.checkpoint
        if said.origin not in self._origins:
            self._fault(f"the checkpoint over {said.size} lines is of another log, {said.origin}")
            return
        if said.size > walk.seq:
            self._fault(
                f"the log was cut: a checkpoint is over {said.size} lines, the log has {walk.seq}"
            )
            return
        # Lines before the first one that is left are what a tombstone accounts for.
        known = said.size in walk.roots or said.size >= start.head.seq
        if known and walk.roots.get(said.size) != said.root:
            self._fault(
                "is not the line that a checkpoint was made at, or one before was edited", said.size
            )
            return
        # One over lines that were deleted is held against nothing, so that it proves nothing either.
        if not self._keys or not known:
            return
        holds = next(keys for since, keys in reversed(self._reigns) if since <= said.size)
        holds = tuple(key for key in holds if is_of_key(said.origin, key.name))
        if not _is_by(note, holds):
            self._fault(f"the checkpoint over {said.size} lines is by no key that is trusted there")
        elif said.size in walk.roots:
            self._signed = max(self._signed, said.size)

    def _origins_of(self, walk: Walk) -> frozenset[str]:
        """What the log is called: by its lines, or by its first checkpoint where they say nothing.

        A log has one name. Else another one, signed by the same key, could stand in its place.
        """
        said = frozenset(walk.origins)
        if len(said) > 1:
            self._fault("its lines are of several logs")
        if self._origin is not None and said and said != {self._origin}:
            self._fault(f"it is the log {', '.join(sorted(said))}, not {self._origin}")
        return said or frozenset(
            n.checkpoint.origin for n in self._beside.notes[:1] or self._kept[:1]
        )

    def _reigns_of(self, walk: Walk) -> list[tuple[int, tuple[VerifyKey, ...]]]:
        """From which line on which keys are believed."""
        from runtime_pack.audit.keys import is_signed

        reigns = [(0, self._keys)]
        if not self._keys:
            return reigns
        for change in walk.key_changes:
            now = reigns[-1][1]
            try:
                old = VerifyKey.parse(str(change.body.get("old")))
                new = VerifyKey.parse(str(change.body.get("new")))
                raw = base64.b64decode(str(change.body.get("signature")), validate=True)
            except (AuditError, ValueError):
                self._fault("a change of keys is not of its form", change.seq)
                continue
            text = key_change_text(old.name, change.seq, change.prev, new)
            if old not in now or new.name != old.name or not is_signed(old, text, raw):
                self._fault("a change of keys is signed by no key that is trusted", change.seq)
                continue
            reigns.append((change.seq, (*(key for key in now if key != old), new)))
        return reigns

    def _status(self, walk: Walk) -> LogStatus:
        """What a log without faults proves. The chain has no key: who can write may add to it."""
        if self._faults:
            return LogStatus.TAMPERED
        outside = {h.seq for h in self._heads}
        outside |= {n.checkpoint.size for n in self._kept if n.checkpoint.size in walk.roots}
        if any(map(walk.is_end, outside)):
            return LogStatus.VERIFIED
        if self._heads or self._kept or not walk.closed:
            return LogStatus.OPEN
        if not self._keys:
            return LogStatus.CHAINED
        return LogStatus.SIGNED if self._signed == walk.seq else LogStatus.OPEN


def begun(path: Path) -> tuple[Beginning, Iterable[tuple[bytes, bool]]]:
    """What stands before a file of a log, and its lines as `read_lines` gives them.

    Raises:
        AuditError: the file cannot be read; so may the lines.
    """
    rows = read_lines(path)
    ahead = tuple(islice(rows, 1))
    return beginning_of(ahead[0][0] if ahead else b""), chain(ahead, rows)


def _is_by(note: SignedNote, keys: Iterable[VerifyKey]) -> bool:
    from runtime_pack.audit.keys import signed_by

    return signed_by(note, keys) is not None


def verify_lines(lines: Sequence[bytes], heads: Sequence[LogHead] = ()) -> Verification:
    """Verify lines without their line feeds against heads. Never raises."""
    walk = Walk(Beginning(), heads={head.seq for head in heads})
    for line in lines:
        walk.take(line)
    faults = list(walk.faults)
    for head in heads:
        if head.seq > walk.seq:
            cut = f"the log was cut: a saved head is line {head.seq}, the log has {walk.seq}"
            faults.append(Fault(line=0, problem=cut))
        elif walk.digests[head.seq] != head.sha256:
            faults.append(Fault(line=head.seq, problem="is not the line of a saved head"))
    status = LogStatus.CHAINED if walk.closed and not heads else LogStatus.OPEN
    if any(walk.is_end(head.seq) for head in heads):
        status = LogStatus.VERIFIED
    return Verification(
        status=LogStatus.TAMPERED if faults else status,
        events=walk.seq,
        head=LogHead(walk.seq, walk.prev),
        faults=tuple(faults),
        heads_found=len(heads) if not faults else 0,
    )


def _read(line: bytes) -> tuple[dict[str, Json] | None, str | None]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None, "is not JSON"
    return (record, None) if isinstance(record, dict) else (None, "is not an object")


def _check_line(line: bytes, number: int, prev: str) -> tuple[dict[str, Json] | None, str | None]:
    record, problem = _read(line)
    if record is None:
        return None, problem
    if not _is_canonical(record, line):
        return record, "is not in canonical form: its bytes were edited"
    if record.get("seq") is True or record.get("seq") != number:
        return record, f"has number {record.get('seq')!r:.80}: a line was deleted, added or moved"
    if record.get("prev") != prev:
        return record, "does not follow from the line before: one of the two was edited or moved"
    return record, None


def _is_canonical(record: dict[str, Json], line: bytes) -> bool:
    try:
        return orjson.dumps(record, option=orjson.OPT_SORT_KEYS) == line
    except TypeError:
        # Nested deeper than any line of ours: readable, but not written by a log.
        return False
