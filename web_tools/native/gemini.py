"""The `generateContent` protocol of Gemini with its `google_search` tool. Pure.

Source: tests/cases/provider_shapes/native_gemini.json. Offsets are bytes of UTF-8 within a part; an address
is a redirect of the provider's, so the host of the source is not known until it is followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import attrs

from egress.url import Target
from web_tools.contract.result_urls import result_url
from web_tools.native._reading import (
    Answer,
    array,
    code_points,
    objects,
    table,
    text,
    usage_of,
    whole,
)
from web_tools.native.values import (
    HeldLimit,
    Json,
    NativeAsk,
    NativeFailed,
    NativeFault,
    NativeRequest,
    NativeSource,
    NativeTurn,
    UrlKind,
)

__all__ = ("Gemini", "is_redirect")

_REDIRECTING: Final = "vertexaisearch.cloud.google.com"
_REDIRECT_PATH: Final = "/grounding-api-redirect/"
_STOPS: Final[Mapping[str, NativeFault | None]] = {
    "STOP": None,
    "MAX_TOKENS": NativeFault.INCOMPLETE,
    "SAFETY": NativeFault.REFUSED,
    "RECITATION": NativeFault.REFUSED,
    "BLOCKLIST": NativeFault.REFUSED,
    "PROHIBITED_CONTENT": NativeFault.REFUSED,
    "SPII": NativeFault.REFUSED,
    "LANGUAGE": NativeFault.REFUSED,
}


@attrs.frozen
class Gemini:
    """`gemini`. It has no limit of searches, and no list of hosts."""

    holds: frozenset[HeldLimit] = frozenset()

    def headers(self, key: str) -> Mapping[str, str]:
        """A key of its own header."""
        return {"x-goog-api-key": key}

    def encode(self, ask: NativeAsk) -> NativeRequest:
        """One candidate."""
        body: dict[str, Json] = {
            "systemInstruction": {"parts": [{"text": ask.instructions}]},
            "contents": [{"role": "user", "parts": [{"text": ask.query}]}],
            "generationConfig": {"maxOutputTokens": ask.max_output_tokens},
        }
        if ask.searches != 0:
            body["tools"] = [{"google_search": {}}]
        path = f"/v1beta/models/{quote(ask.model, safe='')}:generateContent"
        return NativeRequest(path=path, body=body)

    def decode(self, body: object) -> NativeTurn:
        """The parts of the first candidate."""
        whole_body = table(body)
        usage = usage_of(
            whole_body.get("usageMetadata"), "promptTokenCount", "candidatesTokenCount"
        )
        if table(whole_body, "promptFeedback").get("blockReason"):
            raise NativeFailed(NativeFault.REFUSED, usage)
        candidate = next(objects(whole_body.get("candidates")), {})
        stop = candidate.get("finishReason")
        fault = (
            _STOPS.get(stop, NativeFault.BAD_ANSWER)
            if isinstance(stop, str)
            else (NativeFault.BAD_ANSWER)
        )
        if fault is not None:
            raise NativeFailed(fault, usage)
        answer, grounding = Answer(), table(candidate, "groundingMetadata")
        places = _added(table(candidate, "content").get("parts"), answer)
        chunks = [_chunk(each, answer) for each in array(grounding.get("groundingChunks"))]
        for support in objects(grounding.get("groundingSupports")):
            _support(support, chunks, places, answer)
        queries = [
            each for each in array(grounding.get("webSearchQueries")) if isinstance(each, str)
        ]
        # Chunks without queries are results all the same.
        searches = max(len(queries), int(any(chunks)))
        return NativeTurn(
            text=answer.text,
            citations=tuple(answer.citations),
            sources=answer.sources,
            searches=searches,
            found=any(chunks),
            dropped=answer.dropped,
            usage=usage,
            model=text(whole_body.get("modelVersion")) or None,
        )


def _added(parts: object, answer: Answer) -> list[tuple[int, str] | None]:
    """Where each part stands in the answer; None for a thought, which is no part of it."""
    places: list[tuple[int, str] | None] = []
    for part in array(parts):
        piece = text(table(part).get("text"))
        thought = table(part).get("thought") is True
        places.append(None if thought else (answer.add(piece), piece))
    return places


def is_redirect(target: Target) -> bool:
    """Whether an address is one of the provider's that leads to the source."""
    return target.host == _REDIRECTING and _REDIRECT_PATH in target.url


def _chunk(chunk: object, answer: Answer) -> NativeSource | None:
    web = table(chunk, "web")
    found = result_url(web.get("uri"))
    redirect = found is not None and is_redirect(found.target)
    kind = UrlKind.REDIRECT if redirect else UrlKind.DIRECT
    return answer.source(web.get("uri"), web.get("title"), kind)


def _support(
    support: Mapping[str, Any],
    chunks: list[NativeSource | None],
    places: list[tuple[int, str] | None],
    answer: Answer,
) -> None:
    segment = table(support, "segment")
    place = _place(segment.get("partIndex"), places)
    span = None
    if place is not None:
        base, part = place
        inside = code_points(part, segment.get("startIndex"), segment.get("endIndex"))
        span = None if inside is None else (base + inside[0], base + inside[1])
    for index in array(support.get("groundingChunkIndices")):
        number = whole(index)
        if number is not None and number < len(chunks):
            answer.cite(chunks[number], span)


def _place(index: object, places: list[tuple[int, str] | None]) -> tuple[int, str] | None:
    number = 0 if index is None else whole(index)
    return None if number is None or number >= len(places) else places[number]
