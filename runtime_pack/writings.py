"""What a text says in other writings: escapes, numbers, hexadecimal, base64, one inside the other. Pure.

A *notation* is a way to write single signs, and a text may mix several of them, so they are undone in
every order that two of them can stand in. A *reading* is a way to write a whole string. Both are tables.
All of it together is bounded by a multiple of the text: what comes to more cannot be read.

Source of the notations: RFC 3986 2.1 (percent), HTML 13.5 (references), ECMA-262 12.9.4 and B.2.1,
Perl and C string escapes, CSS Syntax 4.3.7, RFC 2045 6.7 (quoted-printable), RFC 3492 (host names).
"""

from __future__ import annotations

import base64
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import unquote

__all__ = ("MIN_READ", "TooTangled", "blocks_of", "forms_of", "said_by")

MIN_READ: Final = 8
"""Characters in a row that bytes must say to be taken for a text: noise has next to no such run."""

# How many readings may stand one inside the other, and how much text they may come to.
_DEPTH: Final = 3
_ROOM: Final = 8
_LEAST_ROOM: Final = 262_144
# A text in several character sets comes to as much more: each of its escapes says one thing in each.
_WIDE_ROOM: Final = 48
# So many notations are undone one by one, in every order; beyond that all of them, round by round.
_ORDERED: Final = 2
_ROUNDS: Final = 8


class TooTangled(Exception):
    """What a text says has come to more than a multiple of it."""


Notation: TypeAlias = Callable[[str], str]
Blocks: TypeAlias = frozenset[int]
"""Blocks of 64 code points: those of the letters beyond ASCII that are looked for."""


def blocks_of(text: str) -> Blocks:
    """The blocks of the letters and digits of a text that are not ASCII, in either case."""
    if text.isascii():
        return frozenset()
    folded = unicodedata.normalize("NFKC", text)
    cases = (text, folded, folded.lower(), folded.upper())
    signs = {sign for each in cases for sign in each if sign > "\x7f" and sign.isalnum()}
    return frozenset(ord(sign) // 64 for sign in signs)


@functools.lru_cache(maxsize=64)
def _of_blocks(blocks: Blocks) -> re.Pattern[str]:
    """Characters in a row that are ASCII or of the blocks: bytes that are no text have few of them."""
    ranges = (f"\\U{block * 64:08x}-\\U{block * 64 + 63:08x}" for block in sorted(blocks))
    return re.compile(rf"[ -~{''.join(ranges)}]{{{MIN_READ},}}")


# ── notations: one sign at a time ─────────────────────────────────────────────────────────────

_PERCENT: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_CLOSED: Final = re.compile(r"&#(?:[xX][0-9A-Fa-f]{1,8}|[0-9]{1,8});")
# Longest first: `\U0001F600` begins as `\u0001` does.
_CODED: Final = re.compile(
    r"\\U(?P<long>[0-9A-Fa-f]{8})|[\\%][uU](?P<four>[0-9A-Fa-f]{4})|\\[xX](?P<two>[0-9A-Fa-f]{2})"
    r"|\\[xXuU]\{\s*(?P<braces>[0-9A-Fa-f]{1,8})\s*\}|(?<![0-9A-Za-z])[uU]\+(?P<plus>[0-9A-Fa-f]{4,6})"
    r"|\\o\{\s*(?P<octal>[0-7]{1,8})\s*\}"
    r"|\\N\{(?:[uU]\+(?P<code>[0-9A-Fa-f]{1,8})|(?P<name>[A-Za-z][A-Za-z0-9 -]{0,90}))\}"
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_OCTAL: Final = re.compile(r"\\([0-3]?[0-7]{1,2})")
_CSS: Final = re.compile(r"\\([0-9A-Fa-f]{1,6})[ \t\n]?")
_QUOTED: Final = re.compile(r"=\r?\n|((?:=[0-9A-Fa-f]{2})+)")
_PUNYCODE: Final = re.compile(r"(?<![0-9A-Za-z-])[xX][nN]--([0-9A-Za-z-]{1,59})")
_BYTES: Final = re.compile(r"[\x80-\xff]+")
_UNSEEN: Final = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
# Tag characters are ASCII that nobody sees, variation selectors are bytes.
_TAGS: Final = {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}
_SELECTORS: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")


def _percent(text: str) -> str:
    if not _PERCENT.search(text):
        return text
    return unquote(text, errors="replace").replace("\0", "")


def _references(text: str) -> str:
    if "&" not in text:
        return text
    # Their table is large, and most texts have none.
    import html

    return html.unescape(text)


def _closed_references(text: str) -> str:
    """Those alone that end where they end: what stands inside of another one is read first so."""
    return _CLOSED.sub(lambda match: _references(match[0]), text) if "&#" in text else text


def _sign(code: int) -> str:
    return chr(code) if code <= 0x10FFFF else "\ufffd"


def _of_code(match: re.Match[str]) -> str:
    if match["name"] is not None:
        try:
            return unicodedata.lookup(match["name"])
        except KeyError:
            return match[0]
    if match["octal"] is not None:
        return _sign(int(match["octal"], 8))
    return _sign(int(next(filter(None, match.groups())), 16))


def _coded(text: str) -> str:
    if "\\" not in text and "%u" not in text and "%U" not in text and "+" not in text:
        return text
    plain = _CODED.sub(_of_code, text)
    if _SURROGATE.search(plain):
        # Two halves of a sign beyond the first 65,536 are that sign.
        plain = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return plain


def _octal(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def _css(text: str) -> str:
    return _CSS.sub(lambda match: _sign(int(match[1], 16)), text) if "\\" in text else text


def _quoted(text: str) -> str:
    if "=" not in text:
        return text
    return _QUOTED.sub(lambda match: _utf8((match[1] or "").replace("=", "")), text)


def _utf8(digits: str) -> str:
    return bytes.fromhex(digits).decode("utf-8", "replace")


# One sign that stands after every one, two, three or four others.
_REGULAR: Final = tuple(
    re.compile(rf"(?s)(?=.{{{width}}}([\W_]))(?:.{{{width}}}\1){{5,}}") for width in range(1, 5)
)


def _regular(text: str) -> str:
    """Without a sign that stands between all others, or all groups of so many."""
    for width, pattern in enumerate(_REGULAR, 1):
        plain = pattern.sub(partial(_grouped, width), text)
        if plain != text:
            return plain
    return text


def _grouped(width: int, match: re.Match[str]) -> str:
    text = match[0]
    return "".join(text[at : at + width] for at in range(0, len(text), width + 1))


def _narrow(text: str) -> str:
    """Letters of another width or face as plain ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _seen(text: str) -> str:
    return text if text.isascii() else _UNSEEN.sub("", text.translate(_TAGS))


def _selected(text: str) -> str:
    """Variation selectors as the bytes that they number."""
    return text if text.isascii() else _SELECTORS.sub(_of_selectors, text)


def _of_selectors(match: re.Match[str]) -> str:
    codes = map(ord, match[0])
    numbers = (code - 0xFE00 if code < 0xE0000 else code - 0xE0100 + 16 for code in codes)
    return bytes(numbers).decode("utf-8", "replace")


def _host_names(text: str) -> str:
    return _PUNYCODE.sub(_of_punycode, text) if "--" in text else text


def _of_punycode(match: re.Match[str]) -> str:
    try:
        return match[1].encode().decode("punycode")
    except (UnicodeError, ValueError, OverflowError):
        return match[0]


def _latin(text: str) -> str:
    """Percent escapes of bytes that are one letter each."""
    if not _PERCENT.search(text):
        return text
    return unquote(text, encoding="latin-1", errors="replace")


def _rejoined(text: str) -> str:
    """Letters that are the bytes of others."""
    return _BYTES.sub(lambda match: match[0].encode("latin-1").decode("utf-8", "replace"), text)


_NOTATIONS: Final[tuple[Notation, ...]] = (
    _references,
    _percent,
    _coded,
    _closed_references,
    _octal,
    _css,
    _quoted,
    _seen,
    _narrow,
    _selected,
    _regular,
)
# Of these only what is not ASCII can be written in.
_WIDE_NOTATIONS: Final[tuple[Notation, ...]] = (*_NOTATIONS, _latin, _rejoined, _host_names)


def _unescaped(
    text: str, notations: tuple[Notation, ...], ordered: int = _ORDERED
) -> Iterator[str]:
    """The text, and what it says with its notations undone: so many in every order, then all of them."""
    seen = {text}
    level: list[str] = [text]
    yield text
    for _ in range(ordered):
        deeper: list[str] = []
        for form in level:
            for notation in notations:
                plain = notation(form)
                if plain not in seen:
                    seen.add(plain)
                    deeper.append(plain)
                    yield plain
        level = deeper
    for form in level:
        yield from _rounds(form, seen)


def _rounds(text: str, seen: set[str]) -> Iterator[str]:
    """What it says when the common notations are undone round by round, until nothing is left of them."""
    for _ in range(_ROUNDS):
        for notation in _NOTATIONS[:3]:
            text = notation(text)
        if text in seen:
            return
        seen.add(text)
        yield text


# ── readings: a whole string ──────────────────────────────────────────────────────────────────

_HEX: Final = re.compile(r"[0-9A-Fa-f]{16,}")
# Eight bytes in base64 are eleven characters at least.
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{11,}")
_ONE_ALPHABET: Final = str.maketrans("-_", "+/")
_READABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ufffd]{8,}")
# What may stand between the characters of a string that is written in an alphabet: everything, or
# everything but the signs of one alphabet of base64.
_BETWEEN: Final = (
    re.compile(r"[^A-Za-z0-9]+"),
    re.compile(r"[^A-Za-z0-9_-]+"),
    re.compile(r"[^A-Za-z0-9+/]+"),
)
# Eight characters of which one is an escape.
_LEAST_WRITTEN: Final = 10
# One piece of a string that is shared out: over segments of a path, labels of a host, values.
_PIECES: Final = (re.compile(r"[A-Za-z0-9]{2,}"), re.compile(r"[A-Za-z0-9+/_-]{2,}"))


def _read(text: str) -> Iterator[list[bytes]]:
    """The bytes of a text as hexadecimal, base64 or numbers, forwards and backwards."""
    kept = dict.fromkeys([text, *(between.sub("", text) for between in _BETWEEN)])
    for form in kept:
        for turned in (form, form[::-1]):
            yield from _from_runs(turned)
    for turned in (text, text[::-1]):
        yield from _from_pieces(turned)


def _from_runs(text: str) -> Iterator[list[bytes]]:
    numbers = _HEX.findall(text)
    for offset in (0, 1) if numbers else ():
        yield [bytes.fromhex(_even(run[offset:])) for run in numbers]
    runs = [run.translate(_ONE_ALPHABET) for run in _BASE64.findall(text)]
    # Where a run begins inside of a group of four, what is missing is put in front: none of it is lost.
    for missing in ("", "A", "AA", "AAA") if runs else ():
        yield [base64.b64decode(_padded(missing + run)) for run in runs]


def _from_pieces(text: str) -> Iterator[list[bytes]]:
    """What the pieces of a text say one by one, joined."""
    for form in _PIECES:
        pieces = form.findall(text)
        if len(pieces) > 1:
            runs = [piece.translate(_ONE_ALPHABET) for piece in pieces]
            yield [b"".join(base64.b64decode(_padded(run)) for run in runs)]
            yield [bytes.fromhex("".join(piece for piece in pieces if _is_hex(piece)))]


def _is_hex(piece: str) -> bool:
    return len(piece) % 2 == 0 and not piece.strip("0123456789abcdefABCDEF")


def _even(run: str) -> str:
    return run[: len(run) & ~1]


def _padded(run: str) -> str:
    # One character more than whole groups says nothing; two or three say a byte or two.
    kept = len(run) - (len(run) % 4 == 1)
    return run[:kept] + "A" * (-kept % 4)


def _readable(parts: Iterable[bytes]) -> list[str]:
    """What of the bytes is text: what was never encoded so decodes to noise, which has next to none."""
    found: list[str] = []
    for part in parts:
        found += _READABLE.findall(part.decode("utf-8", "replace"))
        if b"\0" in part:
            # ASCII in 16 or 32 bits.
            found += _READABLE.findall(part.replace(b"\0", b"").decode("utf-8", "replace"))
    return found


# How wide a code unit is, and in which orders its bytes are written.
_CHARSETS: Final = (
    (1, ("latin-1",)),
    (2, ("utf-16-le", "utf-16-be")),
    (4, ("utf-32-le", "utf-32-be")),
)


def _widely(parts: Sequence[bytes], blocks: Blocks) -> Iterator[str]:
    """What of the bytes is text of these blocks in another character set; nothing is read in it."""
    text = _of_blocks(blocks)
    for width, names in _CHARSETS:
        for start in range(width):
            for name in names:
                said = (part[start:].decode(name, "replace") for part in parts)
                found = [run for each in said for run in text.findall(each.replace("\0", ""))]
                if found:
                    yield "\n".join(found)


# ── numbers: a list of code points ────────────────────────────────────────────────────────────

_NUMBER: Final = re.compile(
    r"(?:0[xX]|[xXuU])(?P<hex>[0-9A-Fa-f]{1,8})|0[oO](?P<octal>[0-7]{1,8})"
    r"|0[bB](?P<binary>[01]{1,21})|(?P<plain>[0-9A-Fa-f]{1,21})[hH]?"
)
_WORD: Final = re.compile(r"[0-9A-Za-z]+")
# At least eight in a row, with or without names of functions around them. No part gives anything back.
_NUMBERS: Final = re.compile(
    r"(?<![0-9A-Za-z])"
    r"(?:(?:0[xXoObB]|[xXuU])?+[0-9A-Fa-f]{1,21}+[hH]?+(?![0-9A-Za-z])[^0-9A-Za-z]*+"
    r"(?:(?i:fromcharcode|string|nchar|char|chr|ord|u|x)(?![0-9A-Za-z])[^0-9A-Za-z]++){0,3}+){8,}+"
)
# What is said between numbers in code, the same as in the pattern.
_AROUND: Final = frozenset(["char", "chr", "fromcharcode", "nchar", "ord", "string"])
_BASES: Final = (10, 8, 16, 2)
_MARKED: Final = {"hex": 16, "octal": 8, "binary": 2}


def _from_numbers(text: str) -> Iterator[list[int]]:
    """The numbers of a text that may be code points, in each base; a mark says the base of its own."""
    for match in _NUMBERS.finditer(text):
        words = _WORD.findall(match[0])
        yield from (run for base in _BASES for run in _runs(words, base) if len(run) >= MIN_READ)


def _runs(words: Iterable[str], base: int) -> Iterator[list[int]]:
    """The code points of words that are numbers of a base; names between them do not end a run."""
    run: list[int] = []
    for word in words:
        code = _code(word, base)
        if code is not None:
            run.append(code)
        elif len(word) > 1 and word.lower() not in _AROUND:
            yield run
            run = []
    yield run


def _code(word: str, base: int) -> int | None:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return None
    for mark, marked in _MARKED.items():
        if match[mark] is not None:
            code = int(match[mark], marked)
            return code if code <= 0x10FFFF else None
    try:
        code = int(match["plain"], base)
    except ValueError:
        return None
    return code if code <= 0x10FFFF else None


# ── all of it ─────────────────────────────────────────────────────────────────────────────────


def forms_of(text: str, blocks: Blocks = frozenset()) -> Iterator[str]:
    """The text and everything that it says in another writing, each once.

    With *blocks*, also in what only letters beyond ASCII are written in: character sets, host names.

    Raises:
        TooTangled: there is more of it than a multiple of the text.
    """
    seen: set[str] = set()
    left = (_WIDE_ROOM if blocks else _ROOM) * len(text) + _LEAST_ROOM
    notations = _WIDE_NOTATIONS if blocks else _NOTATIONS
    level: Iterable[str] = (text,)
    for depth in range(_DEPTH + 1):
        deeper: list[str] = []
        for form in level:
            # What was read out of another writing is mostly noise: the second of two is one notation.
            for plain in _unescaped(form, notations, 1 if depth else _ORDERED):
                if plain in seen:
                    continue
                seen.add(plain)
                left = _less(left, plain)
                yield plain
                for said in _said(plain, blocks, deeper) if depth < _DEPTH else ():
                    left = _less(left, said)
                    yield said
                if not depth:
                    deeper += _turned(plain, notations)
        level = deeper


def _less(left: int, form: str) -> int:
    if len(form) > left:
        raise TooTangled
    return left - len(form)


def _said(text: str, blocks: Blocks, deeper: list[str]) -> Iterator[str]:
    """What is said in other character sets, which nothing is read in; the rest goes to *deeper*."""
    parts = list(_read(text))
    for run in (run for turned in (text, text[::-1]) for run in _from_numbers(turned)):
        deeper += _READABLE.findall("".join(map(chr, run)).replace("\0", ""))
        if max(run) < 256:
            parts.append([bytes(run)])
    if blocks:
        # Percent escapes of bytes of another character set.
        parts.append([text.encode("latin-1", "replace")])
    for each in parts:
        runs = _readable(each)
        if runs:
            yield "\n".join(runs)
        # Less than this says nothing in another writing, and noise has less.
        longer = "\n".join(run for run in runs if len(run) >= _LEAST_WRITTEN or not run.isascii())
        if longer:
            deeper.append(longer)
        if blocks:
            yield from _widely(each, blocks)


def _turned(text: str, notations: tuple[Notation, ...]) -> Iterator[str]:
    """The text backwards, where escapes stand in it then; where none do, both ways are looked for."""
    turned = text[::-1]
    if any(notation(turned) != turned for notation in notations):
        yield turned


def said_by(piece: str, blocks: Blocks = frozenset()) -> frozenset[str]:
    """What a short piece says by itself: with its notations undone, in hexadecimal and in base64."""
    said: set[str] = set()
    for plain in _unescaped(piece, _WIDE_NOTATIONS if blocks else _NOTATIONS):
        said.add(plain)
        if _is_hex(plain):
            said.add(bytes.fromhex(plain).decode("utf-8", "replace"))
        if _BASE64_PIECE.fullmatch(plain):
            run = _padded(plain.rstrip("=").translate(_ONE_ALPHABET))
            said.add(base64.b64decode(run).decode("utf-8", "replace").rstrip("\0"))
    return frozenset(said)


_BASE64_PIECE: Final = re.compile(r"[A-Za-z0-9+/_-]{2,}={0,2}")
