"""Where a statement comes from: citations, digests and numbered references.

A leaf: it imports nothing of ours and does no I/O.
"""

from citations.citation import KnowledgeCitation
from citations.digests import document_id, revision_id
from citations.errors import CitationsError, InvalidCitation
from citations.render import Reference, References, number_references

__all__ = (
    "CitationsError",
    "InvalidCitation",
    "KnowledgeCitation",
    "Reference",
    "References",
    "document_id",
    "number_references",
    "revision_id",
)
