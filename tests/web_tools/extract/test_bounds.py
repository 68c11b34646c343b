"""The linear scan that decides what is parsed, how much of it, and where."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web_tools._extract_bounds import (
    MAX_INPUT_BYTES,
    MAX_TAGS,
    MAX_TEXT_BYTES,
    bound,
    cut_text,
    is_small,
)


def test_a_body_is_cut_to_the_input_limit() -> None:
    """More than 8 MiB is not looked at, and that is said."""
    bounded = bound(b"a" * (MAX_INPUT_BYTES + 1), is_html=False)

    assert (MAX_INPUT_BYTES, True) == (len(bounded.body), bounded.truncated)


def test_a_page_is_cut_before_the_tag_that_is_one_too_many() -> None:
    """What stays is whole tags; text bodies may hold any number of `<`."""
    body = b"<b>x" * (MAX_TAGS + 5)

    bounded = bound(body, is_html=True)

    assert (MAX_TAGS, True) == (bounded.body.count(b"<"), bounded.truncated)
    assert bounded.body.endswith(b"<b>x")
    assert bound(body, is_html=False).body == body


@given(st.binary(max_size=200))
def test_a_small_body_is_left_alone(body: bytes) -> None:
    """Nothing is lost within the limits."""
    bounded = bound(body, is_html=True)

    assert (body, False) == (bounded.body, bounded.truncated)


@pytest.mark.parametrize(
    ("body", "small"),
    [
        (b"<p>word</p>" * 1_000, True),
        (b"<img src=x><p>word</p>" * 300, True),
        (b"x" * 97 * 1024, False),
        (b"<b>" * 3_001, False),
        (b"<div>" * 500, False),
        (b"<div>" * 1_000 + b"</div>" * 1_000, False),
        (b"<div>" * 100 + b"</div>" * 100, True),
        (b"<p " + b"a=1 " * 17_000, False),
        (b"&amp;" * 17_000, False),
    ],
)
def test_only_bounded_pages_are_read_in_the_host(body: bytes, small: bool) -> None:
    """Bytes, tags, attributes, entities and depth all count."""
    assert small == is_small(body, is_html=True)


@given(st.text(max_size=50), st.integers(min_value=0, max_value=3))
def test_text_is_cut_at_a_character(piece: str, extra: int) -> None:
    """The cut text is a prefix within the limit; nothing is cut that fits."""
    text = "é" * (MAX_TEXT_BYTES // 2 - 2 + extra) + piece

    kept, dropped = cut_text(text)

    assert text.startswith(kept)
    assert len(kept.encode()) <= MAX_TEXT_BYTES
    assert dropped == (kept != text)


def test_the_scan_is_fast() -> None:
    """A page in the host is scanned in far less time than it takes to parse."""
    body = b"<p class=x>word</p>" * 1_000
    started = time.process_time()
    for _ in range(20):
        is_small(body, is_html=True)

    assert time.process_time() - started < 0.5
