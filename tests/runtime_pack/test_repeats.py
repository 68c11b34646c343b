"""Calls that go in circles."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    CatalogTool,
    Completed,
    ContractError,
    ExecutionContext,
    LoopError,
    LoopResult,
    MemoryRunStore,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    ToolMessage,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    Verdict,
)
from runtime_pack.labels import CLEAN
from runtime_pack.messages import Json
from runtime_pack.repeats import WINDOW, Recorded, Repeats, Stuck, fingerprint_of
from runtime_pack.state import spec_from_json
from runtime_pack.testing import Rehearsal, ScriptedApprover, ToolShelf, calls, escalate, reply

NO_FENCE: frozenset[str] = frozenset()


def call(x: str = "", tool: str = "t:echo", **more: Json) -> Turn:
    return calls(("a", tool, {"x": x, **more}))


def told(result: LoopResult) -> list[str | None]:
    """Of each result: its code, when it was answered from the record."""
    return [
        orjson.loads(m.text.partition("\n")[0])["code"] if "REPEATED_CALL" in m.text else None
        for m in result.messages
        if isinstance(m, ToolMessage)
    ]


def stopped(result: LoopResult) -> str | None:
    return None if result.stop is None else str(result.stop.code)


# ── in a run ──────────────────────────────────────────────────────────────────────────────────


def test_l9_a_call_that_gives_the_same_is_answered_from_the_record_and_then_ends_the_run() -> None:
    """Two run, the third and fourth are answered with a notice, the fifth ends the run."""
    shelf = ToolShelf().add("t:echo", "found nothing")

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[call("same")] * 5))

    assert shelf.ran["t:echo"] == 2
    assert isinstance(result, LoopError)
    assert (stopped(result), "loop") == (StopCode.NO_PROGRESS, result.stop and result.stop.stage)
    assert [None, None, "REPEATED_CALL", "REPEATED_CALL", "REPEATED_CALL"] == told(result)
    third = [m for m in result.messages if isinstance(m, ToolMessage)][2]
    assert third.text.endswith("\nfound nothing")
    assert third.ok
    assert result.ledger.used["steps"] == 2
    assert result.ledger.refused == 3
    codes = [step.code for step in result.steps if step.tool == "t:echo"]
    assert codes == [None, None] + ["REPEATED_CALL"] * 3


def test_l9_changing_one_argument_resets() -> None:
    """The other call runs, and the first one may be asked for again."""
    shelf = ToolShelf().add("t:echo")
    script = [call("x"), call("x"), call("y"), call("x"), call("x"), reply()]

    result = asyncio.run(Rehearsal(shelf=shelf).play(*script))

    assert isinstance(result, Completed)
    assert shelf.ran["t:echo"] == 5


def test_l9_another_result_resets() -> None:
    """What changes is progress, whatever the arguments."""
    counter = itertools.count()

    async def changing(context: ExecutionContext) -> Json:
        return next(counter)

    shelf = ToolShelf().add("t:echo", does=changing)

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[call()] * 6, reply()))

    assert isinstance(result, Completed)
    assert shelf.ran["t:echo"] == 6


@pytest.mark.parametrize("length", [2, 3, 4])
def test_l9_a_circle_of_calls_is_seen(length: int) -> None:
    """A-B-A-B, then A: each call runs twice, and the run ends in the fifth round."""
    shelf = ToolShelf().add("t:echo")
    circle = [call(str(number)) for number in range(length)]
    script = (circle * 5)[: 4 * length + 1]
    contract = TaskContract(max_consecutive_refused=20)

    result = asyncio.run(Rehearsal(shelf=shelf, contract=contract).play(*script))

    assert shelf.ran["t:echo"] == 2 * length
    assert stopped(result) == StopCode.NO_PROGRESS


def test_a_circle_in_one_response_is_seen() -> None:
    """Two calls in each response are a circle as well."""
    shelf = ToolShelf().add("t:echo")
    both = calls(("a", "t:echo", {"x": "1"}), ("b", "t:echo", {"x": "2"}))

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[both] * 5))

    assert shelf.ran["t:echo"] == 4
    assert stopped(result) == StopCode.NO_PROGRESS


def test_equal_calls_of_one_response_are_one() -> None:
    """They all run: the model could not know what the first would give; the third round does not."""
    shelf = ToolShelf().add("t:echo")
    batch = calls(*((f"c{number}", "t:echo", "{}") for number in range(12)))

    result = asyncio.run(Rehearsal(shelf=shelf).play(batch, batch, batch, reply()))

    assert shelf.ran["t:echo"] == 24
    assert told(result) == [None] * 24 + ["REPEATED_CALL"] * 12


def test_a_tool_that_is_polled_is_asked_as_often_as_the_budget_allows() -> None:
    """`poll=True`: the same call, the same result, and every one of them runs."""
    shelf = ToolShelf().add("t:wait")
    spec = ToolSpec(name="t:wait", description="", parameters=shelf.specs[0].parameters, poll=True)
    shelf.tools[0] = CatalogTool(spec=spec, handler=shelf.tools[0].handler)

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[call(tool="t:wait")] * 8, reply()))

    assert isinstance(result, Completed)
    assert shelf.ran["t:wait"] == 8


def noted(cosmetic: tuple[str, ...]) -> ToolShelf:
    words = {"type": "string"}
    shelf = ToolShelf().add(
        "t:echo", parameters={"type": "object", "properties": {"x": words, "why": words}}
    )
    spec = ToolSpec(
        name="t:echo",
        description="",
        parameters=shelf.specs[0].parameters,
        cosmetic=cosmetic,
    )
    shelf.tools[0] = CatalogTool(spec=spec, handler=shelf.tools[0].handler)
    return shelf


@pytest.mark.parametrize(("cosmetic", "ran"), [(("why",), 2), ((), 5), (("x",), 5)])
def test_l10_only_declared_cosmetic_fields_are_ignored(cosmetic: tuple[str, ...], ran: int) -> None:
    """A note on why makes no other call of it, if the tool says so; any other field does."""
    shelf = noted(cosmetic)
    script = [call("same", why=str(number)) for number in range(5)]

    asyncio.run(Rehearsal(shelf=shelf).play(*script, *([] if ran == 2 else [reply()])))

    assert shelf.ran["t:echo"] == ran


def test_a_failure_that_repeats_is_a_repeat() -> None:
    """The third identical failure is answered from the record, as a failure."""
    shelf = ToolShelf().add("t:echo", RuntimeError())

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[call()] * 3, reply()))

    assert shelf.ran["t:echo"] == 2
    assert [m.ok for m in result.messages if isinstance(m, ToolMessage)] == [False] * 3


def test_the_answer_from_the_record_has_the_label_of_the_record() -> None:
    """What came from outside stays so when it is told again."""
    shelf = ToolShelf().add("t:echo")

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[call()] * 3, reply()))

    labels = [m.label for m in result.messages if isinstance(m, ToolMessage)]
    assert labels[2] == labels[0]
    assert labels[0] != CLEAN


def test_two_fences_around_one_text_are_one_result() -> None:
    """The nonce of a fence differs each time, and makes no other result of it."""
    numbers = itertools.count(1)

    def frame(text: str, *, source: str, burned: set[str]) -> str:
        nonce = f"{next(numbers):032x}"
        burned.add(nonce)
        return f"<fence {nonce}>{text}</fence {nonce}>"

    shelf = ToolShelf().add("t:echo")

    result = asyncio.run(Rehearsal(shelf=shelf, frame=frame).play(*[call()] * 3, reply()))

    assert shelf.ran["t:echo"] == 2
    assert told(result)[2] == "REPEATED_CALL"


def test_a_text_that_only_looks_like_a_nonce_is_a_difference() -> None:
    """Digests in a page are no nonces of this run."""
    numbers = itertools.count(1)

    async def digest(context: ExecutionContext) -> Json:
        return f"{next(numbers):032x}"

    shelf = ToolShelf().add("t:echo", does=digest)

    asyncio.run(Rehearsal(shelf=shelf).play(*[call()] * 4, reply()))

    assert shelf.ran["t:echo"] == 4


def test_the_circle_goes_on_in_the_next_process() -> None:
    """The window is in the saved state: two calls before a pause and one after it are three."""
    shelf = ToolShelf()
    run = Rehearsal(shelf=shelf, store=MemoryRunStore(), seal=Seal.random())

    async def pausing(context: ExecutionContext) -> Json:
        if shelf.ran["t:echo"] == 2:
            run.run.pause("later", mode="after_step")
        return "same"

    shelf.add("t:echo", does=pausing)

    first = asyncio.run(run.play(call(), call()))
    second = asyncio.run(run.go_on(first, call(), call(), call()))

    assert isinstance(first, Suspended)
    assert shelf.ran["t:echo"] == 2
    assert stopped(second) == StopCode.NO_PROGRESS


def test_a_word_of_the_user_is_progress() -> None:
    """After a message the same call may be asked for again."""
    shelf = ToolShelf().add("t:echo")
    run = Rehearsal(shelf=shelf, seal=Seal.random())

    first = asyncio.run(run.play(call(), call(), call(), escalate()))
    second = asyncio.run(run.go_on(first, call(), reply(), message="once more, please"))

    assert isinstance(second, Completed)
    assert shelf.ran["t:echo"] == 3


def test_nobody_is_asked_about_a_call_that_goes_in_a_circle() -> None:
    """The record answers before a person would be asked a third time."""
    shelf = ToolShelf().add("t:gate")
    policy = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
    approver = ScriptedApprover([Verdict.APPROVE] * 2)
    run = Rehearsal(shelf=shelf, contract=TaskContract(tool_policy=policy), approver=approver)

    result = asyncio.run(run.play(*[call(tool="t:gate")] * 3, reply()))

    assert isinstance(result, Completed)
    assert shelf.ran["t:gate"] == 2
    approver.assert_used_up()


def test_a_restored_answer_is_not_asked_of_the_tool() -> None:
    """A run that crashed in a circle and lost its results does not take nothing for a result."""
    repeats = Repeats()
    rows: list[Mapping[str, Json]] = [
        {"fingerprint": "f", "step": f"t{n}c1", "call": f"c{n}", "answered": False} for n in (1, 2)
    ]
    repeats.restore(rows, {})

    assert repeats.judge("f", "t3c1", NO_FENCE) is None


def test_siblings_of_a_call_that_ends_the_run_still_run() -> None:
    """Each call of the last response has its result."""
    shelf = ToolShelf().add("t:echo").add("t:other")
    last = calls(("a", "t:echo", {"x": ""}), ("b", "t:other", "{}"))

    result = asyncio.run(Rehearsal(shelf=shelf).play(*[call()] * 4, last))

    assert shelf.ran["t:other"] == 1
    assert stopped(result) == StopCode.NO_PROGRESS


# ── the window ────────────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from("abcde")


def played(script: list[tuple[str, str]]) -> list[Recorded | Stuck | None]:
    """The verdicts on calls, each as (fingerprint, result), one a response."""
    repeats = Repeats()
    verdicts: list[Recorded | Stuck | None] = []
    for number, (name, result) in enumerate(script):
        step = f"t{number}c1"
        verdict = repeats.judge(name, step, NO_FENCE)
        if verdict is None:
            repeats.note(name, step, f"id{number}")
            repeats.settle(step, Recorded(result, ok=True, label=CLEAN))
        verdicts.append(verdict)
    return verdicts


@given(st.lists(st.tuples(NAMES, st.sampled_from("01")), max_size=40))
def test_nothing_is_answered_that_did_not_run_twice(script: list[tuple[str, str]]) -> None:
    """An answer from the record is what the last two runs of the same call gave."""
    given_results: dict[str, list[str]] = {}
    for (name, result), verdict in zip(script, played(script), strict=True):
        ran = given_results.setdefault(name, [])
        if verdict is None:
            ran.append(result)
            continue
        assert len(ran) >= 2
        assert ran[-1] == ran[-2]
        assert isinstance(verdict, Stuck) or verdict.text == ran[-1]


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True), st.lists(NAMES, max_size=6))
def test_every_short_circle_ends(circle: list[str], before: list[str]) -> None:
    """Whatever came before: a circle of up to four calls gets stuck within seven rounds."""
    script = [(name, "same") for name in (*before, *(circle * 7))]

    assert any(isinstance(verdict, Stuck) for verdict in played(script))


@given(st.lists(st.tuples(NAMES, st.sampled_from("01")), max_size=20))
def test_the_window_survives_saving(script: list[tuple[str, str]]) -> None:
    """Saved and restored after each call, the verdicts are the same."""
    repeats = Repeats()
    verdicts: list[Recorded | Stuck | None] = []
    results: dict[str, ToolMessage] = {}
    for number, (name, result) in enumerate(script):
        step = f"t{number}c1"
        verdict = repeats.judge(name, step, NO_FENCE)
        if verdict is None:
            repeats.note(name, step, f"id{number}")
            repeats.settle(step, Recorded(result, ok=True, label=CLEAN))
            results[f"id{number}"] = ToolMessage(
                call_id=f"id{number}", name=name, text=result, ok=True, label=CLEAN
            )
        verdicts.append(verdict)
        rows = orjson.loads(orjson.dumps(repeats.to_json()))
        assert len(rows) <= WINDOW
        repeats = Repeats()
        repeats.restore(rows, results)

    assert verdicts == played(script)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-(2**63), 2**63)))
def test_a_fingerprint_does_not_depend_on_the_order_of_fields(fields: dict[str, Json]) -> None:
    """Two spellings of one object are one call; another tool is another call."""
    turned = dict(reversed(fields.items()))

    assert fingerprint_of("t:a", fields) == fingerprint_of("t:a", turned)
    assert fingerprint_of("t:a", fields) != fingerprint_of("t:b", fields)


# ── the declaration ───────────────────────────────────────────────────────────────────────────

PLAIN: Mapping[str, Json] = {"type": "object", "properties": {"x": {"type": "string"}}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"poll": 1},
        {"exclusive": "yes"},
        {"cosmetic": "x"},
        {"cosmetic": ["y"]},
        {"cosmetic": [1]},
        {"cosmetic": None},
    ],
)
def test_a_declaration_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    """A misspelt parameter would leave the guard blind without a word."""
    with pytest.raises(ContractError):
        # What is wrong is the case at hand.
        ToolSpec(name="t:a", description="", parameters=PLAIN, **wrong)  # type: ignore[arg-type]


def test_a_declaration_is_saved_and_changes_the_digest() -> None:
    """It stands in the definition when it says something, and only then."""
    plain = ToolSpec(name="t:a", description="", parameters=PLAIN)
    full = ToolSpec(
        name="t:a", description="", parameters=PLAIN, poll=True, cosmetic=["x"], exclusive=True
    )

    assert not {"poll", "cosmetic", "exclusive"} & set(plain.to_json())
    assert spec_from_json(orjson.loads(orjson.dumps(full.to_json()))) == full
    assert plain.sha256 != full.sha256


def test_an_output_that_says_repeated_itself_changes_nothing() -> None:
    """A tool may use the word as its own code; the run goes on."""
    output = ToolOutput(ok=False, text="x", code="REPEATED_CALL")
    shelf = ToolShelf().add("t:echo", output)

    result = asyncio.run(Rehearsal(shelf=shelf).play(call("1"), call("2"), reply()))

    assert isinstance(result, Completed)


def test_a_result_that_swings_is_no_circle() -> None:
    """One call whose result changes each time is told something new each time."""
    assert played([("a", "01"[n % 2]) for n in range(12)]) == [None] * 12
    swinging = [("a", "0"), ("a", "1"), ("b", "0")] * 2
    assert played([*swinging, ("a", "0")]) == [None] * 7
