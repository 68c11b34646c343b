"""The encrypted store of credentials, and the command over it."""

import base64
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runtime_pack import CredentialSource
from runtime_pack.cli.credential import command
from runtime_pack.credentials import KEY_VARIABLE, EncryptedCredentials, PolicyCredentials
from runtime_pack.errors import ContractError, StateRefused, StoreError
from web_tools.errors import InvalidSetup

VALUE = "k3y-SENTINEL"


def run(folder: Path, *words: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(command, [*words, "--state-dir", str(folder)], input=given)


def test_what_is_stored_is_found_again(tmp_path: Path) -> None:
    """Whole, replaced by a later one, gone when it is removed."""
    store = EncryptedCredentials(tmp_path / "state")
    assert (None, ()) == (store.find("search.apiKey"), store.names())

    store.put("search.apiKey", VALUE)
    store.put("a", "x")
    store.put("search.apiKey", VALUE + "2")
    again = EncryptedCredentials(tmp_path / "state")

    assert (VALUE + "2", ("a", "search.apiKey")) == (again.find("search.apiKey"), again.names())
    assert [True, False] == [store.remove("a"), store.remove("a")]
    assert ("search.apiKey",) == store.names()
    assert VALUE not in repr(store)


def test_nothing_of_it_is_readable_on_the_disk(tmp_path: Path) -> None:
    """Neither names nor values, and every file is its owner's alone."""
    EncryptedCredentials(tmp_path / "s").put("search.apiKey", VALUE)

    files = [path for path in (tmp_path / "s").iterdir() if path.is_file()]
    for path in files:
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
        assert not any(word in path.read_bytes() for word in (VALUE.encode(), b"search.apiKey"))
    assert {"credentials", "credentials.key", "credentials.lock"} == {path.name for path in files}
    assert 0o700 == stat.S_IMODE((tmp_path / "s").stat().st_mode)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """In the head, the nonce, the box and its tag; a cut file, too."""
    store = EncryptedCredentials(tmp_path)
    store.put("a", VALUE)
    path = tmp_path / "credentials"
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(StateRefused):
            store.find("a")
    for kept in (0, 10, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(StateRefused):
            store.find("a")


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    """And a store without its key says so; nothing is overwritten with a new one."""
    store = EncryptedCredentials(tmp_path)
    store.put("a", VALUE)

    with pytest.raises(StateRefused):
        EncryptedCredentials(tmp_path, key=bytes(32)).find("a")
    (tmp_path / "credentials.key").unlink()
    with pytest.raises(StoreError):
        store.find("a")
    with pytest.raises(StoreError):
        store.put("b", "x")
    assert not (tmp_path / "credentials.key").exists()


def test_a_key_may_be_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a variable; then there is no key file, and what is no key is refused."""
    monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(bytes(range(32))).decode())
    EncryptedCredentials(tmp_path).put("a", VALUE)

    assert not (tmp_path / "credentials.key").exists()
    assert VALUE == EncryptedCredentials(tmp_path, key=bytes(range(32))).find("a")
    for wrong in ("short", base64.b64encode(bytes(31)).decode(), "ü"):
        monkeypatch.setenv(KEY_VARIABLE, wrong)
        with pytest.raises(ContractError):
            EncryptedCredentials(tmp_path).find("a")
    with pytest.raises(ContractError):
        EncryptedCredentials(tmp_path, key=b"short")


@pytest.mark.parametrize("name", ["credentials", "credentials.key"])
def test_what_others_can_read_is_refused(name: str, tmp_path: Path) -> None:
    """Also a link and a pipe in its place, which are not waited for."""
    store = EncryptedCredentials(tmp_path)
    store.put("a", VALUE)
    path = tmp_path / name
    path.chmod(0o640)
    with pytest.raises(StoreError) as caught:
        store.find("a")
    assert VALUE not in str(caught.value)

    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        store.find("a")
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(StoreError):
        store.find("a")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    """They could put a store and a key of theirs in the place of ours: nothing is read or written."""
    folder = tmp_path / "s"
    store = EncryptedCredentials(folder)
    store.put("search.apiKey", VALUE)
    folder.chmod(mode)

    uses: list[Callable[[], object]] = [
        lambda: store.find("search.apiKey"),
        store.names,
        lambda: store.put("a", "x"),
        lambda: store.remove("search.apiKey"),
    ]
    for use in uses:
        with pytest.raises(StoreError) as refused:
            use()
        assert "chmod 700" in str(refused.value)
    assert isinstance(run(folder, "list").exception, StoreError)
    folder.chmod(0o700)
    assert ("search.apiKey",) == store.names()


def test_a_folder_in_which_each_user_owns_what_is_there_is_read(tmp_path: Path) -> None:
    """As a temporary folder of the system: the modes of the files say enough."""
    folder = tmp_path / "s"
    folder.mkdir()
    folder.chmod(0o1777)
    EncryptedCredentials(folder).put("search.apiKey", VALUE)

    assert VALUE == EncryptedCredentials(folder).find("search.apiKey")


def test_writers_at_one_time_lose_nothing(tmp_path: Path) -> None:
    """One after the other, under one key."""
    names = [f"n{number}" for number in range(8)]
    writers = [
        threading.Thread(target=EncryptedCredentials(tmp_path).put, args=(name, "x"))
        for name in names
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert tuple(names) == EncryptedCredentials(tmp_path).names()


@pytest.mark.parametrize(
    ("name", "value"), [("a b", "x"), ("a", ""), ("a", "x\ny"), ("../a", "x"), ("a", "ü")]
)
def test_what_is_no_credential_is_not_stored(name: str, value: str, tmp_path: Path) -> None:
    """A line break would be another header."""
    with pytest.raises(InvalidSetup):
        EncryptedCredentials(tmp_path).put(name, value)

    assert [] == list(tmp_path.iterdir())


def test_a_store_has_a_bound(tmp_path: Path) -> None:
    """It is no database."""
    store = EncryptedCredentials(tmp_path, key=bytes(32))
    full: dict[str, Any] = {f"n{number}": "x" for number in range(256)}
    with store._locked():
        store._write(full)

    with pytest.raises(StoreError):
        store.put("one-more", "x")
    store.put("n0", "y")


def test_a_policy_file_names_where_a_credential_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By variable or file; what is not there is none, and nothing of it is shown."""
    monkeypatch.setenv("ACME_KEY", VALUE)
    given = {
        "search.apiKey": CredentialSource(env="ACME_KEY"),
        "other": CredentialSource(file=tmp_path / "none"),
    }
    source = PolicyCredentials(given)

    assert [VALUE, None, None] == [source.find(n) for n in ("search.apiKey", "other", "third")]
    assert VALUE not in repr(source)


# ── the command ───────────────────────────────────────────────────────────────────────────────


def test_a_key_comes_in_and_never_out(tmp_path: Path) -> None:
    """Set, list, remove; the end of a line is not part of it."""
    done = [
        run(tmp_path, "set", "search.apiKey", given=f"{VALUE}\n".encode()),
        run(tmp_path, "list"),
        run(tmp_path, "list", "--json"),
    ]

    assert [0, 0, 0] == [each.exit_code for each in done]
    assert VALUE == EncryptedCredentials(tmp_path).find("search.apiKey")
    assert "search.apiKey\n" == done[1].output
    assert '{"credentials":["search.apiKey"]}\n' == done[2].output
    assert not any(VALUE in each.output for each in done)
    assert "removed search.apiKey\n" == run(tmp_path, "remove", "search.apiKey").output
    gone = CliRunner().invoke(
        command, ["remove", "search.apiKey", "--state-dir", str(tmp_path)], standalone_mode=False
    )
    assert 1 == gone.return_value
    assert "no credential is stored\n" == run(tmp_path, "list").output


@pytest.mark.parametrize("given", [b"", b"\n", b"a b\nc", b"\xff", b"x" * 20_000, b" x"])
def test_what_is_no_key_is_refused_without_being_shown(given: bytes, tmp_path: Path) -> None:
    """And nothing is stored."""
    done = run(tmp_path, "set", "search.apiKey", given=given)

    assert 1 == done.exit_code
    assert () == EncryptedCredentials(tmp_path).names()
    assert "xxxx" not in done.output


def test_a_broken_store_is_told_in_a_line(tmp_path: Path) -> None:
    """By the command's own boundary; no trace, no value."""
    run(tmp_path, "set", "a", given=b"x")
    (tmp_path / "credentials").write_bytes(b"nonsense")

    assert isinstance(run(tmp_path, "list").exception, StateRefused)
    assert 1 == run(tmp_path, "set", "b", given=b"x").exit_code
    assert 1 == run(tmp_path, "remove", "a b").exit_code


@pytest.mark.parametrize("given", [b"", b"\n", b"\r\n"])
def test_nothing_on_standard_input_is_said_to_be_nothing(given: bytes, tmp_path: Path) -> None:
    """With how it is done; nothing is stored."""
    result = run(tmp_path, "set", "search.apiKey", given=given)

    assert result.exit_code == 1
    assert 'nothing came in: printf %s "$KEY" | runtime-pack credential set' in result.output
    assert "no credential is stored" in run(tmp_path, "list").output
