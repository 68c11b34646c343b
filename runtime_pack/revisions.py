"""The texts of revisions on disk: one file a text, named by its digest, for several processes.

Content only: nothing in the folder says where a text is from or who read it. A file is written whole
and given its name afterwards; one that does not have its digest is no text. Whoever writes holds
the folder's lock, so the bounds hold for all processes together.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from citations.digests import revision_id
from citations.revisions import MAX_BYTES, MAX_ENTRIES
from runtime_pack.errors import ContractError, StateRefused
from runtime_pack.inner import frozen
from runtime_pack.stores.regular import opened_regular, read_regular

__all__ = ("DirectoryRevisionStore",)

_NAME: Final = re.compile(r"[0-9a-f]{64}\Z")
_ID: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")
_DRAFT: Final = ".draft-"
_LOCK: Final = ".lock"
_REPLACED: Final = re.compile("[\ud800-\udfff]")
# Writers hold the lock for milliseconds; whoever holds it for longer is stuck, and not waited for.
_LOCK_SECONDS: Final = 3.0
_LOCK_PAUSE_SECONDS: Final = 0.01


@frozen
class _Entry:
    """A kept text as the folder shows it; sorted, the one used least recently is first."""

    used_ns: int
    name: str
    size: int


class DirectoryRevisionStore:
    """Texts as files of mode 0600 in a folder of mode 0700, bounded over all processes.

    Args:
        path: made by the first text that is kept.
        max_entries: how many texts are kept.
        max_bytes: how many bytes of UTF-8 they have together.

    Raises:
        ContractError: a bound is not a whole number from 1.
    """

    def __init__(
        self, path: Path | str, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES
    ) -> None:
        for name, bound in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if type(bound) is not int or bound < 1:
                raise ContractError(name, "must be a whole number from 1")
        # Made by the first text: who only reads makes nothing.
        self.path = Path(path)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._one_at_a_time = threading.Lock()

    def put(self, text: str, /) -> str | None:
        """Keep a text. See `citations.revisions.RevisionStore.put`.

        Raises:
            OSError: it could not be written, or the lock was not to be had within three seconds.
        """
        # As it is digested: a lone surrogate has no UTF-8.
        content = _REPLACED.sub("\N{REPLACEMENT CHARACTER}", text).encode()
        if len(content) > self._max_bytes:
            return None
        name = hashlib.sha256(content).hexdigest()
        with self._locked():
            if self._is_whole(name, content):
                os.utime(self.path / name, follow_symlinks=False)
            else:
                self._write(name, content)
            self._keep_bounds(name)
        return f"sha256:{name}"

    def get(self, revision: str, /) -> str | None:
        """The text of a revision; None when it is not kept, is damaged, or cannot be read."""
        named = _ID.match(revision)
        if named is None:
            return None
        path = self.path / named[1]
        try:
            text = read_regular(path, self._max_bytes).decode()
            if revision_id(text) != revision:
                return None
            # A use; whether it can be noted does not matter.
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)
        except (OSError, UnicodeDecodeError, StateRefused):
            return None
        return text

    def forget(self, revisions: Iterable[str]) -> int:
        """Delete texts; how many were there.

        Raises:
            OSError: one could not be deleted, or the lock was not to be had within three seconds.
        """
        named = [match[1] for match in map(_ID.match, revisions) if match is not None]
        if not named or not self.path.is_dir():
            return 0
        count = 0
        with self._locked():
            for name in named:
                with contextlib.suppress(FileNotFoundError):
                    (self.path / name).unlink()
                    count += 1
        return count

    def __len__(self) -> int:
        """How many texts are kept."""
        return len(self._entries()) if self.path.is_dir() else 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, over threads and processes; a dead one holds nothing."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        until = time.monotonic() + _LOCK_SECONDS
        if not self._one_at_a_time.acquire(timeout=_LOCK_SECONDS):
            raise BlockingIOError("another thread holds the lock of the revisions")
        try:
            with opened_regular(self.path / _LOCK, os.O_RDWR | os.O_CREAT) as handle:
                _lock(handle, until)
                yield
        except StateRefused as error:
            raise OSError(str(error)) from error
        finally:
            self._one_at_a_time.release()

    def _is_whole(self, name: str, content: bytes) -> bool:
        try:
            return read_regular(self.path / name, self._max_bytes) == content
        except (OSError, StateRefused):
            return False

    def _write(self, name: str, content: bytes) -> None:
        draft = self.path / f"{_DRAFT}{secrets.token_hex(8)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _keep_bounds(self, latest: str) -> None:
        """Drop what was used least recently, and what a writer that died left behind."""
        entries = sorted(self._entries(), key=lambda entry: (entry.name == latest, entry.used_ns))
        count, size = len(entries), sum(entry.size for entry in entries)
        for entry in entries:
            if count <= self._max_entries and size <= self._max_bytes:
                break
            (self.path / entry.name).unlink(missing_ok=True)
            count, size = count - 1, size - entry.size
        for path in self.path.iterdir():
            if path.name.startswith(_DRAFT):
                # Nobody else writes while the lock is held.
                path.unlink(missing_ok=True)

    def _entries(self) -> list[_Entry]:
        entries: list[_Entry] = []
        with os.scandir(self.path) as found:
            for file in found:
                if _NAME.match(file.name):
                    with contextlib.suppress(FileNotFoundError):
                        stat = file.stat(follow_symlinks=False)
                        entries.append(_Entry(stat.st_mtime_ns, file.name, stat.st_size))
        return entries


def _lock(handle: int, until: float) -> None:
    """Hold the lock of a folder, of all processes; once more after a pause while others do.

    Raises:
        BlockingIOError: it was not to be had until that moment.
    """
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return
