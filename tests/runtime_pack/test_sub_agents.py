"""Sub-agents: a call that is a run, held to what its parent has left and may do."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from runtime_pack import (
    AgentTaskRun,
    AuditLog,
    CatalogTool,
    Confidentiality,
    ContractError,
    Decision,
    ExecutionContext,
    Integrity,
    Label,
    LoopResult,
    MemoryRunStore,
    ModelPrice,
    PriceTable,
    SubAgent,
    TaskContract,
    ToolMessage,
    ToolPolicy,
    ToolRule,
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
    sub_agent_tool,
)
from runtime_pack.errors import StoreError
from runtime_pack.ledger import STEPS
from runtime_pack.remembered import Denied, Memory
from runtime_pack.testing import (
    Crash,
    assert_one_result_per_call,
    assert_within_budget,
    calls,
    reply,
)

PRICES = PriceTable(models={"m": ModelPrice(input=Decimal(1), output=Decimal(1))})


class Office:
    """A parent whose model follows *plan*, and children that call `work` and answer.

    A new parent run is made for each drive, as after a restart; models are functions of the history.
    """

    def __init__(
        self,
        plan: Sequence[str] = ("helper",),
        *,
        contract: TaskContract | None = None,
        child: TaskContract | None = None,
        store: MemoryRunStore | None = None,
        audit: AuditLog | None = None,
        max_depth: int = 2,
        trust: str = "internal",
        child_calls: int = 1,
        nested: bool = False,
        allowlist: Sequence[str] = (),
        one_by_one: bool = False,
    ) -> None:
        self.plan = plan
        self.one_by_one = one_by_one
        self.contract = contract or TaskContract(max_steps=20, max_turns=20)
        self.child_contract = child or TaskContract(max_steps=3, max_turns=4)
        self.store = store or MemoryRunStore()
        self.audit = audit
        self.max_depth = max_depth
        self.trust = trust
        self.child_calls = child_calls
        self.nested = nested
        self.allowlist = allowlist
        self.below = TaskContract(max_steps=1, max_turns=2)
        self.works_at: int | None = None
        self.ran: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.children: list[AgentTaskRun] = []
        self.seen: list[ExecutionContext] = []
        self.fail_child = False
        self.gate: asyncio.Event | None = None
        self.begun: asyncio.Event | None = None

    # the parent's model, and the child's

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        self.asked["parent" if context.run == "p" else "child"] += 1
        if context.run == "p":
            return self._parent_turn(request)
        if self.fail_child:
            raise RuntimeError("no model")
        done = sum(isinstance(message, ToolMessage) for message in request.messages)
        if done < self.child_calls:
            deep = self.works_at is not None and context.task.count(">") >= self.works_at
            name = "helper" if self.nested and not deep else "work"
            return calls(
                (f"w{done}", name, '{"task": "dig"}' if name == "helper" else f'{{"n": {done}}}')
            )
        return reply("child done")

    def _parent_turn(self, request: TurnRequest) -> Turn:
        done = sum(isinstance(message, ToolMessage) for message in request.messages)
        wanted = [
            (f"c{i}", name, '{"task": "dig"}' if name == "helper" else '{"n": 0}')
            for i, name in enumerate(self.plan)
        ]
        if done == len(wanted) or (done and not self.one_by_one):
            return reply("all done")
        return calls(wanted[done]) if self.one_by_one else calls(*wanted)

    def _work(self, name: str) -> CatalogTool:
        async def work(arguments: object, context: ExecutionContext) -> str:
            del arguments
            self.ran[name] += 1
            self.seen.append(context)
            if self.begun is not None:
                self.begun.set()
            if self.gate is not None:
                await self.gate.wait()
            return "worked"

        spec = ToolSpec(
            name=name,
            description="Work.",
            parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
            output_trust=self.trust,
            side_effects=[],
        )
        return CatalogTool(spec=spec, handler=work)

    def _helper(self, run: AgentTaskRun) -> CatalogTool:
        return sub_agent_tool(
            run,
            name="helper",
            description="Helps.",
            make=self._make,
            contract=self.child_contract if run.depth == 0 else self.below,
            allowlist=self.allowlist,
            store=self.store,
            max_depth=self.max_depth,
        )

    def _make(self, child: AgentTaskRun) -> SubAgent:
        self.children.append(child)
        tools = [self._work("work"), self._helper(child)]
        runtime = child.guard_runtime(create_agent_runtime(model=self, tools=tools))
        return SubAgent(runtime=runtime, tool_catalog=[tool.spec for tool in tools])

    def parent(self) -> tuple[AgentTaskRun, Any, list[ToolSpec]]:
        run = create_agent_task_run(self.contract, run_id="p", task="dig", audit=self.audit)
        tools = [self._work("own"), self._work("work"), self._helper(run)]
        base = create_agent_runtime(model=self, tools=tools)
        return run, run.guard_runtime(base), [tool.spec for tool in tools]

    async def start(self) -> LoopResult:
        self.run, runtime, specs = self.parent()
        return await run_governed_agent_loop(
            runtime=runtime,
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=specs),
            store=self.store,
        )

    async def resume(self, *decisions: Decision, **options: Any) -> LoopResult:
        self.run, runtime, _ = self.parent()
        return await resume_governed_agent_loop(
            runtime=runtime, store=self.store, run_id="p", decisions=decisions, **options
        )


def told(result: LoopResult) -> list[str]:
    return [m.text for m in result.messages if isinstance(m, ToolMessage)]


def decided(result: LoopResult, verdict: Verdict = Verdict.APPROVE) -> list[Decision]:
    return [
        Decision(request_id=r.request_id, verdict=verdict, decided_by="me") for r in result.requests
    ]


def asks(tool: str, **fields: Any) -> TaskContract:
    rules = [ToolRule(tool=tool, approval_class="request_user")]
    return TaskContract(**{"max_steps": 3, "max_turns": 4, **fields}, tool_policy=ToolPolicy(rules))


# ── budgets ───────────────────────────────────────────────────────────────────────────────────


def test_what_a_child_used_is_charged_and_the_rest_comes_back() -> None:
    """One step and two turns of the child beside the parent's own; nothing stays reserved."""
    office = Office()

    result = asyncio.run(office.start())

    assert result.kind == "completed"
    assert told(result) == ["child done"]
    assert result.ledger.used["steps"] == 2
    assert result.ledger.used["turns"] == 4
    assert not any(result.ledger.reserved.values())
    assert office.run.sub_runs == {}


def test_b16_the_grant_is_the_childs_limit_in_both_directions() -> None:
    """Fewer steps than the parent has, and not the default; more is not cut to the default."""
    few = Office(child=TaskContract(max_steps=1, max_turns=9), child_calls=3)
    many = Office(
        contract=TaskContract(max_steps=300, max_turns=300),
        child=TaskContract(max_steps=100, max_turns=100),
        child_calls=60,
    )

    cut = asyncio.run(few.start())
    whole = asyncio.run(many.start())

    assert few.ran["work"] == 1
    assert "suspended" in told(cut)[0]
    assert many.ran["work"] == 60
    assert whole.kind == "completed"


def test_a_child_cannot_have_what_its_parent_has_not() -> None:
    """The call is told which budget; nothing of the child runs."""
    office = Office(contract=TaskContract(max_steps=3, max_turns=20))

    result = asyncio.run(office.start())

    assert result.kind == "completed"
    assert "BUDGET_EXHAUSTED" in told(result)[0]
    assert office.asked["child"] == 0


def test_b8_of_children_that_start_together_those_that_fit_are_admitted() -> None:
    """Three that want four turns each of ten: the third is refused before it spends anything."""
    office = Office(
        plan=("helper", "helper", "helper"), contract=TaskContract(max_steps=20, max_turns=10)
    )

    result = asyncio.run(office.start())

    assert sum("BUDGET_EXHAUSTED" in text for text in told(result)) == 1
    assert len(office.children) == 2
    assert_within_budget(result.ledger)


@pytest.mark.parametrize(("max_depth", "depths"), [(1, [1]), (2, [1, 2])])
def test_depth_is_limited(max_depth: int, depths: list[int]) -> None:
    """Where budgets would allow one more: it is refused, its parent is told and goes on."""
    office = Office(nested=True, max_depth=max_depth, child=TaskContract(max_steps=5, max_turns=6))

    result = asyncio.run(office.start())

    assert [child.depth for child in office.children] == depths
    assert result.kind == "completed"


@pytest.mark.parametrize("depth", [0, -1, True, 1.5])
def test_no_depth_is_no_number(depth: Any) -> None:
    """Unlimited depth has no spelling."""
    with pytest.raises(ContractError):
        Office(max_depth=depth)._helper(create_agent_task_run(TaskContract()))


LIMITED: Mapping[str, Mapping[str, Any]] = {
    "tokens are not named": {"contract": {"max_tokens": 1000}},
    "tokens are unlimited": {"contract": {"max_tokens": 9}, "child": {"max_tokens": "unlimited"}},
    "money is not named": {"contract": {"max_cost": Decimal(1)}},
    "money is unlimited": {
        "contract": {"max_cost": Decimal(1)},
        "child": {"max_cost": "unlimited"},
    },
    "steps are unlimited": {"child": {"max_steps": "unlimited"}},
    "turns are unlimited": {"child": {"max_turns": "unlimited"}},
    "a tool's steps are unlimited": {
        "contract": {"per_tool": {"work": 3}},
        "child": {"per_tool": {"work": "unlimited"}},
    },
}


@pytest.mark.parametrize("name", LIMITED)
def test_a_grant_without_a_part_of_a_budget_is_refused_at_construction(name: str) -> None:
    """Whoever writes the contract learns it, not the model of some run."""
    row = LIMITED[name]
    contract = TaskContract(**{"max_steps": 9, "max_turns": 9, **row.get("contract", {})})
    child = TaskContract(**{"max_steps": 1, "max_turns": 1, **row.get("child", {})})
    run = create_agent_task_run(contract, prices=PRICES if contract.max_cost else None)

    with pytest.raises(ContractError, match=r"contract\.(tokens|cost|steps|turns|tool:work)"):
        Office(child=child)._helper(run)


GRANTED: Mapping[str, Mapping[str, Any]] = {
    "parts of all": {
        "contract": {"max_tokens": 9, "max_cost": Decimal(1)},
        "child": {"max_tokens": 9, "max_cost": Decimal(1)},
    },
    "nothing, written out": {"contract": {"max_tokens": 9}, "child": {"max_tokens": 0}},
    "unlimited under unlimited": {
        "contract": {"max_steps": "unlimited", "max_tokens": "unlimited"},
        "child": {"max_steps": "unlimited", "max_tokens": "unlimited"},
    },
    "a tool that it is not to use": {"contract": {"per_tool": {"work": 3}}},
}


@pytest.mark.parametrize("name", GRANTED)
def test_a_grant_of_parts_is_taken(name: str) -> None:
    """Also of nothing, where that is written."""
    row = GRANTED[name]
    contract = TaskContract(**{"max_steps": 9, "max_turns": 9, **row.get("contract", {})})
    child = TaskContract(**{"max_steps": 1, "max_turns": 1, **row.get("child", {})})
    run = create_agent_task_run(contract, prices=PRICES if contract.max_cost else None)

    assert Office(child=child)._helper(run).spec.name == "helper"


def test_money_for_a_child_needs_the_parents_prices() -> None:
    """Said at construction too."""
    child = TaskContract(max_steps=1, max_turns=1, max_cost=Decimal(1))

    with pytest.raises(ContractError, match="price table"):
        Office(child=child)._helper(create_agent_task_run(TaskContract()))


def test_a_limit_that_only_the_saved_run_has_refuses_the_call_before_it_runs() -> None:
    """The contract of today has none, so nothing is known before: the budget is named."""
    office = Office(contract=TaskContract(max_steps=20, max_turns=20, max_tokens=10**6))
    office.child_contract = TaskContract(max_steps=3, max_turns=4, max_tokens=10)

    async def main() -> LoopResult:
        office.run, runtime, specs = office.parent()
        office.run.pause("lunch")
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=specs)
        await run_governed_agent_loop(runtime=runtime, execute_turn_input=given, store=office.store)
        office.contract = TaskContract(max_steps=20, max_turns=20)
        office.child_contract = TaskContract(max_steps=3, max_turns=4)
        return await office.resume()

    result = asyncio.run(main())

    body = json.loads(told(result)[0])
    assert (body["code"], body["executed"], body["budget"]) == ("BUDGET_EXHAUSTED", "no", "tokens")
    assert office.children == []


def test_a_child_that_the_host_cannot_make_has_not_run() -> None:
    """Here a grandchild's contract has no part of the child's tokens."""
    office = Office(child=TaskContract(max_steps=3, max_turns=4, max_tokens=1000))

    result = asyncio.run(office.start())

    body = json.loads(told(result)[0])
    assert (body["code"], body["executed"]) == ("TOOL_ERROR", "no")
    assert body["field"] == "contract.tokens"
    assert not any(result.ledger.reserved.values())
    assert office.run.sub_runs == {}


def test_a_child_whose_maker_raises_has_not_run() -> None:
    """Whatever it raises: the model is told that nothing was done, and what to look at."""
    office = Office()

    def broken(child: AgentTaskRun) -> SubAgent:
        raise RuntimeError(child.id)

    # The test stands in for the host, whose function it is.
    office._make = broken  # type: ignore[method-assign]
    result = asyncio.run(office.start())

    body = json.loads(told(result)[0])
    assert (body["code"], body["executed"], body["field"]) == ("TOOL_ERROR", "no", "make")
    assert office.run.sub_runs == {}


@pytest.mark.parametrize("allowlist", ["example.org", [5]])
def test_a_list_for_a_child_is_a_list_of_entries(allowlist: Any) -> None:
    """A text is a list of letters, none of which is a host."""
    with pytest.raises(ContractError, match="is a list of entries"):
        Office(allowlist=allowlist)._helper(create_agent_task_run(TaskContract()))


# ── rules, lists, labels, log ─────────────────────────────────────────────────────────────────


def test_a24_a_deny_holds_for_the_start_of_a_child_too() -> None:
    """By name or by glob, as for every other tool."""
    policy = ToolPolicy([ToolRule(tool="help*", approval_class="deny")])
    office = Office(contract=TaskContract(tool_policy=policy))

    result = asyncio.run(office.start())

    assert "POLICY_DENIED" in told(result)[0]
    assert office.children == []


def test_what_the_parent_is_denied_its_child_is_too() -> None:
    """The parent's rules are a layer of the child's policy."""
    policy = ToolPolicy([ToolRule(tool="work", approval_class="deny")])
    office = Office(contract=TaskContract(max_steps=20, tool_policy=policy))

    result = asyncio.run(office.start())

    assert office.ran["work"] == 0
    assert result.kind == "completed"


def test_the_lists_of_the_parent_hold_the_child() -> None:
    """Each of its layers, and the list that the tool was given."""
    office = Office(
        contract=TaskContract(max_steps=20, workspace_allowlist=["a.example"]),
        allowlist=["b.example"],
    )

    asyncio.run(office.start())

    (context,) = office.seen
    assert context.allowlists == (
        ("workspace", ("a.example",)),
        ("sub-agent helper", ("b.example",)),
    )


def test_a_childs_answer_has_the_childs_label() -> None:
    """What it read from outside taints the parent; what the parent saw taints the child."""
    office = Office(trust="external")
    clean = Office()

    asyncio.run(office.start())
    asyncio.run(clean.start())

    assert office.run.label.integrity is Integrity.EXTERNAL
    assert clean.run.label.integrity is not Integrity.EXTERNAL


def test_a_child_begins_with_what_its_parent_has_seen() -> None:
    """Its first message carries the parent's label."""
    office = Office()
    secret = Label(integrity=Integrity.EXTERNAL, confidentiality=Confidentiality.SECRET)

    async def main() -> None:
        office.run, runtime, specs = office.parent()
        await run_governed_agent_loop(
            runtime=runtime,
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go", label=secret)], tool_catalog=specs
            ),
        )

    asyncio.run(main())

    assert office.seen[0].label == secret


def test_one_log_holds_parent_and_child(tmp_path: Path) -> None:
    """And it says whose child it is."""
    log = AuditLog(tmp_path / "log.jsonl")
    office = Office(audit=log)

    asyncio.run(office.start())
    log.close()

    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    tasks = {e["subject"].get("task") for e in events if e["type"] == "run:started"}
    assert tasks == {"dig", "dig > helper"}


def test_a_childs_failure_is_a_tool_error() -> None:
    """The parent goes on; it is told that, and why."""
    office = Office()
    office.fail_child = True

    result = asyncio.run(office.start())

    assert result.kind == "completed"
    body = json.loads(told(result)[0])
    assert (body["code"], body["stop"]) == ("TOOL_ERROR", "MODEL_ERROR")
    assert not any(result.ledger.reserved.values())


def test_a_helper_of_another_run_is_refused() -> None:
    """Its grant would come from a run that does not pay for it."""
    office = Office()
    tool = office._helper(create_agent_task_run(TaskContract(), run_id="p"))

    async def main() -> Any:
        return await tool.handler({"task": "x"}, ExecutionContext(run="q", step="s"))

    output = asyncio.run(main())

    assert output.code == "POLICY_DENIED"
    assert office.children == []


# ── approvals ─────────────────────────────────────────────────────────────────────────────────


def test_what_a_child_asks_suspends_its_parent_and_a_decision_resumes_it() -> None:
    """Nothing is asked of any model meanwhile; the approved call runs once; the parent goes on."""
    office = Office(child=asks("work"))

    async def main() -> tuple[LoopResult, LoopResult, LoopResult]:
        first = await office.start()
        asked = office.asked.copy()
        again = await office.resume()
        assert office.asked == asked
        return first, again, await office.resume(*decided(first))

    first, again, done = asyncio.run(main())

    (request,) = first.requests
    assert first.kind == again.kind == "approval_required"
    assert again.requests == first.requests
    assert (request.tool, request.task) == ("work", "dig > helper")
    assert first.ledger.reserved[STEPS] > 0
    assert done.kind == "completed"
    assert told(done) == ["child done"]
    assert office.ran["work"] == 1
    assert done.ledger.used["steps"] == 2
    assert not any(done.ledger.reserved.values())
    assert_one_result_per_call(done.messages)


def test_a_denied_child_is_told_and_goes_on() -> None:
    """The deny is the child's, by its request."""
    office = Office(child=asks("work"))

    async def main() -> LoopResult:
        first = await office.start()
        return await office.resume(*decided(first, Verdict.DENY))

    result = asyncio.run(main())

    assert result.kind == "completed"
    assert office.ran["work"] == 0


NEVER_ASKED_AGAIN = {
    "below what denied it": ("work", "helper"),
    "above what denied it": ("helper", "work"),
    "beside what denied it": ("helper", "helper"),
}


@pytest.mark.parametrize("name", NEVER_ASKED_AGAIN)
def test_what_a_person_denied_is_not_asked_again_in_the_tree(name: str) -> None:
    """By no run above, below or beside the one that asked; each model is told so and goes on."""
    office = Office(
        NEVER_ASKED_AGAIN[name],
        contract=asks("work", max_steps=20, max_turns=20),
        child=TaskContract(max_steps=3, max_turns=4),
        one_by_one=True,
    )

    async def main() -> tuple[LoopResult, LoopResult]:
        first = await office.start()
        return first, await office.resume(*decided(first, Verdict.DENY))

    first, done = asyncio.run(main())

    assert len(first.requests) == 1
    assert done.kind == "completed"
    assert office.ran["work"] == 0
    assert done.ledger.refused == 2


def test_a_denial_is_told_up_when_a_child_is_taken_up() -> None:
    """The parent may have been saved before the person said no."""
    above, saved = Memory(), Memory()
    saved.deny("f", Denied(request_id="apr-1", decided_by="me", reason="no"))
    saved.repeat("f", "t2")

    Memory(above).restore(saved.to_json())

    denied = above.denied("f")
    assert denied == Denied(request_id="apr-1", decided_by="me", reason="no")


def test_what_was_asked_for_again_above_is_not_held_against_a_child() -> None:
    """Responses are counted in each run for itself, as their steps have the same names."""
    above = Memory()
    above.deny("f", Denied(request_id="apr-1", decided_by="me", reason="no"))
    above.repeat("f", "t2")
    child = Memory(Memory(above))

    first = child.repeat("f", "t2")

    assert child
    assert first is not None
    assert first.repeats == 1
    assert above.denied("f") == attrs.evolve(first, repeats=1, last="t2")
    assert not Memory(Memory())


def test_a_sibling_of_a_waiting_child_is_not_cut() -> None:
    """It runs once and its result stands; only the child's call waits."""
    office = Office(plan=("own", "helper"), child=asks("work"))

    async def main() -> tuple[LoopResult, LoopResult]:
        first = await office.start()
        return first, await office.resume(*decided(first))

    first, done = asyncio.run(main())

    assert first.kind == "approval_required"
    assert office.ran == {"own": 1, "work": 1}
    assert told(done) == ["worked", "child done"]


def test_two_children_that_wait_are_decided_by_request() -> None:
    """One at a time; the other still waits, with what it holds."""
    office = Office(plan=("helper", "helper"), child=asks("work"))

    async def main() -> list[LoopResult]:
        first = await office.start()
        yes = decided(first)
        second = await office.resume(yes[0])
        return [first, second, await office.resume(yes[1])]

    first, second, done = asyncio.run(main())

    assert len(first.requests) == 2
    assert [r.request_id for r in second.requests] == [first.requests[1].request_id]
    assert done.kind == "completed"
    assert office.ran["work"] == 2


def test_a_grandchilds_request_reaches_the_top() -> None:
    """The path is in its task; deciding it at the top brings everything below to its end."""
    office = Office(contract=TaskContract(max_steps=40, max_turns=40))
    below = asks("work", max_steps=2, max_turns=3)

    async def main() -> tuple[LoopResult, LoopResult]:
        top = TaskContract(max_steps=10, max_turns=10)

        class Deep:
            async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
                results = any(isinstance(m, ToolMessage) for m in request.messages)
                if results:
                    return reply("done")
                depth = {"p": 0}.get(context.run, 1 if context.task.count(">") == 1 else 2)
                return calls(("1", "helper", '{"task": "x"}') if depth < 2 else ("1", "work", "{}"))

        def make_deep(child: AgentTaskRun) -> SubAgent:
            tools = [
                office._work("work"),
                sub_agent_tool(
                    child, name="helper", description="H.", make=make_deep,
                    contract=below, allowlist=(), store=office.store,
                ),
            ]  # fmt: skip
            base = create_agent_runtime(model=Deep(), tools=tools)
            return SubAgent(
                runtime=child.guard_runtime(base), tool_catalog=[tool.spec for tool in tools]
            )

        def parent() -> tuple[Any, ToolSpec]:
            run = create_agent_task_run(office.contract, run_id="p", task="dig")
            tool = sub_agent_tool(
                run, name="helper", description="H.", make=make_deep,
                contract=top, allowlist=(), store=office.store,
            )  # fmt: skip
            base = create_agent_runtime(model=Deep(), tools=[tool])
            return run.guard_runtime(base), tool.spec

        runtime, spec = parent()
        first = await run_governed_agent_loop(
            runtime=runtime,
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")], tool_catalog=[spec]),
            store=office.store,
        )
        runtime, _ = parent()
        return first, await resume_governed_agent_loop(
            runtime=runtime, store=office.store, run_id="p", decisions=decided(first)
        )

    first, done = asyncio.run(main())

    assert [request.task for request in first.requests] == ["dig > helper > helper"]
    assert done.kind == "completed"
    assert office.ran["work"] == 1


def test_a_message_while_a_child_waits_is_refused_unless_it_is_abandoned() -> None:
    """As for a call of the parent's own."""
    office = Office(child=asks("work"))

    async def main() -> tuple[LoopResult, LoopResult]:
        await office.start()
        refused = await office.resume(message="never mind")
        return refused, await office.resume(message="never mind", abandon=True)

    refused, done = asyncio.run(main())

    assert refused.stop is not None
    assert refused.stop.code == "PENDING_APPROVAL"
    assert done.kind == "completed"
    assert office.ran["work"] == 0


def test_an_unknown_request_is_not_taken_for_a_childs() -> None:
    """Nothing runs, and the child still waits."""
    office = Office(child=asks("work"))

    async def main() -> LoopResult:
        await office.start()
        wrong = Decision(request_id="apr-1", verdict=Verdict.APPROVE, decided_by="me")
        return await office.resume(wrong)

    result = asyncio.run(main())

    assert result.stop is not None
    assert result.stop.code == "APPROVAL_NOT_FOUND"
    assert office.ran["work"] == 0


# ── interruptions ─────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_parent_ends_its_child_and_pays_for_it() -> None:
    """Nothing runs on, and nothing stays reserved."""
    office = Office()

    async def main() -> LoopResult:
        office.gate, office.begun = asyncio.Event(), asyncio.Event()
        drive = asyncio.create_task(office.start())
        await office.begun.wait()
        office.run.cancel("enough")
        return await drive

    result = asyncio.run(main())

    assert result.kind == "cancelled"
    assert office.run.sub_runs == {}
    assert not any(result.ledger.reserved.values())


def test_a_paused_parent_takes_its_child_up_again() -> None:
    """The same child, from where it stood; its call that may run once is not run again."""
    office = Office()

    async def main() -> LoopResult:
        office.gate, office.begun = asyncio.Event(), asyncio.Event()
        drive = asyncio.create_task(office.start())
        await office.begun.wait()
        office.run.pause("lunch")
        paused = await drive
        assert paused.kind == "suspended"
        office.gate = None
        return await office.resume()

    result = asyncio.run(main())

    assert result.kind == "completed"
    assert office.ran["work"] == 1
    assert {child.id for child in office.children} == {office.children[0].id}
    assert_within_budget(result.ledger)


@pytest.mark.parametrize("nested", [False, True])
def test_a_cancelled_parent_ends_what_waits_below_it(nested: bool) -> None:
    """The child's request is withdrawn, and its child's: an approval is too late, and nothing runs."""
    office = Office(child=None if nested else asks("work"), nested=nested)
    office.below, office.works_at = asks("work", max_steps=1, max_turns=2), 2

    async def main() -> None:
        (request,) = (await office.start()).requests
        told = await runs.cancel(office.store, "p", by="ann")
        assert told.status == "cancelled"
        late = await runs.approve(office.store, request.run, request.request_id, decided_by="bob")
        assert late.code == "APPROVAL_CONFLICT"
        found = await runs.list_runs(office.store)
        assert {(run.status, run.pending) for run in found} == {("cancelled", 0)}
        assert len(found) == (3 if nested else 2)

    asyncio.run(main())

    assert office.ran["work"] == 0


def test_a_child_that_waits_is_ended_by_the_message_that_abandons_it() -> None:
    """Nobody will take it up, so it does not wait for people any more."""
    office = Office(child=asks("work"))

    async def main() -> None:
        (request,) = (await office.start()).requests
        after = await office.resume(message="never mind", abandon=True)
        assert (await runs.show_run(office.store, request.run)).summary.status == "cancelled"
        # Nothing waits any more: neither is it shown, nor is it in the way of a further message.
        assert after.requests == ()
        again = await office.resume(message="and now?")
        assert (str(again.kind), again.requests) == ("completed", ())

    asyncio.run(main())


def test_a_child_is_not_taken_up_without_its_parent() -> None:
    """It would run under no account and no rules but what its host says now."""
    office = Office(child=asks("work"))

    async def main() -> None:
        first = await office.start()
        (request,) = first.requests
        alone = create_agent_task_run(TaskContract(), run_id=request.run)
        runtime = alone.guard_runtime(
            create_agent_runtime(model=office, tools=[office._work("work")])
        )
        with pytest.raises(ContractError, match="is a sub-run: take up p"):
            await resume_governed_agent_loop(
                runtime=runtime, store=office.store, run_id=request.run, decisions=decided(first)
            )

    asyncio.run(main())

    assert office.ran["work"] == 0


def test_a_child_whose_end_cannot_be_saved_makes_the_parents_cancel_fail() -> None:
    """The parent is over all the same; the next cancel ends what is left."""

    class Stuck(MemoryRunStore):
        is_stuck = False

        async def commit(
            self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
        ) -> int:
            if self.is_stuck and run_id != "p":
                raise StoreError("full")
            return await super().commit(run_id, expected=expected, head=head, rows=rows)

    store = Stuck()
    office = Office(child=asks("work"), store=store)

    async def main() -> None:
        (request,) = (await office.start()).requests
        store.is_stuck = True
        failed = await runs.cancel(store, "p", by="ann")
        assert (failed.status, request.run in failed.message) == ("failed", True)
        assert (await runs.show_run(store, "p")).summary.status == "cancelled"
        store.is_stuck = False
        assert (await runs.cancel(store, "p", by="ann")).status == "over"
        assert (await runs.show_run(store, request.run)).summary.status == "cancelled"

    asyncio.run(main())


def test_a_child_that_was_cancelled_alone_is_charged_once() -> None:
    """What it used, not that and its grant: the parent goes on within its limits."""
    office = Office(contract=TaskContract(max_steps=20, max_turns=6), child=asks("work"))

    async def main() -> LoopResult:
        (request,) = (await office.start()).requests
        await runs.cancel(office.store, request.run, by="ann")
        return await office.resume()

    result = asyncio.run(main())

    assert result.kind == "completed"
    # Two turns of the parent, one of the child; its call was withdrawn with its step.
    assert result.ledger.used == {"steps": 1, "turns": 3, "tool:helper": 1}
    assert_within_budget(result.ledger)


def test_lists_and_layers_of_one_name_all_hold_at_every_depth() -> None:
    """A host's layers, the same for each level, and the same tool below itself: none hides another."""
    rules = {
        "run": [ToolRule(tool="other", approval_class="deny")],
        "parent-0": [ToolRule(tool="own", approval_class="deny")],
    }
    layered = ToolPolicy.layered(**rules)
    office = Office(
        contract=TaskContract(max_steps=20, max_turns=20, tool_policy=layered),
        child=TaskContract(max_steps=3, max_turns=4, tool_policy=layered),
        nested=True,
        allowlist=["a.example"],
    )
    office.below = TaskContract(max_steps=1, max_turns=2, tool_policy=layered)

    result = asyncio.run(office.start())

    assert result.kind == "completed"
    assert [child.depth for child in office.children] == [1, 2]
    deepest = office.children[-1]
    assert len(deepest.contract.tool_policy.layers) == 3 * len(rules) + 2
    assert [entries for _, entries in deepest.allowlists] == [("a.example",)] * 2
    assert len(dict(deepest.allowlists)) == 2


class DyingStore(MemoryRunStore):
    """A store whose process dies in one commit: until it is revived, every later one fails too."""

    def __init__(self, *, dies_at: int, after: bool) -> None:
        super().__init__()
        self.left = dies_at
        self.after = after
        self.is_dead = False

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        self.left -= 1
        if self.is_dead or (self.left == 0 and not self.after):
            self.is_dead = True
            raise Crash
        revision = await super().commit(run_id, expected=expected, head=head, rows=rows)
        if self.left == 0:
            self.is_dead = True
            raise Crash
        return revision


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 18))
@pytest.mark.parametrize("gated", [False, True])
def test_a_crash_at_any_commit_loses_and_doubles_nothing(
    dies_at: int, after: bool, gated: bool
) -> None:
    """Of parent or child: taken up, the parent ends, and no call that may run once runs twice."""
    store = DyingStore(dies_at=dies_at, after=after)
    office = Office(store=store, child=asks("work") if gated else None)

    async def main() -> LoopResult:
        result = None
        for _ in range(6):
            try:
                if "p" not in store._heads:
                    result = await office.start()
                else:
                    result = await office.resume(*([] if result is None else decided(result)))
            except Crash:
                store.is_dead, result = False, None
                continue
            if result.kind != "approval_required":
                break
        assert result is not None
        return result

    result = asyncio.run(main())

    assert result.kind == "completed"
    assert office.ran["work"] <= 1
    assert_one_result_per_call(result.messages)
    assert_within_budget(result.ledger)
    assert not any(result.ledger.reserved.values())
    _assert_charged(result.ledger.used)


def _assert_charged(used: Mapping[str, int]) -> None:
    """The child's step and turns are never forgotten, whatever was taken up."""
    assert used["steps"] >= 2
    assert used["turns"] >= 4
