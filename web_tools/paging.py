"""A part of a long text: from an offset, a section, the places of some words, or the outline.

Offsets count characters of the whole extracted text, so they hold as long as its revision does.
Pure, and linear in the text.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias

import attrs

from web_tools._cut import cut_characters, cut_utf8

__all__ = (
    "Finding",
    "FromOffset",
    "Heading",
    "InSection",
    "Outlining",
    "Part",
    "Range",
    "View",
    "list_of",
    "outline_of",
    "view_of",
)

MAX_FIND_CHARS: Final = 200
MAX_SECTION_CHARS: Final = 200
_MAX_HEADINGS: Final = 1_000
_MAX_PLACES: Final = 1_000
_MAX_PASSAGES: Final = 20
_AROUND: Final = 240
"""Characters shown on either side of a place; more, up to the ends of lines that are near."""
_TITLE_CHARS: Final = 200
_GAP: Final = "\n\n[…]\n\n"
_LONGEST_CHARACTER: Final = 4


@attrs.frozen(kw_only=True)
class FromOffset:
    """The text from a character on."""

    offset: int


@attrs.frozen(kw_only=True)
class InSection:
    """What stands under a heading, up to the next of its level or above."""

    name: str


@attrs.frozen(kw_only=True)
class Finding:
    """The places of some words, with what stands around them; case and white space do not matter."""

    words: str


@attrs.frozen
class Outlining:
    """The headings and where their sections are."""


Part: TypeAlias = FromOffset | InSection | Finding | Outlining
"""What is wanted of a text in place of its beginning."""


@attrs.frozen(kw_only=True)
class Range:
    """Characters from `start` up to but not including `end`."""

    start: int
    end: int


@attrs.frozen(kw_only=True)
class Heading:
    """A heading without its marks; its section is from `start` to `end`."""

    level: int
    title: str
    start: int
    end: int


@attrs.frozen(kw_only=True)
class View:
    """What is shown of a text.

    Attributes:
        text: A piece of the whole text; passages with a mark between them; or the outline.
        ranges: Where in the whole text it stands, in order; empty for an outline.
        next_offset: Where reading goes on, None at the end and where that has no meaning.
        cut: Whether something that was asked for is missing for its size.
        places: How often the words were found, at most 1,000; None when nothing was looked for.
        headings: The outline, or the heading of the section.
        found: Whether there is such a section, place or outline.
    """

    text: str = attrs.field(repr=False)
    ranges: tuple[Range, ...] = ()
    next_offset: int | None = None
    cut: bool = False
    places: int | None = None
    headings: tuple[Heading, ...] = ()
    found: bool = True


def view_of(text: str, part: Part | None, *, most: int, marked_up: bool) -> View:
    """What *part* says of *text*.

    Args:
        text: The whole text.
        part: What is wanted; None for the beginning.
        most: Bytes of UTF-8 that may be shown.
        marked_up: Whether the text is Markdown, whose marks are no part of words.
    """
    match part:
        case None:
            return _piece(text, Range(start=0, end=len(text)), most)
        case FromOffset(offset=offset):
            return _piece(text, Range(start=min(offset, len(text)), end=len(text)), most)
        case InSection(name=name):
            return _section(text, name, most, marked_up=marked_up)
        case Finding(words=words):
            return _places(text, words, most, marked_up=marked_up)
        case Outlining():
            return _outline(outline_of(text) if marked_up else (), most)


def outline_of(text: str) -> tuple[Heading, ...]:
    """The headings of a Markdown text outside of code, at most 1,000."""
    found = list(islice(_headings(text), _MAX_HEADINGS))
    ends = [len(text)] * len(found)
    is_open: list[int] = []
    for index, (level, _, start) in enumerate(found):
        while is_open and found[is_open[-1]][0] >= level:
            ends[is_open.pop()] = start
        is_open.append(index)
    return tuple(
        Heading(level=level, title=title, start=start, end=end)
        for (level, title, start), end in zip(found, ends, strict=True)
    )


def list_of(lines: Sequence[str], *, most: int) -> View:
    """A list in place of a text, such as the entries of a feed."""
    text = "\n".join(lines)
    shown = cut_utf8(text, most)
    return View(text=shown, cut=len(shown) < len(text), found=bool(lines))


# ── pieces ────────────────────────────────────────────────────────────────────────────────────────


def _piece(text: str, wanted: Range, most: int) -> View:
    whole = text[wanted.start : wanted.end]
    shown = cut_utf8(whole, most)
    if not shown and whole:
        # A sign that is longer than what may be shown: its first characters, so that reading goes on.
        shown = whole[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
    end = wanted.start + len(shown)
    goes_on = end < wanted.end and (bool(shown) or most >= _LONGEST_CHARACTER)
    return View(
        text=shown,
        ranges=(Range(start=wanted.start, end=end),),
        next_offset=end if goes_on else None,
        cut=end < wanted.end,
    )


def _section(text: str, name: str, most: int, *, marked_up: bool) -> View:
    headings = outline_of(text) if marked_up else ()
    heading = _heading_named(name, headings)
    if heading is None:
        return View(text="", found=False)
    view = _piece(text, Range(start=heading.start, end=heading.end), most)
    return attrs.evolve(view, headings=(heading,))


def _heading_named(name: str, headings: tuple[Heading, ...]) -> Heading | None:
    """The first with this title, else the first whose title begins with it, else that holds it."""
    wanted = _folded(name.lstrip("# "))
    if not wanted:
        return None
    titled = [(_folded(heading.title), heading) for heading in headings]
    same = (heading for title, heading in titled if title == wanted)
    begins = (heading for title, heading in titled if title.startswith(wanted))
    holds = (heading for title, heading in titled if wanted in title)
    return next(chain(same, begins, holds), None)


def _outline(headings: tuple[Heading, ...], most: int) -> View:
    lines = "\n".join(
        f"{heading.start}-{heading.end} {'#' * heading.level} {heading.title}"
        for heading in headings
    )
    shown = cut_utf8(lines, most)
    return View(text=shown, headings=headings, cut=len(shown) < len(lines), found=bool(headings))


# ── headings ──────────────────────────────────────────────────────────────────────────────────────

_ATX: Final = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
_UNDERLINE: Final = re.compile(r" {0,3}(?:(=+)|-+)[ \t]*")
_FENCE: Final = re.compile(r"[ >]{0,64}(?:(?:[-*+]|\d{1,9}[.)]) +){0,8}(`{3,}|~{3,})")
_NO_PARAGRAPH: Final = (" " * 4, "\t", "#", ">", "|", "-", "*", "+", "`", "~")


def _headings(text: str) -> Iterator[tuple[int, str, int]]:
    """Level, title and offset of each."""
    fence, before, start, above = "", "", 0, 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip()
        if fence:
            fence = "" if _closes(bare, fence) else fence
        elif (opened := _FENCE.match(bare)) is not None and _is_fence(bare, opened):
            fence, before = opened[1], ""
        elif (match := _ATX.fullmatch(bare)) is not None:
            if title := _title(match[2] or ""):
                yield len(match[1]), title, start
            before = ""
        elif before and (match := _UNDERLINE.fullmatch(bare)) is not None:
            yield 1 if match[1] else 2, _title(before), above
            before = ""
        else:
            before = "" if bare.startswith(_NO_PARAGRAPH) else bare
        above, start = start, start + len(line)


def _is_fence(line: str, opened: re.Match[str]) -> bool:
    return opened[1][0] == "~" or "`" not in line[opened.end() :]


def _closes(line: str, fence: str) -> bool:
    bare = line.lstrip(" >")
    return len(bare) >= len(fence) and not bare.strip(fence[0])


def _title(marked: str) -> str:
    plain = _Plain.of(
        re.sub(r"(?:^|[ \t])#{1,200}$", "", marked[: 4 * _TITLE_CHARS]), marked_up=True
    )
    return cut_characters(" ".join(plain.text.split()), _TITLE_CHARS)


# ── words ─────────────────────────────────────────────────────────────────────────────────────────

_SPACES: Final = dict.fromkeys(
    [
        *range(9, 14),
        *range(0x1C, 0x20),
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    ],
    " ",
)
"""What `\\s` means, as a space."""
_RUNS: Final = r"\s(?=\s)"
_DROPPED: Final = re.compile(
    rf"{_RUNS}"
    r"|`(?P<code>[^`\n]+)`"
    r"|\\(?=[!-/:-@\[-`{-~])(?P<escaped>.)"
    r"|[*`]+|~~|!?\[|\]\([^()\s]*(?: \"[^\"\n]*\")?\)|\]"
)
_DROPPED_RUNS: Final = re.compile(_RUNS)


@attrs.frozen(kw_only=True)
class _Plain:
    """A text without its marks and with single spaces; `places` and `origins` map offsets back."""

    text: str
    places: list[int]
    origins: list[int]

    @classmethod
    def of(cls, text: str, *, marked_up: bool) -> "_Plain":
        """The words of *text*."""
        kept: list[str] = []
        places, origins, length, position = [0], [0], 0, 0
        for start, end in _dropped(text, marked_up=marked_up):
            if start > position:
                kept.append(text[position:start])
                length += start - position
            position = end
            places.append(length)
            origins.append(end)
        kept.append(text[position:])
        return cls(text="".join(kept), places=places, origins=origins)

    def origin(self, place: int) -> int:
        """Where in the text with its marks the character at *place* stands."""
        index = bisect_right(self.places, place) - 1
        return self.origins[index] + place - self.places[index]


def _dropped(text: str, *, marked_up: bool) -> Iterator[tuple[int, int]]:
    """Ranges that are no part of the words."""
    if not marked_up:
        yield from (match.span() for match in _DROPPED_RUNS.finditer(text))
        return
    for match in _DROPPED.finditer(text):
        start, end = match.span()
        if match.lastgroup == "code":
            yield start, start + 1
            yield end - 1, end
        elif match.lastgroup == "escaped":
            yield start, start + 1
        else:
            yield start, end


def _folded(text: str) -> str:
    """*text* for comparison: in lower case, white space as single spaces, as long as it was."""
    # Of all characters this one alone has a lower case of two (Unicode, SpecialCasing.txt).
    return text.translate(_SPACES).replace("\u0130", "I").lower().strip()


def _places(text: str, words: str, most: int, *, marked_up: bool) -> View:
    plain = _Plain.of(text, marked_up=marked_up)
    wanted = " ".join(_folded(words).split())
    lowered = plain.text.translate(_SPACES).replace("\u0130", "I").lower()
    if not wanted or len(lowered) != len(plain.text):
        return View(text="", places=0, found=False)
    found = list(islice(_found(lowered, wanted), _MAX_PLACES))
    if not found:
        return View(text="", places=0, found=False)
    spots = (
        Range(start=plain.origin(at), end=plain.origin(at + len(wanted) - 1) + 1) for at in found
    )
    passages = list(islice(_passages(text, spots), _MAX_PASSAGES + 1))
    return _shown(text, passages, most, places=len(found))


def _found(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + len(wanted))


def _passages(text: str, spots: Iterator[Range]) -> Iterator[Range]:
    """The surroundings of each place, those that touch taken together."""
    now: Range | None = None
    for spot in spots:
        wide = _surroundings(text, spot)
        if now is not None and wide.start <= now.end:
            now = Range(start=now.start, end=max(now.end, wide.end))
            continue
        if now is not None:
            yield now
        now = wide
    if now is not None:
        yield now


def _surroundings(text: str, spot: Range) -> Range:
    low, high = max(0, spot.start - _AROUND), min(len(text), spot.end + _AROUND)
    line = text.rfind("\n", low, spot.start) + 1
    end = text.find("\n", spot.end, high)
    return Range(start=line or low, end=high if end < 0 else end)


def _shown(text: str, passages: list[Range], most: int, *, places: int) -> View:
    """As many whole passages as fit; of the first, at least its beginning."""
    shown: list[Range] = []
    pieces: list[str] = []
    left = most
    for passage in passages[:_MAX_PASSAGES]:
        piece = text[passage.start : passage.end]
        size = len(piece.encode("utf-8", "replace")) + (len(_GAP.encode()) if shown else 0)
        if size > left:
            break
        left -= size
        shown.append(passage)
        pieces.append(piece)
    if not shown:
        first = _piece(text, passages[0], most)
        return attrs.evolve(first, next_offset=None, places=places, cut=True)
    return View(
        text=_GAP.join(pieces),
        ranges=tuple(shown),
        cut=len(shown) < len(passages) or places == _MAX_PLACES,
        places=places,
    )
