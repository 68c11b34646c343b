"""`ask` with a language model: its protocol spoken by a server that is a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import attrs
import pytest

from runtime_pack.audit import LogHead, verify_log
from tests.runtime_pack.cli.conftest import ROOT, Ended, Forge

pytestmark = pytest.mark.loopback

SERVER = Path(__file__).parent.parent / "models" / "wire_server.py"
QUESTION = "What does the with statement do?"


def chunk(
    delta: Mapping[str, object] | None = None, finish: str | None = None, **more: object
) -> str:
    """One event of a stream of Chat Completions."""
    choice = {"index": 0, "delta": dict(delta or {}), "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**body, 'choices': [choice], **more})}\n\n"


def streamed(*pieces: str, **more: object) -> dict[str, Any]:
    """An answer that is a stream."""
    headers = {"Content-Type": "text/event-stream"}
    return {"headers": headers, "body": "".join(pieces), **more}


def said(*texts: str, finish: str = "stop") -> dict[str, Any]:
    """A text in pieces, with what it took."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    pieces = [chunk({"content": text}) for text in texts]
    return streamed(*pieces, chunk(finish=finish, usage=usage), "data: [DONE]\n\n")


def asked(name: str, arguments: str, *before: str, finish: str = "tool_calls") -> dict[str, Any]:
    """A text and a call, whose arguments come in two pieces."""
    half = len(arguments) // 2

    def piece(**function: str) -> str:
        return chunk(
            {"tool_calls": [{"index": 0, "id": "k1", "type": "function", "function": function}]}
        )

    return streamed(
        *[chunk({"content": text}) for text in before],
        piece(name=name, arguments=arguments[:half]),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments[half:]}}]}),
        chunk(finish=finish),
        "data: [DONE]\n\n",
    )


def failed(status: int, **headers: str) -> dict[str, Any]:
    """An error of the provider."""
    headers = {"Content-Type": "application/json", **headers}
    return {"status": status, "headers": headers, "body": json.dumps({"error": {"message": "no"}})}


@attrs.frozen
class Wire:
    """The server: what it is to answer, and what it was asked."""

    url: str
    corpus: Path

    def call(self, path: str, payload: object = None) -> Any:
        data = None if payload is None else json.dumps(payload).encode()
        with urlopen(Request(self.url + path, data=data), timeout=120) as response:
            return json.loads(response.read())

    def script(self, *answers: dict[str, Any]) -> None:
        self.call("/_script", list(answers))

    def asked(self) -> int:
        return len(self.call("/_seen"))

    @property
    def words(self) -> tuple[str, ...]:
        model = f"openai-compatible:some-model@{self.url}/v1"
        return (QUESTION, "--model", model, "--corpus", str(self.corpus))


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    corpus = tmp_path_factory.mktemp("corpus")
    (corpus / "with.md").write_text("# With\n\nThe with statement closes what it opened.\n")
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Wire(f"http://127.0.0.1:{int(process.stdout.readline())}", corpus)
    finally:
        process.kill()
        process.wait(timeout=120)
        if process.stdout is not None:
            process.stdout.close()


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1", "LANG": "C.UTF-8"}


def ask(forge: Forge, state: Path, *words: str) -> Ended:
    """The command from start to end; nothing that looks like a crash may be seen."""
    loaded = ("openai", "openai.resources.chat", "runtime_pack.models._guarded_http")
    ended = forge.run(["ask", *words, "--state-dir", str(state)], environment(), loaded)
    for word in ("Traceback", "Warning", "never awaited"):
        assert word not in ended.out + ended.err
    return ended


def run_of(ended: Ended) -> str:
    """The run that can be taken up."""
    found = re.search(r"ask --resume (run-\w+)", ended.out)
    assert found is not None, ended.out
    return found[1]


def test_what_the_model_writes_is_shown_as_it_comes(
    forge: Forge, wire: Wire, tmp_path: Path
) -> None:
    """On standard error, each line marked, and no terminal obeys it; the answer is the output."""
    wire.script(
        asked("web__search", json.dumps({"query": "with statement"}), "Let me ", "look."),
        said("It closes\n", "t9 ok, 1 ms\x1b[31m"),
    )

    ended = ask(forge, tmp_path, *wire.words)

    assert ended.code == 0
    lines = ended.err.splitlines()
    assert lines[:3] == [
        "t1 the model is asked",
        "t1 > Let me look.",
        "t1c1 web:search with statement",
    ]
    assert lines[-2:] == ["t2 > It closes", "t2 > t9 ok, 1 ms\ufffd[31m"]
    assert ended.out.startswith("It closes\nt9 ok, 1 ms\ufffd[31m\n")
    assert wire.asked() == 2


def test_what_is_piped_to_a_machine_is_not_told(forge: Forge, wire: Wire, tmp_path: Path) -> None:
    """With --json there is one object, and nothing beside it."""
    message = {"role": "assistant", "content": "It closes."}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    headers = {"Content-Type": "application/json"}
    wire.script({"headers": headers, "body": json.dumps({"id": "c", "model": "m", **body})})

    ended = ask(forge, tmp_path, *wire.words, "--json")

    assert (ended.code, ended.err, json.loads(ended.out)["text"]) == (0, "", "It closes.")


def test_a_fault_that_passes_is_asked_again(forge: Forge, wire: Wire, tmp_path: Path) -> None:
    """The person sees the attempts that were lost, and the answer of the next."""
    wire.script(failed(429, **{"Retry-After": "0"}), failed(500), said("It closes."))

    ended = ask(forge, tmp_path, *wire.words)

    assert ended.code == 0
    assert ended.err.splitlines() == [
        "t1 the model is asked",
        "t1 no answer: MODEL_ERROR",
        "t1 the model is asked, attempt 2",
        "t1 no answer: MODEL_ERROR",
        "t1 the model is asked, attempt 3",
        "t1 > It closes.",
    ]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            {"headers": {"Content-Type": "text/html; charset=utf-8"}, "body": "<html>hello"},
            r"error MODEL_ERROR: malformed: .* page of HTML; is the URL the one that ends in /v1\?",
        ),
        (
            streamed(chunk({"content": "It cl"}), cut=True),
            r"error MODEL_ERROR: transport: the model server: the connection failed or broke\n",
        ),
    ],
    ids=["page", "broken"],
)
def test_an_end_without_a_whole_answer_says_why(
    forge: Forge, wire: Wire, tmp_path: Path, answer: dict[str, Any], told: str
) -> None:
    """None is asked twice."""
    wire.script(answer)

    ended = ask(forge, tmp_path, *wire.words)

    assert ended.code == 1
    assert re.search(told, ended.out), ended.out
    assert wire.asked() == 1


def test_what_was_cut_short_is_said_to_be_so(forge: Forge, wire: Wire, tmp_path: Path) -> None:
    """A call does not run, and the model is told; an answer is shown as far as it went."""
    wire.script(
        asked("web__search", '{"query": "with"}', finish="length"), said("I cou", finish="length")
    )

    ended = ask(forge, tmp_path, *wire.words)

    assert ended.code == 0
    assert "t1c1 web:search refused: TRUNCATED" in ended.err
    assert re.search(r"t1c1 +web:search +TRUNCATED", ended.out)
    assert "completed truncated_reply: The reply was cut off by its limit." in ended.out


def test_a_wait_that_is_too_long_is_left_to_the_person(
    forge: Forge, wire: Wire, tmp_path: Path
) -> None:
    """The run is saved, and the last lines say how to take it up, and when."""
    wire.script(failed(429, **{"Retry-After": "3000"}))

    ended = ask(forge, tmp_path, *wire.words)

    assert ended.code == 4
    assert re.search(
        r"not before \d{4}-\d\d-\d\dT[0-9:]{8}Z take it up with: runtime-pack ask", ended.out
    )
    again = ask(forge, tmp_path, "--resume", run_of(ended))
    assert (again.code, wire.asked()) == (4, 1)


def test_ctrl_c_in_the_midst_of_an_answer_leaves_a_run_that_goes_on(
    forge: Forge, wire: Wire, tmp_path: Path
) -> None:
    """Exit code 130, a log that is whole, and a run that is taken up and asks the model anew."""
    wire.script(streamed(chunk({"content": "Half an answer"}), hold=True))
    words = ("ask", *wire.words, "--state-dir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "runtime_pack.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr is not None
    shown = b""
    while b"Half an answer" not in shown:
        piece = os.read(process.stderr.fileno(), 4096)
        assert piece, shown
        shown += piece
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)

    ended = Ended(process.returncode, out.decode(), (shown + err).decode())
    assert ended.code == 130
    assert ended.err.splitlines()[1:] == ["t1 > Half an answer", "t1 no answer: paused"]
    assert "suspended paused: interrupted by SIGINT" in ended.out
    log, head = (re.search(rf"^{word} (.+)$", ended.out, re.MULTILINE) for word in ("log", "head"))
    assert log is not None
    assert head is not None
    assert verify_log(Path(log[1]), [LogHead.parse(head[1])]).status == "verified"

    wire.script(said("It closes."))
    again = ask(forge, tmp_path, "--resume", run_of(ended))
    assert again.code == 0
    assert again.out.startswith("It closes.\n")
