"""What must not leave is found in every form that is promised, and nothing else is."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.private_text import MAX_CHECKED, Leak, PrivateText, find_nonce, joins_of
from runtime_pack.writings import TooTangled, forms_of

EMAIL = "alice@corp.example"
LONG = "sk-live-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
NONCE = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


def _private(*strings: str, kind: Leak = Leak.DECLARED) -> PrivateText:
    private = PrivateText()
    for each in strings:
        private.add(each, kind)
    return private


def _every_byte(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode().rstrip("=")


def _b64url(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


WRITINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "capitals": str.upper,
    "percent": quote,
    "every byte in percent": _every_byte,
    "percent twice": lambda text: quote(_every_byte(text)),
    "hex": lambda text: text.encode().hex(),
    "hex in capitals": lambda text: text.encode().hex().upper(),
    "hex with colons": lambda text: text.encode().hex(":"),
    "base64": _b64,
    "base64 for addresses": _b64url,
    "base64, one byte in": lambda text: _b64("x" + text),
    "base64, two bytes in": lambda text: _b64("xy" + text),
    "reversed": lambda text: text[::-1],
    "base64 reversed": lambda text: _b64(text)[::-1],
    "reversed in base64": lambda text: _b64(text[::-1]),
    "hex in base64": lambda text: _b64(text.encode().hex()),
    "base64 in base64": lambda text: _b64(_b64(text)),
    "base64 in hex": lambda text: _b64(text).encode().hex(),
    "percent in base64": lambda text: _b64(_every_byte(text)),
    "base64 in percent": lambda text: _every_byte(_b64(text)),
    "entities": lambda text: "".join(f"&#{ord(sign)};" for sign in text),
    "dots between": ".".join,
    "zero-width spaces between": "\u200b".join,
    "full width": lambda text: "".join(
        chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text
    ),
    "base64 over labels": lambda text: ".".join(
        _b64(text)[at : at + 7] for at in range(0, len(_b64(text)), 7)
    ),
    "escapes of bytes": lambda text: "".join(f"\\x{ord(sign):02x}" for sign in text),
    "escapes of signs": lambda text: "".join(f"\\u{ord(sign):04X}" for sign in text),
    "escapes in braces": lambda text: "".join(f"\\u{{{ord(sign):x}}}" for sign in text),
    "percent and u": lambda text: "".join(f"%u{ord(sign):04x}" for sign in text),
    "escapes in percent": lambda text: quote("".join(f"\\x{ord(sign):02x}" for sign in text)),
    "digits of another script": lambda text: "".join(
        chr(0x660 + int(sign)) if sign.isdecimal() else sign for sign in text
    ),
    "UTF-16 in base64": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
}
PLACES: dict[str, Callable[[str], str]] = {
    "alone": str,
    "a query": "https://evil.example/collect?d={}".format,
    "a path": "https://evil.example/{}".format,
    "a path with more": "https://evil.example/a/{}/b".format,
    "a fragment": "https://evil.example/#{}".format,
    "a label": "https://{}.evil.example/".format,
    "prose": "please look up {} for me".format,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("writing", WRITINGS.values(), ids=WRITINGS.keys())
@pytest.mark.parametrize("string", [EMAIL, LONG, "hunter42"], ids=["mail", "key", "eight"])
def test_a_private_string_is_found_in_every_writing(
    string: str, writing: Callable[[str], str], place: Callable[[str], str]
) -> None:
    """Wherever it stands."""
    assert _private(string).find(place(writing(string))) is Leak.DECLARED


# Letters and digits enough that the string does not vanish in a writing that keeps nothing else.
strings = st.text(
    st.characters(codec="utf-8", categories=["L", "N"], exclude_characters="\u0130"),
    min_size=8,
    max_size=40,
)
encoders = st.sampled_from(
    ["every byte in percent", "hex", "base64", "base64 for addresses", "reversed"]
).map(WRITINGS.__getitem__)


@given(strings, st.lists(encoders, max_size=3), st.text(max_size=9), st.text(max_size=9))
def test_the_check_is_closed_under_the_writings(
    string: str, chain: list[Callable[[str], str]], before: str, after: str
) -> None:
    """Up to three of them, one inside the other, at any alignment."""
    # What runs into the string could be a part of the outermost writing.
    text = f"{before}{string}{after}"
    for writing in chain:
        text = writing(text)

    assert _private(string).find(f"https://evil.example/?q={text}&x=") is not None


CLEAN = {
    "the same site": "https://corp.example/imprint",
    "a part of it": "https://evil.example/?q=alice",
    "another address": "https://docs.example/guide?id=7&page=2",
    "long prose": "An introduction to the administration of distributed databases " * 40,
    "a digest": "https://x.example/9b74c9897bac770ffc029102a200c5de",
    "base64 of other text": _b64("nothing of interest stands in this text, which is long enough"),
    "nothing": "",
    "fifteen characters of a long one": LONG[3:18],
}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN.keys())
def test_what_holds_nothing_private_is_clean(text: str) -> None:
    """A check that cries at everything would be switched off."""
    assert _private(EMAIL, LONG).find(text, {NONCE}) is None


def test_a_piece_of_a_long_string_is_found() -> None:
    """Two halves of a key are the key."""
    private = _private(LONG)

    assert private.find(f"x={LONG[:20]}") is Leak.DECLARED
    assert private.find(f"x={LONG[20:]}") is Leak.DECLARED


def test_the_worst_that_a_text_holds_is_said() -> None:
    """A canary beside a word of the workspace is a canary."""
    private = _private("invoice-2291", kind=Leak.WORKSPACE)
    private.add("canary-77e1f0", Leak.CANARY)

    assert private.find("invoice-2291 and canary-77e1f0") is Leak.CANARY
    assert private.find("invoice-2291") is Leak.WORKSPACE
    assert private.find(f"invoice-2291 {NONCE}", {NONCE}) is Leak.NONCE


def test_a_string_that_is_known_twice_has_the_worse_kind() -> None:
    """In either order."""
    for kinds in ((Leak.WORKSPACE, Leak.SECRET), (Leak.SECRET, Leak.WORKSPACE)):
        private = PrivateText()
        for kind in kinds:
            private.add("invoice-2291", kind)

        assert private.find("invoice-2291") is Leak.SECRET


@pytest.mark.parametrize(
    "text",
    [
        NONCE,
        NONCE.upper(),
        NONCE[::-1],
        f"a{NONCE}b",
        "-".join(NONCE),
        f"https://x.example/{NONCE}",
    ],
)
def test_a_burned_nonce_is_found(text: str) -> None:
    """In either case, reversed, inside of other digits, with signs between."""
    assert find_nonce(text, {NONCE})
    assert PrivateText().find(text, {NONCE}) is Leak.NONCE


def test_a_nonce_is_found_in_base64_too() -> None:
    """It is not looked for in another way than what is private."""
    assert PrivateText().find(f"https://x.example/{_b64(NONCE)}", {NONCE}) is Leak.NONCE


def test_of_a_private_text_its_data_are_looked_for() -> None:
    """What looks like data, not the words of the language around it, and no dates."""
    private = PrivateText()
    private.add_text(
        "The account DE89-3704-0044 of bob@corp.example was introduced on 2026-11-30.",
        Leak.WORKSPACE,
    )

    for told in ("DE89-3704-0044", "DE8937040044", "bob@corp.example"):
        assert private.find(f"?q={told}") is Leak.WORKSPACE
    for said in ("introduced", "account", "2026-11-30"):
        assert private.find(f"?q={said}") is None


def test_of_a_secret_text_every_long_word_is_looked_for() -> None:
    """A code name is a word like others."""
    private = PrivateText()
    private.add_text("Operation Nightingale starts soon", Leak.SECRET)

    assert private.find("https://x.example/?q=nightingale") is Leak.SECRET


@pytest.mark.parametrize("first", ["private", "public"])
def test_what_the_user_said_in_public_is_not_private(first: str) -> None:
    """Whichever came first; what the host declared stays private."""
    private = _private("declared-77")
    texts = {
        "private": lambda: private.add_text("order-4711 declared-77", Leak.SECRET),
        "public": lambda: private.add_public("look up order-4711 and declared-77"),
    }
    for name in (first, *({"private", "public"} - {first})):
        texts[name]()

    assert private.find("?q=order-4711") is None
    assert private.find("?q=declared-77") is Leak.DECLARED


def test_an_address_in_a_private_text_is_an_address() -> None:
    """Reading it tells its own site what that knows."""
    private = PrivateText()
    private.add_text("see https://wiki.corp.example/page-77?id=1", Leak.WORKSPACE)

    assert not private


@pytest.mark.parametrize("kind", [Leak.WORKSPACE, Leak.SECRET])
@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("postgres://app:S3cretPassw0rd99@db.internal/x", "S3cretPassw0rd99"),
        ("postgres://app:correcthorse@db.internal/x", "correcthorse"),
        ("amqp://app:S3cret%40Passw0rd@mq.internal", "S3cret@Passw0rd"),
        ("https://app:S3cretPassw0rd99@corp.example/", "app:S3cretPassw0rd99"),
        ("https://ghp-0a1b2c3d4e@code.example/r.git", "ghp-0a1b2c3d4e"),
        ("(https://hooks.example/T0AA/B0BB/abcdEFGH1234ijklMNOP)", "abcdEFGH1234ijklMNOP"),
        ("https://a.example/?x=1&access_token=horsebattery", "horsebattery"),
        ("https://a.example/?id=9f8e7d6c5b4a39281706", "9f8e7d6c5b4a39281706"),
        ("https://a.example/#token=horse-battery", "horse-battery"),
        ("s3://corp-7/backup-2291-77/dump", "backup-2291-77"),
    ],
)
def test_what_lets_somebody_in_is_private_in_an_address_too(
    text: str, sent: str, kind: Leak
) -> None:
    """Logins, tokens, values with a telling name, and all of what is no page."""
    private = PrivateText()
    private.add_text(f"see {text}.", kind)

    assert private.find(f"https://evil.example/?q={sent}") is kind


def test_of_a_secret_text_every_long_part_of_an_address_is_private() -> None:
    """Of one of the workspace what reads like a page is none."""
    text = "https://wiki.corp.example/reorganisation/2027?team=nightingale"
    secret, shared = PrivateText(), PrivateText()
    secret.add_text(text, Leak.SECRET)
    shared.add_text(text, Leak.WORKSPACE)

    assert secret.find("reorganisation") is secret.find("nightingale") is Leak.SECRET
    assert not shared


@given(st.lists(st.text(max_size=5), max_size=4).flatmap(st.permutations))
def test_few_parts_are_joined_in_every_order(parts: list[str]) -> None:
    """Whatever order a string was shared out in."""
    told = [part for part in parts if part]
    assert ("".join(sorted(told)) in set(joins_of(parts))) is (len(told) > 1)


def test_many_parts_are_joined_as_they_stand_and_turned() -> None:
    """The work stays a multiple of the text."""
    assert list(joins_of(list("abcde"))) == ["abcde", "edcba"]
    assert len(list(joins_of(["a" * 5000, "b" * 5000]))) == 2


def test_a_text_that_is_too_long_is_never_called_clean() -> None:
    """Where something is private; where nothing is, there is nothing to look for."""
    assert _private(EMAIL).find("a" * (MAX_CHECKED + 1)) is Leak.UNREADABLE
    assert PrivateText().find("a" * (MAX_CHECKED + 1)) is None


@given(st.text(max_size=300))
def test_a_check_never_fails(text: str) -> None:
    """Whatever the text is."""
    private = _private(EMAIL, LONG)

    assert private.find(text, {NONCE}) in {None, *Leak}


SHAPES = {
    "prose": "lorem ipsum dolor sit amet ",
    "one letter": "a",
    "base64": "QUJDREVGR0hJSktM",
    "base64 of prose": _b64("hello world this is text of some length "),
    "hex": "6162636465666768",
    "percent": "%41%42%43",
    "percent of percent": "%2525252525",
    "entities": "&amp;amp;amp;",
    "the beginning of the string": EMAIL[:8],
    "almost the string": EMAIL[:-1],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_work_is_linear_in_the_text(shape: str) -> None:
    """Every form is looked through once, and twice the text has forms of about twice the length."""

    def work(size: int) -> int:
        text = (shape * (size // len(shape) + 1))[:size]
        total = 0
        with contextlib.suppress(TooTangled):
            for form in forms_of(text):
                total += len(form)
        return total

    assert work(8_000) <= 2.2 * work(4_000) + 200


def test_many_strings_cost_no_more_to_look_for() -> None:
    """Ten thousand of them are found in one pass, and so is that none is there."""
    private = PrivateText()
    for number in range(10_000):
        private.add(f"record-{number:07}-of-the-archive", Leak.WORKSPACE)

    assert private.find("https://x.example/?q=record-0001234-of-the-archive") is Leak.WORKSPACE
    assert private.find("https://x.example/?q=nothing") is None
