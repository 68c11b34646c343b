"""`runtime-pack verify LOG`: is this log what was written?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from runtime_pack.audit import LogHead, LogStatus, Verification, VerifyKey, verify_log
from runtime_pack.audit.index import logs_in
from runtime_pack.cli._given import GivenFile
from runtime_pack.cli._keys import kept_notes, kept_option, key_option, read_line
from runtime_pack.cli._state import Heads, is_new, open_state, state_option
from runtime_pack.cli._text import exit_codes, say, say_json
from runtime_pack.errors import AuditError
from runtime_pack.messages import clean_text

__all__ = ("command",)

_CODES: Final[Mapping[LogStatus, int]] = {
    LogStatus.VERIFIED: 0,
    LogStatus.SIGNED: 0,
    LogStatus.CHAINED: 0,
    LogStatus.TAMPERED: 1,
    LogStatus.OPEN: 2,
}
# Of several logs the worst counts: tampered with, then what nobody vouches for.
_WORST: Final = (1, 2, 0)
_FAULTS_SHOWN: Final = 20


class _Head(click.ParamType[LogHead]):
    name = "HEAD"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> LogHead:
        """NUMBER:SHA256, as a run prints it, or a file that holds it."""
        if isinstance(value, LogHead):
            return value
        text = str(value)
        try:
            return LogHead.parse(text if ":" in text else read_line(Path(text)))
        except AuditError as error:
            self.fail(str(error), param, ctx)


_EXIT: Final = exit_codes(
    {
        0: "verified; or closed by its writer, and nothing that was kept at hand",
        1: "tampered with; the lines are named",
        2: "nothing to be said: unreadable, wrong usage, or an end nobody vouches for",
    }
)


@click.command(
    "verify", short_help="Check that a log was not edited, reordered or cut.", epilog=_EXIT
)
@click.argument("logs", type=GivenFile(folders=True), nargs=-1, required=True)
@click.option(
    "--head",
    "heads",
    type=_Head(),
    multiple=True,
    help="A head that a run printed, or a file with it.",
)
@key_option
@kept_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
@state_option
def command(
    logs: tuple[Path, ...],
    heads: tuple[LogHead, ...],
    keys: tuple[VerifyKey, ...],
    kept: tuple[Path, ...],
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Check that LOGS were not edited, reordered or cut: files, or folders of logs.

    Every line is chained to the one before, which shows edits, deletions and moved lines. Signed
    checkpoints show who wrote it, to those who trust a key (--key, or that of the state folder for
    its own logs). Lines cut off at the end are found against what was kept elsewhere: --head, --kept
    and the heads of the state folder. Of several logs each has a row, and the worst is the exit code.
    """
    found = _named(logs)
    if len(found) != 1 and (heads or kept):
        raise click.UsageError("--head and --kept are of one log: name that one")
    if len(found) == 1:
        return _verify_one(found[0], heads, keys, kept, state_dir, as_json=as_json)
    if not as_json:
        say(f"{'status':<10}  {'events':>8}  {'signed':>8}  log")
    codes = [_verify_row(log, keys, state_dir, as_json=as_json) for log in found]
    return next(code for code in _WORST if code in codes)


def _named(logs: tuple[Path, ...]) -> tuple[Path, ...]:
    """The logs that files and folders stand for.

    Raises:
        _Unreadable: there is none: that nothing is wrong with nothing is no answer.
    """
    try:
        found = [log for each in logs for log in (logs_in(each) if each.is_dir() else (each,))]
    except AuditError as error:
        raise _Unreadable(str(error)) from error
    if not found:
        raise _Unreadable("there are no logs (*.jsonl) in that folder")
    return tuple(dict.fromkeys(found))


def _verified(
    log: Path,
    heads: tuple[LogHead, ...],
    keys: tuple[VerifyKey, ...],
    kept: tuple[Path, ...],
    state_dir: Path | None,
) -> tuple[Verification, int]:
    """What the log proves, and how many saved heads could not be read.

    Raises:
        AuditError: a file cannot be read.
    """
    known = _kept_heads(log, state_dir)
    found = verify_log(
        log,
        (*heads, *known.found),
        keys=keys or known.keys,
        kept=kept_notes(kept),
        origin=known.origin,
    )
    return found, known.unreadable


def _verify_one(
    log: Path,
    heads: tuple[LogHead, ...],
    keys: tuple[VerifyKey, ...],
    kept: tuple[Path, ...],
    state_dir: Path | None,
    *,
    as_json: bool,
) -> int:
    try:
        found, unreadable = _verified(log, heads, keys, kept, state_dir)
    except AuditError as error:
        raise _Unreadable(str(error)) from error
    if as_json:
        body = {"log": clean_text(str(log)), **found.to_json(), "unreadable": unreadable}
        say_json(body)
    else:
        say(_told(log, found, unreadable))
    return _CODES[found.status]


def _verify_row(
    log: Path, keys: tuple[VerifyKey, ...], state_dir: Path | None, *, as_json: bool
) -> int:
    """One log of several: a row, or an object on a line; the others are verified whatever it is."""
    try:
        found, unreadable = _verified(log, (), keys, (), state_dir)
    except AuditError as error:
        if as_json:
            say_json({"log": clean_text(str(log)), "status": "unreadable", "problem": str(error)})
        else:
            say(f"{'unreadable':<10}  {'-':>8}  {'-':>8}  {log}\n  {error}")
        return 2
    if as_json:
        say_json({"log": clean_text(str(log)), **found.to_json(), "unreadable": unreadable})
        return _CODES[found.status]
    say(f"{found.status:<10}  {found.events:>8}  {found.signed:>8}  {log}")
    for line in _faults(found):
        say(line)
    return _CODES[found.status]


class _Unreadable(click.ClickException):
    exit_code = 2


def _kept_heads(log: Path, state_dir: Path | None) -> Heads:
    """Heads of the state folder, when there is one: verifying makes none."""
    if is_new(state_dir) is not None:
        return Heads()
    try:
        return open_state(state_dir, create=False).saved_heads(log)
    except click.ClickException as error:
        if state_dir is not None:
            raise _Unreadable(error.message) from error
        return Heads()


def _told(log: Path, found: Verification, unreadable: int) -> str:
    lines = [f"{log}: {_words(found)}", f"{found.events} events, head {found.head}"]
    if found.checkpoints:
        signed = f"{found.signed} lines signed by a trusted key" if found.signed else "no key given"
        lines.append(f"{found.checkpoints} checkpoints in {found.segments} file(s), {signed}")
    if found.removed:
        lines.append(f"lines 1 to {found.removed} were deleted on purpose, says a tombstone")
    lines += _faults(found)
    if unreadable:
        lines.append(f"note: {unreadable} saved head(s) could not be read and were not used")
    return "\n".join(lines)


def _faults(found: Verification) -> Iterator[str]:
    for fault in found.faults[:_FAULTS_SHOWN]:
        where = f"line {fault.line}" if fault.line else "the log"
        yield f"  {where}: {fault.problem}"
    left = len(found.faults) - _FAULTS_SHOWN
    if left > 0:
        yield f"  and {left} more"


def _words(found: Verification) -> str:
    match found.status:
        case LogStatus.TAMPERED:
            return "TAMPERED WITH"
        case LogStatus.OPEN:
            return "open: the writer did not close it, or the end was cut (no saved head is the last line)"
        case LogStatus.VERIFIED:
            return f"verified, with {found.heads_found} saved head(s)"
        case LogStatus.SIGNED:
            return "every line is under a checkpoint of a trusted key; no saved head was at hand"
        case LogStatus.CHAINED:
            return "every line follows, but no saved head was at hand (give one with --head)"
