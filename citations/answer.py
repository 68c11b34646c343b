"""An answer with numbered references that were checked: as text, Markdown, JSON and CSL-JSON.

The answer's own list of references and its labels are replaced by ours: a number stands for a
revision that was read, and behind each quotation stands what became of it. Pure.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from typing import Any, Final

import attrs

from citations._mentions import Mention, find_mentions
from citations.citation import KnowledgeCitation
from citations.evidence import Evidence, SourceKind
from citations.quotations import CheckedQuote, Verdict, Verification, plain_address, verify
from citations.render import escape_markdown, provenance

__all__ = ("CitedAnswer", "CitedReference", "cite_answer")

_MARKS: Final[Mapping[Verdict, str]] = {
    Verdict.NOT_FOUND: "NOT FOUND",
    Verdict.SNIPPET_ONLY: "ONLY IN A SEARCH RESULT",
    Verdict.UNREAD_SOURCE: "SOURCE NOT READ",
}
_LINE_ENDS: Final = re.compile(r"(?<![ \t])[ \t]++$", re.MULTILINE)
_EMPTY_LINES: Final = re.compile(r"\n{3,}")
# What a renderer would fetch, or take as markup of a page's choice.
_ACTIVE: Final = re.compile(r"<|!(?=\[)|^(?=[ \t]{0,3}\[[^\]\n]{1,999}\]:)", re.MULTILINE)
# What drives a terminal: all control characters but these two, and what turns the direction of text.
_DRIVES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_OTHER_LINE_END: Final = re.compile(r"\r\n?")
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_OF_A_TITLE: Final = 300


@attrs.frozen(kw_only=True)
class CitedReference:
    """A numbered source of an answer.

    Attributes:
        quotes: The verified quotations from it; none when it is only mentioned.
        title: Its title as a search gave it: text that others wrote.
    """

    number: int
    citation: KnowledgeCitation
    quotes: tuple[CheckedQuote, ...]
    title: str | None

    @property
    def links(self) -> tuple[str, ...]:
        """The address with a text fragment for each verified part; alone without any."""
        found = [match.fragment for quote in self.quotes for match in quote.matches]
        links = [f"{self.citation.path}#{fragment}" for fragment in found if fragment]
        return tuple(dict.fromkeys(links)) or (self.citation.path,)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "number": self.number,
            "citation": self.citation.to_wire(),
            "title": self.title,
            "links": list(self.links),
            "verified_quotes": len(self.quotes),
        }


@attrs.frozen(kw_only=True)
class CitedAnswer:
    """An answer, what became of its quotations, and its references.

    Attributes:
        body: The answer with our numbers and marks, without its own list of references.
        unread: Addresses that it refers to and that were not read, as written.
    """

    answer: str
    body: str
    verification: Verification
    references: tuple[CitedReference, ...]
    unread: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every quotation is verified, there is one, and every reference was read."""
        return self.verification.ok and not self.unread

    @property
    def summary(self) -> str:
        """One sentence on the quotations."""
        verified, judged = len(self.verification.verified), len(self.verification.judged)
        short = len(self.verification.quotes) - judged
        told = f"{verified} of {judged} quotations verified"
        return f"{told}; {short} too short to check or a title" if short else told

    def to_text(self) -> str:
        """For a terminal: nothing in it drives one, whatever the answer or a title has."""
        lines = [self.body.rstrip(), ""]
        lines += [line for reference in self.references for line in _text_lines(reference)]
        lines += [f"NOT READ: {address}" for address in self.unread]
        return _shown("\n".join((*lines, self.summary)))

    def to_markdown(self) -> str:
        """CommonMark; nothing in it makes a renderer fetch what the answer names.

        Nor does it drive a terminal, as it is or as it is shown.
        """
        lines = [_inert(_shown(self.body)).rstrip(), ""]
        lines += [_markdown_line(reference) for reference in self.references]
        lines += ["", *(f"Not read: {escape_markdown(address)}  " for address in self.unread)]
        return _shown("\n".join((*lines, self.summary)))

    def to_json(self) -> dict[str, Any]:
        """For machines: with the selectors of every quotation."""
        return {
            "ok": self.ok,
            "answer": self.answer,
            "summary": self.summary,
            **self.verification.to_json(),
            "references": [reference.to_json() for reference in self.references],
            "unread": list(self.unread),
        } | {"ok": self.ok}

    def to_csl(self) -> list[dict[str, Any]]:
        """The references as CSL-JSON items of type webpage.

        Source: csl-data.json of the Citation Style Language, 1.0.2.
        """
        return [_csl(reference) for reference in self.references]


def cite_answer(
    answer: str,
    evidence: Evidence,
    *,
    canonical: Callable[[str], str | None] = plain_address,
) -> CitedAnswer:
    """*answer* checked against *evidence*, with references of ours. See `verify`."""
    checked = verify(answer, evidence, canonical=canonical)
    work = _Work(answer, evidence, checked, canonical)
    body = _EMPTY_LINES.sub("\n\n", _LINE_ENDS.sub("", work.body()))
    return CitedAnswer(
        answer=answer,
        body=body,
        verification=checked,
        references=work.references(),
        unread=tuple(work.unread),
    )


class _Work:
    """Numbers sources in the order of first use, and rewrites the answer's references."""

    def __init__(
        self,
        answer: str,
        evidence: Evidence,
        checked: Verification,
        canonical: Callable[[str], str | None],
    ) -> None:
        self._answer = answer
        self._evidence = evidence
        self._checked = checked
        self._canonical = canonical
        self._pages: dict[str, KnowledgeCitation] = {}
        for seen in evidence.seen:
            if seen.kind is SourceKind.PAGE:
                for address in (seen.citation.path, *seen.aliases):
                    self._pages.setdefault(address, seen.citation)
        self._numbers: dict[tuple[str, str], int] = {}
        self._cited: list[KnowledgeCitation] = []
        self.unread: dict[str, None] = {}

    def body(self) -> str:
        """The answer, rewritten from its beginning to its end."""
        mentions = find_mentions(self._answer)
        edits = sorted((*self._quote_edits(), *self._mention_edits(mentions.items)))
        listed = iter((*mentions.listed, (len(self._answer) + 1, len(self._answer) + 1)))
        gap = next(listed)
        pieces: list[str] = []
        at = 0
        for start, end, text in (*edits, (len(self._answer), len(self._answer), "")):
            while gap[1] <= start:
                pieces.append(self._answer[at : gap[0]] if at < gap[0] else "")
                at, gap = max(at, gap[1]), next(listed)
            if start < at or gap[0] <= start < gap[1]:
                continue
            pieces += (self._answer[at:start], text)
            at = end
        return "".join(pieces)

    def _quote_edits(self) -> Iterator[tuple[int, int, str]]:
        for quote in self._checked.quotes:
            mark = self._mark(quote)
            if mark is None:
                continue
            at = quote.end - (quote.block and self._answer[quote.end - 1 : quote.end] == "\n")
            yield at, at, f" {mark}"

    def _mention_edits(self, mentions: Sequence[Mention]) -> Iterator[tuple[int, int, str]]:
        for mention in mentions:
            known = [self._read(address) for address in mention.addresses]
            for address, citation in zip(mention.addresses, known, strict=True):
                if citation is None:
                    self.unread.setdefault(address)
            if not mention.named[0].startswith("#"):
                continue
            told = [f"[{self._number(citation)}]" for citation in known if citation is not None]
            words, start = "".join(told) or "[SOURCE NOT READ]", mention.start
            before = self._quote_before(start)
            if before is not None and words == self._mark(before):
                # The quotation in front of it has this number already.
                words, start = "", before.end
            yield start, mention.end, words

    def _mark(self, quote: CheckedQuote) -> str | None:
        """What stands behind a quotation."""
        if quote.citation is not None and quote.verdict is Verdict.VERIFIED:
            return f"[{self._number(quote.citation)}]"
        return None if quote.verdict is None else f"[{_MARKS[quote.verdict]}]"

    def _quote_before(self, at: int) -> CheckedQuote | None:
        """The quotation that ends here, but for spaces."""
        quotes = self._checked.quotes
        place = bisect_right(quotes, at, key=_end) - 1
        if place < 0 or self._answer[quotes[place].end : at].strip(" "):
            return None
        return quotes[place]

    def _read(self, address: str) -> KnowledgeCitation | None:
        canonical = self._canonical(address)
        return None if canonical is None else self._pages.get(canonical)

    def _number(self, citation: KnowledgeCitation) -> int:
        key = (citation.document_id, citation.revision_id)
        if key not in self._numbers:
            self._cited.append(citation)
            self._numbers[key] = len(self._cited)
        return self._numbers[key]

    def references(self) -> tuple[CitedReference, ...]:
        """Every source that got a number."""
        return tuple(
            CitedReference(
                number=number,
                citation=citation,
                quotes=tuple(q for q in self._checked.verified if q.citation == citation),
                title=self._title(citation),
            )
            for number, citation in enumerate(self._cited, start=1)
        )

    def _title(self, citation: KnowledgeCitation) -> str | None:
        for seen in self._evidence.seen:
            if seen.kind is SourceKind.SNIPPET and seen.citation.path == citation.path:
                text = self._evidence.text_of(seen)
                title = "" if text is None else " ".join(text.partition("\n")[0].split())
                if title:
                    return title[:_MOST_OF_A_TITLE]
        return None


def _end(quote: CheckedQuote) -> int:
    return quote.end


def _text_lines(reference: CitedReference) -> Iterator[str]:
    instant, revision = provenance(reference.citation)
    title = "" if reference.title is None else f"{reference.title}. "
    yield f"[{reference.number}] {title}{reference.citation.path}"
    yield f"    {_told(reference)}; retrieved {instant}, revision {revision}"
    if reference.quotes:
        yield from (f"    {link}" for link in reference.links)


def _markdown_line(reference: CitedReference) -> str:
    instant, revision = provenance(reference.citation)
    name = reference.title or reference.citation.source_id
    link = f"[{escape_markdown(name)}](<{escape_markdown(reference.links[0])}>)"
    told = f"{_told(reference)}, retrieved {instant}, revision `{revision}`"
    return f"{reference.number}. {link}, {told}"


def _told(reference: CitedReference) -> str:
    count = len(reference.quotes)
    if not count:
        return "read, nothing of it is quoted"
    return f"{count} quotation{'s' if count > 1 else ''} verified"


def _inert(body: str) -> str:
    """Markdown without raw HTML, without images, and without definitions of links."""
    still = _ACTIVE.sub(lambda match: f"\\{match[0]}" if match[0] else "\\", body)
    return _ENTITY.sub(lambda match: _REPLACEMENT if _drives(match[0]) else match[0], still)


def _drives(entity: str) -> bool:
    shown = unescape(entity)
    return not shown or _DRIVES.search(shown) is not None


def _shown(text: str) -> str:
    """A text that a terminal shows, and that moves nothing there. A return alone overwrites."""
    return _DRIVES.sub(_REPLACEMENT, _OTHER_LINE_END.sub("\n", text))


def _csl(reference: CitedReference) -> dict[str, Any]:
    citation = reference.citation
    instant, revision = citation.retrieved_at, citation.revision_id
    item: dict[str, Any] = {
        "id": f"ref-{reference.number}",
        "type": "webpage",
        "container-title": citation.source_id,
        "URL": citation.path,
        "accessed": {"date-parts": [[instant.year, instant.month, instant.day]]},
        "note": f"revision {revision}; {_told(reference)}",
        "custom": {"revisionId": revision, "verifiedQuotes": len(reference.quotes)},
    }
    return item if reference.title is None else {"title": reference.title, **item}
