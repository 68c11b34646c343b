"""Literal text becomes an FTS5 expression that can only be a list of quoted words. Pure.

Nothing of the query reaches FTS5 outside a string literal, so no operator, column filter or
NEAR can be written into it. Lengths are bounded: a phrase of 900 words took four seconds.
"""

import unicodedata
from typing import Final

import attrs

from web_tools.arguments import MAX_QUERY_CHARS
from web_tools.errors import ProviderFault, SearchProviderError

__all__ = ("MAX_TERMS", "Terms", "parse_terms")

# Source: the search contract, for a local index: "tokens quoted, distinct, <= 32, more refused".
MAX_TERMS: Final = 32
# A piece with more words than this is not one expression ("a.b.c") but text without spaces.
_MAX_PHRASE_WORDS: Final = 4
# Letters, marks, numbers and private use: what the tokenizer of FTS5 takes into words.
_WORD_CATEGORIES: Final = frozenset("LMN")
# Signs inside of one name: str.format, read-only, don't, and/or, __init__.
_JOINERS: Final = frozenset("._-'\u2019/")


@attrs.frozen(kw_only=True)
class Terms:
    """What to look for: phrases of one to four words, lower case, distinct, in order."""

    phrases: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Every word once."""
        return tuple(dict.fromkeys(word for phrase in self.phrases for word in phrase))

    def to_match(self) -> str:
        """The FTS5 expression; empty text when there is nothing to look for."""
        return " OR ".join(_quoted(" ".join(phrase)) for phrase in self.phrases)


def parse_terms(query: str) -> Terms:
    """The distinct terms of *query*; none when it holds no letter and no digit.

    Raises:
        SearchProviderError: QUERY_REFUSED. The query is blank, too long, not valid Unicode,
            holds NUL, or has more than 32 distinct terms.
    """
    _refuse_unusable(query)
    phrases: dict[tuple[str, ...], None] = {}
    for piece in _pieces(query.lower()):
        words = tuple(_words(piece))
        separate = len(words) > _MAX_PHRASE_WORDS
        phrases.update(dict.fromkeys(((word,) for word in words) if separate else (words,)))
    phrases.pop((), None)
    if len(phrases) > MAX_TERMS:
        raise SearchProviderError(ProviderFault.QUERY_REFUSED, f"more than {MAX_TERMS} terms")
    return Terms(phrases=tuple(phrases))


def _refuse_unusable(query: str) -> None:
    # The provider is a public port of its own, so it does not rely on the parser of arguments.
    if not query.strip() or len(query) > MAX_QUERY_CHARS:
        raise SearchProviderError(ProviderFault.QUERY_REFUSED, "blank or too long")
    if "\0" in query or any("\ud800" <= c <= "\udfff" for c in query):
        raise SearchProviderError(ProviderFault.QUERY_REFUSED, "NUL or a lone surrogate")


def _pieces(text: str) -> list[str]:
    """What stands between spaces, quotes, brackets and the like."""
    return "".join(c if _is_word_character(c) or c in _JOINERS else " " for c in text).split()


def _words(piece: str) -> list[str]:
    """The words of a piece; a run of marks alone is no word, nothing carries them."""
    spaced = "".join(c if _is_word_character(c) else " " for c in piece)
    return [word for word in spaced.split() if not all(_is_mark(c) for c in word)]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _is_word_character(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in _WORD_CATEGORIES or category == "Co"


def _quoted(phrase: str) -> str:
    # No quote can be left in a word; doubling keeps the rule local all the same.
    return '"' + phrase.replace('"', '""') + '"'
