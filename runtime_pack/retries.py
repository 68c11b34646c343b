"""Whether a failed request to a model is made again, and when: pure.

A request is made again when its fault may pass and no part of the response was shown. Both bounds
hold: so many requests for one turn, and the time that the run has left. What the provider asks to
wait is waited, or the run is suspended until then: no request is sent into a closed window.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from runtime_pack.inner import frozen

__all__ = (
    "GIVE_UP",
    "LONGEST_WAIT_SECONDS",
    "GiveUp",
    "Hold",
    "Retry",
    "Wait",
    "asked_wait",
    "next_attempt",
)

FIRST_WAIT_SECONDS: Final = 0.5
"""The longest wait before the second request; it doubles with each one after."""

LONGEST_BACKOFF_SECONDS: Final = 30.0
"""Where doubling ends."""

LONGEST_WAIT_SECONDS: Final = 900.0
"""What a provider asks to wait beyond this suspends the run, however much time is left."""

# A date does not take every number, and nobody means more than a month.
_LONGEST_HOLD_SECONDS: Final = 30 * 24 * 3600.0


@frozen
class Wait:
    """Wait so many seconds, then ask again."""

    seconds: float


@frozen
class Hold:
    """Do not wait: so many seconds from now the run can be taken up."""

    seconds: float


@frozen
class GiveUp:
    """The fault stands."""


Retry: TypeAlias = Wait | Hold | GiveUp
"""What follows a failed request."""

GIVE_UP: Final = GiveUp()


def next_attempt(
    *,
    retryable: bool,
    attempt: int,
    max_attempts: int,
    left_seconds: float,
    asked_seconds: object,
    chance: object,
) -> Retry:
    """What follows a request that failed.

    Args:
        attempt: how many requests of the turn failed, this one among them.
        retryable: the fault may pass, and nothing of the response was shown.
        max_attempts: requests that one turn may take.
        left_seconds: what the run has left; infinite when it is not limited.
        asked_seconds: what the provider asks to wait; anything but a number from 0 is nothing.
        chance: spreads the waits of many runs, from 0 to 1; anything else counts as 1.

    Returns:
        A wait that is shorter than what is left, a hold when the provider asks for more than that,
        or that the fault stands. The provider's word is never shortened.
    """
    if not retryable or attempt >= max_attempts:
        return GIVE_UP
    spread = _number(chance, most=1.0)
    asked = asked_wait(asked_seconds)
    if asked is not None:
        if asked >= left_seconds or asked > LONGEST_WAIT_SECONDS:
            return Hold(asked)
        # Later, by up to a tenth: all who were told the same must not come at once.
        later = asked * (1 + 0.1 * (1.0 if spread is None else spread))
        return Wait(max(asked, min(later, _half_way(asked, left_seconds))))
    longest = min(FIRST_WAIT_SECONDS * 2.0 ** min(attempt - 1, 16), LONGEST_BACKOFF_SECONDS)
    return Wait(min(longest * (1.0 if spread is None else 0.5 + spread / 2), left_seconds / 2))


def asked_wait(asked_seconds: object) -> float | None:
    """What a provider asks to wait, a month at most; None for anything but a number from 0."""
    asked = _number(asked_seconds)
    return None if asked is None else min(asked, _LONGEST_HOLD_SECONDS)


def _half_way(asked: float, left: float) -> float:
    return asked + (left - asked) / 2


def _number(value: object, *, most: float = math.inf) -> float | None:
    """The number from 0 up to *most*; None for anything else, NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None
