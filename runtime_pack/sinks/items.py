"""What a receiver is sent for a line: its record, a note in its place, or a notice. Pure.

No line is passed over because it does not fit: what is too long for a receiver, is refused by it, or
is no JSON goes as a note with its number, its digest and what can be said of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from runtime_pack.audit.facts import read_record
from runtime_pack.events import EVENT_ROWS, EventCode
from runtime_pack.exports import FORMATS, Record
from runtime_pack.inner import frozen
from runtime_pack.messages import Json
from runtime_pack.sinks.places import Place
from runtime_pack.sinks.reading import Odd, Oddity

__all__ = ("Item", "as_bytes", "as_note", "gone_of", "item_of", "notice_of", "packed")

_CODES: Final[Mapping[Odd, EventCode]] = {
    Odd.DELETED: EventCode.FWD001E,
    Odd.REPLACED: EventCode.FWD002E,
    Odd.BROKEN: EventCode.FWD003E,
}
# What a note keeps of the event that it stands for.
_KEPT: Final = ("id", "ts", "type", "code", "severity")
_NAMED: Final = ("run", "task", "step", "agent", "host")
_MOST_CHARACTERS: Final = 80


@frozen(kw_only=True)
class Item:
    """One thing to be delivered.

    Attributes:
        line: its bytes as the log has them, or as JSON where it is in no log.
        is_note: it stands for a line, or for what is between two.
    """

    record: Record
    line: bytes
    log: str
    seq: int
    is_note: bool = False

    @property
    def id(self) -> str:
        """What a receiver knows it by when it comes again."""
        return str(self.record.get("id"))


def item_of(log: str, seq: int, line: bytes) -> Item:
    """A line of a log; a note of it where it is no event."""
    record = read_record(line)
    if record is None:
        return _note(log, seq, line, {}, "it is no event")
    return Item(record=record, line=line, log=log, seq=seq)


def as_note(item: Item, why: str) -> Item:
    """What is sent when the line itself cannot be: the same id, number, time and code."""
    return _note(item.log, item.seq, item.line, item.record, why)


def _note(log: str, seq: int, line: bytes, record: Record, why: str) -> Item:
    kept = {
        key: value[:_MOST_CHARACTERS] for key in _KEPT if isinstance(value := record.get(key), str)
    }
    given = record.get("subject")
    subject = given if isinstance(given, Mapping) else {}
    digest = hashlib.sha256(line).hexdigest()
    body: dict[str, Json] = {
        "v": 1,
        "id": f"line-{digest[:32]}",
        "type": "forward:noted",
        "code": str(EventCode.FWD004O),
        "severity": "low",
        **kept,
        "seq": seq,
        "subject": {
            key: value[:_MOST_CHARACTERS]
            for key in _NAMED
            if isinstance(value := subject.get(key), str)
        },
        "object": {
            "log": log,
            "not_forwarded": why,
            "line_bytes": len(line),
            "line_sha256": f"sha256:{digest}",
        },
    }
    return _made(body, log, seq)


def notice_of(log: str, oddity: Oddity, next_sha256: str, *, at: str) -> Item:
    """What a receiver is told of a log that is not as it should be.

    *next_sha256* is the digest of the line that comes then; *at* the time, as events have it.
    """
    body: dict[str, Json] = {"first_line": oddity.first, "last_line": oddity.last}
    named = f"{oddity.kind} {oddity.first} {oddity.last} {next_sha256}"
    return _notice(_CODES[oddity.kind], log, oddity.first, named, body, at)


def gone_of(log: str, place: Place, *, at: str) -> Item:
    """What a receiver is told when the file of a log is no more there."""
    body: dict[str, Json] = {"last_line": place.seq, "line_sha256": f"sha256:{place.sha256}"}
    return _notice(EventCode.FWD005O, log, place.seq, f"gone {place.sha256}", body, at)


def _notice(
    code: EventCode, log: str, seq: int, named: str, body: Mapping[str, Json], at: str
) -> Item:
    row = EVENT_ROWS[code]
    digest = hashlib.sha256(f"{log} {named}".encode("utf-8", "replace")).hexdigest()
    record: dict[str, Json] = {
        "v": 1,
        "id": f"notice-{digest[:32]}",
        "seq": seq,
        "ts": at,
        "type": str(row.type),
        "code": str(code),
        "severity": str(row.severity),
        "subject": {},
        "object": {"log": log, **body},
    }
    return _made(record, log, seq)


def _made(body: dict[str, Json], log: str, seq: int) -> Item:
    line = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return Item(record=body, line=line, log=log, seq=seq, is_note=True)


def as_bytes(
    item: Item, form: str, most: int, write: Callable[[Item], bytes] | None = None
) -> bytes:
    """The item in a form, without a line feed; a note of it where it takes more than *most* bytes."""
    text = (write or _written(form))(item)
    if len(text) <= most or item.is_note:
        return text
    return (write or _written(form))(as_note(item, f"it takes {len(text)} bytes as {form}"))


def _written(form: str) -> Callable[[Item], bytes]:
    if form == "jsonl":
        return lambda item: item.line
    return lambda item: FORMATS[form](item.record).encode("utf-8", "replace")


def packed(texts: Sequence[bytes], most: int) -> tuple[tuple[bytes, ...], ...]:
    """The texts in groups of at most *most* bytes; one that is longer by itself is a group of its own."""
    groups: list[list[bytes]] = []
    size = most + 1
    for text in texts:
        if size + len(text) > most:
            groups.append([])
            size = 0
        groups[-1].append(text)
        size += len(text) + 1
    return tuple(map(tuple, groups))
