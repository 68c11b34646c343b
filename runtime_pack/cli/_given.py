"""Paths that a user gives: what is there and is no file is wrong usage, said before it is opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import click

__all__ = ("FILE", "LOGS", "GivenFile")


class GivenFile(click.ParamType[Path]):
    """A path to a regular file or, where *folders* are taken, a folder.

    What is not there passes, unless it has to exist: who reads it says so.

    Opening a pipe would wait for its other end, and a device has no end. Who reads looks again: what
    stands there may be exchanged meanwhile.
    """

    name = "FILE"

    def __init__(self, *, folders: bool = False, exists: bool = False) -> None:
        self._folders = folders
        self._exists = exists

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """The path as it was given."""
        path = Path(os.fsdecode(value) if isinstance(value, bytes) else str(value))
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            if self._exists:
                self.fail(f"{str(path)!a} does not exist", param, ctx)
            return path
        # A name that cannot be one, a loop of links, a folder that is closed to the user.
        except (OSError, ValueError) as error:
            self.fail(f"{str(path)!a} cannot be read: {error}", param, ctx)
        if stat.S_ISDIR(mode) and not self._folders:
            self.fail(f"{str(path)!a} is a folder, not a file", param, ctx)
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            self.fail(f"{str(path)!a} is no regular file", param, ctx)
        return path


FILE: Final = GivenFile()
LOGS: Final = GivenFile(folders=True, exists=True)
