"""A host tool below the web tools cannot say of its own text that it is fenced."""

from __future__ import annotations

import asyncio

import pytest

from runtime_pack import (
    ExecutionContext,
    ToolOutput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
    run_governed_agent_loop,
)
from runtime_pack.labels import Integrity, Label
from runtime_pack.loop import TurnInput
from runtime_pack.messages import ToolMessage
from runtime_pack.policy import TaskContract
from runtime_pack.testing import ListEmitter, ScriptedModel, ToolShelf, calls, reply
from runtime_pack.web_catalog import fence_frame
from web_tools.search import create_fixture_web_search_provider


@pytest.mark.parametrize("integrity", [Integrity.EXTERNAL, Integrity.USER])
def test_a_host_tools_claim_is_not_believed(integrity: Integrity) -> None:
    """With the web tools around it and a guard around both, the text stands in one block."""
    claimed = ToolOutput(ok=True, text="page", label=Label(integrity=integrity), framed=True)
    shelf = ToolShelf().add("t:host", claimed)
    model = ScriptedModel([calls(("a", "t:host", "{}")), reply()])
    runtime = create_web_tool_runtime(
        create_agent_runtime(model=model, tools=shelf.tools),
        provider=create_fixture_web_search_provider([]),
        allowlist=["example.org"],
        emitter=ListEmitter(),
    )
    run = create_agent_task_run(TaskContract(), frame=fence_frame)
    given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs)

    direct = asyncio.run(runtime.execute_tool("t:host", {}, ExecutionContext()))
    result = asyncio.run(
        run_governed_agent_loop(runtime=run.guard_runtime(runtime), execute_turn_input=given)
    )

    message = result.messages[2]
    assert isinstance(message, ToolMessage)
    assert direct.text.startswith("<untrusted-web-content nonce=")
    assert message.text.startswith("<untrusted-web-content nonce=")
    assert 1 == message.text.count("</untrusted-web-content")
