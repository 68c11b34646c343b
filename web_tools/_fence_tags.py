"""S5: find every spelling of the fence's own tag, and put a visible marker in its place.

The walk: from a bracket (in any spelling) over what a reader skips to the letters of the name.
It runs over the folded text, one character per code point; every part of the pattern is
possessive, and no bracket is skippable, so a bracket's walk ends at the next bracket and the
total work is linear.
"""

import re
from collections.abc import Iterator
from typing import Final

from web_tools import _fence_decode, _visible_tables
from web_tools._visible_edits import Span, Step, rewrite

__all__ = ("MARKER", "TAG", "break_tags", "find_tags", "hide_name")

TAG: Final = "untrusted-web-content"
# Not tag-shaped, not a look-alike, not invisible; no token of any chat template begins with it.
MARKER: Final = "(page text, not a fence: "

_SKIP: Final = f"[ /{_visible_tables.INVISIBLE}{_visible_tables.CONTROL}]*+"
_DIRECTION: Final = re.compile("[\u202a-\u202c\u2066-\u2069]")


def _letters(name: str) -> str:
    """Pattern of a name whose letters may have skippable characters between them."""
    if not name:
        return ""
    single = name[0] + (_SKIP if name[1:] else "") + _letters(name[1:])
    double = _visible_tables.TWO_LETTERS.get(name[:2])
    if double is None:
        return single
    return f"(?:{single}|{double}{_SKIP if name[2:] else ''}{_letters(name[2:])})"


_LETTERS: Final = _letters(TAG.replace("-", ""))
_WALK: Final = re.compile(f"<({_SKIP}){_LETTERS}")
_NAME: Final = re.compile(f"({_LETTERS})")


def _fold(text: str) -> str:
    return text.translate(_visible_tables.fold_table())


def _matches(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, bool]]:
    """Start of a match, end of its first group, and whether that group has a slash.

    Every reading is searched, the text as it came included: decoding may hide a tag that stands
    there plainly.
    """
    for reading in _fence_decode.readings(text):
        found = list(pattern.finditer(_fold(reading.text)))
        if not found:
            continue
        way_back = _fence_decode.WayBack(reading)
        for match in found:
            yield way_back.origin(match.start()), way_back.origin(match.end(1)), "/" in match[1]


def find_tags(text: str) -> list[Span]:
    """Each forged tag, from its bracket to just before the first letter, with its marker.

    Direction controls inside the span stay, behind the marker: their partners may stand outside.
    """
    spans: list[Span] = []
    done = 0
    for start, first, slash in sorted(_matches(text, _WALK)):
        if start >= done:
            kept = "".join(_DIRECTION.findall(text, start, first))
            spans.append((start, first, MARKER + "/" * slash + kept))
            done = first
    return spans


def break_tags(text: str) -> tuple[Step, ...]:
    """S5: steps after which no reading of the text has a tag.

    One step is the rule. Where two readings find brackets inside each other's span, the next
    step breaks the tag that is left; each step takes at least one bracket away.
    """
    steps: list[Step] = []
    while spans := find_tags(text):
        steps.append(Step(name="tags", before=text, after=rewrite(text, spans), find=find_tags))
        text = steps[-1].after
    return tuple(steps)


def hide_name(text: str, replacement: str) -> str:
    """The text with each spelling of the tag's name replaced, bracket or none."""
    spans: list[Span] = []
    done = 0
    for start, end, _ in sorted(_matches(text, _NAME)):
        if start >= done:
            spans.append((start, end, replacement))
            done = end
    return rewrite(text, spans)
