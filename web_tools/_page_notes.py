"""What is noted of a page that is kept, and whether it may be: validators, type, nothing else. Pure.

Every use of what is kept asks the server first, through the policy of the run that asks: a page is
never taken from the cache by a run that may not fetch it. Source: RFC 9110, 13.1 and 15.4.5;
RFC 9111, 3 and 5.2.
"""

from __future__ import annotations

from typing import Final

import attrs
import orjson

from egress.client import Fetched
from egress.ports import Headers

__all__ = ("PageNote", "note_of")

_MAX_VALUE_CHARS: Final = 1024
_NOT_KEPT: Final = frozenset({"no-store", "private"})


@attrs.frozen(kw_only=True)
class PageNote:
    """What a later request for a page says, and how its body is read."""

    etag: str | None
    last_modified: str | None
    content_type: str | None

    def conditions(self) -> Headers:
        """The fields by which a server is asked whether the page is still the same."""
        fields = (("if-none-match", self.etag), ("if-modified-since", self.last_modified))
        return tuple((name, value) for name, value in fields if value is not None)

    def to_bytes(self) -> bytes:
        """As it is kept."""
        return orjson.dumps(attrs.asdict(self))

    @classmethod
    def from_bytes(cls, kept: bytes) -> PageNote | None:
        """Reads what `to_bytes` wrote; None for anything else."""
        try:
            fields = orjson.loads(kept)
            names = {field.name for field in attrs.fields(cls)}
            if not isinstance(fields, dict) or set(fields) != names:
                return None
        except ValueError:
            return None
        note = cls(**{name: _sendable(value) for name, value in fields.items()})
        return note if note.conditions() else None


def note_of(fetched: Fetched) -> PageNote | None:
    """What to note of an answer, or None when it is not kept.

    Kept is a whole 200 with a validator that the server lets be stored and that is the same for
    everybody.
    """
    if fetched.status != 200 or fetched.truncated or _is_for_one(fetched):
        return None
    note = PageNote(
        etag=_sendable(fetched.header("etag")),
        last_modified=_sendable(fetched.header("last-modified")),
        content_type=_sendable(fetched.header("content-type")),
    )
    return note if note.conditions() else None


def _is_for_one(fetched: Fetched) -> bool:
    told = [value for name, value in fetched.headers if name == "cache-control"]
    words = {part.partition("=")[0].strip().lower() for value in told for part in value.split(",")}
    varies = [value for name, value in fetched.headers if name == "vary"]
    sets_cookies = fetched.header("set-cookie") is not None
    return not words.isdisjoint(_NOT_KEPT) or any("*" in value for value in varies) or sets_cookies


def _sendable(value: object) -> str | None:
    """A field value that can be sent back as it is."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_VALUE_CHARS:
        return None
    return value if value.isascii() and value.isprintable() else None
