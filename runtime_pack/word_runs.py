"""Runs of words of private texts, to be found in what goes out. Pure.

A text is kept as *runs*: from each of its words on, as many as make a run that two people do not write
by chance, as the letters of these words without anything between. What goes out is looked through as
letters too, so that neither signs, nor case, nor glued or split words hide a run.

A word is one of a script with spaces, or one character of a script without. Addresses are no words,
and neither is what is longer than a word: that is data, and looked for otherwise.

What is kept is bounded: where it would be more, each second run is dropped, then each second of those,
chosen by what they say, so that of a longer passage one is found all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from runtime_pack.inner import frozen

__all__ = ("BEGINNING", "MOST_RUNS", "RunLength", "WordRuns")

BEGINNING: Final = 8
"""Letters that a run is found by; a run is longer."""

MOST_RUNS: Final = 32_768

_WORD: Final = re.compile(r"[^\W_]+")
_LONGEST_WORD: Final = 40
# An address, up to the next space or bracket: reading it tells its own site what that knows.
_ADDRESS: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]{0,30}://|[Ww]{3}\.)[^\s<>\"]*")
# Scripts without spaces: kana, Han, and those of South-East Asia. A character is a third of a word.
_CONTINUOUS: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_LETTERS_OF_ONE: Final = 3


@frozen(kw_only=True)
class RunLength:
    """How much a run has at least: so many words, and so many letters.

    A text that has `whole` words, and fewer than a run, is a run by itself.
    """

    words: int
    letters: int
    whole: int | None = None


def _words(text: str) -> Iterator[list[tuple[str, int, int]]]:
    """The words of each stretch of a text, each with its weight in thirds of a word and in letters."""
    stretch: list[tuple[str, int, int]] = []
    for match in _WORD.finditer(_ADDRESS.sub(" ", text)):
        word = match[0]
        if _CONTINUOUS.search(word):
            stretch += ((sign, 1, _LETTERS_OF_ONE) for sign in word)
        elif len(word) > _LONGEST_WORD:
            yield stretch
            stretch = []
        else:
            stretch.append((word, 3, len(word)))
    yield stretch


class WordRuns:
    """The runs of the texts that were added, without those that were said in public.

    Texts are folded by who adds them, and what is looked through is letters and digits, folded.
    """

    __slots__ = ("_beginnings", "_every", "_length", "_public", "_runs")

    def __init__(self, length: RunLength) -> None:
        self._length = length
        # The length of each run, as a set of bits, by how it begins.
        self._beginnings: dict[str, int] = {}
        self._runs: dict[int, str] = {}
        self._public: dict[int, None] = {}
        self._every = 1

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, text: str) -> None:
        """Look for the runs of a text from now on."""
        for run in self._of(text):
            digest = hash(run)
            if digest % self._every == 0 and digest not in self._public:
                self._runs[digest] = run[:BEGINNING]
                self._note(run[:BEGINNING], len(run))
                if len(self._runs) > MOST_RUNS:
                    self._thin()

    def add_public(self, text: str) -> None:
        """What was said in public is no secret; beyond a bound it is asked about all the same."""
        for run in self._of(text):
            if len(self._public) >= MOST_RUNS:
                return
            digest = hash(run)
            self._public[digest] = None
            self._runs.pop(digest, None)

    def _note(self, beginning: str, length: int) -> None:
        self._beginnings[beginning] = self._beginnings.get(beginning, 0) | 1 << length

    def _thin(self) -> None:
        self._every *= 2
        self._runs = {run: how for run, how in self._runs.items() if run % self._every == 0}
        begun = set(self._runs.values())
        self._beginnings = {how: bits for how, bits in self._beginnings.items() if how in begun}

    def _of(self, text: str) -> Iterator[str]:
        for stretch in _words(text):
            found = False
            for start in range(len(stretch)):
                run = self._from(stretch, start)
                if run is None:
                    break
                found = True
                yield run
            whole = self._length.whole
            if not found and whole is not None and sum(w for _, w, _ in stretch) >= 3 * whole:
                letters = "".join(word for word, _, _ in stretch)
                if len(letters) >= 2 * BEGINNING:
                    yield letters

    def _from(self, stretch: Sequence[tuple[str, int, int]], start: int) -> str | None:
        weight = letters = 0
        for end in range(start, len(stretch)):
            weight += stretch[end][1]
            letters += stretch[end][2]
            if weight >= 3 * self._length.words and letters >= self._length.letters:
                run = "".join(word for word, _, _ in stretch[start : end + 1])
                return run if len(run) >= BEGINNING else None
        return None

    def holds(self, letters: str, beginnings: Sequence[str]) -> bool:
        """Whether one of the runs stands in a text; *beginnings* are all of its pieces of that length."""
        known = self._beginnings
        if not self._runs or known.keys().isdisjoint(beginnings):
            return False
        return any(
            self._at(letters, place, bits)
            for place, begun in enumerate(beginnings)
            if (bits := known.get(begun))
        )

    def _at(self, letters: str, place: int, bits: int) -> bool:
        length = 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            length, bits = length + skip, bits >> skip
            if place + length > len(letters):
                return False
            if hash(letters[place : place + length]) in self._runs:
                return True
            bits ^= 1
        return False
