"""Whether a text that goes out holds something that must not: private strings, canaries, nonces. Pure.

What is private is kept as windows of characters in sets, so a check takes one pass over the text for
each of its forms, whatever the number of strings. The forms are the text as it is and what it says
in the writings of `runtime_pack.writings`, forwards and backwards, several of these one inside the
other. Case, separators and invisible characters between letters and digits do not hide a string.

A string of 8 to 15 characters is found as a whole; of a longer one, any 16 characters in a row are.
Of a private text, runs of its words are found as well: see `runtime_pack.word_runs`.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

# The two modules that read what is private load with the first private text: most runs have none.
if TYPE_CHECKING:
    from runtime_pack.word_runs import WordRuns

__all__ = (
    "MAX_CHECKED",
    "MIN_PRIVATE",
    "Leak",
    "PrivateText",
    "find_nonce",
    "joins_of",
)

MIN_PRIVATE: Final = 8
"""Characters that a private string has at least: a shorter one would be found by chance."""

MAX_CHECKED: Final = 262_144
"""Characters of a text that can be looked through: a longer one is never said to be clean."""

_WINDOW: Final = 16
_NOT_LETTERS: Final = re.compile(r"[\W_]+")


class Leak(IntEnum):
    """What was found, in the order of how bad it is."""

    WORKSPACE = 1
    SECRET = 2
    DECLARED = 3
    CANARY = 4
    NONCE = 5
    # So tangled that it cannot be read in a bounded time: nobody can say that nothing is in it.
    UNREADABLE = 6


# ── parts ────────────────────────────────────────────────────────────────────────────────────

_MOST_ORDERED: Final = 4
_MOST_JOINED: Final = 8192
_MOST_STRINGS: Final = 2048
_LONGEST_PIECE: Final = 32


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
    return _NOT_ASCII.sub(lambda match: _plain(match[0]), plain)


_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def _plain(sign: str) -> str:
    """A digit of any script as one of ours, no mark upon a letter, and every other sign as it is."""
    if sign.isdecimal():
        return str(unicodedata.decimal(sign))
    return "" if unicodedata.combining(sign) else sign


def _spellings(text: str) -> set[str]:
    """A private string as it is looked for: with and without separators, forwards and backwards."""
    # One sign may fold to several, so what is turned and folded is not what is folded and turned.
    folded, turned = _folded(text), _folded(text[::-1])
    both = {folded, folded[::-1], turned, turned[::-1]}
    both |= {_NOT_LETTERS.sub("", each) for each in both}
    return {each for each in both if len(each) >= MIN_PRIVATE}


# What two people do not write by chance: see docs/labels.md for what was measured. Of a secret text a
# shorter run is enough, and a short one is private as a whole.
def _new_runs() -> dict[Leak, WordRuns]:
    from runtime_pack.word_runs import RunLength, WordRuns

    return {
        Leak.WORKSPACE: WordRuns(RunLength(words=6, letters=28)),
        Leak.SECRET: WordRuns(RunLength(words=4, letters=20, whole=3)),
    }


# Letters that a run is found by, as `runtime_pack.word_runs` says.
_BEGINNING: Final = 8


class PrivateText:
    """Private strings, to be looked for in what goes out.

    `add` is for strings; `add_text` for a whole text of which the parts are private that look like
    data: names of things with digits or signs in them, and for a secret text every long word.
    """

    __slots__ = ("_blocks", "_first", "_public", "_runs", "_strings", "_whole", "_windows")

    def __init__(self) -> None:
        # As ordered sets, which are small while they are empty.
        self._first: dict[str, None] = {}
        self._whole: dict[str, Leak] = {}
        self._windows: dict[str, Leak] = {}
        self._public: dict[str, None] = {}
        # The letters of each string, as many strings as parts can be held against.
        self._strings: dict[str, Leak] = {}
        # Of letters that other character sets write in other bytes.
        self._blocks: frozenset[int] = frozenset()
        # By what they are; made with the first text.
        self._runs: dict[Leak, WordRuns] = {}

    def __bool__(self) -> bool:
        return bool(self._first) or any(self._runs.values())

    def add(self, text: str, kind: Leak) -> None:
        """Look for a string from now on. One that is too short to be looked for is not."""
        from runtime_pack.writings import blocks_of

        self._blocks |= blocks_of(text)
        letters = _letters(text)
        if len(letters) >= MIN_PRIVATE and len(self._strings) < _MOST_STRINGS:
            self._keep(self._strings, letters, kind)
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
        """Look for what of a private text looks like data, and for runs of its words.

        What was said in public is left out.
        """
        from runtime_pack.writings import blocks_of

        self._runs_of(kind).add(_folded(text))
        self._blocks |= blocks_of(text)
        for word, certain in _words(text, secret=kind is Leak.SECRET):
            telling = certain or kind is Leak.SECRET or not _ordinary().match(word)
            if telling and _folded(word) not in self._public:
                self.add(word, kind)

    def _runs_of(self, kind: Leak) -> WordRuns:
        if not self._runs:
            self._runs = _new_runs()
        return self._runs[kind]

    def add_public(self, text: str) -> None:
        """What a text says in public is no secret: those words of private texts are not looked for."""
        folded = _folded(text)
        for kind in (Leak.WORKSPACE, Leak.SECRET):
            self._runs_of(kind).add_public(folded)
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

    def find(
        self, text: str, nonces: AbstractSet[str] = frozenset(), *, runs: bool = True
    ) -> Leak | None:
        """The worst of what the text holds, in any of its forms; None when it holds nothing.

        Without *runs*, runs of words do not count: for what nobody has composed of them.
        """
        if not self and not nonces:
            return None
        if len(text) > MAX_CHECKED:
            return Leak.UNREADABLE
        from runtime_pack.writings import TooTangled, forms_of

        worst: Leak | None = None
        try:
            for form in forms_of(text, self._blocks):
                found = self._found(form, runs=runs)
                if nonces and find_nonce(form, nonces):
                    found.append(Leak.NONCE)
                worst = max((*found, *(() if worst is None else (worst,))), default=None)
        except TooTangled:
            return Leak.UNREADABLE
        return worst

    def _found(self, form: str, *, runs: bool) -> list[Leak]:
        if not self:
            return []
        folded = _folded(form)
        letters = _NOT_LETTERS.sub("", folded)
        found: list[Leak] = []
        for spelling in (folded,) if letters == folded else (folded, letters):
            beginnings = _beginnings(spelling)
            if (leak := self._scan(spelling, beginnings)) is not None:
                found.append(leak)
            if runs and spelling is letters:
                found += self._words(letters, beginnings)
        return found

    def _words(self, letters: str, beginnings: Sequence[str]) -> Iterator[Leak]:
        """Of the kinds of which a run of words stands in a text, forwards or backwards."""
        if not any(self._runs.values()):
            return
        turned = letters[::-1]
        both = ((letters, beginnings), (turned, _beginnings(turned)))
        for kind, known in self._runs.items():
            if any(known.holds(each, begun) for each, begun in both):
                yield kind

    def _scan(self, text: str, beginnings: Sequence[str]) -> Leak | None:
        first = self._first.keys()
        if first.isdisjoint(beginnings):
            return None
        found = [self._at(text, at) for at, word in enumerate(beginnings) if word in first]
        return max((leak for leak in found if leak is not None), default=None)

    def _at(self, text: str, start: int) -> Leak | None:
        whole, lengths = self._whole, range(MIN_PRIVATE, _WINDOW)
        leaks = [whole.get(text[start : start + length]) for length in lengths]
        leaks.append(self._windows.get(text[start : start + _WINDOW]))
        return max((leak for leak in leaks if leak is not None), default=None)

    def find_shared_out(self, parts: Iterable[str]) -> Leak | None:
        """The worst string that parts of a call make when some of them are put in a row, in any order.

        Parts of three letters, of two for what was declared; each may be in a writing of its own.
        """
        told = [part for part in parts if part]
        if len(told) <= _MOST_ORDERED or not self._strings:
            return None
        if sum(map(len, told)) > MAX_CHECKED:
            return Leak.UNREADABLE
        from runtime_pack.writings import TooTangled, said_by

        try:
            said = {each for part in told for each in said_by(part, self._blocks)}
        except TooTangled:
            return Leak.UNREADABLE
        pool = _Pool({_letters(each) for each in said})
        found = (leak for letters, leak in self._strings.items() if pool.makes(letters, leak))
        return max(found, default=None)


def _beginnings(text: str) -> list[str]:
    return [text[at : at + _BEGINNING] for at in range(len(text) - _BEGINNING + 1)]


def _letters(text: str) -> str:
    return _NOT_LETTERS.sub("", _folded(text))


class _Pool:
    """Pieces that a string may be made of."""

    __slots__ = ("_heads", "_pairs", "_tails", "_wholes")

    def __init__(self, pieces: AbstractSet[str]) -> None:
        self._wholes = {piece for piece in pieces if 2 <= len(piece) <= _LONGEST_PIECE}
        lengths = range(2, _LONGEST_PIECE + 1)
        self._heads = {p[:n] for p in pieces for n in lengths if n <= len(p)}
        self._tails = {p[-n:] for p in pieces for n in lengths if n <= len(p)}
        self._pairs = {p[at : at + 2] for p in pieces for at in range(len(p) - 1)}

    def makes(self, letters: str, kind: Leak) -> bool:
        """Whether pieces in a row make the string, or a window of a long one."""
        needed, least = min(len(letters), _WINDOW), 2 if kind >= Leak.DECLARED else 3
        pairs = sum(letters[at : at + 2] in self._pairs for at in range(len(letters) - 1))
        if 2 * pairs < needed - 1:
            return False
        reach = [0] * (len(letters) + 1)
        for end in range(least, len(letters) + 1):
            starts = range(max(0, end - _LONGEST_PIECE), end - least + 1)
            pieces = [(letters[start:end], start) for start in starts]
            begun = [end - start for piece, start in pieces if piece in self._tails]
            gone_on = [end - at + reach[at] for piece, at in pieces if piece in self._wholes]
            reach[end] = max((*begun, *gone_on), default=0)
            if reach[end] and reach[end] + self._head(letters, end, least) >= needed:
                return True
        return False

    def _head(self, letters: str, start: int, least: int) -> int:
        ends = range(min(len(letters), start + _LONGEST_PIECE), start + least - 1, -1)
        return next((end - start for end in ends if letters[start:end] in self._heads), 0)


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
