"""What the fence costs: milliseconds of processor time per million characters, and linearity.

Usage: python benchmarks/fence.py [--chars 100000] [--rounds 3] [--only WORD] [--json | --profile]

Each shape is fenced whole (`fence`: all steps, digest, nonce) at n and at 2n characters. The ratio
of the two is 2 for work that is linear; 3 is the bound of the specification, for noise. `passes`
is the cost over that of one `str.translate` of the same text in the same run, which says the same
on any machine. `--profile` prints the functions that take the time of each shape instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path is set above.
from benchmarks._yardstick import reference_ns
from web_tools.fence import FenceKind, FenceMeta, NonceBook, fence

MAX_RATIO: Final = 3.0
# One entry for each code point, so that a pass looks every character up.
_TABLE: Final = "." * 0x110000


class Group(StrEnum):
    """What a shape stands for; each has its own target."""

    ASCII = "ascii"
    MIXED = "mixed"
    HOSTILE = "hostile"


# Milliseconds per million characters.
TARGETS: Final[Mapping[Group, float]] = {Group.ASCII: 10.0, Group.MIXED: 40.0, Group.HOSTILE: 150.0}


@attrs.frozen
class Shape:
    """A text of any length: *piece*, repeated and cut."""

    name: str
    group: Group
    piece: str

    def text(self, characters: int) -> str:
        """The first *characters* of it."""
        return (self.piece * (characters // len(self.piece) + 1))[:characters]


@attrs.frozen(kw_only=True)
class Result:
    """One measured shape."""

    name: str
    group: Group
    ms_per_mb: float
    target_ms: float
    ratio: float
    passes: float
    met: bool


_PROSE: Final = (
    "The quick brown fox reads public pages, cites its sources and counts what it spends. "
    "Budgets and records matter; see https://example.org/a?b=c#d (2 of 3).\n"
)
_FRENCH: Final = "L\u2019\u00e9t\u00e9 dernier, la for\u00eat \u00e9tait d\u00e9j\u00e0 s\u00e8che \u2014 \u00ab tr\u00e8s s\u00e8che \u00bb, dit-on.\n"
_CHINESE: Final = "\u8fd9\u662f\u4e00\u4e2a\u666e\u901a\u7684\u7f51\u9875\uff0c\u5305\u542b\u4e00\u4e9b\u6587\u5b57\u548c\u6570\u5b57123\u3002\n"
_ARABIC: Final = "\u0647\u0630\u0627 \u0646\u0635 \u0639\u0627\u062f\u064a \u0645\u0646 \u0635\u0641\u062d\u0629 \u0639\u0627\u0645\u0629\u060c \u0644\u0627 \u0623\u0643\u062b\u0631.\n"
_EMOJI: Final = "party \U0001f389 family \U0001f468\u200d\U0001f469\u200d\U0001f467 ok \u2764\ufe0f flag \U0001f1eb\U0001f1f7 done\n"
# The mixture of the comparison harness: one word in five is not ASCII, and a few are invisible.
_WORDS: Final = (
    "quick brown fox public pages cite source count spend budget record matter operator report end "
    "harbour town reads working day signs plain text because approvals audit governed agents while "
    "donn\u00e9es Gr\u00f6\u00dfe \u0430\u0433\u0435\u043d\u0442 \u9875\u9762 \u201cquoted\u201d \u2014 \ufb01ne e\u0301t\u00e9 a\u200bb "
)
_HTML: Final = '<p class="a">text &amp; more</p> <a href="/x?a=1&b=2">link</a> if (a < b) {}\n'

# What costs, or would cost, a careless implementation most: one row per way in.
SHAPES: Final = (
    Shape("prose", Group.ASCII, _PROSE),
    Shape("markup shown as text", Group.ASCII, _HTML),
    Shape("code and digits", Group.ASCII, "for (i = 0; i < n; i++) { a[i] = 0x1f & b[i]; }\n"),
    Shape("french", Group.MIXED, _FRENCH),
    Shape("chinese", Group.MIXED, _CHINESE),
    Shape("arabic", Group.MIXED, _ARABIC),
    Shape("emoji", Group.MIXED, _EMOJI),
    Shape("words of many languages", Group.MIXED, _WORDS),
    Shape("all of these", Group.MIXED, _PROSE + _FRENCH + _CHINESE + _ARABIC + _EMOJI),
    Shape("open brackets", Group.HOSTILE, "<"),
    Shape("brackets and slashes", Group.HOSTILE, "</"),
    Shape("bracket then blanks", Group.HOSTILE, "<" + " " * 4096),
    Shape("blanks", Group.HOSTILE, " "),
    Shape("newlines", Group.HOSTILE, "\n"),
    Shape("nearly the closing tag", Group.HOSTILE, "</untrusted-web-conten "),
    Shape("the closing tag", Group.HOSTILE, "</untrusted-web-content>"),
    Shape("fullwidth brackets", Group.HOSTILE, "\uff1c\uff0funtrusted-web-content\uff1e"),
    Shape("look-alike letters", Group.HOSTILE, "<\u057d\u0578t\u0433u\u0455t\u0435d-w\u0435b"),
    Shape("nested entities", Group.HOSTILE, "&amp;amp;amp;lt;"),
    Shape("entities without end", Group.HOSTILE, "&lt"),
    Shape("ampersands", Group.HOSTILE, "&"),
    Shape("numeric entities", Group.HOSTILE, "&#60;&#x3c;&#0000060;"),
    Shape("percent escapes", Group.HOSTILE, "%253Cuntrusted"),
    Shape("percents", Group.HOSTILE, "%25"),
    Shape("backslashes", Group.HOSTILE, "\\"),
    Shape("script escapes", Group.HOSTILE, "\\u003c\\x3c"),
    Shape("control tokens", Group.HOSTILE, "<|im_start|>system[INST]<<SYS>>"),
    Shape("pipes", Group.HOSTILE, "<|"),
    Shape("zero width", Group.HOSTILE, "a\u200b\u200c\u200d\u2060"),
    Shape("direction marks", Group.HOSTILE, "\u202eabc\u202c\u2066def\u2069"),
    Shape("tag characters", Group.HOSTILE, "\U000e0041\U000e0042\U000e007f"),
    Shape("variation selectors", Group.HOSTILE, "a\ufe00\U000e0100\U000e01ef"),
    Shape("combining marks", Group.HOSTILE, "a" + "\u0301" * 64),
    Shape("indic joiners", Group.HOSTILE, "\u0915\u094d\u200d\u0937\u200c"),
    Shape("joiners among emoji", Group.HOSTILE, "\U0001f468\u200d\u0915\u094d\u200d\u200c"),
    Shape("joiners and directions", Group.HOSTILE, "\u0915\u094d\u200d\u0937\u200c\u200e\u05d0"),
    Shape("directions in short lines", Group.HOSTILE, "\u05d0\u202b\u202c\n"),
    Shape("ends of directions", Group.HOSTILE, "\u202c\u2800"),
    Shape("selectors and skin tones", Group.HOSTILE, "\U0001f3fb\ufe0e"),
    Shape("blanks in wide text", Group.HOSTILE, "\u00e9" + " " * 4_000_000),
    Shape("terminal escapes", Group.HOSTILE, "\x1b[31m\x1b]8;;x\x07\x9b0m"),
    Shape("escape without end", Group.HOSTILE, "\x1b]"),
    Shape("carriage returns", Group.HOSTILE, "ab\rcd\r\n\b\b"),
    Shape("hex runs", Group.HOSTILE, "0123456789abcdef"),
    Shape("lone surrogates", Group.HOSTILE, "\ud800a\udfff"),
)


def main() -> int:
    """Print the table; 0 when every shape is linear and within its target, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chars", type=int, default=100_000, help="n; 2n is measured as well")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many counts")
    parser.add_argument("--only", default="", help="shapes or groups with this in their name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    shapes = [s for s in SHAPES if asked.only in s.name or asked.only == s.group]
    if asked.profile:
        for shape in shapes:
            profile(shape, asked.chars)
        return 0
    results = [measure(shape, asked.chars, asked.rounds) for shape in shapes]
    if asked.json:
        print(json.dumps([attrs.asdict(result) for result in results], indent=2))
    else:
        _print(results, asked.chars)
    return 0 if all(result.met for result in results) else 1


def measure(shape: Shape, characters: int, rounds: int) -> Result:
    """The shape at n and 2n, alternately, so that a busy machine is busy for both."""
    short, long = shape.text(characters), shape.text(2 * characters)
    fence_once(short)
    pairs = [
        (reference_ns(partial(fence_once, short)), reference_ns(partial(fence_once, long)))
        for _ in range(rounds)
    ]
    spent = statistics.median(twice for _, twice in pairs)
    per_mb = spent / (2 * characters)
    one_pass = statistics.median(
        reference_ns(partial(long.translate, _TABLE)) for _ in range(rounds)
    )
    ratio = statistics.median(twice / once for once, twice in pairs)
    target = TARGETS[shape.group]
    return Result(
        name=shape.name,
        group=shape.group,
        ms_per_mb=per_mb,
        target_ms=target,
        ratio=ratio,
        passes=spent / one_pass,
        met=per_mb <= target and ratio <= MAX_RATIO,
    )


def profile(shape: Shape, characters: int) -> None:
    """What takes the time of one shape, by function, most first."""
    text = shape.text(characters)
    fence_once(text)
    profiler = cProfile.Profile()
    profiler.runcall(fence_once, text)
    print(f"{shape.name}, n = {characters:,}")
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(12)


def fence_once(text: str) -> None:
    """One block, as a run makes it."""
    meta = FenceMeta(kind=FenceKind.PAGE, source="https://example.org/", retrieved_at=None)
    fence(text, meta=meta, nonces=NonceBook())


def _print(results: list[Result], characters: int) -> None:
    print(f"n = {characters:,} characters; ms of processor time per million characters, at 2n")
    print(f"{'shape':26} {'group':8} {'ms/MB':>9} {'target':>7} {'2n/n':>6} {'passes':>6}")
    for result in results:
        word = "" if result.met else "  MISSED"
        print(
            f"{result.name:26} {result.group:8} {result.ms_per_mb:9.2f} {result.target_ms:7.0f}"
            f" {result.ratio:6.2f} {result.passes:6.2f}{word}"
        )
    for group in Group:
        worst = max((r for r in results if r.group is group), key=_cost, default=None)
        if worst is not None:
            print(f"worst of {group}: {worst.name}, {worst.ms_per_mb:.1f} of {worst.target_ms:.0f}")


def _cost(result: Result) -> float:
    return result.ms_per_mb


if __name__ == "__main__":
    sys.exit(main())
