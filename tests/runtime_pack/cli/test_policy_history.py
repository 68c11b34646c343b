"""`policy suggest` and `policy replay` over the log of a real run (what logs say of a new policy)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from egress.testing import RecordingFetch
from runtime_pack import (
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
    runs,
)
from runtime_pack.audit import AuditLog
from runtime_pack.cli import main
from runtime_pack.policy_file import parse_policy
from runtime_pack.testing import ListEmitter, ScriptedModel, ToolShelf, calls, reply

Told = tuple[int, str, str]
Run = Callable[..., Told]
POLICY = """id = "web"
version = 3
allow = ["docs.example.org"]  # the manual

[[tools]]
tool = "disk:erase"
class = "deny"
reason = "never"
"""
SCRIPT = (
    calls(
        ("1", "disk:erase", "{}"),
        ("2", "web:read", '{"url": "https://new.example/a?secret"}'),
        ("3", "web:read", '{"url": "http://169.254.169.254/"}'),
    ),
    calls(("4", "web:read", '{"url": "https://docs.example.org/a"}')),
    reply("done"),
)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a run that was denied three calls and did one, and its log."""
    folder = tmp_path_factory.mktemp("state")
    store, policy = runs.open_store(folder), parse_policy(POLICY)
    (folder / "web.toml").write_text(POLICY)
    (folder / "logs").mkdir()
    shelf = ToolShelf().add("disk:erase", "gone")

    async def driven(log: AuditLog) -> None:
        run = create_agent_task_run(policy.contract(), audit=log, run_id="run-1")
        base = create_agent_runtime(model=ScriptedModel(SCRIPT), tools=shelf.tools)
        runtime = create_web_tool_runtime(
            run.guard_runtime(base),
            provider=create_fixture_web_search_provider([]),
            allowlist=policy.allow,
            emitter=ListEmitter(),
            fetch=RecordingFetch([]),
        )
        catalog = [*shelf.specs, *build_web_tool_catalog()]
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=catalog)
        await run_governed_agent_loop(runtime=runtime, execute_turn_input=given, store=store)

    with AuditLog(folder / "logs" / "a.jsonl") as log:
        asyncio.run(driven(log))
    return folder


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`policy WORD LOG …` in this process."""

    def called(word: str, *arguments: str, state_dir: Path = state) -> Told:
        words = ["runtime-pack", "policy", word, str(state / "logs"), "--state-dir", str(state_dir)]
        monkeypatch.setattr(sys, "argv", [*words, *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(str(left.value.code)), out, err

    return called


def test_the_diff_applies_and_replays(run: Run, state: Path, tmp_path: Path) -> None:
    """What `suggest` prints is a patch; the file that it makes admits what was chosen (point 6)."""
    code, diff, told = run("suggest", "--policy", str(state / "web.toml"))
    (tmp_path / "web.toml").write_text(POLICY)
    patched = subprocess.run(
        ["git", "apply", "--unsafe-paths", "-"], input=diff, text=True, cwd=tmp_path, check=False
    )

    assert (1, 0) == (code, patched.returncode)
    assert "no entry opens it" in told
    text = (tmp_path / "web.toml").read_text()
    assert 'allow = ["docs.example.org", "new.example"]  # the manual' in text
    assert "version = 4" in text
    code, out, _ = run("replay", "--policy", str(tmp_path / "web.toml"))
    assert 1 == code
    assert "denied -> allowed" in out
    assert "denied -> asked" in out
    assert "4 calls, 2 would change, 0 cannot be decided" in out


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("--host", "new.example"), ["allow"]),
        (("--tool", "disk:*"), ["tools[0].class"]),
        (("--run", "run-1", "--code", "STP004D", "--tool", "web:*"), ["allow"]),
        (("--run", "run-1", "--rule", "R4"), ["allow"]),
    ],
)
def test_filters_choose(run: Run, state: Path, words: tuple[str, ...], changed: list[str]) -> None:
    """By run, host, rule, code and tool, as everywhere."""
    _, out, _ = run("suggest", "--policy", str(state / "web.toml"), "--json", *words)

    assert changed == [change["key"] for change in json.loads(out)["changes"]]


def test_an_event_chooses(run: Run, state: Path) -> None:
    """Its id, and no other: an id that is no denial's is refused."""
    log = [json.loads(line) for line in (state / "logs" / "a.jsonl").read_text().splitlines()]
    denied = next(e for e in log if e["code"] == "EGR001D" and e["object"]["host"] == "new.example")

    code, out, _ = run("suggest", "--event", denied["id"], "--json")

    assert (0, [denied["id"]]) == (code, json.loads(out)["admitted"])
    assert 2 == run("suggest", "--event", log[0]["id"])[0]
    assert 2 == run("suggest", "--host", "none.example")[0]


def test_replay_under_the_same_file_changes_nothing(run: Run, state: Path) -> None:
    """Exit code 0: every call as it was."""
    code, out, _ = run("replay", "--policy", str(state / "web.toml"), "--json", "--all")

    body = json.loads(out)
    assert (0, 0, 0, 4) == (code, body["changed"], body["unknown"], body["calls"])
    assert {"denied->denied": 3, "allowed->allowed": 1} == body["counts"]


def test_without_the_saved_run_it_is_said_what_is_missing(
    run: Run, state: Path, tmp_path: Path
) -> None:
    """A digest is no URL: exit code 3, and nothing is guessed."""
    policy = tmp_path / "p.toml"
    policy.write_text(POLICY.replace("version = 3", "version = 5"))

    code, out, _ = run("replay", "--policy", str(policy), state_dir=tmp_path / "none")

    assert 3 == code
    assert "the log has the digest of the URL, and not the URL" in out
    assert 0 == run("replay", "--policy", str(policy))[0]


def test_nothing_of_a_query_is_told(run: Run, state: Path) -> None:
    """Neither command repeats what only the saved run holds."""
    for word in ("suggest", "replay"):
        _, out, err = run(word, "--policy", str(state / "web.toml"), "--json")

        assert re.search("secret", out + err) is None
