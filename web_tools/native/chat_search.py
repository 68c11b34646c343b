"""Two protocols in the form of chat completions: OpenRouter with its search tool, and Perplexity. Pure.

Source: tests/cases/provider_shapes/native_openrouter.json and native_perplexity_sonar.json. OpenRouter's
offsets are often 0, which is none; Perplexity marks `[n]`, the n-th of its results from 1, and always
searches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from web_tools.native._reading import (
    Answer,
    array,
    error_fault,
    objects,
    table,
    text,
    usage_of,
    whole,
)
from web_tools.native.values import (
    Covers,
    HeldLimit,
    Json,
    NativeAsk,
    NativeFailed,
    NativeFault,
    NativeRequest,
    NativeTurn,
    NativeUsage,
)

__all__ = ("OpenRouter", "Perplexity")

_STOPS: Final[Mapping[str, NativeFault | None]] = {
    "stop": None,
    "length": NativeFault.INCOMPLETE,
    "content_filter": NativeFault.REFUSED,
    "error": NativeFault.UNAVAILABLE,
}
_MARK: Final = re.compile(r"\[([1-9][0-9]{0,2})\]", re.ASCII)


def _bearer(key: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}"}


def _chat(ask: NativeAsk) -> dict[str, Json]:
    return {
        "model": ask.model,
        "max_tokens": ask.max_output_tokens,
        "messages": [
            {"role": "system", "content": ask.instructions},
            {"role": "user", "content": ask.query},
        ],
    }


def _usage(body: Mapping[str, Any]) -> NativeUsage | None:
    return usage_of(body.get("usage"), "prompt_tokens", "completion_tokens")


def _message(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message of the first choice, when it is whole."""
    usage = _usage(body)
    if body.get("error") is not None:
        raise NativeFailed(error_fault(body["error"]), usage)
    choice = next(objects(body.get("choices")), {})
    if choice.get("error") is not None:
        raise NativeFailed(error_fault(choice["error"]), usage)
    message, stop = table(choice, "message"), choice.get("finish_reason")
    # A choice may leave the reason out; another word is no end that we know.
    fault = None if stop is None else NativeFault.BAD_ANSWER
    if isinstance(stop, str):
        fault = _STOPS.get(stop, NativeFault.BAD_ANSWER)
    if fault is None and not isinstance(message.get("content"), str):
        fault = NativeFault.REFUSED if message.get("refusal") else NativeFault.BAD_ANSWER
    if fault is not None:
        raise NativeFailed(fault, usage)
    return message


@attrs.frozen
class OpenRouter:
    """`openrouter`."""

    holds: frozenset[HeldLimit] = frozenset({HeldLimit.SEARCHES, HeldLimit.SITES})

    def headers(self, key: str) -> Mapping[str, str]:
        """A bearer token."""
        return _bearer(key)

    def encode(self, ask: NativeAsk) -> NativeRequest:
        """The engine of the model itself, and no other."""
        body = _chat(ask)
        if ask.searches != 0:
            parameters: dict[str, Json] = {"engine": "native"}
            if ask.searches is not None:
                parameters["max_uses"] = ask.searches
            if ask.sites:
                parameters["allowed_domains"] = list(ask.sites)
            body["tools"] = [{"type": "openrouter:web_search", "parameters": parameters}]
        return NativeRequest(path="/api/v1/chat/completions", body=body)

    def decode(self, body: object) -> NativeTurn:
        """The message and its annotations."""
        whole_body, answer = table(body), Answer()
        message = _message(whole_body)
        answer.add(text(message.get("content")))
        for note in objects(message.get("annotations")):
            if note.get("type") != "url_citation":
                continue
            cited = table(note, "url_citation")
            start, end = whole(cited.get("start_index")), whole(cited.get("end_index"))
            span = None if start is None or end is None else (start, end)
            source = answer.source(cited.get("url"), cited.get("title"))
            answer.cite(source, span, excerpt=cited.get("content"))
        told = whole(
            table(whole_body, "usage", "server_tool_use_details").get("web_search_requests")
        )
        searches = max(told or 0, int(bool(answer.citations)))
        return NativeTurn(
            text=answer.text,
            citations=tuple(answer.citations),
            sources=answer.sources,
            searches=searches,
            found=bool(answer.citations) or searches > 0,
            dropped=answer.dropped,
            usage=_usage(whole_body),
            model=text(whole_body.get("model")) or None,
        )


@attrs.frozen
class Perplexity:
    """`perplexity`. It has no limit of searches."""

    holds: frozenset[HeldLimit] = frozenset({HeldLimit.SITES})

    def headers(self, key: str) -> Mapping[str, str]:
        """A bearer token."""
        return _bearer(key)

    def encode(self, ask: NativeAsk) -> NativeRequest:
        """It searches unless that is switched off."""
        body = _chat(ask)
        if ask.sites:
            body["search_domain_filter"] = list(ask.sites)
        if ask.searches == 0:
            body["disable_search"] = True
        return NativeRequest(path="/chat/completions", body=body)

    def decode(self, body: object) -> NativeTurn:
        """The message; `[n]` in it cites the n-th result."""
        whole_body, answer = table(body), Answer()
        content = text(_message(whole_body).get("content"))
        answer.add(content)
        rows = array(whole_body.get("search_results"))
        # Before there were results with titles, there was a list of addresses.
        urls = [{"url": url} for url in array(whole_body.get("citations"))]
        found = [
            (
                answer.source(table(row).get("url"), table(row).get("title")),
                table(row).get("snippet"),
            )
            for row in rows or urls
        ]
        for mark in _MARK.finditer(content):
            number = int(mark[1])
            if number <= len(found):
                source, snippet = found[number - 1]
                answer.cite(source, mark.span(), excerpt=snippet, covers=Covers.MARKER)
        told = whole(table(whole_body, "usage").get("num_search_queries"))
        searches = int(bool(found)) if told is None else max(told, int(bool(found)))
        return NativeTurn(
            text=answer.text,
            citations=tuple(answer.citations),
            sources=answer.sources,
            searches=searches,
            found=bool(found),
            dropped=answer.dropped,
            usage=_usage(whole_body),
            model=text(whole_body.get("model")) or None,
        )
