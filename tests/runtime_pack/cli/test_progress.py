"""The moving line of the demonstration: on a terminal, and nowhere else."""

import io

import pytest
from rich.console import Console

from runtime_pack.cli.demo import _Show


@pytest.mark.parametrize(
    ("is_terminal", "is_quiet", "shown"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_progress_is_shown_on_a_terminal_only(
    is_terminal: bool, is_quiet: bool, shown: bool
) -> None:
    """A person sees what is being done; a pipe and --json see nothing of it."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=80)

    with _Show(console=console, quiet=is_quiet).progress("indexing the embedded corpus"):
        pass

    assert shown == ("indexing the embedded corpus" in written.getvalue())
