"""Empty stand-ins for clients that the corpora import and never use here.

Both corpora come in packages that depend on model clients and machine learning: gigabytes, of which
this benchmark needs the texts. They are installed without dependencies, and what they import on the
way to their texts is stood in for, if it is not there. Nothing of a stand-in is ever called for its
result: a corpus that needs more than names fails to load.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

__all__ = ("STOOD_IN", "stand_ins")

STOOD_IN: Final = frozenset(
    [
        "anthropic",
        "cohere",
        "google.genai",
        "google.auth",
        "langchain",
        "openai",
        "tenacity",
        "torch",
        "transformers",
        "vertexai",
        "accelerate",
        "backoff",
        "cmd2",
        "datasets",
        "deepl",
        "huggingface_hub",
        "langdetect",
        "litellm",
        "lorem",
        "replicate",
        "tiktoken",
        "wn",
        "jsonpath_ng",
        "markdown",
        "sentencepiece",
        "avidtools",
        "stdlibs",
        "ftfy",
        "websockets",
        "boto3",
    ]
)


class _Anything(type):
    """A class that has every attribute, can be called as a decorator, and joins unions."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and callable(given[0]):
            return given[0]
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, item: Any) -> Any:
        return cls


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith(("Error", "Exception", "Warning")):
            return type(name, (Exception,), {})
        return _Anything(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not _is_below(fullname, self._names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


@contextmanager
def stand_ins() -> Iterator[None]:
    """Imports inside the block find a stand-in for what is missing, and leave none behind."""
    missing = frozenset(filter(None, map(_missing, STOOD_IN)))
    finder = _Finder(missing)
    # Last: what is installed is what is imported.
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if _is_below(n, missing)]:
            del sys.modules[name]


def _is_below(name: str, packages: frozenset[str]) -> bool:
    first, _, rest = name.partition(".")
    return first in packages or f"{first}.{rest.partition('.')[0]}" in packages


def _missing(name: str) -> str | None:
    """The package that is not there: that of the name, or the one it is part of."""
    outer, _, inner = name.partition(".")
    if importlib.util.find_spec(outer) is None:
        return outer
    return name if inner and importlib.util.find_spec(name) is None else None
