"""Faults that were reported of other frameworks, by their number in the project's case list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson
import pytest

from runtime_pack import (
    AgentTaskRun,
    ApprovalRequired,
    Completed,
    ContractError,
    Decision,
    LoopError,
    LoopResult,
    MemoryRunStore,
    SavedRun,
    Seal,
    StopCode,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Turn,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.catalog import ToolSpec
from runtime_pack.messages import AssistantMessage, FinishReason, Json, ToolMessage
from runtime_pack.ports import ExecutionContext
from runtime_pack.testing import (
    ScriptedModel,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    reply,
    shown_as_it_is,
)

GATE = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])


class SlowStore(MemoryRunStore):
    """A store that lets others run after it has read."""

    async def load(self, run_id: str) -> SavedRun:
        saved = await super().load(run_id)
        await asyncio.sleep(0.01)
        return saved


def many(count: int, tool: str = "t:echo") -> Turn:
    return calls(*((f"c{index}", tool, "{}") for index in range(count)))


async def started(
    script: Sequence[Turn | Exception],
    shelf: ToolShelf,
    contract: TaskContract,
    *,
    store: MemoryRunStore | None = None,
    max_turns: int | None = None,
    offered: Sequence[ToolSpec] | None = None,
) -> tuple[LoopResult, ScriptedModel]:
    """A run from the beginning; every scripted turn has to be asked for."""
    model = ScriptedModel(script)
    runtime = create_agent_runtime(model=model, tools=shelf.tools)
    given = TurnInput(
        messages=[UserMessage(text="go")],
        tool_catalog=shelf.specs if offered is None else offered,
    )
    result = await run_governed_agent_loop(
        runtime=create_agent_task_run(contract, frame=shown_as_it_is).guard_runtime(runtime),
        execute_turn_input=given,
        store=store,
        max_turns=max_turns,
    )
    model.assert_used_up()
    assert_one_result_per_call(result.messages)
    return result, model


async def resumed(
    store: MemoryRunStore,
    run_id: str,
    script: Sequence[Turn | Exception],
    shelf: ToolShelf,
    contract: TaskContract,
    *decisions: Decision,
    run: AgentTaskRun | None = None,
) -> tuple[LoopResult, ScriptedModel]:
    """The saved run, taken up by a new task run as another process would."""
    model = ScriptedModel(script)
    runtime = create_agent_runtime(model=model, tools=shelf.tools)
    result = await resume_governed_agent_loop(
        runtime=(run or create_agent_task_run(contract, frame=shown_as_it_is)).guard_runtime(
            runtime
        ),
        store=store,
        run_id=run_id,
        decisions=decisions,
    )
    model.assert_used_up()
    return result, model


def approve(result: LoopResult) -> Decision:
    return Decision(
        request_id=result.requests[0].request_id, verdict="approve", decided_by="a person"
    )


def deny(result: LoopResult) -> Decision:
    return Decision(
        request_id=result.requests[0].request_id,
        verdict="deny",
        decided_by="a person",
        reason="not today",
    )


def codes(result: LoopResult) -> list[str | None]:
    """What each call was told, in order: a code, or None when it went well."""
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


def test_b3_one_response_cannot_run_more_steps_than_there_are() -> None:
    """Twenty calls under five steps run five, and the other fifteen are told so."""
    shelf = ToolShelf().add("t:echo")
    contract = TaskContract(max_turns=3, max_steps=5)

    result, _ = asyncio.run(started([many(20), reply("so far")], shelf, contract))

    assert shelf.ran["t:echo"] == 5
    assert codes(result) == [None] * 5 + ["BUDGET_EXHAUSTED"] * 15
    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED


def test_b5_a_limit_holds_inside_a_batch() -> None:
    """Ten steps and twenty calls run exactly ten."""
    shelf = ToolShelf().add("t:echo")

    asyncio.run(started([many(20), reply()], shelf, TaskContract(max_steps=10)))

    assert shelf.ran["t:echo"] == 10


def test_b12_a_budget_is_never_shown_as_an_answer() -> None:
    """A run out of turns has its own kind and code, and no invented assistant text."""
    shelf = ToolShelf().add("t:echo")
    contract = TaskContract(max_turns=2, wrap_up=False)

    result, _ = asyncio.run(started([many(1), many(1)], shelf, contract))

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert (result.stop.code, result.text) == (StopCode.BUDGET_EXHAUSTED, "")
    said = [m.text for m in result.messages if isinstance(m, AssistantMessage)]
    assert said == ["", ""]


def test_b19_the_tools_of_the_last_allowed_response_run() -> None:
    """With one turn the call of that turn runs, and then the run stops."""
    shelf = ToolShelf().add("t:echo")

    result, _ = asyncio.run(started([many(1)], shelf, TaskContract(max_turns=1)))

    assert shelf.ran["t:echo"] == 1
    assert isinstance(result, Suspended)


def test_b19_an_approved_call_of_the_last_response_runs_after_resume() -> None:
    """With one turn, taken by a gated call, the approved call runs and no turn is taken."""

    async def scenario() -> None:
        shelf, store = ToolShelf().add("t:gate"), MemoryRunStore()
        contract = TaskContract(max_turns=1, tool_policy=GATE)
        first, _ = await started([many(1, "t:gate")], shelf, contract, store=store)
        result, _ = await resumed(store, first.run_id, [], shelf, contract, approve(first))

        assert shelf.ran["t:gate"] == 1
        assert isinstance(result, Suspended)

    asyncio.run(scenario())


def test_b20_a_run_without_options_is_limited() -> None:
    """A model that never stops is stopped by the documented default of twenty turns."""
    shelf = ToolShelf().add("t:echo")

    script = [calls(("a", "t:echo", {"x": str(number)})) for number in range(20)]

    result, model = asyncio.run(started([*script, reply()], shelf, TaskContract()))

    assert len(model.requests) == 21
    assert isinstance(result, Suspended)


@pytest.mark.parametrize("max_turns", [True, -1, 0.5, "many"])
def test_b20_a_limit_is_a_whole_number(max_turns: int) -> None:
    """True is not one, and a fraction of a turn is no limit."""
    with pytest.raises(ContractError):
        asyncio.run(started([], ToolShelf(), TaskContract(), max_turns=max_turns))


def test_a4_a_decision_about_nothing_changes_nothing() -> None:
    """An unknown request id is APPROVAL_NOT_FOUND, nothing runs and the request stays open."""

    async def scenario() -> None:
        shelf, store = ToolShelf().add("t:gate"), MemoryRunStore()
        contract = TaskContract(tool_policy=GATE)
        first, _ = await started([many(1, "t:gate")], shelf, contract, store=store)
        forged = Decision(request_id="apr-forged", verdict="approve", decided_by="me")
        before = await store.load(first.run_id)
        result, _ = await resumed(store, first.run_id, [], shelf, contract, forged)

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.APPROVAL_NOT_FOUND
        assert shelf.ran["t:gate"] == 0
        assert before == await store.load(first.run_id)

    asyncio.run(scenario())


def test_a4_a_state_whose_pending_arguments_were_edited_is_refused() -> None:
    """Bytes that were changed by anyone without the key run nothing."""

    async def scenario() -> None:
        shelf, store = ToolShelf().add("t:gate"), MemoryRunStore(Seal(b"k" * 32))
        contract = TaskContract(tool_policy=GATE)
        asked = calls(("a", "t:gate", '{"x":"mild"}'))
        first, _ = await started([asked], shelf, contract, store=store)
        saved = await store.load(first.run_id)
        forged = MemoryRunStore(Seal(b"k" * 32))
        forged.put(
            type(saved)(
                run_id=saved.run_id,
                revision=saved.revision,
                head=saved.head.replace(b"mild", b"wild"),
                rows=saved.rows,
            )
        )
        result, _ = await resumed(forged, first.run_id, [], shelf, contract, approve(first))

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.STATE_INTEGRITY
        assert shelf.ran["t:gate"] == 0

    asyncio.run(scenario())


def test_a6_a_denial_is_not_left_to_the_tool() -> None:
    """A tool without any check of its own does not run when a person said no."""

    async def scenario() -> None:
        shelf, store = ToolShelf().add("t:gate"), MemoryRunStore()
        contract = TaskContract(tool_policy=GATE)
        first, _ = await started([many(1, "t:gate")], shelf, contract, store=store)
        result, _ = await resumed(store, first.run_id, [reply()], shelf, contract, deny(first))

        assert shelf.ran["t:gate"] == 0
        assert codes(result) == ["DENIED_BY_PERSON"]
        assert "not today" in str(result.messages)
        assert isinstance(result, Completed)

    asyncio.run(scenario())


def test_a13_work_before_the_pause_is_not_repeated() -> None:
    """A sibling and an earlier call ran once, before and after the approval."""

    async def scenario() -> None:
        shelf = ToolShelf().add("t:echo").add("t:gate")
        store, contract = MemoryRunStore(), TaskContract(tool_policy=GATE)
        both = calls(("a", "t:echo", "{}"), ("b", "t:gate", "{}"))
        first, _ = await started([many(1), both], shelf, contract, store=store)
        result, _ = await resumed(store, first.run_id, [reply()], shelf, contract, approve(first))

        assert shelf.ran == {"t:echo": 2, "t:gate": 1}
        assert isinstance(result, Completed)
        assert_one_result_per_call(result.messages)

    asyncio.run(scenario())


def test_a19_two_resumes_with_one_approval_run_the_call_once() -> None:
    """The loser of the race gets a clear error and has no effect."""

    async def scenario() -> None:
        shelf, store = ToolShelf().add("t:gate"), SlowStore()
        contract = TaskContract(tool_policy=GATE)
        first, _ = await started([many(1, "t:gate")], shelf, contract, store=store)

        async def attempt() -> LoopResult:
            runtime = create_agent_runtime(model=ScriptedModel([reply()]), tools=shelf.tools)
            return await resume_governed_agent_loop(
                runtime=create_agent_task_run(contract, frame=shown_as_it_is).guard_runtime(
                    runtime
                ),
                store=store,
                run_id=first.run_id,
                decisions=[approve(first)],
            )

        results = await asyncio.gather(attempt(), attempt())
        again = await attempt()

        assert shelf.ran["t:gate"] == 1
        assert sorted(str(result.kind) for result in results) == ["completed", "error"]
        lost = next(result.stop for result in results if isinstance(result, LoopError))
        assert lost is not None
        assert lost.code == StopCode.ALREADY_RESOLVED
        assert lost.details["verdict"] == "approve"
        assert again.stop is not None
        assert again.stop.code == StopCode.ALREADY_RESOLVED
        assert shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["t:echo", "plain", "ns.tool", "agent:spawn"])
def test_a24_a_deny_holds_for_every_kind_of_tool(name: str) -> None:
    """Host tools, dotted names and the start of a sub-agent are all refused by one rule."""
    shelf = ToolShelf().add(name)
    contract = TaskContract(tool_policy=ToolPolicy([ToolRule(tool="*", approval_class="deny")]))

    result, _ = asyncio.run(started([many(1, name), reply()], shelf, contract))

    assert shelf.ran[name] == 0
    assert codes(result) == ["POLICY_DENIED"]


def test_a28_a33_the_model_is_not_asked_while_a_call_is_pending() -> None:
    """Resuming without a decision asks nobody; with one, the call runs before the model is asked."""

    async def scenario() -> None:
        asked_before: list[int] = []
        model = ScriptedModel([reply()])

        async def look(context: ExecutionContext) -> Json:
            asked_before.append(len(model.requests))
            return "ran"

        shelf, store = ToolShelf().add("t:gate", does=look), MemoryRunStore()
        contract = TaskContract(tool_policy=GATE)
        first, _ = await started([many(1, "t:gate")], shelf, contract, store=store)
        waiting, nobody = await resumed(store, first.run_id, [], shelf, contract)
        runtime = create_agent_runtime(model=model, tools=shelf.tools)
        await resume_governed_agent_loop(
            runtime=create_agent_task_run(contract, frame=shown_as_it_is).guard_runtime(runtime),
            store=store,
            run_id=first.run_id,
            decisions=[approve(first)],
        )

        assert isinstance(waiting, ApprovalRequired)
        assert nobody.requests == []
        assert asked_before == [0]
        assert len(model.requests) == 1

    asyncio.run(scenario())


def test_a32_a_large_result_does_not_hinder_an_approval() -> None:
    """Five megabytes in the state are saved, sealed and taken up at once."""

    async def scenario() -> None:
        large = "ä" * 2_500_000
        shelf = ToolShelf().add("t:echo", large).add("t:gate")
        store, contract = MemoryRunStore(), TaskContract(tool_policy=GATE)
        both = calls(("a", "t:echo", "{}"), ("b", "t:gate", "{}"))
        first, _ = await started([both], shelf, contract, store=store)
        result, model = await resumed(
            store, first.run_id, [reply()], shelf, contract, approve(first)
        )

        assert isinstance(result, Completed)
        messages, _ = model.requests[0]
        assert large in [m.text for m in messages if isinstance(m, ToolMessage)]

    asyncio.run(scenario())


def test_l5_a_malformed_call_does_not_poison_the_history() -> None:
    """The next request holds a parsable object; the raw text stands in the record only."""
    shelf = ToolShelf().add("t:echo")
    script = [calls(("a", "t:echo", '{"x": unfinished')), reply()]

    result, model = asyncio.run(started(script, shelf, TaskContract()))

    messages, _ = model.requests[1]
    assert isinstance(messages[1], AssistantMessage)
    assert messages[1].calls[0].arguments == {}
    assert codes(result) == ["INVALID_JSON"]
    assert "unfinished" not in str(messages)
    assert [step.raw for step in result.steps if step.raw] == ['{"x": unfinished']


def test_l8_an_unknown_tool_is_answered_with_those_offered() -> None:
    """A misspelt name is a result that names the tools of this turn, and the run goes on."""
    shelf = ToolShelf().add("web:search").add("t:hidden")
    script = [calls(("a", "web:serch", "{}")), many(1, "web:search"), reply()]

    result, _ = asyncio.run(started(script, shelf, TaskContract(), offered=[shelf.specs[0]]))

    assert codes(result) == ["UNKNOWN_TOOL", None]
    told = next(m for m in result.messages if isinstance(m, ToolMessage))
    assert orjson.loads(told.text)["tools"] == ["web:search"]


def test_l8_nothing_but_bad_calls_is_misbehaving() -> None:
    """Three responses in a row with nothing admitted end the run as an error."""
    shelf = ToolShelf().add("t:echo")

    result, _ = asyncio.run(started([many(1, "nope")] * 3, shelf, TaskContract()))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.MODEL_MISBEHAVING


def test_one_admitted_call_ends_a_row_of_bad_responses() -> None:
    """The count of barren responses starts again after a call was admitted."""
    shelf = ToolShelf().add("t:echo")
    bad, good = many(1, "nope"), many(1)

    result, _ = asyncio.run(started([bad, bad, good, bad, bad, reply()], shelf, TaskContract()))

    assert isinstance(result, Completed)


def test_l11_a_failing_sibling_loses_nothing() -> None:
    """A call that raises is an error of its own; the slow one beside it keeps its result."""

    async def slow(context: ExecutionContext) -> Json:
        await asyncio.sleep(0.01)
        return "kept"

    async def scenario() -> None:
        shelf = ToolShelf().add("t:bad", RuntimeError("secret detail")).add("t:slow", does=slow)
        both = calls(("a", "t:bad", "{}"), ("b", "t:slow", "{}"))
        result, _ = await started([both, reply()], shelf, TaskContract())

        assert codes(result) == ["TOOL_ERROR", None]
        assert "secret detail" not in str(result.messages)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_l12_a_pending_call_survives_a_crashing_sibling() -> None:
    """The gated call is asked about, the other is an error."""
    shelf = ToolShelf().add("t:gate").add("t:bad", RuntimeError())
    both = calls(("a", "t:gate", "{}"), ("b", "t:bad", "{}"))

    result, _ = asyncio.run(started([both], shelf, TaskContract(tool_policy=GATE)))

    assert isinstance(result, ApprovalRequired)
    assert [request.tool for request in result.requests] == ["t:gate"]
    assert codes(result) == ["APPROVAL_REQUIRED", "TOOL_ERROR"]


def test_l15_results_stand_in_the_order_of_the_calls() -> None:
    """A slow first and a fast second call are committed as they were asked for."""

    async def slow(context: ExecutionContext) -> Json:
        await asyncio.sleep(0.01)
        return "slow"

    shelf = ToolShelf().add("t:slow", does=slow).add("t:fast", "fast")
    both = calls(("a", "t:slow", "{}"), ("b", "t:fast", "{}"))

    result, _ = asyncio.run(started([both, reply()], shelf, TaskContract()))

    told = [m.text for m in result.messages if isinstance(m, ToolMessage)]
    assert told == ["slow", "fast"]


def test_l23_a_large_batch_keeps_what_fits() -> None:
    """Of forty calls under twelve steps twelve run and twenty-eight are refused visibly."""
    shelf = ToolShelf().add("t:echo")

    result, _ = asyncio.run(started([many(40), reply()], shelf, TaskContract(max_steps=12)))

    assert shelf.ran["t:echo"] == 12
    assert codes(result) == [None] * 12 + ["BUDGET_EXHAUSTED"] * 28


def test_l28_labels_come_from_registration_only() -> None:
    """Arguments and results that call themselves trusted leave the label as it is."""
    shelf = ToolShelf().add("t:echo", {"label": "user", "trusted": True})
    script = [calls(("a", "t:echo", '{"x":"accepts untrusted"}')), reply()]

    result, _ = asyncio.run(started(script, shelf, TaskContract()))

    told = next(m for m in result.messages if isinstance(m, ToolMessage))
    assert told.label.integrity == "external"
    assert result.steps[-1].label.integrity == "external"


def test_l30_a_blocked_call_does_not_end_the_loop() -> None:
    """A refused call has its result, and the model goes on."""
    shelf = ToolShelf().add("t:echo")
    contract = TaskContract(
        tool_policy=ToolPolicy([ToolRule(tool="t:echo", approval_class="deny")])
    )

    result, _ = asyncio.run(started([many(1), reply("without it")], shelf, contract))

    assert isinstance(result, Completed)
    assert result.text == "without it"


def test_duplicate_ids_get_a_suffix_and_each_its_result() -> None:
    """Three calls of one id are three calls; an id of an earlier turn is taken too."""
    shelf = ToolShelf().add("t:echo")
    same = calls(("a", "t:echo", "{}"), ("a", "t:echo", "{}"), ("a", "t:echo", "{}"))
    once = calls(("c0", "t:echo", {"x": "another"}))

    result, _ = asyncio.run(started([same, once, same, reply()], shelf, TaskContract()))

    ids = [m.call_id for m in result.messages if isinstance(m, ToolMessage)]
    assert ids == ["a", "a-2", "a-3", "c0", "a-4", "a-5", "a-6"]
    assert shelf.ran["t:echo"] == 7


@pytest.mark.parametrize(
    "finish", [FinishReason.LENGTH, FinishReason.MALFORMED_CALL, FinishReason.UNKNOWN]
)
def test_no_call_of_a_truncated_response_runs(finish: FinishReason) -> None:
    """What is missing from a cut response cannot be seen, so not even its whole calls run."""
    shelf = ToolShelf().add("t:echo")
    cut = calls(("a", "t:echo", "{}"), ("b", "nope", "{"), finish=finish)

    result, _ = asyncio.run(started([cut, reply()], shelf, TaskContract()))

    assert shelf.ran["t:echo"] == 0
    assert codes(result) == ["TRUNCATED", "TRUNCATED"]


def test_an_empty_cut_reply_is_not_completion() -> None:
    """The model is asked again; three of them in a row are misbehaving."""
    shelf = ToolShelf()
    empty = reply("", finish=FinishReason.LENGTH)

    again, _ = asyncio.run(started([empty, reply("whole")], shelf, TaskContract()))
    never, _ = asyncio.run(started([empty] * 3, shelf, TaskContract()))

    assert isinstance(again, Completed)
    assert isinstance(never, LoopError)


def test_too_many_refused_calls_end_the_run_after_the_batch() -> None:
    """What was admitted beside them runs and is committed, then the run is an error."""
    shelf = ToolShelf().add("t:echo")
    batch = calls(("a", "t:echo", "{}"), *((f"n{i}", "nope", "{}") for i in range(3)))

    result, _ = asyncio.run(started([batch], shelf, TaskContract(max_refused=2)))

    assert shelf.ran["t:echo"] == 1
    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.MODEL_MISBEHAVING
    assert result.ledger.reserved == {}


def test_calls_after_one_that_does_not_fit_are_judged_one_by_one() -> None:
    """A per-tool limit refuses its own tool; the other tool of the batch runs."""
    shelf = ToolShelf().add("t:a").add("t:b")
    batch = calls(("1", "t:a", "{}"), ("2", "t:a", "{}"), ("3", "t:b", "{}"))

    result, _ = asyncio.run(started([batch, reply()], shelf, TaskContract(per_tool={"t:a": 1})))

    assert shelf.ran == {"t:a": 1, "t:b": 1}
    assert codes(result) == [None, "BUDGET_EXHAUSTED", None]
