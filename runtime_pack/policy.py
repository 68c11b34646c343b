"""The contract of one task and the verdict on one call: pure.

Deny beats approval beats allow: of all rules that match a call, the strictest class wins. A rule's
predicate that raises or answers anything but True or False is a deny (POLICY_ERROR). A call that
no rule matches is `auto`: what a task may call at all is decided by its catalog.
"""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import attrs
import orjson

from runtime_pack.errors import ContractError
from runtime_pack.ledger import (
    STEPS,
    TURNS,
    UNLIMITED,
    WRAP_UP,
    Limit,
    Limits,
    SecondsLimit,
    parse_count,
    parse_seconds,
    tool_bucket,
)
from runtime_pack.messages import Json

__all__ = (
    "ApprovalClass",
    "ClassVerdict",
    "TaskContract",
    "ToolPolicy",
    "ToolRule",
    "classify_call",
)


class ApprovalClass(StrEnum):
    """What has to happen before a call may run, mildest first."""

    AUTO = "auto"
    REQUEST_USER = "request_user"
    DENY = "deny"


_STRICTNESS: Final = {
    ApprovalClass.AUTO: 0,
    ApprovalClass.REQUEST_USER: 1,
    ApprovalClass.DENY: 2,
}

Predicate: TypeAlias = Callable[[Mapping[str, Json]], bool]
"""Says whether a rule applies to these arguments. Must be quick and pure."""

_PATTERN: Final = re.compile(r"[A-Za-z0-9_:.*?-]+\Z")


def _named(when: object) -> str:
    """What tells a predicate from every other.

    Raises:
        ContractError: nothing does.
    """
    if isinstance(when, type | types.BuiltinFunctionType):
        return f"{when.__module__}.{when.__qualname__}"
    if not isinstance(when, types.FunctionType):
        raise ContractError("tool_policy", f"{type(when).__name__} is not a function with a name")
    code = when.__code__
    _, _, column, end = next(iter(code.co_positions()), (None, None, None, None))
    held = [_content(cell) for cell in when.__closure__ or ()]
    held += [when.__defaults__, *sorted((when.__kwdefaults__ or {}).items())]
    body = hashlib.sha256(code.co_code + repr(code.co_names).encode())
    for value in (*held, *code.co_consts):
        body.update(_told(value).encode("utf-8", "surrogatepass"))
    place = f"{code.co_firstlineno}:{column}-{end}"
    return f"{when.__module__}.{when.__qualname__}:{place}:{body.hexdigest()[:16]}"


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _told(value: object) -> str:
    """A plain value as text; functions and code are told by name, other objects by their type."""
    if value is None or isinstance(value, str | bytes | int | float):
        return f"{type(value).__name__}={value!r};"
    if isinstance(value, tuple | list):
        return f"[{''.join(_told(item) for item in value)}]"
    if isinstance(value, set | frozenset):
        return f"{{{''.join(sorted(_told(item) for item in value))}}}"
    if isinstance(value, dict):
        return f"({''.join(_told(item) for item in value.items())})"
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return f"<{value.__module__}.{value.__qualname__}>"
    if isinstance(value, types.CodeType):
        return f"<{value.co_qualname}:{value.co_firstlineno}:{value.co_code.hex()}>"
    if isinstance(value, re.Pattern):
        return f"<{value!r}>"
    return f"<{type(value).__qualname__}>"


def _approval_class(word: object) -> ApprovalClass:
    try:
        # An unknown word is the case at hand.
        return ApprovalClass(word)  # type: ignore[arg-type]
    except ValueError:
        words = ", ".join(ApprovalClass)
        raise ContractError("tool_policy", f"{word!r} is not one of {words}") from None


@attrs.frozen(kw_only=True)
class ToolRule:
    """One rule: `tool` is a name or a glob of `*` (anything) and `?` (one character).

    A predicate enters the policy's digest by its name, its place in the source, its code and the
    plain values that it closes over; what has no name cannot be told from another one.

    Raises:
        ContractError: the pattern is empty or holds another special character; the class
            is not one of the words; the predicate is not a function: a partial or an object
            with `__call__` has no name of its own.
    """

    tool: str
    approval_class: ApprovalClass = attrs.field(converter=_approval_class)
    when: Predicate | None = None
    reason: str = ""
    _matches: Callable[[str], object] = attrs.field(init=False, repr=False, eq=False)
    _when: str | None = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.tool, str) or not _PATTERN.match(self.tool):
            raise ContractError("tool_policy", f"{self.tool!r} is not a tool name or glob")
        parts = {"*": ".*", "?": "."}
        expression = "".join(parts.get(character, re.escape(character)) for character in self.tool)
        object.__setattr__(self, "_when", None if self.when is None else _named(self.when))
        object.__setattr__(self, "_matches", re.compile(expression, re.DOTALL).fullmatch)

    def covers(self, tool: str) -> bool:
        """Whether the name is covered. `web.*` covers `web.search` and not `web:read`."""
        return self._matches(tool) is not None

    def to_json(self) -> dict[str, Json]:
        """The rule as it enters the policy's digest."""
        return {
            "tool": self.tool,
            "approval_class": str(self.approval_class),
            "when": self._when,
            "reason": self.reason,
        }


def _rule_tuple(rules: Iterable[ToolRule]) -> tuple[ToolRule, ...]:
    """The rules as given.

    Raises:
        ContractError: one of them is not a rule.
    """
    given = tuple(rules)
    if not all(isinstance(rule, ToolRule) for rule in given):
        raise ContractError("tool_policy", "holds something that is not a ToolRule")
    return given


@attrs.frozen
class ToolPolicy:
    """Rules in any order; the strictest that matches wins."""

    rules: tuple[ToolRule, ...] = attrs.field(default=(), converter=_rule_tuple)

    @property
    def sha256(self) -> str:
        """Digest of the rules, for records and approval requests."""
        body = orjson.dumps([rule.to_json() for rule in self.rules], option=orjson.OPT_SORT_KEYS)
        return f"sha256:{hashlib.sha256(body).hexdigest()}"


@attrs.frozen(kw_only=True)
class ClassVerdict:
    """The class of one call; `reasons` are those of the rules that gave it."""

    approval_class: ApprovalClass
    reasons: tuple[str, ...] = ()
    failed: bool = False


_AUTO: Final = ClassVerdict(approval_class=ApprovalClass.AUTO)


def classify_call(
    rules: Sequence[ToolRule], tool: str, arguments: Mapping[str, Json]
) -> ClassVerdict:
    """The strictest class of the rules that match. Never raises: a failing predicate denies."""
    strictest = ApprovalClass.AUTO
    reasons: list[str] = []
    for rule in rules:
        if not rule.covers(tool):
            continue
        applies = _applies(rule, arguments)
        if applies is None:
            return ClassVerdict(
                approval_class=ApprovalClass.DENY,
                reasons=(f"the rule for {rule.tool} could not be decided",),
                failed=True,
            )
        if not applies or _STRICTNESS[rule.approval_class] < _STRICTNESS[strictest]:
            continue
        if rule.approval_class is not strictest:
            reasons.clear()
        strictest = rule.approval_class
        reasons.append(rule.reason or f"{rule.tool} is {rule.approval_class}")
    if strictest is ApprovalClass.AUTO:
        return _AUTO
    return ClassVerdict(approval_class=strictest, reasons=tuple(reasons))


def _applies(rule: ToolRule, arguments: Mapping[str, Json]) -> bool | None:
    if rule.when is None:
        return True
    try:
        # A copy for each: what one rule does to it, neither the next rule nor the tool sees.
        answer = rule.when(orjson.loads(orjson.dumps(arguments)))
    # The host's code: whatever it raises, the call is denied.
    except Exception:  # noqa: BLE001
        return None
    return answer if isinstance(answer, bool) else None


def _frozen_counts(value: object) -> Mapping[str, Limit]:
    if not isinstance(value, Mapping):
        raise ContractError("per_tool", "is a mapping from tool name to a number of steps")
    return {str(name): parse_count(f"per_tool.{name}", limit) for name, limit in value.items()}


def _entries(name: str, value: object) -> tuple[str, ...] | None:
    """The entries of a list, not yet read: whoever fetches parses them before the run starts."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ContractError(name, "is a list of entries, or None for no opinion")
    entries = tuple(value)
    if not all(isinstance(entry, str) for entry in entries):
        raise ContractError(name, "holds something that is not text")
    return entries


def _workspace_entries(value: object) -> tuple[str, ...] | None:
    return _entries("workspace_allowlist", value)


def _task_entries(value: object) -> tuple[str, ...] | None:
    return _entries("task_allowlist", value)


@attrs.frozen(kw_only=True)
class TaskContract:
    """What one task may spend and what needs a person. 0 means nothing; unlimited is written out.

    Attributes:
        max_steps: admitted tool calls.
        max_turns: model responses; a wrap-up turn is beyond them and has its own line.
        max_duration_seconds: seconds of activity; waiting for a person is not activity.
        max_parallel: calls of one response that run at the same time, at least 1.
        max_attempts: requests to the model for one turn, at least 1: faults that may pass are retried.
        max_refused: calls that were not admitted; None is twice `max_steps`.
        max_consecutive_refused: responses in a row of which nothing was admitted, at least 1.
        per_tool: steps by tool name.
        workspace_allowlist: entries that every run of the workspace is held to. None has no opinion;
            an empty list allows nothing.
        task_allowlist: the same for this task. A read needs an entry in each list and in the run's.
        approval_seconds: how long a request to a person stays open (72 hours by default).
        wrap_up: ask once more without tools when steps or turns run out.

    Raises:
        ContractError: a value is not a limit; the field is named.
    """

    max_steps: Limit = 50
    max_turns: Limit = 20
    max_duration_seconds: SecondsLimit = 600
    max_parallel: int = 4
    max_attempts: int = 3
    max_refused: Limit | None = None
    max_consecutive_refused: int = 3
    per_tool: Mapping[str, Limit] = attrs.field(factory=dict, converter=_frozen_counts)
    tool_policy: ToolPolicy = attrs.field(factory=ToolPolicy)
    workspace_allowlist: tuple[str, ...] | None = attrs.field(
        default=None, converter=_workspace_entries
    )
    task_allowlist: tuple[str, ...] | None = attrs.field(default=None, converter=_task_entries)
    approval_seconds: SecondsLimit = 72 * 3600
    wrap_up: bool = True

    def __attrs_post_init__(self) -> None:
        parse_count("max_steps", self.max_steps)
        parse_count("max_turns", self.max_turns)
        parse_seconds("max_duration_seconds", self.max_duration_seconds)
        parse_seconds("approval_seconds", self.approval_seconds)
        if self.max_refused is not None:
            parse_count("max_refused", self.max_refused)
        for name in ("max_parallel", "max_attempts", "max_consecutive_refused"):
            value = parse_count(name, getattr(self, name))
            if value == UNLIMITED or value < 1:
                raise ContractError(name, "must be at least 1")
        if not isinstance(self.tool_policy, ToolPolicy):
            raise ContractError("tool_policy", "must be a ToolPolicy")
        if not isinstance(self.wrap_up, bool):
            raise ContractError("wrap_up", "must be True or False")

    @property
    def refused_limit(self) -> Limit:
        """How many refused calls end the run."""
        if self.max_refused is not None:
            return self.max_refused
        return UNLIMITED if self.max_steps == UNLIMITED else 2 * self.max_steps

    @property
    def allowlists(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Name and entries of each list that has an opinion, outermost first."""
        named = (("workspace", self.workspace_allowlist), ("task", self.task_allowlist))
        return tuple((name, entries) for name, entries in named if entries is not None)

    def limits(self) -> Limits:
        """The contract as a ledger holds it."""
        counts: dict[str, Limit] = {STEPS: self.max_steps, TURNS: self.max_turns, WRAP_UP: 1}
        for name, limit in self.per_tool.items():
            counts[tool_bucket(name)] = limit
        return Limits(counts=counts, seconds=self.max_duration_seconds)
