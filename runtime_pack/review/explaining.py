"""Why something was denied: the rule in words, and what of a policy file would admit it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson

from egress import DenyReason
from egress.reasons import DENY_ROWS
from runtime_pack.audit.facts import EventFacts, Record, Wanted, read_record
from runtime_pack.audit.index import EventIndex, Place
from runtime_pack.codes import CALL_ROWS
from runtime_pack.errors import CallCode
from runtime_pack.events import EVENT_ROWS, EventCode
from runtime_pack.messages import Json
from runtime_pack.policy_file import PolicyFile, PolicyFileRefused, parse_policy, read_policy
from runtime_pack.policy_suggest import EMPTY_POLICY, is_denial, suggest
from runtime_pack.recorded_calls import Recording
from runtime_pack.review.reading import is_stale, records_of

__all__ = ("event_json", "why_json")

# The denials of the same host or tool that a suggestion must not admit beside the chosen one.
_BESIDE: Final = 2000
_MAX_TEXT: Final = 1 << 18


def event_json(places: tuple[Place, ...]) -> list[Json]:
    """Events whole, each as indented text: what a browser makes of numbers is not what was written."""
    found: list[Json] = []
    for place in places:
        line = place.line()
        record = read_record(line)
        body = line if record is None else orjson.dumps(record, option=orjson.OPT_INDENT_2)
        text = body.decode("utf-8", "replace")
        found.append(
            {
                "log": place.log,
                "line": place.facts.seq,
                "stale": is_stale(place.facts, record),
                "text": text[:_MAX_TEXT],
                "cut": len(text) > _MAX_TEXT,
                "code": place.facts.code,
                "run": place.facts.run,
                "step": place.facts.step,
                "at": place.facts.at,
                **_meaning(place.facts),
            }
        )
    return found


def why_json(
    index: EventIndex, event: str, policy: Path | None, *, private: bool
) -> dict[str, Json] | None:
    """What would admit a denial; None when the event is none."""
    places = index.find(event)
    if not places:
        return None
    facts = places[0].facts
    calls = Recording.of(_around(index, facts)).calls
    chosen = [call for call in calls if is_denial(call) and event in call.events]
    if not chosen:
        return None
    try:
        file = _policy(policy)
    except PolicyFileRefused as error:
        return {"policy": str(policy), "fault": "; ".join(map(str, error.faults))}
    found = suggest(calls, {event}, file, private=private)
    name = "policy.toml" if policy is None else policy.name
    return {"policy": None if policy is None else str(policy), **found.to_json(name)}


def _policy(path: Path | None) -> PolicyFile:
    return parse_policy(EMPTY_POLICY) if path is None else read_policy(path)


def _around(index: EventIndex, facts: EventFacts) -> list[Record]:
    """The run of an event, and other denials of its host or tool."""
    wanted = [Wanted(run=facts.run)] if facts.run else []
    for name in ("host", "tool"):
        value = getattr(facts, name)
        if value and not {"*", "?"} & set(value):
            wanted.append(Wanted(**{name: value, "denied": True}))
    if not facts.run:
        wanted.append(Wanted(code=facts.code))
    return records_of(index, wanted, _BESIDE)


def _meaning(facts: EventFacts) -> dict[str, Json]:
    """What the tables of codes say of it."""
    told: dict[str, Json] = {}
    if facts.code in set(EventCode):
        row = EVENT_ROWS[EventCode(facts.code)]
        told |= {"meaning": row.meaning, "advice": row.advice}
    if facts.reason in set(DenyReason):
        reason = DENY_ROWS[DenyReason(facts.reason)]
        told |= {"reason_meaning": reason.meaning, "reason_advice": reason.advice}
    elif facts.result in set(CallCode):
        code = CALL_ROWS[CallCode(facts.result)]
        told |= {"reason_meaning": code.meaning, "reason_advice": code.advice}
    return {**told, "rule": facts.rule, "reason": facts.reason}
