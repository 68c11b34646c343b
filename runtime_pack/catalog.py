"""Tools as the model sees them and as the runtime runs them, and what a tool gives back.

A `ToolSpec` is data; a `CatalogTool` adds the host's coroutine. The arguments of every call are
checked against the spec's JSON Schema (see `runtime_pack.schema` for what it may contain)
before anything else looks at them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs
import orjson

from runtime_pack.errors import CallCode, ContractError, not_one_of
from runtime_pack.inner import frozen
from runtime_pack.label_table import SideEffect, parse_side_effects
from runtime_pack.labels import CLEAN, UNLABELLED, Confidentiality, Integrity, Label
from runtime_pack.ledger_limits import money_text, parse_price
from runtime_pack.messages import Json, Turn
from runtime_pack.schema import Check, SchemaError, compile_schema
from runtime_pack.strictness import ApprovalClass, parse_class
from runtime_pack.wire_names import WireNames

if TYPE_CHECKING:
    from runtime_pack.ports import ExecutionContext

__all__ = (
    "SEARCH_TOOLS",
    "TURN_TOOL",
    "CatalogTool",
    "Citation",
    "Effects",
    "Executed",
    "ToolHandler",
    "ToolOutput",
    "ToolSpec",
    "index_catalog",
)

TURN_TOOL: Final = "agent:execute-turn"
"""The tool that is one model turn; it goes through the same door as every other."""

SEARCH_TOOLS: Final = frozenset({"web:search", "web.search", "search"})
"""The tools whose citations are of search results: what stands there was found, and was not read."""

# Providers restrict names; the two separators of the seeds are mapped at the adapters.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+([:.][A-Za-z0-9_-]+)*\Z")


class Effects(StrEnum):
    """What a second run of the same call would do. `once` is the default: never run again."""

    REPEATABLE = "repeatable"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class Executed(StrEnum):
    """Whether the tool ran, as far as is known."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Citation(Protocol):
    """What a citation must be able to do; `citations.KnowledgeCitation` can."""

    def to_wire(self) -> dict[str, str]:
        """The wire form."""
        ...


@frozen(kw_only=True)
class ToolOutput:
    """What a tool gives back.

    `data` is for the host (plain values), `text` is what the model sees. `framed` says that
    `text` already stands inside a fence; it is believed of a `FramingRuntime` alone (and of a tool
    that was registered so, see `CatalogTool`), and so are
    `found`, the addresses that a search gave, `links`, those that a page offered beside its text, and
    `bits`: how much the output can tell of what was read, where that is less than a text; then its
    label may be better than its tool's. `fences` tells of each block in `text`, as
    `FencedBlock.to_record` has it. `label` is set by the runtime that ran the tool,
    never taken from a result's body; the default is the least trusted.
    """

    ok: bool
    text: str
    data: Json = None
    code: str | None = None
    label: Label = UNLABELLED
    provenance: tuple[str, ...] = ()
    citations: tuple[Citation, ...] = ()
    executed: Executed = Executed.YES
    retryable: bool = False
    framed: bool = False
    turn: Turn | None = None
    found: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    bits: float | None = None
    fences: tuple[Mapping[str, Json], ...] = ()

    def shown_as(self, text: str, label: Label, *, framed: bool) -> ToolOutput:
        """The output with another text for the model, and under another label."""
        # What was said of another text says nothing of this one.
        fences = self.fences if text == self.text else ()
        if type(self) is not ToolOutput:
            return attrs.evolve(self, text=text, label=label, framed=framed, fences=fences)
        # Of every external output of every call: to copy field by field takes a third of the time.
        return ToolOutput(
            ok=self.ok,
            text=text,
            data=self.data,
            code=self.code,
            label=label,
            provenance=self.provenance,
            citations=self.citations,
            executed=self.executed,
            retryable=self.retryable,
            framed=framed,
            turn=self.turn,
            found=self.found,
            links=self.links,
            bits=self.bits,
            fences=fences,
        )


def _plain(value: object) -> Json:
    """A copy of a JSON value made of dicts and lists, which nobody else can change.

    Raises:
        ContractError: a part of it is not JSON.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ContractError("parameters", f"{type(value).__name__} is not JSON")


def _plain_object(value: Mapping[str, Json]) -> Mapping[str, Json]:
    plain = _plain(value)
    if not isinstance(plain, dict):
        raise ContractError("parameters", "must be an object")
    return plain


def _trust(word: Integrity | str) -> Integrity:
    try:
        return Integrity(word)
    except ValueError as error:
        raise ContractError("output_trust", not_one_of(word, Integrity)) from error


def _effects(word: Effects | str) -> Effects:
    try:
        return Effects(word)
    except ValueError as error:
        raise ContractError("effects", not_one_of(word, Effects)) from error


def _declared_class(word: ApprovalClass | str) -> ApprovalClass:
    return parse_class("approval_class", word)


def _names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ContractError(field, "is a list of parameter names")
    names = tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise ContractError(field, "holds something that is not a name")
    return names


def _cosmetic(value: object) -> tuple[str, ...]:
    return _names("cosmetic", value)


def _destinations(value: object) -> tuple[str, ...]:
    return _names("destination_args", value)


def _privacy(word: object) -> Confidentiality | None:
    if word is None or isinstance(word, Confidentiality):
        return word
    if not isinstance(word, str) or word not in tuple(Confidentiality):
        raise ContractError("output_confidentiality", not_one_of(word, Confidentiality))
    return Confidentiality(word)


@frozen(kw_only=True)
class ToolSpec:
    """One tool as it is offered to the model.

    Attributes:
        parameters: JSON Schema of the arguments, `type: object`.
        output_trust: `external` (the default) for anything that others could have written.
        output_confidentiality: who may see what it returns; None is `workspace` where the output is
            external and `public` where it is not.
        side_effects: what a call does, as the table of labels knows it; None declares nothing, and
            an empty list declares that it does nothing.
        destination_args: the parameters that say where something goes: addresses and recipients.
        timeout_seconds: the longest one call may take; the run's remaining time is the other bound.
        effects: what a second run would do; decides what happens to a call in doubt.
        price: what one call costs; a price table can only set a higher one. It is charged to runs that
            count money, and reserved with the step.
        approval_class: what the tool itself asks for; a policy can only ask for more.
        poll: the tool is asked until something changes: its repeated calls run.
        cosmetic: parameters that do not make a call another one, such as a note on why.
        exclusive: no other call of the same response runs beside it.
        invalid_code: the tool's own code for arguments that do not fit.
        sha256: digest of the definition as it was made; approvals are bound to it.
        floor_label: the best label that an output of this tool can have.

    Raises:
        ContractError: the name or the schema cannot be enforced, or a word is not of its enum.
    """

    name: str
    description: str
    parameters: Mapping[str, Json] = attrs.field(converter=_plain_object)
    output_trust: Integrity = attrs.field(default=Integrity.EXTERNAL, converter=_trust)
    timeout_seconds: float = 60.0
    effects: Effects = attrs.field(default=Effects.ONCE, converter=_effects)
    invalid_code: str = CallCode.INVALID_ARGUMENTS
    price: Decimal | None = None
    approval_class: ApprovalClass = attrs.field(
        default=ApprovalClass.AUTO, converter=_declared_class
    )
    poll: bool = False
    cosmetic: tuple[str, ...] = attrs.field(default=(), converter=_cosmetic)
    exclusive: bool = False
    output_confidentiality: Confidentiality | None = attrs.field(default=None, converter=_privacy)
    side_effects: tuple[SideEffect, ...] | None = attrs.field(
        default=None, converter=parse_side_effects
    )
    destination_args: tuple[str, ...] = attrs.field(default=(), converter=_destinations)
    check: Check = attrs.field(init=False, repr=False, eq=False)
    sha256: str = attrs.field(init=False, repr=False, eq=False)
    floor_label: Label = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not _NAME.match(self.name) or len(self.name) > 64 or self.name == TURN_TOOL:
            raise ContractError("name", f"{self.name!r} cannot name a tool")
        if isinstance(self.timeout_seconds, bool) or not 0 < self.timeout_seconds < float("inf"):
            raise ContractError(f"{self.name}.timeout_seconds", "must be a positive number")
        try:
            object.__setattr__(self, "check", compile_schema(self.parameters))
        except SchemaError as error:
            raise ContractError(f"{self.name}.parameters", str(error)) from error
        for word, value in (("poll", self.poll), ("exclusive", self.exclusive)):
            if not isinstance(value, bool):
                raise ContractError(f"{self.name}.{word}", "must be True or False")
        known = self.parameters.get("properties", {})
        for field, names in (
            ("cosmetic", self.cosmetic),
            ("destination_args", self.destination_args),
        ):
            for name in names:
                if not isinstance(known, Mapping) or name not in known:
                    raise ContractError(f"{self.name}.{field}", f"{name!r} is no parameter")
        object.__setattr__(self, "floor_label", self._floor())
        try:
            body = orjson.dumps(self.to_json(), option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise ContractError(self.name, f"the definition is not JSON ({error})") from error
        object.__setattr__(self, "sha256", f"sha256:{hashlib.sha256(body).hexdigest()}")

    def _floor(self) -> Label:
        """The best label of an output. What the host wrote itself says `internal`, never `user`."""
        external = self.output_trust is Integrity.EXTERNAL
        privacy = self.output_confidentiality
        if privacy is None:
            privacy = UNLABELLED.confidentiality if external else CLEAN.confidentiality
        if not external:
            return Label(integrity=Integrity.INTERNAL, confidentiality=privacy)
        source = frozenset({f"tool:{self.name}"})
        return Label(integrity=Integrity.EXTERNAL, confidentiality=privacy, sources=source)

    def to_json(self) -> dict[str, Json]:
        """The definition as it stands in saved runs and under its digest.

        What was added later stands there only when it says something, so that digests stay.
        """
        body: dict[str, Json] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "output_trust": str(self.output_trust),
            "timeout_seconds": self.timeout_seconds,
            "effects": str(self.effects),
            "invalid_code": str(self.invalid_code),
        }
        if self.price is not None:
            body["price"] = money_text(parse_price(f"{self.name}.price", self.price))
        if self.approval_class is not ApprovalClass.AUTO:
            body["approval_class"] = str(self.approval_class)
        if self.poll:
            body["poll"] = True
        if self.cosmetic:
            body["cosmetic"] = list(self.cosmetic)
        if self.exclusive:
            body["exclusive"] = True
        if self.output_confidentiality is not None:
            body["output_confidentiality"] = str(self.output_confidentiality)
        if self.side_effects is not None:
            body["side_effects"] = [str(effect) for effect in self.side_effects]
        if self.destination_args:
            body["destination_args"] = list(self.destination_args)
        return body


ToolHandler: TypeAlias = (
    "Callable[[Mapping[str, Json], ExecutionContext], Awaitable[ToolOutput | Json]]"
)
"""A host's coroutine: a `ToolOutput`, a string that the model sees, or any other JSON value."""


# A tool's own code goes into the log, so it has to be a word and cannot be a page's text.
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}\Z")


def is_code(value: object) -> bool:
    """Whether an output can have the value as its code."""
    return isinstance(value, str) and _CODE.match(value) is not None


@frozen(kw_only=True)
class CatalogTool:
    """A host tool: what the model sees and the coroutine that runs it.

    `fences` is the host's word, where it registers the tool, that the handler puts a fence around all
    that comes from outside, with the nonces of its context: what the output says of itself (`framed`,
    `found`, `links`, `bits`) is believed then. No output can claim it.
    """

    spec: ToolSpec
    handler: ToolHandler
    fences: bool = False


def index_catalog(specs: Iterable[ToolSpec]) -> dict[str, ToolSpec]:
    """Specs by name, in the given order.

    Raises:
        ContractError: two tools have one name, or names that providers would see as one.
    """
    catalog: dict[str, ToolSpec] = {}
    for spec in specs:
        if spec.name in catalog:
            raise ContractError(spec.name, "two tools of the catalog have this name")
        catalog[spec.name] = spec
    WireNames(catalog)
    return catalog
