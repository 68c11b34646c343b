"""`runs delete`: forget saved runs, what `ask` noted of them, and the texts that only they had read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import attrs
import click

from runtime_pack import runs
from runtime_pack.cli._saved import found_run, opened_folder, wait
from runtime_pack.cli._state import StateFolder, state_option
from runtime_pack.cli._text import exit_codes, note, say, say_json
from runtime_pack.errors import ContractError, RunNotFound, StoreError
from runtime_pack.messages import Json

__all__ = ("command",)

_CODES: Final = exit_codes(
    {
        0: "all that was asked for is deleted",
        1: "some of it is not: it is not over, or is being driven",
        2: "wrong usage, no such run",
    }
)
_MOST_DAYS: Final = 100_000


@click.command("delete", short_help="Forget saved runs and their texts.", epilog=_CODES)
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(0, _MOST_DAYS),
    help="Every run that was saved last more than so many days ago.",
)
@click.option("--unfinished", is_flag=True, help="Also runs that wait or could be taken up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
@state_option
def command(
    names: tuple[str, ...],
    days: int | None,
    unfinished: bool,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Delete runs with their history, arguments and answers, and page texts that no other run has read.

    Logs stay as they are: they hold digests and hosts, no texts. `audit delete-older` shortens them.
    """
    if bool(names) is (days is not None):
        raise click.UsageError("give RUNs, or --older-than DAYS")
    state = opened_folder(state_dir)
    found = _Deleted(state, unfinished=unfinished)
    if days is None:
        found.take(dict.fromkeys(found_run(state, name) for name in names))
    else:
        found.take_old(datetime.now(UTC) - timedelta(days=days))
    found.drop_texts()
    if as_json:
        say_json(found.to_json())
    else:
        found.tell()
    return 1 if found.kept else 0


@attrs.define
class _Deleted:
    """What one call of the command has deleted, and what it has not."""

    state: StateFolder
    unfinished: bool = attrs.field(kw_only=True)
    gone: list[str] = attrs.field(factory=list)
    kept: dict[str, str] = attrs.field(factory=dict)
    texts: int = 0
    _read: set[str] = attrs.field(factory=set)

    def take(self, run_ids: Iterable[str]) -> None:
        """Delete these; why one is not is noted."""
        for run_id in run_ids:
            try:
                read = self._texts_of(run_id)
                gone = wait(runs.delete(self.state.store, run_id, unfinished=self.unfinished))
            except RunNotFound:
                # A sub-run that went with its parent, or somebody else deleted it.
                continue
            except (ContractError, StoreError) as error:
                self.kept[run_id] = str(error)
                continue
            self._read |= read
            self.gone += gone
            for name in gone:
                self.state.note_of(name).unlink(missing_ok=True)

    def take_old(self, before: datetime) -> None:
        """Delete what was saved last before that; what is not over is no fault here."""
        listed = wait(runs.list_runs(self.state.store))
        old = [each for each in listed if each.saved_at is not None and each.saved_at < before]
        over = [each.run_id for each in old if self.unfinished or each.is_over]
        self.take(over)

    def drop_texts(self) -> None:
        """Delete the texts that the deleted runs had read and that no other run has."""
        if not self._read:
            return
        others = (self._texts_of(run_id) for run_id in self.state.store.run_ids())
        self.texts = self.state.revisions.forget(self._read.difference(*others))

    def _texts_of(self, run_id: str) -> frozenset[str]:
        try:
            return wait(runs.revisions_read(self.state.store, run_id))
        except StoreError:
            # Damaged: what it had read is not known, and cannot be cited.
            return frozenset()

    def to_json(self) -> dict[str, Json]:
        """For machines."""
        kept: dict[str, Json] = dict(self.kept)
        return {"deleted": list(self.gone), "kept": kept, "texts": self.texts}

    def tell(self) -> None:
        """For people."""
        for name in self.gone:
            say(f"{name}: deleted")
        for name, why in self.kept.items():
            note(f"{name}: not deleted ({why})")
        say(f"{len(self.gone)} runs and {self.texts} texts deleted")
