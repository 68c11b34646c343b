"""The strict reading of a request head: every refusal, and what is left of what passes."""

from __future__ import annotations

import base64

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress._proxy_forward import downstream_headers, upstream_request
from egress.proxy_head import (
    MAX_HEAD_BYTES,
    Basic,
    Bearer,
    ConnectRequest,
    ForwardRequest,
    Framing,
    HeadReason,
    HeadRefused,
    ProxyRequest,
    end_of_head,
    parse_head,
)
from egress.testing import urls
from egress.url import parse_target

_HOP_FIELDS = {
    "connection",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


def _head(line: str, *fields: str) -> bytes:
    return "\r\n".join((line, *fields, "", "")).encode("latin-1")


def _connect(authority: str, *fields: str) -> ProxyRequest | HeadRefused:
    host = fields or (f"Host: {authority}",)
    return parse_head(_head(f"CONNECT {authority} HTTP/1.1", *host))


def _get(url: str, *fields: str, method: str = "GET") -> ProxyRequest | HeadRefused:
    return parse_head(_head(f"{method} {url} HTTP/1.1", *(fields or ("Host: a.test",))))


def _reason(found: ProxyRequest | HeadRefused) -> HeadReason | None:
    return found.reason if isinstance(found, HeadRefused) else None


@pytest.mark.parametrize(
    ("authority", "host", "port"),
    [
        ("example.org:443", "example.org", 443),
        ("EXAMPLE.org.:443", "example.org", 443),
        ("example.org:22", "example.org", 22),
        ("example.org:0443", "example.org", 443),
        ("8.8.8.8:443", "8.8.8.8", 443),
        ("[2606:4700::1]:443", "2606:4700::1", 443),
        ("[2606:4700:0::1]:443", "2606:4700::1", 443),
        ("[::ffff:8.8.8.8]:443", "8.8.8.8", 443),
        ("ex_ample.org:65535", "ex_ample.org", 65535),
    ],
)
def test_authority_form(authority: str, host: str, port: int) -> None:
    """Host and port, in every spelling that R1 to R3 know, become one target."""
    found = _connect(authority)

    assert isinstance(found, ConnectRequest)
    assert (host, port, "https") == (found.target.host, found.target.port, found.target.scheme)


@pytest.mark.parametrize(
    ("authority", "reason"),
    [
        ("example.org", HeadReason.PORT_MISSING),
        ("example.org:", HeadReason.PORT_MISSING),
        ("[::1]", HeadReason.PORT_MISSING),
        ("[::1]:", HeadReason.PORT_MISSING),
        ("[fe80::1%25eth0]:443", HeadReason.TARGET),
        (":443", HeadReason.TARGET),
        ("example.org:0", HeadReason.TARGET),
        ("example.org:65536", HeadReason.TARGET),
        ("example.org:000443", HeadReason.TARGET),
        ("example.org:+443", HeadReason.PORT_MISSING),
        ("example.org:443:443", HeadReason.TARGET),
        ("::1:443", HeadReason.TARGET),
        ("127.1:443", HeadReason.TARGET),
        ("0x7f.0.0.1:443", HeadReason.TARGET),
        ("2130706433:443", HeadReason.TARGET),
        ("127.0.0.1.:443", HeadReason.TARGET),
        ("0177.0.0.1:443", HeadReason.TARGET),
        ("[::1]x:443", HeadReason.TARGET),
        ("[::1:443", HeadReason.TARGET),
        ("[v1.a]:443", HeadReason.TARGET),
        ("user@example.org:443", HeadReason.REQUEST_FORM),
        ("@example.org:443", HeadReason.REQUEST_FORM),
        ("example.org:443/", HeadReason.REQUEST_FORM),
        ("example.org:443?x", HeadReason.REQUEST_FORM),
        ("example.org:443#x", HeadReason.REQUEST_FORM),
        ("https://example.org:443", HeadReason.REQUEST_FORM),
        ("/", HeadReason.REQUEST_FORM),
        ("example%2eorg:443", HeadReason.TARGET),
        ("example\\.org:443", HeadReason.TARGET),
        ("a..b:443", HeadReason.TARGET),
        ("xn--a:443", HeadReason.TARGET),
        ("a,b:443", HeadReason.TARGET),
        ("*:443", HeadReason.TARGET),
        ("b\u00fccher.example:443", HeadReason.SYNTAX),
    ],
)
def test_authority_that_is_refused(authority: str, reason: HeadReason) -> None:
    """No port, no host, anything beside the two: 400, before any lookup."""
    assert reason == _reason(_connect(authority))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/x", HeadReason.REQUEST_FORM),
        ("*", HeadReason.REQUEST_FORM),
        ("a.test:80", HeadReason.REQUEST_FORM),
        ("a.test", HeadReason.REQUEST_FORM),
        ("//a.test/", HeadReason.REQUEST_FORM),
        ("https://a.test/", HeadReason.REQUEST_FORM),
        ("HTTPS://a.test/", HeadReason.REQUEST_FORM),
        ("ftp://a.test/", HeadReason.REQUEST_FORM),
        ("ws://a.test/", HeadReason.REQUEST_FORM),
        ("file:///etc/passwd", HeadReason.REQUEST_FORM),
        ("http:a.test", HeadReason.TARGET),
        ("http:/a.test", HeadReason.TARGET),
        ("http:///a.test", HeadReason.TARGET),
        ("http://", HeadReason.TARGET),
        ("http://user:pw@a.test/", HeadReason.TARGET),
        ("http://@a.test/", HeadReason.TARGET),
        ("http://a.test:0/", HeadReason.TARGET),
        ("http://a.test:99999/", HeadReason.TARGET),
        ("http://0x7f.1/", HeadReason.TARGET),
        ("http://a%2etest/", HeadReason.TARGET),
        ("http://a.test\\@b.test/", HeadReason.TARGET),
        ("http://a.test/#x", HeadReason.FRAGMENT),
    ],
)
def test_absolute_form_that_is_refused(url: str, reason: HeadReason) -> None:
    """Absolute-form with http is the only thing that is passed on."""
    assert reason == _reason(_get(url))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://a.test/", "a.test"),
        ("HTTP://A.TEST/", "A.Test."),
        ("http://a.test:/", "a.test:80"),
        ("http://a.test:80/", "a.test"),
        ("http://a.test", "a.test:"),
        ("http://[::1]:81/", "[0::1]:81"),
        ("http://[::ffff:1.2.3.4]/", "1.2.3.4"),
    ],
)
def test_host_is_compared_in_canonical_form(url: str, host: str) -> None:
    """Two spellings of one authority are one."""
    assert isinstance(_get(url, f"Host: {host}"), ForwardRequest)


@pytest.mark.parametrize(
    "host",
    [
        *("", "b.test", "a.test:81", "a.test, a.test", "a.test b.test", "user@a.test", "a.test/"),
        *(
            "http://a.test",
            "a.test?",
            "a.test#",
            "www.a.test",
            "a.test\\",
            "[a.test]",
            "a.test\xfc",
        ),
        *("127.0.0.1", "a.test:80:80", "a.test:-80", "a.test,b.test", "a.test:080:"),
    ],
)
def test_another_host_is_refused(host: str) -> None:
    """What names another authority, or more than one, is not guessed at."""
    assert HeadReason.HOST_DIFFERS == _reason(_get("http://a.test/", f"Host: {host}"))


def test_host_of_a_connect() -> None:
    """The port of `Host` defaults to 443 there, and must be the one that is asked for."""
    assert isinstance(_connect("a.test:443", "Host: a.test"), ConnectRequest)
    assert isinstance(_connect("a.test:443", "Host: a.test:443"), ConnectRequest)
    for authority, host in (
        ("a.test:443", "b.test:443"),
        ("a.test:443", "a.test:80"),
        ("a.test:22", "a.test"),
        ("a.test:443", "https://a.test"),
    ):
        assert HeadReason.HOST_DIFFERS == _reason(_connect(authority, f"Host: {host}"))


def test_host_may_be_absent_in_http_1_0_only() -> None:
    """Old clients send CONNECT without it; in HTTP/1.1 it is an error."""
    assert isinstance(parse_head(_head("CONNECT a.test:443 HTTP/1.0")), ConnectRequest)
    assert HeadReason.SYNTAX == _reason(parse_head(_head("CONNECT a.test:443 HTTP/1.1")))
    other = parse_head(_head("CONNECT a.test:443 HTTP/1.0", "Host: b.test:443"))
    assert HeadReason.HOST_DIFFERS == _reason(other)


def test_a_coding_is_not_of_http_1_0() -> None:
    """A reader of that version would take the chunks for the body (RFC 9112 section 6.1)."""
    found = parse_head(
        _head("POST http://a.test/ HTTP/1.0", "Host: a.test", "Transfer-Encoding: chunked")
    )

    assert HeadReason.FRAMING == _reason(found)


@pytest.mark.parametrize("version", ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0"])
def test_other_versions_are_refused(version: str) -> None:
    """Only 1.0 and 1.1 say how this head is to be read."""
    found = parse_head(_head(f"GET http://a.test/ {version}", "Host: a.test"))

    assert HeadReason.VERSION == _reason(found)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (["Content-Length: 3", "Transfer-Encoding: chunked"], HeadReason.FRAMING),
        (["Transfer-Encoding: chunked", "Content-Length: 3"], HeadReason.FRAMING),
        (["Content-Length: 3", "Content-Length: 3"], HeadReason.DUPLICATE_FIELD),
        (["Content-Length: 3", "content-length: 4"], HeadReason.DUPLICATE_FIELD),
        (["Content-Length: 3, 3"], HeadReason.FRAMING),
        (["Content-Length: 3, 4"], HeadReason.SYNTAX),
        (["Content-Length: +3"], HeadReason.SYNTAX),
        (["Content-Length: -3"], HeadReason.SYNTAX),
        (["Content-Length: 0x3"], HeadReason.SYNTAX),
        (["Content-Length:"], HeadReason.SYNTAX),
        (["Content-Length: 99999999999999999999"], HeadReason.FRAMING),
        (["Transfer-Encoding: chunked, chunked"], HeadReason.SYNTAX),
        (["Transfer-Encoding: gzip, chunked"], HeadReason.SYNTAX),
        (["Transfer-Encoding: identity"], HeadReason.SYNTAX),
        (["Transfer-Encoding: xchunked"], HeadReason.SYNTAX),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], HeadReason.DUPLICATE_FIELD),
        (["Transfer-Encoding : chunked"], HeadReason.SYNTAX),
        (["Host: a.test"], HeadReason.DUPLICATE_FIELD),
        (
            ["Proxy-Authorization: Bearer a", "Proxy-Authorization: Bearer b"],
            HeadReason.DUPLICATE_FIELD,
        ),
        (["Expect: 200-ok"], HeadReason.EXPECTATION),
        (["Expect: 100-continue", "Expect: 100-continue"], HeadReason.EXPECTATION),
        ([" folded: x"], HeadReason.FOLDED_LINE),
        (["X: a", "\tb"], HeadReason.FOLDED_LINE),
        (["X: a\x00b"], HeadReason.CONTROL_CHARACTER),
        (["X: a\x01b"], HeadReason.CONTROL_CHARACTER),
        (["X: a\x7fb"], HeadReason.CONTROL_CHARACTER),
        (["X: a\rb"], HeadReason.LINE_ENDING),
        (["X: a\nY: b"], HeadReason.LINE_ENDING),
        (["X"], HeadReason.SYNTAX),
        ([": x"], HeadReason.SYNTAX),
        (["X Y: x"], HeadReason.SYNTAX),
        ([f"X-{n}: x" for n in range(128)], HeadReason.TOO_LARGE),
        (["X: " + "x" * MAX_HEAD_BYTES], HeadReason.TOO_LARGE),
    ],
)
def test_fields_that_are_refused(fields: list[str], reason: HeadReason) -> None:
    """Whatever two readers could take for two things."""
    assert reason == _reason(_get("http://a.test/", "Host: a.test", *fields, method="POST"))


@pytest.mark.parametrize(
    "raw",
    [
        b"GET http://a.test/ HTTP/1.1\nHost: a.test\n\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\n",
        b"\r\nGET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET  http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ x HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET\thttp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ http/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1 \r\nHost: a.test\r\n\r\n",
        b"G(T http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\n\n",
        b"\x04\x01\x00\x50\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"",
        b"\r\n\r\n",
    ],
)
def test_lines_that_are_refused(raw: bytes) -> None:
    """Bare line feeds, blanks in the wrong places, and what is not HTTP at all."""
    assert isinstance(parse_head(raw), HeadRefused)


def test_a_connect_has_no_body() -> None:
    """What follows it is the tunnel."""
    for field in ("Content-Length: 1", "Transfer-Encoding: chunked"):
        found = _connect("a.test:443", "Host: a.test:443", field)
        assert HeadReason.CONNECT_WITH_BODY == _reason(found)
    assert isinstance(_connect("a.test:443", "Host: a.test", "Content-Length: 0"), ConnectRequest)


@pytest.mark.parametrize("method", ["TRACE", "TRACK"])
def test_methods_that_send_back_are_refused(method: str) -> None:
    """They would show what the proxy adds."""
    assert HeadReason.METHOD == _reason(_get("http://a.test/", method=method))


@pytest.mark.parametrize(("size", "refused"), [(32, False), (33, True), (20_000, True)])
def test_a_method_has_a_length_that_a_record_can_keep(size: int, *, refused: bool) -> None:
    """Access records and events repeat it: it is bounded where it is read."""
    found = _get("http://a.test/", method="M" * size)

    assert refused == isinstance(found, HeadRefused)
    assert not refused or HeadReason.METHOD == _reason(found)


def test_connect_is_spelt_in_capitals() -> None:
    """Methods are case-sensitive: another spelling is an unknown method in the wrong form."""
    found = parse_head(_head("connect a.test:443 HTTP/1.1", "Host: a.test:443"))

    assert HeadReason.REQUEST_FORM == _reason(found)


def test_options_with_a_count_is_refused() -> None:
    """`Max-Forwards` would have to be counted down (RFC 9110 section 7.6.2)."""
    found = _get("http://a.test/", "Host: a.test", "Max-Forwards: 0", method="OPTIONS")

    assert HeadReason.MAX_FORWARDS == _reason(found)
    assert isinstance(_get("http://a.test/", method="OPTIONS"), ForwardRequest)


@pytest.mark.parametrize(
    ("fields", "framing", "length"),
    [
        ([], Framing.NONE, 0),
        (["Content-Length: 0"], Framing.LENGTH, 0),
        (["Content-Length: 12"], Framing.LENGTH, 12),
        (["CONTENT-LENGTH:\t12 "], Framing.LENGTH, 12),
        (["Transfer-Encoding: Chunked"], Framing.CHUNKED, 0),
    ],
)
def test_framing(fields: list[str], framing: Framing, length: int) -> None:
    """How the body ends is decided once."""
    found = _get("http://a.test/", "Host: a.test", *fields, method="POST")

    assert isinstance(found, ForwardRequest)
    assert (framing, length) == (found.framing, found.length)


def _basic(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return f"Proxy-Authorization: Basic {base64.b64encode(raw).decode()}"


@pytest.mark.parametrize(
    ("field", "credentials"),
    [
        (_basic("run:token"), Basic(run="run", token="token")),
        (_basic("run:to:ken"), Basic(run="run", token="to:ken")),
        (_basic("run:"), Basic(run="run", token="")),
        (_basic("run:t").replace("Basic", "bAsIc"), Basic(run="run", token="t")),
        ("Proxy-Authorization: Bearer token", Bearer(token="token")),
        ("proxy-authorization: bearer   token", Bearer(token="token")),
        (_basic("no colon"), None),
        (_basic(b"\xff:\xff"), None),
        ("Proxy-Authorization: Basic !!!!", None),
        # A lenient reader passes over what is none of its letters.
        ("Proxy-Authorization: Basic !" + _basic("run:token").rpartition(" ")[2], None),
        ("Proxy-Authorization: Basic", None),
        ("Proxy-Authorization: Bearer", None),
        ("Proxy-Authorization: Digest x", None),
        ("Proxy-Authorization: Bearer t\xfc", None),
        ("Proxy-Authorization:", None),
        ("Authorization: Bearer token", None),
        ("X-A: b", None),
    ],
)
def test_credentials(field: str, credentials: Basic | Bearer | None) -> None:
    """Two schemes are read; what cannot be read is as if it were absent."""
    found = _connect("a.test:443", "Host: a.test:443", field)

    assert isinstance(found, ConnectRequest)
    assert credentials == found.credentials


def test_a_token_is_not_in_a_repr() -> None:
    """Reprs end up in logs."""
    assert "secret" not in repr((Basic(run="r", token="secret"), Bearer(token="secret")))


def test_what_goes_upstream_is_rebuilt() -> None:
    """Canonical target and `Host`, one framing, and nothing that belongs to this hop."""
    found = _get(
        "HTTP://A.TEST.:80/x/../b\u007b?q",
        *("host: a.test", "X-A: 1", "Connection: close, X-B,, x-c", "X-B: 2"),
        *("Proxy-Connection: keep-alive", "Proxy-Authorization: Bearer t", "TE: trailers"),
        *(
            "Upgrade: websocket",
            "Keep-Alive: 5",
            "Trailer: X-T",
            "Cookie: c=d",
            "HTTP2-Settings: x",
        ),
        *("Content-Length: 3", "Egress-Event: forged", "Proxy-Status: forged", "X-A: 3"),
        method="PUT",
    )
    assert isinstance(found, ForwardRequest)

    request = upstream_request(found)

    assert b"PUT" == request.method
    assert b"/b%7B?q" == request.target
    assert [
        (b"host", b"a.test"),
        (b"x-a", b"1"),
        (b"cookie", b"c=d"),
        (b"x-a", b"3"),
        (b"via", b"1.1 agent-runtime-pack"),
        (b"connection", b"close"),
        (b"content-length", b"3"),
    ] == list(request.headers)


def test_what_comes_back_is_rebuilt() -> None:
    """No upstream speaks for the proxy, and a length beside a coding is void."""
    response = h11.Response(
        status_code=403,
        headers=[
            ("Egress-Event", "forged"),
            ("Proxy-Status", "agent-runtime-pack; error=http_request_denied"),
            ("Proxy-Authenticate", "Basic realm=x"),
            ("Connection", "X-Secret, upgrade"),
            ("X-Secret", "1"),
            ("Upgrade", "websocket"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Length", "3"),
            ("Set-Cookie", "a=b"),
            ("Set-Cookie", "c=d"),
        ],
    )

    assert [
        (b"set-cookie", b"a=b"),
        (b"set-cookie", b"c=d"),
        (b"Via", b"1.1 agent-runtime-pack"),
        (b"Connection", b"close"),
    ] == downstream_headers(response)


_names = st.one_of(
    st.sampled_from(
        [*sorted(_HOP_FIELDS), "proxy-x", "Proxy-Connection", "egress-event", "x-a", "via"]
    ),
    st.from_regex(r"[A-Za-z-]{1,8}", fullmatch=True),
)
_values = st.one_of(
    st.sampled_from(
        ["x-a, close", "chunked", "3", "x-b", "websocket", "", "a.test", "100-continue"]
    ),
    st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=12),
)
_fields = st.lists(st.tuples(_names, _values), max_size=6)
_lines = st.one_of(
    st.builds(lambda m, u: f"{m} {u} HTTP/1.1", st.sampled_from(["GET", "POST", "HEAD"]), urls()),
    st.just("GET http://a.test/ HTTP/1.1"),
    st.just("POST http://a.test/ HTTP/1.0"),
    st.builds(lambda a: f"CONNECT {a} HTTP/1.1", st.text("a.:0123456789[]@/", max_size=12)),
    st.text(max_size=20),
)


@given(_lines, _fields, st.sampled_from(["\r\n", "\r\n", "\r\n", "\n"]))
@example("GET http://a.test/ HTTP/1.1", [("Connection", "host, content-length, x-a")], "\r\n")
def test_a_forwarded_head_has_no_field_of_this_hop(
    line: str, fields: list[tuple[str, str]], ending: str
) -> None:
    """Reading is total; what passes goes upstream clean, with one `Host` that is the target's."""
    given_lines = [line, "Host: a.test", *(f"{name}: {value}" for name, value in fields), "", ""]
    found = parse_head(ending.join(given_lines).encode("utf-8", "surrogatepass"))

    if not isinstance(found, ForwardRequest):
        assert isinstance(found, ConnectRequest | HeadRefused)
        return
    sent = list(upstream_request(found).headers)
    names = [name.decode() for name, _ in sent]
    named = {
        token.strip(" \t").lower()
        for name, value in fields
        if name.lower() == "connection"
        for token in value.split(",")
    }
    assert [b"close"] == [value for name, value in sent if name == b"connection"]
    assert [found.target.authority.encode()] == [v for n, v in sent if n == b"host"]
    allowed = {"connection"} | (
        {"transfer-encoding"} if found.framing is Framing.CHUNKED else set()
    )
    assert not (_HOP_FIELDS - allowed) & set(names)
    assert not any(name.startswith(("proxy-", "egress-")) for name in names)
    rebuilt = {"host", "content-length", "via", "connection", "transfer-encoding"}
    assert not (named - rebuilt) & set(names)


@given(st.binary(max_size=200))
def test_reading_is_total(raw: bytes) -> None:
    """Any bytes are a request or a refusal."""
    assert isinstance(parse_head(raw), ConnectRequest | ForwardRequest | HeadRefused)


@given(urls())
def test_a_url_that_is_no_url_is_no_request(url: str) -> None:
    """The proxy admits no URL that the client would not."""
    found = parse_head(_head(f"GET {url.encode('ascii', 'replace').decode()} HTTP/1.0"))

    if isinstance(found, ForwardRequest):
        assert parse_target(found.target.url) == found.target


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a"]), max_size=12), st.integers(1, 5))
def test_the_end_of_a_head_does_not_depend_on_the_cuts(parts: list[bytes], size: int) -> None:
    """The first empty line ends it, in whatever pieces it comes."""
    data = b"".join(parts)
    searched, found = 0, None
    for end in range(0, len(data) + size, size):
        found = end_of_head(data[:end], searched)
        if found is not None:
            break
        searched = len(data[:end])

    assert end_of_head(data) == found
    if found is not None:
        assert data[:found].endswith((b"\n\n", b"\n\r\n"))
