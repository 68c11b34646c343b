"""A vendor's way to write a date, as a text by the table of the contract; None for no date. Pure."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from web_tools.contract.instants import published_at

__all__ = ("as_is", "day_of", "epoch_instant", "http_instant", "instant_or_day", "tomorrow")

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# RFC 9110 section 5.6.7; any other zone would have to be guessed.
_HTTP_DATE: Final = re.compile(
    r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
)


def as_is(value: Any) -> str | None:
    """*value*, when it is in the table already."""
    return value if published_at(value) is not None else None


def day_of(value: Any) -> str | None:
    """The day of a time without a zone: what is certain of it to within a day."""
    day = value[:10] if isinstance(value, str) else ""
    rest = value[10:11] if isinstance(value, str) else ""
    if _DAY.fullmatch(day) and rest in {"", "T", " "} and published_at(day) is not None:
        return day
    return None


def instant_or_day(value: Any) -> str | None:
    """The instant when there is a zone, else the day."""
    return as_is(value) or day_of(value)


def http_instant(value: Any) -> str | None:
    """The instant of an HTTP date."""
    if not isinstance(value, str) or _HTTP_DATE.fullmatch(value) is None:
        return None
    try:
        return parsedate_to_datetime(value).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return None


def epoch_instant(value: Any) -> str | None:
    """The instant of epoch seconds; 0 is how back ends say that they know none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    try:
        at = datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def tomorrow(now: datetime) -> str:
    """The day after *now*'s in UTC: the open end of a range of days."""
    return (now.astimezone(UTC) + timedelta(days=1)).date().isoformat()
