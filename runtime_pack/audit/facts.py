"""What people look for in an event, read from its line: pure.

One flat row a line, for tables, filters and exporters; what a line does not say is None. Any bytes
give a row: a log that was tampered with can still be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

import attrs
import orjson

from runtime_pack.messages import Json

__all__ = ("COLUMNS", "UNREADABLE", "EventFacts", "Wanted", "facts_of", "read_record", "time_text")

Record: TypeAlias = Mapping[str, Json]

UNREADABLE: Final = "UNREADABLE"
"""The code of a line that is no event."""


@attrs.frozen(kw_only=True)
class EventFacts:
    """One row. `at` is RFC 3339 in UTC with microseconds, so that text sorts as time does."""

    id: str | None
    seq: int | None
    at: str | None
    type: str | None
    code: str
    severity: str | None
    action: str | None
    rule: str | None
    reason: str | None
    run: str | None
    task: str | None
    agent: str | None
    step: str | None
    tool: str | None
    host: str | None
    result: str | None


COLUMNS: Final = tuple(field.name for field in attrs.fields(EventFacts))


def read_record(line: bytes) -> Record | None:
    """The object of a line; None if it holds none."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def facts_of(record: Record | None) -> EventFacts:
    """The row of a line."""
    record = record or {}
    decision, subject = _part(record, "decision"), _part(record, "subject")
    body, seq = _part(record, "object"), record.get("seq")
    return EventFacts(
        id=_text(record, "id"),
        seq=seq if type(seq) is int and abs(seq) < 1 << 62 else None,
        at=_text(record, "ts"),
        type=_text(record, "type"),
        code=_text(record, "code") or UNREADABLE,
        severity=_text(record, "severity"),
        action=_text(decision, "action"),
        rule=_text(decision, "rule"),
        reason=_text(decision, "reason_code"),
        run=_text(subject, "run"),
        task=_text(subject, "task"),
        agent=_text(subject, "agent"),
        step=_text(subject, "step"),
        tool=_text(body, "tool"),
        host=_text(body, "host"),
        result=_text(body, "code"),
    )


def _part(record: Record, name: str) -> Record:
    part = record.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(record: Record, name: str) -> str | None:
    value = record.get(name)
    return value if isinstance(value, str) else None


@attrs.frozen(kw_only=True)
class Wanted:
    """Which events are asked for: all that are given hold.

    Attributes:
        run: an id or its beginning.
        agent, host, rule, code, tool: patterns with `*` and `?`, compared exactly otherwise.
        since, until: at or after, and before.
        denied: those that denied something only.
    """

    run: str | None = None
    agent: str | None = None
    host: str | None = None
    rule: str | None = None
    code: str | None = None
    tool: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    denied: bool = False

    def patterns(self) -> tuple[tuple[str, str], ...]:
        """The columns that are held against patterns."""
        named = ("agent", "host", "rule", "code", "tool")
        return tuple((name, str(value)) for name in named if (value := getattr(self, name)))

    def since_text(self) -> str | None:
        """`since` as events write time."""
        return None if self.since is None else time_text(self.since)

    def until_text(self) -> str | None:
        """`until` as events write time."""
        return None if self.until is None else time_text(self.until)

    def admits(self, row: EventFacts) -> bool:
        """Whether the event is asked for."""
        if self.run is not None and not (row.run or "").startswith(self.run):
            return False
        if self.denied and not row.code.endswith("D"):
            return False
        since, until = self.since_text(), self.until_text()
        if since is not None and (row.at or "") < since:
            return False
        if until is not None and not (row.at is not None and row.at < until):
            return False
        return all(
            (value := getattr(row, name)) is not None and fnmatchcase(str(value), _plain(pattern))
            for name, pattern in self.patterns()
        )


def _plain(pattern: str) -> str:
    """The pattern with `[` as itself: only `*` and `?` mean more."""
    return pattern.replace("[", "[[]")


def time_text(at: datetime) -> str:
    """A time as events write it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
