"""Admission of URLs (R1-R3) and redirect references (R12)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from egress import Target, UrlRejected, parse_target, resolve_location
from egress.errors import UrlReason
from egress.testing import references, targets, urls
from egress.url import MAX_URL_CHARACTERS

_BASE = parse_target("https://example.org/a/b?x=1")

_ADMITTED = [
    ("http://example.org", "http://example.org/"),
    ("HTTP://EXAMPLE.ORG/A?B#c", "http://example.org/A?B"),
    ("\r\n\t http://example.org/ \t", "http://example.org/"),
    ("https://example.org:443/", "https://example.org/"),
    ("https://example.org:/", "https://example.org/"),
    ("https://example.org:00080/", "https://example.org:80/"),
    ("http://example.org:443/", "http://example.org:443/"),
    ("http://example.org:65535/", "http://example.org:65535/"),
    ("http://example.org?@evil.test", "http://example.org/?@evil.test"),
    ("http://example.org#@evil.test", "http://example.org/"),
    ("http://example.org/?", "http://example.org/"),
    ("http://example.org/#", "http://example.org/"),
    ("http://example.org/a b", "http://example.org/a%20b"),
    ("http://example.org/ü?ü", "http://example.org/%C3%BC?%C3%BC"),
    ("http://example.org/%zz%41%", "http://example.org/%25zz%41%25"),
    ("http://example.org/a/../b/./c", "http://example.org/b/c"),
    ("http://example.org/../..", "http://example.org/"),
    ("http://example.org/a/%2e%2E/b", "http://example.org/b"),
    ("http://example.org/a/..", "http://example.org/"),
    ("http://example.org//evil.test/", "http://example.org//evil.test/"),
    ("http://example.org/@:;,|[]", "http://example.org/@:;,%7C%5B%5D"),
    ("http://8.8.8.8/", "http://8.8.8.8/"),
    ("http://[::1]:8080/", "http://[::1]:8080/"),
    ("http://[2001:DB8:0:0::1]/", "http://[2001:db8::1]/"),
    ("http://[::FFFF:10.0.0.1]/", "http://10.0.0.1/"),
    ("http://[::ffff:a00:1]:80/", "http://10.0.0.1/"),
    ("http://1.1.1.1.example.org/", "http://1.1.1.1.example.org/"),
    ("http://360.cn./", "http://360.cn/"),
    ("http://-a_b-.x--y.org/", "http://-a_b-.x--y.org/"),
    ("http://faß.de/", "http://xn--fa-hia.de/"),
    ("http://\u2603.net/", "http://xn--n3h.net/"),
    ("http://xn--ls8h.la/", "http://xn--ls8h.la/"),
    ("http://a\u3002b\uff0ec\uff61d/", "http://a.b.c.d/"),
    ("http://" + "a" * 63 + ".org/", "http://" + "a" * 63 + ".org/"),
    ("http://" + ".".join(["a" * 62] * 4) + "/", "http://" + ".".join(["a" * 62] * 4) + "/"),
]

_R1 = [
    *(
        "",
        " ",
        "http://./",
        "example.org",
        "//example.org/",
        "/x",
        "?",
        "http",
        "http:",
        "http:/",
        "http://",
    ),
    *("http:///x", "http:////x", "http:example.org", "http:/example.org", "https:///example.org"),
    *("ftp://example.org/", "file:///etc/hosts", "javascript:alert(1)", "data:text/html,x"),
    *("ws://example.org/", "tcp://example.org", "httpx://example.org/", "http+unix://x/"),
    *("\u017fhttp://x/", "http\u017f://example.org/", "ht\ttp://example.org/", "h\x00ttp://x/"),
    *("http://u@example.org/", "http://u:p@example.org/", "http://@example.org/", "http://:@x/"),
    *("http://a@b@c/", "http://example.org:80@evil.test/", "http://[::1]@evil.test/"),
    *("http://exa%6dple.org/", "http://example.org%00/", "http://[fe80::1%25eth0]/"),
    *("http://exa mple.org/", "http://example.org /", "http:// example.org/", "http://a\u00a0b/"),
    *("http://a\u3000b/", "http://a\u2028b/", "http://example.org\x85/"),
    *("http://example.org\\/", "http:\\\\example.org\\", "http://example.org/\\", "http://x/?\\"),
    *("http://x/#\\", "http://example.org\\@evil.test/"),
    *("http://example.org/\r\nX: 1", "http://x/\x01", "http://x/a\tb", "http://x/\x7f"),
    *("http://example.org\x00.evil.test/", "\x0bhttp://example.org/", "http://example.org/\x0c"),
    *("http://example.org:0/", "http://example.org:65536/", "http://example.org:000080/"),
    *("http://example.org:+80/", "http://example.org:-80/", "http://example.org:8_0/"),
    *("http://example.org:\uff18\uff10/", "http://example.org:\u0668\u0660/", "http://x:80:443/"),
    *("http://x:http/", "http://x:0x50/", "http://x:8 0/", "http://:80/", "http://::1/"),
    *("http://x/\ud800", "http://\udc80/", "http://x/" + "a" * MAX_URL_CHARACTERS),
    *("http://x/" + "\u00fc" * 3000, " " * MAX_URL_CHARACTERS + "http://x/"),
]

_R2 = [
    *("http://.example.org/", "http://exam..ple.org/", "http://example.org../"),
    *("http://" + "a" * 64 + ".org/", "http://" + ".".join(["a" * 63] * 4) + "/"),
    *("http://exa!mple.org/", "http://exa*mple.org/", "http://exa,mple.org/", "http://a;b/"),
    *("http://a|b/", "http://a^b/", "http://a`b/", 'http://a"b/', "http://a<b>/", "http://{a}/"),
    *("http://a'b/", "http://a$b/", "http://a&b/", "http://a=b/", "http://a+b/", "http://(a)/"),
    *("http://a~b/", "http://*.example.org/"),
    *("http://ex\u200bample.org/", "http://ex\u00adample.org/", "http://ex\u200dample.org/"),
    *("http://ex\u2060ample.org/", "http://ex\ufe0fample.org/", "http://ex\u202eample.org/"),
    *("http://ex\u180eample.org/", "http://ex\u3164ample.org/", "http://ex\U000e0061ample.org/"),
    *("http://ex\ufeffample.org/", "http://\u115fa.org/", "http://a\u034fb.org/"),
    *("http://\u2100.org/", "http://a\uff0fb.org/", "http://a\uff20b.org/", "http://a\uff1a80/"),
    *("http://a\uff1fb/", "http://a\uff03b/", "http://a\uff0541/", "http://\u2488.org/"),
    *("http://xn--a/", "http://xn--/", "http://xn---/", "http://xn--example-/", "http://XN--A/"),
    *("http://xn--a-0/", "http://xn--b\u00fccher.de/", "http://xn--1-0hc/", "http://\u05d0a.org/"),
    *("http://xn--mgba3gch31f060k.com/", "http://\u3099a.org/", "http://a." + "xn--99999999/"),
    *("http://\ufdfa.org/", "http://" + "\u00fc" * 64 + ".org/"),
]

_R3 = [
    *("http://0/", "http://00/", "http://1/", "http://127.1/", "http://127.0.1/", "http://0x7f.1/"),
    *("http://0x7f000001/", "http://0X7F.0.0.1/", "http://2130706433/", "http://017700000001/"),
    *("http://0177.0.0.1/", "http://127.0.0.01/", "http://127.0.0.1./", "http://127.0.0.256/"),
    *("http://1.2.3.4.5/", "http://a.1/", "http://a.0x/", "http://a.0x7f/", "http://0x/"),
    *("http://example.123/", "http://1.2.3.4.0x5/", "http://99999999999/", "http://a.1./"),
    *("http://\uff11\uff12\uff17.0.0.1/", "http://\u2460\u2461\u2466.0.0.1/", "http://1\u30022/"),
    *("http://127\u30020\u30020\u30021/", "http://127.0.0.\u00b9/", "http://\U0001d7cf/"),
    *(
        "http://[/",
        "http://[]/",
        "http://[:]/",
        "http://[::1/",
        "http://[::1]x/",
        "http://[::1].org/",
    ),
    *("http://[1.2.3.4]/", "http://[v1.x]/", "http://[::12345]/", "http://[0::0::0]/"),
    *("http://[::01.2.3.4]/", "http://[::g]/"),
    *(
        "http://[[::1]]/",
        "http://[::1]]/",
        "http://[\uff1a\uff1a1]/",
        "http://[1:2:3:4:5:6:7:8:9]/",
    ),
]


@pytest.mark.parametrize(("text", "canonical"), _ADMITTED)
def test_admitted_text_has_one_canonical_form(text: str, canonical: str) -> None:
    """What is admitted is rebuilt, and its canonical text names the same target."""
    target = parse_target(text)

    assert canonical == target.url == target.document_url
    assert target == parse_target(canonical)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        *(("R1", text) for text in _R1),
        *(("R2", text) for text in _R2),
        *(("R3", text) for text in _R3),
    ],
)
def test_refused_text_names_the_rule(rule: str, text: str) -> None:
    """Each rule refuses what two parsers were seen to read differently."""
    with pytest.raises(UrlRejected) as caught:
        parse_target(text)

    assert rule == caught.value.rule
    assert len(str(caught.value)) < 200


def test_three_slashes_are_refused_for_themselves() -> None:
    """The rule is R12, not the empty host that one reading would find."""
    with pytest.raises(UrlRejected) as caught:
        resolve_location(_BASE, "///evil.test/")

    assert (caught.value.rule, caught.value.reason) == ("R12", UrlReason.SLASHES)


@pytest.mark.parametrize(
    "label", ["\u00dcn", "a\u0308b", "\uff41\u00fc", "\u00fc\u00ad", "\u0378", "\ud800"]
)
def test_an_a_label_decodes_to_what_would_be_encoded(label: str) -> None:
    """An A-label of upper case, another normal form, mapped or unassigned characters is refused."""
    spelled = "xn--" + label.encode("punycode").decode("ascii")

    with pytest.raises(UrlRejected):
        parse_target(f"http://{spelled}/")


def test_an_a_label_has_one_spelling() -> None:
    """`xn---1yhyd` decodes to what `xn--1yhyd` decodes to: only the one it encodes to is a name."""
    assert parse_target("http://xn--1yhyd.org/").host == "xn--1yhyd.org"
    with pytest.raises(UrlRejected):
        parse_target("http://xn---1yhyd.org/")


@pytest.mark.parametrize("value", [None, 5, b"http://example.org/", ["http://example.org/"]])
def test_what_is_not_text_is_rejected(value: Any) -> None:
    """A value of another type is a rejection, not a TypeError."""
    for call in (parse_target, lambda given_value: resolve_location(_BASE, given_value)):
        with pytest.raises(UrlRejected) as caught:
            call(value)

        assert caught.value.reason is UrlReason.NOT_TEXT


def test_the_message_holds_no_part_of_the_url() -> None:
    """A rejection can be logged: path and query of the text are not in it."""
    with pytest.raises(UrlRejected) as caught:
        parse_target("http://user:hunter2@example.org/secret?token=1")

    assert "hunter2" not in str(caught.value)
    assert "secret" not in repr(caught.value)


def test_a_target_formatted_by_accident_shows_its_origin_only() -> None:
    """`str` and `repr` of a target hold no path and no query."""
    target = parse_target("https://example.org/secret?token=1")

    assert str(target) == "https://example.org"
    assert "secret" not in f"{target!r}"


_REFERENCES = [
    ("", "/a/b?x=1"),
    ("#frag", "/a/b?x=1"),
    ("?q", "/a/b?q"),
    ("?", "/a/b"),
    ("/b", "/b"),
    ("c", "/a/c"),
    ("./c", "/a/c"),
    ("../c", "/c"),
    ("../../../c", "/c"),
    (".", "/a/"),
    ("..", "/"),
    ("c/", "/a/c/"),
    ("c?d#e", "/a/c?d"),
    (" /x\t", "/x"),
    ("/x y", "/x%20y"),
    ("/\u00fc", "/%C3%BC"),
    ("/caf\udce9", "/caf%E9"),
    ("?caf\udce9", "/a/b?caf%E9"),
    ("/%2f%2fevil.test", "/%2f%2fevil.test"),
    ("/.//evil.test", "//evil.test"),
    ("..//evil.test", "//evil.test"),
    ("@evil.test", "/a/@evil.test"),
    ("./a:b", "/a/a:b"),
    ("/a:b", "/a:b"),
    ("?a:b", "/a/b?a:b"),
    ("/http://evil.test/", "/http://evil.test/"),
    ("\u2028", "/a/%E2%80%A8"),
]


@pytest.mark.parametrize(("reference", "path_query"), _REFERENCES)
def test_a_relative_reference_keeps_the_origin(reference: str, path_query: str) -> None:
    """RFC 3986 section 5 for references without authority: only path and query change."""
    target = resolve_location(_BASE, reference)

    assert path_query == target.path_query
    assert target.origin == _BASE.origin


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("//www.example.org/x", "https://www.example.org/x"),
        ("//www.example.org:80", "https://www.example.org:80/"),
        ("http://example.org", "http://example.org/"),
        ("HTTPS://EXAMPLE.ORG./x", "https://example.org/x"),
        ("//[::1]", "https://[::1]/"),
    ],
)
def test_a_reference_with_authority_is_parsed_as_a_url(reference: str, url: str) -> None:
    """An absolute or scheme-relative reference goes through R1-R3."""
    assert url == resolve_location(_BASE, reference).url


@pytest.mark.parametrize(
    "reference",
    [
        *("//", "///", "///evil.test/x", "////evil.test/x", "http:path", "http:/x", "http:///x"),
        *("https:", "https://", "javascript:alert(1)", "data:text/html,x", "mailto:x", "a:b"),
        *(
            "1a:b",
            ":80/x",
            "\\\\evil.test",
            "/\\evil.test",
            "\\x",
            "/x\r\nSet-Cookie: a=b",
            "/\x00",
        ),
        *("/a\tb", "/\x7f", "//user@example.org/", "//example.org@evil.test/", "//%65vil.test/"),
        *("https://user:pw@example.org/", "//evil test/", "//0x7f.1/", "http://127.1/", "\ud800"),
        *("//caf\udce9.test/", "/" + "a" * MAX_URL_CHARACTERS, "?" + "\u00fc" * 3000, "//:80/"),
        *("ws://example.org/", "http:\\\\evil.test", "//example.org:0/", "///" + "x" * 10),
    ],
)
def test_a_reference_that_readers_disagree_on_is_refused(reference: str) -> None:
    """Every other form of `Location` is a rejection."""
    with pytest.raises(UrlRejected):
        resolve_location(_BASE, reference)


def _outcome(parse: Callable[..., Target], *arguments: object) -> Target | str:
    """The target, or the rule that refused."""
    try:
        return parse(*arguments)
    except UrlRejected as error:
        return error.rule


@example("http://[::ffff:169.254.169.254]/")
@example("http://\U0001d7cf\u3002\uff11/")
@example("http://xn--0\u0338/")
@given(st.one_of(st.text(), urls()))
def test_parse_is_total(raw: str) -> None:
    """Any text gives a target or a rejection, nothing else."""
    found = _outcome(parse_target, raw)

    assert isinstance(found, Target) or found in {"R1", "R2", "R3"}


@given(targets(), st.one_of(references(), st.text()))
def test_join_is_total_and_canonical(base: Target, reference: str) -> None:
    """Any reference gives a canonical target or a rejection."""
    found = _outcome(resolve_location, base, reference)

    if isinstance(found, Target):
        assert found == parse_target(found.url)
    else:
        assert found in {"R1", "R2", "R3", "R12"}


@given(urls())
def test_canonical_form_is_idempotent_and_agrees_with_a_second_parser(raw: str) -> None:
    """parse∘format is the identity, and yarl reads the canonical text as we do."""
    try:
        target = parse_target(raw)
    except UrlRejected:
        return

    assert target == parse_target(target.url)
    assert target.url.isascii()
    assert len(target.url) <= MAX_URL_CHARACTERS
    for other in (URL(target.url), URL(target.url, encoded=True)):
        assert (target.scheme, target.host, target.port) == (
            other.scheme,
            other.raw_host,
            other.port,
        )
        assert other.raw_user is None
        assert other.raw_password is None
        assert not other.raw_fragment
    # What aiohttp puts on the wire is what was checked.
    assert target.path_query == URL(target.url, encoded=True).raw_path_qs


@given(st.ip_addresses())
def test_a_literal_is_compared_as_an_address(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """Every spelling of an IPv6 address is one target; an IPv4-mapped one is the IPv4."""
    if isinstance(address, ipaddress.IPv4Address):
        spellings = [str(address), f"[::ffff:{address}]"]
    else:
        spellings = [f"[{address}]", f"[{address.exploded}]", f"[{address.exploded.upper()}]"]

    found = {parse_target(f"http://{spelling}/") for spelling in spellings}
    [target] = found
    assert target.is_literal
    assert target.address == (getattr(address, "ipv4_mapped", None) or address)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["dec", "hex", "oct", "short", "dot", "zero"]))
def test_no_other_spelling_of_an_ipv4_is_admitted(number: int, spelling: str) -> None:
    """Only the canonical dotted quad names an IPv4 address."""
    quad = str(ipaddress.IPv4Address(number))
    first, second, third, fourth = quad.split(".")
    spelled = {
        "dec": str(number),
        "hex": hex(number),
        "oct": f"0{number:o}",
        "short": f"{first}.{number & 0xFFFFFF}",
        "dot": quad + ".",
        "zero": f"{first}.{second}.{third}.0{fourth}",
    }[spelling]

    with pytest.raises(UrlRejected):
        parse_target(f"http://{spelled}/")
