"""`runtime-pack events forward`: from a policy file and logs to receivers, and what it says of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime_pack.audit import AuditLog
from runtime_pack.cli import main
from runtime_pack.events import Event, EventCode

Told = tuple[int, str, str]
Run = Callable[..., Told]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command in this process."""

    def called(*arguments: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["runtime-pack", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return int(str(left.value.code)), out, err

    return called


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Two sinks that always work, and logs."""
    (tmp_path / "logs").mkdir()
    with AuditLog(tmp_path / "logs" / "a.jsonl") as log:
        for code in (EventCode.STP001A, EventCode.EGR001D):
            log.append(Event(code=code, subject={"run": "r"}, object={"host": "\x1b[2J"}))
    path = tmp_path / "policy.toml"
    path.write_text(
        f"""
id = "forwarding"
version = 1
[credentials]
secret = {{ env = "NO_SUCH_VARIABLE" }}
[sinks.copy]
kind = "file"
path = "{tmp_path}/copy"
[sinks.out]
kind = "stdout"
format = "cef"
wanted = {{ denied = true }}
[sinks.hook]
kind = "webhook"
to = "https://hook.example/"
credential = "secret"
"""
    )
    return path


def test_sinks_of_a_policy_file_get_what_the_logs_hold(
    run: Run, policy: Path, tmp_path: Path
) -> None:
    """Each once, in its form and with its filter; a second time there is nothing new."""
    logs, keep = str(tmp_path / "logs"), str(tmp_path / "state")
    words = ["events", "forward", "--policy", str(policy), "--log", logs, "--keep", keep]
    words += ["--once", "--sink", "copy", "--sink", "out"]
    state = ("--state-dir", str(tmp_path / "none"))
    code, out, err = run(*words, *state)
    copied = (tmp_path / "copy").read_bytes()

    assert 0 == code, err
    assert (tmp_path / "logs" / "a.jsonl").read_bytes() == copied
    assert 1 == out.count("CEF:0|")
    assert "copy: 4 event(s) delivered in all" in err
    code, out, err = run(*words, *state)
    assert (0, "") == (code, out)
    assert copied == (tmp_path / "copy").read_bytes()
    state_file = json.loads((tmp_path / "state" / "copy.json").read_text())
    assert 4 == state_file["places"]["a.jsonl"]["seq"]


def test_what_cannot_be_delivered_is_an_exit_code(run: Run, policy: Path, tmp_path: Path) -> None:
    """The reason is told, and nothing counts as delivered."""
    (tmp_path / "copy").mkdir()
    words = ("events", "forward", "--policy", str(policy), "--log", str(tmp_path / "logs"))
    code, out, err = run(
        *words, "--keep", str(tmp_path / "s"), "--once", "--attempts", "1", "--sink", "copy",
        "--state-dir", str(tmp_path / "none"),
    )  # fmt: skip

    assert (1, "") == (code, out)
    assert "copy: the file cannot be written" in err


def test_wrong_usage_is_told(run: Run, policy: Path, tmp_path: Path) -> None:
    """No such sink, no sinks, no credential, no logs: each in a line."""
    none = ("--state-dir", str(tmp_path / "none"))
    words = ("events", "forward", "--policy", str(policy), *none)
    logs = ("--log", str(tmp_path / "logs"))
    keep = ("--keep", str(tmp_path / "state"))
    bare = tmp_path / "bare.toml"
    bare.write_text('id = "bare"\nversion = 1\n')
    asked = [
        ((*words, *logs, *keep, "--sink", "siem"), 2, "no sink siem; there are: copy, hook, out"),
        (("events", "forward", "--policy", str(bare), *none, *logs, *keep), 2, "no [sinks.NAME]"),
        ((*words, *keep), 2, "no logs in the state folder"),
        ((*words, *logs), 2, "--keep"),
        ((*words, *logs, *keep, "--once"), 1, "NO_SUCH_VARIABLE"),
    ]
    for given, code, told in asked:
        found = run(*given)
        assert code == found[0]
        assert told in found[2]


@pytest.mark.parametrize("name", ["a.jsonl", "copy.jsonl", "copy"])
def test_a_sink_that_would_write_among_the_logs_is_refused(
    run: Run, policy: Path, tmp_path: Path, name: str
) -> None:
    """What it wrote there would be read as a log, and a log that it wrote to would be broken."""
    logs = tmp_path / "logs"
    before = (logs / "a.jsonl").read_bytes()
    policy.write_text(policy.read_text().replace(f"{tmp_path}/copy", str(logs / name)))

    words = ("--policy", str(policy), "--log", str(logs), "--keep", str(tmp_path / "state"))
    code, _, err = run("events", "forward", *words, "--once", "--sink", "copy")

    assert 2 == code
    assert "sinks.copy.path" in err
    assert before == (logs / "a.jsonl").read_bytes()
    assert ["a.jsonl"] == [path.name for path in logs.iterdir() if path.name.endswith("l")]


def test_another_name_of_a_log_is_no_place_to_write(run: Run, policy: Path, tmp_path: Path) -> None:
    """A hard link and a symbolic one lead to the log as well."""
    logs = tmp_path / "logs"
    before = (logs / "a.jsonl").read_bytes()
    for make in (Path.hardlink_to, Path.symlink_to):
        (tmp_path / "copy").unlink(missing_ok=True)
        make(tmp_path / "copy", logs / "a.jsonl")
        for target in (logs, logs / "a.jsonl"):
            words = ("--policy", str(policy), "--log", str(target), "--keep", str(tmp_path / "s"))
            code, _, err = run("events", "forward", *words, "--once", "--sink", "copy")
            assert 2 == code, err
    assert before == (logs / "a.jsonl").read_bytes()
