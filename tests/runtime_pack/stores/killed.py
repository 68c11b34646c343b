"""A program for `test_killed.py`: a governed run that is killed at its k-th write, and taken up.

It forks before it does anything, so that each life of the run is a process of its own: one dies by
SIGKILL at the k-th point at which something is about to be written, or was written by half; the
next one, which knows only what is on the disk, brings the run to its end. Every k has its turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import orjson

from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    CatalogTool,
    Completed,
    Decision,
    DirectoryRunStore,
    Effects,
    ExecutionContext,
    LogHead,
    LoopResult,
    Seal,
    SQLiteRunStore,
    TaskContract,
    ToolMessage,
    ToolPolicy,
    ToolRule,
    ToolRuntime,
    ToolSpec,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
    runs,
    verify_log,
)
from runtime_pack.errors import RunNotFound
from runtime_pack.messages import AssistantMessage, Json
from runtime_pack.state import open_head
from runtime_pack.stores.files import Disk
from runtime_pack.testing import assert_one_result_per_call, assert_within_budget, calls, reply

SEAL = Seal(b"k" * 32)
RUN = "run-1"
# Which response a call of `t:once` belongs to, by its argument.
RESPONSES = {"2": 0, "4": 1, "5": 0}
SCRIPT = (
    calls(("a", "t:look", '{"x":"1"}'), ("b", "t:once", '{"x":"2"}'), ("e", "t:once", '{"x":"5"}')),
    calls(("c", "t:gate", '{"x":"3"}'), ("d", "t:once", '{"x":"4"}')),
    reply("the end"),
)
PARAMETERS: dict[str, Json] = {"type": "object", "properties": {"x": {"type": "string"}}}


class Diary:
    """Which responses the model was asked for and which were judged, in the order of events."""

    path: ClassVar[Path]

    @classmethod
    def note(cls, word: str) -> None:
        with cls.path.open("ab", buffering=0) as file:
            file.write(f"{word}\n".encode())


async def watched(arguments: Mapping[str, Json]) -> bool:
    """A predicate that denies nothing, and in which the process may die."""
    Diary.note(f"judged {RESPONSES[str(arguments['x'])]}")
    Points.pass_by()
    return False


CONTRACT = TaskContract(
    max_steps=12,
    max_turns=12,
    tool_policy=ToolPolicy(
        [
            ToolRule(tool="t:gate", approval_class="request_user"),
            ToolRule(tool="t:once", approval_class="deny", when=watched),
        ]
    ),
)


class Points:
    """Counts what is about to be written, and dies at the chosen point."""

    at: ClassVar[int] = 0
    seen: ClassVar[int] = 0

    @classmethod
    def arrives(cls) -> bool:
        """Whether this is the point."""
        cls.seen += 1
        return cls.seen == cls.at

    @classmethod
    def pass_by(cls) -> None:
        """Go on, or die."""
        if cls.arrives():
            cls.die()

    @staticmethod
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingDisk(Disk):
    """Each step of a save is a point, and of each block also its half."""

    def write(self, handle: int, block: bytes) -> None:
        Points.pass_by()
        if Points.arrives():
            os.write(handle, block[: len(block) // 2])
            Points.die()
        super().write(handle, block)

    def truncate(self, handle: int, size: int) -> None:
        Points.pass_by()
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        Points.pass_by()
        super().sync(handle)
        Points.pass_by()

    def replace(self, source: Path, target: Path) -> None:
        Points.pass_by()
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        Points.pass_by()
        super().link(source, target)


class KillingConnection(sqlite3.Connection):
    """Each statement is a point, and so is the moment after each one."""

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
        Points.pass_by()
        cursor = super().execute(sql, *given)
        if sql == "COMMIT":
            Points.pass_by()
        return cursor

    def executemany(self, sql: str, given: Iterable[Any]) -> sqlite3.Cursor:
        Points.pass_by()
        return super().executemany(sql, given)


class KillingLog(AuditLog):
    """Each write of the log is a point, and so are its half and the moment after it."""

    def flush(self) -> None:
        if not self._buffer:
            return
        Points.pass_by()
        if Points.arrives():
            block = b"\n".join(self._buffer) + b"\n"
            os.write(self._fd, block[: len(block) * 2 // 3])
            Points.die()
        super().flush()
        Points.pass_by()


class Historian:
    """A model that knows where it is by the history alone."""

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        del context
        number = sum(isinstance(m, AssistantMessage) for m in request.messages)
        Diary.note(f"asked {number}")
        return SCRIPT[number]


def connect(*given: Any, **named: Any) -> sqlite3.Connection:
    return sqlite3.connect(*given, **named, factory=KillingConnection)


def opened(kind: str, folder: Path) -> DirectoryRunStore | SQLiteRunStore:
    if kind == "files":
        return DirectoryRunStore(folder / "runs", seal=SEAL, disk=KillingDisk())
    return SQLiteRunStore(folder / "runs.sqlite3", seal=SEAL, connect=connect)


def tools(effects: Path) -> list[CatalogTool]:
    """Tools whose effect is a line in a file: it happened, or it did not."""

    def made(name: str, effect: Effects) -> CatalogTool:
        async def work(arguments: Mapping[str, Json], context: ExecutionContext) -> Json:
            del context
            Points.pass_by()
            with effects.open("ab", buffering=0) as file:
                file.write(f"{arguments['x']}\n".encode())
            Points.pass_by()
            return f"did {arguments['x']}"

        spec = ToolSpec(name=name, description="A fake.", parameters=PARAMETERS, effects=effect)
        return CatalogTool(spec=spec, handler=work)

    return [
        made("t:look", Effects.REPEATABLE),
        made("t:once", Effects.ONCE),
        made("t:gate", Effects.ONCE),
    ]


async def live(kind: str, folder: Path) -> LoopResult:
    """Bring the run to its end from wherever it stands on the disk."""
    Diary.path = folder / "diary"
    store = opened(kind, folder)
    with KillingLog(folder / "log.jsonl") as log:
        catalog = tools(folder / "effects")

        def runtime() -> ToolRuntime:
            base = create_agent_runtime(model=Historian(), tools=catalog)
            return create_agent_task_run(CONTRACT, run_id=RUN, audit=log).guard_runtime(base)

        result = await first(store, runtime, tuple(tool.spec for tool in catalog))
        for _ in range(4):
            if not isinstance(result, ApprovalRequired):
                break
            for request in result.requests:
                yes = Decision(
                    request_id=request.request_id, verdict=Verdict.APPROVE, decided_by="ann"
                )
                await runs.decide(store, RUN, yes)
            result = await resume_governed_agent_loop(runtime=runtime(), store=store, run_id=RUN)
    (folder / "head").write_text(str(log.head))
    if isinstance(store, SQLiteRunStore):
        store.close()
    return result


async def first(
    store: DirectoryRunStore | SQLiteRunStore,
    runtime: Callable[[], ToolRuntime],
    catalog: tuple[ToolSpec, ...],
) -> LoopResult:
    try:
        await store.load(RUN)
    except RunNotFound:
        start = TurnInput(messages=[UserMessage(text="go")], tool_catalog=catalog)
        return await run_governed_agent_loop(
            runtime=runtime(), execute_turn_input=start, store=store
        )
    return await resume_governed_agent_loop(runtime=runtime(), store=store, run_id=RUN)


def forked(work: Callable[[], None]) -> int:
    """The status of a process that did the work."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        # Whatever it is, the parent is told by the status.
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def one_life(kind: str, folder: Path, at: int) -> int:
    """Live until the *at*-th point; 0 lives to the end."""

    def work() -> None:
        Points.at, Points.seen = at, 0
        asyncio.run(live(kind, folder))

    return forked(work)


def used(kind: str, folder: Path) -> dict[str, int]:
    """What the run had used when it was last saved."""
    store = opened(kind, folder)
    try:
        head: Any = open_head(asyncio.run(store.load(RUN)), SEAL)
    except RunNotFound:
        return {}
    finally:
        if isinstance(store, SQLiteRunStore):
            store.close()
    found: dict[str, int] = head["ledger"]["used"]
    return found


def judge(kind: str, folder: Path, before: dict[str, int]) -> None:
    """The last life, and what must hold after it.

    Raises:
        AssertionError: it does not.
    """
    result = asyncio.run(live(kind, folder))
    assert isinstance(result, Completed), (result.kind, result.stop)
    assert_one_result_per_call(result.messages)
    assert_within_budget(result.ledger)
    for name, count in before.items():
        assert result.ledger.used[name] >= count, name
    said = [m for m in result.messages if isinstance(m, AssistantMessage)]
    expected = [[(c.id, c.name) for c in turn.calls] for turn in SCRIPT]
    assert expected == [[(call.id, call.name) for call in message.calls] for message in said]
    judge_diary()
    path = folder / "effects"
    happened = Counter(path.read_text().split()) if path.exists() else Counter[str]()
    started = judge_log(folder)
    numbers = dict(zip("abcde", "12345", strict=True))
    for message in result.messages:
        if isinstance(message, ToolMessage):
            judge_call(message, happened[numbers[message.call_id]], started[message.call_id])


def last_life(kind: str, folder: Path) -> None:
    """Bring the run to its end and judge it by what it had used before."""
    judge(kind, folder, used(kind, folder))


def parked(kind: str, folder: Path) -> None:
    """A run that waits for a person."""
    asyncio.run(park(kind, folder))


def judge_call(message: ToolMessage, happened: int, started: int) -> None:
    """No call that says it must not be repeated happened twice, and none without a record."""
    call = message.call_id
    assert happened <= started, (call, happened, started)
    if call != "a":
        assert happened <= 1, (call, happened)
    if message.ok:
        assert happened >= 1, call
    else:
        assert call != "a"
        assert json.loads(message.text)["code"] == "OUTCOME_UNKNOWN", message.text


def judge_diary() -> None:
    """A response that was being judged is not asked for again, however the process died then."""
    judged: set[str] = set()
    for line in Diary.path.read_text().splitlines():
        what, number = line.split()
        assert what == "judged" or number not in judged, f"paid for response {number} again"
        if what == "judged":
            judged.add(number)


def judge_log(folder: Path) -> Counter[str]:
    """The log verifies against its last head; how often each call was started."""
    log = folder / "log.jsonl"
    head = LogHead.parse((folder / "head").read_text())
    found = verify_log(log, [head])
    assert found.status == "verified", found.faults
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    return Counter(line["subject"]["call"] for line in lines if line["code"] == "STP001A")


def deaths(kind: str, folder: Path, shard: int, shards: int) -> int:
    """One run for every point of this shard; the number of points."""
    for at in itertools.count(1 + shard, shards):
        place = folder / str(at)
        place.mkdir()
        status = one_life(kind, place, at)
        died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert died or status == 0, (at, status)
        # Some runs die twice: the second life is ended at a point of its own.
        if died and at % 3 == 0:
            one_life(kind, place, 1 + at * 7 % 41)
        last = forked(partial(last_life, kind, place))
        assert last == 0, f"after a death at point {at}"
        if not died:
            return at
    raise AssertionError("unreachable")


def moments(kind: str, folder: Path, count: int) -> None:
    """Deaths at any instant, inside the calls of the system too."""
    drawn = random.Random(9)
    whole = folder / "whole"
    whole.mkdir()
    begun = time.monotonic()
    assert one_life(kind, whole, 0) == 0
    length = time.monotonic() - begun
    for number in range(count):
        place = folder / str(number)
        place.mkdir()
        pid = os.fork()
        if pid == 0:
            asyncio.run(live(kind, place))
            os._exit(0)
        time.sleep(drawn.uniform(0, length))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        last = forked(partial(last_life, kind, place))
        assert last == 0, f"after a death at an instant, number {number}"


async def attempt(kind: str, folder: Path, number: int) -> None:
    """One of several processes that bring the same approval to the same run, all at once."""
    store = opened(kind, folder)
    Diary.path = folder / "diary"
    catalog = tools(folder / "effects")
    (request,) = (await runs.show_run(store, RUN)).requests
    yes = Decision(
        request_id=request.request.request_id, verdict=Verdict.APPROVE, decided_by=str(number)
    )
    wait_for_go(folder, number)
    with AuditLog(folder / f"log-{number}.jsonl") as log:
        base = create_agent_runtime(model=Historian(), tools=catalog)
        run = create_agent_task_run(CONTRACT, run_id=RUN, audit=log)
        result = await resume_governed_agent_loop(
            runtime=run.guard_runtime(base), store=store, run_id=RUN, decisions=[yes]
        )
    code = None if result.stop is None else str(result.stop.code)
    told = {"kind": str(result.kind), "code": code}
    (folder / f"told-{number}").write_text(json.dumps(told))
    if isinstance(store, SQLiteRunStore):
        store.close()


def wait_for_go(folder: Path, number: int) -> None:
    """Say that this one is ready, and wait until all are."""
    (folder / f"ready-{number}").touch()
    while not (folder / "go").exists():
        time.sleep(0.0005)


async def park(kind: str, folder: Path) -> None:
    """A run that waits for a person."""
    Diary.path = folder / "diary"
    store = opened(kind, folder)
    catalog = tools(folder / "effects")
    base = create_agent_runtime(model=Historian(), tools=catalog)
    result = await run_governed_agent_loop(
        runtime=create_agent_task_run(CONTRACT, run_id=RUN).guard_runtime(base),
        execute_turn_input=TurnInput(
            messages=[UserMessage(text="go")], tool_catalog=[tool.spec for tool in catalog]
        ),
        store=store,
    )
    assert isinstance(result, ApprovalRequired)
    if isinstance(store, SQLiteRunStore):
        store.close()


def race(kind: str, folder: Path, rounds: int, runners: int) -> None:
    """Processes that resume one run together: the approved call runs once."""
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir()
        assert forked(partial(parked, kind, place)) == 0
        pids = []
        for runner in range(runners):
            pid = os.fork()
            if pid == 0:
                asyncio.run(attempt(kind, place, runner))
                os._exit(0)
            pids.append(pid)
        while len(list(place.glob("ready-*"))) < runners:
            time.sleep(0.001)
        (place / "go").touch()
        assert [0] * runners == [os.waitpid(pid, 0)[1] for pid in pids]
        told = [json.loads((place / f"told-{n}").read_text()) for n in range(runners)]
        won = [one for one in told if one["kind"] == "completed"]
        lost = {one["code"] for one in told if one["kind"] != "completed"}
        assert len(won) == 1, told
        assert lost <= {"ALREADY_RESOLVED", "STATE_CONFLICT"}, told
        happened = Counter((place / "effects").read_text().split())
        assert happened == Counter("12345"), happened


def main() -> None:
    kind, folder, what, *numbers = sys.argv[1:]
    answer = "done"
    if what == "race":
        race(kind, Path(folder), *map(int, numbers))
    elif what == "points":
        answer = str(deaths(kind, Path(folder), *map(int, numbers)))
    else:
        moments(kind, Path(folder), *map(int, numbers))
    sys.stdout.write(answer)


if __name__ == "__main__":
    main()
