"""One contract for the three adapters, against llmock: real SDKs, real sockets, another process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

from runtime_pack import (
    AssistantMessage,
    CallCode,
    ExecutionContext,
    Finished,
    GuardedRuntime,
    LoopResult,
    ModelFault,
    ModelRequestError,
    StopCode,
    SystemMessage,
    TaskContract,
    TextDelta,
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
    create_web_tool_runtime,
    run_governed_agent_loop,
    stream_governed_agent_loop,
)
from runtime_pack.messages import FinishReason, Message, Transcript
from runtime_pack.models._provider import ProviderModel
from runtime_pack.models.anthropic_messages import AnthropicMessagesModel
from runtime_pack.models.openai_chat import OpenAIChatModel
from runtime_pack.models.openai_responses import OpenAIResponsesModel
from runtime_pack.testing import ListEmitter, assert_one_result_per_call
from web_tools.corpus import Document
from web_tools.corpus_server import serve_corpus
from web_tools.providers.local import LocalSearchProvider

pytestmark = pytest.mark.loopback

KEY = "sk-test-0123456789-abcdefghij"
CATALOG = build_web_tool_catalog()


@attrs.frozen
class Adapter:
    """One of the three: how it is made, and the path of its API on the mock."""

    make: Callable[..., ProviderModel]
    path: str


ADAPTERS = {
    "chat": Adapter(OpenAIChatModel, "/v1"),
    "compatible": Adapter(
        lambda name, **given: OpenAIChatModel(name, compatible=True, **given), "/v1"
    ),
    "responses": Adapter(OpenAIResponsesModel, "/v1"),
    "messages": Adapter(AnthropicMessagesModel, "/anthropic"),
}


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ask(
    adapter: Adapter,
    mock: Any,
    *messages: Message,
    stream: bool,
    tools: bool = False,
    heard: list[str] | None = None,
) -> Turn:
    """One turn of a model over the mock."""

    async def taken() -> Turn:
        model = adapter.make(
            "test-model", api_key=KEY, base_url=mock.url + adapter.path, stream=stream
        )
        history = Transcript(list(messages or (UserMessage(text="Hello there"),)))
        request = TurnRequest(messages=history, tools=CATALOG if tools else ())
        context = ExecutionContext(on_delta=None if heard is None else heard.append)
        try:
            return await model.execute_turn(request, context)
        finally:
            await model.aclose()

    return asyncio.run(taken())


def test_a_text_comes_with_its_usage(adapter: Adapter, stream: bool, mock: Any) -> None:
    """A reply has the whole text, the reason, the model and the tokens of the provider."""
    mock.script({"type": "reply", "text": "Paris is in France."})

    turn = ask(adapter, mock, stream=stream)

    assert turn.status is TurnStatus.REPLY
    assert turn.text == "Paris is in France."
    assert turn.finish is FinishReason.STOP
    assert turn.model == "test-model"
    assert turn.usage is not None
    assert turn.usage.input_tokens > 0
    assert turn.usage.output_tokens > 0


def test_a_listener_hears_the_text_in_pieces(adapter: Adapter, mock: Any) -> None:
    """The pieces are the text, and more than one."""
    mock.script({"type": "reply", "text": "One two three four."})
    heard: list[str] = []

    turn = ask(adapter, mock, stream=True, heard=heard)

    assert "".join(heard) == turn.text == "One two three four."
    assert len(heard) > 1


def test_parallel_calls_keep_order_ids_and_names(adapter: Adapter, stream: bool, mock: Any) -> None:
    """Two calls of one response come in their order, under our names, with ids of their own."""
    wanted = [
        {"name": "web__search", "arguments": {"query": "loops in python"}},
        {"name": "web__read", "arguments": {"url": "http://127.0.0.1:1/a"}},
    ]
    mock.script({"type": "reply", "tool_calls": wanted})

    turn = ask(adapter, mock, stream=stream, tools=True)

    assert turn.status is TurnStatus.TOOL_REQUEST
    assert turn.finish is FinishReason.TOOL_CALLS
    assert [call.name for call in turn.calls] == ["web:search", "web:read"]
    assert all(isinstance(call.arguments, str) for call in turn.calls)
    assert len({call.id for call in turn.calls}) == 2


def test_a_history_with_results_is_taken(adapter: Adapter, stream: bool, mock: Any) -> None:
    """Calls, their results and odd ids go back to the provider, which answers in text."""
    call = ToolCall(id="odd id: 1", name="web:search", arguments={"query": "x"})
    history = (
        SystemMessage(text="Be brief."),
        UserMessage(text="Search."),
        AssistantMessage(text="", calls=(call,)),
        ToolMessage(call_id=call.id, name="web:search", text="a result", ok=True),
    )

    turn = ask(adapter, mock, *history, stream=stream, tools=True)

    assert turn.status is TurnStatus.REPLY
    assert turn.text


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (400, ModelFault.INVALID_REQUEST),
        (401, ModelFault.AUTH),
        (403, ModelFault.AUTH),
        (404, ModelFault.INVALID_REQUEST),
        (408, ModelFault.TIMEOUT),
        (409, ModelFault.CONFLICT),
        (413, ModelFault.CONTEXT_OVERFLOW),
        (429, ModelFault.RATE_LIMITED),
        (500, ModelFault.SERVER),
        (502, ModelFault.SERVER),
        (529, ModelFault.OVERLOADED),
    ],
)
def test_a_status_is_a_fault_and_is_asked_once(
    adapter: Adapter, mock: Any, status: int, fault: ModelFault
) -> None:
    """Each status has its fault, and the adapter never asks again: the runtime decides that."""
    mock.script({"type": "fail", "status": status})

    with pytest.raises(ModelRequestError) as raised:
        ask(adapter, mock, stream=False)

    assert raised.value.fault is fault
    assert raised.value.status == status
    assert mock.requests() == 1
    assert KEY not in repr(raised.value)
    said = str(raised.value)
    assert ("_API_KEY" in said) is (fault is ModelFault.AUTH)
    assert ("is 'test-model' a model of 127.0.0.1 port" in said) is (status == 404)


def test_retry_after_is_told(adapter: Adapter, stream: bool, mock: Any) -> None:
    """A 429 carries the seconds that the provider asks for."""
    mock.script({"type": "fail", "status": 429, "retry_after": 7})

    with pytest.raises(ModelRequestError) as raised:
        ask(adapter, mock, stream=stream)

    assert raised.value.retry_after_seconds == 7
    assert raised.value.retryable


def test_a_prompt_over_the_window_is_an_overflow(adapter: Adapter, stream: bool, mock: Any) -> None:
    """The provider's refusal of a prompt that is too long is told apart from a bad request."""
    said = "This model's maximum context length is 10 tokens; prompt is too long: 20 tokens > 10"
    mock.script({"type": "fail", "status": 400, "message": said})

    with pytest.raises(ModelRequestError) as raised:
        ask(adapter, mock, stream=stream)

    assert raised.value.fault is ModelFault.CONTEXT_OVERFLOW
    assert not raised.value.retryable


FAULTS = {
    "disconnect": ModelFault.TRANSPORT,
    "truncate": ModelFault.TRANSPORT,
    "malformed": ModelFault.MALFORMED,
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_broken_stream_gives_no_call(adapter: Adapter, mock: Any, kind: str) -> None:
    """However a stream breaks in the midst of a call, there is an error and no turn."""
    call = {"name": "web__search", "arguments": {"query": "a query of several pieces"}}
    mock.script(
        {"type": "reply", "tool_calls": [call]},
        {"type": "stream_fault", "kind": kind, "after_chunks": 4},
    )

    with pytest.raises(ModelRequestError) as raised:
        ask(adapter, mock, stream=True, tools=True)

    assert raised.value.fault is FAULTS[kind]
    assert not raised.value.surfaced
    assert mock.requests() == 1


@pytest.mark.parametrize("kind", FAULTS)
def test_a_broken_stream_that_was_heard_is_not_retryable(
    adapter: Adapter, mock: Any, kind: str
) -> None:
    """Somebody has seen a part of the answer: asking again would show it twice."""
    mock.script(
        {"type": "reply", "text": "One two three four five six seven eight."},
        {"type": "stream_fault", "kind": kind, "after_chunks": 7},
    )
    heard: list[str] = []

    with pytest.raises(ModelRequestError) as raised:
        ask(adapter, mock, stream=True, heard=heard)

    assert heard
    assert raised.value.surfaced
    assert not raised.value.retryable


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
def test_a_broken_call_is_the_loops_to_refuse(adapter: Adapter, mock: Any, kind: str) -> None:
    """Arguments that are not JSON and names of no tool come through as they are."""
    mock.script({"type": "tool_fault", "kind": kind})

    turn = ask(adapter, mock, stream=True, tools=True)

    assert turn.status is TurnStatus.TOOL_REQUEST
    [call] = turn.calls
    if kind == "unknown_tool":
        assert call.name not in {tool.name for tool in CATALOG}
    else:
        assert isinstance(call.arguments, str)
        assert call.arguments.startswith("{")
        assert not call.arguments.endswith("}")


def test_a_cut_response_says_so(adapter: Adapter, stream: bool, mock: Any) -> None:
    """A response that ran into its limit is not one that ended."""
    mock.script({"type": "reply", "text": "Half of", "finish_reason": "length"})

    turn = ask(adapter, mock, stream=stream)

    assert turn.finish is FinishReason.LENGTH


def test_a_cancelled_turn_leaves_the_model_usable(adapter: Adapter, mock: Any) -> None:
    """Cancelling stops the request at once, and the next turn works over the same model."""
    mock.script({"type": "delay", "seconds": 20})

    async def run() -> Turn:
        model = adapter.make("test-model", api_key=KEY, base_url=mock.url + adapter.path)
        request = TurnRequest(messages=Transcript([UserMessage(text="hi")]), tools=())
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(model.execute_turn(request, ExecutionContext()), 0.3)
            return await model.execute_turn(request, ExecutionContext())
        finally:
            await model.aclose()

    assert asyncio.run(run()).text


PAGES = (
    Document(
        path="/fruit", title="About apples", text="Apples are pomaceous fruits of the apple tree."
    ),
)


@asynccontextmanager
async def governed(
    adapter: Adapter, mock: Any, script: Callable[[str], list[Mapping[str, Any]]]
) -> AsyncIterator[tuple[GuardedRuntime, TurnInput, ProviderModel]]:
    """What drives a run over the local corpus with a model of the mock."""
    async with serve_corpus(PAGES) as base_url:
        with LocalSearchProvider.from_documents(PAGES, base_url=base_url) as provider:
            mock.script(*script(base_url))
            model = adapter.make("test-model", api_key=KEY, base_url=mock.url + adapter.path)
            run = create_agent_task_run(TaskContract(max_steps=5, max_turns=6))
            runtime = create_web_tool_runtime(
                run.guard_runtime(create_agent_runtime(model=model)),
                provider=provider,
                allowlist=[base_url.partition("://")[2]],
                emitter=ListEmitter(),
            )
            assert isinstance(runtime, GuardedRuntime)
            start = TurnInput(messages=[UserMessage(text="What are apples?")], tool_catalog=CATALOG)
            yield runtime, start, model


def drive(
    adapter: Adapter, mock: Any, *behaviors: Mapping[str, Any]
) -> tuple[LoopResult, ProviderModel]:
    """A whole run over what the mock is told to do; PAGE in it is the address of the page."""

    def script(base_url: str) -> list[Mapping[str, Any]]:
        told: list[Mapping[str, Any]] = json.loads(
            json.dumps(behaviors).replace("PAGE", f"{base_url}/fruit")
        )
        return told

    async def main() -> tuple[LoopResult, ProviderModel]:
        async with governed(adapter, mock, script) as (runtime, start, model):
            result = await run_governed_agent_loop(runtime=runtime, execute_turn_input=start)
            return result, model

    return asyncio.run(main())


SEARCH = {"name": "web__search", "arguments": {"query": "apples"}}
READ = {"name": "web__read", "arguments": {"url": "PAGE"}}
ANSWER = {"type": "reply", "text": "Apples are fruits."}


def test_a_governed_run_ends_with_the_usage_in_the_ledger(adapter: Adapter, mock: Any) -> None:
    """Search, read, answer: every call ran once under the guard, every token is on the ledger."""
    result, model = drive(
        adapter,
        mock,
        {"type": "reply", "tool_calls": [SEARCH]},
        {"type": "reply", "tool_calls": [READ]},
        ANSWER,
    )

    assert result.kind == "completed"
    assert_one_result_per_call(result.messages)
    results = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert [message.name for message in results] == ["web:search", "web:read"]
    assert all(message.ok for message in results)
    assert "pomaceous" in results[1].text
    assert result.messages[-1] == AssistantMessage(text="Apples are fruits.")
    assert mock.requests() == 3
    assert result.ledger.input_tokens > 0
    assert result.ledger.output_tokens > 0
    assert not model._open


def test_a_governed_run_refuses_a_broken_call_and_goes_on(adapter: Adapter, mock: Any) -> None:
    """A call of no tool gets its refusal as a result; the model then answers, and nothing ran."""
    wrong = {"name": "rm__everything", "arguments": {"path": "/"}}
    result, _ = drive(adapter, mock, {"type": "reply", "tool_calls": [wrong]}, ANSWER)

    assert result.kind == "completed"
    [refused] = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert CallCode.UNKNOWN_TOOL in refused.text
    assert result.ledger.used.get("steps", 0) == 0


def test_the_runtime_asks_again_where_the_adapter_does_not(adapter: Adapter, mock: Any) -> None:
    """A rate limit is waited for by the loop: two attempts, one turn, one answer."""
    result, _ = drive(adapter, mock, {"type": "fail", "status": 429, "retry_after": 0.05}, ANSWER)

    assert result.kind == "completed"
    assert mock.requests() == 2
    assert result.ledger.attempts == 2


# In the Responses API the mock has no filter; the wire-level server has.
@pytest.mark.parametrize("name", ["chat", "compatible", "messages"])
def test_a_refusal_ends_a_governed_run(name: str, mock: Any) -> None:
    """What a filter stopped is an error of the run, is not asked again, and no call of it runs."""
    filtered = {"type": "reply", "text": "I will", "finish_reason": "content_filter"}
    result, _ = drive(ADAPTERS[name], mock, filtered)

    assert result.kind == "error"
    assert result.stop is not None
    assert result.stop.code == StopCode.MODEL_REFUSED
    assert mock.requests() == 1


def test_a_streamed_run_tells_the_text_as_it_comes(adapter: Adapter, mock: Any) -> None:
    """The stream of a run holds the adapter's pieces, and their sum is the answer."""

    async def main() -> tuple[list[str], LoopResult]:
        pieces: list[str] = []
        async with governed(adapter, mock, lambda _: [ANSWER]) as (runtime, start, _):
            async for event in stream_governed_agent_loop(
                runtime=runtime, execute_turn_input=start
            ):
                if isinstance(event, TextDelta):
                    pieces.append(event.text)
                if isinstance(event, Finished):
                    return pieces, event.result
        raise AssertionError("the stream has no end")

    pieces, result = asyncio.run(main())

    assert len(pieces) > 1
    assert "".join(pieces) == "Apples are fruits."
    assert result.messages[-1] == AssistantMessage(text="Apples are fruits.")
