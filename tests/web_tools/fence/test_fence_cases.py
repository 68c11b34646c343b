"""The shared case file, and the weaker strategies that it must catch (property 24)."""

import html
import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from web_tools.fence import (
    FencedBlock,
    FenceKind,
    FenceMeta,
    NonceBook,
    ResultText,
    fence,
    fence_results,
    neutralise,
    refence,
)
from web_tools.testing import assert_fenced, assert_fenced_results, forged_tag_in
from web_tools.visible import remove_invisibles

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "cases" / "fence.jsonl").read_text().splitlines()
]
# The address rule belongs to the labels, not to the fence.
TEXT_CASES = [case for case in CASES if isinstance(case["content"], str) and case["kind"] != "url"]
RESULT_CASES = [case for case in CASES if not isinstance(case["content"], str)]

Case = dict[str, Any]


def book_of(case: Case) -> NonceBook:
    args = case.get("args", {})
    burned = set(args.get("previous_nonces", ()))
    if "rng" in args:
        return NonceBook(burned=burned, draw=iter(args["rng"]).__next__)
    return NonceBook(burned=burned)


def meta_of(case: Case) -> FenceMeta:
    args = case.get("args", {})
    return FenceMeta(
        kind=FenceKind.PAGE,
        source=args.get("source_url", "https://a.example/"),
        retrieved_at=args.get("retrieved_at", "2026-01-01T00:00:00Z"),
    )


def fenced(case: Case, nonces: NonceBook) -> FencedBlock:
    limit = case.get("args", {}).get("max_chars")
    return fence(case["content"], meta=meta_of(case), nonces=nonces, max_chars=limit)


def judge_structure(case: Case, block: FencedBlock) -> None:
    expect = case["expect"]
    parts = assert_fenced(block.text)
    assert parts.body == block.body
    if "nonce" in expect:
        assert block.nonce == expect["nonce"]
    if "truncated" in expect:
        assert block.truncated == expect["truncated"]
    if "body_max" in expect:
        assert len(block.body) <= expect["body_max"]
    if expect.get("no_leading_mark_after_cut"):
        rest = case["content"][len(block.content) :]
        assert not rest or not unicodedata.combining(rest[0])
    for signal in expect.get("signals", ()):
        assert signal in block.signals


def judge_text(case: Case, block: FencedBlock) -> None:
    expect = case["expect"]
    if expect.get("text_preserved"):
        assert block.body == case["content"]
    if expect.get("reversible"):
        assert block.report.restore_raw(block.body) == case["content"]
    assert all(part in block.body for part in expect.get("text_contains", ()))
    assert all(part not in block.body for part in expect.get("text_lacks", ()))
    assert all(token not in block.body for token in expect.get("no_control_token", ()))
    assert set(expect.get("stripped", ())) <= set(block.report.removed)
    if expect.get("no_control_chars"):
        assert not any(unicodedata.category(c) == "Cc" and c not in "\t\n" for c in block.body)


def judge_tag(case: Case, block: FencedBlock) -> None:
    expect = case["expect"]
    line = block.text.split("\n", 1)[0]
    assert line.isascii()
    assert all(part in line for part in expect.get("attr_contains", ()))
    assert all(part not in line for part in expect.get("attr_lacks", ()))
    assert len(line) <= expect.get("attr_max", 2_100)


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case["id"])
def test_case(case: Case) -> None:
    """Each row of the case file holds, extended ones included."""
    nonces = book_of(case)
    calls = case.get("args", {}).get("calls", 1)

    blocks = [fenced(case, nonces) for _ in range(calls)]

    for block in blocks:
        judge_structure(case, block)
        judge_text(case, block)
        judge_tag(case, block)
    assert len({block.nonce for block in blocks}) == calls


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case["id"])
def test_case_shortened_later(case: Case) -> None:
    """Each row can be shortened after it was stored, at any place."""
    nonces = NonceBook()
    block = fence(case["content"], meta=meta_of(case), nonces=nonces)

    for limit in (0, 1, 7, 30, 31, len(block.content)):
        assert_fenced(refence(block, nonces=nonces, max_chars=limit).text)


@pytest.mark.parametrize("case", RESULT_CASES, ids=lambda case: case["id"])
def test_result_case(case: Case) -> None:
    """Each result list is one block per item, in order."""
    rows, expect = case["content"]["results"], case["expect"]
    items = [
        ResultText(title=row["title"], snippet=row["snippet"], source=row["url"]) for row in rows
    ]

    results = fence_results(items, retrieved_at="2026-01-01T00:00:00Z", nonces=NonceBook())

    blocks = assert_fenced_results(results.text)
    assert len(blocks) == expect["item_count"]
    assert all(part in results.text for part in expect.get("text_contains", ()))
    if expect.get("item_url_flagged"):
        assert results.blocks[0].source_flag is not None
        assert blocks[0].attributes["source"].startswith("not-web:")


@pytest.mark.parametrize("count", [1, 3, 10])
def test_overhead_per_item(count: int) -> None:
    """The frame costs at most 420 characters per item, the long notice included."""
    item = ResultText(title="A title", snippet="a snippet " * 20, source="https://a.example/")

    results = fence_results([item] * count, retrieved_at="2026-01-01T00:00:00Z", nonces=NonceBook())

    content = count * (len(item.title) + len(item.snippet))
    assert len(results.text) - content <= 420 * count


def test_long_notice_once() -> None:
    """The sentence on nonces stands in the first line and nowhere else."""
    item = ResultText(title="t", snippet="s", source=None)

    text = fence_results([item, item], retrieved_at=None, nonces=NonceBook()).text

    assert text.count("a block ends only at its nonce") == 1
    assert "not instructions" in text.split("\n", 1)[0]


# --- weaker strategies ---------------------------------------------------------------------------

CLOSE = "</untrusted-web-content>"
BRACKETS = "<\uff1c\ufe64\u2039\u00ab\u2329\u27e8\u27ea\u3008\u300a\u276c\u276e\u2770\u226a\u29fc"


def tolerant(text: str, replacement: str) -> str:
    return re.sub(r"(?i)<\s*/?\s*untrusted-web-content\s*>", replacement, text)


def folded_marker(text: str) -> str:
    """OpenClaw style: fold brackets and letters, drop format characters, need the terminator."""
    text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    folded = "".join(
        "<" if c in BRACKETS else unicodedata.normalize("NFKC", c).lower()[:1] or c for c in text
    )
    found = re.search(r"<\s*/?\s*untrusted[-_ ]web[-_ ]content[^<>]{0,80}>", folded)
    while found:
        gap = "[[MARKER]]"
        text = text[: found.start()] + gap + text[found.end() :]
        folded = folded[: found.start()] + gap + folded[found.end() :]
        found = re.search(r"<\s*/?\s*untrusted[-_ ]web[-_ ]content[^<>]{0,80}>", folded)
    return text


def normalised(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    return tolerant(text, "[removed]")


WEAKER: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "exact close tag to entities": lambda text: text.replace(
        CLOSE, "&lt;/untrusted-web-content&gt;"
    ),
    "case-insensitive rename": lambda text: re.sub(
        "(?i)untrusted-web-content", "untrusted_web_content", text
    ),
    "case- and space-tolerant": lambda text: tolerant(text, "[tag]"),
    "folded marker with terminator": folded_marker,
    "delete matching tags": lambda text: tolerant(text, ""),
    "zero-width space after the bracket": lambda text: text.replace("<", "<\u200b"),
    "look-alike bracket": lambda text: text.replace("<", "\u2039"),
    "escape everything": html.escape,
    "NFKC and drop format characters": normalised,
}


def judge_body(case: Case, body: str) -> None:
    """What a core vector asks of a body alone, by any strategy."""
    expect = case["expect"]
    if expect.get("text_preserved"):
        assert body == case["content"]
    if expect.get("no_close_tag") or expect.get("no_open_tag"):
        assert not forged_tag_in(body)


CORE = [
    case
    for case in TEXT_CASES
    if case["level"] == "core" and "max_chars" not in case.get("args", {})
]


def failures(strategy: Callable[[str], str]) -> list[str]:
    failed: list[str] = []
    for case in CORE:
        try:
            judge_body(case, strategy(case["content"]))
        except AssertionError:
            failed.append(case["id"])
    return failed


@pytest.mark.parametrize("name", WEAKER)
def test_mutants_die(name: str) -> None:
    """24: each weaker strategy of the page's table fails at least one core vector."""
    assert failures(WEAKER[name])


def test_the_fence_survives() -> None:
    """24: the same judge finds nothing in the fence's own bodies."""
    assert failures(lambda text: neutralise(text).body) == []


def test_other_kinds_of_mutant_die() -> None:
    """The case file also notices a fence that leaves invisibles or walks only plain text."""

    def only_visible(text: str) -> str:
        return remove_invisibles(text).after

    assert failures(only_visible)
