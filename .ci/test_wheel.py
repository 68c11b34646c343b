"""Build the wheel, install it into fresh environments and run the suite against it.

The suite is copied out of the checkout, so that what is imported is the wheel and not the tree.
Every interpreter of 3.11, 3.12 and 3.13 that is found gets its own environment; the first one is
required.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "lock.txt"
VERSIONS = ((3, 11), (3, 12), (3, 13))
COPIED = (
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "pyproject.toml",
    "CHANGELOG.md",
    "SECURITY.md",
    "Makefile",
)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command and stop with its code when it fails."""
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def interpreters() -> list[str]:
    """This interpreter first, then others of the supported versions that start."""
    found = [sys.executable]
    for version in VERSIONS:
        if version == sys.version_info[:2]:
            continue
        name = f"python{version[0]}.{version[1]}"
        asked = f"import sys; sys.exit(sys.version_info[:2] != {version})"
        try:
            works = subprocess.run([name, "-c", asked], capture_output=True, check=False)
        except OSError:
            continue
        if works.returncode == 0:
            found.append(name)
    return found


def test(python: str, wheel: Path, scratch: Path) -> None:
    """One environment, one run of the suite."""
    venv = scratch / f"venv-{Path(python).name}-{abs(hash(python))}"
    run(python, "-m", "venv", venv)
    inside = venv / "bin" / "python"
    quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(inside, *quiet, "pip>=25.1")
    run(inside, *quiet, "-c", LOCK, wheel)
    run(inside, *quiet, "-c", LOCK, "--group", f"{ROOT / 'pyproject.toml'}:test")
    suite = scratch / f"suite-{venv.name}"
    suite.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, suite / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, suite / name)
    env = {**os.environ, "HYPOTHESIS_PROFILE": "quick", "PYTHONSAFEPATH": "1"}
    env.pop("PYTHONPATH", None)
    run(
        inside,
        "-c",
        "import runtime_pack, sys; assert 'site-packages' in runtime_pack.__file__",
        cwd=suite,
        env=env,
    )
    run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=suite, env=env)


def main() -> None:
    """Build once, test everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", scratch, ROOT)
        (wheel,) = scratch.glob("*.whl")
        for python in interpreters():
            test(python, wheel, scratch)


if __name__ == "__main__":
    main()
