"""What every store of runs must do, as tests to inherit: for a store of yours.

::

    class TestMyStore(SharedRunStoreContract):
        def open_store(self, seal):
            return MyStore("dsn://...", seal=seal)

A test runner that collects classes by name (pytest, with `Test…`) runs the methods of the subclass; each
makes runs of its own, so the storage may be shared between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from runtime_pack.errors import RunBusy, RunConflict, RunNotFound, StateRefused, StoreError
from runtime_pack.messages import Json
from runtime_pack.seal import Seal
from runtime_pack.state import EMPTY_CHAIN, FORMAT, SCHEMA, chain_rows, open_head, seal_head
from runtime_pack.stores import RunStore, SavedRun, SharedRunStore

__all__ = ("HOSTILE_RUN_IDS", "RunStoreContract", "SharedRunStoreContract", "sealed")

_LARGE_BYTES: Final = 5_000_000
_WRITERS: Final = 8

HOSTILE_RUN_IDS: Final = (
    "",
    ".",
    "..",
    "../other",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "a b",
    "a\x00b",
    "a\nb",
    ".hidden",
    "-rf",
    "run-ä",
    "run-\u202e",
    "\ud800",
    "a" * 65,
    "a" * 5000,
    "x'; DROP TABLE runs; --",
    "%",
    "*",
)
"""Ids that no run can have: a store finds nothing under them and makes nothing."""


def sealed(run_id: str, revision: int, rows: Sequence[bytes], seal: Seal, **more: Any) -> bytes:
    """A head as the loop makes it, over all rows of the run so far; *more* replaces fields."""
    body: dict[str, Json] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "run": run_id,
        "revision": revision,
        "rows": len(rows),
        "rows_sha256": chain_rows(EMPTY_CHAIN, rows),
    }
    return seal_head({**body, **more}, seal)


class RunStoreContract:
    """Tests of the two methods that every store has. Subclass it and say how a store is opened."""

    seal = Seal(b"the key of the contract of stores")

    def open_store(self, seal: Seal) -> RunStore:
        """Open the storage under test; each call, the same storage."""
        raise NotImplementedError

    # ── what is written is there ──────────────────────────────────────────────────────────────

    def test_what_was_committed_is_loaded(self) -> None:
        """Head and rows byte for byte, through this object and through another one."""

        async def scenario() -> None:
            run_id, rows = _new_id(), (b'{"a":1}', b'{"b":"\\u0000\xc3\xa4"}', b"{}")
            head = sealed(run_id, 1, rows, self.seal)
            store = self.open_store(self.seal)
            revision = await store.commit(run_id, expected=0, head=head, rows=rows)
            _equal(1, revision)
            for reader in (store, self.open_store(self.seal)):
                found = await reader.load(run_id)
                _equal(SavedRun(run_id=run_id, revision=1, head=head, rows=rows), found)
                open_head(found, self.seal)

        asyncio.run(scenario())

    def test_rows_are_appended_and_the_head_is_replaced(self) -> None:
        """A commit brings what is new; what was there stays in its order."""

        async def scenario() -> None:
            run_id, store, rows = _new_id(), self.open_store(self.seal), list[bytes]()
            for revision in range(6):
                fresh = [f'{{"n":{revision}{n}}}'.encode() for n in range(revision % 3)]
                rows += fresh
                head = sealed(run_id, revision + 1, rows, self.seal)
                await store.commit(run_id, expected=revision, head=head, rows=fresh)
                open_head(await store.load(run_id), self.seal)
            found = await store.load(run_id)
            _equal((6, tuple(rows)), (found.revision, found.rows))

        asyncio.run(scenario())

    def test_a_large_row_is_stored(self) -> None:
        """A result of a tool may have five megabytes."""

        async def scenario() -> None:
            run_id, store = _new_id(), self.open_store(self.seal)
            rows = (orjson.dumps({"result": "x" * _LARGE_BYTES}),)
            head = sealed(run_id, 1, rows, self.seal)
            await store.commit(run_id, expected=0, head=head, rows=rows)
            found = await store.load(run_id)
            _equal(True, found.rows == rows)

        asyncio.run(scenario())

    def test_runs_do_not_see_each_other(self) -> None:
        """Two runs at once keep their own rows and revisions."""

        async def scenario() -> None:
            store, ids = self.open_store(self.seal), [_new_id() for _ in range(3)]
            for number, run_id in enumerate(ids):
                row = f'{{"n":{number}}}'.encode()
                await store.commit(run_id, expected=0, head=b"{}", rows=[row])
            for number, run_id in enumerate(ids):
                found = await store.load(run_id)
                _equal((f'{{"n":{number}}}'.encode(),), found.rows)

        asyncio.run(scenario())

    # ── what must not be written is not ───────────────────────────────────────────────────────

    def test_a_commit_at_another_revision_changes_nothing(self) -> None:
        """Older, newer, or of a run that is there already: a conflict that says where the run is."""

        async def scenario() -> None:
            run_id, store = _new_id(), self.open_store(self.seal)
            await store.commit(run_id, expected=0, head=b'{"h":1}', rows=[b"{}"])
            await store.commit(run_id, expected=1, head=b'{"h":2}', rows=[b"[]"])
            before = await store.load(run_id)
            for wrong in (0, 1, 3, 99):
                late = store.commit(run_id, expected=wrong, head=b'{"h":9}', rows=[b"9"])
                error = await _raised(RunConflict, late)
                _equal((wrong, 2), (error.expected, error.found))
            _equal(before, await store.load(run_id))

        asyncio.run(scenario())

    def test_a_new_run_cannot_start_at_a_later_revision(self) -> None:
        """What was deleted meanwhile is not brought back by half."""

        async def scenario() -> None:
            run_id, store = _new_id(), self.open_store(self.seal)
            late = store.commit(run_id, expected=3, head=b"{}", rows=[b"{}"])
            error = await _raised(RunConflict, late)
            _equal(0, error.found)
            await _raised(RunNotFound, store.load(run_id))

        asyncio.run(scenario())

    def test_an_unknown_run_is_not_found(self) -> None:
        """Under an id of the right form, too."""

        async def scenario() -> None:
            await _raised(RunNotFound, self.open_store(self.seal).load(_new_id()))

        asyncio.run(scenario())

    def test_a_hostile_id_finds_and_makes_nothing(self) -> None:
        """Ids that are paths, patterns, statements or too long."""

        async def scenario() -> None:
            store = self.open_store(self.seal)
            for run_id in HOSTILE_RUN_IDS:
                await _raised(RunNotFound, store.load(run_id))
                made = store.commit(run_id, expected=0, head=b"{}", rows=[b"{}"])
                await _raised(StoreError, made)

        asyncio.run(scenario())

    # ── several at once ───────────────────────────────────────────────────────────────────────

    def test_of_writers_at_one_revision_one_wins(self) -> None:
        """In one event loop, all started together; the others leave nothing behind."""

        async def scenario() -> None:
            run_id, store = _new_id(), self.open_store(self.seal)
            for revision in range(3):
                attempts = [
                    store.commit(
                        run_id, expected=revision, head=_numbered(n), rows=[_numbered(n)] * 2
                    )
                    for n in range(_WRITERS)
                ]
                told = await asyncio.gather(*attempts, return_exceptions=True)
                won = [n for n, answer in enumerate(told) if answer == revision + 1]
                lost = [answer for answer in told if isinstance(answer, RunConflict)]
                _equal((1, _WRITERS - 1), (len(won), len(lost)))
                found = await store.load(run_id)
                _equal(_numbered(won[0]), found.head)
                _equal((_numbered(won[0]),) * 2, found.rows[-2:])
            _equal(6, len((await store.load(run_id)).rows))

        asyncio.run(scenario())

    def test_writers_in_threads_lose_no_revision(self) -> None:
        """Each thread with a store object and an event loop of its own, until its commits are in."""
        run_id, each = _new_id(), 5

        def write(number: int) -> None:
            store = self.open_store(self.seal)
            for _ in range(each):
                asyncio.run(commit_somehow(store, run_id, _numbered(number)))

        _in_threads([partial(write, number) for number in range(4)])
        found = asyncio.run(self.open_store(self.seal).load(run_id))

        _equal((4 * each, 4 * each), (found.revision, len(found.rows)))
        for number in range(4):
            _equal(each, found.rows.count(_numbered(number)))

    def test_a_reader_sees_whole_commits_only(self) -> None:
        """While another writes, head and rows of a load belong together."""
        run_id, store = _new_id(), self.open_store(self.seal)
        done = threading.Event()

        async def write() -> None:
            rows: list[bytes] = []
            for revision in range(30):
                fresh = [_numbered(revision)] * 3
                rows += fresh
                head = sealed(run_id, revision + 1, rows, self.seal)
                await store.commit(run_id, expected=revision, head=head, rows=fresh)

        async def read() -> None:
            reader = self.open_store(self.seal)
            while not done.is_set():
                try:
                    found = await reader.load(run_id)
                except RunNotFound:
                    continue
                open_head(found, self.seal)

        def writing() -> None:
            try:
                asyncio.run(write())
            finally:
                done.set()

        _in_threads([writing, lambda: asyncio.run(read()), lambda: asyncio.run(read())])

    def test_a_cancelled_commit_is_whole_or_not_there(self) -> None:
        """Whoever goes on after the cancellation finds one or the other, and it stays."""

        async def scenario() -> None:
            store = self.open_store(self.seal)
            for turns in range(6):
                run_id = _new_id()
                head = sealed(run_id, 1, [b"{}"], self.seal)
                task = asyncio.ensure_future(
                    store.commit(run_id, expected=0, head=head, rows=[b"{}"])
                )
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                try:
                    found = await store.load(run_id)
                except RunNotFound:
                    continue
                open_head(found, self.seal)

        asyncio.run(scenario())

    # ── what is no saved run of ours is refused ───────────────────────────────────────────────

    def test_another_key_and_a_newer_schema_are_refused(self) -> None:
        """By the head; a store never hides them."""

        async def scenario() -> None:
            store, run_id, newer = self.open_store(self.seal), _new_id(), _new_id()
            head = sealed(run_id, 1, [], Seal(b"another key of at least 32 bytes"))
            await store.commit(run_id, expected=0, head=head, rows=[])
            _refused(await store.load(run_id), self.seal)
            head = sealed(newer, 1, [], self.seal, schema=SCHEMA + 1)
            await store.commit(newer, expected=0, head=head, rows=[])
            _refused(await store.load(newer), self.seal)

        asyncio.run(scenario())

    def test_the_seal_is_the_one_that_was_given(self) -> None:
        """The loop seals with it."""
        _equal(True, self.open_store(self.seal).seal is self.seal)


class SharedRunStoreContract(RunStoreContract):
    """Tests of a store that several processes use, beside those of every store."""

    def open_store(self, seal: Seal) -> SharedRunStore:
        """Open the storage under test; each call, the same storage."""
        raise NotImplementedError

    async def _stored(self, *ids: str) -> SharedRunStore:
        store = self.open_store(self.seal)
        for run_id in ids:
            await store.commit(run_id, expected=0, head=b'{"h":1}', rows=[b"{}"])
        return store

    def test_the_store_is_known_as_a_shared_one(self) -> None:
        """By its methods; the loop asks no more."""
        _equal(True, isinstance(self.open_store(self.seal), SharedRunStore))

    def test_runs_are_listed_once_and_sorted(self) -> None:
        """Those that were committed, and none that was only asked about."""

        async def scenario() -> None:
            ids = sorted(_new_id() for _ in range(4))
            store = await self._stored(*reversed(ids))
            asked = _new_id()
            claim = await store.claim(asked)
            listed = await store.list_ids()
            _equal(ids, [run_id for run_id in listed if run_id in ids])
            _equal(True, asked not in listed)
            if claim is not None:
                claim.release()

        asyncio.run(scenario())

    def test_a_deleted_run_is_gone_with_its_letters(self) -> None:
        """Its id can be used again, from the first revision on; others are untouched."""

        async def scenario() -> None:
            run_id, other = _new_id(), _new_id()
            store = await self._stored(run_id, other)
            await store.post(run_id, "k", b"{}")
            await store.delete(run_id)
            await _raised(RunNotFound, store.load(run_id))
            await _raised(RunNotFound, store.delete(run_id))
            await _raised(RunConflict, store.commit(run_id, expected=1, head=b'{"h":2}', rows=[]))
            await store.commit(run_id, expected=0, head=b'{"h":3}', rows=[])
            _equal((), (await store.load(run_id)).rows)
            _equal({}, dict(await store.letters(run_id)))
            _equal((b"{}",), (await store.load(other)).rows)

        asyncio.run(scenario())

    def test_a_reader_beside_first_commits_and_deletions_sees_a_whole_run_or_none(self) -> None:
        """A run that comes and goes meanwhile is there or not; it is never said to be damaged."""
        run_id, store = _new_id(), self.open_store(self.seal)
        done = threading.Event()
        rows = [_numbered(0)] * 3

        async def write() -> None:
            for _ in range(30):
                head = sealed(run_id, 1, rows, self.seal)
                await store.commit(run_id, expected=0, head=head, rows=rows)
                await store.delete(run_id)

        async def read() -> None:
            reader = self.open_store(self.seal)
            while not done.is_set():
                with contextlib.suppress(RunNotFound):
                    found = await reader.load(run_id)
                    _equal((1, 3), (found.revision, len(found.rows)))
                    open_head(found, self.seal)

        def writing() -> None:
            try:
                asyncio.run(write())
            finally:
                done.set()

        _in_threads([writing, lambda: asyncio.run(read()), lambda: asyncio.run(read())])

    def test_a_run_that_is_driven_is_not_deleted(self) -> None:
        """It is busy until its driver lets go."""

        async def scenario() -> None:
            run_id = _new_id()
            store = await self._stored(run_id)
            claim = await self.open_store(self.seal).claim(run_id)
            await _raised(RunBusy, store.delete(run_id))
            _equal(1, (await store.load(run_id)).revision)
            _released(claim)
            await store.delete(run_id)

        asyncio.run(scenario())

    def test_the_first_letter_under_a_key_stands(self) -> None:
        """Whoever comes later gets to know it; another key is another letter."""

        async def scenario() -> None:
            run_id = _new_id()
            store = await self._stored(run_id)
            _equal(b'{"w":1}', await store.post(run_id, "k", b'{"w":1}'))
            again = self.open_store(self.seal)
            _equal(b'{"w":1}', await again.post(run_id, "k", b'{"w":2}'))
            _equal(b'{"w":3}', await again.post(run_id, "../k\n", b'{"w":3}'))
            expected = {"k": b'{"w":1}', "../k\n": b'{"w":3}'}
            _equal(expected, dict(await store.letters(run_id)))

        asyncio.run(scenario())

    def test_of_letters_posted_together_one_stands(self) -> None:
        """All writers are told the same one."""

        async def scenario() -> None:
            run_id = _new_id()
            store = await self._stored(run_id)
            told = await asyncio.gather(
                *(store.post(run_id, "k", _numbered(n)) for n in range(_WRITERS))
            )
            _equal(1, len(set(told)))
            _equal({"k": told[0]}, dict(await store.letters(run_id)))

        asyncio.run(scenario())

    def test_a_letter_needs_a_run(self) -> None:
        """Nothing is kept for a run that is not there, whatever its id looks like."""

        async def scenario() -> None:
            store = self.open_store(self.seal)
            for run_id in (_new_id(), *HOSTILE_RUN_IDS):
                await _raised(RunNotFound, store.post(run_id, "k", b"{}"))

        asyncio.run(scenario())

    def test_a_commit_counts_the_letters(self) -> None:
        """The count is that of the last commit, or a later one; so a driver finds out at its next save."""

        async def scenario() -> None:
            run_id = _new_id()
            store = await self._stored(run_id)
            _equal(0, store.letter_count(run_id))
            for number in (1, 2):
                await self.open_store(self.seal).post(run_id, str(number), b"{}")
                await store.commit(run_id, expected=number, head=b'{"h":2}', rows=[])
                _equal(number, store.letter_count(run_id))

        asyncio.run(scenario())

    def test_one_claim_at_a_time(self) -> None:
        """Through any object of the storage; whoever lets go twice takes nothing from the next one."""

        async def scenario() -> None:
            run_id, other = _new_id(), _new_id()
            first, second = self.open_store(self.seal), self.open_store(self.seal)
            _equal(False, await second.is_claimed(run_id))
            claim = await first.claim(run_id)
            for store in (first, second):
                _equal(None, await store.claim(run_id))
                _equal(True, await store.is_claimed(run_id))
                _equal(False, await store.is_claimed(other))
            _released(claim)
            _equal(False, await second.is_claimed(run_id))
            again = await second.claim(run_id)
            _released(claim)
            _equal(None, await first.claim(run_id))
            _released(again)

        asyncio.run(scenario())

    def test_of_many_who_claim_one_gets_it(self) -> None:
        """Started together."""

        async def scenario() -> None:
            run_id, store = _new_id(), self.open_store(self.seal)
            told = await asyncio.gather(*(store.claim(run_id) for _ in range(_WRITERS)))
            (claim,) = [claim for claim in told if claim is not None]
            claim.release()

        asyncio.run(scenario())


async def commit_somehow(store: RunStore, run_id: str, row: bytes) -> int:
    """Append a row, as often as somebody else is faster; the new revision."""
    while True:
        try:
            expected = (await store.load(run_id)).revision
        except RunNotFound:
            expected = 0
        try:
            return await store.commit(run_id, expected=expected, head=row, rows=[row])
        except RunConflict:
            continue


def _new_id() -> str:
    return f"run-{secrets.token_hex(8)}"


def _numbered(number: int) -> bytes:
    return f'{{"n":{number}}}'.encode()


def _in_threads(jobs: Sequence[Callable[[], None]]) -> None:
    """Run the jobs at once; what one raises is raised here."""
    failed: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        # Whatever it is, the test that started the thread has to fail with it.
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _equal(expected: object, found: object) -> None:
    if expected != found:
        raise AssertionError(f"expected {expected!r:.400}, found {found!r:.400}")


_Error = TypeVar("_Error", bound=BaseException)


async def _raised(kind: type[_Error], work: Awaitable[object]) -> _Error:
    try:
        answer = await work
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, and it answered {answer!r:.200}")


def _refused(saved: SavedRun, seal: Seal) -> None:
    try:
        open_head(saved, seal)
    except StateRefused:
        return
    raise AssertionError("the head was not refused")


def _released(claim: object) -> None:
    release = getattr(claim, "release", None)
    if release is None:
        raise AssertionError("the claim was not given")
    release()
