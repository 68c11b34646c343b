"""CPU per turn of the governed loop, and where it goes.

Usage: python benchmarks/loop_profile.py [--turns 50] [--calls 1] [--runs 40] [--profile | --samples]
       [--floor PATH]

Governance is on: contract, policy, argument schema, timeout per call, step records, the fence around
every output, audit log in a file; each run counts steps and nonces. `--floor` takes a folder that
holds `floor_governed.py` and `_common.py` (the hand-written least that governs) and prints our ratio
to it, measured alternately in one process. `--profile` counts calls, which makes small functions look
dear; `--samples` looks every millisecond of processor time at what runs, which does not.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import pstats
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType

from runtime_pack import (
    AuditLog,
    CatalogTool,
    ExecutionContext,
    SystemMessage,
    TaskContract,
    ToolCall,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnInput,
    TurnRequest,
    TurnStatus,
    Usage,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.messages import Json
from web_tools.fence import FenceKind, FenceMeta, NonceBook, fence_text

LOOKUP = ToolSpec(
    name="lookup",
    description="Looks up.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 400},
            "limit": {"type": "integer", "minimum": 1, "maximum": 20},
        },
        "required": ["query"],
    },
)


def frame(text: str, *, source: str, burned: set[str]) -> str:
    """The fence around every output, as the floor has one."""
    meta = FenceMeta(kind=FenceKind.PAGE, source=source)
    return fence_text(text, meta=meta, nonces=NonceBook(burned=burned))


async def lookup(arguments: Mapping[str, Json], context: ExecutionContext) -> str:
    """The tool of every call."""
    del arguments, context
    return "ok: 3 results"


class Asker:
    """Asks for `calls` calls a turn, then answers; knows its turn from the history's length."""

    def __init__(self, turns: int, calls: int) -> None:
        self.turns, self.calls = turns, calls

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """One turn of the script."""
        del context
        turn = (len(request.messages) - 2) // (1 + self.calls)
        if turn >= self.turns:
            return Turn(
                status=TurnStatus.REPLY, text="done", usage=Usage(input_tokens=10, output_tokens=5)
            )
        # Another query each time: the same call with the same result is what the guard ends.
        asked = tuple(
            ToolCall(
                id=f"c{turn}_{index}",
                name="lookup",
                arguments=f'{{"query": "alpha {turn}.{index}", "limit": 3}}',
            )
            for index in range(self.calls)
        )
        return Turn(
            status=TurnStatus.TOOL_REQUEST,
            calls=asked,
            usage=Usage(input_tokens=10, output_tokens=5),
        )


def governed(turns: int, calls: int, audit: AuditLog) -> Callable[[], Awaitable[object]]:
    """One governed run."""
    contract = TaskContract(
        max_turns=turns + 2,
        max_steps=turns * calls + 1,
        tool_policy=ToolPolicy([ToolRule(tool="lookup", approval_class="auto")]),
    )
    runtime = create_agent_runtime(
        model=Asker(turns, calls), tools=[CatalogTool(spec=LOOKUP, handler=lookup)]
    )
    given = TurnInput(
        messages=[SystemMessage(text="You are a test agent."), UserMessage(text="Go.")],
        tool_catalog=[LOOKUP],
    )

    async def run() -> None:
        task = create_agent_task_run(contract, audit=audit, frame=frame)
        result = await run_governed_agent_loop(
            runtime=task.guard_runtime(runtime), execute_turn_input=given
        )
        done = len(result.steps), len(task.burned)
        if result.text != "done" or done != (turns * (calls + 1) + 1, turns * calls):
            raise SystemExit(f"not the work it should be: {result.kind} {result.stop}")

    return run


def floor(path: Path, turns: int, calls: int) -> Callable[[], Awaitable[object]]:
    """One run of the hand-written floor."""
    sys.path.insert(0, str(path))
    module = importlib.import_module("floor_governed")
    run: Callable[[], Awaitable[object]] = module.make(turns, calls)
    return run


async def cpu_us(run: Callable[[], Awaitable[object]], turns: int) -> float:
    """CPU microseconds per turn of one run."""
    begun = time.process_time()
    await run()
    return (time.process_time() - begun) / turns * 1e6


async def compare(
    contestants: dict[str, Callable[[], Awaitable[object]]], turns: int, runs: int
) -> dict[str, float]:
    """Lower quartiles, measured alternately so that a busy machine is busy for all."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(runs + 5):
        for name, run in contestants.items():
            figure = await cpu_us(run, turns)
            if round_ >= 5:
                figures[name].append(figure)
    return {name: statistics.quantiles(values, n=4)[0] for name, values in figures.items()}


async def profiled(run: Callable[[], Awaitable[object]], runs: int) -> None:
    """The functions that take the most time."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(runs):
        await run()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(32)


async def sampled(run: Callable[[], Awaitable[object]], runs: int, turns: int) -> None:
    """Microseconds a turn in each function and what it calls, the dearest first."""
    seen: Counter[tuple[str, str]] = Counter()
    samples = 0

    def look(_number: int, place: FrameType | None) -> None:
        nonlocal samples
        samples += 1
        stack = set()
        while place is not None:
            code = place.f_code
            stack.add(("/".join(Path(code.co_filename).parts[-2:]), code.co_qualname))
            place = place.f_back
        seen.update(stack)

    await run()
    signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    begun = time.process_time()
    for _ in range(runs):
        await run()
    spent = (time.process_time() - begun) / runs / turns * 1e6
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(f"{spent:.1f} us CPU a turn, {samples} samples")
    for (file, name), times in seen.most_common(60):
        print(f"{times / samples * spent:8.1f}  {file} {name}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--samples", action="store_true")
    parser.add_argument("--floor", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, AuditLog(Path(folder) / "log.jsonl") as audit:
        run = governed(asked.turns, asked.calls, audit)
        if asked.profile:
            asyncio.run(profiled(run, asked.runs))
            return
        if asked.samples:
            asyncio.run(sampled(run, asked.runs, asked.turns))
            return
        contestants = {"ours": run}
        if asked.floor:
            contestants["floor"] = floor(asked.floor, asked.turns, asked.calls)
        figures = asyncio.run(compare(contestants, asked.turns, asked.runs))
        for name, figure in figures.items():
            print(f"{name}: {figure:.1f} us CPU a turn ({asked.turns} turns, {asked.calls} calls)")
        if asked.floor:
            print(f"ratio: {figures['ours'] / figures['floor']:.2f}")
        longer = {"ours": governed(asked.turns * 4, asked.calls, audit)}
        grown = asyncio.run(compare(longer, asked.turns * 4, max(5, asked.runs // 4)))
        print(
            f"growth, {asked.turns * 4} over {asked.turns} turns: {grown['ours'] / figures['ours']:.2f}"
        )


if __name__ == "__main__":
    main()
