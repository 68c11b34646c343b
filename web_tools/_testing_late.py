"""Hypothesis, loaded with the first strategy that is made: the judges and the kit go without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

__all__ = ("LATE",)

_NEEDED: Final = (
    "these strategies need the package hypothesis: pip install 'agent-runtime-pack[testing]'"
)


def _strategies() -> Any:
    try:
        return import_module("hypothesis.strategies")
    except ImportError as error:
        raise ImportError(_NEEDED) from error


class _Late:
    """Stands for `hypothesis.strategies`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_strategies(), name)

    def composite(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """As the decorator of that name, which is applied at the first call."""
        made: list[Callable[..., Any]] = []

        @functools.wraps(function)
        def late(*arguments: Any, **named: Any) -> Any:
            if not made:
                made.append(_strategies().composite(function))
            return made[0](*arguments, **named)

        return late


LATE: Final = _Late()
