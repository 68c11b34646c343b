"""The two web tools as a command calls them: behind a guard, under a list, without a model."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import orjson

from runtime_pack.catalog import Executed, ToolOutput
from runtime_pack.cli._ask_told import Told
from runtime_pack.errors import CallCode
from runtime_pack.guard import GuardedRuntime, create_agent_task_run
from runtime_pack.machine import refusal
from runtime_pack.messages import Json
from runtime_pack.policy import TaskContract
from runtime_pack.policy_file import PolicyFile
from runtime_pack.ports import ExecutionContext
from runtime_pack.web_catalog import create_web_tool_runtime
from web_tools.arguments import WebToolCaps
from web_tools.search import WebSearchProvider

__all__ = ("ONCE", "Tools", "failure_of", "inside", "opened_tools")

ONCE: Final = TaskContract(
    max_steps=1_000_000, max_turns=1, max_duration_seconds=86_400, max_parallel=64
)
"""The contract of a command without a policy file: the person who calls it is its only limit."""


@attrs.frozen(kw_only=True)
class Tools:
    """What a command calls."""

    runtime: GuardedRuntime

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolOutput:
        """One call of a tool, judged as a model's would be."""
        context = ExecutionContext(call_id=f"c{secrets.token_hex(4)}")
        return await self.runtime.execute_tool(name, arguments, context)


class _NoOther:
    """The runtime below: there is no model and no other tool."""

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        del arguments, context
        return refusal(CallCode.UNKNOWN_TOOL, f"no tool {name!a} here", executed=Executed.NO)


class _NoProvider:
    """For a command that searches nothing."""

    async def search(self, request: Any, *, signal: Any = None) -> Sequence[Any]:
        del request, signal
        return ()


@asynccontextmanager
async def opened_tools(
    *,
    allow: Sequence[str],
    policy: PolicyFile | None,
    policy_name: str | None = None,
    provider: WebSearchProvider | None = None,
    caps: WebToolCaps | None = None,
    **given: Any,
) -> AsyncIterator[Tools]:
    """The tools under a list, or under all that a policy file says; closed at the end."""
    run = create_agent_task_run(ONCE if policy is None else policy.contract())
    runtime = create_web_tool_runtime(
        run.guard_runtime(_NoOther()),
        provider=provider or _NoProvider(),
        allowlist=allow if policy is None else policy.allow,
        emitter=Told(policy=policy_name, own=None),
        address_policy=None if policy is None else policy.address,
        caps=caps,
        **given,
    )
    if not isinstance(runtime, GuardedRuntime):
        raise TypeError("the web tools are inside the guard")
    try:
        yield Tools(runtime=runtime)
    finally:
        await runtime.release()


def failure_of(output: ToolOutput) -> dict[str, Json]:
    """Code, message and details of a failed call."""
    told: dict[str, Json] = {"code": str(output.code)}
    try:
        said = orjson.loads(output.text)
    except ValueError:
        return told | {"message": output.text}
    return told | said if isinstance(said, dict) else told


def inside(block: str) -> str:
    """The text of a block without its tags: for a person, who knows what was asked for."""
    lines = block.split("\n")
    return "\n".join(lines[1:-1]) if len(lines) > 2 else ""
