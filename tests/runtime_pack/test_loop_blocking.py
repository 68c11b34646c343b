"""A synchronous stream never hangs: not at exit, not when it is collected, not without a thread."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runtime_pack import (
    CallStarted,
    ContractError,
    DirectoryRunStore,
    ExecutionContext,
    Finished,
    LoopEvent,
    Seal,
    Suspended,
    TaskContract,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    stream_governed_agent_loop_sync,
)
from runtime_pack.messages import Json
from runtime_pack.state import open_head
from runtime_pack.testing import ScriptedModel, ToolShelf, calls, reply

ONE = calls(("1", "t:a", "{}"))

SCRIPT = """
import asyncio, sys, threading
from pathlib import Path
from runtime_pack import *
from runtime_pack.testing import ScriptedModel, ToolShelf, calls, reply

async def work(context):
    await asyncio.sleep(0.3 if sys.argv[1] == "thread" else 3600)
    return "done"

shelf = ToolShelf().add("t:a", does=work)
run = create_agent_task_run(TaskContract(), run_id="left")
seal = Seal(b"k" * 32)
# Python gives no executor to anybody once the main thread has ended, and files need one.
store = DirectoryRunStore(Path(sys.argv[2]), seal=seal) if sys.argv[1] == "main" else None
stream = stream_governed_agent_loop_sync(
    runtime=run.guard_runtime(
        create_agent_runtime(
            model=ScriptedModel([calls(("1", "t:a", "{}")), reply("read to the end")]),
            tools=shelf.tools,
        )
    ),
    execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs),
    store=store,
)

def read():
    for event in stream:
        if isinstance(event, Finished):
            print(event.result.text, flush=True)
        if isinstance(event, CallStarted) and sys.argv[1] == "main":
            break

if sys.argv[1] == "main":
    read()
else:
    threading.Thread(target=read).start()
print("end of the script", flush=True)
"""


def exited(kind: str, folder: Path) -> str:
    """What a process printed that ends with its stream open; the kind is who reads it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def saved(folder: Path) -> dict[str, Json]:
    store = DirectoryRunStore(folder, seal=Seal(b"k" * 32))
    return open_head(asyncio.run(store.load("left")), store.seal)


def test_a_stream_that_is_open_at_exit_is_paused_first(tmp_path: Path) -> None:
    """The process ends, and the saved run says how: paused, to be taken up."""
    assert exited("main", tmp_path) == "end of the script\n"

    outcome = saved(tmp_path)["outcome"]

    assert isinstance(outcome, dict)
    assert outcome["kind"] == "suspended"


def test_a_thread_that_reads_at_exit_reads_to_the_end(tmp_path: Path) -> None:
    """The interpreter waits for it, so its run is not stopped."""
    assert exited("thread", tmp_path) == "end of the script\nread to the end\n"


def stream_of(tools: ToolShelf) -> Generator[LoopEvent, None, None]:
    run = create_agent_task_run(TaskContract())
    model = ScriptedModel([ONE, reply()])
    return stream_governed_agent_loop_sync(
        runtime=run.guard_runtime(create_agent_runtime(model=model, tools=tools.tools)),
        execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=tools.specs),
    )


def until_alone() -> None:
    """Return when no thread of a stream is left.

    Raises:
        AssertionError: one is, after a while.
    """
    for _ in range(6000):
        if not [each for each in threading.enumerate() if each.name == "agent-loop"]:
            return
        time.sleep(0.01)
    raise AssertionError(threading.enumerate())


class Ring:
    """Something that only the collector of cycles finds."""

    stream: Any
    me: Any


@pytest.mark.parametrize("where", ["loop", "executor"])
def test_a_stream_may_be_collected_in_a_thread_of_its_run(where: str) -> None:
    """Nobody waits there for what could not end meanwhile; the run is stopped all the same."""
    left, ended = threading.Event(), threading.Event()

    def collect() -> None:
        left.wait(120)
        gc.collect()
        ended.set()

    async def work(context: ExecutionContext) -> Json:
        # Until the reader has been told that the call began.
        await asyncio.sleep(0.05)
        if where == "loop":
            collect()
        else:
            await asyncio.get_running_loop().run_in_executor(None, collect)
        return "done"

    gc.disable()
    try:
        ring = Ring()
        ring.stream, ring.me = stream_of(ToolShelf().add("t:a", does=work)), ring
        next(event for event in ring.stream if isinstance(event, CallStarted))
        del ring
        left.set()

        assert ended.wait(120)
        until_alone()
    finally:
        gc.enable()


class NoLoops(asyncio.DefaultEventLoopPolicy):
    """What a process has that has no file descriptors left."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")


def test_a_stream_without_an_event_loop_says_so() -> None:
    """The error is raised where the stream is read, and no thread is left."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(NoLoops())
    try:
        with pytest.raises(OSError, match="Too many"):
            next(stream_of(ToolShelf().add("t:a")))
    finally:
        asyncio.set_event_loop_policy(before)
    until_alone()


def test_a_stream_without_a_thread_says_so() -> None:
    """The error is raised where the stream is read."""
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            next(stream_of(ToolShelf().add("t:a")))
    finally:
        threading.stack_size(before)


def test_a_stream_made_before_an_event_loop_is_not_read_in_it() -> None:
    """The refusal comes with the first event that is asked for, and nothing has begun."""
    tools = ToolShelf().add("t:a")
    stream = stream_of(tools)

    async def scenario() -> None:
        with pytest.raises(ContractError, match="an event loop runs here"):
            next(stream)

    asyncio.run(scenario())

    assert not tools.calls


def test_closing_a_stream_beside_an_event_loop_does_not_block_it() -> None:
    """The run is told to stop, and stops."""
    ended = threading.Event()

    async def work(context: ExecutionContext) -> Json:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.2)
            ended.set()
        return "done"

    stream = stream_of(ToolShelf().add("t:a", does=work))
    next(event for event in stream if isinstance(event, CallStarted))

    async def scenario() -> None:
        stream.close()

        assert not ended.is_set()

    asyncio.run(scenario())
    until_alone()

    assert ended.is_set()


def test_a_stream_may_be_closed_twice_and_read_on_after_its_end() -> None:
    """The second close finds nothing to do."""
    stream = stream_of(ToolShelf().add("t:a"))
    (last,) = [event for event in stream if isinstance(event, Finished)]
    stream.close()
    stream.close()

    assert not isinstance(last.result, Suspended)
    assert list(stream) == []
