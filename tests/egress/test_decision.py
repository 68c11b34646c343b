"""The decisions of one hop: reasons, nearest entries, answers (R4-R11)."""

from __future__ import annotations

import ipaddress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import (
    AddressPolicy,
    Allow,
    AllowlistError,
    Deny,
    DenyReason,
    EgressPolicy,
    Target,
    check_address,
    check_answers,
    check_listed,
    parse_allowlist,
    parse_target,
)
from egress.decision import MAX_ANSWERS
from egress.testing import answers, policies, targets


def _policy(*entries: str, https_only: bool = False) -> EgressPolicy:
    return EgressPolicy(
        allowlist=parse_allowlist(entries),
        address=AddressPolicy(https_only=https_only),
    )


@pytest.mark.parametrize(
    ("entries", "url", "rule", "reason", "nearest"),
    [
        ([], "https://example.org/", "R4", "host_not_listed", "example.org"),
        (["example.org"], "https://www.example.org/", "R4", "host_not_listed", "www.example.org"),
        (["*.example.org"], "https://example.org/", "R5", "apex_not_covered", "example.org"),
        (["example.org"], "https://example.org:8443/", "R6", "port_not_listed", "example.org:8443"),
        (["example.org:8443"], "https://example.org/", "R6", "port_not_listed", "example.org"),
        (["example.org"], "http://example.org:443/", "R6", "port_not_listed", "example.org:443"),
        (["*.a.b"], "https://x.a.b:1/", "R6", "port_not_listed", "x.a.b:1"),
        (["dns.google"], "https://8.8.8.8/", "R7", "address_not_listed", "8.8.8.8"),
        (["8.8.8.8"], "https://8.8.8.8:53/", "R6", "port_not_listed", "8.8.8.8:53"),
        ([], "https://[2606:4700::1]:1/", "R7", "address_not_listed", "[2606:4700::1]:1"),
        ([], "https://[2606:4700::1]/", "R7", "address_not_listed", "2606:4700::1"),
        ([], "http://10.0.0.1/", "R7", "address_not_listed", "10.0.0.1"),
        ([], "http://169.254.169.254/", "R7", "address_not_listed", None),
        (["0.0.0.0/0"], "http://10.0.0.1/", "R8", "address_not_global", "10.0.0.1"),
        (["0.0.0.0/0"], "http://10.0.0.1:81/", "R8", "address_not_global", "10.0.0.1:81"),
        (["0.0.0.0/0"], "http://169.254.169.254/", "R9", "metadata_address", None),
        (["169.254.169.254"], "http://169.254.169.254/", "R9", "metadata_address", None),
        (["0.0.0.0/0"], "http://224.0.0.1/", "R9", "never_opened", None),
    ],
)
def test_a_denial_says_which_rule_and_what_to_add(
    entries: list[str], url: str, rule: str, reason: str, nearest: str | None
) -> None:
    """Rule, reason word and the narrowest entry that would have admitted the URL."""
    policy, target = _policy(*entries), parse_target(url)

    verdict = check_listed(policy, target)

    assert isinstance(verdict, Deny)
    assert (rule, reason, nearest) == (verdict.rule, verdict.reason, verdict.nearest_entry)
    if nearest is not None:
        assert isinstance(check_listed(_policy(*entries, nearest), target), Allow)


def test_an_allow_names_the_entry() -> None:
    """The canonical entry that admitted, and for a literal the vetted address."""
    verdict = check_listed(_policy("EXAMPLE.org"), parse_target("https://example.org/"))

    assert Allow(rule="R4", entry="example.org") == verdict
    literal = check_listed(_policy("8.8.8.0/24"), parse_target("https://8.8.8.8/"))
    assert literal == Allow(
        rule="R7", entry="8.8.8.0/24", addresses=(ipaddress.ip_address("8.8.8.8"),)
    )


def test_https_only_refuses_http_before_the_list_is_asked() -> None:
    """R12: the switch holds for listed and unlisted hosts, and names no entry to add."""
    policy = _policy("example.org", https_only=True)

    for url in ("http://example.org/", "http://evil.test/"):
        verdict = check_listed(policy, parse_target(url))

        assert isinstance(verdict, Deny)
        assert (verdict.rule, verdict.reason) == ("R12", DenyReason.HTTPS_ONLY)
    assert isinstance(check_listed(policy, parse_target("https://example.org/")), Allow)


def test_a_literal_exempts_on_its_own_ports() -> None:
    """R6 with R8: an address listed for 8080 is not open on 22 through a name."""
    policy = _policy("intranet.test:*", "10.0.0.5:8080")

    for port, allowed in ((8080, True), (22, False), (80, False)):
        target = parse_target(f"http://intranet.test:{port}/")
        verdict = check_answers(policy, target, ["10.0.0.5"])

        assert allowed == isinstance(verdict, Allow)
        if isinstance(verdict, Deny):
            more = _policy("intranet.test:*", "10.0.0.5:8080", str(verdict.nearest_entry))
            assert isinstance(check_answers(more, target, ["10.0.0.5"]), Allow)


def test_one_bad_answer_denies() -> None:
    """R11: in whatever place it stands."""
    policy, target = _policy("a.test"), parse_target("http://a.test/")

    for given_answers in (["10.0.0.1", "8.8.8.8"], ["8.8.8.8", "10.0.0.1"]):
        verdict = check_answers(policy, target, given_answers)

        assert isinstance(verdict, Deny)
        assert verdict.addresses == ("10.0.0.1",)


@pytest.mark.parametrize(
    ("given_answers", "reason"),
    [
        ([], DenyReason.NO_ANSWER),
        (["x"], DenyReason.MALFORMED_ANSWER),
        (["8.8.8.8", ""], DenyReason.MALFORMED_ANSWER),
        (["8.8.8.8", "fe80::1%eth0"], DenyReason.SCOPED_ADDRESS),
        (["8.8.8.8"] * (MAX_ANSWERS + 1), DenyReason.TOO_MANY_ANSWERS),
        ([134744072], DenyReason.MALFORMED_ANSWER),
        ([True], DenyReason.MALFORMED_ANSWER),
        ([b"8.8.8.8"], DenyReason.MALFORMED_ANSWER),
        ([b"\x08\x08\x08\x08"], DenyReason.MALFORMED_ANSWER),
        ([("8.8.8.8", 80)], DenyReason.MALFORMED_ANSWER),
        ([None], DenyReason.MALFORMED_ANSWER),
        ([ipaddress.ip_interface("8.8.8.8/8")], DenyReason.MALFORMED_ANSWER),
    ],
)
def test_answers_that_are_none_are_never_a_yes(
    given_answers: list[Any], reason: DenyReason
) -> None:
    """R11: no answer, an unreadable one, and a flood of them."""
    verdict = check_answers(_policy("a.test"), parse_target("http://a.test/"), given_answers)

    assert isinstance(verdict, Deny)
    assert reason is verdict.reason


def test_the_vetted_addresses_keep_their_order_once_each() -> None:
    """The resolver's preference is kept, duplicates and mapped spellings are folded."""
    verdict = check_answers(
        _policy("a.test"),
        parse_target("http://a.test/"),
        ["2606:4700::1", "8.8.8.8", "::ffff:8.8.8.8", "8.8.8.8"],
    )

    assert isinstance(verdict, Allow)
    assert [str(address) for address in verdict.addresses] == ["2606:4700::1", "8.8.8.8"]


def test_a_literal_answers_for_itself_only() -> None:
    """An answer can not move a literal target elsewhere."""
    policy, target = _policy("8.8.8.8"), parse_target("http://8.8.8.8/")

    assert isinstance(check_answers(policy, target, ["8.8.8.8"]), Allow)
    assert isinstance(check_answers(policy, target, ["8.8.4.4"]), Deny)


@given(policies(), targets(), answers())
def test_vetted_is_exactly_what_passes_one_by_one(
    policy: EgressPolicy, target: Target, given_answers: list[str]
) -> None:
    """An `Allow` over answers vouches for each of them, and for nothing else."""
    verdict = check_answers(policy, target, given_answers)
    single = [
        check_address(policy, each, host=target.host, target=target) for each in given_answers
    ]

    if isinstance(verdict, Allow):
        assert single
        assert all(isinstance(each, Allow) for each in single)
        vouched = {
            address for each in single if isinstance(each, Allow) for address in each.addresses
        }
        assert set(verdict.addresses) == vouched
    elif not target.is_literal and single:
        assert any(isinstance(each, Deny) for each in single)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.ip_addresses()
    | st.ip_addresses().map(str)
    | st.sampled_from([object(), ipaddress.ip_network("8.0.0.0/8")]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


@given(policies(), targets(), st.lists(anything, max_size=4))
def test_deciding_is_total_over_what_a_resolver_answers(
    policy: EgressPolicy, target: Target, given_answers: list[Any]
) -> None:
    """Nothing is raised, and only text and the two address types can be a yes."""
    verdict = check_answers(policy, target, given_answers)

    if isinstance(verdict, Allow):
        assert all(
            isinstance(each, str | ipaddress.IPv4Address | ipaddress.IPv6Address)
            for each in given_answers
        )
        assert verdict.addresses


@pytest.mark.parametrize("value", ["false", 0, None, "yes", 1])
def test_a_switch_is_a_bool(value: object) -> None:
    """The text "false" must never switch the address check off."""
    with pytest.raises(TypeError):
        # A caller without a type checker.
        AddressPolicy(allow_private_addresses=value)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        # The same.
        AddressPolicy(https_only=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["*.example.org", "a b", "", "127.1", "http://a", 5])
def test_allowed_hosts_are_canonical_hosts(host: str) -> None:
    """A malformed host refuses the policy; a text is not a set of its letters."""
    with pytest.raises(AllowlistError):
        AddressPolicy(allowed_hosts=[host])
    with pytest.raises(AllowlistError):
        AddressPolicy(allowed_hosts="localhost")


def test_invariants_hold_with_validators_off() -> None:
    """`attrs.validators.set_disabled` switches no check of a policy off."""
    with attrs.validators.disabled():
        with pytest.raises(TypeError):
            # A caller without a type checker.
            AddressPolicy(allow_private_addresses="false")  # type: ignore[arg-type]
        with pytest.raises(AllowlistError):
            AddressPolicy(allowed_hosts=["127.1"])
        with pytest.raises(AllowlistError):
            parse_allowlist(["*"])
