"""The contexts of S2 for a text that is full of invisible code points: a price that no shape raises.

Each rule is "this class, between these classes". A text's classes become three long integers, one
byte a character and one bit a rule: what the character is, what stands left of it, what stands
right. Their conjunction says who stays. Lines with right-to-left letters are found by carries.
The same rules as in `visible`, which lists what was removed; a test compares.
"""

import functools
import itertools
from collections.abc import Iterable
from typing import Final, TypeAlias

from web_tools import _visible_tables

__all__ = ("FLAGS", "explained")

FLAGS: Final = tuple(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
"""The three subdivision flags of UTS 51's RGI set. Any other tag sequence is a channel."""

# Stands for a tag character of one of these flags; no text after S0 has a surrogate.
_IN_FLAG: Final = "\udc00"
_CANCEL: Final = "\U000e007f"

_ASCII: Final = frozenset(range(128))
# `e` is an emoji selector behind an emoji, `f` a skin tone there.
_HIDDEN: Final = frozenset(b"JNZ1TPvFMOIpqXBtcDke")
_STAYS: Final = _ASCII - _HIDDEN | {*b"k"}
_SEEN: Final = _ASCII - _HIDDEN
_ANY: Final = _ASCII

Classes: TypeAlias = Iterable[int]
Rule: TypeAlias = tuple[Classes, Classes, Classes]
"""Classes of a character that stays, of its left neighbour, of its right neighbour."""

_PAIRED: Final[tuple[Rule, ...]] = (
    (b"J", b"AaGmHh", _SEEN),
    (b"J", _SEEN, b"AGmHh"),
    (b"J", b"Eef", b"E"),
    (b"N", b"AaGm", b"AGm"),
    (b"N", b"Hh", _SEEN),
    (b"N", _SEEN, b"Hh"),
    (b"Z", b"Sh", b"Sh"),
)
_LEANING: Final[tuple[Rule, ...]] = (
    (b"1", b"Co", _ANY),
    (b"TPe", b"CE", _ANY),
    (b"v", b"C", _ANY),
    (b"F", b"G", _ANY),
    (b"B", b"b", _ANY),
    (b"B", _ANY, b"b"),
    (b"P", b"d", b"y"),
    (_STAYS, _ANY, _ANY),
)
_ENDS: Final = ord(".")  # what stands beside a text
_NONZERO: Final = bytes([0] + [1] * 255)
_EMBED, _ISOLATE, _POP, _POP_ISOLATE = b"OIpq"
_CODE_POINT: Final = 0x1FFFFF


def _table(rows: Iterable[tuple[Classes, int]]) -> bytes:
    table = bytearray(256)
    for classes, value in rows:
        for name in classes:
            table[name] |= value
    return bytes(table)


@functools.cache
def _tables(rules: tuple[Rule, ...]) -> tuple[bytes, bytes, bytes]:
    own, left, right = (
        _table((rule[side], 1 << bit) for bit, rule in enumerate(rules)) for side in range(3)
    )
    return own, left, right


@functools.cache
def _only(names: bytes, value: int = 1) -> bytes:
    """Table that gives *value* for some classes and 0 for the others."""
    return _table([(names, value)])


@functools.cache
def _class_table() -> str:
    table = _visible_tables.class_table()
    place = ord(_IN_FLAG)
    return f"{table[:place]}k{table[place + 1 :]}"


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _obeyed(classes: bytes, rules: tuple[Rule, ...]) -> int:
    """One byte a character: which of the rules hold there."""
    own, left, right = _tables(rules)
    behind = 8 * (len(classes) - 1)
    return (
        _number(classes.translate(own))
        & (_number(classes.translate(left)) << 8 | left[_ENDS])
        & (_number(classes.translate(right)) >> 8 | right[_ENDS] << behind)
    )


def _reached(classes: bytes) -> bytes:
    """A byte that is not 0 for each character of a line that has a right-to-left letter behind it.

    A line is a number of all ones with a zero byte behind it. Adding one at a letter carries to the
    end of the line, and changes every byte on the way.
    """
    lines = _number(classes.translate(_only(bytes(_ASCII - {*b"L"}), 0xFF)))
    letters = _number(classes.translate(_only(b"AR")))
    return (lines + letters ^ lines).to_bytes(len(classes) + 1, "little")[:-1]


def _in_right_to_left_lines(classes: bytes) -> int:
    """0xFF for each character on a line with right-to-left letters, in bytes of a number."""
    found = _number(_reached(classes)) | _number(_reached(classes[::-1])[::-1])
    return _number(found.to_bytes(len(classes), "little").translate(_NONZERO)) * 0xFF


def _balanced(kinds: bytes) -> bytes:
    """1 for each embedding and isolate that is opened and closed on its line.

    *kinds* are direction controls and line feeds alone.
    """
    known: dict[bytes, bytes] = {}
    lines = kinds.split(b"L")
    for line in lines:
        if line not in known:
            known[line] = _balanced_line(line)
    return b"\0".join([known[line] for line in lines])


def _balanced_line(kinds: bytes) -> bytes:
    """The same of one line.

    A PDI closes what was opened inside its isolate; an override and its PDF are never kept.
    """
    kept = bytearray(len(kinds))
    stack: list[int] = []
    isolates = 0
    for place, kind in enumerate(kinds):
        if kind == _POP_ISOLATE:
            if isolates:
                while kinds[opener := stack.pop()] != _ISOLATE:
                    pass
                isolates -= 1
                kept[opener] = kept[place] = 1
        elif kind == _POP:
            if stack and (opened := kinds[stack[-1]]) != _ISOLATE:
                opener = stack.pop()
                if opened == _EMBED:
                    kept[opener] = kept[place] = 1
        else:
            stack.append(place)
            isolates += kind == _ISOLATE
    return bytes(kept)


def _directed(classes: bytes) -> int:
    """1 for each direction control that its line explains, in bytes of a number."""
    if not any(name in classes for name in b"MOIpqX"):
        return 0
    lines = _in_right_to_left_lines(classes)
    kept = _number(classes.translate(_only(b"M"))) & lines
    if not any(name in classes for name in b"pq"):
        return kept
    embeddings = _number(classes.translate(_same(b"OIpqX"))) & lines
    feeds = _number(classes.translate(_same(b"L")))
    marked = (embeddings | feeds).to_bytes(len(classes), "little")
    balanced = _balanced(marked.translate(None, b"\0"))
    out = bytearray(len(classes))
    places = itertools.compress(itertools.compress(itertools.count(), marked), balanced)
    for place in places:
        out[place] = 1
    return kept | _number(bytes(out))


@functools.cache
def _same(names: bytes) -> bytes:
    """Table that leaves some classes as they are and gives 0 for the others."""
    return _table(((name,), name) for name in names)


def _kept(classes: bytes) -> bytes:
    """1 for each character that stays, else 0."""
    directed = _directed(classes)
    told = classes.replace(b"EP", b"Ee").replace(b"EK", b"Ef")
    kept = _obeyed(told, _PAIRED) | _obeyed(told, _LEANING) | directed
    return kept.to_bytes(len(classes), "little").translate(_NONZERO)


def _selected(text: str, kept: bytes) -> str:
    if "\0" in text:
        return "".join(itertools.compress(text, kept))
    # What goes becomes a NUL, of which the text has none.
    points = _number(text.encode("utf-32-le"))
    mask = _number(kept.decode("latin-1").encode("utf-32-le")) * _CODE_POINT
    chosen = (points & mask).to_bytes(4 * len(text), "little")
    return chosen.decode("utf-32-le").replace("\0", "")


def explained(text: str) -> str:
    """Whole lines without the invisible code points that no context explains.

    Some 70 to 150 nanoseconds a character, whatever the text is.
    """
    if not text:
        return text
    told = text
    if _CANCEL in text:
        for flag in FLAGS:
            told = told.replace(flag, flag[0] + _IN_FLAG * (len(flag) - 1))
    kept = _kept(told.translate(_class_table()).encode())
    return _selected(text, kept) if 0 in kept else text
