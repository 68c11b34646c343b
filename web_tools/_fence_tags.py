"""S5: find every spelling of the fence's own tag, and put a visible marker in its place.

The walk: from a bracket (in any spelling) over what a reader skips to the letters of the name.
It runs over the folded text, one character per code point; every part of the pattern is
possessive, and no bracket is skippable, so a bracket's walk ends at the next bracket and the
total work is linear.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Final

from web_tools import _visible_tables
from web_tools._fence_decode import Reading, WayBack, readings
from web_tools._visible_edits import Span, Step, rewrite

__all__ = ("MARKER", "TAG", "break_tags", "find_tags", "hide_name")

TAG: Final = "untrusted-web-content"
# Not tag-shaped, not a look-alike, not invisible; no token of any chat template begins with it.
MARKER: Final = "(page text, not a fence: "

_SKIPPED: Final = f" /{_visible_tables.INVISIBLE}{_visible_tables.CONTROL}"
_SKIP: Final = f"[{_SKIPPED}]*+"
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


_NAME_LETTERS: Final = TAG.replace("-", "")


@functools.cache
def _walk() -> re.Pattern[str]:
    return re.compile(f"<({_SKIP}){_letters(_NAME_LETTERS)}")


@functools.cache
def _name() -> re.Pattern[str]:
    return re.compile(f"({_letters(_NAME_LETTERS)})")


# The only brackets beyond the basic plane; a test says so.
_WIDE_BRACKETS: Final = ("\U0001d236", "\U0001f780")
_LETTERS_ONLY: Final = {
    **{ord(character): None for character in _SKIPPED},
    **{ord(short): letters for letters, short in _visible_tables.TWO_LETTERS.items()},
}
_SHORT_CHARS: Final = 4_000  # folded sooner than looked at
_LOOK_CHARS: Final = 64
_MAX_LOOKS: Final = 200
_PIECE_CHARS: Final = 16_384


def _fold(text: str) -> str:
    table = _visible_tables.fold_table()
    if len(text) <= _PIECE_CHARS:
        return text.translate(table)
    # One call holds the interpreter for its whole text, and whoever waits in another thread.
    starts = range(0, len(text), _PIECE_CHARS)
    return "".join([text[start : start + _PIECE_CHARS].translate(table) for start in starts])


@functools.cache
def _bracket_then_letter() -> re.Pattern[str]:
    table = _visible_tables.fold_table()
    bracket = _visible_tables.character_class("<", table, 0x10000)
    skipped = _visible_tables.character_class(_SKIPPED, table)
    letter = _visible_tables.character_class("u" + _visible_tables.TWO_LETTERS["us"], table)
    return re.compile(f"[{bracket}][{skipped}]*+[{letter}]")


@functools.cache
def _skipped_run() -> re.Pattern[str]:
    skipped = _visible_tables.character_class(_SKIPPED, _visible_tables.fold_table())
    return re.compile(f"[{skipped}]*+")


@functools.cache
def _bracket() -> re.Pattern[str]:
    table = _visible_tables.fold_table()
    return re.compile(f"[{_visible_tables.character_class('<', table, 0x10000)}]")


def _may_spell_name(text: str, first: int) -> bool:
    """Whether the text may spell the name from its letter at *first*; only its end is certain."""
    letters = _fold(text[first : first + _LOOK_CHARS]).translate(_LETTERS_ONLY)
    if first + _LOOK_CHARS >= len(text):
        return letters.startswith(_NAME_LETTERS)
    return _NAME_LETTERS.startswith(letters[: len(_NAME_LETTERS)])


# ASCII alone: letters of either case, without what a reader skips.
_ASCII: Final = bytes(range(128))
_NAME_BYTES: Final = _NAME_LETTERS.encode()
_LOWER: Final = bytes.maketrans(_ASCII, _ASCII.lower())
_NOT_ALPHANUMERIC: Final = bytes(byte for byte in _ASCII if not chr(byte).isalnum())
# `<`, `>`, and what opens an escape, in what is left of a text between a bracket and an escape
# without the letters of the name and what is skipped; and without letters at all.
_STOPS: Final = bytes.maketrans(
    _ASCII, bytes(b if chr(b) in "<>&%\\" else ord(".") for b in _ASCII)
)
_SKIPPED_OR_NAME: Final = bytes(
    byte
    for byte in _ASCII
    if chr(byte) not in "<>&%\\" and (not chr(byte).isalnum() or chr(byte).lower() in _NAME_LETTERS)
)
_ESCAPES: Final = (b"&", b"%", b"\\")


def _spells_name_plainly(data: bytes) -> bool:
    """Whether an ASCII text has all letters of the name in a row but for what is skipped."""
    return _NAME_BYTES in data.translate(_LOWER, _NOT_ALPHANUMERIC)


def _may_spell_tag(data: bytes) -> bool:
    """Whether any reading of an ASCII text may have a tag; true when in doubt.

    Either all letters of the name stand there plainly, or an escape stands in the name: behind a
    bracket with nothing but letters of the name between, or behind another escape.
    """
    escapes = [escape for escape in _ESCAPES if escape in data]
    if not escapes and b"<" not in data:
        return False
    if _spells_name_plainly(data):
        return True
    if not escapes:
        return False
    after_brackets = data.translate(_STOPS, _SKIPPED_OR_NAME)
    if any(b"<" + escape in after_brackets for escape in escapes):
        return True
    alone = after_brackets.translate(None, b".")
    return any(first + second in alone for first in escapes for second in escapes)


def _may_have_tag(text: str) -> bool:
    """Cheap test that saves folding a text that is not ASCII; true when in doubt."""
    if text.isascii():
        return len(text) < _SHORT_CHARS or _spells_name_plainly(text.encode())
    if len(text) < _SHORT_CHARS or any(bracket in text for bracket in _WIDE_BRACKETS):
        return True
    found = _letters_after_brackets(text)
    for first in itertools.islice(found, _MAX_LOOKS):
        if _may_spell_name(text, first):
            return True
    return next(found, None) is not None


def _letters_after_brackets(text: str) -> Iterator[int]:
    """Where a letter follows a bracket and what is skipped; in pieces, for the reason in `_fold`."""
    pattern = _bracket_then_letter()
    begin = 0
    while begin < len(text):
        behind = _behind_walks(text, min(begin + _PIECE_CHARS, len(text)))
        yield from (match.end() - 1 for match in pattern.finditer(text, begin, behind + 1))
        begin = behind


def _behind_walks(text: str, place: int) -> int:
    """Where every walk has ended that begins before *place*, but for the letter there.

    At the end of what is skipped; where that is far, at the next bracket, which none is.
    """
    run = _skipped_run().match(text, place, place + _LOOK_CHARS)
    if run is not None and run.end() < min(place + _LOOK_CHARS, len(text)):
        return run.end()
    bracket = _bracket().search(text, place)
    return len(text) if bracket is None else bracket.start()


def _matches(reading: Reading, pattern: re.Pattern[str]) -> list[tuple[int, int, bool]]:
    """Start of a match, end of its first group, and whether that group has a slash."""
    matches = [
        (match.start(), match.end(1), "/" in match[1])
        for match in pattern.finditer(_fold(reading.text))
    ]
    if not matches or not reading.passes:
        return matches
    origin = WayBack(reading).origin
    return [(origin(start), origin(end), slash) for start, end, slash in matches]


def find_tags(text: str) -> list[Span]:
    """Each forged tag, from its bracket to just before the first letter, with its marker.

    Every reading is searched, the text as it came included: decoding may hide a tag that stands
    there plainly. Direction controls inside the span stay, behind the marker: their partners may
    stand outside.
    """
    if text.isascii() and not _may_spell_tag(text.encode()):
        return []
    matches: list[tuple[int, int, bool]] = []
    for reading in readings(text):
        if _may_have_tag(reading.text):  # most texts are folded never or once
            matches += _matches(reading, _walk())
    spans: list[Span] = []
    done = 0
    for start, first, slash in sorted(matches):
        if start >= done:
            kept = "" if text.isascii() else "".join(_DIRECTION.findall(text, start, first))
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
    matches = [match for reading in readings(text) for match in _matches(reading, _name())]
    spans: list[Span] = []
    done = 0
    for start, end, _ in sorted(matches):
        if start >= done:
            spans.append((start, end, replacement))
            done = end
    return rewrite(text, spans)
