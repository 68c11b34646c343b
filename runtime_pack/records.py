"""Step records and the events that the guard writes: pure, from values to values.

Events carry digests and counts; arguments, queries and page text never enter them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias

from runtime_pack.approvals import ApprovalRequest, Decision, digest_arguments
from runtime_pack.catalog import TURN_TOOL, Executed, ToolOutput
from runtime_pack.errors import CallCode, ModelRequestError
from runtime_pack.events import Entry, Event, EventCode
from runtime_pack.flow import BrokenRule
from runtime_pack.inner import changing
from runtime_pack.instants import instant_text
from runtime_pack.labels import CLEAN, Label, parse_label
from runtime_pack.messages import Json, Turn, Usage
from runtime_pack.remembered import RememberedRule

__all__ = (
    "StepRecord",
    "Subject",
    "approval_decided",
    "approval_requested",
    "call_notified",
    "digest_text",
    "label_decided",
    "label_lowered",
    "label_raised",
    "links_defused",
    "log_code",
    "log_host",
    "log_word",
    "rule_made",
    "rule_used",
    "step_finished",
    "step_refused",
    "step_started",
    "turn_finished",
    "turn_record",
    "turn_retried",
    "turn_started",
)

Subject: TypeAlias = Mapping[str, Json]
"""Who an event is about: run, task, step and call."""


def digest_text(text: str) -> str:
    """`sha256:<hex>` of a text; lone surrogates are digested as they are."""
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


# Shorter than the keys of any provider: what the model writes in place of an id may be one.
_WORD: Final = re.compile(r"[A-Za-z0-9_.:-]{1,16}\Z")
_CODE: Final = re.compile(r"[A-Z]{1,24}(_([A-Z]{1,24}|[0-9]{1,4})){0,6}\Z")


def log_word(text: str) -> str:
    """An id as it may stand in the log: a short word as it is, anything else as a digest.

    Ids of calls are written by the model, which may have read them in a page.
    """
    return text if _WORD.match(text) else _short_digest(text)


_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]-]{1,253}\Z")


def log_host(text: str) -> str:
    """A host as it may stand in a label and in the log; anything else as a digest."""
    return text if _HOST.match(text) else _short_digest(text)


def log_code(code: object) -> str | None:
    """A code as it may stand in the log: words in capitals as they are, anything else as a digest.

    A host's tool may put what it likes into its code.
    """
    if code is None:
        return None
    return str(code) if _CODE.match(str(code)) else _short_digest(str(code))


def _short_digest(text: str) -> str:
    return digest_text(text)[:23]


@changing(kw_only=True)
class StepRecord:
    """One turn or call as it was judged and ran.

    `ok` is None while it runs. `elapsed_us` is wall time in microseconds. `args_sha256` is the
    digest of the parsed arguments, or of the raw text when they could not be parsed. `citations`
    are those of the output, in their wire form. `raw` is the text of arguments that could not be
    read; it stands nowhere else. `attempt` counts from 1: a step that a crash or a pause stopped
    may be run again, if that is harmless. `cost` is what it was charged, in micro-units of money;
    `estimated` says that a part of that was never reported. `cached_input_tokens` are a part of
    `input_tokens`. `rules` are the codes of the label rules that refused it.
    """

    step: str
    tool: str
    call_id: str
    admitted: bool
    executed: Executed
    ok: bool | None = None
    code: str | None = None
    args_sha256: str | None = None
    label: Label = CLEAN
    elapsed_us: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    citations: tuple[Mapping[str, str], ...] = ()
    raw: str | None = None
    attempt: int = 1
    cached_input_tokens: int = 0
    cost: int = 0
    estimated: bool = False
    rules: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The step, and which attempt it was when it was not the first: one for each cause."""
        return self.step if self.attempt == 1 else f"{self.step}#{self.attempt}"

    def to_json(self) -> dict[str, Json]:
        """The stored form."""
        return {
            "step": self.step,
            "tool": self.tool,
            "call_id": self.call_id,
            "admitted": self.admitted,
            "executed": str(self.executed),
            "ok": self.ok,
            "code": self.code,
            "args_sha256": self.args_sha256,
            "label": self.label.to_json(),
            "elapsed_us": self.elapsed_us,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "citations": list(self.citations),
            "raw": self.raw,
            "attempt": self.attempt,
            **_spending(self),
            **({"rules": list(self.rules)} if self.rules else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> StepRecord:
        """Read the stored form.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        fields: dict[str, Any] = dict(value)
        label, executed = parse_label(fields.pop("label")), Executed(str(fields.pop("executed")))
        citations, rules = tuple(fields.pop("citations")), tuple(fields.pop("rules", ()))
        return cls(label=label, executed=executed, citations=citations, rules=rules, **fields)


def _spending(record: StepRecord) -> dict[str, Json]:
    """What stands in a record only when there is any of it."""
    body: dict[str, Json] = {}
    if record.cached_input_tokens:
        body["cached_input_tokens"] = record.cached_input_tokens
    if record.cost:
        body["cost"] = record.cost
    if record.estimated:
        body["estimated"] = True
    return body


def step_refused(subject: Subject, record: StepRecord, reasons: tuple[str, ...] = ()) -> Event:
    """A call that was not admitted; *reasons* are those of the policy, in the host's own words."""
    code = log_code(record.code)
    decision: dict[str, Json] = {"action": "deny", "reason_code": code}
    # The name of a tool that there is not is the model's word.
    unknown = record.code == CallCode.UNKNOWN_TOOL
    if reasons:
        decision["reasons"] = list(reasons)
    return Event(
        code=EventCode.STP004D,
        subject=subject,
        object={
            "tool": _short_digest(record.tool) if unknown else record.tool,
            "code": code,
            "args_sha256": record.args_sha256,
        },
        decision=decision,
        key=record.key,
    )


def step_started(subject: Subject, record: StepRecord, policy_sha256: str) -> Entry:
    """An admitted call, before it runs."""
    return Entry(
        EventCode.STP001A,
        subject,
        {"tool": record.tool, "args_sha256": record.args_sha256},
        {"action": "allow", "policy_sha256": policy_sha256},
        record.key,
    )


def _signals(fence: Mapping[str, Json]) -> list[Json]:
    """What was noticed in the text of a block; nothing in a record of another form."""
    signals = fence.get("signals")
    return signals if isinstance(signals, list) else []


def step_finished(subject: Subject, record: StepRecord, output: ToolOutput) -> Entry:
    """A call that ended, well or not."""
    body: dict[str, Json] = {
        "tool": record.tool,
        "ok": output.ok,
        "code": log_code(output.code),
        "executed": str(output.executed),
        "output_sha256": digest_text(output.text),
        "characters": len(output.text),
        "elapsed_us": record.elapsed_us,
    }
    if record.cost or record.estimated or record.cached_input_tokens:
        body |= _spending(record)
    signals = {log_word(str(word)) for fence in output.fences for word in _signals(fence)}
    if signals:
        body["fence_signals"] = sorted(signals)
    code = EventCode.STP002O if output.ok else EventCode.STP003E
    return Entry(code, subject, body, None, f"{record.key}:finished")


def label_raised(subject: Subject, before: Label, after: Label, turn: int) -> Entry:
    """The context of a run holds something worse, or more private, than before."""
    body: dict[str, Json] = {"from": _words(before), "to": _words(after)}
    body["sources"] = sorted(after.sources - before.sources)
    return Entry(EventCode.LBL001O, subject, body, None, f"{subject.get('step', f't{turn}')}:label")


def _words(label: Label) -> dict[str, Json]:
    return {"integrity": str(label.integrity), "confidentiality": str(label.confidentiality)}


def signals_seen(
    subject: Subject, tool: str, fresh: AbstractSet[str], all_seen: AbstractSet[str]
) -> Entry:
    """Something was noticed in an output that was not noticed in the run before."""
    body: dict[str, Json] = {"tool": tool, "signals": sorted(fresh), "seen": sorted(all_seen)}
    return Entry(EventCode.SIG001O, subject, body, None, f"{subject.get('step')}:signals")


def label_lowered(subject: Subject, tool: str, bits: float) -> Entry:
    """An output that can tell no more than so many bits of what was read: its label is better."""
    body: dict[str, Json] = {"tool": tool, "millibits": math.ceil(bits * 1000)}
    return Entry(EventCode.LBL005O, subject, body, None, f"{subject.get('step')}:bits")


def label_decided(
    subject: Subject,
    tool: str,
    rules: Sequence[BrokenRule],
    label: Label,
    key: str,
    *,
    denied: bool,
) -> Event:
    """What the label rules made of a call: a person is to be asked, or it is denied."""
    return Event(
        code=EventCode.LBL003D if denied else EventCode.LBL002O,
        subject=subject,
        object={"tool": tool, "label": _words(label)},
        decision={
            "action": "deny" if denied else "ask",
            "rules": [rule.to_json() for rule in rules],
        },
        key=f"{key}:rules",
    )


def links_defused(subject: Subject, counts: Mapping[str, Json], step: str) -> Event:
    """Images, references and links of an answer that are text by now."""
    return Event(code=EventCode.LBL004O, subject=subject, object=counts, key=f"{step}:answer")


def call_notified(
    subject: Subject, tool: str, args_sha256: str, reasons: tuple[str, ...], times: int = 1
) -> Event:
    """A call that the host is told of before it runs; *times* with this one."""
    return Event(
        code=EventCode.APR005O,
        subject=subject,
        object={"tool": tool, "args_sha256": args_sha256},
        decision={"action": "notify", "reasons": list(reasons)},
        key=f"{subject['step']}:notify" + ("" if times == 1 else f":{times}"),
    )


def approval_requested(subject: Subject, request: ApprovalRequest) -> Event:
    """A call that waits for a person."""
    return Event(
        code=EventCode.APR001O,
        subject=subject,
        object=_request(request),
        decision={"action": "ask", "reasons": list(request.reasons)},
        key=request.request_id,
    )


def approval_decided(
    subject: Subject, request: ApprovalRequest, decision: Decision, code: EventCode
) -> Event:
    """What a person said, or that it came too late; for edited arguments the digest of both."""
    edited: dict[str, Json] = {}
    if decision.edited_args is not None:
        edited["edited_sha256"] = digest_arguments(decision.edited_args)
    return Event(
        code=code,
        subject=subject,
        object=_request(request) | edited,
        decision={
            "action": decision.verdict,
            "decided_by": decision.decided_by[:200],
            "reason": decision.reason[:1000],
        },
        key=f"{request.request_id}:decided",
    )


def rule_made(subject: Subject, rule: RememberedRule) -> Event:
    """An approval that is to hold for later calls."""
    return Event(
        code=EventCode.APR006O,
        subject=subject,
        object={
            "rule": rule.rule_id,
            "request": rule.request_id,
            "tool": rule.tool,
            "scope": str(rule.scope),
            "args_sha256": digest_arguments(rule.arguments),
            "max_uses": rule.max_uses,
            "expires_at": None if rule.expires_at is None else instant_text(rule.expires_at),
        },
        decision={"action": "remember", "decided_by": rule.decided_by[:200]},
        key=rule.rule_id,
    )


def rule_used(subject: Subject, rule: RememberedRule, args_sha256: str) -> Event:
    """A call that a remembered approval answered for."""
    return Event(
        code=EventCode.APR007A,
        subject=subject,
        object={
            "rule": rule.rule_id,
            "request": rule.request_id,
            "tool": rule.tool,
            "args_sha256": args_sha256,
            "uses": rule.uses,
        },
        decision={"action": "approve", "decided_by": rule.decided_by[:200]},
        key=f"{rule.rule_id}:{rule.uses}",
    )


def _request(request: ApprovalRequest) -> dict[str, Json]:
    return {
        "tool": request.tool,
        "request": request.request_id,
        "args_sha256": request.arguments_sha256,
    }


def turn_started(subject: Subject, step: str, messages: int, tools: int) -> Entry:
    """A turn that is about to be asked for."""
    body: dict[str, Json] = {"messages": messages, "tools": tools}
    return Entry(EventCode.TRN001O, subject, body, None, step)


def turn_retried(
    subject: Subject,
    step: str,
    attempt: int,
    error: ModelRequestError,
    wait_seconds: float,
    usage: Usage | None,
) -> Event:
    """The *attempt*-th request of a turn failed, and another one follows."""
    return Event(
        code=EventCode.TRN004O,
        subject=subject,
        object={
            "attempt": attempt,
            "fault": str(error.fault),
            "status": error.status if type(error.status) is int else None,
            "wait_us": round(wait_seconds * 1_000_000),
            "input_tokens": 0 if usage is None else usage.input_tokens,
            "output_tokens": 0 if usage is None else usage.output_tokens,
        },
        key=f"{step}:attempt{attempt}",
    )


def turn_record(
    step: str, turn: Turn | None, code: str | None, label: Label, elapsed_us: int
) -> StepRecord:
    """The record of a turn that was asked for."""
    usage = None if turn is None else turn.usage
    return StepRecord(
        step=step,
        tool=TURN_TOOL,
        call_id="",
        admitted=True,
        executed=Executed.UNKNOWN if turn is None else Executed.YES,
        ok=turn is not None,
        code=code,
        label=label,
        elapsed_us=elapsed_us,
        input_tokens=0 if usage is None else usage.input_tokens,
        output_tokens=0 if usage is None else usage.output_tokens,
        cached_input_tokens=0 if usage is None else usage.cached_input_tokens,
    )


def turn_finished(subject: Subject, record: StepRecord, turn: Turn | None) -> Entry:
    """A turn that came, or did not."""
    body: dict[str, Json] = {
        "status": None if turn is None else str(turn.status),
        "finish": None if turn is None else str(turn.finish),
        "calls": 0 if turn is None else len(turn.calls),
        "code": record.code,
        "elapsed_us": record.elapsed_us,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.cost or record.estimated or record.cached_input_tokens:
        body |= _spending(record)
    code = EventCode.TRN003E if turn is None else EventCode.TRN002O
    return Entry(code, subject, body, None, f"{record.step}:finished")
