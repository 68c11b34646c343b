"""The quotations of an answer, and what each of them is said to be from.

A quotation is what stands between quotation marks of any of the languages below, or a Markdown
block quote. Code is no quotation. A mark that is opened and not closed in its paragraph quotes the
rest of it: nothing is left unchecked because a mark was forgotten.

A quotation is from what is mentioned directly behind it, else later in its sentence, else before
it in its sentence; for a block, also in the line under it or in the words that lead to it.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from citations._folding import QUOTE_MARKS
from citations._marks import Marked, mark, mark_tex
from citations._mentions import Mention, Mentions

__all__ = ("Quote", "find_quotes")

# Opening mark: the marks that close it. Source: the Unicode Standard, 6.2, quotation marks.
_CLOSERS: Final[Mapping[str, str]] = {
    '"': '"',
    "“": "”",
    "”": "”",
    "„": "“”‟",
    "‟": "”",
    "«": "»",
    "»": "«»",
    "‹": "›",
    "›": "‹›",
    "‘": "’'",
    "‚": "‘’",
    "‛": "’",
    "'": "'",
    "「": "」",
    "『": "』",
    "＂": "＂",
    "❝": "❞",
    "❛": "❜",
    "〝": "〞〟",
}
_TYPED: Final = "“„‟"
# They are apostrophes as well.
_SINGLE: Final = "'‘‚‛’❛❜"
# They open only where a word begins: they close elsewhere, or measure inches.
_EITHER: Final = "\"”»›'‘‚‛“"
_MARK: Final = re.compile(f"[{QUOTE_MARKS}]")
_NEAR: Final = 40
_UNSEEN: Final = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff*_\\"
_AFTER_CLOSING: Final = frozenset(f".,;:!?)]}}([<>—–-{QUOTE_MARKS}")
_FENCE: Final = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[^\n]*$", re.MULTILINE)
_TICKS: Final = re.compile(r"`+")
_BLOCK_LINE: Final = re.compile(r"[ \t]{0,3}(?:>[ \t]?)+")
_CALLOUT: Final = re.compile(r"\[![A-Za-z]+\][^\n]*")
_BOUNDARY: Final = re.compile(
    r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+]|[0-9]{1,4}[.)])[ \t])|\n(?=[ \t]{0,3}>)"
)
_SENTENCE_END: Final = re.compile(r"[.!?。！？][\"'”’»)\]]*(?=\s)")
_CREDIT: Final = re.compile(
    r"[ \t]*(?:[—–―-]|\(?source\b|\(?from\b|\[|https?://|<https?://|\()", re.IGNORECASE
)
_BETWEEN: Final = re.compile(r"[\s.,;:!?()—–-]*")
_AT_END: Final = re.compile(f"[\\s.,;:!?()>{QUOTE_MARKS}]*")
_UNDER: Final = re.compile(r"[ \t]*\n?[ \t]*\n?")
_ITEM: Final = re.compile(r"[ \t]*(?:[-*+]|[0-9]{1,4}[.)])[ \t]")
_ELIDED: Final = re.compile(
    r"(?:tis|twas|twere|twill|em|cause|til|n|round|[0-9]0s)\b", re.IGNORECASE
)


@attrs.frozen(kw_only=True)
class Quote:
    """A quotation in an answer.

    Attributes:
        text: The words as they are shown, without marks, block markers and references at their end.
        written: The same with entities, as the answer has them.
        start: Where it begins in the answer, its mark included.
        end: Where it ends.
        block: Whether it is a Markdown block quote.
        mentions: What it is said to be from; none when nothing is said.
        adjacent: Whether that stands directly at the quotation.
    """

    text: str
    written: str
    start: int
    end: int
    block: bool
    mentions: tuple[Mention, ...] = ()
    adjacent: bool = False


@attrs.frozen(kw_only=True)
class _Span:
    """Where a quotation stands, and where its words do."""

    start: int
    first: int
    last: int
    end: int
    block: bool
    closed: bool = True


def find_quotes(answer: str, mentions: Mentions) -> Iterator[Quote]:
    """The quotations of *answer* in order; linear up to a logarithm."""
    starts = [mention.start for mention in mentions.items]
    tex = mark_tex(answer)
    marked = mark(answer, tex, _code(tex))
    spans = sorted(_spans(marked.text, starts), key=lambda span: span.start)
    # From here on in the answer itself: what stands for a mark is as long as it is there.
    spans = [
        attrs.evolve(span, start=marked.start(span.start), end=marked.end(span.end))
        for span in spans
    ]
    for number, span in enumerate(spans):
        before = spans[number - 1].end if number else 0
        after = spans[number + 1].start if number + 1 < len(spans) else len(answer)
        yield _bound(answer, marked, span, (before, after), mentions.items, starts)


def _code(answer: str) -> list[tuple[int, int]]:
    """What is shown as it is written, in order."""
    code = list(_fenced(answer))
    at = 0
    for start, end in (*code, (len(answer), len(answer))):
        for first, last in _paragraphs(answer, at, max(at, start)):
            code += _code_spans(answer, first, last)
        at = end
    return sorted(code)


# ── where quotations stand ────────────────────────────────────────────────────────────────────


def _spans(answer: str, starts: Sequence[int]) -> Iterator[_Span]:
    fenced = list(_fenced(answer))
    blocks = [block for block in _blocks(answer, starts) if not _is_in(block.start, fenced)]
    yield from blocks
    taken = sorted([*fenced, *((block.start, block.end) for block in blocks)])
    at = 0
    for start, end in (*taken, (len(answer), len(answer))):
        if at < start:
            yield from _over_paragraphs(answer, at, start)
        at = max(at, end)


def _is_in(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    place = bisect_right(spans, (at, len(QUOTE_MARKS) + 10**12)) - 1
    return place >= 0 and spans[place][0] <= at < spans[place][1]


def _fenced(answer: str) -> Iterator[tuple[int, int]]:
    """Blocks of code; one that is not closed goes to the end, as it does where it is shown."""
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(answer):
        if opened is None:
            opened = match
        elif match[1].startswith(opened[1]) and match[0].strip() == match[1]:
            yield opened.start(), match.end()
            opened = None
    if opened is not None:
        yield opened.start(), len(answer)


def _blocks(answer: str, starts: Sequence[int]) -> Iterator[_Span]:
    """Runs of lines that a Markdown quotation mark begins."""
    at, lines, start = 0, list[str](), 0
    for line in (*answer.splitlines(keepends=True), ""):
        marker = _BLOCK_LINE.match(line)
        if marker is not None:
            start = at if not lines else start
            lines.append(line)
        elif lines:
            if _CALLOUT.match(lines[0], _marker_length(lines[0])) is None:
                yield _block(lines, start, at, starts)
            lines = []
        at += len(line)


def _block(lines: Sequence[str], start: int, end: int, starts: Sequence[int]) -> _Span:
    """A block quote; the lines at its end that say where it is from are not its words."""
    last = end
    for line in reversed(lines[1:]):
        first = last - len(line)
        words = line[_marker_length(line) :]
        names = bisect_left(starts, last) > bisect_left(starts, first)
        if words.strip() and not (_CREDIT.match(words) and names):
            break
        last = first
    return _Span(start=start, first=start, last=last, end=end, block=True)


def _marker_length(line: str) -> int:
    marker = _BLOCK_LINE.match(line)
    return 0 if marker is None else marker.end()


def _paragraphs(answer: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for match in _BOUNDARY.finditer(answer, start, end):
        yield at, match.start()
        at = match.end()
    yield at, end


def _over_paragraphs(answer: str, start: int, end: int) -> Iterator[_Span]:
    """What stands between marks; one that a paragraph leaves open goes on to where it is closed."""
    done = start
    for first, last in _paragraphs(answer, start, end):
        if last <= done:
            continue
        for span in _inline(answer, max(first, done), last):
            close = None if span.closed else _carried(answer, answer[span.start], last, end)
            if close is None:
                yield span
            else:
                done = close + 1
                yield attrs.evolve(span, last=close, end=done, closed=True)
        # What stands behind the closing mark in its paragraph is looked at by that paragraph.


def _carried(answer: str, opened: str, start: int, end: int) -> int | None:
    """Where a later paragraph closes what is open, before anything else is opened there."""
    closers = _CLOSERS[opened] + ('"' if opened in _TYPED else "")
    for match in _MARK.finditer(answer, start, end):
        mark_, place = match[0], match.start()
        if mark_ in closers and (mark_ not in _CLOSERS or not _may_open(answer, place, start, end)):
            return place
        if mark_ not in _SINGLE and _may_open(answer, place, start, end):
            return None
    return None


def _inline(answer: str, start: int, end: int) -> Iterator[_Span]:
    """What stands between marks in one paragraph; nested ones are part of the outer one."""
    code = _code_spans(answer, start, end)
    marks = [m.start() for m in _MARK.finditer(answer, start, end) if not _is_in(m.start(), code)]
    singles: dict[str, list[int]] = {mark: [] for mark in _SINGLE}
    for place in marks:
        if answer[place] in _SINGLE and _may_close(answer, place, start, end):
            singles[answer[place]].append(place)
    openers, nested = _nested(answer, marks, start, end)
    pairs = _Pairs(answer, marks, (start, end))
    done = start
    for place in marks:
        if place < done or not _may_open(answer, place, start, end):
            continue
        if answer[place] in _SINGLE:
            close = _first_behind(place, [singles.get(c, []) for c in _CLOSERS[answer[place]]])
            if close is None:
                # An apostrophe.
                continue
        else:
            close = nested.get(place, pairs.close(place))
        stop, done = (end, end) if close is None else (close, close + 1)
        if close in openers:
            # It closes one and opens the next: what stands behind it is a quotation as well.
            done = stop
        yield _Span(
            start=place,
            first=place + 1,
            last=stop,
            end=done,
            block=False,
            closed=close is not None,
        )


def _nested(
    answer: str, marks: Sequence[int], start: int, end: int
) -> tuple[frozenset[int], dict[int, int]]:
    """Marks that look the same at both ends: those that only open, and where each is closed.

    `"He said "no" and left"` has one quotation, which has another one in it.
    """
    open_: dict[str, list[int]] = {}
    openers: set[int] = set()
    closed: dict[int, int] = {}
    for place in marks:
        mark = answer[place]
        if mark in _SINGLE or mark not in _CLOSERS.get(mark, ""):
            continue
        waiting = open_.setdefault(mark, [])
        if _only_opens(answer, place, start, end):
            waiting.append(place)
            openers.add(place)
        elif waiting:
            closed[waiting.pop()] = place
    return frozenset(openers), closed


def _only_opens(answer: str, place: int, start: int, end: int) -> bool:
    # Past what is not seen, emphasis and escapes; what is longer than this is a blank.
    left, right = max(start, place - _NEAR), min(end, place + 1 + _NEAR)
    before = answer[left:place].rstrip(_UNSEEN)[-1:] or " "
    after = answer[place + 1 : right].lstrip(_UNSEEN)[:1] or " "
    return (before.isspace() or before in "([{—–") and not (
        after.isspace() or after in _AFTER_CLOSING
    )


def _first_behind(place: int, lists: Iterable[Sequence[int]]) -> int | None:
    found = ((places, bisect_right(places, place)) for places in lists)
    return min((places[at] for places, at in found if at < len(places)), default=None)


@attrs.frozen
class _Pairs:
    """Where marks are closed, quotations of the same marks inside them passed over."""

    _answer: str
    _marks: Sequence[int]
    _room: tuple[int, int]
    _known: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict)

    def close(self, place: int) -> int | None:
        """With a straight mark, as keyboards do, if not with its own."""
        kind = self._answer[place]
        close = self._of(kind, _CLOSERS[kind]).get(place)
        return self._of(kind, '"').get(place) if close is None and kind in _TYPED else close

    def _of(self, opened: str, closers: str) -> dict[int, int]:
        # One pass for all marks of a kind: a search from each would look at the rest each time.
        key = opened, closers
        if key not in self._known:
            self._known[key] = _paired(self._answer, self._marks, *key, self._room)
        return self._known[key]


def _paired(
    answer: str, marks: Sequence[int], opened: str, closers: str, room: tuple[int, int]
) -> dict[int, int]:
    """Where each mark of a kind is closed."""
    found: dict[int, int] = {}
    if opened in closers:
        later: int | None = None
        for place in reversed(marks):
            if later is not None and answer[place] == opened:
                found[place] = later
            if answer[place] in closers:
                later = place
        return found
    waiting: list[int] = []
    for place in marks:
        if answer[place] == opened and _may_open(answer, place, *room):
            waiting.append(place)
        elif waiting and answer[place] in closers:
            found[waiting.pop()] = place
    return found


def _may_open(answer: str, place: int, start: int, end: int) -> bool:
    mark = answer[place]
    if mark not in _CLOSERS:
        return False
    if mark not in _EITHER:
        return True
    before = answer[place - 1] if place > start else " "
    after = answer[place + 1] if place + 1 < end else " "
    # French puts a space inside, one that does not break.
    if before.isalnum() or (after.isspace() and after not in "\u00a0\u202f"):
        return False
    return mark not in "'‘" or _ELIDED.match(answer, place + 1, end) is None


def _may_close(answer: str, place: int, start: int, end: int) -> bool:
    mark = answer[place]
    if mark not in _SINGLE:
        return True
    before = answer[place - 1] if place > start else " "
    after = answer[place + 1] if place + 1 < end else " "
    return not before.isspace() and not after.isalnum()


def _code_spans(answer: str, start: int, end: int) -> list[tuple[int, int]]:
    """Code between equal runs of backticks in one paragraph."""
    runs = [match.span() for match in _TICKS.finditer(answer, start, end)]
    later: dict[int, list[int]] = {}
    for number, (first, last) in enumerate(runs):
        later.setdefault(last - first, []).append(number)
    spans: list[tuple[int, int]] = []
    number = 0
    while number < len(runs):
        first, last = runs[number]
        equal = later[last - first]
        place = bisect_right(equal, number)
        if place == len(equal):
            number += 1
            continue
        spans.append((first, runs[equal[place]][1]))
        number = equal[place] + 1
    return spans


# ── what they are from ────────────────────────────────────────────────────────────────────────


def _bound(
    answer: str,
    marked: Marked,
    span: _Span,
    room: tuple[int, int],
    mentions: Sequence[Mention],
    starts: Sequence[int],
) -> Quote:
    """The quotation with what it is said to be from."""
    last, found = _tail(answer, span, _between(mentions, starts, span.first, span.last))
    place = bisect_left(starts, span.start) - 1
    if place >= 0 and mentions[place].end >= span.end:
        # The quotation is the text of a link.
        found.append(mentions[place])
    elif span.block:
        # What the block's own last lines say.
        found += _between(mentions, starts, span.last, span.end)
    else:
        found += _touching(answer, span.end, _between(mentions, starts, span.end, room[1]))
    adjacent = bool(found)
    if not found:
        look = _credits if span.block else _in_sentence
        found = look(answer, span, room, mentions, starts)
    return Quote(
        text=_words(marked.words(span.first, last), block=span.block),
        written=_words(answer[span.first : last], block=span.block),
        start=span.start,
        end=span.end,
        block=span.block,
        mentions=tuple(found),
        adjacent=adjacent,
    )


def _words(text: str, *, block: bool) -> str:
    if not block:
        return text
    return "".join(line[_marker_length(line) :] for line in text.splitlines(keepends=True))


def _between(
    mentions: Sequence[Mention], starts: Sequence[int], first: int, last: int
) -> Sequence[Mention]:
    return mentions[bisect_left(starts, first) : bisect_left(starts, last)]


def _tail(answer: str, span: _Span, inside: Sequence[Mention]) -> tuple[int, list[Mention]]:
    """Where the words end, and the references that stand behind them inside of the marks."""
    tail: list[Mention] = []
    last = span.last
    for mention in reversed(inside):
        raised = answer[mention.start] not in "[<【h"
        if not mention.addresses or raised or not _AT_END.fullmatch(answer, mention.end, last):
            # What nothing explains, or is a power, may be the source's own.
            break
        tail.insert(0, mention)
        last = mention.start
    if tail:
        last = span.first + len(answer[span.first : last].rstrip(" \t\n(—–-"))
    return last, tail


def _touching(answer: str, at: int, behind: Sequence[Mention]) -> list[Mention]:
    """The references directly behind, with nothing but punctuation between."""
    found: list[Mention] = []
    for mention in behind:
        gap = answer[at : mention.start]
        if "\n" in gap or _BETWEEN.fullmatch(gap) is None:
            break
        found.append(mention)
        at = mention.end
    return found


def _in_sentence(
    answer: str,
    span: _Span,
    room: tuple[int, int],
    mentions: Sequence[Mention],
    starts: Sequence[int],
) -> list[Mention]:
    """The first reference later in the sentence, or the last one earlier in it."""
    boundary = _BOUNDARY.search(answer, span.end, room[1])
    stop = room[1] if boundary is None else boundary.start()
    # The mark that ends the sentence may stand inside the quotation marks.
    ended = _SENTENCE_END.search(answer, max(span.end - 2, span.first), stop)
    later = _between(mentions, starts, span.end, stop if ended is None else ended.end())
    if later:
        return [later[0], *_touching(answer, later[0].end, later[1:])]
    sentence = _sentence_start(answer, room[0], span.start)
    earlier = _between(mentions, starts, sentence, span.start)
    # What stands directly behind the quotation before this one is that one's.
    taken = len(_touching(answer, room[0], earlier)) if room[0] else 0
    return list(earlier[taken:][-1:])


def _sentence_start(answer: str, first: int, at: int) -> int:
    start = first
    for pattern in (_BOUNDARY, _SENTENCE_END):
        for match in pattern.finditer(answer, start, at):
            start = match.end()
    return start


def _credits(
    answer: str,
    span: _Span,
    room: tuple[int, int],
    mentions: Sequence[Mention],
    starts: Sequence[int],
) -> list[Mention]:
    """What the line under a block quote, or the one that leads to it, says that it is from."""
    under = _UNDER.match(answer, span.end)
    first = span.end if under is None else under.end()
    stop = answer.find("\n", first)
    last = min(len(answer) if stop < 0 else stop, room[1])
    if _CREDIT.match(answer, first, last):
        named = _between(mentions, starts, first, last)
        if named:
            return list(named)
    head = room[0] + len(answer[room[0] : span.start].rstrip())
    line = answer.rfind("\n", room[0], head) + 1 or room[0]
    leading = _between(mentions, starts, line, head)
    return list(leading[-1:])
