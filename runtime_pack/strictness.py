"""The four classes of a call and which of them is stricter. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from runtime_pack.errors import ContractError

__all__ = ("ApprovalClass", "is_stricter", "parse_class")


class ApprovalClass(StrEnum):
    """What has to happen before a call may run, mildest first."""

    AUTO = "auto"
    NOTIFY = "notify"
    REQUEST_USER = "request_user"
    DENY = "deny"


_STRICTNESS: Final[Mapping[ApprovalClass, int]] = {
    ApprovalClass.AUTO: 0,
    ApprovalClass.NOTIFY: 1,
    ApprovalClass.REQUEST_USER: 2,
    ApprovalClass.DENY: 3,
}


def is_stricter(first: ApprovalClass, second: ApprovalClass) -> bool:
    """Whether the first asks for more than the second."""
    return _STRICTNESS[first] > _STRICTNESS[second]


def parse_class(path: str, word: object) -> ApprovalClass:
    """The class of that word.

    Raises:
        ContractError: it is none of the four.
    """
    try:
        # An unknown word is the case at hand.
        return ApprovalClass(word)  # type: ignore[arg-type]
    except ValueError:
        words = ", ".join(ApprovalClass)
        raise ContractError(path, f"{word!r} is not one of {words}") from None
