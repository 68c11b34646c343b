"""Classification tables: one character per code point, built once per process from pinned rows.

A table is a `str` indexed by code point, so `str.translate` classifies a text at the speed of an
array look-up and without an exception per unmapped character.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Final

from web_tools import _fence_lookalikes, _visible_classes

__all__ = ("character_class", "class_table", "code_points", "fold_table", "marks")

TABLE_SIZE: Final = 0x110000
OTHER: Final = "."
INVISIBLE: Final = "\x01"
CONTROL: Final = "\x02"
# A code point that reads as two letters gets one character of its own in the folded text.
TWO_LETTERS: Final = {"st": "1", "co": "2", "us": "3"}


def code_points(ranges: str) -> Iterator[tuple[int, int]]:
    """First and last code point of each range of a row, as `"41-5A 61"` writes them."""
    for item in ranges.split():
        first, _, last = item.partition("-")
        yield int(first, 16), int(last or first, 16)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    table = bytearray(OTHER.encode() * TABLE_SIZE)
    for name, ranges in rows:
        for first, last in code_points(ranges):
            table[first : last + 1] = name.encode() * (last - first + 1)
    return table.decode("ascii")


@functools.cache
def fold_table() -> str:
    """Fold of each code point: `<`, `/`, a letter, a blank, or the marks of S1 and S2."""
    rows = [
        (TWO_LETTERS.get(fold, fold), ranges) for fold, ranges, _ in _fence_lookalikes.LOOKALIKES
    ]
    rows += [(INVISIBLE, ranges) for _, ranges, _ in _visible_classes.INVISIBLE_CLASSES]
    rows.append((CONTROL, _visible_classes.CONTROLS))
    return _table(rows)


@functools.cache
def class_table() -> str:
    """Class of each code point for the context rules of S2."""
    rows = (*_visible_classes.VISIBLE_CLASSES, *_visible_classes.INVISIBLE_CLASSES)
    return _table((name, ranges) for name, ranges, _ in rows)


def character_class(wanted: str, table: str, last: int = TABLE_SIZE) -> str:
    """Regular-expression class of the code points below *last* whose entry is one of *wanted*."""
    pattern = f"[{re.escape(wanted)}]+"
    ranges = (found.span() for found in re.finditer(pattern, table[:last]))
    return "".join(f"\\U{start:08x}-\\U{end - 1:08x}" for start, end in ranges)


@functools.cache
def marks() -> frozenset[str]:
    """Every combining mark."""
    return frozenset(
        chr(number)
        for first, last in code_points(_visible_classes.MARKS)
        for number in range(first, last + 1)
    )
