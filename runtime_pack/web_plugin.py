"""The search plugin as a tool of a governed run: `search` or `search_url`, whichever the model is to see.

Its pages are held to the lists of the contract and to the label rules, its models are asked beside the
run's history and paid for by the run, and each denied page is one event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import orjson

from egress.errors import AllowlistError
from egress.url import Target
from runtime_pack.catalog import CatalogTool, Effects, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import (
    CallCode,
    ContractError,
    EmitterError,
    ModelFault,
    ModelRequestError,
)
from runtime_pack.label_table import SideEffect
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.machine import refusal
from runtime_pack.messages import (
    FinishReason,
    Json,
    SystemMessage,
    Turn,
    TurnStatus,
    Usage,
    UserMessage,
)
from runtime_pack.ports import Emitter, ExecutionContext, TurnRequest, require_method
from runtime_pack.records import log_word
from runtime_pack.strictness import ApprovalClass, parse_class
from runtime_pack.violations import violation_event
from runtime_pack.web_catalog import PROVENANCE, fence_style
from web_tools.errors import WebErrorCode, WebToolError
from web_tools.fence import (
    FencedBlock,
    FenceKind,
    FenceMeta,
    FenceMode,
    FenceStyle,
    NonceBook,
    ResultText,
    fence_aside,
    fence_results_aside,
)
from web_tools.native.client import NativeEndpoint, ask_natively
from web_tools.native.values import (
    Codec,
    NativeAsk,
    NativeFailed,
    NativeFault,
    NativeTurn,
    NativeUsage,
)
from web_tools.plugin.capability import ModelCard
from web_tools.plugin.door import CallPorts, SearchPlugin
from web_tools.plugin.outcomes import (
    ModelAnswer,
    PluginCode,
    PluginOutcome,
    PluginRefused,
    UrlError,
    UrlFailed,
    UrlSummaries,
)
from web_tools.plugin.pages import GuardedReader, PageSource
from web_tools.plugin.summaries import Completed, CompletionFailed, Prompt

__all__ = ("search_plugin_tool",)

_EXTERNAL: Final = Label(integrity=Integrity.EXTERNAL, confidentiality=Confidentiality.PUBLIC)
# Both deadlines of a call, and some time to begin and to end.
_SPARE_SECONDS: Final = 30.0
_FAULTS: Final[Mapping[NativeFault, ModelFault]] = {
    NativeFault.INCOMPLETE: ModelFault.MALFORMED,
    NativeFault.REFUSED: ModelFault.REFUSED,
    NativeFault.NOT_SUPPORTED: ModelFault.INVALID_REQUEST,
    NativeFault.RATE_LIMITED: ModelFault.RATE_LIMITED,
    NativeFault.UNAUTHORIZED: ModelFault.AUTH,
    NativeFault.UNAVAILABLE: ModelFault.SERVER,
    NativeFault.NOT_REACHABLE: ModelFault.TRANSPORT,
    NativeFault.DEADLINE: ModelFault.TIMEOUT,
}


def search_plugin_tool(
    plugin: SearchPlugin,
    *,
    emitter: Emitter,
    endpoints: Mapping[str, NativeEndpoint] | None = None,
    approval_class: ApprovalClass | str = ApprovalClass.NOTIFY,
    fence_mode: FenceMode | str = FenceMode.FENCE,
) -> CatalogTool:
    """The one entry of *plugin* that its main model is to see, for `create_agent_runtime(tools=[…])`.

    Args:
        plugin: From `create_search_plugin`.
        emitter: Receives one event for each page that the policy denies; raising stops the call.
        endpoints: Where the model that searches is reached, by the name of its card. Prices are
            looked up under that name, too.
        approval_class: What each call asks for.
        fence_mode: How each text is written inside its fence.

    Raises:
        ContractError: The settings name a usable model, and there is no endpoint for it; or there
            is no such mode.
    """
    style = fence_style(fence_mode)
    require_method("emitter", emitter, "emit")
    reached = dict(endpoints or {})
    target = plugin.models.facts("search", target=plugin.settings.search).target
    if target is not None and not isinstance(reached.get(target.name), NativeEndpoint):
        raise ContractError("endpoints", f"there is none for {target.name}")
    spec = ToolSpec(
        name=str(plugin.entry),
        description=plugin.description,
        parameters=plugin.parameters,
        output_trust=plugin.output_trust,
        timeout_seconds=2 * plugin.bounds.total_seconds + _SPARE_SECONDS,
        effects=Effects.REPEATABLE,
        invalid_code=WebErrorCode.INVALID_INPUT,
        approval_class=parse_class("approval_class", approval_class),
        output_confidentiality=Confidentiality.PUBLIC,
        side_effects=(SideEffect.READ_NET,),
        destination_args=("urls",),
    )

    async def handler(arguments: Mapping[str, Json], context: ExecutionContext) -> ToolOutput:
        call = _Call(context, emitter, spec.name, reached, plugin.bounds.total_seconds)
        try:
            ports = CallPorts(
                complete=call.complete,
                native=call.native,
                reader=_reader(plugin.reader, context),
                denied=call.denied,
                nonces=NonceBook(burned=context.burned),
                style=style,
            )
            return await _told(await plugin.run(arguments, ports), context, style)
        except PluginRefused as refused:
            return _refused(refused)
        except WebToolError as error:
            faults: list[Json] = [
                {"path": each.path, "problem": each.problem} for each in error.faults
            ]
            details: dict[str, Json] = {"faults": faults}
            return refusal(error.code, error.message, executed=Executed.NO, details=details)
        except AllowlistError:
            text = "The lists of this task cannot be read."
            return refusal(WebErrorCode.EGRESS_DENIED, text, executed=Executed.NO)

    return CatalogTool(spec=spec, handler=handler, fences=True)


def _reader(reader: PageSource, context: ExecutionContext) -> PageSource:
    """The reader, held to the lists of the contract and to the label rules of the run."""
    if isinstance(reader, GuardedReader):
        lists = (*reader.lists, *context.allowlists)
        return attrs.evolve(reader, lists=lists, follow=_follow(context))
    if context.allowlists:
        # The host's own: nothing says that it keeps to them.
        text = "The lists of this task cannot be applied to the reader of the host."
        raise PluginRefused(WebErrorCode.EGRESS_DENIED, text)
    return reader


def _follow(context: ExecutionContext) -> Callable[[Target, Target], None]:
    def follow(before: Target, target: Target) -> None:
        if context.hop(before.url, target.url):
            raise UrlFailed(PluginCode.NOT_FOLLOWED)

    return follow


@attrs.define
class _Call:
    """The ports of one call."""

    context: ExecutionContext
    emitter: Emitter
    tool: str
    endpoints: Mapping[str, NativeEndpoint]
    seconds: float
    told: int = 0

    async def complete(self, prompt: Prompt, *, max_output_tokens: int) -> Completed:
        """What the run's model says of one page."""
        question = orjson.dumps({"question": prompt.question}).decode()
        turn = await self._aside(
            (
                SystemMessage(text=prompt.instructions),
                UserMessage(text=f"{question}\n{prompt.page}", label=_EXTERNAL),
            ),
            max_output_tokens,
        )
        return Completed(text=turn.text, cut=bool(turn.calls) or turn.finish != FinishReason.STOP)

    async def native(self, card: ModelCard, codec: Codec, ask: NativeAsk) -> NativeTurn:
        """One response of the model that searches."""
        searching = _SearchingModel(codec, ask, self.endpoints[card.name], self.seconds)
        messages = (SystemMessage(text=ask.instructions), UserMessage(text=ask.query))
        try:
            await self._aside(messages, ask.max_output_tokens, by=searching, name=card.name)
        except CompletionFailed:
            if searching.failed is not None:
                raise searching.failed from None
            raise
        if searching.turn is None:
            raise NativeFailed(NativeFault.BAD_ANSWER)
        return searching.turn

    async def _aside(
        self,
        messages: tuple[SystemMessage, UserMessage],
        most: int,
        *,
        by: _SearchingModel | None = None,
        name: str | None = None,
    ) -> Turn:
        """A turn that is paid for by the run.

        Raises:
            CompletionFailed: There is none.
        """
        aside = self.context.aside
        if aside is None:
            text = "The models of this tool can be asked in a guarded run only."
            raise CompletionFailed(CallCode.TOOL_ERROR, text, is_final=True)
        turn = await aside(self.context.step, messages, max_output_tokens=most, by=by, model=name)
        if isinstance(turn, Turn):
            return turn
        code = turn.code or CallCode.TOOL_ERROR
        spent = code == CallCode.BUDGET_EXHAUSTED
        told = code if spent else str(PluginCode.SUMMARY_FAILED)
        raise CompletionFailed(told, turn.text, retryable=turn.retryable, is_final=spent)

    async def denied(self, _url: str, error: WebToolError) -> None:
        """The one event of a denied page: into the log, then to the host. Either failing stops the call."""
        if error.violation is None:
            return
        self.told += 1
        context = self.context
        subject: dict[str, Json] = {"run": context.run}
        for name in ("task", "session", "agent", "step"):
            if getattr(context, name):
                subject[name] = getattr(context, name)
        if context.call_id:
            subject["call"] = log_word(context.call_id)
        key = f"{context.step}:page{self.told}:{error.violation.hop}"
        event = violation_event(error.violation, subject=subject, key=key, tool=self.tool)
        context.record(event)
        try:
            await self.emitter.emit(event)
        # The host's code: whatever it raises, the action stops.
        except Exception as failure:
            text = f"the emitter failed: {type(failure).__name__}"
            raise EmitterError(text) from failure


@attrs.define
class _SearchingModel:
    """The model that searches, as one that takes one turn; what it found is kept beside the turn."""

    codec: Codec
    ask: NativeAsk
    endpoint: NativeEndpoint
    seconds: float
    turn: NativeTurn | None = None
    failed: NativeFailed | None = None

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """One request, with no more output than was reserved."""
        del context
        most = request.max_output_tokens or self.ask.max_output_tokens
        ask = attrs.evolve(self.ask, max_output_tokens=most)
        try:
            turn = await ask_natively(self.codec, ask, self.endpoint, timeout_seconds=self.seconds)
        except NativeFailed as failed:
            self.failed = failed
            raise ModelRequestError(
                fault=_FAULTS.get(failed.fault, ModelFault.MALFORMED),
                message=f"the model that searches: {failed.fault}",
                usage=_usage(failed.usage),
            ) from None
        self.turn = turn
        return Turn(status=TurnStatus.REPLY, text=turn.text, usage=_usage(turn.usage))


def _usage(usage: NativeUsage | None) -> Usage | None:
    if usage is None:
        return None
    return Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)


async def _told(outcome: PluginOutcome, context: ExecutionContext, style: FenceStyle) -> ToolOutput:
    """The outcome, each text in a block of its own; its data are plain."""
    nonces = NonceBook(burned=context.burned)
    if isinstance(outcome, ModelAnswer):
        shown = await _shown_answer(outcome, nonces, style)
    else:
        shown = await _shown_pages(outcome, nonces, style)
    # A call of which no page was read has failed, whatever it tells of each.
    failed = isinstance(outcome, UrlSummaries) and not outcome.read
    return ToolOutput(
        ok=not failed,
        code=_code(outcome) if failed and isinstance(outcome, UrlSummaries) else None,
        text=shown.text,
        data=outcome.to_wire(),
        label=_EXTERNAL,
        provenance=PROVENANCE,
        citations=outcome.citations,
        framed=True,
        found=shown.found,
        fences=tuple(block.to_record() for block in shown.blocks),
    )


@attrs.frozen(kw_only=True)
class _Shown:
    """What the model sees: blocks, and our own words between them."""

    text: str
    blocks: tuple[FencedBlock, ...]
    found: tuple[str, ...] = ()


async def _shown_pages(outcome: UrlSummaries, nonces: NonceBook, style: FenceStyle) -> _Shown:
    """By the number of the address in the call: its spelling is not repeated outside of a block."""
    lines: list[str] = []
    blocks: list[FencedBlock] = []
    for number, each in enumerate(outcome.results, start=1):
        if isinstance(each, UrlError):
            told = {"number": number, "error": each.code, "message": each.message}
            lines.append(orjson.dumps({**told, "retryable": each.retryable}).decode())
            continue
        meta = FenceMeta(
            kind=FenceKind.SUMMARY, source=each.final_url, retrieved_at=each.fetched_at
        )
        body = f"{each.title}\n\n{each.summary}" if each.title else each.summary
        block = await fence_aside(body, meta=meta, nonces=nonces, style=style)
        blocks.append(block)
        head = {"number": number, "truncated": each.truncated, "cached": each.cached}
        lines.append(f"{orjson.dumps(head).decode()}\n{block.text}")
    return _Shown(text="\n".join(lines), blocks=tuple(blocks))


async def _shown_answer(outcome: ModelAnswer, nonces: NonceBook, style: FenceStyle) -> _Shown:
    """What the model that searches said, and then its sources."""
    meta = FenceMeta(kind=FenceKind.SUMMARY, source=None, retrieved_at=outcome.asked_at)
    answer = await fence_aside(outcome.answer.text, meta=meta, nonces=nonces, style=style)
    sources = {each.source.url: each for each in reversed(outcome.kept)}
    fenced = await fence_results_aside(
        [
            ResultText(title=each.source.title, snippet=each.quote or each.excerpt, source=url)
            for url, each in reversed(sources.items())
        ],
        retrieved_at=outcome.asked_at,
        nonces=nonces,
        style=style,
    )
    head = {"searched": outcome.answer.searched, "searches": outcome.answer.searches}
    parts = [orjson.dumps(head).decode(), answer.text]
    if sources:
        parts += ["What it names as its sources:", fenced.text]
    return _Shown(
        text="\n".join(parts),
        blocks=(answer, *fenced.blocks),
        found=tuple(reversed(sources)),
    )


def _code(outcome: UrlSummaries) -> str:
    """The one code of all pages, where they have one."""
    codes = {each.code for each in outcome.results if isinstance(each, UrlError)}
    return codes.pop() if len(codes) == 1 else str(PluginCode.NO_PAGE_READ)


def _refused(refused: PluginRefused) -> ToolOutput:
    details: dict[str, Json] = {} if refused.detail is None else {"detail": refused.detail}
    output = refusal(
        refused.code,
        refused.message,
        executed=Executed.YES if refused.executed else Executed.NO,
        retryable=refused.retryable,
        details=details,
    )
    if not refused.executed:
        return output
    return attrs.evolve(output, label=_EXTERNAL, provenance=PROVENANCE)
