"""Parts of a long text: offsets, sections, places of words, outlines."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools.arguments import WebToolCaps, parse_read_arguments
from web_tools.errors import WebToolError
from web_tools.paging import (
    Finding,
    FromOffset,
    Heading,
    InSection,
    Outlining,
    Part,
    Range,
    outline_of,
    view_of,
)

TEXT = """# Tides

Opening words.

## The *high* `tide_mark`

See [the table](https://site.example/a_b "x") and max\\_bytes.

```sh
# no heading
## neither
```

### Deep

More.

## Low tide

Last words.
"""
CAPS = WebToolCaps()
texts = st.text(alphabet="ab# \\n*_`[]()é🏳️\u200d🌈", max_size=120)


def shown(part: Part | None, text: str = TEXT, most: int = 10_000) -> str:
    return view_of(text, part, most=most, marked_up=True).text


def test_an_outline_has_the_headings_outside_of_code() -> None:
    """Levels, titles without marks, and sections that reach to the next of their level."""
    found = [
        (h.level, h.title, " ".join(TEXT[h.start : h.end].split())[-6:]) for h in outline_of(TEXT)
    ]

    assert found == [
        (1, "Tides", "words."),
        (2, "The high tide_mark", " More."),
        (3, "Deep", " More."),
        (2, "Low tide", "words."),
    ]
    assert shown(Outlining()).splitlines()[0] == f"0-{len(TEXT)} # Tides"


def test_underlined_headings_count() -> None:
    """As Markdown files are often written; a rule after an empty line is none."""
    text = "Big\n===\n\ntext\n\n---\n\nSmall\n-----\nrow\n"

    assert [(h.level, h.title, text[h.start :][:3]) for h in outline_of(text)] == [
        (1, "Big", "Big"),
        (2, "Small", "Sma"),
    ]


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("Low tide", "## Low tide"),
        ("## low TIDE", "## Low tide"),
        ("the high tide_mark", "## The *high*"),
        ("Dee", "### Deep"),
        ("mark", "## The *high*"),
        ("nothing", ""),
        ("#", ""),
    ],
)
def test_a_section_is_named_by_its_heading(name: str, begins: str) -> None:
    """Exactly, else by its beginning, else by a part; case and marks do not matter."""
    view = view_of(TEXT, InSection(name=name), most=10_000, marked_up=True)

    assert view.found is bool(begins)
    assert view.text.startswith(begins)
    assert "no heading" not in view.text or name in {"the high tide_mark", "mark"}


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ("tide", 3),
        ("max_bytes", 1),
        ("SEE  the\ntable and", 1),
        ("tide_mark", 1),
        ("site.example", 0),
        ("high tide_mark", 1),
        ("İ", 7),
    ],
)
def test_words_are_found_through_their_marks(words: str, places: int) -> None:
    """Escapes, emphasis and targets of links are no part of what a reader sees."""
    view = view_of(TEXT, Finding(words=words), most=10_000, marked_up=True)

    assert (places, bool(places)) == (view.places, view.found)
    assert all(TEXT[piece.start : piece.end] in view.text for piece in view.ranges)


def test_far_places_are_shown_apart() -> None:
    """Each with what stands around it; those that touch are one."""
    text = "needle near needle " + "hay " * 500 + "needle end"
    view = view_of(text, Finding(words="needle"), most=10_000, marked_up=False)

    assert (view.places, len(view.ranges), view.cut) == (3, 2, False)
    assert "[…]" in view.text


def test_what_does_not_fit_is_said() -> None:
    """Passages are whole; of the first its beginning is shown when even that is too long."""
    text = ("needle " + "hay " * 500) * 30
    some = view_of(text, Finding(words="needle"), most=1_500, marked_up=False)
    less = view_of(text, Finding(words="needle"), most=20, marked_up=False)

    assert some.cut
    assert 0 < len(some.text.encode()) <= 1_500
    assert (less.cut, less.places) == (True, 30)
    assert 0 < len(less.text.encode()) <= 20


@given(texts, st.integers(min_value=4, max_value=40))
@example("🏳️‍🌈" * 3, 4)
def test_reading_on_gives_the_whole_text(text: str, most: int) -> None:
    """Pieces from each next offset, put together, are the text; each is within its bytes."""
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        view = view_of(text, FromOffset(offset=offset), most=most, marked_up=True)
        assert len(view.text.encode()) <= most
        assert view.cut is (view.next_offset is not None)
        pieces.append(view.text)
        offset = view.next_offset

    assert text == "".join(pieces)


@pytest.mark.parametrize("beyond", [0, 1, 10**30])
def test_an_offset_at_or_past_the_end_is_empty(beyond: int) -> None:
    """Row 4: an empty range, and nothing more."""
    view = view_of(TEXT, FromOffset(offset=len(TEXT) + beyond), most=100, marked_up=True)

    assert (view.text, view.next_offset, view.cut) == ("", None, False)
    assert view.ranges == (Range(start=len(TEXT), end=len(TEXT)),)


@given(texts, texts.filter(str.strip), st.integers(min_value=1, max_value=50))
def test_every_part_is_a_part(text: str, words: str, most: int) -> None:
    """Ranges are within the text and in order, sections too, and no view is too long."""
    for part in (None, Outlining(), InSection(name=words), Finding(words=words)):
        view = view_of(text, part, most=most, marked_up=True)
        places = [place for piece in view.ranges for place in (piece.start, piece.end)]
        assert places == sorted(places)
        assert all(0 <= place <= len(text) for place in places)
        assert len(view.text.encode()) <= most
        assert all(isinstance(h, Heading) and h.start < h.end <= len(text) for h in view.headings)


@pytest.mark.parametrize(
    "piece",
    ["](", "`", "\\", " ", "# a\n", "a ", "[", '](x "', "> ", "- ", "*", "~", "a\n=\n", "1. "],
)
def test_every_part_ends_soon_on_a_long_text_of_one_sign(piece: str) -> None:
    """What takes time with the square of the length takes minutes here."""
    text = piece * (60_000 // len(piece))
    for part in (Outlining(), Finding(words="a b"), InSection(name="b")):
        assert len(view_of(text, part, most=1_000, marked_up=True).text) <= 1_000


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        ({"offset": 5.0}, set()),
        ({"offset": -1}, {"/offset"}),
        ({"offset": True}, {"/offset"}),
        ({"section": " "}, {"/section"}),
        ({"find": "x" * 201}, {"/find"}),
        ({"outline": "yes"}, {"/outline"}),
        ({"outline": False, "find": "x"}, set()),
        ({"offset": 1, "find": "x"}, {"/find"}),
        ({"extract": {"question": "q", "type": "boolean"}, "outline": True}, {"/outline"}),
        ({"section": "a", "offset": 3, "outline": True}, {"/section", "/outline"}),
    ],
)
def test_one_part_is_asked_for_at_a_time(arguments: dict[str, object], faults: set[str]) -> None:
    """Without paging none of them is a field at all."""
    raw = {"url": "https://a.example/", **arguments}
    try:
        parse_read_arguments(raw, CAPS, asking=True)
        found = set()
    except WebToolError as error:
        found = {fault.path for fault in error.faults}

    assert faults == found
    with pytest.raises(WebToolError):
        parse_read_arguments(raw, CAPS)
