"""Frames between the host and a worker: a JSON head and a body, both with their length in front.

A worker parses hostile input and may have been taken over, so the host believes nothing it
sends: lengths are capped before they are read, and every field is checked for its type.
"""

import struct
from typing import Any

import attrs
import orjson

from web_tools._charset_words import CharsetSource
from web_tools._extract_bounds import MAX_TEXT_BYTES
from web_tools._extract_result import (
    Detail,
    Extracted,
    ExtractError,
    ExtractionFailed,
    FailureReason,
    FeedEntry,
    TextOrigin,
    UnsupportedContent,
)

LENGTHS = struct.Struct(">II")
MAX_HEAD_BYTES = 512 * 1024
_MAX_FIELD_CHARS = 8193
"""One more than a URL may have: a reference that was cut is too long to be followed."""


def pack_head(head: dict[str, Any], *, body_bytes: int) -> bytes:
    """The beginning of a frame; *body_bytes* follow it."""
    encoded = orjson.dumps(head)
    return LENGTHS.pack(len(encoded), body_bytes) + encoded


def pack(head: dict[str, Any], body: bytes) -> bytes:
    """One frame."""
    return pack_head(head, body_bytes=len(body)) + body


def unpack_lengths(prefix: bytes) -> tuple[int, int]:
    """Lengths of head and body of a reply.

    Raises:
        ExtractionFailed: They are beyond what a reply can have.
    """
    head, body = LENGTHS.unpack(prefix)
    if head > MAX_HEAD_BYTES or body > MAX_TEXT_BYTES:
        raise ExtractionFailed(FailureReason.BAD_REPLY)
    return head, body


def reply_of(result: Extracted | ExtractError) -> bytes:
    """The frame that tells the host how a page went."""
    match result:
        case UnsupportedContent():
            head = {"kind": "unsupported", "media_type": result.media_type, "found": result.found}
            return pack(head, b"")
        case ExtractionFailed():
            return pack({"kind": "failed", "reason": result.reason.value}, b"")
        case Extracted():
            return pack(_head_of(result), result.text.encode())
        case _:
            return pack({"kind": "failed", "reason": FailureReason.PARSER_FAULT.value}, b"")


def result_of(head: bytes, body: bytes) -> Extracted:
    """What a worker's reply says.

    Raises:
        UnsupportedContent: It says that the body is no text.
        ExtractionFailed: It says so, or it is not a reply.
    """
    try:
        fields = orjson.loads(head)
        kind = fields["kind"]
        if kind == "page":
            return _extracted(fields, body.decode())
        error = _error(kind, fields)
    except (ValueError, KeyError, TypeError) as fault:
        raise ExtractionFailed(FailureReason.BAD_REPLY) from fault
    raise error


def _error(kind: object, fields: dict[str, Any]) -> ExtractError:
    if kind == "unsupported":
        found = _text(fields, "found")
        return UnsupportedContent(_text(fields, "media_type") or "", found=found)
    if kind == "failed":
        return ExtractionFailed(FailureReason(fields["reason"]))
    raise ValueError(kind)


def _head_of(result: Extracted) -> dict[str, Any]:
    return {
        "kind": "page",
        "title": _capped(result.title),
        "language": result.language,
        "media_type": result.media_type,
        "charset": result.charset,
        "charset_source": result.charset_source.value,
        "detail": None if result.detail is None else result.detail.value,
        "hidden_chars": result.hidden_chars,
        "refresh": _capped(result.refresh),
        "refresh_base": _capped(result.refresh_base),
        "canonical": _capped(result.canonical),
        "author": _capped(result.author),
        "published": _capped(result.published),
        "modified": _capped(result.modified),
        "coverage": result.coverage,
        "entries": [attrs.asdict(entry) for entry in result.entries],
        "truncated": result.truncated,
        "origin": result.origin.value,
    }


def _extracted(fields: dict[str, Any], text: str) -> Extracted:
    detail = _text(fields, "detail")
    return Extracted(
        text=text,
        title=_text(fields, "title"),
        language=_text(fields, "language"),
        media_type=_text(fields, "media_type") or "",
        charset=_text(fields, "charset") or "",
        charset_source=CharsetSource(fields["charset_source"]),
        detail=None if detail is None else Detail(detail),
        hidden_chars=_count(fields, "hidden_chars"),
        refresh=_text(fields, "refresh"),
        refresh_base=_text(fields, "refresh_base"),
        canonical=_text(fields, "canonical"),
        author=_text(fields, "author"),
        published=_text(fields, "published"),
        modified=_text(fields, "modified"),
        coverage=None if fields["coverage"] is None else min(_count(fields, "coverage"), 100),
        entries=tuple(_entry(entry) for entry in fields["entries"]),
        truncated=fields["truncated"] is True,
        origin=TextOrigin(fields["origin"]),
    )


def _entry(fields: Any) -> FeedEntry:
    if not isinstance(fields, dict):
        raise TypeError("entries")
    return FeedEntry(
        title=_text(fields, "title"),
        url=_text(fields, "url"),
        published=_text(fields, "published"),
        author=_text(fields, "author"),
        summary=_text(fields, "summary"),
    )


def _capped(value: str | None) -> str | None:
    return None if value is None else value[:_MAX_FIELD_CHARS]


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields[name]
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_FIELD_CHARS:
        raise TypeError(name)
    return value


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:
        raise TypeError(name)
    return value
