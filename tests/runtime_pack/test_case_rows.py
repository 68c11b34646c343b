"""Every row of the loop scenarios has tests that carry its number in their names."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent / "cases" / "loop.md"


def _numbers() -> list[str]:
    return re.findall(r"^\| ([ABL]\d+) \|", ROWS.read_text(encoding="utf-8"), re.MULTILINE)


def _named() -> set[str]:
    """The parts of all names of tests of this package, in capitals."""
    parts = set[str]()
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                parts.update(node.name.upper().split("_"))
    return parts


def test_every_row_has_a_test_of_its_number() -> None:
    """A row without a test, or a table that was not found, fails."""
    numbers = _numbers()

    assert len(numbers) == len(set(numbers)) >= 30
    assert [] == sorted(set(numbers) - _named())
