"""The example of the README: a question answered from pages that the run may read."""

import asyncio

from runtime_pack import (
    Event,
    TaskContract,
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    run_governed_agent_loop,
)
from runtime_pack.models import ExtractiveModel
from web_tools.corpus import load_pydoc_topics
from web_tools.corpus_server import serve_corpus
from web_tools.providers.local import LocalSearchProvider


class SecurityEvents:
    async def emit(self, event: Event) -> None:
        print("denied:", event.object["host"])


async def main() -> None:
    pages = load_pydoc_topics()
    async with serve_corpus(pages) as site:
        with LocalSearchProvider.from_documents(pages, base_url=site) as provider:
            run = create_agent_task_run(TaskContract(max_steps=8, max_duration_seconds=60))
            runtime = create_web_tool_runtime(
                create_agent_runtime(model=ExtractiveModel()),  # your Model adapter
                provider=provider,  # your WebSearchProvider adapter
                allowlist=[site.removeprefix("http://")],  # per-run egress allowlist
                emitter=SecurityEvents(),  # receives sandbox:violation on a denial
            )
            result = await run_governed_agent_loop(
                runtime=run.guard_runtime(runtime),
                execute_turn_input=TurnInput(
                    messages=[UserMessage(text="What does the with statement do?")],
                    tool_catalog=build_web_tool_catalog(),
                ),
            )
            print(result.kind, result.ledger.used)
            print(result.text)


asyncio.run(main())
