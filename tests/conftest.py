"""Hypothesis profiles, and the signals that commands under test inherit.

The default profile is for developers and CI, the quick one for repeated suites.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A suite that a shell has put into the background ignores Ctrl-C; what it starts must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
