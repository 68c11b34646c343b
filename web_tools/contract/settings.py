"""The settings that every back end accepts, with their overrides by agent. Pure, strict.

They are read by the engine and not by the back end, so they mean the same under every vendor.
"""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import attrs

from egress.errors import AllowlistError
from egress.policy import AddressPolicy
from web_tools._fields import whole_number
from web_tools.errors import InvalidSetup

__all__ = ("DEFAULT_CAP", "SETTING_TYPES", "Settings", "SettingsByAgent", "parse_settings")

DEFAULT_CAP: Final = 200
"""Calls that one agent may make in a UTC day, unless the operator says otherwise."""

SETTING_TYPES: Final[Mapping[str, str]] = {
    "maxSearchesPerDay": "integer",
    "allowedHosts": "array",
    "allowPrivateAddresses": "boolean",
}
"""What a manifest must declare, and as what."""

_T = TypeVar("_T")
# Alike enough to be meant: `maxSearchesPerday`, `max_searches_per_day`, `allowHosts`.
_CLOSE: Final = 0.8
_LONGEST_KEY: Final = 64


@attrs.frozen(kw_only=True)
class Settings:
    """What counts for one agent.

    Attributes:
        max_per_day: Calls in a UTC day; 0 refuses every call. There is no word for "uncapped".
        address: The exemptions from the address check.
    """

    max_per_day: int = DEFAULT_CAP
    address: AddressPolicy = attrs.field(factory=AddressPolicy)


@attrs.frozen(kw_only=True)
class SettingsByAgent:
    """The settings of all agents, and those of the agents that have their own."""

    everybody: Settings = attrs.field(factory=Settings)
    overrides: Mapping[str, Settings] = attrs.field(factory=dict)

    def of(self, agent: str) -> Settings:
        """The settings that count for *agent*."""
        return self.overrides.get(agent, self.everybody)


def parse_settings(config: object, *, own_keys: Collection[str] | None = None) -> SettingsByAgent:
    """The settings in the config block of a back end.

    Args:
        config: The block.
        own_keys: Keys of the back end's own; every other one is refused. By default they are not
            known, and what is spelled almost like a setting is refused.

    Raises:
        InvalidSetup: A value is not of its type, or a key is not known; `field` is its path, such
            as ``agents.b.maxSearchesPerDay``.
    """
    body = _table(config, "config")
    _refuse_misspelt(body, own_keys, "")
    everybody = _settings(body, Settings(), "")
    agents = _table(body.get("agents", {}), "agents")
    overrides = {}
    for agent, own in agents.items():
        path = f"agents.{agent}"
        _refuse_misspelt(_table(own, path), own_keys, f"{path}.")
        overrides[agent] = _settings(_table(own, path), everybody, f"{path}.")
    return SettingsByAgent(everybody=everybody, overrides=overrides)


def _refuse_misspelt(body: Mapping[str, Any], own_keys: Collection[str] | None, path: str) -> None:
    """Refuse a key that is meant for us and would be read by nobody: its cap, say, would be none."""
    known = {*SETTING_TYPES, "enabled", "agents"} if not path else {*SETTING_TYPES}
    for key in body:
        if key in known or (own_keys is not None and key in own_keys):
            continue
        meant = get_close_matches(_letters(key), map(_letters, known), n=1, cutoff=_CLOSE)
        if own_keys is not None or meant:
            told = f"is no setting; there are: {', '.join(sorted(known | set(own_keys or ())))}"
            raise InvalidSetup(f"{path}{key:.80}", told)


def _letters(key: str) -> str:
    """A key without what people spell in two ways: case and separators."""
    return "".join(filter(str.isalnum, key[:_LONGEST_KEY])).casefold()


def _settings(body: Mapping[str, Any], inherited: Settings, path: str) -> Settings:
    """An override stands for the whole value: lists are replaced, not added to."""
    address = inherited.address
    hosts = _setting(body, "allowedHosts", _hosts, address.allowed_hosts, path)
    private = _setting(
        body, "allowPrivateAddresses", _switch, address.allow_private_addresses, path
    )
    return Settings(
        max_per_day=_setting(body, "maxSearchesPerDay", _cap, inherited.max_per_day, path),
        address=AddressPolicy(allowed_hosts=hosts, allow_private_addresses=private),
    )


def _setting(
    body: Mapping[str, Any], key: str, read: Callable[[object], _T], inherited: _T, path: str
) -> _T:
    if key not in body:
        return inherited
    try:
        return read(body[key])
    except (AllowlistError, ValueError) as error:
        raise InvalidSetup(f"{path}{key}", str(error)) from error


def _table(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidSetup(path, "must be an object")
    return value


def _cap(value: object) -> int:
    whole = whole_number(value)
    if whole is None or whole < 0:
        raise ValueError("must be a whole number from 0; write a large one for no cap")
    return whole


def _hosts(value: object) -> frozenset[str]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of hosts")
    return AddressPolicy(allowed_hosts=value).allowed_hosts


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value
