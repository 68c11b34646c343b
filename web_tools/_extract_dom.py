"""The parser, its tree and its Markdown writer, behind the few names the rest of extraction uses.

Everything of `turbohtml` that is used anywhere in extraction comes through here, so that another
parser can take its place. Nodes offer `select`, `remove`, `attr`, `attrs`, `text`, `children`,
`parent`, `tag`, `replace_with` and `wrap_children`; all are iterative in the parser, so depth does
not matter.
"""

from turbohtml import Document, Element, HTMLParseError, Markdown, Node, Text, parse, parse_xml

__all__ = (
    "BREAK",
    "Document",
    "Element",
    "Node",
    "Text",
    "parse_feed_xml",
    "parse_page",
    "write_markdown",
)

BREAK = "\ufdd0"
"""Stands for a line break while Markdown is written; a noncharacter, so no text has a use for it."""

_STYLE = Markdown(
    links=Markdown.Links(autolink=False),
    tables=Markdown.Tables(cell_blocks="text"),
    inline=Markdown.Inline(strikethrough="keep"),
)


def parse_page(text: str) -> Document:
    """The tree of a page; total over any text, `noscript` parsed as markup."""
    return parse(text, positions=False, allow_declarative_shadow_roots=False)


def parse_feed_xml(text: str) -> Document:
    """The tree of an XML text. It defines no entities, and nothing outside of it is read.

    Raises:
        ValueError: The text is not well-formed.
    """
    try:
        return parse_xml(text)
    except HTMLParseError as error:
        raise ValueError(str(error)) from error


def write_markdown(node: Node) -> str:
    """GitHub-flavoured Markdown of a subtree; every literal `*` and `_` is escaped."""
    return node.to_markdown(_STYLE)
