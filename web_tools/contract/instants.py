"""When a result was published, by the table of the contract and by nothing else. Pure.

The shape is checked before anything is parsed: a lenient parser invents dates, and a freshness
filter then keeps or drops results by them. ``datetime.fromisoformat`` takes week dates, basic
forms, local times and hour 24.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

__all__ = ("instant_text", "published_at", "to_milliseconds")

_SHAPE: Final = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:T(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,30}))?"
    r"(?:Z|(?P<sign>[+-])(?P<east>[0-9]{2}):?(?P<south>[0-9]{2})))?"
)
_LAST_MINUTE: Final = 59


def published_at(value: object) -> datetime | None:
    """The instant in UTC that a back end's *value* is; None for everything else.

    A date without a time is midnight in UTC. A fraction of a second is cut to milliseconds, for
    rounding would move an instant later.
    """
    match = _SHAPE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    parts = [int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    milliseconds = int((match["fraction"] or "")[:3].ljust(3, "0"))
    offset = _offset(match)
    if offset is None:
        return None
    try:
        year, month, day, hour, minute, second = parts
        zone = timezone(offset)
        local = datetime(year, month, day, hour, minute, second, milliseconds * 1000, tzinfo=zone)
        return local.astimezone(UTC)
    # A day, hour or second that does not exist, or an instant outside of the calendar.
    except (ValueError, OverflowError):
        return None


def _offset(match: re.Match[str]) -> timedelta | None:
    """East of UTC; None when no clock shows it."""
    hours, minutes = int(match["east"] or 0), int(match["south"] or 0)
    # More than a day is refused by `timezone`.
    if minutes > _LAST_MINUTE:
        return None
    east = timedelta(hours=hours, minutes=minutes)
    return -east if match["sign"] == "-" else east


def to_milliseconds(instant: datetime) -> datetime:
    """*instant* in UTC, cut to milliseconds: what our texts can say.

    Raises:
        ValueError: It has no time zone.
    """
    if instant.tzinfo is None:
        raise ValueError("an instant has a time zone")
    aware = instant.astimezone(UTC)
    return aware.replace(microsecond=aware.microsecond // 1000 * 1000)


def instant_text(instant: datetime) -> str:
    """*instant* as ``2026-09-01T09:00:00.000Z``; `published_at` reads it again.

    Raises:
        ValueError: It has no time zone.
    """
    # isoformat and not strftime, which pads years before 1000 differently on each system.
    return to_milliseconds(instant).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
