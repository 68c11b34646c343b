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
from egress.policy import AddressPolicy, EgressPolicy
from egress.url import Target, parse_target

__all__ = ("Explanation", "Outcome", "Step", "Verdict", "explain")

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
class Explanation:
    """Every rule's verdict in order.

    Attributes:
        verdict: The whole decision.
        steps: One per rule, in the order they are asked.
        origin: The canonical scheme, host and port; None when the URL is invalid.
        entry: The canonical entry that admits it, or None.
        entry_to_add: The narrowest entry that would admit it; None when none can or is needed.
        addresses: The vetted addresses when it is allowed, else the refused ones.
    """

    verdict: Verdict
    steps: tuple[Step, ...]
    origin: str | None = None
    entry: str | None = None
    entry_to_add: str | None = None
    addresses: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain values, keys as stored."""
        return {
            "verdict": self.verdict.value,
            "origin": self.origin,
            "entry": self.entry,
            "entry_to_add": self.entry_to_add,
            "addresses": list(self.addresses),
            "steps": [
                {
                    "rule": step.rule,
                    "title": step.title,
                    "outcome": step.outcome.value,
                    "detail": step.detail,
                }
                for step in self.steps
            ],
        }


# In the order in which they are asked.
_RULES: Final = (
    ("R15", "every entry of the list is well formed"),
    ("R1", "the text is an absolute http(s) URL"),
    ("R2", "the host has a canonical form"),
    ("R3", "a numeric host is a canonical address"),
    ("R12", "https where the policy asks for it"),
    ("R7", "names and addresses match their own kind of entry"),
    ("R4", "the host is listed"),
    ("R5", "or a listed wildcard covers it"),
    ("R6", "the port is covered"),
    ("R11", "the lookup has usable answers, and every one passes"),
    ("R9", "no address is one that is never opened"),
    ("R10", "no address has a scope, and global ones pass"),
    ("R8", "other addresses are listed or exempt"),
)
_LITERAL_SKIPS: Final = frozenset({"R4", "R5", "R11"})
_ADDRESS_RULES: Final = frozenset({"R8", "R9", "R10", "R11"})


def explain(
    url: str,
    allowlist: Allowlist | Iterable[str],
    answers: Answers | None = None,
    *,
    address_policy: AddressPolicy | None = None,
) -> Explanation:
    """Each rule's verdict on *url*, and the entry to add. Total; nothing is looked up.

    Args:
        url: The text as a model or a person gives it.
        allowlist: The parsed list or its entries.
        answers: What a lookup of the host answered; without it a name stops at R11.
        address_policy: The operator's switches; the default has none on.
    """
    try:
        parsed = allowlist if isinstance(allowlist, Allowlist) else parse_allowlist(allowlist)
    except AllowlistError as error:
        return Explanation(verdict=Verdict.INVALID, steps=_until("R15", str(error)))
    try:
        target = parse_target(url)
    except UrlRejected as error:
        return Explanation(verdict=Verdict.INVALID, steps=_until(error.rule, error.message))
    policy = EgressPolicy(allowlist=parsed, address=address_policy or AddressPolicy())
    return _explain_target(policy, target, answers)


def _explain_target(policy: EgressPolicy, target: Target, answers: Answers | None) -> Explanation:
    listed = check_listed(policy, target)
    if isinstance(listed, Deny):
        return _denied(target, listed, None)
    if target.is_literal:
        return _allowed(target, listed, listed.addresses)
    found = answers.get(target.host) if isinstance(answers, Mapping) else answers
    if found is None:
        return Explanation(
            verdict=Verdict.NEEDS_ANSWERS,
            steps=_without_answers(),
            origin=target.origin,
            entry=listed.entry,
        )
    verdict = check_answers(policy, target, found)
    if isinstance(verdict, Deny):
        return _denied(target, verdict, listed.entry)
    return _allowed(target, listed, verdict.addresses)


def _allowed(target: Target, listed: Allow, addresses: tuple[Address, ...]) -> Explanation:
    steps = tuple(
        _step(rule, title, _skipped(rule, target), _entry_detail(rule, listed))
        for rule, title in _RULES
    )
    return Explanation(
        verdict=Verdict.ALLOW,
        steps=steps,
        origin=target.origin,
        entry=listed.entry,
        addresses=tuple(str(address) for address in addresses),
    )


def _denied(target: Target, deny: Deny, entry: str | None) -> Explanation:
    detail = f"{deny.reason}: {deny.block}" if deny.block else str(deny.reason)
    return Explanation(
        verdict=Verdict.DENY,
        steps=_until(deny.rule, detail, target),
        origin=target.origin,
        entry=entry,
        entry_to_add=deny.nearest_entry,
        addresses=deny.addresses,
    )


def _without_answers() -> tuple[Step, ...]:
    return tuple(
        _step(rule, title, Outcome.NEEDS_ANSWERS if rule in _ADDRESS_RULES else Outcome.PASSED, "")
        for rule, title in _RULES
    )


def _until(refusing: str, detail: str, target: Target | None = None) -> tuple[Step, ...]:
    """All rules up to *refusing* passed, *refusing* refused, the rest was not asked."""
    order = [rule for rule, _ in _RULES]
    stop = order.index(refusing)
    steps = []
    for place, (rule, title) in enumerate(_RULES):
        if place < stop:
            steps.append(_step(rule, title, _skipped(rule, target), ""))
        elif place == stop:
            steps.append(_step(rule, title, Outcome.REFUSED, detail))
        else:
            steps.append(_step(rule, title, Outcome.NOT_REACHED, ""))
    return tuple(steps)


def _skipped(rule: str, target: Target | None) -> Outcome:
    if target is not None and target.is_literal and rule in _LITERAL_SKIPS:
        return Outcome.NOT_APPLICABLE
    return Outcome.PASSED


def _entry_detail(rule: str, listed: Allow) -> str:
    return listed.entry or "" if rule == listed.rule else ""


def _step(rule: str, title: str, outcome: Outcome, detail: str) -> Step:
    return Step(rule=rule, title=title, outcome=outcome, detail=detail)
