"""Untrusted arguments of the two tools."""

import math
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools.arguments import (
    MAX_QUERY_CHARS,
    MAX_URL_CHARS,
    READ_SCHEMA,
    SEARCH_SCHEMA,
    ReadRequest,
    Recency,
    SearchRequest,
    WebToolCaps,
    parse_read_arguments,
    parse_search_arguments,
)
from web_tools.errors import InvalidCaps, WebErrorCode, WebToolError

CAPS = WebToolCaps()
Parse = Callable[[object, WebToolCaps], object]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
queries = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).filter(
    str.strip
)


def faults_of(parse: Parse, raw: object, caps: WebToolCaps = CAPS) -> dict[str, str]:
    """Paths and problems of a refusal; the test fails when *raw* is accepted."""
    with pytest.raises(WebToolError) as caught:
        parse(raw, caps)
    assert caught.value.code is WebErrorCode.INVALID_INPUT
    assert not caught.value.retryable
    return {fault.path: fault.problem for fault in caught.value.faults}


def accepts(schema: Mapping[str, Any], raw: object) -> bool:
    """An independent reading of the few JSON Schema words that ours use."""
    if not isinstance(raw, dict) or not set(schema["required"]) <= set(raw):
        return False
    rules = schema["properties"]
    return set(raw) <= set(rules) and all(fits(rules[name], raw[name]) for name in raw)


def fits(rule: Mapping[str, Any], value: object) -> bool:
    if rule["type"] == "integer":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        finite = isinstance(value, int) or math.isfinite(value)
        return finite and value % 1 == 0 and value >= rule["minimum"]
    if not isinstance(value, str):
        return False
    long_enough = rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", math.inf)
    return long_enough and ("enum" not in rule or value in rule["enum"])


FILLERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
SEEN = frozenset("LNPSC")


def is_seen(query: str) -> bool:
    """Whether a query holds something that a reader sees by itself."""
    kinds = ((sign, unicodedata.category(sign)) for sign in query)
    return any(
        kind[0] in SEEN and kind not in {"Cc", "Cf", "Cn", "Cs"} and sign not in FILLERS
        for sign, kind in kinds
    )


def test_schema_words_are_the_ones_that_the_oracle_reads() -> None:
    """A keyword that the comparison below does not know would not be compared."""
    known = {"type", "description", "minLength", "maxLength", "minimum", "enum"}
    for schema in (SEARCH_SCHEMA, READ_SCHEMA):
        assert set(schema) == {"type", "properties", "required", "additionalProperties"}
        assert schema["additionalProperties"] is False
        assert all(set(rule) <= known for rule in schema["properties"].values())


def optional_fields(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    values = json_values | st.sampled_from([1, 5.0, "day", "x", 10**400, 1e308, "year"])
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))


@example({"query": "k", "limit": 5.0})
@example({"query": "k", "limit": 10**400})
@example({"query": "k", "limit": True})
@example({"query": "k" * MAX_QUERY_CHARS})
@example({"query": "k" * (MAX_QUERY_CHARS + 1)})
@example({"query": "k", "recency": "DAY"})
@example({"query": "k", "freshnes": "P7D"})
@given(optional_fields("query", "limit", "recency", "other") | json_values)
def test_search_parser_and_schema_agree(raw: object) -> None:
    """What the parser takes fits the schema; the reverse holds but for blank, NUL and surrogates."""
    try:
        parse_search_arguments(raw, CAPS)
        parsed = True
    except WebToolError:
        parsed = False
    query = raw.get("query") if isinstance(raw, dict) else None
    beyond_schema = isinstance(query, str) and (
        not is_seen(query) or "\0" in query or any("\ud800" <= c <= "\udfff" for c in query)
    )
    assert parsed == (accepts(SEARCH_SCHEMA, raw) and not beyond_schema)


@example({"url": "x" * MAX_URL_CHARS})
@example({"url": "x" * (MAX_URL_CHARS + 1)})
@example({"url": "u", "max_bytes": 0})
@given(optional_fields("url", "max_bytes", "limit") | json_values)
def test_read_parser_and_schema_agree(raw: object) -> None:
    """The parser takes exactly what the schema describes."""
    try:
        parse_read_arguments(raw, CAPS)
        parsed = True
    except WebToolError:
        parsed = False
    assert parsed == accepts(READ_SCHEMA, raw)


@given(
    st.one_of(
        json_values,
        st.dictionaries(json_values.filter(lambda v: not isinstance(v, list | dict)), json_values),
    )
)
def test_parsers_are_total(raw: object) -> None:
    """Any value gives a request or WEB_INVALID_INPUT."""
    outcomes = [outcome(parse, raw) for parse in (parse_search_arguments, parse_read_arguments)]

    assert all(code in {None, WebErrorCode.INVALID_INPUT} for code in outcomes)


def outcome(parse: Parse, raw: object) -> WebErrorCode | None:
    try:
        parse(raw, CAPS)
    except WebToolError as error:
        return error.code
    return None


@given(queries.filter(is_seen))
def test_a_query_is_taken_verbatim(query: str) -> None:
    """Operators, quotes and spaces in a query are text and stay."""
    request = parse_search_arguments({"query": query}, CAPS)

    assert SearchRequest(query=query, limit=CAPS.max_results) == request


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_limit_only_lowers(asked: int, cap: int, other: int) -> None:
    """The result never passes the cap, and a larger wish never gives less."""
    caps = WebToolCaps(max_results=cap)
    request = parse_search_arguments({"query": "k", "limit": asked}, caps)
    more = parse_search_arguments({"query": "k", "limit": asked + other}, caps)

    assert min(asked, cap) == request.limit
    assert request.limit <= more.limit <= cap
    assert (asked > cap) == request.lowered


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_max_bytes_only_lowers(asked: int, cap: int, default: int, other: int) -> None:
    """The same for bytes, and the default obeys the cap too."""
    caps = WebToolCaps(max_read_bytes=cap, default_read_bytes=default)
    request = parse_read_arguments({"url": "u", "max_bytes": asked}, caps)
    more = parse_read_arguments({"url": "u", "max_bytes": asked + other}, caps)

    assert min(asked, cap) == request.max_bytes
    assert request.max_bytes <= more.max_bytes <= cap
    assert min(default, cap) == parse_read_arguments({"url": "u"}, caps).max_bytes


def test_a_read_takes_the_hosts_redirects_and_seconds() -> None:
    """They are ceilings of the host that no call can name; the defaults are the seed's."""
    caps = WebToolCaps(max_redirects=2, timeout_ms=1500)
    request = parse_read_arguments({"url": "u"}, caps)

    assert (request.max_redirects, request.timeout_seconds) == (2, 1.5)
    assert parse_read_arguments({"url": "u", "max_bytes": 7}, CAPS) == ReadRequest(
        url="u", max_bytes=7
    )


def test_an_integral_float_is_an_integer() -> None:
    """5.0 is 5, as in the strict contract; the request holds an int."""
    request = parse_search_arguments({"query": "k", "limit": 5.0}, CAPS)

    assert request.limit == 5
    assert type(request.limit) is int


@pytest.mark.parametrize(
    "value",
    [True, False, None, "5", [5], {}, 0, -1, 0.0, 5.5, math.nan, math.inf, -math.inf, -1e308],
)
def test_what_is_no_count(value: object) -> None:
    """Booleans, text, null, fractions, NaN, infinities, zero and less are refused."""
    assert set(faults_of(parse_search_arguments, {"query": "k", "limit": value})) == {"/limit"}
    assert set(faults_of(parse_read_arguments, {"url": "u", "max_bytes": value})) == {"/max_bytes"}


@pytest.mark.parametrize("value", [1e308, 10**400, 2**64])
def test_a_huge_count_is_lowered(value: object) -> None:
    """Out of every range is still only more than the cap."""
    request = parse_search_arguments({"query": "k", "limit": value}, CAPS)

    assert request.limit == CAPS.max_results
    assert request.lowered


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "must not be blank"),
        (" \t\n\u3000", "must not be blank"),
        ("\u200b\u200d\ufeff", "must not be blank"),
        ("\u3164\u115f \u2800", "must not be blank"),
        ("\U000e0041\U000e0042", "must not be blank"),
        ("\u0301\u20dd", "must not be blank"),
        ("a\0b", "must not contain NUL"),
        ("a\ud800", "must be valid Unicode"),
        ("k" * (MAX_QUERY_CHARS + 1), "must have at most 2000 characters"),
        (7, "must be text"),
        (None, "must be text"),
        (["k"], "must be text"),
    ],
)
def test_queries_that_are_refused(value: object, problem: str) -> None:
    """Each kind of bad query has its own sentence."""
    assert faults_of(parse_search_arguments, {"query": value}) == {"/query": problem}


@pytest.mark.parametrize("value", ["DAY", "hour", "", None, 1, ["day"]])
def test_recency_is_one_of_four_words(value: object) -> None:
    """Any other value is refused, with the words listed."""
    assert faults_of(parse_search_arguments, {"query": "k", "recency": value}) == {
        "/recency": "must be one of day, week, month, year"
    }


@pytest.mark.parametrize("word", list(Recency))
def test_recency_words(word: Recency) -> None:
    """The four words are taken."""
    assert parse_search_arguments({"query": "k", "recency": word.value}, CAPS).recency is word


def test_every_fault_is_named_at_once() -> None:
    """A model that made three mistakes reads of all three."""
    raw = {"limit": 0, "recency": "hour", "freshnes": "P7D"}

    assert set(faults_of(parse_search_arguments, raw)) == {
        "/freshnes",
        "/query",
        "/limit",
        "/recency",
    }


def test_an_unknown_name_is_a_printable_pointer() -> None:
    """Slash and tilde are escaped as JSON pointers do; control characters and length are cut."""
    raw = {"query": "k", "a/b~c": 1, "\n\x1b": 1, "é\ud800": 1, "n" * 500: 1}

    paths = set(faults_of(parse_search_arguments, raw))
    assert {"/a~1b~0c", "/??", "/\\xe9\\ud800", "/" + "n" * 64} == paths


@pytest.mark.parametrize("raw", [None, [], "query", 1, True])
def test_arguments_are_an_object(raw: object) -> None:
    """Anything else is one fault at the root."""
    assert faults_of(parse_search_arguments, raw) == {"": "must be an object"}
    assert faults_of(parse_read_arguments, raw) == {"": "must be an object"}


def test_a_call_with_endless_faults_gets_a_short_answer() -> None:
    """Thousands of unknown fields do not make a message of that size."""
    raw = {f"field{n}": n for n in range(10_000)}

    assert len(faults_of(parse_search_arguments, raw)) == 16


def test_the_message_repeats_no_value() -> None:
    """Paths are named; what stood there is not repeated."""
    with pytest.raises(WebToolError) as caught:
        parse_search_arguments({"query": "sentinel\0", "limit": "sentinel"}, CAPS)
    assert caught.value.message == "/query must not contain NUL; /limit must be an integer."


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://a\0b/", "http://\ud800/", "no url"])
def test_whether_a_text_is_a_url_is_not_decided_here(url: str) -> None:
    """A malformed URL has its own code, so every text up to the bound passes."""
    expected = ReadRequest(url=url, max_bytes=CAPS.default_read_bytes)

    assert expected == parse_read_arguments({"url": url}, CAPS)


def test_caps_have_the_defaults_of_the_seed() -> None:
    """The numbers are part of the contract."""
    assert (
        CAPS.max_results,
        CAPS.max_read_bytes,
        CAPS.default_read_bytes,
        CAPS.max_snippet_chars,
        CAPS.max_redirects,
        CAPS.timeout_ms,
    ) == (10, 262_144, 65_536, 500, 5, 30_000)
    assert WebToolCaps(timeout_ms=1500).timeout_seconds == 1.5


FIELDS = [
    "max_results",
    "max_read_bytes",
    "default_read_bytes",
    "max_snippet_chars",
    "max_redirects",
    "timeout_ms",
]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [True, False, None, "5", 5.0, math.nan, math.inf, -1])
def test_caps_refuse_what_is_no_count(field: str, value: object) -> None:
    """Booleans, floats, NaN, text and negative numbers are no ceilings."""
    build: Callable[..., WebToolCaps] = WebToolCaps
    with pytest.raises(InvalidCaps) as caught:
        build(**{field: value})
    assert field == caught.value.field


def test_zero_is_a_ceiling_for_redirects_only() -> None:
    """No redirect is a policy; no result, no byte and no time are mistakes."""
    assert WebToolCaps(max_redirects=0).max_redirects == 0
    build: Callable[..., WebToolCaps] = WebToolCaps
    for field in FIELDS:
        if field != "max_redirects":
            with pytest.raises(InvalidCaps):
                build(**{field: 0})
