"""What every code of the runtime means and what to do about it: one row a code, data only.

The tables in README and docs are generated from here; a code without a row fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtime_pack.errors import CallCode, StopCode
from runtime_pack.inner import frozen

__all__ = ("CALL_ROWS", "STOP_ROWS", "CodeRow")


@frozen
class CodeRow:
    """What a code means, and what the host does about it."""

    meaning: str
    advice: str


CALL_ROWS: Final[Mapping[CallCode, CodeRow]] = {
    CallCode.UNKNOWN_TOOL: CodeRow(
        "No tool of this name was offered this turn.",
        "None: the model is told which tools there are.",
    ),
    CallCode.INVALID_JSON: CodeRow(
        "The arguments are not a JSON object.", "None: the model is told where."
    ),
    CallCode.INVALID_ARGUMENTS: CodeRow(
        "The arguments do not fit the tool's schema.", "None: the model is told the paths."
    ),
    CallCode.TRUNCATED: CodeRow(
        "The response was cut off, so none of its calls ran.",
        "Raise the output limit of the model.",
    ),
    CallCode.BUDGET_EXHAUSTED: CodeRow(
        "A budget has no room for this call.", "Raise the limit in the contract."
    ),
    CallCode.POLICY_DENIED: CodeRow(
        "A rule of the task's policy denies this call.", "Change the rule if the call is wanted."
    ),
    CallCode.POLICY_ERROR: CodeRow(
        "A predicate of the policy raised or did not answer True or False.",
        "Mend the predicate; until then it denies.",
    ),
    CallCode.DENIED_BY_PERSON: CodeRow("A person said no.", "None: the model is told the reason."),
    CallCode.APPROVAL_REQUIRED: CodeRow(
        "The call waits for a person.", "Decide the request and resume the run."
    ),
    CallCode.APPROVAL_EXPIRED: CodeRow(
        "The request was not answered in time.", "Let the model ask again."
    ),
    CallCode.BATCH_REFUSED: CodeRow(
        "Another call of the response was refused, and the contract lets all run or none.",
        "None: the model is told which call was refused.",
    ),
    CallCode.REPEATED_CALL: CodeRow(
        "The same call gave the same result twice running; it was answered from the record.",
        "Declare `poll=True` for a tool that is asked until something changes.",
    ),
    CallCode.TIMEOUT: CodeRow(
        "The call did not end in its time; whether it took effect is unknown.",
        "Raise `timeout_seconds` of the tool.",
    ),
    CallCode.TOOL_ERROR: CodeRow(
        "The tool raised, or answered with something that is not an output.", "Look at the tool."
    ),
    CallCode.CANCELLED: CodeRow("The run was stopped before the call had a result.", "None."),
    CallCode.OUTCOME_UNKNOWN: CodeRow(
        "The call was started, and a crash left no result.", "Check outside whether it took effect."
    ),
}

STOP_ROWS: Final[Mapping[StopCode, CodeRow]] = {
    StopCode.BUDGET_EXHAUSTED: CodeRow(
        "Steps, turns, tokens, money or time ran out; the numbers stand beside it.",
        "Raise the limit, or use what the wrap-up turn answered.",
    ),
    StopCode.RETRY_LATER: CodeRow(
        "The provider asks to wait longer than the run has time; `retry_at` says until when.",
        "Resume it then; before, resuming asks nobody.",
    ),
    StopCode.ESCALATED: CodeRow("The model handed the run to a person.", "Resume with a message."),
    StopCode.PAUSED: CodeRow("The host paused the run.", "Resume it."),
    StopCode.CANCELLED: CodeRow("The host cancelled the run.", "None: it is over."),
    StopCode.TRUNCATED_REPLY: CodeRow(
        "The final answer was cut by the model's output limit.", "Raise the output limit."
    ),
    StopCode.MODEL_MISBEHAVING: CodeRow(
        "Too many calls were refused.", "Look at the model and at the refused steps."
    ),
    StopCode.NO_PROGRESS: CodeRow(
        "The model went in circles: it repeated a call that was answered from the record, or denied, twice.",
        "Look at the last calls; ask otherwise, or offer another tool.",
    ),
    StopCode.INPUT_REFUSED: CodeRow(
        "An input guard of the host refused what the run starts from, or could not judge it.",
        "Change the input, or mend the guard; the model was not asked.",
    ),
    StopCode.OUTPUT_INVALID: CodeRow(
        "The model's answers did not fit `output_schema`, several times in a row.",
        "Look at what it answered in the history; say in the task which form is wanted.",
    ),
    StopCode.OUTPUT_UNVERIFIED: CodeRow(
        "The host's check of the output refused the answer, or could not judge it.",
        "Look at the answer in the history; `runtime-pack cite RUN` shows what became of its quotations.",
    ),
    StopCode.MODEL_ERROR: CodeRow(
        "The model's adapter failed, or the provider gave no response in `max_attempts` requests.",
        "Look at the adapter; when the provider had a fault that passes, the run can be resumed.",
    ),
    StopCode.MODEL_REFUSED: CodeRow(
        "The provider or the model declined to answer; nothing of the response ran.",
        "Change what is asked; asking the same again is not tried.",
    ),
    StopCode.CONTEXT_OVERFLOW: CodeRow(
        "The history is longer than the model can read, or than `max_context_bytes`.",
        "Resume it with a `summariser`, or with a model that has a larger window.",
    ),
    StopCode.PRICE_UNKNOWN: CodeRow(
        "Money is counted, and the model has no price in the table or no name.",
        "Add a row for the name that the model answers with.",
    ),
    StopCode.DECISION_REFUSED: CodeRow(
        "A decision wants what the tool cannot give: it names an argument that the tool has not, or arguments that do not fit it.",
        "Correct the decision; the request is as open as it was.",
    ),
    StopCode.TOOL_MISSING: CodeRow(
        "A call that is in hand is of a tool that this runtime does not have; nothing was changed.",
        "Resume with the runtime that has it; deny the call; or give it up with `abandon=True`.",
    ),
    StopCode.APPROVAL_NOT_FOUND: CodeRow(
        "A decision names no pending request.", "Use the id of a pending request."
    ),
    StopCode.ALREADY_RESOLVED: CodeRow(
        "The same decision was given before; nothing was done again.", "None."
    ),
    StopCode.APPROVAL_CONFLICT: CodeRow(
        "Another decision was given before; it stands.", "None: the first decision counts."
    ),
    StopCode.PENDING_APPROVAL: CodeRow(
        "A message came while calls wait for a person.",
        "Decide them first, or pass `abandon=True`.",
    ),
    StopCode.AUDIT_FAILED: CodeRow(
        "The log could not be written, so the run stopped.", "Mend the disk, then resume."
    ),
    StopCode.EMITTER_FAILED: CodeRow(
        "The host's emitter raised, so the run stopped.", "Mend the emitter, then resume."
    ),
    StopCode.STORE_FAILED: CodeRow(
        "The run could not be saved, so it stopped.", "Mend the store, then resume."
    ),
    StopCode.CLOCK_FAILED: CodeRow(
        "The host's clock raised, went back or said no time, so the run stopped.",
        "Mend the clock, then resume.",
    ),
    StopCode.STATE_CONFLICT: CodeRow(
        "Another process took the run up.", "None: the other one goes on."
    ),
    StopCode.STATE_INTEGRITY: CodeRow(
        "The saved run fails its seal or cannot be read.",
        "Use the right key; treat an edited state as an incident.",
    ),
}
