"""Full-text search over documents of ours: SQLite FTS5, no network and no key.

Title matches weigh more (bm25). The connection is read-only and lives in one thread of its
own, so neither a slow query nor a hostile one holds the event loop. Pages get their URLs
from *base_url*: the index knows paths only, so it outlives the port it was served on.
"""

import asyncio
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import ClassVar, Final, Self
from urllib.parse import quote

from web_tools.arguments import SearchRequest
from web_tools.corpus import Document, unique_paths
from web_tools.errors import CorpusError, IndexUnusable, ProviderFault, SearchProviderError
from web_tools.providers._excerpt import make_excerpt
from web_tools.providers._query import Terms, parse_terms
from web_tools.search import Cancel, SearchHit

__all__ = ("LocalSearchProvider", "build_index")

# "arp" and a version: another file, or an index of another form, is refused when opened.
_APPLICATION_ID: Final = 0x61727001
_TITLE_WEIGHT: Final = 3.0
_MAX_ROWS: Final = 50
_STEPS_BETWEEN_CHECKS: Final = 10_000
# The excerpt looks no further into a text, so no more of it leaves the database.
_MAX_BODY_CHARS: Final = 200_000

_CREATE: Final = """
CREATE VIRTUAL TABLE pages USING fts5(
    path UNINDEXED, title, body, tokenize = 'porter unicode61 remove_diacritics 2'
)
"""
_INSERT: Final = "INSERT INTO pages (path, title, body) VALUES (?, ?, ?)"
# The best candidates by the whole page and by the title alone. bm25 holds a word that most
# pages have for worthless ("with"), although it says everything in a title; the sum of both
# scores finds 16 of 20 topics first where the first alone finds 12. Lower scores are better.
_CANDIDATES: Final = """
SELECT rowid, bm25(pages, 0.0, ?, 1.0) FROM pages WHERE pages MATCH ? ORDER BY 2, 1 LIMIT ?
"""
_PAGE: Final = "SELECT path, title, substr(body, 1, ?) FROM pages WHERE rowid = ?"


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

    async def _in_thread(
        self, work: Callable[[threading.Event], Sequence[SearchHit]]
    ) -> Sequence[SearchHit]:
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
        try:
            self._connection.set_progress_handler(
                lambda: stop.is_set() or self._closing.is_set(), _STEPS_BETWEEN_CHECKS
            )
            best = self._rank(terms.to_match())[:limit]
            return tuple(self._hit(rowid, terms) for rowid in best)
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
        path, title, body = row
        return SearchHit(
            title=title, url=self._base_url + path, snippet=make_excerpt(body, terms.words)
        )


def _fill(connection: sqlite3.Connection, documents: Iterable[Document]) -> None:
    rows = [(page.path, page.title, page.text) for page in unique_paths(documents).values()]
    with connection:
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(_CREATE)
        connection.executemany(_INSERT, rows)
        connection.execute("INSERT INTO pages (pages) VALUES ('optimize')")


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
    connection.execute("SELECT path, title, body FROM pages LIMIT 1").fetchone()


def _forbid_writing(connection: sqlite3.Connection) -> None:
    """Nothing that a query says can change the index or run what a schema brought along."""
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
