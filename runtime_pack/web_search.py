"""`web.search` as a tool of a governed run.

It is registered gated: at least `notify`, whatever its back end says of itself. The host may ask
for more, never for less. What it gives back is external and cited; what it refuses costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import orjson

from runtime_pack.catalog import CatalogTool, Effects, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import CallCode, ContractError
from runtime_pack.label_table import SideEffect
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.machine import refusal
from runtime_pack.messages import Json
from runtime_pack.ports import ExecutionContext
from runtime_pack.strictness import ApprovalClass, is_stricter, parse_class
from runtime_pack.web_catalog import PROVENANCE
from web_tools.contract.tool import WebSearchTool
from web_tools.errors import RefusalReason, SearchRefused, WebErrorCode, WebToolError

__all__ = ("web_search_tool",)

_CALL_SECONDS: Final = 120.0
_EXTERNAL: Final = Label(integrity=Integrity.EXTERNAL, confidentiality=Confidentiality.PUBLIC)


def web_search_tool(
    tool: WebSearchTool, *, approval_class: ApprovalClass | str = ApprovalClass.NOTIFY
) -> CatalogTool:
    """*tool* for `create_agent_runtime(tools=[…])`, and its spec for the catalog.

    Raises:
        ContractError: *approval_class* is weaker than `notify`.
    """
    asked = parse_class("approval_class", approval_class)
    if is_stricter(ApprovalClass.NOTIFY, asked):
        raise ContractError("approval_class", "web.search is gated: notify, request_user or deny")
    spec = ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        output_trust=tool.output_trust,
        timeout_seconds=_CALL_SECONDS,
        effects=Effects.REPEATABLE,
        invalid_code=WebErrorCode.INVALID_INPUT,
        approval_class=asked,
        output_confidentiality=Confidentiality.PUBLIC,
        side_effects=(SideEffect.READ_NET,),
    )

    async def handler(arguments: Mapping[str, Json], context: ExecutionContext) -> ToolOutput:
        try:
            answer = await tool.run(arguments, agent=context.agent)
        except SearchRefused as refused:
            return _refused(refused)
        except WebToolError as error:
            return _failed(error)
        return ToolOutput(
            ok=True,
            # Its data are plain; the guard puts the whole text into a fence.
            text=orjson.dumps(answer.envelope).decode(),
            data=answer.envelope,
            label=_EXTERNAL,
            provenance=PROVENANCE,
            citations=answer.citations,
        )

    return CatalogTool(spec=spec, handler=handler)


def _refused(refused: SearchRefused) -> ToolOutput:
    capped = refused.reason is RefusalReason.DAILY_CAP
    code = CallCode.BUDGET_EXHAUSTED if capped else CallCode.POLICY_DENIED
    details: dict[str, Json] = {"detail": str(refused.reason)}
    return refusal(code, str(refused), executed=Executed.NO, details=details)


def _failed(error: WebToolError) -> ToolOutput:
    """What the model is told: code, one sentence, the faulty fields or the word for the failure."""
    details: dict[str, Json] = {} if error.detail is None else {"detail": str(error.detail)}
    if error.faults:
        details["faults"] = [{"path": each.path, "problem": each.problem} for each in error.faults]
    unfit = error.code is WebErrorCode.INVALID_INPUT
    output = refusal(
        error.code,
        error.message,
        executed=Executed.NO if unfit else Executed.YES,
        retryable=error.retryable,
        details=details,
    )
    return output if unfit else attrs.evolve(output, label=_EXTERNAL, provenance=PROVENANCE)
