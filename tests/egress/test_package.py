"""What the package promises about itself: names, import cost, the tree of errors."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import egress
from egress import errors
from egress.errors import EgressError, FetchError

_MODULES = sorted(
    module.name for module in pkgutil.iter_modules(egress.__path__) if module.name[0] != "_"
)


def test_the_agreed_rooms_exist() -> None:
    """The public modules of the pure core, the client and what supports their users."""
    assert set(_MODULES) >= {
        "address",
        "allowlist",
        "body",
        "chain",
        "client",
        "client_hello",
        "confine",
        "decision",
        "errors",
        "explain",
        "policy",
        "ports",
        "proxied",
        "proxy",
        "proxy_head",
        "testing",
        "transport",
        "url",
        "violation",
    }


@pytest.mark.parametrize("name", ["egress", *(f"egress.{name}" for name in _MODULES)])
def test_all_is_a_sorted_tuple_of_names_that_exist(name: str) -> None:
    """`__all__` and reality agree."""
    module = importlib.import_module(name)

    assert isinstance(module.__all__, tuple)
    assert sorted(set(module.__all__), key=_order) == list(module.__all__)
    for public in module.__all__:
        assert hasattr(module, public)


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: the order that ruff keeps."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy names do not swallow typing mistakes."""
    with pytest.raises(AttributeError):
        # The mistake is the point.
        _ = egress.GuardedCleint  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("egress", ["aiohttp", "asyncio", "yarl", "idna", "hypothesis", "web_tools", "citations"]),
        ("egress", ["egress.ports", "egress.reasons", "hashlib", "h11", "logging"]),
        ("egress.client", ["aiohttp", "yarl", "hypothesis"]),
        ("egress.testing", ["aiohttp", "hypothesis"]),
        # The proxy's own resolver too: what is loaded late is loaded in front of a client.
        ("egress.proxy, egress.resolver", ["aiohttp", "yarl", "hypothesis", "runtime_pack"]),
        ("egress.confine", ["aiohttp", "yarl", "hypothesis", "runtime_pack"]),
        ("egress.transport", ["hypothesis", "runtime_pack", "web_tools", "citations"]),
    ],
)
def test_what_an_import_does_not_load(module: str, absent: list[str]) -> None:
    """Deciding costs no network stack, and nothing here loads another of our packages."""
    code = f"import sys, {module}; print(*(set({absent!r}) & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert found == []


def _below(kind: type[BaseException]) -> list[type[BaseException]]:
    return [each for child in kind.__subclasses__() for each in (child, *_below(child))]


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    """And is exported; a fetch error says in words what happened."""
    assert errors.__doc__ is not None
    for kind in (each for each in _below(EgressError) if each.__module__ == "egress.errors"):
        assert f" {kind.__name__}" in errors.__doc__
        assert kind.__name__ in errors.__all__
        if issubclass(kind, FetchError):
            assert kind(host="a.test").host == "a.test"
            assert str(kind(host="a.test", detail="x")).endswith(" for a.test: x")


def test_what_is_worth_another_try() -> None:
    """Connect, lost connections, time, and a full house; not what would be said again."""
    retryable = {
        kind.__name__
        for kind in _below(FetchError)
        if issubclass(kind, FetchError) and kind(host="a").retryable
    }

    assert retryable == {"ConnectFailed", "ConnectionLost", "DeadlineExceeded", "TooManyAtOnce"}
