"""Where in a revision a quotation stands: the two text selectors of the Web Annotation model.

Source: W3C Web Annotation Data Model, 4.2.4 and 4.2.5; positions count code points from 0, and the
end is the first one that is not selected.
"""

import re
from typing import Final
from urllib.parse import quote

import attrs

from citations._folding import fold

__all__ = ("TextMatch", "TextPositionSelector", "TextQuoteSelector", "text_match")

CONTEXT_CHARS: Final = 32
# A fragment names the beginning and the end of what is longer; both within one line.
_WHOLE_WORDS: Final = 12
_EDGE_WORDS: Final = 5
_WORD: Final = re.compile(r"\S+")


@attrs.frozen(kw_only=True)
class TextPositionSelector:
    """A range of a text in code points."""

    start: int
    end: int

    def to_json(self) -> dict[str, str | int]:
        """The selector as the model writes it."""
        return {"type": "TextPositionSelector", "start": self.start, "end": self.end}


@attrs.frozen(kw_only=True)
class TextQuoteSelector:
    """A range of a text by its words and those around it, as the text has them."""

    exact: str
    prefix: str
    suffix: str

    def to_json(self) -> dict[str, str]:
        """The selector as the model writes it."""
        return {
            "type": "TextQuoteSelector",
            "exact": self.exact,
            "prefix": self.prefix,
            "suffix": self.suffix,
        }


@attrs.frozen(kw_only=True)
class TextMatch:
    """One range by both selectors."""

    position: TextPositionSelector
    quote: TextQuoteSelector

    @property
    def fragment(self) -> str:
        """The part of an address behind its hash sign that makes a browser show this range.

        Source: URL Fragment Text Directives, WICG.
        """
        lines = [line for line in map(_shown, self.quote.exact.splitlines()) if line]
        if not lines:
            return ""
        words = [_WORD.findall(line) for line in lines]
        if len(lines) == 1 and len(words[0]) <= _WHOLE_WORDS:
            return f":~:text={_encoded(lines[0])}"
        head = " ".join(words[0][:_EDGE_WORDS])
        tail = " ".join(words[-1][-_EDGE_WORDS:])
        return f":~:text={_encoded(head)},{_encoded(tail)}"


def _shown(line: str) -> str:
    """A line as a browser shows it: without what Markdown puts around the words."""
    folded = fold(line, markdown=True)
    spans = dict.fromkeys(folded.origin(at, at + 1) for at in range(len(folded.text)))
    pieces = (line[start:end] for start, end in spans)
    return "".join(piece[1:] if piece[:1] == "\\" and piece[1:] else piece for piece in pieces)


def _encoded(words: str) -> str:
    # A hyphen, a comma and an ampersand have a meaning of their own in a directive.
    return quote(words, safe="").replace("-", "%2D")


def text_match(text: str, start: int, end: int) -> TextMatch:
    """The range of *text* from *start* up to *end*."""
    return TextMatch(
        position=TextPositionSelector(start=start, end=end),
        quote=TextQuoteSelector(
            exact=text[start:end],
            prefix=text[max(0, start - CONTEXT_CHARS) : start],
            suffix=text[end : end + CONTEXT_CHARS],
        ),
    )
