"""Errors of the runtime, and the words that a refused or failed call gives to the model.

::

    RuntimePackError
    ├── ContractError          a contract, policy or catalog that cannot be enforced
    ├── AuditError             the log could not be written or read; stops the action
    │   └── LogLocked          another process writes this log
    ├── EmitterError           the host's emitter raised; stops the action that caused the event
    ├── StoreError             a saved run could not be written or read
    │   ├── RunNotFound        no such run
    │   ├── RunConflict        another writer moved the run on; nothing was written
    │   └── StateRefused       missing or wrong seal, unknown format, newer schema
    └── ModelError             the model's adapter failed or answered outside its contract
"""

from __future__ import annotations

from enum import StrEnum

__all__ = (
    "AuditError",
    "CallCode",
    "ContractError",
    "EmitterError",
    "LogLocked",
    "ModelError",
    "RunConflict",
    "RunNotFound",
    "RuntimePackError",
    "StateRefused",
    "StopCode",
    "StoreError",
)


class RuntimePackError(Exception):
    """The root of what this package raises."""


class ContractError(RuntimePackError, ValueError):
    """A contract, policy or catalog cannot be enforced: `path` is the field, `problem` says why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class AuditError(RuntimePackError):
    """The log could not be written or read; the action that needed the record must not happen."""


class LogLocked(AuditError):
    """Another process holds the log: one writer per log."""


class EmitterError(RuntimePackError):
    """The host's emitter raised, so the action that caused the event is stopped."""


class StoreError(RuntimePackError):
    """A saved run could not be written or read."""


class RunNotFound(StoreError):
    """The store has no run of this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no saved run has the id {run_id!r}")
        self.run_id = run_id


class RunConflict(StoreError):
    """The saved run has moved on since it was read; nothing was written."""

    def __init__(self, run_id: str, expected: int, found: int) -> None:
        super().__init__(f"run {run_id!r} is at revision {found}, not {expected}")
        self.run_id = run_id
        self.expected = expected
        self.found = found


class StateRefused(StoreError):
    """The saved run is not authentic or not of a form that this version reads."""


class ModelError(RuntimePackError):
    """The model's adapter failed, or answered with something that is not a `Turn`."""


class CallCode(StrEnum):
    """What the model is told of a call that did not succeed (the tools' own codes come beside)."""

    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    INVALID_JSON = "INVALID_JSON"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    TRUNCATED = "TRUNCATED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    POLICY_DENIED = "POLICY_DENIED"
    POLICY_ERROR = "POLICY_ERROR"
    DENIED_BY_PERSON = "DENIED_BY_PERSON"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    TIMEOUT = "TIMEOUT"
    TOOL_ERROR = "TOOL_ERROR"
    CANCELLED = "CANCELLED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"


class StopCode(StrEnum):
    """Why a run is not completed. What each means for the host is in the codes page."""

    BUDGET_EXHAUSTED = "budget_exhausted"
    ESCALATED = "escalated"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    TRUNCATED_REPLY = "truncated_reply"
    MODEL_MISBEHAVING = "MODEL_MISBEHAVING"
    MODEL_ERROR = "MODEL_ERROR"
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    ALREADY_RESOLVED = "ALREADY_RESOLVED"
    APPROVAL_CONFLICT = "APPROVAL_CONFLICT"
    PENDING_APPROVAL = "PENDING_APPROVAL"
    AUDIT_FAILED = "AUDIT_FAILED"
    EMITTER_FAILED = "EMITTER_FAILED"
    STORE_FAILED = "STORE_FAILED"
    STATE_CONFLICT = "STATE_CONFLICT"
    STATE_INTEGRITY = "STATE_INTEGRITY"
