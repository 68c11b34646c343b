"""A SQLite index over logs: derived from them, rebuilt at will, never evidence.

It holds what people look for and where each line stands; the lines stay in the logs. It is brought
up to date by what was appended; a file that is another one by now is read anew. Everything a line
says is data: it enters by parameters only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs

from runtime_pack.audit.facts import COLUMNS, EventFacts, Wanted, facts_of, read_record
from runtime_pack.audit.files import older_segments
from runtime_pack.errors import AuditError
from runtime_pack.given_files import MAX_LINE_BYTES, chunks, opened

__all__ = (
    "GROUPS",
    "DenialRow",
    "EventIndex",
    "Place",
    "RunRow",
    "check_index",
    "check_place",
    "default_index",
    "forget_index",
    "logs_in",
)

_SCHEMA: Final = 1
_SQLITE: Final = b"SQLite format 3\0"
_BATCH: Final = 20_000
GROUPS: Final = ("host", "rule", "code", "run", "agent", "tool", "reason", "type", "log")
"""What events can be counted by."""

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS files (
  number INTEGER PRIMARY KEY, log TEXT NOT NULL, path TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL,
  changed INTEGER NOT NULL, last_start INTEGER NOT NULL, last_sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
  file INTEGER NOT NULL REFERENCES files, log TEXT NOT NULL, start INTEGER NOT NULL,
  length INTEGER NOT NULL, {", ".join(f"{name} {'INTEGER' if name == 'seq' else 'TEXT'}" for name in COLUMNS)});
CREATE INDEX IF NOT EXISTS events_at ON events (at);
CREATE INDEX IF NOT EXISTS events_id ON events (id);
CREATE INDEX IF NOT EXISTS events_run ON events (run, at);
CREATE INDEX IF NOT EXISTS events_code ON events (code, at);
CREATE INDEX IF NOT EXISTS events_host ON events (host, at) WHERE host IS NOT NULL;
CREATE INDEX IF NOT EXISTS events_file ON events (file);
CREATE VIEW IF NOT EXISTS denials AS
  SELECT host, rule, reason, code, count(*) AS times, max(at) AS last FROM events
  WHERE code LIKE '%D' GROUP BY host, rule, reason, code ORDER BY times DESC;
"""

_PLACES: Final = (
    f"SELECT files.log, files.path, start, length, {', '.join(f'events.{c}' for c in COLUMNS)}"
    " FROM events JOIN files ON files.number = events.file"
)


@attrs.frozen(kw_only=True)
class Place:
    """An event of the index, and where its line stands."""

    log: str
    path: Path
    start: int
    length: int
    facts: EventFacts

    def line(self) -> bytes:
        """The line, from the log itself.

        Raises:
            AuditError: the file is gone or shorter by now.
        """
        try:
            with opened(self.path) as handle:
                line = os.pread(handle, min(self.length, MAX_LINE_BYTES), self.start)
        except OSError as error:
            raise AuditError(f"the log cannot be read: {error}") from error
        if len(line) != self.length:
            raise AuditError(f"{self.path} was cut since it was indexed")
        return line


@attrs.frozen
class RunRow:
    """A run as the logs tell of it."""

    run: str
    first: str | None
    last: str | None
    events: int
    denials: int
    agent: str | None


@attrs.frozen
class DenialRow:
    """Denials of one kind, and the id of the last one."""

    host: str | None
    tool: str | None
    rule: str | None
    reason: str | None
    code: str
    result: str | None
    times: int
    runs: int
    first: str | None
    last: str | None
    event: str | None


def logs_in(target: Path) -> tuple[Path, ...]:
    """The logs that a file or a folder stands for; older files belong to theirs.

    Raises:
        AuditError: it cannot be read.
    """
    try:
        if not target.is_dir():
            target.stat()
            return (target,)
        return tuple(sorted(path for path in target.glob("*.jsonl") if path.is_file()))
    except OSError as error:
        raise AuditError(f"the log cannot be read: {error}") from error


def default_index(target: Path) -> Path:
    """Where the index of a log or of a folder of logs is kept."""
    if target.is_dir():
        return target / "index.sqlite3"
    return target.with_name(f"{target.name}.index.sqlite3")


def check_index(path: Path) -> None:
    """Refuse what stands where an index is to be kept, and is none: it is not ours to write or delete.

    Raises:
        AuditError: it is there, and no SQLite database.
    """
    try:
        with opened(path) as handle:
            first = os.pread(handle, len(_SQLITE), 0)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AuditError(f"the index {path} cannot be used: {error}") from error
    if first and first != _SQLITE:
        raise AuditError(f"{path} is no index: it is left alone")


def forget_index(path: Path) -> None:
    """Delete an index, if there is one.

    Raises:
        AuditError: what is there is no index of ours, or cannot be deleted.
    """
    try:
        check_index(path)
        if not path.exists():
            return
        if path.stat().st_size and not _is_ours(path):
            raise AuditError(f"{path} is no index of ours: it is left alone")
        for name in (path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
    except OSError as error:
        raise AuditError(f"the index {path} cannot be deleted: {error}") from error


def _is_ours(path: Path) -> bool:
    """Whether it is a SQLite file with the tables of an index, of whichever version."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as db:
            names = {str(row[0]) for row in db.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error:
        return False
    return {"files", "events", "denials"} <= names


_BESIDE: Final = re.compile(r"(?:\.[0-9]{6}|\.checkpoints|\.tombstone|\.next|\.torn-[0-9]+)?\Z")


def check_place(path: Path, logs: tuple[Path, ...]) -> None:
    """An index stands in no file of a log, also in none that is not there yet.

    Raises:
        AuditError: it would.
    """
    for log in logs:
        same = path.absolute().parent.resolve() == log.absolute().parent.resolve()
        taken = (
            same and path.name.startswith(log.name) and _BESIDE.match(path.name[len(log.name) :])
        )
        if taken or (path.exists() and log.exists() and path.samefile(log)):
            raise AuditError(f"{path} is a file of the log {log}: an index stands elsewhere")


class EventIndex:
    """An open index.

    Raises:
        AuditError: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            check_index(path)
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else path, timeout=30, isolation_level=None
            )
        except sqlite3.Error as error:
            raise AuditError(f"the index {path} cannot be used: {error}") from error
        try:
            if path is not None:
                path.chmod(0o600)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            self._db.close()
            raise AuditError(f"the index {path} cannot be used: {error}") from error
        except AuditError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _SCHEMA):
            raise AuditError(f"the index is of another version ({version}): delete it")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_TABLES)
        self._db.execute(f"PRAGMA user_version = {_SCHEMA}")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ── filling ───────────────────────────────────────────────────────────────────────────────

    def update(self, logs: tuple[Path, ...]) -> int:
        """Take up what the logs hold by now, and forget the others; the number of lines read.

        Raises:
            AuditError: a log cannot be read, or the index cannot be written.
        """
        try:
            with self._transaction():
                return self._update(logs)
        except (sqlite3.Error, OSError) as error:
            raise AuditError(f"the index cannot be brought up to date: {error}") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _update(self, logs: tuple[Path, ...]) -> int:
        files = [
            (log, path)
            for log in logs
            for path in (*(older for _, older in older_segments(log)), log)
        ]
        self._rename(files)
        known = {str(row[0]) for row in self._db.execute("SELECT path FROM files")}
        for gone in known - {str(path) for _, path in files}:
            self._forget(gone)
        return sum(self._take_up(log, path) for log, path in files)

    def _rename(self, files: list[tuple[Path, Path]]) -> None:
        """A file that was full has another name by now: its lines are known under the old one."""
        rows = {
            str(p): (n, b, s, d)
            for n, p, b, s, d in self._db.execute(
                "SELECT number, path, bytes, last_start, last_sha256 FROM files"
            )
        }
        for log, path in files:
            if str(path) in rows or str(log) not in rows or path == log:
                continue
            number, size, start, digest = rows[str(log)]
            if _digest_at(path, start, size) == digest:
                self._db.execute("UPDATE files SET path = ? WHERE number = ?", (str(path), number))
                del rows[str(log)]

    def _forget(self, path: str) -> None:
        row = self._db.execute("SELECT number FROM files WHERE path = ?", (path,)).fetchone()
        if row is not None:
            self._db.execute("DELETE FROM events WHERE file = ?", row)
            self._db.execute("DELETE FROM files WHERE number = ?", row)

    def _take_up(self, log: Path, path: Path) -> int:
        """The lines of one file that are new."""
        with opened(path) as handle:
            now = os.fstat(handle)
            row = self._db.execute(
                "SELECT number, bytes, changed, last_start, last_sha256 FROM files WHERE path = ?",
                (str(path),),
            ).fetchone()
            if row is not None and (row[1], row[2]) == (now.st_size, now.st_mtime_ns):
                return 0
            grown = row is not None and row[1] < now.st_size
            if grown and _digest_at(path, row[3], row[1]) == row[4]:
                number, at = row[:2]
            else:
                self._forget(str(path))
                number, at = self._begin(log, path), 0
            return self._read(handle, number, log, at, now)

    def _begin(self, log: Path, path: Path) -> int:
        cursor = self._db.execute(
            "INSERT INTO files (log, path, bytes, changed, last_start, last_sha256)"
            " VALUES (?, ?, 0, 0, 0, '') RETURNING number",
            (str(log), str(path)),
        )
        return int(cursor.fetchone()[0])

    def _read(self, handle: int, number: int, log: Path, at: int, now: os.stat_result) -> int:
        """Whole lines from *at* on; a last one without line feed is left for later.

        What is written meanwhile is left, too: a log may grow as fast as it is read.
        """
        marks = ", ".join("?" * (4 + len(COLUMNS)))
        insert = (
            f"INSERT INTO events (file, log, start, length, {', '.join(COLUMNS)}) VALUES ({marks})"
        )
        rows: list[tuple[object, ...]] = []
        taken, last, rest = 0, (0, b""), b""
        for chunk in chunks(handle, at, now.st_size):
            *lines, rest = (rest + chunk).split(b"\n")
            if max(map(len, (*lines, rest))) > MAX_LINE_BYTES:
                raise AuditError(f"{log} has a line of more than {MAX_LINE_BYTES} bytes")
            for line in lines:
                row = facts_of(read_record(line))
                rows.append((number, str(log), at, len(line), *attrs.astuple(row)))
                last, at = (at, line), at + len(line) + 1
            if len(rows) >= _BATCH:
                taken += self._insert(insert, rows)
        taken += self._insert(insert, rows)
        if taken:
            self._db.execute(
                "UPDATE files SET bytes = ?, changed = ?, last_start = ?, last_sha256 = ?"
                " WHERE number = ?",
                (
                    at,
                    now.st_mtime_ns if not rest else 0,
                    last[0],
                    hashlib.sha256(last[1]).hexdigest(),
                    number,
                ),
            )
        return taken

    def _insert(self, insert: str, rows: list[tuple[object, ...]]) -> int:
        count = len(rows)
        self._db.executemany(insert, rows)
        rows.clear()
        return count

    # ── asking ────────────────────────────────────────────────────────────────────────────────

    def select(
        self, wanted: Wanted, *, limit: int | None = None, newest: bool = False
    ) -> Iterator[Place]:
        """Events in the order of time; the *newest* ones first, if so asked."""
        where, given = _where(wanted)
        order = "DESC" if newest else "ASC"
        query = f"{_PLACES} {where} ORDER BY at {order}, events.rowid {order} LIMIT ?"
        for row in self._db.execute(query, (*given, -1 if limit is None else limit)):
            yield _place(row)

    def page(
        self,
        wanted: Wanted,
        *,
        limit: int,
        at: tuple[str, int] | None = None,
        newest: bool = True,
    ) -> tuple[tuple[tuple[str, int], Place], ...]:
        """Events that say when they were, from behind *at* on, each with what to give for the next page.

        Later events do not move a page: it is found by time and row, and not by counting.
        """
        where, given = _where(wanted)
        order, sign = ("DESC", "<") if newest else ("ASC", ">")
        behind = f" AND (at, events.rowid) {sign} (?, ?)" if at is not None else ""
        query = (
            f"SELECT events.rowid, {_PLACES.removeprefix('SELECT ')} {where or 'WHERE 1'}"
            f" AND at IS NOT NULL{behind} ORDER BY at {order}, events.rowid {order} LIMIT ?"
        )
        rows = self._db.execute(query, (*given, *(at or ()), limit))
        places = ((row[0], _place(row[1:])) for row in rows)
        return tuple(((str(place.facts.at), int(number)), place) for number, place in places)

    def runs(self, *, limit: int, skip: int = 0) -> tuple[RunRow, ...]:
        """The runs that the logs tell of, the one with the latest event first."""
        query = (
            "SELECT run, min(at), max(at), count(*), sum(code GLOB '*D'), max(agent) FROM events"
            " WHERE run IS NOT NULL GROUP BY run ORDER BY max(at) DESC, run LIMIT ? OFFSET ?"
        )
        return tuple(RunRow(*row) for row in self._db.execute(query, (limit, skip)))

    def denials(self, wanted: Wanted, *, limit: int) -> tuple[DenialRow, ...]:
        """What was denied, or would have been, by what it was; the most frequent first.

        The refusal of a call whose target was denied is left out: the denial itself is there.
        """
        where, given = _where(wanted)
        query = (
            "SELECT host, tool, rule, reason, code, result, count(*) AS times, count(DISTINCT run),"
            f" min(at), max(at), max(id) FROM events {where or 'WHERE 1'}"
            " AND (code GLOB '*D' OR code = 'EGR004O')"
            " AND NOT (code = 'STP004D' AND result IS 'WEB_EGRESS_DENIED')"
            " GROUP BY host, tool, rule, reason, code, result ORDER BY times DESC, max(at) DESC LIMIT ?"
        )
        return tuple(DenialRow(*row) for row in self._db.execute(query, (*given, limit)))

    def count(self, wanted: Wanted) -> int:
        """How many events there are."""
        where, given = _where(wanted)
        return int(self._db.execute(f"SELECT count(*) FROM events {where}", given).fetchone()[0])

    def find(self, name: str) -> tuple[Place, ...]:
        """The events of an id, or of a line's number."""
        column = "seq" if name.isascii() and name.isdigit() and len(name) < 19 else "id"
        query = f"{_PLACES} WHERE events.{column} = ? LIMIT 100"
        key = int(name) if column == "seq" else name
        return tuple(_place(row) for row in self._db.execute(query, (key,)))

    def top(
        self, wanted: Wanted, by: tuple[str, ...], limit: int
    ) -> tuple[tuple[tuple[str | None, ...], int, str | None], ...]:
        """How often each combination came, and when last; the most frequent first.

        Raises:
            ValueError: events cannot be counted by that.
        """
        if not by or any(name not in GROUPS for name in by):
            raise ValueError(f"events are counted by {', '.join(GROUPS)}")
        where, given = _where(wanted)
        names = ", ".join(by)
        query = (
            f"SELECT {names}, count(*) AS times, max(at) FROM events {where}"
            f" GROUP BY {names} ORDER BY times DESC, {names} LIMIT ?"
        )
        width = len(by)
        return tuple(
            (tuple(row[:width]), int(row[width]), row[width + 1])
            for row in self._db.execute(query, (*given, limit))
        )


def _place(row: Sequence[Any]) -> Place:
    log, path, start, length, *rest = row
    facts = EventFacts(**dict(zip(COLUMNS, rest, strict=True)))
    return Place(log=log, path=Path(path), start=start, length=length, facts=facts)


def _digest_at(path: Path, start: int, end: int) -> str | None:
    """The digest of the line from *start* to the line feed before *end*; None if there is none."""
    try:
        with opened(path) as handle:
            line = os.pread(handle, min(max(0, end - start), MAX_LINE_BYTES + 1), start)
    except OSError:
        return None
    if len(line) != end - start or not line.endswith(b"\n"):
        return None
    return hashlib.sha256(line[:-1]).hexdigest()


def _where(wanted: Wanted) -> tuple[str, tuple[str, ...]]:
    """The condition, and what goes into its marks."""
    parts, given = [], []
    for name, pattern in wanted.patterns():
        parts.append(f"events.{name} GLOB ?")
        given.append(pattern.replace("[", "[[]"))
    if wanted.run is not None:
        parts.append("events.run >= ? AND events.run < ?")
        given += [wanted.run, f"{wanted.run}\U0010ffff"]
    for bound, sign in ((wanted.since_text(), ">="), (wanted.until_text(), "<")):
        if bound is not None:
            parts.append(f"events.at {sign} ?")
            given.append(bound)
    if wanted.denied:
        parts.append("events.code GLOB '*D'")
    return (f"WHERE {' AND '.join(parts)}" if parts else "", tuple(given))
