"""What the forms share: typed reading of a line's object, and what its words mean. Pure."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import attrs

from runtime_pack.messages import Json, clean_text

__all__ = (
    "PRODUCT",
    "VENDOR",
    "Read",
    "Record",
    "ascii_json",
    "compact",
    "is_address",
    "is_time",
    "read",
)

Record: TypeAlias = Mapping[str, Json]
"""The object of a line, as JSON gives it; any of its keys may be missing or of another type."""

VENDOR: Final = "Agent Runtime Pack"
PRODUCT: Final = "agent-runtime-pack"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen(kw_only=True)
class Read:
    """An event whose parts have their types. `micros` is microseconds since 1970, 0 if unreadable."""

    id: str
    seq: int
    at: str
    micros: int
    type: str
    code: str
    severity: str
    subject: Record
    object: Record
    decision: Record
    trace: Record

    @property
    def is_violation(self) -> bool:
        """Whether it is about a connection."""
        return self.type == "sandbox:violation"

    @property
    def is_denied(self) -> bool:
        """Whether something was denied."""
        return self.code.endswith("D")

    @property
    def is_error(self) -> bool:
        """Whether something failed."""
        return self.code.endswith("E")

    def said(self, *names: str) -> str:
        """The first text that one of the parts has under one of these names; else empty."""
        for name in names:
            for part in (self.subject, self.object, self.decision):
                value = part.get(name)
                if isinstance(value, str) and value:
                    return clean_text(value)
        return ""

    def number(self, name: str) -> int | None:
        """A whole number of the object."""
        value = self.object.get(name)
        return value if type(value) is int else None

    def port(self) -> int | None:
        """The port of the object, if it is one: the forms take no other number there."""
        value = self.number("port")
        return value if value is not None and 0 <= value < 1 << 16 else None


def read(record: Record) -> Read:
    """The event of a line's object; total."""
    at = _text(record, "ts")
    seq = record.get("seq")
    return Read(
        id=_text(record, "id"),
        seq=seq if type(seq) is int and 0 <= seq < 1 << 53 else 0,
        at=at,
        micros=_micros(at),
        type=_text(record, "type"),
        code=_text(record, "code"),
        severity=_text(record, "severity"),
        subject=_part(record, "subject"),
        object=_part(record, "object"),
        decision=_part(record, "decision"),
        trace=_part(record, "trace"),
    )


def _text(record: Record, name: str) -> str:
    value = record.get(name)
    return clean_text(value) if isinstance(value, str) else ""


def _part(record: Record, name: str) -> Record:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


def is_time(text: str) -> bool:
    """Whether a text names an instant that there is."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _micros(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if at.tzinfo is None:
        return 0
    return max(0, (at - _EPOCH) // timedelta(microseconds=1))


def is_address(text: str) -> bool:
    """Whether a host is an address literal."""
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def compact(body: Mapping[str, object]) -> dict[str, object]:
    """Without what is empty: None, text and containers; 0 and False are told."""
    return {
        key: value for key, value in body.items() if value is not None and value not in ("", {}, [])
    }


def ascii_json(body: Mapping[str, object]) -> str:
    """One line of JSON in ASCII, keys sorted: safe for terminals and for readers of lines."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
