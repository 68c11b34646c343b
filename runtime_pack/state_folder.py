"""The folder where the command keeps saved runs and their key, for programs that share it.

`key` seals the runs below `runs`; whoever can read it can decide.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from runtime_pack.given_files import read_bounded
from runtime_pack.seal import Seal
from runtime_pack.stores import DirectoryRunStore

__all__ = ("default_folder", "holds_runs", "open_store")

_VARIABLE: Final = "RUNTIME_PACK_STATE"
_KEY_BYTES: Final = 32
_MAX_KEY_BYTES: Final = 1 << 16


def default_folder() -> Path:
    """Where the command looks when nobody says otherwise.

    Source: XDG base directory specification: user-specific state.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return root / "agent-runtime-pack"


def holds_runs(folder: Path) -> bool:
    """Whether there is anything of the command's in the folder: a key, or runs without one.

    What cannot be looked into is not empty: who opens it is told why.
    """
    return _is_there(folder / "key") or _is_there(folder / "runs")


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def open_store(folder: Path | str | None = None, *, create: bool = True) -> DirectoryRunStore:
    """The store of saved runs that `runtime-pack runs` works on.

    Args:
        folder: The state folder (`--state-dir`); by default the one that the command uses.
        create: Make the folder and its key where they are not; else they have to be there.

    Raises:
        OSError: the folder or its key cannot be made or read.
        ContractError: the key is too short to be one.
        StoreError: the folder of the runs cannot be used.
    """
    root = default_folder() if folder is None else Path(folder)
    if create:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    seal = Seal(_key(root / "key", create=create))
    return DirectoryRunStore(root / "runs", seal=seal)


def _key(path: Path, *, create: bool) -> bytes:
    """The key that seals saved runs; made once, readable by its owner only."""
    if create and not path.exists():
        draft = path.with_name(f".key.{secrets.token_hex(4)}")
        _write_private(draft, secrets.token_bytes(_KEY_BYTES))
        try:
            # A link fails where a key has appeared meanwhile: the first one counts.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return read_bounded(path, _MAX_KEY_BYTES)


def _write_private(path: Path, body: bytes) -> None:
    """A new file for its owner only, on the disk when this returns."""
    handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
