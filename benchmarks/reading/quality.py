"""Word F1 of extraction on labelled pages, and the CPU time it takes.

Run: python benchmarks/extraction.py [FOLDER] [--json] [--worst N]. The folder holds `wcxb-dev` and
`scrapinghub`; its README defines the measure: multiset of lower-case `\\w+` words per page, averaged,
link targets removed from Markdown before scoring.
"""

import argparse
import gzip
import json
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from web_tools._extract_page import extract_page  # the path is set above

FOLDER = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "data" / "pages"
"""Where the labelled pages are, beside the repository."""

_LINK_TARGET = re.compile(r"\]\([^)\s]*(?: \"[^\"]*\")?\)")
_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((\S+?)[\s)]")
_ROW = re.compile(r"^\|.*\|\s*$", re.MULTILINE)
_RULE = re.compile(r"^\|[\s:|-]*\|\s*$")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@attrs.frozen(kw_only=True)
class Page:
    """One labelled page."""

    group: str
    identity: str
    url: str
    body: bytes
    expected: str
    markdown: str


@attrs.frozen(kw_only=True)
class Score:
    """How one page went."""

    page: Page
    f1: float
    precision: float
    recall: float
    cpu_ms: float
    kept: dict[str, float]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worst", type=int, default=0, help="also list the N worst pages")
    arguments = parser.parse_args()
    scores = [score(page) for page in pages(arguments.folder)]
    table = summary(scores)
    if arguments.json:
        print(json.dumps(table, indent=2))
        return
    for name, row in table.items():
        print(f"{name:14}", "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    for one in sorted(scores, key=lambda item: item.f1)[: arguments.worst]:
        print(
            f"{one.f1:.2f} P {one.precision:.2f} R {one.recall:.2f}", one.page.group, one.page.url
        )


def pages(folder: Path) -> Iterator[Page]:
    """Every labelled page under *folder*."""
    with gzip.open(folder / "wcxb-dev" / "expected.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            yield _page(folder / "wcxb-dev", row["id"], row["type"], row, "text")
    with gzip.open(folder / "scrapinghub" / "expected.json.gz", "rt") as file:
        for identity, row in json.load(file).items():
            yield _page(folder / "scrapinghub", identity, "news", row, "articleBody")


def _page(folder: Path, identity: str, group: str, row: dict[str, str], key: str) -> Page:
    with gzip.open(folder / f"{identity}.html.gz") as file:
        body = file.read()
    return Page(
        group=group,
        identity=identity,
        url=row["url"],
        body=body,
        expected=row[key],
        markdown=row.get("markdown") or "",
    )


def ours(body: bytes, url: str) -> str:
    """What our extraction makes of a page."""
    return extract_page(body, "text/html", url).text


def score(page: Page, read: Callable[[bytes, str], str] = ours) -> Score:
    """Extract one page and compare."""
    started = time.process_time()
    text = read(page.body, page.url)
    cpu_ms = (time.process_time() - started) * 1e3
    got, want = words(_LINK_TARGET.sub("]", text)), words(page.expected)
    both = sum((got & want).values())
    precision, recall = both / max(1, got.total()), both / max(1, want.total())
    f1 = 2 * precision * recall / (precision + recall) if both else float(got == want)
    return Score(
        page=page,
        f1=f1,
        precision=precision,
        recall=recall,
        cpu_ms=cpu_ms,
        kept=structure_kept(text, page.markdown),
    )


def words(text: str) -> Counter[str]:
    """The multiset of words."""
    return Counter(_WORD.findall(text.lower()))


def structure_kept(text: str, markdown: str) -> dict[str, float]:
    """Share of the expected headings, code lines, links and table rows that are in *text*."""
    kept = {}
    for name, parts in (
        ("headings", headings),
        ("code", code_lines),
        ("links", link_targets),
        ("rows", rows),
    ):
        want = parts(markdown)
        if want:
            kept[name] = (want & parts(text)).total() / want.total()
    return kept


def headings(markdown: str) -> Counter[str]:
    """Headings by their words."""
    found = (
        " ".join(_WORD.findall(_LINK_TARGET.sub("]", h).lower()))
        for h in _HEADING.findall(markdown)
    )
    return Counter(filter(None, found))


def code_lines(markdown: str) -> Counter[str]:
    """Lines inside fences."""
    lines = (line.strip() for block in _FENCE.findall(markdown) for line in block.split("\n"))
    return Counter(filter(None, lines))


def link_targets(markdown: str) -> Counter[str]:
    """Absolute targets of links."""
    return Counter(
        target.rstrip("/") for target in _LINK.findall(markdown) if target.startswith("http")
    )


def rows(markdown: str) -> Counter[str]:
    """Table rows by their words."""
    found = (
        " ".join(_WORD.findall(_LINK_TARGET.sub("]", row).lower()))
        for row in _ROW.findall(markdown)
        if not _RULE.match(row)
    )
    return Counter(filter(None, found))


def summary(scores: list[Score]) -> dict[str, dict[str, float]]:
    """Averages per page type, for all mixed pages and for news."""
    groups: dict[str, list[Score]] = defaultdict(list)
    for one in scores:
        groups[one.page.group].append(one)
        if one.page.group != "news":
            groups["mixed"].append(one)
    return {name: _row(members) for name, members in sorted(groups.items())}


def _row(members: list[Score]) -> dict[str, float]:
    times = sorted(one.cpu_ms for one in members)
    row = {
        "pages": float(len(members)),
        "f1": statistics.fmean(one.f1 for one in members),
        "precision": statistics.fmean(one.precision for one in members),
        "recall": statistics.fmean(one.recall for one in members),
        "pages_per_second": 1e3 / max(statistics.fmean(times), 1e-6),
        "cpu_ms_p50": statistics.median(times),
        "cpu_ms_p99": times[int(len(times) * 0.99)],
    }
    for name in ("headings", "code", "links", "rows"):
        kept = [one.kept[name] for one in members if name in one.kept]
        if kept:
            row[f"{name}_kept"] = statistics.fmean(kept)
    return row


if __name__ == "__main__":
    main()
