"""The contexts of S2 as one pattern over the text itself: what no neighbour explains is matched.

The same rules as in `visible`, which judges classes and knows flags and direction as well; a test
compares. One search removes all, where classes would cost a look-up per character.
"""

import functools
import re
from collections.abc import Iterable
from typing import Final

from web_tools import _visible_classes, _visible_tables

__all__ = ("unexplained",)

_ZWJ, _ZWNJ, _ZWSP, _VS1, _TEXT, _EMOJI = "\u200d", "\u200c", "\u200b", "\ufe00", "\ufe0e", "\ufe0f"
_BRAILLE_BLANK, _KEYCAP = "\u2800", "\u20e3"
_BASIC_PLANE: Final = 0xFFFF
_NONE: Final = "[^\\x00-\\U0010ffff]"
_ALWAYS: Final = "MOIpqXtcD"  # directions and tags: who has any of those asks `visible`
_HIDDEN: Final = f"JNZ1TPvFB{_ALWAYS}"


@functools.cache
def _ranges() -> dict[str, list[tuple[int, int]]]:
    """Code points of each class. No code point is in two rows; a test says so."""
    rows = (*_visible_classes.VISIBLE_CLASSES, *_visible_classes.INVISIBLE_CLASSES)
    found: dict[str, list[tuple[int, int]]] = {}
    for name, ranges, _ in rows:
        found.setdefault(name, []).extend(_visible_tables.code_points(ranges))
    return found


def _joined(ranges: Iterable[tuple[int, int]]) -> list[list[int]]:
    joined: list[list[int]] = []
    for first, last in sorted(ranges):
        if joined and joined[-1][1] + 1 == first:
            joined[-1][1] = last
        else:
            joined.append([first, last])
    return joined


def _set(ranges: Iterable[list[int]]) -> str:
    listed = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    return f"[{listed}]" if listed else _NONE


def _class(names: str, *, wide: bool, few: int = 4) -> str:
    """Pattern of one code point of some classes.

    A set is a bitmap on the basic plane and a list of ranges beyond. Where that list is longer
    than *few*, it is read only for code points between its ends.
    """
    ranges = _joined(pair for name in names for pair in _ranges()[name])
    basic = [pair for pair in ranges if pair[1] <= _BASIC_PLANE]
    beyond = ranges[len(basic) :]
    if not wide:
        return _set(basic)
    if len(beyond) <= few:
        return _set(ranges)
    return f"(?:{_set(basic)}|{_set([[beyond[0][0], beyond[-1][1]]])}(?<={_set(beyond)}))"


@functools.cache
def unexplained(*, wide: bool) -> re.Pattern[str]:
    """Runs of invisible code points that no neighbour explains.

    A text without characters beyond the basic plane is searched with *wide* false, which is twice
    as quick: only there a class is a bitmap. It must have neither direction controls nor the
    CANCEL TAG, for what these mean is not a matter of neighbours.
    """
    of = functools.partial(_class, wide=wide)
    hidden, emoji, virama = of(_HIDDEN), of("E"), of("Hh")
    # The class in front lets the matcher skip to the next candidate. Then the usual kinds come
    # first, and within a kind what usually explains it.
    # Found more often than not, so without the detour.
    plain_emoji = of("E", few=1_000)
    between_emoji = (
        f"(?<={plain_emoji}{_ZWJ}){plain_emoji}"
        f"|(?:(?<={emoji}{_EMOJI}{_ZWJ})|(?<={emoji}{of('K')}{_ZWJ})){emoji}"
    )
    joiner = (
        f"(?<={_ZWJ})(?!{between_emoji}|(?<={of('AaGmHh')}{_ZWJ})(?!{hidden})"
        f"|(?<!{hidden}{_ZWJ}){of('AGmHh')})"
    )
    non_joiner = (
        f"(?<={_ZWNJ})(?!(?<={virama}{_ZWNJ})(?!{hidden})|(?<={of('AaGm')}{_ZWNJ}){of('AGm')}"
        f"|(?<!{hidden}{_ZWNJ}){virama})"
    )
    emoji_selector = f"(?<={_EMOJI})(?<!{of('CE')}{_EMOJI})(?!(?<={of('d')}{_EMOJI}){_KEYCAP})"
    selectors = (
        f"(?<={_VS1})(?<!{of('Co')}{_VS1})"
        f"|(?<={_TEXT})(?<!{of('CE')}{_TEXT})"
        f"|(?<={of('v')})(?<!{of('C')}{of('v')})"
        f"|(?<={of('F')})(?<!{of('G')}{of('F')})"
    )
    blanks = (
        f"(?<={_ZWSP})(?!(?<={of('Sh')}{_ZWSP}){of('Sh')})"
        f"|(?<={_BRAILLE_BLANK})(?<!{of('b')}{_BRAILLE_BLANK})(?!{of('b')})"
    )
    others = (
        f"(?<={of(_ALWAYS)})"
        f"|(?<=[{_ZWSP}{_BRAILLE_BLANK}])(?:{blanks})"
        f"|(?<={of('1TvF')})(?:{selectors})"
    )
    rest = f"{emoji_selector}|(?<!{_EMOJI})(?:{non_joiner}|(?<!{_ZWNJ})(?:{others}))"
    return re.compile(
        f"{hidden}(?:{joiner}|(?<!{_ZWJ})(?:{rest}))"
        # Behind one that goes, no other has a visible neighbour on its left; the rest go with it,
        # but for a Braille blank, which may lean on its right.
        f"{of(_HIDDEN.replace('B', ''))}*+"
    )
