"""Sub-agents as tools: a call that is a run of its own, under a part of what its parent has left.

The grant stands reserved in the parent from the first moment, and what is not used of it comes back.
The child is held to the parent's lists and rules beside its own, writes to the same log, begins
with the parent's label and gives its own back with its answer. What it asks people suspends the
parent, with the child's requests; a decision on one of them resumes the child.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import attrs

from runtime_pack.approvals import Decision
from runtime_pack.catalog import SEARCH_TOOLS, CatalogTool, Effects, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import CallCode, ContractError, RunNotFound
from runtime_pack.guard import AgentTaskRun, GuardedRuntime, create_agent_task_run
from runtime_pack.guard.execution import exhausted
from runtime_pack.guard.sub_runs import CallWaits, SubRun, sub_run_id
from runtime_pack.inner import frozen, without
from runtime_pack.labels import Integrity
from runtime_pack.ledger import Ledger, Limits, Shortfall, read_counts
from runtime_pack.ledger_carve import ChildLedger, adopt_child, carve, ungranted
from runtime_pack.loop import (
    Completed,
    LoopResult,
    TurnInput,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.machine import refusal
from runtime_pack.messages import Json, Message, SystemMessage, UserMessage
from runtime_pack.policy import NO_CHECK, PolicyLayer, TaskContract, ToolPolicy
from runtime_pack.ports import ExecutionContext
from runtime_pack.records import StepRecord
from runtime_pack.remembered import Memory
from runtime_pack.state import RunStore, open_head
from runtime_pack.strictness import ApprovalClass

__all__ = ("MakeSubAgent", "SubAgent", "sub_agent_tool")

_PARAMETERS: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "minLength": 1, "description": "What the sub-agent is to do."}
    },
    "required": ["task"],
    "additionalProperties": False,
}


@frozen(kw_only=True)
class SubAgent:
    """What the host makes for a child: the runtime that the child guards, and what it is offered."""

    runtime: GuardedRuntime
    tool_catalog: Sequence[ToolSpec] = ()
    system: str | None = None
    model: str | None = None


# Of one child's answer.
_MOST_CITATIONS: Final = 64
# Of a policy layer.
_LONGEST_NAME: Final = 32

MakeSubAgent = Callable[[AgentTaskRun], SubAgent]
"""From the child's run to its runtime; called anew each time that the child is taken up."""


def sub_agent_tool(
    parent: AgentTaskRun,
    *,
    name: str,
    description: str,
    make: MakeSubAgent,
    contract: TaskContract,
    allowlist: Sequence[str],
    store: RunStore | None = None,
    max_depth: int = 2,
    timeout_seconds: float = 3600.0,
    approval_class: ApprovalClass | str = ApprovalClass.AUTO,
) -> CatalogTool:
    """A tool that runs a sub-agent.

    Args:
        parent: the run whose tool it is.
        name: the tool's name.
        description: what the model is told of it.
        make: makes the child's runtime.
        contract: what a child is granted of the parent's remainder. It names a part of every count
            that limits the parent, money and tokens too, and none of them is `unlimited`; a tool
            with a limit of its own that it does not name is not the child's. Its rules hold beside
            the parent's.
        allowlist: the parent's list or a part of it, a layer beside the parent's own layers and
            the list of the child's runtime. An empty one allows nothing.
        store: where the parent is saved; without it a child that asks people ends as an error.
        max_depth: how deep sub-agents may stand below the first run.
        timeout_seconds: the longest one call may take.
        approval_class: what has to happen before a sub-agent starts.

    Raises:
        ContractError: the name is not one, `max_depth` is not a whole number from 1, the contract
            lacks a part of a budget that limits the parent, or names money that nobody counts.
    """
    if type(max_depth) is not int or max_depth < 1:
        raise ContractError("max_depth", "is a whole number from 1")
    if isinstance(allowlist, str) or not all(isinstance(entry, str) for entry in allowlist):
        raise ContractError("allowlist", "is a list of entries")
    _check_grant(parent, contract)
    spec = ToolSpec(
        name=name,
        description=description,
        parameters=_PARAMETERS,
        # Its answer has the label of what it read; its own words are the host's model's.
        output_trust=Integrity.INTERNAL,
        timeout_seconds=timeout_seconds,
        # The same step is the same child: taken up, it goes on, and nothing is done twice.
        effects=Effects.IDEMPOTENT,
        approval_class=approval_class,
        # What a child does is judged call by call, under no better a label than its parent's.
        side_effects=(),
    )
    # Whoever reads lists for the parent says of this one too, before the run, if it is malformed.
    parent.sub_lists = (*parent.sub_lists, (f"sub-agent {name}", tuple(allowlist)))
    starter = _Starter(parent, name, make, contract, tuple(allowlist), store, max_depth)
    return CatalogTool(spec=spec, handler=starter.call)


def _check_grant(parent: AgentTaskRun, contract: TaskContract) -> None:
    """Refuse a contract that no child could be run under, as far as it is known before the run.

    Raises:
        ContractError: there is a budget of the parent that it names no part of, or one of money
            without a price table.
    """
    missing = ungranted(parent.ledger.limits, contract.limits())
    if missing is not None:
        text = "the parent has a limit on it, and the contract names no part of that"
        raise ContractError(f"contract.{missing}", text)
    if contract.max_cost is not None and parent.prices is None:
        raise ContractError("contract.max_cost", "a budget of money needs a price table")


@frozen
class _Starter:
    """The handler of one sub-agent's tool: starts a child for a call, or takes it up again."""

    parent: AgentTaskRun
    name: str
    make: MakeSubAgent
    contract: TaskContract
    allowlist: tuple[str, ...]
    store: RunStore | None
    max_depth: int

    async def call(
        self, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | Json:
        """Run the child, or take it up.

        Raises:
            CallWaits: it waits for people.
        """
        parent = self.parent
        if context.run != parent.id:
            return refusal(CallCode.POLICY_DENIED, "This sub-agent belongs to another run.")
        if parent.depth >= self.max_depth:
            text = f"Sub-agents stand at most {self.max_depth} deep."
            return refusal(CallCode.POLICY_DENIED, text)
        child_id, step = sub_run_id(parent.id, context.step), context.step
        saved = await self._saved(child_id)
        unnamed = ungranted(parent.ledger.limits, self.contract.limits())
        if saved is None and unnamed is not None:
            # A saved run or a grant has brought a limit that was not there at construction.
            return _ungranted(parent.ledger, unnamed)
        ledger = self._ledger(saved, step)
        if isinstance(ledger, Shortfall):
            return exhausted(ledger)
        earlier = parent.sub_runs.get(step)
        granted = ledger.view(parent.clock.monotonic()).granted
        known = SubRun(run_id=child_id, granted=granted)
        parent.sub_runs = {**parent.sub_runs, step: known}
        is_open = False
        try:
            try:
                child = self._child(child_id, ledger)
                made = self._made(child)
            except ContractError as error:
                return _unmade(error)
            task = str(arguments["task"])
            result = await self._driven(child, made, task, context, earlier, saved)
            is_open = bool(result.requests) and self.store is not None
            if is_open:
                waiting = SubRun(run_id=child_id, granted=granted, requests=result.requests)
                parent.sub_runs = {**parent.sub_runs, step: waiting}
                raise CallWaits
            return _output(result, child)
        except asyncio.CancelledError:
            # Paused, it is taken up with its parent; cancelled, or out of time, it is over.
            is_open = parent.interrupt is not None and parent.interrupt_resumable
            raise
        finally:
            if not is_open:
                parent.sub_runs = without(parent.sub_runs, step)
                ledger.close(parent.clock.monotonic())

    async def _saved(self, child_id: str) -> Mapping[str, Any] | None:
        """The head of the child, if it has begun.

        Raises:
            StoreError: the store could not be read, or what is in it is not authentic.
        """
        if self.store is None:
            return None
        try:
            saved = await self.store.load(child_id)
        except RunNotFound:
            return None
        return open_head(saved, self.store.seal)

    def _ledger(self, saved: Mapping[str, Any] | None, step: str) -> ChildLedger | Shortfall:
        """The child's account. What it holds of the parent's stands reserved there, once."""
        parent, now = self.parent.ledger, self.parent.clock.monotonic()
        if saved is None:
            return carve(parent, self.contract.limits(), now=now)
        account: Mapping[str, Json] = saved["ledger"]
        if step in self.parent.sub_runs:
            # An earlier version cancelled a sub-run without what it was granted.
            account = {"granted": dict(self.parent.sub_runs[step].granted), **account}
            return adopt_child(parent, account)
        # The parent was saved before it had reserved this.
        granted = read_counts(account.get("granted", {}))
        short = parent.reserve_amounts(granted)
        if short is not None:
            return short
        child = ChildLedger(parent, Limits.from_json(account.get("limits")), granted)
        child.restore(account)
        return child

    def _child(self, child_id: str, ledger: ChildLedger) -> AgentTaskRun:
        parent = self.parent
        child = create_agent_task_run(
            attrs.evolve(self.contract, tool_policy=self._policy()),
            task=f"{parent.task or parent.id} > {self.name}",
            run_id=child_id,
            approver=parent.approver,
            emitter=parent.emitter,
            audit=parent.audit,
            clock=parent.clock,
            frame=parent.frame,
            seal=parent.seal,
            chance=parent.chance,
            output_check=parent.output_check if self.contract.output_check != NO_CHECK else None,
            kill_switch=parent.kill_switch,
            prices=parent.prices,
            ledger=ledger,
            scanner=parent.scanner,
            identity=parent.identity,
        )
        child.depth, child.parent = parent.depth + 1, parent.id
        child.memory = Memory(parent.memory)
        # What one of them tells a site, or must not send, is told and kept by all.
        child.flow = parent.flow
        child.asks_on |= parent.asks_on
        child.allowlists = self._lists()
        return child

    def _lists(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The lists that hold the child, outermost first: all that hold the parent, and its own."""
        lists = dict(self.parent.allowlists)
        for entries in self.parent.run_lists:
            lists[_unused("parent", lists)] = entries
        lists[_unused(f"sub-agent {self.name}", lists)] = self.allowlist
        return tuple(lists.items())

    def _policy(self) -> ToolPolicy:
        """The child's rules, and the parent's as a layer: what it is denied, its child is too."""
        above, own = self.parent.contract.tool_policy, self.contract.tool_policy
        layers = [*above.layers]
        parents = PolicyLayer(f"parent-{self.parent.depth}", above.rules)
        for layer in (parents, *own.layers):
            layers.append(_under_free_name(layer, {each.name for each in layers}))
        return ToolPolicy(own.rules, layers)

    def _made(self, child: AgentTaskRun) -> SubAgent:
        """What the host makes for the child.

        Raises:
            ContractError: it is no sub-agent, or of another run, or could not be made.
        """
        try:
            made: object = self.make(child)
        except ContractError:
            raise
        # The host's code: whatever it raises, nothing of the child has run.
        except Exception as error:
            raise ContractError("make", f"raised {type(error).__name__}") from error
        if not isinstance(made, SubAgent) or made.runtime.task_run is not child:
            raise ContractError("make", "makes a SubAgent whose runtime the child guards")
        return made

    async def _driven(
        self,
        child: AgentTaskRun,
        made: SubAgent,
        task: str,
        context: ExecutionContext,
        earlier: SubRun | None,
        saved: Mapping[str, Any] | None,
    ) -> LoopResult:
        if saved is None or self.store is None:
            messages: list[Message] = [UserMessage(text=task, label=context.label)]
            if made.system is not None:
                messages.insert(0, SystemMessage(text=made.system))
            given = TurnInput(messages=messages, tool_catalog=made.tool_catalog, model=made.model)
            return await run_governed_agent_loop(
                runtime=made.runtime, execute_turn_input=given, store=self.store
            )
        return await resume_governed_agent_loop(
            runtime=made.runtime,
            store=self.store,
            run_id=child.id,
            decisions=self._decisions(earlier),
        )

    def _decisions(self, earlier: SubRun | None) -> list[Decision]:
        """What was brought to the parent about requests of this child."""
        asked = [] if earlier is None else [request.request_id for request in earlier.requests]
        brought = self.parent.brought
        words = [brought[request_id] for request_id in asked if request_id in brought]
        for request_id in asked:
            brought = without(brought, request_id)
        self.parent.brought = brought
        return words


def _under_free_name(layer: PolicyLayer, taken: AbstractSet[str]) -> PolicyLayer:
    """The layer, under another name if one above has its own: both hold."""
    names = (f"sub{number}-{layer.name}"[:_LONGEST_NAME] for number in itertools.count(1))
    free = next(name for name in itertools.chain([layer.name], names) if name not in taken)
    return layer if free == layer.name else PolicyLayer(free, layer.rules)


def _unused(name: str, taken: Container[str]) -> str:
    """The name, or the first that is like it and that no list has: none may hide another."""
    like = (f"{name} {number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], like) if each not in taken)


def _ungranted(ledger: Ledger, budget: str) -> ToolOutput:
    """The refusal of a child that was granted no part of a budget that limits its parent."""
    short = ledger.shortfall(budget)
    text = f"The budget {budget} is limited here, and the sub-agent was granted no part of it."
    details = {} if short is None else short.to_json()
    return refusal(CallCode.BUDGET_EXHAUSTED, text, details=details)


def _unmade(error: ContractError) -> ToolOutput:
    """The refusal of a child that the host's code did not make: nothing of it has run."""
    text = f"The sub-agent could not be made: {error.path} is wrong."
    return refusal(CallCode.TOOL_ERROR, text, details={"field": error.path})


@attrs.frozen
class _Wire:
    """A citation of a child as its record holds it."""

    wire: Mapping[str, str]

    def to_wire(self) -> dict[str, str]:
        return dict(self.wire)


def _read(steps: Iterable[StepRecord]) -> tuple[_Wire, ...]:
    """What a child has read is evidence of its parent as well; what it only found is not."""
    found = {
        tuple(sorted(wire.items())): _Wire(wire)
        for record in steps
        if record.ok and record.tool not in SEARCH_TOOLS
        for wire in record.citations
    }
    return tuple(found.values())[:_MOST_CITATIONS]


def _output(result: LoopResult, child: AgentTaskRun) -> ToolOutput:
    """The child's answer with the child's label; how it failed, if it did."""
    data: dict[str, Json] = {"run": child.id, "kind": str(result.kind), "text": result.text}
    if isinstance(result, Completed):
        return ToolOutput(
            ok=True, text=result.text, data=data, label=child.label, citations=_read(result.steps)
        )
    code = None if result.stop is None else str(result.stop.code)
    failed = refusal(
        CallCode.TOOL_ERROR,
        f"The sub-agent did not complete its task ({result.kind}).",
        executed=Executed.YES,
        details={"sub_run": child.id, "stop": code, "text": result.text},
    )
    return attrs.evolve(failed, label=child.label)
