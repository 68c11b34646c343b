"""What a log holds of each call: where it wanted to go, what was said of it, and what is not there. Pure.

A log has digests in the place of arguments, and of a read that was admitted not even the host. What
is missing stays missing here (None), so that whoever decides anew says so and guesses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import attrs

from egress import Target, UrlRejected, parse_target
from runtime_pack.audit.facts import Record
from runtime_pack.errors import CallCode
from runtime_pack.events import EventCode, EventType
from runtime_pack.inner import frozen
from runtime_pack.labels import Label, parse_label
from runtime_pack.messages import Json

__all__ = ("NetworkDenial", "RecordedCall", "Recording", "Was", "with_arguments")


class Was(StrEnum):
    """What the policy said of a call when it was recorded."""

    ALLOWED = "allowed"
    ASKED = "asked"
    DENIED = "denied"
    REPORTED = "reported"
    OTHER = "other"


@frozen(kw_only=True)
class NetworkDenial:
    """One target that the egress policy refused, or would have refused.

    Attributes:
        event: the id of its event.
        target: with `/` as its path, which no rule looks at; None when it is not of its form.
        addresses: those that were refused; other answers of the lookup are not recorded.
        enforced: False when the policy only reported.
    """

    event: str
    target: Target | None
    addresses: tuple[str, ...]
    rule: str
    reason: str
    enforced: bool


@frozen(kw_only=True)
class RecordedCall:
    """One call, or one tunnel of the egress proxy, which has neither step nor tool.

    Attributes:
        event: the id of the event that says most of it: its denial, request or start.
        number: of that event's line.
        tool: None for a tunnel.
        denials: the targets that were refused on its way.
        events: the ids under which it can be named: those of all events that say what became of it.
        reasons: what the rules said, when one of them asked or denied.
        refusal: the code of a refused call.
        by_label: the label rules denied it, or asked a person about it.
        label: of the context when it was judged; None when the log does not hold it, as it does not
            hold what a run was started with until that is raised.
        beside: calls of the same response were in flight, whose labels counted too: the label is
            the least that it was.
        arguments: None when there is their digest only.
        policy_sha256: of the policy file that it was judged under, if it was one.
        pages: the hosts of pages that it read, where its redirects ended; neither port nor scheme.
    """

    event: str
    number: int | None
    at: str
    run: str | None
    step: str | None
    tool: str | None
    was: Was
    events: frozenset[str] = frozenset()
    denials: tuple[NetworkDenial, ...] = ()
    reasons: tuple[str, ...] = ()
    refusal: str | None = None
    by_label: bool = False
    label: Label | None = None
    beside: bool = False
    args_sha256: str | None = None
    arguments: Mapping[str, Json] | None = None
    policy_sha256: str | None = None
    pages: tuple[str, ...] = ()


_Key: TypeAlias = tuple[str | None, str, str]
_NETWORK: Final = frozenset(
    {EventCode.EGR001D, EventCode.EGR002D, EventCode.EGR003D, EventCode.EGR004O}
)
_BY_LABEL: Final = frozenset({EventCode.LBL002O, EventCode.LBL003D})
# A person said this, or nobody in time: the policy had asked.
_ASKED: Final = frozenset({CallCode.DENIED_BY_PERSON, CallCode.APPROVAL_EXPIRED})
_BY_POLICY: Final = frozenset({CallCode.POLICY_DENIED, CallCode.POLICY_ERROR})


@attrs.define
class _Open:
    """A call while its events come."""

    first: tuple[str, int | None, str]
    run: str | None
    step: str | None
    tool: str | None = None
    asked: bool = False
    events: set[str] = attrs.field(factory=set)
    denials: list[NetworkDenial] = attrs.field(factory=list)
    reasons: tuple[str, ...] = ()
    refusal: str | None = None
    by_label: bool = False
    label: Label | None = None
    beside: bool = False
    args_sha256: str | None = None
    policy_sha256: str | None = None
    pages: tuple[str, ...] = ()

    def closed(self) -> RecordedCall:
        event, number, at = self.first
        return RecordedCall(
            event=event,
            number=number,
            at=at,
            run=self.run,
            step=self.step,
            tool=self.tool,
            was=self._was(),
            events=frozenset(self.events),
            denials=tuple(self.denials),
            reasons=self.reasons,
            refusal=self.refusal,
            by_label=self.by_label,
            label=self.label,
            beside=self.beside,
            args_sha256=self.args_sha256,
            policy_sha256=self.policy_sha256,
            pages=self.pages,
        )

    def _was(self) -> Was:
        if any(denial.enforced for denial in self.denials) or self.refusal in _BY_POLICY:
            return Was.DENIED
        if self.refusal is not None and self.refusal not in _ASKED:
            return Was.OTHER
        if self.denials:
            return Was.REPORTED
        return Was.ASKED if self.asked or self.refusal is not None else Was.ALLOWED


class Recording:
    """Takes the events of logs in the order of time, and has the calls that they tell of."""

    def __init__(self) -> None:
        self._calls: dict[_Key, _Open] = {}
        self._labels: dict[str, Label | None] = {}
        # The responses of which a call was admitted, or waits.
        self._busy: set[tuple[str | None, str]] = set()

    @classmethod
    def of(cls, records: Iterable[Record]) -> Recording:
        """All of them."""
        recording = cls()
        for record in records:
            recording.take(record)
        return recording

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """In the order in which they came."""
        return tuple(call.closed() for call in self._calls.values())

    def take(self, record: Record) -> None:
        """Take one event; what is none, or says nothing of a call, is passed over."""
        subject, body = _part(record, "subject"), _part(record, "object")
        run, code = _text(subject, "run"), _text(record, "code") or ""
        kind = _text(record, "type")
        if kind == EventType.LABEL_RAISED and run is not None:
            self._raised(run, _label(body.get("from")), _label(body.get("to")))
        elif code in _NETWORK or code in _BY_LABEL or code in _TAKEN:
            self._of_call(record, subject, body, code)

    def _raised(self, run: str, before: Label | None, after: Label | None) -> None:
        """The first rise says what the context was until then: no other event does."""
        if run not in self._labels:
            for call in self._calls.values():
                if call.run == run:
                    call.label = before
        self._labels[run] = after

    def _of_call(self, record: Record, subject: Record, body: Record, code: str) -> None:
        run, step = _text(subject, "run"), _text(subject, "step")
        event = _text(record, "id") or ""
        # A tunnel has no step: each is a call of its own.
        key = (run, step or "", "" if step else event)
        call = self._calls.get(key)
        if call is None:
            first = (event, _number(record), _text(record, "ts") or "")
            call = self._calls[key] = _Open(first, run, step)
            call.label = None if run is None else self._labels.get(run)
            call.beside = (run, _turn(step)) in self._busy
        call.events.add(event)
        decision = _part(record, "decision")
        call.tool = _text(body, "tool") or call.tool
        call.args_sha256 = _text(body, "args_sha256") or call.args_sha256
        call.policy_sha256 = _text(_part(decision, "policy"), "sha256") or call.policy_sha256
        call.reasons = _texts(decision, "reasons") or call.reasons
        if code in _NETWORK:
            call.denials.append(_network(event, body, decision))
        elif code in _BY_LABEL:
            call.by_label = True
        elif code == EventCode.WEB001O:
            call.pages += tuple(filter(None, [_text(body, "host")]))
        elif code == EventCode.STP004D:
            call.refusal = _text(body, "code") or "UNKNOWN"
        else:
            call.asked = call.asked or code == EventCode.APR001O
            self._busy.add((run, _turn(step)))


_TAKEN: Final = frozenset(
    {EventCode.STP001A, EventCode.STP004D, EventCode.APR001O, EventCode.WEB001O}
)


def with_arguments(
    calls: Iterable[RecordedCall], arguments: Mapping[str, Mapping[str, Json]]
) -> tuple[RecordedCall, ...]:
    """The calls with their arguments, where there are some of the digest that was recorded.

    Args:
        calls: as a recording has them.
        arguments: by `sha256:<hex>`; whoever gives them has digested them.
    """
    return tuple(
        attrs.evolve(call, arguments=arguments.get(call.args_sha256 or "")) for call in calls
    )


def _network(event: str, body: Record, decision: Record) -> NetworkDenial:
    return NetworkDenial(
        event=event,
        target=_target(body),
        addresses=_texts(body, "ip"),
        rule=_text(decision, "rule") or "",
        reason=_text(decision, "reason_code") or "",
        enforced=decision.get("enforced") is not False,
    )


def _target(body: Record) -> Target | None:
    host, port, scheme = _text(body, "host"), body.get("port"), _text(body, "proto")
    if host is None or type(port) is not int or scheme not in {"http", "https"}:
        return None
    try:
        return parse_target(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/")
    except UrlRejected:
        return None


def _turn(step: str | None) -> str:
    """The response that a call belongs to: `t2` of `t2c1`. A direct call is its own."""
    return (step or "").partition("c")[0]


def _label(value: object) -> Label | None:
    try:
        # The words alone: sources are for people.
        words: Any = value
        return parse_label({**words, "sources": []})
    except (KeyError, TypeError, ValueError):
        return None


def _part(record: Record, name: str) -> Record:
    part = record.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(record: Record, name: str) -> str | None:
    value = record.get(name)
    return value if isinstance(value, str) else None


def _texts(record: Record, name: str) -> tuple[str, ...]:
    value = record.get(name)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _number(record: Record) -> int | None:
    value = record.get("seq")
    return value if type(value) is int else None
