"""Forwarding: nothing is lost, what comes twice has the same id, and nothing of a run waits for it."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime_pack.audit import AuditLog, LogSigner
from runtime_pack.audit.facts import Wanted
from runtime_pack.audit.files import older_segments
from runtime_pack.audit.retention import delete_older
from runtime_pack.errors import AuditError
from runtime_pack.events import Event, EventCode
from runtime_pack.sinks import Forwarder, Keeper, NotDelivered, Progress, Refused, Told
from runtime_pack.sinks.items import Item, item_of, packed
from runtime_pack.sinks.places import BEGINNING, Place, parse_progress, progress_bytes
from runtime_pack.sinks.reading import Odd, read_after

SIGNER = LogSigner("example.org/log", bytes(range(32)))
START = datetime(2026, 3, 1, tzinfo=UTC)


def event(number: int, code: EventCode = EventCode.STP001A, run: str = "r") -> Event:
    return Event(code=code, subject={"run": run}, object={"n": number})


class Receiver:
    """Takes batches; does what it is told to before: fail, refuse what holds a word, take a part."""

    def __init__(self) -> None:
        self.got: list[Item] = []
        self.plan: list[Exception] = []
        self.refuses: Callable[[Item], bool] = lambda _: False
        self.batches: list[int] = []
        self.throws_away = 0

    async def send(self, batch: Sequence[Item]) -> int:
        assert batch
        if any(map(self.refuses, batch)):
            raise Refused("answered 400")
        if self.plan:
            # A part of it has arrived; nobody knows how much.
            self.got += batch[: len(batch) // 2]
            raise self.plan.pop(0)
        self.got += batch
        self.batches.append(len(batch))
        return self.throws_away

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.got]


class Waits:
    """Time that is told to pass; more than so many waits is a loop that never ends."""

    def __init__(self, most: int = 50) -> None:
        self.waited: list[float] = []
        self._most = most

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        if len(self.waited) > self._most:
            raise TimeoutError


class FailingKeeper(Keeper):
    """A disk that is full so many times."""

    full = 0

    def save(self, progress: Progress) -> None:
        if self.full:
            self.full -= 1
            raise OSError(28, "No space left on device")
        super().save(progress)


def forwarder(
    target: Path, receiver: Receiver, keeper: Keeper, told: list[Told] | None = None, **given: Any
) -> Forwarder:
    tell = (lambda _: None) if told is None else told.append
    return Forwarder(
        target,
        receiver,
        keeper,
        name="siem",
        tell=tell,
        now=START.timestamp,
        sleep=given.pop("sleep", Waits()),
        chance=lambda: 0.0,
        **given,
    )


def ids_of(path: Path) -> list[str]:
    files = (*(older for _, older in older_segments(path)), path)
    return [json.loads(line)["id"] for file in files for line in file.read_bytes().splitlines()]


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[FailingKeeper]:
    (tmp_path / "logs").mkdir()
    with FailingKeeper(tmp_path / "state", "siem", tmp_path / "logs") as made:
        yield made


def test_every_event_is_delivered_once_in_the_order_of_its_log(
    tmp_path: Path, keeper: Keeper
) -> None:
    """Over many files and batches, and nothing again when there is nothing new."""
    log = tmp_path / "logs" / "run.jsonl"
    receiver = Receiver()
    with AuditLog(log, segment_bytes=1500) as writer:
        ours = forwarder(tmp_path / "logs", receiver, keeper, max_batch=7)
        for number in range(60):
            writer.append(event(number))
            writer.flush()
            if number % 20 == 0:
                assert asyncio.run(ours.catch_up(attempts=1))
    assert asyncio.run(ours.catch_up(attempts=1))
    assert not asyncio.run(ours.step())

    assert ids_of(log) == receiver.ids
    assert max(receiver.batches) == 7
    assert ours.progress.delivered == len(receiver.got)


def test_what_is_wanted_alone_is_sent_and_the_rest_is_passed(
    tmp_path: Path, keeper: Keeper
) -> None:
    """A filter holds nothing up: what it leaves out counts as done."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        for number in range(20):
            code = EventCode.EGR001D if number % 5 == 0 else EventCode.STP001A
            writer.append(event(number, code))
    ours = forwarder(tmp_path / "logs", receiver, keeper, wanted=Wanted(denied=True))
    assert asyncio.run(ours.catch_up(attempts=1))

    assert 4 == len(receiver.got)
    assert 22 == keeper.load().places["run.jsonl"].seq


def test_logs_take_turns(tmp_path: Path, keeper: Keeper) -> None:
    """One that always has more does not keep the others from being forwarded."""
    receiver = Receiver()
    for name in "abc":
        with AuditLog(tmp_path / "logs" / f"{name}.jsonl") as writer:
            for number in range(30):
                writer.append(event(number))
    ours = forwarder(tmp_path / "logs", receiver, keeper, max_batch=10)
    for _ in range(3):
        assert asyncio.run(ours.step())

    assert {"a.jsonl", "b.jsonl", "c.jsonl"} == {item.log for item in receiver.got}


def test_a_receiver_that_is_down_waits_longer_and_longer_and_loses_nothing(
    tmp_path: Path, keeper: Keeper
) -> None:
    """Its place does not move, one batch is in memory, and it is told once why and once that it goes on."""
    log, receiver, told, waits = tmp_path / "logs" / "run.jsonl", Receiver(), list[Told](), Waits()
    with AuditLog(log) as writer:
        for number in range(20):
            writer.append(event(number))
    receiver.plan = [NotDelivered("down") for _ in range(8)]
    receiver.plan[2] = NotDelivered("busy", retry_after=100)
    ours = forwarder(tmp_path / "logs", receiver, keeper, told, sleep=waits)
    assert asyncio.run(ours.step())

    assert [1, 2, 100, 8, 16, 32, 60, 60] == waits.waited
    assert set(ids_of(log)) == set(receiver.ids)
    words = [each.problem for each in told]
    assert ["down", "busy", "down", "goes on after 8 attempt(s)"] == words


def test_attempts_are_counted_where_it_is_to_end(tmp_path: Path, keeper: Keeper) -> None:
    """What was not delivered in time is not, and its place is kept."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        writer.append(event(1))
    receiver.plan = [NotDelivered("down") for _ in range(3)]
    ours = forwarder(tmp_path / "logs", receiver, keeper)
    assert not asyncio.run(ours.catch_up(attempts=3))
    assert {} == keeper.load().places
    assert asyncio.run(forwarder(tmp_path / "logs", receiver, keeper).catch_up(attempts=1))

    assert ids_of(log) == list(dict.fromkeys(receiver.ids))


def test_a_full_disk_of_the_state_stops_the_next_batch(
    tmp_path: Path, keeper: FailingKeeper
) -> None:
    """What is not known to be delivered must not grow: nothing is sent until the place is kept."""
    log, receiver, told = tmp_path / "logs" / "run.jsonl", Receiver(), list[Told]()
    with AuditLog(log) as writer:
        for number in range(20):
            writer.append(event(number))
    keeper.full = 3
    ours = forwarder(tmp_path / "logs", receiver, keeper, told, max_batch=5)
    assert asyncio.run(ours.step())
    assert [5] == receiver.batches
    assert "No space left" in told[0].problem
    assert asyncio.run(ours.catch_up(attempts=1))
    assert ids_of(log) == receiver.ids


def test_one_event_that_a_receiver_refuses_holds_nothing_up(tmp_path: Path, keeper: Keeper) -> None:
    """It goes as a note of itself with the same id; all others as they are."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        for number in range(20):
            writer.append(event(number))
    bad = ids_of(log)[7]
    receiver.refuses = lambda item: item.id == bad and not item.is_note
    assert asyncio.run(forwarder(tmp_path / "logs", receiver, keeper).catch_up(attempts=1))

    assert ids_of(log) == receiver.ids
    (note,) = [item for item in receiver.got if item.is_note]
    body = note.record["object"]
    assert isinstance(body, dict)
    assert "answered 400" == body["not_forwarded"]
    assert (bad, 8) == (note.id, note.record["seq"])


def test_a_receiver_that_refuses_everything_is_down(tmp_path: Path, keeper: Keeper) -> None:
    """Nothing is passed over for it: a wrong address must not look like a delivery."""
    with AuditLog(tmp_path / "logs" / "run.jsonl") as writer:
        writer.append(event(1))
    receiver = Receiver()
    receiver.refuses = lambda _: True
    ours = forwarder(tmp_path / "logs", receiver, keeper)

    assert not asyncio.run(ours.catch_up(attempts=2))
    assert ([], {}) == (receiver.got, keeper.load().places)


def test_what_was_thrown_away_is_counted_and_told(tmp_path: Path, keeper: Keeper) -> None:
    """The place moves on, and the number stands in the state."""
    with AuditLog(tmp_path / "logs" / "run.jsonl") as writer:
        writer.append(event(1))
    receiver, told = Receiver(), list[Told]()
    receiver.throws_away = 2
    ours = forwarder(tmp_path / "logs", receiver, keeper, told)
    assert asyncio.run(ours.catch_up(attempts=1))

    assert (1, 2) == (keeper.load().delivered, keeper.load().rejected)
    assert "threw 2 away" in told[-1].problem


def test_lines_that_were_deleted_before_are_told(tmp_path: Path, keeper: Keeper) -> None:
    """A receiver that was down for longer than logs are kept learns which lines it will never have."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    at = [START]
    with AuditLog(log, signer=SIGNER, segment_bytes=1500, now=lambda: at[0]) as writer:
        for number in range(40):
            at[0] += timedelta(hours=1)
            writer.append(event(number))
            writer.flush()
    before = ids_of(log)
    delete_older(log, before=START + timedelta(hours=20), signer=SIGNER, by="ann", now=at[0])
    left = ids_of(log)
    assert asyncio.run(forwarder(tmp_path / "logs", receiver, keeper).catch_up(attempts=1))

    notice, *rest = receiver.got
    assert left == [item.id for item in rest]
    assert "FWD001E" == notice.record["code"]
    missing = {"log": "run.jsonl", "first_line": 1, "last_line": len(before) - len(left)}
    assert missing == notice.record["object"]


def test_a_deletion_up_to_what_was_delivered_is_no_news(tmp_path: Path, keeper: Keeper) -> None:
    """Retention of what has arrived is what it is for."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    at = [START]
    with AuditLog(log, signer=SIGNER, segment_bytes=1500, now=lambda: at[0]) as writer:
        ours = forwarder(tmp_path / "logs", receiver, keeper)
        for number in range(20):
            at[0] += timedelta(hours=1)
            writer.append(event(number))
            writer.flush()
        everything = ids_of(log)
        assert asyncio.run(ours.catch_up(attempts=1))
        delete_older(log, before=at[0], signer=SIGNER, by="ann", now=at[0])
        writer.append(event(99))
        writer.flush()
        assert asyncio.run(ours.catch_up(attempts=1))

    assert everything == receiver.ids[: len(everything)]
    assert len(set(receiver.ids)) == len(receiver.ids) > len(everything)
    assert not any(item.is_note for item in receiver.got)


def _cut(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-3]))


def _edited(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"n":18', b'"n":81'))


def _replaced(log: Path) -> None:
    log.unlink()
    with AuditLog(log) as writer:
        for number in range(3):
            writer.append(event(number, run="other"))


def _put_back(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5]))
    with AuditLog(log) as writer:
        for number in range(30):
            writer.append(event(number))


@pytest.mark.parametrize("change", [_cut, _replaced, _put_back])
def test_a_log_that_is_another_one_by_now_is_told(
    tmp_path: Path, keeper: Keeper, change: Callable[[Path], None]
) -> None:
    """Cut, written anew, or put back: a notice, and then all of it as it is now."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        for number in range(20):
            writer.append(event(number))
    ours = forwarder(tmp_path / "logs", receiver, keeper)
    assert asyncio.run(ours.catch_up(attempts=1))
    known = len(receiver.got)
    change(log)
    assert asyncio.run(ours.catch_up(attempts=1))

    notice, *rest = receiver.got[known:]
    assert ("FWD002E", "high") == (notice.record["code"], notice.record["severity"])
    assert ids_of(log) == [item.id for item in rest]


def test_a_line_that_does_not_follow_is_forwarded_and_told(tmp_path: Path, keeper: Keeper) -> None:
    """What was edited before it was forwarded is no secret to the receiver."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        for number in range(20):
            writer.append(event(number))
    _edited(log)
    assert asyncio.run(forwarder(tmp_path / "logs", receiver, keeper).catch_up(attempts=1))

    codes = [item.record["code"] for item in receiver.got]
    assert 1 == codes.count("FWD003E")
    at = codes.index("FWD003E")
    # The edited line is the twentieth; the next one does not follow from it.
    assert (20, 21) == (receiver.got[at - 1].seq, receiver.got[at + 1].seq)


@pytest.mark.parametrize("line", [b"not JSON", b"[]", b'{"id": 3}', b"", b"\xff\xfe"])
def test_what_is_no_event_goes_as_a_note(tmp_path: Path, keeper: Keeper, line: bytes) -> None:
    """Its number and digest are told; what comes after it is forwarded."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        writer.append(event(1))
    log.write_bytes(line + b"\n" + log.read_bytes())
    assert asyncio.run(forwarder(tmp_path / "logs", receiver, keeper).catch_up(attempts=1))

    codes = [item.record.get("code") for item in receiver.got]
    assert codes[0] == "FWD003E"
    assert codes[1] in {"FWD004O", None}
    assert {"STP001A", "LOG002O"} <= set(codes)


def test_a_log_whose_file_is_gone_is_told_once(tmp_path: Path, keeper: Keeper) -> None:
    """It may have been deleted on purpose; who looks at the events is to know."""
    log, receiver = tmp_path / "logs" / "run.jsonl", Receiver()
    with AuditLog(log) as writer:
        writer.append(event(1))
    ours = forwarder(tmp_path / "logs", receiver, keeper)
    assert asyncio.run(ours.catch_up(attempts=1))
    log.unlink()
    assert asyncio.run(ours.catch_up(attempts=1))
    assert asyncio.run(ours.catch_up(attempts=1))

    assert ["FWD005O"] == [item.record["code"] for item in receiver.got[3:]]
    assert 3 == receiver.got[3].record["seq"]


def test_a_log_that_cannot_be_read_holds_up_no_other(tmp_path: Path, keeper: Keeper) -> None:
    """It is told once, tried again, and no success."""
    receiver, told = Receiver(), list[Told]()
    (tmp_path / "logs" / "a.jsonl").write_bytes(b"x" * ((1 << 24) + 2))
    with AuditLog(tmp_path / "logs" / "b.jsonl") as writer:
        writer.append(event(1))
    ours = forwarder(tmp_path / "logs", receiver, keeper, told)
    assert not asyncio.run(ours.catch_up(attempts=1))
    assert not asyncio.run(ours.catch_up(attempts=1))

    assert {"b.jsonl"} == {item.log for item in receiver.got}
    assert 1 == len(told)


def test_one_forwarder_for_a_sink(tmp_path: Path, keeper: Keeper) -> None:
    """Two would send everything twice; the state of other logs is not gone on with."""
    with pytest.raises(AuditError, match="another process"):
        Keeper(tmp_path / "state", "siem", tmp_path / "logs")
    keeper.save(Progress(places={"a": BEGINNING}, delivered=4))
    keeper.close()
    with (
        Keeper(tmp_path / "state", "siem", tmp_path / "elsewhere") as other,
        pytest.raises(AuditError, match="other logs"),
    ):
        other.load()
    with Keeper(tmp_path / "state", "siem", tmp_path / "logs") as same:
        assert 4 == same.load().delivered
    assert 0o700 == (tmp_path / "state").stat().st_mode & 0o777
    assert 0o600 == (tmp_path / "state" / "siem.json").stat().st_mode & 0o777


_GOOD: dict[str, Any] = {"seq": 1, "sha256": "a" * 64, "start": 0, "end": 5}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"places": []},
        {"places": {"a": 1}},
        {"places": {"a": {**_GOOD, "seq": -1}}},
        {"places": {"a": {**_GOOD, "seq": True}}},
        {"places": {"a": {**_GOOD, "sha256": "A" * 64}}},
        {"places": {"a": {**_GOOD, "more": 1}}},
        {"delivered": -1},
        {"rejected": "1"},
        {"sink": "other"},
    ],
)
def test_a_state_of_another_form_is_refused(change: dict[str, Any]) -> None:
    """To guess would be to lose events."""
    progress = Progress(places={"a": Place(**_GOOD)}, delivered=3, rejected=1)
    content = progress_bytes(progress, sink="siem", target="/logs")
    assert progress == parse_progress(content, sink="siem", target="/logs")
    with pytest.raises(AuditError):
        parse_progress(
            json.dumps({**json.loads(content), **change}).encode(), sink="siem", target="/logs"
        )
    with pytest.raises(AuditError):
        parse_progress(content[:-5], sink="siem", target="/logs")


def test_bodies_are_packed_to_their_size() -> None:
    """Every text is in one group, in order, and a group is larger than the bound by one text only."""
    texts = [b"x" * size for size in (5, 5, 30, 1, 1, 1, 9)]
    groups = packed(texts, 12)
    assert texts == [text for group in groups for text in group]
    assert all(len(group) == 1 or sum(map(len, group)) + len(group) <= 13 for group in groups)


class Forwarding(RuleBasedStateMachine):
    """Every line arrives or is told to be deleted, whatever writer, receiver and forwarder do."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        self.log = self.logs / "run.jsonl"
        self.at = START
        self.number = 0
        self.all: dict[int, str] = {}
        self.receiver = Receiver()
        self.writer: AuditLog | None = None
        self.keeper = FailingKeeper(self.folder / "state", "siem", self.logs)
        self.ours = forwarder(self.logs, self.receiver, self.keeper, max_batch=4)
        self.open()

    def open(self) -> None:
        self.writer = AuditLog(self.log, signer=SIGNER, segment_bytes=1200, now=lambda: self.at)
        self.note()

    def note(self) -> None:
        files = (*(older for _, older in older_segments(self.log)), self.log)
        for line in b"".join(file.read_bytes() for file in files).splitlines():
            record = json.loads(line)
            self.all[record["seq"]] = record["id"]

    @rule(count=st.integers(1, 6))
    def write(self, count: int) -> None:
        assert self.writer is not None
        for _ in range(count):
            self.at += timedelta(minutes=1)
            self.number += 1
            self.writer.append(event(self.number))
            self.writer.flush()
        self.note()

    @rule()
    def reopen(self) -> None:
        assert self.writer is not None
        self.writer.close()
        self.open()

    @rule(tail=st.binary(min_size=1, max_size=20).filter(lambda tail: b"\n" not in tail))
    def crash_of_the_writer(self, tail: bytes) -> None:
        """A torn line is seen by nobody."""
        assert self.writer is not None
        self.writer.close()
        with self.log.open("ab") as file:
            file.write(tail)
        self.step()
        self.open()

    @rule(minutes=st.integers(0, 20))
    def delete(self, minutes: int) -> None:
        before = self.at - timedelta(minutes=minutes)
        delete_older(self.log, before=before, signer=SIGNER, by="ann", now=self.at)

    @rule()
    def step(self) -> None:
        asyncio.run(self.ours.step())

    @rule(count=st.integers(1, 3))
    def fail(self, count: int) -> None:
        self.receiver.plan = [NotDelivered("down") for _ in range(count)]
        asyncio.run(self.ours.step(attempts=2))

    @rule()
    def full_disk(self) -> None:
        self.keeper.full = 2
        asyncio.run(self.ours.step(attempts=1))

    @rule()
    def restart(self) -> None:
        self.keeper.full = 0
        self.keeper.close()
        self.keeper = FailingKeeper(self.folder / "state", "siem", self.logs)
        self.ours = forwarder(self.logs, self.receiver, self.keeper, max_batch=4)

    @precondition(lambda self: self.receiver.got)
    @invariant()
    def nothing_false_is_told(self) -> None:
        """No log was touched by anybody who may not."""
        codes = {str(item.record["code"]) for item in self.receiver.got}
        assert not codes & {"FWD002E", "FWD003E", "FWD004O", "FWD005O"}

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        assert self.writer is not None
        self.writer.close()
        self.note()
        self.receiver.plan, self.keeper.full = [], 0
        assert asyncio.run(self.ours.catch_up(attempts=1))
        self.keeper.close()
        shutil.rmtree(self.folder)
        self.nothing_false_is_told()
        told: set[int] = set()
        arrived: dict[int, str] = {}
        for item in self.receiver.got:
            if item.record["code"] == "FWD001E":
                body: Any = item.record["object"]
                told |= set(range(body["first_line"], body["last_line"] + 1))
            else:
                arrived.setdefault(item.seq, item.id)
        assert {seq: self.all[seq] for seq in arrived} == arrived
        assert set(self.all) == set(arrived) | told
        assert list(arrived) == sorted(arrived)


TestForwarding = Forwarding.TestCase
TestForwarding.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)


def test_reading_is_bounded_and_whole(tmp_path: Path) -> None:
    """At least one line, as many as fit, and the same lines whatever the bounds."""
    log = tmp_path / "run.jsonl"
    with AuditLog(log, segment_bytes=1500) as writer:
        for number in range(30):
            writer.append(event(number))
            writer.flush()
    lines = [x.line for x in read_after(log, BEGINNING, most_lines=999, most_bytes=1 << 30).lines]
    for most_lines, most_bytes in ((1, 1), (3, 1 << 20), (100, 700)):
        place, got = BEGINNING, list[bytes]()
        while found := read_after(log, place, most_lines=most_lines, most_bytes=most_bytes).lines:
            assert 1 <= len(found) <= most_lines
            assert sum(len(line.line) for line in found[:-1]) < most_bytes
            assert all(line.before is None for line in found)
            got += [line.line for line in found]
            place = found[-1].place
        assert lines == got


def test_a_place_in_no_file_is_odd(tmp_path: Path) -> None:
    """Offsets that lead nowhere, or to another line, are not believed."""
    log = tmp_path / "run.jsonl"
    with AuditLog(log) as writer:
        writer.append(event(1))
    for place in (
        Place(seq=2, sha256="0" * 64, start=0, end=10),
        Place(seq=2, sha256="0" * 64, start=1 << 50, end=(1 << 50) + 9),
        Place(seq=2, sha256="0" * 64, start=9, end=3),
    ):
        first = read_after(log, place, most_lines=9, most_bytes=1 << 20).lines[0]
        assert first.before is not None
        assert (Odd.REPLACED, 1) == (first.before.kind, first.place.seq)


def test_a_beginning_that_is_not_behind_the_place_is_odd(tmp_path: Path) -> None:
    """What is left of a log begins where the place is, and continues another line than that."""
    log, at = tmp_path / "run.jsonl", [START]
    with AuditLog(log, signer=SIGNER, segment_bytes=1500, now=lambda: at[0]) as writer:
        for number in range(20):
            at[0] += timedelta(hours=1)
            writer.append(event(number))
            writer.flush()
    delete_older(log, before=START + timedelta(hours=10), signer=SIGNER, by="ann", now=at[0])
    first = read_after(log, BEGINNING, most_lines=1, most_bytes=1).lines[0].place.seq
    place = Place(seq=first - 1, sha256="0" * 64, start=0, end=9)
    odd = read_after(log, place, most_lines=1, most_bytes=1).lines[0].before

    assert odd is not None
    assert Odd.REPLACED == odd.kind


def test_a_note_says_what_can_be_said() -> None:
    """A record with odd parts is no reason to fail."""
    for line in (
        b'{"subject":[1],"id":7,"code":null}',
        b"{}",
        b'{"subject":{"run":"' + b"r" * 999 + b'"}}',
    ):
        item = item_of("run.jsonl", 3, line)
        assert item.seq == 3
