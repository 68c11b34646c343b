"""A store in memory keeps texts by their digest, within its bounds."""

import pytest

from citations import MemoryRevisionStore, revision_id


def test_a_text_comes_back_under_its_digest() -> None:
    """And under no other."""
    store = MemoryRevisionStore()

    assert store.put("text") == revision_id("text")
    assert store.get(revision_id("text")) == "text"
    assert store.get(revision_id("other")) is None


def test_what_was_used_least_recently_goes_first() -> None:
    """By number, and by bytes."""
    store = MemoryRevisionStore(max_entries=2, max_bytes=10)
    for text in ("aaaa", "bbbb"):
        store.put(text)

    store.get(revision_id("aaaa"))
    store.put("cc")

    assert store.get(revision_id("bbbb")) is None
    assert store.get(revision_id("aaaa")) == "aaaa"
    store.put("d" * 10)
    assert len(store) == 1


def test_a_text_larger_than_the_store_is_not_kept() -> None:
    """And pushes nothing out."""
    store = MemoryRevisionStore(max_bytes=4)
    store.put("a")

    assert store.put("ééé") is None
    assert store.get(revision_id("a")) == "a"


def test_keeping_twice_counts_once() -> None:
    """The bytes of a text are counted as often as it is there."""
    store = MemoryRevisionStore(max_bytes=8)
    store.put("aaaa")
    store.put("aaaa")

    store.put("bbbb")

    assert len(store) == 2


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, None])
def test_a_bound_is_a_whole_number_from_1(bound: int) -> None:
    """Without one the store would hold whatever a page has."""
    with pytest.raises(ValueError, match="max_entries"):
        MemoryRevisionStore(max_entries=bound)
    with pytest.raises(ValueError, match="max_bytes"):
        MemoryRevisionStore(max_bytes=bound)
