"""Old files of a log are deleted on purpose: whole ones only, and a signed tombstone says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from runtime_pack.audit.files import (
    older_segments,
    read_checkpoints,
    read_lines,
    replace_durably,
    sync_folder,
    tombstone_path,
)
from runtime_pack.audit.note import Tombstone, VerifyKey
from runtime_pack.audit.verify import LogStatus, begun, verify_log
from runtime_pack.errors import AuditError

if TYPE_CHECKING:
    from runtime_pack.audit.keys import LogSigner

__all__ = ("delete_older",)


def delete_older(
    log: Path,
    *,
    before: datetime,
    signer: LogSigner,
    by: str,
    now: datetime,
    keys: Iterable[VerifyKey] = (),
) -> tuple[Path, ...]:
    """Delete the files of a log whose last line is older than *before*; those that were deleted.

    *keys* are those that signed the log before its signer: what they signed has to verify, too.

    The log is verified first: what was tampered with is evidence. The tombstone is on the disk
    before the first file goes, and the oldest goes first.

    Raises:
        AuditError: the log does not verify under the signer's key and *keys*, another key signs it
            by now, *by* is no line of text, or a file cannot be read, written or deleted.
    """
    if not by or not by.isprintable() or before.tzinfo is None or now.tzinfo is None:
        raise AuditError("a tombstone names who deletes, in one line, and times with a zone")
    found = verify_log(log, keys=[signer.key, *keys])
    if found.status is LogStatus.TAMPERED:
        raise AuditError(f"the log does not verify ({found.faults[0].problem}): nothing is deleted")
    origin = _origin_of(log, signer)
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
        origin=origin,
        size=start.head.seq,
        head=start.head.sha256,
        root=frontier.root(),
        by=by[:200],
        at=now.isoformat(),
    )
    try:
        replace_durably(tombstone_path(log), str(signer.note(stone.text())).encode())
        for path in old:
            path.unlink()
        sync_folder(log.parent)
    except OSError as error:
        raise AuditError(f"old files cannot be deleted: {error}") from error
    return tuple(old)


def _origin_of(log: Path, signer: LogSigner) -> str:
    """What the log is called by its last checkpoint, which is the signer's.

    Raises:
        AuditError: it is not: who signed the log once does not decide what is kept of it.
    """
    from runtime_pack.audit.keys import signed_by

    notes = read_checkpoints(log).notes
    if notes and signed_by(notes[-1], [signer.key]) is None:
        raise AuditError("another key signs the log by now: nothing is deleted")
    return notes[-1].checkpoint.origin if notes else signer.name


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
