"""Our governed loop as the comparison harness measures it: its `ours_loop.py`, filled in.

Governance is on, through the public names only: budgets and an allow decision per call, argument
schema, timeout per call, step records, the fence around every output, and the log in a file.
The folder of this file is the harness's `PEERS_OURS_DIR`; `python benchmarks/run.py` sets it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

# The harness puts its own `_common` into `sys.modules`; it is not a package anyone could install.
from _common import (  # type: ignore[import-not-found]
    ARGS_JSON,
    FINAL,
    PROMPT,
    SYSTEM,
    TOOL_NAME,
    noop,
)

from runtime_pack import (
    AuditLog,
    CatalogTool,
    Completed,
    ExecutionContext,
    SystemMessage,
    TaskContract,
    ToolCall,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnInput,
    TurnRequest,
    TurnStatus,
    Usage,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.messages import Json
from web_tools.fence import FenceKind, FenceMeta, NonceBook, fence_text

NAME = "OURS (governed)"
DIST = None
# All that a run needs: the names are loaded when they are asked for, so each of them is.
IMPORT = (
    "from runtime_pack import AuditLog, CatalogTool, Completed, ExecutionContext, SystemMessage,"
    " TaskContract, ToolCall, ToolPolicy, ToolRule, ToolSpec, Turn, TurnInput, TurnRequest,"
    " TurnStatus, Usage, UserMessage, create_agent_runtime, create_agent_task_run,"
    " run_governed_agent_loop; from web_tools.fence import fence_text"
)
SYNC = False
READY = True

_USAGE = Usage(input_tokens=10, output_tokens=5)
_LOOKUP = ToolSpec(
    name=TOOL_NAME,
    description="Looks something up.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 400},
            "limit": {"type": "integer", "minimum": 1, "maximum": 20},
        },
        "required": ["query", "limit"],
        "additionalProperties": False,
    },
    timeout_seconds=30.0,
)


async def lookup(arguments: Mapping[str, Json], context: ExecutionContext) -> Json:
    """The harness's tool, which counts its calls."""
    del context
    output: str = await noop(**arguments)
    return output


def frame(text: str, *, source: str, burned: set[str]) -> str:
    """The fence as a task run asks for it: tools are external unless their spec says otherwise."""
    meta = FenceMeta(kind=FenceKind.PAGE, source=source)
    return fence_text(text, meta=meta, nonces=NonceBook(burned=burned))


class ScriptedModel:
    """`turns` turns that ask for `calls` calls each, then the answer; the turn number is O(1)."""

    def __init__(self, turns: int, calls: int) -> None:
        self._turns, self._calls = turns, calls

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """One turn of the script."""
        del context
        number = (len(request.messages) - 2) // (1 + self._calls)
        if number >= self._turns:
            return Turn(status=TurnStatus.REPLY, text=FINAL, usage=_USAGE)
        # Another query each time: the same call with the same result is what the guard ends.
        asked = tuple(
            ToolCall(
                id=f"c{number}_{index}",
                name=TOOL_NAME,
                arguments=ARGS_JSON.replace("beta", f"{number}.{index}"),
            )
            for index in range(self._calls)
        )
        return Turn(status=TurnStatus.TOOL_REQUEST, calls=asked, usage=_USAGE)


def make(turns: int, calls: int) -> Callable[[], Awaitable[str]]:
    """What a server does once; the coroutine function that is returned does one whole run."""
    log = AuditLog(Path(tempfile.gettempdir()) / f"ours-{os.getpid()}-{turns}x{calls}.jsonl")
    contract = TaskContract(
        max_turns=turns + 2,
        max_steps=turns * calls + 1,
        max_duration_seconds=600,
        max_parallel=calls,
        tool_policy=ToolPolicy([ToolRule(tool=TOOL_NAME, approval_class="auto")]),
    )
    runtime = create_agent_runtime(
        model=ScriptedModel(turns, calls), tools=[CatalogTool(spec=_LOOKUP, handler=lookup)]
    )
    given = TurnInput(
        messages=[SystemMessage(text=SYSTEM), UserMessage(text=PROMPT)], tool_catalog=[_LOOKUP]
    )

    async def run() -> str:
        task = create_agent_task_run(contract, audit=log, frame=frame)
        result = await run_governed_agent_loop(
            runtime=task.guard_runtime(runtime), execute_turn_input=given
        )
        # The same run counts steps, nonces and refusals: a figure without its work is no figure.
        done = len(result.steps), len(task.burned), result.ledger.refused
        if not isinstance(result, Completed) or done != (
            turns * (calls + 1) + 1,
            turns * calls,
            0,
        ):
            raise SystemExit(f"not the work it should be: {result.kind} {result.stop} {done}")
        return result.text

    return run
