"""Approvals as a state machine: people, the clock, the store and crashes are all against the run.

Whatever they do and in which order: what was denied, expired or refused never runs, what was approved
runs at most once and with the arguments that a person saw or wrote, the model is not asked while
anything is pending, and the label never goes down.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    Decision,
    ExecutionContext,
    Grant,
    Label,
    LoopError,
    LoopResult,
    MemoryRunStore,
    Seal,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnRequest,
    create_agent_runtime,
    create_agent_task_run,
)
from runtime_pack.errors import RunConflict, StoreError
from runtime_pack.labels import CLEAN, join
from runtime_pack.loop import resume_governed_agent_loop
from runtime_pack.messages import Json
from runtime_pack.seal import check_request
from runtime_pack.state import open_head
from runtime_pack.testing import (
    Crash,
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    assert_within_budget,
    calls,
    reply,
)

KEY: Final = b"m" * 32
HOURS: Final = 72
ASK: Final = (
    ToolRule(tool="t:gate", approval_class="request_user", reason="it writes"),
    ToolRule(tool="t:gate", approval_class="request_user", when_label="external"),
)
SHUT: Final = ToolRule(tool="t:gate", approval_class="deny", reason="closed for now")


class HostileStore(MemoryRunStore):
    """Fails as it is told: `troubles` holds what happens at the next commits."""

    def __init__(self) -> None:
        super().__init__(Seal(KEY))
        self.troubles: list[str] = []

    async def load(self, run_id: str) -> Any:
        saved = await super().load(run_id)
        await asyncio.sleep(0)
        return saved

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        trouble = self.troubles.pop(0) if self.troubles else ""
        if trouble == "conflict":
            raise RunConflict(run_id, expected, expected + 1)
        if trouble == "down":
            raise StoreError("down")
        if trouble == "dead before":
            raise Crash
        revision = await super().commit(run_id, expected=expected, head=head, rows=rows)
        if trouble == "dead after":
            raise Crash
        return revision


@attrs.define
class Batches:
    """A model that asks for batches of calls, never for the same one twice, and answers in between."""

    store: HostileStore
    batches: list[list[str]]
    asked: int = 0
    faults: list[str] = attrs.field(factory=list)

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        saved = await self.store.load(context.run)
        head: dict[str, Any] = open_head(saved, Seal(KEY))
        if head["state"]["at"] != "thinking":
            self.faults.append(f"asked while the run was {head['state']['at']}")
        self.asked += 1
        if not self.asked % 3:
            return reply()
        batch = self.batches[self.asked % len(self.batches)]
        return calls(
            *(
                (f"c{number}", tool, f'{{"x":"{self.asked}.{number}"}}')
                for number, tool in enumerate(batch)
            )
        )


verdicts = st.sampled_from(["approve", "approve", "deny"])
edits = st.sampled_from([None, None, None, {"x": "edited"}, {"x": 1}])
remembers = st.sampled_from([None, None, {}, {"fields": ["x"], "max_uses": 1}])
troubles = st.lists(
    st.sampled_from(["", "", "conflict", "down", "dead before", "dead after"]), max_size=5
)


class Approvals(RuleBasedStateMachine):
    """One run, and everybody against it. A word on a request is in `words` from before it is brought."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = MovableClock()
        self.store = HostileStore()
        self.run_id = ""
        self.label: Label = CLEAN
        self.ran: Counter[str] = Counter()
        self.ran_with: dict[str, Mapping[str, Json]] = {}
        self.requests: dict[str, ApprovalRequest] = {}
        self.pending: tuple[ApprovalRequest, ...] = ()
        self.words: dict[str, list[Decision]] = {}
        self.in_time: set[str] = set()
        self.shut = False
        self.ran_while_shut: list[str] = []
        self.label_fell = False
        self.broken: list[str] = []

    # ── the world ─────────────────────────────────────────────────────────────────────────────

    @initialize(
        batches=st.lists(
            st.lists(st.sampled_from(["t:gate", "t:gate", "t:read"]), min_size=1, max_size=3),
            min_size=1,
            max_size=3,
        )
    )
    def start(self, batches: list[list[str]]) -> None:
        """A run that asks for something, in a world that is still well."""
        self.model = Batches(self.store, batches)
        self.shelf = ToolShelf().add("t:gate", does=self.works).add("t:read")
        stage = self.stage()
        self.note(asyncio.run(stage.start()), stage)

    async def works(self, context: ExecutionContext) -> Json:
        """A gated tool: what it was run with is noted before it does anything."""
        self.ran[context.step] += 1
        self.ran_with[context.step] = self.shelf.calls[-1][1]
        if self.shut:
            self.ran_while_shut.append(context.step)
        await asyncio.sleep(0)
        return f"done {context.step}"

    def contract(self) -> TaskContract:
        rules = (*ASK, SHUT) if self.shut else ASK
        return TaskContract(
            tool_policy=ToolPolicy(rules),
            max_consecutive_refused=50,
            max_turns=1000,
            max_steps=1000,
        )

    def stage(self) -> Rehearsal:
        stage = Rehearsal(
            shelf=self.shelf, contract=self.contract(), store=self.store, clock=self.clock
        )
        # It has the port's method.
        stage.model = self.model  # type: ignore[assignment]
        return stage

    def resume(self, *decisions: Decision, **more: Any) -> LoopResult | None:
        """One process; None when it died."""
        for decision in decisions:
            self.words.setdefault(decision.request_id, []).append(decision)
            request = self.requests.get(decision.request_id)
            if request is not None and not request.expired(self.clock.now()):
                self.in_time.add(decision.request_id)
        stage, before, waited = self.stage(), self.model.asked, bool(self.pending)
        try:
            result = asyncio.run(stage.resume(self.run_id, *decisions, **more))
        except Crash:
            result = None
        except BaseExceptionGroup as group:
            if group.subgroup(Crash) is None:
                raise
            result = None
        if waited and not decisions and isinstance(result, ApprovalRequired):
            same = {r.request_id for r in result.requests} & {r.request_id for r in self.pending}
            if same and self.model.asked != before:
                self.broken.append("the model was asked while a request stood open")
        self.note(result, stage)
        return result

    def note(self, result: LoopResult | None, stage: Rehearsal) -> None:
        if result is None:
            return
        self.run_id = result.run_id
        assert_one_result_per_call(result.messages)
        assert_within_budget(result.ledger)
        if isinstance(result, LoopError):
            return
        self.label_fell |= join(self.label, stage.run.label) != stage.run.label
        self.label = stage.run.label
        self.pending = result.requests
        for request in result.requests:
            check_request(Seal(KEY), request)
            self.requests[request.request_id] = request

    # ── people ────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), verdict=verdicts, edit=edits, remember=remembers)
    def decide(self, data: st.DataObject, verdict: str, edit: Any, remember: Any) -> None:
        """A person answers one of the pending requests."""
        request = data.draw(st.sampled_from(self.pending))
        more = {"edited_args": edit, "remember": remember} if verdict == "approve" else {}
        self.resume(
            Decision(request_id=request.request_id, verdict=verdict, decided_by="ann", **more)
        )

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), verdict=verdicts)
    def decide_again(self, data: st.DataObject, verdict: str) -> None:
        """Somebody answers a request of any age, whatever became of it."""
        request_id = data.draw(st.sampled_from(list(self.requests)))
        self.resume(Decision(request_id=request_id, verdict=verdict, decided_by="bob"))

    @rule()
    def forge(self) -> None:
        """A decision about nothing changes nothing."""
        before = asyncio.run(self.store.load(self.run_id))
        ran = self.ran.copy()
        result = self.resume(Decision(request_id="apr-no", verdict="approve", decided_by="eve"))

        assert isinstance(result, LoopError)
        assert ran == self.ran
        assert before == asyncio.run(self.store.load(self.run_id))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), first=verdicts, second=verdicts)
    def race(self, data: st.DataObject, first: str, second: str) -> None:
        """Two processes take the run up at once with a word each on one request."""
        request = data.draw(st.sampled_from(self.pending))
        words = [
            Decision(request_id=request.request_id, verdict=verdict, decided_by=name)
            for verdict, name in ((first, "ann"), (second, "bob"))
        ]
        self.words.setdefault(request.request_id, []).extend(words)
        if not request.expired(self.clock.now()):
            self.in_time.add(request.request_id)
        self.store.troubles.clear()

        async def attempt(word: Decision) -> LoopResult:
            run = create_agent_task_run(self.contract(), clock=self.clock)
            inner = create_agent_runtime(model=self.model, tools=self.shelf.tools)
            return await resume_governed_agent_loop(
                runtime=run.guard_runtime(inner),
                store=self.store,
                run_id=self.run_id,
                decisions=[word],
            )

        async def both() -> list[LoopResult]:
            return list(await asyncio.gather(*(attempt(word) for word in words)))

        results = asyncio.run(both())
        lost = [result for result in results if isinstance(result, LoopError)]
        assert lost, "one of two has to lose"
        self.resume()

    # ── everybody else ────────────────────────────────────────────────────────────────────────

    @rule(what=troubles)
    def trouble(self, what: list[str]) -> None:
        """The next commits go wrong, or the process dies at them."""
        self.store.troubles = what

    @rule(hours=st.sampled_from([1, 24, HOURS]))
    def wait(self, hours: int) -> None:
        """Time passes while nobody is there."""
        self.clock.move(hours * 3600)

    @rule()
    def take_up(self) -> None:
        """A process takes the run up and brings nothing."""
        self.resume()

    @rule(abandon=st.booleans())
    def message(self, abandon: bool) -> None:
        """The user says something, while calls wait or not."""
        self.resume(message="go on", abandon=abandon)

    @rule(budget=st.sampled_from(["steps", "turns"]))
    def grant(self, budget: str) -> None:
        """Somebody raises a limit; nothing that waits is any nearer for it."""
        try:
            self.resume(grants=[Grant(budget, 5, "ann", "why not")])
        except ValueError:
            return

    @rule()
    def shut_or_open(self) -> None:
        """The operator denies the gated tool, or no longer does."""
        self.shut = not self.shut

    # ── what always holds ─────────────────────────────────────────────────────────────────────

    @invariant()
    def nothing_runs_twice(self) -> None:
        """However often a run is taken up, by however many."""
        assert all(count == 1 for count in self.ran.values()), self.ran

    @invariant()
    def nothing_runs_that_nobody_approved(self) -> None:
        """In time, for that very step; or a remembered approval of those very arguments was used."""
        for step in self.ran:
            approved = [
                word
                for request in self.requests.values()
                if request.step == step and request.request_id in self.in_time
                for word in self.words.get(request.request_id, ())
                if word.verdict == "approve"
            ]
            assert approved or self.is_remembered(step), step

    def is_remembered(self, step: str) -> bool:
        """Whether a person said, in time, to remember an approval of what this step ran with."""
        asked = any(request.step == step for request in self.requests.values())
        return not asked and any(
            self.ran_with[step] == (word.edited_args or self.requests[request_id].arguments)
            for request_id, words in self.words.items()
            for word in words
            if request_id in self.in_time
            and word.verdict == "approve"
            and word.remember is not None
        )

    @invariant()
    def what_ran_was_seen_or_written_by_a_person(self) -> None:
        """The arguments of the request, or those of an edit of it."""
        for step, arguments in self.ran_with.items():
            shown = [r.arguments for r in self.requests.values() if r.step == step]
            written = [
                word.edited_args
                for request in self.requests.values()
                if request.step == step
                for word in self.words.get(request.request_id, ())
                if word.edited_args is not None
            ]
            assert not shown or arguments in [*shown, *written], (arguments, shown, written)

    @invariant()
    def a_deny_of_the_operator_beats_everything(self) -> None:
        """Approved, remembered or edited: while the tool is shut it does not run."""
        assert self.ran_while_shut == []

    @invariant()
    def the_model_waits_and_labels_stay(self) -> None:
        """No turn while anything is pending, no label that falls."""
        assert not self.label_fell
        assert self.broken == []
        if hasattr(self, "model"):
            assert self.model.faults == []


Approvals.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestApprovals = Approvals.TestCase


def test_a_run_of_the_machine_can_end_well() -> None:
    """The world is not so hostile that nothing is ever approved and run."""
    machine = Approvals()
    machine.start([["t:gate", "t:read"]])
    (request,) = machine.pending
    machine.resume(Decision(request_id=request.request_id, verdict="approve", decided_by="ann"))
    while machine.pending:
        machine.resume(
            *(
                Decision(request_id=r.request_id, verdict="approve", decided_by="ann")
                for r in machine.pending
            )
        )

    assert machine.ran
    machine.nothing_runs_that_nobody_approved()
    machine.what_ran_was_seen_or_written_by_a_person()
