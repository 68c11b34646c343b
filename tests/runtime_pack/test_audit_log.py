"""The log: what was edited, cut, added or moved is seen; what cannot be written stops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_pack import AuditLog, Event, LogHead, MemoryRunStore, verify_log
from runtime_pack.audit.verify import GENESIS, LogStatus, verify_lines
from runtime_pack.errors import AuditError, LogLocked
from runtime_pack.events import EventCode
from runtime_pack.messages import Json
from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply

SEVERAL = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def event(number: int = 0, **body: Json) -> Event:
    return Event(
        code=EventCode.STP001A, subject={"run": "r"}, object={"n": number, **body}, key=f"s{number}"
    )


def written(path: Path, count: int = 4) -> LogHead:
    """A closed log of some events, and its head."""
    with AuditLog(path) as log:
        for number in range(count):
            log.append(event(number))
    return verify_log(path).head


def test_a_log_that_nobody_touched_is_verified(tmp_path: Path) -> None:
    """Numbered, chained, canonical lines; the head is that of the file."""
    head = written(tmp_path / "log")
    found = verify_log(str(tmp_path / "log"), [head])

    assert (found.status, found.events, found.heads_found) == (LogStatus.VERIFIED, 6, 1)
    records = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert [record["seq"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[0]["prev"] == GENESIS
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def stopped_at(at: datetime) -> Callable[[], datetime]:
    return lambda: at


def test_ids_are_in_the_order_of_the_lines_over_several_writers(tmp_path: Path) -> None:
    """A later writer's ids sort after an earlier one's."""
    path = tmp_path / "log"
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for day in range(3):
        with AuditLog(path, now=stopped_at(start + timedelta(days=day))) as log:
            log.append(event())
    ids = [orjson.loads(line)["id"] for line in path.read_bytes().splitlines()]

    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_times_are_utc_with_microseconds(tmp_path: Path) -> None:
    """Whatever zone the clock has."""
    here = timezone(timedelta(hours=5))
    at = datetime(2026, 3, 1, 4, 0, 0, 42, tzinfo=here)
    with AuditLog(tmp_path / "log", now=lambda: at):
        pass
    first = orjson.loads((tmp_path / "log").read_bytes().splitlines()[0])

    assert first["ts"] == "2026-02-28T23:00:00.000042Z"


lines_of_a_log = st.integers(0, 5)


@SEVERAL
@given(st.data())
def test_any_change_of_a_line_is_found_against_a_saved_head(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Edit, delete, insert, double, swap: each is TAMPERED, whichever line it is."""
    path = tmp_path / "log"
    if not path.exists():
        written(path)
    lines = path.read_bytes().splitlines()
    head = verify_log(path).head
    at = data.draw(lines_of_a_log)
    change = data.draw(st.sampled_from(["edit", "delete", "insert", "double", "swap", "forge"]))
    if change == "edit":
        index = data.draw(st.integers(0, len(lines[at]) - 1))
        byte = data.draw(st.integers(0, 255).filter(lambda b: b not in {lines[at][index], 10}))
        lines[at] = lines[at][:index] + bytes([byte]) + lines[at][index + 1 :]
    elif change == "delete":
        del lines[at]
    elif change == "insert":
        lines.insert(at, b'{"seq":1}')
    elif change == "double":
        lines.insert(at, lines[at])
    elif change == "forge":
        record = orjson.loads(lines[at]) | {"code": "STP002O"}
        lines[at] = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    else:
        other = (at + 1) % len(lines)
        lines[at], lines[other] = lines[other], lines[at]

    assert verify_lines(lines, [head]).status is LogStatus.TAMPERED


def test_a_change_of_any_line_but_the_last_needs_no_head(tmp_path: Path) -> None:
    """The chain itself shows it, and names the line."""
    written(tmp_path / "log")
    lines = (tmp_path / "log").read_bytes().splitlines()
    for at in range(len(lines) - 1):
        record = orjson.loads(lines[at]) | {"severity": "high"}
        forged = [*lines]
        forged[at] = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
        found = verify_lines(forged)

        assert found.status is LogStatus.TAMPERED
        assert found.faults[0].line == at + 2


def test_a_log_that_was_written_anew_is_not_that_of_the_head(tmp_path: Path) -> None:
    """Whoever computes the whole chain again still lacks the saved head."""
    head = written(tmp_path / "log")
    written(tmp_path / "other")

    found = verify_log(tmp_path / "other", [head])

    assert found.status is LogStatus.TAMPERED
    assert "saved head" in found.faults[0].problem


def test_a_cut_at_any_byte_is_found_against_a_saved_head(tmp_path: Path) -> None:
    """In mid-line it is torn, at a line's end the head is missing."""
    head = written(tmp_path / "log")
    content = (tmp_path / "log").read_bytes()
    cut = tmp_path / "cut"
    for size in range(len(content)):
        cut.write_bytes(content[:size])

        assert verify_log(cut, [head]).status is LogStatus.TAMPERED


def test_lines_that_are_added_to_a_closed_log_are_not_verified(tmp_path: Path) -> None:
    """The chain has no key: who can write can go on with it, and only a saved head stops him."""
    head = written(tmp_path / "log")
    with AuditLog(tmp_path / "log") as forged:
        forged.append(event(99))

    assert verify_log(tmp_path / "log", [head]).status is LogStatus.OPEN
    assert verify_log(tmp_path / "log").status is LogStatus.CHAINED


def test_a_head_before_the_closing_line_verifies_it_and_no_earlier_one(tmp_path: Path) -> None:
    """A run's head is saved before its log is closed; any line between them is vouched for by nobody."""
    path, heads = tmp_path / "log", []
    with AuditLog(path) as log:
        for number in (1, 2):
            log.append(event(number))
            heads.append(log.head)
    lines = path.read_bytes().splitlines()

    assert verify_log(path, heads).status is LogStatus.VERIFIED
    assert verify_lines(lines, heads).status is LogStatus.VERIFIED
    assert verify_log(path, heads[:1]).status is LogStatus.OPEN
    assert verify_lines(lines[:-1], heads[:1]).status is LogStatus.OPEN


def test_a_cut_without_a_saved_head_is_open_not_verified(tmp_path: Path) -> None:
    """Nothing is wrong with what is there, and nothing says that it is all."""
    written(tmp_path / "log")
    lines = (tmp_path / "log").read_bytes().splitlines()

    assert verify_lines(lines[:-1]).status is LogStatus.OPEN
    assert verify_lines([]).status is LogStatus.OPEN


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_verifying_is_total(lines: list[bytes]) -> None:
    """Any bytes give a verdict."""
    assert verify_lines(lines, [LogHead(3, GENESIS)]).status is LogStatus.TAMPERED


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 500,
        b"{}",
        b"[]",
        b"1",
        b"",
        b'{"seq":true}',
        b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)
def test_odd_lines_are_faults(line: bytes) -> None:
    """Deep, empty or of another kind: the verifier says so and does not raise."""
    assert verify_lines([line]).status is LogStatus.TAMPERED


def test_heads_are_read_strictly() -> None:
    """NUMBER:64 hex digits, nothing else."""
    head = LogHead(7, "a" * 64)

    assert LogHead.parse(f" {head}\n") == head
    for text in ("", "7", f"07:{'a' * 64}", f"7:{'A' * 64}", f"-1:{'a' * 64}", f"7:{'a' * 63}"):
        with pytest.raises(AuditError):
            LogHead.parse(text)


def test_a_torn_tail_is_moved_aside_and_recorded(tmp_path: Path) -> None:
    """Nothing is lost, the chain goes on, and the log says what happened; a second one too."""
    path = tmp_path / "log"
    written(path)
    for number in (1, 2):
        with path.open("ab") as file:
            file.write(b'{"half":')
        assert verify_log(path).status is LogStatus.TAMPERED
        with AuditLog(path):
            pass

        assert (tmp_path / f"log.torn-{number}").read_bytes() == b'{"half":'
    assert verify_log(path).status is LogStatus.CHAINED
    moved = [
        orjson.loads(line)["object"]
        for line in path.read_bytes().splitlines()
        if b"log:recovered" in line
    ]
    assert moved == [{"moved_to": "log.torn-1"}, {"moved_to": "log.torn-2"}]


def test_a_broken_log_is_not_continued(tmp_path: Path) -> None:
    """Writing on after an edit would hide it behind good lines."""
    path = tmp_path / "log"
    written(path)
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":7'))

    with pytest.raises(AuditError):
        AuditLog(path)


def test_one_writer_per_log(tmp_path: Path) -> None:
    """A second one is refused while the first is open, in this process and in another."""
    path = tmp_path / "log"
    with AuditLog(path):
        with pytest.raises(LogLocked):
            AuditLog(path)
        code = f"from runtime_pack import AuditLog; AuditLog({str(path)!r})"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

        assert b"LogLocked" in child.stderr
    with AuditLog(path):
        pass
    assert verify_log(path).status is LogStatus.CHAINED


@pytest.mark.parametrize("target", ["/dev/null", "/dev/full", "folder", "missing/folder/log"])
def test_only_a_regular_file_is_a_log(tmp_path: Path, target: str) -> None:
    """A device would take every line and keep none."""
    (tmp_path / "folder").mkdir()
    path = Path(target) if target.startswith("/") else tmp_path / target
    with pytest.raises(AuditError):
        AuditLog(path)


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    """Closing twice does nothing."""
    log = AuditLog(tmp_path / "log")
    log.close()
    log.close()
    with pytest.raises(AuditError):
        log.append(event())


def test_a_log_that_failed_has_not_flushed_what_comes_later(tmp_path: Path) -> None:
    """Whoever flushes after the failure is told, even where nothing of its own was waiting."""
    log = AuditLog(tmp_path / "log")
    log.close()
    with pytest.raises(AuditError):
        log.flush()


@pytest.mark.parametrize("value", [1.0, [1, 2.5], {"a": {"b": 0.1}}, float("nan")])
def test_no_float_enters_a_line(tmp_path: Path, value: Json) -> None:
    """Its digits differ between languages, and so would the bytes that are hashed."""
    with AuditLog(tmp_path / "log") as log:
        with pytest.raises(AuditError):
            log.append(event(value=value))
        log.append(event())

    assert verify_log(tmp_path / "log").events == 3


def test_what_is_no_json_does_not_enter(tmp_path: Path) -> None:
    """The line is refused, and the next one is taken."""
    with AuditLog(tmp_path / "log") as log:
        with pytest.raises(AuditError):
            # The fault at hand.
            log.append(event(value=object()))  # type: ignore[arg-type]
        log.append(event(value="\ud800", other={"\udfff": [None, True]}))

    assert verify_log(tmp_path / "log").status is LogStatus.CHAINED


FULL_DISK = """
    import asyncio, resource, sys
    from pathlib import Path
    from runtime_pack import AuditLog, TaskContract
    from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply
    path, limit, asked = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    audit = AuditLog(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + limit, resource.RLIM_INFINITY))
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), audit=audit)
    batch = [(f"a{n}", "t:echo", f'{{"x": "{n}"}}') for n in range(asked)]
    stage.prepare([calls(*batch), reply()])
    result = asyncio.run(stage.start())
    print(result.kind, result.stop and result.stop.code, stage.shelf.ran["t:echo"], len(stage.model.requests))
"""


@pytest.mark.parametrize(("asked", "most"), [(1, 2400), (3, 4800)], ids=["alone", "in a batch"])
def test_a_full_disk_stops_the_run_before_the_tool(tmp_path: Path, asked: int, most: int) -> None:
    """At every limit of the file, nothing has run whose `started` is not in it; the rest verifies.

    Calls that start together are written together: when that fails, none of them is made.
    """
    ran = set()
    for limit in range(0, most, most // 8):
        path = tmp_path / f"log-{limit}"
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(path), str(limit), str(asked)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.returncode == 0, child.stderr
        kind, code, tools, turns = child.stdout.split()
        content = path.read_bytes()
        assert int(tools) <= content.count(b"step:started")
        assert int(turns) <= content.count(b"turn:started")
        if kind == "error":
            assert code == "AUDIT_FAILED"
            ran.add(int(tools))
        whole = content[: content.rfind(b"\n") + 1].splitlines()
        assert verify_lines(whole).status is LogStatus.OPEN
    assert ran == {0, asked}


sentinels = st.sampled_from(
    ["SENTINEL of a page", "SENTINEL/?q=secret", "SENTINEL\ud800", "<SENTINEL>"]
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sentinels)
def test_no_text_of_models_tools_or_pages_enters_the_log(tmp_path: Path, text: str) -> None:
    """Arguments, outputs, replies, ids, names of unknown tools and error texts: digests and codes only."""
    path = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"

    async def scenario() -> None:
        with AuditLog(path) as audit:
            shelf = (
                ToolShelf()
                .add("t:echo", text)
                .add("t:bad", RuntimeError(text))
                .add("t:json", {"k": text.encode("utf-8", "replace").decode()})
            )
            stage = Rehearsal(shelf=shelf, audit=audit, store=MemoryRunStore())
            raw = orjson.dumps({"x": text.encode("utf-8", "replace").decode()}).decode()
            await stage.play(
                calls(
                    (text, "t:echo", raw),
                    ("b", "t:bad", raw),
                    ("c", "t:json", "{}"),
                    ("d", text, raw),
                    ("e", "t:echo", text),
                    ("f", "t:echo", f'{{"{"SENTINEL key"}":1}}'),
                ),
                reply(text),
            )
        content = path.read_bytes()

        assert b"SENTINEL" not in content
        assert verify_log(path).status is LogStatus.CHAINED
        for line in content.splitlines():
            assert not holds_float(orjson.loads(line))

    asyncio.run(scenario())


def holds_float(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(holds_float, value.values()))
    if isinstance(value, list):
        return any(map(holds_float, value))
    return isinstance(value, float)
