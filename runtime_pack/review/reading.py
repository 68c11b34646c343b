"""The index behind a page: one thread reads the logs and asks, so that no request waits for a disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import orjson

from runtime_pack.audit.facts import EventFacts, Record, Wanted, facts_of, read_record
from runtime_pack.audit.index import EventIndex, Place, logs_in
from runtime_pack.errors import AuditError
from runtime_pack.messages import Json
from runtime_pack.review.thread import OneThread

__all__ = ("Reader", "event_row", "records_of")

_T = TypeVar("_T")
_LONGEST: Final = 400
_FRESH_SECONDS: Final = 0.8
_CLOSE_SECONDS: Final = 2.0
# Beyond this a line is no event that the runtime writes: it is shown by itself, and in no list.
_MOST_LINE: Final = 1 << 20
# What of an event's object a timeline shows beside the columns of the index.
_SHOWN: Final = (
    "elapsed_us",
    "input_tokens",
    "output_tokens",
    "cost",
    "characters",
    "executed",
    "finish",
    "kind",
    "used",
    "from",
    "to",
    "sources",
    "port",
    "proto",
    "ip",
    "hop",
    "nearest_entry",
    "layers",
    "block",
    "request",
    "fence_signals",
    "millibits",
    "budget",
    "amount",
)
_DECIDED: Final = ("action", "enforced", "reasons", "decided_by", "rules")


class Reader:
    """The index, in a thread of its own; `version` rises with every line that is taken up."""

    def __init__(self, target: Path, index: Path | None) -> None:
        self._target, self._path = target, index
        self._thread = OneThread("review-index")
        self._index: EventIndex | None = None
        self._read_at = 0.0
        self.version = 0
        self.fault = ""

    async def open(self) -> None:
        """Read all that there is.

        Raises:
            AuditError: a log cannot be read, or the index not be kept.
        """
        await self._thread.do(self._open)

    async def close(self) -> None:
        """Let go of the index, once what is asked of it has been answered; nobody waits for that."""
        if self._index is not None:
            task = asyncio.ensure_future(self._thread.do(self._index.close))
            await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
            task.cancel()
        self._thread.close()

    async def ask(self, question: Callable[[EventIndex], _T]) -> _T:
        """What the index answers, after it has taken up what came since.

        Raises:
            AuditError: the log was cut, or cannot be read.
        """
        return await self._thread.do(partial(self._asked, question))

    async def refresh(self) -> int:
        """Take up what came since; the version."""
        await self._thread.do(self._update)
        return self.version

    def _open(self) -> None:
        try:
            self._index = EventIndex(self._path)
        except AuditError:
            # A folder that is not ours to write: the same in memory.
            self._index = EventIndex(None)
        self._update()
        if self.fault:
            raise AuditError(self.fault)

    def _asked(self, question: Callable[[EventIndex], _T]) -> _T:
        self._update()
        if self._index is None:
            raise AuditError("the index is not open")
        return question(self._index)

    def _update(self) -> None:
        now = time.monotonic()
        if self._index is None or now - self._read_at < _FRESH_SECONDS:
            return
        try:
            self.version += self._index.update(logs_in(self._target))
            self.fault = ""
        except AuditError as error:
            # What was read before is still there to be looked at; the page says that it is old.
            self.fault = str(error)
        self._read_at = now


def records_of(index: EventIndex, wanted: Iterable[Wanted], limit: int) -> list[Record]:
    """The events that are asked for, each once, in the order of time; the newest *limit* of each."""
    found: dict[tuple[str, int], Place] = {}
    for wish in wanted:
        for place in index.select(wish, limit=limit, newest=True):
            found[str(place.path), place.start] = place
    places = sorted(found.values(), key=lambda place: (place.facts.at or "", place.start))
    records = (read_record(place.line()) for place in places if place.length <= _MOST_LINE)
    return [record for record in records if record is not None]


def event_row(place: Place, *, whole: bool) -> dict[str, Json]:
    """An event as a list shows it; with *whole* some of its object, from the log itself.

    `stale` says that the line is another one than was indexed: somebody wrote into the log.
    """
    row: dict[str, Json] = {name: _short(v) for name, v in attrs.asdict(place.facts).items()}
    if not whole:
        return row
    if place.length > _MOST_LINE:
        return {**row, "more": {"block": f"a line of {place.length} bytes"}}
    try:
        record = read_record(place.line())
    except AuditError as error:
        return {**row, "stale": str(error)}
    if is_stale(place.facts, record):
        row["stale"] = "the line is another one than was indexed"
    return {**row, "more": _more(record or {})}


def is_stale(facts: EventFacts, record: Record | None) -> bool:
    """Whether the line says something else than it did when it was indexed."""
    return facts_of(record) != facts


def _more(record: Record) -> dict[str, Json]:
    parts = ((record.get("object"), _SHOWN), (record.get("decision"), _DECIDED))
    more: dict[str, Json] = {}
    for part, names in parts:
        if isinstance(part, Mapping):
            more |= {name: _short(part[name]) for name in names if part.get(name) not in (None, [])}
    return more


def _short(value: Json) -> Json:
    """A value of a bounded length: a page of a hundred must not be as long as a hundred lines."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    if isinstance(value, Mapping | list | tuple):
        text = orjson.dumps(value).decode("utf-8", "replace")
        return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return value
