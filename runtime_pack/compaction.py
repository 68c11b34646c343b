"""A long history as a model is shown it: a summary in place of its first part. Pure.

The history itself never changes; only the view of it does. What is replaced ends where no call waits
for its result. Of what is replaced, the host's instructions and the first words of the user stay as
they were, and the summary carries the join of all labels before the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from runtime_pack.inner import frozen
from runtime_pack.labels import CLEAN, Label, join, parse_label
from runtime_pack.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)

__all__ = (
    "SUMMARY_NOTICE",
    "Compacted",
    "Compaction",
    "boundaries",
    "compact",
    "cut_to",
    "shown",
    "size_of",
    "summary_of",
)

SUMMARY_NOTICE: Final = "The earlier part of this run, summed up (its calls and results are done):"


@frozen(kw_only=True)
class Compaction:
    """The messages before `cut` are shown as `text`; `label` is the join of theirs."""

    cut: int
    text: str
    label: Label

    def to_json(self) -> dict[str, Json]:
        """The form in saved runs."""
        return {"cut": self.cut, "text": self.text, "label": self.label.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> Compaction:
        """Read the stored form.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        cut, text = value["cut"], value["text"]
        if type(cut) is not int or cut < 0 or not isinstance(text, str):
            raise ValueError("a compaction has a cut and a text")
        return cls(cut=cut, text=text, label=parse_label(value["label"]))


@frozen(kw_only=True)
class Compacted:
    """A history in three parts: what stays of its beginning, what is summed up, what follows."""

    cut: int
    head: tuple[Message, ...]
    replaced: tuple[Message, ...]
    tail: tuple[Message, ...]
    label: Label


def size_of(message: Message) -> int:
    """Bytes of a message, as JSON text would hold them, give or take the keys."""
    size = len(message.text) if message.text.isascii() else len(message.text.encode())
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            size += len(call.name) + len(call.id) + len(orjson.dumps(call.arguments))
        for kept in message.kept:
            size += len(orjson.dumps(kept.item))
    return size


def boundaries(messages: Sequence[Message]) -> list[int]:
    """Where a history can be cut: no call before waits for a result after. In order, 0 first."""
    found: list[int] = []
    waiting = 0
    for index, message in enumerate(messages):
        if waiting == 0:
            found.append(index)
        if isinstance(message, AssistantMessage):
            waiting = len(message.calls)
        elif isinstance(message, ToolMessage):
            waiting -= 1
    if waiting == 0:
        found.append(len(messages))
    return found


def compact(messages: Sequence[Message], keep: int, *, since: int = 0) -> Compacted:
    """The history with its last *keep* messages kept, or more: the cut moves back to a boundary.

    A batch that waits for results is kept whole. What was summed up before *since* is not summed up
    again. For every number of messages, `head`, a summary and `tail` are a history without a fault.
    """
    wanted = max(0, len(messages) - max(0, keep))
    cut = max((index for index in boundaries(messages) if index <= wanted), default=0)
    return _cut_at(messages, max(cut, since), since)


def cut_to(messages: Sequence[Message], limit_bytes: int, *, since: int = 0) -> Compacted | None:
    """The history cut such that what stays as it is has at most so many bytes; None: it cannot.

    As much as fits is kept; what was summed up before *since* stays so.
    """
    head = sum(size_of(message) for message in _head(messages))
    later = [index for index in boundaries(messages) if index > since]
    sizes = _sizes_from(messages)
    for cut in later:
        if head + sizes[cut] <= limit_bytes:
            return _cut_at(messages, cut, since)
    return None


def _sizes_from(messages: Sequence[Message]) -> list[int]:
    """For each place of a history, the bytes from there to its end."""
    sizes = [0] * (len(messages) + 1)
    for index in range(len(messages) - 1, -1, -1):
        sizes[index] = sizes[index + 1] + size_of(messages[index])
    return sizes


def _head(messages: Iterable[Message]) -> tuple[Message, ...]:
    """What is never summed up: the host's instructions, and the first words of the user."""
    asked = False
    kept: list[Message] = []
    for message in messages:
        first = isinstance(message, UserMessage) and not asked
        if first or isinstance(message, SystemMessage):
            kept.append(message)
        asked = asked or isinstance(message, UserMessage)
    return tuple(kept)


def _cut_at(messages: Sequence[Message], cut: int, since: int) -> Compacted:
    before = tuple(messages[index] for index in range(cut))
    head = _head(before)
    kept = set(map(id, head))
    label = CLEAN
    for message in before:
        if not isinstance(message, SystemMessage):
            label = join(label, message.label)
    return Compacted(
        cut=cut,
        head=head,
        replaced=tuple(message for message in before[since:] if id(message) not in kept),
        tail=tuple(messages[index] for index in range(cut, len(messages))),
        label=label,
    )


def summary_of(compaction: Compaction) -> UserMessage:
    """The message that stands for what was summed up."""
    return UserMessage(text=compaction.text, label=compaction.label)


def shown(messages: Sequence[Message], compaction: Compaction) -> list[Message]:
    """The history as a model is shown it."""
    parts = _cut_at(messages, compaction.cut, compaction.cut)
    return [*parts.head, summary_of(compaction), *parts.tail]
