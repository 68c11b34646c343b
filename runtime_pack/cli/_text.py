"""Text on its way out: to a terminal, which must not obey it, and to a machine, as ASCII JSON."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

import click

from runtime_pack.messages import Json

__all__ = (
    "exit_codes",
    "note",
    "note_part",
    "plain",
    "prepare_streams",
    "say",
    "say_bytes",
    "say_json",
)


def prepare_streams() -> None:
    """Make the standard streams usable, whatever this process was started with.

    One that is closed leads to the null device from here on: else the next file or socket that is
    opened has its number, and is taken for it by whatever is started. A character that the
    encoding of the terminal does not have is escaped, and no error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            mode = "w" if number else "r"
            # In this order each gets the lowest number that is free, which is its own.
            handle = os.open(os.devnull, os.O_WRONLY if number else os.O_RDONLY)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def plain(text: str) -> str:
    """Text that a terminal shows and does not obey: control characters are made visible."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def exit_codes(meanings: Mapping[int, str]) -> str:
    """The end of a command's help: one line a code, which click must not wrap."""
    width = max(len(str(code)) for code in meanings)
    lines = [f"  {code:<{width}}  {meaning}" for code, meaning in meanings.items()]
    return "\n".join(("\b", "Exit codes:", *lines))


def say(text: str) -> None:
    """One text on standard output.

    Raises:
        click.ClickException: not all of it could be written.
    """
    _write(sys.stdout, f"{plain(text)}\n")


def note(text: str) -> None:
    """One text on standard error, which a machine that reads the output does not see."""
    click.echo(plain(text), err=True)


def note_part(text: str) -> None:
    """A part of a line on standard error; what follows stands right behind it."""
    click.echo(plain(text), err=True, nl=False)


def say_bytes(line: bytes) -> None:
    """One line of UTF-8 on standard output, as it is: JSON has no control characters below a space.

    Raises:
        click.ClickException: not all of it could be written.
    """
    _write(sys.stdout, f"{line.decode('utf-8', 'replace')}\n")


def say_json(value: Mapping[str, Json]) -> None:
    """One object on one line of standard output.

    ASCII only: what could drive a terminal, and what is no valid Unicode, is escaped.

    Raises:
        click.ClickException: not all of it could be written.
    """
    _write(sys.stdout, f"{json.dumps(value, separators=(',', ':'))}\n")


def _write(stream: TextIO, text: str) -> None:
    """All of it, at once: who reads half of an object must not be told that all is well."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError):
        # No file: a test looks on.
        stream.write(text)
        return
    try:
        stream.flush()
        left = memoryview(text.encode(stream.encoding, "backslashreplace"))
        while left:
            left = left[os.write(handle, left) :]
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise click.ClickException(f"the output cannot be written ({error.strerror})") from error
