"""`web.search` as a tool of a governed run.

It is registered gated: at least `notify`, whatever its back end says of itself. The host may ask
for more, never for less. What it gives back is external, fenced result by result and cited, and its
addresses count as found; what it refuses costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from runtime_pack.catalog import CatalogTool, Effects, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import CallCode, ContractError
from runtime_pack.label_table import SideEffect
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.machine import refusal
from runtime_pack.messages import Json
from runtime_pack.ports import ExecutionContext, require_method
from runtime_pack.strictness import ApprovalClass, is_stricter, parse_class
from runtime_pack.web_catalog import PROVENANCE, fence_style, keep_texts
from web_tools.contract.instants import instant_text
from web_tools.contract.results import Result
from web_tools.contract.tool import WebSearchAnswer, WebSearchTool
from web_tools.errors import RefusalReason, SearchRefused, WebErrorCode, WebToolError
from web_tools.fence import FenceMode, FenceStyle, NonceBook, ResultText, fence_results_aside

if TYPE_CHECKING:
    from citations import RevisionStore

__all__ = ("web_search_tool",)

_CALL_SECONDS: Final = 120.0
_EXTERNAL: Final = Label(integrity=Integrity.EXTERNAL, confidentiality=Confidentiality.PUBLIC)


def web_search_tool(
    tool: WebSearchTool,
    *,
    approval_class: ApprovalClass | str = ApprovalClass.NOTIFY,
    revisions: RevisionStore | None = None,
    fence_mode: FenceMode | str = FenceMode.FENCE,
) -> CatalogTool:
    """*tool* for `create_agent_runtime(tools=[…])`, and its spec for the catalog.

    Args:
        tool: from `create_web_search_tool`.
        approval_class: at least `notify`.
        revisions: keeps the text of every result under the digest that its citation has, so that
            the quotations of an answer can be checked.
        fence_mode: how each result is written inside its fence.

    Raises:
        ContractError: *approval_class* is weaker than `notify`, or there is no such mode.
    """
    if revisions is not None:
        require_method("revisions", revisions, "put")
    style = fence_style(fence_mode)
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
        await keep_texts(revisions, (result.whole for result in answer.results))
        return await _found(answer, context, style)

    return CatalogTool(spec=spec, handler=handler, fences=True)


async def _found(
    answer: WebSearchAnswer, context: ExecutionContext, style: FenceStyle
) -> ToolOutput:
    """The results, one block each, as those of `web:search`; its data are plain."""
    fenced = await fence_results_aside(
        [_shown(result) for result in answer.results],
        retrieved_at=answer.received_at,
        nonces=NonceBook(burned=context.burned),
        style=style,
    )
    return ToolOutput(
        ok=True,
        text=fenced.text if answer.results else "No results were found.",
        data=answer.envelope,
        label=_EXTERNAL,
        provenance=PROVENANCE,
        citations=answer.citations,
        framed=True,
        found=tuple(result.url for result in answer.results),
        fences=tuple(block.to_record() for block in fenced.blocks),
    )


def _shown(result: Result) -> ResultText:
    """A result as the model reads it; its date is the back end's word, and stands in the block."""
    snippet = result.snippet
    if result.published_at is not None:
        snippet = f"{snippet}\nPublished: {instant_text(result.published_at)}"
    return ResultText(title=result.title, snippet=snippet, source=result.url)


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
