"""Whole runs as a state machine: money, tokens, failing models, kill switches, crashes, long histories.

Whatever comes together and in which order: every call has one result, no budget is overdrawn at any
instant, nothing runs that was not admitted, recorded and, where a person is asked, approved, and what
has effects runs once; the label never goes down, and every drive comes to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import attrs
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime_pack import (
    AgentTaskRun,
    ApprovalRequest,
    ApprovalRequired,
    Completed,
    Decision,
    ExecutionContext,
    Grant,
    KillSwitch,
    Label,
    LoopResult,
    ModelPrice,
    PriceTable,
    Seal,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    TurnRequest,
    Usage,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.catalog import Effects
from runtime_pack.errors import ContractError, ModelFault, ModelRequestError, RunNotFound
from runtime_pack.labels import CLEAN, join
from runtime_pack.messages import AssistantMessage, Message, ToolMessage
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    ToolShelf,
    assert_one_result_per_call,
    assert_within_budget,
    calls,
    reply,
)

SEAL: Final = Seal(b"the key of whole runs in a test..")
TOOLS: Final = ("t:once", "t:again", "t:poll", "t:gate", "t:bad", "no:such")
PRICES: Final = PriceTable(models={"m": ModelPrice(input=Decimal(10), output=Decimal(20))})
STOPS: Final = ("now", "after_step", "pause", "kill now", "kill after_step", "die", "die")
HARMLESS: Final = frozenset({"t:again", "t:poll"})

words = st.sampled_from(["1", "2", "3"])
one_call = st.tuples(st.sampled_from(TOOLS), words)
batches = st.lists(one_call, min_size=1, max_size=3)
usages = st.sampled_from([None, (20, 5), (200, 50), (5000, 1)])
faults = st.sampled_from([ModelFault.TRANSPORT, ModelFault.RATE_LIMITED, ModelFault.AUTH])
# What the model does next: a batch with a usage, or a fault.
steps = st.lists(st.tuples(batches, usages) | faults, max_size=4)


@attrs.define
class Playing:
    """A model that plays what it is given, and then answers."""

    world: WholeRuns
    model_name: str = "m"
    script: list[Any] = attrs.field(factory=list)

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        self.world.asked += 1
        self.world.look(request.messages)
        self.world.meddle("model")
        if not self.script or not request.tools:
            return attrs.evolve(reply("x" * 40), usage=Usage(input_tokens=9, output_tokens=9))
        planned = self.script.pop(0)
        if isinstance(planned, ModelFault):
            raise ModelRequestError(fault=planned, message="planned")
        batch, usage = planned
        asked = [(f"c{n}", tool, {"x": word}) for n, (tool, word) in enumerate(batch)]
        told = None if usage is None else Usage(input_tokens=usage[0], output_tokens=usage[1])
        return calls(*asked, usage=told)


class Short:
    """Sums up whatever it is given."""

    async def summarise(self, messages: Sequence[Message]) -> str:
        return f"{len(messages)} messages"


async def no_evil(messages: Sequence[Message]) -> str | None:
    """An input guard."""
    said = [m.text for m in messages if isinstance(m, UserMessage)]
    return "evil" if "evil" in said else None


class WholeRuns(RuleBasedStateMachine):
    """One run after the other; each drive is a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovableClock()
        self.store = CrashingRunStore(crash_at=(), seal=SEAL)
        self.model = Playing(self)
        self.shelf = ToolShelf()
        self.shelf.add("t:once", does=self.works, price=Decimal("0.001"))
        self.shelf.add("t:again", does=self.works, effects=Effects.REPEATABLE)
        self.shelf.add("t:poll", does=self.works, effects=Effects.REPEATABLE, poll=True)
        self.shelf.add("t:gate", does=self.works)
        self.shelf.add("t:bad", does=self.fails, exclusive=True)
        self.contract = TaskContract(
            max_steps=7,
            max_turns=7,
            max_cost=Decimal("0.4"),
            max_tokens=9000,
            max_duration_seconds=900,
            max_context_bytes=1500,
            max_parallel=2,
            tool_policy=ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")]),
        )
        self.faults: list[str] = []
        self.ran: Counter[tuple[str, str, str]] = Counter()
        self.asked = 0
        self.number = 1
        self.begun = False
        self.planned: tuple[str, str] | None = None
        self.label: Label = CLEAN
        self.result: LoopResult | None = None
        self.requests: dict[tuple[str, str], list[str]] = {}
        self.approved: set[str] = set()
        # Calls that were started and whose outcome nobody knows, by run, tool and argument.
        self.doubts: set[tuple[str, str, str]] = set()
        self.run: AgentTaskRun | None = None

    # ── what goes on inside a drive ───────────────────────────────────────────────────────────

    def look(self, messages: Sequence[Message] = ()) -> None:
        """What holds at every instant; the loop would swallow a failure in here, so it is noted."""
        self.doubt(messages)
        try:
            assert_one_result_per_call(messages)
            if self.run is not None:
                assert_within_budget(self.run.view())
        except AssertionError as fault:
            self.faults.append(str(fault))

    def doubt(self, messages: Sequence[Message]) -> None:
        """Note what the model is told of: those calls may have taken effect."""
        asked = {
            call.id: call
            for message in messages
            if isinstance(message, AssistantMessage)
            for call in message.calls
        }
        for message in messages:
            if not isinstance(message, ToolMessage) or message.name in HARMLESS:
                continue
            if self.run is not None and "OUTCOME_UNKNOWN" in message.text:
                given: Any = asked[message.call_id].arguments
                self.doubts.add((self.run.id, message.name, given.get("x", "")))

    def meddle(self, where: str) -> None:
        """Stop the run from inside, where it was planned to."""
        if self.planned is None or self.planned[1] != where or self.run is None:
            return
        how, self.planned = self.planned[0], None
        if how == "pause":
            self.run.pause("planned")
        elif how == "die":
            # What the tool does has happened, and nothing of it is saved.
            self.store.crash_in(1)
        elif how.startswith("kill"):
            self.switch.engage("planned")
        else:
            self.run.cancel("planned", how)

    async def works(self, context: ExecutionContext) -> str:
        """A tool: what must hold when one runs is looked at, and the run may be stopped meanwhile."""
        name, given = self.shelf.calls[-1]
        doubt = (context.run, name, str(given.get("x", "")))
        named = self.requests.get((context.run, context.step), [])
        if doubt in self.doubts and not self.approved.intersection(named):
            self.faults.append(f"{context.step} repeats a call in doubt, and nobody was asked")
        self.doubts.discard(doubt)
        self.ran[context.run, context.step, name] += 1
        self.look()
        records = [] if self.run is None else [r for r in self.run.steps if r.step == context.step]
        if not records or not records[-1].admitted:
            self.faults.append(f"{context.step} runs without a record")
        self.meddle("tool")
        await asyncio.sleep(0)
        return f"{name} {self.ran[context.run, context.step, name]} {'y' * 60}"

    async def fails(self, context: ExecutionContext) -> str:
        """A tool that does its work and then fails."""
        await self.works(context)
        raise ValueError(context.step)

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    def process(self) -> Any:
        now = self.planned is not None and self.planned[0] == "kill now"
        self.switch = KillSwitch(mode="now" if now else "after_step")
        self.run = create_agent_task_run(
            self.contract,
            run_id=f"whole-{self.number}",
            clock=self.clock,
            seal=SEAL,
            prices=PRICES,
            summariser=Short(),
            input_guards=[no_evil],
            kill_switch=self.switch,
        )
        return self.run.guard_runtime(
            create_agent_runtime(model=self.model, tools=self.shelf.tools)
        )

    async def drive(self, **more: Any) -> LoopResult:
        runtime = self.process()
        if not self.begun:
            words = TurnInput(messages=[UserMessage(text="go")], tool_catalog=self.shelf.specs)
            return await run_governed_agent_loop(
                runtime=runtime, execute_turn_input=words, store=self.store
            )
        return await resume_governed_agent_loop(
            runtime=runtime, store=self.store, run_id=f"whole-{self.number}", **more
        )

    def go(self, **more: Any) -> LoopResult | None:
        """One process to its end, or to its death; it never hangs."""
        waiting = () if more or self.result is None else self.result.requests
        before = self.asked
        try:
            result = asyncio.run(asyncio.wait_for(self.drive(**more), timeout=20))
        except Crash:
            result = None
        except BaseExceptionGroup as group:
            if group.subgroup(Crash) is None:
                raise
            result = None
        self.store.crash_in(10**9)
        self.planned = None
        # What nobody answered in time is answered with that, and the model goes on.
        if before != self.asked and not all(r.expired(self.clock.now()) for r in waiting):
            self.faults.append("the model was asked while a person was")
        self.note(result)
        return result

    def note(self, result: LoopResult | None) -> None:
        self.begun = self.begun or (self.store.commits > 0 and self.is_stored())
        if result is None:
            self.result = None
            return
        self.look(result.messages)
        if self.run is not None and result.kind != "error":
            if join(self.label, self.run.label) != self.run.label:
                self.faults.append("the label went down")
            self.label = self.run.label
        for request in result.requests:
            self.requests.setdefault((request.run, request.step), []).append(request.request_id)
        self.result = result
        if result.kind in {"error", "cancelled"} and result.state is None:
            self.number, self.begun, self.result, self.label = self.number + 1, False, None, CLEAN

    def is_stored(self) -> bool:
        try:
            asyncio.run(self.store.load(f"whole-{self.number}"))
        except RunNotFound:
            return False
        return True

    # ── rules ─────────────────────────────────────────────────────────────────────────────────

    @rule(script=steps)
    def model_asks(self, script: list[Any]) -> None:
        """The model does a few things; a run that is over starts anew, a completed one goes on."""
        self.model.script = script
        done = isinstance(self.result, Completed) and self.begun
        self.go(**({"message": "more"} if done else {}))

    @rule(how=st.sampled_from(["die", "die", "pause"]), word=words)
    def model_insists(self, how: str, word: str) -> None:
        """It is cut in the middle of a call, and asks for the same call again after that."""
        for planned in ((how, "tool"), None):
            self.planned = planned
            self.model.script = [([("t:once", word)], None)]
            done = isinstance(self.result, Completed) and self.begun
            self.go(**({"message": "more"} if done else {}))

    @precondition(lambda self: isinstance(self.result, ApprovalRequired))
    @rule(data=st.data(), verdict=st.sampled_from(["approve", "approve", "deny"]), script=steps)
    def people_decide(self, data: st.DataObject, verdict: str, script: list[Any]) -> None:
        """A person answers one request, maybe too late."""
        requests: Sequence[ApprovalRequest] = () if self.result is None else self.result.requests
        request = data.draw(st.sampled_from(requests))
        if verdict == "approve" and not request.expired(self.clock.now()):
            self.approved.add(request.request_id)
        self.model.script = script
        word = Decision(request_id=request.request_id, verdict=verdict, decided_by="ann")
        self.go(decisions=[word])

    @precondition(lambda self: isinstance(self.result, Suspended) and self.begun)
    @rule(budget=st.sampled_from(["steps", "turns", "tokens", "cost"]), script=steps)
    def somebody_grants(self, budget: str, script: list[Any]) -> None:
        """A limit is raised by a little."""
        amount = Decimal("0.2") if budget == "cost" else 3
        self.model.script = script
        try:
            self.go(grants=[Grant(budget, amount, "ann", "a little more")])
        except ContractError:
            return

    @precondition(lambda self: self.result is not None and self.begun)
    @rule(said=st.sampled_from(["hello", "evil"]), abandon=st.booleans(), script=steps)
    def user_says(self, said: str, abandon: bool, script: list[Any]) -> None:
        """The user says something, while calls wait or not; the input guard may refuse it."""
        self.model.script = script
        self.go(message=said, abandon=abandon)

    @rule(how=st.sampled_from(STOPS), where=st.sampled_from(["tool", "model"]))
    def it_will_be_stopped(self, how: str, where: str) -> None:
        """At the next tool or turn: cancelled, paused, or by the kill switch."""
        self.planned = how, where

    @rule(commits=st.integers(1, 6), after=st.booleans())
    def the_process_will_die(self, commits: int, after: bool) -> None:
        """At one of the next saves."""
        self.store.crash_in(commits, after=after)

    @rule(seconds=st.sampled_from([1, 60, 80 * 3600]))
    def time_passes(self, seconds: int) -> None:
        """Requests expire, and what a provider asked to wait is over."""
        self.clock.move(seconds)

    # ── what always holds ─────────────────────────────────────────────────────────────────────

    @invariant()
    def nothing_was_wrong_inside(self) -> None:
        """Results, budgets, records and labels, as they were seen while it ran."""
        assert self.faults == []

    @invariant()
    def what_has_effects_runs_once(self) -> None:
        """Whatever died and was taken up again."""
        for (_, step, tool), times in self.ran.items():
            assert times == 1 or tool in {"t:again", "t:poll"}, (step, tool, times)

    @invariant()
    def what_is_gated_was_approved(self) -> None:
        """That very step, by a person, in time."""
        for run, step, tool in self.ran:
            named = self.requests.get((run, step), [])
            assert tool != "t:gate" or self.approved.intersection(named), step
            # What a person was asked about for another reason is approved as well.
            assert not named or self.approved.intersection(named), step

    @invariant()
    def executions_are_admitted_steps(self) -> None:
        """Of the run in hand: no more ran than was admitted, no more was admitted than allowed."""
        if self.result is None:
            return
        ran = {step for run, step, _ in self.ran if run == self.result.run_id}
        admitted = {r.step for r in self.result.steps if r.admitted}
        taken = self.result.ledger.used.get("steps", 0)
        # A call that a pause stopped has no record until it is taken up again; its step is held.
        assert ran <= admitted or not isinstance(self.result, Completed)
        assert len(ran) <= taken + self.result.ledger.reserved.get("steps", 0)


WholeRuns.TestCase.settings = settings(
    max_examples=60,
    phases=[Phase.generate],
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWholeRuns = WholeRuns.TestCase


def test_a_model_that_is_answered_for_a_late_person_may_ask_for_another() -> None:
    """The first request is expired when the model is asked, and the second is a new one."""
    world = WholeRuns()
    for _ in range(2):
        world.model_asks(script=[([("t:gate", "2")], (20, 5))])
        world.time_passes(seconds=80 * 3600)

    assert isinstance(world.result, ApprovalRequired)
    assert (2, []) == (len(world.requests), world.faults)
