"""Cutting tags away without a parser: what it gives, that it is total, that it is linear."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools._extract_strip import strip_markup


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>a</p><p>b</p>", "a\nb"),
        ("<b>fi</b>sh", "fish"),
        ("<script>x<y</script>after", "after"),
        ("<SCRIPT>x</Script >after", "after"),
        ("<style>a{}</style><title>t</title>b", "b"),
        ("<!-- a > b -->c", "c"),
        ("a &lt;b&gt; &amp;amp; c", "a <b> &amp; c"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<p title='x'>  many \n\t spaces </p>", "many\nspaces"),
        ("<br/>x<hr>y", "x\ny"),
        ("İ<SCRIPT>x</SCRIPT>é", "İé"),
        ("text <b", "text"),
        ("<script>never closed", ""),
        ("", ""),
    ],
)
def test_text_between_tags(markup: str, text: str) -> None:
    """Blocks are lines, inline elements are nothing, scripts and comments are no text."""
    assert text == strip_markup(markup)


@example("<")
@example("</")
@example("<!--")
@example("&#xD800;")
@given(st.text(alphabet="<>/!-&;#abSCRIPTscript '\"=\n\u0130", max_size=80))
def test_stripping_is_total(markup: str) -> None:
    """Any text gives text."""
    assert isinstance(strip_markup(markup), str)


SHAPES = {
    "open": "<",
    "open letter": "<a",
    "comment": "<!--",
    "script": "<script>",
    "script end": "<script></script",
    "entity": "&#",
    "named": "&amp",
    "closed": "<p></p>",
    "spaces": " \n",
    "non-ascii": "é<İ>",
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_stripping_is_linear(shape: str) -> None:
    """Twice the page takes about twice the time, whatever it is made of."""
    short, long = shape * (60_000 // len(shape)), shape * (240_000 // len(shape))

    assert _seconds(long) < 12 * _seconds(short) + 0.05


def _seconds(markup: str) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        strip_markup(markup)
        best = min(best, time.process_time() - started)
    return best
