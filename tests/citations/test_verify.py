"""Quotations are checked against the revision that was read, and nothing similar counts."""

import random
import time
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from citations import (
    Evidence,
    KnowledgeCitation,
    QuoteReason,
    Seen,
    SourceKind,
    Verdict,
    _quotes,
    document_id,
    revision_id,
    verify,
)
from citations._folding import fold
from citations._mentions import find_mentions
from citations._quotes import find_quotes
from citations.quotations import MAX_QUOTES, CheckedQuote

WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
URL = "https://docs.example/guide"
OTHER = "https://other.example/"
PAGE = (
    "# Storage\n\nThe `open()` function **must** be [closed](https://docs.example/x) after use.\n"
    "It isn\u2019t safe\u2014whatever others say\u2014to share 2\\*3 handles between processes.\n\n"
    "Prices rose by 1,000 dollars in the non-toxic sector, and then by -5 degrees overall.\n"
    "He said \u201cnever again will this happen here\u201d and left the environmental meeting.\n"
    "Costs grew by a factor of 3.5 and then fell to 40% of that.\n"
)


def cite(url: str, text: str) -> KnowledgeCitation:
    host = url.partition("://")[2].partition("/")[0]
    return KnowledgeCitation(
        source_id=host,
        document_id=document_id(url),
        path=url,
        revision_id=revision_id(text),
        retrieved_at=WHEN,
    )


def evidence(
    pages: dict[str, str], snippets: dict[str, str] | None = None, **aliases: str
) -> Evidence:
    seen = [
        Seen(citation=cite(url, text), kind=SourceKind.PAGE, aliases=tuple(aliases.values()))
        for url, text in pages.items()
    ]
    found = [
        Seen(citation=cite(url, text), kind=SourceKind.SNIPPET)
        for url, text in (snippets or {}).items()
    ]
    texts = [*pages.values(), *(snippets or {}).values()]
    return Evidence(seen=[*seen, *found], texts={revision_id(text): text for text in texts})


ONE = evidence({URL: PAGE})


def only(answer: str, seen: Evidence = ONE) -> CheckedQuote:
    (quote,) = verify(answer, seen).quotes
    return quote


# ── what verifies ─────────────────────────────────────────────────────────────────────────────

TRUE = {
    "as it stands": "“function **must** be [closed](https://docs.example/x) after use”",
    "as it shows": "“The open() function must be closed after use.”",
    "straight marks": '"The open() function must be closed after use"',
    "single marks": "He wrote 'It isn't safe - whatever others say - to share' there.",
    "German": "„It isn't safe-whatever others say“",
    "German with English close": "„It isn't safe-whatever others say”",
    "French": "«\u00a0It isn't safe – whatever others say\u00a0»",
    "Danish": "»It isn't safe – whatever others say«",
    "Swedish": "”It isn't safe – whatever others say”",
    "Japanese": "「It isn't safe – whatever others say」",
    "nested marks change": "“He said ‘never again will this happen here’ and left”",
    "comma of the sentence": "“It isn’t safe—whatever others say,” it says.",
    "white space": "“It  isn’t\nsafe—whatever\tothers say”",
    "ellipsis": "“function must be closed … share 2*3 handles”",
    "bracketed ellipsis": "“function must be closed [...] share 2*3 handles”",
    "ellipsis at the ends": "“… function must be closed after use …”",
    "stressed by the answer": "“The open() function must be **closed after use**.”",
    "block quote": "> The open() function must be\n> closed after use.\n",
    "block with marks": "> “The open() function must be closed after use.”",
    "block over paragraphs": "> between processes.\n>\n> Prices rose by 1,000 dollars",
    "code inside": "“The `open()` function must be closed”",
    "in a list": "- “The open() function must be closed”\n- more",
    "closed with a straight mark": '“It isn’t safe—whatever others say" is what it says.',
    "not closed": "“The open() function must be closed",
}


@pytest.mark.parametrize("answer", TRUE.values(), ids=TRUE.keys())
def test_a_true_quotation_verifies_in_any_typography(answer: str) -> None:
    """The forms of several languages, Markdown, and what typography changes."""
    quote = only(answer)

    assert quote.verdict is Verdict.VERIFIED
    assert quote.citation == cite(URL, PAGE)
    for match in quote.matches:
        start, end = match.position.start, match.position.end
        assert match.quote.exact == PAGE[start:end]
        assert PAGE[:start].endswith(match.quote.prefix)
        assert PAGE[end:].startswith(match.quote.suffix)


FALSE = {
    "one changed word": "“The open() function should be closed after use.”",
    "another case": "“The open() Function must be closed after use.”",
    "a word left out": "“The open() function must closed after use.”",
    "half a word at the end": "“left the environment”",
    "half a word at the start": "“unction must be closed after use”",
    "half a number": "“Prices rose by 1”",
    "a number cut at its comma": "“000 dollars in the non-toxic sector”",
    "a number cut before its unit": "“by a factor of 3.5 and then fell to 40”",
    "a number cut in its fraction": "“Costs grew by a factor of 3”",
    "half a compound": "“toxic sector, and then by”",
    "a number without its sign": "“5 degrees overall in all”",
    "the sign lost at the start": "“5 degrees overall. He said”",
    "half a contraction": "“t safe—whatever others say”",
    "another number": "“share 23 handles between processes”",
    "parts in the wrong order": "“between processes … function must be closed”",
    "an editor's change": "“[These] function must be closed after use”",
}


@pytest.mark.parametrize("answer", FALSE.values(), ids=FALSE.keys())
def test_what_is_merely_similar_is_not_found(answer: str) -> None:
    """One changed word is another text, and so is half a word or number."""
    quote = only(answer + " [1]\n\n[1] " + URL)

    assert quote.verdict is Verdict.NOT_FOUND


HALF = {
    "2": [
        "2\u202f000", "2\u2009000", "2\u00a0000", "2 000", "2 000 000", "2·10³", "2 · 10³", "2×10",
        "2 × 10³", "2 x 10", "2\\*10", "2^3", "2–3", "2—3", "2−3", "2 – 3", "2\u20093", "2~3",
        "2٫5", "2٬000", "2,5", "2.5", "2’000", "2/3", "2⁄3", "2 ½", "2½", "2 1/2", "2⁻³", "2³",
        "2<sup>3</sup>", "2 ± 1", "2±1", "2\u200b0", "2\u00ad0", "2 %", "2%", "2‰", "2 million", "2万",
    ],
    "2.": ["2.5"],
    "2-": ["2-3"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "number"), [(said, number) for said, all_ in HALF.items() for number in all_]
)
def test_half_a_number_is_another_number(said: str, number: str) -> None:
    """Whatever joins its parts; the whole of it verifies."""
    seen = evidence({URL: f"the reading of the pressure is equal to {number} bar"})
    words = "the reading of the pressure is equal to"

    assert only(f"“{words} {said}”", seen).verdict is Verdict.NOT_FOUND
    assert only(f"“{words} {number} bar”", seen).verdict is Verdict.VERIFIED


BOUNDS = [
    "±5", "± 5", "<5", "< 5", ">5", "> 5", "≤5", "≥5", "≥ 5", "~5", "~ 5", "≈5", "∼5", "+5", "-5", "−5",
    "3–5", "3 – 5", "3-5", "3×5", "3·5", "3^5", "3\u202f5", "3\u200b5", "3٫5", "3.5", ".5", "3/5", "&lt;5",
]  # fmt: skip


@pytest.mark.parametrize("number", BOUNDS)
def test_a_number_without_what_stands_before_it_is_another(number: str) -> None:
    """Its sign, its bound, the first half of it."""
    seen = evidence({URL: f"at {number} degrees are measured in this unit"})

    assert only("“5 degrees are measured in this unit”", seen).verdict is Verdict.NOT_FOUND
    whole = only(f"“at {number} degrees are measured in this unit”", seen)
    assert whole.verdict is Verdict.VERIFIED


@pytest.mark.parametrize("first", ["000", "½", "1/2", ".5", "-5"])
def test_the_rest_of_a_number_is_none(first: str) -> None:
    """Behind a space that groups, or a sign between two digits."""
    page = {"000": "1 000", "½": "1 ½", "1/2": "2 1/2", ".5": "3.5", "-5": "3-5"}[first]
    seen = evidence({URL: f"they paid {page} dollars were paid for the unit"})

    assert only(f"“{first} dollars were paid for the unit”", seen).verdict is Verdict.NOT_FOUND


@pytest.mark.parametrize("gap", [" ", "\u00a0", "\n"])
def test_a_sign_behind_another_number_begins_its_own(gap: str) -> None:
    """Folding keeps no space beside a dash; the text has it."""
    seen = evidence({URL: f"they read 3.14{gap}-5 degrees are measured in this unit"})

    assert only("“-5 degrees are measured in this unit”", seen).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("unseen", ["\u200b", "\u00ad", "\u2060", "\u200b\u200d"])
@pytest.mark.parametrize("digits", ["5{}10", "٥{}١٠"])
def test_what_is_not_seen_joins_no_digits(unseen: str, digits: str) -> None:
    """Two numbers in a row are not one; as it stands it verifies, at its place."""
    page = f"it has a range of {digits.format(unseen)} pages in this long report"
    seen = evidence({URL: page})
    words = "range of {} pages in this long report"

    assert only(f"“{words.format(digits.format(''))}”", seen).verdict is Verdict.NOT_FOUND
    quote = only(f"“{words.format(digits.format(unseen))}”", seen)
    assert quote.verdict is Verdict.VERIFIED
    assert quote.matches[0].quote.exact == page[9:]


@pytest.mark.parametrize(
    "page",
    [
        "> 5 degrees are measured in this unit",
        "words\n> 5 degrees are measured in this unit",
        "<b>5 degrees are measured in this unit",
        "- 5 degrees are measured in this unit",
        "x = 5 degrees are measured in this unit",
        "in 2020 — 5 degrees are measured in this unit",
        "~~5 degrees are measured in this unit~~",
        "in 2020 5 degrees are measured in this unit, 12 times",
    ],
)
def test_what_is_no_part_of_a_number_cuts_none(page: str) -> None:
    """Marks of blocks and tags, lists, and a number before."""
    seen = evidence({URL: page})

    assert only("“5 degrees are measured in this unit”", seen).verdict is Verdict.VERIFIED


# ── what a quotation is from ──────────────────────────────────────────────────────────────────

QUOTED = "The open() function must be closed after use"
BOUND = {
    "bracket": f"“{QUOTED}” [1].\n\n[1] {URL}",
    "bracket before the mark": f"“{QUOTED} [1]”\n\n[1] {URL}",
    "footnote": f"“{QUOTED}”[^a]\n\n[^a]: {URL}",
    "numbered list": f"“{QUOTED}” [2]\n\nSources\n\n1. {OTHER}\n2. [Guide]({URL})",
    "range": f"“{QUOTED}” [1-2]\n\n[1] {OTHER}\n[2] {URL}",
    "two": f"“{QUOTED}” [1][2]\n\n[1] {OTHER}\n[2] {URL}",
    "raised": f"“{QUOTED}”²\n\n[2] {URL}",
    "html": f"“{QUOTED}”<sup>2</sup>\n\n[2] {URL}",
    "link": f"“{QUOTED}” ([Guide]({URL})).",
    "bare": f"“{QUOTED}” ({URL}).",
    "with fragment": f"“{QUOTED}” {URL}#closing",
    "later in the sentence": f"“{QUOTED}”, as the guide [1] says.\n\n[1] {URL}",
    "before it": f"According to [the guide]({URL}), “{QUOTED}”.",
    "the link's own text": f"[“{QUOTED}”]({URL})",
    "block with credit": f"> {QUOTED}\n> — [Guide]({URL})",
    "block, credit under it": f"> {QUOTED}\n\n— {URL}",
    "block, led to": f"The guide ({URL}) says:\n\n> {QUOTED}",
    "block, reference in it": f"> {QUOTED}. [1]\n\n[1] {URL}",
}


@pytest.mark.parametrize("answer", BOUND.values(), ids=BOUND.keys())
def test_a_quotation_is_held_to_the_source_that_is_named_at_it(answer: str) -> None:
    """It verifies in that source; with the texts of two sources changed over it does not."""
    here = evidence({URL: PAGE, OTHER: "Nothing of the kind stands here at all."})
    over = evidence({OTHER: PAGE, URL: "Nothing of the kind stands here at all."})
    named = "1-2" in answer or "[1][2]" in answer

    assert only(answer, here).verdict is Verdict.VERIFIED
    swapped = only(answer, over)
    assert named or swapped.verdict is Verdict.NOT_FOUND
    assert named or swapped.elsewhere == cite(OTHER, PAGE)


@pytest.mark.parametrize("answer", BOUND.values(), ids=BOUND.keys())
def test_a_source_that_was_not_read_is_caught(answer: str) -> None:
    """Whatever else was read."""
    quote = only(answer.replace(URL, "https://never.example/"), ONE)

    assert quote.verdict is Verdict.UNREAD_SOURCE
    assert quote.reason is QuoteReason.NEVER_READ
    assert quote.elsewhere == cite(URL, PAGE)


def test_a_number_that_nothing_explains_is_no_source() -> None:
    """Nor one that is explained in two ways."""
    twice = f"“{QUOTED}” [1]\n\n[1] {URL}\n[1] {OTHER}"

    assert only(f"“{QUOTED}” [7]").reason is QuoteReason.UNKNOWN_REFERENCE
    assert only(twice).reason is QuoteReason.UNKNOWN_REFERENCE
    assert only(twice).verdict is Verdict.UNREAD_SOURCE


def test_without_a_reference_every_page_read_counts() -> None:
    """And the one that has the words is named."""
    pages = evidence({OTHER: "Nothing of the kind.", URL: PAGE})

    assert only(f"“{QUOTED}”", pages).citation == cite(URL, PAGE)
    assert only("“These words stand in no page at all”", pages).verdict is Verdict.NOT_FOUND


def test_an_address_that_led_to_the_page_names_it() -> None:
    """What was asked for before a redirect is the same source."""
    seen = evidence({URL: PAGE}, asked="https://short.example/")

    assert only(f"“{QUOTED}” (https://short.example/)", seen).verdict is Verdict.VERIFIED


def test_what_only_a_search_result_says_is_told_apart() -> None:
    """Read as a snippet, it was not read."""
    seen = evidence({OTHER: "Nothing of the kind."}, {URL: f"Guide\n{QUOTED}, it says"})

    quote = only(f"“{QUOTED}” [1]\n\n[1] {URL}", seen)

    assert quote.verdict is Verdict.SNIPPET_ONLY
    assert quote.citation is not None
    assert quote.citation.path == URL


def test_a_search_result_without_its_text_may_have_the_words() -> None:
    """That its text is not kept is said, not that nobody read it."""
    found = Seen(citation=cite(URL, "Guide"), kind=SourceKind.SNIPPET)

    quote = only(f"“{QUOTED}” {URL}", Evidence(seen=[found], texts={}))

    assert (quote.verdict, quote.reason) == (Verdict.UNREAD_SOURCE, QuoteReason.TEXT_NOT_KEPT)


def test_a_page_that_lost_the_words_of_its_snippet_does_not_verify() -> None:
    """The page was read and does not say it; the snippet does."""
    seen = evidence({URL: "Nothing of the kind."}, {URL: f"Guide\n{QUOTED}, it says"})

    assert only(f"“{QUOTED}” {URL}", seen).verdict is Verdict.SNIPPET_ONLY


def test_swapped_revisions_verify_nothing() -> None:
    """A text under a digest that is not its own counts as not kept."""
    old, new = PAGE, PAGE.replace("must", "need not")
    texts = {revision_id(old): new, revision_id(new): old}
    seen = Evidence(
        seen=[Seen(citation=cite(URL, text), kind=SourceKind.PAGE) for text in (old, new)],
        texts=texts,
    )

    quote = only(f"“{QUOTED}” {URL}", seen)

    assert (quote.verdict, quote.reason) == (Verdict.UNREAD_SOURCE, QuoteReason.TEXT_NOT_KEPT)


def test_each_revision_of_a_page_is_its_own_text() -> None:
    """The citation that is given is that of the revision with the words."""
    new = PAGE.replace("must", "need not")
    texts = {revision_id(PAGE): PAGE, revision_id(new): new}
    seen = Evidence(
        seen=[Seen(citation=cite(URL, text), kind=SourceKind.PAGE) for text in (new, PAGE)],
        texts=texts,
    )

    quote = only(f"“{QUOTED}” {URL}", seen)

    assert quote.citation == cite(URL, PAGE)


# ── short ones, soup and many ─────────────────────────────────────────────────────────────────


def test_a_short_quotation_proves_nothing() -> None:
    """It has no verdict, and an answer of such quotations is not verified."""
    checked = verify("The “open()” of “never again”.", ONE)

    assert [quote.reason for quote in checked.quotes] == [QuoteReason.TOO_SHORT] * 2
    assert not checked.ok


def test_a_short_quotation_that_its_source_does_not_have_is_caught() -> None:
    """A name right behind it claims that it is there."""
    assert only(f"“is quite safe” [1]\n\n[1] {URL}").verdict is Verdict.NOT_FOUND
    assert only(f"“must be closed” [1]\n\n[1] {URL}").verdict is None
    # Named somewhere in the sentence, it may be a word that somebody weighs.
    assert only(f"The “safe way” is told elsewhere, see {URL} for more.").verdict is None


def test_a_place_inside_longer_words_does_not_hide_a_later_one() -> None:
    """The search goes on behind a place that is no end of a word."""
    page = "the environmentalists of the north; the environmental of the north; the environment of the north"

    quote = only("“the environment of the north”", evidence({URL: page}))
    after = only("“north; the environment”", evidence({URL: page}))

    assert quote.verdict is Verdict.VERIFIED
    assert after.verdict is Verdict.VERIFIED
    assert after.matches[0].position.start == page.rindex("north; the")


def test_an_elision_opens_no_quotation() -> None:
    """Its sign is an apostrophe."""
    text = "'Tis what the dogs of the '90s had, as the dogs' owners know."

    assert verify(text, ONE).quotes == ()


def test_a_power_is_no_reference() -> None:
    """A raised number that nothing explains is a part of the text."""
    page = "The area of the square grows with x² wherever it stands."

    assert (
        only("“The area of the square grows with x”² is wrong.", evidence({URL: page})).cited == ()
    )
    assert (
        only("“The area of the square grows with x²”", evidence({URL: page})).verdict
        is Verdict.VERIFIED
    )


def test_pieces_that_every_page_has_are_no_quotation() -> None:
    """Words and letters in order stand in any text."""
    quote = only("“The … must … be … after … use … safe … to … share”")

    assert (quote.verdict, quote.reason) == (Verdict.NOT_FOUND, QuoteReason.PARTS_TOO_SHORT)


def test_signs_that_the_source_itself_has_leave_nothing_out() -> None:
    """Word for word as it stands, short pieces between them prove as much as long ones."""
    said = "“a ... b ... is the syntax of the language”"

    assert only(said, evidence({URL: f"Here {said[1:-1]}."})).verdict is Verdict.VERIFIED
    other = only(said, evidence({URL: "a or b or it is the syntax of the language"}))
    assert other.reason is QuoteReason.PARTS_TOO_SHORT


def test_an_answer_without_quotations_is_not_verified() -> None:
    """Nothing proves nothing."""
    assert verify("", ONE).quotes == ()
    assert not verify("Everything is fine.", ONE).ok


def test_quotations_beyond_the_limit_are_not_found() -> None:
    """None is left unchecked because there are many."""
    checked = verify(f"“{QUOTED}” " * (MAX_QUOTES + 2), ONE)

    assert [quote.reason for quote in checked.quotes[MAX_QUOTES:]] == [QuoteReason.TOO_MANY] * 2
    assert not checked.ok


def test_code_is_no_quotation() -> None:
    """Neither in a block nor in a line; the text around it is looked at."""
    code = '```\nprint("some words of a program here")\n```\n`x = "some words of a program here"` '

    assert only(f"{code}“{QUOTED}”").verdict is Verdict.VERIFIED


def test_the_title_of_a_listed_source_is_no_quotation() -> None:
    """The one that the search gave; another text in its place is judged."""
    seen = evidence({URL: PAGE}, {URL: "The Complete Guide to Closing\nwords"})
    listed = "“{}” [1]\n\n[1] “{}”, {}"

    title = verify(listed.format(QUOTED, "The Complete Guide to Closing", URL), seen)
    other = verify(listed.format(QUOTED, "The Complete Guide to Opening", URL), seen)

    assert title.ok
    assert title.quotes[1].reason is QuoteReason.TITLE
    assert other.quotes[1].verdict is Verdict.NOT_FOUND


WRITTEN = {
    "over two paragraphs": ('"', '"'),
    "typed, over paragraphs": ("“", "”"),
    "typed and closed straight": ("“", '"'),
    "entities": ("&quot;", "&quot;"),
    "numbered entities": ("&#34;", "&#x22;"),
    "named entities": ("&ldquo;", "&rdquo;"),
    "German entities": ("&bdquo;", "&ldquo;"),
    "guillemets as entities": ("&laquo;", "&raquo;"),
    "q": ("<q>", "</q>"),
    "q with a source": ('<q cite="https://x.example/">', "</q>"),
    "blockquote": ("<blockquote>", "</blockquote>"),
    "blockquote of paragraphs": ("<blockquote>\n\n", "\n\n</blockquote>"),
    "upper case": ("<BLOCKQUOTE class=a>", "</BLOCKQUOTE>"),
    "TeX": ("``", "''"),
}


@pytest.mark.parametrize("gap", [" ", "\n\n"])
@pytest.mark.parametrize(("opened", "closed"), WRITTEN.values(), ids=WRITTEN.keys())
def test_marks_are_marks_however_they_are_written(opened: str, closed: str, gap: str) -> None:
    """Beside a true quotation, a false one of each kind is caught, whole; a true one verifies."""
    told = "It isn’t safe—whatever others{}say—to share 2*3 handles"
    answer = f"“{QUOTED}” [1] and it says {opened}{{}}{closed} [1].\n\n[1] {URL}"

    true = verify(answer.format(told.format(gap)), ONE)
    false = verify(answer.format("It isn’t safe—whatever others" + gap + "drink to it all"), ONE)

    assert [quote.verdict for quote in true.quotes] == [Verdict.VERIFIED] * 2
    assert [quote.verdict for quote in false.quotes] == [Verdict.VERIFIED, Verdict.NOT_FOUND]
    written = answer.format(told.format(gap))
    quote = true.quotes[1]
    assert written[quote.start : quote.end] == f"{opened}{told.format(gap)}{closed}"
    assert not false.ok


def test_an_entity_in_a_quotation_is_what_it_shows() -> None:
    """Or what it is, when the page has it so."""
    said = "“Tom &amp; Jerry are the stars&nbsp;of this series”"

    for page in ("Tom & Jerry are the stars of this series.", said.strip("“”")):
        assert only(said, evidence({URL: page})).verdict is Verdict.VERIFIED
    assert only(said).text == "Tom & Jerry are the stars\u00a0of this series"


def test_paragraphs_that_each_open_a_quotation_are_each_one() -> None:
    """As books print a long speech; what is never closed ends with its paragraph."""
    answer = "“The open() function must be closed\n\n“It isn’t safe—whatever others say” it is."

    assert [q.verdict for q in verify(answer, ONE).quotes] == [Verdict.VERIFIED] * 2
    assert only("“The open() function must be closed\n\nNothing else.").verdict is Verdict.VERIFIED


def test_what_code_shows_of_marks_is_no_mark() -> None:
    """Entities, tags, and two apostrophes of a program."""
    code = (
        "`&quot;some words of a program here&quot;` `<q>some words of a program</q>` "
        "``x = ''; y = 'some words of a program'``\n\n```\n<q>some words of a program\n```\n"
    )

    assert only(f"{code}“{QUOTED}”").verdict is Verdict.VERIFIED


@pytest.mark.parametrize("sign", ["&grave;", "&#96;", "&#x60;", "\n&#126;~~\n"])
def test_an_entity_hides_nothing_as_code(sign: str) -> None:
    """It shows a backtick, and makes none."""
    assert only(f"{sign}“made up words of nobody at all”{sign}").verdict is Verdict.NOT_FOUND


# ── properties ────────────────────────────────────────────────────────────────────────────────

_WORDS = [
    "alpha",
    "beta",
    "gamma",
    "délta",
    "épsilon",
    "naïve",
    "ﬁnal",
    "οὐδέν",
    "слово",
    "कार्य",
    "漢字仮名",
    "isn’t",
    "don't",
    "x²",
    "well-known",
    "re-sign",
    "1,000",
    "3.14",
    "-5",
    "“so”",
    "(thus)",
    "*star*",
    "snake_case",
    "&",
    "50%",
]
_SPACES = (" ", "  ", "\n", "\u00a0", " \u200b", "\t")


def _quoted(seed: int) -> tuple[str, str, int, int]:
    """A page, a quotation of it in other typography, and where in the page it stands."""
    chance = random.Random(seed)
    words = chance.choices(_WORDS, k=chance.randint(8, 60))
    gaps = chance.choices(_SPACES, k=len(words))
    first = chance.randint(0, len(words) - 6)
    last = chance.randint(first + 5, len(words))
    page = "".join(word + gap for word, gap in zip(words, gaps, strict=True))
    start = sum(map(len, words[:first])) + sum(map(len, gaps[:first]))
    end = start + sum(map(len, words[first:last])) + sum(map(len, gaps[first : last - 1]))
    said = unicodedata.normalize(chance.choice(["NFC", "NFD"]), " ".join(words[first:last]))
    changes: dict[str, str | int | None] = {
        "’": chance.choice("'’‘"),
        "“": chance.choice("‘“'"),
        "-": chance.choice("-‐–"),
    }
    return page, said.translate(str.maketrans(changes)), start, end


def quoted() -> st.SearchStrategy[tuple[str, str, int, int]]:
    return st.integers(0, 2**40).map(_quoted)


@settings(max_examples=60, deadline=None)
@given(quoted())
def test_a_true_quotation_in_other_typography_verifies_at_its_place(
    case: tuple[str, str, int, int],
) -> None:
    """Its offsets are those of the original text: what stands there folds to the same words."""
    page, said, start, end = case
    assume(len(fold(said).text) >= 24)

    answer = f"> {' '.join(said.split())}\n\n— {URL}"
    quote = only(answer, evidence({URL: page}))

    assert quote.verdict is Verdict.VERIFIED
    (match,) = quote.matches
    found = page[match.position.start : match.position.end]
    assert match.quote.exact == found
    assert fold(found).text.strip(" '") == fold(page[start:end]).text.strip(" '")


@settings(max_examples=60, deadline=None)
@given(quoted(), st.data())
def test_a_changed_word_never_verifies(
    case: tuple[str, str, int, int], data: st.DataObject
) -> None:
    """Whichever word, and whatever it becomes that the page has not."""
    page, said, _, _ = case
    words = said.split()
    at = data.draw(st.integers(0, len(words) - 1))
    letters = [place for place, sign in enumerate(words[at]) if sign.isalnum()]
    assume(letters)
    place = data.draw(st.sampled_from(letters))
    new = data.draw(st.sampled_from("zqŽ7"))
    assume(new != words[at][place])
    words[at] = words[at][:place] + new + words[at][place + 1 :]
    changed = " ".join(words)
    assume(fold(changed).text not in fold(page).text)

    quote = only(f"> {changed}\n\n— {URL}", evidence({URL: page}))

    assert quote.verdict is not Verdict.VERIFIED


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
@example("“" * 50 + "[1]" * 50, "“")
@example("> \n" * 20 + "\ud800", "\ud800" * 30)
@example("[" * 40 + "](https://a.example/(" * 5, "a")
def test_verify_is_total(answer: str, page: str) -> None:
    """Any answer and any page; what is found is what stands there."""
    seen = evidence({URL: page})

    for quote in verify(answer, seen).quotes:
        for match in quote.matches:
            text = seen.text_of(seen.seen[0])
            assert text is not None
            assert match.quote.exact == text[match.position.start : match.position.end]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab \n-–'“.…*_[]()#>\\`é\u0301\u00ad")), st.booleans())
def test_folding_loses_no_letter(text: str, markdown: bool) -> None:
    """The letters stay in their order, and each leads back to where it stood."""
    folded = fold(text, markdown=markdown)

    kept = [sign for sign in folded.text if sign.isalnum()]
    there = [sign for sign in unicodedata.normalize("NFD", text) if sign.isalnum()]
    assert kept == there
    for at, sign in enumerate(folded.text):
        start, end = folded.origin(at, at + 1)
        assert 0 <= start < end <= len(text)
        if sign.isalnum():
            assert sign in unicodedata.normalize("NFD", text[start:end])


HOSTILE = {
    "opening marks": ("“", "a"),
    "marks without end": ('" ', "a"),
    "entities": ("&quot;a ", "a "),
    "tags": ("<q>a\n\n", "a "),
    "tags in tags": ("<q ", "a "),
    "TeX": ("``a ", "a "),
    "open paragraphs": ("“a\n\nb's ", "a "),
    "marks alone": ('"', "a "),
    "brackets": ("[", "["),
    "addresses": ("https://a.example/(", "a"),
    "backticks": ("` `` ", "`"),
    "block quotes": ("> a\n\n", "> "),
    "references": ("[1]", "1"),
    "ellipses": ("“aaaaaaaa … aaaaaaaa … aaaaaaaa” ", "aaaaaaaa "),
    "the same letter": ("“aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa” ", "a"),
    "accents": ("“é", "é"),
    "lists": ("1. https://a.example/ “a\n", "a\n"),
}


@pytest.mark.parametrize(("piece", "page"), HOSTILE.values(), ids=HOSTILE.keys())
def test_work_is_linear_in_answer_and_page(piece: str, page: str) -> None:
    """Twice as much takes no more than about twice as long; generous, and the better of two."""

    def seconds(size: int) -> float:
        answer, text = piece * (size // len(piece)), page * (size // len(page))
        seen = evidence({URL: text})
        begun = time.process_time()
        verify(answer, seen)
        return time.process_time() - begun

    small = min(seconds(3_000) for _ in range(2))
    large = min(seconds(12_000) for _ in range(2))

    assert large <= 12 * small + 0.3


NESTED = (
    'The clerk said "the door of the harbour is open" and went on to say that "no lamp may burn".'
)


@pytest.mark.parametrize(
    "answer",
    [
        'It says "The clerk said "the door of the harbour is open" and went on".',
        'It says "The clerk said \\"the door of the harbour is open\\" and went on".',
        f'"{NESTED}"',
    ],
)
def test_a_quotation_inside_a_quotation_belongs_to_it(answer: str) -> None:
    """Straight marks look alike at both ends; where they stand says which they are."""
    checked = verify(answer, evidence({URL: NESTED})).quotes

    assert [quote.verdict for quote in checked][:1] == [Verdict.VERIFIED]
    assert "and went on" in checked[0].text


@pytest.mark.parametrize(
    "answer",
    [
        'It says "so "every boat has to burn at dawn" indeed',
        'It says "The clerk said "every boat has to burn at dawn" and went on".',
        ' "He said &quot;every boat has to burn at dawn&quot; and "the door of the harbour is open"',
        '"a "\u200bevery boat has to burn at dawn" and "the door of the harbour is open"',
        '"a "**every boat has to burn at dawn** now" and "the door of the harbour is open"',
        'A "b "every boat has to burn at dawn" and (c) "the door of the harbour is open"',
    ],
)
def test_no_words_hide_behind_a_mark_that_is_left_open(answer: str) -> None:
    """What an opening mark begins is judged, whatever an earlier one was closed with."""
    checked = verify(answer, evidence({URL: NESTED}))

    assert not checked.ok
    assert any("every boat" in quote.text for quote in checked.judged)


@pytest.mark.parametrize("piece", ['"', '"a ', ' "a', "“", '“"', "'a ", '"a" ', '«"', ' "a “b'])
def test_marks_alone_are_looked_at_a_bounded_number_of_times(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at marks of twice the text are at most a little more than twice as many."""
    looks = [0, 0]
    # A counter, not a stand-in: the private name is of the module under test.
    for name in ("_may_open", "_may_close", "_only_opens"):
        real = getattr(_quotes, name)

        def counted(*given: Any, real: Any = real) -> Any:
            looks[-1] += 1
            return real(*given)

        monkeypatch.setattr(_quotes, name, counted)
    for number, size in enumerate((2_000, 4_000)):
        looks[-1] = 0
        list(find_quotes(piece * (size // len(piece)), find_mentions("")))
        looks[number] = looks[-1]

    assert looks[1] <= 2.2 * looks[0] + 20
