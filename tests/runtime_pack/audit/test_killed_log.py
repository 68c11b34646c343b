"""kill -9 at every write of a signed log, in one process of its own: see `killed_log.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import runtime_pack

ROOT = Path(runtime_pack.__file__).parent.parent
LEAST_POINTS = 150


def test_a_signed_log_that_is_killed_at_any_write_goes_on(tmp_path: Path) -> None:
    """Lines, checkpoints, new files, tombstones: what is left verifies and can be gone on with."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed_log.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert int(done.stdout) >= LEAST_POINTS
