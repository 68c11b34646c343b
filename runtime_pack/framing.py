"""The fence as the `Frame` port of a task run: for texts from outside that no web tool has brought.

A run that was given no frame has this one in its default mode; see `runtime_pack.ports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from runtime_pack.ports import Frame
from web_tools.fence import (
    FenceKind,
    FenceMeta,
    FenceMode,
    FenceStyle,
    NonceBook,
    Signal,
    fence,
    fence_text,
    neutralise,
)

__all__ = ("FenceMode", "fence_frame", "frame_in", "signals_in")


_STEPS: Final[Mapping[str, Signal]] = {
    "tags": Signal.FORGED_FENCE,
    "tokens": Signal.CONTROL_TOKEN,
    "invisibles": Signal.INVISIBLE_TEXT,
    "controls": Signal.TERMINAL_CONTROL,
}


def fence_frame(text: str, *, source: str, burned: set[str]) -> str:
    """The block around a text; *source* says whose it is, such as `tool:mail` or `summary`."""
    return fence_text(text, meta=_meta(source), nonces=NonceBook(burned=burned))


def _meta(source: str) -> FenceMeta:
    kind = FenceKind.SUMMARY if source == "summary" else FenceKind.PAGE
    return FenceMeta(kind=kind, source=source, retrieved_at=None)


def _frame_of(style: FenceStyle, text: str, *, source: str, burned: set[str]) -> str:
    nonces = NonceBook(burned=burned)
    return fence(text, meta=_meta(source), nonces=nonces, style=style).text


def frame_in(mode: FenceMode | str) -> Frame:
    """A frame for `create_agent_task_run(frame=…)` that writes its blocks in *mode*.

    Raises:
        ValueError: there is no such mode.
    """
    mode = FenceMode(mode)
    return fence_frame if mode is FenceMode.FENCE else partial(_frame_of, FenceStyle(mode=mode))


def signals_in(text: str, burned: AbstractSet[str]) -> frozenset[str]:
    """What a fence around the text notices in it, as words; *burned* are the nonces used before.

    A frame gives a text alone. A run that asks on signals looks once more, whatever its frame is.
    """
    steps = neutralise(text).report
    names = {step.name for step in (*steps.hidden, *steps.broken)}
    found = {str(signal) for name, signal in _STEPS.items() if name in names}
    lower = text.lower()
    if any(nonce in lower for nonce in burned):
        found.add(str(Signal.NONCE_REPLAY))
    return frozenset(found)
