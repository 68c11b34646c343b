"""Work that blocks, in a thread, such that nobody goes on before it has ended; stores made of it."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from runtime_pack.seal import Seal
from runtime_pack.stores.claims import Claims
from runtime_pack.stores.port import Claim, SavedRun, checked_run_id

__all__ = ("BlockingStore", "whole")

_T = TypeVar("_T")


async def whole(work: Callable[[], _T]) -> _T:
    """What *work* returns, run in a thread.

    A thread cannot be stopped: when the caller is cancelled, what it writes must be there before
    anyone goes on.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work has ended.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Cancelled again meanwhile: it is one cancellation to the caller.
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


class BlockingStore(ABC):
    """A `SharedRunStore` over methods that block: each runs in a thread, what writes runs to its end."""

    def __init__(self, seal: Seal, claims: Claims) -> None:
        self._seal = seal
        self._claims = claims
        self._letter_counts: dict[str, int] = {}

    @property
    def seal(self) -> Seal:
        """The host's key."""
        return self._seal

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """See `RunStore.commit`."""
        return await whole(partial(self._commit, run_id, expected, head, tuple(rows)))

    async def load(self, run_id: str) -> SavedRun:
        """See `RunStore.load`."""
        return await asyncio.to_thread(self.read, run_id)

    async def list_ids(self) -> tuple[str, ...]:
        """See `SharedRunStore.list_ids`."""
        return await asyncio.to_thread(self.run_ids)

    async def delete(self, run_id: str) -> None:
        """See `SharedRunStore.delete`."""
        await whole(partial(self._delete, run_id))

    async def post(self, run_id: str, key: str, body: bytes) -> bytes:
        """See `SharedRunStore.post`."""
        return await whole(partial(self._post, run_id, key, body))

    async def letters(self, run_id: str) -> Mapping[str, bytes]:
        """See `SharedRunStore.letters`."""
        return await asyncio.to_thread(self._read_letters, run_id)

    def letter_count(self, run_id: str) -> int:
        """See `SharedRunStore.letter_count`."""
        return self._letter_counts.get(run_id, 0)

    async def claim(self, run_id: str) -> Claim | None:
        """See `SharedRunStore.claim`."""
        return await asyncio.to_thread(self._claims.take, checked_run_id(run_id))

    async def is_claimed(self, run_id: str) -> bool:
        """See `SharedRunStore.is_claimed`."""
        return await asyncio.to_thread(self._claims.is_taken, checked_run_id(run_id))

    # ── what blocks ───────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def run_ids(self) -> tuple[str, ...]:
        """The ids of the saved runs, sorted."""

    @abstractmethod
    def read(self, run_id: str) -> SavedRun:
        """The last committed revision."""

    @abstractmethod
    def _commit(self, run_id: str, expected: int, head: bytes, rows: tuple[bytes, ...]) -> int: ...

    @abstractmethod
    def _delete(self, run_id: str) -> None: ...

    @abstractmethod
    def _post(self, run_id: str, key: str, body: bytes) -> bytes: ...

    @abstractmethod
    def _read_letters(self, run_id: str) -> Mapping[str, bytes]: ...
