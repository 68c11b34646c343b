"""The contract of one task and the verdict on one call: pure.

Deny beats approval beats notify beats allow: of the tool's own class and all rules of all layers
that match a call, the strictest wins. A rule's predicate that raises, does not end in time or answers
anything but True or False is a deny (POLICY_ERROR). A call that no rule matches has the class of its
tool, `auto` by default: what a task may call at all is decided by its catalog.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import attrs
import orjson

from runtime_pack.errors import ContractError
from runtime_pack.fault_log import log_fault
from runtime_pack.flow import BrokenRule, FlowVerdict
from runtime_pack.inner import frozen
from runtime_pack.label_table import LabelPreset, LabelVerdict, parse_preset
from runtime_pack.labels import CLEAN, Confidentiality, Integrity, Label, parse_word, reaches
from runtime_pack.ledger import (
    COST,
    STEPS,
    TOKENS,
    TURNS,
    UNLIMITED,
    VIOLATIONS,
    WRAP_UP,
    Limit,
    Limits,
    SecondsLimit,
    parse_count,
    parse_seconds,
    tool_bucket,
)
from runtime_pack.ledger_limits import (
    MoneyLimit,
    epoch_microseconds,
    micro_units,
    parse_expiry,
    parse_money,
)
from runtime_pack.messages import Json, clean_text
from runtime_pack.signals import NO_SIGNALS, RunSignal, parse_signals
from runtime_pack.strictness import ApprovalClass, is_stricter, parse_class
from runtime_pack.tool_aliases import names_of

__all__ = (
    "CHECKS",
    "NO_CHECK",
    "PREDICATE_SECONDS",
    "ApprovalClass",
    "ClassVerdict",
    "PolicyLayer",
    "PolicyRef",
    "TaskContract",
    "ToolPolicy",
    "ToolRule",
    "classify_call",
    "tightened",
)


PREDICATE_SECONDS: Final = 1.0
"""How long a predicate may take. One that is not a coroutine cannot be stopped: it denies afterwards."""

Predicate: TypeAlias = Callable[[Mapping[str, Json]], bool | Awaitable[bool]]
"""Says whether a rule applies to these arguments: a function, quick and pure, or a coroutine function."""

_OWN_LAYER: Final = "task"
_LAYER_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
# The class that a tool declares for itself stands in reasons under this name.
_TOOL_LAYER: Final = "tool"
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
    return parse_class("approval_class", word)


def _label_word(word: object) -> Integrity | Confidentiality | None:
    try:
        return None if word is None else parse_word(word)
    except ValueError as error:
        raise ContractError("tool_policy", f"when_label: {error}") from None


@frozen(kw_only=True)
class ToolRule:
    """One rule: `tool` is a name or a glob of `*` (anything) and `?` (one character).

    With `when_label`, a word of integrity or confidentiality, the rule applies from the time on when
    the run's context is at that word or worse: `external` once something from outside was read,
    `secret` once something secret was. With `when` too, both have to apply. `layer` is set by the
    policy that holds the rule.

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
    when_label: Integrity | Confidentiality | None = attrs.field(
        default=None, converter=_label_word
    )
    reason: str = ""
    layer: str = _OWN_LAYER
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
        """Whether the name is covered, or the tool that it is another name of.

        `web.*` covers `web.search` and `web.fetch`, not `web:read`; `web:read` covers `web.fetch` too.
        """
        return any(self._matches(name) is not None for name in names_of(tool))

    @property
    def awaits(self) -> bool:
        """Whether the predicate is a coroutine function."""
        return inspect.iscoroutinefunction(self.when)

    def told(self) -> str:
        """The rule in one line, for people: its layer, its pattern, its reason or else its class."""
        at = "" if self.when_label is None else f", as the context is {self.when_label}"
        return f"{self.layer} rule {self.tool}: {clean_text(self.reason) or f'is {self.approval_class}'}{at}"

    def to_json(self) -> dict[str, Json]:
        """The rule as it enters the policy's digest."""
        body: dict[str, Json] = {
            "tool": self.tool,
            "approval_class": str(self.approval_class),
            "when": self._when,
            "reason": self.reason,
        }
        if self.when_label is not None:
            body["when_label"] = str(self.when_label)
        return body


def _rule_tuple(rules: Iterable[ToolRule]) -> tuple[ToolRule, ...]:
    """The rules as given.

    Raises:
        ContractError: one of them is not a rule.
    """
    if isinstance(rules, ToolRule):
        raise ContractError("tool_policy", "is one rule: give a list, ToolPolicy([rule])")
    given = tuple(rules)
    if not all(isinstance(rule, ToolRule) for rule in given):
        raise ContractError("tool_policy", "holds something that is not a ToolRule")
    return given


@frozen
class PolicyLayer:
    """The rules of one who may restrict a task: `workspace`, `run`, or any other short name.

    Raises:
        ContractError: the name is not lower-case letters, digits, `-` and `_`, or is `tool`, which
            stands for the class that a tool declares.
    """

    name: str
    rules: tuple[ToolRule, ...] = attrs.field(default=(), converter=_rule_tuple)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not _LAYER_NAME.match(self.name):
            raise ContractError("tool_policy", f"{self.name!r} cannot name a layer")
        if self.name == _TOOL_LAYER:
            raise ContractError("tool_policy", f"{self.name!r} is the name of the tools' own class")
        named = tuple(attrs.evolve(rule, layer=self.name) for rule in self.rules)
        object.__setattr__(self, "rules", named)


def _layer_tuple(layers: Iterable[PolicyLayer]) -> tuple[PolicyLayer, ...]:
    if isinstance(layers, PolicyLayer):
        raise ContractError("tool_policy", "is one layer: give a list of layers")
    given = tuple(layers)
    if not all(isinstance(layer, PolicyLayer) for layer in given):
        raise ContractError("tool_policy", "holds something that is not a PolicyLayer")
    if len({layer.name for layer in given}) != len(given):
        raise ContractError("tool_policy", "two layers have one name")
    return given


@frozen
class ToolPolicy:
    """Rules in any order, the task's own and those of named layers; the strictest that matches wins.

    No layer can allow what another one restricts.

    Raises:
        ContractError: something is no rule or no layer, or two layers have one name.
    """

    rules: tuple[ToolRule, ...] = attrs.field(default=(), converter=_rule_tuple)
    layers: tuple[PolicyLayer, ...] = attrs.field(default=(), converter=_layer_tuple)
    all_rules: tuple[ToolRule, ...] = attrs.field(init=False, repr=False, eq=False)
    """The rules of every layer, in the order of the layers, the task's own last."""
    sha256: str = attrs.field(init=False, repr=False, eq=False)
    """Digest of the rules and of the layers they are in, for records and approval requests."""
    books: dict[str, Any] = attrs.field(init=False, factory=dict, repr=False, eq=False)
    """What the judge has found out of these rules, by tool: the same for every run under them."""

    def __attrs_post_init__(self) -> None:
        own = tuple(
            rule if rule.layer == _OWN_LAYER else attrs.evolve(rule, layer=_OWN_LAYER)
            for rule in self.rules
        )
        layered = (rule for layer in self.layers for rule in layer.rules)
        object.__setattr__(self, "rules", own)
        # Once: every run of the contract asks for them.
        object.__setattr__(self, "all_rules", (*layered, *own))
        object.__setattr__(self, "sha256", self._digest())

    @classmethod
    def layered(cls, **layers: Iterable[ToolRule]) -> ToolPolicy:
        """A policy of named layers: `ToolPolicy.layered(workspace=[…], task=[…], run=[…])`."""
        return cls(layers=[PolicyLayer(name, rules) for name, rules in layers.items()])

    def _digest(self) -> str:
        own: Json = [rule.to_json() for rule in self.rules]
        layers: Json = [
            [layer.name, [rule.to_json() for rule in layer.rules]] for layer in self.layers
        ]
        whole: Json = {"layers": layers, "rules": own} if self.layers else own
        body = orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)
        return f"sha256:{hashlib.sha256(body).hexdigest()}"


@frozen(kw_only=True)
class ClassVerdict:
    """The class of one call; `reasons` are those that gave it, each with its layer and rule.

    `flow` is what the label of the context, the known addresses and what is private say of it.
    """

    approval_class: ApprovalClass
    reasons: tuple[str, ...] = ()
    failed: bool = False
    flow: FlowVerdict | None = None

    @property
    def rules(self) -> tuple[BrokenRule, ...]:
        """The label rules that the call breaks."""
        return () if self.flow is None else self.flow.rules


_AUTO: Final = ClassVerdict(approval_class=ApprovalClass.AUTO)


def classify_call(
    rules: Sequence[ToolRule],
    tool: str,
    arguments: Mapping[str, Json],
    *,
    label: Label = CLEAN,
    declared: ApprovalClass = ApprovalClass.AUTO,
    answers: Mapping[int, bool | None] | None = None,
) -> ClassVerdict:
    """The strictest of the class that the tool declares and of the rules that match.

    Never raises: a predicate that fails denies. *label* is that of the context; *answers* are those
    of predicates that had to be awaited, by the place of their rule, None for one that failed.
    """
    strictest = declared
    reasons: list[str] = []
    if declared is not ApprovalClass.AUTO:
        reasons.append(f"{_TOOL_LAYER} {tool}: is {declared}")
    for place, rule in enumerate(rules):
        if not rule.covers(tool) or not _is_reached(rule, label):
            continue
        applies = answers[place] if answers and place in answers else _applies(rule, arguments)
        if applies is None:
            return ClassVerdict(
                approval_class=ApprovalClass.DENY,
                reasons=(f"{rule.layer} rule {rule.tool}: could not be decided",),
                failed=True,
            )
        if not applies or is_stricter(strictest, rule.approval_class):
            continue
        if rule.approval_class is not strictest:
            reasons.clear()
        strictest = rule.approval_class
        reasons.append(rule.told())
    if strictest is ApprovalClass.AUTO:
        return _AUTO
    return ClassVerdict(approval_class=strictest, reasons=tuple(dict.fromkeys(reasons)))


def tightened(verdict: ClassVerdict, flow: FlowVerdict) -> ClassVerdict:
    """The class of a call when its flow is judged too: it can only become stricter."""
    if verdict.approval_class is ApprovalClass.DENY:
        return verdict
    if flow.verdict is LabelVerdict.ALLOW:
        return attrs.evolve(verdict, flow=flow)
    told = tuple(rule.told() for rule in flow.rules)
    if flow.verdict is LabelVerdict.DENY:
        return ClassVerdict(approval_class=ApprovalClass.DENY, reasons=told, flow=flow)
    asked = verdict.approval_class is ApprovalClass.REQUEST_USER
    reasons = (*verdict.reasons, *told) if asked else told
    return ClassVerdict(approval_class=ApprovalClass.REQUEST_USER, reasons=reasons, flow=flow)


def _is_reached(rule: ToolRule, label: Label) -> bool:
    return rule.when_label is None or reaches(label, rule.when_label)


def _applies(rule: ToolRule, arguments: Mapping[str, Json]) -> bool | None:
    if rule.when is None:
        return True
    try:
        # A copy for each: what one rule does to it, neither the next rule nor the tool sees.
        answer = rule.when(orjson.loads(orjson.dumps(arguments)))
    except KeyboardInterrupt:
        raise
    # The host's code: whatever it raises, the call is denied.
    except BaseException as error:  # noqa: BLE001
        log_fault(f"the predicate of the rule for {rule.tool}", error)
        return None
    if inspect.iscoroutine(answer):
        # Nobody awaits here: an answer that was not given is none.
        answer.close()
    return answer if isinstance(answer, bool) else None


_PATTERN_SIGNS: Final = frozenset("*?[]{}!")


def _frozen_counts(value: object) -> Mapping[str, Limit]:
    if not isinstance(value, Mapping):
        raise ContractError("per_tool", "is a mapping from tool name to a number of steps")
    for name in value:
        # Limits are by name: a pattern would be the name of no tool, and limit nothing.
        if not isinstance(name, str) or not name or not _PATTERN_SIGNS.isdisjoint(name):
            raise ContractError(f"per_tool.{str(name)[:80]}", "is a tool's name, and no pattern")
    return {name: parse_count(f"per_tool.{name}", limit) for name, limit in value.items()}


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


@frozen(kw_only=True)
class PolicyRef:
    """The policy file that a contract was made from, as it is named in events and saved runs."""

    id: str
    version: int
    sha256: str

    def to_json(self) -> dict[str, Json]:
        """The reference in events."""
        return {"id": self.id, "version": self.version, "sha256": self.sha256}


_BATCHES: Final = ("prefix", "atomic")
NO_CHECK: Final = "none"
CHECKS: Final = (NO_CHECK, "again", "end")
"""What an answer that fails the check of a run may lead to."""


def _check_word(name: str, word: str, words: tuple[str, ...]) -> None:
    if word not in words:
        raise ContractError(name, f"{word!r} is not one of {', '.join(words)}")


@frozen(kw_only=True)
class TaskContract:
    """What one task may spend and what needs a person. 0 means nothing; unlimited is written out.

    Attributes:
        max_steps: admitted tool calls.
        max_turns: model responses; a wrap-up turn is beyond them and has its own line.
        max_cost: money for turns and calls, a Decimal in the currency of the price table. None is no
            such budget; `unlimited` counts money and never stops for it. Both need a price table.
        max_tokens: tokens that models read and wrote. None is no such budget, as `unlimited` is.
        max_duration_seconds: seconds of activity; waiting for a person is not activity.
        expires_at: the run's last moment, whatever it waits for; None for no such moment.
        max_parallel: calls of one response that run at the same time, at least 1.
        max_context_bytes: bytes of the messages that a model is sent; longer histories are summed
            up if there is a summariser. The definitions of the tools are not counted.
        max_batch: calls of one response that are judged at all; those after them are refused.
        batch: `prefix` runs the calls of a response that fit, in order; `atomic` runs all or none.
        max_attempts: requests to the model for one turn, at least 1: faults that may pass are retried.
        max_refused: calls that were not admitted; None is twice `max_steps`, and
            twice the steps that are granted later.
        max_consecutive_refused: responses in a row of which nothing was admitted, at least 1.
        max_violations: how often the policy may have to stop what tools do, before the run stops.
        per_tool: steps by tool name; a name that the run does not have is refused when it starts.
        tool_policy: which calls need a person, are told, or are denied; the strictest rule wins.
        workspace_allowlist: entries that every run of the workspace is held to. None has no opinion;
            an empty list allows nothing.
        task_allowlist: the same for this task. A read needs an entry in each list and in the run's.
        approval_seconds: how long a request to a person stays open (72 hours by default).
        wrap_up: ask once more without tools when steps or turns run out.
        preset: the table that says what the label of the context does to a call: `standard` or
            `strict`; see `label_table`.
        ask_on_signals: the signals after which a call that may send something out needs a person;
            see `signals.RunSignal`. None by default.
        output_check: what an answer that fails the run's `output_check` leads to: `again` asks for
            another one, within the budgets; `end` ends the run in OUTPUT_UNVERIFIED; `none` has no
            such check.
        policy: the file that this contract was made from; it enters events and saved runs.

    Raises:
        ContractError: a value is not a limit; the field is named.
    """

    max_steps: Limit = 50
    max_turns: Limit = 20
    max_cost: MoneyLimit | None = None
    max_tokens: Limit | None = None
    max_duration_seconds: SecondsLimit = 600
    max_context_bytes: Limit = UNLIMITED
    max_parallel: int = 4
    max_batch: Limit = 128
    batch: str = "prefix"
    max_attempts: int = 3
    max_refused: Limit | None = None
    max_consecutive_refused: int = 3
    max_violations: Limit = 10
    per_tool: Mapping[str, Limit] = attrs.field(factory=dict, converter=_frozen_counts)
    tool_policy: ToolPolicy = attrs.field(factory=ToolPolicy)
    workspace_allowlist: tuple[str, ...] | None = attrs.field(
        default=None, converter=_workspace_entries
    )
    task_allowlist: tuple[str, ...] | None = attrs.field(default=None, converter=_task_entries)
    approval_seconds: SecondsLimit = 72 * 3600
    expires_at: datetime | None = None
    wrap_up: bool = True
    preset: LabelPreset = attrs.field(default=LabelPreset.STANDARD, converter=parse_preset)
    ask_on_signals: frozenset[RunSignal] = attrs.field(default=NO_SIGNALS, converter=parse_signals)
    output_check: str = NO_CHECK
    policy: PolicyRef | None = None
    _limits: Limits = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        parse_count("max_steps", self.max_steps)
        parse_count("max_turns", self.max_turns)
        parse_count("max_violations", self.max_violations)
        parse_seconds("max_duration_seconds", self.max_duration_seconds)
        parse_seconds("approval_seconds", self.approval_seconds)
        parse_count("max_context_bytes", self.max_context_bytes)
        parse_count("max_batch", self.max_batch)
        _check_word("batch", self.batch, _BATCHES)
        _check_word("output_check", self.output_check, CHECKS)
        for name in ("max_refused", "max_tokens"):
            if getattr(self, name) is not None:
                parse_count(name, getattr(self, name))
        if self.max_cost is not None:
            parse_money("max_cost", self.max_cost)
        if self.expires_at is not None:
            parse_expiry("expires_at", self.expires_at)
        for name in ("max_parallel", "max_attempts", "max_consecutive_refused"):
            value = parse_count(name, getattr(self, name))
            if value == UNLIMITED or value < 1:
                raise ContractError(name, "must be at least 1")
        for name, kind, text in (
            ("tool_policy", ToolPolicy, "must be a ToolPolicy"),
            ("wrap_up", bool, "must be True or False"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ContractError(name, text)
        object.__setattr__(self, "_limits", self._held_to())

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

    @property
    def policy_sha256(self) -> str:
        """Digest of what decides on calls: the rules; preset and signals where not the default."""
        rules = self.tool_policy.sha256
        if self.preset is LabelPreset.STANDARD and not self.ask_on_signals:
            return rules
        whole = " ".join([rules, self.preset, *sorted(self.ask_on_signals)])
        return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"

    def limits(self) -> Limits:
        """The contract as a ledger holds it; nobody changes it, so all runs of it share it."""
        return self._limits

    def _held_to(self) -> Limits:
        counts: dict[str, Limit] = {
            STEPS: self.max_steps,
            TURNS: self.max_turns,
            VIOLATIONS: self.max_violations,
            WRAP_UP: 1,
        }
        for name, limit in self.per_tool.items():
            counts[tool_bucket(name)] = limit
        if self.max_tokens is not None:
            counts[TOKENS] = self.max_tokens
        if self.max_cost is not None:
            unlimited = self.max_cost == UNLIMITED
            counts[COST] = UNLIMITED if unlimited else micro_units("max_cost", self.max_cost)
        ends: Limit = UNLIMITED if self.expires_at is None else epoch_microseconds(self.expires_at)
        return Limits(counts=counts, seconds=self.max_duration_seconds, expires_us=ends)
