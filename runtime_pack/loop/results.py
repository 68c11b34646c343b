"""What a run starts from and what it ends with: values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs
import orjson

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.catalog import CatalogTool, ToolSpec, index_catalog
from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.ledger import LedgerView
from runtime_pack.machine import OutcomeKind, Stop
from runtime_pack.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    call_fault,
    clean_text,
    frozen_arguments,
    history_fault,
)
from runtime_pack.records import StepRecord
from runtime_pack.schema import Check, SchemaError, compile_schema
from runtime_pack.state import SavedRun

__all__ = (
    "RESULTS",
    "ApprovalRequired",
    "Cancelled",
    "Completed",
    "LoopError",
    "LoopResult",
    "Suspended",
    "TurnInput",
)


def _message_tuple(messages: Iterable[Message]) -> tuple[Message, ...]:
    return tuple(_clean(message) for message in messages)


def _clean(message: Message) -> Message:
    """The message with a text that can be stored.

    Raises:
        ContractError: it is not a message.
    """
    if not isinstance(message, SystemMessage | UserMessage | AssistantMessage | ToolMessage):
        raise ContractError("messages", f"{type(message).__name__} is not a message")
    text: object = message.text
    if not isinstance(text, str):
        raise ContractError("messages", "a text is not a string")
    text = clean_text(text)
    if isinstance(message, AssistantMessage) and message.calls:
        return attrs.evolve(message, text=text, calls=tuple(map(_clean_call, message.calls)))
    if isinstance(message, ToolMessage):
        return _clean_result(message, text)
    return message if text is message.text else attrs.evolve(message, text=text)


def _clean_result(message: ToolMessage, text: str) -> ToolMessage:
    call_id: object = message.call_id
    name: object = message.name
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise ContractError("messages", "a result's call id or name is not a string")
    clean = attrs.evolve(message, text=text, call_id=clean_text(call_id), name=clean_text(name))
    return message if clean == message else clean


def _clean_call(call: ToolCall) -> ToolCall:
    """The call with arguments that can be stored, and that nobody can change afterwards.

    Raises:
        ContractError: it is not a call, or its arguments are not a JSON object.
    """
    fault = call_fault(call)
    if fault is not None:
        raise ContractError("messages", fault)
    given = call.arguments
    try:
        # As text, as a provider sent them; the history holds them parsed.
        arguments = frozen_arguments(orjson.loads(given) if isinstance(given, str) else given)
        # A saved run holds them some levels deep, and there is a limit to that.
        orjson.dumps([[[[[[[[arguments]]]]]]]])
    # The host's object: whatever reading it raises, it is not JSON.
    except Exception as error:
        raise ContractError("messages", f"{call.id!r}: the arguments are no JSON object") from error
    return ToolCall(id=clean_text(call.id), name=clean_text(call.name), arguments=arguments)


def _spec_tuple(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    given = tuple(specs)
    for spec in given:
        if isinstance(spec, CatalogTool):
            raise ContractError("tool_catalog", f"{spec.spec.name} is a tool: give tool.spec")
        if not isinstance(spec, ToolSpec):
            raise ContractError("tool_catalog", f"{type(spec).__name__} is not a ToolSpec")
    return given


# Above any model; what is reserved for it has to be a number that a saved run can hold.
_MOST_OUTPUT: Final = 10**9


@frozen(kw_only=True)
class TurnInput:
    """What a run starts from: the history so far and the tools that the model is offered.

    With `output_schema`, of `type: object`, only a JSON text that fits it is an answer.

    Raises:
        ContractError: no message, a call without its result, two tools of one name, or a limit of
            output that is not a whole number from 1 to 10**9.
    """

    messages: tuple[Message, ...] = attrs.field(converter=_message_tuple)
    tool_catalog: tuple[ToolSpec, ...] = attrs.field(default=(), converter=_spec_tuple)
    model: str | None = None
    max_output_tokens: int | None = None
    output_schema: Mapping[str, Json] | None = None
    offered: Mapping[str, ToolSpec] = attrs.field(init=False, repr=False, eq=False)
    """The catalog by name."""
    _output_check: Check | None = attrs.field(init=False, default=None, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not self.messages:
            raise ContractError("messages", "a run starts from at least one message")
        fault = history_fault(self.messages)
        if fault is not None:
            raise ContractError("messages", fault)
        limit = self.max_output_tokens
        if limit is not None and (type(limit) is not int or not 1 <= limit <= _MOST_OUTPUT):
            raise ContractError(
                "max_output_tokens", f"{limit!r} is not a whole number from 1 to 10**9"
            )
        object.__setattr__(self, "offered", MappingProxyType(index_catalog(self.tool_catalog)))
        if self.output_schema is not None:
            try:
                check = compile_schema(self.output_schema)
            except SchemaError as error:
                raise ContractError("output_schema", str(error)) from error
            object.__setattr__(self, "_output_check", check)

    def output_fault(self, text: str) -> str | None:
        """Why a text is no answer in the form of `output_schema`; None when it is, or none is asked."""
        if self._output_check is None:
            return None
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError:
            return "is not JSON"
        faults = self._output_check(answer)
        if not faults:
            return None
        first = faults[0]
        return f"does not fit the schema ({clean_text(first.path)[:80] or '/'}: {first.problem})"


@frozen(kw_only=True)
class _Result:
    """How a drive of the loop ended. Which of the five it is, is its class and its `kind`.

    Attributes:
        text: the final answer; for a budget that ran out, that of the wrap-up turn.
        messages: the whole history; every call in it has exactly one result.
        requests: what waits for a person.
        state: the saved run, whenever it can be taken up again; `MemoryRunStore.put` takes it.
    """

    kind: OutcomeKind
    run_id: str
    text: str
    messages: tuple[Message, ...]
    ledger: LedgerView
    steps: tuple[StepRecord, ...]
    stop: Stop | None
    requests: tuple[ApprovalRequest, ...]
    state: SavedRun | None


@frozen(kw_only=True)
class Completed(_Result):
    """The model answered."""


@frozen(kw_only=True)
class ApprovalRequired(_Result):
    """Calls wait for a person."""


@frozen(kw_only=True)
class Suspended(_Result):
    """A budget ran out, the model handed over, or the host paused the run."""


@frozen(kw_only=True)
class Cancelled(_Result):
    """The host ended the run."""


@frozen(kw_only=True)
class LoopError(_Result):
    """The run could not go on; `stop` has the stage and the code.

    `cause` is what the model's adapter, the store, a guard or the like raised, for who looks for the
    fault. Its text can hold what must not be stored: nothing of it is in `stop` or in a saved run.
    """

    cause: BaseException | None = attrs.field(default=None, eq=False, repr=False)


LoopResult: TypeAlias = Completed | ApprovalRequired | Suspended | Cancelled | LoopError
"""How a drive of the loop ended: match on the class, or look at `kind`."""

RESULTS: Final[Mapping[OutcomeKind, type[LoopResult]]] = {
    OutcomeKind.COMPLETED: Completed,
    OutcomeKind.APPROVAL_REQUIRED: ApprovalRequired,
    OutcomeKind.SUSPENDED: Suspended,
    OutcomeKind.CANCELLED: Cancelled,
    OutcomeKind.ERROR: LoopError,
}
