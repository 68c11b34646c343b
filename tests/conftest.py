"""Hypothesis profiles, the signals that commands under test inherit, and the collector of cycles.

The default profile is for developers and CI, the quick one for a suite that has just run on another
interpreter.
"""

import gc
import os
import signal

import pytest
from hypothesis import Phase, settings

settings.register_profile("default", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=15)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(_PROFILE)

# A suite in the background ignores Ctrl-C, one under nohup the end of its terminal; what they start
# must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the quick profile a test that asks for many examples gets as few as the others."""
    if _PROFILE != "quick":
        return
    for item in items:
        test = getattr(item, "obj", None)
        # Where Hypothesis keeps the settings of a function, and of a state machine.
        for holder, name in (
            (getattr(test, "__func__", test), "_hypothesis_internal_use_settings"),
            (getattr(item, "cls", None), "settings"),
        ):
            found = getattr(holder, name, None)
            # One that searches until it has found something needs its examples.
            if isinstance(found, settings) and Phase.shrink in found.phases:
                fewer = min(found.max_examples, settings().max_examples)
                setattr(holder, name, settings(found, max_examples=fewer))


def pytest_sessionstart() -> None:
    """Looks for no cycles while tests are collected: half of that time would go there."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on as everywhere; what was collected stays until the end and is looked at no more."""
    del session
    gc.freeze()
    gc.enable()
