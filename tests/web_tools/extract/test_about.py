"""What a page says of itself, as data; pages of one article; feeds as entries."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web_tools._extract_about import about_of, linked_data
from web_tools._extract_dom import parse_page
from web_tools._extract_page import extract_page
from web_tools.extract import Extracted, FeedEntry, TextOrigin

URL = "https://site.example/dir/page.html"
PROSE = "The harbour town keeps its long record of tides, ships and weather in a plain book. " * 4


def read(markup: str, content_type: str = "text/html; charset=utf-8") -> Extracted:
    return extract_page(markup.encode(), content_type, URL)


def linked(value: Any) -> str:
    return f'<script type="application/ld+json">{json.dumps(value)}</script>'


ARTICLE = {
    "@type": "NewsArticle",
    "author": [{"@type": "Person", "name": "Ann  Lee"}, {"name": "Bo Ek"}],
    "datePublished": "2024-02-03T04:05:06+0100",
    "dateModified": "2024-02-04",
}


@pytest.mark.parametrize(
    ("head", "author", "published", "modified"),
    [
        (linked(ARTICLE), "Ann Lee, Bo Ek", "2024-02-03T04:05:06+01:00", "2024-02-04"),
        (linked({"@graph": [{"@type": "WebSite"}, ARTICLE]}), "Ann Lee, Bo Ek", "2024-02-03T04:05:06+01:00", "2024-02-04"),
        (linked(ARTICLE | {"author": "By Ann Lee"}), "Ann Lee", "2024-02-03T04:05:06+01:00", "2024-02-04"),
        (linked(ARTICLE | {"author": {"name": ["Ann", "Bo"]}, "datePublished": 5}), "Ann, Bo", None, "2024-02-04"),
        (linked({"@type": "Person", "author": "Nobody"}), None, None, None),
        (linked([[["not", {"nodes": 1}]]]), None, None, None),
        ('<script type="application/ld+json">{"broken</script>', None, None, None),
        ('<meta name=author content="Ann Lee"><meta property="article:published_time" content="2024-02-03">', "Ann Lee", "2024-02-03", None),
        ('<meta property="article:author" content="https://social.example/ann">', None, None, None),
        ('<meta name=citation_author content="Lee, A."><meta name=citation_author content="Ek, B.">', "Lee, A., Ek, B.", None, None),
        ('<meta name=date content="2024-02-30">', None, None, None),
        ('<meta name=date content="20240203">', None, "2024-02-03", None),
        ('<meta name=date content="2024-02-03T25:00:00Z">', None, "2024-02-03", None),
        ('<meta name=date content="3 February 2024">', None, None, None),
        ('<meta name=Author content="&lt;b&gt;">', None, None, None),
    ],
)  # fmt: skip
def test_a_page_is_described_by_its_own_words(
    head: str, author: str | None, published: str | None, modified: str | None
) -> None:
    """JSON-LD first, then metadata; what has not the form of a name or a date is left out."""
    result = read(f"<html><head>{head}</head><body><p>{PROSE}</p></body>")

    assert (author, published, modified) == (result.author, result.published, result.modified)


@pytest.mark.parametrize(
    ("body", "author", "published"),
    [
        ('<a rel="author" href=/a>Ann Lee</a>', "Ann Lee", None),
        ('<time datetime="2024-02-03">3 Feb</time>', None, "2024-02-03"),
        ('<time datetime="2024-02-03">a</time><time datetime="2024-02-04">b</time>', None, None),
        ('<time pubdate datetime="2024-02-03">a</time><time datetime="2024-02-04">b</time>', None, "2024-02-03"),
    ],
)  # fmt: skip
def test_marks_in_the_text_speak_last(body: str, author: str | None, published: str | None) -> None:
    """An author's link and a single time count; of several times none is the page's."""
    result = read(f"<body><p>{body} {PROSE}</p></body>")

    assert (author, published) == (result.author, result.published)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("NewsArticle"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["@type", "@graph", "author", "name", "datePublished"]), inner
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_linked_data_is_read(value: Any) -> None:
    """Whatever JSON stands there, reading it ends with values of the stated types."""
    document = parse_page(linked(value))
    about = about_of(document, linked_data(document))

    assert all(said is None or isinstance(said, str) for said in (about.author, about.published))


def test_an_article_is_read_without_what_stands_beside_it() -> None:
    """A page that declares itself an article: its body, not the comments of the same length."""
    beside = "".join(f"<li><p>Reader {number} says. {PROSE}</p></li>" for number in range(3))
    page = (
        f"<html><head>{linked(ARTICLE)}</head><body><div><div itemprop=articleBody><p>{PROSE}</p>"
        f"<p>{PROSE}</p><figure><img src=a.png alt=Tide><figcaption>Under it</figcaption></figure>"
        f"</div><ul>{beside}</ul></div></body></html>"
    )
    result, other = read(page), read(page.replace("NewsArticle", "WebPage"))

    assert "Reader" not in result.text
    assert "Under it" not in result.text
    assert "![Tide](https://site.example/dir/a.png)" in result.text
    assert "Reader" in other.text
    assert result.coverage is not None
    assert other.coverage is not None
    assert result.coverage < 60 < other.coverage


def test_no_break_spaces_are_spaces() -> None:
    """The writer would spell them as references, and marks beside them as tags."""
    result = read(f"<p>one&nbsp;two <b>Related:&#160;</b>x\xa0y &#xA0;z</p><p>{PROSE}</p>")

    assert result.text.startswith("one two **Related:** x y z")


RSS = """<?xml version="1.0"?><rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/"><channel>
<title>Tides</title><link>https://t.example/</link><item><title>One &amp;amp; two</title><link>/1</link>
<pubDate>Mon, 06 Sep 2021 00:01:00 +0000</pubDate><dc:creator>Ann</dc:creator>
<description><![CDATA[<p>hello <b>you</b></p>]]></description></item>
<item><link>javascript:alert(1)</link></item></channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>At</title><entry><title>E</title>
<link rel="self" href="s"/><link href="/e"/><updated>2020-01-01T00:00:00Z</updated>
<author><name>Bo</name></author><summary>s</summary></entry></feed>"""


def test_a_feed_keeps_its_text_and_gives_its_entries() -> None:
    """Feeds never go through HTML; their entries are data, with addresses of the web only."""
    rss, atom = read(RSS, "application/rss+xml"), read(ATOM, "application/xml")

    assert (rss.text, rss.origin, rss.title) == (RSS, TextOrigin.DECODED, "Tides")
    assert rss.entries == (
        FeedEntry(
            title="One & two",
            url="https://site.example/1",
            published="Mon, 06 Sep 2021 00:01:00 +0000",
            author="Ann",
            summary="hello you",
        ),
    )
    assert atom.text == ATOM
    assert [(entry.title, entry.url, entry.author) for entry in atom.entries] == [
        ("E", "https://site.example/e", "Bo")
    ]


def test_a_feed_that_is_no_good_xml_gives_what_can_be_read() -> None:
    """An undeclared entity, as many feeds have."""
    broken = "<rss><channel><title>T&nbsp;U</title><item><title>One</title></item></channel></rss>"

    assert [entry.title for entry in read(broken, "text/xml").entries] == ["One"]


def test_entities_of_a_feed_are_not_expanded() -> None:
    """A bomb of nested entities, and one that names a file."""
    bomb = (
        '<!DOCTYPE r [<!ENTITY a "x"><!ENTITY b "&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    )
    item = "<item><title>&b;&f;</title></item>"
    result = read(f"{bomb}<rss><channel>{item}</channel></rss>", "application/xml")

    assert all("x" not in (entry.title or "") for entry in result.entries)
    assert all("root:" not in (entry.title or "") for entry in result.entries)


def test_a_large_feed_is_bounded() -> None:
    """However many and long its entries are, the answer has room for them."""
    item = f"<item><title>{'t' * 900}</title><description>{'d' * 5_000}</description></item>"
    result = read(f"<rss><channel>{item * 400}</channel></rss>", "application/rss+xml")

    assert 0 < len(result.entries) < 200
    assert all(len(entry.title or "") <= 300 for entry in result.entries)
    assert len(result.text) > 2_000_000


def test_a_json_body_is_no_feed() -> None:
    """Only bodies of an XML type are looked at."""
    assert read('{"a": "<rss><channel>"}', "application/json").entries == ()
