"""Offline explanations: every rule's verdict in order, and the entry to add."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import (
    AddressPolicy,
    Allow,
    Allowlist,
    Deny,
    EgressPolicy,
    check_answers,
    check_listed,
    explain,
    parse_allowlist,
    parse_target,
)
from egress.errors import UrlRejected
from egress.explain import Outcome, Verdict
from egress.testing import address_policies, allowlists, answers, urls

_ORDER = ["R15", "R1", "R2", "R3", "R12", "R7", "R4", "R5", "R6", "R11", "R9", "R10", "R8"]


def _refusing(url: str, entries: list[str], found: list[str] | None = None) -> str | None:
    steps = explain(url, entries, found).steps
    return next((step.rule for step in steps if step.outcome is Outcome.REFUSED), None)


@pytest.mark.parametrize(
    ("url", "entries", "found", "verdict", "rule", "entry"),
    [
        ("https://example.org/", ["*.com"], None, "invalid", "R15", None),
        ("example.org", [], None, "invalid", "R1", None),
        ("http://a..b/", [], None, "invalid", "R2", None),
        ("http://127.1/", [], None, "invalid", "R3", None),
        ("https://example.org/", [], None, "deny", "R4", "example.org"),
        ("https://example.org/", ["*.example.org"], None, "deny", "R5", "example.org"),
        ("https://example.org:8443/", ["example.org"], None, "deny", "R6", "example.org:8443"),
        ("https://8.8.8.8/", ["dns.google"], None, "deny", "R7", "8.8.8.8"),
        ("https://10.0.0.1/", ["0.0.0.0/0"], None, "deny", "R8", "10.0.0.1"),
        ("https://169.254.169.254/", ["0.0.0.0/0"], None, "deny", "R9", None),
        ("https://example.org/", ["example.org"], None, "needs_answers", None, None),
        ("https://example.org/", ["example.org"], ["8.8.8.8"], "allow", None, None),
        ("https://example.org/", ["example.org"], ["10.0.0.1"], "deny", "R8", "10.0.0.1"),
        ("https://example.org/", ["example.org"], ["fe80::1%1"], "deny", "R10", None),
        ("https://example.org/", ["example.org"], [], "deny", "R11", None),
        ("https://8.8.8.8/", ["8.8.8.0/24"], None, "allow", None, None),
    ],
)
def test_the_refusing_rule_and_the_entry_to_add(
    url: str,
    entries: list[str],
    found: list[str] | None,
    verdict: str,
    rule: str | None,
    entry: str | None,
) -> None:
    """One rule refuses; the rules before it passed, the rules after it were not asked."""
    told = explain(url, entries, found)

    assert verdict == told.verdict
    assert rule == _refusing(url, entries, found)
    assert entry == told.entry_to_add
    assert _ORDER == [step.rule for step in told.steps]
    outcomes = [step.outcome for step in told.steps]
    if rule is not None:
        place = _ORDER.index(rule)
        assert set(outcomes[:place]) <= {Outcome.PASSED, Outcome.NOT_APPLICABLE}
        assert set(outcomes[place + 1 :]) <= {Outcome.NOT_REACHED}


def test_the_json_form_is_plain_and_shows_no_path() -> None:
    """`to_json` is what `json` encodes; the origin stands for the URL."""
    told = explain(
        "https://example.org/secret?token=1", ["example.org"], {"example.org": ["8.8.8.8"]}
    )

    text = json.dumps(told.to_json())
    assert "secret" not in text
    assert json.loads(text)["verdict"] == "allow"
    assert json.loads(text)["addresses"] == ["8.8.8.8"]
    assert json.loads(text)["entry"] == "example.org"


def test_the_switches_of_the_operator_are_explained() -> None:
    """`https_only` and the exemptions take part."""
    strict = explain("http://a.test/", ["a.test"], address_policy=AddressPolicy(https_only=True))
    assert _ORDER.index("R12") == [step.outcome for step in strict.steps].index(Outcome.REFUSED)
    private = AddressPolicy(allow_private_addresses=True)
    told = explain("http://a.test/", ["a.test"], ["10.0.0.1"], address_policy=private)
    assert told.verdict is Verdict.ALLOW


@given(st.one_of(urls(), st.text()), allowlists(), st.none() | answers(), address_policies())
def test_it_says_what_the_decisions_say(
    url: str, allowlist: Allowlist, found: list[str] | None, switches: AddressPolicy
) -> None:
    """For any URL, list, answers and switches the verdict is the one of a run."""
    told = explain(url, allowlist, found, address_policy=switches)

    assert told.verdict == _decide(url, EgressPolicy(allowlist=allowlist, address=switches), found)


def _decide(url: str, policy: EgressPolicy, found: list[str] | None) -> str:
    try:
        target = parse_target(url)
    except UrlRejected:
        return "invalid"
    listed = check_listed(policy, target)
    if isinstance(listed, Deny):
        return "deny"
    if target.is_literal:
        return "allow"
    if found is None:
        return "needs_answers"
    return "allow" if isinstance(check_answers(policy, target, found), Allow) else "deny"


def test_a_parsed_list_is_taken_as_it_is() -> None:
    """Layers can be explained after they were intersected."""
    both = parse_allowlist(["example.org"]).intersect(parse_allowlist(["example.org:443"]))

    assert explain("https://example.org/", both).verdict is Verdict.NEEDS_ANSWERS
    assert explain("http://example.org/", both).verdict is Verdict.DENY
