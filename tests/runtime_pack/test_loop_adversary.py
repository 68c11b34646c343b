"""A model that never means to end: whatever it does, the run ends, within its budgets."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import event, given, settings
from hypothesis import strategies as st

from runtime_pack import (
    Completed,
    ExecutionContext,
    FinishReason,
    GuardedRuntime,
    LoopResult,
    MemoryRunStore,
    ModelFault,
    ModelRequestError,
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
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.approvals import ApprovalRequest, Decision
from runtime_pack.catalog import TURN_TOOL
from runtime_pack.messages import history_fault
from runtime_pack.testing import (
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    assert_within_budget,
    calls,
    reply,
)

FAULTS = [ModelFault.RATE_LIMITED, ModelFault.SERVER, ModelFault.CONTEXT_OVERFLOW, ModelFault.AUTH]
NAMES = st.sampled_from(["t:echo", "t:echo", "t:other", "t:bad", "t:gate", "t:no", "nope"])
ARGUMENTS = st.sampled_from(["{}", "{}", '{"x": "1"}', '{"x": 1}', "{"])
CALLS = st.lists(st.tuples(st.sampled_from("ab"), NAMES, ARGUMENTS), min_size=1, max_size=4)


@st.composite
def answers(draw: st.DrawFn) -> Turn | ModelRequestError:
    """One answer of a model that does not mean to end."""
    kind = draw(st.sampled_from([9, 9, 9, 9, 9, 0, 1, 2, 3]))
    if kind == 0:
        after = draw(st.none() | st.sampled_from([0.0, 3.0, 10_000.0]))
        return ModelRequestError(
            fault=draw(st.sampled_from(FAULTS)), message="", retry_after_seconds=after
        )
    if kind == 1:
        return reply("", finish=draw(st.sampled_from([FinishReason.LENGTH, FinishReason.UNKNOWN])))
    if kind == 2:
        return calls(*draw(CALLS), finish=FinishReason.LENGTH)
    if kind == 3:
        return reply("no form")
    return calls(*draw(CALLS))


class Endless:
    """Answers in circles for ever, and looks at every history that it is shown."""

    def __init__(self, circle: list[Turn | ModelRequestError]) -> None:
        self._circle = circle
        self.asked = 0
        self.faults: list[str] = []

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        fault = history_fault(request.messages)
        if fault is not None:
            # What a model raises is an error of the run: it is said again at the end.
            self.faults.append(fault)
        answer = self._circle[self.asked % len(self._circle)]
        self.asked += 1
        if isinstance(answer, ModelRequestError):
            raise answer
        return answer


class Sayer:
    """A person who answers in circles, or leaves requests open."""

    def __init__(self, words: list[Verdict | None]) -> None:
        self._words = words
        self._asked = 0

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        word = self._words[self._asked % len(self._words)]
        self._asked += 1
        if word is None:
            return None
        return Decision(request_id=request.request_id, verdict=word, decided_by="a person")


def contracts() -> st.SearchStrategy[TaskContract]:
    rules = [
        ToolRule(tool="t:gate", approval_class="request_user"),
        ToolRule(tool="t:no", approval_class="deny"),
    ]
    return st.builds(
        TaskContract,
        max_steps=st.sampled_from([12, 12, 12, 5, 2, 0]),
        max_turns=st.sampled_from([12, 12, 12, 3, 1, 0]),
        max_consecutive_refused=st.sampled_from([9, 9, 3, 1]),
        max_refused=st.sampled_from([50, 50, 5, 0]),
        max_attempts=st.integers(1, 3),
        max_batch=st.sampled_from([6, 6, 2, 0]),
        max_parallel=st.integers(1, 3),
        max_context_bytes=st.sampled_from(["unlimited", "unlimited", 400]),
        batch=st.sampled_from(["prefix", "atomic"]),
        tool_policy=st.just(ToolPolicy(rules)),
    )


def check(result: LoopResult, shelf: ToolShelf, contract: TaskContract) -> None:
    """What holds of every result, however the run ended."""
    assert_one_result_per_call(result.messages)
    assert_within_budget(result.ledger)
    admitted = [s for s in result.steps if s.admitted and s.tool != TURN_TOOL]
    assert isinstance(contract.max_steps, int)
    assert sum(shelf.ran.values()) <= len(admitted) <= contract.max_steps
    assert shelf.ran["t:no"] == 0
    ran = Counter(step.step for step in admitted)
    assert not ran or max(ran.values()) == 1
    told = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert len({m.call_id for m in told}) == len(told)


@given(
    circle=st.lists(answers(), min_size=1, max_size=4),
    words=st.lists(st.sampled_from([Verdict.APPROVE, Verdict.DENY, None]), min_size=1, max_size=3),
    contract=contracts(),
    summed_up=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_the_run_of_an_endless_model_ends_within_its_budgets(
    circle: list[Turn | ModelRequestError],
    words: list[Verdict | None],
    contract: TaskContract,
    summed_up: bool,
) -> None:
    """Repeats, refusals, retries, cuts, overflows and denials, resumed as often as it can be."""

    class Scribe:
        async def summarise(self, messages: object) -> str:
            return "short"

    async def scenario() -> None:
        shelf = ToolShelf().add("t:echo").add("t:other").add("t:gate").add("t:no")
        shelf.add("t:bad", RuntimeError())
        model, clock, store = Endless(circle), MovableClock(), MemoryRunStore()

        def guarded() -> GuardedRuntime:
            run = create_agent_task_run(
                contract,
                clock=clock,
                approver=Sayer(words),
                summariser=Scribe() if summed_up else None,
            )
            return run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools))

        given_input = TurnInput(
            messages=[UserMessage(text="go")],
            tool_catalog=shelf.specs,
            output_schema={"type": "object"},
        )
        result = await asyncio.wait_for(
            run_governed_agent_loop(runtime=guarded(), execute_turn_input=given_input, store=store),
            20,
        )
        check(result, shelf, contract)
        event(f"{result.kind} {result.stop and result.stop.code}")
        assert not isinstance(result, Completed)
        for _ in range(3):
            clock.move(20_000)
            result = await asyncio.wait_for(
                resume_governed_agent_loop(runtime=guarded(), store=store, run_id=result.run_id),
                20,
            )
            check(result, shelf, contract)
        assert model.faults == []
        assert isinstance(contract.max_turns, int)
        # Each drive may fail once more than its attempts; turns, and one wrap-up, are for the run.
        assert model.asked <= (contract.max_turns + 1) * 2 * contract.max_attempts + 4 * 2 * 3
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_l27_what_a_page_gave_labels_the_call_that_uses_it() -> None:
    """The label is that of the context, whatever part of a result the arguments were taken from."""
    shelf = ToolShelf().add("t:echo", "from a page").add("t:other")
    script = [
        calls(("a", "t:other", '{"x": "mine"}')),
        calls(("b", "t:echo", "{}")),
        calls(("c", "t:other", '{"x": "hidden reference"}')),
        reply(),
    ]

    result = asyncio.run(Rehearsal(shelf=shelf).play(*script))

    labels = [step.label.integrity for step in result.steps if step.tool == "t:other"]
    assert labels == ["user", "external"]
