"""Classes, layers, labels and predicates: the strictest word of all counts, and a failing one denies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalClass,
    ApprovalRequired,
    Completed,
    Confidentiality,
    ContractError,
    Effects,
    ExecutionContext,
    Integrity,
    Label,
    LoopError,
    LoopResult,
    MemoryRunStore,
    PolicyLayer,
    StopCode,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    create_agent_runtime,
    create_agent_task_run,
)
from runtime_pack.events import EventCode
from runtime_pack.guard.task_run import Told
from runtime_pack.labels import CLEAN, join, reaches
from runtime_pack.messages import Json
from runtime_pack.policy import classify_call
from runtime_pack.state import spec_from_json, spec_to_json
from runtime_pack.testing import (
    ListEmitter,
    MovableClock,
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
)

STRICT: Final = list(ApprovalClass)
CALL: Final = calls(("a", "t:write", '{"x":"1"}'))


def rule(tool: str, word: str, **more: Any) -> ToolRule:
    return ToolRule(tool=tool, approval_class=word, **more)


def play(policy: ToolPolicy, *script: Any, **options: Any) -> tuple[LoopResult, Rehearsal]:
    shelf = options.pop("shelf", None) or ToolShelf().add("t:write").add("t:read")
    stage = Rehearsal(shelf=shelf, contract=TaskContract(tool_policy=policy), **options)
    return asyncio.run(stage.play(*script)), stage


def codes(result: LoopResult) -> list[str | None]:
    return [step.code for step in result.steps if step.call_id]


# ── layers ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workspace", ApprovalClass)
@pytest.mark.parametrize("task", ApprovalClass)
@pytest.mark.parametrize("run", ApprovalClass)
@pytest.mark.parametrize("tool", ApprovalClass)
def test_the_strictest_of_all_layers_wins(workspace: str, task: str, run: str, tool: str) -> None:
    """Workspace, task, run and the tool's own class: none can allow what another restricts."""
    policy = ToolPolicy.layered(
        workspace=[rule("t:*", workspace)], task=[rule("t:write", task)], run=[rule("*", run)]
    )
    declared = ApprovalClass(tool)
    verdict = classify_call(policy.all_rules, "t:write", {}, declared=declared)

    words = [ApprovalClass(word) for word in (workspace, task, run, tool)]
    assert verdict.approval_class is max(words, key=STRICT.index)


def test_reasons_name_layer_and_rule() -> None:
    """All who asked for the class that won are named, and no milder one."""
    policy = ToolPolicy(
        [rule("t:*", "request_user", reason="it writes"), rule("*", "notify")],
        [PolicyLayer("workspace", [rule("t:write", "request_user", when_label="external")])],
    )
    label = Label(integrity="external")
    verdict = classify_call(
        policy.all_rules, "t:write", {}, label=label, declared=ApprovalClass.REQUEST_USER
    )

    assert verdict.reasons == (
        "tool t:write: is request_user",
        "workspace rule t:write: is request_user, as the context is external",
        "task rule t:*: it writes",
    )


def test_a_denial_is_logged_with_its_layer_and_the_model_is_not_told() -> None:
    """The operator reads who denied; the text for the model stays the same."""
    emitter = ListEmitter()
    policy = ToolPolicy.layered(workspace=[rule("t:write", "deny", reason="never on Fridays")])
    result, _ = play(policy, CALL, reply(), emitter=emitter)

    (event,) = emitter.events
    assert event.decision is not None
    assert event.decision["reasons"] == ["workspace rule t:write: never on Fridays"]
    assert "Fridays" not in str(result.messages)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PolicyLayer("tool"),
        lambda: PolicyLayer("Workspace"),
        lambda: PolicyLayer(""),
        # The fault at hand.
        lambda: PolicyLayer("w", ["t"]),  # type: ignore[list-item]
        lambda: ToolPolicy(layers=[PolicyLayer("w"), PolicyLayer("w")]),
        # The fault at hand.
        lambda: ToolPolicy(layers=["w"]),  # type: ignore[list-item]
        lambda: rule("t", "deny", when_label="outside"),
        lambda: rule("t", "deny", when_label=1),
        lambda: ToolSpec(
            name="t",
            description="",
            parameters={"type": "object"},
            # The fault at hand.
            approval_class=1,  # type: ignore[arg-type]
        ),
    ],
)
def test_a_layer_that_cannot_be_enforced_is_refused(make: Callable[[], object]) -> None:
    """When it is made, and not when a call comes."""
    with pytest.raises(ContractError):
        make()


def test_the_digest_tells_layers_and_labels_apart() -> None:
    """The same rules in another layer, or under a label, are another policy."""
    rules = [rule("t", "deny")]
    policies = [
        ToolPolicy(rules),
        ToolPolicy.layered(workspace=rules),
        ToolPolicy.layered(run=rules),
        ToolPolicy([rule("t", "deny", when_label="external")]),
        ToolPolicy([rule("t", "deny", when_label="secret")]),
    ]

    assert len({policy.sha256 for policy in policies}) == len(policies)


# ── the tool's own class ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("word", ApprovalClass)
def test_a_tools_own_class_survives_json_and_is_in_its_digest(word: ApprovalClass) -> None:
    """A saved run knows it, and a tool with another class is another tool."""
    fields: dict[str, Any] = {"name": "t", "description": "", "parameters": {"type": "object"}}
    spec = ToolSpec(**fields, approval_class=word)
    plain = ToolSpec(**fields)

    assert spec_from_json(spec_to_json(spec)) == spec
    assert (spec.sha256 == plain.sha256) == (word is ApprovalClass.AUTO)


def test_a_tool_that_asks_for_a_person_gets_one_without_any_rule() -> None:
    """Nothing in the policy is needed, and an `auto` rule does not lower it."""
    shelf = ToolShelf().add("t:write", approval_class="request_user")
    result, stage = play(ToolPolicy([rule("*", "auto")]), CALL, shelf=shelf)

    assert isinstance(result, ApprovalRequired)
    assert result.requests[0].reasons == ("tool t:write: is request_user",)
    assert stage.shelf.ran == {}


# ── labels ────────────────────────────────────────────────────────────────────────────────────


def test_after_a_page_was_read_a_write_needs_a_person() -> None:
    """The same call runs before anything from outside was read, and waits after it."""
    policy = ToolPolicy([rule("t:write", "request_user", when_label="external")])
    result, stage = play(
        policy, CALL, calls(("r", "t:read", "{}")), calls(("b", "t:write", '{"x":"2"}')),
        shelf=ToolShelf().add("t:write", output_trust="internal").add("t:read"),
    )  # fmt: skip

    assert isinstance(result, ApprovalRequired)
    assert stage.shelf.ran == {"t:write": 1, "t:read": 1}
    assert result.requests[0].label.integrity is Integrity.EXTERNAL


def test_what_is_secret_can_close_a_tool() -> None:
    """The other scale of a label: after something secret was seen, nothing is sent."""
    secret = ToolOutput(ok=True, text="s", label=Label(confidentiality="secret"))
    policy = ToolPolicy([rule("t:write", "deny", when_label="secret")])
    shelf = ToolShelf().add("t:write").add("t:read", secret)
    result, stage = play(policy, calls(("r", "t:read", "{}")), CALL, reply(), shelf=shelf)

    assert codes(result) == [None, "POLICY_DENIED"]
    assert stage.shelf.ran == {"t:read": 1}


labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    confidentiality=st.sampled_from(Confidentiality),
)
words = st.sampled_from([*Integrity, *Confidentiality])
label_rules = st.builds(
    ToolRule,
    tool=st.just("t"),
    approval_class=st.sampled_from(ApprovalClass),
    when_label=st.none() | words,
)


@given(st.lists(label_rules, max_size=4), labels, labels)
def test_a_higher_label_never_allows_more(rules: list[ToolRule], low: Label, other: Label) -> None:
    """A label can only add rules."""
    before = classify_call(rules, "t", {}, label=low).approval_class
    after = classify_call(rules, "t", {}, label=join(low, other)).approval_class

    assert STRICT.index(after) >= STRICT.index(before)


@given(labels, labels, words)
def test_a_joined_label_reaches_what_either_did(
    first: Label, second: Label, word: Integrity | Confidentiality
) -> None:
    """The best label reaches only the best words."""
    both = reaches(join(first, second), word)

    assert both == (reaches(first, word) or reaches(second, word))
    assert reaches(CLEAN, word) == (word in {Integrity.USER, Confidentiality.PUBLIC})


# ── predicates ────────────────────────────────────────────────────────────────────────────────


async def says_yes(arguments: Mapping[str, Json]) -> bool:
    await asyncio.sleep(0)
    return arguments.get("x") == "1"


async def raises(arguments: Mapping[str, Json]) -> bool:
    raise RuntimeError(arguments)


async def hangs(arguments: Mapping[str, Json]) -> bool:
    await asyncio.sleep(3600)
    return not arguments


async def says_nonsense(arguments: Mapping[str, Json]) -> bool:
    # The fault at hand.
    return "no"  # type: ignore[return-value]


async def cancels_itself(arguments: Mapping[str, Json]) -> bool:
    raise asyncio.CancelledError(arguments)


@pytest.mark.parametrize(
    ("when", "code"),
    [
        (says_yes, "POLICY_DENIED"),
        (raises, "POLICY_ERROR"),
        (hangs, "POLICY_ERROR"),
        (says_nonsense, "POLICY_ERROR"),
        (cancels_itself, "POLICY_ERROR"),
    ],
)
def test_a_predicate_may_be_a_coroutine_and_denies_when_it_fails(when: Any, code: str) -> None:
    """One that hangs is stopped; the run goes on."""
    result, stage = play(ToolPolicy([rule("t:*", "deny", when=when)]), CALL, reply())

    assert isinstance(result, Completed)
    assert codes(result) == [code]
    assert stage.shelf.ran == {}


def test_a_coroutine_that_says_no_lets_the_call_run() -> None:
    """Its answer is heard, not its being there."""
    policy = ToolPolicy([rule("t:*", "deny", when=says_yes)])
    result, _ = play(policy, calls(("a", "t:write", '{"x":"2"}')), reply())

    assert codes(result) == [None]


def test_an_awaited_answer_that_nobody_awaited_denies() -> None:
    """A pure caller cannot wait; and no coroutine is left over."""
    verdict = classify_call([rule("t", "notify", when=says_yes)], "t", {"x": "1"})

    assert verdict.failed
    assert verdict.approval_class is ApprovalClass.DENY


def test_a_predicate_that_blocks_too_long_denies_when_it_is_back() -> None:
    """It cannot be stopped, so its answer is not heard."""
    clock = MovableClock()

    def slow(arguments: Mapping[str, Json]) -> bool:
        clock.move(2)
        return not arguments

    result, stage = play(ToolPolicy([rule("t:*", "deny", when=slow)]), CALL, reply(), clock=clock)

    assert codes(result) == ["POLICY_ERROR"]
    assert stage.shelf.ran == {}


# ── notify ────────────────────────────────────────────────────────────────────────────────────

TELL: Final = ToolPolicy([rule("t:write", "notify", reason="it writes")])


def test_the_host_is_told_of_a_call_before_it_runs() -> None:
    """The call runs, once, and its event holds reasons and digests and no arguments."""
    emitter = ListEmitter()
    told_before: list[int] = []

    async def does(context: ExecutionContext) -> Json:
        told_before.append(len(emitter.events))
        return "ok"

    shelf = ToolShelf().add("t:write", does=does)
    sentinel = calls(("a", "t:write", '{"x":"SENTINEL"}'))
    result, _ = play(TELL, sentinel, reply(), emitter=emitter, shelf=shelf)

    assert isinstance(result, Completed)
    assert told_before == [1]
    (event,) = emitter.events
    assert event.code is EventCode.APR005O
    assert event.decision == {"action": "notify", "reasons": ["task rule t:write: it writes"]}
    assert event.object["tool"] == "t:write"
    assert "SENTINEL" not in str(event)


def test_a_host_that_cannot_be_told_stops_the_call() -> None:
    """The emitter fails: nothing runs, no step is kept, and the run says why it stopped."""
    stage = Rehearsal(
        shelf=ToolShelf().add("t:write"),
        contract=TaskContract(tool_policy=TELL),
        emitter=ListEmitter(fail_at=1),
    )
    stage.prepare([CALL])
    result = asyncio.run(stage.start())

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.EMITTER_FAILED
    assert stage.shelf.ran == {}
    assert result.ledger.reserved == {}


def test_where_nobody_is_there_to_be_told_nothing_runs() -> None:
    """Without an emitter the class cannot be kept, so the call is denied."""
    result, stage = play(TELL, CALL, reply())

    assert codes(result) == ["POLICY_ERROR"]
    assert stage.shelf.ran == {}
    assert result.ledger.reserved == {}


@pytest.mark.parametrize(("emitter", "ran"), [(True, 1), (False, 0)])
def test_a_direct_call_of_a_notify_tool_is_told_too(emitter: bool, ran: int) -> None:
    """The rules are the guard's, not the loop's."""

    async def scenario() -> None:
        shelf, listed = ToolShelf().add("t:write"), ListEmitter()
        run = create_agent_task_run(
            TaskContract(tool_policy=TELL), emitter=listed if emitter else None
        )
        inner = create_agent_runtime(model=ScriptedModel(()), tools=shelf.tools)
        output = await run.guard_runtime(inner).execute_tool("t:write", {}, ExecutionContext())

        assert output.ok == emitter
        assert shelf.ran["t:write"] == len(listed.events) == ran

    asyncio.run(scenario())


@pytest.mark.parametrize(("emitter", "code"), [(ListEmitter(), None), (None, "POLICY_ERROR")])
def test_a_call_admitted_before_is_told_of_when_the_rule_came_later(
    emitter: ListEmitter | None, code: str | None
) -> None:
    """A paused run that is taken up under `notify` tells, or does not run the call."""

    async def scenario() -> None:
        stage = Rehearsal(shelf=ToolShelf().add("t:write"), store=MemoryRunStore())

        def pausing(arguments: Mapping[str, Json]) -> bool:
            stage.run.pause("wait")
            return not arguments

        stage.contract = TaskContract(tool_policy=ToolPolicy([rule("*", "deny", when=pausing)]))
        first = await stage.play(CALL)
        assert stage.shelf.ran == {}
        stage.contract, stage.emitter = TaskContract(tool_policy=TELL), emitter
        result = await stage.go_on(first, reply())

        assert codes(result) == [code]
        assert stage.shelf.ran["t:write"] == (1 if emitter else 0)
        if emitter is not None:
            assert [event.code for event in emitter.events] == [EventCode.APR005O]

    asyncio.run(scenario())


@pytest.mark.parametrize("changed", [False, True], ids=["the same", "another reason"])
def test_a_call_that_a_pause_found_in_the_queue_is_told_of_once(changed: bool) -> None:
    """Taken up, it runs without a second word; where there is another reason, under another key."""

    async def scenario() -> None:
        emitter = ListEmitter()

        async def does(context: ExecutionContext) -> Json:
            stage.run.pause("wait")
            return "ok"

        contract = TaskContract(max_parallel=1, tool_policy=ToolPolicy([rule("*", "notify")]))
        stage = Rehearsal(
            shelf=ToolShelf().add("t:first", does=does).add("t:second"),
            store=MemoryRunStore(),
            contract=contract,
            emitter=emitter,
        )
        first = await stage.play(calls(("a", "t:first", "{}"), ("b", "t:second", "{}")))
        assert stage.shelf.ran == {"t:first": 1}
        if changed:
            more = ToolPolicy([rule("*", "notify", reason="as of today")])
            stage.contract = attrs.evolve(contract, tool_policy=more)
        result = await stage.go_on(first, reply())

        assert codes(result) == [None, None]
        again = ["t1c2:notify:2"] if changed else []
        assert [event.key for event in emitter.events] == ["t1c1:notify", "t1c2:notify", *again]
        assert stage.run.told == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("times", [0, -1, True, "1", 1.0, None, "unlimited"])
def test_what_is_no_count_of_tellings_is_not_read(times: Json) -> None:
    """A saved run that says so is not taken up."""
    assert Told.from_json(Told(times=2, said="d").to_json()) == Told(times=2, said="d")
    with pytest.raises(ValueError, match="times"):
        Told.from_json({"times": times, "said": "d"})


def test_a_call_that_is_run_once_more_is_told_of_once_more() -> None:
    """A pause cut it; what it did by then is not what it will do."""

    async def scenario() -> None:
        emitter, tries = ListEmitter(), [1]

        async def does(context: ExecutionContext) -> Json:
            if tries.pop() if tries else False:
                stage.run.pause("wait")
                await asyncio.sleep(60)
            return "ok"

        stage = Rehearsal(
            shelf=ToolShelf().add("t:write", does=does, effects=Effects.REPEATABLE),
            store=MemoryRunStore(),
            contract=TaskContract(tool_policy=TELL),
            emitter=emitter,
        )
        first = await stage.play(CALL)
        result = await stage.go_on(first, reply())

        assert codes(result) == [None]
        assert [event.key for event in emitter.events] == ["t1c1:notify", "t1c1:notify:2"]

    asyncio.run(scenario())


# ── A24: deny is enforced for every kind of tool ──────────────────────────────────────────────


@pytest.mark.parametrize("effects", ["repeatable", "idempotent", "once"])
@pytest.mark.parametrize("trust", ["internal", "external"])
@pytest.mark.parametrize("door", ["loop", "direct"])
@pytest.mark.parametrize("name", ["t:write", "web:read", "agent.child", "plain"])
def test_a24_deny_is_enforced_for_every_kind_of_tool(
    effects: str, trust: str, door: str, name: str
) -> None:
    """Whatever its effects, trust, name and caller: it does not run."""

    async def scenario() -> None:
        shelf = ToolShelf().add(name, effects=Effects(effects), output_trust=trust)
        contract = TaskContract(tool_policy=ToolPolicy.layered(workspace=[rule("*", "deny")]))
        stage = Rehearsal(shelf=shelf, contract=contract)
        if door == "loop":
            result = await stage.play(calls(("a", name, "{}")), reply())
            assert codes(result) == ["POLICY_DENIED"]
        else:
            inner = create_agent_runtime(model=stage.model, tools=shelf.tools)
            guarded = stage.run.guard_runtime(inner)
            output = await guarded.execute_tool(name, {}, ExecutionContext())
            assert output.code == "POLICY_DENIED"
        assert shelf.ran == {}

    asyncio.run(scenario())
