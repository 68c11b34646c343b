"""`@catalog_tool`: a tool of the catalog from a typed function of the host.

The schema comes from the signature, the descriptions from the docstring (Google style), and the
arguments arrive as the types that the signature names. What a schema cannot enforce is refused
when the function is decorated, and the error names the parameter. Functions that are not coroutines
run in a bounded number of threads. Whatever a tool raises or answers, the run goes on: the model is told a code, the
type of the error and a few plain words, never a trace, a path or a value that could be a key.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import math
import re
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, overload

import attrs
import orjson

from runtime_pack.catalog import (
    CatalogTool,
    Effects,
    Executed,
    ToolHandler,
    ToolOutput,
    ToolSpec,
    is_code,
)
from runtime_pack.errors import (
    AuditError,
    CallCode,
    ContractError,
    EmitterError,
    RuntimePackError,
)
from runtime_pack.fault_log import log_fault
from runtime_pack.guard.execution import NO_THREAD
from runtime_pack.inner import frozen
from runtime_pack.label_table import SideEffect
from runtime_pack.labels import Confidentiality, Integrity
from runtime_pack.machine import refusal
from runtime_pack.messages import Json, clean_text
from runtime_pack.ports import ExecutionContext
from runtime_pack.shapes import Misfit, Shape, shape_of, strict_check
from runtime_pack.strictness import ApprovalClass
from runtime_pack.threads import NotBegun, Outcome, Threads

__all__ = ("ToolFailure", "catalog_tool", "plain_words")


class ToolFailure(RuntimePackError):
    """What a tool raises to tell the model why it failed: the message is shown as it is.

    Attributes:
        code: a word of the tool's own for the model and the log.
        executed: whether anything was done; unknown unless the tool says so.
        retryable: whether the same call may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = CallCode.TOOL_ERROR,
        executed: Executed = Executed.UNKNOWN,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.executed = executed
        self.retryable = retryable


@overload
def catalog_tool(function: Callable[..., Any], /) -> CatalogTool: ...
@overload
def catalog_tool(
    *,
    name: str | None = None,
    effects: Effects | str | None = None,
    idempotent: bool = False,
    approval_class: ApprovalClass | str = ApprovalClass.AUTO,
    price: Decimal | None = None,
    poll: bool = False,
    cosmetic: Sequence[str] = (),
    exclusive: bool = False,
    timeout_seconds: float = 60.0,
    output_trust: Integrity | str = Integrity.EXTERNAL,
    output_confidentiality: Confidentiality | str | None = None,
    side_effects: Iterable[SideEffect | str] | None = None,
    destination_args: Sequence[str] = (),
    threads: Threads | None = None,
) -> Callable[[Callable[..., Any]], CatalogTool]: ...
def catalog_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    effects: Effects | str | None = None,
    idempotent: bool = False,
    approval_class: ApprovalClass | str = ApprovalClass.AUTO,
    price: Decimal | None = None,
    poll: bool = False,
    cosmetic: Sequence[str] = (),
    exclusive: bool = False,
    timeout_seconds: float = 60.0,
    output_trust: Integrity | str = Integrity.EXTERNAL,
    output_confidentiality: Confidentiality | str | None = None,
    side_effects: Iterable[SideEffect | str] | None = None,
    destination_args: Sequence[str] = (),
    threads: Threads | None = None,
) -> CatalogTool | Callable[[Callable[..., Any]], CatalogTool]:
    """A `CatalogTool` from a function, as `@catalog_tool` or `@catalog_tool(…)`.

    Parameters are `str`, `int`, `float`, `bool`, `None`, `Literal`, enums, lists, tuples, sets,
    mappings from `str`, attrs classes, dataclasses, typed dicts, and unions of what looks different in JSON.
    `Annotated[int, "text"]` describes a parameter; `Between` and `Sized` bound it. A parameter of
    the type `ExecutionContext` gets the call's context and is not in the schema. What the function
    returns is a text, a JSON value, an object of an attrs class or dataclass, or a `ToolOutput`.

    Args:
        function: what runs; absent when options are given.
        name: the tool's name; the function's when absent.
        effects: what a second run of the same call would do; `once` when absent.
        idempotent: short for `effects="idempotent"`.
        approval_class: what the tool itself asks for; a policy can only ask for more.
        price: what one call costs, for runs that count money.
        poll: the tool is asked until something changes: its repeated calls run.
        cosmetic: parameters that do not make a call another one, such as a note on why.
        exclusive: no other call of the same response runs beside it.
        timeout_seconds: the longest one call may take.
        output_trust: `external` unless nobody else could have written what it returns.
        output_confidentiality: who may see what it returns; see `ToolSpec`.
        side_effects: what a call does, for the table of labels; None declares nothing.
        destination_args: the parameters that say where something goes.
        threads: where a function that is no coroutine runs; four threads of its own when absent.

    Raises:
        ContractError: a parameter has no type or one that no schema holds, the docstring is
            missing or names a parameter that is not there, or an option is not valid.
    """
    options = {
        "name": name,
        "effects": _effects(effects, idempotent=idempotent),
        "approval_class": approval_class,
        "price": price,
        "poll": poll,
        "cosmetic": cosmetic,
        "exclusive": exclusive,
        "timeout_seconds": timeout_seconds,
        "output_trust": output_trust,
        "output_confidentiality": output_confidentiality,
        "side_effects": side_effects,
        "destination_args": destination_args,
    }
    make = functools.partial(_tool, options=options, threads=threads)
    return make if function is None else make(function)


def _effects(given: Effects | str | None, *, idempotent: bool) -> Effects | str:
    if not isinstance(idempotent, bool):
        raise ContractError("idempotent", "must be True or False")
    if idempotent and given not in {None, Effects.IDEMPOTENT}:
        raise ContractError("idempotent", f"the effects are {given}, which is something else")
    if idempotent:
        return Effects.IDEMPOTENT
    return Effects.ONCE if given is None else given


def _tool(
    function: Callable[..., Any], *, options: Mapping[str, Any], threads: Threads | None
) -> CatalogTool:
    signature = _read_signature(function)
    spec = ToolSpec(
        **{**options, "name": options["name"] or function.__name__},
        description=signature.description,
        parameters=signature.schema(),
    )
    return CatalogTool(spec=spec, handler=_handler(function, signature, spec, threads))


# ── the signature ─────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class _Parameter:
    """A parameter of a host's function, as a schema says it and as Python takes it."""

    name: str
    shape: Shape
    schema: Mapping[str, Json]
    required: bool
    positional: bool


@frozen(kw_only=True)
class _Signature:
    """What a function takes: `context` is the name of the parameter that gets the context."""

    description: str
    parameters: tuple[_Parameter, ...]
    context: tuple[str, bool] | None

    def schema(self) -> dict[str, Json]:
        """The JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": False,
        }

    def bound(
        self, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the function takes them.

        Raises:
            Misfit: a value is not of its type, is missing, or has no parameter.
        """
        unknown = sorted(set(arguments) - {p.name for p in self.parameters})
        if unknown:
            raise Misfit(f"/{unknown[0][:80]}", "is not a parameter")
        given: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in arguments:
                value = parameter.shape.structure(arguments[parameter.name], f"/{parameter.name}")
                if parameter.positional:
                    given.append(value)
                else:
                    named[parameter.name] = value
            elif parameter.required:
                raise Misfit(f"/{parameter.name}", "is required")
            else:
                # Made anew for each call: what one does to it, no other one sees.
                named[parameter.name] = parameter.shape.structure(
                    parameter.schema["default"], f"/{parameter.name}"
                )
        if self.context is not None:
            named[self.context[0]] = context
        return given, named


def _read_signature(function: Callable[..., Any]) -> _Signature:
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise ContractError("function", f"{type(function).__name__} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ContractError(function.__name__, "yields; a tool returns")
    inner = inspect.unwrap(function)
    if inspect.iscoroutinefunction(inner) != inspect.iscoroutinefunction(function):
        raise ContractError(function.__name__, "a wrapper hides whether it is a coroutine")
    description, told = _read_docstring(function)
    hints = _hints(function)
    parameters: list[_Parameter] = []
    context: tuple[str, bool] | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        _refuse_form(parameter, hints)
        if _is_context(hints[name]):
            if context is not None or parameter.kind is parameter.POSITIONAL_ONLY:
                raise ContractError(name, "one context at most, and it is passed by name")
            context = name, True
            continue
        parameters.append(_parameter(parameter, hints[name], told.pop(name, None)))
    told.pop(context[0] if context else "", None)
    if told:
        raise ContractError(next(iter(told)), "is in the docstring and not in the signature")
    return _Signature(description=description, parameters=tuple(parameters), context=context)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    # Evaluating annotations runs the host's code: whatever it raises, they cannot be read.
    except Exception as error:
        problem = f"its annotations cannot be read ({error})"
        raise ContractError(function.__name__, problem) from error


def _refuse_form(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise ContractError(parameter.name, "a schema has no rest: name the parameters")
    if parameter.name not in hints:
        raise ContractError(parameter.name, "has no annotation")
    if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is not parameter.empty:
        # Left out, it would let every one after it move up.
        raise ContractError(parameter.name, "is positional-only with a default; pass it by name")


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return ExecutionContext in typing.get_args(hint)
    return hint is ExecutionContext


def _parameter(parameter: inspect.Parameter, hint: Any, told: str | None) -> _Parameter:
    shape = shape_of(hint, parameter.name)
    schema = dict(shape.schema)
    if told:
        schema.setdefault("description", told)
    required = parameter.default is parameter.empty
    if not required:
        schema["default"] = _default(parameter, shape)
    return _Parameter(
        name=parameter.name,
        shape=shape,
        schema=schema,
        required=required,
        positional=parameter.kind is parameter.POSITIONAL_ONLY,
    )


def _default(parameter: inspect.Parameter, shape: Shape) -> Json:
    try:
        default = _as_json(parameter.default)
    except (TypeError, ValueError) as error:
        raise ContractError(parameter.name, f"the default is not JSON ({error})") from error
    if strict_check(shape)({"value": default}):
        raise ContractError(parameter.name, "the default is not of the parameter's type")
    try:
        shape.structure(default, "")
    except Misfit as misfit:
        text = f"the default is not of the parameter's type ({misfit})"
        raise ContractError(parameter.name, text) from misfit
    return default


# ── the docstring ─────────────────────────────────────────────────────────────────────────────

_SECTION: Final = re.compile(
    r"(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?|Attributes):\s*\Z"
)
_OF_PARAMETERS: Final = ("Args", "Arguments", "Parameters")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)\Z")


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description of the tool, and those of its parameters."""
    said: list[str] = []
    told: list[str] = []
    section = ""
    for line in (inspect.getdoc(function) or "").splitlines():
        heading = _SECTION.match(line)
        if heading is not None:
            section = heading[1]
        elif not section:
            said.append(line)
        elif section in _OF_PARAMETERS:
            told.append(line)
    description = "\n".join(said).strip()
    if not description:
        raise ContractError(function.__name__, "has no docstring: the model would not know it")
    return description, _entries(told)


def _entries(lines: Sequence[str]) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    depth: int | None = None
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        depth = indent if depth is None else depth
        entry = _ENTRY.match(line.strip()) if indent <= depth else None
        if entry is None:
            words.append(line.strip())
        else:
            words = entries.setdefault(entry[1], [])
            words.append(entry[2])
    return {name: " ".join(words).strip() for name, words in entries.items()}


# ── running ───────────────────────────────────────────────────────────────────────────────────


def _handler(
    function: Callable[..., Any], signature: _Signature, spec: ToolSpec, threads: Threads | None
) -> ToolHandler:
    if inspect.iscoroutinefunction(function):
        work = _awaited(function)
    else:
        work = _threaded(function, spec, threads or Threads())

    async def handler(
        arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | Json:
        try:
            given, named = signature.bound(arguments, context)
        except Misfit as misfit:
            return _misfit(misfit, spec)
        outcome = await work(given, named)
        return outcome if isinstance(outcome, ToolOutput) else _told(*outcome)

    # Where inspection finds the host's function.
    vars(handler)["__wrapped__"] = function
    return handler


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def work(given: list[Any], named: dict[str, Any]) -> Outcome:
        try:
            return await function(*given, **named), None
        except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
            raise
        # The host's code: a tool that raises is a tool error, never the end of the run.
        except BaseException as error:  # noqa: BLE001
            return None, error

    return work


def _threaded(function: Callable[..., Any], spec: ToolSpec, threads: Threads) -> Callable[..., Any]:
    async def work(given: list[Any], named: dict[str, Any]) -> Outcome | ToolOutput:
        call = functools.partial(function, *given, **named)
        seconds = spec.timeout_seconds
        try:
            return await threads.run(call, name=f"tool {spec.name}", seconds=seconds)
        except TimeoutError:
            text = f"The call did not end within {seconds:g} seconds."
            return refusal(CallCode.TIMEOUT, text, executed=Executed.UNKNOWN, retryable=True)
        except NotBegun:
            return NO_THREAD

    return work


def _misfit(misfit: Misfit, spec: ToolSpec) -> ToolOutput:
    text = "The arguments do not fit the tool's parameters."
    faults: list[Json] = [{"path": misfit.path or "/", "problem": misfit.problem}]
    ours = spec.invalid_code == CallCode.INVALID_ARGUMENTS
    return refusal(spec.invalid_code, text, retryable=ours, details={"faults": faults})


def _told(given: object, error: BaseException | None) -> ToolOutput | Json:
    """What a call gave, as the runtime takes it; what it raised, as the model is told."""
    if isinstance(error, AuditError | EmitterError):
        raise error
    if isinstance(error, ToolFailure):
        return _failed(error)
    if error is not None:
        log_fault("a host tool", error)
        words = plain_words(_message(error))
        text = f"The tool failed ({type(error).__name__}){f': {words}' if words else '.'}"
        return refusal(CallCode.TOOL_ERROR, text, executed=Executed.UNKNOWN)
    if isinstance(given, ToolOutput):
        return given
    try:
        result = _as_json(given)
        orjson.dumps(result)
    # The host's object: whatever reading it raises, it is not JSON.
    except Exception as fault:  # noqa: BLE001
        if inspect.iscoroutine(given):
            given.close()
        text = f"The tool answered with something that is not JSON ({type(fault).__name__})."
        return refusal(CallCode.TOOL_ERROR, text, executed=Executed.YES)
    return result


def _failed(error: ToolFailure) -> ToolOutput:
    """The failure as the tool told it; of a part that is of no form, what is always true."""
    code, message = error.code, error.message
    executed: object = error.executed
    return refusal(
        str(code) if is_code(code) else CallCode.TOOL_ERROR,
        clean_text(message) if isinstance(message, str) else "The tool failed.",
        executed=executed if isinstance(executed, Executed) else Executed.UNKNOWN,
        retryable=error.retryable is True,
    )


# ── what is told ──────────────────────────────────────────────────────────────────────────────

_WORDS_SHOWN: Final = 24
_PLAIN: Final = re.compile(r"[(\"']?([A-Za-z]{1,20}(?:'[a-z]{1,2})?|[0-9]{1,5})[)\"']?[.,:;!?]?\Z")
_BEFORE_A_SECRET: Final = frozenset(
    {"password", "passwd", "passphrase", "pwd", "pin", "secret", "token", "key", "apikey"}
    | {"credential", "credentials", "authorization", "bearer", "basic", "cookie", "user", "login"}
)
_GONE: Final = "…"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    # The host's object: an error that cannot say what it is has only its type.
    except BaseException:  # noqa: BLE001
        return ""


def plain_words(text: str) -> str:
    """The first line of a message with nothing in it but short plain words and small numbers.

    Everything else becomes `…`: paths, addresses, names with digits in them, whatever stands with
    `=`, `/`, `@` or `_`; and the three words after one that announces a secret. What a tool wants to
    tell in full it says with `ToolFailure`.
    """
    kept: list[str] = []
    hidden = 0
    for word in text.partition("\n")[0].split()[:_WORDS_SHOWN]:
        match = _PLAIN.match(word)
        hidden -= 1
        if match is None or hidden >= 0:
            if kept[-1:] != [_GONE]:
                kept.append(_GONE)
            if match is not None and match[1].lower() not in _BEFORE_A_SECRET:
                continue
        else:
            kept.append(word)
        if match is not None and match[1].lower() in _BEFORE_A_SECRET:
            hidden = 3
    return " ".join(kept) if kept != [_GONE] else ""


# ── results ───────────────────────────────────────────────────────────────────────────────────


def _as_json(value: object) -> Json:
    """The value as JSON.

    Raises:
        TypeError: it holds something that has no form in JSON.
        ValueError: it holds a number that has none.
    """
    if isinstance(value, enum.Enum):
        return _as_json(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no form in JSON")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_as_json, value), key=orjson.dumps)
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return _foreign(value)


def _key(key: object) -> str:
    plain = key.value if isinstance(key, enum.Enum) else key
    if not isinstance(plain, str):
        raise TypeError(f"a member name is a text, not {type(plain).__name__}")
    return clean_text(plain)


def _foreign(value: Any) -> Json:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if not isinstance(value, type) and (attrs.has(type(value)) or dataclasses.is_dataclass(value)):
        return {name: _as_json(held) for name, held in _members(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _members(value: Any) -> Iterator[tuple[str, object]]:
    """What the fields hold, whatever they are declared to hold: nothing checked a default."""
    if attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield field.alias, getattr(value, field.name)
        return
    for member in dataclasses.fields(value):
        yield member.name, getattr(value, member.name)
