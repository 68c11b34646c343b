"""The one place for cryptography of saved runs: a keyed tag over stored bytes.

HMAC-SHA-256 (RFC 2104) from `cryptography`; the key is the host's. A state whose tag is missing or
wrong is refused.
"""

from __future__ import annotations

import secrets
from typing import Final, Self

from runtime_pack.errors import ContractError, StateRefused

__all__ = ("Seal",)

_KEY_BYTES: Final = 32


class Seal:
    """A key that tags and checks. Its repr shows nothing of the key.

    Raises:
        ContractError: the key is not 32 bytes or longer.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) < _KEY_BYTES:
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
            raise StateRefused(
                "the seal of the saved run does not match: wrong key or edited bytes"
            )
