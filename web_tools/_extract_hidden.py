"""Text that a person looking at the page would not see: found by attributes and inline styles.

What stylesheets hide is not known here. `html` and `body` are never hidden: pages set them so
until a script has run.
"""

import re

import attrs

from web_tools._extract_dom import Document, Element

_BY_ATTRIBUTE = "[hidden], dialog:not([open]), [popover], input[type=hidden]"
_MARK = "x-hidden-by-style"
_WAITING = 2_000

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
_GROUNDS = "[style*=background], [style*=BACKGROUND], [bgcolor]"
_STYLE_CHARS = 1024
_SAME_COLOUR_ANCESTORS = 6

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
    body = document.select_one("body")
    if body is None:
        return 0
    marked = _mark_by_style(body)
    if not marked and body.select_one(_BY_ATTRIBUTE) is None:
        return 0
    before = ink(body.text)
    body.remove(f"{_BY_ATTRIBUTE}, [{_MARK}]")
    return before - ink(body.text)


def show_waiting(document: Document, *, at_least: int) -> bool:
    """Make visible what is hidden and holds *at_least* characters; True if there was any.

    For a page that shows next to nothing: its content waits for a script. Dialogs stay hidden.
    """
    body = document.select_one("body")
    shown, styles = False, _Styles(has_grounds=False)
    for element in [] if body is None else body.select("[hidden], [style]")[:_WAITING]:
        hides = element.attr("hidden") is not None or styles.hides(element)
        if hides and ink(element.text) >= at_least:
            for name in ("hidden", "style"):
                if element.attr(name) is not None:
                    del element.attrs[name]
            shown = True
    return shown


def ink(text: str) -> int:
    """Count of characters that leave a mark: all but spaces, tabs and line feeds."""
    return len(text) - text.count(" ") - text.count("\n") - text.count("\t")


def has_ink(text: str, at_least: int) -> bool:
    """Whether `ink` of a text reaches a number; looks at its beginning first."""
    return ink(text[: 4 * at_least]) >= at_least or ink(text) >= at_least


def _mark_by_style(body: Element) -> bool:
    styles = _Styles(has_grounds=body.select_one(_GROUNDS) is not None)
    marked = False
    for element in body.select("[style], font[color]"):
        if styles.hides(element):
            element.attrs[_MARK] = ""
            marked = True
    return marked


@attrs.frozen(kw_only=True)
class _Style:
    """What one inline style says that matters here; colours are '' when not stated."""

    hides: bool
    colour: str
    ground: str


class _Styles:
    """Inline styles of one page, each text read once: pages repeat them on every element."""

    def __init__(self, *, has_grounds: bool) -> None:
        self._has_grounds = has_grounds
        self._read: dict[str, _Style] = {}

    def hides(self, element: Element) -> bool:
        """Whether an element's own style makes its text invisible."""
        style = self._of(element)
        if style.hides or not self._has_grounds:
            return style.hides
        colour = style.colour or _normal_colour(element.attr("color") or "")
        return bool(colour and colour == self._ground_under(element, style))

    def _ground_under(self, element: Element, style: _Style) -> str:
        """The background colour stated inline here or on a near ancestor, else ''."""
        node = element
        for _ in range(_SAME_COLOUR_ANCESTORS):
            if style.ground:
                return style.ground
            parent = node.parent
            if not isinstance(parent, Element):
                return ""
            node, style = parent, self._of(parent)
            if not style.ground and (stated := node.attr("bgcolor")):
                return _normal_colour(stated)
        return ""

    def _of(self, element: Element) -> _Style:
        text = element.attr("style") or ""
        style = self._read.get(text)
        if style is None:
            style = self._read[text] = _style(_normal(text))
        return style


def _style(text: str) -> _Style:
    clipped = _CLIPPED.search(text) is not None and _ZERO_BOX.search(text) is not None
    return _Style(
        hides=clipped or _HIDING.search(text) is not None,
        colour=_found(_COLOUR, text),
        ground=_found(_GROUND, text),
    )


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
