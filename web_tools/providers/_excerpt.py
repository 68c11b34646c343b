"""The part of a text that says most about a query. Pure and linear.

Made here and never with FTS5's ``snippet()`` or ``highlight()``: those took 17 to 32 seconds
for one word repeated a thousand times, and nothing could stop them.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

__all__ = ("EXCERPT_CHARS", "make_excerpt")

EXCERPT_CHARS: Final = 400
_MAX_SCANNED_CHARS: Final = 200_000
_MAX_HITS: Final = 2000
_LEAD_CHARS: Final = 60
# The index stems English words, so "statements" must show "statement": long words lose their end.
_STEM_CHARS: Final = 5


def make_excerpt(text: str, words: Sequence[str], *, most: int = EXCERPT_CHARS) -> str:
    """At most *most* characters of *text* around the densest place of distinct *words*.

    White space is folded; an ellipsis stands where something was left out on a side. Without
    any hit it is the beginning of the text.
    """
    scanned = text[:_MAX_SCANNED_CHARS]
    start = _line_start(scanned, _densest(_hits(scanned, words), most))
    rest = text[start : start + 4 * most]
    return _fold(rest, most, before=start > 0, after=len(text) > start + len(rest))


def _hits(text: str, words: Sequence[str]) -> list[tuple[int, str]]:
    """Offset and stem of each place where a word begins, the first two thousand."""
    stems = sorted({_stem(word) for word in words if word}, key=len, reverse=True)
    if not stems:
        return []
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, stems))})", re.IGNORECASE)
    found = islice(pattern.finditer(text), _MAX_HITS)
    return [(match.start(), match[0].casefold()) for match in found]


def _stem(word: str) -> str:
    return word if len(word) <= _STEM_CHARS else word[: max(_STEM_CHARS, len(word) - 3)]


def _densest(hits: list[tuple[int, str]], width: int) -> int:
    """Offset of the hit from which *width* characters hold the most distinct stems."""
    counts: dict[str, int] = {}
    best, most, end = 0, 0, 0
    for offset, stem in hits:
        while end < len(hits) and hits[end][0] < offset + width:
            counts[hits[end][1]] = counts.get(hits[end][1], 0) + 1
            end += 1
        if len(counts) > most:
            best, most = offset, len(counts)
        counts[stem] -= 1
        if not counts[stem]:
            del counts[stem]
    return best


def _line_start(text: str, offset: int) -> int:
    """A readable place shortly before *offset*: a sentence's or line's start, else a word's."""
    earliest = max(0, offset - _LEAD_CHARS)
    lead = text[earliest:offset]
    if earliest == 0:
        return 0
    for mark in ("\n\n", ". ", ".\n", "\n", " "):
        at = lead.rfind(mark)
        if at >= 0:
            return earliest + at + len(mark)
    return offset


def _fold(text: str, most: int, *, before: bool, after: bool) -> str:
    folded = " ".join(text.split())
    head = "… " if before else ""
    room = most - len(head)
    if len(folded) <= room and not after:
        return head + folded
    cut = folded[: max(0, room - 2)]
    whole_words = cut.rpartition(" ")[0] if len(folded) > len(cut) else cut
    return f"{head}{whole_words or cut} …"[:most]
