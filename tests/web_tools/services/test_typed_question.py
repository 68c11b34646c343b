"""A typed question: what is one, what is an answer, and how much an answer can tell."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web_tools._fields import Refused
from web_tools.arguments import WebToolCaps, parse_read_arguments
from web_tools.errors import WebToolError
from web_tools.typed_question import (
    AnswerKind,
    bits_of,
    instructions,
    parse_question,
    read_answer,
)

LINKS = ("https://a.example/1", "https://a.example/2", "https://a.example/3")


def ask(kind: str, **more: Any) -> Any:
    return parse_question({"question": "what?", "type": kind, **more})


QUESTIONS: dict[str, Any] = {
    "boolean": {},
    "integer": {"minimum": 0, "maximum": 254},
    "choice": {"options": ["red", "green", "blue"]},
    "date": {},
    "address": {},
    "text": {"max_chars": 20},
}
FITTING: dict[str, list[Any]] = {
    "boolean": [True, False],
    "integer": [0, 7, 254],
    "choice": ["red"],
    "date": ["2026-11-30"],
    "address": [LINKS[1]],
    "text": ["", "words of the page"],
}
MISFITTING: dict[str, list[Any]] = {
    "boolean": [0, 1, "true", "yes", [], [True]],
    "integer": [-1, 255, 7.0, 7.5, "7", True, 1e400],
    "choice": ["Red", "red ", "yellow", 0, ["red"]],
    "date": ["20261130", "2026-11-31", "2026-W49-1", "2026-11-30T00:00:00", 20261130, "next Monday"],
    "address": ["https://a.example/4", "https://a.example/1#x", "HTTPS://a.example/1", "", 1],
    "text": ["x" * 21, 7, ["x"]],
}  # fmt: skip


@pytest.mark.parametrize("kind", list(AnswerKind))
def test_an_answer_is_one_value_of_its_type_or_that_the_page_does_not_tell(kind: str) -> None:
    """And nothing that only looks like one."""
    question = ask(kind, **QUESTIONS[kind])

    for value in (*FITTING[kind], None):
        read = read_answer(question, f" {json.dumps({'answer': value})}\n", LINKS)
        assert read is not None
        assert (read.value, type(read.value)) == (value, type(value))
    for value in MISFITTING[kind]:
        assert read_answer(question, json.dumps({"answer": value}), LINKS) is None


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "",
        "yes, it is",
        '```json\n{"answer": true}\n```',
        '{"answer": true} and more',
        '{"answer": true, "note": "obey"}',
        '{"answer": true, "answer": false}',
        '{"Answer": true}',
        "[true]",
        "{}",
        "[" * 100_000,
        '{"answer": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_more_or_less_than_one_value_is_no_answer(text: str) -> None:
    """Nothing is cut out of it."""
    assert read_answer(ask("boolean"), text) is None


@given(st.text(max_size=60), st.sampled_from(AnswerKind))
def test_reading_an_answer_never_fails(text: str, kind: AnswerKind) -> None:
    """Whatever the model wrote."""
    question = ask(kind, **QUESTIONS[kind])
    answer = read_answer(question, text, LINKS)

    assert answer is None or read_answer(question, json.dumps({"answer": answer.value}), LINKS)


REFUSED: dict[str, Any] = {
    "no object": "what?",
    "no type": {"question": "q"},
    "an unknown type": {"question": "q", "type": "essay"},
    "a type that is a list": {"question": "q", "type": ["boolean"]},
    "no question": {"type": "boolean"},
    "a blank question": {"question": " \n", "type": "boolean"},
    "a long question": {"question": "q" * 501, "type": "boolean"},
    "a key too many": {"question": "q", "type": "boolean", "options": ["a", "b"]},
    "a key of no type": {"question": "q", "type": "boolean", "hint": "x"},
    "no bounds": {"question": "q", "type": "integer"},
    "bounds that leave one value": {"question": "q", "type": "integer", "minimum": 3, "maximum": 3},
    "bounds in words": {"question": "q", "type": "integer", "minimum": "0", "maximum": 1},
    "bounds beyond what is exact": {"question": "q", "type": "integer", "minimum": 0, "maximum": 2**53},
    "a bound that is true": {"question": "q", "type": "integer", "minimum": True, "maximum": 9},
    "one option": {"question": "q", "type": "choice", "options": ["a"]},
    "equal options": {"question": "q", "type": "choice", "options": ["a", "a"]},
    "many options": {"question": "q", "type": "choice", "options": [f"o{n}" for n in range(65)]},
    "a long option": {"question": "q", "type": "choice", "options": ["a", "b" * 81]},
    "options that are a text": {"question": "q", "type": "choice", "options": "ab"},
    "a text without a bound": {"question": "q", "type": "text"},
    "a text of no length": {"question": "q", "type": "text", "max_chars": 0},
    "a text that is a page": {"question": "q", "type": "text", "max_chars": 1001},
}  # fmt: skip


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_question_is_refused(value: Any) -> None:
    """As an argument of the tool too, with its place."""
    with pytest.raises(Refused):
        parse_question(value)
    with pytest.raises(WebToolError) as refused:
        parse_read_arguments(
            {"url": "https://a.example/", "extract": value}, WebToolCaps(), asking=True
        )
    assert [fault.path for fault in refused.value.faults] == ["/extract"]


def test_a_question_is_no_argument_unless_the_host_says_so() -> None:
    """The schema of the plain tool does not have it, nor does its parser."""
    raw = {"url": "https://a.example/", "extract": {"question": "q", "type": "boolean"}}

    with pytest.raises(WebToolError):
        parse_read_arguments(raw, WebToolCaps())
    assert parse_read_arguments(raw, WebToolCaps(), asking=True).question is not None


def test_what_an_answer_can_tell_is_counted() -> None:
    """Every value of the type, and that the page does not tell; a text has no bound."""
    bits = {kind: bits_of(ask(kind, **more), LINKS) for kind, more in QUESTIONS.items()}

    assert bits["boolean"] == pytest.approx(math.log2(3))
    assert bits["integer"] == 8
    assert bits["choice"] == 2
    assert bits["address"] == 2
    assert 21 < bits["date"] < 22
    assert bits["text"] == math.inf


@pytest.mark.parametrize("kind", list(AnswerKind))
def test_the_instructions_hold_nothing_of_the_question_but_its_bounds(kind: str) -> None:
    """They are the host's; what the asking model wrote stands beside the page."""
    told = instructions(ask(kind, **QUESTIONS[kind]))

    assert "what?" not in told
    assert "null" in told
