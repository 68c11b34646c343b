"""200 runs, eight at a time: each has its own budget, and one that fails stops no other."""

import asyncio
from collections import Counter

from runtime_pack import (
    LoopResult,
    TaskContract,
    ToolMessage,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    catalog_tool,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.ports import ExecutionContext
from runtime_pack.testing import calls, reply

RUNS = 200
AT_ONCE = 8


@catalog_tool(output_trust="internal", effects="repeatable")
async def square(n: int) -> int:
    """Multiply a number by itself."""
    if n % 50 == 0:
        raise ValueError("this one is broken")
    await asyncio.sleep(0.001)
    return n * n


class Squarer:
    """Asks for one square and answers with it; yours is an adapter."""

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        del context
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return reply(last.text if last.ok else "no answer")
        return calls(("1", "square", f'{{"n": {last.text}}}'))


async def one(number: int) -> LoopResult:
    run = create_agent_task_run(TaskContract(max_steps=1, max_turns=2), task=f"square-{number}")
    runtime = create_agent_runtime(model=Squarer(), tools=[square])
    return await run_governed_agent_loop(
        runtime=run.guard_runtime(runtime),
        execute_turn_input=TurnInput(
            messages=[UserMessage(text=str(number))], tool_catalog=[square.spec]
        ),
    )


async def main() -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def bounded(number: int) -> LoopResult:
        async with gate:
            return await one(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bounded(number)) for number in range(1, RUNS + 1)]
    results = [task.result() for task in tasks]
    print(dict(Counter(str(result.kind) for result in results)))
    print("answered", sum(result.text != "no answer" for result in results), "of", len(results))
    print("steps", sum(result.ledger.used["steps"] for result in results))


asyncio.run(main())
