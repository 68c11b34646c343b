"""What a built-in model reads in its history: the fenced blocks of tool results.

A model may read the open tag of a block, as any model does. The runtime never learns trust from
text; it has labels for that.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from runtime_pack.messages import AssistantMessage, Message, ToolMessage, UserMessage

__all__ = ("Block", "asked", "blocks", "last_batch", "unescape_markdown")

_OPEN: Final = re.compile(
    r'<untrusted-web-content nonce="(?P<nonce>[0-9a-f]{32})"(?P<attributes>[^<>]*)>[^\n]*\n'
)
_SOURCE: Final = re.compile(r' source="(?P<source>[^"]*)"')
_MARK: Final = re.compile(r' mode="datamark" mark="(?P<codes>(?:U\+[0-9A-F]{4})+)"')
# Pages come as Markdown, in which a literal star or underscore has a backslash.
_ESCAPED: Final = re.compile(r"\\([!-/:-@\[-`{-~])")


@attrs.frozen(kw_only=True)
class Block:
    """One fenced text: where it was seen, and its body."""

    source: str
    body: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a tool result, in order. One pass; a block that never closes ends it."""
    at = 0
    while (opened := _OPEN.search(text, at)) is not None:
        close = f'\n</untrusted-web-content nonce="{opened["nonce"]}">'
        end = text.find(close, opened.end() - 1)
        if end < 0:
            return
        attributes = opened["attributes"]
        source = _SOURCE.search(attributes)
        yield Block(
            source="" if source is None else source["source"],
            body=_plain(text[opened.end() : end], attributes),
        )
        at = end + len(close)


def _plain(body: str, attributes: str) -> str:
    """The body as it was before its mode: marks taken out, base64 decoded if it is any."""
    if ' mode="encode"' in attributes:
        try:
            return base64.b64decode(body, validate=True).decode()
        except ValueError:
            return body
    mark = _MARK.search(attributes)
    if mark is None:
        return body
    return body.replace("".join(chr(int(code, 16)) for code in mark["codes"].split("U+")[1:]), "")


def last_batch(messages: Sequence[Message]) -> tuple[ToolMessage, ...]:
    """The tool results that the last response asked for; empty when it asked for none."""
    batch: list[ToolMessage] = []
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            batch.append(message)
        elif isinstance(message, AssistantMessage) or batch:
            break
    return tuple(reversed(batch))


def asked(messages: Sequence[Message]) -> str:
    """The question: the first words of the user."""
    return next((m.text for m in messages if isinstance(m, UserMessage)), "")


def unescape_markdown(text: str) -> str:
    """The text as a reader sees it: without the backslashes that keep signs literal."""
    return _ESCAPED.sub(r"\1", text)
