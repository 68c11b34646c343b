"""Runs of words of private texts are found in what goes out, and honest questions hold none."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import private_text
from runtime_pack.address_book import AddressBook
from runtime_pack.addresses import WEB_ADDRESSES
from runtime_pack.answer_links import defused_answer
from runtime_pack.flow import judge_flow
from runtime_pack.label_table import AddressOrigin, LabelPreset, LabelVerdict, SideEffect
from runtime_pack.labels import Label
from runtime_pack.private_text import Leak, PrivateText
from runtime_pack.word_runs import BEGINNING, MOST_RUNS, RunLength, WordRuns

TEXT = (
    "The board has decided to sell the Rotterdam plant to Vandermeer in early spring, "
    "before the works council is told, and to keep the price out of the annual report."
)
RUN = "sell the rotterdam plant to vandermeer in early spring"
SLUG = "https://news.example/" + RUN.replace(" ", "-")


def _private(text: str = TEXT, kind: Leak = Leak.WORKSPACE) -> PrivateText:
    private = PrivateText()
    private.add_text(text, kind)
    return private


@pytest.mark.parametrize(
    "sent",
    [
        RUN,
        f"is it true that they {RUN.upper()}?",
        RUN.replace(" ", ""),
        RUN.replace(" ", "+"),
        RUN.replace(" ", "\n> "),
        "\u200b".join(RUN),
        RUN[::-1],
        base64.b64encode(RUN.encode()).decode(),
        RUN.encode().hex(),
        SLUG,
        "sell the rotter-dam plant to Vander meer, in early... spring",
    ],
)
def test_a_run_of_words_of_a_private_text_is_found(sent: str) -> None:
    """However its words are separated, glued, spelt and written."""
    assert _private().find(sent) is Leak.WORKSPACE
    assert _private(kind=Leak.SECRET).find(sent) is Leak.SECRET


@pytest.mark.parametrize(
    "asked",
    [
        "sale of a plant in Rotterdam",
        "what must a works council be told before a plant is sold",
        "Vandermeer Rotterdam",
        "the annual report",
        "to keep the price out",
        "in early spring, before",
        "how to write a letter to the board about the annual report",
    ],
)
def test_an_honest_question_about_a_private_text_holds_no_run(asked: str) -> None:
    """Its words are there, and not so many of them in a row."""
    assert _private().find(asked) is None


def test_of_a_secret_text_a_shorter_run_is_enough() -> None:
    """Four words of twenty letters, or all of a short text."""
    assert _private().find("Rotterdam plant to Vandermeer") is None
    assert _private(kind=Leak.SECRET).find("Rotterdam plant to Vandermeer") is Leak.SECRET
    short = _private("Attack begins at dawn", Leak.SECRET)
    assert short.find("attack begins at dawn") is Leak.SECRET
    assert not _private("Attack begins at dawn")


def test_a_script_without_spaces_has_runs_too() -> None:
    """Eighteen of its characters are as six words."""
    text = "取締役会は春の初めにロッテルダム工場を売却することを決定した"

    assert _private(text).find(f"q={text[3:24]}") is Leak.WORKSPACE
    assert _private(text).find(text[3:12]) is None


@pytest.mark.parametrize("first", ["private", "public"])
def test_a_run_that_the_user_said_is_not_private(first: str) -> None:
    """Whichever came first; the rest of the text stays so."""
    private = PrivateText()
    texts: dict[str, Any] = {
        "private": lambda: private.add_text(TEXT, Leak.SECRET),
        "public": lambda: private.add_public(f"Find out whether they {RUN}"),
    }
    for name in (first, *({"private", "public"} - {first})):
        texts[name]()

    assert private.find(RUN) is None
    assert private.find("before the works council is told, and to keep the price") is Leak.SECRET


def test_the_words_of_an_address_make_no_run() -> None:
    """Reading it tells its own site what that knows."""
    assert not _private(f"see {SLUG} now")


def _judged(arguments: dict[str, str], known: AddressOrigin | None = None) -> LabelVerdict:
    book = AddressBook()
    if known is not None:
        book.add([SLUG], known)
    found = judge_flow(
        preset=LabelPreset.STANDARD,
        label=Label(integrity="external", confidentiality="workspace"),
        side_effects=[SideEffect.READ_NET],
        destination_args=["url"],
        arguments=arguments,
        book=book,
        reader=WEB_ADDRESSES,
        private=_private(),
    )
    return found.verdict


def test_a_query_with_a_run_is_asked_about_and_an_address_denied() -> None:
    """An address that somebody else named says what its page is about: that is no leak."""
    assert _judged({"query": RUN}) is LabelVerdict.ASK
    assert _judged({"query": "plants in Rotterdam"}) is LabelVerdict.ALLOW
    assert _judged({"a": RUN[:20], "b": RUN[20:]}) is LabelVerdict.ASK
    assert _judged({"url": SLUG}) is LabelVerdict.DENY
    assert _judged({"url": SLUG}, AddressOrigin.USER) is LabelVerdict.ALLOW
    assert _judged({"url": SLUG}, AddressOrigin.SEARCH) is LabelVerdict.ALLOW


def test_a_link_with_a_run_leaves_an_answer_unless_it_is_known() -> None:
    """As a link that carries a private string does, which goes in either case."""
    book = AddressBook()
    for known in (False, True):
        if known:
            book.add([SLUG], AddressOrigin.SEARCH)
        found = defused_answer(f"See {SLUG}", reader=WEB_ADDRESSES, book=book, private=_private())

        assert (found is None) is known


words = st.lists(st.text("abcdefgh", min_size=3, max_size=9), min_size=8, max_size=30)


@settings(max_examples=50)
@given(words, st.data())
def test_any_seven_words_of_enough_letters_are_found(text: list[str], data: st.DataObject) -> None:
    """Wherever they stand in the text."""
    start = data.draw(st.integers(0, len(text) - 8))
    sent = text[start : start + 8]
    private = _private(" ".join(text))

    if sum(map(len, sent)) >= 36:
        assert private.find(" ".join(sent)) is Leak.WORKSPACE


def test_what_is_kept_is_bounded_and_a_longer_passage_is_found_all_the_same() -> None:
    """Of a text with twice as many runs each second one is kept."""
    runs = WordRuns(RunLength(words=6, letters=28))
    text = [f"word{number:06}" for number in range(2 * MOST_RUNS)]
    runs.add(" ".join(text))
    letters = "".join(text[30_000:30_030])
    begun = [letters[at : at + BEGINNING] for at in range(len(letters) - BEGINNING + 1)]

    assert len(runs._runs) <= MOST_RUNS
    assert runs.holds(letters, begun)
    assert not runs.holds(letters[:40], [])


def test_a_run_is_looked_for_by_as_many_letters_as_it_is_kept_by() -> None:
    """The two modules agree, though the one that looks does not load the other."""
    assert private_text._BEGINNING == BEGINNING
