"""An answer as its marks are looked for: what is written in place of a mark is one. Pure.

Entities are shown as their characters, `<q>` and `<blockquote>` as quotations, and ``so'' is how TeX
writes marks. Each becomes its character, and the rest of its length what is not seen, so every other
character keeps its place.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import unescape
from typing import Final

import attrs

__all__ = ("Marked", "mark", "mark_tex")

_UNSEEN: Final = "\u2060"
# Marks that open only, and close only.
_OPENED, _CLOSED = "〝", "〞"
_ENTITY: Final = re.compile(
    r"(?<!\\)&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
)
# As entities they are text: they fence no code, and begin no line.
_STRUCTURE: Final = frozenset("`~\t\n\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029")
_TAG: Final = re.compile(
    r"(?<!\\)<(?P<close>/?)(?:q|blockquote)(?:\s[^<>]{0,2000})?>", re.IGNORECASE
)
# Code between two backticks each ends with them; this does with two apostrophes behind a word.
_TEX: Final = re.compile(
    r"(?<![`\\])``(?=[^\s`])(?P<words>[^`]{1,4000}?(?<=[\w.,;:!?%…)]))''(?=[\s.,;:!?)\]…—–-]|\Z)"
)


@attrs.frozen
class Marked:
    """An answer and what stands for it.

    Attributes:
        text: As long as the answer.
    """

    text: str
    _spans: tuple[tuple[int, int], ...]

    def start(self, at: int) -> int:
        """Where what covers *at* begins in the answer."""
        place = bisect_right(self._spans, at, key=_first) - 1
        return self._spans[place][0] if place >= 0 and at < self._spans[place][1] else at

    def end(self, at: int) -> int:
        """Where what covers the character before *at* ends in the answer."""
        place = bisect_right(self._spans, at - 1, key=_first) - 1
        return max(at, self._spans[place][1]) if place >= 0 else at

    def words(self, start: int, end: int) -> str:
        """What is shown between two places."""
        text = self.text[start:end]
        covered = bisect_right(self._spans, end, key=_first)
        if not covered or self._spans[covered - 1][1] <= start:
            return text
        return text.replace(_UNSEEN, "")


def _first(span: tuple[int, int]) -> int:
    return span[0]


def mark_tex(answer: str) -> str:
    """TeX's marks as marks; only then is it known which backticks are code."""
    return _TEX.sub(lambda match: f"{_UNSEEN}{_OPENED}{match['words']}{_CLOSED}{_UNSEEN}", answer)


def mark(answer: str, tex: str, code: Sequence[tuple[int, int]]) -> Marked:
    """The answer with its entities and tags as they are shown.

    Args:
        answer: As it was written.
        tex: What `mark_tex` made of it.
        code: Sorted spans that are shown as they are written.
    """
    found = sorted((*_tags(tex), *_entities(tex)))
    pieces: list[str] = []
    spans = [(match.start(), match.start() + 2) for match in _TEX.finditer(answer)]
    spans += [(match.end() - 2, match.end()) for match in _TEX.finditer(answer)]
    at = 0
    for start, end, shown in found:
        place = bisect_right(code, start, key=_first) - 1
        if start < at or (place >= 0 and start < code[place][1]):
            continue
        pieces += (tex[at:start], shown)
        spans.append((start, end))
        at = end
    return Marked("".join((*pieces, tex[at:])), tuple(sorted(spans)))


def _tags(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _TAG.finditer(text):
        rest = _UNSEEN * (len(match[0]) - 1)
        shown = f"{_CLOSED}{rest}" if match["close"] else f"{rest}{_OPENED}"
        yield match.start(), match.end(), shown


def _entities(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _ENTITY.finditer(text):
        sign = unescape(match[0])
        size = len(match[0])
        if sign == match[0] or not 0 < len(sign) <= size or not _STRUCTURE.isdisjoint(sign):
            continue
        before = text[match.start() - 1] if match.start() else " "
        rest = _UNSEEN * (size - len(sign))
        # Where a word begins, the word has to follow; where one ends, it has to be in front.
        opens = before.isspace() or before in "(["
        yield match.start(), match.end(), f"{rest}{sign}" if opens else f"{sign}{rest}"
