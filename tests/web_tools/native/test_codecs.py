"""The codecs of native search: every protocol in its own shape, and nothing raises anything else."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from web_tools.native.registry import PROTOCOLS
from web_tools.native.session import MAX_RESPONSES, NativeSession
from web_tools.native.values import (
    Covers,
    HeldLimit,
    NativeAsk,
    NativeFailed,
    NativeFault,
    NativeSource,
    NativeTurn,
    UrlKind,
)

CASES = Path(__file__).resolve().parents[2] / "cases"
ROWS: dict[str, dict[str, Any]] = {
    row["id"]: row
    for row in map(json.loads, (CASES / "search.jsonl").read_text().splitlines())
    if row["kind"] == "native_decode"
}
SHAPES = {
    "anthropic": "native_anthropic",
    "gemini": "native_gemini",
    "openai_responses": "native_openai_responses",
    "openrouter": "native_openrouter",
    "perplexity": "native_perplexity_sonar",
}
ASK = NativeAsk(
    model="m", query="copper kettle care", instructions="Search.", max_output_tokens=2048
)


def shape(protocol: str) -> dict[str, Any]:
    path = CASES / "provider_shapes" / f"{SHAPES[protocol]}.json"
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def decoded(protocol: str, body: object) -> NativeTurn:
    return PROTOCOLS[protocol].decode(body)


def fault(protocol: str, body: object) -> NativeFault:
    with pytest.raises(NativeFailed) as failed:
        decoded(protocol, body)
    return failed.value.fault


every_protocol = pytest.mark.parametrize("protocol", sorted(PROTOCOLS))


def test_every_row_of_the_kind_is_run_here() -> None:
    """A row that is added needs a test that reads it."""
    assert {"nat-001", "nat-002", "nat-005", "nat-006"} == set(ROWS)


def gemini_body(text: Any, *, support: Any = None, uris: Any = ()) -> dict[str, Any]:
    supports = (
        []
        if support is None
        else [
            {
                "segment": {key: support[key] for key in support if key != "chunks"},
                "groundingChunkIndices": support["chunks"],
            }
        ]
    )
    metadata = {
        "webSearchQueries": ["q"],
        "groundingChunks": [{"web": {"uri": uri, "title": "t"}} for uri in uris],
        "groundingSupports": supports,
    }
    parts = text if isinstance(text, list) else [{"text": text}]
    candidate = {"content": {"parts": parts}, "finishReason": "STOP", "groundingMetadata": metadata}
    return {"candidates": [candidate]}


def test_offsets_in_bytes_become_code_points() -> None:
    """Row nat-001: the span is of characters, and the quotation is what stands there."""
    row = ROWS["nat-001"]
    given_, expect = row["input"], row["expect"]
    body = gemini_body(given_["text"], support=given_["support"], uris=given_["sources"])

    (citation,) = decoded(given_["protocol"], body).citations

    assert tuple(expect["span"]) == citation.span
    assert expect["quote"] == citation.quote
    assert given_["sources"][0] == citation.source.url


def test_a_redirect_of_the_provider_is_no_source_of_a_site() -> None:
    """Row nat-002: its host is not known, so it matches no site, not even the provider's own."""
    row = ROWS["nat-002"]
    (source,) = decoded(
        row["input"]["protocol"], gemini_body("x", uris=[row["input"]["uri"]])
    ).sources

    assert row["expect"]["url_kind"] == source.kind == UrlKind.REDIRECT
    for site in ("google.com", "vertexaisearch.cloud.google.com", "com", "example.com"):
        assert not source.is_under(site)


def test_a_resumed_turn_gets_no_fresh_budget() -> None:
    """Row nat-005: with five of five used, it goes on without the tool."""
    row = ROWS["nat-005"]["input"]
    expect = ROWS["nat-005"]["expect"]
    block = {"type": "server_tool_use", "name": "web_search", "id": "s", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    body = {"stop_reason": row["stop_reason"], "content": [block, result] * row["used"]}
    turn = decoded(row["protocol"], body)

    session = NativeSession(ask=ASK, budget=row["max_uses"]).after(turn)
    following = session.request()
    request = PROTOCOLS[row["protocol"]].encode(following)

    assert expect["continue"] is not session.is_over
    assert expect["next_max_uses"] == following.searches
    assert expect["tool_present"] is ("tools" in request.body)
    messages: Any = request.body["messages"]
    assert {"role": "assistant", "content": body["content"]} == messages[-1]


def test_a_200_that_did_not_complete_is_no_answer() -> None:
    """Row nat-006: incomplete is a failure with that word."""
    row = ROWS["nat-006"]

    assert row["expect"]["error"] == fault(row["input"]["protocol"], row["input"])


@every_protocol
def test_a_request_has_the_shape_of_the_protocol(protocol: str) -> None:
    """Each field that our request has stands in the vendor's example, or is named here."""
    expected = shape(protocol)["request"]
    codec = PROTOCOLS[protocol]
    ask = attrs.evolve(ASK, model="m/x", searches=3, sites=("docs.example.com",))
    request = codec.encode(ask)

    path = expected["path"].replace("<search model>", "m%2Fx")
    assert path == request.path
    ours = {
        "instructions", "max_output_tokens", "max_tool_calls", "system", "systemInstruction",
        "generationConfig", "max_tokens",
    }  # fmt: skip
    assert set(request.body) - ours <= set(expected["json"])
    assert "copper kettle care" in json.dumps(request.body)
    headers = {name.lower() for name in expected["headers"]}
    assert {name.lower() for name in codec.headers("k")} == headers
    if HeldLimit.SITES in codec.holds:
        assert "docs.example.com" in json.dumps(request.body)
    if HeldLimit.SEARCHES in codec.holds:
        assert request.body != codec.encode(attrs.evolve(ask, searches=2)).body


@every_protocol
def test_with_no_search_left_no_search_is_offered(protocol: str) -> None:
    """At 0 the tool is not there at all."""
    body = PROTOCOLS[protocol].encode(attrs.evolve(ASK, searches=0)).body

    assert "tools" not in body
    if protocol == "perplexity":
        assert body["disable_search"] is True


@every_protocol
def test_the_example_answer_is_read(protocol: str) -> None:
    """Text, a citation of an address that is checked, and a search that was counted."""
    turn = decoded(protocol, shape(protocol)["response"]["body"])
    answer = NativeSession(ask=ASK).after(turn).answer()

    assert answer.searched
    assert answer.searches == 1
    assert answer.text.strip()
    assert 1 == len({each.source.url for each in answer.citations})
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    for each in answer.citations:
        if each.span is not None:
            assert answer.text[each.span[0] : each.span[1]] == each.quote


def test_what_each_example_cites() -> None:
    """The words that the protocols are known to mean, one by one."""
    cited = {}
    for protocol in PROTOCOLS:
        turn = decoded(protocol, shape(protocol)["response"]["body"])
        (each,) = turn.citations
        cited[protocol] = (each.source.url, each.quote, each.covers, each.excerpt)

    copper = "https://docs.example.com/copper"
    link = "([docs.example.com](https://docs.example.com/copper?utm_source=openai)"
    quote = cited["openai_responses"][1]
    assert quote.startswith(link[:20])
    assert cited == {
        "anthropic": (copper, "Descale it weekly.", Covers.CLAIM, "Descale weekly"),
        "gemini": (
            "https://vertexaisearch.cloud.google.com/grounding-api-redirect/AbCdEf",
            "Der Kessel ist heiß.",
            Covers.CLAIM,
            "",
        ),
        "openai_responses": (copper, quote, Covers.MARKER, ""),
        "openrouter": (copper, "", Covers.CLAIM, "excerpt"),
        "perplexity": (copper, "[1]", Covers.MARKER, "invented"),
    }


@every_protocol
def test_the_example_errors_are_no_answers(protocol: str) -> None:
    """A 200 among them fails, is paused, or was not searched for; none of them is a searched answer."""
    for error in shape(protocol)["errors"]:
        if error["status"] != 200:
            continue
        try:
            session = NativeSession(ask=ASK).after(decoded(protocol, error["body"]))
            assert not session.answer().searched
        except NativeFailed:
            pass


def test_a_proxy_that_ignores_the_tool_has_not_searched() -> None:
    """An answer without any trace of a search says so, whatever the protocol."""
    bodies: dict[str, Any] = {
        "anthropic": {"stop_reason": "end_turn", "content": [{"type": "text", "text": "Hm."}]},
        "gemini": {
            "candidates": [{"content": {"parts": [{"text": "Hm."}]}, "finishReason": "STOP"}]
        },
        "openai_responses": {
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hm."}]}],
        },
        "openrouter": {"choices": [{"message": {"content": "Hm."}, "finish_reason": "stop"}]},
        "perplexity": {"choices": [{"message": {"content": "Hm."}, "finish_reason": "stop"}]},
    }
    for protocol, body in bodies.items():
        answer = NativeSession(ask=ASK).after(decoded(protocol, body)).answer()
        assert (False, "Hm.", ()) == (answer.searched, answer.text, answer.citations)


FAULTS: dict[str, tuple[str, Any, NativeFault]] = {
    "a search that failed, then words from memory": (
        "anthropic",
        {
            "stop_reason": "end_turn",
            "content": [
                {
                    "type": "web_search_tool_result",
                    "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
                },
                {"type": "text", "text": "From memory."},
            ],
        },
        NativeFault.UNAVAILABLE,
    ),
    "no search is left": (
        "anthropic",
        {
            "stop_reason": "end_turn",
            "content": [
                {"type": "web_search_tool_result", "content": {"error_code": "max_uses_exceeded"}}
            ],
        },
        NativeFault.LIMIT_REACHED,
    ),
    "an error of no known word": (
        "anthropic",
        {
            "stop_reason": "end_turn",
            "content": [{"type": "web_search_tool_result", "content": {"error_code": ["x"]}}],
        },
        NativeFault.SEARCH_FAILED,
    ),
    "cut by the limit of tokens": (
        "anthropic", {"stop_reason": "max_tokens", "content": []}, NativeFault.INCOMPLETE,
    ),
    "a refusal": ("anthropic", {"stop_reason": "refusal", "content": []}, NativeFault.REFUSED),
    "a stop of no known word": (
        "anthropic", {"stop_reason": "tool_use", "content": []}, NativeFault.BAD_ANSWER,
    ),
    "a response that failed": ("openai_responses", {"status": "failed"}, NativeFault.UNAVAILABLE),
    "a response that failed at a rate": (
        "openai_responses",
        {"status": "failed", "error": {"code": "rate_limit_exceeded"}},
        NativeFault.RATE_LIMITED,
    ),
    "a response in the queue": ("openai_responses", {"status": "queued"}, NativeFault.INCOMPLETE),
    "a response of no status": ("openai_responses", {"output": []}, NativeFault.BAD_ANSWER),
    "a message that refuses": (
        "openai_responses",
        {
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}],
        },
        NativeFault.REFUSED,
    ),
    "a prompt that is blocked": (
        "gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, NativeFault.REFUSED,
    ),
    "a candidate that is cut": (
        "gemini", {"candidates": [{"finishReason": "MAX_TOKENS"}]}, NativeFault.INCOMPLETE,
    ),
    "no candidate": ("gemini", {"candidates": []}, NativeFault.BAD_ANSWER),
    "an error with a status of success": (
        "openrouter", {"error": {"code": 429, "message": "m"}}, NativeFault.RATE_LIMITED,
    ),
    "an error in a choice": (
        "openrouter", {"choices": [{"error": {"code": 502}}]}, NativeFault.UNAVAILABLE,
    ),
    "a choice that is cut": (
        "openrouter",
        {"choices": [{"finish_reason": "length", "message": {"content": "x"}}]},
        NativeFault.INCOMPLETE,
    ),
    "calls of tools that nobody offered": (
        "openrouter",
        {"choices": [{"finish_reason": "tool_calls", "message": {"content": "x"}}]},
        NativeFault.BAD_ANSWER,
    ),
    "no content": ("perplexity", {"choices": [{"message": {}}]}, NativeFault.BAD_ANSWER),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_answer_is_told_by_its_word(name: str) -> None:
    """A 200 is no success by itself."""
    protocol, body, expected = FAULTS[name]

    assert expected == fault(protocol, body)


def test_a_search_that_failed_after_one_that_did_not_is_an_answer() -> None:
    """It has found something, so it is not from memory."""
    content = [
        {"type": "server_tool_use", "name": "web_search"},
        {"type": "web_search_tool_result", "content": []},
        {"type": "server_tool_use", "name": "web_search"},
        {"type": "web_search_tool_result", "content": {"error_code": "max_uses_exceeded"}},
        {"type": "text", "text": "Found."},
    ]
    turn = decoded("anthropic", {"stop_reason": "end_turn", "content": content})

    assert 2 == NativeSession(ask=ASK).after(turn).answer().searches


def test_a_failed_call_of_responses_does_not_pass_for_a_search_that_found() -> None:
    """Its text is from memory, and the answer is none."""
    body = {
        "status": "completed",
        "output": [
            {"type": "web_search_call", "status": "failed", "action": {"type": "search"}},
            {"type": "message", "content": [{"type": "output_text", "text": "From memory."}]},
        ],
    }
    with pytest.raises(NativeFailed) as failed:
        NativeSession(ask=ASK).after(decoded("openai_responses", body)).answer()
    assert NativeFault.SEARCH_FAILED == failed.value.fault


BAD_URLS: list[object] = [
    "javascript:alert(1)", "http://127.0.0.1/x", "http://[::1]/", "http://169.254.169.254/",
    "http://localhost/", "https://u:p@example.com/", "/relative", "https://example.com/a b", "",
    None, 7, {}, "http://2130706433/",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS, ids=repr)
def test_an_address_that_may_not_be_shown_is_dropped_and_counted(url: object) -> None:
    """By form and by literal address, in every protocol; the answer stands."""
    result = {"type": "web_search_result", "url": url, "title": "t"}
    bodies: dict[str, Any] = {
        "anthropic": {
            "stop_reason": "end_turn",
            "content": [
                {"type": "web_search_tool_result", "content": [result]},
                {"type": "text", "text": "A.", "citations": [{"url": url}]},
            ],
        },
        "gemini": gemini_body("A.", support={"endIndex": 2, "chunks": [0]}, uris=[url]),
        "openai_responses": {
            "status": "completed",
            "output": [
                {
                    "type": "message",
                    "content": [
                        {
                            "type": "output_text",
                            "text": "A.",
                            "annotations": [{"type": "url_citation", "url": url}],
                        }
                    ],
                }
            ],
        },
        "openrouter": {
            "choices": [
                {
                    "message": {
                        "content": "A.",
                        "annotations": [{"type": "url_citation", "url_citation": {"url": url}}],
                    }
                }
            ]
        },
        "perplexity": {
            "choices": [{"message": {"content": "A [1]."}}],
            "search_results": [{"url": url}],
        },
    }
    for protocol, body in bodies.items():
        turn = decoded(protocol, body)
        assert ((), ()) == (turn.citations, turn.sources), protocol
        assert turn.dropped >= 1, protocol
        assert turn.text.startswith("A")


def test_offsets_that_fit_nowhere_are_left_out() -> None:
    """Of a cut character, behind the end, backwards, of another part, of a thought."""
    text = "Ärger."
    for start, end in ((1, 3), (0, 99), (4, 2), (3, 3), (-1, 3), ("0", 3), (None, None)):
        support = {"startIndex": start, "endIndex": end, "chunks": [0]}
        body = gemini_body(text, support=support, uris=["https://example.com/"])
        (citation,) = decoded("gemini", body).citations
        assert (None, "") == (citation.span, citation.quote)
    thought: Any = [{"text": "Hm.", "thought": True}, {"text": text}]
    for part, span in ((0, None), (1, (0, 5)), (2, None)):
        support = {"partIndex": part, "endIndex": 6, "chunks": [0]}
        body = gemini_body(thought, support=support, uris=["https://example.com/"])
        turn = decoded("gemini", body)
        assert text == turn.text
        assert span == turn.citations[0].span


def test_a_span_of_a_later_part_counts_in_the_whole_text() -> None:
    """Offsets are of their part, and the answer is one text."""
    note = {"type": "url_citation", "url": "https://example.com/", "start_index": 0, "end_index": 3}
    parts = [
        {"type": "output_text", "text": "One. "},
        {"type": "output_text", "text": "Two.", "annotations": [note]},
    ]
    body = {"status": "completed", "output": [{"type": "message", "content": parts}]}
    (citation,) = decoded("openai_responses", body).citations

    assert ((5, 8), "Two") == (citation.span, citation.quote)


def test_a_span_that_leaves_its_part_is_left_out() -> None:
    """It would quote words of another part."""
    note = {"type": "url_citation", "url": "https://example.com/", "start_index": 0, "end_index": 7}
    parts = [
        {"type": "output_text", "text": "One. ", "annotations": [note]},
        {"type": "output_text", "text": "Two."},
    ]
    body = {"status": "completed", "output": [{"type": "message", "content": parts}]}

    assert decoded("openai_responses", body).citations[0].span is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.example/?utm_source=openai", "https://a.example/"),
        ("https://a.example/?a=1&utm_source=openai#f", "https://a.example/?a=1#f"),
        ("https://a.example/?utm_source=openai2", "https://a.example/?utm_source=openai2"),
        ("https://a.example/utm_source=openai", "https://a.example/utm_source=openai"),
    ],
)
def test_the_vendors_parameter_is_taken_off_a_cited_address(url: str, expected: str) -> None:
    """Only that parameter, and only as a parameter."""
    note = {"type": "url_citation", "url": url}
    part = {"type": "output_text", "text": "x", "annotations": [note]}
    body = {"status": "completed", "output": [{"type": "message", "content": [part]}]}

    assert expected == decoded("openai_responses", body).sources[0].url


def test_marks_cite_the_nth_result_from_one() -> None:
    """A mark beyond the results, `[0]`, and digits of other scripts cite nothing."""
    body = {
        "choices": [{"message": {"content": "a [2] b [0] c [3] d [\u0661] e [1][1]"}}],
        "search_results": [{"url": "https://a.example/"}, {"url": "https://b.example/"}],
    }
    turn = decoded("perplexity", body)

    hosts = [each.source.host for each in turn.citations]
    assert ["b.example", "a.example", "a.example"] == hosts
    assert ["[2]", "[1]", "[1]"] == [each.quote for each in turn.citations]


def paused(searches: int) -> NativeTurn:
    return NativeTurn(text="a ", searches=searches, found=True, resume=[{"n": searches}])


def test_four_pauses_stay_within_one_budget() -> None:
    """What is offered and what was used never add up to more than the budget."""
    session = NativeSession(ask=ASK, budget=5)
    offered = []
    for searches in (2, 2, 1, 0):
        following = session.request()
        assert following.searches is not None
        offered.append(following.searches)
        assert session.used + following.searches <= 5
        session = session.after(paused(searches))

    assert [5, 3, 1, 0] == offered
    assert not session.is_over
    assert 4 == len(session.request().resume)
    answer = session.after(NativeTurn(text="end")).answer()
    assert ("a a a a end", 5) == (answer.text, answer.searches)


def test_a_provider_that_searches_more_than_it_may_gets_nothing_more() -> None:
    """Less than nothing is nothing."""
    session = NativeSession(ask=ASK, budget=2).after(paused(9))

    assert 0 == session.request().searches


def test_what_is_paused_for_ever_ends_as_incomplete() -> None:
    """After the most responses it is over, and it is no answer."""
    session = NativeSession(ask=ASK)
    while not session.is_over:
        session = session.after(paused(0))

    assert len(session.turns) == MAX_RESPONSES
    with pytest.raises(NativeFailed) as failed:
        session.answer()
    assert NativeFault.INCOMPLETE == failed.value.fault


def test_spans_of_a_later_response_count_in_the_whole_answer() -> None:
    """The text of a paused answer is one text."""
    turn = decoded("perplexity", shape("perplexity")["response"]["body"])
    session = NativeSession(ask=ASK).after(paused(1)).after(turn)

    answer = session.answer()
    (citation,) = answer.citations
    assert citation.span is not None
    assert answer.text[citation.span[0] : citation.span[1]] == citation.quote == "[1]"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "content", "text", "output", "status", "annotations", "citations", "choices",
             "message", "candidates", "parts", "groundingMetadata", "groundingChunks", "web", "uri",
             "groundingSupports", "segment", "groundingChunkIndices", "usage", "search_results",
             "url", "finishReason", "stop_reason", "action", "error"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60)
@given(body=json_values, protocol=st.sampled_from(sorted(PROTOCOLS)))
@example(body=None, protocol="gemini")
@example(body={"candidates": [{"finishReason": {}}]}, protocol="gemini")
@example(body={"stop_reason": [], "content": [{"type": [], "text": 1}]}, protocol="anthropic")
@example(body={"status": [], "output": {}}, protocol="openai_responses")
def test_decoding_is_total(body: object, protocol: str) -> None:
    """Any value is a turn or a failure with a word, and nothing else."""
    try:
        assert isinstance(decoded(protocol, body), NativeTurn)
    except NativeFailed:
        return


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        found += paths(inner, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


@settings(max_examples=100)
@given(data=st.data(), protocol=st.sampled_from(sorted(PROTOCOLS)))
def test_a_damaged_answer_has_spans_that_fit_or_none(data: st.DataObject, protocol: str) -> None:
    """One value of a true answer is replaced by anything: every quotation still stands in the text."""
    body = shape(protocol)["response"]["body"]
    path = data.draw(st.sampled_from(paths(body)))
    damaged = replaced(body, path, data.draw(json_values))
    try:
        turn = decoded(protocol, damaged)
    except NativeFailed:
        return

    for each in turn.citations:
        assert each.source.url.startswith(("http://", "https://"))
        if each.span is not None:
            assert turn.text[each.span[0] : each.span[1]] == each.quote != ""
    turn.text.encode()


@settings(max_examples=60)
@given(text=st.text(max_size=30), data=st.data())
def test_every_span_of_characters_survives_the_way_over_bytes(
    text: str, data: st.DataObject
) -> None:
    """What is counted in bytes there is the same words here."""
    text = text.encode("utf-8", "replace").decode() + "."
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    support = {
        "startIndex": len(text[:start].encode()),
        "endIndex": len(text[:end].encode()),
        "chunks": [0],
    }
    body = gemini_body(text, support=support, uris=["https://example.com/"])

    (citation,) = decoded("gemini", body).citations
    assert ((start, end), text[start:end]) == (citation.span, citation.quote)


@settings(max_examples=60)
@given(
    searches=st.none() | st.integers(0, 9),
    query=st.text(min_size=1, max_size=40),
    protocol=st.sampled_from(sorted(PROTOCOLS)),
)
def test_a_request_holds_the_query_as_it_is(
    searches: int | None, query: str, protocol: str
) -> None:
    """Encoding is total, JSON, and adds nothing to the words of the query."""
    ask = attrs.evolve(ASK, query=query, searches=searches)
    body = json.loads(json.dumps(PROTOCOLS[protocol].encode(ask).body))

    def strings(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
        return [each for part in inner for each in strings(part)]

    assert query in strings(body)


def test_a_source_lies_in_a_site_on_label_boundaries() -> None:
    """As everywhere."""
    source = NativeSource(url="https://docs.example.com/", host="docs.example.com")

    assert source.is_under("example.com")
    assert source.is_under("docs.example.com")
    assert not source.is_under("ocs.example.com")
