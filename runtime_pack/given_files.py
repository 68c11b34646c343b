"""Files that a user names: regular ones, read within bounds, and never waited for.

What a name leads to may be a pipe without a writer, a device without an end, a folder, or a file that
grows while it is read. To open it must not wait, and to read it must end. A link is followed: it is
the user's. For files that only a store writes there is `stores.regular`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ("MAX_LINE_BYTES", "chunks", "lines", "open_file", "opened", "read_bounded")

MAX_LINE_BYTES: Final = 1 << 24
"""The longest line of a log, without its line feed: none is written, and none is read."""

_CHUNK: Final = 1 << 20
# Without O_NONBLOCK, opening a pipe waits for its other end.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """An open regular file.

    Raises:
        OSError: it is not there, cannot be opened, or is something else than a file.
    """
    handle = open_file(path)
    try:
        yield handle
    finally:
        os.close(handle)


def open_file(path: Path) -> int:
    """The same, to be closed by the caller.

    Raises:
        OSError: as for `opened`.
    """
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        # A socket; a device that is not there.
        if error.errno == errno.ENXIO:
            raise _no_file(path) from error
        raise
    try:
        _check_kind(handle, path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_kind(handle: int, path: Path) -> None:
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(path))
    if not stat.S_ISREG(mode):
        raise _no_file(path)


def _no_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "is no regular file", str(path))


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file.

    Raises:
        OSError: as for `opened`; with `EFBIG`, it holds more than *most* bytes.
    """
    with opened(path) as handle:
        size = os.fstat(handle).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"is larger than {most} bytes", str(path))
        return b"".join(chunks(handle, 0, size))


def chunks(handle: int, start: int, end: int) -> Iterator[bytes]:
    """The bytes of an open file from *start* to *end*, or to where it ends before that."""
    while start < end and (chunk := os.pread(handle, min(_CHUNK, end - start), start)):
        start += len(chunk)
        yield chunk


def lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file, without their line feeds, and whether each had one; a torn one is the last.

    As many bytes are read as the file had when it was opened: what is added meanwhile is not.

    Raises:
        OSError: as for `opened`, or a line is longer than `MAX_LINE_BYTES`.
    """
    rest = b""
    with opened(path) as handle:
        for chunk in chunks(handle, 0, os.fstat(handle).st_size):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield _checked(line, path), True
            _checked(rest, path)
    if rest:
        yield rest, False


def _checked(line: bytes, path: Path) -> bytes:
    if len(line) > MAX_LINE_BYTES:
        problem = f"has a line of more than {MAX_LINE_BYTES} bytes"
        raise OSError(errno.EFBIG, problem, str(path))
    return line
