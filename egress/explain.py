"""The pure steps of one decision, told rule by rule, offline. Pure: looks nothing up.

Every verdict comes from the functions that decide in a run; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import attrs

from egress.address import Address
from egress.allowlist import Allowlist, parse_allowlist
from egress.decision import Allow, Deny, check_answers, check_listed
from egress.errors import AllowlistError, UrlRejected
from egress.policy import AddressPolicy, EgressPolicy, PublicHosts, layered_policy
from egress.url import Target, parse_target

__all__ = (
    "Explanation",
    "LayerVerdict",
    "Outcome",
    "Step",
    "Verdict",
    "explain",
    "explain_connect",
)

Lists: TypeAlias = (
    Allowlist | PublicHosts | Iterable[str] | Mapping[str, Allowlist | Iterable[str] | None]
)
"""One list, parsed or as entries; or several by name, outermost first, None without opinion."""
Answers: TypeAlias = Iterable[Address | str] | Mapping[str, Iterable[Address | str]]
"""The answers of the one lookup, or a table of them by canonical host."""


class Verdict(StrEnum):
    """How the whole decision comes out. The stored words are public."""

    ALLOW = "allow"
    DENY = "deny"
    INVALID = "invalid"
    NEEDS_ANSWERS = "needs_answers"


class Outcome(StrEnum):
    """What one rule said. The stored words are public."""

    PASSED = "passed"
    REFUSED = "refused"
    NOT_APPLICABLE = "not_applicable"
    NOT_REACHED = "not_reached"
    NEEDS_ANSWERS = "needs_answers"


@attrs.frozen(kw_only=True)
class Step:
    """One rule's verdict."""

    rule: str
    title: str
    outcome: Outcome
    detail: str = ""


@attrs.frozen(kw_only=True)
class LayerVerdict:
    """What one of several lists says alone, under the same switches.

    Attributes:
        name: Of the list.
        verdict: As if there were no other list.
        rule: The rule that refuses, or None.
        reason: The word for it, or None.
        entry: The canonical entry that admits it, or None.
        entry_to_add: What to add to this list, or None.
    """

    name: str
    verdict: Verdict
    rule: str | None = None
    reason: str | None = None
    entry: str | None = None
    entry_to_add: str | None = None


@attrs.frozen(kw_only=True)
class Explanation:
    """Every rule's verdict in order.

    Attributes:
        verdict: The whole decision.
        steps: One per rule, in the order they are asked.
        origin: The canonical scheme, host and port; None when the URL is invalid.
        rule: The rule that refuses, or None.
        reason: The word for it, with its row in `egress.reasons`; None when nothing refuses.
        entry: The canonical entry that admits it, or None.
        entry_to_add: The narrowest entry that would admit it; None when none can or is needed.
        addresses: The vetted addresses when it is allowed, else the refused ones.
        layers: What each list says alone, when several were given.
    """

    verdict: Verdict
    steps: tuple[Step, ...]
    origin: str | None = None
    rule: str | None = None
    reason: str | None = None
    entry: str | None = None
    entry_to_add: str | None = None
    addresses: tuple[str, ...] = ()
    layers: tuple[LayerVerdict, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain values, keys as stored."""
        return {
            "verdict": self.verdict.value,
            "origin": self.origin,
            "rule": self.rule,
            "reason": self.reason,
            "entry": self.entry,
            "entry_to_add": self.entry_to_add,
            "addresses": list(self.addresses),
            "layers": [
                {**attrs.asdict(each), "verdict": each.verdict.value} for each in self.layers
            ],
            "steps": [{**attrs.asdict(step), "outcome": step.outcome.value} for step in self.steps],
        }


@attrs.frozen
class _Row:
    """One rule to ask: `key` is unique where `rule` is not."""

    key: str
    rule: str
    title: str


def _row(rule: str, title: str) -> _Row:
    return _Row(rule, rule, title)


# In the order in which they are asked.
_LIST_ROW: Final = _row("R15", "every entry of the list is well formed")
_HOST_ROWS: Final = (
    _row("R2", "the host has a canonical form"),
    _row("R3", "a numeric host is a canonical address"),
)
_POLICY_ROWS: Final = (
    _row("R7", "names and addresses match their own kind of entry"),
    _row("R4", "the host is listed"),
    _row("R5", "or a listed wildcard covers it"),
    _row("R6", "the port is covered"),
    _row("R11", "the lookup has usable answers, and every one passes"),
    _row("R9", "no address is one that is never opened"),
    _row("R10", "no address has a scope, and global ones pass"),
    _row("R8", "other addresses are listed or exempt"),
)
_URL_ROWS: Final = (
    _LIST_ROW,
    _row("R1", "the text is an absolute http(s) URL"),
    *_HOST_ROWS,
    _row("R12", "https where the policy asks for it"),
    *_POLICY_ROWS,
)
_FORM, _TLS = "form", "tls"
_CONNECT_ROWS: Final = (
    _LIST_ROW,
    _Row(_FORM, "R13", "the request is CONNECT host:port"),
    *_HOST_ROWS,
    *_POLICY_ROWS,
    _Row(_TLS, "R13", "on port 443 the TLS client asks for the same host"),
)
_LITERAL_SKIPS: Final = frozenset({"R4", "R5", "R11"})
_ADDRESS_RULES: Final = frozenset({"R8", "R9", "R10", "R11"})
_TLS_PORT: Final = 443


def explain(
    url: str,
    allowlist: Lists,
    answers: Answers | None = None,
    *,
    address_policy: AddressPolicy | None = None,
) -> Explanation:
    """Each rule's verdict on *url*, and the entry to add. Total; nothing is looked up.

    Args:
        url: The text as a model or a person gives it.
        allowlist: The parsed list, its entries, or several lists by name.
        answers: What a lookup of the host answered; without it a name stops at R11.
        address_policy: The operator's switches; the default has none on.
    """
    try:
        policy = _policy(allowlist, address_policy)
    except AllowlistError as error:
        return _invalid(_URL_ROWS, "R15", error.reason, str(error))
    try:
        target = parse_target(url)
    except UrlRejected as error:
        return _invalid(_URL_ROWS, error.rule, error.reason, f"{error.reason}: {error.message}")
    return _explained(_URL_ROWS, policy, target, answers)


def explain_connect(
    authority: str,
    allowlist: Lists,
    answers: Answers | None = None,
    *,
    address_policy: AddressPolicy | None = None,
    server_name: str | None = None,
) -> Explanation:
    """Each rule's verdict on `CONNECT authority` at the egress proxy. Total; nothing is looked up.

    Args:
        authority: `host:port` as a client asks for it.
        allowlist: As for `explain`.
        answers: As for `explain`.
        address_policy: As for `explain`.
        server_name: What the TLS client asks for; "" when it asks for none. None takes the host
            of the tunnel, which is what an honest client sends.
    """
    try:
        policy = _policy(allowlist, address_policy)
    except AllowlistError as error:
        return _invalid(_CONNECT_ROWS, "R15", error.reason, str(error))
    target = _tunnel(authority)
    if isinstance(target, str):
        return _invalid(_CONNECT_ROWS, _FORM, target, target)
    told = _explained(_CONNECT_ROWS, policy, target, answers)
    if target.port != _TLS_PORT:
        return _with_tls(told, Outcome.NOT_APPLICABLE, "the tunnel is opaque")
    if told.verdict not in {Verdict.ALLOW, Verdict.NEEDS_ANSWERS}:
        return told
    return _named(told, target, server_name)


def _policy(allowlist: Lists, address: AddressPolicy | None) -> EgressPolicy:
    if isinstance(allowlist, Mapping):
        return layered_policy(allowlist, address=address)
    address = address or AddressPolicy()
    if isinstance(allowlist, Allowlist | PublicHosts):
        return EgressPolicy(allowlist=allowlist, address=address)
    return EgressPolicy(allowlist=parse_allowlist(allowlist), address=address)


def _tunnel(authority: str) -> Target | str:
    """What the proxy reads in the request line, or the reason word of its refusal."""
    # h11 comes with it, which nobody needs who asks about URLs.
    from egress.proxy_head import ConnectRequest, HeadReason, HeadRefused, parse_head

    # Anything else could end the line and begin another.
    if not isinstance(authority, str) or not all("!" <= each <= "~" for each in authority):
        return HeadReason.CONTROL_CHARACTER
    line = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
    match parse_head(line.encode("ascii")):
        case ConnectRequest(target=target):
            return target
        case HeadRefused(reason=reason, detail=detail):
            return f"{reason}: {detail}" if detail else str(reason)
    return HeadReason.METHOD


def _named(told: Explanation, target: Target, server_name: str | None) -> Explanation:
    from egress.client_hello import Hello, check_hello

    if server_name is None:
        if told.verdict is Verdict.NEEDS_ANSWERS:
            return told
        return _with_tls(told, Outcome.PASSED, f"if it asks for {target.host}")
    deny = check_hello(target, Hello(server_name=server_name or None))
    # No answer makes up for another name.
    if deny is None:
        return _with_tls(told, Outcome.PASSED, "")
    refused = _with_tls(told, Outcome.REFUSED, str(deny.reason))
    return attrs.evolve(
        refused, verdict=Verdict.DENY, rule=deny.rule, reason=str(deny.reason), addresses=()
    )


def _with_tls(told: Explanation, outcome: Outcome, detail: str) -> Explanation:
    last = attrs.evolve(told.steps[-1], outcome=outcome, detail=detail)
    return attrs.evolve(told, steps=(*told.steps[:-1], last))


def _explained(
    rows: tuple[_Row, ...], policy: EgressPolicy, target: Target, answers: Answers | None
) -> Explanation:
    found = answers.get(target.host) if isinstance(answers, Mapping) else answers
    # Asked once for each list: an iterator would be empty for the second.
    found = None if found is None else tuple(found)
    told = _decided(rows, policy, target, found)
    layers = tuple(
        _alone(layer.name, _decided(rows, _only(policy, layer.allowlist), target, found))
        for layer in policy.layers
    )
    return attrs.evolve(told, layers=layers)


def _only(policy: EgressPolicy, allowlist: Allowlist) -> EgressPolicy:
    return EgressPolicy(allowlist=allowlist, address=policy.address)


def _alone(name: str, told: Explanation) -> LayerVerdict:
    return LayerVerdict(
        name=name,
        verdict=told.verdict,
        rule=told.rule,
        reason=told.reason,
        entry=told.entry,
        entry_to_add=told.entry_to_add,
    )


def _decided(
    rows: tuple[_Row, ...],
    policy: EgressPolicy,
    target: Target,
    found: tuple[Address | str, ...] | None,
) -> Explanation:
    listed = check_listed(policy, target)
    if isinstance(listed, Deny):
        return _denied(rows, target, listed, None)
    if target.is_literal:
        return _allowed(rows, target, listed, listed.addresses)
    if found is None:
        return Explanation(
            verdict=Verdict.NEEDS_ANSWERS,
            steps=_without_answers(rows, listed),
            origin=target.origin,
            entry=listed.entry,
        )
    verdict = check_answers(policy, target, found)
    if isinstance(verdict, Deny):
        return _denied(rows, target, verdict, listed)
    return _allowed(rows, target, listed, verdict.addresses)


def _invalid(rows: tuple[_Row, ...], key: str, reason: str, detail: str) -> Explanation:
    rule = next(row.rule for row in rows if row.key == key)
    return Explanation(
        verdict=Verdict.INVALID,
        steps=_until(rows, key, detail),
        rule=rule,
        reason=str(reason),
    )


def _allowed(
    rows: tuple[_Row, ...], target: Target, listed: Allow, addresses: tuple[Address, ...]
) -> Explanation:
    steps = tuple(
        _step(row, _passed(row, listed, target), _entry_detail(row, listed)) for row in rows
    )
    return Explanation(
        verdict=Verdict.ALLOW,
        steps=steps,
        origin=target.origin,
        entry=listed.entry,
        addresses=tuple(str(address) for address in addresses),
    )


def _denied(
    rows: tuple[_Row, ...], target: Target, deny: Deny, listed: Allow | None
) -> Explanation:
    about = ", ".join((*deny.addresses, *([deny.block] if deny.block else ())))
    return Explanation(
        verdict=Verdict.DENY,
        steps=_until(
            rows,
            deny.rule,
            f"{deny.reason}: {about}" if about else str(deny.reason),
            target,
            listed,
        ),
        origin=target.origin,
        rule=deny.rule,
        reason=str(deny.reason),
        entry=None if listed is None else listed.entry,
        entry_to_add=deny.nearest_entry,
        addresses=deny.addresses,
    )


def _without_answers(rows: tuple[_Row, ...], listed: Allow) -> tuple[Step, ...]:
    return tuple(
        _step(
            row,
            Outcome.NEEDS_ANSWERS
            if row.rule in _ADDRESS_RULES or row.key == _TLS
            else _passed(row, listed, None),
            _entry_detail(row, listed),
        )
        for row in rows
    )


def _until(
    rows: tuple[_Row, ...],
    refusing: str,
    detail: str,
    target: Target | None = None,
    listed: Allow | None = None,
) -> tuple[Step, ...]:
    """All rules up to *refusing* passed, *refusing* refused, the rest was not asked."""
    stop = [row.key for row in rows].index(refusing)
    before = [
        _step(
            row,
            # The apex of a wildcard has no entry of its own.
            Outcome.NOT_APPLICABLE
            if (row.key, refusing) == ("R4", "R5")
            else _passed(row, listed, target),
            "" if listed is None else _entry_detail(row, listed),
        )
        for row in rows[:stop]
    ]
    after = [_step(row, Outcome.NOT_REACHED, "") for row in rows[stop + 1 :]]
    return (*before, _step(rows[stop], Outcome.REFUSED, detail), *after)


def _passed(row: _Row, listed: Allow | None, target: Target | None) -> Outcome:
    """Passed, or without a say: of R4 and R5 only the one that admitted the host has one."""
    if target is not None and target.is_literal and row.rule in _LITERAL_SKIPS:
        return Outcome.NOT_APPLICABLE
    if listed is not None and row.rule in {"R4", "R5"} and row.rule != listed.rule:
        return Outcome.NOT_APPLICABLE
    return Outcome.PASSED


def _entry_detail(row: _Row, listed: Allow) -> str:
    return listed.entry or "" if row.rule == listed.rule else ""


def _step(row: _Row, outcome: Outcome, detail: str) -> Step:
    return Step(rule=row.rule, title=row.title, outcome=outcome, detail=detail)
