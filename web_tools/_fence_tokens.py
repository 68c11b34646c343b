"""S4: literals that a chat template or a tool parser reads as structure, broken by a backslash.

Each literal keeps its words; a visible backslash goes in behind its first character. A literal
that begins inside another one gets a backslash of its own.

Source: the templates and tokenizer files named beside each row.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from web_tools import _visible_tables
from web_tools._visible_edits import Span, Step, rewrite

__all__ = ("break_tokens", "find_tokens", "find_turn_words")

_BAR: Final = "[|\uff5c]"  # DeepSeek writes FULLWIDTH VERTICAL LINE
_WORD_SET: Final = "\\w\u2581./:-"  # and LOWER ONE EIGHTH BLOCK for a blank
_WORD: Final = f"[{_WORD_SET}]"

# Rows are (words, what must follow as a pattern, source); a word stands behind the first character.
_BEHIND_LESS_THAN: Final[tuple[tuple[str, str, str], ...]] = (
    ("<SYS </SYS", ">>", "Llama 2"),
    ("s", r">\[INST\]", "Llama 2, only when adjacent: a lone s element is HTML"),
    ("/s", "><s>", "Llama 2, only when adjacent"),
    ("bos eos pad unk", ">", "Gemma, Llama boundary tokens"),
    ("unused", "[0-9]{1,4}>", "Gemma tokenizer"),
    ("extra_id_ SPECIAL_ reserved_", "[0-9]{1,5}>", "T5, Nemotron, Baichuan"),
    ("fim_prefix fim_middle fim_suffix fim_pad sop eop", ">", "StarCoder, GLM"),
    ("function parameter", "=", "Llama 3.1 and Qwen coder tool markup"),
    (
        (
            "start_function_call end_function_call start_function_response end_function_response "
            "start_function_declaration end_function_declaration"
        ),
        ">",
        "FunctionGemma",
    ),
    (
        (
            "start_of_turn end_of_turn start_of_image end_of_image start_of_audio end_of_audio "
            "/start_of_turn /end_of_turn"
        ),
        ">",
        "Gemma 2 and 3",
    ),
)
_TOOL_ELEMENTS: Final = "tool_call tool_calls tool_response function_call function_calls function_response invoke"  # Hermes, Qwen, MiniMax and XML tool markup, under any namespace
_OTHER_ELEMENTS: Final = "TOOLCALL toolcall functioncall longcat_tool_call"  # Nemotron, LongCat
_BEHIND_BRACKET: Final[tuple[tuple[str, str, str], ...]] = (
    (
        (
            "INST /INST AVAILABLE_TOOLS /AVAILABLE_TOOLS TOOL_CALLS /TOOL_CALLS TOOL_RESULTS "
            "/TOOL_RESULTS TOOL_CONTENT /TOOL_CONTENT SYSTEM_PROMPT /SYSTEM_PROMPT MODEL_SETTINGS "
            "/MODEL_SETTINGS THINK /THINK CALL_ID PREFIX MIDDLE SUFFIX IMG_BREAK IMG_END AUDIO "
            "BEGIN_AUDIO TRANSCRIBE"
        ),
        r"\]",
        "Mistral; IMG is also a tag of bulletin boards",
    ),
    # Behind a blank and before another `ARGS` is the usage line of a command.
    ("ARGS", r"\](?:(?=\s?\{)|(?<=\S\[ARGS\]))", "Mistral"),
    ("gMASK sMASK BOS EOS EOT start_header_id end_header_id", r"\]", "GLM, Kimi"),
    ("e~", r"\[", "MiniMax"),
)


def _trie(entries: Iterable[tuple[str, str]]) -> str:
    """Pattern of words with what follows each: every branch begins with a letter of its own."""
    by_first: dict[str, list[tuple[str, str]]] = {}
    ends: list[str] = []
    for word, suffix in entries:
        if word:
            by_first.setdefault(word[0], []).append((word[1:], suffix))
        else:
            ends.append(suffix)
    branches = [re.escape(first) + _trie(rest) for first, rest in by_first.items()] + ends
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _entries(rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [(word, suffix) for words, suffix, _ in rows for word in words.split()]


_ELEMENT_END: Final = r"(?![\w.-])"


# Each pattern begins with one literal, which is searched at the speed of memchr, and consumes
# nothing else, so copies that overlap are all found. Compiled when a text has the literal.
@functools.cache
def _less_than() -> re.Pattern[str]:
    elements = [
        (slash + word, _ELEMENT_END)
        for word in f"{_TOOL_ELEMENTS} {_OTHER_ELEMENTS}".split()
        for slash in ("", "/")
    ]
    return re.compile(f"<(?={_trie(_entries(_BEHIND_LESS_THAN) + elements)})")


@functools.cache
def _namespaced() -> re.Pattern[str]:
    """A tool element under a namespace, from the colon: there are fewer of them than brackets."""
    return re.compile(f":(?={_trie((word, _ELEMENT_END) for word in _TOOL_ELEMENTS.split())})")


@functools.cache
def _bracket() -> re.Pattern[str]:
    return re.compile(rf"\[(?={_trie(_entries(_BEHIND_BRACKET))})")


@functools.cache
def _closing_bracket() -> re.Pattern[str]:
    return re.compile(r"\](?=~!?b[\[\]])")  # MiniMax


@functools.cache
def _opening_bar() -> re.Pattern[str]:
    """Gemma 4 openers, DeepSeek 3.2 tool markup, and most of what `_barred` finds.

    That is those that have neither bar nor bracket inside, which is nearly all of them.
    """
    inside = f"[^\\s<|\uff5c]{{1,64}}+{_BAR}>|{_WORD}{{1,64}}+>|DSML{_BAR}"
    return re.compile(f"<(?={_BAR}(?:{inside}))")


@functools.cache
def _closing_bar() -> re.Pattern[str]:
    """Gemma 4 closers, DeepSeek 3.2 tool markup."""
    return re.compile(f"<(?=/{_BAR}DSML{_BAR}|{_WORD}{{1,64}}+{_BAR}>)")


# `<|…|>` with 1 to 64 characters: ChatML, Llama 3 and 4, Phi, GLM, Harmony, Command-R, Granite,
# Kimi, DeepSeek. Either bar at either end.
_OPENINGS: Final = ("<|", "<\uff5c")
_CLOSINGS: Final = ("|>", "\uff5c>")
_SLASHED: Final = ("</|", "</\uff5c")
_BARS: Final = ("|", "\uff5c")
_BAR_OPENS: Final = re.compile(f"<{_BAR}")
_BAR_CLOSES: Final = re.compile(f"{_BAR}>")
_BLANK: Final = re.compile(r"\s")
_BARRED_LIMIT: Final = 64
_DIRECTION: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202c\u2066-\u2069]")
_HIDDEN: Final = re.compile(f"{_visible_tables.INVISIBLE}+")


@functools.cache
def _turn_words() -> re.Pattern[str]:
    words = "Human|Assistant|User|System|Developer|Tool|Instruction|Response"
    return re.compile(rf"^[ \t]{{0,8}}(?:#{{1,3}} ?|\*\*)?(?:{words})(?:\*\*)?:", re.MULTILINE)


def _has(text: str, ends: tuple[str, str]) -> bool:
    # One character is found many times faster than two, and most texts have neither bar.
    return any(bar in text and end in text for bar, end in zip(_BARS, ends, strict=True))


def _barred(text: str) -> list[int]:
    """Starts of `<|…|>`: the nearest closing bar that leaves a character must be in reach."""
    closings = [found.start() for found in _BAR_CLOSES.finditer(text)]
    starts: list[int] = []
    index = 0
    for opening in [found.start() for found in _BAR_OPENS.finditer(text)]:
        while index < len(closings) and closings[index] < opening + 3:
            index += 1
        if index == len(closings):
            break
        inside = opening + 2
        near = closings[index] - inside <= _BARRED_LIMIT
        if near and not _BLANK.search(text, inside, closings[index]):
            starts.append(opening)
    return starts


def _bar_starts(text: str) -> list[int]:
    starts: list[int] = []
    closing = _has(text, _CLOSINGS)
    if closing or _has(text, _SLASHED):
        starts += [found.start() for found in _closing_bar().finditer(text)]
    if _has(text, _OPENINGS):
        simple = [found.start() for found in _opening_bar().finditer(text)]
        starts += simple
        if closing and len(simple) < sum(map(text.count, _OPENINGS)):
            starts += _barred(text)
    return starts


_NAMESPACE: Final = re.compile(r"</?[A-Za-z]{1,16}\Z")
_NAMESPACE_CHARS: Final = 18


def _namespaced_starts(text: str) -> Iterator[int]:
    for found in _namespaced().finditer(text):
        colon = found.start()
        begin = max(colon - _NAMESPACE_CHARS, 0)
        opened = _NAMESPACE.search(text[begin:colon])
        if opened:
            yield begin + opened.start()


def _starts(text: str) -> list[int]:
    """Offsets of the first characters of literals, in order."""
    starts: list[int] = []
    if "<" in text:
        starts += [found.start() for found in _less_than().finditer(text)]
        if ":" in text:
            starts += _namespaced_starts(text)
        starts += _bar_starts(text)
    if "[" in text:
        starts += [found.start() for found in _bracket().finditer(text)]
    if "~" in text and "]~" in text:
        starts += [found.start() for found in _closing_bracket().finditer(text)]
    return sorted(set(starts))


def _starts_without_hidden(text: str, folded: str) -> list[int]:
    """Starts of literals that show once the invisible characters kept by S2 are left out."""
    pieces: list[str] = []
    places: list[int] = []  # of each piece in the shortened text
    origins: list[int] = []  # and in the text
    done = length = 0
    for found in _HIDDEN.finditer(folded):
        pieces.append(text[done : found.start()])
        places.append(length)
        origins.append(done)
        length += found.start() - done
        done = found.end()
    pieces.append(text[done:])
    places.append(length)
    origins.append(done)
    starts = _starts("".join(pieces))
    indexes = (bisect_right(places, start) - 1 for start in starts)
    return [
        origins[index] + start - places[index] for index, start in zip(indexes, starts, strict=True)
    ]


def _may_hide(text: str) -> bool:
    """Whether a code point kept by S2 may stand inside a literal.

    Next to an ASCII character S2 keeps direction controls only; all others have a neighbour that
    no literal but the free part of `<|…|>` contains.
    """
    if text.isascii() or not any(opener in text for opener in "<[~"):
        return False
    barred = _has(text, _OPENINGS) and _has(text, _CLOSINGS)
    return barred or _DIRECTION.search(text) is not None


def find_tokens(text: str) -> list[Span]:
    """Each literal, as the place behind its first character and the backslash for it."""
    starts = _starts(text)
    if _may_hide(text):
        folded = text.translate(_visible_tables.fold_table())
        starts = sorted({*starts, *_starts_without_hidden(text, folded)})
    return [(start + 1, start + 1, "\\") for start in starts]


def break_tokens(text: str) -> tuple[Step, ...]:
    """S4: the step that breaks each literal, if there is any."""
    spans = find_tokens(text)
    if not spans:
        return ()
    return (Step(name="tokens", before=text, after=rewrite(text, spans), find=find_tokens),)


def find_turn_words(text: str) -> int:
    """How many lines begin like a turn of a dialogue. Reported, never rewritten."""
    return sum(1 for _ in _turn_words().finditer(text))
