"""The record that says where a text was seen, and its wire form.

Pure. Invariants are checked in ``__attrs_post_init__``, because attrs validators can be
switched off for a whole process; an inconsistent record cannot be built.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Self

import attrs

from citations.digests import document_id, is_digest
from citations.errors import InvalidCitation

__all__ = ("KnowledgeCitation",)

# Wire name of each field, in wire order. Source: the web tools text, the shape of the knowledge pack.
_WIRE_NAMES: Final[Mapping[str, str]] = {
    "source_id": "sourceId",
    "document_id": "documentId",
    "path": "path",
    "revision_id": "revisionId",
    "retrieved_at": "retrievedAt",
}
# An A-label name, an IPv4 address, or an IPv6 address without brackets.
_HOST = re.compile(r"[a-z0-9._:-]{1,253}")
# Visible ASCII without "#": a canonical URL is percent-encoded and has no fragment.
_URL = re.compile(r"https?://[\x21\x22\x24-\x7e]+")
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))?Z"
)


@attrs.frozen(kw_only=True)
class KnowledgeCitation:
    """One text, seen at one address at one time.

    Attributes:
        source_id: Host name in A-label form; an IPv6 address without brackets.
        document_id: ``sha256:<hex>`` of ``path``.
        path: Canonical final URL, http or https, without fragment.
        revision_id: ``sha256:<hex>`` of the whole text as extracted, before any cut.
        retrieved_at: Aware, in UTC. Another zone is converted to the same instant.

    Raises:
        InvalidCitation: A field has the wrong type or form, the digest is not the one of
            the URL, or the host is not the one of the URL.
    """

    source_id: str
    document_id: str
    path: str
    revision_id: str
    retrieved_at: datetime

    def __attrs_post_init__(self) -> None:
        """Refuse a record whose parts do not belong together."""
        for field in ("source_id", "document_id", "path", "revision_id"):
            _require_text(_WIRE_NAMES[field], getattr(self, field))
        _require_url(self.path, self.source_id)
        _require_digests(self.document_id, self.revision_id, self.path)
        object.__setattr__(self, "retrieved_at", _utc(self.retrieved_at))

    def to_wire(self) -> dict[str, str]:
        """The camelCase mapping; the time as RFC 3339 in UTC with six decimals."""
        stamp = self.retrieved_at.replace(tzinfo=None).isoformat(timespec="microseconds")
        values = {**attrs.asdict(self), "retrieved_at": f"{stamp}Z"}
        return {wire: values[field] for field, wire in _WIRE_NAMES.items()}

    @classmethod
    def from_wire(cls, raw: object) -> Self:
        """The record that a decoded JSON value describes.

        Strict: exactly the five keys, all of them text, nothing coerced.

        Raises:
            InvalidCitation: Not an object, a key is missing or unknown, or a value is not
                of its form.
        """
        values = _wire_texts(raw)
        stamp = _parse_instant(values.pop("retrieved_at"))
        return cls(
            source_id=values["source_id"],
            document_id=values["document_id"],
            path=values["path"],
            revision_id=values["revision_id"],
            retrieved_at=stamp,
        )


def _wire_texts(raw: object) -> dict[str, str]:
    """The five texts by field name; anything else is refused by name."""
    if not isinstance(raw, Mapping):
        raise InvalidCitation("", "must be an object")
    if any(key not in _WIRE_NAMES.values() for key in raw):
        raise InvalidCitation("", "has a field that a citation does not have")
    texts: dict[str, str] = {}
    for field, wire in _WIRE_NAMES.items():
        if wire not in raw:
            raise InvalidCitation(wire, "is missing")
        texts[field] = _require_text(wire, raw[wire])
    return texts


def _require_text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidCitation(field, "must be text")
    return value


def _require_url(path: str, host: str) -> None:
    if _HOST.fullmatch(host) is None:
        raise InvalidCitation("sourceId", "must be a canonical host name or address")
    if _URL.fullmatch(path) is None:
        raise InvalidCitation("path", "must be a canonical http or https URL without fragment")
    shown = f"[{host}]" if ":" in host else host
    rest = path.partition("://")[2].removeprefix(shown)
    # Without this a citation could show one host and link to another.
    if rest == path.partition("://")[2] or not (rest == "" or rest[0] in ":/?"):
        raise InvalidCitation("sourceId", "is not the host of the path")


def _require_digests(document: str, revision: str, path: str) -> None:
    if not is_digest(revision):
        raise InvalidCitation("revisionId", "must be sha256: and 64 hexadecimal digits")
    if document != document_id(path):
        raise InvalidCitation("documentId", "is not the digest of the path")


def _utc(value: object) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidCitation("retrievedAt", "must be an aware date and time")
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise InvalidCitation("retrievedAt", "is outside the calendar") from error


def _parse_instant(text: str) -> datetime:
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise InvalidCitation("retrievedAt", "must be an RFC 3339 time in UTC, ending in Z")
    # Padded by hand: fromisoformat reads ".1" differently across versions of Python.
    fraction = (match[2] or "").ljust(6, "0")
    try:
        return datetime.fromisoformat(f"{match[1]}.{fraction}+00:00")
    except ValueError as error:
        raise InvalidCitation("retrievedAt", "is not a date and time that exists") from error
