"""Work in a thread that a caller who is cancelled, even twice, does not leave behind."""

import asyncio
import threading

import pytest

from runtime_pack.stores.threads import whole


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_cancelled_caller_goes_on_when_the_work_has_ended(times: int) -> None:
    """However often it is cancelled meanwhile."""
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(10)
        ended.set()

    async def main() -> None:
        caller = asyncio.ensure_future(whole(work))
        await asyncio.sleep(0.02)
        for _ in range(times):
            caller.cancel()
            await asyncio.sleep(0.01)
        assert not caller.done()
        gate.set()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert ended.is_set()

    asyncio.run(main())
