"""Where the command keeps its runs, logs and key: one folder, readable by its owner only."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
import click

from runtime_pack.audit import AuditLog, LogHead
from runtime_pack.errors import AuditError, StoreError
from runtime_pack.seal import Seal
from runtime_pack.state import DirectoryRunStore, open_head

__all__ = ("StateFolder", "open_state", "state_option")

_VARIABLE: Final = "RUNTIME_PACK_STATE"

state_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=_VARIABLE,
    help="Folder for runs, logs and the key.  [default: the user's state folder]",
)


def _default_folder() -> Path:
    """XDG base directory specification: user-specific state."""
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return root / "agent-runtime-pack"


@attrs.frozen
class StateFolder:
    """The folder and what is in it."""

    root: Path
    store: DirectoryRunStore

    def open_log(self) -> AuditLog:
        """A new log for this process."""
        logs = self.root / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        return AuditLog(logs / f"{stamp}-{os.getpid()}-{secrets.token_hex(2)}.jsonl")

    def saved_heads(self, log: Path) -> tuple[LogHead, ...]:
        """The heads of *log* that runs of this folder stored, under their seals.

        A run whose seal does not match contributes nothing: its head proves nothing.
        """
        heads: set[LogHead] = set()
        for run_id in self.store.run_ids():
            try:
                body = open_head(self.store.read(run_id), self.store.seal)
            except StoreError:
                continue
            if body.get("audit_log") == str(log.resolve()) and isinstance(
                body.get("audit_head"), str
            ):
                heads.add(LogHead.parse(str(body["audit_head"])))
        return tuple(sorted(heads, key=lambda head: head.seq))


def open_state(folder: Path | None, *, create: bool = True) -> StateFolder:
    """The state folder, made when it is not there yet.

    Raises:
        click.ClickException: it cannot be made or read; the message says what to change.
    """
    root = folder or _default_folder()
    try:
        if create:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        seal = Seal(_key(root / "key", create=create))
        return StateFolder(root, DirectoryRunStore(root / "runs", seal=seal))
    except (OSError, StoreError, AuditError) as error:
        text = f"the state folder {root} cannot be used ({error}); choose one with --state-dir"
        raise click.ClickException(text) from error


def _key(path: Path, *, create: bool) -> bytes:
    """The key that seals saved runs; made once, readable by its owner only."""
    if create and not path.exists():
        draft = path.with_name(f".key.{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link fails where a key has appeared meanwhile: the first one counts.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_bytes()
