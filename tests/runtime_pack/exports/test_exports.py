"""Exporters: golden lines, validated by other people's code; whatever a log holds, the form holds."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime_pack.events import EVENT_ROWS
from runtime_pack.exports import FORMATS
from runtime_pack.exports.cef import cef_line
from runtime_pack.exports.ecs import ecs_event
from runtime_pack.exports.ocsf import RollUp, detection_finding, ocsf_event
from runtime_pack.exports.otel import logs_payload, spans_of, spans_payload
from runtime_pack.exports.rfc5424 import syslog_line
from runtime_pack.messages import Json

Record = dict[str, Any]

DENIED: Record = {
    "code": "EGR001D",
    "decision": {
        "action": "deny",
        "enforced": True,
        "reason_code": "host_not_listed",
        "rule": "R4",
    },
    "id": "019ca6b1-dc00-7000-9669-1fe34dc68631",
    "object": {
        "hop": 0,
        "host": "evil.example",
        "kind": "network_egress_blocked",
        "port": 443,
        "proto": "https",
        "tool": "web:read",
    },
    "prev": "0" * 64,
    "seq": 7,
    "severity": "medium",
    "subject": {"agent": "ava", "run": "run-1", "step": "t1c1"},
    "ts": "2026-03-01T04:00:00.000042Z",
    "type": "sandbox:violation",
    "v": 1,
}


def event(code: str, kind: str, at: int = 0, **more: Json) -> Record:
    """A line's object; what is not said is as for an event without a decision."""
    body: Record = {
        "code": code,
        "id": "x",
        "object": {},
        "seq": 1,
        "severity": "info",
        "subject": {"run": "run-1"},
        "ts": f"2026-03-01T04:00:{at:02d}.000000Z",
        "type": kind,
        "v": 1,
    }
    return body | more


def test_a_denial_in_common_event_format() -> None:
    """Golden."""
    assert (
        "CEF:0|Agent Runtime Pack|agent-runtime-pack|1|EGR001D|sandbox:violation|6|"
        "rt=1772337600000 externalId=019ca6b1-dc00-7000-9669-1fe34dc68631 cat=sandbox:violation act=deny"
        " dhost=evil.example dpt=443 app=https reason=host_not_listed cs1Label=rule cs1=R4 cs2Label=run"
        " cs2=run-1 cs3Label=step cs3=t1c1 cs4Label=tool cs4=web:read cs5Label=agent cs5=ava cn1Label=line cn1=7"
    ) == cef_line(DENIED)


def test_a_denial_in_syslog() -> None:
    """Golden: facility 13, severity 4."""
    head, _, message = syslog_line(DENIED, host="node-1").partition("] ")

    assert (
        "<108>1 2026-03-01T04:00:00.000042Z node-1 agent-runtime-pack - EGR001D [event@32473"
        ' id="019ca6b1-dc00-7000-9669-1fe34dc68631" type="sandbox:violation" run="run-1" step="t1c1"'
        ' tool="web:read" host="evil.example" rule="R4" reason_code="host_not_listed" agent="ava"'
    ) == head
    assert DENIED == json.loads(message)


def test_a_denial_in_ocsf() -> None:
    """Golden: Network Activity, Refuse, denied and blocked."""
    made = ocsf_event(DENIED)

    assert (4001, 5, 400105, 2, 2, 3, 2) == tuple(
        made[name]
        for name in (
            "class_uid",
            "activity_id",
            "type_uid",
            "action_id",
            "disposition_id",
            "severity_id",
            "status_id",
        )
    )
    assert {"hostname": "evil.example", "port": 443} == made["dst_endpoint"]
    assert 1772337600000 == made["time"]
    assert {"name": "R4", "uid": "R4"} == made["firewall_rule"]


@pytest.mark.parametrize(
    ("code", "kind", "action", "disposition"),
    [
        ("STP001A", "step:started", 1, 1),
        ("STP004D", "step:refused", 2, 2),
        ("APR001O", "approval:requested", 99, 14),
        ("APR002A", "approval:decided", 1, 8),
        ("APR003D", "approval:decided", 2, 25),
        ("STP003E", "step:finished", 3, 27),
    ],
)
def test_a_call_in_ocsf(code: str, kind: str, action: int, disposition: int) -> None:
    """API Activity, Execute Tool, with what was decided."""
    made = ocsf_event(event(code, kind, object={"tool": "t:x"}))

    assert (6003, 99, 600399, "Execute Tool") == (
        made["class_uid"],
        made["activity_id"],
        made["type_uid"],
        made["activity_name"],
    )
    assert (action, disposition) == (made["action_id"], made["disposition_id"])


def test_what_is_only_reported_is_observed_and_logged() -> None:
    """It was fetched: not refused, and not denied."""
    made = ocsf_event(DENIED | {"code": "EGR004O", "severity": "high"})

    assert (1, 3, 17, 4) == tuple(
        made[n] for n in ("activity_id", "action_id", "disposition_id", "severity_id")
    )


def test_a_denial_in_elastic_common_schema() -> None:
    """Golden, the parts that rules look at."""
    made: Any = ecs_event(DENIED)

    assert ("2026-03-01T04:00:00.000042Z", "EGR001D", ["denied"], "failure") == (
        made["@timestamp"],
        made["event"]["code"],
        made["event"]["type"],
        made["event"]["outcome"],
    )
    assert {"address": "evil.example", "domain": "evil.example", "port": 443} == made["destination"]
    address: Any = ecs_event(DENIED | {"object": {"host": "[::1]"}})
    assert {"address": "[::1]", "ip": "::1"} == address["destination"]


def test_turns_and_calls_are_spans_under_their_run() -> None:
    """In one trace, by what began and ended; what did not end is none yet."""
    run = {"run": "run-1", "agent": "ava"}
    trace = {"trace_id": "a" * 32, "span_id": "b" * 16}
    records = [
        event("RUN001O", "run:started", 0, subject=run, trace=trace),
        event("TRN001O", "turn:started", 1, subject=run | {"step": "t1"}),
        event(
            "TRN002O",
            "turn:finished",
            2,
            subject=run | {"step": "t1"},
            object={"input_tokens": 3, "output_tokens": 4},
        ),
        event(
            "STP001A",
            "step:started",
            3,
            subject=run | {"step": "t1c1", "call": "c"},
            object={"tool": "t:x"},
        ),
        event(
            "STP003E",
            "step:finished",
            4,
            subject=run | {"step": "t1c1"},
            object={"tool": "t:x", "code": "TOOL_ERROR"},
        ),
        event("STP001A", "step:started", 5, subject=run | {"step": "t1c2"}, object={"tool": "t:x"}),
        event("RUN002O", "run:finished", 6, subject=run, object={"kind": "completed"}),
    ]
    spans: list[Any] = spans_of(records)
    chat, tool, agent = spans

    assert ["chat", "execute_tool t:x", "invoke_agent ava"] == [
        s["name"] for s in (chat, tool, agent)
    ]
    assert (agent["spanId"], agent["spanId"], "b" * 16) == (
        chat["parentSpanId"],
        tool["parentSpanId"],
        agent["parentSpanId"],
    )
    assert ({"code": 1}, {"code": 2}) == (chat["status"], tool["status"])
    named = {a["key"]: a["value"] for a in tool["attributes"]}
    assert {"stringValue": "TOOL_ERROR"} == named["error.type"]
    assert 4 == len({s["spanId"] for s in (chat, tool, agent)} | {"x"})


def test_repeats_are_one_finding() -> None:
    """With how often and from when to when."""
    made = detection_finding(
        RollUp(run="run-1", rule="R4", host="evil.example", times=9, first_ms=1, last_ms=5)
    )

    assert (2004, 200401, 9, 1, 5) == (
        made["class_uid"],
        made["type_uid"],
        made["count"],
        made["start_time"],
        made["end_time"],
    )
    assert [] == ocsf_faults(made)


# ── validators ──────────────────────────────────────────────────────────────────────────────────


@functools.cache
def ocsf_schema(name: str, profiles: tuple[str, ...]) -> Any:
    library: Any = importlib.import_module("ocsf_json_schema")
    jsonschema: Any = importlib.import_module("jsonschema")
    whole = library.OcsfJsonSchemaEmbedded(library.get_ocsf_schema("1.8.0"))
    return jsonschema.Draft202012Validator(whole.get_class_schema(name, list(profiles)))


def ocsf_faults(made: dict[str, Any]) -> list[str]:
    names = {4001: "network_activity", 6003: "api_activity", 2004: "detection_finding"}
    schema = ocsf_schema(names[made["class_uid"]], tuple(made["metadata"]["profiles"]))
    return [fault.message for fault in schema.iter_errors(made)]


words = st.text(max_size=8) | st.sampled_from(
    ["::1", "10.0.0.1", "a.example", "x|y", "a=b", 'q"]\\', "\x1b[2J\n", "\ud800", "\u2028"]
)
values = (
    words | st.integers(-(2**60), 2**60) | st.none() | st.booleans() | st.lists(words, max_size=2)
)
parts = st.dictionaries(
    st.sampled_from(
        [
            "host",
            "port",
            "proto",
            "tool",
            "rule",
            "reason_code",
            "action",
            "run",
            "step",
            "agent",
            "code",
            "call",
            "kind",
            "x",
        ]
    ),
    values,
    max_size=6,
)
codes = st.sampled_from(
    [(str(code), str(row.type), str(row.severity)) for code, row in EVENT_ROWS.items()]
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Events of every code with anything in their parts, or with parts that are none."""
    code, kind, severity = draw(codes)
    body = event(
        code, kind, severity=severity, subject=draw(parts), object=draw(parts), decision=draw(parts)
    )
    for name in draw(st.lists(st.sampled_from([*body]), max_size=2)):
        body[name] = draw(values)
    if draw(st.booleans()):
        body["trace"] = {
            "trace_id": draw(st.sampled_from(["a" * 32, "x", 3])),
            "span_id": draw(words),
        }
    return body


# A port that is none.
NO_PORT: Record = {
    "code": "EGR001D",
    "id": "x",
    "object": {"port": -1},
    "seq": 1,
    "severity": "medium",
    "subject": {},
    "ts": "2026-03-01T04:00:00.000000Z",
    "type": "sandbox:violation",
    "v": 1,
    "decision": {},
}


@settings(max_examples=25, deadline=None)
@given(records())
@example(NO_PORT)
@example({**NO_PORT, "object": {"port": 1 << 16}})
def test_every_event_is_valid_ocsf(record: Record) -> None:
    """By the schema of 1.8.0, with the profiles that it names."""
    assert [] == ocsf_faults(ocsf_event(record))


@settings(max_examples=60, deadline=None)
@example(DENIED | {"object": {"host": "a\tb"}})
@example(DENIED | {"ts": "\x1f"})
@given(records())
def test_no_event_breaks_out_of_its_line(record: Record) -> None:
    """No control character in any form; JSON forms are ASCII and hold what they were given."""
    for name, form in FORMATS.items():
        line = form(record)
        assert re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", line) is None, name
        if name not in {"cef", "rfc5424"}:
            json.loads(line)


@settings(max_examples=60, deadline=None)
@example(DENIED | {"ts": "\x1f 2026"})
@given(records())
def test_syslog_has_its_grammar(record: Record) -> None:
    """RFC 5424, section 6: priority, five words, structured data with three escapes, and the event."""
    line = syslog_line(record, host="a host\n")
    value = r'"(?:[^"\\\]]|\\["\\\]])*"'
    grammar = rf"<1(?:0[4-9]|1[01])>1 \S+ a\?host\? agent-runtime-pack - \S+ \[event@32473(?: \w+={value})+\] (.*)"
    match = re.fullmatch(grammar, line)

    assert match is not None
    assert json.loads(match[1]) == json.loads(json.dumps(record))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_syslog_is_read_by_an_independent_parser() -> None:
    """What stands in structured data comes out as it went in."""
    parser: Any = importlib.import_module("syslog_rfc5424_parser")
    hostile = DENIED | {"object": {"host": 'a"b\\c]d', "tool": "t"}}
    read = parser.SyslogMessage.parse(syslog_line(hostile))

    assert ("warning", "EGR001D") == (read.severity.name, read.msgid)
    assert 'a"b\\c]d' == read.sd["event@32473"]["host"].replace('\\"', '"').replace(
        "\\]", "]"
    ).replace("\\\\", "\\")


def test_cef_is_read_by_an_independent_parser() -> None:
    """Keys and values come apart where they should."""
    parser: Any = importlib.import_module("pycef")
    hostile = DENIED | {"object": {"host": "x dpt=1 | \\ y\nz", "port": 443}}
    read = parser.parse(cef_line(hostile))

    assert ("EGR001D", "443", "R4") == (read["DeviceEventClassID"], read["dpt"], read["rule"])
    assert read["dhost"].startswith("x dpt")
    assert "run-1" == read["run"]


@settings(max_examples=40, deadline=None)
@given(st.lists(records(), max_size=4))
def test_payloads_are_those_of_otlp(given_records: list[Record]) -> None:
    """Read by the protocol's own messages; ids are hex in OTLP and base64 in other JSON."""
    logs: Any = importlib.import_module("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    traces: Any = importlib.import_module(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
    )
    json_format: Any = importlib.import_module("google.protobuf.json_format")

    def rebased(value: Any) -> Any:
        if isinstance(value, list):
            return [rebased(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            k: base64.b64encode(bytes.fromhex(v)).decode() if k in ids else rebased(v)
            for k, v in value.items()
        }

    read = json_format.ParseDict(
        rebased(logs_payload(given_records)), logs.ExportLogsServiceRequest()
    )
    assert len(given_records) == len(read.resource_logs[0].scope_logs[0].log_records)
    read = json_format.ParseDict(
        rebased(spans_payload(given_records)), traces.ExportTraceServiceRequest()
    )
    for span in read.resource_spans[0].scope_spans[0].spans:
        assert (16, 8) == (len(span.trace_id), len(span.span_id))
        assert span.start_time_unix_nano <= span.end_time_unix_nano
