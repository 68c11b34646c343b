"""What holds for every script, every approver, every failure and every crash.

The model asks for anything, people decide anything, tools fail in every way, the store dies before or
after any commit. After a death a new task run takes up what is stored, as a new process would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    Completed,
    Decision,
    ExecutionContext,
    Label,
    LoopError,
    LoopResult,
    StopCode,
    Suspended,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnRequest,
    Verdict,
)
from runtime_pack.catalog import Effects
from runtime_pack.errors import CallCode, RunNotFound
from runtime_pack.labels import join
from runtime_pack.messages import FinishReason, Json, ToolCall, TurnStatus, Usage
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    assert_within_budget,
    reply,
)

TOOLS: Final = ("t:ok", "t:bad", "t:slow", "t:gate", "t:no", "t:again", "t:pause")
POLICY: Final = ToolPolicy(
    [
        ToolRule(tool="t:gate", approval_class="request_user"),
        ToolRule(tool="t:no", approval_class="deny"),
    ]
)
ROUGH: Final = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

names = st.one_of(
    st.sampled_from(TOOLS), st.just("t:ok"), st.sampled_from(["nope", "", "t:\ud800"])
)
arguments = st.one_of(
    st.sampled_from(
        ["{}", '{"x":"1"}', '{"x":1}', "{", "[]", "", "null", '{"x":"\ud800"}', "[" * 300]
    ),
    st.just({"x": "1"}),
    st.text(max_size=8),
)
tool_calls = st.lists(
    st.builds(ToolCall, id=st.sampled_from(["a", "b", "", "a-2"]), name=names, arguments=arguments),
    min_size=1,
    max_size=6,
)
usages = st.none() | st.builds(
    Usage, input_tokens=st.integers(0, 50), output_tokens=st.integers(0, 50)
)
finishes = st.sampled_from([FinishReason.TOOL_CALLS] * 4 + list(FinishReason))


def asking(asked: list[ToolCall], finish: FinishReason, usage: Usage | None) -> Turn:
    return Turn(status=TurnStatus.TOOL_REQUEST, calls=tuple(asked), finish=finish, usage=usage)


turns = st.one_of(
    st.builds(asking, tool_calls, finishes, usages),
    st.builds(asking, tool_calls, finishes, usages),
    st.builds(asking, tool_calls, finishes, usages),
    st.builds(
        Turn,
        status=st.sampled_from([TurnStatus.REPLY, TurnStatus.COMPLETE, TurnStatus.ESCALATE]),
        text=st.sampled_from(["", "text", "\udfff"]),
        finish=st.sampled_from(FinishReason),
    ),
)
# The last turns are repeated without end: a script cannot run out, only the run can end.
scripts = st.lists(turns | st.just(RuntimeError("down")), min_size=1, max_size=6)
contracts = st.builds(
    TaskContract,
    max_steps=st.sampled_from([50, 50, 6, 3, 1, 0]),
    max_turns=st.sampled_from([20, 5, 3, 2, 1, 0]),
    max_parallel=st.integers(1, 3),
    max_refused=st.sampled_from(["unlimited", None, 3, 0]),
    max_consecutive_refused=st.integers(1, 3),
    max_duration_seconds=st.sampled_from([600, 600, 5, 0]),
    per_tool=st.sampled_from([{}, {"t:ok": 1}, {"t:gate": 0}]),
    tool_policy=st.just(POLICY),
    wrap_up=st.booleans(),
)
verdicts = st.lists(st.sampled_from([Verdict.APPROVE, Verdict.DENY, None]), max_size=8)


class Endless:
    """Repeats its script without end, and notes what is wrong with what it is shown."""

    def __init__(self, script: list[Turn | Exception], faults: list[str]) -> None:
        self.script = script
        self.faults = faults
        self.asked: Counter[str] = Counter()

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        with noted(self.faults):
            assert_one_result_per_call(request.messages)
        turn = self.script[self.asked[context.run] % len(self.script)]
        self.asked[context.run] += 1
        if isinstance(turn, Exception):
            raise turn
        return turn


@contextlib.contextmanager
def noted(faults: list[str]) -> Iterator[None]:
    """What fails inside the host's code is an error of that code for the loop: so it is noted."""
    try:
        yield
    except AssertionError as error:
        faults.append(str(error))
        raise


class Fickle:
    """Decides by a list, then not at all; keeps what it said, by run and step."""

    def __init__(self, words: list[Verdict | None]) -> None:
        self.words = list(words)
        self.approved: set[tuple[str, str]] = set()
        self.denied: set[tuple[str, str]] = set()

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        word = self.words.pop(0) if self.words else None
        if word is None:
            return None
        said = self.approved if word is Verdict.APPROVE else self.denied
        said.add((request.run, request.step))
        return Decision(request_id=request.request_id, verdict=word, decided_by="fickle")


@attrs.define(kw_only=True)
class World:
    """One run in a hostile world, over as many processes as it takes.

    `begun` counts starts by run and step; `tools` says which tool each was.
    """

    stage: Rehearsal
    stored: CrashingRunStore
    begun: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    tools: dict[tuple[str, str], str] = attrs.field(factory=dict)
    faults: list[str] = attrs.field(factory=list)

    def tool(
        self, kind: str, clock: MovableClock
    ) -> Callable[[ExecutionContext], Awaitable[ToolOutput | Json]]:
        async def does(context: ExecutionContext) -> ToolOutput | Json:
            key = (context.run, context.step)
            self.begun[key] += 1
            self.tools[key] = kind
            with noted(self.faults):
                assert_within_budget(self.stage.run.view())
                records = [s for s in self.stage.run.steps if s.step == context.step]
                assert [record.admitted for record in records] == [True]
            if kind == "t:bad":
                raise ValueError(kind)
            if kind == "t:slow":
                clock.move(2)
                await asyncio.sleep(0)
                with noted(self.faults):
                    assert_within_budget(self.stage.run.view())
            if kind == "t:pause":
                self.stage.run.pause("pause", "after_step")
            return "ok"

        return does


def world(
    contract: TaskContract, crash_at: set[int], after: bool, words: list[Verdict | None]
) -> World:
    clock = MovableClock()
    shelf = ToolShelf()
    store = CrashingRunStore(crash_at=crash_at, after=after)
    stage = Rehearsal(
        contract=contract,
        store=store,
        clock=clock,
        approver=Fickle(words),
        shelf=shelf,
    )
    made = World(stage=stage, stored=store)
    for name in TOOLS:
        effects = Effects.REPEATABLE if name == "t:again" else Effects.ONCE
        shelf.add(name, does=made.tool(name, clock), effects=effects)
    return made


async def drive(made: World, model: Endless, run_id: str | None) -> LoopResult | None:
    """One process: None when it died."""
    made.stage.prepare([])
    # It has the port's method.
    made.stage.model = model  # type: ignore[assignment]
    made.stage.run.id = run_id or made.stage.run.id
    try:
        if run_id is None:
            return await made.stage.start()
        return await made.stage.resume(run_id)
    except Crash:
        return None
    except BaseExceptionGroup as group:
        if group.subgroup(Crash) is None:
            raise
        return None


def check(made: World, result: LoopResult) -> None:
    """What holds of every result."""
    assert_one_result_per_call(result.messages)
    assert_within_budget(result.ledger)
    admitted = [step for step in result.steps if step.admitted and "c" in step.step]
    names_of = [step.step for step in result.steps]
    assert len(names_of) == len(set(names_of)), "a step has one record"
    counted = result.ledger.used.get("steps", 0) + result.ledger.reserved.get("steps", 0)
    assert len(admitted) <= counted
    assert made.faults == []
    if not isinstance(result, ApprovalRequired | Suspended):
        assert result.ledger.reserved == {}
    if isinstance(result, LoopError):
        assert result.stop is not None
        assert result.stop.stage
        assert result.stop.code in {*StopCode, *CallCode}
    assert "turns" not in result.ledger.reserved
    assert "wrap_up" not in result.ledger.reserved


@ROUGH
@given(scripts, contracts, verdicts, st.sets(st.integers(2, 8), max_size=3), st.booleans())
def test_every_run_ends_and_keeps_its_word(
    script: list[Turn | Exception],
    contract: TaskContract,
    words: list[Verdict | None],
    crash_at: set[int],
    after: bool,
) -> None:
    """Properties 1, 2, 3, 4 and 9 over crashes.

    One result per call at every request and in every state, budgets at every instant, nothing
    without admission and record, a denial never runs and an approval once, and every run ends.
    """

    async def scenario() -> None:
        made = world(contract, crash_at, after, words)
        model = Endless(script, made.faults)
        result, labels = await until_over(made, model)
        check(made, result)
        assert all(join(low, high) == high for low, high in itertools.pairwise(labels))

        taken = result.ledger.used.get("turns", 0) + result.ledger.used.get("wrap_up", 0)
        assert model.asked[result.run_id] <= taken
        assert isinstance(contract.max_turns, int)
        assert result.ledger.used.get("turns", 0) <= contract.max_turns
        assert result.ledger.used.get("wrap_up", 0) <= 1
        starts = {key: n for key, n in made.begun.items() if key[0] == result.run_id}
        assert isinstance(contract.max_steps, int)
        assert len(starts) <= result.ledger.used.get("steps", 0) <= contract.max_steps
        assert all(n == 1 or made.tools[key] == "t:again" for key, n in made.begun.items())
        assert not made.stage.shelf.ran["t:no"]
        fickle = made.stage.approver
        assert isinstance(fickle, Fickle)
        gated = {key for key in made.begun if made.tools[key] == "t:gate"}
        assert gated <= fickle.approved
        assert not gated & fickle.denied

    asyncio.run(scenario())


async def until_over(made: World, model: Endless) -> tuple[LoopResult, list[Label]]:
    """Drive until nothing follows, over deaths and pauses; and the label after each drive."""
    run_id: str | None = None
    labels: list[Label] = []
    for _ in range(60):
        result = await drive(made, model, run_id)
        if result is not None:
            run_id = result.run_id
            labels.append(made.stage.run.label)
            if result.stop is None or result.stop.code != StopCode.PAUSED:
                return result, labels
            check(made, result)
            continue
        run_id = made.stage.run.id if run_id is None else run_id
        try:
            await made.stored.load(run_id)
        except RunNotFound:
            run_id = None
    raise AssertionError("the run did not end")


@ROUGH
@given(scripts, contracts)
def test_a_run_without_interference_has_a_proper_end(
    script: list[Turn | Exception], contract: TaskContract
) -> None:
    """Property 9 without a store: whatever is asked for, the run ends in one of the five kinds."""

    async def scenario() -> None:
        made = world(contract, set(), False, [])
        made.stage.store = None
        model = Endless(script, made.faults)
        result = await drive(made, model, None)

        assert result is not None
        check(made, result)
        assert model.asked[result.run_id] <= int(contract.max_turns) + 1
        admitted = {step.step for step in result.steps if step.admitted}
        assert {step for _, step in made.begun} <= admitted
        assert set(made.begun.values()) <= {1}
        if isinstance(result, LoopError):
            assert result.stop is not None
            assert result.stop.stage in {"model", "loop"}

    asyncio.run(scenario())


@ROUGH
@given(
    st.lists(st.sampled_from(["t:gate", "t:ok", "t:no"]), min_size=1, max_size=5),
    st.lists(st.sampled_from(["approve", "deny", "leave"]), min_size=5, max_size=5),
    st.booleans(),
)
def test_a_denied_call_never_runs_and_an_approved_one_once(
    asked: list[str], words: list[str], again: bool
) -> None:
    """Property 4 over repeated resumes with the same and with other words."""

    async def scenario() -> None:
        made = world(TaskContract(tool_policy=POLICY, max_consecutive_refused=9), set(), False, [])
        made.stage.approver = None
        wanted = tuple(
            ToolCall(id=f"c{index}", name=name, arguments="{}") for index, name in enumerate(asked)
        )
        script: list[Turn | Exception] = [asking(list(wanted), FinishReason.STOP, None), reply()]
        model = Endless(script, made.faults)
        result = await drive(made, model, None)
        assert result is not None
        pending = result.requests
        decisions = [
            Decision(request_id=request.request_id, verdict=word, decided_by="p")
            for request, word in zip(pending, words, strict=False)
            if word != "leave"
        ]
        for _ in range(2 if again else 1):
            made.stage.prepare([])
            # It has the port's method.
            made.stage.model = model  # type: ignore[assignment]
            asked_before = model.asked.total()
            result = await made.stage.resume(result.run_id, *decisions)
            if isinstance(result, ApprovalRequired):
                assert model.asked.total() == asked_before

        for request, word in zip(pending, words, strict=False):
            assert made.begun[result.run_id, request.step] == (1 if word == "approve" else 0)
        assert made.stage.shelf.ran["t:no"] == 0

    asyncio.run(scenario())


RICH: Final[list[Turn | Exception]] = [
    asking([ToolCall(id="a", name="t:ok", arguments="{}")], FinishReason.STOP, None),
    asking(
        [
            ToolCall(id="a", name=name, arguments="{}")
            for name in ("t:again", "t:gate", "t:ok", "t:no")
        ],
        FinishReason.STOP,
        None,
    ),
    reply(),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("second", range(4), ids=lambda n: f"again after {n}")
@pytest.mark.parametrize("first", range(1, 16))
def test_a_death_at_any_commit_runs_nothing_twice(
    first: int, second: int, parallel: int, after: bool
) -> None:
    """Dead before or after each commit, once or twice, a run ends and once-only tools ran once."""

    async def scenario() -> None:
        crashes = {first} if second == 0 else {first, first + second}
        contract = TaskContract(tool_policy=POLICY, max_parallel=parallel)
        made = world(contract, crashes, after, [Verdict.APPROVE] * 4)
        model = Endless(RICH, made.faults)
        result, _ = await until_over(made, model)
        check(made, result)

        assert isinstance(result, Completed)
        assert all(n == 1 or made.tools[key] == "t:again" for key, n in made.begun.items())
        assert not made.stage.shelf.ran["t:no"]
        assert model.asked[result.run_id] <= result.ledger.used["turns"]

    asyncio.run(scenario())


def test_the_world_can_end_well() -> None:
    """The hostile world is not so hostile that nothing ever completes."""

    async def scenario() -> None:
        made = world(TaskContract(tool_policy=POLICY), set(), False, [Verdict.APPROVE])
        script: list[Turn | Exception] = [
            asking([ToolCall(id="a", name="t:gate", arguments="{}")], FinishReason.STOP, None),
            reply(),
        ]
        result = await drive(made, Endless(script, made.faults), None)

        assert isinstance(result, Completed)
        assert made.begun == {(result.run_id, "t1c1"): 1}

    asyncio.run(scenario())
