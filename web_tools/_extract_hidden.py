"""Text that a person looking at the page would not see: found by attributes and inline styles.

What stylesheets hide is not known here. `html` and `body` are never hidden: pages set them so
until a script has run.
"""

import re
from functools import lru_cache

from web_tools._extract_dom import Document, Element

_BY_ATTRIBUTE = "body [hidden], body dialog:not([open]), body [popover], body input"
_MARK = "x-hidden-by-style"

_NUMBER = r"0*(?:\.0+)?(?:px|em|rem|pt|%|vw|vh)?"
_FAR = r"-\d{3,}(?:\.\d+)?(?:px|em|rem|pt|%|vw|vh)?"
_HIDING = re.compile(
    "(?:^|;)(?:"
    r"display:none|visibility:(?:hidden|collapse)|content-visibility:hidden"
    rf"|opacity:{_NUMBER}|font-size:(?:{_NUMBER}|[01](?:\.\d+)?px)|font:0(?:px)?/\S{{0,40}}"
    rf"|text-indent:{_FAR}|(?:left|top|right|bottom|margin-left|margin-top):{_FAR}"
    r"|color:transparent|color:rgba\([\d.%]{1,8},[\d.%]{1,8},[\d.%]{1,8},0*(?:\.0+)?\)"
    r"|clip:rect\((?:0|1px)(?:px)?[,0-9px]{0,40}\)|clip-path:(?:inset\((?:50|100)%\)|circle\(0)"
    r"|transform:scale\(0(?:,0)?\)"
    ")(?=;|$)"
)
_ZERO_BOX = re.compile(r"(?:^|;)(?:max-)?(?:width|height):(?:0|1px)(?:px|em|rem|%)?(?=;|$)")
_CLIPPED = re.compile(r"(?:^|;)overflow(?:-x|-y)?:(?:hidden|clip)(?=;|$)")
_COLOUR = re.compile(r"(?:^|;)color:([^;]{1,40})")
_GROUND = re.compile(r"(?:^|;)background(?:-color)?:([^;]{1,40})")
_STYLE_CHARS = 1024
_SAME_COLOUR_ANCESTORS = 12

_COLOUR_NAMES = {
    "white": "#ffffff",
    "black": "#000000",
    "red": "#ff0000",
    "yellow": "#ffff00",
    "blue": "#0000ff",
    "gray": "#808080",
    "grey": "#808080",
    "silver": "#c0c0c0",
}
_RGB = re.compile(r"rgba?\((\d{1,3}),(\d{1,3}),(\d{1,3})(?:,1(?:\.0+)?)?\)")
_SHORT_HEX = re.compile(r"#[0-9a-f]{3}")


def remove_hidden(document: Document) -> int:
    """Take hidden elements out of the tree; the count of characters (without white space) in them."""
    marked = _mark_by_style(document)
    if not marked and document.select_one(_BY_ATTRIBUTE) is None:
        return 0
    before = ink(document.text)
    document.remove(_BY_ATTRIBUTE)
    if marked:
        document.remove(f"body [{_MARK}]")
    return before - ink(document.text)


def ink(text: str) -> int:
    """Count of characters that leave a mark: all but white space."""
    return len(text) - sum(map(text.count, " \n\t\r\xa0"))


def _mark_by_style(document: Document) -> bool:
    marked = False
    for element in document.select("body [style], body font[color]"):
        if _is_hidden(element):
            element.attrs[_MARK] = ""
            marked = True
    return marked


def _is_hidden(element: Element) -> bool:
    style = _normal(element.attr("style") or "")
    if _style_hides(style):
        return True
    colour = _found(_COLOUR, style) or _normal_colour(element.attr("color") or "")
    return bool(colour) and colour == _ground_under(element, style)


@lru_cache(maxsize=512)
def _style_hides(style: str) -> bool:
    if _HIDING.search(style):
        return True
    return bool(_CLIPPED.search(style) and _ZERO_BOX.search(style))


def _ground_under(element: Element, style: str) -> str:
    """The background colour stated inline here or on a near ancestor, else ''."""
    node: object = element
    for _ in range(_SAME_COLOUR_ANCESTORS):
        ground = _found(_GROUND, style)
        if ground:
            return ground
        parent = node.parent if isinstance(node, Element) else None
        if not isinstance(parent, Element):
            return ""
        node = parent
        style = _normal(parent.attr("style") or "")
        if stated := parent.attr("bgcolor"):
            return _normal_colour(stated)
    return ""


def _normal(style: str) -> str:
    return "".join(style[:_STYLE_CHARS].lower().replace("!important", "").split())


def _found(pattern: re.Pattern[str], style: str) -> str:
    match = pattern.search(style)
    return _normal_colour(match[1]) if match else ""


def _normal_colour(value: str) -> str:
    value = "".join(value.lower().split())
    if (match := _RGB.fullmatch(value)) is not None:
        return "#" + "".join(f"{min(int(part), 255):02x}" for part in match.groups())
    if _SHORT_HEX.fullmatch(value):
        return "#" + "".join(char * 2 for char in value[1:])
    return _COLOUR_NAMES.get(value, value)
