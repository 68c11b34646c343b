"""May this URL be fetched, and a client that fetches only what may.

The decisions are pure functions over frozen values and load at once; `GuardedClient` and the
transport load when they are first asked for, so that `import egress` does not load aiohttp.
"""

from egress.allowlist import Allowlist, parse_allowlist
from egress.decision import Allow, Deny, DenyReason, check_address, check_answers, check_listed
from egress.errors import AllowlistError, EgressDenied, EgressError, FetchError, UrlRejected
from egress.explain import Explanation, explain
from egress.policy import AddressPolicy, EgressPolicy
from egress.url import Target, parse_target, resolve_location
from egress.violation import Violation

__all__ = (
    "AddressPolicy",
    "Allow",
    "Allowlist",
    "AllowlistError",
    "Deny",
    "DenyReason",
    "EgressDenied",
    "EgressError",
    "EgressPolicy",
    "Explanation",
    "FetchError",
    "Target",
    "UrlRejected",
    "Violation",
    "check_address",
    "check_answers",
    "check_listed",
    "explain",
    "parse_allowlist",
    "parse_target",
    "resolve_location",
)
