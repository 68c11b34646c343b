"""What a command says of a run while it goes on: one plain line on standard error for each event.

Models and pages write parts of it: it is one line, cut, and no terminal obeys it. What a model writes
is shown as it is written; each line of that begins with its turn and a mark, so that none is taken for
the line of another event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Final

import orjson

from runtime_pack.cli._text import note, note_part, plain
from runtime_pack.loop import (
    ApprovalRequested,
    BudgetWarning,
    CallAdmitted,
    CallFinished,
    CallRefused,
    Finished,
    LoopEvent,
    LoopResult,
    TextDelta,
    TurnLost,
    TurnStarted,
)
from runtime_pack.messages import Json

__all__ = ("Hearing", "Telling", "followed", "line_of", "tell")

Hearing = Callable[[LoopEvent], None]
"""Told each event of a drive but the last one; raises nothing."""

_MOST: Final = 160
# What a call is about, in the order in which it is looked for.
_TARGETS: Final = ("url", "query", "domain")


def tell(event: LoopEvent) -> None:
    """Say on standard error what has just happened, if it is worth a line.

    Where nobody can be told any more, the run goes on: the log has it all.
    """
    line = line_of(event)
    if line is not None:
        with contextlib.suppress(OSError):
            note(line)


class Telling:
    """Says on standard error what happens, and what the model writes while it writes it."""

    def __init__(self) -> None:
        # What the line that is being written begins with; nothing between lines.
        self._open = ""

    def __call__(self, event: LoopEvent) -> None:
        """Tell one event; where nobody can be told any more, the run goes on."""
        if isinstance(event, TextDelta):
            self._write(event)
        else:
            self.close()
            tell(event)

    def close(self) -> None:
        """End the line that is being written, if there is one."""
        if self._open:
            self._open = ""
            with contextlib.suppress(OSError):
                note("")

    def _write(self, event: TextDelta) -> None:
        mark = f"{event.step} > "
        text = plain(event.text.replace("\r\n", "\n")).replace("\n", f"\n{mark}")
        if self._open != mark:
            self.close()
            text = f"{mark}{text}"
        self._open = mark
        with contextlib.suppress(OSError):
            note_part(text)


def line_of(event: LoopEvent) -> str | None:
    """The line of an event; None where there is nothing to say."""
    words = _words(event)
    if words is None:
        return None
    line = " ".join(plain(words).split())
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _words(event: LoopEvent) -> str | None:
    match event:
        case TurnStarted(step=step, attempt=attempt):
            again = f", attempt {attempt}" if attempt > 1 else ""
            return f"{step} the model is asked{again}"
        case TurnLost(step=step, code=code):
            return f"{step} no answer: {code}"
        case CallAdmitted(step=step, call=call):
            return f"{step} {call.name} {_target(call.arguments)}"
        case CallFinished(step=step, ok=True, elapsed_us=elapsed):
            return f"{step} ok, {elapsed / 1000:.0f} ms"
        case CallFinished(step=step, code=code):
            return f"{step} failed: {code}"
        case CallRefused(step=step, tool=tool, code=code):
            return f"{step} {tool} refused: {code}"
        case ApprovalRequested(request=request):
            return f"{request.step} {request.tool} waits for a person: {_target(request.arguments)}"
        case BudgetWarning(budget=budget, limit=limit, taken=taken):
            return f"{budget}: {taken:g} of {limit:g} are taken"
        case _:
            return None


def _target(arguments: Mapping[str, Json] | Any) -> str:
    """What a call is about: its address, its question, else its arguments."""
    if not isinstance(arguments, Mapping):
        return ""
    for name in _TARGETS:
        if isinstance(arguments.get(name), str):
            return str(arguments[name])
    return orjson.dumps(dict(arguments), default=str).decode("utf-8", "replace")


async def followed(events: AsyncIterator[LoopEvent], hear: Hearing) -> LoopResult:
    """Tell the events of a stream as they come; how it ended.

    A reader that is cancelled leaves, which only pauses the run. Whoever cancels a command wants
    what still holds it up ended: it is cancelled as it would be without a reader.
    """
    reading = asyncio.ensure_future(_read(events, hear))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.cancel()
        # The reader has left after the first turn of the event loop, and waits for the run.
        for _ in range(2):
            await asyncio.sleep(0)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        raise


async def _read(events: AsyncIterator[LoopEvent], hear: Hearing) -> LoopResult:
    async with _closing(events) as stream:
        async for event in stream:
            if isinstance(event, Finished):
                return event.result
            hear(event)
    raise RuntimeError("a stream ends with Finished")


@contextlib.asynccontextmanager
async def _closing(events: AsyncIterator[LoopEvent]) -> AsyncIterator[AsyncIterator[LoopEvent]]:
    try:
        yield events
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
