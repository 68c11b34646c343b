"""Tool names as providers spell them: they forbid `:` and `.`.

`web:search` is `web__search` there, and `web.search` is `web_dot_search`. Within a catalog the
spelling is one to one: two tools that would be spelled alike are refused when the catalog is
built, so that a call by the one can never run the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from runtime_pack.errors import ContractError

__all__ = ("WireNames", "wire_name")

# The narrowest rule among the providers, that of OpenAI: ^[a-zA-Z0-9_-]{1,64}$.
_MOST: Final = 64
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


def _spelled(name: str) -> str:
    return name.replace(":", "__").replace(".", "_dot_")


def wire_name(name: str) -> str:
    """A name that every provider takes. Total: a history can hold any name that a model made up."""
    return _FOREIGN.sub("_", _spelled(name))[:_MOST] or "_"


class WireNames:
    """The spellings of one catalog, both ways.

    Raises:
        ContractError: two of the names are spelled alike, or a spelling is too long.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        for name in names:
            wire = wire_name(name)
            if len(_spelled(name)) > _MOST:
                raise ContractError(name, f"has over {_MOST} characters as providers spell it")
            other = self._names.setdefault(wire, name)
            if other != name:
                raise ContractError(name, f"providers would see it as {wire}, as they do {other}")

    def from_wire(self, wire: str) -> str:
        """The tool that a provider's spelling means; a name of no tool stays as it is."""
        return self._names.get(wire, wire)
