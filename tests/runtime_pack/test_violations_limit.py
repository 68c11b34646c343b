"""The budget of violations: what the policy had to stop ends the run at once when it is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import attrs
import pytest

from runtime_pack import (
    Completed,
    ContractError,
    ExecutionContext,
    Grant,
    LoopResult,
    MemoryRunStore,
    Suspended,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.catalog import ToolSpec
from runtime_pack.events import Event, EventCode
from runtime_pack.ledger import UNLIMITED, Ledger, Limit, Limits, Shortfall
from runtime_pack.ledger_carve import ChildLedger, carve
from runtime_pack.messages import Json
from runtime_pack.ports import ToolRuntime
from runtime_pack.testing import (
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    assert_within_budget,
    calls,
    reply,
)


async def reach(context: ExecutionContext) -> str:
    """A tool that reaches for a host that is not listed; the policy stops it and says so."""
    context.record(
        Event(
            code=EventCode.EGR001D,
            subject={"run": context.run, "step": context.step},
            object={"host": "evil.test"},
            key=f"{context.step}:0",
        )
    )
    return "stopped"


def stage(limit: Limit | None = None, *, parallel: int = 4) -> Rehearsal:
    contract = TaskContract(max_parallel=parallel)
    if limit is not None:
        contract = attrs.evolve(contract, max_violations=limit)
    shelf = ToolShelf().add("t:reach", does=reach)
    return Rehearsal(shelf=shelf, contract=contract, store=MemoryRunStore())


def asks(number: int, first: int = 0) -> Turn:
    """One response with so many different calls."""
    return calls(*((f"c{n}", "t:reach", {"x": str(n)}) for n in range(first, first + number)))


def told(result: LoopResult) -> tuple[str, float, float]:
    assert isinstance(result, Suspended)
    assert result.stop is not None
    short = result.stop.shortfall
    assert result.stop.code == "budget_exhausted"
    assert short is not None
    return short.budget, short.limit, short.used


@pytest.mark.parametrize(("limit", "happens"), [(0, 1), (1, 2), (3, 4), (None, 11)])
def test_one_more_than_allowed_stops_the_run(limit: Limit | None, happens: int) -> None:
    """No wrap-up, no further turn; 10 are allowed when nothing is said, and 10 are fine."""
    rehearsal = stage(limit)
    script = [asks(1, n) for n in range(happens)]

    result = asyncio.run(rehearsal.play(*script))

    assert told(result) == ("violations", happens - 1, happens)
    assert result.text == ""
    assert result.ledger.violations == result.ledger.used["violations"] == happens
    assert_within_budget(result.ledger)


@pytest.mark.parametrize(("limit", "happens"), [(3, 3), (UNLIMITED, 15), (None, 10)])
def test_as_many_as_allowed_are_fine(limit: Limit | None, happens: int) -> None:
    """Used equal to the limit ends nothing, and unlimited is written out."""
    script = [*(asks(1, n) for n in range(happens)), reply()]

    assert isinstance(asyncio.run(stage(limit).play(*script)), Completed)


def test_calls_that_were_not_started_do_not_run() -> None:
    """Three in one response, one at a time: the first is too much, the others are told so."""
    rehearsal = stage(0, parallel=1)

    result = asyncio.run(rehearsal.play(asks(3)))

    assert rehearsal.shelf.ran["t:reach"] == 1
    assert told(result) == ("violations", 0, 1)


def test_nobody_is_asked_about_a_call_that_violations_refuse() -> None:
    """The runtime's own check stops the first call of a response; the second one needs a person."""

    class Checked:
        """Reports and refuses what reaches."""

        def __init__(self, inner: ToolRuntime, specs: Sequence[ToolSpec]) -> None:
            self.execute_tool = inner.execute_tool
            self.specs = {spec.name: spec for spec in specs}

        def tool_spec(self, name: str) -> ToolSpec | None:
            return self.specs.get(name)

        async def preflight(
            self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
        ) -> ToolOutput | None:
            if name == "t:gate":
                return None
            await reach(context)
            return ToolOutput(ok=False, text='{"code":"NO"}', code="NO")

    shelf = ToolShelf().add("t:reach").add("t:gate")
    model = ScriptedModel([calls(("a", "t:reach", "{}"), ("b", "t:gate", "{}"))])
    gate = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
    run = create_agent_task_run(TaskContract(tool_policy=gate, max_violations=0))
    inner = create_agent_runtime(model=model, tools=shelf.tools)
    words = TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs)

    result = asyncio.run(
        run_governed_agent_loop(
            runtime=run.guard_runtime(Checked(inner, shelf.specs)), execute_turn_input=words
        )
    )

    assert told(result) == ("violations", 0, 1)
    assert (result.requests, result.ledger.used.get("steps", 0)) == ((), 0)


def test_a_resume_without_a_grant_asks_nobody_and_a_grant_goes_on() -> None:
    """The count is in the saved run; a grant that just covers it is enough."""

    async def scenario() -> None:
        rehearsal = stage(1)
        stopped = await rehearsal.play(asks(1, 0), asks(1, 1))
        again = await rehearsal.go_on(stopped)
        assert told(again) == ("violations", 1, 2)
        rehearsal.prepare([reply()])
        grant = Grant("violations", 1, "ann", "it is a test of the firewall")
        done = await rehearsal.resume(stopped.run_id, grants=[grant])

        assert isinstance(done, Completed)
        assert done.ledger.violations == 2
        assert done.ledger.overdrawn == {}

    asyncio.run(scenario())


def test_a_lower_limit_of_a_later_process_holds() -> None:
    """Two have happened; who takes the run up allows one."""

    async def scenario() -> None:
        rehearsal = stage(5)
        rehearsal.prepare([asks(2), reply()])
        first = await rehearsal.start()
        assert isinstance(first, Completed)
        rehearsal.contract = attrs.evolve(rehearsal.contract, max_violations=1)
        rehearsal.prepare([])
        second = await rehearsal.resume(first.run_id, message="more")

        assert told(second) == ("violations", 1, 2)
        assert_within_budget(second.ledger)

    asyncio.run(scenario())


def test_an_earlier_save_without_the_bucket_is_counted() -> None:
    """Its counter is what was used."""
    old = Ledger(Limits(counts={}, seconds=UNLIMITED)).view(0).to_json() | {"violations": 4}
    ledger = Ledger(TaskContract(max_violations=3).limits())

    ledger.restore(old)

    assert ledger.violations == 4
    assert isinstance(ledger.hard_shortfall(0), Shortfall)


@pytest.mark.parametrize("value", [True, -1, 1.5, float("nan"), None, "many"])
def test_what_is_no_limit_is_refused(value: object) -> None:
    """The field is named."""
    with pytest.raises(ContractError, match="max_violations"):
        # The wrong type is what is tested.
        TaskContract(max_violations=value)  # type: ignore[arg-type]


def test_a_sub_run_has_what_its_parent_has_left_and_is_counted_there() -> None:
    """Nothing is reserved: two children that start together do not take it from each other."""
    parent = Ledger(TaskContract(max_violations=3).limits())
    parent.count_violations()
    grant = Limits(counts={"steps": 1, "turns": 1, "violations": 10}, seconds=1)

    first, second = carve(parent, grant, now=0), carve(parent, grant, now=0)

    assert isinstance(first, ChildLedger)
    assert isinstance(second, ChildLedger)
    assert first.limit("violations") == second.limit("violations") == 2
    for child in (first, second):
        child.count_violations(2)
        child.close(0)
    assert parent.violations == 5
    assert parent.view(0).overdrawn == {"violations": 2}
    assert parent.hard_shortfall(0) == Shortfall(budget="violations", limit=3, used=5, reserved=0)
    assert isinstance(carve(parent, grant, now=0), Shortfall)
