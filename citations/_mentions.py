"""What an answer refers to: links, addresses, and numbers that a list of references explains.

Every expression here ends at a sign that it cannot cross, so the work is linear in the answer.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

__all__ = ("Mention", "Mentions", "find_mentions")

# Parentheses in an address count when they are closed in it, as in those of an encyclopaedia.
_ADDRESS: Final = r"https?://[^\s<>\"'“”«»„‘’\[\](){}|\\^`]++(?:\([^\s<>\"()]*+\)[^\s<>\"'“”«»„‘’\[\](){}|\\^`]*+)*+"
_BARE: Final = re.compile(_ADDRESS, re.IGNORECASE)
_AFTER: Final = ".,;:!?*_~"
_LABELS: Final = r"\^?[\w.:-]{1,40}+(?:[ \t]*+[,;–-][ \t]*+\^?[\w.:-]{1,40}+)*+"
_MENTION: Final = re.compile(
    "|".join(
        (
            rf"\]\(\s*+<?(?P<target>{_ADDRESS})>?(?:\s++\"[^\"\n]*+\")?\s*+\)",
            rf"\[(?P<labels>{_LABELS})\](?!\()",
            r"【(?P<lenticular>[0-9]{1,4}+)[^】\n]{0,40}+】",
            r"<sup>\s*+\[?(?P<sup>[0-9]{1,4}+)\]?\s*+</sup>",
            r"(?P<raised>[⁰¹²³⁴-⁹]{1,4}+)",
            rf"(?P<bare>{_ADDRESS})",
        )
    ),
    re.IGNORECASE,
)
_RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
# "[1] …", "[^1]: …", "- [1] …", and, weaker, "1. …" and "1) …".
_LISTED: Final = re.compile(
    r"^[ \t]{0,8}+(?:[-*+][ \t]++)?(?:\[\^?(?P<label>[\w.-]{1,40}+)\]:?|(?P<number>[0-9]{1,4}+)[.)])[ \t]*+(?=\S)",
    re.MULTILINE,
)
_RANGE: Final = re.compile(r"([0-9]{1,4})[ \t]*[–-][ \t]*([0-9]{1,4})\Z")
_MOST_OF_A_RANGE: Final = 50
_MOST_OF_A_TITLE: Final = 2_000


@attrs.frozen(kw_only=True)
class Mention:
    """One reference in an answer, and the addresses that it stands for.

    Attributes:
        start: Where it begins; of a link, where its text does.
        named: What was written: addresses, or labels with a hash sign in front.
        addresses: As written; none when a label is not explained, or in two ways.
    """

    start: int
    end: int
    named: tuple[str, ...]
    addresses: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Mentions:
    """All references of an answer, in order, and where its list of references stands.

    Attributes:
        listed: Spans of the lines that explain a label.
    """

    items: tuple[Mention, ...]
    listed: tuple[tuple[int, int], ...]


@attrs.frozen(kw_only=True)
class _Listing:
    strong: Mapping[str, str | None]
    weak: Mapping[str, str | None]
    spans: tuple[tuple[int, int], ...]

    def address(self, label: str) -> str | None:
        """What a label stands for; nothing when the answer explains it twice, and differently."""
        key = label.removeprefix("^").casefold()
        return self.strong[key] if key in self.strong else self.weak.get(key)


def find_mentions(answer: str) -> Mentions:
    """The references of *answer*, whatever it is."""
    listing = _listing(answer)
    found = tuple(_mentions(answer, listing))
    return Mentions(items=found, listed=listing.spans)


def _listing(answer: str) -> _Listing:
    strong: dict[str, str | None] = {}
    weak: dict[str, str | None] = {}
    spans: list[tuple[int, int]] = []
    for match in _LISTED.finditer(answer):
        stop = answer.find("\n", match.end())
        end = len(answer) if stop < 0 else stop
        named = _BARE.search(answer, match.end(), end)
        if named is None:
            continue
        known, label = (strong, match["label"]) if match["label"] else (weak, match["number"])
        address, key = trimmed(named[0]), label.casefold()
        known[key] = address if known.get(key, address) == address else None
        if match["label"]:
            spans.append((match.start(), end))
    return _Listing(strong=strong, weak=weak, spans=tuple(spans))


def _mentions(answer: str, listing: _Listing) -> Iterator[Mention]:
    for match in _MENTION.finditer(answer):
        start, end = match.span()
        written = match["target"] or match["bare"]
        if written is not None:
            address = trimmed(written)
            if match["bare"]:
                end -= len(written) - len(address)
            else:
                start = _link_start(answer, start)
            yield Mention(start=start, end=end, named=(address,), addresses=(address,))
            continue
        labels = _labels(match)
        known = [listing.address(label) for label in labels]
        numbers = all(label.removeprefix("^").isdecimal() for label in labels)
        claims = numbers and not match["raised"]
        if not claims and not match[0].startswith("[^") and not any(known):
            # "[sic]", a power of a number, and the like: nothing says that they refer to anything.
            continue
        named = tuple(f"#{label.removeprefix('^')}" for label in labels)
        whole = all(address is not None for address in known)
        addresses = tuple(address for address in known if address is not None) if whole else ()
        yield Mention(start=start, end=end, named=named, addresses=addresses)


def _link_start(answer: str, close: int) -> int:
    """Where the text of a link begins, if that is near and on its line."""
    near = max(
        close - _MOST_OF_A_TITLE, answer.rfind("\n", max(0, close - _MOST_OF_A_TITLE), close)
    )
    opened = answer.rfind("[", max(near, 0), close)
    return close if opened < 0 else opened


def _labels(match: re.Match[str]) -> list[str]:
    if match["raised"]:
        return [match["raised"].translate(_RAISED)]
    one = match["lenticular"] or match["sup"]
    if one:
        return [one]
    labels: list[str] = []
    for part in re.split(r"[ \t]*[,;][ \t]*", match["labels"]):
        labels += _spread(part)
    return labels


def _spread(part: str) -> list[str]:
    """`1-3` is three labels; what is no short range of numbers is one."""
    span = _RANGE.match(part)
    if span is None:
        return [part]
    first, last = int(span[1]), int(span[2])
    if not 0 <= last - first < _MOST_OF_A_RANGE:
        return [part]
    return [str(number) for number in range(first, last + 1)]


def trimmed(address: str) -> str:
    """An address without the signs that end the sentence around it."""
    return address.rstrip(_AFTER)
