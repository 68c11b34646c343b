"""Which addresses are global (R10), and which are never opened (R9). Pure.

One table, one row per block, its source at the end of the row. The table is flattened once into
sorted boundaries, so that a verdict is one bisect over integers.
"""

from __future__ import annotations

from bisect import bisect_right
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from egress._host import Address

__all__ = (
    "Address",
    "Block",
    "Network",
    "block_of",
    "block_of_network",
    "is_never_opened",
    "parse_address",
    "unmap",
)

Network: TypeAlias = IPv4Network | IPv6Network
"""A CIDR in canonical form."""


@attrs.frozen(kw_only=True)
class Block:
    """One row of the table: a block that is not global.

    Attributes:
        network: The block as CIDR text.
        name: What it is for.
        never: True when no entry and no switch may open it (R9).
        metadata: True for cloud metadata and platform addresses.
        source: Registry or document that says so.
    """

    network: str
    name: str
    source: str
    never: bool = False
    metadata: bool = False


def _row(network: str, name: str, source: str) -> Block:
    return Block(network=network, name=name, source=source)


def _never(network: str, name: str, source: str) -> Block:
    return Block(network=network, name=name, source=source, never=True)


def _metadata(network: str, name: str, source: str) -> Block:
    return Block(network=network, name=name, source=source, never=True, metadata=True)


# IANA-4, IANA-6: the special-purpose address registries (RFC 6890), as of 2025-10.
# https://www.iana.org/assignments/iana-ipv4-special-registry
# https://www.iana.org/assignments/iana-ipv6-special-registry
# Inner rows win over the rows around them.
_IPV4: Final = (
    _never("0.0.0.0/8", "this network", "IANA-4; RFC 791 section 3.2"),
    _row("10.0.0.0/8", "private use", "IANA-4; RFC 1918"),
    _row("100.64.0.0/10", "shared address space", "IANA-4; RFC 6598"),
    _metadata("100.100.100.200/32", "cloud metadata", "Alibaba Cloud ECS documentation"),
    _row("127.0.0.0/8", "loopback", "IANA-4; RFC 1122 section 3.2.1.3"),
    _metadata("168.63.129.16/32", "cloud platform", "Azure WireServer documentation"),
    _row("169.254.0.0/16", "link local", "IANA-4; RFC 3927"),
    _metadata("169.254.42.42/32", "cloud metadata", "Scaleway documentation"),
    _metadata("169.254.169.254/32", "cloud metadata", "AWS, GCP, Azure, OpenStack documentation"),
    _metadata("169.254.170.2/32", "cloud credentials", "AWS ECS task documentation"),
    _metadata("169.254.170.23/32", "cloud credentials", "AWS EKS Pod Identity documentation"),
    _row("172.16.0.0/12", "private use", "IANA-4; RFC 1918"),
    _row("192.0.0.0/24", "IETF protocol assignments", "IANA-4; RFC 6890 section 2.1"),
    _metadata("192.0.0.192/32", "cloud metadata", "Oracle Cloud Infrastructure Classic"),
    _row("192.0.2.0/24", "documentation", "IANA-4; RFC 5737"),
    _row("192.88.99.0/24", "6to4 relay anycast", "IANA-4; RFC 7526"),
    _row("192.168.0.0/16", "private use", "IANA-4; RFC 1918"),
    _row("198.18.0.0/15", "benchmarking", "IANA-4; RFC 2544"),
    _row("198.51.100.0/24", "documentation", "IANA-4; RFC 5737"),
    _row("203.0.113.0/24", "documentation", "IANA-4; RFC 5737"),
    _never("224.0.0.0/4", "multicast", "RFC 5771"),
    _never("240.0.0.0/4", "reserved and broadcast", "IANA-4; RFC 1112 section 4, RFC 8190"),
)

# Only 2000::/3 is global unicast space (RFC 4291 section 2.4); the rows "reserved" cover the rest
# of the IANA "Internet Protocol Version 6 Address Space" registry, so that nothing is global
# because it was forgotten.
_IPV6: Final = (
    _row("::/8", "reserved", "RFC 4291 section 4"),
    _row("::/96", "IPv4-compatible", "RFC 4291 section 2.5.5.1 (deprecated)"),
    _never("::/128", "unspecified", "IANA-6; RFC 4291 section 2.5.2"),
    _row("::1/128", "loopback", "IANA-6; RFC 4291 section 2.5.3"),
    _row("::ffff:0:0:0/96", "IPv4-translated", "RFC 2765 section 2.1"),
    _row("64:ff9b:1::/48", "local-use translation", "IANA-6; RFC 8215"),
    _row("100::/8", "reserved", "RFC 4291 section 4"),
    _row("100::/64", "discard only", "IANA-6; RFC 6666"),
    _row("100:0:0:1::/64", "dummy prefix", "IANA-6; RFC 9780"),
    _row("200::/7", "reserved", "RFC 4048"),
    _row("400::/6", "reserved", "RFC 4291 section 4"),
    _row("800::/5", "reserved", "RFC 4291 section 4"),
    _row("1000::/4", "reserved", "RFC 4291 section 4"),
    _row("2001::/23", "IETF protocol assignments, Teredo, ORCHID", "IANA-6; RFC 2928, RFC 4380"),
    _row("2001:db8::/32", "documentation", "IANA-6; RFC 3849"),
    _row("2002::/16", "6to4", "IANA-6; RFC 3056"),
    _row("3fff::/20", "documentation", "IANA-6; RFC 9637"),
    _row("4000::/3", "reserved", "RFC 4291 section 4"),
    _row("5f00::/16", "segment routing", "IANA-6; RFC 9602"),
    _row("6000::/3", "reserved", "RFC 4291 section 4"),
    _row("8000::/3", "reserved", "RFC 4291 section 4"),
    _row("a000::/3", "reserved", "RFC 4291 section 4"),
    _row("c000::/3", "reserved", "RFC 4291 section 4"),
    _row("e000::/4", "reserved", "RFC 4291 section 4"),
    _row("f000::/5", "reserved", "RFC 4291 section 4"),
    _row("f800::/6", "reserved", "RFC 4291 section 4"),
    _row("fc00::/7", "unique local", "IANA-6; RFC 4193"),
    _metadata("fd00:42::42/128", "cloud metadata", "Scaleway documentation"),
    _metadata("fd00:ec2::23/128", "cloud credentials", "AWS EKS Pod Identity documentation"),
    _metadata("fd00:ec2::254/128", "cloud metadata", "AWS EC2 documentation"),
    _metadata("fd20:ce::254/128", "cloud metadata", "GCP documentation"),
    _row("fe00::/9", "reserved", "RFC 4291 section 4"),
    _row("fe80::/10", "link local", "IANA-6; RFC 4291 section 2.5.6"),
    _row("fec0::/10", "site local", "RFC 3879 (deprecated)"),
    _never("ff00::/8", "multicast", "RFC 4291 section 2.7"),
)

# RFC 6052 section 2.1. Globally reachable only as far as the IPv4 inside is.
_NAT64_NETWORK: Final = IPv6Network("64:ff9b::/96")
_NAT64: Final = int(_NAT64_NETWORK.network_address) >> 32
_NAT64_LOCAL: Final = int(IPv6Address("64:ff9b:1::")) >> 80
_TRANSLATED: Final = int(IPv6Address("::ffff:0:0:0")) >> 32
_TEREDO: Final = 0x20010000
_6TO4: Final = 0x2002
# RFC 5214 section 6.1: interface id ug00:5efe:IPv4, u and g being the two lowest bits of its first
# octet. The mask leaves these two out.
_ISATAP_MASK: Final = 0xFCFFFFFF
_ISATAP: Final = 0x00005EFE
_LOW_32: Final = 0xFFFFFFFF


@attrs.frozen
class _Flat:
    """Sorted first addresses and, for each, the innermost row from there on (None: no row)."""

    starts: tuple[int, ...]
    blocks: tuple[Block | None, ...]

    def at(self, number: int) -> Block | None:
        return self.blocks[bisect_right(self.starts, number) - 1]


def _flatten(rows: tuple[Block, ...], bits: int) -> _Flat:
    spans = sorted(
        (-network.prefixlen, int(network.network_address), int(network.broadcast_address), row)
        for network, row in ((ip_network(row.network), row) for row in rows)
    )
    edges = {0, 1 << bits}
    for _, first, last, _ in spans:
        edges |= {first, last + 1}
    starts = [start for start, _ in pairwise(sorted(edges))]
    blocks = tuple(
        next((row for _, first, last, row in spans if first <= start <= last), None)
        for start in starts
    )
    return _Flat(tuple(starts), blocks)


_FLAT_4: Final = _flatten(_IPV4, 32)
_FLAT_6: Final = _flatten(_IPV6, 128)


def parse_address(text: str) -> Address | None:
    """The address *text* is, unmapped, or None; a scope id is kept so that it can be refused."""
    try:
        return unmap(ip_address(text))
    except ValueError:
        return None


def unmap(address: Address) -> Address:
    """The IPv4 inside an IPv4-mapped IPv6 address, else *address* itself (RFC 4291, 2.5.5.2)."""
    if isinstance(address, IPv6Address) and address.scope_id is None:
        return address.ipv4_mapped or address
    return address


def block_of(address: Address) -> Block | None:
    """The special-purpose block that *address* lies in, or None when it is global (R10).

    IPv4 inside a NAT64 or ISATAP address decides for it.
    """
    address = unmap(address)
    if isinstance(address, IPv4Address):
        return _FLAT_4.at(int(address))
    number = int(address)
    if number >> 32 == _NAT64:
        return _FLAT_4.at(number & _LOW_32)
    block = _FLAT_6.at(number)
    if block is None and _is_isatap(number):
        return _FLAT_4.at(number & _LOW_32)
    return block


def block_of_network(network: Network) -> Block | None:
    """The one block that holds all of *network*, or None when it touches two or public space."""
    if network.prefixlen == network.max_prefixlen:
        return block_of(network.network_address)
    if isinstance(network, IPv4Network):
        return _row_around(network, _IPV4)
    if _NAT64_NETWORK.subnet_of(network):
        return None
    inner = _nat64_network(network)
    return _row_around(network, _IPV6) if inner is None else _row_around(inner, _IPV4)


def is_never_opened(address: Address) -> Block | None:
    """The row that keeps *address* closed to every entry and switch (R9), or None.

    An IPv6 address is judged itself and for every IPv4 address it can wrap.
    """
    address = unmap(address)
    if isinstance(address, IPv4Address):
        return _only_never(_FLAT_4.at(int(address)))
    number = int(address)
    own = _only_never(_FLAT_6.at(number))
    if own is not None:
        return own
    wrapped = (_only_never(_FLAT_4.at(inner)) for inner in _embedded(number))
    return next((block for block in wrapped if block is not None), None)


def _only_never(block: Block | None) -> Block | None:
    return block if block is not None and block.never else None


def _is_isatap(number: int) -> bool:
    return (number >> 32) & _ISATAP_MASK == _ISATAP


def _embedded(number: int) -> tuple[int, ...]:
    """Every IPv4 address that the IPv6 address *number* carries in a known form."""
    low, high = number & _LOW_32, number >> 32
    found: tuple[int, ...] = ()
    if high in {_NAT64, _TRANSLATED} or (high == 0 and low > 1):
        found = (low,)
    elif number >> 80 == _NAT64_LOCAL:
        found = _nat64_local(number)
    elif number >> 112 == _6TO4:
        found = ((number >> 80) & _LOW_32,)
    elif number >> 96 == _TEREDO:
        # RFC 4380 section 4: server as it is, client with all bits flipped.
        found = ((number >> 64) & _LOW_32, low ^ _LOW_32)
    return (*found, low) if _is_isatap(number) else found


def _nat64_local(number: int) -> tuple[int, ...]:
    """IPv4 in 64:ff9b:1::/48 under each prefix length an operator may have chosen.

    Source: RFC 6052 section 2.2: the octet of bits 64-71 and the suffix are zero, and are skipped.
    """
    found = []
    for prefix in (48, 56, 64):
        before, after = 64 - prefix, prefix - 32
        suffix_bits = 56 - after
        head = (number >> 64) & ((1 << before) - 1)
        tail = (number >> suffix_bits) & ((1 << after) - 1)
        zero_octet = (number >> 56) & 0xFF
        if zero_octet == 0 and number & ((1 << suffix_bits) - 1) == 0 and (head or tail):
            found.append((head << after) | tail)
    low = number & _LOW_32
    return tuple(found) if found and low == 0 else (*found, low)


def _row_around(network: Network, rows: tuple[Block, ...]) -> Block | None:
    """The innermost of *rows* that contains all of *network*, or None."""
    around = [row for row in rows if _contains(ip_network(row.network), network)]
    return max(around, key=_prefix_length, default=None)


def _prefix_length(row: Block) -> int:
    return ip_network(row.network).prefixlen


def _contains(outer: Network, inner: Network) -> bool:
    if isinstance(outer, IPv4Network):
        return isinstance(inner, IPv4Network) and inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and inner.subnet_of(outer)


def _nat64_network(network: IPv6Network) -> IPv4Network | None:
    if network.prefixlen < 96 or int(network.network_address) >> 32 != _NAT64:
        return None
    low = int(network.network_address) & _LOW_32
    return IPv4Network((low, network.prefixlen - 96))
