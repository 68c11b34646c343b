"""The entries of a feed, beside its text: RSS, Atom and RDF.

Its XML is parsed without entities of its own and without anything from elsewhere. The text of a feed
stays as it was sent; entries are what a reader would list of it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from web_tools._extract_dom import Document, parse_feed_xml, parse_page
from web_tools._extract_links import absolute
from web_tools._extract_result import FeedEntry
from web_tools._extract_strip import strip_markup

_MAX_ENTRIES: Final = 200
_MAX_FEED_CHARS: Final = 2 * 1024 * 1024
_MAX_TOTAL_CHARS: Final = 48_000
"""Of all entries together: what the answer of a worker has room for."""
_LINE_CHARS: Final = 300
_SUMMARY_CHARS: Final = 1_000
_ROOTS: Final = ("<rss", "<feed", "<rdf:rdf")
_HEAD_CHARS: Final = 4_096


@attrs.frozen(kw_only=True)
class Feed:
    """A feed: its title and its entries, newest as the feed has them."""

    title: str | None
    entries: tuple[FeedEntry, ...]


def feed_of(text: str, url: str) -> Feed | None:
    """The feed that *text* is, or None. What is beyond its bounds is left out."""
    head = text[:_HEAD_CHARS].lower()
    if not any(root in head for root in _ROOTS):
        return None
    cut = text[:_MAX_FEED_CHARS]
    # A feed that is no good XML is read as browsers read pages: most of its entries come out.
    found = _parsed(parse_feed_xml, cut) or _parsed(parse_page, cut)
    if found is None:
        return None
    entries = (_entry(entry, url) for entry in found.entries[:_MAX_ENTRIES])
    return Feed(title=_line(found.title), entries=tuple(_within(entries)))


def _parsed(parse: Callable[[str], Document], text: str) -> Any | None:
    try:
        return parse(text).feed()
    except (ValueError, RecursionError):
        return None


def _within(entries: Iterable[FeedEntry | None]) -> Iterator[FeedEntry]:
    left = _MAX_TOTAL_CHARS
    for entry in entries:
        if entry is None:
            continue
        left -= sum(len(value) for value in attrs.astuple(entry) if value)
        if left < 0:
            return
        yield entry


def _entry(entry: Any, url: str) -> FeedEntry | None:
    made = FeedEntry(
        title=_line(entry.title),
        url=absolute(entry.link, url) if entry.link else None,
        published=_line(entry.published or entry.updated),
        author=_line(entry.author),
        summary=_plain(entry.summary or entry.content, _SUMMARY_CHARS),
    )
    return made if made.title or made.url or made.summary else None


def _line(value: object) -> str | None:
    return _plain(value, _LINE_CHARS)


def _plain(value: object, most: int) -> str | None:
    """Text without tags on one line, or None."""
    if not isinstance(value, str):
        return None
    cut = value[: 8 * most]
    plain = strip_markup(cut) if "<" in cut or "&" in cut else cut
    return " ".join(plain.split())[:most] or None
