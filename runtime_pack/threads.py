"""A bounded number of daemon threads for code that blocks: never the event loop, never the exit.

A thread cannot be stopped from outside. What does not end in its time is left behind: its result
is dropped, a warning says so, and its thread stays taken until it ends, so that code that hangs
costs at most `limit` threads and not one a call. Daemon threads do not keep a process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeAlias

import attrs

from runtime_pack.errors import ContractError

__all__ = ("LEFT", "CancelledBefore", "IsOver", "NotBegun", "Outcome", "Threads")

_LOGGER: Final = logging.getLogger(__name__)
_IDLE_SECONDS: Final = 5.0

Outcome: TypeAlias = tuple[object, BaseException | None]
"""What the work gave, or what it raised."""


IsOver: TypeAlias = Callable[[], bool]
"""Whether work that was left behind has ended after all."""

LEFT: Final[contextvars.ContextVar[Callable[[IsOver], None] | None]] = contextvars.ContextVar(
    "LEFT", default=None
)
"""Who is told that work of this context goes on although nobody waits for it any more."""


class NotBegun(Exception):
    """No thread was free in time; the work was not begun and will not be."""


class CancelledBefore(asyncio.CancelledError):
    """The caller was cancelled before a thread was free; the work was not begun and will not be."""


class _Stage(Enum):
    """How far a job has got; `LEFT` is one whose caller has gone."""

    WAITING = auto()
    RUNNING = auto()
    LEFT = auto()
    DONE = auto()


@attrs.define(kw_only=True, eq=False)
class _Job:
    """Work for a thread, and the future of the one who waits for it."""

    name: str
    work: Callable[[], object]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome]
    stage: _Stage = _Stage.WAITING

    def is_over(self) -> bool:
        """Whether the work has ended, whoever heard of it."""
        return self.stage is _Stage.DONE

    def outcome(self) -> Outcome:
        """Do the work, in this thread."""
        try:
            return self.context.run(self.work), None
        # The host's code in a thread of ours: nothing that it raises may end the thread.
        except BaseException as error:  # noqa: BLE001
            return None, error

    def deliver(self, outcome: Outcome) -> None:
        """Tell whoever waits; an event loop that has closed is told nothing."""
        try:
            self.loop.call_soon_threadsafe(self._tell, outcome)
        except RuntimeError:
            _LOGGER.warning("%s ended after the event loop that waited for it", self.name)

    def _tell(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Threads:
    """At most *limit* threads, started when they are needed; shared by as many tools as you like.

    Use it from any number of event loops.

    Raises:
        ContractError: the limit is not a whole number from 1.
    """

    def __init__(self, limit: int = 4) -> None:
        if type(limit) is not int or limit < 1:
            raise ContractError("threads", "the limit is a whole number from 1")
        self.limit = limit
        self._jobs: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._alive = 0
        self._idle = 0
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """How many threads are taken by work that nobody waits for any more."""
        return self._abandoned

    async def run(self, work: Callable[[], object], *, name: str, seconds: float) -> Outcome:
        """What *work* gives or raises, from a thread.

        Raises:
            TimeoutError: the work had begun and did not end; its thread is left behind.
            NotBegun: no thread was free in time.
            asyncio.CancelledError: the caller was cancelled; work that had begun is left behind.
        """
        loop = asyncio.get_running_loop()
        job = _Job(
            name=name,
            work=work,
            context=contextvars.copy_context(),
            loop=loop,
            future=loop.create_future(),
        )
        self._submit(job)
        try:
            await asyncio.wait({job.future}, timeout=seconds)
        except asyncio.CancelledError as error:
            if self._give_up(job):
                raise
            raise CancelledBefore from error
        if job.future.done():
            return job.future.result()
        if self._give_up(job):
            raise TimeoutError
        raise NotBegun

    def _submit(self, job: _Job) -> None:
        with self._ready:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._ready.notify()
            elif self._alive < self.limit:
                self._alive += 1
                name = f"tool-{self._alive}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            outcome = job.outcome()
            with self._ready:
                heard = job.stage is _Stage.RUNNING
                job.stage = _Stage.DONE
                self._abandoned -= not heard
            if heard:
                job.deliver(outcome)
            else:
                _LOGGER.warning("%s has ended after all; what it gave is dropped", job.name)

    def _next(self) -> _Job | None:
        """The next job, now running; None when there was none for a while."""
        with self._ready:
            self._idle += 1
            while not self._jobs:
                if not self._ready.wait(_IDLE_SECONDS) and not self._jobs:
                    self._idle -= 1
                    self._alive -= 1
                    return None
            self._idle -= 1
            job = self._jobs.popleft()
            job.stage = _Stage.RUNNING
            return job

    def _give_up(self, job: _Job) -> bool:
        """Whether the work had begun. What had not never will."""
        with self._ready:
            if job.stage is _Stage.WAITING:
                self._jobs.remove(job)
                return False
            if job.stage is _Stage.RUNNING:
                job.stage = _Stage.LEFT
                self._abandoned += 1
                told = LEFT.get()
                if told is not None:
                    told(job.is_over)
                _LOGGER.warning("%s did not end in time; its thread goes on without it", job.name)
            return True
