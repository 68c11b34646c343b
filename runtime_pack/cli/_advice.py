"""Command lines that are told as advice: what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from runtime_pack.ledger import COST, DURATION, EXPIRES, TOKENS

__all__ = ("approve_advice", "grant_advice", "runs_advice")

# An amount that is worth a grant, in the budget's own unit; ten of anything else.
_AMOUNTS: Final[Mapping[str, str]] = {
    COST: "0.50",
    TOKENS: "10000",
    DURATION: "60",
    EXPIRES: "3600",
}


def runs_advice(state_dir: Path | None, *words: str) -> str:
    """A command line of `runtime-pack runs`."""
    where = () if state_dir is None else ("--state-dir", str(state_dir))
    return shlex.join(("runtime-pack", "runs", *words, *where))


def grant_advice(run_id: str, budget: str, state_dir: Path | None) -> str:
    """How to give a run more of what it has used up, and to let it go on."""
    words = ("grant", run_id, budget, _AMOUNTS.get(budget, "10"))
    given = f'{runs_advice(state_dir, *words)} --reason "…"'
    return f"give it more: {given}, then {runs_advice(state_dir, 'resume', run_id)}"


def approve_advice(run_id: str, waiting: int, state_dir: Path | None) -> str:
    """How a person looks at what a run waits for, says yes to it, and lets it go on."""
    words = ("approve", run_id) if waiting == 1 else ("approve", run_id, "--all")
    said = runs_advice(state_dir, *words)
    return (
        f"look at it with: {runs_advice(state_dir, 'show', run_id)}\n"
        f"let it run with: {said}, then {runs_advice(state_dir, 'resume', run_id)}"
    )
