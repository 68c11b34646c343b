"""`audit` and `events`: what the commands say of logs, in this process and as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runtime_pack.audit import AuditLog, LogSigner, keep_head, verify_log
from runtime_pack.audit.files import checkpoints_path, older_segments
from runtime_pack.cli import main
from runtime_pack.events import Event, EventCode

START = datetime(2026, 3, 1, tzinfo=UTC)
SIGNER = LogSigner("example.org/log", bytes(range(32)))
KEY = ("--key", str(SIGNER.key))
HOSTILE = "evil.example\x1b[2J\n2026-03-01T00:00:00.000000Z EGR001D forged\t\u202erow"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Told = tuple[int, str, str]
Run = Callable[..., Told]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process; nothing of it may drive a terminal."""

    def called(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["runtime-pack", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert CONTROLS.search(out + err) is None
        return int(str(left.value.code)), out, err

    return called


def denial(run: str, host: str) -> Event:
    return Event(
        code=EventCode.EGR001D,
        subject={"run": run, "agent": "ava"},
        object={"host": host, "tool": "web:read"},
        decision={"action": "deny", "rule": "R4", "reason_code": "host_not_listed"},
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three denials of two runs, one of a hostile host, and one call; signed, in several files."""
    path, at = tmp_path / "logs" / "a.jsonl", START
    path.parent.mkdir()
    with AuditLog(path, now=lambda: at, signer=SIGNER, segment_bytes=1200) as made:
        for name, host in (("run-a", "a.example"), ("run-a", "b.example"), ("run-b", HOSTILE)):
            at += timedelta(hours=1)
            made.append(denial(name, host))
            made.flush()
        made.append(Event(code=EventCode.STP001A, subject={"run": "run-b"}, object={"tool": "t:x"}))
    return path


def listed(told: Told) -> list[dict[str, object]]:
    assert told[0] == 0, told[2]
    return [json.loads(line) for line in told[1].splitlines()]


# ── events ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("--denied",), 3),
        (("--run", "run-a"), 2),
        (("--run", "run-"), 4),
        (("--host", "?.example"), 2),
        (("--host", "*.example"), 2),
        (("--host", "a.example", "--rule", "R4", "--agent", "a*"), 1),
        (("--code", "STP*"), 1),
        (("--tool", "t:x"), 1),
        (("--since", "2026-03-01T02:00:00Z", "--denied"), 2),
        (("--until", "2026-03-01T03:00:00+01:00", "--denied"), 1),
        (("--since", "2026-03-02"), 0),
        (("--since", "1d"), 0),
    ],
)
def test_events_are_found_by_what_they_say(
    run: Run, log: Path, options: Sequence[str], count: int
) -> None:
    """`ls` by the index and `tail` by the files say the same, each event once."""
    for name in ("ls", "tail"):
        given = ("--log", str(log.parent), "--json", "-n", "50")
        assert count == len(listed(run("events", name, *given, *options)))
        assert verify_log(log).events == len(listed(run("events", name, *given)))
    assert 0 == run("events", "ls", "--log", str(log), *options)[0]


def test_what_a_page_wrote_stays_text(run: Run, log: Path) -> None:
    """In one row, without control characters, and as ASCII in JSON."""
    for name in ("ls", "tail", "top"):
        code, out, _ = run("events", name, "--log", str(log), "--host", "evil*")
        # `top` has a line of headings above.
        assert (0, 1 + (name == "top")) == (code, len(out.splitlines()))
        assert "forged" in out
        assert "\u202e" not in out
        told = run("events", name, "--log", str(log), "--host", "evil*", "--json")
        assert told[1].isascii()
        (row,) = listed(told)
        body = row if name == "top" else row["object"]
        assert isinstance(body, dict)
        assert HOSTILE == body["host"]


def test_one_event_is_shown_whole(run: Run, log: Path) -> None:
    """By its id or its line's number; what is not there is wrong usage."""
    (first, *_) = listed(run("events", "ls", "--log", str(log), "--json", "--denied", "-n", "50"))
    for name in (str(first["id"]), str(first["seq"])):
        assert [first] == listed(run("events", "show", name, "--log", str(log), "--json"))
        code, out, _ = run("events", "show", name, "--log", str(log))
        assert (0, True) == (code, "host_not_listed" in out)
    for name in ("999", "no-such-id", "-1"):
        assert 2 == run("events", "show", "--log", str(log), "--", name)[0]


def test_events_are_counted(run: Run, log: Path) -> None:
    """The most frequent first, by what was asked."""
    rows = listed(run("events", "top", "--log", str(log), "--json", "--denied", "--by", "run"))

    assert [("run-a", 2), ("run-b", 1)] == [(row["run"], row["times"]) for row in rows]
    assert 2 == run("events", "top", "--log", str(log), "--by", "start")[0]


def test_without_logs_there_is_nothing_to_show(run: Run, tmp_path: Path) -> None:
    """Nothing is made for a question; a time that is none is wrong usage."""
    state = tmp_path / "state"
    for name in ("ls", "tail", "top"):
        assert 2 == run("events", name, "--state-dir", str(state))[0]
    assert 2 == run("events", "ls", "--log", str(tmp_path / "missing"))[0]
    for bad in ("yesterday", "2026-02-30", "9999999d", "d", ""):
        assert 2 == run("events", "ls", "--log", str(tmp_path), "--since", bad)[0]
    assert not state.exists()


def test_an_index_that_cannot_be_kept_is_made_in_memory(run: Run, log: Path) -> None:
    """A note says so; one that was named has to work."""
    broken = log.with_name("a.jsonl.index.sqlite3")
    broken.write_bytes(b"no database" * 99)
    code, out, err = run("events", "ls", "--log", str(log), "--denied")

    assert (0, 3) == (code, len(out.splitlines()))
    assert "in memory" in err
    assert 1 == run("events", "ls", "--log", str(log), "--index", str(broken))[0]


def test_following_ends_cleanly_and_goes_on_over_new_files(log: Path) -> None:
    """Ctrl-C is how it ends: code 0, no word on it, and every line that came before it."""
    command = [sys.executable, "-W", "error", "-m", "runtime_pack.cli", "events", "tail", "-f"]
    follower = subprocess.Popen(
        [*command, "-n", "1", "--denied", "--json", "--log", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert follower.stdout is not None
    assert follower.stderr is not None
    try:
        assert HOSTILE == json.loads(follower.stdout.readline())["object"]["host"]
        with AuditLog(log, signer=SIGNER, segment_bytes=600) as made:
            for number in range(5):
                made.append(denial("run-c", f"{number}.example"))
                made.flush()
        hosts = [json.loads(follower.stdout.readline())["object"]["host"] for _ in range(5)]
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=60)
    finally:
        follower.kill()

    assert [f"{number}.example" for number in range(5)] == hosts
    assert (0, "", "") == (follower.returncode, out, err)


# ── audit ───────────────────────────────────────────────────────────────────────────────────────


def test_a_log_is_verified_under_a_key(run: Run, log: Path, tmp_path: Path) -> None:
    """0 signed, 0 against what was kept, 1 tampered with, 2 by nobody or unreadable."""
    kept = tmp_path / "kept"
    assert 0 == run("audit", "witness", str(log), "--to", str(kept), *KEY)[0]
    told = run("audit", "verify", str(log), *KEY, "--json")
    assert (0, "signed") == (told[0], json.loads(told[1])["status"])
    told = run("audit", "verify", str(log), *KEY, "--kept", str(kept))
    assert (0, True) == (told[0], "verified" in told[1])
    pub = tmp_path / "key.pub"
    pub.write_text(f"{SIGNER.key}\n")
    assert 0 == run("verify", str(log), "--key", str(pub))[0]
    other = LogSigner("example.org/log", bytes(32))
    assert 1 == run("audit", "verify", str(log), "--key", str(other.key))[0]
    with AuditLog(tmp_path / "plain.jsonl"):
        pass
    assert 2 == run("audit", "verify", str(tmp_path / "plain.jsonl"), *KEY)[0]
    for bad in (
        ("--key", "nonsense"),
        ("--key", "a+b+c"),
        ("--kept", str(pub)),
        ("--kept", str(tmp_path / "missing")),
    ):
        assert 2 == run("audit", "verify", str(log), *bad)[0]
    log.write_bytes(log.read_bytes()[:-10])
    assert 1 == run("audit", "verify", str(log), *KEY)[0]


def test_many_logs_are_verified_at_once(run: Run, log: Path, tmp_path: Path) -> None:
    """Each has a row, faults below it; the worst is the exit code, and one that is open is no tampering."""
    folder = log.parent
    with AuditLog(folder / "b.jsonl", signer=SIGNER):
        pass
    assert 0 == run("verify", str(folder), *KEY)[0]
    code, out, _ = run("verify", str(folder), *KEY)
    rows = out.splitlines()
    assert ["status", "signed", "signed"] == [row.split()[0] for row in rows]
    writer = AuditLog(folder / "c.jsonl", signer=SIGNER)
    assert 2 == run("verify", str(folder), *KEY)[0]
    edited = folder / "b.jsonl"
    edited.write_bytes(edited.read_bytes().replace(b"log:opened", b"log:edited"))
    code, out, _ = run("audit", "verify", str(folder), str(edited), *KEY)
    assert (1, 1) == (code, out.count("tampered"))
    assert "line 1" in out
    code, out, _ = run("audit", "verify", str(folder), str(folder / "no.jsonl"), "--json", *KEY)
    found = [json.loads(line) for line in out.splitlines()]
    assert (1, ["signed", "tampered", "open", "unreadable"]) == (code, [x["status"] for x in found])
    writer.close()
    for words, told in (
        ((str(folder), "--head", f"1:{'0' * 64}"), "of one log"),
        ((str(tmp_path / "empty"),), "no logs"),
        ((), "LOGS"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        code, _, err = run("verify", *words)
        assert (2, True) == (code, told in err)


def test_a_head_may_stand_in_a_file(run: Run, log: Path, tmp_path: Path) -> None:
    """As programs keep it; a file that holds none is wrong usage."""
    keep_head(tmp_path / "head", verify_log(log).head)
    assert 0 == run("verify", str(log), "--head", str(tmp_path / "head"))[0]
    assert 2 == run("verify", str(log), "--head", str(log))[0]
    assert 2 == run("verify", str(log), "--head", str(tmp_path / "none"))[0]


def test_a_witness_keeps_what_it_knows(run: Run, log: Path, tmp_path: Path) -> None:
    """It takes what goes on, each checkpoint once, and refuses what was put back."""
    kept = tmp_path / "kept"
    before, notes = log.read_bytes(), checkpoints_path(log).read_bytes()
    for _ in range(2):
        assert 0 == run("audit", "witness", str(log), "--to", str(kept), *KEY)[0]
    first = kept.read_bytes()
    with AuditLog(log, signer=SIGNER):
        pass
    assert 0 == run("audit", "witness", str(log), "--to", str(kept), *KEY)[0]
    assert kept.read_bytes().startswith(first)
    assert len(first) < len(kept.read_bytes())
    log.write_bytes(before)
    checkpoints_path(log).write_bytes(notes)
    code, _, err = run("audit", "witness", str(log), "--to", str(kept), *KEY)
    assert (1, True) == (code, "cut or put back" in err)
    assert 2 == run("audit", "witness", str(log), "--to", str(kept))[0]


def test_a_line_is_proved(run: Run, log: Path, tmp_path: Path) -> None:
    """The proof and the line are files; a third one is the key."""
    (tmp_path / "line").write_bytes(older_segments(log)[0][1].read_bytes().splitlines()[1] + b"\n")
    code, out, _ = run("audit", "prove", str(log), "2")
    (tmp_path / "proof").write_text(out)

    files = (str(tmp_path / "proof"), str(tmp_path / "line"))
    assert (0, 0) == (code, run("audit", "check-proof", *files, *KEY)[0])
    assert 2 == run("audit", "check-proof", *files)[0]
    assert 1 == run("audit", "check-proof", *reversed(files), *KEY)[0]
    assert 1 == run("audit", "prove", str(log), "999")[0]


def test_keys_are_made_and_old_files_deleted(run: Run, tmp_path: Path) -> None:
    """The public line is printed; what is deleted is under a tombstone of that key."""
    pem = tmp_path / "key.pem"
    code, line, _ = run("audit", "new-key", str(pem), "--name", "example.org/log")
    signer = LogSigner.load(pem, "example.org/log")
    assert (0, f"{signer.key}\n") == (code, line)
    assert 1 == run("audit", "new-key", str(pem), "--name", "example.org/log")[0]
    path, at = tmp_path / "log", START
    with AuditLog(path, now=lambda: at, signer=signer, segment_seconds=1) as made:
        at += timedelta(days=1)
        made.append(denial("r", "a.example"))
        made.flush()
    options = ("--signing-key", str(pem), "--name", "example.org/log", "--by", "ann")
    assert (0, "1 file(s) deleted\n") == run(
        "audit", "delete-older", str(path), "--days", "1", *options
    )[:2]
    told = json.loads(run("audit", "verify", str(path), "--key", str(signer.key), "--json")[1])
    assert ("signed", True) == (told["status"], told["removed"] > 0)
    assert "deleted on purpose" in run("audit", "verify", str(path), "--key", str(signer.key))[1]


def test_an_index_is_made_and_made_anew(run: Run, log: Path) -> None:
    """It says how many events were new."""
    total = verify_log(log).events
    for options, count in (((), total), ((), 0), (("--rebuild",), total)):
        told = listed(run("audit", "index", str(log.parent), "--json", *options))
        assert [count] == [row["read"] for row in told]


def test_the_auditors_script_is_printed_as_it_is(run: Run, log: Path, tmp_path: Path) -> None:
    """What is printed runs by itself."""
    code, out, _ = run("audit", "script")
    script = tmp_path / "auditor.py"
    script.write_text(out)
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(log), str(SIGNER.key)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, 0) == (code, done.returncode), done.stderr


# ── export ──────────────────────────────────────────────────────────────────────────────────────


def test_events_are_exported(run: Run, log: Path) -> None:
    """One line each in every form, and the log's own lines as they are; what is no event is told."""
    lines = [
        line
        for file in (*(older for _, older in older_segments(log)), log)
        for line in file.read_text().splitlines()
    ]
    for form in ("cef", "ecs", "ocsf", "otlp", "rfc5424"):
        code, out, _ = run("events", "export", "--log", str(log), "--format", form, "--denied")
        assert (0, 3) == (code, len(out.splitlines()))
        tail = run("events", "tail", "--log", str(log), "--format", form, "--denied")
        assert (0, out) == tail[:2]
    assert 2 == run("events", "tail", "--log", str(log), "--format", "cef", "--json")[0]
    code, out, _ = run("events", "export", "--log", str(log), "--format", "jsonl", "--run", "run-")
    assert [line for line in lines if '"run":"run-' in line] == out.splitlines()
    with log.open("ab") as file:
        file.write(b"no event\n")
    code, out, err = run("events", "export", "--log", str(log), "--format", "cef")
    assert (1, len(lines)) == (code, len(out.splitlines()))
    assert "1 line(s)" in err


@pytest.mark.parametrize("end", ["", ".checkpoints", ".000001", ".tombstone"])
@pytest.mark.parametrize("command", [("audit", "index"), ("events", "ls")])
def test_an_index_stands_in_no_file_of_a_log(
    run: Run, log: Path, end: str, command: tuple[str, str]
) -> None:
    """Neither made nor made anew there: what is there is evidence."""
    place = log.with_name(f"{log.name}{end}")
    before = {path: path.read_bytes() for path in log.parent.iterdir()}
    named = (str(log), "--rebuild") if command[0] == "audit" else ("--log", str(log))
    code, _, err = run(*command, *named, "--index", str(place))

    assert (1, True) == (code, "a file of the log" in err)
    assert before == {path: path.read_bytes() for path in log.parent.iterdir()}


def test_only_an_index_of_ours_is_made_anew(run: Run, log: Path, tmp_path: Path) -> None:
    """Whatever else stands under the name is left as it is: text, another's tables, another log."""
    other = tmp_path / "other.jsonl"
    other.write_bytes(log.read_bytes())
    text, tables = tmp_path / "notes", tmp_path / "tables.sqlite3"
    text.write_text("mine")
    with contextlib.closing(sqlite3.connect(tables)) as db:
        db.execute("CREATE TABLE events (id)")
    for place in (other, text, tables):
        before = place.read_bytes()
        code, _, err = run("audit", "index", str(log), "--index", str(place), "--rebuild")
        assert (1, True, before) == (code, "left alone" in err, place.read_bytes())


@pytest.mark.parametrize(
    "options",
    [
        ("--since", "0001-01-01T00:00:00+23:00"),
        ("--until", "9999-12-31T23:59:59-23:00"),
        ("-n", "9" * 22),
        ("--run", "r\udc80"),
        ("--host", "\udcff*"),
    ],
)
@pytest.mark.parametrize("which", ["ls", "tail"])
def test_what_cannot_be_asked_for_is_wrong_usage(
    run: Run, log: Path, which: str, options: tuple[str, str]
) -> None:
    """Times beyond all times, numbers beyond a count, and bytes that are no text."""
    code, out, err = run("events", which, "--log", str(log), *options)
    assert (2, "") == (code, out)
    assert "Traceback" not in err


def test_a_pattern_for_anything_asks_for_something(run: Run, log: Path) -> None:
    """`--host '*'` means events that have a host, by the index and by the files."""
    listed_ones, tailed = (
        run("events", which, "--log", str(log), "-n", "99", "--host", "*", "--json")[1]
        for which in ("ls", "tail")
    )
    assert listed_ones == tailed
    assert 3 == len(tailed.splitlines())
