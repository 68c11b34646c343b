"""Labels: how far a text may be trusted and how private it is.

Labels come from tool registration and transport, never from arguments or result bodies.
Joining only ever raises; nothing in this module lowers a label. Nothing here does I/O.
`sources` say where a text came from, for people: no decision rests on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import attrs

from runtime_pack.inner import frozen

__all__ = (
    "CLEAN",
    "MANY",
    "MAX_SOURCES",
    "UNLABELLED",
    "Confidentiality",
    "Integrity",
    "Label",
    "at_most",
    "join",
    "parse_label",
    "parse_word",
    "reaches",
)


class Integrity(StrEnum):
    """Who could have written the text, best first."""

    USER = "user"
    INTERNAL = "internal"
    EXTERNAL = "external"


class Confidentiality(StrEnum):
    """Who may see the text, most open first."""

    PUBLIC = "public"
    WORKSPACE = "workspace"
    # A label word, not a password.
    SECRET = "secret"  # noqa: S105


_INTEGRITY_RANK: Final[Mapping[Integrity, int]] = {
    Integrity.USER: 0,
    Integrity.INTERNAL: 1,
    Integrity.EXTERNAL: 2,
}
_CONFIDENTIALITY_RANK: Final[Mapping[Confidentiality, int]] = {
    Confidentiality.PUBLIC: 0,
    Confidentiality.WORKSPACE: 1,
    Confidentiality.SECRET: 2,
}


MAX_SOURCES: Final = 64
"""A label names so many sources; one that has more says `MANY` in their place."""

MANY: Final = frozenset({"many"})
"""The sources of a label that has more than can be named."""

# A word that can stand in an event and before a person: no text of a page has this form.
_SOURCE: Final = re.compile(r"[A-Za-z0-9._:/#\[\]-]{1,320}\Z")


_KEYS: Final = frozenset({"confidentiality", "integrity"})


def _sources(words: Iterable[str]) -> frozenset[str]:
    if isinstance(words, str):
        raise ValueError("sources is a set of ids")
    sources = words if type(words) is frozenset else frozenset(words)
    if not sources or sources is MANY:
        return sources
    for word in sources:
        if not isinstance(word, str) or not _SOURCE.match(word):
            raise ValueError("a source is an id of 1 to 320 letters, digits and . _ : / # [ ] -")
    return _capped(sources)


def _capped(sources: frozenset[str]) -> frozenset[str]:
    return MANY if len(sources) > MAX_SOURCES or sources >= MANY else sources


def _integrity(word: Integrity | str) -> Integrity:
    return word if type(word) is Integrity else Integrity(word)


def _confidentiality(word: Confidentiality | str) -> Confidentiality:
    return word if type(word) is Confidentiality else Confidentiality(word)


@frozen(kw_only=True)
class Label:
    """Trust and privacy of one text. The default is the least trusted: unlabelled is external.

    A word becomes the member of its enum, so that what is equal is also identical. `sources` are
    the ids of what the text was made from, `MANY` when there are more than 64. They explain and
    decide nothing: labels that differ in them alone are equal.

    Raises:
        ValueError: a word is not one of the enums, or a source is not an id.
    """

    integrity: Integrity = attrs.field(default=Integrity.EXTERNAL, converter=_integrity)
    confidentiality: Confidentiality = attrs.field(
        default=Confidentiality.WORKSPACE, converter=_confidentiality
    )
    sources: frozenset[str] = attrs.field(default=frozenset(), converter=_sources, eq=False)

    def to_json(self) -> dict[str, str | list[str]]:
        """The label as it stands in events and saved runs; sources only where there are any."""
        body: dict[str, str | list[str]] = {
            "confidentiality": str(self.confidentiality),
            "integrity": str(self.integrity),
        }
        if self.sources:
            body["sources"] = sorted(self.sources)
        return body


CLEAN: Final = Label(integrity=Integrity.USER, confidentiality=Confidentiality.PUBLIC)
UNLABELLED: Final = Label()


def join(first: Label, second: Label) -> Label:
    """The label of a text made from both: worst integrity, highest confidentiality, all sources."""
    # The words of a label are members of their enums: what is equal is identical.
    if first is second or (
        first.integrity is second.integrity
        and first.confidentiality is second.confidentiality
        and (not second.sources or second.sources <= first.sources)
    ):
        return first
    if first is CLEAN or second is CLEAN:
        # The least of all labels adds nothing to the other one.
        return second if first is CLEAN else first
    integrity = max(first.integrity, second.integrity, key=_INTEGRITY_RANK.__getitem__)
    confidentiality = max(
        first.confidentiality, second.confidentiality, key=_CONFIDENTIALITY_RANK.__getitem__
    )
    sources = _both(first.sources, second.sources)
    same = sources == first.sources and integrity is first.integrity
    if same and confidentiality is first.confidentiality:
        return first
    return Label(integrity=integrity, confidentiality=confidentiality, sources=sources)


def _both(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    # Mostly one is empty; each new set would be as large as twenty ids.
    return _capped(first | second) if first and second else first or second


def at_most(label: Label, bound: Label) -> bool:
    """Whether a label is no worse than another one, whatever their sources are."""
    return (
        _INTEGRITY_RANK[label.integrity] <= _INTEGRITY_RANK[bound.integrity]
        and _CONFIDENTIALITY_RANK[label.confidentiality]
        <= _CONFIDENTIALITY_RANK[bound.confidentiality]
    )


def reaches(label: Label, word: Integrity | Confidentiality) -> bool:
    """Whether the label is at the word, or worse, on the word's own scale."""
    if isinstance(word, Integrity):
        return _INTEGRITY_RANK[label.integrity] >= _INTEGRITY_RANK[word]
    return _CONFIDENTIALITY_RANK[label.confidentiality] >= _CONFIDENTIALITY_RANK[word]


def parse_word(word: object) -> Integrity | Confidentiality:
    """The member of integrity or confidentiality that the word names; no word is in both.

    Raises:
        ValueError: it is in neither.
    """
    members: tuple[Integrity | Confidentiality, ...] = (*Integrity, *Confidentiality)
    for member in members:
        if word == member:
            return member
    raise ValueError(f"{word!r} is a word of neither integrity nor confidentiality")


def parse_label(value: object) -> Label:
    """Read a label written by `Label.to_json`.

    Raises:
        ValueError: a key is missing or unknown, a word is not one of the enums, or a source is no id.
    """
    if not isinstance(value, dict) or not _KEYS <= set(value) <= _KEYS | {"sources"}:
        raise ValueError(
            "a label has exactly the keys confidentiality, integrity and, maybe, sources"
        )
    sources = value.get("sources", ())
    if not isinstance(sources, list | tuple):
        raise ValueError("sources is a list of ids")
    return Label(
        integrity=Integrity(value["integrity"]),
        confidentiality=Confidentiality(value["confidentiality"]),
        sources=frozenset(map(str, sources)),
    )
