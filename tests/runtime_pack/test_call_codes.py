"""What the model is told of a call that did not succeed: one table over all codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest

from runtime_pack import (
    Decision,
    ExecutionContext,
    LoopResult,
    MemoryRunStore,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
)
from runtime_pack.errors import CallCode
from runtime_pack.messages import FinishReason, ToolMessage
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    Rehearsal,
    ToolShelf,
    calls,
    reply,
)

ONE: Final = calls(("a", "t:a", {"x": "1"}))
SECRET: Final = "/etc/keys sk-12345"
# What is told beside the code and the sentence: executed, retryable, and the details.
Told = tuple[str, bool, dict[str, Any]]


def shelf(**options: Any) -> ToolShelf:
    return ToolShelf().add("t:a", **options).add("t:b")


def ruled(word: str, *, when: Any = None) -> TaskContract:
    return TaskContract(
        tool_policy=ToolPolicy([ToolRule(tool="t:a", approval_class=word, when=when)])
    )


async def played(turn: Turn, stage: Rehearsal | None = None) -> LoopResult:
    """One response and then an answer."""
    made = stage or Rehearsal(shelf=shelf())
    made.prepare([turn, reply(), reply()])
    return await made.start()


async def unknown_tool() -> LoopResult:
    return await played(calls(("a", "nope", "{}")))


async def invalid_json() -> LoopResult:
    return await played(calls(("a", "t:a", '{"x": oops}')))


async def invalid_arguments() -> LoopResult:
    return await played(calls(("a", "t:a", '{"x": 1}')))


async def truncated() -> LoopResult:
    return await played(calls(("a", "t:a", "{}"), finish=FinishReason.LENGTH))


async def budget_exhausted() -> LoopResult:
    contract = TaskContract(per_tool={"t:a": 0})
    return await played(ONE, Rehearsal(shelf=shelf(), contract=contract))


async def policy_denied() -> LoopResult:
    return await played(ONE, Rehearsal(shelf=shelf(), contract=ruled("deny")))


async def policy_error() -> LoopResult:
    def broken(_: Any) -> bool:
        raise ValueError(SECRET)

    return await played(ONE, Rehearsal(shelf=shelf(), contract=ruled("deny", when=broken)))


@attrs.define
class Says:
    """A person with one word for everything."""

    verdict: str

    async def decide(self, request: Any) -> Decision:
        word = {"verdict": self.verdict, "reason": "not on a Friday", "decided_by": "ann"}
        return Decision(request_id=request.request_id, **word)


async def denied_by_person() -> LoopResult:
    stage = Rehearsal(shelf=shelf(), contract=ruled("request_user"), approver=Says("deny"))
    return await played(ONE, stage)


async def approval_required() -> LoopResult:
    return await played(ONE, Rehearsal(shelf=shelf(), contract=ruled("request_user")))


async def approval_expired() -> LoopResult:
    clock = MovableClock()
    stage = Rehearsal(
        shelf=shelf(), contract=ruled("request_user"), store=MemoryRunStore(), clock=clock
    )
    asked = await played(ONE, stage)
    clock.move(100 * 3600)
    return await stage.go_on(asked, reply())


async def batch_refused() -> LoopResult:
    stage = Rehearsal(shelf=shelf(), contract=TaskContract(batch="atomic"))
    return await played(calls(("a", "t:a", "{}"), ("b", "nope", "{}")), stage)


async def repeated_call() -> LoopResult:
    stage = Rehearsal(shelf=shelf(gives=ValueError("same")))
    stage.prepare([calls((name, "t:a", "{}")) for name in ("x", "y", "a")] + [reply()])
    return await stage.start()


async def timed_out() -> LoopResult:
    async def sleeps(context: ExecutionContext) -> str:
        await asyncio.sleep(10)
        return context.step

    return await played(ONE, Rehearsal(shelf=shelf(does=sleeps, timeout_seconds=0.02)))


async def tool_error() -> LoopResult:
    return await played(ONE, Rehearsal(shelf=shelf(gives=ValueError(SECRET))))


async def cancelled() -> LoopResult:
    async def stops(context: ExecutionContext) -> str:
        stage.run.cancel("enough")
        await asyncio.sleep(1)
        return context.step

    stage = Rehearsal(shelf=shelf(does=stops))
    return await played(ONE, stage)


async def outcome_unknown() -> LoopResult:
    store = CrashingRunStore(crash_at=())

    async def dies(context: ExecutionContext) -> str:
        store.crash_in(1)
        return context.step

    stage = Rehearsal(shelf=shelf(does=dies), store=store)
    stage.prepare([ONE])
    run_id = stage.run.id
    with pytest.raises(Crash):
        await stage.start()
    stage.prepare([reply()])
    return await stage.resume(run_id)


TABLE: Final[dict[CallCode, tuple[Callable[[], Awaitable[LoopResult]], Told]]] = {
    CallCode.UNKNOWN_TOOL: (unknown_tool, ("no", True, {"tools": ["t:a", "t:b"]})),
    CallCode.INVALID_JSON: (invalid_json, ("no", True, {"position": 6})),
    CallCode.INVALID_ARGUMENTS: (
        invalid_arguments,
        ("no", True, {"faults": [{"path": "/x", "problem": "must be string"}]}),
    ),
    CallCode.TRUNCATED: (truncated, ("no", True, {})),
    CallCode.BUDGET_EXHAUSTED: (
        budget_exhausted,
        ("no", False, {"budget": "tool:t:a", "limit": 0, "used": 0, "reserved": 0}),
    ),
    CallCode.POLICY_DENIED: (policy_denied, ("no", False, {})),
    CallCode.POLICY_ERROR: (policy_error, ("no", False, {})),
    CallCode.DENIED_BY_PERSON: (denied_by_person, ("no", False, {})),
    CallCode.APPROVAL_REQUIRED: (approval_required, ("no", False, {})),
    CallCode.APPROVAL_EXPIRED: (approval_expired, ("no", True, {})),
    CallCode.BATCH_REFUSED: (batch_refused, ("no", True, {})),
    CallCode.REPEATED_CALL: (repeated_call, ("no", False, {})),
    CallCode.TIMEOUT: (timed_out, ("unknown", True, {})),
    CallCode.TOOL_ERROR: (tool_error, ("unknown", False, {})),
    CallCode.CANCELLED: (cancelled, ("unknown", False, {})),
    CallCode.OUTCOME_UNKNOWN: (outcome_unknown, ("unknown", False, {})),
}


@pytest.mark.parametrize("code", CallCode)
def test_the_model_is_told_what_it_needs(code: CallCode) -> None:
    """The code, whether the call ran, whether asking again can help, one sentence, the details."""
    play, (executed, retryable, details) = TABLE[code]
    result = asyncio.run(asyncio.wait_for(_result(play), timeout=5))
    (message,) = (m for m in result.messages if isinstance(m, ToolMessage) and m.call_id == "a")
    told = orjson.loads(message.text.split("\n")[0])
    sentence = told.pop("message")

    assert told == {"code": code, "executed": executed, "retryable": retryable, **details}
    assert not message.ok
    assert sentence.endswith((".", "day"))
    assert SECRET not in message.text
    assert str(Path(__file__).parent) not in message.text


async def _result(play: Callable[[], Awaitable[LoopResult]]) -> LoopResult:
    return await play()


def test_a_person_is_quoted() -> None:
    """The reason of a denial is what the model reads."""
    result = asyncio.run(denied_by_person())
    (message,) = (m for m in result.messages if isinstance(m, ToolMessage))

    assert "not on a Friday" in orjson.loads(message.text)["message"]
