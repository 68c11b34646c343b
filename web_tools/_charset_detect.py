"""Which legacy charset bytes without a usable label are in.

Candidates come from the parser package's frequency model (a port of chardetng, the detector of a
browser); a candidate is taken only if the bytes decode under it. Nothing here reads labels.
"""

from web_tools._charset_labels import codec_of, name_of

_SAMPLE_BYTES = 32_768
"""Enough text for a frequency model; keeps the cost of a guess bounded on large bodies."""

_MODELLED_WORDS = """
    big5 euc-jp euc-kr gb18030 ibm866 iso-8859-2 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 iso-8859-8 iso-8859-13
    koi8-u shift_jis windows-1250 windows-1251 windows-1252 windows-1253 windows-1254 windows-1255 windows-1256
    windows-1257 windows-1258 windows-874
"""
_MODELLED = frozenset(_MODELLED_WORDS.split())
"""Charsets the model knows; of others it has no opinion."""
_ALIKE = {"koi8-r": "koi8-u", "iso-8859-15": "windows-1252"}
_ASCII = bytes(range(0x80))
_WITHOUT_MARKUP = bytes.maketrans(b"<", b" ")
"""The model also honours `<meta charset>`; without `<` it sees only the text."""


def guesses(body: bytes) -> tuple[tuple[str, float], ...]:
    """Codecs the text of *body* may be in, likeliest first, each with the model's confidence."""
    from turbohtml.detect import detect_all

    sample = sample_of(body).translate(_WITHOUT_MARKUP)
    found = ((codec_of(match.encoding), match.confidence) for match in detect_all(sample))
    return tuple((codec, confidence) for codec, confidence in found if codec is not None)


def own_confidence(charset: str, ranked: tuple[tuple[str, float], ...]) -> float | None:
    """The model's confidence in *charset*, 0 if it was ruled out, None if it is not modelled."""
    known = _ALIKE.get(charset, charset)
    if known not in _MODELLED:
        return None
    return max((sure for codec, sure in ranked if name_of(codec) == known), default=0.0)


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


def sample_of(body: bytes) -> bytes:
    """A bounded piece of *body* that begins where it is not ASCII any more."""
    if len(body) <= _SAMPLE_BYTES:
        return body
    # A page can open with a long ASCII script: begin at the first byte that tells charsets apart.
    first = len(body) - len(body.lstrip(_ASCII))
    return body[first : first + _SAMPLE_BYTES]
