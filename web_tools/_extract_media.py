"""What kind of body a response has: by its header, and by its first bytes where that says little.

Pure. Sources: WHATWG MIME Sniffing, sections 5 (resource header), 6 and 7 (signatures, binary
data bytes); api page, "Sniffing".
"""

import re
from enum import StrEnum

import attrs

from web_tools._charset_detect import utf16_codec

HTML = "text/html"
XHTML = "application/xhtml+xml"
XML = "application/xml"
JSON = "application/json"
PLAIN = "text/plain"
UNKNOWN = "application/octet-stream"

GENERIC = frozenset(
    {
        UNKNOWN,
        "binary/octet-stream",
        "application/unknown",
        "unknown/unknown",
        "application/x-unknown-content-type",
        "application/force-download",
        "*/*",
    }
)
"""Types that say nothing about the body."""

_TEXT_LIKE = frozenset(
    {
        JSON,
        XML,
        "application/ecmascript",
        "application/graphql",
        "application/javascript",
        "application/jsonl",
        "application/jsonlines",
        "application/sql",
        "application/toml",
        "application/x-javascript",
        "application/x-json",
        "application/x-jsonlines",
        "application/x-ndjson",
        "application/x-yaml",
        "application/xml-dtd",
        "application/yaml",
    }
)
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml", "+json-seq")

_SIGNATURES = (  # first bytes after optional white space, what it is
    (b"%PDF-", "PDF"),
    (b"%!PS-Adobe", "PostScript"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"PK\x03\x04", "ZIP"),
    (b"PK\x05\x06", "ZIP"),
    (b"\x1f\x8b\x08", "gzip"),
    (b"BZh91AY&SY", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"(\xb5/\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"Rar!\x1a\x07", "RAR"),
    (b"\x7fELF", "ELF"),
    (b"\xca\xfe\xba\xbe", "class file"),
    (b"\x00asm", "WebAssembly"),
    (b"SQLite format 3\x00", "SQLite"),
    (b"OggS\x00", "Ogg"),
    (b"fLaC\x00", "FLAC"),
    (b"wOFF\x00", "font"),
    (b"wOF2\x00", "font"),
    (b"\x00\x00\x01\x00", "icon"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "OLE document"),
)
_HEAD_BYTES = 4096
_WHITE = b"\t\n\x0c\r "
_BINARY = bytes({*range(9), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)})
"""Binary data bytes; ESC is not one, ISO-2022-JP uses it."""
_MAX_BINARY_SHARE = 0.005
"""A declared text with a stray NUL is still text; data without a type needs only one."""
_UNICODE_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")

_MEDIA_TYPE = re.compile(r"\s*([\w!#$&^.+*-]{1,127}/[\w!#$&^.+*-]{1,127})\s*(?:[;,]|$)", re.ASCII)
_CHARSET = re.compile(
    r";\s*charset\s*=\s*(?:\"([^\"]{1,64})\"|'?([^;,\s\"']{1,64}))", re.IGNORECASE
)
_HEADER_CHARS = 1024

_HTML_START = re.compile(
    r"<(?:!doctype\s{1,16}html|!--|(?:html|head|body|script|iframe|h[1-6]|div|font|table|a|style|title|b|br|p|"
    r"meta|link|main|article|section|nav|header|ul|ol|span|center|form)(?=[\s/>]))",
    re.IGNORECASE,
)
_XML_START = re.compile(r"<\?xml\s", re.IGNORECASE)
_FEED_START = re.compile(r"<(?:rss|feed|rdf:rdf|svg|urlset|sitemapindex|opml)[\s>]", re.IGNORECASE)
_XHTML_ROOT = re.compile(r"<(?:!doctype\s{1,16}html|html[\s>])", re.IGNORECASE)
_SNIFF_CHARS = 1500


class Kind(StrEnum):
    """How a body becomes text."""

    HTML = "html"
    TEXT = "text"
    UNDECIDED = "undecided"
    """No or a generic type: what it is shows in its decoded beginning."""


@attrs.frozen(kw_only=True)
class MediaType:
    """A Content-Type taken apart; `essence` is lower-case, None when missing or malformed."""

    essence: str | None
    charset: str | None


def parse_content_type(header: str | None) -> MediaType:
    """The media type and charset a Content-Type header states; of several, the first."""
    if header is None:
        return MediaType(essence=None, charset=None)
    header = header[:_HEADER_CHARS]
    match = _MEDIA_TYPE.match(header)
    charset = _CHARSET.search(header)
    return MediaType(
        essence=match[1].lower() if match else None,
        charset=(charset[1] or charset[2]) if charset else None,
    )


def kind_of(essence: str | None) -> Kind | None:
    """How a body of this type becomes text, or None when it does not."""
    if essence is None or essence in GENERIC:
        return Kind.UNDECIDED
    if essence in {HTML, XHTML}:
        return Kind.HTML
    readable = essence.startswith("text/") or essence in _TEXT_LIKE
    return Kind.TEXT if readable or essence.endswith(_TEXT_SUFFIXES) else None


def may_be_html(content_type: str | None) -> bool:
    """Whether a body with this header can be parsed as HTML."""
    return kind_of(parse_content_type(content_type).essence) in {Kind.HTML, Kind.UNDECIDED}


def may_be_feed(media_type: str) -> bool:
    """Whether a body of this type can hold a feed."""
    return media_type.endswith("xml")


def binary_content(body: bytes, *, declared_text: bool) -> str | None:
    """What kind of binary data *body* is, or None when it can be text.

    Args:
        body: The body; only its beginning is looked at.
        declared_text: Whether a header called it text, which forgives a stray control byte.
    """
    head = body[:_HEAD_BYTES]
    start = head.lstrip(_WHITE)
    for signature, name in _SIGNATURES:
        if start.startswith(signature) or head.startswith(signature):
            return name
    if head.startswith(_UNICODE_MARKS) or utf16_codec(head) is not None:
        return None
    control = len(head) - len(head.translate(None, _BINARY))
    allowed = len(head) * _MAX_BINARY_SHARE if declared_text else 0
    return "binary data" if control > allowed else None


def sniffed_type(text: str) -> str:
    """Media type of decoded text that came without one."""
    head = text[:_SNIFF_CHARS].lstrip()
    if _HTML_START.match(head):
        # A comment may open either; an XML or feed root decides.
        return HTML
    if _XML_START.match(head):
        return XHTML if _XHTML_ROOT.search(head) else XML
    if _FEED_START.match(head):
        return XML
    return JSON if _looks_like_json(text, head) else PLAIN


def _looks_like_json(text: str, head: str) -> bool:
    closing = {"{": "}", "[": "]"}.get(head[:1])
    return closing is not None and text[-256:].rstrip().endswith(closing)
