"""What a call brought from outside, as events beside its step: pure.

They are made of what the runtime keeps of each fenced block, which holds neither a text nor a nonce:
a page that was read, rows that a search found, and fences that something was taken out of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from runtime_pack.catalog import ToolOutput
from runtime_pack.events import Entry, EventCode
from runtime_pack.messages import Json
from runtime_pack.records import StepRecord, Subject, log_host, log_word

__all__ = ("outside_events",)

_PAGE: Final = "page"
_ROW: Final = "search-item"
_MOST_HOSTS: Final = 20


def outside_events(subject: Subject, record: StepRecord, output: ToolOutput) -> Iterator[Entry]:
    """The events of a call that has ended; none where nothing from outside stands in its output."""
    fences, key = output.fences, record.key
    if output.ok:
        for number, fence in enumerate(_of_kind(fences, _PAGE)):
            suffix = "" if number == 0 else f"-{number}"
            yield Entry(
                EventCode.WEB001O, subject, _page(record, fence), None, f"{key}:read{suffix}"
            )
        rows = _of_kind(fences, _ROW)
        if rows:
            yield Entry(EventCode.WEB002O, subject, _found(record, rows), None, f"{key}:found")
    noticed = Counter(log_word(str(word)) for fence in fences for word in _signals(fence))
    if noticed:
        body: dict[str, Json] = {
            "tool": record.tool,
            "blocks": len(fences),
            "counts": dict(sorted(noticed.items())),
        }
        yield Entry(EventCode.FEN001O, subject, body, None, f"{key}:fence")


def _of_kind(fences: tuple[Mapping[str, Json], ...], kind: str) -> list[Mapping[str, Json]]:
    return [fence for fence in fences if fence.get("kind") == kind]


def _page(record: StepRecord, fence: Mapping[str, Json]) -> dict[str, Json]:
    """Whose page it was, and how much of it was shown: no path, no query and no text."""
    revision = fence.get("revision")
    return {
        "tool": record.tool,
        "host": _host(fence),
        "revision": log_word(revision) if isinstance(revision, str) else None,
        "characters": _count(fence, "shown"),
        "of_characters": _count(fence, "total"),
        "truncated": fence.get("truncated") is True,
    }


def _found(record: StepRecord, rows: list[Mapping[str, Json]]) -> dict[str, Json]:
    hosts = sorted({host for row in rows if (host := _host(row)) is not None})
    return {"tool": record.tool, "rows": len(rows), "hosts": [*hosts[:_MOST_HOSTS]]}


def _host(fence: Mapping[str, Json]) -> str | None:
    """The host of a block's address; None where its source is no address."""
    source = fence.get("source")
    if not isinstance(source, str) or not source.startswith(("https://", "http://")):
        return None
    try:
        return log_host(urlsplit(source).hostname or "")
    except ValueError:
        return log_host(source)


def _count(fence: Mapping[str, Json], name: str) -> int | None:
    value = fence.get(name)
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _signals(fence: Mapping[str, Json]) -> list[Json]:
    signals = fence.get("signals")
    return signals if isinstance(signals, list) else []
