"""The tables of README and docs are what the code says."""

import importlib
import importlib.util
import pkgutil
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from runtime_pack.codes import CALL_ROWS, STOP_ROWS
from runtime_pack.errors import CallCode, StopCode
from runtime_pack.events import EVENT_ROWS, EventCode, EventType
from web_tools.errors import CODES, WebErrorCode

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("runtime_pack", "web_tools", "egress", "citations")


def _writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / ".ci" / "write_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_tables_are_up_to_date() -> None:
    """`make docs` would change nothing."""
    writer = _writer()

    stale = [
        page.name for page in writer.pages() if writer.written(page.read_text()) != page.read_text()
    ]

    assert stale == []


def test_every_code_has_a_row() -> None:
    """A code that nobody explains is a code that nobody can act on."""
    assert set(CallCode) == set(CALL_ROWS)
    assert set(StopCode) == set(STOP_ROWS)
    assert set(EventCode) == set(EVENT_ROWS)
    assert set(WebErrorCode) == set(CODES)


def test_every_event_type_has_a_code() -> None:
    """A type without a code could never be written."""
    assert set(EventType) == {row.type for row in EVENT_ROWS.values()}


def _modules(package: str) -> set[str]:
    found = importlib.import_module(package)
    return {m.name for m in pkgutil.iter_modules(found.__path__) if not m.name.startswith("_")}


def _rooms(package: str) -> set[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition(f"### {package}\n")[2].partition("\n### ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_page_names_every_module(package: str) -> None:
    """A new module comes with its one job."""
    assert _modules(package) == _rooms(package)


def test_every_dependency_has_a_reason() -> None:
    """docs/dependencies.md names the core dependencies, no more and no fewer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[><=~!]", line)[0] for line in project["dependencies"]}
    page = (ROOT / "docs" / "dependencies.md").read_text()

    assert needed == set(re.findall(r"^\| ([a-z0-9]+) \|", page, re.MULTILINE)) - {"package"}


def test_every_dependency_of_an_extra_or_a_group_has_a_reason() -> None:
    """The page names each, and the extra `all` is all of the others."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = whole["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    words = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", page))
    lists = [*extras.values(), *whole["dependency-groups"].values()]
    needed = {re.split(r"[><=~!;\[ ]", e)[0] for each in lists for e in each if isinstance(e, str)}

    assert sorted(needed - words - {"agent-runtime-pack"}) == []
    assert [f"agent-runtime-pack[{','.join(sorted(set(extras) - {'all'}))}]"] == extras["all"]
    assert [name for name in extras if f"- `{name}`:" not in page] == []


def _public_modules() -> list[str]:
    names = []
    for package in PACKAGES:
        found = importlib.import_module(package)
        walked = pkgutil.walk_packages(found.__path__, f"{package}.")
        names += [package, *(m.name for m in walked if "._" not in m.name)]
    return [name for name in names if not name.startswith(("runtime_pack.cli", "web_tools._"))]


@pytest.mark.parametrize("name", _public_modules())
def test_public_modules_say_what_is_public(name: str) -> None:
    """`__all__` is a sorted tuple of names that exist."""
    module = importlib.import_module(name)
    names = module.__all__

    assert isinstance(names, tuple)
    assert sorted(names, key=_order) == list(names)
    assert [public for public in names if not hasattr(module, public)] == []


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: the order that ruff keeps."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name
