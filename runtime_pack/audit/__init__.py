"""The tamper-evident log: append-only, hash-chained JSON lines, and its verifier."""

from runtime_pack.audit.log import AuditLog
from runtime_pack.audit.verify import Fault, LogHead, LogStatus, Verification, verify_log

__all__ = ("AuditLog", "Fault", "LogHead", "LogStatus", "Verification", "verify_log")
