"""Run the tests of runtime_pack with the lowest versions that pyproject names, in an environment of its own.

Every bound is installed as it is written: where two of them cannot stand together, or a test fails,
a bound says less than is needed. Paths of tests may be given; without any it is all of the package.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / ".venv-lowest"
PYTHON: Final = PLACE / "bin" / "python"
_BOUND: Final = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def requirements(project: dict[str, Any]) -> Iterator[str]:
    """What the package, its extras and its tests ask for; not what another interpreter needs."""
    yield from project["project"]["dependencies"]
    for extra, asked in project["project"]["optional-dependencies"].items():
        # It is the other extras by their names.
        yield from asked if extra != "all" else ()
    for asked in project["dependency-groups"]["test"]:
        if "python_version" not in asked:
            yield asked


def pins(project: dict[str, Any]) -> list[str]:
    """Each bound as the only version: its last part may have parts of its own.

    Raises:
        ValueError: a requirement has no lower bound.
    """
    found: dict[str, str] = {}
    for asked in requirements(project):
        bound = _BOUND.match(asked)
        if bound is None:
            raise ValueError(f"{asked} has no lower bound")
        found[bound[1]] = f"{bound[1]}=={bound[2]}.*"
    return sorted(found.values())


def main(paths: list[str]) -> int:
    """Make the environment anew and run the tests; the code of the first that fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(PLACE)],
        [str(PYTHON), "-m", "pip", "install", "--quiet", *pins(project)],
        [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        + (paths or ["tests/runtime_pack"]),
    )
    return next((code for step in steps if (code := subprocess.call(step, cwd=ROOT)) != 0), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
