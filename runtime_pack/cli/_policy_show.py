"""What a policy file says, and what a run under it needs, for people and for machines."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from runtime_pack.errors import ContractError
from runtime_pack.messages import Json
from runtime_pack.policy_file import CredentialSource, PolicyFile

__all__ = ("policy_json", "policy_lines")

_WIDTH: Final = 16
# What bounds every run, said or not.
_ALWAYS: Final = ("max_steps", "max_turns", "max_duration_seconds")


def policy_json(policy: PolicyFile) -> dict[str, Json]:
    """What the file says, as one object."""
    prices = policy.prices
    return {
        "id": policy.id,
        "version": policy.version,
        "sha256": policy.sha256,
        "allow": list(policy.allow),
        "workspace_allow": _list(policy.workspace_allow),
        "task_allow": _list(policy.task_allow),
        "address": _as_written(policy).get("address", {}),
        "tools": _as_written(policy).get("tools", []),
        "budgets": [
            {"budget": name, "limit": limit, "default": is_default}
            for name, limit, is_default in _budgets(policy)
        ],
        "prices": None if prices is None else {**prices.to_json(), "sha256": prices.sha256},
        "credentials": [
            {"name": name, "from": _place(source), "found": _is_there(source)}
            for name, source in policy.credentials.items()
        ],
        "sinks": _as_written(policy).get("sinks", {}),
        "needs": list(_needs(policy)),
    }


def policy_lines(policy: PolicyFile) -> Iterator[str]:
    """The same for people, one line each."""
    for key, value in _rows(policy):
        yield f"{key:<{_WIDTH}} {value}"


def _rows(policy: PolicyFile) -> Iterator[tuple[str, object]]:
    yield "id", policy.id
    yield "version", policy.version
    yield "sha256", policy.sha256
    yield "allow", ", ".join(policy.allow) or "nothing"
    for key, entries in (
        ("workspace_allow", policy.workspace_allow),
        ("task_allow", policy.task_allow),
    ):
        yield key, "no opinion" if entries is None else ", ".join(entries) or "nothing"
    for key, value in _as_written(policy).get("address", {}).items():
        yield "address", f"{key} = {_told(value)}"
    for rule in _as_written(policy).get("tools", []):
        yield "rule", _rule(rule)
    for name, limit, is_default in _budgets(policy):
        yield "limit", f"{name} = {_told(limit)}{' (the default)' if is_default else ''}"
    yield from _prices(policy)
    for name, source in policy.credentials.items():
        found = "found" if _is_there(source) else "not found now"
        yield "credential", f"{name} from the {_place(source)} ({found})"
    for name, table in _as_written(policy).get("sinks", {}).items():
        yield "sink", f"{name}: {_told(table)}"
    for need in _needs(policy):
        yield "needs", need


def _as_written(policy: PolicyFile) -> dict[str, Any]:
    """The document; conditions are functions in the policy, and words here."""
    return tomllib.loads(policy.text, parse_float=str)


def _list(entries: Sequence[str] | None) -> Json:
    return None if entries is None else list(entries)


def _budgets(policy: PolicyFile) -> Iterator[tuple[str, Json, bool]]:
    """Name, limit, and whether it is the default, which also bounds a run."""
    contract = policy.contract()
    for name in dict.fromkeys((*_ALWAYS, *sorted(policy.budgets))):
        yield name, _plain(getattr(contract, name)), name not in policy.budgets


def _plain(value: object) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _rule(rule: Mapping[str, Any]) -> str:
    text = f"{rule['tool']}: {rule['class']}"
    conditions = rule.get("when", [])
    for each in conditions if isinstance(conditions, list) else [conditions]:
        test = next(key for key in ("equals", "one_of", "matches") if key in each)
        text += f", when {each['argument']} {test} {_told(each[test])}"
    if "label" in rule:
        text += f", once the context is {rule['label']}"
    return text + (f" ({rule['reason']})" if rule.get("reason") else "")


def _told(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value)) or "nothing"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_told(item)}" for key, item in value.items()) or "none"
    return str(value)


def _prices(policy: PolicyFile) -> Iterator[tuple[str, str]]:
    if policy.prices is None:
        yield "prices", "none: money is not counted"
        return
    told = policy.prices.to_json()
    for name, row in _object(told["models"]).items():
        amounts = ", ".join(f"{key} {_short(value)}" for key, value in _object(row).items())
        yield "price", f"model {name}: {amounts} {policy.prices.currency} a million tokens"
    for name, price in _object(told["tools"]).items():
        yield "price", f"tool {name}: {_short(price)} {policy.prices.currency} a call"


def _short(amount: object) -> str:
    """An amount without the zeros at its end."""
    return f"{Decimal(str(amount)).normalize():f}"


def _object(value: object) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _place(source: CredentialSource) -> str:
    return f"variable {source.env}" if source.env is not None else f"file {source.file}"


def _is_there(source: CredentialSource) -> bool:
    try:
        return bool(source.read())
    except ContractError:
        return False


def _needs(policy: PolicyFile) -> Iterator[str]:
    """What a run under this file needs beside it; the file alone does not show that it can run."""
    for name, source in policy.credentials.items():
        if not _is_there(source):
            yield f"the credential {name} in the {_place(source)}: there is none now"
    if policy.prices is not None:
        names = ", ".join(sorted(policy.prices.models)) or "none"
        yield f"a model with a price; there are: {names} (ask's built-in model is free)"
