"""The local index under the contract: every word, all options, dates of our own."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from web_tools import create_web_search_tool, define_search_provider
from web_tools.contract.engine import SearchRecord
from web_tools.corpus import Document
from web_tools.errors import CorpusError, IndexUnusable, ProviderFault, WebToolError
from web_tools.providers.local import LocalSearchProvider, build_index

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
BASE = "https://docs.example.com"
PAGES = [
    Document(path="/old", title="Kettle", text="An old kettle.", published="2026-01-01"),
    Document(
        path="/new", title="Pot", text="A kettle and C++.", published="2026-11-30T11:00:00+01:00"
    ),
    Document(path="/undated", title="Pan", text="A kettle & a pan <b>."),
]


def ask(pages: Any = PAGES, *, query: str = "kettle", **arguments: Any) -> list[dict[str, Any]]:
    with LocalSearchProvider.from_documents(pages, base_url=BASE) as local:
        tool = create_web_search_tool(
            provider=local.as_search_provider(), config={}, clock=lambda: NOW
        )
        answer = asyncio.run(tool.run({"query": query, **arguments}))
    found: list[dict[str, Any]] = answer.envelope["results"]
    return found


def urls(**arguments: Any) -> list[str]:
    return [row["url"].removeprefix(BASE) for row in ask(**arguments)]


def test_freshness_is_filtered_by_our_own_dates() -> None:
    """Inclusive, in UTC; undated pages are not fresh; the date is told."""
    (found,) = ask(freshness="PT2H")

    assert (f"{BASE}/new", "2026-11-30T10:00:00.000Z") == (found["url"], found["publishedAt"])
    assert {"/old", "/new"} == set(urls(freshness="P365D"))
    assert 3 == len(urls())


def test_freshness_is_filtered_before_the_count() -> None:
    """Fifty old pages that rank higher do not hide a fresh one."""
    old = [
        Document(path=f"/{n}", title="kettle kettle", text="kettle", published="2020-01-01")
        for n in range(80)
    ]

    assert ["/new"] == urls(pages=[*old, PAGES[1]], freshness="P1D", count=1)


@pytest.mark.parametrize(
    ("site", "found"), [("docs.example.com", 3), ("example.com", 3), ("other.example", 0), ("s.example.com", 0)]
)  # fmt: skip
def test_a_site_is_that_of_the_pages(site: str, found: int) -> None:
    """Another finds nothing."""
    assert found == len(urls(site=site))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("C++ kettle", ["/new"]), ("kettle NOT pan", []), ("*", []), ('"', []), ("NEAR( AND", []), ("title:kettle", []),
        ("pan\u0000", None), ("kettle " * 200, ["/old", "/new", "/undated"]),
    ],
)  # fmt: skip
def test_a_query_is_literal(query: str, found: list[str] | None) -> None:
    """Every word is looked for, operators are words, and repeated ones are one."""
    if found is None:
        with pytest.raises(WebToolError):
            urls(query=query)
        return

    assert sorted(found) == sorted(urls(query=query))


def test_more_than_32_terms_are_refused() -> None:
    """Before the database is asked."""
    with pytest.raises(WebToolError) as caught:
        urls(query=" ".join(f"w{n}" for n in range(33)))

    assert ProviderFault.QUERY_REFUSED == caught.value.detail


def test_text_that_looks_like_markup_stays() -> None:
    """Our own texts are plain."""
    assert "A kettle & a pan <b>." == ask(query="pan")[0]["snippet"]


@pytest.mark.parametrize("published", ["yesterday", "2026-02-30", "2026-11-30T10:00:00", ""])
def test_a_document_has_a_date_of_the_table_or_none(published: str) -> None:
    """A date that could be read in two ways is refused where it is written."""
    with pytest.raises(CorpusError):
        Document(path="/a", title="t", text="x", published=published)


def test_an_index_of_the_form_before_is_refused(tmp_path: Path) -> None:
    """It has no dates; one that is built now keeps them."""
    path = tmp_path / "index"
    build_index(PAGES, path)
    with LocalSearchProvider.open(path, base_url=BASE) as local:
        tool = create_web_search_tool(
            provider=local.as_search_provider(), config={}, clock=lambda: NOW
        )
        found = asyncio.run(tool.run({"query": "kettle", "freshness": "P1D"}))
    whole = bytearray(path.read_bytes())
    # Where SQLite keeps the application id: file format, section 1.3.
    whole[68:72] = (0x61727001).to_bytes(4)
    path.write_bytes(whole)

    assert 1 == len(found.envelope["results"])
    with pytest.raises(IndexUnusable):
        LocalSearchProvider.open(path, base_url=BASE)


def test_the_same_question_is_asked_once_within_the_window() -> None:
    """Site, count, freshness, query and agent each make it another one (30)."""
    asked: list[str] = []
    told: list[SearchRecord] = []
    times = [NOW]

    async def search(query: str, *_: object) -> list[dict[str, str]]:
        asked.append(query)
        return [{"title": "t", "url": "https://a.example/", "publishedAt": "2026-11-30"}]

    provider = define_search_provider(name="p", search=search)
    tool = create_web_search_tool(
        provider=provider,
        config={"maxSearchesPerDay": 6},
        same_answer_seconds=60,
        clock=lambda: times[-1],
        on_search=told.append,
    )
    for arguments in ({}, {}, {"count": 2}, {"site": "a.example"}, {"freshness": "PT12H"}, {}):
        asyncio.run(tool.run({"query": "k", **arguments}, agent="ava"))
    asyncio.run(tool.run({"query": "k"}, agent="bob"))
    assert 5 == len(asked)
    assert 4 == tool.engine.used("ava")

    times.append(NOW.replace(second=30))
    stale = asyncio.run(tool.run({"query": "k", "freshness": "PT12H"}, agent="ava"))
    times.append(NOW.replace(minute=2))
    asyncio.run(tool.run({"query": "k"}, agent="ava"))

    # Kept rows are judged by the new instant: midnight is older than twelve hours by now.
    assert [] == stale.envelope["results"]
    assert 6 == len(asked)
    assert 8 + 1 == len(told)
