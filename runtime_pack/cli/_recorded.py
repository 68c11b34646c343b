"""The calls of a log, for commands that decide them anew; arguments from saved runs, where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from runtime_pack import runs
from runtime_pack.audit.facts import Record, Wanted, read_record
from runtime_pack.audit.index import EventIndex, logs_in
from runtime_pack.cli._saved import wait
from runtime_pack.cli._state import StateFolder, is_new, open_state
from runtime_pack.errors import StoreError
from runtime_pack.messages import Json
from runtime_pack.recorded_calls import RecordedCall, Recording, with_arguments

__all__ = ("recorded_calls", "wanted_ids")


def recorded_calls(
    target: Path, state_dir: Path | None
) -> tuple[tuple[RecordedCall, ...], EventIndex]:
    """The calls of a log or a folder of logs, and the index that they were read by, in memory.

    Raises:
        AuditError: a log cannot be read.
    """
    index = EventIndex(None)
    try:
        index.update(logs_in(target))
        calls = Recording.of(_records(index)).calls
    except BaseException:
        index.close()
        raise
    return with_arguments(calls, _arguments(calls, state_dir)), index


def wanted_ids(index: EventIndex, wanted: Wanted) -> frozenset[str]:
    """The ids of the events that are asked for."""
    return frozenset(p.facts.id for p in index.select(wanted) if p.facts.id is not None)


def _records(index: EventIndex) -> Iterator[Record]:
    for place in index.select(Wanted()):
        record = read_record(place.line())
        if record is not None:
            yield record


def _arguments(
    calls: Iterable[RecordedCall], state_dir: Path | None
) -> Mapping[str, Mapping[str, Json]]:
    """Arguments by their digest, of the runs that the state folder still has."""
    if is_new(state_dir) is not None:
        return {}
    state = open_state(state_dir, create=False)
    found: dict[str, Mapping[str, Json]] = {}
    for run_id in sorted({call.run for call in calls if call.run} & set(state.store.run_ids())):
        found |= _of_run(state, run_id)
    return found


def _of_run(state: StateFolder, run_id: str) -> Mapping[str, Mapping[str, Json]]:
    try:
        return wait(runs.call_arguments(state.store, run_id))
    except StoreError:
        # Damaged, or gone by now: what it held is not known.
        return {}
