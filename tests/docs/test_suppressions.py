"""What is switched off for one line has its reason on the line above."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The code of the Makefile; what of it stands here: a run against the wheel has only the tests.
FOLDERS = (
    "runtime_pack",
    "web_tools",
    "egress",
    "citations",
    "tests",
    "benchmarks",
    "examples",
    ".ci",
)
# `fmt: skip` keeps a table's layout and hides no fault.
_DIRECTIVE = re.compile(
    r"#\s*(?:(?:ruff|flake8):\s*)?noqa\b|#\s*(?:type:\s*ignore|pragma:|mypy:)", re.IGNORECASE
)
_ONE = (
    r"# (?:(?:ruff: )?noqa: [A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*"
    r"|type: ignore\[[a-z-]+(?:, [a-z-]+)*\]|pragma: no cover)"
)
_FORM = re.compile(rf"{_ONE}(?:  ?{_ONE})*")
# Two words at least.
_REASON = re.compile(r"#\s+\w\S*\s+\S+")


def _faults(source: str) -> Iterator[str]:
    """Each suppression that names no rule, or has no reason on the line above, with its line."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not _DIRECTIVE.search(token.string):
            continue
        number = token.start[0]
        above = lines[number - 2].strip() if number > 1 else ""
        if not _FORM.fullmatch(token.string):
            yield f"{number}: not of the form: {token.string}"
        elif _DIRECTIVE.search(above) or not _REASON.match(above):
            yield f"{number}: no reason above: {token.string}"


def _files() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(found)


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_suppression_has_its_reason_above(path: Path) -> None:
    """And names the rule that it switches off, with nothing behind it."""
    assert [] == list(_faults(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "source",
    [
        "# The word of a label.\nx = 1  # noqa: S105\n",
        "# Read by the tests.\nx = 1  # type: ignore[attr-defined, misc]  # noqa: B010\n",
        "# Never reached here.\nif x:  # pragma: no cover\n    pass\n",
        "# Letters that look alike.\n# ruff: noqa: RUF001, RUF003\n",
        'x = "# noqa"\n',
        "x = 1  # fmt: skip\n",
    ],
)
def test_what_is_in_order(source: str) -> None:
    """A reason above, a text that only looks like a suppression, a layout."""
    assert [] == list(_faults(source))


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # noqa: S105\n",
        "\nx = 1  # noqa: S105\n",
        "# why it is so\n\nx = 1  # noqa: S105\n",
        "y = 1\nx = 1  # noqa: S105\n",
        "# why it is so\nx = 1  # noqa\n",
        "# why it is so\nx = 1  # NOQA: S105\n",
        "# why it is so\nx = 1  # type: ignore\n",
        "# why it is so\nx = 1  #type:ignore[misc]\n",
        "# why it is so\nx = 1  # noqa: S105 - behind the code\n",
        "# why it is so\nx = 1  # type: ignore[misc]  # behind the code\n",
        "# why it is so\nx = 1  # noqa: S105\ny = 1  # noqa: S105\n",
        "# why\nx = 1  # noqa: S105\n",
        "# ruff: noqa\n",
        "# mypy: ignore-errors\n",
        "# noqa: S105\nx = 1  # noqa: S105\n",
    ],
)
def test_what_is_not(source: str) -> None:
    """No reason, a reason elsewhere, no rule, and another spelling are found."""
    assert [] != list(_faults(source))
