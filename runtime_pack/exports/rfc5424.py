"""Syslog as RFC 5424: facility 13 (log audit), severity 4 for what was denied. Pure.

The message is the event as JSON in ASCII, so that no receiver splits or cuts it at a control
character; structured data repeats what rules and filters look for.
"""

from __future__ import annotations

import re
from typing import Final

from runtime_pack.exports._parts import PRODUCT, Read, Record, ascii_json, is_time, read
from runtime_pack.exports.cef import cef_line

__all__ = ("syslog_line",)

_FACILITY: Final = 13
# RFC 5612: the number for documentation and private use where no number is registered.
_SD_ID: Final = "event@32473"
# As our lines have it; a line that was tampered with may have anything.
_TIME: Final = re.compile(r"[0-9]{4}(-[0-9]{2}){2}T([01][0-9]|2[0-3])(:[0-5][0-9]){2}\.[0-9]{6}Z\Z")
_NOT_PRINTABLE: Final = re.compile(r"[^\x21-\x7e]")


def syslog_line(record: Record, *, host: str = "-", form: str = "rfc5424") -> str:
    """The event as one message, without a frame. *host* is the machine that sends it.

    *form* `cef` has the event in that form behind the head, in ASCII, and no structured data.
    """
    event = read(record)
    priority = _FACILITY * 8 + _severity(event)
    # A day or hour that no calendar has is read as no time at all.
    at = event.at if _TIME.match(event.at) and is_time(event.at) else "-"
    head = (at, _word(host, 255), PRODUCT, "-", _word(event.code, 32))
    start = f"<{priority}>1 {' '.join(head)}"
    if form == "cef":
        return f"{start} - {cef_line(record).encode('ascii', 'backslashreplace').decode()}"
    return f"{start} {_structured(event)} {ascii_json(record)}"


def _severity(event: Read) -> int:
    """4 warning for denials, 3 error, 5 notice for what asks for attention, 6 for the rest."""
    if event.is_denied:
        return 4
    if event.is_error:
        return 3
    return 6 if event.severity == "info" else 5


def _word(text: str, most: int) -> str:
    return _NOT_PRINTABLE.sub("?", text)[:most] or "-"


def _structured(event: Read) -> str:
    named = ("run", "step", "tool", "host", "rule", "reason_code", "agent")
    pairs = ((name, event.said(name)) for name in named)
    parts = [f' {name}="{_escaped(value)}"' for name, value in pairs if value]
    return f'[{_SD_ID} id="{_escaped(event.id)}" type="{_escaped(event.type)}"{"".join(parts)}]'


def _escaped(text: str) -> str:
    """RFC 5424 section 6.3.3: quote, backslash and bracket; controls have no form."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")
