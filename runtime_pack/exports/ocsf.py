"""OCSF 1.8.0: one JSON object an event. Pure.

A connection that was refused is Network Activity (4001), everything else API Activity (6003) with
the activity "Execute Tool" for calls; repeats can be rolled up into a Detection Finding (2004). In
1.8.0 the profile `ai_operation` is not for 4001: what it would say stands in `unmapped`.

Source: schema.ocsf.io, version 1.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from runtime_pack.exports._parts import (
    PRODUCT,
    VENDOR,
    Read,
    Record,
    ascii_json,
    compact,
    is_address,
    read,
)

__all__ = ("RollUp", "detection_finding", "ocsf_event", "ocsf_line")

_VERSION: Final = "1.8.0"
_SEVERITIES: Final[Mapping[str, int]] = {"info": 1, "low": 2, "medium": 3, "high": 4}
_ALLOWED, _DENIED, _OBSERVED = 1, 2, 3
_SUCCESS, _FAILURE = 1, 2
# Action and disposition by code; by the last letter for those that are not named.
_CONTROLS: Final[Mapping[str, tuple[int, int]]] = {
    "EGR004O": (_OBSERVED, 17),  # logged: a policy that only reports
    "APR001O": (99, 14),  # delayed: it waits for a person
    "APR002A": (_ALLOWED, 8),  # approved
    "APR007A": (_ALLOWED, 8),
    "APR003D": (_DENIED, 25),  # rejected
    "APR004D": (_DENIED, 25),
    "STP001A": (_ALLOWED, 1),
    "STP004D": (_DENIED, 2),
}
_BY_LETTER: Final[Mapping[str, tuple[int, int]]] = {
    "A": (_ALLOWED, 1),
    "D": (_DENIED, 2),
    "O": (_OBSERVED, 17),
    "E": (_OBSERVED, 27),
}


def ocsf_line(record: Record) -> str:
    """The event as one line."""
    return ascii_json(ocsf_event(record))


def ocsf_event(record: Record) -> dict[str, object]:
    """The event as an object of its class."""
    event = read(record)
    return _network(event) if event.is_violation else _api(event)


def _common(event: Read, profiles: list[str]) -> dict[str, object]:
    action, disposition = _CONTROLS.get(event.code) or _BY_LETTER.get(event.code[-1:], (0, 0))
    failed = event.is_denied or event.is_error
    return {
        "action_id": action,
        "action": "Waiting" if action == 99 else None,
        "disposition_id": disposition,
        "firewall_rule": compact({"uid": event.said("rule"), "name": event.said("rule")}),
        "message": event.type,
        "metadata": compact(
            {
                "event_code": event.code,
                "original_time": event.at,
                "product": {"name": PRODUCT, "vendor_name": VENDOR},
                "profiles": profiles,
                "sequence": event.seq,
                "uid": event.id,
                "version": _VERSION,
            }
        ),
        "policy": compact({"uid": event.said("policy_sha256")}),
        "severity_id": _SEVERITIES.get(event.severity, 0),
        "status_code": event.said("reason_code", "code"),
        "status_id": _FAILURE if failed else _SUCCESS,
        "time": event.micros // 1000,
    }


def _network(event: Read) -> dict[str, object]:
    host, enforced = event.said("host"), not event.code.endswith("O")
    activity = 5 if enforced else 1
    known = ("host", "port", "proto")
    return compact(
        {
            **_common(event, ["security_control"]),
            "activity_id": activity,
            "category_uid": 4,
            "class_uid": 4001,
            "type_uid": 400100 + activity,
            "connection_info": {"direction_id": 2, "protocol_name": "tcp"},
            "app_protocol_name": event.said("proto"),
            "dst_endpoint": _endpoint(host, event.port()),
            "unmapped": compact(
                {
                    "subject": dict(event.subject),
                    "object": {k: v for k, v in event.object.items() if k not in known},
                    "decision": dict(event.decision),
                }
            ),
        }
    )


def _endpoint(host: str, port: int | None) -> dict[str, object]:
    """One of name and address is asked for; a host that is neither a name nor an address is a name."""
    if is_address(host):
        return compact({"ip": host.strip("[]"), "port": port})
    plain = host.replace("-", "a").replace(".", "a").replace("_", "a")
    if host and host.isascii() and plain.isalnum() and len(host) <= 253:
        return compact({"hostname": host, "port": port})
    return compact({"name": host or "unknown", "port": port})


def _api(event: Read) -> dict[str, object]:
    profiles = ["security_control", "ai_operation"]
    trace = event.trace.get("trace_id")
    if isinstance(trace, str):
        profiles.append("trace")
    tool = event.said("tool")
    agent = event.said("agent")
    return compact(
        {
            **_common(event, profiles),
            "activity_id": 99,
            "activity_name": "Execute Tool" if tool else event.type,
            "category_uid": 6,
            "class_uid": 6003,
            "type_uid": 600399,
            "type_name": "API Activity: Execute Tool" if tool else f"API Activity: {event.type}",
            "actor": compact(
                {"app_name": agent or PRODUCT, "session": compact({"uid": event.said("run")})}
            ),
            "api": compact(
                {
                    "operation": tool or event.type or "unknown",
                    "request": compact({"uid": event.said("step")}),
                    "service": {"name": PRODUCT},
                }
            ),
            "message_context": compact(
                {"application": {"name": agent or PRODUCT}, "uid": event.said("run")}
            ),
            "src_endpoint": {"svc_name": PRODUCT},
            "trace": {"uid": trace} if isinstance(trace, str) else None,
            "unmapped": compact(
                {
                    "subject": dict(event.subject),
                    "object": dict(event.object),
                    "decision": dict(event.decision),
                }
            ),
        }
    )


@attrs.frozen(kw_only=True)
class RollUp:
    """The same denial many times over: of one run, by one rule, of one host."""

    run: str
    rule: str
    host: str
    times: int
    first_ms: int
    last_ms: int


def detection_finding(repeats: RollUp) -> dict[str, object]:
    """The repeats as one Detection Finding."""
    return {
        "activity_id": 1,
        "action_id": _DENIED,
        "category_uid": 2,
        "class_uid": 2004,
        "count": repeats.times,
        "disposition_id": 2,
        "end_time": repeats.last_ms,
        "finding_info": {
            "title": f"{repeats.host or 'a host'} was refused {repeats.times} times",
            "uid": f"{repeats.run}/{repeats.rule}/{repeats.host}",
        },
        "metadata": {
            "product": {"name": PRODUCT, "vendor_name": VENDOR},
            "profiles": ["security_control"],
            "version": _VERSION,
        },
        "severity_id": 3,
        "start_time": repeats.first_ms,
        "time": repeats.last_ms,
        "type_uid": 200401,
    }
