"""What is done before each request of a read: robots.txt is asked, and what is kept is named.

One attendant belongs to one run. What a read holds of the cache is that read's own: concurrent
reads of one address do not mix.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import attrs

from egress.client import Fetched
from egress.ports import Headers
from egress.url import Target
from web_tools._page_notes import PageNote, note_of
from web_tools.robots import RobotsGate

if TYPE_CHECKING:
    from web_tools.page_cache import PageCache

__all__ = ("HopAttendant",)

_NOT_MODIFIED: Final = 304


@attrs.frozen(kw_only=True)
class _Held:
    """What was kept of one address when its server was asked."""

    body: bytes
    note: PageNote


_HELD: Final[ContextVar[dict[str, _Held] | None]] = ContextVar("web_tools_held", default=None)


class HopAttendant:
    """Given to a client as `attend`, and to the reader, which settles each answer with it."""

    def __init__(self, *, robots: RobotsGate | None, cache: PageCache | None) -> None:
        self._robots = robots
        self._cache = cache

    async def __call__(self, target: Target) -> Headers:
        """The fields to send to *target*.

        Raises:
            RobotsDisallowed: The site does not let it be read.
            RobotsUnreachable: Its rules could not be had.
        """
        if self._robots is not None:
            await self._robots.check(target)
        held = _HELD.get()
        if self._cache is None or held is None:
            return ()
        kept = await asyncio.to_thread(self._cache.find, _name(target))
        note = None if kept is None else PageNote.from_bytes(kept.note)
        if kept is None or note is None:
            held.pop(target.url, None)
            return ()
        held[target.url] = _Held(body=kept.content, note=note)
        return note.conditions()

    def begin(self) -> None:
        """A read begins in this task: it holds nothing yet."""
        if self._cache is not None:
            _HELD.set({})

    async def settle(self, fetched: Fetched) -> Fetched:
        """The answer, or in place of "not modified" what was held; what is new is kept."""
        held = _HELD.get()
        if self._cache is None or held is None:
            return fetched
        mine, name = held.get(fetched.final.url), _name(fetched.final)
        if fetched.status == _NOT_MODIFIED and mine is not None:
            await asyncio.to_thread(self._cache.confirm, name, note=mine.note.to_bytes())
            return _as_whole(fetched, mine)
        note = note_of(fetched)
        if note is not None:
            await asyncio.to_thread(self._cache.keep, name, fetched.body, note=note.to_bytes())
        elif mine is not None:
            await asyncio.to_thread(self._cache.drop, name)
        return fetched


def _name(target: Target) -> str:
    return f"page {target.url}"


def _as_whole(fetched: Fetched, held: _Held) -> Fetched:
    kind = held.note.content_type
    fields = tuple(field for field in fetched.headers if field[0] != "content-type")
    typed = () if kind is None else (("content-type", kind),)
    return attrs.evolve(fetched, status=200, headers=(*fields, *typed), body=held.body)
