"""The contract of stores, for each store of the pack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_pack import DirectoryRunStore, MemoryRunStore, Seal, SQLiteRunStore
from runtime_pack.testing import SharedRunStoreContract


class TestMemory(SharedRunStoreContract):
    @pytest.fixture(autouse=True)
    def _storage(self) -> None:
        self.store = MemoryRunStore(self.seal)

    def open_store(self, seal: Seal) -> MemoryRunStore:
        assert seal is self.seal
        return self.store


class TestDirectory(SharedRunStoreContract):
    @pytest.fixture(autouse=True)
    def _storage(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs"

    def open_store(self, seal: Seal) -> DirectoryRunStore:
        return DirectoryRunStore(self.path, seal=seal)


class TestSQLite(SharedRunStoreContract):
    @pytest.fixture(autouse=True)
    def _storage(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path / "runs.sqlite3"
        self.opened: list[SQLiteRunStore] = []
        yield
        for store in self.opened:
            store.close()

    def open_store(self, seal: Seal) -> SQLiteRunStore:
        store = SQLiteRunStore(self.path, seal=seal)
        self.opened.append(store)
        return store
