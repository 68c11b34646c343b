"""The state machine for applications holds for honest tools and finds what is planted."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from runtime_pack import (
    CatalogTool,
    Effects,
    LoopResult,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
    catalog_tool,
)
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    GovernedRunMachine,
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    assert_within_budget,
    contracts,
    crash_points,
    reply,
    scripts,
)

_FEW = settings(max_examples=25, stateful_step_count=12, deadline=None)
# What is planted is found; how small the shortest way to it is does not matter here.
_UNTIL_FOUND = settings(_FEW, max_examples=200, phases=[Phase.generate], database=None)


class Till(GovernedRunMachine):
    """A till that people guard: money leaves it only with a yes."""

    def make_tools(self) -> Iterable[CatalogTool]:
        self.paid = 0

        @catalog_tool(name="till:pay")
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid += amount
            return f"paid {amount}"

        @catalog_tool(name="till:look", effects=Effects.REPEATABLE)
        async def look() -> str:
            """Look."""
            return f"{self.paid} paid"

        return [pay, look]

    def make_contract(self) -> TaskContract:
        rules = [ToolRule(tool="till:pay", approval_class="request_user")]
        return TaskContract(max_steps=8, max_turns=8, tool_policy=ToolPolicy(rules))


def test_honest_tools_hold() -> None:
    """A model that asks for anything, people, time and crashes break no promise."""
    run_state_machine_as_test(Till, settings=_FEW)


_SHELF = ToolShelf().add("t:a").add("t:b", RuntimeError("no"))


@settings(max_examples=40, deadline=None)
@given(scripts(_SHELF.specs), contracts(_SHELF.specs), crash_points(), st.booleans())
def test_what_is_drawn_is_played_to_its_end(
    script: list[Turn], contract: TaskContract, crashes: frozenset[int], after: bool
) -> None:
    """Scripts, contracts and crash points are what the fakes take; a run over them keeps its word."""
    store = CrashingRunStore(crash_at=crashes, after=after)
    stage = Rehearsal(shelf=_SHELF, contract=contract, store=store, clock=MovableClock())

    async def played() -> LoopResult | None:
        stage.prepare([*script, reply()])
        try:
            return await stage.start()
        except (Crash, BaseExceptionGroup):
            return None

    result = asyncio.run(played())

    assert (result is None) <= (store.commits >= min(crashes, default=99))
    if result is not None:
        assert_one_result_per_call(result.messages)
        assert_within_budget(result.ledger)


class _Leaking(Till):
    """A till with an invariant that its tools do not keep."""

    def check(self) -> None:
        assert self.paid < 100, "too much was paid"


def test_what_the_tools_do_not_keep_is_found() -> None:
    """The machine reaches an approved call with arguments that break the host's own invariant."""
    with pytest.raises(AssertionError, match="too much was paid"):
        run_state_machine_as_test(_Leaking, settings=_UNTIL_FOUND)


class _Twice(Till):
    """A till whose steps are counted as if they ran again."""

    def check(self) -> None:
        for key in list(self.ran):
            self.ran[key] += 1


def test_a_second_run_of_a_step_is_found() -> None:
    """Counts that say twice for a tool with effects fail the machine: its check is not empty."""
    with pytest.raises(AssertionError, match="ran 2 times"):
        run_state_machine_as_test(_Twice, settings=_UNTIL_FOUND)
