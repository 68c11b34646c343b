"""Requests to a person and their decisions: values and the checks on them. Pure."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import attrs
import orjson

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.instants import instant_text
from runtime_pack.labels import Label, parse_label
from runtime_pack.ledger import UNLIMITED, Limit, SecondsLimit, parse_count, parse_seconds
from runtime_pack.messages import Json, clean_text, frozen_arguments

__all__ = (
    "ApprovalRequest",
    "Decision",
    "DecisionRefused",
    "Described",
    "Remember",
    "RememberScope",
    "Resolution",
    "Settled",
    "Verdict",
    "digest_arguments",
    "parse_decision",
    "parse_resolution",
    "remember_fault",
    "unknown_fields",
)


class Verdict(StrEnum):
    """What a person said."""

    APPROVE = "approve"
    DENY = "deny"


def digest_arguments(arguments: Mapping[str, Json]) -> str:
    """`sha256:<hex>` over the arguments as JSON with sorted keys."""
    body = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@frozen(kw_only=True)
class ApprovalRequest:
    """What a person is asked: this tool as it is defined now, with exactly these arguments.

    `request_id` is random and used once. `label` is that of the context when it was asked,
    `reservation` what the call holds of the run's budgets while it waits. `seal` is a tag of the
    host's key over all other fields: `runtime_pack.seal.check_request` tells a request that was
    changed on its way to the person who decides.

    `destinations` are the arguments that say where the call goes, `rules` the codes of every label
    rule that it breaks, `session` that of the caller. An approval holds for nothing but `binding`.
    """

    request_id: str
    run: str
    task: str
    step: str
    tool: str
    tool_sha256: str
    arguments: Mapping[str, Json]
    arguments_sha256: str
    policy_sha256: str
    label: Label
    reasons: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    reservation: Mapping[str, Json] = attrs.field(factory=dict)
    seal: str = ""
    session: str = ""
    destinations: Mapping[str, Json] = attrs.field(factory=dict)
    rules: tuple[str, ...] = ()

    @property
    def binding(self) -> str:
        """Digest over tool, arguments, run, session, label and policy: what is approved."""
        label = (str(self.label.integrity), str(self.label.confidentiality))
        what = (self.tool, self.tool_sha256, self.arguments_sha256)
        where = (self.run, self.step, self.session, *label, self.policy_sha256)
        return f"sha256:{hashlib.sha256(orjson.dumps([*what, *where])).hexdigest()}"

    def expired(self, now: datetime) -> bool:
        """Whether it is too late to approve. None never expires: written out by the contract."""
        return self.expires_at is not None and now >= self.expires_at

    def unseen(self, reasons: Iterable[str]) -> tuple[str, ...]:
        """Those of the reasons that the person was not shown."""
        return tuple(reason for reason in reasons if reason not in self.reasons)

    def to_json(self) -> dict[str, Json]:
        """The stored form; read back by `from_json`."""
        return {
            "request_id": self.request_id,
            "run": self.run,
            "task": self.task,
            "step": self.step,
            "tool": self.tool,
            "tool_sha256": self.tool_sha256,
            "arguments": dict(self.arguments),
            "arguments_sha256": self.arguments_sha256,
            "policy_sha256": self.policy_sha256,
            "label": self.label.to_json(),
            "reasons": list(self.reasons),
            "created_at": instant_text(self.created_at),
            "expires_at": None if self.expires_at is None else instant_text(self.expires_at),
            "reservation": dict(self.reservation),
            "seal": self.seal,
            **self._more(),
        }

    def _more(self) -> dict[str, Json]:
        """What is written only where there is any: requests of earlier versions keep their seal."""
        body: dict[str, Json] = {}
        if self.session:
            body["session"] = self.session
        if self.destinations:
            body["destinations"] = dict(self.destinations)
        if self.rules:
            body["rules"] = list(self.rules)
        return body

    def body(self) -> bytes:
        """What the seal is over: every other field, as JSON with sorted keys."""
        fields = self.to_json()
        del fields["seal"]
        # As earlier versions wrote moments: their seals hold on.
        fields["created_at"] = self.created_at.isoformat()
        fields["expires_at"] = None if self.expires_at is None else self.expires_at.isoformat()
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> ApprovalRequest:
        """Read the stored form. What it says is only worth what its seal is.

        A request of a run that an earlier version saved has neither reservation nor seal.

        Raises:
            ValueError: not of that form, or the digest is not that of the arguments.
        """
        fields = {**_ABSENT, **value}
        other = sorted(set(fields) ^ _request_fields())
        if other:
            raise ValueError(f"unknown or missing fields {other}")
        arguments, expires = fields.pop("arguments"), fields.pop("expires_at")
        reasons, reservation = fields.pop("reasons"), fields.pop("reservation")
        label, created = parse_label(fields.pop("label")), fields.pop("created_at")
        destinations, rules = fields.pop("destinations"), fields.pop("rules")
        if not isinstance(arguments, dict) or not isinstance(reasons, list):
            raise ValueError("arguments is an object and reasons is a list")
        if not isinstance(reservation, dict) or not isinstance(destinations, dict):
            raise ValueError("reservation and destinations are objects")
        if not isinstance(rules, list):
            raise ValueError("rules is a list")
        if digest_arguments(arguments) != fields["arguments_sha256"]:
            raise ValueError("the digest is not that of the arguments")
        words = {key: str(item) for key, item in fields.items()}
        return cls(
            arguments=frozen_arguments(arguments),
            expires_at=None if expires is None else datetime.fromisoformat(str(expires)),
            reasons=tuple(str(reason) for reason in reasons),
            label=label,
            created_at=datetime.fromisoformat(str(created)),
            reservation=frozen_arguments(reservation),
            destinations=frozen_arguments(destinations),
            rules=tuple(map(str, rules)),
            **words,
        )


_ABSENT: Final[Mapping[str, Json]] = {
    "reservation": {},
    "seal": "",
    "session": "",
    "destinations": {},
    "rules": [],
}


@functools.cache
def _request_fields() -> frozenset[str]:
    return frozenset(attrs.fields_dict(ApprovalRequest))


class DecisionRefused(ValueError):
    """The decision is not of its form; the message names the fault."""


class Described(Protocol):
    """A tool as far as a decision about its calls is held against it; a `ToolSpec` is one."""

    @property
    def name(self) -> str:
        """The tool's name."""
        ...

    @property
    def parameters(self) -> Mapping[str, Json]:
        """JSON Schema of its arguments."""
        ...


def unknown_fields(
    fields: Iterable[str] | None, parameters: Mapping[str, Json]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of the fields that are no argument of a tool, and all that are one."""
    properties = parameters.get("properties")
    known = tuple(sorted(properties)) if isinstance(properties, Mapping) else ()
    return tuple(name for name in fields or () if name not in known), known


class RememberScope(StrEnum):
    """Where a remembered approval holds: in this run, or in every run of its task."""

    RUN = "run"
    TASK = "task"


def _words(value: object) -> str:
    if not isinstance(value, str):
        raise DecisionRefused(f"{type(value).__name__} is not a string")
    return clean_text(value)


def _someone(value: object) -> str:
    name = _words(value)
    if not name.strip():
        raise DecisionRefused("decided_by says who decided")
    return name


def _verdict(value: object) -> Verdict:
    if not isinstance(value, str) or value not in tuple(Verdict):
        raise DecisionRefused("verdict must be approve or deny")
    return Verdict(value)


def _scope(value: object) -> RememberScope:
    if not isinstance(value, str) or value not in tuple(RememberScope):
        raise DecisionRefused("remember.scope must be run or task")
    return RememberScope(value)


def _fields(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise DecisionRefused("remember.fields is a list of names of arguments")
    if not value:
        # A rule about no field at all would hold for every call of the tool.
        raise DecisionRefused("remember.fields names at least one argument")
    return tuple(sorted({clean_text(name) for name in value}))


def _max_label(value: object) -> Label | None:
    if value is None or isinstance(value, Label):
        return value
    try:
        return parse_label(value)
    except (TypeError, ValueError) as error:
        raise DecisionRefused(f"remember.max_label: {error}") from None


def _lasts(value: object) -> SecondsLimit:
    try:
        seconds = parse_seconds("remember.lasts_seconds", value)
    except ContractError as error:
        raise DecisionRefused(str(error)) from None
    # `timedelta` and with it the saved run cannot hold more than some centuries.
    if seconds != UNLIMITED and not 0 < seconds <= _LONGEST_SECONDS:
        raise DecisionRefused("remember.lasts_seconds is above 0 and at most a century")
    return seconds


def _uses(value: object) -> Limit:
    try:
        uses = parse_count("remember.max_uses", value)
    except ContractError as error:
        raise DecisionRefused(str(error)) from None
    if uses == 0:
        raise DecisionRefused("remember.max_uses is at least 1")
    return uses


_LONGEST_SECONDS: Final = 100 * 366 * 86_400.0


@frozen(kw_only=True)
class Remember:
    """That an approval is to hold for later calls of the same tool too.

    Attributes:
        scope: this run, or every run of the task that is given it.
        fields: the arguments that have to be equal to those approved, an absent one absent; None
            for all of them.
        max_label: the worst context in which it holds; None for the label of the request.
        lasts_seconds: how long it holds; a day by default.
        max_uses: how many later calls it answers; 10 by default.

    Raises:
        DecisionRefused: a field is not of its form.
    """

    scope: RememberScope = attrs.field(default=RememberScope.RUN, converter=_scope)
    fields: tuple[str, ...] | None = attrs.field(default=None, converter=_fields)
    max_label: Label | None = attrs.field(default=None, converter=_max_label)
    lasts_seconds: SecondsLimit = attrs.field(default=86_400, converter=_lasts)
    max_uses: Limit = attrs.field(default=10, converter=_uses)

    def to_json(self) -> dict[str, Json]:
        """The form that `parse_decision` reads."""
        return {
            "scope": str(self.scope),
            "fields": None if self.fields is None else list(self.fields),
            "max_label": None if self.max_label is None else {**self.max_label.to_json()},
            "lasts_seconds": self.lasts_seconds,
            "max_uses": self.max_uses,
        }


def remember_fault(
    remember: Remember | None,
    tool: str,
    parameters: Mapping[str, Json],
    arguments: Mapping[str, Json] | None = None,
    rules: Sequence[str] = (),
) -> str | None:
    """Why an approval of this tool cannot be remembered so; None when it can.

    One that answers a label rule, of those in *rules*, never can: what the context holds is another
    thing each time.

    An argument that the tool does not have is absent from every call: a rule about it alone would
    hold for all of them. So would one about nothing that the approved call has, as far as others
    leave that out too: with *arguments*, those that are to run, at least one has to be there.
    """
    if remember is not None and rules:
        broken = ", ".join(rules)
        return f"remember: a label rule is answered for one call alone (here: {broken})"
    fields = None if remember is None else remember.fields
    unknown, known = unknown_fields(fields, parameters)
    if not unknown and (fields is None or arguments is None or set(fields) & set(arguments)):
        return None
    if not unknown:
        listed = ", ".join(repr(name[:80]) for name in fields or ())
        return f"remember.fields: the approved call of {tool} has none of {listed}"
    named, all_of = ", ".join(repr(name[:80]) for name in unknown), ", ".join(known) or "none"
    word = "is no argument" if len(unknown) == 1 else "are no arguments"
    return f"remember.fields: {named} {word} of {tool}; there are: {all_of}"


def _edited(value: object) -> Mapping[str, Json] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise DecisionRefused("edited_args is an object")
    try:
        plain = orjson.loads(orjson.dumps(dict(value)))
        # A saved run holds them some levels deep, and there is a limit to that.
        orjson.dumps([[[[[[[[[[plain]]]]]]]]]])
    # The host's object: whatever reading it raises, it is not JSON.
    except Exception as error:
        raise DecisionRefused("edited_args is not a JSON object") from error
    return frozen_arguments(plain)


def _remember(value: object) -> Remember | None:
    if value is None or isinstance(value, Remember):
        return value
    if not isinstance(value, Mapping):
        raise DecisionRefused("remember is an object")
    unknown = sorted(set(value) - set(attrs.fields_dict(Remember)), key=str)
    if unknown:
        raise DecisionRefused(f"unknown fields {unknown} in remember")
    return Remember(**value)


@frozen(kw_only=True)
class Decision:
    """A person's answer to one request. Nothing but these fields is ever read from it.

    With `edited_args` the call runs with those arguments in place of what was asked for, if every
    rule still admits it. With `remember` the approval holds for later calls too.

    Raises:
        DecisionRefused: a field is not of its form, nobody is named, or a denial is edited or is to
            be remembered (a denial is remembered as it is).
    """

    request_id: str = attrs.field(converter=_words)
    verdict: Verdict = attrs.field(converter=_verdict)
    decided_by: str = attrs.field(converter=_someone)
    reason: str = attrs.field(default="", converter=_words)
    edited_args: Mapping[str, Json] | None = attrs.field(default=None, converter=_edited)
    remember: Remember | None = attrs.field(default=None, converter=_remember)

    def __attrs_post_init__(self) -> None:
        if self.verdict is Verdict.APPROVE:
            return
        if self.edited_args is not None or self.remember is not None:
            raise DecisionRefused("only an approval has edited_args or remember")

    def to_json(self) -> dict[str, Json]:
        """The form that `parse_decision` reads; a saved run holds it."""
        body: dict[str, Json] = {
            "request_id": self.request_id,
            "verdict": str(self.verdict),
            "decided_by": self.decided_by,
            "reason": self.reason,
        }
        if self.edited_args is not None:
            body["edited_args"] = dict(self.edited_args)
        if self.remember is not None:
            body["remember"] = self.remember.to_json()
        return body

    def runs(self, request: ApprovalRequest) -> Mapping[str, Json]:
        """The arguments that run if the call is approved: the person's, or those asked about."""
        return request.arguments if self.edited_args is None else self.edited_args

    def says_the_same(self, other: Decision) -> bool:
        """Whether both have one effect: who said it and why may differ."""
        return (
            self.verdict is other.verdict
            and self.edited_args == other.edited_args
            and self.remember == other.remember
        )


class Settled(StrEnum):
    """What became of a request, as far as it has got."""

    CLAIMED = "claimed"
    ADMITTED = "admitted"
    DENIED = "denied"
    REFUSED = "refused"
    ASKED_AGAIN = "asked_again"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@frozen(kw_only=True)
class Resolution:
    """What was decided about a request and what came of it; no second word undoes it.

    `detail` is the code that refused an approved call, or the id of the request that took the
    place of this one.
    """

    decision: Decision
    settled: Settled
    detail: str = ""

    def to_json(self) -> dict[str, Json]:
        """The stored form; read back by `parse_resolution`."""
        return {
            "decision": self.decision.to_json(),
            "settled": str(self.settled),
            "detail": self.detail,
        }

    def outcome(self) -> dict[str, Json]:
        """What a second decision on the same request is told."""
        return {
            "verdict": str(self.decision.verdict),
            "decided_by": self.decision.decided_by,
            "settled": str(self.settled),
            "detail": self.detail,
        }


_OLD_WORDS: Final[Mapping[str, Settled]] = {"approve": Settled.ADMITTED, "deny": Settled.DENIED}


def parse_resolution(request_id: str, value: object) -> Resolution:
    """Read what `Resolution.to_json` wrote, or the bare word of an earlier version.

    Raises:
        KeyError, TypeError, ValueError: not of that form.
    """
    if isinstance(value, str):
        verdict = Verdict.APPROVE if value == Verdict.APPROVE else Verdict.DENY
        word = Decision(request_id=request_id, verdict=verdict, decided_by="an earlier version")
        return Resolution(decision=word, settled=_OLD_WORDS.get(value) or Settled(value))
    if not isinstance(value, Mapping):
        raise TypeError("a resolution is an object")
    return Resolution(
        decision=parse_decision(value["decision"]),
        settled=Settled(value["settled"]),
        detail=str(value["detail"]),
    )


_REQUIRED: Final = frozenset({"request_id", "verdict", "decided_by"})
_ALLOWED: Final = _REQUIRED | {"reason", "edited_args", "remember"}


def parse_decision(value: object, tool: Described | None = None) -> Decision:
    """Read a decision that came from outside, as a JSON object.

    With the *tool* that it is about, `remember.fields` are held against the tool's arguments here
    already; the loop does that in any case.

    Raises:
        DecisionRefused: not an object, a field is missing, unknown or of the wrong kind: a
            decision that names another tool or other arguments is refused, not trimmed.
    """
    if not isinstance(value, Mapping):
        raise DecisionRefused("a decision is an object")
    unknown, missing = sorted(set(value) - _ALLOWED, key=str), sorted(_REQUIRED - set(value))
    if unknown or missing:
        raise DecisionRefused(f"unknown fields {unknown}, missing fields {missing}")
    decision = Decision(**value)
    fault = None if tool is None else remember_fault(decision.remember, tool.name, tool.parameters)
    if fault is not None:
        raise DecisionRefused(fault)
    return decision
