"""A tool of yours with a price: the run counts money and stops when it is used up."""

import asyncio
from decimal import Decimal
from typing import Annotated

from runtime_pack import (
    Between,
    ModelPrice,
    PriceTable,
    TaskContract,
    TurnInput,
    Usage,
    UserMessage,
    catalog_tool,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.testing import ScriptedModel, calls


@catalog_tool(name="room:book", price=Decimal("0.40"), output_trust="internal")
def book(day: str, people: Annotated[int, Between(least=1, most=40)]) -> str:
    """Book the meeting room for a day.

    Args:
        day: the day, as a date
        people: how many will come
    """
    return f"booked for {people} on {day}"


SPENT = Usage(input_tokens=1_000, output_tokens=100)
PRICES = PriceTable(models={"planner": ModelPrice(input=Decimal(2), output=Decimal(10))})
# A model that plans; yours is an adapter or a coroutine.
PLAN = [
    calls(
        ("1", "room:book", '{"day": "2026-03-02", "people": 5}'),
        ("2", "room:book", '{"day": "2026-03-03", "people": 5}'),
        ("3", "room:book", '{"day": "2026-03-04", "people": 5}'),
        usage=SPENT,
    ),
]


async def main() -> None:
    contract = TaskContract(max_cost=Decimal("0.90"), max_steps=5)
    run = create_agent_task_run(contract, prices=PRICES)
    runtime = create_agent_runtime(model=ScriptedModel(PLAN), tools=[book])
    result = await run_governed_agent_loop(
        runtime=run.guard_runtime(runtime),
        execute_turn_input=TurnInput(
            messages=[UserMessage(text="Book the room for three days.")],
            tool_catalog=[book.spec],
            model="planner",
        ),
    )
    for step in result.steps:
        print(step.tool, step.code or "ok")
    print(result.kind, result.text or (result.stop.message if result.stop else ""))
    print("spent", Decimal(result.ledger.used["cost"]) / 1_000_000, PRICES.currency)


asyncio.run(main())
