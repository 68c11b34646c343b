"""The innermost runtime: a model behind `agent:execute-turn`, and the host's own tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from runtime_pack.catalog import (
    TURN_TOOL,
    CatalogTool,
    Executed,
    ToolOutput,
    ToolSpec,
    index_catalog,
)
from runtime_pack.errors import CallCode, ContractError
from runtime_pack.machine import refusal
from runtime_pack.messages import Json
from runtime_pack.ports import (
    ExecutionContext,
    Model,
    ToolRuntime,
    is_releasable,
    refuses_nothing,
    require_method,
)

__all__ = ("create_agent_runtime",)


def create_agent_runtime(*, model: Model, tools: Iterable[CatalogTool] = ()) -> ToolRuntime:
    """A runtime that takes turns with *model* and runs *tools*.

    Raises:
        ContractError: two tools have one name, something is no tool, or the model cannot take turns.
    """
    require_method("model", model, "execute_turn")
    given = tuple(tools)
    for tool in given:
        _require_tool(tool)
    return _AgentRuntime(model, given)


def _require_tool(tool: object) -> None:
    """Refuse what is no tool, and say how it becomes one.

    Raises:
        ContractError: it is not a `CatalogTool`.
    """
    if isinstance(tool, CatalogTool):
        return
    if isinstance(tool, ToolSpec):
        problem = f"{tool.name} is a spec: give CatalogTool(spec=…, handler=…)"
    elif callable(tool):
        name = getattr(tool, "__name__", type(tool).__name__)
        problem = f"{name} is not a tool yet: decorate it with @catalog_tool"
    else:
        problem = f"{type(tool).__name__} is not a CatalogTool"
    raise ContractError("tools", problem)


class _AgentRuntime:
    """A model's turns and a host's tools behind one door."""

    def __init__(self, model: Model, tools: tuple[CatalogTool, ...]) -> None:
        self._model = model
        self._specs = index_catalog(tool.spec for tool in tools)
        self._handlers = {tool.spec.name: tool.handler for tool in tools}
        # Nothing but True is the host's word.
        self._fencing = frozenset(tool.spec.name for tool in tools if tool.fences is True)

    @property
    def max_results(self) -> int | None:
        """What the model's adapter declares, if it does: its provider takes no more results."""
        return getattr(self._model, "max_results", None)

    @property
    def model_name(self) -> str | None:
        """What the model calls itself; None when it does not say."""
        name: object = getattr(self._model, "model_name", None)
        return name if isinstance(name, str) else None

    def tool_spec(self, name: str) -> ToolSpec | None:
        return self._specs.get(name)

    def frames(self, name: str) -> bool:
        """Whether the host registered the tool as one that fences what it gives."""
        return name in self._fencing

    @refuses_nothing
    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        """The schema was checked already; host tools have nothing more to say."""
        del name, arguments, context
        return None

    async def release(self) -> None:
        """Let go of the connections that the model holds between turns."""
        if is_releasable(self._model):
            await self._model.release()

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        if name == TURN_TOOL:
            if context.request is None:
                text = "A model turn needs context.request."
                return refusal(CallCode.INVALID_ARGUMENTS, text)
            turn = await self._model.execute_turn(context.request, context)
            return ToolOutput(ok=True, text="", turn=turn, framed=True)
        handler = self._handlers.get(name)
        if handler is None:
            return refusal(CallCode.UNKNOWN_TOOL, f"There is no tool {name[:64]!r}.")
        try:
            given = await handler(arguments, context)
        except SystemExit:
            # In a task it would end the host's event loop; a tool only ends its call.
            said = "The tool failed (SystemExit)."
            return refusal(CallCode.TOOL_ERROR, said, executed=Executed.UNKNOWN)
        if isinstance(given, ToolOutput):
            return given
        return _output(given, self._specs[name])


def _output(given: Json, spec: ToolSpec) -> ToolOutput:
    """What a handler gave as an output: a string as it is, any other JSON value written out."""
    if isinstance(given, str):
        return ToolOutput(ok=True, text=given, data=given, label=spec.floor_label)
    try:
        text = orjson.dumps(given).decode()
    except TypeError:
        said = "The tool answered with something that is not JSON."
        return refusal(CallCode.TOOL_ERROR, said, executed=Executed.YES)
    return ToolOutput(ok=True, text=text, data=given, label=spec.floor_label)
