"""The shared case table, through the public client over fakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from egress import Allowlist, explain, parse_allowlist
from egress.errors import AllowlistError
from egress.explain import Verdict
from egress.policy import AddressPolicy
from egress.testing import CaseOutcome, assert_no_unlisted_connect, run_case

_TABLE = Path(__file__).parents[1] / "cases" / "egress.jsonl"
_OURS = {"url", "redirect", "dns", "allowlist"}
_ROWS = [
    row
    for row in map(json.loads, _TABLE.read_text(encoding="utf-8").splitlines())
    if row["kind"] in _OURS
]


def _run(row: Mapping[str, Any], place: int = 0) -> CaseOutcome:
    return asyncio.run(run_case(row, choose=lambda vetted: vetted[place % len(vetted)]))


@pytest.mark.parametrize("row", _ROWS, ids=[row["id"] for row in _ROWS])
def test_row_comes_out_as_expected(row: Mapping[str, Any]) -> None:
    """A row is allowed, denied or invalid as the table says, whichever vetted address is dialled."""
    for place in range(3):
        outcome = _run(row, place)

        assert row["expect"] == outcome.verdict
        assert int(row["expect"] == "deny") == len(outcome.violations)
        assert set(row.get("dns", ())) >= set(outcome.lookups)
        allowed = {text for each in row.get("dns", {}).values() for text in each}
        names = [each for each in outcome.connects if str(each.address) != each.host]
        assert {str(each.address) for each in names} <= set(row.get("connect", allowed))
        assert [each.host for each in names] == list(outcome.lookups)[: len(names)]


@pytest.mark.parametrize("row", _ROWS, ids=[row["id"] for row in _ROWS])
def test_a_refused_target_gets_no_request(row: Mapping[str, Any]) -> None:
    """What was requested never contains the denied target, and an invalid row requests nothing new."""
    outcome = _run(row)

    hops = len(row.get("redirects", ()))
    if row["expect"] == "allow":
        assert hops + 1 == len(outcome.requests)
    else:
        assert len(outcome.requests) <= hops
    for violation in outcome.violations:
        assert violation.hop == len(outcome.requests) == len(violation.hops)


@pytest.mark.parametrize(
    "row",
    [row for row in _ROWS if row["kind"] != "redirect"],
    ids=[row["id"] for row in _ROWS if row["kind"] != "redirect"],
)
def test_the_explanation_agrees(row: Mapping[str, Any]) -> None:
    """Offline, with the answers of the first lookup, `explain` says what the client does."""
    switches = row.get("policy", {})
    told = explain(
        row["url"],
        row["allowlist"],
        row.get("dns"),
        address_policy=AddressPolicy(
            allowed_hosts=switches.get("allowedHosts", ()),
            allow_private_addresses=switches.get("allowPrivateAddresses", False),
        ),
    )

    assert row["expect"] == told.verdict
    assert told.verdict is not Verdict.NEEDS_ANSWERS


@pytest.mark.parametrize(
    "row",
    [row for row in _ROWS if row["expect"] == "deny"],
    ids=[row["id"] for row in _ROWS if row["expect"] == "deny"],
)
def test_the_nearest_entry_admits(row: Mapping[str, Any]) -> None:
    """Adding the entry that a denial names lifts that denial; what no entry lifts names none."""
    outcome = _run(row)
    [violation] = outcome.violations

    if violation.nearest_entry is None:
        # No entry opens what R9 closes, not even the two that list every address.
        opened = _run(_with_entries(row, "0.0.0.0/0", "::/0"))
        assert ["R9"] == [each.rule for each in opened.violations]
        return
    assert violation.rule != "R9"
    again = _run(_with_entries(row, violation.nearest_entry, looked_up=violation.target.host))
    assert "allow" == again.verdict


def _with_entries(
    row: Mapping[str, Any], *entries: str, looked_up: str | None = None
) -> dict[str, Any]:
    """*row* with more on its list; a name that was never looked up has a public answer."""
    answers = {} if looked_up is None else {looked_up: ["8.8.8.8"]}
    return {
        **row,
        "allowlist": [*row["allowlist"], *entries],
        "dns": {**answers, **row.get("dns", {})},
    }


def test_the_assertion_helper_notices_a_foreign_address() -> None:
    """`assert_no_unlisted_connect` is not vacuous."""
    row = {"allowlist": ["a.test"], "url": "http://a.test/", "dns": {"a.test": ["8.8.8.8"]}}
    from egress.testing import RecordingTransport

    transport = RecordingTransport([])
    transport.connects.extend(_run(row).connects)

    assert_no_unlisted_connect(transport, {"8.8.8.8"})
    with pytest.raises(AssertionError):
        assert_no_unlisted_connect(transport, {"8.8.4.4"})


def test_the_copy_is_a_copy_of_a_table() -> None:
    """The table holds every kind this package answers for."""
    kinds = {row["kind"] for row in _ROWS}

    assert kinds == _OURS
    assert len(_ROWS) > 150


def test_an_empty_list_is_a_list() -> None:
    """The empty list is accepted, and allows nothing."""
    assert isinstance(parse_allowlist([]), Allowlist)
    assert not parse_allowlist([])
    with pytest.raises(AllowlistError):
        parse_allowlist("example.org")
