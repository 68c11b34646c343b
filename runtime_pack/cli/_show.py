"""What a run looks like on a terminal and as JSON: pure, from a result to text and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime_pack.catalog import TURN_TOOL
from runtime_pack.cli._text import plain
from runtime_pack.ledger import COST, STEPS, TOKENS, TURNS, UNLIMITED, WRAP_UP, LedgerView
from runtime_pack.ledger_limits import money_text
from runtime_pack.loop import LoopResult
from runtime_pack.messages import Json
from runtime_pack.records import StepRecord
from runtime_pack.tool_aliases import READ_TOOL, original_of

__all__ = (
    "Reference",
    "budget_rows",
    "pages_read",
    "references",
    "result_json",
    "show_answer",
    "show_budgets",
    "show_steps",
    "unread_urls",
)

_REFERENCE: Final = re.compile(r"^\[(?P<number>[1-9][0-9]{0,3})\] (?P<url>\S+)$", re.MULTILINE)


_URL: Final = re.compile(r"https?://[^\s<>\"'`\[\]{}|\\^]+", re.IGNORECASE)
# What stands behind a URL in prose and is no part of it.
_AFTER_A_URL: Final = ".,;:!?)*_"


@attrs.frozen(kw_only=True)
class Reference:
    """A numbered source of an answer; `citation` is None when the run did not read it."""

    number: int
    url: str
    citation: Mapping[str, str] | None


def references(text: str, steps: Iterable[StepRecord]) -> tuple[Reference, ...]:
    """The numbered sources at the end of an answer, matched with what the run has read."""
    read = {
        citation["path"]: citation
        for record in steps
        if original_of(record.tool) == READ_TOOL and record.ok
        for citation in record.citations
    }
    return tuple(
        Reference(number=int(m["number"]), url=m["url"], citation=read.get(m["url"]))
        for m in _REFERENCE.finditer(text)
    )


def show_answer(console: Console, result: LoopResult) -> None:
    """The answer and its references. Nothing in it is taken as markup."""
    body, listed = _REFERENCE.sub("", result.text).rstrip(), references(result.text, result.steps)
    if body:
        console.print(Text(plain(body)))
    if body and not listed:
        _show_read(console, body, result.steps)
    if listed:
        console.print()
    for reference in listed:
        console.print(Text(_reference_line(reference)), soft_wrap=True)


def _show_read(console: Console, body: str, steps: Sequence[StepRecord]) -> None:
    """Of an answer without numbered sources: what was read, and which of its URLs were not."""
    read = pages_read(steps)
    if read:
        console.print("\npages read:")
    for url in read:
        console.print(Text(f"  {plain(url)}"), soft_wrap=True)
    for url in unread_urls(body, read):
        console.print(Text(f"NOT READ in this run: {plain(url)}", style="red"), soft_wrap=True)


def pages_read(steps: Iterable[StepRecord]) -> tuple[str, ...]:
    """The addresses of the pages that a run has read, each once."""
    found = [
        citation["path"]
        for record in steps
        if original_of(record.tool) == READ_TOOL and record.ok
        for citation in record.citations
    ]
    return tuple(dict.fromkeys(found))


def unread_urls(text: str, read: Iterable[str]) -> tuple[str, ...]:
    """The URLs that a text names and that are none of *read*. A fragment makes no other page."""
    known = {url.partition("#")[0].rstrip("/") for url in read}
    named = (found.rstrip(_AFTER_A_URL) for found in _URL.findall(text))
    unread = (url for url in named if url.partition("#")[0].rstrip("/") not in known)
    return tuple(dict.fromkeys(unread))


def _reference_line(reference: Reference) -> str:
    head = f"[{reference.number}] {plain(reference.url)}\n    "
    if reference.citation is None:
        return f"{head}NOT READ in this run"
    when, revision = reference.citation["retrievedAt"], reference.citation["revisionId"]
    return f"{head}read {when[:19]}Z, revision {revision[:19]}"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def show_steps(console: Console, steps: Sequence[StepRecord]) -> None:
    """One row a turn or call, with what it cost."""
    table = _table()
    for name in ("step", "tool", "outcome"):
        table.add_column(name)
    priced = any(record.cost for record in steps)
    for name in ("turns", "steps", "ms", "tokens", *(["cost"] if priced else [])):
        table.add_column(name, justify="right")
    for record in sorted(steps, key=_place):
        outcome = "ok" if record.ok else Text(plain(record.code or "failed"), style="red")
        money = (money_text(record.cost),) if priced else ()
        table.add_row(record.step, Text(plain(record.tool)), outcome, *_costs(record), *money)
    console.print()
    console.print(table)


def _place(record: StepRecord) -> list[tuple[int, str]]:
    """Steps in the order in which they were asked for: `t2` before `t10`."""
    return [
        (int(part) if part.isdigit() else -1, part)
        for part in re.findall(r"[0-9]+|[^0-9]+", record.step)
    ]


def _costs(record: StepRecord) -> tuple[str, str, str, str]:
    is_turn = record.tool == TURN_TOOL
    tokens = record.input_tokens + record.output_tokens
    return (
        "1" if is_turn else "",
        "" if is_turn else str(int(record.admitted)),
        f"{record.elapsed_us / 1000:.1f}" if record.admitted else "",
        str(tokens) if is_turn else "",
    )


def budget_rows(view: LedgerView) -> tuple[tuple[str, str, str, str], ...]:
    """Budget, limit, used and left, as text."""
    rows = [
        (
            name,
            str(view.limits.counts.get(name, UNLIMITED)),
            str(view.used.get(name, 0)),
            str(view.left(name)),
        )
        for name in (TURNS, STEPS, *sorted(n for n in view.limits.counts if n.startswith("tool:")))
    ]
    for name, text in ((TOKENS, str), (COST, money_text)):
        counted = view.limits.counts.get(name, UNLIMITED), view.used.get(name, 0), view.left(name)
        if name in view.limits.counts or counted[1]:
            most, spent, rest = (n if isinstance(n, str) else text(n) for n in counted)
            rows.append((name, most, spent, rest))
    if view.used.get(WRAP_UP, 0):
        # The last turn, without tools, that a used-up budget leaves.
        rows.append(("wrap-up turn", "1", "1", "0"))
    limit, used = view.limits.seconds, view.active_seconds
    left = UNLIMITED if limit == UNLIMITED else f"{max(0.0, limit - used):.1f}"
    rows.append(("seconds", str(limit), f"{used:.1f}", left))
    return tuple(rows)


def show_budgets(console: Console, view: LedgerView) -> None:
    """What was used and what is left."""
    table = _table()
    table.add_column("budget")
    for name in ("limit", "used", "left"):
        table.add_column(name, justify="right")
    for row in budget_rows(view):
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print()


def result_json(result: LoopResult) -> dict[str, Json]:
    """A result for machines."""
    cited: list[Json] = [
        {
            "number": r.number,
            "url": r.url,
            "citation": None if r.citation is None else dict(r.citation),
        }
        for r in references(result.text, result.steps)
    ]
    return {
        "kind": str(result.kind),
        "run": result.run_id,
        "text": result.text,
        "references": cited,
        "stop": None if result.stop is None else result.stop.to_json(),
        "ledger": result.ledger.to_json(),
        "steps": [record.to_json() for record in result.steps],
        "requests": [request.to_json() for request in result.requests],
    }
