"""Short proofs from the files of a log: that a line is in it, that it goes on from what it was.

A proof that a line is in the log is a text that needs neither the log nor this package: the line's
place, a hash for each level of the tree, and a signed checkpoint. Source: C2SP tlog-proof.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from runtime_pack.audit.files import older_segments, read_checkpoints
from runtime_pack.audit.note import SignedNote, VerifyKey
from runtime_pack.audit.tree import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    is_consistent,
    is_included,
    leaf_hash,
)
from runtime_pack.audit.verify import begun
from runtime_pack.errors import AuditError

__all__ = ("Leaves", "check_proof", "prove", "read_leaves", "watch")

_FIRST: Final = "c2sp.org/tlog-proof@v1"
_INDEX: Final = re.compile(r"index (0|[1-9][0-9]{0,17})\Z")
_MAX_HASHES: Final = 63


@attrs.frozen(kw_only=True)
class Leaves:
    """The tree of a log: the frontier before the first line that is there, and its lines' hashes."""

    before: Frontier
    hashes: tuple[bytes, ...]

    def upto(self, size: int) -> tuple[bytes, ...]:
        """The hashes of a former tree.

        Raises:
            AuditError: there are not that many lines, or they were deleted.
        """
        if not self.before.size <= size <= self.before.size + len(self.hashes):
            raise AuditError(f"the log has no line {size}")
        return self.hashes[: size - self.before.size]

    def root(self, size: int) -> bytes:
        """The root of a former tree, from its lines.

        Raises:
            AuditError: as for `upto`.
        """
        hashes, tree = self.upto(size), Frontier(self.before.size, self.before.peaks)
        for leaf in hashes:
            tree.add(leaf)
        return tree.root()


def read_leaves(log: Path) -> Leaves:
    """The tree of the log at *log*. Verifies nothing.

    Raises:
        AuditError: a file cannot be read, or the tree before the first line is not known.
    """
    hashes: list[bytes] = []
    frontier: Frontier | None = None
    for path in (*(older for _, older in older_segments(log)), log):
        start, rows = begun(path)
        if frontier is None:
            frontier = start.frontier()
        if frontier is None:
            raise AuditError(f"{path} does not hold the tree of what is before it")
        hashes += (leaf_hash(line) for line, is_whole in rows if is_whole)
    return Leaves(before=frontier or Frontier(), hashes=tuple(hashes))


def prove(log: Path, line: int) -> str:
    """The proof that line *line* (from 1) is under the last checkpoint of the log.

    Raises:
        AuditError: it is not there, under no checkpoint, or the checkpoint is not of this log.
    """
    notes = read_checkpoints(log).notes
    if not notes:
        raise AuditError("the log has no checkpoints: only a signed log can prove a line")
    leaves, note = read_leaves(log), notes[-1]
    said = note.checkpoint
    hashes = leaves.upto(said.size)
    try:
        proof = inclusion_proof(line - 1, hashes, leaves.before)
    except IndexError as error:
        raise AuditError(f"line {line} is not under the last checkpoint: {error}") from error
    leaf = hashes[line - 1 - leaves.before.size]
    if not is_included(leaf, line - 1, said.size, proof, said.root):
        raise AuditError("the last checkpoint is not over these lines: verify the log")
    rows = (_FIRST, f"index {line - 1}", *map(_coded, proof), "")
    return "".join(f"{row}\n" for row in rows) + str(note)


def check_proof(proof: str, line: bytes, keys: Iterable[VerifyKey]) -> int:
    """Check a proof for the bytes of a line; the number of the line, from 1.

    Raises:
        AuditError: the proof does not hold, is not of its form, or is by no trusted key.
    """
    from runtime_pack.audit.keys import signed_by

    head, between, rest = proof.partition("\n\n")
    rows = head.split("\n")
    match = _INDEX.match(rows[1]) if len(rows) > 1 else None
    if not between or rows[0] != _FIRST or match is None or len(rows) > _MAX_HASHES + 2:
        raise AuditError("not a proof of the form c2sp.org/tlog-proof@v1")
    note, hashes = SignedNote.parse(rest), [_decoded(row) for row in rows[2:]]
    if signed_by(note, keys) is None:
        raise AuditError("the checkpoint of the proof is by no trusted key")
    said, index = note.checkpoint, int(match[1])
    if not is_included(leaf_hash(line), index, said.size, hashes, said.root):
        raise AuditError("the proof does not lead from this line to the checkpoint")
    return index + 1


def watch(log: Path, known: SignedNote | None, keys: Iterable[VerifyKey]) -> SignedNote:
    """The last checkpoint of a log, if the log goes on from the one that is known.

    What a witness does before it stores a checkpoint: signature, root of the lines, consistency.

    Raises:
        AuditError: it is by no trusted key, over fewer lines, or not of a log that goes on.
    """
    from runtime_pack.audit.keys import signed_by

    keys = tuple(keys)
    notes = read_checkpoints(log).notes
    if not notes or signed_by(notes[-1], keys) is None:
        raise AuditError("the log has no checkpoint by a trusted key")
    said = notes[-1].checkpoint
    leaves = read_leaves(log)
    if leaves.root(said.size) != said.root:
        raise AuditError("the last checkpoint is not over these lines: verify the log")
    if known is None:
        return notes[-1]
    old = known.checkpoint
    if old.origin != said.origin:
        raise AuditError(f"what is known is a checkpoint of {old.origin}, not of {said.origin}")
    if old.size > said.size:
        raise AuditError(
            f"the log was cut or put back, or it is another log than the one that is known:"
            f" {old.size} lines are known, it has {said.size}"
        )
    try:
        proof = consistency_proof(old.size, leaves.upto(said.size), leaves.before)
    except IndexError as error:
        raise AuditError(f"the log cannot be held against what is known: {error}") from error
    if not is_consistent(old.size, old.root, said.size, said.root, proof):
        raise AuditError(
            f"the log does not go on from the {old.size} lines that are known, or those are of"
            " another log"
        )
    return notes[-1]


def _coded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decoded(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuditError("a hash of the proof is not base64") from error
    if len(raw) != 32 or _coded(raw) != text:
        raise AuditError("a hash of the proof is not a SHA-256")
    return raw
