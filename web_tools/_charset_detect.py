"""Which legacy charset bytes without a usable label are in.

Candidates come from the parser package's frequency model (a port of chardetng, the detector of a
browser); a candidate is taken only if the bytes decode under it. Nothing here reads labels.
"""

from web_tools._charset_labels import codec_of

_SAMPLE_BYTES = 131_072
"""Enough text for a frequency model; keeps the cost of a guess bounded on large bodies."""

_HIGH_BYTES = bytes(range(0x80, 0x100))
_WITHOUT_MARKUP = bytes.maketrans(b"<", b" ")
"""The model also honours `<meta charset>`; without `<` it sees only the text."""


def guesses(body: bytes) -> tuple[tuple[str, float], ...]:
    """Codecs the text of *body* may be in, likeliest first, each with the model's confidence."""
    from turbohtml.detect import detect_all

    sample = _sample(body).translate(_WITHOUT_MARKUP)
    found = ((codec_of(match.encoding), match.confidence) for match in detect_all(sample))
    return tuple((codec, confidence) for codec, confidence in found if codec is not None)


def utf16_codec(body: bytes) -> str | None:
    """Codec of UTF-16 text without a byte-order mark, known by its NUL bytes, else None.

    Text with many ASCII characters has NUL in every other byte; text in another script is not
    recognised, and neither is binary data, where NULs fall on both sides.
    """
    head = body[:1024]
    half = len(head) // 2
    if half < 2:
        return None
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if odd >= half * 0.7 and even <= half * 0.02:
        return "utf-16-le"
    if even >= half * 0.7 and odd <= half * 0.02:
        return "utf-16-be"
    return None


def _sample(body: bytes) -> bytes:
    if len(body) <= _SAMPLE_BYTES:
        return body
    # A page can open with a long ASCII script: begin at the first byte that tells charsets apart.
    first = len(body) - len(body.lstrip(bytes(range(0x80))))
    return body[first : first + _SAMPLE_BYTES]
