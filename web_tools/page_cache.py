"""What was read, kept on disk for several processes at once: content apart from what is known of it.

A content file holds the content and nothing else, and its name is its digest: a file that was torn by
a crash, or changed, does not have its name any more and is a miss. The index, one SQLite file beside
them, knows entries by a keyed digest of their name (such as a URL), and keeps for each what its owner
notes of it, such as validators. Nothing here is ever a reason for a read to fail: a cache that cannot
be read has nothing, and one that cannot be written keeps nothing.

Every method blocks for a short time: call it in a thread.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import attrs

from web_tools.errors import InvalidSetup

__all__ = ("CacheLimits", "CacheUsage", "CachedContent", "PageCache", "evicted")

_T = TypeVar("_T")

_LOG: Final = logging.getLogger("web_tools")
_DAY: Final = 86_400
_KEY_BYTES: Final = 32
_MAX_NOTE_BYTES: Final = 65_536
# Longer than any other process holds the index; then it counts as not readable.
_BUSY_SECONDS: Final = 5.0
_PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600
# Raised with a change of the table; an index of another form is begun anew.
_FORM: Final = 2
# `use` counts all uses, and the highest was the last one: clocks stand still, and go back.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS entries (
    name BLOB PRIMARY KEY, content TEXT NOT NULL, bytes INTEGER NOT NULL, note BLOB NOT NULL,
    stored_at REAL NOT NULL, expires_at REAL NOT NULL, use INTEGER NOT NULL
) WITHOUT ROWID
"""
_INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS by_content ON entries (content)",
    "CREATE INDEX IF NOT EXISTS by_use ON entries (use)",
)
_USED: Final = (
    "UPDATE entries SET use = (SELECT MAX(use) + 1 FROM entries), expires_at = ? WHERE name = ?"
)
_KEPT: Final = (
    "INSERT OR REPLACE INTO entries "
    "VALUES (?, ?, ?, ?, ?, ?, (SELECT COALESCE(MAX(use), 0) + 1 FROM entries))"
)
_CONFIRMED: Final = (
    "UPDATE entries SET note = ?, stored_at = ?, expires_at = ?, "
    "use = (SELECT MAX(use) + 1 FROM entries) WHERE name = ?"
)
# A digest, or what was written of a content when its process ended.
_OWN_NAME: Final = re.compile(r"[0-9a-f]{64}|draft-[0-9]+-[0-9a-f]{16}")
_SIZE: Final = "SELECT COALESCE(SUM(bytes), 0) FROM (SELECT DISTINCT content, bytes FROM entries)"


@attrs.frozen(kw_only=True)
class CacheLimits:
    """What a cache may hold. Source: the search plugin text, section Bounds.

    Attributes:
        max_bytes: Of all contents together; equal contents are one.
        max_entries: Names.
        max_content_bytes: Of one content; a larger one is not kept.
        keep_seconds: How long an entry is kept after it was stored or last used.
        longest_seconds: How long it is kept at most, however often it is used: without an end, a
            page that is asked for daily would never be fetched again.

    Raises:
        InvalidSetup: A limit is no positive number.
    """

    max_bytes: int = 2 << 30
    max_entries: int = 5_000
    max_content_bytes: int = 5 << 20
    keep_seconds: float = 14 * _DAY
    longest_seconds: float = 56 * _DAY

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(CacheLimits):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidSetup(field.name, "must be a positive number")

    def expiry(self, *, stored_at: float, used_at: float) -> float:
        """Until when an entry is kept that was stored and last used then."""
        return min(used_at + self.keep_seconds, stored_at + self.longest_seconds)


@attrs.frozen(kw_only=True)
class CachedContent:
    """One entry that was found.

    Attributes:
        note: What its owner noted of it, as it was given.
        stored_at: When it was stored or last confirmed, UTC.
    """

    content: bytes = attrs.field(repr=False)
    note: bytes = attrs.field(repr=False)
    stored_at: datetime


@attrs.frozen(kw_only=True)
class CacheUsage:
    """How many names a cache knows, and how many bytes their contents have."""

    entries: int
    bytes: int


class PageCache:
    """A cache in *folder*, which is made when it is not there, for its owner alone.

    Several processes, and several threads of each, may use one folder at once.

    Args:
        folder: Of this cache and nothing else.
        limits: What it may hold. Whoever adds an entry holds the whole folder to its own limits.
        clock: Seconds since the epoch.

    Raises:
        InvalidSetup: The folder cannot be made, or others can write to it: what stands in it
            would be theirs.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        limits: CacheLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = Path(folder)
        self._limits = limits or CacheLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: tuple[int, sqlite3.Connection] | None = None
        _own_folder(self._folder)
        _refuse_foreign(self._folder)
        _own_folder(self._contents)
        self._key = _key(self._folder / "key")

    @property
    def _contents(self) -> Path:
        return self._folder / "contents"

    def find(self, name: str) -> CachedContent | None:
        """What is kept under *name*; it is kept for longer from now on. None when there is nothing."""
        digest = self._digest(name)
        return self._within("find", lambda index: self._found(index, digest))

    def keep(self, name: str, content: bytes, *, note: bytes = b"") -> bool:
        """Keep *content* under *name*, in the place of what was there; whether it was kept.

        Raises:
            ValueError: The note is longer than 64 KiB.
        """
        _check_note(note)
        if len(content) > min(self._limits.max_content_bytes, self._limits.max_bytes):
            self.drop(name)
            return False
        digest = self._digest(name)
        kept = self._within("keep", lambda index: self._put(index, digest, content, note))
        return kept is True

    def confirm(self, name: str, *, note: bytes) -> bool:
        """What is kept under *name* is still what stands there: as if it was stored now.

        Returns:
            Whether there was something.

        Raises:
            ValueError: The note is longer than 64 KiB.
        """
        _check_note(note)
        digest = self._digest(name)
        return self._within("confirm", lambda index: self._confirmed(index, digest, note)) is True

    def drop(self, name: str) -> None:
        """Keep nothing under *name*."""
        digest = self._digest(name)
        self._within("drop", lambda index: self._remove(index, [(digest,)]))

    def usage(self) -> CacheUsage:
        """What it holds."""
        return self._within("count", _usage) or CacheUsage(entries=0, bytes=0)

    def close(self) -> None:
        """Close the index; the next use opens it again."""
        with self._lock:
            self._forget()

    def __del__(self) -> None:
        # An index that nobody closed; one that was never opened has no attribute.
        held = getattr(self, "_connection", None)
        if held is not None and held[0] == os.getpid():
            held[1].close()

    # ── the index ─────────────────────────────────────────────────────────────────────────────

    def _within(self, what: str, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """What *work* gives inside of one transaction, alone among all processes.

        What goes wrong is logged by its type and gives None: the caller goes on without.
        """
        with self._lock:
            try:
                return _transacted(self._open(), work)
            except (OSError, sqlite3.Error) as error:
                _LOG.warning("the page cache cannot %s: %s", what, type(error).__name__)
                self._forget()
                if _is_corrupt(error):
                    self._begin_anew()
                return None

    def _open(self) -> sqlite3.Connection:
        # A connection must not be used on both sides of a fork.
        if self._connection is not None and self._connection[0] == os.getpid():
            return self._connection[1]
        self._connection = None
        connection = sqlite3.connect(
            self._folder / "index.sqlite3",
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _transacted(connection, self._prepare)
        except BaseException:
            connection.close()
            raise
        self._connection = (os.getpid(), connection)
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the table, and remove content files that no entry names."""
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        if form != _FORM:
            connection.execute("DROP TABLE IF EXISTS entries")
        for statement in (_TABLE, *_INDEXES, f"PRAGMA user_version = {_FORM}"):
            connection.execute(statement)
        named = {row[0] for row in connection.execute("SELECT DISTINCT content FROM entries")}
        for path in self._contents.iterdir():
            is_ours = _OWN_NAME.fullmatch(path.name) and (path.is_symlink() or not path.is_dir())
            if is_ours and path.name not in named:
                path.unlink(missing_ok=True)

    def _forget(self) -> None:
        held, self._connection = self._connection, None
        # Of another process it is left alone: closing it here would release that one's locks.
        if held is not None and held[0] == os.getpid():
            held[1].close()

    def _begin_anew(self) -> None:
        """Without the index that cannot be read; its contents go when the next one is opened."""
        for name in ("index.sqlite3", "index.sqlite3-wal", "index.sqlite3-shm"):
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError:
                return

    # ── entries ───────────────────────────────────────────────────────────────────────────────

    def _digest(self, name: str) -> bytes:
        told = name.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(told, key=self._key, digest_size=_KEY_BYTES).digest()

    def _found(self, index: sqlite3.Connection, name: bytes) -> CachedContent | None:
        row = index.execute(
            "SELECT content, note, stored_at, expires_at FROM entries WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return None
        content_name, note, stored_at, expires_at = row
        now = self._clock()
        content = None if now >= expires_at else self._read(content_name)
        if content is None:
            self._remove(index, [(name,)])
            return None
        expiry = max(expires_at, self._limits.expiry(stored_at=stored_at, used_at=now))
        index.execute(_USED, (expiry, name))
        when = datetime.fromtimestamp(stored_at, UTC)
        return CachedContent(content=content, note=note, stored_at=when)

    def _put(self, index: sqlite3.Connection, name: bytes, content: bytes, note: bytes) -> bool:
        now = self._clock()
        content_name = hashlib.sha256(content).hexdigest()
        # First, so that a full disk leaves what was there.
        self._write(content_name, content)
        before = index.execute("SELECT content FROM entries WHERE name = ?", (name,)).fetchone()
        expiry = self._limits.expiry(stored_at=now, used_at=now)
        index.execute(
            _KEPT,
            (name, content_name, len(content), note, now, expiry),
        )
        if before is not None:
            self._unlink_unnamed(index, before[0])
        self._evict(index, now)
        return True

    def _confirmed(self, index: sqlite3.Connection, name: bytes, note: bytes) -> bool:
        now = self._clock()
        expiry = self._limits.expiry(stored_at=now, used_at=now)
        changed = index.execute(
            _CONFIRMED,
            (note, now, expiry, name),
        )
        return changed.rowcount > 0

    def _evict(self, index: sqlite3.Connection, now: float) -> None:
        """Hold the folder to its limits."""
        expired = "SELECT name FROM entries WHERE expires_at <= ?"
        self._remove(index, index.execute(expired, (now,)).fetchall())
        usage = _usage(index)
        if usage.entries <= self._limits.max_entries and usage.bytes <= self._limits.max_bytes:
            return
        rows = index.execute("SELECT name, content, bytes FROM entries ORDER BY use")
        self._remove(index, [(name,) for name in evicted(rows.fetchall(), self._limits)])

    def _remove(self, index: sqlite3.Connection, names: list[tuple[bytes]]) -> None:
        """Remove entries, and the contents that no other entry has."""
        for row in names:
            found = index.execute("SELECT content FROM entries WHERE name = ?", row).fetchone()
            if found is not None:
                index.execute("DELETE FROM entries WHERE name = ?", row)
                self._unlink_unnamed(index, found[0])

    def _unlink_unnamed(self, index: sqlite3.Connection, content_name: str) -> None:
        named = index.execute("SELECT 1 FROM entries WHERE content = ?", (content_name,))
        if named.fetchone() is None:
            (self._contents / content_name).unlink(missing_ok=True)

    def _read(self, content_name: str) -> bytes | None:
        """The content of this digest; None when the file is gone, torn or changed."""
        try:
            descriptor = os.open(self._contents / content_name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(self._limits.max_content_bytes + 1)
        return content if hashlib.sha256(content).hexdigest() == content_name else None

    def _write(self, content_name: str, content: bytes) -> None:
        """Write a file under another name and give it its own when it is whole."""
        draft = self._contents / f"draft-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(draft, flags, _PRIVATE_FILE), "wb") as file:
                file.write(content)
            draft.replace(self._contents / content_name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def evicted(rows: Sequence[tuple[bytes, str, int]], limits: CacheLimits) -> list[bytes]:
    """Which entries go so that the others are within *limits*: as few as can be, the first ones first.

    Args:
        rows: Name, content and its size, that which was used last longest ago first. A content
            that several names have counts once, and goes with the last of them.
        limits: What the others are within.
    """
    sizes = {content: size for _, content, size in rows}
    named = Counter(content for _, content, _ in rows)
    total, entries, going = sum(sizes.values()), len(rows), 0
    for _, content, size in rows:
        if entries <= limits.max_entries and total <= limits.max_bytes:
            break
        going += 1
        entries -= 1
        named[content] -= 1
        if not named[content]:
            total -= size
    return [name for name, _, _ in rows[:going]]


def _transacted(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T]) -> _T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return result


def _usage(index: sqlite3.Connection) -> CacheUsage:
    (entries,) = index.execute("SELECT COUNT(*) FROM entries").fetchone()
    (size,) = index.execute(_SIZE).fetchone()
    return CacheUsage(entries=entries, bytes=size)


def _check_note(note: bytes) -> None:
    if len(note) > _MAX_NOTE_BYTES:
        raise ValueError(f"a note has at most {_MAX_NOTE_BYTES} bytes")


def _is_corrupt(error: Exception) -> bool:
    """Whether the index is no index: not when it is busy, or the disk is full."""
    return type(error) is sqlite3.DatabaseError


def _own_folder(folder: Path) -> None:
    """Make the folder for its owner alone, or refuse one that others can write to."""
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InvalidSetup("page_cache", f"the folder cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidSetup("page_cache", "must be a folder that belongs to this user")
    if found.st_mode & 0o022:
        raise InvalidSetup("page_cache", "others can write to the folder: chmod 700")


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is not empty and no cache: what stands in it is not ours to remove.

    The key is made first; two processes may be at that at once.
    """
    try:
        names = {path.name for path in folder.iterdir()}
        contents = folder / "contents"
        empty = not contents.exists() or not any(contents.iterdir())
    except OSError as error:
        raise InvalidSetup("page_cache", f"the folder cannot be read: {error.strerror}") from error
    others = {name for name in names if name != "contents" and not name.startswith("key-")}
    if "key" not in names and (others or not empty):
        raise InvalidSetup(
            "page_cache", "the folder is not empty and no page cache: name a folder of its own"
        )


def _key(path: Path) -> bytes:
    """The key of the digests of names; whoever comes first makes it."""
    try:
        if not path.exists():
            draft = path.with_name(f"key-{secrets.token_hex(8)}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(draft, flags, _PRIVATE_FILE), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            try:
                # A link, not a rename: it does not take the place of the key of another process.
                os.link(draft, path)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        key = path.read_bytes()
    except OSError as error:
        raise InvalidSetup("page_cache", f"its key cannot be read: {error.strerror}") from error
    if len(key) != _KEY_BYTES:
        raise InvalidSetup("page_cache", "its key is damaged: remove the whole folder")
    return key
