"""Reading beside others, in one run: F1 by page type, pages per second, hostile pages.

Run: python benchmarks/reading/run.py [FOLDER] [--only NAME…] [--every N] [--json]. The folder holds
the labelled pages (`quality.py` says how they are scored); readers that are not installed are named.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.reading import hostile, quality, readers  # the path is set above

_GROUPS = ("article", "documentation", "service", "forum", "listing", "collection", "product")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=quality.FOLDER)
    parser.add_argument("--only", nargs="*", help="names of readers")
    parser.add_argument("--every", type=int, default=1, help="score every Nth page")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found, missing = readers.installed()
    chosen = {name: read for name, read in found.items() if name in (arguments.only or found)}
    scored = _scored(chosen, arguments.folder, arguments.every)
    worst = hostile.worst(list(chosen))
    if arguments.json:
        cells = {page: {name: str(one) for name, one in row.items()} for page, row in worst.items()}
        print(json.dumps({"quality": scored, "hostile": cells, "missing": missing}, indent=2))
        return
    _print_quality(scored)
    print()
    _print_hostile(worst, list(chosen))
    if missing:
        print(f"not installed: {', '.join(missing)}")


def _scored(
    chosen: dict[str, readers.Reader], folder: Path, every: int
) -> dict[str, dict[str, dict[str, float]]]:
    if not (folder / "wcxb-dev").is_dir():
        print(f"no labelled pages in {folder}: quality is left out", file=sys.stderr)
        return {}
    pages = list(quality.pages(folder))[::every]
    tables = {}
    for name, read in chosen.items():
        tables[name] = quality.summary([quality.score(page, _safely(read)) for page in pages])
    return tables


def _safely(read: readers.Reader) -> readers.Reader:
    """A page that a reader cannot read is a page without text."""

    def attempt(body: bytes, url: str) -> str:
        try:
            return read(body, url)
        # The boundary of a peer: whatever it raises is its own result for this page.
        except Exception:  # noqa: BLE001
            return ""

    return attempt


def _print_quality(scored: dict[str, dict[str, dict[str, float]]]) -> None:
    head = (
        "mixed",
        "recall",
        "news",
        *_GROUPS,
        "headings",
        "code",
        "links",
        "pages/s",
        "p50",
        "p99",
    )
    print(f"{'F1':12}", *(f"{name[:8]:>8}" for name in head))
    for name, table in scored.items():
        mixed, news = table.get("mixed", {}), table.get("news", {})
        cells = [mixed.get("f1", 0), mixed.get("recall", 0), news.get("f1", 0)]
        cells += [table.get(group, {}).get("f1", 0) for group in _GROUPS]
        cells += [mixed.get(f"{kept}_kept", 0) for kept in ("headings", "code", "links")]
        speed = [
            mixed.get("pages_per_second", 0),
            mixed.get("cpu_ms_p50", 0),
            mixed.get("cpu_ms_p99", 0),
        ]
        print(f"{name:12}", *(f"{c:8.3f}" for c in cells), *(f"{s:8.1f}" for s in speed))


def _print_hostile(worst: dict[str, dict[str, hostile.Outcome]], names: list[str]) -> None:
    print(f"{'hostile':14}", *(f"{name:>20}" for name in names))
    for page, row in worst.items():
        print(f"{page:14}", *(f"{row[name]!s:>20}" for name in names))


if __name__ == "__main__":
    main()
