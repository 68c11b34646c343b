"""Whose run it is stands in every event, and is carried over a suspension."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_pack import (
    AuditLog,
    Decision,
    Event,
    EventCode,
    MemoryRunStore,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.errors import ContractError
from runtime_pack.identity import RunIdentity
from runtime_pack.testing import ScriptedModel, ToolShelf, calls, reply

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IDENTITY = RunIdentity(
    agent="ava",
    agent_version="1.2",
    session="s-1",
    on_behalf_of="ann",
    traceparent=f"00-{TRACE}-{SPAN}-01",
)


def test_every_event_of_a_run_says_whose_it_is(tmp_path: Path) -> None:
    """Also after it was suspended and taken up by a process that does not know."""
    import importlib

    rfc8785: Any = importlib.import_module("rfc8785")
    shelf = ToolShelf().add("t:x")
    contract = TaskContract(
        tool_policy=ToolPolicy([ToolRule(tool="t:x", approval_class="request_user")]), max_steps=3
    )
    store = MemoryRunStore()

    async def scenario() -> None:
        with AuditLog(tmp_path / "log") as log:
            from runtime_pack import TurnInput, UserMessage

            given_input = TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs)
            base = create_agent_runtime(
                model=ScriptedModel([calls(("a", "t:x", "{}"))]), tools=shelf.tools
            )
            run = create_agent_task_run(contract, audit=log, identity=IDENTITY)
            waiting = await run_governed_agent_loop(
                runtime=run.guard_runtime(base), execute_turn_input=given_input, store=store
            )
            (request,) = waiting.requests
            yes = Decision(request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="bob")
            base = create_agent_runtime(model=ScriptedModel([reply()]), tools=shelf.tools)
            run = create_agent_task_run(contract, audit=log)
            done = await resume_governed_agent_loop(
                runtime=run.guard_runtime(base), store=store, run_id=waiting.run_id, decisions=[yes]
            )
            assert "completed" == done.kind

    asyncio.run(scenario())
    lines = (tmp_path / "log").read_bytes().splitlines()
    records = [orjson.loads(line) for line in lines]
    own = [record for record in records if "run" in record["subject"]]
    assert {
        "run:started",
        "turn:started",
        "approval:requested",
        "run:resumed",
        "step:started",
        "step:finished",
    } <= {r["type"] for r in own}
    for record in own:
        assert ("ava", "1.2", "s-1") == tuple(
            record["subject"][n] for n in ("agent", "agent_version", "session")
        )
        assert ("ann", {"trace_id": TRACE, "span_id": SPAN}) == (
            record["on_behalf_of"],
            record["trace"],
        )
    assert [rfc8785.dumps(record) for record in records] == lines


@pytest.mark.parametrize(
    "bad",
    [
        {"agent": ""},
        {"agent": "a\nb"},
        {"agent": "x" * 201},
        {"agent": 3},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
        {"traceparent": f"01-{TRACE}-{SPAN}-01"},
        {"traceparent": f"00-{TRACE.upper()}-{SPAN}-01"},
    ],
)
def test_an_identity_is_read_strictly(bad: dict[str, Any]) -> None:
    """One printable line a name, and a traceparent that is one."""
    with pytest.raises(ContractError, match="identity"):
        RunIdentity(**bad)


def test_an_identity_is_stored_and_read_back() -> None:
    """What is not said is not stored."""
    assert IDENTITY == RunIdentity.from_json(IDENTITY.to_json())
    nobody = RunIdentity()
    assert ({}, {}, None) == (nobody.to_json(), nobody.subject, nobody.beside)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(max_codepoint=0xD7FF), max_size=4), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(st.text(st.characters(max_codepoint=0xD7FF), max_size=4), values, max_size=4)
)
def test_lines_are_canonical_to_others(tmp_path: Path, body: dict[str, Any]) -> None:
    """RFC 8785 by another implementation gives the same bytes; numbers that JSON would round are text."""
    import importlib

    rfc8785: Any = importlib.import_module("rfc8785")
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    with AuditLog(path, now=lambda: datetime(2026, 3, 1, tzinfo=UTC)) as log:
        log.append(Event(code=EventCode.STP001A, subject={"run": "r"}, object=body))
    line = path.read_bytes().splitlines()[1]

    assert line == rfc8785.dumps(orjson.loads(line))
