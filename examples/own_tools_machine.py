"""Harden your own tools: a state machine that plays model, people, clock and crashes against them.

The tool below keeps an account. The machine calls it with whatever a model may think of, people say yes
and no, late and twice, and the process dies between any two saves. Two things must hold: what is in the
account is what was approved, and it never goes below zero. In a test file, `TestAccount =
AccountMachine.TestCase` is all that pytest needs.

Usage: pip install 'agent-runtime-pack[testing]'; python examples/own_tools_machine.py
"""

from collections.abc import Iterable

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from runtime_pack import (
    CatalogTool,
    Executed,
    TaskContract,
    ToolFailure,
    ToolPolicy,
    ToolRule,
    catalog_tool,
)
from runtime_pack.testing import GovernedRunMachine


class AccountMachine(GovernedRunMachine):
    """An account of 100 from which only people can let a model take."""

    def make_tools(self) -> Iterable[CatalogTool]:
        self.balance = 100
        self.taken: list[int] = []

        @catalog_tool(name="account:take")
        async def take(amount: int) -> str:
            """Take money from the account.

            Args:
                amount: Whole units.
            """
            if not 0 < amount <= self.balance:
                raise ToolFailure(
                    "the amount is not between 1 and the balance", executed=Executed.NO
                )
            self.balance -= amount
            self.taken.append(amount)
            return f"{self.balance} left"

        return [take]

    def make_contract(self) -> TaskContract:
        rules = [ToolRule(tool="account:*", approval_class="request_user")]
        return TaskContract(max_steps=8, max_turns=8, tool_policy=ToolPolicy(rules))

    def check(self) -> None:
        if self.balance < 0 or self.balance + sum(self.taken) != 100:
            raise AssertionError(f"{self.balance} left after {self.taken}")


run_state_machine_as_test(
    AccountMachine, settings=settings(max_examples=30, stateful_step_count=10, deadline=None)
)
print("30 histories, no promise broken")
