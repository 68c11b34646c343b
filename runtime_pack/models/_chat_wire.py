"""OpenAI Chat Completions: a request as its body, a body or its streamed pieces as a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from runtime_pack.catalog import ToolSpec
from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
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
    items_of,
    made_turn,
    made_usage,
    object_of,
    text_of,
    wire_call_id,
)
from runtime_pack.wire_names import WireNames, wire_name

__all__ = ("ChatPieces", "chat_messages", "chat_tools", "chat_turn")

_FINISHES: Final[Mapping[str, FinishReason]] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}


def chat_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The history as the API takes it, in its order. Total."""
    return [_message(message) for message in messages]


def _message(message: Message) -> dict[str, Any]:
    match message:
        case SystemMessage():
            return {"role": "system", "content": clean_text(message.text)}
        case UserMessage():
            return {"role": "user", "content": clean_text(message.text)}
        case ToolMessage():
            called = wire_call_id(message.call_id)
            return {"role": "tool", "tool_call_id": called, "content": clean_text(message.text)}
        case AssistantMessage():
            return _assistant(message)


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": clean_text(message.text)}
    if message.calls:
        # Servers differ on an empty text beside calls; none refuses null.
        said["content"] = said["content"] or None
        said["tool_calls"] = [_asked(call) for call in message.calls]
    return said


def _asked(call: ToolCall) -> dict[str, Any]:
    function = {"name": wire_name(call.name), "arguments": arguments_text(call.arguments)}
    return {"id": wire_call_id(call.id), "type": "function", "function": function}


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """What is offered, as the API takes it."""
    return [
        {
            "type": "function",
            "function": {
                "name": wire_name(tool.name),
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


def chat_turn(body: Mapping[str, Any], names: WireNames) -> Turn:
    """The turn that a whole body is.

    Raises:
        MalformedResponse: it is none, or it was cut: without a finish reason no call of it counts.
    """
    choice = next(items_of(body.get("choices"), "choices"), None)
    if choice is None:
        raise MalformedResponse("the response has no choice")
    word = choice.get("finish_reason")
    if word is None:
        raise CutResponse("the response ended without a finish reason")
    message = object_of(choice.get("message"), "the message")
    refusal = text_of(message.get("refusal"), "the refusal")
    return made_turn(
        text=text_of(message.get("content"), "the content") or refusal,
        calls=[_call(item, names) for item in items_of(message.get("tool_calls"), "tool_calls")],
        finish=FinishReason.REFUSAL if refusal else _finish(word),
        usage=_usage(body.get("usage")),
        model=body.get("model"),
    )


def _finish(word: object) -> FinishReason:
    return _FINISHES.get(str(word), FinishReason.UNKNOWN)


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    return made_usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)


def _call(item: Mapping[str, Any], names: WireNames) -> ToolCall:
    function = object_of(item.get("function"), "the function of a call")
    name = text_of(function.get("name"), "the name of a call")
    return ToolCall(
        id=text_of(item.get("id"), "the id of a call"),
        name=names.from_wire(name),
        arguments=_arguments(function.get("arguments")),
    )


def _arguments(given: object) -> str | Mapping[str, Any]:
    """The raw text; some servers send the object itself."""
    return given if isinstance(given, Mapping) else text_of(given, "the arguments of a call")


@attrs.define
class _CallPieces:
    """The pieces of one tool call of a stream, joined as they come."""

    index: object
    id: str = ""
    name: str = ""
    arguments: list[str] = attrs.field(factory=list)

    def add(self, item: Mapping[str, Any]) -> None:
        function = item.get("function")
        given = object_of(function, "a function") if function is not None else {}
        self.id = self.id or text_of(item.get("id"), "an id")
        name = text_of(given.get("name"), "a name")
        # Some servers say the whole name with every piece.
        self.name += name if name != self.name else ""
        self.arguments.append(text_of(given.get("arguments"), "arguments"))

    def whole(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "function": function}


class ChatPieces:
    """Puts a streamed response together into the body that it would have been in one piece."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_CallPieces] = []
        self._finish: object = None
        self._usage: object = None
        self._model: object = None

    def add(self, chunk: object) -> str:
        """Take one chunk, and give the text that it adds to the answer.

        Raises:
            MalformedResponse: it is no chunk.
        """
        piece = object_of(chunk, "a chunk")
        self._model = piece.get("model") or self._model
        self._usage = piece.get("usage") or self._usage
        heard = ""
        for choice in items_of(piece.get("choices"), "choices"):
            index = choice.get("index")
            if index is None or index == 0:
                heard += self._choose(choice)
        return heard

    def body(self) -> dict[str, Any]:
        """What came so far, as one body; `chat_turn` sees whether it is whole."""
        message = {
            "content": "".join(self._text),
            "refusal": "".join(self._refusal),
            "tool_calls": [call.whole() for call in self._calls],
        }
        choice = {"message": message, "finish_reason": self._finish}
        return {"choices": [choice], "usage": self._usage, "model": self._model}

    def _choose(self, choice: Mapping[str, Any]) -> str:
        finish = choice.get("finish_reason")
        self._finish = self._finish if finish is None else finish
        delta = object_of(choice.get("delta") or {}, "a delta")
        self._refusal.append(text_of(delta.get("refusal"), "a refusal"))
        for item in items_of(delta.get("tool_calls"), "tool_calls"):
            self._call(item).add(item)
        text = text_of(delta.get("content"), "content")
        self._text.append(text)
        return text

    def _call(self, item: Mapping[str, Any]) -> _CallPieces:
        """The call that a piece belongs to.

        By its index; some servers send none, or 0 for every call, and only the id tells.
        """
        index, given = item.get("index"), item.get("id")
        for call in reversed(self._calls):
            if call.index == index or (index is None and not given):
                if given and call.id and given != call.id:
                    continue
                return call
        self._calls.append(_CallPieces(index))
        return self._calls[-1]
