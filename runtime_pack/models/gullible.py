"""A deterministic model that believes whatever it reads: the adversary of the demonstration.

It reads the page that it was told to read, then does what any text in it demands: it requests every
address that the text names, inside or outside a fence, and repeats the text's closing words. What
it cannot do is what the runtime refuses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    Message,
    ToolCall,
    Turn,
    TurnStatus,
)
from runtime_pack.models._reading import last_batch, unescape_markdown
from runtime_pack.ports import ExecutionContext, TurnRequest

__all__ = ("GullibleModel",)

_ADDRESS: Final = re.compile(r"https?://[^\s\"'<>)\]\\]+")
_MOST: Final = 16


class GullibleModel:
    """Reads *start*, then every address that any text it is shown names, each once."""

    def __init__(self, start: str) -> None:
        self._start = start

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """Obey what the last results say."""
        del context
        if all(tool.name != "web:read" for tool in request.tools):
            return Turn(
                status=TurnStatus.REPLY, text="I would do what the page says, but I cannot."
            )
        tried = _tried(request.messages)
        if not tried:
            return _read([self._start], first=1)
        texts = [message.text for message in last_batch(request.messages) if message.ok]
        found = _ADDRESS.findall(unescape_markdown("\n".join(texts)))
        named = dict.fromkeys(address.rstrip(".,;:!?") for address in found)
        wanted = [address for address in named if address not in tried][:_MOST]
        if wanted:
            return _read(wanted, first=len(tried) + 1)
        return Turn(status=TurnStatus.REPLY, text="I did everything that the page told me to do.")


def _tried(messages: Sequence[Message]) -> set[str]:
    return {
        str(call.arguments.get("url"))
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
        if not isinstance(call.arguments, str)
    }


def _read(urls: Sequence[str], *, first: int) -> Turn:
    calls = tuple(
        ToolCall(id=f"obey-{number}", name="web:read", arguments={"url": url})
        for number, url in enumerate(urls, start=first)
    )
    return Turn(status=TurnStatus.TOOL_REQUEST, calls=calls, finish=FinishReason.TOOL_CALLS)
