"""A caller that is not the loop: the guard is in the runtime, so the same rules bind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from runtime_pack import (
    AgentTaskRun,
    ApprovalRequest,
    AuditLog,
    CatalogTool,
    ContractError,
    Decision,
    ExecutionContext,
    GuardedRuntime,
    MemoryRunStore,
    Suspended,
    TaskContract,
    ToolCall,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.approvals import Verdict
from runtime_pack.catalog import TURN_TOOL
from runtime_pack.machine import Admitted, IngestedCall, Pending, Refused, ingest_call
from runtime_pack.messages import Json, Transcript
from runtime_pack.testing import (
    MovableClock,
    ScriptedApprover,
    ScriptedModel,
    ToolShelf,
    escalate,
    reply,
    shown_as_it_is,
)

HERE = ExecutionContext()


def guarded(
    shelf: ToolShelf, contract: TaskContract | None = None, **options: Any
) -> tuple[AgentTaskRun, GuardedRuntime]:
    run = create_agent_task_run(contract or TaskContract(), frame=shown_as_it_is, **options)
    runtime = create_agent_runtime(model=ScriptedModel([reply(), reply()]), tools=shelf.tools)
    return run, run.guard_runtime(runtime)


def call(runtime: GuardedRuntime, name: str, arguments: Json = None) -> ToolOutput:
    given = arguments if isinstance(arguments, dict) else {}
    return asyncio.run(runtime.execute_tool(name, given, HERE))


def test_a_direct_call_takes_a_step_and_is_recorded(tmp_path: Path) -> None:
    """Admitted, started, finished, settled: as a call of a model."""
    with AuditLog(tmp_path / "log.jsonl") as audit:
        shelf = ToolShelf().add("t:echo")
        run, runtime = guarded(shelf, audit=audit)
        output = call(runtime, "t:echo", {"x": "1"})

        assert (output.ok, output.text) == (True, "ok")
        assert run.view().used == {"steps": 1, "tool:t:echo": 1}
        assert [step.admitted for step in run.steps] == [True]
    types = [
        orjson.loads(line)["type"] for line in (tmp_path / "log.jsonl").read_bytes().splitlines()
    ]
    assert types == ["log:opened", "step:started", "step:finished", "log:closed"]


def test_a_direct_call_meets_every_gate() -> None:
    """Unknown tool, schema, policy and budget refuse as they do in the loop."""
    policy = ToolPolicy([ToolRule(tool="t:no", approval_class="deny")])
    contract = TaskContract(max_steps=1, max_refused="unlimited", tool_policy=policy)
    shelf = ToolShelf().add("t:echo").add("t:no")
    run, runtime = guarded(shelf, contract)

    codes = [
        call(runtime, "t:what").code,
        call(runtime, "t:echo", {"y": 1}).code,
        call(runtime, "t:no").code,
        call(runtime, "t:echo").code,
        call(runtime, "t:echo").code,
    ]

    assert codes == ["UNKNOWN_TOOL", "INVALID_ARGUMENTS", "POLICY_DENIED", None, "BUDGET_EXHAUSTED"]
    assert shelf.ran == {"t:echo": 1}
    assert run.ledger.refused == 4
    assert run.view().reserved == {}


def test_a_caller_that_is_refused_too_often_is_not_listened_to_any_more() -> None:
    """After `max_refused` nothing is judged, and nothing is recorded without end."""
    shelf = ToolShelf().add("t:echo")
    run, runtime = guarded(shelf, TaskContract(max_refused=2))
    for _ in range(10):
        call(runtime, "t:what")

    assert call(runtime, "t:echo").code == "BUDGET_EXHAUSTED"
    assert len(run.steps) == 3


def test_a_direct_call_that_needs_a_person_is_decided_now_or_refused() -> None:
    """Without an approver it does not run, is recorded, and gives its step back."""
    policy = ToolPolicy([ToolRule(tool="*", approval_class="request_user")])
    contract = TaskContract(tool_policy=policy)
    shelf = ToolShelf().add("t:echo")
    run, runtime = guarded(shelf, contract)

    assert call(runtime, "t:echo").code == "APPROVAL_REQUIRED"
    assert (run.view().reserved, run.ledger.refused) == ({}, 1)

    approver = ScriptedApprover([Verdict.DENY, Verdict.APPROVE])
    run, runtime = guarded(shelf, contract, approver=approver)

    assert call(runtime, "t:echo").code == "DENIED_BY_PERSON"
    # The same call is denied from memory, as that of a model is; another one is asked about.
    assert call(runtime, "t:echo").code == "DENIED_BY_PERSON"
    assert call(runtime, "t:echo", {"x": "1"}).ok
    approver.assert_used_up()
    assert shelf.ran["t:echo"] == 1
    assert run.view().reserved == {}


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_nothing_begins_in_a_stopped_run(stop: str) -> None:
    """Calls and turns after the stop are CANCELLED without running."""
    shelf = ToolShelf().add("t:echo")
    run, runtime = guarded(shelf)
    getattr(run, stop)("enough")

    output = call(runtime, "t:echo")

    assert (output.code, output.executed) == ("CANCELLED", "no")
    assert call(runtime, TURN_TOOL).code == "CANCELLED"
    assert shelf.ran["t:echo"] == 0


def test_the_time_of_a_direct_caller_counts() -> None:
    """Each call is activity; when the time is used up, the next call is refused."""
    clock = MovableClock()

    async def slow(context: ExecutionContext) -> Json:
        clock.move(6)
        return "ok"

    shelf = ToolShelf().add("t:echo", does=slow)
    run, runtime = guarded(shelf, TaskContract(max_duration_seconds=10), clock=clock)

    codes = [call(runtime, "t:echo").code for _ in range(3)]

    assert codes == [None, None, "BUDGET_EXHAUSTED"]
    assert run.view().active_seconds == 12
    assert run.view().used["steps"] == 2, "no step is taken without time for it"


def test_a_direct_call_is_stopped_when_the_time_is_used_up() -> None:
    """The remaining time bounds it as it bounds the loop's."""

    async def forever(context: ExecutionContext) -> Json:
        await asyncio.sleep(3600)
        return "never"

    shelf = ToolShelf().add("t:echo", does=forever)
    _, runtime = guarded(shelf, TaskContract(max_duration_seconds=0.05))

    assert call(runtime, "t:echo").code == "TIMEOUT"


def test_a_direct_turn_is_stopped_when_the_time_is_used_up() -> None:
    """A turn has no limit of its own; the run's time ends it."""

    class Slow:
        async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
            await asyncio.sleep(3600)
            return reply()

    run = create_agent_task_run(TaskContract(max_duration_seconds=0.05))
    runtime = run.guard_runtime(create_agent_runtime(model=Slow()))
    request = TurnRequest(messages=Transcript([UserMessage(text="go")]), tools=())
    asking = ExecutionContext(request=request)

    assert asyncio.run(runtime.execute_tool(TURN_TOOL, {}, asking)).code == "BUDGET_EXHAUSTED"


def test_a_direct_turn_is_counted_and_bounded() -> None:
    """agent:execute-turn takes a turn from the ledger; without a request it is refused."""
    run, runtime = guarded(ToolShelf(), TaskContract(max_turns=1))
    request = TurnRequest(messages=Transcript([UserMessage(text="go")]), tools=())

    async def turns() -> list[ToolOutput]:
        asking = ExecutionContext(request=request)
        return [await runtime.execute_tool(TURN_TOOL, {}, asking) for _ in range(2)]

    first, second = asyncio.run(turns())

    assert first.turn == reply()
    assert second.code == "BUDGET_EXHAUSTED"
    assert call(runtime, TURN_TOOL).code == "INVALID_ARGUMENTS"
    assert run.view().used == {"turns": 1}


def test_many_direct_callers_share_one_ledger() -> None:
    """Twenty at once under five steps run five, whatever the interleaving."""

    async def yielding(context: ExecutionContext) -> Json:
        await asyncio.sleep(0)
        return "ok"

    shelf = ToolShelf().add("t:echo", does=yielding)
    run, runtime = guarded(shelf, TaskContract(max_steps=5, max_refused="unlimited"))

    async def scenario() -> list[ToolOutput]:
        return await asyncio.gather(*(runtime.execute_tool("t:echo", {}, HERE) for _ in range(20)))

    outputs = asyncio.run(scenario())

    assert sum(output.ok for output in outputs) == shelf.ran["t:echo"] == 5
    assert run.view().reserved == {}
    assert len({step.step for step in run.steps}) == 20


def test_only_a_held_step_runs() -> None:
    """`run` without an admission, before the decision, for another tool or twice is refused."""
    policy = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
    shelf = ToolShelf().add("t:echo").add("t:gate")
    _, runtime = guarded(shelf, TaskContract(tool_policy=policy))
    offered: dict[str, ToolSpec] = {spec.name: spec for spec in shelf.specs}

    def asked(name: str, step: str) -> IngestedCall:
        return IngestedCall(
            step=step, call=ToolCall(id=step, name=name, arguments={}), arguments={}, raw=None
        )

    async def scenario() -> None:
        echo, gate = asked("t:echo", "s1"), asked("t:gate", "s2")
        with pytest.raises(ContractError):
            await runtime.execution.run("s1", echo.call, offered["t:echo"], HERE)
        assert isinstance(await runtime.judge.admit(gate, offered, HERE), Pending)
        with pytest.raises(ContractError):
            await runtime.execution.run("s2", gate.call, offered["t:gate"], HERE)
        assert isinstance(await runtime.judge.admit(echo, offered, HERE), Admitted)
        with pytest.raises(ContractError):
            await runtime.execution.run("s1", gate.call, offered["t:gate"], HERE)
        await runtime.execution.run("s1", echo.call, offered["t:echo"], HERE)
        with pytest.raises(ContractError):
            await runtime.execution.run("s1", echo.call, offered["t:echo"], HERE)

    asyncio.run(scenario())

    assert shelf.ran == {"t:echo": 1}


def test_what_is_not_what_was_judged_does_not_run() -> None:
    """Arguments changed after the admission are refused, and the step is used up."""
    shelf = ToolShelf().add("t:echo")
    run, runtime = guarded(shelf)
    given: dict[str, Json] = {"x": "judged"}
    asked = IngestedCall(
        step="s1", call=ToolCall(id="a", name="t:echo", arguments=given), arguments=given, raw=None
    )

    async def scenario() -> None:
        await runtime.judge.admit(asked, {spec.name: spec for spec in shelf.specs}, HERE)
        given["x"] = "swapped"
        output = await runtime.execution.run("s1", asked.call, shelf.specs[0], HERE)

        assert (output.code, output.executed) == ("POLICY_ERROR", "no")

    asyncio.run(scenario())

    assert shelf.calls == []
    assert run.ledger.view(0.0).used["steps"] == 1


def test_a_tool_that_edits_its_arguments_edits_a_copy() -> None:
    """The caller's object stays as it was."""

    async def editing(arguments: Json, context: ExecutionContext) -> Json:
        assert isinstance(arguments, dict)
        arguments.clear()
        return "ok"

    spec = ToolShelf().add("t:echo").specs[0]
    run = create_agent_task_run(TaskContract())
    runtime = run.guard_runtime(
        create_agent_runtime(
            model=ScriptedModel([]), tools=[CatalogTool(spec=spec, handler=editing)]
        )
    )
    given: dict[str, Json] = {"x": "1"}

    asyncio.run(runtime.execute_tool("t:echo", given, HERE))

    assert given == {"x": "1"}


def test_guarding_twice_and_bad_ids_are_refused() -> None:
    """Every step would count twice; an id may become a file name."""
    run, runtime = guarded(ToolShelf())
    with pytest.raises(ContractError):
        run.guard_runtime(runtime)
    for bad in ("", "../x", "a/b", "-x", "x" * 65, "ä", "a.b", "a b"):
        with pytest.raises(ContractError):
            create_agent_task_run(TaskContract(), run_id=bad)
    with pytest.raises(ContractError):
        # The fault at hand.
        create_agent_task_run("contract")  # type: ignore[arg-type]

    assert create_agent_task_run(TaskContract(), run_id="Ab-1_c").id == "Ab-1_c"


def test_a_rewrapped_runtime_keeps_its_run() -> None:
    """What is added later is inside the same guard."""
    run, runtime = guarded(ToolShelf().add("t:echo"))

    again = runtime.rewrap(lambda inner: inner)

    assert again.task_run is run
    assert again.inner is runtime.inner


def test_a_denied_person_word_with_odd_characters_is_shown() -> None:
    """Reasons are cleaned when the decision is made, so no reason can break a result."""

    class Odd:
        async def decide(self, request: ApprovalRequest) -> Decision | None:
            return Decision(
                request_id=request.request_id,
                verdict="deny",
                decided_by="\ud800",
                reason="no \udfff",
            )

    policy = ToolPolicy([ToolRule(tool="*", approval_class="request_user")])
    _, runtime = guarded(
        ToolShelf().add("t:echo"), TaskContract(tool_policy=policy), approver=Odd()
    )

    assert "no \ufffd" in orjson.loads(call(runtime, "t:echo").text)["message"]


@pytest.mark.parametrize("way", ["overrides", "instance", "wraps"])
def test_a_check_that_was_added_is_asked(way: str) -> None:
    """That the package's own runtime refuses nothing is said of its own check, of no other one."""
    inner: Any = create_agent_runtime(model=ScriptedModel([]), tools=ToolShelf().add("t:x").tools)

    async def refuse(*given: object) -> ToolOutput:
        return ToolOutput(ok=False, code="MINE", text="no")

    class Around:
        async def preflight(self, *given: object) -> ToolOutput:
            return await refuse()

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    runtime: Any = inner
    if way == "overrides":
        runtime = type("Own", (type(inner),), {"preflight": refuse})(ScriptedModel([]), ())
    elif way == "instance":
        runtime.preflight = refuse
    else:
        runtime = Around()
    run = create_agent_task_run(TaskContract())
    guarded_ = run.guard_runtime(runtime)
    spec = ToolShelf().add("t:x").specs[0]
    ingested = ingest_call(ToolCall(id="a", name="t:x", arguments={}), step="t1c1", taken={})
    admission = asyncio.run(guarded_.judge.admit(ingested, {"t:x": spec}, HERE))

    assert isinstance(admission, Refused)
    assert admission.output.code == "MINE"


@pytest.mark.parametrize("what", ["call", "turn", "question"])
def test_a_saved_run_is_not_taken_up_while_a_direct_call_is_in_flight(what: str) -> None:
    """What the call holds would be forgotten, and the step could be spent again."""

    async def scenario() -> None:
        asked, gate = asyncio.Event(), asyncio.Event()

        async def wait(_: object) -> str:
            asked.set()
            await gate.wait()
            return "done"

        class Waiting:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                await wait(request)
                return None

        class Model:
            turns = 0

            async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
                self.turns += 1
                if self.turns == 2 and what == "turn":
                    await wait(request)
                return escalate()

        rules = [ToolRule(tool="t:ask", approval_class="request_user")]
        run = create_agent_task_run(
            TaskContract(max_steps=1, tool_policy=ToolPolicy(rules)), approver=Waiting()
        )
        shelf, store = ToolShelf().add("t:a", does=wait).add("t:ask"), MemoryRunStore()
        runtime = run.guard_runtime(create_agent_runtime(model=Model(), tools=shelf.tools))
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs)
        first = await run_governed_agent_loop(
            runtime=runtime, execute_turn_input=given, store=store
        )
        name = {"call": "t:a", "turn": "agent:execute-turn", "question": "t:ask"}[what]
        context = ExecutionContext(request=TurnRequest(messages=Transcript([]), tools=()))
        direct = asyncio.ensure_future(runtime.execute_tool(name, {}, context))
        await asked.wait()
        reserved = run.view().reserved

        with pytest.raises(ContractError, match="direct call"):
            await resume_governed_agent_loop(
                runtime=runtime, store=store, run_id=first.run_id, message="on"
            )

        assert run.view().reserved == reserved
        gate.set()
        await direct
        last = await resume_governed_agent_loop(
            runtime=runtime, store=store, run_id=first.run_id, message="on"
        )

        assert isinstance(last, Suspended)
        assert last.ledger.reserved == {}

    asyncio.run(scenario())
