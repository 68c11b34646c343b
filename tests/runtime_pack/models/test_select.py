"""A model by its word, with the key by the name of its variable; and `ask --model`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import runtime_pack
from egress import EgressPolicy
from runtime_pack import ContractError
from runtime_pack.models import (
    AnthropicMessagesModel,
    ExtractiveModel,
    ModelChoice,
    OpenAIChatModel,
    OpenAIResponsesModel,
    open_model,
    parse_model,
)
from runtime_pack.models._provider import ProviderModel
from runtime_pack.models.select import Provider

ROOT = Path(runtime_pack.__file__).parent.parent
KEYS = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic"}


@pytest.mark.parametrize(
    ("word", "kind", "origin"),
    [
        ("openai:gpt-x", OpenAIResponsesModel, "https://api.openai.com"),
        ("openai-responses:gpt-x", OpenAIResponsesModel, "https://api.openai.com"),
        ("openai-chat:gpt-x", OpenAIChatModel, "https://api.openai.com"),
        ("anthropic:claude-x", AnthropicMessagesModel, "https://api.anthropic.com"),
        (
            "openai-compatible:q@http://127.0.0.1:11434/v1",
            OpenAIChatModel,
            "http://127.0.0.1:11434",
        ),
    ],
)
def test_a_word_opens_its_adapter(word: str, kind: type, origin: str) -> None:
    """Each provider has its protocol, its endpoint and its own key."""
    model = open_model(word, environment=KEYS)

    assert kind.__name__ == type(model).__name__
    assert isinstance(model, ProviderModel)
    assert model._endpoint.target.origin == origin
    assert model._endpoint.key == (None if "compatible" in word else KEYS[_variable(word)])


def _variable(word: str) -> str:
    return "ANTHROPIC_API_KEY" if word.startswith("anthropic") else "OPENAI_API_KEY"


def test_extractive_needs_nothing() -> None:
    """The built-in model opens without a key."""
    assert isinstance(open_model("extractive", environment={}), ExtractiveModel)


def test_a_compatible_name_may_hold_separators() -> None:
    """`llama3:8b` and names with an at sign are names; the URL is behind the last one."""
    choice = parse_model("openai-compatible:org/llama3:8b@q4@http://127.0.0.1:8000/v1")

    assert choice == ModelChoice(
        provider=Provider.OPENAI_COMPATIBLE,
        name="org/llama3:8b@q4",
        url="http://127.0.0.1:8000/v1",
    )


@pytest.mark.parametrize(
    "word",
    [
        "",
        "gpt-x",
        "openai",
        "openai:",
        "openai: ",
        "openai:a\nb",
        "Openai:x",
        "extractive:x",
        "openai-compatible:x",
        "openai-compatible:@http://127.0.0.1/v1",
        "openai-compatible:x@",
        "openai-compatible:x@127.0.0.1:80",
        "openai-compatible:x@ftp://127.0.0.1/",
        "openai-compatible:x@http://user:pw@127.0.0.1/",
        "anthropic:\ud800",
    ],
)
def test_a_word_of_no_form_is_refused(word: str) -> None:
    """The refusal comes before anything is opened, as the one kind of error."""
    with pytest.raises(ContractError):
        parse_model(word)


@given(st.text())
@example("openai-compatible:a@b@https://x.example/v1")
def test_reading_a_word_is_total_and_goes_both_ways(text: str) -> None:
    """A choice, whose word reads as itself, or a `ContractError`."""
    for word in (text, f"openai:{text}", f"openai-compatible:{text}@http://127.0.0.1:1/v1"):
        try:
            choice = parse_model(word)
        except ContractError:
            continue
        assert parse_model(choice.word) == choice


@pytest.mark.parametrize("word", ["openai:x", "openai-chat:x", "anthropic:x"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_is_told_by_the_name_of_its_variable(word: str, value: str | None) -> None:
    """What to set is in the error."""
    environment = {} if value is None else {_variable(word): value}

    with pytest.raises(ContractError, match=_variable(word)):
        open_model(word, environment=environment)


def test_a_servers_key_is_its_own() -> None:
    """Whoever runs a compatible server is not OpenAI: only its own variable is sent there."""
    word = "openai-compatible:x@https://models.example/v1"
    without: Any = open_model(word, environment=KEYS)
    with_own: Any = open_model(word, environment={**KEYS, "OPENAI_COMPATIBLE_API_KEY": "sk-own"})

    assert without._endpoint.key is None
    assert with_own._endpoint.key == "sk-own"


def test_the_operator_may_add_addresses_inside() -> None:
    """The list is the endpoint and what was added; a bad entry refuses it."""
    word = "openai-compatible:x@http://gpu.lan:8000/v1"
    model: Any = open_model(word, environment={}, reachable=["10.0.0.5:8000"])
    policy: EgressPolicy = model._endpoint.policy

    assert _texts(policy) == {
        "gpu.lan:8000",
        "10.0.0.5:8000",
    }
    with pytest.raises(ContractError):
        open_model(word, environment={}, reachable=["not an entry"])


def _texts(policy: EgressPolicy) -> set[str]:
    return {str(entry) for entry in policy.allowlist.entries}


def test_a_missing_sdk_says_what_to_install() -> None:
    """Without the extra, the package still imports, and the error names the extra."""
    program = (
        "import sys\n"
        "sys.modules['openai'] = sys.modules['anthropic'] = None\n"
        "from runtime_pack.models import open_model\n"
        "from runtime_pack import ContractError\n"
        "for word in ('openai:x', 'openai-chat:x', 'anthropic:x'):\n"
        "    try:\n"
        "        open_model(word, environment={'OPENAI_API_KEY': 'k', 'ANTHROPIC_API_KEY': 'k'})\n"
        "    except ContractError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    said = done.stdout.splitlines()
    assert ["agent-runtime-pack[openai]" in line for line in said] == [True, True, False]
    assert "agent-runtime-pack[anthropic]" in said[2]


def test_the_built_in_models_load_no_sdk() -> None:
    """`import runtime_pack.models` brings neither an SDK nor an HTTP client."""
    program = (
        "import sys, runtime_pack.models, runtime_pack.models.select as s\n"
        "s.parse_model('openai:x'); s.open_model('extractive', environment={})\n"
        "print([m for m in ('openai', 'anthropic', 'httpx2', 'aiohttp') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.strip() == "[]"


def ask(*arguments: str, state: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`runtime-pack ask` as a process of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    return subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "runtime_pack.cli", "ask", *arguments),
            *("--state-dir", str(state)),
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1", **environment},
        timeout=90,
    )


def test_ask_without_a_key_begins_nothing(tmp_path: Path) -> None:
    """Exit code 2, the variable named, and no run saved."""
    done = ask("What is a loop?", "--model", "openai:gpt-x", state=tmp_path / "state")

    assert done.returncode == 2
    assert "OPENAI_API_KEY" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.loopback
def test_ask_answers_with_a_model_of_a_server(mock: Any, tmp_path: Path) -> None:
    """The whole command over the corpus with a model that speaks Chat Completions."""
    search = {"name": "web__search", "arguments": {"query": "with statement"}}
    mock.script(
        {"type": "reply", "tool_calls": [search]},
        {"type": "reply", "text": "It runs a block with a context manager."},
    )
    word = f"openai-compatible:test-model@{mock.url}/v1"
    done = ask("What is the with statement?", "--model", word, "--json", state=tmp_path / "state")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kind"] == "completed"
    assert told["text"] == "It runs a block with a context manager."
    assert told["references"] == []
    assert told["ledger"]["input_tokens"] > 0
    assert mock.requests() == 2


def test_ask_says_why_a_model_is_not_reached(tmp_path: Path) -> None:
    """A server's name that leads inside is told before the run, with what to write instead."""
    word = "openai-compatible:x@http://localhost:1/v1"
    done = ask("Why?", "--model", word, "--json", state=tmp_path / "state")

    assert (done.returncode, done.stdout) == (2, "")
    assert "localhost leads to" in done.stderr
    assert "--model-allow" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("end", ["?k=v", "#f", "/v1?", "/v1?key=secret#f"])
def test_a_base_url_with_a_query_or_a_fragment_is_refused(end: str) -> None:
    """What a path is added to has neither, and a key in it would stand in logs."""
    with pytest.raises(ContractError, match="no query and no fragment") as refused:
        parse_model(f"openai-compatible:m@http://127.0.0.1:8000{end}")
    assert "secret" not in str(refused.value)
