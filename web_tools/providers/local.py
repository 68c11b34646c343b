"""Full-text search over documents of ours: SQLite FTS5, no network and no key.

Title matches weigh more (bm25). The connection is read-only and lives in one thread of its
own, so neither a slow query nor a hostile one holds the event loop. Pages get their URLs
from *base_url*: the index knows paths only, so it outlives the port it was served on.
"""

import asyncio
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import ClassVar, Final, Self, TypeVar
from urllib.parse import quote

from egress.url import parse_target
from web_tools.arguments import SearchRequest
from web_tools.contract.instants import instant_text, published_at
from web_tools.contract.options import SearchOptions
from web_tools.contract.provider import (
    SearchContext,
    SearchProvider,
    SearchRow,
    define_search_provider,
)
from web_tools.contract.sites import is_under
from web_tools.corpus import Document, unique_paths
from web_tools.errors import CorpusError, IndexUnusable, ProviderFault, SearchProviderError
from web_tools.providers._excerpt import make_excerpt
from web_tools.providers._literal import sql_tokens
from web_tools.providers._query import MAX_TERMS, Terms, parse_terms
from web_tools.search import Cancel, SearchHit

__all__ = ("LocalSearchProvider", "build_index")

_T = TypeVar("_T")

# "arp" and a version: another file, or an index of another form, is refused when opened.
_APPLICATION_ID: Final = 0x61727002
_TITLE_WEIGHT: Final = 3.0
_MAX_ROWS: Final = 50
_STEPS_BETWEEN_CHECKS: Final = 10_000
# The excerpt looks no further into a text, so no more of it leaves the database.
_MAX_BODY_CHARS: Final = 200_000

_CREATE: Final = """
CREATE VIRTUAL TABLE pages USING fts5(
    path UNINDEXED, title, body, published UNINDEXED,
    tokenize = 'porter unicode61 remove_diacritics 2'
)
"""
_INSERT: Final = "INSERT INTO pages (path, title, body, published) VALUES (?, ?, ?, ?)"
# The best candidates by the whole page and by the title alone. bm25 holds a word that most
# pages have for worthless ("with"), although it says everything in a title; the sum of both
# scores finds 16 of 20 topics first where the first alone finds 12. Lower scores are better.
_CANDIDATES: Final = """
SELECT rowid, bm25(pages, 0.0, ?, 1.0, 0.0) FROM pages WHERE pages MATCH ? ORDER BY 2, 1 LIMIT ?
"""
# For the contract: every word, and no page that is older or of an unknown date when that counts.
_LITERAL: Final = """
SELECT rowid FROM pages WHERE pages MATCH ? AND (? IS NULL OR published >= ?)
ORDER BY bm25(pages, 0.0, ?, 1.0, 0.0), rowid LIMIT ?
"""
_PAGE: Final = "SELECT path, title, substr(body, 1, ?), published FROM pages WHERE rowid = ?"


def build_index(documents: Iterable[Document], path: Path) -> None:
    """Write an index of *documents* to *path*, whole or not at all.

    An index that is already there is replaced in one step; a search that has it open goes
    on with the old one.

    Raises:
        IndexUnusable: The file cannot be written, or two documents have one path.
    """
    try:
        with _replacing(path) as scratch, closing(sqlite3.connect(scratch)) as connection:
            _fill(connection, documents)
    except (OSError, sqlite3.Error, CorpusError) as error:
        raise IndexUnusable(f"cannot write the index {path}: {error}") from error


class LocalSearchProvider:
    """A `WebSearchProvider` over one index. Close it, or use it as a context manager."""

    unsupported: ClassVar[tuple[str, ...]] = ("recency",)
    """Our documents carry no date, so the hint is ignored; nothing is filtered by it."""

    def __init__(self, connection: sqlite3.Connection, *, base_url: str) -> None:
        """Take over *connection*; `open` and `from_documents` make one."""
        self._connection = connection
        self._base_url = base_url.removesuffix("/")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-search")
        self._closing = threading.Event()

    @classmethod
    def open(cls, path: Path, *, base_url: str) -> Self:
        """A provider over the index that `build_index` wrote to *path*.

        Raises:
            IndexUnusable: The file is missing, no index of ours, or damaged.
        """
        return cls(_open_read_only(path), base_url=base_url)

    @classmethod
    def from_documents(cls, documents: Iterable[Document], *, base_url: str) -> Self:
        """A provider over an index in memory, for small corpora. Builds it before returning.

        Raises:
            IndexUnusable: Two documents have one path.
        """
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            _fill(connection, documents)
            _forbid_writing(connection)
        except (sqlite3.Error, CorpusError) as error:
            connection.close()
            raise IndexUnusable(f"cannot index the documents: {error}") from error
        return cls(connection, base_url=base_url)

    async def search(
        self, request: SearchRequest, *, signal: Cancel | None = None
    ) -> Sequence[SearchHit]:
        """The best documents that hold any of the query's words, at most `limit`.

        Raises:
            SearchProviderError: QUERY_REFUSED as `parse_terms` says; UNAVAILABLE when the
                index cannot be read or the provider is closed.
        """
        terms = parse_terms(request.query)
        if not terms.phrases or (signal is not None and signal.is_set()):
            return ()
        return await self._in_thread(lambda stop: self._find(terms, request.limit, stop))

    def as_search_provider(self, *, name: str = "local") -> SearchProvider:
        """This index under the contract of `web.search`: every word of the query, all options.

        It stays this object's: close it as before.
        """
        base = parse_target(f"{self._base_url}/")

        async def search(
            query: str, options: SearchOptions, context: SearchContext
        ) -> Sequence[SearchRow]:
            tokens = sql_tokens(query)
            if len(tokens) > MAX_TERMS:
                raise SearchProviderError(
                    ProviderFault.QUERY_REFUSED, f"more than {MAX_TERMS} terms"
                )
            elsewhere = options.site is not None and not is_under(options.site, base)
            if elsewhere or (context.signal is not None and context.signal.is_set()):
                return ()
            since = None if options.freshness is None else options.freshness.since
            return await self._in_thread(
                lambda stop: self._find_literal(tokens, options.count, since, stop)
            )

        return define_search_provider(name=name, search=search, plain=True, origins=())

    def close(self) -> None:
        """Stop a running search and close the index. Closing twice does nothing."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._connection.close()

    def __enter__(self) -> Self:
        """The provider itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    async def _in_thread(self, work: Callable[[threading.Event], Sequence[_T]]) -> Sequence[_T]:
        stop = threading.Event()
        if self._closing.is_set():
            raise SearchProviderError(
                ProviderFault.UNAVAILABLE, "the provider is closed", retryable=False
            )
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, stop)
        finally:
            # Whoever stopped waiting must not leave the thread busy for the next search.
            stop.set()

    def _find(self, terms: Terms, limit: int, stop: threading.Event) -> Sequence[SearchHit]:
        """Runs in the thread."""
        with self._reading(stop):
            best = self._rank(terms.to_match())[:limit]
            return tuple(self._hit(rowid, terms) for rowid in best)

    def _find_literal(
        self, tokens: Sequence[str], limit: int, since: str | None, stop: threading.Event
    ) -> Sequence[SearchRow]:
        """Runs in the thread."""
        words = tuple(dict.fromkeys(re.findall(r"\w+", " ".join(tokens).lower())))
        values = (" ".join(tokens), since, since, _TITLE_WEIGHT, min(limit, _MAX_ROWS))
        with self._reading(stop):
            found = self._connection.execute(_LITERAL, values).fetchall()
            return tuple(self._row(rowid, words) for (rowid,) in found)

    @contextmanager
    def _reading(self, stop: threading.Event) -> Iterator[None]:
        """One use of the connection, which ends when it is no longer wanted."""
        try:
            self._connection.set_progress_handler(
                lambda: stop.is_set() or self._closing.is_set(), _STEPS_BETWEEN_CHECKS
            )
            yield
        except sqlite3.Error as error:
            # The text of an SQLite error can hold the expression, and with it the query.
            raise SearchProviderError(
                ProviderFault.UNAVAILABLE,
                type(error).__name__,
                retryable=isinstance(error, sqlite3.OperationalError),
            ) from None

    def _rank(self, match: str) -> list[int]:
        """Rows from best to worst; equal scores stand in the order of the documents."""
        scores: dict[int, float] = {}
        for expression in (match, f"{{title}} : ({match})"):
            values = (_TITLE_WEIGHT, expression, _MAX_ROWS)
            for rowid, score in self._connection.execute(_CANDIDATES, values):
                scores[rowid] = scores.get(rowid, 0.0) + score
        return sorted(scores, key=lambda rowid: (scores[rowid], rowid))[:_MAX_ROWS]

    def _hit(self, rowid: int, terms: Terms) -> SearchHit:
        row = self._connection.execute(_PAGE, (_MAX_BODY_CHARS, rowid)).fetchone()
        path, title, body, _ = row
        return SearchHit(
            title=title, url=self._base_url + path, snippet=make_excerpt(body, terms.words)
        )

    def _row(self, rowid: int, words: Sequence[str]) -> SearchRow:
        found = self._connection.execute(_PAGE, (_MAX_BODY_CHARS, rowid)).fetchone()
        path, title, body, published = found
        return SearchRow(
            title=title,
            url=self._base_url + path,
            snippet=make_excerpt(body, tuple(words)),
            published_at=published,
        )


def _fill(connection: sqlite3.Connection, documents: Iterable[Document]) -> None:
    rows = [
        (page.path, page.title, page.text, _instant(page.published))
        for page in unique_paths(documents).values()
    ]
    with connection:
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(_CREATE)
        connection.executemany(_INSERT, rows)
        connection.execute("INSERT INTO pages (pages) VALUES ('optimize')")


def _instant(published: str | None) -> str | None:
    """Of one form, so that texts compare as instants do."""
    at = published_at(published)
    return None if at is None else instant_text(at)


@contextmanager
def _replacing(path: Path) -> Iterator[str]:
    """Name of a new file in the same folder that takes the place of *path* at the end."""
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield scratch
        _sync(scratch)
        Path(scratch).replace(path)
        _sync(str(path.parent))
    finally:
        for left in (scratch, f"{scratch}-journal"):
            Path(left).unlink(missing_ok=True)


def _sync(name: str) -> None:
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open_read_only(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
    try:
        with ExitStack() as stack:
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            stack.callback(connection.close)
            _forbid_writing(connection)
            _require_ours(connection, path)
            stack.pop_all()
            return connection
    except sqlite3.Error as error:
        raise IndexUnusable(f"not a usable index: {path}") from error


def _require_ours(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
        raise IndexUnusable(f"not an index of this version: {path}")
    connection.execute("SELECT path, title, body, published FROM pages LIMIT 1").fetchone()


def _forbid_writing(connection: sqlite3.Connection) -> None:
    """Nothing that a query says can change the index or run what a schema brought along."""
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
