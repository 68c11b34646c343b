"""What a sub-agent may read: never more than the runtimes of the runs above it."""

import asyncio
from collections.abc import Sequence

import attrs
import pytest

from egress import AllowlistError
from egress.testing import RecordingFetch, ScriptedAnswer
from runtime_pack import (
    AgentTaskRun,
    CatalogTool,
    GuardedRuntime,
    LoopResult,
    SearchHit,
    SubAgent,
    TaskContract,
    ToolRuntime,
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
    sub_agent_tool,
)
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply

ORDERS = ("guard inside", "guard outside")
WIDE = ("a.test", "b.test")
PAGE = ScriptedAnswer(
    headers=(("content-type", "text/plain"),), chunks=(b"Bears sleep in winter.",)
)


@attrs.define(kw_only=True)
class Family:
    """A parent with a web runtime of its own list, and sub-agents with wider ones, *depth* deep."""

    own: Sequence[str]
    order: str = ORDERS[0]
    depth: int = 1
    listed: Sequence[str] = WIDE
    fetch: RecordingFetch = attrs.field(factory=lambda: RecordingFetch([PAGE] * 4))
    emitter: ListEmitter = attrs.field(factory=ListEmitter)

    def _runtime(
        self, run: AgentTaskRun, allow: Sequence[str], model: ScriptedModel, *tools: CatalogTool
    ) -> ToolRuntime:
        base = create_agent_runtime(model=model, tools=tools)
        if self.order == ORDERS[0]:
            return self._web(run.guard_runtime(base), allow)
        return run.guard_runtime(self._web(base, allow))

    def _web(self, base: ToolRuntime, allow: Sequence[str]) -> ToolRuntime:
        return create_web_tool_runtime(
            base,
            provider=create_fixture_web_search_provider([SearchHit(title="t", url="https://a.test/", snippet="")]),
            allowlist=allow,
            emitter=self.emitter,
            fetch=self.fetch,
        )  # fmt: skip

    def _tool(self, run: AgentTaskRun) -> CatalogTool:
        return sub_agent_tool(
            run,
            name="helper",
            description="Helps.",
            make=self._make,
            contract=TaskContract(max_steps=4 - run.depth, max_turns=6 - 2 * run.depth),
            allowlist=self.listed,
        )

    def _make(self, child: AgentTaskRun) -> SubAgent:
        reads = [(f"c{n}", "web:read", {"url": f"https://{host}/"}) for n, host in enumerate(WIDE)]
        tool = self._tool(child)
        asked = reads if child.depth == self.depth else [("h", "helper", {"task": "read"})]
        runtime = self._runtime(child, WIDE, ScriptedModel([calls(*asked), reply("read")]), tool)
        assert isinstance(runtime, GuardedRuntime)
        return SubAgent(runtime=runtime, tool_catalog=[tool.spec, *build_web_tool_catalog()])

    def play(self) -> LoopResult:
        run = create_agent_task_run(TaskContract(max_steps=20, max_turns=20))
        tool = self._tool(run)
        model = ScriptedModel([calls(("h", "helper", {"task": "read"})), reply("done")])
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=[tool.spec])
        runtime = self._runtime(run, self.own, model, tool)
        return asyncio.run(run_governed_agent_loop(runtime=runtime, execute_turn_input=given))

    @property
    def fetched(self) -> list[str]:
        return [target.host for target in self.fetch.requests]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_sub_agent_reads_what_the_lists_above_it_allow(order: str, depth: int) -> None:
    """However wide its own list and the list of its tool are; a grandchild is held to the same."""
    family = Family(own=["a.test"], order=order, depth=depth)

    assert family.play().kind == "completed"
    assert family.fetched == ["a.test"]
    assert [event.object["host"] for event in family.emitter.events] == ["b.test"]


def test_a_parent_that_may_read_all_of_it_lets_its_sub_agent_read_it() -> None:
    """The other direction: what every list has is read."""
    family = Family(own=WIDE)

    assert family.play().kind == "completed"
    assert sorted(family.fetched) == ["a.test", "b.test"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_malformed_list_of_a_sub_agent_is_refused_before_the_run(order: str) -> None:
    """When the parent's runtime is made, not when the model first asks for the sub-agent."""
    family = Family(own=WIDE, order=order, listed=["https://a.test/"])

    with pytest.raises(AllowlistError):
        family.play()
