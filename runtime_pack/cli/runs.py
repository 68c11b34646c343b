"""`runtime-pack runs`: list, show, approve, deny, edit, grant, resume and cancel saved runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

import attrs
import click
import orjson
from rich.console import Console

from runtime_pack import runs
from runtime_pack.approvals import Decision, DecisionRefused, Remember, Verdict
from runtime_pack.cli import _runs_delete
from runtime_pack.cli._advice import grant_advice, runs_advice
from runtime_pack.cli._people import who
from runtime_pack.cli._runs_show import show_details, show_summaries, without_secrets
from runtime_pack.cli._saved import found_run, opened_folder, wait
from runtime_pack.cli._state import StateFolder, is_new, state_option
from runtime_pack.cli._text import exit_codes, note, say, say_json
from runtime_pack.errors import AuditError, ContractError, StopCode
from runtime_pack.ledger import COST
from runtime_pack.messages import Json
from runtime_pack.runs import CancelReply, CancelStatus, Reply, RunDetails

__all__ = ("command", "end_runs")

# The digits of a number of 64 bits, and a sign.
_LONGEST: Final = 21
_READ_CODES: Final = exit_codes({0: "done", 1: "the run is damaged", 2: "wrong usage, no such run"})
_SAY_CODES: Final = exit_codes(
    {
        0: "recorded, or the same was recorded before",
        1: "not recorded: too late, decided otherwise, unfit, or the run is damaged or over",
        2: "wrong usage, no such run or request",
    }
)
_RESUME_CODES: Final = exit_codes(
    {
        0: "the run is completed",
        1: "failed, cancelled, or driven by another process",
        2: "wrong usage, no such run",
        3: "a call waits for a person",
        4: "a budget is used up",
        130: "interrupted; the run can be taken up again",
    }
)
_CANCEL_CODES: Final = exit_codes(
    {
        0: "every run asked for is over, or ends after its step in hand",
        1: "one could not be cancelled; the others are",
        2: "wrong usage, no such run",
    }
)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
run_argument = click.argument("run")
by_option = click.option("--by", help="Who says so, for the record.  [default: the user]")


@click.group("runs", short_help="List, show, decide and cancel saved runs.")
def command() -> None:
    """Saved runs: what they wait for, what is decided, and how they go on.

    RUN is the id of a run or its beginning, if no other run begins so. What is decided here is left
    with the run; `runs resume` carries it out, here or where the run was started.
    """


# ── reading ───────────────────────────────────────────────────────────────────────────────────


@command.command("list", epilog=_READ_CODES)
@json_option
@state_option
def list_command(as_json: bool, state_dir: Path | None) -> int:
    """Every saved run, the one saved last first."""
    new = is_new(state_dir)
    if new is not None:
        return _nothing(new, {"runs": []}, as_json=as_json)
    found = wait(runs.list_runs(opened_folder(state_dir).store))
    if as_json:
        say_json({"runs": [run.to_json() for run in found]})
    elif found:
        show_summaries(Console(), found)
    else:
        say("no saved runs")
    return 0


@command.command("show", epilog=_READ_CODES)
@run_argument
@json_option
@state_option
def show_command(run: str, as_json: bool, state_dir: Path | None) -> int:
    """One run: what waits for a person with its full arguments, what it did, what is left."""
    state = opened_folder(state_dir)
    shown = wait(runs.show_run(state.store, found_run(state, run)))
    if as_json:
        body = without_secrets(shown.to_json())
        say_json(body if isinstance(body, Mapping) else {})
        return 0
    show_details(Console(), shown)
    for request in shown.requests:
        if request.decision is None and not request.expired:
            words = (shown.summary.run_id, request.request.request_id)
            say(f"decide: {runs_advice(state_dir, 'approve', *words)}   (or deny, edit)")
    if not _is_over(shown):
        say(_next(state, shown, state_dir))
    return 0


def _next(state: StateFolder, shown: RunDetails, state_dir: Path | None) -> str:
    """What can be done with a run that is not over."""
    run_id, stop = shown.summary.run_id, shown.summary.stop
    if stop is not None and stop.shortfall is not None and not shown.grants:
        follows = grant_advice(run_id, stop.shortfall.budget, state_dir)
        if state.note_of(run_id).exists():
            return follows
        return f"{follows.partition(', then ')[0]}; the program that started it takes it up"
    return _taken_up(state, run_id, state_dir)


def _taken_up(state: StateFolder, run_id: str, state_dir: Path | None) -> str:
    """How a run goes on: by this command if it started it, else by the program that did."""
    if state.note_of(run_id).exists():
        return f"take it up: {runs_advice(state_dir, 'resume', run_id)}"
    return "the program that started it takes it up"


def _is_over(shown: RunDetails) -> bool:
    status = runs.RunStatus
    over = (status.COMPLETED, status.CANCELLED, status.ERROR, status.DAMAGED, status.RUNNING)
    return shown.summary.status in over


# ── deciding ──────────────────────────────────────────────────────────────────────────────────


requests_argument = click.argument("requests", nargs=-1, metavar="[REQUEST]...")
all_option = click.option("--all", "every", is_flag=True, help="Every request that waits.")


@command.command("approve", epilog=_SAY_CODES)
@run_argument
@requests_argument
@all_option
@click.option("--reason", default="", help="Why; for the record.")
@click.option(
    "--remember", is_flag=True, help="Also for later calls of this run that are the same."
)
@by_option
@json_option
@state_option
def approve_command(
    run: str,
    requests: tuple[str, ...],
    every: bool,
    reason: str,
    remember: bool,
    by: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Let calls run that wait for a person: REQUEST, or the only one that waits.

    Before a call runs it is judged again, and it runs with exactly the arguments shown.
    """
    word = _Word(Verdict.APPROVE, by or who(), reason, remember=Remember() if remember else None)
    return _decided(run, requests, word, every=every, as_json=as_json, state_dir=state_dir)


@command.command("deny", epilog=_SAY_CODES)
@run_argument
@requests_argument
@all_option
@click.option("--reason", default="", help="Why; the model is told.")
@by_option
@json_option
@state_option
def deny_command(
    run: str,
    requests: tuple[str, ...],
    every: bool,
    reason: str,
    by: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Refuse calls that wait for a person: REQUEST, or the only one that waits."""
    word = _Word(Verdict.DENY, by or who(), reason)
    return _decided(run, requests, word, every=every, as_json=as_json, state_dir=state_dir)


@command.command("edit", epilog=_SAY_CODES)
@run_argument
@click.argument("request")
@click.argument("arguments", metavar="ARGUMENTS")
@click.option("--reason", default="", help="Why; for the record.")
@by_option
@json_option
@state_option
def edit_command(
    run: str,
    request: str,
    arguments: str,
    reason: str,
    by: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Let a call run with ARGUMENTS, a JSON object, in place of what the model asked for.

    They are held against the tool's schema now, and judged like any other when the run is taken up;
    the model is shown them.
    """
    word = _Word(Verdict.APPROVE, by or who(), reason, edited=_object(arguments))
    return _decided(run, (request,), word, every=False, as_json=as_json, state_dir=state_dir)


@attrs.frozen
class _Word:
    """What is said, before it is known about which requests."""

    verdict: Verdict
    by: str
    reason: str
    edited: Mapping[str, Json] | None = None
    remember: Remember | None = None

    def about(self, request_id: str) -> Decision:
        """The decision on one request.

        Raises:
            click.UsageError: it is not of its form.
        """
        try:
            return Decision(
                request_id=request_id,
                verdict=self.verdict,
                decided_by=self.by,
                reason=self.reason,
                edited_args=self.edited,
                remember=self.remember,
            )
        except DecisionRefused as error:
            raise click.UsageError(str(error)) from error


def _object(text: str) -> Mapping[str, Json]:
    try:
        value = orjson.loads(text)
        # It reads a number beyond 64 bits as one that is near it.
        json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON ({error})", param_hint="ARGUMENTS") from error
    if not isinstance(value, dict):
        raise click.BadParameter('not an object, as {"url": "…"}', param_hint="ARGUMENTS")
    return value


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST or not -(1 << 63) <= int(digits) < 1 << 64:
        raise ValueError("a whole number has at most 64 bits")
    return int(digits)


def _decided(
    run: str,
    wanted: Sequence[str],
    word: _Word,
    *,
    every: bool,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    if every and wanted:
        raise click.UsageError("give REQUESTs or --all, not both")
    state = opened_folder(state_dir)
    run_id = found_run(state, run)
    shown = wait(runs.show_run(state.store, run_id))
    if every and shown.requests and all(each.decision for each in shown.requests):
        return _decided_before(state, shown, as_json=as_json, state_dir=state_dir)
    names = _requests(shown, wanted, every=every)
    replies = [wait(runs.decide(state.store, run_id, word.about(name))) for name in names]
    if as_json:
        say_json({"run": run_id, "replies": [reply.to_json() for reply in replies]})
    else:
        for reply in replies:
            _tell(reply)
        if any(map(_is_so, replies)):
            say(_taken_up(state, run_id, state_dir))
    if any(reply.code == StopCode.APPROVAL_NOT_FOUND for reply in replies):
        return 2
    return 0 if all(map(_is_so, replies)) else 1


def _decided_before(
    state: StateFolder, shown: RunDetails, *, as_json: bool, state_dir: Path | None
) -> int:
    """--all when nothing is left to decide: no fault, and nothing is recorded."""
    run_id, count = shown.summary.run_id, len(shown.requests)
    if as_json:
        say_json({"run": run_id, "replies": []})
    else:
        say(f"all {count} are decided already; {_taken_up(state, run_id, state_dir)}")
    return 0


def _is_so(reply: Reply) -> bool:
    """Whether what was said holds, now or since before."""
    return reply.code in {None, StopCode.ALREADY_RESOLVED}


def _tell(reply: Reply) -> None:
    line = f"{reply.request_id}: {reply.message}"
    if reply.code is None:
        say(line)
    else:
        note(f"{line} ({reply.code})")


def _requests(shown: RunDetails, wanted: Sequence[str], *, every: bool) -> list[str]:
    """The ids that are meant.

    Raises:
        click.UsageError: none is named and not exactly one waits, or a beginning fits several.
    """
    known = [request.request.request_id for request in shown.requests]
    waiting = [r.request.request_id for r in shown.requests if r.decision is None]
    if wanted:
        return [_named(known, name) for name in wanted]
    if every and waiting:
        return waiting
    run_id = shown.summary.run_id
    if not known:
        raise click.UsageError(f"nothing of run {run_id} waits for a person")
    if not waiting:
        # Decided, and not carried out yet: the reply says what stands.
        if len(known) == 1:
            return known
        names = ", ".join(known)
        raise click.UsageError(f"all {len(known)} calls are decided already; name one: {names}")
    if len(waiting) > 1:
        names = ", ".join(waiting)
        raise click.UsageError(f"{len(waiting)} calls wait; name one, or give --all: {names}")
    return waiting


def _named(known: Sequence[str], name: str) -> str:
    """A full id stays: of one that waits no more, the run says what became of it."""
    if not name:
        raise click.UsageError("an empty REQUEST names none; leave it out for the only one")
    found = [request_id for request_id in known if request_id.startswith(name)]
    if len(found) > 1 and name not in known:
        raise click.UsageError(f"{name!a} is the beginning of {', '.join(found)}")
    return name if name in known or not found else found[0]


@command.command("grant", epilog=_SAY_CODES)
@run_argument
@click.argument("budget")
@click.argument("amount")
@click.option("--reason", required=True, help="Why; for the record.")
@by_option
@json_option
@state_option
def grant_command(
    run: str,
    budget: str,
    amount: str,
    reason: str,
    by: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Give a run AMOUNT more of BUDGET: steps, turns, tokens, cost, duration_seconds, expires_at or tool:NAME."""
    state = opened_folder(state_dir)
    run_id = found_run(state, run)
    try:
        given = wait(
            runs.grant(
                state.store,
                run_id,
                budget,
                _amount(budget, amount),
                granted_by=by or who(),
                reason=reason,
            )
        )
    except ContractError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        say_json({"run": run_id, "grant": given.to_json()})
    else:
        say(f"{given.amount} more {given.budget} for {run_id}, from its next resume on")
        say(_taken_up(state, run_id, state_dir))
    return 0


def _amount(budget: str, text: str) -> int | Decimal:
    try:
        return Decimal(text) if budget == COST else int(text)
    except (InvalidOperation, ValueError) as error:
        raise click.BadParameter(f"{text!a} is not a number", param_hint="AMOUNT") from error


# ── driving ───────────────────────────────────────────────────────────────────────────────────


@command.command("resume", epilog=_RESUME_CODES)
@run_argument
@json_option
@state_option
def resume_command(run: str, as_json: bool, state_dir: Path | None) -> int:
    """Take up a run that `ask` started, with its own corpus, allowlist and limits.

    What was decided is carried out; nobody is asked. What is undecided goes on waiting.
    """
    from runtime_pack.cli.ask import take_up

    state = opened_folder(state_dir)
    return take_up(state, found_run(state, run), as_json=as_json, given_state_dir=state_dir)


@command.command("cancel", epilog=_CANCEL_CODES)
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="Every run that is not over: the kill switch.")
@click.option("--reason", default="", help="Why; for the record.")
@by_option
@json_option
@state_option
def cancel_command(
    run: str | None,
    every: bool,
    reason: str,
    by: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """End a run for good: here if nobody drives it, else its process ends it after its step in hand.

    Requests are withdrawn, and nothing of the run is taken up again.
    """
    if (run is None) is not every:
        raise click.UsageError("give a RUN, or --all")
    new = is_new(state_dir)
    if every and new is not None:
        return _nothing(new, {"replies": []}, as_json=as_json)
    state = opened_folder(state_dir)
    run_id = None if run is None else found_run(state, run)
    replies = end_runs(state, run_id, by or who(), reason)
    if as_json:
        say_json({"replies": [reply.to_json() for reply in replies]})
    else:
        for reply in replies:
            say(f"{reply.run_id}: {reply.status} ({reply.message})")
        if not replies:
            say("no saved runs")
    return 1 if any(reply.status is CancelStatus.FAILED for reply in replies) else 0


def end_runs(
    state: StateFolder, run_id: str | None, by: str, reason: str
) -> tuple[CancelReply, ...]:
    """End a run, or every run, with a log of its own where that can be written.

    Raises:
        AuditError: it cannot, and no run could be asked to end.
        StoreError: the runs cannot be read.
    """
    asked = wait(runs.ask_to_end(state.store, run_id, by=by, reason=reason))
    try:
        with state.logging() as audit:
            if run_id is None:
                return wait(runs.cancel_all(state.store, by=by, reason=reason, audit=audit))
            one = runs.cancel(state.store, run_id, by=by, reason=reason, audit=audit)
            return (wait(one),)
    except AuditError as error:
        if not asked:
            raise
        # Without a log nothing is done here; what is asked holds.
        text = f"not ended here ({error}); it is asked to end by whoever drives it or takes it up"
        failed = CancelStatus.FAILED
        return tuple(CancelReply(run_id=name, status=failed, message=text) for name in asked)


command.add_command(_runs_delete.command)


# ── the folder ────────────────────────────────────────────────────────────────────────────────


def _nothing(folder: Path, body: Mapping[str, Json], *, as_json: bool) -> int:
    if as_json:
        say_json(body)
    else:
        say(f"no saved runs in {folder}")
    return 0
