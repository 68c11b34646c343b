"""The approvals inbox: what waits for people, what they say, and the runs that are taken up for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Final

import attrs
import orjson

from runtime_pack import runs
from runtime_pack.approvals import Decision, DecisionRefused, Remember, Verdict
from runtime_pack.errors import RuntimePackError, StopCode, StoreError
from runtime_pack.messages import Json
from runtime_pack.review.source import ReviewSource
from runtime_pack.runs import RunDetails, RunStatus, RunSummary, SavedRequest
from runtime_pack.stores import SharedRunStore

__all__ = ("Inbox", "Refused")

# The digits of a number of 64 bits, and a sign.
_LONGEST: Final = 21
_FRESH_SECONDS: Final = 1.0
_TEXT: Final = 1000
_DECISION_KEYS: Final = frozenset(
    {"run", "request", "verdict", "arguments_sha256", "reason", "edited", "remember"}
)


class Refused(Exception):
    """What was asked for is not done: a status of HTTP, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@attrs.define
class _Job:
    """A run that is taken up, or was, from here."""

    state: str = "running"
    code: int | None = None
    text: str = ""
    task: asyncio.Task[None] | None = None

    def to_json(self) -> dict[str, Json]:
        return {"state": self.state, "code": self.code, "text": self.text}


class Inbox:
    """Saved runs as a page shows them, and what is done with them; `version` rises with the latter."""

    def __init__(self, source: ReviewSource) -> None:
        self._source = source
        self._jobs: dict[str, _Job] = {}
        self._listed: tuple[float, tuple[RunSummary, ...]] = (0.0, ())
        self._listing = asyncio.Lock()
        self.version = 0

    async def close(self) -> None:
        """Let go of what was taken up: it goes on, or is suspended, as its own process does."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _store(self) -> SharedRunStore:
        if self._source.store is None:
            raise Refused(409, "there are no saved runs here: only a log is looked at")
        return self._source.store

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    async def summaries(self) -> tuple[RunSummary, ...]:
        """All saved runs; read once for all who ask within a second, or longer where they are many."""
        if self._source.store is None:
            return ()
        async with self._listing:
            until, found = self._listed
            began = time.monotonic()
            if began > until:
                found = await runs.list_runs(self._source.store)
                # Of thousands of runs the reading takes its time: most of it is left to the page.
                took = time.monotonic() - began
                self._listed = (began + took + max(_FRESH_SECONDS, 4 * took), found)
            return found

    async def waiting(self) -> list[Json]:
        """What waits for a person, the oldest request first, with all that helps to decide it."""
        found: list[tuple[str, Json]] = []
        for summary in await self.summaries():
            if not summary.pending and not summary.decided:
                continue
            with contextlib.suppress(StoreError):
                shown = await runs.show_run(self._store(), summary.run_id)
                found += [
                    (str(r.request.created_at), self._request(shown, r)) for r in shown.requests
                ]
        return [row for _, row in sorted(found, key=lambda pair: pair[0])]

    async def details(self, run_id: str) -> dict[str, Json] | None:
        """One saved run, or None when there is none of this id."""
        if self._source.store is None or run_id not in await self._source.store.list_ids():
            return None
        try:
            shown = await runs.show_run(self._source.store, run_id)
        except StoreError as error:
            return {"run": run_id, "status": "damaged", "problem": str(error)}
        body: dict[str, Json] = {
            **shown.summary.to_json(),
            "label": shown.label.to_json(),
            "ledger": dict(shown.ledger),
            "audit_log": shown.audit_log,
            "requests": [self._request(shown, each) for each in shown.requests],
            "can_resume": self._can_resume(shown.summary),
            "job": self.job(run_id),
        }
        return body

    def job(self, run_id: str) -> Json:
        """What became of taking it up; None when it was not from here."""
        job = self._jobs.get(run_id)
        return None if job is None else job.to_json()

    def _can_resume(self, summary: RunSummary) -> bool:
        can = self._source.can_resume
        over = {RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.DAMAGED, RunStatus.RUNNING}
        return summary.status not in over and can is not None and can(summary.run_id)

    def _request(self, shown: RunDetails, asked: SavedRequest) -> Json:
        """A request with its arguments as text: a browser's numbers are not those that would run."""
        request = asked.request
        arguments = self._source.redact(dict(request.arguments))
        decision = asked.decision
        return {
            "run": shown.summary.run_id,
            "asker": request.run,
            "request": request.request_id,
            "tool": request.tool,
            "arguments": orjson.dumps(arguments, option=orjson.OPT_INDENT_2).decode(),
            "redacted": arguments != dict(request.arguments),
            "arguments_sha256": request.arguments_sha256,
            "destinations": self._source.redact(dict(request.destinations)),
            "reasons": list(request.reasons),
            "label": request.label.to_json(),
            "rules": list(request.rules),
            "step": request.step,
            "task": request.task,
            "created_at": request.created_at.isoformat(),
            "expires_at": None if request.expires_at is None else request.expires_at.isoformat(),
            "expired": asked.expired,
            "decision": None if decision is None else _told(decision),
            "can_resume": self._can_resume(shown.summary),
            "status": str(shown.summary.status),
        }

    # ── deciding ──────────────────────────────────────────────────────────────────────────────

    async def decide(self, body: Mapping[str, Json]) -> dict[str, Json]:
        """Leave a decision with its run; what is approved is what was shown, by its digest.

        Raises:
            Refused: it is not of its form, is about another call than was shown, or too late.
        """
        decision, run_id = self._decision(body), _text(body, "run")
        store = self._store()
        if run_id not in await store.list_ids():
            raise Refused(404, "there is no such run")
        shown = await runs.show_run(store, run_id)
        asked = [r for r in shown.requests if r.request.request_id == decision.request_id]
        digests = {r.request.arguments_sha256 for r in asked}
        if asked and digests != {_text(body, "arguments_sha256")}:
            raise Refused(409, "the call is another one than was shown; look at it again")
        reply = await runs.decide(store, run_id, decision)
        self._changed()
        if reply.code not in {None, StopCode.ALREADY_RESOLVED}:
            raise Refused(409, f"{reply.message} ({reply.code})")
        return reply.to_json()

    def _decision(self, body: Mapping[str, Json]) -> Decision:
        if not body.keys() <= _DECISION_KEYS:
            raise Refused(400, "the decision has a field that none has")
        edited = body.get("edited")
        try:
            return Decision(
                request_id=_text(body, "request"),
                verdict=Verdict(_text(body, "verdict")),
                decided_by=self._source.by,
                reason=_text(body, "reason", "")[:_TEXT],
                edited_args=None if edited is None else _arguments(edited),
                remember=Remember() if body.get("remember") is True else None,
            )
        except (DecisionRefused, ValueError) as error:
            raise Refused(400, str(error)) from error

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    async def resume(self, run_id: str) -> dict[str, Json]:
        """Take a run up, as a process of its own; how it ends is told with the run.

        Raises:
            Refused: it cannot be taken up from here, or is.
        """
        found = [each for each in await self.summaries() if each.run_id == run_id]
        if not found:
            raise Refused(404, "there is no such run")
        job = self._jobs.get(run_id)
        if job is not None and job.state == "running":
            raise Refused(409, "it is being taken up already")
        if not self._can_resume(found[0]) or self._source.resume is None:
            raise Refused(409, "the program that started it takes it up, or it is over")
        self._jobs[run_id] = job = _Job()
        job.task = asyncio.create_task(self._drive(run_id, job))
        self._changed()
        return job.to_json()

    async def _drive(self, run_id: str, job: _Job) -> None:
        resume = self._source.resume
        if resume is None:
            return
        try:
            ended = await resume(run_id)
            job.code, job.text = ended.code, ended.text[-_TEXT:]
        except (OSError, RuntimePackError) as error:
            job.text = f"it could not be taken up ({error})"
        finally:
            job.state = "ended"
            self._changed()

    def _changed(self) -> None:
        self._listed = (0.0, ())
        self.version += 1

    async def stop(self, body: Mapping[str, Json]) -> list[Json]:
        """End every run that is not over.

        Raises:
            Refused: it was not confirmed, or cannot be done from here.
        """
        if self._source.stop is None:
            raise Refused(409, "runs cannot be ended from here")
        if body.get("confirm") != "stop" or not body.keys() <= {"confirm", "reason"}:
            raise Refused(400, 'it is to be confirmed with the word "stop"')
        stopped = await asyncio.to_thread(self._source.stop, _text(body, "reason", "")[:_TEXT])
        self._changed()
        return [reply.to_json() for reply in stopped]


def _told(decision: Decision) -> dict[str, Json]:
    return {
        "verdict": str(decision.verdict),
        "decided_by": decision.decided_by,
        "reason": decision.reason,
        "edited": decision.edited_args is not None,
    }


def _text(body: Mapping[str, Json], name: str, absent: str | None = None) -> str:
    value = body.get(name, absent)
    if not isinstance(value, str):
        raise Refused(400, f"{name} is a text")
    return value


def _arguments(text: Json) -> Mapping[str, Json]:
    """Edited arguments, which come as text: no number is changed on the way.

    Raises:
        Refused: they are not a JSON object with numbers of at most 64 bits.
    """
    try:
        value = orjson.loads(str(text))
        json.loads(str(text), parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the arguments are not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Refused(400, "the arguments are not an object")
    return value


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST or not -(1 << 63) <= int(digits) < 1 << 64:
        raise ValueError("a whole number has at most 64 bits")
    return int(digits)
