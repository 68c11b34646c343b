"""A tool under another name: what is said of the tool holds under every name of it. Pure.

`web.fetch` is the reader `web:read` by the name that the search contract gives it. A rule, a limit, a
price or a person's denial that names the reader holds for its alias too, so that the second name is no
way around the first. What names the alias holds for the alias alone: `web.*` is not about `web:read`.
Nothing that is said of the reader admits the alias: it has to be in the run's tools by its own name.
"""

from __future__ import annotations

from typing import Final

__all__ = ("FETCH_TOOL", "READ_TOOL", "names_of", "original_of")

READ_TOOL: Final = "web:read"
FETCH_TOOL: Final = "web.fetch"

_ORIGINALS: Final = {FETCH_TOOL: READ_TOOL}


def original_of(tool: str) -> str:
    """The tool that a name stands for: itself, unless it is an alias."""
    return _ORIGINALS.get(tool, tool)


def names_of(tool: str) -> tuple[str, ...]:
    """The names under which rules, limits and prices are held against a call of *tool*; its own first."""
    original = _ORIGINALS.get(tool)
    return (tool,) if original is None else (tool, original)
