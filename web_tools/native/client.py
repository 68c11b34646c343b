"""One request to a model that searches, through the operator's policy: that endpoint and no other.

Neither the query nor the key is in any error that leaves here.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from egress.errors import DeadlineExceeded, EgressDenied, EgressError, Stopped, UrlRejected
from egress.policy import AddressPolicy
from egress.ports import FetchLimits
from egress.request import ApiPolicy, Response, Signal, Wires, request_through_policy
from egress.url import parse_target
from web_tools._provider_failure import holds_any
from web_tools.errors import InvalidSetup
from web_tools.native._reading import status_fault
from web_tools.native.values import Codec, NativeAsk, NativeFailed, NativeFault, NativeTurn

__all__ = ("NativeEndpoint", "ask_natively")

_MAX_BODY_BYTES: Final = 2 << 20


@attrs.frozen(kw_only=True)
class NativeEndpoint:
    """Where the API of a provider is, and the key for it.

    Attributes:
        base_url: What stands before the path of the protocol.
        address: The operator's exemptions from the address check, for a server of one's own.

    Raises:
        InvalidSetup: The base is no URL, or would take the key without TLS to a host that
            `allowed_hosts` does not name.
    """

    base_url: str
    key: str | None = attrs.field(default=None, repr=False)
    address: AddressPolicy = attrs.field(factory=AddressPolicy)
    wires: Wires | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        try:
            target = parse_target(self.base_url)
        except UrlRejected as error:
            raise InvalidSetup("base_url", error.message) from error
        if "?" in self.base_url or "#" in self.base_url:
            raise InvalidSetup("base_url", "has a query or a fragment")
        if target.scheme != "https" and target.host not in self.address.allowed_hosts:
            raise InvalidSetup("base_url", "must be https, or a host that allowed_hosts names")

    @property
    def policy(self) -> ApiPolicy:
        """Exactly this endpoint."""
        origin = parse_target(self.base_url).origin
        return ApiPolicy(address=self.address, origins=frozenset({origin}))


async def ask_natively(
    codec: Codec,
    ask: NativeAsk,
    endpoint: NativeEndpoint,
    *,
    timeout_seconds: float,
    signal: Signal | None = None,
) -> NativeTurn:
    """One response.

    Raises:
        NativeFailed: There is none.
    """
    request = codec.encode(ask)
    headers = {"content-type": "application/json", "accept": "application/json"}
    if endpoint.key is not None:
        headers.update(codec.headers(endpoint.key))
    fault = NativeFault.UNAVAILABLE
    response: Response | None = None
    try:
        response = await request_through_policy(
            endpoint.base_url.rstrip("/") + request.path,
            policy=endpoint.policy,
            method="POST",
            headers=headers,
            # Not orjson: what a provider wants back may hold halves of pairs.
            body=json.dumps(request.body).encode(),
            signal=signal,
            limits=FetchLimits(timeout_seconds=timeout_seconds, max_decoded_bytes=_MAX_BODY_BYTES),
            wires=endpoint.wires,
        )
    except EgressError as error:
        fault = _fault_of(error)
    # Raised outside of the handler: what repeats the query or the key must not stay as context.
    if response is None:
        raise NativeFailed(fault)
    return _decoded(codec, response, endpoint.key)


def _fault_of(error: EgressError) -> NativeFault:
    if isinstance(error, DeadlineExceeded | Stopped):
        return NativeFault.DEADLINE
    return NativeFault.NOT_REACHABLE if isinstance(error, EgressDenied) else NativeFault.UNAVAILABLE


def _decoded(codec: Codec, response: Response, key: str | None) -> NativeTurn:
    if response.status != 200:
        # A redirect is none of ours: it is not followed, and is no answer.
        raise NativeFailed(status_fault(response.status))
    try:
        body = response.json()
    except ValueError:
        body = None
    if body is None:
        raise NativeFailed(NativeFault.BAD_ANSWER)
    if key is not None and holds_any(response.body.decode("utf-8", "replace"), {key}):
        raise NativeFailed(NativeFault.BAD_ANSWER)
    return codec.decode(body)
