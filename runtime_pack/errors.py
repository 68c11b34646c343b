"""Errors of the runtime, and the words that a refused or failed call gives to the model.

::

    RuntimePackError
    ├── ContractError          a contract, policy or catalog that cannot be enforced
    │   └── PriceUnknown       money is to be counted, and a model has no price
    ├── AuditError             the log could not be written or read; stops the action
    │   └── LogLocked          another process writes this log
    ├── EmitterError           the host's emitter raised; stops the action that caused the event
    ├── StoreError             a saved run could not be written or read
    │   ├── RunNotFound        no such run
    │   │   └── RunAmbiguous   the beginning of an id that several runs have
    │   ├── RunConflict        another writer moved the run on; nothing was written
    │   ├── RunBusy            another process drives the run; nothing was done
    │   └── StateRefused       missing or wrong seal, unknown format, newer schema
    └── ModelError             the model's adapter failed or answered outside its contract
        └── ModelRequestError  the provider gave no whole response, and the adapter knows why
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runtime_pack.messages import Usage

__all__ = (
    "AuditError",
    "CallCode",
    "ContractError",
    "EmitterError",
    "LogLocked",
    "ModelError",
    "ModelFault",
    "ModelRequestError",
    "PriceUnknown",
    "RunAmbiguous",
    "RunBusy",
    "RunConflict",
    "RunNotFound",
    "RuntimePackError",
    "StateRefused",
    "StopCode",
    "StoreError",
    "not_one_of",
)


def not_one_of(word: object, words: type[StrEnum]) -> str:
    """What is wrong with a word that is none of an enum."""
    return f"{word!r} is not one of {', '.join(words)}"


class RuntimePackError(Exception):
    """The root of what this package raises."""


class ContractError(RuntimePackError, ValueError):
    """A contract, policy or catalog cannot be enforced: `path` is the field, `problem` says why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class PriceUnknown(ContractError):
    """Money is to be counted, and this model is not in the price table; None is no name at all."""

    code = "PRICE_UNKNOWN"

    def __init__(self, model: str | None) -> None:
        named = "a model without a name" if model is None else f"the model {model[:80]!r}"
        super().__init__("prices", f"the table has no price for {named}")
        self.model = model


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


class RunAmbiguous(RunNotFound):
    """Several runs have an id that begins so; `found` names them."""

    def __init__(self, prefix: str, found: Sequence[str]) -> None:
        super().__init__(prefix)
        self.found = tuple(found)

    def __str__(self) -> str:
        """Some of them, so that a longer beginning can be given."""
        few, more = ", ".join(self.found[:5]), len(self.found) - 5
        return f"{self.run_id!r} is the beginning of {few}" + (
            f" and {more} more" if more > 0 else ""
        )


class RunConflict(StoreError):
    """The saved run has moved on since it was read; nothing was written."""

    def __init__(self, run_id: str, expected: int, found: int) -> None:
        text = f"run {run_id!r} is at revision {found}, not {expected}"
        if not expected:
            text = f"a run {run_id!r} is saved already: resume it or choose another run_id"
        super().__init__(text)
        self.run_id = run_id
        self.expected = expected
        self.found = found


class RunBusy(StoreError):
    """Somebody drives the run; nothing was done."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} is being driven by another process or task")
        self.run_id = run_id


class StateRefused(StoreError):
    """The saved run is not authentic or not of a form that this version reads."""


class ModelError(RuntimePackError):
    """The model's adapter failed, or answered with something that is not a `Turn`."""


class ModelFault(StrEnum):
    """Why a provider gave no whole response."""

    TRANSPORT = "transport"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER = "server"
    CONFLICT = "conflict"
    REFUSED = "refused"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_REQUEST = "invalid_request"
    AUTH = "auth"
    MALFORMED = "malformed"


_PASSING: Final = frozenset(
    {
        ModelFault.TRANSPORT,
        ModelFault.TIMEOUT,
        ModelFault.RATE_LIMITED,
        ModelFault.OVERLOADED,
        ModelFault.SERVER,
        ModelFault.CONFLICT,
    }
)


class ModelRequestError(ModelError):
    """The provider gave no whole response. Adapters raise it and never ask again themselves.

    Attributes:
        fault: why.
        message: one sentence for the host, without keys or texts of the provider.
        status: the HTTP status, if there was one.
        retry_after_seconds: how long the provider asks to wait, as a number of seconds.
        surfaced: a part of the response was shown to somebody already.
        usage: tokens that the provider reported for the failed request.

    Raises:
        ValueError: *fault* is not one of the words.
    """

    def __init__(
        self,
        *,
        fault: ModelFault | str,
        message: str,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        surfaced: bool = False,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = ModelFault(fault)
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.surfaced = surfaced
        self.usage = usage

    @property
    def retryable(self) -> bool:
        """Whether the same request may go better, and nobody has seen a part of this response."""
        return self.fault in _PASSING and not self.surfaced


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
    BATCH_REFUSED = "BATCH_REFUSED"
    REPEATED_CALL = "REPEATED_CALL"
    TIMEOUT = "TIMEOUT"
    TOOL_ERROR = "TOOL_ERROR"
    CANCELLED = "CANCELLED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"


class StopCode(StrEnum):
    """Why a run is not completed. What each means for the host is in the codes page."""

    BUDGET_EXHAUSTED = "budget_exhausted"
    RETRY_LATER = "retry_later"
    ESCALATED = "escalated"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    TRUNCATED_REPLY = "truncated_reply"
    MODEL_MISBEHAVING = "MODEL_MISBEHAVING"
    NO_PROGRESS = "NO_PROGRESS"
    INPUT_REFUSED = "INPUT_REFUSED"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    OUTPUT_UNVERIFIED = "OUTPUT_UNVERIFIED"
    MODEL_ERROR = "MODEL_ERROR"
    MODEL_REFUSED = "MODEL_REFUSED"
    CONTEXT_OVERFLOW = "CONTEXT_OVERFLOW"
    PRICE_UNKNOWN = "PRICE_UNKNOWN"
    DECISION_REFUSED = "DECISION_REFUSED"
    TOOL_MISSING = "TOOL_MISSING"
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    ALREADY_RESOLVED = "ALREADY_RESOLVED"
    APPROVAL_CONFLICT = "APPROVAL_CONFLICT"
    PENDING_APPROVAL = "PENDING_APPROVAL"
    AUDIT_FAILED = "AUDIT_FAILED"
    EMITTER_FAILED = "EMITTER_FAILED"
    STORE_FAILED = "STORE_FAILED"
    CLOCK_FAILED = "CLOCK_FAILED"
    STATE_CONFLICT = "STATE_CONFLICT"
    STATE_INTEGRITY = "STATE_INTEGRITY"
