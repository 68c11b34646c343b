"""Hypothesis profiles, and the signals that commands under test inherit.

The default profile is for developers and CI, the quick one for repeated suites.
"""

import os
import signal

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
