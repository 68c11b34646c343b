"""Saved runs: the document, its seal, and the stores.

A saved run is a small head and rows. The head (state of the machine, ledger, label) is replaced
at each save; rows (messages, results, records) are only ever appended, so saving costs what is
new, not what the run already holds. The head carries the number of rows and a hash chained over
them, and is sealed; so no byte of either can change unseen. JSON only: nothing is imported by name.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import attrs
import orjson

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.catalog import Effects, ToolSpec
from runtime_pack.errors import (
    ContractError,
    RunConflict,
    RunNotFound,
    StateRefused,
    StoreError,
)
from runtime_pack.labels import Integrity
from runtime_pack.ledger import Shortfall
from runtime_pack.machine import (
    Classifying,
    Ended,
    Executing,
    Outcome,
    OutcomeKind,
    Slot,
    SlotStatus,
    State,
    Stop,
    Thinking,
    Waiting,
)
from runtime_pack.messages import Json, ToolCall, ToolMessage, message_from_json, message_to_json
from runtime_pack.seal import Seal
from runtime_pack.strictness import ApprovalClass

__all__ = (
    "FORMAT",
    "SCHEMA",
    "DirectoryRunStore",
    "MemoryRunStore",
    "RunStore",
    "SavedRun",
    "chain_rows",
    "open_head",
    "seal_head",
    "spec_from_json",
    "spec_to_json",
    "state_from_json",
    "state_to_json",
)

FORMAT: Final = "agent-runtime-pack/run"
SCHEMA: Final = 1
EMPTY_CHAIN: Final = "0" * 64


@attrs.frozen(kw_only=True)
class SavedRun:
    """A run as a store holds it: `revision` counts saves from 1; rows are JSON, one each."""

    run_id: str
    revision: int
    head: bytes
    rows: tuple[bytes, ...]


class RunStore(Protocol):
    """Where runs are saved. Each method is atomic: it happens as a whole or not at all."""

    @property
    def seal(self) -> Seal:
        """The host's key."""
        ...

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """Replace the head and append rows if the run is at revision *expected* (0: is new).

        Returns:
            The new revision.

        Raises:
            RunConflict: the run is at another revision; nothing was written.
            StoreError: it could not be written.
        """
        ...

    async def load(self, run_id: str) -> SavedRun:
        """The run as it was last committed.

        Raises:
            RunNotFound: there is none.
            StoreError: it could not be read.
        """
        ...


class MemoryRunStore:
    """Runs in this process's memory; for tests and for approvals within one process."""

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal or Seal.random()
        self._heads: dict[str, tuple[int, bytes]] = {}
        self._rows: dict[str, list[bytes]] = {}

    @property
    def seal(self) -> Seal:
        """The key; random unless one was given."""
        return self._seal

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """See `RunStore.commit`."""
        found, _ = self._heads.get(run_id, (0, b""))
        if found != expected:
            raise RunConflict(run_id, expected, found)
        self._heads[run_id] = found + 1, head
        self._rows.setdefault(run_id, []).extend(rows)
        return found + 1

    async def load(self, run_id: str) -> SavedRun:
        """See `RunStore.load`."""
        if run_id not in self._heads:
            raise RunNotFound(run_id)
        revision, head = self._heads[run_id]
        return SavedRun(run_id=run_id, revision=revision, head=head, rows=tuple(self._rows[run_id]))

    def put(self, saved: SavedRun) -> None:
        """Take a run from `LoopResult.state`; its seal is checked when it is resumed."""
        self._heads[saved.run_id] = saved.revision, saved.head
        self._rows[saved.run_id] = list(saved.rows)


class DirectoryRunStore:
    """Runs as files: a folder a run, rows appended, the head replaced atomically, both synced.

    A crash at any point leaves the last committed revision: rows beyond the head's count are
    dropped at the next commit.

    Raises:
        StoreError: the folder cannot be made.
    """

    def __init__(self, path: Path | str, *, seal: Seal) -> None:
        self.path = Path(path)
        self._seal = seal
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store cannot be made: {error}") from error

    @property
    def seal(self) -> Seal:
        """The host's key."""
        return self._seal

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        """See `RunStore.commit`."""
        work = asyncio.to_thread(self._commit, run_id, expected, head, tuple(rows))
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # A thread cannot be stopped: what it writes must be there before anyone goes on.
            await asyncio.wait([task])
            raise

    async def load(self, run_id: str) -> SavedRun:
        """See `RunStore.load`."""
        return await asyncio.to_thread(self.read, run_id)

    def run_ids(self) -> tuple[str, ...]:
        """The ids of the saved runs, sorted."""
        return tuple(sorted(p.parent.name for p in self.path.glob("*/head.json")))

    def _folder(self, run_id: str) -> Path:
        if not run_id.replace("-", "a").replace("_", "a").isalnum() or not run_id.isascii():
            raise RunNotFound(run_id)
        return self.path / run_id

    def _commit(self, run_id: str, expected: int, head: bytes, rows: tuple[bytes, ...]) -> int:
        folder = self._folder(run_id)
        try:
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
                _sync_folder(self.path)
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return self._commit_locked(folder, run_id, expected, head, rows)
            finally:
                os.close(lock)
        except OSError as error:
            raise StoreError(f"run {run_id} cannot be saved: {error}") from error

    def _commit_locked(
        self, folder: Path, run_id: str, expected: int, head: bytes, rows: tuple[bytes, ...]
    ) -> int:
        found, offset = self._position(folder)
        if found != expected:
            raise RunConflict(run_id, expected, found)
        block = b"".join(row + b"\n" for row in rows)
        with (folder / "rows.jsonl").open("ab") as file:
            file.truncate(offset)
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
        envelope = {
            "revision": found + 1,
            "offset": offset + len(block),
            "head": head.decode(),
        }
        _replace(folder / "head.json", orjson.dumps(envelope))
        return found + 1

    def _position(self, folder: Path) -> tuple[int, int]:
        try:
            envelope = _read_envelope(folder)
        except FileNotFoundError:
            return 0, 0
        return envelope.revision, envelope.offset

    def read(self, run_id: str) -> SavedRun:
        """`load` for callers that are not coroutines."""
        folder = self._folder(run_id)
        try:
            envelope = _read_envelope(folder)
            content = (folder / "rows.jsonl").read_bytes()[: envelope.offset]
        except FileNotFoundError as error:
            raise RunNotFound(run_id) from error
        except OSError as error:
            raise StoreError(f"run {run_id} cannot be read: {error}") from error
        rows = content.split(b"\n")
        rows.pop()
        return SavedRun(
            run_id=run_id, revision=envelope.revision, head=envelope.head, rows=tuple(rows)
        )


@attrs.frozen(kw_only=True)
class _Envelope:
    revision: int
    offset: int
    head: bytes


def _read_envelope(folder: Path) -> _Envelope:
    try:
        value = orjson.loads((folder / "head.json").read_bytes())
    except orjson.JSONDecodeError as error:
        raise StateRefused(f"{folder.name}/head.json is not JSON") from error
    if not isinstance(value, dict):
        raise StateRefused(f"{folder.name}/head.json is not a head")
    revision, offset, head = value.get("revision"), value.get("offset"), value.get("head")
    if not isinstance(revision, int) or not isinstance(offset, int) or not isinstance(head, str):
        raise StateRefused(f"{folder.name}/head.json is not a head")
    return _Envelope(revision=revision, offset=offset, head=head.encode())


def _replace(path: Path, body: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old bytes or the new ones."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ── the sealed head ───────────────────────────────────────────────────────────────────────────


def chain_rows(chain: str, rows: Sequence[bytes]) -> str:
    """The running hash over rows: each one with the hash before it."""
    for row in rows:
        chain = hashlib.sha256(chain.encode() + row).hexdigest()
    return chain


def seal_head(body: Mapping[str, Json], seal: Seal) -> bytes:
    """The head as stored: canonical JSON and its tag."""
    content = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps({"body": content.decode(), "tag": seal.tag(content)})


def open_head(saved: SavedRun, seal: Seal) -> dict[str, Json]:
    """The head's body, if head and rows are what was sealed.

    Raises:
        StateRefused: another key, an edited byte, a row added, lost or moved, another run's
            head, an unknown format or a newer schema.
    """
    try:
        envelope = orjson.loads(saved.head)
        content, tag = envelope["body"], envelope["tag"]
        body = content.encode()
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise StateRefused("the saved run has no sealed head") from error
    seal.check(body, str(tag))
    fields: dict[str, Json] = orjson.loads(body)
    if fields.get("format") != FORMAT:
        raise StateRefused(f"unknown format {fields.get('format')!r}")
    if fields.get("schema") != SCHEMA:
        raise StateRefused(
            f"schema {fields.get('schema')!r} is not {SCHEMA}, which this version reads"
        )
    if fields.get("run") != saved.run_id or fields.get("revision") != saved.revision:
        raise StateRefused("the head belongs to another run or revision")
    if fields.get("rows") != len(saved.rows):
        raise StateRefused("rows were added or lost")
    if fields.get("rows_sha256") != chain_rows(EMPTY_CHAIN, saved.rows):
        raise StateRefused("a row was edited or moved")
    return fields


# ── the machine's state as JSON ───────────────────────────────────────────────────────────────


def state_to_json(state: State) -> dict[str, Json]:
    """A state between two events. A batch that is being judged is saved as not asked for yet."""
    match state:
        case Thinking(barren=barren, closing=closing):
            stop = None if closing is None else _stop_to_json(closing)
            return {"at": "thinking", "barren": barren, "closing": stop}
        case Classifying(barren=barren):
            return {"at": "thinking", "barren": barren, "closing": None}
        case Executing(barren=barren, text=text, slots=slots):
            return _batch("executing", barren, text, slots)
        case Waiting(barren=barren, text=text, slots=slots):
            return _batch("waiting", barren, text, slots)
        case Ended(outcome=outcome):
            return {"at": "ended", "outcome": outcome_to_json(outcome)}


def _batch(at: str, barren: int, text: str, slots: tuple[Slot, ...]) -> dict[str, Json]:
    return {
        "at": at,
        "barren": barren,
        "text": text,
        "slots": [_slot_to_json(slot) for slot in slots],
    }


def _slot_to_json(slot: Slot) -> dict[str, Json]:
    """Results that a tool gave are rows, found by call id; only refusals stand in the head."""
    result = None if slot.ran or slot.result is None else message_to_json(slot.result)
    return {
        "step": slot.step,
        "call": {"id": slot.call.id, "name": slot.call.name, "arguments": slot.call.arguments},
        "status": str(slot.status),
        "ran": slot.ran,
        "result": result,
        "request": None if slot.request is None else slot.request.to_json(),
        "stop": None if slot.shortfall is None else slot.shortfall.to_json(),
    }


def outcome_to_json(outcome: Outcome) -> dict[str, Json]:
    """An outcome in a head."""
    return {
        "kind": str(outcome.kind),
        "stop": None if outcome.stop is None else _stop_to_json(outcome.stop),
        "text": outcome.text,
    }


def _stop_to_json(stop: Stop) -> dict[str, Json]:
    # Written where there is one only: a head without it is what an earlier version wrote.
    at: dict[str, Json] = {} if stop.retry_at is None else {"retry_at": stop.retry_at.isoformat()}
    return at | {
        "code": str(stop.code),
        "message": stop.message,
        "stage": stop.stage,
        "short": None if stop.shortfall is None else stop.shortfall.to_json(),
    }


def state_from_json(value: object, results: Mapping[str, ToolMessage]) -> State:
    """Read what `state_to_json` wrote; *results* are those of the rows, by call id.

    Raises:
        StateRefused: not of that form.
    """
    try:
        return _read_state(_object(value), results)
    except (KeyError, TypeError, ValueError) as error:
        raise StateRefused(f"the saved state cannot be read ({error})") from error


def _read_state(value: dict[str, Json], results: Mapping[str, ToolMessage]) -> State:
    at = value["at"]
    if at == "ended":
        return Ended(outcome=outcome_from_json(value["outcome"]))
    barren = _integer(value["barren"])
    if at == "thinking":
        closing = value["closing"]
        return Thinking(barren=barren, closing=None if closing is None else _read_stop(closing))
    raw, text = value["slots"], str(value["text"])
    if not isinstance(raw, list):
        raise TypeError("slots is a list")
    slots = tuple(_read_slot(_object(slot), results) for slot in raw)
    if at == "executing":
        return Executing(barren=barren, text=text, slots=slots)
    if at == "waiting":
        return Waiting(barren=barren, text=text, slots=slots)
    raise ValueError(f"unknown state {at!r}")


def _read_slot(value: dict[str, Json], results: Mapping[str, ToolMessage]) -> Slot:
    call, step = _object(value["call"]), str(value["step"])
    status, ran, request = SlotStatus(str(value["status"])), value["ran"] is True, value["request"]
    result = results.get(str(call["id"])) if ran else None
    if value["result"] is not None:
        message = message_from_json(value["result"])
        if not isinstance(message, ToolMessage):
            raise TypeError("a slot's result is a tool message")
        result = message
    return Slot(
        step=step,
        call=ToolCall(
            id=str(call["id"]), name=str(call["name"]), arguments=_object(call["arguments"])
        ),
        status=SlotStatus.DONE if result is not None else status,
        ran=ran,
        result=result,
        request=None if request is None else ApprovalRequest.from_json(_object(request)),
        shortfall=None if value["stop"] is None else _read_shortfall(value["stop"]),
    )


def outcome_from_json(value: object) -> Outcome:
    """Read what `outcome_to_json` wrote."""
    fields = _object(value)
    stop = fields["stop"]
    return Outcome(
        kind=OutcomeKind(str(fields["kind"])),
        stop=None if stop is None else _read_stop(stop),
        text=str(fields["text"]),
    )


def _read_stop(value: object) -> Stop:
    fields = _object(value)
    stage, short, at = fields["stage"], fields["short"], fields.get("retry_at")
    return Stop(
        code=str(fields["code"]),
        message=str(fields["message"]),
        stage=None if stage is None else str(stage),
        shortfall=None if short is None else _read_shortfall(short),
        retry_at=None if at is None else datetime.fromisoformat(str(at)),
    )


def _read_shortfall(value: object) -> Shortfall:
    fields = _object(value)
    return Shortfall(
        budget=str(fields["budget"]),
        limit=_number(fields["limit"]),
        used=_number(fields["used"]),
        reserved=_number(fields["reserved"]),
    )


def _object(value: object) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number is expected")
    return value


def spec_to_json(spec: ToolSpec) -> dict[str, Json]:
    """A tool's definition, so that a run can be taken up where its catalog is not at hand."""
    return spec.to_json()


def spec_from_json(value: object) -> ToolSpec:
    """Read what `spec_to_json` wrote.

    Raises:
        StateRefused: not of that form.
    """
    try:
        fields = _object(value)
        return ToolSpec(
            name=str(fields["name"]),
            description=str(fields["description"]),
            parameters=_object(fields["parameters"]),
            output_trust=Integrity(str(fields["output_trust"])),
            timeout_seconds=_number(fields["timeout_seconds"]),
            effects=Effects(str(fields["effects"])),
            invalid_code=str(fields["invalid_code"]),
            approval_class=ApprovalClass(str(fields.get("approval_class", ApprovalClass.AUTO))),
        )
    except (KeyError, TypeError, ValueError, ContractError) as error:
        raise StateRefused(f"a saved tool cannot be read ({error})") from error
