"""Strategies and oracles for the fence and the web, for this project's tests and its users' tests.

`assert_fenced` shares nothing with the fence, so a fault of the fence is found by it. The slow
oracle here shares the fence's tables and nothing else: it folds a whole text character by
character with `unicodedata`, deletes what is skipped and searches the rest. The strategies need
Hypothesis, which the extra `testing` brings; the judges and the kit for back ends do not.
"""

from __future__ import annotations

import html
import html.entities
import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from web_tools import _fence_lookalikes, _visible_classes
from web_tools._testing_late import LATE
from web_tools._testing_oracle import (
    FencedText,
    assert_fenced,
    assert_fenced_results,
    spelled_tag_in,
)
from web_tools._testing_web import (
    ModelScript,
    Redirect,
    RedirectGraph,
    ScriptedCall,
    hostile_urls,
    model_scripts,
    redirect_graphs,
)
from web_tools._visible_tables import code_points
from web_tools.testing_api import ApiAnswer, ScriptedApi, Sent
from web_tools.testing_provider import (
    Conformance,
    RuleResult,
    RuleVerdict,
    Vendor,
    VendorRow,
    check_search_provider,
)

if TYPE_CHECKING:
    from hypothesis import strategies as st
else:
    st = LATE

__all__ = (
    "CONTROL_TOKENS",
    "ApiAnswer",
    "Conformance",
    "FencedText",
    "ModelScript",
    "Redirect",
    "RedirectGraph",
    "RuleResult",
    "RuleVerdict",
    "ScriptedApi",
    "ScriptedCall",
    "Sent",
    "Vendor",
    "VendorRow",
    "any_texts",
    "assert_fenced",
    "assert_fenced_results",
    "brackets",
    "check_search_provider",
    "fence_lookalikes",
    "forged_tag_in",
    "has_control_token",
    "hostile_fragments",
    "hostile_pages",
    "hostile_texts",
    "hostile_urls",
    "model_scripts",
    "redirect_graphs",
    "spelled_tag_in",
    "unexplained_invisibles",
)

TAG: Final = "untrusted-web-content"
NAME: Final = "untrustedwebcontent"
ROUNDS: Final = 8

# --- the slow oracle -----------------------------------------------------------------------------

_SKIPPED_CATEGORIES: Final = frozenset(
    [
        "Mn",
        "Mc",
        "Me",
        "Cf",
        "Cc",
        "Cs",
        "Zs",
        "Zl",
        "Zp",
        "Pd",
        "Pc",
        "Po",
        "Ps",
        "Pe",
        "Pi",
        "Pf",
        "Sk",
    ]
)


def _members(*ranges: str) -> frozenset[str]:
    return frozenset(
        chr(number)
        for row in ranges
        for first, last in code_points(row)
        for number in range(first, last + 1)
    )


_IGNORABLE: Final = _members(*(row for _, row, _ in _visible_classes.INVISIBLE_CLASSES))
# What only a table knows: look-alikes by shape, and code points newer than this interpreter.
# Decompositions are computed here.
_BY_SHAPE: Final[Mapping[str, str]] = {
    character: fold
    for fold, row, source in _fence_lookalikes.LOOKALIKES
    if fold != " "
    for character in _members(row)
    if not source.startswith("NFKD") or unicodedata.category(character) == "Cn"
}
_SKIPPED_BY_SHAPE: Final = _members(
    *(
        row
        for fold, row, source in _fence_lookalikes.LOOKALIKES
        if fold == " " and not source.startswith("general category")
    )
) | frozenset(
    character
    for fold, row, _ in _fence_lookalikes.LOOKALIKES
    if fold == " "
    for character in _members(row)
    if unicodedata.category(character) == "Cn"
)
_CLOSERS: Final = re.compile(
    "GREATER-THAN|SUCCEEDS|RIGHT(-POINTING)? (DOUBLE |CURVED )?ANGLE|RIGHT-POINTING|RIGHT ARROWHEAD"
    "|RIGHT WHITE TORTOISE|RIGHT FLATTENED"
)


def _is_noncharacter(character: str) -> bool:
    return ord(character) & 0xFFFE == 0xFFFE or "\ufdd0" <= character <= "\ufdef"


def _fold_one(character: str) -> str:
    """Skeleton of one character: letters, `<`, nothing for what is skipped, `.` for the rest."""
    if character in _BY_SHAPE:
        return _BY_SHAPE[character].replace("/", "")
    if character in _IGNORABLE or character in _SKIPPED_BY_SHAPE or _is_noncharacter(character):
        return ""
    folded = unicodedata.normalize("NFKD", character).casefold()
    if folded not in (character, ""):
        return "".join(map(_fold_one, unicodedata.normalize("NFKD", folded)))
    if unicodedata.category(character) not in _SKIPPED_CATEGORIES:
        return "."
    return "." if _CLOSERS.search(unicodedata.name(character, "")) else ""


def _skeleton(text: str) -> str:
    known = {character: _fold_one(character) for character in set(text)}
    return "".join(known[character] for character in text)


def _utf8_length(lead: int) -> int:
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _percent_at(text: str, place: int) -> tuple[str, int] | None:
    long_form = re.compile("%[uU]([0-9a-fA-F]{4})").match(text, place)
    if long_form:
        return chr(int(long_form[1], 16)), 6
    octets = re.compile("(?:%[0-9a-fA-F]{2}){1,4}").match(text, place)
    if not octets:
        return None
    data = bytes.fromhex(octets[0].replace("%", ""))
    length = _utf8_length(data[0])
    tail = data[1:length]
    if length == 1:
        return data[:1].decode("ascii" if data[0] < 0x80 else "cp1252", "replace"), 3
    if len(tail) < length - 1 or any(byte & 0xC0 != 0x80 for byte in tail) or data[0] > 0xF4:
        return None
    value = data[0] & (0x7F >> length)
    for byte in tail:
        value = value * 64 + byte % 64
    return (chr(value) if value < 0x110000 else "\ufffd"), 3 * length


def _entity_at(text: str, place: int) -> tuple[str, int] | None:
    numeric = re.compile("&#(?:[0-9]+|[xX][0-9a-fA-F]+);?").match(text, place)
    if numeric:
        digits = numeric[0].strip("&#;")
        return html.unescape(f"&#{digits.lower()};") or "\0", len(numeric[0])
    named = re.compile("&[A-Za-z][A-Za-z0-9]{1,31};?").match(text, place)
    if not named:
        return None
    for spelling in (named[0], named[0].lower()):
        if spelling[-1] == ";" and f"{spelling[1:]}" in html.entities.html5:
            return html.entities.html5[spelling[1:]], len(spelling)
    for length in range(len(named[0]), 2, -1):
        for name in (named[0][1:length], named[0][1:length].lower()):
            if not name.endswith(";") and name in html.entities.html5:
                return html.entities.html5[name], length
    return None


def _pair(digits: str) -> str:
    units = bytes.fromhex(digits.replace("\\u", ""))
    return units.decode("utf-16-be")


_SCRIPT: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    (r"\\u([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})", _pair),
    (r"\\u([0-9a-fA-F]{4})", lambda digits: html.unescape(f"&#x{digits};") or "\0"),
    (r"\\u\{([0-9a-fA-F]+)\}", lambda digits: html.unescape(f"&#x{digits};") or "\0"),
    (r"\\U([0-9a-fA-F]{8})", lambda digits: html.unescape(f"&#x{digits};") or "\0"),
    (r"\\x([0-9a-fA-F]{2})", lambda digits: chr(int(digits, 16))),
    (r"\\(0{0,4}3[cC])", lambda _: "<"),
    (r"\\([0-3]?[0-7]{1,2})", lambda digits: chr(int(digits, 8))),
)


def _script_at(text: str, place: int) -> tuple[str, int] | None:
    for pattern, decode in _SCRIPT:
        found = re.compile(pattern).match(text, place)
        if found:
            return decode(found[1]), len(found[0])
    return None


_DECODERS: Final = {"&": _entity_at, "%": _percent_at, "\\": _script_at}


def _decode_once(text: str, opener: str) -> str:
    pieces: list[str] = []
    place = 0
    while place < len(text):
        decoded = _DECODERS[opener](text, place) if text[place] == opener else None
        pieces.append(decoded[0] if decoded else text[place])
        place += decoded[1] if decoded else 1
    return "".join(pieces)


def forged_tag_in(text: str, *, rounds: int = ROUNDS) -> bool:
    """Whether any spelling of the fence's tag stands in the text, decoded up to *rounds* times.

    When nothing is said about rounds, it is read from the innermost spelling outwards as well.
    """
    found = rounds == ROUNDS and spelled_tag_in(text)
    found = found or f"<{NAME}" in _skeleton(text)
    for opener in tuple(_DECODERS) * rounds:
        decoded = _decode_once(text, opener)
        found = found or (decoded != text and f"<{NAME}" in _skeleton(decoded))
        text = decoded
    return found


# --- other oracles -------------------------------------------------------------------------------

CONTROL_TOKENS: Final[tuple[str, ...]] = (
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|header_start|>",
    "<|system|>",
    "<|START_OF_TURN_TOKEN|>",
    "<|start_of_role|>",
    "<|tool_calls_section_begin|>",
    "<|channel|>",
    "<|return|>",
    '<|"|>',
    "<\uff5cUser\uff5c>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<|tool_call>",
    "<tool_call|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[SYSTEM_PROMPT]",
    "<<SYS>>",
    "<</SYS>>",
    "<s>[INST]",
    "</s><s>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<eos>",
    "<unused42>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<function_calls>",
    "</function_calls>",
    '<invoke name="',
    "</invoke>",
    "<function=",
    "<minimax:tool_call>",
)
"""One literal of each family that the fence breaks."""

_GENERIC_TOKEN: Final = re.compile("<[|\uff5c](?=\\S{1,64}?[|\uff5c]>)")


def has_control_token(text: str) -> bool:
    """Whether a literal of a chat template or tool parser stands in the text.

    The text is judged as it is, and with the invisible characters left out.
    """
    bare = "".join(character for character in text if character not in _IGNORABLE)
    return any(
        _GENERIC_TOKEN.search(reading) or any(token in reading for token in CONTROL_TOKENS)
        for reading in (text, bare)
    )


_CURSIVE: Final = re.compile(
    "ARABIC|SYRIAC|MANDAIC|NKO|MONGOLIAN|PHAGS-PA|MANICHAEAN|PSALTER|SOGDIAN|OLD UYGHUR"
    "|CHORASMIAN|ADLAM|HANIFI ROHINGYA"
)
_SOUTH_EAST_ASIAN: Final = re.compile(
    "THAI|LAO|KHMER|MYANMAR|TAI |NEW TAI LUE|BALINESE|SUNDANESE|JAVANESE|CHAM"
)
_FLAGS: Final = tuple(
    "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
_PICTOGRAPHS: Final = _members(
    *(row for name, row, _ in _visible_classes.VISIBLE_CLASSES if name == "E")
)
_OPENERS: Final = {"\u202a": "\u202c", "\u202b": "\u202c"} | dict.fromkeys(
    "\u2066\u2067\u2068", "\u2069"
)


def _is_letter(character: str, script: re.Pattern[str]) -> bool:
    named = script.match(unicodedata.name(character, ""))
    return bool(named) and unicodedata.category(character)[0] in "LM"


def _right_to_left(line: str) -> bool:
    return any(
        unicodedata.bidirectional(character) in ("R", "AL")
        and unicodedata.category(character)[0] == "L"
        for character in line
    )


def _unmatched(line: str) -> set[int]:
    """Offsets of embeddings, isolates and their ends that do not nest properly in a line."""
    stack: list[int] = []
    bad: set[int] = set()
    for place, character in enumerate(line):
        if character in _OPENERS:
            stack.append(place)
        elif character in "\u202c\u2069":
            if stack and _OPENERS[line[stack[-1]]] == character:
                stack.pop()
            else:
                bad.add(place)
    return bad | set(stack)


def _joins_emoji(before: str, after: str) -> bool:
    base = before.rstrip("\ufe0f") if len(before) - len(before.rstrip("\ufe0f")) <= 1 else ""
    if base and "\U0001f3fb" <= base[-1] <= "\U0001f3ff":
        base = base[:-1]
    return bool(base) and base[-1] in _PICTOGRAPHS and after[:1] in _PICTOGRAPHS


def _joiner_explained(character: str, left: str, right: str, before: str, after: str) -> bool:
    if any(side and unicodedata.combining(side) == 9 for side in (left, right)):
        return True
    cursive = [bool(side) and _is_letter(side, _CURSIVE) for side in (left, right)]
    if character == "\u200c":
        return all(cursive)
    return any(cursive) or _joins_emoji(before, after)


def _selector_explained(character: str, left: str, right: str) -> bool:
    name = unicodedata.name(left, "")
    if name.startswith("CJK") and "IDEOGRAPH" in name:
        return True
    if character == "\ufe00":
        return unicodedata.category(left) == "Sm" if left else False
    if character in "\ufe0e\ufe0f" and left in _PICTOGRAPHS:
        return True
    return character == "\ufe0f" and left in "#*0123456789" and right == "\u20e3"


def _explained(line: str, place: int) -> bool:
    character = line[place]
    before, after = line[:place], line[place + 1 :]
    left, right = before[-1:], after[:1]
    if character in "\u200e\u200f\u061c" or character in _OPENERS or character in "\u202c\u2069":
        return _right_to_left(line) and place not in _unmatched(line)
    if character in "\u200c\u200d":
        return _joiner_explained(character, left, right, before, after)
    if character == "\u200b":
        return all(side and _is_letter(side, _SOUTH_EAST_ASIAN) for side in (left, right))
    if character == "\u2800":
        return any("\u2801" <= side <= "\u28ff" for side in (left, right))
    if "\u180b" <= character <= "\u180f":
        return bool(left) and unicodedata.name(left, "").startswith("MONGOLIAN")
    if "\U000e0020" <= character <= "\U000e007f":
        flag = re.compile("\U0001f3f4([\U000e0020-\U000e007e]*\U000e007f)")
        inside = (found for found in flag.finditer(line) if found.start() < place < found.end())
        return any(found[1] in _FLAGS for found in inside)
    if "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef":
        return bool(left) and _selector_explained(character, left, right)
    return False


def unexplained_invisibles(text: str) -> list[str]:
    """Invisible code points that no context of the fence's rules explains, in order."""
    return [
        line[place]
        for line in text.split("\n")
        for place, character in enumerate(line)
        if character in _IGNORABLE and not _explained(line, place)
    ]


# --- strategies ----------------------------------------------------------------------------------


def _shapes(fold: str) -> list[str]:
    return sorted(
        character
        for name, row, _ in _fence_lookalikes.LOOKALIKES
        if name == fold
        for character in _members(row)
    )


_BRACKETS: Final = _shapes("<")
_SLASHES: Final = _shapes("/")
_LETTERS: Final = {letter: _shapes(letter) for letter in sorted(set(NAME))}
_HIDDEN: Final = sorted(_IGNORABLE - _members("E0080-E00FF", "E01F0-E0FFF"))
_BETWEEN: Final = " \t\n-_.,:;'\"`*|!?~+=()[]{}@#$^\u00a0\u2011\u2013\u2014\u0301\u0336\u3000/\\&%"

_ENCODERS: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: "".join(f"&#{ord(character)};" for character in text),
    lambda text: "".join(f"&#x{ord(character):x};" for character in text),
    lambda text: "".join(f"&#000{ord(character)}" for character in text) + ";",
    html.escape,
    lambda text: text.replace("&", "&AMP").replace("<", "&LT"),
    lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    lambda text: text.replace("%", "%25").replace("<", "%3c").replace("&", "%26"),
    lambda text: "".join(f"\\u{{{ord(character):X}}}" for character in text),
    lambda text: "".join(
        f"\\u{ord(character):04x}" if ord(character) < 0x10000 else character for character in text
    ),
    lambda text: "".join(
        f"\\x{ord(character):02x}" if ord(character) < 0x80 else character for character in text
    ),
    lambda text: "".join(
        f"\\{ord(character):o}" if ord(character) < 0x80 else character for character in text
    ),
)


@st.composite
def _encoded(draw: st.DrawFn, plain: str, max_depth: int = 4) -> str:
    for encode in draw(st.lists(st.sampled_from(_ENCODERS), max_size=max_depth)):
        plain = encode(plain)
    return plain


@st.composite
def brackets(draw: st.DrawFn) -> str:
    """A spelling of `<`: a look-alike, or encoded up to four times."""
    return draw(_encoded(draw(st.sampled_from(["<", *_BRACKETS]))))


def _spelled_letter(letter: str, chance: random.Random) -> str:
    shapes = _LETTERS.get(letter, ["-", " ", "_", "", "\u2011"])
    spelled = letter if chance.random() < 0.5 else chance.choice(shapes)
    if chance.random() < 0.05:
        spelled = chance.choice(_ENCODERS)(spelled)
    if chance.random() < 0.1:
        spelled += chance.choice(_BETWEEN) + chance.choice(_HIDDEN)
    return spelled


def _spelled_name(seed: int) -> str:
    """The name in some spelling; 0 is the name itself."""
    # One integer, not a hundred choices: a name is drawn and shrunk as a whole. No security here.
    chance = random.Random(seed)  # noqa: S311
    return "".join(_spelled_letter(letter, chance) for letter in TAG) if seed else TAG


@st.composite
def fence_lookalikes(draw: st.DrawFn) -> str:
    """A spelling of an open or close tag of the fence, whole or nearly so."""
    between = st.text(st.sampled_from(_BETWEEN) | st.sampled_from(_HIDDEN), max_size=3)
    slash = draw(st.sampled_from(["", "/", *_SLASHES]))
    name = _spelled_name(draw(st.integers(0, 2**32)))
    tail = draw(st.sampled_from([">", "", " >", "/>", ' nonce="0">', "\n", "\uff1e"]))
    end = draw(st.sampled_from([len(name), len(name), len(name) - 1]))
    return draw(brackets()) + draw(between) + slash + draw(between) + name[:end] + tail


_SEQUENCES: Final = (
    "\x1b[31m",
    "\x1b]8;;https://evil.example/\x07label\x1b]8;;\x07",
    "\x1bP1;2q\x1b\\",
    "\x9b1m",
    "\x9dtitle\x9c",
    "\x1b",
    "\x1b[",
    "\x07",
    "\r",
    "\r\n",
    "\x85",
    "\u2028",
    "\ufffe",
    "\U0010ffff",
    "\ud800",
    "\x00",
)
_WRITING: Final = (
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\u0915\u094d\u200d\u0937",
    "\u0d28\u0d4d\u200d",
    "\u05e9\u05dc\u05d5\u05dd\u200f",
    "\u05d0 \u2067\u05d1\u2069 \u202bx\u202c",
    "\u1797\u17b6\u200b\u1781\u17d2",
    "\u1820\u180b\u1821",
    "\u845b\U000e0100",
    "\u2229\ufe00",
    "\u2801\u2800\u2801",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u2764\ufe0f\u200d\U0001f525",
    "\U0001f44d\U0001f3fd",
    "1\ufe0f\u20e3",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\U0001f1e9\U0001f1ea",
    "e\u0301",
)


def hostile_fragments() -> st.SearchStrategy[str]:
    """One piece of a hostile text: a tag, a token, a control, an invisible, a script in use."""
    return st.one_of(
        fence_lookalikes(),
        brackets(),
        st.sampled_from(CONTROL_TOKENS),
        st.sampled_from(["<|", "|>", "<", "[", "</", "untrusted", "-web-content", TAG, "/", "\\"]),
        st.sampled_from(_SEQUENCES),
        st.sampled_from(_WRITING),
        st.text(st.sampled_from(_HIDDEN), min_size=1, max_size=3),
        st.sampled_from(
            ["\n", " ", "\u05d0", "\u0627", "a", "\U0001f600", "&", "%", "&amp;", "%25"]
        ),
        st.text(max_size=4),
    )


def hostile_texts() -> st.SearchStrategy[str]:
    """Hostile fragments in any order."""
    return st.lists(hostile_fragments(), max_size=12).map("".join)


def any_texts() -> st.SearchStrategy[str]:
    """Any string, lone surrogates included, or a hostile one."""
    anything = st.text(st.characters(exclude_categories=[]), max_size=60)
    return st.one_of(anything, hostile_texts())


@st.composite
def hostile_pages(draw: st.DrawFn) -> str:
    """An HTML page with hostile texts in its title, text, attributes, comments and hidden parts."""
    piece = hostile_texts()
    return (
        f"<!doctype html><html><head><title>{draw(piece)}</title>"
        f'<meta name="description" content="{draw(piece)}"></head><body>'
        f"<!-- {draw(piece)} --><p>{draw(piece)}</p>"
        f'<div hidden style="display:none">{draw(piece)}</div>'
        f'<a href="https://a.example/{draw(piece)}">{draw(piece)}</a>'
        f"<pre>{draw(piece)}</pre></body></html>"
    )


def repeats() -> Iterator[tuple[str, str]]:
    """Name and unit of shapes that make a careless matcher quadratic when they are repeated."""
    yield from (
        ("brackets", "<"),
        ("bracket and blank", "< "),
        ("bracket and letter", "<u"),
        ("close tags", f"</{TAG}>"),
        ("nearly close tags", f"</{TAG[:-1]} "),
        ("full-width tags", "\uff1cuntrusted\u2011web\u2011content\uff1e"),
        ("entities", "&lt;"),
        ("nested entities", "amp;"),
        ("percent", "%3C"),
        ("nested percent", "%25"),
        ("script escapes", "\\u003c"),
        ("backslashes", "\\"),
        ("unknown entities", "&abcdef"),
        ("open bars", "<|"),
        ("tokens", "<|im_start|>"),
        ("empty bars", "<||>"),
        ("square tokens", "[INST]"),
        ("zero width", "a\u200b"),
        ("joined emoji", "\U0001f600\u200d"),
        ("escape", "\x1b["),
        ("unended strings", "\x1b]"),
        ("unended 8-bit strings", "\x9d"),
        ("carriage returns", "\r"),
        ("isolates", "\u05d0\u2067"),
        ("embeddings", "\u05d0\u202b\u202c"),
        ("combining", "\u0301"),
        ("letters", "a"),
        ("hexadecimal", "0a"),
    )
