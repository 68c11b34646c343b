"""A vendor's decorated text as plain text, in one pass. Pure, total, linear.

Inline formatting is removed without a space, for vendors highlight inside of words; every other
tag, and a comment, is a space; what scripts and styles hold is no text. References are decoded
once, after that. What only looks like markup stays: ``a < b``, ``I <3 kettles``, a tag that never
ends.
"""

import html
import re
from typing import Final

__all__ = ("INLINE_TAGS", "escape_text", "plain_text")

# Source: the decisions page of the public surface. `br` and `img` are spaces.
INLINE_TAGS: Final = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "del", "dfn", "em", "font", "i", "ins"}
    | {"kbd", "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "tt", "u", "var"}
    | {"wbr"}
)
_RAW_TEXT: Final = frozenset({"script", "style"})
# HTML Living Standard 13.2.5.6: a tag begins with a letter; `!` and `?` begin a comment.
_OPENING: Final = re.compile(r"<(?:(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*)|(?P<mark>[!?]))")
_END_OR_QUOTE: Final = re.compile(r"[>\"']")
_SPACES: Final = " \t\n\f\r"
# General categories Cc and Cs.
_UNSHOWN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_COMMENT: Final = "<!--"
_ABRUPT: Final = re.compile(r"<!---?>")
_COMMENT_END: Final = re.compile(r"--!?>")


def plain_text(markup: str) -> str:
    """*markup* as one line of plain text: no tags, references decoded once, single spaces."""
    stripped = "".join(_pieces(markup)) if "<" in markup else markup
    decoded = html.unescape(stripped) if "&" in stripped else stripped
    return " ".join(_UNSHOWN.sub(_shown, decoded).split())


def escape_text(text: str) -> str:
    """Plain *text* as markup that `plain_text` gives back, for back ends that answer with text."""
    return html.escape(text, quote=False)


def _shown(match: re.Match[str]) -> str:
    """A space for a control character, U+FFFD for half of a pair."""
    return "\N{REPLACEMENT CHARACTER}" if match[0] >= "\ud800" else " "


def _pieces(markup: str) -> list[str]:
    """What stands between the tags, with a space for those that are no inline formatting."""
    pieces: list[str] = []
    at = 0
    while (opening := _OPENING.search(markup, at)) is not None:
        pieces.append(markup[at : opening.start()])
        text, at = _one(markup, opening)
        pieces.append(text)
    pieces.append(markup[at:])
    return pieces


def _one(markup: str, opening: re.Match[str]) -> tuple[str, int]:
    """What stands for the construct at *opening*, and where it ends."""
    start = opening.start()
    if opening["mark"] is not None:
        return _comment(markup, start)
    end, ended = _end_of_tag(markup, opening.end())
    if not ended:
        # It never ends, so it is text, and is not looked at again: this stays linear.
        return markup[start:end], end
    name = opening["name"].lower()
    if name in _RAW_TEXT and not opening["slash"]:
        return " ", _end_of_raw_text(markup, name, end)
    return "" if name in INLINE_TAGS else " ", end


def _comment(markup: str, start: int) -> tuple[str, int]:
    if not markup.startswith(_COMMENT, start):
        # A doctype or another declaration, which HTML reads as a comment up to the next `>`.
        end = markup.find(">", start)
        return (markup[start:], len(markup)) if end < 0 else (" ", end + 1)
    abrupt = _ABRUPT.match(markup, start)
    if abrupt is not None:
        return " ", abrupt.end()
    closing = _COMMENT_END.search(markup, start + len(_COMMENT))
    return " ", len(markup) if closing is None else closing.end()


def _end_of_tag(markup: str, at: int) -> tuple[int, bool]:
    """Where the tag ends and True, or how far it is only text and False."""
    while (found := _END_OR_QUOTE.search(markup, at)) is not None:
        at = found.end()
        if found[0] == ">":
            return at, True
        if not _opens_value(markup, found.start()):
            continue
        closing = markup.find(found[0], at)
        if closing < 0:
            # No such quote follows, so no later tag fails in the same way.
            return at, False
        at = closing + 1
    return len(markup), False


def _opens_value(markup: str, quote: int) -> bool:
    """Whether the quote stands after an equals sign; elsewhere in a tag it is only a character."""
    before = quote - 1
    while before >= 0 and markup[before] in _SPACES:
        before -= 1
    return before >= 0 and markup[before] == "="


def _end_of_raw_text(markup: str, name: str, at: int) -> int:
    """The end of the element's own end tag; without one it hides the rest."""
    closing = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(markup, at)
    if closing is None:
        return len(markup)
    end, ended = _end_of_tag(markup, closing.end())
    return end if ended else len(markup)
