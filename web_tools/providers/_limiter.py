"""When a back end may be asked again: what its answers say, kept by provider and key. Pure.

Sources: RFC 9110 section 10.2.3 (Retry-After); the RateLimit header fields draft; the headers
that vendors send (`X-RateLimit-Remaining: 0, 1985` beside `X-RateLimit-Reset: 1, 1419704`, one
number a window). Seconds come in and go out; no clock is read.
"""

import hashlib
import re
from collections import OrderedDict
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from egress.ports import Headers

__all__ = ("Limiter", "pause_of")

_NUMBERS: Final = re.compile(r"[0-9]{1,12}")
# A number of seconds above this is a time of day in epoch seconds.
_EPOCH: Final = 1_000_000_000
_LONGEST_PAUSE: Final = 31 * 86_400.0
_DEFAULT_PAUSE: Final = 1.0
_TOO_MANY: Final = 429
_MAX_KEYS: Final = 1024


class Limiter:
    """Remembers until when each key must not be used."""

    def __init__(self) -> None:
        # By digest: a key that is kept could be shown.
        self._until: OrderedDict[str, float] = OrderedDict()

    def wait(self, key: str, *, now: float) -> float:
        """Seconds to wait before the next request with *key*; 0 for none."""
        return max(0.0, self._until.get(_digest(key), 0.0) - now)

    def learn(self, key: str, pause_seconds: float, *, now: float) -> None:
        """Take note of what an answer asks for; a shorter pause does not end a longer one."""
        if pause_seconds <= 0:
            return
        name = _digest(key)
        self._until[name] = max(self._until.get(name, 0.0), now + pause_seconds)
        self._until.move_to_end(name)
        if len(self._until) > _MAX_KEYS:
            self._until.popitem(last=False)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def pause_of(status: int, headers: Headers, *, now: datetime) -> float:
    """Seconds that an answer asks to wait before the next request; 0 when it asks for none."""
    fields = dict(reversed(headers))
    asked = max(_retry_after(fields, now), _windows(fields, now))
    if not asked and status == _TOO_MANY:
        asked = _DEFAULT_PAUSE
    return min(asked, _LONGEST_PAUSE)


def _retry_after(fields: dict[str, str], now: datetime) -> float:
    value = fields.get("retry-after", "").strip()
    if _NUMBERS.fullmatch(value):
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, IndexError, OverflowError):
        return 0.0
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


def _windows(fields: dict[str, str], now: datetime) -> float:
    """The longest reset among the windows of which nothing is left."""
    longest = 0.0
    for prefix in ("x-ratelimit", "ratelimit", "x-rate-limit"):
        left = _NUMBERS.findall(fields.get(f"{prefix}-remaining", ""))
        resets = _NUMBERS.findall(fields.get(f"{prefix}-reset", ""))
        if len(left) == len(resets):
            used_up = (reset for count, reset in zip(left, resets, strict=True) if not int(count))
            longest = max([longest, *(_seconds(int(reset), now) for reset in used_up)])
    return longest


def _seconds(reset: int, now: datetime) -> float:
    return max(0.0, reset - now.timestamp()) if reset > _EPOCH else float(reset)
