"""A deterministic model that answers with sentences it has read. No language model is involved.

It searches for the telling words of the question, reads the pages whose titles and ranks promise
most, and quotes the sentences that share the most with the question, each with the number of its
source; the numbered addresses end the answer. It says in the answer what it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
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
from runtime_pack.models._reading import Block, asked, blocks, last_batch, unescape_markdown
from runtime_pack.ports import ExecutionContext, TurnRequest

__all__ = ("ExtractiveModel",)

_WORD: Final = re.compile(r"[^\W_]+")
# A sentence ends at its mark before white space, or at a line that is left empty.
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)\s+|\n\s*\n|\n(?=[-*] )")
_CODE: Final = re.compile(r"^```.*?(?:^```[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_MARKUP: Final = re.compile(r"#{1,6}\s|\||>|[-*]\s")
_SENTENCE: Final = re.compile(r"[^\sa-z].*[.:!?][\"”')*]*", re.DOTALL)
_TABLE: Final = re.compile(r"\|\s*\|")
_CODE_WORD: Final = re.compile(r'"code":\s*"(?P<code>[A-Za-z_]{1,40})"')
_LEAST_CHARACTERS: Final = 25
_MOST_CHARACTERS: Final = 400
# A sentence that shares less of the question than this answers another one.
_LEAST_SHARE: Final = 0.25
# Beside a good answer a poor one is noise.
_LEAST_OF_BEST: Final = 0.4
_COMMON: Final = (
    "a about an and another are as at be between by can do does for from get give happen happens "
    "has have how i in is it its make me mean means my of on or other should tell than that the "
    "their there this to under use used using was what when where which who why will with work "
    "works you your"
)
_STOP_WORDS: Final = frozenset(_COMMON.split())
# Before one of these a stop word is a name: "the with statement", "a for loop".
_NAMED: Final = frozenset(
    ["block", "clause", "expression", "keyword", "loop", "operator", "statement"]
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

    model_name = "extractive"
    """Its row in a price table, where there is one."""

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
            return self._read(batch[0], _terms(question))
        return _reply(self._answer(question, request.messages))

    def _read(self, found: ToolMessage, terms: frozenset[str]) -> Turn:
        if not found.ok:
            return _reply(f"The search failed{_because((found,))}, so there is no answer.")
        results = [block for block in blocks(found.text) if block.source]
        results.sort(key=lambda block: -_in_title(block, terms))
        wanted = list(dict.fromkeys(block.source for block in results))[: self._pages]
        if not wanted:
            return _reply("No page was found that could answer this.")
        return _ask(*(_read_call(number, url) for number, url in enumerate(wanted, start=1)))

    def _answer(self, question: str, messages: Sequence[Message]) -> str:
        reads = [m for m in messages if isinstance(m, ToolMessage) and m.name == "web:read"]
        pages = [block for message in reads if message.ok for block in blocks(message.text)]
        if not pages:
            return f"No page could be read{_because(reads)}, so there is no answer."
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


def _because(results: Sequence[ToolMessage]) -> str:
    """The codes of results that failed, in brackets."""
    found = [_CODE_WORD.search(result.text) for result in results if not result.ok]
    codes = dict.fromkeys(match["code"] for match in found if match is not None)
    return f" ({', '.join(codes)})" if codes else ""


def _in_title(block: Block, terms: frozenset[str]) -> int:
    """How many of the question's words a result has in its title, which is its first line."""
    return len(terms & _stems(block.body.partition("\n")[0]))


# ── words ─────────────────────────────────────────────────────────────────────────────────────


def _stem(word: str) -> str:
    """A word without the commonest English endings, so that `yields` meets `yield`."""
    for ending in ("itions", "ition", "ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and not word.endswith("ss") and len(word) - len(ending) > 2:
            return word[: -len(ending)]
    return word


def _stems(text: str) -> frozenset[str]:
    return frozenset(_stem(word.lower()) for word in _WORD.findall(text))


def _telling_words(text: str) -> list[str]:
    """The words in order, without those that every sentence has."""
    words = _WORD.findall(text)
    return [
        word
        for word, after in zip_longest(words, words[1:], fillvalue="")
        if word.lower() not in _STOP_WORDS or after.lower() in _NAMED
    ]


def _terms(text: str) -> frozenset[str]:
    return frozenset(_stem(word.lower()) for word in _telling_words(text))


# ── sentences ─────────────────────────────────────────────────────────────────────────────────


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
    good = [each for each in best if each.score >= best[0].score * _LEAST_OF_BEST]
    kept = list({candidate.text: candidate for candidate in reversed(good)}.values())[::-1][:most]
    return tuple(sorted(kept, key=lambda c: (c.page, c.position)))


def _sentences(body: str) -> Iterator[str]:
    """Whole sentences of prose, on one line each; no code, no table, no heading."""
    for piece in _SENTENCE_END.split(_CODE.sub("\n\n", body)):
        folded = " ".join(piece.split())
        if _MARKUP.match(folded) or _TABLE.search(folded):
            continue
        text = unescape_markdown(folded)
        if _LEAST_CHARACTERS <= len(text) <= _MOST_CHARACTERS and _SENTENCE.fullmatch(text):
            yield text


def _weights(terms: frozenset[str], sentences: Sequence[str]) -> dict[str, float]:
    """How telling each term is: rare in the pages read is telling."""
    holders = dict.fromkeys(terms, 0)
    for sentence in sentences:
        for term in terms & _stems(sentence):
            holders[term] += 1
    total = len(sentences) + 1
    return {term: math.log(1 + total / (1 + count)) for term, count in holders.items()}


def _score(
    terms: frozenset[str], weights: dict[str, float], text: str, page: int, position: int
) -> float:
    shared = terms & _stems(text)
    weight = sum(sorted(weights[term] for term in shared))
    if weight <= _LEAST_SHARE * sum(sorted(weights[term] for term in terms)):
        return 0.0
    # What a text is about it says first: the first sentences, and the first words of a sentence.
    early = 1 + 0.5 / (1 + position) + 0.5 / (1 + page)
    subject = 1.5 if terms & _stems(" ".join(text.split()[:3])) else 1.0
    # What ends with a colon leads to a list or an example that is not quoted.
    whole = 0.6 if text.endswith(":") else 1.0
    return weight * early * subject * whole / math.sqrt(1 + len(text) / _MOST_CHARACTERS)
