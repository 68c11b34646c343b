"""What S2 can tell of a text before it judges, mostly on the UTF-8 form, which is quick to search.

What is removed here, the rules of `visible` remove as well; a test compares: runs between ASCII
characters go, since no context keeps any of them.
"""

import functools
import re
from itertools import islice
from typing import Final

__all__ = (
    "are_neighbours_enough",
    "has_suspects",
    "is_dense",
    "is_suspect",
    "is_wide",
    "without_runs_in_ascii",
)

# UTF-8 of what S2 may remove, by lead byte: a pattern that begins with one literal is searched at
# the speed of memchr, and most texts have few of the leads.
_DIRECTIONS: Final = rb"\xd8\x9c|\xe2(?:\x80[\x8e\x8f\xaa-\xae]|\x81[\xa6-\xa9])"
_BY_LEAD: Final = {
    b"\xc2": rb"\xc2\xad",
    b"\xcd": rb"\xcd\x8f",
    b"\xd8": rb"\xd8\x9c",
    b"\xe1": rb"\xe1(?:\x85[\x9f\xa0]|\x9e[\xb4\xb5]|\xa0[\x8b-\x8f])",
    b"\xe2": rb"\xe2(?:\x80[\x8b-\x8f\xaa-\xae]|\x81[\xa0-\xaf]|\xa0\x80)",
    b"\xe3": rb"\xe3\x85\xa4",
    b"\xef": rb"\xef(?:\xb8[\x80-\x8f]|\xbb\xbf|\xbe\xa0|\xbf[\xb0-\xb8])",
    b"\xf0": rb"\xf0(?:\x96\xbf\xa4|\x9b\xb2[\xa0-\xa3]|\x9d\x85[\xb3-\xba])",
    b"\xf3": rb"\xf3\xa0[\x80-\xbf][\x80-\xbf]",
}
_ANY: Final = b"|".join(_BY_LEAD.values())
# Letters of bidi class R or AL, and a few of their neighbours.
_RIGHT_TO_LEFT: Final = (
    rb"[\xd7-\xdf]|\xe0[\xa0-\xa3]|\xef(?:[\xac-\xb7\xb9\xba]|\xbb[\x80-\xbc])|\xf0[\x90\x9e]"
)
_RUN: Final = rb"(?:" + _ANY + rb")++"
_LEAD_CHARS: Final = len(rb"\x00")
_BETWEEN_ASCII: Final = {
    lead: form[:_LEAD_CHARS]
    + rb"(?<![\x80-\xff].)"
    + form[_LEAD_CHARS:]
    + rb"(?:"
    + _ANY
    + rb")*+(?![\x80-\xff])"
    for lead, form in _BY_LEAD.items()
}
# How suspects begin whose lead is frequent in other text.
_RARE: Final = {
    b"\xcd": (b"\xcd\x8f",),
    b"\xd8": (b"\xd8\x9c",),
    b"\xe1": (b"\xe1\x85\x9f", b"\xe1\x85\xa0", b"\xe1\x9e\xb4", b"\xe1\x9e\xb5", b"\xe1\xa0"),
    b"\xe3": (b"\xe3\x85\xa4",),
    b"\xef": (b"\xef\xb8", b"\xef\xbb\xbf", b"\xef\xbe\xa0", b"\xef\xbf"),
}
_OTHER_BYTES: Final = bytes({*range(256)} - {*b"\xc2\xe2\xf3", *b"".join(_RARE)})
# Sought one by one, each at the speed of memchr.
_DIRECTIONS_AND_CANCEL: Final = (
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\U000e007f"
)
_WIDE_LEADS: Final = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))
_SAMPLE, _SAMPLE_BYTES = 64, 8_192  # runs, and where they are looked for


@functools.cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """One of the patterns above: compiled when a text first needs it, which most never do."""
    return re.compile(pattern)


def is_suspect(character: str) -> bool:
    """Whether S2 may remove this code point."""
    return _compiled(_ANY).fullmatch(character.encode()) is not None


def _patterns(data: bytes) -> list[re.Pattern[bytes]]:
    return [_compiled(pattern) for lead, pattern in _BY_LEAD.items() if lead in data]


def has_suspects(data: bytes) -> bool:
    """Whether S2 may remove anything from a text, given in UTF-8."""
    return any(pattern.search(data) for pattern in _patterns(data))


def is_dense(text: str, data: bytes) -> bool:
    """Whether one in six characters may be a suspect: a search costs more than a look at each then.

    Few are counted that are none, and few are not counted: leads that are not frequent themselves,
    and controls of shorthand and music, whose lead is that of emoji.
    """
    leads = data.translate(None, _OTHER_BYTES)
    if 6 * len(leads) <= len(text):
        return False
    found = len(leads)
    for lead, starts in _RARE.items():
        uncertain = leads.count(lead)
        found -= uncertain
        if 24 * uncertain > len(text):
            found += sum(map(data.count, starts))
    return 6 * found > len(text)


def _has_directions(data: bytes) -> bool:
    return any(lead in data for lead in (b"\xd8\x9c", b"\xe2")) and bool(
        _compiled(_DIRECTIONS).search(data)
    )


def are_neighbours_enough(text: str) -> bool:
    """Whether neighbours explain all that may stay: direction is a matter of lines, flags are longer."""
    return not any(character in text for character in _DIRECTIONS_AND_CANCEL)


def is_wide(data: bytes) -> bool:
    """Whether a text has characters beyond the basic plane."""
    return any(lead in data for lead in _WIDE_LEADS)


def without_runs_in_ascii(data: bytes) -> bytes:
    """The text without runs that have ASCII, or an end of the text, on both sides.

    No context keeps one of these, but direction controls where a line has right-to-left text: such
    a text is left alone, and so is one whose first runs stand elsewhere.
    """
    if not _mostly_in_ascii(data) or (
        _has_directions(data) and _compiled(_RIGHT_TO_LEFT).search(data)
    ):
        return data
    for pattern in [_compiled(form) for lead, form in _BETWEEN_ASCII.items() if lead in data]:
        data = pattern.sub(b"", data)
    return data


def _mostly_in_ascii(data: bytes) -> bool:
    # Whole runs: a pattern that looks behind a run would try again at each place in it.
    sample = data[:_SAMPLE_BYTES]
    found = (run.span() for run in _compiled(_RUN).finditer(sample))
    runs = list(islice((start for start, end in found if sample[end : end + 1] < b"\x80"), _SAMPLE))
    return sum(_follows_ascii(data, start) for start in runs) * 2 > len(runs)


def _follows_ascii(data: bytes, place: int) -> bool:
    return place == 0 or data[place - 1] < 0x80
