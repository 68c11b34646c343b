"""A signed log: whatever is done to its files without its key is seen."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_pack.audit import AuditLog, LogHead, LogSigner, LogStatus, SignedNote, verify_log
from runtime_pack.audit.files import checkpoints_path, older_segments, read_checkpoints
from runtime_pack.audit.log import CHECKPOINT_LINES, CHECKPOINT_SECONDS
from runtime_pack.audit.note import key_change_text
from runtime_pack.audit.tree import leaf_hash, root_of
from runtime_pack.audit.verify import _until_still
from runtime_pack.errors import AuditError, LogLocked
from runtime_pack.events import Event, EventCode
from runtime_pack.messages import Json

SIGNER = LogSigner("example.org/log", bytes(range(32)))
THIEF = LogSigner("example.org/log", bytes(32))
HEIR = LogSigner("example.org/log", b"h" * 32)
KEYS = [SIGNER.key]
START = datetime(2026, 3, 1, tzinfo=UTC)


def event(number: int = 0, code: EventCode = EventCode.STP001A, **body: Json) -> Event:
    return Event(code=code, subject={"run": "r"}, object={"n": number, **body})


def written(
    path: Path, count: int = 30, *, signer: LogSigner = SIGNER, size: int = 1500
) -> LogHead:
    """A closed log of several small files, each block written by itself."""
    with AuditLog(path, signer=signer, segment_bytes=size) as log:
        for number in range(count):
            log.append(event(number))
            log.flush()
    return log.head


def lines_of(path: Path) -> list[bytes]:
    files = (*(older for _, older in older_segments(path)), path)
    return [line for file in files for line in file.read_bytes().splitlines()]


class Clock:
    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        return self.at


def test_a_signed_log_is_signed_over_all_its_files(tmp_path: Path) -> None:
    """Every line to the closing one is under a checkpoint; a head kept elsewhere says the rest."""
    head = written(tmp_path / "log")
    found = verify_log(tmp_path / "log", keys=KEYS)

    assert (LogStatus.SIGNED, head.seq) == (found.status, found.signed)
    assert found.segments > 3
    assert LogStatus.VERIFIED == verify_log(tmp_path / "log", [head], keys=KEYS).status
    last = read_checkpoints(tmp_path / "log").notes[-1]
    assert LogStatus.VERIFIED == verify_log(tmp_path / "log", kept=[last]).status
    assert LogStatus.CHAINED == verify_log(tmp_path / "log").status


def test_the_first_line_of_a_file_names_the_one_before(tmp_path: Path) -> None:
    """Its name and its last line's digest, and the frontier of the tree."""
    written(tmp_path / "log")
    older = older_segments(tmp_path / "log")
    for (_, former), (_, later) in zip(older, [*older[1:], (0, tmp_path / "log")], strict=True):
        first = orjson.loads(later.read_bytes().splitlines()[0])
        last = orjson.loads(former.read_bytes().splitlines()[-1])

        assert "log:continued" == first["type"]
        assert (former.name, f"{last['seq']}:{first['prev']}") == (
            first["object"]["former"],
            first["object"]["former_head"],
        )
        assert 0o600 == later.stat().st_mode & 0o777
    assert list(range(1, len(lines_of(tmp_path / "log")) + 1)) == [
        orjson.loads(line)["seq"] for line in lines_of(tmp_path / "log")
    ]


def test_a_log_goes_on_in_a_new_file_when_its_time_is_over(tmp_path: Path) -> None:
    """Also when it is opened again: the time counts from the file's first line."""
    clock = Clock()
    path = tmp_path / "log"
    for _ in range(3):
        with AuditLog(path, now=clock, segment_seconds=100) as log:
            clock.at += timedelta(seconds=60)
            log.append(event())
    assert 1 == len(older_segments(path))
    assert LogStatus.CHAINED == verify_log(path).status


def checkpoints(path: Path) -> list[int]:
    return [note.checkpoint.size for note in read_checkpoints(path).notes]


def test_checkpoints_come_by_number_by_time_and_at_the_end_of_a_run(tmp_path: Path) -> None:
    """And when the log is opened and closed; between them none."""
    clock = Clock()
    path = tmp_path / "log"
    log = AuditLog(path, now=clock, signer=SIGNER)
    for number in range(CHECKPOINT_LINES):
        log.append(event(number))
        log.flush()
    clock.at += timedelta(seconds=CHECKPOINT_SECONDS - 1)
    log.append(event())
    log.flush()
    assert [1, 1 + CHECKPOINT_LINES] == checkpoints(path)
    clock.at += timedelta(seconds=1)
    log.append(event())
    log.flush()
    log.take(event(code=EventCode.RUN002O))
    log.append(event())
    log.flush()
    log.close()

    here = 1 + CHECKPOINT_LINES
    assert [1, here, here + 2, here + 4, here + 5] == checkpoints(path)
    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status


# ── tampering ───────────────────────────────────────────────────────────────────────────────────

SEVERAL = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two signed logs of the same signer, one by a thief, and one whose key was changed."""
    folder = tmp_path_factory.mktemp("logs")
    written(folder / "log")
    written(folder / "other")
    written(folder / "stolen", signer=THIEF)
    with AuditLog(folder / "handed", signer=SIGNER) as log:
        log.append(event())
        log.change_key(HEIR)
        log.append(event())
    return folder


def copied(originals: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals, folder)
    return folder


def rewritten(lines: list[bytes], at: int) -> list[bytes]:
    """The chain made anew from a line on: who forges can compute a hash."""
    done = lines[:at]
    prev = hashlib.sha256(done[-1]).hexdigest() if done else "0" * 64
    for number, line in enumerate(lines[at:], start=at + 1):
        record = orjson.loads(line) | {"prev": prev, "seq": number}
        done.append(orjson.dumps(record, option=orjson.OPT_SORT_KEYS))
        prev = hashlib.sha256(done[-1]).hexdigest()
    return done


KINDS = ["edit", "delete", "insert", "swap", "double", "splice", "cut"]


@SEVERAL
@given(st.sampled_from(KINDS), st.booleans(), st.data())
def test_any_change_of_any_line_is_seen(
    tmp_path: Path, originals: Path, kind: str, rechained: bool, data: st.DataObject
) -> None:
    """With the chain left broken or made anew, all in one file or not; and no writer goes on."""
    folder = copied(originals, tmp_path / "copy")
    path = folder / "log"
    lines = lines_of(path)
    at = data.draw(st.integers(0, len(lines) - 2))
    if kind == "edit":
        record = orjson.loads(lines[at])
        record["severity"] = "high"
        lines[at] = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    elif kind == "delete":
        del lines[at]
    elif kind == "insert":
        lines.insert(at, lines_of(folder / "other")[at])
    elif kind == "swap":
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    elif kind == "double":
        lines.insert(at, lines[at])
    elif kind == "splice":
        lines = lines[: at + 1] + lines_of(folder / "other")[at + 1 :]
    else:
        lines = lines[:at]
    if rechained:
        lines = rewritten(lines, min(at, len(lines)))
    for _, older in older_segments(path):
        older.unlink()
    path.write_bytes(b"".join(line + b"\n" for line in lines))

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status
    # Without any key, too: the checkpoints are over other lines.
    assert LogStatus.TAMPERED == verify_log(path).status
    with pytest.raises(AuditError):
        AuditLog(path, signer=SIGNER)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_file_that_is_missing_is_seen(tmp_path: Path, originals: Path, which: str) -> None:
    """Whichever it is: only a signed tombstone accounts for lines that are gone."""
    path = copied(originals, tmp_path / "copy") / "log"
    older = [older for _, older in older_segments(path)]
    {"first": older[0], "middle": older[1], "last": older[-1]}[which].unlink()

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status


def test_a_log_signed_by_another_key_is_not_ours(tmp_path: Path, originals: Path) -> None:
    """Swapped as a whole, or only its checkpoints: the key comes from outside."""
    folder = copied(originals, tmp_path / "copy")
    assert LogStatus.TAMPERED == verify_log(folder / "stolen", keys=KEYS).status
    notes = checkpoints_path(folder / "log")
    forged = [
        THIEF.checkpoint(n.checkpoint.size, n.checkpoint.root)
        for n in read_checkpoints(folder / "log").notes
    ]
    notes.write_text("".join(f"{note}\n" for note in forged))

    assert LogStatus.TAMPERED == verify_log(folder / "log", keys=KEYS).status
    with pytest.raises(AuditError, match="another key"):
        AuditLog(folder / "log", signer=SIGNER)


def test_checkpoints_of_another_log_do_not_fit(tmp_path: Path, originals: Path) -> None:
    """By the same key, over the same number of lines, and still not over these."""
    folder = copied(originals, tmp_path / "copy")
    shutil.copy(checkpoints_path(folder / "other"), checkpoints_path(folder / "log"))

    assert LogStatus.TAMPERED == verify_log(folder / "log", keys=KEYS).status


@pytest.mark.parametrize("how", ["deleted", "emptied", "reversed", "nonsense"])
def test_checkpoints_that_were_touched_are_seen(tmp_path: Path, originals: Path, how: str) -> None:
    """A log that says it was signed has its checkpoints, in their order."""
    path = copied(originals, tmp_path / "copy") / "log"
    notes = checkpoints_path(path)
    blocks = [f"{note}\n" for note in read_checkpoints(path).notes]
    match how:
        case "deleted":
            notes.unlink()
        case "emptied":
            notes.write_bytes(b"")
        case "reversed":
            notes.write_text("".join(reversed(blocks)))
        case _:
            notes.write_text("nonsense\n\nnonsense\n\n")

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status
    # A copy of the lines alone is no forgery to who trusts no key: it is a chain.
    without = LogStatus.CHAINED if how in {"deleted", "emptied"} else LogStatus.TAMPERED
    assert without == verify_log(path).status
    if how != "reversed":
        with pytest.raises(AuditError):
            AuditLog(path, signer=SIGNER)


def test_a_log_that_was_put_back_is_seen_against_what_was_kept(tmp_path: Path) -> None:
    """Lines and checkpoints both cut to an earlier closing line: only a kept head or note tells."""
    path = tmp_path / "log"
    written(path, 3)
    content, notes = path.read_bytes(), checkpoints_path(path).read_bytes()
    head = written(path, 3)
    kept = read_checkpoints(path).notes[-1]
    for _, older in older_segments(path):
        older.unlink()
    path.write_bytes(content)
    checkpoints_path(path).write_bytes(notes)

    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status
    assert LogStatus.TAMPERED == verify_log(path, [head], keys=KEYS).status
    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS, kept=[kept]).status
    assert LogStatus.TAMPERED == verify_log(path, kept=[kept]).status


def test_what_was_kept_under_keys_must_be_signed_by_them(tmp_path: Path, originals: Path) -> None:
    """A checkpoint that somebody hands over as kept is worth what its signature is worth."""
    path = copied(originals, tmp_path / "copy") / "log"
    last = read_checkpoints(path).notes[-1].checkpoint
    forged = THIEF.checkpoint(last.size, last.root)

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS, kept=[forged]).status


def test_lines_that_were_added_are_not_signed(tmp_path: Path, originals: Path) -> None:
    """Who can write can go on with the chain; a closing line of his own changes nothing."""
    path = copied(originals, tmp_path / "copy") / "log"
    lines = lines_of(path)
    first = path.read_bytes().splitlines()[0]
    path.write_bytes(path.read_bytes() + rewritten([*lines, lines[-1]], len(lines))[-1] + b"\n")

    assert b"log:continued" in first
    assert LogStatus.OPEN == verify_log(path, keys=KEYS).status


def test_an_unsigned_log_is_vouched_for_by_no_key(tmp_path: Path) -> None:
    """Chained, and open to whoever asks for a signature."""
    with AuditLog(tmp_path / "log"):
        pass

    assert LogStatus.OPEN == verify_log(tmp_path / "log", keys=KEYS).status


# ── taking up ───────────────────────────────────────────────────────────────────────────────────


def test_a_signed_log_is_gone_on_with_by_its_signer_only(tmp_path: Path, originals: Path) -> None:
    """Without a signer, or with another one, it is refused; with it, it is one log."""
    path = copied(originals, tmp_path / "copy") / "log"
    for signer in (None, THIEF):
        with pytest.raises(AuditError):
            AuditLog(path, signer=signer)
    written(path)

    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status


def test_a_log_with_lines_and_no_checkpoints_is_not_signed(tmp_path: Path) -> None:
    """Whether it ever had some cannot be seen: who edits it leaves the key out of its first line."""
    with AuditLog(tmp_path / "log") as log:
        log.append(event())
    with pytest.raises(AuditError, match="begin a new log"):
        AuditLog(tmp_path / "log", signer=SIGNER)


@pytest.mark.parametrize("body", [{"former": "log.000001"}, {"frontier": []}, {}])
def test_a_first_line_that_continues_nothing_is_a_fault(
    tmp_path: Path, originals: Path, body: dict[str, Json]
) -> None:
    """Else no tree would be made, and no checkpoint be held against lines that were chained anew."""
    path = copied(originals, tmp_path / "copy") / "log"
    chained(path, [{"type": "log:continued", "object": body}])
    last = read_checkpoints(path).notes[-1]
    for found in (
        verify_log(path),
        verify_log(path, keys=KEYS),
        verify_log(path, keys=KEYS, kept=[last]),
    ):
        assert LogStatus.TAMPERED == found.status
        assert any("continues no file" in fault.problem for fault in found.faults)
    checkpoints_path(path).unlink()
    assert LogStatus.TAMPERED == verify_log(path).status


def chained(path: Path, changes: list[dict[str, Json]]) -> None:
    """Change the first lines of a log and chain all of them anew, in one file."""
    records = [orjson.loads(line) for line in lines_of(path)]
    for record, change in zip(records, changes, strict=False):
        record.update(change)
    prev, lines = "0" * 64, []
    for number, record in enumerate(records, 1):
        record.update({"seq": number, "prev": prev})
        lines.append(orjson.dumps(record, option=orjson.OPT_SORT_KEYS))
        prev = hashlib.sha256(lines[-1]).hexdigest()
    for _, older in older_segments(path):
        older.unlink()
    path.write_bytes(b"\n".join(lines) + b"\n")


def test_unsigned_lines_are_told_before_they_are_signed(tmp_path: Path) -> None:
    """The next writer cannot know whether a crash left them or somebody added them."""
    path = tmp_path / "log"
    head = written(path, 2)
    lines, prev = [], head.sha256
    for number in (1, 2, 3):
        record = orjson.loads(lines_of(path)[-1])
        record.update({"seq": head.seq + number, "prev": prev})
        lines.append(orjson.dumps(record, option=orjson.OPT_SORT_KEYS))
        prev = hashlib.sha256(lines[-1]).hexdigest()
    with path.open("ab") as file:
        file.write(b"\n".join(lines) + b"\n")
    AuditLog(path, signer=SIGNER).close()

    told = [orjson.loads(line) for line in lines_of(path)[head.seq + 3 :]]
    assert ("log:recovered", {"unsigned_lines": 3}) == (told[0]["type"], told[0]["object"])
    AuditLog(path, signer=SIGNER).close()
    assert "log:opened" == orjson.loads(lines_of(path)[-2])["type"]


def test_a_change_of_keys_that_is_made_up_opens_no_log(tmp_path: Path, originals: Path) -> None:
    """It names the signer as the heir: the checkpoints have to be by him all the same."""
    path = copied(originals, tmp_path / "copy") / "log"
    with pytest.raises(AuditError):
        AuditLog(path, signer=THIEF)
    body: Json = {"old": str(THIEF.key), "new": str(SIGNER.key), "signature": ""}
    chained(path, [{}, {"type": "log:key_changed", "object": body}])
    count, root = len(lines_of(path)), root_of([leaf_hash(line) for line in lines_of(path)])
    checkpoints_path(path).write_text(f"{THIEF.checkpoint(count, root)}\n", "utf-8")
    with pytest.raises(AuditError, match="by another key"):
        AuditLog(path, signer=SIGNER)


@pytest.mark.parametrize(
    ("signer", "how"),
    [
        (None, "folder"),
        (None, "file"),
        (None, "another"),
        (SIGNER, "folder"),
        (SIGNER, "another"),
        (SIGNER, "checkpoints"),
    ],
)
def test_a_log_that_was_removed_takes_nothing_more(
    tmp_path: Path, signer: LogSigner | None, how: str
) -> None:
    """The write fails, and so do all later ones: what is not recorded does not happen."""
    path = tmp_path / "logs" / "log"
    path.parent.mkdir()
    log = AuditLog(path, signer=signer)
    log.append(event())
    log.flush()
    if how == "folder":
        shutil.rmtree(path.parent)
    elif how == "checkpoints":
        checkpoints_path(path).unlink()
    else:
        path.rename(path.with_name("elsewhere"))
        if how == "another":
            shutil.copy(path.with_name("elsewhere"), path)
    log.append(event(code=EventCode.RUN002O))
    for _ in range(2):
        with pytest.raises(AuditError):
            log.flush()


def test_a_log_is_written_from_another_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was given from where the process stood means the same file later."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    log = AuditLog("log", signer=SIGNER, segment_bytes=1500)
    monkeypatch.chdir(tmp_path / "other")
    for number in range(8):
        log.append(event(number))
        log.flush()
    log.close()

    assert LogStatus.SIGNED == verify_log(tmp_path / "log", keys=KEYS).status
    assert not list((tmp_path / "other").iterdir())


def test_a_clock_that_was_set_back_puts_off_no_checkpoint(tmp_path: Path) -> None:
    """The time to the next one counts from the time that it is now."""
    clock = Clock()
    log = AuditLog(tmp_path / "log", now=clock, signer=SIGNER)
    clock.at -= timedelta(days=1)
    for _ in range(3):
        clock.at += timedelta(seconds=CHECKPOINT_SECONDS)
        log.append(event())
        log.flush()

    assert [1, 2, 3, 4] == checkpoints(tmp_path / "log")
    log.close()


def test_a_log_whose_tree_is_not_known_cannot_be_signed_from_now_on(tmp_path: Path) -> None:
    """It went on in a new file without a signer: what is before it stands in no frontier."""
    path = tmp_path / "log"
    with AuditLog(path, segment_bytes=1):
        pass
    with pytest.raises(AuditError, match="begin a new log"):
        AuditLog(path, signer=SIGNER)


def test_a_torn_tail_before_the_last_checkpoint_is_tampering(tmp_path: Path) -> None:
    """Behind it a crash can have left it: it is moved aside, and the log says so."""
    path = tmp_path / "log"
    written(path, 2, size=10**6)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"torn')
    written(path, 1, size=10**6)
    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status
    assert b"log:recovered" in path.read_bytes()
    path.write_bytes(whole[:-7])

    with pytest.raises(AuditError, match="cut or edited"):
        AuditLog(path, signer=SIGNER)


def test_a_checkpoint_that_a_crash_cut_is_written_anew(tmp_path: Path) -> None:
    """The rest of it is overwritten; everything else is as it was."""
    path = tmp_path / "log"
    written(path, 2)
    notes = checkpoints_path(path)
    before = notes.read_bytes()
    # In the middle of a dash, which has three bytes.
    notes.write_bytes(before + before[: before.index("\N{EM DASH}".encode()) + 1])
    written(path, 1)

    assert notes.read_bytes().startswith(before + b"example.org/log\n")
    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status


def test_older_files_without_the_one_that_is_written_are_no_log(
    tmp_path: Path, originals: Path
) -> None:
    """A new beginning would hide what is gone."""
    path = copied(originals, tmp_path / "copy") / "log"
    path.unlink()
    with pytest.raises(AuditError, match="is gone"):
        AuditLog(path, signer=SIGNER)


def test_a_writer_that_came_too_late_for_a_file_is_refused(tmp_path: Path) -> None:
    """It opened the log just before it went on in a new file, and would write into the full one."""
    path = tmp_path / "log"
    first = AuditLog(path, segment_bytes=1)
    late = AuditLog.__new__(AuditLog)
    late.path, late._fd = path, os.open(older_segments(path)[0][1], os.O_RDWR)
    try:
        with pytest.raises(LogLocked, match="just gone on"):
            late._lock()
    finally:
        os.close(late._fd)
        first.close()


def test_a_log_that_goes_on_in_a_new_file_meanwhile_is_verified_again(tmp_path: Path) -> None:
    """Only what is wrong while the files stay the same is wrong."""
    (tmp_path / "bad").write_bytes(b"x\n")
    with AuditLog(tmp_path / "good"):
        pass
    good, bad = verify_log(tmp_path / "good"), verify_log(tmp_path / "bad")
    for files, found, wanted in (
        ([1, 2, 2, 2], [bad, good], good),
        ([1, 2, 2, 2], [bad, bad], bad),
        ([1, 1], [bad], bad),
        ([1, 2], [good], good),
        (list(range(20)), [bad] * 6, bad),
    ):
        names, results = iter(files), iter(found)
        assert wanted is _until_still(names.__next__, results.__next__)
        assert [] == list(results)


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_hands_over_to_the_next(tmp_path: Path, originals: Path) -> None:
    """Who trusts the old key follows; the old one signs nothing more, and the new one opens it."""
    path = copied(originals, tmp_path / "copy") / "handed"
    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status
    assert LogStatus.TAMPERED == verify_log(path, keys=[HEIR.key]).status
    with pytest.raises(AuditError, match="changed"):
        AuditLog(path, signer=SIGNER)
    with AuditLog(path, signer=HEIR):
        pass
    assert LogStatus.SIGNED == verify_log(path, keys=KEYS).status
    last = read_checkpoints(path).notes[-1].checkpoint
    with checkpoints_path(path).open("a") as file:
        file.write(f"{SIGNER.checkpoint(last.size, last.root)}\n")

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status


@pytest.mark.parametrize("old", [SIGNER, THIEF], ids=["as the signer", "as himself"])
@pytest.mark.parametrize("signs", [True, False])
def test_a_thief_cannot_make_himself_the_heir(tmp_path: Path, old: LogSigner, signs: bool) -> None:
    """Who can write adds a change of keys, a closing line and a checkpoint: no trusted key said so."""
    path = tmp_path / "log"
    written(path, 2, size=10**6)
    lines = path.read_bytes().splitlines()
    prev = hashlib.sha256(lines[-1]).hexdigest()
    text = key_change_text(old.name, len(lines) + 1, prev, HEIR.key)
    change = orjson.loads(lines[0]) | {"type": "log:key_changed", "code": "LOG005O"}
    change["object"] = {
        "old": str(old.key),
        "new": str(HEIR.key),
        "signature": base64.b64encode(THIEF.sign(text if signs else b"")).decode(),
    }
    lines = rewritten([*lines, orjson.dumps(change), lines[-1]], len(lines))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with checkpoints_path(path).open("a") as file:
        file.write(f"{HEIR.checkpoint(len(lines), root_of([*map(leaf_hash, lines)]))}\n")

    assert LogStatus.TAMPERED == verify_log(path, keys=KEYS).status
    assert LogStatus.CHAINED == verify_log(path).status


def test_a_key_is_changed_by_a_signer_of_that_name_only(tmp_path: Path) -> None:
    """A log has one origin, and without a signer there is nobody to hand over."""
    with AuditLog(tmp_path / "log", signer=SIGNER) as log, pytest.raises(AuditError):
        log.change_key(LogSigner("another.example/log", bytes(32)))
    with AuditLog(tmp_path / "plain") as log, pytest.raises(AuditError):
        log.change_key(SIGNER)


def test_ids_are_version_seven_uuids_in_order_whatever_the_clock_does(tmp_path: Path) -> None:
    """Standing still, going back, and over writers and files."""
    import uuid

    clock = Clock()
    path = tmp_path / "log"
    for step in (0, -5, 3):
        clock.at += timedelta(seconds=step)
        with AuditLog(path, now=clock, segment_bytes=10**6) as log:
            for _ in range(4200):
                log.append(event())
    ids = [orjson.loads(line)["id"] for line in lines_of(path)]

    assert ids == sorted(set(ids))
    assert {(7, uuid.RFC_4122)} == {(u.version, u.variant) for u in map(uuid.UUID, ids)}


def test_the_last_checkpoint_can_be_kept_elsewhere(tmp_path: Path) -> None:
    """It is the note that stands in the file."""
    with AuditLog(tmp_path / "log", signer=SIGNER) as log:
        pass
    (tmp_path / "elsewhere").write_text(str(log.last_checkpoint))
    kept = SignedNote.parse((tmp_path / "elsewhere").read_text())

    assert LogStatus.VERIFIED == verify_log(tmp_path / "log", keys=KEYS, kept=[kept]).status
