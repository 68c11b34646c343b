"""One native search over as many responses as it takes, and the searches it may make. Pure.

A provider pauses a long answer and wants its own words back to go on. Its limit of searches counts in
each request anew, so the count is kept here, and with none left the tool is not offered again.
"""

from __future__ import annotations

from typing import Final

import attrs

from web_tools.native.values import (
    NativeAsk,
    NativeCitation,
    NativeFailed,
    NativeFault,
    NativeSource,
    NativeTurn,
    NativeUsage,
)

__all__ = ("MAX_RESPONSES", "NativeAnswer", "NativeSession")

MAX_RESPONSES: Final = 8
"""Of one search; what is paused more often does not end."""


@attrs.frozen(kw_only=True)
class NativeAnswer:
    """The whole answer.

    Attributes:
        searched: Whether there was a search at all; without one the text is from memory.
    """

    text: str
    citations: tuple[NativeCitation, ...]
    sources: tuple[NativeSource, ...]
    searches: int
    dropped: int
    usage: NativeUsage

    @property
    def searched(self) -> bool:
        """Whether there was a search."""
        return self.searches > 0


@attrs.frozen(kw_only=True)
class NativeSession:
    """A search under way.

    Attributes:
        ask: The question as it was first asked.
        budget: The most searches of all its requests together; None sets no limit.
        turns: The responses so far.
    """

    ask: NativeAsk
    budget: int | None = None
    turns: tuple[NativeTurn, ...] = ()

    @property
    def used(self) -> int:
        """Searches so far."""
        return sum(turn.searches for turn in self.turns)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is asked."""
        if not self.turns:
            return False
        return self.turns[-1].resume is None or len(self.turns) >= MAX_RESPONSES

    def request(self) -> NativeAsk:
        """What is asked next, with no more searches than are left."""
        left = None if self.budget is None else max(0, self.budget - self.used)
        resume = tuple(turn.resume for turn in self.turns)
        return attrs.evolve(self.ask, searches=left, resume=resume)

    def after(self, turn: NativeTurn) -> NativeSession:
        """The session with one more response."""
        return attrs.evolve(self, turns=(*self.turns, turn))

    def answer(self) -> NativeAnswer:
        """What the responses say together.

        Raises:
            NativeFailed: They say nothing, are not whole, or every search of theirs failed: what a
                model says after that is from memory.
        """
        usage = _total(self.turns)
        if not self.turns or self.turns[-1].resume is not None:
            raise NativeFailed(NativeFault.INCOMPLETE, usage)
        failed = next((turn.failed for turn in self.turns if turn.failed is not None), None)
        if failed is not None and not any(turn.found for turn in self.turns):
            raise NativeFailed(failed, usage)
        text = "".join(turn.text for turn in self.turns)
        if not text.strip():
            raise NativeFailed(NativeFault.BAD_ANSWER, usage)
        sources = {source.url: source for turn in self.turns for source in turn.sources}
        return NativeAnswer(
            text=text,
            citations=tuple(_citations(self.turns)),
            sources=tuple(sources.values()),
            searches=self.used,
            dropped=sum(turn.dropped for turn in self.turns),
            usage=usage,
        )


def _total(turns: tuple[NativeTurn, ...]) -> NativeUsage:
    counted = [turn.usage for turn in turns if turn.usage is not None]
    return NativeUsage(
        input_tokens=sum(usage.input_tokens for usage in counted),
        output_tokens=sum(usage.output_tokens for usage in counted),
    )


def _citations(turns: tuple[NativeTurn, ...]) -> list[NativeCitation]:
    """Those of every response, their spans moved to where its text stands in the whole."""
    moved: list[NativeCitation] = []
    base = 0
    for turn in turns:
        for each in turn.citations:
            span = None if each.span is None else (base + each.span[0], base + each.span[1])
            moved.append(attrs.evolve(each, span=span))
        base += len(turn.text)
    return moved
