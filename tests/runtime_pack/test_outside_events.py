"""Pages, rows, edited fences, programs and policies as events: each code, and what must not be in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import parse_policy
from runtime_pack.audit import AuditLog, LogStatus, verify_log
from runtime_pack.catalog import Executed, ToolOutput
from runtime_pack.cli._state import open_state
from runtime_pack.config_events import config_loaded, policy_loaded
from runtime_pack.messages import Json
from runtime_pack.outside_events import outside_events
from runtime_pack.policy import PolicyRef
from runtime_pack.records import StepRecord

RECORD = StepRecord(
    step="t1.c1", tool="web:read", call_id="c", admitted=True, executed=Executed.YES
)
SUBJECT: dict[str, Json] = {"run": "r", "step": "t1.c1"}
PAGE: dict[str, Json] = {
    "kind": "page",
    "mode": "fence",
    "source": "https://docs.example.org:8443/private/path?token=s3cret",
    "revision": f"sha256:{'a' * 64}",
    "shown": 100,
    "total": 250,
    "truncated": True,
    "signals": [],
}


def told(*fences: dict[str, Json], ok: bool = True) -> list[tuple[str, dict[str, Any], str]]:
    output = ToolOutput(ok=ok, text="x", fences=fences)
    return [(str(e.code), dict(e.object), e.key) for e in outside_events(SUBJECT, RECORD, output)]


def test_a_page_that_was_read_is_told_by_its_host() -> None:
    """How much of it is shown, and which revision; neither its path nor its query."""
    ((code, body, key),) = told(PAGE)

    assert ("WEB001O", "t1.c1:read") == (code, key)
    assert ("docs.example.org", 100, 250, True) == (
        body["host"],
        body["characters"],
        body["of_characters"],
        body["truncated"],
    )
    assert body["revision"].startswith("sha256:")
    assert not {"private", "s3cret"} & set(
        json.dumps(body).replace("/", " ").replace("=", " ").split()
    )


def test_what_a_search_found_is_told_by_its_hosts() -> None:
    """Each host once, however many rows; no title, no snippet, no query."""
    rows = [
        PAGE | {"kind": "search-item", "source": f"https://{host}.example/x"}
        for host in ("b", "a", "b", "c")
    ]
    ((code, body, key),) = told(*rows)

    assert ("WEB002O", "t1.c1:found") == (code, key)
    assert {"tool": "web:read", "rows": 4, "hosts": ["a.example", "b.example", "c.example"]} == body
    many = [PAGE | {"kind": "search-item", "source": f"https://h{n}.example/"} for n in range(99)]
    assert (99, 20) == (told(*many)[0][1]["rows"], len(told(*many)[0][1]["hosts"]))


def test_a_fence_that_was_edited_is_told_with_counts() -> None:
    """By signal, also of a call that failed: it is what a page wrote for models."""
    fences = [
        PAGE | {"signals": ["forged_fence", "control_token"]},
        PAGE | {"signals": ["forged_fence"]},
    ]
    read, second, edited = told(*fences)
    assert ["t1.c1:read", "t1.c1:read-1"] == [read[2], second[2]]
    counts = {"control_token": 1, "forged_fence": 2}
    assert ("FEN001O", {"tool": "web:read", "blocks": 2, "counts": counts}) == edited[:2]
    assert ["FEN001O"] == [code for code, _, _ in told(*fences, ok=False)]


def test_a_call_without_blocks_has_no_more_events() -> None:
    """A turn with calls of plain tools has the records that it had."""
    assert [] == told()
    assert [] == told(PAGE | {"kind": "summary"}, PAGE | {"kind": "file-name"})


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
_KEYS = st.sampled_from(list(PAGE))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            _KEYS, _JSON | st.sampled_from(["page", "search-item", "https://[::1", "http://a\n.b/"])
        ),
        max_size=3,
    )
)
def test_any_blocks_give_events_that_a_log_takes(fences: list[dict[str, Json]]) -> None:
    """A host's tool may keep what it likes of its blocks: words are digested, numbers bounded."""
    for code, body, _ in told(*fences):
        assert code in {"WEB001O", "WEB002O", "FEN001O"}
        text = orjson.dumps(body).decode()
        assert text.isprintable()
        assert len(text) < 4000


# ── programs and policies ─────────────────────────────────────────────────────────────────────


def test_a_policy_that_is_another_one_is_told_with_both_digests() -> None:
    """The digest decides: a version that stayed is told as such; the same policy was not changed."""
    old, same = (PolicyRef(id="web", version=2, sha256=f"sha256:{'a' * 64}") for _ in range(2))
    new = PolicyRef(id="web", version=2, sha256=f"sha256:{'b' * 64}")

    assert "CFG002O" == policy_loaded(old, by="ann").code == policy_loaded(same, old, by="ann").code
    changed = policy_loaded(new, old, by="ann")
    assert ("CFG003O", "ann", False) == (
        changed.code,
        changed.object["by"],
        changed.object["version_raised"],
    )
    assert (new.to_json(), old.to_json()) == (changed.object["policy"], changed.object["before"])


def test_a_program_says_who_started_it(tmp_path: Path) -> None:
    """Whatever the name of a user is: the line is one of a log that verifies."""
    with AuditLog(tmp_path / "log") as log:
        log.append(config_loaded("runtime-pack ask", {"version": "1"}, by="a\udc80nn\n"))
    assert LogStatus.CHAINED == verify_log(tmp_path / "log").status
    assert b"config:loaded" in (tmp_path / "log").read_bytes()


def _begin(folder: Path, text: str, *, compared: bool = True) -> list[dict[str, Any]]:
    with open_state(folder).logging(parse_policy(text), compared=compared) as log:
        lines = log.path.read_bytes().splitlines()
    return [record for line in lines if (record := json.loads(line))["code"].startswith("CFG")]


def test_the_log_of_a_command_begins_with_program_and_policy(tmp_path: Path) -> None:
    """A change is told once, against the last policy of that id in the state folder."""
    one = 'id = "web"\nversion = 1\nallow = ["a.example"]\n'
    two = one.replace("a.example", "b.example")
    other = one.replace('"web"', '"other"')
    codes = [
        [record["code"] for record in _begin(tmp_path / "state", text)]
        for text in (one, one, two, other, two)
    ]
    assert ["CFG001O", "CFG002O"] == codes[0] == codes[1] == codes[3] == codes[4]
    assert ["CFG001O", "CFG003O"] == codes[2]
    config, changed = _begin(tmp_path / "state", one)
    assert {"version", "python"} == set(config["object"]["settings"])
    assert parse_policy(two).sha256 == changed["object"]["before"]["sha256"]
    assert 0o600 == (tmp_path / "state" / "policies.json").stat().st_mode & 0o777


def test_a_run_that_is_taken_up_changes_no_policy(tmp_path: Path) -> None:
    """It stays under what it was started with; what holds for new runs is not that."""
    one = 'id = "web"\nversion = 1\n'
    two = 'id = "web"\nversion = 2\n'
    _begin(tmp_path / "state", one)
    _begin(tmp_path / "state", two)
    assert "CFG002O" == _begin(tmp_path / "state", one, compared=False)[-1]["code"]
    assert "CFG002O" == _begin(tmp_path / "state", two)[-1]["code"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"web": 3}', '{"web": {"id": "x"}}'])
def test_what_is_noted_of_policies_may_be_damaged(tmp_path: Path, content: str) -> None:
    """It is no evidence, and no reason not to run: the digest stands in the log in any case."""
    one = 'id = "web"\nversion = 1\n'
    _begin(tmp_path / "state", one)
    (tmp_path / "state" / "policies.json").write_text(content)
    assert "CFG002O" == _begin(tmp_path / "state", one)[-1]["code"]
