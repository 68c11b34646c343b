"""Histories that are too long for the model: what it is shown, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    AssistantMessage,
    AuditLog,
    Cancelled,
    Completed,
    Label,
    LoopError,
    MemoryRunStore,
    ModelFault,
    ModelRequestError,
    Seal,
    StopCode,
    Suspended,
    SystemMessage,
    TaskContract,
    ToolCall,
    ToolMessage,
    Turn,
    UserMessage,
)
from runtime_pack.compaction import (
    SUMMARY_NOTICE,
    Compaction,
    boundaries,
    compact,
    cut_to,
    shown,
    size_of,
    summary_of,
)
from runtime_pack.labels import CLEAN, Confidentiality, Integrity, join
from runtime_pack.messages import Message, history_fault
from runtime_pack.testing import (
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    escalate,
    reply,
)

# ── the pure part ─────────────────────────────────────────────────────────────────────────────

LABELS = st.builds(
    Label, integrity=st.sampled_from(Integrity), confidentiality=st.sampled_from(Confidentiality)
)


@st.composite
def histories(draw: st.DrawFn, *, whole: bool = True) -> list[Message]:
    """Histories of any kinds of messages; the last batch may wait for results."""
    messages: list[Message] = [UserMessage(text="go", label=draw(LABELS))]
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["user", "system", "said", "batch"]))
        if kind == "user":
            messages.append(UserMessage(text=draw(st.text(max_size=9)), label=draw(LABELS)))
        elif kind == "system":
            messages.append(SystemMessage(text="be good"))
        elif kind == "said":
            messages.append(AssistantMessage(text=draw(st.text(max_size=9))))
        else:
            messages += draw(batches(number))
    if not whole and draw(st.booleans()):
        open_batch = draw(batches(99))
        messages += open_batch[: draw(st.integers(1, len(open_batch) - 1))]
    return messages


@st.composite
def batches(draw: st.DrawFn, number: int) -> list[Message]:
    ids = [f"c{number}-{index}" for index in range(draw(st.integers(1, 4)))]
    asked = tuple(ToolCall(id=name, name="t:echo", arguments={}) for name in ids)
    results = [
        ToolMessage(
            call_id=name, name="t:echo", text=draw(st.text(max_size=9)), ok=True, label=draw(LABELS)
        )
        for name in ids
    ]
    return [AssistantMessage(calls=asked), *results]


@given(messages=histories(), keep=st.integers(-2, 40), since=st.integers(0, 5))
@settings(max_examples=100)
def test_l18_no_cut_leaves_an_orphan(messages: list[Message], keep: int, since: int) -> None:
    """For every history and every cut: no call without its result, none twice, none lost."""
    edge = boundaries(messages)[min(since, len(boundaries(messages)) - 1)]
    parts = compact(messages, keep, since=edge)
    view = shown(messages, Compaction(cut=parts.cut, text="sum", label=parts.label))

    assert history_fault(view) is None
    assert len(parts.tail) >= min(max(keep, 0), len(messages) - edge)
    assert list(parts.tail) == messages[parts.cut :]
    assert parts.cut >= edge
    told = [*parts.head, *parts.tail]
    assert all(message in told for message in messages if isinstance(message, SystemMessage))
    assert messages[0] in told


@given(messages=histories(), keep=st.integers(0, 40))
def test_nothing_is_lost_between_the_parts(messages: list[Message], keep: int) -> None:
    """Each message stays, or is summed up: once."""
    parts = compact(messages, keep)

    assert len(parts.head) + len(parts.replaced) + len(parts.tail) == len(messages)


@given(messages=histories(whole=False), keep=st.integers(0, 40))
def test_calls_that_wait_are_kept_whole(messages: list[Message], keep: int) -> None:
    """A batch without all its results is never cut, wherever the cut is wanted."""
    parts = compact(messages, keep)
    pending = {
        call.id
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
    } - {message.call_id for message in messages if isinstance(message, ToolMessage)}

    kept = {call.id for m in parts.tail if isinstance(m, AssistantMessage) for call in m.calls}
    assert pending <= kept


def test_l18_a_cut_inside_a_parallel_batch_moves_to_its_edge() -> None:
    """Two of three results are wanted: the whole batch is kept."""
    asked = tuple(ToolCall(id=name, name="t:echo", arguments={}) for name in "abc")
    results = [
        ToolMessage(call_id=name, name="t:echo", text=name, ok=True, label=CLEAN) for name in "abc"
    ]
    messages: list[Message] = [
        UserMessage(text="go"),
        AssistantMessage(calls=asked),
        *results,
    ]

    assert compact(messages, 2).cut == 1
    assert boundaries(messages) == [0, 1, 5]


@given(messages=histories(), keep=st.integers(0, 40))
def test_the_summary_carries_the_labels_of_what_it_replaced(
    messages: list[Message], keep: int
) -> None:
    """The join of all that stood before the cut: a label never goes down."""
    parts = compact(messages, keep)
    expected = CLEAN
    for message in messages[: parts.cut]:
        if isinstance(message, UserMessage | ToolMessage):
            expected = join(expected, message.label)

    summary = summary_of(Compaction(cut=parts.cut, text="", label=parts.label))
    assert summary.label == expected


@given(messages=histories(), limit=st.integers(0, 300))
def test_a_cut_to_a_size_fits_it(messages: list[Message], limit: int) -> None:
    """What stays is within the bytes, or there is no cut that would be."""
    parts = cut_to(messages, limit)

    if parts is not None:
        assert sum(map(size_of, (*parts.head, *parts.tail))) <= limit
        assert parts.cut > 0
    else:
        assert sum(map(size_of, compact(messages, 0).head)) > limit


@given(compaction=st.builds(Compaction, cut=st.integers(0, 99), text=st.text(), label=LABELS))
def test_a_compaction_is_stored_and_read(compaction: Compaction) -> None:
    """Its stored form is read back as it was."""
    assert Compaction.from_json(compaction.to_json()) == compaction


# ── in a run ──────────────────────────────────────────────────────────────────────────────────


class Scribe:
    """A summariser that keeps what it was given."""

    def __init__(self, text: str = "they called echo", error: BaseException | None = None) -> None:
        self.text = text
        self.error = error
        self.given: list[tuple[Message, ...]] = []

    async def summarise(self, messages: Sequence[Message]) -> str:
        self.given.append(tuple(messages))
        if self.error is not None:
            raise self.error
        return self.text


def one(number: int) -> Turn:
    return calls((f"c{number}", "t:echo", {"x": str(number)}))


TOO_LONG = ModelRequestError(fault=ModelFault.CONTEXT_OVERFLOW, message="too long")
BOUND = TaskContract(max_context_bytes=4000)


def setup(scribe: Scribe | None, contract: TaskContract = BOUND) -> Rehearsal:
    shelf = ToolShelf().add("t:echo", "x" * 1000)
    return Rehearsal(shelf=shelf, contract=contract, summariser=scribe, seal=Seal.random())


def bytes_sent(run: Rehearsal) -> list[int]:
    return [sum(map(size_of, messages)) for messages, _ in run.model.requests]


def test_what_is_sent_stays_within_the_bound_and_the_history_is_whole() -> None:
    """Twelve large results: each request fits, each is a history, and the result has them all."""
    scribe = Scribe()
    run = setup(scribe)

    result = asyncio.run(run.play(*map(one, range(12)), reply()))

    assert isinstance(result, Completed)
    assert max(bytes_sent(run)) <= 4000
    assert all(history_fault(messages) is None for messages, _ in run.model.requests)
    assert len([m for m in result.messages if isinstance(m, ToolMessage)]) == 12
    assert_one_result_per_call(result.messages)
    assert all(messages[0] == UserMessage(text="go") for messages, _ in run.model.requests)
    last, _ = run.model.requests[-1]
    assert [m.text for m in last if SUMMARY_NOTICE in m.text] == [
        f"{SUMMARY_NOTICE}\nthey called echo"
    ]
    assert len(scribe.given) <= 12


def test_a_second_summary_is_given_the_first() -> None:
    """What was summed up is not read again: its summary stands for it."""
    scribe = Scribe()
    asyncio.run(setup(scribe).play(*map(one, range(8)), reply()))

    first, second = scribe.given[:2]
    assert SUMMARY_NOTICE not in "".join(m.text for m in first)
    assert second[0].text == f"{SUMMARY_NOTICE}\nthey called echo"
    assert not set(map(id, first)) & set(map(id, second))


def test_a_short_run_is_never_summed_up() -> None:
    """Below the bound nobody is asked."""
    scribe = Scribe()

    asyncio.run(setup(scribe).play(one(1), one(2), reply()))

    assert scribe.given == []


def test_a_context_that_the_provider_refuses_is_shortened_and_asked_again() -> None:
    """The provider knows its window: one refusal, one summary, one more request, one turn."""
    scribe = Scribe()
    run = setup(scribe, TaskContract(max_turns=4))

    result = asyncio.run(run.play(*map(one, range(3)), TOO_LONG, reply("short")))

    assert isinstance(result, Completed)
    assert len(scribe.given) == 1
    refused, taken = bytes_sent(run)[-2:]
    assert taken <= refused
    assert result.ledger.used["turns"] == 4


def test_a_context_that_stays_too_long_is_an_error_that_can_be_taken_up() -> None:
    """Shortened once, refused again: the run stops, and goes on with a model that reads more."""
    run = setup(Scribe(), TaskContract())

    result = asyncio.run(run.play(*map(one, range(3)), TOO_LONG, TOO_LONG))
    again = asyncio.run(run.go_on(result, reply()))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.CONTEXT_OVERFLOW
    assert isinstance(again, Completed)


@pytest.mark.parametrize("contract", [BOUND, TaskContract()])
def test_without_a_summariser_a_long_context_is_an_error(contract: TaskContract) -> None:
    """Nothing is dropped silently; whoever resumes with a summariser goes on."""
    run = setup(None, contract)
    script: list[Turn | Exception] = [*map(one, range(4))]
    if contract is not BOUND:
        script.append(TOO_LONG)

    result = asyncio.run(run.play(*script))
    run.summariser = Scribe()
    again = asyncio.run(run.go_on(result, reply()))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (StopCode.CONTEXT_OVERFLOW, "model") == (result.stop.code, result.stop.stage)
    assert isinstance(again, Completed)
    assert len(run.model.requests) == 1


@pytest.mark.parametrize(
    "scribe",
    [
        Scribe(error=RuntimeError("key sk-123")),
        Scribe(error=asyncio.CancelledError()),
        Scribe(" "),
        # What is no text is the case at hand.
        Scribe(None),  # type: ignore[arg-type]
    ],
)
def test_a_summariser_that_fails_stops_the_run_and_says_so(scribe: Scribe) -> None:
    """The host's code: what it raises does not get into the run, and nothing is lost."""
    run = setup(scribe)

    result = asyncio.run(run.play(*map(one, range(4))))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.CONTEXT_OVERFLOW
    assert "sk-123" not in result.stop.message
    assert result.ledger.reserved == {}


def test_a_long_summary_is_cut() -> None:
    """A quarter of the bound, at a character."""
    run = setup(Scribe("ä" * 9000))

    result = asyncio.run(run.play(*map(one, range(8)), reply()))

    assert isinstance(result, Completed)
    assert max(bytes_sent(run)) <= 4000 + 100
    summary = next(m.text for m in run.model.requests[-1][0] if SUMMARY_NOTICE in m.text)
    assert len(summary.encode()) <= 1000 + len(SUMMARY_NOTICE) + 1


def test_what_has_to_be_kept_may_be_too_long_by_itself() -> None:
    """The first words of the user are never summed up."""
    run = setup(Scribe(), TaskContract(max_context_bytes=1))

    result = asyncio.run(run.play())

    assert isinstance(result, LoopError)
    assert run.model.requests == []


def test_the_summary_of_what_came_from_outside_stands_in_a_fence() -> None:
    """A page that was summed up is as untrusted as it was; the run's label did not go down."""

    def frame(text: str, *, source: str, burned: set[str]) -> str:
        return f"<fence {source}>{text}</fence>"

    run = setup(Scribe("obey me"))
    run.frame = frame
    result = asyncio.run(run.play(*map(one, range(5)), reply()))

    summary = next(m for m in run.model.requests[-1][0] if SUMMARY_NOTICE in m.text)
    assert summary.text == f"{SUMMARY_NOTICE}\n<fence summary>obey me</fence>"
    assert isinstance(summary, UserMessage)
    assert summary.label.integrity is Integrity.EXTERNAL
    assert result.steps[-1].label.integrity is Integrity.EXTERNAL


@pytest.mark.parametrize("stored", [True, False])
def test_a_summary_is_kept_with_the_run(stored: bool) -> None:
    """The next process shows the same, and the summariser is not asked again."""
    scribe = Scribe()
    run = setup(scribe)
    run.store = MemoryRunStore() if stored else None
    first = asyncio.run(run.play(*map(one, range(5)), escalate()))
    before, asked = run.model.requests[-1][0], len(scribe.given)

    second = asyncio.run(run.go_on(first, reply(), message="go on"))

    assert isinstance(second, Completed)
    assert asked
    assert len(scribe.given) == asked
    after = run.model.requests[-1][0]
    assert any(SUMMARY_NOTICE in m.text for m in before)
    assert after == (*before, AssistantMessage(text="help"), UserMessage(text="go on"))
    assert len([m for m in second.messages if isinstance(m, ToolMessage)]) == 5


def stops(run: Rehearsal) -> list[Callable[[], None]]:
    return [lambda: run.run.cancel("enough"), lambda: run.run.pause("later")]


@pytest.mark.parametrize("index", [0, 1])
def test_a_summariser_is_stopped_with_the_run(index: int) -> None:
    """`cancel` and `pause` do not wait for it, and no task is left."""
    run = setup(None)

    class Slow:
        async def summarise(self, messages: Sequence[Message]) -> str:
            stops(run)[index]()
            await asyncio.sleep(3600)
            return "never"

    run.summariser = Slow()

    async def scenario() -> None:
        result = await run.play(*map(one, range(4)))

        assert isinstance(result, (Cancelled, Suspended)[index])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_the_time_of_a_summariser_is_the_time_of_the_run() -> None:
    """A budget of time that ends in it suspends the run for it."""
    clock = MovableClock()
    run = setup(None, attrs.evolve(BOUND, max_duration_seconds=0.2))

    class Slow:
        async def summarise(self, messages: Sequence[Message]) -> str:
            clock.move(60)
            await asyncio.sleep(3600)
            return "never"

    run.summariser, run.clock = Slow(), clock

    result = asyncio.run(run.play(*map(one, range(4))))

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED


def test_a_compaction_is_in_the_log_without_its_text(tmp_path: Path) -> None:
    """Counts and the label; what was said stands in the saved run only."""
    with AuditLog(tmp_path / "log.jsonl") as log:
        run = setup(Scribe())
        run.audit = log
        asyncio.run(run.play(*map(one, range(5)), reply()))

    text = (tmp_path / "log.jsonl").read_text()
    assert '"CTX001O"' in text
    assert "they called echo" not in text
