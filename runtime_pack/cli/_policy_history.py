"""`policy suggest` and `policy replay`: what a log says of a policy that is yet to come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from runtime_pack.audit.facts import Wanted
from runtime_pack.cli._given import FILE, LOGS
from runtime_pack.cli._recorded import recorded_calls, wanted_ids
from runtime_pack.cli._state import state_option
from runtime_pack.cli._text import exit_codes, note, say, say_json
from runtime_pack.cli.events import event_filters
from runtime_pack.messages import Json
from runtime_pack.policy_file import PolicyFile, PolicyFileRefused, parse_policy, read_policy
from runtime_pack.policy_replay import Redecided, Replay, replay
from runtime_pack.policy_suggest import EMPTY_POLICY, Suggestion, is_denial, suggest

__all__ = ("replay_command", "suggest_command")

_SUGGEST_CODES: Final = exit_codes(
    {
        0: "a change that admits all that was chosen, or none is needed",
        1: "some of it no change is proposed for; each is named with the reason",
        2: "wrong usage, an unreadable file, or no denial was chosen",
    }
)
_REPLAY_CODES: Final = exit_codes(
    {
        0: "every recorded call would be decided as it was",
        1: "some would be decided otherwise",
        2: "wrong usage, or an unreadable file",
        3: "no change was found, and of some calls the record is not enough to say",
    }
)
_NOT_DECIDED: Final = (
    "budgets, prices, approvals that are remembered, the answer and all that a run would have asked "
    "for instead are not decided anew"
)
_SHOWN: Final = 200

_log = click.argument("target", metavar="LOG", type=LOGS)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")


@click.command("suggest", short_help="Propose a change for denials.", epilog=_SUGGEST_CODES)
@_log
@click.option(
    "--policy", "policy_path", type=FILE, metavar="FILE", help="What to change.  [default: nothing]"
)
@click.option("--event", "events", multiple=True, metavar="ID", help="This denial; repeat it.")
@event_filters
@click.option("--private", is_flag=True, help="Also entries for private addresses.")
@_json
@state_option
def suggest_command(
    *,
    target: Path,
    policy_path: Path | None,
    events: tuple[str, ...],
    private: bool,
    as_json: bool,
    state_dir: Path | None,
    **wanted: Any,
) -> int:
    """Propose the smallest change of a policy that admits chosen denials of LOG, as a diff.

    Without filters every denial is chosen, also what a policy that only reports would have denied. A
    list gets the narrowest entry, a rule that denies asks a person instead. What no policy may admit
    is named and left: metadata addresses, what the label rules or a person denied. Nothing is written.
    """
    policy = _policy(policy_path)
    calls, index = recorded_calls(target, state_dir)
    with index:
        chosen = frozenset(events) if events else wanted_ids(index, Wanted(**wanted))
    denied = {name for call in calls if is_denial(call) for name in call.events}
    if not chosen & denied or (events and not chosen <= denied):
        raise click.UsageError("no denial was chosen" if not events else "an ID is no denial's")
    found = suggest(calls, chosen, policy, private=private)
    name = EMPTY_NAME if policy_path is None else policy_path.name
    if as_json:
        say_json(found.to_json(name))
    else:
        _tell(found, name)
    return 1 if found.left else 0


EMPTY_NAME: Final = "policy.toml"


def _tell(found: Suggestion, name: str) -> None:
    """The diff alone on standard output, so that it can be applied; the rest beside it."""
    diff = found.diff(name)
    if diff:
        say(diff.removesuffix("\n"))
    for change in found.changes:
        opens = f"; it opens {change.opens}" if change.opens else ""
        note(f"{change.key}: {change.value} admits {len(change.admits)} of the chosen{opens}")
    for left in found.left:
        note(f"left: {left.event}: {left.why}")
    if found.also:
        note(f"it admits {len(found.also)} other recorded denials: {', '.join(found.also[:5])}")
    if not diff and not found.left:
        note("nothing to change: the policy admits what was chosen")


@click.command("replay", short_help="Decide recorded calls anew.", epilog=_REPLAY_CODES)
@_log
@click.option(
    "--policy", "policy_path", type=FILE, metavar="FILE", required=True, help="What decides."
)
@click.option("--all", "every", is_flag=True, help="Also calls that would be decided as they were.")
@_json
@state_option
def replay_command(
    target: Path, policy_path: Path, every: bool, as_json: bool, state_dir: Path | None
) -> int:
    """Decide the calls of LOG anew under FILE, offline, and say what would change.

    The log has digests in the place of arguments; those of runs that the state folder still has are
    taken from there. What the record is not enough for is said. Lists and rules are decided; budgets
    are not.
    """
    policy = _policy(policy_path)
    calls, index = recorded_calls(target, state_dir)
    index.close()
    found = replay(calls, policy)
    if as_json:
        say_json(_json_of(found, every=every))
    else:
        _tell_replay(found, every=every)
    if found.changed:
        return 1
    return 3 if found.unknown else 0


def _policy(path: Path | None) -> PolicyFile:
    try:
        return parse_policy(EMPTY_POLICY) if path is None else read_policy(path)
    except PolicyFileRefused as error:
        told = "\n".join(f"  {fault}" for fault in error.faults)
        raise click.BadParameter(f"{path} is refused:\n{told}", param_hint="--policy") from error


def _shown(found: Replay, *, every: bool) -> tuple[Redecided, ...]:
    return found.calls if every else (*found.changed, *found.unknown)


def _json_of(found: Replay, *, every: bool) -> dict[str, Json]:
    counts: dict[str, Json] = dict(found.counts())
    return {
        "policy": found.policy.ref.to_json(),
        "calls": len(found.calls),
        "changed": len(found.changed),
        "unknown": len(found.unknown),
        "passed_over": found.passed_over,
        "counts": counts,
        "not_decided": _NOT_DECIDED,
        "verdicts": [each.to_json() for each in _shown(found, every=every)],
    }


def _tell_replay(found: Replay, *, every: bool) -> None:
    rows = _shown(found, every=every)
    for each in rows[:_SHOWN]:
        say(_row(each))
    if len(rows) > _SHOWN:
        say(f"… and {len(rows) - _SHOWN} more; --json has all")
    for change, times in found.counts().items():
        say(f"{times:>8}  {change}")
    say(
        f"{len(found.calls)} calls, {len(found.changed)} would change,"
        f" {len(found.unknown)} cannot be decided from the record"
    )
    note(f"{_NOT_DECIDED}; {found.passed_over} calls were refused for other reasons than a policy")


def _row(each: Redecided) -> str:
    call = each.call
    where = " ".join(sorted({d.target.origin for d in call.denials if d.target is not None}))
    text = f"{call.at:<27} {call.was} -> {each.now:<8} {call.run or '-'} {call.step or '-'}"
    rest = " ".join(part for part in (call.tool or "", where, each.why) if part)
    missing = f" ({'; '.join(each.open)})" if each.open else ""
    return f"{text} {rest}{missing}".replace("\n", " ").replace("\t", " ")
