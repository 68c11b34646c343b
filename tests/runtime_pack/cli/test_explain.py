"""`explain-url`: layers, tunnels, the wording at eighty columns, and the object for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from egress import explain
from egress.explain import explain_connect
from runtime_pack.cli import main


@attrs.frozen
class Done:
    """One call of the command."""

    code: int
    out: str
    err: str


Explain = Callable[..., Done]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explain:
    """The command in this process."""

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["runtime-pack", "explain-url", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)

    return call


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (
            ["https://b.test/", "--allow", "b.test", "--allow-workspace", "a.test"],
            1,
            [
                "DENY  https://b.test",
                "  workspace: deny, R4 host_not_listed",
                "  run: needs_answers by b.test",
                "to allow it, add the entry b.test to: workspace",
            ],
        ),
        (
            ["http://10.0.0.1/", "--allow", "10.0.0.0/8", "--allow-task", "0.0.0.0/0"],
            1,
            ["  task: deny, R8 address_not_global", "to allow it, add the entry 10.0.0.1 to: task"],
        ),
        (
            ["https://b.test/", "--allow-task", "b.test"],
            1,
            ["  run: deny, R4 host_not_listed", "to allow it, add the entry b.test to: run"],
        ),
        (["--connect", "b.test:443", "--allow", "b.test"], 0, ["NEEDS_ANSWERS  CONNECT b.test:443"]),
        (
            ["--connect", "b.test:443", "--allow", "b.test", "--answer", "8.8.8.8"],
            0,
            ["ALLOW  CONNECT b.test:443", "                = if it asks for b.test"],
        ),
        (
            ["--connect", "b.test:443", "--allow", "b.test", "--answer", "8.8.8.8", "--sni", ""],
            1,
            ["DENY  CONNECT b.test:443", "                = sni_missing"],
        ),
        (
            ["--connect", "b.test:443", "--allow", "b.test", "--sni", "c.test"],
            1,
            ["DENY  CONNECT b.test:443", "                = sni_mismatch"],
        ),
        (["--connect", "[::1]:22", "--allow", "::/0"], 1, ["DENY  CONNECT [::1]:22"]),
        (["--connect", "b.test", "--allow", "b.test"], 1, ["INVALID  not a tunnel that can be read"]),
        (["--connect", "127.1:443"], 1, ["                = target: numeric_host"]),
        (["https://b.test/", "--allow", "*.com"], 1, ["INVALID  the list is refused as a whole"]),
        (["http://a.test/", "--allow", "a.test", "--answer", "169.254.169.254"], 1, ["listed by the entry a.test"]),
    ],
)  # fmt: skip
def test_what_a_person_reads(
    arguments: list[str], code: int, lines: list[str], told: Explain
) -> None:
    """The verdict of the whole, of each list alone, and where to add the entry."""
    done = told(*arguments)

    assert (code, "") == (done.code, done.err)
    printed = done.out.splitlines()
    assert [line for line in lines if line not in printed] == []
    assert max(map(len, printed)) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://169.254.169.254/", "--allow", "169.254.0.0/16"], "No entry and no switch"),
        (["http://a.test/", "--allow", "*.a.test"], "Add the bare host"),
        (["http://127.1/"], "four decimal numbers"),
        (["http://a.test/", "--allow", "10.0.0.1/8"], "network that the message names"),
        (["http://a.test/", "--allow", "a.test", "--allow", "http://c.test"], "'http://c.test' is refused [R15 scheme]"),
        (["http://a.test/", "--allow", "http://c.test"], "Write the host alone"),
        (["http://a.test/", "--allow", "a.test"], "--answer"),
        (["--connect", "127.1:443"], "four decimal numbers"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(arguments: list[str], words: str, told: Explain) -> None:
    """The advice is the row of the reason in the tables of the documentation."""
    assert words in " ".join(told(*arguments).out.split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["http://a.test/x?y", "--allow", "a.test", "--allow-task", "*.b.test", "--answer", "8.8.8.8"],
            explain("http://a.test/", {"task": ["*.b.test"], "run": ["a.test"]}, ["8.8.8.8"]),
        ),
        (["http://a.test/", "--allow", "a.test"], explain("http://a.test/", ["a.test"])),
        (
            ["--connect", "a.test:443", "--allow", "a.test", "--sni", "b.test", "--answer", "8.8.8.8"],
            explain_connect("a.test:443", ["a.test"], ["8.8.8.8"], server_name="b.test"),
        ),
    ],
)  # fmt: skip
def test_the_object_for_machines_is_the_library_s(
    arguments: list[str], expected: Any, told: Explain
) -> None:
    """One line of JSON with what `explain` and `explain_connect` return; no path, no query."""
    done = told(*arguments, "--json")

    assert 1 == len(done.out.splitlines())
    assert expected.to_json() == json.loads(done.out)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "URL"),
        (["http://a.test/", "--connect", "a.test:443"], "--connect"),
        (["http://a.test/", "--sni", "a.test"], "--sni"),
        (["http://a.test/", "--allowed-host", "a b"], "'a b'"),
        (["http://a.test/", "--policy", "file.toml"], "--policy"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], word: str, told: Explain) -> None:
    """Neither both nor none of URL and tunnel, nor a policy file that is not there."""
    done = told(*arguments)

    assert (2, "") == (done.code, done.out)
    assert word in done.err
