"""`runtime-pack verify LOG`: is this log what was written?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from runtime_pack.audit import LogHead, LogStatus, Verification, VerifyKey, verify_log
from runtime_pack.cli._given import FILE
from runtime_pack.cli._keys import kept_notes, kept_option, key_option
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
_FAULTS_SHOWN: Final = 20


class _Head(click.ParamType[LogHead]):
    name = "HEAD"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> LogHead:
        """NUMBER:SHA256, as a run prints it."""
        try:
            return value if isinstance(value, LogHead) else LogHead.parse(str(value))
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
@click.argument("log", type=FILE)
@click.option("--head", "heads", type=_Head(), multiple=True, help="A head that a run printed.")
@key_option
@kept_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
@state_option
def command(
    log: Path,
    heads: tuple[LogHead, ...],
    keys: tuple[VerifyKey, ...],
    kept: tuple[Path, ...],
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Check that LOG was not edited, reordered or cut.

    Every line is chained to the one before, which shows edits, deletions and moved lines. Signed
    checkpoints show who wrote it, to those who trust a key (--key, or that of the state folder for
    its own logs). Lines cut off at the end are found against what was kept elsewhere: --head, --kept
    and the heads of the state folder.
    """
    try:
        known = _kept_heads(log, state_dir)
        trusted = keys or known.keys
        found = verify_log(log, (*heads, *known.found), keys=trusted, kept=kept_notes(kept))
    except AuditError as error:
        raise _Unreadable(str(error)) from error
    if as_json:
        body = {"log": clean_text(str(log)), **found.to_json(), "unreadable": known.unreadable}
        say_json(body)
    else:
        say(_told(log, found, known.unreadable))
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
    for fault in found.faults[:_FAULTS_SHOWN]:
        where = f"line {fault.line}" if fault.line else "the log"
        lines.append(f"  {where}: {fault.problem}")
    left = len(found.faults) - _FAULTS_SHOWN
    if left > 0:
        lines.append(f"  and {left} more")
    if unreadable:
        lines.append(f"note: {unreadable} saved head(s) could not be read and were not used")
    return "\n".join(lines)


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
