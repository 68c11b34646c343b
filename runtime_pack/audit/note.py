"""Signed notes, and what they say as text: pure; what signs and checks signatures is `keys`.

Under a text and an empty line stand signatures, `— NAME BASE64`, of which those by keys that are
not known are passed over. A checkpoint says: the log of this origin had so many lines, and this is
the root over them. A tombstone says that the lines up to one were deleted on purpose. A checkpoint
has three lines and nothing else that is signed has as few, so that none passes for another.

Source: C2SP signed-note and tlog-checkpoint. Extension lines are refused: we write none, and what
they say is under no rule.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Final, Self

from runtime_pack.errors import AuditError
from runtime_pack.inner import frozen

__all__ = (
    "Checkpoint",
    "Signature",
    "SignedNote",
    "Tombstone",
    "VerifyKey",
    "checked_name",
    "is_of_key",
    "key_change_text",
    "read_notes",
)

_DASH: Final = "\N{EM DASH} "
_ED25519: Final = b"\x01"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}\Z")
_SIZE: Final = re.compile(r"(0|[1-9][0-9]{0,17})\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_REMOVED: Final = "runtime-pack tombstone 1"
_CHANGED: Final = "runtime-pack key change 1"
_MAX_NOTE_BYTES: Final = 65_536
_MAX_SIGNATURES: Final = 16


def checked_name(name: str) -> str:
    """The name of a log or key, if it is one: neither spaces nor `+`, 128 characters at most.

    Raises:
        AuditError: it is not.
    """
    if not _NAME.match(name):
        raise AuditError(f"{name[:80]!r} is not a name of a log: letters, digits and ._/:@-")
    return name


def _decoded(text: str, length: int, what: str) -> bytes:
    """Base64 in its one form.

    Raises:
        AuditError: not of that length and form.
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuditError(f"{what} is not base64") from error
    if len(raw) != length or base64.b64encode(raw).decode() != text:
        raise AuditError(f"{what} is not {length} bytes in base64")
    return raw


@frozen
class VerifyKey:
    """A public key with its name, written `NAME+ID+BASE64` as transparency logs write it."""

    name: str
    public: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes that name the key beside its name; they are no proof of anything."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        coded = base64.b64encode(_ED25519 + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{coded}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            AuditError: not of that form, not Ed25519, or the id is of another key.
        """
        name, _, rest = text.strip().partition("+")
        key_id, _, coded = rest.partition("+")
        raw = _decoded(coded, 33, "the key")
        if raw[:1] != _ED25519:
            raise AuditError("the key is not an Ed25519 key")
        key = cls(checked_name(name), raw[1:])
        if key.key_id.hex() != key_id:
            raise AuditError("the key's id is not that of its bytes")
        return key


@frozen
class Signature:
    """One signature line: whose it says it is, and 64 bytes."""

    name: str
    key_id: bytes
    raw: bytes

    def __str__(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.raw).decode()}\n"

    def is_of(self, key: VerifyKey) -> bool:
        """Whether it says it is by that key."""
        return (self.name, self.key_id) == (key.name, key.key_id)


@frozen(kw_only=True)
class Checkpoint:
    """So many lines, and the root over them."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` gives.

        Raises:
            AuditError: not three lines of that form.
        """
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not _SIZE.match(lines[1]):
            raise AuditError("a checkpoint is three lines: origin, size and root")
        root = _decoded(lines[2], 32, "the root")
        return cls(origin=checked_name(lines[0]), size=int(lines[1]), root=root)


@frozen(kw_only=True)
class Tombstone:
    """The lines up to *size* were deleted on purpose: the last one's digest, their root, and who."""

    origin: str
    size: int
    head: str
    root: bytes
    by: str
    at: str

    def text(self) -> str:
        """What is signed."""
        root = base64.b64encode(self.root).decode()
        return (
            f"{_REMOVED}\n{self.origin}\n{self.size}\n{self.head}\n{root}\n{self.by}\n{self.at}\n"
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` gives.

        Raises:
            AuditError: not seven lines of that form.
        """
        lines = text.split("\n")
        if len(lines) != 8 or lines[7] or lines[0] != _REMOVED or not _SIZE.match(lines[2]):
            raise AuditError("not a tombstone of this form")
        if not _DIGEST.match(lines[3]):
            raise AuditError("a tombstone names the digest of the last line")
        origin, root = checked_name(lines[1]), _decoded(lines[4], 32, "the root")
        return cls(
            origin=origin, size=int(lines[2]), head=lines[3], root=root, by=lines[5], at=lines[6]
        )


def is_of_key(origin: str, name: str) -> bool:
    """Whether a log of this origin may be signed under that name: its own, or one of a log under it.

    One key may sign many logs: `example.org/agents/run-7` is a log of `example.org/agents`.
    """
    return origin == name or origin.startswith(f"{name}/")


def key_change_text(origin: str, seq: int, prev: str, new: VerifyKey) -> bytes:
    """What the old key signs when another one takes its place, at line *seq* after line *prev*."""
    return f"{_CHANGED}\n{origin}\n{seq}\n{prev}\n{new}\n".encode()


@frozen(kw_only=True)
class SignedNote:
    """A text with its signatures, checked by nobody yet."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return f"{self.text}\n{''.join(map(str, self.signatures))}"

    @property
    def checkpoint(self) -> Checkpoint:
        """What it says of a log.

        Raises:
            AuditError: it is no checkpoint.
        """
        return Checkpoint.parse(self.text)

    @classmethod
    def parse(cls, note: str) -> Self:
        """Read a note, all of it.

        Raises:
            AuditError: not a text and signatures with an empty line between.
        """
        text, between, signed = note.rpartition("\n\n")
        if not between or len(note) > _MAX_NOTE_BYTES or not signed.endswith("\n"):
            raise AuditError("not a signed note: an empty line stands between text and signatures")
        lines = signed.split("\n")[:-1]
        if not 1 <= len(lines) <= _MAX_SIGNATURES:
            raise AuditError(f"a note has 1 to {_MAX_SIGNATURES} signatures")
        return cls(text=f"{text}\n", signatures=tuple(map(_signature, lines)))


def _signature(line: str) -> Signature:
    name, _, coded = line.removeprefix(_DASH).partition(" ")
    try:
        raw = base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuditError("a signature is not base64") from error
    if not line.startswith(_DASH) or not name or len(raw) < 5:
        raise AuditError("not a signature line")
    return Signature(name, raw[:4], raw[4:])


def read_notes(content: str) -> tuple[tuple[SignedNote, ...], int]:
    """The checkpoints of a file, each with an empty line behind it; how many characters they take.

    What stands behind them is a note that was not written to its end.

    Raises:
        AuditError: one of them is no signed checkpoint.
    """
    blocks = content.split("\n\n")
    # TEXT, SIGNATURES, TEXT, SIGNATURES, and nothing behind the last empty line.
    whole = (len(blocks) - 1) // 2 * 2
    pairs = zip(blocks[0:whole:2], blocks[1:whole:2], strict=True)
    notes = tuple(SignedNote.parse(f"{text}\n\n{signed}\n") for text, signed in pairs)
    for note in notes:
        Checkpoint.parse(note.text)
    return notes, sum(len(block) + 2 for block in blocks[:whole])
