"""Elastic Common Schema 8: one JSON object an event. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtime_pack.exports._parts import PRODUCT, Read, Record, ascii_json, compact, is_address, read

__all__ = ("ecs_event", "ecs_line")

_VERSION: Final = "8.17.0"
_SEVERITIES: Final[Mapping[str, int]] = {"info": 1, "low": 3, "medium": 6, "high": 9}
_CATEGORIES: Final[Mapping[str, str]] = {
    "sandbox": "network",
    "step": "process",
    "call": "process",
    "approval": "iam",
    "run": "session",
    "log": "configuration",
}


def ecs_line(record: Record) -> str:
    """The event as one line."""
    return ascii_json(ecs_event(record))


def ecs_event(record: Record) -> dict[str, object]:
    """The event; what the schema has no place for stands in `runtime_pack`."""
    event = read(record)
    return compact(
        {
            "@timestamp": event.at,
            "ecs": {"version": _VERSION},
            "event": compact(_event(event)),
            "log": compact({"level": event.severity}),
            "service": {"name": PRODUCT, "type": PRODUCT},
            "rule": compact({"id": event.said("rule"), "name": event.said("rule")}),
            "destination": _destination(event) if event.is_violation else None,
            "network": _network(event) if event.is_violation else None,
            "trace": compact({"id": event.trace.get("trace_id")}),
            "span": compact({"id": event.trace.get("span_id")}),
            "runtime_pack": compact(
                {
                    "subject": dict(event.subject),
                    "object": dict(event.object),
                    "decision": dict(event.decision),
                }
            ),
        }
    )


def _event(event: Read) -> dict[str, object]:
    return {
        "id": event.id,
        "kind": "event",
        "category": [_CATEGORIES.get(event.type.partition(":")[0], "process")],
        "type": [_type(event)],
        "action": event.type,
        "code": event.code,
        "outcome": "failure" if event.is_denied or event.is_error else "success",
        "provider": PRODUCT,
        "reason": event.said("reason_code", "code"),
        "sequence": event.seq,
        "severity": _SEVERITIES.get(event.severity, 5),
    }


def _type(event: Read) -> str:
    """The word of the schema's list."""
    if event.is_denied:
        return "denied"
    if event.is_error:
        return "error"
    if event.code.endswith("A"):
        return "allowed"
    end = event.type.rpartition(":")[2]
    return {"started": "start", "opened": "start", "finished": "end", "closed": "end"}.get(
        end, "info"
    )


def _destination(event: Read) -> dict[str, object]:
    host = event.said("host")
    name = "ip" if is_address(host) else "domain"
    return compact(
        {
            "address": host,
            name: host.strip("[]") if name == "ip" else host,
            "port": event.port(),
        }
    )


def _network(event: Read) -> dict[str, object]:
    return compact({"direction": "egress", "transport": "tcp", "protocol": event.said("proto")})
