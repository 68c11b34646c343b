"""`runtime-pack policy`: what a policy file says, and what logs say of a change of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from runtime_pack.cli._given import FILE
from runtime_pack.cli._policy_show import policy_json, policy_lines
from runtime_pack.cli._text import exit_codes, say, say_json
from runtime_pack.messages import Json
from runtime_pack.policy_file import (
    PolicyFile,
    PolicyFileRefused,
    PolicyFileUnreadable,
    read_policy,
)

__all__ = ("command", "egress_policy", "load_policy", "policy_option")

_EXIT: Final = exit_codes(
    {
        0: "the file can be enforced; what a run needs beside it is told",
        1: "it cannot; each fault is told",
        2: "wrong usage, or no file that can be read",
    }
)

policy_option = click.option(
    "--policy",
    "policy_path",
    type=FILE,
    metavar="FILE",
    help="A policy file; it takes the place of the options that it decides.",
)


_LISTS: Final[Mapping[str, str]] = {
    "entries": "--allow",
    "hosts": "--allowed-host",
    "allow_private_addresses": "--allow-private-addresses",
    "https_only": "--https-only",
}


def egress_policy(options: Mapping[str, Any]) -> PolicyFile | None:
    """The policy file of a command that lets others out, if one is named.

    Raises:
        click.UsageError: it is refused, or something that it decides was given too.
    """
    path = options["policy_path"]
    if path is None:
        return None
    return load_policy(path, {word: bool(options[name]) for name, word in _LISTS.items()})


def load_policy(path: Path, given: Mapping[str, bool]) -> PolicyFile:
    """The policy of *path*, for a command whose options *given* it decides.

    Raises:
        click.UsageError: one of them was given too, or the file is refused.
    """
    for option, is_given in given.items():
        if is_given:
            raise click.UsageError(f"{option} is decided by the policy file; leave it out")
    try:
        return read_policy(path)
    except PolicyFileRefused as error:
        told = "\n".join(f"  {fault}" for fault in error.faults)
        refused = f"{path} is refused:\n{told}"
        raise click.BadParameter(refused, param_hint="--policy") from error


class _PolicyGroup(click.Group):
    """Loads what reads logs only when it is asked for: other commands take their options from here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, sorted."""
        return sorted((*super().list_commands(ctx), "replay", "suggest"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None when there is no such name."""
        if cmd_name not in {"replay", "suggest"}:
            return super().get_command(ctx, cmd_name)
        from runtime_pack.cli import _policy_history

        history = _policy_history
        return history.replay_command if cmd_name == "replay" else history.suggest_command


@click.group("policy", cls=_PolicyGroup, short_help="Check, suggest and replay policy files.")
def command() -> None:
    """Policy files: what a task may read, call and spend."""


@command.command("check", short_help="Say what a policy file says.", epilog=_EXIT)
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
def check(path: Path, *, as_json: bool) -> int:
    """Read FILE as strictly as every command does, and say what it says, or all that is wrong with it.

    What a run under it needs beside the file (keys, a model with a price) stands under `needs`.
    """
    try:
        policy = read_policy(path)
    except PolicyFileRefused as error:
        if as_json:
            faults: list[Json] = [{"path": f.path, "problem": f.problem} for f in error.faults]
            say_json({"ok": False, "faults": faults})
        else:
            say("\n".join(f"{fault}" for fault in error.faults))
        return 2 if isinstance(error, PolicyFileUnreadable) else 1
    if as_json:
        say_json({"ok": True, **policy_json(policy)})
    else:
        say("\n".join(policy_lines(policy)))
    return 0
