"""What a review page looks at, and what it may do there: given by whoever serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from runtime_pack.audit import LogHead, VerifyKey
from runtime_pack.inner import frozen
from runtime_pack.messages import Json
from runtime_pack.runs import CancelReply
from runtime_pack.stores import SharedRunStore

__all__ = ("Ended", "Kept", "ReviewSource")


def _as_it_is(value: Json) -> Json:
    return value


@frozen(kw_only=True)
class Kept:
    """What is known of a log beside the log: heads that were kept, and the keys that are trusted."""

    heads: Sequence[LogHead] = ()
    keys: Sequence[VerifyKey] = ()
    unreadable: int = 0


@frozen(kw_only=True)
class Ended:
    """How taking up a run ended: the code of `runtime-pack runs resume`, and what it said."""

    code: int
    text: str


@frozen(kw_only=True)
class ReviewSource:
    """All that a page is given.

    Attributes:
        target: a log, or a folder of logs.
        index: where the index is kept; None for one in memory.
        store: the saved runs; None for logs alone, and then nothing can be decided.
        by: who decides, for the record.
        kept: what is known of a log beside it; called in a thread.
        policy: the policy file that suggestions change.
        kill_file: the file that throws the kill switch of a program, when it is there.
        can_resume: whether the run can be taken up from here.
        resume: takes a run up and waits for its end, as a process of its own.
        stop: ends every run that is not over, for the reason given; called in a thread.
        redact: what is shown in the place of a value that may hold a secret.
    """

    target: Path
    by: str
    index: Path | None = None
    store: SharedRunStore | None = None
    kept: Callable[[Path], Kept] | None = None
    policy: Path | None = None
    kill_file: Path | None = None
    can_resume: Callable[[str], bool] | None = None
    resume: Callable[[str], Awaitable[Ended]] | None = None
    stop: Callable[[str], Sequence[CancelReply]] | None = None
    redact: Callable[[Json], Json] = _as_it_is
