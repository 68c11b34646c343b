"""Files as a store reads and writes them: regular ones only, of a bounded size, never through a link.

Whoever can write the folder may have put a pipe, a device or a link in the place of a file; to open
one must not wait, and to read one must end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runtime_pack.errors import StateRefused

__all__ = ("opened_regular", "read_regular")

# Without O_NONBLOCK, opening a pipe waits for its other end.
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_regular(path: Path, most: int, *, dir_fd: int | None = None) -> bytes:
    """The content of a file; with *dir_fd*, of the one of its name in that open folder.

    Raises:
        OSError: it is not there or cannot be read.
        StateRefused: there is something of the name that is no file, or it is above *most* bytes.
    """
    with opened_regular(path, os.O_RDONLY, dir_fd=dir_fd) as handle:
        if os.fstat(handle).st_size > most:
            raise StateRefused(f"{_name(path)} is larger than {most} bytes")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(most)


@contextlib.contextmanager
def opened_regular(path: Path, flags: int, *, dir_fd: int | None = None) -> Iterator[int]:
    """An open file; one that is made is for its owner only.

    Raises:
        OSError: it is not there or cannot be opened.
        StateRefused: there is something of the name that is no file.
    """
    named = path if dir_fd is None else path.name
    try:
        handle = os.open(named, flags | _FLAGS, 0o600, dir_fd=dir_fd)
    except OSError as error:
        # A link; a pipe that nobody reads, or a device that is not there.
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise StateRefused(f"{_name(path)} is no regular file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise StateRefused(f"{_name(path)} is no regular file")
        yield handle
    finally:
        os.close(handle)


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
