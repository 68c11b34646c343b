"""Models behind OpenAI's Chat Completions, and behind every server that speaks it.

The official SDK does the protocol (extra `openai`); it reaches the network through
`runtime_pack.models._guarded_http` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runtime_pack.messages import Json, Turn
from runtime_pack.models._chat_wire import ChatPieces, chat_messages, chat_tools, chat_turn
from runtime_pack.models._provider import Heard, ProviderModel, plain
from runtime_pack.models._wire import parsed_body
from runtime_pack.ports import Clock, TurnRequest
from runtime_pack.wire_names import WireNames

if TYPE_CHECKING:
    from egress.policy import EgressPolicy
    from egress.ports import Resolver

__all__ = ("OPENAI_URL", "OpenAIChatModel")

OPENAI_URL: Final = "https://api.openai.com/v1"


class OpenAIChatModel(ProviderModel):
    """A model over Chat Completions; see `ProviderModel` for the arguments.

    `compatible=True` is for other servers (vLLM, Ollama, llama.cpp): the limit of the output is
    sent as `max_tokens`, the name that they all know.
    """

    _url = OPENAI_URL
    _sdk_name = "openai"
    _provider = "openai"
    _extra = "openai"
    _key_variable = "OPENAI_API_KEY"
    _reserved = frozenset(
        {"model", "messages", "tools", "stream", "stream_options", "n"}
        | {"max_tokens", "max_completion_tokens"}
    )

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        compatible: bool = False,
        policy: EgressPolicy | None = None,
        stream: bool | None = None,
        max_output_tokens: int | None = None,
        options: Mapping[str, Json] | None = None,
        timeout_seconds: float = 300.0,
        resolver: Resolver | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            model,
            api_key=api_key,
            base_url=base_url,
            policy=policy,
            stream=stream,
            max_output_tokens=max_output_tokens,
            options=options,
            timeout_seconds=timeout_seconds,
            resolver=resolver,
            clock=clock,
        )
        self._limit_field = "max_tokens" if compatible else "max_completion_tokens"
        if compatible:
            self._provider = "the model server"
            self._key_variable, self._compatible = "OPENAI_COMPATIBLE_API_KEY", True

    def _connect(self, http: Any) -> Any:
        from runtime_pack.models._openai_client import openai_client

        return openai_client(http, self._base_url)

    async def _ask(self, client: Any, request: TurnRequest, heard: Heard | None) -> Turn:
        names = WireNames(tool.name for tool in request.tools)
        body = self._body(request)
        if heard is None:
            raw = await client.chat.completions.with_raw_response.create(**body)
            return chat_turn(parsed_body(raw.http_response.content), names)
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        pieces = ChatPieces()
        async with await client.chat.completions.create(**body, **streaming) as chunks:
            async for chunk in chunks:
                heard.tell(pieces.add(plain(chunk)))
        return chat_turn(pieces.body(), names)

    def _body(self, request: TurnRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model or self._model,
            "extra_body": self._options,
            "messages": chat_messages(request.messages),
        }
        if request.tools:
            body["tools"] = chat_tools(request.tools)
        limit = request.max_output_tokens or self._max_output_tokens
        if limit is not None:
            body[self._limit_field] = limit
        return body
