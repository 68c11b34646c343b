r"""ArcSight Common Event Format, version 0: one line an event. Pure.

In the header `|` and `\` are escaped, in the extension `=` and `\`; line feeds are `\n`, and other
control characters become a question mark: no parser has a form for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from runtime_pack.exports._parts import PRODUCT, VENDOR, Record, is_address, read

__all__ = ("cef_line",)

_SEVERITIES: Final[Mapping[str, int]] = {"info": 1, "low": 3, "medium": 6, "high": 9}
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def cef_line(record: Record) -> str:
    """The event as one line, without a line feed."""
    event = read(record)
    head = ("CEF:0", VENDOR, PRODUCT, "1", event.code, event.type)
    severity = _SEVERITIES.get(event.severity, 5)
    host, port = event.said("host") if event.is_violation else "", event.port()
    named = (
        ("rt", str(event.micros // 1000)),
        ("externalId", event.id),
        ("cat", event.type),
        ("act", event.said("action")),
        ("dst" if is_address(host) else "dhost", host.strip("[]") if is_address(host) else host),
        ("dpt", "" if port is None else str(port)),
        ("app", event.said("proto")),
        ("reason", event.said("reason_code", "code")),
        *_labelled("cs1", "rule", event.said("rule")),
        *_labelled("cs2", "run", event.said("run")),
        *_labelled("cs3", "step", event.said("step")),
        *_labelled("cs4", "tool", event.said("tool")),
        *_labelled("cs5", "agent", event.said("agent")),
        *_labelled("cn1", "line", str(event.seq)),
    )
    extension = " ".join(f"{key}={_value(text)}" for key, text in named if text)
    return f"{'|'.join(map(_header, head))}|{severity}|{extension}"


def _labelled(key: str, label: str, value: str) -> tuple[tuple[str, str], ...]:
    return ((f"{key}Label", label), (key, value)) if value else ()


def _header(text: str) -> str:
    plain = _CONTROLS.sub("?", text).replace("\n", " ").replace("\r", " ").replace("\t", " ")
    return plain.replace("\\", "\\\\").replace("|", "\\|")


def _value(text: str) -> str:
    plain = _CONTROLS.sub("?", text).replace("\t", " ")
    plain = plain.replace("\\", "\\\\").replace("=", "\\=")
    return plain.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\\n")
