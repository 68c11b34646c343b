"""What was noticed in texts from outside, and what a policy makes of it: a question, never a permission. Pure.

Signals are no gate: most pages have something hidden, and a hostile one may have nothing. A policy
names those that it asks a person on (`TaskContract(ask_on_signals=…)`); by default there are none.
A call that would be allowed and that may send something out is asked about, once such a signal was
seen in the run. What is asked or denied without signals stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final

import attrs

from runtime_pack.errors import ContractError, not_one_of
from runtime_pack.flow import BrokenRule, FlowVerdict, RuleCode
from runtime_pack.label_table import LabelVerdict, SideEffect, standing_of, strictest
from runtime_pack.labels import Label
from runtime_pack.messages import Json

__all__ = (
    "NO_SIGNALS",
    "OUTWARD",
    "RunSignal",
    "asked_by_signals",
    "is_outward",
    "parse_signals",
    "read_signals",
    "signals_of",
)


class RunSignal(StrEnum):
    """What was noticed. The stored words are public; the first six are those of a fence."""

    NONCE_REPLAY = "nonce_replay"
    FORGED_FENCE = "forged_fence"
    # A word for what was noticed, not a password.
    CONTROL_TOKEN = "control_token"  # noqa: S105
    INVISIBLE_TEXT = "invisible_text"
    TERMINAL_CONTROL = "terminal_control"
    FLAGGED_SOURCE = "flagged_source"
    HIDDEN_HTML = "hidden_html"
    CANARY = "canary"
    SCANNER = "scanner"
    SCANNER_FAILED = "scanner_failed"


NO_SIGNALS: Final[frozenset[RunSignal]] = frozenset()
_WORDS: Final = frozenset(map(str, RunSignal))

OUTWARD: Final = frozenset(
    {
        SideEffect.READ_NET,
        SideEffect.EXEC,
        SideEffect.MESSAGE,
        SideEffect.EGRESS,
        SideEffect.SPEND,
        SideEffect.ADMIN,
    }
)
"""Side effects by which something may leave, or that change what may; files and memory stay here."""


def is_outward(side_effects: Iterable[SideEffect] | None) -> bool:
    """Whether a call may send something out; a tool that declares nothing may."""
    return side_effects is None or not OUTWARD.isdisjoint(side_effects)


def parse_signals(words: object) -> frozenset[RunSignal]:
    """The signals of a list of words; empty is none.

    Whoever asks on what a scanner finds also asks where it could not look: `scanner` brings
    `scanner_failed` with it.

    Raises:
        ContractError: it is no list, or holds something that is no word of `RunSignal`.
    """
    if isinstance(words, str | bytes | Mapping) or not isinstance(words, Iterable):
        raise ContractError("ask_on_signals", "is a list of words")
    given = tuple(words)
    for word in given:
        if not isinstance(word, str) or word not in _WORDS:
            raise ContractError("ask_on_signals", not_one_of(word, RunSignal))
    signals = frozenset(map(RunSignal, given))
    return signals | {RunSignal.SCANNER_FAILED} if RunSignal.SCANNER in signals else signals


def read_signals(words: object) -> frozenset[RunSignal]:
    """The signals of a saved run.

    Raises:
        ValueError: it is no list, or a word is unknown: a run that forgot one would ask less.
    """
    if not isinstance(words, list):
        raise ValueError("signals is a list of words")
    return frozenset(RunSignal(word) for word in words)


def signals_of(fences: Iterable[Mapping[str, Json]]) -> frozenset[RunSignal]:
    """The signals in what the runtime keeps of fenced blocks.

    A block is `FencedBlock.to_record`; `hidden_chars` beside it counts characters of the page that
    nobody would have seen. A word that is none of ours says nothing.
    """
    return frozenset(signal for fence in fences for signal in _in_block(fence))


def _in_block(fence: Mapping[str, Json]) -> Iterator[RunSignal]:
    words = fence.get("signals")
    if isinstance(words, list | tuple):
        yield from (RunSignal(w) for w in words if isinstance(w, str) and w in _WORDS)
    hidden = fence.get("hidden_chars")
    if type(hidden) is int and hidden > 0:
        yield RunSignal.HIDDEN_HTML


def asked_by_signals(
    flow: FlowVerdict | None,
    side_effects: Sequence[SideEffect] | None,
    alarms: AbstractSet[RunSignal],
    label: Label,
) -> FlowVerdict | None:
    """The verdict when the signals that the policy asks on are counted too: only ever stricter.

    Args:
        flow: what label, addresses and private data say; None when they say nothing.
        side_effects: what the tool declares.
        alarms: of the signals that were seen, those that the policy names.
        label: of the context.
    """
    if not alarms or not is_outward(side_effects):
        return flow
    rule = BrokenRule(
        code=RuleCode.SIGNAL,
        verdict=LabelVerdict.ASK,
        standing=standing_of(label),
        signals=tuple(str(signal) for signal in RunSignal if signal in alarms),
    )
    before = FlowVerdict() if flow is None else flow
    return attrs.evolve(
        before, verdict=strictest(before.verdict, LabelVerdict.ASK), rules=(*before.rules, rule)
    )
