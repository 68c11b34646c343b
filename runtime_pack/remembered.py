"""What people said that holds for later calls: denials, and approvals that are to be remembered. Pure.

A denied call is not asked about again in its run: the same tool with the same arguments is denied with
a pointer to the decision. A remembered approval answers what a person would be asked, and never more:
it beats no deny, no list, no reason that the person was not shown and no worse context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

import attrs
import orjson

from runtime_pack.approvals import ApprovalRequest, Remember, RememberScope, digest_arguments
from runtime_pack.inner import NOTHING, frozen
from runtime_pack.instants import instant_text
from runtime_pack.labels import Label, at_most, parse_label
from runtime_pack.ledger import UNLIMITED, Limit, parse_count
from runtime_pack.messages import Json, frozen_arguments

__all__ = ("REPEATS_AT_MOST", "Asked", "Denied", "Memory", "RememberedRule", "remembered_rule")

_NO_DOUBTS: Final[frozenset[str]] = frozenset()
REPEATS_AT_MOST: Final = 2
"""How often a denied call is denied again before the run ends."""


@frozen(kw_only=True)
class Denied:
    """A denial that holds: which request it was about, by whom and why.

    `repeats` counts the responses that asked for the same again, `last` is the last of them.
    """

    request_id: str
    decided_by: str
    reason: str
    repeats: int = 0
    last: str = ""


@frozen(kw_only=True)
class Asked:
    """What a person would be asked about, now."""

    run: str
    task: str
    tool: str
    tool_sha256: str
    arguments: Mapping[str, Json]
    label: Label
    reasons: tuple[str, ...]
    now: datetime


@frozen(kw_only=True)
class RememberedRule:
    """An approval that holds for later calls of the same tool as it was defined.

    `arguments` are those that have to be equal: all of them, or the `fields` that were named, where
    one that was absent has to be absent. `seal` is a tag of the host's key over all other fields.
    """

    rule_id: str
    scope: RememberScope
    run: str
    task: str
    tool: str
    tool_sha256: str
    fields: tuple[str, ...] | None
    arguments: Mapping[str, Json]
    reasons: tuple[str, ...]
    max_label: Label
    created_at: datetime
    expires_at: datetime | None
    max_uses: Limit
    request_id: str
    decided_by: str
    uses: int = 0
    seal: str = ""

    def holds(self, asked: Asked) -> bool:
        """Whether it answers what a person would be asked. Nothing of it is ever stretched."""
        return (
            self._is_here(asked)
            and self.tool == asked.tool
            and self.tool_sha256 == asked.tool_sha256
            and (self.max_uses == UNLIMITED or self.uses < self.max_uses)
            and (self.expires_at is None or asked.now < self.expires_at)
            and at_most(asked.label, self.max_label)
            and set(asked.reasons) <= set(self.reasons)
            and digest_arguments(_named(asked.arguments, self.fields))
            == digest_arguments(self.arguments)
        )

    def _is_here(self, asked: Asked) -> bool:
        if self.run == asked.run:
            return True
        # Runs without a task are of no common task.
        return self.scope is RememberScope.TASK and bool(self.task) and self.task == asked.task

    def to_json(self) -> dict[str, Json]:
        """The stored form; read back by `from_json`."""
        return {
            "rule_id": self.rule_id,
            "scope": str(self.scope),
            "run": self.run,
            "task": self.task,
            "tool": self.tool,
            "tool_sha256": self.tool_sha256,
            "fields": None if self.fields is None else list(self.fields),
            "arguments": dict(self.arguments),
            "reasons": list(self.reasons),
            "max_label": {**self.max_label.to_json()},
            "created_at": instant_text(self.created_at),
            "expires_at": None if self.expires_at is None else instant_text(self.expires_at),
            "max_uses": self.max_uses,
            "request_id": self.request_id,
            "decided_by": self.decided_by,
            "uses": self.uses,
            "seal": self.seal,
        }

    def body(self) -> bytes:
        """What the seal is over: every other field, as JSON with sorted keys."""
        fields = self.to_json()
        del fields["seal"]
        # As earlier versions wrote moments: their seals hold on.
        fields["created_at"] = self.created_at.isoformat()
        fields["expires_at"] = None if self.expires_at is None else self.expires_at.isoformat()
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """Read the stored form. What it says is only worth what its seal is.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        fields: dict[str, Any] = dict(value)
        names, expires, uses = fields["fields"], fields["expires_at"], fields["uses"]
        if isinstance(uses, bool) or not isinstance(uses, int) or uses < 0:
            raise ValueError("uses is a count")
        read = {
            "scope": RememberScope(fields["scope"]),
            "fields": None if names is None else tuple(str(name) for name in names),
            "arguments": frozen_arguments(dict(fields["arguments"])),
            "reasons": tuple(str(reason) for reason in fields["reasons"]),
            "max_label": parse_label(fields["max_label"]),
            "created_at": datetime.fromisoformat(fields["created_at"]),
            "expires_at": None if expires is None else datetime.fromisoformat(expires),
            "max_uses": parse_count("max_uses", fields["max_uses"]),
        }
        return cls(**fields | read)


def remembered_rule(
    rule_id: str,
    request: ApprovalRequest,
    remember: Remember,
    *,
    arguments: Mapping[str, Json],
    decided_by: str,
    now: datetime,
) -> RememberedRule:
    """The rule that an approval leaves behind; *arguments* are those that the call ran with."""
    lasts = remember.lasts_seconds
    return RememberedRule(
        rule_id=rule_id,
        scope=remember.scope,
        run=request.run,
        task=request.task,
        tool=request.tool,
        tool_sha256=request.tool_sha256,
        fields=remember.fields,
        arguments=frozen_arguments(_named(arguments, remember.fields)),
        reasons=request.reasons,
        max_label=remember.max_label or request.label,
        created_at=now,
        expires_at=None if lasts == UNLIMITED else now + timedelta(seconds=lasts),
        max_uses=remember.max_uses,
        request_id=request.request_id,
        decided_by=decided_by,
    )


def _named(arguments: Mapping[str, Json], fields: tuple[str, ...] | None) -> Mapping[str, Json]:
    if fields is None:
        return arguments
    return {name: arguments[name] for name in fields if name in arguments}


class Memory:
    """What people said in one run, as far as it holds for later calls of it.

    With the memory of the run *above*, a denial holds in the whole tree of runs: it is told up as
    far as that goes, and looked up there; so are doubts. Approvals hold where they were given.
    """

    __slots__ = ("_above", "_denied", "_doubts", "_rules")

    def __init__(self, above: Memory | None = None) -> None:
        self._above = above
        self._doubts = _NO_DOUBTS
        self._denied: Mapping[str, Denied] = NOTHING
        self._rules: Mapping[str, RememberedRule] = NOTHING

    def __bool__(self) -> bool:
        # What is known in the run above may be asked for here.
        return bool(self._denied or self._rules or self._doubts or self._above)

    # ── doubts ────────────────────────────────────────────────────────────────────────────────

    @property
    def doubts(self) -> frozenset[str]:
        """Calls of the tree that were started and of which nobody knows what they did, by fingerprint."""
        return self._doubts if self._above is None else self._above.doubts

    def doubt(self, *fingerprints: str) -> None:
        """Such calls may have taken effect, in whichever run of the tree they were started."""
        if self._above is None:
            self._doubts = self._doubts.union(fingerprints)
        else:
            self._above.doubt(*fingerprints)

    def trust(self, fingerprint: str) -> None:
        """A person knows of the doubt."""
        if self._above is None:
            self._doubts -= {fingerprint}
        else:
            self._above.trust(fingerprint)

    # ── denials ───────────────────────────────────────────────────────────────────────────────

    def deny(self, fingerprint: str, denied: Denied) -> None:
        """A person said no. What was said first is what later calls are pointed to."""
        if fingerprint not in self._denied:
            self._denied = {**self._denied, fingerprint: denied}
        if self._above is not None:
            self._above.deny(fingerprint, attrs.evolve(denied, repeats=0, last=""))

    def denied(self, fingerprint: str) -> Denied | None:
        """The denial of such a call, if there was one, here or above."""
        denied = self._denied.get(fingerprint)
        if denied is not None or self._above is None:
            return denied
        found = self._above.denied(fingerprint)
        # How often it was asked for again there is not held against this run.
        return None if found is None else attrs.evolve(found, repeats=0, last="")

    def repeat(self, fingerprint: str, response: str) -> Denied | None:
        """The same, and that it was asked for again: each response counts once."""
        denied = self.denied(fingerprint)
        if denied is None or denied.last == response:
            return denied
        denied = attrs.evolve(denied, repeats=denied.repeats + 1, last=response)
        self._denied = {**self._denied, fingerprint: denied}
        return denied

    def forget_repeats(self) -> None:
        """A person has said something new: what was denied stays so, and is not held against it."""
        known = self._denied.items()
        self._denied = {name: attrs.evolve(denied, repeats=0) for name, denied in known}

    # ── approvals ─────────────────────────────────────────────────────────────────────────────

    @property
    def rules(self) -> tuple[RememberedRule, ...]:
        """The approvals that are remembered, the oldest first."""
        return tuple(self._rules.values())

    def keep(self, rule: RememberedRule) -> None:
        """Remember an approval, or that it was used."""
        self._rules = {**self._rules, rule.rule_id: rule}

    def answers(self, asked: Asked) -> Iterable[RememberedRule]:
        """The remembered approvals that answer this, the oldest first."""
        return (rule for rule in self.rules if rule.holds(asked))

    # ── saving ────────────────────────────────────────────────────────────────────────────────

    def to_json(self) -> dict[str, Json]:
        """For saved runs."""
        # Written where there are some only: heads of earlier versions do not know them.
        doubts: dict[str, Json] = {"doubts": [*sorted(self.doubts)]} if self.doubts else {}
        return doubts | {
            "denied": {name: attrs.asdict(denied) for name, denied in self._denied.items()},
            "rules": [rule.to_json() for rule in self._rules.values()],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from `to_json`; rules that were given to the run and are not in it stay.

        Of a rule that is in both, the one with more uses counts.

        What was denied is told up: the run above may have been saved before it was.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: not of that form.
        """
        self.doubt(*(str(name) for name in saved.get("doubts", ())))
        self._denied = NOTHING
        for name, value in saved["denied"].items():
            self.deny(str(name), Denied(**value))
        for rule in [RememberedRule.from_json(value) for value in saved["rules"]]:
            given = self._rules.get(rule.rule_id)
            # Other runs of the task may have used it since: what was used up stays so.
            if given is None or given.uses < rule.uses:
                self.keep(rule)
