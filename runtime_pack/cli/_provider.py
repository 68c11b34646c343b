"""A search provider that a user names as MODULE:FACTORY."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from web_tools.search import WebSearchProvider

__all__ = ("load_provider",)


def load_provider(name: str) -> WebSearchProvider:
    """The provider that MODULE:FACTORY makes.

    Raises:
        click.BadParameter: it cannot be made, or has no `search`.
    """
    module, _, factory = name.partition(":")
    if not module or not factory:
        text = f"write MODULE:FACTORY, for example {module or 'myprov'}:make"
        raise click.BadParameter(text, param_hint="--provider")
    # The installed command does not look where it was called; its own modules go first.
    sys.path.append(str(Path.cwd()))
    try:
        made: Any = getattr(importlib.import_module(module), factory)()
    # The host's code: whatever it raises, the command says which provider failed.
    except Exception as error:
        text = f"{name} could not be made into a provider ({type(error).__name__}: {error})"
        raise click.BadParameter(text, param_hint="--provider") from error
    if not callable(getattr(made, "search", None)):
        raise click.BadParameter(f"what {name} makes has no search", param_hint="--provider")
    provider: WebSearchProvider = made
    return provider
