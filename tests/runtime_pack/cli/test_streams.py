"""The command with standard streams that are closed, full, or of an encoding that lacks characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runtime_pack
from runtime_pack.audit import verify_log

ROOT = Path(runtime_pack.__file__).parent.parent


def command(*words: str, streams: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, started by a shell that redirects its streams."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    line = [sys.executable, "-W", "error", "-m", "runtime_pack.cli", *words]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **variables},
        timeout=120,
    )


@pytest.mark.loopback
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">&-"])
def test_closed_streams_are_nobodys(tmp_path: Path, streams: str) -> None:
    """A run ends as it would; nothing that it prints lands in a file that has got their number."""
    done = command("ask", "with", "--approve", "ask", "--state-dir", str(tmp_path), streams=streams)
    (log,) = tmp_path.glob("logs/*.jsonl")

    assert (3, "") == (done.returncode, done.stdout)
    # Only where standard error is open can be said what waits.
    assert ("2>&-" not in streams) == ("waits for a person" in done.stderr)
    assert "chained" == verify_log(log).status


@pytest.mark.loopback
@pytest.mark.parametrize(
    "words",
    [("ask", "with"), ("demo", "--yes"), ("explain-url", "http://a.test/")],
)
def test_output_that_has_no_room_is_told_in_a_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Whatever command it was, and whatever it writes with."""
    state = () if words[0] == "explain-url" else ("--state-dir", str(tmp_path))
    done = command(*words, *state, streams=">/dev/full")

    assert 1 == done.returncode
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
    assert "served" not in done.stderr


@pytest.mark.loopback
def test_characters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    """Quotation marks of an answer are no reason to lose it."""
    done = command(
        "ask", "with \u2603", "--state-dir", str(tmp_path), PYTHONIOENCODING="ascii", COLUMNS="3"
    )

    assert done.returncode == 0
    assert "web:search" in done.stderr
    assert "\nhead " in done.stdout
