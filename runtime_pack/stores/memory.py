"""Runs in this process's memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from runtime_pack.errors import RunBusy, RunConflict, RunNotFound
from runtime_pack.seal import Seal
from runtime_pack.stores.port import Claim, SavedRun, checked_run_id

__all__ = ("MemoryRunStore",)


class MemoryRunStore:
    """Runs in this process's memory; for tests and for approvals within one process.

    May be used from several threads and event loops.
    """

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal or Seal.random()
        self._lock = threading.Lock()
        self._heads: dict[str, tuple[int, bytes]] = {}
        self._rows: dict[str, list[bytes]] = {}
        self._letters: dict[str, dict[str, bytes]] = {}
        self._claims: set[str] = set()

    @property
    def seal(self) -> Seal:
        """The key; random unless one was given."""
        return self._seal

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """See `RunStore.commit`.

        Raises:
            RunConflict: as there; RunNotFound: the id cannot be one.
        """
        with self._lock:
            found, _ = self._heads.get(checked_run_id(run_id), (0, b""))
            if found != expected:
                raise RunConflict(run_id, expected, found)
            self._heads[run_id] = found + 1, head
            self._rows.setdefault(run_id, []).extend(rows)
            return found + 1

    async def load(self, run_id: str) -> SavedRun:
        """See `RunStore.load`.

        Raises:
            RunNotFound: there is none.
        """
        with self._lock:
            if run_id not in self._heads:
                raise RunNotFound(run_id)
            revision, head = self._heads[run_id]
            rows = tuple(self._rows[run_id])
        return SavedRun(run_id=run_id, revision=revision, head=head, rows=rows)

    def put(self, saved: SavedRun) -> None:
        """Take a run from `LoopResult.state`; its seal is checked when it is resumed."""
        with self._lock:
            self._heads[saved.run_id] = saved.revision, saved.head
            self._rows[saved.run_id] = list(saved.rows)

    async def list_ids(self) -> tuple[str, ...]:
        """See `SharedRunStore.list_ids`."""
        with self._lock:
            return tuple(sorted(self._heads))

    async def delete(self, run_id: str) -> None:
        """See `SharedRunStore.delete`.

        Raises:
            RunNotFound, RunBusy: as there.
        """
        with self._lock:
            if run_id not in self._heads:
                raise RunNotFound(run_id)
            if run_id in self._claims:
                raise RunBusy(run_id)
            del self._heads[run_id], self._rows[run_id]
            self._letters.pop(run_id, None)

    async def post(self, run_id: str, key: str, body: bytes) -> bytes:
        """See `SharedRunStore.post`.

        Raises:
            RunNotFound: there is no such run.
        """
        with self._lock:
            if run_id not in self._heads:
                raise RunNotFound(run_id)
            return self._letters.setdefault(run_id, {}).setdefault(key, body)

    async def letters(self, run_id: str) -> Mapping[str, bytes]:
        """See `SharedRunStore.letters`."""
        with self._lock:
            return dict(self._letters.get(run_id, {}))

    def letter_count(self, run_id: str) -> int:
        """See `SharedRunStore.letter_count`; always of this moment."""
        return len(self._letters.get(run_id, ()))

    async def claim(self, run_id: str) -> Claim | None:
        """See `SharedRunStore.claim`.

        Raises:
            RunNotFound: the id cannot be one.
        """
        with self._lock:
            if checked_run_id(run_id) in self._claims:
                return None
            self._claims.add(run_id)
        return _MemoryClaim(self._claims, run_id)

    async def is_claimed(self, run_id: str) -> bool:
        """See `SharedRunStore.is_claimed`."""
        return run_id in self._claims


class _MemoryClaim:
    """The right to drive a run of one process: its id in a set, until it is released."""

    def __init__(self, claims: set[str], run_id: str) -> None:
        self._claims = claims
        self._run_id: str | None = run_id

    def release(self) -> None:
        """See `Claim.release`."""
        if self._run_id is not None:
            self._claims.discard(self._run_id)
            self._run_id = None
