"""The ClientHello reader and the verdict on it, over hand-made and real first flights."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress import DenyReason, parse_target
from egress.client_hello import (
    MAX_HELLO_BYTES,
    Hello,
    HelloReader,
    NeedMore,
    NotTls,
    Reading,
    TooLarge,
    check_hello,
    read_hello,
)
from egress.testing import client_hello, hello_message, hello_record

_PAIR = bytes.fromhex("0017 0000")  # extended_master_secret, empty


def _real_hello(server_name: str | None, *, versions: ssl.TLSVersion | None = None) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if versions is not None:
        context.minimum_version = context.maximum_version = versions
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def _in_records(message: bytes, size: int) -> bytes:
    parts = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(map(hello_record, parts))


def _fed(data: bytes, size: int) -> Reading:
    """The last answer of a reader that gets *data* in pieces of *size*."""
    reader = HelloReader()
    reading: Reading = NeedMore(total=0)
    for start in range(0, len(data), size):
        reading = reader.feed(data[start : start + size])
        if not isinstance(reading, NeedMore):
            break
    return reading


@pytest.mark.parametrize("versions", [None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["example.org", None])
def test_a_real_client_is_read(name: str | None, versions: ssl.TLSVersion | None) -> None:
    """OpenSSL's hello gives its name, and is complete at its last byte only."""
    hello = _real_hello(name, versions=versions)

    assert Hello(server_name=name) == read_hello(hello)
    for end in range(len(hello)):
        reading = read_hello(hello[:end])
        assert isinstance(reading, NeedMore)
        assert end < reading.total <= len(hello)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 50, 500])
def test_the_name_is_found_across_records(size: int) -> None:
    """A hello may be spread over many records; where it is cut does not matter."""
    message = hello_message(b"example.org", extensions=[(0x0A0A, b""), (23, b"")])

    assert Hello(server_name="example.org") == read_hello(_in_records(message, size))


def test_early_data_does_not_change_the_answer() -> None:
    """Records after the hello belong to the server."""
    after = b"\x14\x03\x03\x00\x01\x01" + b"\x17\x03\x03\x00\x05abcde"

    assert Hello(server_name="a.test") == read_hello(client_hello("a.test") + after)


def test_grease_is_an_extension_like_others() -> None:
    """Random reserved numbers, as browsers send them, change nothing (RFC 8701)."""
    greased = [(number, b"\x00") for number in (0x0A0A, 0x1A1A, 0xFAFA)]

    assert Hello(server_name="a.test") == read_hello(
        hello_record(hello_message(b"a.test", extensions=greased))
    )


@pytest.mark.parametrize("number", [0xFE0D, 0xFFCE])
def test_an_encrypted_hello_is_seen_to_be_there(number: int) -> None:
    """ECH and its predecessor are noticed; what they hide cannot be read."""
    hello = read_hello(hello_record(hello_message(b"a.test", extensions=[(number, b"x" * 40)])))

    assert Hello(server_name="a.test", has_ech=True) == hello


def test_no_extensions_is_no_name() -> None:
    """A hello of an old client ends after its compressions; what follows is not its extensions."""
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x00\x2f" + b"\x01\x00"
    message = b"\x01" + len(body).to_bytes(3, "big") + body

    assert Hello(server_name=None) == read_hello(hello_record(message))
    assert isinstance(read_hello(hello_record(message + b"\x00\x00")), NotTls)


def _longer(message: bytes, tail: bytes) -> bytes:
    """*message* with *tail* inside it, its length made right."""
    body = message[4:] + tail
    return message[:1] + len(body).to_bytes(3, "big") + body


def _plain_body(
    *, version: bytes = b"\x03\x03", session: bytes = b"\x00", ciphers: bytes = b"\x00\x02\x13\x01"
) -> bytes:
    """A whole record around a hello without extensions."""
    body = version + bytes(32) + session + ciphers + b"\x01\x00"
    return hello_record(b"\x01" + len(body).to_bytes(3, "big") + body)


def test_the_plain_body_is_read() -> None:
    """The rows below differ from a good one in one thing each."""
    assert Hello(server_name=None) == read_hello(_plain_body())


_NOT_TLS = {
    "a version before SSL 3.0": _plain_body(version=b"\x02\x00"),
    "half a cipher": _plain_body(ciphers=b"\x00\x03\x13\x01\x13"),
    "no ciphers": _plain_body(ciphers=b"\x00\x00"),
    "a long session id": _plain_body(session=b"\x21" + bytes(33)),
    "bytes after the extensions": hello_record(_longer(hello_message(b"a.test"), b"!")),
    "http": b"GET / HTTP/1.1\r\n",
    "ssh": b"SSH-2.0-OpenSSH\r\n",
    "one byte that is none": b"G",
    "SSLv2 hello": bytes.fromhex(
        "802e0100020015000000100100800200800300800400800500800600400700c0"
    ),
    "an alert": hello_record(b"\x02\x28", kind=21),
    "application data": hello_record(b"abc", kind=23),
    "another version": hello_record(hello_message(b"a.test"), version=b"\x02\x00"),
    "DTLS": hello_record(hello_message(b"a.test"), version=b"\xfe\xfd"),
    "an empty record": hello_record(b""),
    "a record longer than records are": b"\x16\x03\x01\x40\x01",
    "a ServerHello": hello_record(b"\x02" + hello_message(b"a.test")[1:]),
    "another type after the first record": hello_record(hello_message(b"a.test")[:20])
    + hello_record(hello_message(b"a.test")[20:], kind=23),
    "another message in the record": hello_record(hello_message(b"a.test") + b"\x0b"),
    "two names": hello_record(hello_message(b"a.test", b"b.test")),
    "two names that are one": hello_record(hello_message(b"a.test", b"a.test")),
    "two name extensions": hello_record(
        hello_message(b"a.test", extensions=[(0, b"\x00\x09\x00\x00\x06b.test")])
    ),
    "an extension twice": hello_record(hello_message(b"a.test", extensions=[(23, b""), (23, b"")])),
    "another type of name": hello_record(hello_message(b"a.test", name_kind=1)),
    "an empty name": hello_record(hello_message(b"")),
    "an empty list of names": hello_record(hello_message(extensions=[(0, b"\x00\x00")])),
    "an empty name extension": hello_record(hello_message(extensions=[(0, b"")])),
    "bytes after the names": hello_record(
        hello_message(extensions=[(0, b"\x00\x09\x00\x00\x06b.test!")])
    ),
    "a name that is not ASCII": hello_record(hello_message("b\u00fccher.example".encode())),
    "an old body": hello_record(b"\x01\x00\x00\x02\x02\x00"),
}


@pytest.mark.parametrize("data", _NOT_TLS.values(), ids=_NOT_TLS)
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    """Also when it comes byte by byte, and never as a hello."""
    assert isinstance(read_hello(data), NotTls)
    assert isinstance(_fed(data, 1), NotTls)


def test_plain_text_is_told_at_its_first_byte() -> None:
    """A server that waits for the client to speak on is not kept waiting."""
    assert isinstance(read_hello(b"S"), NotTls)
    assert read_hello(b"") == NeedMore(total=5)
    assert read_hello(b"\x16") == NeedMore(total=5)


@pytest.mark.parametrize("size", [1, 1000, 16_384])
def test_more_than_16_kib_is_too_large(size: int) -> None:
    """Over all records, counted with their headers, wherever the limit is met."""
    message = hello_message(b"a.test", extensions=[(21, bytes(17_000))])

    assert TooLarge() == read_hello(_in_records(message, size))
    assert TooLarge() == _fed(_in_records(message, size), 700)


def test_exactly_16_kib_is_not() -> None:
    """The limit is the last size that passes."""
    frame = len(client_hello("a.test")) + 4
    fitting = [
        hello_record(
            hello_message(b"a.test", extensions=[(21, bytes(MAX_HELLO_BYTES - frame + n))])
        )
        for n in (0, 1)
    ]

    assert MAX_HELLO_BYTES == len(fitting[0])
    assert Hello(server_name="a.test") == read_hello(fitting[0])
    assert TooLarge() == read_hello(fitting[1])


_messages = st.builds(
    lambda names, extensions: hello_message(*names, extensions=extensions),
    st.lists(st.sampled_from([b"a.test", b"b.test", b"", b"\xff"]), max_size=2),
    st.lists(
        st.tuples(st.sampled_from([0, 21, 23, 0x0A0A, 0xFE0D]), st.binary(max_size=40)), max_size=3
    ),
)
_flights = st.one_of(
    st.binary(max_size=60),
    st.builds(_in_records, _messages, st.integers(1, 300)),
    st.builds(
        lambda message, place, junk: hello_record(message[:place] + junk + message[place:]),
        _messages,
        st.integers(0, 80),
        st.binary(max_size=3),
    ),
    st.builds(lambda message, end: hello_record(message)[:end], _messages, st.integers(0, 120)),
    st.builds(
        lambda message, kind: hello_record(message[:9]) + hello_record(message[9:], kind=kind),
        _messages,
        st.sampled_from([20, 21, 22, 23]),
    ),
)


@given(_flights, st.integers(1, 64))
@example(b"\x16\x03\x01\x40\x00", 5)
@example(bytes.fromhex("1603010005 0100ffffff"), 1)
def test_the_answer_is_total_and_does_not_depend_on_the_cuts(data: bytes, size: int) -> None:
    """Any bytes come to one of four answers, the same one in whatever pieces they arrive."""
    whole = read_hello(data)

    assert isinstance(whole, NeedMore | Hello | NotTls | TooLarge)
    if data:
        assert whole == _fed(data, size)


@given(_flights, st.binary(max_size=20))
def test_a_final_answer_stays(data: bytes, more: bytes) -> None:
    """What was refused or read is not changed by what follows."""
    first = read_hello(data)

    if not isinstance(first, NeedMore):
        assert first == read_hello(data + more)


_NAME = parse_target("https://xn--bcher-kva.example/")
_LITERAL = parse_target("https://8.8.8.8/")
_SIX = parse_target("https://[2606:4700::1]/")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("xn--bcher-kva.example", None),
        ("XN--BCHER-KVA.Example", None),
        ("xn--bcher-kva.example.", None),
        (None, DenyReason.SNI_MISSING),
        ("", DenyReason.SNI_MISMATCH),
        (".", DenyReason.SNI_MISMATCH),
        ("bcher-kva.example", DenyReason.SNI_MISMATCH),
        ("xn--bcher-kva.example..", DenyReason.SNI_MISMATCH),
        ("www.xn--bcher-kva.example", DenyReason.SNI_MISMATCH),
        ("xn--bcher-kva.example\x00.evil.test", DenyReason.SNI_MISMATCH),
        ("xn--bcher-kva.example:443", DenyReason.SNI_MISMATCH),
        ("evil.test", DenyReason.SNI_MISMATCH),
        ("8.8.8.8", DenyReason.SNI_MISMATCH),
    ],
)
def test_a_name_target_needs_its_own_name(name: str | None, reason: DenyReason | None) -> None:
    """Equal in canonical form, and nothing else."""
    denied = check_hello(_NAME, Hello(server_name=name))

    assert reason == (None if denied is None else denied.reason)
    if denied is not None:
        assert ("R13", None, ()) == (denied.rule, denied.nearest_entry, denied.addresses)


@pytest.mark.parametrize(
    ("target", "name", "reason"),
    [
        (_LITERAL, None, None),
        (_LITERAL, "8.8.8.8", None),
        (_LITERAL, "8.8.4.4", DenyReason.SNI_MISMATCH),
        (_LITERAL, "evil.test", DenyReason.SNI_MISMATCH),
        (_SIX, None, None),
        (_SIX, "2606:4700::1", None),
        (_SIX, "evil.test", DenyReason.SNI_MISMATCH),
    ],
)
def test_a_literal_target_takes_no_other_name(
    target: object, name: str | None, reason: DenyReason | None
) -> None:
    """An address in the list never admits a name (R7); without a name there is nothing to compare."""
    assert isinstance(target, type(_LITERAL))
    denied = check_hello(target, Hello(server_name=name))

    assert reason == (None if denied is None else denied.reason)


def test_what_is_not_tls_is_denied_for_every_target() -> None:
    """A tunnel to 443 carries TLS."""
    for target in (_NAME, _LITERAL):
        for reading, reason in (
            (NotTls(detail="x"), DenyReason.NOT_TLS),
            (TooLarge(), DenyReason.HELLO_TOO_LARGE),
        ):
            denied = check_hello(target, reading)
            assert denied is not None
            assert reason == denied.reason
