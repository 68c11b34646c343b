"""The smallest change of a policy under which chosen denials would have been admitted: pure.

A list gets the narrowest entry, a rule that denies asks a person instead. What no policy file may
admit is left, with the reason: metadata addresses, label rules, what a person said, budgets. The change
is decided anew over the whole record before it is given: what it would admit beside what was chosen
is named.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

from egress import Deny, DenyReason, Target, check_address, check_listed
from egress.address import block_of, parse_address
from egress.allowlist import entry_for, parse_allowlist
from runtime_pack.errors import CallCode
from runtime_pack.inner import frozen
from runtime_pack.messages import Json
from runtime_pack.policy import ToolRule
from runtime_pack.policy_file import PolicyFile, PolicyFileRefused, parse_policy
from runtime_pack.policy_replay import Now, Redecided, decider
from runtime_pack.policy_text import EditRefused, Edits, RuleEdit, edited, policy_diff
from runtime_pack.recorded_calls import NetworkDenial, RecordedCall, Was
from runtime_pack.strictness import ApprovalClass

__all__ = ("EMPTY_POLICY", "Change", "Left", "Suggestion", "is_denial", "suggest")

EMPTY_POLICY: Final = 'id = "suggested"\nversion = 1\n'
"""What is changed where no policy file is named."""

_KEYS: Final[Mapping[str, str]] = {
    "run": "allow",
    "task": "task_allow",
    "workspace": "workspace_allow",
}
_ADMITTED: Final = frozenset({Now.ALLOWED, Now.ASKED})
# The key of a list, an entry for it, and the target that needs it.
_Needed: TypeAlias = tuple[str, str, Target]
_ASKS: Final = str(ApprovalClass.REQUEST_USER)
_NAME: Final = re.compile(r"[A-Za-z0-9_:.-]+\Z")


@frozen(kw_only=True)
class Change:
    """One change: an entry for a list, or another class for a rule.

    Attributes:
        key: of the file: `allow`, or `tools[2].class`.
        value: what is added, or what it is by then.
        admits: the ids of the chosen events that need it.
        opens: what it opens beside them, in words; empty when nothing.
    """

    key: str
    value: str
    admits: tuple[str, ...]
    opens: str = ""

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        admits: list[Json] = list(self.admits)
        return {"key": self.key, "value": self.value, "admits": admits, "opens": self.opens}


@frozen(kw_only=True)
class Left:
    """A chosen denial that no change is proposed for, and why."""

    event: str
    why: str

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        return {"event": self.event, "why": self.why}


@frozen(kw_only=True)
class Suggestion:
    """What was found.

    Attributes:
        text: the policy as it would be; as it is when there is nothing to change.
        admitted: the ids of the chosen denials that the text admits, by the file's rules and lists.
        also: those of other recorded denials that it admits: they cannot be told from chosen ones.
    """

    before: str
    text: str
    changes: tuple[Change, ...]
    left: tuple[Left, ...]
    admitted: tuple[str, ...]
    also: tuple[str, ...]

    def diff(self, name: str) -> str:
        """The change as a unified diff of the file *name*."""
        return policy_diff(self.before, self.text, name)

    def to_json(self, name: str) -> dict[str, Json]:
        """For machines."""
        return {
            "changes": [change.to_json() for change in self.changes],
            "left": [left.to_json() for left in self.left],
            "admitted": list(self.admitted),
            "also": list(self.also),
            "diff": self.diff(name),
        }


def is_denial(call: RecordedCall) -> bool:
    """Whether a policy refused the call, or would have refused it."""
    return call.was in {Was.DENIED, Was.REPORTED}


def suggest(
    calls: Iterable[RecordedCall],
    chosen: Collection[str],
    policy: PolicyFile,
    *,
    private: bool = False,
) -> Suggestion:
    """The change of *policy* for the denials whose events are chosen.

    Args:
        calls: all that was recorded; those that were not chosen are to stay denied.
        chosen: ids of events.
        policy: as it is.
        private: whether an entry for a private address may be proposed.
    """
    names = frozenset(chosen)
    denials = [call for call in calls if is_denial(call)]
    wanted = [call for call in denials if call.events & names]
    others = [call for call in denials if not call.events & names]
    draft, decide = _Draft(policy, wanted, others, private=private), decider(policy)
    for call in wanted:
        draft.take(call, decide(call).now)
    return draft.done()


@frozen
class _No:
    """Why nothing is proposed."""

    why: str


class _Draft:
    """Gathers what each call needs; nothing is kept for a call that is not admitted by it."""

    def __init__(
        self,
        policy: PolicyFile,
        wanted: Sequence[RecordedCall],
        others: Sequence[RecordedCall],
        *,
        private: bool,
    ) -> None:
        self._policy, self._egress = policy, policy.egress()
        self._wanted, self._others = wanted, others
        self._private = private
        self._spare: dict[str, set[Target]] = {}
        for target in (d.target for call in others for d in call.denials if d.target is not None):
            self._spare.setdefault(target.host, set()).add(target)
        self._entries: dict[tuple[str, str], dict[str, Target]] = {}
        self._rules: dict[int, set[str]] = {}
        self._left: dict[str, str] = {}

    def take(self, call: RecordedCall, now: Now) -> None:
        """Note what the call needs, or why it stays denied."""
        if now in _ADMITTED:
            return
        closed = _closed(call)
        entries = _No(closed) if closed else self._entries_for(call)
        rules = _No("") if isinstance(entries, _No) else self._rules_for(call)
        if isinstance(entries, _No):
            self._left[call.event] = entries.why
        elif isinstance(rules, _No):
            self._left[call.event] = rules.why
        else:
            for key, entry, target in entries:
                self._entries.setdefault((key, entry), {})[call.event] = target
            for place in rules:
                self._rules.setdefault(place, set()).add(call.event)

    # ── lists ─────────────────────────────────────────────────────────────────────────────────

    def _entries_for(self, call: RecordedCall) -> list[_Needed] | _No:
        needed: list[_Needed] = []
        for denial in call.denials:
            found = self._for_denial(denial)
            if isinstance(found, _No):
                return found
            needed += found
        return needed

    def _for_denial(self, denial: NetworkDenial) -> list[_Needed] | _No:
        target = denial.target
        if target is None:
            return _No("the target of its denial cannot be read")
        verdicts = [check_listed(self._egress, target)]
        if not target.is_literal:
            verdicts += [
                check_address(self._egress, address, host=target.host, target=target)
                for address in denial.addresses
            ]
        needed: list[_Needed] = []
        for number, verdict in enumerate(verdicts):
            if not isinstance(verdict, Deny):
                continue
            fault = self._fault(verdict, target)
            if fault:
                return _No(fault)
            entry = str(verdict.nearest_entry) if number else self._narrowest(target)
            needed += [(_KEYS[layer], entry, target) for layer in verdict.layers]
        return needed

    def _fault(self, verdict: Deny, target: Target) -> str:
        """Why no entry is proposed for what the list or the address policy says."""
        told = f"{verdict.rule} {verdict.reason}"
        if verdict.reason is DenyReason.HTTPS_ONLY:
            return f"{told}: https_only is a switch for every host; ask for it by https"
        if verdict.nearest_entry is None or not verdict.layers:
            return f"{told}: no entry opens it"
        is_private = verdict.reason is DenyReason.ADDRESS_NOT_GLOBAL or (
            target.address is not None and block_of(target.address) is not None
        )
        if is_private and not self._private:
            return f"{told}: a private address; it is proposed where private ones are asked for"
        return ""

    def _narrowest(self, target: Target) -> str:
        """The entry as a denial names it; with its port where that alone spares another denial."""
        entry = entry_for(target)
        exact = f"{f'[{target.host}]' if ':' in target.host else target.host}:{target.port}"
        for spared in self._spare.get(target.host, ()):
            if spared.origin != target.origin and _admits(entry, spared):
                return entry if _admits(exact, spared) else exact
        return entry

    # ── rules ─────────────────────────────────────────────────────────────────────────────────

    def _rules_for(self, call: RecordedCall) -> list[int] | _No:
        """The places of the rules that deny it: known by their words, or because they always apply."""
        tool = call.tool
        if tool is None:
            return []
        rules = self._policy.tool_policy.rules
        places = [place for place, rule in enumerate(rules) if _denies(rule, tool, call)]
        if call.refusal == CallCode.POLICY_DENIED and not places:
            return _No("no rule of the file denies it, so that none can be changed")
        if not all(_NAME.match(name) for place in places for name in self._spared(place)):
            return _No("its rule covers another call whose tool has no name that a rule can have")
        return places

    def _spared(self, place: int) -> list[str]:
        """Tools that the rule covers, that were denied in the record, and of which none is chosen."""
        rule = self._policy.tool_policy.rules[place]
        wanted = {call.tool for call in self._wanted}
        found = {call.tool for call in self._others if call.tool and rule.covers(call.tool)}
        return sorted(name for name in found - wanted if name is not None)

    # ── the whole ─────────────────────────────────────────────────────────────────────────────

    def done(self) -> Suggestion:
        """The change, decided anew; what it does not admit after all takes nothing with it."""
        while True:
            try:
                text = edited(self._policy.text, self._edits())
                decide = decider(parse_policy(text))
            except (EditRefused, PolicyFileRefused) as error:
                return self._by_hand(str(error))
            fresh = {
                call.event: _still(now)
                for call, now in ((call, decide(call)) for call in self._wanted)
                if now.now not in _ADMITTED and call.event not in self._left
            }
            if not fresh:
                return self._suggestion(text, decide)
            self._left |= fresh
            self._drop(fresh)

    def _drop(self, events: Iterable[str]) -> None:
        gone = set(events)
        for held in self._entries.values():
            for event in gone & held.keys():
                del held[event]
        self._entries = {key: held for key, held in self._entries.items() if held}
        left = {place: noted - gone for place, noted in self._rules.items()}
        self._rules = {place: noted for place, noted in left.items() if noted}

    def _suggestion(self, text: str, decide: Callable[[RecordedCall], Redecided]) -> Suggestion:
        before = decider(self._policy)
        also = [
            call.event
            for call in self._others
            if decide(call).now in _ADMITTED and before(call).now not in _ADMITTED
        ]
        return Suggestion(
            before=self._policy.text,
            text=text,
            changes=tuple(self._changes()),
            left=self._told_left(),
            admitted=tuple(call.event for call in self._wanted if call.event not in self._left),
            also=tuple(also),
        )

    def _by_hand(self, why: str) -> Suggestion:
        """The text cannot be edited: the changes are told, and nothing is changed."""
        changes = tuple(self._changes())
        for change in changes:
            for event in change.admits:
                self._left[event] = f"to be changed by hand: {why}"
        return Suggestion(
            before=self._policy.text,
            text=self._policy.text,
            changes=changes,
            left=self._told_left(),
            admitted=tuple(call.event for call in self._wanted if call.event not in self._left),
            also=(),
        )

    def _told_left(self) -> tuple[Left, ...]:
        return tuple(Left(event=event, why=why) for event, why in self._left.items())

    def _needed(self) -> dict[tuple[str, str], dict[str, Target]]:
        """The entries without those with a port whose targets the same host without one admits."""
        return {
            (key, entry): held
            for (key, entry), held in self._entries.items()
            if not self._is_spare(key, entry, held.values())
        }

    def _is_spare(self, key: str, entry: str, targets: Iterable[Target]) -> bool:
        plain = entry.rpartition(":")[0].strip("[]")
        # An entry that only lifts the address check of a name admits no URL of it.
        return (key, plain) in self._entries and all(
            _admits(entry, each) and _admits(plain, each) for each in targets
        )

    def _edits(self) -> Edits:
        entries: dict[str, tuple[str, ...]] = {}
        for key, entry in sorted(self._needed()):
            entries[key] = (*entries.get(key, ()), entry)
        rules = tuple(
            RuleEdit(place=place, approval_class=_ASKS, added=tuple(self._copies(place)))
            for place in sorted(self._rules)
        )
        return Edits(entries=entries, rules=rules)

    def _copies(self, place: int) -> Iterator[dict[str, Any]]:
        """The rule as it was, for the tools that it denied in the record and that were not chosen."""
        document = tomllib.loads(self._policy.text, parse_float=Decimal)
        table: dict[str, Any] = document["tools"][place]
        return ({**table, "tool": name} for name in self._spared(place))

    def _changes(self) -> Iterator[Change]:
        for (key, entry), events in sorted(self._needed().items(), key=lambda pair: pair[0]):
            yield Change(key=key, value=entry, admits=tuple(events), opens=_opens(entry))
        for place, noted in sorted(self._rules.items()):
            rule = self._policy.tool_policy.rules[place]
            yield Change(
                key=f"tools[{place}].class",
                value=_ASKS,
                admits=tuple(sorted(noted)),
                opens=_covers(rule),
            )


def _denies(rule: ToolRule, tool: str, call: RecordedCall) -> bool:
    """Whether the rule denies the call for certain."""
    if rule.approval_class is not ApprovalClass.DENY or not rule.covers(tool):
        return False
    if rule.told() in call.reasons:
        return True
    return not call.reasons and rule.when is None and rule.when_label is None


def _closed(call: RecordedCall) -> str:
    """Why no policy file admits the call, whatever it says; empty when one may."""
    if call.by_label:
        return "the label rules denied it: a call that is wanted belongs into a run of its own"
    if call.refusal == CallCode.POLICY_ERROR:
        return "a rule could not be decided; mend the rule"
    if f"tool {call.tool}: is deny" in call.reasons:
        return "the tool itself is declared as denied"
    for denial in call.denials:
        if denial.reason == DenyReason.DENIED_BY_PROXY:
            return "a proxy refused it by a list of its own"
        if denial.rule in {"R9", "R10", "R11", "R13"}:
            return f"{denial.rule} {denial.reason}: no policy opens it"
    return ""


def _admits(entry: str, target: Target) -> bool:
    return parse_allowlist([entry]).matching(target) is not None


def _opens(entry: str) -> str:
    """What an entry opens beside the recorded targets."""
    host = entry.rpartition(":")[0] if entry.count(":") == 1 else entry
    address = parse_address(host.strip("[]").partition("]")[0])
    if address is not None and block_of(address) is not None:
        return "every listed name that leads to this address, and its URLs"
    return "every path of the host" if entry == host else "every path of the host on this port"


def _covers(rule: ToolRule) -> str:
    if "*" in rule.tool or "?" in rule.tool:
        return f"every other tool that {rule.tool} covers: a person is asked about each call"
    return "every call of the tool that the rule covers: a person is asked about each"


def _still(now: Redecided) -> str:
    """Why a call is not admitted after all."""
    return now.why or f"the record is not enough to say: {'; '.join(now.open)}"
