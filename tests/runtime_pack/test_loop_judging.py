"""A response that came is in the store before it is judged: no stop and no death has it paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequired,
    AssistantMessage,
    Cancelled,
    Completed,
    Decision,
    LoopError,
    MemoryRunStore,
    Remember,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    Verdict,
    create_agent_runtime,
    stream_governed_agent_loop,
)
from runtime_pack.errors import ContractError
from runtime_pack.events import Event
from runtime_pack.labels import UNLABELLED
from runtime_pack.loop import LoopResult
from runtime_pack.machine import Classifying, ingest
from runtime_pack.messages import FinishReason, Json, Message, ToolMessage
from runtime_pack.ports import Answer
from runtime_pack.state import open_head, state_from_json, state_to_json
from runtime_pack.testing import ListEmitter, Rehearsal, ToolShelf, calls, reply

KEY = b"the key of judged runs in a test."
BATCH = (("1", "t:a", '{"x":"1"}'), ("2", "t:none", "{}"), ("3", "t:b", "{"), ("4", "t:b", "{}"))


@attrs.define
class Gate:
    """Where a check of the host's hangs: at the numbers in `at`, counted over all drives."""

    at: frozenset[int] = frozenset({1})
    asked: int = 0
    here: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def passed(self) -> None:
        """Go on at once, or never."""
        self.asked += 1
        if self.asked in self.at:
            self.here.set()
            await asyncio.sleep(3600)


def shelf() -> ToolShelf:
    return ToolShelf().add("t:a").add("t:b")


def gated(gate: Gate, *rules: ToolRule, **more: Any) -> TaskContract:
    async def when(arguments: Mapping[str, Json]) -> bool:
        await gate.passed()
        return False

    policy = ToolPolicy([*rules, ToolRule(tool="t:b", approval_class="deny", when=when)])
    return TaskContract(tool_policy=policy, **more)


def codes(result: LoopResult) -> list[str | None]:
    told = [message for message in result.messages if isinstance(message, ToolMessage)]
    return [None if message.ok else orjson.loads(message.text)["code"] for message in told]


async def head_of(stage: Rehearsal, run_id: str) -> dict[str, Any]:
    assert stage.store is not None
    return open_head(await stage.store.load(run_id), stage.store.seal)


async def dies(stage: Rehearsal, gate: Gate, run_id: str | None = None) -> None:
    """A drive whose task is torn away where the check hangs: nothing of it is saved after that."""
    gate.here.clear()
    drive = asyncio.ensure_future(stage.start() if run_id is None else stage.resume(run_id))
    waiting = asyncio.ensure_future(gate.here.wait())
    await asyncio.wait({drive, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not drive.done(), drive.result()
    drive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drive


def test_a_response_survives_a_death_while_it_is_judged() -> None:
    """It is in the store with what it cost; the next drive judges it, and asks for nothing again."""

    async def scenario() -> None:
        gate = Gate(at=frozenset({1, 2}))
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=gated(gate))
        stage.prepare([calls(*BATCH)])
        run_id = stage.run.id
        await dies(stage, gate)
        head = await head_of(stage, run_id)

        assert head["state"]["at"] == "judging"
        assert (head["ledger"]["used"], head["ledger"]["reserved"]) == ({"turns": 1}, {})
        assert [call["call"]["id"] for call in head["state"]["calls"]] == ["1", "2", "3", "4"]

        stage.prepare([])
        await dies(stage, gate, run_id)
        stage.prepare([reply()])
        last = await stage.resume(run_id)

        assert isinstance(last, Completed)
        assert codes(last) == [None, "UNKNOWN_TOOL", "INVALID_JSON", None]
        assert [record.step for record in last.steps if record.admitted] == [
            "t1",
            "t1c1",
            "t1c4",
            "t2",
        ]
        assert [record.raw for record in last.steps if record.raw] == ["{"]
        assert (last.ledger.used["turns"], last.ledger.refused) == (2, 2)
        assert stage.shelf.ran == {"t:a": 1, "t:b": 1}

    asyncio.run(scenario())


def test_a_refusal_that_is_taken_back_is_taken_back_whole() -> None:
    """What a budget refused before the pause is refused once, and not held against the model."""

    async def scenario() -> None:
        gate = Gate()
        stage = Rehearsal(
            shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=gated(gate, max_steps=1)
        )
        stage.prepare([calls(("1", "t:a", "{}"), ("2", "t:a", '{"x":"2"}'), ("3", "t:b", "{}"))])
        drive = asyncio.ensure_future(stage.start())
        await gate.here.wait()
        assert (stage.run.ledger.refused, stage.run.ledger.unaffordable) == (1, 1)
        stage.run.pause("later")
        await drive

        assert (stage.run.ledger.refused, stage.run.ledger.unaffordable) == (0, 0)

    asyncio.run(scenario())


def test_what_a_response_in_hand_was_asked_under_outlives_its_process() -> None:
    """Its words have the label of what the model had read, also where another drive commits them."""

    async def scenario() -> None:
        gate = Gate()
        tools = ToolShelf().add("t:a", output_trust="external").add("t:b")
        stage = Rehearsal(shelf=tools, store=MemoryRunStore(Seal(KEY)), contract=gated(gate))
        stage.prepare([calls(("1", "t:a", "{}")), calls(("2", "t:b", "{}"))])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([reply()])
        last = await stage.resume(run_id)

        said = [message for message in last.messages if isinstance(message, AssistantMessage)]
        assert [str(message.label.integrity) for message in said] == [
            "user",
            "external",
            "external",
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize("stored", [True, False], ids=["with a store", "from the result"])
def test_a_pause_while_a_response_is_judged_keeps_it(stored: bool) -> None:
    """It is judged again whole: nothing counts twice, and no turn is taken for it."""

    async def scenario() -> None:
        gate = Gate()
        store = MemoryRunStore(Seal(KEY)) if stored else None
        stage = Rehearsal(shelf=shelf(), store=store, contract=gated(gate), seal=Seal(KEY))
        stage.prepare([calls(*BATCH)])
        drive = asyncio.ensure_future(stage.start())
        await gate.here.wait()
        stage.run.pause("later")
        first = await drive

        assert isinstance(first, Suspended)
        assert codes(first) == ["CANCELLED"] * 4
        assert (first.ledger.used["turns"], first.ledger.refused) == (1, 0)
        assert first.ledger.reserved.get("steps", 0) == 0

        last = await stage.go_on(first, reply())

        assert codes(last) == [None, "UNKNOWN_TOOL", "INVALID_JSON", None]
        assert (last.ledger.used["turns"], last.ledger.refused) == (2, 2)

    asyncio.run(scenario())


def test_a_response_survives_a_death_while_the_emitter_is_told() -> None:
    """The emitter is the host's as well: what it is told of is in the store."""

    class Emitter(ListEmitter):
        async def emit(self, event: Event) -> None:
            await gate.passed()

    gate = Gate()

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:a", approval_class="deny")])
        stage = Rehearsal(
            shelf=shelf(),
            store=MemoryRunStore(Seal(KEY)),
            contract=TaskContract(tool_policy=policy),
            emitter=Emitter(),
        )
        stage.prepare([calls(("1", "t:a", "{}"), ("2", "t:b", "{"))])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([reply()])
        last = await stage.resume(run_id)

        assert codes(last) == ["POLICY_DENIED", "INVALID_JSON"]
        assert last.ledger.used["turns"] == 2

    asyncio.run(scenario())


def test_an_id_of_a_response_in_hand_is_taken() -> None:
    """A later response that repeats it gets another one."""

    async def scenario() -> None:
        gate = Gate()
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=gated(gate))
        stage.prepare([calls(("1", "t:b", "{}"))])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([calls(("1", "t:b", '{"x":"2"}')), reply()])
        last = await stage.resume(run_id)

        ids = [message.call_id for message in last.messages if isinstance(message, ToolMessage)]
        assert ids == ["1", "1-2"]

    asyncio.run(scenario())


def test_a_message_closes_a_response_that_was_not_judged() -> None:
    """Its calls are told that they did not run, and the model is asked with what the user said."""

    async def scenario() -> None:
        gate = Gate()
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=gated(gate))
        stage.prepare([calls(*BATCH)])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([reply()])
        last = await stage.resume(run_id, message="never mind")

        assert codes(last) == ["CANCELLED"] * 4
        assert (stage.shelf.ran, last.ledger.refused) == ({}, 0)

    asyncio.run(scenario())


def test_a_response_that_another_host_has_to_judge_stays_in_hand() -> None:
    """Without the tool nothing is used up; with it, the response is carried out."""

    async def scenario() -> None:
        gate = Gate()
        tools = shelf()
        stage = Rehearsal(shelf=tools, store=MemoryRunStore(Seal(KEY)), contract=gated(gate))
        stage.prepare([calls(("1", "t:b", "{}"))])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.shelf = ToolShelf().add("t:a")
        stage.prepare([])
        elsewhere = await stage.resume(run_id)

        assert isinstance(elsewhere, LoopError)
        assert elsewhere.stop is not None
        assert elsewhere.stop.code == StopCode.TOOL_MISSING

        stage.shelf = tools
        stage.prepare([reply()])
        assert codes(await stage.resume(run_id)) == [None]

    asyncio.run(scenario())


def test_a_use_of_a_remembered_approval_counts_once() -> None:
    """A rule for one call answers the call when its response is judged again."""

    async def scenario() -> None:
        gate = Gate(at=frozenset({2}))
        asks = ToolRule(tool="t:a", approval_class="request_user")
        stage = Rehearsal(
            shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=gated(gate, asks)
        )
        first = await stage.play(calls(("1", "t:a", "{}"), ("2", "t:b", "{}")))
        (request,) = first.requests
        said = Decision(
            request_id=request.request_id,
            verdict=Verdict.APPROVE,
            decided_by="ann",
            remember=Remember(max_uses=2, max_label=UNLABELLED),
        )
        stage.prepare([calls(("3", "t:a", "{}"), ("4", "t:b", '{"x":"2"}'))])
        drive = asyncio.ensure_future(stage.resume(first.run_id, said))
        await gate.here.wait()
        stage.run.pause("later")
        paused = await drive
        last = await stage.go_on(paused, reply())

        assert isinstance(last, Completed)
        assert stage.shelf.ran == {"t:a": 2, "t:b": 2}
        assert [rule.uses for rule in stage.run.remembered] == [1]

    asyncio.run(scenario())


def test_the_host_is_told_once_of_a_call_that_is_judged_again() -> None:
    """A pause takes nothing of it back, so a second telling would be of a second call."""

    async def scenario() -> None:
        gate = Gate()
        stage = Rehearsal(
            shelf=shelf(),
            store=MemoryRunStore(Seal(KEY)),
            contract=gated(gate, ToolRule(tool="t:a", approval_class="notify")),
            emitter=ListEmitter(),
        )
        stage.prepare([calls(("1", "t:a", "{}"), ("2", "t:b", "{}"))])
        drive = asyncio.ensure_future(stage.start())
        await gate.here.wait()
        stage.run.pause("later")
        last = await stage.go_on(await drive, reply())

        assert isinstance(last, Completed)
        assert isinstance(stage.emitter, ListEmitter)
        assert [event.code for event in stage.emitter.events] == ["APR005O"]
        assert stage.run.told == {}

    asyncio.run(scenario())


def test_what_was_cut_is_cut_for_every_drive() -> None:
    """A response in hand that was cut off has no call that could run, whoever takes it up."""
    cut = attrs.evolve(calls(("1", "t:a", "{}")), finish=FinishReason.LENGTH)
    judged = Classifying(barren=1, text="x", calls=ingest(cut, number=1, taken={}, cut=True))

    again = state_from_json(orjson.loads(orjson.dumps(state_to_json(judged))), {})

    assert again == judged
    assert judged.calls[0].cut


def test_a_circle_is_not_longer_for_being_judged_twice() -> None:
    """The call that ends the run ends it after a pause as well."""

    async def scenario() -> None:
        gate, same = Gate(), ("t:a", "{}")
        stage = Rehearsal(shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=gated(gate))
        script = [calls((str(n), *same)) for n in range(4)]
        stage.prepare([*script, calls(("4", *same), ("b", "t:b", "{}"))])
        drive = asyncio.ensure_future(stage.start())
        await gate.here.wait()
        stage.run.pause("later")
        paused = await drive
        last = await stage.go_on(paused)

        assert isinstance(last, LoopError)
        assert last.stop is not None
        assert last.stop.code == StopCode.NO_PROGRESS
        assert stage.shelf.ran == {"t:a": 2, "t:b": 1}

    asyncio.run(scenario())


# ── answers that the host checks ──────────────────────────────────────────────────────────────


def checked(gate: Gate, *faults: str | None) -> Rehearsal:
    """A run whose answers are looked at; the check says the next of the *faults*."""
    left = list(faults)

    async def check(answer: Answer) -> str | None:
        await gate.passed()
        return left.pop(0)

    contract = TaskContract(output_check="again")
    return Rehearsal(
        shelf=shelf(), store=MemoryRunStore(Seal(KEY)), contract=contract, output_check=check
    )


def test_a_run_whose_answers_are_checked_is_not_taken_up_without_the_check() -> None:
    """Whoever goes on with it would count what nobody has looked at."""

    async def scenario() -> None:
        gate = Gate()
        stage = checked(gate, None)
        stage.prepare([reply("first")])
        run_id = stage.run.id
        await dies(stage, gate)

        unchecked = Rehearsal(shelf=shelf(), store=stage.store)
        unchecked.prepare([])
        with pytest.raises(ContractError, match="output_check"):
            await unchecked.resume(run_id)

    asyncio.run(scenario())


@pytest.mark.parametrize("torn", [True, False], ids=["torn", "paused"])
def test_an_answer_survives_a_stop_while_it_is_checked(torn: bool) -> None:
    """The check is asked again, the model is not; what a stopped check would have said is not made up."""

    async def scenario() -> None:
        gate = Gate()
        stage = checked(gate, "is wrong", None)
        stage.prepare([reply("first")])
        run_id = stage.run.id
        if torn:
            await dies(stage, gate)
        else:
            drive = asyncio.ensure_future(stage.start())
            await gate.here.wait()
            stage.run.pause("later")
            assert isinstance(await drive, Suspended)
        head = await head_of(stage, run_id)

        assert (head["state"]["at"], head["state"]["text"]) == ("checking", "first")

        stage.prepare([reply("second")])
        last = await stage.resume(run_id)

        assert isinstance(last, Completed)
        assert (last.text, gate.asked, last.ledger.used["turns"]) == ("second", 3, 2)
        assert "is wrong" in last.messages[2].text

    asyncio.run(scenario())


def test_an_answer_that_was_being_checked_is_in_the_history_of_a_run_that_ends() -> None:
    """It is no answer of the run, and it is what the model said."""

    async def scenario() -> None:
        gate = Gate()
        stage = checked(gate)
        stage.prepare([reply("first")])
        drive = asyncio.ensure_future(stage.start())
        await gate.here.wait()
        stage.run.cancel("enough")
        last = await drive

        assert isinstance(last, Cancelled)
        assert (last.text, last.messages[-1].text) == ("", "first")

    asyncio.run(scenario())


def test_a_word_of_the_user_follows_an_answer_that_was_being_checked() -> None:
    """Nobody checks an answer that nobody waits for any more."""

    async def scenario() -> None:
        gate = Gate()
        stage = checked(gate, None)
        stage.prepare([reply("first")])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([reply("second")])
        last = await stage.resume(run_id, message="never mind")

        assert [message.text for message in last.messages] == [
            "go",
            "first",
            "never mind",
            "second",
        ]
        assert gate.asked == 2

    asyncio.run(scenario())


# ── what else is awaited before the next save ─────────────────────────────────────────────────


def test_a_result_is_in_the_store_while_the_summariser_is_asked() -> None:
    """A death in the summariser leaves no call in doubt."""

    class Slow:
        async def summarise(self, messages: Sequence[Message]) -> str:
            await gate.passed()
            return "short"

    gate = Gate()

    async def scenario() -> None:
        stage = Rehearsal(
            shelf=ToolShelf().add("t:a", "y" * 3000),
            store=MemoryRunStore(Seal(KEY)),
            contract=TaskContract(max_context_bytes=4000),
            summariser=Slow(),
        )
        turns = [calls((str(n), "t:a", f'{{"x":"{n}"}}')) for n in range(2)]
        stage.prepare(turns)
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([reply()])
        last = await stage.resume(run_id)

        assert codes(last) == [None, None]
        assert stage.shelf.ran == {"t:a": 2}

    asyncio.run(scenario())


def test_a_result_is_in_the_store_while_a_request_is_reconsidered() -> None:
    """A call that made the context worse has ended, whatever becomes of the check of its sibling."""

    async def scenario() -> None:
        gate = Gate(at=frozenset({2}))
        ask = ToolRule(tool="t:b", approval_class="request_user")
        # It is worse than its tool announced: what was announced is judged with the sibling.
        outside = ToolOutput(ok=True, text="ok")
        tools = ToolShelf().add("t:a", outside, output_trust="internal").add("t:b")
        stage = Rehearsal(shelf=tools, store=MemoryRunStore(Seal(KEY)), contract=gated(gate, ask))
        stage.prepare([calls(("1", "t:a", "{}"), ("2", "t:b", "{}"))])
        run_id = stage.run.id
        await dies(stage, gate)
        stage.prepare([])
        last = await stage.resume(run_id)

        assert codes(last) == [None, "APPROVAL_REQUIRED"]
        assert stage.shelf.ran == {"t:a": 1}

    asyncio.run(scenario())


def test_a_response_is_in_the_store_while_a_slow_reader_is_waited_for() -> None:
    """A reader that does not come back costs neither the turn nor the result."""

    async def scenario() -> None:
        store, tools = MemoryRunStore(Seal(KEY)), shelf()
        stage = Rehearsal(shelf=tools, store=store)
        stage.prepare([calls(("1", "t:a", "{}"))])
        run_id = stage.run.id
        runtime = create_agent_runtime(model=stage.model, tools=tools.tools)
        stream = stream_governed_agent_loop(
            runtime=stage.run.guard_runtime(runtime),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=tools.specs
            ),
            store=store,
            buffer=1,
        )
        await anext(stream)
        # The run goes on by itself until it has to wait for the reader.
        for _ in range(200):
            await asyncio.sleep(0)
        head = await head_of(stage, run_id)
        await stream.aclose()

        assert (head["state"]["at"], head["ledger"]["used"]) == ("judging", {"turns": 1})

        stage.prepare([reply()])
        last = await stage.resume(run_id)

        assert (codes(last), stage.shelf.ran) == ([None], {"t:a": 1})

    asyncio.run(scenario())


# ── any batch, any point ──────────────────────────────────────────────────────────────────────

words = st.sampled_from(["t:a", "t:b", "t:b", "t:gate", "t:none", "t:denied"])
batches = st.lists(st.lists(words, min_size=1, max_size=4), min_size=1, max_size=3)
Trace = tuple[
    list[tuple[str, str]], list[tuple[str, str | None]], dict[str, int], dict[str, int], int
]


async def trace(script: list[list[str]], stops: frozenset[int], *, pause: bool) -> Trace:
    """What a run came to whose checks are stopped at the numbers in *stops*."""
    gate = Gate(at=stops)
    rules = [
        ToolRule(tool="t:gate", approval_class="request_user"),
        ToolRule(tool="t:denied", approval_class="deny"),
    ]
    tools = shelf().add("t:gate").add("t:denied")
    contract = gated(gate, *rules, max_refused=100, max_consecutive_refused=9)
    stage = Rehearsal(shelf=tools, store=MemoryRunStore(Seal(KEY)), contract=contract)
    turns = [
        calls(*((f"{n}.{m}", name, f'{{"x":"{n}.{m}"}}') for m, name in enumerate(batch)))
        for n, batch in enumerate(script)
    ]
    stage.prepare([*turns, reply()])
    run_id, model, asked = stage.run.id, stage.model, 0
    given: tuple[Decision, ...] = ()
    begun = False
    while True:
        gate.here.clear()
        drive = asyncio.ensure_future(stage.resume(run_id, *given) if begun else stage.start())
        waiting = asyncio.ensure_future(gate.here.wait())
        await asyncio.wait({drive, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not drive.done() and pause:
            stage.run.pause("later")
        elif not drive.done():
            drive.cancel()
        (result,) = await asyncio.gather(drive, return_exceptions=True)
        waiting.cancel()
        if isinstance(result, Completed):
            break
        assert isinstance(result, LoopResult | asyncio.CancelledError), result
        begun, given = True, ()
        if isinstance(result, ApprovalRequired):
            given = tuple(
                Decision(request_id=request.request_id, verdict="approve", decided_by="ann")
                for request in result.requests
            )
        stage.prepare(())
        stage.model = model
    asked = len(model.requests)
    told = [(m.call_id, m.text) for m in result.messages if isinstance(m, ToolMessage)]
    steps = [(record.step, record.code) for record in result.steps]
    return told, steps, dict(tools.ran), dict(result.ledger.used), asked


@settings(max_examples=40, deadline=None)
@given(batches, st.frozensets(st.integers(1, 8), min_size=1, max_size=3), st.booleans())
def test_stopping_while_judging_changes_nothing_of_a_run(
    script: list[list[str]], stops: frozenset[int], pause: bool
) -> None:
    """Results, records, executions, the ledger and the model's calls are those of the run left alone."""
    expected = asyncio.run(trace(script, frozenset(), pause=False))

    assert expected == asyncio.run(trace(script, stops, pause=pause))
