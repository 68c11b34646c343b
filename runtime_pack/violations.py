"""A denial of the egress policy as an event: one form, whoever refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from egress.violation import TargetFacts, Violation
from runtime_pack.events import EVENT_ROWS, Event, EventCode
from runtime_pack.messages import Json

__all__ = ("violation_event",)

# Which code the rule of a denial has, as the table of events says.
_CODES: Final[Mapping[str, EventCode]] = {
    rule: code for code, row in EVENT_ROWS.items() for rule in row.rules
}


def violation_event(
    violation: Violation, *, subject: Mapping[str, Json], key: str, tool: str | None = None
) -> Event:
    """The one event of a denied read or tunnel.

    Its object has the keys of a network object: `kind, host, port, proto, path_sha256, ip` (the
    refused addresses), `hop, hops, nearest_entry, block, layers`, and `tool` where a tool asked. No
    path, no query.
    """
    body: dict[str, Json] = {
        "kind": violation.kind,
        **_place(violation.target),
        "ip": list(violation.addresses),
        "hop": violation.hop,
        "hops": [_place(hop) for hop in violation.hops],
        "nearest_entry": violation.nearest_entry,
        "block": violation.block,
        "layers": list(violation.layers),
    }
    if tool is not None:
        body["tool"] = tool
    return Event(
        code=_code(violation),
        subject=subject,
        object=body,
        decision={
            "action": "deny" if violation.enforced else "observe",
            "enforced": violation.enforced,
            "rule": violation.rule,
            "reason_code": str(violation.reason),
        },
        key=key,
    )


def _place(facts: TargetFacts) -> dict[str, Json]:
    return {
        "host": facts.host,
        "port": facts.port,
        "proto": facts.scheme,
        "path_sha256": facts.path_sha256,
    }


def _code(violation: Violation) -> EventCode:
    """An unknown rule is told as what needs the most attention."""
    if not violation.enforced:
        return EventCode.EGR004O
    return _CODES.get(violation.rule, EventCode.EGR003D)
