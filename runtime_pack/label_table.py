"""What a label does to a call: the table of decisions, as data, and the one function that reads it.

A tool declares what it does (`SideEffect`). What the run's model has seen so far (its label) picks
the column, the side effect the row, and the preset the table. The cell is allow, ask or deny.
A decision only ever tightens what the tool's policy says: `allow` leaves it to that.
Nothing here does I/O, and what is not in the table is denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from runtime_pack.errors import ContractError, not_one_of
from runtime_pack.labels import Confidentiality, Integrity, Label

__all__ = (
    "LABEL_TABLE",
    "ROWS",
    "AddressOrigin",
    "LabelPreset",
    "LabelRow",
    "LabelVerdict",
    "SideEffect",
    "Standing",
    "decide_by_label",
    "parse_preset",
    "parse_side_effects",
    "rows_of",
    "standing_of",
    "strictest",
)


class SideEffect(StrEnum):
    """What a tool does, beside giving its output. A tool may declare several."""

    READ_LOCAL = "read_local"
    READ_NET = "read_net"
    WRITE_LOCAL = "write_local"
    EXEC = "exec"
    MESSAGE = "message"
    EGRESS = "egress"
    MEMORY_WRITE = "memory_write"
    SPEND = "spend"
    ADMIN = "admin"


class AddressOrigin(StrEnum):
    """Where an address that is to be read is known from; `model_composed` is from nowhere."""

    USER = "user"
    OPERATOR = "operator"
    SEARCH = "search"
    PAGE_LINK = "page_link"
    COMPOSED = "model_composed"


class LabelPreset(StrEnum):
    """Which table a run is under."""

    STANDARD = "standard"
    STRICT = "strict"


class Standing(StrEnum):
    """The columns: what has been in the context of a run."""

    CLEAN = "clean"
    EXTERNAL = "external"
    WORKSPACE = "external_workspace"
    # A column, not a password.
    SECRET = "external_secret"  # noqa: S105


class LabelRow(StrEnum):
    """The rows: a side effect, and for `read_net` where the address is from."""

    READ_LOCAL = "read_local"
    READ_NET_KNOWN = "read_net_known"
    READ_NET_LINK = "read_net_link"
    READ_NET_COMPOSED = "read_net_composed"
    SEARCH = "search"
    WRITE_LOCAL = "write_local"
    EXEC = "exec"
    MESSAGE = "message"
    EGRESS = "egress"
    SPEND = "spend"
    MEMORY_WRITE = "memory_write"
    ADMIN = "admin"
    UNDECLARED = "undeclared"


class LabelVerdict(StrEnum):
    """A cell of the table, most open first."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_RANK: Final[Mapping[LabelVerdict, int]] = {
    LabelVerdict.ALLOW: 0,
    LabelVerdict.ASK: 1,
    LabelVerdict.DENY: 2,
}

_ALLOW, _ASK, _DENY = LabelVerdict.ALLOW, LabelVerdict.ASK, LabelVerdict.DENY
_COLUMNS: Final = tuple(Standing)

# One row a line, one column a word: clean, external, external and workspace, external and secret.
# `allow` leaves a call to the tool policy. Links: there is none while the context is clean.
_STRICT: Final[Mapping[LabelRow, tuple[LabelVerdict, ...]]] = {
    LabelRow.READ_LOCAL: (_ALLOW, _ALLOW, _ALLOW, _ALLOW),
    LabelRow.READ_NET_KNOWN: (_ALLOW, _ALLOW, _ALLOW, _ASK),
    LabelRow.READ_NET_LINK: (_ALLOW, _ALLOW, _ASK, _DENY),
    LabelRow.READ_NET_COMPOSED: (_DENY, _DENY, _DENY, _DENY),
    LabelRow.SEARCH: (_ALLOW, _ALLOW, _ALLOW, _ASK),
    LabelRow.WRITE_LOCAL: (_ALLOW, _ALLOW, _ALLOW, _ASK),
    LabelRow.EXEC: (_ALLOW, _ASK, _ASK, _ASK),
    LabelRow.MESSAGE: (_ALLOW, _ASK, _ASK, _DENY),
    LabelRow.EGRESS: (_ALLOW, _ASK, _ASK, _DENY),
    LabelRow.SPEND: (_ALLOW, _ASK, _ASK, _DENY),
    LabelRow.MEMORY_WRITE: (_ALLOW, _ALLOW, _ALLOW, _ASK),
    LabelRow.ADMIN: (_ASK, _DENY, _DENY, _DENY),
    # A tool that declares nothing may do anything but govern: it is treated as one that sends.
    LabelRow.UNDECLARED: (_ALLOW, _ASK, _ASK, _DENY),
}

# Differs in two rows: a listed address may be composed while nothing private is known, and what
# declares nothing is left to the tool policy until something secret was read.
_STANDARD: Final[Mapping[LabelRow, tuple[LabelVerdict, ...]]] = {
    **_STRICT,
    LabelRow.READ_NET_COMPOSED: (_ALLOW, _ALLOW, _ASK, _DENY),
    LabelRow.UNDECLARED: (_ALLOW, _ALLOW, _ALLOW, _ASK),
}

LABEL_TABLE: Final[Mapping[LabelPreset, Mapping[LabelRow, Mapping[Standing, LabelVerdict]]]] = {
    preset: {row: dict(zip(_COLUMNS, cells, strict=True)) for row, cells in table.items()}
    for preset, table in ((LabelPreset.STANDARD, _STANDARD), (LabelPreset.STRICT, _STRICT))
}
"""The decision of each preset, by row and column."""

ROWS: Final[Mapping[SideEffect, LabelRow]] = {
    SideEffect.READ_LOCAL: LabelRow.READ_LOCAL,
    SideEffect.WRITE_LOCAL: LabelRow.WRITE_LOCAL,
    SideEffect.EXEC: LabelRow.EXEC,
    SideEffect.MESSAGE: LabelRow.MESSAGE,
    SideEffect.EGRESS: LabelRow.EGRESS,
    SideEffect.MEMORY_WRITE: LabelRow.MEMORY_WRITE,
    SideEffect.SPEND: LabelRow.SPEND,
    SideEffect.ADMIN: LabelRow.ADMIN,
}
"""The row of each side effect but `read_net`, whose row depends on the address."""


def standing_of(label: Label) -> Standing:
    """The column of a label.

    What is private counts whether or not anything from outside was read yet: the next page could
    ask for it, and the table has no column that is more open than `external` and says so.
    """
    if label.confidentiality is Confidentiality.SECRET:
        return Standing.SECRET
    if label.confidentiality is Confidentiality.WORKSPACE:
        return Standing.WORKSPACE
    return Standing.EXTERNAL if label.integrity is Integrity.EXTERNAL else Standing.CLEAN


def rows_of(
    side_effects: Iterable[SideEffect] | None, origins: Iterable[AddressOrigin] = ()
) -> tuple[LabelRow, ...]:
    """The rows that a call is judged by, in the order of the table.

    Args:
        side_effects: what the tool declares; None when it declares nothing.
        origins: where each address that the call reads is from. A call that reads from the network
            and names no address sends a query.
    """
    if side_effects is None:
        return (LabelRow.UNDECLARED,)
    rows: set[LabelRow] = set()
    for effect in side_effects:
        if effect is SideEffect.READ_NET:
            rows |= {_READ[origin] for origin in origins} or {LabelRow.SEARCH}
        else:
            rows.add(ROWS[effect])
    return tuple(row for row in LabelRow if row in rows)


_READ: Final[Mapping[AddressOrigin, LabelRow]] = {
    AddressOrigin.USER: LabelRow.READ_NET_KNOWN,
    AddressOrigin.OPERATOR: LabelRow.READ_NET_KNOWN,
    AddressOrigin.SEARCH: LabelRow.READ_NET_KNOWN,
    AddressOrigin.PAGE_LINK: LabelRow.READ_NET_LINK,
    AddressOrigin.COMPOSED: LabelRow.READ_NET_COMPOSED,
}


def decide_by_label(preset: LabelPreset, row: LabelRow, label: Label) -> LabelVerdict:
    """The cell of one row under a label. What the table lacks is denied."""
    cell = LABEL_TABLE[preset].get(row, {}).get(standing_of(label))
    return LabelVerdict.DENY if cell is None else cell


def strictest(first: LabelVerdict, second: LabelVerdict) -> LabelVerdict:
    """Of two decisions, the one that allows less."""
    return first if _RANK[first] >= _RANK[second] else second


def parse_preset(word: object) -> LabelPreset:
    """The preset of that name.

    Raises:
        ContractError: there is none.
    """
    if not isinstance(word, str) or word not in tuple(LabelPreset):
        raise ContractError("label_preset", not_one_of(word, LabelPreset))
    return LabelPreset(word)


def parse_side_effects(words: object) -> tuple[SideEffect, ...] | None:
    """What a tool declares, in the order of the enum; None is no declaration, and empty is one.

    Raises:
        ContractError: it is no list of the words.
    """
    if words is None:
        return None
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise ContractError("side_effects", "is a list of words, or None for no declaration")
    given = tuple(words)
    for word in given:
        if not isinstance(word, str) or word not in tuple(SideEffect):
            raise ContractError("side_effects", not_one_of(word, SideEffect))
    return tuple(effect for effect in SideEffect if effect in given)
