"""What a host's wrapper passes on by `__getattr__` counts as its own, on every interpreter."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from egress import AllowlistError
from runtime_pack import (
    LoopError,
    TaskContract,
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    ports,
    run_governed_agent_loop,
)
from runtime_pack.testing import ListEmitter, MovableClock, ScriptedModel, calls, reply

PORTS: Mapping[str, tuple[Callable[[object], bool], tuple[str, ...]]] = {
    "preflight": (ports.is_preflight, ("preflight", "tool_spec")),
    "partly knowing": (ports.is_partly_knowing, ("knows_every_tool",)),
    "listed": (ports.is_listed, ("check_allowlists",)),
    "own list": (ports.is_own_list, ("run_list",)),
    "framing": (ports.is_framing, ("frames",)),
    "naming": (ports.is_naming, ("model_name",)),
    "releasable": (ports.is_releasable, ("release",)),
    "result limited": (ports.is_result_limited, ("max_results",)),
    "sleeping": (ports.is_sleeping, ("sleep",)),
}


class Around:
    """Counts calls, say, and passes on whatever else is asked of it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def execute_tool(self, *given: Any) -> Any:
        return await self._inner.execute_tool(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Having:
    """An object with these members and no others."""

    def __init__(self, *members: str) -> None:
        for member in members:
            setattr(self, member, (MovableClock(),))


@pytest.mark.parametrize(("asked", "members"), PORTS.values(), ids=PORTS.keys())
def test_a_port_that_is_passed_on_is_there(
    asked: Callable[[object], bool], members: tuple[str, ...]
) -> None:
    """All members of it, and nothing less."""
    assert asked(Having(*members))
    assert asked(Around(Having(*members)))
    for member in members:
        assert not asked(Around(Having(*(other for other in members if other != member))))


def web(*allowlist: str) -> Any:
    return create_web_tool_runtime(
        create_agent_runtime(
            model=ScriptedModel([calls(("1", "web:read", '{"url":"https://b.test/"}')), reply()])
        ),
        provider=create_fixture_web_search_provider([]),
        allowlist=list(allowlist),
        emitter=ListEmitter(),
    )


def test_a_wrapped_web_runtime_refuses_before_a_step_is_taken() -> None:
    """And what is not listed by it is not listed for what runs below: its list is the run's."""

    async def main() -> None:
        run = create_agent_task_run(TaskContract())
        result = await run_governed_agent_loop(
            runtime=run.guard_runtime(Around(web("a.test"))),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=build_web_tool_catalog()
            ),
        )

        assert not isinstance(result, LoopError)
        assert result.ledger.used.get("steps", 0) == 0
        assert result.ledger.violations == 1
        assert run.run_lists == (("a.test",),)

    asyncio.run(main())


def test_the_lists_of_a_contract_are_read_by_a_wrapped_web_runtime_before_the_run() -> None:
    """A malformed entry of the workspace keeps the run from starting."""
    run = create_agent_task_run(TaskContract(workspace_allowlist=["not a host!"]))

    with pytest.raises(AllowlistError):
        run.guard_runtime(Around(web("a.test")))
