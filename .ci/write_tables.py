"""Write the generated tables of README and docs, or say which are out of date.

    python .ci/write_tables.py           writes them
    python .ci/write_tables.py --check   changes nothing; exit code 1 when one differs

A table stands between `<!-- table:NAME -->` and `<!-- /table -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import attrs

from egress.reasons import DENY_ROWS, ENTRY_ROWS, URL_ROWS, ReasonRow
from runtime_pack.codes import CALL_ROWS, STOP_ROWS
from runtime_pack.events import EVENT_ROWS
from runtime_pack.policy import TaskContract, ToolPolicy
from web_tools.errors import CODES

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- table:(?P<name>[a-z-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in lines)
    return "".join(f"| {line} |\n" for line in cells)


def web_codes() -> str:
    """The eight codes of the web tools."""
    rows = (
        (f"`{code}`", facts.situation, str(facts.retry), "exactly one" if facts.violation else "no")
        for code, facts in CODES.items()
    )
    return table(("code", "situation", "retryable", "violation event"), rows)


def events() -> str:
    """Every event."""
    rows = (
        (
            f"`{code}`",
            f"`{row.type}`",
            ", ".join(row.rules) or "-",
            f"`{row.web}`" if row.web else "-",
            str(row.severity),
            row.meaning,
            row.advice,
        )
        for code, row in EVENT_ROWS.items()
    )
    return table(("code", "type", "rule", "web code", "severity", "meaning", "what to do"), rows)


def call_codes() -> str:
    """What the model is told of a call that did not succeed."""
    rows = ((f"`{code}`", row.meaning, row.advice) for code, row in CALL_ROWS.items())
    return table(("code", "meaning", "what to do"), rows)


def stop_codes() -> str:
    """Why a run is not completed."""
    rows = ((f"`{code}`", row.meaning, row.advice) for code, row in STOP_ROWS.items())
    return table(("code", "meaning", "what to do"), rows)


def reasons(rows: Iterable[tuple[str, ReasonRow]]) -> str:
    """Reason words of egress."""
    cells = ((f"`{word}`", row.rule, row.meaning, row.advice) for word, row in rows)
    return table(("reason", "rule", "meaning", "what to do"), cells)


def contract() -> str:
    """Every field of a `TaskContract`: its default, and what its docstring says of it."""
    told = (TaskContract.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", told, re.MULTILINE)
    meanings = {name: " ".join(text.split()) for name, text in entries}
    made = TaskContract()
    rows = (
        (f"`{field.name}`", default(getattr(made, field.name)), meanings[field.name])
        for field in attrs.fields(TaskContract)
        if field.init
    )
    return table(("field", "default", "meaning"), rows)


def default(value: object) -> str:
    """A default as a person writes it."""
    if isinstance(value, ToolPolicy):
        return "no rules"
    return f"`{value!r}`" if not isinstance(value, str) else f'`"{value}"`'


TABLES: dict[str, Callable[[], str]] = {
    "web-codes": web_codes,
    "events": events,
    "contract": contract,
    "call-codes": call_codes,
    "stop-codes": stop_codes,
    "deny-reasons": partial(reasons, DENY_ROWS.items()),
    "url-reasons": partial(reasons, URL_ROWS.items()),
    "entry-reasons": partial(reasons, ENTRY_ROWS.items()),
}


def written(text: str) -> str:
    """The page with its tables as they are now.

    Raises:
        KeyError: the page names a table that does not exist.
    """
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m['name']]()}{m[3]}", text)


def pages() -> list[Path]:
    """Every page that may hold a table."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(arguments: list[str]) -> int:
    """Write or check."""
    stale = [page for page in pages() if written(page.read_text()) != page.read_text()]
    if arguments == ["--check"]:
        for page in stale:
            print(f"{page.name} is out of date: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        page.write_text(written(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
