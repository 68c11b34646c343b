"""Whether a text that goes out holds something that must not: private strings, canaries, nonces. Pure.

What is private is kept as windows of characters in sets, so a check takes one pass over the text for
each of its forms, whatever the number of strings. The forms are the text as it is and what it says
when it is read as percent escapes, entities, hexadecimal or base64 (both alphabets, every alignment),
forwards and backwards, several of these one inside the other. Case, separators and invisible
characters between letters and digits do not hide a string.

A string of 8 to 15 characters is found as a whole; of a longer one, any 16 characters in a row are.
"""

from __future__ import annotations

import base64
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Final
from urllib.parse import unquote

__all__ = (
    "MAX_CHECKED",
    "MIN_PRIVATE",
    "Leak",
    "PrivateText",
    "find_nonce",
    "forms_of",
    "joins_of",
)

MIN_PRIVATE: Final = 8
"""Characters that a private string has at least: a shorter one would be found by chance."""

MAX_CHECKED: Final = 262_144
"""Characters of a text that can be looked through: a longer one is never said to be clean."""

_WINDOW: Final = 16
# How many readings may stand one inside the other, and how much text they may come to.
_DEPTH: Final = 3
_ROOM: Final = 48
_LEAST_ROOM: Final = 65_536
_ESCAPE_PASSES: Final = 8


class Leak(IntEnum):
    """What was found, in the order of how bad it is."""

    WORKSPACE = 1
    SECRET = 2
    DECLARED = 3
    CANARY = 4
    NONCE = 5
    # So tangled that it cannot be read in a bounded time: nobody can say that nothing is in it.
    UNREADABLE = 6


# ── the forms of a text ───────────────────────────────────────────────────────────────────────

_HEX: Final = re.compile(r"[0-9A-Fa-f]{16,}")
# Eight bytes in base64 are eleven characters at least.
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{11,}")
_ONE_ALPHABET: Final = str.maketrans("-_", "+/")
_NOT_LETTERS: Final = re.compile(r"[\W_]+")
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
# As programs write a sign: `\x41`, `\u0041`, `%u0041`, `\u{41}`.
_CODED: Final = re.compile(
    r"\\x([0-9A-F]{2})|[\\%]u([0-9A-F]{4})|\\u\{(0{0,4}[0-9A-F]{1,4})\}", re.IGNORECASE
)
_READABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ufffd]{8,}")


class _TooMuch(Exception):
    """The forms of a text have come to more than a multiple of it."""


def forms_of(text: str) -> Iterator[str]:
    """The text and everything that it says in another writing, each once, folded in case.

    Raises:
        _TooMuch: there is more of it than a multiple of the text.
    """
    seen: set[str] = set()
    left = _ROOM * len(text) + _LEAST_ROOM
    level: Iterable[str] = (text,)
    for depth in range(_DEPTH + 1):
        deeper: list[str] = []
        for form in level:
            for plain in _unescaped(form):
                if plain in seen:
                    continue
                seen.add(plain)
                left -= len(plain)
                if left < 0:
                    raise _TooMuch
                yield plain
                if depth < _DEPTH:
                    deeper += _decoded(plain)
        level = deeper


def _coded(match: re.Match[str]) -> str:
    return chr(int(match[1] or match[2] or match[3], 16))


def _unescaped(text: str) -> Iterator[str]:
    """The text, and what its percent escapes and entities stand for, as deep as they go."""
    yield text
    for _ in range(_ESCAPE_PASSES):
        plain = _entities_read(text) if "&" in text else text
        if _ESCAPED.search(plain):
            plain = unquote(plain, errors="replace")
        if "\\" in plain or "%u" in plain or "%U" in plain:
            plain = _CODED.sub(_coded, plain)
        if plain == text:
            return
        text = plain
        yield text


def _decoded(text: str) -> Iterator[str]:
    """What the runs of hexadecimal and base64 in a text say, forwards and backwards."""
    letters = _NOT_LETTERS.sub("", text)
    for form in (text, letters) if letters != text else (text,):
        for turned in (form, form[::-1]):
            yield from _from_runs(turned)


def _from_runs(text: str) -> Iterator[str]:
    numbers = _HEX.findall(text)
    for offset in (0, 1) if numbers else ():
        yield from _readable(bytes.fromhex(_even(run[offset:])) for run in numbers)
    runs = [run.translate(_ONE_ALPHABET) for run in _BASE64.findall(text)]
    for offset in range(4) if runs else ():
        yield from _readable(base64.b64decode(_padded(run[offset:])) for run in runs)


def _even(run: str) -> str:
    return run[: len(run) & ~1]


def _padded(run: str) -> str:
    # One character more than whole groups says nothing; two or three say a byte or two.
    kept = len(run) - (len(run) % 4 == 1)
    return run[:kept] + "A" * (-kept % 4)


def _readable(parts: Iterable[bytes]) -> Iterator[str]:
    """What of the bytes is text: what was never encoded so decodes to noise, which has next to none."""
    found: list[str] = []
    for part in parts:
        for data in (part, part.replace(b"\0", b"")) if b"\0" in part else (part,):
            found += _READABLE.findall(data.decode("utf-8", "replace"))
    if found:
        yield "\n".join(found)


_MOST_ORDERED: Final = 4
_MOST_JOINED: Final = 8192


def joins_of(parts: Sequence[str]) -> Iterator[str]:
    """The parts of one call as one text each way: a private string may be shared out between them.

    Of up to 4 parts with 8,192 characters in all every order counts; of more, theirs and its reverse.
    """
    told = [part for part in parts if part]
    if len(told) < 2:
        return
    if len(told) <= _MOST_ORDERED and sum(map(len, told)) <= _MOST_JOINED:
        yield from ("".join(order) for order in itertools.permutations(told))
        return
    yield "".join(told)
    yield "".join(reversed(told))


# ── what is private ───────────────────────────────────────────────────────────────────────────


def _folded(text: str) -> str:
    """A text in which neither case, width nor marks upon letters make a difference, sign by sign."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join([_digit(sign) for sign in plain if not unicodedata.combining(sign)])


def _digit(sign: str) -> str:
    """A digit of any script as one of ours, and every other sign as it is."""
    return str(unicodedata.decimal(sign)) if sign.isdecimal() else sign


def _spellings(text: str) -> set[str]:
    """A private string as it is looked for: with and without separators, forwards and backwards."""
    # One sign may fold to several, so what is turned and folded is not what is folded and turned.
    folded, turned = _folded(text), _folded(text[::-1])
    both = {folded, folded[::-1], turned, turned[::-1]}
    both |= {_NOT_LETTERS.sub("", each) for each in both}
    return {each for each in both if len(each) >= MIN_PRIVATE}


class PrivateText:
    """Private strings, to be looked for in what goes out.

    `add` is for strings; `add_text` for a whole text of which the parts are private that look like
    data: names of things with digits or signs in them, and for a secret text every long word.
    """

    __slots__ = ("_first", "_public", "_whole", "_windows")

    def __init__(self) -> None:
        # As ordered sets, which are small while they are empty.
        self._first: dict[str, None] = {}
        self._whole: dict[str, Leak] = {}
        self._windows: dict[str, Leak] = {}
        self._public: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, text: str, kind: Leak) -> None:
        """Look for a string from now on. One that is too short to be looked for is not."""
        for spelling in _spellings(text):
            self._first[spelling[:MIN_PRIVATE]] = None
            if len(spelling) < _WINDOW:
                self._keep(self._whole, spelling, kind)
                continue
            for start in range(len(spelling) - _WINDOW + 1):
                window = spelling[start : start + _WINDOW]
                self._first[window[:MIN_PRIVATE]] = None
                self._keep(self._windows, window, kind)

    def _keep(self, kept: dict[str, Leak], text: str, kind: Leak) -> None:
        known = kept.get(text)
        if known is None or known < kind:
            kept[text] = kind

    def add_text(self, text: str, kind: Leak) -> None:
        """Look for what of a private text looks like data, unless it was said in public."""
        for word, certain in _words(text, secret=kind is Leak.SECRET):
            telling = certain or kind is Leak.SECRET or not _ordinary().match(word)
            if telling and _folded(word) not in self._public:
                self.add(word, kind)

    def add_public(self, text: str) -> None:
        """What a text says in public is no secret: those words of private texts are not looked for."""
        for word, _ in _words(text, secret=True):
            self._public[_folded(word)] = None
            for spelling in _spellings(word):
                self._drop(self._whole, spelling)
                for start in range(len(spelling) - _WINDOW + 1):
                    self._drop(self._windows, spelling[start : start + _WINDOW])

    def _drop(self, kept: dict[str, Leak], text: str) -> None:
        # What the host declared is private whoever says it.
        known = kept.get(text)
        if known is not None and known < Leak.DECLARED:
            del kept[text]

    def find(self, text: str, nonces: AbstractSet[str] = frozenset()) -> Leak | None:
        """The worst of what the text holds, in any of its forms; None when it holds nothing."""
        if not self._first and not nonces:
            return None
        if len(text) > MAX_CHECKED:
            return Leak.UNREADABLE
        found: list[Leak] = []
        try:
            for form in forms_of(text):
                if nonces and find_nonce(form, nonces):
                    found.append(Leak.NONCE)
                found += self._found(form)
        except _TooMuch:
            return Leak.UNREADABLE
        return max(found, default=None)

    def _found(self, form: str) -> list[Leak]:
        if not self._first:
            return []
        folded = _folded(form)
        letters = _NOT_LETTERS.sub("", folded)
        spellings = (folded,) if letters == folded else (folded, letters)
        return [leak for each in spellings if (leak := self._scan(each)) is not None]

    def _scan(self, text: str) -> Leak | None:
        first = self._first.keys()
        beginnings = [text[at : at + MIN_PRIVATE] for at in range(len(text) - MIN_PRIVATE + 1)]
        if first.isdisjoint(beginnings):
            return None
        found = [self._at(text, at) for at, word in enumerate(beginnings) if word in first]
        return max((leak for leak in found if leak is not None), default=None)

    def _at(self, text: str, start: int) -> Leak | None:
        whole, lengths = self._whole, range(MIN_PRIVATE, _WINDOW)
        leaks = [whole.get(text[start : start + length]) for length in lengths]
        leaks.append(self._windows.get(text[start : start + _WINDOW]))
        return max((leak for leak in leaks if leak is not None), default=None)


def _entities_read(text: str) -> str:
    """The text with its entities read; their table is large, and most texts have none."""
    import html

    return html.unescape(text)


# ── words ─────────────────────────────────────────────────────────────────────────────────────

_WORD: Final = re.compile(r"[^\s\"'`<>()\[\]{},;|]{8,}")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[Ww]{3}\.")


@functools.cache
def _ordinary() -> re.Pattern[str]:
    """Words of a language, also with hyphens, dates and times: what half of all texts have in common."""
    return re.compile(
        r"(?:[^\W\d_]+(?:[-'\u2019/&][^\W\d_]+)*"
        r"|\d{4}-\d\d-\d\d(?:[T_]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
        r"|\d\d:\d\d:\d\d(?:\.\d+)?)\Z"
    )


_LOGIN: Final = re.compile(r"//([^/?#]*)@")
_TOKEN: Final = re.compile(r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{16,}")
# Names of query parameters whose value lets somebody in, whatever it looks like.
_ENTRY: Final = re.compile(
    r"(?:^|[._-])(?:auth|code|credential|key|pass(?:wd|word|phrase)?|pwd|secret|sig|signature|token)s?\Z"
    r"|(?:apikey|accesskey|token|secret|password)\Z",
    re.IGNORECASE,
)
_SEGMENTS: Final = re.compile(r"[/?#&;]")


def _words(text: str, *, secret: bool = False) -> Iterator[tuple[str, bool]]:
    """The long words of a text, without the signs that end a sentence; of addresses, what lets in.

    With each, whether it is private even where it looks like a word of a language.
    """
    for match in _WORD.finditer(text):
        word = match[0].rstrip(".:!?*").lstrip("*#")
        if _ADDRESS.match(word):
            entries = _entries(word, secret=secret)
            yield from (entry for entry in entries if len(entry[0]) >= MIN_PRIVATE)
        elif len(word) >= MIN_PRIVATE:
            yield word, False


def _entries(address: str, *, secret: bool) -> Iterator[tuple[str, bool]]:
    """What of an address lets somebody in: the login before its host, tokens in its path and query.

    The rest is an address: reading it tells its own site what that knows. Of a secret text every
    long segment and value counts, and so it does where the scheme is not that of a page.
    """
    login = _LOGIN.search(address)
    if login is not None:
        _, mark, password = login[1].partition(":")
        yield from ((part, bool(mark)) for part in (login[1], password, unquote(password)))
    every = secret or not address.lower().startswith(("http://", "https://", "www."))
    for segment in _SEGMENTS.split(address.partition("://")[2] or address)[1:]:
        name, mark, value = segment.partition("=")
        written = value if mark else segment
        named = bool(mark) and _ENTRY.search(name) is not None
        for part in dict.fromkeys((written, unquote(written))):
            if every or named or _TOKEN.search(part):
                yield part, named


# ── nonces ────────────────────────────────────────────────────────────────────────────────────

_NONCE: Final = 32
_NONCE_RUN: Final = re.compile(r"[0-9a-f]{32,}")


def find_nonce(text: str, nonces: AbstractSet[str]) -> bool:
    """Whether one of the nonces stands in a text, in either case, also with separators in it."""
    folded = text.casefold()
    for form in (folded, _NOT_LETTERS.sub("", folded)):
        for turned in (form, form[::-1]):
            for run in _NONCE_RUN.findall(turned):
                starts = range(len(run) - _NONCE + 1)
                if any(run[start : start + _NONCE] in nonces for start in starts):
                    return True
    return False
