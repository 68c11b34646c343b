"""Encoded spellings of characters: entities, percent and script escapes, decoded in rounds.

Only detection reads decoded text; it is never emitted. A round decodes each kind of spelling once,
so nested encodings take at most one round each. Offsets lead back to the text as it came.

Not every spelling says where it ends: `&#x3%43;` is a control character and some text to who decodes
references first, and a bracket to who decodes percent signs first. Where such a spelling goes on with
another one, the text is read in two more orders: inner spellings first everywhere, and inner spellings
first where the outer one would be a control character as it stands.

Source: HTML 13.5 (named references, also without semicolon), RFC 3986 section 2.1, ECMA-262
12.9.4 (string escapes) and B.2.1 (`%uXXXX`), CSS Syntax 4.3.7 for the one escape that matters.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import attrs

__all__ = ("Reading", "WayBack", "readings")

# The specification asks for four nested encodings; a matcher that runs three decoders one after
# the other in each of its four rounds can undo some more.
ROUNDS: Final = 8

_HEX: Final = "[0-9A-Fa-f]"
_TAIL: Final = "%[89ABab][0-9A-Fa-f]"


@functools.cache
def _names() -> dict[str, str]:
    """The named entities of HTML: two thousand of them, for texts that have one."""
    from html.entities import html5

    return html5


@functools.cache
def _legacy_names() -> dict[str, list[str]]:
    """The names that HTML reads without a semicolon, by their first two letters, longest first."""
    names: dict[str, list[str]] = {}
    for name in sorted(_names(), key=len, reverse=True):
        if name[-1] != ";":
            names.setdefault(name[:2].lower(), []).append(name)
    return names


def _legacy_starts() -> str:
    """Pattern of the first two letters of those names, in any case."""
    seconds: dict[str, str] = {}
    for pair in sorted(_legacy_names()):
        first, second = tuple(pair)
        seconds[first] = seconds.get(first, "") + second.upper() + second
    return "|".join(f"[{first.upper()}{first}][{seconds[first]}]" for first in seconds)


# One kind after the other: each pattern begins with its opener, which is found at the speed of
# memchr, and the readings between are readings too.
@functools.cache
def _entity_pattern(unless: str = "") -> re.Pattern[str]:
    return re.compile(
        f"(&{unless}(?:"
        "#[0-9]+;?"
        f"|#[Xx]{_HEX}+;?"
        "|[A-Za-z][A-Za-z0-9]{1,31}+;"
        f"|(?=[A-Za-z])(?:{_legacy_starts()})[A-Za-z0-9]{{0,30}}+"
        "))"
    )


@functools.cache
def _percent_pattern(unless: str = "") -> re.Pattern[str]:
    return re.compile(
        f"(%{unless}(?:"
        "[0-7][0-9A-Fa-f]"
        f"|[CDcd]{_HEX}{_TAIL}"
        f"|[Ee]{_HEX}(?:{_TAIL}){{2}}"
        f"|[Ff][0-4](?:{_TAIL}){{3}}"
        f"|[89ABab]{_HEX}"
        f"|[Uu]{_HEX}{{4}}"
        "))"
    )


@functools.cache
def _script_pattern(unless: str = "") -> re.Pattern[str]:
    return re.compile(
        rf"(\\{unless}(?:"
        rf"u[Dd][89ABab]{_HEX}{{2}}\\u[Dd][C-Fc-f]{_HEX}{{2}}"
        f"|u{_HEX}{{4}}"
        rf"|u\{{{_HEX}+\}}"
        f"|U{_HEX}{{8}}"
        f"|x{_HEX}{{2}}"
        "|0{0,4}3[Cc]"  # CSS `\3c`, the bracket
        "|[0-3]?[0-7]{1,2}"
        "))"
    )


# What is no whole spelling yet when another one follows: of anything, and of control characters (and
# of the reference to `&`, which needs what follows to mean anything).
_GOES_ON: Final = r"[&%\\]"
_UNFINISHED_ENTITY: Final = f"(?!#(?:[0-9]++|[Xx]{_HEX}++){_GOES_ON}|[A-Za-z0-9]++{_GOES_ON})"
_UNFINISHED_CONTROL: Final = (
    f"(?!#(?:0*+(?:[12]?[0-9]|3[01])?|[Xx]0*+(?:1?{_HEX})?){_GOES_ON}|[Aa][Mm][Pp]{_GOES_ON})"
)
_UNFINISHED_BYTES: Final = "(?![89ABab])"
_HALF_A_PAIR: Final = rf"u[Dd](?:[C-Fc-f]|[89ABab]{_HEX}{{2}}(?!\\u[Dd][C-Fc-f]{_HEX}{{2}}))"
_UNFINISHED_SCRIPT: Final = f"(?!(?:[0-7]{{1,2}}|0{{0,4}}3?){_GOES_ON}|{_HALF_A_PAIR})"
_UNFINISHED_SCRIPT_CONTROL: Final = f"(?!(?:[0-3]?[0-7]|0{{0,4}}3?){_GOES_ON}|{_HALF_A_PAIR})"
# Where one of each order's is: without one, an order reads what the usual order reads.
_MAY_GO_ON: Final = re.compile(rf"&#?[A-Za-z0-9]++{_GOES_ON}|\\0{{0,4}}[0-7]{{1,2}}{_GOES_ON}")
_CONTROL_MAY_GO_ON: Final = re.compile(
    f"&(?:#0*+(?:[12]?[0-9]|3[01])?|#[Xx]0*+(?:1?{_HEX})?|[Aa][Mm][Pp]){_GOES_ON}"
    rf"|\\0{{0,4}}[0-7]{{1,2}}{_GOES_ON}"
)

_LARGEST: Final = 0x10FFFF


Meanings: TypeAlias = dict[str, tuple[str, int]]
"""Spelling, then what it stands for and how many of its characters say so."""


Pass: TypeAlias = tuple[re.Pattern[str], str, Meanings]
"""One kind of spelling decoded once: its pattern, the text before, what its spellings mean."""


@attrs.frozen(kw_only=True)
class Reading:
    """A text after some passes, and the passes that led to it."""

    text: str
    passes: tuple[Pass, ...]


class WayBack:
    """Offsets of a reading, led back to the text that was given."""

    def __init__(self, reading: Reading) -> None:
        self._passes = [_way_back(*made) for made in reversed(reading.passes)]

    def origin(self, offset: int) -> int:
        """Offset at which the spelling of the character at *offset* begins."""
        for starts, origins, ends, resumes in self._passes:
            index = bisect_right(starts, offset) - 1
            if index < 0:
                continue
            behind = offset - ends[index]
            offset = origins[index] if behind < 0 else resumes[index] + behind
        return offset


def _character(number: str, base: int) -> str:
    digits = number.lstrip("0") or "0"
    if len(digits) > 7:  # more than any code point needs; int() would be quadratic
        return "\ufffd"
    value = int(digits, base)
    if 0x80 <= value <= 0x9F:  # HTML 13.2.5.80: numeric references to C1 mean windows-1252
        return bytes([value]).decode("cp1252", "replace")
    return chr(value) if value <= _LARGEST else "\ufffd"


def _named(spelling: str) -> tuple[str, int]:
    name = spelling[1:]
    if name[-1] == ";":
        meant = _names().get(name) or _names().get(name.lower())
        if meant:
            return meant, len(spelling)
    for legacy in _legacy_names().get(name[:2].lower(), ()):
        if name.startswith(legacy) or name.lower().startswith(legacy.lower()):
            return _names()[legacy], 1 + len(legacy)
    return "", 0


def _utf8(spelling: str) -> str:
    # By arithmetic, so that overlong forms (`%C0%BC`) are read as a lenient decoder reads them.
    first, *rest = bytes.fromhex(spelling.replace("%", ""))
    if not rest:
        return chr(first) if first < 0x80 else bytes([first]).decode("cp1252", "replace")
    value = first & (0x3F >> len(rest))
    for byte in rest:
        value = value << 6 | byte & 0x3F
    return chr(value) if value <= _LARGEST else "\ufffd"


def _script(spelling: str) -> str:
    body = spelling[1:]
    if body[0] not in "uUx":
        return "<" if body[-1] in "Cc" else chr(int(body, 8))
    digits = body[1:].strip("{}")
    if "\\" in digits:
        high, low = int(digits[:4], 16), int(digits[-4:], 16)
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    return _character(digits, 16) if body[0] != "x" else chr(int(digits, 16))


def _entity(spelling: str) -> tuple[str, int]:
    if spelling[1] != "#":
        return _named(spelling)
    digits = spelling[2:].rstrip(";")
    hexadecimal = digits[0] in "xX"
    meant = _character(digits[1:], 16) if hexadecimal else _character(digits, 10)
    return meant, len(spelling)


def _percent(spelling: str) -> tuple[str, int]:
    meant = _character(spelling[2:], 16) if spelling[1] in "uU" else _utf8(spelling)
    return meant, len(spelling)


Kind: TypeAlias = tuple[str, Callable[[], re.Pattern[str]], Callable[[str], tuple[str, int]]]
_KINDS: Final[tuple[Kind, ...]] = (
    ("&", _entity_pattern, _entity),
    ("%", _percent_pattern, _percent),
    ("\\", _script_pattern, lambda spelling: (_script(spelling), len(spelling))),
)


def _patient(entity: str, script: str) -> tuple[Kind, ...]:
    """The kinds without the spellings that may go on."""
    unless = (entity, _UNFINISHED_BYTES, script)
    patterns = (_entity_pattern, _percent_pattern, _script_pattern)
    return tuple(
        (opener, functools.partial(pattern, without), decode)
        for (opener, _, decode), pattern, without in zip(_KINDS, patterns, unless, strict=True)
    )


_INNER_FIRST: Final = (
    (_patient(_UNFINISHED_ENTITY, _UNFINISHED_SCRIPT), _MAY_GO_ON),
    (_patient(_UNFINISHED_CONTROL, _UNFINISHED_SCRIPT_CONTROL), _CONTROL_MAY_GO_ON),
)


def _hurries(reading: Reading, may_go_on: re.Pattern[str]) -> bool:
    """Whether the last pass of a reading decoded what may go on with another spelling."""
    _, before, meanings = reading.passes[-1]
    seconds = {spelling[:2] for spelling in meanings}
    if any(second[0] == "%" and second[1] in "89ABab" for second in seconds):
        return True
    if any(second == "\\u" for second in seconds) and any(
        len(spelling) == 6 and spelling[2] in "Dd" and spelling[3] in "89ABCDEFabcdef"
        for spelling in meanings
    ):
        return True
    unfinished = any(
        (spelling[0] == "&" and spelling[-1] != ";")
        or (spelling[0] == "\\" and spelling[1] in "01234567")
        for spelling in meanings
    )
    return unfinished and may_go_on.search(before) is not None


def _decoded(text: str, kind: Kind) -> tuple[str, Meanings]:
    """The text with one kind of spelling decoded once, and what each distinct spelling meant.

    A meaning says how many characters of the spelling it took; 0 if it is none after all.
    """
    _, pattern, decode = kind
    pieces = pattern().split(text)
    meanings = {spelling: decode(spelling) for spelling in set(pieces[1::2])}
    plain = {spelling: meant + spelling[used:] for spelling, (meant, used) in meanings.items()}
    pieces[1::2] = map(plain.__getitem__, pieces[1::2])
    return "".join(pieces), meanings


def _way_back(
    pattern: re.Pattern[str], text: str, meanings: Meanings
) -> tuple[list[int], list[int], list[int], list[int]]:
    # Per spelling: where what it means begins, where it begins itself, and the offsets behind both.
    starts: list[int] = []
    origins: list[int] = []
    ends: list[int] = []
    resumes: list[int] = []
    shift = 0
    for found in pattern.finditer(text):
        meant, used = meanings[found[0]]
        origin = found.start()
        starts.append(origin - shift)
        origins.append(origin)
        ends.append(origin - shift + len(meant))
        resumes.append(origin + used)
        shift += used - len(meant)
    return starts, origins, ends, resumes


def _in_order(text: str, *orders: tuple[Kind, ...]) -> Iterator[Reading]:
    """Each reading as long as decoding by the first order changes the text, then by the next.

    Where an order but the last changes nothing, there are none.
    """
    passes: tuple[Pass, ...] = ()
    for kinds in orders:
        for _ in range(ROUNDS):
            before = text
            for kind in kinds:
                if kind[0] not in text:
                    continue
                decoded, meanings = _decoded(text, kind)
                if decoded != text:
                    passes = (*passes, (kind[1](), text, meanings))
                    text = decoded
                    yield Reading(text=text, passes=passes)
            if text == before:
                break
        if not passes:
            break


def readings(text: str) -> Iterator[Reading]:
    """The text as it stands, then each further reading as long as decoding changes it.

    At most three orders of decoding, each of a fixed number of passes.
    """
    yield Reading(text=text, passes=())
    hurried = [False] * len(_INNER_FIRST)
    for reading in _in_order(text, _KINDS):
        for order, (_, may_go_on) in enumerate(_INNER_FIRST):
            hurried[order] = hurried[order] or _hurries(reading, may_go_on)
        yield reading
    for (kinds, _), differs in zip(_INNER_FIRST, hurried, strict=True):
        if differs:
            yield from _in_order(text, kinds, _KINDS)
