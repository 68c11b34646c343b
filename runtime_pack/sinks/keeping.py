"""The file that says how far a sink has got: one owner, replaced whole, on the disk before it counts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from runtime_pack.audit.files import sync_folder
from runtime_pack.errors import AuditError
from runtime_pack.given_files import read_bounded
from runtime_pack.sinks.places import Progress, parse_progress, progress_bytes

__all__ = ("Keeper",)

_MAX_BYTES: Final = 1 << 28


class Keeper:
    """Holds the state of one sink. Two forwarders of one sink would send everything twice: one may.

    Args:
        folder: where the state is kept, made with mode 0700 if it is not there.
        sink: the sink's name, which the file is called by.
        target: the log or folder of logs that is forwarded.

    Raises:
        AuditError: it cannot be made or locked, or another process forwards to this sink.
    """

    def __init__(self, folder: Path, sink: str, target: Path) -> None:
        self._sink, self._target = sink, str(target.absolute())
        self.path = folder / f"{sink}.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(folder / f"{sink}.lock", flags, 0o600)
        except OSError as error:
            raise AuditError(f"the state of the sink cannot be kept: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise AuditError(f"another process forwards to the sink {sink}") from error

    def load(self) -> Progress:
        """The state as it was saved last; none of it for a sink that is new.

        Raises:
            AuditError: it cannot be read, or is not of this sink and these logs.
        """
        try:
            content = read_bounded(self.path, _MAX_BYTES)
        except FileNotFoundError:
            return Progress()
        except OSError as error:
            raise AuditError(f"the state of the sink cannot be read: {error}") from error
        return parse_progress(content, sink=self._sink, target=self._target)

    def save(self, progress: Progress) -> None:
        """Replace the state; it is on the disk when this returns.

        Raises:
            OSError: it was not replaced: what was there is there still.
        """
        content = progress_bytes(progress, sink=self._sink, target=self._target)
        draft = self.path.with_name(f"{self.path.name}.new")
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, 0o600), "wb", buffering=0) as file:
            # A short write says that the disk is full without an error.
            if file.write(content) != len(content):
                raise OSError("written only in part (is the disk full?)")
            os.fsync(file.fileno())
        draft.replace(self.path)
        sync_folder(self.path.parent)

    def close(self) -> None:
        """Let another forwarder have the sink. May be called twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
