"""What a store of runs is: values and protocols. Nothing here does I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast, runtime_checkable

from runtime_pack.errors import RunNotFound
from runtime_pack.inner import frozen
from runtime_pack.seal import Seal

__all__ = (
    "Claim",
    "RunStore",
    "SavedRun",
    "SharedRunStore",
    "as_shared",
    "checked_run_id",
    "is_run_id",
)

# An id becomes the name of a folder: the same form as `guard.task_run.checked_id`.
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z", re.ASCII)


def is_run_id(name: str) -> bool:
    """Whether a run can have this id; of other names in its place, a store lists none."""
    return _RUN_ID.match(name) is not None


def checked_run_id(run_id: str) -> str:
    """The id, if a run can have it: no store looks anywhere for another one.

    Raises:
        RunNotFound: it is not 1 to 64 letters, digits, - or _, or starts with -.
    """
    # The host's value: it may be anything.
    given: object = run_id
    if not isinstance(given, str) or _RUN_ID.match(given) is None:
        raise RunNotFound(str(given)[:80])
    return given


@frozen(kw_only=True)
class SavedRun:
    """A run as a store holds it: `revision` counts saves from 1; rows are JSON, one each."""

    run_id: str
    revision: int
    head: bytes
    rows: tuple[bytes, ...]


class RunStore(Protocol):
    """Where runs are saved. Each method is atomic: it happens as a whole or not at all."""

    @property
    def seal(self) -> Seal:
        """The host's key."""
        ...

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """Replace the head and append rows if the run is at revision *expected* (0: is new).

        Returns:
            The new revision.

        Raises:
            RunConflict: the run is at another revision; nothing was written.
            StoreError: it could not be written.
        """
        ...

    async def load(self, run_id: str) -> SavedRun:
        """The run as it was last committed.

        Raises:
            RunNotFound: there is none.
            StoreError: it could not be read.
        """
        ...


class Claim(Protocol):
    """The right to drive a run; it ends with the process at the latest."""

    def release(self) -> None:
        """Let others drive the run. A second release does nothing."""
        ...


@runtime_checkable
class SharedRunStore(RunStore, Protocol):
    """A store that several processes use at once: it lists, passes letters on, and knows who drives.

    A letter is a decision, a grant or a request to cancel, left for whoever drives the run next or
    now; each has a key, and the first under a key stands. What is in it is sealed by its writer
    (`runtime_pack.letters`).
    """

    async def list_ids(self) -> tuple[str, ...]:
        """The ids of the saved runs, sorted; one that cannot be read is among them.

        Raises:
            StoreError: it could not be read.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Forget the run, its rows and its letters.

        Raises:
            RunNotFound: there is none.
            RunBusy: it is being driven; nothing was deleted.
            StoreError: it could not be deleted.
        """
        ...

    async def post(self, run_id: str, key: str, body: bytes) -> bytes:
        """Leave a letter for the run unless there is one under this key.

        Returns:
            The letter that stands: *body*, or the one that was there before.

        Raises:
            RunNotFound: no such run.
            StoreError: it could not be written.
        """
        ...

    async def letters(self, run_id: str) -> Mapping[str, bytes]:
        """All letters of the run by key; none for a run that is not there.

        Raises:
            StoreError: they could not be read.
        """
        ...

    def letter_count(self, run_id: str) -> int:
        """How many letters the run had at its last commit through this object.

        Asked at every step of a run, so it does no I/O.
        """
        ...

    async def claim(self, run_id: str) -> Claim | None:
        """The right to drive the run, or None while somebody else has it.

        Raises:
            StoreError: nobody can say.
        """
        ...

    async def is_claimed(self, run_id: str) -> bool:
        """Whether somebody drives the run. Takes nothing, so it never disturbs who wants to.

        Raises:
            StoreError: nobody can say.
        """
        ...


def as_shared(store: RunStore | None) -> SharedRunStore | None:
    """The store, if it is a shared one.

    Asked by every drive of a run, so it looks at two methods and not at all of them, as
    `isinstance` would.
    """
    if hasattr(store, "letter_count") and hasattr(store, "claim"):
        return cast("SharedRunStore", store)
    return None
