"""What users say is judged before the model sees it; what the model answers, before it is the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from runtime_pack import (
    ApprovalRequired,
    AssistantMessage,
    Cancelled,
    Completed,
    ContractError,
    LoopError,
    MemoryRunStore,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
)
from runtime_pack.messages import FinishReason, Json, Message
from runtime_pack.testing import (
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    escalate,
    reply,
)


class Gatekeeper:
    """An input guard that refuses a word, and keeps what it saw."""

    def __init__(self, word: str = "bomb", error: BaseException | None = None) -> None:
        self.word = word
        self.error = error
        self.seen: list[int] = []

    async def __call__(self, messages: Sequence[Message]) -> str | None:
        self.seen.append(len(messages))
        if self.error is not None:
            raise self.error
        return f"no {self.word}s" if any(self.word in m.text for m in messages) else None


def stop_of(result: object) -> tuple[str, str | None]:
    assert isinstance(result, LoopError)
    assert result.stop is not None
    return str(result.stop.code), result.stop.stage


# ── input ─────────────────────────────────────────────────────────────────────────────────────


def test_a_guard_that_passes_is_asked_once_before_the_first_request() -> None:
    """Two guards, in order; the later requests of the run ask nobody."""
    first, second = Gatekeeper(), Gatekeeper()
    shelf = ToolShelf().add("t:echo")
    run = Rehearsal(shelf=shelf, input_guards=[first, second])

    result = asyncio.run(run.play(calls(("a", "t:echo", "{}")), reply()))

    assert isinstance(result, Completed)
    assert first.seen == second.seen == [1]


@pytest.mark.parametrize(
    ("guard", "says"),
    [
        (Gatekeeper("go"), "refused: no gos"),
        (Gatekeeper(error=RuntimeError("sk-1")), "failed (RuntimeError)"),
        (Gatekeeper(error=asyncio.CancelledError()), "failed (StrayCancellation)"),
        (lambda messages: "not awaitable", "failed (TypeError)"),
    ],
)
def test_a_guard_that_refuses_or_fails_ends_the_run_in_stage_input(
    guard: Gatekeeper, says: str
) -> None:
    """The model is not asked, and a later guard is not either."""
    later = Gatekeeper()

    result = asyncio.run(Rehearsal(input_guards=[guard, later]).play())

    assert stop_of(result) == (StopCode.INPUT_REFUSED, "input")
    assert result.stop is not None
    assert result.stop.message == f"An input guard {says}."
    assert later.seen == []
    assert result.ledger.attempts == 0
    assert result.state is None


def test_a_guard_that_answers_nonsense_has_not_passed_anything() -> None:
    """False is no None."""

    async def guard(messages: Sequence[Message]) -> str | None:
        # What is no answer is the case at hand.
        return False  # type: ignore[return-value]

    result = asyncio.run(Rehearsal(input_guards=[guard]).play())

    assert stop_of(result) == (StopCode.INPUT_REFUSED, "input")


def test_what_a_user_adds_is_judged_too() -> None:
    """A message that is given when a run is taken up passes the same guards, or ends the run."""
    guard = Gatekeeper()
    run = Rehearsal(input_guards=[guard], store=MemoryRunStore())

    first = asyncio.run(run.play(escalate()))
    second = asyncio.run(run.go_on(first, escalate(), message="fine"))
    third = asyncio.run(run.go_on(second, message="a bomb"))

    assert isinstance(second, Suspended)
    assert stop_of(third) == (StopCode.INPUT_REFUSED, "input")
    assert guard.seen == [1, 3, 5]


def test_a_run_that_is_taken_up_without_a_message_is_not_judged_again() -> None:
    """What passed has passed; that it did is in the saved state."""
    guard = Gatekeeper()
    gate = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
    run = Rehearsal(
        shelf=ToolShelf().add("t:gate"),
        contract=TaskContract(tool_policy=gate),
        input_guards=[guard],
        seal=Seal.random(),
    )

    first = asyncio.run(run.play(calls(("a", "t:gate", "{}"))))
    second = asyncio.run(run.go_on(first))

    assert isinstance(second, ApprovalRequired)
    assert guard.seen == [1]


def test_a_message_that_is_refused_leaves_every_call_with_its_result() -> None:
    """Abandoned calls are closed before the run ends, and nothing runs."""
    gate = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
    shelf = ToolShelf().add("t:gate")
    run = Rehearsal(
        shelf=shelf,
        contract=TaskContract(tool_policy=gate),
        input_guards=[Gatekeeper()],
        seal=Seal.random(),
    )
    first = asyncio.run(run.play(calls(("a", "t:gate", "{}"))))

    result = asyncio.run(run.go_on(first, message="bomb", abandon=True))

    assert stop_of(result) == (StopCode.INPUT_REFUSED, "input")
    assert_one_result_per_call(result.messages)
    assert not shelf.ran
    assert result.ledger.reserved == {}


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_a_guard_is_stopped_with_the_run_and_has_not_passed(stop: str) -> None:
    """After a pause it is asked again; after a cancel nothing is."""
    asked: list[int] = []

    async def slow(messages: Sequence[Message]) -> str | None:
        asked.append(len(messages))
        if len(asked) == 1:
            getattr(run.run, stop)("now")
            await asyncio.sleep(3600)
        return None

    run = Rehearsal(input_guards=[slow], seal=Seal.random())
    first = asyncio.run(run.play())

    if stop == "cancel":
        assert isinstance(first, Cancelled)
        return
    assert isinstance(first, Suspended)
    second = asyncio.run(run.go_on(first, reply()))
    assert isinstance(second, Completed)
    assert asked == [1, 1]


def test_the_time_of_a_guard_is_the_time_of_the_run() -> None:
    """Time that ends in it suspends the run, and it has not passed."""
    clock = MovableClock()

    async def slow(messages: Sequence[Message]) -> str | None:
        clock.move(60)
        await asyncio.sleep(3600)
        return None

    run = Rehearsal(
        input_guards=[slow], clock=clock, contract=TaskContract(max_duration_seconds=0.2)
    )

    result = asyncio.run(run.play())

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED
    assert run.model.requests == []


# ── output ────────────────────────────────────────────────────────────────────────────────────

FORM: Mapping[str, Json] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
}
GOOD, BAD = '{"answer": 42}', '{"answer": "many"}'


def test_b13_a_wrap_up_that_violates_the_schema_is_reported_and_is_no_answer() -> None:
    """The stop names the budget and the fault; what was said stands in the history only."""
    run = Rehearsal(
        shelf=ToolShelf().add("t:echo"),
        contract=TaskContract(max_turns=2),
        output_schema=FORM,
        seal=Seal.random(),
    )
    asked = [calls((name, "t:echo", "{}")) for name in "ab"]

    result = asyncio.run(run.play(*asked, reply(BAD)))

    assert isinstance(result, Suspended)
    assert result.text == ""
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED
    assert result.stop.output_fault is not None
    assert "/answer" in str(result.stop.to_json()["output_fault"])
    assert result.messages[-1] == AssistantMessage(text=BAD)
    assert asyncio.run(run.go_on(result)).stop == result.stop


def test_b13_a_wrap_up_that_fits_is_the_text() -> None:
    """Then there is no fault."""
    run = Rehearsal(
        shelf=ToolShelf().add("t:echo"), contract=TaskContract(max_turns=2), output_schema=FORM
    )
    asked = [calls((name, "t:echo", "{}")) for name in "ab"]

    result = asyncio.run(run.play(*asked, reply(GOOD)))

    assert result.text == GOOD
    assert result.stop is not None
    assert result.stop.output_fault is None


@pytest.mark.parametrize("wrong", [BAD, "forty-two", "", "[]", "{}", '{"answer": 4'])
def test_an_answer_in_another_form_is_asked_for_again(wrong: str) -> None:
    """The model is told what is wrong, and its next answer is the answer."""
    run = Rehearsal(output_schema=FORM)

    result = asyncio.run(run.play(reply(wrong), reply(GOOD)))

    assert isinstance(result, Completed)
    assert result.text == GOOD
    told = run.model.requests[1][0][-1]
    assert isinstance(told, UserMessage)
    assert told.text.startswith("This answer ")


def test_answers_that_never_fit_end_the_run() -> None:
    """As often in a row as responses may be barren; none of them is the text of the run."""
    result = asyncio.run(Rehearsal(output_schema=FORM).play(*[reply(BAD)] * 3))

    assert stop_of(result) == (StopCode.OUTPUT_INVALID, "output")
    assert result.text == ""
    assert result.messages[-1] == AssistantMessage(text=BAD)


def test_a_cut_answer_that_does_not_fit_is_not_completion() -> None:
    """Half of an object is no object."""
    cut = reply(GOOD[:9], finish=FinishReason.LENGTH)

    result = asyncio.run(Rehearsal(output_schema=FORM).play(cut, reply(GOOD)))

    assert isinstance(result, Completed)
    assert result.text == GOOD


def test_the_form_is_kept_with_the_run() -> None:
    """Whoever takes it up holds the answer to the same schema, and a fault is read back."""
    run = Rehearsal(output_schema=FORM, store=MemoryRunStore())

    first = asyncio.run(run.play(escalate()))
    second = asyncio.run(run.go_on(first, reply("no"), reply(GOOD), message="answer"))

    assert isinstance(second, Completed)
    assert second.text == GOOD


def test_a_handed_over_run_is_not_held_to_the_form() -> None:
    """A call for help is no answer."""
    assert isinstance(asyncio.run(Rehearsal(output_schema=FORM).play(escalate())), Suspended)


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "object", "magic": 1}])
def test_a_schema_that_cannot_be_enforced_is_refused(schema: Mapping[str, Json]) -> None:
    """A keyword that nobody checks would be a promise that nobody keeps."""
    with pytest.raises(ContractError, match="output_schema"):
        TurnInput(messages=[UserMessage(text="go")], output_schema=schema)
