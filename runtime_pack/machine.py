"""The loop as a pure machine: `advance(rules, state, event) -> Step(state, commands)`.

Nothing here awaits, reads a clock or draws randomness. The driver (`runtime_pack.loop`) carries out
the commands in order; the last one tells it what to wait for, and its answer is the next event.
There is no second loop: streaming, resuming and approving all go through here.

::

    Thinking ──TurnTaken──▶ Classifying ──Classified──▶ Executing ──Executed──▶ Thinking
        │                        │                        │  ▲ │
        │                        └──────▶ Waiting ◀───────┘  └─┘ Readmitted (taken up again)
        │                                   └──Ruled──▶ Executing | Thinking
        └──▶ Ended ◀──Checked── Checking (an answer that the host looks at)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Final, TypeAlias

import attrs
import orjson

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.catalog import Executed, ToolOutput
from runtime_pack.errors import CallCode, StopCode
from runtime_pack.inner import frozen, inner
from runtime_pack.instants import instant_text
from runtime_pack.labels import CLEAN
from runtime_pack.ledger import HARD, Shortfall
from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    FrozenObject,
    Json,
    KeptItem,
    Message,
    ToolCall,
    ToolMessage,
    Turn,
    TurnStatus,
    UserMessage,
    clean_text,
    frozen_arguments,
)

__all__ = (
    "BATCH_REFUSED",
    "Admission",
    "Admitted",
    "AskModel",
    "AskPeople",
    "CheckAnswer",
    "Checked",
    "Checking",
    "Classified",
    "Classify",
    "Classifying",
    "Command",
    "Commit",
    "Ended",
    "Event",
    "Execute",
    "ExecutedCalls",
    "Executing",
    "Finish",
    "IngestedCall",
    "Interrupted",
    "Outcome",
    "OutcomeKind",
    "Pending",
    "Readmit",
    "Readmitted",
    "Refused",
    "Ruled",
    "Rules",
    "Slot",
    "SlotStatus",
    "State",
    "Step",
    "Stop",
    "Thinking",
    "TurnLost",
    "TurnTaken",
    "Waiting",
    "Withdraw",
    "advance",
    "begin",
    "begun_before",
    "budget_stop",
    "failure",
    "ingest",
    "ingest_call",
    "pending_messages",
    "refusal",
    "result_message",
    "resume",
)

_CALL: Final = attrgetter("call")
# Deeper arguments could be parsed but no longer stored inside a saved run (orjson stops at 254).
_MAX_DEPTH: Final = 64


# ── what a call that did not succeed tells the model ──────────────────────────────────────────


def refusal(
    code: str,
    message: str,
    *,
    executed: Executed = Executed.NO,
    retryable: bool = False,
    details: Mapping[str, Json] | None = None,
) -> ToolOutput:
    """The output of a call that was refused or failed: a small JSON object, one plain sentence."""
    body: dict[str, Json] = {
        "code": code,
        "executed": str(executed),
        "retryable": retryable,
        "message": message,
        **(details or {}),
    }
    return ToolOutput(
        ok=False,
        text=orjson.dumps(body).decode(),
        data=body,
        code=code,
        label=CLEAN,
        executed=executed,
        retryable=retryable,
        framed=True,
    )


def begun_before(output: ToolOutput) -> ToolOutput:
    """The refusal of a call that an earlier drive had started: whether it took effect is not known."""
    told = dict(output.data) if isinstance(output.data, dict) else {"message": output.text}
    more = "It was started before, and whether it took effect is not known."
    told |= {"executed": str(Executed.UNKNOWN), "message": f"{told.get('message', '')} {more}"}
    text = orjson.dumps(told).decode()
    return attrs.evolve(output, data=told, text=text, executed=Executed.UNKNOWN)


# ── ingest: from what a provider sent to calls with identities ────────────────────────────────


@inner(kw_only=True)
class IngestedCall:
    """One call with its identity. `fault` is set when it must not even be classified further."""

    step: str
    call: ToolCall
    arguments: Mapping[str, Json]
    raw: str | None
    fault: ToolOutput | None = None
    cut: bool = False


def ingest(
    turn: Turn, *, number: int, taken: dict[str, int], cut: bool
) -> tuple[IngestedCall, ...]:
    """Give every call of a response a unique id, a step and parsed arguments.

    A provider id that the run has already seen gets the suffix `-2`, `-3`, …; *taken* holds each
    id with the last suffix that was tried for it, and is extended. Arguments that are not a JSON object become `{}` in the history, and the call is
    faulted. When the response was cut, every call of it is faulted: what is missing cannot be seen.
    """
    calls: list[IngestedCall] = []
    for call in turn.calls:
        step = f"t{number}c{len(calls) + 1}"
        calls.append(ingest_call(call, step=step, taken=taken, cut=cut))
    return tuple(calls)


def ingest_call(
    call: ToolCall, *, step: str, taken: dict[str, int], cut: bool = False
) -> IngestedCall:
    """One call of a response, or of a direct caller, with its identity; see `ingest`."""
    parsed, fault = _parse_arguments(call.arguments)
    # The history and all who judge the call hold this one object: none of them can change it.
    flat = type(call.arguments) is str and _is_flat(call.arguments)
    arguments = FrozenObject(parsed) if flat else frozen_arguments(parsed)
    if cut:
        fault = refusal(
            CallCode.TRUNCATED,
            "The response was cut off, so none of its calls ran. Send fewer or shorter calls.",
            retryable=True,
        )
    unique = _unique_id(clean_text(call.id), taken)
    name = clean_text(call.name)
    # Of a call that is refused for its form, what was written is on record.
    raw = call.arguments if fault is not None and isinstance(call.arguments, str) else None
    return IngestedCall(
        step=step,
        call=ToolCall(id=unique, name=name, arguments=arguments),
        arguments=arguments,
        raw=raw,
        fault=fault,
        cut=cut,
    )


def _is_flat(raw: str) -> bool:
    """Whether an object in this JSON text holds no other one, no array, and only texts in ASCII."""
    return raw.isascii() and "\\u" not in raw and "[" not in raw and raw.count("{") <= 1


def _unique_id(wanted: str, taken: dict[str, int]) -> str:
    """The id, or the id with the next free suffix; what was tried once is not tried again."""
    if wanted not in taken:
        taken[wanted] = 1
        return wanted
    unique, number = wanted, taken[wanted]
    while unique in taken:
        number += 1
        unique = f"{wanted}-{number}"
    taken[unique] = 1
    if number > 1:
        taken[wanted] = number
    return unique


def _parse_arguments(raw: str | Mapping[str, Json]) -> tuple[Mapping[str, Json], ToolOutput | None]:
    if isinstance(raw, str):
        try:
            parsed = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            return {}, refusal(
                CallCode.INVALID_JSON,
                f"The arguments are not JSON ({error.msg.split(':')[0]}, {where}).",
                retryable=True,
                details={"position": error.pos},
            )
    else:
        try:
            parsed = orjson.loads(orjson.dumps(dict(raw)))
        # The host's object: whatever reading it raises, it is not a JSON object.
        except Exception:  # noqa: BLE001
            parsed = None
    problem = "are not a JSON object"
    if isinstance(parsed, dict):
        large = _large_number(raw) if isinstance(raw, str) else None
        if large is not None:
            text = "The arguments hold a whole number that 64 bits do not: pass it as a string."
            details: dict[str, Json] = {"position": large}
            return {}, refusal(CallCode.INVALID_JSON, text, retryable=True, details=details)
        if not _too_deep(parsed, raw):
            return parsed, None
        problem = f"are nested more than {_MAX_DEPTH} levels deep"
    return {}, refusal(CallCode.INVALID_JSON, f"The arguments {problem}.", retryable=True)


# Of a valid JSON text: its strings, which are passed over, and its numbers.
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+(?P<fraction>[.eE][0-9.eE+-]*)?')
_MANY_DIGITS: Final = re.compile(r"[0-9]{19}")
_DIGITS: Final = 20


def _large_number(raw: str) -> int | None:
    """Where a valid JSON text has a whole number that would be read as a rounded one."""
    if _MANY_DIGITS.search(raw) is None:
        return None
    for token in _TOKEN.finditer(raw):
        text = token[0]
        if text[0] == '"' or token["fraction"] is not None:
            continue
        # So many digits need no closer look, and could not be read.
        digits = len(text.lstrip("-"))
        if digits > _DIGITS or not -(2**63) <= int(text) < 2**64:
            return token.start()
    return None


def _too_deep(value: object, raw: str | Mapping[str, Json]) -> bool:
    """Whether the value is nested deeper than can be kept. Few texts are worth a closer look."""
    if isinstance(raw, str) and raw.count("[") + raw.count("{") <= _MAX_DEPTH:
        return False
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return False
    return True


def _members(value: object) -> Iterable[object]:
    """What a JSON container holds that may hold more."""
    held = value.values() if isinstance(value, dict) else value
    if not isinstance(held, Iterable):
        return ()
    return (item for item in held if isinstance(item, dict | list))


# ── admissions: what the guard says of one call ───────────────────────────────────────────────


@inner(kw_only=True)
class Admitted:
    """The call may run; its step is reserved.

    `call` is what runs in place of what the model asked for: a person edited the arguments.
    """

    call: ToolCall | None = None


@inner(kw_only=True)
class Refused:
    """The call does not run. `shortfall` is set when a budget refused it.

    `stuck` says that the model goes in circles: the run ends after this batch. `excused` says that
    the call was sound: it was answered from the record, or a person was asked and did not approve.
    """

    output: ToolOutput
    shortfall: Shortfall | None = None
    stuck: bool = False
    excused: bool = False


@inner(kw_only=True)
class Pending:
    """The call waits for a person; its step stays reserved."""

    request: ApprovalRequest


Admission: TypeAlias = Admitted | Refused | Pending
"""The guard's word on one call."""


class SlotStatus(StrEnum):
    """Where one call of a batch stands."""

    ADMITTED = "admitted"
    PENDING = "pending"
    DONE = "done"


@inner(kw_only=True)
class Slot:
    """One call of the batch in hand. `result` is set when it is done.

    `request` is what a person was asked; an admitted call that has one was approved. `begun` is set
    when an earlier drive had started it; it is not saved with the slot.
    """

    step: str
    call: ToolCall
    status: SlotStatus
    result: ToolMessage | None = None
    request: ApprovalRequest | None = None
    ran: bool = False
    shortfall: Shortfall | None = None
    stuck: bool = False
    excused: bool = False
    begun: bool = False


# ── states ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Stop:
    """Why the run is where it is: a stable code and, for budgets, the numbers.

    `details` are not saved: they say of a refused decision what was decided before.
    """

    code: str
    message: str
    shortfall: Shortfall | None = None
    stage: str | None = None
    retry_at: datetime | None = None
    output_fault: str | None = None
    details: Mapping[str, Json] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Json]:
        """For machines: the keys of details and shortfall stand beside the code."""
        body: dict[str, Json] = {
            **self.details,
            "code": str(self.code),
            "message": self.message,
        }
        if self.stage is not None:
            body["stage"] = self.stage
        if self.retry_at is not None:
            body["retry_at"] = instant_text(self.retry_at)
        if self.output_fault is not None:
            body["output_fault"] = self.output_fault
        return body | (self.shortfall.to_json() if self.shortfall else {})


class OutcomeKind(StrEnum):
    """How a drive of the loop ended."""

    COMPLETED = "completed"
    APPROVAL_REQUIRED = "approval_required"
    SUSPENDED = "suspended"
    CANCELLED = "cancelled"
    ERROR = "error"


@frozen(kw_only=True)
class Outcome:
    """The end of a drive.

    `cause` is what the host's code raised; it is in the result, and never saved or told.
    """

    kind: OutcomeKind
    stop: Stop | None = None
    text: str = ""
    cause: BaseException | None = attrs.field(default=None, eq=False, repr=False)


@inner(kw_only=True)
class Rules:
    """What the machine itself needs of the contract; `atomic` runs all calls of a response or none.

    `check_again` asks for another answer in place of one that the host's check refused.
    """

    max_consecutive_refused: int
    wrap_up: bool
    atomic: bool = False
    check_again: bool = False


@inner(kw_only=True)
class Thinking:
    """A model response is awaited; `closing` is set when it is the wrap-up."""

    barren: int = 0
    closing: Stop | None = None


@inner(kw_only=True)
class Classifying:
    """A response came, and its calls are being judged; a run that is taken up here judges them again."""

    barren: int
    text: str
    calls: tuple[IngestedCall, ...]
    kept: tuple[KeptItem, ...] = ()


@inner(kw_only=True)
class Checking:
    """An answer came, and the host's check looks at it; a run that is taken up here asks it again."""

    barren: int
    closing: Stop | None
    taken: TurnTaken


@inner(kw_only=True)
class Executing:
    """Admitted calls are running."""

    barren: int
    text: str
    slots: tuple[Slot, ...]
    kept: tuple[KeptItem, ...] = ()


@inner(kw_only=True)
class Waiting:
    """Every call that may run has run; the others wait for people."""

    barren: int
    text: str
    slots: tuple[Slot, ...]
    kept: tuple[KeptItem, ...] = ()


@inner(kw_only=True)
class Ended:
    """Nothing follows."""

    outcome: Outcome


State: TypeAlias = Thinking | Classifying | Checking | Executing | Waiting | Ended
"""Where the machine stands between two events."""


# ── events in, commands out ───────────────────────────────────────────────────────────────────


@inner(kw_only=True)
class TurnTaken:
    """The model answered; `cut` says that its output was cut short.

    `fault` says why the text is no answer in the form that was asked for, `unverified` why the
    host's check refused it. With `to_check` the host is asked first.
    """

    turn: Turn
    calls: tuple[IngestedCall, ...]
    cut: bool
    fault: str | None = None
    unverified: str | None = None
    to_check: bool = False


@inner(kw_only=True)
class Checked:
    """What the host's check says of the answer: None when it stands."""

    unverified: str | None


@inner(kw_only=True)
class TurnLost:
    """No response: the turn was refused by a budget (`soft` when a wrap-up may follow) or failed.

    `again` says that the same request may go well later: the run can be taken up where it stands.
    """

    outcome: Outcome
    soft: bool = False
    again: bool = False


@inner(kw_only=True)
class Classified:
    """The guard's words, in emission order; `misbehaving` says that too many were refused."""

    admissions: tuple[Admission, ...]
    misbehaving: bool = False


@inner(kw_only=True)
class ExecutedCalls:
    """What the model is to see of each call, by step."""

    results: Mapping[str, ToolMessage]
    misbehaving: bool = False


@inner(kw_only=True)
class Readmitted:
    """The guard's words on calls that were admitted before the run was taken up, by step."""

    admissions: Mapping[str, Admission]


@inner(kw_only=True)
class Ruled:
    """What people decided, by step, as the guard judged it again. Empty: nobody answered.

    `lapsed` are the calls that a budget refused which has room again: a call that was denied gave
    back what it held. They stop nothing; the model may ask again.
    """

    admissions: Mapping[str, Admission]
    misbehaving: bool = False
    lapsed: frozenset[str] = frozenset()


@inner(kw_only=True)
class Interrupted:
    """The drive stops here. `resumable` leaves the state as it is; else the run is over.

    `begun` are the steps that were started: whether they took effect is not known.
    """

    outcome: Outcome
    resumable: bool
    begun: frozenset[str] = frozenset()


Event: TypeAlias = (
    TurnTaken | Checked | TurnLost | Classified | ExecutedCalls | Readmitted | Ruled | Interrupted
)
"""What the driver tells the machine."""


@inner(kw_only=True)
class AskModel:
    """Take a turn; `final` offers no tools and adds the notice."""

    final: bool = False


@inner(kw_only=True)
class CheckAnswer:
    """Ask the host's check about this text."""

    text: str


@inner(kw_only=True)
class Classify:
    """Judge these calls in order."""

    calls: tuple[IngestedCall, ...]


@inner(kw_only=True)
class Execute:
    """Run these slots."""

    slots: tuple[Slot, ...]


@inner(kw_only=True)
class Readmit:
    """Judge these slots again under today's rules: they were admitted in an earlier drive."""

    slots: tuple[Slot, ...]


@inner(kw_only=True)
class AskPeople:
    """Get decisions on these requests, if anyone is there to decide."""

    requests: tuple[ApprovalRequest, ...]


@inner(kw_only=True)
class Commit:
    """Append these messages to the history, all or none."""

    messages: tuple[Message, ...]


@inner(kw_only=True)
class Withdraw:
    """These slots will not run after all: another call of the response was refused."""

    slots: tuple[Slot, ...]


@inner(kw_only=True)
class Finish:
    """The drive is over."""

    outcome: Outcome


Command: TypeAlias = (
    AskModel | CheckAnswer | Classify | Execute | Readmit | AskPeople | Withdraw | Commit | Finish
)
"""What the machine tells the driver to do."""


@inner
class Step:
    """The next state and what to do, in order."""

    state: State
    commands: tuple[Command, ...]


def begin() -> Step:
    """The first step of a run."""
    return Step(Thinking(), (AskModel(),))


def resume(state: State) -> Step:
    """The first step of a drive that takes up a saved state."""
    match state:
        case Thinking(closing=closing):
            return Step(state, (AskModel(final=closing is not None),))
        case Classifying(calls=calls):
            return Step(state, (Classify(calls=calls),))
        case Checking(taken=taken):
            return Step(state, (CheckAnswer(text=taken.turn.text),))
        case Executing():
            return Step(state, (Readmit(slots=_admitted(state.slots)),))
        case Waiting() if _admitted(state.slots):
            # Of an atomic batch: what was admitted waits for the others.
            return Step(state, (Readmit(slots=_admitted(state.slots)),))
        case Waiting():
            return Step(state, (AskPeople(requests=_requests(state.slots)),))
        case Ended(outcome=outcome):
            return Step(state, (Finish(outcome=outcome),))


def advance(rules: Rules, state: State, event: Event) -> Step:
    """One step of the loop.

    Raises:
        ValueError: the event does not fit the state, which is a fault of the driver.
    """
    match event:
        case TurnTaken(to_check=True) if isinstance(state, Thinking):
            held = Checking(barren=state.barren, closing=state.closing, taken=event)
            return Step(held, (CheckAnswer(text=event.turn.text),))
        case Checked() if isinstance(state, Checking):
            asked = Thinking(barren=state.barren, closing=state.closing)
            taken = attrs.evolve(state.taken, unverified=event.unverified, to_check=False)
            return _take_turn(rules, asked, taken)
        case TurnTaken() if isinstance(state, Thinking):
            return _take_turn(rules, state, event)
        case Classified() if isinstance(state, Classifying):
            return _place(rules, state, event)
        case ExecutedCalls() if isinstance(state, Executing):
            return _close_batch(rules, state, event)
        case Interrupted():
            return _interrupt(state, event)
        case TurnLost() if isinstance(state, Thinking):
            return _lose_turn(rules, state, event)
        case Readmitted() if isinstance(state, Executing | Waiting):
            slots = _replaced(state.slots, SlotStatus.ADMITTED, event.admissions)
            return _settle(rules, state, slots)
        case Ruled() if isinstance(state, Waiting):
            return _rule(rules, state, event)
    raise ValueError(f"{type(event).__name__} does not fit {type(state).__name__}")


DECLINED: Final = frozenset({FinishReason.REFUSAL, FinishReason.CONTENT_FILTER})


def _take_turn(rules: Rules, state: Thinking, event: TurnTaken) -> Step:
    turn = event.turn
    if turn.finish in DECLINED:
        return _decline(state, event)
    if turn.status is TurnStatus.TOOL_REQUEST and state.closing is None:
        text = clean_text(turn.text)
        judged = Classifying(barren=state.barren, text=text, calls=event.calls, kept=turn.kept)
        return Step(judged, (Classify(calls=event.calls),))
    said = AssistantMessage(text=clean_text(turn.text), kept=turn.kept)
    if state.closing is not None:
        stop = state.closing
        fault = event.fault or event.unverified
        if fault is not None:
            # The budget stays the reason; what was said is in the history, and is no answer.
            outcome = Outcome(
                kind=OutcomeKind.SUSPENDED, stop=attrs.evolve(stop, output_fault=fault)
            )
            return _end(outcome, (said,) if said.text else ())
        if event.cut:
            # What there is of it is handed over, and says that it is not all.
            stop = attrs.evolve(stop, output_fault="was cut off by its limit")
        outcome = Outcome(kind=OutcomeKind.SUSPENDED, stop=stop, text=said.text)
        return _end(outcome, (said,) if said.text else ())
    if event.cut and not said.text:
        return _next_turn(rules, state.barren + 1, ())
    if turn.status is TurnStatus.ESCALATE:
        stop = Stop(code=StopCode.ESCALATED, message="The model handed the run to a person.")
        return _end(Outcome(kind=OutcomeKind.SUSPENDED, stop=stop, text=said.text), (said,))
    if event.fault is not None:
        return _ask_for_form(rules, state.barren + 1, said, event.fault)
    if event.unverified is not None:
        return _ask_for_proof(rules, state.barren + 1, said, event.unverified)
    stop_cut = Stop(code=StopCode.TRUNCATED_REPLY, message="The reply was cut off by its limit.")
    outcome = Outcome(
        kind=OutcomeKind.COMPLETED, stop=stop_cut if event.cut else None, text=said.text
    )
    return _end(outcome, (said,))


def _ask_for_form(rules: Rules, barren: int, said: AssistantMessage, fault: str) -> Step:
    """The answer has not the form that was asked for: it is asked for again, a few times."""
    if barren >= rules.max_consecutive_refused:
        outcome = failure("output", StopCode.OUTPUT_INVALID, f"The answer {fault}.")
        return _end(outcome, (said,))
    asked = UserMessage(text=f"This answer {fault}. Answer again, in that form and nothing else.")
    return Step(Thinking(barren=barren), (Commit(messages=(said, asked)), AskModel()))


def _ask_for_proof(rules: Rules, barren: int, said: AssistantMessage, fault: str) -> Step:
    """The host's check refused the answer: it ends the run, or another one is asked for."""
    if not rules.check_again or barren >= rules.max_consecutive_refused:
        outcome = failure("output", StopCode.OUTPUT_UNVERIFIED, f"The answer {fault}.")
        return _end(outcome, (said,))
    asked = UserMessage(text=f"This answer {fault}. Answer again; you may use tools before.")
    return Step(Thinking(barren=barren), (Commit(messages=(said, asked)), AskModel()))


def _decline(state: Thinking, event: TurnTaken) -> Step:
    """The model declined: what it says is kept in the history, and is no answer."""
    text = clean_text(event.turn.text)
    if event.calls:
        batch = Classifying(barren=state.barren, text=text, calls=event.calls)
        said = _closed_batch(batch, frozenset())
    else:
        said = (AssistantMessage(text=text),) if text else ()
    if state.closing is not None:
        return _end(Outcome(kind=OutcomeKind.SUSPENDED, stop=state.closing), said)
    message = f"The model declined to answer ({event.turn.finish})."
    return _end(failure("model", StopCode.MODEL_REFUSED, message), said)


def _lose_turn(rules: Rules, state: Thinking, event: TurnLost) -> Step:
    if state.closing is not None:
        return _end(Outcome(kind=OutcomeKind.SUSPENDED, stop=state.closing), ())
    stop = event.outcome.stop
    if event.soft and stop is not None and _may_wrap_up(rules, stop.shortfall):
        return Step(Thinking(barren=state.barren, closing=stop), (AskModel(final=True),))
    if event.outcome.kind is OutcomeKind.ERROR and not event.again:
        return _end(event.outcome, ())
    # A budget may be raised by a grant: the run can still be taken up where it stands.
    return Step(state, (Finish(outcome=event.outcome),))


def _place(rules: Rules, state: Classifying, event: Classified) -> Step:
    slots: list[Slot] = []
    for call, admission in zip(state.calls, event.admissions, strict=True):
        slots.append(_slot(call.step, call.call, admission))
    return _settle(rules, state, tuple(slots), misbehaving=event.misbehaving)


def _slot(
    step: str, call: ToolCall, admission: Admission, approved: ApprovalRequest | None = None
) -> Slot:
    match admission:
        case Admitted(call=edited):
            # The history shows a call as it ran.
            return Slot(
                step=step,
                call=edited or call,
                status=SlotStatus.ADMITTED,
                ran=True,
                request=approved,
            )
        case Pending(request=request):
            return Slot(step=step, call=call, status=SlotStatus.PENDING, request=request)
        case Refused(output=output, shortfall=shortfall, stuck=stuck, excused=excused):
            return Slot(
                step=step,
                call=call,
                status=SlotStatus.DONE,
                result=result_message(call, output),
                shortfall=shortfall,
                stuck=stuck,
                excused=excused,
            )


def result_message(call: ToolCall, output: ToolOutput) -> ToolMessage:
    """What the model sees of a call's output."""
    return ToolMessage(
        call_id=call.id, name=call.name, text=output.text, ok=output.ok, label=output.label
    )


def _close_batch(rules: Rules, state: Executing, event: ExecutedCalls) -> Step:
    """Every call that was admitted has its result now."""
    if not event.misbehaving:
        results: list[Message] = []
        for slot in state.slots:
            result = slot.result if slot.ran else None
            if slot.status is SlotStatus.ADMITTED:
                result = event.results[slot.step]
            if result is None:
                break
            results.append(result)
        else:
            # Most batches: every call was admitted and has run.
            said = AssistantMessage(
                text=state.text, calls=tuple(map(_CALL, state.slots)), kept=state.kept
            )
            return _next_turn(rules, 0, (Commit(messages=(said, *results)),))
    slots = tuple([_with_result(slot, event.results) for slot in state.slots])
    return _settle(rules, state, slots, misbehaving=event.misbehaving)


def _with_result(slot: Slot, results: Mapping[str, ToolMessage]) -> Slot:
    if slot.status is not SlotStatus.ADMITTED:
        return slot
    return Slot(
        step=slot.step,
        call=slot.call,
        status=SlotStatus.DONE,
        result=results[slot.step],
        ran=True,
    )


def _rule(rules: Rules, state: Waiting, event: Ruled) -> Step:
    if not event.admissions:
        stop = Stop(code=CallCode.APPROVAL_REQUIRED, message="Calls wait for a person.")
        outcome = Outcome(kind=OutcomeKind.APPROVAL_REQUIRED, stop=stop)
        return Step(state, (Finish(outcome=outcome),))
    slots = _replaced(state.slots, SlotStatus.PENDING, event.admissions)
    if event.lapsed:
        slots = tuple(
            attrs.evolve(slot, shortfall=None) if slot.step in event.lapsed else slot
            for slot in slots
        )
    return _settle(rules, state, slots, misbehaving=event.misbehaving)


def _replaced(
    slots: tuple[Slot, ...], status: SlotStatus, admissions: Mapping[str, Admission]
) -> tuple[Slot, ...]:
    """The slots of that status as the new word on them has it."""
    return tuple(
        attrs.evolve(
            _slot(slot.step, slot.call, admissions[slot.step], slot.request), begun=slot.begun
        )
        if slot.step in admissions and slot.status is status
        else slot
        for slot in slots
    )


def _settle(
    rules: Rules,
    state: Classifying | Executing | Waiting,
    slots: tuple[Slot, ...],
    *,
    misbehaving: bool = False,
) -> Step:
    """Run what may run, else ask people, else commit the batch and go on.

    What was admitted runs even when too many others were refused: the run ends after it. A budget
    that ran out ends the run by itself, so it is the reason that is named.
    """
    barren, text, kept = state.barren, state.text, state.kept
    whole = _all_or_none(rules, state, slots, misbehaving=misbehaving) if rules.atomic else None
    if whole is not None:
        return whole
    admitted = _admitted(slots)
    if admitted:
        running = Executing(barren=barren, text=text, slots=slots, kept=kept)
        return Step(running, (Execute(slots=admitted),))
    requests = _requests(slots)
    if requests:
        waiting = Waiting(barren=barren, text=text, slots=slots, kept=kept)
        return Step(waiting, (AskPeople(requests=requests),))
    commit = Commit(messages=_batch_messages(state, slots))
    short = _shortfall(slots)
    if short is not None:
        return _stop_for_budget(rules, barren, short, commit)
    if any(slot.stuck for slot in slots):
        outcome = failure("loop", StopCode.NO_PROGRESS, "The model repeats calls in circles.")
        return Step(Ended(outcome=outcome), (commit, Finish(outcome=outcome)))
    if misbehaving:
        outcome = _misbehaving("More calls were refused than the contract allows.")
        return Step(Ended(outcome=outcome), (commit, Finish(outcome=outcome)))
    sound = any(slot.ran or slot.excused for slot in slots)
    return _next_turn(rules, 0 if sound else barren + 1, (commit,))


BATCH_REFUSED: Final = refusal(
    CallCode.BATCH_REFUSED,
    "Another call of this response was refused; the calls of a response run all or none.",
    retryable=True,
)
"""The output of a call that was withdrawn because a sibling was refused."""


def _all_or_none(
    rules: Rules,
    state: Classifying | Executing | Waiting,
    slots: tuple[Slot, ...],
    *,
    misbehaving: bool,
) -> Step | None:
    """What an atomic batch does while a call of it is open: nothing runs before all may."""
    waiting = tuple(slot for slot in slots if slot.status is not SlotStatus.DONE)
    if not waiting:
        return None
    if any(_is_refused(slot) for slot in slots):
        closed = tuple(_withdrawn(slot) if slot in waiting else slot for slot in slots)
        after = _settle(rules, state, closed, misbehaving=misbehaving)
        return Step(after.state, (Withdraw(slots=waiting), *after.commands))
    requests = _requests(slots)
    if not requests:
        return None
    held = Waiting(barren=state.barren, text=state.text, slots=slots, kept=state.kept)
    return Step(held, (AskPeople(requests=requests),))


def _is_refused(slot: Slot) -> bool:
    """Whether a call did not run and has no good answer either: one from the record is good."""
    return slot.result is not None and not slot.ran and not slot.result.ok


def _withdrawn(slot: Slot) -> Slot:
    output = begun_before(BATCH_REFUSED) if slot.begun else BATCH_REFUSED
    result = result_message(slot.call, output)
    return Slot(step=slot.step, call=slot.call, status=SlotStatus.DONE, result=result)


def _shortfall(slots: tuple[Slot, ...]) -> Shortfall | None:
    """The first budget that refused a call; one that ends the run hard before all others."""
    found = [slot.shortfall for slot in slots if slot.shortfall is not None]
    if not found:
        return None
    return next((short for short in found if short.budget in HARD), found[0])


def _may_wrap_up(rules: Rules, short: Shortfall | None) -> bool:
    """Steps and turns run out softly: one more answer may be asked for. Tokens, money, time do not."""
    return rules.wrap_up and short is not None and short.budget not in HARD


def _stop_for_budget(rules: Rules, barren: int, short: Shortfall, commit: Commit) -> Step:
    stop = budget_stop(short)
    if _may_wrap_up(rules, short):
        return Step(Thinking(barren=barren, closing=stop), (commit, AskModel(final=True)))
    outcome = Outcome(kind=OutcomeKind.SUSPENDED, stop=stop)
    return Step(Thinking(barren=barren), (commit, Finish(outcome=outcome)))


def budget_stop(short: Shortfall) -> Stop:
    """The stop of a run whose budget ran out."""
    return Stop(
        code=StopCode.BUDGET_EXHAUSTED,
        message=short.sentence,
        shortfall=short,
    )


def _next_turn(rules: Rules, barren: int, commands: tuple[Command, ...]) -> Step:
    if barren < rules.max_consecutive_refused:
        return Step(Thinking(barren=barren), (*commands, AskModel()))
    outcome = _misbehaving(f"Nothing was admitted of {barren} responses in a row.")
    return Step(Ended(outcome=outcome), (*commands, Finish(outcome=outcome)))


def _misbehaving(message: str) -> Outcome:
    stop = Stop(code=StopCode.MODEL_MISBEHAVING, message=message, stage="loop")
    return Outcome(kind=OutcomeKind.ERROR, stop=stop)


def _end(outcome: Outcome, messages: tuple[Message, ...]) -> Step:
    commits = (Commit(messages=messages),) if messages else ()
    return Step(Ended(outcome=outcome), (*commits, Finish(outcome=outcome)))


def _interrupt(state: State, event: Interrupted) -> Step:
    if isinstance(state, Ended):
        return Step(state, (Finish(outcome=state.outcome),))
    if event.resumable:
        return Step(state, (Finish(outcome=event.outcome),))
    return _end(event.outcome, _closed_batch(state, event.begun))


def failure(stage: str, code: str, message: str, cause: BaseException | None = None) -> Outcome:
    """The outcome of a drive that cannot go on."""
    stop = Stop(code=code, message=message, stage=stage)
    return Outcome(kind=OutcomeKind.ERROR, stop=stop, cause=cause)


# ── the batch as messages ─────────────────────────────────────────────────────────────────────


def _admitted(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    return tuple([slot for slot in slots if slot.status is SlotStatus.ADMITTED])


def _requests(slots: tuple[Slot, ...]) -> tuple[ApprovalRequest, ...]:
    return tuple(
        [
            slot.request
            for slot in slots
            if slot.status is SlotStatus.PENDING and slot.request is not None
        ]
    )


def _batch_messages(
    state: Classifying | Executing | Waiting, slots: tuple[Slot, ...]
) -> tuple[Message, ...]:
    calls = tuple([slot.call for slot in slots])
    said = AssistantMessage(text=state.text, calls=calls, kept=state.kept)
    return (said, *[slot.result for slot in slots if slot.result is not None])


def _closed_batch(state: State, begun: frozenset[str]) -> tuple[Message, ...]:
    """The batch in hand with one result for every call, whatever its status; an answer as it is."""
    if isinstance(state, Checking):
        text = clean_text(state.taken.turn.text)
        return (AssistantMessage(text=text),) if text else ()
    if isinstance(state, Classifying):
        slots = tuple(
            Slot(step=call.step, call=call.call, status=SlotStatus.PENDING) for call in state.calls
        )
        return _batch_messages(state, tuple(_close(slot, begun) for slot in slots))
    if isinstance(state, Executing | Waiting):
        slots = tuple(_close(slot, begun) for slot in state.slots)
        return _batch_messages(state, slots)
    return ()


def _close(slot: Slot, begun: frozenset[str]) -> Slot:
    if slot.result is not None:
        return slot
    started = slot.status is SlotStatus.ADMITTED and slot.step in begun
    output = refusal(
        CallCode.CANCELLED,
        "The run was stopped before this call had a result.",
        executed=Executed.UNKNOWN if started else Executed.NO,
    )
    return attrs.evolve(slot, status=SlotStatus.DONE, result=result_message(slot.call, output))


def pending_messages(
    state: State, results: Mapping[str, ToolMessage], begun: frozenset[str] = frozenset()
) -> tuple[Message, ...]:
    """What a host is shown of a batch that is not finished: every call has one result.

    A call that waits for a person shows APPROVAL_REQUIRED, one of the steps *begun* without a
    result OUTCOME_UNKNOWN, any other CANCELLED; all are replaced when the run is taken up again.
    *results* are those that calls of the batch already have, by call id.
    """
    if isinstance(state, Classifying):
        return _closed_batch(state, frozenset())
    if not isinstance(state, Executing | Waiting):
        return ()
    return _batch_messages(state, tuple(_shown(slot, results, begun) for slot in state.slots))


def _shown(slot: Slot, results: Mapping[str, ToolMessage], begun: frozenset[str]) -> Slot:
    if slot.result is not None:
        return slot
    if slot.call.id in results:
        return attrs.evolve(slot, result=results[slot.call.id])
    return attrs.evolve(slot, result=result_message(slot.call, _unfinished(slot, begun)))


def _unfinished(slot: Slot, begun: frozenset[str]) -> ToolOutput:
    if slot.status is SlotStatus.PENDING:
        return refusal(CallCode.APPROVAL_REQUIRED, "This call waits for a person.")
    if slot.step not in begun:
        return refusal(CallCode.CANCELLED, "The run was stopped before this call began.")
    text = "This call was started and has no result yet."
    return refusal(CallCode.OUTCOME_UNKNOWN, text, executed=Executed.UNKNOWN)
