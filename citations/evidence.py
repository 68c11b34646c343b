"""What a run has seen: its citations, and the texts that they digest."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol

import attrs

from citations.citation import KnowledgeCitation
from citations.digests import revision_id

__all__ = ("Evidence", "RevisionTexts", "Seen", "SourceKind")


class SourceKind(StrEnum):
    """How much of a document was seen."""

    PAGE = "page"
    SNIPPET = "snippet"


class RevisionTexts(Protocol):
    """Texts by their digest; a store of revisions is one."""

    def get(self, revision: str, /) -> str | None:
        """The text of a revision, or None when it is not kept."""
        ...


@attrs.frozen(kw_only=True)
class Seen:
    """One text that was seen: read as a page, or as a search result's title and snippet.

    Attributes:
        aliases: Canonical addresses that led to the document: what was asked for before a redirect.
    """

    citation: KnowledgeCitation
    kind: SourceKind
    aliases: tuple[str, ...] = ()


def _seen(sources: Iterable[Seen]) -> tuple[Seen, ...]:
    return tuple(sources)


@attrs.frozen(kw_only=True)
class Evidence:
    """Everything that an answer can be checked against.

    A text that does not have the digest it is kept under counts as not kept: whoever swaps two
    revisions, or edits one, verifies nothing.
    """

    seen: tuple[Seen, ...] = attrs.field(converter=_seen)
    texts: RevisionTexts = attrs.field(repr=False)

    def text_of(self, seen: Seen) -> str | None:
        """The text that a citation digests, checked against the digest."""
        text = self.texts.get(seen.citation.revision_id)
        if not isinstance(text, str) or revision_id(text) != seen.citation.revision_id:
            return None
        return text

    @classmethod
    def of_texts(cls, pages: Mapping[KnowledgeCitation, str]) -> "Evidence":
        """Evidence of pages whose texts are at hand."""
        return cls(
            seen=[Seen(citation=citation, kind=SourceKind.PAGE) for citation in pages],
            texts={citation.revision_id: text for citation, text in pages.items()},
        )
