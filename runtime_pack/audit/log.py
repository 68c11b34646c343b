"""The writer of a log: one process, one log, one chain.

Lines are collected and written by `flush`; the guard flushes before anything runs that a line
speaks of. A write that fails raises, and the log takes no more lines: what cannot be recorded
must not happen.

With a signer, the log also grows a Merkle tree and signs it: after so many lines or seconds, at the
end of a run and of a file, when it is opened and closed. The lines are on the disk before the
checkpoint that vouches for them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

import attrs
import orjson

from runtime_pack.audit.files import (
    Checkpoints,
    append_durably,
    checkpoints_path,
    next_segment,
    older_segments,
    read_checkpoints,
    read_file,
    read_tombstone,
    replace_durably,
    sync_folder,
    tombstone_path,
)
from runtime_pack.audit.note import SignedNote, checked_name, is_of_key, key_change_text
from runtime_pack.audit.tree import leaf_hash
from runtime_pack.audit.verify import LogHead, Walk, beginning_of
from runtime_pack.errors import AuditError, LogLocked
from runtime_pack.events import EVENT_ROWS, Entry, Event, EventCode
from runtime_pack.given_files import MAX_LINE_BYTES
from runtime_pack.messages import Json

if TYPE_CHECKING:
    from runtime_pack.audit.keys import LogSigner

__all__ = ("CHECKPOINT_LINES", "CHECKPOINT_SECONDS", "SEGMENT_BYTES", "SEGMENT_SECONDS", "AuditLog")

_MICROSECONDS: Final = 1_000_000
_NEVER: Final = sys.maxsize
# The counter of an id has three hexadecimal digits.
_MOST_COUNTED: Final = 0xFFF
_NUMBERED: Final = 64
_NUMBERS: Final = tuple([f"{number:03x}" for number in range(_NUMBERED)])
# RFC 8785 section 3.2.2.3: numbers are doubles, which are exact to here.
_MOST_EXACT: Final = (1 << 53) - 1

SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""A file of this size is full."""

SEGMENT_SECONDS: Final = 86_400
"""A file is full after this time, whatever its size."""

CHECKPOINT_LINES: Final = 1_000
"""After so many lines a checkpoint is due."""

CHECKPOINT_SECONDS: Final = 60
"""After so long a checkpoint is due: with the next line that is written, or by a timer of the event loop."""

# The words of each code as plain strings, which are encoded faster than enum members.
_WORDS: Final = {
    code: (str(row.type), str(code), str(row.severity)) for code, row in EVENT_ROWS.items()
}
# The same as they stand in a line: what opens it, its severity, and what closes it.
_PARTS: Final = {
    code: (
        f'{{"code":"{word}"',
        f'"severity":"{severity}","subject":',
        f'","type":"{kind}","v":1}}',
    )
    for code, (kind, word, severity) in _WORDS.items()
}


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It does not come."""
        ...


Later: TypeAlias = Callable[[float, Callable[[], None]], "Timer | None"]
"""Calls something after so many seconds; None where nothing does."""


class AuditLog:
    """An open log. Close it (or leave the `with` block) to write its last line.

    The file is created with mode 0600 and locked: one writer per log. An existing log must
    verify; a torn last line is moved to `<name>.torn-<n>` and recorded. A file that is full gets a
    number behind its name, and the log goes on in a new one. What is removed or replaced while it is
    written is found before the next write.

    Lines behind the last checkpoint are what a crash left, or were added by who has no key: how many
    there are stands in `log:recovered` (`unsigned_lines`) before a checkpoint vouches for them.

    Args:
        path: the file that is written.
        now: the time; the system's if None.
        signer: signs checkpoints, which stand in `<name>.checkpoints`.
        origin: what the log is called in its checkpoints: the signer's name, or one under it where
            the key signs several logs. Of two logs of one origin, one can be put in the other's place.
        segment_bytes: how large a file may get before the log goes on in a new one.
        segment_seconds: how old.
        later: calls something after so many seconds; by the running event loop if None. It signs a log
            that nothing is written to any more.

    Raises:
        LogLocked: another process writes this log.
        AuditError: the file cannot be opened, its chain is broken, a checkpoint is not of this log
            or by another key, the log was signed and there is no signer, or has lines and no
            checkpoints and there is one.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        now: Callable[[], datetime] | None = None,
        signer: LogSigner | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: int = SEGMENT_SECONDS,
        origin: str | None = None,
        later: Later | None = None,
    ) -> None:
        # Absolute: it is looked for before each write, also from another working folder.
        self.path = Path(path).absolute()
        self._name = str(self.path)
        self._now = now
        self._signer = signer
        self._segment_bytes, self._segment_seconds = segment_bytes, segment_seconds
        self._buffer: list[bytes] = []
        self._failed = False
        self._written = 0
        self._writer = secrets.token_hex(8)
        # The last 62 bits of a version 7 UUID are the writer's, its first 60 time and a counter.
        self._id_tail = f"{0x8000 | secrets.randbits(14):04x}-{secrets.randbits(48):012x}"
        self._id_time = self._id_count = 0
        self._id_head = ""
        self._second = -1
        self._prefix = ""
        # What is due at which line or second; nothing of it is ever due in a log without signer.
        self._due_line = self._due_second = _NEVER
        self._signed_second = -_NEVER
        self._checkpoints = Checkpoints()
        self._origin = _checked_origin(signer, origin)
        self._later = later or _by_the_loop
        self._timer: Timer | None = None
        self._make_folder()
        try:
            self._fd = os.open(
                self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise AuditError(f"the log cannot be opened: {error}") from error
        try:
            self._lock()
            torn = self._take_up()
            self._start(torn)
        except BaseException:
            os.close(self._fd)
            raise

    def _make_folder(self) -> None:
        """The folder of the log, for its owner only; those above it are there, or the path is mistyped."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise AuditError(f"the folder {folder} of the log cannot be made: {error}") from error

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise AuditError(f"{self.path} is not a regular file")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogLocked(f"another process writes {self.path}") from error
        # Between opening and locking, the writer before may have gone on in a new file.
        try:
            same = self.path.stat().st_ino == os.fstat(self._fd).st_ino
        except OSError:
            same = False
        if not same:
            raise LogLocked(f"another process has just gone on with {self.path}")
        self._file = _file_of(self._fd)

    def _take_up(self) -> str | None:
        """Continue the chain of an existing file; the name of the file a torn tail was moved to."""
        self._checkpoints = self._known_checkpoints()
        if older_segments(self.path) and os.fstat(self._fd).st_size == 0:
            raise AuditError(f"{self.path} is gone, and older files of the log are there")
        content = self._content()
        end = content.rfind(b"\n") + 1
        lines = content[:end].split(b"\n")[:-1]
        last = self._checkpoints.notes[-1].checkpoint if self._checkpoints.notes else None
        walk = Walk(
            beginning_of(lines[0] if lines else b""),
            sizes=() if last is None else (last.size,),
            grow=self._signer is not None,
        )
        for line in lines:
            walk.take(line)
        if walk.faults:
            fault = walk.faults[0]
            raise AuditError(f"{self.path} is broken at line {fault.line}: {fault.problem}")
        if last is not None and walk.roots.get(last.size) != last.root:
            raise AuditError(
                f"{self.path} is not the log of its last checkpoint: it was cut or edited"
            )
        self._check_signer(walk)
        self._seq, self._prev, self._tree = walk.seq, walk.prev, walk.frontier
        self._id_time = _time_of(walk.last_id) + 1
        self._bytes = end
        self._unsigned = (
            0 if self._signer is None else walk.seq - (0 if last is None else last.size)
        )
        self._opened_second = self._first_second(lines)
        if end == len(content):
            return None
        return self._move_aside(content[end:], end)

    def _known_checkpoints(self) -> Checkpoints:
        """The checkpoints of this log.

        Raises:
            AuditError: there are some, and no signer.
        """
        found = read_checkpoints(self.path)
        if found.notes and self._signer is None:
            raise AuditError(f"{self.path} is a signed log: it is gone on with by its signer only")
        if found.notes:
            there = found.notes[-1].checkpoint.origin
            if self._origin is not None and self._origin != there:
                raise AuditError(f"{self.path} is the log {there}, not {self._origin}")
            self._origin = there
        return found

    def _check_signer(self, walk: Walk) -> None:
        """The signer is the one whose turn it is.

        Raises:
            AuditError: it is another one, or the checkpoints are gone.
        """
        signer = self._signer
        bare = walk.past_opening and not self._checkpoints.notes
        if walk.opened_with_key and bare:
            raise AuditError(f"{self.path} was signed, and its checkpoints are gone")
        if signer is None:
            return
        if walk.frontier is None or bare:
            # That it says nothing of a key is no sign that it had none: who edits it leaves it out.
            raise AuditError(f"{self.path} was not signed from its first line on: begin a new log")
        if walk.key_changes:
            heir = walk.key_changes[-1].body.get("new")
            if heir != str(signer.key):
                raise AuditError(f"the key of {self.path} was changed: use the new one")
        if self._checkpoints.notes:
            from runtime_pack.audit.keys import signed_by

            if signed_by(self._checkpoints.notes[-1], [signer.key]) is None:
                raise AuditError(f"the checkpoints of {self.path} are by another key")

    def _first_second(self, lines: list[bytes]) -> int:
        """When the file was begun, by its first line; now, for a new one."""
        if not lines:
            return self._time()[0]
        try:
            at = datetime.fromisoformat(str(orjson.loads(lines[0]).get("ts")))
            return int(at.timestamp())
        except ValueError:
            return self._time()[0]

    def _content(self) -> bytes:
        return read_file(self.path)

    def _move_aside(self, tail: bytes, end: int) -> str:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.torn-{number}")).exists():
            number += 1
        try:
            aside.write_bytes(tail)
            os.truncate(self._fd, end)
        except OSError as error:
            raise AuditError(f"the torn line cannot be moved aside: {error}") from error
        return aside.name

    def _start(self, torn: str | None) -> None:
        opened: dict[str, Json] = {"writer": self._writer, "pid": os.getpid()}
        where: dict[str, Json] = {"host": os.uname().nodename, "executor": self._writer}
        if self._signer is not None:
            opened["key"] = str(self._signer.key)
            opened["origin"] = self._origin or self._signer.name
        moved: dict[str, Json] = {} if torn is None else {"moved_to": torn}
        if self._unsigned:
            moved["unsigned_lines"] = self._unsigned
        if moved:
            self.append(Event(code=EventCode.LOG003E, subject={}, object=moved))
        self.append(Event(code=EventCode.LOG001O, subject=where, object=opened))
        self.flush()
        # Also closes the time in which a log that says it is signed has no checkpoint.
        self.checkpoint()

    @property
    def head(self) -> LogHead:
        """The last line taken, written or not."""
        return LogHead(self._seq, self._prev)

    def append(self, event: Event, beside: Mapping[str, Json] | None = None) -> None:
        """Take one event into the chain; it is in the file after the next `flush`.

        *beside* are fields of the line that stand beside the event's own, the same for all of a run.

        Raises:
            AuditError: the log is closed or has failed, or the event cannot be encoded, is longer than
                a line may be that is read again, or holds a float: its digits would differ between languages, and so the bytes that are hashed.
        """
        for part in (event.subject, event.object, event.decision):
            if _holds_float(part):
                raise AuditError("an event holds a float: use whole numbers of a smaller unit")
        if _holds_large((event.subject, event.object, event.decision)):
            event = _in_text(event)
        self.take(event, beside)

    def take(self, event: Event | Entry, beside: Mapping[str, Json] | None = None) -> None:
        """`append` for events that hold no float by their making, as those of `records` do.

        Raises:
            AuditError: as for `append`.
        """
        if self._failed:
            raise AuditError("the log is closed or has failed")
        kind, code, severity = _WORDS[event.code]
        seq = self._seq + 1
        line_id, time_text = self._stamp()
        record: dict[str, object] = {
            "v": 1,
            "id": line_id,
            "seq": seq,
            "prev": self._prev,
            "ts": time_text,
            "type": kind,
            "code": code,
            "severity": severity,
            "subject": event.subject,
            "object": event.object,
        }
        if event.decision is not None:
            record["decision"] = event.decision
        if event.key:
            record["key"] = event.key
        if beside is not None:
            record = {**beside, **record}
        line = _encode(record)
        if len(line) > MAX_LINE_BYTES:
            raise AuditError(f"an event takes more than {MAX_LINE_BYTES} bytes: none may")
        self._seq, self._prev = seq, hashlib.sha256(line).hexdigest()
        self._buffer.append(line)
        if self._tree is not None:
            self._tree.add(leaf_hash(line))
            if event.code is EventCode.RUN002O:
                self._due_line = seq

    def take_parts(
        self, code: EventCode, subject: str, body: str, key: str, decision: str = ""
    ) -> None:
        """`take` of an entry whose parts are canonical JSON by their making, as text.

        *subject*, *body* (which is `object`) and *decision*, if there is one, are the objects of those
        names; *key* is letters, digits and `:` or `#`, at least one.

        Raises:
            AuditError: as for `append`.
        """
        if self._failed:
            raise AuditError("the log is closed or has failed")
        front, middle, end = _PARTS[code]
        decided = f',"decision":{decision}' if decision else ""
        seq = self._seq + 1
        line_id, at = self._stamp()
        line = (
            f'{front}{decided},"id":"{line_id}","key":"{key}","object":{body},"prev":"{self._prev}"'
            f',"seq":{seq},{middle}{subject},"ts":"{at}{end}'
        ).encode()
        if len(line) > MAX_LINE_BYTES:
            raise AuditError(f"an event takes more than {MAX_LINE_BYTES} bytes: none may")
        self._seq, self._prev = seq, hashlib.sha256(line).hexdigest()
        self._buffer.append(line)
        if self._tree is not None:
            self._tree.add(leaf_hash(line))

    def _stamp(self) -> tuple[str, str]:
        """The id and the time of the next line.

        The id is a version 7 UUID (RFC 9562): later lines have later ids, also when the clock goes
        back. The time is RFC 3339, UTC, with microseconds.
        """
        if self._now is None:
            at = time.time_ns() // 1000
        else:
            second, microsecond = self._time()
            at = second * _MICROSECONDS + microsecond
        microsecond = at - self._second * _MICROSECONDS
        if not 0 <= microsecond < _MICROSECONDS:
            self._second, microsecond = divmod(at, _MICROSECONDS)
            utc = datetime.fromtimestamp(self._second, UTC)
            self._prefix = utc.strftime("%Y-%m-%dT%H:%M:%S.")
        milliseconds = at // 1000
        count = self._id_count + 1
        if milliseconds > self._id_time or count > _MOST_COUNTED or not self._id_head:
            at = self._id_time = max(milliseconds, self._id_time + (count > _MOST_COUNTED))
            count, self._id_head = 0, f"{at >> 16:08x}-{at & 0xFFFF:04x}-7"
        self._id_count = count
        # Few lines share a millisecond; to write a number to a width takes longer than to look it up.
        number = _NUMBERS[count] if count < _NUMBERED else f"{count:03x}"
        digits = str(microsecond + _MICROSECONDS)
        return f"{self._id_head}{number}-{self._id_tail}", f"{self._prefix}{digits[1:]}Z"

    def _time(self) -> tuple[int, int]:
        """Seconds since the epoch, and the microseconds beyond them."""
        if self._now is None:
            return divmod(time.time_ns() // 1000, _MICROSECONDS)
        now = self._now()
        return int(now.timestamp()), now.microsecond

    def flush(self) -> None:
        """Write what was taken, in one write.

        Raises:
            AuditError: the write failed or was short, this one or an earlier one; the log takes no
                more lines.
        """
        if not self._buffer:
            if self._failed:
                raise AuditError("the log is closed or has failed")
            return
        block = b"\n".join(self._buffer) + b"\n"
        self._buffer.clear()
        try:
            self._check_place()
            written = os.write(self._fd, block)
        except OSError as error:
            self._failed = True
            raise AuditError(f"the log cannot be written: {error}") from error
        if written != len(block):
            self._failed = True
            raise AuditError("the log was written only in part (is the disk full?)")
        self._written = self._seq
        self._bytes += written
        # A clock that was set back makes it due as well: it would not be for as long.
        in_time = self._signed_second <= self._second < self._due_second
        if self._seq >= self._due_line or not in_time:
            self.checkpoint()
        elif self._timer is None and self._signer is not None:
            self._timer = self._later(CHECKPOINT_SECONDS, self._sign_by_time)
        full = self._second - self._opened_second >= self._segment_seconds
        if full or self._bytes >= self._segment_bytes:
            self._go_on_in_a_new_file()

    def _check_place(self) -> None:
        """The file that is written stands under the log's name: else its lines are lost.

        Raises:
            OSError: it was removed, or another one is there.
        """
        # A path object costs as much again, before each write.
        there = os.stat(self._name)  # noqa: PTH116
        if (there.st_ino, there.st_dev) != self._file:
            raise OSError(f"{self._name} is another file by now")

    def mark(self) -> int:
        """The number of the last line taken, for `flush_to`."""
        return self._seq

    def flush_to(self, mark: int) -> None:
        """`flush`, unless the line of that number is in the file already.

        Raises:
            AuditError: as for `flush`.
        """
        if self._written < mark:
            self.flush()

    def sync(self) -> None:
        """Flush, and wait until the data is on the disk.

        Raises:
            AuditError: as for `flush`, or the disk refused.
        """
        self.flush()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._failed = True
            raise AuditError(f"the log cannot be synced: {error}") from error

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> SignedNote | None:
        """Sign what is in the log by now, after it is on the disk; None for a log without signer.

        Raises:
            AuditError: as for `sync`, or the checkpoint could not be written; the log takes no
                more lines.
        """
        signer = self._signer
        if signer is None or self._tree is None:
            return None
        self._stop_timer()
        # Not due again while the lines are written that it is about.
        self._due_line = self._due_second = _NEVER
        self._signed_second = -_NEVER
        self.sync()
        known = self._checkpoints
        note = signer.checkpoint(self._seq, self._tree.root(), self._origin)
        if known.notes[-1:] == (note,):
            return note
        block = f"{note}\n".encode()
        try:
            append_durably(checkpoints_path(self.path), block, known.whole_bytes)
        except OSError as error:
            self._failed = True
            raise AuditError(f"the checkpoint cannot be written: {error}") from error
        self._checkpoints = Checkpoints(notes=(note,), whole_bytes=known.whole_bytes + len(block))
        self._due_line = self._seq + CHECKPOINT_LINES
        self._signed_second = self._time()[0]
        self._due_second = self._signed_second + CHECKPOINT_SECONDS
        return note

    def _sign_by_time(self) -> None:
        """Sign what nobody has signed because no line came since; a failure is that of the next line."""
        self._timer = None
        if not self._failed:
            with contextlib.suppress(AuditError):
                self.checkpoint()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    @property
    def last_checkpoint(self) -> SignedNote | None:
        """The checkpoint that was made last, if there is one: keep it elsewhere."""
        return self._checkpoints.notes[-1] if self._checkpoints.notes else None

    def change_key(self, new: LogSigner) -> None:
        """Let another key sign from here on; the old one signs the change.

        Raises:
            AuditError: the log has no signer, the new one has another name, or as for `checkpoint`.
        """
        old = self._signer
        if old is None or new.name != old.name:
            raise AuditError("only the signer of a log can hand over to another key of its name")
        self.checkpoint()
        self._hand_down(new)
        text = key_change_text(old.name, self._seq + 1, self._prev, new.key)
        body: dict[str, Json] = {
            "old": str(old.key),
            "new": str(new.key),
            "signature": base64.b64encode(old.sign(text)).decode(),
        }
        self.append(Event(code=EventCode.LOG005O, subject={}, object=body))
        self._signer = new
        self.checkpoint()

    def _hand_down(self, new: LogSigner) -> None:
        """The new key vouches for the deletions that the old one did: only its word counts from now on.

        Both signatures stand under the note, so that it holds before the change as after it.
        """
        from runtime_pack.audit.keys import signed_by

        found, old = read_tombstone(self.path), self._signer
        if found is None or old is None:
            return
        if signed_by(found, [old.key]) is None:
            raise AuditError("the tombstone of the log is not by the key that signs it")
        mine = new.note(found.text).signatures
        others = tuple(each for each in found.signatures if each.is_of(old.key))
        note = SignedNote(text=found.text, signatures=(*others, *mine))
        try:
            replace_durably(tombstone_path(self.path), str(note).encode())
        except OSError as error:
            raise AuditError(f"the tombstone cannot be written: {error}") from error

    # ── files ─────────────────────────────────────────────────────────────────────────────────

    def _go_on_in_a_new_file(self) -> None:
        """The full file gets a number; the new one begins with what it continues.

        There is a file under the log's name at every instant, and each of the two is locked.
        """
        self.checkpoint()
        draft = self.path.with_name(f"{self.path.name}.next")
        new = -1
        try:
            full = next_segment(self.path)
            draft.unlink(missing_ok=True)
            new = os.open(
                draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_continuation(new, full.name)
            with contextlib.suppress(FileNotFoundError):
                # Another name of the file, which a writer left that was killed right here.
                full.unlink()
            os.link(self.path, full)
            draft.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            self._failed = True
            if new >= 0:
                os.close(new)
            raise AuditError(f"the log cannot go on in a new file: {error}") from error
        os.close(self._fd)
        self._fd, self._file = new, _file_of(new)
        self.checkpoint()

    def _write_continuation(self, file: int, full: str) -> None:
        """The first line of a new file."""
        self._second = -1
        body: dict[str, Json] = {"former": full, "former_head": str(self.head)}
        if self._signer is not None and self._tree is not None:
            body["key"] = str(self._signer.key)
            body["origin"] = self._origin or self._signer.name
            body["frontier"] = [peak.hex() for peak in self._tree.peaks]
        self.take(Entry(EventCode.LOG004O, {}, body))
        block = self._buffer.pop() + b"\n"
        if os.write(file, block) != len(block):
            raise OSError("written only in part (is the disk full?)")
        os.fdatasync(file)
        self._bytes, self._written, self._opened_second = len(block), self._seq, self._second

    def close(self) -> None:
        """Write the closing line and let go of the file. A second close does nothing."""
        if self._fd < 0:
            return
        self._stop_timer()
        try:
            if not self._failed:
                body: dict[str, Json] = {"writer": self._writer}
                # The closing line is the log's last one: no new file begins behind it.
                self._segment_bytes = self._segment_seconds = _NEVER
                self.append(Event(code=EventCode.LOG002O, subject={}, object=body))
                self.sync()
                self.checkpoint()
        finally:
            self._stop_timer()
            self._failed = True
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _by_the_loop(seconds: float, call: Callable[[], None]) -> Timer | None:
    """By the event loop that runs; without one the next line is what signs."""
    try:
        return asyncio.get_running_loop().call_later(seconds, call)
    except RuntimeError:
        return None


def _checked_origin(signer: LogSigner | None, origin: str | None) -> str | None:
    """The name of a log, under that of its signer.

    Raises:
        AuditError: there is no signer, or it signs no log of that name.
    """
    if origin is None:
        return None
    if signer is None or not is_of_key(checked_name(origin), signer.name):
        raise AuditError(f"a log {origin} is signed by a key of that name, or of one above it")
    return origin


def _encode(record: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # A lone surrogate in a name that a model or a page wrote: escaped, never dropped.
        try:
            return orjson.dumps(_escaped(record), option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise AuditError(f"an event cannot be encoded: {error}") from error


def _holds_float(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_float(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_float(item) for item in value)
    return isinstance(value, float)


def _holds_large(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_large(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_large(item) for item in value)
    return isinstance(value, int) and not -_MOST_EXACT <= value <= _MOST_EXACT


def _file_of(handle: int) -> tuple[int, int]:
    """Which file it is."""
    found = os.fstat(handle)
    return found.st_ino, found.st_dev


def _in_text(event: Event) -> Event:
    """The event with its numbers of more than 53 bits as text: readers of JSON would round them."""
    return attrs.evolve(
        event,
        subject=_numbers_in_text(event.subject),
        object=_numbers_in_text(event.object),
        decision=None if event.decision is None else _numbers_in_text(event.decision),
    )


def _numbers_in_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbers_in_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_in_text(item) for item in value]
    return str(value) if _holds_large(value) else value


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(_escaped(key)): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value


def _time_of(line_id: str) -> int:
    """The milliseconds in a version 7 UUID; 0 for an id of another form."""
    digits = line_id.replace("-", "")
    try:
        return int(digits[:12], 16) if len(digits) == 32 and digits[12] == "7" else 0
    except ValueError:
        return 0
