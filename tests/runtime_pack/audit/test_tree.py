"""The tree and the notes are those of the standards: held against other people's code."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.audit import LogSigner, SignedNote, VerifyKey
from runtime_pack.audit.keys import signed_by
from runtime_pack.audit.note import Checkpoint, read_notes
from runtime_pack.audit.tree import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    is_consistent,
    is_included,
    leaf_hash,
    root_of,
)
from runtime_pack.errors import AuditError

HAS_TLOG = importlib.util.find_spec("aics_tlog") is not None
lines = st.lists(st.binary(max_size=12), max_size=40)
SIGNER = LogSigner("example.org/log", bytes(range(32)))


@given(lines)
def test_roots_are_those_of_another_implementation(given_lines: list[bytes]) -> None:
    """RFC 9162, also for sizes that are no power of two, and for a frontier taken up anywhere."""
    pymerkle: Any = importlib.import_module("pymerkle")
    other = pymerkle.InmemoryTree()
    for line in given_lines:
        other.append_entry(line)
    leaves = [leaf_hash(line) for line in given_lines]
    half = Frontier()
    for leaf in leaves[: len(leaves) // 2]:
        half.add(leaf)
    rest = Frontier(half.size, half.peaks)
    for leaf in leaves[len(leaves) // 2 :]:
        rest.add(leaf)

    assert root_of(leaves) == rest.root()
    assert (other.get_root() if given_lines else EMPTY_ROOT) == root_of(leaves)


@given(lines.filter(bool), st.data())
def test_a_line_is_proved_to_be_in_the_log_and_no_other_is(
    given_lines: list[bytes], data: st.DataObject
) -> None:
    """The proof holds at its place for its line, and nowhere for another line, root or proof."""
    leaves = [leaf_hash(line) for line in given_lines]
    index = data.draw(st.integers(0, len(leaves) - 1))
    proof, root, size = inclusion_proof(index, leaves), root_of(leaves), len(leaves)
    other = data.draw(st.integers(0, size))

    assert is_included(leaves[index], index, size, proof, root)
    assert len(proof) <= (size - 1).bit_length()
    assert not is_included(leaf_hash(b"another line"), index, size, proof, root)
    assert not is_included(leaves[index], index, size, proof, leaf_hash(b"another root"))
    assert not is_included(leaves[index], index, size, (*proof, root), root)
    assert not is_included(leaves[index], -1, size, proof, root)
    if other == size or leaves[other] != leaves[index]:
        assert not is_included(leaves[index], other, size, proof, root)
    if proof:
        assert not is_included(leaves[index], index, size, proof[:-1], root)


@given(lines, st.data())
def test_a_log_is_proved_to_go_on_from_what_it_was(
    given_lines: list[bytes], data: st.DataObject
) -> None:
    """For every former size; not for an edited beginning, a shorter proof or another size."""
    leaves = [leaf_hash(line) for line in given_lines]
    old = data.draw(st.integers(0, len(leaves)))
    proof = consistency_proof(old, leaves)
    before, root, size = root_of(leaves[:old]), root_of(leaves), len(leaves)

    assert is_consistent(old, before, size, root, proof)
    assert not is_consistent(size + 1, before, size, root, proof)
    if 0 < old:
        forged = root_of([leaf_hash(b"forged"), *leaves[1:old]])
        assert forged == before or not is_consistent(old, forged, size, root, proof)
    if proof:
        assert not is_consistent(old, before, size, root, proof[:-1])
        assert not is_consistent(old, before, size, root, (*proof, root))
        assert not is_consistent(old, before, size, leaf_hash(b"x"), proof)


@pytest.mark.skipif(not HAS_TLOG, reason="aics-tlog needs CPython 3.12")
@given(lines, st.data())
def test_proofs_are_those_of_an_independent_tlog(
    given_lines: list[bytes], data: st.DataObject
) -> None:
    """Both kinds, hash for hash."""
    aics_tlog: Any = importlib.import_module("aics_tlog")
    other = aics_tlog.MerkleTree(given_lines)
    leaves = [leaf_hash(line) for line in given_lines]
    old = data.draw(st.integers(1, max(1, len(leaves))))
    if leaves:
        assert tuple(other.consistency_proof(old)) == consistency_proof(old, leaves)
        assert tuple(other.inclusion_proof(old - 1)) == inclusion_proof(old - 1, leaves)


@pytest.mark.skipif(not HAS_TLOG, reason="aics-tlog needs CPython 3.12")
def test_checkpoints_verify_with_an_independent_tlog() -> None:
    """Key line, note and signature are read by a package that knows nothing of us."""
    aics_tlog: Any = importlib.import_module("aics_tlog")
    note = str(SIGNER.checkpoint(7, leaf_hash(b"x")))
    key = aics_tlog.parse_vkey(str(SIGNER.key))
    read = aics_tlog.parse_note(note)
    found = aics_tlog.verify_checkpoint(read, key)

    assert (True, 7) == (found.log_ok, aics_tlog.parse_checkpoint(read.text).size)


def test_a_checkpoint_verifies_with_openssl(tmp_path: Path) -> None:
    """The recipe of docs/audit.md: text, signature and key in files, and nothing of ours."""
    note = SIGNER.checkpoint(7, leaf_hash(b"x"))
    (tmp_path / "text").write_text(note.text)
    (tmp_path / "signature").write_bytes(note.signatures[0].raw)
    # RFC 8410: what stands before the 32 bytes of every Ed25519 key in DER.
    der = bytes.fromhex("302a300506032b6570032100") + SIGNER.key.public
    (tmp_path / "key.der").write_bytes(der)
    recipe = "openssl pkeyutl -verify -pubin -keyform DER -inkey key.der -rawin -in text -sigfile signature"

    good = subprocess.run(recipe.split(), cwd=tmp_path, capture_output=True, check=False)
    (tmp_path / "text").write_text(note.text.replace("\n7\n", "\n8\n"))
    bad = subprocess.run(recipe.split(), cwd=tmp_path, capture_output=True, check=False)

    assert (0, 1) == (good.returncode, bad.returncode), good.stderr


@pytest.mark.parametrize(
    ("size", "peaks"), [(-1, ()), (1, ()), (0, (b"x" * 32,)), (3, (b"x" * 32,)), (1, (b"x",))]
)
def test_a_frontier_has_one_hash_for_each_bit(size: int, peaks: tuple[bytes, ...]) -> None:
    """Anything else is no tree."""
    with pytest.raises(ValueError, match="frontier"):
        Frontier(size, peaks)


@pytest.mark.parametrize(
    ("function", "number"),
    [(inclusion_proof, 3), (inclusion_proof, -1), (consistency_proof, 4), (consistency_proof, -1)],
)
def test_there_is_no_proof_of_what_is_not_there(
    function: Callable[[int, list[bytes]], object], number: int
) -> None:
    """A place or size outside the tree."""
    with pytest.raises(IndexError):
        function(number, [leaf_hash(b"x")] * 3)


def test_notes_are_read_back() -> None:
    """One after the other, and what a crash left of the last one is told from the rest."""
    notes = [SIGNER.checkpoint(size, leaf_hash(b"%d" % size)) for size in (0, 1, 20)]
    whole = "".join(f"{note}\n" for note in notes)

    assert (tuple(notes), len(whole)) == read_notes(whole)
    for cut in range(1, len(f"{notes[2]}\n")):
        found, taken = read_notes(whole[:-cut])
        assert (tuple(notes[:2]), whole[:taken]) == (found, "".join(f"{n}\n" for n in notes[:2]))
    for note in notes:
        assert note == SignedNote.parse(str(note))
        assert SIGNER.key == signed_by(note, [SIGNER.key])


@given(st.text(max_size=200))
def test_reading_a_note_is_total(text: str) -> None:
    """A note, or `AuditError`."""
    for read in (SignedNote.parse, Checkpoint.parse, VerifyKey.parse, read_notes):
        try:
            read(text)
        except AuditError:
            continue


GOOD = SIGNER.checkpoint(7, leaf_hash(b"x"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        str(GOOD).replace("\n7\n", "\n07\n"),
        str(GOOD).replace("\n7\n", "\n-7\n"),
        str(GOOD).replace("\n7\n", "\n7\nextension\n"),
        str(GOOD).replace("=\n\n", "\n\n"),
        str(GOOD).replace("example.org/log\n", "example.org /log\n"),
        str(GOOD).replace("example.org/log\n", "\n"),
        str(GOOD).replace("\N{EM DASH}", "-"),
        str(GOOD).rstrip("\n"),
        str(GOOD) + "more\n",
        str(GOOD) + str(GOOD.signatures[0]) * 16,
    ],
)
def test_a_note_of_another_form_is_refused(text: str) -> None:
    """One form only: what two readers could read differently is no checkpoint."""
    with pytest.raises(AuditError):
        Checkpoint.parse(SignedNote.parse(text).text)


def test_only_a_signature_of_the_key_counts() -> None:
    """Other names, keys and texts do not; one bad signature of a known key spoils the note."""
    namesake = LogSigner("example.org/log", bytes(32))
    stranger = LogSigner("example.org/other", bytes(range(32)))
    edited = SignedNote(text=GOOD.text.replace("\n7\n", "\n8\n"), signatures=GOOD.signatures)
    mixed = SignedNote(
        text=edited.text, signatures=(*GOOD.signatures, *namesake.note(edited.text).signatures)
    )

    assert signed_by(GOOD, [namesake.key, stranger.key]) is None
    assert signed_by(edited, [SIGNER.key]) is None
    assert signed_by(mixed, [SIGNER.key, namesake.key]) is None
    assert namesake.key == signed_by(mixed, [namesake.key])


def test_a_key_line_is_read_strictly() -> None:
    """Name, id and key belong together; no other kind of key is taken for Ed25519."""
    line = str(SIGNER.key)

    assert SIGNER.key == VerifyKey.parse(f" {line}\n")
    name, key_id, coded = line.split("+", 2)
    for bad in (
        f"{name}+{'0' * 8}+{coded}",
        f"other+{key_id}+{coded}",
        f"{name}+{key_id}+Ag==",
        name,
        f"{name}+{key_id}+{coded[:-1]}",
    ):
        with pytest.raises(AuditError):
            VerifyKey.parse(bad)


def test_a_signing_key_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    """A new file of mode 0600; one that others may read, or that is no such key, is refused."""
    path = tmp_path / "key.pem"
    SIGNER.save(path)

    assert 0o600 == path.stat().st_mode & 0o777
    assert SIGNER.key == LogSigner.load(path, "example.org/log").key
    with pytest.raises(AuditError):
        SIGNER.save(path)
    path.chmod(0o640)
    with pytest.raises(AuditError, match="others"):
        LogSigner.load(path, "example.org/log")
    path.chmod(0o600)
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----")
    for broken in (path, tmp_path / "missing"):
        with pytest.raises(AuditError):
            LogSigner.load(broken, "example.org/log")
    for name, seed in (("a b", bytes(32)), ("a+b", bytes(32)), ("", bytes(32)), ("a", bytes(31))):
        with pytest.raises(AuditError):
            LogSigner(name, seed)
    assert "0001020304" not in repr(SIGNER)
