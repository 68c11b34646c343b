"""The Responses protocol of OpenAI with its `web_search` tool. Pure.

Source: tests/cases/provider_shapes/native_openai_responses.json. Indices count characters of a part and
span the inline mark; cited addresses carry a parameter of the vendor's that the page's own do not.
"""

from __future__ import annotations

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
)

__all__ = ("OpenAIResponses",)

_TRACKING: Final = "utm_source=openai"


@attrs.frozen
class OpenAIResponses:
    """`openai_responses`."""

    holds: frozenset[HeldLimit] = frozenset({HeldLimit.SEARCHES, HeldLimit.SITES})

    def headers(self, key: str) -> Mapping[str, str]:
        """A bearer token."""
        return {"authorization": f"Bearer {key}"}

    def encode(self, ask: NativeAsk) -> NativeRequest:
        """One response, not stored; a search is required where one is offered."""
        body: dict[str, Json] = {
            "model": ask.model,
            "instructions": ask.instructions,
            "input": ask.query,
            "max_output_tokens": ask.max_output_tokens,
            "store": False,
        }
        if ask.searches != 0:
            tool: dict[str, Json] = {"type": "web_search"}
            if ask.sites:
                tool["filters"] = {"allowed_domains": list(ask.sites)}
            body |= {
                "tools": [tool],
                "tool_choice": "required",
                "include": ["web_search_call.action.sources"],
            }
            if ask.searches is not None:
                body["max_tool_calls"] = ask.searches
        return NativeRequest(path="/v1/responses", body=body)

    def decode(self, body: object) -> NativeTurn:
        """The message of a completed response."""
        whole_body = table(body)
        usage = usage_of(whole_body.get("usage"), "input_tokens", "output_tokens")
        status = text(whole_body.get("status"))
        if status == "failed":
            raise NativeFailed(error_fault(whole_body.get("error")), usage)
        if status in {"incomplete", "in_progress", "queued", "cancelled"}:
            raise NativeFailed(NativeFault.INCOMPLETE, usage)
        if status != "completed":
            raise NativeFailed(NativeFault.BAD_ANSWER, usage)
        answer, searches, found, refused = Answer(), 0, False, False
        failed: NativeFault | None = None
        for item in objects(whole_body.get("output")):
            if item.get("type") == "web_search_call":
                began, well = _searched(item, answer)
                searches += began
                found = found or (began and well)
                failed = NativeFault.SEARCH_FAILED if began and not well else failed
            elif item.get("type") == "message":
                refused = _message(item, answer) or refused
        if refused and not answer.text.strip():
            raise NativeFailed(NativeFault.REFUSED, usage)
        return NativeTurn(
            text=answer.text,
            citations=tuple(answer.citations),
            sources=answer.sources,
            searches=searches,
            found=found,
            failed=failed,
            dropped=answer.dropped,
            usage=usage,
            model=text(whole_body.get("model")) or None,
        )


def _searched(item: Mapping[str, Any], answer: Answer) -> tuple[bool, bool]:
    """Whether the call is a search, for it may open a page as well; and whether it went well."""
    action = table(item, "action")
    for source in objects(action.get("sources")):
        answer.source(_untracked(source.get("url")))
    return action.get("type", "search") == "search", item.get("status") == "completed"


def _message(item: Mapping[str, Any], answer: Answer) -> bool:
    """Add the parts of a message; whether one of them refuses."""
    refused = False
    for part in objects(item.get("content")):
        if part.get("type") == "refusal":
            refused = True
        if part.get("type") != "output_text":
            continue
        base = answer.add(text(part.get("text")))
        for note in objects(array(part.get("annotations"))):
            if note.get("type") != "url_citation":
                continue
            source = answer.source(_untracked(note.get("url")), note.get("title"))
            start, end = whole(note.get("start_index")), whole(note.get("end_index"))
            # An index counts in its own part: one that leaves it points into another.
            inside = start is not None and end is not None and end <= len(text(part.get("text")))
            span = (base + (start or 0), base + (end or 0)) if inside else None
            answer.cite(source, span, covers=Covers.MARKER)
    return refused


def _untracked(url: object) -> object:
    """The address without the vendor's parameter, so that what is cited is what was found."""
    if not isinstance(url, str) or _TRACKING not in url:
        return url
    address, hash_mark, fragment = url.partition("#")
    path, _, query = address.partition("?")
    kept = [each for each in query.split("&") if each != _TRACKING]
    return path + ("?" + "&".join(kept) if kept else "") + hash_mark + fragment
