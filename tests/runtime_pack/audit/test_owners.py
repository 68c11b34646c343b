"""Whose a log is and which one: keys that were changed, names, heads that programs keep, time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runtime_pack.audit import (
    AuditLog,
    LogHead,
    LogSigner,
    LogStatus,
    auditor,
    keep_head,
    kept_head,
    verify_log,
)
from runtime_pack.audit.files import (
    checkpoints_path,
    older_segments,
    read_checkpoints,
    tombstone_path,
)
from runtime_pack.audit.note import Tombstone
from runtime_pack.audit.retention import delete_older
from runtime_pack.errors import AuditError
from runtime_pack.events import Event, EventCode

OLD = LogSigner("example.org/log", bytes(range(32)))
NEW = LogSigner("example.org/log", bytes(range(1, 33)))
NEXT = LogSigner("example.org/log", bytes(range(2, 34)))
START = datetime(2026, 3, 1, tzinfo=UTC)


def event(number: int) -> Event:
    return Event(code=EventCode.STP001A, subject={"run": "r"}, object={"n": number})


class Minutes:
    """A minute passes whenever somebody looks."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        self.at += timedelta(minutes=1)
        return self.at


def fill(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.append(event(number))
        log.flush()


def handed_down(path: Path) -> AuditLog:
    """A log of several files that the second key signs from the middle on."""
    log = AuditLog(path, signer=OLD, segment_bytes=1500, now=Minutes())
    fill(log, 20)
    log.change_key(NEW)
    fill(log, 20)
    return log


def delete(path: Path, files: int, signer: LogSigner, *others: LogSigner) -> int:
    """How many files went, of so many that are old."""
    line = older_segments(path)[files - 1][1].read_bytes().splitlines()[-1]
    last = datetime.fromisoformat(json.loads(line)["ts"])
    before, keys = last + timedelta(seconds=1), [other.key for other in others]
    now = START + timedelta(days=90)
    return len(delete_older(path, before=before, signer=signer, by="ann", now=now, keys=keys))


# ── changed keys and deletions ────────────────────────────────────────────────────────────────


def test_old_files_are_deleted_after_the_key_was_changed(tmp_path: Path) -> None:
    """By who signs now, who says which keys were before; the log verifies from either key on."""
    path = tmp_path / "log"
    handed_down(path).close()
    with pytest.raises(AuditError, match="does not verify"):
        delete(path, 2, NEW)
    assert 2 == delete(path, 2, NEW, OLD)
    found = verify_log(path, keys=[OLD.key])
    assert (LogStatus.SIGNED, ()) == (found.status, found.faults)
    # What is left may begin behind the change: then the new key alone is enough.
    assert 3 < delete(path, len(older_segments(path)), NEW, OLD)
    assert LogStatus.SIGNED == verify_log(path, keys=[NEW.key]).status


def test_a_key_that_was_changed_deletes_nothing(tmp_path: Path) -> None:
    """Neither by itself nor with the new one named: it is not its log any more."""
    path = tmp_path / "log"
    handed_down(path).close()
    before = sorted(each.name for each in tmp_path.iterdir())
    for others in ((), (NEW,)):
        with pytest.raises(AuditError):
            delete(path, 2, OLD, *others)
    assert before == sorted(each.name for each in tmp_path.iterdir())


@pytest.mark.parametrize("keys", [(OLD,), (NEW,), (OLD, NEW)])
def test_a_tombstone_by_a_key_that_was_changed_is_none(
    tmp_path: Path, keys: tuple[LogSigner, ...]
) -> None:
    """Whoever has a former key, and the files, cannot account for lines that are missing."""
    path = tmp_path / "log"
    handed_down(path).close()
    delete(path, len(older_segments(path)), NEW, OLD)
    assert LogStatus.SIGNED == verify_log(path, keys=[NEW.key]).status
    text = tombstone_path(path).read_text("utf-8").partition("\n\n")[0] + "\n"
    tombstone_path(path).write_text(str(OLD.note(text)), "utf-8")

    found = verify_log(path, keys=[key.key for key in keys])
    assert LogStatus.TAMPERED == found.status
    assert any("tombstone is by no key" in fault.problem for fault in found.faults)


def test_a_deletion_of_before_holds_after_the_key_was_changed(tmp_path: Path) -> None:
    """The new key vouches for it as well, twice if there are two changes; it was named before."""
    path = tmp_path / "log"
    log = AuditLog(path, signer=OLD, segment_bytes=1500, now=Minutes())
    fill(log, 20)
    delete(path, 2, OLD)
    log.change_key(NEW)
    assert not verify_log(path, keys=[OLD.key]).faults
    fill(log, 5)
    log.change_key(NEXT)
    log.close()

    assert LogStatus.SIGNED == verify_log(path, keys=[OLD.key]).status
    stone = Tombstone.parse(tombstone_path(path).read_text("utf-8").partition("\n\n")[0] + "\n")
    assert 0 < stone.size < 20


def test_a_change_of_keys_that_was_cut_short_leaves_a_log_that_verifies(tmp_path: Path) -> None:
    """Killed between the tombstone and the line: both keys vouch for it, and the old one holds."""
    path, copy = tmp_path / "a" / "log", tmp_path / "b"
    log = AuditLog(path, signer=OLD, segment_bytes=1500, now=Minutes())
    fill(log, 20)
    delete(path, 2, OLD)
    log._hand_down(NEW)
    shutil.copytree(path.parent, copy)
    log.close()

    assert not verify_log(copy / "log", keys=[OLD.key]).faults
    with AuditLog(copy / "log", signer=OLD) as again:
        again.change_key(NEW)
    assert LogStatus.SIGNED == verify_log(copy / "log", keys=[OLD.key]).status


def test_no_key_is_handed_a_tombstone_that_is_not_by_its_owner(tmp_path: Path) -> None:
    """What was put there in the meantime is not made good by the change."""
    path = tmp_path / "log"
    log = AuditLog(path, signer=OLD, segment_bytes=1500, now=Minutes())
    fill(log, 20)
    delete(path, 2, OLD)
    text = tombstone_path(path).read_text("utf-8").partition("\n\n")[0] + "\n"
    tombstone_path(path).write_text(str(NEXT.note(text)), "utf-8")
    with pytest.raises(AuditError, match="not by the key"):
        log.change_key(NEW)
    log.close()


# ── one key, many logs ────────────────────────────────────────────────────────────────────────


def named(path: Path, count: int = 12) -> Path:
    origin = f"{OLD.name}/{path.name}"
    with AuditLog(path, signer=OLD, origin=origin, segment_bytes=1500, now=Minutes()) as log:
        fill(log, count)
    return path


def test_a_log_cannot_stand_in_the_place_of_another_of_its_key(tmp_path: Path) -> None:
    """All its files exchanged: every signature is right, and the name is not."""
    one, other = named(tmp_path / "a"), named(tmp_path / "b")
    assert LogStatus.SIGNED == verify_log(one, keys=[OLD.key], origin=f"{OLD.name}/a").status
    for file in tmp_path.glob("b*"):
        shutil.copy(file, tmp_path / f"a{file.name[1:]}")
    found = verify_log(one, keys=[OLD.key], origin=f"{OLD.name}/a")

    assert other.read_bytes() == one.read_bytes()
    assert LogStatus.TAMPERED == found.status
    assert "it is the log example.org/log/b" in found.faults[0].problem


def test_what_is_signed_of_another_log_is_not_of_this_one(tmp_path: Path) -> None:
    """Checkpoints kept elsewhere, those beside it and its tombstone: each has the name of its log."""
    one, other = named(tmp_path / "a"), named(tmp_path / "b", 30)
    kept = read_checkpoints(other).notes[1:2]
    assert any(
        "of another log" in fault.problem
        for fault in verify_log(one, kept=kept, keys=[OLD.key]).faults
    )
    delete(other, 2, OLD)
    delete(one, 2, OLD)
    assert LogStatus.SIGNED == verify_log(one, keys=[OLD.key]).status
    text = tombstone_path(one).read_text("utf-8").partition("\n\n")[0] + "\n"
    wrong = OLD.note(text.replace(f"{OLD.name}/a\n", f"{OLD.name}/b\n"))
    tombstone_path(one).write_text(str(wrong), "utf-8")
    found = verify_log(one, keys=[OLD.key])
    assert any("of another log" in fault.problem for fault in found.faults)


def test_a_log_keeps_its_name(tmp_path: Path) -> None:
    """It is gone on with under it, also where it is not said again; no key signs a foreign one."""
    path = named(tmp_path / "a")
    with AuditLog(path, signer=OLD):
        pass
    assert LogStatus.SIGNED == verify_log(path, keys=[OLD.key], origin=f"{OLD.name}/a").status
    with pytest.raises(AuditError, match=r"not example\.org/log/b"):
        AuditLog(path, signer=OLD, origin=f"{OLD.name}/b")
    for origin, signer in (
        ("example.org/logs/a", OLD),
        ("other", OLD),
        (f"{OLD.name}/a b", OLD),
        (f"{OLD.name}/a", None),
    ):
        with pytest.raises(AuditError):
            AuditLog(tmp_path / "new", signer=signer, origin=origin)
    assert not (tmp_path / "new").exists()


def test_a_key_signs_no_log_beside_its_own(tmp_path: Path) -> None:
    """A checkpoint under a name that is not the key's, or below it, is by no trusted key."""
    path = tmp_path / "log"
    with AuditLog(path, signer=OLD) as log:
        fill(log, 3)
    note = read_checkpoints(path).notes[-1]
    forged = OLD.note(note.text.replace(OLD.name, "example.org/logs"))
    lines = path.read_bytes()
    with checkpoints_path(path).open("w", encoding="utf-8") as file:
        file.write(f"{forged}\n")

    assert lines == path.read_bytes()
    assert LogStatus.TAMPERED == verify_log(path, keys=[OLD.key]).status


# ── the end, heads and time ───────────────────────────────────────────────────────────────────


def test_a_log_that_closes_in_a_new_file_is_verified(tmp_path: Path) -> None:
    """The head of a run is the last line but for what the writer adds: a new file, and its end."""
    path = tmp_path / "log"
    log = AuditLog(path, segment_bytes=900)
    fill(log, 2)
    head = log.head
    while log.path.read_bytes().count(b"\n") != 1:
        log.append(event(9))
        head = log.head
        log.flush()
    log.close()
    last = [line.split(b'"type":"')[1].split(b'"')[0] for line in path.read_bytes().splitlines()]

    assert [b"log:continued", b"log:closed"] == last
    found = verify_log(path, [head])
    assert (LogStatus.VERIFIED, head.seq + 2) == (found.status, found.head.seq)
    earlier = LogHead.parse(f"{head.seq - 1}:{'0' * 64}")
    assert LogStatus.TAMPERED == verify_log(path, [earlier]).status


def test_a_new_file_that_nobody_closed_is_open(tmp_path: Path) -> None:
    """What the writer adds counts as the end only where it has closed."""
    log = AuditLog(tmp_path / "log", segment_bytes=900)
    fill(log, 2)
    head = log.head
    while log.path.read_bytes().count(b"\n") != 1:
        log.append(event(9))
        head = log.head
        log.flush()

    assert head.seq + 1 == log.head.seq
    assert LogStatus.OPEN == verify_log(log.path, [head]).status
    log.close()


def test_lines_of_the_writer_alone_vouch_for_no_others(tmp_path: Path) -> None:
    """A head before an event is not the end, whatever stands behind that."""
    path = tmp_path / "log"
    with AuditLog(path) as log:
        fill(log, 3)
        head = log.head
        fill(log, 1)
    assert LogStatus.OPEN == verify_log(path, [head]).status


def test_a_head_is_kept_in_a_file(tmp_path: Path) -> None:
    """Programs keep it as the command does; one that is further is not put back."""
    path, file = tmp_path / "log", tmp_path / "head"
    assert kept_head(file) is None
    with AuditLog(path) as log:
        fill(log, 2)
        keep_head(file, log.head)
        early = log.head
        fill(log, 2)
        keep_head(file, log.head)
        keep_head(file, log.head)
        with pytest.raises(AuditError, match="another log"):
            keep_head(file, early)
        with pytest.raises(AuditError, match="another log"):
            keep_head(file, LogHead(log.head.seq, "0" * 64))
    known = kept_head(file)
    assert known is not None
    assert LogStatus.VERIFIED == verify_log(path, [known]).status
    for content in (b"", b"1:2", b"\xff", b"x" * 5000):
        file.write_bytes(content)
        with pytest.raises(AuditError):
            kept_head(file)
    with pytest.raises(AuditError, match="cannot be kept"):
        keep_head(tmp_path / "none" / "head", early)


class Calls:
    """What is to be called later, and when; nothing of it is called by itself."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0

    def __call__(self, seconds: float, call: Callable[[], None]) -> Calls:
        self.due.append((seconds, call))
        return self

    def cancel(self) -> None:
        self.cancelled += 1


def test_lines_are_signed_by_time_where_no_other_line_comes(tmp_path: Path) -> None:
    """A minute after the first line that nobody has signed; each checkpoint begins anew."""
    path, calls = tmp_path / "log", Calls()
    log = AuditLog(path, signer=OLD, now=lambda: START, later=calls)
    # What it opens with is signed at once.
    assert 1 == calls.cancelled == len(calls.due)
    fill(log, 3)
    _, (seconds, call) = calls.due
    assert 60 == seconds
    assert 1 == verify_log(path, keys=[OLD.key]).signed
    call()
    assert 4 == verify_log(path, keys=[OLD.key]).signed
    fill(log, 1)
    assert 3 == len(calls.due)
    log.checkpoint()
    assert 2 == calls.cancelled
    fill(log, 1)
    log.close()
    # Each one was cancelled but the one that was called.
    assert len(calls.due) == calls.cancelled + 1
    # One that comes too late all the same does nothing.
    calls.due[-1][1]()
    assert LogStatus.SIGNED == verify_log(path, keys=[OLD.key]).status


def test_what_goes_wrong_by_time_is_told_with_the_next_line(tmp_path: Path) -> None:
    """Nobody hears an error of a timer; the log takes nothing more."""
    path, calls = tmp_path / "log", Calls()
    log = AuditLog(path, signer=OLD, now=lambda: START, later=calls)
    fill(log, 1)
    shutil.move(checkpoints_path(path), tmp_path / "gone")
    checkpoints_path(path).mkdir()
    calls.due[-1][1]()
    with pytest.raises(AuditError):
        log.append(event(1))
    log.close()


def test_the_folder_of_a_log_is_made_for_its_owner(tmp_path: Path) -> None:
    """The last folder only: a path that is mistyped further up is told."""
    with AuditLog(tmp_path / "logs" / "run.jsonl"):
        pass
    assert 0o700 == (tmp_path / "logs").stat().st_mode & 0o777
    with pytest.raises(AuditError, match="folder"):
        AuditLog(tmp_path / "a" / "b" / "run.jsonl")


# ── the auditor's script ──────────────────────────────────────────────────────────────────────


def _script(*words: str) -> tuple[int, str]:
    run = [sys.executable, "-I", "-S", str(Path(auditor.__file__)), *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_script_takes_a_key_or_a_file_with_it(tmp_path: Path) -> None:
    """A key that is none is wrong usage: no word about the log is said."""
    path, key = named(tmp_path / "a"), str(OLD.key)
    (tmp_path / "key").write_text(f"{key}\n")
    (tmp_path / "not a key").write_text("# a file\n")
    assert 0 == _script(str(path), str(tmp_path / "key"))[0]
    for wrong in (
        str(tmp_path / "not a key"),
        str(tmp_path / "none"),
        key[:-6],
        key.replace("g/", "h/"),
    ):
        code, told = _script(str(path), wrong)
        assert (2, True) == (code, told.startswith("usage"))
        assert "does not hold" not in told
    assert 2 == _script(str(path))[0]


def test_the_script_knows_the_name_of_a_log(tmp_path: Path) -> None:
    """A log below the name of its key is one of its logs; checkpoints of another log are not."""
    one, other = named(tmp_path / "a"), named(tmp_path / "b")
    assert str(verify_log(one).head) in auditor.main(one, OLD.name, OLD.key.public)
    note = read_checkpoints(one).notes[-1]
    for origin in (f"{OLD.name}/b", OLD.name, f"{OLD.name}a", "x"):
        forged = OLD.note(note.text.replace(f"{OLD.name}/a", origin))
        checkpoints_path(one).write_text(f"{forged}\n", "utf-8")
        with pytest.raises(ValueError, match="not signed by"):
            auditor.main(one, OLD.name, OLD.key.public)
    assert older_segments(other)
