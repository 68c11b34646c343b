"""Reasoning that providers want back: kept with its response, in its place, for its provider alone."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    AssistantMessage,
    Completed,
    KeptItem,
    MemoryRunStore,
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.approvals import Decision
from runtime_pack.compaction import size_of
from runtime_pack.errors import ContractError
from runtime_pack.guard.meter import _message_bytes
from runtime_pack.messages import (
    ToolCall,
    Turn,
    TurnStatus,
    message_from_json,
    message_to_json,
    turn_fault,
)
from runtime_pack.models._messages_wire import MessageEvents, may_think, message_body, message_turn
from runtime_pack.models._responses_wire import response_items, response_turn
from runtime_pack.models.anthropic_messages import AnthropicMessagesModel
from runtime_pack.models.openai_responses import OpenAIResponsesModel
from runtime_pack.testing import ToolShelf
from runtime_pack.wire_names import WireNames

KEY = "sk-test-0123456789-abcdefghij"
THINKING = {"type": "thinking", "thinking": "I must count.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
USE = {"type": "tool_use", "id": "u1", "name": "t__a", "input": {}}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z2VoZWlt"}
CALL = {"type": "function_call", "call_id": "f1", "name": "t__a", "arguments": "{}"}
NAMES = WireNames(["t:a"])


def whole(content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": "tool_use" if USE in content else "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def said(turn: Turn) -> AssistantMessage:
    calls = tuple(
        attrs.evolve(call, arguments=json.loads(str(call.arguments))) for call in turn.calls
    )
    return AssistantMessage(text=turn.text, calls=calls, kept=turn.kept)


def numbered(blocks: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{**block, **({key: f"{n}"} if key in block else {})} for n, block in enumerate(blocks)]


blocks = st.lists(st.sampled_from([THINKING, REDACTED, USE]), max_size=6)


@given(blocks, st.booleans())
def test_a_message_goes_back_as_it_came(given_blocks: list[dict[str, Any]], speaks: bool) -> None:
    """Thinking, text and calls in their order; thinking with nothing after it is left out."""
    content = numbered(given_blocks, "id")
    if speaks:
        content.insert(0, {"type": "text", "text": "so"})
        content.insert(0, THINKING)
    turn = message_turn(whole(content), NAMES)

    sent = message_body([UserMessage(text="x"), said(turn)])["messages"][1:]

    while content and content[-1] in (THINKING, REDACTED):
        content.pop()
    assert sent == ([{"role": "assistant", "content": content}] if content else [])


@given(st.lists(st.sampled_from([REASONING, CALL]), max_size=6))
def test_a_response_goes_back_as_it_came(given_items: list[dict[str, Any]]) -> None:
    """Reasoning stands before what it led to."""
    output = numbered(given_items, "call_id")
    body = {"status": "completed", "output": output, "model": "m"}
    message = said(response_turn(body, NAMES))

    sent = [item for item in response_items([message]) if "role" not in item]

    while message.calls and output[-1] == REASONING:
        output.pop()
    assert sent == output


def test_what_cannot_be_sent_back_is_not_kept() -> None:
    """Thinking without a signature; reasoning that is stored at the provider, which stores nothing."""
    unsigned = {"type": "thinking", "thinking": "x", "signature": ""}
    stored = {"type": "reasoning", "id": "rs_1", "summary": []}

    assert (
        message_turn(whole([unsigned, {"type": "thinking", "thinking": 1}, USE]), NAMES).kept == ()
    )
    body = {"status": "completed", "output": [stored, CALL], "model": "m"}
    assert response_turn(body, NAMES).kept == ()


def test_the_state_of_an_item_is_not_sent_back() -> None:
    """The API says `status` and does not take it."""
    item = {**REASONING, "status": "completed", "content": None}
    body = {"status": "completed", "output": [item, CALL], "model": "m"}

    assert response_turn(body, NAMES).kept[0].item == REASONING


def test_another_provider_never_sees_it() -> None:
    """A run that changes its model goes on without."""
    theirs = AssistantMessage(
        text="x", kept=(KeptItem(provider="openai", place=0, item=dict(REASONING)),)
    )

    (message,) = message_body([UserMessage(text="x"), theirs])["messages"][1:]

    assert message == {"role": "assistant", "content": [{"type": "text", "text": "x"}]}


@given(st.text(max_size=20), st.data())
def test_a_stream_of_thinking_is_its_block_however_it_is_cut(
    text: str, data: st.DataObject
) -> None:
    """Text and signature come in pieces."""
    at = data.draw(st.integers(0, len(text)))
    start = {"type": "thinking", "thinking": "", "signature": ""}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": whole([])},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *(
            {"type": "content_block_delta", "index": 0, "delta": delta}
            for delta in (
                {"type": "thinking_delta", "thinking": text[:at]},
                {"type": "thinking_delta", "thinking": text[at:]},
                {"type": "signature_delta", "signature": "c2"},
                {"type": "signature_delta", "signature": "ln"},
            )
        ),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    reader = MessageEvents()
    told = [reader.add(event) for event in events]

    assert "".join(told) == ""
    assert reader.body()["content"] == [{"type": "thinking", "thinking": text, "signature": "c2ln"}]


def test_thinking_is_not_asked_for_where_the_api_would_refuse_it() -> None:
    """Calls without thinking before them, or less output than thinking alone may take."""
    call = ToolCall(id="1", name="t:a", arguments={})
    kept = KeptItem(provider="anthropic", place=0, item=THINKING)

    assert may_think([UserMessage(text="x")])
    assert may_think([AssistantMessage(text="said")])
    assert not may_think([AssistantMessage(calls=(call,))])
    assert may_think(
        [AssistantMessage(calls=(call,)), AssistantMessage(calls=(call,), kept=(kept,))]
    )
    assert not may_think(
        [AssistantMessage(calls=(call,), kept=(kept,)), AssistantMessage(calls=(call,))]
    )


# ── the record ────────────────────────────────────────────────────────────────────────────────


def test_what_is_kept_is_stored_with_its_message() -> None:
    """And counts where messages are measured."""
    kept = (KeptItem(provider="anthropic", place=1, item=THINKING),)
    message = AssistantMessage(text="x", kept=kept)
    bare = AssistantMessage(text="x")

    assert message_from_json(json.loads(json.dumps(message_to_json(message)))) == message
    assert "kept" not in message_to_json(bare)
    assert size_of(message) > size_of(bare) + 30
    assert _message_bytes(message) > _message_bytes(bare) + 30


@pytest.mark.parametrize(
    "kept",
    [
        {},
        [1],
        [{"provider": "x", "place": 0}],
        [{"provider": "x", "place": -1, "item": {}}],
        [{"provider": "x", "place": True, "item": {}}],
        [{"provider": 1, "place": 0, "item": {}}],
        [{"provider": "x", "place": 0, "item": []}],
    ],
)
def test_a_stored_item_of_another_form_is_refused(kept: object) -> None:
    """With ValueError, as any other part of a message."""
    body = {"role": "assistant", "text": "", "calls": [], "kept": kept}

    with pytest.raises(ValueError):
        message_from_json(body)


def test_what_an_adapter_keeps_is_checked() -> None:
    """It is stored with the run: only what can be."""
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"x": deep}
    for item in (deep, {"x": object()}, None):
        with pytest.raises(ContractError):
            # One of the items is no object, which is the fault at hand.
            KeptItem(provider="p", place=0, item=item)  # type: ignore[arg-type]
    wrong: Any = ("x",)

    assert turn_fault(Turn(status=TurnStatus.REPLY, kept=wrong)) is not None


# ── over the wire ─────────────────────────────────────────────────────────────────────────────


def events_of(content: Sequence[Mapping[str, Any]]) -> str:
    body = whole(content)
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(content):
        start, deltas = dict(block), []
        if block["type"] == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        told.append({"type": "content_block_start", "index": index, "content_block": start})
        told += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        told.append({"type": "content_block_stop", "index": index})
    told.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": body["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 1},
        }
    )
    told.append({"type": "message_stop"})
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in told)


async def over_a_restart(model: Any) -> Any:
    """A run whose call waits for a person, and that another drive takes up."""
    shelf, store = ToolShelf().add("t:a", "3"), MemoryRunStore()
    policy = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user")])

    def runtime() -> Any:
        run = create_agent_task_run(TaskContract(tool_policy=policy))
        return run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools))

    given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=shelf.specs)
    try:
        first = await run_governed_agent_loop(
            runtime=runtime(), execute_turn_input=given, store=store
        )
        word = Decision(
            request_id=first.requests[0].request_id, verdict="approve", decided_by="ann"
        )
        return await resume_governed_agent_loop(
            runtime=runtime(), store=store, run_id=first.run_id, decisions=[word]
        )
    finally:
        await model.aclose()


@pytest.mark.loopback
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_thinking_goes_back_to_anthropic_across_a_call(wire: Any, stream: bool) -> None:
    """Unchanged and signed, over an approval and a restart; the SDK takes it both ways."""
    content: list[dict[str, Any]] = [THINKING, REDACTED, USE]
    last = [{"type": "text", "text": "three"}]
    if stream:
        head = {"Content-Type": "text/event-stream"}
        wire.script(
            {"headers": head, "body": events_of(content)},
            {"headers": head, "body": events_of(last)},
        )
    else:
        head = {"Content-Type": "application/json"}
        wire.script(
            {"headers": head, "body": json.dumps(whole(content))},
            {"headers": head, "body": json.dumps(whole(last))},
        )
    model = AnthropicMessagesModel(
        "m",
        api_key=KEY,
        base_url=wire.url,
        stream=stream,
        max_output_tokens=4000,
        options={"thinking": {"type": "enabled", "budget_tokens": 2000}},
    )

    result = asyncio.run(over_a_restart(model))

    assert isinstance(result, Completed), result.stop
    first, second = (request["body"] for request in wire.seen())
    assert first["thinking"] == second["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert second["messages"][1] == {"role": "assistant", "content": content}


@pytest.mark.loopback
def test_reasoning_goes_back_to_openai_across_a_call(wire: Any) -> None:
    """Encrypted, before the call that it led to."""
    head = {"Content-Type": "application/json"}
    spoken = {
        "type": "message",
        "id": "i",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "three", "annotations": []}],
    }
    bodies = (
        {"id": "r", "object": "response", "model": "m", "status": "completed", "output": output}
        for output in ([REASONING, CALL], [spoken])
    )
    wire.script(*({"headers": head, "body": json.dumps(body)} for body in bodies))
    model = OpenAIResponsesModel(
        "m",
        api_key=KEY,
        base_url=f"{wire.url}/v1",
        options={"include": ["reasoning.encrypted_content"]},
    )

    result = asyncio.run(over_a_restart(model))

    assert isinstance(result, Completed), result.stop
    first, second = (request["body"] for request in wire.seen())
    assert first["include"] == second["include"] == ["reasoning.encrypted_content"]
    assert second["input"][1:3] == [REASONING, CALL]
