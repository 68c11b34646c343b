"""Work that blocks, in a thread, such that nobody goes on before it has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

__all__ = ("whole",)

_T = TypeVar("_T")


async def whole(work: Callable[[], _T]) -> _T:
    """What *work* returns, run in a thread.

    A thread cannot be stopped: when the caller is cancelled, what it writes must be there before
    anyone goes on.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work has ended.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Cancelled again meanwhile: it is one cancellation to the caller.
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
