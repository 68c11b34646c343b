"""For tests of applications: a strict scripted model, a clock to move, stores and emitters that fail.

Every fake complains about a step that it did not expect and, when asked by `assert_used_up`, about
one that did not come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from runtime_pack.approvals import ApprovalRequest, Decision, Verdict
from runtime_pack.errors import StoreError
from runtime_pack.events import Event
from runtime_pack.ledger import UNLIMITED, LedgerView
from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    Json,
    Message,
    ToolCall,
    ToolMessage,
    Turn,
    TurnStatus,
    Usage,
)
from runtime_pack.ports import ExecutionContext, TurnRequest
from runtime_pack.state import MemoryRunStore

__all__ = (
    "FaultyRunStore",
    "ListEmitter",
    "MovableClock",
    "ScriptExhausted",
    "ScriptedApprover",
    "ScriptedModel",
    "assert_one_result_per_call",
    "assert_within_budget",
    "calls",
    "complete",
    "escalate",
    "reply",
)


class ScriptExhausted(AssertionError):
    """The model was asked for a turn that its script does not have."""


def reply(text: str = "done", *, finish: FinishReason = FinishReason.STOP) -> Turn:
    """A turn that answers."""
    return Turn(status=TurnStatus.REPLY, text=text, finish=finish)


def complete(text: str = "done") -> Turn:
    """A turn that says the task is complete."""
    return Turn(status=TurnStatus.COMPLETE, text=text)


def escalate(text: str = "help") -> Turn:
    """A turn that hands the run to a person."""
    return Turn(status=TurnStatus.ESCALATE, text=text)


def calls(
    *wanted: tuple[str, str, str | Mapping[str, Json]],
    finish: FinishReason = FinishReason.TOOL_CALLS,
    usage: Usage | None = None,
) -> Turn:
    """A turn that asks for calls, each as (id, tool, arguments)."""
    asked = tuple(ToolCall(id=i, name=name, arguments=given) for i, name, given in wanted)
    return Turn(status=TurnStatus.TOOL_REQUEST, calls=asked, finish=finish, usage=usage)


class ScriptedModel:
    """Answers with the turns of a script, in order; an exception in the script is raised.

    `requests` holds what it was asked with: the messages as they were, and the tools offered.
    """

    def __init__(self, script: Iterable[Turn | Exception]) -> None:
        self._script = list(script)
        self.requests: list[tuple[tuple[Message, ...], tuple[str, ...]]] = []

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """The next turn of the script.

        Raises:
            ScriptExhausted: the script has no further turn.
        """
        del context
        self.requests.append((tuple(request.messages), tuple(t.name for t in request.tools)))
        if not self._script:
            raise ScriptExhausted(f"turn {len(self.requests)} is not in the script")
        turn = self._script.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def assert_used_up(self) -> None:
        """Fail when scripted turns are left over."""
        if self._script:
            raise AssertionError(f"{len(self._script)} scripted turn(s) were not asked for")


class MovableClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 1000.0

    def now(self) -> datetime:
        """The time of day."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since some start."""
        return self._monotonic

    def move(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: time does not run back.
        """
        if seconds < 0:
            raise ValueError("time does not run back")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


class ScriptedApprover:
    """Gives the scripted verdicts in order, `None` to leave a request pending."""

    def __init__(self, verdicts: Iterable[Verdict | None]) -> None:
        self._verdicts = list(verdicts)
        self.asked: list[ApprovalRequest] = []

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        """The next verdict.

        Raises:
            ScriptExhausted: nobody expected this request.
        """
        self.asked.append(request)
        if not self._verdicts:
            raise ScriptExhausted(f"request {len(self.asked)} is not in the script")
        verdict = self._verdicts.pop(0)
        if verdict is None:
            return None
        return Decision(request_id=request.request_id, verdict=verdict, decided_by="script")


class ListEmitter:
    """Keeps what it is told; raises from the *fail_at*-th event on, counted from 1."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.events: list[Event] = []
        self._fail_at = fail_at

    async def emit(self, event: Event) -> None:
        """Keep the event.

        Raises:
            RuntimeError: the point of failure is reached.
        """
        if self._fail_at is not None and len(self.events) + 1 >= self._fail_at:
            raise RuntimeError("the emitter was told to fail")
        self.events.append(event)


class FaultyRunStore(MemoryRunStore):
    """A store whose *fail_at*-th commit fails, counted from 1; nothing is written by it.

    With `after=True` the commit is written and then reported as failed, as in a crash after a write.
    """

    def __init__(self, *, fail_at: int, after: bool = False) -> None:
        super().__init__()
        self._left = fail_at
        self._after = after

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """See `RunStore.commit`.

        Raises:
            StoreError: this is the commit that fails.
        """
        self._left -= 1
        if self._left != 0:
            return await super().commit(run_id, expected=expected, head=head, rows=rows)
        if self._after:
            await super().commit(run_id, expected=expected, head=head, rows=rows)
        raise StoreError("the store was told to fail")


def assert_one_result_per_call(messages: Iterable[Message]) -> None:
    """Every call has exactly one result, directly after its message and in its order.

    Raises:
        AssertionError: a call without a result, a result without a call, or an id used twice.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if not waiting or waiting.pop(0) != message.call_id:
                raise AssertionError(f"the result of {message.call_id!r} is out of place")
            continue
        if waiting:
            raise AssertionError(f"calls without a result: {waiting}")
        if isinstance(message, AssistantMessage):
            waiting = [call.id for call in message.calls]
            if seen.intersection(waiting) or len(set(waiting)) != len(waiting):
                raise AssertionError(f"an id is used twice: {waiting}")
            seen.update(waiting)
    if waiting:
        raise AssertionError(f"calls without a result: {waiting}")


def assert_within_budget(view: LedgerView) -> None:
    """Used and reserved together are within every limit.

    Raises:
        AssertionError: a bucket is over its limit.
    """
    for bucket, limit in view.limits.counts.items():
        taken = view.used.get(bucket, 0) + view.reserved.get(bucket, 0)
        if limit != UNLIMITED and taken > limit:
            raise AssertionError(f"{bucket}: {taken} of {limit}")
