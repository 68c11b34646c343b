"""How a driver learns what others say of its run: the claim on it, and the letters to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from runtime_pack.errors import RunBusy, StoreError
from runtime_pack.guard import AgentTaskRun
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.letters import CANCEL_KEY, CancelRequest, Letters, open_letters, seal_letter
from runtime_pack.stores import RunStore
from runtime_pack.stores.port import as_shared

__all__ = ("PostBox", "claimed", "leave_wish")

_READ_SECONDS: Final = 30.0
_LEAVE_SECONDS: Final = 5.0
_NONE: Final = Letters()


@asynccontextmanager
async def claimed(store: RunStore | None, run_id: str) -> AsyncIterator[None]:
    """While the run is driven, nobody else does; a store that cannot say so has its revisions.

    Raises:
        RunBusy: somebody drives it.
        StoreError: the store cannot say.
    """
    shared = as_shared(store)
    if shared is None:
        yield
        return
    claim = await shared.claim(run_id)
    if claim is None:
        raise RunBusy(run_id)
    try:
        yield
    finally:
        claim.release()


async def leave_wish(store: RunStore, run_id: str, words: str) -> None:
    """Ask whoever drives the run to end it after the step in hand. The first wish stands.

    Raises:
        RunNotFound: there is no such run.
        StoreError: it could not be left.
    """
    shared = as_shared(store)
    if shared is None:
        return
    body = CancelRequest(words=words).to_json()
    await shared.post(run_id, CANCEL_KEY, seal_letter(run_id, CANCEL_KEY, body, store.seal))


class PostBox:
    """The letters to one run. A store that keeps none costs nothing."""

    __slots__ = ("_read", "_store", "run")

    def __init__(self, run: AgentTaskRun, store: RunStore | None) -> None:
        self.run = run
        self._store = as_shared(store)
        self._read = 0

    async def leave_cancel(self, words: str) -> None:
        """Say to whoever takes the run up that it was cancelled, as well as the store lets us."""
        store = self._store
        if store is None:
            return
        # The host's store: the run is over for us, whatever it makes of the letter.
        with suppress(Exception):
            wish = leave_wish(store, self.run.id, words)
            await bounded(self.run, _LEAVE_SECONDS, wish, patient=True)

    def has_news(self) -> bool:
        """Whether letters have come since they were read; asked at every save."""
        store = self._store
        return store is not None and store.letter_count(self.run.id) > self._read

    async def read(self) -> Letters:
        """All letters to the run.

        Raises:
            StateRefused: one was not written by who has the key.
            StoreError: they could not be read.
        """
        store = self._store
        if store is None:
            return _NONE
        try:
            stored = await bounded(
                self.run, _READ_SECONDS, store.letters(self.run.id), patient=True
            )
        except StoreError:
            raise
        except TimeUp as error:
            raise StoreError("the store did not end in time") from error
        # The host's store: whatever it raises, nobody knows what was said.
        except Exception as error:
            raise StoreError(f"the store failed ({type(error).__name__})") from error
        self._read = len(stored)
        return open_letters(self.run.id, stored, store.seal) if stored else _NONE
