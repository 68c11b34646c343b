"""Numbered references in the order of first use, as plain text and as Markdown. Pure."""

import re
from collections.abc import Iterable, Iterator

import attrs

from citations.citation import KnowledgeCitation

__all__ = ("Reference", "References", "escape_markdown", "number_references", "provenance")

_SHOWN_DIGITS = 12
_MARKDOWN_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


@attrs.frozen(kw_only=True)
class Reference:
    """A citation with its number; numbers start at 1."""

    number: int
    citation: KnowledgeCitation

    @property
    def marker(self) -> str:
        """What stands in the text: ``[1]``."""
        return f"[{self.number}]"


@attrs.frozen(kw_only=True)
class References:
    """The list at the end of an answer."""

    items: tuple[Reference, ...]

    def __iter__(self) -> Iterator[Reference]:
        """The references by number."""
        return iter(self.items)

    def __len__(self) -> int:
        """How many distinct references there are."""
        return len(self.items)

    def number_of(self, citation: KnowledgeCitation) -> int | None:
        """The number under which *citation* is listed; None when it is not."""
        wanted = _identity(citation)
        for reference in self.items:
            if _identity(reference.citation) == wanted:
                return reference.number
        return None

    def to_text(self) -> str:
        """One line a reference; empty text when there are none."""
        return "\n".join(_text_line(reference) for reference in self.items)

    def to_markdown(self) -> str:
        """A CommonMark ordered list whose links cannot be broken out of."""
        return "\n".join(_markdown_line(reference) for reference in self.items)


def number_references(citations: Iterable[KnowledgeCitation]) -> References:
    """Number *citations* in the order of first use.

    The same revision of the same document gets one number, however often and whenever it
    was fetched; the first fetch is the one listed. Another revision is another reference,
    because it is another text.
    """
    first: dict[tuple[str, str], KnowledgeCitation] = {}
    for citation in citations:
        first.setdefault(_identity(citation), citation)
    numbered = enumerate(first.values(), start=1)
    return References(items=tuple(Reference(number=n, citation=c) for n, c in numbered))


def _identity(citation: KnowledgeCitation) -> tuple[str, str]:
    return (citation.document_id, citation.revision_id)


def provenance(citation: KnowledgeCitation) -> tuple[str, str]:
    """Time to the second, and the start of the revision's digest."""
    instant = citation.retrieved_at.replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{instant}Z", citation.revision_id[: len("sha256:") + _SHOWN_DIGITS]


def _text_line(reference: Reference) -> str:
    citation = reference.citation
    instant, revision = provenance(citation)
    return f"{reference.marker} {citation.path} (retrieved {instant}, revision {revision})"


def _markdown_line(reference: Reference) -> str:
    citation = reference.citation
    instant, revision = provenance(citation)
    # Every punctuation character is escaped: a URL is text that someone else wrote, and
    # "&copy;", ">" or "](" in it would otherwise change where the link leads.
    link = f"[{escape_markdown(citation.source_id)}](<{escape_markdown(citation.path)}>)"
    return f"{reference.number}. {link}, retrieved {instant}, revision `{revision}`"


def escape_markdown(text: str) -> str:
    """A text that Markdown shows as it is: every punctuation character is escaped."""
    return _MARKDOWN_PUNCTUATION.sub(r"\\\g<0>", text)
