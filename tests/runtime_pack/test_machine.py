"""The machine: pure, total for events that fit, and its states survive JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack.approvals import ApprovalRequest, digest_arguments
from runtime_pack.catalog import ToolOutput
from runtime_pack.labels import Label
from runtime_pack.ledger import Shortfall
from runtime_pack.machine import (
    Admission,
    Admitted,
    AskModel,
    AskPeople,
    CheckAnswer,
    Checked,
    Classified,
    Classify,
    Command,
    Commit,
    Ended,
    Event,
    Execute,
    ExecutedCalls,
    Finish,
    IngestedCall,
    Interrupted,
    Outcome,
    OutcomeKind,
    Pending,
    Readmit,
    Readmitted,
    Refused,
    Ruled,
    Rules,
    State,
    Step,
    Thinking,
    TurnLost,
    TurnTaken,
    Waiting,
    advance,
    begin,
    budget_stop,
    failure,
    ingest,
    ingest_call,
    pending_messages,
    refusal,
    result_message,
    resume,
)
from runtime_pack.messages import (
    FinishReason,
    Message,
    ToolCall,
    ToolMessage,
    Turn,
    TurnStatus,
    history_fault,
)
from runtime_pack.state import state_from_json, state_to_json
from runtime_pack.testing import calls, reply

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = Shortfall(budget="steps", limit=1, used=1, reserved=0)
LATE = Shortfall(budget="duration_seconds", limit=1, used=1.5, reserved=0)
rules = st.builds(Rules, max_consecutive_refused=st.integers(1, 3), wrap_up=st.booleans())


def request(call: IngestedCall) -> ApprovalRequest:
    return ApprovalRequest(
        request_id=f"apr-{call.step}",
        run="r",
        task="",
        step=call.step,
        tool=call.call.name,
        tool_sha256="sha256:0",
        arguments=call.arguments,
        arguments_sha256=digest_arguments(call.arguments),
        policy_sha256="sha256:0",
        label=Label(),
        reasons=("because",),
        created_at=NOW,
        expires_at=NOW,
    )


def admissions(draw: st.DrawFn, call: IngestedCall) -> Admission:
    word = draw(st.sampled_from(["admit", "refuse", "short", "late", "ask"]))
    if word == "admit":
        return Admitted()
    if word == "ask":
        return Pending(request=request(call))
    short = {"short": SHORT, "late": LATE}.get(word)
    return Refused(output=refusal("X", "no"), shortfall=short)


def again(draw: st.DrawFn, step: str, call: ToolCall) -> Admission:
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    return admissions(draw, IngestedCall(step=step, call=call, arguments=arguments, raw=None))


def answers(draw: st.DrawFn, command: Command, number: int, taken: dict[str, int]) -> Event:
    """Any event that fits the command."""
    if draw(st.integers(0, 11)) == 0:
        return Interrupted(
            outcome=Outcome(kind=OutcomeKind.CANCELLED), resumable=draw(st.booleans())
        )
    match command:
        case AskModel(final=final):
            if draw(st.integers(0, 5)) == 0:
                lost = draw(
                    st.sampled_from(
                        [
                            failure("model", "MODEL_ERROR", "x"),
                            Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(SHORT)),
                            Outcome(kind=OutcomeKind.SUSPENDED, stop=budget_stop(LATE)),
                        ]
                    )
                )
                return TurnLost(outcome=lost, soft=draw(st.booleans()))
            turn = draw(
                st.sampled_from(
                    [
                        reply("text"),
                        reply("", finish=FinishReason.LENGTH),
                        Turn(status=TurnStatus.ESCALATE, text="?"),
                        calls(("a", "t", "{}")),
                        calls(("a", "t", "{}"), ("a", "u", '{"x":1}'), ("", "t", "{")),
                    ]
                )
            )
            cut = draw(st.booleans())
            asked = () if final else ingest(turn, number=number, taken=taken, cut=cut)
            check = turn.status is TurnStatus.REPLY and draw(st.booleans())
            return TurnTaken(turn=turn, calls=asked, cut=cut, to_check=check)
        case CheckAnswer():
            return Checked(unverified=draw(st.sampled_from([None, "is wrong"])))
        case Classify(calls=asked):
            words = tuple(admissions(draw, call) for call in asked)
            return Classified(admissions=words, misbehaving=draw(st.booleans()))
        case Execute(slots=slots):
            gave = ToolOutput(ok=True, text="ok")
            results = {slot.step: result_message(slot.call, gave) for slot in slots}
            return ExecutedCalls(results=results, misbehaving=draw(st.booleans()))
        case Readmit(slots=slots):
            return Readmitted(
                admissions={slot.step: again(draw, slot.step, slot.call) for slot in slots}
            )
        case AskPeople(requests=requests):
            decided = [r for r in requests if draw(st.booleans())]
            return Ruled(
                admissions={
                    r.step: again(draw, r.step, ToolCall(id="x", name=r.tool, arguments={}))
                    for r in decided
                }
            )
    raise AssertionError(f"{command} is no command that waits")


def restored(state: State, results: dict[str, ToolMessage]) -> State:
    return state_from_json(orjson.loads(orjson.dumps(state_to_json(state))), results)


@settings(max_examples=150, deadline=None)
@given(st.data(), rules)
def test_any_sequence_of_fitting_events_is_taken(data: st.DataObject, rule: Rules) -> None:
    """No raise, a whole history after each step, one waiting command last, and JSON round trips."""
    # The same callable.
    draw: st.DrawFn = data.draw  # type: ignore[assignment]
    step, history, taken = begin(), list[Message](), dict[str, int]()
    results: dict[str, ToolMessage] = {}
    for number in range(1, 30):
        assert step.commands
        assert all(isinstance(command, Commit) for command in step.commands[:-1])
        for command in step.commands[:-1]:
            assert isinstance(command, Commit)
            history.extend(command.messages)
        last = step.commands[-1]
        shown = pending_messages(step.state, {})
        assert history_fault([*history, *shown]) is None
        results = {
            slot.call.id: slot.result for slot in getattr(step.state, "slots", ()) if slot.result
        }
        assert restored(step.state, results) == step.state
        if isinstance(last, Finish):
            if isinstance(step.state, Ended):
                assert resume(step.state).commands == (Finish(outcome=step.state.outcome),)
                return
            step = resume(step.state)
            continue
        step = advance(rule, step.state, answers(draw, last, number, taken))


def test_an_event_that_does_not_fit_is_the_drivers_fault() -> None:
    """It is said, not ignored."""
    with pytest.raises(ValueError):
        advance(Rules(max_consecutive_refused=1, wrap_up=True), Thinking(), Ruled(admissions={}))


def test_the_machine_has_no_state_of_its_own() -> None:
    """The same inputs give the same step."""
    rule = Rules(max_consecutive_refused=3, wrap_up=True)
    event = TurnTaken(turn=reply("x"), calls=(), cut=False)

    assert advance(rule, Thinking(), event) == advance(rule, Thinking(), event)
    assert isinstance(advance(rule, Thinking(), event), Step)


def test_a_closed_batch_says_which_calls_had_begun() -> None:
    """A begun call without a result may have run; one that had not begun did not."""
    rule = Rules(max_consecutive_refused=3, wrap_up=True)
    turn = calls(("a", "t", "{}"), ("b", "t", "{}"), ("c", "t", "{}"))
    asked = ingest(turn, number=1, taken={}, cut=False)
    thinking = advance(rule, begin().state, TurnTaken(turn=turn, calls=asked, cut=False))
    words = (Admitted(), Admitted(), Pending(request=request(asked[2])))
    running = advance(rule, thinking.state, Classified(admissions=words))
    over = Interrupted(
        outcome=Outcome(kind=OutcomeKind.CANCELLED), resumable=False, begun=frozenset({"t1c1"})
    )
    commit = advance(rule, running.state, over).commands[0]

    assert isinstance(commit, Commit)
    told = [orjson.loads(m.text)["executed"] for m in commit.messages if isinstance(m, ToolMessage)]
    assert told == ["unknown", "no", "no"]
    shown = pending_messages(running.state, {}, frozenset({"t1c1"}))
    codes = [orjson.loads(m.text)["code"] for m in shown if isinstance(m, ToolMessage)]
    assert codes == ["OUTCOME_UNKNOWN", "CANCELLED", "APPROVAL_REQUIRED"]


def test_time_ends_the_run_without_a_wrap_up() -> None:
    """Steps that ran out allow one more answer, time that ran out does not; time is named first."""
    rule = Rules(max_consecutive_refused=3, wrap_up=True)
    turn = calls(("a", "t", "{}"), ("b", "t", "{}"))
    asked = ingest(turn, number=1, taken={}, cut=False)
    thinking = advance(rule, begin().state, TurnTaken(turn=turn, calls=asked, cut=False))

    def after(*shorts: Shortfall) -> Step:
        words = tuple(Refused(output=refusal("X", "no"), shortfall=short) for short in shorts)
        return advance(rule, thinking.state, Classified(admissions=words))

    assert isinstance(after(SHORT, SHORT).commands[-1], AskModel)
    finish = after(SHORT, LATE).commands[-1]
    assert isinstance(finish, Finish)
    assert finish.outcome.stop is not None
    assert finish.outcome.stop.shortfall == LATE


def test_waiting_with_nobody_there_stays_as_it_is() -> None:
    """No decision leaves the state untouched, so it can be asked again."""
    rule = Rules(max_consecutive_refused=3, wrap_up=True)
    turn = calls(("a", "t", "{}"))
    asked = ingest(turn, number=1, taken={}, cut=False)
    thinking = advance(rule, begin().state, TurnTaken(turn=turn, calls=asked, cut=False))
    waiting = advance(
        rule, thinking.state, Classified(admissions=(Pending(request=request(asked[0])),))
    )
    step = advance(rule, waiting.state, Ruled(admissions={}))

    assert isinstance(waiting.state, Waiting)
    assert step.state == waiting.state
    assert isinstance(step.commands[-1], Finish)


# ── ingest ──────────────────────────────────────────────────────────────────────────────────────

MALFORMED = {
    "not JSON": "{",
    "an array": "[]",
    "a number": "1",
    "null": "null",
    "nothing": "",
    "NaN": '{"x":NaN}',
    "infinite": '{"x":1e999}',
    "a lone surrogate": '{"x":"\ud800"}',
    "an escaped lone surrogate": '{"x":"\\ud800"}',
    "too deep": '{"x":' + "[" * 64 + "]" * 64 + "}",
    "far too deep": "[" * 100_000,
    "as deep as can be read": '{"x":' + "[" * 900 + "]" * 900 + "}",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_arguments_that_cannot_be_read_or_kept_are_a_fault(raw: str) -> None:
    """The history gets an empty object, the fault says INVALID_JSON."""
    call = ingest_call(ToolCall(id="a", name="t", arguments=raw), step="s", taken={})

    assert call.fault is not None
    assert call.fault.code == "INVALID_JSON"
    assert (call.arguments, call.call.arguments, call.raw) == ({}, {}, raw)


def test_arguments_may_be_nested_as_deep_as_can_be_kept() -> None:
    """Sixty-four levels, as text or as an object, and many shallow ones."""
    deep = '{"x":' + "[" * 63 + "]" * 63 + "}"
    wide = '{"x":[' + ",".join(["[]"] * 200) + "]}"
    for raw in (deep, wide, orjson.loads(deep), orjson.loads(wide)):
        call = ingest_call(ToolCall(id="a", name="t", arguments=raw), step="s", taken={})

        assert call.fault is None
        assert orjson.dumps({"a": {"b": [{"c": call.arguments}]}})


@pytest.mark.parametrize(
    ("raw", "position"),
    [
        ('{"x":18446744073709551616}', 5),
        ('{"x": -9223372036854775809}', 6),
        ('{"x":[1,{"y":100000000000000000000000}]}', 13),
        ('{"x":"9999999999999999999999","y":9999999999999999999999}', 34),
        ('{"a\\"":"\\\\","y":99999999999999999999999}', 16),
        ('{"x":1e5,"y":2.5,"z":123456789012345678901}', 21),
        pytest.param('{"x":' + "9" * 300 + "}", 5, id="long"),
    ],
)
def test_a_whole_number_that_64_bits_do_not_hold_is_a_fault(raw: str, position: int) -> None:
    """It would be read as a rounded one: the call would be about another number, and nobody told."""
    call = ingest_call(ToolCall(id="a", name="t", arguments=raw), step="s", taken={})

    assert call.fault is not None
    assert call.fault.code == "INVALID_JSON"
    assert orjson.loads(call.fault.text)["position"] == position
    assert (call.arguments, call.raw) == ({}, raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('{"x":18446744073709551615}', 2**64 - 1),
        ('{"x":-9223372036854775808}', -(2**63)),
        ('{"x":99999999999999999999.0}', 1e20),
        ('{"x":100000000000000000000e0}', 1e20),
        ('{"x":0.1234567890123456789012}', 0.1234567890123456789012),
        ('{"x":"100000000000000000000"}', "100000000000000000000"),
        ('{"x":"a\\"100000000000000000000"}', 'a"100000000000000000000'),
    ],
)
def test_every_other_number_is_read_as_it_is(raw: str, value: object) -> None:
    """What fits, what says itself that it is a fraction or an exponent, and digits in a text."""
    call = ingest_call(ToolCall(id="a", name="t", arguments=raw), step="s", taken={})

    assert call.fault is None
    assert call.arguments == {"x": value}


@given(st.integers(), st.text(), st.booleans())
def test_a_whole_number_is_read_exactly_or_not_at_all(
    number: int, text: str, negative: bool
) -> None:
    """Beside any text, at any size."""
    number = number * 10**18 * (-1 if negative else 1)
    raw = json.dumps({text: text, "n": number})
    call = ingest_call(ToolCall(id="a", name="t", arguments=raw), step="s", taken={})

    if -(2**63) <= number < 2**64:
        assert call.arguments["n"] == number
        assert type(call.arguments["n"]) is int
    else:
        assert call.fault is not None


@pytest.mark.parametrize("raw", [{"x": {1, 2}}, {1: "x"}, {"x": 2**70}, {"x": "\ud800"}])
def test_an_object_that_is_not_json_is_a_fault(raw: dict[str, object]) -> None:
    """An adapter may hand over anything that Python can hold."""
    call = ingest_call(
        # The fault at hand.
        ToolCall(id="a", name="t", arguments=raw),  # type: ignore[arg-type]
        step="s",
        taken={},
    )

    assert call.fault is not None


@given(st.lists(st.sampled_from(["", "a", "a-2", "b", "\ud800"]), max_size=12))
def test_ids_are_unique_and_an_id_seen_first_is_kept(ids: list[str]) -> None:
    """Whatever a provider repeats, every call of the run has an id of its own."""
    taken: dict[str, int] = {}
    given_ids = [
        ingest_call(ToolCall(id=i, name="t", arguments="{}"), step="s", taken=taken).call.id
        for i in ids
    ]

    assert len(set(given_ids)) == len(ids)
    assert all(one.encode() is not None for one in given_ids)


def test_many_calls_of_one_id_are_told_apart_without_trying_every_suffix_again() -> None:
    """The work grows with the number of calls, also over several responses and after a restart."""

    class Counted(dict[str, int]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            self.asked += 1
            return super().__contains__(key)

    taken = Counted()
    turn = Turn(
        status=TurnStatus.TOOL_REQUEST,
        calls=[ToolCall(id="a", name="t", arguments="{}")] * 1000,
    )
    ingest(turn, number=1, taken=taken, cut=False)
    ids = [call.call.id for call in ingest(turn, number=2, taken=taken, cut=False)]
    again = Counted(dict.fromkeys(taken, 1))
    ingest(turn, number=3, taken=again, cut=False)

    assert ids[-1] == "a-2000"
    assert taken.asked < 4 * 2000
    assert again.asked < 2000 + 4 * 1000


@given(st.text(), st.text(), st.text())
def test_ingest_is_total(id_: str, name: str, raw: str) -> None:
    """Any text becomes a call that can be stored."""
    call = ingest_call(ToolCall(id=id_, name=name, arguments=raw), step="s", taken={})

    assert orjson.dumps([call.call.id, call.call.name, call.call.arguments])
