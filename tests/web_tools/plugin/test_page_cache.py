"""The page cache: content-addressed, crash-safe, bounded, for several processes at once."""

import hashlib
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from web_tools.errors import InvalidSetup
from web_tools.page_cache import CachedContent, CacheLimits, CacheUsage, PageCache, evicted

DAY = 86_400.0
SMALL = CacheLimits(max_bytes=100, max_entries=4, max_content_bytes=60, keep_seconds=100.0)
URL = "https://docs.example.com/kettles?private=words"


@attrs.define
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def open_cache(folder: Path, clock: Clock | None = None, **limits: Any) -> PageCache:
    own = attrs.evolve(SMALL, **limits)
    return PageCache(folder / "cache", limits=own, clock=clock or Clock())


def content_of(cache: PageCache, name: str) -> bytes | None:
    found = cache.find(name)
    return None if found is None else found.content


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "contents").iterdir())


def test_the_defaults_are_those_of_the_plugin_text() -> None:
    """2 GiB, 5,000 entries, 5 MiB each, 14 days."""
    limits = CacheLimits()

    assert (2 * 1024**3, 5000, 5 * 1024**2) == (
        limits.max_bytes,
        limits.max_entries,
        limits.max_content_bytes,
    )
    assert 14 * DAY == limits.keep_seconds


def test_content_and_note_come_back_in_another_process_of_the_same_folder(tmp_path: Path) -> None:
    """What one instance keeps, an instance that is opened later finds, with its note."""
    open_cache(tmp_path).keep(URL, b"a page", note=b"etag")

    found = open_cache(tmp_path).find(URL)

    assert found is not None
    assert (b"a page", b"etag") == (found.content, found.note)
    assert 1_000_000.0 == found.stored_at.timestamp()


def test_content_files_hold_content_only_and_no_file_holds_the_name(tmp_path: Path) -> None:
    """A file of the contents is the content, its name the digest; a URL stands in no file at all."""
    cache = open_cache(tmp_path)
    cache.keep(URL, b"a page")
    cache.close()

    assert [b"a page"] == [path.read_bytes() for path in files(tmp_path)]
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"docs.example.com" not in held
    assert b"private" not in held


def test_two_folders_know_one_name_by_two_digests(tmp_path: Path) -> None:
    """The digests are keyed: nobody can ask an index whether a URL was read."""
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        cache = open_cache(tmp_path / name)
        cache.keep(URL, b"x")
        cache.close()
        with sqlite3.connect(tmp_path / name / "cache" / "index.sqlite3") as index:
            digests += index.execute("SELECT name FROM entries").fetchall()
        index.close()

    assert 2 == len(set(digests))


def test_equal_contents_are_one_file_and_count_once(tmp_path: Path) -> None:
    """The last name of a content takes the file with it, no earlier one does."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"same")
    cache.keep("b", b"same")

    assert CacheUsage(entries=2, bytes=4) == cache.usage()
    cache.drop("a")
    assert b"same" == content_of(cache, "b")
    cache.drop("b")
    assert [] == files(tmp_path)


def test_keeping_again_replaces_the_content(tmp_path: Path) -> None:
    """One name has one content, and the file of the former one goes."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"old")
    cache.keep("a", b"new", note=b"n")

    assert b"new" == content_of(cache, "a")
    assert 1 == len(files(tmp_path))


def test_what_is_too_large_is_not_kept_and_takes_the_place_of_what_was_there(
    tmp_path: Path,
) -> None:
    """An older version of a page must not stand for one that is too large to be kept."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"small")

    assert cache.keep("a", b"x" * 61) is False
    assert cache.find("a") is None
    assert cache.keep("a", b"x" * 60) is True


def test_content_larger_than_the_whole_cache_is_not_kept(tmp_path: Path) -> None:
    """The lower of the two sizes holds."""
    cache = open_cache(tmp_path, max_bytes=10)

    assert cache.keep("a", b"x" * 11) is False


def test_the_count_evicts_what_was_used_last_longest_ago(tmp_path: Path) -> None:
    """A hit counts as a use, so the oldest entry stays when it was read."""
    clock = Clock()
    cache = open_cache(tmp_path, clock)
    for name in "abcd":
        clock.now += 1
        cache.keep(name, name.encode())
    clock.now += 1
    cache.find("a")
    clock.now += 1
    cache.keep("e", b"e")

    assert [True, False, True, True, True] == [cache.find(n) is not None for n in "abcde"]


def test_order_of_use_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    """A clock that stands still, or goes back, evicts what was used last longest ago all the same."""
    clock = Clock()
    cache = open_cache(tmp_path, clock)
    for name in "abcdefgh":
        cache.keep(name, name.encode())
        cache.find("a")
        clock.now -= 1

    assert "afgh" == "".join(name for name in "abcdefgh" if cache.find(name))


def test_the_size_evicts_as_few_as_can_be(tmp_path: Path) -> None:
    """100 bytes hold two of 40; the third takes the place of the first."""
    clock = Clock()
    cache = open_cache(tmp_path, clock)
    for name in "abc":
        clock.now += 1
        cache.keep(name, name.encode() * 40)

    assert [False, True, True] == [cache.find(n) is not None for n in "abc"]
    assert 80 == cache.usage().bytes
    assert 2 == len(files(tmp_path))


def test_an_entry_expires_and_a_hit_extends_it(tmp_path: Path) -> None:
    """Kept for 100 seconds from its last use, and not one longer."""
    clock = Clock()
    cache = open_cache(tmp_path, clock)
    cache.keep("used", b"1")
    cache.keep("left", b"2")
    clock.now += 99
    assert cache.find("used") is not None
    clock.now += 1

    assert cache.find("left") is None
    clock.now += 98
    assert cache.find("used") is not None
    clock.now += 100
    assert cache.find("used") is None
    assert [] == files(tmp_path)


def test_hits_extend_an_entry_up_to_an_end(tmp_path: Path) -> None:
    """A page that is asked for daily is fetched again some day."""
    clock = Clock()
    cache = open_cache(tmp_path, clock, longest_seconds=150.0)
    cache.keep("a", b"1")
    clock.now += 90
    assert cache.find("a") is not None
    clock.now += 59
    assert cache.find("a") is not None
    clock.now += 1
    assert cache.find("a") is None


def test_a_confirmed_entry_begins_again_with_a_new_note(tmp_path: Path) -> None:
    """After the server says that nothing has changed, it is as if it was stored now."""
    clock = Clock()
    cache = open_cache(tmp_path, clock, longest_seconds=150.0)
    cache.keep("a", b"1", note=b"old")
    clock.now += 90

    assert cache.confirm("a", note=b"new") is True
    assert cache.confirm("other", note=b"new") is False
    clock.now += 99
    found = cache.find("a")
    assert found is not None
    assert (b"1", b"new", 1_000_090.0) == (found.content, found.note, found.stored_at.timestamp())


def test_expired_entries_go_before_those_that_are_of_use(tmp_path: Path) -> None:
    """A put removes what has expired, and then nothing else has to go."""
    clock = Clock()
    cache = open_cache(tmp_path, clock)
    for name in "abcd":
        cache.keep(name, name.encode())
    clock.now += 60
    cache.find("a")
    clock.now += 40
    cache.keep("e", b"e")

    assert CacheUsage(entries=2, bytes=2) == cache.usage()


@pytest.mark.parametrize("damage", ["torn", "changed", "gone", "link"])
def test_a_content_that_is_not_what_was_kept_is_a_miss(tmp_path: Path, damage: str) -> None:
    """The digest is checked at every read; the entry goes, and keeping it again works."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"a page")
    (path,) = files(tmp_path)
    if damage == "torn":
        path.write_bytes(b"a pa")
    elif damage == "changed":
        path.write_bytes(b"a lie!")
    else:
        path.unlink()
    if damage == "link":
        (tmp_path / "same").write_bytes(b"a page")
        path.symlink_to(tmp_path / "same")

    assert cache.find("a") is None
    assert 0 == cache.usage().entries
    assert cache.keep("a", b"a page")
    assert b"a page" == content_of(cache, "a")


def test_what_a_crash_left_behind_is_removed_when_the_folder_is_opened(tmp_path: Path) -> None:
    """Drafts, and contents that no entry names; contents that one names stay."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"a page")
    cache.close()
    contents = tmp_path / "cache" / "contents"
    (contents / "draft-1-00112233445566ff").write_bytes(b"half")
    (contents / ("0" * 64)).write_bytes(b"whole, and in no index")

    assert b"a page" == content_of(open_cache(tmp_path), "a")
    assert 1 == len(files(tmp_path))


@pytest.mark.parametrize("rubbish", [b"no database at all" * 400, b""])
def test_an_index_that_is_none_is_begun_anew(tmp_path: Path, rubbish: bytes) -> None:
    """It costs what was kept, and no call fails."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"a page")
    cache.close()
    for path in (tmp_path / "cache").glob("index.sqlite3*"):
        path.unlink()
    (tmp_path / "cache" / "index.sqlite3").write_bytes(rubbish)

    assert cache.find("a") is None
    assert cache.keep("a", b"again")
    assert b"again" == content_of(cache, "a")


def test_a_cache_that_cannot_be_written_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is found and nothing kept; the log names the type of what went wrong, and no URL."""
    cache = open_cache(tmp_path)
    for path in (tmp_path / "cache" / "contents",):
        path.rmdir()

    assert cache.keep(URL, b"a page") is False
    assert cache.find(URL) is None
    assert CacheUsage(entries=0, bytes=0) == cache.usage()
    assert "FileNotFoundError" in caplog.text
    assert "example.com" not in caplog.text


def test_a_keep_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """One transaction: the former entry goes with the new one, or not at all."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"old")
    # Where the new content belongs stands a folder, so that its file cannot be put there.
    blocked = tmp_path / "cache" / "contents" / hashlib.sha256(b"new").hexdigest()
    (blocked / "x").mkdir(parents=True)

    assert cache.keep("a", b"new") is False
    assert b"old" == content_of(cache, "a")


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """What stands in it would be theirs."""
    open_cache(tmp_path)
    (tmp_path / "cache" / "contents").chmod(0o777)

    with pytest.raises(InvalidSetup) as refused:
        open_cache(tmp_path)
    assert "page_cache" == refused.value.field


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A cache removes what it does not know: it begins in an empty folder, or in one of its own."""
    for name in ("file", "contents/thesis.md", "index.sqlite3"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")

        with pytest.raises(InvalidSetup, match="no page cache"):
            PageCache(folder)
        assert [folder / name] == [path for path in folder.rglob("*") if path.is_file()]


def test_names_that_are_not_its_own_are_never_removed(tmp_path: Path) -> None:
    """Whoever put something beside the contents finds it there."""
    open_cache(tmp_path).keep("a", b"x")
    foreign = tmp_path / "cache" / "contents" / "notes.txt"
    foreign.write_text("mine")

    open_cache(tmp_path).keep("b", b"y")

    assert "mine" == foreign.read_text()


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """A file, or a link to a folder elsewhere."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    for name in ("file", "link"):
        with pytest.raises(InvalidSetup):
            PageCache(tmp_path / name)


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """Nobody else can see which pages were read."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"x")

    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "cache", *files(tmp_path))}
    assert {0} == modes
    assert 0o600 == (tmp_path / "cache" / "key").stat().st_mode & 0o777


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    """A shorter key would make other digests of the same names."""
    open_cache(tmp_path)
    (tmp_path / "cache" / "key").write_bytes(b"short")

    with pytest.raises(InvalidSetup):
        open_cache(tmp_path)


@pytest.mark.parametrize(
    "field", ["max_bytes", "max_entries", "max_content_bytes", "keep_seconds", "longest_seconds"]
)
@pytest.mark.parametrize("value", [0, -1, True, float("nan"), "5", None])
def test_a_limit_is_a_positive_number(field: str, value: object) -> None:
    """There is no word for no limit."""
    given: dict[str, Any] = {field: value}
    with pytest.raises(InvalidSetup) as refused:
        CacheLimits(**given)
    assert field == refused.value.field


def test_a_note_has_a_bound(tmp_path: Path) -> None:
    """A note is small by its nature; a large one is content in the wrong place."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"x", note=b"n" * 65_536)

    with pytest.raises(ValueError, match="65536"):
        cache.keep("a", b"x", note=b"n" * 65_537)
    with pytest.raises(ValueError, match="65536"):
        cache.confirm("a", note=b"n" * 65_537)


def test_threads_of_one_instance_share_it(tmp_path: Path) -> None:
    """Twenty threads that keep and find lose nothing."""
    cache = open_cache(tmp_path, max_entries=50, max_bytes=10_000)
    lost: list[str] = []

    def work(number: int) -> None:
        name = f"n{number}"
        cache.keep(name, name.encode())
        if content_of(cache, name) != name.encode():
            lost.append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == lost
    assert 20 == cache.usage().entries


_WRITER = """
import sys
from web_tools.page_cache import CacheLimits, PageCache
cache = PageCache(sys.argv[1], limits=CacheLimits(max_entries=50, max_bytes=100_000))
cache.keep("mine", b"of the writer")
print("ready", flush=True)
number = 0
while True:
    number += 1
    cache.keep(f"n{number % 80}", str(number).encode() * 500)
"""


def test_a_process_that_is_killed_while_it_writes_harms_nothing(tmp_path: Path) -> None:
    """Another process uses the folder meanwhile; afterwards every entry is whole and in bounds."""
    folder = tmp_path / "cache"
    mine = PageCache(folder, limits=CacheLimits(max_entries=50, max_bytes=100_000))
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as writer:
        assert writer.stdout is not None
        assert b"ready\n" == writer.stdout.readline()
        kept = [mine.keep(f"m{number}", b"of the other") for number in range(20)]
        writer.send_signal(signal.SIGKILL)
        writer.wait()

    assert all(kept)
    assert mine.keep("after", b"x")
    usage = mine.usage()
    assert usage.entries <= 50
    assert usage.bytes <= 100_000
    names = [f"n{number}" for number in range(80)]
    for place, name in enumerate(names):
        content = content_of(mine, name)
        # A number of its place, 500 times: whole.
        number = "" if content is None else content[: len(content) // 500].decode()
        assert content is None or (number.encode() * 500 == content and int(number) % 80 == place)
    mine.close()
    again = PageCache(folder, limits=CacheLimits(max_entries=50, max_bytes=100_000))
    assert again.usage().entries == len(
        [
            name
            for name in (*names, "mine", "after", *(f"m{n}" for n in range(20)))
            if again.find(name)
        ]
    )


def test_a_forked_process_opens_its_own_index(tmp_path: Path) -> None:
    """A connection that is used on both sides of a fork loses its locks."""
    cache = open_cache(tmp_path)
    cache.keep("a", b"x")
    own = cache._connection
    assert own is not None
    cache._connection = (own[0] + 1, own[1])

    cache.close()
    assert own[1].execute("SELECT 1").fetchone()
    cache._connection = (own[0] + 1, own[1])
    assert b"x" == content_of(cache, "a")
    assert cache._connection is not None
    assert cache._connection[1] is not own[1]
    own[1].close()
    cache.close()


rows = st.lists(
    st.tuples(st.binary(min_size=1, max_size=2), st.sampled_from("ABCD"), st.just(0)),
    unique_by=lambda row: row[0],
    max_size=12,
)


@settings(max_examples=100)
@given(rows=rows, entries=st.integers(1, 12), size=st.integers(1, 40), sizes=st.data())
def test_eviction_is_a_prefix_and_no_longer_than_it_must_be(
    rows: list[tuple[bytes, str, int]], entries: int, size: int, sizes: st.DataObject
) -> None:
    """What stays is within the limits; one fewer evicted would not be."""
    of = {content: sizes.draw(st.integers(0, 20)) for content in "ABCD"}
    held = [(name, content, of[content]) for name, content, _ in rows]
    limits = attrs.evolve(SMALL, max_entries=entries, max_bytes=size)

    gone = evicted(held, limits)

    def fits(count: int) -> bool:
        left = held[count:]
        return len(left) <= entries and sum({c: s for _, c, s in left}.values()) <= size

    assert [name for name, _, _ in held[: len(gone)]] == gone
    assert fits(len(gone))
    assert not gone or not fits(len(gone) - 1)


class CacheMachine(RuleBasedStateMachine):
    """The cache beside a plain model of it: what is found is what was kept last, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.kept: dict[str, tuple[bytes, float, float]] = {}
        self.cache = self.opened()

    def opened(self) -> PageCache:
        return open_cache(Path(self.folder.name), self.clock, longest_seconds=250.0)

    @rule(name=st.sampled_from("abcdef"), content=st.binary(max_size=70))
    def keep(self, name: str, content: bytes) -> None:
        kept = self.cache.keep(name, content)
        assert kept is (len(content) <= 60)
        # What was just kept is never what is evicted.
        found = self.cache.find(name)
        assert (found is not None and content == found.content) is kept
        self.kept.pop(name, None)
        if kept:
            self.kept[name] = (content, self.clock.now, self.clock.now)

    @rule(name=st.sampled_from("abcdef"))
    def find(self, name: str) -> None:
        found = self.cache.find(name)
        if found is not None:
            content, stored, used = self.kept[name]
            assert isinstance(found, CachedContent)
            assert content == found.content
            assert self.clock.now < min(used + 100, stored + 250)
            self.kept[name] = (content, stored, self.clock.now)

    @rule(name=st.sampled_from("abcdef"))
    def drop(self, name: str) -> None:
        self.cache.drop(name)
        self.kept.pop(name, None)
        assert self.cache.find(name) is None

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def open_again(self) -> None:
        self.cache.close()
        self.cache = self.opened()

    @invariant()
    def it_is_within_its_limits(self) -> None:
        usage = self.cache.usage()
        assert usage.entries <= 4
        assert usage.bytes <= 100
        on_disk = sum(path.stat().st_size for path in files(Path(self.folder.name)))
        assert usage.bytes == on_disk

    def teardown(self) -> None:
        self.cache.close()
        self.folder.cleanup()


CacheMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestCacheMachine = CacheMachine.TestCase
