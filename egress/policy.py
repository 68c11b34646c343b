"""What one run may fetch, as values. Pure.

An `EgressPolicy` says yes only to what its list names. The address policy narrows that; its two
exemptions lift the address check for what the list already admits and add nothing to the list.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from egress._host import canonical_host
from egress.allowlist import Allowlist
from egress.errors import AllowlistError, EntryReason, UrlRejected

__all__ = ("AddressPolicy", "EgressPolicy")


def _canonical_hosts(hosts: Iterable[str]) -> frozenset[str]:
    if isinstance(hosts, str):
        raise AllowlistError(entry=hosts, reason=EntryReason.NOT_A_LIST)
    return frozenset(_canonical(host) for host in hosts)


def _canonical(host: str) -> str:
    if not isinstance(host, str):
        raise AllowlistError(entry=repr(host), reason=EntryReason.NOT_TEXT)
    bracketed = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
    try:
        return canonical_host(bracketed)[0]
    except UrlRejected as error:
        raise AllowlistError(entry=host, reason=EntryReason.HOST) from error


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
class EgressPolicy:
    """The parsed rules of one run."""

    allowlist: Allowlist
    address: AddressPolicy = attrs.field(factory=AddressPolicy)
