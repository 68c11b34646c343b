"""What is not held against the model: answers from the record, and what people say or do not say."""

from __future__ import annotations

import asyncio

import pytest

from runtime_pack import (
    ApprovalRequest,
    Completed,
    Decision,
    LoopError,
    LoopResult,
    MemoryRunStore,
    TaskContract,
    ToolPolicy,
    ToolRule,
)
from runtime_pack.errors import StopCode
from runtime_pack.testing import MovableClock, Rehearsal, ToolShelf, calls, reply

ASKED = TaskContract(tool_policy=ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")]))


class Denies:
    """A person who says no to everything."""

    async def decide(self, request: ApprovalRequest) -> Decision:
        return Decision(request_id=request.request_id, verdict="deny", decided_by="ann")


def stop_code(result: LoopResult) -> str | None:
    return None if result.stop is None else str(result.stop.code)


@pytest.mark.parametrize("circle", ["a", "ab", "abc", "abcd"])
@pytest.mark.parametrize("gives", ["ok", ValueError("no")])
def test_a_circle_ends_as_one_under_the_limits_that_hold_by_default(
    circle: str, gives: str | ValueError
) -> None:
    """Two rounds run, two are answered from the record, the next call is NO_PROGRESS."""
    stage = Rehearsal(shelf=ToolShelf().add("t:a", gives))
    script = [calls((f"c{n}", "t:a", {"x": letter})) for n, letter in enumerate(circle * 5)]
    stage.prepare(script)

    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert stop_code(result) == StopCode.NO_PROGRESS
    assert stage.shelf.ran["t:a"] == 2 * len(circle)
    assert len(stage.model.requests) == 4 * len(circle) + 1


def test_a_model_that_leaves_its_circle_goes_on() -> None:
    """Answers from the record end nothing while the model still finds its way."""
    stage = Rehearsal(shelf=ToolShelf().add("t:a"))
    script = [calls((f"c{n}", "t:a", {"x": letter})) for n, letter in enumerate("abcabcabcabcd")]

    result = asyncio.run(stage.play(*script, reply()))

    assert isinstance(result, Completed)
    assert (result.ledger.refused, result.ledger.used["steps"]) == (6, 7)


def test_people_who_deny_are_no_fault_of_the_model() -> None:
    """Five different calls are denied in a row; each counts as refused, and the run goes on."""
    stage = Rehearsal(shelf=ToolShelf().add("t:a"), contract=ASKED, approver=Denies())
    script = [calls((f"c{n}", "t:a", {"x": str(n)})) for n in range(5)]

    result = asyncio.run(stage.play(*script, reply()))

    assert isinstance(result, Completed)
    assert (result.ledger.refused, result.ledger.denials) == (5, 5)


def test_denials_still_count_towards_all_that_may_be_refused() -> None:
    """A person who denies everything ends the run at `max_refused`."""
    contract = TaskContract(tool_policy=ASKED.tool_policy, max_refused=2)
    stage = Rehearsal(shelf=ToolShelf().add("t:a"), contract=contract, approver=Denies())
    script = [calls((f"c{n}", "t:a", {"x": str(n)})) for n in range(3)]

    result = asyncio.run(stage.play(*script))

    assert stop_code(result) == StopCode.MODEL_MISBEHAVING


def test_a_request_that_nobody_decided_in_time_is_no_fault_of_the_model() -> None:
    """It expired: a single response of which nothing was admitted would end this run."""

    async def scenario() -> None:
        clock = MovableClock()
        contract = TaskContract(tool_policy=ASKED.tool_policy, max_consecutive_refused=1)
        stage = Rehearsal(
            shelf=ToolShelf().add("t:a"), contract=contract, store=MemoryRunStore(), clock=clock
        )
        result = await stage.play(calls(("1", "t:a", {"x": "1"})))
        clock.move(80 * 3600)

        last = await stage.go_on(result, reply())

        assert isinstance(last, Completed)
        assert (last.ledger.refused, last.ledger.denials) == (1, 0)

    asyncio.run(scenario())


def test_a_denial_of_an_earlier_process_excuses_the_whole_response() -> None:
    """The denied call is closed in one process, and its sibling gives nothing in the next one."""

    async def scenario() -> None:
        contract = TaskContract(tool_policy=ASKED.tool_policy, max_consecutive_refused=1)
        stage = Rehearsal(shelf=ToolShelf().add("t:a"), contract=contract, store=MemoryRunStore())
        result = await stage.play(calls(("1", "t:a", {"x": "1"}), ("2", "t:a", {"x": "2"})))
        first, second = result.requests
        word = Decision(request_id=first.request_id, verdict="deny", decided_by="ann")
        stage.prepare([])
        waiting = await stage.resume(result.run_id, word)
        assert [r.request_id for r in waiting.requests] == [second.request_id]
        # By now the policy denies what the second person approves: that is a refusal.
        shut = ToolPolicy([ToolRule(tool="*", approval_class="deny")])
        stage.contract = TaskContract(tool_policy=shut, max_consecutive_refused=1)
        stage.prepare([reply()])
        yes = Decision(request_id=second.request_id, verdict="approve", decided_by="bob")

        last = await stage.resume(result.run_id, yes)

        assert isinstance(last, Completed)

    asyncio.run(scenario())


def test_a_policy_that_denies_three_times_in_a_row_is_still_misbehaving() -> None:
    """Nobody was asked: the model does not heed what it is told."""
    contract = TaskContract(tool_policy=ToolPolicy([ToolRule(tool="*", approval_class="deny")]))
    stage = Rehearsal(shelf=ToolShelf().add("t:a"), contract=contract)
    script = [calls((f"c{n}", "t:a", {"x": str(n)})) for n in range(3)]

    result = asyncio.run(stage.play(*script))

    assert stop_code(result) == StopCode.MODEL_MISBEHAVING
    assert (result.ledger.refused, result.ledger.denials) == (3, 3)
