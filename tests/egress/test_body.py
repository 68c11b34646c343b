"""The meter of one body: counted raw and decoded bytes, two codings."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.body import PIECE_BYTES, BodyMeter, Coding, coding_of
from egress.errors import DecodingFailed, EncodingRefused


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


_ENCODE: dict[str, tuple[Coding, Callable[[bytes], bytes]]] = {
    "identity": (Coding.IDENTITY, bytes),
    "gzip": (Coding.GZIP, gzip.compress),
    "zlib": (Coding.DEFLATE, zlib.compress),
    "deflate": (Coding.DEFLATE, _deflate),
}


def _meter(coding: Coding, raw: int = 1 << 30, decoded: int = 1 << 30) -> BodyMeter:
    return BodyMeter(coding, max_raw_bytes=raw, max_decoded_bytes=decoded, host="example.org")


def _read(meter: BodyMeter, chunks: list[bytes]) -> bytes:
    found = []
    for chunk in chunks:
        found += list(meter.feed(chunk))
        if meter.truncated:
            break
    meter.finish()
    return b"".join(found)


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(
    st.sampled_from(sorted(_ENCODE)),
    st.binary(max_size=2000),
    st.integers(0, 600_000),
    st.integers(20, 500),
)
def test_a_body_cut_into_pieces_is_the_same_body(
    kind: str, head: bytes, zeros: int, size: int
) -> None:
    """Decoding does not depend on where the network cut the stream."""
    coding, encode = _ENCODE[kind]
    data = head + b"\0" * zeros
    meter = _meter(coding)

    assert data == _read(meter, _cut(encode(data), size))
    assert not meter.truncated
    assert meter.raw_bytes == len(encode(data))
    assert meter.decoded_bytes == len(data)


@given(st.sampled_from(sorted(_ENCODE)), st.binary(min_size=1, max_size=400), st.integers(1, 400))
def test_the_decoded_cap_cuts_and_says_so(kind: str, data: bytes, cap: int) -> None:
    """`truncated` is true only if something was dropped; a body that fits exactly is whole."""
    coding, encode = _ENCODE[kind]
    meter = _meter(coding, decoded=cap)

    assert data[:cap] == _read(meter, _cut(encode(data), 7))
    assert (len(data) > cap) == meter.truncated


@given(st.binary(min_size=1, max_size=400), st.integers(1, 400))
def test_the_raw_cap_cuts_and_says_so(data: bytes, cap: int) -> None:
    """The bytes as received have their own cap."""
    meter = _meter(Coding.IDENTITY, raw=cap)

    assert data[:cap] == _read(meter, _cut(data, 7))
    assert (len(data) > cap) == meter.truncated
    assert meter.raw_bytes == min(cap, len(data))


@pytest.mark.parametrize("kind", ["gzip", "zlib", "deflate"])
def test_a_bomb_costs_what_the_cap_costs(kind: str) -> None:
    """100 MB of zeros come out as the cap, in pieces of at most 256 KiB; no more is held anywhere."""
    coding, encode = _ENCODE[kind]
    bomb = encode(b"\0" * 100_000_000)
    meter = _meter(coding, decoded=1_000_000)

    tracemalloc.start()
    try:
        pieces = list(meter.feed(bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 10_000_000
    assert 1_000_000 == sum(map(len, pieces)) == meter.decoded_bytes
    assert meter.truncated
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize("extra", [0, 21, 100, 227, 258])
def test_output_that_a_piece_held_back_is_not_lost(extra: int) -> None:
    """Zlib can have taken all input while the piece's limit keeps its last bytes back."""
    page = b"\0" * (PIECE_BYTES + extra)

    assert page == _read(_meter(Coding.DEFLATE), [_deflate(page)])


def test_gzip_members_follow_each_other() -> None:
    """RFC 1952 section 2.2, cut anywhere; what follows the last one is ignored."""
    whole = gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two")

    for size in (1, 2, 3, 1000):
        assert _read(_meter(Coding.GZIP), _cut(whole, size)) == b"onetwo"
        assert _read(_meter(Coding.GZIP), _cut(whole + b"\0\0junk", size)) == b"onetwo"
    assert _read(_meter(Coding.GZIP), [gzip.compress(b"one") + b"\x1f"]) == b"one"
    late = gzip.compress(b"one") + b"junk"
    assert _read(_meter(Coding.GZIP), [late, gzip.compress(b"two")]) == b"one"


def test_a_flood_of_empty_members_is_refused() -> None:
    """Each costs a decoder: a megabyte of them is an attack on time."""
    with pytest.raises(DecodingFailed):
        _read(_meter(Coding.GZIP), [gzip.compress(b"") * 5_000])
    assert b"" == _read(_meter(Coding.GZIP), [gzip.compress(b"") * 1_024])
    with pytest.raises(DecodingFailed):
        _read(_meter(Coding.GZIP), [gzip.compress(b"") * 1_025])


def test_what_follows_a_deflate_stream_is_no_member() -> None:
    """Only gzip has members; and two octets that look like a header of zlib need its method too."""
    assert b"one" == _read(_meter(Coding.DEFLATE), [zlib.compress(b"one") + gzip.compress(b"two")])
    # RFC 1951 section 3.2.4: one stored block of 23 bytes, whose first two octets come to 9 * 31.
    stored = b"\x01\x17\x00\xe8\xff" + b"x" * 23
    assert b"x" * 23 == _read(_meter(Coding.DEFLATE), [stored])


@pytest.mark.parametrize("kind", ["gzip", "zlib", "deflate"])
def test_a_stream_that_ends_early_is_an_error(kind: str) -> None:
    """Half a page never passes for a page."""
    coding, encode = _ENCODE[kind]
    encoded = encode(b"The quick brown fox jumps over the lazy dog. " * 50)

    for cut in (1, 5, len(encoded) // 2, len(encoded) - 1):
        with pytest.raises(DecodingFailed):
            _read(_meter(coding), [encoded[:cut]])


@pytest.mark.parametrize("coding", [Coding.GZIP, Coding.DEFLATE])
@pytest.mark.parametrize(
    "data", [b"<html>plain</html>", b"\xff" * 40, b"\x1f\x8b\x08" + b"\xff" * 40]
)
def test_bytes_that_are_not_the_coding_are_an_error(coding: Coding, data: bytes) -> None:
    """A lie in `Content-Encoding` is not handed on as text."""
    with pytest.raises(DecodingFailed):
        _read(_meter(coding), [data])


def test_a_broken_checksum_is_an_error() -> None:
    """The gzip trailer is checked."""
    encoded = bytearray(gzip.compress(b"hello" * 10))
    encoded[-5] ^= 1

    with pytest.raises(DecodingFailed):
        _read(_meter(Coding.GZIP), [bytes(encoded)])


@given(
    st.sampled_from([Coding.GZIP, Coding.DEFLATE]), st.lists(st.binary(max_size=200), max_size=5)
)
def test_decoding_is_total(coding: Coding, chunks: list[bytes]) -> None:
    """Any bytes decode or are a `DecodingFailed`, nothing else."""
    meter = _meter(coding, raw=300, decoded=1_000)
    try:
        data = _read(meter, chunks)
    except DecodingFailed:
        return

    assert len(data) <= 1_000


def test_an_empty_body_has_no_coding() -> None:
    """A 304, or a server that names a coding and sends nothing."""
    for coding in Coding:
        assert _read(_meter(coding), []) == b""
        assert _read(_meter(coding), [b""]) == b""


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        ([], Coding.IDENTITY),
        ([""], Coding.IDENTITY),
        (["identity"], Coding.IDENTITY),
        (["gzip"], Coding.GZIP),
        ([" GZip "], Coding.GZIP),
        (["deflate"], Coding.DEFLATE),
        ([",gzip,"], Coding.GZIP),
    ],
)
def test_the_codings_we_asked_for(values: list[str], coding: Coding) -> None:
    """Case and empty list members do not matter (RFC 9110 section 5.6.1)."""
    assert coding is coding_of(values, host="a")


@pytest.mark.parametrize(
    "values",
    [
        *(["br"], ["zstd"], ["compress"], ["x-gzip"], ["gzip, gzip"], ["gzip", "gzip"]),
        *(["gzip, identity"], ["identity, gzip"], ["deflate, gzip"], ["gzip;q=1"], ["g zip"]),
        *(["aws-chunked"], ["utf-8"], ["x" * 10_000], ["\u212a"], ["\udcff"]),
    ],
)
def test_other_codings_are_refused(values: list[str]) -> None:
    """What was not asked for, and stacked codings; the message stays short."""
    with pytest.raises(EncodingRefused) as caught:
        coding_of(values, host="a")

    assert len(str(caught.value)) < 500
    assert str(caught.value).isascii()
