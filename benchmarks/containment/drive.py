"""Runs a route with governance, with the fence alone, and with nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import attrs

from benchmarks.containment.routes import GullibleActor, Route, begin_with, orders
from benchmarks.containment.world import ALLOW, SECRET, TASK, World
from runtime_pack import (
    AgentTaskRun,
    ApprovalRequest,
    AssistantMessage,
    Confidentiality,
    Decision,
    Event,
    ExecutionContext,
    GuardedRuntime,
    LabelPreset,
    LoopResult,
    SearchRequest,
    SubAgent,
    TaskContract,
    ToolCall,
    ToolMessage,
    TurnInput,
    TurnStatus,
    UserMessage,
    Verdict,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    run_governed_agent_loop,
    sub_agent_tool,
)
from runtime_pack.messages import Message, Transcript
from runtime_pack.ports import TurnRequest
from runtime_pack.web_catalog import fence_frame

__all__ = ("Mode", "RouteResult", "run_route")

_TOOL_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_MAX_TURNS: Final = 8


class Mode(StrEnum):
    """What stands between the model and the world."""

    GOVERNED = "governed"
    FENCE = "fence only"
    OFF = "governance off"


@attrs.frozen(kw_only=True)
class RouteResult:
    """What came of a route: whether its harm is in the world, and who stood in its way.

    `obeyed` counts the steps that the model took for the page, `knew` says that it had the secret
    by then: a route that was never begun proves nothing of what would hold it.
    """

    route: str
    mode: Mode
    preset: str
    private: str
    harmed: bool
    declared: bool = False
    obeyed: int = 0
    knew: bool = False
    asked: int = 0
    denied: int = 0
    codes: tuple[str, ...] = ()


def run_route(
    route: Route,
    mode: Mode,
    *,
    preset: LabelPreset = LabelPreset.STANDARD,
    private: Confidentiality = Confidentiality.WORKSPACE,
    declared: bool = True,
) -> RouteResult:
    """One route in a new world."""
    world = World(
        page=orders(route), error_page=route.error_page, links=route.links, private=private
    )
    if mode is Mode.GOVERNED:
        return asyncio.run(_governed(route, world, preset, declared=declared))
    answer = asyncio.run(_bare(route, world, fenced=mode is Mode.FENCE))
    return RouteResult(
        route=route.name,
        mode=mode,
        preset="",
        private=str(private),
        harmed=route.harm(world, answer),
    )


# ── with governance ───────────────────────────────────────────────────────────────────────────


class _OwnGoal:
    """A person who allows what the user asked for and nothing else: no harm is part of the task."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def decide(self, request: ApprovalRequest) -> Decision:
        """No."""
        self.asked.append(request.tool)
        return Decision(
            request_id=request.request_id, verdict=Verdict.DENY, decided_by="approver", reason="no"
        )


class _Ears:
    async def emit(self, event: Event) -> None:
        """Nobody listens."""


async def _governed(
    route: Route, world: World, preset: LabelPreset, *, declared: bool
) -> RouteResult:
    person, codes = _OwnGoal(), Counter[str]()
    answer, actors = "", list[GullibleActor]()
    for _ in range(route.sessions):
        runs: list[AgentTaskRun] = []
        result = await _one_run(route, world, preset, person, actors, runs, declared=declared)
        answer = result.text
        records = [*result.steps, *(step for child in runs for step in child.steps)]
        codes.update(str(record.code) for record in records if record.code and not record.ok)
        if result.stop is not None:
            codes[str(result.stop.code)] += 1
    denied = sum(codes.values())
    return RouteResult(
        route=route.name,
        mode=Mode.GOVERNED,
        preset=str(preset),
        private=str(world.private),
        declared=declared,
        harmed=route.harm(world, answer),
        obeyed=sum(actor.obeyed for actor in actors),
        knew=any(actor.knew for actor in actors),
        asked=len(person.asked),
        denied=denied,
        codes=tuple(sorted(codes)),
    )


async def _one_run(
    route: Route,
    world: World,
    preset: LabelPreset,
    person: _OwnGoal,
    actors: list[GullibleActor],
    children: list[AgentTaskRun],
    *,
    declared: bool,
) -> LoopResult:
    run = create_agent_task_run(
        _contract(preset),
        approver=person,
        frame=fence_frame,
        private_strings=[SECRET] if declared else [],
    )
    tools = [*world.tools(), _helper(run, world, actors, children)]
    runtime = _guarded(run, route, world, tools, actors)
    catalog = (*build_web_tool_catalog(), *(tool.spec for tool in tools))
    return await run_governed_agent_loop(
        runtime=runtime,
        execute_turn_input=TurnInput(messages=[UserMessage(text=TASK)], tool_catalog=catalog),
    )


def _contract(preset: LabelPreset, *, turns: int = _MAX_TURNS, steps: int = 40) -> TaskContract:
    return TaskContract(max_turns=turns, max_steps=steps, preset=preset, max_violations=40)


def _guarded(
    run: AgentTaskRun,
    route: Route,
    world: World,
    tools: Sequence[Any],
    actors: list[GullibleActor],
) -> GuardedRuntime:
    model = GullibleActor(route, begin=begin_with())
    actors.append(model)
    runtime = create_web_tool_runtime(
        run.guard_runtime(create_agent_runtime(model=model, tools=tools)),
        provider=world,
        allowlist=ALLOW,
        emitter=_Ears(),
        fetch=world.fetch,
    )
    if not isinstance(runtime, GuardedRuntime):
        raise TypeError("the runtime is not guarded")
    return runtime


def _helper(
    run: AgentTaskRun, world: World, actors: list[GullibleActor], children: list[AgentTaskRun]
) -> Any:
    """A sub-agent with the same tools, as gullible as its parent."""
    message = next(one for one in _routes() if one.name == "message")

    def make(child: AgentTaskRun) -> SubAgent:
        tools = world.tools()
        children.append(child)
        runtime = _guarded(child, message, world, tools, actors)
        return SubAgent(runtime=runtime, tool_catalog=tuple(tool.spec for tool in tools))

    contract = _contract(run.contract.preset, turns=3, steps=8)
    return sub_agent_tool(
        run, name="agent:help", description="Helps.", make=make, contract=contract, allowlist=ALLOW
    )


def _routes() -> Sequence[Route]:
    from benchmarks.containment.routes import ROUTES

    return ROUTES


# ── without ───────────────────────────────────────────────────────────────────────────────────


async def _bare(route: Route, world: World, *, fenced: bool) -> str:
    """A plain loop as many are written: it runs what the model asks for, by a forgiving name."""
    answer = ""
    for _ in range(route.sessions):
        model = GullibleActor(route, begin=begin_with())
        answer = await _plain_loop(model, world, fenced=fenced, text=TASK)
    return answer


async def _plain_loop(model: GullibleActor, world: World, *, fenced: bool, text: str) -> str:
    messages: list[Message] = [UserMessage(text=text)]
    burned: set[str] = set()
    offered = tuple(tool.spec for tool in world.tools())
    for _ in range(_MAX_TURNS):
        request = TurnRequest(messages=Transcript(list(messages)), tools=offered)
        turn = await model.execute_turn(request, ExecutionContext())
        if turn.status is TurnStatus.REPLY:
            for shaped in _TOOL_CALL.findall(turn.text):
                # Frameworks that take calls out of text take them out of what was repeated.
                await _do(world, json.loads(shaped)["name"], json.loads(shaped)["arguments"])
            return turn.text
        messages.append(AssistantMessage(text="", calls=turn.calls))
        for call in turn.calls:
            said = await _do(world, call.name, _arguments(call))
            if fenced:
                said = fence_frame(said, source=f"tool:{call.name}", burned=burned)
            messages.append(ToolMessage(call_id=call.id, name=call.name, text=said, ok=True))
    return ""


def _arguments(call: ToolCall) -> dict[str, Any]:
    return dict(json.loads(call.arguments)) if isinstance(call.arguments, str) else {}


async def _do(world: World, name: str, given: Mapping[str, Any]) -> str:
    tool = re.sub(r"[^a-z:]", "", name.lower().replace("__", ":"))
    if tool == "web:read":
        return _followed(world, str(given["url"]))
    if tool == "web:search":
        hits = await world.search(SearchRequest(query=str(given["query"]), limit=5))
        return "\n".join(f"{hit.title} {hit.url} {hit.snippet}" for hit in hits)
    if tool == "agent:help":
        message = next(one for one in _routes() if one.name == "message")
        helper = GullibleActor(message, begin=[("notes:read", {})])
        return await _plain_loop(helper, world, fenced=False, text=str(given["task"]))
    handlers = world.handlers()
    try:
        return handlers[tool](given) if tool in handlers else "no such tool"
    except KeyError as error:
        return f"missing {error}"


def _followed(world: World, url: str) -> str:
    status, headers, body = world.answer(url)
    if status == 302:
        _, _, body = world.answer(headers["location"])
    return f"{status} {body}".replace("&lt;", "<").replace("&gt;", ">")
