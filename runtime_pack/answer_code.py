"""Where the code of an answer in Markdown stands: what every reader shows as it is written. Pure.

Code is no markup, so it need not be made harmless. But a place is taken for code only where CommonMark
and its kin cannot read it in another way: what is unclear ends the search, and the rest is no code.

Source: CommonMark 0.31.2, sections 4.5 (fenced code), 4.6 (HTML blocks), 6.1 (code spans); tables of GFM.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ("code_places",)

# What some readers end a line at, and CommonMark does not.
_OTHER_BREAKS: Final = re.compile("\r(?!\n)|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]")
# Blocks of HTML that do not end at an empty line.
_LASTING: Final = re.compile(
    r"[\s>*+.):0-9-]*<(?:pre|script|style|textarea|xmp|[!?])", re.IGNORECASE
)
_FENCE_LIKE: Final = re.compile(r"[\s>*+.):0-9-]*(?:```|~~~)")
_OPENS: Final = re.compile(
    r"(?P<indent> {0,3})(?P<fence>`{3,20}|~{3,20})[ \t]*[\w+#.-]{0,40}[ \t]*\Z"
)
_TICKS: Final = re.compile(r"`+")
# What begins an element at the start of a line makes all lines up to the next empty one HTML.
_HTML_LINE: Final = re.compile(r"[\s>*+.):0-9-]*<")


def code_places(text: str) -> list[tuple[int, int]]:
    """The places of code, first to last, from the first character of each to the one behind it."""
    if "`" not in text and "~~~" not in text:
        return []
    if _OTHER_BREAKS.search(text):
        return []
    lines = text.splitlines(keepends=True)
    places: list[tuple[int, int]] = []
    paragraph: list[tuple[int, str]] = []
    at = number = 0
    while number < len(lines):
        line = lines[number]
        if _FENCE_LIKE.match(line):
            count = _fenced(lines, number, paragraph)
            if count is None:
                break
            size = sum(map(len, lines[number : number + count]))
            places += _spans(paragraph)
            paragraph = []
            # The fences are no code themselves: what they say is shown nowhere.
            places.append((at + len(line), at + size - len(lines[number + count - 1])))
            at, number = at + size, number + count
            continue
        if line.strip():
            paragraph.append((at, line))
        else:
            places += _spans(paragraph)
            paragraph = []
        if _LASTING.match(line):
            return places
        at, number = at + len(line), number + 1
    return places + _spans(paragraph)


def _fenced(lines: list[str], start: int, paragraph: list[tuple[int, str]]) -> int | None:
    """How many lines a fenced block has from its opening line on; None where that is unclear."""
    opens = _OPENS.match(lines[start].rstrip("\r\n"))
    if opens is None or any(_HTML_LINE.match(line) for _, line in paragraph):
        return None
    fence, indent = opens["fence"], opens["indent"]
    for number in range(start + 1, len(lines)):
        line = lines[number].rstrip("\r\n")
        if not line.strip():
            continue
        # In a list, a line further to the left ends the item and the code in it.
        if not line.startswith(indent):
            return None
        bare = line.strip()
        if bare.startswith(fence) and not bare.strip(fence[0]):
            clear = line[len(indent) :] == bare
            return number - start + 1 if clear else None
    return None


def _pairs(line: str) -> list[tuple[int, int]] | None:
    """The code spans of a line; None when a run of backticks stays open."""
    runs = [(match.start(), match.end()) for match in _TICKS.finditer(line)]
    found: list[tuple[int, int]] = []
    place = 0
    while place < len(runs):
        start, end = runs[place]
        closing = next(
            (n for n in range(place + 1, len(runs)) if runs[n][1] - runs[n][0] == end - start), None
        )
        if closing is None:
            return None
        found.append((start, runs[closing][1]))
        place = closing + 1
    return found


def _spans(paragraph: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """The code spans of a paragraph of which each line closes its own; none where one does not."""
    pairs = [_pairs(line) for _, line in paragraph]
    found: list[tuple[int, int]] = []
    if any(each is None for each in pairs):
        return []
    for (at, line), spans in zip(paragraph, pairs, strict=True):
        last = 0
        for start, end in spans or ():
            # An element or an escape before it could hold the backtick, a word an address with it.
            if "<" in line[last:start] or not _begins(line, start) or "|" in line[start:end]:
                return found
            found.append((at + start, at + end))
            last = end
        if "<" in line[last:]:
            return found
    return found


def _begins(line: str, start: int) -> bool:
    """Whether a code span can begin here, and nothing in front of it can take its backtick."""
    before = line[:start].rstrip("(\"'*_")
    return not before or before[-1] in " \t"
