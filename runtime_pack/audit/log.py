"""The writer of a log: one process, one file, one chain.

Lines are collected and written by `flush`; the guard flushes before anything runs that a line
speaks of. A write that fails raises, and the log takes no more lines: what cannot be recorded
must not happen.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson

from runtime_pack.audit.verify import LogHead, LogStatus, verify_lines
from runtime_pack.errors import AuditError, LogLocked
from runtime_pack.events import EVENT_ROWS, Entry, Event, EventCode
from runtime_pack.messages import Json

__all__ = ("AuditLog",)

_MICROSECONDS: Final = 1_000_000


# The words of each code as plain strings, which are encoded faster than enum members.
_WORDS: Final = {
    code: (str(row.type), str(code), str(row.severity)) for code, row in EVENT_ROWS.items()
}


class AuditLog:
    """An open log. Close it (or leave the `with` block) to write its last line.

    The file is created with mode 0600 and locked: one writer per log. An existing log must
    verify; a torn last line is moved to `<name>.torn-<n>` and recorded.

    Raises:
        LogLocked: another process writes this log.
        AuditError: the file cannot be opened, or its chain is broken.
    """

    def __init__(self, path: Path | str, *, now: Callable[[], datetime] | None = None) -> None:
        self.path = Path(path)
        self._now = now
        self._buffer: list[bytes] = []
        self._failed = False
        self._written = 0
        # Later writers sort after earlier ones, and the lines of one by number: ids are time-ordered.
        self._writer = f"{self._time()[0]:010x}{secrets.token_hex(4)}"
        self._second = -1
        self._prefix = ""
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

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise AuditError(f"{self.path} is not a regular file")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogLocked(f"another process writes {self.path}") from error

    def _take_up(self) -> str | None:
        """Continue the chain of an existing file; the name of the file a torn tail was moved to."""
        content = self._content()
        end = content.rfind(b"\n") + 1
        lines = content[:end].split(b"\n")[:-1]
        found = verify_lines(lines)
        if found.status is LogStatus.TAMPERED:
            fault = found.faults[0]
            raise AuditError(f"{self.path} is broken at line {fault.line}: {fault.problem}")
        self._seq, self._prev = found.head.seq, found.head.sha256
        if end == len(content):
            return None
        return self._move_aside(content[end:], end)

    def _content(self) -> bytes:
        try:
            with os.fdopen(os.dup(self._fd), "rb") as file:
                return file.read()
        except OSError as error:
            raise AuditError(f"the log cannot be read: {error}") from error

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
        if torn is not None:
            moved: dict[str, Json] = {"moved_to": torn}
            self.append(Event(code=EventCode.LOG003E, subject={}, object=moved))
        self.append(Event(code=EventCode.LOG001O, subject={}, object=opened))
        self.flush()

    @property
    def head(self) -> LogHead:
        """The last line taken, written or not."""
        return LogHead(self._seq, self._prev)

    def append(self, event: Event) -> None:
        """Take one event into the chain; it is in the file after the next `flush`.

        Raises:
            AuditError: the log is closed or has failed, or the event cannot be encoded, or holds a
                float: its digits would differ between languages, and so the bytes that are hashed.
        """
        for part in (event.subject, event.object, event.decision):
            if _holds_float(part):
                raise AuditError("an event holds a float: use whole numbers of a smaller unit")
        self.take(event)

    def take(self, event: Event | Entry) -> None:
        """`append` for events that hold no float by their making, as those of `records` do.

        Raises:
            AuditError: as for `append`.
        """
        if self._failed:
            raise AuditError("the log is closed or has failed")
        kind, code, severity = _WORDS[event.code]
        seq = self._seq + 1
        record: dict[str, object] = {
            "v": 1,
            "id": f"{self._writer}-{seq:08x}",
            "seq": seq,
            "prev": self._prev,
            "ts": self._timestamp(),
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
        line = _encode(record)
        self._seq, self._prev = seq, hashlib.sha256(line).hexdigest()
        self._buffer.append(line)

    def _timestamp(self) -> str:
        """RFC 3339, UTC, microseconds."""
        if self._now is None:
            second, microsecond = divmod(time.time_ns() // 1000, _MICROSECONDS)
        else:
            second, microsecond = self._time()
        if second != self._second:
            utc = datetime.fromtimestamp(second, UTC)
            self._second, self._prefix = second, utc.strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._prefix}{microsecond:06d}Z"

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
            written = os.write(self._fd, block)
        except OSError as error:
            self._failed = True
            raise AuditError(f"the log cannot be written: {error}") from error
        if written != len(block):
            self._failed = True
            raise AuditError("the log was written only in part (is the disk full?)")
        self._written = self._seq

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

    def close(self) -> None:
        """Write the closing line and let go of the file. A second close does nothing."""
        if self._fd < 0:
            return
        try:
            if not self._failed:
                body: dict[str, Json] = {"writer": self._writer}
                self.append(Event(code=EventCode.LOG002O, subject={}, object=body))
                self.sync()
        finally:
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


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(_escaped(key)): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value
