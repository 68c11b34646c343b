"""Look-ups in threads of our own: shared out between runs, whatever one of them waits for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from egress import resolver as resolver_module
from egress.resolver import Lookups, SystemResolver


class _Silent:
    """A name server that answers when it is told to, and counts who asks."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, host: str, port: int) -> Sequence[str]:
        with self._lock:
            self.asked.append(host)
        self.answer.wait(20)
        return [f"{host}:{port}"]


def _at_once(host: str, port: int) -> Sequence[str]:
    return [f"{host}:{port}"]


async def _until(silent: _Silent, count: int) -> None:
    async with asyncio.timeout(30):
        # Threads tell of nothing that could be awaited.
        while len(silent.asked) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def test_one_owner_does_not_starve_another() -> None:
    """Look-ups that hang fill the share of their owner, and the room of all, and no more."""
    silent = _Silent()

    async def main() -> None:
        lookups = Lookups(per_owner=3, in_all=4)
        stuck = [
            asyncio.ensure_future(lookups.run(owner, silent, "a", 1))
            for owner in ("one", "two")
            for _ in range(50)
        ]
        await _until(silent, 4)
        async with asyncio.timeout(30):
            # The third has one of its own always, though there is no room left in all.
            assert ["b:2"] == list(await lookups.run("three", _at_once, "b", 2))
        assert 4 == len(silent.asked)
        silent.answer.set()
        assert [["a:1"]] * 100 == [list(found) for found in await asyncio.gather(*stuck)]
        assert not lookups._waiting
        assert not lookups._running

    asyncio.run(main())


@pytest.mark.parametrize(("owners", "started"), [(1, 8), (8, 64), (10, 66)])
def test_the_threads_have_a_bound_without_being_asked_for_one(owners: int, started: int) -> None:
    """Eight of one owner, 64 of all, and above these one for whoever has none."""
    silent = _Silent()

    async def main() -> None:
        lookups = Lookups()
        stuck = [
            asyncio.ensure_future(lookups.run(owner, silent, "a", 1))
            for owner in range(owners)
            for _ in range(20)
        ]
        await _until(silent, started)
        # Who runs is counted before its thread starts.
        assert started == lookups._count == sum(lookups._running.values())
        silent.answer.set()
        await asyncio.gather(*stuck)

    asyncio.run(main())


def test_who_has_given_up_is_still_counted_and_never_started_twice() -> None:
    """A deadline ends the wait and not the thread; what had not begun is not begun any more."""
    silent = _Silent()
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        lookups = Lookups(per_owner=2, in_all=64)
        waits = [asyncio.ensure_future(lookups.run("one", silent, str(n), 1)) for n in range(5)]
        await _until(silent, 2)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert not lookups._waiting
        later = asyncio.ensure_future(lookups.run("one", silent, "later", 1))
        await asyncio.sleep(0.05)
        assert 2 == len(silent.asked)
        silent.answer.set()
        assert ["later:1"] == list(await later)
        assert ["0", "1", "later"] == sorted(silent.asked)
        # What was found for those who have left is nobody's, and no error.
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [] == told


def test_who_has_given_up_keeps_nobody_else_waiting() -> None:
    """An owner with nothing left to do is passed over by the turns."""
    silent = _Silent()

    async def main() -> None:
        lookups = Lookups(per_owner=1, in_all=1)
        running = asyncio.ensure_future(lookups.run("one", silent, "a", 1))
        waiting = asyncio.ensure_future(lookups.run("one", silent, "a", 1))
        await _until(silent, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        silent.answer.set()
        await running
        async with asyncio.timeout(30):
            assert ["b:2"] == list(await lookups.run("two", _at_once, "b", 2))

    asyncio.run(main())


def test_a_look_up_without_a_thread_fails_and_frees_its_place() -> None:
    """A machine that gives no thread is an error of the look-up, and not one for ever."""

    async def main() -> None:
        lookups = Lookups(per_owner=1, in_all=1)
        # No machine has room for such a stack.
        before = threading.stack_size(1 << 50)
        try:
            for _ in range(3):
                with pytest.raises(OSError, match="no thread"):
                    await lookups.run("one", _at_once, "a", 1)
        finally:
            threading.stack_size(before)
        assert not lookups._running
        assert ["a:1"] == list(await lookups.run("one", _at_once, "a", 1))

    asyncio.run(main())


def test_turns_are_taken() -> None:
    """Of two owners that wait, neither comes twice before the other has come once."""
    order: list[str] = []

    def look_up(host: str, port: int) -> Sequence[str]:
        del port
        order.append(host)
        return []

    async def main() -> None:
        held, last = _Silent(), _Silent()
        # One place is left beside what is held, so that one look-up follows another.
        lookups = Lookups(per_owner=8, in_all=3)
        holding = [asyncio.ensure_future(lookups.run(owner, held, "x", 1)) for owner in ("a", "b")]
        await _until(held, 2)
        holding.append(asyncio.ensure_future(lookups.run("a", last, "x", 1)))
        await _until(last, 1)
        jobs = [
            asyncio.ensure_future(lookups.run(owner, look_up, owner, 1))
            for owner in ("a", "a", "a", "b", "b", "b")
        ]
        await asyncio.sleep(0)
        last.answer.set()
        await asyncio.gather(*jobs)
        assert ["a", "b"] * 3 == order
        held.answer.set()
        await asyncio.gather(*holding)

    asyncio.run(main())


def test_an_error_is_the_waiters() -> None:
    """And the place is free again."""

    def fail(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_AGAIN, f"{host} {port}")

    async def main() -> None:
        lookups = Lookups(per_owner=1, in_all=1)
        for _ in range(3):
            with pytest.raises(socket.gaierror):
                await lookups.run("one", fail, "a", 1)
        assert not lookups._running

    asyncio.run(main())


def test_a_look_up_that_hangs_keeps_no_loop_from_ending() -> None:
    """Neither `asyncio.run` nor the process waits for it."""
    silent = _Silent()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Lookups().run("one", silent, "a", 1), 0.05)

    asyncio.run(main())
    assert all(each.daemon for each in threading.enumerate() if each.name == "egress-lookup")
    # Its thread tells a loop that is closed, and that is no error.
    silent.answer.set()
    for each in threading.enumerate():
        if each.name == "egress-lookup":
            each.join(5)


def test_a_resolver_takes_threads_from_the_shares_that_it_is_given() -> None:
    """Not from those of the process: there is no state that it has to have in common with others."""

    class Counting(Lookups):
        async def run(self, owner: Any, look_up: Any, host: str, port: int) -> Any:
            asked.append((owner, host))
            return await super().run(owner, look_up, host, port)

    asked: list[tuple[Any, str]] = []
    shares = Counting()
    one, two = SystemResolver(shares), SystemResolver(shares)
    asyncio.run(one.resolve("localhost", 80))
    asyncio.run(two.resolve("localhost", 80))

    # Each in its own name: what one of them waits for is not taken from the other's share.
    assert asked == [(one, "localhost"), (two, "localhost")]


def test_the_system_resolver() -> None:
    """Answers addresses as text, without the pool of the loop."""

    async def main() -> None:
        found = await SystemResolver().resolve("localhost", 80)
        assert set(found) & {"127.0.0.1", "::1"}

    asyncio.run(main())


def test_a_scope_id_survives_the_system_resolver() -> None:
    """So that R10 can refuse it."""
    told = resolver_module._address_text
    assert told(("fe80::1", 80, 0, 2)) == "fe80::1%2"
    assert told(("fe80::1%eth0", 80, 0, 2)) == "fe80::1%eth0"
    assert told(("::1", 80, 0, 0)) == "::1"
    assert told(("127.0.0.1", 80)) == "127.0.0.1"
