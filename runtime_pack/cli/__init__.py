"""The `runtime-pack` command. Each subcommand is loaded when it is called.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage or nothing to be said, 3 a call waits for a
person, 4 suspended by a budget, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

_INTERRUPTED: Final = 130

try:
    import errno
    import importlib
    import io
    import os

    import click

    from runtime_pack.cli._text import note, prepare_streams
    from runtime_pack.errors import RuntimePackError
except KeyboardInterrupt:
    # Ctrl-C came before there was anything to interrupt.
    sys.exit(_INTERRUPTED)

__all__ = ("main",)

_COMMANDS: Final[Mapping[str, str]] = {
    "ask": "runtime_pack.cli.ask",
    "cite": "runtime_pack.cli.cite",
    "audit": "runtime_pack.cli.audit",
    "confine": "runtime_pack.cli.confine",
    "credential": "runtime_pack.cli.credential",
    "demo": "runtime_pack.cli.demo",
    "egress-proxy": "runtime_pack.cli.egress_proxy",
    "events": "runtime_pack.cli.events",
    "explain-url": "runtime_pack.cli.explain",
    "review": "runtime_pack.cli.review",
    "read": "runtime_pack.cli.read",
    "runs": "runtime_pack.cli.runs",
    "search": "runtime_pack.cli.search",
    "policy": "runtime_pack.cli.policy",
    "verify": "runtime_pack.cli.verify",
}


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
    """A governed agent loop: budgets, approvals, an allowlist, fenced pages, a log that verifies.

    Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 a call waits for a person, 4 suspended
    by a budget, 130 interrupted. The help of each command says what they mean there.
    """


def main() -> None:
    """Run the command line and exit with its code."""
    prepare_streams()
    try:
        code = _group.main(prog_name="runtime-pack", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        sys.exit(_INTERRUPTED)
    except click.ClickException as error:
        sys.exit(_told(error))
    # What the pack raises on purpose is told in a line; anything else is a fault of ours.
    except RuntimePackError as error:
        sys.exit(_told(click.ClickException(str(error))))
    except OSError as error:
        if error.errno not in _FULL:
            raise
        sys.exit(_full(error))
    sys.exit(code if isinstance(code, int) else 0)


# A disk that is full, a quota, a limit of the file's size, a device that fails.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def _full(error: OSError) -> int:
    """Help is written by click, into a buffer: what is left in it would fail once more at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _told(click.ClickException(f"nothing more can be written ({error.strerror})"))


def _told(error: click.ClickException) -> int:
    """Say what went wrong. Messages quote arguments, and a terminal must not obey those."""
    shown = io.StringIO()
    error.show(file=shown)
    note(shown.getvalue().rstrip("\n"))
    return error.exit_code
