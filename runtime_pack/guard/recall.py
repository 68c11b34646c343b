"""What people said before, applied to the calls of a run: denials first, then remembered approvals."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import attrs

from runtime_pack.approvals import ApprovalRequest, Decision, unknown_fields
from runtime_pack.catalog import ToolOutput, ToolSpec
from runtime_pack.errors import CallCode, StateRefused
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.machine import refusal
from runtime_pack.messages import Json
from runtime_pack.policy import ApprovalClass, ClassVerdict
from runtime_pack.records import rule_made, rule_used
from runtime_pack.remembered import (
    REPEATS_AT_MOST,
    Asked,
    Denied,
    RememberedRule,
    remembered_rule,
)
from runtime_pack.repeats import fingerprint_of
from runtime_pack.seal import check_rule, seal_rule

__all__ = ("Recall",)

_SHOWN: Final = 1000
_IN_DOUBT: Final = "the same call was started before, and nobody knows what it did"


def _says_something(rule: RememberedRule, spec: ToolSpec) -> bool:
    """Whether the rule is about arguments of the tool, and about one that the approved call had."""
    if rule.fields is None:
        return True
    return bool(rule.arguments) and not unknown_fields(rule.fields, spec.parameters)[0]


class Recall:
    """The memory of a run, as the judge asks it."""

    __slots__ = ("_run",)

    def __init__(self, run: TaskRun) -> None:
        self._run = run

    # ── denials ───────────────────────────────────────────────────────────────────────────────

    def denied(
        self, step: str, spec: ToolSpec, arguments: Mapping[str, Json]
    ) -> tuple[ToolOutput, bool] | None:
        """The refusal of a call that a person denied before, and whether that was once too often."""
        memory = self._run.memory
        if not memory:
            return None
        asked = fingerprint_of(spec.name, arguments, spec.cosmetic)
        denied = memory.repeat(asked, step.partition("c")[0])
        if denied is None:
            return None
        text = (
            f"A person denied this same call before (request {denied.request_id}), so nobody was "
            f"asked again. Reason: {denied.reason[:_SHOWN] or 'none given'}"
        )
        details: dict[str, Json] = {"request": denied.request_id, "repeats": denied.repeats}
        output = refusal(CallCode.DENIED_BY_PERSON, text, details=details)
        return output, denied.repeats >= REPEATS_AT_MOST

    def deny(
        self, decision: Decision, spec: ToolSpec | None, tool: str, *asked: Mapping[str, Json]
    ) -> None:
        """A person denied a call: as it was asked about, and as the model had asked for it."""
        denied = Denied(
            request_id=decision.request_id, decided_by=decision.decided_by, reason=decision.reason
        )
        cosmetic = () if spec is None else spec.cosmetic
        for arguments in asked:
            self._run.memory.deny(fingerprint_of(tool, arguments, cosmetic), denied)

    # ── doubts ────────────────────────────────────────────────────────────────────────────────

    def in_doubt(self, spec: ToolSpec, arguments: Mapping[str, Json]) -> bool:
        """Whether such a call was started before and never finished."""
        doubts = self._run.memory.doubts
        return bool(doubts) and fingerprint_of(spec.name, arguments, spec.cosmetic) in doubts

    def asking(
        self, spec: ToolSpec, arguments: Mapping[str, Json], verdict: ClassVerdict
    ) -> ClassVerdict:
        """The class of a call, at least `request_user` when it is in doubt: it may have run already."""
        denied = verdict.approval_class is ApprovalClass.DENY
        if denied or not self.in_doubt(spec, arguments):
            return verdict
        asked = verdict.approval_class is ApprovalClass.REQUEST_USER
        reasons = (*verdict.reasons, _IN_DOUBT) if asked else (_IN_DOUBT,)
        return ClassVerdict(approval_class=ApprovalClass.REQUEST_USER, reasons=reasons)

    def trust(self, spec: ToolSpec, arguments: Mapping[str, Json]) -> None:
        """A person approved the call, knowing of the doubt."""
        if self._run.memory.doubts:
            self._run.memory.trust(fingerprint_of(spec.name, arguments, spec.cosmetic))

    # ── approvals ─────────────────────────────────────────────────────────────────────────────

    def approved(
        self,
        spec: ToolSpec,
        definition: str,
        arguments: Mapping[str, Json],
        reasons: tuple[str, ...],
    ) -> RememberedRule | None:
        """A remembered approval that answers this call; one with another seal is none.

        Nor is one about an argument that the tool does not have: it would answer every call.
        """
        run = self._run
        if not run.memory or self.in_doubt(spec, arguments):
            return None
        asked = Asked(
            run=run.id,
            task=run.task,
            tool=spec.name,
            tool_sha256=definition,
            arguments=arguments,
            label=run.label,
            reasons=reasons,
            now=run.clock.now(),
        )
        rules = (rule for rule in run.memory.answers(asked) if self._is_ours(rule))
        return next((rule for rule in rules if _says_something(rule, spec)), None)

    def _is_ours(self, rule: RememberedRule) -> bool:
        try:
            check_rule(self._run.seal, rule)
        except StateRefused:
            return False
        return True

    def use(self, rule: RememberedRule, step: str, args_sha256: str) -> None:
        """Count a use of the rule, in the log and in the run.

        Raises:
            AuditError: the log could not take it; the call does not run.
        """
        run = self._run
        used = seal_rule(run.seal, attrs.evolve(rule, uses=rule.uses + 1))
        run.record(rule_used(run.subject(step), used, args_sha256))
        run.flush()
        run.memory.keep(used)

    def remember(
        self, request: ApprovalRequest, decision: Decision, arguments: Mapping[str, Json]
    ) -> None:
        """Keep an approval for later calls, if the person said so.

        Raises:
            AuditError: the log could not take it.
        """
        run = self._run
        if decision.remember is None:
            return
        rule = seal_rule(
            run.seal,
            remembered_rule(
                f"rem-{secrets.token_hex(12)}",
                request,
                decision.remember,
                arguments=arguments,
                decided_by=decision.decided_by,
                now=run.clock.now(),
            ),
        )
        run.record(rule_made(run.subject(request.step), rule))
        run.flush()
        run.memory.keep(rule)
