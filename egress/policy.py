"""What one run may fetch, as values. Pure.

An `EgressPolicy` says yes only to what its list names. The address policy narrows that; its two
exemptions lift the address check for what the list already admits and add nothing to the list.

Lists come in layers (workspace, task, run): a URL needs an entry in each. `layered_policy` keeps
the layers beside their intersection, so that a denial can say which of them lacks the entry, and
because an intersection written out and parsed again would be slightly wider: `example.org` and
`example.org:443` meet in https on port 443 alone, which the grammar cannot say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Final

import attrs

from egress._host import canonical_host
from egress.address import Address, Block
from egress.allowlist import AddressEntry, Allowlist, SchemePort, parse_allowlist
from egress.errors import AllowlistError, EntryReason, UrlRejected
from egress.url import Target

__all__ = (
    "PUBLIC_HOSTS",
    "AddressPolicy",
    "EgressPolicy",
    "Layer",
    "PublicHosts",
    "layered_policy",
)


_ALLOWED_HOST: Final = "allowed host"


def _canonical_hosts(hosts: Iterable[str]) -> frozenset[str]:
    if isinstance(hosts, str):
        raise AllowlistError(entry=hosts, reason=EntryReason.NOT_A_LIST, kind=_ALLOWED_HOST)
    return frozenset(_canonical(host) for host in hosts)


def _canonical(host: str) -> str:
    if not isinstance(host, str):
        raise AllowlistError(entry=repr(host), reason=EntryReason.NOT_TEXT, kind=_ALLOWED_HOST)
    bracketed = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
    try:
        return canonical_host(bracketed)[0]
    except UrlRejected as error:
        raise AllowlistError(entry=host, reason=EntryReason.HOST, kind=_ALLOWED_HOST) from error


def _switch(value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a switch of the address policy is True or False, nothing that looks so")
    return value


@attrs.frozen(kw_only=True)
class AddressPolicy:
    """The operator's switches of the address check (R8). None of them opens an R9 address.

    Attributes:
        allowed_hosts: Exact canonical hosts whose addresses are not checked.
        allow_private_addresses: Accept every address that is not global.
        https_only: Refuse http at every hop.

    Raises:
        AllowlistError: A host of `allowed_hosts` is malformed.
        TypeError: A switch is not a bool: the text "false" must never switch a check off.
    """

    allowed_hosts: frozenset[str] = attrs.field(default=frozenset(), converter=_canonical_hosts)
    allow_private_addresses: bool = attrs.field(default=False, converter=_switch)
    https_only: bool = attrs.field(default=False, converter=_switch)


@attrs.frozen(kw_only=True)
class Layer:
    """One of the lists that a policy was made from.

    Attributes:
        name: Who wrote it: "workspace", "task", "run".
        allowlist: What it admits.
    """

    name: str
    allowlist: Allowlist


@attrs.frozen
class _PublicEntry:
    """What `PUBLIC_HOSTS` admits by."""

    ports = SchemePort()
    text = "PUBLIC_HOSTS"
    rule = "R4"


@attrs.frozen
class PublicHosts:
    """In the place of a list: every host, on the default port of the scheme.

    The address policy decides alone, so only public addresses are reached. It is no entry and has
    no spelling: a list of texts never means it, and `web:read` takes texts only.
    """

    @property
    def entries(self) -> tuple[str, ...]:
        """Its name."""
        return (_PublicEntry.text,)

    def matching(self, target: Target) -> _PublicEntry | None:
        """What admits *target*, or None when its port is not the default one."""
        return next((each for each in self.covering(target) if _admits(each, target)), None)

    # It covers every target alike; the list that it stands for asks.
    def covering(self, target: Target) -> Iterator[_PublicEntry]:  # noqa: ARG002
        """Itself."""
        yield _PublicEntry()

    # The argument is that of a list's method.
    def has_wildcard_over(self, host: str) -> bool:  # noqa: ARG002
        """False."""
        return False

    def exempting(
        self,
        # The arguments are those of a list's method.
        address: Address,  # noqa: ARG002
        # As above.
        block: Block,  # noqa: ARG002
        # As above: every target alike.
        target: Target | None = None,  # noqa: ARG002
    ) -> Iterator[AddressEntry]:
        """Nothing: it opens no private address (R8)."""
        return iter(())


def _admits(entry: _PublicEntry, target: Target) -> bool:
    return entry.ports.admits(target.scheme, target.port)


PUBLIC_HOSTS: Final = PublicHosts()
"""For operators only, written out: every host with public addresses. A client logs its use."""


@attrs.frozen(kw_only=True)
class EgressPolicy:
    """The parsed rules of one run.

    Attributes:
        allowlist: What is admitted: one list, the intersection of the layers, or `PUBLIC_HOSTS`.
        address: The operator's switches of the address check.
        layers: What the list was intersected from, outermost first; empty when it was not. Only
            denials read them. Made by `layered_policy`.
        unsafe_report_only: Nothing but R9 and unusable answers is blocked: a client tells what it
            would have refused, and fetches it. Everything else that takes a policy enforces it
            all the same, the egress proxy among them.

    Raises:
        TypeError: The list is neither a parsed list nor `PUBLIC_HOSTS`, or a switch is not a bool.
        ValueError: `PUBLIC_HOSTS` with `allow_private_addresses`, which would leave no rule.
    """

    allowlist: Allowlist | PublicHosts
    address: AddressPolicy = attrs.field(factory=AddressPolicy)
    layers: tuple[Layer, ...] = ()
    unsafe_report_only: bool = attrs.field(default=False, converter=_switch)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.allowlist, Allowlist | PublicHosts):
            raise TypeError("a policy takes a parsed list or PUBLIC_HOSTS")
        if isinstance(self.allowlist, PublicHosts) and self.address.allow_private_addresses:
            raise ValueError("PUBLIC_HOSTS and allow_private_addresses together refuse nothing")

    @property
    def takes_entries(self) -> bool:
        """Whether an entry could be added to its list."""
        return isinstance(self.allowlist, Allowlist)


def layered_policy(
    layers: Mapping[str, Allowlist | Iterable[str] | None],
    *,
    address: AddressPolicy | None = None,
    unsafe_report_only: bool = False,
) -> EgressPolicy:
    """The policy that admits what every layer admits.

    Args:
        layers: Name to list or entries, outermost first. None is a layer without an opinion; an
            empty list allows nothing. Without any opinion nothing is allowed.
        address: The operator's switches of the address check.
        unsafe_report_only: See `EgressPolicy`.

    Raises:
        AllowlistError: An entry is malformed; `layer` names its list.
    """
    kept = tuple(
        Layer(name=name, allowlist=_parsed_layer(name, entries))
        for name, entries in layers.items()
        if entries is not None
    )
    lists = [layer.allowlist for layer in kept]
    return EgressPolicy(
        allowlist=reduce(Allowlist.intersect, lists) if lists else parse_allowlist(()),
        address=address or AddressPolicy(),
        layers=kept,
        unsafe_report_only=unsafe_report_only,
    )


def _parsed_layer(name: str, entries: Allowlist | Iterable[str]) -> Allowlist:
    if isinstance(entries, Allowlist):
        return entries
    try:
        return parse_allowlist(entries)
    except AllowlistError as error:
        raise error.in_layer(name) from error
