"""The shared case table of the proxy, over loopback sockets, with resolver and dialer faked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from egress.testing import ProxyCaseOutcome, ScriptedResolver, run_proxy_case

pytestmark = pytest.mark.loopback

_ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases.jsonl").read_text(encoding="utf-8").splitlines()
]


def _run(row: Mapping[str, Any], *pieces: int) -> ProxyCaseOutcome:
    resolver = ScriptedResolver(row.get("dns"))
    return asyncio.run(run_proxy_case(row, resolver=resolver, pieces=pieces))


@pytest.mark.parametrize("row", _ROWS, ids=[row["id"] for row in _ROWS])
def test_row_comes_out_as_expected(row: Mapping[str, Any]) -> None:
    """One event for a denial and none otherwise, no dial unless allowed, no lookup of others."""
    outcome = _run(row)

    assert row["expect"] == outcome.verdict
    assert int(row["expect"] == "deny") == len(outcome.denials)
    assert set(row.get("dns", ())) >= set(outcome.lookups)
    assert (row["expect"] == "allow") == bool(outcome.dials)
    assert (row["expect"] == "allow") == bool(outcome.received)
    assert len(outcome.records) == 1


@pytest.mark.parametrize("row", _ROWS, ids=[row["id"] for row in _ROWS])
def test_row_does_not_depend_on_how_its_bytes_arrive(row: Mapping[str, Any]) -> None:
    """Cut into small pieces, the request gets the same verdict."""
    outcome = _run(row, *range(3, 400, 7))

    assert row["expect"] == outcome.verdict


def test_the_table_holds_every_verdict() -> None:
    """24 rows, each of the three verdicts among them."""
    assert len(_ROWS) == 24
    assert {row["expect"] for row in _ROWS} == {"allow", "deny", "invalid"}
