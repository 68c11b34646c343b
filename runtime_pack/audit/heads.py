"""The head of a log in a file of its own, for programs: keep it where the log's writer cannot write.

A log that was cut or put back is found against what was kept of it elsewhere, and by nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from runtime_pack.audit.files import replace_durably
from runtime_pack.audit.verify import LogHead
from runtime_pack.errors import AuditError
from runtime_pack.given_files import read_bounded

__all__ = ("keep_head", "kept_head")

_MAX_BYTES: Final = 4096


def keep_head(path: Path | str, head: LogHead) -> None:
    """Put the head of a log into a file, in the place of the one before; it is on the disk then.

    `runtime-pack audit verify LOG --head FILE` takes that file, `verify_log` what `kept_head` reads.

    Raises:
        AuditError: it cannot be written, or what is kept there is further: the log was put back, or
            it is another log.
    """
    file = Path(path)
    known = kept_head(file)
    if known is not None and (known.seq > head.seq or (known.seq == head.seq and known != head)):
        raise AuditError(f"{file} keeps line {known.seq}, and this is line {head.seq}: another log")
    try:
        replace_durably(file, f"{head}\n".encode())
    except OSError as error:
        raise AuditError(f"the head cannot be kept: {error}") from error


def kept_head(path: Path | str) -> LogHead | None:
    """The head that was kept in a file; None where there is no file.

    Raises:
        AuditError: it cannot be read, or holds something else.
    """
    try:
        return LogHead.parse(read_bounded(Path(path), _MAX_BYTES).decode("ascii"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"the kept head cannot be read: {error}") from error
