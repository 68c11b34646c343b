"""Workers as real processes: isolation, death, lateness, cancellation, and no orphan."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from web_tools._extract_page import extract_page
from web_tools._extract_pool import Pool, PoolLimits, Worker
from web_tools.extract import (
    Extracted,
    ExtractionFailed,
    ExtractLimits,
    Extractor,
    FailureReason,
    TextOrigin,
    UnsupportedContent,
)

URL = "https://site.example/"
ROOT = Path(__file__).resolve().parents[3]
PAGE = b"<title>T</title><h1>Tides</h1><p>" + b"plain words " * 60 + b"</p>"
IN_WORKERS = ExtractLimits(inline=False)
ONE = ExtractLimits(inline=False, workers=1)
SLOW = b"<table>" + (b"<tr>" + b"<td>x" * 100) * 2_500
"""Takes a worker some hundred milliseconds: time to do something to it."""


async def read(extractor: Extractor, body: bytes = PAGE) -> Extracted:
    return await extractor.extract(body, content_type="text/html", url=URL)


def pids(extractor: Extractor) -> set[int]:
    return {worker.pid for worker in (*extractor._pool._idle, *extractor._pool._busy)}


async def busy_pid(extractor: Extractor) -> int:
    """The process of the first page under way."""
    # The pool has no event for this: only a test wants to know when a worker is busy.
    while not extractor._pool._busy:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    (worker,) = extractor._pool._busy
    await asyncio.sleep(0.02)
    return worker.pid


def test_a_worker_gives_what_the_host_would() -> None:
    """The same page, the same result, in either place."""

    async def main() -> None:
        async with Extractor(IN_WORKERS) as extractor:
            assert extract_page(PAGE, "text/html", URL) == await read(extractor)
            with pytest.raises(UnsupportedContent):
                await read(extractor, b"%PDF-1.4")

            assert len(pids(extractor)) == 1

    asyncio.run(main())


def test_no_process_is_started_for_bounded_pages() -> None:
    """Workers are lazy: small pages never need one."""

    async def main() -> None:
        async with Extractor() as extractor:
            await read(extractor)

            assert set() == pids(extractor)

    asyncio.run(main())


def test_pages_share_no_more_than_the_allowed_workers() -> None:
    """Twelve pages at once use two processes, and all are answered."""

    async def main() -> None:
        async with Extractor(IN_WORKERS) as extractor:
            results = await asyncio.gather(*(read(extractor) for _ in range(12)))

            assert len({result.text for result in results}) == 1
            assert len(pids(extractor)) == 2

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_worker_that_dies_fails_its_page_only(number: signal.Signals) -> None:
    """Row 39: the other pages of the batch and the host go on."""

    async def main() -> None:
        async with Extractor(IN_WORKERS) as extractor:
            await asyncio.gather(read(extractor), read(extractor))
            # Stopped, so that the page is under way for as long as it takes us to do something to it.
            workers = pids(extractor)
            for process in workers:
                os.kill(process, signal.SIGSTOP)
            doomed = asyncio.create_task(read(extractor, SLOW))
            os.kill(await busy_pid(extractor), number)
            for process in workers:
                os.kill(process, signal.SIGCONT)
            others = await asyncio.gather(*(read(extractor) for _ in range(4)))

            assert all("plain words" in other.text for other in others)
            with pytest.raises(ExtractionFailed) as caught:
                await doomed
            assert FailureReason.WORKER_DIED is caught.value.reason
            assert "plain words" in (await read(extractor)).text

    asyncio.run(main())


def test_a_worker_that_died_while_idle_is_replaced() -> None:
    """No page is given to a dead worker."""

    async def main() -> None:
        async with Extractor(ONE) as extractor:
            await read(extractor)
            (process,) = pids(extractor)
            os.kill(process, signal.SIGKILL)
            # Nobody else takes note of its end.
            while is_running(process):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            result = await read(extractor)

            assert "plain words" in result.text
            assert process not in pids(extractor)

    asyncio.run(main())


def test_a_late_page_is_killed_and_answered_by_the_stripper() -> None:
    """The worker is stopped, so it is late; the page's text comes back without its markup."""
    limits = ExtractLimits(inline=False, workers=1, page_seconds=0.4, strip_seconds=60.0)

    async def main() -> None:
        async with Extractor(limits) as extractor:
            await read(extractor)
            (process,) = pids(extractor)
            os.kill(process, signal.SIGSTOP)
            result = await read(extractor, PAGE * 40_000)

            assert TextOrigin.STRIPPED is result.origin
            assert "plain words" in result.text
            assert not is_running(process)

    asyncio.run(main())


def test_a_page_that_cannot_even_be_stripped_in_time_fails() -> None:
    """No third attempt."""
    limits = ExtractLimits(inline=False, workers=1, page_seconds=0.001, strip_seconds=0.001)

    async def main() -> None:
        async with Extractor(limits) as extractor:
            with pytest.raises(ExtractionFailed) as caught:
                await read(extractor, SLOW)

            assert FailureReason.TIMEOUT is caught.value.reason

    asyncio.run(main())


def test_cancelling_a_page_leaves_the_pool_usable() -> None:
    """A half-read answer never reaches the next page."""

    async def main() -> None:
        async with Extractor(ONE) as extractor:
            await read(extractor)
            for delay in (0.0, 0.01, 0.05):
                page = asyncio.create_task(read(extractor, SLOW))
                await asyncio.sleep(delay)
                page.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await page

                assert "plain words" in (await read(extractor)).text

    asyncio.run(main())


def test_a_page_waiting_for_a_worker_can_be_cancelled() -> None:
    """It leaves the queue; the page under way is not disturbed."""

    async def main() -> None:
        async with Extractor(ONE) as extractor:
            first = asyncio.create_task(read(extractor, SLOW))
            await asyncio.sleep(0.01)
            second = asyncio.create_task(read(extractor))
            await asyncio.sleep(0.01)
            second.cancel()

            assert (await first).text
            assert "plain words" in (await read(extractor)).text

    asyncio.run(main())


def test_a_worker_is_recycled_after_its_pages() -> None:
    """What a page left behind in a process does not stay."""
    limits = ExtractLimits(inline=False, workers=1, pages_per_worker=2)

    async def main() -> None:
        seen = set()
        async with Extractor(limits) as extractor:
            for _ in range(4):
                await read(extractor)
                seen |= pids(extractor)

        assert len(seen) == 2
        assert not any(is_running(process) for process in seen)

    asyncio.run(main())


def test_closing_kills_every_worker_and_fails_pages_under_way() -> None:
    """After it no process is left, and a further page fails as closed."""

    async def main() -> None:
        extractor = Extractor(IN_WORKERS)
        await asyncio.gather(read(extractor), read(extractor))
        processes = pids(extractor)
        page = asyncio.create_task(read(extractor, SLOW))
        await busy_pid(extractor)
        await extractor.aclose()
        await extractor.aclose()

        for waited in (
            page,
            read(extractor),
            Extractor.extract(extractor, b"", content_type=None, url=URL),
        ):
            with pytest.raises(ExtractionFailed) as caught:
                await waited
            assert FailureReason.CLOSED is caught.value.reason
        assert not any(is_running(process) for process in processes)

    asyncio.run(main())


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/true"])
def test_a_worker_that_cannot_start_means_a_failed_page(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedded Python may have no executable, and a frozen host's ends instead of serving."""
    monkeypatch.setattr(sys, "executable", executable)

    async def main() -> None:
        async with Extractor(IN_WORKERS) as extractor:
            with pytest.raises(ExtractionFailed) as caught:
                await read(extractor)
            assert FailureReason.WORKER_UNAVAILABLE is caught.value.reason

    asyncio.run(main())


def test_a_worker_sees_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is made from nothing."""
    monkeypatch.setenv("MODEL_API_KEY", "secret-value")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret-value@proxy.example")

    async def main() -> None:
        async with Extractor(ONE) as extractor:
            await read(extractor)
            (process,) = pids(extractor)
            environment = proc(process, "environ")

            assert "secret-value" not in environment
            assert "PATH=" not in environment

    asyncio.run(main())


def test_a_worker_has_given_up_memory_files_and_processor_time() -> None:
    """The limits of a running worker, as the system tells them."""

    async def main() -> None:
        async with Extractor(ONE) as extractor:
            await read(extractor)
            (process,) = pids(extractor)
            limits = proc(process, "limits")

        rows = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()}
        assert [str(1024**3)] * 2 == rows["Max address space"]
        assert ["0", "0"] == rows["Max core file size"]
        assert ["0", "0"] == rows["Max open files"]
        assert ["0", "0"] == rows["Max file size"]
        assert int(rows["Max cpu time"][0]) < 60

    asyncio.run(main())


def test_a_confined_process_can_open_neither_sockets_nor_files() -> None:
    """What a taken-over worker could do with the network: nothing."""
    script = """
        import errno, socket
        from web_tools._worker import confine
        confine()
        for attempt in (socket.socket, lambda: open("/etc/passwd"), socket.socketpair):
            try:
                attempt()
            except OSError as error:
                assert error.errno == errno.EMFILE, error
            else:
                raise SystemExit(1)
    """

    assert python(script).returncode == 0


def test_a_confined_worker_reads_every_charset() -> None:
    """What reading needs is imported before nothing can be opened any more."""
    script = """
        from web_tools import _worker
        _worker._warm_up()
        _worker.confine()
        from web_tools._charset_labels import CODECS
        from web_tools._extract_page import extract_page
        for label in CODECS:
            for body in (b"<p>text <b>b</b>" + bytes(range(128, 256)) * 9, b"x\\xed\\xa0\\x80" * 99, b"\\x1b$B" * 9):
                for kind in ("html", "plain"):
                    extract_page(body, f"text/{kind}; charset={label}", "http://a.example/")
    """
    done = python(script)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    "ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()"]
)
def test_no_worker_outlives_its_host(ending: str) -> None:
    """However the host ends, also without closing anything."""
    script = f"""
        import asyncio, os, signal, sys
        from web_tools.extract import Extractor, ExtractLimits
        async def main():
            extractor = Extractor(ExtractLimits(inline=False))
            page = dict(content_type="text/html", url="http://a.example/")
            await asyncio.gather(*(extractor.extract(b"<p>x", **page) for _ in range(2)))
            print(*(w.pid for w in extractor._pool._idle), flush=True)
            {ending}
        asyncio.run(main())
    """
    done = python(script)
    processes = [int(word) for word in done.stdout.split()]

    assert len(processes) == 2
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, processes))


def test_a_program_without_an_importable_main_module_can_extract() -> None:
    """From standard input, as in a REPL: nothing of the host's main module is run again."""
    script = """
        import asyncio
        from web_tools.extract import Extractor, ExtractLimits
        print("started")
        async def main():
            async with Extractor(ExtractLimits(inline=False)) as extractor:
                result = await extractor.extract(b"<p>read me", content_type="text/html", url="http://a.example/")
                print(result.text)
        asyncio.run(main())
    """
    done = python(script, by_input=True)

    assert ["started", "read me"] == done.stdout.split("\n")[:2]


def python(script: str, *, by_input: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program as a host would, with the repository as its only addition to the path."""
    text = textwrap.dedent(script)
    arguments = ["-"] if by_input else ["-c", text]
    return subprocess.run(
        [sys.executable, *arguments],
        input=text if by_input else "",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
    )


def proc(process: int, name: str) -> str:
    """What the system tells of a process."""
    return (Path("/proc") / str(process) / name).read_text()


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in {"Z", "X"}


def test_a_loop_that_ends_leaves_no_socket_of_a_worker() -> None:
    """Its last worker is thrown away in the last moment: the task that waits for it never runs."""

    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    async def main() -> Worker:
        pool = Pool(PoolLimits(workers=1))
        worker = pool._take()
        await worker.wait_ready()
        pool._put_back(worker, healthy=False)
        for reaping in tuple(pool._reaping):
            reaping.cancel()
        return worker

    before = descriptors()
    worker = asyncio.run(main())

    assert before == descriptors()
    # Killed, though nobody has waited for it.
    assert -signal.SIGKILL == worker._process.wait(5)
