"""What saved runs look like on a terminal: pure but for the environment, whose secrets it knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime_pack.cli._show import show_budgets, show_steps
from runtime_pack.cli._text import plain
from runtime_pack.grants import Grant, totals
from runtime_pack.ledger import COST, DURATION, EXPIRES, UNLIMITED, LedgerView
from runtime_pack.ledger_limits import MICRO, Limits, money_text
from runtime_pack.messages import Json
from runtime_pack.runs import RunDetails, RunStatus, RunSummary, SavedRequest

__all__ = ("show_details", "show_summaries", "without_secrets")

_STYLES: Final[Mapping[RunStatus, str]] = {
    RunStatus.RUNNING: "green",
    RunStatus.WAITING: "yellow",
    RunStatus.ERROR: "red",
    RunStatus.DAMAGED: "bold red",
}
_SECRET_NAMES: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHORTEST_SECRET: Final = 8


def without_secrets(value: Json) -> Json:
    """The value with `[value of NAME]` where a text holds a secret of this process's environment.

    A model that got hold of one may have put it into arguments: whoever decides is told so.
    """
    return _redacted(value, _secrets())


def _secrets() -> Mapping[str, str]:
    return {
        secret: name
        for name, secret in os.environ.items()
        if name.upper().endswith(_SECRET_NAMES) and len(secret) >= _SHORTEST_SECRET
    }


def _redacted(value: Json, secrets: Mapping[str, str]) -> Json:
    if isinstance(value, str):
        for secret, name in secrets.items():
            value = value.replace(secret, f"[value of {name}]")
        return value
    if isinstance(value, Mapping):
        return {str(_redacted(k, secrets)): _redacted(item, secrets) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, secrets) for item in value]
    return value


def _shown(text: str) -> Text:
    """A text of a run: nothing in it is taken as markup or obeyed by the terminal."""
    found = without_secrets(text)
    return Text(plain(str(found)))


def _table(names: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _status(summary: RunSummary) -> Text:
    return Text(str(summary.status), style=_STYLES.get(summary.status, ""))


def _minute(when: datetime | None) -> str:
    return "" if when is None else f"{when:%Y-%m-%d %H:%M}"


def show_summaries(console: Console, found: Sequence[RunSummary]) -> None:
    """One line a run, and below it what is wrong with it or why it stopped."""
    table = _table(("run", "status", "saved (UTC)"), ("turns", "steps", "asks", "decided"))
    for run in found:
        counts = (run.turns, run.steps, run.pending, run.decided)
        shown = map(str, counts) if run.problem is None else ("", "", "", "")
        table.add_row(run.run_id, _status(run), _minute(run.saved_at), *shown)
    console.print(table)
    for run in found:
        for line in _remarks(run):
            console.print(_shown(f"{run.run_id}: {line}"), soft_wrap=True)


def _remarks(run: RunSummary) -> Iterable[str]:
    if run.problem is not None:
        yield run.problem
    if run.cancel is not None:
        yield f"to be cancelled ({run.cancel})"
    if run.stop is not None:
        yield f"{run.stop.code}: {run.stop.message}"


def show_details(console: Console, shown: RunDetails) -> None:
    """All of one run."""
    summary = shown.summary
    console.print(Text(f"run {summary.run_id}: "), _status(summary), sep="", end="\n")
    lines = [
        *_remarks(summary),
        f"saved {_minute(summary.saved_at)} UTC" if summary.saved_at else "",
        f"task {summary.task}" if summary.task else "",
        f"what the model has seen so far is {shown.label.integrity}",
    ]
    for line in filter(None, lines):
        console.print(_shown(line), soft_wrap=True)
    for request in shown.requests:
        _show_request(console, request, summary.run_id)
    for grant in shown.grants:
        text = f"granted by {grant.granted_by}: {grant.amount} more {grant.budget} ({grant.reason})"
        console.print(_shown(text), soft_wrap=True)
    show_steps(console, shown.steps)
    _show_ledger(console, shown.ledger, shown.grants)
    if shown.text:
        console.print(_shown(shown.text))
    if shown.audit_log is not None:
        console.print(_shown(f"log {shown.audit_log}\nhead {shown.audit_head}"), soft_wrap=True)


def _show_request(console: Console, saved: SavedRequest, run_id: str) -> None:
    request = saved.request
    arguments = orjson.dumps(dict(request.arguments), option=orjson.OPT_INDENT_2).decode()
    label = request.label
    lines = [
        f"\nrequest {request.request_id} (step {request.step})",
        *(
            []
            if request.run == run_id
            else [f"of its sub-agent {request.task} (run {request.run})"]
        ),
        f"{request.tool} asks to run with\n{arguments}",
        *(f"it needs you because: {reason}" for reason in request.reasons),
        f"when it asked, the model had seen what is {label.integrity} and {label.confidentiality}",
        f"asked {_minute(request.created_at)} UTC, {_until(saved)}",
    ]
    if saved.decision is not None:
        word = saved.decision
        lines.append(f"decided: {word.verdict} by {word.decided_by} {word.reason}".rstrip())
        if word.edited_args is not None:
            edited = orjson.dumps(dict(word.edited_args), option=orjson.OPT_INDENT_2).decode()
            lines.append(f"it runs with these arguments instead\n{edited}")
    console.print(_shown("\n".join(lines)), soft_wrap=True)


def _until(saved: SavedRequest) -> str:
    expires = saved.request.expires_at
    if expires is None:
        return "never expires"
    return f"{'EXPIRED' if saved.expired else 'expires'} {_minute(expires)} UTC"


def _show_ledger(console: Console, ledger: Mapping[str, Any], grants: Sequence[Grant]) -> None:
    """The rows of `ask`, under the limits that the next drive has: grants that wait are in them."""
    view = LedgerView(
        limits=_raised(Limits.from_json(ledger["limits"]), grants),
        used=ledger["used"],
        reserved=ledger["reserved"],
        active_seconds=ledger["active_us"] / MICRO,
        refused=ledger["refused"],
        violations=ledger["violations"],
        input_tokens=ledger["input_tokens"],
        output_tokens=ledger["output_tokens"],
    )
    show_budgets(console, view)
    held = [f"{_amount(name, units)} {name}" for name, units in view.reserved.items() if units]
    if held:
        console.print(_shown(f"reserved for what waits: {', '.join(held)}"), soft_wrap=True)


def _amount(budget: str, units: int) -> str:
    return money_text(units) if budget == COST else str(units)


def _raised(limits: Limits, grants: Sequence[Grant]) -> Limits:
    counts, seconds, ends = dict(limits.counts), limits.seconds, limits.expires_us
    for budget, units in totals(grants).items():
        limit = counts.get(budget, UNLIMITED)
        if budget == DURATION and seconds != UNLIMITED:
            seconds += units
        elif budget == EXPIRES and ends != UNLIMITED:
            ends += units * MICRO
        elif limit != UNLIMITED:
            counts[budget] = limit + units
    return Limits(counts=counts, seconds=seconds, expires_us=ends)
