"""`runtime-pack cite RUN`: the answer of a run, its quotations checked against what was read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from citations import CitedAnswer
from runtime_pack.cited import cite_saved_run
from runtime_pack.cli._saved import found_run, opened_folder, wait
from runtime_pack.cli._state import state_option
from runtime_pack.cli._text import exit_codes, say

__all__ = ("command",)


def _json(value: object) -> str:
    """ASCII only, for machines and for terminals alike."""
    return json.dumps(value, indent=2)


_FORMATS: Final[Mapping[str, Callable[[CitedAnswer], str]]] = {
    "text": CitedAnswer.to_text,
    "markdown": CitedAnswer.to_markdown,
    "json": lambda cited: _json(cited.to_json()),
    "csl-json": lambda cited: _json(cited.to_csl()),
}
_EXIT: Final = exit_codes(
    {
        0: "every quotation is verified, there is one, and every source was read",
        1: "not so, or the run has no answer, or it is damaged",
        2: "wrong usage, no such run",
    }
)


@click.command(
    "cite", short_help="Print the answer of a run with checked references.", epilog=_EXIT
)
@click.argument("run")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="text for people; markdown; json with the selectors of every quotation; csl-json for reference managers.",
)
@state_option
def command(run: str, form: str, state_dir: Path | None) -> int:
    """Print the answer of RUN with numbered references, each quotation checked.

    RUN is the id of a run or its beginning. A quotation is verified when its words stand in the text
    that was read from the source it names: what typography changes does not count, a changed word
    does. What is not verified is marked: NOT FOUND, ONLY IN A SEARCH RESULT, or SOURCE NOT READ.

    Checked is against the texts that `ask` keeps below the state folder; nothing is fetched.
    """
    state = opened_folder(state_dir)
    cited = wait(cite_saved_run(state.store, found_run(state, run), state.revisions))
    say(_FORMATS[form](cited))
    return 0 if cited.ok else 1
