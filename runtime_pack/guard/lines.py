"""The lines that every turn and every call writes to the log, put together from their parts.

Each is the line that `AuditLog.take` makes of the entry of the same name in `runtime_pack.records`, byte
by byte; a test compares them. What is the same in all lines of a run is encoded once. A run with an
identity or a policy file has more fields, at other places: its lines are made of entries.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import orjson

from runtime_pack import records
from runtime_pack.audit.log import AuditLog
from runtime_pack.catalog import ToolOutput
from runtime_pack.events import EventCode
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.messages import Turn
from runtime_pack.outside_events import outside_events
from runtime_pack.records import StepRecord, log_code, log_word

__all__ = ("call_finished", "call_started", "turn_finished", "turn_started")


# An id of so many letters and digits is a word by any rule; `log_word` knows the others.
_SHORT: Final = 16


@lru_cache(maxsize=1024)
def _text(word: str) -> str:
    """A word of the host's as it stands in a line: names of tools and tasks, and codes."""
    return orjson.dumps(word).decode()


def _parts(run: TaskRun, step: str) -> tuple[str, str] | None:
    """The subject of the run's lines before the step and behind it; None if its lines are others."""
    if run.identity is not None or run.policy is not None or not step.isalnum():
        return None
    return f'"run":"{run.id}","step":"', f'","task":{_text(run.task)}}}' if run.task else '"}'


def turn_started(run: TaskRun, audit: AuditLog, step: str, messages: int, tools: int) -> None:
    """A turn is about to be asked for.

    Raises:
        AuditError: the log could not take it.
    """
    parts = _parts(run, step)
    if parts is None:
        entry = records.turn_started(run.subject(step), step, messages, tools)
        audit.take(run.under_policy(entry), run.beside)
        return
    body = f'{{"messages":{messages},"tools":{tools}}}'
    audit.take_parts(EventCode.TRN001O, f"{{{parts[0]}{step}{parts[1]}", body, step)


def turn_finished(run: TaskRun, audit: AuditLog, record: StepRecord, turn: Turn | None) -> None:
    """A turn came, or did not.

    Raises:
        AuditError: the log could not take it.
    """
    step = record.step
    parts = _parts(run, step)
    if (
        parts is None
        or turn is None
        or record.code is not None
        or (record.cost or record.estimated or record.cached_input_tokens)
    ):
        entry = records.turn_finished(run.subject(step), record, turn)
        audit.take(run.under_policy(entry), run.beside)
        return
    body = (
        f'{{"calls":{len(turn.calls)},"code":null,"elapsed_us":{record.elapsed_us},'
        f'"finish":"{turn.finish}","input_tokens":{record.input_tokens},'
        f'"output_tokens":{record.output_tokens},"status":"{turn.status}"}}'
    )
    subject = f"{{{parts[0]}{step}{parts[1]}"
    audit.take_parts(EventCode.TRN002O, subject, body, f"{step}:finished")


def call_started(run: TaskRun, audit: AuditLog, record: StepRecord) -> None:
    """An admitted call is about to run.

    Raises:
        AuditError: the log could not take it.
    """
    step = record.step
    parts = _parts(run, step)
    if parts is None:
        entry = records.step_started(run.subject(step, record.call_id), record, run.policy_sha256)
        audit.take(run.under_policy(entry), run.beside)
        return
    digest = "null" if record.args_sha256 is None else f'"{record.args_sha256}"'
    audit.take_parts(
        EventCode.STP001A,
        _of_call(parts, record),
        f'{{"args_sha256":{digest},"tool":{_text(record.tool)}}}',
        step if record.attempt == 1 else record.key,
        f'{{"action":"allow","policy_sha256":"{run.policy_sha256}"}}',
    )


def call_finished(run: TaskRun, audit: AuditLog, record: StepRecord, output: ToolOutput) -> None:
    """A call ended, well or not.

    Raises:
        AuditError: the log could not take it.
    """
    step = record.step
    parts = _parts(run, step)
    if (
        parts is None
        or output.fences
        or (record.cost or record.estimated or record.cached_input_tokens)
    ):
        subject = run.subject(step, record.call_id)
        entry = records.step_finished(subject, record, output)
        audit.take(run.under_policy(entry), run.beside)
        for each in outside_events(subject, record, output):
            audit.take(run.under_policy(each), run.beside)
        return
    text, code = output.text, output.code
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    body = (
        f'{{"characters":{len(text)},"code":{"null" if code is None else _text(str(log_code(code)))},'
        f'"elapsed_us":{record.elapsed_us},"executed":"{output.executed}",'
        f'"ok":{"true" if output.ok else "false"},"output_sha256":"sha256:{digest}",'
        f'"tool":{_text(record.tool)}}}'
    )
    audit.take_parts(
        EventCode.STP002O if output.ok else EventCode.STP003E,
        _of_call(parts, record),
        body,
        f"{step if record.attempt == 1 else record.key}:finished",
    )


def _of_call(parts: tuple[str, str], record: StepRecord) -> str:
    """The subject of a call; an empty id of a direct call does not stand in it."""
    if not record.call_id:
        return f"{{{parts[0]}{record.step}{parts[1]}"
    call = record.call_id
    word = call if len(call) <= _SHORT and call.isalnum() and call.isascii() else log_word(call)
    return f'{{"call":"{word}",{parts[0]}{record.step}{parts[1]}'
