"""Our parser beside two others: whatever we admit, all of them send to the same place.

`ada_url` is the WHATWG algorithm, as browsers have it; `yarl` is what our own client is built on.
Each accepts much that we refuse. That is not compared: a bypass needs a URL that the guard admits
for one host and the client sends to another.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import ada_url
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yarl import URL

from egress import Target, UrlRejected, parse_target, resolve_location
from egress.testing import references, targets, urls

_CASES = Path(__file__).resolve().parents[2] / "cases" / "egress.jsonl"

Place: TypeAlias = tuple[str, str, int]
"""Scheme, host as it would be connected to, port."""
Parser: TypeAlias = Callable[[str], Place | None]
_DEFAULTS = {"http": 80, "https": 443}


def _place(scheme: str, host: str, port: int | None) -> Place:
    # One final dot is the same host (R2); ada keeps it.
    host = host.strip("[]").removesuffix(".")
    try:
        address = ip_address(host)
    except ValueError:
        return scheme, host, port or _DEFAULTS.get(scheme, 0)
    # An IPv4-mapped address is the IPv4, to us and to the network.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return scheme, str(mapped or address), port or _DEFAULTS.get(scheme, 0)


def _ours(target: Target) -> Place:
    return target.scheme, target.host, target.port


def _whatwg(text: str) -> Place | None:
    try:
        url = ada_url.URL(text)
    except ValueError:
        return None
    return _place(url.protocol.removesuffix(":"), url.hostname, int(url.port) if url.port else None)


def _yarl(text: str) -> Place | None:
    try:
        url = URL(text)
    except ValueError:
        return None
    return _place(url.scheme, url.raw_host or "", url.port)


def _sent(text: str) -> Place | None:
    """What our client hands to aiohttp: the rebuilt text, taken as it is."""
    url = URL(text, encoded=True)
    return _place(url.scheme, url.raw_host or "", url.port)


def _stdlib(text: str) -> Place | None:
    parts = urlsplit(text)
    return _place(parts.scheme, parts.hostname or "", parts.port)


_ON_THE_REBUILT: tuple[Parser, ...] = (_whatwg, _yarl, _sent, _stdlib)


def _check(text: str, target: Target) -> None:
    """All agree on the rebuilt text, and those that read the typed one agree or refuse."""
    for parser in _ON_THE_REBUILT:
        assert _ours(target) == parser(target.url), (parser.__name__, target.url)
    trimmed = text.strip(" \t\r\n")
    authority = trimmed.split("/", 3)[2].partition("?")[0].partition("#")[0]
    if authority.isascii():
        assert _ours(target) == _whatwg(text)
        assert _ours(target) == _yarl(trimmed)
    else:
        # The tables of two Unicode versions may differ in what they know, not in what it means.
        # yarl falls back to IDNA 2003, where another host comes out of the same letters: the
        # reason why nothing but the rebuilt text is ever handed to it.
        assert _whatwg(text) in {None, _ours(target)}


def _listed() -> list[str]:
    rows = [json.loads(line) for line in _CASES.read_text().splitlines()]
    return sorted({row["url"] for row in rows if row["kind"] != "proxy"})


_ODD = [
    "HTTP://EXAMPLE.ORG:00080/?#",
    "http://example.org.:443",
    "http://[::FFFF:10.0.0.1]:80/",
    "http://[0:0:0:0:0:ffff:a00:1]/",
    "http://[2001:DB8::0:1]/a/../b",
    "http://1.1.1.1.example.org/@:80",
    "http://example.org?@evil.test",
    "http://example.org#@evil.test/",
    "http://example.org/..//evil.test/%2e%2e/",
    "http://ex_ample.org/\u00fc?\u00fc",
    "http://xn--ls8h.la/",
    "http://-a-.b/",
    "https://fa\u00df.de/",
    "https://\u212aelvin.example/",
    "https://a\u3002b\uff0ec\uff61d/",
    "\r\n http://\u2603.net\t",
]


@pytest.mark.parametrize("text", [*_listed(), *_ODD])
def test_listed_urls(text: str) -> None:
    """Every URL of the case table and of the odd ones that we admit."""
    try:
        target = parse_target(text)
    except UrlRejected:
        return
    _check(text, target)


def test_odd_urls_are_admitted() -> None:
    """The list above compares something."""
    assert len(_ODD) == len([parse_target(text) for text in _ODD])


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """A listed URL with a few characters put in or over others, most of them near the host."""
    text = draw(st.sampled_from([*_listed(), *_ODD]))
    odd = st.sampled_from(list("aZ09-_.:/@[]\\?# \t%\u00df\u00fc\u200b\u3002\uff0e\uff11\u0130K"))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(text), 40)))
        new = draw(st.one_of(odd, st.characters(blacklist_categories=["Cs"])))
        text = text[:place] + new + text[place + draw(st.integers(0, 1)) :]
    return text


# Most mutated texts are refused.
@settings(max_examples=3 * settings().max_examples)
@example("http://exa\u00dfmple.org/")
@example("http://example.\u0131org\u058c\u3b80/")
@given(st.one_of(_mutated(), urls()))
def test_generated_urls(text: str) -> None:
    """Whatever we admit of mutated and generated texts."""
    try:
        target = parse_target(text)
    except UrlRejected:
        return
    _check(text, target)


@given(targets(), references())
def test_redirects_lead_to_the_same_place(base: Target, location: str) -> None:
    """A `Location` that we follow is joined by the WHATWG algorithm to the same place."""
    try:
        target = resolve_location(base, location)
    except UrlRejected:
        return
    if location.isascii():
        joined = _whatwg(ada_url.join_url(base.url, location))
        assert _ours(target) == joined
    for parser in _ON_THE_REBUILT:
        assert _ours(target) == parser(target.url)
