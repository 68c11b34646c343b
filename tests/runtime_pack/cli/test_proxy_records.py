"""Lines of the access log: written beside the loop, bounded in time, and never lost in silence."""

import asyncio
import json
import os
import threading
from pathlib import Path

import click
import pytest

from egress import (
    PUBLIC_HOSTS,
    AddressPolicy,
    Deny,
    EgressPolicy,
    parse_allowlist,
    parse_target,
)
from egress.decision import check_listed
from egress.policy import layered_policy
from egress.proxy import ProxyDenial
from egress.violation import violation_of
from runtime_pack import AuditLog, PolicyFile, parse_policy
from runtime_pack.cli._proxy_config import single_run
from runtime_pack.cli._proxy_records import LineWriter, Recorder, access_log, egress_sha256


def _filled() -> tuple[int, int]:
    """Both ends of a pipe that takes no byte more."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write, True)
    return read, write


class _MovableLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on."""

    moved: float = 0.0

    def time(self) -> float:
        return super().time() + self.moved


def test_lines_are_written_whole_and_in_order(tmp_path: Path) -> None:
    """Until the writer is closed, which waits for the last one."""
    lines = [b"%d\n" % number for number in range(2000)]

    async def main(writer: LineWriter) -> None:
        for line in lines:
            writer.write(line)

    with access_log(str(tmp_path / "log")) as writer:
        assert writer is not None
        asyncio.run(main(writer))

    assert b"".join(lines) == (tmp_path / "log").read_bytes()


def test_a_line_that_cannot_be_written_is_told_at_once() -> None:
    """To whoever watches, without another line, and to whoever writes the next one."""
    told: list[Exception] = []
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(descriptor)

    async def main() -> None:
        failed = asyncio.Event()

        def tell(error: Exception) -> None:
            told.append(error)
            failed.set()

        writer.watch(tell)
        writer.write(b"x\n")
        async with asyncio.timeout(120):
            await failed.wait()
        with pytest.raises(OSError, match="space"):
            writer.write(b"y\n")

    asyncio.run(main())
    with pytest.raises(OSError, match="space"):
        writer.close()
    os.close(descriptor)
    assert 1 == len(told)


def test_a_pipe_that_nobody_reads_stops_neither_the_loop_nor_the_end() -> None:
    """The loop goes on, whoever watches is told in time, and closing does not wait for ever."""
    read, write = _filled()
    writer = LineWriter(write, seconds=0.2)

    async def main() -> None:
        failed = asyncio.Event()
        writer.watch(lambda _: failed.set())
        # In the loop's own thread: one that waited here would wait for ever.
        writer.write(b"x\n")
        async with asyncio.timeout(120):
            await failed.wait()

    asyncio.run(main())
    with pytest.raises(OSError, match="nobody reads"):
        writer.close()
    # Its thread writes to a pipe that is gone, and ends.
    os.close(read)
    for each in threading.enumerate():
        if each.name == "lines":
            each.join(60)
    os.close(write)


def test_closing_waits_for_a_while_and_says_what_was_lost() -> None:
    """Also where no loop is left that would have noticed."""
    read, write = _filled()
    writer = LineWriter(write, seconds=0.2)

    async def main() -> None:
        writer.write(b"x\n")

    asyncio.run(main())
    with pytest.raises(OSError, match="nobody reads"):
        writer.close()
    os.close(read)
    for each in threading.enumerate():
        if each.name == "lines":
            each.join(60)
    os.close(write)


def test_a_slow_reader_is_no_stuck_one() -> None:
    """As long as something gets out in its time, nothing has failed."""
    read, write = _filled()
    writer = LineWriter(write, seconds=100)
    told: list[Exception] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _MovableLoop)
        writer.watch(told.append)
        for _ in range(7):
            writer.write(bytes(4095) + b"\n")
        for number in range(1, 7):
            os.read(read, 4096)
            # The thread that writes tells nobody.
            while writer._written < number:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            loop.moved += 60
            await asyncio.sleep(0.005)

    with asyncio.Runner(loop_factory=_MovableLoop) as runner:
        runner.run(main())
    os.read(read, 4096)
    writer.close()
    os.close(read)
    os.close(write)
    assert [] == told


def test_what_waits_is_bounded() -> None:
    """A reader that is stuck does not fill the memory before it is found to be."""
    read, write = _filled()
    writer = LineWriter(write, most=3)

    async def main() -> None:
        for _ in range(3):
            writer.write(b"x\n")
        with pytest.raises(OSError, match="too many"):
            writer.write(b"x\n")

    asyncio.run(main())
    os.close(read)
    with pytest.raises(OSError, match="pipe"):
        writer.close()
    os.close(write)


def test_a_descriptor_that_does_not_wait_is_waited_for() -> None:
    """Somebody who shares it may have made it so."""
    read, write = _filled()
    os.set_blocking(write, False)
    writer = LineWriter(write)

    async def main() -> None:
        writer.write(b"last\n")
        await asyncio.sleep(0.05)

    asyncio.run(main())
    received = b""
    while not received.endswith(b"last\n"):
        received = os.read(read, 65_536)
    writer.close()
    os.close(read)
    os.close(write)


def test_a_named_pipe_without_a_reader_is_refused(tmp_path: Path) -> None:
    """Opening it would wait for one."""
    os.mkfifo(tmp_path / "pipe")

    with (
        pytest.raises(click.ClickException, match="cannot be opened"),
        access_log(str(tmp_path / "pipe")),
    ):
        pytest.fail("it was opened")


def test_what_was_not_written_at_the_end_is_told() -> None:
    """A proxy that stops without its last line stops with an error."""

    async def write(writer: LineWriter) -> None:
        writer.write(b"x\n")

    def run() -> None:
        with access_log("/dev/full") as writer:
            assert writer is not None
            asyncio.run(write(writer))

    with pytest.raises(click.ClickException, match="not written to its end"):
        run()


FILE = parse_policy('id = "house"\nversion = 7\nallow = ["a.test"]\n')


@pytest.mark.parametrize("policy", [None, FILE], ids=["options", "a file"])
def test_a_denial_names_the_policy_that_it_was_made_under(
    tmp_path: Path, policy: PolicyFile | None
) -> None:
    """The digest of what decides, for each run its own; and the file, where there is one."""
    runs = [
        single_run(
            run=name, task="", session="", token="t" * 32, allow=allow, address=AddressPolicy()
        )
        for name, allow in (("r1", ["a.test"]), ("r2", ["b.test"]))
    ]
    denied = check_listed(runs[0].policy, parse_target("http://evil.test/"))
    assert isinstance(denied, Deny)
    violation = violation_of(denied, parse_target("http://evil.test/"))

    async def main(log: AuditLog) -> None:
        recorder = Recorder(log, None, runs, policy=policy)
        for number, run in enumerate(runs):
            await recorder.denied(
                ProxyDenial(
                    run=run.run,
                    task="",
                    session="",
                    connection=number,
                    method="GET",
                    violation=violation,
                )
            )

    with AuditLog(tmp_path / "log") as log:
        asyncio.run(main(log))
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    told = [line["decision"] for line in lines if line.get("code") == "EGR001D"]

    assert [egress_sha256(run.policy) for run in runs] == [one["policy_sha256"] for one in told]
    assert told[0]["policy_sha256"] != told[1]["policy_sha256"]
    named = None if policy is None else {"id": "house", "version": 7, "sha256": policy.sha256}
    assert [one.get("policy") for one in told] == [named, named]


def test_the_digest_of_a_policy_is_of_every_rule_in_it() -> None:
    """Whatever decides makes another digest; the order of a list does not."""
    lists = (["a.test"], ["a.test", "b.test"], ["b.test"])
    switches = (
        AddressPolicy(),
        AddressPolicy(allowed_hosts=["a.test"]),
        AddressPolicy(allow_private_addresses=True),
        AddressPolicy(https_only=True),
    )
    policies = [
        EgressPolicy(allowlist=parse_allowlist(entries), address=address)
        for entries in lists
        for address in switches
    ]
    policies.append(EgressPolicy(allowlist=PUBLIC_HOSTS))
    policies.append(layered_policy({"task": ["a.test"], "run": ["a.test", "b.test"]}))

    assert len({egress_sha256(policy) for policy in policies}) == len(policies)
    swapped = EgressPolicy(allowlist=parse_allowlist(["b.test", "a.test"]))
    assert egress_sha256(swapped) == egress_sha256(policies[4])
