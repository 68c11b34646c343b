"""The review page: what the logs and the saved runs say, in a browser on this machine.

It is served on loopback alone, and answers nobody who does not have its token. It decides nothing by
itself: a decision is left with the run, as `runtime-pack runs` leaves it.
"""

from __future__ import annotations

from runtime_pack.review.server import ReviewServer, serve_review
from runtime_pack.review.source import Ended, ReviewSource

__all__ = ("Ended", "ReviewServer", "ReviewSource", "serve_review")
