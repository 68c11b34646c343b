"""`runtime-pack events`: look at what stands in logs: list, show, count, follow, export, forward.

Everything that is shown passes for text only: a terminal must not obey what a model or a page wrote.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
import orjson

from runtime_pack.audit.facts import EventFacts, Wanted, facts_of, read_record
from runtime_pack.audit.following import Follower
from runtime_pack.audit.index import GROUPS, EventIndex, check_place, default_index, logs_in
from runtime_pack.cli._forward import forward_command
from runtime_pack.cli._given import FILE, LOGS
from runtime_pack.cli._state import is_new, open_state, state_option
from runtime_pack.cli._text import exit_codes, note, say, say_bytes, say_json
from runtime_pack.errors import AuditError
from runtime_pack.exports import FORMATS
from runtime_pack.messages import Json

__all__ = ("command", "event_filters", "log_target")

_CODES: Final = exit_codes({0: "done", 1: "a log cannot be read", 2: "wrong usage, no such event"})
_TAIL_CODES: Final = exit_codes({0: "done, or interrupted while it followed", 1: "unreadable"})
_UNITS: Final[Mapping[str, str]] = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_POLL_SECONDS: Final = 0.2
_MOST: Final = 1_000_000_000


class _Moment(click.ParamType[datetime]):
    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """RFC 3339 with a zone, a date, or so long ago: 30m, 6h, 7d."""
        if isinstance(value, datetime):
            return value
        text = str(value)
        unit = _UNITS.get(text[-1:])
        if unit and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 8:
            return datetime.now(UTC) - timedelta(**{unit: int(text[:-1])})
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            problem = f"{text[:80]!r} is no time: 2026-03-01T10:00:00Z, 2026-03-01, 30m, 6h, 7d"
            self.fail(problem, param, ctx)
        try:
            return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
        except OverflowError:
            self.fail(f"{text[:80]!r} is before or after all times", param, ctx)


class _Words(click.ParamType[str]):
    name = "TEXT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Text that can be looked for: bytes that are no UTF-8 stand in no event."""
        text = str(value)
        if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
            self.fail("it is not UTF-8", param, ctx)
        return text


_log = click.option(
    "--log",
    "target",
    type=LOGS,
    help="A log, or a folder of logs.  [default: the logs of the state folder]",
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
_limit = click.option("-n", "limit", type=click.IntRange(1, _MOST), default=50, show_default=True)
_index = click.option("--index", "index_path", type=FILE, help="Where the index is kept.")


def event_filters(function: Callable[..., int]) -> Callable[..., int]:
    """The options that say which events are wanted."""
    for option in reversed(
        (
            click.option("--run", type=_Words(), help="A run's id or its beginning."),
            click.option(
                "--agent", type=_Words(), help="An agent; * and ? are patterns, here and below."
            ),
            click.option("--host", type=_Words(), help="The host of a denial."),
            click.option("--rule", type=_Words(), help="The rule that decided, such as R4."),
            click.option(
                "--code", type=_Words(), help="The event's code, such as EGR001D or APR*."
            ),
            click.option("--tool", type=_Words(), help="The tool."),
            click.option(
                "--since", type=_Moment(), help="At or after: a time, or 30m, 6h, 7d ago."
            ),
            click.option("--until", type=_Moment(), help="Before."),
            click.option("--denied", is_flag=True, help="What was denied only."),
        )
    ):
        function = option(function)
    return function


@click.group("events", short_help="List, show, count, follow and export what stands in logs.")
def command() -> None:
    """What the logs say, in the order of time; many logs are read as one.

    An index is kept beside the logs and brought up to date first. It is no evidence: `runtime-pack
    audit verify` says whether a log is what was written.
    """


command.add_command(forward_command)


@command.command("ls", epilog=_CODES)
@_log
@event_filters
@_limit
@_index
@_json
@state_option
def ls_command(
    *,
    target: Path | None,
    limit: int,
    index_path: Path | None,
    as_json: bool,
    state_dir: Path | None,
    **wanted: Any,
) -> int:
    """The last events that fit, the newest last."""
    with _indexed(log_target(target, state_dir), index_path) as index:
        places = list(index.select(Wanted(**wanted), limit=limit, newest=True))
    for place in reversed(places):
        _show(place.line() if as_json else b"", place.facts, as_json=as_json)
    if not places and not as_json:
        note("no events")
    return 0


@command.command("show", epilog=_CODES)
@click.argument("event", type=_Words())
@_log
@_index
@_json
@state_option
def show_command(
    event: str, target: Path | None, index_path: Path | None, as_json: bool, state_dir: Path | None
) -> int:
    """One event, whole: by its id, or by the number of its line."""
    with _indexed(log_target(target, state_dir), index_path) as index:
        places = index.find(event)
    if not places:
        raise click.UsageError("there is no event of that id or number")
    for place in places:
        line = place.line()
        record = read_record(line)
        if as_json:
            _show(line, place.facts, as_json=True)
            continue
        say(f"{place.log}")
        body = line if record is None else orjson.dumps(record, option=orjson.OPT_INDENT_2)
        say(body.decode("utf-8", "replace"))
    return 0


@command.command("top", epilog=_CODES)
@_log
@event_filters
@click.option(
    "--by", type=click.Choice(GROUPS), multiple=True, default=("host", "rule"), show_default=True
)
@_limit
@_index
@_json
@state_option
def top_command(
    *,
    target: Path | None,
    by: tuple[str, ...],
    limit: int,
    index_path: Path | None,
    as_json: bool,
    state_dir: Path | None,
    **wanted: Any,
) -> int:
    """What comes most often, counted by --by."""
    by = tuple(dict.fromkeys(by))
    with _indexed(log_target(target, state_dir), index_path) as index:
        rows = index.top(Wanted(**wanted), by, limit)
    if rows and not as_json:
        say(f"{'times':>8}  {'last':<27}  {'  '.join(by)}")
    for values, times, last in rows:
        if as_json:
            named: dict[str, Json] = dict(zip(by, values, strict=True))
            say_json({**named, "times": times, "last": last})
        else:
            say(_one_line(f"{times:>8}  {last or '-':<27}  {'  '.join(v or '-' for v in values)}"))
    return 0


@command.command("tail", epilog=_TAIL_CODES)
@_log
@event_filters
@click.option("-n", "limit", type=click.IntRange(0, _MOST), default=10, show_default=True)
@click.option("-f", "--follow", "goes_on", is_flag=True, help="Go on with what is written.")
@click.option("--format", "form", type=click.Choice(sorted(FORMATS)), help="As `export` has it.")
@_json
@state_option
def tail_command(
    *,
    target: Path | None,
    limit: int,
    goes_on: bool,
    form: str | None,
    as_json: bool,
    state_dir: Path | None,
    **wanted: Any,
) -> int:
    """The last events, and with -f those that come; Ctrl-C ends it.

    With --format a pipe is a way to a collector: what it does not take is still in the log.
    """
    if form is not None and as_json:
        raise click.UsageError("--format and --json are two forms: name one")
    wish, follower = Wanted(**wanted), Follower(log_target(target, state_dir))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _show_lines(follower.last(limit, wish.admits), form, as_json=as_json)
            while goes_on:
                _show_lines(follower.new(wish.admits), form, as_json=as_json)
                time.sleep(_POLL_SECONDS)
    finally:
        follower.close()
    return 0


@command.command("export", epilog=_CODES)
@_log
@event_filters
@click.option("--format", "form", type=click.Choice(("jsonl", *sorted(FORMATS))), required=True)
@_index
@state_option
def export_command(
    *,
    target: Path | None,
    form: str,
    index_path: Path | None,
    state_dir: Path | None,
    **wanted: Any,
) -> int:
    """Every event that fits, in the order of time, one line each, as others read it.

    jsonl is the line of the log itself, byte for byte; cef, ecs, ocsf, otlp and rfc5424 are made of
    it. What is no event is left out, and its number said at the end.
    """
    left_out = 0
    with _indexed(log_target(target, state_dir), index_path) as index:
        for place in index.select(Wanted(**wanted)):
            line = place.line()
            record = read_record(line)
            if record is None:
                left_out += 1
            elif form == "jsonl":
                say_bytes(line)
            else:
                say(FORMATS[form](record))
    if left_out:
        note(f"{left_out} line(s) are no events and were left out")
    return 1 if left_out else 0


# ── what they share ───────────────────────────────────────────────────────────────────────────


def log_target(target: Path | None, state_dir: Path | None) -> Path:
    """What was asked for, or the logs of the state folder.

    Raises:
        click.ClickException: there are none.
    """
    if target is not None:
        return target
    logs = None if is_new(state_dir) else open_state(state_dir, create=False).root / "logs"
    if logs is None or not logs.is_dir():
        raise click.UsageError("there are no logs in the state folder; name one with --log")
    return logs


@contextlib.contextmanager
def _indexed(target: Path, path: Path | None) -> Iterator[EventIndex]:
    """The index of a log or a folder, up to date; in memory where it cannot be kept."""
    where, logs = path or default_index(target), logs_in(target)
    check_place(where, logs)
    with _opened(where, kept=path is not None) as index:
        index.update(logs)
        yield index


def _opened(where: Path, *, kept: bool) -> EventIndex:
    try:
        return EventIndex(where)
    except AuditError as error:
        if kept:
            raise
        note(f"{error}; it is made in memory for this time")
        return EventIndex(None)


def _show_lines(lines: list[bytes], form: str | None, *, as_json: bool) -> None:
    for line in lines:
        record = read_record(line)
        if form is None:
            _show(line, facts_of(record), as_json=as_json)
        elif record is not None:
            say(FORMATS[form](record))


def _show(line: bytes, facts: EventFacts, *, as_json: bool) -> None:
    """One event: its line as ASCII JSON, or a row for people."""
    if as_json:
        record = read_record(line)
        shown: Mapping[str, Json] = {"unreadable": line.decode("utf-8", "replace")}
        say_json(shown if record is None else record)
        return
    say(_one_line(_row(facts)))


def _row(facts: EventFacts) -> str:
    """Time, code, type, and what there is of run, step, tool, host, rule and outcome."""
    named = (
        ("run", facts.run),
        ("agent", facts.agent),
        ("step", facts.step),
        ("tool", facts.tool),
        ("host", facts.host),
        ("rule", facts.rule),
        ("reason", facts.reason if facts.reason != facts.result else None),
        ("code", facts.result),
    )
    rest = " ".join(f"{name}={value}" for name, value in named if value)
    return f"{facts.at or '-':<27} {facts.code:<10} {facts.type or '-':<18} {rest}".rstrip()


def _one_line(text: str) -> str:
    """No line feed and no tab of a log's words may look like a row of ours."""
    return text.replace("\n", "\N{REPLACEMENT CHARACTER}").replace(
        "\t", "\N{REPLACEMENT CHARACTER}"
    )
