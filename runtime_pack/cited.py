"""What a run has seen, as evidence for its answer: the check of an answer, and saved runs.

Evidence is taken from the step records, which the runtime wrote, and from nothing that a model said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from citations import (
    CitedAnswer,
    Evidence,
    InvalidCitation,
    KnowledgeCitation,
    RevisionTexts,
    Seen,
    SourceKind,
    Verification,
    cite_answer,
    verify,
)
from egress import EgressError, parse_target
from runtime_pack.catalog import SEARCH_TOOLS
from runtime_pack.errors import ContractError, StateRefused
from runtime_pack.inner import frozen
from runtime_pack.loop.keeper import Taken, read_rows, restored_state
from runtime_pack.machine import Ended
from runtime_pack.messages import AssistantMessage, Message
from runtime_pack.ports import Answer
from runtime_pack.records import StepRecord
from runtime_pack.state import open_head
from runtime_pack.stores import RunStore

__all__ = ("CitationCheck", "canonical_address", "cite_saved_run", "collect_evidence")

_ANSWERLESS: Final = "the run has no answer"
_SHOWN_FAULTS: Final = 8


def canonical_address(address: str) -> str | None:
    """An address in the form that citations have; None for one that could not be read."""
    try:
        return parse_target(address).document_url
    except EgressError:
        return None


def collect_evidence(
    steps: Iterable[StepRecord], messages: Iterable[Message], texts: RevisionTexts
) -> Evidence:
    """What the steps of a run have seen.

    Args:
        steps: the records of the run; those of search tools are snippets, all others pages.
        messages: its history: which address a call asked for, so that it is known by that as well.
        texts: keeps what the citations digest, as a store of revisions does.
    """
    asked = _asked(messages)
    seen: dict[tuple[KnowledgeCitation, SourceKind], Seen] = {}
    for record in steps:
        if not record.ok:
            continue
        kind = SourceKind.SNIPPET if record.tool in SEARCH_TOOLS else SourceKind.PAGE
        citations = [citation for wire in record.citations if (citation := _parsed(wire))]
        known = asked.get(record.call_id)
        aliases = (known,) if known and len(citations) == 1 and kind is SourceKind.PAGE else ()
        for citation in citations:
            seen.setdefault((citation, kind), Seen(citation=citation, kind=kind, aliases=aliases))
    return Evidence(seen=seen.values(), texts=texts)


def _parsed(wire: Mapping[str, str]) -> KnowledgeCitation | None:
    """A citation of ours; a host's tool may have some of another form."""
    try:
        return KnowledgeCitation.from_wire(wire)
    except InvalidCitation:
        return None


def _asked(messages: Iterable[Message]) -> dict[str, str]:
    """The canonical address that each call asked for, by call id."""
    asked: dict[str, str] = {}
    for message in messages:
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            url = call.arguments.get("url") if isinstance(call.arguments, Mapping) else None
            address = canonical_address(url) if isinstance(url, str) else None
            if address is not None:
                asked[call.id] = address
    return asked


# ── the check of an answer ────────────────────────────────────────────────────────────────────


@frozen
class CitationCheck:
    """An output check: every quotation has to be verified, and there have to be so many of them.

    Give it as `output_check` of `create_agent_task_run`, with the store that the web tools write
    to, and say in the contract what happens to an answer that fails it.

    Raises:
        ContractError: *at_least* is not a whole number from 0.
    """

    texts: RevisionTexts
    at_least: int = attrs.field(default=1, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if type(self.at_least) is not int or self.at_least < 0:
            raise ContractError("at_least", "must be a whole number from 0")

    async def __call__(self, answer: Answer) -> str | None:
        """Why the answer is not good enough; None when it is. Repeats nothing of its text."""
        # Folding large pages takes seconds: not on the loop.
        return await asyncio.to_thread(self._fault, answer)

    def _fault(self, answer: Answer) -> str | None:
        evidence = collect_evidence(answer.steps, answer.messages, self.texts)
        checked = verify(answer.text, evidence, canonical=canonical_address)
        failed = _failed(checked)
        if failed:
            return f"quotes what could not be verified ({failed})"
        if len(checked.verified) < self.at_least:
            return (
                f"has {len(checked.verified)} verified quotations of {self.at_least} that it needs: "
                "quote the pages that were read, word for word, with the address of each"
            )
        return None


def _failed(checked: Verification) -> str:
    """The quotations that are not verified, by number: what they say may be a page's words."""
    told = [
        f"quotation {number}: {quote.verdict}"
        for number, quote in enumerate(checked.quotes, start=1)
        if quote.verdict is not None and quote not in checked.verified
    ]
    left = len(told) - _SHOWN_FAULTS
    return ", ".join((*told[:_SHOWN_FAULTS], *([f"and {left} more"] if left > 0 else [])))


# ── saved runs ────────────────────────────────────────────────────────────────────────────────


async def cite_saved_run(store: RunStore, run_id: str, texts: RevisionTexts) -> CitedAnswer:
    """The answer of a saved run with its references, checked against what the run has seen.

    Raises:
        RunNotFound: the store has no such run.
        StateRefused: the run is damaged, or has no answer.
        StoreError: the store could not be read.
    """
    saved = await store.load(run_id)
    head: Mapping[str, Any] = open_head(saved, store.seal)
    try:
        held = read_rows(saved.rows)
        text = _text(head, held)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateRefused(f"the saved run cannot be read ({type(error).__name__})") from error
    if not text:
        raise StateRefused(_ANSWERLESS)
    steps: Sequence[StepRecord] = held.steps
    evidence = collect_evidence(steps, held.messages, texts)
    return await asyncio.to_thread(cite_answer, text, evidence, canonical=canonical_address)


def _text(head: Mapping[str, Any], held: Taken) -> str:
    state, outcome = restored_state(head, held.results)
    if outcome is None and isinstance(state, Ended):
        outcome = state.outcome
    return "" if outcome is None else outcome.text
