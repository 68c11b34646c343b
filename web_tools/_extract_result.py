"""What extraction gives back, and the two ways in which it fails.

Records and errors only: nothing here parses, decodes or starts anything.
"""

from enum import StrEnum

import attrs

from web_tools._charset_words import CharsetSource


class TextOrigin(StrEnum):
    """Where the text of a result was taken from."""

    DECODED = "decoded"
    """The body is the text: JSON, XML, a feed, plain text, Markdown."""
    MAIN = "main"
    """The chosen root of an HTML page, as Markdown."""
    STREAMED = "streamed"
    """As `MAIN`, after containers that wait for a script to show them were taken as shown."""
    STRUCTURED_DATA = "structured_data"
    """The `articleBody` of the page's JSON-LD; its first line says so."""
    FULL_PAGE = "full_page"
    """All visible text, because nothing stood out as the page's content."""
    STRIPPED = "stripped"
    """Tags cut away without parsing, because the parser did not finish in time."""


class Detail(StrEnum):
    """What a reader should know about a page that came back with little or odd text."""

    EMPTY_CONTENT = "empty_content"
    INTERSTITIAL = "interstitial"


class FailureReason(StrEnum):
    """Why no text could be made of a page that should have some."""

    TIMEOUT = "timeout"
    WORKER_DIED = "worker_died"
    WORKER_UNAVAILABLE = "worker_unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    BAD_REPLY = "bad_reply"
    PARSER_FAULT = "parser_fault"
    CLOSED = "closed"


@attrs.frozen(kw_only=True)
class FeedEntry:
    """One entry of a feed, each value as the feed has it, without markup and on one line."""

    title: str | None
    url: str | None
    published: str | None
    author: str | None
    summary: str | None


@attrs.frozen(kw_only=True)
class Extracted:
    """Readable text of one response body, and what is known about it.

    `text` is valid Unicode without lone surrogates, at most `MAX_TEXT_BYTES` in UTF-8.
    `refresh` is the reference of a meta refresh and `refresh_base` the `href` of the page's base,
    both as the page wrote them: neither resolved nor followed nor to be trusted.
    `hidden_chars` counts characters that a person looking at the page would not have seen.
    `author`, `published` and `modified` are the page's own words about itself, the dates in ISO 8601.
    `coverage` is the share of the visible text that is in `text`, in percent; None where nothing was
    chosen. `entries` are those of a feed.
    `truncated` is true only if something readable was dropped for its size.
    """

    text: str
    title: str | None = None
    language: str | None = None
    media_type: str
    charset: str
    charset_source: CharsetSource
    detail: Detail | None = None
    hidden_chars: int = 0
    refresh: str | None = None
    refresh_base: str | None = None
    canonical: str | None = None
    author: str | None = None
    published: str | None = None
    modified: str | None = None
    coverage: int | None = None
    entries: tuple[FeedEntry, ...] = ()
    truncated: bool = False
    origin: TextOrigin = TextOrigin.DECODED


class ExtractError(Exception):
    """Root of what `Extractor.extract` raises.

    ExtractError
    +-- UnsupportedContent   the body is not text, JSON or XML
    +-- ExtractionFailed     it is, but no text could be made of it
    """


# The name is part of the interface other packages were built on.
class UnsupportedContent(ExtractError):
    """The body is not of a kind that has readable text.

    Attributes:
        media_type: What the server said, or `application/octet-stream` when it said nothing.
        found: What the first bytes look like when that is the reason, else None.
    """

    def __init__(self, media_type: str, *, found: str | None = None) -> None:
        self.media_type = media_type
        self.found = found
        seen = "" if found is None else f"; the body looks like {found}"
        super().__init__(f"no readable text in {media_type}{seen}")


# The name is part of the interface other packages were built on.
class ExtractionFailed(ExtractError):
    """No text could be made of this page; other pages are not affected.

    Attributes:
        reason: Which way it failed.
    """

    def __init__(self, reason: FailureReason) -> None:
        self.reason = reason
        super().__init__(f"extraction failed: {reason.value}")
