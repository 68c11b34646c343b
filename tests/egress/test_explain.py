"""Offline explanations: every rule's verdict in order, and the entry to add."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import (
    PUBLIC_HOSTS,
    AddressPolicy,
    Allow,
    Allowlist,
    Deny,
    DenyReason,
    EgressPolicy,
    check_answers,
    check_listed,
    explain,
    layered_policy,
    parse_allowlist,
    parse_target,
)
from egress.client_hello import Hello, check_hello
from egress.errors import EntryReason, UrlReason, UrlRejected
from egress.explain import Explanation, Outcome, Verdict, explain_connect
from egress.proxy_head import ConnectRequest, HeadReason, parse_head
from egress.reasons import DENY_ROWS, ENTRY_ROWS, URL_ROWS
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


# ── layers ────────────────────────────────────────────────────────────────────────────────────


def test_each_list_is_told_alone() -> None:
    """What it says, why, and what to add to it; the whole is the intersection."""
    lists = {"workspace": ["*.a.test"], "task": None, "run": ["x.a.test:8443"]}

    told = explain("https://x.a.test/", lists, ["8.8.8.8"])

    assert (Verdict.DENY, "R6", "x.a.test") == (told.verdict, told.rule, told.entry_to_add)
    workspace, run = told.layers
    assert ("workspace", Verdict.ALLOW, "*.a.test", None) == (
        workspace.name,
        workspace.verdict,
        workspace.entry,
        workspace.entry_to_add,
    )
    assert ("run", Verdict.DENY, "R6", DenyReason.PORT_NOT_LISTED, "x.a.test") == (
        run.name,
        run.verdict,
        run.rule,
        run.reason,
        run.entry_to_add,
    )
    assert ["allow", "deny"] == [
        each["verdict"] for each in json.loads(json.dumps(told.to_json()))["layers"]
    ]


def test_a_bad_entry_of_a_layer_is_told_with_its_name() -> None:
    """R15 refuses, and says whose list it is."""
    told = explain("https://a.test/", {"workspace": ["*.com"], "run": ["a.test"]})

    assert (Verdict.INVALID, "R15", EntryReason.WILDCARD) == (told.verdict, told.rule, told.reason)
    assert "workspace" in told.steps[0].detail


@given(urls(), st.lists(allowlists(), min_size=1, max_size=3), st.none() | answers())
def test_layers_are_told_as_they_decide(
    url: str, lists: list[Allowlist], found: list[str] | None
) -> None:
    """The whole is allowed exactly when each list alone allows it."""
    named = dict(zip(("workspace", "task", "run"), lists, strict=False))
    told = explain(url, named, found)

    assert told.verdict == _decide(url, layered_policy(named), found)
    if told.layers:
        alone = [each.verdict for each in told.layers]
        assert (Verdict.DENY in alone) == (told.verdict is Verdict.DENY)


def test_answers_may_be_an_iterator() -> None:
    """Each list is asked about all of them."""
    told = explain(
        "http://a.test/", {"workspace": ["a.test"], "run": ["a.test"]}, iter(["8.8.8.8"])
    )

    assert {Verdict.ALLOW} == {told.verdict, *(each.verdict for each in told.layers)}


def test_public_hosts_can_be_explained() -> None:
    """The value stands where a list does."""
    told = explain("http://a.test/", PUBLIC_HOSTS, ["8.8.8.8"])

    assert (Verdict.ALLOW, "PUBLIC_HOSTS") == (told.verdict, told.entry)


# ── CONNECT ───────────────────────────────────────────────────────────────────────────────────


def _connect_refusal(told: Explanation) -> str | None:
    places = [step for step in told.steps if step.outcome is Outcome.REFUSED]
    return next((step.title for step in places), None)


@pytest.mark.parametrize(
    ("authority", "name", "verdict", "reason"),
    [
        ("a.test:443", None, "allow", None),
        ("a.test:443", "A.test.", "allow", None),
        ("a.test:443", "b.test", "deny", DenyReason.SNI_MISMATCH),
        ("a.test:443", "", "deny", DenyReason.SNI_MISSING),
        ("a.test:8443", "b.test", "deny", DenyReason.PORT_NOT_LISTED),
        ("c.test:22", "b.test", "allow", None),
        ("b.test:443", None, "deny", DenyReason.HOST_NOT_LISTED),
        ("10.0.0.1:443", "", "allow", None),
        ("10.0.0.1:443", "a.test", "deny", DenyReason.SNI_MISMATCH),
        ("169.254.169.254:443", None, "deny", DenyReason.ADDRESS_NOT_LISTED),
        ("a.test", None, "invalid", HeadReason.PORT_MISSING),
        ("a.test:", None, "invalid", HeadReason.PORT_MISSING),
        ("https://a.test/", None, "invalid", HeadReason.REQUEST_FORM),
        ("u@a.test:443", None, "invalid", HeadReason.REQUEST_FORM),
        ("127.1:443", None, "invalid", "target: numeric_host"),
        ("a.test:443 HTTP/1.1\r\nX: y", None, "invalid", HeadReason.CONTROL_CHARACTER),
        ("b\u00fccher.test:443", None, "invalid", HeadReason.CONTROL_CHARACTER),
    ],
)
def test_a_tunnel_is_explained_as_the_proxy_decides(
    authority: str, name: str | None, verdict: str, reason: str | None
) -> None:
    """The form of the request, the list, the answers, and on port 443 the name in TLS."""
    lists = ["a.test", "c.test:22", "10.0.0.0/8"]

    told = explain_connect(authority, lists, ["8.8.8.8"], server_name=name)

    assert (verdict, reason) == (told.verdict, told.reason)
    assert (_connect_refusal(told) is None) == (reason is None)
    assert told.steps[-1].rule == "R13" == told.steps[1].rule


@given(
    st.one_of(urls(), st.sampled_from(["a.test:443", "www.example.org:443", "8.8.8.8:443", "x:1"])),
    allowlists(),
    st.none() | answers(),
    st.none() | st.sampled_from(["", "a.test", "www.example.org"]),
)
def test_explaining_a_tunnel_is_total_and_true(
    authority: str, allowlist: Allowlist, found: list[str] | None, name: str | None
) -> None:
    """The verdict is the one of the proxy's own functions, whatever the text."""
    told = explain_connect(authority, allowlist, found, server_name=name)

    assert told.verdict == _tunnelled(authority, allowlist, found, name)


def _tunnelled(
    authority: str, allowlist: Allowlist, found: list[str] | None, name: str | None
) -> str:
    if not authority.isascii() or " " in authority or not authority.isprintable():
        return "invalid"
    head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()
    request = parse_head(head)
    if not isinstance(request, ConnectRequest):
        return "invalid"
    target = request.target
    listed = _decide(target.url, EgressPolicy(allowlist=allowlist), found)
    if listed not in {"allow", "needs_answers"} or target.port != 443 or name is None:
        return listed
    return listed if check_hello(target, Hello(server_name=name or None)) is None else "deny"


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        (None, "needs_answers", None),
        ("a.test", "needs_answers", None),
        ("b.test", "deny", DenyReason.SNI_MISMATCH),
        ("", "deny", DenyReason.SNI_MISSING),
    ],
)
def test_no_answer_makes_up_for_another_name(
    name: str | None, verdict: str, reason: DenyReason | None
) -> None:
    """Without answers the name in TLS is judged all the same; it is the last thing asked."""
    told = explain_connect("a.test:443", ["a.test"], server_name=name)

    assert (verdict, reason) == (told.verdict, told.reason)
    assert ("R13" if reason else None) == told.rule


# ── reasons ───────────────────────────────────────────────────────────────────────────────────


def test_every_reason_has_a_row() -> None:
    """A word that nobody explains is a word that nobody can act on."""
    assert set(DenyReason) == set(DENY_ROWS)
    assert set(UrlReason) == set(URL_ROWS)
    assert set(EntryReason) == set(ENTRY_ROWS)


def test_every_row_says_what_to_do_in_a_sentence() -> None:
    """Meaning and advice are sentences; the rule is a number of the specification."""
    for rows in (DENY_ROWS, URL_ROWS, ENTRY_ROWS):
        for row in rows.values():
            assert all(each[0] == "R" and each[1:].isdigit() for each in row.rule.split(", "))
            for text in (row.meaning, row.advice):
                assert text[0].isupper()
                assert text[-1] in ".`"


def test_the_rule_of_a_row_is_the_rule_that_gives_the_reason() -> None:
    """For what can be asked here: the tables and the verdicts name the same rules."""
    asked = [
        explain("http://c.test/", ["a.test"]),
        explain("http://a.test/", ["*.a.test"]),
        explain("http://a.test:1/", ["a.test"]),
        explain("http://8.8.8.8/", []),
        explain("http://10.0.0.1/", ["0.0.0.0/0"]),
        explain("http://224.0.0.1/", ["224.0.0.0/4"]),
        explain("http://169.254.169.254/", ["169.254.0.0/16"]),
        explain("http://a.test/", ["a.test"], ["fe80::1%1"]),
        explain("http://a.test/", ["a.test"], []),
        explain("http://a.test/", ["a.test"], ["x"]),
        explain("http://a.test/", ["a.test"], ["8.8.8.8"] * 257),
        explain("http://a.test/", ["a.test"], address_policy=AddressPolicy(https_only=True)),
        explain_connect("a.test:443", ["a.test"], ["8.8.8.8"], server_name=""),
        explain_connect("a.test:443", ["a.test"], ["8.8.8.8"], server_name="b.test"),
    ]

    for told in asked:
        assert told.reason is not None
        assert told.rule == DENY_ROWS[DenyReason(told.reason)].rule
