"""Saved runs: the document and its seal. Where they are kept is `stores`.

A saved run is a small head and rows. The head (state of the machine, ledger, label) is replaced
at each save; rows (messages, results, records) are only ever appended, so saving costs what is
new, not what the run already holds. The head carries the number of rows and a hash chained over
them, and is sealed; so no byte of either can change unseen. JSON only: nothing is imported by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

import orjson

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.catalog import Effects, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import ContractError, StateRefused
from runtime_pack.instants import instant_text
from runtime_pack.labels import Integrity
from runtime_pack.ledger import Shortfall
from runtime_pack.machine import (
    Checking,
    Classifying,
    Ended,
    Executing,
    IngestedCall,
    Outcome,
    OutcomeKind,
    Slot,
    SlotStatus,
    State,
    Stop,
    Thinking,
    TurnTaken,
    Waiting,
    refusal,
)
from runtime_pack.messages import (
    FinishReason,
    Json,
    KeptItem,
    ToolCall,
    ToolMessage,
    Turn,
    TurnStatus,
    clean_text,
    frozen_arguments,
    kept_from_json,
    kept_to_json,
    message_from_json,
    message_to_json,
    own_copy,
)
from runtime_pack.seal import Seal
from runtime_pack.stores.port import RunStore, SavedRun
from runtime_pack.strictness import ApprovalClass

__all__ = (
    "FORMAT",
    "SCHEMA",
    "RunStore",
    "SavedRun",
    "chain_rows",
    "open_head",
    "seal_head",
    "spec_from_json",
    "spec_to_json",
    "state_from_json",
    "state_to_json",
)

FORMAT: Final = "agent-runtime-pack/run"
SCHEMA: Final = 2
"""2: requests are sealed, and what was decided is kept whole."""
_READS: Final = (1, SCHEMA)
EMPTY_CHAIN: Final = "0" * 64


# ── the sealed head ───────────────────────────────────────────────────────────────────────────


def chain_rows(chain: str, rows: Sequence[bytes]) -> str:
    """The running hash over rows: each one with the hash before it."""
    for row in rows:
        chain = hashlib.sha256(chain.encode() + row).hexdigest()
    return chain


def seal_head(body: Mapping[str, Json], seal: Seal) -> bytes:
    """The head as stored: canonical JSON and its tag."""
    content = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return own_copy(orjson.dumps({"body": content.decode(), "tag": seal.tag(content)}))


def open_head(
    saved: SavedRun, seal: Seal, *, form: str = FORMAT, reads: tuple[int, ...] = _READS
) -> dict[str, Json]:
    """The head's body, if head and rows are what was sealed, and of this form.

    Raises:
        StateRefused: another key, an edited byte, a row added, lost or moved, another run's
            head, an unknown format or a newer schema.
    """
    try:
        envelope = orjson.loads(saved.head)
        content, tag = envelope["body"], envelope["tag"]
        body = content.encode()
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise StateRefused("the saved run has no sealed head") from error
    seal.check(body, str(tag))
    fields: dict[str, Json] = orjson.loads(body)
    if fields.get("format") != form:
        raise StateRefused(f"unknown format {fields.get('format')!r}")
    if fields.get("schema") not in reads or isinstance(fields.get("schema"), bool):
        raise StateRefused(
            f"schema {fields.get('schema')!r} is none of {reads}, which this version reads"
        )
    if fields.get("run") != saved.run_id or fields.get("revision") != saved.revision:
        raise StateRefused("the head belongs to another run or revision")
    if fields.get("rows") != len(saved.rows):
        raise StateRefused("rows were added or lost")
    if fields.get("rows_sha256") != chain_rows(EMPTY_CHAIN, saved.rows):
        raise StateRefused("a row was edited or moved")
    return fields


# ── the machine's state as JSON ───────────────────────────────────────────────────────────────


def state_to_json(state: State) -> dict[str, Json]:
    """A state between two events. Of a batch that is being judged nothing was decided yet."""
    match state:
        case Thinking(barren=barren, closing=closing):
            stop = None if closing is None else _stop_to_json(closing)
            return {"at": "thinking", "barren": barren, "closing": stop}
        case Classifying(barren=barren, text=text, calls=calls, kept=kept):
            asked: list[Json] = [_ingested_to_json(call) for call in calls]
            judged: dict[str, Json] = {"barren": barren, "text": text, "calls": asked}
            return {"at": "judging", **judged, **_kept(kept)}
        case Checking():
            return _checking_to_json(state)
        case Executing():
            return _batch("executing", state)
        case Waiting():
            return _batch("waiting", state)
        case Ended(outcome=outcome):
            return {"at": "ended", "outcome": outcome_to_json(outcome)}


def _checking_to_json(state: Checking) -> dict[str, Json]:
    turn, closing = state.taken.turn, state.closing
    return {
        "at": "checking",
        "barren": state.barren,
        "closing": None if closing is None else _stop_to_json(closing),
        "status": str(turn.status),
        "finish": str(turn.finish),
        "text": clean_text(turn.text),
        "cut": state.taken.cut,
        **_kept(turn.kept),
    }


def _read_checking(value: dict[str, Json], barren: int, closing: Stop | None) -> Checking:
    turn = Turn(
        status=TurnStatus(str(value["status"])),
        finish=FinishReason(str(value["finish"])),
        text=str(value["text"]),
        kept=kept_from_json(value.get("kept", [])),
    )
    taken = TurnTaken(turn=turn, calls=(), cut=value["cut"] is True, to_check=True)
    return Checking(barren=barren, closing=closing, taken=taken)


def _ingested_to_json(call: IngestedCall) -> dict[str, Json]:
    fault = None if call.fault is None else call.fault.data
    return {
        "step": call.step,
        "call": _call_to_json(call.call),
        "raw": None if call.raw is None else clean_text(call.raw),
        "fault": fault,
        "cut": call.cut,
    }


def _call_to_json(call: ToolCall) -> dict[str, Json]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _batch(at: str, state: Executing | Waiting) -> dict[str, Json]:
    return {
        "at": at,
        "barren": state.barren,
        "text": state.text,
        "slots": [_slot_to_json(slot) for slot in state.slots],
        **_kept(state.kept),
    }


def _kept(kept: tuple[KeptItem, ...]) -> dict[str, Json]:
    # Written where there is some only: heads of earlier versions do not know it.
    return {"kept": kept_to_json(kept)} if kept else {}


def _slot_to_json(slot: Slot) -> dict[str, Json]:
    """Results that a tool gave are rows, found by call id; only refusals stand in the head."""
    result = None if slot.ran or slot.result is None else message_to_json(slot.result)
    # Written where it is so only: heads of earlier versions do not know it.
    marks: dict[str, Json] = {"stuck": True} if slot.stuck else {}
    if slot.excused:
        marks["excused"] = True
    return marks | {
        "step": slot.step,
        "call": _call_to_json(slot.call),
        "status": str(slot.status),
        "ran": slot.ran,
        "result": result,
        "request": None if slot.request is None else slot.request.to_json(),
        "stop": None if slot.shortfall is None else slot.shortfall.to_json(),
    }


def outcome_to_json(outcome: Outcome) -> dict[str, Json]:
    """An outcome in a head."""
    return {
        "kind": str(outcome.kind),
        "stop": None if outcome.stop is None else _stop_to_json(outcome.stop),
        "text": outcome.text,
    }


def _stop_to_json(stop: Stop) -> dict[str, Json]:
    # Written where there is one only: a head without it is what an earlier version wrote.
    at: dict[str, Json] = {} if stop.retry_at is None else {"retry_at": instant_text(stop.retry_at)}
    if stop.output_fault is not None:
        at["output_fault"] = stop.output_fault
    return at | {
        "code": str(stop.code),
        "message": stop.message,
        "stage": stop.stage,
        "short": None if stop.shortfall is None else stop.shortfall.to_json(),
    }


def state_from_json(value: object, results: Mapping[str, ToolMessage]) -> State:
    """Read what `state_to_json` wrote; *results* are those of the rows, by call id.

    Raises:
        StateRefused: not of that form.
    """
    try:
        return _read_state(_object(value), results)
    except (KeyError, TypeError, ValueError) as error:
        raise StateRefused(f"the saved state cannot be read ({error})") from error


def _read_state(value: dict[str, Json], results: Mapping[str, ToolMessage]) -> State:
    at = value["at"]
    if at == "ended":
        return Ended(outcome=outcome_from_json(value["outcome"]))
    barren = _integer(value["barren"])
    if at in {"thinking", "checking"}:
        closing = None if value["closing"] is None else _read_stop(value["closing"])
        if at == "checking":
            return _read_checking(value, barren, closing)
        return Thinking(barren=barren, closing=closing)
    text, kept = str(value["text"]), kept_from_json(value.get("kept", []))
    if at == "judging":
        calls = tuple(_read_ingested(_object(call)) for call in _list(value["calls"]))
        return Classifying(barren=barren, text=text, calls=calls, kept=kept)
    slots = tuple(_read_slot(_object(slot), results) for slot in _list(value["slots"]))
    if at == "executing":
        return Executing(barren=barren, text=text, slots=slots, kept=kept)
    if at == "waiting":
        return Waiting(barren=barren, text=text, slots=slots, kept=kept)
    raise ValueError(f"unknown state {at!r}")


def _read_ingested(value: dict[str, Json]) -> IngestedCall:
    call, raw, fault = _read_call(value["call"]), value["raw"], value["fault"]
    return IngestedCall(
        step=str(value["step"]),
        call=call,
        arguments=_object(call.arguments),
        raw=None if raw is None else str(raw),
        fault=None if fault is None else _read_refusal(_object(fault)),
        cut=value["cut"] is True,
    )


def _read_call(value: object) -> ToolCall:
    fields = _object(value)
    arguments = frozen_arguments(_object(fields["arguments"]))
    return ToolCall(id=str(fields["id"]), name=str(fields["name"]), arguments=arguments)


def _read_refusal(value: dict[str, Json]) -> ToolOutput:
    own = {"code", "message", "executed", "retryable"}
    return refusal(
        str(value["code"]),
        str(value["message"]),
        executed=Executed(str(value["executed"])),
        retryable=value["retryable"] is True,
        details={name: told for name, told in value.items() if name not in own},
    )


def _read_slot(value: dict[str, Json], results: Mapping[str, ToolMessage]) -> Slot:
    call, step = _read_call(value["call"]), str(value["step"])
    status, ran, request = SlotStatus(str(value["status"])), value["ran"] is True, value["request"]
    result = results.get(call.id) if ran else None
    if value["result"] is not None:
        message = message_from_json(value["result"])
        if not isinstance(message, ToolMessage):
            raise TypeError("a slot's result is a tool message")
        result = message
    return Slot(
        step=step,
        call=call,
        status=SlotStatus.DONE if result is not None else status,
        ran=ran,
        result=result,
        request=None if request is None else ApprovalRequest.from_json(_object(request)),
        shortfall=None if value["stop"] is None else Shortfall.from_json(_object(value["stop"])),
        stuck=value.get("stuck") is True,
        excused=value.get("excused") is True,
    )


def outcome_from_json(value: object) -> Outcome:
    """Read what `outcome_to_json` wrote."""
    fields = _object(value)
    stop = fields["stop"]
    return Outcome(
        kind=OutcomeKind(str(fields["kind"])),
        stop=None if stop is None else _read_stop(stop),
        text=str(fields["text"]),
    )


def _read_stop(value: object) -> Stop:
    fields = _object(value)
    stage, short, at = fields["stage"], fields["short"], fields.get("retry_at")
    fault = fields.get("output_fault")
    return Stop(
        code=str(fields["code"]),
        message=str(fields["message"]),
        stage=None if stage is None else str(stage),
        shortfall=None if short is None else Shortfall.from_json(_object(short)),
        retry_at=None if at is None else datetime.fromisoformat(str(at)),
        output_fault=None if fault is None else str(fault),
    )


def _object(value: object) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value


def _list(value: object) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError("a list is expected")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number is expected")
    return value


def spec_to_json(spec: ToolSpec) -> dict[str, Json]:
    """A tool's definition, so that a run can be taken up where its catalog is not at hand."""
    return spec.to_json()


def spec_from_json(value: object) -> ToolSpec:
    """Read what `spec_to_json` wrote.

    Raises:
        StateRefused: not of that form.
    """
    try:
        fields = _object(value)
        return ToolSpec(
            name=str(fields["name"]),
            description=str(fields["description"]),
            parameters=_object(fields["parameters"]),
            output_trust=Integrity(str(fields["output_trust"])),
            timeout_seconds=_number(fields["timeout_seconds"]),
            effects=Effects(str(fields["effects"])),
            invalid_code=str(fields["invalid_code"]),
            poll=fields.get("poll") is True,
            exclusive=fields.get("exclusive") is True,
            cosmetic=fields.get("cosmetic") or (),
            output_confidentiality=fields.get("output_confidentiality"),
            side_effects=fields.get("side_effects"),
            destination_args=fields.get("destination_args") or (),
            price=None if "price" not in fields else Decimal(str(fields["price"])),
            approval_class=ApprovalClass(str(fields.get("approval_class", ApprovalClass.AUTO))),
        )
    except (ArithmeticError, KeyError, TypeError, ValueError, ContractError) as error:
        raise StateRefused(f"a saved tool cannot be read ({error})") from error
