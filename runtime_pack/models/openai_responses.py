"""Models behind OpenAI's Responses API.

The official SDK does the protocol (extra `openai`); it reaches the network through
`runtime_pack.models._guarded_http` alone. Nothing is kept at the provider (`store` is false): the
whole history is sent with every turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime_pack.errors import ModelRequestError
from runtime_pack.messages import Turn
from runtime_pack.models._provider import Heard, ProviderModel, plain
from runtime_pack.models._responses_wire import (
    FailedResponse,
    ResponseEvents,
    response_items,
    response_tools,
    response_turn,
)
from runtime_pack.models._wire import parsed_body
from runtime_pack.models.openai_chat import OPENAI_URL
from runtime_pack.ports import TurnRequest
from runtime_pack.wire_names import WireNames

if TYPE_CHECKING:
    pass

__all__ = ("OpenAIResponsesModel",)


class OpenAIResponsesModel(ProviderModel):
    """A model over the Responses API; see `ProviderModel` for the arguments."""

    _url = OPENAI_URL
    _sdk_name = "openai"
    _provider = "openai"
    _extra = "openai"
    _key_variable = "OPENAI_API_KEY"
    _reserved = frozenset(
        {"model", "input", "tools", "stream", "store", "background", "max_output_tokens"}
        | {"previous_response_id", "conversation"}
    )

    def _connect(self, http: Any) -> Any:
        from runtime_pack.models._openai_client import openai_client

        return openai_client(http, self._base_url)

    async def _ask(self, client: Any, request: TurnRequest, heard: Heard | None) -> Turn:
        names = WireNames(tool.name for tool in request.tools)
        body = self._body(request)
        if heard is None:
            raw = await client.responses.with_raw_response.create(**body)
            return response_turn(parsed_body(raw.http_response.content), names)
        events = ResponseEvents()
        async with await client.responses.create(**body, stream=True) as stream:
            async for event in stream:
                heard.tell(events.add(plain(event)))
        return response_turn(events.response(), names)

    def _failed(self, error: Exception, *, surfaced: bool) -> ModelRequestError:
        if isinstance(error, FailedResponse):
            return self._refused(200, {}, error.error, surfaced, error.usage)
        return super()._failed(error, surfaced=surfaced)

    def _body(self, request: TurnRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model or self._model,
            "extra_body": self._options,
            "input": response_items(request.messages),
            "store": False,
        }
        if request.tools:
            body["tools"] = response_tools(request.tools)
        limit = request.max_output_tokens or self._max_output_tokens
        if limit is not None:
            body["max_output_tokens"] = limit
        return body
