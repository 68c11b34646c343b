"""The command, started again and again by one program that has loaded it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import pytest

import runtime_pack

ROOT = Path(runtime_pack.__file__).parent.parent


@attrs.frozen
class Ended:
    """What a process left."""

    code: int
    out: str
    err: str


class Forge:
    """Starts commands by `forge.py`, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], load: Sequence[str] = ()
    ) -> Ended:
        """The command without a terminal, from start to end, in the root of the tree.

        The modules of *load* are there already, now and from now on.
        """
        out, err = self._folder / "out", self._folder / "err"
        for each in (out, err):
            each.write_bytes(b"")
        order = {
            "words": list(words),
            "load": list(load),
            "environment": dict(environment),
            "folder": str(ROOT),
            "out": str(out),
            "err": str(err),
        }
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(order)}\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return Ended(code, *(each.read_bytes().decode("utf-8") for each in (out, err)))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", str(Path(__file__).with_name("forge.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        return self._process

    def close(self) -> None:
        """Nothing more is asked for."""
        if self._process is not None:
            with self._process:
                pass


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Starts commands."""
    made = Forge(tmp_path_factory.mktemp("forge"))
    yield made
    made.close()
