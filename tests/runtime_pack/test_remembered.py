"""What people said holds for later calls: a denial always, an approval as far as they said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    AuditLog,
    Completed,
    Confidentiality,
    ContractError,
    Decision,
    ExecutionContext,
    Integrity,
    Label,
    LoopError,
    LoopResult,
    MemoryRunStore,
    Remember,
    RememberedRule,
    Seal,
    StopCode,
    TaskContract,
    ToolPolicy,
    ToolRule,
    create_agent_runtime,
    create_agent_task_run,
)
from runtime_pack.approvals import DecisionRefused, RememberScope, parse_decision
from runtime_pack.errors import StateRefused
from runtime_pack.labels import join
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.remembered import Asked, Denied, Memory
from runtime_pack.repeats import fingerprint_of
from runtime_pack.seal import check_rule, seal_rule
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
)

KEY: Final = b"k" * 32
ASK: Final = ToolRule(tool="t:gate", approval_class="request_user", reason="it writes")


def gate(**arguments: object) -> Any:
    return calls(("a", "t:gate", orjson.dumps(arguments).decode()))


# A tool's own output is no longer only the user's word: a person says that this is fine.
INTERNAL: Final = {"integrity": "internal", "confidentiality": "workspace"}


def shelf(**options: Any) -> ToolShelf:
    parameters: dict[str, Json] = {
        "type": "object",
        "properties": {name: {"type": ["string", "integer", "boolean"]} for name in "xyn"},
    }
    return (
        ToolShelf()
        .add("t:gate", parameters=parameters, output_trust="internal", **options)
        .add("t:read")
    )


def rehearsal(*rules: ToolRule, **options: Any) -> Rehearsal:
    options.setdefault("store", MemoryRunStore(Seal(KEY)))
    options.setdefault("shelf", shelf())
    contract = TaskContract(tool_policy=ToolPolicy([ASK, *rules]))
    return Rehearsal(contract=contract, **options)


def said(request: ApprovalRequest, verdict: str = "approve", **more: Any) -> Decision:
    return Decision(request_id=request.request_id, verdict=verdict, decided_by="ann", **more)


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


# ── denial memory ─────────────────────────────────────────────────────────────────────────────


class Counting:
    """An approver that says no, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        self.asked.append(request.request_id)
        return said(request, "deny", reason="not this")


def test_a8_a_denied_call_is_asked_about_once() -> None:
    """Asked again it is denied with a pointer to the decision; the second time the run ends."""

    async def scenario() -> None:
        people = Counting()
        stage = rehearsal(approver=people)
        result = await stage.play(gate(x="1"), gate(x="1"), gate(x="1"))

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.NO_PROGRESS
        assert len(people.asked) == 1
        assert stage.shelf.ran == {}
        results = [orjson.loads(m.text) for m in result.messages if isinstance(m, ToolMessage)]
        assert [body["code"] for body in results] == ["DENIED_BY_PERSON"] * 3
        assert [body.get("request") for body in results] == [None, *people.asked * 2]
        assert "not this" in results[1]["message"]
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_a8_over_resumes_the_person_is_asked_once() -> None:
    """The memory is in the saved run: another process denies as well."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(gate(x="1"))
        result = await stage.go_on(
            first, gate(x="1"), gate(x="1"), decisions=[said(first.requests[0], "deny")]
        )

        assert isinstance(result, LoopError)
        assert told(result) == ["DENIED_BY_PERSON"] * 3

    asyncio.run(scenario())


def test_a_denial_is_still_known_after_a_further_suspension() -> None:
    """Saved, loaded, and still one decision; counts go on where they were."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(gate(x="1"))
        second = await stage.go_on(
            first, gate(x="1"), gate(x="2"), decisions=[said(first.requests[0], "deny")]
        )
        assert isinstance(second, ApprovalRequired)
        assert [request.arguments["x"] for request in second.requests] == ["2"]
        result = await stage.go_on(second, gate(x="1"), decisions=[said(second.requests[0])])

        assert isinstance(result, LoopError)
        assert stage.shelf.calls == [("t:gate", {"x": "2"})]

    asyncio.run(scenario())


def test_other_arguments_are_another_call() -> None:
    """Only what was denied is denied; 1 and True are not the same argument."""

    async def scenario() -> None:
        people = Counting()
        stage = rehearsal(approver=people)
        await stage.play(gate(x=1), gate(x=True), reply())

        assert len(people.asked) == 2

    asyncio.run(scenario())


def test_a_whole_number_is_the_same_however_it_is_written() -> None:
    """5.0 is 5, at any depth, as the tool's schema has it; 5.5, "5" and true are others."""

    async def scenario() -> None:
        people = Counting()
        parameters: dict[str, Json] = {"type": "object", "properties": {"x": {"type": "array"}}}
        tools = ToolShelf().add("t:gate", parameters=parameters)
        stage = rehearsal(approver=people, shelf=tools)
        result = await stage.play(gate(x=[{"y": 5}]), gate(x=[{"y": 5.0}]), reply())
        assert len(people.asked) == 1
        assert told(result) == ["DENIED_BY_PERSON"] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (5, 5.0, True),
        (-0.0, 0, True),
        (1e19, 10**19, True),
        ([1.0, {"a": (2.0,)}], [1, {"a": [2]}], True),
        (5, 5.5, False),
        (1, True, False),
        (5, "5", False),
        (1e300, 1e301, False),
    ],
)
def test_calls_that_ask_for_the_same_share_a_fingerprint(one: Any, other: Any, same: bool) -> None:
    """Numbers by their value, and nothing else by more than it is."""
    assert (fingerprint_of("t", {"x": one}) == fingerprint_of("t", {"x": other})) is same


def test_a_cosmetic_argument_does_not_make_it_another_call() -> None:
    """What the tool declares as cosmetic does not count, and nothing else."""

    async def scenario() -> None:
        people = Counting()
        stage = rehearsal(approver=people, shelf=shelf(cosmetic=("n",)))
        await stage.play(gate(x="1", n="please"), gate(x="1", n="pretty please"), reply())

        assert len(people.asked) == 1

    asyncio.run(scenario())


def test_two_equal_calls_of_one_response_count_once() -> None:
    """The model could not know of the first when it asked for the second."""

    async def scenario() -> None:
        people = Counting()
        both = calls(("a", "t:gate", '{"x":"1"}'), ("b", "t:gate", '{"x":"1"}'))
        result = await rehearsal(approver=people).play(gate(x="1"), both, reply())

        assert isinstance(result, Completed)
        assert len(people.asked) == 1

    asyncio.run(scenario())


def test_what_expired_or_was_withdrawn_was_not_denied() -> None:
    """Nobody said no: the same call is asked about again."""

    async def scenario() -> None:
        clock = MovableClock()
        stage = rehearsal(clock=clock)
        first = await stage.play(gate(x="1"))
        clock.move(73 * 3600)
        second = await stage.go_on(first, gate(x="1"))
        assert isinstance(second, ApprovalRequired)
        third = await stage.go_on(second, gate(x="1"), message="on", abandon=True)
        assert isinstance(third, ApprovalRequired)

    asyncio.run(scenario())


def test_a_new_message_forgives_repeats_and_not_the_denial() -> None:
    """A person has said something new, and the person who denied has not."""

    async def scenario() -> None:
        people = Counting()
        stage = rehearsal(approver=people)
        first = await stage.play(gate(x="1"), gate(x="1"), reply())
        result = await stage.go_on(first, gate(x="1"), reply(), message="try it again")

        assert isinstance(result, Completed)
        assert told(result) == ["DENIED_BY_PERSON"] * 3
        assert len(people.asked) == 1

    asyncio.run(scenario())


def test_a_denied_edit_denies_what_the_model_had_asked_for_too() -> None:
    """Asked again with edited arguments and then denied: neither form is asked about again."""

    async def scenario() -> None:
        stage = rehearsal(
            ToolRule(tool="t:gate", approval_class="request_user", when=lambda a: a["x"] == "2")
        )
        stage.contract = attrs.evolve(stage.contract, max_consecutive_refused=9)
        first = await stage.play(gate(x="1"))
        second = await stage.go_on(
            first, decisions=[said(first.requests[0], edited_args={"x": "2"})]
        )
        result = await stage.go_on(
            second, gate(x="1"), gate(x="2"), reply(), decisions=[said(second.requests[0], "deny")]
        )

        assert isinstance(result, Completed)
        assert told(result) == ["DENIED_BY_PERSON"] * 3

    asyncio.run(scenario())


def test_a_direct_caller_is_denied_from_memory_too() -> None:
    """The rule is the guard's, not the loop's."""

    async def scenario() -> None:
        people, tools = Counting(), shelf()
        run = create_agent_task_run(TaskContract(tool_policy=ToolPolicy([ASK])), approver=people)
        guarded = run.guard_runtime(
            create_agent_runtime(model=ScriptedModel(()), tools=tools.tools)
        )
        for _ in range(3):
            output = await guarded.execute_tool("t:gate", {"x": "1"}, ExecutionContext())
            assert output.code == "DENIED_BY_PERSON"
        assert len(people.asked) == 1

    asyncio.run(scenario())


# ── remembered approvals ──────────────────────────────────────────────────────────────────────


async def remembered(stage: Rehearsal, remember: Any, *script: Any, **first: Any) -> LoopResult:
    """A run whose first gated call was approved to be remembered, driven on."""
    waiting = await stage.play(gate(**(first or {"x": "1"})))
    word = said(waiting.requests[0], remember={"max_label": INTERNAL, **remember})
    return await stage.go_on(waiting, *script, decisions=[word])


def test_a_remembered_approval_answers_the_same_call() -> None:
    """Nobody is asked; other arguments are asked about."""

    async def scenario() -> None:
        stage = rehearsal()
        result = await remembered(stage, {}, gate(x="1"), gate(x="2"))

        assert isinstance(result, ApprovalRequired)
        assert stage.shelf.ran == {"t:gate": 2}
        assert [request.arguments["x"] for request in result.requests] == ["2"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("later", "asked"),
    [
        ({"x": "1", "n": "other"}, False),
        ({"x": "1"}, False),
        ({"x": "2", "n": "1"}, True),
        ({"n": "1"}, True),
        ({"x": "1", "y": "1"}, True),
    ],
    ids=str,
)
def test_named_fields_have_to_be_equal(later: dict[str, str], asked: bool) -> None:
    """A named argument that was absent has to be absent; others do not count."""

    async def scenario() -> None:
        stage = rehearsal()
        script = [gate(**later)] if asked else [gate(**later), reply()]
        result = await remembered(stage, {"fields": ["x", "y"]}, *script, x="1", n="1")

        assert isinstance(result, ApprovalRequired if asked else Completed)

    asyncio.run(scenario())


@pytest.mark.parametrize("fields", [["t0"], ["x", "t0"], ["X"], [""], ["y"]], ids=str)
@pytest.mark.parametrize("store", [True, False], ids=["resume", "approver"])
def test_a_field_that_is_no_argument_makes_the_decision_none(
    fields: list[str], store: bool
) -> None:
    """Absent from every call, it would hold for every call; nothing runs, and the request is open."""

    async def scenario() -> None:
        stage = rehearsal(approver=None if store else Remembering(fields))
        waiting = await stage.play(gate(x="1"))
        (request,) = waiting.requests

        assert isinstance(waiting, ApprovalRequired)
        assert not stage.shelf.ran

        stage.approver = None
        wrong = said(request, remember={"fields": fields})
        refused = await stage.go_on(waiting, decisions=[wrong])

        assert refused.stop is not None
        assert refused.stop.code == StopCode.DECISION_REFUSED
        absent = "remember.fields: the approved call of t:gate has none of 'y'"
        unknown = "of t:gate; there are: n, x, y"
        assert (absent if fields == ["y"] else unknown) in refused.stop.message
        assert refused.requests == (request,)
        assert not stage.shelf.ran

        right = said(request, remember={"fields": ["x"]})
        result = await stage.go_on(waiting, reply(), decisions=[right])

        assert isinstance(result, Completed)
        assert stage.shelf.ran == {"t:gate": 1}

    asyncio.run(scenario())


class Remembering:
    """An approver that says yes, to be remembered for these fields."""

    def __init__(self, fields: list[str]) -> None:
        self.fields = fields

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        return said(request, remember={"fields": self.fields})


def test_a_field_that_is_no_argument_is_refused_when_the_tool_is_known() -> None:
    """Whoever reads the decision can say so to the person at once."""
    body = {
        "request_id": "apr-1",
        "verdict": "approve",
        "decided_by": "ann",
        "remember": {"fields": ["t0"]},
    }
    (spec, _) = shelf().specs

    with pytest.raises(DecisionRefused) as refused:
        parse_decision(body, spec)

    text = "remember.fields: 't0' is no argument of t:gate; there are: n, x, y"
    assert str(refused.value) == text


def test_a_direct_call_is_not_run_by_such_a_decision() -> None:
    """The guard itself refuses it: nothing runs, and nothing is remembered."""

    async def scenario() -> None:
        tools, contract = shelf(), TaskContract(tool_policy=ToolPolicy([ASK]))
        run = create_agent_task_run(contract, approver=Remembering(["t0"]))
        guarded = run.guard_runtime(
            create_agent_runtime(model=ScriptedModel([]), tools=tools.tools)
        )
        output = await guarded.execute_tool("t:gate", {"x": "1"}, ExecutionContext())

        assert output.code == "POLICY_ERROR"
        assert not tools.ran
        assert run.remembered == ()

    asyncio.run(scenario())


@pytest.mark.parametrize("field", ["t0", "y"])
def test_a_rule_of_an_earlier_version_about_no_argument_answers_nothing(field: str) -> None:
    """It was sealed when nobody looked, and a person is asked all the same."""

    async def scenario() -> None:
        stage = rehearsal()
        waiting = await stage.play(gate(x="1"))
        word = said(waiting.requests[0], remember={"max_label": INTERNAL})
        await stage.go_on(waiting, reply(), decisions=[word])
        (rule,) = stage.run.remembered
        vacuous = attrs.evolve(
            rule, scope=RememberScope.TASK, task="t", fields=(field,), arguments={}, uses=0
        )

        stage = rehearsal(task="t", seal=Seal(KEY))
        stage.remembered = (seal_rule(Seal(KEY), vacuous),)
        result = await stage.play(gate(x="2"))

        assert isinstance(result, ApprovalRequired)

    asyncio.run(scenario())


def test_an_approval_is_remembered_as_often_as_was_said() -> None:
    """After its uses it is worth nothing."""

    async def scenario() -> None:
        stage = rehearsal()
        remember = {"max_uses": 2, "fields": ["x"]}
        script = [gate(x="1", n=str(n)) for n in range(3)]
        result = await remembered(stage, remember, *script)

        assert isinstance(result, ApprovalRequired)
        assert stage.shelf.ran == {"t:gate": 3}
        assert [rule.uses for rule in stage.run.remembered] == [2]

    asyncio.run(scenario())


def test_an_approval_is_remembered_as_long_as_was_said() -> None:
    """At its end it is worth nothing, over processes too."""

    async def scenario() -> None:
        clock = MovableClock()
        stage = rehearsal(clock=clock)
        first = await remembered(stage, {"lasts_seconds": 60}, gate(x="1"), reply())
        clock.move(59)
        second = await stage.go_on(first, gate(x="1"), reply(), message="on")
        assert isinstance(second, Completed)
        clock.move(1)
        third = await stage.go_on(second, gate(x="1"), message="on")
        assert isinstance(third, ApprovalRequired)

    asyncio.run(scenario())


def test_a_remembered_approval_does_not_beat_a_worse_context() -> None:
    """By default it holds under the label that the person saw; a person may say how far."""

    async def scenario(label: Any, *before: Any) -> LoopResult:
        stage = rehearsal()
        last = [] if label in {None, "internal"} else [reply()]
        remember = {"max_label": label and {**INTERNAL, "integrity": label}}
        return await remembered(stage, remember, *before, gate(x="1"), *last)

    read = calls(("r", "t:read", "{}"))

    assert isinstance(asyncio.run(scenario(None)), ApprovalRequired)
    assert isinstance(asyncio.run(scenario("internal", read)), ApprovalRequired)
    assert isinstance(asyncio.run(scenario("external", read)), Completed)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (ToolRule(tool="t:gate", approval_class="deny", when=lambda a: a["n"] == "2"), "POLICY_DENIED"),
        (ToolRule(tool="t:gate", approval_class="request_user", when=lambda a: a["n"] == "2"), None),
    ],
    ids=["deny", "a new reason"],
)  # fmt: skip
def test_a_remembered_approval_beats_no_rule(rule: ToolRule, code: str | None) -> None:
    """A deny denies, and a reason that the person was not shown is asked about."""

    async def scenario() -> None:
        stage = rehearsal(rule)
        last = [] if code is None else [reply()]
        result = await remembered(stage, {"fields": ["x"]}, gate(x="1", n="2"), *last, x="1", n="1")

        assert stage.shelf.ran == {"t:gate": 1}
        if code is None:
            assert isinstance(result, ApprovalRequired)
        else:
            assert told(result) == [None, code]

    asyncio.run(scenario())


def test_a_later_denial_beats_a_remembered_approval() -> None:
    """The last word on exactly this call was no."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await remembered(
            stage, {"fields": ["x"], "max_uses": 1}, gate(x="1", n="1"), gate(x="1", n="2"),
        )  # fmt: skip
        word = said(first.requests[0], "deny")
        second = await stage.go_on(first, gate(x="3", n="2"), decisions=[word])
        word = said(second.requests[0], remember={"fields": ["n"], "max_label": INTERNAL})
        result = await stage.go_on(second, gate(x="1", n="2"), reply(), decisions=[word])

        assert told(result)[-1] == "DENIED_BY_PERSON"

    asyncio.run(scenario())


def test_a_redefined_tool_is_not_the_one_that_was_approved() -> None:
    """The rule is bound to the definition."""

    async def scenario() -> None:
        stage = rehearsal(task="t")
        await remembered(stage, {"scope": "task"}, reply())
        rules = stage.run.remembered
        stage.remembered, stage.shelf = rules, shelf(timeout_seconds=1.0)
        stage.store = MemoryRunStore(Seal(KEY))

        assert isinstance(await stage.play(gate(x="1")), ApprovalRequired)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("scope", "task", "key", "holds"),
    [
        ("task", "t", KEY, True),
        ("task", "other", KEY, False),
        ("task", "", KEY, False),
        ("run", "t", KEY, False),
        ("task", "t", b"o" * 32, False),
    ],
)
def test_an_approval_holds_in_other_runs_only_if_it_was_said_so(
    scope: str, task: str, key: bytes, holds: bool
) -> None:
    """Of the same task, in a store of the same key; uses go on where they were."""

    async def scenario() -> None:
        stage = rehearsal(task="t" if task else "")
        await remembered(stage, {"scope": scope, "max_uses": 2}, gate(x="1"), reply())
        stage.remembered, stage.task = stage.run.remembered, task
        stage.store = MemoryRunStore(Seal(key))
        result = await stage.play(gate(x="1"), *([reply()] if holds else []))

        assert isinstance(result, Completed if holds else ApprovalRequired)
        if holds:
            assert [rule.uses for rule in stage.run.remembered] == [2]

    asyncio.run(scenario())


def test_uses_in_another_run_of_the_task_do_not_go_back_when_a_run_is_taken_up() -> None:
    """The saved run knows fewer of them than what it is given."""

    async def scenario() -> None:
        stage = rehearsal(task="t")
        first = await remembered(stage, {"scope": "task", "max_uses": 1}, reply())
        fresh = stage.run.remembered
        other = rehearsal(task="t", store=MemoryRunStore(Seal(KEY)), remembered=fresh)
        assert isinstance(await other.play(gate(x="1"), reply()), Completed)
        stage.remembered = other.run.remembered
        result = await stage.go_on(first, gate(x="1"), message="more")

        assert isinstance(result, ApprovalRequired)
        assert [rule.uses for rule in stage.run.remembered] == [1]

    asyncio.run(scenario())


@pytest.mark.parametrize(("given", "saved"), [(0, 1), (1, 0), (2, 2)])
def test_of_a_rule_that_is_given_and_saved_the_one_with_more_uses_counts(
    given: int, saved: int
) -> None:
    """Whichever is behind; neither forgets what was used up."""
    rule = RememberedRule(
        rule_id="r", scope=RememberScope.TASK, run="r", task="t", tool="t", tool_sha256="d",
        fields=None, arguments={}, reasons=(), max_label=Label(), created_at=NOW,
        expires_at=None, max_uses=5, request_id="q", decided_by="p",
    )  # fmt: skip
    memory, again = Memory(), Memory()
    memory.keep(attrs.evolve(rule, uses=saved))
    again.keep(attrs.evolve(rule, uses=given))
    again.restore(orjson.loads(orjson.dumps(memory.to_json())))

    assert [rule.uses for rule in again.rules] == [max(given, saved)]


@pytest.mark.parametrize(
    "change",
    [
        {"max_uses": 1000},
        {"uses": 0},
        {"tool": "t:read"},
        {"arguments": {}},
        {"fields": ()},
        {"seal": ""},
        {"expires_at": None},
    ],
    ids=str,
)
def test_a_remembered_approval_of_another_hand_is_worth_nothing(change: dict[str, Any]) -> None:
    """It is kept outside the state too: what was changed there answers no call."""

    async def scenario() -> None:
        stage = rehearsal(task="t")
        await remembered(stage, {"scope": "task"}, gate(x="1"), reply())
        (rule,) = stage.run.remembered
        check_rule(Seal(KEY), rule)
        assert RememberedRule.from_json(orjson.loads(orjson.dumps(rule.to_json()))) == rule
        forged = attrs.evolve(rule, **change)
        with pytest.raises(StateRefused):
            check_rule(Seal(KEY), forged)
        stage.remembered, stage.store = (forged,), MemoryRunStore(Seal(KEY))

        assert isinstance(await stage.play(gate(x="1")), ApprovalRequired)

    asyncio.run(scenario())


def test_what_is_no_rule_is_not_remembered() -> None:
    """Refused when the run is made."""
    with pytest.raises(ContractError):
        # The fault at hand.
        create_agent_task_run(TaskContract(), remembered=[{}])  # type: ignore[list-item]


def test_an_edited_approval_remembers_what_ran() -> None:
    """The arguments that the person wrote, not those that the model had asked for."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(gate(x="1"))
        word = said(first.requests[0], edited_args={"x": "2"}, remember={"max_label": INTERNAL})
        result = await stage.go_on(first, gate(x="2"), gate(x="1"), decisions=[word])

        assert isinstance(result, ApprovalRequired)
        assert stage.shelf.calls == [("t:gate", {"x": "2"})] * 2

    asyncio.run(scenario())


def test_an_approval_that_runs_nothing_is_not_remembered() -> None:
    """A rule refused the call: there is nothing to remember."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(gate(x="1"))
        stage.contract = TaskContract(
            tool_policy=ToolPolicy([ASK, ToolRule(tool="*", approval_class="deny")])
        )
        await stage.go_on(first, reply(), decisions=[said(first.requests[0], remember={})])

        assert stage.run.remembered == ()

    asyncio.run(scenario())


def test_each_use_is_in_the_log(tmp_path: Path) -> None:
    """With the rule and the request that it came from, and no arguments."""

    async def scenario() -> None:
        with AuditLog(tmp_path / "log.jsonl") as audit:
            stage = rehearsal(audit=audit)
            first = await stage.play(gate(x="SENTINEL"))
            word = said(first.requests[0], remember={"max_label": INTERNAL})
            await stage.go_on(first, gate(x="SENTINEL"), reply(), decisions=[word])
        text = (tmp_path / "log.jsonl").read_text()
        lines = [orjson.loads(line) for line in text.splitlines()]
        made = [line for line in lines if line["code"] == "APR006O"]
        used = [line for line in lines if line["code"] == "APR007A"]

        assert "SENTINEL" not in text
        assert [line["object"]["request"] for line in (*made, *used)] == [
            first.requests[0].request_id
        ] * 2
        assert used[0]["decision"] == {"action": "approve", "decided_by": "ann"}
        assert used[0]["object"]["uses"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("commit", range(1, 7))
@pytest.mark.parametrize("after", [False, True])
def test_a_use_is_counted_before_the_call_runs(commit: int, after: bool) -> None:
    """Dead at any commit, a rule for one use lets one call run."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(gate(x="1"))
        assert first.state is not None
        crashing = CrashingRunStore(crash_at={commit}, after=after, seal=Seal(KEY))
        crashing.put(first.state)
        stage.store = crashing
        word = said(first.requests[0], remember={"max_uses": 1, "max_label": INTERNAL})
        stage.prepare([gate(x="1"), gate(x="1"), reply()])
        model = stage.model
        for decisions in ([word], [], []):
            try:
                result = await stage.resume(first.run_id, *decisions)
            except Crash:
                stage.prepare([])
                stage.model = model
                continue
            if isinstance(result, LoopError):
                stage.prepare([])
                stage.model = model
                continue
            break

        assert stage.shelf.ran["t:gate"] <= 2

    asyncio.run(scenario())


# ── properties ────────────────────────────────────────────────────────────────────────────────

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    confidentiality=st.sampled_from(Confidentiality),
)
values = st.sampled_from(["1", "2", 1, True, 1.0, None])
arguments = st.dictionaries(st.sampled_from("xyz"), values, max_size=3)


@given(
    arguments, arguments, labels, labels, st.none() | st.just(("x",)) | st.just(("x", "y")),
    st.sets(st.sampled_from("ab"), min_size=1), st.sets(st.sampled_from("ab"), min_size=1),
)  # fmt: skip
def test_a_rule_holds_for_nothing_that_the_person_did_not_see(
    approved: Mapping[str, Any],
    later: Mapping[str, Any],
    seen: Label,
    now: Label,
    fields: tuple[str, ...] | None,
    shown: set[str],
    reasons: set[str],
) -> None:
    """Equal arguments to the byte, no worse label, no other reason: all of them or no answer."""
    names = set(approved) | set(later) if fields is None else set(fields)
    rule = RememberedRule(
        rule_id="r", scope=RememberScope.RUN, run="r", task="", tool="t", tool_sha256="d",
        fields=fields, arguments={k: v for k, v in approved.items() if k in names},
        reasons=tuple(sorted(shown)), max_label=seen, created_at=NOW, expires_at=None,
        max_uses=1, request_id="q", decided_by="p",
    )  # fmt: skip
    asked = Asked(
        run="r", task="", tool="t", tool_sha256="d", arguments=later, label=now,
        reasons=tuple(sorted(reasons)), now=NOW,
    )  # fmt: skip

    def text(value: Mapping[str, Any]) -> bytes:
        picked = {name: value[name] for name in sorted(names & set(value))}
        return orjson.dumps(picked)

    same = text(approved) == text(later)
    assert rule.holds(asked) == (same and join(seen, now) == seen and reasons <= shown)
    assert not attrs.evolve(rule, uses=1).holds(asked)
    assert not rule.holds(attrs.evolve(asked, run="other"))
    assert not rule.holds(attrs.evolve(asked, tool_sha256="e"))


def test_what_was_said_first_is_what_later_calls_are_pointed_to() -> None:
    """A second denial of the same call neither moves the pointer nor forgives repeats."""
    memory = Memory()
    memory.deny("t:1", Denied(request_id="first", decided_by="ann", reason=""))
    memory.repeat("t:1", "t2")
    memory.deny("t:1", Denied(request_id="second", decided_by="bob", reason=""))
    denied = memory.repeat("t:1", "t3")

    assert denied is not None
    assert (denied.request_id, denied.repeats) == ("first", 2)


def test_a_memory_survives_json() -> None:
    """And its rules are read as they were."""
    memory = Memory()
    rule = RememberedRule(
        rule_id="r", scope=RememberScope.TASK, run="r", task="t", tool="t", tool_sha256="d",
        fields=("x",), arguments={"x": 1}, reasons=("a",), max_label=Label(), created_at=NOW,
        expires_at=NOW, max_uses="unlimited", request_id="q", decided_by="p",
    )  # fmt: skip
    memory.keep(seal_rule(Seal(KEY), rule))
    again = Memory()
    again.restore(orjson.loads(orjson.dumps(memory.to_json())))

    assert again.rules == memory.rules
    assert Remember().to_json()["max_uses"] == 10


@pytest.mark.parametrize("uses", [-1, True, 1.0, "1", None])
def test_what_is_no_count_of_uses_is_not_read(uses: Json) -> None:
    """A rule with fewer uses than none would answer more calls than were said."""
    rule = RememberedRule(
        rule_id="r", scope=RememberScope.RUN, run="r", task="t", tool="t", tool_sha256="d",
        fields=None, arguments={}, reasons=(), max_label=Label(), created_at=NOW,
        expires_at=None, max_uses=1, request_id="q", decided_by="p",
    )  # fmt: skip

    with pytest.raises(ValueError):
        RememberedRule.from_json({**rule.to_json(), "uses": uses})
