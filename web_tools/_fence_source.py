"""The `source` and `retrieved-at` values of the open tag.

Addresses are attacker text too: printable ASCII only, no quote, no bracket, no credentials, no
spelling of the tag's name, bounded.
"""

import functools
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import attrs

from web_tools import _fence_tags, _fence_tokens
from web_tools.visible import replace_surrogates

__all__ = ("SourceFlag", "SourceValue", "source_value", "time_value")

# The page allows 2,048 and also a first line of at most 2,100 characters; with the other
# attributes and the notice the second bound is the tighter one.
SOURCE_LIMIT: Final = 1_700
_KNOWN_CHARS: Final = 128
CUT_MARK: Final = "[cut]"
NAME_MARK: Final = "[fence-name]"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_AUTHORITY: Final = re.compile(r"([/\\]*)([^/\\?#]*)(.*)", re.DOTALL)
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:]*)(?::([0-9]*))?")
_OUTSIDE: Final = re.compile(r"[^\x21\x23-\x3b\x3d\x3f-\x7e]")
# WHATWG URL: what a browser drops before it reads an address.
_EDGES: Final = "".join(chr(number) for number in range(0x21))
_BREAKS: Final = dict.fromkeys(map(ord, "\t\n\r"))

# An address that is canonical as it stands, and too plain to spell anything.
_PLAIN: Final = re.compile(r"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)*(?:/[A-Za-z0-9./_~=?-]{0,1000})?")

_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z"
)
INVALID_TIME: Final = "invalid"


@functools.cache
def _suspect() -> re.Pattern[str]:
    return re.compile("(?i)u[^a-z0-9]*+n[^a-z0-9]*+t[^a-z0-9]*+r[^a-z0-9]*+u")


class SourceFlag(StrEnum):
    """Why an address is not one a reader should follow."""

    CREDENTIALS = "credentials"
    MALFORMED = "malformed"
    SCHEME = "scheme"


@attrs.frozen(kw_only=True)
class SourceValue:
    """The value for the tag, and what is wrong with the address if anything is."""

    text: str
    flag: SourceFlag | None


_NO_SOURCE: Final = SourceValue(text="none", flag=None)


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def _quoted(text: str) -> str:
    return _OUTSIDE.sub(_percent, text)


def _ascii_host(host: str) -> str | None:
    """A-label form of a host name, or None when it has none."""
    if host.isascii():
        return _quoted(host.lower())
    # Only an international host pays for the tables of idna.
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        return None


def _split_authority(rest: str) -> tuple[str, str, str]:
    """Slashes, authority and tail of what follows a scheme."""
    # The pattern matches every text.
    slashes, authority, tail = _AUTHORITY.fullmatch(rest).groups()  # type: ignore[union-attr]
    return slashes, authority, tail


def _web_address(scheme: str, rest: str) -> SourceValue:
    _, authority, tail = _split_authority(rest)
    credentials, at, host_port = authority.rpartition("@")
    parts = _HOST_PORT.fullmatch(host_port)
    host = _ascii_host(parts[1]) if parts else None
    if parts is None or not host:
        return _flagged(SourceFlag.MALFORMED, f"{scheme}://{host_port}{tail}")
    port = f":{parts[2]}" if parts[2] else ""
    return SourceValue(
        text=f"{scheme}://{host}{port}{_quoted(tail)}",
        flag=SourceFlag.CREDENTIALS if at and credentials else None,
    )


def _flagged(flag: SourceFlag, text: str) -> SourceValue:
    return SourceValue(text=f"not-web:{_quoted(text)}", flag=flag)


def _other_address(text: str, scheme: str, rest: str) -> SourceValue:
    slashes, authority, tail = _split_authority(rest)
    flag = SourceFlag.SCHEME if scheme else SourceFlag.MALFORMED
    if "@" not in authority:
        return _flagged(flag, text)
    # Without slashes the "scheme" may be a user name.
    front = f"{scheme}:{slashes}" if slashes and scheme else slashes
    return _flagged(flag, front + authority.rpartition("@")[2] + tail)


def _shortened(text: str) -> str:
    if len(text) <= SOURCE_LIMIT:
        return text
    place = SOURCE_LIMIT - len(CUT_MARK)
    percent = text.rfind("%", place - 2, place)  # never inside a percent triple
    return text[: percent if percent >= 0 else place] + CUT_MARK


def source_value(source: str | None) -> SourceValue:
    """The `source` of a block for any string; `none` when there is no address."""
    if source is None:
        return _NO_SOURCE
    return _known_value(source) if len(source) <= _KNOWN_CHARS else _value(source)


def _value(source: str) -> SourceValue:
    if _PLAIN.fullmatch(source) and not _suspect().search(source):
        return SourceValue(text=source, flag=None)
    text = replace_surrogates(source).strip(_EDGES).translate(_BREAKS)
    found = _SCHEME.fullmatch(text)
    scheme, rest = (found[1].lower(), found[2]) if found else ("", text)
    if scheme in ("http", "https"):
        value = _web_address(scheme, rest)
    else:
        value = _other_address(text, scheme, rest)
    hidden = _fence_tags.hide_name(value.text, NAME_MARK)
    broken = _fence_tokens.break_tokens(hidden)
    return attrs.evolve(value, text=_shortened(broken[-1].after if broken else hidden))


# A run fences the outputs of its few tools under the same few names.
_known_value = functools.lru_cache(maxsize=256)(_value)


def time_value(retrieved_at: str | datetime | None) -> str:
    """UTC time as `2025-01-31T12:00:00Z`, or the word `invalid`."""
    if retrieved_at is None:
        return INVALID_TIME
    if isinstance(retrieved_at, datetime):
        if retrieved_at.tzinfo is None:
            return INVALID_TIME
        moment = retrieved_at.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds" if moment.microsecond else "seconds") + "Z"
    if not _TIME.fullmatch(retrieved_at):
        return INVALID_TIME
    try:
        datetime.fromisoformat(retrieved_at)
    except ValueError:
        return INVALID_TIME
    return retrieved_at
