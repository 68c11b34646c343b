"""The per-run allowlist: its grammar, its meaning, its intersection (R4-R7, R15). Pure.

    host            exactly that host, at the scheme's default port (80 for http, 443 for https)
    host:port       exactly that host, that port only          host:*   any port
    *.suffix        every strict subdomain, never the apex; takes :port and :* as well
    203.0.113.7     that address literal; IPv6 with or without brackets, with a port only inside
    10.0.0.0/8      address literals inside it, every port; IPv6 too

An empty list allows nothing. One malformed entry refuses the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from types import MappingProxyType
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

import attrs

from egress._host import Address, canonical_host
from egress.address import Block, Network, block_of_network
from egress.errors import AllowlistError, EntryReason, UrlRejected
from egress.url import DEFAULT_PORTS, Target

__all__ = (
    "MAX_ENTRIES",
    "AddressEntry",
    "Allowlist",
    "AnyPort",
    "Entry",
    "HostEntry",
    "OnePort",
    "SchemePort",
    "entry_for",
    "parse_allowlist",
)

MAX_ENTRIES: Final = 10_000
# The longest entry that can be right: a wildcard over a full name with a port.
_MAX_ENTRY_CHARACTERS: Final = 1024
_PREFIX: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\]")


@attrs.frozen
class SchemePort:
    """No port was written: 80 for http, 443 for https."""

    suffix = ""

    def admits(self, scheme: str, port: int) -> bool:
        """Whether *port* is the default of *scheme*."""
        return DEFAULT_PORTS[scheme] == port


@attrs.frozen
class AnyPort:
    """`:*` was written, or a CIDR."""

    suffix = ":*"

    # The three kinds of ports answer one question with one signature; this one needs no facts.
    def admits(self, scheme: str, port: int) -> bool:  # noqa: ARG002
        """True."""
        return True


@attrs.frozen
class OnePort:
    """`:port` was written.

    Attributes:
        number: The port.
        scheme_default_only: Set by intersection only: `example.org` and `example.org:443` meet in
            port 443 of https. The entry is written `example.org:443`, yet does not admit http on
            that port, for one of the two sides does not.
    """

    number: int
    scheme_default_only: bool = False

    def admits(self, scheme: str, port: int) -> bool:
        """Whether *port* is this one."""
        if port != self.number:
            return False
        return not self.scheme_default_only or DEFAULT_PORTS[scheme] == port

    @property
    def suffix(self) -> str:
        """What the canonical entry ends with."""
        return f":{self.number}"


Ports: TypeAlias = SchemePort | AnyPort | OnePort
"""Which ports an entry covers."""


@attrs.frozen
class HostEntry:
    """`host` (R4) or, with `wildcard`, `*.host` (R5)."""

    host: str
    ports: Ports
    wildcard: bool = False

    @property
    def text(self) -> str:
        """The canonical entry."""
        return f"{'*.' if self.wildcard else ''}{self.host}{self.ports.suffix}"

    @property
    def rule(self) -> str:
        """The rule by which it admits."""
        return "R5" if self.wildcard else "R4"


@attrs.frozen
class AddressEntry:
    """A literal or a CIDR (R7).

    Attributes:
        network: The addresses it covers; one address for a literal.
        ports: Always any port for a CIDR.
        is_cidr: Whether it is written with a prefix.
        block: The special-purpose block it lies wholly inside, if any: inside that block it
            exempts from the address check (R8). None when either side of an intersection lacks
            that right, so that an intersection opens no more than each side.
    """

    network: Network
    ports: Ports
    is_cidr: bool
    block: Block | None

    @property
    def text(self) -> str:
        """The canonical entry."""
        if self.is_cidr:
            return str(self.network)
        address = str(self.network.network_address)
        bracketed = f"[{address}]" if ":" in address and self.ports.suffix else address
        return bracketed + self.ports.suffix

    @property
    def rule(self) -> str:
        """The rule by which it admits."""
        return "R7"


Entry: TypeAlias = HostEntry | AddressEntry
"""One parsed entry."""

_HostKey: TypeAlias = tuple[str, bool]
_NetworkKey: TypeAlias = tuple[int, int, int]
_E = TypeVar("_E", HostEntry, AddressEntry)


@attrs.frozen
class _Bucket(Generic[_E]):
    """The entries of one host or network, found by port: a list may hold thousands of them.

    Attributes:
        entries: All, in order.
        general: Those without a port of their own.
        by_port: The others.
    """

    entries: tuple[_E, ...]
    general: tuple[_E, ...]
    by_port: Mapping[int, tuple[_E, ...]]

    def first(self, scheme: str, port: int) -> _E | None:
        """The first entry that admits *port* for *scheme*; every decision asks this."""
        for entry in self.general:
            if entry.ports.admits(scheme, port):
                return entry
        for entry in self.by_port.get(port, ()):
            if entry.ports.admits(scheme, port):
                return entry
        return None

    def admitting(self, scheme: str, port: int) -> Iterator[_E]:
        """The entries that admit *port* for *scheme*."""
        for entry in self.general:
            if entry.ports.admits(scheme, port):
                yield entry
        for entry in self.by_port.get(port, ()):
            if entry.ports.admits(scheme, port):
                yield entry

    def meeting(self, ports: Ports) -> Iterator[_E]:
        """The entries that may have a port in common with *ports*."""
        if isinstance(ports, AnyPort):
            yield from self.entries
            return
        yield from self.general
        wanted = (ports.number,) if isinstance(ports, OnePort) else DEFAULT_PORTS.values()
        for port in wanted:
            yield from self.by_port.get(port, ())


_NO_PORTS: Final[Mapping[int, tuple[Any, ...]]] = MappingProxyType({})


def _bucket(entries: Sequence[_E]) -> _Bucket[_E]:
    general = tuple(entry for entry in entries if not isinstance(entry.ports, OnePort))
    if len(general) == len(entries):
        return _Bucket(general, general, _NO_PORTS)
    by_port: dict[int, list[_E]] = {}
    for entry in entries:
        if isinstance(entry.ports, OnePort):
            by_port.setdefault(entry.ports.number, []).append(entry)
    found = {port: tuple(same) for port, same in by_port.items()}
    return _Bucket(tuple(entries), general, MappingProxyType(found))


@attrs.frozen(eq=False)
class Allowlist:
    """A parsed list. Two lists are equal when they hold equal entries, in whatever order."""

    _parsed: frozenset[Entry]
    _hosts: Mapping[_HostKey, _Bucket[HostEntry]]
    _networks: Mapping[_NetworkKey, _Bucket[AddressEntry]]
    _prefixes: tuple[tuple[int, int], ...]

    @property
    def entries(self) -> tuple[str, ...]:
        """The canonical texts, sorted, each once."""
        return tuple(sorted({entry.text for entry in self._parsed}))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Allowlist):
            return NotImplemented
        return self._parsed == other._parsed

    def __hash__(self) -> int:
        return hash(self._parsed)

    def __bool__(self) -> bool:
        return bool(self._parsed)

    def matching(self, target: Target) -> Entry | None:
        """The entry that admits *target*, or None. Needs no DNS (R7)."""
        # The common case, a listed host, without walking up its suffixes.
        listed = self._hosts.get((target.host, False))
        entry: Entry | None = listed.first(target.scheme, target.port) if listed else None
        if entry is not None:
            return entry
        for bucket in self._around(target):
            entry = bucket.first(target.scheme, target.port)
            if entry is not None:
                return entry
        return None

    def covering(self, target: Target) -> Iterator[Entry]:
        """The entries whose hosts include the target's, whatever their ports."""
        for bucket in self._around(target):
            yield from bucket.entries

    def _around(self, target: Target) -> Iterator[_Bucket[HostEntry] | _Bucket[AddressEntry]]:
        if target.address is not None:
            return self._around_address(target.address)
        return self._around_host(target.host)

    def has_wildcard_over(self, host: str) -> bool:
        """Whether *host* is the apex of a listed wildcard, which does not cover it (R5)."""
        return (host, True) in self._hosts

    def around(self, entry: Entry) -> Iterator[Entry]:
        """The entries whose hosts include all hosts of *entry*, and that may share a port with it.

        The entry itself is among them.
        """
        if isinstance(entry, HostEntry):
            for bucket in self._around_host(entry.host, wildcard=entry.wildcard):
                yield from bucket.meeting(entry.ports)
            return
        network = entry.network
        for held in self._around_network(
            network.version, int(network.network_address), network.prefixlen
        ):
            yield from held.meeting(entry.ports)

    def exempting(
        self, address: Address, block: Block, target: Target | None = None
    ) -> Iterator[AddressEntry]:
        """The entries that accept *address* although it lies in the non-global *block* (R8).

        With *target* only those that admit its port.
        """
        for bucket in self._around_address(address):
            entries = (
                bucket.entries if target is None else bucket.admitting(target.scheme, target.port)
            )
            for entry in entries:
                if entry.block == block:
                    yield entry

    def intersect(self, other: Allowlist) -> Allowlist:
        """The list that admits what both admit. Commutative, and never wider than either."""
        met = {*self._narrowed_by(other), *other._narrowed_by(self)}
        return _build(_without_covered(met))

    def _narrowed_by(self, other: Allowlist) -> Iterator[Entry]:
        for entry in self._parsed:
            for wider in other.around(entry):
                ports = _ports_both(entry.ports, wider.ports)
                if ports is not None:
                    yield _narrow(entry, wider, ports)

    def _around_host(self, host: str, *, wildcard: bool = False) -> Iterator[_Bucket[HostEntry]]:
        own = self._hosts.get((host, wildcard))
        if own is not None:
            yield own
        suffix = host
        while (dot := suffix.find(".")) >= 0:
            suffix = suffix[dot + 1 :]
            over = self._hosts.get((suffix, True))
            if over is not None:
                yield over

    def _around_address(self, address: Address) -> Iterator[_Bucket[AddressEntry]]:
        return self._around_network(address.version, int(address), address.max_prefixlen)

    def _around_network(
        self, version: int, first: int, prefix: int
    ) -> Iterator[_Bucket[AddressEntry]]:
        for entry_version, length in self._prefixes:
            if entry_version == version and length <= prefix:
                kept = first >> (_BITS[version] - length)
                found = self._networks.get((version, length, kept))
                if found is not None:
                    yield found


_BITS: Final[Mapping[int, int]] = {4: 32, 6: 128}


def parse_allowlist(entries: Iterable[str]) -> Allowlist:
    """The list that *entries* mean; the empty one allows nothing.

    Raises:
        AllowlistError: R15. Names the first bad entry and why; nothing of the list is used.
    """
    if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
        raise AllowlistError(entry=str(entries), reason=EntryReason.NOT_A_LIST)
    parsed: set[Entry] = set()
    for number, entry in enumerate(entries):
        if number >= MAX_ENTRIES:
            raise AllowlistError(entry="", reason=EntryReason.TOO_MANY)
        parsed.add(_parse_entry(entry))
    return _build(parsed)


def entry_for(target: Target) -> str:
    """The narrowest entry that would admit *target* (R4): what a denial names."""
    if target.port == DEFAULT_PORTS[target.scheme]:
        return target.host
    return target.authority


def _build(parsed: Iterable[Entry]) -> Allowlist:
    held = frozenset(parsed)
    hosts: dict[_HostKey, list[HostEntry]] = {}
    networks: dict[_NetworkKey, list[AddressEntry]] = {}
    for entry in sorted(held, key=_order):
        if isinstance(entry, HostEntry):
            hosts.setdefault((entry.host, entry.wildcard), []).append(entry)
        else:
            networks.setdefault(_network_key(entry.network), []).append(entry)
    return Allowlist(
        held,
        MappingProxyType({key: _bucket(entries) for key, entries in hosts.items()}),
        MappingProxyType({key: _bucket(entries) for key, entries in networks.items()}),
        tuple(sorted({key[:2] for key in networks}, reverse=True)),
    )


def _order(entry: Entry) -> tuple[str, str]:
    # The text alone is not unique after an intersection; the verdict must not depend on set order.
    return entry.text, repr(entry)


def _network_key(network: Network) -> _NetworkKey:
    kept = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
    return network.version, network.prefixlen, kept


def _ports_both(one: Ports, two: Ports) -> Ports | None:
    """The ports that both cover, or None."""
    if one == two or isinstance(two, AnyPort):
        return one
    if isinstance(one, AnyPort):
        return two
    if isinstance(one, OnePort) and isinstance(two, OnePort):
        return OnePort(one.number, scheme_default_only=True) if one.number == two.number else None
    exact = one if isinstance(one, OnePort) else two
    if isinstance(exact, OnePort) and exact.number in DEFAULT_PORTS.values():
        return OnePort(exact.number, scheme_default_only=True)
    return None


def _narrow(entry: Entry, wider: Entry, ports: Ports) -> Entry:
    if isinstance(entry, HostEntry):
        return attrs.evolve(entry, ports=ports)
    right = entry.block if isinstance(wider, AddressEntry) and wider.block == entry.block else None
    # Only a CIDR covers every port in this grammar; a narrowed one is a literal with ports.
    is_cidr = entry.is_cidr and isinstance(ports, AnyPort)
    return attrs.evolve(entry, ports=ports, block=right, is_cidr=is_cidr)


def _without_covered(entries: set[Entry]) -> set[Entry]:
    """*entries* without those that another of them covers in hosts, ports and exemption."""
    whole = _build(entries)
    return {
        entry
        for entry in entries
        if not any(_covers(wider, entry) for wider in whole.around(entry) if wider != entry)
    }


def _covers(wider: Entry, entry: Entry) -> bool:
    if not _ports_cover(wider.ports, entry.ports):
        return False
    if isinstance(wider, AddressEntry) and isinstance(entry, AddressEntry):
        if entry.block not in {None, wider.block}:
            return False
        # Two spellings of one set (10.0.0.1/32 and 10.0.0.1:*): keep the CIDR, not neither.
        same = (wider.network, wider.ports, wider.block) == (
            entry.network,
            entry.ports,
            entry.block,
        )
        return not same or wider.is_cidr
    return True


def _ports_cover(wider: Ports, ports: Ports) -> bool:
    if wider == ports or isinstance(wider, AnyPort):
        return True
    if not isinstance(ports, OnePort):
        return False
    if isinstance(wider, OnePort):
        return wider.number == ports.number and not wider.scheme_default_only
    return ports.scheme_default_only


def _parse_entry(entry: str) -> Entry:
    _admit_entry(entry)
    if "/" in entry:
        return _parse_cidr(entry)
    host_text, port_text = _split_port(entry)
    ports = _parse_ports(entry, port_text)
    if "*" in host_text:
        return _parse_wildcard(entry, host_text, ports)
    return _parse_host(entry, host_text, ports)


# What must not stand anywhere in an entry, looked for in this order.
_REFUSED: Final = (
    ("://", EntryReason.SCHEME),
    ("%", EntryReason.PERCENT),
    ("@", EntryReason.CREDENTIALS),
    ("?", EntryReason.PATH),
    ("#", EntryReason.PATH),
)


def _admit_entry(entry: str) -> None:
    if not isinstance(entry, str):
        raise AllowlistError(entry=repr(entry), reason=EntryReason.NOT_TEXT)
    if not entry:
        _refuse(entry, EntryReason.EMPTY)
    if len(entry) > _MAX_ENTRY_CHARACTERS:
        _refuse(entry, EntryReason.TOO_LONG)
    if any(each.isspace() for each in entry):
        _refuse(entry, EntryReason.WHITESPACE)
    if _CONTROL.search(entry):
        _refuse(entry, EntryReason.CONTROL_CHARACTER)
    for text, reason in _REFUSED:
        if text in entry:
            _refuse(entry, reason)


def _split_port(entry: str) -> tuple[str, str | None]:
    """Host and port text; several colons without brackets are an IPv6 address (R15)."""
    if entry.startswith("["):
        inner, bracket, rest = entry.partition("]")
        if rest and not rest.startswith(":"):
            _refuse(entry, EntryReason.HOST)
        return inner + bracket, rest[1:] if rest else None
    if entry.count(":") > 1:
        return f"[{entry}]", None
    host, colon, port = entry.partition(":")
    return host, port if colon else None


def _parse_ports(entry: str, text: str | None) -> Ports:
    if text is None:
        return SchemePort()
    if text == "*":
        return AnyPort()
    port = int(text) if _PORT.fullmatch(text) else 0
    if not 1 <= port <= 65535:
        _refuse(entry, EntryReason.PORT)
    return OnePort(port)


def _parse_wildcard(entry: str, host_text: str, ports: Ports) -> Entry:
    suffix = host_text.removeprefix("*.")
    if "*" in suffix:
        _refuse(entry, EntryReason.WILDCARD)
    host, address = _canonical(entry, suffix)
    # One label would open a whole top-level domain; an address has no subdomains.
    if address is not None or "." not in host:
        _refuse(entry, EntryReason.WILDCARD)
    return HostEntry(host, ports, wildcard=True)


def _parse_host(entry: str, host_text: str, ports: Ports) -> Entry:
    host, address = _canonical(entry, host_text)
    if address is None:
        return HostEntry(host, ports)
    network = _network_of(address)
    return AddressEntry(network, ports, is_cidr=False, block=block_of_network(network))


def _parse_cidr(entry: str) -> Entry:
    text, _, prefix_text = entry.partition("/")
    address = _cidr_address(entry, text)
    prefix = int(prefix_text) if _PREFIX.fullmatch(prefix_text) else -1
    if not 0 <= prefix <= address.max_prefixlen:
        _refuse(entry, EntryReason.CIDR_PREFIX)
    network = _network(int(address), prefix, address.version)
    if network.network_address != address:
        _refuse(entry, EntryReason.CIDR_HOST_BITS, hint=str(network))
    return AddressEntry(network, AnyPort(), is_cidr=True, block=block_of_network(network))


def _cidr_address(entry: str, text: str) -> Address:
    if not text or "[" in text or "*" in text:
        _refuse(entry, EntryReason.CIDR_ADDRESS)
    try:
        _, address = canonical_host(f"[{text}]" if ":" in text else text)
    except UrlRejected as error:
        reason = EntryReason.CIDR_ADDRESS if _looks_like_address(text) else EntryReason.PATH
        raise AllowlistError(entry=entry, reason=reason) from error
    if address is None:
        _refuse(entry, EntryReason.CIDR_ADDRESS if _looks_like_address(text) else EntryReason.PATH)
    if ":" in text and address.version == 4:
        _refuse(entry, EntryReason.CIDR_MAPPED)
    return address


def _looks_like_address(text: str) -> bool:
    return not text.strip("0123456789.:abcdefABCDEF")


def _canonical(entry: str, text: str) -> tuple[str, Address | None]:
    try:
        return canonical_host(text)
    except UrlRejected as error:
        raise AllowlistError(entry=entry, reason=EntryReason.HOST) from error


def _network_of(address: Address) -> Network:
    return _network(int(address), address.max_prefixlen, address.version)


def _network(number: int, prefix: int, version: int) -> Network:
    bits = _BITS[version]
    first = number >> (bits - prefix) << (bits - prefix)
    return IPv4Network((first, prefix)) if version == 4 else IPv6Network((first, prefix))


def _refuse(entry: str, reason: EntryReason, *, hint: str | None = None) -> NoReturn:
    raise AllowlistError(entry=entry, reason=reason, hint=hint)
