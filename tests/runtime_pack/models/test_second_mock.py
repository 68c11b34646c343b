"""The adapters against a mock server by other hands, in another language: where it is installed.

`AIMOCK` names its `dist/cli.js` (`npm install @copilotkit/aimock`, which needs Node); without it
the tests here are skipped.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime_pack import (
    Completed,
    ToolMessage,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.models.anthropic_messages import AnthropicMessagesModel
from runtime_pack.models.openai_chat import OpenAIChatModel
from runtime_pack.models.openai_responses import OpenAIResponsesModel
from runtime_pack.policy import TaskContract
from runtime_pack.testing import ToolShelf

SERVER = os.environ.get("AIMOCK", "")
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.loopback,
    pytest.mark.skipif(not SERVER, reason="AIMOCK names no dist/cli.js of @copilotkit/aimock"),
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
]

KEY = "sk-test-0123456789-abcdefghij"
CALLS = [
    {"id": "call_one", "name": "files__count", "arguments": {"x": "a"}},
    {"id": "call_two", "name": "files__count", "arguments": {"x": "b"}},
]
FIXTURES = {
    "fixtures": [
        {"match": {"toolCallId": "call_two"}, "response": {"content": "Both have 3 files."}},
        {"match": {"userMessage": "count"}, "response": {"toolCalls": CALLS}},
    ]
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server, ready, with a run of two calls and an answer."""
    path = tmp_path_factory.mktemp("aimock") / "run.json"
    path.write_text(json.dumps(FIXTURES))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(NODE), SERVER, "-p", str(port), "-f", str(path), "--strict"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("make", "path"),
    [
        (OpenAIChatModel, "/v1"),
        (OpenAIResponsesModel, "/v1"),
        (AnthropicMessagesModel, ""),
    ],
)
def test_a_run_of_two_calls_and_an_answer(make: Any, path: str, stream: bool, url: str) -> None:
    """Calls come with their ids and arguments, both results go back, and usage is counted."""
    shelf = ToolShelf().add("files:count", "3 files")

    async def scenario() -> Any:
        model = make("test-model", api_key=KEY, base_url=f"{url}{path}", stream=stream)
        run = create_agent_task_run(TaskContract(max_turns=3))
        try:
            return await run_governed_agent_loop(
                runtime=run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools)),
                execute_turn_input=TurnInput(
                    messages=[UserMessage(text="count")], tool_catalog=shelf.specs
                ),
            )
        finally:
            await model.aclose()

    result = asyncio.run(scenario())

    assert isinstance(result, Completed), result.stop
    assert result.text == "Both have 3 files."
    told = [m.call_id for m in result.messages if isinstance(m, ToolMessage)]
    assert told == ["call_one", "call_two"]
    assert [dict(arguments) for _, arguments in shelf.calls] == [{"x": "a"}, {"x": "b"}]
    assert result.ledger.used["turns"] == 2


def test_the_server_is_where_the_variable_says() -> None:
    """A path that is not there would make every test above fail for another reason."""
    assert Path(SERVER).is_file()
