"""Cutting texts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools._cut import cut_characters, cut_utf8

texts = st.text(st.characters(codec="utf-8") | st.sampled_from("a \n\u0301\u200d\U0001f1e6é😀👍🏽"))


@example("e\u0301", 1)
@example("\u0301" * 100, 50)
@given(texts, st.integers(1, 60))
def test_characters_are_a_prefix_within_the_limit(text: str, most: int) -> None:
    """The cut is a beginning of the text, no longer than allowed; a short text stays whole."""
    cut = cut_characters(text, most)

    assert text.startswith(cut)
    assert len(cut) <= most
    assert (len(text) <= most) <= (cut == text)


@example("é", 1)
@example("a" * 60 + "\n" + "b" * 10, 64)
@given(texts, st.integers(1, 120))
def test_bytes_are_a_prefix_within_the_limit(text: str, most: int) -> None:
    """The same counted in UTF-8; something is dropped only when not all of it fits."""
    cut = cut_utf8(text, most)

    assert text.startswith(cut)
    assert len(cut.encode()) <= most
    assert (cut == text) == (len(text.encode()) <= most)


@given(texts, st.integers(1, 60), st.integers(0, 60))
def test_more_room_never_gives_less(text: str, most: int, more: int) -> None:
    """Raising the limit keeps everything that was shown."""
    assert len(cut_characters(text, most)) <= len(cut_characters(text, most + more))


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("abc", 2, "ab"),
        ("xe\u0301y", 2, "x"),
        ("x👍🏽y", 2, "x"),
        ("x👩\u200d🚀y", 2, "x"),
        ("x👩\u200d🚀y", 3, "x"),
        ("x\U0001f1e9\U0001f1eay", 2, "x"),
        ("a\r\nb", 2, "a"),
        ("x\u2764\ufe0fy", 2, "x"),
    ],
)
def test_a_sign_is_never_parted(text: str, most: int, expected: str) -> None:
    """Base and mark, emoji and modifier, the letters of a flag and CR LF stay together."""
    assert expected == cut_characters(text, most)


def test_a_cut_moves_to_a_near_line_end() -> None:
    """Within the last eighth the cut falls on a line; further back it does not."""
    near = "a" * 90 + "\n" + "b" * 50
    far = "a" * 50 + "\n" + "b" * 90

    assert cut_utf8(near, 100) == "a" * 90 + "\n"
    assert far[:100] == cut_utf8(far, 100)
