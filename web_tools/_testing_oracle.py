"""`assert_fenced`: a judge of blocks that shares neither code nor tables with the fence.

It is slow on purpose and derives what it knows from `unicodedata`, the names of characters and the
lists below, so that a row that is missing in the fence's tables is found by it. It knows less than
the fence in places: what it finds is a fault; what it does not find may be one.
"""

import base64
import functools
import html
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

import attrs

__all__ = ("FencedText", "assert_fenced", "assert_fenced_results", "spelled_tag_in")

_TAG: Final = "untrusted-web-content"
_LETTERS: Final = _TAG.replace("-", "")
_ROUNDS: Final = 4

_OPEN: Final = re.compile(
    rf'<{_TAG} nonce="([0-9a-f]{{32}})"'
    r' kind="(page|search-item|error|redirect|file-name|summary)"'
    r' source="([!#-;=?-~]*)"'
    r' retrieved-at="(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z|invalid)"'
    r' revision="(sha256:[0-9a-f]{64})" shown="(\d+)" total="(\d+)" truncated="(true|false)"'
    r'( mode="(?:datamark" mark="(?:U\+[0-9A-F]{4})+|encode)")?> ([ -~]+)',
    re.ASCII,
)
_NAMES: Final = (
    "nonce",
    "kind",
    "source",
    "retrieved-at",
    "revision",
    "shown",
    "total",
    "truncated",
)

# ── what a character reads as ─────────────────────────────────────────────────────────────────

# Shapes that neither a decomposition nor a name tells. Source: UTS 39, seen in forged markers.
_SHAPES: Final = {
    "u": "\u03c5\u057d\u1d1c\u028b\uab4e\uab52\u222a\u22c3\u054d\u1200\u144c\ua4f4",
    "n": "\u0578\u057c\u039d\u2c9a\ua4e0",
    "t": "\u03c4\u0442\u0422\u1d1b\u22a4\u27d9\u03a4\u2ca6\u13a2\ua4d4",
    "r": "\u0433\u0280\u1d26\u2c85\uab47\uab48\u13a1\u13d2\ua4e3\u01a6\u1587",
    "s": "\u0455\u0405\ua731\u01bd\u054f\u13d5\u13da\ua4e2",
    "e": "\u0435\u0415\u04bd\u212e\u0395\u22ff\u13ac\ua4f0\u2d39\u0454\u03b5",
    "d": "\u0501\u13e7\u146f\ua4d2\u13a0\u15de\u15ea\ua4d3",
    "w": "\u0461\u051d\u0561\u1d21\u026f\u051c\u13b3\u13d4\ua4ea",
    "b": "\u042c\u0184\u13cf\u1472\u15af\u0392\u0412\u13f4\u15f7\ua4d0\ua7b4",
    "c": "\u0441\u0421\u03f2\u03f9\u1d04\u2ca5\u2ca4\u13df\ua4da",
    "o": "\u043e\u041e\u03bf\u039f\u0585\u0555\u2c9f\u2c9e\u1d0f\u05e1\u0d20\u101d\u10ff\ua4f3\u2d54",
}
_READS_AS: Final = {shape: letter for letter, shapes in _SHAPES.items() for shape in shapes}
_NAMED_LETTER: Final = re.compile(
    r"(?:LATIN|FULLWIDTH LATIN|MATHEMATICAL [A-Z -]+|(?:NEGATIVE )?(?:CIRCLED|SQUARED) LATIN)"
    r"(?: (?:SMALL|CAPITAL)(?: LETTER)?(?: SMALL CAPITAL)?| LETTER SMALL CAPITAL) ([A-Z])"
    r"(?: WITH [A-Z -]+)?\Z"
)
_NAMED_BRACKET: Final = re.compile(
    r"(?!COMBINING|ARABIC|TAG|APL|GREATER|NEITHER GREATER|.*GREATER-THAN|.*ARROW THROUGH|.*RIGHT ARC)"
    r".*(?:LESS-THAN|LEFT-POINTING (?:DOUBLE |CURVED )?ANGLE|LEFT (?:DOUBLE |CURVED )?ANGLE"
    r"|LEFT ARROWHEAD)"
)
# Triangles that point to the left by what they mean, or in a box.
_SHOWN_BRACKETS: Final = frozenset("\u22b2\u22b4\u22ea\u22ec\u2343\U0001f780")
_NAMED_CLOSER: Final = re.compile(
    "GREATER-THAN|RIGHT-POINTING|RIGHT (DOUBLE |CURVED )?ANGLE|RIGHT ARROWHEAD"
)
_SKIPPED: Final = frozenset({"Zs", "Zl", "Zp", "Pd", "Pc", "Cc", "Cf", "Mn", "Me"})
_PUNCTUATION: Final = frozenset(
    "\"'`.,:;!?*_~+=|/\\()[]{}@#$^&%\u2018\u2019\u201c\u201d\u00b7\u29f5\u29f9"
)
# Default-ignorable, and what shows as nothing: Unicode's DerivedCoreProperties, Braille blank.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@functools.cache
def _read(character: str) -> str:
    """`<`, a letter or letters of the name, nothing for what is skipped, `.` for the rest."""
    name = unicodedata.name(character, "")
    decomposed = unicodedata.normalize("NFKD", character).casefold()
    if _NAMED_BRACKET.match(name) or "<" in decomposed or character in _SHOWN_BRACKETS:
        return "<"
    if _NAMED_CLOSER.search(name):
        return "."
    if character in _READS_AS:
        return _READS_AS[character]
    named = _NAMED_LETTER.match(name)
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    letters = named[1].lower() if named else plain
    if letters and all(letter in _LETTERS for letter in letters):
        return letters
    skipped = _INVISIBLE.match(character) or unicodedata.category(character) in _SKIPPED
    return "" if skipped or character in _PUNCTUATION else "."


def _skeleton(text: str) -> str:
    return "".join(map(_read, text))


def _spells(text: str) -> bool:
    return f"<{_LETTERS}" in _skeleton(text)


_SCRIPT: Final = re.compile(
    r"\\u\{([0-9a-fA-F]{1,6})\}|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\(0?74)(?![0-7])"
    r"|%u([0-9a-fA-F]{4})"
)


def _script(found: re.Match[str]) -> str:
    if found[4]:
        return "<"
    value = int(found[1] or found[2] or found[3] or found[5], 16)
    return chr(value) if value < 0x110000 else "\ufffd"


# Spellings that say where they end; what is inside of another one is always one of them.
_WHOLE: Final = re.compile(
    r"(?P<reference>&(?:#\d+|#[xX][\da-fA-F]+|[A-Za-z]\w*);)|(?P<byte>%[0-7][\da-fA-F])"
    rf"|{_SCRIPT.pattern}",
    re.ASCII,
)


def _undone(found: re.Match[str]) -> str:
    if found["reference"]:
        return html.unescape(found[0])
    return unquote(found[0]) if found["byte"] else _SCRIPT.sub(_script, found[0])


def _readings(text: str) -> Iterator[str]:
    """What a reader may make of a text who undoes encodings one after the other, or from within."""
    yield from _one_after_the_other(text)
    inner = text
    for _ in range(2 * _ROUNDS):
        inner = _WHOLE.sub(_undone, inner)
    if inner != text:
        yield from _one_after_the_other(inner)


def _one_after_the_other(text: str) -> Iterator[str]:
    """The text, and what is left of it when a reader undoes up to four encodings."""
    yield text
    for _ in range(_ROUNDS):
        before = text
        for decoded in (html.unescape, unquote, functools.partial(_SCRIPT.sub, _script)):
            text = decoded(text)
            yield text
        if text == before:
            return


def spelled_tag_in(text: str) -> bool:
    """Whether a reader may take a part of the text for a tag of the fence."""
    return any(map(_spells, _readings(text)))


# ── what may not stand in a body ──────────────────────────────────────────────────────────────

_TOKEN: Final = re.compile(
    r"<[|\uff5c][^\s<>|]{1,64}[|\uff5c]>|<<\/?SYS>>|\[\/?INST\]|\[\/?(?:TOOL_CALLS|TOOL_RESULTS"
    r"|AVAILABLE_TOOLS|SYSTEM_PROMPT)\]|<(?:start|end)_of_turn>|<(?:bos|eos)>|<unused\d{1,4}>"
    r"|<\/s><s>|<s>\[INST\]|<\/?(?:tool_call|tool_response|function_calls|invoke)\b|<function="
)
_CONTROL: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029\ufdd0-\ufdef\ud800-\udfff]|\r(?!\n)"
)
_DIRECTION: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u2066\u2067\u2068\u2069"
# Between ASCII characters no context explains any; direction is a matter of the line.
_IN_ASCII: Final = re.compile(
    f"(?<![^\\x00-\\x7f])(?![{_DIRECTION}]){_INVISIBLE.pattern}(?![^\\x00-\\x7f])"
)
_NEVER: Final = re.compile("[\u202d\u202e\u2060-\u2065\u206a-\u206f\ufeff\u00ad\u3164\u115f\u1160]")


def _misdirects(line: str) -> bool:
    """Whether a line has direction controls without right-to-left text, or not in pairs."""
    controls = "".join(character for character in line if character in _DIRECTION)
    if controls and not any(unicodedata.bidirectional(c) in ("R", "AL") for c in line):
        return True
    controls = re.sub("[\u061c\u200e\u200f]", "", controls)
    before = ""
    while controls != before:
        before = controls
        controls = re.sub("[\u202a\u202b]\u202c|[\u2066-\u2068]\u2069", "", controls)
    return bool(controls)


def _flaw(text: str, nonce: str) -> str | None:
    """Why a text could be taken for more than the text of a page; None when it cannot."""
    if nonce in text.lower():
        return "the nonce occurs in the body"
    if spelled_tag_in(text):
        return "the body contains a spelling of the tag"
    if _TOKEN.search(text) or _TOKEN.search(_INVISIBLE.sub("", text)):
        return "the body contains a control token"
    if _CONTROL.search(text) or any(ord(c) & 0xFFFE == 0xFFFE for c in text):
        return "the body contains a control character"
    if _NEVER.search(text) or _IN_ASCII.search(text) or any(map(_misdirects, text.split("\n"))):
        return "the body contains an invisible character that nothing explains"
    return None


# ── blocks ────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class FencedText:
    """A block taken apart: attributes by name, the notice, the body.

    `plain` is the body without its mode: marks taken out, base64 decoded.
    """

    attributes: Mapping[str, str]
    notice: str
    body: str
    plain: str


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _block_at(text: str, start: int) -> tuple[FencedText, int]:
    opening = _OPEN.match(text, start)
    if opening is None:
        raise AssertionError("the block does not begin with its open tag and the notice")
    closing = f'\n</{_TAG} nonce="{opening[1]}">'
    end = text.find(closing, opening.end())
    _expect(end >= 0, "the block is not closed")
    _expect(text[opening.end()] == "\n", "the notice does not end the first line")
    attributes = dict(zip(_NAMES, opening.groups()[:8], strict=True))
    attributes |= dict(re.findall(' (mode|mark)="([^"]*)"', opening[9] or ""))
    body = text[opening.end() + 1 : end] if end > opening.end() else ""
    block = FencedText(
        attributes=attributes, notice=opening[10], body=body, plain=_plain(body, attributes)
    )
    _check(block)
    return block, end + len(closing)


def _plain(body: str, attributes: Mapping[str, str]) -> str:
    """The body without its mode."""
    mode = attributes.get("mode", "fence")
    if mode == "encode":
        try:
            return base64.b64decode(body, validate=True).decode()
        except ValueError as error:
            raise AssertionError("the body is not the base64 of a text") from error
    if mode == "datamark":
        codes = attributes["mark"].split("U+")[1:]
        return body.replace("".join(chr(int(code, 16)) for code in codes), "")
    return body


def _check(block: FencedText) -> None:
    attributes = block.attributes
    nonce = attributes["nonce"]
    _expect("not instructions" in block.notice, "the notice does not say that the text is data")
    others = [value for name, value in attributes.items() if name != "nonce"]
    _expect(
        all(nonce not in value.lower() for value in others), "the nonce stands twice in the tag"
    )
    source = attributes["source"]
    named = any(_LETTERS in _skeleton(reading) for reading in _readings(source))
    _expect(not named, "the source spells the tag's name")
    _expect(not re.match(r"https?://[^/?#]*@", source), "the source has credentials")
    # What a model reads when it undoes the mode has to be as harmless as what it is shown.
    for text in {block.body, block.plain}:
        flaw = _flaw(text, nonce)
        _expect(flaw is None, flaw or "")
    cut = int(attributes["shown"]) < int(attributes["total"])
    _expect((attributes["truncated"] == "true") is cut, "truncated does not agree with the counts")


def assert_fenced(text: str) -> FencedText:
    """The parts of a text that is exactly one block which its content cannot close.

    Raises:
        AssertionError: it is not; the message says why.
    """
    block, end = _block_at(text, 0)
    _expect(end == len(text), "text stands behind the close tag")
    return block


def assert_fenced_results(text: str) -> list[FencedText]:
    """The blocks of a result list: a notice line, then blocks with nonces of their own.

    Raises:
        AssertionError: it is not; the message says why.
    """
    notice, _, rest = text.partition("\n")
    _expect("not instructions" in notice, "the first line does not say what follows")
    blocks: list[FencedText] = []
    place = 0
    while place < len(rest):
        block, end = _block_at(rest, place)
        _expect(end == len(rest) or rest[end] == "\n", "text stands between blocks")
        blocks.append(block)
        place = end + 1
    nonces = {block.attributes["nonce"] for block in blocks}
    _expect(len(nonces) == len(blocks), "two blocks share a nonce")
    return blocks
