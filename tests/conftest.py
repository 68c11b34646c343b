"""Hypothesis profiles, the signals that commands under test inherit, and the collector of cycles.

The default profile is for developers and CI, the quick one for a suite that has just run on another
interpreter. Several such suites share the rows of long tables: `ROWS=1/2` runs the second half of them.
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
# Which rows of a long table this suite runs, and how many suites share them.
_SHARE, _SHARES = (int(part) for part in os.environ.get("ROWS", "0/1").split("/"))
_SHORT = 6

# A suite in the background ignores Ctrl-C, one under nohup the end of its terminal; what they start
# must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rows of other suites; in the quick profile no test gets more examples than the others."""
    _keep_own_rows(config, items)
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


def _keep_own_rows(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every n-th row of a table that has more than `_SHORT`; shorter ones are kept whole."""
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    long = [rows for rows in tables.values() if len(rows) > _SHORT]
    others = {id(row) for rows in long for n, row in enumerate(rows) if n % _SHARES != _SHARE}
    if others:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in others])
        items[:] = [item for item in items if id(item) not in others]


def pytest_sessionstart() -> None:
    """Looks for no cycles while tests are collected: half of that time would go there."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on as everywhere; what was collected stays until the end and is looked at no more."""
    del session
    gc.freeze()
    gc.enable()
