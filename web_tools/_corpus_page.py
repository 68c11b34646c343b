"""A document's text as a simple, valid HTML page. Pure, total and linear.

Reads just enough structure from plain text to keep headings, code and list items apart:
underlined and ``#`` headings, fenced and indented code, bullets. Everything else is a
paragraph. Every character of the document is escaped; no text becomes markup.
"""

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

__all__ = ("clean_text", "heading_at_top", "render_html")

_UNDERLINE_LEVELS: Final = {"*": 2, "=": 2, "-": 3, "~": 4, "^": 4}
_ATX = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_BULLET = re.compile(r"[*+-][ \t]+(?=\S)")
_FENCE: Final = "```"
_FENCE_LINE = re.compile(_FENCE)
_PARAGRAPH_END = re.compile(r"\s*\Z|```|#{1,6}[ \t]+\S")
# Characters that HTML does not allow, and lone surrogates, which UTF-8 cannot carry.
# Source: HTML Living Standard, 13.2.3.5 "Preprocessing the input stream".
_ASTRAL_NONCHARACTERS = "".join(
    chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(1, 17)
)
_UNWRITABLE = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + _ASTRAL_NONCHARACTERS
    + "]"
)
_PROSE_START = re.compile(r"[\"'*“]*[A-Z]")
_PROSE_END: Final = (".", ":", ";", "?", "!", ")", '"')
_CODE_MARKS: Final = ("::=", ">>>", "\n ")


def clean_text(text: str) -> str:
    """*text* with every character that a page cannot carry replaced by U+FFFD."""
    return _UNWRITABLE.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\n")


def heading_at_top(text: str) -> tuple[str, str] | None:
    """The heading that *text* begins with, and the rest; None when it begins otherwise."""
    lines = text.lstrip("\n").split("\n")
    if (atx := _ATX.fullmatch(lines[0].rstrip())) is not None:
        return atx[2].rstrip("# ").strip() or atx[2], "\n".join(lines[1:]).lstrip("\n")
    if len(lines) > 1 and _underline_level(lines[0], lines[1]) is not None:
        return lines[0].strip(), "\n".join(lines[2:]).lstrip("\n")
    return None


def render_html(title: str, text: str) -> str:
    """A whole HTML 5 page with *title* as its only first-level heading."""
    name = escape(clean_text(title))
    body = "\n".join(_blocks(clean_text(text).expandtabs().split("\n")))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{name}</title></head>\n'
        f"<body>\n<main>\n<h1>{name}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _blocks(lines: list[str]) -> Iterator[str]:
    """HTML of each block, top to bottom; every line is read once."""
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif line.startswith(_FENCE):
            end = _until(lines, at + 1, _FENCE_LINE)
            yield _code(lines[at + 1 : end])
            at = end + 1
        elif (heading := _heading(lines, at)) is not None:
            level, name, at = heading
            yield f"<h{level}>{escape(name)}</h{level}>"
        else:
            end = _until(lines, at + 1, _PARAGRAPH_END)
            yield _chunk(lines[at:end])
            at = end


def _until(lines: list[str], start: int, ends: re.Pattern[str]) -> int:
    """Index of the first line from *start* that matches, or the number of lines."""
    at = start
    while at < len(lines) and ends.match(lines[at]) is None:
        at += 1
    return at


def _heading(lines: list[str], at: int) -> tuple[int, str, int] | None:
    """Level, name and the index after the heading at *at*."""
    if (atx := _ATX.fullmatch(lines[at].rstrip())) is not None:
        return min(6, max(2, len(atx[1]))), atx[2], at + 1
    if at + 1 < len(lines):
        level = _underline_level(lines[at], lines[at + 1])
        if level is not None:
            return level, lines[at].strip(), at + 2
    return None


def _underline_level(name: str, underline: str) -> int | None:
    """The level that an underlined line has; None when it is not underlined."""
    marks = underline.rstrip()
    if len(marks) < 3 or not name.strip() or name.startswith(" ") or marks != marks[0] * len(marks):
        return None
    return _UNDERLINE_LEVELS.get(marks[0])


def _chunk(lines: list[str]) -> str:
    """Lines without a blank between them: list items, code, or a paragraph."""
    margin = min(_indent(line) for line in lines)
    dedented = [line[margin:] for line in lines]
    if _BULLET.match(dedented[0]):
        return _list(dedented)
    if margin >= 3 and not _is_prose("\n".join(dedented)):
        return _code(dedented)
    return f"<p>{escape(chr(10).join(dedented))}</p>"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_prose(text: str) -> bool:
    """Whether an indented chunk reads as sentences. Definitions are indented in many texts."""
    if any(mark in text for mark in _CODE_MARKS):
        return False
    return _PROSE_START.match(text) is not None and text.rstrip().endswith(_PROSE_END)


def _list(lines: list[str]) -> str:
    items: list[list[str]] = []
    for line in lines:
        if (bullet := _BULLET.match(line)) is not None:
            items.append([line[bullet.end() :]])
        else:
            items[-1].append(line.strip())
    return f"<ul>{''.join(_item(item) for item in items)}</ul>"


def _item(lines: Iterable[str]) -> str:
    return f"<li>{escape(chr(10).join(lines))}</li>"


def _code(lines: list[str]) -> str:
    return f"<pre><code>{escape(chr(10).join(lines))}</code></pre>"
