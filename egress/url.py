"""Text to `Target` (R1-R3) and redirect references to `Target` (R12). Pure.

One parser and one join. What they return is the only URL that is matched, sent and reported:
it is rebuilt from checked parts, and the original text goes no further.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NoReturn

import attrs

from egress._host import Address, canonical_host
from egress.errors import UrlReason, UrlRejected

__all__ = ("MAX_URL_CHARACTERS", "Target", "parse_target", "resolve_location")

MAX_URL_CHARACTERS: Final = 8192  # RFC 9110 section 4.1 asks for 8,000 octets at least

DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}

_OUTER_WHITESPACE: Final = " \t\r\n"
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_ABSOLUTE: Final = re.compile(
    r"(https?)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.ASCII | re.DOTALL
)
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):(/*)", re.IGNORECASE | re.ASCII)
_RELATIVE: Final = re.compile(r"([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_RAW_BYTE: Final = re.compile("[\udc80-\udcff]")

# RFC 3986 section 3.3 and 3.4: what a path and a query may hold as they are.
_PCHAR: Final = r"A-Za-z0-9\-._~!$&'()*+,;=:@"
_CLEAN_PATH: Final = re.compile(rf"(?:[{_PCHAR}/]|%[0-9A-Fa-f]{{2}})*")
_CLEAN_QUERY: Final = re.compile(rf"(?:[{_PCHAR}/?]|%[0-9A-Fa-f]{{2}})*")
_UNCLEAN_PATH: Final = re.compile(rf"%(?![0-9A-Fa-f]{{2}})|[^{_PCHAR}/%]+")
_UNCLEAN_QUERY: Final = re.compile(rf"%(?![0-9A-Fa-f]{{2}})|[^{_PCHAR}/?%]+")
_DOT_SEGMENT: Final = re.compile(r"/(?:\.|%2e){1,2}(?:/|\Z)", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Target:
    """One admitted URL in canonical parts. Made by `parse_target` and `resolve_location` only.

    Attributes:
        scheme: "http" or "https".
        host: Canonical host: lower-case A-labels, or an address (IPv6 without brackets).
        port: Always present, the scheme's default when none was written.
        path_query: The request target in origin-form: starts with "/", ASCII, no fragment.
        address: The address of a literal host, else None.
    """

    scheme: str
    host: str
    port: int
    path_query: str
    address: Address | None = None

    @property
    def is_literal(self) -> bool:
        """Whether the host is an address, which is never looked up."""
        return self.address is not None

    @property
    def authority(self) -> str:
        """Host, in brackets when IPv6, with the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme and authority, without a path."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The canonical text; parsing it gives this target again."""
        return f"{self.scheme}://{self.authority}{self.path_query}"

    @property
    def document_url(self) -> str:
        """The URL of the document: a target has no fragment, so it is `url`."""
        return self.url

    def __str__(self) -> str:
        """The origin alone: what is formatted by accident holds no path and no query."""
        return self.origin

    def __repr__(self) -> str:
        return f"<Target {self.origin}>"


def parse_target(text: str) -> Target:
    """The one target that *text* names.

    Total: every other outcome is `UrlRejected`, whatever *text* is.

    Raises:
        UrlRejected: R1, R2 or R3 refuses the text.
    """
    trimmed = _admit_text(text)
    match = _ABSOLUTE.fullmatch(trimmed)
    if match is None:
        _refuse_form(trimmed)
    scheme, authority, path, query = match.groups()
    return _build(scheme.lower(), authority, _remove_dots(_clean_path(path)) or "/", query)


def resolve_location(base: Target, location: str) -> Target:
    """The target that a `Location` value of a response from *base* names.

    Absolute (R1), or a relative reference that every parser reads alike: neither three slashes
    nor a scheme without two. Bytes that were not UTF-8 (surrogate escapes) are percent-encoded.

    Raises:
        UrlRejected: R1-R3 or R12 refuses the reference.
    """
    if not isinstance(location, str):
        _refuse("R1", UrlReason.NOT_TEXT, "the reference is not text")
    trimmed = _admit_text(_RAW_BYTE.sub(_percent_byte, location))
    if _SCHEME.match(trimmed):
        return parse_target(trimmed)
    if trimmed.startswith("///"):
        _refuse("R12", UrlReason.SLASHES, "a reference with three slashes is read in two ways")
    if trimmed.startswith("//"):
        return parse_target(f"{base.scheme}:{trimmed}")
    return _resolve_relative(base, trimmed)


def _resolve_relative(base: Target, reference: str) -> Target:
    """RFC 3986 section 5.2.2 for a reference without scheme and authority."""
    match = _RELATIVE.fullmatch(reference)
    if match is None:
        _refuse("R12", UrlReason.REFERENCE, "not a relative reference")
    path, query = match.groups()
    base_path, _, base_query = base.path_query.partition("?")
    if not path:
        kept = base_query if query is None else query
        return _replace_path(base, base_path, kept)
    if not path.startswith("/"):
        if ":" in path.split("/", 1)[0]:
            _refuse("R12", UrlReason.REFERENCE, "a colon in the first segment of a relative path")
        path = base_path[: base_path.rfind("/") + 1] + path
    return _replace_path(base, _remove_dots(_clean_path(path)), query)


def _replace_path(base: Target, path: str, query: str | None) -> Target:
    target = attrs.evolve(base, path_query=_join(path, query))
    _check_length(target.url)
    return target


def _build(scheme: str, authority: str, path: str, query: str | None) -> Target:
    host, address, port = _split_authority(scheme, authority)
    target = Target(
        scheme=scheme, host=host, port=port, path_query=_join(path, query), address=address
    )
    _check_length(target.url)
    return target


def _join(path: str, query: str | None) -> str:
    # An empty query is dropped: what is sent and what is reported must be the same text.
    return f"{path}?{_clean_query(query)}" if query else path


def _admit_text(text: str) -> str:
    """R1 over the whole text: type, length, outer whitespace, controls, backslash."""
    if not isinstance(text, str):
        _refuse("R1", UrlReason.NOT_TEXT, "the URL is not text")
    _check_length(text)
    trimmed = text.strip(_OUTER_WHITESPACE)
    found = _FORBIDDEN.search(trimmed)
    if found is not None and found.group() == "\\":
        _refuse("R1", UrlReason.BACKSLASH, "a backslash is read as a slash by some parsers")
    if found is not None:
        _refuse("R1", UrlReason.CONTROL_CHARACTER, "a control character in the URL")
    if not trimmed.isascii():
        _check_unicode(trimmed)
    return trimmed


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UrlRejected(
            rule="R1", reason=UrlReason.NOT_UNICODE, message="the URL has a lone surrogate"
        ) from error


def _check_length(text: str) -> None:
    if len(text) > MAX_URL_CHARACTERS:
        _refuse("R1", UrlReason.TOO_LONG, f"the URL has more than {MAX_URL_CHARACTERS} characters")


def _refuse_form(trimmed: str) -> NoReturn:
    scheme = _SCHEME.match(trimmed)
    if scheme is None:
        _refuse("R1", UrlReason.NO_SCHEME, "not an absolute URL: it must start with http(s)://")
    if scheme.group(1).lower() not in DEFAULT_PORTS:
        _refuse("R1", UrlReason.SCHEME_NOT_ALLOWED, "only http and https are fetched")
    _refuse("R1", UrlReason.SLASHES, "exactly two slashes must follow the scheme")


def _split_authority(scheme: str, authority: str) -> tuple[str, Address | None, int]:
    _check_authority(authority)
    if authority.startswith("["):
        inner, bracket, rest = authority.partition("]")
        if rest and not rest.startswith(":"):
            _refuse("R3", UrlReason.IPV6_LITERAL, "text after the bracketed address")
        host_text, port_text = inner + bracket, rest[1:]
    else:
        host_text, _, port_text = authority.partition(":")
    host, address = canonical_host(host_text)
    return host, address, parse_port(port_text, default=DEFAULT_PORTS[scheme])


def _check_authority(authority: str) -> None:
    if not authority:
        _refuse("R1", UrlReason.NO_HOST, "the URL has no host, or more than two slashes")
    if "@" in authority:
        _refuse("R1", UrlReason.CREDENTIALS, "credentials are not accepted in a URL")
    if "%" in authority:
        _refuse("R1", UrlReason.PERCENT_IN_HOST, "a percent sign in the host")
    if " " in authority or (not authority.isascii() and any(each.isspace() for each in authority)):
        _refuse("R1", UrlReason.WHITESPACE_IN_HOST, "whitespace in the host")


def parse_port(text: str, *, default: int) -> int:
    """The port *text* means: empty is *default*, else 1-5 ASCII digits, 1-65535.

    Raises:
        UrlRejected: It is none of these.
    """
    if not text:
        return default
    port = int(text) if _PORT.fullmatch(text) else 0
    if not 1 <= port <= 65535:
        _refuse("R1", UrlReason.PORT, "the port is not a number from 1 to 65535")
    return port


def _clean_path(path: str) -> str:
    if _CLEAN_PATH.fullmatch(path):
        return path
    return _UNCLEAN_PATH.sub(_percent_encode, path)


def _clean_query(query: str) -> str:
    if _CLEAN_QUERY.fullmatch(query):
        return query
    return _UNCLEAN_QUERY.sub(_percent_encode, query)


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8"))


def _percent_byte(match: re.Match[str]) -> str:
    return f"%{ord(match.group()) - 0xDC00:02X}"


def _remove_dots(path: str) -> str:
    """RFC 3986 section 5.2.4, with `%2e` read as a dot like every browser does."""
    if not _DOT_SEGMENT.search(path):
        return path
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        dots = segment.lower().replace("%2e", ".")
        if dots == "..":
            del kept[-1:]
        elif dots != ".":
            kept.append(segment)
    if segments[-1].lower().replace("%2e", ".") in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)


def _refuse(rule: str, reason: UrlReason, message: str) -> NoReturn:
    raise UrlRejected(rule=rule, reason=reason, message=message)
