"""Texts of vendors that answer with plain text, on their way to a tool that strips markup. Pure."""

from typing import Any, Final

from web_tools.contract.snippets import escape_text

__all__ = ("BREAK", "joined", "text")

BREAK: Final = " … "
"""Between passages that do not stand together in the page."""


def text(value: Any) -> str | None:
    """Plain text, escaped; None when it is no text."""
    return escape_text(value) if isinstance(value, str) else None


def joined(passages: Any) -> str:
    """The texts of a list, as one."""
    found = passages if isinstance(passages, list) else []
    return BREAK.join(each for each in found if isinstance(each, str) and each)
