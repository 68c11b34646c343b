"""May this target be fetched, and from which addresses (R4-R11). Pure.

The order of one decision is: list (no I/O), lookup, address policy. Each function answers one
step; what is not allowed in so many words is denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv6Address
from typing import Final

import attrs

from egress.address import Address, Block, block_of, is_never_opened, parse_address, unmap
from egress.allowlist import entry_for
from egress.policy import EgressPolicy
from egress.url import Target

__all__ = (
    "Allow",
    "Deny",
    "DenyReason",
    "check_address",
    "check_answers",
    "check_listed",
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
    """

    rule: str
    reason: DenyReason
    nearest_entry: str | None = None
    addresses: tuple[str, ...] = ()
    block: str | None = None


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
    nearest = _address_entry(number, target)
    return _deny("R8", DenyReason.ADDRESS_NOT_GLOBAL, number, block=block, nearest=nearest)


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


def _as_address(address: Address | str) -> Address | None:
    return parse_address(address) if isinstance(address, str) else unmap(address)


def _exemption(
    policy: EgressPolicy, address: Address, block: Block, *, host: str, target: Target | None
) -> str | None:
    """What lets a non-global address pass (R8), or None."""
    if host in policy.address.allowed_hosts:
        return "allowed_hosts"
    if policy.address.allow_private_addresses:
        return "allow_private_addresses"
    for entry in policy.allowlist.exempting(address, block):
        if target is None or entry.ports.admits(target.scheme, target.port):
            return entry.text
    return None


def _address_entry(address: Address, target: Target | None) -> str:
    """The literal entry that would exempt *address* where *target* needs it."""
    if target is None:
        return str(address)
    return entry_for(attrs.evolve(target, host=str(address), address=address))


def _not_listed(policy: EgressPolicy, target: Target) -> Deny:
    rule, reason = _why_not_listed(policy, target)
    addresses = (target.host,) if target.is_literal else ()
    closed = target.address is not None and is_never_opened(target.address) is not None
    # No entry opens an R9 address, so none is named.
    nearest = None if closed else entry_for(target)
    return Deny(rule=rule, reason=reason, nearest_entry=nearest, addresses=addresses)


def _why_not_listed(policy: EgressPolicy, target: Target) -> tuple[str, DenyReason]:
    if next(policy.allowlist.covering(target), None) is not None:
        return "R6", DenyReason.PORT_NOT_LISTED
    if target.is_literal:
        return "R7", DenyReason.ADDRESS_NOT_LISTED
    if policy.allowlist.has_wildcard_over(target.host):
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
