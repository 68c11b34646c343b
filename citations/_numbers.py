"""Whether a number of a text goes on where a quotation of it begins or ends. Pure.

Half of a number is another number: "2" is not what "2 000", "2·10³", "2 to 3" and "±2" say. What stands
at the edge is looked at in the text itself, because folding takes away what tells these apart.
"""

import re
from typing import Final

__all__ = ("goes_on_after", "goes_on_before")

# How far around an edge a sign of a number can stand.
_AROUND: Final = 24
_UNSEEN: Final = "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]*"
# Spaces that group digits and separate no words.
_THIN: Final = "[\u2006-\u200a\u202f]"
_SPACE: Final = "[ \u00a0\u2006-\u200a\u202f]"
_POINTS: Final = "[.,:/'’_\u066b\u066c\u2044\u2215\uff0c\uff0e˙]"
_TIMES: Final = r"\\?[·×⋅∙•*^✕⨯]"
_DASH: Final = "[-\u2010-\u2015\u2212~∼～〜]"
_FRACTION: Final = "[¼-¾⅐-⅞↉]"
_MANY: Final = (
    r"(?:hundred|thousand|million|billion|trillion|dozen|milliard|Million|Milliard|Tausend)"
    r"(?:s|en|e)?\b"
)

_AFTER: Final = re.compile(
    _UNSEEN
    + "(?:"
    + "|".join(
        (
            # A digit behind what is not seen, groups digits, or is a decimal sign.
            rf"{_THIN}*\d",
            rf"{_POINTS}\d",
            # Powers, products and tolerances.
            r"[⁰¹²³⁴-⁹⁺⁻]|<sup>[-−]?\d",
            rf"{_SPACE}?{_TIMES}{_SPACE}?[-−]?\d|{_SPACE}x{_SPACE}\d",
            rf"{_SPACE}?[±∓]|\+(?!\w*\+)",
            # Ranges: a dash with the same on both of its sides, so that it is no sign.
            rf"{_THIN}?{_DASH}{_THIN}?[$€£¥]?\d|{_SPACE}[-\u2012\u2013\u2212~]{_SPACE}[$€£¥]?\d",
            # Fractions, units that are a part of it, and words and signs for powers of ten.
            rf"{_SPACE}?{_FRACTION}|{_SPACE}\d{{1,2}}[/\u2044]\d",
            rf"{_SPACE}?[%‰‱]|°",
            rf"{_SPACE}{_MANY}|[十百千万萬億亿兆]",
        )
    )
    + ")"
)
_BEFORE: Final = re.compile(
    "(?:"
    + "|".join(
        (
            rf"\d{_UNSEEN}{_THIN}*",
            rf"\d{_POINTS}",
            rf"\d{_SPACE}?{_TIMES}{_SPACE}?[-−]?|\d{_SPACE}x{_SPACE}",
            rf"\d{_THIN}?{_DASH}{_THIN}?[$€£¥]?|\d{_SPACE}[-\u2012\u2013\u2212~]{_SPACE}[$€£¥]?",
            # Its sign, or what says that it is a bound.
            rf"[±∓≈≃≅≤≥⩽⩾≦≧≪≫≠≲≳∼～]{_SPACE}?|(?<!~)~{_SPACE}?|(?<![\w+])\+",
            rf"(?<![<=-])<{_SPACE}?|&(?:lt|gt|le|ge|ne|plusmn|asymp|sim|minus);{_SPACE}?",
            # No mark of a block quote, and no end of a tag.
            rf"(?<![-=>/\w\"'])(?<!\A)(?<!\n)(?<!\n )>{_SPACE}?|\w{_SPACE}>{_SPACE}?",
            r"(?:\A|(?<=\s))[.,\u066b]",
        )
    )
    + rf"){_UNSEEN}\Z"
)
# Groups of three, with a space that separates words as well.
_GROUP: Final = re.compile(r"[ \u00a0]\d{3}(?!\d)")
_GROUPED: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0]\d{3})*[ \u00a0]\Z")
_THREE: Final = re.compile(r"\d{3}(?!\d)")
_HEAD: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u2006-\u200a\u202f]\d{3})*\Z")
_RATIO: Final = re.compile(rf"\d{{1,2}}[/\u2044]\d|{_FRACTION}")
_WHOLE: Final = re.compile(rf"\d{_SPACE}\Z")


def goes_on_after(source: str, at: int) -> bool:
    """Whether the number that has its last digit before *at* has more of it behind."""
    if _AFTER.match(source, at) is not None:
        return True
    return (
        _GROUP.match(source, at) is not None
        and _HEAD.search(source, max(0, at - _AROUND), at) is not None
    )


def goes_on_before(source: str, at: int) -> bool:
    """Whether the number that has its first digit at *at* begins before it."""
    before = source[max(0, at - _AROUND) : at]
    if _BEFORE.search(before) is not None:
        return True
    if _THREE.match(source, at) is not None and _GROUPED.search(before) is not None:
        return True
    return _RATIO.match(source, at) is not None and _WHOLE.search(before) is not None
