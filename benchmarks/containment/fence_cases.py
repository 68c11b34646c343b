"""Every corpus string behind every breakout, in every slot, against the oracle of the fence.

The corpora alone do not test a fence: none of their strings tries to close one. So each is put behind
a breakout of the fence vectors and before a forged reopening.
"""

from __future__ import annotations

import html
import json
import multiprocessing
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from web_tools.fence import (
    TAG,
    FenceKind,
    FenceMeta,
    NonceBook,
    ResultText,
    fence,
    fence_results,
    neutralise,
)
from web_tools.testing import assert_fenced, assert_fenced_results, forged_tag_in

__all__ = (
    "SLOTS",
    "STRATEGIES",
    "FenceCounts",
    "breakouts",
    "forged_tags",
    "kill_table",
    "run_cases",
    "run_spread",
)

ROOT: Final = Path(__file__).resolve().parents[2]
VECTORS: Final = ROOT / "tests" / "cases" / "fence.jsonl"
REOPENED: Final = f'\n<{TAG} nonce="00000000000000000000000000000000" kind="page">\n'
_WHEN: Final = "2026-01-01T00:00:00Z"


def breakouts() -> list[str]:
    """The contents of the vectors that forge a tag, a token or a sequence, each once."""
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    texts = (row["content"] for row in rows if isinstance(row.get("content"), str))
    return list(dict.fromkeys(text for text in texts if text and forged_tag_in(text)))


# ── slots ─────────────────────────────────────────────────────────────────────────────────────


def _block(kind: FenceKind, text: str, source: str | None = "https://a.example/") -> None:
    meta = FenceMeta(kind=kind, source=source, retrieved_at=_WHEN)
    made = fence(text, meta=meta, nonces=NonceBook(burned=set()))
    parts = assert_fenced(made.text)
    # What was noticed is a report: it never changes the body.
    plain = neutralise(text).body
    if made.signals and parts.body != plain:
        raise AssertionError("a signal changed the body")
    if parts.body != plain:
        raise AssertionError("the body is not that of the text alone")


def _result(title: str, snippet: str, source: str = "https://a.example/") -> None:
    items = [
        ResultText(title=title, snippet=snippet, source=source),
        ResultText(title="t", snippet="s", source="https://b.example/"),
    ]
    made = fence_results(items, retrieved_at=_WHEN, nonces=NonceBook(burned=set()))
    if len(assert_fenced_results(made.text)) != len(items):
        raise AssertionError("an item changed the number of records")


SLOTS: Final[Mapping[str, Callable[[str], None]]] = {
    "page": lambda text: _block(FenceKind.PAGE, text),
    "title": lambda text: _result(text, "snippet"),
    "snippet": lambda text: _result("title", text),
    "address": lambda text: _block(FenceKind.PAGE, "text", f"https://a.example/{text}"),
    "error body": lambda text: _block(FenceKind.ERROR, text),
    "header": lambda text: _block(FenceKind.REDIRECT, text, text),
    "file name": lambda text: _block(FenceKind.FILE_NAME, text, f"file:{text}"),
}


@attrs.frozen(kw_only=True)
class FenceCounts:
    """Cases and failures by slot, and what the first failures were."""

    cases: Mapping[str, int]
    failures: Mapping[str, int]
    examples: tuple[str, ...]
    seconds: float


def _chunk(given: tuple[str, Sequence[str], Sequence[str]]) -> tuple[str, int, list[str]]:
    slot, prefixes, texts = given
    check, failed, count = SLOTS[slot], list[str](), 0
    for prefix in prefixes:
        for text in texts:
            count += 1
            try:
                check(f"{prefix}{text}{REOPENED}")
            except AssertionError as error:
                failed.append(f"{slot}: {error}: {prefix[:60]!a} + {text[:60]!a}")
    return slot, count, failed


def run_cases(
    texts: Sequence[str], prefixes: Sequence[str], *, workers: int, slots: Iterable[str] = SLOTS
) -> FenceCounts:
    """Every text behind every prefix in every slot."""
    work = [(slot, [prefix], texts) for slot in slots for prefix in prefixes]
    return _counted(work, workers)


def _counted(work: Sequence[tuple[str, Sequence[str], Sequence[str]]], workers: int) -> FenceCounts:
    begun = time.perf_counter()
    cases: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    examples: list[str] = []
    for slot, count, failed in _mapped(work, workers):
        cases[slot] += count
        failures[slot] += len(failed)
        examples += failed[:3]
    return FenceCounts(
        cases=dict(cases),
        failures=dict(failures),
        examples=tuple(examples[:10]),
        seconds=time.perf_counter() - begun,
    )


def run_spread(texts: Sequence[str], prefixes: Sequence[str], *, workers: int) -> FenceCounts:
    """Every text in every slot behind one prefix, another one in each slot."""
    many = len(prefixes)
    work = [
        (slot, [prefixes[(first + shift * many // len(SLOTS)) % many]], texts[first::many])
        for shift, slot in enumerate(SLOTS)
        for first in range(many)
    ]
    return _counted(work, workers)


def _mapped(
    work: Sequence[tuple[str, Sequence[str], Sequence[str]]], workers: int
) -> Iterator[tuple[str, int, list[str]]]:
    if workers < 2:
        yield from map(_chunk, work)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(_chunk, work)


# ── weaker strategies ─────────────────────────────────────────────────────────────────────────

_EXACT: Final = f"</{TAG}>"
_TOLERANT: Final = re.compile(rf"<\s*/?\s*{TAG}[^>]*>", re.IGNORECASE)
_FORMAT: Final = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

STRATEGIES: Final[Mapping[str, Callable[[str], str]]] = {
    "none": lambda text: text,
    "exact lower-case close tag to entities": lambda text: text.replace(
        _EXACT, html.escape(_EXACT)
    ),
    "case-insensitive rename": lambda text: re.sub(TAG, "page-content", text, flags=re.IGNORECASE),
    "case- and space-tolerant": lambda text: re.sub(
        rf"<\s*/\s*{TAG}\s*>", html.escape(_EXACT), text, flags=re.IGNORECASE
    ),
    "delete matching tags": lambda text: _TOLERANT.sub("", text),
    "insert a zero-width space after <": lambda text: text.replace("<", "<\u200b"),
    "swap < for a look-alike": lambda text: text.replace("<", "\uff1c"),
    "escape every &, <, >": lambda text: html.escape(text, quote=False),
    "NFKC, drop format characters, tolerant removal": lambda text: _TOLERANT.sub(
        "", _FORMAT.sub("", unicodedata.normalize("NFKC", text))
    ),
    "this fence": lambda text: neutralise(text).body,
}


@attrs.frozen(kw_only=True)
class Killed:
    """What one strategy lets through: forged tags by matcher, and benign texts that it changes."""

    strategy: str
    exact: int
    folded: int
    decoded: int
    altered: int


def forged_tags() -> tuple[list[str], list[str]]:
    """The vectors that forge a tag, and those that are to be left as they are."""
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    benign = [
        row["content"]
        for row in rows
        if isinstance(row.get("content"), str) and row.get("expect", {}).get("text_preserved")
    ]
    return breakouts(), benign


def kill_table() -> list[Killed]:
    """Each strategy against three readers: exact, one that folds, one that folds and decodes."""
    forged, benign = forged_tags()
    return [
        Killed(
            strategy=name,
            exact=sum(_exact_tag(apply(text)) for text in forged),
            folded=sum(forged_tag_in(apply(text), rounds=0) for text in forged),
            decoded=sum(forged_tag_in(apply(text)) for text in forged),
            altered=sum(apply(text) != text for text in benign),
        )
        for name, apply in STRATEGIES.items()
    ]


def _exact_tag(text: str) -> bool:
    return re.search(rf"</?{TAG}(?![A-Za-z-])", text) is not None
