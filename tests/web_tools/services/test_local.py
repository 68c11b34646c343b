"""The local provider: queries, ranking, excerpts, the index file."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools.arguments import Recency, SearchRequest, WebToolCaps
from web_tools.corpus import Document, load_pydoc_topics
from web_tools.errors import IndexUnusable, ProviderFault, SearchProviderError
from web_tools.providers._excerpt import EXCERPT_CHARS, make_excerpt
from web_tools.providers._query import MAX_TERMS, parse_terms
from web_tools.providers.local import LocalSearchProvider, build_index
from web_tools.search import SearchHit, WebSearchProvider, run_search

BASE = "http://127.0.0.1:8000"
PAGES = (
    Document(path="/kettle", title="Kettles", text="A kettle boils water. It whistles."),
    Document(path="/tea", title="Tea", text="Boil water in a kettle, then add leaves to the pot."),
    Document(path="/cat", title="Cats", text="A cat sleeps. Straße, 猫 and हिन्दी are words too."),
)


def find(provider: WebSearchProvider, query: str, limit: int = 10) -> Sequence[SearchHit]:
    return asyncio.run(provider.search(SearchRequest(query=query, limit=limit)))


def paths(pages: Sequence[Document], query: str, limit: int = 10) -> list[str]:
    with LocalSearchProvider.from_documents(pages, base_url=BASE) as provider:
        return [hit.url.removeprefix(BASE) for hit in find(provider, query, limit)]


def test_a_match_in_the_title_comes_first() -> None:
    """The page that is about the word beats the page that mentions it."""
    assert paths(PAGES, "kettle") == ["/kettle", "/tea"]
    assert paths(PAGES, "kettle", limit=1) == ["/kettle"]


def test_words_are_found_in_other_forms_and_scripts() -> None:
    """English endings, accents, and scripts with marks."""
    assert paths(PAGES, "BOILING kettles") == ["/kettle", "/tea"]
    assert paths(PAGES, "straße") == ["/cat"]
    assert paths(PAGES, "हिन्दी") == ["/cat"]
    assert paths(PAGES, "猫") == ["/cat"]
    assert paths(PAGES, "dog") == []


def test_a_common_word_counts_in_a_title() -> None:
    """A word of nearly every page still finds the page that is named after it."""
    with LocalSearchProvider.from_documents(load_pydoc_topics(), base_url=BASE) as provider:
        hits = find(provider, "What does the with statement do?", limit=3)

    assert hits[0].url == f"{BASE}/topics/with"
    assert hits[0].title == 'The "with" statement'
    assert "statement" in hits[0].snippet


def test_the_order_is_fixed() -> None:
    """Equal pages stand in the order of the documents."""
    same = [Document(path=f"/{n}", title="Same", text="kettle") for n in range(60)]

    assert [f"/{n}" for n in range(50)] == paths(same, "kettle", limit=100)


HOSTILE = [
    '"',
    '""',
    'kettle"',
    '"kettle" OR "cat',
    "kettle AND NOT cat",
    "NEAR(kettle cat, 2)",
    "title: kettle",
    "{title body} : kettle",
    "- kettle",
    "^kettle",
    "kettle*",
    "kettle + water",
    "(((((kettle",
    "kettle')) --",
    "'; DROP TABLE pages; --",
    "NOT",
    "AND OR NOT",
    "*",
    "\\",
    "kettle\u0301",
    "\u0301\u0302",
    "😀",
    "a." * 900,
    "kettle " * 200,
    "\t\u3000kettle\u2028",
    "pages",
    "rank MATCH 'x'",
    "\ufdd0\ufffe",
    "\x01\x02",
]


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_are_text(query: str) -> None:
    """Quotes, operators, column filters and NEAR are looked for, never obeyed."""
    started = time.process_time()
    found = set(paths(PAGES, query))

    # Nothing is subtracted or filtered: a page with any of the words is found.
    assert ("kettle" in query) <= ({"/kettle", "/tea"} <= found)
    assert time.process_time() - started < 2


@example('"')
@example("a\u0301")
@example("NEAR(" * 30)
@given(st.text(min_size=1))
def test_any_query_is_answered_or_refused(query: str) -> None:
    """Total: hits, none, or QUERY_REFUSED; never an error of the database."""
    refused = None
    try:
        paths(PAGES, query)
    except SearchProviderError as error:
        refused = error.fault
    unusable = not query.strip() or "\0" in query or any("\ud800" <= c <= "\udfff" for c in query)
    assert refused in (
        {ProviderFault.QUERY_REFUSED} if unusable else {None, ProviderFault.QUERY_REFUSED}
    )


@pytest.mark.parametrize(
    "query",
    [
        "",
        "  ",
        "a\0b",
        "a\ud800",
        "k" * 2001,
        " ".join(f"w{n}" for n in range(MAX_TERMS + 1)),
        "x " * 5000,
    ],
)
def test_queries_that_are_refused(query: str) -> None:
    """Blank, NUL, lone surrogates, 10k characters, more than 32 distinct words."""
    with pytest.raises(SearchProviderError) as caught:
        paths(PAGES, query)
    assert caught.value.fault is ProviderFault.QUERY_REFUSED
    assert not caught.value.retryable


def test_repeats_do_not_count_as_terms() -> None:
    """32 distinct words are taken, however often each is written."""
    words = [f"w{n}" for n in range(MAX_TERMS)]

    assert len(parse_terms(" ".join(words * 5)).phrases) == MAX_TERMS
    assert len(parse_terms("Kettle kettle, KETTLE? (kettle)").phrases) == 1


@given(st.text(st.sampled_from("ab\"'(){}:*^+-~ \u0301é9_.,"), max_size=40).filter(str.strip))
def test_expressions_are_quoted_words_joined_by_or(query: str) -> None:
    """Nothing but OR stands outside of the quotes."""
    match = parse_terms(query).to_match()

    outside = match.split('"')[0::2]
    assert set(outside) <= {"", " OR "}


def test_pieces_stay_together_when_short() -> None:
    """A dotted name is one phrase; text without spaces is its words."""
    assert parse_terms("str.format").phrases == (("str", "format"),)
    assert parse_terms("a/b/c/d/e").phrases == (("a",), ("b",), ("c",), ("d",), ("e",))
    assert parse_terms('print("a,b")').phrases == (("print",), ("a",), ("b",))
    assert parse_terms("_-.'").phrases == ()


def test_a_word_repeated_a_thousand_times_is_quick() -> None:
    """The shape that keeps snippet() busy for half a minute."""
    pages = [Document(path=f"/{n}", title="t", text="alpha " * 1000 + "beta") for n in range(50)]
    started = time.process_time()

    assert len(paths(pages, "alpha beta")) == 10
    assert time.process_time() - started < 3


def test_recency_is_a_hint_that_is_not_honoured() -> None:
    """The provider says so, and it neither fails nor filters."""
    assert "recency" in LocalSearchProvider.unsupported
    with LocalSearchProvider.from_documents(PAGES, base_url=BASE) as provider:
        request = SearchRequest(query="kettle", limit=5, recency=Recency.DAY)
        assert len(asyncio.run(provider.search(request))) == 2


def test_the_port_is_kept() -> None:
    """The provider runs through the pack's search like any other."""
    with LocalSearchProvider.from_documents(PAGES, base_url=f"{BASE}/") as provider:
        request = SearchRequest(query="kettle", limit=1, lowered=True)
        now = datetime(2026, 11, 30, tzinfo=UTC)
        outcome = asyncio.run(run_search(provider, request, WebToolCaps(), clock=lambda: now))

    assert [f"{BASE}/kettle"] == [result.url for result in outcome.results]
    assert outcome.truncated


def test_a_set_signal_stops_before_the_search() -> None:
    """Work that is no longer wanted is not begun."""

    async def main() -> None:
        signal = asyncio.Event()
        signal.set()
        with LocalSearchProvider.from_documents(PAGES, base_url=BASE) as provider:
            request = SearchRequest(query="kettle", limit=1)
            assert await provider.search(request, signal=signal) == ()

    asyncio.run(main())


def test_searches_run_at_the_same_time() -> None:
    """Many calls share the one thread and all get their own answer."""

    async def main() -> None:
        with LocalSearchProvider.from_documents(PAGES, base_url=BASE) as provider:
            queries = ["kettle", "cat"] * 20
            answers = await asyncio.gather(
                *(provider.search(SearchRequest(query=q, limit=1)) for q in queries)
            )
        assert [a[0].title for a in answers] == ["Kettles", "Cats"] * 20

    asyncio.run(main())


def test_the_loop_is_not_blocked() -> None:
    """While the thread searches, the event loop goes on: next to none of the work is the loop's own."""
    pages = [Document(path=f"/{n}", title="t", text="alpha beta " * 3000) for n in range(100)]

    async def main() -> None:
        ticks, before = 0, time.thread_time()
        with LocalSearchProvider.from_documents(pages, base_url=BASE) as provider:
            task = asyncio.create_task(provider.search(SearchRequest(query="alpha beta", limit=50)))
            whole = time.process_time()
            while not task.done():
                await asyncio.sleep(0.001)
                ticks += 1
            assert len(task.result()) == 50
        assert ticks > 1
        assert time.thread_time() - before < (time.process_time() - whole) / 2

    asyncio.run(main())


def test_cancelling_leaves_the_provider_usable() -> None:
    """Whoever stops waiting does not stop the next search."""

    async def main() -> None:
        with LocalSearchProvider.from_documents(PAGES, base_url=BASE) as provider:
            task = asyncio.create_task(provider.search(SearchRequest(query="kettle", limit=1)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await provider.search(SearchRequest(query="cat", limit=1))

    asyncio.run(main())


def test_a_closed_provider_says_so() -> None:
    """UNAVAILABLE, not retryable, and its thread is gone; closing again does nothing."""
    provider = LocalSearchProvider.from_documents(PAGES, base_url=BASE)
    find(provider, "kettle")
    provider.close()
    provider.close()

    with pytest.raises(SearchProviderError) as caught:
        find(provider, "kettle")
    assert (caught.value.fault, caught.value.retryable) == (ProviderFault.UNAVAILABLE, False)
    assert not any(thread.name.startswith("local-search") for thread in threading.enumerate())


def test_an_index_file_is_searched(tmp_path: Path) -> None:
    """What was built can be opened from its file, whatever the file is called."""
    path = tmp_path / "in dex?#%41.db"
    build_index(PAGES, path)

    with LocalSearchProvider.open(path, base_url=BASE) as provider:
        assert [f"{BASE}/cat"] == [hit.url for hit in find(provider, "cat")]
    assert [path.name] == [file.name for file in tmp_path.iterdir()]


def test_the_index_file_is_opened_read_only(tmp_path: Path) -> None:
    """No statement can change it, and searching does not."""
    path = tmp_path / "index.db"
    build_index(PAGES, path)
    before = path.read_bytes()

    with LocalSearchProvider.open(path, base_url=BASE) as provider:
        find(provider, "cat")
        for statement in (
            "DELETE FROM pages",
            "DROP TABLE pages",
            "PRAGMA user_version = 5; COMMIT",
        ):
            with pytest.raises((sqlite3.Error, sqlite3.Warning)):
                provider._connection.execute(statement)
    assert before == path.read_bytes()


def test_an_index_in_memory_cannot_be_changed_either() -> None:
    """The same rule without a file."""
    with (
        LocalSearchProvider.from_documents(PAGES, base_url=BASE) as provider,
        pytest.raises(sqlite3.OperationalError),
    ):
        provider._connection.execute("DELETE FROM pages")


def test_building_replaces_the_index_in_one_step(tmp_path: Path) -> None:
    """An open provider goes on with the old index; the next one sees the new."""
    path = tmp_path / "index.db"
    build_index(PAGES, path)
    with LocalSearchProvider.open(path, base_url=BASE) as old:
        build_index(PAGES[2:], path)
        assert len(find(old, "kettle")) == 2
    with LocalSearchProvider.open(path, base_url=BASE) as new:
        assert find(new, "kettle") == ()


def test_a_failed_build_leaves_the_old_index(tmp_path: Path) -> None:
    """Neither a half index nor a scratch file is left."""
    path = tmp_path / "index.db"
    build_index(PAGES, path)
    before = path.read_bytes()

    with pytest.raises(IndexUnusable):
        build_index([PAGES[0], PAGES[0]], path)
    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_a_build_that_breaks_in_the_documents_leaves_nothing(tmp_path: Path) -> None:
    """An error of the caller's iterator passes through, after cleaning up."""

    def broken() -> Iterator[Document]:
        yield PAGES[0]
        raise KeyError("caller")

    with pytest.raises(KeyError):
        build_index(broken(), tmp_path / "index.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(IndexUnusable, match=r"missing/index\.db"):
        build_index(PAGES, tmp_path / "missing" / "index.db")


def test_other_files_are_no_index(tmp_path: Path) -> None:
    """Missing, empty, text, another database, a damaged index: refused when opened."""
    (tmp_path / "empty.db").write_bytes(b"")
    (tmp_path / "text.db").write_text("not a database at all, but long enough to be read" * 20)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE pages (path, title, body)")
    other.close()
    build_index(PAGES, tmp_path / "damaged.db")
    whole = (tmp_path / "damaged.db").read_bytes()
    (tmp_path / "damaged.db").write_bytes(whole[: len(whole) // 2])

    for name in ("missing.db", "empty.db", "text.db", "other.db", "damaged.db"):
        with pytest.raises(IndexUnusable):
            LocalSearchProvider.open(tmp_path / name, base_url=BASE)


def test_damage_found_late_is_unavailable_without_the_query(tmp_path: Path) -> None:
    """A page of the file that goes bad is a provider error that does not repeat the query."""
    path = tmp_path / "index.db"
    build_index(load_pydoc_topics(), path)
    with LocalSearchProvider.open(path, base_url=BASE) as provider:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        with pytest.raises(SearchProviderError) as caught:
            find(provider, "kettle")
    assert caught.value.fault is ProviderFault.UNAVAILABLE
    assert "kettle" not in str(caught.value)


texts = st.lists(
    st.sampled_from(["kettle", "cat", ". ", "\n", "x" * 50, "é", "  "]) | st.text()
).map(" ".join)


@example("kettle" * 200, ["kettle"], 1)
@example("", [], 400)
@given(texts, st.lists(st.sampled_from(["kettle", "cat", "(", "\\", "é"])), st.integers(1, 400))
def test_excerpts_are_bounded_and_made_of_the_text(text: str, words: list[str], most: int) -> None:
    """Never longer than asked, and every word of it is in the text in that order."""
    excerpt = make_excerpt(text, words, most=most)

    assert len(excerpt) <= most
    inner = excerpt.removeprefix("… ").removesuffix(" …").removesuffix("…").strip()
    assert inner in " ".join(text.split())


def test_an_excerpt_shows_the_densest_place() -> None:
    """The place where most of the words stand together wins over the first hit."""
    text = "kettle here. " + "filler " * 200 + "\nThe kettle and the cat. " + "filler " * 200

    excerpt = make_excerpt(text, ["kettle", "cat"], most=80)
    assert excerpt.startswith("… The kettle and the cat.")
    assert excerpt.endswith(" …")


def test_excerpts_are_quick_on_hostile_texts() -> None:
    """One word a hundred thousand times, and text without any space."""
    for text in ("kettle " * 100_000, "k" * 1_000_000, "kettl" * 100_000, " " * 1_000_000):
        started = time.process_time()
        assert len(make_excerpt(text, [f"kettle{n}" for n in range(32)])) <= EXCERPT_CHARS
        assert time.process_time() - started < 2
