"""The Messages protocol of Anthropic with its server-side `web_search` tool. Pure.

Source: tests/cases/provider_shapes/native_anthropic.json. Citations hang on a block of text, without offsets;
a paused turn goes back unchanged, and `max_uses` counts in each request anew: whoever asks again has to
lower it by what was used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from web_tools.native._reading import Answer, array, objects, table, text, usage_of, whole
from web_tools.native.values import (
    HeldLimit,
    Json,
    NativeAsk,
    NativeFailed,
    NativeFault,
    NativeRequest,
    NativeTurn,
)

__all__ = ("AnthropicMessages",)

_TOOL: Final = "web_search"
_ERRORS: Final[Mapping[object, NativeFault]] = {
    "max_uses_exceeded": NativeFault.LIMIT_REACHED,
    "too_many_requests": NativeFault.RATE_LIMITED,
    "unavailable": NativeFault.UNAVAILABLE,
    "invalid_tool_input": NativeFault.SEARCH_FAILED,
    "query_too_long": NativeFault.SEARCH_FAILED,
    "request_too_large": NativeFault.SEARCH_FAILED,
}
_STOPS: Final[Mapping[object, NativeFault | None]] = {
    "end_turn": None,
    "stop_sequence": None,
    "pause_turn": None,
    "max_tokens": NativeFault.INCOMPLETE,
    "model_context_window_exceeded": NativeFault.INCOMPLETE,
    "refusal": NativeFault.REFUSED,
}


@attrs.frozen
class AnthropicMessages:
    """`anthropic`."""

    holds: frozenset[HeldLimit] = frozenset({HeldLimit.SEARCHES, HeldLimit.SITES})

    def headers(self, key: str) -> Mapping[str, str]:
        """A key and the version of the API."""
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def encode(self, ask: NativeAsk) -> NativeRequest:
        """One turn; after a pause what came goes back, and with no search left there is no tool."""
        messages: list[Json] = [{"role": "user", "content": ask.query}]
        messages += [{"role": "assistant", "content": content} for content in ask.resume]
        body: dict[str, Json] = {
            "model": ask.model,
            "max_tokens": ask.max_output_tokens,
            "system": ask.instructions,
            "messages": messages,
        }
        if ask.searches != 0:
            tool: dict[str, Json] = {"type": "web_search_20250305", "name": _TOOL}
            if ask.searches is not None:
                tool["max_uses"] = ask.searches
            if ask.sites:
                tool["allowed_domains"] = list(ask.sites)
            body["tools"] = [tool]
        return NativeRequest(path="/v1/messages", body=body)

    def decode(self, body: object) -> NativeTurn:
        """The blocks of one response."""
        whole_body = table(body)
        usage = usage_of(whole_body.get("usage"), "input_tokens", "output_tokens")
        answer, shown, found = Answer(), 0, False
        failed: NativeFault | None = None
        cited: list[tuple[Mapping[str, Any], tuple[int, int]]] = []
        for block in objects(whole_body.get("content")):
            kind = block.get("type")
            if kind == "server_tool_use" and block.get("name") == _TOOL:
                shown += 1
            elif kind == "web_search_tool_result":
                fault = _results(block, answer)
                found, failed = found or fault is None, fault or failed
            elif kind == "text":
                piece = text(block.get("text"))
                start = answer.add(piece)
                span = (start, start + len(piece))
                cited += [(each, span) for each in objects(array(block.get("citations")))]
        stop = whole_body.get("stop_reason")
        if failed is not None and not found and stop != "pause_turn":
            raise NativeFailed(failed, usage)
        fault = (
            _STOPS.get(stop, NativeFault.BAD_ANSWER) if _is_word(stop) else NativeFault.BAD_ANSWER
        )
        if fault is not None:
            raise NativeFailed(fault, usage)
        for each, span in cited:
            source = answer.source(each.get("url"), each.get("title"))
            answer.cite(source, span, excerpt=each.get("cited_text"))
        told = whole(table(whole_body, "usage", "server_tool_use").get("web_search_requests"))
        return NativeTurn(
            text=answer.text,
            citations=tuple(answer.citations),
            sources=answer.sources,
            searches=max(shown, told or 0),
            found=found,
            failed=failed,
            dropped=answer.dropped,
            usage=usage,
            model=text(whole_body.get("model")) or None,
            resume=array(whole_body.get("content")) if stop == "pause_turn" else None,
        )


def _results(block: Mapping[str, Any], answer: Answer) -> NativeFault | None:
    """Note the results of one search; or what it failed with."""
    content = block.get("content")
    if not isinstance(content, list):
        code = table(content).get("error_code")
        return (
            _ERRORS.get(code, NativeFault.SEARCH_FAILED)
            if _is_word(code)
            else (NativeFault.SEARCH_FAILED)
        )
    for each in objects(content):
        if each.get("type") == "web_search_result":
            answer.source(each.get("url"), each.get("title"))
    return None


def _is_word(value: object) -> bool:
    return isinstance(value, str)
