"""The plugin's part of a `settings.json`. Pure, strict: a key that is not known is refused by its path."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs

from web_tools.errors import InvalidSetup
from web_tools.plugin.capability import check_reference

__all__ = ("PluginSettings", "parse_plugin_settings", "read_plugin_settings")

_SECTION: Final = "defaultCapabilities"
_KEYS: Final = ("search",)
_MAX_CHARS: Final = 1 << 20


@attrs.frozen(kw_only=True)
class PluginSettings:
    """What the settings say.

    Attributes:
        search: The model that `mode: "model"` asks, as `provider/model`; None when none is named.
    """

    search: str | None = None


def parse_plugin_settings(body: object, *, sections: Collection[str] = ()) -> PluginSettings:
    """The settings in an object.

    Args:
        body: As JSON has it.
        sections: Keys at the top that are the host's own, and are left to it.

    Raises:
        InvalidSetup: A key is misspelt or a value is not of its form; `field` is its path.
    """
    whole = _table(body, "settings")
    _refuse_unknown(whole, {_SECTION, *sections}, "")
    capabilities = _table(whole.get(_SECTION, {}), _SECTION)
    _refuse_unknown(capabilities, _KEYS, f"{_SECTION}.")
    if "search" not in capabilities:
        return PluginSettings()
    return PluginSettings(search=check_reference(f"{_SECTION}.search", capabilities["search"]))


def read_plugin_settings(text: str, *, sections: Collection[str] = ()) -> PluginSettings:
    """The settings in the text of a `settings.json`.

    Raises:
        InvalidSetup: As `parse_plugin_settings`; or it is no JSON, or has a key twice.
    """
    if len(text) > _MAX_CHARS:
        raise InvalidSetup("settings", "are longer than a settings file is")
    try:
        body = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidSetup):
            raise
        raise InvalidSetup("settings", "are not JSON") from error
    return parse_plugin_settings(body, sections=sections)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidSetup(f"{twice!r:.80}", "is there twice")
    return table


def _table(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidSetup(path, "must be an object")
    return value


def _refuse_unknown(table: Mapping[str, Any], known: Collection[str], path: str) -> None:
    for key in table:
        if key not in known:
            told = f"is no key of the settings; there are: {', '.join(sorted(known))}"
            raise InvalidSetup(f"{path}{key:.80}", told)
