"""One web runtime and several event loops: what is open belongs to the loop that opened it."""

import asyncio
from typing import Any

import pytest

from egress.testing import RecordingFetch, ScriptedAnswer
from runtime_pack import (
    ExecutionContext,
    create_agent_runtime,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
)
from runtime_pack.errors import ContractError
from runtime_pack.testing import ListEmitter, ScriptedModel

ANSWER = ScriptedAnswer(headers=(("content-type", "text/plain"),), chunks=(b"words",))


def web(answers: int) -> Any:
    """A web runtime whose fetches open no socket."""
    return create_web_tool_runtime(
        create_agent_runtime(model=ScriptedModel(())),
        provider=create_fixture_web_search_provider([]),
        allowlist=["a.example"],
        emitter=ListEmitter(),
        fetch=RecordingFetch([ANSWER] * answers),
    )


async def read(runtime: Any) -> bool:
    output = await runtime.execute_tool(
        "web:read", {"url": "http://a.example/"}, ExecutionContext()
    )
    ok: bool = output.ok
    return ok


def test_a_second_loop_is_refused_while_the_first_has_things_open() -> None:
    """Neither used there nor dropped unclosed; its own loop goes on and closes them."""
    runtime = web(answers=3)
    first, second = asyncio.Runner(), asyncio.Runner()
    with first, second:
        assert first.run(read(runtime))
        with pytest.raises(ContractError, match="event loop"):
            second.run(read(runtime))
        second.run(runtime.release())
        with pytest.raises(ContractError, match="event loop"):
            second.run(read(runtime))
        assert first.run(read(runtime))
        first.run(runtime.release())
        assert second.run(read(runtime))
        second.run(runtime.release())


def test_what_a_loop_left_open_when_it_ended_is_closed_from_another() -> None:
    """A caller that forgot to release gets the error once told, and a way on."""
    runtime = web(answers=2)
    assert asyncio.run(read(runtime))
    with pytest.raises(ContractError, match="release"):
        asyncio.run(read(runtime))

    async def release_and_read() -> bool:
        await runtime.release()
        try:
            return await read(runtime)
        finally:
            await runtime.release()

    assert asyncio.run(release_and_read())
