"""How the commands with a proxy record what it does: denials into the log, connections as lines.

Lines go to files, pipes and terminals that others hold: one that is stuck must not stop the loop,
and one that fails must stop the proxy. So a thread writes them, and the loop watches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import queue
import secrets
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import attrs
import click
import orjson

from egress.policy import EgressPolicy, PublicHosts
from egress.proxy import AccessRecord, ProxyDenial, ProxyRun
from runtime_pack.audit import AuditLog
from runtime_pack.events import Event
from runtime_pack.messages import Json
from runtime_pack.policy_file import PolicyFile
from runtime_pack.violations import violation_event

__all__ = ("STDERR", "LineWriter", "Recorder", "access_log")

STDERR: Final = "-"
_MOST_LINES: Final = 10_000
_STUCK_SECONDS: Final = 5.0


class LineWriter:
    """Writes lines to a descriptor without ever making the loop wait.

    Args:
        descriptor: Where to; it stays open and stays its owner's.
        most: Lines that may wait.
        seconds: How long the writing may stand still while lines wait.
    """

    def __init__(
        self, descriptor: int, *, most: int = _MOST_LINES, seconds: float = _STUCK_SECONDS
    ) -> None:
        self._descriptor = descriptor
        self._most = most
        self._seconds = seconds
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._given = 0
        # Counted by the thread alone.
        self._written = 0
        self._error: OSError | None = None
        self._failed: Callable[[Exception], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def watch(self, failed: Callable[[Exception], None]) -> None:
        """Calls *failed*, in the loop, as soon as a line cannot be written or does not get out."""
        self._failed = failed

    def write(self, line: bytes) -> None:
        """Takes one line. Called in the loop.

        Raises:
            OSError: An earlier one could not be written, or too many wait.
        """
        if self._error is not None:
            raise self._error
        if self._given - self._written >= self._most:
            raise OSError("too many lines wait to be written")
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            # A daemon: a reader that never comes keeps nobody from ending.
            self._thread = threading.Thread(target=self._work, name="lines", daemon=True)
            self._thread.start()
        self._given += 1
        self._lines.put(line)
        self._watch_progress()

    def close(self) -> None:
        """Waits for what is not written yet, for a while.

        Raises:
            OSError: Not every line was written.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is None:
            return
        self._lines.put(None)
        self._thread.join(self._seconds)
        if self._error is None and self._thread.is_alive():
            self._error = OSError("the lines do not get out: nobody reads them")
        if self._error is not None:
            raise self._error

    def _watch_progress(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(self._seconds, self._check, self._written)

    def _check(self, before: int) -> None:
        self._timer = None
        if self._given == self._written or self._error is not None:
            return
        if self._written == before:
            self._fail(OSError("the lines do not get out: nobody reads them"))
        else:
            self._watch_progress()

    def _fail(self, error: OSError) -> None:
        self._error = self._error or error
        if self._failed is not None:
            self._failed(self._error)

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                _write_whole(self._descriptor, line)
            except OSError as error:
                self._error = error
                self._tell(error)
                return
            self._written += 1

    def _tell(self, error: OSError) -> None:
        if self._loop is not None:
            # The loop may have ended meanwhile; then `close` tells.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._fail, error)


def _write_whole(descriptor: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            # Somebody who shares the descriptor has made it one that does not wait.
            select.select([], [descriptor], [])


@contextlib.contextmanager
def access_log(where: str | None) -> Iterator[LineWriter | None]:
    """The writer of the access log; None when none is kept.

    Raises:
        click.ClickException: It cannot be opened, or not all of it was written.
    """
    if where is None:
        yield None
        return
    try:
        descriptor = sys.stderr.fileno() if where == STDERR else _opened(where)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"the access log cannot be opened: {error}") from error
    writer = LineWriter(descriptor)
    try:
        yield writer
    except BaseException:
        # What ended the command is the news.
        with contextlib.suppress(OSError):
            writer.close()
        raise
    try:
        writer.close()
    except OSError as error:
        raise click.ClickException(f"the access log was not written to its end: {error}") from error
    if where != STDERR:
        os.close(descriptor)


def _opened(where: str) -> int:
    """Without waiting: a named pipe that nobody reads is an error and not a wait without end."""
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(where, flags, 0o600)
    os.set_blocking(descriptor, True)
    return descriptor


class Recorder:
    """Denials into the log of this process, connections into the access log, if one is kept.

    Each denial names the policy of its run: the digest of what decides, and the *policy* file that
    says it, if there is one.
    """

    def __init__(
        self,
        log: AuditLog,
        access: LineWriter | None,
        runs: Iterable[ProxyRun] = (),
        *,
        policy: PolicyFile | None = None,
    ) -> None:
        self._log = log
        self._access = access
        named: dict[str, Json] = {} if policy is None else {"policy": policy.ref.to_json()}
        self._policies: dict[str, dict[str, Json]] = {
            run.run: {"policy_sha256": egress_sha256(run.policy), **named} for run in runs
        }
        # Two proxies may serve one run, each with a connection 1: the key names the process too.
        self._instance = secrets.token_hex(4)

    def watch(self, failed: Callable[[Exception], None]) -> None:
        """Calls *failed* when a connection could not be recorded after all."""
        if self._access is not None:
            self._access.watch(failed)

    async def denied(self, denial: ProxyDenial) -> str:
        """Writes the one event; its key is its id, for it names the cause and is in the line."""
        key = f"proxy-{self._instance}-{denial.connection}"
        event = _denial_event(denial, key)
        policy = self._policies.get(denial.run, {})
        self._log.append(attrs.evolve(event, decision={**(event.decision or {}), **policy}))
        self._log.flush()
        return key

    def access(self, record: AccessRecord) -> None:
        """Writes one line."""
        if self._access is None:
            return
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        body = {"ts": now, **record.to_json()}
        self._access.write(orjson.dumps(body, option=orjson.OPT_SORT_KEYS) + b"\n")


def egress_sha256(policy: EgressPolicy) -> str:
    """Digest of the rules that decide where a run may go: of equal rules it is equal."""
    allow, address = policy.allowlist, policy.address
    said = {
        "allow": None if isinstance(allow, PublicHosts) else sorted(allow.entries),
        "layers": [[layer.name, sorted(layer.allowlist.entries)] for layer in policy.layers],
        "allowed_hosts": sorted(map(str, address.allowed_hosts)),
        "allow_private_addresses": address.allow_private_addresses,
        "https_only": address.https_only,
    }
    body = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _denial_event(denial: ProxyDenial, key: str) -> Event:
    violation = denial.violation
    subject: dict[str, Json] = {"run": denial.run, "executor": "egress-proxy"}
    named = {"task": denial.task, "session": denial.session}
    subject |= {name: value for name, value in named.items() if value}
    event = violation_event(violation, subject=subject, key=key)
    return attrs.evolve(event, object={**event.object, "method": denial.method})
