"""Typed events: every record of a run is one of these, written to the log as one JSON line.

Text for the model, text for the operator and the event are three different things: an event
carries codes, digests and counts, never page text, arguments or queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from runtime_pack.inner import frozen, inner
from runtime_pack.messages import Json

__all__ = ("EVENT_ROWS", "Entry", "Event", "EventCode", "EventRow", "EventType", "Severity")


class EventType(StrEnum):
    """What happened."""

    SANDBOX_VIOLATION = "sandbox:violation"
    RUN_STARTED = "run:started"
    RUN_RESUMED = "run:resumed"
    RUN_FINISHED = "run:finished"
    TURN_STARTED = "turn:started"
    TURN_FINISHED = "turn:finished"
    TURN_RETRIED = "turn:retried"
    CONTEXT_COMPACTED = "context:compacted"
    STEP_STARTED = "step:started"
    STEP_FINISHED = "step:finished"
    STEP_REFUSED = "step:refused"
    APPROVAL_REQUESTED = "approval:requested"
    APPROVAL_DECIDED = "approval:decided"
    APPROVAL_REMEMBERED = "approval:remembered"
    APPROVAL_REUSED = "approval:reused"
    CALL_NOTIFIED = "call:notified"
    RUN_GRANTED = "run:granted"
    LABEL_RAISED = "label:raised"
    LABEL_DECIDED = "label:decided"
    LABEL_LOWERED = "label:lowered"
    SIGNALS_SEEN = "signals:seen"
    ANSWER_DEFUSED = "answer:defused"
    LOG_OPENED = "log:opened"
    LOG_RECOVERED = "log:recovered"
    LOG_CLOSED = "log:closed"
    LOG_CONTINUED = "log:continued"
    LOG_KEY_CHANGED = "log:key_changed"
    PAGE_READ = "page:read"
    SEARCH_FOUND = "search:found"
    FENCE_EDITED = "fence:edited"
    CONFIG_LOADED = "config:loaded"
    POLICY_LOADED = "policy:loaded"
    POLICY_CHANGED = "policy:changed"
    FORWARD_MISSED = "forward:missed"
    FORWARD_REPLACED = "forward:replaced"
    FORWARD_BROKEN = "forward:broken"
    FORWARD_NOTED = "forward:noted"
    FORWARD_GONE = "forward:gone"


class EventCode(StrEnum):
    """Stable codes; the last letter is A allow, D deny, O observe or E error."""

    EGR001D = "EGR001D"
    EGR002D = "EGR002D"
    EGR003D = "EGR003D"
    EGR004O = "EGR004O"
    RUN001O = "RUN001O"
    RUN002O = "RUN002O"
    RUN003O = "RUN003O"
    TRN001O = "TRN001O"
    TRN002O = "TRN002O"
    TRN003E = "TRN003E"
    TRN004O = "TRN004O"
    CTX001O = "CTX001O"
    STP001A = "STP001A"
    STP002O = "STP002O"
    STP003E = "STP003E"
    STP004D = "STP004D"
    APR001O = "APR001O"
    APR002A = "APR002A"
    APR003D = "APR003D"
    APR004D = "APR004D"
    APR005O = "APR005O"
    APR006O = "APR006O"
    APR007A = "APR007A"
    GRT001O = "GRT001O"
    LBL001O = "LBL001O"
    LBL002O = "LBL002O"
    LBL003D = "LBL003D"
    LBL004O = "LBL004O"
    LBL005O = "LBL005O"
    SIG001O = "SIG001O"
    LOG001O = "LOG001O"
    LOG002O = "LOG002O"
    LOG003E = "LOG003E"
    LOG004O = "LOG004O"
    LOG005O = "LOG005O"
    WEB001O = "WEB001O"
    WEB002O = "WEB002O"
    FEN001O = "FEN001O"
    CFG001O = "CFG001O"
    CFG002O = "CFG002O"
    CFG003O = "CFG003O"
    FWD001E = "FWD001E"
    FWD002E = "FWD002E"
    FWD003E = "FWD003E"
    FWD004O = "FWD004O"
    FWD005O = "FWD005O"


class Severity(StrEnum):
    """How much attention an event asks for."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@frozen(kw_only=True)
class EventRow:
    """One row of the table of events.

    Attributes:
        rules: the rules of egress that give an event this code.
        web: the code that a web tool answers with beside it.
    """

    type: EventType
    severity: Severity
    meaning: str
    advice: str
    rules: tuple[str, ...] = ()
    web: str = ""


def _row(
    kind: EventType,
    severity: Severity,
    meaning: str,
    advice: str,
    *,
    rules: tuple[str, ...] = (),
    web: str = "",
) -> EventRow:
    return EventRow(
        type=kind, severity=severity, meaning=meaning, advice=advice, rules=rules, web=web
    )


_T, _S = EventType, Severity

# One row a code; the tables in README and docs are generated from this one.
EVENT_ROWS: Final[Mapping[EventCode, EventRow]] = {
    EventCode.EGR001D: _row(
        _T.SANDBOX_VIOLATION,
        _S.MEDIUM,
        "The allowlist refused an address; no name was looked up.",
        "Add `nearest_entry` if the host is wanted; else look at what asked for it.",
        rules=("R4", "R5", "R6", "R7", "R12"),
        web="WEB_EGRESS_DENIED",
    ),
    EventCode.EGR002D: _row(
        _T.SANDBOX_VIOLATION,
        _S.HIGH,
        "The address policy refused where a listed name leads, or a literal address.",
        "List the network if it is yours (R8); metadata addresses stay closed.",
        rules=("R8", "R9", "R10", "R11"),
        web="WEB_EGRESS_DENIED",
    ),
    EventCode.EGR003D: _row(
        _T.SANDBOX_VIOLATION,
        _S.HIGH,
        "The egress proxy refused a tunnel to a listed host: no TLS, or TLS for another name.",
        "Look at what asked for it; a protocol that is not TLS needs a port other than 443.",
        rules=("R13",),
        web="WEB_EGRESS_DENIED",
    ),
    EventCode.EGR004O: _row(
        _T.SANDBOX_VIOLATION,
        _S.HIGH,
        "A policy that only reports would have refused this; it was fetched all the same.",
        "Add `nearest_entry` or mend what asked for it, then take `unsafe_report_only` away.",
    ),
    EventCode.RUN001O: _row(_T.RUN_STARTED, _S.INFO, "A run began under a contract.", "None."),
    EventCode.RUN002O: _row(
        _T.RUN_FINISHED,
        _S.INFO,
        "A run ended or was suspended; the kind is in `object`.",
        "Resume it if it is suspended.",
    ),
    EventCode.RUN003O: _row(_T.RUN_RESUMED, _S.INFO, "A saved run was taken up again.", "None."),
    EventCode.TRN001O: _row(
        _T.TURN_STARTED, _S.INFO, "A model turn was reserved and asked for.", "None."
    ),
    EventCode.TRN002O: _row(
        _T.TURN_FINISHED, _S.INFO, "A model turn was received and settled.", "None."
    ),
    EventCode.TRN003E: _row(
        _T.TURN_FINISHED,
        _S.LOW,
        "A model turn failed or ran out of time.",
        "Look at the model's adapter.",
    ),
    EventCode.TRN004O: _row(
        _T.TURN_RETRIED,
        _S.LOW,
        "A request to the model failed and will be made again; the wait is in `object`.",
        "If it happens often, look at the limits of the provider.",
    ),
    EventCode.CTX001O: _row(
        _T.CONTEXT_COMPACTED,
        _S.INFO,
        "The model is shown a summary in place of the first part of the history, which is kept.",
        "None.",
    ),
    EventCode.STP001A: _row(
        _T.STEP_STARTED, _S.INFO, "A call was admitted and is about to run.", "None."
    ),
    EventCode.STP002O: _row(_T.STEP_FINISHED, _S.INFO, "A call ended well.", "None."),
    EventCode.STP003E: _row(
        _T.STEP_FINISHED,
        _S.LOW,
        "A call ended with an error; its code is in `object`.",
        "See the code.",
    ),
    EventCode.STP004D: _row(
        _T.STEP_REFUSED,
        _S.LOW,
        "A call was not admitted; its code is in `object`.",
        "See the code.",
    ),
    EventCode.APR001O: _row(
        _T.APPROVAL_REQUESTED, _S.LOW, "A call waits for a person.", "Decide it."
    ),
    EventCode.APR002A: _row(_T.APPROVAL_DECIDED, _S.INFO, "A person approved a call.", "None."),
    EventCode.APR003D: _row(_T.APPROVAL_DECIDED, _S.LOW, "A person denied a call.", "None."),
    EventCode.APR004D: _row(
        _T.APPROVAL_DECIDED,
        _S.LOW,
        "A request was answered too late, or not at all.",
        "Ask for the call again.",
    ),
    EventCode.APR005O: _row(
        _T.CALL_NOTIFIED,
        _S.LOW,
        "A call of class `notify` is about to run; the emitter has taken this event.",
        "Look at it, if it is not what the task is for.",
    ),
    EventCode.APR006O: _row(
        _T.APPROVAL_REMEMBERED,
        _S.MEDIUM,
        "A person's approval is to hold for later calls; tool, scope, uses and end are in `object`.",
        "None, if the person meant it so.",
    ),
    EventCode.APR007A: _row(
        _T.APPROVAL_REUSED,
        _S.INFO,
        "A remembered approval answered for a call; nobody was asked.",
        "None.",
    ),
    EventCode.GRT001O: _row(
        _T.RUN_GRANTED,
        _S.LOW,
        "A person raised a limit of a saved run; who, why and the limits as they are now.",
        "None.",
    ),
    EventCode.LBL001O: _row(
        _T.LABEL_RAISED,
        _S.INFO,
        "The context of the run holds something worse or more private than before; `sources` are new.",
        "None.",
    ),
    EventCode.LBL002O: _row(
        _T.LABEL_DECIDED,
        _S.LOW,
        "Label rules ask a person about a call; each rule and its context are in `decision`.",
        "Decide the request: what the model has read may have asked for the call.",
    ),
    EventCode.LBL003D: _row(
        _T.LABEL_DECIDED,
        _S.MEDIUM,
        "Label rules deny a call; each rule, its context and the host are in `decision`.",
        "Look at what the run read before; a call that is wanted belongs into a run of its own.",
    ),
    EventCode.LBL004O: _row(
        _T.ANSWER_DEFUSED,
        _S.MEDIUM,
        "Images, reference links or links of an answer would have told somebody something: they are text.",
        "Look at the sources of the run: one of them may have asked for it.",
    ),
    EventCode.LBL005O: _row(
        _T.LABEL_LOWERED,
        _S.LOW,
        "A typed answer about a page is `internal`; `millibits` is the most that it can tell of it.",
        "None; many of them add up to a text.",
    ),
    EventCode.SIG001O: _row(
        _T.SIGNALS_SEEN,
        _S.LOW,
        "Something was noticed in a text from outside for the first time in the run; `seen` are all so far.",
        "Look at the page; name the signals in `ask_on_signals` after which a person is to be asked.",
    ),
    EventCode.LOG001O: _row(_T.LOG_OPENED, _S.INFO, "A writer opened the log.", "None."),
    EventCode.LOG002O: _row(_T.LOG_CLOSED, _S.INFO, "The writer closed the log.", "None."),
    EventCode.LOG003E: _row(
        _T.LOG_RECOVERED,
        _S.MEDIUM,
        "A log was opened that had a torn last line, which was moved aside, or unsigned lines.",
        "Look at the file named in `object`, and at the last `unsigned_lines` lines before this one.",
    ),
    EventCode.LOG004O: _row(
        _T.LOG_CONTINUED,
        _S.INFO,
        "The log goes on in a new file; the full one and its last line are named.",
        "None.",
    ),
    EventCode.LOG005O: _row(
        _T.LOG_KEY_CHANGED,
        _S.MEDIUM,
        "Another key signs the log from here on; the old one signed the change.",
        "None, if it was planned; give the new key to those who verify.",
    ),
    EventCode.WEB001O: _row(
        _T.PAGE_READ,
        _S.INFO,
        "A page was read: its host, its revision and how much of it the model is shown.",
        "None.",
    ),
    EventCode.WEB002O: _row(
        _T.SEARCH_FOUND,
        _S.INFO,
        "A search found rows; how many, and of which hosts.",
        "None.",
    ),
    EventCode.FEN001O: _row(
        _T.FENCE_EDITED,
        _S.LOW,
        "Something in a text from outside was made inert or looked odd; `counts` has blocks by signal.",
        "Look at the page: forged fences and control tokens are written for models, invisible text against people.",
    ),
    EventCode.CFG001O: _row(
        _T.CONFIG_LOADED,
        _S.INFO,
        "A program began to write this log; its version, its settings and who started it.",
        "None.",
    ),
    EventCode.CFG002O: _row(
        _T.POLICY_LOADED,
        _S.INFO,
        "A policy holds from here on; its id, version and digest, and who loaded it.",
        "None.",
    ),
    EventCode.CFG003O: _row(
        _T.POLICY_CHANGED,
        _S.MEDIUM,
        "A policy holds that is not the one of its id that held before; both digests, and who loaded it.",
        "Compare it with what was agreed; `version_raised` is false where its author did not say so.",
    ),
    # Of these a sink tells its receiver; they stand in no log.
    EventCode.FWD001E: _row(
        _T.FORWARD_MISSED,
        _S.MEDIUM,
        "Lines of a log were deleted before they were forwarded; their numbers are in `object`.",
        "Delete later, or mend the receiver; the tombstone of the log says who deleted them.",
    ),
    EventCode.FWD002E: _row(
        _T.FORWARD_REPLACED,
        _S.HIGH,
        "A log is not the one that was forwarded: it was cut, edited or replaced.",
        "Verify it, and treat it as an incident: what was forwarded is what it was.",
    ),
    EventCode.FWD003E: _row(
        _T.FORWARD_BROKEN,
        _S.HIGH,
        "A line does not follow from the one before it, and was forwarded as it is.",
        "Verify the log, and treat it as an incident.",
    ),
    EventCode.FWD004O: _row(
        _T.FORWARD_NOTED,
        _S.LOW,
        "A line of a log is no event: its number and digest were forwarded.",
        "Look at the line in the log.",
    ),
    EventCode.FWD005O: _row(
        _T.FORWARD_GONE,
        _S.MEDIUM,
        "The file of a log that was forwarded is no more there.",
        "None, if it was deleted on purpose; `object` has its last line that was forwarded.",
    ),
}


@frozen(kw_only=True)
class Event:
    """One event, before the log gives it its number and its place in the chain.

    Attributes:
        key: stable name inside the run (step and hop), so that one cause has one event; empty
            for events that cannot repeat.
    """

    code: EventCode
    subject: Mapping[str, Json]
    object: Mapping[str, Json]
    decision: Mapping[str, Json] | None = None
    key: str = ""

    @property
    def type(self) -> EventType:
        """What happened."""
        return EVENT_ROWS[self.code].type

    @property
    def severity(self) -> Severity:
        """How much attention it asks for."""
        return EVENT_ROWS[self.code].severity

    def to_json(self) -> dict[str, Json]:
        """The event without number and place in a chain, as exporters and sinks see it."""
        body: dict[str, Json] = {
            "type": str(self.type),
            "code": str(self.code),
            "severity": str(self.severity),
            "subject": self.subject,
            "object": self.object,
        }
        if self.decision is not None:
            body["decision"] = self.decision
        if self.key:
            body["key"] = self.key
        return body


@inner
class Entry:
    """An event that goes to the log and to nobody else; its fields are those of `Event`."""

    code: EventCode
    subject: Mapping[str, Json]
    object: Mapping[str, Json]
    decision: Mapping[str, Json] | None = None
    key: str = ""
