"""The public fakes: each complains about what it did not expect and about what did not come."""

from __future__ import annotations

import asyncio

import pytest

from runtime_pack import (
    AssistantMessage,
    ContractError,
    ExecutionContext,
    LedgerView,
    MemoryRunStore,
    ToolCall,
    ToolMessage,
    TurnInput,
    UserMessage,
    Verdict,
    create_agent_runtime,
    run_governed_agent_loop,
)
from runtime_pack.ledger import Limits
from runtime_pack.messages import Message
from runtime_pack.ports import SystemClock
from runtime_pack.testing import (
    ListEmitter,
    MovableClock,
    Rehearsal,
    ScriptedApprover,
    ScriptedModel,
    ToolShelf,
    assert_one_result_per_call,
    assert_within_budget,
    calls,
    reply,
)

CALL = AssistantMessage(calls=(ToolCall(id="a", name="t", arguments={}),))
RESULT = ToolMessage(call_id="a", name="t", text="x", ok=True)


def test_a_script_that_is_too_short_or_too_long_is_said() -> None:
    """Although the loop makes a result of whatever the model raises."""

    async def asked(*script: object) -> ScriptedModel:
        # Every entry of these scripts is a turn.
        model = ScriptedModel(script)  # type: ignore[arg-type]
        shelf = ToolShelf().add("t:echo")
        await run_governed_agent_loop(
            runtime=create_agent_runtime(model=model, tools=shelf.tools),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
        )
        return model

    one = calls(("a", "t:echo", "{}"))
    for script in ([one], [reply(), reply()]):
        with pytest.raises(AssertionError):
            asyncio.run(asked(*script)).assert_used_up()
    asyncio.run(asked(one, reply())).assert_used_up()


def test_an_approver_says_when_too_many_or_too_few_requests_came() -> None:
    """As the model does."""
    approver = ScriptedApprover([Verdict.DENY])
    with pytest.raises(AssertionError):
        approver.assert_used_up()
    with pytest.raises(AssertionError):
        # Never looked at.
        asyncio.run(ScriptedApprover([]).decide(None))  # type: ignore[arg-type]


BAD: dict[str, list[Message]] = {
    "no result": [CALL],
    "no call": [RESULT],
    "twice": [CALL, RESULT, RESULT],
    "an id twice": [CALL, RESULT, CALL, RESULT],
    "a message between": [CALL, UserMessage(text="x"), RESULT],
    "another id": [CALL, ToolMessage(call_id="b", name="t", text="x", ok=True)],
}


@pytest.mark.parametrize("messages", BAD.values(), ids=BAD.keys())
def test_a_history_with_a_loose_end_fails(messages: list[Message]) -> None:
    """And a whole one passes."""
    with pytest.raises(AssertionError):
        assert_one_result_per_call(messages)
    assert_one_result_per_call([UserMessage(text="x"), CALL, RESULT, AssistantMessage(text="y")])


def test_a_ledger_over_a_limit_fails() -> None:
    """Used and reserved count together."""

    def view(used: int, reserved: int) -> LedgerView:
        return LedgerView(
            limits=Limits(counts={"steps": 2}, seconds=1),
            used={"steps": used},
            reserved={"steps": reserved},
            active_seconds=0,
            refused=0,
            violations=0,
            input_tokens=0,
            output_tokens=0,
        )

    assert_within_budget(view(1, 1))
    with pytest.raises(AssertionError):
        assert_within_budget(view(2, 1))


def test_a_clock_moves_forward_only() -> None:
    """Both of its times move together."""
    clock = MovableClock()
    before = clock.now(), clock.monotonic()
    clock.move(2)

    assert (clock.now() - before[0]).total_seconds() == clock.monotonic() - before[1] == 2
    with pytest.raises(ValueError):
        clock.move(-1)
    assert SystemClock().now().utcoffset() is not None
    assert SystemClock().monotonic() <= SystemClock().monotonic()


def test_an_emitter_fails_from_where_it_was_told() -> None:
    """And keeps what it took before."""
    emitter = ListEmitter(fail_at=2)
    # Any object will do.
    asyncio.run(emitter.emit("first"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        # Any object will do.
        asyncio.run(emitter.emit("second"))  # type: ignore[arg-type]

    assert len(emitter.events) == 1


def test_a_rehearsal_without_a_store_takes_the_run_from_its_result() -> None:
    """Asking it for a saved run without any is a fault of the test."""
    with pytest.raises(ValueError):
        asyncio.run(Rehearsal().resume("r"))


def test_what_is_no_decision_is_not_taken() -> None:
    """A decision that came from outside is parsed first."""
    stage = Rehearsal(store=MemoryRunStore())
    with pytest.raises(ContractError):
        # The fault at hand.
        asyncio.run(stage.resume("r", {"verdict": "approve"}))  # type: ignore[arg-type]


def test_the_inner_runtime_knows_only_its_tools() -> None:
    """Without the guard, an unknown name is a refusal and a turn needs a request."""
    runtime = create_agent_runtime(model=ScriptedModel([]), tools=ToolShelf().add("t:x").tools)

    async def asked(name: str) -> str | None:
        return (await runtime.execute_tool(name, {}, ExecutionContext())).code

    assert asyncio.run(asked("t:y")) == "UNKNOWN_TOOL"
    assert asyncio.run(asked("agent:execute-turn")) == "INVALID_ARGUMENTS"
    assert asyncio.run(asked("t:x")) is None
