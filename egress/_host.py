"""Host text to its one canonical form (R2, R3). Pure.

From here on only that form exists: matching, DNS, `Host`, SNI, events and the rebuilt URL use it.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NoReturn, TypeAlias

from egress.errors import UrlReason, UrlRejected

Address: TypeAlias = IPv4Address | IPv6Address
"""An IP address without zone; an IPv4-mapped IPv6 address never occurs in canonical values."""

MAX_HOST_CHARACTERS: Final = 253  # RFC 1035 section 2.3.4, as text without the final dot
MAX_LABEL_CHARACTERS: Final = 63  # RFC 1035 section 2.3.4
# A longer text cannot map to 253 characters of labels worth looking at, and UTS #46 is not free.
_MAX_TYPED_CHARACTERS: Final = 1024

_LABEL: Final = re.compile(r"[a-z0-9_-]+")
# Almost every host: canonical already, no A-label, and a last label that no one reads as a number.
_PLAIN: Final = re.compile(
    r"(?:(?!xn--)[a-z0-9_-]{1,63}\.)*(?!xn--)[a-z_-][a-z0-9_-]{0,62}", re.ASCII
)
_QUAD: Final = re.compile(
    r"(?:0|[1-9][0-9]{0,2})\.(?:0|[1-9][0-9]{0,2})\.(?:0|[1-9][0-9]{0,2})\.(?:0|[1-9][0-9]{0,2})"
)

# Default_Ignorable_Code_Point: browsers drop them, other parsers keep or refuse them, so a host
# with one means different things to different readers.
# Source: Unicode 16, DerivedCoreProperties.txt. Category Cf is refused beside these.
_IGNORABLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def canonical_host(text: str) -> tuple[str, Address | None]:
    """The canonical host and, for a literal, its address.

    An IPv6 literal comes in brackets and goes out without; an IPv4-mapped one is the IPv4.

    Raises:
        UrlRejected: R2 or R3 refuses the text.
    """
    if _PLAIN.fullmatch(text) and len(text) <= MAX_HOST_CHARACTERS:
        return text, None
    if text.startswith("["):
        address = _bracketed(text)
        return str(address), address
    name = canonical_name(text)
    last = name.rpartition(".")[2]
    if not (last.isdigit() or last.startswith("0x")):
        return name, None
    return name, _dotted_quad(text)


def canonical_name(text: str) -> str:
    """*text* lower-case, as A-labels, without one trailing dot, every label checked.

    Raises:
        UrlRejected: R2 refuses the text.
    """
    if len(text) > _MAX_TYPED_CHARACTERS:
        _refuse("R2", UrlReason.HOST_TOO_LONG, "the host is too long")
    name = text.lower() if text.isascii() else _to_ascii(text)
    name = name.removesuffix(".")
    if not name:
        _refuse("R1", UrlReason.NO_HOST, "the host is empty")
    if len(name) > MAX_HOST_CHARACTERS:
        _refuse("R2", UrlReason.HOST_TOO_LONG, "the host has more than 253 characters")
    for label in name.split("."):
        _check_label(label)
    return name


def _check_label(label: str) -> None:
    if not label:
        _refuse("R2", UrlReason.LABEL_EMPTY, "the host has an empty label")
    if not _LABEL.fullmatch(label):
        _refuse("R2", UrlReason.HOST_CHARACTER, "the host has a character no label may have")
    if len(label) > MAX_LABEL_CHARACTERS:
        _refuse("R2", UrlReason.LABEL_TOO_LONG, "a label has more than 63 characters")
    if label.startswith("xn--"):
        _check_a_label(label)


def _to_ascii(text: str) -> str:
    """UTS #46, non-transitional, each non-ASCII label as an A-label.

    Source: https://www.unicode.org/reports/tr46/ section 4, with the mapping table of `idna`.
    """
    # The table is large; almost every run meets ASCII hosts only.
    import idna

    _refuse_invisible(text)
    try:
        mapped = idna.uts46_remap(text, std3_rules=False, transitional=False)
    except (idna.IDNAError, UnicodeError, IndexError, ValueError) as error:
        raise _idna_refused() from error
    return ".".join(_encode_label(label) for label in mapped.split("."))


def _encode_label(label: str) -> str:
    if label.isascii():
        return label
    # UTS #46 section 4.1: an A-label holds ASCII only, so this is neither kind of label.
    if label.startswith("xn--"):
        raise _idna_refused()
    try:
        return "xn--" + label.encode("punycode").decode("ascii")
    except (UnicodeError, ValueError, OverflowError) as error:
        raise _idna_refused() from error


def _check_a_label(label: str) -> None:
    """Refuse an A-label that does not decode to a valid U-label and back to itself.

    Emoji and other symbols pass, as in browsers: UTS #46 allows them, only IDNA 2008 does not.
    """
    import idna

    try:
        unicode_label = label[4:].encode("ascii").decode("punycode")
        again = unicode_label.encode("punycode").decode("ascii")
        mapped = idna.uts46_remap(unicode_label, std3_rules=False, transitional=False)
        idna.check_nfc(unicode_label)
        idna.check_initial_combiner(unicode_label)
        idna.check_bidi(unicode_label)
    # Each of these was seen to leave `idna` or the punycode codec on hostile labels.
    except (idna.IDNAError, UnicodeError, ValueError, OverflowError, IndexError) as error:
        raise _idna_refused() from error
    if unicode_label.isascii() or unicode_label.startswith("xn--"):
        raise _idna_refused()
    if again != label[4:] or mapped != unicode_label:
        raise _idna_refused()
    _refuse_invisible(unicode_label)


def _refuse_invisible(text: str) -> None:
    import unicodedata

    if _IGNORABLE.search(text) or any(unicodedata.category(each) == "Cf" for each in text):
        _refuse("R2", UrlReason.IDNA, "the host has an invisible or format character")


def _dotted_quad(typed: str) -> IPv4Address:
    """The IPv4 that *typed* is, when it is the canonical ASCII form and nothing else.

    Resolvers read `0x7f.1`, `017700000001`, `127.1` and fullwidth digits as addresses; parsers
    disagree on all of them.
    """
    refused = UrlRejected(
        rule="R3",
        reason=UrlReason.NUMERIC_HOST,
        message="a numeric host must be a canonical dotted quad",
    )
    if not _QUAD.fullmatch(typed):
        raise refused
    try:
        return IPv4Address(typed)
    except AddressValueError as error:
        raise refused from error


def _bracketed(text: str) -> Address:
    inner = text[1:-1]
    # ipaddress accepts a zone after "%"; R3 does not.
    if not text.endswith("]") or "%" in inner or not inner.isascii():
        _refuse("R3", UrlReason.IPV6_LITERAL, "the bracketed host is not an IPv6 address")
    try:
        address = IPv6Address(inner)
    except AddressValueError as error:
        raise UrlRejected(
            rule="R3",
            reason=UrlReason.IPV6_LITERAL,
            message="the bracketed host is not an IPv6 address",
        ) from error
    return address.ipv4_mapped or address


def _idna_refused() -> UrlRejected:
    return UrlRejected(
        rule="R2", reason=UrlReason.IDNA, message="the host is not a valid internationalised name"
    )


def _refuse(rule: str, reason: UrlReason, message: str) -> NoReturn:
    raise UrlRejected(rule=rule, reason=reason, message=message)
