"""The pinned tables agree with Unicode, and each look-alike is tried once."""

import html.entities
import sys
import unicodedata
from collections.abc import Callable

import pytest

from web_tools import _visible_tables
from web_tools.fence import neutralise
from web_tools.testing import forged_tag_in

FOLD = _visible_tables.fold_table()
CLASSES = _visible_tables.class_table()
NAME = "untrusted-web-content"


def with_fold(fold: str) -> list[str]:
    return [chr(number) for number, name in enumerate(FOLD) if name == fold]


@pytest.mark.parametrize("bracket", with_fold("<"), ids=lambda c: f"U+{ord(c):04X}")
def test_every_bracket_is_broken(bracket: str) -> None:
    """Each code point that folds to a bracket makes a tag, and the tag is broken."""
    text = f"x {bracket}/{NAME}> y"

    body = neutralise(text).body

    assert forged_tag_in(text)
    assert body == f"x (page text, not a fence: /{NAME}> y"


def test_brackets_fold_like_unicode() -> None:
    """Whatever Unicode decomposes to `<` is in the table."""
    for number in range(0x80, _visible_tables.TABLE_SIZE):
        character = chr(number)
        if "<" in unicodedata.normalize("NFKD", character):
            assert FOLD[number] == "<", hex(number)


def test_wide_brackets_are_the_only_ones() -> None:
    """The quick test looks for two brackets beyond the basic plane."""
    assert [bracket for bracket in with_fold("<") if bracket > "\uffff"] == [
        "\U0001d236",
        "\U0001f780",
    ]


@pytest.mark.parametrize("letter", sorted(set(NAME) - {"-"}))
def test_every_letter_is_folded(letter: str) -> None:
    """Each look-alike of a letter, in its place in the name, does not hide the tag."""
    place = NAME.index(letter)
    for shape in with_fold(letter):
        text = f"<{NAME[:place]}{shape}{NAME[place + 1 :]}>"

        assert "not a fence" in neutralise(text).body, f"U+{ord(shape):04X}"


def test_letters_fold_like_unicode() -> None:
    """Every code point whose compatibility form is one letter of the name folds to it."""
    for number in range(0x80, _visible_tables.TABLE_SIZE):
        folded = unicodedata.normalize("NFKD", chr(number)).casefold()
        if len(folded) == 1 and folded in set(NAME) - {"-"} and FOLD[number] not in "\x01\x02":
            assert FOLD[number] == folded, hex(number)


@pytest.mark.parametrize("pair", ["st", "co", "us"])
def test_two_letters_in_one(pair: str) -> None:
    """A code point that reads as two letters of the name counts as both."""
    for shape in with_fold(_visible_tables.TWO_LETTERS[pair]):
        assert "not a fence" in neutralise(f"<{NAME.replace(pair, shape, 1)}").body


def test_everything_skippable_is_skipped() -> None:
    """White space, dashes, punctuation, marks and ignorables between letters hide nothing."""
    for number, fold in enumerate(FOLD):
        if fold in " /\x01" and not 0xD800 <= number <= 0xDFFF:
            text = f"<{chr(number)}untrus{chr(number)}ted-web-content"

            assert "not a fence" in neutralise(text).body, hex(number)


def test_default_ignorables_are_invisible() -> None:
    """The class of S2 holds the whole property, assigned or not."""
    ranges = (
        "AD 34F 61C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F "
        "FEFF FFA0 FFF0-FFF8 1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
    )
    for first, last in _visible_tables.code_points(ranges):
        assert set(FOLD[first : last + 1]) == {"\x01"}


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("R", lambda c: unicodedata.bidirectional(c) in ("R", "AL")),
        ("A", lambda c: unicodedata.bidirectional(c) in ("R", "AL")),
        ("H", lambda c: unicodedata.combining(c) == 9),
        ("h", lambda c: unicodedata.combining(c) == 9),
        ("G", lambda c: unicodedata.name(c).startswith("MONGOLIAN")),
        ("C", lambda c: "IDEOGRAPH" in unicodedata.name(c)),
        ("o", lambda c: unicodedata.category(c) == "Sm"),
        ("S", lambda c: unicodedata.category(c)[0] in "LM"),
    ],
)
def test_classes_agree_with_unicode(name: str, holds: Callable[[str], bool]) -> None:
    """Every assigned member of a context class has the property that names the class."""
    members = [chr(number) for number, found in enumerate(CLASSES) if found == name]

    assert members
    for character in members:
        if unicodedata.category(character) != "Cn":
            assert holds(character), hex(ord(character))


def test_viramas_are_all_there() -> None:
    """No code point with combining class 9 is missing, as far as this interpreter knows."""
    for number in range(sys.maxunicode + 1):
        if unicodedata.combining(chr(number)) == 9:
            assert CLASSES[number] in "Hh", hex(number)


def test_every_named_bracket_is_decoded() -> None:
    """Each named reference that stands for a bracket makes a tag, and the tag is broken."""
    brackets = {name for name, text in html.entities.html5.items() if FOLD[ord(text[0])] == "<"}

    assert {"lt;", "lt", "LT", "Lt;", "lang;", "laquo", "nlt;"} <= brackets
    for name in sorted(brackets):
        assert "not a fence" in neutralise(f"&{name}/{NAME}").body, name
