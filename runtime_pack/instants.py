"""Moments as they are written: one form in logs, saved runs and what machines read.

Pure. Reading is `datetime.fromisoformat`, which takes this form and the one with `+00:00`.
"""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ("instant_text",)


def instant_text(moment: datetime) -> str:
    """The moment in UTC with a `Z` at its end, as RFC 3339 writes it: an aware datetime."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
