"""May this target be fetched, and from which addresses (R4-R11). Pure.

The order of one decision is: list (no I/O), lookup, address policy. Each function answers one
step; what is not allowed in so many words is denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import attrs

from egress.address import Address, Block, block_of, is_never_opened, parse_address, unmap
from egress.allowlist import Allowlist, entry_for, parse_allowlist
from egress.policy import AddressPolicy, EgressPolicy, PublicHosts
from egress.url import Target

__all__ = (
    "Allow",
    "Deny",
    "DenyReason",
    "check_address",
    "check_answers",
    "check_listed",
    "enforced",
)

# Real answers hold a handful; RFC 1035 messages over TCP could hold thousands.
MAX_ANSWERS: Final = 256


class DenyReason(StrEnum):
    """Why the answer is no. The stored words are public."""

    HOST_NOT_LISTED = "host_not_listed"
    APEX_NOT_COVERED = "apex_not_covered"
    PORT_NOT_LISTED = "port_not_listed"
    ADDRESS_NOT_LISTED = "address_not_listed"
    ADDRESS_NOT_GLOBAL = "address_not_global"
    NEVER_OPENED = "never_opened"
    METADATA_ADDRESS = "metadata_address"
    SCOPED_ADDRESS = "scoped_address"
    NO_ANSWER = "no_answer"
    MALFORMED_ANSWER = "malformed_answer"
    TOO_MANY_ANSWERS = "too_many_answers"
    ANSWER_NOT_THE_LITERAL = "answer_not_the_literal"
    HTTPS_ONLY = "https_only"
    # Of the egress proxy (R13).
    NOT_TLS = "not_tls"
    HELLO_TOO_LARGE = "hello_too_large"
    SNI_MISSING = "sni_missing"
    SNI_MISMATCH = "sni_mismatch"
    OWN_LISTENER = "own_listener"
    DENIED_BY_PROXY = "denied_by_proxy"


@attrs.frozen(kw_only=True)
class Allow:
    """Yes.

    Attributes:
        rule: The rule that said so.
        entry: The canonical entry or switch it rests on, or None.
        addresses: The vetted addresses, in the order of the answers, each once.
    """

    rule: str
    entry: str | None = None
    addresses: tuple[Address, ...] = ()


@attrs.frozen(kw_only=True)
class Deny:
    """No.

    Attributes:
        rule: The first rule that refused.
        reason: The word for it.
        nearest_entry: The narrowest entry that would have admitted it; None when none can.
        addresses: The addresses that were refused, as text.
        block: What the refused address is for, from the table of `egress.address`.
        layers: Names of the layers that lack the entry; empty when there are none.
    """

    rule: str
    reason: DenyReason
    nearest_entry: str | None = None
    addresses: tuple[str, ...] = ()
    block: str | None = None
    layers: tuple[str, ...] = ()


def check_listed(policy: EgressPolicy, target: Target) -> Allow | Deny:
    """Decide on the list, and for a literal host on its address. Causes no lookup (R4-R9).

    Args:
        policy: Parsed rules of this run.
        target: What is to be fetched.

    Returns:
        `Allow` with the entry that matched, or `Deny` with the first rule that refused.
    """
    if policy.address.https_only and target.scheme != "https":
        return Deny(rule="R12", reason=DenyReason.HTTPS_ONLY)
    entry = policy.allowlist.matching(target)
    if entry is None:
        return _not_listed(policy, target)
    if target.address is None:
        return Allow(rule=entry.rule, entry=entry.text)
    verdict = check_address(policy, target.address, host=target.host, target=target)
    if isinstance(verdict, Deny):
        return verdict
    return Allow(rule=entry.rule, entry=entry.text, addresses=(target.address,))


def check_address(
    policy: EgressPolicy, address: Address | str, *, host: str, target: Target | None = None
) -> Allow | Deny:
    """Decide whether a connection to *address* may be opened for *host* (R8-R10).

    Args:
        policy: Parsed rules of this run.
        address: IPv4 or IPv6, an object or text; text that is no address is refused.
        host: The canonical host that is fetched; `allowed_hosts` is about it.
        target: Where given, a literal entry exempts on its own ports only (R6 with R8): to list
            `10.0.0.5:8080` must not open port 22 of that address through a listed name.

    Returns:
        `Allow`, or `Deny` with the first rule that refused. IPv4 inside IPv6 is judged as both.

    Source: RFC 6890 registries; RFC 6052 section 2.2 for embedded forms.
    """
    number = _as_address(address)
    if number is None:
        return Deny(rule="R11", reason=DenyReason.MALFORMED_ANSWER)
    if isinstance(number, IPv6Address) and number.scope_id is not None:
        return _deny("R10", DenyReason.SCOPED_ADDRESS, number)
    closed = is_never_opened(number)
    if closed is not None:
        reason = DenyReason.METADATA_ADDRESS if closed.metadata else DenyReason.NEVER_OPENED
        return _deny("R9", reason, number, block=closed)
    block = block_of(number)
    if block is None:
        return Allow(rule="R10", addresses=(number,))
    exemption = _exemption(policy, number, block, host=host, target=target)
    if exemption is not None:
        return Allow(rule="R8", entry=exemption, addresses=(number,))
    return _not_global(policy, number, block, target)


def check_answers(
    policy: EgressPolicy, target: Target, addresses: Iterable[Address | str]
) -> Allow | Deny:
    """Decide on the answers of the one lookup of a hop (R11): every one must pass.

    No answer is never a yes. For a literal target the only answer is the literal.
    """
    vetted: dict[Address, None] = {}
    for count, address in enumerate(addresses):
        if count >= MAX_ANSWERS:
            return Deny(rule="R11", reason=DenyReason.TOO_MANY_ANSWERS)
        verdict = check_address(policy, address, host=target.host, target=target)
        if isinstance(verdict, Deny):
            return verdict
        vetted.update(dict.fromkeys(verdict.addresses))
    if not vetted:
        return Deny(rule="R11", reason=DenyReason.NO_ANSWER)
    if target.address is not None and set(vetted) != {target.address}:
        return Deny(rule="R11", reason=DenyReason.ANSWER_NOT_THE_LITERAL)
    return Allow(rule="R11", addresses=tuple(vetted))


# What an operator's list or switch could have allowed. Everything else stays closed when the policy
# only reports: R9, scopes, and answers that name no address to dial.
_OPENABLE: Final = frozenset(
    {
        DenyReason.HOST_NOT_LISTED,
        DenyReason.APEX_NOT_COVERED,
        DenyReason.PORT_NOT_LISTED,
        DenyReason.ADDRESS_NOT_LISTED,
        DenyReason.ADDRESS_NOT_GLOBAL,
        DenyReason.HTTPS_ONLY,
    }
)
_LENIENT: Final = EgressPolicy(
    allowlist=parse_allowlist(()), address=AddressPolicy(allow_private_addresses=True)
)


def enforced(
    policy: EgressPolicy,
    target: Target,
    deny: Deny,
    *,
    addresses: Iterable[Address | str] | None = None,
) -> Allow | Deny:
    """What becomes of *deny*: itself, unless the policy only reports and could have allowed it.

    Args:
        policy: Parsed rules of this run.
        target: What was denied.
        deny: By `check_listed`, or by `check_answers` with *addresses*.
        addresses: All answers of the lookup, after `check_answers` denied.

    Returns:
        `Allow` when it is to be told and fetched all the same. R9 is never passed over: an
        address that nothing opens is denied in whatever place of the answers it stands.
    """
    if not policy.unsafe_report_only or deny.reason not in _OPENABLE:
        return deny
    lenient: Allow | Deny = Allow(rule=deny.rule)
    if addresses is not None:
        lenient = check_answers(_LENIENT, target, addresses)
    elif target.address is not None:
        lenient = check_address(_LENIENT, target.address, host=target.host)
    if isinstance(lenient, Deny):
        return lenient
    return Allow(rule=deny.rule, entry="unsafe_report_only", addresses=lenient.addresses)


def _as_address(address: object) -> Address | None:
    """The address a resolver means; total, and a number or packed bytes are none."""
    if isinstance(address, str):
        return parse_address(address)
    # Not their subclasses: an `IPv4Interface` is written with a prefix.
    if type(address) is IPv4Address or type(address) is IPv6Address:
        return unmap(address)
    return None


def _exemption(
    policy: EgressPolicy, address: Address, block: Block, *, host: str, target: Target | None
) -> str | None:
    """What lets a non-global address pass (R8), or None."""
    if host in policy.address.allowed_hosts:
        return "allowed_hosts"
    if policy.address.allow_private_addresses:
        return "allow_private_addresses"
    return _exempting_entry(policy.allowlist, address, block, target)


def _exempting_entry(
    allowlist: Allowlist | PublicHosts, address: Address, block: Block, target: Target | None
) -> str | None:
    entry = next(allowlist.exempting(address, block, target), None)
    return None if entry is None else entry.text


def _not_global(
    policy: EgressPolicy, address: Address, block: Block, target: Target | None
) -> Deny:
    lacking = [
        layer.name
        for layer in policy.layers
        if _exempting_entry(layer.allowlist, address, block, target) is None
    ]
    nearest = _address_entry(address, target) if policy.takes_entries else None
    deny = _deny("R8", DenyReason.ADDRESS_NOT_GLOBAL, address, block=block, nearest=nearest)
    return attrs.evolve(deny, layers=tuple(lacking))


def _address_entry(address: Address, target: Target | None) -> str:
    """The literal entry that would exempt *address* where *target* needs it."""
    if target is None:
        return str(address)
    return entry_for(attrs.evolve(target, host=str(address), address=address))


def _not_listed(policy: EgressPolicy, target: Target) -> Deny:
    lists = [layer.allowlist for layer in policy.layers if not layer.allowlist.matching(target)]
    # Lists that have nothing in common say less than the outermost one that lacks the entry.
    rule, reason = _why_not_listed(lists[0] if lists else policy.allowlist, target)
    closed = target.address is not None and is_never_opened(target.address) is not None
    # No entry opens an R9 address, so none is named.
    nearest = None if closed or not policy.takes_entries else entry_for(target)
    return Deny(
        rule=rule,
        reason=reason,
        nearest_entry=nearest,
        addresses=(target.host,) if target.is_literal else (),
        layers=_refusing(policy, target) if nearest is not None else (),
    )


def _refusing(policy: EgressPolicy, target: Target) -> tuple[str, ...]:
    """The layers that would refuse *target* alone: each of them needs the entry."""
    alone = (
        (layer.name, EgressPolicy(allowlist=layer.allowlist, address=policy.address))
        for layer in policy.layers
    )
    return tuple(name for name, each in alone if isinstance(check_listed(each, target), Deny))


def _why_not_listed(allowlist: Allowlist | PublicHosts, target: Target) -> tuple[str, DenyReason]:
    if next(iter(allowlist.covering(target)), None) is not None:
        return "R6", DenyReason.PORT_NOT_LISTED
    if target.is_literal:
        return "R7", DenyReason.ADDRESS_NOT_LISTED
    if allowlist.has_wildcard_over(target.host):
        return "R5", DenyReason.APEX_NOT_COVERED
    return "R4", DenyReason.HOST_NOT_LISTED


def _deny(
    rule: str,
    reason: DenyReason,
    address: Address,
    *,
    block: Block | None = None,
    nearest: str | None = None,
) -> Deny:
    return Deny(
        rule=rule,
        reason=reason,
        nearest_entry=nearest,
        addresses=(str(address),),
        block=block.name if block is not None else None,
    )
