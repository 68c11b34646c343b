"""The numbers of docs/egress.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from egress import FetchLimits, ProxyLimits, RunLimits, _accept, _proxy_forward, proxied, resolver
from egress._proxy_connection import _LINGER_SECONDS
from egress.allowlist import _MAX_ENTRY_CHARACTERS, MAX_ENTRIES
from egress.client_hello import MAX_HELLO_BYTES
from egress.decision import MAX_ANSWERS
from egress.proxy_head import _MAX_METHOD_CHARACTERS
from runtime_pack.cli import _proxy_records

PAGE = (Path(__file__).parents[2] / "docs" / "egress.md").read_text(encoding="utf-8")
UNITS = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}
DEFAULTS = {
    field.name: field.default
    for limits in (FetchLimits, RunLimits, ProxyLimits)
    for field in attrs.fields(limits)
}


def number(text: str) -> float:
    """What a cell like `64 MiB` or `65,536` means."""
    found = re.match(r"([\d,]+)(?: (GiB|MiB|KiB))?", text)
    assert found is not None, text
    return int(found[1].replace(",", "")) * UNITS.get(found[2], 1)


def rows() -> list[tuple[frozenset[str], str]]:
    """Names of limits, and the cell beside them, of every table of limits."""
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:3]]
        names = frozenset(re.findall(r"`(\w+)`", cells[0])) if len(cells) > 1 else frozenset()
        if names and names <= DEFAULTS.keys() and re.match(r"[\d,]+", cells[1]):
            found.append((names, cells[1]))
    return found


def test_the_tables_hold_the_defaults() -> None:
    """Of a fetch, of a run, and of a run at the proxy; `max_bytes` is the same at both."""
    told = {name: number(cell) for names, cell in rows() for name in names}

    assert told == {name: DEFAULTS[name] for name in told}
    assert set(DEFAULTS) == set(told)


@pytest.mark.parametrize(
    ("sentence", "numbers"),
    [
        (r"beside ([\d,]+) for the process", (_accept._RESERVED,)),
        (r"takes no connection for a tenth of a second", ()),
        (r"a method of more than (\d+) characters", (_MAX_METHOD_CHARACTERS,)),
        (r"up to (\d+) informational responses", (_proxy_forward._MAX_INFORMATIONAL,)),
        (r"more than ([\d,]+) answers", (MAX_ANSWERS,)),
        (r"longer than (\d+) KiB", (MAX_HELLO_BYTES // 1024,)),
        (r"The list has more than ([\d,]+) entries", (MAX_ENTRIES,)),
        (r"An entry has more than ([\d,]+) characters", (_MAX_ENTRY_CHARACTERS,)),
        (r"at most eight of a run at one time, (\d+) in all", (resolver._IN_ALL,)),
    ],
)
def test_a_sentence_holds_the_number(sentence: str, numbers: tuple[int, ...]) -> None:
    """As it is written there, and as it is meant in the code."""
    (found,) = re.finditer(sentence, PAGE)

    assert numbers == tuple(int(text.replace(",", "")) for text in found.groups())


def test_numbers_that_are_words() -> None:
    """A tenth, eight, two and five stand in sentences of the page."""
    assert (0.1, 60.0) == (_accept._RETRY_SECONDS, _accept._TELL_SECONDS)
    assert (8, 2.0) == (resolver._PER_OWNER, proxied._DENIAL_SECONDS)
    assert (5.0, 2.0) == (_proxy_records._STUCK_SECONDS, _LINGER_SECONDS)
    for words in (
        "a tenth of a second",
        "once a minute",
        "at most eight of a run",
        "later than two seconds",
        "nobody reads for five seconds",
    ):
        assert words in PAGE
