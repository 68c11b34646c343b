"""Edits of a text: made left to right, listed on demand, and undone.

A hostile page has hundreds of thousands of places to edit. The new text is made at once; the list
of edits is made only when somebody reads it, by finding the same places again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs

__all__ = ("Edit", "Span", "Step", "rewrite", "undo")

Span: TypeAlias = tuple[int, int, str]
"""Start and end in the text before, and what takes the place of that part."""

Edit: TypeAlias = tuple[int, str, str]
"""Offset in the text after, the characters that stood there, what stands there now."""


def rewrite(text: str, spans: Iterable[Span]) -> str:
    """The text with each span replaced. Spans are in order and do not overlap."""
    pieces: list[str] = []
    done = 0
    for start, end, replacement in spans:
        pieces += (text[done:start], replacement)
        done = end
    pieces.append(text[done:])
    return "".join(pieces)


def _edits(text: str, spans: Iterable[Span]) -> Iterator[Edit]:
    shift = 0
    for start, end, replacement in spans:
        yield start + shift, text[start:end], replacement
        shift += len(replacement) - (end - start)


def undo(text: str, edits: Sequence[Edit]) -> str:
    """The text as it was before *edits*, which are one step's."""
    pieces: list[str] = []
    done = 0
    for offset, original, replacement in edits:
        pieces += (text[done:offset], original)
        done = offset + len(replacement)
    pieces.append(text[done:])
    return "".join(pieces)


@attrs.frozen(kw_only=True)
class Step:
    """One step that changed a text."""

    name: str
    before: str
    after: str
    find: Callable[[str], Iterable[Span]] = attrs.field(repr=False, eq=False)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits in order; `undo(step.after, step.edits)` is `step.before`."""
        return tuple(_edits(self.before, self.find(self.before)))

    @property
    def dropped(self) -> str:
        """The characters that the edits took out, joined."""
        return "".join(self.before[start:end] for start, end, _ in self.find(self.before))
