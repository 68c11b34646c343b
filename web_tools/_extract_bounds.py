"""What a page may cost: limits on input, tags and output, and the linear scan that applies them."""

import attrs

MAX_INPUT_BYTES = 8 * 1024 * 1024
MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_TAGS = 300_000
"""Most elements a tree is built from; each costs the parser about 200 bytes, Python as much again."""

_INLINE_HTML_BYTES = 96 * 1024
_INLINE_TEXT_BYTES = 160 * 1024
_INLINE_TAGS = 3_000
_INLINE_OPEN = 400
_PIECES = 32
_INLINE_MARKS = 16_000
"""`=` and `&`: attributes and entities."""


@attrs.frozen(kw_only=True)
class Bounded:
    """A body cut to what may be parsed."""

    body: bytes
    truncated: bool


def bound(body: bytes, *, is_html: bool) -> Bounded:
    """*body* cut to the input limit and, for HTML, before the tag that is one too many."""
    cut = body[:MAX_INPUT_BYTES]
    if is_html and cut.count(b"<") > MAX_TAGS:
        cut = b"<".join(cut.split(b"<", MAX_TAGS + 1)[: MAX_TAGS + 1])
    return Bounded(body=cut, truncated=len(cut) < len(body))


def is_small(body: bytes, *, is_html: bool) -> bool:
    """Whether the work on *body* is bounded to a few milliseconds, whatever is in it."""
    if not is_html:
        return len(body) <= _INLINE_TEXT_BYTES
    return (
        len(body) <= _INLINE_HTML_BYTES
        and body.count(b"<") <= _INLINE_TAGS
        and body.count(b"=") + body.count(b"&") <= _INLINE_MARKS
        and _is_shallow(body)
    )


def _is_shallow(body: bytes) -> bool:
    """Whether elements cannot be nested deep: at no point are many more open than closed.

    Looked at between pieces, so the true depth can be higher by the tags of one piece. An
    element without an end tag counts as open, and so does an end tag that two pieces share: a
    page of images is judged deeper than it is.
    """
    piece = len(body) // _PIECES + 1
    is_open = 0
    for start in range(0, len(body), piece):
        end = start + piece
        is_open += body.count(b"<", start, end) - 2 * body.count(b"</", start, end)
        if is_open > _INLINE_OPEN:
            return False
    return True


def cut_text(text: str) -> tuple[str, bool]:
    """*text* within the output limit, cut at a character, and whether anything was dropped."""
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text, False
    encoded = text.encode()
    if len(encoded) <= MAX_TEXT_BYTES:
        return text, False
    return encoded[:MAX_TEXT_BYTES].decode("utf-8", "ignore"), True
