"""Breakouts through the tools as a run has them: every result says where it comes from.

The fence alone is tested text by text elsewhere. Here each case is a call of `web:read` or
`web:search` in a guarded run, with the text in one slot of what the outside answers; the result has to
be labelled external, to carry the provenance, to say that it is untrusted, and to stand in its fence.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import attrs

from benchmarks.containment.fence_cases import REOPENED
from benchmarks.containment.world import ALLOW, START
from egress.ports import HopResponse
from egress.url import Target
from runtime_pack import (
    Event,
    ExecutionContext,
    GuardedRuntime,
    Integrity,
    SearchHit,
    SearchRequest,
    TaskContract,
    ToolOutput,
    create_agent_runtime,
    create_agent_task_run,
    create_web_tool_runtime,
)
from runtime_pack.testing import ScriptedModel
from runtime_pack.web_catalog import fence_frame
from web_tools.testing import assert_fenced, assert_fenced_results

__all__ = ("TOOL_SLOTS", "ToolCounts", "run_tool_cases")

_PROVENANCE: Final = "external_tool_read"
_PLAIN: Final = ("content-type", "text/plain; charset=utf-8")

Answer = tuple[int, tuple[tuple[str, str], ...], str]


def _line(text: str) -> str:
    """A header value: what a client passes on of one."""
    return "".join(character for character in text if " " <= character <= "~")


def _moved(text: str) -> Answer:
    return 302, (("location", f"https://news.example/{quote(text, errors='replace')}"),), text


TOOL_SLOTS: Final[Mapping[str, Callable[[str], Answer] | str]] = {
    "page": lambda text: (200, (_PLAIN,), text),
    "title": "title",
    "snippet": "snippet",
    "address": "url",
    "error body": lambda text: (500, (_PLAIN,), text),
    "header": lambda text: (200, (("content-type", _line(text)), ("x-note", _line(text))), text),
    "redirect": _moved,
    "file name": lambda text: (
        200,
        (
            ("content-type", "application/octet-stream"),
            ("content-disposition", f'attachment; filename="{_line(text)}"'),
        ),
        "\0\1\2",
    ),
}


@attrs.define
class _Outside:
    """Answers the next request with what it was given."""

    answer: Answer = (200, (_PLAIN,), "")
    hit: SearchHit = attrs.field(factory=lambda: SearchHit(title="t", url=START, snippet="s"))
    asked: int = 0

    async def fetch(self, target: Target, /) -> HopResponse:
        """One hop: the answer, then pages without anything."""
        del target
        status, headers, body = self.answer if self.asked == 0 else (200, (_PLAIN,), "")
        self.asked += 1

        async def chunks() -> AsyncIterator[bytes]:
            yield body.encode("utf-8", "surrogatepass")

        return HopResponse(status=status, headers=headers, body=chunks())

    async def search(self, request: SearchRequest, *, signal: Any = None) -> list[SearchHit]:
        """Three results, the text in the first."""
        del request, signal
        return [self.hit, *[SearchHit(title="t", url=START, snippet="s")] * 2]


class _Ears:
    async def emit(self, event: Event) -> None:
        """Nobody listens."""


@attrs.frozen(kw_only=True)
class ToolCounts:
    """By slot: cases, and how many results lack a label, a provenance or their fence."""

    cases: Mapping[str, int]
    outcomes: Mapping[str, Mapping[str, int]]
    unlabelled: Mapping[str, int]
    unfenced: Mapping[str, int]


def run_tool_cases(texts: Sequence[str]) -> ToolCounts:
    """Every text in every slot, one call each."""
    return asyncio.run(_run(texts))


async def _run(texts: Iterable[str]) -> ToolCounts:
    cases, unlabelled, unfenced = Counter[str](), Counter[str](), Counter[str]()
    outcomes: dict[str, Counter[str]] = {slot: Counter() for slot in TOOL_SLOTS}
    for text in texts:
        for slot in TOOL_SLOTS:
            output = await _call(slot, f"{text}{REOPENED}")
            cases[slot] += 1
            outcomes[slot]["ok" if output.ok else str(output.code)] += 1
            unlabelled[slot] += not _is_labelled(output)
            unfenced[slot] += not _is_fenced(output)
    return ToolCounts(cases=cases, outcomes=outcomes, unlabelled=unlabelled, unfenced=unfenced)


async def _call(slot: str, text: str) -> ToolOutput:
    outside, way = _Outside(), TOOL_SLOTS[slot]
    if callable(way):
        outside.answer = way(text)
    else:
        held = f"{START}?{quote(text, errors='replace')}" if way == "url" else text
        outside.hit = attrs.evolve(outside.hit, **{way: held})
    run = create_agent_task_run(TaskContract(max_steps=2), frame=fence_frame)
    runtime = create_web_tool_runtime(
        run.guard_runtime(create_agent_runtime(model=ScriptedModel(()))),
        provider=outside,
        allowlist=ALLOW,
        emitter=_Ears(),
        fetch=outside.fetch,
    )
    if not isinstance(runtime, GuardedRuntime):
        raise TypeError("the runtime is not guarded")
    name, given = ("web:read", {"url": START}) if callable(way) else ("web:search", {"query": "x"})
    output = await runtime.execute_tool(name, given, ExecutionContext(call_id="c1"))
    if output.label.integrity is not run.label.integrity:
        raise AssertionError(f"{slot}: the run is not labelled as its result is")
    await runtime.release()
    return output


def _is_labelled(output: ToolOutput) -> bool:
    data = output.data if isinstance(output.data, dict) else {}
    labelled = output.label.integrity is Integrity.EXTERNAL and _PROVENANCE in output.provenance
    # A refusal is in our words.
    return labelled and (data.get("untrusted") is True or not output.ok)


def _is_fenced(output: ToolOutput) -> bool:
    try:
        if output.text.startswith("<"):
            assert_fenced(output.text)
        else:
            assert_fenced_results(output.text)
    except AssertionError:
        # Nothing of the outside is in a refusal.
        return not output.ok and "untrusted-web-content" not in output.text
    return True
