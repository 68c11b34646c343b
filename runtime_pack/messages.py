"""What a model is shown and what it answers: messages, tool calls, turns.

Values only. Every message has one JSON form, written by `message_to_json` and read by
`message_from_json`; unknown keys are refused when reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NoReturn, SupportsIndex, TypeAlias, overload

import attrs
import orjson

from runtime_pack.errors import ContractError, not_one_of
from runtime_pack.inner import frozen
from runtime_pack.labels import CLEAN, UNLABELLED, Label, parse_label

__all__ = (
    "AssistantMessage",
    "FinishReason",
    "FrozenArray",
    "FrozenObject",
    "Json",
    "KeptItem",
    "Message",
    "SystemMessage",
    "ToolCall",
    "ToolMessage",
    "Transcript",
    "Turn",
    "TurnStatus",
    "Usage",
    "UserMessage",
    "call_fault",
    "clean_text",
    "frozen_arguments",
    "history_fault",
    "kept_from_json",
    "kept_to_json",
    "message_from_json",
    "message_to_json",
    "own_copy",
    "turn_fault",
)

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
"""A value that JSON can carry."""


class TurnStatus(StrEnum):
    """What a model's turn asks of the loop."""

    REPLY = "reply"
    TOOL_REQUEST = "tool_request"
    COMPLETE = "complete"
    ESCALATE = "escalate"


class FinishReason(StrEnum):
    """Why the provider stopped producing. After the first two, nothing of the response runs."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    MALFORMED_CALL = "malformed_call"
    UNKNOWN = "unknown"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"


@frozen(kw_only=True)
class Usage:
    """Tokens of one turn as the provider reported them.

    `cached_input_tokens` are those of the input that the provider read from its cache: a part of
    `input_tokens`, never beside them.
    """

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0


@frozen(kw_only=True)
class ToolCall:
    """One call as the provider sent it: `arguments` is JSON text, or an object already parsed."""

    id: str
    name: str
    arguments: str | Mapping[str, Json]


def _storable(item: Mapping[str, Json]) -> Mapping[str, Json]:
    try:
        frozen = frozen_arguments(item)
        # A saved run holds it some levels deep, and there is a limit to that.
        orjson.dumps([[[[[[[[frozen]]]]]]]])
    # An adapter's object: whatever reading it raises, it cannot be kept.
    except Exception as error:
        raise ContractError("kept", "an item is no JSON object that can be stored") from error
    return frozen


@frozen(kw_only=True)
class KeptItem:
    """What a provider wants to have back as it was, with the response that it came in: reasoning.

    Only the adapter that made it reads it. `place` says where it stood: 0 before the text, 1 between
    the text and the first call, n + 1 after the n-th call.

    Raises:
        ContractError: the item is no JSON object that can be stored.
    """

    provider: str
    place: int
    item: Mapping[str, Json] = attrs.field(converter=_storable)


def _status(word: TurnStatus | str) -> TurnStatus:
    try:
        return word if type(word) is TurnStatus else TurnStatus(word)
    except ValueError as error:
        raise ContractError("status", not_one_of(word, TurnStatus)) from error


def _finish(word: FinishReason | str) -> FinishReason:
    try:
        return word if type(word) is FinishReason else FinishReason(word)
    except ValueError as error:
        raise ContractError("finish", not_one_of(word, FinishReason)) from error


def _call_tuple(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


@frozen(kw_only=True)
class Turn:
    """One model response.

    Raises:
        ValueError: the status or the finish reason is not one of the words, or the status says
            calls and there are none, or the other way round.
    """

    status: TurnStatus = attrs.field(converter=_status)
    text: str = ""
    calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=_call_tuple)
    finish: FinishReason = attrs.field(default=FinishReason.STOP, converter=_finish)
    usage: Usage | None = None
    model: str | None = None
    kept: tuple[KeptItem, ...] = ()

    def __attrs_post_init__(self) -> None:
        if (self.status is TurnStatus.TOOL_REQUEST) != bool(self.calls):
            raise ValueError(f"a turn of status {self.status} with {len(self.calls)} call(s)")


def turn_fault(turn: Turn) -> str | None:
    """What is wrong with the fields of an adapter's turn; None when nothing is.

    Adapters are the host's code, and Python does not hold them to the annotations: what is not
    checked here would fail in the middle of the loop.
    """
    text: object = turn.text
    model: object = turn.model
    if not isinstance(text, str):
        return "text is not a string"
    if model is not None and not isinstance(model, str):
        return "model is not a string"
    if turn.usage is not None and not _is_usage(turn.usage):
        return "usage is not counts of tokens with the cached ones among the input"
    kept: object = turn.kept
    if kept != () and (not isinstance(kept, tuple) or not all(map(_is_kept, kept))):
        return "kept is not items with a provider and a place"
    for call in turn.calls:
        fault = call_fault(call)
        if fault is not None:
            return fault
    return None


def _refuse_change(self: object, *_args: Any, **_named: Any) -> NoReturn:
    del self
    raise TypeError("this is part of the history of a run and cannot be changed; copy it first")


class FrozenObject(dict[str, "Json"]):
    """A JSON object that cannot be changed; a copy of it is a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[type, tuple[dict[str, Json]]]:
        return dict, (dict(self),)


class FrozenArray(list["Json"]):
    """A JSON array that cannot be changed; a copy of it is a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[type, tuple[list[Json]]]:
        return list, (list(self),)


def frozen_arguments(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """A copy of a JSON object that nobody can change, at any depth; its texts can be stored."""
    return FrozenObject({clean_text(key): _frozen(item) for key, item in arguments.items()})


_PLAIN: Final = frozenset({int, float, bool, type(None)})


def _frozen(value: Json) -> Json:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return frozen_arguments(value)
    if isinstance(value, list | tuple):
        return FrozenArray(_frozen(item) for item in value)
    return value


def call_fault(call: object) -> str | None:
    """What is wrong with the fields of a call; None when nothing is."""
    if not isinstance(call, ToolCall):
        return "a call is not a ToolCall"
    name: object = call.name
    given: object = call.arguments
    if not isinstance(call.id, str) or not isinstance(name, str):
        return "a call's id or name is not a string"
    if not isinstance(given, str) and not isinstance(given, Mapping):
        return "a call's arguments are neither text nor an object"
    return None


def _is_kept(item: object) -> bool:
    return isinstance(item, KeptItem) and isinstance(item.provider, str) and _is_count(item.place)


def _is_usage(usage: object) -> bool:
    if not isinstance(usage, Usage):
        return False
    given, gave, cached = usage.input_tokens, usage.output_tokens, usage.cached_input_tokens
    return (
        type(given) is type(gave) is type(cached) is int
        and 0 <= cached <= given <= _MOST_TOKENS
        and 0 <= gave <= _MOST_TOKENS
    )


# Above what any model reads or writes: sums have to stay what a saved run can hold.
_MOST_TOKENS: Final = 10**9


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_TOKENS


@frozen(kw_only=True)
class SystemMessage:
    """The host's instructions."""

    text: str


@frozen(kw_only=True)
class UserMessage:
    """A person's words; the host may raise the label, for example for pasted mail."""

    text: str
    label: Label = CLEAN


@frozen(kw_only=True)
class AssistantMessage:
    """A model's response in the history: every call has a unique id and a parsed object.

    `label` is that of what the model had read; two that say the same are equal whatever it is.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    label: Label = attrs.field(default=CLEAN, eq=False)
    kept: tuple[KeptItem, ...] = ()


@frozen(kw_only=True)
class ToolMessage:
    """The one result of one call, as the model sees it."""

    call_id: str
    name: str
    text: str
    ok: bool
    label: Label = UNLABELLED


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage
"""Anything that stands in a run's history."""


def clean_text(text: str) -> str:
    """Text that can be stored and sent: surrogate pairs are joined, lone ones become U+FFFD."""
    if type(text) is not str:
        # A subclass may say of itself what it likes: its characters are what counts.
        text = str.__str__(text)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def own_copy(encoded: bytes) -> bytes:
    """The same bytes in as much memory as they need: an encoder's result keeps its 4 kB buffer."""
    return bytes(memoryview(encoded))


def history_fault(messages: Iterable[Message]) -> str | None:
    """Why a history cannot be sent to a model; None when it can.

    Every call needs exactly one result, directly after its message and in its order, and no id
    may stand for two calls.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if not waiting or waiting.pop(0) != message.call_id:
                return f"the result of call {message.call_id[:80]!r} is out of place"
            continue
        if waiting:
            break
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                if call.id in seen:
                    return f"the id {call.id[:80]!r} stands for two calls"
                seen.add(call.id)
                waiting.append(call.id)
    return f"call {waiting[0][:80]!r} has no result" if waiting else None


class Transcript(Sequence[Message]):
    """A read-only view of a history up to a fixed length; making one copies nothing.

    The driver only ever appends to the list behind it, so a view never changes.
    """

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._length = len(messages)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return tuple(self._messages[i] for i in range(start, stop, step))
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(index)
        return self._messages[position]

    def goes_on_from(self, earlier: Transcript) -> bool:
        """Whether this is the history of *earlier*, with what came after it if anything did."""
        return self._messages is earlier._messages and self._length >= earlier._length

    def __iter__(self) -> Iterator[Message]:
        return (self._messages[i] for i in range(self._length))


def message_to_json(message: Message) -> dict[str, Json]:
    """The stored form of a message, keyed by `role`."""
    match message:
        case SystemMessage():
            return {"role": "system", "text": message.text}
        case UserMessage():
            return {"role": "user", "text": message.text, "label": message.label.to_json()}
        case AssistantMessage():
            calls: list[Json] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in message.calls
            ]
            body: dict[str, Json] = {"role": "assistant", "text": message.text, "calls": calls}
            # Written where they say something: messages of earlier versions have neither.
            if message.label is not CLEAN:
                body["label"] = message.label.to_json()
            return body | ({"kept": kept_to_json(message.kept)} if message.kept else {})
        case ToolMessage():
            return {
                "role": "tool",
                "call_id": message.call_id,
                "name": message.name,
                "text": message.text,
                "ok": message.ok,
                "label": message.label.to_json(),
            }


def kept_to_json(kept: Iterable[KeptItem]) -> list[Json]:
    """The stored form of what a provider wants back."""
    return [{"provider": k.provider, "place": k.place, "item": k.item} for k in kept]


def kept_from_json(value: object) -> tuple[KeptItem, ...]:
    """Read what `kept_to_json` wrote.

    Raises:
        ValueError: not of that form.
    """
    if not isinstance(value, list):
        raise ValueError("kept is a list")
    return tuple(_kept_item(item) for item in value)


def _kept_item(value: object) -> KeptItem:
    if not isinstance(value, dict) or set(value) != {"provider", "place", "item"}:
        raise ValueError("a kept item has exactly the keys provider, place, item")
    if not isinstance(value["item"], dict) or not _is_count(value["place"]):
        raise ValueError("a kept item is an object with a place")
    return KeptItem(
        provider=_text(value["provider"], "provider"), place=value["place"], item=value["item"]
    )


_KEYS = {
    "system": {"role", "text"},
    "user": {"role", "text", "label"},
    "assistant": {"role", "text", "calls"},
    "tool": {"role", "call_id", "name", "text", "ok", "label"},
}


_OPTIONAL: Final[Mapping[str, set[str]]] = {"assistant": {"label", "kept"}}


def message_from_json(value: object) -> Message:
    """Read what `message_to_json` wrote.

    Raises:
        ValueError: not an object of that form; unknown or missing keys are named.
    """
    if not isinstance(value, dict) or value.get("role") not in _KEYS:
        raise ValueError("a message is an object with role system, user, assistant or tool")
    role = value["role"]
    if set(value) - _OPTIONAL.get(role, set()) != _KEYS[role]:
        raise ValueError(f"a {role} message has the keys {sorted(_KEYS[role])}")
    text = _text(value["text"], "text")
    if role == "system":
        return SystemMessage(text=text)
    if role == "user":
        return UserMessage(text=text, label=parse_label(value["label"]))
    if role == "assistant":
        label = parse_label(value["label"]) if "label" in value else CLEAN
        kept = kept_from_json(value.get("kept", []))
        return AssistantMessage(text=text, calls=_calls(value["calls"]), label=label, kept=kept)
    if not isinstance(value["ok"], bool):
        raise ValueError("ok is true or false")
    return ToolMessage(
        call_id=_text(value["call_id"], "call_id"),
        name=_text(value["name"], "name"),
        text=text,
        ok=value["ok"],
        label=parse_label(value["label"]),
    )


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is a string")
    return value


def _calls(value: object) -> tuple[ToolCall, ...]:
    if not isinstance(value, list):
        raise ValueError("calls is a list")
    return tuple(_call(item) for item in value)


def _call(value: object) -> ToolCall:
    if not isinstance(value, dict) or set(value) != {"id", "name", "arguments"}:
        raise ValueError("a call has exactly the keys id, name, arguments")
    if not isinstance(value["arguments"], dict):
        raise ValueError("arguments is an object")
    return ToolCall(
        id=_text(value["id"], "id"),
        name=_text(value["name"], "name"),
        arguments=frozen_arguments(value["arguments"]),
    )
