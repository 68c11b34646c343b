"""Labels: how far a text may be trusted and how private it is.

Labels come from tool registration and transport, never from arguments or result bodies.
Joining only ever raises; nothing in this module lowers a label. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import attrs

__all__ = (
    "CLEAN",
    "UNLABELLED",
    "Confidentiality",
    "Integrity",
    "Label",
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


def _integrity(word: Integrity | str) -> Integrity:
    return word if type(word) is Integrity else Integrity(word)


def _confidentiality(word: Confidentiality | str) -> Confidentiality:
    return word if type(word) is Confidentiality else Confidentiality(word)


@attrs.frozen(kw_only=True)
class Label:
    """Trust and privacy of one text. The default is the least trusted: unlabelled is external.

    A word becomes the member of its enum, so that what is equal is also identical.

    Raises:
        ValueError: a word is not one of the enums.
    """

    integrity: Integrity = attrs.field(default=Integrity.EXTERNAL, converter=_integrity)
    confidentiality: Confidentiality = attrs.field(
        default=Confidentiality.WORKSPACE, converter=_confidentiality
    )

    def to_json(self) -> dict[str, str]:
        """The label as it stands in events and saved runs."""
        return {"confidentiality": str(self.confidentiality), "integrity": str(self.integrity)}


CLEAN: Final = Label(integrity=Integrity.USER, confidentiality=Confidentiality.PUBLIC)
UNLABELLED: Final = Label()


def join(first: Label, second: Label) -> Label:
    """The label of a text made from both: worst integrity, highest confidentiality."""
    # The words of a label are members of their enums: what is equal is identical.
    if first is second or (
        first.integrity is second.integrity and first.confidentiality is second.confidentiality
    ):
        return first
    return Label(
        integrity=max(first.integrity, second.integrity, key=_INTEGRITY_RANK.__getitem__),
        confidentiality=max(
            first.confidentiality, second.confidentiality, key=_CONFIDENTIALITY_RANK.__getitem__
        ),
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
        ValueError: a key is missing or unknown, or a word is not one of the enums.
    """
    if not isinstance(value, dict) or set(value) != {"confidentiality", "integrity"}:
        raise ValueError("a label has exactly the keys confidentiality and integrity")
    return Label(
        integrity=Integrity(value["integrity"]),
        confidentiality=Confidentiality(value["confidentiality"]),
    )
