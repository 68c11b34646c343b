"""The loop as a stream: what a reader sees, how far a run gets ahead of it, and what is left when it goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequested,
    AuditLog,
    BudgetWarning,
    CallAdmitted,
    CallFinished,
    CallRefused,
    CallStarted,
    Completed,
    ContractError,
    Decision,
    Event,
    EventCode,
    ExecutionContext,
    Finished,
    LoopError,
    LoopEvent,
    LoopResult,
    MemoryRunStore,
    TaskContract,
    TextDelta,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnFinished,
    TurnInput,
    TurnLost,
    TurnRequest,
    TurnStarted,
    UserMessage,
    ViolationReported,
    create_agent_runtime,
    create_agent_task_run,
    stream_governed_agent_loop,
    stream_resumed_agent_loop,
)
from runtime_pack.approvals import Verdict
from runtime_pack.catalog import Effects
from runtime_pack.errors import ModelError, ModelFault, ModelRequestError
from runtime_pack.labels import Integrity, Label
from runtime_pack.messages import Json, Usage
from runtime_pack.ports import Model
from runtime_pack.testing import (
    MovableClock,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
    shown_as_it_is,
)

ONE = calls(("a", "t:tool", "{}"))
GATED = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
OUTSIDE = Label(integrity=Integrity.EXTERNAL)
# What is handed in against its annotations is the fault at hand.
odd: Any = lambda value: value  # noqa: E731


@attrs.define(kw_only=True)
class Stage:
    """Streams of one setup; each has a new task run, as another process would."""

    model: Model
    shelf: ToolShelf = attrs.field(factory=ToolShelf)
    contract: TaskContract = attrs.field(factory=TaskContract)
    store: MemoryRunStore | None = None
    options: dict[str, Any] = attrs.field(factory=dict)
    reading: dict[str, Any] = attrs.field(factory=dict)

    def runtime(self) -> Any:
        self.run = create_agent_task_run(self.contract, frame=shown_as_it_is, **self.options)
        return self.run.guard_runtime(
            create_agent_runtime(model=self.model, tools=self.shelf.tools)
        )

    run: Any = attrs.field(init=False, default=None)

    def start(self) -> AsyncGenerator[LoopEvent, None]:
        return stream_governed_agent_loop(
            runtime=self.runtime(),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=self.shelf.specs
            ),
            store=self.store,
            **self.reading,
        )

    def resume(self, run_id: str, *decisions: Decision) -> AsyncGenerator[LoopEvent, None]:
        assert self.store is not None
        return stream_resumed_agent_loop(
            runtime=self.runtime(),
            store=self.store,
            run_id=run_id,
            decisions=decisions,
            **self.reading,
        )


async def read(stream: AsyncGenerator[LoopEvent, None]) -> tuple[list[LoopEvent], LoopResult]:
    events = [event async for event in stream]
    assert isinstance(events[-1], Finished)
    return events[:-1], events[-1].result


def played(stage: Stage) -> tuple[list[LoopEvent], LoopResult]:
    return asyncio.run(read(stage.start()))


def kinds(events: list[LoopEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


class Speaker:
    """A model that says pieces and then gives a turn, or raises; one entry of the script a turn."""

    def __init__(self, *script: tuple[list[str], Turn | Exception]) -> None:
        self.script = list(script)
        self.said: Callable[[str], None] | None = None

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        pieces, turn = self.script.pop(0)
        self.said = context.on_delta
        for piece in pieces:
            assert context.on_delta is not None
            context.on_delta(piece)
        if isinstance(turn, Exception):
            raise turn
        return turn


# ── what a reader sees ──────────────────────────────────────────────────────────────────────────


def test_a_stream_tells_a_run_in_its_order() -> None:
    """Turn, calls judged in emission order, run, and the next turn; the result is the last event."""
    shelf = ToolShelf().add("t:tool", "fine")
    script = [calls(("a", "t:tool", "{}"), ("b", "t:none", "{}")), reply("all done")]

    events, result = played(Stage(model=ScriptedModel(script), shelf=shelf))

    assert isinstance(result, Completed)
    assert kinds(events) == [
        "TurnStarted",
        "TurnFinished",
        "CallAdmitted",
        "CallRefused",
        "CallStarted",
        "CallFinished",
        "TurnStarted",
        "TurnFinished",
    ]
    admitted, refused, started, finished = events[2:6]
    assert isinstance(admitted, CallAdmitted)
    assert isinstance(refused, CallRefused)
    assert isinstance(started, CallStarted)
    assert isinstance(finished, CallFinished)
    assert (admitted.step, admitted.call.name) == ("t1c1", "t:tool")
    assert (refused.step, refused.tool, refused.code) == ("t1c2", "t:none", "UNKNOWN_TOOL")
    assert (started.step, started.call_id, started.attempt) == ("t1c1", "a", 1)
    assert (finished.ok, finished.text, finished.code) == (True, "fine", None)
    last = events[-1]
    assert isinstance(last, TurnFinished)
    assert (last.step, last.text, last.calls) == ("t2", "all done", 0)


def test_pieces_of_a_turn_come_before_its_end_and_make_its_text() -> None:
    """Deltas carry the turn and the attempt; what a model says piece by piece is what it said."""
    model = Speaker((["al", "", "l do\ud800", "ne"], reply("all do\ufffdne")))

    events, _ = played(Stage(model=model))

    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert [(delta.step, delta.attempt) for delta in deltas] == [("t1", 1)] * 3
    assert "".join(delta.text for delta in deltas) == "all do\ufffdne"
    assert kinds(events) == ["TurnStarted", *["TextDelta"] * 3, "TurnFinished"]


def test_a_lost_turn_takes_its_pieces_back() -> None:
    """After pieces, the loss of the turn is told with its reason, and the run ends."""
    model = Speaker((["so far"], ModelError("broken pipe")))

    events, result = played(Stage(model=model))

    assert isinstance(result, LoopError)
    assert kinds(events) == ["TurnStarted", "TextDelta", "TurnLost"]
    lost = events[-1]
    assert isinstance(lost, TurnLost)
    assert (lost.step, lost.attempt, lost.code) == ("t1", 1, "MODEL_ERROR")


def test_a_turn_that_is_asked_for_again_says_so() -> None:
    """Each request is an attempt: it is lost, and the next one begins, under the same step."""
    down = ModelRequestError(fault=ModelFault.OVERLOADED, message="busy")
    model = Speaker(([], down), ([], down), (["fine"], reply("fine")))

    events, result = played(Stage(model=model, options={"clock": MovableClock()}))

    assert isinstance(result, Completed)
    told = [
        (type(e).__name__, e.step, e.attempt)
        for e in events
        if isinstance(e, TurnStarted | TurnLost | TextDelta | TurnFinished)
    ]
    assert told == [
        ("TurnStarted", "t1", 1),
        ("TurnLost", "t1", 1),
        ("TurnStarted", "t1", 2),
        ("TurnLost", "t1", 2),
        ("TurnStarted", "t1", 3),
        ("TextDelta", "t1", 3),
        ("TurnFinished", "t1", 3),
    ]


def test_a_turn_whose_text_was_shown_is_not_asked_for_again() -> None:
    """Once a reader has seen a piece, the failure is final, and takes the piece back."""
    down = ModelRequestError(fault=ModelFault.OVERLOADED, message="busy")

    events, result = played(Stage(model=Speaker((["so far"], down))))

    assert isinstance(result, LoopError)
    assert kinds(events) == ["TurnStarted", "TextDelta", "TurnLost"]


def test_a_wait_between_attempts_that_is_stopped_loses_no_turn_twice() -> None:
    """The run is cancelled between two requests: the one that failed was lost, and nothing else."""

    async def scenario() -> None:
        class Cancelling(MovableClock):
            async def sleep(self, seconds: float) -> None:
                stage.run.cancel("enough")
                await asyncio.sleep(0)

        down = ModelRequestError(fault=ModelFault.OVERLOADED, message="busy")
        stage = Stage(model=Speaker(([], down)), options={"clock": Cancelling()})
        events, result = await read(stage.start())

        assert result.kind == "cancelled"
        assert kinds(events) == ["TurnStarted", "TurnLost"]

    asyncio.run(scenario())


def test_a_piece_that_comes_too_late_is_not_told() -> None:
    """What an adapter says after its turn has ended belongs to nothing."""

    async def scenario() -> None:
        model = Speaker(([], ONE), ([], reply()))

        async def late(context: ExecutionContext) -> Json:
            assert model.said is not None
            model.said("late")
            return "ok"

        events, _ = await read(
            Stage(model=model, shelf=ToolShelf().add("t:tool", does=late)).start()
        )

        assert "TextDelta" not in kinds(events)

    asyncio.run(scenario())


def test_a_piece_of_a_turn_that_is_over_is_no_piece_of_the_next_one() -> None:
    """The adapter of the first turn goes on talking while the second one is open."""

    class Lingering:
        def __init__(self) -> None:
            self.first: Any = None

        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            assert context.on_delta is not None
            if self.first is None:
                self.first = context.on_delta
                context.on_delta("one")
                return ONE
            self.first("late")
            context.on_delta("two")
            await asyncio.to_thread(self.first, "later")
            return reply("two")

    events, result = played(Stage(model=Lingering(), shelf=ToolShelf().add("t:tool")))

    assert isinstance(result, Completed)
    assert [(e.step, e.text) for e in events if isinstance(e, TextDelta)] == [
        ("t1", "one"),
        ("t2", "two"),
    ]


def test_pieces_may_come_from_a_thread() -> None:
    """An adapter that streams in a thread is heard in order, and before the end of its turn."""

    class Threaded:
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            def work() -> None:
                assert context.on_delta is not None
                for number in range(5):
                    context.on_delta(str(number))

            await asyncio.to_thread(work)
            return reply("01234")

    events, _ = played(Stage(model=Threaded()))

    assert kinds(events) == ["TurnStarted", *["TextDelta"] * 5, "TurnFinished"]
    assert [event.text for event in events if isinstance(event, TextDelta)] == list("01234")


def test_what_is_no_text_is_no_piece() -> None:
    """An adapter that says something else loses its turn; the reader sees nothing of it."""
    events, result = played(Stage(model=Speaker((odd([b"bytes"]), reply()))))

    assert isinstance(result, LoopError)
    assert kinds(events) == ["TurnStarted", "TurnLost"]


def test_texts_from_outside_carry_their_label() -> None:
    """A result from outside has its label, and so has everything that the model says after it."""
    page = ToolOutput(ok=True, text="page", label=OUTSIDE)
    model = Speaker(([], ONE), (["I read"], reply("I read")))

    events, _ = played(Stage(model=model, shelf=ToolShelf().add("t:tool", page)))

    labels = {
        kind: event.label
        for kind in (CallAdmitted, CallFinished, TextDelta, TurnFinished)
        for event in events
        if isinstance(event, kind)
    }
    assert labels[CallAdmitted] != OUTSIDE
    assert {labels[kind].integrity for kind in (CallFinished, TextDelta, TurnFinished)} == {
        Integrity.EXTERNAL
    }


def test_a_violation_is_told_as_the_log_has_it() -> None:
    """The event of a denial is in the stream while its call still runs."""

    async def denied(context: ExecutionContext) -> Json:
        subject: dict[str, Json] = {"run": context.run, "step": context.step}
        context.record(Event(code=EventCode.EGR001D, subject=subject, object={}))
        return "refused"

    model = ScriptedModel([ONE, reply()])

    events, result = played(Stage(model=model, shelf=ToolShelf().add("t:tool", does=denied)))

    names = kinds(events)
    assert (
        names.index("CallStarted") < names.index("ViolationReported") < names.index("CallFinished")
    )
    told = next(event for event in events if isinstance(event, ViolationReported))
    assert told.event.code is EventCode.EGR001D
    assert result.ledger.violations == 1


def test_a_pending_call_is_told_and_its_run_taken_up_as_a_stream() -> None:
    """The request is in the first stream; the approved call starts and ends in the second."""

    async def scenario() -> None:
        stage = Stage(
            model=ScriptedModel([calls(("a", "t:gate", "{}")), reply()]),
            shelf=ToolShelf().add("t:gate"),
            contract=TaskContract(tool_policy=GATED),
            store=MemoryRunStore(),
        )
        events, first = await read(stage.start())
        asked = [event.request for event in events if isinstance(event, ApprovalRequested)]

        assert asked == list(first.requests)

        decision = Decision(request_id=asked[0].request_id, verdict=Verdict.APPROVE, decided_by="p")
        more, result = await read(stage.resume(first.run_id, decision))

        assert isinstance(result, Completed)
        assert kinds(more)[:3] == ["CallAdmitted", "CallStarted", "CallFinished"]
        assert stage.shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("warn_at", "at"), [(0.8, 4), (0.5, 3), (1, 5)])
def test_a_budget_warns_once(warn_at: float, at: int) -> None:
    """Each budget is warned of when that part of it is taken, and never again."""
    script = [calls((f"c{n}", "t:tool", {"x": str(n)})) for n in range(5)]
    stage = Stage(
        model=ScriptedModel([*script, reply()]),
        shelf=ToolShelf().add("t:tool"),
        contract=TaskContract(max_steps=5, max_turns=50, max_duration_seconds="unlimited"),
        reading={"warn_at": warn_at},
    )

    events, _ = played(stage)

    warnings = [event for event in events if isinstance(event, BudgetWarning)]
    assert [(told.budget, told.limit, told.taken) for told in warnings] == [("steps", 5, at)]


def test_time_warns_too_and_a_budget_of_nothing_does_not() -> None:
    """Active time is a budget as any other; what allows nothing has nothing left to warn of."""

    async def scenario() -> None:
        clock = MovableClock()

        async def slow(context: ExecutionContext) -> Json:
            clock.move(9)
            return "ok"

        contract = TaskContract(max_duration_seconds=10, per_tool={"t:none": 0})
        shelf = ToolShelf().add("t:tool", does=slow).add("t:none")
        model = ScriptedModel([calls(("a", "t:tool", "{}"), ("b", "t:none", "{}")), reply()])
        stage = Stage(model=model, shelf=shelf, contract=contract, options={"clock": clock})
        events, _ = await read(stage.start())

        told = [event.budget for event in events if isinstance(event, BudgetWarning)]
        assert told == ["duration_seconds"]

    asyncio.run(scenario())


usages = st.none() | st.builds(Usage, input_tokens=st.integers(0, 9), output_tokens=st.just(1))
asked = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["t:tool", "t:bad", "t:gate", "t:none"]),
        st.sampled_from(["{}", "{", '{"x":1}']),
    ),
    min_size=1,
    max_size=5,
)
scripts = st.lists(
    st.builds(lambda wanted, usage: calls(*wanted, usage=usage), asked, usages)
    | st.just(RuntimeError("down")),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(scripts, st.integers(1, 5), st.integers(1, 3), st.sampled_from([50, 3]))
def test_every_stream_has_its_grammar(
    script: list[Turn | Exception], buffer: int, parallel: int, steps: int
) -> None:
    """Each attempt ends once; what starts was admitted, what ends or is refused is in the records."""
    shelf = ToolShelf().add("t:tool").add("t:bad", ValueError("bad")).add("t:gate")
    contract = TaskContract(max_parallel=parallel, max_steps=steps, tool_policy=GATED)
    stage = Stage(
        model=ScriptedModel([*script, reply()]),
        shelf=shelf,
        contract=contract,
        reading={"buffer": buffer},
    )

    events, result = played(stage)

    attempts = [
        event for event in events if isinstance(event, TurnStarted | TurnFinished | TurnLost)
    ]
    begun, ended = attempts[::2], attempts[1::2]
    assert all(isinstance(event, TurnStarted) for event in begun)
    assert [(e.step, e.attempt) for e in begun] == [(e.step, e.attempt) for e in ended]
    admitted = {event.step for event in events if isinstance(event, CallAdmitted)}
    started = [event.step for event in events if isinstance(event, CallStarted)]
    finished = {event.step: event for event in events if isinstance(event, CallFinished)}
    refused = {event.step: event.code for event in events if isinstance(event, CallRefused)}
    assert set(started) == set(finished) == admitted
    records = {step.step: step for step in result.steps}
    assert refused == {name: step.code for name, step in records.items() if not step.admitted}
    assert {step.step for step in begun} | admitted == {
        name for name, step in records.items() if step.admitted
    }
    assert all(records[name].ok is event.ok for name, event in finished.items())
    pending = [event.request for event in events if isinstance(event, ApprovalRequested)]
    assert tuple(pending) == result.requests


# ── how far the run gets ahead ──────────────────────────────────────────────────────────────────


async def settled() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def test_a_slow_reader_holds_the_run_and_is_not_charged_to_it() -> None:
    """The run waits before its next step, and the time that a reader takes is not the run's."""

    async def scenario() -> None:
        clock = MovableClock()
        script = [calls((f"c{n}", "t:tool", {"x": str(n)})) for n in range(5)]
        stage = Stage(
            model=ScriptedModel([*script, reply()]),
            shelf=ToolShelf().add("t:tool"),
            contract=TaskContract(max_duration_seconds=10),
            options={"clock": clock},
            reading={"buffer": 1},
        )
        events: list[LoopEvent] = []
        async for event in stage.start():
            events.append(event)
            await settled()
            ahead = len(stage.run.steps)
            clock.move(100)
            await settled()

            # Nothing moves while nobody reads.
            assert len(stage.run.steps) == ahead

        last = events[-1]
        assert isinstance(last, Finished)
        assert isinstance(last.result, Completed)
        assert last.result.ledger.active_seconds == 0

    asyncio.run(scenario())


def test_pieces_pile_up_as_text_and_not_as_events() -> None:
    """An adapter cannot be made to wait; what it says while nobody reads is joined, in order."""
    pieces = [str(number % 10) for number in range(1000)]
    stage = Stage(model=Speaker((pieces, reply("".join(pieces)))), reading={"buffer": 4})

    events, _ = played(stage)

    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(events) <= 6
    assert "".join(deltas) == "".join(pieces)


@pytest.mark.parametrize("stop", ["cancel", "pause"])
@pytest.mark.parametrize("mode", ["now", "after_step"])
def test_a_run_that_waits_for_its_reader_can_be_stopped(stop: str, mode: str) -> None:
    """An interruption does not wait until somebody reads."""

    async def scenario() -> None:
        stage = Stage(
            model=ScriptedModel([ONE]), shelf=ToolShelf().add("t:tool"), reading={"buffer": 1}
        )
        stream = stage.start()
        await anext(stream)
        await settled()
        getattr(stage.run, stop)("enough", mode)
        await settled()

        assert not stage.run.ledger.is_active

        _, result = await read(stream)
        assert result.kind == ("cancelled" if stop == "cancel" else "suspended")
        assert stage.shelf.ran["t:tool"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "given_",
    [
        {"buffer": 0},
        {"buffer": True},
        {"buffer": 1.5},
        {"warn_at": 0},
        {"warn_at": 1.1},
        {"warn_at": True},
    ],
    ids=str,
)
def test_what_bounds_nothing_is_refused(given_: dict[str, Any]) -> None:
    """A buffer is a whole number from 1, and a warning comes above nothing and at most at all."""
    with pytest.raises(ContractError):
        Stage(model=ScriptedModel([]), reading=given_).start()


# ── the reader leaves ───────────────────────────────────────────────────────────────────────────


class Left(Exception):
    """A reader that fails."""


async def by_aclose(stream: AsyncGenerator[LoopEvent, None]) -> None:
    async for event in stream:
        if isinstance(event, CallStarted):
            await stream.aclose()
            return


async def by_break(stream: AsyncGenerator[LoopEvent, None]) -> None:
    async with contextlib.aclosing(stream):
        async for event in stream:
            if isinstance(event, CallStarted):
                break


async def by_forgetting(stream: AsyncGenerator[LoopEvent, None]) -> None:
    async for event in stream:
        if isinstance(event, CallStarted):
            break


async def by_error(stream: AsyncGenerator[LoopEvent, None]) -> None:
    with contextlib.suppress(Left):
        async with contextlib.aclosing(stream):
            async for event in stream:
                if isinstance(event, CallStarted):
                    raise Left


async def by_cancellation(stream: AsyncGenerator[LoopEvent, None]) -> None:
    begun = asyncio.Event()

    async def reader(stream: AsyncGenerator[LoopEvent, None]) -> None:
        async for event in stream:
            if isinstance(event, CallStarted):
                begun.set()

    task = asyncio.ensure_future(reader(stream))
    await begun.wait()
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


LEAVING = [by_aclose, by_break, by_forgetting, by_error, by_cancellation]


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: str(leave.__name__))
def test_a_reader_that_leaves_stops_the_run(leave: Any, tmp_path: Path) -> None:
    """The call is cancelled, the end is recorded, no task is left, and the run can be taken up."""

    async def scenario() -> None:
        ended: list[str] = []

        async def forever(context: ExecutionContext) -> Json:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(context.step)
            return "never"

        path = tmp_path / "log.jsonl"
        stage = Stage(
            model=ScriptedModel([ONE]),
            shelf=ToolShelf().add("t:tool", does=forever, effects=Effects.ONCE),
            store=MemoryRunStore(),
            options={"audit": AuditLog(path)},
        )
        await leave(stage.start())
        # A forgotten stream is closed when the event loop has its turn.
        await asyncio.sleep(0.05)

        assert ended == ["t1c1"]
        assert len(asyncio.all_tasks()) == 1
        assert stage.run.observer is None
        last = [orjson.loads(line) for line in path.read_bytes().splitlines()][-1]
        assert (last["type"], last["object"]["kind"]) == ("run:finished", "suspended")
        assert last["object"]["code"] == "paused"
        assert not stage.run.ledger.is_active

        run_id = last["subject"]["run"]
        stage.model = ScriptedModel([reply()])
        _, result = await read(stage.resume(run_id))

        assert isinstance(result, Completed)
        assert result.ledger.reserved == {}
        stage.options["audit"].close()

    asyncio.run(scenario())


def test_a_reader_that_is_cancelled_twice_tears_the_run() -> None:
    """A second cancellation does not wait for a store that hangs; no task is left."""

    class Hanging(MemoryRunStore):
        async def commit(self, *given: Any, **named: Any) -> int:
            if stage.shelf.ran["t:tool"]:
                await asyncio.sleep(3600)
            return await super().commit(*given, **named)

    async def forever(context: ExecutionContext) -> Json:
        await asyncio.sleep(3600)
        return "never"

    stage = Stage(
        model=ScriptedModel([ONE]),
        shelf=ToolShelf().add("t:tool", does=forever),
        store=Hanging(),
    )

    async def scenario() -> None:
        task = asyncio.ensure_future(read(stage.start()))
        # The shelf has no event to wait for.
        while not stage.shelf.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert len(asyncio.all_tasks()) == 1
        assert not stage.run.ledger.is_active

    asyncio.run(scenario())


def test_a_reader_that_leaves_after_the_end_changes_nothing() -> None:
    """The run has ended as it has."""

    async def scenario() -> None:
        stage = Stage(model=ScriptedModel([reply()]), store=MemoryRunStore())
        stream = stage.start()
        async for event in stream:
            if isinstance(event, TurnFinished):
                await settled()
                break
        await stream.aclose()

        assert stage.store is not None
        stage.model = ScriptedModel([])
        _, result = await read(stage.resume(stage.run.id))
        assert isinstance(result, Completed)

    asyncio.run(scenario())


def test_a_stream_that_nobody_reads_does_nothing() -> None:
    """No turn, no record, and the run is free for another door."""

    async def scenario() -> None:
        stage = Stage(model=ScriptedModel([reply()]))
        stream = stage.start()
        await settled()

        assert stage.run.is_fresh()
        await stream.aclose()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    """One drive at a time: the stream that came too late neither reads nor stops the other's run."""

    async def scenario() -> None:
        stage = Stage(model=ScriptedModel([ONE, reply()]), shelf=ToolShelf().add("t:tool"))
        runtime = stage.runtime()
        given_ = TurnInput(messages=[UserMessage(text="go")], tool_catalog=stage.shelf.specs)
        first = stream_governed_agent_loop(runtime=runtime, execute_turn_input=given_)
        second = stream_governed_agent_loop(runtime=runtime, execute_turn_input=given_)
        await anext(first)
        with pytest.raises(ContractError):
            await anext(second)
        await second.aclose()

        _, result = await read(first)
        assert isinstance(result, Completed)

    asyncio.run(scenario())


def test_a_run_that_raises_raises_to_its_reader() -> None:
    """What the other doors raise, the stream raises where it is read."""

    async def scenario() -> None:
        stage = Stage(model=ScriptedModel([]), store=MemoryRunStore())
        with pytest.raises(Exception, match="no saved run"):
            await read(stage.resume("nobody"))
        assert len(asyncio.all_tasks()) == 1

        first = Stage(model=ScriptedModel([]))
        with pytest.raises(ContractError):
            stream_governed_agent_loop(
                runtime=first.runtime(),
                execute_turn_input=TurnInput(messages=[UserMessage(text="go")]),
                max_turns=-1,
            )

    asyncio.run(scenario())


def test_a_run_on_a_stopped_event_loop_is_torn_and_recorded(tmp_path: Path) -> None:
    """`asyncio.run` that ends under a reader cancels both; the log has its end."""
    path = tmp_path / "log.jsonl"

    async def forever(context: ExecutionContext) -> Json:
        await asyncio.sleep(3600)
        return "never"

    with AuditLog(path) as audit:
        stage = Stage(
            model=ScriptedModel([ONE]),
            shelf=ToolShelf().add("t:tool", does=forever),
            options={"audit": audit},
        )

        async def scenario() -> None:
            task = asyncio.ensure_future(read(stage.start()))
            # The shelf has no event to wait for.
            while not stage.shelf.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert not task.done()

        asyncio.run(scenario())

    lines = [orjson.loads(line)["type"] for line in path.read_bytes().splitlines()]
    assert "run:finished" in lines
