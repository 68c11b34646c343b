"""Runs as files: a folder a run, rows appended, the head replaced atomically, both synced."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from runtime_pack.errors import RunBusy, RunConflict, RunNotFound, StateRefused, StoreError
from runtime_pack.inner import frozen
from runtime_pack.seal import Seal
from runtime_pack.stores.claims import Claims
from runtime_pack.stores.port import SavedRun, checked_run_id, is_run_id
from runtime_pack.stores.regular import opened_regular, read_regular
from runtime_pack.stores.threads import BlockingStore

__all__ = ("DirectoryRunStore", "Disk")

_SCHEMA: Final = 1
_ENVELOPE_KEYS: Final = frozenset({"schema", "revision", "offset", "head"})
# More than any run needs: what is read is held in memory.
_MAX_HEAD_BYTES: Final = 1 << 28
_MAX_ROWS_BYTES: Final = 1 << 31
_MAX_LETTER_BYTES: Final = 1 << 24
_LOCK_SECONDS: Final = 30.0
_LOCK_PAUSE_SECONDS: Final = 0.002


class Disk:
    """The operating system's part of a save: each method is one step that can fail or be the last.

    Tests give a store another one, which fails or dies at a step.
    """

    def write(self, handle: int, block: bytes) -> None:
        """Write the whole block at the handle's place."""
        left = memoryview(block)
        while left:
            left = left[os.write(handle, left) :]

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Wait until the file, or the folder, is on the disk."""
        os.fsync(handle)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file its name; who reads sees the old one or the new one."""
        source.replace(target)

    def names(self, path: Path) -> list[str]:
        """What is in the folder."""
        return [entry.name for entry in path.iterdir()]

    def look(self, path: Path) -> None:
        """Nothing, if there is something of that name.

        Raises:
            OSError: there is nothing, or it cannot be said.
        """
        path.lstat()

    def link(self, source: Path, target: Path) -> None:
        """Give a file a further name.

        Raises:
            FileExistsError: there is something of that name.
        """
        os.link(source, target)


class DirectoryRunStore(BlockingStore):
    """Runs as files: a folder a run, rows appended, the head replaced atomically, both synced.

    A crash at any point leaves the last committed revision: rows beyond the head's count are
    dropped at the next commit. Folders are of mode 0700, files of mode 0600.

    Raises:
        StoreError: the folder cannot be made.
    """

    def __init__(self, path: Path | str, *, seal: Seal, disk: Disk | None = None) -> None:
        self.path = Path(path)
        self._disk = disk or Disk()
        super().__init__(seal, Claims(self.path / ".claims"))
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store cannot be made: {error}") from error

    def run_ids(self) -> tuple[str, ...]:
        """The ids of the saved runs, sorted: also of those that cannot be looked into.

        Raises:
            StoreError: the folder cannot be listed.
        """
        try:
            names = self._disk.names(self.path)
        except OSError as error:
            raise StoreError(f"the runs cannot be listed: {error}") from error
        return tuple(sorted(name for name in names if is_run_id(name) and self._has_head(name)))

    def _has_head(self, name: str) -> bool:
        """Whether there is a run, or something that hides whether there is one."""
        try:
            self._disk.look(self.path / name / "head.json")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def read(self, run_id: str) -> SavedRun:
        """`load` for callers that are not coroutines.

        Raises:
            RunNotFound: there is none.
            StateRefused: what is there is not a run as this class writes it.
            StoreError: it could not be read.
        """
        folder = self._folder(run_id)
        try:
            with _opened_folder(folder) as handle:
                envelope, content = self._read_files(folder, handle)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunNotFound(run_id) from error
        except OSError as error:
            raise StoreError(f"run {run_id} cannot be read: {error}") from error
        if not 0 <= envelope.offset <= len(content):
            raise StateRefused(f"rows of run {run_id} were cut off")
        rows = content[: envelope.offset].split(b"\n")
        if rows.pop():
            raise StateRefused(f"the last row of run {run_id} is cut")
        return SavedRun(
            run_id=run_id, revision=envelope.revision, head=envelope.head, rows=tuple(rows)
        )

    def _read_files(self, folder: Path, handle: int) -> tuple[_Envelope, bytes]:
        """The head and the rows of one folder, whatever takes its name meanwhile."""
        envelope = _read_envelope(folder, dir_fd=handle)
        try:
            return envelope, read_regular(folder / "rows.jsonl", _MAX_ROWS_BYTES, dir_fd=handle)
        except FileNotFoundError as error:
            # A run that is deleted meanwhile is in a folder of another name: it is not there.
            if os.path.samestat(folder.stat(), os.fstat(handle)):
                raise StateRefused(f"the rows of run {folder.name} are gone") from error
            raise

    # ── writing; all of it runs in threads ────────────────────────────────────────────────────

    def _folder(self, run_id: str) -> Path:
        return self.path / checked_run_id(run_id)

    def _commit(self, run_id: str, expected: int, head: bytes, rows: tuple[bytes, ...]) -> int:
        folder = self._folder(run_id)
        try:
            if not folder.is_dir():
                if expected:
                    raise RunConflict(run_id, expected, 0)
                folder.mkdir(mode=0o700, exist_ok=True)
                self._sync_folder(self.path)
            with _locked(folder):
                return self._commit_locked(folder, run_id, expected, head, rows)
        except OSError as error:
            raise StoreError(f"run {run_id} cannot be saved: {error}") from error

    def _commit_locked(
        self, folder: Path, run_id: str, expected: int, head: bytes, rows: tuple[bytes, ...]
    ) -> int:
        found, offset = self._position(folder)
        if found != expected:
            raise RunConflict(run_id, expected, found)
        block = b"".join(row + b"\n" for row in rows)
        if len(head) > _MAX_HEAD_BYTES // 2 or offset + len(block) > _MAX_ROWS_BYTES:
            # Nobody could read it again.
            raise StoreError(f"run {run_id} is too large to be saved")
        self._append(folder / "rows.jsonl", offset, block)
        envelope = {
            "schema": _SCHEMA,
            "revision": found + 1,
            "offset": offset + len(block),
            "head": head.decode(),
        }
        self._replace(folder / "head.json", orjson.dumps(envelope))
        self._letter_counts[run_id] = len(_letter_files(folder))
        return found + 1

    def _position(self, folder: Path) -> tuple[int, int]:
        try:
            envelope = _read_envelope(folder)
        except FileNotFoundError:
            return 0, 0
        return envelope.revision, envelope.offset

    def _append(self, path: Path, offset: int, block: bytes) -> None:
        """Put the block after what is committed; what a crash left there is dropped.

        Raises:
            StateRefused: there is less than was committed.
        """
        with opened_regular(path, os.O_CREAT | os.O_RDWR) as handle:
            size = os.fstat(handle).st_size
            if size < offset:
                raise StateRefused(f"rows of run {path.parent.name} were cut off")
            if size > offset:
                self._disk.truncate(handle, offset)
            os.lseek(handle, offset, os.SEEK_SET)
            self._disk.write(handle, block)
            self._disk.sync(handle)

    def _replace(self, path: Path, body: bytes) -> None:
        """Write a file so that a reader, or a crash, sees the old bytes or the new ones."""
        draft = path.with_name(f".{path.name}.draft")
        self._write_draft(draft, body)
        self._disk.replace(draft, path)
        self._sync_folder(path.parent)

    def _write_draft(self, draft: Path, body: bytes) -> None:
        try:
            with opened_regular(draft, os.O_CREAT | os.O_TRUNC | os.O_RDWR) as handle:
                self._disk.write(handle, body)
                self._disk.sync(handle)
        except OSError:
            # On a full disk a half-written draft is only in the way.
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def _sync_folder(self, path: Path) -> None:
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._disk.sync(folder)
        finally:
            os.close(folder)

    def _delete(self, run_id: str) -> None:
        folder = self._folder(run_id)
        claim = self._claims.take(run_id)
        if claim is None:
            raise RunBusy(run_id)
        try:
            if not folder.is_dir():
                raise RunNotFound(run_id)
            with _locked(folder):
                # Gone as a whole, or not at all: a name that starts with a dot is no run.
                gone = self.path / f".gone-{secrets.token_hex(8)}"
                self._disk.replace(folder, gone)
                self._sync_folder(self.path)
            shutil.rmtree(gone)
        except OSError as error:
            raise StoreError(f"run {run_id} cannot be deleted: {error}") from error
        finally:
            claim.release()
        self._letter_counts.pop(run_id, None)

    # ── letters ───────────────────────────────────────────────────────────────────────────────

    def _post(self, run_id: str, key: str, body: bytes) -> bytes:
        folder = self._folder(run_id)
        if not (folder / "head.json").is_file():
            raise RunNotFound(run_id)
        box = folder / "letters"
        path = box / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        draft = box / f".{secrets.token_hex(8)}.draft"
        try:
            if not box.is_dir():
                box.mkdir(mode=0o700, exist_ok=True)
                self._sync_folder(folder)
            letter = orjson.dumps({"key": key, "body": body.decode()})
            if len(letter) > _MAX_LETTER_BYTES:
                raise StoreError(f"a letter to run {run_id} is too large")
            self._write_draft(draft, letter)
            try:
                # A link fails where there is a letter: the first one stands.
                with contextlib.suppress(FileExistsError):
                    self._disk.link(draft, path)
                self._sync_folder(box)
            finally:
                draft.unlink(missing_ok=True)
            return _read_letter(path)[1]
        except OSError as error:
            raise StoreError(f"a letter to run {run_id} cannot be written: {error}") from error

    def _read_letters(self, run_id: str) -> Mapping[str, bytes]:
        try:
            return dict(_read_letter(path) for path in _letter_files(self._folder(run_id)))
        except OSError as error:
            raise StoreError(f"the letters of run {run_id} cannot be read: {error}") from error


def _letter_files(folder: Path) -> list[Path]:
    box = folder / "letters"
    try:
        # At every save, and mostly there is none: one call, no objects.
        names = os.listdir(box)  # noqa: PTH208
    except FileNotFoundError:
        return []
    return [box / name for name in sorted(names) if not name.startswith(".")]


def _read_letter(path: Path) -> tuple[str, bytes]:
    try:
        value = orjson.loads(read_regular(path, _MAX_LETTER_BYTES))
        return str(value["key"]), str(value["body"]).encode()
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
        raise StateRefused(f"the letter {path.name} cannot be read") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time. Whoever holds the lock for long is stuck, and is not waited for.

    Raises:
        OSError: the lock cannot be had.
    """
    until = time.monotonic() + _LOCK_SECONDS
    with opened_regular(folder / "lock", os.O_CREAT | os.O_RDWR) as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield


@frozen(kw_only=True)
class _Envelope:
    """What `head.json` holds: the revision, where the rows end, and the sealed head."""

    revision: int
    offset: int
    head: bytes


@contextlib.contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _read_envelope(folder: Path, *, dir_fd: int | None = None) -> _Envelope:
    try:
        value = orjson.loads(read_regular(folder / "head.json", _MAX_HEAD_BYTES, dir_fd=dir_fd))
    except orjson.JSONDecodeError as error:
        raise StateRefused(f"{folder.name}/head.json is not JSON") from error
    if not isinstance(value, dict) or value.keys() | {"schema"} != _ENVELOPE_KEYS:
        raise StateRefused(f"{folder.name}/head.json is not a head")
    # What an earlier version wrote does not name it.
    if value.get("schema", _SCHEMA) != _SCHEMA:
        raise StateRefused(
            f"{folder.name}/head.json is of schema {value['schema']!r}, not {_SCHEMA}, "
            "which this version reads"
        )
    revision, offset, head = value.get("revision"), value.get("offset"), value.get("head")
    if not isinstance(revision, int) or not isinstance(offset, int) or not isinstance(head, str):
        raise StateRefused(f"{folder.name}/head.json is not a head")
    return _Envelope(revision=revision, offset=offset, head=head.encode())
