"""Numbered references."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from citations import KnowledgeCitation, document_id, number_references, revision_id

WHEN = datetime(2026, 11, 30, 12, tzinfo=UTC)


def cite(url: str, text: str = "text", later: int = 0) -> KnowledgeCitation:
    return KnowledgeCitation(
        source_id="example.org",
        document_id=document_id(url),
        path=url,
        revision_id=revision_id(text),
        retrieved_at=WHEN + timedelta(seconds=later),
    )


pages = st.integers(0, 5).map(lambda n: f"https://example.org/{n}")
uses = st.lists(st.builds(cite, pages, st.sampled_from("ab"), st.integers(0, 9)))


@given(uses)
def test_numbers_follow_first_use(used: list[KnowledgeCitation]) -> None:
    """Numbers run from 1 without gaps, in the order in which texts are first used."""
    references = number_references(used)

    expected = list(dict.fromkeys((c.document_id, c.revision_id) for c in used))
    listed = [(r.citation.document_id, r.citation.revision_id) for r in references]
    assert expected == listed
    assert list(range(1, len(references) + 1)) == [r.number for r in references]


@given(uses)
def test_every_use_finds_its_number(used: list[KnowledgeCitation]) -> None:
    """A citation that was numbered is found, also when it was fetched again later."""
    references = number_references(used)

    for citation in used:
        number = references.number_of(citation)
        assert number is not None
        assert references.items[number - 1].citation.revision_id == citation.revision_id


@given(uses, uses)
def test_more_uses_never_renumber(
    first: list[KnowledgeCitation], then: list[KnowledgeCitation]
) -> None:
    """What is numbered stays so when the answer grows."""
    assert (
        number_references(first).items
        == (number_references(first + then).items[: len(number_references(first))])
    )


def test_a_duplicate_keeps_the_first_time() -> None:
    """The same revision fetched twice is one reference, with the first fetch."""
    again = cite("https://example.org/", later=60)
    references = number_references([cite("https://example.org/"), again])

    assert [cite("https://example.org/")] == [r.citation for r in references]
    assert references.number_of(again) == 1


def test_another_revision_is_another_reference() -> None:
    """A page that changed between two reads is cited as the two texts it was."""
    assert (
        len(number_references([cite("https://example.org/"), cite("https://example.org/", "b")]))
        == 2
    )


def test_an_unlisted_citation_has_no_number() -> None:
    """Asking for what was never used gives None, not a number."""
    assert number_references([]).number_of(cite("https://example.org/")) is None


def test_plain_text_lines() -> None:
    """Number, URL, time and the start of the revision on one line."""
    assert (
        number_references([cite("https://example.org/a")]).to_text()
        == "[1] https://example.org/a (retrieved 2026-11-30T12:00:00Z, revision sha256:982d9e3eb996)"
    )
    assert number_references([]).to_text() == ""


@example("&copy;=1>)](x)")
@example("\\")
@example("_a_*b*`c`<d>")
@example("&amp;")
@given(st.text(st.characters(codec="ascii", min_codepoint=0x21, exclude_characters="#\x7f")))
def test_markdown_links_lead_where_the_citation_says(rest: str) -> None:
    """An independent CommonMark parser sees one list item with exactly that link."""
    url = f"https://example.org/{rest}"
    parser = MarkdownIt()

    tokens = parser.parse(number_references([cite(url)]).to_markdown())
    inline = next(token for token in tokens if token.type == "inline")
    links = [child for child in inline.children or [] if child.type == "link_open"]
    assert [parser.normalizeLink(url)] == [link.attrs["href"] for link in links]
    assert tokens[0].type == "ordered_list_open"
