"""How far a sink has got in each log, and the file that says so. Pure.

A place is the last line that was delivered: its number and digest say which line it is, whatever the
files are called by now; its offsets say where to look first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from runtime_pack.errors import AuditError
from runtime_pack.inner import frozen

__all__ = ("BEGINNING", "Place", "Progress", "parse_progress", "progress_bytes")

_SCHEMA: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_PLACE: Final = ("seq", "sha256", "start", "end")


@frozen(kw_only=True)
class Place:
    """The last line that was delivered, number 0 for none; *start* and *end* in its file."""

    seq: int
    sha256: str
    start: int
    end: int


BEGINNING: Final = Place(seq=0, sha256="0" * 64, start=0, end=0)
"""Before the first line of a log."""


@frozen(kw_only=True)
class Progress:
    """The state of one sink.

    Attributes:
        places: by the name of the log's file.
        delivered: events that the receiver has taken, those that came again included.
        rejected: events that it said it had thrown away (OTLP's partial success).
    """

    places: Mapping[str, Place] = attrs.field(factory=dict)
    delivered: int = 0
    rejected: int = 0


def progress_bytes(progress: Progress, *, sink: str, target: str) -> bytes:
    """The content of the file."""
    places = {
        name: {key: getattr(place, key) for key in _PLACE}
        for name, place in progress.places.items()
    }
    body = {
        "schema": _SCHEMA,
        "sink": sink,
        "target": target,
        "delivered": progress.delivered,
        "rejected": progress.rejected,
        "places": places,
    }
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def parse_progress(content: bytes, *, sink: str, target: str) -> Progress:
    """Read what `progress_bytes` gave.

    Raises:
        AuditError: it is something else, of another version, or of another sink or folder: to go on
            from it would leave events out, or send all of them once more.
    """
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise AuditError("the state of the sink is not JSON") from error
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA:
        raise AuditError("the state of the sink is of another version")
    if (body.get("sink"), body.get("target")) != (sink, target):
        raise AuditError("the state is that of another sink or of other logs")
    places = body.get("places")
    if not isinstance(places, dict) or not all(map(_is_place, places.values())):
        raise AuditError("the state of the sink is not of its form")
    return Progress(
        places={name: Place(**place) for name, place in places.items()},
        delivered=_count(body, "delivered"),
        rejected=_count(body, "rejected"),
    )


def _count(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    if type(value) is int and value >= 0:
        return value
    raise AuditError("the state of the sink is not of its form")


def _is_place(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(_PLACE):
        return False
    numbers = (value["seq"], value["start"], value["end"])
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        return False
    return isinstance(value["sha256"], str) and _DIGEST.match(value["sha256"]) is not None
