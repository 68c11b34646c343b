"""What the Markdown of a page looks like: links, code, lists, tables, breaks, escapes."""

import pytest

from web_tools._extract_page import extract_page

URL = "https://site.example/dir/page.html"
PROSE = "The harbour town keeps its long record of tides, ships and weather in a plain book. " * 4


def written(inner: str, *, head: str = "") -> str:
    """Markdown of *inner*, which stands before a paragraph of prose."""
    markup = f"<head>{head}</head><body><main>{inner}<p>{PROSE}</p></main></body>"
    text = extract_page(markup.encode(), "text/html", URL).text
    before, found, _ = text.partition(PROSE.strip())
    assert found
    return before.strip("\n")


@pytest.mark.parametrize(
    ("href", "target"),
    [
        ("other.html", "https://site.example/dir/other.html"),
        ("../up", "https://site.example/up"),
        ("/root", "https://site.example/root"),
        ("//cdn.example/x", "https://cdn.example/x"),
        ("?q=1", "https://site.example/dir/page.html?q=1"),
        ("#part", "https://site.example/dir/page.html#part"),
        ("https://other.example/a", "https://other.example/a"),
        ("HTTPS://Other.example/a", "https://Other.example/a"),
        ("/with space", "https://site.example/with%20space"),
        ("/pa(ren)s", "https://site.example/pa%28ren%29s"),
        ("/a|b", "https://site.example/a%7Cb"),
        ("mailto:a@site.example", "mailto:a@site.example"),
    ],
)
def test_links_are_absolute(href: str, target: str) -> None:
    """Row 30: every form of link, once, without angle brackets."""
    assert f"[text]({target})" == written(f'<p><a href="{href}">text</a></p>')


@pytest.mark.parametrize(
    "href",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " \tjava\nscript:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "blob:https://site.example/1",
        "http://[broken",
        "https://site.example/" + "x" * 3_000,
    ],
)
def test_targets_that_lead_nowhere_outside_are_dropped(href: str) -> None:
    """The text of such a link stays, its target does not."""
    result = written(f'<p><a href="{href}">text</a></p>')

    assert "text" in result
    assert "](" not in result


def test_a_base_applies_to_links_and_images() -> None:
    """Row 31."""
    inner = '<p><a href="x">t</a> <img src="y.png" alt="pic"></p>'

    assert (
        written(inner, head='<base href="/base/">')
        == "[t](https://site.example/base/x) ![pic](https://site.example/base/y.png)"
    )


@pytest.mark.parametrize("base", ["javascript:x", "data:,", "http://[", "ftp://x.example/"])
def test_a_base_that_is_no_web_address_is_ignored(base: str) -> None:
    """Links then resolve against the page's own address."""
    result = written('<p><a href="x">t</a></p>', head=f'<base href="{base}">')

    assert result == "[t](https://site.example/dir/x)"


def test_images_without_meaning_go_and_inline_data_leaves_its_words() -> None:
    """An empty alternative text says "decoration"; a data URL is no address."""
    inner = (
        '<p>a<img src="i.png" alt=""><img alt="chart of tides" src="data:image/png;base64,AA">b</p>'
    )

    assert written(inner) == "achart of tidesb"


@pytest.mark.parametrize(
    ("block", "language"),
    [
        ('<pre><code class="language-python">{}</code></pre>', "python"),
        ('<pre class="highlight lang-js">{}</pre>', "js"),
        (
            '<div class="highlight-rust notranslate"><div class="highlight"><pre>{}</pre></div></div>',
            "rust",
        ),
        ('<div class="highlight highlight-source-shell"><pre>{}</pre></div>', "shell"),
        ('<pre data-lang="go">{}</pre>', "go"),
        ('<pre class="sourceCode python"><code>{}</code></pre>', "python"),
        ('<pre><code class="hljs yaml">{}</code></pre>', "yaml"),
        ("<pre>{}</pre>", ""),
        ('<pre><code class="language-none">{}</code></pre>', ""),
    ],
)
def test_code_is_fenced_with_its_language_and_exact_text(block: str, language: str) -> None:
    """Row 34: indentation, blank lines, stars and backticks as they stand; spans leave no mark."""
    code = "def f(*a, **k):\n    if a:\n\n\t\treturn '_x_'"
    marked = code.replace("def", '<span class="k">def</span>').replace("return", "<b>return</b>")

    assert f"```{language}\n{code}\n```" == written(block.format(marked))


def test_code_with_fences_in_it_gets_a_longer_fence() -> None:
    """A page cannot close a code block from inside."""
    assert written("<pre>a\n```\n# b</pre>") == "````\na\n```\n# b\n````"


def test_line_breaks_and_gutters_in_code() -> None:
    """`br` is a line, line numbers are not code."""
    block = '<pre><span class="lineno">1</span>a = 1<br><span class="lineno">2</span>- b</pre>'

    assert written(block) == "```\na = 1\n- b\n```"


def test_every_list_item_has_one_marker() -> None:
    """Row 35: paragraphs, spans and links inside items."""
    inner = "<ul><li><p>one</p></li><li><span>two</span></li><li><a href='/3'>three</a></li></ul>"

    assert written(inner) == "- one\n- two\n- [three](https://site.example/3)"


def test_lists_are_nested_and_numbered() -> None:
    """Nesting by indentation; `start` counts."""
    inner = "<ol start=3><li>c<ul><li>x</li></ul></li><li>d</li></ol>"

    assert written(inner) == "3. c\n   - x\n4. d"


def test_a_table_is_valid() -> None:
    """One cell per column, `|` escaped, breaks and lists on one line."""
    inner = (
        "<table><tr><th>a|b</th><th>c</th></tr><tr><td>x<br>y</td><td><ul><li>p</li></ul></td></tr>"
        "<tr><td colspan=2>wide</td></tr></table>"
    )

    assert written(inner).split("\n") == [
        "| a\\|b | c |",
        "| --- | --- |",
        "| x y | * p |",
        "| wide |  |",
    ]


def test_a_spanned_row_leaves_its_column_empty() -> None:
    """Later cells stay under their own heading."""
    inner = (
        "<table><tr><th>k</th><th>v</th><th>w</th></tr><tr><td rowspan=2>a</td><td>1</td><td rowspan=2>z</td></tr>"
        "<tr><td>2</td></tr><tr><td>b</td><td>3</td><td>4</td></tr></table>"
    )

    assert written(inner).split("\n")[2:] == ["| a | 1 | z |", "|  | 2 |  |", "| b | 3 | 4 |"]


def test_a_table_that_lays_out_a_page_is_not_a_table() -> None:
    """Cells with paragraphs, and tables in tables, become blocks."""
    nested = "<table><tr><td><table><tr><td>k</td><td>v</td></tr></table></td><td><p>A</p><p>B</p></td></tr></table>"

    assert written(nested) == "| k | v |\n| --- | --- |\n\nA\n\nB"


def test_literal_marks_are_escaped() -> None:
    """Text is not read as markup."""
    inner = "<p>2 * 3 * 4, snake_case_name, [x](y)</p><p># no heading</p><p>1. no list</p>"

    result = written(inner)

    assert "2 \\* 3 \\* 4, snake\\_case\\_name" in result
    assert "\\# no heading" in result
    assert "1\\. no list" in result


def test_line_breaks_stay_in_their_place() -> None:
    """In a paragraph, a list item, a quotation and a heading; runs of them are one gap."""
    inner = "<p>a<br>b<br><br><br>c<br></p><ul><li>d<br>e</li></ul><blockquote>f<br>g</blockquote><h2>h<br>i</h2>"

    assert written(inner) == "a\nb\n\nc\n\n- d\n  e\n\n> f\n> g\n\n## h i"


def test_inline_elements_leave_no_space_and_breaks_do() -> None:
    """`fi<b>sh</b>` is one word."""
    assert written("<p>fi<b>sh</b> H<sub>2</sub>O a<wbr>b</p>") == "fi**sh** H2O ab"


def test_headings_lose_their_permalinks() -> None:
    """The pilcrow that documentation tools put there is not part of the title."""
    assert written('<h2>Title<a class="headerlink" href="#t">¶</a></h2>') == "## Title"
