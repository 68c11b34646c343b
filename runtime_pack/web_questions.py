"""A typed question about a page, asked of a model that has nothing but the page.

It has no tools and sees nothing of the run. What comes back is one value of the type, or nothing: an
answer of another form is asked for once more and then refused. What is no text is `internal`.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import orjson

from runtime_pack.addresses import WEB_ADDRESSES
from runtime_pack.catalog import Executed, ToolOutput
from runtime_pack.errors import CallCode
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.machine import refusal
from runtime_pack.messages import Json, SystemMessage, Turn, UserMessage
from runtime_pack.ports import Aside, ExecutionContext
from web_tools.fence import PLAIN, FenceKind, FenceMeta, FenceStyle, NonceBook, fence_aside
from web_tools.read import Page
from web_tools.typed_question import (
    Answer,
    AnswerKind,
    Question,
    bits_of,
    instructions,
    read_answer,
)

__all__ = ("ask_page",)

_ATTEMPTS: Final = 2
_OUTPUT_TOKENS: Final = 1024
_PAGE: Final = Label(integrity=Integrity.EXTERNAL, confidentiality=Confidentiality.PUBLIC)
_VALUE: Final = Label(integrity=Integrity.INTERNAL, confidentiality=Confidentiality.PUBLIC)
_PROVENANCE: Final = ("external_tool_read",)


async def ask_page(
    question: Question, page: Page, block: str, context: ExecutionContext, style: FenceStyle = PLAIN
) -> ToolOutput:
    """The answer to a question about a page.

    Args:
        question: what is asked.
        page: what was read.
        block: its text in the fence.
        context: of the call; its `aside` asks the model.
        style: how the runtime writes its fences; an answer that is a text stands in one.
    """
    if context.aside is None:
        text = "A question about a page needs a run whose model can be asked."
        return refusal(CallCode.TOOL_ERROR, text, executed=Executed.YES)
    links = tuple(address.url for address in WEB_ADDRESSES.find(page.text))
    answer = await _answered(context.aside, question, block, links, context.step)
    if isinstance(answer, ToolOutput):
        return answer
    bits = bits_of(question, links)
    data: dict[str, Json] = {
        "url": page.url,
        "final_url": page.final_url,
        "type": str(question.kind),
        "answer": answer.value,
        "untrusted": True,
        "citation": page.citation.to_wire(),
    }
    output = ToolOutput(
        ok=True,
        # The address that was asked for, which the model knows: where it led is the page's word.
        text=orjson.dumps({"answer": answer.value, "url": page.url}).decode(),
        data=data,
        label=_VALUE,
        provenance=_PROVENANCE,
        citations=(page.citation,),
        framed=True,
        # The choice among all of them was made with the page in view, and what it tells counts.
        # So of a text, in which any of them may stand.
        links=links if question.kind in {AnswerKind.ADDRESS, AnswerKind.TEXT} else (),
        bits=bits,
    )
    if math.isfinite(bits) or answer.value is None:
        return output
    return await _as_text(output, answer, page, context, style)


async def _answered(
    aside: Aside, question: Question, block: str, links: tuple[str, ...], step: str
) -> Answer | ToolOutput:
    """One answer of the right form, of two at most; or what is told in its place."""
    asked = orjson.dumps({"question": question.question}).decode()
    messages = (
        SystemMessage(text=instructions(question)),
        UserMessage(text=f"{asked}\n{block}", label=_PAGE),
    )
    for _ in range(_ATTEMPTS):
        turn = await aside(step, messages, max_output_tokens=_OUTPUT_TOKENS)
        if not isinstance(turn, Turn):
            return turn
        answer = None if turn.calls else read_answer(question, turn.text, links)
        if answer is not None:
            return answer
    # The same words whatever the page said: that it was refused is all that it tells.
    text = "The answer was not of the type that was asked for, twice."
    refused = refusal(CallCode.TOOL_ERROR, text, executed=Executed.YES)
    return attrs.evolve(refused, label=_VALUE, provenance=_PROVENANCE, bits=1.0)


async def _as_text(
    output: ToolOutput,
    answer: Answer,
    page: Page,
    context: ExecutionContext,
    style: FenceStyle,
) -> ToolOutput:
    """A text is the page's word: external, and in a fence."""
    meta = FenceMeta(kind=FenceKind.SUMMARY, source=page.final_url, retrieved_at=page.fetched_at)
    nonces = NonceBook(burned=context.burned)
    block = await fence_aside(str(answer.value), meta=meta, nonces=nonces, style=style)
    told = (block.to_record(),)
    return attrs.evolve(output, text=block.text, label=_PAGE, bits=None, fences=told)
