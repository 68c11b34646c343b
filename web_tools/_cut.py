"""Where a text may be cut. Pure and linear.

A cut never parts a base character from its marks, nor the two halves of what a person reads
as one sign (joiners, variation selectors, emoji modifiers, flags). Source: the untrusted
page, S3; a small part of UAX #29 that needs no tables beyond `unicodedata`.
"""

import unicodedata
from typing import Final

__all__ = ("cut_characters", "cut_utf8")

# No sign is this long; the bound keeps a text of nothing but marks from being walked back through.
_MAX_STEPS_BACK: Final = 32
_JOINER: Final = "\u200d"
_MARKS: Final = frozenset({"Mn", "Mc", "Me"})
_MODIFIERS: Final = frozenset(chr(code) for code in range(0x1F3FB, 0x1F400))
_FLAG_LETTERS: Final = frozenset(chr(code) for code in range(0x1F1E6, 0x1F200))
_TAGS: Final = frozenset(chr(code) for code in range(0xE0020, 0xE0080))
# A cut this close before the limit is moved to the end of a line.
_LINE_SHARE: Final = 8


def cut_characters(text: str, most: int) -> str:
    """The beginning of *text*, at most *most* code points, ending between two signs."""
    return text if len(text) <= most else text[: _boundary(text, most)]


def cut_utf8(text: str, most: int) -> str:
    """The beginning of *text*, at most *most* bytes of UTF-8.

    Ends between two signs, and at the end of a line where one is near: within the last
    eighth of what fits.
    """
    # A character takes at least a byte, so no more than *most* of them can matter.
    head = text[: most + 1].encode("utf-8", "replace")
    if len(head) <= most:
        return text
    fits = head[:most].decode("utf-8", "ignore")
    cut = text[: _boundary(text, len(fits))]
    line_end = cut.rfind("\n", len(cut) - len(cut) // _LINE_SHARE)
    return cut if line_end < 0 else text[: _boundary(text, line_end + 1)]


def _boundary(text: str, at: int) -> int:
    """The last place at or before *at* where a sign begins; *at* itself when none is near."""
    for place in range(at, max(-1, at - _MAX_STEPS_BACK), -1):
        if place in {0, len(text)} or not _continues(text, place):
            return place
    return at


def _continues(text: str, place: int) -> bool:
    """Whether the character at *place* belongs to the sign before it."""
    before, here = text[place - 1], text[place]
    if unicodedata.category(here) in _MARKS or _JOINER in {before, here}:
        return True
    if here in _MODIFIERS or here in _TAGS or (before == "\r" and here == "\n"):
        return True
    return here in _FLAG_LETTERS and before in _FLAG_LETTERS
