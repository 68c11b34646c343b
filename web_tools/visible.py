"""Text in which every character can be seen: steps S0 to S3 of the fence.

Pure functions over text. Controls and terminal sequences go (S1), invisible code points go unless
their neighbours give them a meaning (S2), and a cut never falls inside a sequence (S3).
Nothing visible is deleted, and nothing is normalised: normalising can create a bracket.

Source: the rules page, S0 to S7; UTS 51 for emoji, RFC 5892 appendix A for joiners,
UAX 9 for embeddings and isolates.
"""

import functools
import re
from collections.abc import Iterator
from typing import Final

import attrs

from web_tools import _visible_contexts, _visible_masks, _visible_quick, _visible_tables
from web_tools._visible_edits import Span, Step

__all__ = (
    "ASCII_CONTROLS",
    "Step",
    "VisibleText",
    "code_point_label",
    "cut",
    "make_visible",
    "remove_controls",
    "remove_invisibles",
    "replace_surrogates",
)

REPLACEMENT: Final = "\ufffd"

ASCII_CONTROLS: Final = bytes({*range(0x20), 0x7F} - {*b"\t\n\r"})
"""What S1 removes from ASCII, wherever it stands."""

# C1 in UTF-8.
_C1: Final = re.compile(rb"\xc2[\x80-\x9f]")

_SURROGATES: Final = re.compile("[\ud800-\udfff]")

# Contents of a string sequence stop at any other introducer, so no start is scanned twice; a
# sequence that never ends is not a sequence, and only its control characters go.
_STRING: Final = "[^\x1b\x80-\x9f\x07]"
_STRING_OR_BELL: Final = "[^\x1b\x80-\x9f]"
_NONCHARACTERS: Final = "\ufdd0-\ufdef" + "".join(
    f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
)
_PLAIN: Final = (
    rf"\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x8f\x91-\x97\x99\x9a\x9c{_NONCHARACTERS}"
)


@functools.cache
def _controls() -> re.Pattern[str]:
    # The class in front lets the matcher skip to the next candidate; what follows says what it is.
    return re.compile(
        rf"[\x1b\x90\x98\x9b\x9d-\x9f{_PLAIN}](?:"
        r"(?<=\x1b)(?:"
        r"\[[0-?]*+[ -/]*+[@-~]"  # CSI (ECMA-48 5.4)
        rf"|\]{_STRING}*+(?:\x07|\x1b\\|\x9c)"  # OSC; xterm ends it with BEL too
        rf"|[PX^_]{_STRING_OR_BELL}*+(?:\x1b\\|\x9c)"  # DCS, SOS, PM, APC
        r"|\\"  # a string terminator that ends nothing
        r"|)"
        r"|(?<=\x9b)(?:[0-?]*+[ -/]*+[@-~]|)"
        rf"|(?<=\x9d)(?:{_STRING}*+(?:\x07|\x1b\\|\x9c)|)"
        rf"|(?<=[\x90\x98\x9e\x9f])(?:{_STRING_OR_BELL}*+(?:\x1b\\|\x9c)|)"
        rf"|[{_PLAIN}]*+)"
    )


_OTHER_BREAKS: Final = re.compile(r"[\x85\u2028\u2029]")


@functools.cache
def _line_breaks() -> re.Pattern[str]:
    return re.compile(r"[\r\x85\u2028\u2029](?:(?<!\r)|(?!\n))")


# `k` is an invisible code point already kept by the rules on flags or direction.
_HIDDEN: Final = "JNZ1TPvFMOIpqXBtcDk"


@functools.cache
def _removable() -> re.Pattern[bytes]:
    # Removable code points in a row, over the classes of `_visible_classes`. Every context
    # is a neighbour in the raw text, so what was kept is kept again: the step is idempotent.
    return re.compile(
        (
            "[JNZ1TPvFBMOIpqXtcD](?:(?<=[MOIpqXtcD])"
            # ZWNJ between two letters of a cursive script; either joiner at a virama
            "|(?<=N)(?!(?<=[AaGm]N)[AGm]|(?<=[Hh]N)(?![HID])|(?<![HID]N)[Hh])"
            # ZWJ beside a cursive letter; between two emoji
            "|(?<=J)(?!(?<=[AaGmHh]J)(?![HID])|(?<![HID]J)[AGmHh]|(?:(?<=EJ)|(?<=EKJ)|(?<=EPJ))E)"
            "|(?<=Z)(?!(?<=[Sh]Z)[Sh])"
            "|(?<=1)(?<![Co]1)"
            "|(?<=T)(?<![CE]T)"
            "|(?<=P)(?<![CE]P)(?!(?<=dP)y)"
            "|(?<=v)(?<!Cv)"
            "|(?<=F)(?<!GF)"
            "|(?<=B)(?<!bB)(?!b))"
            # Behind one that goes, no other has a visible neighbour on its left; the rest go with it,
            # but for a Braille blank, which may lean on its right.
            "[JNZ1TPvFMOIpqXtcD]*+"
        )
        .replace("HID", _HIDDEN)
        .encode()
    )


# Contexts of ordinary text, kept at the speed of `replace`; neighbours overlap, hence the pairs.
_COMMON: Final = (
    (b"EPJE", b"EPkE"),
    (b"EPJE", b"EPkE"),
    (b"EKJE", b"EKkE"),
    (b"EJE", b"EkE"),
    (b"EJE", b"EkE"),
    (b"EP", b"Ek"),
    (b"ANA", b"AkA"),
    (b"ANA", b"AkA"),
)
_REGION_CHARS: Final = 2_000
_PIECE_CHARS: Final = 16_384

_DIRECTIONAL: Final = re.compile(b"[MOIpqX]")
_EMBEDDING: Final = re.compile(b"[OIpqX]")
_CLOSING: Final = re.compile(b"[pq]")
_RIGHT_TO_LEFT: Final = re.compile(b"[AR]")
_EMBED, _ISOLATE, _POP, _POP_ISOLATE, _KEPT = b"OIpqk"
_MARKS_KEPT: Final = bytes.maketrans(b"M", b"k")


@functools.cache
def _flags() -> re.Pattern[str]:
    return re.compile("|".join(_visible_masks.FLAGS))


@attrs.frozen(kw_only=True)
class VisibleText:
    """A text after S0 to S2, and the steps that changed it; `data` is the UTF-8 form of `raw`."""

    raw: str
    data: bytes
    text: str
    steps: tuple[Step, ...]


def code_point_label(character: str) -> str:
    """`U+200B` form of a character."""
    return f"U+{ord(character):04X}"


def replace_surrogates(text: str) -> str:
    """The text with each lone surrogate as U+FFFD, so that it has a UTF-8 form."""
    return text if text.isascii() else _SURROGATES.sub(REPLACEMENT, text)


def _decoded(text: str) -> tuple[str, bytes]:
    """S0: the text without lone surrogates, and its UTF-8 form."""
    try:
        return text, text.encode()
    except UnicodeEncodeError:
        raw = _SURROGATES.sub(REPLACEMENT, text)
        return raw, raw.encode()


@functools.cache
def _suspects() -> re.Pattern[str]:
    """Runs of code points that S2 may remove."""
    hidden = _visible_tables.character_class(
        _visible_tables.INVISIBLE, _visible_tables.fold_table()
    )
    return re.compile(f"[{hidden}]+")


def _is_plain(text: str, data: bytes) -> bool:
    """Whether there is nothing to do; *data* is the UTF-8 form, which is quick to search."""
    if "\r" in text and text.count("\r") != text.count("\r\n"):
        return False
    if text.isascii():
        return len(data.translate(None, ASCII_CONTROLS)) == len(data)
    return not _visible_quick.has_suspects(data) and not _may_have_controls(text, data)


@functools.cache
def _noncharacters() -> tuple[re.Pattern[bytes], ...]:
    # The ends of noncharacters (and of a few characters that end alike), then the block of FDD0.
    # With two to choose from, the search is for the lead alone, which is the speed of memchr.
    return re.compile(rb"\xbf[\xbe\xbf]"), re.compile(rb"\xef[\xb6\xb7](?<=\xb7)")


def _may_have_controls(text: str, data: bytes) -> bool:
    """Whether S1 may find something in a text that is not plain."""
    if len(data.translate(None, ASCII_CONTROLS)) != len(data):
        return True
    if "\r" in text and text.count("\r") != text.count("\r\n"):
        return True
    if "\u2028" in text or "\u2029" in text or _C1.search(data):
        return True
    return any(pattern.search(data) for pattern in _noncharacters())


def _found(pattern: re.Pattern[str], replacement: str, text: str) -> Iterator[Span]:
    for found in pattern.finditer(text):
        yield found.start(), found.end(), replacement


def _substitute(name: str, pattern: re.Pattern[str], replacement: str, text: str) -> Step:
    return Step(
        name=name,
        before=text,
        after=pattern.sub(replacement, text),
        find=functools.partial(_found, pattern, replacement),
    )


def _lone_breaks_replaced(text: str) -> str:
    # NUL is free here: the step before has removed it.
    joined = text.replace("\r\n", "\0").replace("\r", "\n").replace("\0", "\r\n")
    return joined if joined.isascii() else _OTHER_BREAKS.sub("\n", joined)


def remove_controls(text: str) -> tuple[Step, Step]:
    """S1: the text without terminal sequences, control characters and noncharacters.

    Tab, LF and CRLF stay; every other line break becomes LF. No ESC is left, so nothing that
    later steps remove can put a sequence together.
    """
    shown = _controls().sub("", text)
    return (
        Step(
            name="controls",
            before=text,
            after=shown,
            find=functools.partial(_found, _controls(), ""),
        ),
        Step(
            name="line-breaks",
            before=shown,
            after=_lone_breaks_replaced(shown),
            find=functools.partial(_found, _line_breaks(), "\n"),
        ),
    )


def _keep_flags(text: str, classes: bytearray) -> None:
    for found in _flags().finditer(text):
        start, end = found.span()
        classes[start + 1 : end] = b"k" * (end - start - 1)


def _keep_balanced(classes: bytearray, start: int, end: int) -> None:
    """Mark the embeddings and isolates of one line that are opened and closed on it.

    A PDI closes what was opened inside its isolate; an override and its PDF are never kept.
    """
    stack: list[int] = []
    isolates = 0
    for place in [found.start() for found in _EMBEDDING.finditer(classes, start, end)]:
        kind = classes[place]
        if kind in b"OIX":
            stack.append(place)
            isolates += kind == _ISOLATE
        elif kind == _POP_ISOLATE and isolates:
            while classes[stack[-1]] != _ISOLATE:
                stack.pop()
            isolates -= 1
            classes[stack.pop()] = classes[place] = _KEPT
        elif kind == _POP and stack and classes[stack[-1]] != _ISOLATE:
            opener = stack.pop()
            if classes[opener] == _EMBED:
                classes[opener] = classes[place] = _KEPT


def _keep_directional(classes: bytearray) -> None:
    """Mark direction controls that a line with right-to-left letters may have."""
    found = _DIRECTIONAL.search(classes)
    while found:
        start = classes.rfind(b"L", 0, found.start()) + 1
        end = classes.find(b"L", found.start())
        end = len(classes) if end < 0 else end
        if _RIGHT_TO_LEFT.search(classes, start, end):
            if _CLOSING.search(classes, start, end):
                _keep_balanced(classes, start, end)
            classes[start:end] = classes[start:end].translate(_MARKS_KEPT)
        found = _DIRECTIONAL.search(classes, end)


def _classes(text: str) -> bytes:
    """Class of each character, `k` where flags or direction explain an invisible one."""
    classes = bytearray(text.translate(_visible_tables.class_table()).encode())
    if b"c" in classes:
        _keep_flags(text, classes)
    _keep_directional(classes)
    plain = bytes(classes)
    for found, kept in _COMMON:
        plain = plain.replace(found, kept)
    return plain


def _regions(text: str, suspects: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Groups of whole lines that have something to judge, of some thousand characters.

    No context reaches beyond a line.
    """
    found = suspects.search(text)
    while found:
        start = text.rfind("\n", 0, found.start()) + 1
        end = text.find("\n", max(found.start(), start + _REGION_CHARS))
        end = len(text) if end < 0 else end
        yield start, end
        found = suspects.search(text, end)


def _removals(text: str) -> Iterator[Span]:
    for start, end in _regions(text, _suspects()):
        for found in _removable().finditer(_classes(text[start:end])):
            yield start + found.start(), start + found.end(), ""


def remove_invisibles(text: str) -> Step:
    """S2: the text without invisible code points that no context explains."""
    return _invisibles_removed(text, text.encode())


def _invisibles_removed(text: str, data: bytes) -> Step:
    """The same, where the UTF-8 form is known."""
    if _visible_quick.are_neighbours_enough(text):
        after = _judged_by_neighbours(text, wide=_visible_quick.is_wide(data))
    elif _visible_quick.is_dense(text, data):
        after = _judged_in_lines(text)
    else:
        after = _judged_in_lines(_visible_quick.without_runs_in_ascii(data).decode())
    return Step(name="invisibles", before=text, after=after, find=_removals)


def _judged_by_neighbours(text: str, *, wide: bool) -> str:
    pattern = _visible_contexts.unexplained(wide=wide)
    return "".join(
        [
            _visible_masks.explained(piece)
            if _visible_quick.is_dense(piece, piece.encode())
            else pattern.sub("", piece)
            for piece in _pieces(text)
        ]
    )


def _pieces(text: str) -> Iterator[str]:
    """The text in parts that end behind a blank, which is no context of anything.

    One call holds the interpreter for its whole text, and whoever waits in another thread.
    """
    begin = 0
    while begin < len(text):
        end = text.find(" ", begin + _PIECE_CHARS) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _judged_in_lines(text: str) -> str:
    suspects = _suspects()
    pieces: list[str] = []
    done = 0
    for start, end in _regions(text, suspects):
        pieces += (text[done:start], _visible_masks.explained(text[start:end]))
        done = end
    pieces.append(text[done:])
    return "".join(pieces)


def make_visible(text: str) -> VisibleText:
    """S0 to S2 of any string."""
    raw, data = _decoded(text)
    if _is_plain(raw, data):
        return VisibleText(raw=raw, data=data, text=raw, steps=())
    steps: list[Step] = []
    visible, shown = raw, data
    if _may_have_controls(raw, data):
        steps += remove_controls(raw)
        visible = steps[-1].after
        shown = visible.encode()
    if not visible.isascii():
        steps.append(_invisibles_removed(visible, shown))
        visible = steps[-1].after
    changed = tuple(step for step in steps if step.before != step.after)
    return VisibleText(raw=raw, data=data, text=visible, steps=changed)


def _joins(text: str, place: int) -> bool:
    """Whether a cut at *place* would take a sequence apart."""
    before, after = text[place - 1], text[place]
    pair = (before + after).translate(_visible_tables.class_table())
    return (
        after in _visible_tables.marks()
        or (before == "\r" and after == "\n")
        or pair[1] == "K"
        or any(kind in _HIDDEN for kind in pair)
    )


def _splits_flag(text: str, place: int) -> bool:
    """Whether *place* is inside a pair of regional indicators."""
    start = place
    while start and "\U0001f1e6" <= text[start - 1] <= "\U0001f1ff":
        start -= 1
    return (place - start) % 2 == 1 and "\U0001f1e6" <= text[place] <= "\U0001f1ff"


def cut(text: str, max_chars: int) -> str:
    """S3: at most *max_chars* characters of a text that S2 has made visible.

    Steps back to a place that takes no sequence apart, then applies the rules of direction to the
    last line again, since its right-to-left part or a closing control may be gone.

    Raises:
        ValueError: *max_chars* is negative.
    """
    if max_chars < 0:
        raise ValueError(f"max_chars must not be negative: {max_chars}")
    if len(text) <= max_chars:
        return text
    place = max_chars
    while place and _joins(text, place):
        place -= 1
    if place and _splits_flag(text, place):
        place -= 1
    last = text.rfind("\n", 0, place) + 1
    return text[:last] + remove_invisibles(text[last:place]).after
