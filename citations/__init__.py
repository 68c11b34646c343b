"""Where a statement comes from: citations, digests, numbered references, checked quotations.

A leaf: it imports nothing of ours and does no I/O. What checks quotations is loaded when it is
first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from citations.citation import KnowledgeCitation
from citations.digests import document_id, revision_id
from citations.errors import CitationsError, InvalidCitation
from citations.render import Reference, References, number_references

if TYPE_CHECKING:
    from collections.abc import Mapping

    from citations.answer import CitedAnswer, CitedReference, cite_answer
    from citations.evidence import Evidence, RevisionTexts, Seen, SourceKind
    from citations.quotations import (
        MIN_QUOTE_CHARS,
        CheckedQuote,
        QuoteReason,
        Verdict,
        Verification,
        plain_address,
        verify,
    )
    from citations.revisions import MemoryRevisionStore, RevisionStore
    from citations.selectors import TextMatch, TextPositionSelector, TextQuoteSelector

_LATER: "Final[Mapping[str, str]]" = {
    "citations.answer": "CitedAnswer CitedReference cite_answer",
    "citations.evidence": "Evidence RevisionTexts Seen SourceKind",
    "citations.revisions": "MemoryRevisionStore RevisionStore",
    "citations.selectors": "TextMatch TextPositionSelector TextQuoteSelector",
    "citations.quotations": (
        "MIN_QUOTE_CHARS CheckedQuote QuoteReason Verdict Verification plain_address verify"
    ),
}
_HOME: Final = {name: module for module, names in _LATER.items() for name in names.split()}

__all__ = (
    "MIN_QUOTE_CHARS",
    "CheckedQuote",
    "CitationsError",
    "CitedAnswer",
    "CitedReference",
    "Evidence",
    "InvalidCitation",
    "KnowledgeCitation",
    "MemoryRevisionStore",
    "QuoteReason",
    "Reference",
    "References",
    "RevisionStore",
    "RevisionTexts",
    "Seen",
    "SourceKind",
    "TextMatch",
    "TextPositionSelector",
    "TextQuoteSelector",
    "Verdict",
    "Verification",
    "cite_answer",
    "document_id",
    "number_references",
    "plain_address",
    "revision_id",
    "verify",
)


if not TYPE_CHECKING:
    # Hidden from type checkers: to them a name that is not above does not exist.
    def __getattr__(name: str) -> Any:
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
