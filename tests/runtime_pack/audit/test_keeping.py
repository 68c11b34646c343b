"""Old files go on purpose only; proofs and witnesses hold what the log was against what it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack.audit import AuditLog, LogSigner, LogStatus, auditor, verify_log
from runtime_pack.audit.files import (
    checkpoints_path,
    older_segments,
    read_checkpoints,
    tombstone_path,
)
from runtime_pack.audit.note import SignedNote, Tombstone
from runtime_pack.audit.proofs import check_proof, prove, read_leaves, watch
from runtime_pack.audit.retention import delete_older
from runtime_pack.audit.tree import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
)
from runtime_pack.errors import AuditError
from runtime_pack.events import Event, EventCode

SIGNER = LogSigner("example.org/log", bytes(range(32)))
THIEF = LogSigner("example.org/log", bytes(32))
HEIR = LogSigner("example.org/log", b"h" * 32)
KEYS = [SIGNER.key]
START = datetime(2026, 3, 1, tzinfo=UTC)
NOW = START + timedelta(days=90)


def written(path: Path, files: int = 6, signer: LogSigner = SIGNER) -> None:
    """A signed log with one file a day."""
    at = START
    with AuditLog(path, now=lambda: at, signer=signer, segment_seconds=86_400) as log:
        for _ in range(files):
            for number in range(3):
                log.append(
                    Event(code=EventCode.STP001A, subject={"run": "r"}, object={"n": number})
                )
                log.flush()
            at += timedelta(days=1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    written(folder / "log")
    return folder


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy" / "log"


def delete(path: Path, *, days: int = 3, signer: LogSigner = SIGNER) -> tuple[Path, ...]:
    before = START + timedelta(days=days, hours=1)
    return delete_older(path, before=before, signer=signer, by="ann", now=NOW)


# ── retention ───────────────────────────────────────────────────────────────────────────────────


def test_old_files_are_deleted_and_a_tombstone_says_so(path: Path) -> None:
    """Whole files, the oldest first; the rest verifies, goes on, and can lose more later."""
    gone = delete(path)
    found = verify_log(path, keys=KEYS)

    assert 3 == len(gone)
    assert (LogStatus.SIGNED, True) == (found.status, found.removed > 0)
    assert "ann" in tombstone_path(path).read_text()
    assert () == delete(path)
    with AuditLog(path, signer=SIGNER):
        pass
    assert 1 == len(delete(path, days=4))
    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status


@pytest.mark.parametrize("how", ["none", "thief", "other", "nonsense", "old"])
def test_missing_lines_are_accounted_for_by_their_tombstone_only(path: Path, how: str) -> None:
    """Not by none, not by one of another key, about other lines, or of an earlier day."""
    stone = tombstone_path(path)
    delete(path, days=2)
    kept = stone.read_bytes()
    delete(path, days=4)
    said = Tombstone.parse(SignedNote.parse(stone.read_text()).text)
    match how:
        case "none":
            stone.unlink()
        case "thief":
            stone.write_text(str(THIEF.note(said.text())))
        case "other":
            shorter = Tombstone(
                origin=said.origin,
                size=said.size - 1,
                head=said.head,
                root=said.root,
                by="ann",
                at=said.at,
            )
            stone.write_text(str(SIGNER.note(shorter.text())))
        case "old":
            stone.write_bytes(kept)
        case _:
            stone.write_text("nonsense")

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status


def test_a_deletion_that_was_cut_short_is_taken_up(path: Path) -> None:
    """The tombstone is there before the first file goes; what is left of the old ones verifies."""
    shutil.copytree(path.parent, path.parent.with_name("whole"))
    gone = delete(path)
    for number in range(1, 4):
        # Put back all but the first ones, as a crash would have left them.
        for back in gone[number:]:
            shutil.copy(path.parent.with_name("whole") / back.name, back)
        assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status
        assert 3 - number == len(delete(path))


def test_the_tree_that_the_first_line_goes_on_with_is_held_against_the_tombstone(
    path: Path,
) -> None:
    """Who deletes more than it says, with a first line of his own, is seen."""
    delete(path)
    first = older_segments(path)[0][1]
    lines = first.read_bytes().splitlines()
    record = orjson.loads(lines[0])
    record["object"]["frontier"] = [leaf_hash(b"x").hex() for _ in record["object"]["frontier"]]
    lines[0] = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    first.write_bytes(b"".join(line + b"\n" for line in lines))

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status


def test_nothing_is_deleted_of_a_log_that_was_tampered_with(path: Path) -> None:
    """It is evidence; nor by another key, without a name, or without a tree."""
    with pytest.raises(AuditError, match="does not verify"):
        delete(path, signer=THIEF)
    for by in ("", "a\nb"):
        with pytest.raises(AuditError, match="who deletes"):
            delete_older(path, before=NOW, signer=SIGNER, by=by, now=NOW)
    at = START
    plain = path.with_name("plain")
    with AuditLog(plain, now=lambda: at, segment_seconds=1) as log:
        at += timedelta(days=1)
        log.append(Event(code=EventCode.STP001A, subject={}, object={}))
        log.flush()
    with pytest.raises(AuditError, match="does not hold the tree"):
        delete_older(plain, before=NOW, signer=SIGNER, by="ann", now=NOW)
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7'))
    with pytest.raises(AuditError, match="does not verify"):
        delete(path)
    assert 5 <= len(older_segments(path))


# ── proofs ──────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=40), st.data())
def test_proofs_of_what_is_left_are_those_of_the_whole(
    lines: list[bytes], data: st.DataObject
) -> None:
    """A frontier stands for the lines that were deleted."""
    leaves = [leaf_hash(line) for line in lines]
    gone = data.draw(st.integers(0, len(leaves) - 1))
    index = data.draw(st.integers(gone, len(leaves) - 1))
    before = Frontier()
    for leaf in leaves[:gone]:
        before.add(leaf)

    assert inclusion_proof(index, leaves) == inclusion_proof(index, leaves[gone:], before)
    assert consistency_proof(index, leaves) == consistency_proof(index, leaves[gone:], before)


def lines_of(path: Path) -> list[bytes]:
    files = (*(older for _, older in older_segments(path)), path)
    return [line for file in files for line in file.read_bytes().splitlines()]


def test_a_line_is_proved_without_the_log(path: Path) -> None:
    """Line, proof and key are enough; after a deletion, for every line that is left."""
    lines = lines_of(path)
    for number in range(1, len(lines) + 1):
        assert number == check_proof(prove(path, number), lines[number - 1], KEYS)
    proof = prove(path, 4)
    for line, keys in ((lines[4], KEYS), (lines[3], [THIEF.key]), (lines[3], [])):
        with pytest.raises(AuditError):
            check_proof(proof, line, keys)
    for bad in (
        proof.replace("index 3", "index 4"),
        proof.replace("@v1", "@v2"),
        proof.replace("index 3\n", "index 3\nx\n"),
        proof.replace("index 3\n", "index 3\neA==\n"),
        "",
        proof[:-20],
    ):
        with pytest.raises(AuditError):
            check_proof(bad, lines[3], KEYS)
    delete(path)
    first = read_leaves(path).before.size
    for number in range(first + 1, len(lines) + 1):
        assert number == check_proof(prove(path, number), lines[number - 1], KEYS)
    for number in (0, first, len(lines) + 1):
        with pytest.raises(AuditError):
            prove(path, number)


def test_what_is_under_no_checkpoint_cannot_be_proved(path: Path, tmp_path: Path) -> None:
    """No signature, no proof; and none from a log that is another one by now."""
    with AuditLog(tmp_path / "plain"):
        pass
    with pytest.raises(AuditError, match="no checkpoints"):
        prove(tmp_path / "plain", 1)
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7'))
    with pytest.raises(AuditError, match="verify the log"):
        prove(path, 1)


# ── witnesses ───────────────────────────────────────────────────────────────────────────────────


def test_a_witness_takes_a_log_that_goes_on_and_no_other(path: Path) -> None:
    """Cut back, written anew, by another key or of another name: it keeps what it knows."""
    shutil.copytree(path.parent, path.parent.with_name("before"))
    known = watch(path, None, KEYS)
    assert known == watch(path, known, KEYS)
    with AuditLog(path, signer=SIGNER):
        pass
    later = watch(path, known, KEYS)
    delete(path)
    assert later == watch(path, known, KEYS)

    assert known.checkpoint.size < later.checkpoint.size
    with pytest.raises(AuditError, match="cut or put back"):
        watch(path.parent.with_name("before") / "log", later, KEYS)
    with pytest.raises(AuditError, match="trusted key"):
        watch(path, known, [THIEF.key])
    other = path.with_name("other")
    written(other, 8)
    other.write_bytes(other.read_bytes())
    forged = SIGNER.checkpoint(later.checkpoint.size, leaf_hash(b"x"))
    for wrong in (
        forged,
        SIGNER.checkpoint(5, leaf_hash(b"x")),
        LogSigner("b", bytes(32)).checkpoint(1, leaf_hash(b"x")),
    ):
        with pytest.raises(AuditError):
            watch(path, wrong, KEYS)


def test_a_witness_reads_the_lines_and_not_only_their_checkpoint(path: Path) -> None:
    """A log whose lines were edited is stored by nobody: first time, same size, or grown."""
    known = watch(path, None, KEYS)
    smaller = read_checkpoints(path).notes[0]
    path.write_bytes(path.read_bytes().replace(b'"object"', b'"objecT"'))
    for before in (None, known, smaller):
        with pytest.raises(AuditError, match="not over these lines"):
            watch(path, before, KEYS)


# ── the auditor's script ────────────────────────────────────────────────────────────────────────


def test_the_script_of_an_auditor_says_what_we_say(path: Path) -> None:
    """It imports nothing of ours: whole, edited, cut, added to, by another key."""
    source = Path(auditor.__file__)
    assert all(f"import {name}" not in source.read_text() for name in ("runtime_pack", "orjson"))
    run = [sys.executable, "-I", "-S", str(source), str(path), str(SIGNER.key)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)

    assert (0, str(verify_log(path).head)) == (done.returncode, done.stdout.split()[-1]), (
        done.stderr
    )
    with pytest.raises(ValueError, match="not signed by"):
        auditor.main(path, THIEF.name, THIEF.key.public)
    whole, notes = path.read_bytes(), checkpoints_path(path).read_bytes()
    first = older_segments(path)[0][1]
    kept = first.read_bytes()
    for content, match in (
        (kept.replace(b'"n":1', b'"n":7'), "edited"),
        (kept.replace(b'"n":1', b'"n": 1'), "edited"),
        (kept[:-4], "torn"),
    ):
        first.write_bytes(content)
        with pytest.raises(ValueError, match=match):
            auditor.main(path, SIGNER.name, SIGNER.key.public)
    first.write_bytes(kept)
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="edited or cut"):
        auditor.main(path, SIGNER.name, SIGNER.key.public)
    path.write_bytes(whole)
    last = read_checkpoints(path).notes[-1]
    checkpoints_path(path).write_bytes(notes.removesuffix(f"{last}\n".encode()))
    with pytest.raises(ValueError, match="open, or cut"):
        auditor.main(path, SIGNER.name, SIGNER.key.public)


def test_the_script_reads_the_files_of_the_log_and_no_others(tmp_path: Path) -> None:
    """Signs of patterns in its name are themselves; a second name of its last file is none."""
    path = tmp_path / "run[1]*.jsonl"
    written(path, 8)
    os.link(path, path.with_name(f"{path.name}.000099"))
    path.with_name("run1.jsonl.000001").write_text("another log's")

    assert auditor.main(path, SIGNER.name, SIGNER.key.public).endswith(
        str(verify_log(path, keys=KEYS).head)
    )


@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 63))
def test_the_script_checks_signatures_as_cryptography_does(text: bytes, at: int) -> None:
    """The key's own signature, and no other byte of it."""
    raw = SIGNER.sign(text)
    bad = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]

    assert auditor.is_signature(SIGNER.key.public, text, raw)
    assert not auditor.is_signature(SIGNER.key.public, text, bad)
    assert not auditor.is_signature(SIGNER.key.public, text, raw[:at])
    # The same number modulo the group's order: RFC 8032 has one form only.
    order = 2**252 + 27742317777372353535851937790883648493
    doubled = raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
    assert not auditor.is_signature(SIGNER.key.public, text, doubled)
