"""What the host supplies, and what a tool is given: protocols and the execution context."""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeGuard, TypeVar

import attrs

from runtime_pack.address_book import AddressReader
from runtime_pack.approvals import ApprovalRequest, Decision
from runtime_pack.catalog import ToolOutput, ToolSpec
from runtime_pack.errors import ContractError
from runtime_pack.events import Event
from runtime_pack.flow import BrokenRule
from runtime_pack.inner import frozen
from runtime_pack.labels import CLEAN, Label
from runtime_pack.messages import Json, Message, Transcript, Turn, Usage

if TYPE_CHECKING:
    from runtime_pack.records import StepRecord

__all__ = (
    "AddressingRuntime",
    "Answer",
    "Approver",
    "Aside",
    "Chance",
    "Clock",
    "ContextFactory",
    "Emitter",
    "ExecutionContext",
    "Frame",
    "FramingRuntime",
    "InputGuard",
    "ListedRuntime",
    "Model",
    "NamingRuntime",
    "OutputCheck",
    "PreflightRuntime",
    "ReleasableRuntime",
    "ResultLimitedRuntime",
    "Scanner",
    "SleepingClock",
    "Summariser",
    "Summary",
    "SystemClock",
    "ToolRuntime",
    "TurnRequest",
    "fence_by_default",
    "has_preflight",
    "is_addressing",
    "is_framing",
    "is_listed",
    "is_naming",
    "is_own_list",
    "is_partly_knowing",
    "is_preflight",
    "is_releasable",
    "is_result_limited",
    "is_sleeping",
    "refuses_nothing",
)

_MARK: Final = "__refuses_nothing__"


@frozen(kw_only=True)
class TurnRequest:
    """What one model turn is asked with; `tools` is what is offered this turn."""

    messages: Transcript
    tools: tuple[ToolSpec, ...]
    model: str | None = None
    max_output_tokens: int | None = None


def _drop(_event: Event) -> None:
    """Without a task guard there is no log to record to."""


class Aside(Protocol):
    """One request to the model that is no turn of the run: reserved, bounded and charged as one."""

    async def __call__(
        self,
        step: str,
        messages: Sequence[Message],
        *,
        max_output_tokens: int,
        by: Model | None = None,
        model: str | None = None,
    ) -> Turn | ToolOutput:
        """What the model answered; or, if it could not be asked, the refusal to give back.

        With `by`, another model than the run's is asked, and paid for by the name `model`.
        """
        ...


def _follow(_before: str, _url: str) -> tuple[BrokenRule, ...]:
    """Without a task guard there is no label: the list of the runtime decides."""
    return ()


@frozen(kw_only=True)
class ExecutionContext:
    """Who is calling, and what a tool may ask of the run.

    Attributes:
        record: writes a violation of this step to the run's log; raises `AuditError` when it
            cannot, and `ContractError` for any other event or from another thread.
        burned: the nonces that this run has used; a fence adds to it.
        label: the join of everything the model has seen so far.
        allowlists: name and entries of the lists of workspace and task that a read is held to
            beside the run's own.
        request: the turn to take, for `agent:execute-turn` only.
        hop: says which rules are against following a redirect from one address to another; none
            when it may be followed. It decides without I/O.
        aside: asks the run's model something beside the run's own history, without tools; None
            without a task guard. Its tokens and money are the run's.
        on_delta: hears each piece of the answer's text as it comes, for `agent:execute-turn` only;
            None when nobody listens. A model that cannot stream leaves it alone. It only adds the
            pieces to a stream: what counts is the turn that is returned.
    """

    run: str = "unguarded"
    task: str = ""
    session: str = ""
    agent: str = ""
    step: str = ""
    turn: int = 0
    call_id: str = ""
    label: Label = CLEAN
    allowlists: tuple[tuple[str, tuple[str, ...]], ...] = ()
    burned: set[str] = attrs.field(factory=set)
    record: Callable[[Event], None] = _drop
    hop: Callable[[str, str], tuple[BrokenRule, ...]] = _follow
    aside: Aside | None = None
    request: TurnRequest | None = None
    on_delta: Callable[[str], None] | None = None


class ToolRuntime(Protocol):
    """The one door: a tool by name, with an object of arguments."""

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        """Run the tool and return what it gave. A failure of the tool is an output, not a raise."""
        ...


class PreflightRuntime(Protocol):
    """A runtime that can refuse a call before it costs anything, and that knows its tools."""

    def tool_spec(self, name: str) -> ToolSpec | None:
        """The spec of a tool that this runtime runs, or None."""
        ...

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        """None to go on, or the refusal. Decides without I/O; reports its own denials."""
        ...


class PartlyKnowingRuntime(Protocol):
    """A runtime that runs tools of which it has no spec: those of a runtime inside it that says none."""

    @property
    def knows_every_tool(self) -> bool:
        """Whether a tool without a spec is a tool that this runtime does not run."""
        ...


def require_method(path: str, port: object, method: str) -> None:
    """Refuse an object of the host's that has not the method of its port, before anything starts.

    Raises:
        ContractError: it has not, or it is a class and not an object of it.
    """
    if isinstance(port, type):
        raise ContractError(path, f"{port.__name__} is a class: give an object of it")
    if not callable(getattr(port, method, None)):
        raise ContractError(path, f"{type(port).__name__} has no method `{method}`")


def knows_every_tool(runtime: ToolRuntime) -> bool:
    """Whether None from `tool_spec` means that there is no such tool. A runtime without one cannot say."""
    if not is_preflight(runtime):
        return False
    return not is_partly_knowing(runtime) or runtime.knows_every_tool is True


_F = TypeVar("_F", bound=Callable[..., object])


def refuses_nothing(preflight: _F) -> _F:
    """Mark a `preflight` that always goes on: the guard need not await it for every call."""
    # The mark is the function's: one that overrides it, or wraps it, is awaited again.
    preflight.__dict__[_MARK] = True
    return preflight


def has_preflight(runtime: PreflightRuntime) -> bool:
    """Whether the runtime's `preflight` may refuse a call: yes, unless it is marked."""
    if "preflight" in getattr(runtime, "__dict__", ()):
        return True
    own = getattr(type(runtime), "preflight", None)
    return getattr(own, "__dict__", {}).get(_MARK) is not True


class ListedRuntime(Protocol):
    """A runtime that reads allowlists, and can say before a run starts that one is malformed."""

    def check_allowlists(self, allowlists: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
        """Read the lists of the contract. Raising keeps the run from starting."""
        ...


class OwnListRuntime(Protocol):
    """A runtime with a list of its own of what a run may read: its sub-runs may read no more."""

    @property
    def run_list(self) -> tuple[str, ...]:
        """The entries."""
        ...


class AddressingRuntime(Protocol):
    """A runtime that knows how the addresses are read that its tools are given."""

    @property
    def address_reader(self) -> AddressReader:
        """The reader."""
        ...


class FramingRuntime(Protocol):
    """A runtime that puts the fences around texts from outside itself.

    Of every other runtime, `framed` in an output is a claim of the tool, and is not believed.
    """

    def frames(self, name: str) -> bool:
        """Whether `framed` in an output of this tool is the runtime's own word, not the tool's."""
        ...


class NamingRuntime(Protocol):
    """A runtime that knows which model takes its turns, when a request does not name one."""

    @property
    def model_name(self) -> str | None:
        """The name that prices are looked up by, or None. A `Model` may have the same attribute."""
        ...


class ReleasableRuntime(Protocol):
    """A runtime that holds connections or processes while a run is driven."""

    async def release(self) -> None:
        """Close what is open; the runtime stays usable and opens it again when it is needed."""
        ...


class ResultLimitedRuntime(Protocol):
    """A runtime whose model takes only so many results at once: its provider refuses more."""

    @property
    def max_results(self) -> int | None:
        """The most results that one request may add; None when there is no limit."""
        ...


class Model(Protocol):
    """One turn of a language model, or of something that behaves like one."""

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """Answer the history. Raising anything is a MODEL_ERROR.

        Pieces of the text may be given to `context.on_delta`, if it is there, as they come.
        """
        ...


@frozen(kw_only=True)
class Summary:
    """What a summariser wrote, and what that took: of *model*, or of the one that it is named for."""

    text: str
    usage: Usage | None = None
    model: str | None = None


class Summariser(Protocol):
    """Sums up the earlier part of a run that has become too long for its model.

    Under a limit on tokens or money, or with a `model_name`, it is reserved for before it is asked,
    as a turn of that model is: with its `max_output_tokens`, or 4,096. `model_name = None` says that
    it asks no model.
    """

    async def summarise(self, messages: Sequence[Message]) -> str | Summary:
        """A shorter text that says what the messages said; a `Summary` says what it took as well."""
        ...


class Scanner(Protocol):
    """Looks through texts from outside for what was written for models. It only ever says so."""

    async def scan(self, text: str, *, source: str) -> bool:
        """Whether there is something in the text, as the model sees it; *source* says whose it is.

        One that raises, gives no `bool` or takes more than five seconds has failed: that is a
        signal of its own, and the run goes on.
        """
        ...


class Emitter(Protocol):
    """Receives security events; raising stops the action that caused the event."""

    async def emit(self, event: Event) -> None:
        """Take one event."""
        ...


class Approver(Protocol):
    """Decides pending requests while the run is alive."""

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        """A decision, or None to leave the request pending; then the run suspends."""
        ...


class Clock(Protocol):
    """Wall time for records, monotonic time for budgets."""

    def now(self) -> datetime:
        """The time of day, aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SleepingClock(Clock, Protocol):
    """A clock that waits by itself: for tests, in which nobody waits."""

    async def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed on this clock."""
        ...


def _offers(candidate: object, member: str) -> bool:
    """Whether the member is there, asked as a caller would ask.

    Not `isinstance` of a protocol: from 3.12 on that looks past `__getattr__`, and what a host's
    wrapper passes on would be silently left out, checks among it.
    """
    return getattr(candidate, member, None) is not None


def is_preflight(candidate: object) -> TypeGuard[PreflightRuntime]:
    """Whether it can refuse a call before it costs anything."""
    return _offers(candidate, "preflight") and _offers(candidate, "tool_spec")


def is_partly_knowing(candidate: object) -> TypeGuard[PartlyKnowingRuntime]:
    """Whether it says whether it knows every tool that it runs."""
    return _offers(candidate, "knows_every_tool")


def is_listed(candidate: object) -> TypeGuard[ListedRuntime]:
    """Whether it reads the allowlists of a contract."""
    return _offers(candidate, "check_allowlists")


def is_own_list(candidate: object) -> TypeGuard[OwnListRuntime]:
    """Whether it has a list of its own of what a run may read."""
    return _offers(candidate, "run_list")


def is_addressing(candidate: object) -> TypeGuard[AddressingRuntime]:
    """Whether it knows how the addresses of its tools are read."""
    return _offers(candidate, "address_reader")


def is_framing(candidate: object) -> TypeGuard[FramingRuntime]:
    """Whether it puts fences around texts from outside itself."""
    return _offers(candidate, "frames")


def is_naming(candidate: object) -> TypeGuard[NamingRuntime]:
    """Whether it knows which model takes its turns."""
    return _offers(candidate, "model_name")


def is_releasable(candidate: object) -> TypeGuard[ReleasableRuntime]:
    """Whether it holds what is to be given back at the end of a drive."""
    return _offers(candidate, "release")


def is_result_limited(candidate: object) -> TypeGuard[ResultLimitedRuntime]:
    """Whether it has a limit of results that one request may add."""
    return _offers(candidate, "max_results")


def is_sleeping(candidate: object) -> TypeGuard[SleepingClock]:
    """Whether it waits by itself."""
    return _offers(candidate, "sleep")


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now(self) -> datetime:
        """The time of day, aware, UTC."""
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)


class Frame(Protocol):
    """Fences a text from outside so that the model can tell where it ends."""

    def __call__(self, text: str, *, source: str, burned: set[str]) -> str:
        """The fenced text; nonces are drawn outside `burned` and added to it."""
        ...


def fence_by_default(text: str, *, source: str, burned: set[str]) -> str:
    """The `Frame` of a run that was given none: the fence of `runtime_pack.framing`.

    Found by its name when the first text from outside comes, so that the loop knows no web and a
    run without such a text does not load it.
    """
    frame: Frame = importlib.import_module("runtime_pack.framing").fence_frame
    return frame(text, source=source, burned=burned)


def noticed_by_default(text: str, burned: AbstractSet[str]) -> frozenset[str]:
    """What the fence of `runtime_pack.framing` notices in a text, as words; found as that one is."""
    noticed: frozenset[str] = importlib.import_module("runtime_pack.framing").signals_in(
        text, burned
    )
    return noticed


Chance: TypeAlias = Callable[[], float]
"""A number from 0 to 1, anew with each call: spreads the waits of runs that failed together."""


@frozen(kw_only=True)
class Answer:
    """What a model wants to end a run with, and what the run did before."""

    text: str
    steps: tuple[StepRecord, ...]
    messages: tuple[Message, ...]


OutputCheck: TypeAlias = Callable[[Answer], Awaitable[str | None]]
"""Says why an answer must not end the run, or None; raising, too, refuses it.

The model is told the reason in a user's message: it must repeat nothing that came from outside.
"""

InputGuard: TypeAlias = Callable[[Sequence[Message]], Awaitable[str | None]]
"""Looks at the history before the model does: None to go on, or why the run must not.

It sees every message that a user adds, in each drive; raising, too, keeps the run from going on.
"""

ContextFactory: TypeAlias = Callable[[], ExecutionContext]
"""Makes the context of a run: the host fills in session and agent."""
