"""The one place for cryptography of saved runs: a keyed tag over stored bytes.

Requests to people carry a tag of the same key, made over a text that can be no saved run's.

HMAC-SHA-256 (RFC 2104) from `cryptography`; the key is the host's. A state whose tag is missing or
wrong is refused.
"""

from __future__ import annotations

import secrets
from typing import Final, Self

import attrs

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.errors import ContractError, StateRefused
from runtime_pack.remembered import RememberedRule

__all__ = ("Seal", "check_request", "check_rule", "seal_request", "seal_rule")

# A head is a JSON object: it cannot begin like these.
_REQUEST: Final = b"approval request\n"
_RULE: Final = b"remembered approval\n"
_KEY_BYTES: Final = 32


class Seal:
    """A key that tags and checks. Its repr shows nothing of the key.

    Raises:
        ContractError: the key is not 32 bytes or longer.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise ContractError(
                "key", f"must be bytes, at least {_KEY_BYTES}: {type(key).__name__}"
            )
        if len(key) < _KEY_BYTES:
            raise ContractError("key", f"must be at least {_KEY_BYTES} bytes")
        self._key = key

    @classmethod
    def random(cls) -> Self:
        """A seal that no other process can check."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    def tag(self, body: bytes) -> str:
        """The tag of *body*, lower-case hex."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.hmac import HMAC

        mac = HMAC(self._key, SHA256())
        mac.update(body)
        return mac.finalize().hex()

    def check(self, body: bytes, tag: str) -> None:
        """Pass when *tag* is the tag of *body*; compared in constant time.

        Raises:
            StateRefused: it is not.
        """
        if not secrets.compare_digest(self.tag(body).encode(), tag.encode("utf-8", "replace")):
            raise StateRefused("the seal does not match: wrong key or edited bytes")


def seal_request(seal: Seal, request: ApprovalRequest) -> ApprovalRequest:
    """The request with its tag."""
    return attrs.evolve(request, seal=seal.tag(_REQUEST + request.body()))


def check_request(seal: Seal, request: ApprovalRequest) -> None:
    """Pass when the request is as it was made; for whoever shows one that was kept elsewhere.

    Raises:
        StateRefused: a field was changed, or it was made with another key.
    """
    try:
        body = request.body()
    # A request that somebody made by hand may hold anything.
    except (AttributeError, TypeError) as error:
        raise StateRefused("the request is not of its form") from error
    seal.check(_REQUEST + body, request.seal)


def seal_rule(seal: Seal, rule: RememberedRule) -> RememberedRule:
    """The remembered approval with its tag."""
    return attrs.evolve(rule, seal=seal.tag(_RULE + rule.body()))


def check_rule(seal: Seal, rule: RememberedRule) -> None:
    """Pass when the remembered approval is as it was made.

    Raises:
        StateRefused: a field was changed, or it was made with another key.
    """
    seal.check(_RULE + rule.body(), rule.seal)
