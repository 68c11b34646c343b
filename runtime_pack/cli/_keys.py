"""Keys and kept checkpoints as options: a public line or a file that holds one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from runtime_pack.audit.note import SignedNote, VerifyKey, read_notes
from runtime_pack.cli._given import FILE
from runtime_pack.errors import AuditError
from runtime_pack.given_files import read_bounded

__all__ = ("kept_notes", "kept_option", "key_option", "read_line")

_MAX_BYTES: Final = 1 << 24


class _Key(click.ParamType[VerifyKey]):
    name = "KEY"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> VerifyKey:
        """NAME+ID+BASE64, or a file that holds such a line."""
        if isinstance(value, VerifyKey):
            return value
        text = str(value)
        try:
            return VerifyKey.parse(text if "+" in text else read_line(Path(text)))
        except AuditError as error:
            self.fail(str(error), param, ctx)


key_option = click.option(
    "--key", "keys", type=_Key(), multiple=True, help="A trusted public line, or a file with it."
)
kept_option = click.option(
    "--kept",
    "kept",
    type=FILE,
    multiple=True,
    help="A file of checkpoints that were kept elsewhere.",
)


def read_line(path: Path) -> str:
    """The text of a small file.

    Raises:
        AuditError: it cannot be read, is too large or no text.
    """
    try:
        return read_bounded(path, _MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"{path} cannot be read: {error}") from error


def kept_notes(paths: tuple[Path, ...]) -> tuple[SignedNote, ...]:
    """The checkpoints of files, whole ones only.

    Raises:
        AuditError: one cannot be read, or holds something else or a part of one.
    """
    found: list[SignedNote] = []
    for path in paths:
        text = read_line(path)
        text = text if text.endswith("\n\n") else f"{text}\n"
        notes, taken = read_notes(text)
        if taken != len(text) or not notes:
            raise AuditError(f"{path} does not hold whole checkpoints")
        found += notes
    return tuple(found)
