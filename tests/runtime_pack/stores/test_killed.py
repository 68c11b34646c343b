"""kill -9 at every write of a governed run, in processes of their own: see `killed.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runtime_pack

ROOT = Path(runtime_pack.__file__).parent.parent
SHARDS = 4
# Fewer would mean that writes go on elsewhere than where the test looks.
LEAST_POINTS = {"files": 150, "sqlite": 120}


def program(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("killed.py")), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", ["files", "sqlite"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_run_that_is_killed_at_any_write_is_brought_to_its_end(
    tmp_path: Path, kind: str, shard: int
) -> None:
    """Calls run at most once, each has one result, budgets go on, and the log verifies.

    The store, the log, the letters and the effects of the tools are killed before, between and after
    their writes, and in the middle of a block; a third of the runs dies twice.
    """
    points = int(program(kind, str(tmp_path), "points", str(shard), str(SHARDS)))

    assert points >= LEAST_POINTS[kind]


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_run_that_is_killed_at_any_instant_is_brought_to_its_end(
    tmp_path: Path, kind: str
) -> None:
    """From outside, so that it can be inside a call of the system or of the database."""
    assert "done" == program(kind, str(tmp_path), "moments", "20")


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_of_processes_that_resume_one_run_one_runs_the_call(tmp_path: Path, kind: str) -> None:
    """All bring the same approval at once; the losers are told so and have no effect."""
    assert "done" == program(kind, str(tmp_path), "race", "5", "4")
