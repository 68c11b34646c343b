"""The `runtime-pack` command. Each subcommand is loaded when it is called.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage or nothing to be said, 3 a call waits for a
person, 4 suspended (a budget ran out, or the run was paused), 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

import click

__all__ = ("main",)

_COMMANDS: Final = {
    "ask": "runtime_pack.cli.ask",
    "demo": "runtime_pack.cli.demo",
    "explain-url": "runtime_pack.cli.explain",
    "verify": "runtime_pack.cli.verify",
}
INTERRUPTED: Final = 130


class _LazyGroup(click.Group):
    """Loads a subcommand's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, sorted."""
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None when there is no such name."""
        del ctx
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = importlib.import_module(module).command
        return command if isinstance(command, click.Command) else None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agent-runtime-pack", prog_name="runtime-pack")
def _group() -> None:
    """A governed agent loop: budgets, approvals, an allowlist, fenced pages, a log that verifies."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        code = _group.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
