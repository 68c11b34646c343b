"""`ask --policy FILE`, and what `ask` says before a run starts: real processes on loopback."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

import runtime_pack
from runtime_pack.cli._ask_model import model_of, prices_of
from runtime_pack.models import ExtractiveModel
from runtime_pack.policy_file import parse_policy

ROOT = Path(runtime_pack.__file__).parent.parent
QUESTION = "What does the with statement do?"
HEAD = 'id = "web"\nversion = 1\n'
PRICES = '[prices]\nmodels."gpt-x" = { input = "1.25", output = "10" }\ntools."web:read" = "0.02"\n'


@attrs.frozen
class Done:
    """What the command left."""

    returncode: int
    stdout: str
    stderr: str


_forges: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def _forge(forge: Any) -> Iterator[None]:
    """What `ask` starts commands with."""
    _forges.append(forge)
    yield
    _forges.clear()


def ask(state: Path, *arguments: str, **variables: str) -> Done:
    """The command as a process, without a terminal."""
    (forge,) = _forges
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    plain = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    ended = forge.run(
        ["ask", *arguments, "--state-dir", str(state)], {**kept, **plain, **variables}
    )
    assert "Traceback" not in ended.out + ended.err
    return Done(ended.code, ended.out, ended.err)


def policy(folder: Path, text: str) -> Path:
    """A policy file."""
    path = folder / "policy.toml"
    path.write_text(HEAD + text)
    return path


# ── prices and credentials ────────────────────────────────────────────────────────────────────


@pytest.mark.loopback
def test_a_run_under_a_policy_costs_what_its_prices_say(tmp_path: Path) -> None:
    """`max_cost` with `[prices]` works: a read costs, the built-in model does not, both are shown."""
    file = policy(tmp_path, f'[budgets]\nmax_cost = "0.05"\n{PRICES}')
    done = ask(tmp_path / "state", QUESTION, "--policy", str(file))

    assert done.returncode == 4, done.stderr
    assert re.search(r"^cost +0\.050000 +0\.040000 +0\.010000$", done.stdout, re.MULTILINE)
    assert re.search(r"^\S+ +web:read +ok +1 .* 0\.020000$", done.stdout, re.MULTILINE)
    assert "suspended budget_exhausted: " in done.stdout
    assert "pages read:" not in done.stdout


def test_the_built_in_model_costs_nothing_unless_the_file_says_so() -> None:
    """Its row is added to a table that has none; a row of the file's own stays."""
    priced = parse_policy(HEAD + PRICES)
    dear = parse_policy(f'{HEAD}[prices]\nmodels.extractive = {{ input = "1", output = "2" }}\n')

    assert prices_of(None) is None
    assert prices_of(parse_policy(HEAD)) is None
    free, paid = prices_of(priced), prices_of(dear)
    assert free is not None
    assert paid is not None
    assert free.model("extractive").output == 0
    assert paid.model("extractive").output == 2
    assert free.tools == {"web:read": Decimal("0.02")}


def test_a_model_without_a_price_is_told_before_the_run(tmp_path: Path) -> None:
    """Its name, and the names that have a row."""
    file = policy(tmp_path, PRICES)
    done = ask(
        tmp_path / "state",
        QUESTION,
        "--policy",
        str(file),
        "--model",
        "openai:gpt-y",
        OPENAI_API_KEY="x",
    )

    assert done.returncode == 2
    assert "'gpt-y' has no row in [prices.models]" in done.stderr
    assert "gpt-x" in done.stderr
    assert not (tmp_path / "state").exists()


def test_the_key_of_a_model_comes_from_where_the_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named variable or file goes before the provider's own variable; a missing one is told."""
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("MY_KEY", raising=False)
    named = parse_policy(f'{HEAD}[credentials]\n"openai.apiKey" = {{ env = "MY_KEY" }}\n')

    with pytest.raises(click.BadParameter) as missing:
        model_of("openai:gpt-x", (), named)
    assert "variable MY_KEY" in missing.value.message
    monkeypatch.setenv("MY_KEY", "sk-of-mine")
    assert "gpt-x" in repr(model_of("openai:gpt-x", (), named))
    with pytest.raises(click.BadParameter):
        model_of("anthropic:some", (), named)
    with pytest.raises(click.BadParameter):
        model_of("openai:gpt-x", (), parse_policy(HEAD))
    assert isinstance(model_of("extractive", (), named), ExtractiveModel)


# ── lists ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.loopback
def test_only_the_corpus_of_ask_is_added_to_an_empty_list(tmp_path: Path) -> None:
    """`allow = []` lets its own corpus be read; a provider's hits need an entry of the file."""
    (tmp_path / "hit_of_policy.py").write_text(
        "from web_tools.search import SearchHit, create_fixture_web_search_provider\n"
        "def make():\n"
        "    hit = SearchHit(title='t', url='https://docs.example.org:8443/x', snippet='s')\n"
        "    return create_fixture_web_search_provider([hit])\n"
    )
    file = policy(tmp_path, "allow = []\n")
    own = ask(tmp_path / "state", QUESTION, "--policy", str(file))
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    theirs = ask(
        tmp_path / "state",
        "x",
        "--policy",
        str(file),
        "--provider",
        "hit_of_policy:make",
        PYTHONPATH=path,
    )

    assert own.returncode == 0
    assert "refused" not in own.stderr
    assert "without entries in allow every page read is denied" in theirs.stderr
    assert f'to allow it: add "docs.example.org:8443" to allow in {file}' in theirs.stderr
    assert "--allow" not in theirs.stderr


@pytest.mark.loopback
def test_a_denial_under_a_policy_names_the_list_that_lacks_the_entry(tmp_path: Path) -> None:
    """The corpus is added to `allow` alone; its port is another one in each run, so any is named."""
    file = policy(tmp_path, 'workspace_allow = ["docs.example.org"]\n')
    done = ask(tmp_path / "state", QUESTION, "--policy", str(file))

    assert f'to allow it: add "127.0.0.1:*" to workspace_allow in {file}' in done.stderr
    assert "--allow" not in done.stderr
    followed = policy(tmp_path, 'workspace_allow = ["docs.example.org", "127.0.0.1:*"]\n')
    again = ask(tmp_path / "state", QUESTION, "--policy", str(followed))
    assert again.returncode == 0
    assert "refused" not in again.stderr


# ── the model's server ────────────────────────────────────────────────────────────────────────


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Names lead to these addresses."""
    rows = [(0, 0, 0, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)


def test_a_name_that_leads_inside_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both ways to write it; an entry that lacks the port is named, a full one is enough."""
    pytest.importorskip("openai")
    answering(monkeypatch, "127.0.0.1")
    word = "openai-compatible:m@http://localhost:8123/v1"

    with pytest.raises(click.BadParameter) as refused:
        model_of(word, (), None)
    assert refused.value.message == (
        "localhost leads to 127.0.0.1, a private address: write http://127.0.0.1:8123/v1, "
        "or add --model-allow 127.0.0.1:8123 (with the port)"
    )
    with pytest.raises(click.BadParameter) as portless:
        model_of(word, ("127.0.0.1",), None)
    assert "--model-allow 127.0.0.1 lacks the port: write it as 127.0.0.1:8123" in (
        portless.value.message
    )
    assert "m" in repr(model_of(word, ("127.0.0.1:8123",), None))
    assert "m" in repr(model_of("openai-compatible:m@http://127.0.0.1:8123/v1", (), None))


def test_every_address_of_a_name_has_to_be_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are lacking are named, IPv6 in brackets."""
    pytest.importorskip("openai")
    answering(monkeypatch, "::1", "127.0.0.1")
    word = "openai-compatible:m@http://localhost:8123/v1"

    with pytest.raises(click.BadParameter) as refused:
        model_of(word, ("127.0.0.1:8123",), None)
    assert "add --model-allow [::1]:8123 (with the port)" in refused.value.message
    assert "m" in repr(model_of(word, ("127.0.0.1:8123", "[::1]:8123"), None))


def test_model_allow_is_for_models_over_a_network() -> None:
    """An entry that could do nothing is refused, and so is a malformed one."""
    for entries in (("127.0.0.1:80",), ("http://x",)):
        with pytest.raises(click.BadParameter) as refused:
            model_of("extractive", entries, None)
        assert refused.value.param_hint == "--model-allow"


# ── usage ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["myprov", "myprov:", ":make"])
def test_a_provider_without_a_factory_is_told_the_form(tmp_path: Path, name: str) -> None:
    """The form with an example, and no note before it."""
    done = ask(tmp_path, "x", "--provider", name)

    assert done.returncode == 2
    assert "write MODULE:FACTORY, for example myprov:make" in done.stderr
    assert "note:" not in done.stderr


@pytest.mark.loopback
def test_a_taken_port_is_told_with_what_to_do(tmp_path: Path) -> None:
    """The port of the run, who has it, and that freeing it is enough."""
    waiting = ask(tmp_path, QUESTION, "--approve", "ask", "--json")
    run = re.search(r'"run":"([^"]+)"', waiting.stdout)
    port = re.search(r"127\.0\.0\.1:(\d+)/", waiting.stdout)
    assert run is not None
    assert port is not None
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(port[1])))
        other.listen()
        taken = ask(tmp_path, "--resume", run[1])
    freed = ask(tmp_path, "--resume", run[1], "--approve", "auto")

    assert taken.returncode == 1
    assert f"port {port[1]}, on which this run's pages were served, is taken" in taken.stderr
    assert "free it and resume again" in taken.stderr
    assert freed.returncode == 0


@pytest.mark.loopback
def test_a_used_up_budget_comes_with_the_command_that_gives_more(tmp_path: Path) -> None:
    """The code is told, and the grant with the budget's name; carried out, the run completes."""
    done = ask(tmp_path, QUESTION, "--max-turns", "2")
    advice = re.search(r"give it more: (.*) --reason \"…\", then (.*)$", done.stdout, re.MULTILINE)

    assert done.returncode == 4
    assert "suspended budget_exhausted: The budget turns is used up" in done.stdout
    assert advice is not None
    grant, resume = (each.split()[1:] for each in advice.groups())
    assert grant[:2] == ["runs", "grant"]
    assert grant[3:5] == ["turns", "10"]
    for words in ([*grant, "--reason", "more"], resume):
        ended = subprocess.run(
            [sys.executable, "-m", "runtime_pack.cli", *words],
            capture_output=True,
            check=False,
            cwd=ROOT,
            timeout=60,
        )
        assert ended.returncode == 0


# ── answers that are checked, and how pages are shown ─────────────────────────────────────────


@pytest.mark.loopback
def test_a_policy_says_how_pages_are_shown_and_that_answers_are_checked(tmp_path: Path) -> None:
    """The file's words are carried out; the options for the same are refused beside it."""
    file = policy(tmp_path, 'output_check = "end"\nfence = "encode"\n')
    state = tmp_path / "state"
    done = ask(state, QUESTION, "--policy", str(file), "--json")
    refused = ask(state, QUESTION, "--policy", str(file), "--output-check", "none")
    kept = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())

    assert done.returncode == 0
    assert b'mode=\\"encode\\"' in kept
    assert refused.returncode == 2
    assert "--output-check is decided by the policy file" in refused.stderr


@pytest.mark.loopback
def test_an_answer_that_quotes_nothing_does_not_pass_the_check(tmp_path: Path) -> None:
    """With the option as with the file; the run ends without an answer."""
    question = "zzyzx qwrtpl vbnmxc?"
    done = ask(tmp_path, question, "--output-check", "end", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["stop"]["code"] == "OUTPUT_UNVERIFIED"
