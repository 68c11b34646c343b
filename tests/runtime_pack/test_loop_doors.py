"""One driver, and every door to it: await, stream, and both without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NotRequired, get_origin, get_type_hints

import attrs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    CallStarted,
    Completed,
    ContractError,
    Decision,
    Event,
    EventCode,
    ExecutionContext,
    Finished,
    LoopEvent,
    LoopResult,
    MemoryRunStore,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    resume_governed_agent_loop_sync,
    run_governed_agent_loop,
    run_governed_agent_loop_sync,
    stream_governed_agent_loop,
    stream_governed_agent_loop_sync,
    stream_resumed_agent_loop,
    stream_resumed_agent_loop_sync,
)
from runtime_pack.approvals import Verdict
from runtime_pack.catalog import Effects
from runtime_pack.loop.entry import ResumeOptions, RunOptions
from runtime_pack.messages import FinishReason, Json, TurnStatus, message_to_json
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
    shown_as_it_is,
)

POLICY: Final = ToolPolicy(
    [
        ToolRule(tool="t:gate", approval_class="request_user"),
        ToolRule(tool="t:no", approval_class="deny"),
    ]
)
TOOLS: Final = ("t:ok", "t:bad", "t:gate", "t:no", "t:denied", "t:slow", "t:none")


# ── every door gives the same records ───────────────────────────────────────────────────────────


async def streamed(**given_: Any) -> LoopResult:
    return last([event async for event in stream_governed_agent_loop(**given_)])


async def streamed_again(**given_: Any) -> LoopResult:
    return last([event async for event in stream_resumed_agent_loop(**given_)])


def last(events: list[LoopEvent]) -> LoopResult:
    assert isinstance(events[-1], Finished)
    return events[-1].result


DOORS: Final[dict[str, tuple[Callable[..., LoopResult], Callable[..., LoopResult]]]] = {
    "await": (
        lambda **given_: asyncio.run(run_governed_agent_loop(**given_)),
        lambda **given_: asyncio.run(resume_governed_agent_loop(**given_)),
    ),
    "stream": (
        lambda **given_: asyncio.run(streamed(**given_)),
        lambda **given_: asyncio.run(streamed_again(**given_)),
    ),
    "sync": (run_governed_agent_loop_sync, resume_governed_agent_loop_sync),
    "sync stream": (
        lambda **given_: last(list(stream_governed_agent_loop_sync(**given_))),
        lambda **given_: last(list(stream_resumed_agent_loop_sync(**given_))),
    ),
}


@attrs.frozen(kw_only=True)
class Play:
    """One script with all that happens around it."""

    script: list[Turn | Exception]
    contract: TaskContract
    words: list[Verdict]
    crash_at: int
    after: bool
    message: bool


def shelf(clock: MovableClock) -> ToolShelf:
    async def slow(context: ExecutionContext) -> Json:
        clock.move(3)
        await asyncio.sleep(0)
        return "slow"

    async def denied(context: ExecutionContext) -> Json:
        subject: dict[str, Json] = {"run": context.run, "step": context.step}
        context.record(Event(code=EventCode.EGR001D, subject=subject, object={"x": "y"}))
        raise ValueError("denied")

    made = ToolShelf().add("t:ok").add("t:bad", ValueError("bad")).add("t:gate").add("t:no")
    made.add("t:denied", does=denied)
    return made.add("t:slow", does=slow, effects=Effects.REPEATABLE)


def told(play: Play, door: str, folder: Path) -> list[Any]:
    """What a whole run through this door leaves behind, over deaths and decisions."""
    start, resume = DOORS[door]
    clock, store = MovableClock(), CrashingRunStore(crash_at={play.crash_at}, after=play.after)
    tools, model = shelf(clock), ScriptedModel([*play.script, *[reply()] * 3])
    words, seen = list(play.words), list[Any]()

    def runtime(audit: AuditLog) -> Any:
        run = create_agent_task_run(
            play.contract, run_id="run-1", audit=audit, clock=clock, frame=shown_as_it_is
        )
        return run.guard_runtime(create_agent_runtime(model=model, tools=tools.tools))

    given_: dict[str, Any] = {
        "execute_turn_input": TurnInput(messages=[UserMessage(text="go")], tool_catalog=tools.specs)
    }
    decided: dict[str, Any] = {}
    with AuditLog(folder / f"{door}.jsonl") as audit:
        for drive in range(6):
            try:
                if drive == 0 or not store.commits:
                    result = start(runtime=runtime(audit), store=store, **given_)
                else:
                    result = resume(runtime=runtime(audit), store=store, run_id="run-1", **decided)
            # Compared below, whatever it is.
            except BaseException as error:  # noqa: BLE001
                seen.append(type(error).__name__)
                if isinstance(error, Crash) and play.crash_at == 1 and not play.after:
                    break
                continue
            seen.append(summary(result))
            decided = {}
            if isinstance(result, ApprovalRequired) and words:
                decided["decisions"] = [
                    Decision(request_id=request.request_id, verdict=words.pop(0), decided_by="p")
                    for request in result.requests[: len(words)]
                ]
            elif drive < 3 and play.message:
                decided = {"message": "and?", "abandon": True}
            else:
                break
    return [seen, tools.ran, tools.calls, logged(folder / f"{door}.jsonl")]


def summary(result: LoopResult) -> list[Any]:
    """The result but for what is random or time."""
    steps = [step.to_json() | {"elapsed_us": 0} for step in result.steps]
    messages = unnamed([message_to_json(message) for message in result.messages])
    stop = None if result.stop is None else (result.stop.code, result.stop.stage)
    asked = [(request.step, request.arguments_sha256) for request in result.requests]
    ledger = result.ledger.to_json() | {"active_us": 0}
    saved = None if result.state is None else (result.state.revision, len(result.state.rows))
    return [result.kind, result.text, stop, messages, steps, ledger, asked, saved]


def logged(path: Path) -> list[Any]:
    """The log's lines but for ids, time and the chain."""
    lines = []
    for line in path.read_bytes().splitlines():
        entry = orjson.loads(line)
        facts = {k: v for k, v in entry["object"].items() if not k.endswith("_us")}
        for name in ("request", "pid", "writer", "log"):
            facts.pop(name, None)
        decision = entry.get("decision") or {}
        # Each log has its own writer.
        subject = {k: v for k, v in entry["subject"].items() if k != "executor"}
        lines.append([entry["type"], entry["code"], subject, facts, decision])
    return unnamed(lines)


def unnamed(values: list[Any]) -> list[Any]:
    """The values without the random ids of requests, which a remembered denial points to."""
    return list(orjson.loads(re.sub(rb"apr-[0-9a-f]{24}", b"apr-", orjson.dumps(values))))


calls_asked = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(TOOLS) | st.just("t:ok"),
        st.sampled_from(["{}", '{"x":"1"}', '{"x":1}', "{"]),
    ),
    min_size=1,
    max_size=4,
)
turns = st.builds(lambda wanted: calls(*wanted), calls_asked) | st.builds(
    Turn,
    status=st.sampled_from([TurnStatus.REPLY, TurnStatus.COMPLETE, TurnStatus.ESCALATE]),
    text=st.just("text"),
    finish=st.sampled_from(FinishReason),
)
plays = st.builds(
    Play,
    script=st.lists(turns | st.just(RuntimeError("down")), min_size=1, max_size=4),
    contract=st.builds(
        TaskContract,
        max_steps=st.sampled_from([50, 50, 3, 0]),
        max_turns=st.sampled_from([20, 3, 1]),
        max_parallel=st.integers(1, 3),
        max_duration_seconds=st.sampled_from([600, 5]),
        max_consecutive_refused=st.integers(1, 3),
        tool_policy=st.just(POLICY),
        wrap_up=st.booleans(),
    ),
    words=st.lists(st.sampled_from(Verdict), max_size=3),
    crash_at=st.integers(0, 8),
    after=st.booleans(),
    message=st.booleans(),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plays)
def test_every_door_gives_the_same_records(play: Play) -> None:
    """Property 8: results, steps, ledger, saved rows and log are those of the awaited loop.

    Over refusals, violations, approvals, further messages, and a death at any commit. No reader is
    so slow here that a run has to wait for it: before that it is saved once more.
    """
    with tempfile.TemporaryDirectory() as folder:
        expected = told(play, "await", Path(folder))
        for door in ("stream", "sync", "sync stream"):
            assert told(play, door, Path(folder)) == expected, door


def test_the_doors_take_the_same() -> None:
    """Streams and synchronous doors are called as the awaited ones, argument by argument."""
    for awaited, options in (
        (run_governed_agent_loop, RunOptions),
        (resume_governed_agent_loop, ResumeOptions),
    ):
        parameters = inspect.signature(awaited).parameters
        required = {name for name, p in parameters.items() if p.default is p.empty}

        assert list(parameters) == list(options.__annotations__)
        hints = get_type_hints(options, include_extras=True)
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        assert required == hints.keys() - optional


# ── without an event loop ───────────────────────────────────────────────────────────────────────


def setting(
    script: list[Turn | Exception], tools: ToolShelf, **options: Any
) -> tuple[dict[str, Any], Any]:
    run = create_agent_task_run(TaskContract(), **options)
    runtime = run.guard_runtime(
        create_agent_runtime(model=ScriptedModel(script), tools=tools.tools)
    )
    given_ = TurnInput(messages=[UserMessage(text="go")], tool_catalog=tools.specs)
    return {"runtime": runtime, "execute_turn_input": given_}, run


@pytest.mark.parametrize(
    "door",
    [
        run_governed_agent_loop_sync,
        resume_governed_agent_loop_sync,
        stream_governed_agent_loop_sync,
        stream_resumed_agent_loop_sync,
    ],
    ids=lambda door: str(door.__name__),
)
def test_a_synchronous_door_refuses_to_block_an_event_loop(door: Any) -> None:
    """The error names the door to use instead, and the run is not begun."""

    async def scenario() -> None:
        given_, run = setting([], ToolShelf())
        if "resume" in door.__name__:
            given_ = {"runtime": given_["runtime"], "store": MemoryRunStore(), "run_id": "x"}
        with pytest.raises(ContractError, match=door.__name__.removesuffix("_sync")):
            door(**given_)

        assert run.is_fresh()

    asyncio.run(scenario())


ONE: Final = calls(("a", "t:tool", "{}"))


@pytest.mark.parametrize("door", ["sync", "sync stream"])
def test_ctrl_c_leaves_a_run_that_can_be_taken_up(door: str) -> None:
    """The tool is cancelled, the interrupt is raised to the caller, and what is stored is valid."""
    ended: list[str] = []

    async def forever(context: ExecutionContext) -> Json:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(context.step)
        return "never"

    tools, store = ToolShelf().add("t:tool", does=forever), MemoryRunStore()
    given_, run = setting([ONE], tools)
    with pytest.raises(KeyboardInterrupt):
        DOORS[door][0](store=store, **given_)

    assert ended == ["t1c1"]
    assert threading.active_count() == 1

    given_, _ = setting([reply()], tools)
    result = DOORS[door][1](runtime=given_["runtime"], store=store, run_id=run.id)

    assert isinstance(result, Completed)
    assert tools.ran["t:tool"] == 1


@pytest.mark.parametrize("leave", ["close", "break", "error"])
def test_a_caller_that_leaves_a_synchronous_stream_stops_the_run(leave: str) -> None:
    """No thread and no task is left, the tool was cancelled, and the run is paused."""
    ended: list[str] = []

    async def forever(context: ExecutionContext) -> Json:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(context.step)
        return "never"

    tools, store = ToolShelf().add("t:tool", does=forever), MemoryRunStore()
    given_, run = setting([ONE], tools)

    def caller() -> None:
        stream = stream_governed_agent_loop_sync(store=store, **given_)
        for event in stream:
            if not isinstance(event, CallStarted):
                continue
            if leave == "error":
                raise LookupError
            if leave == "close":
                stream.close()
            break

    if leave == "error":
        with pytest.raises(LookupError):
            caller()
    else:
        caller()

    assert ended == ["t1c1"]
    assert threading.active_count() == 1
    saved = orjson.loads(asyncio.run(store.load(run.id)).head)
    assert Suspended.__name__.lower() in orjson.dumps(saved).decode()


def test_a_slow_caller_lets_calls_go_on() -> None:
    """While the caller looks at an event, the call in flight is not frozen into its timeout."""

    async def brief(context: ExecutionContext) -> Json:
        await asyncio.sleep(0.05)
        return "in time"

    tools = ToolShelf().add("t:tool", does=brief, timeout_seconds=0.2)
    given_, _ = setting([ONE, reply()], tools)
    result: LoopResult | None = None
    for event in stream_governed_agent_loop_sync(**given_):
        if isinstance(event, CallStarted):
            time.sleep(0.4)
        if isinstance(event, Finished):
            result = event.result

    assert isinstance(result, Completed)
    assert result.steps[1].ok is True
