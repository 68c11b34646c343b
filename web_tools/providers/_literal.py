"""Literal text for engines that read operators: quoting, token by token. Pure.

What cannot be escaped is taken away: an engine that knows no escape for a quote inside of a phrase
is asked for what stands around it.
"""

import re
from typing import Final

__all__ = ("quote_all", "quote_where", "sql_tokens")

_WORD: Final = re.compile(r"\w+")


def quote_where(query: str, pattern: re.Pattern[str]) -> str:
    """The tokens of *query*, those that *pattern* finds something in as phrases."""
    return " ".join(
        _phrase(token) if pattern.search(token) else token for token in _tokens(query, pattern)
    )


def quote_all(query: str) -> str:
    """Every token of *query* as a phrase."""
    return " ".join(_phrase(token) for token in query.replace('"', " ").split())


def _tokens(query: str, pattern: re.Pattern[str]) -> list[str]:
    """Tokens without quotes, which would open a phrase, where the pattern is about quotes."""
    return (query.replace('"', " ") if pattern.search('"') else query).split()


def _phrase(token: str) -> str:
    return f'"{token}"'


def sql_tokens(query: str) -> tuple[str, ...]:
    """The distinct tokens of *query* as string literals of FTS5, quotes doubled.

    A token without a letter or digit is left out when there are others: it can match nothing.
    """
    quoted = {'"' + token.replace('"', '""') + '"': token for token in query.split()}
    told = tuple(text for text, token in quoted.items() if _WORD.search(token))
    return told or tuple(quoted)[:1]
