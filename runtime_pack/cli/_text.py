"""Text on its way out: to a terminal, which must not obey it, and to a machine, as ASCII JSON."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

import click

from runtime_pack.messages import Json

__all__ = ("exit_codes", "note", "plain", "say", "say_bytes", "say_json")


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
