"""Whether the quotations of an answer stand in what was read. Pure; nothing is ever guessed.

A quotation is compared after folding what typography changes (quotation marks, dashes, white
space, ellipsis signs, invisible characters, composed accents). The words have to be the same, in
the same case, and to begin and end where words of the source do: one changed word is another text,
and so is half a word. What is merely similar is not found.

Source: the rules page, citations; W3C Web Annotation Data Model for the selectors.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, Final

import attrs

from citations._folding import Folded, fold
from citations._mentions import find_mentions
from citations._numbers import goes_on_after, goes_on_before
from citations._quotes import Quote, find_quotes
from citations.citation import KnowledgeCitation
from citations.evidence import Evidence, Seen, SourceKind
from citations.selectors import TextMatch, text_match

__all__ = (
    "MAX_QUOTES",
    "MIN_QUOTE_CHARS",
    "CheckedQuote",
    "QuoteReason",
    "Verdict",
    "Verification",
    "plain_address",
    "verify",
)

MIN_QUOTE_CHARS: Final = 20
"""Folded characters that a quotation needs to be verified. Source: the rules page, citations."""
MIN_PART_CHARS: Final = 8
"""Folded characters of each part between ellipsis signs; single letters stand in every page in order."""
MAX_QUOTES: Final = 256
"""Quotations of one answer that are compared; those after them are not found."""

_MAX_PARTS: Final = 32
# How often the same words may stand inside longer ones before the search is given up.
_MAX_TRIES: Final = 64
_ELLIPSIS: Final = re.compile(r"[\[(]?(?:…|\.[ \u00a0]?\.[ \u00a0]?\.(?:[ \u00a0]?\.)?)[\])]?")
_CUT_ALLOWED: Final = frozenset(".,")
_NUMBER_SIGNS: Final = frozenset(".,/:")
_INSIDE_NUMBERS: Final = frozenset(".,/:-'\xd7·^*\u066b\u066c\u2044")
_UNITS: Final = frozenset("%‰°")
# Scripts that put no space between words: there a quotation may begin and end anywhere.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)


class Verdict(StrEnum):
    """What can be said of a quotation."""

    VERIFIED = "verified"
    SNIPPET_ONLY = "snippet-only"
    NOT_FOUND = "not-found"
    UNREAD_SOURCE = "unread-source"


class QuoteReason(StrEnum):
    """Why a quotation is not verified, or has no verdict."""

    ANOTHER_TEXT = "another_text"
    NEVER_READ = "never_read"
    TEXT_NOT_KEPT = "text_not_kept"
    UNKNOWN_REFERENCE = "unknown_reference"
    TOO_SHORT = "too_short"
    PARTS_TOO_SHORT = "parts_too_short"
    TOO_MANY = "too_many"
    TITLE = "title"


@attrs.frozen(kw_only=True)
class CheckedQuote:
    """A quotation and what was found of it.

    Attributes:
        text: As the answer has it, without its marks.
        start: Where it begins in the answer, in code points; its mark belongs to it.
        end: Where it ends in the answer.
        cited: The addresses that it is said to be from, as written; a label that the answer does
            not explain has a hash sign. None when nothing is said: then everything read counts.
        verdict: None when the quotation is too short to prove anything, or is a title.
        citation: Where it was found.
        matches: Where in that revision, one for each part between ellipsis signs.
        elsewhere: Another source that was read and has these words, when the cited one has not.
    """

    text: str
    start: int
    end: int
    block: bool
    cited: tuple[str, ...]
    verdict: Verdict | None
    reason: QuoteReason | None = None
    citation: KnowledgeCitation | None = None
    matches: tuple[TextMatch, ...] = ()
    elsewhere: KnowledgeCitation | None = None

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "block": self.block,
            "cited": list(self.cited),
            "verdict": None if self.verdict is None else str(self.verdict),
            "reason": None if self.reason is None else str(self.reason),
            "citation": None if self.citation is None else self.citation.to_wire(),
            "selectors": [
                [match.quote.to_json(), match.position.to_json()] for match in self.matches
            ],
            "elsewhere": None if self.elsewhere is None else self.elsewhere.to_wire(),
        }


@attrs.frozen(kw_only=True)
class Verification:
    """What became of every quotation of an answer, in order."""

    quotes: tuple[CheckedQuote, ...]

    @property
    def judged(self) -> tuple[CheckedQuote, ...]:
        """Those with a verdict."""
        return tuple(quote for quote in self.quotes if quote.verdict is not None)

    @property
    def verified(self) -> tuple[CheckedQuote, ...]:
        """Those that stand in what they cite."""
        return tuple(quote for quote in self.quotes if quote.verdict is Verdict.VERIFIED)

    @property
    def ok(self) -> bool:
        """Whether every quotation is verified, and there is one: nothing proves nothing."""
        return bool(self.verified) and len(self.verified) == len(self.judged)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {"ok": self.ok, "quotes": [quote.to_json() for quote in self.quotes]}


def plain_address(address: str) -> str | None:
    """An http or https address without fragment, its scheme, host and empty path as usual.

    For callers that have no parser of addresses; two spellings of one path stay two addresses.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme.lower() not in {"http", "https"}:
        return None
    rest = rest.partition("#")[0]
    stop = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    host, path = rest[:stop].lower(), rest[stop:]
    host = host.removesuffix(":80" if scheme.lower() == "http" else ":443")
    return f"{scheme.lower()}://{host}{path if path.startswith('/') else '/' + path}"


def verify(
    answer: str,
    evidence: Evidence,
    *,
    canonical: Callable[[str], str | None] = plain_address,
) -> Verification:
    """A verdict for each quotation of *answer*.

    A quotation that names no source may stand in any page that was read. One that names a source
    has to stand in a revision of it that was read, and nowhere else. Shorter than
    `MIN_QUOTE_CHARS` it has no verdict, unless a source is named directly at it that does not
    have the words, or was not read.

    Args:
        answer: Any text, with its references.
        evidence: What was read.
        canonical: Makes an address comparable with those of citations; None for what is none.
    """
    check = _Check(evidence, canonical)
    mentions = find_mentions(answer)
    checked = [
        check.judged(quote, listed=_is_listed(quote, mentions.listed), late=number >= MAX_QUOTES)
        for number, quote in enumerate(find_quotes(answer, mentions))
    ]
    return Verification(quotes=tuple(quote for quote in checked if quote is not None))


def _is_listed(quote: Quote, spans: Sequence[tuple[int, int]]) -> bool:
    place = bisect_right(spans, quote.start, key=lambda span: span[0]) - 1
    return place >= 0 and quote.start < spans[place][1]


@attrs.frozen
class _Needle:
    """A quotation as it is searched for.

    Attributes:
        forms: As it is, and as what it shows if it is Markdown; each in parts.
        size: Folded characters.
    """

    forms: tuple[tuple[str, ...], ...]
    size: int

    @property
    def is_soup(self) -> bool:
        """Whether it is made of pieces that any page has."""
        parts = self.forms[-1]
        short = len(parts) > 1 and min(map(len, parts)) < MIN_PART_CHARS
        return short or len(parts) > _MAX_PARTS


def _needle(text: str, written: str) -> _Needle:
    whole = [fold(text).text, fold(text, markdown=True).text]
    if written != text:
        # A page may have the entity itself.
        whole.append(fold(written).text)
    pieces = _ELLIPSIS.split(text)
    split = tuple(
        tuple(filter(None, (_trimmed(fold(part, markdown=markdown).text) for part in pieces)))
        for markdown in (False, True)
    )
    forms = chain(((_trimmed(form),) for form in whole), split)
    size = sum(map(len, split[1]))
    return _Needle(tuple(dict.fromkeys(form for form in forms if form and all(form))), size)


def _trimmed(folded: str) -> str:
    """Without marks at its ends, and without an ellipsis there, which leaves nothing out."""
    return folded.strip(" '").removeprefix("...").removesuffix("...").strip(" '")


class _Check:
    """One answer against one body of evidence; each text is folded once, when it is needed."""

    def __init__(self, evidence: Evidence, canonical: Callable[[str], str | None]) -> None:
        self._evidence = evidence
        self._canonical = canonical
        self._by_address: dict[str, list[Seen]] = {}
        for seen in evidence.seen:
            for address in (seen.citation.path, *seen.aliases):
                self._by_address.setdefault(address, []).append(seen)
        self._folded: dict[str, tuple[Folded, ...] | None] = {}

    def judged(self, quote: Quote, *, listed: bool, late: bool) -> CheckedQuote | None:
        """The quotation with its verdict; None for one that says nothing."""
        needle = _needle(quote.text, quote.written)
        if needle.size == 0:
            return None
        if late:
            return _told(quote, Verdict.NOT_FOUND, QuoteReason.TOO_MANY)
        sources = self._cited(quote)
        found = self._found(quote, needle, sources)
        if needle.size < MIN_QUOTE_CHARS:
            return self._short(quote, found)
        # One place is all of it, ellipsis signs included: then nothing is left out.
        scattered = needle.is_soup and len(found.matches) != 1
        if scattered and found.verdict is not Verdict.UNREAD_SOURCE:
            return _told(quote, Verdict.NOT_FOUND, QuoteReason.PARTS_TOO_SHORT)
        if listed and found.verdict is not Verdict.VERIFIED and self._is_title(needle, sources):
            return _told(quote, None, QuoteReason.TITLE)
        return found

    def _short(self, quote: Quote, found: CheckedQuote) -> CheckedQuote:
        """Too little to prove anything; but what a named source does not have, it does not have."""
        if quote.adjacent and found.verdict in {Verdict.NOT_FOUND, Verdict.UNREAD_SOURCE}:
            return found
        return _told(quote, None, QuoteReason.TOO_SHORT)

    def _cited(self, quote: Quote) -> list[Seen] | None:
        """What was seen of the sources that are named; None when none is named."""
        if not quote.mentions:
            return None
        addresses = [
            self._canonical(address) for mention in quote.mentions for address in mention.addresses
        ]
        known = dict.fromkeys(address for address in addresses if address is not None)
        return [seen for address in known for seen in self._by_address.get(address, ())]

    def _found(self, quote: Quote, needle: _Needle, cited: list[Seen] | None) -> CheckedQuote:
        sources = list(self._evidence.seen) if cited is None else cited
        for kind, verdict in (
            (SourceKind.PAGE, Verdict.VERIFIED),
            (SourceKind.SNIPPET, Verdict.SNIPPET_ONLY),
        ):
            hit = self._first(needle, [seen for seen in sources if seen.kind is kind])
            if hit is not None:
                reason = None if verdict is Verdict.VERIFIED else QuoteReason.NEVER_READ
                told = _told(quote, verdict, reason)
                return attrs.evolve(told, citation=hit[0].citation, matches=hit[1])
        verdict, reason = self._missing(quote, sources)
        other = None if cited is None else self._first(needle, self._pages_beside(sources))
        elsewhere = None if other is None else other[0].citation
        return attrs.evolve(_told(quote, verdict, reason), elsewhere=elsewhere)

    def _pages_beside(self, sources: Sequence[Seen]) -> list[Seen]:
        return [
            seen
            for seen in self._evidence.seen
            if seen.kind is SourceKind.PAGE and seen not in sources
        ]

    def _missing(self, quote: Quote, sources: Sequence[Seen]) -> tuple[Verdict, QuoteReason]:
        if quote.mentions and not any(mention.addresses for mention in quote.mentions):
            return Verdict.UNREAD_SOURCE, QuoteReason.UNKNOWN_REFERENCE
        pages = [seen for seen in sources if seen.kind is SourceKind.PAGE]
        # What a search found and nothing keeps may have the words: it is not that nobody saw it.
        if any(self._texts(seen) is None for seen in pages or sources):
            return Verdict.UNREAD_SOURCE, QuoteReason.TEXT_NOT_KEPT
        if not pages:
            return Verdict.UNREAD_SOURCE, QuoteReason.NEVER_READ
        return Verdict.NOT_FOUND, QuoteReason.ANOTHER_TEXT

    def _first(
        self, needle: _Needle, sources: Iterable[Seen]
    ) -> tuple[Seen, tuple[TextMatch, ...]] | None:
        for seen in sources:
            for folded in self._texts(seen) or ():
                for parts in needle.forms:
                    spans = _search(folded, parts)
                    if spans is not None:
                        return seen, tuple(text_match(folded.source, *span) for span in spans)
        return None

    def _texts(self, seen: Seen) -> tuple[Folded, ...] | None:
        """The text of a source as it is and as it shows; None when it is not kept."""
        key = seen.citation.revision_id
        if key not in self._folded:
            text = self._evidence.text_of(seen)
            if text is None:
                self._folded[key] = None
            else:
                plain, shown = fold(text), fold(text, markdown=True)
                self._folded[key] = (plain,) if plain.text == shown.text else (plain, shown)
        return self._folded[key]

    def _is_title(self, needle: _Needle, sources: Sequence[Seen] | None) -> bool:
        """Whether a list of references names a source by the title that the search gave it."""
        for seen in sources or ():
            text = self._evidence.text_of(seen) if seen.kind is SourceKind.SNIPPET else None
            if text is not None and (_trimmed(fold(text.partition("\n")[0]).text),) in needle.forms:
                return True
        return False


def _told(quote: Quote, verdict: Verdict | None, reason: QuoteReason | None) -> CheckedQuote:
    cited = chain.from_iterable(mention.named for mention in quote.mentions)
    return CheckedQuote(
        text=quote.text.strip(),
        start=quote.start,
        end=quote.end,
        block=quote.block,
        cited=tuple(dict.fromkeys(cited)),
        verdict=verdict,
        reason=reason,
    )


# ── searching ─────────────────────────────────────────────────────────────────────────────────


def _search(folded: Folded, parts: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where the parts stand in the source, in order and apart; None when one does not."""
    spans: list[tuple[int, int]] = []
    at = 0
    for number, part in enumerate(parts):
        found = _find(folded, part, at, last=number == len(parts) - 1)
        if found is None:
            return None
        spans.append(folded.origin(*found))
        at = found[1]
    return spans


def _find(folded: Folded, part: str, at: int, *, last: bool) -> tuple[int, int] | None:
    """The first place of the part between two ends of words.

    A full stop or comma at the end of a quotation belongs to the sentence around it in English.
    """
    words = [part]
    if last and part[-1] in _CUT_ALLOWED and part[:-1].strip():
        words.append(part[:-1].rstrip())
    for sought in words:
        start = at
        for _ in range(_MAX_TRIES):
            start = folded.text.find(sought, start)
            if start < 0:
                break
            end = start + len(sought)
            if _begins(folded, start) and _ends(folded, end):
                return start, end
            start += 1
    return None


def _begins(folded: Folded, at: int) -> bool:
    """Whether a word, and a number, may begin here."""
    text = folded.text
    first, before = text[at], text[at - 1] if at else " "
    further = text[at - 2] if at > 1 else " "
    if _joins(before, first) or unicodedata.combining(first):
        return False
    if _is_in_number(folded, at):
        return False
    if not _is_wordy(first):
        return True
    if first.isnumeric() and goes_on_before(folded.source, folded.origin(at, at + 1)[0]):
        return False
    if before == "'" and _is_wordy(further):
        return False
    if first.isdigit() and before in _NUMBER_SIGNS and further.isdigit():
        return False
    if before != "-":
        return True
    # Half of a compound, or a number without its sign.
    if first.isdigit() and folded.is_minus(at - 1):
        return False
    return not (folded.is_hyphen(at - 1) and _is_wordy(further))


def _ends(folded: Folded, at: int) -> bool:
    """Whether a word, and a number, may end here."""
    text = folded.text
    last, after = text[at - 1], text[at] if at < len(text) else " "
    further = text[at + 1] if at + 1 < len(text) else " "
    if _joins(last, after) or unicodedata.combining(after):
        return False
    if _is_in_number(folded, at - 1):
        return False
    if not _is_wordy(last):
        return True
    if last.isnumeric() and goes_on_after(folded.source, folded.origin(at - 1, at)[1]):
        return False
    if after == "'" and _is_wordy(further):
        return False
    if last.isdigit() and (after in _UNITS or (after in _NUMBER_SIGNS and further.isdigit())):
        return False
    return not (after == "-" and folded.is_hyphen(at) and _is_wordy(further))


def _is_in_number(folded: Folded, at: int) -> bool:
    """Whether the sign stands between two digits, and touches both: no quotation is cut there."""
    if folded.text[at] not in _INSIDE_NUMBERS:
        return False
    start, end = folded.origin(at, at + 1)
    # Folding takes the spaces beside a dash into it: one of them parts the numbers.
    if any(sign.isspace() for sign in folded.source[start:end]):
        return False
    return folded.source[max(0, start - 1) : start].isdigit() and (
        folded.source[end : end + 1].isdigit()
    )


def _is_wordy(sign: str) -> bool:
    return sign.isalnum() or sign == "_"


def _joins(first: str, second: str) -> bool:
    """Whether two signs in a row are of one word."""
    if not (_is_wordy(first) or unicodedata.combining(first)) or not _is_wordy(second):
        return False
    return _UNSPACED.match(first) is None and _UNSPACED.match(second) is None
