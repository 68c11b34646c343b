"""S4: literals that a chat template or a tool parser reads as structure, broken by a backslash.

Each literal keeps its words; a visible backslash goes in behind its first character. A literal
that begins inside another one gets a backslash of its own.

Source: the templates and tokenizer files named beside each row.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from web_tools import _visible_tables
from web_tools._visible_edits import Span, Step, rewrite

__all__ = ("break_tokens", "find_tokens", "find_turn_words")

_BAR: Final = "[|\uff5c]"  # DeepSeek writes FULLWIDTH VERTICAL LINE
_WORD_SET: Final = "\\w\u2581./:-"  # and LOWER ONE EIGHTH BLOCK for a blank
_WORD: Final = f"[{_WORD_SET}]"

# Rows are (what stands behind the first character, source), by that first character.
# Every row begins with a letter or a class, so that the matcher can pass a row by at a glance.
_BEHIND_LESS_THAN: Final[tuple[tuple[str, str], ...]] = (
    (
        rf"{_BAR}(?:[^\s<|\uff5c]{{1,64}}+{_BAR}>|{_WORD}{{1,64}}+>|DSML{_BAR})",
        "most of what _barred finds, Gemma 4 openers, DeepSeek 3.2 tool markup",
    ),
    (r"</?SYS>>", "Llama 2"),
    (rf"/(?:s><s>|{_BAR}DSML{_BAR})", "Llama 2, only when adjacent; DeepSeek 3.2"),
    (rf"{_WORD}{{1,64}}+{_BAR}>", "Gemma 4 closers"),
    (r"s>\[INST\]", "Llama 2, only when adjacent: a lone s element is HTML"),
    (r"(?:bos|eos|pad|unk)>", "Gemma, Llama boundary tokens"),
    (r"unused[0-9]{1,4}>", "Gemma tokenizer"),
    (r"(?:extra_id_|SPECIAL_|reserved_)[0-9]{1,5}>", "T5, Nemotron, Baichuan"),
    (r"(?:start|end)_function_(?:call|response|declaration)>", "FunctionGemma"),
    (r"(?:fim_(?:prefix|middle|suffix|pad)|sop|eop)>", "StarCoder, GLM"),
    (r"(?:function|parameter)=", "Llama 3.1 and Qwen coder tool markup"),
)
# Behind `<` or `</`.
_ELEMENTS: Final[tuple[tuple[str, str], ...]] = (
    (r"(?:start|end)_of_(?:turn|image|audio|video)>", "Gemma 2 and 3"),
    (r"(?:TOOLCALL|toolcall|functioncall)(?![\w.-])", "Nemotron, Functionary"),
    (
        r"(?:longcat_|[A-Za-z]{1,16}:)?(?:tool_calls?|tool_response|function_calls?|function_response|invoke)(?![\w.-])",
        "Hermes, Qwen, LongCat, MiniMax and XML tool markup",
    ),
)
_BEHIND_BRACKET: Final[tuple[tuple[str, str], ...]] = (
    (
        r"/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|MODEL_SETTINGS|THINK)\]",
        "Mistral",
    ),
    (
        r"(?:CALL_ID|PREFIX|MIDDLE|SUFFIX|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|TRANSCRIBE)\]",
        "Mistral",
    ),
    (r"ARGS\](?=\s?\{)", "Mistral"),
    (r"(?<=\S\[)ARGS\]", "Mistral; after a blank it is the usage line of a command"),
    (r"(?:gMASK|sMASK|BOS|EOS|EOT|start_header_id|end_header_id)\]", "GLM, Kimi"),
    (r"e~\[", "MiniMax"),
)
_BEHIND_CLOSING_BRACKET: Final[tuple[tuple[str, str], ...]] = ((r"~!?b[\[\]]", "MiniMax"),)


def _either(rows: Iterable[tuple[str, str]]) -> str:
    return "|".join(pattern for pattern, _ in rows)


# Only the first character is consumed, so copies that overlap are all found.
_TOKENS: Final = re.compile(
    rf"<(?={_either(_BEHIND_LESS_THAN)}|(?=[/A-Za-z])/?(?:{_either(_ELEMENTS)}))"
    rf"|\[(?=[/A-Za-z])(?={_either(_BEHIND_BRACKET)})"
    rf"|\](?=~)(?={_either(_BEHIND_CLOSING_BRACKET)})"
)
# `<|…|>` with 1 to 64 characters: ChatML, Llama 3 and 4, Phi, GLM, Harmony, Command-R, Granite,
# Kimi, DeepSeek. Either bar at either end.
_BAR_OPENS: Final = re.compile(f"<{_BAR}")
_BAR_CLOSES: Final = re.compile(f"{_BAR}>")
_BLANK: Final = re.compile(r"\s")
_BARRED_LIMIT: Final = 64
_DIRECTION: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202c\u2066-\u2069]")
_HIDDEN: Final = re.compile(f"{_visible_tables.INVISIBLE}+")
_TURN_WORDS: Final = re.compile(
    r"^[ \t]{0,8}(?:#{1,3} ?|\*\*)?(Human|Assistant|User|System|Developer|Tool|Instruction|Response)"
    r"(?:\*\*)?:",
    re.MULTILINE,
)


def _has_bars(text: str) -> bool:
    return ("<|" in text or "<\uff5c" in text) and ("|>" in text or "\uff5c>" in text)


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


def _starts(text: str) -> list[int]:
    starts = [found.start() for found in _TOKENS.finditer(text)]
    return sorted({*starts, *_barred(text)}) if _has_bars(text) else starts


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
    return not text.isascii() and (_has_bars(text) or _DIRECTION.search(text) is not None)


def find_tokens(text: str) -> list[Span]:
    """Each literal, as the place behind its first character and the backslash for it."""
    if "<" not in text and "[" not in text and "]" not in text:
        return []
    starts = _starts(text)
    if _may_hide(text):
        folded = text.translate(_visible_tables.fold_table())
        starts = sorted({*starts, *_starts_without_hidden(text, folded)})
    return [(start + 1, start + 1, "\\") for start in starts]


def break_tokens(text: str) -> Step:
    """S4: the text with each literal broken."""
    return Step(
        name="tokens", before=text, after=rewrite(text, find_tokens(text)), find=find_tokens
    )


def find_turn_words(text: str) -> int:
    """How many lines begin like a turn of a dialogue. Reported, never rewritten."""
    return sum(1 for _ in _TURN_WORDS.finditer(text))
