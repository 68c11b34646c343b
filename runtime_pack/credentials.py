"""The local store of credentials: one encrypted file, readable by its owner alone.

AES-256-GCM from `cryptography` over the whole document, so that names, values and their number
are hidden, and a byte that was changed is found. The key lies in a file beside it, made once, or
in a variable when it is to be kept elsewhere. A store or key that others can read is refused.
Putting back a whole older file is not found: that needs a memory outside of the folder.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runtime_pack.errors import ContractError, StateRefused, StoreError
from runtime_pack.policy_file import CredentialSource
from web_tools.contract.credentials import check_credential, check_name

__all__ = ("KEY_VARIABLE", "EncryptedCredentials", "PolicyCredentials")

KEY_VARIABLE: Final = "RUNTIME_PACK_CREDENTIALS_KEY"
"""32 bytes in base64; takes the place of the key file."""

# What stands in front of the box, and what the box is bound to.
_MAGIC: Final = b"agent-runtime-pack credentials 1\n"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_MAX_BYTES: Final = 1 << 20
_MAX_CREDENTIALS: Final = 256
_OTHERS: Final = 0o077
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


class EncryptedCredentials:
    """The credentials in *folder*. It holds nothing open, and no value between two calls.

    Args:
        folder: Made when the first credential is stored.
        key: Of 32 bytes; by default that of the variable, else of the key file.

    Raises:
        ContractError: The key is not 32 bytes.
    """

    def __init__(self, folder: Path | str, *, key: bytes | None = None) -> None:
        if key is not None and len(key) != _KEY_BYTES:
            raise ContractError("key", f"must be {_KEY_BYTES} bytes")
        self._folder = Path(folder)
        self._key = key

    def find(self, name: str) -> str | None:
        """The credential, or None when it is not here.

        Raises:
            StoreError: The file cannot be read, or others can read it.
            StateRefused: It was changed, or belongs to another key.
        """
        return self._read().get(check_name(name))

    def names(self) -> tuple[str, ...]:
        """What is stored, sorted; never a value."""
        return tuple(sorted(self._read()))

    def put(self, name: str, value: str) -> None:
        """Store a credential in the place of an older one, whole or not at all.

        Raises:
            InvalidSetup: Name or value cannot be one.
            StoreError: It cannot be written, or there are too many.
        """
        check_name(name)
        check_credential(value)
        with self._locked():
            kept = {**self._read(), name: value}
            if len(kept) > _MAX_CREDENTIALS:
                raise StoreError(f"the store holds {_MAX_CREDENTIALS} credentials already")
            self._write(kept)

    def remove(self, name: str) -> bool:
        """Forget a credential; False when it is not here."""
        check_name(name)
        if not self._file.exists():
            return False
        with self._locked():
            kept = dict(self._read())
            if kept.pop(name, None) is None:
                return False
            self._write(kept)
        return True

    def __repr__(self) -> str:
        return f"EncryptedCredentials({str(self._folder)!r})"

    @property
    def _file(self) -> Path:
        return self._folder / "credentials"

    @property
    def _key_file(self) -> Path:
        return self._folder / "credentials.key"

    def _read(self) -> Mapping[str, str]:
        _require_own(self._folder)
        body = _private_bytes(self._file)
        if body is None:
            return {}
        return _opened(self._existing_key(), body)

    def _write(self, kept: Mapping[str, str]) -> None:
        box = _sealed(self._existing_key(create=True), kept)
        scratch = self._file.with_name(f".credentials.{secrets.token_hex(4)}")
        try:
            _write_private(scratch, box)
            scratch.replace(self._file)
            _sync(self._folder)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise _cannot("written", error) from error

    def _existing_key(self, *, create: bool = False) -> bytes:
        if self._key is not None:
            return self._key
        given = os.environ.get(KEY_VARIABLE)
        if given:
            return _key_of_text(given)
        if create and not self._key_file.exists():
            self._make_key()
        key = _private_bytes(self._key_file)
        if key is None:
            raise StoreError(f"there is no {self._key_file} to open the credentials with")
        if len(key) != _KEY_BYTES:
            raise StateRefused(f"{self._key_file} is no key")
        return key

    def _make_key(self) -> None:
        scratch = self._key_file.with_name(f".key.{secrets.token_hex(4)}")
        try:
            _write_private(scratch, secrets.token_bytes(_KEY_BYTES))
            # A link fails where a key has appeared meanwhile: the first one counts.
            os.link(scratch, self._key_file)
        except FileExistsError:
            pass
        except OSError as error:
            raise _cannot("written", error) from error
        finally:
            scratch.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, of all processes."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(self._folder)
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self._folder / "credentials.lock", flags, 0o600)
        except OSError as error:
            raise _cannot("written", error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class PolicyCredentials:
    """The credentials that a policy file names, by variable or file."""

    def __init__(self, sources: Mapping[str, CredentialSource]) -> None:
        self._sources = dict(sources)

    def find(self, name: str) -> str | None:
        """The credential; None when the file does not name it, or nothing is in its place."""
        source = self._sources.get(name)
        try:
            return None if source is None else source.read()
        except ContractError:
            return None

    def __repr__(self) -> str:
        return f"PolicyCredentials({sorted(self._sources)})"


def _cannot(done: str, error: OSError) -> StoreError:
    return StoreError(f"the credentials cannot be {done} ({error.strerror})")


def _key_of_text(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ContractError(KEY_VARIABLE, f"must be {_KEY_BYTES} bytes in base64")
    return key


def _private_bytes(path: Path) -> bytes | None:
    """The bytes of a regular file that only its owner can read; None when there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot("read", error) from error
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            raise StoreError(f"{path} is no file of credentials")
        if found.st_mode & _OTHERS or found.st_uid not in {os.geteuid(), 0}:
            raise StoreError(
                f"{path} can be read by others: chmod 600 it, and change what it holds"
            )
        return file.read(_MAX_BYTES)


def _require_own(folder: Path) -> None:
    """Refuse a folder in which others can put files in the place of ours.

    Where only its own files can be replaced by each user (the sticky bit), as in a temporary
    folder, the files' own modes say enough.
    """
    try:
        found = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot("read", error) from error
    shared = found.st_mode & _WRITABLE and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in {os.geteuid(), 0}:
        raise StoreError(f"{folder} can be written to by others: chmod 700 it, and store them anew")


def _write_private(path: Path, body: bytes) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sealed(key: bytes, kept: Mapping[str, str]) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE_BYTES)
    text = json.dumps(dict(kept), sort_keys=True).encode()
    return _MAGIC + nonce + AESGCM(key).encrypt(nonce, text, _MAGIC)


def _opened(key: bytes, body: bytes) -> Mapping[str, str]:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not body.startswith(_MAGIC):
        raise StateRefused("the file is no store of credentials of this version")
    nonce, box = body[len(_MAGIC) :][:_NONCE_BYTES], body[len(_MAGIC) + _NONCE_BYTES :]
    try:
        text = AESGCM(key).decrypt(nonce, box, _MAGIC)
    except (InvalidTag, ValueError):
        # No cause: it says nothing more, and holds what was decrypted in its frames.
        raise StateRefused("the credentials do not open: wrong key or edited bytes") from None
    kept = json.loads(text)
    if not isinstance(kept, dict):
        raise StateRefused("the store of credentials is not of its form")
    return kept
