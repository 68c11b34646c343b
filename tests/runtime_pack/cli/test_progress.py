"""What commands say while a run goes on: a moving line on a terminal, and a line for each event."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from runtime_pack.catalog import Executed
from runtime_pack.cli._progress import Telling, followed, line_of, tell
from runtime_pack.cli.demo import _Show
from runtime_pack.labels import CLEAN
from runtime_pack.loop import (
    BudgetWarning,
    CallAdmitted,
    CallFinished,
    CallRefused,
    LoopEvent,
    TextDelta,
    TurnLost,
    TurnStarted,
)
from runtime_pack.messages import Json, ToolCall

ASKED = TurnStarted(step="t1", attempt=1)


def admitted(arguments: str | dict[str, Json]) -> CallAdmitted:
    call = ToolCall(id="1", name="web:read", arguments=arguments)
    return CallAdmitted(step="t1c1", call=call, label=CLEAN)


def finished(*, ok: bool, code: str | None) -> CallFinished:
    return CallFinished(
        step="t1c1", tool="web:read", call_id="1", attempt=1, ok=ok, code=code,
        executed=Executed.YES, text="secret", label=CLEAN, elapsed_us=12_400,
    )  # fmt: skip


REFUSED = CallRefused(
    step="t1c2", tool="web:read", call_id="2", code="POLICY_DENIED", text="no", label=CLEAN
)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (ASKED, "t1 the model is asked"),
        (TurnStarted(step="t2", attempt=2), "t2 the model is asked, attempt 2"),
        (TurnLost(step="t2", attempt=1, code="MODEL_ERROR", message="x"), "t2 no answer: MODEL_ERROR"),
        (admitted({"url": "https://a.test/b"}), "t1c1 web:read https://a.test/b"),
        (admitted({"query": "what"}), "t1c1 web:read what"),
        (admitted({"x": 1}), 't1c1 web:read {"x":1}'),
        (admitted("{"), "t1c1 web:read"),
        (finished(ok=True, code=None), "t1c1 ok, 12 ms"),
        (finished(ok=False, code="TOOL_FAILED"), "t1c1 failed: TOOL_FAILED"),
        (REFUSED, "t1c2 web:read refused: POLICY_DENIED"),
        (BudgetWarning(budget="steps", limit=20, taken=16), "steps: 16 of 20 are taken"),
        (TextDelta(step="t1", attempt=1, text="x", label=CLEAN), None),
    ],
)  # fmt: skip
def test_each_event_is_a_line(event: LoopEvent, line: str | None) -> None:
    """With what a call is about, and never with what it gave."""
    assert line == line_of(event)


def test_what_a_model_wrote_is_one_short_line_that_no_terminal_obeys() -> None:
    """No line of another event, no control code, and no text without an end."""
    line = line_of(admitted({"url": "https://a.test/\x1b[2J\nt9 ok, 1 ms\u202e" + "x" * 9999}))

    assert line is not None
    assert line.isprintable()
    assert len(line) <= 160


def wrote(text: str, step: str = "t1") -> TextDelta:
    return TextDelta(step=step, attempt=1, text=text, label=CLEAN)


def test_what_is_written_piece_by_piece_stands_on_lines_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However it is cut, each line has the mark of its turn, and another event begins a new one."""
    telling = Telling()

    for event in (
        ASKED,
        wrote("a\n"),
        wrote("t9 ok"),
        wrote("\r\n\x1b[2J"),
        ASKED,
        wrote("b", "t2"),
    ):
        telling(event)
    telling.close()
    telling.close()

    assert capsys.readouterr().err.splitlines() == [
        "t1 the model is asked",
        "t1 > a",
        "t1 > t9 ok",
        "t1 > \ufffd[2J",
        "t1 the model is asked",
        "t2 > b",
    ]


class Full(io.StringIO):
    """A stream on a disk that is full."""

    def write(self, text: str) -> int:
        """Take nothing."""
        raise OSError(28, text)


def test_a_run_goes_on_when_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said on standard error is in the log as well."""
    monkeypatch.setattr(sys, "stderr", Full())

    tell(ASKED)
    telling = Telling()
    telling(wrote("x"))
    telling.close()


def test_a_cancelled_reader_ends_the_run_that_holds_it_up() -> None:
    """To leave only pauses it; the second Ctrl-C is for what does not end by that."""
    heard: list[LoopEvent] = []
    ended: list[str] = []

    async def stuck() -> AsyncIterator[LoopEvent]:
        try:
            yield ASKED
            await asyncio.Event().wait()
        finally:
            # As a stream waits for a run that its reader has left.
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("torn")
                raise

    async def main() -> None:
        begun = asyncio.Event()

        def hear(event: LoopEvent) -> None:
            heard.append(event)
            begun.set()

        reading = asyncio.create_task(followed(stuck(), hear))
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())

    assert (["torn"], [ASKED]) == (ended, heard)


@pytest.mark.parametrize(
    ("is_terminal", "is_quiet", "shown"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_progress_is_shown_on_a_terminal_only(
    is_terminal: bool, is_quiet: bool, shown: bool
) -> None:
    """A person sees what is being done; a pipe and --json see nothing of it."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=80)

    with _Show(console=console, quiet=is_quiet).progress("indexing the embedded corpus"):
        pass

    assert shown == ("indexing the embedded corpus" in written.getvalue())
