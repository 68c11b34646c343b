"""Code that need not wait is done in its first step, and is stopped like any other if it does wait."""

from __future__ import annotations

import asyncio

import pytest

from runtime_pack import Cancelled, Completed, ExecutionContext, Suspended
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.messages import AssistantMessage, KeptItem, Turn
from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply


@pytest.mark.parametrize("word", ["cancel", "pause"])
def test_a_tool_that_stops_its_run_and_then_waits_is_stopped(word: str) -> None:
    """It asked for the stop in its first step, before anybody could have stopped it."""
    stage = Rehearsal()

    async def stops(context: ExecutionContext) -> str:
        getattr(stage.run, word)("enough")
        await asyncio.sleep(60)
        return "never"

    stage.shelf = ToolShelf().add("t:stop", does=stops)
    stage.prepare([calls(("c", "t:stop", {})), reply("never")])
    result = asyncio.run(asyncio.wait_for(stage.start(), 30))

    assert isinstance(result, Cancelled | Suspended)
    assert result.text == ""


def test_a_stop_after_the_step_lets_the_step_end() -> None:
    """What only waits for somebody is ended by it at once."""
    stage = Rehearsal()
    stage.prepare([])

    async def says(seconds: float) -> str:
        stage.run.cancel("enough", "after_step")
        await asyncio.sleep(seconds)
        return "said"

    async def main() -> str:
        stage.run.begin_activity()
        with pytest.raises(TimeUp):
            await bounded(stage.run, None, says(60), idle=True)
        return await bounded(stage.run, None, says(0))

    assert asyncio.run(main()) == "said"


def test_a_stop_that_was_there_before_does_not_end_what_begins_after_it() -> None:
    """The last save of a cancelled run is one such work."""
    stage = Rehearsal()
    stage.prepare([])

    async def saves() -> str:
        await asyncio.sleep(0)
        return "saved"

    async def main() -> str:
        stage.run.begin_activity()
        stage.run.cancel("enough")
        return await bounded(stage.run, 30, saves())

    assert asyncio.run(main()) == "saved"


def test_what_a_provider_wants_back_stays_when_the_label_rises() -> None:
    """Reasoning stands in the history of a run that has read something from outside, too."""
    item = KeptItem(provider="p", place=0, item={"secret": "sauce"})
    stage = Rehearsal(shelf=ToolShelf().add("t:read"))
    asked = calls(("c1", "t:read", {"x": "1"})), calls(("c2", "t:read", {"x": "2"}))
    stage.prepare(
        [
            *(Turn(status=turn.status, calls=turn.calls, kept=(item,)) for turn in asked),
            reply("done"),
        ]
    )
    result = asyncio.run(stage.start())
    said = [m for m in result.messages if isinstance(m, AssistantMessage)]

    assert isinstance(result, Completed)
    assert [message.kept for message in said] == [(item,), (item,), ()]
