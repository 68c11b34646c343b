"""Events in the forms of others: pure functions from the object of a line to text or values.

`FORMATS` names those that give one line an event. What a log holds is data, also here: every form
escapes it by its own rules, and nothing is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from runtime_pack.exports._parts import Record
from runtime_pack.exports.cef import cef_line
from runtime_pack.exports.ecs import ecs_line
from runtime_pack.exports.ocsf import ocsf_line
from runtime_pack.exports.otel import log_line
from runtime_pack.exports.rfc5424 import syslog_line

__all__ = ("FORMATS", "Record")

FORMATS: Final[Mapping[str, Callable[[Record], str]]] = {
    "cef": cef_line,
    "ecs": ecs_line,
    "ocsf": ocsf_line,
    "otlp": log_line,
    "rfc5424": syslog_line,
}
