"""Every block of README and docs runs, and says what it is said to say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


def _blocks(language: str) -> list[pytest.param]:  # type: ignore[valid-type]
    return [
        pytest.param(
            match["body"], id=f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}"
        )
        for page in PAGES
        for match in _BLOCK.finditer(page.read_text())
        if match["language"] == language
    ]


def _environment(tmp_path: Path) -> dict[str, str]:
    """The commands of this environment first, and a state folder of the test's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "runtime-pack"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m runtime_pack.cli "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": _import_root(),
        "RUNTIME_PACK_STATE": str(tmp_path / "state"),
    }


def _import_root() -> str:
    """Where the tested packages come from: the checkout, or the place of the installed wheel."""
    import runtime_pack

    return str(Path(str(runtime_pack.__file__)).parents[1])


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    """A block is Python or shell, which run, or a drawing in text: nothing else escapes."""
    languages = {m["language"] for page in PAGES for m in _BLOCK.finditer(page.read_text())}

    assert languages <= {"python", "sh", "text"}
    assert sum(page.read_text().count("```") for page in PAGES) == 2 * sum(
        len(_BLOCK.findall(page.read_text())) for page in PAGES
    )


@pytest.mark.loopback
@pytest.mark.parametrize("body", _blocks("python"))
def test_python_blocks_run(body: str, tmp_path: Path) -> None:
    """A Python block runs as a program of its own, with warnings as errors."""
    script = tmp_path / "block.py"
    script.write_text(body)

    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env=_environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.loopback
@pytest.mark.parametrize("body", _blocks("sh"))
def test_shell_blocks_run(body: str, tmp_path: Path) -> None:
    """A shell block runs line by line; `make` lines are shown to be targets and not run again."""
    env = _environment(tmp_path)

    for line in body.splitlines():
        words = line.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            continue
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            text=True,
            timeout=60,
            env=env,
            cwd=tmp_path,
            check=False,
        )
        # 1 is the answer "a rule refuses" of explain-url.
        expected = (0, 1) if "explain-url" in line else (0,)
        assert done.returncode in expected, done.stderr
        assert done.stdout


def test_the_example_file_is_the_block_of_the_readme() -> None:
    """What a newcomer reads and what stands in examples/ is the same program."""
    readme = _BLOCK.search(
        (ROOT / "README.md").read_text(), (ROOT / "README.md").read_text().index("## Ten lines")
    )
    program = (ROOT / "examples" / "first_run.py").read_text()

    assert readme is not None
    assert program.endswith(readme["body"])


@pytest.mark.loopback
@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: str(p.name)
)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    """Every example runs to its end with warnings as errors and says something."""
    copied = Path(shutil.copy2(path, tmp_path))

    done = subprocess.run(
        [sys.executable, "-W", "error", str(copied)],
        capture_output=True,
        text=True,
        timeout=60,
        env=_environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.name))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
