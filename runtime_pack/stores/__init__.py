"""The stores of runs: `port` says what one is, `memory`, `files` and `sqlite` are those of the pack.

A store keeps bytes; what is in them, and the seal over it, is made and checked in `state`.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from runtime_pack.stores.port import Claim, RunStore, SavedRun, SharedRunStore

if TYPE_CHECKING:
    from runtime_pack.stores.files import DirectoryRunStore
    from runtime_pack.stores.memory import MemoryRunStore

# A run needs the port; each store is loaded for who makes one.
_STORES: Final = {
    "DirectoryRunStore": "runtime_pack.stores.files",
    "MemoryRunStore": "runtime_pack.stores.memory",
}

__all__ = (
    "Claim",
    "DirectoryRunStore",
    "MemoryRunStore",
    "RunStore",
    "SavedRun",
    "SharedRunStore",
)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _STORES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_STORES[name]), name)
