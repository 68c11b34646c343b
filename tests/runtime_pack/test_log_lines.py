"""The lines of a turn, put together from parts, are those that the slow encoder writes."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import AuditLog, TaskContract, ToolOutput, Turn, TurnStatus, Usage, records
from runtime_pack.catalog import Executed
from runtime_pack.guard import AgentTaskRun, create_agent_task_run, lines
from runtime_pack.identity import RunIdentity
from runtime_pack.messages import FinishReason
from runtime_pack.records import StepRecord
from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply

_FEW = settings(max_examples=60, deadline=None)
_SORTED = orjson.OPT_SORT_KEYS
_CHAINED = ("id", "prev", "seq", "ts")

words = st.text(max_size=24)
counts = st.integers(0, 10**9)
runs = st.fixed_dictionaries(
    {"task": words},
    optional={"run_id": st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,20}", fullmatch=True)},
)
identities = st.none() | st.just(RunIdentity(agent="a", on_behalf_of="ü", session='"'))
step_records = st.builds(
    StepRecord,
    step=st.from_regex(r"t[0-9]{1,3}(c[0-9]{1,2})?", fullmatch=True) | words,
    tool=words,
    call_id=words,
    admitted=st.just(True),
    executed=st.sampled_from(Executed),
    ok=st.none() | st.booleans(),
    code=st.none() | words,
    args_sha256=st.none() | st.just("sha256:" + "0" * 64),
    elapsed_us=counts,
    input_tokens=counts,
    output_tokens=counts,
    attempt=st.integers(1, 3),
    cached_input_tokens=st.just(0) | counts,
    cost=st.just(0) | counts,
    estimated=st.booleans(),
)
outputs = st.builds(
    ToolOutput,
    ok=st.booleans(),
    text=st.text(st.characters(exclude_categories=())),
    code=st.none() | words | st.sampled_from(["TOOL_ERROR", "WEB_FETCH_FAILED"]),
    executed=st.sampled_from(Executed),
    fences=st.just(()) | st.just(({"signals": ["zero_width", "né"]},)),
)
turns = st.none() | st.builds(
    Turn,
    status=st.sampled_from([TurnStatus.REPLY, TurnStatus.COMPLETE, TurnStatus.ESCALATE]),
    finish=st.sampled_from(FinishReason),
    usage=st.none() | st.just(Usage(input_tokens=1, output_tokens=2)),
)


def pair(given_run: dict[str, Any], identity: RunIdentity | None, log: AuditLog) -> AgentTaskRun:
    """A run that writes to the log."""
    return create_agent_task_run(TaskContract(), audit=log, identity=identity, **given_run)


def last_two(log: AuditLog) -> list[dict[str, Any]]:
    """The last two lines of turns and calls, each canonical, without what differs between any two.

    What came from outside has lines of its own behind that of its call.
    """
    log.flush()
    found = []
    for line in log.path.read_bytes().splitlines():
        record = orjson.loads(line)
        assert orjson.dumps(record, option=_SORTED) == line
        if record["code"][:3] in {"TRN", "STP"}:
            found.append({name: value for name, value in record.items() if name not in _CHAINED})
    return found[-2:]


@_FEW
@given(runs, identities, step_records, outputs, turns)
def test_a_line_of_parts_is_the_line_of_its_entry(
    given_run: dict[str, Any],
    identity: RunIdentity | None,
    record: StepRecord,
    output: ToolOutput,
    turn: Turn | None,
) -> None:
    """Byte for byte, whatever the names, ids, codes and texts are; as for a run with an identity."""
    with tempfile.TemporaryDirectory() as folder, AuditLog(Path(folder) / "log") as log:
        run = pair(given_run, identity, log)
        of_turn = run.subject(record.step)
        of_call = run.subject(record.step, record.call_id)
        if record.step:
            lines.turn_started(run, log, record.step, 3, 4)
            run.enter_in_log(records.turn_started(of_turn, record.step, 3, 4))
            first, second = last_two(log)
            assert first == second
        lines.turn_finished(run, log, record, turn)
        run.enter_in_log(records.turn_finished(of_turn, record, turn))
        first, second = last_two(log)
        assert first == second
        lines.call_started(run, log, record)
        run.enter_in_log(records.step_started(of_call, record, run.policy_sha256))
        first, second = last_two(log)
        assert first == second
        lines.call_finished(run, log, record, output)
        run.enter_in_log(records.step_finished(of_call, record, output))
        first, second = last_two(log)
        assert first == second


def test_a_run_that_is_taken_up_writes_its_own_name(tmp_path: Path) -> None:
    """What was encoded for one id and task is not written for another one, nor under a policy file."""
    with AuditLog(tmp_path / "log") as log:
        run = pair({"task": "first"}, None, log)
        lines.turn_started(run, log, "t1", 1, 1)
        run.id, run.task = "other", "second"
        lines.turn_started(run, log, "t1", 1, 1)
        second = last_two(log)[1]
        run.policy = {"file": "p.toml"}
        lines.call_started(
            run,
            log,
            StepRecord(
                step="t1c1", tool="lookup", call_id="c", admitted=True, executed=Executed.UNKNOWN
            ),
        )
        under = last_two(log)[1]

    assert second["subject"] == {"run": "other", "step": "t1", "task": "second"}
    assert under["decision"]["policy"] == {"file": "p.toml"}


def test_all_lines_of_a_run_are_canonical_and_chained(tmp_path: Path) -> None:
    """Those of parts stand in one chain with those of entries, and their ids are in order."""
    with AuditLog(tmp_path / "log") as log:
        rehearsal = Rehearsal(shelf=ToolShelf().add("lookup"), audit=log)
        rehearsal.prepare([calls(("c", "lookup", {})), reply("done")])
        assert asyncio.run(rehearsal.start()).text == "done"
    found = [orjson.loads(line) for line in log.path.read_bytes().splitlines()]

    assert [each["seq"] for each in found] == list(range(1, len(found) + 1))
    assert sorted(each["id"] for each in found) == [each["id"] for each in found]
    assert {each["code"] for each in found} >= {"TRN001O", "TRN002O", "STP001A", "STP002O"}
