"""The store of revisions on disk: content only, bounded, whole or not there, for many processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import runtime_pack
from citations import revision_id
from runtime_pack.errors import ContractError
from runtime_pack.revisions import DirectoryRevisionStore

ROOT = Path(runtime_pack.__file__).parent.parent


def test_a_text_comes_back_whole(tmp_path: Path) -> None:
    """Line ends, surrogates and all, as it is digested."""
    store = DirectoryRevisionStore(tmp_path / "r")

    for text in ("", "a\r\nb\rc\x00", "\ud800x", "é\u2028"):
        key = store.put(text)
        assert key == revision_id(text)
        assert store.get(key) == text.replace("\ud800", "\ufffd")


def test_only_content_is_kept_for_the_owner_only(tmp_path: Path) -> None:
    """The name is the digest; modes are 0600 and 0700."""
    store = DirectoryRevisionStore(tmp_path / "r")
    store.put("text")

    files = {path.name for path in store.path.iterdir()}
    assert files == {hashlib.sha256(b"text").hexdigest(), ".lock"}
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    for path in store.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_looking_makes_nothing(tmp_path: Path) -> None:
    """A store that is only read leaves no folder behind."""
    store = DirectoryRevisionStore(tmp_path / "r")

    assert store.get(revision_id("x")) is None
    assert len(store) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_bounds_hold(tmp_path: Path) -> None:
    """What was used least recently goes first, by number and by bytes."""
    store = DirectoryRevisionStore(tmp_path / "r", max_entries=2, max_bytes=100)
    for number, text in enumerate(("a", "b"), start=1):
        name = str(store.put(text)).removeprefix("sha256:")
        os.utime(store.path / name, ns=(number, number))

    store.get(revision_id("a"))
    store.put("c")

    assert store.get(revision_id("b")) is None
    assert store.get(revision_id("a")) == "a"
    store.put("d" * 99)
    assert store.get(revision_id("d" * 99)) is not None
    assert len(store) == 2
    store.put("e" * 100)
    assert len(store) == 1
    assert store.put("f" * 101) is None


@pytest.mark.parametrize("bound", [0, True, 1.5])
def test_a_bound_is_a_whole_number_from_1(tmp_path: Path, bound: int) -> None:
    """Said before anything is kept."""
    with pytest.raises(ContractError, match="max_entries"):
        DirectoryRevisionStore(tmp_path, max_entries=bound)


def test_a_damaged_text_is_no_text_and_is_mended(tmp_path: Path) -> None:
    """Cut by a crash or edited: it does not have its digest."""
    store = DirectoryRevisionStore(tmp_path / "r")
    key = str(store.put("the whole text"))
    path = store.path / key.removeprefix("sha256:")

    for damage in (b"the whole", b"\xff\xfe", b""):
        path.write_bytes(damage)
        assert store.get(key) is None
    store.put("the whole text")

    assert store.get(key) == "the whole text"


def test_a_text_under_another_digest_is_no_text(tmp_path: Path) -> None:
    """Whoever swaps two files swaps nothing."""
    store = DirectoryRevisionStore(tmp_path / "r")
    one, two = str(store.put("one")), str(store.put("two"))

    (store.path / one[7:]).write_text("two")

    assert store.get(one) is None
    assert store.get(two) == "two"


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Whatever stands in the place of a text."""
    store = DirectoryRevisionStore(tmp_path / "r")
    key = str(store.put("one"))
    path = store.path / key[7:]
    (tmp_path / "outside").write_text("one")

    path.unlink()
    path.symlink_to(tmp_path / "outside")
    assert store.get(key) is None
    path.unlink()
    os.mkfifo(path)
    assert store.get(key) is None


@pytest.mark.parametrize("key", ["", "sha256:", "sha256:../../key", "md5:" + "0" * 64, "0" * 64])
def test_what_is_no_digest_names_nothing(tmp_path: Path, key: str) -> None:
    """A key never leaves the folder."""
    store = DirectoryRevisionStore(tmp_path / "r")
    store.put("x")

    assert store.get(key) is None


def test_what_a_dead_writer_left_is_swept(tmp_path: Path) -> None:
    """A draft without its name is dropped by the next writer."""
    store = DirectoryRevisionStore(tmp_path / "r")
    store.put("x")
    (store.path / ".draft-dead").write_text("half")

    store.put("y")

    assert not (store.path / ".draft-dead").exists()


def test_threads_and_a_process_keep_their_texts_together(tmp_path: Path) -> None:
    """No text is lost or torn, and the bounds hold for all of them."""
    code = (
        "import sys\nfrom runtime_pack.revisions import DirectoryRevisionStore\n"
        "store = DirectoryRevisionStore(sys.argv[1], max_entries=30)\n"
        "for n in range(20): store.put(f'process {n} ' * 50)\n"
    )
    store = DirectoryRevisionStore(tmp_path / "r", max_entries=30)
    command = [sys.executable, "-c", code, str(store.path)]
    other = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    threads = [
        threading.Thread(target=lambda t=t: [store.put(f"{t} {n} " * 50) for n in range(10)])
        for t in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert other.wait() == 0
    assert len(store) == 30
    for path in store.path.iterdir():
        if path.name != ".lock":
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_lock_that_somebody_keeps_is_not_waited_for(tmp_path: Path) -> None:
    """The text is not kept, the caller is told, and a later one is kept."""
    store = DirectoryRevisionStore(tmp_path / "r")
    store.put("first")
    handle = os.open(tmp_path / "r" / ".lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    # Should somebody wait for it after all, the test ends, and fails.
    end = threading.Timer(20, os.close, [handle])
    end.start()

    try:
        with pytest.raises(OSError, match="unavailable"):
            store.put("second")
    finally:
        end.cancel()
        os.close(handle)

    assert store.put("second") == revision_id("second")


def test_a_thread_that_keeps_the_store_is_not_waited_for(tmp_path: Path) -> None:
    """Nor by the other threads of its process."""
    store = DirectoryRevisionStore(tmp_path / "r")
    store.put("first")
    handle = os.open(tmp_path / "r" / ".lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(store.put, f"text {number}") for number in range(4)]
        errors = [wait.exception(timeout=20) for wait in waits]
    os.close(handle)

    assert all(isinstance(error, BlockingIOError) for error in errors)
    assert len(store) == 1
