"""CPU per turn of the governed loop, and where it goes.

Usage: python benchmarks/loop_profile.py [--turns 50] [--calls 1] [--runs 40] [--profile] [--floor PATH]

Governance is on: contract, policy, argument schema, timeout per call, step records, audit log in a
file. `--floor` takes a folder that holds `floor_governed.py` and `_common.py` (the hand-written
least that governs) and prints our ratio to it, measured alternately in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

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
        task = create_agent_task_run(contract, audit=audit)
        result = await run_governed_agent_loop(
            runtime=task.guard_runtime(runtime), execute_turn_input=given
        )
        if result.text != "done" or len(result.steps) != turns * (calls + 1) + 1:
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


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--floor", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, AuditLog(Path(folder) / "log.jsonl") as audit:
        run = governed(asked.turns, asked.calls, audit)
        if asked.profile:
            asyncio.run(profiled(run, asked.runs))
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
