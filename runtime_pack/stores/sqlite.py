"""Runs in one SQLite file: a row a run, its rows beside it, each commit one transaction.

The file is in WAL mode and every commit is synced. Rows are only ever appended: triggers of the
database itself refuse to change one, or to delete one of a run that is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from runtime_pack.errors import RunBusy, RunConflict, RunNotFound, StateRefused, StoreError
from runtime_pack.seal import Seal
from runtime_pack.stores.claims import Claims
from runtime_pack.stores.port import SavedRun, checked_run_id, is_run_id
from runtime_pack.stores.threads import BlockingStore

__all__ = ("SQLiteRunStore",)

Connect: TypeAlias = Callable[..., sqlite3.Connection]
"""As `sqlite3.connect`."""

_FORMAT: Final = "agent-runtime-pack/runs"
_SCHEMA: Final = 1
_BUSY_SECONDS: Final = 30.0
_TABLES: Final = (
    "CREATE TABLE store (format TEXT NOT NULL, schema INTEGER NOT NULL)",
    (
        "CREATE TABLE runs (run_id TEXT PRIMARY KEY, revision INTEGER NOT NULL, "
        "row_count INTEGER NOT NULL, head BLOB NOT NULL)"
    ),
    (
        "CREATE TABLE rows (run_id TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, "
        "UNIQUE (run_id, number))"
    ),
    (
        "CREATE TABLE letters (run_id TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (run_id, key))"
    ),
    (
        "CREATE TRIGGER rows_stay BEFORE UPDATE ON rows "
        "BEGIN SELECT RAISE(ABORT, 'rows are only appended'); END"
    ),
    (
        "CREATE TRIGGER rows_are_kept BEFORE DELETE ON rows "
        "WHEN EXISTS (SELECT 1 FROM runs WHERE run_id = OLD.run_id) "
        "BEGIN SELECT RAISE(ABORT, 'rows are only appended'); END"
    ),
    (
        "CREATE TRIGGER letters_stay BEFORE UPDATE ON letters "
        "BEGIN SELECT RAISE(ABORT, 'the first letter stands'); END"
    ),
)


class SQLiteRunStore(BlockingStore):
    """Runs in one SQLite file of mode 0600, for any number of threads and processes of a machine.

    Connections are opened when they are needed and kept: each is used by one thread at a time, off
    the event loop. Close the store, or leave its `with` block, to close them. Not for a file on a
    network file system: the locks of WAL do not work there.

    Args:
        path: the file, made when it is not there; `PATH-wal`, `PATH-shm` and `PATH.claims` are kept
            beside it.
        seal: the host's key.
        busy_seconds: how long a commit waits for another one.
        connect: makes connections, for tests.

    Raises:
        StoreError: the file cannot be made or opened, or is of something else.
        StateRefused: a newer version made it.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        seal: Seal,
        busy_seconds: float = _BUSY_SECONDS,
        connect: Connect = sqlite3.connect,
    ) -> None:
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._connect = connect
        super().__init__(seal, Claims(self.path.with_name(f"{self.path.name}.claims")))
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._of_parent: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._closed = False
        try:
            with self._reported("the store cannot be made"):
                self._make()
        except BaseException:
            # Nobody will close a store that was never made.
            self.close()
            raise

    def close(self) -> None:
        """Close the connections that nobody uses; the others when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ── connections ───────────────────────────────────────────────────────────────────────────

    def _make(self) -> None:
        """Make the file and its tables, one process at a time, or see that they are ours."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self._claims.path, flags, 0o600)
        try:
            # Going over to WAL does not wait for others by itself.
            fcntl.flock(lock, fcntl.LOCK_EX)
            handle = os.open(self.path, flags, 0o600)
            os.fchmod(handle, 0o600)
            os.close(handle)
            with self._using() as connection:
                self._make_tables(connection)
        finally:
            os.close(lock)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
            if not names:
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute("INSERT INTO store VALUES (?, ?)", (_FORMAT, _SCHEMA))
                return
            if "store" not in names:
                raise StoreError(f"{self.path} is a database of something else")
            rows = connection.execute("SELECT format, schema FROM store").fetchall()
        if len(rows) != 1 or rows[0][0] != _FORMAT:
            raise StoreError(f"{self.path} is a database of something else")
        if rows[0][1] != _SCHEMA:
            raise StateRefused(
                f"{self.path} is of schema {rows[0][1]!r}, not {_SCHEMA}, which this version reads"
            )

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """A connection for one thread; kept for the next one if all went well."""
        connection = self._take()
        try:
            yield connection
        except (StoreError, sqlite3.IntegrityError):
            # It was told off in an orderly way, and its transaction is rolled back.
            self._give_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._pid != os.getpid():
                # What was opened before a fork is the parent's: neither used nor closed here.
                self._of_parent, self._idle, self._pid = self._idle, [], os.getpid()
            if self._closed:
                raise StoreError("the store is closed")
            if self._idle:
                return self._idle.pop()
        connection = self._connect(
            self.path,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Errors of the database and of the disk as `StoreError`."""
        try:
            yield
        # A damaged file may hold names that are no text.
        except (sqlite3.Error, OSError, UnicodeError) as error:
            raise StoreError(f"{what}: {error}") from error

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[sqlite3.Connection]:
        with self._reported(what), self._using() as connection, _transaction(connection):
            yield connection

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the file."""
        with (
            self._reported(what),
            self._using() as connection,
            _transaction(connection, "DEFERRED"),
        ):
            yield connection

    # ── work, in threads ──────────────────────────────────────────────────────────────────────

    def _commit(self, run_id: str, expected: int, head: bytes, rows: tuple[bytes, ...]) -> int:
        checked_run_id(run_id)
        with self._writing(f"run {run_id} cannot be saved") as connection:
            asked = connection.execute(
                "SELECT revision, row_count FROM runs WHERE run_id = ?", (run_id,)
            )
            found, count = asked.fetchone() or (0, 0)
            if not isinstance(found, int) or not isinstance(count, int):
                raise StateRefused(f"run {run_id} holds something that was not written here")
            if found != expected:
                raise RunConflict(run_id, expected, found)
            # Rows first: a head never speaks of a row that is not there.
            connection.executemany(
                "INSERT INTO rows (run_id, number, body) VALUES (?, ?, ?)",
                ((run_id, count + n, body) for n, body in enumerate(rows)),
            )
            connection.execute(
                "INSERT INTO runs (run_id, revision, row_count, head) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (run_id) DO UPDATE SET revision = excluded.revision, "
                "row_count = excluded.row_count, head = excluded.head",
                (run_id, found + 1, count + len(rows), head),
            )
            letters = connection.execute(
                "SELECT count(*) FROM letters WHERE run_id = ?", (run_id,)
            ).fetchone()
        self._letter_counts[run_id] = int(letters[0])
        return found + 1

    def read(self, run_id: str) -> SavedRun:
        """The last committed revision; see `RunStore.load`."""
        checked_run_id(run_id)
        with self._reading(f"run {run_id} cannot be read") as connection:
            asked = connection.execute(
                "SELECT revision, head FROM runs WHERE run_id = ?", (run_id,)
            )
            found = asked.fetchone()
            if found is None:
                raise RunNotFound(run_id)
            rows = connection.execute(
                "SELECT body FROM rows WHERE run_id = ? ORDER BY number", (run_id,)
            ).fetchall()
        revision, head = found
        bodies = tuple([body for (body,) in rows])
        if not isinstance(revision, int) or not all(isinstance(b, bytes) for b in (head, *bodies)):
            raise StateRefused(f"run {run_id} holds something that was not written here")
        return SavedRun(run_id=run_id, revision=revision, head=head, rows=bodies)

    def run_ids(self) -> tuple[str, ...]:
        """The ids of the saved runs, sorted; see `SharedRunStore.list_ids`."""
        with self._reading("the runs cannot be listed") as connection:
            rows = connection.execute("SELECT run_id FROM runs ORDER BY run_id").fetchall()
        return tuple(str(run_id) for (run_id,) in rows if is_run_id(str(run_id)))

    def _delete(self, run_id: str) -> None:
        claim = self._claims.take(checked_run_id(run_id))
        if claim is None:
            raise RunBusy(run_id)
        try:
            with self._writing(f"run {run_id} cannot be deleted") as connection:
                gone = connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,)).rowcount
                if not gone:
                    raise RunNotFound(run_id)
                connection.execute("DELETE FROM rows WHERE run_id = ?", (run_id,))
                connection.execute("DELETE FROM letters WHERE run_id = ?", (run_id,))
        finally:
            claim.release()
        self._letter_counts.pop(run_id, None)

    def _post(self, run_id: str, key: str, body: bytes) -> bytes:
        checked_run_id(run_id)
        with self._writing(f"a letter to run {run_id} cannot be written") as connection:
            there = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if there is None:
                raise RunNotFound(run_id)
            connection.execute(
                "INSERT INTO letters VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (run_id, key, body)
            )
            standing: bytes = connection.execute(
                "SELECT body FROM letters WHERE run_id = ? AND key = ?", (run_id, key)
            ).fetchone()[0]
        return standing

    def _read_letters(self, run_id: str) -> Mapping[str, bytes]:
        checked_run_id(run_id)
        with self._reading(f"the letters of run {run_id} cannot be read") as connection:
            rows = connection.execute(
                "SELECT key, body FROM letters WHERE run_id = ? ORDER BY key", (run_id,)
            ).fetchall()
        if not all(isinstance(body, bytes) for _, body in rows):
            raise StateRefused(f"a letter to run {run_id} was not written here")
        return {str(key): body for key, body in rows}


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All of the block, or nothing of it."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
