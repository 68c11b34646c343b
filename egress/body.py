"""The meter of one body: counts raw and decoded bytes, decodes gzip and deflate. No I/O.

Decoded bytes are produced in small pieces and never beyond the cap, so that 3 kB that inflate to
4 GB cost what the cap costs. `Accept-Encoding` asks for these two codings; another one that comes
all the same is refused, and so are stacked codings.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from egress.errors import DecodingFailed, EncodingRefused

__all__ = ("ACCEPT_ENCODING", "PIECE_BYTES", "BodyMeter", "Coding", "coding_of")

ACCEPT_ENCODING: Final = "gzip, deflate"
# The event loop gets its turn between pieces: 256 KiB inflate in well under a millisecond.
PIECE_BYTES: Final = 256 * 1024
# RFC 1952 section 2.2 allows members one after another; 1 MB of empty ones is an attack on time.
_MAX_MEMBERS: Final = 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_TOLD_CHARACTERS: Final = 40


class Coding(StrEnum):
    """The content codings we read."""

    IDENTITY = "identity"
    GZIP = "gzip"
    DEFLATE = "deflate"


def coding_of(values: Sequence[str], *, host: str, hop: int = 0) -> Coding:
    """The coding that the `Content-Encoding` *values* name.

    Raises:
        EncodingRefused: It is none we asked for, or there are two.
    """
    names = [name.strip(" \t").lower() for name in ",".join(values).split(",")]
    told = [name for name in names if name]
    if not told:
        return Coding.IDENTITY
    try:
        return Coding(",".join(told))
    except ValueError:
        detail = ascii(",".join(told)[:_TOLD_CHARACTERS])
        raise EncodingRefused(host=host, hop=hop, detail=detail) from None


class BodyMeter:
    """Counts and decodes one body, chunk by chunk.

    Attributes:
        raw_bytes: Bytes taken so far, as received.
        decoded_bytes: Bytes given out so far.
        truncated: Whether something was cut because a cap was reached. Read no further then.
    """

    def __init__(
        self,
        coding: Coding,
        *,
        max_raw_bytes: int,
        max_decoded_bytes: int,
        host: str = "",
        hop: int = 0,
    ) -> None:
        self.raw_bytes = 0
        self.decoded_bytes = 0
        self.truncated = False
        self._max_raw_bytes = max_raw_bytes
        self._max_decoded_bytes = max_decoded_bytes
        self._host = host
        self._hop = hop
        self._inflater = None if coding is Coding.IDENTITY else _Inflater(coding)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The decoded bytes of *chunk*, in pieces of at most 256 KiB when they were encoded.

        Consume it to the end before the next chunk.

        Raises:
            DecodingFailed: The bytes are not what the coding says.
        """
        room = self._max_raw_bytes - self.raw_bytes
        kept = chunk[:room]
        self.raw_bytes += len(kept)
        if self._inflater is None:
            yield self._count(kept)
        else:
            yield from self._inflate(self._inflater, kept)
        self.truncated = self.truncated or len(chunk) > room

    def cut(self) -> None:
        """Says that more was received, and is not used."""
        self.truncated = True

    def finish(self) -> None:
        """Says that the body is at its end.

        Raises:
            DecodingFailed: Its coding says that there is more to come.
        """
        if self.truncated or self._inflater is None or not self.raw_bytes:
            return
        if not self._inflater.finished:
            raise self._failed("the encoded stream ends early")

    def _inflate(self, inflater: _Inflater, data: bytes) -> Iterator[bytes]:
        inflater.give(data)
        try:
            # One byte above the room tells a full cap from a body that ends right there.
            while (piece := inflater.take(min(PIECE_BYTES, self._room() + 1))) is not None:
                yield self._count(piece)
                if self.truncated:
                    return
        except zlib.error as error:
            raise self._failed("the bytes are not what the coding says") from error

    def _count(self, piece: bytes) -> bytes:
        room = self._room()
        if len(piece) > room:
            self.truncated = True
            piece = piece[:room]
        self.decoded_bytes += len(piece)
        return piece

    def _room(self) -> int:
        return self._max_decoded_bytes - self.decoded_bytes

    def _failed(self, detail: str) -> DecodingFailed:
        return DecodingFailed(host=self._host, hop=self._hop, detail=detail)


class _Inflater:
    """One coding's decoder, pulled in bounded pieces.

    Attributes:
        finished: Whether the stream given so far is at the end of a member.
    """

    def __init__(self, coding: Coding) -> None:
        self.finished = False
        self._coding = coding
        self._stream = zlib.decompressobj(_GZIP_BITS) if coding is Coding.GZIP else None
        self._tail = b""
        self._members = 1
        self._filled = False
        self._over = False

    def give(self, data: bytes) -> None:
        """Adds input; whatever follows the end of the stream is ignored."""
        if not self._over:
            self._tail += data

    def take(self, limit: int) -> bytes | None:
        """At most *limit* decoded bytes (perhaps none), or None when more input is needed.

        Raises:
            zlib.error: The input is not a stream of this coding.
        """
        stream = self._current()
        # Input can be used up while output is still held back by the limit.
        if stream is None or not (self._tail or self._filled):
            return None
        piece = stream.decompress(self._tail, limit)
        self.finished = stream.eof
        self._tail = stream.unused_data if stream.eof else stream.unconsumed_tail
        self._filled = len(piece) == limit and not stream.eof
        return piece

    def _current(self) -> zlib._Decompress | None:
        if self.finished:
            self._stream = self._next_member()
            self.finished = self._stream is None
        elif self._stream is None:
            self._stream = self._choose_deflate()
        return self._stream

    def _next_member(self) -> zlib._Decompress | None:
        """The decoder of the gzip member that follows, or None when none does (yet)."""
        if self._coding is Coding.GZIP and len(self._tail) < len(_GZIP_MAGIC):
            return None
        if self._coding is Coding.DEFLATE or not self._tail.startswith(_GZIP_MAGIC):
            self._tail, self._over = b"", True
            return None
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise zlib.error("too many members")
        return zlib.decompressobj(_GZIP_BITS)

    def _choose_deflate(self) -> zlib._Decompress | None:
        """Zlib (RFC 9110 section 8.4.1.2) or, as many servers send, bare deflate."""
        if len(self._tail) < 2:
            return None
        first, second = self._tail[:2]
        # RFC 1950 section 2.2: method 8, and the two octets are a multiple of 31.
        is_zlib = first & 0x0F == 8 and (first << 8 | second) % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
