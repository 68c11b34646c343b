"""The optional modes of the fence: marked words, or base64, of a body that is inert already.

Both come after S5 and can be undone without a report. Neither adds a character that a tag, a token
or a context of S2 could be made of.

Source: the rules page, S0 to S7; Hines et al. 2024, "Defending Against Indirect Prompt Injection
Attacks With Spotlighting", datamarking and encoding.
"""

import base64
import binascii
import functools
import hashlib
import itertools
import re
import secrets
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import Final

import attrs

from web_tools._visible_edits import Span, Step, rewrite

__all__ = (
    "PLAIN",
    "FenceMode",
    "FenceStyle",
    "mark_for",
    "mark_from_label",
    "mark_label",
    "mode_steps",
    "plain_body",
)

# Yi syllables: visible letters that look like no letter of the tag's name, written from left to
# right, and rare outside of Yi.
_FIRST_MARK: Final = 0xA016
_MARKS: Final = 0xA48D - _FIRST_MARK
_TRIES_PER_LENGTH: Final = 16
_LABEL: Final = re.compile("(?:U[+]A[0-4][0-9A-F]{2})+")

# Behind each word; and, in scripts that are written without spaces, behind some letters when
# another letter follows, so that no sequence is taken apart.
_HAN_KANA: Final = "[\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff]"


@functools.cache
def _boundary() -> re.Pattern[str]:
    return re.compile(
        rf"{_HAN_KANA}{{8}}(?={_HAN_KANA})"
        "|[\u0e01-\u0e3a\u0e40-\u0e4e]{12}(?=[\u0e01-\u0e2e\u0e40-\u0e44])"  # Thai
        "|[\u0e81-\u0ebd\u0ec0-\u0ece]{12}(?=[\u0e81-\u0eae\u0ec0-\u0ec4])"  # Lao
        "|[\u1000-\u1038\u103b-\u103f]{12}(?=[\u1000-\u102a])"  # Myanmar
        "|[\u1780-\u17b3\u17b6-\u17d1]{12}(?=[\u1780-\u17b3])"  # Khmer
        r"|\S(?!\S)"
    )


class FenceMode(StrEnum):
    """How a body is written between the tags."""

    FENCE = "fence"
    DATAMARK = "datamark"
    ENCODE = "encode"


@attrs.frozen(kw_only=True)
class FenceStyle:
    """The mode of a runtime's blocks, and the secret that its marks are drawn from.

    The mark of a text depends on the text and the secret alone: a page cannot guess it, and two
    readings of one page are alike but for their nonces.
    """

    mode: FenceMode = attrs.field(default=FenceMode.FENCE, converter=FenceMode)
    secret: bytes = attrs.field(factory=partial(secrets.token_bytes, 16), repr=False)


PLAIN: Final = FenceStyle(secret=b"")
"""No mode: the body as it is."""


def _candidates(seed: bytes) -> Iterator[str]:
    """Marks in an order that only who has the seed knows; longer ones when short ones are taken.

    The letters of a mark differ, so that it never overlaps with itself.
    """
    for number in itertools.count():
        digest = hashlib.sha256(seed + number.to_bytes(8, "big")).digest()
        letters: dict[str, None] = {}
        for place in range(0, len(digest), 2):
            value = int.from_bytes(digest[place : place + 2], "big")
            letters[chr(_FIRST_MARK + value % _MARKS)] = None
        yield "".join(list(letters)[: 1 + number // _TRIES_PER_LENGTH])


def mark_for(body: str, style: FenceStyle, revision: str) -> str:
    """The mark of a body: it occurs nowhere in it. Empty in the modes that have none."""
    if style.mode is not FenceMode.DATAMARK:
        return ""
    seed = style.secret + revision.encode()
    return next(mark for mark in _candidates(seed) if mark not in body)


def mark_label(mark: str) -> str:
    """A mark as the tag may show it: `U+A123`, one behind another if it has several letters."""
    return "".join(f"U+{ord(letter):04X}" for letter in mark)


def mark_from_label(label: str) -> str:
    """The mark that `mark_label` has shown so; empty when it has not."""
    if not _LABEL.fullmatch(label):
        return ""
    return "".join(chr(int(code, 16)) for code in label.split("U+")[1:])


def _mark_places(mark: str, text: str) -> Iterator[Span]:
    for found in _boundary().finditer(text):
        yield found.end(), found.end(), mark


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _whole(text: str) -> Iterator[Span]:
    yield 0, len(text), _encoded(text)


def mode_steps(body: str, mode: FenceMode, mark: str) -> tuple[Step, ...]:
    """The step that writes an inert body in a mode; none when nothing changes."""
    if mode is FenceMode.FENCE or not body:
        return ()
    if mode is FenceMode.ENCODE:
        return (Step(name="encoding", before=body, after=_encoded(body), find=_whole),)
    find = partial(_mark_places, mark)
    after = rewrite(body, find(body))
    return (Step(name="marks", before=body, after=after, find=find),) if after != body else ()


def plain_body(body: str, mode: FenceMode, mark: str = "") -> str:
    """The body of a block as S5 left it, out of the body as its mode shows it.

    Raises:
        ValueError: it is not the base64 of a text, or there is no mark.
    """
    if mode is FenceMode.FENCE:
        return body
    if mode is FenceMode.DATAMARK:
        if not mark:
            raise ValueError("the mode has a mark")
        return body.replace(mark, "")
    try:
        return base64.b64decode(body, validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise ValueError("not the base64 of a text") from error
