"""A chosen root as Markdown: code, tables and line breaks are put in order first, then written.

The tree is changed on the way. Nothing here looks at the text with a pattern that can back-track.
"""

import re
from collections.abc import Iterator

from web_tools._extract_dom import BREAK, Document, Element, Text, write_markdown

_LANGUAGE = re.compile(
    r"(?:language|lang|highlight-source|highlight|brush|sourcecode|code)[-:]([\w+#.-]{1,30});?",
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
_WORD = re.compile(r"[\w+#.-]{1,30}")
_LAYOUT_INSIDE = "table, p + p, h1, h2, h3, ul, ol, pre, blockquote, form, article, section"
_LINE_PREFIX = re.compile(r"(?:> ?|[ ]{1,64}|[-*+] |\d{1,9}[.)] )*")
_MARKED_LINE = frozenset(" >|#-*+0123456789")
_MAX_SPAN = 50
_MAX_TABLES = 2_000


def to_markdown(root: Element | Document) -> str:
    """Markdown of *root*; its tree is used up."""
    _order_code(root)
    _order_tables(root)
    for line_break in root.select("br"):
        line_break.replace_with(Text(BREAK))
    text = write_markdown(root)
    return _with_breaks(text) if BREAK in text else text


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
    parent = block.parent
    outer = parent.parent if isinstance(parent, Element) else None
    for element in (block.select_one("code"), block, parent, outer):
        if isinstance(element, Element) and (word := _language_named(element)):
            return word
    return ""


def _language_named(element: Element) -> str:
    stated = element.attr("data-lang") or element.attr("data-language") or ""
    classes = (element.attr("class") or "").split()
    matches = (_LANGUAGE.fullmatch(name) for name in classes)
    words = [stated, *(match[1] for match in matches if match is not None)]
    if element.tag in {"pre", "code"}:
        words += [name for name in classes if name.lower() in _BARE_LANGUAGES]
    for word in words:
        lowered = word.strip().lower()
        if lowered not in _NOT_LANGUAGES and _WORD.fullmatch(lowered):
            return lowered
    return ""


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
    if table.attr("role") in {"presentation", "none"} or table.select_one("table, pre") is not None:
        return True
    if table.select_one("th") is not None:
        return False
    if table.select_one(_LAYOUT_INSIDE) is not None:
        return True
    return all(len(cells) <= 1 for _, cells in _rows_of(table))


def _rows_of(table: Element) -> Iterator[tuple[Element, list[Element]]]:
    """Each row and its cells, those of the table itself only."""
    for part in _parts(table, {"tr", "thead", "tbody", "tfoot"}):
        for row in [part] if part.tag == "tr" else _parts(part, {"tr"}):
            yield row, _parts(row, {"td", "th"})


def _parts(element: Element, tags: set[str]) -> list[Element]:
    return [child for child in element.children if isinstance(child, Element) and child.tag in tags]


def _unfold(table: Element) -> None:
    for row, cells in _rows_of(table):
        for element in (row.parent, row, *cells):
            if isinstance(element, Element):
                element.tag = "div"
    for caption in _parts(table, {"caption"}):
        caption.tag = "div"
    table.tag = "div"


def _square(table: Element) -> None:
    """One cell per column in every row: what a cell spans beyond its first place is left empty."""
    for caption in _parts(table, {"caption"}):
        table.insert_before(Element("p", {}, list(caption.children)))
        caption.extract()
    below: dict[int, int] = {}
    for row, cells in list(_rows_of(table)):
        below = _square_row(row, cells, below)


def _square_row(row: Element, cells: list[Element], above: dict[int, int]) -> dict[int, int]:
    """Fill one row; *above* says which columns are still covered, and for how many rows."""
    below = {column: rows - 1 for column, rows in above.items() if rows > 1}
    column = 0
    for cell in cells:
        while column in above:
            cell.insert_before(Element("td"))
            column += 1
        wide, high = _span(cell, "colspan"), _span(cell, "rowspan")
        if high > 1:
            below.update(dict.fromkeys(range(column, column + wide), high - 1))
        if wide > 1:
            cell.insert_after(*(Element(cell.tag) for _ in range(wide - 1)))
        column += wide
    for _ in range(sum(covered >= column for covered in above)):
        row.append(Element("td"))
    return below


def _span(cell: Element, name: str) -> int:
    value = cell.attr(name)
    if value is None:
        return 1
    del cell.attrs[name]
    digits = value.strip()
    return min(max(int(digits[:4]), 1), _MAX_SPAN) if digits.isascii() and digits.isdigit() else 1


def _with_breaks(text: str) -> str:
    """Line breaks put back: a line of its own, indented as its list item; a space in tables."""
    return "\n".join([_broken(line) if BREAK in line else line for line in text.split("\n")])


def _broken(line: str) -> str:
    if line[0] not in _MARKED_LINE:
        return "\n".join(_without_runs([part.strip() for part in line.split(BREAK)]))
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
