"""Build the wheel, install it into fresh environments and run the suite against it.

The suite is copied out of the checkout, so that what is imported is the wheel and not the tree. Each
of 3.11, 3.12 and 3.13 that is found gets its own environment. The interpreter that runs this comes
first, and runs the command and the main job only when others run the suite. These share the rows of
long tables among them, all of which `make test` has run. They come one after the other; what one
printed is shown when it has ended.
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
# More workers than cores: many tests wait.
SPREAD = ("--numprocesses=4", "--dist=worksteal")
# What `make test` has run from the tree a moment ago and no wheel changes: blocks of the docs, and
# what starts processes again and again. The command itself is started from each wheel.
OF_THE_TREE = (
    "tests/docs",
    "tests/egress/confine",
    "tests/runtime_pack/audit/test_killed_log.py",
    "tests/runtime_pack/review/test_browser.py",
    "tests/runtime_pack/sinks/test_rsyslog.py",
    "tests/runtime_pack/stores/test_killed.py",
    "tests/runtime_pack/test_outside_texts.py::test_one_function_makes_blocks",
    "tests/runtime_pack/test_state.py::test_a_kill_at_any_write_leaves_the_last_commit",
    *(
        f"tests/runtime_pack/cli/{path.name}"
        for path in sorted((ROOT / "tests/runtime_pack/cli").glob("test_*.py"))
        if path.name != "test_command.py"
    ),
)
# Of the interpreter on which `make test` has just run everything, if there are others.
OF_THE_FIRST = ("tests/runtime_pack/cli/test_command.py", "tests/runtime_pack/web")
# The tree is not to be found, and what is compiled once is not compiled again by every process.
_LEFT_OUT = frozenset({"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"})
COPIED = (
    ".ci",
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


class Failed(Exception):
    """A command of one environment failed; the message is what was printed until then."""


class Shell:
    """Runs commands of one environment and keeps what they print."""

    def __init__(self) -> None:
        self.printed = ""

    def run(self, *command: str | Path, cwd: Path | None = None, rows: str = "") -> None:
        """Run a command; with `rows`, those rows of the suite.

        Raises:
            Failed: its exit code is not 0.
        """
        words = [str(part) for part in command]
        env = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        if rows:
            env |= {"HYPOTHESIS_PROFILE": "quick", "PYTHONSAFEPATH": "1", "ROWS": rows}
        done = subprocess.run(
            words,
            cwd=cwd,
            env=env,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.printed += f"+ {' '.join(words)}\n{done.stdout}"
        if done.returncode != 0:
            raise Failed(self.printed)


def interpreters() -> list[str]:
    """This interpreter first, then others of the supported versions that start."""
    found = [sys.executable]
    for version in VERSIONS:
        if version != sys.version_info[:2]:
            works = (name for name in candidates(version) if is_version(name, version))
            found += [name for name, _ in zip(works, range(1), strict=False)]
    return found


def candidates(version: tuple[int, int]) -> list[str]:
    """Where an interpreter of this version may be: on the path, or kept by pyenv."""
    number = f"{version[0]}.{version[1]}"
    kept = printed("pyenv", "versions", "--bare").split()
    prefixes = [printed("pyenv", "prefix", name) for name in kept if name.startswith(f"{number}.")]
    return [f"python{number}", *(f"{prefix.strip()}/bin/python" for prefix in prefixes)]


def is_version(name: str, version: tuple[int, int]) -> bool:
    """Whether the interpreter starts and is of that version."""
    return printed(name, "-c", "import sys; print(*sys.version_info[:2])").split() == [
        str(part) for part in version
    ]


def printed(*command: str) -> str:
    """What a command printed; nothing when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def test(python: str, wheel: Path, scratch: Path, rows: str, only: tuple[str, ...]) -> str:
    """One environment, one run of the suite or of a part; what it printed.

    Raises:
        Failed: the environment could not be made, or a test failed.
    """
    shell = Shell()
    name = f"{Path(python).resolve().name}-rows-" + rows.replace("/", "-of-")
    venv, suite = scratch / f"venv-{name}", scratch / f"suite-{name}"
    inside = venv / "bin" / "python"
    shell.run(python, "-m", "venv", "--without-pip", venv)
    # From outside, and once: an installer of its own for each environment costs more than its work.
    install = (sys.executable, "-m", "pip", "--python", inside, "install", "--no-compile")
    quiet = ("--quiet", "--disable-pip-version-check")
    shell.run(*install, *quiet, "-c", LOCK, wheel, "--group", f"{ROOT / 'pyproject.toml'}:test")
    copy_suite(suite)
    origin = "import runtime_pack; assert 'site-packages' in runtime_pack.__file__"
    shell.run(inside, "-c", origin, cwd=suite, rows=rows)
    left_out = [f"--{'deselect' if '::' in path else 'ignore'}={path}" for path in OF_THE_TREE]
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *SPREAD, *left_out, *only)
    shell.run(inside, *pytest, cwd=suite, rows=rows)
    return shell.printed


def copy_suite(target: Path) -> None:
    """What the suite reads, without the packages."""
    target.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)


def tell(python: str, wheel: Path, scratch: Path, rows: str, only: tuple[str, ...]) -> int:
    """Test on one interpreter and print what was printed; 1 when it failed."""
    code = 0
    try:
        said = test(python, wheel, scratch, rows, only)
    except Failed as failed:
        said, code = str(failed), 1
    print(f"== the wheel on {python}\n{said}", flush=True)
    return code


def main() -> int:
    """Build once, test everywhere; 1 when anything failed."""
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(scratch), str(ROOT)]
        if subprocess.run(build, check=False).returncode != 0:
            return 1
        (wheel,) = scratch.glob("*.whl")
        first, *others = interpreters()
        code |= tell(first, wheel, scratch, "0/1", OF_THE_FIRST if others else ())
        for number, python in enumerate(others):
            code |= tell(python, wheel, scratch, f"{number}/{len(others)}", ())
    return code


if __name__ == "__main__":
    sys.exit(main())
