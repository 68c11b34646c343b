"""Who drives which run, among the processes of one machine: locks that end with their holder.

One file, one byte a run. The locks belong to an open file, not to a process ("open file description
locks", fcntl(2)): two stores of one process exclude each other too, and the kernel lets go of them
when the process dies, however it dies. A process that was forked without an exec shares them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from pathlib import Path
from typing import Final

from runtime_pack.errors import StoreError

__all__ = ("Claims",)

# struct flock of Linux: type, whence, start, len, pid; padded to the alignment of off_t.
_FLOCK: Final = struct.Struct("@hhqqi0q")
_DIGITS: Final = 15


class Claims:
    """The claims that are kept in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, run_id: str) -> FileClaim | None:
        """The claim on the run, or None while another open file has it.

        Raises:
            StoreError: the file cannot be opened or locked.
        """
        try:
            handle = self._open(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, run_id))
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            os.close(handle)
            raise StoreError(f"{self.path} cannot be locked: {error}") from error
        return FileClaim(handle)

    def is_taken(self, run_id: str) -> bool:
        """Whether somebody has the claim. Takes no lock and makes no file.

        Raises:
            StoreError: the file cannot be opened or asked.
        """
        try:
            handle = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        try:
            told = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, run_id))
        except OSError as error:
            raise StoreError(f"{self.path} cannot be asked: {error}") from error
        finally:
            os.close(handle)
        return bool(_FLOCK.unpack(told)[0] != fcntl.F_UNLCK)

    def _open(self, flags: int) -> int:
        return os.open(self.path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class FileClaim:
    """A claim that is held for as long as a file is open."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """See `Claim.release`."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.release()


def _flock(kind: int, run_id: str) -> bytes:
    """A lock on the byte that stands for the run: 60 bits of a digest, so that no two share one."""
    start = int(hashlib.sha256(run_id.encode()).hexdigest()[:_DIGITS], 16)
    return _FLOCK.pack(kind, os.SEEK_SET, start, 1, 0)
