"""What a policy would say of recorded calls: pure, offline, and silent on nothing.

A verdict is given where the record holds what decides it. Where it does not (the arguments that a
condition looks at, the host of a read that was admitted, the answers of a lookup), the call is
`unknown`, and `open` says what is missing. Every verdict comes from the functions that decide in a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from egress import Deny, DenyReason, EgressPolicy, Target, UrlRejected, check_address, check_listed
from egress.url import parse_target
from runtime_pack.errors import CallCode
from runtime_pack.inner import frozen
from runtime_pack.label_table import LabelPreset
from runtime_pack.labels import reaches
from runtime_pack.messages import Json
from runtime_pack.policy import ToolRule
from runtime_pack.policy_file import PolicyFile
from runtime_pack.recorded_calls import NetworkDenial, RecordedCall, Was
from runtime_pack.strictness import ApprovalClass, is_stricter
from runtime_pack.tool_aliases import READ_TOOL, original_of

__all__ = ("Now", "Redecided", "Replay", "decider", "replay")

# Neither a list nor a switch of a policy file opens these.
_CLOSED: Final = frozenset(
    {
        DenyReason.NEVER_OPENED,
        DenyReason.METADATA_ADDRESS,
        DenyReason.SCOPED_ADDRESS,
        DenyReason.NO_ANSWER,
        DenyReason.MALFORMED_ANSWER,
        DenyReason.TOO_MANY_ANSWERS,
        DenyReason.ANSWER_NOT_THE_LITERAL,
        DenyReason.NOT_TLS,
        DenyReason.HELLO_TOO_LARGE,
        DenyReason.SNI_MISSING,
        DenyReason.SNI_MISMATCH,
        DenyReason.OWN_LISTENER,
    }
)


class Now(StrEnum):
    """What the policy says by now."""

    ALLOWED = "allowed"
    ASKED = "asked"
    DENIED = "denied"
    UNKNOWN = "unknown"


_BY_POLICY: Final = frozenset({CallCode.POLICY_DENIED, CallCode.POLICY_ERROR})
# How a policy's reasons begin: the layer of the rule, or the tool's own class.
_OF_A_RULE: Final = re.compile(r"[a-z][a-z0-9_-]{0,31} rule |tool ")
_STRICTNESS: Final[Mapping[Now, int]] = {
    Now.ALLOWED: 0,
    Now.ASKED: 1,
    Now.UNKNOWN: 2,
    Now.DENIED: 3,
}


@frozen(kw_only=True)
class Redecided:
    """One call decided anew.

    Attributes:
        why: what decided it: a rule in its own words, or the rule of egress and its reason.
        open: what the record does not hold: for an unknown verdict what it would hang on, else what
            is judged when it happens.
    """

    call: RecordedCall
    now: Now
    why: str = ""
    open: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether another verdict is certain. One that only reported was let through."""
        return self.call.was is not Was.OTHER and self.now not in {_was(self.call), Now.UNKNOWN}

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        call = self.call
        return {
            "event": call.event,
            "at": call.at,
            "run": call.run,
            "step": call.step,
            "tool": call.tool,
            "hosts": sorted({d.target.origin for d in call.denials if d.target is not None}),
            "was": str(call.was),
            "now": str(self.now),
            "changes": self.changes,
            "why": self.why,
            "open": list(self.open),
        }


@frozen(kw_only=True)
class Replay:
    """All recorded calls under one policy; `passed_over` are those that no policy decided."""

    policy: PolicyFile
    calls: tuple[Redecided, ...]
    passed_over: int

    @property
    def changed(self) -> tuple[Redecided, ...]:
        """Those with another verdict."""
        return tuple(each for each in self.calls if each.changes)

    @property
    def unknown(self) -> tuple[Redecided, ...]:
        """Those that the record is not enough for."""
        return tuple(each for each in self.calls if each.now is Now.UNKNOWN)

    def counts(self) -> dict[str, int]:
        """How many were this and are that, by `was->now`."""
        found: dict[str, int] = {}
        for each in self.calls:
            key = f"{each.call.was}->{each.now}"
            found[key] = found.get(key, 0) + 1
        return dict(sorted(found.items()))


def replay(calls: Iterable[RecordedCall], policy: PolicyFile) -> Replay:
    """Decide every call anew that a policy decided when it was recorded."""
    decide, decided, passed_over = decider(policy), [], 0
    for call in calls:
        if call.was is Was.OTHER:
            passed_over += 1
        else:
            decided.append(decide(call))
    return Replay(policy=policy, calls=tuple(decided), passed_over=passed_over)


def decider(policy: PolicyFile) -> Callable[[RecordedCall], Redecided]:
    """What says of each call what the policy makes of it; it never raises. The lists are read once."""
    egress = policy.egress()
    return lambda call: _redecided(call, policy, egress)


@frozen
class _Part:
    """What the list, the rules or the labels say; the strictest of them counts."""

    now: Now
    why: str = ""
    open: tuple[str, ...] = ()


_FREE: Final = _Part(Now.ALLOWED)


def _redecided(call: RecordedCall, policy: PolicyFile, egress: EgressPolicy) -> Redecided:
    parts: tuple[_Part, ...] = (
        _on_list(call, egress),
        _by_rules(call, policy),
        _by_label(call, policy),
    )
    if call.policy_sha256 == policy.sha256 and call.was is not Was.OTHER:
        # Judged under this very file: what it said is what it says.
        parts = tuple(_as_it_was(call, part) for part in parts)
    worst = max(parts, key=lambda part: _STRICTNESS[part.now])
    settled = worst.now is Now.DENIED
    notes = () if settled else (note for part in parts for note in part.open)
    return Redecided(call=call, now=worst.now, why=worst.why, open=tuple(dict.fromkeys(notes)))


def _as_it_was(call: RecordedCall, part: _Part) -> _Part:
    if part.now is not Now.UNKNOWN:
        return part
    return _Part(_was(call), "it was judged under this file")


def _was(call: RecordedCall) -> Now:
    return Now.ALLOWED if call.was is Was.REPORTED else Now(call.was)


# ── the lists ─────────────────────────────────────────────────────────────────────────────────


def _on_list(call: RecordedCall, egress: EgressPolicy) -> _Part:
    """The first target that is refused decides; those after it were never asked for."""
    parts = [_of_denial(denial, egress) for denial in call.denials]
    parts += [_of_page(host, egress) for host in call.pages]
    asked = _asked_for(call)
    if isinstance(asked, Target):
        parts.append(_listed(asked, egress))
    elif asked:
        parts.append(_Part(Now.UNKNOWN, "", (asked,)))
    if not parts:
        return _FREE
    worst = max(parts, key=lambda part: _STRICTNESS[part.now])
    notes = [note for part in parts for note in part.open]
    if call.was is Was.DENIED and call.tool is not None and call.denials:
        notes.append(f"label rules and what {call.tool} declares were not reached")
    return _Part(worst.now, worst.why, tuple(notes))


def _asked_for(call: RecordedCall) -> Target | str | None:
    """Where a read wanted to go first; a text says what is missing, None that nothing is."""
    if original_of(call.tool or "") != READ_TOOL or any(
        denial.target is not None for denial in call.denials
    ):
        return None
    if call.arguments is None:
        return "the log has the digest of the URL, and not the URL"
    url = call.arguments.get("url")
    try:
        return parse_target(url) if isinstance(url, str) else "the call names no URL"
    except UrlRejected:
        return "the call names no URL that can be read"


def _of_denial(denial: NetworkDenial, egress: EgressPolicy) -> _Part:
    if denial.reason in _CLOSED:
        return _Part(Now.DENIED, f"{denial.rule} {denial.reason}")
    if denial.reason == DenyReason.DENIED_BY_PROXY:
        return _Part(Now.UNKNOWN, "", ("a proxy refused it by a list of its own",))
    target = denial.target
    if target is None:
        return _Part(Now.UNKNOWN, "", ("the target of the denial cannot be read",))
    listed = _listed(target, egress)
    if listed.now is Now.DENIED or target.is_literal:
        return listed
    for address in denial.addresses:
        verdict = check_address(egress, address, host=target.host, target=target)
        if isinstance(verdict, Deny):
            return _denied(verdict)
    if denial.addresses:
        return _Part(Now.ALLOWED, "", (f"other answers for {target.host} are not recorded",))
    return listed


def _of_page(host: str, egress: EgressPolicy) -> _Part:
    """A host that no entry covers on any port is denied; of the others the port would decide."""
    try:
        target = parse_target(f"https://{f'[{host}]' if ':' in host else host}/")
    except UrlRejected:
        return _FREE
    if any(egress.allowlist.covering(target)):
        return _FREE
    return _Part(Now.DENIED, f"no list has {host}, where it read a page")


def _listed(target: Target, egress: EgressPolicy) -> _Part:
    verdict = check_listed(egress, target)
    if isinstance(verdict, Deny):
        return _denied(verdict)
    if target.is_literal:
        return _FREE
    return _Part(Now.ALLOWED, "", (f"where {target.host} leads was not looked up",))


def _denied(verdict: Deny) -> _Part:
    lists = f" in {', '.join(verdict.layers)}" if verdict.layers else ""
    return _Part(Now.DENIED, f"{verdict.rule} {verdict.reason}{lists}")


# ── the rules ─────────────────────────────────────────────────────────────────────────────────


def _by_rules(call: RecordedCall, policy: PolicyFile) -> _Part:
    """The strictest class that is certain; unknown where a stricter one may apply."""
    if call.tool is None:
        return _FREE
    certain, why = _declared(call)
    missing: list[tuple[ApprovalClass, str]] = []
    for rule in policy.tool_policy.all_rules:
        if not rule.covers(call.tool):
            continue
        applies, what = _applies(rule, call)
        word, told = rule.approval_class, rule.told()
        if applies is None:
            missing.append((word, f"{told}: {what}"))
            continue
        if what:
            # A condition that cannot be decided denies the call, whatever the rule says.
            word, told = ApprovalClass.DENY, f"{told}: {what}"
        if applies and is_stricter(word, certain):
            certain, why = word, told
    certain_now = _as_now(certain)
    open_ = tuple(
        text for each, text in missing if _STRICTNESS[_as_now(each)] > _STRICTNESS[certain_now]
    )
    if open_:
        return _Part(Now.UNKNOWN, "", open_)
    if certain_now is Now.ALLOWED and call.was is Was.DENIED and call.refusal in _BY_POLICY:
        # The strictest reasons alone are recorded: the tool's own class may stand behind them.
        return _Part(Now.UNKNOWN, "", (f"the class that {call.tool} declares is not recorded",))
    return _Part(certain_now, why)


def _declared(call: RecordedCall) -> tuple[ApprovalClass, str]:
    """The class that the tool declares for itself, where a reason tells it."""
    for reason in call.reasons:
        for word in (ApprovalClass.DENY, ApprovalClass.REQUEST_USER):
            if reason == f"tool {call.tool}: is {word}":
                return word, reason
        if call.was is Was.ASKED and not call.by_label and not _OF_A_RULE.match(reason):
            # A call in doubt, for one: no policy takes that question away.
            return ApprovalClass.REQUEST_USER, reason
    return ApprovalClass.AUTO, ""


def _applies(rule: ToolRule, call: RecordedCall) -> tuple[bool | None, str]:
    """Whether a rule that covers the tool applies; None with what is missing."""
    if rule.when_label is not None:
        if call.label is None:
            return None, "the log does not say what the context was"
        if not reaches(call.label, rule.when_label):
            if call.beside:
                return None, "calls beside it may have made the context worse"
            return False, ""
    if rule.when is None:
        return True, ""
    if call.arguments is None:
        return None, "it looks at arguments, of which the log has the digest"
    try:
        answer = rule.when(call.arguments)
    except ValueError:
        return True, "could not be decided"
    return (answer, "") if isinstance(answer, bool) else (None, "its condition gave no answer")


def _as_now(word: ApprovalClass) -> Now:
    match word:
        case ApprovalClass.DENY:
            return Now.DENIED
        case ApprovalClass.REQUEST_USER:
            return Now.ASKED
    return Now.ALLOWED


# ── the labels ────────────────────────────────────────────────────────────────────────────────


def _by_label(call: RecordedCall, policy: PolicyFile) -> _Part:
    """No event has all that the label rules look at: what they said holds under the same table only.

    `strict` denies whatever `standard` denies.
    """
    strict = policy.preset is LabelPreset.STRICT
    if call.by_label:
        if strict and call.was is Was.DENIED:
            return _Part(Now.DENIED, "label rules")
        text = "label rules decided it, and the table that it was under is not recorded"
        return _Part(Now.UNKNOWN, "", (text,))
    if strict and call.tool is not None:
        return _Part(Now.UNKNOWN, "", ("what the strict table says of it is not recorded",))
    return _FREE
