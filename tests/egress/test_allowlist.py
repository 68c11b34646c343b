"""The grammar of entries (R15), what they match (R4-R7), and how lists intersect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress import (
    AddressPolicy,
    Allow,
    Allowlist,
    AllowlistError,
    Deny,
    EgressPolicy,
    Target,
    check_address,
    check_listed,
    parse_allowlist,
    parse_target,
)
from egress.address import Address
from egress.allowlist import MAX_ENTRIES
from egress.errors import EntryReason
from egress.testing import addresses, allowlist_entries, allowlists, targets


def _admits(allowlist: Allowlist, target: Target) -> bool:
    return allowlist.matching(target) is not None


_CANONICAL = [
    ("example.org", "example.org"),
    ("EXAMPLE.ORG.", "example.org"),
    ("b\u00fccher.example", "xn--bcher-kva.example"),
    ("*.B\u00fccher.example:8443", "*.xn--bcher-kva.example:8443"),
    ("example.org:080", "example.org:80"),
    ("example.org:*", "example.org:*"),
    ("*.example.org:*", "*.example.org:*"),
    ("localhost", "localhost"),
    ("ex_ample.org", "ex_ample.org"),
    ("360.cn", "360.cn"),
    ("8.8.8.8", "8.8.8.8"),
    ("8.8.8.8:53", "8.8.8.8:53"),
    ("8.8.8.8:*", "8.8.8.8:*"),
    ("8.8.8.8/32", "8.8.8.8/32"),
    ("0.0.0.0/0", "0.0.0.0/0"),
    ("::/0", "::/0"),
    ("[2001:4860:4860:0::8888]", "2001:4860:4860::8888"),
    ("2001:4860:4860:0::8888", "2001:4860:4860::8888"),
    ("[2001:4860:4860::8888]:443", "[2001:4860:4860::8888]:443"),
    ("[::1]:*", "[::1]:*"),
    ("::1:443", "::1:443"),
    ("2001:DB8::/32", "2001:db8::/32"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("[::ffff:a00:1]:80", "10.0.0.1:80"),
]


@pytest.mark.parametrize(("entry", "canonical"), _CANONICAL)
def test_an_entry_has_one_canonical_form(entry: str, canonical: str) -> None:
    """Entries are canonicalised, and the canonical form means the same."""
    allowlist = parse_allowlist([entry])

    assert (canonical,) == allowlist.entries
    assert allowlist == parse_allowlist(allowlist.entries)


_MALFORMED = [
    ("", EntryReason.EMPTY),
    *(
        (text, EntryReason.WHITESPACE)
        for text in (" a", "a ", "a\n", "a b", "a\u00a0b", "a\u3000b", " ")
    ),
    *((text, EntryReason.CONTROL_CHARACTER) for text in ("a\x00", "a\x7f", "a\\b", "\x01a")),
    *((text, EntryReason.SCHEME) for text in ("http://a.test", "https://a", "://a", "a://")),
    *((text, EntryReason.CREDENTIALS) for text in ("u@a.test", "u:p@a.test", "@a.test", "a@")),
    *((text, EntryReason.PERCENT) for text in ("ex%61mple.org", "fe80::1%eth0", "%", "a:%34")),
    *(
        (text, EntryReason.PATH)
        for text in ("a.test?x", "a.test#x", "a.test/", "a.test/x", "a.test/8")
    ),
    ("a.test:443/x", EntryReason.PATH),
    *((text, EntryReason.WILDCARD) for text in ("*", "*.com", "*x.org", "a.*.org", "exam*.org")),
    *(
        (text, EntryReason.WILDCARD)
        for text in ("*.*.example.org", "*.*", "**.a.b", "*:443", "*:*")
    ),
    *((text, EntryReason.WILDCARD) for text in ("*.8.8.8.8", "*.[::1]", "*example.org", "a.b.*")),
    *((text, EntryReason.WILDCARD) for text in ("*.com.", "*.localhost", "*.com:443", "a*")),
    *(
        (text, EntryReason.HOST)
        for text in (".x", "x..y", "..", ".", "-.", "a,b", "a;b", "a.", "_")[:4]
    ),
    *(
        (text, EntryReason.HOST)
        for text in ("*.", "*..org", "*.a..b", "a,b", "xn--a", "*.xn--a.org")
    ),
    *((text, EntryReason.HOST) for text in ("127.1", "0x7f.1", "0x7f000001", "017700000001", "1")),
    *(
        (text, EntryReason.HOST)
        for text in ("8.8.8.8.", "08.8.8.8", "8.8.8", "a.0x7f", "\uff18.8.8.8")
    ),
    *(
        (text, EntryReason.HOST)
        for text in ("[::1", "::1]", "[::1]x", "[8.8.8.8]", "[v1.x]", "[]", "a:1:2")
    ),
    *(
        (text, EntryReason.HOST)
        for text in ("8.8.8.8:1:2", "a\u200bb", "a" * 64, ":80", "a_b.*".strip(".*") + "!")
    ),
    *(
        (text, EntryReason.PORT)
        for text in ("a:", "a:0", "a:65536", "a:http", "a:80-90", "a:80,443")
    ),
    *(
        (text, EntryReason.PORT)
        for text in ("a:+80", "a:-1", "a:000080", "a:\u0668", "a:**", "[::1]:0")
    ),
    *((text, EntryReason.PORT) for text in ("[::1]:", "[::1]:x", "*.a.b:", "8.8.8.8:", "a:0x50")),
    *((text, EntryReason.CIDR_PREFIX) for text in ("10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1")),
    *((text, EntryReason.CIDR_PREFIX) for text in ("10.0.0.0/08", "10.0.0.0/+8", "10.0.0.0/8:80")),
    *((text, EntryReason.CIDR_PREFIX) for text in ("10.0.0.0/255.0.0.0", "10.0.0.0/0.255.255.255")),
    *(
        (text, EntryReason.CIDR_PREFIX)
        for text in ("10.0.0.0/8/8", "2001:db8::/129", "10.0.0.0/\u0668")
    ),
    *(
        (text, EntryReason.CIDR_PREFIX)
        for text in ("::/", "10.0.0.0/0x8", "10.0.0.0/1e1", "10.0.0.0/8*")
    ),
    *(
        (text, EntryReason.CIDR_ADDRESS)
        for text in ("10/8", "10.0/8", "/8", "[::]/0", "10.0.0.0.0/8")
    ),
    *(
        (text, EntryReason.CIDR_ADDRESS)
        for text in ("010.0.0.0/8", "1:2/64", "*/8", "10.0.0.0:80/8")
    ),
    *(
        (text, EntryReason.CIDR_HOST_BITS)
        for text in ("192.168.1.0/16", "10.0.0.1/8", "2001:db8::1/32")
    ),
    *(
        (text, EntryReason.CIDR_HOST_BITS)
        for text in ("0.0.0.1/0", "::1/0", "8.8.8.8/31".replace("8/", "9/"))
    ),
    *(
        (text, EntryReason.CIDR_MAPPED)
        for text in ("::ffff:10.0.0.0/104", "::ffff:0:0/96", "::ffff:1.2.3.4/128")
    ),
    ("a" * 1025, EntryReason.TOO_LONG),
    (5, EntryReason.NOT_TEXT),
    (None, EntryReason.NOT_TEXT),
    (b"a.test", EntryReason.NOT_TEXT),
]


@pytest.mark.parametrize(("entry", "reason"), _MALFORMED)
def test_one_malformed_entry_refuses_the_list(entry: Any, reason: EntryReason) -> None:
    """The error names entry and reason, and good entries beside it do not help."""
    with pytest.raises(AllowlistError) as caught:
        parse_allowlist(["example.org", entry, "example.com"])

    assert reason is caught.value.reason
    assert caught.value.entry == (entry if isinstance(entry, str) else repr(entry))[:200]


def test_host_bits_say_which_network_was_meant() -> None:
    """The error of `192.168.1.0/16` contains the network to write."""
    with pytest.raises(AllowlistError, match=r"192\.168\.0\.0/16") as caught:
        parse_allowlist(["192.168.1.0/16"])

    assert caught.value.hint == "192.168.0.0/16"


@pytest.mark.parametrize("entries", ["example.org", b"example.org", 5, None])
def test_what_is_not_a_list_is_refused(entries: Any) -> None:
    """A text is not a list of its letters."""
    with pytest.raises(AllowlistError) as caught:
        parse_allowlist(entries)

    assert caught.value.reason is EntryReason.NOT_A_LIST


def test_a_list_has_an_end() -> None:
    """An endless source of entries is refused, not read."""

    def endless() -> Any:
        while True:
            yield "example.org"

    with pytest.raises(AllowlistError) as caught:
        parse_allowlist(endless())

    assert caught.value.reason is EntryReason.TOO_MANY
    assert MAX_ENTRIES >= 1_000
    assert ("a.test",) == parse_allowlist(["a.test"] * MAX_ENTRIES).entries
    with pytest.raises(AllowlistError):
        parse_allowlist(["a.test"] * (MAX_ENTRIES + 1))


@example("*.\ud800")
@example("[\uff1a]:80")
@given(st.text(max_size=40))
def test_parsing_an_entry_is_total(entry: str) -> None:
    """Any text is a list of one or an `AllowlistError`, nothing else."""
    try:
        allowlist = parse_allowlist([entry])
    except AllowlistError:
        return

    assert allowlist == parse_allowlist(allowlist.entries)


_MATCHES = [
    ("example.org", "https://example.org/", True),
    ("example.org", "http://example.org/", True),
    ("example.org", "http://example.org:443/", False),
    ("example.org", "https://example.org:80/", False),
    ("example.org", "https://example.org:8443/", False),
    ("example.org", "https://www.example.org/", False),
    ("example.org", "https://notexample.org/", False),
    ("example.org", "https://example.org.evil.test/", False),
    ("example.org:443", "http://example.org:443/", True),
    ("example.org:443", "http://example.org/", False),
    ("example.org:*", "http://example.org:22/", True),
    ("*.example.org", "https://www.example.org/", True),
    ("*.example.org", "https://a.b.c.example.org/", True),
    ("*.example.org", "https://example.org/", False),
    ("*.example.org", "https://evilexample.org/", False),
    ("*.example.org", "https://www.example.org:8443/", False),
    ("*.example.org:8443", "https://www.example.org:8443/", True),
    ("*.example.org:8443", "https://www.example.org/", False),
    ("com", "https://example.com/", False),
    ("8.8.8.8", "http://8.8.8.8/", True),
    ("8.8.8.8", "http://8.8.8.8:8080/", False),
    ("8.8.8.8/32", "http://8.8.8.8:8080/", True),
    ("8.8.8.0/24", "http://8.8.9.8/", False),
    ("8.8.8.8", "http://[::ffff:8.8.8.8]/", True),
    ("::/0", "http://8.8.8.8/", False),
    ("0.0.0.0/0", "http://[2606:4700::1]/", False),
    ("::/0", "http://[2606:4700::1]:1/", True),
    ("0.0.0.0/0", "http://example.org/", False),
    ("*.8.example.org", "http://8.8.8.8/", False),
]


@pytest.mark.parametrize(("entry", "url", "admitted"), _MATCHES)
def test_what_an_entry_matches(entry: str, url: str, *, admitted: bool) -> None:
    """R4-R7, one entry at a time."""
    assert admitted == _admits(parse_allowlist([entry]), parse_target(url))


@given(st.lists(allowlist_entries(), max_size=5), targets(), st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_order(
    entries: list[str], target: Target, random: Any
) -> None:
    """A shuffled list, with repeats, is the same list."""
    shuffled = [*entries, *entries]
    random.shuffle(shuffled)
    one, two = parse_allowlist(entries), parse_allowlist(shuffled)

    assert one == two
    assert hash(one) == hash(two)
    assert one.entries == two.entries
    policies = [EgressPolicy(allowlist=each) for each in (one, two)]
    assert check_listed(policies[0], target) == check_listed(policies[1], target)


@given(st.lists(allowlist_entries(), max_size=5), allowlist_entries(), targets(), addresses())
def test_adding_an_entry_never_denies_more(
    entries: list[str], entry: str, target: Target, address: Address
) -> None:
    """What a list allows, the longer list allows."""
    before = EgressPolicy(allowlist=parse_allowlist(entries))
    after = EgressPolicy(allowlist=parse_allowlist([*entries, entry]))

    if isinstance(check_listed(before, target), Allow):
        assert isinstance(check_listed(after, target), Allow)
    if isinstance(check_address(before, address, host=target.host, target=target), Allow):
        assert isinstance(check_address(after, address, host=target.host, target=target), Allow)


@given(st.lists(allowlist_entries(), max_size=5), targets())
def test_https_only_never_allows_more(entries: list[str], target: Target) -> None:
    """Adding a deny (the one switch that denies) never allows more."""
    allowlist = parse_allowlist(entries)
    plain = EgressPolicy(allowlist=allowlist)
    strict = EgressPolicy(allowlist=allowlist, address=AddressPolicy(https_only=True))

    if isinstance(check_listed(strict, target), Allow):
        assert isinstance(check_listed(plain, target), Allow)
        assert target.scheme == "https"


def _allows(allowlist: Allowlist, target: Target, address: Address) -> bool:
    """Whether a fetch over this list goes through when its lookup answers *address*."""
    policy = EgressPolicy(allowlist=allowlist)
    if isinstance(check_listed(policy, target), Deny):
        return False
    if target.is_literal:
        return True
    return isinstance(check_address(policy, address, host=target.host, target=target), Allow)


@given(allowlists(), allowlists(), targets())
def test_an_intersection_admits_what_both_admit(
    one: Allowlist, two: Allowlist, target: Target
) -> None:
    """On the list's own verdict the intersection is exact, and commutative."""
    both = one.intersect(two)

    assert both == two.intersect(one)
    assert _admits(both, target) == (_admits(one, target) and _admits(two, target))


@given(allowlists(), allowlists(), targets(), addresses())
def test_an_intersection_is_never_wider(
    one: Allowlist, two: Allowlist, target: Target, address: Address
) -> None:
    """Not even in which private addresses it exempts (R8)."""
    if _allows(one.intersect(two), target, address):
        assert _allows(one, target, address)
        assert _allows(two, target, address)


@given(allowlists(), allowlists(), allowlists(), targets())
def test_layers_associate(one: Allowlist, two: Allowlist, three: Allowlist, target: Target) -> None:
    """Workspace, task and run may be intersected in any grouping."""
    left = one.intersect(two).intersect(three)
    right = one.intersect(two.intersect(three))

    assert _admits(left, target) == _admits(right, target)


@given(allowlists(), targets(), addresses())
def test_a_list_intersected_with_itself_means_itself(
    one: Allowlist, target: Target, address: Address
) -> None:
    """And with the empty list it is empty."""
    assert _allows(one, target, address) == _allows(one.intersect(one), target, address)
    assert one.intersect(parse_allowlist([])).entries == ()


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (["example.org"], ["example.org:443"], ("example.org:443",)),
        (["example.org"], ["example.org:8443"], ()),
        (["example.org:*"], ["example.org"], ("example.org",)),
        (["*.example.org"], ["www.example.org"], ("www.example.org",)),
        (["*.example.org"], ["example.org"], ()),
        (["*.example.org"], ["*.a.example.org:*"], ("*.a.example.org",)),
        (["*.example.org:443"], ["a.example.org"], ("a.example.org:443",)),
        (["10.0.0.0/8"], ["10.1.0.0/16"], ("10.1.0.0/16",)),
        (["10.0.0.0/8"], ["10.1.2.3:8080"], ("10.1.2.3:8080",)),
        (["10.1.2.3/32"], ["10.1.2.3:*"], ("10.1.2.3/32",)),
        (["10.1.2.3/32"], ["10.1.2.3:8080"], ("10.1.2.3:8080",)),
        (["10.0.0.0/8"], ["11.0.0.0/8"], ()),
        (["::/0"], ["0.0.0.0/0"], ()),
        (["a.test", "b.test"], ["b.test", "c.test"], ("b.test",)),
    ],
)
def test_intersection_by_meaning(one: list[str], two: list[str], both: tuple[str, ...]) -> None:
    """Layered lists meet in what both mean, written canonically."""
    assert both == parse_allowlist(one).intersect(parse_allowlist(two)).entries


def test_a_met_port_keeps_the_scheme_of_the_bare_entry() -> None:
    """`example.org` has no http on 443, so neither has its intersection with `example.org:443`."""
    both = parse_allowlist(["example.org"]).intersect(parse_allowlist(["example.org:443"]))

    assert _admits(both, parse_target("https://example.org/"))
    assert not _admits(both, parse_target("http://example.org:443/"))


@pytest.mark.parametrize(
    ("layers", "url", "admitted"),
    [
        # What two layers have left of a port, a third one that writes the port does not widen.
        ([["a.test"], ["a.test:443"], ["a.test:443"]], "http://a.test:443/", False),
        ([["a.test:443"], ["a.test"], ["a.test:443"]], "https://a.test/", True),
        # A wider entry covers no narrower one that admits more of its port.
        ([["a.test", "a.test:443"], ["a.test:443"]], "http://a.test:443/", True),
        ([["a.test", "a.test:8080"], ["a.test", "a.test:8080"]], "http://a.test:8080/", True),
        ([["a.test", "a.test:8080"], ["a.test:*"]], "http://a.test:8080/", True),
    ],
)
def test_layers_leave_what_each_of_them_admits(
    layers: list[list[str]], url: str, *, admitted: bool
) -> None:
    """No more, and no less."""
    both, *others = map(parse_allowlist, layers)
    for other in others:
        both = both.intersect(other)

    assert admitted == _admits(both, parse_target(url))


def test_equal_layers_keep_the_exemption() -> None:
    """`10.0.0.0/8` beside `0.0.0.0/0` exempts on both sides, so it does in their intersection."""
    layer = parse_allowlist(["10.0.0.0/8", "0.0.0.0/0"])
    both = layer.intersect(layer)

    for url in ("http://10.1.2.3/", "http://8.8.8.8/"):
        assert isinstance(check_listed(EgressPolicy(allowlist=both), parse_target(url)), Allow)


def test_a_wide_layer_takes_the_exemption_away() -> None:
    """`0.0.0.0/0` does not open 10/8, so neither does its intersection with `10.0.0.0/8`."""
    both = parse_allowlist(["10.0.0.0/8"]).intersect(parse_allowlist(["0.0.0.0/0"]))
    target = parse_target("http://10.1.2.3/")

    assert _admits(both, target)
    assert isinstance(check_listed(EgressPolicy(allowlist=both), target), Deny)
    open_list = parse_allowlist(["10.0.0.0/8"]).intersect(parse_allowlist(["10.0.0.0/8"]))
    assert isinstance(check_listed(EgressPolicy(allowlist=open_list), target), Allow)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("https://b.test/", ("'https://b.test/'", "R15 scheme", "Write the host alone")),
        ("10.0.0.1/8", ("'10.0.0.1/8'", "R15 cidr_host_bits", "Probably meant: 10.0.0.0/8")),
        ("*.com", ("'*.com'", "R5 wildcard", "Write `*.example.org`")),
        ("b.test:0", ("'b.test:0'", "R6 port", "1 to 65535")),
        ("b.test/x", ("'b.test/x'", "R15 path", "not pages")),
    ],
)
def test_a_refused_entry_is_told_in_words(entry: str, words: tuple[str, ...]) -> None:
    """Which one, by which rule, what is wrong with it, and what to write instead."""
    with pytest.raises(AllowlistError) as caught:
        parse_allowlist(["a.test", entry])

    for each in words:
        assert each in str(caught.value)


def test_a_list_that_is_none_is_told_without_an_entry() -> None:
    """There is no entry to blame."""
    with pytest.raises(AllowlistError, match=r"\Aallowlist is refused \[R15 not_a_list\]"):
        parse_allowlist("a.test")
