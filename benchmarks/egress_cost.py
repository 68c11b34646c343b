"""What one egress decision costs, and that it does not grow with the list.

Usage: python benchmarks/egress_cost.py [--entries 1,100,10000] [--json]

Also the processor time of `import egress` beyond that of its dependencies.

Microseconds of processor time per call, with no I/O: parsing a URL, the list's verdict, the
address verdict. Each list shape is built with 1 to 10,000 entries (the most a list may hold);
`growth` is the cost with the longest list over that with the shortest. Exit code 1 when a decision
that looks its answer up grows by more than 2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path is set above.
from benchmarks._yardstick import per_call_us
from egress import (
    EgressPolicy,
    check_address,
    check_answers,
    check_listed,
    parse_allowlist,
    parse_target,
    resolve_location,
)

MAX_GROWTH: Final = 2.0
IMPORTS: Final = 7


@attrs.frozen
class Shape:
    """A list of any length, and a URL to be judged under it.

    *grows* says that the cost is known to grow with the list; then it is printed, not judged.
    """

    name: str
    entries: Callable[[int], Iterable[str]]
    url: str
    grows: bool = False


@attrs.frozen(kw_only=True)
class Row:
    """One decision at each list length."""

    name: str
    us: dict[int, float]
    growth: float
    judged: bool

    @property
    def met(self) -> bool:
        """Whether it is flat where it has to be."""
        return not self.judged or self.growth <= MAX_GROWTH


def _hosts(count: int) -> list[str]:
    return [f"h{number}.example.org" for number in range(count)]


def _suffixes(count: int) -> list[str]:
    return [f"*.s{number}.example.org" for number in range(count)]


def _networks(count: int) -> list[str]:
    return [f"10.{number >> 8}.{number & 255}.0/24" for number in range(count)]


def _lengths(count: int) -> list[str]:
    """Networks of every prefix length from 8 to 32, around one address first."""
    return [
        f"{IPv4Address(((11 << 24) + (number << 8)) >> (32 - length) << (32 - length))}/{length}"
        for number, length in ((number, 8 + number % 25) for number in range(count))
    ]


def _ports(count: int) -> list[str]:
    return [f"one.example.org:{number + 1}" for number in range(count)]


SHAPES: Final = (
    Shape("hosts, first listed", _hosts, "http://h0.example.org/a"),
    Shape("hosts, not listed", _hosts, "http://other.example.org/a"),
    Shape("wildcards, listed", _suffixes, "http://a.b.c.s0.example.org/"),
    Shape("wildcards, apex only", _suffixes, "http://s0.example.org/"),
    Shape("networks, literal inside", _networks, "http://10.0.0.7/"),
    Shape("networks, literal outside", _networks, "http://192.168.0.1/"),
    Shape("prefix lengths, literal inside", _lengths, "http://11.0.0.7/", grows=True),
    Shape("ports of one host, listed", _ports, "http://one.example.org:1/"),
    Shape("ports of one host, not listed", _ports, "http://one.example.org:65535/"),
)

URLS: Final = (
    ("plain", "https://example.org/a/b.html"),
    ("with a query", "https://www.example.org/search?q=some+words&page=2#part"),
    ("to be percent-encoded", "https://example.org/caf\u00e9 menu/\u7f51\u9875"),
    ("international host", "https://b\u00fccher.example/"),
    ("IPv4 literal", "http://203.0.113.7:8080/"),
    ("IPv6 literal", "http://[2001:db8::1]/"),
    ("long", "https://example.org/" + "a" * 4000),
)

ADDRESSES: Final = (
    ("global IPv4", IPv4Address("93.184.215.14")),
    ("global IPv6", IPv6Address("2606:2800:21f:cb07:6820:80da:af6b:8b2c")),
    ("private IPv4, refused", IPv4Address("10.0.0.1")),
    ("metadata, refused", IPv4Address("169.254.169.254")),
    ("NAT64 of private, refused", IPv6Address("64:ff9b::a00:1")),
    ("global IPv4 as text", "93.184.215.14"),
)


def main() -> int:
    """Print the tables; 0 when every decision is flat where it has to be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", default="1,10,100,1000,10000")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    counts = sorted({int(count) for count in asked.entries.split(",")})
    single = {**parse_costs(), **address_costs(), "import egress, beside attrs": import_us()}
    rows = [*(list_row(shape, counts) for shape in SHAPES), *building_rows(counts)]
    if asked.json:
        body = {"decisions": single, "lists": [attrs.asdict(row) for row in rows]}
        print(json.dumps(body, indent=2))
    else:
        _print(single, rows, counts)
    return 0 if all(row.met for row in rows) else 1


def parse_costs() -> dict[str, float]:
    """Parsing a URL, and joining a redirect."""
    costs = {f"parse: {name}": per_call_us(partial(parse_target, url)) for name, url in URLS}
    base = parse_target("https://example.org/a/b")
    costs["join: relative redirect"] = per_call_us(partial(resolve_location, base, "../c?d=e"))
    return costs


def address_costs() -> dict[str, float]:
    """The verdict on addresses under a short list."""
    policy = EgressPolicy(allowlist=parse_allowlist(["example.org", "127.0.0.0/8"]))
    target = parse_target("https://example.org/")
    costs = {
        f"address: {name}": per_call_us(partial(check_address, policy, address, host=target.host))
        for name, address in ADDRESSES
    }
    for count in (1, 8):
        answers = [f"93.184.215.{number}" for number in range(count)]
        costs[f"answers: {count}"] = per_call_us(partial(check_answers, policy, target, answers))
    loopback = IPv4Address("127.0.0.1")
    costs["address: listed loopback (R8)"] = per_call_us(
        partial(check_address, policy, loopback, host=target.host, target=target)
    )
    return costs


def import_us() -> float:
    """What a fresh process spends on the package; the smallest of several differences."""
    theirs, ours = (
        min(_process_us(code) for _ in range(IMPORTS))
        for code in ("import attrs, ipaddress, logging", "import egress")
    )
    return ours - theirs


def _process_us(code: str) -> float:
    told = "import time; started = time.process_time(); {}; print(time.process_time() - started)"
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", told.format(code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    )
    return float(done.stdout) * 1e6


def list_row(shape: Shape, counts: Sequence[int]) -> Row:
    """`check_listed` under lists of growing length."""
    target = parse_target(shape.url)
    costs: dict[int, float] = {}
    for count in counts:
        policy = EgressPolicy(allowlist=parse_allowlist(shape.entries(count)))
        costs[count] = per_call_us(partial(check_listed, policy, target))
    return _row(f"listed: {shape.name}", costs, judged=not shape.grows)


def building_rows(counts: Sequence[int]) -> list[Row]:
    """Reading a list, per entry, and intersecting two halves, per entry: flat is linear."""
    reading: dict[int, float] = {}
    meeting: dict[int, float] = {}
    ports: dict[int, float] = {}
    for count in counts:
        entries = _hosts(count)
        reading[count] = per_call_us(partial(parse_allowlist, entries)) / count
        meeting[count] = _intersecting(entries)
        ports[count] = _intersecting(_ports(count))
    return [
        _row("per entry: parse_allowlist", reading, judged=True),
        _row("per entry: intersect", meeting, judged=True),
        _row("per entry: intersect, ports of one host", ports, judged=True),
    ]


def _intersecting(entries: Sequence[str]) -> float:
    whole = parse_allowlist(entries)
    half = parse_allowlist(entries[: len(entries) // 2 + 1])
    return per_call_us(partial(whole.intersect, half)) / len(entries)


def _row(name: str, costs: dict[int, float], *, judged: bool) -> Row:
    first, last = min(costs), max(costs)
    return Row(name=name, us=costs, growth=costs[last] / costs[first], judged=judged)


def _print(single: dict[str, float], rows: Sequence[Row], counts: Sequence[int]) -> None:
    print("one decision, us of processor time (reference machine)")
    for name, cost in single.items():
        print(f"  {name:36} {cost:8.2f}")
    print("\nby the number of entries, us")
    print(f"  {'':36} " + " ".join(f"{count:>8}" for count in counts) + "   growth")
    for row in rows:
        figures = " ".join(f"{row.us[count]:8.2f}" for count in counts)
        word = "" if row.met else "  MISSED"
        print(f"  {row.name:36} {figures} {row.growth:8.2f}{word}")


if __name__ == "__main__":
    sys.exit(main())
