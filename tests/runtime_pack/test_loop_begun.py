"""Calls that an earlier drive had started and that do not run again: used, recorded, in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson
import pytest

from runtime_pack import (
    Completed,
    ExecutionContext,
    LoopError,
    MemoryRunStore,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
)
from runtime_pack.approvals import Decision, Verdict
from runtime_pack.catalog import Effects
from runtime_pack.errors import CallCode
from runtime_pack.loop import LoopResult
from runtime_pack.messages import Json, Message, ToolMessage
from runtime_pack.testing import Rehearsal, calls, reply

ONE = calls(("1", "t:a", "{}"))


def policy(approval_class: str, tool: str = "t:a") -> ToolPolicy:
    return ToolPolicy([ToolRule(tool=tool, approval_class=approval_class)])


def told(result: LoopResult) -> list[tuple[str, str]]:
    """Code and `executed` of each result, as the model sees them."""
    bodies = [orjson.loads(m.text) for m in result.messages if isinstance(m, ToolMessage)]
    return [(body["code"], body["executed"]) for body in bodies]


def recorded(result: LoopResult, step: str = "t1c1") -> list[tuple[bool, str, str | None]]:
    return [(r.admitted, str(r.executed), r.code) for r in result.steps if r.step == step]


async def cut(stage: Rehearsal, *, batch: bool = False) -> LoopResult:
    """A run that was paused in the middle of a call that may run again."""

    async def work(context: ExecutionContext) -> Json:
        stage.run.pause("later")
        await asyncio.sleep(3600)
        return "done"

    stage.shelf.add("t:a", does=work, effects=Effects.IDEMPOTENT).add("t:b")
    first = await stage.play(calls(("1", "t:a", "{}"), ("2", "t:b", "{}")) if batch else ONE)

    assert isinstance(first, Suspended)

    return first


def test_a_started_call_that_policy_refuses_by_now_keeps_its_step() -> None:
    """The step stays used, and the model is told the policy's code and that nobody knows."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore(), contract=TaskContract(max_steps=1))
        first = await cut(stage)
        stage.contract = TaskContract(max_steps=1, tool_policy=policy("deny"))
        last = await stage.go_on(first, reply())

        assert isinstance(last, Completed)
        assert told(last) == [("POLICY_DENIED", "unknown")]
        assert recorded(last) == [(True, "unknown", "POLICY_DENIED")]
        assert (last.ledger.used["steps"], last.ledger.reserved) == (1, {})

    asyncio.run(scenario())


def test_a_started_call_that_a_person_denies_by_now_keeps_its_step() -> None:
    """A call that is asked about only after it was started is no less started, over two resumes."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore(), contract=TaskContract(max_steps=1))
        first = await cut(stage)
        stage.contract = TaskContract(max_steps=1, tool_policy=policy("request_user"))
        second = await stage.go_on(first)
        (request,) = second.requests
        said = Decision(request_id=request.request_id, verdict=Verdict.DENY, decided_by="ann")
        last = await stage.go_on(second, reply(), decisions=[said])

        assert told(last) == [("DENIED_BY_PERSON", "unknown")]
        assert recorded(last) == [(True, "unknown", "DENIED_BY_PERSON")]
        assert (last.ledger.used["steps"], last.ledger.reserved) == (1, {})

    asyncio.run(scenario())


@pytest.mark.parametrize("approval_class", ["deny", "request_user"])
def test_a_started_call_of_an_atomic_batch_that_is_withdrawn_keeps_its_step(
    approval_class: str,
) -> None:
    """Its sibling is refused, at once or by a person; the model is told that nobody knows."""

    async def scenario() -> None:
        stage = Rehearsal(
            store=MemoryRunStore(), contract=TaskContract(batch="atomic", max_parallel=1)
        )
        result = await cut(stage, batch=True)
        stage.contract = TaskContract(
            batch="atomic", max_parallel=1, tool_policy=policy(approval_class, "t:b")
        )
        said: list[Decision] = []
        if approval_class == "request_user":
            result = await stage.go_on(result)
            said = [
                Decision(request_id=each.request_id, verdict=Verdict.DENY, decided_by="ann")
                for each in result.requests
            ]
        last = await stage.go_on(result, reply(), decisions=said)

        assert isinstance(last, Completed)
        assert told(last)[0] == (CallCode.BATCH_REFUSED, "unknown")
        assert told(last)[1][1] == "no"
        assert recorded(last) == [(True, "unknown", "BATCH_REFUSED")]
        assert (last.ledger.used["steps"], last.ledger.reserved) == (1, {})

    asyncio.run(scenario())


def test_a_started_call_of_a_run_whose_input_is_refused_keeps_its_step() -> None:
    """A guard that refuses ends the run; what was started is on record."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore())
        first = await cut(stage)

        async def refuse(messages: Sequence[Message]) -> str | None:
            return "no"

        stage.input_guards = [refuse]
        last = await stage.go_on(first)

        assert isinstance(last, LoopError)
        assert told(last) == [("CANCELLED", "unknown")]
        assert recorded(last) == [(True, "unknown", "OUTCOME_UNKNOWN")]
        assert (last.ledger.used["steps"], last.ledger.reserved) == (1, {})

    asyncio.run(scenario())


def test_a_started_call_that_is_abandoned_is_on_record() -> None:
    """A message in place of the batch: the call has a record, and its step stays used."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore())
        first = await cut(stage)
        last = await stage.go_on(first, reply(), message="never mind", abandon=True)

        assert isinstance(last, Completed)
        assert told(last) == [("CANCELLED", "unknown")]
        assert recorded(last) == [(True, "unknown", "OUTCOME_UNKNOWN")]
        assert (last.ledger.used["steps"], last.ledger.reserved) == (1, {})

    asyncio.run(scenario())
