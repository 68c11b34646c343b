"""The table of label decisions, cell by cell, and what may never follow from it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ContractError
from runtime_pack.label_table import (
    LABEL_TABLE,
    AddressOrigin,
    LabelPreset,
    LabelRow,
    LabelVerdict,
    SideEffect,
    Standing,
    decide_by_label,
    parse_preset,
    parse_side_effects,
    rows_of,
    standing_of,
    strictest,
)
from runtime_pack.labels import CLEAN, UNLABELLED, Confidentiality, Integrity, Label, join
from runtime_pack.policy import TaskContract
from runtime_pack.state import spec_from_json

COLUMNS = {
    "clean": Label(integrity="user", confidentiality="public"),
    "external": Label(integrity="external", confidentiality="public"),
    "workspace": Label(integrity="external", confidentiality="workspace"),
    "secret": Label(integrity="external", confidentiality="secret"),
}

# Written out once more, by hand, from the text and not from the module: clean, external, external
# and workspace, external and secret; a for allow, k for ask, d for deny.
STRICT = {
    "read_local": "aaaa",
    "read_net_known": "aaak",
    "read_net_link": "aakd",
    "read_net_composed": "dddd",
    "search": "aaak",
    "write_local": "aaak",
    "exec": "akkk",
    "message": "akkd",
    "egress": "akkd",
    "spend": "akkd",
    "memory_write": "aaak",
    "admin": "kddd",
    "undeclared": "akkd",
}
STANDARD = STRICT | {"read_net_composed": "aakd", "undeclared": "aaak"}
WORDS = {"a": LabelVerdict.ALLOW, "k": LabelVerdict.ASK, "d": LabelVerdict.DENY}
CELLS = [
    (preset, row, column, WORDS[letter])
    for preset, table in (("standard", STANDARD), ("strict", STRICT))
    for row, letters in table.items()
    for column, letter in zip(COLUMNS, letters, strict=True)
]

labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    confidentiality=st.sampled_from(Confidentiality),
    sources=st.frozensets(st.sampled_from(["a", "b", "c"])),
)
RANK = {LabelVerdict.ALLOW: 0, LabelVerdict.ASK: 1, LabelVerdict.DENY: 2}


@pytest.mark.parametrize(
    ("preset", "row", "column", "expected"),
    CELLS,
    ids=[f"{preset}-{row}-{column}" for preset, row, column, _ in CELLS],
)
def test_each_cell_is_what_the_text_says(
    preset: str, row: str, column: str, expected: LabelVerdict
) -> None:
    """In both presets."""
    assert expected == decide_by_label(LabelPreset(preset), LabelRow(row), COLUMNS[column])


def test_the_table_has_no_hole() -> None:
    """Each preset has a cell for each row and column."""
    for preset in LabelPreset:
        assert set(LABEL_TABLE[preset]) == set(LabelRow)
        for row in LabelRow:
            assert set(LABEL_TABLE[preset][row]) == set(Standing)


def test_what_the_table_lacks_is_denied() -> None:
    """A row of a later version, asked of this one, allows nothing."""
    unknown: Any = "teleport"

    assert decide_by_label(LabelPreset.STANDARD, unknown, CLEAN) is LabelVerdict.DENY


@given(st.sampled_from(LabelPreset), st.sampled_from(LabelRow), labels, labels)
def test_a_worse_label_never_loosens_a_decision(
    preset: LabelPreset, row: LabelRow, label: Label, more: Label
) -> None:
    """Whatever is joined to it."""
    before, after = (decide_by_label(preset, row, each) for each in (label, join(label, more)))

    assert RANK[before] <= RANK[after]


@given(st.sampled_from(LabelRow), labels)
def test_the_strict_preset_is_never_looser(row: LabelRow, label: Label) -> None:
    """Not in any cell."""
    standard = decide_by_label(LabelPreset.STANDARD, row, label)
    strict = decide_by_label(LabelPreset.STRICT, row, label)

    assert RANK[standard] <= RANK[strict]


@given(labels)
def test_sources_decide_nothing(label: Label) -> None:
    """They explain."""
    bare = Label(integrity=label.integrity, confidentiality=label.confidentiality)

    assert standing_of(label) is standing_of(bare)


@given(st.sets(st.sampled_from(SideEffect)), st.sampled_from(SideEffect), labels)
def test_one_more_side_effect_never_loosens(
    effects: set[SideEffect], more: SideEffect, label: Label
) -> None:
    """The strictest row counts."""
    words = [
        [decide_by_label(LabelPreset.STRICT, row, label) for row in rows_of(each)]
        for each in (effects, effects | {more})
    ]
    before, after = (max((RANK[word] for word in each), default=0) for each in words)

    assert before <= after


def test_a_read_that_names_no_address_is_a_query() -> None:
    """What it sends is looked through all the same."""
    assert rows_of([SideEffect.READ_NET]) == (LabelRow.SEARCH,)


def test_each_address_of_a_call_has_its_row() -> None:
    """A known one beside a composed one does not hide it."""
    origins = [AddressOrigin.USER, AddressOrigin.COMPOSED, AddressOrigin.PAGE_LINK]

    assert set(rows_of([SideEffect.READ_NET], origins)) == {
        LabelRow.READ_NET_KNOWN,
        LabelRow.READ_NET_COMPOSED,
        LabelRow.READ_NET_LINK,
    }


def test_declaring_nothing_is_not_declaring_that_nothing_is_done() -> None:
    """None has a row of its own; an empty declaration has none."""
    assert rows_of(None) == (LabelRow.UNDECLARED,)
    assert rows_of(()) == ()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(LabelVerdict, repeat=2)))
def test_the_stricter_of_two_decisions_wins(first: LabelVerdict, second: LabelVerdict) -> None:
    """Deny, then ask, then allow."""
    assert RANK[strictest(first, second)] == max(RANK[first], RANK[second])


@pytest.mark.parametrize("word", ["lax", "", None, 1, ["strict"], "STRICT"])
def test_an_unknown_preset_is_refused(word: Any) -> None:
    """At the contract already."""
    with pytest.raises(ContractError):
        parse_preset(word)
    with pytest.raises(ContractError):
        TaskContract(preset=word)


@pytest.mark.parametrize("words", ["message", ["fly"], [1], 3, [["message"]]])
def test_unknown_side_effects_are_refused(words: object) -> None:
    """And a bare word is no list."""
    with pytest.raises(ContractError):
        parse_side_effects(words)


def test_a_preset_that_is_not_the_default_is_another_policy() -> None:
    """Approvals are bound to its digest."""
    standard, strict = TaskContract(), TaskContract(preset="strict")

    assert standard.policy_sha256 == standard.tool_policy.sha256
    assert strict.policy_sha256 != standard.policy_sha256


def _spec(**fields: Any) -> ToolSpec:
    parameters: Any = {"type": "object", "properties": {"to": {"type": "string"}}}
    return ToolSpec(name="mail:send", description="d", parameters=parameters, **fields)


def test_a_declaration_survives_a_saved_run_and_is_in_the_digest() -> None:
    """And one that says nothing leaves the digest as it was."""
    spec = _spec(
        side_effects=["spend", "message"],
        destination_args=["to"],
        output_confidentiality="public",
    )

    assert spec_from_json(spec.to_json()) == spec
    assert spec.side_effects == (SideEffect.MESSAGE, SideEffect.SPEND)
    assert spec.sha256 != _spec().sha256
    assert not {"side_effects", "destination_args"} & _spec().to_json().keys()
    assert _spec(side_effects=[]).sha256 != _spec().sha256


def test_a_destination_has_to_be_a_parameter() -> None:
    """One that is misspelt would show nobody where a call goes."""
    with pytest.raises(ContractError, match=r"mail:send\.destination_args"):
        _spec(destination_args=["too"])


@pytest.mark.parametrize(
    ("trust", "privacy", "expected"),
    [
        ("external", None, UNLABELLED),
        ("external", "public", Label(integrity="external", confidentiality="public")),
        ("external", "secret", Label(integrity="external", confidentiality="secret")),
        ("internal", None, Label(integrity="internal", confidentiality="public")),
        ("internal", "workspace", Label(integrity="internal", confidentiality="workspace")),
    ],
)
def test_the_best_label_of_an_output_is_what_the_tool_declares(
    trust: str, privacy: str | None, expected: Label
) -> None:
    """An external one names its tool as the source."""
    label = _spec(output_trust=trust, output_confidentiality=privacy).floor_label

    assert label == expected
    assert label.sources == ({"tool:mail:send"} if trust == "external" else frozenset())
