"""What llmock does not do: byte for byte, over a server of our own, for the three adapters."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import attrs
import pytest

from runtime_pack import (
    AssistantMessage,
    ExecutionContext,
    LoopResult,
    ModelFault,
    ModelPrice,
    ModelRequestError,
    PriceTable,
    SystemMessage,
    TaskContract,
    ToolCall,
    ToolMessage,
    Turn,
    TurnInput,
    TurnRequest,
    TurnStatus,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop_sync,
)
from runtime_pack.messages import FinishReason, Message, Transcript, Usage
from runtime_pack.models._provider import ProviderModel
from runtime_pack.models.anthropic_messages import AnthropicMessagesModel
from runtime_pack.models.openai_chat import OpenAIChatModel
from runtime_pack.models.openai_responses import OpenAIResponsesModel

pytestmark = pytest.mark.loopback

KEY = "sk-test-0123456789-abcdefghij"
CATALOG = build_web_tool_catalog()
JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}


def sse(*events: object, named: bool = False) -> str:
    """Events of a stream; `named` says each one's type in a line of its own."""
    return "".join(_event(event, named=named) for event in events)


def _event(event: object, *, named: bool) -> str:
    data = event if isinstance(event, str) else json.dumps(event)
    name = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
    return f"{name}data: {data}\n\n"


def chat_body(message: Mapping[str, Any], finish: object, usage: object = None) -> dict[str, Any]:
    said = {"role": "assistant", "content": None, **message}
    choice = {"index": 0, "message": said, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def chunk(delta: Mapping[str, Any], finish: object = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def response_body(
    output: Sequence[Mapping[str, Any]], status: str = "completed", **more: object
) -> dict[str, Any]:
    return {
        "id": "r",
        "object": "response",
        "model": "m",
        "status": status,
        "output": output,
        **more,
    }


def spoken(text: str, kind: str = "output_text") -> dict[str, Any]:
    part = {"type": kind, "text" if kind == "output_text" else "refusal": text, "annotations": []}
    return {"type": "message", "id": "i", "role": "assistant", "content": [part]}


def message_body(
    content: Sequence[Mapping[str, Any]], reason: object, usage: object = None
) -> dict[str, Any]:
    told = usage or {"input_tokens": 1, "output_tokens": 1}
    made = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content}
    return {**made, "stop_reason": reason, "usage": told}


def message_events(body: Mapping[str, Any]) -> str:
    """A message of texts as its events."""
    start = {**body, "content": [], "stop_reason": None}
    events: list[Mapping[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(body["content"]):
        empty = {"type": "text", "text": ""}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        piece = {"type": "text_delta", "text": block["text"]}
        events.append({"type": "content_block_delta", "index": index, "delta": piece})
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": body["stop_reason"]}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}})
    return sse(*events, {"type": "message_stop"}, named=True)


@attrs.frozen
class Adapter:
    """One of the three: its class, its path, and its forms of the same situations."""

    make: Callable[..., ProviderModel]
    path: str
    refusal: str
    refusal_events: str
    filtered: str
    cached: str


ADAPTERS = {
    "chat": Adapter(
        OpenAIChatModel,
        "/v1",
        refusal=json.dumps(chat_body({"refusal": "I will not."}, "stop")),
        refusal_events=sse(
            chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk({}, "stop"), "[DONE]"
        ),
        filtered=json.dumps(chat_body({"content": "Begun"}, "content_filter")),
        cached=json.dumps(
            chat_body(
                {"content": "x"},
                "stop",
                {
                    "prompt_tokens": 100,
                    "completion_tokens": 5,
                    "total_tokens": 105,
                    "prompt_tokens_details": {"cached_tokens": 60},
                },
            )
        ),
    ),
    "responses": Adapter(
        OpenAIResponsesModel,
        "/v1",
        refusal=json.dumps(response_body([spoken("I will not.", "refusal")])),
        refusal_events=sse(
            {
                "type": "response.completed",
                "sequence_number": 1,
                "response": response_body([spoken("I will not.", "refusal")]),
            },
            named=True,
        ),
        filtered=json.dumps(
            response_body(
                [spoken("Begun")], "incomplete", incomplete_details={"reason": "content_filter"}
            )
        ),
        cached=json.dumps(
            response_body(
                [spoken("x")],
                usage={
                    "input_tokens": 100,
                    "output_tokens": 5,
                    "total_tokens": 105,
                    "input_tokens_details": {"cached_tokens": 60},
                },
            )
        ),
    ),
    "messages": Adapter(
        AnthropicMessagesModel,
        "",
        refusal=json.dumps(message_body([{"type": "text", "text": "I will not."}], "refusal")),
        refusal_events=message_events(
            message_body([{"type": "text", "text": "I will not."}], "refusal")
        ),
        filtered="",
        cached=json.dumps(
            message_body(
                [{"type": "text", "text": "x"}],
                "end_turn",
                {
                    "input_tokens": 30,
                    "cache_read_input_tokens": 60,
                    "cache_creation_input_tokens": 10,
                    "output_tokens": 5,
                },
            )
        ),
    ),
}


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


def take(
    make: Callable[..., ProviderModel],
    url: str,
    *messages: Message,
    stream: bool = False,
    tools: bool = False,
    heard: list[str] | None = None,
    limit: int | None = None,
    **given: Any,
) -> Turn:
    """One turn over the wire server."""

    async def taken() -> Turn:
        model = make("m", **{"api_key": KEY, "base_url": url, "stream": stream, **given})
        history = Transcript(list(messages or (UserMessage(text="Hello"),)))
        asked = TurnRequest(
            messages=history, tools=CATALOG if tools else (), max_output_tokens=limit
        )
        context = ExecutionContext(on_delta=None if heard is None else heard.append)
        try:
            return await model.execute_turn(asked, context)
        finally:
            await model.aclose()

    return asyncio.run(taken())


def fault_of(make: Callable[..., ProviderModel], url: str, **given: Any) -> ModelRequestError:
    """The error that a turn ends in."""
    with pytest.raises(ModelRequestError) as raised:
        take(make, url, **given)
    return raised.value


def test_a_refusal_is_a_turn(adapter: Adapter, wire: Any) -> None:
    """The provider's refusal comes as a turn with its reason, whole and streamed alike."""
    wire.script({"headers": JSON, "body": adapter.refusal})
    whole = take(adapter.make, wire.url + adapter.path)
    wire.script({"headers": EVENTS, "body": adapter.refusal_events})
    streamed = take(adapter.make, wire.url + adapter.path, stream=True)

    for turn in (whole, streamed):
        assert turn.status is TurnStatus.REPLY
        assert turn.finish is FinishReason.REFUSAL
        assert turn.text == "I will not."


@pytest.mark.parametrize("name", ["chat", "responses"])
def test_a_filtered_answer_says_so(name: str, wire: Any) -> None:
    """What a content filter cut is not an answer."""
    adapter = ADAPTERS[name]
    wire.script({"headers": JSON, "body": adapter.filtered})

    assert take(adapter.make, wire.url + adapter.path).finish is FinishReason.CONTENT_FILTER


def test_cached_tokens_are_a_part_of_the_input(adapter: Adapter, wire: Any) -> None:
    """Whatever the provider counts beside the input, 100 tokens went in and 60 came from a cache."""
    wire.script({"headers": JSON, "body": adapter.cached})

    turn = take(adapter.make, wire.url + adapter.path)

    assert Usage(input_tokens=100, output_tokens=5, cached_input_tokens=60) == turn.usage


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ({"Retry-After": "12"}, 12, 12),
        ({"Retry-After": "0.5"}, 0.5, 0.5),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}, 1e9, 4e9),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25, 0.25),
    ],
)
def test_retry_after_is_read_in_each_form(
    adapter: Adapter, wire: Any, header: dict[str, str], least: float, most: float
) -> None:
    """Seconds, milliseconds and dates of the header come out as seconds."""
    wire.script({"status": 429, "headers": {**JSON, **header}, "body": "{}"})

    waited = fault_of(adapter.make, wire.url + adapter.path).retry_after_seconds

    assert waited is not None
    assert least <= waited <= most


@pytest.mark.parametrize("nonsense", ["soon", "-", "nan", "inf", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_an_unreadable_retry_after_asks_for_nothing(
    adapter: Adapter, wire: Any, nonsense: str
) -> None:
    """A header that is no time is no time, and not a crash."""
    wire.script({"status": 429, "headers": {**JSON, "Retry-After": nonsense}, "body": "{}"})

    error = fault_of(adapter.make, wire.url + adapter.path)

    assert error.fault is ModelFault.RATE_LIMITED
    assert error.retry_after_seconds is None


@pytest.mark.parametrize(
    "body",
    [
        "<html>a gateway</html>",
        "",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"choices": 5, "status": "completed", "output": 5, "type": "message", "stop_reason": "x", "content": 5}',
        '{"choices": [5], "status": "completed", "output": [5], "type": "message", "stop_reason": "x", "content": [5]}',
        '{"choices": [{"finish_reason": "stop"}], "status": 5, "type": 5}',
        '{"choices": [{"finish_reason": "stop", "message": {"content": 5}}], "status": "queued", "type": "message"}',
        "{" * 5000,
    ],
)
def test_a_body_of_no_form_is_malformed(adapter: Adapter, wire: Any, body: str) -> None:
    """Whatever stands in a 200, it is a turn or one clear error, never a guess."""
    wire.script({"headers": JSON, "body": body})

    error = fault_of(adapter.make, wire.url + adapter.path)

    assert error.fault in {ModelFault.MALFORMED, ModelFault.TRANSPORT}
    assert not error.surfaced


@pytest.mark.parametrize("junk", ["5", "[]", '"x"', "null", '{"type": "unheard.of"}', "{}"])
def test_a_stream_of_no_form_is_no_turn(adapter: Adapter, wire: Any, junk: str) -> None:
    """Junk in a stream never makes a turn."""
    wire.script({"headers": EVENTS, "body": f"event: message_start\ndata: {junk}\n\n"})

    error = fault_of(adapter.make, wire.url + adapter.path, stream=True)

    assert error.fault in {ModelFault.MALFORMED, ModelFault.TRANSPORT}


def test_a_body_that_breaks_off_is_transport(adapter: Adapter, wire: Any) -> None:
    """A connection that ends inside a body is a failure of the connection."""
    wire.script({"headers": JSON, "body": adapter.refusal[:20], "cut": True})

    assert fault_of(adapter.make, wire.url + adapter.path).fault is ModelFault.TRANSPORT


def test_an_error_in_the_stream_has_its_fault(wire: Any) -> None:
    """A provider that fails in the midst of a stream is told by its word: the status was 200."""
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    wire.script({"headers": EVENTS, "body": sse(overloaded, named=True)})
    messages = fault_of(AnthropicMessagesModel, wire.url, stream=True)
    failed = {"code": "rate_limit_exceeded", "message": "slow down"}
    last = {"type": "response.failed", "response": response_body([], "failed", error=failed)}
    wire.script({"headers": EVENTS, "body": sse(last, named=True)})
    responses = fault_of(OpenAIResponsesModel, wire.url + "/v1", stream=True)
    server = {"error": {"message": "boom", "type": "server_error", "code": "server_error"}}
    wire.script({"headers": EVENTS, "body": sse(chunk({"content": "Be"}), server)})
    chat = fault_of(OpenAIChatModel, wire.url + "/v1", stream=True)

    assert messages.fault is ModelFault.OVERLOADED
    assert responses.fault is ModelFault.RATE_LIMITED
    assert chat.fault is ModelFault.SERVER


def test_a_used_up_quota_is_not_a_rate(adapter: Adapter, wire: Any) -> None:
    """A 429 that no waiting mends is not retryable."""
    body = {"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "pay"}}
    wire.script({"status": 429, "headers": JSON, "body": json.dumps(body)})

    error = fault_of(adapter.make, wire.url + adapter.path)

    assert error.fault is ModelFault.AUTH
    assert not error.retryable


@pytest.mark.parametrize(
    "error",
    [
        {"type": KEY, "message": f"no such key {KEY}"},
        {"code": f"bad_key_{KEY[8:18]}", "type": KEY[3:14], "message": KEY},
        f"the key {KEY} is wrong",
    ],
)
def test_no_error_holds_the_key(adapter: Adapter, wire: Any, error: object) -> None:
    """A server that quotes the key back gets it into no message, no repr and no cause."""
    wire.script({"status": 401, "headers": JSON, "body": json.dumps({"error": error})})

    raised = fault_of(adapter.make, wire.url + adapter.path)

    assert raised.fault is ModelFault.AUTH
    for size in range(8, 12):
        pieces = {KEY[at : at + size] for at in range(len(KEY) - size)}
        assert not [piece for piece in pieces if piece in f"{raised!s} {raised!r}"]


def test_the_cause_knows_no_key(adapter: Adapter, wire: Any) -> None:
    """Not even the request that hangs on an SDK's exception holds the key: it has a placeholder."""
    wire.script({"status": 500, "headers": JSON, "body": "{}"})

    raised = fault_of(adapter.make, wire.url + adapter.path)

    cause: Any = raised.__cause__
    assert KEY not in str(cause.request.headers.raw)
    [seen] = wire.seen()
    assert KEY in seen["headers"].get("authorization", "") + seen["headers"].get("x-api-key", "")


def test_without_a_key_none_is_sent(adapter: Adapter, wire: Any) -> None:
    """A server of one's own gets neither a key nor the placeholder of one."""
    wire.script({"headers": JSON, "body": adapter.refusal})
    take(adapter.make, wire.url + adapter.path, api_key=None)

    [seen] = wire.seen()
    assert "authorization" not in seen["headers"]
    assert "x-api-key" not in seen["headers"]


def test_the_environment_adds_nothing(
    adapter: Adapter, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that the SDKs read change neither the address nor the headers."""
    for name, value in {
        "OPENAI_API_KEY": "sk-of-the-environment",
        "OPENAI_ORG_ID": "org-of-the-environment",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "ANTHROPIC_API_KEY": "sk-of-the-environment",
        "ANTHROPIC_AUTH_TOKEN": "token-of-the-environment",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "ANTHROPIC_CUSTOM_HEADERS": "X-Secret: of-the-environment\nHost: elsewhere.example",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    wire.script({"headers": JSON, "body": adapter.refusal})
    take(adapter.make, wire.url + adapter.path)

    [seen] = wire.seen()
    assert "environment" not in json.dumps(seen["headers"])
    assert seen["headers"]["host"] == wire.url.removeprefix("http://")


def test_cookies_are_not_kept(adapter: Adapter, wire: Any) -> None:
    """What a provider sets is not sent back: turns are not tied together behind our back."""
    cookie = {"headers": {**JSON, "Set-Cookie": "id=1"}, "body": adapter.refusal}

    async def twice() -> None:
        model = adapter.make("m", api_key=KEY, base_url=wire.url + adapter.path)
        asked = TurnRequest(messages=Transcript([UserMessage(text="hi")]), tools=())
        await model.execute_turn(asked, ExecutionContext())
        await model.execute_turn(asked, ExecutionContext())
        await model.aclose()

    wire.script(cookie, cookie)
    asyncio.run(twice())

    assert ["cookie" in seen["headers"] for seen in wire.seen()] == [False, False]


CALL = ToolCall(id="call 1", name="web:search", arguments={"query": "x"})
HISTORY = (
    SystemMessage(text="Be brief."),
    UserMessage(text="Search."),
    AssistantMessage(text="", calls=(CALL,)),
    ToolMessage(call_id=CALL.id, name=CALL.name, text="  exactly\nthis ", ok=False),
)


def sent(adapter: Adapter, wire: Any, *history: Message, **given: Any) -> dict[str, Any]:
    """The body that a request of this history is."""
    wire.script({"headers": JSON, "body": adapter.refusal})
    take(adapter.make, wire.url + adapter.path, *history, **given)
    [seen] = wire.seen()
    body: dict[str, Any] = seen["body"]
    return body


def test_the_history_of_chat(wire: Any) -> None:
    """Call and result are a pair with one id; the text is exactly the loop's."""
    body = sent(ADAPTERS["chat"], wire, *HISTORY, tools=True, limit=300)

    [system, user, assistant, tool] = body["messages"]
    assert {"role": "system", "content": "Be brief."} == system
    assert {"role": "user", "content": "Search."} == user
    [call] = assistant["tool_calls"]
    assert {"name": "web__search", "arguments": '{"query":"x"}'} == call["function"]
    assert tool["tool_call_id"] == call["id"]
    assert tool["content"] == "  exactly\nthis "
    assert body["max_completion_tokens"] == 300
    assert {tool["function"]["name"] for tool in body["tools"]} == {"web__search", "web__read"}


def test_compatible_servers_get_the_old_limit(wire: Any) -> None:
    """They know `max_tokens`, and some know nothing else."""
    chat = ADAPTERS["chat"]
    body = sent(chat, wire, limit=300, compatible=True)

    assert body["max_tokens"] == 300
    assert "max_completion_tokens" not in body


def test_the_history_of_responses(wire: Any) -> None:
    """Items in order, nothing kept at the provider, the limit under its name."""
    body = sent(ADAPTERS["responses"], wire, *HISTORY, tools=True, limit=300)

    [system, user, call, result] = body["input"]
    assert system["role"] == "system"
    assert user["role"] == "user"
    assert call["type"] == "function_call"
    assert call["name"] == "web__search"
    assert result["call_id"] == call["call_id"]
    assert result["output"] == "  exactly\nthis "
    assert body["store"] is False
    assert body["max_output_tokens"] == 300


def test_the_history_of_messages(wire: Any) -> None:
    """The system text stands at the top, the result in the user message after the call."""
    body = sent(ADAPTERS["messages"], wire, *HISTORY, tools=True, limit=300)

    assert body["system"] == "Be brief."
    [user, assistant, result] = body["messages"]
    assert [user["role"], assistant["role"], result["role"]] == ["user", "assistant", "user"]
    [use] = assistant["content"]
    [told] = result["content"]
    assert use["name"] == "web__search"
    assert use["input"] == {"query": "x"}
    assert told["tool_use_id"] == use["id"]
    assert told["content"] == "  exactly\nthis "
    assert told["is_error"] is True
    assert body["max_tokens"] == 300


def test_a_closing_turn_of_messages_still_declares_its_tools(wire: Any) -> None:
    """A history with calls and no tool offered is refused there; so they are named, and closed."""
    body = sent(ADAPTERS["messages"], wire, *HISTORY, UserMessage(text="No more tools."))

    assert [tool["name"] for tool in body["tools"]] == ["web__search"]
    assert body["tool_choice"] == {"type": "none"}


def test_options_are_sent_and_cannot_take_the_adapters_fields(adapter: Adapter, wire: Any) -> None:
    """A temperature goes through; a field of the adapter is refused at construction."""
    assert sent(adapter, wire, options={"temperature": 0.5})["temperature"] == 0.5
    with pytest.raises(ValueError, match="model"):
        adapter.make("m", api_key=KEY, base_url=wire.url, options={"model": "other"})


def test_what_broke_off_is_charged(wire: Any) -> None:
    """A stream that fails after it began has cost something: the reservation is kept, or what the provider reports."""
    usage = {"input_tokens": 7, "output_tokens": 3}
    error = {"code": "server_error", "message": "boom"}
    failed = response_body([], "failed", error=error, usage=usage)
    begun = {"type": "message_start", "message": message_body([], None)}
    broken = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    reported = priced(
        OpenAIResponsesModel,
        wire.url + "/v1",
        wire,
        sse({"type": "response.failed", "response": failed}, named=True),
    )
    silent = priced(AnthropicMessagesModel, wire.url, wire, sse(begun, broken, named=True))

    assert reported.kind == silent.kind == "error"
    assert reported.ledger.cost == Decimal("0.00001")
    assert silent.ledger.cost is not None
    assert silent.ledger.cost > Decimal("0.001")


def priced(make: Callable[..., ProviderModel], url: str, wire: Any, events: str) -> LoopResult:
    """A run of one attempt in which a token costs a millionth."""
    wire.script({"headers": EVENTS, "body": events})
    price = ModelPrice(input=Decimal(1), output=Decimal(1))
    contract = TaskContract(max_cost=Decimal(1), max_attempts=1)
    run = create_agent_task_run(contract, prices=PriceTable(models={"m": price}))
    model = make("m", api_key=KEY, base_url=url, stream=True)
    return run_governed_agent_loop_sync(
        runtime=run.guard_runtime(create_agent_runtime(model=model)),
        execute_turn_input=TurnInput(messages=[UserMessage(text="hi")]),
    )
