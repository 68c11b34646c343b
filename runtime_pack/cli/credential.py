"""`runtime-pack credential set|list|remove`: keys of search back ends, kept encrypted.

A key comes in on standard input, never as an argument, which every process can see, and never
goes out again: `list` shows names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from runtime_pack.cli._text import exit_codes, note, say, say_json
from runtime_pack.credentials import EncryptedCredentials
from runtime_pack.errors import RuntimePackError
from runtime_pack.messages import Json
from runtime_pack.state_folder import default_folder
from web_tools.contract.credentials import check_name
from web_tools.errors import InvalidSetup

__all__ = ("command",)

_MAX_BYTES: Final = 16_384
_EXIT: Final = exit_codes(
    {0: "done", 1: "it cannot be stored or read, or is not there", 2: "wrong usage"}
)

_folder = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where credentials are kept; by default the folder of the saved runs.",
)


@click.group("credential", short_help="Store keys of search back ends, encrypted.")
def command() -> None:
    """Credentials: one name whatever the vendor, `search.apiKey`. They are shown to nobody."""


@command.command("set", short_help="Store a credential.", epilog=_EXIT)
@click.argument("name", metavar="NAME")
@_folder
def set_(name: str, state_dir: Path | None) -> int:
    """Store the credential NAME, read from standard input: printf %s "$KEY" | runtime-pack credential set search.apiKey."""
    try:
        _store(state_dir).put(check_name(name), _given())
    except (InvalidSetup, RuntimePackError) as error:
        raise click.ClickException(str(error)) from None
    say(f"stored {name}")
    return 0


@command.command("list", short_help="Show the names of what is stored.", epilog=_EXIT)
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
def list_(state_dir: Path | None, *, as_json: bool) -> int:
    """Show names, never values."""
    names = _store(state_dir).names()
    if as_json:
        listed: list[Json] = [*names]
        say_json({"credentials": listed})
    else:
        say("\n".join(names) if names else "no credential is stored")
    return 0


@command.command("remove", short_help="Forget a credential.", epilog=_EXIT)
@click.argument("name", metavar="NAME")
@_folder
def remove(name: str, state_dir: Path | None) -> int:
    """Forget the credential NAME."""
    try:
        there = _store(state_dir).remove(name)
    except InvalidSetup as error:
        raise click.ClickException(str(error)) from None
    if not there:
        note(f"there is no credential {name}")
        return 1
    say(f"removed {name}")
    return 0


def _store(folder: Path | None) -> EncryptedCredentials:
    return EncryptedCredentials(default_folder() if folder is None else folder)


def _given() -> str:
    """What came in, without the end of its line.

    Raises:
        click.ClickException: nothing came, or it is no text, or too long.
    """
    if sys.stdin.isatty():
        return str(click.prompt("Credential", hide_input=True))
    body = sys.stdin.buffer.read(_MAX_BYTES + 1)
    try:
        text = body.decode("ascii")
    except UnicodeDecodeError:
        raise click.ClickException("a credential is a text in ASCII") from None
    given = text.removesuffix("\n").removesuffix("\r")
    if not given:
        text = 'nothing came in: printf %s "$KEY" | runtime-pack credential set NAME'
        raise click.ClickException(text)
    return given
