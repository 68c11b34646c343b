"""Anthropic Messages: a request as its body, a response or its stream of events as a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from runtime_pack.catalog import ToolSpec
from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    Json,
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
    in_place,
    items_of,
    made_turn,
    made_usage,
    object_of,
    text_of,
    wire_call_id,
)
from runtime_pack.wire_names import WireNames, wire_name

__all__ = ("MessageEvents", "may_think", "message_body", "message_tools", "message_turn")

_REASONS: Final[Mapping[str, FinishReason]] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.REFUSAL,
}
PROVIDER: Final = "anthropic"
# What a block of thinking consists of, the part that must not be empty last.
_THINKING: Final[Mapping[str, tuple[str, ...]]] = {
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
# The API refuses a text without a visible character, and a first message that is not the user's.
_NOTHING_SAID: Final = "(no text)"


def message_body(messages: Iterable[Message]) -> dict[str, Any]:
    """`system` and `messages` of a history. Total.

    System messages go to the top, wherever they stand: the API knows no other place. Neighbours
    of one role become one message, and so all results of a batch stand in one, directly after it.
    """
    history = list(messages)
    told = [clean_text(m.text) for m in history if isinstance(m, SystemMessage)]
    system = "\n\n".join(text for text in told if text.strip())
    made: list[dict[str, Any]] = []
    for message in history:
        role, blocks = _blocks(message)
        if blocks and made and made[-1]["role"] == role:
            made[-1]["content"].extend(blocks)
        elif blocks:
            made.append({"role": role, "content": blocks})
    if not made or made[0]["role"] != "user":
        made.insert(0, {"role": "user", "content": [_text(_NOTHING_SAID)]})
    return {"messages": made, **({"system": system} if system else {})}


def _blocks(message: Message) -> tuple[str, list[dict[str, Any]]]:
    match message:
        case SystemMessage():
            return "user", []
        case UserMessage():
            return "user", [_text(clean_text(message.text))]
        case ToolMessage():
            return "user", [_result(message)]
        case AssistantMessage():
            said = [_text(clean_text(message.text))] if message.text.strip() else []
            asked = [_use(call) for call in message.calls]
            return "assistant", [dict(b) for b in in_place(message, PROVIDER, said, asked)]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text if text.strip() else _NOTHING_SAID}


def _result(message: ToolMessage) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": wire_call_id(message.call_id),
        "content": clean_text(message.text),
        "is_error": not message.ok,
    }


def _use(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": wire_call_id(call.id),
        "name": wire_name(call.name),
        "input": _input(call.arguments),
    }


def _input(arguments: str | Mapping[str, Json]) -> dict[str, Any]:
    """An object: the API takes nothing else. A history of the loop holds nothing else."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def message_tools(tools: Iterable[ToolSpec], messages: Iterable[Message]) -> dict[str, Any]:
    """`tools` of a request, and `tool_choice` where none may be called.

    A history with calls needs their tools declared even when nothing is offered any more: then
    they stand there by name, and the choice is none.
    """
    offered = [
        {
            "name": wire_name(tool.name),
            "description": tool.description,
            "input_schema": tool.parameters,
        }
        for tool in tools
    ]
    if offered:
        return {"tools": offered}
    used = {wire_name(call.name): None for call in _calls_of(messages)}
    if not used:
        return {}
    schema = {"type": "object"}
    gone = [{"name": name, "description": "Gone.", "input_schema": schema} for name in used]
    return {"tools": gone, "tool_choice": {"type": "none"}}


def _calls_of(messages: Iterable[Message]) -> Iterator[ToolCall]:
    return (
        call
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
    )


def message_turn(body: Mapping[str, Any], names: WireNames) -> Turn:
    """The turn that a whole message is.

    Raises:
        MalformedResponse: it is none.
        CutResponse: it has no reason to stop.
    """
    if body.get("type") != "message":
        raise MalformedResponse("the body is not a message")
    reason = body.get("stop_reason")
    if reason is None:
        raise CutResponse("the response ended without a stop reason")
    blocks = list(items_of(body.get("content"), "content"))
    return made_turn(
        text="".join(text_of(b.get("text"), "text") for b in blocks if b.get("type") == "text"),
        calls=[_call(block, names) for block in blocks if block.get("type") == "tool_use"],
        finish=_REASONS.get(str(reason), FinishReason.UNKNOWN),
        usage=_usage(body.get("usage")),
        model=body.get("model"),
        kept=_thinking(blocks),
    )


def _thinking(blocks: Iterable[Mapping[str, Any]]) -> Iterator[KeptItem]:
    """The thinking that the API takes back: it has a signature, or cannot be read at all."""
    place = calls = 0
    for block in blocks:
        match block.get("type"):
            case "text":
                place = calls + 1
            case "tool_use":
                calls += 1
                place = calls + 1
            case "thinking" | "redacted_thinking" as kind:
                given = {key: block.get(key) for key in _THINKING[kind]}
                words = all(isinstance(word, str) for word in given.values())
                if words and given[_THINKING[kind][-1]]:
                    yield KeptItem(provider=PROVIDER, place=place, item={"type": kind, **given})


def may_think(messages: Iterable[Message]) -> bool:
    """Whether a request may ask for thinking: not where the calls that it goes on from have none.

    Source: with thinking, the API wants the assistant's last message with calls to begin with it.
    """
    last = None
    for message in messages:
        last = message if isinstance(message, AssistantMessage) else last
    if last is None or not last.calls:
        return True
    return any(item.provider == PROVIDER and item.place == 0 for item in last.kept)


def _call(block: Mapping[str, Any], names: WireNames) -> ToolCall:
    given = block.get("input")
    return ToolCall(
        id=text_of(block.get("id"), "the id of a call"),
        name=names.from_wire(text_of(block.get("name"), "the name of a call")),
        # Streamed it is text as the model wrote it; in one piece the API has parsed it.
        arguments=given if isinstance(given, str) else orjson.dumps(given).decode(),
    )


def _usage(usage: object) -> Usage | None:
    """Anthropic counts what the cache gave or took beside the input; we count it within."""
    if not isinstance(usage, Mapping):
        return None
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    parts = [usage.get("input_tokens"), read or 0, written or 0]
    if not all(type(part) is int and part >= 0 for part in parts):
        return None
    return made_usage(sum(parts), usage.get("output_tokens"), read or 0)


@attrs.define
class _Block:
    """A content block of a stream: how it starts, and its pieces."""

    start: Mapping[str, Any]
    pieces: list[str] = attrs.field(factory=list)
    signature: str = ""

    def whole(self) -> dict[str, Any]:
        if self.start.get("type") == "text":
            return {"type": "text", "text": "".join(self.pieces)}
        written = "".join(self.pieces)
        if self.start.get("type") == "thinking":
            begun = text_of(self.start.get("thinking"), "thinking")
            signature = self.signature or self.start.get("signature")
            return {"type": "thinking", "thinking": begun + written, "signature": signature}
        # A call without arguments is sent without a piece: then the object of the start counts.
        return {**self.start, **({"input": written} if written else {})}


class MessageEvents:
    """Puts a streamed message together into the body that it would have been in one piece."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}
        self._stopped = False

    def add(self, event: object) -> str:
        """Take one event, and give the text that it adds to the answer.

        Raises:
            MalformedResponse: it is no event, or a piece of no block.
        """
        told = object_of(event, "an event")
        match told.get("type"):
            case "message_start":
                self._message = dict(object_of(told.get("message"), "the message"))
                self._count(self._message.get("usage"))
            case "content_block_start":
                block = object_of(told.get("content_block"), "a block")
                self._blocks[_index(told)] = _Block(block, [text_of(block.get("text"), "text")])
                return self._blocks[_index(told)].pieces[0]
            case "content_block_delta":
                return self._piece(told)
            case "message_delta":
                delta = object_of(told.get("delta"), "a delta")
                self._message["stop_reason"] = delta.get("stop_reason")
                self._count(told.get("usage"))
            case "message_stop":
                self._stopped = True
        return ""

    def body(self) -> dict[str, Any]:
        """The whole message.

        Raises:
            CutResponse: the stream did not come to its end.
        """
        if not self._stopped:
            raise CutResponse("the stream ended before the message did")
        content = [block.whole() for _, block in sorted(self._blocks.items())]
        return {**self._message, "content": content, "usage": self._usage}

    def _count(self, usage: object) -> None:
        """Later counts go before earlier ones: they are totals."""
        if isinstance(usage, Mapping):
            self._usage.update({key: count for key, count in usage.items() if count is not None})

    def _piece(self, told: Mapping[str, Any]) -> str:
        block = self._blocks.get(_index(told))
        if block is None:
            raise MalformedResponse("a piece belongs to no block")
        delta = object_of(told.get("delta"), "a delta")
        match delta.get("type"):
            case "text_delta":
                block.pieces.append(text_of(delta.get("text"), "text"))
                return block.pieces[-1]
            case "thinking_delta":
                block.pieces.append(text_of(delta.get("thinking"), "thinking"))
            case "signature_delta":
                block.signature += text_of(delta.get("signature"), "a signature")
            case "input_json_delta":
                block.pieces.append(text_of(delta.get("partial_json"), "a part of the input"))
        return ""


def _index(told: Mapping[str, Any]) -> int:
    index = told.get("index")
    if type(index) is not int:
        raise MalformedResponse("a block has no index")
    return index
