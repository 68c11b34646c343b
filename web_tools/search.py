"""One search through a host's provider, whose answers are as untrusted as the web.

The provider may raise, hang, answer with the wrong types or with a million rows: what comes
out is a bounded list of clean results, or one error. The text of the query reaches no error.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, Protocol, TypeGuard

import attrs

from citations.citation import KnowledgeCitation
from citations.digests import document_id, revision_id
from egress.errors import UrlRejected
from egress.url import Target, parse_target
from web_tools._cut import cut_characters
from web_tools._provider_failure import Failure, bad_answer, failure_of, words_of
from web_tools.arguments import Recency, SearchRequest, WebToolCaps
from web_tools.errors import ProviderFault, SearchProviderError

__all__ = (
    "MAX_TITLE_CHARS",
    "Cancel",
    "Dropped",
    "Recency",
    "SearchHit",
    "SearchOutcome",
    "SearchRequest",
    "SearchResult",
    "WebSearchProvider",
    "create_fixture_web_search_provider",
    "run_search",
)

MAX_TITLE_CHARS: Final = 300
"""The caps of the seed bound the snippet; a title needs a bound as well."""
# Rows beyond this are not looked at, so that a provider cannot keep the loop busy.
_MAX_ROWS: Final = 1000
# A part of a row is cut only after its digest was taken: longer ones make the row malformed.
_MAX_PART_CHARS: Final = 65_536


class Cancel(Protocol):
    """A signal that work is no longer wanted; `asyncio.Event` is one."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    async def wait(self) -> object:
        """Return when it is time to stop."""
        ...


@attrs.frozen(kw_only=True)
class SearchHit:
    """One row of a provider: plain text as the provider had it, nothing checked."""

    title: str
    url: str
    snippet: str


class WebSearchProvider(Protocol):
    """The pack's port to a search back end; the host supplies the adapter."""

    async def search(
        self, request: SearchRequest, *, signal: Cancel | None = None
    ) -> Sequence[SearchHit]:
        """At most `request.limit` hits, best first. An empty answer means nothing was found."""
        ...


@attrs.frozen(kw_only=True)
class SearchResult:
    """A hit that was checked: the URL is canonical, title and snippet are cut.

    Attributes:
        source_id: Host of the URL.
        citation: Its revision is the digest of title, newline and snippet before any cut.
        whole: That text.
    """

    title: str
    url: str
    snippet: str
    source_id: str
    citation: KnowledgeCitation
    whole: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Dropped:
    """How many rows were not results, by reason."""

    malformed: int = 0
    bad_url: int = 0


@attrs.frozen(kw_only=True)
class SearchOutcome:
    """The results of one search.

    Attributes:
        truncated: Rows were cut, or the call asked for more than the host allows.
        retrieved_at: When the provider answered.
    """

    results: tuple[SearchResult, ...]
    truncated: bool
    dropped: Dropped
    retrieved_at: datetime


@attrs.frozen
class _FixtureProvider:
    hits: tuple[SearchHit, ...]

    async def search(
        self, request: SearchRequest, *, signal: Cancel | None = None
    ) -> Sequence[SearchHit]:
        """Every hit, whatever is asked, so that the cut to the limit is seen in tests."""
        del request, signal
        return self.hits


def create_fixture_web_search_provider(hits: Iterable[SearchHit]) -> WebSearchProvider:
    """A provider for tests that answers every search with the same *hits*."""
    return _FixtureProvider(tuple(hits))


async def run_search(
    provider: WebSearchProvider,
    request: SearchRequest,
    caps: WebToolCaps,
    *,
    clock: Callable[[], datetime],
    signal: Cancel | None = None,
) -> SearchOutcome:
    """Ask *provider* and make results of what it answers.

    Rows whose URL is not http or https, has credentials, or is malformed are dropped and
    counted, and so are rows with a part of more than 65,536 characters; no result URL is looked
    up. Cancellation passes through.

    Raises:
        WebToolError: WEB_SEARCH_PROVIDER_ERROR. The provider raised, did not answer within
            `timeout_ms`, or answered with something that holds no row of the port's form.
    """
    deadline = asyncio.timeout(caps.timeout_seconds)
    failure: Failure | None = None
    rows: list[object] = []
    try:
        async with deadline:
            rows = await _asked(provider, request, signal)
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        # Nobody has cancelled this call: the adapter let a cancellation of its own escape.
        failure = failure_of(error, words_of(request.query), expired=False)
    # The boundary to the host's adapter: anything can come out of it.
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001
        failure = failure_of(error, words_of(request.query), expired=deadline.expired())
    # Raised outside of the handler: a cause that repeats the query must not stay as context.
    if failure is not None:
        raise failure.error from failure.cause
    return _outcome(rows, request, caps, clock())


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _asked(
    provider: WebSearchProvider, request: SearchRequest, signal: Cancel | None
) -> list[object]:
    answer: object = provider.search(request, signal=signal)
    if not inspect.isawaitable(answer):
        what = "its search gave no coroutine: it must be async"
        raise SearchProviderError(ProviderFault.BAD_ANSWER, what)
    return _rows_of(await answer)


def _rows_of(answer: object) -> list[object]:
    """The rows of an answer, a bounded number of them, as values of our own."""
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes | bytearray):
        raise SearchProviderError(ProviderFault.BAD_ANSWER, f"a {type(answer).__name__}")
    return [_own(row) for row in islice(answer, _MAX_ROWS + 1)]


def _own(row: object) -> SearchHit | None:
    """The hit with texts that are nothing but texts; None when it is no hit, or cannot be read."""
    try:
        if not isinstance(row, SearchHit):
            return None
        parts = [row.title, row.url, row.snippet]
        # Not `isinstance`, which asks the object.
        if not all(issubclass(type(part), str) for part in parts):
            return None
        title, url, snippet = map(str.__str__, parts)
        return SearchHit(title=title, url=url, snippet=snippet)
    # An object of the adapter's: one bad row never fails the call.
    except (Exception, SystemExit):  # noqa: BLE001
        return None


@attrs.frozen(kw_only=True)
class _Row:
    hit: SearchHit
    target: Target


def _outcome(
    rows: Sequence[object], request: SearchRequest, caps: WebToolCaps, now: datetime
) -> SearchOutcome:
    hits = [row for row in rows[:_MAX_ROWS] if _is_hit(row)]
    kept = [row for row in map(_admitted, hits) if row is not None]
    malformed = min(len(rows), _MAX_ROWS) - len(hits)
    if malformed and not kept:
        # Never an empty list: nothing found and nothing understood are different answers.
        raise bad_answer("no row has the form of the port")
    return SearchOutcome(
        results=tuple(_result(row, caps, now) for row in kept[: request.limit]),
        truncated=request.lowered or len(kept) > request.limit or len(rows) > _MAX_ROWS,
        dropped=Dropped(malformed=malformed, bad_url=len(hits) - len(kept)),
        retrieved_at=now,
    )


def _is_hit(row: object) -> TypeGuard[SearchHit]:
    return isinstance(row, SearchHit) and all(
        isinstance(part, str) and len(part) <= _MAX_PART_CHARS
        for part in (row.title, row.url, row.snippet)
    )


def _admitted(hit: SearchHit) -> _Row | None:
    """The hit with its canonical URL; None when it is not a URL we accept."""
    try:
        return _Row(hit=hit, target=parse_target(hit.url))
    except UrlRejected:
        return None


def _result(row: _Row, caps: WebToolCaps, now: datetime) -> SearchResult:
    url, whole = row.target.document_url, f"{row.hit.title}\n{row.hit.snippet}"
    return SearchResult(
        title=cut_characters(row.hit.title, MAX_TITLE_CHARS),
        url=url,
        snippet=cut_characters(row.hit.snippet, caps.max_snippet_chars),
        source_id=row.target.host,
        citation=KnowledgeCitation(
            source_id=row.target.host,
            document_id=document_id(url),
            path=url,
            revision_id=revision_id(whole),
            retrieved_at=now,
        ),
        whole=whole,
    )
