"""Asking the person at the terminal about pending requests."""

from __future__ import annotations

import getpass
import select
import sys
import termios
from collections.abc import Mapping, Sequence
from typing import Final

import click
import orjson

from runtime_pack.approvals import ApprovalRequest, Decision, Verdict
from runtime_pack.cli._text import note

__all__ = ("answer_all", "ask_person", "can_ask", "who")


def can_ask() -> bool:
    """Whether a person is at the terminal."""
    return sys.stdin.isatty()


def who() -> str:
    """The name that stands in a decision's record."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "terminal"


def answer_all(
    requests: Sequence[ApprovalRequest], verdict: Verdict, reason: str
) -> list[Decision]:
    """One answer to every request, as the command line said."""
    return [
        Decision(request_id=r.request_id, verdict=verdict, decided_by=who(), reason=reason)
        for r in requests
    ]


def ask_person(requests: Sequence[ApprovalRequest]) -> list[Decision]:
    """Show each request and take a yes or a no. Standard error, so that --json stays clean.

    Raises:
        click.Abort: the person interrupted or closed the terminal; nothing is decided.
    """
    return [_ask(request) for request in requests]


def _ask(request: ApprovalRequest) -> Decision:
    arguments = orjson.dumps(request.arguments, option=orjson.OPT_INDENT_2).decode()
    note(f"\n{request.tool} asks to run with\n{arguments}")
    for reason in request.reasons:
        note(f"it needs you because: {reason}")
    note(f"what the model has seen so far is {request.label.integrity}")
    if request.label.sources:
        note(f"it comes from {', '.join(sorted(request.label.sources)[:_SOURCES_SHOWN])}")
    for name, place in request.destinations.items():
        note(f"it goes to {name} = {orjson.dumps(place).decode()}")
    verdict = Verdict.APPROVE if _confirmed("approve this call?") else Verdict.DENY
    return Decision(
        request_id=request.request_id, verdict=verdict, decided_by=who(), reason="at the terminal"
    )


# As many as a person reads; all of them are in the request.
_SOURCES_SHOWN: Final = 12
_ANSWERS: Final[Mapping[str, bool]] = {"y": True, "yes": True, "n": False, "no": False, "": False}


def _confirmed(question: str) -> bool:
    """A yes or a no; anything else is asked again, and Enter alone is a no.

    What was typed before the question was shown is thrown away: it answered something else.
    """
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    while True:
        click.echo(f"{question} [y/N]: ", nl=False, err=True)
        answer = _ANSWERS.get(_line().strip().lower())
        if answer is not None:
            return answer
        note("please answer y or n")


def _line() -> str:
    """One line of the terminal.

    Waits in short turns: a signal that comes just before a blocking read does not end it.
    """
    try:
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            continue
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        raise click.Abort from None
    if not line:
        raise click.Abort
    return line
