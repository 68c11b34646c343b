"""Which part of a page is its content."""

import pytest

from web_tools._extract_names import chrome_words, opens_tail, words_present
from web_tools._extract_page import extract_page
from web_tools._extract_prune import Scale
from web_tools.extract import Extracted, TextOrigin

URL = "https://site.example/"
PROSE = "The harbour town keeps its long record of tides, ships and weather in a plain book. " * 4
LINKS = "".join(f"<li><a href='/{n}'>Section {n}</a></li>" for n in range(12))


def read(body: str) -> str:
    return extracted(body).text


def extracted(body: str) -> Extracted:
    return extract_page(f"<body>{body}</body>".encode(), "text/html", URL)


@pytest.mark.parametrize(
    "chrome",
    [
        f"<nav><ul>{LINKS}</ul></nav>",
        f"<header><ul>{LINKS}</ul></header>",
        f"<footer><ul>{LINKS}</ul></footer>",
        f"<aside><ul>{LINKS}</ul></aside>",
        f"<div role=navigation><ul>{LINKS}</ul></div>",
        f"<div class='site-menu'><ul>{LINKS}</ul></div>",
        f"<div id=breadcrumbs><ul>{LINKS}</ul></div>",
        f"<section class=relatedPosts><ul>{LINKS}</ul></section>",
        "<div class='cookie-consent'><p>Section 1: we use cookies on this site. Accept?</p></div>",
        f"<div><h2>You may also like</h2><ul>{LINKS}</ul></div>",
        f"<h2>Related articles</h2><ul>{LINKS}</ul>",
        "<button>Section 1</button>",
        "<form><label>Section 1</label><input></form>",
        "<select><option>Section 1</option></select>",
    ],
)
def test_chrome_goes_and_the_article_stays(chrome: str) -> None:
    """Navigation, banners, forms and what stands beside the content."""
    text = read(f"<div><h1>Tides</h1><p>{PROSE}</p><p>{PROSE}</p>{chrome}</div>")

    assert "Section 1" not in text
    assert text.count("harbour") == 8


@pytest.mark.parametrize(
    "opening", ["<form>", "<div class=sidebar>", "<div role=dialog>", "<aside>"]
)
def test_nothing_is_removed_that_holds_most_of_the_page(opening: str) -> None:
    """A page whose content stands in an element that elsewhere is chrome is still read."""
    result = extracted(f"{opening}<h2>Tides</h2><p>{PROSE}</p><p>{PROSE}</p><p>{PROSE}</p>")

    assert TextOrigin.MAIN is result.origin
    assert result.text.count("harbour") == 12


def test_content_that_bears_a_name_of_chrome_throughout_is_kept() -> None:
    """When nearly all prose went with the chrome, names are not believed on this page."""
    parts = "".join(f"<div class=reviews><p>Part {n}. {PROSE}</p></div>" for n in range(5))
    result = extracted(f"<nav><a href=/>Home</a></nav><h1>Tides</h1>{parts}")

    assert TextOrigin.MAIN is result.origin
    assert result.text.count("harbour") == 20
    assert "Home" not in result.text


def test_a_list_of_links_is_the_content_of_an_index_page() -> None:
    """Where there is no prose, links are what the page is about."""
    text = read(f"<nav><a href=/>Home</a></nav><main><h1>Sections</h1><ul>{LINKS}</ul></main>")

    assert text.count("Section ") == 12
    assert "Home" not in text


def test_every_post_of_a_forum_is_kept() -> None:
    """The root is where the prose is, not the longest post."""
    posts = "".join(
        f"<div class=post><h3>user{n}</h3><p>Reply {n}: {PROSE}</p></div>" for n in range(5)
    )

    text = read(f"<div id=side><a href=/>x</a></div><div id=topic>{posts}</div>")

    assert all(f"Reply {n}" in text for n in range(5))


def test_content_in_noscript_is_the_page() -> None:
    """Forum software gives crawlers the posts there."""
    text = read(
        f"<div id=splash></div><noscript><div><p>{PROSE}</p><p>{PROSE}</p></div></noscript>"
    )

    assert "harbour" in text


def test_a_question_inside_a_heading_button_is_a_heading() -> None:
    """Accordions put their headings into buttons."""
    assert "## Why?" in read(f"<main><h2><button>Why?</button></h2><p>{PROSE}</p></main>")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("site-menu", {"menu"}),
        ("siteNav", {"nav"}),
        ("SITE_FOOTER", {"footer"}),
        ("menus2 x", {"menus"}),
        ("has-sidebar", set()),
        ("search-results", set()),
        ("md:menu", set()),
        ("commentary document", set()),
        ("", set()),
        (None, set()),
    ],
)
def test_names_are_read_by_words(name: str | None, words: set[str]) -> None:
    """A listed word inside another word, or one that speaks of the surroundings, does not count."""
    present = words_present([name] if name else [])

    assert words == chrome_words(name, present=present)


@pytest.mark.parametrize(
    ("heading", "opens"),
    [
        ("Related articles", True),
        ("YOU MAY ALSO LIKE", True),
        ("Comments (12)", True),
        ("3 replies", True),
        ("More from the harbour", True),
        ("Related work on tides in northern harbours and their measured effect on ships", False),
        ("Commentary", False),
        ("Reviewing the design", False),
        ("Tides", False),
        ("", False),
    ],
)
def test_headings_that_end_the_content(heading: str, opens: bool) -> None:
    """Short and of a known form."""
    assert opens == opens_tail(heading)


def test_measurements_are_bounded_by_the_size_of_the_page() -> None:
    """The product of measurements and nodes never exceeds the bound."""
    assert Scale.of(10).left == 4_000
    assert Scale.of(1_000_000).left == 100
    assert Scale(left=0).is_spent
