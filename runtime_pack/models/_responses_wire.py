"""OpenAI Responses: a request as its items, a response or its stream of events as a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from runtime_pack.catalog import ToolSpec
from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    KeptItem,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Turn,
    Usage,
    UserMessage,
    clean_text,
)
from runtime_pack.models._wire import (
    CutResponse,
    MalformedResponse,
    arguments_text,
    in_place,
    items_of,
    made_turn,
    made_usage,
    object_of,
    text_of,
    wire_call_id,
)
from runtime_pack.wire_names import WireNames, wire_name

__all__ = ("FailedResponse", "ResponseEvents", "response_items", "response_tools", "response_turn")

_REASONS: Final[Mapping[str, FinishReason]] = {
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
# `status` is said of a response, and refused in a request.
_REASONING: Final = ("type", "id", "summary", "content", "encrypted_content")
PROVIDER: Final = "openai"
_LAST_EVENTS: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)


class FailedResponse(Exception):
    """The provider began and failed: its error object, and the tokens if it reports them."""

    def __init__(self, error: object, usage: Usage | None = None) -> None:
        super().__init__("the response failed")
        self.error = error
        self.usage = usage


def response_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The history as input items, in its order. Total."""
    return [item for message in messages for item in _items(message)]


def _items(message: Message) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": clean_text(message.text)}
        case UserMessage():
            yield {"role": "user", "content": clean_text(message.text)}
        case ToolMessage():
            yield {
                "type": "function_call_output",
                "call_id": wire_call_id(message.call_id),
                "output": clean_text(message.text),
            }
        case AssistantMessage():
            text = {"role": "assistant", "content": clean_text(message.text)}
            said = [text] if message.text or not message.calls else []
            asked = [_function_call(call) for call in message.calls]
            yield from map(dict, in_place(message, PROVIDER, said, asked))


def _function_call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": wire_call_id(call.id),
        "name": wire_name(call.name),
        "arguments": arguments_text(call.arguments),
    }


def response_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """What is offered, as the API takes it. Not `strict`: it refuses schemas that we take."""
    return [
        {
            "type": "function",
            "name": wire_name(tool.name),
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
        }
        for tool in tools
    ]


def response_turn(response: Mapping[str, Any], names: WireNames) -> Turn:
    """The turn that a whole response is.

    Raises:
        MalformedResponse: it is none.
        CutResponse: it has not come to its end.
        FailedResponse: the provider says that it failed.
    """
    finish = _finish(response)
    output = list(items_of(response.get("output"), "output"))
    parts = [
        part
        for item in output
        if item.get("type") == "message"
        for part in items_of(item.get("content"), "content")
    ]
    refusal = "".join(_texts(parts, "refusal", "refusal"))
    return made_turn(
        text="".join(_texts(parts, "output_text", "text")) or refusal,
        calls=[_call(item, names) for item in output if item.get("type") == "function_call"],
        finish=FinishReason.REFUSAL if refusal else finish,
        usage=_usage(response.get("usage")),
        model=response.get("model"),
        kept=_reasoning(output),
    )


def _reasoning(output: Iterable[Mapping[str, Any]]) -> Iterator[KeptItem]:
    """The reasoning that the API takes back: it stores nothing for us, so it has to be all there."""
    place = calls = 0
    for item in output:
        match item.get("type"):
            case "message":
                place = calls + 1
            case "function_call":
                calls += 1
                place = calls + 1
            case "reasoning" if item.get("encrypted_content"):
                given = {key: item[key] for key in _REASONING if item.get(key) is not None}
                yield KeptItem(provider=PROVIDER, place=place, item={"summary": [], **given})


def _finish(response: Mapping[str, Any]) -> FinishReason:
    status = response.get("status")
    if status == "completed":
        return FinishReason.STOP
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
        return _REASONS.get(str(reason), FinishReason.UNKNOWN)
    if status in ("failed", "cancelled"):
        raise FailedResponse(response.get("error"), _usage(response.get("usage")))
    if status is None:
        raise MalformedResponse("the response has no status")
    raise CutResponse("the response ended before it was complete")


def _texts(parts: Iterable[Mapping[str, Any]], kind: str, key: str) -> Iterator[str]:
    return (text_of(part.get(key), key) for part in parts if part.get("type") == kind)


def _call(item: Mapping[str, Any], names: WireNames) -> ToolCall:
    name = text_of(item.get("name"), "the name of a call")
    return ToolCall(
        id=text_of(item.get("call_id"), "the id of a call"),
        name=names.from_wire(name),
        arguments=text_of(item.get("arguments"), "the arguments of a call"),
    )


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return made_usage(usage.get("input_tokens"), usage.get("output_tokens"), cached)


class ResponseEvents:
    """Reads a stream of events up to the one that ends it, which holds the whole response."""

    def __init__(self) -> None:
        self._items: list[Mapping[str, Any]] = []
        self._last: Mapping[str, Any] | None = None

    def add(self, event: object) -> str:
        """Take one event, and give the text that it adds to the answer.

        Raises:
            MalformedResponse: it is no event.
            FailedResponse: the stream ends in an error.
        """
        told = object_of(event, "an event")
        match told.get("type"):
            case "response.output_text.delta":
                return text_of(told.get("delta"), "a delta")
            case "response.output_item.done":
                self._items.append(object_of(told.get("item"), "an item"))
            case "error":
                raise FailedResponse(told.get("error") or told)
            case str(kind) if kind in _LAST_EVENTS:
                self._last = object_of(told.get("response"), "the response")
        return ""

    def response(self) -> Mapping[str, Any]:
        """The response that the stream ended with.

        Raises:
            CutResponse: it did not come to its end.
        """
        if self._last is None:
            raise CutResponse("the stream ended before the response was complete")
        if not self._last.get("output") and self._items:
            # Some servers send the items once only; without them calls would be lost in silence.
            return {**self._last, "output": self._items}
        return self._last
