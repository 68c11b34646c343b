"""Saved runs as a command finds them: the folder as it is, and a run by the beginning of its id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import click

from runtime_pack import runs
from runtime_pack.cli._state import StateFolder, is_new, open_state
from runtime_pack.errors import RunNotFound
from runtime_pack.stores import SharedRunStore

__all__ = ("found_run", "opened_folder", "wait")

_T = TypeVar("_T")


def opened_folder(state_dir: Path | None) -> StateFolder:
    """The folder as it is: looking at runs makes none.

    Raises:
        click.ClickException: there is none, or it cannot be read.
    """
    new = is_new(state_dir)
    if new is not None:
        text = f"no saved runs in {new}; --state-dir names another folder"
        raise click.BadParameter(text, param_hint="--state-dir")
    return open_state(state_dir, create=False)


def found_run(state: StateFolder, prefix: str) -> str:
    """The id of the run that begins so.

    Raises:
        click.BadParameter: there is none.
    """
    store: SharedRunStore = state.store
    try:
        return wait(runs.find_run(store, prefix))
    except RunNotFound as error:
        text = f"{error}; `runtime-pack runs list` shows those that there are"
        raise click.BadParameter(text, param_hint="RUN") from error


def wait(work: Awaitable[_T]) -> _T:
    """What the work gives, for a command that has no event loop."""

    async def awaited() -> _T:
        return await work

    return asyncio.run(awaited())
