"""Rows of the search cases that are decided without a back end."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from egress.policy import AddressPolicy
from egress.url import parse_target
from web_tools._fields import Refused
from web_tools.contract.freshness import freshness_of
from web_tools.contract.instants import instant_text, published_at
from web_tools.contract.options import parse_web_search_arguments
from web_tools.contract.result_urls import is_admitted, result_url
from web_tools.contract.sites import is_under, site_of
from web_tools.contract.snippets import escape_text, plain_text
from web_tools.errors import WebToolError

CASES = Path(__file__).resolve().parents[2] / "cases" / "search.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in CASES.read_text().splitlines()]
# The kinds that other test modules run; a test of this one compares.
ELSEWHERE = {
    "pipeline", "envelope", "gate", "config", "cap", "credential", "log", "register",
    "adapter_query", "adapter_date",
    # In tests/web_tools/native.
    "native_decode",
}  # fmt: skip


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    rows = [row for row in ROWS if row["kind"] in kinds]
    return pytest.mark.parametrize("row", rows, ids=[row["id"] for row in rows])


def at(text: str) -> datetime:
    instant = published_at(text)
    assert instant is not None
    return instant


@of_kind("call")
def test_a_call_is_parsed_or_refused_by_the_field(row: dict[str, Any]) -> None:
    """Either all options as they were written, or a refusal that names the faulty field."""
    now, arguments = at(row["input"]["now"]), row["input"]["args"]
    if "refuse" in row["expect"]:
        field = row["expect"]["refuse"]
        with pytest.raises(WebToolError) as caught:
            parse_web_search_arguments(arguments, now=now)

        assert [f"/{field}"] == [fault.path for fault in caught.value.faults]
        assert field in caught.value.message
        return
    call = parse_web_search_arguments(arguments, now=now)

    options = call.options
    got = {"query": call.query, "count": options.count, "site": options.site}
    got["freshness"] = options.freshness and options.freshness.duration
    assert {"site": None, "freshness": None, **row["expect"]["ok"]} == got


@of_kind("site_normalise")
def test_a_site_is_one_canonical_host(row: dict[str, Any]) -> None:
    """The canonical host, or a refusal."""
    try:
        got: str | None = site_of(row["input"])
    except Refused:
        got = None

    assert row["expect"] == got


@of_kind("site_match")
def test_a_site_matches_on_label_boundaries(row: dict[str, Any]) -> None:
    """Only the canonical host of the URL counts."""
    url = result_url(row["input"]["url"])

    assert row["expect"] == (url is not None and is_under(row["input"]["site"], url.target))


@of_kind("freshness")
def test_freshness_has_a_fixed_length(row: dict[str, Any]) -> None:
    """Milliseconds and the instant, or a refusal that never raises anything else."""
    try:
        fresh = freshness_of(row["input"]["value"], now=at(row["input"]["now"]))
        got: object = {"ms": fresh.ms, "since": fresh.since}
    except Refused:
        got = None

    assert row["expect"] == got


@of_kind("published_at")
def test_a_date_is_read_by_the_table(row: dict[str, Any]) -> None:
    """An instant in UTC, or nothing."""
    instant = published_at(row["input"])

    assert row["expect"] == (instant and instant_text(instant))


@of_kind("snippet")
def test_a_snippet_loses_its_markup(row: dict[str, Any]) -> None:
    """Inline formatting goes, everything else becomes a space, text stays."""
    assert row["expect"] == plain_text(row["input"])


@of_kind("snippet_plain")
def test_plain_text_is_not_decoded(row: dict[str, Any]) -> None:
    """What a back end declares to be text comes out as it went in."""
    assert row["expect"] == plain_text(escape_text(row["input"]["text"]))


@of_kind("result_url")
def test_a_result_url_is_judged_by_form_and_address(row: dict[str, Any]) -> None:
    """Http and https to what is not known to be private; nothing is looked up."""
    policy = AddressPolicy(
        allowed_hosts=row["input"].get("allowedHosts", ()),
        allow_private_addresses=row["input"].get("allowPrivateAddresses", False),
    )
    url = result_url(row["input"]["url"])

    assert row["expect"] == (url is not None and is_admitted(url.target, policy))


def test_every_kind_of_row_is_run_somewhere() -> None:
    """A kind that nobody runs, or an id that stands twice, fails."""
    here = {
        "call", "site_normalise", "site_match", "freshness", "published_at", "snippet",
        "snippet_plain", "result_url",
    }  # fmt: skip

    assert here | ELSEWHERE == {row["kind"] for row in ROWS}
    assert len(ROWS) == len({row["id"] for row in ROWS}) >= 133
    assert parse_target("http://a/").host == "a"
