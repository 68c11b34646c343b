"""The texts that citations digest, kept by their digest: a port, and a store in memory.

A store keeps content and nothing else: no address, no time, no run. It is bounded, and what was used
least recently goes first. A text that is gone makes its quotations unverifiable, never verified.
"""

import threading
from typing import Final, Protocol

from citations.digests import revision_id

__all__ = ("MAX_BYTES", "MAX_ENTRIES", "MemoryRevisionStore", "RevisionStore")

MAX_ENTRIES: Final = 4_096
MAX_BYTES: Final = 256 * 1_048_576
_SURROGATES: Final = "surrogatepass"


class RevisionStore(Protocol):
    """Keeps texts and gives them back; called from any thread."""

    def put(self, text: str, /) -> str | None:
        """Keep a text; its revision id, or None when it is larger than the store may be.

        Keeping it again counts as a use of it.

        Raises:
            OSError: it could not be written.
        """
        ...

    def get(self, revision: str, /) -> str | None:
        """The text of a revision id; None when it is not kept, or not whole."""
        ...


class MemoryRevisionStore:
    """Texts in this process, at most *max_entries* and *max_bytes* of UTF-8.

    Raises:
        ValueError: a bound is not a whole number from 1.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        for name, bound in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if type(bound) is not int or bound < 1:
                raise ValueError(f"{name} is not a whole number from 1")
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._texts: dict[str, tuple[str, int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, text: str, /) -> str | None:
        """Keep a text. See `RevisionStore.put`."""
        size = len(text.encode("utf-8", _SURROGATES))
        if size > self._max_bytes:
            return None
        key = revision_id(text)
        with self._lock:
            _, before = self._texts.pop(key, ("", 0))
            self._texts[key] = (text, size)
            self._bytes += size - before
            while len(self._texts) > self._max_entries or self._bytes > self._max_bytes:
                _, gone = self._texts.pop(next(iter(self._texts)))
                self._bytes -= gone
        return key

    def get(self, revision: str, /) -> str | None:
        """The text of a revision. See `RevisionStore.get`."""
        with self._lock:
            held = self._texts.pop(revision, None)
            if held is None:
                return None
            self._texts[revision] = held
            return held[0]

    def __len__(self) -> int:
        """How many texts are kept."""
        return len(self._texts)
