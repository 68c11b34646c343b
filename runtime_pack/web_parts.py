"""What is said of a part of a page beside its block: numbers of ours, and data for the host. Pure.

Nothing here repeats a word of the page where a model would take it for ours.
"""

from __future__ import annotations

import attrs

from runtime_pack.messages import Json
from web_tools.arguments import ReadRequest
from web_tools.paging import Finding, FromOffset, InSection, Outlining, View
from web_tools.read import Page

__all__ = ("part_data", "told_of")


def told_of(page: Page, request: ReadRequest) -> str:
    """One line for the model about what it is shown; '' for a page that is shown whole, unasked."""
    view, revision = page.view, page.citation.revision_id
    if request.part is None and view.next_offset is None:
        return ""
    told = ""
    match request.part:
        case None | FromOffset():
            told = _piece(view, page.total_chars)
        case InSection() if not view.found:
            told = "The page has no section of this name; outline shows those it has."
        case InSection():
            told = f"The section. {_piece(view, page.total_chars)}"
        case Finding():
            told = _places(view)
        case Outlining():
            told = "The outline, each line with its offsets." if view.found else "No outline."
            told = "The entries of the feed." if page.entries else told
    return f"{told} Revision {revision}."


def part_data(page: Page, request: ReadRequest) -> dict[str, Json]:
    """What a call that asks for a part is given beside the keys of every read."""
    if request.part is None:
        return {}
    view = page.view
    data: dict[str, Json] = {
        "found": view.found,
        "ranges": [[piece.start, piece.end] for piece in view.ranges],
        "next_offset": view.next_offset,
        "total_chars": page.total_chars,
        "about": about(page),
    }
    if view.places is not None:
        data["places"] = view.places
    if view.headings:
        data["headings"] = [attrs.asdict(heading) for heading in view.headings]
    if isinstance(request.part, Outlining) and page.entries:
        data["entries"] = [attrs.asdict(entry) for entry in page.entries]
    return data


def about(page: Page) -> dict[str, Json]:
    """What is known of a page, the page's own words among it: for the host, not for the model."""
    return {
        "title": page.title,
        "author": page.author,
        "published": page.published,
        "modified": page.modified,
        "language": page.language,
        "canonical": page.canonical,
        "charset": page.charset,
        "charset_source": page.charset_source,
        "coverage": page.coverage,
        "hidden_chars": page.hidden_chars,
    }


def _piece(view: View, total: int) -> str:
    start, end = view.ranges[0].start, view.ranges[0].end
    place = f"Characters {start} to {end} of {total}."
    if view.next_offset is None:
        return f"{place} There is no more." if end == total else place
    return f"{place} Read on with offset {view.next_offset}."


def _places(view: View) -> str:
    if not view.places:
        return "The words are not on the page."
    shown = ", ".join(f"{piece.start} to {piece.end}" for piece in view.ranges)
    more = " Not all of them are shown." if view.cut else ""
    return f"Found {view.places} times; shown are characters {shown}.{more}"
