"""What a page says about itself beside its text: author, dates, and the types of its JSON-LD.

Reported, never trusted. Nothing here walks further than its bounds say, whatever a page holds.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final

import attrs

from web_tools._extract_dom import Document, Element

_NODES: Final = 2_000
_NAME_CHARS: Final = 200
_NAMES: Final = 5
_METAS: Final = 300
_ARTICLE = re.compile(
    r"(?:\w{0,40}Article|BlogPosting|Report|Review|DiscussionForumPosting|WebPage)"
)

_AUTHORS: Final = (
    "author",
    "article:author",
    "og:article:author",
    "parsely-author",
    "sailthru.author",
    "dc.creator",
    "dcterms.creator",
    "citation_author",
    "byl",
)
_PUBLISHED: Final = (
    "article:published_time",
    "og:article:published_time",
    "datepublished",
    "date",
    "pubdate",
    "publish-date",
    "parsely-pub-date",
    "sailthru.date",
    "dc.date",
    "dc.date.issued",
    "dcterms.created",
    "dcterms.issued",
    "citation_publication_date",
    "cxenseparse:recs:publishtime",
)
_MODIFIED: Final = (
    "article:modified_time",
    "og:updated_time",
    "datemodified",
    "last-modified",
    "dcterms.modified",
    "revised",
)
_AUTHOR_PLACES: Final = (
    "[rel~=author], [itemprop~=author], .byline .author, .post-author, .author-name"
)
_TIMES: Final = "time[pubdate], time[itemprop~=datePublished], [itemprop~=datePublished][content]"
_DATE: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,]\d{1,9})?)?\s?(Z|[+-]\d{2}:?\d{2})?)?",
    re.ASCII | re.IGNORECASE,
)
_PLAIN_DATE: Final = re.compile(r"(\d{4})[/.]?(\d{2})[/.]?(\d{2})", re.ASCII)
_PREFIX: Final = re.compile(r"(?:by|von|par|por|di|door|av)[\s:]+", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class About:
    """What is said of a page.

    Attributes:
        author: Names as written, several with commas between.
        published: ISO 8601, a day or a time with the zone that was stated, if any.
        modified: The same.
        types: Of the page's JSON-LD.
    """

    author: str | None = None
    published: str | None = None
    modified: str | None = None
    types: frozenset[str] = frozenset()


def linked_data(document: Document) -> list[Any]:
    """The page's JSON-LD, parsed; what cannot be is left out."""
    try:
        return list(document.json_ld())
    except (ValueError, RecursionError):
        return []


def about_of(document: Document, linked: list[Any]) -> About:
    """What *document* says of itself: its JSON-LD first, then its metadata, then its marks."""
    nodes = list(_nodes(linked))
    articles = [node for node in nodes if any(map(_ARTICLE.fullmatch, _types(node)))]
    metas = _metas(document)
    return About(
        author=_linked_author(articles) or _meta_author(metas) or _marked_author(document),
        published=_linked_date(articles, "datePublished")
        or _meta_date(metas, _PUBLISHED)
        or _marked_date(document),
        modified=_linked_date(articles, "dateModified") or _meta_date(metas, _MODIFIED),
        types=frozenset(kind for node in nodes for kind in _types(node)),
    )


# ── JSON-LD ───────────────────────────────────────────────────────────────────────────────────────


def _nodes(linked: list[Any]) -> Iterator[Mapping[str, Any]]:
    """The nodes that describe the page itself: on top, in a graph, or its main entity."""
    waiting = list(reversed(linked))
    for _ in range(_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node[key] for key in ("mainEntity", "@graph") if key in node)
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def _types(node: Mapping[str, Any]) -> Iterator[str]:
    stated = node.get("@type")
    for kind in stated[:_NAMES] if isinstance(stated, list) else (stated,):
        if isinstance(kind, str):
            yield kind.rpartition("/")[2][:_NAME_CHARS]


def _linked_author(nodes: list[Mapping[str, Any]]) -> str | None:
    return next(filter(None, (_name(node.get("author")) for node in nodes)), None)


def _name(author: object) -> str | None:
    """The names in an `author`: a text, a person, or several of either."""
    several = author[:_NAMES] if isinstance(author, list) else [author]
    names = [one.get("name") if isinstance(one, dict) else one for one in several]
    if any(isinstance(name, list) for name in names):
        names = [
            one for name in names for one in (name[:_NAMES] if isinstance(name, list) else [name])
        ]
    found = dict.fromkeys(filter(None, (_tidy(name) for name in names)))
    return ", ".join(found) or None


def _linked_date(nodes: list[Mapping[str, Any]], key: str) -> str | None:
    return next(filter(None, (_date(node.get(key)) for node in nodes)), None)


# ── metadata and marks ────────────────────────────────────────────────────────────────────────────


def _metas(document: Document) -> dict[str, str]:
    """The first value of each name; several authors are put together."""
    found: dict[str, str] = {}
    for meta in document.select("meta[content]")[:_METAS]:
        name = (meta.attr("property") or meta.attr("name") or meta.attr("itemprop") or "").lower()
        content = meta.attr("content") or ""
        if name == "citation_author" and name in found:
            found[name] = f"{found[name]}, {content[:_NAME_CHARS]}"[: _NAMES * _NAME_CHARS]
        elif name and content:
            found.setdefault(name, content)
    return found


def _meta_author(metas: dict[str, str]) -> str | None:
    return next(filter(None, (_tidy(metas.get(name)) for name in _AUTHORS)), None)


def _meta_date(metas: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next(filter(None, (_date(metas.get(name)) for name in names)), None)


def _marked_author(document: Document) -> str | None:
    found = document.select_one(_AUTHOR_PLACES)
    return None if found is None else _tidy(found.attr("content") or found.text[: 4 * _NAME_CHARS])


def _marked_date(document: Document) -> str | None:
    """The date that is marked as the page's own, or that of the only `time`."""
    marked: Element | None = document.select_one(_TIMES)
    if marked is None:
        times = document.select("time[datetime]")
        marked = times[0] if len(times) == 1 else None
    return None if marked is None else _date(marked.attr("datetime") or marked.attr("content"))


def _tidy(name: object) -> str | None:
    """A name on one line without "by"; an address is no name."""
    if not isinstance(name, str):
        return None
    plain = _PREFIX.sub("", " ".join(name[: 4 * _NAME_CHARS].split()), count=1)[:_NAME_CHARS]
    return None if not plain or "://" in plain or "<" in plain or plain.startswith("@") else plain


def _date(value: object) -> str | None:
    """A day, or a time, in ISO 8601; None for what is neither."""
    if not isinstance(value, str):
        return None
    text = value[:64].strip()
    match = _DATE.fullmatch(text)
    if match is None:
        match = _PLAIN_DATE.fullmatch(text)
        return None if match is None else _day(match)
    day = _day(match)
    if day is None or match[4] is None:
        return day
    if int(match[4]) > 23 or int(match[5]) > 59 or int(match[6] or 0) > 60:
        return day
    zone = (match[7] or "").upper()
    if len(zone) == 5:
        zone = f"{zone[:3]}:{zone[3:]}"
    return f"{day}T{match[4]}:{match[5]}:{match[6] or '00'}{zone}"


def _day(match: re.Match[str]) -> str | None:
    try:
        return date(int(match[1]), int(match[2]), int(match[3])).isoformat()
    except ValueError:
        return None
