"""One search, with providers that behave and providers that do not."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from citations import document_id, revision_id
from egress.errors import ConnectFailed, TlsFailed
from web_tools.arguments import Recency, SearchRequest, WebToolCaps
from web_tools.errors import ProviderFault, SearchProviderError, WebErrorCode, WebToolError
from web_tools.search import (
    MAX_TITLE_CHARS,
    Cancel,
    Dropped,
    SearchHit,
    SearchOutcome,
    create_fixture_web_search_provider,
    run_search,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
CAPS = WebToolCaps()


class Provider:
    """Implements the port with one answer, and keeps what it was asked."""

    def __init__(self, answer: Callable[[SearchRequest], Awaitable[Any]]) -> None:
        self._answer = answer
        self.asked: list[SearchRequest] = []

    async def search(
        self, request: SearchRequest, *, signal: Cancel | None = None
    ) -> Sequence[SearchHit]:
        self.asked.append(request)
        answer: Sequence[SearchHit] = await self._answer(request)
        return answer


def answering(value: object) -> Provider:
    async def answer(_: SearchRequest) -> object:
        return value

    return Provider(answer)


def raising(error: BaseException) -> Provider:
    async def answer(_: SearchRequest) -> object:
        raise error

    return Provider(answer)


def hit(
    url: str = "https://example.org/", title: str = "Title", snippet: str = "Text"
) -> SearchHit:
    return SearchHit(title=title, url=url, snippet=snippet)


def search(
    provider: Any,
    query: str = "kettles",
    limit: int = 10,
    caps: WebToolCaps = CAPS,
    *,
    lowered: bool = False,
) -> SearchOutcome:
    request = SearchRequest(query=query, limit=limit, lowered=lowered)
    return asyncio.run(run_search(provider, request, caps, clock=lambda: NOW))


def failure(provider: Any, query: str = "kettles", caps: WebToolCaps = CAPS) -> WebToolError:
    with pytest.raises(WebToolError) as caught:
        search(provider, query, caps=caps)
    assert caught.value.code is WebErrorCode.SEARCH_PROVIDER_ERROR
    return caught.value


def test_a_hit_becomes_a_result_with_a_citation() -> None:
    """The URL is canonical, and the citation names it, its host and what was seen."""
    outcome = search(answering([hit("HTTPS://Bücher.Example:443/a b#part")]))

    (result,) = outcome.results
    assert result.url == "https://xn--bcher-kva.example/a%20b"
    assert result.source_id == "xn--bcher-kva.example"
    assert (result.title, result.snippet) == ("Title", "Text")
    assert result.citation.path == result.url
    assert document_id(result.url) == result.citation.document_id
    assert revision_id("Title\nText") == result.citation.revision_id
    assert result.citation.retrieved_at == NOW
    assert not outcome.truncated


def test_the_request_reaches_the_provider_unchanged() -> None:
    """Query, limit and recency are passed on as they were parsed."""
    provider = answering([])
    request = SearchRequest(query='site:x "a', limit=3, recency=Recency.WEEK)
    asyncio.run(run_search(provider, request, CAPS, clock=lambda: NOW))

    assert [request] == provider.asked


def test_nothing_found_is_an_empty_list() -> None:
    """An empty answer is an answer."""
    outcome = search(answering([]))

    assert outcome.results == ()
    assert not outcome.truncated


@given(st.integers(0, 30), st.integers(1, 30), st.booleans())
def test_more_rows_than_the_limit_are_cut(rows: int, limit: int, lowered: bool) -> None:
    """Order is kept, the limit is kept, and truncated says exactly whether something was lost."""
    hits = [hit(f"https://example.org/{n}") for n in range(rows)]
    outcome = search(create_fixture_web_search_provider(hits), limit=limit, lowered=lowered)

    assert [h.url for h in hits[:limit]] == [r.url for r in outcome.results]
    assert (rows > limit or lowered) == outcome.truncated


@given(st.integers(1, 20), st.integers(0, 20))
def test_lowering_the_limit_never_adds(limit: int, less: int) -> None:
    """A lower limit gives a beginning of what a higher one gives."""
    provider = create_fixture_web_search_provider(
        [hit(f"https://a.example/{n}") for n in range(15)]
    )
    lower = search(provider, limit=max(1, limit - less)).results

    assert lower == search(provider, limit=limit).results[: len(lower)]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.org/",
        "javascript:alert(1)",
        "data:text/html,x",
        "//example.org/",
        "https://user:secret@example.org/",
        "https://@example.org/",
        "https://example.org\\@evil.example/",
        "http://0x7f.1/",
        "http://exa mple.org/",
        "http://example.org:99999/",
        "http://\ud800.example/",
        "https://example.org/\0",
        "x" * 10_000,
    ],
)
def test_a_url_that_is_not_accepted_is_dropped_and_counted(url: str) -> None:
    """The row goes, its neighbours stay in order, and the outcome says how many went."""
    outcome = search(answering([hit("https://a.example/"), hit(url), hit("https://b.example/")]))

    assert [r.url for r in outcome.results] == ["https://a.example/", "https://b.example/"]
    assert Dropped(bad_url=1) == outcome.dropped
    assert not outcome.truncated


def test_dropped_rows_do_not_use_up_the_limit() -> None:
    """Rows are filtered before they are cut."""
    outcome = search(answering([hit("ftp://x/"), hit("https://a.example/")]), limit=1)

    assert [r.url for r in outcome.results] == ["https://a.example/"]
    assert not outcome.truncated


def test_hosts_outside_of_any_allowlist_are_named() -> None:
    """Only reads are gated: a private address in a result is a result."""
    assert search(answering([hit("http://10.0.0.7/")])).results


def bad_hit(**changes: object) -> object:
    build: Callable[..., SearchHit] = SearchHit
    return build(**({"title": "t", "url": "https://example.org/", "snippet": "s"} | changes))


BAD_ROWS: list[object] = [
    None,
    "row",
    ("t", "https://example.org/", "s"),
    {"title": "t", "url": "https://example.org/", "snippet": "s"},
    bad_hit(title=None),
    bad_hit(url=7),
    bad_hit(snippet=b"bytes"),
]


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_row_of_another_form_is_dropped_and_counted(row: object) -> None:
    """One bad row does not cost the others."""
    outcome = search(answering([row, hit()]))

    assert len(outcome.results) == 1
    assert Dropped(malformed=1) == outcome.dropped


@pytest.mark.parametrize("row", BAD_ROWS)
def test_only_rows_of_another_form_are_a_failure(row: object) -> None:
    """An answer that cannot be understood is never "nothing found"."""
    assert failure(answering([row])).detail == ProviderFault.BAD_ANSWER


@pytest.mark.parametrize(
    "answer", [None, "text", "", b"bytes", b"", 7, {"results": []}, iter([hit()]), {hit()}]
)
def test_an_answer_that_is_no_sequence_is_a_failure(answer: object) -> None:
    """The port says a sequence; text and mappings are not meant by it."""
    error = failure(answering(answer))

    assert error.detail == ProviderFault.BAD_ANSWER
    assert not error.retryable


def test_a_provider_that_is_not_async_is_a_failure() -> None:
    """A list where an awaitable belongs is a fault of the adapter, not of the run."""

    class Plain:
        def search(
            self, request: SearchRequest, *, signal: Cancel | None = None
        ) -> list[SearchHit]:
            return [hit()]

    assert failure(Plain()).detail == ProviderFault.BAD_ANSWER
    assert "must be async" in failure(Plain()).cause


def test_a_flood_of_rows_is_bounded() -> None:
    """A million rows are not looked at one by one."""

    class Flood(Sequence[Any]):
        read = 0

        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, index: Any) -> Any:
            Flood.read += 1
            return hit(f"https://example.org/{index}")

    outcome = search(answering(Flood()))
    assert len(outcome.results) == 10
    assert outcome.truncated
    assert Flood.read < 2000


def test_rows_that_were_not_looked_at_are_told() -> None:
    """Also when the limit would have had room for them."""
    hits = [hit(f"https://example.org/{n}") for n in range(1001)]

    outcome = search(create_fixture_web_search_provider(hits), limit=5000)
    assert len(outcome.results) == 1000
    assert outcome.truncated


class BrokenSequence(Sequence[Any]):
    """Fails while it is read, after the call has long returned."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        raise KeyError("sentinel")


def test_an_answer_that_breaks_while_it_is_read_is_a_failure() -> None:
    """The boundary is around consuming the answer, not only around asking for it."""
    assert failure(answering(BrokenSequence())).detail == ProviderFault.RAISED


marks = st.characters(codec="utf-8") | st.sampled_from("a\u0301\u200d😀")


@example("a" * 499 + "e\u0301", 500)
@given(st.text(marks, max_size=60), st.integers(1, 40))
def test_snippets_are_cut_between_characters(snippet: str, most: int) -> None:
    """The snippet is a beginning of the provider's, and the revision is of the whole."""
    caps = WebToolCaps(max_snippet_chars=most)
    (result,) = search(answering([hit(snippet=snippet)]), caps=caps).results

    assert snippet.startswith(result.snippet)
    assert len(result.snippet) <= most
    assert revision_id(f"Title\n{snippet}") == result.citation.revision_id


def test_titles_are_bounded() -> None:
    """A long title does not reach the model."""
    (result,) = search(answering([hit(title="t" * 60_000)])).results

    assert len(result.title) == MAX_TITLE_CHARS


def test_lone_surrogates_do_not_break_a_result() -> None:
    """Text that cannot be encoded still has a revision."""
    (result,) = search(answering([hit(title="a\ud800", snippet="b\udfff")])).results

    assert revision_id("a\ufffd\nb\ufffd") == result.citation.revision_id


QUERY = "sentinel kettle/büro"


def provider_error(text: str) -> Exception:
    error = RuntimeError("outer")
    error.__cause__ = ValueError(text)
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"no results for {QUERY}"),
        KeyError(QUERY),
        OSError(5, "https://api.example/?q=" + quote_plus(QUERY)),
        provider_error(f"GET /?q={quote_plus(QUERY)}"),
        SearchProviderError(ProviderFault.UNAVAILABLE, f"bad query {QUERY}"),
        ExceptionGroup("several", [ValueError(QUERY.upper())]),
        ExceptionGroup("several", [provider_error(QUERY)]),
        ValueError("near: sentinel"),
        ValueError('{"q": "b\\u00fcro sentinel"}'),
    ],
)
def test_query_text_is_in_no_error_text(error: Exception) -> None:
    """Neither the error nor the traceback that a log would print repeats what was asked."""
    raised = failure(raising(error), QUERY)

    printed = "".join(traceback.format_exception(raised)) + repr(vars(raised))
    assert "sentinel" not in printed.casefold()
    assert raised.__context__ is None or "sentinel" not in str(raised.__context__)


def test_a_note_can_repeat_the_query_as_well() -> None:
    """Notes are printed with a traceback, so they count as its text."""
    error = ValueError("plain")
    error.add_note(f"asked for {QUERY}")

    assert failure(raising(error), QUERY).__cause__ is None


def test_an_error_too_long_to_be_searched_counts_as_repeating() -> None:
    """The query may stand in its middle; and looking for it would hold the loop for seconds."""
    words = " ".join(f"{number:x}word" for number in range(1600))
    errors = [
        ValueError("e" * 1_000_000 + QUERY + "e" * 1_000_000),
        ExceptionGroup("several", [ValueError("e" * 50_000) for _ in range(30)]),
    ]
    for error in errors:
        for query in (QUERY, words):
            # Of this process: looking would take seconds, and what else the machine does takes none.
            started = time.process_time()
            raised = failure(raising(error), query)

            assert time.process_time() - started < 1
            assert raised.__cause__ is None
            assert raised.cause == type(error).__name__


def test_a_row_with_a_part_beyond_use_is_malformed() -> None:
    """It is counted and dropped before anything reads it; the longest that is kept is whole."""
    longest = "x" * 65_536
    rows = [
        hit(title=longest + "x"),
        hit(snippet=longest + "x"),
        hit(url="https://example.org/" + longest),
        hit(title=longest, snippet=longest),
    ]
    outcome = search(answering(rows))

    assert outcome.dropped == Dropped(malformed=3)
    (result,) = outcome.results
    assert revision_id(f"{longest}\n{longest}") == result.citation.revision_id


def test_the_cause_is_kept_when_it_says_nothing_of_the_query() -> None:
    """The operator sees the type and, in the chain, the error itself."""
    error = ValueError("HTTP 500")
    raised = failure(raising(error))

    assert error is raised.__cause__
    assert raised.cause == "ValueError"
    assert raised.message == "The search provider failed."


@pytest.mark.parametrize(
    ("error", "detail", "retryable"),
    [
        (ValueError("x"), ProviderFault.RAISED, False),
        (ConnectionResetError("x"), ProviderFault.RAISED, True),
        (TimeoutError("x"), ProviderFault.RAISED, True),
        (ConnectFailed(host="api.example"), ProviderFault.RAISED, True),
        (TlsFailed(host="api.example"), ProviderFault.RAISED, False),
        (SearchProviderError(ProviderFault.RATE_LIMITED), ProviderFault.RATE_LIMITED, True),
        (SearchProviderError(ProviderFault.UNAUTHORIZED), ProviderFault.UNAUTHORIZED, False),
        (
            SearchProviderError(ProviderFault.UNAVAILABLE, retryable=False),
            ProviderFault.UNAVAILABLE,
            False,
        ),
        (WebToolError(WebErrorCode.INVALID_INPUT, "not yours"), ProviderFault.RAISED, False),
    ],
)
def test_retryable_by_cause(error: Exception, detail: str, retryable: bool) -> None:
    """Whatever a provider raises is its failure; the cause says whether to try again."""
    raised = failure(raising(error))

    assert (detail, retryable) == (raised.detail, raised.retryable)


def test_a_provider_that_hangs_meets_the_deadline() -> None:
    """The search ends by `timeout_ms`, and the provider is cancelled."""
    ended = []

    async def hang(_: SearchRequest) -> object:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)
        return []

    error = failure(Provider(hang), caps=WebToolCaps(timeout_ms=50))
    assert (error.detail, error.retryable) == (ProviderFault.DEADLINE, True)
    assert ended == [True]


def test_cancellation_passes_through() -> None:
    """A cancelled run is not told that its provider failed."""

    async def main() -> None:
        started = asyncio.Event()

        async def hang(_: SearchRequest) -> object:
            started.set()
            await asyncio.sleep(60)
            return []

        request = SearchRequest(query="k", limit=1)
        task = asyncio.create_task(run_search(Provider(hang), request, CAPS, clock=lambda: NOW))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_cancellation_that_nobody_asked_for_is_the_providers_failure() -> None:
    """An adapter that lets one escape does not end the run."""
    error = failure(raising(asyncio.CancelledError()))

    assert (error.code, error.detail) == (
        WebErrorCode.SEARCH_PROVIDER_ERROR,
        ProviderFault.RAISED,
    )
    assert not error.retryable
    assert error.cause == "CancelledError"


def test_an_interrupt_passes_through() -> None:
    """It is the person's, and never turned into a tool error."""

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            await run_search(
                raising(KeyboardInterrupt()),
                SearchRequest(query="k", limit=1),
                CAPS,
                clock=lambda: NOW,
            )

    asyncio.run(main())


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
def test_an_adapter_does_not_end_the_process(error: BaseException) -> None:
    """What it raises to exit is its failure, as in a tool of the host's."""
    assert (ProviderFault.RAISED, type(error).__name__) == (
        failure(raising(error)).detail,
        failure(raising(error)).cause,
    )


def test_a_hit_whose_texts_raise_is_one_bad_row() -> None:
    """The other rows stand; what a class adds to a text is not asked."""

    def exits(*_: Any) -> Any:
        raise SystemExit

    raising: Any = type("Raising", (str,), {"__len__": exits, "__str__": exits})
    lying: Any = type("Lying", (), {"__class__": property(exits)})
    odd: list[Any] = [
        SearchHit(title=raising("T"), url=raising("https://a.example/"), snippet=raising("s")),
        lying(),
        SearchHit(title=lying(), url="https://b.example/", snippet=""),
        hit(),
    ]
    outcome = search(answering(odd))

    assert ["https://a.example/", hit().url] == [each.url for each in outcome.results]
    assert 2 == outcome.dropped.malformed


hostile_rows = st.lists(
    st.sampled_from(BAD_ROWS)
    | st.builds(hit, st.text() | st.just("https://example.org/"), st.text(), st.text()),
    max_size=8,
)


@given(hostile_rows)
def test_any_answer_gives_results_or_the_one_error(rows: list[object]) -> None:
    """Every row is a result, dropped and counted, or cut; or the provider failed."""
    code: WebErrorCode | None = None
    try:
        outcome = search(answering(rows), limit=3)
    except WebToolError as error:
        code = error.code
    else:
        kept = len(rows) - outcome.dropped.malformed - outcome.dropped.bad_url
        assert min(kept, 3) == len(outcome.results)
        assert (kept > 3) == outcome.truncated
    assert code in {None, WebErrorCode.SEARCH_PROVIDER_ERROR}


def test_the_signal_reaches_the_provider() -> None:
    """The provider is handed the run's signal, so that it can stop early."""
    seen: list[Cancel | None] = []

    class Listening:
        async def search(
            self, request: SearchRequest, *, signal: Cancel | None = None
        ) -> Sequence[SearchHit]:
            seen.append(signal)
            return []

    async def main() -> None:
        signal = asyncio.Event()
        request = SearchRequest(query="k", limit=1)
        await run_search(Listening(), request, CAPS, clock=lambda: NOW, signal=signal)
        assert seen == [signal]

    asyncio.run(main())
