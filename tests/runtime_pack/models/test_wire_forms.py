"""The pure halves of the adapters: names, histories, pieces and faults, over whatever comes."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime_pack import (
    AssistantMessage,
    ContractError,
    ModelFault,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Turn,
    TurnStatus,
    UserMessage,
)
from runtime_pack.catalog import index_catalog
from runtime_pack.messages import FinishReason, Json, Message
from runtime_pack.models._chat_wire import ChatPieces, chat_messages, chat_turn
from runtime_pack.models._faults import Asked, provider_fault, refused_request, retry_after
from runtime_pack.models._messages_wire import (
    MessageEvents,
    message_body,
    message_tools,
    message_turn,
)
from runtime_pack.models._responses_wire import (
    FailedResponse,
    ResponseEvents,
    response_items,
    response_turn,
)
from runtime_pack.models._wire import CutResponse, MalformedResponse, made_usage, wire_call_id
from runtime_pack.wire_names import WireNames, wire_name

NAME = st.from_regex(r"[A-Za-z0-9_-]{1,8}([:.][A-Za-z0-9_-]{1,8}){0,3}", fullmatch=True)
NO_NAMES = WireNames(())
NOW = datetime(2030, 1, 1, tzinfo=UTC)


# ── names ─────────────────────────────────────────────────────────────────────────────────────


def test_the_two_separators_have_their_spelling() -> None:
    """`web:search` and `web.search` are two tools at every provider."""
    assert wire_name("web:search") == "web__search"
    assert wire_name("web.search") == "web_dot_search"


@given(st.lists(NAME, max_size=6))
@example(["a:b", "a__b"])
@example(["a.b", "a_dot_b"])
@example(["a_:b", "a:_b"])
def test_within_a_catalog_the_spelling_goes_both_ways(names: list[str]) -> None:
    """Either the catalog is refused, or every name comes back from its spelling."""
    spelled = {wire_name(name) for name in names}
    if len(spelled) < len(set(names)):
        with pytest.raises(ContractError):
            WireNames(names)
        return
    wire = WireNames(names)

    assert [wire.from_wire(wire_name(name)) for name in names] == names


@given(st.text())
@example("")
@example("é:.\ud800")
def test_every_provider_takes_every_spelling(name: str) -> None:
    """A name that a model made up can stand in a history all the same."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(name))


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="x", parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    "names", [("web:search", "web__search"), ("web.search", "web_dot_search"), ("a:" + "b" * 62,)]
)
def test_a_catalog_that_providers_would_confuse_is_refused(names: tuple[str, ...]) -> None:
    """The error comes when the catalog is built, not when a call has run the wrong tool."""
    with pytest.raises(ContractError, match="providers"):
        index_catalog([spec(name) for name in names])


def test_a_name_of_no_tool_stays() -> None:
    """What the model invented is told to the loop as it was written."""
    assert WireNames(["web:search"]).from_wire("web__delete") == "web__delete"


# ── histories ─────────────────────────────────────────────────────────────────────────────────


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Histories that a loop can hold: each call has its result directly after."""
    made: list[Message] = []
    ids = iter(draw(st.lists(st.text(), unique=True, min_size=12, max_size=12)))
    for kind in draw(st.lists(st.sampled_from("suac"), max_size=6)):
        text = draw(st.text(max_size=8))
        match kind:
            case "s":
                made.append(SystemMessage(text=text))
            case "u":
                made.append(UserMessage(text=text))
            case "a":
                made.append(AssistantMessage(text=text))
            case _:
                calls = [
                    ToolCall(id=next(ids), name=draw(NAME), arguments={"q": draw(st.text())})
                    for _ in range(draw(st.integers(1, 2)))
                ]
                made.append(AssistantMessage(text=text, calls=tuple(calls)))
                made.extend(
                    ToolMessage(call_id=c.id, name=c.name, text=draw(st.text()), ok=True)
                    for c in calls
                )
    return made


def results(messages: list[Message]) -> list[str]:
    return [m.text for m in messages if isinstance(m, ToolMessage)]


def clean(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(histories())
def test_every_history_is_a_request_of_chat(history: list[Message]) -> None:
    """JSON that encodes; each call's id is answered once, in order, with the loop's text."""
    made = chat_messages(history)
    json.dumps(made).encode()
    asked = [call["id"] for m in made for call in m.get("tool_calls", ())]
    told = [m for m in made if m["role"] == "tool"]

    assert len(made) == len(history)
    assert asked == [m["tool_call_id"] for m in told]
    assert [clean(text) for text in results(history)] == [m["content"] for m in told]


@given(histories())
def test_every_history_is_a_request_of_responses(history: list[Message]) -> None:
    """The same for items."""
    made = response_items(history)
    json.dumps(made).encode()
    asked = [item["call_id"] for item in made if item.get("type") == "function_call"]
    told = [item for item in made if item.get("type") == "function_call_output"]

    assert asked == [item["call_id"] for item in told]
    assert [clean(text) for text in results(history)] == [item["output"] for item in told]


@given(histories())
@example([])
@example([AssistantMessage(text="first")])
@example([UserMessage(text=" ")])
def test_every_history_is_a_request_of_messages(history: list[Message]) -> None:
    """Roles alternate from the user's, no text is blank, and results stand after their calls."""
    made = message_body(history)["messages"]
    json.dumps(made).encode()
    roles = [m["role"] for m in made]
    blocks = [block for m in made for block in m["content"]]
    asked = [b["id"] for b in blocks if b["type"] == "tool_use"]
    told = [b for b in blocks if b["type"] == "tool_result"]

    assert roles == [("user", "assistant")[n % 2] for n in range(len(made))]
    assert made
    assert all(m["content"] for m in made)
    assert all(b["text"].strip() for b in blocks if b["type"] == "text")
    assert asked == [b["tool_use_id"] for b in told]
    assert [clean(text) for text in results(history)] == [b["content"] for b in told]


def test_calls_need_their_tools_declared() -> None:
    """Without a call in the history and without an offer, nothing is declared."""
    assert message_tools((), [UserMessage(text="x")]) == {}


@given(st.text(), st.text())
def test_ids_fit_and_stay_apart(one: str, other: str) -> None:
    """Two ids stay two, and every provider takes both."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", wire_call_id(one))
    assert (wire_call_id(one) == wire_call_id(other)) == (one == other)
    assert wire_call_id(wire_call_id(one)) == wire_call_id(one)


# ── pieces ────────────────────────────────────────────────────────────────────────────────────


CALLS = st.lists(
    st.tuples(st.text(min_size=1), NAME, st.text()), max_size=3, unique_by=lambda call: call[0]
)


def cut(data: st.DataObject, text: str) -> list[str]:
    """A text in pieces, some of them empty."""
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


@given(st.data(), st.text(), CALLS)
def test_a_chat_stream_is_its_body_however_it_is_cut(
    data: st.DataObject, text: str, calls: list[tuple[str, str, str]]
) -> None:
    """The turn does not depend on where the provider cut its pieces."""
    pieces, heard = ChatPieces(), ""
    for piece in cut(data, text):
        heard += pieces.add({"choices": [{"index": 0, "delta": {"content": piece}}]})
    for index, (call_id, name, arguments) in enumerate(calls):
        first = {"index": index, "id": call_id, "function": {"name": name, "arguments": ""}}
        pieces.add({"choices": [{"index": 0, "delta": {"tool_calls": [first]}}]})
        for piece in cut(data, arguments):
            more = {"index": index, "function": {"arguments": piece}}
            pieces.add({"choices": [{"index": 0, "delta": {"tool_calls": [more]}}]})
    with pytest.raises(CutResponse):
        chat_turn(pieces.body(), NO_NAMES)
    pieces.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})

    turn = chat_turn(pieces.body(), NO_NAMES)

    assert heard == turn.text == text
    assert calls == [(call.id, call.name, call.arguments) for call in turn.calls]


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_servers_do_not_count_are_told_apart_by_id(index: int | None) -> None:
    """Some servers send every call whole with the index 0, or with none: two stay two."""
    pieces = ChatPieces()
    for name in ("one", "two"):
        call = {"index": index, "id": f"id-{name}", "function": {"name": name, "arguments": "{}"}}
        pieces.add({"choices": [{"delta": {"tool_calls": [call]}}]})
    pieces.add({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})

    turn = chat_turn(pieces.body(), NO_NAMES)

    assert [call.name for call in turn.calls] == ["one", "two"]
    assert [call.arguments for call in turn.calls] == ["{}", "{}"]


def test_a_name_that_comes_with_every_piece_is_said_once() -> None:
    """Some servers repeat id and name in each piece; a name in two parts is joined."""
    pieces = ChatPieces()
    for part in ("{", "}"):
        call = {"index": 0, "id": "1", "function": {"name": "same", "arguments": part}}
        pieces.add({"choices": [{"delta": {"tool_calls": [call]}}]})
    for part in ("web__", "search"):
        call = {"index": 1, "function": {"name": part}}
        pieces.add({"choices": [{"delta": {"tool_calls": [call]}}]})
    pieces.add({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})

    turn = chat_turn(pieces.body(), WireNames(["web:search"]))

    assert [(call.name, call.arguments) for call in turn.calls] == [
        ("same", "{}"),
        ("web:search", ""),
    ]


def test_other_choices_are_not_mixed_in() -> None:
    """Only the first choice is the answer."""
    pieces = ChatPieces()
    pieces.add({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    pieces.add({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}]})

    turn = chat_turn(pieces.body(), NO_NAMES)

    assert (turn.text, turn.finish) == ("a", FinishReason.STOP)


@given(st.data(), st.text(), CALLS)
def test_a_message_stream_is_its_body_however_it_is_cut(
    data: st.DataObject, text: str, calls: list[tuple[str, str, str]]
) -> None:
    """The same for Anthropic's events; an input is kept as the text that was written."""
    events = MessageEvents()
    start = {"type": "message", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 0}}
    events.add({"type": "message_start", "message": start})
    heard = events.add(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    )
    for piece in cut(data, text):
        delta: dict[str, str] = {"type": "text_delta", "text": piece}
        heard += events.add({"type": "content_block_delta", "index": 0, "delta": delta})
    for index, (call_id, name, arguments) in enumerate(calls, start=1):
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        events.add({"type": "content_block_start", "index": index, "content_block": block})
        for piece in cut(data, arguments):
            delta = {"type": "input_json_delta", "partial_json": piece}
            events.add({"type": "content_block_delta", "index": index, "delta": delta})
    ending = {"stop_reason": "tool_use" if calls else "end_turn"}
    events.add({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 5}})
    with pytest.raises(CutResponse):
        events.body()
    events.add({"type": "message_stop"})

    turn = message_turn(events.body(), NO_NAMES)

    assert heard == turn.text == text
    assert [(i, n, a or "{}") for i, n, a in calls] == [
        (call.id, call.name, call.arguments) for call in turn.calls
    ]
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (1, 5)


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "index", "delta", "message", "content", "tool_calls", "function"),
                    *(
                        "finish_reason",
                        "usage",
                        "type",
                        "id",
                        "name",
                        "arguments",
                        "refusal",
                        "status",
                    ),
                    *(
                        "output",
                        "stop_reason",
                        "text",
                        "input",
                        "content_block",
                        "response",
                        "item",
                    ),
                ]
            ),
            inner
            | st.sampled_from(
                [
                    *(
                        "stop",
                        "completed",
                        "message",
                        "message_start",
                        "content_block_start",
                        "text",
                    ),
                    *("content_block_delta", "message_delta", "response.completed", "tool_use"),
                    *("function_call", "output_text", "error", "response.output_item.done"),
                ]
            ),
            max_size=5,
        )
    ),
    max_leaves=20,
)
OURS = (MalformedResponse, FailedResponse)


@given(st.lists(JSON_VALUES, max_size=4))
def test_whatever_a_provider_sends_is_a_turn_or_a_clear_error(values: list[Any]) -> None:
    """The readers are total: a turn, or an error of theirs, and never another one."""
    for reader, read in (
        (ChatPieces(), _read_chat),
        (ResponseEvents(), _read_response),
        (MessageEvents(), _read_message),
    ):
        try:
            for value in values:
                reader.add(value)
            assert isinstance(read(reader), Turn)
        except OURS:
            continue


def _read_chat(pieces: Any) -> Turn:
    return chat_turn(pieces.body(), NO_NAMES)


def _read_response(events: Any) -> Turn:
    return response_turn(events.response(), NO_NAMES)


def _read_message(events: Any) -> Turn:
    return message_turn(events.body(), NO_NAMES)


@given(JSON_VALUES)
def test_whatever_body_a_provider_sends_is_a_turn_or_a_clear_error(value: Any) -> None:
    """The same for responses in one piece."""
    body: Mapping[str, Any] = value if isinstance(value, dict) else {}
    for read in (chat_turn, response_turn, message_turn):
        try:
            assert isinstance(read(body, NO_NAMES), Turn)
        except OURS:
            continue


def test_a_body_without_its_reason_to_end_was_cut() -> None:
    """A response that does not say why it ends has not ended, whole as it looks."""
    call = {"type": "tool_use", "id": "1", "name": "x", "input": {}}
    events = MessageEvents()
    events.add({"type": "message_start", "message": {"type": "message", "stop_reason": None}})
    events.add({"type": "message_stop"})

    readers: list[Callable[[], Turn]] = [
        lambda: chat_turn({"choices": [{"message": {"content": "x"}}]}, NO_NAMES),
        lambda: message_turn({"type": "message", "content": [call]}, NO_NAMES),
        lambda: message_turn(events.body(), NO_NAMES),
        lambda: response_turn({"status": "in_progress", "output": []}, NO_NAMES),
    ]
    for read in readers:
        with pytest.raises(CutResponse):
            read()


def test_calls_promised_and_not_given_are_no_answer() -> None:
    """A reason that promises calls, without one, must not pass for a reply that ended well."""
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "tool_calls"}]}

    turn = chat_turn(body, NO_NAMES)

    assert turn.status is TurnStatus.REPLY
    assert turn.finish is FinishReason.MALFORMED_CALL


def test_an_unknown_reason_is_unknown() -> None:
    """A word of tomorrow is not taken for one of today."""
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "eos"}]}
    paused = {"type": "message", "content": [], "stop_reason": "pause_turn"}
    cut_short = {"status": "incomplete", "incomplete_details": {"reason": "new"}, "output": []}

    assert chat_turn(body, NO_NAMES).finish is FinishReason.UNKNOWN
    assert message_turn(paused, NO_NAMES).finish is FinishReason.UNKNOWN
    assert response_turn(cut_short, NO_NAMES).finish is FinishReason.UNKNOWN


def test_items_that_came_once_only_are_not_lost() -> None:
    """A last event without its items takes those that were streamed before."""
    events = ResponseEvents()
    call = {"type": "function_call", "call_id": "1", "name": "x", "arguments": "{}"}
    events.add({"type": "response.output_item.done", "item": call})
    events.add({"type": "response.completed", "response": {"status": "completed", "output": []}})

    assert [c.id for c in response_turn(events.response(), NO_NAMES).calls] == ["1"]


@pytest.mark.parametrize(
    ("counts", "cached"),
    [((10, 5, 4), 4), ((10, 5, 11), 0), ((10, 5, -1), 0), ((10, 5, None), 0), ((10, 5, True), 0)],
)
def test_a_cached_count_that_cannot_be_is_dropped(
    counts: tuple[int, int, Any], cached: int
) -> None:
    """Uncached tokens are the dearer ones: doubt counts for them."""
    usage = made_usage(*counts)

    assert usage is not None
    assert usage.cached_input_tokens == cached


def test_a_fault_comes_with_what_to_look_at() -> None:
    """The key's variable, host and port, the model, the base URL of a compatible server; else nothing."""
    asked = Asked(model="m", variable="SOME_KEY", place="a.example port 1", compatible=True)
    known = attrs.evolve(asked, compatible=False)

    assert "variable SOME_KEY" in asked.advice(ModelFault.AUTH, 401)
    assert "a.example port 1" in asked.advice(ModelFault.TRANSPORT)
    missing = asked.advice(ModelFault.INVALID_REQUEST, 404)
    assert "'m' a model of a.example port 1" in missing
    assert "ends in /v1" in missing
    assert "/v1" not in known.advice(ModelFault.INVALID_REQUEST, 404)
    assert "ends in /v1" in asked.advice(ModelFault.MALFORMED)
    assert {""} == {
        known.advice(ModelFault.MALFORMED),
        asked.advice(ModelFault.RATE_LIMITED, 429),
        asked.advice(ModelFault.INVALID_REQUEST, 400),
    }


@pytest.mark.parametrize("counts", [(None, 5), (5, None), (-1, 5), (1.5, 2), ("1", 2), (True, 1)])
def test_counts_that_are_none_are_no_usage(counts: tuple[Any, Any]) -> None:
    """Then what was reserved for the turn is kept."""
    assert made_usage(*counts) is None


# ── faults ────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 100_000))
def test_a_date_is_the_seconds_until_it(seconds: int) -> None:
    """An HTTP date is compared with the clock that is given; the past is now."""
    when = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)

    assert retry_after({"retry-after": when}, NOW) == seconds
    assert retry_after({"retry-after": when}, NOW + timedelta(days=2)) == 0


@given(st.text())
@example("1e999")
@example("-5")
@example("Wed, 21 Oct 99999 07:28:00 GMT")
def test_any_retry_after_is_read(given_text: str) -> None:
    """A number of seconds from 0, or nothing; never an error."""
    waited = retry_after({"retry-after": given_text}, NOW)

    assert waited is None or 0 <= waited < float("inf")


@given(st.integers(100, 599), st.lists(st.text(max_size=5), max_size=2), st.text(max_size=40))
def test_every_answer_has_a_fault(status: int, words: list[str], prose: str) -> None:
    """Statuses and words nobody has heard of come out as one of the faults."""
    assert provider_fault(status, tuple(words), prose) in set(ModelFault)


@given(JSON_VALUES)
def test_every_error_body_is_an_error(body: Json) -> None:
    """Bodies of no form do not crash the mapping, and 400 stays what it is."""
    error = refused_request(
        "x", status=400, headers={}, body=body, now=NOW, secret="sk-secret-0123"
    )

    assert error.fault in {ModelFault.INVALID_REQUEST, ModelFault.REFUSED}


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
        "the request exceeds the available context size. try increasing it",
        "input length and `max_tokens` exceed context limit: context window",
    ],
)
def test_overflows_are_known_by_their_prose(message: str) -> None:
    """Of Anthropic, vLLM and llama.cpp, which have no code for it."""
    assert provider_fault(400, ("invalid_request_error",), message) is ModelFault.CONTEXT_OVERFLOW


def test_a_refused_prompt_is_a_refusal() -> None:
    """A 400 by a content policy is not a fault of the request's form."""
    assert provider_fault(400, ("content_filter",), "") is ModelFault.REFUSED
