"""Old files of a log are deleted on purpose: whole ones only, and a signed tombstone says so."""

from __future__ import annotations

import os
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from runtime_pack.audit.files import older_segments, read_lines, sync_folder, tombstone_path
from runtime_pack.audit.note import Tombstone
from runtime_pack.audit.verify import LogStatus, begun, verify_log
from runtime_pack.errors import AuditError

if TYPE_CHECKING:
    from runtime_pack.audit.keys import LogSigner

__all__ = ("delete_older",)


def delete_older(
    log: Path, *, before: datetime, signer: LogSigner, by: str, now: datetime
) -> tuple[Path, ...]:
    """Delete the files of a log whose last line is older than *before*; those that were deleted.

    The log is verified first: what was tampered with is evidence. The tombstone is on the disk
    before the first file goes, and the oldest goes first.

    Raises:
        AuditError: the log does not verify under the signer's key, *by* is no line of text, or a
            file cannot be read, written or deleted.
    """
    if not by or not by.isprintable() or before.tzinfo is None or now.tzinfo is None:
        raise AuditError("a tombstone names who deletes, in one line, and times with a zone")
    found = verify_log(log, keys=[signer.key])
    if found.status is LogStatus.TAMPERED:
        raise AuditError(f"the log does not verify ({found.faults[0].problem}): nothing is deleted")
    older = [path for _, path in older_segments(log)]
    old = [path for path in older if _last_time(path) < before]
    # A beginning of the log only, whatever the clock did.
    old = [path for path, first in zip(old, older, strict=False) if path == first]
    if not old:
        return ()
    left = (*older[len(old) :], log)[0]
    start, _ = begun(left)
    frontier = start.frontier()
    if frontier is None:
        raise AuditError(f"{left} does not hold the tree of what is before it: nothing is deleted")
    stone = Tombstone(
        origin=signer.name,
        size=start.head.seq,
        head=start.head.sha256,
        root=frontier.root(),
        by=by[:200],
        at=now.isoformat(),
    )
    try:
        _replace(tombstone_path(log), str(signer.note(stone.text())).encode())
        for path in old:
            path.unlink()
        sync_folder(log.parent)
    except OSError as error:
        raise AuditError(f"old files cannot be deleted: {error}") from error
    return tuple(old)


def _last_time(path: Path) -> datetime:
    """When the last line of a file was written.

    Raises:
        AuditError: it does not say so.
    """
    ((last, _),) = deque(read_lines(path), maxlen=1) or ((b"", False),)
    try:
        return datetime.fromisoformat(str(orjson.loads(last)["ts"]))
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(f"{path} does not say when it ends") from error


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    handle = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
