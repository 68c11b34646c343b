"""Sinks: events forwarded to other systems, beside the log and never on the way of a run.

A forwarder follows the files of logs from where it had got to. A receiver that is slow or down holds
nothing up but its own place: events wait in the log, not in memory. Each event is delivered at least
once; one that comes again has the same `id`.
"""

from __future__ import annotations

from runtime_pack.sinks.forward import Forwarder, Told, writes_among
from runtime_pack.sinks.keeping import Keeper
from runtime_pack.sinks.places import Place, Progress
from runtime_pack.sinks.senders import NotDelivered, Refused, Sender, sender_for

__all__ = (
    "Forwarder",
    "Keeper",
    "NotDelivered",
    "Place",
    "Progress",
    "Refused",
    "Sender",
    "Told",
    "sender_for",
    "writes_among",
)
