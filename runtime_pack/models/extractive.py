"""A deterministic model that answers with sentences it has read. No language model is involved.

It searches for the words of the question, reads the best pages, and quotes the sentences that
share the most with the question, each with the number of its source; the numbered addresses end
the answer. It says in the answer what it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from runtime_pack.messages import (
    FinishReason,
    Json,
    Message,
    ToolCall,
    ToolMessage,
    Turn,
    TurnStatus,
)
from runtime_pack.models._reading import Block, asked, blocks, last_batch
from runtime_pack.ports import ExecutionContext, TurnRequest

__all__ = ("ExtractiveModel",)

_WORD: Final = re.compile(r"[^\W_]+")
# A sentence ends at its mark before white space, or at a line that is left empty.
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
_MARKUP: Final = re.compile(r"^(?:#{1,6}\s|```|\||[-*]\s)")
# Pages come as Markdown, in which a literal star or underscore has a backslash.
_ESCAPED: Final = re.compile(r"\\([!-/:-@\[-`{-~])")
_LEAST_CHARACTERS: Final = 25
_MOST_CHARACTERS: Final = 400
_STOP_WORDS: Final = frozenset(
    [
        "a",
        "about",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "does",
        "for",
        "from",
        "has",
        "have",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "tell",
        "that",
        "the",
        "their",
        "there",
        "this",
        "to",
        "was",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)


@attrs.frozen(kw_only=True)
class _Candidate:
    """A sentence and how much of the question it holds; sorted best first."""

    score: float
    page: int
    position: int
    text: str
    source: str


class ExtractiveModel:
    """Searches, reads up to `pages` pages, answers with up to `sentences` quoted sentences."""

    def __init__(self, *, pages: int = 3, sentences: int = 4) -> None:
        self._pages = pages
        self._sentences = sentences

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """The next turn, decided by the results that the last one brought."""
        del context
        batch = last_batch(request.messages)
        question = asked(request.messages)
        offered = {tool.name for tool in request.tools}
        if not batch and "web:search" in offered:
            query = " ".join(_telling_words(question)) or question
            return _ask(ToolCall(id="search", name="web:search", arguments={"query": query}))
        if batch and batch[0].name == "web:search" and "web:read" in offered:
            return self._read(batch[0])
        return _reply(self._answer(question, request.messages))

    def _read(self, found: ToolMessage) -> Turn:
        if not found.ok:
            return _reply("The search failed, so there is no answer.")
        sources = dict.fromkeys(block.source for block in blocks(found.text) if block.source)
        wanted = list(sources)[: self._pages]
        if not wanted:
            return _reply("No page was found that could answer this.")
        return _ask(*(_read_call(number, url) for number, url in enumerate(wanted, start=1)))

    def _answer(self, question: str, messages: Sequence[Message]) -> str:
        pages = [
            block
            for message in messages
            if isinstance(message, ToolMessage) and message.name == "web:read" and message.ok
            for block in blocks(message.text)
        ]
        chosen = _choose(_terms(question), pages, self._sentences)
        if not chosen:
            return "The pages that could be read do not answer this."
        sources = list(dict.fromkeys(candidate.source for candidate in chosen))
        quotes = [f"“{item.text}” [{sources.index(item.source) + 1}]" for item in chosen]
        listed = [f"[{number}] {url}" for number, url in enumerate(sources, start=1)]
        head = "Sentences from the pages read, quoted; no language model wrote them:"
        return "\n\n".join((head, *quotes, "\n".join(listed)))


def _read_call(number: int, url: str) -> ToolCall:
    arguments: dict[str, Json] = {"url": url}
    return ToolCall(id=f"read-{number}", name="web:read", arguments=arguments)


def _ask(*calls: ToolCall) -> Turn:
    return Turn(status=TurnStatus.TOOL_REQUEST, calls=calls, finish=FinishReason.TOOL_CALLS)


def _reply(text: str) -> Turn:
    return Turn(status=TurnStatus.REPLY, text=text)


def _stem(word: str) -> str:
    """A word without the commonest English endings, so that `yields` meets `yield`."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= len("the"):
            return word[: -len(ending)]
    return word


def _telling_words(text: str) -> list[str]:
    """The words in order, without those that every sentence has."""
    return [word for word in _WORD.findall(text) if word.lower() not in _STOP_WORDS]


def _terms(text: str) -> frozenset[str]:
    return frozenset(_stem(word.lower()) for word in _telling_words(text))


def _choose(terms: frozenset[str], pages: Sequence[Block], most: int) -> tuple[_Candidate, ...]:
    sentences = [
        (number, position, text, page.source)
        for number, page in enumerate(pages)
        for position, text in enumerate(_sentences(page.body))
    ]
    weights = _weights(terms, [text for _, _, text, _ in sentences])
    candidates = [
        _Candidate(score=score, page=number, position=position, text=text, source=source)
        for number, position, text, source in sentences
        if (score := _score(terms, weights, text, number, position)) > 0
    ]
    best = sorted(candidates, key=lambda c: (-c.score, c.page, c.position))
    kept = list({candidate.text: candidate for candidate in reversed(best)}.values())[::-1][:most]
    return tuple(sorted(kept, key=lambda c: (c.page, c.position)))


def _sentences(body: str) -> Iterable[str]:
    for piece in _SENTENCE_END.split(body):
        text = _ESCAPED.sub(r"\1", " ".join(piece.split()))
        if _MARKUP.match(text) or not _LEAST_CHARACTERS <= len(text) <= _MOST_CHARACTERS:
            continue
        yield text


def _weights(terms: frozenset[str], sentences: Sequence[str]) -> dict[str, float]:
    """How telling each term is: rare in the pages read is telling."""
    holders = dict.fromkeys(terms, 0)
    for sentence in sentences:
        for term in terms & _terms(sentence):
            holders[term] += 1
    total = len(sentences) + 1
    return {term: math.log(1 + total / (1 + count)) for term, count in holders.items()}


def _score(
    terms: frozenset[str], weights: dict[str, float], text: str, page: int, position: int
) -> float:
    shared = terms & _terms(text)
    if not shared:
        return 0.0
    weight = sum(sorted(weights[term] for term in shared))
    early = 1 + 0.5 / (1 + position) + 0.5 / (1 + page)
    return weight * early / math.sqrt(1 + len(text) / _MOST_CHARACTERS)
