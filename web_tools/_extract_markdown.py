"""A chosen root as Markdown: code, tables and line breaks are put in order first, then written.

The tree is changed on the way. Nothing here looks at the text with a pattern that can back-track.
"""

import re

from web_tools._extract_dom import BREAK, Document, Element, Text, write_markdown

_LANGUAGE = re.compile(
    r"(?:^|\s)(?:language|lang|highlight-source|highlight|brush:?|sourceCode)[-:\s]([\w+#.-]{1,30})",
    re.IGNORECASE,
)
_NOT_LANGUAGES = frozenset(
    {"default", "text", "plaintext", "none", "plain", "notranslate", "nohighlight"}
)
_BARE_LANGUAGES = frozenset(
    [
        "bash",
        "c",
        "cpp",
        "csharp",
        "css",
        "diff",
        "go",
        "html",
        "java",
        "javascript",
        "js",
        "json",
        "jsx",
        "kotlin",
        "lua",
        "perl",
        "php",
        "python",
        "ruby",
        "rust",
        "scala",
        "sh",
        "shell",
        "sql",
        "swift",
        "toml",
        "ts",
        "tsx",
        "typescript",
        "xml",
        "yaml",
    ]
)
_GUTTERS = (
    "td.linenos, td.gutter, td.rouge-gutter, .line-numbers-rows, .linenodiv, span.lineno, span.linenos, "
    "td.blob-num, .hljs-ln-numbers"
)
_PERMALINKS = (
    "a.headerlink, a.anchorjs-link, a.hash-link, a.heading-anchor, a.header-anchor, a.octicon-link, "
    ".mw-editsection"
)
_LAYOUT_INSIDE = "table, p + p, h1, h2, h3, ul, ol, pre, blockquote, form, article, section"
_LINE_PREFIX = re.compile(r"(?:> ?|[ ]{1,64}|[-*+] |\d{1,9}[.)] )*")
_MAX_SPAN = 50
_MAX_TABLES = 2_000


def to_markdown(root: Element | Document) -> str:
    """Markdown of *root*; its tree is used up."""
    root.remove(f"{_PERMALINKS}, {_GUTTERS}")
    _order_code(root)
    _order_tables(root)
    breaks = root.select("br")
    for line_break in breaks:
        line_break.replace_with(Text(BREAK))
    text = write_markdown(root)
    return _with_breaks(text) if breaks else text


def _order_code(root: Element | Document) -> None:
    """Every `pre` holds one `code` with its exact text and its language."""
    budget = 0
    for block in root.select("pre"):
        if budget > 16 * 1024 * 1024:
            return  # nested `pre`: the text was already taken with the outer ones
        for line_break in block.select("br"):
            line_break.replace_with(Text("\n"))
        text = block.text
        budget += len(text) + 1
        language = _language_of(block)
        attributes = {"class": f"language-{language}"} if language else {}
        block.clear()
        block.append(Element("code", attributes, [Text(text.replace("\r\n", "\n"))]))


def _language_of(block: Element) -> str:
    inner = block.select_one("code")
    parent = block.parent
    outer = parent.parent if isinstance(parent, Element) else None
    for element in (inner, block, parent, outer):
        if not isinstance(element, Element):
            continue
        named = element.attr("data-lang") or element.attr("data-language") or ""
        found = _LANGUAGE.search(element.attr("class") or "")
        word = (named or (found[1] if found else "") or _bare_language(element)).lower().strip()
        if word and word not in _NOT_LANGUAGES and re.fullmatch(r"[\w+#.-]{1,30}", word):
            return word
    return ""


def _bare_language(element: Element) -> str:
    if element.tag not in {"pre", "code"}:
        return ""
    return next(
        (w for w in (element.attr("class") or "").lower().split() if w in _BARE_LANGUAGES), ""
    )


def _order_tables(root: Element | Document) -> None:
    """Tables of data get one cell per column; tables that only lay out become blocks."""
    tables = root.select("table")
    for table in reversed(tables[:_MAX_TABLES]):  # inner tables first
        if _is_layout(table):
            _unfold(table)
        else:
            _square(table)
    for table in tables[_MAX_TABLES:]:
        _unfold(table)


def _is_layout(table: Element) -> bool:
    if table.attr("role") in {"presentation", "none"}:
        return True
    if table.select_one(_LAYOUT_INSIDE) is not None:
        return True
    return all(len(row) <= 1 for row in table.rows())


def _unfold(table: Element) -> None:
    for part in table.select("thead, tbody, tfoot, tr, td, th, caption, colgroup, col"):
        part.tag = "div"
    table.tag = "div"


def _square(table: Element) -> None:
    for caption in table.select("caption"):
        table.insert_before(Element("p", {}, list(caption.children)))
        caption.extract()
    for cell in table.select("[colspan], [rowspan]"):
        span = cell.attr("colspan") or ""
        for name in ("colspan", "rowspan"):
            if cell.attr(name) is not None:
                del cell.attrs[name]
        if span.isascii() and span.isdigit():
            extra = min(int(span[:4]), _MAX_SPAN) - 1
            cell.insert_after(*(Element(cell.tag) for _ in range(extra)))


def _with_breaks(text: str) -> str:
    """Line breaks put back: a line of its own, indented as its list item; a space in tables."""
    pieces: list[str] = []
    position = 0
    while (found := text.find(BREAK, position)) >= 0:
        start = text.rfind("\n", position, found) + 1 or position
        end = text.find("\n", found)
        end = len(text) if end < 0 else end
        pieces += (text[position:start], _broken(text[start:end]))
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _broken(line: str) -> str:
    stripped = line.lstrip(" >")
    if stripped.startswith(("|", "#")):
        return " ".join(part.strip() for part in line.split(BREAK))
    match = _LINE_PREFIX.match(line)
    prefix = line[: match.end()] if match else ""
    indent = "".join(char if char in "> " else " " for char in prefix)
    parts = [part.strip() for part in line[len(prefix) :].split(BREAK)]
    lines = _without_runs(parts)
    return prefix + ("\n" + indent).join(lines)


def _without_runs(parts: list[str]) -> list[str]:
    """At most one empty line in a row, none at either end."""
    kept: list[str] = []
    for part in parts:
        if part or (kept and kept[-1]):
            kept.append(part)
    while kept and not kept[-1]:
        kept.pop()
    return kept
