"""Who runs a confined command in these tests, and how."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attr
import attrs
import pytest

import egress
from egress.confine import Boundary, KernelFacts, kernel_facts, missing_for

HERE = Path(__file__).parent
NOBODY = 65534
BOUNDARIES = (Boundary.NAMESPACE, Boundary.LANDLOCK)


@attrs.frozen(kw_only=True)
class Person:
    """A user, with an interpreter and packages that this user can read."""

    name: str
    user_id: int
    python: str
    packages: str
    folder: Path

    def start(
        self, command: Sequence[str], *, boundary: Boundary, folder: Path, **more: Any
    ) -> subprocess.Popen[bytes]:
        """The driver, running; its findings come to *folder*."""
        given = {
            "command": list(command),
            "boundary": boundary.value,
            "folder": str(folder),
            "allow_unix": more.pop("allow_unix", False),
        }
        script = self.folder / "driver.py"
        return subprocess.Popen(
            [self.python, str(script), json.dumps(given)],
            **self.identity(),
            **{"cwd": "/", "env": self.environment(), **more},
        )

    def identity(self) -> dict[str, Any]:
        """For `subprocess`: who the process is."""
        if self.user_id == os.getuid():
            return {}
        return {"user": self.user_id, "group": self.user_id, "extra_groups": ()}

    def environment(self) -> dict[str, str]:
        """As usual, with our packages."""
        return {**os.environ, "PYTHONPATH": self.packages, "PYTHONDONTWRITEBYTECODE": "1"}

    def new_folder(self) -> Path:
        """An empty folder of this user's own."""
        made = Path(tempfile.mkdtemp(dir=self.folder))
        if self.identity():
            os.chown(made, self.user_id, self.user_id)
        return made

    def run(
        self, command: Sequence[str], *, boundary: Boundary, **more: Any
    ) -> tuple[int, Mapping[str, Any]]:
        """The exit code of the driver, and its findings."""
        folder = self.new_folder()
        process = self.start(command, boundary=boundary, folder=folder, **more)
        process.communicate(timeout=60)
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        return process.returncode, {**found, "folder": folder}


@pytest.fixture(scope="session")
def facts() -> KernelFacts:
    """What this kernel gives to this user."""
    return asyncio.run(kernel_facts())


@pytest.fixture(scope="session", params=BOUNDARIES, ids=str)
def boundary(request: pytest.FixtureRequest, facts: KernelFacts) -> Boundary:
    """Each boundary that this kernel gives."""
    chosen: Boundary = request.param
    missing = missing_for(chosen, facts)
    if missing is not None:
        pytest.skip(f"no {chosen} boundary here: {missing}")
    return chosen


def _scripts(folder: Path) -> None:
    for script in ("driver.py", "escapes.py"):
        shutil.copy(HERE / script, folder)


@pytest.fixture(scope="session")
def ourselves(tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Whoever runs the tests."""
    folder = tmp_path_factory.mktemp("ourselves")
    _scripts(folder)
    return Person(
        name="ourselves",
        user_id=os.getuid(),
        python=sys.executable,
        packages=str(Path(egress.__file__).parents[1]),
        folder=folder,
    )


@pytest.fixture(scope="session")
def nobody() -> Iterator[Person]:
    """A user without any right, when the tests run as root; they run as one anyway otherwise."""
    if os.getuid() != 0:
        pytest.skip("the tests do not run as root: every other test is this one")
    python = _python_for_all()
    if python is None:
        pytest.skip("no interpreter of 3.11 or later that every user may execute")
    folder = Path(tempfile.mkdtemp(prefix="confine-nobody-"))
    try:
        folder.chmod(0o755)
        _scripts(folder)
        packages = folder / "packages"
        for package in (egress, attr, attrs):
            source = Path(str(package.__file__)).parent
            shutil.copytree(
                source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        yield Person(
            name="nobody", user_id=NOBODY, python=python, packages=str(packages), folder=folder
        )
    finally:
        shutil.rmtree(folder)


def _python_for_all() -> str | None:
    asked = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = subprocess.run(
                [python, "-I", "-c", asked],
                user=NOBODY,
                group=NOBODY,
                extra_groups=(),
                cwd="/",
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


@pytest.fixture(scope="session", params=["ourselves", "nobody"])
def person(request: pytest.FixtureRequest) -> Person:
    """Whoever runs the tests, and a user without any right."""
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, Person)
    return chosen
