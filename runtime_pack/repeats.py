"""Calls that go in circles: the last few calls of a run, and whether the next one repeats them. Pure.

A call whose arguments and result were the same twice running is answered from the record the third
and the fourth time; the fifth ends the run. Circles of up to four calls are seen too: A-B-A-B, then A.
One changed argument, or one changed result, breaks the circle. Equal calls of one response count once:
the model could not know what the first would give.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

import attrs
import orjson

from runtime_pack.inner import changing, frozen, inner
from runtime_pack.labels import Label
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.tool_aliases import original_of

__all__ = ("Recorded", "Repeats", "Seen", "Stuck", "fingerprint", "fingerprint_of")

WINDOW: Final = 8
"""How many calls are remembered: two rounds of the longest circle."""

ANSWERED_AT_MOST: Final = 2
"""How often a call is answered from the record before the run ends."""

_NONCE: Final = re.compile(r"[0-9a-f]{32}")


@inner
class Recorded:
    """What a call gave: the text that the model saw."""

    text: str
    ok: bool
    label: Label


@frozen
class Stuck:
    """The call was answered from the record often enough."""


Verdict: TypeAlias = Recorded | Stuck | None
"""The record that answers a call, or that the run is stuck, or None: the call may run."""

_STUCK: Final = Stuck()


@changing
class Seen:
    """One call of the window; `recorded` is None until it has run.

    When it was answered from the record, `call_id` is that of the call which ran.
    """

    fingerprint: str
    step: str
    call_id: str
    recorded: Recorded | None = None
    answered: bool = False


def fingerprint_of(tool: str, arguments: Mapping[str, Json], cosmetic: Collection[str] = ()) -> str:
    """What two calls share that ask for the same: the tool and the arguments that matter.

    5 and 5.0 are one number, as they are for JSON Schema.
    """
    asked = {k: _plain(v) for k, v in arguments.items() if k not in cosmetic}
    body = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    return fingerprint(tool, hashlib.sha256(body).hexdigest())


def _plain(value: Json) -> Json:
    """The value with every whole number as an integer, as far as JSON text can hold it."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and -(2**63) <= value < 2**64 else value
    if isinstance(value, Mapping):
        return {name: _plain(inside) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inside) for inside in value]
    return value


def fingerprint(tool: str, digest: str) -> str:
    """`fingerprint_of` where the digest of the arguments is known, and all of them matter."""
    return f"{original_of(tool)}:{digest}"


class Repeats:
    """The last calls of one run."""

    __slots__ = ("_window",)

    def __init__(self) -> None:
        self._window: list[Seen] = []

    def judge(self, fingerprint: str, step: str, burned: Collection[str]) -> Verdict:
        """Whether a call goes on with a circle; one that does is remembered here.

        *burned* are the nonces in which two texts may differ and be the same.
        """
        for seen in self._window:
            if seen.fingerprint == fingerprint:
                break
        else:
            return None
        earlier = [seen for seen in self._window if seen.fingerprint == fingerprint]
        if earlier and _response(earlier[-1].step) == _response(step):
            return earlier[-1].recorded if earlier[-1].answered else None
        return self._verdict(fingerprint, step, burned) if earlier else None

    def _verdict(self, fingerprint: str, step: str, burned: Collection[str]) -> Verdict:
        window = self._window
        for length in range(1, len(window) // 2 + 1):
            last = window[-length]
            if last.fingerprint != fingerprint or not self._circles(length, burned):
                continue
            if not self._is_steady(length, burned):
                continue
            rounds = range(length, len(window) + 1, length)
            answers = sum(window[-back].answered for back in rounds)
            self._remember(attrs.evolve(last, step=step, answered=True))
            return _STUCK if answers >= ANSWERED_AT_MOST else last.recorded
        return None

    def _circles(self, length: int, burned: Collection[str]) -> bool:
        """Whether the last *length* calls did and gave what those before them did."""
        window = self._window
        return all(
            _same(window[-back], window[-back - length], burned) for back in range(1, length + 1)
        )

    def _is_steady(self, length: int, burned: Collection[str]) -> bool:
        """Whether the call that the last *length* began with gave one result wherever it is in them."""
        window, first = self._window, self._window[-length]
        return all(
            _same(window[-back], first, burned)
            for back in range(1, length)
            if window[-back].fingerprint == first.fingerprint
        )

    def note(self, fingerprint: str, step: str, call_id: str) -> None:
        """A call is to run. A sibling that asks for the same is the same call."""
        for seen in self._window:
            if seen.fingerprint == fingerprint and _response(seen.step) == _response(step):
                return
        window = self._window
        window.append(Seen(fingerprint, step, call_id))
        if len(window) > WINDOW:
            del window[0]

    def _remember(self, seen: Seen) -> None:
        self._window.append(seen)
        if len(self._window) > WINDOW:
            del self._window[0]

    def settle(self, step: str, recorded: Recorded) -> None:
        """What the call of this step gave; a call that is not remembered any more is let be."""
        for seen in self._window:
            if seen.step == step and not seen.answered:
                seen.recorded = recorded

    @property
    def seen(self) -> tuple[Seen, ...]:
        """What is remembered, the oldest first."""
        return tuple(self._window)

    def go_back(self, seen: tuple[Seen, ...]) -> None:
        """Remember what `seen` was before a response was judged: it will be judged again."""
        self._window[:] = seen

    def clear(self) -> None:
        """Forget: a person has said something new."""
        self._window.clear()

    def to_json(self) -> list[Json]:
        """The window for saved runs; results stand in the history."""
        return [
            {
                "fingerprint": seen.fingerprint,
                "step": seen.step,
                "call": seen.call_id,
                "answered": seen.answered,
            }
            for seen in self._window
        ]

    def restore(
        self, saved: Iterable[Mapping[str, Json]], results: Mapping[str, ToolMessage]
    ) -> None:
        """Continue from `to_json`, with the results that the history holds by call id.

        Raises:
            AttributeError, KeyError, TypeError: not of that form.
        """
        self._window.clear()
        for row in saved:
            call_id = str(row["call"])
            told = results.get(call_id)
            recorded = None if told is None else Recorded(told.text, told.ok, told.label)
            answered = row["answered"] is True
            fingerprint = str(row["fingerprint"])
            self._remember(Seen(fingerprint, str(row["step"]), call_id, recorded, answered))


def _response(step: str) -> str:
    """The response that a step belongs to: `t3` of `t3c2`."""
    return step.partition("c")[0]


def _same(one: Seen, other: Seen, burned: Collection[str]) -> bool:
    if one.fingerprint != other.fingerprint:
        return False
    first, second = one.recorded, other.recorded
    if first is None or second is None or first.ok is not second.ok:
        return False
    return first.text == second.text or (
        len(first.text) == len(second.text)
        and _without(first.text, burned) == _without(second.text, burned)
    )


def _without(text: str, burned: Collection[str]) -> str:
    """The text without the nonces of this run: two fences around one text are one text."""
    return _NONCE.sub(lambda found: "" if found[0] in burned else found[0], text)
