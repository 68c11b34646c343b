"""Our ratios to hand-written floors and to other frameworks, measured beside them in one run.

Usage: python benchmarks/run.py [--quick] [--peers DIR] [--home DIR] [--json]

The harness (`--peers`, else PEERS_DIR, else `../shared/peers` beside this repository) sets its
environments up, measures, and judges. This command copies our packages into `--home`, tells the
harness where they are, and prints its verdicts; nothing is written into the repository.
Exit code: 0 when it ran (whatever the verdicts), 1 when the harness failed, 2 when there is none.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("runtime_pack", "web_tools", "egress", "citations")
PLUGS = ("ours_loop.py", "ours_fetch.py")
# The best peers of most figures, and the cheapest to set up.
QUICK_PEERS = ("agno", "agent_framework", "advocate")
BASE = "base"
_MARK = ".agent-runtime-pack-bench"
_NOTE = "only against the floor"


class Unusable(Exception):
    """The run cannot be made; the text says why, `code` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@attrs.frozen(kw_only=True)
class Plan:
    """What to run, and where."""

    harness: Path
    home: Path
    ours: Path
    quick: bool
    peers: tuple[str, ...]
    groups: str
    repetitions: int
    budget_seconds: int

    @property
    def run_home(self) -> Path:
        """The harness's PEERS_HOME: a quick run sees only the environments it asked for."""
        return self.home / "quick" if self.quick else self.home

    def environment(self, home: Path) -> dict[str, str]:
        """The variables that the harness reads."""
        plugs = self.home / "ours" / "benchmarks"
        return os.environ | {
            "PEERS_HOME": str(home),
            "PEERS_PYTHON": os.environ.get("PEERS_PYTHON", sys.executable),
            "PEERS_OURS_PYTHON": os.environ.get("PEERS_OURS_PYTHON", sys.executable),
            "PEERS_OURS_PATH": str(self.home / "ours"),
            "PEERS_OURS_DIR": str(plugs),
            "PEERS_ONLY": self.groups,
            "PEERS_REPS": str(self.repetitions),
            "PEERS_BUDGET_S": str(self.budget_seconds),
            "TMPDIR": str(self.home / "tmp"),
        }


@attrs.frozen(kw_only=True)
class Figure:
    """One row of the harness's targets: our ratios and its verdict."""

    title: str
    ours: float | None
    floor: float | None
    of_floor: float | None
    of_floor_target: float | None
    best: str
    of_best: float | None
    of_best_target: float | None
    absolute_target: float | None
    verdict: str


def main() -> int:
    """Run, print, and say how it went."""
    try:
        arguments = _arguments()
        plan = _plan(arguments)
        _prepare(plan)
        _measure(plan)
    except Unusable as problem:
        print(problem, file=sys.stderr)
        return problem.code
    results = json.loads((plan.run_home / "results" / "last.json").read_text())
    targets = json.loads((plan.harness / "targets.json").read_text())["figures"]
    report = (plan.run_home / "results" / "last.md").read_text()
    figures = [_figure(target, results, _verdicts(report)) for target in targets]
    measured = [figure for figure in figures if figure.ours is not None]
    if arguments.json:
        meta = results["meta"]
        kept = {key: meta[key] for key in ("python", "cores", "reps_done", "load1", "started")}
        rows = [attrs.asdict(figure) for figure in measured]
        print(json.dumps({"run": kept, "figures": rows}, indent=2))
    else:
        _print(results["meta"], measured, plan)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("PEERS_DIR") or REPOSITORY.parent / "shared" / "peers"
    parser.add_argument("--peers", type=Path, default=Path(default), help="the harness's folder")
    parser.add_argument("--home", type=Path, help="where environments and results are kept")
    parser.add_argument(
        "--ours", type=Path, help="a wheel or source folder; this repository if not given"
    )
    parser.add_argument(
        "--quick", action="store_true", help="floors and a few peers, 2 repetitions"
    )
    parser.add_argument(
        "--with",
        dest="names",
        default=",".join(QUICK_PEERS),
        help="peers of a quick run, by commas",
    )
    parser.add_argument("--groups", help="of A (loop), B (fetch, read), C, D; quick: A,B")
    parser.add_argument("--reps", type=int, help="interleaved repetitions")
    parser.add_argument("--budget", type=int, default=840, help="seconds; then no new repetition")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    return parser.parse_args()


def _plan(arguments: argparse.Namespace) -> Plan:
    """The plan of the command line.

    Raises:
        Unusable: there is no harness, or the home is not ours.
    """
    harness: Path = arguments.peers.resolve()
    if not (harness / "lib" / "driver.py").is_file():
        raise Unusable(
            f"no comparison harness in {harness}: name its folder with --peers or PEERS_DIR", 2
        )
    quick: bool = arguments.quick
    return Plan(
        harness=harness,
        home=_home(arguments.home),
        ours=(arguments.ours or REPOSITORY).resolve(),
        quick=quick,
        peers=tuple(name for name in arguments.names.split(",") if name),
        groups=arguments.groups or ("A,B" if quick else "A,B,C,D"),
        repetitions=arguments.reps or (2 if quick else 5),
        budget_seconds=arguments.budget,
    )


def _home(given: Path | None) -> Path:
    """The given folder, or one of this user's own in the temporary folder, kept between runs."""
    home = given or Path(tempfile.gettempdir()) / f"agent-runtime-pack-bench-{os.getuid()}"
    home = home.resolve()
    if home.is_relative_to(REPOSITORY):
        raise Unusable("--home is inside the repository, which a benchmark does not touch", 2)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise Unusable(f"{home} belongs to somebody else; give another --home", 2)
    # Folders in it are removed and made again: it must be empty, or ours from before.
    mark = home / _MARK
    if not mark.exists() and any(home.iterdir()):
        raise Unusable(f"{home} is not empty and was not made by this command", 2)
    mark.touch()
    return home


# ── running ───────────────────────────────────────────────────────────────────────────────────


def _prepare(plan: Plan) -> None:
    """A copy of what is measured, so that no byte code and no log is written beside the source."""
    for folder in ("ours", "tmp", "quick"):
        shutil.rmtree(plan.home / folder, ignore_errors=True)
    copy = plan.home / "ours"
    (plan.home / "tmp").mkdir()
    if plan.ours.suffix == ".whl":
        with zipfile.ZipFile(plan.ours) as wheel:
            wheel.extractall(copy)
    else:
        for package in PACKAGES:
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(plan.ours / package, copy / package, ignore=skipped)
    (copy / "benchmarks").mkdir(parents=True)
    for plug in PLUGS:
        shutil.copy(Path(__file__).with_name(plug), copy / "benchmarks" / plug)
    # The peers' environments are compiled as well: import time is measured with byte code present.
    compileall.compile_dir(copy, quiet=1)


def _measure(plan: Plan) -> None:
    """Set up, run the driver and the report.

    Raises:
        Unusable: a step failed; what it printed stands above.
    """
    names = (BASE, *plan.peers) if plan.quick else ()
    _call(plan, plan.home, ["./setup.sh", *names], may_fail=True)
    if plan.quick:
        _choose_environments(plan, names)
    python = plan.run_home / "venvs" / BASE / "bin" / "python"
    if not python.exists():
        raise Unusable("the harness's base environment could not be made", 1)
    for script in ("driver.py", "report.py"):
        _call(plan, plan.run_home, [str(python), f"lib/{script}"])
    shutil.rmtree(plan.home / "tmp", ignore_errors=True)


def _choose_environments(plan: Plan, names: Sequence[str]) -> None:
    """Links to the wanted ones: the driver measures every peer whose environment it finds."""
    chosen = plan.run_home / "venvs"
    chosen.mkdir(parents=True)
    for name in names:
        made = plan.home / "venvs" / name
        if made.is_dir():
            (chosen / name).symlink_to(made, target_is_directory=True)


def _call(plan: Plan, home: Path, command: list[str], *, may_fail: bool = False) -> None:
    """One step of the harness, in its folder; its output is progress and goes to stderr."""
    environment = plan.environment(home)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, cwd=plan.harness, env=environment, stdout=sys.stderr, check=False
    )
    if done.returncode and not may_fail:
        raise Unusable(f"{' '.join(command)} failed with code {done.returncode}", 1)


# ── reading the results ───────────────────────────────────────────────────────────────────────


def _verdicts(report: str) -> dict[str, tuple[str, str]]:
    """Best peer and verdict by title, as the harness's own report has them."""
    section = report.partition("## Verdict")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    return {row[0]: (row[1], row[-1]) for row in rows[1:]}


def _figure(
    target: Mapping[str, Any], results: Mapping[str, Any], verdicts: Mapping[str, tuple[str, str]]
) -> Figure:
    ours = _series(target, results, target["ours"])
    floor = _series(target, results, target["limit"])
    best, verdict = verdicts.get(target["title"], ("-", _NOTE))
    others = _peers(target, results)
    series = {name: _series(target, results, name) for name in others}
    known = {name: statistics.median(s.values()) for name, s in series.items() if s}
    nearest = min(known, key=known.__getitem__, default="")
    return Figure(
        title=target["title"],
        ours=_median(ours),
        floor=_median(floor),
        of_floor=_ratio(ours, floor),
        of_floor_target=target.get("vs_limit"),
        best=best,
        of_best=_ratio(ours, series.get(nearest, {})),
        of_best_target=target.get("vs_best"),
        absolute_target=target.get("abs"),
        verdict=verdict,
    )


def _peers(target: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """The adapters that count as peers of a figure."""
    if "among" in target:
        return list(target["among"])
    known = results["meta"][target["kind"]]
    return [name for name in known if not name.startswith(("bare", "floor", "ours"))]


def _series(
    target: Mapping[str, Any], results: Mapping[str, Any], adapter: str
) -> dict[int, float]:
    """The figure by repetition; for growth, the second cell over the first."""
    first = _cell(results, target, target["cell"], adapter)
    if "cell2" not in target:
        return first
    second = _cell(results, target, target["cell2"], adapter)
    return {rep: second[rep] / first[rep] for rep in first if rep in second and first[rep]}


def _cell(
    results: Mapping[str, Any], target: Mapping[str, Any], cell: str, adapter: str
) -> dict[int, float]:
    return {
        rep: values[target["metric"]]
        for rep, figure, where, who, values in results["rows"]
        if (figure, where, who) == (target["fig"], cell, adapter) and target["metric"] in values
    }


def _median(series: Mapping[int, float]) -> float | None:
    return statistics.median(series.values()) if series else None


def _ratio(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """The median of the ratios inside each repetition."""
    shared = [one[rep] / other[rep] for rep in one if other.get(rep)]
    return statistics.median(shared) if shared else None


# ── printing ──────────────────────────────────────────────────────────────────────────────────


def _print(meta: Mapping[str, Any], figures: Sequence[Figure], plan: Plan) -> None:
    load = ", ".join(f"{value:.1f}" for value in meta["load1"])
    print(
        f"{meta['reps_done']} repetitions, Python {meta['python']}, {meta['cores']} cores,"
        f" load {load}, {meta['wall_s']:.0f} s"
    )
    if meta["reps_done"] < 5 or plan.quick:
        print("Provisional: a figure counts when a full run of five repetitions has it MET, twice.")
    print()
    print(
        f"{'figure':38} {'ours':>10} {'/floor':>7} {'limit':>6} {'/best':>7} {'limit':>6}  verdict"
    )
    for row in figures:
        print(
            f"{row.title:38} {_number(row.ours):>10} {_number(row.of_floor):>7}"
            f" {_number(row.of_floor_target):>6} {_number(row.of_best):>7}"
            f" {_number(row.of_best_target):>6}  {_words(row)}"
        )
    print(f"\nThe harness's tables: {plan.run_home / 'results' / 'last.md'}")


def _words(row: Figure) -> str:
    """The harness's verdict; where no peer was measured, how the limits without one came out."""
    if row.verdict != _NOTE:
        limit = "" if row.absolute_target is None else f", limit {row.absolute_target:g}"
        return f"{row.verdict} (best peer: {row.best}{limit})"
    shares = [
        (row.of_floor, row.of_floor_target),
        (row.ours, row.absolute_target),
    ]
    over = [value / limit for value, limit in shares if value is not None and limit is not None]
    if not over:
        return "no peer was measured"
    word = "MET" if max(over) <= 1 else "NEAR" if max(over) <= 1.1 else "MISSED"
    return f"{word} {_NOTE}; no peer was measured"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
