"""Where the command keeps its runs, logs and key: one folder, readable by its owner only."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import attrs
import click
import orjson

from runtime_pack.audit import AuditLog, LogHead, LogSigner, VerifyKey
from runtime_pack.audit.files import replace_durably
from runtime_pack.cli._people import who
from runtime_pack.config_events import config_loaded, policy_loaded
from runtime_pack.errors import AuditError, ContractError, StoreError
from runtime_pack.messages import Json
from runtime_pack.policy import PolicyRef
from runtime_pack.revisions import DirectoryRevisionStore
from runtime_pack.state import open_head
from runtime_pack.state_folder import default_folder, holds_runs, open_store
from runtime_pack.stores.files import DirectoryRunStore
from runtime_pack.stores.regular import read_regular

if TYPE_CHECKING:
    from runtime_pack.policy_file import PolicyFile

__all__ = ("Heads", "StateFolder", "is_new", "open_state", "state_option")

_VARIABLE: Final = "RUNTIME_PACK_STATE"
_MAX_KEPT_BYTES: Final = 4096
_LOG_KEY: Final = "log-key.pem"
_ORIGIN: Final = "runtime-pack/logs"
_PROGRAM: Final = "runtime-pack"
_POLICIES: Final = "policies.json"
_MAX_POLICIES_BYTES: Final = 1 << 20

state_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=_VARIABLE,
    help="Folder for runs, logs and the key.  [default: the user's state folder]",
)


@attrs.frozen(kw_only=True)
class Heads:
    """The heads of a log that are kept in a state folder, in order.

    Attributes:
        unreadable: saved runs and heads whose seal does not match. They prove nothing; whoever
            cut the log may have damaged them, so it is said.
        keys: the key that signs the logs of the folder, for a log that is one of them.
        origin: what such a log is called in its checkpoints.
    """

    found: tuple[LogHead, ...] = ()
    unreadable: int = 0
    keys: tuple[VerifyKey, ...] = ()
    origin: str | None = None


@attrs.frozen
class StateFolder:
    """The folder and what is in it."""

    root: Path
    store: DirectoryRunStore

    def note_of(self, run_id: str) -> Path:
        """Where `ask` notes what a run of its own needs to be taken up; others have no note."""
        return self.root / "asked" / f"{run_id}.json"

    @property
    def revisions(self) -> DirectoryRevisionStore:
        """The texts that runs have read, for the check of their quotations."""
        return DirectoryRevisionStore(self.root / "revisions")

    @contextmanager
    def logging(
        self, policy: PolicyFile | None = None, *, compared: bool = True
    ) -> Iterator[AuditLog]:
        """A new log for this process; its last head is kept beside it when it is closed.

        It begins with the program and the *policy* that holds, *compared* with the one of its id that
        held before in this folder, unless a run stays under what it was started with.

        Raises:
            AuditError: it cannot be made, written or closed.
        """
        log = self._open_log()
        try:
            by = who()
            log.append(config_loaded(_program(), _settings(), by=by))
            if policy is not None:
                before = self._known_policy(policy.ref) if compared else None
                log.append(policy_loaded(policy.ref, before, by=by))
            log.flush()
            yield log
        finally:
            log.close()
            self._keep_head(log)

    def _open_log(self) -> AuditLog:
        logs = self.root / "logs"
        try:
            logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise AuditError(f"the folder of the logs cannot be made: {error}") from error
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = logs / f"{stamp}-{os.getpid()}-{secrets.token_hex(2)}.jsonl"
        return AuditLog(path, signer=self._signer(), origin=_origin_of(path))

    def _known_policy(self, now: PolicyRef) -> PolicyRef | None:
        """The policy of this id that held last, in whose place this one is noted.

        Raises:
            AuditError: it cannot be noted.
        """
        path = self.root / _POLICIES
        try:
            known = orjson.loads(read_regular(path, _MAX_POLICIES_BYTES))
        except (OSError, orjson.JSONDecodeError):
            known = None
        known = known if isinstance(known, dict) else {}
        before = known.get(now.id)
        known[now.id] = now.to_json()
        try:
            replace_durably(path, orjson.dumps(known, option=orjson.OPT_SORT_KEYS))
        except OSError as error:
            raise AuditError(f"the policy cannot be noted: {error}") from error
        try:
            return None if before is None else PolicyRef(**before)
        except TypeError:
            return None

    def _signer(self) -> LogSigner:
        """The key that signs the logs of this folder, made when there is none yet.

        Raises:
            AuditError: it cannot be made or read.
        """
        path = self.root / _LOG_KEY
        if not path.exists():
            draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
            LogSigner.generate(_ORIGIN).save(draft)
            try:
                # Of two processes that make one at once, the first has it.
                with suppress(FileExistsError):
                    os.link(draft, path)
                draft.unlink()
            except OSError as error:
                raise AuditError(f"the key of the logs cannot be made: {error}") from error
        return LogSigner.load(path, _ORIGIN)

    def public_key(self) -> VerifyKey:
        """The key that signs the logs of this folder, to be given to those who verify.

        Raises:
            AuditError: it cannot be made or read.
        """
        return self._signer().key

    def _keys(self, log: Path) -> tuple[VerifyKey, ...]:
        """Whose checkpoints are believed for one of this folder's own logs."""
        own = log.parent == (self.root / "logs").resolve() and (self.root / _LOG_KEY).exists()
        return (self._signer().key,) if own else ()

    def _keep_head(self, log: AuditLog) -> None:
        """Runs keep the head of the log they used last; this one covers the log's last line."""
        path, head = _head_path(log.path), str(log.head)
        tag = self.store.seal.tag(_head_statement(log.path, head))
        draft = path.with_name(f"{path.name}.new")
        try:
            with _private(draft) as file:
                file.write(f"{head} {tag}\n".encode())
            draft.replace(path)
        except OSError as error:
            raise AuditError(f"the head of the log cannot be kept: {error}") from error

    def saved_heads(self, log: Path) -> Heads:
        """The heads of *log* that this folder keeps, under their seals."""
        heads: set[LogHead] = set()
        unreadable = 0
        readers: list[Callable[[Path], LogHead | None]] = [self._kept_head]
        try:
            readers += [partial(self._run_head, run_id) for run_id in self.store.run_ids()]
        except StoreError:
            unreadable += 1
        for read in readers:
            try:
                head = read(log.resolve())
            except (StoreError, AuditError):
                unreadable += 1
                continue
            if head is not None:
                heads.add(head)
        found = tuple(sorted(heads, key=lambda head: head.seq))
        keys = self._keys(log.resolve())
        origin = _origin_of(log.resolve()) if keys else None
        return Heads(found=found, unreadable=unreadable, keys=keys, origin=origin)

    def _run_head(self, run_id: str, log: Path) -> LogHead | None:
        """The head that a run stored, if it is of this log."""
        body = open_head(self.store.read(run_id), self.store.seal)
        if body.get("audit_log") != str(log) or not isinstance(body.get("audit_head"), str):
            return None
        return LogHead.parse(str(body["audit_head"]))

    def _kept_head(self, log: Path) -> LogHead | None:
        """The head that was kept when the log was closed; None for a log of another folder."""
        if log.parent != (self.root / "logs").resolve():
            return None
        try:
            kept = read_regular(_head_path(log), _MAX_KEPT_BYTES).decode()
            head, _, tag = kept.rstrip("\n").partition(" ")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise AuditError(f"the kept head cannot be read: {error}") from error
        self.store.seal.check(_head_statement(log, head), tag)
        return LogHead.parse(head)


def _program() -> str:
    """The command that runs, without its arguments: those may hold what is private."""
    context = click.get_current_context(silent=True)
    return _PROGRAM if context is None else context.command_path


def _settings() -> dict[str, Json]:
    try:
        version = metadata.version("agent-runtime-pack")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {"version": version, "python": platform.python_version()}


def _origin_of(log: Path) -> str:
    """What a log of a state folder is called in its checkpoints: one key signs them all."""
    return f"{_ORIGIN}/{log.stem}"


def _head_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.head")


def _head_statement(log: Path, head: str) -> bytes:
    """What the seal of a kept head covers: it must not pass for that of another log."""
    return f"head of {log.name} is {head}".encode()


@contextmanager
def _private(path: Path) -> Iterator[BinaryIO]:
    """A new file for its owner only, on the disk when the block is left."""
    handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def open_state(folder: Path | None, *, create: bool = True) -> StateFolder:
    """The state folder, made when it is not there yet.

    Raises:
        click.ClickException: it cannot be made or read; the message says what to change.
    """
    root = folder or default_folder()
    try:
        return StateFolder(root, open_store(root, create=create))
    except (OSError, ContractError, StoreError) as error:
        text = f"the state folder {root} cannot be used ({error}); choose one with --state-dir"
        raise click.ClickException(text) from error


def is_new(folder: Path | None) -> Path | None:
    """The state folder, if nothing was kept in it yet; None where there is something to open."""
    root = folder or default_folder()
    return None if holds_runs(root) else root
