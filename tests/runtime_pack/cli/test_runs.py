"""`runtime-pack runs`, as a person and a script meet it: real processes over one state folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import runtime_pack
from runtime_pack import (
    GuardedRuntime,
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    runs,
)
from runtime_pack.cli._runs_show import without_secrets
from runtime_pack.testing import ScriptedModel, ToolShelf, calls, reply

ROOT = Path(runtime_pack.__file__).parent.parent
QUESTION = "What does the with statement do?"

pytestmark = pytest.mark.loopback


@attrs.frozen
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    plain = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1", "LANG": "C.UTF-8"}
    return {**kept, **plain, **more}


_forges: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def _forge(forge: Any) -> Iterator[None]:
    """What `cli` starts commands with."""
    _forges.append(forge)
    yield
    _forges.clear()


def cli(state: Path, *arguments: str, env: dict[str, str] | None = None) -> Done:
    """Run the command without a terminal; nothing that looks like a crash may be seen."""
    (forge,) = _forges
    ended = forge.run([*arguments, "--state-dir", str(state)], env or environment())
    seen = Done(ended.code, ended.out, ended.err)
    assert "Traceback" not in seen.out + seen.err
    return seen


def waiting_run(state: Path, *options: str) -> tuple[str, list[str]]:
    """A run of `ask` whose reads wait for a person, and the ids of its requests."""
    asked = cli(state, "ask", QUESTION, "--approve", "ask", "--json", *options)
    assert asked.code == 3, asked.err
    return asked.json["run"], [request["request_id"] for request in asked.json["requests"]]


def statuses(state: Path) -> dict[str, str]:
    return {run["run"]: run["status"] for run in cli(state, "runs", "list", "--json").json["runs"]}


def test_a_run_of_ask_is_listed_shown_approved_and_taken_up(tmp_path: Path) -> None:
    """Each by another process; the corpus, the allowlist and the port are those of the run."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)
    listed = cli(state, "runs", "list")
    shown = cli(state, "runs", "show", run[:12])
    assert (listed.code, shown.code) == (0, 0)
    assert f"{run}  waiting" in listed.out
    assert max(map(len, listed.out.splitlines()[:2])) <= 80
    for text in (
        *requests,
        '"url": "http://127.0.0.1:',
        "this run was started with --approve ask",
        "external",
        "expires 20",
        f"runtime-pack runs approve {run} {requests[0]}",
    ):
        assert text in shown.out

    assert cli(state, "runs", "approve", run, requests[0], "--reason", "fine").code == 0
    assert cli(state, "runs", "deny", run[:10], requests[1][:14], "--by", "bob").code == 0
    details = cli(state, "runs", "show", run, "--json").json
    assert ["approve", "deny", None] == [
        request["decision"] and request["decision"]["verdict"] for request in details["requests"]
    ]
    half = cli(state, "runs", "resume", run, "--json")
    assert (half.code, half.json["kind"]) == (3, "approval_required")
    assert [requests[2]] == [request["request_id"] for request in half.json["requests"]]

    # Only one waits now: it needs no name.
    assert cli(state, "runs", "approve", run).code == 0
    done = cli(state, "runs", "resume", run, "--json")

    assert (done.code, done.json["kind"]) == (0, "completed")
    codes = [s["code"] for s in done.json["steps"] if s["tool"] == "web:read" and s["admitted"]]
    assert [None, None] == [code for code in codes if code is None]
    assert statuses(state) == {run: "completed"}
    assert cli(state, "verify", done.json["audit"]["path"]).code == 0


def test_the_first_decision_stands_and_a_script_sees_which(tmp_path: Path) -> None:
    """The same again is no fault; another one is, and says what stands."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)
    assert cli(state, "runs", "deny", run, requests[0], "--by", "ann").code == 0
    same = cli(state, "runs", "deny", run, requests[0], "--json")
    other = cli(state, "runs", "approve", run, requests[0], "--json")
    unknown = cli(state, "runs", "approve", run, "apr-00", "--json")

    assert (0, "ALREADY_RESOLVED") == (same.code, same.json["replies"][0]["code"])
    assert (1, "APPROVAL_CONFLICT") == (other.code, other.json["replies"][0]["code"])
    assert "ann said deny" in other.json["replies"][0]["message"]
    assert (2, "APPROVAL_NOT_FOUND") == (unknown.code, unknown.json["replies"][0]["code"])


def test_an_edited_call_runs_with_what_the_person_wrote_if_the_rules_admit_it(
    tmp_path: Path,
) -> None:
    """An address that is not listed is refused, whoever wrote it."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)
    first = cli(state, "runs", "show", run, "--json").json["requests"]
    url = first[1]["arguments"]["url"]
    edits = [{"url": url}, {"url": "http://intranet.corp/"}]
    for request, arguments in zip(requests, edits, strict=False):
        assert cli(state, "runs", "edit", run, request, json.dumps(arguments)).code == 0
    assert cli(state, "runs", "deny", run, "--all").code == 0
    done = cli(state, "runs", "resume", run, "--json")

    reads = [s["code"] for s in done.json["steps"] if s["tool"] == "web:read"]
    assert done.code in {0, 3}
    assert None in reads
    assert "WEB_EGRESS_DENIED" in reads
    # What became of a decided request is told before its arguments are looked at.
    for wrong in ("nonsense", "[1]", '"text"'):
        assert cli(state, "runs", "edit", run, requests[0], wrong).code == 2


def test_an_edit_that_the_tool_cannot_take_is_refused_at_once(tmp_path: Path) -> None:
    """By the definition that was saved with the run: nothing is recorded, and the request stays open."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)
    for wrong in ("{}", '{"url": 5}', '{"url": "http://a.example/", "more": 1}'):
        done = cli(state, "runs", "edit", run, requests[0], wrong, "--json")
        (reply,) = done.json["replies"]
        assert (1, "DECISION_REFUSED") == (done.code, reply["code"])
        assert "do not fit web:read" in reply["message"]
    waiting = cli(state, "runs", "show", run, "--json").json["requests"]
    assert [None] * 3 == [request["decision"] for request in waiting]
    fits = cli(state, "runs", "edit", run, requests[0], '{"url": "http://a.example/"}')
    assert (0, True) == (fits.code, "judged again when the run is taken up" in fits.out)


def test_all_that_are_decided_already_are_no_fault(tmp_path: Path) -> None:
    """It is told how many there are, and what follows."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)
    assert cli(state, "runs", "approve", run, "--all").code == 0
    again = cli(state, "runs", "approve", run, "--all")
    as_json = cli(state, "runs", "deny", run, "--all", "--json")

    assert len(requests) == 3
    assert again.code == 0
    assert f"all 3 are decided already; take it up: runtime-pack runs resume {run}" in again.out
    assert (0, []) == (as_json.code, as_json.json["replies"])
    unnamed = cli(state, "runs", "deny", run)
    assert (2, True) == (unnamed.code, "all 3 calls are decided already" in unnamed.err)


def test_a_run_of_a_program_is_decided_here_and_taken_up_there(tmp_path: Path) -> None:
    """`runs.open_store` is the store of the command; the command does not offer what it cannot do."""
    state = tmp_path / "state"
    shelf = ToolShelf().add("disk:erase", "erased")
    rule = ToolRule(tool="disk:*", approval_class="request_user")

    def runtime(run_id: str) -> GuardedRuntime:
        model = ScriptedModel([calls(("1", "disk:erase", "{}")), reply("done")])
        contract = TaskContract(tool_policy=ToolPolicy([rule]))
        run = create_agent_task_run(contract, run_id=run_id)
        return run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools))

    async def start() -> str:
        result = await run_governed_agent_loop(
            runtime=runtime("run-of-a-program"),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
            store=runs.open_store(state),
        )
        assert result.kind == "approval_required"
        return result.run_id

    run = asyncio.run(start())
    shown = cli(state, "runs", "show", run)
    approved = cli(state, "runs", "approve", run)
    decided = cli(state, "runs", "show", run, "--json").json["requests"]
    other = cli(state, "runs", "deny", run, "--by", "bob")

    # Of the only one it is told what stands, named or not.
    assert (1, True) == (other.code, "APPROVAL_CONFLICT" in other.err)
    for done in (shown, approved):
        assert done.code == 0
        assert "the program that started it takes it up" in done.out
        assert "runs resume" not in done.out
    assert ["approve"] == [request["decision"]["verdict"] for request in decided]
    with pytest.raises(FileNotFoundError):
        runs.open_store(tmp_path / "none", create=False)


def test_a_run_that_is_driven_elsewhere_is_said_to_be(tmp_path: Path) -> None:
    """In words for people, before anything is served for it."""
    state = tmp_path / "state"
    process, go = started(tmp_path, state)
    (run,) = statuses(state)
    env = environment(PYTHONPATH=os.pathsep.join((str(ROOT), str(tmp_path))))
    busy = cli(state, "runs", "resume", run, env=env)
    go.touch()
    process.communicate(timeout=120)

    assert busy.code == 1
    assert f"run {run} is being driven by another process" in busy.err


def test_a_shown_run_has_the_rows_of_ask_with_grants_in_its_limits(tmp_path: Path) -> None:
    """The used-up budget comes with the grant to give; a grant that waits is in the limit."""
    state = tmp_path / "state"
    asked = cli(state, "ask", QUESTION, "--max-turns", "2")
    run = re.search(r"runs grant (\S+) turns 10", asked.out)
    assert run is not None
    before = cli(state, "runs", "show", run[1])
    given = cli(state, "runs", "grant", run[1], "turns", "5", "--reason", "go on")
    after = cli(state, "runs", "show", run[1])

    def rows(text: str) -> list[str]:
        found = re.findall(r"^(turns|steps|wrap-up turn|seconds) +(\S+)", text, re.MULTILINE)
        return [" ".join(row) for row in found]

    assert given.code == 0
    assert rows(asked.out) == rows(before.out) == [
        "turns 2", "steps 20", "wrap-up turn 1", "seconds 120.0",
    ]  # fmt: skip
    assert "give it more: runtime-pack runs grant" in before.out
    assert "turns 7" in rows(after.out)
    assert f"take it up: runtime-pack runs resume {run[1]}" in after.out


def test_a_grant_lets_a_run_go_on_that_had_spent_its_budget(tmp_path: Path) -> None:
    """It is left with the run, shown, given once by the next resume, and no more than was said."""
    state = tmp_path / "state"
    asked = cli(state, "ask", QUESTION, "--max-steps", "1", "--json")
    assert (asked.code, asked.json["stop"]["budget"]) == (4, "steps")
    run = asked.json["run"]
    for wrong in (("stairs", "1"), ("steps", "0"), ("steps", "x"), ("cost", "1"), ("tokens", "5")):
        assert cli(state, "runs", "grant", run, *wrong, "--reason", "more").code == 2
    assert cli(state, "runs", "grant", run, "steps", "2").code == 2
    given = cli(state, "runs", "grant", run, "steps", "2", "--reason", "go on", "--json")
    assert (given.code, given.json["grant"]["amount"]) == (0, 2)
    shown = cli(state, "runs", "show", run)
    assert "2 more steps (go on)" in shown.out
    resumed = cli(state, "runs", "resume", run, "--json")
    again = cli(state, "runs", "resume", run, "--json")

    assert 3 == resumed.json["ledger"]["limits"]["counts"]["steps"]
    assert 3 == again.json["ledger"]["limits"]["counts"]["steps"]
    assert resumed.json["ledger"]["used"]["steps"] <= 3
    assert [] == cli(state, "runs", "show", run, "--json").json["grants"]


def test_cancel_ends_parked_runs_for_good(tmp_path: Path) -> None:
    """One by name, all that are left by --all; what is over stays as it was."""
    state = tmp_path / "state"
    first, _ = waiting_run(state)
    second, requests = waiting_run(state)
    done = cli(state, "ask", QUESTION, "--json").json["run"]
    one = cli(state, "runs", "cancel", first, "--reason", "enough", "--json")
    everything = cli(state, "runs", "cancel", "--all", "--json")

    assert (0, ["cancelled"]) == (one.code, [r["status"] for r in one.json["replies"]])
    told = {reply["run"]: reply["status"] for reply in everything.json["replies"]}
    assert {first: "over", second: "cancelled", done: "over"} == told
    assert {first: "cancelled", second: "cancelled", done: "completed"} == statuses(state)
    resumed = cli(state, "runs", "resume", second, "--json")
    assert (1, "cancelled") == (resumed.code, resumed.json["kind"])
    assert 1 == cli(state, "runs", "approve", second, requests[0]).code
    assert 2 == cli(state, "runs", "approve", second).code


SLOW = """
import asyncio, pathlib
from runtime_pack import SearchHit
class Slow:
    async def search(self, request, *, signal=None):
        pathlib.Path({begun!r}).touch()
        while not pathlib.Path({go!r}).exists():
            await asyncio.sleep(0.02)
        return [SearchHit(title="t", url="http://127.0.0.1:9/x", snippet="with statement")]
def make():
    return Slow()
"""


def started(tmp_path: Path, state: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A run of `ask` in the middle of its search, and the file that lets the search end."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    (tmp_path / "slow_search.py").write_text(SLOW.format(begun=str(begun), go=str(go)))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "runtime_pack.cli",
            "ask",
            QUESTION,
            "--provider",
            "slow_search:make",
            "--allow",
            "127.0.0.1:9",
            "--json",
            "--state-dir",
            str(state),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join((str(ROOT), str(tmp_path)))),
    )
    until = time.monotonic() + 120
    while not begun.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    return process, go


def test_a_running_ask_ends_after_its_step_in_hand_when_all_are_cancelled(tmp_path: Path) -> None:
    """The search ends and is kept; nothing is read, no model is asked again."""
    state = tmp_path / "state"
    process, go = started(tmp_path, state)
    ((run, status),) = statuses(state).items()
    assert status == "running"
    env = environment(PYTHONPATH=os.pathsep.join((str(ROOT), str(tmp_path))))
    busy = cli(state, "runs", "resume", run, "--json", env=env)
    cancelled = cli(state, "runs", "cancel", "--all", "--reason", "stop it", "--json")
    shown = cli(state, "runs", "show", run)
    go.touch()
    out, err = process.communicate(timeout=120)

    assert (1, "STATE_CONFLICT") == (busy.code, busy.json["stop"]["code"])
    assert ["requested"] == [reply["status"] for reply in cancelled.json["replies"]]
    assert "to be cancelled" in shown.out
    result = json.loads(out)
    assert (1, "cancelled") == (process.returncode, result["kind"]), err
    assert "stop it" in result["stop"]["message"]
    assert ["agent:execute-turn", "web:search"] == [step["tool"] for step in result["steps"]]
    assert {run: "cancelled"} == statuses(state)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_leaves_a_run_that_can_be_taken_up(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C suspends it, and even a kill leaves it whole, with nobody's claim on it."""
    state = tmp_path / "state"
    process, go = started(tmp_path, state)
    process.send_signal(number)
    process.communicate(timeout=120)
    (found,) = cli(state, "runs", "list", "--json").json["runs"]
    assert found["status"] == ("interrupted" if number is signal.SIGKILL else "suspended")
    go.touch()
    resumed = cli(
        state,
        "runs",
        "resume",
        found["run"],
        "--json",
        env=environment(PYTHONPATH=os.pathsep.join((str(ROOT), str(tmp_path)))),
    )

    assert resumed.json["kind"] in {"completed", "suspended"}, resumed.err
    searches = [step for step in resumed.json["steps"] if step["tool"] == "web:search"]
    assert [True] == [step["ok"] for step in searches if step["ok"]]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("show", "run-0"), "no saved run"),
        (("show", "../key"), "no saved run"),
        (("show", ""), "no saved run"),
        (("approve", "nothing"), "runs list"),
        (("cancel",), "--all"),
        (("cancel", "x", "--all"), "--all"),
        (("resume", "x"), "no saved run"),
    ],
)
def test_wrong_usage_says_what_to_change(
    tmp_path: Path, arguments: Sequence[str], word: str
) -> None:
    """Exit code 2."""
    state = tmp_path / "state"
    assert cli(state, "ask", QUESTION, "--max-turns", "0").code == 4
    done = cli(state, "runs", *arguments)

    assert 2 == done.code
    assert word in re.sub(r"\s+", " ", done.err)


def test_without_a_state_folder_nothing_is_made(tmp_path: Path) -> None:
    """Looking at runs is no reason to make a key."""
    none = tmp_path / "none"
    listed, cancelled = cli(none, "runs", "list"), cli(none, "runs", "cancel", "--all")
    shown = cli(none, "runs", "show", "run-1")

    assert (0, 0) == (listed.code, cancelled.code)
    assert {f"no saved runs in {none}\n"} == {listed.out, cancelled.out}
    assert {"runs": []} == cli(none, "runs", "list", "--json").json
    assert {"replies": []} == cli(none, "runs", "cancel", "--all", "--json").json
    assert (2, True) == (shown.code, "--state-dir" in shown.err)
    assert not none.exists()
    (none / "runs").mkdir(parents=True)
    assert cli(none, "runs", "list").code == 1  # the key is gone, which is no new folder


def test_a_beginning_that_several_runs_have_is_not_guessed(tmp_path: Path) -> None:
    """The ids are named; several requests that wait are named too."""
    state = tmp_path / "state"
    first, requests = waiting_run(state)
    second, _ = waiting_run(state)
    ambiguous = cli(state, "runs", "show", "run-")
    several = cli(state, "runs", "approve", first)

    assert (2, 2) == (ambiguous.code, several.code)
    assert all(run in ambiguous.err for run in (first, second))
    assert all(request in several.err for request in requests)


def test_a_damaged_run_is_listed_and_nothing_can_be_done_to_it(tmp_path: Path) -> None:
    """The others are not held up by it."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)
    other, _ = waiting_run(state)
    rows = state / "runs" / run / "rows.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"with statement", b"with_statement"))

    assert {run: "damaged", other: "waiting"} == statuses(state)
    for arguments in (("show", run), ("approve", run, requests[0]), ("resume", run)):
        done = cli(state, "runs", *arguments)
        assert done.code == 1
    cancelled = cli(state, "runs", "cancel", "--all", "--json")
    assert 1 == cancelled.code
    told = {reply["run"]: reply["status"] for reply in cancelled.json["replies"]}
    assert {run: "failed", other: "cancelled"} == told


def test_secrets_of_the_environment_and_the_key_are_not_shown(tmp_path: Path) -> None:
    """A model that put one into its arguments is given away, not the secret."""
    state = tmp_path / "state"
    secret = "with statement"
    run, _ = waiting_run(state)
    env = environment(SOME_API_KEY=secret, OTHER_TOKEN="context-managers")
    shown = cli(state, "runs", "show", run, env=env)
    as_json = cli(state, "runs", "show", run, "--json", env=env)

    key = (state / "key").read_bytes().hex()
    for done in (shown, as_json):
        assert "[value of OTHER_TOKEN]" in done.out
        assert "context-managers" not in done.out
        assert key not in done.out


def test_secrets_are_found_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """In keys and values at any depth; a short value is no secret."""
    monkeypatch.setenv("A_SECRET", "s3cr3t-value")
    monkeypatch.setenv("B_KEY", "x")

    found = without_secrets({"x s3cr3t-value": ["as3cr3t-valueb", 1, None, {"x": True}]})

    assert {"x [value of A_SECRET]": ["a[value of A_SECRET]b", 1, None, {"x": True}]} == found


# ── what stands in the way ────────────────────────────────────────────────────────────────────


def test_a_run_that_cannot_be_looked_into_makes_the_kill_switch_fail(tmp_path: Path) -> None:
    """Every other run is ended, and this one is named."""
    state = tmp_path / "state"
    run, _ = waiting_run(state)
    (state / "runs" / "run-closed").symlink_to("run-closed")

    done = cli(state, "runs", "cancel", "--all", "--json")

    told = {reply["run"]: reply["status"] for reply in done.json["replies"]}
    assert (done.code, told) == (1, {run: "cancelled", "run-closed": "failed"})
    assert statuses(state) == {run: "cancelled", "run-closed": "damaged"}


def test_a_folder_of_runs_that_is_none_is_no_empty_one(tmp_path: Path) -> None:
    """Nobody is told that all runs are ended when none could be looked for."""
    state = tmp_path / "state"
    waiting_run(state)
    (state / "runs").rename(state / "kept")
    (state / "runs").symlink_to("runs")

    for words in (("list",), ("cancel", "--all"), ("list", "--json")):
        assert cli(state, "runs", *words).code == 1


def test_a_pipe_in_a_runs_folder_holds_nobody_up(tmp_path: Path) -> None:
    """It is a damaged run, like any other."""
    state = tmp_path / "state"
    run, _ = waiting_run(state)
    (state / "runs" / "run-pipe").mkdir()
    os.mkfifo(state / "runs" / "run-pipe" / "head.json")

    assert statuses(state) == {run: "waiting", "run-pipe": "damaged"}
    assert cli(state, "runs", "cancel", "--all").code == 1
    assert statuses(state)[run] == "cancelled"


def test_a_cancel_that_cannot_be_logged_is_left_with_the_run(tmp_path: Path) -> None:
    """Nothing is ended without a record; whoever takes the run up ends it."""
    state = tmp_path / "state"
    run, _ = waiting_run(state)
    (state / "logs").rename(state / "kept")
    (state / "logs").touch()

    done = cli(state, "runs", "cancel", "--all", "--json")

    assert done.code == 1
    assert [(r["run"], r["status"]) for r in done.json["replies"]] == [(run, "failed")]
    (listed,) = cli(state, "runs", "list", "--json").json["runs"]
    assert listed["cancel"].startswith("cancelled by ")
    (state / "logs").unlink()
    assert cli(state, "runs", "resume", run, "--json").json["kind"] == "cancelled"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("option", [["--json"], []])
def test_output_that_cannot_be_written_is_a_failure(
    option: list[str], unbuffered: str, tmp_path: Path
) -> None:
    """One line says so, however Python was started."""
    state = tmp_path / "state"
    words = ["explain-url", "https://a.example/", *option] if option else ["runs", "list"]
    command = [sys.executable, "-m", "runtime_pack.cli", *words]
    env = environment(PYTHONUNBUFFERED=unbuffered, RUNTIME_PACK_STATE=str(state))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=env, timeout=60
        )

    assert done.returncode == 1
    assert done.stderr.decode() == "Error: the output cannot be written (No space left on device)\n"


def test_an_object_that_does_not_fit_on_the_disk_is_not_told_as_whole(tmp_path: Path) -> None:
    """A write that takes a part is gone on with, and the rest is refused."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "import sys; from runtime_pack.cli._text import say_json;"
        "import click\n"
        "try: say_json({'a': 'x' * 5000})\n"
        "except click.ClickException as error: sys.exit(str(error.message))"
    )
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE,
            check=False, cwd=ROOT, env=environment(PYTHONUNBUFFERED="1"), timeout=60,
        )  # fmt: skip

    assert done.returncode == 1
    assert b"the output cannot be written" in done.stderr


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "9" * 40])
def test_a_number_beyond_64_bits_is_not_rounded(number: str, tmp_path: Path) -> None:
    """The call would run with another one than the person wrote."""
    state = tmp_path / "state"
    run, requests = waiting_run(state)

    done = cli(state, "runs", "edit", run, requests[0], f'{{"url": {number}}}')

    assert done.code == 2
    assert "64 bits" in done.err


def test_an_empty_request_names_none(tmp_path: Path) -> None:
    """An unset variable of a script approves nothing."""
    state = tmp_path / "state"
    run, _ = waiting_run(state, "--max-steps", "2")

    for words in (("approve",), ("deny",)):
        done = cli(state, "runs", *words, run, "")
        assert (done.code, "empty" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("module", "words"),
    [("click", []), ("runtime_pack.cli._text", []), ("runtime_pack.cli.runs", ["runs", "list"])],
)
def test_ctrl_c_while_the_command_is_loaded_is_no_traceback(module: str, words: list[str]) -> None:
    """130, as at any other time."""
    code = f"""
import runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
sys.argv[1:] = {words!r}
runpy.run_module("runtime_pack.cli", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT,
        env=environment(), timeout=60,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (130, b"")
    assert b"Traceback" not in done.stderr


def test_help_that_cannot_be_written_is_a_failure() -> None:
    """It is written by another hand than ours, and fails as ours does: no traceback."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "runtime_pack.cli", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
            env=environment(),
            timeout=60,
        )

    assert done.returncode == 1
    assert done.stderr.decode() == "Error: nothing more can be written (No space left on device)\n"
