"""The order in which a call is judged: of two rules that refuse it, the earlier one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import orjson
import pytest

from runtime_pack import (
    ExecutionContext,
    LoopResult,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.catalog import ToolSpec
from runtime_pack.messages import FinishReason, Json, ToolMessage
from runtime_pack.remembered import Denied
from runtime_pack.repeats import fingerprint_of
from runtime_pack.testing import ToolShelf, calls, reply, shown_as_it_is

# In the order in which they are asked; each with the code that the model is told.
CODES: Final = {
    "cut": "TRUNCATED",
    "unknown": "UNKNOWN_TOOL",
    "json": "INVALID_JSON",
    "schema": "INVALID_ARGUMENTS",
    "repeat": "REPEATED_CALL",
    "preflight": "WEB_EGRESS_DENIED",
    "policy": "POLICY_DENIED",
    "memory": "DENIED_BY_PERSON",
    "budget": "BUDGET_EXHAUSTED",
    "approval": "APPROVAL_REQUIRED",
}
# No call has both: what has no schema cannot break it, and what never ran cannot be repeated.
NEVER: Final = {
    ("unknown", "schema"),
    ("unknown", "repeat"),
    ("json", "schema"),
    ("json", "repeat"),
    ("schema", "repeat"),
}
PAIRS: Final = [pair for pair in combinations(CODES, 2) if pair not in NEVER]


class World:
    """Two calls that run, and then one that has every fault it is given."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        self.armed: set[str] = set()
        self.asked = 0
        self.shelf = ToolShelf().add("t:a")
        contract = TaskContract(
            tool_policy=ToolPolicy(
                [
                    ToolRule(tool="*", approval_class="deny", when=lambda _: self.has("policy")),
                    ToolRule(
                        tool="*", approval_class="request_user", when=lambda _: self.has("approval")
                    ),
                ]
            ),
            max_steps=2 if "budget" in faults else 9,
            wrap_up=False,
        )
        self.run = create_agent_task_run(contract, frame=shown_as_it_is)
        self.inner = create_agent_runtime(model=self, tools=self.shelf.tools)
        self.preflights = 0

    def has(self, fault: str) -> bool:
        return fault in self.armed

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        self.asked += 1
        same = "repeat" in self.faults
        if self.asked < 3:
            return calls((f"c{self.asked}", "t:a", {"x": "1" if same else f"{self.asked}"}))
        if self.asked > 3:
            return reply()
        self.armed |= set(self.faults)
        self.preflights = 0
        return self.faulty()

    def faulty(self) -> Turn:
        name = "nope" if self.has("unknown") else "t:a"
        raw = "{" if self.has("json") else '{"x":1}' if self.has("schema") else '{"x":"1"}'
        asked: Mapping[str, Json] = {} if self.has("json") else orjson.loads(raw)
        if self.has("memory"):
            denied = Denied(request_id="apr-1", decided_by="ann", reason="no")
            self.run.memory.deny(fingerprint_of(name, asked), denied)
        if not self.has("repeat") and not self.has("memory") and not self.has("schema"):
            raw = raw.replace("1", "9")
        finish = FinishReason.LENGTH if self.has("cut") else FinishReason.TOOL_CALLS
        return calls(("c3", name, raw), finish=finish)

    # ── a runtime with a check of its own ─────────────────────────────────────────────────────

    def tool_spec(self, name: str) -> ToolSpec | None:
        return next((spec for spec in self.shelf.specs if spec.name == name), None)

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        self.preflights += 1
        if not self.has("preflight"):
            return None
        text = '{"code":"WEB_EGRESS_DENIED"}'
        return ToolOutput(ok=False, text=text, code="WEB_EGRESS_DENIED")

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        return await self.inner.execute_tool(name, arguments, context)

    async def play(self) -> LoopResult:
        return await run_governed_agent_loop(
            runtime=self.run.guard_runtime(self),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=self.shelf.specs
            ),
        )


def last_code(result: LoopResult) -> Any:
    """What the model is told of the third call."""
    (told,) = (m for m in result.messages if isinstance(m, ToolMessage) and m.call_id == "c3")
    return None if told.ok and told.text == "ok" else orjson.loads(told.text.split("\n")[0])["code"]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_the_earlier_of_two_rules_answers(first: str, second: str) -> None:
    """And what stands behind it is not asked: nobody, no check of the runtime, no budget."""
    world = World(first, second)

    result = asyncio.run(world.play())

    assert last_code(result) == CODES[first]
    assert world.shelf.ran["t:a"] == result.ledger.used["steps"] == 2
    assert result.ledger.refused == 1
    assert result.requests == ()
    assert world.preflights == (list(CODES).index(first) >= list(CODES).index("preflight"))


@pytest.mark.parametrize("fault", CODES)
def test_each_rule_alone_refuses(fault: str) -> None:
    """So that a pair above does not pass because the later fault is none."""
    world = World(fault)

    result = asyncio.run(world.play())

    assert last_code(result) == CODES[fault]
    assert world.shelf.ran["t:a"] == 2


def test_a_call_without_a_fault_runs() -> None:
    """The world refuses nothing by itself."""
    world = World()

    result = asyncio.run(world.play())

    assert last_code(result) is None
    assert world.shelf.ran["t:a"] == 3
