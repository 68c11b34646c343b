"""The ten-line example of the seed, in Python, as a host would write it."""

import asyncio

import pytest

from runtime_pack import (
    AgentTaskRun,
    Completed,
    Emitter,
    LoopResult,
    Model,
    SearchHit,
    TaskContract,
    ToolMessage,
    TurnInput,
    UserMessage,
    WebSearchProvider,
    WebToolCaps,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
)
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply
from web_tools.testing_site import LoopbackSite, SiteAnswer


async def example(
    *, run: AgentTaskRun, model: Model, provider: WebSearchProvider, host: str, emitter: Emitter
) -> LoopResult:
    """The lines of the seed; everything in them is a public name of `runtime_pack`."""
    runtime = create_web_tool_runtime(
        create_agent_runtime(model=model),
        provider=provider,
        allowlist=[host, "example.net:443"],
        emitter=emitter,
        caps=WebToolCaps(max_results=8, max_read_bytes=131_072),
    )
    return await run_governed_agent_loop(
        runtime=run.guard_runtime(runtime),
        execute_turn_input=TurnInput(
            messages=[UserMessage(text="What do bears do in winter?")],
            tool_catalog=build_web_tool_catalog(),
        ),
    )


@pytest.mark.loopback
def test_the_example_of_the_seed_runs() -> None:
    """A search, a read of what it found and a denied read, under a guard, to an answer."""
    page = SiteAnswer.html("<p>Bears sleep in winter, most of them in a den under snow.</p>")

    async def main() -> tuple[LoopResult, ListEmitter]:
        async with LoopbackSite({"/bears": page}) as site:
            hit = SearchHit(title="Bears", url=site.url("/bears"), snippet="On bears.")
            emitter = ListEmitter()
            script = [
                calls(("1", "web:search", {"query": "bears", "recency": "year"})),
                calls(
                    ("2", "web:read", {"url": hit.url}),
                    ("3", "web:read", {"url": "https://a.example/"}),
                ),
                reply("They sleep [1]."),
            ]
            result = await example(
                run=create_agent_task_run(TaskContract(max_steps=5)),
                model=ScriptedModel(script),
                provider=create_fixture_web_search_provider([hit]),
                host=site.entry,
                emitter=emitter,
            )
            return result, emitter

    result, emitter = asyncio.run(main())
    found, page_read, denied = (m for m in result.messages if isinstance(m, ToolMessage))

    assert isinstance(result, Completed)
    assert "They sleep [1]." == result.text
    assert "On bears." in found.text
    assert "in a den under snow" in page_read.text
    assert "WEB_EGRESS_DENIED" in denied.text
    assert ["sandbox:violation"] == [event.type for event in emitter.events]
