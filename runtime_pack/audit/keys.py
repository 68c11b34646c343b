"""The keys of a log: who signs its checkpoints, and whose signatures are believed.

Ed25519 (RFC 8032) from `cryptography`, which is imported here when a key is used. A key file is
PEM (PKCS #8) for its owner only; what is given away is the line of a `VerifyKey`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from runtime_pack.audit.note import Checkpoint, Signature, SignedNote, VerifyKey, checked_name
from runtime_pack.errors import AuditError
from runtime_pack.given_files import opened

__all__ = ("LogSigner", "is_signed", "signed_by")

_SEED_BYTES: Final = 32
_MAX_PEM_BYTES: Final = 1 << 16


class LogSigner:
    """A private key under a name, which is the origin of the logs it signs. Its repr shows no key.

    Raises:
        AuditError: the seed is not 32 bytes, or the name is none.
    """

    __slots__ = ("_private", "key", "name")

    def __init__(self, name: str, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if not isinstance(seed, bytes) or len(seed) != _SEED_BYTES:
            raise AuditError(f"the seed of a signing key is {_SEED_BYTES} bytes")
        self.name = checked_name(name)
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.key = VerifyKey(name, self._private.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, name: str) -> Self:
        """A new key."""
        return cls(name, os.urandom(_SEED_BYTES))

    @classmethod
    def load(cls, path: Path, name: str) -> Self:
        """The key of a PEM file.

        Raises:
            AuditError: it cannot be read, others may read it, or it is no Ed25519 key.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            with opened(path) as handle:
                mode = os.fstat(handle).st_mode
                private = load_pem_private_key(os.pread(handle, _MAX_PEM_BYTES, 0), None)
        except (OSError, ValueError, TypeError) as error:
            raise AuditError(f"the signing key {path} cannot be read: {error}") from error
        if mode & 0o077:
            raise AuditError(f"others may read the signing key {path}: chmod 600")
        if not isinstance(private, Ed25519PrivateKey):
            raise AuditError(f"the signing key {path} is not an Ed25519 key")
        return cls(name, private.private_bytes_raw())

    def save(self, path: Path) -> None:
        """Write the key to a new PEM file of mode 0600.

        Raises:
            AuditError: there is a file already, or it cannot be written.
        """
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AuditError(f"the signing key {path} cannot be written: {error}") from error

    def sign(self, text: bytes) -> bytes:
        """64 bytes over *text*. What is signed says what it is in its first line."""
        return self._private.sign(text)

    def note(self, text: str) -> SignedNote:
        """The text, signed."""
        raw = self.sign(text.encode())
        return SignedNote(text=text, signatures=(Signature(self.name, self.key.key_id, raw),))

    def checkpoint(self, size: int, root: bytes, origin: str | None = None) -> SignedNote:
        """The signed checkpoint of a tree, of the log that is called as the key is if no *origin* is given."""
        return self.note(Checkpoint(origin=origin or self.name, size=size, root=root).text())


def is_signed(key: VerifyKey, text: bytes, raw: bytes) -> bool:
    """Whether *raw* is the signature of that key over *text*."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(raw, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def signed_by(note: SignedNote, keys: Iterable[VerifyKey]) -> VerifyKey | None:
    """The first of *keys* that signed the note; None when no one of them did.

    A signature that says it is by one of them and is not makes the whole note worth nothing.
    """
    text = note.text.encode()
    found: VerifyKey | None = None
    for key in keys:
        for signature in note.signatures:
            if not signature.is_of(key):
                continue
            if not is_signed(key, text, signature.raw):
                return None
            found = found or key
    return found
