"""Extraction is total: any bytes under any type are a result or one of the two errors."""

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from web_tools._extract_bounds import MAX_TEXT_BYTES
from web_tools._extract_page import extract_page, strip_page
from web_tools.extract import Extracted, UnsupportedContent

URL = "https://site.example/dir/page.html"
TYPES = st.sampled_from(
    [
        None,
        "",
        "text/html",
        "text/html; charset=gbk",
        "text/plain",
        "application/json",
        "image/svg+xml",
        "a/b",
        ";;",
    ]
)
FRAGMENTS = """
    <p> </p> <div> </div> <div\thidden> <table> <tr> <td\tcolspan=3> <th> </table> <ul> <li> </ul> <pre> </pre> <code>
    <a\thref=x> <a\thref=javascript:x> </a> <br> <h2> </h2> <script> </script> <style> <template> <svg> <math> <select>
    <option> <noscript> <base\thref=//h/> <meta\tcharset=utf-16> <meta\thttp-equiv=refresh\tcontent=0;url=x> <!-- -->
    <![CDATA[ ]]> <!doctype\thtml> <img\tsrc=x\talt=y> <nav> <main> <article> <dialog> <font\tcolor=red> <caption>
    &amp; &#xD800; &#0; &notanentity; * _ | ` ``` # > text words \ufdd0 \u202e \x00 \x1b$B < </ <a
    """
PIECES = st.sampled_from(FRAGMENTS.split(" "))
MARKUP = st.lists(PIECES, max_size=40).map("".join)


def _checked(body: bytes, content_type: str | None) -> None:
    try:
        result = extract_page(body, content_type, URL)
    except UnsupportedContent:
        return
    assert isinstance(result, Extracted)
    for value in attrs.asdict(result).values():
        if isinstance(value, str):
            value.encode()
    assert len(result.text.encode()) <= MAX_TEXT_BYTES
    assert result.hidden_chars >= 0
    assert result.refresh != ""
    assert result.refresh_base is None or result.refresh is not None


@settings(max_examples=150)
@example(b"\xff\xfe<\x00p\x00", "text/html")
@example(b"<frameset><frame>", "text/html")
@example(b"<html><frameset></frameset></html>", None)
@given(st.binary(max_size=300), TYPES)
def test_extraction_is_total_over_bytes(body: bytes, content_type: str | None) -> None:
    """No other exception, no lone surrogate, no text over the limit."""
    _checked(body, content_type)


@settings(max_examples=300)
@example("<table><caption>x<table><caption>y")
@example("<a href='http://[x'>y")
@example("<template shadowrootmode=open><p>x")
@given(MARKUP)
def test_extraction_is_total_over_markup(markup: str) -> None:
    """Also over what looks like a page."""
    _checked(markup.encode("utf-8", "surrogatepass"), "text/html; charset=utf-8")


@given(MARKUP)
def test_extraction_is_deterministic(markup: str) -> None:
    """The same bytes give the same result: revisions can be compared."""
    body = markup.replace("\x00", "").encode("utf-8", "surrogatepass")

    assert extract_page(body, "text/html", URL) == extract_page(body, "text/html", URL)


@given(MARKUP)
def test_no_line_break_stand_in_is_left(markup: str) -> None:
    """The noncharacter that stands for `br` while Markdown is written never comes out."""
    body = markup.replace("\x00", "").encode()

    assert "\ufdd0" not in extract_page(body, "text/html; charset=utf-8", URL).text


@given(st.binary(max_size=300), TYPES)
def test_stripping_a_page_is_total(body: bytes, content_type: str | None) -> None:
    """As extraction."""
    try:
        strip_page(body, content_type).text.encode()
    except UnsupportedContent:
        return


@pytest.mark.parametrize("url", ["", "x", "http://[", "https://site.example/"])
def test_a_strange_address_is_no_failure(url: str) -> None:
    """The reader passes valid ones; links then stay out instead of breaking the page."""
    assert (
        "text"
        in extract_page(b"<p><a href=x>text</a> <img src=y alt=z></p>", "text/html", url).text
    )
