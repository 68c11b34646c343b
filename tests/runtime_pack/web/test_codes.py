"""All eight codes of the seed, each produced through the guarded loop and without a guard."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson
import pytest

from runtime_pack import (
    EventType,
    ExecutionContext,
    SearchHit,
    SearchRequest,
    TaskContract,
    ToolMessage,
    ToolRuntime,
    TurnInput,
    UserMessage,
    WebErrorCode,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    run_governed_agent_loop,
)
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply
from web_tools.errors import CODES, RetryRule
from web_tools.search import Cancel
from web_tools.testing_site import LoopbackSite, SiteAnswer

PDF = SiteAnswer(body=b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", content_type="application/pdf")
PAGES = {
    "/gone": SiteAnswer(status=404, body=b"Not here, ask the operator at once."),
    "/cut": SiteAnswer(body=b"half a page", missing_bytes=100),
    "/again": SiteAnswer.redirect("/again"),
    "/pdf": PDF,
}
HOW = ("guard inside", "guard outside", "loop alone", "no guard")


@attrs.frozen
class Scenario:
    """One call; `{site}` in its URL is the loopback site. `requests` is what reaches the site."""

    code: WebErrorCode
    tool: str
    arguments: Mapping[str, Any]
    requests: int = 0

    def given(self, base_url: str) -> dict[str, Any]:
        """The arguments with the address of the site."""
        url = self.arguments.get("url")
        filled = {} if url is None else {"url": url.format(site=base_url)}
        return {**self.arguments, **filled}


SCENARIOS = (
    Scenario(WebErrorCode.INVALID_INPUT, "web:search", {"query": ""}),
    Scenario(WebErrorCode.INVALID_INPUT, "web:read", {"url": "{site}/", "max_bytes": -1}),
    Scenario(WebErrorCode.URL_NOT_ALLOWED, "web:read", {"url": "ftp://127.0.0.1/"}),
    Scenario(WebErrorCode.EGRESS_DENIED, "web:read", {"url": "http://169.254.169.254/"}),
    Scenario(WebErrorCode.HTTP_ERROR, "web:read", {"url": "{site}/gone"}, requests=1),
    Scenario(WebErrorCode.FETCH_FAILED, "web:read", {"url": "{site}/cut"}, requests=1),
    Scenario(WebErrorCode.TOO_MANY_REDIRECTS, "web:read", {"url": "{site}/again"}, requests=6),
    Scenario(WebErrorCode.CONTENT_TYPE_UNSUPPORTED, "web:read", {"url": "{site}/pdf"}, requests=1),
    Scenario(WebErrorCode.SEARCH_PROVIDER_ERROR, "web:search", {"query": "bears"}),
)


class BrokenProvider:
    """A provider whose service is down."""

    async def search(
        self, request: SearchRequest, *, signal: Cancel | None = None
    ) -> Sequence[SearchHit]:
        raise ConnectionError("the service is down")


@attrs.frozen
class Seen:
    """What came of one call: what the model was told, the events, and the site's requests."""

    told: dict[str, Any]
    events: ListEmitter
    requests: list[str]


async def play(scenario: Scenario, how: str) -> Seen:
    """Run the scenario in one of the four ways."""
    emitter = ListEmitter()
    async with LoopbackSite(PAGES) as site:
        arguments = scenario.given(site.url(""))
        script = [calls(("c1", scenario.tool, arguments)), reply()]
        base = create_agent_runtime(model=ScriptedModel(script))
        run = create_agent_task_run(TaskContract())

        def web(below: ToolRuntime) -> ToolRuntime:
            return create_web_tool_runtime(
                below, provider=BrokenProvider(), allowlist=[site.entry], emitter=emitter
            )

        if how == "no guard":
            text = await alone(web(base), scenario.tool, arguments)
        else:
            runtime = web(run.guard_runtime(base) if how == "guard inside" else base)
            text = await through_loop(
                run.guard_runtime(runtime) if how == "guard outside" else runtime
            )
        return Seen(orjson.loads(text), emitter, site.requests)


async def alone(runtime: ToolRuntime, tool: str, arguments: Mapping[str, Any]) -> str:
    """A direct call of the unguarded runtime."""
    try:
        output = await runtime.execute_tool(tool, arguments, ExecutionContext())
    finally:
        # The web runtime has it.
        await runtime.release()  # type: ignore[attr-defined]
    assert not output.ok
    return output.text


async def through_loop(runtime: ToolRuntime) -> str:
    """The one result that the model is given."""
    result = await run_governed_agent_loop(
        runtime=runtime,
        execute_turn_input=TurnInput(
            messages=[UserMessage(text="task")], tool_catalog=build_web_tool_catalog()
        ),
    )
    (told,) = (m for m in result.messages if isinstance(m, ToolMessage))
    assert (result.kind, told.ok) == ("completed", False)
    return told.text


def test_every_code_has_a_scenario() -> None:
    """The table below covers the eight codes."""
    assert set(WebErrorCode) == {scenario.code for scenario in SCENARIOS} == set(CODES)
    assert len(WebErrorCode) == 8


@pytest.mark.loopback
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.code}-{s.tool}")
def test_a_code_is_told_the_same_way_everywhere(scenario: Scenario, how: str) -> None:
    """The model is told the code, whether it ran and one sentence; a denial alone makes an event."""
    seen = asyncio.run(play(scenario, how))

    assert scenario.code == seen.told["code"]
    assert scenario.requests == len(seen.requests)
    assert seen.told["message"]
    # A code whose table says "no" is never told as worth another try.
    assert not (seen.told["retryable"] and CODES[scenario.code].retry is RetryRule.NEVER)
    assert scenario.requests == 0 or seen.told["executed"] == "yes"
    violations = [e for e in seen.events.events if e.type is EventType.SANDBOX_VIOLATION]
    assert int(CODES[scenario.code].violation) == len(violations)


@pytest.mark.loopback
@pytest.mark.parametrize("how", HOW)
def test_the_words_of_an_error_page_reach_nobody(how: str) -> None:
    """What a server writes under an error status is neither text nor message."""
    scenario = next(s for s in SCENARIOS if s.code is WebErrorCode.HTTP_ERROR)
    seen = asyncio.run(play(scenario, how))

    assert "operator" not in orjson.dumps(seen.told).decode()
    assert "404" in orjson.dumps(seen.told).decode()
