"""A Hypothesis state machine that plays model, people, clock and crashes against your own tools.

Subclass `GovernedRunMachine`, give it your tools and your contract, add rules and invariants of your
own, and run its `TestCase`. After every step it is checked that what the runtime promises holds: one
result for every call, no budget overdrawn, nothing run that was denied or not admitted, nothing
run twice that has effects, no model asked while a person is, and a label that never goes down.

Needs `hypothesis`, which the package itself does not install.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime_pack.agent import create_agent_runtime
from runtime_pack.approvals import ApprovalRequest, Decision, Verdict
from runtime_pack.catalog import CatalogTool, Effects, ToolOutput, ToolSpec
from runtime_pack.errors import RunNotFound, StopCode
from runtime_pack.guard import GuardedRuntime, create_agent_task_run
from runtime_pack.labels import join
from runtime_pack.loop import (
    ApprovalRequired,
    Cancelled,
    Completed,
    LoopError,
    LoopResult,
    TurnInput,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.messages import FinishReason, Json, ToolCall, Turn, TurnStatus, UserMessage
from runtime_pack.policy import ApprovalClass, TaskContract, ToolPolicy, ToolRule
from runtime_pack.ports import ExecutionContext, TurnRequest
from runtime_pack.seal import Seal
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    assert_one_result_per_call,
    assert_within_budget,
    reply,
)

__all__ = (
    "GovernedRunMachine",
    "arguments_for",
    "contracts",
    "crash_points",
    "scripts",
    "tool_policies",
)

_MACHINE_KEY: Final = b"the key of a machine in a test.."
_SETTLED: Final = frozenset(
    {
        StopCode.ALREADY_RESOLVED,
        StopCode.APPROVAL_CONFLICT,
        StopCode.APPROVAL_NOT_FOUND,
        "APPROVAL_EXPIRED",
    }
)

_JUNK: Final = st.sampled_from(["", "{", "[]", "null", '{"unknown": 1}', '{"x": "\ud800"}'])
_BY_TYPE: Final[Mapping[str, st.SearchStrategy[Json]]] = {
    "string": st.text(max_size=12),
    "integer": st.integers(-3, 1000),
    "number": st.integers(-3, 1000) | st.floats(-10, 10),
    "boolean": st.booleans(),
    "array": st.lists(st.text(max_size=4), max_size=3),
    "object": st.just({}),
    "null": st.none(),
}


def arguments_for(spec: ToolSpec) -> st.SearchStrategy[Mapping[str, Json] | str]:
    """Arguments that often fit the tool's parameters, and often do not."""
    properties = spec.parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        return _JUNK
    fields = {name: _values(schema) for name, schema in properties.items()}
    fitting = st.fixed_dictionaries({}, optional=fields) | st.fixed_dictionaries(fields)
    return fitting | fitting | _JUNK


def _values(schema: object) -> st.SearchStrategy[Json]:
    if not isinstance(schema, Mapping):
        return st.none()
    words = schema.get("enum")
    if isinstance(words, Sequence) and words:
        return st.sampled_from(list(words))
    return _BY_TYPE.get(str(schema.get("type")), st.text(max_size=4))


def scripts(
    specs: Iterable[ToolSpec],
    *,
    arguments: Callable[[ToolSpec], st.SearchStrategy[Mapping[str, Json] | str]] = arguments_for,
    max_size: int = 3,
) -> st.SearchStrategy[list[Turn]]:
    """Turns of a model that asks for these tools, and for one that does not exist.

    Ids repeat, arguments may not fit, and some responses were cut short. `ScriptedModel` plays one.
    """
    one = st.one_of([_calls(spec, arguments(spec)) for spec in specs])
    unknown = st.just(ToolCall(id="u", name="no:such", arguments="{}"))
    turn = st.builds(
        Turn,
        status=st.just(TurnStatus.TOOL_REQUEST),
        calls=st.lists(one | one | one | unknown, min_size=1, max_size=4),
        finish=st.sampled_from([FinishReason.TOOL_CALLS] * 4 + [FinishReason.LENGTH]),
    )
    return st.lists(turn, min_size=1, max_size=max_size)


def _calls(
    spec: ToolSpec, arguments: st.SearchStrategy[Mapping[str, Json] | str]
) -> st.SearchStrategy[ToolCall]:
    ids = st.sampled_from(["a", "b", ""])
    return st.builds(ToolCall, id=ids, name=st.just(spec.name), arguments=arguments)


def tool_policies(specs: Iterable[ToolSpec]) -> st.SearchStrategy[ToolPolicy]:
    """Policies over these tools: every class for any of them, by name and by glob."""
    names = st.sampled_from(["*", *(spec.name for spec in specs)])
    rule_of = st.builds(ToolRule, tool=names, approval_class=st.sampled_from(ApprovalClass))
    return st.lists(rule_of, max_size=4).map(ToolPolicy)


def contracts(specs: Iterable[ToolSpec]) -> st.SearchStrategy[TaskContract]:
    """Contracts with small budgets, 0 among them, and any policy over these tools."""
    return st.builds(
        TaskContract,
        max_steps=st.integers(0, 8),
        max_turns=st.integers(0, 8),
        max_duration_seconds=st.sampled_from([600, 5, 0]),
        max_parallel=st.integers(1, 4),
        batch=st.sampled_from(["prefix", "atomic"]),
        wrap_up=st.booleans(),
        tool_policy=tool_policies(tuple(specs)),
    )


def crash_points(*, max_commits: int = 12) -> st.SearchStrategy[frozenset[int]]:
    """At which commits a process dies, for `CrashingRunStore(crash_at=…)`."""
    return st.frozensets(st.integers(1, max_commits), max_size=3)


class _Playing:
    """Takes the turns that it is given, then answers; counts how often it was asked."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.asked = 0

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        del context
        self.asked += 1
        assert_one_result_per_call(request.messages)
        return self.turns.pop(0) if self.turns else reply()


class GovernedRunMachine(RuleBasedStateMachine):
    """One run after another, driven by a model that asks for anything and people who say anything.

    Override `make_tools`, and `make_contract` for budgets and policy of your own; `arguments` for
    arguments that hit your tools better; `check` for what must hold of your own state.

    Attributes:
        tools: your tools, counted.
        clock: moved by a rule; give it to tools that look at the time.
        result: how the last drive ended, None before the first and after a crash.
        ran: how often each step really ran, by run, step and tool.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovableClock()
        self.ran: Counter[tuple[str, str, str]] = Counter()
        self.tools = tuple(self._counted(tool) for tool in self.make_tools())
        self.contract = self.make_contract()
        self.result: LoopResult | None = None
        self._model = _Playing()
        self._seal = Seal(_MACHINE_KEY)
        self._store = CrashingRunStore(crash_at=(), seal=self._seal)
        self._runs = 1
        self._said: list[Decision] = []
        self._asked: dict[str, ApprovalRequest] = {}
        self._script = scripts([tool.spec for tool in self.tools], arguments=self.arguments)
        self._effects = {tool.spec.name: tool.spec.effects for tool in self.tools}

    # ── what a subclass says ──────────────────────────────────────────────────────────────────

    def make_tools(self) -> Iterable[CatalogTool]:
        """Your tools, new ones for each machine.

        Raises:
            NotImplementedError: override it.
        """
        raise NotImplementedError

    def make_contract(self) -> TaskContract:
        """Small budgets, so that they run out."""
        return TaskContract(max_steps=8, max_turns=8, max_duration_seconds=600)

    def arguments(self, spec: ToolSpec) -> st.SearchStrategy[Mapping[str, Json] | str]:
        """What the model gives a tool: an object, or text that may not even be JSON."""
        return arguments_for(spec)

    def check(self) -> None:
        """What must hold of your own state after every step."""

    # ── rules ─────────────────────────────────────────────────────────────────────────────────

    @rule(data=st.data())
    def model_asks(self, data: st.DataObject) -> None:
        """The model takes a few turns, with any calls, and answers."""
        self._model.turns = data.draw(self._script)
        self._drive(())

    @precondition(lambda self: isinstance(self.result, ApprovalRequired))
    @rule(data=st.data())
    def people_decide(self, data: st.DataObject) -> None:
        """Some of the pending requests are approved, some denied, some left."""
        decisions = []
        for request in () if self.result is None else self.result.requests:
            verdict = data.draw(st.sampled_from([Verdict.APPROVE, Verdict.DENY, None]))
            if verdict is not None:
                decisions.append(_decision(request.request_id, verdict))
        self._said += decisions
        self._drive(tuple(decisions))

    @precondition(lambda self: self._said and self.result is not None)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict))
    def somebody_decides_again(self, data: st.DataObject, verdict: Verdict) -> None:
        """A request that was decided is decided once more: nothing runs, whatever is said."""
        said = data.draw(st.sampled_from(self._said))
        before = self.ran.copy()
        again = self._resumed((_decision(said.request_id, verdict),), None)
        _expect(before == self.ran, "a second decision ran something")
        if again is not None:
            code = None if again.stop is None else again.stop.code
            _expect(code in _SETTLED, f"a second decision ended in {again.kind} {code}")

    @rule(seconds=st.sampled_from([1, 60, 4000, 80 * 3600]))
    def time_passes(self, seconds: int) -> None:
        """Requests may expire; waiting is not charged."""
        self.clock.move(seconds)

    @rule(commits=st.integers(1, 6), after=st.booleans())
    def the_process_will_die(self, commits: int, after: bool) -> None:
        """At one of the next saves, before or after it."""
        self._store.crash_in(commits, after=after)

    # ── invariants ────────────────────────────────────────────────────────────────────────────

    @invariant()
    def what_is_promised_holds(self) -> None:
        """See the class; then your own `check`."""
        for (_, step, tool), times in self.ran.items():
            again = self._effects[tool] is not Effects.ONCE
            _expect(times == 1 or again, f"{tool} ran {times} times as {step}")
        if self.result is not None:
            self._check_result(self.result)
        self.check()

    def _check_result(self, result: LoopResult) -> None:
        assert_one_result_per_call(result.messages)
        assert_within_budget(result.ledger)
        self._check_labels(result)
        admitted = {record.step for record in result.steps if record.admitted}
        for run, step, tool in self.ran:
            if run != result.run_id:
                continue
            _expect(step in admitted, f"{tool} ran as {step}, which was not admitted")
            request = self._asked.get(f"{run}/{step}")
            if request is not None:
                words = [s.verdict for s in self._said if s.request_id == request.request_id]
                _expect(Verdict.APPROVE in words, f"{tool} ran as {step} without a yes")

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    @property
    def run_id(self) -> str:
        """The run in hand."""
        return f"machine-{self._runs}"

    def _counted(self, tool: CatalogTool) -> CatalogTool:
        inner, name = tool.handler, tool.spec.name

        async def handler(
            arguments: Mapping[str, Json], context: ExecutionContext
        ) -> ToolOutput | Json:
            self.ran[context.run, context.step, name] += 1
            return await inner(arguments, context)

        return attrs.evolve(tool, handler=handler)

    def _runtime(self) -> GuardedRuntime:
        run = create_agent_task_run(
            self.contract, run_id=self.run_id, clock=self.clock, seal=self._seal
        )
        return run.guard_runtime(create_agent_runtime(model=self._model, tools=self.tools))

    def _drive(self, decisions: tuple[Decision, ...]) -> None:
        if isinstance(self.result, Cancelled | LoopError):
            self._runs += 1
            self.result = None
        pending = () if self.result is None else self.result.requests
        message = "go on" if isinstance(self.result, Completed) else None
        asked = self._model.asked
        result = self._resumed(decisions, message)
        if result is None:
            self.result = None
            return
        if {r.request_id for r in pending} & {r.request_id for r in result.requests}:
            _expect(asked == self._model.asked, "the model was asked while people were")
        for request in result.requests:
            self._asked[f"{result.run_id}/{request.step}"] = request
        self.result = result

    def _check_labels(self, result: LoopResult) -> None:
        labels = [record.label for record in result.steps]
        for low, high in itertools.pairwise(labels):
            _expect(join(low, high) == high, "a label went down")

    def _resumed(self, decisions: tuple[Decision, ...], message: str | None) -> LoopResult | None:
        """One drive in a process of its own; None when it died."""

        async def drive() -> LoopResult:
            runtime = self._runtime()
            try:
                await self._store.load(self.run_id)
            except RunNotFound:
                given = TurnInput(
                    messages=[UserMessage(text="go")],
                    tool_catalog=[tool.spec for tool in self.tools],
                )
                return await run_governed_agent_loop(
                    runtime=runtime, execute_turn_input=given, store=self._store
                )
            return await resume_governed_agent_loop(
                runtime=runtime,
                store=self._store,
                run_id=self.run_id,
                decisions=decisions,
                message=message,
            )

        with contextlib.suppress(Crash):
            try:
                return asyncio.run(drive())
            except BaseExceptionGroup as group:
                if group.subgroup(Crash) is None:
                    raise
        return None


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _decision(request_id: str, verdict: Verdict) -> Decision:
    return Decision(request_id=request_id, verdict=verdict, decided_by="machine")
