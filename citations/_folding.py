"""A text as quotations of it are compared, with the way back to its own characters.

Folded away is what typography changes and wording does not: the kind of quotation marks and
dashes, white space, ellipsis signs, invisible characters, ligatures, and composed or decomposed
accents. Letters, digits, case and all other signs stay. One pass, linear in the text.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import attrs

__all__ = ("QUOTE_MARKS", "Folded", "fold")

_SINGLE: Final = "'‘’‚‛‹›＇❛❜"
_DOUBLE: Final = '"“”„‟«»＂❝❞〝〞〟「」『』'
QUOTE_MARKS: Final = _SINGLE + _DOUBLE
_HYPHENS: Final = "-\u2010\u2011"
_DASHES: Final = f"{_HYPHENS}\u2012\u2013\u2014\u2015\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d"
# Shown as nothing: soft hyphen, joiners, direction marks, variation selectors.
_IGNORED: Final = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
_LIGATURES: Final = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}

# One alternative a kind of run. Nothing here can be entered twice for one place.
_PLAIN_RUNS: Final = (
    # A single space stays what it is; it is looked at only beside other runs.
    r"(?P<space>[^\S ]\s*+| \s++)",
    rf"(?P<dash>[{re.escape(_DASHES)}]++)",
    rf"(?P<quote>[{QUOTE_MARKS}]++)",
    rf"(?P<ignored>[{_IGNORED}]++)",
    r"(?P<ellipsis>…)",
    r"(?P<other>[^\x00-\x7f]++)",
)
# What Markdown adds to a visible text. Pages are kept as Markdown; quotations are of what it shows.
_MARKUP_RUNS: Final = (
    r"(?P<escaped>\\[!-/:-@\[-`{-~])",
    r"(?P<marker>^(?:[ \t]*+(?:\#{1,6}+(?=[ \t])|>|[-*+](?=[ \t])))++)",
    r"(?P<link>\]\([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)*+(?:[ \t]++\"[^\"\n]*+\")?+\))",
    r"(?P<open>!?\[)",
    r"(?P<close>\])",
    r"(?P<code>`++)",
    r"(?P<emphasis>[*_]++|~~)",
    r"(?P<cell>\|)",
)
_LITERAL: Final = re.compile("|".join(_PLAIN_RUNS))
_MARKDOWN: Final = re.compile("|".join((*_MARKUP_RUNS, *_PLAIN_RUNS)), re.MULTILINE)
_UNSEEN: Final = re.compile(f"[{_IGNORED}]")
# In a run of other characters, those that are not simply themselves.
_SPECIAL: Final = re.compile(
    rf"[{re.escape(_DASHES)}{QUOTE_MARKS}{_IGNORED}…\s{''.join(_LIGATURES)}]"
)


@attrs.define
class _Builder:
    """Pieces of a folded text: what each says, and where it stood."""

    texts: list[str] = attrs.field(factory=list)
    starts: list[int] = attrs.field(factory=list)
    ends: list[int] = attrs.field(factory=list)
    opened: list[int] = attrs.field(factory=list)

    def put(self, text: str, start: int, end: int) -> None:
        self.texts.append(text)
        self.starts.append(start)
        self.ends.append(end)


@attrs.frozen
class Folded:
    """A folded text. `text` is compared; `origin` leads back.

    Attributes:
        source: The text that was folded.
    """

    source: str
    text: str
    _at: tuple[int, ...] = attrs.field(repr=False)
    _starts: tuple[int, ...] = attrs.field(repr=False)
    _ends: tuple[int, ...] = attrs.field(repr=False)

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where the folded characters from *start* up to *end* stand in `source`; not for none."""
        return self._origin(start)[0], self._origin(end - 1)[1]

    def _origin(self, index: int) -> tuple[int, int]:
        piece = bisect_right(self._at, index) - 1
        start, end = self._starts[piece], self._ends[piece]
        following = self._at[piece + 1] if piece + 1 < len(self._at) else len(self.text)
        if following - self._at[piece] == end - start:
            at = start + index - self._at[piece]
            return at, at + 1
        return start, end

    def is_hyphen(self, index: int) -> bool:
        """Whether the sign at *index* joins the parts of one word: one hyphen without spaces."""
        start, end = self._origin(index)
        return end == start + 1 and self.source[start] in _HYPHENS

    def is_minus(self, index: int) -> bool:
        """Whether the dash at *index* stands as a sign does: against what follows it only."""
        start, end = self._origin(index)
        before = self.source[start - 1] if start and not self.source[start].isspace() else " "
        return self.source[end - 1] in _DASHES and not before.isalnum()


def fold(source: str, *, markdown: bool = False) -> Folded:
    """*source* as it is compared; with *markdown* what a reader of the rendered text sees."""
    built = _Builder()
    at = 0
    for match in (_MARKDOWN if markdown else _LITERAL).finditer(source):
        if match.start() > at:
            built.put(source[at : match.start()], at, match.start())
        at = match.end()
        _add(built, source, match)
    if at < len(source):
        built.put(source[at:], at, len(source))
    return _joined(source, built)


# What a run of one kind becomes, whatever it was.
_BECOMES: Final = {"space": " ", "cell": " ", "dash": "-", "quote": "'", "ellipsis": "..."}


def _add(built: _Builder, source: str, match: re.Match[str]) -> None:
    """What one run becomes; nothing, for one that is invisible, begins a line or marks code."""
    start, end = match.span()
    kind = match.lastgroup or ""
    if kind in _BECOMES:
        built.put(_BECOMES[kind], start, end)
    elif kind == "ignored" and _parts_digits(source, start, end):
        # Two numbers in a row, or one; nobody can see which.
        built.put(match[0], start, end)
    elif kind == "other":
        for text, first, last in _decomposed(source, start, end):
            built.put(text, first, last)
    elif kind in _MARKUP:
        _MARKUP[kind](built, source, match)


def _escaped(built: _Builder, source: str, match: re.Match[str]) -> None:
    sign = source[match.end() - 1]
    plain = _LITERAL.match(sign)
    built.put(sign if plain is None else _BECOMES[plain.lastgroup or ""], *match.span())


def _open(built: _Builder, _source: str, match: re.Match[str]) -> None:
    built.opened.append(len(built.texts))
    built.put(match[0], *match.span())


def _close(built: _Builder, _source: str, match: re.Match[str]) -> None:
    if built.opened:
        built.opened.pop()
    built.put("]", *match.span())


def _emphasis(built: _Builder, source: str, match: re.Match[str]) -> None:
    if not _is_markup(source, *match.span()):
        built.put(match[0], *match.span())


def _link(built: _Builder, _source: str, match: re.Match[str]) -> None:
    """The text of a link stays, its brackets and its address go."""
    if not built.opened:
        built.put(match[0], *match.span())
        return
    built.texts[built.opened.pop()] = ""


_MARKUP: Final = {
    "escaped": _escaped,
    "open": _open,
    "close": _close,
    "link": _link,
    "emphasis": _emphasis,
}


def _is_markup(source: str, start: int, end: int) -> bool:
    """Whether stars or underscores stress a text: not between spaces, not inside a word."""
    before = source[start - 1] if start else " "
    after = source[end] if end < len(source) else " "
    inside = before.isalnum() and after.isalnum()
    return not inside and not (before.isspace() and after.isspace())


def _decomposed(source: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """A run outside of ASCII: as it is where nothing of it changes, else sign by sign."""
    run = source[start:end]
    if unicodedata.is_normalized("NFD", run) and _SPECIAL.search(run) is None:
        yield run, start, end
        return
    at = start
    while at < end:
        following = at + 1
        while _UNSEEN.match(source, at) and following < end and _UNSEEN.match(source, following):
            following += 1
        if _UNSEEN.match(source, at) and _parts_digits(source, at, following):
            yield source[at:following], at, following
            at = following
            continue
        # Marks belong to their letter, and their order is no spelling.
        while following < end and unicodedata.combining(source[following]):
            following += 1
        yield _plain(source[at:following]), at, following
        at = following


def _parts_digits(source: str, start: int, end: int) -> bool:
    """Whether what is not seen stands between two digits."""
    return source[max(0, start - 1) : start].isdigit() and source[end : end + 1].isdigit()


def _plain(cluster: str) -> str:
    first = cluster[0]
    if first in _LIGATURES:
        return _LIGATURES[first] + cluster[1:]
    if first.isspace():
        return " "
    if first in _DASHES:
        return "-"
    if first in QUOTE_MARKS:
        return "'"
    if first == "…":
        return "..."
    if _SPECIAL.match(first):
        return _UNSEEN.sub("", cluster)
    return unicodedata.normalize("NFD", cluster)


def _joined(source: str, built: _Builder) -> Folded:
    """The pieces in a row: one space for several, none beside a dash or at an end."""
    row = _Row()
    for text, start, end in zip(built.texts, built.starts, built.ends, strict=True):
        # What was copied has its own spaces; what was folded has none, or is one.
        core = text.strip(" ")
        if not core:
            if text:
                row.space(start, end)
            continue
        left = len(text) - len(text.lstrip(" "))
        right = len(text) - left - len(core)
        if left:
            row.space(start, start + left)
        row.add(core, start + left, end - right)
        if right:
            row.space(end - right, end)
    return Folded(source, "".join(row.texts), tuple(row.at), tuple(row.starts), tuple(row.ends))


@attrs.define
class _Row:
    """Pieces as they stand in the folded text."""

    texts: list[str] = attrs.field(factory=list)
    at: list[int] = attrs.field(factory=list)
    starts: list[int] = attrs.field(factory=list)
    ends: list[int] = attrs.field(factory=list)
    length: int = 0
    gap: tuple[int, int] | None = None

    def space(self, start: int, end: int) -> None:
        """A space waits for what follows it; several are one."""
        self.gap = (self.gap[0] if self.gap else start, end)

    def add(self, text: str, start: int, end: int) -> None:
        """A piece without spaces at its ends."""
        gap, self.gap = self.gap, None
        last = self.texts[-1] if self.texts else ""
        if text == last and text in {"-", "'"} and gap is None:
            # One sign for several of its kind in a row.
            self.ends[-1] = end
            return
        if gap and last == "-":
            # With a space behind it, it is no hyphen.
            self.ends[-1] = gap[1]
        elif gap and text == "-" and last:
            start = gap[0]
        elif gap and last:
            self._put(" ", *gap)
        self._put(text, start, end)

    def _put(self, text: str, start: int, end: int) -> None:
        self.texts.append(text)
        self.at.append(self.length)
        self.starts.append(start)
        self.ends.append(end)
        self.length += len(text)
