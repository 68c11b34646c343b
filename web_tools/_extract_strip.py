"""Tags cut away without parsing: the answer of last resort for pages the parser cannot finish.

One pass with `str.find`, so linear whatever the page holds; no regular expression sees the page.
"""

from html import unescape

_SKIPPED = frozenset({"script", "style", "template", "svg", "noscript", "title", "textarea"})
_BREAKING = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "td",
        "th",
        "tr",
        "ul",
    ]
)
_MAX_TAG_CHARS = 65_536
_ENTITY_CHARS = 40


def strip_markup(markup: str) -> str:
    """The text between the tags of *markup*, one line per block, entities resolved."""
    pieces: list[str] = []
    lower = _lower(markup)
    position = 0
    while (opened := markup.find("<", position)) >= 0:
        pieces.append(markup[position:opened])
        position = _after_tag(markup, lower, opened, pieces)
    pieces.append(markup[position:])
    return _lines(_resolved("".join(pieces)))


def _after_tag(markup: str, lower: str, opened: int, pieces: list[str]) -> int:
    """Offset at which text goes on after what begins at the `<` at *opened*."""
    if markup.startswith("<!--", opened):
        return _after(lower, "-->", opened + 4)
    if not (markup[opened + 1 : opened + 2].isalpha() or markup[opened + 1 : opened + 2] in "/!?"):
        pieces.append("<")
        return opened + 1
    name = _name(lower, opened)
    end = _after(lower, ">", opened + 1)
    if name in _SKIPPED:
        close = _after(lower, f"</{name}", end)
        return _after(lower, ">", close) if close < len(markup) else close
    if name in _BREAKING:
        pieces.append("\n")
    return end


def _after(lower: str, what: str, start: int) -> int:
    """Offset after the next *what*, or the end: what is never closed is looked for only once."""
    found = lower.find(what, start)
    return len(lower) if found < 0 else found + len(what)


def _name(lower: str, opened: int) -> str:
    start = opened + 2 if lower.startswith("</", opened) else opened + 1
    end = start
    while end < start + 12 and end < len(lower) and lower[end].isalnum():
        end += 1
    return lower[start:end] if start == opened + 1 or lower[start:end] in _BREAKING else ""


def _lower(markup: str) -> str:
    """*markup* with ASCII letters in lower case, every offset as it was."""
    return markup.translate(_ASCII_LOWER) if not markup.isascii() else markup.lower()


_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _resolved(text: str) -> str:
    """Entities resolved; `html.unescape` is given short pieces only, one per `&`."""
    if "&" not in text:
        return text
    first, *rest = text.split("&")
    return first + "".join(
        unescape("&" + piece[:_ENTITY_CHARS]) + piece[_ENTITY_CHARS:] for piece in rest
    )


def _lines(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
