"""What fails around the loop: log, emitter, store, preflight, policy; and the wrap-up turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson
import pytest

from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    Completed,
    Event,
    ExecutionContext,
    LoopError,
    LoopResult,
    MemoryRunStore,
    Seal,
    StopCode,
    Suspended,
    SystemMessage,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    verify_log,
)
from runtime_pack.catalog import Effects
from runtime_pack.errors import AuditError, EmitterError, StoreError
from runtime_pack.events import EventCode
from runtime_pack.labels import CLEAN
from runtime_pack.loop.drive import WRAP_UP_NOTICE
from runtime_pack.messages import AssistantMessage, Json, Message, ToolMessage
from runtime_pack.ports import TurnRequest
from runtime_pack.state import SavedRun
from runtime_pack.testing import (
    FaultyRunStore,
    ListEmitter,
    MovableClock,
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    calls,
    escalate,
    reply,
)

ONE = calls(("a", "t:echo", "{}"))


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


def stop_of(result: LoopResult) -> tuple[str, str | None]:
    assert result.stop is not None
    return str(result.stop.code), result.stop.stage


# ── wrap-up ─────────────────────────────────────────────────────────────────────────────────────


def test_a_wrap_up_turn_has_no_tools_a_notice_and_its_own_line() -> None:
    """One turn beyond max_turns; its text is the result's; the kind stays suspended."""
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), contract=TaskContract(max_turns=2))

    result = asyncio.run(stage.play(ONE, ONE, reply("as far as I got")))

    messages, tools = stage.model.requests[2]
    assert isinstance(result, Suspended)
    assert (result.text, tools) == ("as far as I got", ())
    assert messages[-1] == UserMessage(text=WRAP_UP_NOTICE)
    assert (result.ledger.used["turns"], result.ledger.used["wrap_up"]) == (2, 1)


@pytest.mark.parametrize(
    "contract",
    [
        TaskContract(max_turns=1),
        TaskContract(max_turns=2, wrap_up=False, max_steps=0),
        TaskContract(max_turns=0),
    ],
    ids=["one turn", "switched off", "no turn"],
)
def test_without_a_wrap_up_nobody_is_asked_again(contract: TaskContract) -> None:
    """With a single turn, or when it is switched off, a soft stop is a stop."""
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), contract=contract)
    script = [ONE] if contract.max_turns else []

    result = asyncio.run(stage.play(*script))

    assert isinstance(result, Suspended)
    assert "wrap_up" not in result.ledger.used


def test_the_loops_limit_of_one_turn_has_no_wrap_up_after_resume_either() -> None:
    """The lower limit is in the saved ledger, and decides again when the run is taken up."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo"),
            contract=TaskContract(tool_policy=policy),
            store=MemoryRunStore(),
        )
        stage.prepare([ONE])
        first = await stage.start(max_turns=1)
        result = await stage.go_on(first, message="go on", abandon=True)

        assert isinstance(first, ApprovalRequired)
        assert isinstance(result, Suspended)
        assert result.ledger.limits.counts["turns"] == 1

    asyncio.run(scenario())


def test_a_wrap_up_that_asks_for_calls_runs_none() -> None:
    """What the model asks for in its last turn is neither run nor kept."""
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), contract=TaskContract(max_steps=1))
    two = calls(("a", "t:echo", "{}"), ("b", "t:echo", "{}"))

    result = asyncio.run(stage.play(two, ONE))

    assert stage.shelf.ran["t:echo"] == 1
    assert isinstance(result, Suspended)
    assert result.text == ""


def test_a_spent_run_stays_spent() -> None:
    """Taking it up makes no model call and no second wrap-up, with a message or without."""

    async def scenario() -> None:
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo"),
            contract=TaskContract(max_turns=2),
            store=MemoryRunStore(),
        )
        first = await stage.play(ONE, ONE, reply("end"))
        again = await stage.go_on(first)
        asked = await stage.go_on(first, message="please")

        assert (again.kind, again.text, again.ledger.used) == (
            first.kind,
            "end",
            first.ledger.used,
        )
        assert stop_of(asked) == (StopCode.BUDGET_EXHAUSTED, None)

    asyncio.run(scenario())


def test_a_pause_during_the_wrap_up_gives_no_second_one() -> None:
    """The turn was taken from the ledger; the notice stands once."""

    async def scenario() -> None:
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo"),
            contract=TaskContract(max_turns=2),
            store=MemoryRunStore(),
        )

        class Pausing(ScriptedModel):
            async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
                turn = await super().execute_turn(request, context)
                if not request.tools:
                    stage.run.pause("now")
                    await asyncio.sleep(3600)
                return turn

        stage.prepare([])
        stage.model = Pausing([ONE, ONE, reply("never")])
        first = await stage.start()
        result = await stage.go_on(first)

        assert isinstance(first, Suspended)
        assert stop_of(first)[0] == StopCode.PAUSED
        assert stop_of(result)[0] == StopCode.BUDGET_EXHAUSTED
        assert result.ledger.used["wrap_up"] == 1
        texts = [message.text for message in result.messages]
        assert texts.count(WRAP_UP_NOTICE) == 1

    asyncio.run(scenario())


# ── statuses ────────────────────────────────────────────────────────────────────────────────────


def test_escalate_hands_over_and_a_message_goes_on() -> None:
    """The run is suspended with the model's words; a person's answer continues it."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore())
        first = await stage.play(escalate("which one?"))
        waiting = await stage.go_on(first)
        result = await stage.go_on(first, reply("that one"), message="the red one")

        assert (stop_of(first)[0], first.text) == (StopCode.ESCALATED, "which one?")
        assert isinstance(waiting, Suspended)
        assert isinstance(result, Completed)
        assert result.ledger.used["turns"] == 2

    asyncio.run(scenario())


def test_a_completed_run_answers_a_further_message_on_the_same_ledger() -> None:
    """Taking it up without a message changes nothing."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore())
        first = await stage.play(reply("one"))
        same = await stage.go_on(first)
        more = await stage.go_on(first, reply("two"), message="and?")

        assert (same.kind, same.text) == (first.kind, "one")
        assert (more.text, more.ledger.used["turns"]) == ("two", 2)

    asyncio.run(scenario())


def test_a_cut_reply_is_marked() -> None:
    """A text that was cut by its limit is completed with a stop that says so."""
    # The word that the enum stores.
    turn = reply("half a sen", finish="length")  # type: ignore[arg-type]

    result = asyncio.run(Rehearsal().play(turn))

    assert isinstance(result, Completed)
    assert stop_of(result)[0] == StopCode.TRUNCATED_REPLY


def test_the_history_that_a_run_starts_from_must_be_whole() -> None:
    """A call without a result, a result out of place or a doubled id is refused at construction."""
    call = AssistantMessage(calls=ONE.calls)
    result = ToolMessage(call_id="a", name="t:echo", text="x", ok=True)
    histories: list[list[Message]] = [
        [],
        [call],
        [result],
        [call, result, call, result],
        [call, call, result],
    ]
    for messages in histories:
        with pytest.raises(ValueError):
            TurnInput(messages=messages)

    assert len(TurnInput(messages=[SystemMessage(text="s"), call, result]).messages) == 3


def test_ids_of_the_history_are_taken() -> None:
    """A call of the run gets a suffix when its id stands in the history it started from."""

    async def scenario() -> None:
        shelf = ToolShelf().add("t:echo")
        model = ScriptedModel([ONE, reply()])
        old = ToolMessage(call_id="a", name="t:echo", text="x", ok=True)
        result = await run_governed_agent_loop(
            runtime=create_agent_runtime(model=model, tools=shelf.tools),
            execute_turn_input=TurnInput(
                messages=[AssistantMessage(calls=ONE.calls), old], tool_catalog=shelf.specs
            ),
        )

        ids = [m.call_id for m in result.messages if isinstance(m, ToolMessage)]
        assert ids == ["a", "a-2"]

    asyncio.run(scenario())


# ── log and emitter ─────────────────────────────────────────────────────────────────────────────


class Budgeted(AuditLog):
    """A log whose disk is full after some writes."""

    def __init__(self, path: Path, *, writes: int) -> None:
        self.left = writes + 1  # one for the opening line
        super().__init__(path)

    def flush(self) -> None:
        if self._buffer:
            self.left -= 1
            if self.left < 0:
                self._failed = True
                raise AuditError("no space left")
        super().flush()


@pytest.mark.parametrize("writes", range(4))
def test_nothing_runs_that_the_log_could_not_take(tmp_path: Path, writes: int) -> None:
    """A write that fails stops the run before the model, or the tool, that it speaks of."""

    async def scenario() -> None:
        audit = Budgeted(tmp_path / "log.jsonl", writes=writes)
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"), audit=audit)
        stage.prepare([ONE, reply()])
        result = await stage.start()

        assert isinstance(result, LoopError)
        assert stop_of(result) == (StopCode.AUDIT_FAILED, "audit")
        assert len(stage.model.requests) == (0, 0, 1, 1)[writes]
        assert stage.shelf.ran["t:echo"] == (0, 0, 0, 1)[writes]
        audit.close()

    asyncio.run(scenario())


def test_an_emitter_that_raises_stops_the_run() -> None:
    """The action that caused the event does not happen, and nothing stays reserved."""
    policy = ToolPolicy([ToolRule(tool="t:bad", approval_class="deny")])
    stage = Rehearsal(
        shelf=ToolShelf().add("t:echo").add("t:bad"),
        contract=TaskContract(tool_policy=policy),
        emitter=ListEmitter(fail_at=1),
    )
    stage.prepare([calls(("a", "t:echo", "{}"), ("b", "t:bad", "{}"))])

    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert stop_of(result) == (StopCode.EMITTER_FAILED, "emitter")
    assert stage.shelf.ran == {}
    assert result.ledger.reserved == {}


def test_a_denial_of_policy_reaches_the_emitter_once() -> None:
    """One event, with the code and the step, and no arguments."""
    policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="deny")])
    emitter = ListEmitter()
    stage = Rehearsal(
        shelf=ToolShelf().add("t:echo"),
        contract=TaskContract(tool_policy=policy),
        emitter=emitter,
    )

    asyncio.run(stage.play(calls(("a", "t:echo", '{"x":"SENTINEL"}')), reply()))

    assert [event.code for event in emitter.events] == [EventCode.STP004D]
    assert "SENTINEL" not in str(emitter.events)


@pytest.mark.parametrize("error", [AuditError("x"), EmitterError("x")])
@pytest.mark.parametrize("batch", [False, True], ids=["alone", "in a batch"])
def test_a_tool_that_could_not_record_stops_the_run(error: Exception, batch: bool) -> None:
    """What a tool raises of log or emitter is not a tool error; siblings are ended, not orphaned."""

    async def scenario() -> None:
        async def forever(context: ExecutionContext) -> Json:
            await asyncio.sleep(3600)
            return None

        shelf = ToolShelf().add("t:echo", error).add("t:long", does=forever)
        stage = Rehearsal(shelf=shelf)
        asked = [("a", "t:echo", "{}"), ("b", "t:long", "{}")]
        stage.prepare([calls(*(asked if batch else asked[:1]))])
        result = await stage.start()

        assert isinstance(result, LoopError)
        assert stop_of(result)[1] in {"audit", "emitter"}
        assert len(asyncio.all_tasks()) == 1
        assert stage.run.held == {}

    asyncio.run(scenario())


# ── store ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("fail_at", range(1, 7))
def test_a_save_that_fails_is_an_error_and_nothing_runs_twice(fail_at: int, after: bool) -> None:
    """STORE_FAILED; taken up again, a once-only tool has run at most once."""

    async def scenario() -> None:
        store = FaultyRunStore(fail_at=fail_at, after=after)
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"), store=store)
        stage.prepare([ONE, reply()])
        result = await stage.start()
        assert isinstance(result, LoopError | Completed)
        if isinstance(result, Completed):
            return
        assert stop_of(result) == (StopCode.STORE_FAILED, "store")
        assert stage.run.ledger.view(0).reserved.get("turns", 0) == 0
        if result.state is None:
            return
        # Not the call that may be in doubt: that one would wait for a person.
        stage.prepare([calls(("z", "t:echo", '{"x":"z"}')), reply(), reply()])
        taken_up = await stage.resume(result.run_id)

        assert isinstance(taken_up, Completed)
        assert stage.shelf.ran["t:echo"] <= 2
        by_step = [step.step for step in taken_up.steps if step.executed == "yes"]
        assert len(by_step) == len(set(by_step))

    asyncio.run(scenario())


@pytest.mark.parametrize("parallel", [1, 2, 4])
@pytest.mark.parametrize("fail_at", range(2, 9))
def test_after_a_save_that_failed_no_call_of_the_batch_saves(fail_at: int, parallel: int) -> None:
    """A later save would count rows that were never written, and spoil what is stored."""

    async def scenario() -> None:
        store = FaultyRunStore(fail_at=fail_at)
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo"),
            contract=TaskContract(max_parallel=parallel),
            store=store,
        )
        wanted = [(f"c{number}", "t:echo", f'{{"x":"{number}"}}') for number in range(8)]
        stage.prepare([calls(*wanted[:4]), reply()])
        result = await stage.start()
        if isinstance(result, Completed):
            return
        assert stop_of(result) == (StopCode.STORE_FAILED, "store")
        stage.prepare([calls(*wanted[4:]), reply()])
        taken_up = await stage.resume(result.run_id)

        assert isinstance(taken_up, Completed)
        done = [step.step for step in taken_up.steps if step.executed == "yes"]
        assert len(done) == len(set(done))

    asyncio.run(scenario())


class WeirdStore(MemoryRunStore):
    """Raises something that no store should raise."""

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        raise KeyError(run_id)


def test_whatever_a_store_raises_is_a_failed_save() -> None:
    """The host's store may raise anything; the result says STORE_FAILED."""
    stage = Rehearsal(store=WeirdStore())
    stage.prepare([reply()])

    result = asyncio.run(stage.start())

    assert stop_of(result) == (StopCode.STORE_FAILED, "store")


def test_a_new_run_does_not_overwrite_a_saved_one() -> None:
    """A second run of the same id is a conflict, and asks nobody."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore())
        first = await stage.play(reply("one"))
        model = ScriptedModel([])
        again = create_agent_task_run(TaskContract(), run_id=first.run_id)
        result = await run_governed_agent_loop(
            runtime=again.guard_runtime(create_agent_runtime(model=model)),
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")]),
            store=stage.store,
        )

        assert stop_of(result) == (StopCode.STATE_CONFLICT, "store")

    asyncio.run(scenario())


def test_a_run_without_a_store_can_be_taken_up_from_its_result() -> None:
    """The state in the result is sealed with the run's key and holds everything."""

    async def scenario() -> None:
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"), seal=Seal(b"s" * 32))
        first = await stage.play(ONE, escalate("?"))
        result = await stage.go_on(first, reply("done"), message="yes")

        assert isinstance(result, Completed)
        assert result.ledger.used == {"steps": 1, "tool:t:echo": 1, "turns": 3}
        assert stage.shelf.ran["t:echo"] == 1

    asyncio.run(scenario())


def test_a_state_that_cannot_be_loaded_is_a_refusal_not_a_raise() -> None:
    """A store whose bytes are no state gives STATE_INTEGRITY."""

    async def scenario() -> None:
        store = MemoryRunStore()
        for head in (b"", b"{}", b"[]", b'{"body":1,"tag":"x"}', b'{"body":"{}","tag":"x"}'):
            store.put(SavedRun(run_id="r", revision=1, head=head, rows=()))
            stage = Rehearsal(store=store)
            stage.prepare([])
            result = await stage.resume("r")

            assert stop_of(result) == (StopCode.STATE_INTEGRITY, "state")

    asyncio.run(scenario())


# ── preflight and policy ────────────────────────────────────────────────────────────────────────


class Checked:
    """A runtime that answers `preflight` with what it was made with."""

    def __init__(self, shelf: ToolShelf, model: ScriptedModel, answer: object) -> None:
        self.base = create_agent_runtime(model=model, tools=shelf.tools)
        self.specs = {spec.name: spec for spec in shelf.specs}
        self.answer = answer

    def tool_spec(self, name: str) -> ToolSpec | None:
        return self.specs.get(name)

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        if isinstance(self.answer, BaseException):
            raise self.answer
        # The fault at hand.
        return self.answer  # type: ignore[return-value]

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        return await self.base.execute_tool(name, arguments, context)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (RuntimeError("x"), "POLICY_ERROR"),
        (True, "TOOL_ERROR"),
        (
            ToolOutput(
                ok=False,
                text='{"code":"WEB_EGRESS_DENIED"}',
                code="WEB_EGRESS_DENIED",
                # The host's own words: others stand in a fence.
                label=CLEAN,
            ),
            "WEB_EGRESS_DENIED",
        ),
    ],
    ids=["raises", "no output", "refuses"],
)
def test_a_preflight_that_does_not_pass_refuses(answer: object, code: str) -> None:
    """The call takes no step and does not run."""

    async def scenario() -> None:
        shelf, model = ToolShelf().add("t:echo"), ScriptedModel([ONE, reply()])
        result = await run_governed_agent_loop(
            runtime=create_agent_task_run(TaskContract()).guard_runtime(
                Checked(shelf, model, answer)
            ),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
        )

        assert told(result) == [code]
        assert "steps" not in result.ledger.used
        assert shelf.ran["t:echo"] == 0

    asyncio.run(scenario())


def _raises(arguments: Mapping[str, Json]) -> bool:
    raise RuntimeError


def _word(arguments: Mapping[str, Json]) -> bool:
    # The fault at hand.
    return "no"  # type: ignore[return-value]


@pytest.mark.parametrize("when", [_raises, _word])
def test_a_predicate_that_fails_denies(when: Callable[[Mapping[str, Json]], bool]) -> None:
    """POLICY_ERROR, even where the rule would only have asked."""
    rule = ToolRule(tool="t:echo", approval_class="request_user", when=when)
    stage = Rehearsal(
        shelf=ToolShelf().add("t:echo"),
        contract=TaskContract(tool_policy=ToolPolicy([rule])),
    )

    result = asyncio.run(stage.play(ONE, reply()))

    assert told(result) == ["POLICY_ERROR"]
    assert stage.shelf.ran["t:echo"] == 0


def test_a_person_is_not_shown_a_call_that_a_budget_refuses() -> None:
    """Without a step there is no request."""
    policy = ToolPolicy([ToolRule(tool="*", approval_class="request_user")])
    stage = Rehearsal(
        shelf=ToolShelf().add("t:echo"),
        contract=TaskContract(tool_policy=policy, max_steps=0, wrap_up=False),
    )

    result = asyncio.run(stage.play(ONE))

    assert result.requests == ()
    assert told(result) == ["BUDGET_EXHAUSTED"]


@pytest.mark.parametrize("max_parallel", [1, 3, 20])
def test_calls_of_a_batch_run_beside_each_other_up_to_the_limit(max_parallel: int) -> None:
    """Never more than `max_parallel` at a time, and all of them."""

    async def scenario() -> None:
        now, most = 0, 0

        async def count(context: ExecutionContext) -> Json:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            now -= 1
            return "ok"

        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo", does=count),
            contract=TaskContract(max_parallel=max_parallel),
            store=MemoryRunStore(),
        )
        await stage.play(calls(*((f"c{i}", "t:echo", "{}") for i in range(8))), reply())

        assert stage.shelf.ran["t:echo"] == 8
        assert most == min(max_parallel, 8)

    asyncio.run(scenario())


# ── what the log says ───────────────────────────────────────────────────────────────────────────


def test_event_keys_are_unique_in_a_run_and_its_resumes(tmp_path: Path) -> None:
    """One cause has one event, also when a repeatable call was stopped and ran again."""

    async def scenario() -> None:
        with AuditLog(tmp_path / "log.jsonl") as audit:
            paused: list[bool] = []

            async def once_paused(context: ExecutionContext) -> Json:
                if not paused:
                    paused.append(True)
                    stage.run.pause("wait")
                    await asyncio.sleep(3600)
                return "ok"

            policy = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
            stage = Rehearsal(
                shelf=ToolShelf()
                .add("t:echo", does=once_paused, effects=Effects.REPEATABLE)
                .add("t:gate"),
                contract=TaskContract(tool_policy=policy),
                store=MemoryRunStore(),
                audit=audit,
            )
            first = await stage.play(
                calls(("a", "t:echo", "{}"), ("b", "nope", "{}"), ("c", "t:gate", "{}"))
            )
            second = await stage.go_on(first)
            third = await stage.go_on(second, reply(), message="stop", abandon=True)
            assert isinstance(third, Completed)
        records = [
            orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()
        ]
        keys = [record["key"] for record in records if "key" in record]

        assert len(keys) == len(set(keys))
        assert {"t1c1", "t1c1:finished", "t1c1#2", "t1c1#2:finished"} <= set(keys)
        assert verify_log(tmp_path / "log.jsonl").status == "chained"

    asyncio.run(scenario())


def test_a_violation_counts_and_is_in_the_file_at_once(tmp_path: Path) -> None:
    """A tool that records a violation finds it on the disk before it goes on."""
    found: list[bool] = []

    async def scenario() -> None:
        path = tmp_path / "log.jsonl"
        with AuditLog(path) as audit:

            async def denied(context: ExecutionContext) -> Json:
                context.record(
                    Event(
                        code=EventCode.EGR001D,
                        subject={"run": context.run, "step": context.step},
                        object={"kind": "network_egress_blocked"},
                        key=f"{context.step}:0",
                    )
                )
                # What a tool asserts would be a tool error, and no failure of the test.
                found.append(b"network_egress_blocked" in path.read_bytes())
                return "denied"

            stage = Rehearsal(shelf=ToolShelf().add("t:echo", does=denied), audit=audit)
            result = await stage.play(ONE, reply())

            assert result.ledger.violations == 1
            assert found == [True]

    asyncio.run(scenario())


def test_clock_and_label_are_in_the_records() -> None:
    """Records carry the label at the time and what the clock measured."""

    async def scenario() -> None:
        clock = MovableClock()

        async def slow(context: ExecutionContext) -> Json:
            clock.move(1.5)
            return "ok"

        stage = Rehearsal(shelf=ToolShelf().add("t:echo", does=slow), clock=clock)
        result = await stage.play(ONE, reply())

        assert [step.elapsed_us for step in result.steps] == [0, 1_500_000, 0]
        assert [str(step.label.integrity) for step in result.steps] == ["user", "user", "external"]

    asyncio.run(scenario())


def test_store_errors_of_a_read_are_raised() -> None:
    """Without a run there is nothing to return."""

    async def scenario() -> None:
        stage = Rehearsal(store=MemoryRunStore())
        stage.prepare([])
        with pytest.raises(StoreError):
            await stage.resume("unknown")

    asyncio.run(scenario())
