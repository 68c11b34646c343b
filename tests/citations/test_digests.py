"""Document and revision digests."""

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from citations import document_id, revision_id
from citations.digests import is_digest


def test_form_is_sha256_and_lower_case_hex() -> None:
    """A digest is the algorithm, a colon, and the hexadecimal digits."""
    expected = "sha256:" + hashlib.sha256(b"https://example.org/").hexdigest()

    assert expected == document_id("https://example.org/")
    assert is_digest(expected)


@example("\ud83d\ude00")
@example("\udfff")
@given(st.text(st.characters()))
def test_digests_are_total(text: str) -> None:
    """Any text has a digest, lone surrogates included."""
    assert is_digest(revision_id(text))
    assert is_digest(document_id(text))


def test_a_lone_surrogate_counts_as_the_replacement_character() -> None:
    """The digest is the one of the text that the fence shows."""
    assert revision_id("a\ufffdb") == revision_id("a\udc80b")


@given(st.text(), st.text())
def test_equal_only_for_equal_texts(one: str, other: str) -> None:
    """Two texts share a revision exactly when they are the same."""
    assert (one == other) == (revision_id(one) == revision_id(other))


@pytest.mark.parametrize(
    "value",
    ["", "sha256:", "sha256:" + "g" * 64, "SHA256:" + "a" * 64, "sha256:" + "a" * 64 + "\n"],
)
def test_other_forms_are_not_digests(value: str) -> None:
    """Only the exact form counts."""
    assert not is_digest(value)
