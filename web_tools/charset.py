"""From bytes to text: which charset a body is in, and how that was found out.

Order: byte-order mark; ISO-2022-JP by its escapes; valid UTF-8; the HTTP header; `meta` or the XML
declaration; a detector. A label counts only if the bytes decode cleanly under it, because servers
mislabel: a latin-1 header is a server's default and yields to any other clean label. Pure: no
I/O, and total over arbitrary bytes.
"""

import re

import attrs

from web_tools._charset_detect import guesses, own_confidence, sample_of, utf16_codec
from web_tools._charset_labels import codec_of, name_of
from web_tools._charset_words import CharsetSource

__all__ = ("CharsetSource", "Decoded", "decode")

MAX_BAD_SHARE = 0.002
"""Share of undecodable or C1 characters above which a label is not believed (the rules page)."""

_META_WINDOW = 8192
"""Browsers look at 1,024 bytes; pages with long comments or scripts first put `meta` later."""

_BOMS = (  # UTF-32-LE before UTF-16-LE, whose mark is its prefix
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_BAD = (*map(chr, range(0x80, 0xA0)), "\ufffd")
_TRIED = 5
_META_TAG = re.compile(rb"<meta[\s/][^>]{0,1024}", re.IGNORECASE)
_META_CHARSET = re.compile(rb"charset\s{0,16}=\s{0,16}[\"']?\s{0,16}([\w.:-]{1,64})", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"\s*<\?xml[^>]{0,256}?encoding\s{0,16}=\s{0,16}[\"']([\w.:-]{1,64})")
_ISO_2022_JP = (b"\x1b$B", b"\x1b$@", b"\x1b(J", b"\x1b(I", b"\x1b$(D")
_COMMENT_OPEN, _COMMENT_CLOSE = b"<!--", b"-->"
_SERVER_DEFAULT = "windows-1252"
"""What servers send when nobody set anything: a label in its favour proves little."""
_HIGH_BYTES = bytes(range(0x80, 0x100))
_FEW, _FEW_FOR_DEFAULT = 64, 8
"""Non-ASCII bytes below which the model has nothing to say against a label."""
_MUCH_LIKELIER = 4


@attrs.frozen(kw_only=True)
class Decoded:
    """Text of a body, the charset it was read in (WHATWG name) and what decided that."""

    text: str
    charset: str
    source: CharsetSource


def decode(body: bytes, *, header_charset: str | None, is_html: bool) -> Decoded:
    """Text of *body* in the charset the evidence points to.

    Args:
        body: The whole body, or its beginning: a cut character at the end is dropped.
        header_charset: The `charset` parameter of Content-Type as sent, or None.
        is_html: Whether `<meta charset>` counts; an XML declaration counts either way.

    Returns:
        Text without lone surrogates and without a byte-order mark. Bytes that no charset explains
        become U+FFFD.
    """
    marked = _by_mark(body)
    if marked is not None:
        return marked
    if body.isascii() and b"\x00" not in body[:1024] and not _has_escapes(body):
        return Decoded(text=body.decode("ascii"), charset="utf-8", source=CharsetSource.VALID_UTF8)
    return _by_form(body) or _by_label(body, header_charset, is_html=is_html) or _by_model(body)


def _by_mark(body: bytes) -> Decoded | None:
    for mark, codec in _BOMS:
        if body.startswith(mark):
            return _decoded(_lossy(body[len(mark) :], codec), codec, CharsetSource.BOM)
    return None


def _by_form(body: bytes) -> Decoded | None:
    if _has_escapes(body):
        text = _lossy(body, "iso2022_jp_ext")
        if _is_clean(text):
            return _decoded(text, "iso2022_jp", CharsetSource.ESCAPES)
    if (wide := utf16_codec(body)) is not None:
        return _decoded(_lossy(body, wide), wide, CharsetSource.DETECTED)
    text_or_none = _strict_utf8(body)
    if text_or_none is not None:
        return _decoded(text_or_none, "utf-8", CharsetSource.VALID_UTF8)
    return None


def _by_label(body: bytes, header: str | None, *, is_html: bool) -> Decoded | None:
    labelled = (
        (codec_of(header), CharsetSource.HEADER),
        (_declared(body, is_html=is_html), CharsetSource.META),
    )
    clean = [
        _decoded(text, codec, source)
        for codec, source in labelled
        if codec is not None and _is_clean(text := _lossy(body, codec))
    ]
    if not clean:
        return None
    strong = [decoded for decoded in clean if decoded.charset != _SERVER_DEFAULT]
    chosen = (strong or clean)[0]
    return _contradicting(body, chosen) or chosen


def _contradicting(body: bytes, chosen: Decoded) -> Decoded | None:
    """The text in another charset, when the model all but rules out the labelled one.

    Every single-byte charset decodes everything, so a clean decoding alone proves little.
    """
    few = _FEW_FOR_DEFAULT if chosen.charset == _SERVER_DEFAULT else _FEW
    if len(body) - len(body.translate(None, _HIGH_BYTES)) < few:
        return None
    ranked = guesses(body)
    best, confidence = ranked[0] if ranked else ("cp1252", 0.0)
    own = own_confidence(chosen.charset, ranked)
    if own is None or own * _MUCH_LIKELIER >= confidence:
        return None
    text = _lossy(body, best)
    return _decoded(text, best, CharsetSource.DETECTED) if _is_clean(text) else None


def _by_model(body: bytes) -> Decoded:
    damaged = _lossy(body, "utf-8")
    if _is_clean(damaged):
        return _decoded(damaged, "utf-8", CharsetSource.DETECTED)
    for codec, _ in guesses(body)[:_TRIED]:
        if not _is_clean(_lossy(sample_of(body), codec)):
            continue
        text = _lossy(body, codec)
        if _is_clean(text):
            return _decoded(text, codec, CharsetSource.DETECTED)
    return _decoded(_lossy(body, "cp1252"), "cp1252", CharsetSource.FALLBACK)


def _declared(body: bytes, *, is_html: bool) -> str | None:
    head = body[:_META_WINDOW]
    if (match := _XML_ENCODING.match(head)) is not None:
        return codec_of(match[1].decode("ascii", "replace"))
    if not is_html:
        return None
    for tag in _META_TAG.finditer(_without_comments(head)):
        if (match := _META_CHARSET.search(tag[0])) is not None:
            codec = codec_of(match[1].decode("ascii", "replace"))
            # A label inside the bytes was read as ASCII, so the bytes are not UTF-16.
            return "utf-8" if codec is not None and codec.startswith("utf-16") else codec
    return None


def _without_comments(head: bytes) -> bytes:
    kept, rest = [], head
    while True:
        before, opened, after = rest.partition(_COMMENT_OPEN)
        kept.append(before)
        if not opened:
            return b"".join(kept)
        _, _, rest = after.partition(_COMMENT_CLOSE)


def _has_escapes(body: bytes) -> bool:
    return b"\x1b" in body and any(escape in body for escape in _ISO_2022_JP)


def _strict_utf8(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        cut_at_end = error.reason == "unexpected end of data" and error.start > 0
        return body[: error.start].decode() if cut_at_end else None


def _lossy(body: bytes, codec: str) -> str:
    text = body.decode(codec, "replace")
    return text[:-1] if codec.startswith("utf-") and _ends_cut(body, text) else text


def _ends_cut(body: bytes, text: str) -> bool:
    """Whether the last U+FFFD stands for a unit that the end of the body cut off."""
    return text.endswith("\ufffd") and not body.endswith(b"\xef\xbf\xbd")


def _is_clean(text: str) -> bool:
    """Whether few characters are undecodable, and they are the exception among non-ASCII ones.

    The second half matters on pages that are mostly markup: all accents of a French page can be
    less than 0.2 % of its characters.
    """
    bad = sum(map(text.count, _BAD))
    if bad == 0:
        return True
    beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    return bad <= len(text) * MAX_BAD_SHARE and bad * 4 <= beyond_ascii


def _decoded(text: str, codec: str, source: CharsetSource) -> Decoded:
    return Decoded(text=text, charset=name_of(codec), source=source)
