"""Every block of README and docs runs, and says what it is said to say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_pack import parse_policy

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


# The lines that show a refusal, exit code 1, and the words by which their page says so.
_REFUSED = {
    'runtime-pack explain-url https://docs.example.org:8443/guide --allow "*.example.org"': (
        "subdomains at any depth, on the default ports"
    ),
    "runtime-pack explain-url http://wiki.corp/ --allow wiki.corp --answer 10.1.2.3": (
        "the name alone is refused with `address_not_global`"
    ),
}


def _blocks(language: str) -> dict[str, str]:
    """The blocks of one language, by page and line."""
    return {
        f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 1}": match["body"]
        for page in PAGES
        for match in _BLOCK.finditer(page.read_text())
        if match["language"] == language
    }


def _environment(tmp_path: Path) -> dict[str, str]:
    """The commands of this environment first, and a state folder of the test's own."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    command = folder / "runtime-pack"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m runtime_pack.cli "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": _import_root(),
        "RUNTIME_PACK_STATE": str(tmp_path / "state"),
    }


def _run(*command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env=_environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )


def _dry_run(tmp_path: Path, *words: str, more: str = "") -> subprocess.CompletedProcess[str]:
    """What make says it would do, in a folder that holds what its rules are made of and no more."""
    for name in ("Makefile", "pyproject.toml", ".ci/lock.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    with (tmp_path / "Makefile").open("a") as makefile:
        makefile.write(more)
    # The suite may itself run under make, which would hand down its flags.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    env["LC_ALL"] = "C"
    return subprocess.run(
        ["make", "-n", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        cwd=tmp_path,
        check=False,
    )


def _import_root() -> str:
    """Where the tested packages come from: the checkout, or the place of the installed wheel."""
    import runtime_pack

    return str(Path(str(runtime_pack.__file__)).parents[1])


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    """A block is Python or shell, which run, a policy file, or a drawing in text: nothing escapes."""
    languages = {m["language"] for page in PAGES for m in _BLOCK.finditer(page.read_text())}

    assert languages <= {"python", "sh", "text", "toml"}
    assert sum(page.read_text().count("```") for page in PAGES) == 2 * sum(
        len(_BLOCK.findall(page.read_text())) for page in PAGES
    )


@pytest.mark.parametrize("body", _blocks("toml").values(), ids=_blocks("toml").keys())
def test_toml_blocks_are_policy_files(body: str) -> None:
    """Read as strictly as those of a user."""
    assert parse_policy(body).contract().policy is not None


@pytest.mark.loopback
@pytest.mark.parametrize("body", _blocks("python").values(), ids=_blocks("python").keys())
def test_python_blocks_run(body: str, tmp_path: Path) -> None:
    """A Python block runs as a program of its own, with warnings as errors."""
    script = tmp_path / "block.py"
    script.write_text(body)

    done = _run(sys.executable, "-W", "error", str(script), tmp_path=tmp_path)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.loopback
@pytest.mark.parametrize("body", _blocks("sh").values(), ids=_blocks("sh").keys())
def test_shell_blocks_run(body: str, tmp_path: Path) -> None:
    """A shell block runs line by line; of a `make` line make says what it would do."""
    for line in body.splitlines():
        words = shlex.split(line)
        if words[0] == "make":
            done = _dry_run(tmp_path, *words[1:])
        else:
            done = _run("/bin/sh", "-c", line, tmp_path=tmp_path)

        assert int(line in _REFUSED) == done.returncode, done.stderr
        assert done.stdout
        # "Nothing to be done" is what make says, with 0, of a phony target without a rule.
        assert not done.stdout.startswith("make: ")


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("no-such-target", 2, ""),
        ("demos", 2, ""),
        ("ghost", 0, "make: Nothing to be done for 'ghost'.\n"),
        ("Makefile", 0, "make: Nothing to be done for 'Makefile'.\n"),
    ],
)
def test_a_dry_run_tells_what_is_no_target(
    target: str, code: int, told: str, tmp_path: Path
) -> None:
    """A mistyped target, a phony one without a rule and a file have no command to show."""
    done = _dry_run(tmp_path, target, more="\n.PHONY: ghost\n")

    assert (code, told) == (done.returncode, done.stdout)


@pytest.mark.parametrize(("line", "words"), _REFUSED.items())
def test_a_page_says_which_of_its_lines_is_refused(line: str, words: str) -> None:
    """The page that shows a refusal tells the reader so, in front of the block."""
    pages = [page.read_text() for page in PAGES]

    assert [True] == [
        words in text.partition(f"{line}\n")[0] for text in pages if f"{line}\n" in text
    ]


def test_the_example_file_is_the_block_of_the_readme() -> None:
    """What a newcomer reads and what stands in examples/ is the same program."""
    readme = _BLOCK.search(
        (ROOT / "README.md").read_text(), (ROOT / "README.md").read_text().index("## Ten lines")
    )
    program = (ROOT / "examples" / "first_run.py").read_text()

    assert readme is not None
    assert program.endswith(readme["body"])


# What each example is there to show; one that is not listed here fails.
_SHOWN: dict[str, tuple[str, ...]] = {
    "approval_service.py": ("approval_required mail:send", "'kind': 'completed'", "twice: 409"),
    "batch.py": ("{'completed': 200}", "steps 200"),
    "custom_tool.py": ("No room in the budget cost", "0.900000"),
    "first_run.py": ("completed", "[1]"),
    "harden_prompts.py": ("careless: a page of", "careful: no page found"),
    "own_tools_machine.py": ("no promise broken",),
    "search_backend.py": ("passed  one_request_through_the_policy", "passed  freshness_is_kept"),
}


@pytest.mark.loopback
@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: str(p.name)
)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    """Every example runs to its end with warnings as errors and says something."""
    copied = Path(shutil.copy2(path, tmp_path))

    done = _run(sys.executable, "-W", "error", str(copied), tmp_path=tmp_path)

    assert (0, "") == (done.returncode, done.stderr)
    for words in _SHOWN[path.name]:
        assert words in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.name))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
