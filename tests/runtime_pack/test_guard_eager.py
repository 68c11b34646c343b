"""A task that takes its first step at once is a task like every other."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from runtime_pack.guard.eager import started

_T = TypeVar("_T")
WORD: contextvars.ContextVar[str] = contextvars.ContextVar("WORD", default="outer")


def start(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    return started(asyncio.get_running_loop(), work)


def test_work_that_need_not_wait_is_done_at_once() -> None:
    """Its result, or what it raised, is there before the event loop has had a turn."""

    async def gives() -> int:
        return 3

    async def raises() -> None:
        raise LookupError

    async def main() -> None:
        given, raised = start(gives()), start(raises())
        assert given.done()
        assert given.result() == 3
        assert isinstance(raised.exception(), LookupError)

    asyncio.run(main())


def test_the_current_task_is_one_from_the_first_step_to_the_last() -> None:
    """What is entered before the first wait can be left after it; the caller's task comes back."""

    async def work() -> list[asyncio.Task[Any] | None]:
        seen = [asyncio.current_task()]
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())
        return seen

    async def main() -> None:
        outer = asyncio.current_task()
        task = start(work())
        assert asyncio.current_task() is outer
        assert task in asyncio.all_tasks()
        assert await task == [task, task]

    asyncio.run(main())


def test_a_limit_of_the_work_stops_the_work_alone() -> None:
    """`asyncio.timeout` cancels the task it was entered in, which is not the caller's."""

    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        except TimeoutError:
            return "late"
        return "early"

    async def main() -> str:
        return await start(work())

    assert asyncio.run(main()) == "late"


def test_what_the_work_sets_in_its_context_does_not_leak() -> None:
    """Neither in the first step nor later; the work itself keeps it."""

    async def work() -> str:
        WORD.set("inner")
        await asyncio.sleep(0)
        return WORD.get()

    async def main() -> tuple[str, str]:
        task = start(work())
        before = WORD.get()
        return before, await task

    assert asyncio.run(main()) == ("outer", "inner")


def test_work_can_be_cancelled_at_its_first_wait() -> None:
    """And what cancels itself in its first step is cancelled there."""

    async def work(*, alone: bool) -> None:
        task = asyncio.current_task()
        if alone and task is not None:
            task.cancel()
        await asyncio.sleep(60)

    async def main() -> None:
        cancelled, alone = start(work(alone=False)), start(work(alone=True))
        cancelled.cancel()
        await asyncio.wait({cancelled, alone})
        assert cancelled.cancelled()
        assert alone.cancelled()

    asyncio.run(main())


def test_starts_nest() -> None:
    """Work that starts work sees its own task again afterwards."""

    async def inner() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    async def outer() -> bool:
        own = asyncio.current_task()
        task = start(inner())
        return task.result() is task and asyncio.current_task() is own

    async def main() -> bool:
        return start(outer()).result()

    assert asyncio.run(main())


def test_a_loop_with_a_task_factory_makes_its_own_tasks() -> None:
    """A host that counts or names its tasks does so here too."""
    made: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **named)

    async def work() -> int:
        return 3

    async def main() -> tuple[int, int]:
        asyncio.get_running_loop().set_task_factory(factory)
        return await start(work()), len(made)

    assert asyncio.run(main()) == (3, 1)


def test_what_ends_in_its_first_step_ends_as_any_task_does() -> None:
    """What cancels itself and answers all the same is cancelled; who it told is told; what it raised is kept."""
    told: list[asyncio.Task[int]] = []

    async def work(*, cancels: bool) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(told.append)
        if cancels:
            task.cancel()
        return 3

    async def gives_up() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        answered, cancelled = start(work(cancels=False)), start(work(cancels=True))
        given_up = start(gives_up())
        assert answered.result() == 3
        assert cancelled.cancelled()
        assert given_up.cancelled()
        await asyncio.sleep(0)
        assert told == [answered, cancelled]

    asyncio.run(main())


def test_what_ends_the_process_comes_out_of_the_first_step() -> None:
    """As out of any task: it is not kept for somebody who may never ask."""
    begun: list[asyncio.Task[Any] | None] = []

    async def ends() -> None:
        begun.append(asyncio.current_task())
        raise SystemExit(3)

    async def main() -> None:
        own = asyncio.current_task()
        with pytest.raises(SystemExit):
            await start(ends())
        assert asyncio.current_task() is own
        (task,) = begun
        assert task is not None
        assert isinstance(task.exception(), SystemExit)

    asyncio.run(main())
