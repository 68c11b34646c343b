"""The stores of runs: `port` says what one is, `memory`, `files` and `sqlite` are those of the pack.

A store keeps bytes; what is in them, and the seal over it, is made and checked in `state`.
"""

from runtime_pack.stores.files import DirectoryRunStore
from runtime_pack.stores.memory import MemoryRunStore
from runtime_pack.stores.port import Claim, RunStore, SavedRun, SharedRunStore

__all__ = (
    "Claim",
    "DirectoryRunStore",
    "MemoryRunStore",
    "RunStore",
    "SavedRun",
    "SharedRunStore",
)
