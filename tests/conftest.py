"""Hypothesis profiles, the signals that commands under test inherit, and the collector of cycles.

The default profile is for developers and CI, the quick one for repeated suites.
"""

import gc
import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A suite in the background ignores Ctrl-C, one under nohup the end of its terminal; what they start
# must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """Looks for no cycles while tests are collected: half of that time would go there."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on as everywhere; what was collected stays until the end and is looked at no more."""
    del session
    gc.freeze()
    gc.enable()
