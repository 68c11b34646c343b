"""The stored words for how a charset was chosen."""

from enum import StrEnum


class CharsetSource(StrEnum):
    """Which evidence decided the charset of a body, strongest first."""

    BOM = "bom"
    ESCAPES = "escapes"
    """ISO-2022-JP, known by its escape sequences."""
    VALID_UTF8 = "valid_utf8"
    HEADER = "header"
    META = "meta"
    """A `meta` element, or the encoding of an XML declaration."""
    DETECTED = "detected"
    FALLBACK = "fallback"
    """Nothing fitted; undecodable bytes became U+FFFD."""
