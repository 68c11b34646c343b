"""What the three wire forms have in common. Pure.

A body of a provider is read as plain JSON and trusted in nothing: a field of the wrong type is a
`MalformedResponse`, or counts as missing where the turn can do without it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson

from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    Json,
    KeptItem,
    ToolCall,
    Turn,
    TurnStatus,
    Usage,
)

__all__ = (
    "CutResponse",
    "MalformedResponse",
    "arguments_text",
    "in_place",
    "items_of",
    "made_turn",
    "made_usage",
    "object_of",
    "parsed_body",
    "text_of",
    "wire_call_id",
)

# The narrowest rules among the providers: Anthropic's characters and OpenAI's length.
_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")


class MalformedResponse(Exception):
    """The body is not a whole response of its form. The text is ours and quotes nothing of it."""


class CutResponse(MalformedResponse):
    """It ended before the provider said why it ends. What came of it must not be used."""


def parsed_body(body: bytes) -> Mapping[str, Any]:
    """The object that a body is.

    Raises:
        MalformedResponse: it is not JSON, or not an object.
    """
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedResponse("the body is not JSON") from error
    return object_of(parsed, "the body")


def object_of(value: object, what: str) -> Mapping[str, Any]:
    """*value* as an object.

    Raises:
        MalformedResponse: it is none.
    """
    if not isinstance(value, Mapping):
        raise MalformedResponse(f"{what} is not an object")
    return value


def items_of(value: object, what: str) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; a missing list has none.

    Raises:
        MalformedResponse: it is no list, or an item is no object.
    """
    if value is None:
        return
    if not isinstance(value, list | tuple):
        raise MalformedResponse(f"{what} is not a list")
    for item in value:
        yield object_of(item, f"an item of {what}")


def text_of(value: object, what: str) -> str:
    """A text; a missing one is empty.

    Raises:
        MalformedResponse: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedResponse(f"{what} is not a text")
    return value


def made_usage(inputs: Any, outputs: Any, cached: Any = 0) -> Usage | None:
    """The counts, or None when they are none: then what was reserved is kept.

    A cached count that cannot be is dropped, for uncached tokens are the dearer ones.
    """
    if not _is_count(inputs) or not _is_count(outputs):
        return None
    hit = cached if _is_count(cached) and cached <= inputs else 0
    return Usage(input_tokens=inputs, output_tokens=outputs, cached_input_tokens=hit)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def made_turn(
    *,
    text: str,
    calls: Iterable[ToolCall],
    finish: FinishReason,
    usage: Usage | None,
    model: object,
    kept: Iterable[KeptItem] = (),
) -> Turn:
    """The turn of a whole response. Calls and the reason have to agree.

    Servers say `stop` beside calls. Where calls are promised and there is none, something was
    lost, and the turn must not pass for an answer.
    """
    asked = tuple(calls)
    if asked and finish is FinishReason.STOP:
        finish = FinishReason.TOOL_CALLS
    if not asked and finish is FinishReason.TOOL_CALLS:
        finish = FinishReason.MALFORMED_CALL
    return Turn(
        status=TurnStatus.TOOL_REQUEST if asked else TurnStatus.REPLY,
        text=text,
        calls=asked,
        finish=finish,
        usage=usage,
        model=model if isinstance(model, str) else None,
        kept=tuple(kept),
    )


_P = TypeVar("_P")


def in_place(
    message: AssistantMessage, provider: str, said: Sequence[_P], calls: Sequence[_P]
) -> Iterator[_P | Mapping[str, Json]]:
    """Text and calls of a response in order, with what the provider wants back where it stood.

    What has nothing after it is left out: reasoning belongs to what it led to.
    """
    kept = [item for item in message.kept if item.provider == provider]
    parts = (said, *([call] for call in calls))
    last = max((place for place, part in enumerate(parts) if part), default=-1)
    for place, part in enumerate(parts[: last + 1]):
        yield from (dict(item.item) for item in kept if item.place == place)
        yield from part


def wire_call_id(call_id: str) -> str:
    """An id that every provider takes, the same one for the same id."""
    if _CALL_ID.match(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"call_{digest[:32]}"


def arguments_text(arguments: str | Mapping[str, Json]) -> str:
    """The arguments of a call of the history, as JSON text."""
    return arguments if isinstance(arguments, str) else orjson.dumps(dict(arguments)).decode()
