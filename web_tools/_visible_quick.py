"""S2 for the usual texts, decided on their UTF-8 form: quick to search, and mostly without judging.

What is removed here, the rules of `visible` remove as well; a test compares. Three shortcuts: few
code points are judged each by its neighbours; runs between ASCII characters go, since no context
keeps any of them; and words that repeat are judged once.
"""

import functools
import re
from collections.abc import Callable
from itertools import islice
from typing import Final

__all__ = (
    "has_suspects",
    "is_suspect",
    "judged_by_words",
    "judged_one_by_one",
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
_RUN_IN_ASCII: Final = rb"(?:" + _ANY + rb")++(?![\x80-\xff])"
_BETWEEN_ASCII: Final = rb"(?<![\x80-\xff])" + _RUN_IN_ASCII
# What a context may look at: what is not ASCII, and the base of a keycap.
_WORD: Final = re.compile(rb"[\x80-\xff]+")
_WORD_OR_KEYCAP: Final = re.compile(rb"[#*0-9]?[\x80-\xff]+")
_KEYCAP: Final = "\u20e3".encode()
_CANCEL_TAG: Final = b"\xf3\xa0\x81\xbf"
# Below one of them in so many bytes, each is judged by its neighbours.
_SPARSE: Final = 60
_LEFT, _RIGHT = 12, 12  # bytes of three characters at most
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


def _has_directions(data: bytes) -> bool:
    return any(lead in data for lead in (b"\xd8\x9c", b"\xe2")) and bool(
        _compiled(_DIRECTIONS).search(data)
    )


def _few_suspects(data: bytes) -> list[tuple[int, int]] | None:
    """Where the suspects stand, if there are few."""
    limit = len(data) // _SPARSE
    spans: list[tuple[int, int]] = []
    for pattern in _patterns(data):
        found = islice(pattern.finditer(data), limit + 1 - len(spans))
        spans += [match.span() for match in found]
        if len(spans) > limit:
            return None
    return sorted(spans)


def judged_one_by_one(data: bytes, is_removed: Callable[[str, int], bool]) -> bytes | None:
    """The text without what *is_removed*; None when there are too many, or a direction control.

    *is_removed* is asked for a few characters and the place of the one in question among them.
    """
    spans = _few_suspects(data)
    # A flag is longer than neighbours, and direction is a matter of lines.
    if spans is None or _CANCEL_TAG in data or _has_directions(data):
        return None
    pieces: list[bytes] = []
    done = 0
    for start, end in spans:
        left, right = data[max(start - _LEFT, 0) : start], data[start : end + _RIGHT]
        before = left.decode("utf-8", "ignore")
        if is_removed(before + right.decode("utf-8", "ignore"), len(before)):
            pieces.append(data[done:start])
            done = end
    pieces.append(data[done:])
    return b"".join(pieces)


def without_runs_in_ascii(data: bytes) -> bytes:
    """The text without runs that have ASCII, or an end of the text, on both sides.

    No context keeps one of these, but direction controls where a line has right-to-left text: such
    a text is left alone, and so is one whose first runs stand elsewhere.
    """
    if not _mostly_in_ascii(data) or (
        _has_directions(data) and _compiled(_RIGHT_TO_LEFT).search(data)
    ):
        return data
    return _compiled(_BETWEEN_ASCII).sub(b"", data)


def _mostly_in_ascii(data: bytes) -> bool:
    runs = list(islice(_compiled(_RUN_IN_ASCII).finditer(data[:_SAMPLE_BYTES]), _SAMPLE))
    return sum(_follows_ascii(data, run.start()) for run in runs) * 2 > len(runs)


def _follows_ascii(data: bytes, place: int) -> bool:
    return place == 0 or data[place - 1] < 0x80


def judged_by_words(data: bytes, judged: Callable[[str], str]) -> bytes | None:
    """The text with each word that is not ASCII as *judged* leaves it; None if words hardly repeat.

    *judged* is given the distinct words, one a line.
    """
    if _has_directions(data):
        return None
    pattern = _WORD_OR_KEYCAP if _KEYCAP in data else _WORD
    words = {word for word in set(pattern.findall(data)) if has_suspects(word)}
    if sum(map(len, words)) > len(data) // 2:
        return None
    listed = sorted(words)
    before = b"\n".join(listed)
    after = judged(before.decode()).encode()
    if after == before:
        return data
    known = dict(zip(listed, after.split(b"\n"), strict=True))
    return pattern.sub(lambda found: known.get(found[0], found[0]), data)
