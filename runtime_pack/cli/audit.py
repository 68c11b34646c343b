"""`runtime-pack audit`: verify a log, prove a line of it, index it, keep and change its keys."""

from __future__ import annotations

import asyncio
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from runtime_pack.audit.files import append_durably
from runtime_pack.audit.note import SignedNote, VerifyKey
from runtime_pack.cli import verify
from runtime_pack.cli._given import FILE, LOGS
from runtime_pack.cli._keys import kept_notes, key_option, read_line
from runtime_pack.cli._people import who
from runtime_pack.cli._state import is_new, open_state, state_option
from runtime_pack.cli._text import exit_codes, say, say_json
from runtime_pack.errors import AuditError
from runtime_pack.messages import clean_text

__all__ = ("command",)

_log = click.argument("log", type=FILE)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
_PROOF_CODES = exit_codes({0: "the proof holds", 1: "it does not hold", 2: "wrong usage"})
_WITNESS_CODES = exit_codes(
    {0: "the log goes on from what is known, which is stored", 1: "it does not", 2: "wrong usage"}
)
# The name of a variable, and no token.
_TOKEN_VARIABLE: Final = "RUNTIME_PACK_WITNESS_TOKEN"  # noqa: S105
_CODES = exit_codes({0: "done", 1: "not done; the message says why", 2: "wrong usage"})


@click.group("audit", short_help="Verify, prove, index and keep logs.")
def command() -> None:
    """A log is one file that is written, older files with a number behind its name, and checkpoints.

    Keys that are trusted come from --key or the state folder, never from the log.
    """


command.add_command(verify.command)


@command.command("prove", epilog=_CODES)
@_log
@click.argument("line", type=click.IntRange(1))
def prove_command(log: Path, line: int) -> int:
    """Print the proof that LINE of LOG is under its last checkpoint (c2sp.org/tlog-proof)."""
    from runtime_pack.audit.proofs import prove

    say(prove(log, line).removesuffix("\n"))
    return 0


@command.command("check-proof", epilog=_PROOF_CODES)
@click.argument("proof", type=FILE)
@click.argument("line", type=FILE)
@key_option
def check_command(proof: Path, line: Path, keys: tuple[VerifyKey, ...]) -> int:
    """Check that PROOF leads from the line in the file LINE to a checkpoint signed by --key."""
    from runtime_pack.audit.proofs import check_proof

    if not keys:
        raise click.UsageError("a proof is worth what its key is worth: give --key")
    number = check_proof(read_line(proof), read_line(line).rstrip("\n").encode(), keys)
    say(f"holds: it is line {number} of a log of {keys[0].name}")
    return 0


@command.command("index", epilog=_CODES)
@click.argument("logs", type=LOGS)
@click.option("--index", "path", type=FILE, help="Where to keep it.")
@click.option("--rebuild", is_flag=True, help="Forget what is indexed first.")
@_json
def index_command(logs: Path, path: Path | None, rebuild: bool, as_json: bool) -> int:
    """Bring the SQLite index of LOGS, a log or a folder of logs, up to date."""
    from runtime_pack.audit.index import (
        EventIndex,
        check_place,
        default_index,
        forget_index,
        logs_in,
    )

    where, found = path or default_index(logs), logs_in(logs)
    check_place(where, found)
    if rebuild:
        forget_index(where)
    with EventIndex(where) as index:
        read = index.update(found)
    if as_json:
        say_json({"index": clean_text(str(where)), "read": read})
    else:
        say(f"{read} new events in {where}")
    return 0


@command.command("new-key", epilog=_CODES)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", required=True, help="The log's origin, such as example.org/agents.")
def key_command(file: Path, name: str) -> int:
    """Make a signing key in FILE (PEM, mode 0600) and print its public line."""
    from runtime_pack.audit.keys import LogSigner

    signer = LogSigner.generate(name)
    signer.save(file)
    say(str(signer.key))
    return 0


@command.command("public-key", epilog=_CODES)
@state_option
def public_key_command(state_dir: Path | None) -> int:
    """Print the public line of the key that signs the logs of the state folder."""
    if is_new(state_dir) is not None:
        raise click.UsageError("nothing was logged in this state folder yet")
    say(str(open_state(state_dir, create=False).public_key()))
    return 0


@command.command("witness", epilog=_WITNESS_CODES)
@_log
@click.option(
    "--to",
    "place",
    required=True,
    metavar="FILE|URL",
    help="Where checkpoints are kept, out of reach of the log's writer: a file, or an https address"
    " that answers GET and PUT.",
)
@click.option("--git", "commits", is_flag=True, help="Commit the file in its git repository.")
@click.option(
    "--private-address", is_flag=True, help="The host of the address is in a network of ours."
)
@click.option("--ca-file", type=FILE, help="Whose certificates are believed.")
@key_option
def witness_command(
    log: Path,
    place: str,
    commits: bool,
    private_address: bool,
    ca_file: Path | None,
    keys: tuple[VerifyKey, ...],
) -> int:
    """Store LOG's last checkpoint if the log goes on from the one that was stored last."""
    if not keys:
        raise click.UsageError("a witness believes a key, which it was given: give --key")
    if place.lower().startswith(("https://", "http://")):
        if commits:
            raise click.UsageError("--git is for a file")
        note = _watched_over_http(log, place, keys, ca_file, private_address=private_address)
    else:
        note = _watched(log, Path(place), keys, commits=commits)
    say(f"known: {note.checkpoint.size} lines of {note.checkpoint.origin}")
    return 0


def _watched(log: Path, store: Path, keys: tuple[VerifyKey, ...], *, commits: bool) -> SignedNote:
    """The checkpoint, behind those that the file has.

    Raises:
        AuditError: the log does not go on from them, or the file cannot be written or committed.
    """
    from runtime_pack.audit.proofs import watch

    store = FILE.convert(str(store), None, None)
    known = kept_notes((store,)) if store.exists() else ()
    note = watch(log, known[-1] if known else None, keys)
    if known[-1:] != (note,):
        try:
            append_durably(store, f"{note}\n".encode(), store.stat().st_size if known else 0)
        except OSError as error:
            raise AuditError(f"{store} cannot be written: {error}") from error
    if commits:
        _commit(store, f"{note.checkpoint.size} lines of {note.checkpoint.origin}")
    return note


def _commit(store: Path, what: str) -> None:
    """Commit the file, unless its last version is committed.

    Raises:
        AuditError: git cannot be run, or does not.
    """
    for words in (("add", "--", store.name), ("diff", "--cached", "--quiet", "--", store.name)):
        code, told = _git(store.absolute().parent, *words)
        if code == 0 and words[0] == "diff":
            return
        if code not in {0, 1} or (code and words[0] == "add"):
            raise AuditError(f"git did not take {store}: {told}")
    code, told = _git(store.absolute().parent, "commit", "-q", "-m", what, "--", store.name)
    if code:
        raise AuditError(f"git did not commit {store}: {told}")


def _git(folder: Path, *words: str) -> tuple[int, str]:
    try:
        words = ("git", "-C", str(folder), *words)
        # The user's own git, with words of ours; the name of a file stands behind `--`.
        done = subprocess.run(  # noqa: S603
            words,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise AuditError(f"git cannot be run: {error}") from error
    return done.returncode, clean_text(done.stderr.decode("utf-8", "replace"))[-300:].strip()


def _watched_over_http(
    log: Path,
    url: str,
    keys: tuple[VerifyKey, ...],
    ca_file: Path | None,
    *,
    private_address: bool,
) -> SignedNote:
    import ssl

    from runtime_pack.sinks.witness import HttpStore, watch_over_http

    try:
        context = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:
        raise click.UsageError(f"{ca_file} holds no certificates: {error}") from error
    token = os.environ.get(_TOKEN_VARIABLE) or None
    store = HttpStore(url=url, private_address=private_address, context=context, token=token)
    return asyncio.run(watch_over_http(log, store, keys))


@command.command("delete-older", epilog=_CODES)
@_log
@click.option("--days", type=click.IntRange(1), required=True, help="What is older goes.")
@click.option("--signing-key", type=FILE, required=True)
@click.option("--name", required=True, help="The log's origin.")
@click.option("--by", help="Who says so, for the record.  [default: the user]")
@key_option
def delete_command(
    log: Path,
    days: int,
    signing_key: Path,
    name: str,
    by: str | None,
    keys: tuple[VerifyKey, ...],
) -> int:
    """Delete LOG's older files whose last line is older than --days; a signed tombstone says so.

    Where the key was changed, --key names the public lines of those that signed before.
    """
    from runtime_pack.audit.keys import LogSigner
    from runtime_pack.audit.retention import delete_older

    now = datetime.now(UTC)
    signer = LogSigner.load(signing_key, name)
    gone = delete_older(
        log, before=now - timedelta(days=days), signer=signer, by=by or who(), now=now, keys=keys
    )
    say(f"{len(gone)} file(s) deleted")
    return 0


@command.command("script", epilog=_CODES)
def script_command() -> int:
    """Print a verifier that needs nothing but Python: `… > auditor.py; python auditor.py LOG KEY`."""
    from runtime_pack.audit import auditor

    say(Path(auditor.__file__).read_text("utf-8").removesuffix("\n"))
    return 0
