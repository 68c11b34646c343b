"""Layers, `PUBLIC_HOSTS`, and what stays closed when a policy only reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import (
    PUBLIC_HOSTS,
    AddressPolicy,
    Allow,
    Allowlist,
    AllowlistError,
    Deny,
    DenyReason,
    EgressPolicy,
    Target,
    check_answers,
    check_listed,
    layered_policy,
    parse_allowlist,
    parse_target,
)
from egress.decision import enforced
from egress.errors import EntryReason
from egress.testing import address_policies, allowlists, answers, targets

_NAMES = ("workspace", "task", "run")


def _listed(policy: EgressPolicy, url: str) -> Allow | Deny:
    return check_listed(policy, parse_target(url))


def _vetted(policy: EgressPolicy, url: str, *found: str) -> Allow | Deny:
    return check_answers(policy, parse_target(url), found)


@given(st.lists(allowlists(), min_size=1, max_size=3), targets(), answers(), address_policies())
def test_layers_admit_what_each_of_them_admits(
    lists: list[Allowlist], target: Target, found: list[str], address: AddressPolicy
) -> None:
    """No more and no less: for the list's verdict, and for the answers of the lookup."""
    layered = layered_policy(dict(zip(_NAMES, lists, strict=False)), address=address)
    alone = [EgressPolicy(allowlist=each, address=address) for each in lists]

    def admits(policy: EgressPolicy) -> tuple[bool, bool]:
        listed, vetted = check_listed(policy, target), check_answers(policy, target, found)
        return isinstance(listed, Allow), isinstance(vetted, Allow)

    assert tuple(map(all, zip(*map(admits, alone), strict=True))) == admits(layered)


@given(allowlists(), allowlists(), targets(), answers())
def test_a_denial_names_the_layers_that_lack_the_entry(
    workspace: Allowlist, run: Allowlist, target: Target, found: list[str]
) -> None:
    """Exactly those that deny alone, when an entry could be what is missing."""
    layered = layered_policy({"workspace": workspace, "run": run})

    denied = check_listed(layered, target)
    if isinstance(denied, Deny) and denied.nearest_entry is None:
        assert () == denied.layers
    elif isinstance(denied, Deny):
        alone = {"workspace": workspace, "run": run}
        lacking = tuple(
            name
            for name, each in alone.items()
            if isinstance(check_listed(EgressPolicy(allowlist=each), target), Deny)
        )
        assert lacking == denied.layers
    vetted = check_answers(layered, target, found)
    if isinstance(vetted, Deny):
        assert (vetted.reason is DenyReason.ADDRESS_NOT_GLOBAL) == bool(vetted.layers)


@pytest.mark.parametrize(
    ("layers", "url", "reason", "lacking"),
    [
        ({"workspace": ["a.test"], "run": ["b.test"]}, "http://b.test/", "host", ("workspace",)),
        ({"workspace": ["a.test"], "run": ["b.test"]}, "http://c.test/", "host", _NAMES[::2]),
        ({"workspace": ["a.test"], "run": ["a.test:8080"]}, "http://a.test/", "port", ("run",)),
        ({"workspace": ["*.a.test"], "run": ["a.test"]}, "http://a.test/", "apex", ("workspace",)),
        ({"workspace": ["*.a.test"], "run": ()}, "http://x.a.test/", "host", ("run",)),
        ({"workspace": ["0.0.0.0/0"], "run": ["10.0.0.0/8"]}, "http://10.0.0.1/", "global", ("workspace",)),
        ({"workspace": ["8.8.8.8"], "run": ["8.8.4.4"]}, "http://8.8.4.4/", "address", ("workspace",)),
    ],
)  # fmt: skip
def test_the_reason_is_the_outermost_layer_s(
    layers: Mapping[str, Iterable[str]], url: str, reason: str, lacking: tuple[str, ...]
) -> None:
    """Lists without anything in common would only say that the host is not listed."""
    words = {
        "host": DenyReason.HOST_NOT_LISTED,
        "port": DenyReason.PORT_NOT_LISTED,
        "apex": DenyReason.APEX_NOT_COVERED,
        "global": DenyReason.ADDRESS_NOT_GLOBAL,
        "address": DenyReason.ADDRESS_NOT_LISTED,
    }
    verdict = _listed(layered_policy(layers), url)

    assert isinstance(verdict, Deny)
    assert (words[reason], lacking) == (verdict.reason, verdict.layers)
    assert verdict.nearest_entry == parse_target(url).host


def test_none_has_no_opinion_and_an_empty_list_allows_nothing() -> None:
    """A layer that is absent does not narrow; one that is empty closes everything."""
    run = ["a.test"]

    assert isinstance(
        _listed(layered_policy({"workspace": None, "run": run}), "http://a.test/"), Allow
    )
    assert isinstance(
        _listed(layered_policy({"workspace": (), "run": run}), "http://a.test/"), Deny
    )
    assert isinstance(_listed(layered_policy({"workspace": None}), "http://a.test/"), Deny)
    assert isinstance(_listed(layered_policy({}), "http://a.test/"), Deny)
    assert ("run",) == tuple(
        each.name for each in layered_policy({"workspace": None, "run": run}).layers
    )


def test_layers_are_kept_and_not_written_out_again() -> None:
    """The intersection as text is wider than the intersection."""
    layered = layered_policy({"workspace": ["a.test"], "run": ["a.test:443"]})
    assert isinstance(layered.allowlist, Allowlist)
    again = EgressPolicy(allowlist=parse_allowlist(layered.allowlist.entries))

    assert isinstance(_listed(layered, "http://a.test:443/"), Deny)
    assert isinstance(_listed(again, "http://a.test:443/"), Allow)
    assert ("a.test", "a.test:443") == tuple(layer.allowlist.entries[0] for layer in layered.layers)


def test_a_bad_entry_names_its_layer() -> None:
    """Whoever wrote the list is who has to mend it."""
    with pytest.raises(AllowlistError, match="workspace allowlist entry") as caught:
        layered_policy({"workspace": ["10.0.0.1/8"], "run": []})

    assert ("workspace", "10.0.0.1/8") == (caught.value.layer, caught.value.entry)
    assert (EntryReason.CIDR_HOST_BITS, "10.0.0.0/8") == (caught.value.reason, caught.value.hint)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://any.test/", None),
        ("http://any.test/", None),
        ("https://8.8.8.8/", None),
        ("https://any.test:8443/", DenyReason.PORT_NOT_LISTED),
        ("http://10.0.0.1/", DenyReason.ADDRESS_NOT_GLOBAL),
        ("http://169.254.169.254/", DenyReason.METADATA_ADDRESS),
    ],
)
def test_public_hosts_is_every_host_under_the_address_policy(
    url: str, reason: DenyReason | None
) -> None:
    """Default ports, public addresses; no entry could be added, so none is named."""
    verdict = _listed(EgressPolicy(allowlist=PUBLIC_HOSTS), url)

    assert reason == (verdict.reason if isinstance(verdict, Deny) else None)
    assert isinstance(verdict, Allow) or verdict.nearest_entry is None


def test_public_hosts_opens_no_private_answer() -> None:
    """A name that resolves into a private network is refused, metadata is, and no entry is named."""
    policy = EgressPolicy(allowlist=PUBLIC_HOSTS)

    for private in ("10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00:ec2::254"):
        verdict = _vetted(policy, "http://any.test/", "8.8.8.8", private)
        assert isinstance(verdict, Deny)
        assert verdict.nearest_entry is None
    assert isinstance(_vetted(policy, "http://any.test/", "8.8.8.8"), Allow)


def test_public_hosts_has_no_spelling_and_is_no_list() -> None:
    """Neither its name nor the value itself gets into a parsed list."""
    assert not parse_allowlist(["PUBLIC_HOSTS"]).matching(parse_target("http://any.test/"))
    assert ("PUBLIC_HOSTS",) == PUBLIC_HOSTS.entries
    for mistaken in (PUBLIC_HOSTS, [PUBLIC_HOSTS]):
        with pytest.raises(AllowlistError):
            # The mistake is the point.
            parse_allowlist(mistaken)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="refuse nothing"):
        EgressPolicy(allowlist=PUBLIC_HOSTS, address=AddressPolicy(allow_private_addresses=True))


@pytest.mark.parametrize("value", [None, ["a.test"], ("a.test",), "a.test"])
def test_a_policy_takes_a_parsed_list(value: Any) -> None:
    """Texts would be asked for things that only a parsed list can answer."""
    with pytest.raises(TypeError):
        EgressPolicy(allowlist=value)


@pytest.mark.parametrize("value", ["false", 1, None])
def test_report_only_is_a_bool(value: Any) -> None:
    """The text "false" must never switch enforcement off."""
    with pytest.raises(TypeError):
        EgressPolicy(allowlist=parse_allowlist(()), unsafe_report_only=value)


_REPORT = EgressPolicy(allowlist=parse_allowlist(["a.test"]), unsafe_report_only=True)


def _passed(policy: EgressPolicy, url: str, found: list[str] | None = None) -> Allow | Deny:
    target = parse_target(url)
    verdict = (
        check_listed(policy, target) if found is None else check_answers(policy, target, found)
    )
    assert isinstance(verdict, Deny)
    return enforced(policy, target, verdict, addresses=found)


@pytest.mark.parametrize(
    ("url", "found", "vetted"),
    [
        ("http://b.test/", None, ()),
        ("http://a.test:81/", None, ()),
        ("http://8.8.8.8/", None, ("8.8.8.8",)),
        ("http://10.0.0.1/", None, ("10.0.0.1",)),
        ("http://a.test/", ["10.0.0.1", "8.8.8.8"], ("10.0.0.1", "8.8.8.8")),
    ],
)
def test_what_a_list_could_open_is_only_reported(
    url: str, found: list[str] | None, vetted: tuple[str, ...]
) -> None:
    """And the answer says on what it rests."""
    verdict = _passed(_REPORT, url, found)

    assert isinstance(verdict, Allow)
    assert "unsafe_report_only" == verdict.entry
    assert vetted == tuple(map(str, verdict.addresses))


@pytest.mark.parametrize(
    ("url", "found", "reason"),
    [
        ("http://169.254.169.254/", None, DenyReason.METADATA_ADDRESS),
        ("http://[64:ff9b::a9fe:a9fe]/", None, DenyReason.METADATA_ADDRESS),
        ("http://224.0.0.1/", None, DenyReason.NEVER_OPENED),
        ("http://a.test/", ["10.0.0.1", "169.254.169.254"], DenyReason.METADATA_ADDRESS),
        ("http://a.test/", ["169.254.169.254", "10.0.0.1"], DenyReason.METADATA_ADDRESS),
        ("http://a.test/", ["10.0.0.1", "fe80::1%1"], DenyReason.SCOPED_ADDRESS),
        ("http://a.test/", ["10.0.0.1", "x"], DenyReason.MALFORMED_ANSWER),
        ("http://a.test/", [], DenyReason.NO_ANSWER),
        ("http://10.0.0.1/", ["10.0.0.2"], DenyReason.ANSWER_NOT_THE_LITERAL),
    ],
)
def test_what_nothing_opens_stays_closed(
    url: str, found: list[str] | None, reason: DenyReason
) -> None:
    """R9, scopes and unusable answers are blocked in whatever place of the answers they stand."""
    verdict = _passed(_REPORT, url, found)

    assert isinstance(verdict, Deny)
    assert reason is verdict.reason


_OPENABLE = {
    *(DenyReason.HOST_NOT_LISTED, DenyReason.APEX_NOT_COVERED, DenyReason.PORT_NOT_LISTED),
    *(DenyReason.ADDRESS_NOT_LISTED, DenyReason.ADDRESS_NOT_GLOBAL, DenyReason.HTTPS_ONLY),
}


@pytest.mark.parametrize("reason", sorted(set(DenyReason) - _OPENABLE))
def test_no_other_reason_is_passed_over(reason: DenyReason) -> None:
    """Also when the addresses are fine: a tunnel with another name in it stays refused."""
    deny = Deny(rule="R13", reason=reason)

    assert deny is enforced(_REPORT, parse_target("https://a.test/"), deny)
    assert deny is enforced(_REPORT, parse_target("https://a.test/"), deny, addresses=["8.8.8.8"])


@given(targets(), st.none() | answers())
def test_without_the_switch_a_denial_stands(target: Target, found: list[str] | None) -> None:
    """`enforced` changes nothing for a policy that enforces."""
    policy = EgressPolicy(allowlist=parse_allowlist(["a.test"]))
    verdict = (
        check_listed(policy, target) if found is None else check_answers(policy, target, found)
    )

    if isinstance(verdict, Deny):
        assert verdict is enforced(policy, target, verdict, addresses=found)


def test_https_only_is_reported_too() -> None:
    """The operator's own switch is among what is tried out."""
    policy = EgressPolicy(
        allowlist=parse_allowlist(["a.test"]),
        address=AddressPolicy(https_only=True),
        unsafe_report_only=True,
    )

    assert isinstance(_passed(policy, "http://a.test/"), Allow)


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        (["*.a.test"], "^allowed host '\\*.a.test' is refused"),
        ([7], "^allowed host '7' is refused"),
        ("a.test", "^list of allowed hosts is refused"),
    ],
)
def test_a_refused_allowed_host_is_called_one(hosts: Any, told: str) -> None:
    """It is in no allowlist, and who looks for it there does not find it."""
    with pytest.raises(AllowlistError, match=told) as caught:
        AddressPolicy(allowed_hosts=hosts)
    assert str(caught.value) in str(caught.value.in_layer("run"))
