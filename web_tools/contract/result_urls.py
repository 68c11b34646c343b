"""Whether a result's URL may be shown: by its form and its literal address. Pure.

No name is looked up, for that would tell every host of a result list that it was found; a read
judges the URL again, with its addresses. `localhost` and what is below it are addresses in the
clothes of names (RFC 6761 section 6.3), so they are judged as such.
"""

from typing import Final
from urllib.parse import quote

import attrs

from egress.allowlist import parse_allowlist
from egress.decision import Allow, check_address
from egress.errors import UrlRejected
from egress.policy import AddressPolicy, EgressPolicy
from egress.url import Target, parse_target

__all__ = ("ResultUrl", "is_admitted", "result_url")

_LOCALHOST: Final = "localhost"
# RFC 3986 section 3.5, and the percent sign, so that what is escaped stays as it is.
_FRAGMENT: Final = "!$&'()*+,;=:@/?-._~%"


@attrs.frozen(kw_only=True)
class ResultUrl:
    """A URL of a result: its target, and the fragment that a target does not have."""

    target: Target
    fragment: str

    @property
    def url(self) -> str:
        """The canonical text."""
        return self.target.url + (f"#{self.fragment}" if self.fragment else "")


def result_url(text: object) -> ResultUrl | None:
    """The URL that *text* is; None when it is not one that we accept.

    White space anywhere refuses it: a vendor that does not escape it does not give URLs.
    """
    if not isinstance(text, str) or any(character.isspace() for character in text):
        return None
    try:
        target = parse_target(text)
    except UrlRejected:
        return None
    fragment = text.partition("#")[2]
    return ResultUrl(target=target, fragment=quote(fragment, safe=_FRAGMENT))


def is_admitted(target: Target, policy: AddressPolicy) -> bool:
    """Whether the address policy has nothing against *target*."""
    if target.address is not None:
        nothing_listed = EgressPolicy(allowlist=parse_allowlist(()), address=policy)
        verdict = check_address(nothing_listed, target.address, host=target.host)
        return isinstance(verdict, Allow) and _is_secure_enough(target, policy)
    if target.host != _LOCALHOST and not target.host.endswith(f".{_LOCALHOST}"):
        return _is_secure_enough(target, policy)
    return policy.allow_private_addresses or target.host in policy.allowed_hosts


def _is_secure_enough(target: Target, policy: AddressPolicy) -> bool:
    return target.scheme == "https" or not policy.https_only
