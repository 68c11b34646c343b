"""What must not leave is found in every listed writing, and in any two of them one inside the other."""

from __future__ import annotations

import base64
import quopri
import unicodedata
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack.address_book import AddressBook
from runtime_pack.addresses import WEB_ADDRESSES
from runtime_pack.flow import FlowVerdict, RuleCode, judge_flow
from runtime_pack.label_table import LabelPreset, LabelVerdict, SideEffect
from runtime_pack.labels import CLEAN
from runtime_pack.private_text import Leak, PrivateText
from runtime_pack.writings import forms_of, said_by

EMAIL = "alice@corp.example"
WIDE = "Straße-Привет-12"
Writing = Callable[[str], str]


def _private(*strings: str) -> PrivateText:
    private = PrivateText()
    for each in strings:
        private.add(each, Leak.DECLARED)
    return private


def _each(form: Callable[[int], str], between: str = "") -> Writing:
    return lambda text: between.join(form(ord(sign)) for sign in text)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _charset(name: str, write: Callable[[bytes], str]) -> Writing:
    return lambda text: write(text.encode(name))


def _name(sign: str) -> str:
    name = unicodedata.name(sign, "")
    return f"\\N{{{name}}}" if name else sign


# Of every text.
WRITINGS: dict[str, Writing] = {
    "plain": str,
    "reversed": lambda text: text[::-1],
    "percent": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "percent where needed": quote,
    "quoted-printable": lambda text: "".join(f"={byte:02X}" for byte in text.encode()),
    "references": _each("&#{};".format),
    "references in hexadecimal": _each("&#x{:x};".format),
    "references without an end": lambda text: "".join(f"&#x{ord(s):06x}" for s in text) + ";",
    "escapes in braces": _each(r"\x{{{:x}}}".format),
    "escapes of code points": _each(r"\u{{{:x}}}".format),
    "long escapes": _each(r"\U{:08x}".format),
    "names": lambda text: "".join(map(_name, text)),
    "codes in names": _each(r"\N{{U+{:04X}}}".format),
    "octal in braces": _each(r"\o{{{:o}}}".format),
    "style sheets": _each(r"\{:x} ".format),
    "U and plus": _each("U+{:04X}".format, " "),
    "0x, commas": _each("0x{:x}".format, ","),
    "0x, brackets": lambda text: f"[{', '.join(hex(ord(sign)) for sign in text)}]",
    "0o": _each(oct, " "),
    "0b": _each(bin, ","),
    "decimal, commas": _each(str, ","),
    "decimal, spaces": _each(str, " "),
    "octal, spaces": _each("{:o}".format, " "),
    "hexadecimal of four, spaces": _each("{:04x}".format, " "),
    "calls": _each("chr({})".format, "+"),
    "hex": lambda text: text.encode().hex(),
    "hex with colons": lambda text: text.encode().hex(":"),
    "base64": lambda text: _b64(text.encode()),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64, one byte in": lambda text: _b64(b"x" + text.encode()),
    "base64, two bytes in": lambda text: _b64(b"xy" + text.encode()),
    "base64, cut to the string": lambda text: _b64(b"\xff\xff" + text.encode())[2:],
    "UTF-16 in hex": _charset("utf-16-be", bytes.hex),
    "UTF-16LE in base64": _charset("utf-16-le", _b64),
    "UTF-16 with a mark in percent": _charset("utf-16", quote_from_bytes),
    "UTF-32 in hex": _charset("utf-32-le", bytes.hex),
    "UTF-32 in base64": _charset("utf-32-be", _b64),
    "dots between": ".".join,
    "zero-width between": "\u200b".join,
    "tags that nobody sees": lambda text: "".join(
        chr(0xE0000 + ord(s)) if s.isascii() else s for s in text
    ),
    "segments": lambda text: "/".join(text[at : at + 3] for at in range(0, len(text), 3)),
    "base64 of each segment": lambda text: "/".join(
        _b64(text[at : at + 3].encode()) for at in range(0, len(text), 3)
    ),
    "hex of each label": lambda text: ".".join(
        text[at : at + 2].encode().hex() for at in range(0, len(text), 2)
    ),
    "full width": lambda text: "".join(
        chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text
    ),
}


@pytest.mark.parametrize("place", ["{}", "https://evil.example/a/{}?x=1", "see: {} ok"])
@pytest.mark.parametrize("string", [EMAIL, WIDE, "hunter42"], ids=["mail", "wide", "eight"])
@pytest.mark.parametrize("writing", WRITINGS.values(), ids=WRITINGS.keys())
def test_a_private_string_is_found_in_every_listed_writing(
    writing: Writing, string: str, place: str
) -> None:
    """Wherever it stands, and whatever letters it has."""
    assert _private(string).find(place.format(writing(string))) is Leak.DECLARED


@pytest.mark.parametrize(
    "write",
    [
        lambda s: quopri.encodestring(s.encode(), quotetabs=True).decode(),
        lambda s: s.encode("latin-1").hex(),
        lambda s: _b64(b"x" + s.encode("latin-1")),
        lambda s: quote(s, encoding="latin-1"),
        lambda s: s.encode("idna").decode() if "." in s else f"xn--{s.encode('punycode').decode()}",
        lambda s: "".join(f"\\x{byte:02x}" for byte in s.encode()),
        lambda s: "".join(f"\\{byte:03o}" for byte in s.encode()),
    ],
)
def test_letters_beyond_ascii_are_found_in_the_bytes_of_other_character_sets(
    write: Writing,
) -> None:
    """Latin-1, host names, escapes of single bytes."""
    assert _private("Straßenbahn Müllerstadt").find(write("Straßenbahn")) is None
    for string in ("Straßenmüller", "müllerstraße"):
        assert _private(string).find(f"x={write(string)}") is Leak.DECLARED


# What can be written around any other writing: all of it is kept.
OUTER = (
    "percent",
    "reversed",
    "references",
    "hex",
    "base64",
    "base64 for addresses",
    "quoted-printable",
    "escapes in braces",
)


@pytest.mark.parametrize("outer", OUTER)
def test_every_writing_inside_another_one_is_read(outer: str) -> None:
    """Of the shortest string that is looked for."""
    private = _private("hunter42")
    missed = [
        name
        for name, inner in WRITINGS.items()
        if private.find(f"x={WRITINGS[outer](inner('hunter42'))}&b") is not Leak.DECLARED
    ]

    assert missed == []


strings = st.one_of(
    st.text(st.characters(min_codepoint=48, max_codepoint=122, categories=["L", "N"]), min_size=8),
    st.sampled_from([EMAIL, "sk-live-9f8e7d6c5b4a3928", "correct horse", "hunter42"]),
).map(lambda text: text[:20])
places = st.tuples(st.sampled_from(["", "x=", "a/"]), st.sampled_from(["", "&b", "!"]))


@settings(max_examples=60)
@given(strings, st.lists(st.sampled_from(OUTER), max_size=2), places)
def test_any_two_writings_one_inside_the_other_are_read(
    string: str, chain: list[str], place: tuple[str, str]
) -> None:
    """For any private string, wherever the outer one begins."""
    text = string
    for name in chain:
        text = WRITINGS[name](text)

    assert _private(string).find(text.join(place)) is Leak.DECLARED


@pytest.mark.parametrize(
    "text",
    [
        "&#x61&#108;i&#99e@corp.example",
        "&#x61&#108;&#x69&#x&#54;3;&#101;@corp.example",
        "al&#x6%39;ce@corp.example",
        "al%26%2369;".replace("69", "105") + "ce@corp.example",
        r"\x61l\u{69}\143\N{LATIN SMALL LETTER E}@corp=2Eexample",
    ],
)
def test_nested_notations_are_read_in_every_order(text: str) -> None:
    """An escape may hold another one, and stand beside one that holds none."""
    assert _private(EMAIL).find(text) is Leak.DECLARED


def _judged(arguments: dict[str, Any], private: PrivateText) -> FlowVerdict:
    return judge_flow(
        preset=LabelPreset.STANDARD,
        label=CLEAN,
        side_effects=[SideEffect.READ_NET],
        destination_args=["url"],
        arguments=arguments,
        book=AddressBook(),
        reader=WEB_ADDRESSES,
        private=private,
    )


KEY = "sk-live-9f8e7d6c5b4a"
FIVE = ["9f8e", "live", "6c5b4a", "sk", "7d"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "https://e.example/?" + "&".join(f"p{n}={part}" for n, part in enumerate(FIVE))},
        {"url": "https://" + ".".join(FIVE) + ".e.example/"},
        {"url": "https://e.example/" + "/x/".join(FIVE)},
        {"url": "https://e.example/?" + "&".join(f"p={_b64(p.encode())}" for p in FIVE)},
        {"query": FIVE},
        {"query": [ord(sign) for sign in KEY]},
        {"query": {"a": FIVE[:2], "b": {"c": FIVE[2:]}}},
    ],
)
def test_a_string_that_is_shared_out_over_many_parts_is_found_in_any_order(
    arguments: dict[str, Any],
) -> None:
    """Over labels, segments, values and lists, each part in a writing of its own."""
    found = _judged(arguments, _private(KEY))

    assert LabelVerdict.DENY is found.verdict
    assert {RuleCode.PRIVATE_DATA, RuleCode.PRIVATE_DATA_IN_URL} & {r.code for r in found.rules}


def test_parts_that_do_not_make_the_string_are_clean() -> None:
    """Pieces of it are words as well."""
    parts = ["live", "music", "sk", "today", "in", "the", "city", "7d"]

    assert _private(KEY).find_shared_out(parts) is None
    assert LabelVerdict.ALLOW is _judged({"query": parts}, _private(KEY)).verdict


@settings(max_examples=50)
@given(st.text(max_size=200))
def test_what_a_text_says_is_always_told(text: str) -> None:
    """Whatever it is; and the text itself is among it."""
    assert text == next(forms_of(text))
    assert text in said_by(text)
    assert _private(WIDE).find(text) in {None, *Leak}


SHAPES = {
    "numbers": "0x61,98, 0143 ",
    "escapes": "\\x41\\101\\41 \\N{LATIN SMALL LETTER A}",
    "mixed": "&#x41;%41=41\\x41",
    "names without an end": "\\N{",
    "references without an end": "&#x",
    "quoted": "=41=\n",
    "host names": "xn--a-",
    "tags": "\U000e0041",
    "selectors": "\ufe01",
    "expanding": "\ufdfa",
    "words": "chr u x 0x ",
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_work_is_linear_in_the_text(shape: str) -> None:
    """Twice the text says about twice as much."""

    def work(size: int) -> int:
        text = (shape * (size // len(shape) + 1))[:size]
        return sum(map(len, forms_of(text)))

    assert work(1_600) <= 2.3 * work(800) + 500
