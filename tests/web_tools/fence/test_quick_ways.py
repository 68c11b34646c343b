"""The shortcuts of S2, S4 and S5 decide as the rules do: what they pass over has nothing in it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from web_tools import _fence_tags, _visible_classes, _visible_masks, _visible_quick, _visible_tables
from web_tools._fence_decode import readings
from web_tools._visible_edits import rewrite
from web_tools.fence import neutralise
from web_tools.testing import hostile_texts
from web_tools.visible import _removals, make_visible, remove_invisibles, replace_surrogates

FLAG = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
PIECES = [
    "a\u200b\u200c\u200d\u2060",
    "1️⃣",
    "1️",
    "א\u200e",
    "\u2067x\u2069",
    "می\u200cخ",
    "❤️",
    "क्\u200dष",
    "\xad",
    "⠁⠀",
    "👨\u200d👩",
    "\U0001d173",
    "\U000e0041",
    "葛󠄀",
    "café",
    "\n",
]


@given(
    st.lists(st.sampled_from([*PIECES, FLAG]) | hostile_texts(), min_size=1, max_size=4),
    st.sampled_from([1, 40]),
    st.sampled_from(["", " ", "\u00e9", " " + "x" * 90 + " "]),
)
@settings(max_examples=150, deadline=None)
@example(["a\u200b\u200c"], 40, "")
@example(["1\ufe0f\u20e3"], 40, " ")
@example(["\u05d0\u2067x\u2069"], 40, "x")
@example([FLAG, "\U000e0041"], 40, " ")
def test_the_quick_ways_agree_with_the_rules(pieces: list[str], times: int, between: str) -> None:
    """Few or many, in ASCII or in other scripts, once or in words that repeat."""
    step = remove_invisibles(replace_surrogates(between.join(pieces * times)))

    assert step.after == rewrite(step.before, step.find(step.before))


ROWS = (*_visible_classes.VISIBLE_CLASSES, *_visible_classes.INVISIBLE_CLASSES)
ONE_OF_EACH = sorted(
    {name: chr(next(_visible_tables.code_points(row))[0]) for name, row, _ in ROWS}.values()
)


@given(st.text([*ONE_OF_EACH, "x", " ", "\r", "\0"], max_size=24), st.sampled_from(["", FLAG]))
@settings(max_examples=150, deadline=None)
@example("\u05d0\u202d\u202b\u202c\u202c\u2069\n\u202b\u202c", "")
@example("\u05d0\u2067\u202b\u2069\u202c", "")
@example("\U0001f468\ufe0f\u200d\U0001f469\U0001f3fb\u200d\U0001f469", FLAG)
@example("\u2801\u2060\u2800\u2801", "")
@example("\u200e\u05d0\n\u200e\n\u05d0\u200e", "")
def test_the_masks_agree_with_the_rules(text: str, flag: str) -> None:
    """One code point of each class in any order: the same ones stay, however many there are."""
    whole = flag + text + flag + text

    assert _visible_masks.explained(whole) == rewrite(whole, _removals(whole))


@pytest.mark.parametrize(
    "piece", ["\u202eX\u2060", "\u202c\u2800", "\u05d0\u202b\u202c\n", "\ufe0e"]
)
def test_a_text_full_of_suspects_is_judged_by_masks(piece: str) -> None:
    """Beyond one in six a look at each costs less than a search; in prose it is the other way."""
    dense, prose = (
        piece * 500,
        f"caf\u00e9 {piece} au lait, sans sucre et sans \u00ab rien \u00bb " * 20,
    )

    assert _visible_quick.is_dense(dense, dense.encode())
    assert not _visible_quick.is_dense(prose, prose.encode())


def test_every_suspect_counts_as_one() -> None:
    """A text of one alone is full of it, whichever of the basic plane or of the tags it is."""
    for number, fold in enumerate(_visible_tables.fold_table()):
        if fold == _visible_tables.INVISIBLE and not 0x10000 < number < 0xE0000:
            assert _visible_quick.is_dense(chr(number), chr(number).encode()), hex(number)


def test_every_invisible_code_point_is_a_suspect_and_no_other() -> None:
    """The UTF-8 patterns and the table of classes name the same code points."""
    table = _visible_tables.fold_table()

    for number, fold in enumerate(table):
        if not 0xD800 <= number <= 0xDFFF:
            suspect = _visible_quick.is_suspect(chr(number))
            assert suspect == (fold == _visible_tables.INVISIBLE), hex(number)


def test_every_right_to_left_letter_keeps_direction_controls() -> None:
    """A line with any of them is judged by its line, never by the shortcut for ASCII."""
    for number, name in enumerate(_visible_tables.class_table()):
        if name in "AR":
            text = f"{chr(number)} \u2067x\u2069 " * 3
            assert _visible_quick.without_runs_in_ascii(text.encode()) == text.encode(), hex(number)


@pytest.mark.parametrize(
    "text",
    ["\u2028", "a\u2029", "\x85", "\ufdd0\xe9", "\ufffe\xe9", "\U0001ffff", "\u200b", "\x9b"],
)
def test_what_is_not_plain_is_seen(text: str) -> None:
    """Each kind alone is enough for a closer look."""
    assert make_visible(f"\xe9 {text} \u4e2d").text != f"\xe9 {text} \u4e2d"


NAME = "untrusted-web-content"
ENCODINGS = (
    "{}",
    "&#{0};",
    "&#x{0:x}",
    "%{0:02x}",
    "&amp;#{0};",
    "\\u{0:04x}",
    "\\x{0:02x}",
    "%25{0:02x}",
)


@st.composite
def spelled_tags(draw: st.DrawFn) -> str:
    """An ASCII spelling of the tag, some of its characters escaped, with others around."""
    spelled = ""
    for letter in "<" + draw(st.sampled_from(["", "/", " ", "&nbsp;"])) + NAME:
        form = draw(st.sampled_from(ENCODINGS)) if draw(st.integers(0, 5)) == 0 else "{}"
        spelled += letter if form == "{}" else form.format(ord(letter))
        spelled += draw(st.sampled_from(["", "", "", "", "-", "&shy;", " ", "x"]))
    around = st.sampled_from(["", "a & b", "<p class='x'>", "100% &amp; <b>", "\\ > "])
    return draw(around) + spelled + draw(around)


@given(spelled_tags() | hostile_texts().map(lambda text: text.encode("ascii", "ignore").decode()))
@settings(max_examples=200)
@example("&lt;untrus&#116;ed-web-content")
@example("<untrusted&shy;-web-content")
@example("<untruste&#100;-web-content")
@example("%3C%2Funtrusted-web-content")
@example("&amp;lt;&#117;ntrusted-web-content")
def test_no_tag_in_ascii_is_passed_over(text: str) -> None:
    """What the quick test turns away, no reading has a tag in."""
    walk = _fence_tags._walk()
    found = any(walk.search(_fence_tags._fold(reading.text)) for reading in readings(text))

    assert found == bool(_fence_tags.find_tags(text + " " * 5_000))
    assert not found or _fence_tags._may_spell_tag(text.encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p class='a'>x &amp; y</p> <a href='/?a=1&b=2'>z</a> i < n, 0x1f & b[i]\n", False),
        ("<ul> R&D <b>C:\\dir</b>", False),
        ("un-trusted, web content", False),
        ("un-trusted, <web content", True),
        ("<unt&", True),
        ("&amp;&amp;", True),
    ],
)
def test_ordinary_markup_is_passed_over(text: str, expected: bool) -> None:
    """The quick test is worth its name: it turns away pages and programs shown as text."""
    assert expected == _fence_tags._may_spell_tag(text.encode())


@pytest.mark.parametrize("blanks", [0, 16_382, 16_383, 16_384, 40_000])
def test_a_bracket_is_found_wherever_a_piece_ends(blanks: int) -> None:
    """Each letter behind a bracket is found once, where a long run is read in pieces."""
    text = "\u4e2d" + " " * blanks + "\uff1cu" + " " * 20_000 + "<" + " " * 20_000 + "U\uff1c"

    found = list(_fence_tags._letters_after_brackets(text))

    assert found == [blanks + 2, len(text) - 2]


@pytest.mark.parametrize("shown", ["\uff1cuntrusted-web-conten", "\uff1cuntrus"])
def test_a_name_that_the_end_cuts_off_is_no_tag(shown: str) -> None:
    """At the end of a text the name is whole or is none; the letter that makes it whole counts."""
    before = "\u4e2d" * 5_000

    assert not _fence_tags._may_have_tag(before + shown)
    assert _fence_tags._may_have_tag(before + "\uff1cuntrusted-web-content")


@pytest.mark.parametrize("token", ["]~b]", "]~!b]", "\u05d0 ]\u200e~b]"])
def test_a_closing_bracket_before_a_tilde_is_looked_at(token: str) -> None:
    """The one token without an opening bracket is broken, a mark of direction inside it or none."""
    assert neutralise(token).report.counts == {"tokens": 1}
