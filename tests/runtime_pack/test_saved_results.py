"""What is stored while calls of one batch still run: each result, as soon as it is there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import orjson
import pytest

from runtime_pack import DirectoryRunStore, ExecutionContext, Seal, TaskContract
from runtime_pack.messages import ToolMessage
from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply

SEAL = Seal(b"s" * 32)
PAIR = calls(("slow", "t:slow", "{}"), ("fast", "t:fast", "{}"))


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_result_is_stored_before_its_siblings_have_ended(tmp_path: Path, parallel: int) -> None:
    """The process dies while the slow call runs: what the fast one gave is known, and it is not in doubt."""
    kept, left = tmp_path / "runs", tmp_path / "after the death"

    async def dies(context: ExecutionContext) -> str:
        reader = DirectoryRunStore(kept, seal=SEAL)
        for _ in range(200):
            saved = await reader.load(context.run)
            if any(b"fast result" in row for row in saved.rows):
                break
            await asyncio.sleep(0.001)
        # What a process that dies here leaves behind, head and rows as of one commit.
        shutil.copytree(kept, left)
        return "too late"

    async def scenario() -> None:
        shelf = ToolShelf().add("t:slow", does=dies).add("t:fast", "fast result")
        # One at a time: the fast one goes first.
        batch = PAIR if parallel > 1 else calls(*((c.id, c.name, "{}") for c in PAIR.calls[::-1]))
        contract = TaskContract(max_parallel=parallel)
        stage = Rehearsal(shelf=shelf, contract=contract, store=DirectoryRunStore(kept, seal=SEAL))
        first = await stage.play(batch, reply())
        stage.prepare([reply()])

        again = await stage.resume(first.run_id, store=DirectoryRunStore(left, seal=SEAL))

        told = {m.call_id: m.text for m in again.messages if isinstance(m, ToolMessage)}
        assert told["fast"] == "fast result"
        assert orjson.loads(told["slow"])["code"] == "OUTCOME_UNKNOWN"
        assert shelf.ran == {"t:slow": 1, "t:fast": 1}

    asyncio.run(scenario())
