"""What a run looks like: pages that were read, URLs that were not, the order of steps."""

import io

from rich.console import Console

from runtime_pack.catalog import Executed
from runtime_pack.cli._show import pages_read, show_steps, unread_urls
from runtime_pack.records import StepRecord


def record(step: str, tool: str, *urls: str, ok: bool = True) -> StepRecord:
    """A step that cites these pages."""
    return StepRecord(
        step=step,
        tool=tool,
        call_id=step,
        admitted=True,
        executed=Executed.YES,
        ok=ok,
        citations=tuple({"path": url} for url in urls),
    )


def test_pages_read_are_named_once_and_only_if_they_were_read() -> None:
    """Not what a search listed, and not what a failed read was asked for."""
    steps = [
        record("t1c1", "web:search", "http://a.example/listed"),
        record("t2c1", "web:read", "http://a.example/1"),
        record("t2c2", "web:read", "http://a.example/1"),
        record("t2c3", "web:read", "http://a.example/2", ok=False),
    ]

    assert ("http://a.example/1",) == pages_read(steps)


def test_urls_of_an_answer_that_were_not_read_are_named() -> None:
    """Punctuation behind a URL, a fragment and a last slash make no other page; another path does."""
    read = ["http://a.example/1", "http://a.example/2/"]
    text = (
        "See http://a.example/1, (http://a.example/1#part). Also <http://a.example/2>; and "
        "[this](https://evil.example/x?q=1) or HTTP://a.example/3. Again http://a.example/3."
    )

    assert ("https://evil.example/x?q=1", "HTTP://a.example/3", "http://a.example/3") == (
        unread_urls(text, read)
    )
    assert () == unread_urls("no address here", [])


def test_steps_are_shown_in_their_order() -> None:
    """The tenth turn after the second, whatever order the records came in."""
    out = io.StringIO()
    show_steps(
        Console(file=out, width=80),
        [record("t10", "agent:execute-turn"), record("t2c1", "web:read"), record("t2", "x")],
    )

    assert ["t2", "t2c1", "t10"] == [line.split()[0] for line in out.getvalue().splitlines()[2:]]
