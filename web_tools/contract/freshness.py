"""How old a result may be: durations of fixed length, resolved to an instant once per call. Pure.

Months and years have no fixed length and are refused; ``PT30M`` is thirty minutes, for the place
of the letter decides.
"""

import re
from datetime import datetime, timedelta
from typing import Final

import attrs

from web_tools._fields import Refused
from web_tools.contract.instants import instant_text, to_milliseconds

__all__ = ("Freshness", "freshness_of")

# Ten digits of any unit are longer than the calendar.
_NUMBER: Final = "([0-9]{1,10})"
_WEEKS: Final = re.compile(f"P{_NUMBER}W")
_PARTS: Final = re.compile(
    f"P(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?"
)
_MONTHS_OR_YEARS: Final = re.compile(r"P[0-9,.]*[0-9](?:M|Y)|P[^T]*[0-9](?:M|Y)")
_FORM: Final = "must be a duration of fixed length, such as P7D, P4W, PT12H or PT30M"
_NO_MONTHS: Final = "must have a fixed length: months and years have none; use days (P30D)"


@attrs.frozen(kw_only=True)
class Freshness:
    """The oldest a result may be.

    Attributes:
        duration: As the call wrote it.
        ms: Its length in milliseconds.
        instant: The oldest instant that is fresh, inclusive.
        now: When the call was made.
    """

    duration: str
    ms: int
    instant: datetime
    now: datetime

    @property
    def since(self) -> str:
        """`instant` as text, such as ``2026-11-23T12:00:00.000Z``."""
        return instant_text(self.instant)


def freshness_of(value: object, *, now: datetime) -> Freshness:
    """The freshness that *value* asks for.

    Args:
        value: A duration: days, hours, minutes and seconds, or weeks alone.
        now: When the call was made, in UTC.

    Raises:
        Refused: It is another duration, none, empty, or begins before the calendar does.
    """
    if not isinstance(value, str):
        raise Refused(_FORM)
    length = _length(value)
    if length is None:
        raise Refused(_NO_MONTHS if _MONTHS_OR_YEARS.match(value[:64]) else _FORM)
    if not length:
        raise Refused("must be longer than nothing")
    at = to_milliseconds(now)
    try:
        instant = at - timedelta(milliseconds=length)
    except OverflowError:
        raise Refused("must not begin before the calendar does") from None
    return Freshness(duration=value, ms=length, instant=instant, now=at)


def _length(text: str) -> int | None:
    """Milliseconds, or None when it is no duration of ours."""
    weeks = _WEEKS.fullmatch(text)
    if weeks is not None:
        return int(weeks[1]) * 7 * 86_400_000
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
