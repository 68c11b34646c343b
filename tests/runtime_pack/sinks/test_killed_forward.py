"""kill -9 of a forwarder at every call of the system, in one process: see `killed_forward.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import runtime_pack

ROOT = Path(runtime_pack.__file__).parent.parent
LEAST_POINTS = 60


def test_a_forwarder_that_is_killed_anywhere_loses_nothing(tmp_path: Path) -> None:
    """The batch in hand may come twice, with the same ids; no line is left out or out of order."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed_forward.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert int(done.stdout) >= LEAST_POINTS
