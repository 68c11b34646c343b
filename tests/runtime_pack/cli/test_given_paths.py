"""Paths that a user gives to a command: whatever stands there, it is told at once, and nothing waits."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runtime_pack.audit import AuditLog, LogSigner, LogStatus, verify_log
from runtime_pack.audit.files import checkpoints_path
from runtime_pack.cli import main
from runtime_pack.errors import AuditError
from runtime_pack.events import Event, EventCode
from runtime_pack.given_files import MAX_LINE_BYTES, lines, read_bounded

SIGNER = LogSigner("example.org/log", bytes(range(32)))
KEY = str(SIGNER.key)
START = datetime(2026, 3, 1, tzinfo=UTC)
# A file of that size takes no room on the disk, and all the memory of whoever reads it whole.
ENDLESS = 1 << 40
Told = tuple[int, str]
Run = Callable[[str], Told]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process; its words are split at spaces."""
    monkeypatch.setenv("RUNTIME_PACK_STATE", str(tmp_path / "state"))

    def called(words: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["runtime-pack", *words.split()])
        with pytest.raises(SystemExit) as left:
            main()
        return int(str(left.value.code)), "".join(capsys.readouterr())

    return called


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A signed log of one event."""
    path = tmp_path / "a.jsonl"
    with AuditLog(path, now=lambda: START, signer=SIGNER) as made:
        made.append(Event(code=EventCode.EGR001D, subject={"run": "r"}, object={"host": "h"}))
        made.flush()
    return path


@pytest.fixture(params=["pipe", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What is no file: a pipe without a writer, and a device without an end."""
    path = tmp_path / "odd"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


WAYS = (
    "verify {odd}",
    "audit verify {odd}",
    "audit verify {log} --key {odd}",
    "audit verify {log} --kept {odd}",
    "audit prove {odd} 1",
    f"audit check-proof {{odd}} {{log}} --key {KEY}",
    f"audit check-proof {{log}} {{odd}} --key {KEY}",
    "audit index {odd}",
    "audit index {log} --index {odd}",
    "audit index {log} --rebuild --index {odd}",
    f"audit witness {{odd}} --to {{log}}.known --key {KEY}",
    f"audit witness {{log}} --to {{odd}} --key {KEY}",
    "audit delete-older {odd} --days 1 --signing-key {log} --name n",
    "audit delete-older {log} --days 1 --signing-key {odd} --name n",
    "events ls --log {odd}",
    "events ls --log {log} --index {odd}",
    "events show 1 --log {odd}",
    "events top --log {odd}",
    "events tail --log {odd}",
    "events export --format cef --log {odd}",
    "policy check {odd}",
    "policy check --json {odd}",
    "explain-url https://a.test/ --policy {odd}",
    "ask why --policy {odd}",
    "egress-proxy --policy {odd}",
    "egress-proxy --config {odd}",
    "egress-proxy --allow a.test --token-file {odd}",
)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_file_is_wrong_usage(run: Run, way: str, odd: Path, log: Path) -> None:
    """It is named and left as it is; no pipe is waited for, and no device is read to its end."""
    before = odd.stat().st_mode

    code, told = run(way.format(odd=odd, log=log))

    assert (2, before) == (code, odd.stat().st_mode), told
    assert "regular file" in told
    assert not (log.parent / "state").exists()


@pytest.mark.parametrize("way", ["verify {odd}", "verify {log} --key {odd}", "policy check {odd}"])
def test_a_socket_is_no_file(run: Run, way: str, log: Path, tmp_path: Path) -> None:
    """The system will not even open it."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "odd"))
        code, told = run(way.format(odd=tmp_path / "odd", log=log))

    assert code == 2, told
    assert "regular file" in told


@pytest.mark.parametrize(
    "way", [way for way in WAYS if "index {odd}" not in way and "--log {odd}" not in way]
)
def test_a_folder_is_no_file(run: Run, way: str, log: Path, tmp_path: Path) -> None:
    """Where a file is asked for."""
    (tmp_path / "odd").mkdir()

    code, told = run(way.format(odd=tmp_path / "odd", log=log))

    assert code == 2, told
    assert "folder" in told


@pytest.mark.parametrize(
    ("way", "code", "words"),
    [
        ("verify {odd}", 2, "has a line of more than"),
        ("audit prove {odd} 1", 1, "no checkpoints"),
        ("audit index {odd}", 1, "has a line of more than"),
        ("events ls --log {odd}", 1, "has a line of more than"),
        ("events tail --log {odd} -n 3", 1, "has a line of more than"),
        ("audit verify {log} --key {odd}", 2, "is larger than"),
        ("audit verify {log} --kept {odd}", 2, "is larger than"),
        ("policy check {odd}", 2, "is larger than"),
        ("ask why --policy {odd}", 2, "is larger than"),
        ("egress-proxy --config {odd}", 2, "is larger than"),
        ("egress-proxy --allow a.test --token-file {odd}", 2, "visible"),
        ("audit delete-older {log} --days 1 --signing-key {odd} --name n", 1, "cannot be read"),
    ],
)
def test_an_endless_line_takes_no_memory(
    run: Run, way: str, code: int, words: str, log: Path, tmp_path: Path
) -> None:
    """A tebibyte without a line feed is refused after the longest line that there can be."""
    odd = tmp_path / "odd"
    odd.touch(0o600)
    os.truncate(odd, ENDLESS)

    found, told = run(way.format(odd=odd, log=log))

    assert code == found, told
    assert words in told


def test_checkpoints_without_an_end_are_not_read(log: Path) -> None:
    """Whoever can write beside a log could take the memory of who verifies it."""
    os.truncate(checkpoints_path(log), ENDLESS)

    found = verify_log(log, keys=[SIGNER.key])

    assert found.status is LogStatus.TAMPERED
    assert any("larger than" in fault.problem for fault in found.faults)


@pytest.mark.parametrize("options", ["", "--rebuild "])
def test_an_index_takes_the_place_of_nothing_else(run: Run, options: str, log: Path) -> None:
    """A file of the user's is neither deleted nor written, nor is its mode another one."""
    mine = log.with_name("mine.txt")
    mine.write_text("do not lose this")
    mine.chmod(0o640)

    code, told = run(f"audit index {options}--index {mine} {log}")

    assert (1, "do not lose this") == (code, mine.read_text())
    assert "no index" in told
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert run(f"audit index {log}")[0] == run(f"audit index --rebuild {log}")[0] == 0


def test_what_is_added_while_a_file_is_read_is_left(tmp_path: Path) -> None:
    """A log that grows as fast as it is read would never be verified."""
    path = tmp_path / "growing"
    path.write_bytes(b"one\ntwo\n")

    found = []
    for line, is_whole in lines(path):
        found.append((line, is_whole))
        with path.open("ab") as file:
            file.write(b"more\n" * 2**18)

    assert [(b"one", True), (b"two", True)] == found


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_has_a_bound(tmp_path: Path, end: bytes) -> None:
    """The longest that may be is read; one byte more is refused, with or without a line feed."""
    path = tmp_path / "long"
    path.write_bytes(b"a\n" + bytes(MAX_LINE_BYTES) + end)

    assert [1, MAX_LINE_BYTES] == [len(line) for line, _ in lines(path)]
    path.write_bytes(b"a\n" + bytes(MAX_LINE_BYTES + 1) + end)
    with pytest.raises(OSError, match="has a line of more than"):
        list(lines(path))


def test_a_file_of_just_the_size_is_read(tmp_path: Path) -> None:
    """And none that is one byte larger."""
    path = tmp_path / "five"
    path.write_bytes(b"12345")

    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4"):
        read_bounded(path, 4)


def test_no_line_is_written_that_is_not_read_again(log: Path) -> None:
    """The event is refused, and the log goes on without it."""
    path = log.with_name("b.jsonl")
    with AuditLog(path) as made:
        with pytest.raises(AuditError, match="more than"):
            made.append(
                Event(code=EventCode.EGR001D, subject={}, object={"host": "x" * MAX_LINE_BYTES})
            )
        made.append(Event(code=EventCode.EGR001D, subject={}, object={"host": "x"}))
        made.flush()

    assert verify_log(path).status is LogStatus.CHAINED


def test_a_name_that_is_none_is_told(run: Run, tmp_path: Path) -> None:
    """A loop of links, and a name that is too long."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    assert [2, 2] == [run(f"verify {name}")[0] for name in (tmp_path / "loop", "x" * 5000)]


def test_faults_are_bounded_whatever_a_line_says(tmp_path: Path) -> None:
    """A log of changes of keys that nobody signed, and numbers of many digits."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"object":{},"seq":1,"type":"log:key_changed"}\n' * 3000
        + b'{"seq":"%s"}\n' % (b"9" * 100_000)
    )

    found = verify_log(path, keys=[SIGNER.key])

    assert found.status is LogStatus.TAMPERED
    assert len(found.faults) < 3000
    assert max(len(fault.problem) for fault in found.faults) < 300
