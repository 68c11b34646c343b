"""The cost of an event on the loop's path, and events verified, indexed and found per second.

Usage: python benchmarks/audit_log.py [--events 200000]

CPU of this process; writes go to a temporary folder. `plain` is a log without signer, `signed` has
one; both are flushed every four events, as a turn with one call does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runtime_pack.audit import AuditLog, LogSigner, verify_log
from runtime_pack.audit.facts import Wanted
from runtime_pack.audit.index import EventIndex
from runtime_pack.events import Entry, Event, EventCode

SIGNER = LogSigner("bench.example/log", bytes(32))
ARGS, POLICY = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def entry(number: int) -> Entry | Event:
    """A call's start or end; every fiftieth event is a denial."""
    subject = {"run": f"run-{number // 400:08x}", "step": f"t{number % 20}c1"}
    if number % 50 == 7:
        return Event(
            code=EventCode.EGR001D,
            subject=subject,
            object={"host": f"h{number % 977}.example", "port": 443, "tool": "web:read"},
            decision={"action": "deny", "enforced": True, "rule": "R4"},
            key=f"t{number}",
        )
    code = EventCode.STP001A if number % 2 else EventCode.STP002O
    body = {"tool": "lookup", "args_sha256": ARGS}
    return Entry(code, subject, body, {"action": "allow", "policy_sha256": POLICY}, f"t{number}")


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def write(path: Path, count: int, signer: LogSigner | None) -> None:
    """A log of so many events."""
    with AuditLog(path, signer=signer) as log:
        for number in range(count):
            log.take(entry(number))
            if number % 4 == 3:
                log.flush()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    count = parser.parse_args().events
    making = cpu(lambda: [entry(number) for number in range(count)])
    with tempfile.TemporaryDirectory() as folder:
        plain, signed = Path(folder) / "plain.jsonl", Path(folder) / "signed.jsonl"
        for name, path, signer in (("plain", plain, None), ("signed", signed, SIGNER)):
            spent = cpu(partial(write, path, count, signer)) - making
            print(f"{name}: {spent / count * 1e6:.1f} us CPU an event")
        chain = cpu(partial(verify_log, plain))
        whole = cpu(partial(verify_log, signed, keys=(SIGNER.key,)))
        print(f"verified, the chain: {count / chain:,.0f} events/s")
        print(f"verified, chain, tree and signatures: {count / whole:,.0f} events/s")
        with EventIndex(Path(folder) / "index.sqlite3") as index:
            print(f"indexed: {count / cpu(lambda: index.update((signed,))):,.0f} events/s")
            for name, wanted in (("last 50", Wanted()), ("one host", Wanted(host="h5.example"))):
                found = index.select(wanted, limit=50, newest=True)
                print(f"{name}: {cpu(partial(list, found)) * 1000:.1f} ms")
            top = cpu(partial(index.top, Wanted(denied=True), ("host", "rule"), 50))
            print(f"denials by host and rule: {top * 1000:.1f} ms")


if __name__ == "__main__":
    main()
