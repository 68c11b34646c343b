"""For tests of applications: a strict scripted model, a clock to move, stores and emitters that fail.

Every fake complains about a step that it did not expect and, when asked by `assert_used_up`, about
one that did not come. What plays against an application at random (`GovernedRunMachine`, the strategies)
needs Hypothesis, and is loaded when it is first used.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from runtime_pack.agent import create_agent_runtime
from runtime_pack.approvals import ApprovalRequest, Decision, Verdict
from runtime_pack.audit import AuditLog
from runtime_pack.catalog import CatalogTool, Effects, ToolOutput, ToolSpec
from runtime_pack.errors import StoreError
from runtime_pack.events import Event
from runtime_pack.grants import Grant
from runtime_pack.guard import AgentTaskRun, create_agent_task_run
from runtime_pack.ledger import UNLIMITED, LedgerView
from runtime_pack.loop import (
    LoopResult,
    TurnInput,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
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
    UserMessage,
)
from runtime_pack.policy import TaskContract
from runtime_pack.ports import (
    Approver,
    Clock,
    Emitter,
    ExecutionContext,
    Frame,
    InputGuard,
    OutputCheck,
    Summariser,
    TurnRequest,
)
from runtime_pack.prices import PriceTable
from runtime_pack.remembered import RememberedRule
from runtime_pack.seal import Seal
from runtime_pack.stores import MemoryRunStore, RunStore
from runtime_pack.testing_stores import RunStoreContract, SharedRunStoreContract

if TYPE_CHECKING:
    from runtime_pack.testing_machine import (
        GovernedRunMachine,
        arguments_for,
        contracts,
        crash_points,
        scripts,
        tool_policies,
    )

__all__ = (
    "Crash",
    "CrashingRunStore",
    "FaultyRunStore",
    "GovernedRunMachine",
    "ListEmitter",
    "MovableClock",
    "Rehearsal",
    "RunStoreContract",
    "ScriptExhausted",
    "ScriptedApprover",
    "ScriptedModel",
    "SharedRunStoreContract",
    "ToolShelf",
    "arguments_for",
    "assert_one_result_per_call",
    "assert_within_budget",
    "calls",
    "complete",
    "contracts",
    "crash_points",
    "escalate",
    "reply",
    "scripts",
    "shown_as_it_is",
    "tool_policies",
)

_PLAYING: Final = frozenset(
    {
        "GovernedRunMachine",
        "arguments_for",
        "contracts",
        "crash_points",
        "scripts",
        "tool_policies",
    }
)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _PLAYING:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("runtime_pack.testing_machine"), name)


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

    `requests` holds what it was asked with: the messages as they were, and the tools offered;
    `output_limits` the output tokens that each request allowed. `model_name` is what prices are
    looked up by.

    Where it stands in its script is kept in this object and not in the saved run: a run that is
    taken up in another process, with a model that is made anew, is given the script of what is
    left, and not the whole one once more.
    """

    def __init__(
        self, script: Iterable[Turn | Exception], *, model_name: str | None = None
    ) -> None:
        self._script = list(script)
        self._overrun = False
        self.model_name = model_name
        self.output_limits: list[int | None] = []
        self.requests: list[tuple[tuple[Message, ...], tuple[str, ...]]] = []

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """The next turn of the script.

        Raises:
            ScriptExhausted: the script has no further turn.
        """
        del context
        self.requests.append((tuple(request.messages), tuple(t.name for t in request.tools)))
        self.output_limits.append(request.max_output_tokens)
        if not self._script:
            self._overrun = True
            raise ScriptExhausted(f"turn {len(self.requests)} is not in the script")
        turn = self._script.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def assert_used_up(self) -> None:
        """Fail when scripted turns are left over, or more were asked for.

        The loop makes an error of the run out of whatever a model raises, so it is said here again.

        Raises:
            AssertionError: the script and the run do not fit.
        """
        if self._overrun:
            raise AssertionError(f"{len(self.requests)} turns were asked for: too many")
        if self._script:
            raise AssertionError(f"{len(self._script)} scripted turn(s) were not asked for")


class ToolShelf:
    """Fake tools that count how often they really ran.

    `ran` counts by name, `calls` holds every call as (name, arguments), in order of starting.
    """

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.calls: list[tuple[str, Mapping[str, Json]]] = []
        self.tools: list[CatalogTool] = []

    def add(
        self,
        name: str,
        gives: ToolOutput | Json | BaseException = "ok",
        *,
        does: Callable[[ExecutionContext], Awaitable[ToolOutput | Json]] | None = None,
        parameters: Mapping[str, Json] | None = None,
        effects: Effects = Effects.ONCE,
        timeout_seconds: float = 60.0,
        **options: Any,
    ) -> Self:
        """Put a tool on the shelf: it gives *gives* (raises it, if it is an exception) or *does*.

        Without *parameters* it takes an optional string `x`; *options* are further fields of its
        `ToolSpec`.
        """

        async def handler(
            arguments: Mapping[str, Json], context: ExecutionContext
        ) -> ToolOutput | Json:
            self.ran[name] += 1
            self.calls.append((name, arguments))
            if does is not None:
                return await does(context)
            if isinstance(gives, BaseException):
                raise gives
            return gives

        spec = ToolSpec(
            name=name,
            description="A fake.",
            parameters=parameters or {"type": "object", "properties": {"x": {"type": "string"}}},
            effects=effects,
            timeout_seconds=timeout_seconds,
            **options,
        )
        self.tools.append(CatalogTool(spec=spec, handler=handler))
        return self

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as they are offered to a model."""
        return tuple(tool.spec for tool in self.tools)


class MovableClock:
    """A clock that stands still until it is moved; who sleeps on it moves it, and does not wait.

    `slept` holds the seconds of each sleep.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 1000.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        """The time of day."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since some start."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and others run."""
        self.slept.append(seconds)
        self.move(seconds)
        await asyncio.sleep(0)

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
        self._overrun = False
        self.asked: list[ApprovalRequest] = []

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        """The next verdict.

        Raises:
            ScriptExhausted: nobody expected this request.
        """
        self.asked.append(request)
        if not self._verdicts:
            self._overrun = True
            raise ScriptExhausted(f"request {len(self.asked)} is not in the script")
        verdict = self._verdicts.pop(0)
        if verdict is None:
            return None
        return Decision(request_id=request.request_id, verdict=verdict, decided_by="script")

    def assert_used_up(self) -> None:
        """Fail when scripted verdicts are left over, or more requests came.

        The guard takes whatever an approver raises as no decision, so it is said here again.

        Raises:
            AssertionError: the script and the run do not fit.
        """
        if self._overrun:
            raise AssertionError(f"{len(self.asked)} requests came: too many")
        if self._verdicts:
            raise AssertionError(f"{len(self._verdicts)} scripted verdict(s) were not asked for")


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


def shown_as_it_is(text: str, *, source: str, burned: set[str]) -> str:
    """A frame for tests that compare texts: none. A run that is given no frame has the fence."""
    del source, burned
    return text


@attrs.define(kw_only=True)
class Rehearsal:
    """Runs of one setup: a scripted model, counted tools, a store; each drive has a new task run.

    `model` and `run` are those of the last drive.
    """

    shelf: ToolShelf = attrs.field(factory=ToolShelf)
    contract: TaskContract = attrs.field(factory=TaskContract)
    store: RunStore | None = None
    audit: AuditLog | None = None
    clock: Clock | None = None
    approver: Approver | None = None
    emitter: Emitter | None = None
    frame: Frame | None = shown_as_it_is
    seal: Seal | None = None
    prices: PriceTable | None = None
    model_name: str | None = None
    task: str = ""
    remembered: Sequence[RememberedRule] = ()
    summariser: Summariser | None = None
    input_guards: Sequence[InputGuard] = ()
    output_check: OutputCheck | None = None
    output_schema: Mapping[str, Json] | None = None
    model: ScriptedModel = attrs.field(factory=lambda: ScriptedModel(()), init=False)
    run: AgentTaskRun = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prepare(())

    def prepare(self, script: Iterable[Turn | Exception]) -> None:
        """A new task run and a model with this script, for the next drive."""
        self.model = ScriptedModel(script, model_name=self.model_name)
        self.run = create_agent_task_run(
            self.contract,
            audit=self.audit,
            clock=self.clock,
            approver=self.approver,
            emitter=self.emitter,
            frame=self.frame,
            seal=self.seal,
            prices=self.prices,
            task=self.task,
            remembered=self.remembered,
            summariser=self.summariser,
            input_guards=self.input_guards,
            output_check=self.output_check,
        )

    async def start(self, max_turns: int | None = None) -> LoopResult:
        """Drive a new run with what was prepared."""
        runtime = create_agent_runtime(model=self.model, tools=self.shelf.tools)
        return await run_governed_agent_loop(
            runtime=self.run.guard_runtime(runtime),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")],
                tool_catalog=self.shelf.specs,
                output_schema=self.output_schema,
            ),
            store=self.store,
            max_turns=max_turns,
        )

    async def resume(
        self,
        run_id: str,
        *decisions: Decision,
        grants: Sequence[Grant] = (),
        message: str | None = None,
        abandon: bool = False,
        store: RunStore | None = None,
    ) -> LoopResult:
        """Take up a saved run with what was prepared.

        Raises:
            ValueError: there is no store.
        """
        where = store or self.store
        if where is None:
            raise ValueError("there is no store to take the run from")
        runtime = create_agent_runtime(model=self.model, tools=self.shelf.tools)
        return await resume_governed_agent_loop(
            runtime=self.run.guard_runtime(runtime),
            store=where,
            run_id=run_id,
            decisions=decisions,
            grants=grants,
            message=message,
            abandon=abandon,
        )

    async def play(self, *script: Turn | Exception) -> LoopResult:
        """Prepare and start; every turn of the script has to be asked for.

        Raises:
            AssertionError: turns are left over, or a call of the history has not one result.
        """
        self.prepare(script)
        result = await self.start()
        self.model.assert_used_up()
        assert_one_result_per_call(result.messages)
        return result

    async def go_on(
        self,
        result: LoopResult,
        *script: Turn | Exception,
        decisions: Sequence[Decision] = (),
        grants: Sequence[Grant] = (),
        message: str | None = None,
        abandon: bool = False,
    ) -> LoopResult:
        """Take up the run of *result* with a new task run; every turn has to be asked for.

        Without a store, the run is taken from the result.

        Raises:
            AssertionError: turns are left over, or a call of the history has not one result.
        """
        self.prepare(script)
        store = self.store
        if store is None:
            held = MemoryRunStore(self.seal)
            if result.state is not None:
                held.put(result.state)
            store = held
        taken_up = await self.resume(
            result.run_id,
            *decisions,
            grants=grants,
            message=message,
            abandon=abandon,
            store=store,
        )
        self.model.assert_used_up()
        assert_one_result_per_call(taken_up.messages)
        return taken_up


class Crash(BaseException):
    """The process died here: nothing after it ran. Take the run up with a new `AgentTaskRun`."""


class CrashingRunStore(MemoryRunStore):
    """A store in whose *crash_at*-th commits the process dies, counted from 1 over all commits.

    With `after=True` the commit is written before.
    """

    def __init__(
        self, *, crash_at: Iterable[int], after: bool = False, seal: Seal | None = None
    ) -> None:
        super().__init__(seal)
        self.commits = 0
        self._crash_at = frozenset(crash_at)
        self._after = after

    def crash_in(self, commits: int, *, after: bool = False) -> None:
        """Die in the *commits*-th commit from now on, and not where it was said before."""
        self._crash_at, self._after = frozenset({self.commits + commits}), after

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """See `RunStore.commit`.

        Raises:
            Crash: this is the commit.
        """
        self.commits += 1
        crash = self.commits in self._crash_at
        if crash and not self._after:
            raise Crash
        revision = await super().commit(run_id, expected=expected, head=head, rows=rows)
        if crash:
            raise Crash
        return revision


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

    Only what a provider reported beyond its reservation may lie above, and `overdrawn` says it.

    Raises:
        AssertionError: a bucket is over its limit.
    """
    for bucket, limit in view.limits.counts.items():
        taken = view.used.get(bucket, 0) + view.reserved.get(bucket, 0)
        if limit != UNLIMITED and taken > limit + view.overdrawn.get(bucket, 0):
            raise AssertionError(f"{bucket}: {taken} of {limit}")
