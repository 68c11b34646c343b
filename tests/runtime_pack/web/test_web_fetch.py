"""`web.fetch`: the reader `web:read` by the name of the search contract, and no way around it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    AgentTaskRun,
    ContractError,
    Decision,
    ExecutionContext,
    LoopResult,
    PriceTable,
    StepRecord,
    TaskContract,
    ToolMessage,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    TurnInput,
    UserMessage,
    Verdict,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    run_governed_agent_loop,
)
from runtime_pack.catalog import CatalogTool, ToolOutput, index_catalog
from runtime_pack.cli._show import pages_read
from runtime_pack.labels import Integrity
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply
from runtime_pack.tool_aliases import names_of, original_of
from web_tools import AgentProfile, AgentProfiles
from web_tools.page_cache import PageCache
from web_tools.search import create_fixture_web_search_provider
from web_tools.testing_site import LoopbackSite, SiteAnswer

PAGES = {
    "/a": SiteAnswer(body=b"Tides rise.", content_type="text/plain", headers=(("etag", '"1"'),))
}
METADATA = "http://169.254.169.254/"
Call = Callable[[str, str], Awaitable[ToolOutput]]


def on_site(use: Callable[[Call, LoopbackSite, ListEmitter], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        emitter = ListEmitter()
        async with LoopbackSite(PAGES) as site:
            runtime = create_web_tool_runtime(
                create_agent_runtime(model=ScriptedModel([])),
                provider=create_fixture_web_search_provider([]),
                allowlist=[site.entry],
                emitter=emitter,
                web_fetch=True,
                **more,
            )

            async def call(tool: str, agent: str = "") -> ToolOutput:
                given = {"query": "x"} if tool == "web:search" else {"url": site.url("/a")}
                return await runtime.execute_tool(
                    tool, given, ExecutionContext(run="r", agent=agent)
                )

            try:
                await use(call, site, emitter)
            finally:
                # The web runtime has it.
                await runtime.release()  # type: ignore[attr-defined]

    asyncio.run(main())


@pytest.mark.loopback
def test_a_fetch_gives_what_a_read_gives(tmp_path: Any) -> None:
    """Fence, label, citation, data and kept pages are those of `web:read`."""

    async def use(call: Call, site: LoopbackSite, _: ListEmitter) -> None:
        read, fetched = await call("web:read", ""), await call("web.fetch", "")
        assert fetched.ok
        assert fetched.framed
        assert fetched.label == read.label
        assert fetched.label.integrity is Integrity.EXTERNAL
        assert fetched.provenance == read.provenance == ("external_tool_read",)
        (one,), (other,) = fetched.citations, read.citations
        assert one.to_wire()["revisionId"] == other.to_wire()["revisionId"]
        assert isinstance(fetched.data, dict)
        assert isinstance(read.data, dict)
        assert fetched.data.keys() == read.data.keys()
        assert 'if-none-match: "1"' in site.heads[1].lower()

    on_site(use, page_cache=PageCache(tmp_path / "pages"))


def drive(
    policy: ToolPolicy | None = None,
    *wanted: str,
    url: str | None = None,
    approver: Any = None,
    prices: PriceTable | None = None,
    **contract: Any,
) -> tuple[LoopResult, AgentTaskRun, ListEmitter, list[str]]:
    """A run that calls the *wanted* tools, one a turn, with the same page."""

    async def main() -> tuple[LoopResult, AgentTaskRun, ListEmitter, list[str]]:
        async with LoopbackSite(PAGES) as site:
            arguments: Mapping[str, Any] = {"url": url or site.url("/a")}
            script = [calls((f"c{n}", tool, dict(arguments))) for n, tool in enumerate(wanted)]
            emitter = ListEmitter()
            run = create_agent_task_run(
                TaskContract(tool_policy=policy or ToolPolicy(), **contract),
                emitter=emitter,
                approver=approver,
                prices=prices,
            )
            runtime = create_web_tool_runtime(
                run.guard_runtime(create_agent_runtime(model=ScriptedModel([*script, reply()]))),
                provider=create_fixture_web_search_provider([]),
                allowlist=[site.entry],
                emitter=emitter,
                web_fetch=True,
            )
            asked = TurnInput(
                messages=[UserMessage(text="task")],
                tool_catalog=build_web_tool_catalog(web_fetch=True),
            )
            result = await run_governed_agent_loop(runtime=runtime, execute_turn_input=asked)
            return result, run, emitter, list(site.requests)

    return asyncio.run(main())


def outcomes(result: LoopResult) -> list[str]:
    told = [m for m in result.messages if isinstance(m, ToolMessage)]
    return ["ok" if m.ok else orjson.loads(m.text)["code"] for m in told]


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("pattern", "fetched", "read"),
    [
        ("web:read", "POLICY_DENIED", "POLICY_DENIED"),
        ("web:*", "POLICY_DENIED", "POLICY_DENIED"),
        ("web.*", "POLICY_DENIED", "ok"),
        ("web.fetch", "POLICY_DENIED", "ok"),
        ("web.search", "ok", "ok"),
        ("web:search", "ok", "ok"),
    ],
)
def test_a_deny_of_the_reader_holds_for_its_alias(pattern: str, fetched: str, read: str) -> None:
    """A rule on `web:read` is not evaded; one on `web.*` says nothing of `web:read`."""
    policy = ToolPolicy([ToolRule(tool=pattern, approval_class="deny")])
    result, *_ = drive(policy, "web.fetch", "web:read")

    assert outcomes(result) == [fetched, read]


@pytest.mark.loopback
def test_a_limit_on_the_reader_counts_its_alias() -> None:
    """Steps of both names are taken from `per_tool` of `web:read`, and not the other way round."""
    both, *_ = drive(None, "web.fetch", "web:read", per_tool={"web:read": 1})
    alias, *_ = drive(None, "web:read", "web.fetch", per_tool={"web.fetch": 1})

    assert outcomes(both) == ["ok", "BUDGET_EXHAUSTED"]
    assert outcomes(alias) == ["ok", "ok"]


class _Denies:
    """An approver that denies, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def decide(self, request: Any) -> Decision:
        self.asked.append(request.tool)
        return Decision(
            request_id=request.request_id, verdict=Verdict.DENY, decided_by="ann", reason="no"
        )


@pytest.mark.loopback
def test_what_a_person_denied_of_the_reader_is_denied_of_its_alias() -> None:
    """The same page by the other name is not asked about again."""
    approver = _Denies()
    policy = ToolPolicy([ToolRule(tool="web:read", approval_class="request_user")])
    result, _, _, requests = drive(policy, "web:read", "web.fetch", approver=approver)

    assert outcomes(result) == ["DENIED_BY_PERSON"] * 2
    assert (approver.asked, requests) == (["web:read"], [])


@pytest.mark.loopback
def test_a_denied_fetch_is_told_under_its_own_name() -> None:
    """One violation, with the tool that was called; the list is that of the run."""
    result, _, emitter, _ = drive(None, "web.fetch", url=METADATA)

    assert outcomes(result) == ["WEB_EGRESS_DENIED"]
    (event,) = [event for event in emitter.events if event.type == "sandbox:violation"]
    assert event.object["tool"] == "web.fetch"


@pytest.mark.loopback
def test_a_fetch_counts_as_a_page_that_was_read() -> None:
    """The list of pages read under an answer has it."""
    result, *_ = drive(None, "web.fetch")

    steps: tuple[StepRecord, ...] = tuple(result.steps)
    assert [url.rpartition("/")[2] for url in pages_read(steps)] == ["a"]


def test_a_price_of_the_reader_is_one_of_its_alias() -> None:
    """The dearer of the prices of its names is charged."""
    table = PriceTable(models={}, tools={"web:read": Decimal(2), "web.fetch": Decimal(1)})
    run = create_agent_task_run(TaskContract(max_cost=Decimal(9)), prices=table)
    specs = {spec.name: spec for spec in build_web_tool_catalog(web_fetch=True)}

    assert run.meter is not None
    assert run.meter.call_cost(specs["web.fetch"]) == run.meter.call_cost(specs["web:read"]) > 0


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("tools", "may"),
    [
        (("web.fetch", "web.search"), {"web.fetch"}),
        (("web.*",), {"web.fetch"}),
        (("web:read",), {"web:read"}),
        (("web:*",), {"web:read", "web:search"}),
        (("web",), set()),
        ((), set()),
    ],
)
def test_an_agent_has_the_door_that_its_profile_names(
    tools: tuple[str, ...], may: set[str]
) -> None:
    """`web.*` does not admit `web:read`, and `web:read` does not admit `web.fetch`."""

    async def use(call: Call, site: LoopbackSite, _: ListEmitter) -> None:
        for tool in ("web.fetch", "web:read", "web:search"):
            output = await call(tool, "ava")
            assert output.ok is (tool in may)
            if not output.ok:
                assert output.code == "POLICY_DENIED"
                assert f"Agent ava is not allowed to use tool: {tool}" in output.text
            assert not (await call(tool, "bob")).ok
        assert len(site.requests) == len(may - {"web:search"})

    on_site(use, agents=AgentProfiles([AgentProfile(id="ava", tools=tools)]))


def test_a_door_that_was_not_asked_for_is_not_there() -> None:
    """Neither the catalog nor the runtime has `web.fetch` by default."""
    base = create_agent_runtime(model=ScriptedModel([]))
    more: dict[str, Any] = {
        "provider": create_fixture_web_search_provider([]),
        "allowlist": [],
        "emitter": ListEmitter(),
    }
    plain: Any = create_web_tool_runtime(base, **more)
    asked: Any = create_web_tool_runtime(base, web_fetch=True, **more)

    assert "web.fetch" not in {spec.name for spec in build_web_tool_catalog()}
    assert plain.tool_spec("web.fetch") is None
    assert asked.tool_spec("web.fetch").parameters == asked.tool_spec("web:read").parameters


@pytest.mark.parametrize("name", ["web.fetch", "web_dot_fetch"])
def test_a_second_tool_of_the_name_is_refused(name: str) -> None:
    """By its name where the runtime is made, by the providers' spelling where the catalog is."""
    spec = ToolSpec(name=name, description="", parameters={"type": "object", "properties": {}})

    async def never(_: Any, __: Any) -> ToolOutput:
        raise NotImplementedError

    with pytest.raises(ContractError):
        index_catalog([*build_web_tool_catalog(web_fetch=True), spec])
    if name == "web.fetch":
        tool = CatalogTool(spec=spec, handler=never)
        base = create_agent_runtime(model=ScriptedModel([]), tools=[tool])
        with pytest.raises(ContractError):
            create_web_tool_runtime(
                base,
                provider=create_fixture_web_search_provider([]),
                allowlist=[],
                emitter=ListEmitter(),
                web_fetch=True,
            )


@given(st.text(max_size=20))
def test_every_other_name_stands_for_itself(name: str) -> None:
    """There is one alias, and its original is no alias."""
    assert original_of(original_of(name)) == original_of(name)
    assert (names_of(name) == (name,)) is (name != "web.fetch")
    assert names_of("web.fetch") == ("web.fetch", "web:read")
