"""The tamper-evident log: hash-chained JSON lines under signed checkpoints, and its verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime_pack.audit.heads import keep_head, kept_head
from runtime_pack.audit.log import AuditLog
from runtime_pack.audit.note import Checkpoint, SignedNote, VerifyKey
from runtime_pack.audit.verify import Fault, LogHead, LogStatus, Verification, verify_log

if TYPE_CHECKING:
    from runtime_pack.audit.keys import LogSigner

__all__ = (
    "AuditLog",
    "Checkpoint",
    "Fault",
    "LogHead",
    "LogSigner",
    "LogStatus",
    "SignedNote",
    "Verification",
    "VerifyKey",
    "keep_head",
    "kept_head",
    "verify_log",
)


def __getattr__(name: str) -> object:
    """`LogSigner` when it is asked for: nobody else needs the module of the keys."""
    if name != "LogSigner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runtime_pack.audit.keys import LogSigner

    return LogSigner
