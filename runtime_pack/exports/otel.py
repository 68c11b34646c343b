"""OpenTelemetry: events as log records, turns and calls as spans, in the JSON form of OTLP. Pure.

Names are those of the GenAI semantic conventions, all of which are still in development: they stand
here and nowhere else. Denials and approvals are log records; spans have no events.

Source: opentelemetry.io, semantic-conventions-genai 0.1.0; OTLP 1.x, JSON Protobuf encoding.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import orjson

from runtime_pack.exports._parts import PRODUCT, Read, Record, ascii_json, read

__all__ = ("log_line", "log_record", "logs_envelope", "logs_payload", "spans_of", "spans_payload")

_OPERATION: Final = "gen_ai.operation.name"
_AGENT: Final = "gen_ai.agent.name"
_CONVERSATION: Final = "gen_ai.conversation.id"
_TOOL: Final = "gen_ai.tool.name"
_CALL: Final = "gen_ai.tool.call.id"
_INPUT: Final = "gen_ai.usage.input_tokens"
_OUTPUT: Final = "gen_ai.usage.output_tokens"
_ERROR: Final = "error.type"
_INTERNAL, _CLIENT = 1, 3
_OK, _FAILED = 1, 2
_SEVERITIES: Final[Mapping[str, int]] = {"info": 9, "low": 10, "medium": 13, "high": 14}
_TRACE: Final = re.compile(r"[0-9a-f]{32}\Z")
_SPAN: Final = re.compile(r"[0-9a-f]{16}\Z")
# Which event begins and which ends a span, and the operation it is of.
_BEGINS: Final[Mapping[str, str]] = {
    "run:started": "invoke_agent",
    "run:resumed": "invoke_agent",
    "turn:started": "chat",
    "step:started": "execute_tool",
}
_ENDS: Final[Mapping[str, str]] = {
    "run:finished": "invoke_agent",
    "turn:finished": "chat",
    "step:finished": "execute_tool",
}


def log_line(record: Record) -> str:
    """The event as one line: a log record."""
    return ascii_json(log_record(record))


def log_record(record: Record) -> dict[str, object]:
    """The event as a log record of OTLP."""
    event = read(record)
    named: dict[str, str | int | None] = {
        "event.name": event.type,
        "runtime_pack.code": event.code,
        "runtime_pack.id": event.id,
        "runtime_pack.seq": event.seq,
        "runtime_pack.rule": event.said("rule"),
        "runtime_pack.reason": event.said("reason_code", "code"),
        "server.address": event.said("host") if event.is_violation else "",
        "server.port": event.port() if event.is_violation else None,
        _CONVERSATION: event.said("run"),
        _AGENT: event.said("agent"),
        _TOOL: event.said("tool"),
        _CALL: event.said("call"),
    }
    return {
        "timeUnixNano": str(event.micros * 1000),
        "severityNumber": _SEVERITIES.get(event.severity, 9),
        "severityText": event.severity,
        "body": {"stringValue": ascii_json(record)},
        "attributes": _attributes(named),
        "traceId": _trace_id(event),
        "spanId": _span_id(event),
    }


def spans_of(records: Iterable[Record]) -> list[dict[str, object]]:
    """The spans of what began and ended in *records*, in the order of their ends.

    What began and did not end has no span yet; a run that was suspended has one for each drive.
    """
    begun: dict[tuple[str, str, str], Read] = {}
    spans = []
    for record in records:
        event = read(record)
        if event.type in _BEGINS:
            begun[(_BEGINS[event.type], *_who(event))] = event
        elif event.type in _ENDS:
            start = begun.pop((_ENDS[event.type], *_who(event)), None)
            if start is not None:
                spans.append(_span(_ENDS[event.type], start, event))
    return spans


def _who(event: Read) -> tuple[str, str]:
    return event.said("run"), event.said("step")


def _span(operation: str, start: Read, end: Read) -> dict[str, object]:
    agent, tool = start.said("agent"), start.said("tool")
    about = {"invoke_agent": agent, "execute_tool": tool}.get(operation, "")
    failed = end.is_error or (operation == "invoke_agent" and end.object.get("kind") == "error")
    named: dict[str, str | int | None] = {
        _OPERATION: operation,
        _CONVERSATION: start.said("run"),
        _AGENT: agent,
        _TOOL: tool if operation == "execute_tool" else "",
        _CALL: start.said("call"),
        _INPUT: end.number("input_tokens"),
        _OUTPUT: end.number("output_tokens"),
        _ERROR: (end.said("code") or "_OTHER") if failed else "",
    }
    return {
        "traceId": _trace_id(start),
        "spanId": _span_id(start),
        "parentSpanId": _parent_id(operation, start),
        "name": f"{operation} {about}".rstrip(),
        "kind": _CLIENT if operation == "chat" else _INTERNAL,
        "startTimeUnixNano": str(start.micros * 1000),
        "endTimeUnixNano": str(max(start.micros, end.micros) * 1000),
        "attributes": _attributes(named),
        "status": {"code": _FAILED} if failed else {"code": _OK},
    }


def _digest(text: str, characters: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:characters]


def _trace_id(event: Read) -> str:
    """The caller's trace, else one of the run's own."""
    given = event.trace.get("trace_id")
    if isinstance(given, str) and _TRACE.match(given):
        return given
    return _digest(f"trace of {event.said('run')}", 32)


def _span_id(event: Read) -> str:
    return _digest(f"span of {event.said('run')} {event.said('step')}", 16)


def _parent_id(operation: str, event: Read) -> str:
    """The run's span above its turns and calls, the caller's above the run."""
    if operation != "invoke_agent":
        return _digest(f"span of {event.said('run')} ", 16)
    given = event.trace.get("span_id")
    return given if isinstance(given, str) and _SPAN.match(given) else ""


def _attributes(named: Mapping[str, str | int | None]) -> list[dict[str, object]]:
    return [
        {"key": key, "value": {"stringValue": v} if isinstance(v, str) else {"intValue": str(v)}}
        for key, v in named.items()
        if v is not None and v != ""
    ]


def _resource() -> dict[str, object]:
    return {"attributes": _attributes({"service.name": PRODUCT})}


def logs_payload(records: Iterable[Record]) -> dict[str, object]:
    """What is posted to `/v1/logs`."""
    scope = {"scope": {"name": PRODUCT}, "logRecords": [log_record(r) for r in records]}
    return {"resourceLogs": [{"resource": _resource(), "scopeLogs": [scope]}]}


def logs_envelope(records: Iterable[bytes]) -> bytes:
    """The same of log records that are JSON already, each as `log_record` has it."""
    scope, resource = orjson.dumps({"name": PRODUCT}), orjson.dumps(_resource())
    return (
        b'{"resourceLogs":[{"resource":'
        + resource
        + b',"scopeLogs":[{"scope":'
        + scope
        + b',"logRecords":['
        + b",".join(records)
        + b"]}]}]}"
    )


def spans_payload(records: Iterable[Record]) -> dict[str, object]:
    """What is posted to `/v1/traces`."""
    scope = {"scope": {"name": PRODUCT}, "spans": spans_of(records)}
    return {"resourceSpans": [{"resource": _resource(), "scopeSpans": [scope]}]}
