"""The index and the end of a log: whatever happened to the files, they show what stands in them."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_pack.audit import AuditLog
from runtime_pack.audit.facts import UNREADABLE, Wanted, facts_of, read_record, time_text
from runtime_pack.audit.files import older_segments
from runtime_pack.audit.following import Follower, _backwards
from runtime_pack.audit.index import EventIndex, default_index, logs_in
from runtime_pack.errors import AuditError
from runtime_pack.events import Event, EventCode

START = datetime(2026, 3, 1, tzinfo=UTC)


def denial(run: str, host: str, rule: str = "R4") -> Event:
    return Event(
        code=EventCode.EGR001D,
        subject={"run": run, "agent": "ava"},
        object={"host": host, "tool": "web:read"},
        decision={"action": "deny", "rule": rule, "reason_code": "host_not_listed"},
    )


def write(path: Path, hosts: list[str], *, at: datetime = START, size: int = 10**6) -> None:
    ticks = itertools.count()
    with AuditLog(path, now=lambda: at + timedelta(seconds=next(ticks)), segment_bytes=size) as log:
        for number, host in enumerate(hosts):
            log.append(denial(f"run-{number % 3}", host))
            log.flush()


def hosts(index: EventIndex) -> list[str | None]:
    return [place.facts.host for place in index.select(Wanted(denied=True))]


def updated(path: Path, target: Path) -> EventIndex:
    index = EventIndex(path)
    index.update(logs_in(target))
    return index


def test_an_index_follows_its_logs(tmp_path: Path) -> None:
    """Appended, gone on in new files, deleted, edited, replaced: it shows what is there."""
    log, where = tmp_path / "a.jsonl", default_index(tmp_path)
    names = [f"h{number}.example" for number in range(30)]
    write(log, names[:10], size=2000)
    with updated(where, tmp_path) as index:
        assert names[:10] == hosts(index)
        assert 0 == index.update(logs_in(tmp_path))
        write(log, names[10:20], at=START + timedelta(hours=1), size=2000)
        # Only what is new is read, although files have other names by now.
        before = 10 + 2 + len(older_segments(log))
        assert index.update(logs_in(tmp_path)) <= 10 + 2 + before
        assert names[:20] == hosts(index)
    first = older_segments(log)[0][1]
    first.write_bytes(first.read_bytes().replace(b"h0.example", b"x0.example"))
    # Another time, whatever the clock of the file system counts in.
    os.utime(first, ns=(1, 1))
    older_segments(log)[1][1].unlink()
    with updated(where, tmp_path) as index:
        found = hosts(index)
        assert "x0.example" == found[0]
        assert len(found) < 20
    write(tmp_path / "b.jsonl", names[20:], at=START - timedelta(days=1))
    with updated(where, tmp_path) as index:
        assert [*names[20:], *found] == hosts(index)
    log.unlink()
    with updated(where, tmp_path / "b.jsonl") as index:
        assert names[20:] == hosts(index)


def test_a_file_that_is_renamed_is_not_read_again(tmp_path: Path) -> None:
    """The lines that were known under the log's name are those of the numbered file now."""
    log = tmp_path / "a.jsonl"
    write(log, ["a.example"] * 4)
    with updated(default_index(log), log) as index, AuditLog(log, segment_bytes=1) as writer:
        writer.append(denial("r", "b.example"))
        writer.flush()
        assert index.update((log,)) < 6
        assert 5 == index.count(Wanted(denied=True))


def test_a_line_that_is_not_whole_is_left_for_later(tmp_path: Path) -> None:
    """A writer may be in the middle of it."""
    log = tmp_path / "a.jsonl"
    write(log, ["a.example", "b.example"])
    content = log.read_bytes()
    log.write_bytes(content[:-200])
    with updated(default_index(log), log) as index:
        before = index.count(Wanted())
        log.write_bytes(content)
        index.update((log,))
        assert content.count(b"\n") == index.count(Wanted())
        assert before < index.count(Wanted())
        last = list(index.select(Wanted()))[-1]
        assert content.splitlines()[-1] == last.line()


def test_lines_are_read_from_the_log_itself(tmp_path: Path) -> None:
    """By id and by number; an index that is behind says so."""
    log = tmp_path / "a.jsonl"
    write(log, ["a.example"])
    with updated(default_index(log), log) as index:
        (place,) = index.find("2")
        assert (place,) == index.find(str(place.facts.id))
        assert log.read_bytes().splitlines()[1] == place.line()
        assert () == index.find("no such id")
        log.write_bytes(b"")
        with pytest.raises(AuditError):
            place.line()


def test_what_comes_most_often_is_counted(tmp_path: Path) -> None:
    """By any of the columns, and by nothing else."""
    log = tmp_path / "a.jsonl"
    write(log, ["a.example", "b.example", "a.example"])
    with updated(default_index(log), log) as index:
        top = index.top(Wanted(denied=True), ("host", "rule"), 10)
        assert [(("a.example", "R4"), 2), (("b.example", "R4"), 1)] == [row[:2] for row in top]
        for bad in ((), ("start",), ("host; DROP TABLE events",)):
            with pytest.raises(ValueError, match="counted by"):
                index.top(Wanted(), bad, 10)


def test_an_index_of_another_version_is_refused(tmp_path: Path) -> None:
    """It is derived: deleting it costs nothing."""
    log = tmp_path / "a.jsonl"
    write(log, [])
    with updated(default_index(log), log) as index:
        index._db.execute("PRAGMA user_version = 99")
    with pytest.raises(AuditError, match="another version"):
        EventIndex(default_index(log))
    default_index(log).write_bytes(b"no database" * 100)
    with pytest.raises(AuditError):
        EventIndex(default_index(log))


words = st.sampled_from(["a", "ab", "b*", "[a]", "é", "A", "a_b", "%", ""]) | st.text(max_size=4)
patterns = st.none() | st.sampled_from(["a", "a*", "?", "[a]", "*b", "b*", "é", "*"])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(words, words), max_size=8),
    patterns,
    patterns,
    st.none() | words,
    st.integers(0, 8) | st.none(),
    st.integers(0, 8) | st.none(),
    st.booleans(),
)
def test_the_index_answers_as_the_filter_does(
    tmp_path: Path,
    given_rows: list[tuple[str, str]],
    host: str | None,
    agent: str | None,
    run: str | None,
    since: int | None,
    until: int | None,
    denied: bool,
) -> None:
    """What `ls` finds in the index is what `tail` lets through, for all filters together."""
    lines = []
    for number, (name, who) in enumerate(given_rows):
        record = {
            "code": "EGR001D" if number % 2 else "STP001A",
            "id": str(number),
            "object": {"host": name},
            "seq": number,
            "subject": {"agent": who, "run": name},
            "ts": time_text(START + timedelta(seconds=number)),
        }
        lines.append(orjson.dumps(record, option=orjson.OPT_SORT_KEYS))
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    wanted = Wanted(
        host=host,
        agent=agent,
        run=run,
        since=None if since is None else START + timedelta(seconds=since),
        until=None if until is None else START + timedelta(seconds=until),
        denied=denied,
    )
    with EventIndex(None) as index:
        index.update((log,))
        found = [place.facts for place in index.select(wanted)]
        rows = [facts_of(read_record(line)) for line in lines]

        assert [row for row in rows if wanted.admits(row)] == found
        assert len(found) == index.count(wanted)


@given(st.binary(max_size=80))
def test_any_bytes_give_a_row(line: bytes) -> None:
    """A log that was tampered with can still be looked at."""
    assert facts_of(read_record(line)).code


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"{}",
        b'{"seq":true,"code":3,"object":[],"ts":null}',
        b'{"seq":99999999999999999999}',
    ],
)
def test_odd_lines_are_shown_as_unreadable(line: bytes) -> None:
    """They have no number and no code of ours."""
    row = facts_of(read_record(line))

    assert (UNREADABLE, None) == (row.code, row.seq)


# ── following ───────────────────────────────────────────────────────────────────────────────────


def everything(_: object) -> bool:
    return True


def test_the_end_of_a_log_is_followed_over_new_files(tmp_path: Path) -> None:
    """Each line once and in order: of a log that goes on in new files, and of new logs."""
    log = tmp_path / "a.jsonl"
    write(log, [f"{number}.example" for number in range(9)], size=1500)
    follower = Follower(tmp_path)
    denied = Wanted(denied=True).admits
    try:
        last = follower.last(4, denied)
        assert [f"{n}.example" for n in range(5, 9)] == [
            orjson.loads(x)["object"]["host"] for x in last
        ]
        assert 9 == len(follower.last(100, denied))
        assert [] == follower.last(0, denied)
        assert [] == follower.new(everything)
        write(log, [f"{number}.example" for number in range(9, 30)], size=600)
        new = follower.new(denied)
        assert [f"{n}.example" for n in range(9, 30)] == [
            orjson.loads(x)["object"]["host"] for x in new
        ]
        assert [] == follower.new(everything)
        with log.open("ab") as file:
            file.write(b'{"half":')
            file.flush()
            assert [] == follower.new(everything)
            file.write(b"1}\n")
            file.flush()
            assert [b'{"half":1}'] == follower.new(everything)
        write(tmp_path / "b.jsonl", ["new.example"])
        assert 1 == len(follower.new(denied))
    finally:
        follower.close()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.binary(max_size=6).filter(lambda b: b"\n" not in b), max_size=12),
    st.binary(max_size=3).filter(lambda b: b"\n" not in b),
    st.integers(1, 9),
)
def test_lines_are_read_backwards_whatever_the_pieces(
    tmp_path: Path, lines: list[bytes], rest: bytes, chunk: int
) -> None:
    """Cut anywhere, empty or not, and without what has no line feed yet."""
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in lines) + rest)
    handle = os.open(log, os.O_RDONLY)
    follower = Follower(log)
    try:
        end = sum(len(line) + 1 for line in lines)
        assert lines == list(_backwards(handle, end, chunk))[::-1]
        assert sorted(lines) == sorted(follower.last(100, everything))
    finally:
        follower.close()
        os.close(handle)
