"""A policy file: what a task may read, call and spend, as TOML. Strict.

A key that is not known, a value of another kind and an entry that cannot be enforced refuse the
whole file, and all that is wrong with it is said at once, each with its place. Credentials stand in it by the
name of a variable or a file, never as values. `sha256` is the digest of what the file says, not of
how it is laid out; it enters the events and the saved state of every run under it.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from egress import AddressPolicy, AllowlistError, EgressPolicy, layered_policy, parse_allowlist
from runtime_pack.errors import ContractError
from runtime_pack.given_files import opened, read_bounded
from runtime_pack.inner import frozen
from runtime_pack.label_table import LabelPreset
from runtime_pack.labels import Confidentiality, Integrity
from runtime_pack.messages import Json
from runtime_pack.patterns import PatternRefused, safe_pattern
from runtime_pack.policy import (
    CHECKS,
    NO_CHECK,
    ApprovalClass,
    PolicyRef,
    TaskContract,
    ToolPolicy,
    ToolRule,
)
from runtime_pack.prices import ModelPrice, PriceTable
from runtime_pack.signals import NO_SIGNALS, RunSignal, parse_signals
from runtime_pack.sink_config import SinkConfig, SinkRefused, parse_sink

__all__ = (
    "CredentialSource",
    "PolicyFault",
    "PolicyFile",
    "PolicyFileRefused",
    "PolicyFileUnreadable",
    "parse_policy",
    "read_policy",
)

_MAX_FILE_BYTES: Final = 1 << 20
_MAX_DIGITS: Final = 28
_MAX_EXPONENT: Final = 400
_MAX_BITS: Final = 63
_MAX_CREDENTIAL_BYTES: Final = 1 << 16
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_CREDENTIAL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_POINTER: Final = re.compile(r"(/[^/]+)+\Z")
_SOME: Final = re.compile(r".+\Z", re.DOTALL)
_FORMS: Final[Mapping[re.Pattern[str] | None, str]] = {
    _ID: "a text of up to 64 letters, digits, dots, - and _, a letter or digit first",
    _POINTER: 'the place of an argument, such as "/url" or "/to/0"',
    _SOME: "a text that is not empty",
}
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+\Z")

_TOP: Final = frozenset(
    {"id", "version", "allow", "workspace_allow", "task_allow", "address", "tools", "budgets"}
    | {"prices", "credentials", "presets", "sinks", "output_check", "fence", "ask_on_signals"}
)
_ADDRESS: Final = frozenset({"allowed_hosts", "allow_private_addresses", "https_only"})
_TOOL: Final = frozenset({"tool", "class", "reason", "label", "when"})
_WHEN: Final = frozenset({"argument", "equals", "one_of", "matches"})
_PRICES: Final = frozenset({"currency", "models", "tools"})
_PRICE: Final = frozenset({"input", "output", "cached_input"})
_SOURCE: Final = frozenset({"env", "file"})
# What of a contract is no budget: the file says it elsewhere.
_NOT_BUDGETS: Final = frozenset(
    {"tool_policy", "workspace_allowlist", "task_allowlist", "policy", "preset", "output_check"}
    | {"ask_on_signals"}
)
_BUDGETS: Final = frozenset(f.name for f in attrs.fields(TaskContract) if f.init) - _NOT_BUDGETS
_MONEY: Final = frozenset({"max_cost"})
_LABELS: Final = (*Integrity, *Confidentiality)
_FENCES: Final = ("fence", "datamark", "encode")
_PRESETS: Final = frozenset(map(str, LabelPreset))
_SIGNALS: Final = frozenset(map(str, RunSignal))


@frozen(kw_only=True)
class PolicyFault:
    """One thing wrong with the file: `path` is its place, such as `tools[0].when[1].matches`."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class PolicyFileRefused(ContractError):
    """The file is not a policy; `faults` holds all that is wrong with it."""

    def __init__(self, faults: tuple[PolicyFault, ...]) -> None:
        super().__init__("policy file", "; ".join(map(str, faults)))
        self.faults = faults


class PolicyFileUnreadable(PolicyFileRefused):
    """There is no file that can be read: nothing is known of what it says."""


@frozen(kw_only=True)
class CredentialSource:
    """Where a credential is: a variable of the environment, or a file whose first line it is."""

    env: str | None = None
    file: Path | None = None

    def read(self) -> str:
        """The credential.

        Raises:
            ContractError: there is none; the name of its place is said, never a value.
        """
        if self.env is not None:
            value, where = os.environ.get(self.env, ""), f"variable {self.env}"
        else:
            value, where = self._first_line(), f"file {self.file}"
        if not value:
            raise ContractError("credentials", f"there is none in the {where}")
        return value

    def _first_line(self) -> str:
        try:
            with opened(Path(self.file or "")) as handle:
                body = os.pread(handle, _MAX_CREDENTIAL_BYTES, 0)
            return body.decode().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError):
            return ""


@frozen(kw_only=True)
class PolicyFile:
    """What a file says; made by `read_policy`.

    Attributes:
        id: its name in events.
        version: its number in events; raise it with each change.
        allow: the run's list; an absent one allows nothing.
        budgets: arguments of a `TaskContract`.
        credentials: where each is, by name.
        preset: the table that says what labels do to calls.
        ask_on_signals: the signals after which a call that may send something out needs a person.
        output_check: what an answer with quotations that cannot be verified leads to.
        fence: the mode that blocks of text from outside are written in.
        sinks: where events are forwarded to, by name.
        text: the file as it was read.
    """

    id: str
    version: int
    sha256: str
    allow: tuple[str, ...] = ()
    workspace_allow: tuple[str, ...] | None = None
    task_allow: tuple[str, ...] | None = None
    address: AddressPolicy = attrs.field(factory=AddressPolicy)
    tool_policy: ToolPolicy = attrs.field(factory=ToolPolicy)
    budgets: Mapping[str, Any] = attrs.field(factory=dict)
    prices: PriceTable | None = None
    credentials: Mapping[str, CredentialSource] = attrs.field(factory=dict)
    preset: LabelPreset = LabelPreset.STANDARD
    ask_on_signals: frozenset[RunSignal] = NO_SIGNALS
    output_check: str = NO_CHECK
    fence: str = _FENCES[0]
    sinks: Mapping[str, SinkConfig] = attrs.field(factory=dict)
    text: str = attrs.field(default="", repr=False, eq=False)

    def contract(self) -> TaskContract:
        """The contract of a run under this policy."""
        return TaskContract(
            **self.budgets,
            tool_policy=self.tool_policy,
            workspace_allowlist=self.workspace_allow,
            task_allowlist=self.task_allow,
            preset=self.preset,
            ask_on_signals=self.ask_on_signals,
            output_check=self.output_check,
            policy=self.ref,
        )

    @property
    def ref(self) -> PolicyRef:
        """How the file is named in events and saved runs."""
        return PolicyRef(id=self.id, version=self.version, sha256=self.sha256)

    @property
    def lists(self) -> Mapping[str, tuple[str, ...]]:
        """The lists that have a say, by layer; the run's always has."""
        named = {"workspace": self.workspace_allow, "task": self.task_allow, "run": self.allow}
        return {name: entries for name, entries in named.items() if entries is not None}

    def egress(self) -> EgressPolicy:
        """All lists and the address policy, for code that fetches without a run."""
        return layered_policy(self.lists, address=self.address)


def read_policy(path: Path | str) -> PolicyFile:
    """The policy of a file.

    Raises:
        PolicyFileRefused: it cannot be read, is no TOML, or something in it cannot be enforced.
    """
    try:
        body = read_bounded(Path(path), _MAX_FILE_BYTES)
        return parse_policy(body.decode("utf-8"), name=str(path))
    except UnicodeDecodeError as error:
        raise _refused(str(path), "is not a text in UTF-8") from error
    except OSError as error:
        raise PolicyFileUnreadable((PolicyFault(path=str(path), problem=_why(error)),)) from error


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    # These are told in words of ours; a folder can be told by the system as well.
    if error.errno in {errno.EINVAL, errno.EFBIG, errno.EISDIR}:
        return str(error.strerror)
    return f"cannot be read ({error.strerror})"


def parse_policy(text: str, *, name: str = "/") -> PolicyFile:
    """The policy that a TOML text says; *name* stands for the text in what is wrong with all of it.

    Raises:
        PolicyFileRefused: it is no TOML, or something in it cannot be enforced; all of it is named.
    """
    try:
        body = tomllib.loads(text, parse_float=_decimal)
        canonical = orjson.dumps(_plain(body), option=orjson.OPT_SORT_KEYS)
    except tomllib.TOMLDecodeError as error:
        raise _refused(name, f"is not TOML: {error}") from error
    except (RecursionError, TypeError, ValueError, ArithmeticError) as error:
        raise _refused(name, f"is not of this form ({type(error).__name__})") from error
    digest = f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    reader = _Reader()
    policy = reader.policy(body, digest)
    if reader.faults or policy is None:
        raise PolicyFileRefused(tuple(reader.faults))
    return attrs.evolve(policy, text=text)


def _refused(path: str, problem: str) -> PolicyFileRefused:
    return PolicyFileRefused((PolicyFault(path=path, problem=problem),))


def _decimal(text: str) -> Decimal:
    """A number with a point or an exponent, of a size that can be reckoned with.

    Raises:
        ValueError: it has more digits, or a larger or smaller exponent, than any number here.
    """
    value = Decimal(text)
    if value.is_finite() and (
        len(value.as_tuple().digits) > _MAX_DIGITS or abs(value.adjusted()) > _MAX_EXPONENT
    ):
        raise ValueError("a number is out of bounds")
    return value


def _whole(value: int) -> str:
    if value.bit_length() > _MAX_BITS:
        raise ValueError("a number is out of bounds")
    return str(value)


def _plain(value: Any) -> Json:
    """The document as JSON, for its digest: equal numbers have equal text."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return {"decimal": f"{value.normalize():f}" if value.is_finite() else str(value)}
    if isinstance(value, datetime | date | time):
        return {"time": value.isoformat()}
    return {"integer": _whole(value)} if type(value) is int else value


# ── reading ───────────────────────────────────────────────────────────────────────────────────


class _Reader:
    """Reads the whole document and keeps every fault; a part that is wrong is left out."""

    def __init__(self) -> None:
        self.faults: list[PolicyFault] = []

    def policy(self, body: dict[str, Any], digest: str) -> PolicyFile | None:
        self._keys(body, _TOP, "")
        fields: dict[str, Any] = {
            "id": self._text(body, "id", "", _ID),
            "version": self._version(body),
            "sha256": digest,
            "allow": self._hosts(body, "allow") or (),
            "workspace_allow": self._hosts(body, "workspace_allow"),
            "task_allow": self._hosts(body, "task_allow"),
            "address": self._address(self._table(body, "address")),
            "tool_policy": self._tools(body),
            "budgets": self._budgets(self._table(body, "budgets")),
            "prices": self._prices(self._table(body, "prices")) if "prices" in body else None,
            "credentials": self._credentials(self._table(body, "credentials")),
        }
        if _MONEY & fields["budgets"].keys() and fields["prices"] is None:
            self._fault("budgets.max_cost", "needs prices: no run could be held to it")
        self._known(body, "presets", _PRESETS)
        fields["preset"] = self._preset(body)
        self._known(body, "ask_on_signals", _SIGNALS)
        fields["ask_on_signals"] = self._signals(body)
        fields["output_check"] = self._word(body, "output_check", CHECKS)
        fields["fence"] = self._word(body, "fence", _FENCES)
        fields["sinks"] = self._sinks(self._table(body, "sinks"), fields["credentials"])
        if self.faults:
            return None
        return PolicyFile(**fields)

    def _fault(self, path: str, problem: str) -> None:
        self.faults.append(PolicyFault(path=path or "/", problem=problem))

    def _keys(self, body: Mapping[str, Any], known: frozenset[str], path: str) -> None:
        for key in sorted(set(body) - known):
            there = ", ".join(sorted(known)) or "none"
            self._fault(_at(path, key), f"is no key here; there are: {there}")

    def _try(self, path: str, make: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """What *make* gives; None when it refuses, with what it says as a fault."""
        try:
            return make(*given, **named)
        except ContractError as error:
            self._fault(path, error.problem)
        except (AllowlistError, PatternRefused, TypeError, ValueError, ArithmeticError) as error:
            self._fault(path, str(error))
        return None

    def _table(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = body.get(key, {})
        if isinstance(value, dict):
            return value
        self._fault(key, "must be a table")
        return {}

    def _text(
        self, body: Mapping[str, Any], key: str, path: str, form: re.Pattern[str] | None = None
    ) -> str:
        value = body.get(key)
        if isinstance(value, str) and (form is None or form.match(value)):
            return value
        must = f"must be {_FORMS[form]}" if form in _FORMS else "must be a text"
        self._fault(_at(path, key), "is missing" if value is None else must)
        return ""

    def _word(self, body: Mapping[str, Any], key: str, words: tuple[str, ...]) -> str:
        """One of the words; the first of them where the key is absent."""
        value = body.get(key, words[0])
        if isinstance(value, str) and value in words:
            return value
        self._fault(key, f"must be one of {', '.join(words)}")
        return words[0]

    def _version(self, body: Mapping[str, Any]) -> int:
        value = body.get("version")
        if type(value) is int and value >= 1:
            return value
        self._fault("version", "is missing" if value is None else "must be a whole number from 1")
        return 0

    def _hosts(self, body: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
        if key not in body:
            return None
        value = body[key]
        if not isinstance(value, list):
            self._fault(key, "must be a list of entries")
            return ()
        for index, entry in enumerate(value):
            self._try(f"{key}[{index}]", parse_allowlist, [entry])
        return tuple(str(entry) for entry in value)

    def _address(self, body: dict[str, Any]) -> AddressPolicy:
        self._keys(body, _ADDRESS, "address")
        for key, value in body.items():
            if key in _ADDRESS:
                self._try(f"address.{key}", _switch, key, value)
        known = {key: value for key, value in body.items() if key in _ADDRESS}
        return AddressPolicy() if self.faults else AddressPolicy(**known)

    def _tools(self, body: Mapping[str, Any]) -> ToolPolicy:
        value = body.get("tools", [])
        if not isinstance(value, list):
            self._fault("tools", "must be a list of tables: write [[tools]]")
            return ToolPolicy()
        rules = [self._rule(each, f"tools[{index}]") for index, each in enumerate(value)]
        return ToolPolicy(rule for rule in rules if rule is not None)

    def _rule(self, body: Any, path: str) -> ToolRule | None:
        if not isinstance(body, dict):
            self._fault(path, "must be a table")
            return None
        self._keys(body, _TOOL, path)
        before = len(self.faults)
        tool, word = (self._text(body, key, path, _SOME) for key in ("tool", "class"))
        reason = self._text(body, "reason", path) if "reason" in body else ""
        conditions = self._conditions(body.get("when"), f"{path}.when") if "when" in body else None
        for key, value, words in (
            ("class", word or None, ApprovalClass),
            ("label", body.get("label"), _LABELS),
        ):
            if value is not None and (not isinstance(value, str) or value not in set(words)):
                self._fault(f"{path}.{key}", f"must be one of {', '.join(words)}")
        if len(self.faults) > before:
            return None
        rule: ToolRule | None = self._try(
            f"{path}.tool",
            ToolRule,
            tool=tool,
            approval_class=word,
            reason=reason,
            when=None if conditions is None else _predicate(conditions),
            when_label=body.get("label"),
        )
        return rule

    def _conditions(self, value: Any, path: str) -> tuple[_Condition, ...]:
        """All of which have to hold. An empty list would hold always, so it is refused."""
        listed = value if isinstance(value, list) else [value]
        if not listed:
            self._fault(path, "must be a condition, or a list of them that is not empty")
        read = []
        for index, each in enumerate(listed):
            place = f"{path}[{index}]" if isinstance(value, list) else path
            condition = self._condition(each, place)
            if condition is not None:
                read.append(condition)
        return tuple(read)

    def _condition(self, body: Any, path: str) -> _Condition | None:
        if not isinstance(body, dict):
            self._fault(path, "must be a table")
            return None
        self._keys(body, _WHEN, path)
        argument = self._text(body, "argument", path, _POINTER)
        tests = [key for key in ("equals", "one_of", "matches") if key in body]
        if len(tests) != 1:
            self._fault(path, "must have exactly one of equals, one_of, matches")
            return None
        (test,) = tests
        wanted = self._try(f"{path}.{test}", _wanted, test, body[test])
        return None if wanted is None or not argument else (argument, test, wanted)

    def _budgets(self, body: dict[str, Any]) -> dict[str, Any]:
        self._keys(body, _BUDGETS, "budgets")
        read: dict[str, Any] = {}
        for key in (key for key in body if key in _BUDGETS):
            before = len(self.faults)
            if key == "per_tool" and isinstance(body[key], dict):
                # Each alone: the fault is at its own key.
                for name, most in body[key].items():
                    self._try(_at("budgets.per_tool", name), _budget, key, {name: most})
            if len(self.faults) > before:
                continue
            value = self._try(f"budgets.{key}", _budget, key, body[key])
            if value is not None:
                read[key] = value
        return read

    def _prices(self, body: dict[str, Any]) -> PriceTable | None:
        self._keys(body, _PRICES, "prices")
        models: dict[str, ModelPrice] = {}
        for name, row in self._part(body, "models").items():
            path = _at("prices.models", name)
            if not isinstance(row, dict):
                self._fault(path, "must be a table with input and output")
                continue
            self._keys(row, _PRICE, path)
            price = self._model_price(row, path)
            if price is not None:
                models[name] = price
        tools = {
            name: self._try(_at("prices.tools", name), _tool_amount, value)
            for name, value in self._part(body, "tools").items()
        }
        given = {name: price for name, price in tools.items() if price is not None}
        currency = body.get("currency", "USD")
        table: PriceTable | None = self._try(
            "prices.currency", PriceTable, models=models, tools=given, currency=currency
        )
        return table

    def _model_price(self, row: Mapping[str, Any], path: str) -> ModelPrice | None:
        before = len(self.faults)
        amounts = {
            key: self._try(_at(path, key), _model_amount, value)
            for key, value in row.items()
            if key in _PRICE
        }
        if not {"input", "output"} <= amounts.keys():
            self._fault(path, "must have a price for input and one for output")
        return ModelPrice(**amounts) if len(self.faults) == before else None

    def _preset(self, body: Mapping[str, Any]) -> LabelPreset:
        """The one preset that is named: of two, neither would be what the file says."""
        names = body.get("presets", [])
        if not isinstance(names, list) or not set(map(repr, names)) <= set(map(repr, _PRESETS)):
            return LabelPreset.STANDARD
        if len(names) > 1:
            self._fault("presets", "names one preset at most")
        return LabelPreset(names[0]) if names else LabelPreset.STANDARD

    def _signals(self, body: Mapping[str, Any]) -> frozenset[RunSignal]:
        """The signals that are named; a list that holds another word is at fault by now."""
        words = body.get("ask_on_signals", [])
        known = isinstance(words, list) and all(
            isinstance(word, str) and word in _SIGNALS for word in words
        )
        return parse_signals(words) if known else NO_SIGNALS

    def _part(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        value = body.get(key, {})
        if isinstance(value, dict):
            return value
        self._fault(f"prices.{key}", "must be a table")
        return {}

    def _credentials(self, body: dict[str, Any]) -> dict[str, CredentialSource]:
        read: dict[str, CredentialSource] = {}
        for name, source in body.items():
            path = _at("credentials", name)
            if not _CREDENTIAL.match(name):
                self._fault(path, "is not the name of a credential")
            elif not isinstance(source, dict):
                self._fault(
                    path, 'must be a table: { env = "NAME" } or { file = "PATH" }, no value'
                )
            else:
                self._keys(source, _SOURCE, path)
                made = self._try(path, _source, source)
                if made is not None:
                    read[name] = made
        return read

    def _sinks(
        self, body: dict[str, Any], credentials: Mapping[str, CredentialSource]
    ) -> dict[str, SinkConfig]:
        read: dict[str, SinkConfig] = {}
        for name, table in body.items():
            try:
                read[name] = parse_sink(name, table, credentials)
            except SinkRefused as error:
                place = _at("sinks", name)
                self._fault(f"{place}.{error.key}" if error.key else place, str(error))
        return read

    def _known(self, body: Mapping[str, Any], key: str, known: frozenset[str]) -> None:
        value = body.get(key, [])
        if not isinstance(value, list):
            self._fault(key, "must be a list of names")
            return
        for index, name in enumerate(value):
            if not isinstance(name, str) or name not in known:
                there = ", ".join(sorted(known)) or "none"
                self._fault(
                    f"{key}[{index}]", f"does not exist in this version; there are: {there}"
                )


def _at(path: str, key: str) -> str:
    """The path of a key, as TOML writes it: one that is no bare key stands in quotes."""
    written = key if _BARE_KEY.match(key) else orjson.dumps(key).decode()
    return f"{path}.{written}" if path else written


def _switch(key: str, value: object) -> None:
    if key == "allowed_hosts" and not isinstance(value, list):
        raise ValueError("must be a list of hosts")
    # Called for what it refuses: a value of the wrong type is the case at hand.
    AddressPolicy(**{key: value})  # type: ignore[arg-type]


def _budget(key: str, value: Any) -> Any:
    """One budget, tried alone in a contract."""
    if key in _MONEY and value != "unlimited":
        value = _money(value)
    elif isinstance(value, Decimal):
        value = float(value)
    TaskContract(**{key: value})
    return value


def _money(value: object) -> Decimal:
    """An amount: a text, or a number as it is written; never through a binary float."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError('must be an amount, such as "0.25"')
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError(f"{value!r:.40} is not an amount") from None


def _model_amount(value: object) -> Decimal:
    """What a million tokens may cost."""
    amount = _money(value)
    ModelPrice(input=amount, output=amount)
    return amount


def _tool_amount(value: object) -> Decimal:
    """What a call may cost."""
    amount = _money(value)
    PriceTable(models={}, tools={"tool": amount})
    return amount


def _source(body: Mapping[str, object]) -> CredentialSource:
    env, file = body.get("env"), body.get("file")
    if (env is None) == (file is None):
        raise ValueError("must name either a variable (env) or a file")
    if env is not None:
        if not isinstance(env, str) or not _VARIABLE.match(env):
            raise ValueError("env must be the name of a variable")
        return CredentialSource(env=env)
    if not isinstance(file, str) or not Path(file).is_absolute():
        raise ValueError("file must be an absolute path")
    return CredentialSource(file=Path(file))


# ── conditions ────────────────────────────────────────────────────────────────────────────────

# Where the argument is, which test, and what is wanted: plain values, so that the policy's digest tells
# one condition from another.
_Condition = tuple[str, str, Any]


def _wanted(test: str, value: Any) -> Any:
    if test == "matches":
        if not isinstance(value, str):
            raise ValueError("must be a regular expression, as a text")
        return safe_pattern(value)
    options = value if test == "one_of" else [value]
    if not isinstance(options, list) or not options:
        raise ValueError("must be a list with at least one value")
    return tuple(_scalar(option) for option in options)


def _scalar(value: object) -> str | int | float | bool:
    number = float(value) if isinstance(value, Decimal) else value
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError("must be a number that is one")
    if isinstance(number, str | bool | int | float):
        return number
    raise ValueError("must be a text, a number, true or false")


def _predicate(conditions: tuple[_Condition, ...]) -> Callable[[Mapping[str, Json]], bool]:
    def applies(arguments: Mapping[str, Json]) -> bool:
        return all(_holds(condition, arguments) for condition in conditions)

    return applies


_ABSENT: Final = object()
_MAX_CHARACTERS: Final = 2048


def _holds(condition: _Condition, arguments: Mapping[str, Json]) -> bool:
    """Whether one argument is as it is wanted; one that is not there is not.

    Raises:
        ValueError: it cannot be said: a pattern for what is no text, or too long a text. The
            rule is then not decided, and the call is denied.
    """
    pointer, test, wanted = condition
    value = _found(arguments, pointer)
    if value is _ABSENT:
        return False
    if test != "matches":
        return any(_same(value, option) for option in wanted)
    if not isinstance(value, str) or len(value) > _MAX_CHARACTERS:
        raise ValueError("a pattern is held against a text of at most 2,048 characters")
    return wanted.search(value) is not None


def _found(arguments: Any, pointer: str) -> Any:
    here = arguments
    for step in pointer[1:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(here, Mapping) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isascii() and name.isdigit() and int(name) < len(here):
            here = here[int(name)]
        else:
            return _ABSENT
    return here


def _same(value: object, option: object) -> bool:
    return isinstance(value, bool) == isinstance(option, bool) and value == option
