"""What models can do, and which of the two entries a model sees for it. Pure.

A card *declares* what a model can do; a codec *implements* a protocol; what is usable is what both say.
Nothing is guessed from a name: without a declaration there is no search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

from web_tools._fields import Refused
from web_tools.contract.sites import site_of
from web_tools.errors import InvalidSetup
from web_tools.native.values import Codec, HeldLimit

__all__ = (
    "CapabilityFacts",
    "Entry",
    "ModelCard",
    "ModelCards",
    "NativeLimits",
    "SearchSupport",
    "visible_entry",
)

# provider/model, as settings name a model. A model's own name may have further slashes.
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[\x21-\x7e]{1,128}")
_PROTOCOL: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Entry(StrEnum):
    """The two entries. Source: the search plugin text."""

    SEARCH = "search"
    SEARCH_URL = "search_url"


@attrs.frozen(kw_only=True)
class SearchSupport:
    """That a model searches by itself, and over which protocol.

    Raises:
        InvalidSetup: The protocol is no name.
    """

    protocol: str
    max_searches: int | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.protocol, str) or _PROTOCOL.fullmatch(self.protocol) is None:
            raise InvalidSetup("protocol", "must be the name of a protocol")
        if self.max_searches is not None:
            _count("max_searches", self.max_searches)


@attrs.frozen(kw_only=True)
class ModelCard:
    """What a registered model declares. What it leaves out it cannot do.

    Attributes:
        name: `provider/model`.
        model: The model's name at its provider; what stands behind the first slash by default.
        text: Whether it answers with text.
        search: How it searches by itself; None when it does not.
        max_output_tokens: The most it gives; None when that is not known.
        max_input_bytes: The most text that one request of it holds; None when that is not known.

    Raises:
        InvalidSetup: A part is not of its form.
    """

    name: str
    text: bool = False
    search: SearchSupport | None = None
    model: str = ""
    max_output_tokens: int | None = None
    max_input_bytes: int | None = None

    def __attrs_post_init__(self) -> None:
        check_reference("name", self.name)
        if not isinstance(self.text, bool):
            raise InvalidSetup("text", "must be True or False")
        if self.search is not None and not isinstance(self.search, SearchSupport):
            raise InvalidSetup("search", "must be a SearchSupport")
        for field in ("max_output_tokens", "max_input_bytes"):
            if getattr(self, field) is not None:
                _count(field, getattr(self, field))
        if not self.model:
            object.__setattr__(self, "model", self.name.partition("/")[2])


@attrs.frozen(kw_only=True)
class NativeLimits:
    """What the host holds a native search to.

    What a target cannot hold is refused before a request.

    Attributes:
        max_searches: Of one call, over all its requests; None sets no limit.
        sites: Hosts that it is to stay in; empty for all.
    """

    max_searches: int | None = None
    sites: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.max_searches is not None:
            _count("max_searches", self.max_searches)
        try:
            object.__setattr__(self, "sites", tuple(site_of(site) for site in self.sites))
        except Refused as refused:
            raise InvalidSetup("sites", str(refused)) from refused

    @property
    def asked(self) -> frozenset[HeldLimit]:
        """The limits that are set."""
        searches = {HeldLimit.SEARCHES} if self.max_searches is not None else set()
        return frozenset(searches | ({HeldLimit.SITES} if self.sites else set()))


@attrs.frozen(kw_only=True)
class CapabilityFacts:
    """What is known of one capability.

    Attributes:
        main_native: Whether the current main model has it natively, in a form that is usable.
        target: The model that settings name for it, when it is usable.
    """

    main_native: bool
    target: ModelCard | None


class ModelCards:
    """The registered models, and which of them the current main model is.

    Args:
        cards: Each name once.
        main: The name of the current main model; None, or a name without a card, declares nothing.
        protocols: The codecs, by the name of their protocol.

    Raises:
        InvalidSetup: A name is there twice.
    """

    def __init__(
        self, cards: Iterable[ModelCard], *, main: str | None, protocols: Mapping[str, Codec]
    ) -> None:
        self._cards: dict[str, ModelCard] = {}
        for card in cards:
            if card.name in self._cards:
                raise InvalidSetup("cards", f"two models are called {card.name}")
            self._cards[card.name] = card
        self.main = main
        self.protocols = protocols

    def card(self, name: str | None) -> ModelCard | None:
        """The card of a model; None when it has none."""
        return None if name is None else self._cards.get(name)

    def codec(self, card: ModelCard) -> Codec | None:
        """The codec that makes the search of *card* usable; None when there is none."""
        return None if card.search is None else self.protocols.get(card.search.protocol)

    def facts(self, capability: str, *, target: str | None) -> CapabilityFacts:
        """What is known of a capability; of every other one than `search` nothing is."""
        main, wanted = self.card(self.main), self.card(target)
        if capability != "search":
            return CapabilityFacts(main_native=False, target=None)
        usable = wanted is not None and wanted.text and self.codec(wanted) is not None
        return CapabilityFacts(
            main_native=main is not None and self.codec(main) is not None,
            target=wanted if usable else None,
        )


def visible_entry(facts: CapabilityFacts) -> Entry:
    """The one entry that a model sees."""
    return Entry.SEARCH_URL if facts.main_native else Entry.SEARCH


def check_reference(field: str, value: object) -> str:
    """*value*, when it names a model as `provider/model`.

    Raises:
        InvalidSetup: It does not.
    """
    if not isinstance(value, str) or _REFERENCE.fullmatch(value) is None:
        raise InvalidSetup(field, "must name a model, as provider/model")
    return value


def _count(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetup(field, "must be a whole number from 1")
