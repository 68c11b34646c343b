"""The command as a person and a script meet it: a real process, its output and its exit code."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import runtime_pack
from runtime_pack.cli import main
from runtime_pack.cli._text import plain

ROOT = Path(runtime_pack.__file__).parent.parent
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
RUN_KEYS = {"kind", "run", "text", "references", "stop", "ledger", "steps", "requests"}


@attrs.frozen
class Done:
    """What a process left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        (line,) = self.out.splitlines()
        value = json.loads(line)
        assert isinstance(value, dict)
        return value


def command(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-W", "error", "-m", "runtime_pack.cli", *arguments]


def environment(*folders: Path) -> dict[str, str]:
    """A plain terminal of 80 columns, and modules of the test's own."""
    path = os.pathsep.join(map(str, (ROOT, *folders)))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    return {**kept, "PYTHONPATH": path, "COLUMNS": "80", "NO_COLOR": "1", "LANG": "C.UTF-8"}


def cli(
    *arguments: str,
    state: Path | None = None,
    cwd: Path | None = None,
    folders: Sequence[Path] = (),
) -> Done:
    """Run the command without a terminal; nothing that looks like a crash may be seen."""
    where = () if state is None else ("--state-dir", str(state))
    done = subprocess.run(
        command(*arguments, *where),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        cwd=cwd or ROOT,
        env=environment(*folders),
        timeout=60,
    )
    seen = Done(done.returncode, done.stdout.decode(), done.stderr.decode())
    for word in ("Traceback", "Warning", "never awaited", "Exception ignored"):
        assert word not in seen.out + seen.err
    assert CONTROLS.search(seen.out + seen.err) is None
    return seen


class Here:
    """The command in this process: the many variations of what a real process shows as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, state: Path | None = None) -> Done:
        where = () if state is None else ("--state-dir", str(state))
        self._monkeypatch.setattr(sys, "argv", ["runtime-pack", *arguments, *where])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = self._capsys.readouterr()
        assert CONTROLS.search(out + err) is None
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """See `Here`."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    return Here(monkeypatch, capsys)


# ── help and usage ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["ask", "demo", "verify", "explain-url", None])
def test_help_names_the_exit_codes(name: str | None, here: Here) -> None:
    """The help of every command, and of all together, says what its exit codes mean, in 80 columns."""
    done = here(*([] if name is None else [name]), "--help")

    assert (0, "") == (done.code, done.err)
    assert "Exit codes:" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


USAGE: list[tuple[list[str], str]] = [
    (["nonsense"], "nonsense"),
    (["ask"], "give a QUESTION"),
    (["ask", "q", "--resume", "run-1"], "give a QUESTION"),
    (["ask", "q", "--max-steps", "-1"], "--max-steps"),
    (["ask", "q", "--max-steps", "many"], "--max-steps"),
    (["ask", "q", "--max-turns", "1.5"], "--max-turns"),
    (["ask", "q", "--max-seconds", "nan"], "max_duration_seconds"),
    (["ask", "q", "--max-seconds", "inf"], "max_duration_seconds"),
    (["ask", "q", "--approve", "maybe"], "--approve"),
    (["ask", "q", "--model", "gpt"], "--model"),
    (["ask", "q", "--allow", "http://example.org"], "http://example.org"),
    (["ask", "q", "--allow", "*"], "'*'"),
    (["ask", "q", "--corpus", "/no/such/folder"], "/no/such/folder"),
    (["ask", "q", "--corpus", ".", "--provider", "a:b"], "exclude each other"),
    (["ask", " "], "the QUESTION is empty"),
    (["ask", "q", "--resume", "run-1"], "not both"),
    (["ask", "q", "--provider", "no_such_module:make"], "no_such_module"),
    (["ask", "q", "--provider", "json"], "json"),
    (["ask", "q", "--provider", "json:dumps"], "json:dumps"),
    (["ask", "q", "--nope"], "--nope"),
    (["ask", "--resume", "run-1"], "run-1"),
    (["ask", "--resume", "../../etc"], "../../etc"),
    (["ask", "--resume", "run-1", "--max-steps", "9"], "--max-steps belongs to the run"),
    (["ask", "--resume", "run-1", "--allow", "a.example"], "--allow belongs to the run"),
    (["demo"], "--yes"),
    (["explain-url"], "URL"),
    (["verify"], "LOG"),
    (["verify", "x", "--head", "12"], "12"),
]


@pytest.mark.parametrize(("arguments", "word"), USAGE, ids=[" ".join(a) for a, _ in USAGE])
def test_wrong_usage_is_exit_code_2_and_names_the_fault(
    arguments: list[str], word: str, here: Here, tmp_path: Path
) -> None:
    """A wrong call does nothing, says what was wrong on standard error and exits with 2."""
    stateful = arguments[0] in {"ask", "demo"}
    done = here(*arguments, *(["--state-dir", str(tmp_path / "state")] if stateful else []))

    assert (2, "") == (done.code, done.out)
    assert word in done.err
    assert not list(tmp_path.glob("state/runs/*"))


def test_wrong_usage_of_the_real_command(tmp_path: Path) -> None:
    """The process says the same."""
    done = cli("ask", "q", "--max-steps", "many", state=tmp_path)

    assert (2, "") == (done.code, done.out)
    assert "--max-steps" in done.err


NASTY = "\x1b[31m\x9b2J\u202e\udcff"


@pytest.mark.parametrize(
    "arguments",
    [
        [f"no{NASTY}such"],
        ["ask", "q", f"--{NASTY}"],
        ["ask", "q", "--allow", NASTY],
        ["ask", "q", "--corpus", NASTY],
        ["ask", "q", "--max-steps", NASTY],
        ["ask", "--resume", NASTY],
        ["ask", "q", "--provider", f"json:{NASTY}"],
        ["explain-url", f"http://a.example/{NASTY}", "--allow", "a.example"],
        ["explain-url", "http://a.example/", "--allow", NASTY],
        ["explain-url", "http://a.example/", "--allow", "a.example", "--answer", NASTY],
        ["explain-url", "http://a.example/", "--allowed-host", NASTY],
        ["explain-url", f"http://a.example/{NASTY}", "--json"],
        ["verify", f"/no/{NASTY}"],
        ["verify", f"/no/{NASTY}", "--json"],
        ["verify", "x", "--head", NASTY],
        ["verify", "x", "--state-dir", f"/no/{NASTY}"],
    ],
    ids=lambda value: " ".join(value)[:24].encode("ascii", "replace").decode(),
)
def test_arguments_cannot_drive_the_terminal(
    arguments: list[str], here: Here, tmp_path: Path
) -> None:
    """Control characters of arguments, and what is no text, come out harmless; `here` looks."""
    state = ["--state-dir", str(tmp_path / "state")] if arguments[0] == "ask" else []

    assert here(*arguments, *state).code in {1, 2}


# ── explain-url ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["https://a.example/x", "--allow", "a.example", "--answer", "93.184.216.34"], 0, "ALLOW"),
        (["https://a.example/x", "--allow", "a.example"], 0, "NEEDS_ANSWERS"),
        (["https://a.example/x", "--allow", "a.example", "--answer", "10.0.0.1"], 1, "DENY"),
        (["https://www.a.example/", "--allow", "a.example"], 1, "add the entry www.a.example"),
        (["http://169.254.169.254/", "--allow", "169.254.0.0/16"], 1, "DENY"),
        (["http://u:p@a.example/", "--allow", "a.example"], 1, "INVALID"),
        (["http://a.example/", "--allow", "a.example", "--https-only"], 1, "DENY"),
        (["http://a.example/", "--allow", "a.example", "--allow", "*.com"], 1, "'*.com'"),
        (["http://a.example/"], 1, "add the entry a.example"),
    ],
)
def test_explain_url_says_which_rule_decides(
    arguments: list[str], code: int, words: str, here: Here
) -> None:
    """The verdict, a line a rule, and the entry that would help; the exit code says the same."""
    done = here("explain-url", *arguments)

    assert (code, "") == (done.code, done.err)
    assert words in done.out
    assert re.search(r"^  R4 +\w+ ", done.out, re.MULTILINE)


def test_explain_url_as_json() -> None:
    """One object with the verdict, the steps and the entry to add."""
    done = cli("explain-url", "https://www.a.example/", "--allow", "a.example", "--json")

    assert done.code == 1
    keys = {"verdict", "origin", "rule", "reason", "entry", "entry_to_add"}
    keys |= {"addresses", "layers", "steps"}
    assert keys == set(done.json)
    assert ("deny", "www.a.example") == (done.json["verdict"], done.json["entry_to_add"])
    assert {"rule", "title", "outcome", "detail"} == set(done.json["steps"][0])


# ── ask ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.loopback
def test_ask_answers_from_the_embedded_corpus(tmp_path: Path) -> None:
    """An answer with numbered references that were read, steps, budgets, log and head; exit 0."""
    done = cli("ask", "What does the with statement do?", state=tmp_path)

    assert done.code == 0
    told = done.err.splitlines()
    assert ["t1 the model is asked", "t1c1 web:search with statement"] == told[:2]
    assert re.fullmatch(r"t2c1 web:read http://127\.0\.0\.1:\d+/topics/\S+", told[4])
    assert all(re.match(r"t\d(c\d)? (the model is asked|ok, \d+ ms|web:)", line) for line in told)
    assert '"with" statement' in done.out
    assert re.search(r"^\[1\] http://127\.0\.0\.1:\d+/topics/\S+$", done.out, re.MULTILINE)
    assert "NOT READ" not in done.out
    assert re.search(r"^    read \d{4}-.*, revision sha256:", done.out, re.MULTILINE)
    assert re.search(r"^steps +20 +4 +16$", done.out, re.MULTILINE)
    assert re.search(r"^head \d+:[0-9a-f]{64}$", done.out, re.MULTILINE)
    prose = [line for line in done.out.splitlines() if not line.startswith(("log ", "head "))]
    assert max(map(len, prose)) <= 80


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A state folder with one finished run, and what the command said of it as JSON."""
    state = tmp_path_factory.mktemp("asked") / "state"
    done = cli("ask", "How are exceptions chained?", "--json", state=state)
    assert (0, "") == (done.code, done.err)
    return state, done.json


@pytest.mark.loopback
def test_ask_as_json_is_one_object(asked: tuple[Path, dict[str, Any]]) -> None:
    """The object holds the result, its references with citations, and the log's path and head."""
    _, told = asked

    assert RUN_KEYS | {"audit"} == set(told)
    assert ("completed", None, []) == (told["kind"], told["stop"], told["requests"])
    assert {"path", "head"} == set(told["audit"])
    for reference in told["references"]:
        assert reference["url"] == reference["citation"]["path"]
    assert {"tool", "step", "code", "admitted"} <= set(told["steps"][0])


@pytest.mark.loopback
def test_what_is_kept_is_for_its_owner_only(asked: tuple[Path, dict[str, Any]]) -> None:
    """Key, log and heads have mode 0600, folders 0700."""
    state, told = asked
    log = Path(told["audit"]["path"])

    modes = {path.name: path.stat().st_mode & 0o777 for path in (state / "key", log)}
    assert {0o600} == set(modes.values())
    assert 0o600 == log.with_name(f"{log.name}.head").stat().st_mode & 0o777
    assert 0o700 == (state / "runs").stat().st_mode & 0o777 == state.stat().st_mode & 0o777


def make_corpus(folder: Path) -> Path:
    """A folder with one page of each kind, and files that are left out."""
    (folder / "sub").mkdir(parents=True)
    (folder / "bears.html").write_text(
        "<html><head><title>Bears</title></head><body><p>Brown bears sleep in winter, "
        "most of them in a den. The den is warm.</p></body></html>"
    )
    (folder / "honey.md").write_text(
        "# Honey\n\nHoney is what brown bears like to eat most of all.\n"
    )
    (folder / "sub" / "cubs.txt").write_text(
        "Brown bears have two cubs in January or in February.\n"
    )
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00")
    (folder / "empty.md").write_text("")
    (folder / "evil\x1b[2J.html").write_bytes(b"%PDF-1.7\n\x00\x01\x02")
    return folder


@pytest.mark.loopback
def test_ask_over_a_folder(tmp_path: Path) -> None:
    """html, md and txt are answered from; what cannot be read is listed on standard error."""
    corpus = make_corpus(tmp_path / "corpus")
    done = cli("ask", "brown bears", "--corpus", str(corpus), "--json", state=tmp_path / "state")

    assert done.code == 0
    pages = {reference["url"].split("/", 3)[3] for reference in done.json["references"]}
    assert {"bears.html", "honey.md", "sub/cubs.txt"} == pages
    left_out = sorted(line.split(": ")[1] for line in done.err.splitlines())
    assert ["empty.md", "evil\ufffd[2J.html", "picture.txt"] == left_out


@pytest.mark.loopback
def test_pages_cannot_drive_the_terminal(here: Here, tmp_path: Path) -> None:
    """What a page says is shown and not obeyed, as text and as JSON; `cli` checks every output."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text(
        "Bears \x1b[31m sleep \u202e in \x9b2J winter and also in spring."
    )
    for extra in ([], ["--json"]):
        done = here("ask", "bears", "--corpus", str(corpus), *extra, state=tmp_path / "state")
        assert done.code == 0
        assert "spring" in done.out


def test_a_folder_without_pages_is_refused(here: Here, tmp_path: Path) -> None:
    """Nothing to read is told before there is a run."""
    (tmp_path / "corpus").mkdir()
    done = here("ask", "x", "--corpus", str(tmp_path / "corpus"), state=tmp_path / "state")

    assert done.code == 1
    assert "holds no html, md or txt" in done.err
    assert not list((tmp_path / "state").glob("runs/*"))


@pytest.mark.loopback
@pytest.mark.parametrize(
    "question",
    [
        "zzzqqq",
        os.fsdecode(b"caf\xe9 \xff"),
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
)
def test_any_question_gets_an_answer(here: Here, question: str, tmp_path: Path) -> None:
    """A question that finds nothing, or is no valid text, ends in a reply and not in a crash."""
    done = here("ask", question, "--json", state=tmp_path)

    assert done.code == 0
    assert done.json["text"]


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("options", "budget"),
    [
        (["--max-steps", "1"], "steps"),
        (["--max-turns", "1"], "turns"),
        (["--max-turns", "0"], "turns"),
        (["--max-seconds", "0"], "duration_seconds"),
    ],
)
def test_a_budget_that_runs_out_is_exit_code_4(
    here: Here, options: list[str], budget: str, tmp_path: Path
) -> None:
    """The run is suspended, which budget it was is told, and the log verifies."""
    done = here("ask", "What is a lambda?", *options, "--json", state=tmp_path)

    assert done.code == 4
    assert ("suspended", "budget_exhausted") == (done.json["kind"], done.json["stop"]["code"])
    assert budget in json.dumps(done.json["stop"])


@pytest.mark.loopback
def test_a_spent_run_is_not_offered_again(here: Here, tmp_path: Path) -> None:
    """A used-up budget stays used up: nothing says that the run could go on, and the wrap-up shows."""
    done = here("ask", "What is a lambda?", "--max-turns", "2", state=tmp_path)

    assert done.code == 4
    assert "take it up" not in done.out
    assert re.search(r"wrap-up turn\W+1\W+1\W+0", done.out)


@pytest.mark.loopback
def test_a_denied_host_is_told_with_the_entry_to_add(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person sees which host was refused, by which rule, and what would admit it."""
    (tmp_path / "one_hit.py").write_text(
        "from web_tools.search import SearchHit, create_fixture_web_search_provider\n"
        "def make():\n"
        "    hit = SearchHit(title='t', url='https://docs.example.org/x', snippet='s')\n"
        "    return create_fixture_web_search_provider([hit])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "one_hit", raising=False)
    done = here("ask", "x", "--provider", "one_hit:make", state=tmp_path / "state")

    assert "sandbox:violation: docs.example.org refused by R4" in done.err
    assert "--allow docs.example.org" in done.err


@pytest.mark.loopback
def test_denied_reads_are_told(here: Here, tmp_path: Path) -> None:
    """With --approve deny no page is read, and the answer says so."""
    done = here("ask", "What is a lambda?", "--approve", "deny", "--json", state=tmp_path)

    assert done.code == 0
    assert "POLICY_DENIED" in done.json["text"]
    assert [] == done.json["references"]


@pytest.mark.loopback
@pytest.mark.parametrize(("verdict", "word"), [("auto", "“"), ("deny", "DENIED_BY_PERSON")])
def test_a_pending_read_without_a_terminal_is_exit_code_3(
    verdict: str, word: str, here: Here, tmp_path: Path
) -> None:
    """The run waits; a resume without an answer waits on; --approve answers and completes it."""
    pending = here("ask", "What is a lambda?", "--approve", "ask", "--json", state=tmp_path)
    run = pending.json["run"]
    waiting = here("ask", "--resume", run, state=tmp_path)
    done = here("ask", "--resume", run, "--approve", verdict, "--json", state=tmp_path)
    again = here("ask", "--resume", run, "--approve", verdict, "--json", state=tmp_path)

    assert (3, "approval_required") == (pending.code, pending.json["kind"])
    assert {"web:read"} == {request["tool"] for request in pending.json["requests"]}
    assert waiting.code == 3
    assert "waiting for a person: web:read http://127.0.0.1:" in waiting.out
    assert f"--resume {run} --approve ask --state-dir" in waiting.out
    # Whoever decides need not be who asked.
    assert f"look at it with: runtime-pack runs show {run} --state-dir" in waiting.out
    assert re.search(rf"runtime-pack runs approve {run} (--all )?--state-dir", waiting.out)
    assert f"then runtime-pack runs resume {run} --state-dir" in waiting.out
    assert (0, "completed") == (done.code, done.json["kind"])
    assert word in done.json["text"]
    assert (again.code, again.json["text"]) == (0, done.json["text"])
    verified = [here("verify", str(log), state=tmp_path) for log in tmp_path.glob("logs/*.jsonl")]
    assert [0] * 4 == [each.code for each in verified]


@pytest.mark.parametrize(
    ("module", "word"),
    [
        ("def make():\n    raise RuntimeError('no key')", "no key"),
        ("def make():\n    return object()", "has no search"),
        ("", "AttributeError"),
    ],
)
def test_a_provider_that_cannot_be_made_is_wrong_usage(
    module: str, word: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the factory does wrong is told, with exit code 2 and without a run."""
    (tmp_path / "broken_provider.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_provider", raising=False)
    done = here("ask", "x", "--provider", "broken_provider:make", state=tmp_path / "state")

    assert done.code == 2
    assert word in done.err
    assert not list(tmp_path.glob("state/logs/*"))


# ── the state folder ──────────────────────────────────────────────────────────────────────────


def test_a_state_folder_that_cannot_be_used_is_told(here: Here, tmp_path: Path) -> None:
    """A folder below a file, and a key that is damaged, are told in a line; nothing is run."""
    (tmp_path / "file").write_text("x")
    below = here("ask", "x", state=tmp_path / "file" / "state")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "key").write_bytes(b"short")
    bad_key = here("ask", "x", state=damaged)
    (tmp_path / "logless").mkdir()
    (tmp_path / "logless" / "logs").write_text("x")
    no_log = here("ask", "x", state=tmp_path / "logless")

    assert (1, 1, 1) == (below.code, bad_key.code, no_log.code)
    assert "--state-dir" in below.err
    assert "key" in bad_key.err
    assert "logs" in no_log.err


@pytest.mark.loopback
def test_a_damaged_run_is_not_taken_up(here: Here, tmp_path: Path) -> None:
    """One changed byte of a saved run, or of its note, refuses the resume."""
    pending = here("ask", "What is a lambda?", "--approve", "ask", "--json", state=tmp_path)
    run = pending.json["run"]
    rows = tmp_path / "runs" / run / "rows.jsonl"
    whole = rows.read_bytes()
    rows.write_bytes(whole.replace(b"lambda", b"lambad", 1))
    edited = here("ask", "--resume", run, "--approve", "auto", "--json", state=tmp_path)
    rows.write_bytes(whole)
    note = tmp_path / "asked" / f"{run}.json"
    sealed = note.read_text()
    noteless = []
    for text in ('{"question": 1}', "[]", "5", "null", sealed.replace("ask", "auto"), sealed[:-1]):
        note.write_text(text)
        noteless.append(here("ask", "--resume", run, state=tmp_path))

    assert (1, "STATE_INTEGRITY") == (edited.code, edited.json["stop"]["code"])
    assert {1} == {done.code for done in noteless}
    assert all("damaged" in done.err for done in noteless)
    assert "Traceback" not in "".join(done.err for done in noteless)


# ── verify ────────────────────────────────────────────────────────────────────────────────────


def edited(lines: list[bytes]) -> list[bytes]:
    """One word of line 3 is changed."""
    return [*lines[:2], lines[2].replace(b"info", b"none", 1), *lines[3:]]


def deleted(lines: list[bytes]) -> list[bytes]:
    """Line 3 is gone."""
    return [*lines[:2], *lines[3:]]


def reordered(lines: list[bytes]) -> list[bytes]:
    """Lines 3 and 4 have changed places."""
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


@pytest.mark.loopback
@pytest.mark.parametrize("change", [edited, deleted, reordered])
def test_verify_finds_what_was_done_to_a_log(
    here: Here, change: Any, asked: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """An edited, a missing and a moved line give exit 1 and the number of a line."""
    log = Path(asked[1]["audit"]["path"])
    copy = tmp_path / "log.jsonl"
    copy.write_bytes(b"".join(change(log.read_bytes().splitlines(keepends=True))))
    done = here("verify", str(copy))

    assert done.code == 1
    assert "TAMPERED" in done.out
    assert re.search(r"line [34]: ", done.out)


@pytest.mark.loopback
def test_verify_finds_a_cut_against_a_head(
    here: Here, asked: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Lines cut off at the end are found with a head of the folder or a printed one, not without."""
    state, told = asked
    log = Path(told["audit"]["path"])
    whole = log.read_bytes()
    cut = b"".join(whole.splitlines(keepends=True)[:-3])
    copy = tmp_path / "log.jsonl"
    copy.write_bytes(cut)
    by_itself = here("verify", str(copy))
    by_head = here("verify", str(copy), "--head", told["audit"]["head"])
    log.write_bytes(cut)
    try:
        by_folder = here("verify", str(log), "--json", state=state)
    finally:
        log.write_bytes(whole)

    assert (2, 1, 1) == (by_itself.code, by_head.code, by_folder.code)
    assert "no saved head" in by_itself.out
    assert re.search(r"was cut: a saved head is line \d+, the log has \d+", by_head.out)
    assert ("tampered", 0) == (by_folder.json["status"], by_folder.json["unreadable"])


@pytest.mark.loopback
def test_verify_says_what_it_was_held_against(
    here: Here, asked: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A whole log is verified with its kept heads; a copy elsewhere without one, and it says so."""
    state, told = asked
    log = Path(told["audit"]["path"])
    copy = tmp_path / "log.jsonl"
    copy.write_bytes(log.read_bytes())
    kept, alone = here("verify", str(log), "--json", state=state), here("verify", str(copy))

    assert (0, "verified", 2) == (kept.code, kept.json["status"], kept.json["heads_found"])
    keys = {"log", "status", "events", "head", "faults", "heads_found", "unreadable"}
    keys |= {"checkpoints", "signed", "segments", "removed", "root"}
    assert keys == set(kept.json)
    assert kept.json["events"] == kept.json["signed"]
    assert told["audit"]["head"] == kept.json["head"]
    assert alone.code == 0
    assert "no saved head was at hand" in alone.out


@pytest.mark.loopback
def test_verify_tells_of_heads_that_it_could_not_use(
    here: Here, asked: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Damaging what holds the heads does not make a cut log look whole in silence."""
    state, told = asked
    log = Path(told["audit"]["path"])
    kept = log.with_name(f"{log.name}.head")
    text = kept.read_text()
    kept.write_text("1:" + text.partition(":")[2])
    try:
        done = here("verify", str(log), state=state)
    finally:
        kept.write_text(text)

    assert "1 saved head(s) could not be read" in done.out


def test_the_name_of_a_log_cannot_drive_the_terminal(here: Here, tmp_path: Path) -> None:
    """A file that is called like a terminal sequence is named harmlessly; `here` looks."""
    log = tmp_path / f"log{NASTY}.jsonl"
    log.write_bytes(b"not a line of a log\n")

    assert here("verify", str(log)).code == 1
    assert here("verify", str(log), "--json").code == 1


@pytest.mark.loopback
def test_verify_goes_on_where_no_state_folder_is(
    here: Here, asked: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A new folder keeps no heads; one whose key is gone is a fault."""
    log = asked[1]["audit"]["path"]
    new = here("verify", log, "--json", state=tmp_path / "new")
    (tmp_path / "keyless" / "runs").mkdir(parents=True)
    keyless = here("verify", log, state=tmp_path / "keyless")

    assert (0, "chained", 0) == (new.code, new.json["status"], new.json["heads_found"])
    assert 2 == keyless.code
    assert not (tmp_path / "new").exists()


def test_verify_of_what_is_no_log_is_exit_code_2(here: Here, tmp_path: Path) -> None:
    """A missing file and a folder cannot be verified; a file of something else is not a log."""
    (tmp_path / "picture").write_bytes(b"\x89PNG\n\x00\n")

    assert [2, 2, 1] == [
        here("verify", str(tmp_path / name)).code for name in ("missing", ".", "picture")
    ]


# ── demo ──────────────────────────────────────────────────────────────────────────────────────


def claims(part: Mapping[str, Any]) -> dict[str, bool]:
    """Claim to whether it held."""
    return {check["claim"]: check["held"] for check in part["checks"]}


@pytest.mark.loopback
def test_the_demo_as_json_has_this_form(tmp_path: Path) -> None:
    """Three runs, their claims and violations, and the verified log, in one object."""
    done = cli("demo", "--yes", "--json", state=tmp_path)
    told = done.json

    assert (0, "", True) == (done.code, done.err, told["ok"])
    assert {"ok", "answer", "attack", "approval", "audit"} == set(told)
    assert RUN_KEYS | {"checks"} == set(told["answer"]) == set(told["approval"])
    assert RUN_KEYS | {"checks", "violations"} == set(told["attack"])
    verified = {"path", "status", "events", "head", "faults", "heads_found", "checks"}
    signed = {"signed", "root", "checkpoints", "segments", "removed"}
    assert verified | signed == set(told["audit"])
    for part in ("answer", "attack", "approval", "audit"):
        assert claims(told[part])
        assert all(claims(told[part]).values())
    hosts = [event["object"]["host"] for event in told["attack"]["violations"]]
    assert ["169.254.169.254", "collector.attacker.example"] == hosts
    assert ("verified", 4) == (told["audit"]["status"], told["audit"]["heads_found"])
    assert 2 <= len(told["answer"]["references"])


@pytest.mark.loopback
def test_the_demo_shows_what_it_claims(tmp_path: Path) -> None:
    """Answer, references, steps, budgets, violations, the approval, and `verified` at the end."""
    done = cli("demo", "--yes", state=tmp_path)

    assert done.code == 0
    assert 2 == done.err.count("web:read refused: WEB_EGRESS_DENIED")
    assert 1 == len(
        re.findall("^t2c1 web:read waits for a person: http://", done.err, re.MULTILINE)
    )
    for words in (
        "no language model wrote them",
        "[1] http://127.0.0.1:",
        "WEB_EGRESS_DENIED",
        "sandbox:violation: 169.254.169.254 refused by R",
        "suspended and saved: web:read waits for a person",
        "approved by --yes",
        "held   log: verified",
    ):
        assert words in done.out
    assert "FAILED" not in done.out
    assert "verified" == done.out.splitlines()[-1]
    prose = [line for line in done.out.splitlines() if not line.startswith(("log ", "head "))]
    assert max(map(len, prose)) <= 80


@pytest.mark.loopback
def test_a_claim_that_does_not_hold_is_exit_code_1(here: Here, tmp_path: Path) -> None:
    """A question that the corpus cannot answer fails the demonstration, and says which claim."""
    done = here("demo", "--yes", "--json", "--question", "zzzqqq", state=tmp_path)

    assert (1, False) == (done.code, done.json["ok"])
    assert not claims(done.json["answer"])["every reference was read in this run"]
    assert all(claims(done.json["attack"]).values())


# ── text ──────────────────────────────────────────────────────────────────────────────────────


def test_plain_keeps_lines_and_letters() -> None:
    """Only what a terminal could obey is replaced."""
    assert "Größe\t1\n日本語" == plain("Größe\t1\n日本語")
    assert "a\ufffdb\ufffd\ufffd" == plain("a\x1bb\x9b\ud800")
