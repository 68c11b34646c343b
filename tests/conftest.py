"""Hypothesis profiles: the default for developers and CI, a quick one for repeated suites."""

import os

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
