"""Models behind Anthropic's Messages API.

The official SDK does the protocol (extra `anthropic`); it reaches the network through
`runtime_pack.models._guarded_http` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runtime_pack.messages import Turn
from runtime_pack.models._messages_wire import (
    MessageEvents,
    may_think,
    message_body,
    message_tools,
    message_turn,
)
from runtime_pack.models._provider import Heard, ProviderModel, plain
from runtime_pack.models._wire import parsed_body
from runtime_pack.ports import TurnRequest
from runtime_pack.wire_names import WireNames

if TYPE_CHECKING:
    pass

__all__ = ("ANTHROPIC_URL", "AnthropicMessagesModel")

ANTHROPIC_URL: Final = "https://api.anthropic.com"
# The API wants a limit; every model of it takes this one.
_MAX_OUTPUT_TOKENS: Final = 4096


class AnthropicMessagesModel(ProviderModel):
    """A model over the Messages API; see `ProviderModel` for the arguments.

    Where nobody names a limit of the output, it is 4096 tokens: the API wants one.
    """

    _url = ANTHROPIC_URL
    _sdk_name = "anthropic"
    _provider = "anthropic"
    _extra = "anthropic"
    _key_variable = "ANTHROPIC_API_KEY"
    _reserved = frozenset({"model", "messages", "system", "tools", "stream", "max_tokens"})

    def _connect(self, http: Any) -> Any:
        from runtime_pack.models._anthropic_client import anthropic_client

        return anthropic_client(http, self._base_url)

    async def _ask(self, client: Any, request: TurnRequest, heard: Heard | None) -> Turn:
        names = WireNames(tool.name for tool in request.tools)
        body = self._body(request)
        if heard is None:
            raw = await client.messages.with_raw_response.create(**body)
            return message_turn(parsed_body(raw.http_response.content), names)
        events = MessageEvents()
        async with await client.messages.create(**body, stream=True) as stream:
            async for event in stream:
                heard.tell(events.add(plain(event)))
        return message_turn(events.body(), names)

    def _body(self, request: TurnRequest) -> dict[str, Any]:
        limit = request.max_output_tokens or self._max_output_tokens or _MAX_OUTPUT_TOKENS
        return {
            "model": request.model or self._model,
            "extra_body": self._asked_for(request, limit),
            "max_tokens": limit,
            **message_body(request.messages),
            **message_tools(request.tools, request.messages),
        }

    def _asked_for(self, request: TurnRequest, limit: int) -> dict[str, Any]:
        """The host's options, without thinking where the API would refuse it."""
        thinking = self._options.get("thinking")
        if thinking is None:
            return self._options
        budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
        fits = not isinstance(budget, int) or budget < limit
        if fits and may_think(request.messages):
            return self._options
        return {name: value for name, value in self._options.items() if name != "thinking"}
