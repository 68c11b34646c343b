"""Untrusted arguments become typed requests, or one error that names every fault.

Pure and total: any value gives a request or `WebToolError` with WEB_INVALID_INPUT.
Whether a text is a URL that we accept is not decided here: that has its own code.

Limits of a call can only lower the host's. An integral float is an integer (``5.0`` is 5),
as in JSON Schema and in the strict contract; a boolean, a string or null never is.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import attrs

from egress.url import MAX_URL_CHARACTERS
from web_tools._fields import (
    MAX_QUERY_CHARS,
    Fields,
    Refused,
    query_of,
    text_of,
    whole_number,
)
from web_tools.errors import InvalidCaps
from web_tools.paging import (
    MAX_FIND_CHARS,
    MAX_SECTION_CHARS,
    Finding,
    FromOffset,
    InSection,
    Outlining,
    Part,
)
from web_tools.typed_question import EXTRACT_SCHEMA, Question, parse_question

__all__ = (
    "ASKING_READ_SCHEMA",
    "MAX_QUERY_CHARS",
    "MAX_URL_CHARS",
    "READ_SCHEMA",
    "SEARCH_SCHEMA",
    "ReadRequest",
    "Recency",
    "SearchRequest",
    "WebToolCaps",
    "parse_read_arguments",
    "parse_search_arguments",
)

# What egress admits, so that every page that a search finds can be read.
MAX_URL_CHARS: Final = MAX_URL_CHARACTERS


class Recency(StrEnum):
    """A hint for the provider: fixed windows of 24 hours, 7, 31 and 366 days."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


@attrs.frozen(kw_only=True)
class WebToolCaps:
    """The host's ceilings; the defaults are those of the web tools text.

    `default_read_bytes` above `max_read_bytes` is no error: the lower one counts.

    Raises:
        InvalidCaps: A value is not an integer (a boolean, a float and NaN are not), or is
            below its minimum. There is no word for "unlimited"; write a large number.
    """

    max_results: int = 10
    max_read_bytes: int = 262_144
    default_read_bytes: int = 65_536
    max_snippet_chars: int = 500
    max_redirects: int = 5
    timeout_ms: int = 30_000

    def __attrs_post_init__(self) -> None:
        """Check here and not in attrs validators, which can be switched off process-wide."""
        for field, minimum in _CAP_MINIMA.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidCaps(field, "must be an integer")
            if value < minimum:
                raise InvalidCaps(field, f"must be at least {minimum}")

    @property
    def timeout_seconds(self) -> float:
        """`timeout_ms` in seconds."""
        return self.timeout_ms / 1000


_CAP_MINIMA: Final[Mapping[str, int]] = MappingProxyType(
    {
        "max_results": 1,
        "max_read_bytes": 1,
        "default_read_bytes": 1,
        "max_snippet_chars": 1,
        "max_redirects": 0,  # no redirect is followed
        "timeout_ms": 1,
    }
)


@attrs.frozen(kw_only=True)
class SearchRequest:
    """One search, within the host's ceilings.

    Attributes:
        query: Literal text, verbatim.
        limit: The most results to return.
        recency: A hint; a provider that cannot honour it ignores it.
        lowered: Whether the call asked for more than the host allows.
    """

    query: str
    limit: int
    recency: Recency | None = None
    lowered: bool = False


@attrs.frozen(kw_only=True)
class ReadRequest:
    """One read, within the host's ceilings.

    Attributes:
        url: Still text; whether it is a URL that we accept is decided when it is read.
        max_bytes: Counts UTF-8 bytes of the extracted text.
        max_redirects: Of the host's caps; meta refreshes count.
        timeout_seconds: Of the host's caps; over every request of the read.
        question: What is to be read out of the page in place of its text; None for the text.
        part: Which part of the text is wanted; None for its beginning.
    """

    url: str
    max_bytes: int
    max_redirects: int = 5
    timeout_seconds: float = 30.0
    question: Question | None = None
    part: Part | None = None


def _schema(properties: Mapping[str, Any], *required: str) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        }
    )


SEARCH_SCHEMA: Final = _schema(
    {
        "query": {
            "type": "string",
            "description": "What to search for, as literal text.",
            "minLength": 1,
            "maxLength": MAX_QUERY_CHARS,
        },
        "limit": {
            "type": "integer",
            "description": "The most results to return. It can only lower the host's maximum.",
            "minimum": 1,
        },
        "recency": {
            "type": "string",
            "description": "Prefer results of the last day, week, month or year.",
            "enum": [word.value for word in Recency],
        },
    },
    "query",
)
"""JSON Schema of the arguments of web:search. Blank queries pass it and the parser refuses them."""

READ_SCHEMA: Final = _schema(
    {
        "url": {
            "type": "string",
            "description": "The http or https URL of the page to read, without credentials.",
            "maxLength": MAX_URL_CHARS,
        },
        "max_bytes": {
            "type": "integer",
            "description": "The most bytes of text to return. It can only lower the host's maximum.",
            "minimum": 1,
        },
    },
    "url",
)
"""JSON Schema of the arguments of web:read."""

_PART_SCHEMAS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "offset": {
            "type": "integer",
            "description": "Read on from this character of the page's text.",
            "minimum": 0,
        },
        "section": {
            "type": "string",
            "description": "Read the section under this heading.",
            "minLength": 1,
            "maxLength": MAX_SECTION_CHARS,
        },
        "find": {
            "type": "string",
            "description": "Show the places of these words, with what stands around them.",
            "minLength": 1,
            "maxLength": MAX_FIND_CHARS,
        },
        "outline": {
            "type": "boolean",
            "description": "Show the headings of the page, or the entries of a feed, in place of the text.",
        },
    }
)

ASKING_READ_SCHEMA: Final = _schema(
    {**READ_SCHEMA["properties"], "extract": EXTRACT_SCHEMA, **_PART_SCHEMAS},
    "url",
)
"""The same with `extract`, a typed question about a page, and with the parts of a long page.

At most one of `extract`, `offset`, `section`, `find` and `outline` is given.
"""


def parse_search_arguments(raw: object, caps: WebToolCaps) -> SearchRequest:
    """The search that *raw* asks for, with `limit` lowered to the host's cap.

    Raises:
        WebToolError: WEB_INVALID_INPUT with the path of every fault.
    """
    fields = Fields(raw, SEARCH_SCHEMA["properties"])
    query = fields.required("query", query_of)
    limit = fields.optional("limit", _count)
    recency = fields.optional("recency", _recency)
    fields.refuse_if_faulty()
    return SearchRequest(
        query=query or "",
        limit=caps.max_results if limit is None else min(limit, caps.max_results),
        recency=recency,
        lowered=limit is not None and limit > caps.max_results,
    )


def parse_read_arguments(raw: object, caps: WebToolCaps, *, asking: bool = False) -> ReadRequest:
    """The read that *raw* asks for, with `max_bytes` lowered to the host's cap.

    With *asking*, it may have a typed question in `extract`, or ask for a part of the page.

    Raises:
        WebToolError: WEB_INVALID_INPUT with the path of every fault.
    """
    schema = ASKING_READ_SCHEMA if asking else READ_SCHEMA
    fields = Fields(raw, schema["properties"])
    url = fields.required("url", _url)
    asked = fields.optional("max_bytes", _count)
    question = fields.optional("extract", parse_question) if asking else None
    part = _part(fields, raw) if asking else None
    fields.refuse_if_faulty()
    wanted = caps.default_read_bytes if asked is None else asked
    return ReadRequest(
        url=url or "",
        max_bytes=min(wanted, caps.max_read_bytes),
        max_redirects=caps.max_redirects,
        timeout_seconds=caps.timeout_seconds,
        question=question,
        part=part,
    )


def _part(fields: Fields, raw: object) -> Part | None:
    """The part that is asked for; two of them, or one beside a question, are a fault."""
    offset = fields.optional("offset", _offset)
    section = fields.optional("section", _name)
    words = fields.optional("find", _sought)
    outline = fields.optional("outline", _flag)
    given = [
        name for name in ("extract", *_PART_SCHEMAS) if isinstance(raw, Mapping) and name in raw
    ]
    if outline is False:
        given.remove("outline")
    for name in given[1:]:
        fields.refuse(name, f"cannot be given beside {given[0]}")
    if offset is not None:
        return FromOffset(offset=offset)
    if section is not None:
        return InSection(name=section)
    if words is not None:
        return Finding(words=words)
    return Outlining() if outline else None


def _url(value: object) -> str:
    return text_of(value, MAX_URL_CHARS)


def _count(value: object) -> int:
    whole = whole_number(value)
    if whole is None:
        raise Refused("must be an integer")
    if whole < 1:
        raise Refused("must be at least 1")
    return whole


def _offset(value: object) -> int:
    whole = whole_number(value)
    if whole is None or whole < 0:
        raise Refused("must be an integer of at least 0")
    return whole


def _name(value: object) -> str:
    return _words(value, MAX_SECTION_CHARS)


def _sought(value: object) -> str:
    return _words(value, MAX_FIND_CHARS)


def _words(value: object, most: int) -> str:
    text = text_of(value, most)
    if not text.strip():
        raise Refused("must not be blank")
    return text


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused("must be true or false")
    return value


def _recency(value: object) -> Recency:
    if isinstance(value, str) and value in Recency.__members__.values():
        return Recency(value)
    raise Refused("must be one of " + ", ".join(Recency))
