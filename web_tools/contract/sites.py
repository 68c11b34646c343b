"""One normalised host to search in, and whether a result lies there. Pure.

A site is compared with the canonical host of a result's URL, so it is made canonical by the same
parser: UTS #46, non-transitional. The standard library's codec would make `strasse.example` of
`straße.example`, which is another host.
"""

import re
from typing import Final

from egress.errors import UrlRejected
from egress.url import Target, parse_target
from web_tools._fields import Refused

__all__ = ("is_under", "site_of")

# What ends or is no part of a host in a URL; `:` and brackets are ports and address literals.
_NOT_OF_A_NAME: Final = re.compile(r"[\s/?#@:\[\]\\%*]")
# RFC 1123 2.1: a label begins and ends with a letter or a digit; `_` stands in names of services.
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\Z")
_FORM: Final = (
    "must be one host name, such as example.com: no scheme, port, path, wildcard or address"
)


def site_of(value: object) -> str:
    """The canonical host that *value* names: lower case, A-labels, no final dot.

    Raises:
        Refused: It is not one host name; an address has no labels to match on.
    """
    if not isinstance(value, str) or not value or _NOT_OF_A_NAME.search(value):
        raise Refused(_FORM)
    try:
        target = parse_target(f"http://{value}/")
    except UrlRejected:
        raise Refused(_FORM) from None
    if target.is_literal or not all(map(_LABEL.match, target.host.split("."))):
        raise Refused(_FORM)
    return target.host


def is_under(site: str, target: Target) -> bool:
    """Whether *target*'s host is *site* or below it, on label boundaries."""
    return target.host == site or target.host.endswith(f".{site}")
