"""Addresses of the web in canonical form: what a run compares, and what it finds in texts. Pure.

Two texts are one address when a server could not tell them apart: scheme and host in lower case and
ASCII, the default port dropped, dot segments and needless escapes resolved, the query kept as it is,
the fragment dropped. Anything else is another address.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from egress.errors import UrlReason, UrlRejected
from egress.url import Target, parse_target
from runtime_pack.address_book import Address, AddressFault

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

__all__ = ("WEB_ADDRESSES", "WebAddresses", "last_labels", "site_of")

# RFC 3986 section 2.3: an escape of one of these says nothing that the character does not.
_NEEDLESS: Final = re.compile(
    r"%(?:2[dDeE]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aAeE])"
)
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_FOUND: Final = re.compile(r"https?://[^\s<>\"'`^{}|\\]+", re.IGNORECASE)
# A name and what may follow it, as people write it: `docs.example.org/guide`.
_BARE: Final = re.compile(
    r"(?<![\w@/.:%-])(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,8}[a-z][a-z0-9-]{1,62}"
    r"(?::[0-9]{1,5})?(?:/[^\s<>\"'`^{}|\\]*)?(?![\w@])",
    re.IGNORECASE | re.ASCII,
)
_WWW: Final = re.compile(r"www\.", re.IGNORECASE)
_TRAILING: Final = ".,;:!?*_~"
_PAIRS: Final = {")": "(", "]": "["}
# More than a page has that people read; those beyond them are known to nobody.
_MOST_FOUND: Final = 10_000


class WebAddresses:
    """Reads addresses of http and https."""

    def read(self, text: str) -> Address | AddressFault:
        """The address that a text is; never raises."""
        try:
            target = parse_target(text)
        except UrlRejected as error:
            return AddressFault(reason=_FAULTS.get(error.reason, "malformed"))
        return _address(target)

    def find(self, text: str, *, bare: bool = False) -> tuple[Address, ...]:
        """Every address in a text, in its order: with a scheme, or as `www.…`, which is one under both.

        With *bare*, those of any other name without a scheme too.
        """
        found: dict[str, Address] = {}
        for match in _FOUND.finditer(text):
            self._take(found, _without_end(match[0]))
        if bare or _WWW.search(text):
            for match in _BARE.finditer(_FOUND.sub(" ", text)):
                # What begins so is shown as a link wherever it stands, as GitHub's Markdown does.
                for scheme in ("https", "http") if bare or _WWW.match(match[0]) else ():
                    self._take(found, f"{scheme}://{_without_end(match[0])}")
        return tuple(found.values())

    def site(self, host: str) -> str:
        """The registrable domain of a host; an address without a name is its own."""
        return site_of(host)

    def _take(self, found: dict[str, Address], text: str) -> None:
        address = self.read(text) if len(found) < _MOST_FOUND else None
        if isinstance(address, Address):
            found.setdefault(address.url, address)


WEB_ADDRESSES: Final = WebAddresses()

_FAULTS: Final = {
    UrlReason.CREDENTIALS: "credentials_in_url",
    UrlReason.SCHEME_NOT_ALLOWED: "scheme",
    UrlReason.NO_SCHEME: "scheme",
}


def _address(target: Target) -> Address:
    path, mark, query = target.path_query.partition("?")
    clean = _ESCAPE.sub(_upper, _NEEDLESS.sub(_character, path)) if "%" in path else path
    return Address(
        url=f"{target.origin}{clean}{mark}{query}",
        host=target.host,
    )


def _character(match: re.Match[str]) -> str:
    return chr(int(match[0][1:], 16))


def _upper(match: re.Match[str]) -> str:
    return match[0].upper()


def _without_end(text: str) -> str:
    """An address without the signs of the sentence around it; brackets that it opened stay."""
    kept = len(text)
    # How many brackets of each kind are closed without having been opened.
    surplus = {shut: text.count(shut) - text.count(opened) for shut, opened in _PAIRS.items()}
    while kept:
        last = text[kept - 1]
        if surplus.get(last, 0) > 0:
            surplus[last] -= 1
        elif last not in _TRAILING:
            break
        kept -= 1
    return text[:kept]


def site_of(host: str) -> str:
    """The registrable domain of a host name; the name itself where there is none.

    Source: the public suffix list, as the extra `public-suffixes` holds it; private suffixes are
    suffixes. Without the extra, the last two labels: never finer, so that no owner of many names is
    counted as many.
    """
    if ":" in host or host.rpartition(".")[2].isdigit():
        return host
    listed = _suffixes()
    return last_labels(host) if listed is None else listed.privatesuffix(host) or host


def last_labels(host: str) -> str:
    """The last two labels of a name: a registrable domain, or a suffix above several."""
    return ".".join(host.split(".")[-2:])


@functools.cache
def _suffixes() -> PublicSuffixList | None:
    # A fifth of a second to read: only a run that follows links pays for it.
    try:
        from publicsuffixlist import PublicSuffixList
    except ImportError:
        return None
    return PublicSuffixList()
