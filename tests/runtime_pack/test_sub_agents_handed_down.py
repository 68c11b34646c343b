"""What a sub-agent has from its parent: policy layers, people, switches, frame, prices, time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from runtime_pack import (
    AgentTaskRun,
    CatalogTool,
    ExecutionContext,
    KillSwitch,
    LoopResult,
    MemoryRunStore,
    ModelPrice,
    PolicyLayer,
    PriceTable,
    SubAgent,
    TaskContract,
    ToolMessage,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    sub_agent_tool,
)
from runtime_pack.testing import (
    ListEmitter,
    MovableClock,
    ScriptedApprover,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
)

HELP = ("h", "helper", '{"task": "dig"}')
WORK = ("w", "work", "{}")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Family:
    """A parent that asks for one child, and a child whose model follows *script*.

    *grants* are the contracts by depth of the run whose child is made; every run has the tools of
    *shelf* and the helper, whose model follows *script* in each depth.
    """

    def __init__(
        self,
        shelf: ToolShelf,
        *script: Turn,
        contract: TaskContract | None = None,
        grants: Sequence[TaskContract] = (TaskContract(max_steps=3, max_turns=4),),
        **options: Any,
    ) -> None:
        self.shelf = shelf
        self.script = script
        self.grants = grants
        self.children: list[AgentTaskRun] = []
        self.models: list[ScriptedModel] = []
        self.limits: dict[str, Any] = {}
        self.store: MemoryRunStore | None = MemoryRunStore()
        self.above = ScriptedModel([calls(HELP), reply("all done")], model_name="m")
        contract = contract or TaskContract(max_steps=40, max_turns=40)
        self.run = create_agent_task_run(contract, run_id="p", task="dig", **options)

    def _helper(self, run: AgentTaskRun) -> CatalogTool:
        return sub_agent_tool(
            run,
            name="helper",
            description="Helps.",
            make=self._make,
            contract=self.grants[min(run.depth, len(self.grants) - 1)],
            allowlist=(),
            store=self.store,
            **self.limits,
        )

    def _make(self, child: AgentTaskRun) -> SubAgent:
        self.children.append(child)
        self.models.append(ScriptedModel(self.script, model_name="m"))
        tools = [*self.shelf.tools, self._helper(child)]
        base = create_agent_runtime(model=self.models[-1], tools=tools)
        return SubAgent(
            runtime=child.guard_runtime(base), tool_catalog=[tool.spec for tool in tools]
        )

    def start(self) -> LoopResult:
        tool = self._helper(self.run)
        model = self.above
        base = create_agent_runtime(model=model, tools=[tool])
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=[tool.spec])
        return asyncio.run(
            run_governed_agent_loop(
                runtime=self.run.guard_runtime(base), execute_turn_input=given, store=self.store
            )
        )

    def told(self, depth: int = 0) -> list[str]:
        """What the model of the child at this depth was told of its calls."""
        messages, _ = self.models[depth].requests[-1]
        return [m.text for m in messages if isinstance(m, ToolMessage)]


class SlowModel(ScriptedModel):
    """Takes 40 seconds for each turn."""

    def __init__(self, clock: MovableClock, script: Sequence[Turn]) -> None:
        super().__init__(script, model_name="m")
        self.clock = clock

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        self.clock.move(40)
        return await super().execute_turn(request, context)


def deny(tool: str) -> list[ToolRule]:
    return [ToolRule(tool=tool, approval_class="deny")]


def layered(**layers: str) -> ToolPolicy:
    """Each layer denies one tool."""
    return ToolPolicy(layers=[PolicyLayer(name, deny(tool)) for name, tool in layers.items()])


ASKS = ToolPolicy([ToolRule(tool="work", approval_class="request_user")])


# ── rules ─────────────────────────────────────────────────────────────────────────────────────


def test_the_named_layers_of_the_parent_hold_its_child() -> None:
    """Not only its own rules."""
    family = Family(
        ToolShelf().add("work"),
        calls(WORK),
        reply(),
        contract=TaskContract(tool_policy=layered(workspace="work")),
    )

    family.start()

    assert family.shelf.ran["work"] == 0
    assert "POLICY_DENIED" in family.told()[0]


def test_of_two_layers_with_one_name_both_hold() -> None:
    """The parent's and the child's, whatever each denies."""
    child = TaskContract(max_steps=4, max_turns=4, tool_policy=layered(workspace="work"))
    family = Family(
        ToolShelf().add("work").add("play").add("rest"),
        calls(("1", "work", "{}"), ("2", "play", "{}"), ("3", "rest", "{}")),
        reply(),
        contract=TaskContract(tool_policy=layered(workspace="play")),
        grants=[child],
    )

    family.start()

    assert family.shelf.ran == {"rest": 1}


def test_one_name_for_a_layer_at_every_depth_is_no_clash() -> None:
    """Nor are names that stand as long as one may, or like those that are given to others."""
    name = "workspace-of-all-that-we-have-up"
    contracts = [
        TaskContract(
            max_steps=20 // (depth + 1),
            max_turns=20 // (depth + 1),
            tool_policy=ToolPolicy(
                layers=[
                    PolicyLayer(each, deny(f"{each}{depth}"))
                    for each in (name, "sub-x", "x", "parent-0", "parent-1", f"sub-{name}"[:32])
                ]
            ),
        )
        for depth in range(3)
    ]
    family = Family(ToolShelf(), calls(HELP), reply(), contract=contracts[0], grants=contracts[1:])

    result = family.start()

    assert [child.depth for child in family.children] == [1, 2]
    rules = {rule.tool for rule in family.children[1].contract.tool_policy.all_rules}
    assert {f"{name}{depth}" for depth in range(3)} <= rules
    assert len(rules) == 18
    assert result.kind == "completed"


def test_two_deep_is_what_max_depth_is_when_it_is_not_said() -> None:
    """Budgets would allow two more."""
    grants = [TaskContract(max_steps=n, max_turns=n) for n in (15, 10, 5, 2)]
    family = Family(ToolShelf(), calls(HELP), reply(), grants=grants)

    family.start()

    assert [child.depth for child in family.children] == [1, 2]
    assert "at most 2 deep" in family.told(1)[0]


def test_budgets_would_allow_a_third_and_a_fourth() -> None:
    """What the test before relies on."""
    grants = [TaskContract(max_steps=n, max_turns=n) for n in (15, 10, 5, 2)]
    family = Family(ToolShelf(), calls(HELP), reply(), grants=grants)
    family.limits = {"max_depth": 4}

    family.start()

    assert [child.depth for child in family.children] == [1, 2, 3, 4]


# ── people and switches ───────────────────────────────────────────────────────────────────────


def test_the_approver_of_the_parent_decides_for_its_child() -> None:
    """While both live: nothing is suspended."""
    approver = ScriptedApprover([Verdict.APPROVE])
    child = TaskContract(max_steps=3, max_turns=4, tool_policy=ASKS)
    family = Family(
        ToolShelf().add("work"), calls(WORK), reply(), grants=[child], approver=approver
    )

    result = family.start()

    assert result.kind == "completed"
    assert [request.task for request in approver.asked] == ["dig > helper"]
    assert family.shelf.ran["work"] == 1


def test_the_emitter_of_the_parent_is_told_what_its_child_was_denied() -> None:
    """With the child's path."""
    emitter = ListEmitter()
    child = TaskContract(max_steps=3, max_turns=4, tool_policy=ToolPolicy(deny("work")))
    family = Family(ToolShelf().add("work"), calls(WORK), reply(), grants=[child], emitter=emitter)

    family.start()

    (event,) = emitter.events
    assert event.subject["task"] == "dig > helper"


def test_the_kill_switch_of_the_parent_stops_its_child_after_its_step() -> None:
    """Not only the parent, when its child has done all of its work."""
    switch = KillSwitch()

    async def throw(context: ExecutionContext) -> str:
        del context
        switch.engage("enough")
        return "thrown"

    family = Family(
        ToolShelf().add("work", does=throw),
        calls(WORK),
        calls(("v", "work", '{"x": "again"}')),
        reply(),
        kill_switch=switch,
    )

    result = family.start()

    assert result.kind == "cancelled"
    assert family.shelf.ran["work"] == 1
    assert len(family.models[0].requests) == 1


# ── what the model reads, what it costs ───────────────────────────────────────────────────────


def test_the_frame_of_the_parent_fences_what_its_child_reads() -> None:
    """What tools of the child bring from outside."""

    def frame(text: str, *, source: str, burned: set[str]) -> str:
        del burned
        return f"<{source}>{text}</>"

    family = Family(
        ToolShelf().add("work", "news", output_trust="external"), calls(WORK), reply(), frame=frame
    )

    family.start()

    assert family.told() == ["<tool:work>news</>"]


def test_the_prices_of_the_parent_hold_for_its_child() -> None:
    """A call of the child is charged to both."""
    free = ModelPrice(input=Decimal(0), output=Decimal(0))
    prices = PriceTable(models={"m": free}, tools={"work": Decimal("0.25")})
    family = Family(
        ToolShelf().add("work"),
        calls(WORK),
        reply(),
        contract=TaskContract(max_cost=Decimal(1)),
        grants=[TaskContract(max_steps=3, max_turns=4, max_cost=Decimal("0.5"))],
        prices=prices,
    )

    result = family.start()

    assert result.kind == "completed"
    assert family.children[0].prices_sha256 == prices.sha256
    assert result.ledger.used["cost"] == 250_000
    assert not any(result.ledger.reserved.values())


def test_the_log_the_key_and_the_chances_are_the_parents() -> None:
    """The child's requests are sealed with the host's key, and its waits are spread by its chance."""
    family = Family(ToolShelf(), reply(), chance=lambda: 0.5)
    # A store has a key of its own, and every run that is saved there has that one.
    family.store = None

    family.start()

    (child,) = family.children
    for name in ("audit", "seal", "chance"):
        assert getattr(child, name) is getattr(family.run, name)


# ── time ──────────────────────────────────────────────────────────────────────────────────────


def test_the_clock_of_the_parent_is_its_childs() -> None:
    """What a child asks is asked at the parent's time."""
    child = TaskContract(max_steps=3, max_turns=4, tool_policy=ASKS)
    family = Family(
        ToolShelf().add("work"), calls(WORK), reply(), grants=[child], clock=MovableClock(NOON)
    )

    result = family.start()

    assert [request.created_at for request in result.requests] == [NOON]


@pytest.mark.parametrize(("own", "left"), [(3600, 60), (20, 20), ("unlimited", 60)])
def test_a_childs_time_is_at_most_what_its_parent_has_left(own: Any, left: int) -> None:
    """The lower of its contract and of the rest: 40 of 100 seconds were spent before."""
    clock, seen = MovableClock(NOON), list[float]()

    async def look(context: ExecutionContext) -> str:
        del context
        seen.append(family.children[0].ledger.remaining_seconds(clock.monotonic()))
        return "seen"

    family = Family(
        ToolShelf().add("work", does=look),
        calls(WORK),
        reply(),
        contract=TaskContract(max_duration_seconds=100),
        grants=[TaskContract(max_steps=3, max_turns=4, max_duration_seconds=own)],
        clock=clock,
    )
    family.above = SlowModel(clock, [calls(HELP), reply()])

    family.start()

    assert seen == [left]


@pytest.mark.parametrize(("own", "ends"), [(None, 60), (30, 30), (90, 60)])
def test_a_childs_last_moment_is_not_after_its_parents(own: int | None, ends: int) -> None:
    """Whatever its own contract says."""
    moment = None if own is None else NOON + timedelta(seconds=own)
    family = Family(
        ToolShelf(),
        reply(),
        contract=TaskContract(expires_at=NOON + timedelta(seconds=60)),
        grants=[TaskContract(max_steps=3, max_turns=4, expires_at=moment)],
        clock=MovableClock(NOON),
    )

    family.start()

    assert family.children[0].ends_at == NOON + timedelta(seconds=ends)
