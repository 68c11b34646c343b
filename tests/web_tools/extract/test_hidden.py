"""What counts as hidden, and what only looks like it."""

import pytest

from web_tools._extract_page import extract_page
from web_tools.extract import Extracted

URL = "https://site.example/"
PROSE = "The harbour town keeps its long record of tides, ships and weather in a plain book. " * 4


def read(inner: str) -> Extracted:
    return extract_page(f"<main><p>{PROSE}</p>{inner}</main>".encode(), "text/html", URL)


@pytest.mark.parametrize(
    "attributes",
    [
        "hidden",
        "hidden='until-found'",
        "popover",
        "style='display:none'",
        "style='DISPLAY : None !important'",
        "style='color:red; visibility: hidden'",
        "style='opacity:0'",
        "style='opacity: 0.0'",
        "style='font-size:0'",
        "style='font-size: 1px'",
        "style='text-indent:-9999px'",
        "style='position:absolute; left:-10000px'",
        "style='position:fixed;top:-999em'",
        "style='height:0;overflow:hidden'",
        "style='width:1px;height:1px;overflow:hidden'",
        "style='clip:rect(0,0,0,0)'",
        "style='clip-path: inset(50%)'",
        "style='transform: scale(0)'",
        "style='color:transparent'",
        "style='color:rgba(0,0,0,0)'",
        "style='color:#fff;background:#FFFFFF'",
        "style='color:white;background-color:rgb(255,255,255)'",
    ],
)
def test_hidden_text_is_removed_and_counted(attributes: str) -> None:
    """Attributes and inline-style tricks; the count is of characters that are not white space."""
    result = read(f"<div {attributes}><p>Obey this secret</p></div>")

    assert "secret" not in result.text
    assert len("Obeythissecret") == result.hidden_chars


@pytest.mark.parametrize(
    "inner",
    [
        "<div style='background:#fff'><p style='color:#fff'>Obey this secret</p></div>",
        "<table bgcolor=white><tr><td><font color='#ffffff'>Obey this secret</font></td></tr></table>",
        "<dialog>Obey this secret</dialog>",
    ],
)
def test_text_in_the_colour_of_its_ground_is_hidden(inner: str) -> None:
    """The ground may be stated on an ancestor."""
    assert "secret" not in read(inner).text


@pytest.mark.parametrize(
    "attributes",
    [
        "style='opacity:0.5'",
        "style='opacity:1'",
        "style='font-size:10px'",
        "style='font-size:12px'",
        "style='display:block'",
        "style='left:-1px'",
        "style='margin-left:-20px'",
        "style='height:0'",
        "style='color:white'",
        "style='color:white;background:black'",
        "style='color:rgba(0,0,0,0.8)'",
        "style='background:url(display:none)'",
        "style='max-height:100px;overflow:hidden'",
        "style='width:100px;overflow:hidden'",
    ],
)
def test_visible_text_stays(attributes: str) -> None:
    """Styles that only resemble a trick."""
    result = read(f"<div {attributes}><p>Plain visible words here</p></div>")

    assert "Plain visible words" in result.text
    assert result.hidden_chars == 0


def test_a_body_hidden_until_a_script_ran_is_visible() -> None:
    """Pages hide themselves against a flash of unstyled text."""
    markup = f"<html style='visibility:hidden'><body style='opacity:0' hidden><p>{PROSE}</p>"

    assert "harbour" in extract_page(markup.encode(), "text/html", URL).text


def test_open_dialogs_and_details_are_visible() -> None:
    """A closed `details` is one click away and part of the page."""
    inner = "<details><summary>More</summary><p>Folded words</p></details>"

    assert "Folded words" in read(inner).text


def test_nested_hidden_text_is_counted_once() -> None:
    """The count is what left the page, not the sum over elements."""
    result = read("<div hidden>abc<p style='display:none'>def</p></div>")

    assert result.hidden_chars == 6


def test_scripts_are_no_hidden_text() -> None:
    """The count is about text that claims to be content."""
    assert read("<script>var x='text'</script><template>t</template>").hidden_chars == 0
