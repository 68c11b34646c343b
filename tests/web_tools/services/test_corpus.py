"""Loading documents and rendering their pages."""

import os
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools._corpus_page import clean_text, heading_at_top, render_html
from web_tools.corpus import (
    Document,
    FolderLimits,
    SkipReason,
    load_folder,
    load_pydoc_topics,
    render_page,
    unique_paths,
)
from web_tools.errors import CorpusError

TAGS = {"html", "head", "meta", "title", "body", "main", "h1", "h2", "h3", "h4", "h5", "h6"} | {
    "p",
    "pre",
    "code",
    "ul",
    "li",
}


class Reading(HTMLParser):
    """An independent reading of a page: balanced tags, their names, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert dict(attrs) in ({}, {"lang": "en"}, {"charset": "utf-8"})
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


lines = st.lists(
    st.sampled_from(
        [
            "Heading",
            "=======",
            "***",
            "# Title",
            "```",
            "   code = 1",
            "   Indented prose.",
            "* item",
            "",
            "<script>alert(1)</script>",
            "</main></body>",
            "&amp; &lt;",
            "<!-- ",
            "\t- x",
        ]
    )
    | st.text(),
    max_size=12,
).map("\n".join)


def words(text: str) -> str:
    """Letters and digits only, in order: what must not get lost or be made up."""
    return "".join(c for c in text if c.isalnum())


@example("T", "a\n" * 3 + "```\n<b>")
@example("</title><script>", "")
@given(st.text(), lines)
def test_pages_are_balanced_and_hold_only_our_tags(title: str, text: str) -> None:
    """Nothing in a document becomes markup, and every character that is a word is kept."""
    page = Reading(render_html(title, text))

    assert page.open == []
    assert page.seen <= TAGS
    name = clean_text(title)
    assert words(name + name + clean_text(text)) == words("".join(page.text))
    render_html(title, text).encode("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name\n====\n\nText", "<h2>Name</h2>\n<p>Text</p>"),
        ("Sub\n---", "<h3>Sub</h3>"),
        ("### Deep", "<h3>Deep</h3>"),
        ("One\ntwo\n\nthree", "<p>One\ntwo</p>\n<p>three</p>"),
        ("   if x:\n       y()", "<pre><code>if x:\n    y()</code></pre>"),
        ("   Called when it is\n   looked up.", "<p>Called when it is\nlooked up.</p>"),
        ("* one\n  more\n* two", "<ul><li>one\nmore</li><li>two</li></ul>"),
        (
            "```py\na = '<'\n\nb\n```\nend",
            "<pre><code>a = &#x27;&lt;&#x27;\n\nb</code></pre>\n<p>end</p>",
        ),
        ("---", "<p>---</p>"),
        ("text\n# Heading", "<p>text</p>\n<h2>Heading</h2>"),
    ],
)
def test_structure_is_kept(text: str, expected: str) -> None:
    """Headings, paragraphs, code, prose and lists come out as what they are."""
    assert f"<h1>T</h1>\n{expected}\n</main>" in render_html("T", text)


def test_rendering_is_linear() -> None:
    """Half a million lines of each kind take no more than seconds."""
    for line in ("x\n", "* x\n", "```\n", "   x\n\n", "=\n", "Name\n====\n", "\n"):
        started = time.process_time()
        render_html("T", line * 200_000)
        assert time.process_time() - started < 10


@example("\r\n\r")
@given(st.text(st.characters()))
def test_clean_text_can_be_written(text: str) -> None:
    """No surrogate, no NUL and no lone carriage return is left."""
    cleaned = clean_text(text)

    cleaned.encode("utf-8")
    assert not set(cleaned) & set("\0\r\x1b\ufffe\U0001ffff")
    assert cleaned == clean_text(cleaned)


def test_a_heading_at_the_top_is_the_title() -> None:
    """Underlined or marked with #; any other beginning is text."""
    assert heading_at_top('The "with" statement\n******\n\nText') == (
        'The "with" statement',
        "Text",
    )
    assert heading_at_top("# Guide #\nText") == ("Guide", "Text")
    assert heading_at_top("Just text\nmore") is None
    assert heading_at_top("") is None


def test_the_embedded_corpus() -> None:
    """Every topic of the standard library, by name, with its heading as title."""
    documents = load_pydoc_topics()

    assert len(documents) > 50
    assert sorted(document.path for document in documents) == [d.path for d in documents]
    by_path = unique_paths(documents)
    assert by_path["/topics/with"].title == 'The "with" statement'
    assert "**********" not in by_path["/topics/with"].text
    assert documents == load_pydoc_topics()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "x",
        "//evil.example/",
        "/a//b",
        "/..",
        "/a/../b",
        "/a/.",
        "/é",
        "/a b",
        "/a?b",
        "/a#b",
        "/%",
        "/%zz",
        "/a\n",
        "/\\",
    ],
)
def test_paths_that_a_client_would_change_are_refused(path: str) -> None:
    """A path must lead to the page that it names, in every client."""
    with pytest.raises(CorpusError):
        Document(path=path, title="t", text="x")


@pytest.mark.parametrize(
    "path", ["/", "/a", "/a/", "/a/b.html", "/%C3%A9", "/...", "/.a", "/a@b:c"]
)
def test_paths_that_are_accepted(path: str) -> None:
    """Segments of RFC 3986."""
    assert path == Document(path=path, title="t", text="x").path


def test_two_documents_cannot_have_one_path() -> None:
    """One of them could never be read."""
    page = Document(path="/a", title="t", text="x")
    with pytest.raises(CorpusError):
        unique_paths([page, page])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    root.mkdir()
    return root


def reasons(folder: Path, limits: FolderLimits | None = None) -> dict[str, str]:
    return {s.name: s.reason.value for s in load_folder(folder, limits=limits).skipped}


def test_a_folder_of_html_md_and_txt(folder: Path) -> None:
    """Three kinds of file are read; titles come from the files; the order is that of the names."""
    (folder / "sub").mkdir()
    (folder / "sub" / "b c.txt").write_text("Plain notes.\n")
    (folder / "a.md").write_text("# Guide\n\nText *here*.\n")
    (folder / "z.HTML").write_text("<title>An &amp; page</title><style>x{}</style><p>One<p>Two")
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("no")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.txt").write_text("no")

    corpus = load_folder(folder)
    assert [(d.path, d.title) for d in corpus.documents] == [
        ("/a.md", "Guide"),
        ("/sub/b%20c.txt", "b c"),
        ("/z.HTML", "An & page"),
    ]
    assert corpus.documents[2].text.split() == ["One", "Two"]
    assert corpus.skipped == ()


def test_an_html_file_is_served_as_its_author_wrote_it(folder: Path) -> None:
    """Its markup is the page, so that reading it is reading a real page."""
    (folder / "a.html").write_text("<h1>Hi</h1><p>there")

    (document,) = load_folder(folder).documents
    assert render_page(document) == "<h1>Hi</h1><p>there"


def test_links_that_leave_the_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    """A link cannot put another file of the machine into the corpus."""
    (tmp_path / "secret.txt").write_text("sentinel")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.txt").write_text("sentinel")
    (folder / "direct.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "relative.txt").symlink_to("../secret.txt")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "chain.txt").symlink_to(folder / "direct.txt")
    (folder / "dangling.txt").symlink_to(folder / "gone.txt")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "kept.txt").write_text("kept")
    (folder / "inside.txt").symlink_to(folder / "kept.txt")

    corpus = load_folder(folder)
    assert [d.path for d in corpus.documents] == ["/inside.txt", "/kept.txt"]
    assert not any("sentinel" in d.text for d in corpus.documents)
    assert reasons(folder) == {
        "chain.txt": "link_leaves_folder",
        "dangling.txt": "unreadable",
        "direct.txt": "link_leaves_folder",
        "linked": "linked_folder",
        "loop.txt": "unreadable",
        "relative.txt": "link_leaves_folder",
    }


def test_a_folder_with_a_common_prefix_is_outside(folder: Path, tmp_path: Path) -> None:
    """A neighbour whose name only begins like the folder is not inside it."""
    (tmp_path / "docs-private").mkdir()
    (tmp_path / "docs-private" / "x.txt").write_text("sentinel")
    (folder / "x.txt").symlink_to(tmp_path / "docs-private" / "x.txt")

    assert reasons(folder) == {"x.txt": "link_leaves_folder"}


def test_a_named_pipe_does_not_hang(folder: Path) -> None:
    """Only regular files are read."""
    os.mkfifo(folder / "pipe.txt")

    assert reasons(folder) == {"pipe.txt": "not_a_regular_file"}


def test_files_over_a_limit_are_listed(folder: Path) -> None:
    """Each bound leaves the rest of the folder readable."""
    (folder / "a.txt").write_text("x" * 10)
    (folder / "b.txt").write_text("x" * 11)
    (folder / "c.txt").write_text("x" * 10)
    (folder / "d.txt").write_text("x" * 5)

    assert reasons(folder, FolderLimits(max_file_bytes=10)) == {"b.txt": "too_large"}
    assert reasons(folder, FolderLimits(max_total_bytes=15)) == {
        "b.txt": "over_limit",
        "c.txt": "over_limit",
    }
    assert reasons(folder, FolderLimits(max_files=2)) == {
        "c.txt": "over_limit",
        "d.txt": "over_limit",
    }


def test_encodings(folder: Path) -> None:
    """Marks and declared charsets are read; what is no text is left out."""
    (folder / "a.txt").write_bytes("Grüße".encode("utf-16"))
    (folder / "b.txt").write_bytes(b"\xef\xbb\xbfsigned")
    (folder / "c.html").write_bytes(b'<meta charset="iso-8859-1"><p>Gr\xfc\xdfe aus dem S\xfcden')
    (folder / "d.txt").write_bytes(b"\x00\x01\x02\x03" * 100)
    (folder / "e.txt").write_bytes(b"")
    (folder / "f.html").write_bytes(b"<script>only()</script>")
    (folder / "g.txt").write_bytes(b"broken \xff\xfe\xfd utf-8, mostly fine text around it")

    corpus = load_folder(folder)
    texts = {d.path: d.text for d in corpus.documents}
    assert texts["/a.txt"] == "Grüße"
    assert texts["/b.txt"] == "signed"
    assert "Grüße aus dem Süden" in texts["/c.html"]
    assert "mostly fine text" in texts["/g.txt"]
    assert {s.name: s.reason for s in corpus.skipped} == {
        "d.txt": SkipReason.BINARY,
        "e.txt": SkipReason.EMPTY,
        "f.html": SkipReason.EMPTY,
    }


def test_names_that_are_no_text(folder: Path) -> None:
    """A name that is not UTF-8 has a path, an order and a printable title."""
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\n.txt"))).write_text("odd")
    (folder / "100%?#.txt").write_text("signs")

    corpus = load_folder(folder)
    assert [(d.path, d.title) for d in corpus.documents] == [
        ("/100%25%3F%23.txt", "100%?#"),
        ("/%FF%0A.txt", "\ufffd\ufffd"),
    ]


def test_an_unreadable_file_is_not_fatal(folder: Path) -> None:
    """Permission is a reason like the others."""
    (folder / "a.txt").write_text("closed")
    (folder / "a.txt").chmod(0)
    (folder / "b.txt").write_text("open")
    if os.access(folder / "a.txt", os.R_OK):
        pytest.skip("this user may read everything")

    assert reasons(folder) == {"a.txt": "unreadable"}


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    """A missing path and a file are errors of the whole call."""
    (tmp_path / "file.txt").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file.txt"):
        with pytest.raises(CorpusError):
            load_folder(path)
