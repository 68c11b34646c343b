"""Which addresses are global, exempt by listing, or never opened (R8-R10)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given

from egress import AddressPolicy, Allow, Deny, DenyReason, EgressPolicy, check_address
from egress.address import _IPV4, _IPV6, Address, Block, block_of, block_of_network, is_never_opened
from egress.allowlist import parse_allowlist
from egress.testing import addresses

_NOTHING = EgressPolicy(allowlist=parse_allowlist([]))
_PRIVATE = EgressPolicy(
    allowlist=parse_allowlist([]), address=AddressPolicy(allow_private_addresses=True)
)

# R10 as the page writes it, decided the slow way: the oracle for the flattened table.
_REFUSED_4 = [
    ipaddress.IPv4Network(text)
    for text in [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    ]
]
_REFUSED_6 = [
    ipaddress.IPv6Network(text) for text in ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"]
]
_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _is_global(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED_4)
    if address.ipv4_mapped is not None:
        return _is_global(address.ipv4_mapped)
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64:
        return _is_global(low)
    interface = int(address) >> 32 & 0xFFFFFFFF
    if interface in {0x00005EFE, 0x01005EFE, 0x02005EFE, 0x03005EFE} and not _is_global(low):
        return False
    return address in _UNICAST and not any(address in network for network in _REFUSED_6)


def _edges(row: Block) -> list[Address]:
    network = ipaddress.ip_network(row.network)
    first, last = int(network.network_address), int(network.broadcast_address)
    kind = type(network.network_address)
    numbers = {first, last, first - 1, last + 1}
    return [kind(each) for each in numbers if 0 <= each < 1 << network.max_prefixlen]


@pytest.mark.parametrize(
    "address", sorted({str(edge) for row in (*_IPV4, *_IPV6) for edge in _edges(row)})
)
def test_both_sides_of_every_edge_are_judged_as_the_page_says(address: str) -> None:
    """The first and last address of each block, and their neighbours outside it."""
    parsed = ipaddress.ip_address(address)

    verdict = check_address(_NOTHING, parsed, host="example.org")

    assert _is_global(parsed) == isinstance(verdict, Allow)


@example(ipaddress.ip_address("2606:4700::5efe:8.8.8.8"))
@example(ipaddress.ip_address("2606:4700::200:5efe:10.0.0.1"))
@example(ipaddress.ip_address("64:ff9b::a00:1"))
@given(addresses())
def test_the_table_agrees_with_the_page(address: Address) -> None:
    """The flattened table and a slow reading of R10 give one verdict for any address."""
    assert _is_global(address) == (block_of(address) is None)
    verdict = check_address(_NOTHING, address, host="example.org")
    assert isinstance(verdict, Allow) == _is_global(address)
    assert isinstance(check_address(_NOTHING, str(address), host="a"), Allow) == _is_global(address)


_METADATA = [
    *("169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.42.42", "100.100.100.200"),
    *("192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    "fd00:42::42",
]
_CLOSED = [
    *_METADATA,
    *("0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("ff02::1", "ff0e::1"),
]


def _wrappers(number: int) -> list[str]:
    """*number*, an IPv4 address, in every IPv6 form that carries one."""
    high, low = number >> 16, number & 0xFFFF
    flipped = number ^ 0xFFFFFFFF
    return [
        f"::ffff:{high:x}:{low:x}",
        f"::{high:x}:{low:x}",
        f"::ffff:0:{high:x}:{low:x}",
        f"64:ff9b::{high:x}:{low:x}",
        f"64:ff9b:1::{high:x}:{low:x}",
        f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}::",
        f"64:ff9b:1:{high >> 8:x}:{high & 0xFF:x}:{low:x}::",
        f"64:ff9b:1:0:{high >> 8:x}:{(high & 0xFF) << 8 | low >> 8:x}:{(low & 0xFF) << 8:x}:0",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:{high:x}:{low:x}:8000::f7f7:f7f7",
        f"2001:0:808:808:8000:63bf:{flipped >> 16:x}:{flipped & 0xFFFF:x}",
        f"2606:4700::5efe:{high:x}:{low:x}",
        f"fd00::200:5efe:{high:x}:{low:x}",
    ]


@pytest.mark.parametrize("address", _CLOSED)
def test_no_switch_and_no_entry_opens_a_closed_address(address: str) -> None:
    """R9 holds against listing, `allowed_hosts` and `allow_private_addresses` together."""
    listed = f"[{address}]" if ":" in address else address
    policy = EgressPolicy(
        allowlist=parse_allowlist([listed, "0.0.0.0/0", "::/0", "169.254.0.0/16"]),
        address=AddressPolicy(allowed_hosts=["a.test"], allow_private_addresses=True),
    )

    verdict = check_address(policy, address, host="a.test")

    assert isinstance(verdict, Deny)
    assert verdict.rule == "R9"
    assert verdict.nearest_entry is None
    assert (verdict.reason is DenyReason.METADATA_ADDRESS) == (address in _METADATA)


@pytest.mark.parametrize("address", [each for each in _CLOSED if ":" not in each])
def test_a_closed_address_stays_closed_in_every_wrapper(address: str) -> None:
    """R9 holds inside mapped, compatible, translated, NAT64, 6to4, Teredo and ISATAP forms."""
    for wrapped in _wrappers(int(ipaddress.IPv4Address(address))):
        verdict = check_address(_PRIVATE, wrapped, host="a.test")

        assert isinstance(verdict, Deny), wrapped
        assert verdict.rule == "R9", wrapped


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.253", "169.254.169.255", "10.0.0.1", "127.0.0.1", "192.168.1.1", "::1"),
        *("fd00:ec2::253", "fe80::1", "fc00::1", "fec0::1", "198.18.0.84", "192.0.0.191"),
        *("64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1", "100::1", "4000::1"),
        "64:ff9b:1::808:808",
    ],
)
def test_the_neighbours_of_closed_addresses_can_be_opened(address: str) -> None:
    """`allow_private_addresses` reaches every non-global address that R9 does not close."""
    assert isinstance(check_address(_PRIVATE, address, host="a.test"), Allow)
    assert isinstance(check_address(_NOTHING, address, host="a.test"), Deny)


@pytest.mark.parametrize(
    ("entry", "address", "allowed"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3/32", "10.1.2.3", True),
        ("10.1.2.3:8080", "10.1.2.3", True),
        ("10.1.2.4", "10.1.2.3", False),
        ("10.0.0.0/7", "10.1.2.3", False),
        ("8.0.0.0/5", "10.1.2.3", False),
        ("0.0.0.0/0", "10.1.2.3", False),
        ("172.16.0.0/12", "172.31.255.255", True),
        ("172.0.0.0/11", "172.31.255.255", False),
        ("192.168.0.0/15", "192.168.0.1", False),
        ("198.18.0.0/15", "198.18.0.84", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("100.64.0.0/10", "100.64.0.1", True),
        ("192.0.2.0/24", "192.0.2.1", True),
        ("fc00::/7", "fd12::1", True),
        ("fd12::/16", "fd12::1", True),
        ("fc00::/6", "fd12::1", False),
        ("::/0", "fd12::1", False),
        ("::1", "::1", True),
        ("::/96", "::1", False),
        ("::/8", "::1", False),
        ("fe80::/10", "fe80::1", True),
        ("fe80::/9", "fe80::1", False),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("10.0.0.0/8", "64:ff9b::a00:1", False),
        ("64:ff9b::/96", "64:ff9b::a00:1", False),
        ("64:ff9b::/64", "64:ff9b::a00:1", False),
        ("64:ff9b::/64", "64:ff9b::1:0:1", False),
        ("64:ff9b:0:0:0:1::/96", "64:ff9b::1:0:1", True),
        ("64:ff9b::a00:0/104", "64:ff9b::a00:1", True),
        ("[64:ff9b::a00:1]", "64:ff9b::a00:1", True),
        ("2002::/16", "2002:808:808::1", True),
        ("2001::/23", "2001:0:808:808:8000:63bf:f7f7:f7f7", True),
        ("2001::/22", "2001:0:808:808:8000:63bf:f7f7:f7f7", False),
        ("*.example.org", "10.1.2.3", False),
        ("example.org:*", "10.1.2.3", False),
    ],
)
def test_only_an_entry_inside_one_block_exempts(entry: str, address: str, *, allowed: bool) -> None:
    """R8: a listed literal or CIDR exempts when it lies wholly inside one special-purpose block."""
    policy = EgressPolicy(allowlist=parse_allowlist([entry]))

    assert allowed == isinstance(check_address(policy, address, host="example.org"), Allow)


def test_allowed_hosts_is_per_host_and_canonical() -> None:
    """The exemption is for exactly the named host, in whatever spelling the operator wrote it."""
    policy = EgressPolicy(
        allowlist=parse_allowlist([]),
        address=AddressPolicy(allowed_hosts=["B\u00fccher.Example.", "[::1]", "::2"]),
    )

    assert policy.address.allowed_hosts == {"xn--bcher-kva.example", "::1", "::2"}
    assert isinstance(check_address(policy, "10.0.0.1", host="xn--bcher-kva.example"), Allow)
    assert isinstance(check_address(policy, "10.0.0.1", host="www.xn--bcher-kva.example"), Deny)
    assert isinstance(check_address(policy, "10.0.0.1", host="example.org"), Deny)


@pytest.mark.parametrize("address", ["fe80::1%eth0", "2606:4700::1%1", "::1%0", "::ffff:8.8.8.8%1"])
def test_a_scope_id_is_refused(address: str) -> None:
    """An address with a zone is never dialled, not even with every switch on."""
    verdict = check_address(_PRIVATE, address, host="a.test")

    assert isinstance(verdict, Deny)
    assert verdict.reason is DenyReason.SCOPED_ADDRESS


@pytest.mark.parametrize("address", ["", "example.org", "1.2.3", "127.1", "0x7f000001", "1.2.3.4 "])
def test_an_answer_that_is_no_address_is_refused(address: str) -> None:
    """Unparsable means no."""
    verdict = check_address(_PRIVATE, address, host="a.test")

    assert isinstance(verdict, Deny)
    assert verdict.reason is DenyReason.MALFORMED_ANSWER


def test_is_global_of_the_standard_library_is_not_what_we_use() -> None:
    """The addresses that `is_global` passes on 3.11.7 and R10 does not."""
    for text in ("224.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:100.64.0.1", "fec0::1"):
        assert isinstance(check_address(_NOTHING, text, host="a"), Deny)


def test_every_row_has_its_source() -> None:
    """The table says where each row comes from, and no row is there twice."""
    rows = (*_IPV4, *_IPV6)

    assert all(row.source and row.name for row in rows)
    assert len({row.network for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("first", "last", "name"),
    [
        ("5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "segment routing"),
        ("100::", "100::ffff:ffff:ffff:ffff", "discard only"),
        ("100:0:0:1::", "100:0:0:1:ffff:ffff:ffff:ffff", "dummy prefix"),
        ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "documentation"),
    ],
)
def test_a_row_inside_another_has_its_own_name(first: str, last: str, name: str) -> None:
    """Whoever reads a denial is told what the address is for, to the last one of the row."""
    for text in (first, last):
        block = block_of(ipaddress.ip_address(text))
        assert block is not None
        assert name == block.name


@pytest.mark.parametrize(
    "address", ["64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1::a9fe:a9fe"]
)
def test_ipv4_in_a_local_translation_prefix_is_judged(address: str) -> None:
    """169.254.169.254 under prefix lengths that an operator may have chosen."""
    closed = is_never_opened(ipaddress.ip_address(address))

    assert closed is not None
    assert closed.metadata


@given(addresses())
def test_a_single_address_has_its_own_block(address: Address) -> None:
    """The block of a one-address network is the block of the address."""
    number = getattr(address, "ipv4_mapped", None) or address

    assert block_of(number) == block_of_network(ipaddress.ip_network(number))
    closed = is_never_opened(number)
    assert closed is None or closed.never
