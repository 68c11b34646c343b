"""Hostile pages, each read by each reader in a process of its own that is ended when it is late.

As a script (`hostile.py READER`) it is that process: one page on standard input, one line out.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.reading import readers  # the path is set above

SECONDS = 5.0
MEMORY_BYTES = 1024 * 1024 * 1024
N = 100_000

PAGES: dict[str, Callable[[int], str]] = {
    "nested div": lambda n: "<div>" * n + "x",
    "unclosed b p": lambda n: "<b><p>x" * n,
    "font i": lambda n: "<font><i>" * 20_000 + "x" * (n > 0),
    "nested ul": lambda n: "<ul><li>x" * min(n, 20_000),
    "attributes": lambda n: "<div " + " ".join(f"a{i}=1" for i in range(n)) + ">x",
    "spaces": lambda n: "<p>" + " " * (50 * n) + "x",
    "entities": lambda n: "<p>" + "&amp;" * (10 * n),
    "less than": lambda n: "<" * (20 * n),
    "table": lambda n: "<table>" + ("<tr>" + "<td>x" * 300) * (n // 300),
    "nested table": lambda n: "<table><tr><td>a<td>b" * (n // 5),
    "links": lambda n: '<a href="/x">link</a> ' * n,
    "br": lambda n: "<br>" * (5 * n) + "x",
    "nested style": lambda n: '<div style="color:red;background:red">' * n + "x",
    "svg template": lambda n: "<svg><template>" * n + "x",
    "deep text": lambda n: "<div>" * 1_100 + "<p>deep</p>" + "</div>" * 1_100 + "<p>after</p>" * (n > 0),
}  # fmt: skip
"""Name -> the markup made of about *n* of the thing."""


@attrs.frozen(kw_only=True)
class Outcome:
    """How one page went: seconds of processor time, megabytes at the most, or what ended it."""

    seconds: float
    megabytes: float
    ended: str

    def __str__(self) -> str:
        """As a cell of the table."""
        return self.ended or f"{self.seconds:.2f} s {self.megabytes:.0f} MB"


def outcome(reader: str, page: str) -> Outcome:
    """Read one page in a process."""
    body = PAGES[page](N).encode()
    try:
        # Our own interpreter with our own module.
        done = subprocess.run(
            [sys.executable, __file__, reader],
            input=body,
            capture_output=True,
            timeout=2 * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(seconds=2 * SECONDS, megabytes=0, ended="late")
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        name = (
            last[0].partition(":")[0].rpartition(".")[2] if last else f"signal {-done.returncode}"
        )
        return Outcome(seconds=0, megabytes=0, ended=name or "ended")
    told = json.loads(done.stdout)
    ended = f"late ({told['seconds']:.0f} s)" if told["seconds"] > SECONDS else ""
    return Outcome(seconds=told["seconds"], megabytes=told["megabytes"], ended=ended)


def worst(names: Sequence[str]) -> dict[str, dict[str, Outcome]]:
    """Page -> reader -> how it went."""
    return {page: {name: outcome(name, page) for name in names} for page in PAGES}


def main() -> None:
    """Read standard input with one reader."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    read = readers.MAKERS[sys.argv[1]]()
    read(b"<p>warm</p>", "https://a.example/")
    body = sys.stdin.buffer.read()
    before = _peak_kilobytes()
    started = time.process_time()
    read(body, "https://a.example/")
    seconds = time.process_time() - started
    megabytes = (_peak_kilobytes() - before) / 1024
    print(json.dumps({"seconds": seconds, "megabytes": megabytes}))


def _peak_kilobytes() -> int:
    """Of this program: `ru_maxrss` counts what the starting process had as well."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])


if __name__ == "__main__":
    main()
