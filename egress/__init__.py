"""May this URL be fetched, and a client that fetches only what may.

The decisions are pure functions over frozen values and load at once; the client, its ports and the
transport load when they are first asked for, so that `import egress` does not load aiohttp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from egress.allowlist import Allowlist, parse_allowlist
from egress.decision import Allow, Deny, DenyReason, check_address, check_answers, check_listed
from egress.errors import AllowlistError, EgressDenied, EgressError, FetchError, UrlRejected
from egress.explain import Explanation, explain, explain_connect
from egress.policy import PUBLIC_HOSTS, AddressPolicy, EgressPolicy, Layer, layered_policy
from egress.url import Target, parse_target, resolve_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from egress.client import Fetched, GuardedClient, RunMeter
    from egress.ports import (
        Fetch,
        FetchLimits,
        HopRequest,
        HopResponse,
        Observer,
        Resolver,
        RunLimits,
        RunUsage,
        Transport,
    )
    from egress.proxied import proxied_fetch
    from egress.proxy import EgressProxy, ProxyLimits, ProxyRun, serve_proxy
    from egress.request import ApiPolicy, Response, request_through_policy
    from egress.resolver import SystemResolver
    from egress.transport import AiohttpTransport
    from egress.violation import Violation

__all__ = (
    "PUBLIC_HOSTS",
    "AddressPolicy",
    "AiohttpTransport",
    "Allow",
    "Allowlist",
    "AllowlistError",
    "ApiPolicy",
    "Deny",
    "DenyReason",
    "EgressDenied",
    "EgressError",
    "EgressPolicy",
    "EgressProxy",
    "Explanation",
    "Fetch",
    "FetchError",
    "FetchLimits",
    "Fetched",
    "GuardedClient",
    "HopRequest",
    "HopResponse",
    "Layer",
    "Observer",
    "ProxyLimits",
    "ProxyRun",
    "Resolver",
    "Response",
    "RunLimits",
    "RunMeter",
    "RunUsage",
    "SystemResolver",
    "Target",
    "Transport",
    "UrlRejected",
    "Violation",
    "check_address",
    "check_answers",
    "check_listed",
    "explain",
    "explain_connect",
    "layered_policy",
    "parse_allowlist",
    "parse_target",
    "proxied_fetch",
    "request_through_policy",
    "resolve_location",
    "serve_proxy",
)

# Name to module, for what brings asyncio or aiohttp with it, and for what only fetching needs.
_LATE: Final[Mapping[str, str]] = {
    "Fetch": "egress.ports",
    "FetchLimits": "egress.ports",
    "HopRequest": "egress.ports",
    "HopResponse": "egress.ports",
    "Observer": "egress.ports",
    "Resolver": "egress.ports",
    "RunLimits": "egress.ports",
    "Transport": "egress.ports",
    "Violation": "egress.violation",
    "AiohttpTransport": "egress.transport",
    "EgressProxy": "egress.proxy",
    "Fetched": "egress.client",
    "GuardedClient": "egress.client",
    "RunMeter": "egress.client",
    "RunUsage": "egress.ports",
    "ApiPolicy": "egress.request",
    "Response": "egress.request",
    "request_through_policy": "egress.request",
    "ProxyLimits": "egress.proxy",
    "ProxyRun": "egress.proxy",
    "SystemResolver": "egress.resolver",
    "proxied_fetch": "egress.proxied",
    "serve_proxy": "egress.proxy",
}

# Hidden from type checkers: they would take any name of this module for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module 'egress' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
