"""What is put where something else belongs is refused at once, and the text says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from runtime_pack import (
    ContractError,
    LoopError,
    MemoryRunStore,
    Seal,
    StopCode,
    TaskContract,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnInput,
    UserMessage,
    catalog_tool,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    run_governed_agent_loop,
    run_governed_agent_loop_sync,
)
from runtime_pack.testing import ListEmitter, ScriptedModel, reply
from web_tools.search import create_fixture_web_search_provider

# What Python's annotations forbid, and Python does not.
WRONG: Final[Any] = object()
SAID: Final = (UserMessage(text="go"),)
RULE: Final = ToolRule(tool="t:*", approval_class="deny")


def plain_function(x: str) -> str:
    return x


@catalog_tool(name="t:tool")
def tool(x: str) -> str:
    """A tool."""
    return x


def wrong(value: Any) -> Any:
    """The value, of which mypy does not say that it does not belong there."""
    return value


def base(**more: Any) -> Any:
    return create_agent_runtime(model=ScriptedModel([reply()]), **more)


def web(**more: Any) -> Any:
    options: dict[str, Any] = {
        "provider": create_fixture_web_search_provider([]),
        "emitter": ListEmitter(),
        "allowlist": [],
    }
    return create_web_tool_runtime(base(), **(options | more))


def run(**more: Any) -> Any:
    return create_agent_task_run(TaskContract(), **more)


def start(runtime: Any, given: Any) -> Any:
    return run_governed_agent_loop_sync(runtime=runtime, execute_turn_input=given)


def spec(**more: Any) -> ToolSpec:
    return ToolSpec(name="t:x", description="", parameters={"type": "object"}, **more)


MISUSES: Final[list[tuple[Callable[[], Any], str]]] = [
    (
        lambda: base(tools=[plain_function]),
        "tools: plain_function is not a tool yet: decorate it with @catalog_tool",
    ),
    (lambda: base(tools=[tool.spec]), "tools: t:tool is a spec: give CatalogTool("),
    (lambda: base(tools=[3]), "tools: int is not a CatalogTool"),
    (
        lambda: TurnInput(messages=SAID, tool_catalog=[wrong(tool)]),
        "tool_catalog: t:tool is a tool: give tool.spec",
    ),
    (lambda: TurnInput(messages=SAID, tool_catalog=[WRONG]), "tool_catalog: object is not a"),
    (lambda: start(base(), "hi"), "execute_turn_input: is a str: give TurnInput("),
    (
        lambda: start(run(), TurnInput(messages=SAID)),
        "runtime: is the task run: give `run.guard_runtime(runtime)`",
    ),
    (lambda: run().guard_runtime(run()), "runtime: is the task run: give the runtime"),
    (lambda: start(WRONG, TurnInput(messages=SAID)), "runtime: object has no method `execute_t"),
    (lambda: ToolPolicy(wrong(RULE)), "tool_policy: is one rule: give a list"),
    (
        lambda: spec(output_trust="safe"),
        "output_trust: 'safe' is not one of user, internal, external",
    ),
    (lambda: spec(effects="none"), "effects: 'none' is not one of "),
    (
        lambda: spec(approval_class="maybe"),
        "approval_class: 'maybe' is not one of auto, notify, request_user, deny",
    ),
    (
        lambda: ToolRule(tool="t", approval_class="maybe"),
        "approval_class: 'maybe' is not one of auto",
    ),
    (
        lambda: Turn(status="tool", text="x"),
        "status: 'tool' is not one of reply, tool_request, complete, escalate",
    ),
    (lambda: Turn(status="reply", finish="end"), "finish: 'end' is not one of stop, "),
    (lambda: Seal(wrong("x" * 32)), "key: must be bytes, at least 32: str"),
    (lambda: run(seal=b"x" * 32), "seal: must be a Seal: give Seal(key)"),
    (
        lambda: create_agent_runtime(model=WRONG),
        "model: object has no method `execute_turn`",
    ),
    (
        lambda: create_agent_runtime(model=wrong(ScriptedModel)),
        "model: ScriptedModel is a class: give an object of it",
    ),
    (lambda: run(approver=WRONG), "approver: object has no method `decide`"),
    (lambda: run(emitter=WRONG), "emitter: object has no method `emit`"),
    (lambda: run(summariser=WRONG), "summariser: object has no method `summarise`"),
    (lambda: run(clock=WRONG), "clock: object has no method `monotonic`"),
    (lambda: web(provider=WRONG), "provider: object has no method `search`"),
    (lambda: web(emitter=WRONG), "emitter: object has no method `emit`"),
]


@pytest.mark.parametrize(("misuse", "text"), MISUSES, ids=[text for _, text in MISUSES])
def test_what_does_not_belong_is_refused_with_advice(
    misuse: Callable[[], object], text: str
) -> None:
    """At construction, by the name of the argument."""
    with pytest.raises(ContractError) as refused:
        misuse()

    assert str(refused.value).startswith(text)


def test_the_id_of_a_saved_run_is_not_for_a_new_one() -> None:
    """It is told to resume or to choose another id, and the saved run is as it was."""

    async def started(store: MemoryRunStore) -> Any:
        guarded = run(run_id="a").guard_runtime(base())
        given = TurnInput(messages=SAID)
        return await run_governed_agent_loop(runtime=guarded, execute_turn_input=given, store=store)

    async def scenario() -> None:
        store = MemoryRunStore()
        await started(store)
        before = await store.load("a")
        second = await started(store)

        assert isinstance(second, LoopError)
        assert second.stop is not None
        assert second.stop.code == StopCode.STATE_CONFLICT
        text = "a run 'a' is saved already: resume it or choose another run_id"
        assert second.stop.message == text
        assert await store.load("a") == before

    asyncio.run(scenario())
