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
_WORD: Final = "[\\w\u2581./:-]"  # and LOWER ONE EIGHTH BLOCK for a blank

# What stands behind the first character; (first character, rest as a pattern, source).
_LITERALS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "<",
        rf"{_BAR}\S{{1,64}}?{_BAR}>",
        "ChatML, Llama 3 and 4, Phi, GLM, Harmony, Command-R, Granite, Kimi, DeepSeek",
    ),
    ("<", rf"{_BAR}{_WORD}{{1,64}}>", "Gemma 4 openers"),
    ("<", rf"{_WORD}{{1,64}}{_BAR}>", "Gemma 4 closers"),
    ("<", rf"/?{_BAR}DSML{_BAR}", "DeepSeek 3.2 tool markup"),
    ("<", r"</?SYS>>", "Llama 2"),
    ("<", r"s>\[INST\]", "Llama 2, only when adjacent: a lone s element is HTML"),
    ("<", r"/s><s>", "Llama 2, only when adjacent"),
    ("<", r"/?(?:start|end)_of_(?:turn|image|audio|video)>", "Gemma 2 and 3"),
    ("<", r"(?:start|end)_function_(?:call|response|declaration)>", "FunctionGemma"),
    ("<", r"(?:bos|eos|pad|unk)>", "Gemma, Llama boundary tokens"),
    ("<", r"unused[0-9]{1,4}>", "Gemma tokenizer"),
    ("<", r"(?:extra_id_|SPECIAL_|reserved_)[0-9]{1,5}>", "T5, Nemotron, Baichuan"),
    ("<", r"(?:fim_(?:prefix|middle|suffix|pad)|sop|eop)>", "StarCoder, GLM"),
    (
        "<",
        r"/?(?:longcat_|[A-Za-z]{1,16}:)?(?:tool_calls?|tool_response|function_calls?|function_response|invoke)(?![\w.-])",
        "Hermes, Qwen, LongCat, MiniMax and XML tool markup",
    ),
    ("<", r"/?(?:TOOLCALL|toolcall|functioncall)(?![\w.-])", "Nemotron, Functionary"),
    ("<", r"(?:function|parameter)=", "Llama 3.1 and Qwen coder tool markup"),
    (
        r"\[",
        r"/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|MODEL_SETTINGS|THINK)\]",
        "Mistral",
    ),
    (
        r"\[",
        r"(?:CALL_ID|PREFIX|MIDDLE|SUFFIX|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|TRANSCRIBE)\]",
        "Mistral",
    ),
    (
        r"\[",
        r"(?:ARGS\](?=\s?\{)|(?<=\S\[)ARGS\])",
        "Mistral; after a blank it is the usage line of a command",
    ),
    (r"\[", r"(?:gMASK|sMASK|BOS|EOS|EOT|start_header_id|end_header_id)\]", "GLM, Kimi"),
    (r"\[", r"e~\[", "MiniMax"),
    (r"\]", r"~!?b[\[\]]", "MiniMax"),
)


def _pattern(literals: Iterable[tuple[str, str, str]]) -> re.Pattern[str]:
    by_first: dict[str, list[str]] = {}
    for first, rest, _ in literals:
        by_first.setdefault(first, []).append(rest)
    branches = (f"(?<={first})(?:{'|'.join(rests)})" for first, rests in by_first.items())
    # The class in front lets the matcher skip; the look-ahead leaves room for overlapping copies.
    return re.compile(f"[<\\[\\]](?={'|'.join(branches)})")


_TOKENS: Final = _pattern(_LITERALS)
_BARS_CLOSE: Final = re.compile(f"{_BAR}>")
_WITHOUT_BARS: Final = _pattern(_LITERALS[3:])
_HIDDEN: Final = re.compile(f"{_visible_tables.INVISIBLE}+")
_TURN_WORDS: Final = re.compile(
    r"^[ \t]{0,8}(?:#{1,3} ?|\*\*)?(Human|Assistant|User|System|Developer|Tool|Instruction|Response)"
    r"(?:\*\*)?:",
    re.MULTILINE,
)


def _starts(text: str) -> list[int]:
    return [found.start() for found in _TOKENS.finditer(text)]


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


def find_tokens(text: str) -> list[Span]:
    """Each literal, as the place behind its first character and the backslash for it."""
    if "<" not in text and "[" not in text and "]" not in text:
        return []
    starts = _starts(text)
    folded = text if text.isascii() else text.translate(_visible_tables.fold_table())
    if _visible_tables.INVISIBLE in folded:
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
