"""What each store of the pack leaves on the disk, and what it makes of what others did to it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

import attrs
import pytest

import runtime_pack
from runtime_pack import DirectoryRunStore, SavedRun, Seal, SharedRunStore, SQLiteRunStore, runs
from runtime_pack.errors import RunConflict, RunNotFound, StateRefused, StoreError
from runtime_pack.state import open_head
from runtime_pack.stores.files import Disk
from runtime_pack.testing_stores import sealed

ROOT = Path(runtime_pack.__file__).parent.parent
SEAL = Seal(b"k" * 32)
ROWS = (b'{"a":1}', b'{"b":2}', b'{"c":3}')

Opened = DirectoryRunStore | SQLiteRunStore


def directory(folder: Path) -> DirectoryRunStore:
    return DirectoryRunStore(folder / "runs", seal=SEAL)


def sqlite(folder: Path) -> SQLiteRunStore:
    return SQLiteRunStore(folder / "runs.sqlite3", seal=SEAL)


BOTH = pytest.mark.parametrize("opened", [directory, sqlite])


def shut(store: Opened) -> None:
    if isinstance(store, SQLiteRunStore):
        store.close()


async def fill(store: SharedRunStore, run_id: str = "run-1") -> SavedRun:
    """A run of three revisions."""
    for revision in range(3):
        head = sealed(run_id, revision + 1, ROWS[: revision + 1], SEAL)
        await store.commit(run_id, expected=revision, head=head, rows=[ROWS[revision]])
    return await store.load(run_id)


# ── what is on the disk ─────────────────────────────────────────────────────────────────────────


@BOTH
def test_only_the_owner_can_read_what_is_stored(
    opened: Callable[[Path], Opened], tmp_path: Path
) -> None:
    """Every file has mode 0600 and every folder 0700, whatever the umask."""

    async def scenario(store: Opened) -> None:
        await fill(store)
        await store.post("run-1", "k", b"{}")
        claim = await store.claim("run-1")
        assert claim is not None
        check()
        claim.release()

    def check() -> None:
        found = list(tmp_path.rglob("*"))
        assert len(found) >= 4
        for path in found:
            wanted = 0o700 if path.is_dir() else 0o600
            assert wanted == stat.S_IMODE(path.stat().st_mode), path

    before = os.umask(0)
    try:
        store = opened(tmp_path)
        asyncio.run(scenario(store))
    finally:
        os.umask(before)
    shut(store)


def test_a_database_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    """Its mode is set when it is opened."""
    path = tmp_path / "runs.sqlite3"
    path.touch(mode=0o644)

    sqlite(tmp_path).close()

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_the_database_is_in_wal_mode_and_syncs_every_commit(tmp_path: Path) -> None:
    """As the docs say."""
    with sqlite(tmp_path) as store, store._using() as connection:
        assert ("wal",) == connection.execute("PRAGMA journal_mode").fetchone()
        assert (2,) == connection.execute("PRAGMA synchronous").fetchone()


def test_rows_in_the_database_are_only_appended(tmp_path: Path) -> None:
    """The database itself refuses to change a row or to delete one of a run that is there."""
    with sqlite(tmp_path) as store:
        asyncio.run(fill(store))
        with store._using() as connection:
            for statement in (
                "UPDATE rows SET body = x'00'",
                "DELETE FROM rows WHERE number = 2",
                "INSERT INTO rows VALUES ('run-1', 1, x'00')",
            ):
                with pytest.raises(sqlite3.IntegrityError):
                    connection.execute(statement)

        assert ROWS == asyncio.run(store.load("run-1")).rows


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """It opens nothing again."""
    store = sqlite(tmp_path)
    asyncio.run(fill(store))
    store.close()

    with pytest.raises(StoreError, match="closed"):
        asyncio.run(store.load("run-1"))


def test_connections_are_kept_and_used_by_one_at_a_time(tmp_path: Path) -> None:
    """As many as were busy at once, not one a call."""
    made: list[sqlite3.Connection] = []

    def connect(*given: object, **named: object) -> sqlite3.Connection:
        # The arguments of `sqlite3.connect`, passed through.
        made.append(sqlite3.connect(*given, **named))  # type: ignore[call-overload]
        return made[-1]

    with SQLiteRunStore(tmp_path / "runs.sqlite3", seal=SEAL, connect=connect) as store:
        asyncio.run(fill(store))
        for _ in range(10):
            asyncio.run(store.load("run-1"))

        assert 1 == len(made)


# ── what others did to it ───────────────────────────────────────────────────────────────────────


def test_a_newer_database_and_a_newer_head_file_are_refused(tmp_path: Path) -> None:
    """Before anything is read from them or written to them."""
    with sqlite(tmp_path) as store, store._using() as connection:
        connection.execute("UPDATE store SET schema = 2")
    files = directory(tmp_path)
    asyncio.run(fill(files))
    head = files.path / "run-1" / "head.json"
    head.write_bytes(head.read_bytes().replace(b'"schema":1,"revision"', b'"schema":2,"revision"'))

    with pytest.raises(StateRefused, match="schema 2"):
        sqlite(tmp_path)
    with pytest.raises(StateRefused, match="schema 2"):
        files.read("run-1")
    with pytest.raises(StateRefused, match="schema 2"):
        asyncio.run(files.commit("run-1", expected=3, head=b"{}", rows=[]))


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 40, b"\0" * 4096]
)
def test_a_file_of_something_else_is_not_taken_for_a_store(tmp_path: Path, content: bytes) -> None:
    """And it is left as it is."""
    path = tmp_path / "runs.sqlite3"
    path.write_bytes(content)

    with pytest.raises(StoreError):
        sqlite(tmp_path)

    assert content == path.read_bytes()


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """No table is made in it."""
    other = sqlite3.connect(tmp_path / "runs.sqlite3")
    other.execute("CREATE TABLE things (a)")
    other.close()

    with pytest.raises(StoreError, match="something else"):
        sqlite(tmp_path)


def _refused_or_equal(store: Opened, expected: SavedRun, where: object) -> None:
    """A changed byte is refused, or it was one that says nothing."""
    try:
        found = asyncio.run(store.load(expected.run_id))
        open_head(found, SEAL)
    except StoreError:
        return
    assert expected == found, where


def test_any_changed_byte_of_the_database_is_refused_or_says_nothing(tmp_path: Path) -> None:
    """A page that fell out of use, say; never another run than was saved."""
    with sqlite(tmp_path) as store:
        expected = asyncio.run(fill(store))
        with store._using() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / "runs.sqlite3"
    content, drawn = path.read_bytes(), random.Random(4)
    used = [at for at, byte in enumerate(content) if byte]
    for at in drawn.sample(used, 250):
        path.write_bytes(
            content[:at] + bytes([content[at] ^ 1 << drawn.randrange(8)]) + content[at + 1 :]
        )
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        try:
            changed = sqlite(tmp_path)
        except StoreError:
            continue
        _refused_or_equal(changed, expected, at)
        changed.close()


def test_any_changed_byte_of_the_columns_is_refused(tmp_path: Path) -> None:
    """Of the head, of a row, of the numbers; so is a row that was cut, moved, added or lost."""
    with sqlite(tmp_path) as store:
        expected = asyncio.run(fill(store))
    statements = [
        "UPDATE runs SET revision = 2",
        "UPDATE runs SET revision = 'x'",
        "UPDATE runs SET head = 'text'",
        "UPDATE runs SET head = substr(head, 2)",
        "UPDATE rows SET body = x'7b7d' WHERE number = 1",
        "UPDATE rows SET number = 7 - number WHERE number > 0",
        "UPDATE rows SET body = 5 WHERE number = 0",
        "DELETE FROM rows WHERE number = 2",
        "DELETE FROM rows WHERE number = 0",
        "INSERT INTO rows VALUES ('run-1', 3, x'7b7d')",
    ]
    # Who edits the file is not bound by its triggers.
    for statement in statements:
        connection = sqlite3.connect(tmp_path / "runs.sqlite3", isolation_level=None)
        connection.execute("DROP TRIGGER IF EXISTS rows_stay")
        connection.execute("DROP TRIGGER IF EXISTS rows_are_kept")
        connection.execute("SAVEPOINT before")
        kept = list(connection.iterdump())
        connection.execute(statement)
        connection.execute("RELEASE before")
        connection.close()
        with sqlite(tmp_path) as store, pytest.raises(StateRefused):
            open_head(asyncio.run(store.load("run-1")), SEAL)
        (tmp_path / "runs.sqlite3").unlink()
        again = sqlite3.connect(tmp_path / "runs.sqlite3")
        again.executescript("\n".join(kept))
        again.close()
    with sqlite(tmp_path) as store:
        assert expected == asyncio.run(store.load("run-1"))


def test_rows_that_were_cut_off_are_refused_before_anything_is_appended(tmp_path: Path) -> None:
    """A commit would fill the gap with zeros."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    rows = store.path / "run-1" / "rows.jsonl"
    whole = rows.read_bytes()
    for size in range(len(whole)):
        rows.write_bytes(whole[:size])
        with pytest.raises(StateRefused):
            open_head(store.read("run-1"), SEAL)
        with pytest.raises(StateRefused):
            asyncio.run(store.commit("run-1", expected=3, head=b"{}", rows=[b"{}"]))
        assert whole[:size] == rows.read_bytes()
    rows.unlink()
    with pytest.raises(StateRefused):
        store.read("run-1")


def test_an_older_head_over_newer_rows_is_the_older_run(tmp_path: Path) -> None:
    """As after a crash: the rows that it does not count are no part of it. The log shows more."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    head = store.path / "run-1" / "head.json"
    older = head.read_bytes()
    asyncio.run(
        store.commit(
            "run-1", expected=3, head=sealed("run-1", 4, (*ROWS, b"[]"), SEAL), rows=[b"[]"]
        )
    )
    head.write_bytes(older)

    assert ROWS == store.read("run-1").rows
    open_head(store.read("run-1"), SEAL)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"key":1}', b"\xff"])
def test_a_letter_that_was_edited_is_refused(tmp_path: Path, content: bytes) -> None:
    """Nobody guesses what it said."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    asyncio.run(store.post("run-1", "k", b"{}"))
    (letter,) = (store.path / "run-1" / "letters").glob("*.json")
    letter.write_bytes(content)

    with pytest.raises(StateRefused):
        asyncio.run(store.letters("run-1"))


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    """What it points to is not written."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    rows = store.path / "run-1" / "rows.jsonl"
    rows.unlink()
    rows.symlink_to(target)

    with pytest.raises(StoreError):
        asyncio.run(store.commit("run-1", expected=3, head=b"{}", rows=[b"{}"]))

    assert b"precious" == target.read_bytes()


class ClosedDisk(Disk):
    """Says of names in *closed* what a folder of somebody else says."""

    def __init__(self, *closed: str) -> None:
        self.closed = closed

    def names(self, path: Path) -> list[str]:
        if path.name in self.closed:
            raise PermissionError(errno.EACCES, "no", str(path))
        return super().names(path)

    def look(self, path: Path) -> None:
        if path.parent.name in self.closed:
            raise PermissionError(errno.EACCES, "no", str(path))
        super().look(path)


def test_a_run_that_cannot_be_looked_into_is_listed_and_not_ended(tmp_path: Path) -> None:
    """Whoever ends all runs is told that this one was not; the others are."""
    asyncio.run(fill(directory(tmp_path)))
    (tmp_path / "runs" / "run-2").symlink_to("run-2")
    (tmp_path / "runs" / "run-3").mkdir()
    store = DirectoryRunStore(tmp_path / "runs", seal=SEAL, disk=ClosedDisk("run-3"))

    assert ("run-1", "run-2", "run-3") == asyncio.run(store.list_ids())
    replies = asyncio.run(runs.cancel_all(store, by="ann"))
    assert {"run-2": "failed"}.items() <= {r.run_id: str(r.status) for r in replies}.items()


def test_a_folder_of_runs_that_cannot_be_listed_is_a_store_error(tmp_path: Path) -> None:
    """Never a folder without runs."""
    asyncio.run(fill(directory(tmp_path)))
    closed = DirectoryRunStore(tmp_path / "runs", seal=SEAL, disk=ClosedDisk("runs"))

    with pytest.raises(StoreError, match="cannot be listed"):
        asyncio.run(runs.cancel_all(closed, by="ann"))


def test_names_that_no_run_can_have_are_no_runs(tmp_path: Path) -> None:
    """Nor is a file, or a folder in which no run was saved."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    for name in ("-x", "a b", ".gone-1", "x" * 65, "b\u00fc"):
        shutil.copytree(store.path / "run-1", store.path / name)
    (store.path / "file").touch()
    (store.path / "empty").mkdir()

    assert ("run-1",) == asyncio.run(store.list_ids())


@pytest.mark.parametrize("name", ["head.json", "rows.jsonl", "letter", "lock"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link"])
def test_what_is_no_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe or a device in the place of a file would hold up whoever lists or ends runs."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    asyncio.run(store.post("run-1", "k", b"{}"))
    folder = store.path / "run-1"
    path = next((folder / "letters").glob("*.json")) if name == "letter" else folder / name
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(tmp_path / "elsewhere")

    async def scenario() -> None:
        head = sealed("run-1", 4, (*ROWS, b"[]"), SEAL)
        await store.load("run-1")
        await store.letters("run-1")
        await store.commit("run-1", expected=3, head=head, rows=[b"[]"])

    with pytest.raises(StoreError):
        asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize("name", ["head.json", "rows.jsonl", "letter"])
def test_a_file_that_is_larger_than_any_is_refused(name: str, tmp_path: Path) -> None:
    """Before it is read; a file with holes takes no room on the disk."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    asyncio.run(store.post("run-1", "k", b"{}"))
    folder = store.path / "run-1"
    path = next((folder / "letters").glob("*.json")) if name == "letter" else folder / name
    os.truncate(path, 1 << 32)

    async def scenario() -> None:
        await store.load("run-1")
        await store.letters("run-1")

    with pytest.raises(StateRefused, match="larger than"):
        asyncio.run(scenario())


def test_to_ask_who_drives_a_run_writes_nothing(tmp_path: Path) -> None:
    """So runs are listed from a folder that cannot be written."""
    store = directory(tmp_path)
    asyncio.run(fill(store))
    (summary,) = asyncio.run(runs.list_runs(store))

    assert not asyncio.run(store.is_claimed("run-1"))
    assert summary.run_id == "run-1"
    assert not (store.path / ".claims").exists()


# ── the order of writes ─────────────────────────────────────────────────────────────────────────


@attrs.define
class WatchedDisk(Disk):
    """Notes what is done to which file."""

    done: list[tuple[str, str]] = attrs.field(factory=list)

    def _note(self, what: str, handle: int) -> None:
        # Linux: what an open file is called.
        self.done.append((what, Path(f"/proc/self/fd/{handle}").readlink().name))

    def write(self, handle: int, block: bytes) -> None:
        self._note("write", handle)
        super().write(handle, block)

    def sync(self, handle: int) -> None:
        self._note("sync", handle)
        super().sync(handle)

    def replace(self, source: Path, target: Path) -> None:
        self.done.append(("replace", target.name))
        super().replace(source, target)


def test_what_a_head_speaks_of_is_on_the_disk_before_the_head_is(tmp_path: Path) -> None:
    """A loss of power may keep any write back that was not waited for: rows, then draft, then name."""
    disk = WatchedDisk()
    store = DirectoryRunStore(tmp_path / "runs", seal=SEAL, disk=disk)
    head = sealed("run-1", 1, ROWS, SEAL)
    asyncio.run(store.commit("run-1", expected=0, head=head, rows=ROWS))

    expected = [
        ("sync", "runs"),
        ("write", "rows.jsonl"),
        ("sync", "rows.jsonl"),
        ("write", ".head.json.draft"),
        ("sync", ".head.json.draft"),
        ("replace", "head.json"),
        ("sync", "run-1"),
    ]
    assert expected == disk.done


# ── a disk that fails ───────────────────────────────────────────────────────────────────────────


@attrs.define
class FullDisk(Disk):
    """From the *fail_at*-th step on, nothing fits; of a block that does not fit, half is written."""

    fail_at: int
    steps: int = 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps >= self.fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, handle: int, block: bytes) -> None:
        if self.steps + 1 == self.fail_at:
            os.write(handle, block[: len(block) // 2])
        self._step()
        super().write(handle, block)

    def truncate(self, handle: int, size: int) -> None:
        self._step()
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._step()
        super().sync(handle)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)


async def outcome(work: Coroutine[object, object, int]) -> object:
    """What it answered, or the class of the error."""
    try:
        return await work
    except StoreError as error:
        return type(error)


def test_a_disk_that_fails_at_any_step_of_a_commit_leaves_one_revision(tmp_path: Path) -> None:
    """A `StoreError`, and the run is as it was before, or as it should be after; then it goes on."""
    seen = set()
    for fail_at in range(1, 9):
        folder = tmp_path / str(fail_at)
        healthy = directory(folder)
        before = asyncio.run(fill(healthy))
        full = DirectoryRunStore(folder / "runs", seal=SEAL, disk=FullDisk(fail_at))
        rows = (*ROWS, b'{"d":4}')
        head = sealed("run-1", 4, rows, SEAL)
        work = partial(full.commit, "run-1", expected=3, head=head, rows=rows[3:])
        told = asyncio.run(outcome(work()))
        assert told in (4, StoreError)
        found = healthy.read("run-1")
        open_head(found, SEAL)
        seen.add(found.revision)
        assert found.rows == (before.rows if found.revision == 3 else rows)
        assert not list(folder.rglob("*.draft")) or fail_at > 3
        following = sealed("run-1", found.revision + 1, (*found.rows, b"[]"), SEAL)
        asyncio.run(healthy.commit("run-1", expected=found.revision, head=following, rows=[b"[]"]))
        open_head(healthy.read("run-1"), SEAL)
    assert seen == {3, 4}


def test_a_disk_that_fails_at_any_step_of_a_first_commit_leaves_no_half_run(tmp_path: Path) -> None:
    """Either there is no such run, or it is whole; and it can be begun."""
    for fail_at in range(1, 9):
        store = DirectoryRunStore(tmp_path / str(fail_at), seal=SEAL, disk=FullDisk(fail_at))
        with contextlib.suppress(StoreError):
            asyncio.run(fill(store))
        healthy = DirectoryRunStore(tmp_path / str(fail_at), seal=SEAL)
        for run_id in healthy.run_ids():
            open_head(healthy.read(run_id), SEAL)
        if not healthy.run_ids():
            asyncio.run(fill(healthy))


def test_a_letter_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    """Or it is there as a whole."""
    for fail_at in range(1, 7):
        folder = tmp_path / str(fail_at)
        healthy = directory(folder)
        asyncio.run(fill(healthy))
        full = DirectoryRunStore(folder / "runs", seal=SEAL, disk=FullDisk(fail_at))
        with contextlib.suppress(StoreError):
            asyncio.run(full.post("run-1", "k", b'{"a":1}'))
        assert asyncio.run(healthy.letters("run-1")) in ({}, {"k": b'{"a":1}'})
        assert b'{"a":1}' == asyncio.run(healthy.post("run-1", "k", b'{"a":1}'))


_NO_ROOM = """
    import asyncio, resource, signal, sys
    from pathlib import Path
    sys.path[:0] = {tests!r}
    import test_storage as there
    from runtime_pack.errors import StoreError

    store = getattr(there, {opened!r})(Path({folder!r}))
    asyncio.run(store.load("run-1"))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
    head = there.sealed("run-1", 4, (*there.ROWS, b"x" * 300_000), there.SEAL)
    try:
        asyncio.run(store.commit("run-1", expected=3, head=head, rows=[b"x" * 300_000]))
    except StoreError as error:
        print("refused", type(error).__name__)
"""


@BOTH
@pytest.mark.parametrize("limit", [0, 100_000])
def test_what_the_system_has_no_room_for_is_a_store_error(
    opened: Callable[[Path], Opened], limit: int, tmp_path: Path
) -> None:
    """The run stays at its revision, and there is room again later."""
    store = opened(tmp_path)
    before = asyncio.run(fill(store))
    shut(store)
    code = textwrap.dedent(_NO_ROOM).format(
        tests=[str(Path(__file__).parent), str(ROOT)],
        opened=opened.__name__,
        folder=str(tmp_path),
        limit=limit,
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    assert ("refused StoreError\n", 0) == (done.stdout, done.returncode), done.stderr
    again = opened(tmp_path)
    assert before == asyncio.run(again.load("run-1"))
    head = sealed("run-1", 4, (*ROWS, b"[]"), SEAL)
    assert 4 == asyncio.run(again.commit("run-1", expected=3, head=head, rows=[b"[]"]))
    open_head(asyncio.run(again.load("run-1")), SEAL)
    shut(again)


@BOTH
def test_a_place_that_cannot_be_used_is_a_store_error(
    opened: Callable[[Path], Opened], tmp_path: Path
) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreError):
        opened(tmp_path / "file" / "deeper")


# ── several processes ───────────────────────────────────────────────────────────────────────────


_WRITER = """
    import asyncio, sys
    from pathlib import Path
    sys.path[:0] = {tests!r}
    import test_storage as there
    from runtime_pack.testing_stores import commit_somehow

    store = getattr(there, {opened!r})(Path({folder!r}))
    async def main():
        for _ in range(15):
            await commit_somehow(store, "run-1", b'{{"n":{number}}}')
    asyncio.run(main())
    there.shut(store)
"""


@BOTH
def test_writers_in_processes_lose_no_revision(
    opened: Callable[[Path], Opened], tmp_path: Path
) -> None:
    """They even make the store at once."""
    writers = []
    for number in range(3):
        code = textwrap.dedent(_WRITER).format(
            tests=[str(Path(__file__).parent), str(ROOT)],
            opened=opened.__name__,
            folder=str(tmp_path),
            number=number,
        )
        writers.append(subprocess.Popen([sys.executable, "-W", "error", "-c", code]))
    codes = [writer.wait(timeout=90) for writer in writers]
    store = opened(tmp_path)
    found = asyncio.run(store.load("run-1"))
    shut(store)

    assert [0, 0, 0] == codes
    assert (45, 45) == (found.revision, len(found.rows))
    assert {b'{"n":0}': 15, b'{"n":1}': 15, b'{"n":2}': 15} == {
        row: found.rows.count(row) for row in set(found.rows)
    }


_HOLDER = """
    import asyncio, sys, time
    from pathlib import Path
    sys.path[:0] = {tests!r}
    import test_storage as there

    store = getattr(there, {opened!r})(Path({folder!r}))
    claim = asyncio.run(store.claim("run-1"))
    print("held" if claim else "not held", flush=True)
    time.sleep(60)
"""


@BOTH
def test_a_claim_ends_when_its_process_is_killed(
    opened: Callable[[Path], Opened], tmp_path: Path
) -> None:
    """Nothing has to be cleaned up by hand."""
    store = opened(tmp_path)
    code = textwrap.dedent(_HOLDER).format(
        tests=[str(Path(__file__).parent), str(ROOT)],
        opened=opened.__name__,
        folder=str(tmp_path),
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert "held\n" == holder.stdout.readline()

    assert asyncio.run(store.claim("run-1")) is None
    assert asyncio.run(store.is_claimed("run-1"))
    holder.kill()
    holder.wait(timeout=30)
    holder.stdout.close()
    claim = asyncio.run(store.claim("run-1"))
    assert claim is not None
    claim.release()
    shut(store)


def test_a_forked_process_opens_connections_of_its_own(tmp_path: Path) -> None:
    """Those of its parent are neither used nor closed by it."""
    with sqlite(tmp_path) as store:
        expected = asyncio.run(fill(store))
        before = list(store._idle)
        # As in a process that was forked: the number of the process is another one.
        store._pid -= 1
        assert expected == asyncio.run(store.load("run-1"))

        assert before == store._of_parent
        assert before != store._idle
        for connection in before:
            connection.close()


def test_an_unknown_run_leaves_no_folder(tmp_path: Path) -> None:
    """Loading, posting and late commits make nothing."""
    store = directory(tmp_path)
    with pytest.raises(RunNotFound):
        store.read("run-1")
    with pytest.raises(RunNotFound):
        asyncio.run(store.post("run-1", "k", b"{}"))
    with pytest.raises(RunConflict):
        asyncio.run(store.commit("run-1", expected=1, head=b"{}", rows=[]))

    assert [] == list(store.path.iterdir())
