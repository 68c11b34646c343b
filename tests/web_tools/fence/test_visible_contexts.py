"""The contexts of S2 in one pattern are those of its classes, for each kind of neighbour."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from web_tools import _visible_classes, _visible_contexts, _visible_quick, _visible_tables
from web_tools._visible_edits import rewrite
from web_tools.visible import remove_invisibles

# Direction and flags are no matter of neighbours.
LINEWISE = "MOIpqXc"


def code_points(names: str) -> list[list[tuple[int, int]]]:
    rows = (*_visible_classes.VISIBLE_CLASSES, *_visible_classes.INVISIBLE_CLASSES)
    return [list(_visible_tables.code_points(row)) for name, row, _ in rows if name in names]


def ends(names: str) -> list[str]:
    """The first and the last code point of each class: the last is mostly beyond the basic plane."""
    return [
        chr(number)
        for ranges in code_points(names)
        for number in {ranges[0][0], ranges[-1][1]}
        if number != ord("\n")
    ]


VISIBLE = [
    "x",
    "\u00e9",
    " ",
    *ends("".join(name for name, _, _ in _visible_classes.VISIBLE_CLASSES)),
]
HIDDEN = ends("".join(n for n, _, _ in _visible_classes.INVISIBLE_CLASSES if n not in LINEWISE))


def agree(text: str) -> None:
    """The pattern removes what judging by classes removes, in either of its forms."""
    step = remove_invisibles(text)
    by_classes = rewrite(text, step.find(text))

    assert step.after == by_classes
    assert _visible_contexts.unexplained(wide=True).sub("", text) == by_classes
    if all(character < "\U00010000" for character in text):
        assert _visible_contexts.unexplained(wide=False).sub("", text) == by_classes


def test_every_pair_of_neighbours_explains_the_same() -> None:
    """One or two invisible characters of each class, between visible ones of any two classes."""
    threes = itertools.product(VISIBLE, HIDDEN, VISIBLE)
    fours = itertools.product(VISIBLE[::2], HIDDEN, HIDDEN, VISIBLE[::2])
    lines = ["".join(line) for line in itertools.chain(threes, fours)]

    agree("\n".join(lines))
    agree("\n".join(line for line in lines if max(line) < "\U00010000"))


@given(st.lists(st.sampled_from(VISIBLE + HIDDEN), max_size=12).map("".join))
@settings(max_examples=100)
def test_longer_sequences_agree(text: str) -> None:
    """Whatever stands in a row, emoji sequences among it."""
    agree(text)


def test_a_text_in_pieces_is_judged_as_a_whole() -> None:
    """Where a long text is taken apart, no sequence is."""
    for length in (16_382, 16_383, 16_384, 16_385):
        agree("x" * length + " \U0001f468\u200d\U0001f469 \u200d" * 3_000)


def test_no_code_point_has_two_classes() -> None:
    """A class is what its rows say, so a pattern may be made of rows."""
    rows = (*_visible_classes.VISIBLE_CLASSES, *_visible_classes.INVISIBLE_CLASSES)
    ranges = sorted(r for _, row, _ in rows for r in _visible_tables.code_points(row))

    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


def test_whatever_is_no_matter_of_neighbours_is_seen() -> None:
    """Each direction control and the end of a flag send a text to the rules on lines."""
    names = LINEWISE.replace("X", "")  # an override is never kept, whoever judges
    numbers = [n for ranges in code_points(names) for a, b in ranges for n in range(a, b + 1)]

    assert len(numbers) > len(names)
    assert not any(_visible_quick.are_neighbours_enough(f"x{chr(number)}") for number in numbers)
    assert _visible_quick.are_neighbours_enough("x\u200d\ufe0f")
